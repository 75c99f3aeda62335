// SPDX-License-Identifier: GPL-2.0

//! How often the link or the device of an NI went away: what ended its connections, whosever they were.
//!
//! One flap of a server with many clients fills all the room that the driver has for ends, so those of earlier looks are
//! remembered.

use crate::model::Event;

/// Causes that are this node's link or device.
const CAUSES: [&str; 4] = ["LinkDown", "DeviceGone", "Moved", "AddressChanged"];

/// Seconds that connections take to end together, at most.
const TOGETHER_S: f64 = 10.0;

/// Seconds that a flap is remembered.
const MEMORY_S: f64 = 3600.0;

/// It went away once.
#[derive(Clone, Debug, PartialEq)]
pub struct Flap {
    /// When the first connection ended, in seconds since the epoch.
    pub first: f64,
    /// When the last one did.
    pub last: f64,
    /// Of which cause that was.
    pub cause: String,
}

/// Those of an NI, of the last hour.
#[derive(Clone, Debug, Default)]
pub struct Flaps {
    all: Vec<Flap>,
    /// The time of the last sample.
    time: f64,
}

impl Flaps {
    /// Takes what a sample of that time knows of what ended, the oldest first.
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
            // Known from an earlier look.
            Some(newest) if event.time <= newest.last => {}
            Some(newest) if event.time - newest.first <= TOGETHER_S => {
                newest.last = event.time;
                newest.cause = flap.cause;
            }
            _ => self.all.push(flap),
        }
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> &[Flap] {
        &self.all
    }
}
