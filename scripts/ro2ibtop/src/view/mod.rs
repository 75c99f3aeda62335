// SPDX-License-Identifier: GPL-2.0

//! The screen: NIs, then peers and connections with problems first, then the last ends. This file chooses
//! content and order.

mod draw;
mod nis;
mod table;
mod truncate;

use std::cmp::Reverse;

use crate::{
    history::History,
    model::{
        Conn,
        Sample, //
    },
    verdict::{
        self,
        Level,
        Verdict,
        Way, //
    }, //
};

/// Order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Problems first.
    #[default]
    Trouble,
    /// By NID.
    Nid,
    /// Highest rate first.
    Rate,
}

impl Order {
    /// Returns the next order.
    pub fn next(self) -> Self {
        match self {
            Self::Trouble => Self::Nid,
            Self::Nid => Self::Rate,
            Self::Rate => Self::Trouble,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Nid => "nid",
            Self::Rate => "rate",
        }
    }
}

/// A line of the list.
#[derive(Clone, Debug)]
pub struct Item {
    /// Index of its NI in the sample.
    pub ni: usize,
    /// The peer.
    pub peer: String,
    /// Index of the connection in the NI; `None` for the peer itself.
    pub conn: Option<usize>,
    /// Verdict.
    pub verdict: Verdict,
    rate: f64,
    address: Vec<u32>,
}

/// Content of the screen.
#[derive(Debug, Default)]
pub struct App {
    /// The last sample.
    pub sample: Sample,
    /// History of earlier samples.
    pub history: History,
    /// Peers and connections, in order.
    pub items: Vec<Item>,
    /// Verdict of each NI.
    pub nis: Vec<Verdict>,
    /// Indices of the NIs in the sample, those with problems first.
    ranks: Vec<usize>,
    /// The order.
    pub order: Order,
    /// Line of the list that is shown in full; `None` if the user cannot choose one.
    pub chosen: Option<usize>,
    /// Source of the sample.
    pub title: String,
    /// No sample is read while this is set.
    pub paused: bool,
    /// The ends are shown in place of the list.
    pub events: bool,
    /// Why the next sample could not be read; the sample is an old one then.
    pub error: Option<String>,
}

impl App {
    /// Shows another sample.
    pub fn take(&mut self, sample: Sample) {
        self.history.take(&sample);
        self.sample = sample;
        self.error = None;
        self.judge();
        self.sort();
    }

    fn judge(&mut self) {
        let now = self.sample.time;
        self.items.clear();
        self.nis.clear();
        for (at, ni) in self.sample.nis.iter().enumerate() {
            self.nis.push(verdict::ni(ni, &self.history, now));
            let way = Way::of(ni, &self.history);
            let item = |peer: &str, conn, verdict, rate| Item {
                ni: at,
                peer: peer.to_string(),
                conn,
                verdict,
                rate,
                address: numbers(peer),
            };
            let unsteady = verdict::unsteady(ni, now);
            for (number, conn) in ni.conns.iter().enumerate() {
                let track = self.history.conn(ni, number);
                let rate = track.map_or(0.0, |t| t.rate.tx + t.rate.rx);
                let way = Way {
                    breaks: unsteady.contains(conn.peer.as_str()),
                    ..way
                };
                let verdict = verdict::conn(conn, track, way);
                self.items
                    .push(item(&conn.peer, Some(number), verdict, rate));
            }
            let noisy = verdict::noisy(ni);
            for peer in &ni.peers {
                let quiet = peer.waiting == 0
                    && peer.retry_ms.is_none()
                    && !noisy.contains(peer.nid.as_str());
                let verdict = match quiet {
                    true => Verdict::fine(),
                    false => verdict::peer(ni, peer, now, way),
                };
                // The connections of a peer without problems stand for the peer.
                if verdict.level > Level::Fine || peer.conns == 0 {
                    self.items.push(item(&peer.nid, None, verdict, 0.0));
                }
            }
            for (nid, verdict) in verdict::lost(ni, now) {
                self.items.push(item(&nid, None, verdict, 0.0));
            }
        }
        self.ranks = (0..self.nis.len()).collect();
        let level = |at: &usize| self.nis.get(*at).map(|v| v.level);
        self.ranks.sort_by_key(|at| Reverse(level(at)));
    }

    fn sort(&mut self) {
        match self.order {
            Order::Trouble => self.items.sort_by(|a, b| {
                let level = b.verdict.level.cmp(&a.verdict.level);
                level.then_with(|| a.address.cmp(&b.address))
            }),
            Order::Nid => self.items.sort_by(|a, b| a.address.cmp(&b.address)),
            Order::Rate => self.items.sort_by(|a, b| b.rate.total_cmp(&a.rate)),
        }
    }

    /// Changes the order.
    pub fn reorder(&mut self) {
        self.order = self.order.next();
        self.sort();
    }

    /// Chooses another line of the list.
    pub fn choose(&mut self, by: isize) {
        let last = self.items.len().saturating_sub(1);
        let chosen = self.chosen.unwrap_or(0).min(last);
        self.chosen = Some(chosen.saturating_add_signed(by).min(last));
    }

    /// Returns all levels: of peers, connections, NIs, and of requests for unknown NIs.
    fn levels(&self) -> impl Iterator<Item = Level> + '_ {
        let items = self.items.iter().map(|item| item.verdict.level);
        let nis = self.nis.iter().map(|v| v.level);
        let none = verdict::of_none(&self.sample).map(|v| v.level);
        items.chain(nis).chain(none)
    }

    /// Returns the number of verdicts of a level.
    pub fn count(&self, level: Level) -> usize {
        self.levels().filter(|l| *l == level).count()
    }

    /// Returns whether an end of late is made up for by now.
    fn ended_lately(&self) -> bool {
        let ended = |item: &Item| item.verdict.kind == "ended";
        self.items.iter().any(ended)
    }

    /// Returns the worst level. A sample that cannot be read is not fine.
    pub fn worst(&self) -> Level {
        match self.error {
            Some(_) => Level::Bad,
            None => self.levels().max().unwrap_or(Level::Fine),
        }
    }

    /// Returns the connection of an item.
    pub fn conn(&self, item: &Item) -> Option<&Conn> {
        self.sample.nis.get(item.ni)?.conns.get(item.conn?)
    }
}

fn numbers(nid: &str) -> Vec<u32> {
    let parts = nid.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}
