// SPDX-License-Identifier: GPL-2.0

//! What of the settings of an NI counts for new connections only, and how many of those that are there were made with
//! something else than what is in force now.
//!
//! A connection takes its settings down when it is made, and goes by them: what changes while it connects is for the
//! next one.

use kernel::{
    prelude::*,
    sync::SpinLock, //
};

use super::lnet_glue::O2ib;
use crate::{
    lnet::NiRef,
    rdma::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// What counts for new connections. Of `peer_credits` it is what this side wants; the peer has a say in the depth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    conns_per_peer: u16,
    peer_credits: u16,
    tos: Option<u8>,
    retry_count: u8,
    rnr_retry_count: u8,
}

impl Settings {
    /// What is in force. Any context.
    pub(super) fn now(lnet: &NiRef<O2ib>) -> Self {
        Self {
            conns_per_peer: lnet.conns_per_peer(),
            peer_credits: lnet.peer_credits(),
            tos: lnet.tos(),
            retry_count: lnet.retry_count(),
            rnr_retry_count: lnet.rnr_retry_count(),
        }
    }

    /// IP type of service to ask for.
    pub(crate) fn tos(&self) -> Option<u8> {
        self.tos
    }

    /// Transport retries, 0..=7.
    pub(crate) fn retry_count(&self) -> u8 {
        self.retry_count
    }

    /// Receiver-not-ready retries, 0..=7.
    pub(crate) fn rnr_retry_count(&self) -> u8 {
        self.rnr_retry_count
    }
}

/// What a connection was made with, and whether it is counted.
pub(crate) struct ConnSettings {
    settings: Settings,
    counted: Atomic<bool>,
}

impl ConnSettings {
    /// Not counted yet.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            counted: Atomic::new(false),
        }
    }

    /// The settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// The connections of an NI that messages may use, by what they were made with: rarely more than two rows.
///
/// # Invariants
///
/// There is a row for each settings that a counted connection was made with, and it has their number, which is not 0.
#[pin_data]
pub(super) struct SettingsInUse {
    #[pin]
    rows: SpinLock<KVec<(Settings, u32)>>,
}

impl SettingsInUse {
    /// None.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rows <- kernel::new_spinlock!(KVec::new(), "InUse::rows"),
        })
    }

    /// Messages may use this connection. Without memory it is not counted. Process context; of one connection not
    /// at the same time as [`SettingsInUse::leave`].
    pub(super) fn enter(&self, conn: &ConnSettings) {
        if conn.counted.load(Relaxed) {
            return;
        }
        let mut rows = self.rows.lock();
        // INVARIANT: One more in its row, or a new row with one.
        if let Some(row) = rows.iter_mut().find(|row| row.0 == conn.settings) {
            row.1 = row.1.saturating_add(1);
        } else if rows.push((conn.settings, 1), GFP_ATOMIC).is_err() {
            return;
        }
        conn.counted.store(true, Relaxed);
    }

    /// They may no longer. Process context.
    pub(super) fn leave(&self, conn: &ConnSettings) {
        if !conn.counted.load(Relaxed) {
            return;
        }
        conn.counted.store(false, Relaxed);
        let mut rows = self.rows.lock();
        // INVARIANT: One less in its row, which goes with the last.
        rows.retain(|row| {
            if row.0 == conn.settings {
                row.1 = row.1.saturating_sub(1);
            }
            row.1 > 0
        });
    }

    /// How many were made with something else than `now`. Does not sleep.
    pub(super) fn others_than(&self, now: &Settings) -> u32 {
        let rows = self.rows.lock();
        let others = rows.iter().filter(|row| row.0 != *now);
        others.fold(0, |sum, row| sum.saturating_add(row.1))
    }
}
