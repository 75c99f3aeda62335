// SPDX-License-Identifier: GPL-2.0

//! An NI that LNet deletes, before it asks for its shutdown.
//!
//! LNet says nothing of it: it waits for a moment in which it has no message of the NI, and looks once a second. What
//! the driver sees is that a message comes in meanwhile. [`crate::proto::way::may_end_deleted`] says when that has gone
//! on for too long.
//!
//! Any context; no lock.

use super::{
    log,
    moment::Moment, //
};
use crate::{
    proto::{
        nid::Nid,
        way::may_end_deleted, //
    },
    rdma::atomic::{
        Acquire,
        Atomic,
        Full, //
    }, //
};

/// Since when it is known, and what was done.
pub(crate) struct Deletion {
    /// Nanoseconds of the clock at the first message that came meanwhile; 0: none did.
    since: Atomic<u64>,
    /// It was said that connections end.
    told: Atomic<bool>,
}

impl Deletion {
    /// Nobody deletes the NI.
    pub(super) fn new() -> Self {
        Self {
            since: Atomic::new(0),
            told: Atomic::new(false),
        }
    }

    /// A message has come for the NI `nid` while LNet deletes it. True: that has gone on for too long.
    pub(crate) fn takes_long(&self, nid: Nid) -> bool {
        let now = Moment::now().ns();
        let since = match self.since.load(Acquire) {
            // Of two that are first either is early enough.
            0 => {
                let _ = self.since.xchg(now.max(1), Full);
                return false;
            }
            since => since,
        };
        if !may_end_deleted(now.saturating_sub(since)) {
            return false;
        }
        if !self.told.xchg(true, Full) {
            log::deletion_waits(nid);
        }
        true
    }
}
