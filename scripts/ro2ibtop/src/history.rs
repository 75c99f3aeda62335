// SPDX-License-Identifier: GPL-2.0

//! What changed from sample to sample: rates, and the last of them as a small picture.

use std::collections::HashMap;

use crate::model::{
    Conn,
    Counts,
    Ni,
    Sample, //
};

/// Rates that are remembered.
pub const LENGTH: usize = 8;

/// What tells one connection from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    ni: String,
    peer: String,
    qpn: u64,
    active: bool,
}

impl Key {
    /// That of a connection of an NI.
    pub fn of(ni: &Ni, conn: &Conn) -> Self {
        Self {
            ni: ni.nid.clone(),
            peer: conn.peer.clone(),
            qpn: conn.qpn,
            active: conn.active,
        }
    }
}

/// Messages per second, one way and the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Sent.
    pub tx: f64,
    /// Received.
    pub rx: f64,
}

/// What is known of a connection, or of an NI, over time.
#[derive(Clone, Debug, Default)]
pub struct Track {
    before: Counts,
    rates: [f32; LENGTH],
    seen: u64,
    /// Messages per second since the sample before.
    pub rate: Rate,
    /// What its counters rose by since the sample before.
    pub rise: Counts,
    /// Seconds that its credits have been used up with messages waiting for one.
    pub starved: f64,
}

impl Track {
    fn update(&mut self, counts: &Counts, dt: f64, round: u64) {
        let rise = |now: u64, before: u64| now.saturating_sub(before);
        if self.seen > 0 {
            self.rise = Counts {
                tx_msgs: rise(counts.tx_msgs, self.before.tx_msgs),
                rx_msgs: rise(counts.rx_msgs, self.before.rx_msgs),
                tx_noops: rise(counts.tx_noops, self.before.tx_noops),
                wrs: rise(counts.wrs, self.before.wrs),
                no_credit: rise(counts.no_credit, self.before.no_credit),
                no_slots: rise(counts.no_slots, self.before.no_slots),
                rnr: rise(counts.rnr, self.before.rnr),
            };
            if dt > 0.0 {
                self.rate = Rate {
                    tx: self.rise.tx_msgs as f64 / dt,
                    rx: self.rise.rx_msgs as f64 / dt,
                };
            }
            self.rates.rotate_left(1);
            self.rates[LENGTH - 1] = (self.rate.tx + self.rate.rx) as f32;
        }
        self.before = *counts;
        self.seen = round;
    }

    /// The last rates as a picture, the newest at the right.
    pub fn picture(&self) -> String {
        const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.rates.iter().copied().fold(0.0, f32::max);
        let bar = |rate: &f32| {
            let height = if most > 0.0 { rate / most * 8.0 } else { 0.0 };
            BARS[(height.ceil() as usize).min(8)]
        };
        self.rates.iter().map(bar).collect()
    }
}

/// The tracks of all that there is.
#[derive(Clone, Debug, Default)]
pub struct History {
    conns: HashMap<Key, Track>,
    nis: HashMap<String, Track>,
    hardware: HashMap<String, HashMap<String, u64>>,
    rises: HashMap<String, HashMap<String, u64>>,
    memory: HashMap<String, (u64, u64)>,
    time: f64,
    round: u64,
}

impl History {
    /// Takes another sample. Samples come in the order of their time.
    pub fn take(&mut self, sample: &Sample) {
        let dt = (sample.time - self.time).max(0.0);
        self.round = self.round.saturating_add(1);
        let round = self.round;
        for ni in &sample.nis {
            let track = self.nis.entry(ni.nid.clone()).or_default();
            track.update(&ni.totals(), dt, round);
            for conn in &ni.conns {
                let known = self.conns.entry(Key::of(ni, conn)).or_default();
                let again = known.seen > 0;
                known.update(&conn.counts, dt, round);
                let moved = known.rise.tx_msgs > 0;
                known.starved = match crate::verdict::is_starved(conn) && !moved {
                    true if again => known.starved + dt,
                    true => conn.oldest_ms as f64 / 1000.0,
                    false => 0.0,
                };
            }
            let before = self.hardware.entry(ni.nid.clone()).or_default();
            let rises = self.rises.entry(ni.nid.clone()).or_default();
            rises.clear();
            for (name, n) in &ni.hardware {
                if let Some(old) = before.insert(name.clone(), *n) {
                    rises.insert(name.clone(), n.saturating_sub(old));
                }
            }
            let no_memory = ni.count("other", "NoMemory");
            let memory = self.memory.entry(ni.nid.clone());
            let memory = memory.or_insert((no_memory, 0));
            *memory = (no_memory, no_memory.saturating_sub(memory.0));
        }
        // Those that are gone.
        self.conns.retain(|_, track| track.seen == round);
        self.nis.retain(|_, track| track.seen == round);
        self.time = sample.time;
    }

    /// That of a connection.
    pub fn conn(&self, ni: &Ni, conn: &Conn) -> Option<&Track> {
        self.conns.get(&Key::of(ni, conn))
    }

    /// That of an NI.
    pub fn ni(&self, ni: &Ni) -> Option<&Track> {
        self.nis.get(&ni.nid)
    }

    /// What a counter of the NI's device rose by since the sample before.
    pub fn hardware(&self, ni: &Ni, counter: &str) -> u64 {
        let rises = self.rises.get(&ni.nid);
        rises.and_then(|r| r.get(counter)).copied().unwrap_or(0)
    }

    /// How often there was no memory since the sample before.
    pub fn no_memory(&self, ni: &Ni) -> u64 {
        self.memory.get(&ni.nid).map_or(0, |(_, rise)| *rise)
    }

    /// Whether there were two samples to compare.
    pub fn can_compare(&self) -> bool {
        self.round > 1
    }
}
