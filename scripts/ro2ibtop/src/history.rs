// SPDX-License-Identifier: GPL-2.0

//! History of samples: rates, and the last rates as a small picture.

use std::collections::HashMap;

use crate::{
    histograms::{
        self,
        Times, //
    },
    link_flaps::{
        Flap,
        Flaps, //
    },
    model::{
        Conn,
        Counts,
        Ni,
        Sample, //
    },
};

/// Number of rates that are kept.
pub const LENGTH: usize = 32;

/// Identity of a connection within an NI: its number, or the rest with a driver that reports no number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    number: u64,
    peer: String,
    qpn: u64,
    active: bool,
}

impl Key {
    fn of(conn: &Conn) -> Self {
        Self {
            number: conn.number,
            peer: conn.peer.clone(),
            qpn: Self::qpn(conn),
            active: conn.active,
        }
    }

    fn is_of(&self, conn: &Conn) -> bool {
        self.number == conn.number
            && self.qpn == Self::qpn(conn)
            && self.active == conn.active
            && self.peer == conn.peer
    }

    /// Returns the number of the queue pair if it identifies the connection, otherwise 0.
    fn qpn(conn: &Conn) -> u64 {
        match conn.number {
            0 => conn.qpn,
            _ => 0,
        }
    }
}

/// Messages per second in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Sent.
    pub tx: f64,
    /// Received.
    pub rx: f64,
}

/// History of a connection or of an NI.
#[derive(Clone, Debug, Default)]
pub struct Track {
    before: Counts,
    rates: [f32; LENGTH],
    seen: u64,
    /// Messages per second since the previous sample.
    pub rate: Rate,
    /// Increase of the counters since the previous sample.
    pub rise: Counts,
    /// Seconds for which messages have waited because all credits are used.
    pub starved: f64,
    /// Seconds for which LNet on this node has kept the peer's credits and received next to nothing.
    pub kept: f64,
    /// Whether LNet did so at the last sample.
    keeps: bool,
    /// Seconds since the peer acknowledged something, once an acknowledgement has been seen.
    pub still: Option<f64>,
}

impl Track {
    fn update(&mut self, counts: &Counts, dt: f64, round: u64) {
        if self.seen > 0 {
            self.rise = counts.since(&self.before);
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

    /// Returns the last rates as a picture of `width` characters ([`LENGTH`] at most), the newest at the
    /// right.
    pub fn picture(&self, bars: usize) -> String {
        const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let rates = &self.rates[LENGTH.saturating_sub(bars)..];
        let most = rates.iter().copied().fold(0.0, f32::max);
        let bar = |rate: &f32| {
            let height = if most > 0.0 { rate / most * 8.0 } else { 0.0 };
            BARS[(height.ceil() as usize).min(8)]
        };
        rates.iter().map(bar).collect()
    }
}

/// History of an NI.
#[derive(Clone, Debug, Default)]
struct Past {
    round: u64,
    own: Track,
    flaps: Flaps,
    keys: Vec<Key>,
    /// Histories of its connections, in the order of the last sample.
    conns: Vec<Track>,
    /// Device that `hardware` is of.
    device: String,
    hardware: HashMap<String, u64>,
    rises: HashMap<String, u64>,
    no_memory: u64,
    no_memory_rise: u64,
    no_region: u64,
    no_region_rise: u64,
    told: u64,
    told_rise: u64,
    bad_pkeys: u64,
    bad_pkeys_rise: u64,
    times: Vec<Times>,
    times_rise: Vec<Times>,
}

impl Past {
    fn take(&mut self, ni: &Ni, dt: f64, round: u64) {
        let again = self.round > 0;
        self.round = round;
        self.own.update(&ni.totals(), dt, round);
        self.take_conns(&ni.conns, dt, round);
        self.rises.clear();
        // After a bond failed over, the counters are those of the other device.
        if self.device != ni.device {
            self.hardware.clear();
            self.device.clone_from(&ni.device);
        }
        for (name, n) in &ni.hardware {
            if let Some(old) = self.hardware.insert(name.clone(), *n) {
                self.rises.insert(name.clone(), n.saturating_sub(old));
            }
        }
        let (memory, region) = (
            (&mut self.no_memory, &mut self.no_memory_rise),
            (&mut self.no_region, &mut self.no_region_rise),
        );
        for (of, name, (before, rise)) in [
            ("other", "NoMemory", memory),
            ("other", "NoRegion", region),
            ("messages", "Told", (&mut self.told, &mut self.told_rise)),
        ] {
            let n = ni.count(of, name);
            *rise = match again {
                true => n.saturating_sub(*before),
                false => 0,
            };
            *before = n;
        }
        self.bad_pkeys_rise = match again {
            true => ni.bad_pkeys.saturating_sub(self.bad_pkeys),
            false => 0,
        };
        self.bad_pkeys = ni.bad_pkeys;
        self.times_rise = histograms::since(&ni.latency, &self.times);
        self.times.clone_from(&ni.latency);
    }

    fn take_conns(&mut self, conns: &[Conn], dt: f64, round: u64) {
        let old_keys = std::mem::take(&mut self.keys);
        let mut old = std::mem::take(&mut self.conns);
        // The driver lists connections in the same order each time, so most are where they are expected; the
        // others are searched.
        let mut elsewhere: Option<HashMap<&Key, usize>> = None;
        // A connection may end at that index; the next one then continues there.
        let mut kept: HashMap<&str, f64> = HashMap::new();
        for (key, track) in old_keys.iter().zip(&old) {
            if track.kept > 0.0 {
                let most = kept.entry(key.peer.as_str()).or_default();
                *most = most.max(track.kept);
            }
        }
        let mut expected = 0;
        for conn in conns {
            let key = Key::of(conn);
            let at = match old_keys.get(expected) {
                Some(old) if old.is_of(conn) => Some(expected),
                _ => {
                    let all = elsewhere.get_or_insert_with(|| {
                        let numbered = old_keys.iter().enumerate();
                        numbered.map(|(i, key)| (key, i)).collect()
                    });
                    all.get(&key).copied()
                }
            };
            if let Some(at) = at {
                expected = at + 1;
            }
            let mut track = at
                .and_then(|at| old.get_mut(at))
                .map(std::mem::take)
                .unwrap_or_default();
            let again = track.seen > 0;
            track.update(&conn.counts, dt, round);
            // NOOPs need no credit that other messages could use.
            let moved = track.rise.tx_msgs > track.rise.tx_noops;
            track.starved = match crate::verdict::is_starved(conn) && !moved {
                true if again => track.starved + dt,
                true => conn.oldest_ms as f64 / 1000.0,
                false => 0.0,
            };
            track.still = match track.rise.retired {
                0 => track.still.map(|still| still + dt),
                _ => Some(0.0),
            };
            // Liveness probes arrive all the time.
            let taken = track.rise.rx_msgs as f64 > 2.0 + 2.0 * dt;
            let kept_before = std::mem::replace(
                &mut track.keeps,
                crate::verdict::keeps_credits(conn) && !taken,
            );
            track.kept = match track.keeps {
                true if kept_before => track.kept + dt,
                // A burst may just have arrived.
                true if again => 0.0,
                true => kept.get(conn.peer.as_str()).map_or(0.0, |kept| kept + dt),
                false => 0.0,
            };
            self.keys.push(key);
            self.conns.push(track);
        }
    }
}

/// History of a node.
#[derive(Clone, Debug, Default)]
pub struct History {
    nis: HashMap<String, Past>,
    time: f64,
    round: u64,
}

impl History {
    /// Adds a sample. Samples are in the order of their time.
    pub fn take(&mut self, sample: &Sample) {
        let dt = (sample.time - self.time).max(0.0);
        self.time = sample.time;
        self.round = self.round.saturating_add(1);
        for ni in &sample.nis {
            let past = self.nis.entry(ni.nid.clone()).or_default();
            past.take(ni, dt, self.round);
            past.flaps.take(&ni.events, sample.time);
        }
        // Drop NIs that are gone.
        self.nis.retain(|_, past| past.round == self.round);
    }

    /// Returns the history of a connection, by its index in the NI.
    pub fn conn(&self, ni: &Ni, number: usize) -> Option<&Track> {
        self.nis.get(&ni.nid)?.conns.get(number)
    }

    /// Returns the history of an NI.
    pub fn ni(&self, ni: &Ni) -> Option<&Track> {
        self.nis.get(&ni.nid).map(|past| &past.own)
    }

    /// Returns the increase of a counter of the NI's device since the previous sample.
    pub fn hardware(&self, ni: &Ni, counter: &str) -> u64 {
        let past = self.nis.get(&ni.nid);
        past.and_then(|p| p.rises.get(counter))
            .copied()
            .unwrap_or(0)
    }

    /// Returns how often the link or the device of the NI went away lately.
    pub fn flaps(&self, ni: &Ni) -> &[Flap] {
        self.nis.get(&ni.nid).map_or(&[], |past| past.flaps.all())
    }

    /// Returns how often memory ran out since the previous sample.
    pub fn no_memory(&self, ni: &Ni) -> u64 {
        self.nis.get(&ni.nid).map_or(0, |past| past.no_memory_rise)
    }

    /// Returns how often memory regions ran out.
    pub fn no_region(&self, ni: &Ni) -> u64 {
        self.nis.get(&ni.nid).map_or(0, |past| past.no_region_rise)
    }

    /// Returns how many messages failed since the previous sample because a peer could not receive or answer
    /// them.
    pub fn told(&self, ni: &Ni) -> u64 {
        self.nis.get(&ni.nid).map_or(0, |past| past.told_rise)
    }

    /// Returns the packets of other partitions since the previous sample.
    pub fn bad_pkeys(&self, ni: &Ni) -> u64 {
        self.nis.get(&ni.nid).map_or(0, |past| past.bad_pkeys_rise)
    }

    /// Returns the histograms since the previous sample, or since the start of the NI if there is none.
    pub fn times(&self, ni: &Ni) -> &[Times] {
        self.nis.get(&ni.nid).map_or(&[], |past| &past.times_rise)
    }

    /// Returns whether there were two samples to compare.
    pub fn can_compare(&self) -> bool {
        self.round > 1
    }
}
