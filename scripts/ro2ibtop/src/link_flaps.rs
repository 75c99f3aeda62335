// SPDX-License-Identifier: GPL-2.0

//! Flaps: how often the link or the device of an NI went away, judged by the ends of connections.
//!
//! One flap of a server with many clients fills the driver's log of closes, so flaps of earlier samples are
//! remembered.

use crate::model::Event;

/// Causes that name this node's link or device.
const CAUSES: [&str; 4] = ["LinkDown", "DeviceGone", "Moved", "AddressChanged"];

/// Seconds within which the connections of one flap end.
const TOGETHER_S: f64 = 10.0;

/// Seconds for which a flap is remembered.
const MEMORY_S: f64 = 3600.0;

/// One flap.
#[derive(Clone, Debug, PartialEq)]
pub struct Flap {
    /// Time of the first end, in seconds since the epoch.
    pub first: f64,
    /// Time of the last end.
    pub last: f64,
    /// Cause of the ends.
    pub cause: String,
}

/// Flaps of an NI within the last hour.
#[derive(Clone, Debug, Default)]
pub struct Flaps {
    all: Vec<Flap>,
    /// Time of the last sample.
    time: f64,
}

impl Flaps {
    /// Adds the ends of a sample, the oldest first.
    pub fn take(&mut self, events: &[Event], now: f64) {
        // The clock was set back.
        if now < self.time {
            self.all.clear();
        }
        self.time = now;
        let of_us = |e: &&Event| e.what == "closed" && CAUSES.contains(&e.cause.as_str());
        for event in events.iter().filter(of_us) {
            self.note(event);
        }
        self.all.retain(|flap| now - flap.last <= MEMORY_S);
    }

    fn note(&mut self, event: &Event) {
        let flap = Flap {
            first: event.time,
            last: event.time,
            cause: event.cause.clone(),
        };
        match self.all.last_mut() {
            // An earlier sample had this end.
            Some(newest) if event.time <= newest.last => {}
            Some(newest) if event.time - newest.first <= TOGETHER_S => {
                newest.last = event.time;
                newest.cause = flap.cause;
            }
            _ => self.all.push(flap),
        }
    }

    /// Returns all flaps, the oldest first.
    pub fn all(&self) -> &[Flap] {
        &self.all
    }
}
