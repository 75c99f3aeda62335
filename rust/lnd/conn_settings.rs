// SPDX-License-Identifier: GPL-2.0

//! Settings of an NI that apply to new connections only, and the number of existing connections that use other values.
//!
//! A connection copies its settings when it is created, and keeps them: a change during the attempt applies to the next
//! connection.

use kernel::{
    prelude::*,
    sync::SpinLock, //
};

use super::lnet_types::O2ib;
use crate::{
    lnet::NiRef,
    proto::broken,
    rdma::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Settings for new connections. `peer_credits` is the depth that this node requests; the peer may reduce it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    conns_per_peer: u16,
    peer_credits: u16,
    tos: Option<u8>,
    retry_count: u8,
    rnr_retry_count: u8,
}

impl Settings {
    /// Returns the current settings. Any context.
    pub(super) fn now(lnet: &NiRef<O2ib>) -> Self {
        Self {
            conns_per_peer: lnet.conns_per_peer(),
            peer_credits: lnet.peer_credits(),
            tos: lnet.tos(),
            retry_count: lnet.retry_count(),
            rnr_retry_count: lnet.rnr_retry_count(),
        }
    }

    /// Returns the IP type of service to request.
    pub(crate) fn tos(&self) -> Option<u8> {
        self.tos
    }

    /// Returns the number of transport retries, 0..=7.
    pub(crate) fn retry_count(&self) -> u8 {
        self.retry_count
    }

    /// Returns the number of receiver-not-ready retries, 0..=7.
    pub(crate) fn rnr_retry_count(&self) -> u8 {
        self.rnr_retry_count
    }
}

/// Settings of a connection, and whether the connection is counted.
pub(crate) struct ConnSettings {
    settings: Settings,
    counted: Atomic<bool>,
}

impl ConnSettings {
    /// Creates the settings of a connection that is not counted yet.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            counted: Atomic::new(false),
        }
    }

    /// Returns the settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }
}

/// Number of connections that messages may use, by their settings: rarely more than two rows.
///
/// # Invariants
///
/// There is a row for each set of settings that a counted connection has. The row has the number of these connections,
/// which is not 0.
#[pin_data]
pub(super) struct SettingsInUse {
    #[pin]
    rows: SpinLock<KVec<(Settings, u32)>>,
}

impl SettingsInUse {
    /// Creates an empty table.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rows <- kernel::new_spinlock!(KVec::new(), "SettingsInUse::rows"),
        })
    }

    /// Counts a connection that messages may use. If memory is missing, the connection is not counted. Process context;
    /// a caller must not run [`SettingsInUse::leave`] for the same connection at the same time.
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

    /// Stops counting a connection that messages may no longer use. Process context.
    pub(super) fn leave(&self, conn: &ConnSettings) {
        if !conn.counted.load(Relaxed) {
            return;
        }
        conn.counted.store(false, Relaxed);
        let mut rows = self.rows.lock();
        // INVARIANT: One less in its row, which is removed with the last connection.
        rows.retain(|row| {
            if row.0 == conn.settings {
                let left = row.1.checked_sub(1);
                row.1 = left.unwrap_or_else(|| broken("a connection leaves its settings twice"));
            }
            row.1 > 0
        });
    }

    /// Returns the number of connections with settings other than `now`. Does not sleep.
    pub(super) fn others_than(&self, now: &Settings) -> u32 {
        let rows = self.rows.lock();
        let others = rows.iter().filter(|row| row.0 != *now);
        others.fold(0, |sum, row| sum.saturating_add(row.1))
    }
}
