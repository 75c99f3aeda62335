// SPDX-License-Identifier: GPL-2.0

//! Path of a connection, as the CM set it for the queue pair.

use core::fmt;

use crate::bindings;

/// A GID, printed as in sysfs: eight groups of four hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid([u8; 16]);

impl Gid {
    /// Returns the GID; `None` for all zeros, because it is not known.
    fn from_raw(raw: [u8; 16]) -> Option<Self> {
        (raw != [0; 16]).then_some(Self(raw))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let colon = if i > 0 && i % 2 == 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A path, as this side has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// GID here.
    pub(crate) sgid: Option<Gid>,
    /// GID of the other side.
    pub(crate) dgid: Option<Gid>,
    /// Path MTU in bytes.
    pub(crate) mtu: Option<u32>,
    /// Port of the device, from 1; 0 if there is none.
    pub(crate) port: u32,
    /// Traffic class; of RoCE that is the type of service.
    pub(crate) tos: Option<u8>,
    /// Service level.
    pub(crate) sl: Option<u8>,
    /// Retries of the queue pair for a request that is not acknowledged.
    pub(crate) retry_count: Option<u8>,
    /// Retries for a request that finds no receive at the other side; 7 is without end.
    pub(crate) rnr_retry_count: Option<u8>,
    /// How long the queue pair waits for an acknowledgement before it sends the packet again: 4.096 us * 2^n. 0 is
    /// without end.
    pub(crate) ack_timeout: Option<u8>,
}

impl Path {
    /// Nothing of it is known.
    pub(crate) const UNKNOWN: Self = Self {
        sgid: None,
        dgid: None,
        mtu: None,
        port: 0,
        tos: None,
        sl: None,
        retry_count: None,
        rnr_retry_count: None,
        ack_timeout: None,
    };

    pub(super) fn from_raw(raw: &bindings::ro2ib_cm_path) -> Self {
        Self {
            sgid: Gid::from_raw(raw.sgid),
            dgid: Gid::from_raw(raw.dgid),
            mtu: (raw.mtu != 0).then_some(raw.mtu),
            port: raw.port,
            tos: u8::try_from(raw.tos).ok(),
            sl: u8::try_from(raw.sl).ok(),
            retry_count: u8::try_from(raw.retry_count).ok(),
            rnr_retry_count: u8::try_from(raw.rnr_retry_count).ok(),
            ack_timeout: u8::try_from(raw.ack_timeout).ok(),
        }
    }
}
