// SPDX-License-Identifier: GPL-2.0

//! The file of an NI adds up: what its connections count, and those that are over, never becomes less. Who draws
//! rates takes that for a driver that was loaded anew.

use std::collections::HashMap;

use simc::{
    misc::{
        self,
        Dentry, //
    },
    rng::Rng,
    sched::{
        self,
        MS,
        US, //
    },
    world::{
        violation,
        w, //
    }, //
};

/// How often the numbers are read.
const LOOKS: u32 = 100;

/// Reads the files of a node, and again, in odd moments.
pub fn watch(node: usize) {
    let mut sums = Sums::default();
    let rng = &mut Rng::new(node as u64);
    for _ in 0..LOOKS {
        for file in misc::files(node) {
            let _ = sums.cat(file);
        }
        sched::sleep(match rng.below(8) {
            0 => rng.below(100 * MS),
            1 => rng.below(10 * MS),
            _ => rng.below(100 * US),
        });
    }
}

/// What was read so far, of each NI in each of its lives.
#[derive(Default)]
pub struct Sums(HashMap<String, Vec<(String, u64)>>);

impl Sums {
    /// Reads that file, and adds up what it says.
    pub fn cat(&mut self, file: *mut Dentry) -> String {
        let before = w().faults;
        let text = misc::cat(file);
        // A list for which there is no memory is short.
        if w().faults == before {
            self.look(&text);
        }
        text
    }

    /// Another look at a file; one that is no NI's has no sums.
    fn look(&mut self, text: &str) {
        let Some(first) = text.lines().find(|line| line.starts_with("ni=")) else {
            return;
        };
        // Its NID, and which life it is in.
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
            for (key, value) in line.split_whitespace().filter_map(|w| w.split_once('=')) {
                // Receives are counted when the connection is over.
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
