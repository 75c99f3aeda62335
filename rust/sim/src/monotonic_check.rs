// SPDX-License-Identifier: GPL-2.0

//! Check that the sums of an NI's file never decrease: the counters of its connections, and of
//! those that are closed. A monitoring program that computes rates takes a smaller sum for a
//! reloaded driver.

use std::collections::HashMap;

use simc::{
    kernel_core::{
        self,
        Dentry, //
    },
    rng::Rng,
    sched::{
        self,
        MS,
        US, //
    },
    world::violation, //
};

/// Number of reads.
const LOOKS: u32 = 100;

/// Reads the files of a node repeatedly, at random moments.
pub fn watch(node: usize) {
    let mut sums = Sums::default();
    let rng = &mut Rng::new(node as u64);
    for _ in 0..LOOKS {
        for file in kernel_core::files(node) {
            let _ = sums.cat(file);
        }
        sched::sleep(match rng.below(8) {
            0 => rng.below(100 * MS),
            1 => rng.below(10 * MS),
            _ => rng.below(100 * US),
        });
    }
}

/// Sums of each NI in each of its lives, as read so far.
#[derive(Default)]
pub struct Sums(HashMap<String, Vec<(String, u64)>>);

impl Sums {
    /// Reads that file, and adds up its counters.
    pub fn cat(&mut self, file: *mut Dentry) -> String {
        let text = kernel_core::cat(file);
        self.look(&text);
        text
    }

    /// Checks the text of a file; a file that is not an NI's has no sums.
    fn look(&mut self, text: &str) {
        // Most files have no such line, and a search for a short text looks at many bytes at a time.
        if !text.starts_with("ni=") && !text.contains("\nni=") {
            return;
        }
        let Some(first) = text.lines().find(|line| line.starts_with("ni=")) else {
            return;
        };
        // Its NID, and the number of its life.
        let who = first
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ");
        let mut now: Vec<(String, u64)> = Vec::new();
        for line in text.lines() {
            if !line.starts_with("conn=") && !line.starts_with("closed_conns=") {
                continue;
            }
            for (key, value) in line
                .split_ascii_whitespace()
                .filter_map(|w| w.split_once('='))
            {
                // The driver counts receives when the connection is closed.
                if !matches!(
                    key,
                    "tx_msgs" | "rx_msgs" | "wrs" | "doorbells" | "cqes" | "recv_cqes"
                ) {
                    continue;
                }
                let n: u64 = value.parse().expect("a number");
                match now.iter_mut().find(|(known, _)| known == key) {
                    Some((_, sum)) => *sum += n,
                    None => now.push((key.into(), n)),
                }
            }
        }
        for (key, before) in self.0.get(&who).into_iter().flatten() {
            let is = now
                .iter()
                .find(|(known, _)| known == key)
                .map_or(0, |(_, n)| *n);
            if is < *before {
                violation(&format!("{key} of {who} was {before} in all, and is {is}"));
            }
        }
        self.0.insert(who, now);
    }
}
