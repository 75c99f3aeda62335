// SPDX-License-Identifier: GPL-2.0

//! Target of the WRITEs of a transfer, and the number of work requests that they take.
//!
//! The descriptor of a peer is copied out of its message, because the message's buffer is reused before the WRITEs
//! complete.
//!
//! Context: any. Owned by a transfer.
//!
//! # Invariants
//!
//! No fragment of a [`RdmaTarget`] is empty, and there is at least one.

use kernel::prelude::*;

use crate::{
    proto::wire::{
        Descriptor,
        Fragment, //
    },
    rdma::sg::SgMap, //
};

/// Limits for the work requests of one transfer.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Gather elements per WRITE.
    max_sge: usize,
    /// Slots that a registration and the message behind it take.
    reg_and_send: u16,
}

impl Limits {
    /// Limits before there is a queue pair.
    pub(super) const NONE: Self = Self {
        max_sge: 1,
        reg_and_send: 2,
    };

    /// Creates the limits of a queue pair: WRITEs of `max_sge` gather elements, `wrs_per_reg` slots for a registration.
    pub(super) fn new(max_sge: u16, wrs_per_reg: u16) -> Self {
        Self {
            max_sge: usize::from(max_sge),
            reg_and_send: wrs_per_reg.saturating_add(1),
        }
    }

    /// Returns the number of gather elements per WRITE.
    pub(super) fn max_sge(self) -> usize {
        self.max_sge
    }

    /// Returns the number of slots that a registration and the message behind it take.
    pub(super) fn reg_and_send(self) -> u16 {
        self.reg_and_send
    }
}

/// Position of the next WRITE in the peer's sink.
#[derive(Clone, Copy)]
pub(super) struct TargetPos {
    key: u32,
    /// Number of the piece.
    piece: usize,
    /// Bytes of the piece that are written.
    at: u32,
}

impl TargetPos {
    /// Returns the key of the sink.
    pub(super) fn key(self) -> u32 {
        self.key
    }

    /// Advances by `nob` written bytes; `rest` was the rest of the piece.
    pub(super) fn moves_on(&mut self, nob: u32, rest: Fragment) {
        if nob < rest.nob {
            self.at = self.at.saturating_add(nob);
        } else {
            self.piece = self.piece.saturating_add(1);
            self.at = 0;
        }
    }
}

/// Sink of the peer.
pub(super) struct RdmaTarget {
    /// Its key.
    key: u32,
    /// Its pieces.
    frags: Frags,
}

enum Frags {
    One([Fragment; 1]),
    Many(KVec<Fragment>),
}

impl RdmaTarget {
    /// Copies a descriptor out of a message. Peers on current kernels send one fragment, which needs no memory. Any
    /// context.
    #[inline(always)]
    pub(super) fn new(rd: &Descriptor<'_>) -> Result<Self> {
        let mut pieces = rd.fragments().filter(|f| f.nob > 0);
        let frags = match (pieces.next(), rd.nfrags()) {
            (Some(only), 1) => Frags::One([only]),
            (Some(first), n) => {
                let mut all = KVec::with_capacity(usize::from(n), GFP_ATOMIC)?;
                for f in Iterator::chain(core::iter::once(first), pieces) {
                    all.push_within_capacity(f).map_err(|_| ENOMEM)?;
                }
                Frags::Many(all)
            }
            (None, _) => return Err(EPROTO),
        };
        Ok(Self {
            key: rd.key(),
            frags,
        })
    }

    /// Returns whether it has no memory of its own.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.frags, Frags::One(_))
    }

    /// Returns the address of the first `nob` bytes, and the key, if the bytes fit into one piece.
    #[inline]
    pub(super) fn only(&self, nob: u32) -> Option<(u64, u32)> {
        match &self.frags {
            Frags::One([only]) if only.nob >= nob => Some((only.addr, self.key)),
            _ => None,
        }
    }

    /// Returns the position after the first `moved` bytes.
    pub(super) fn set_target(&self, moved: u32) -> TargetPos {
        let (mut piece, mut at) = (0, moved);
        while let Some(fragment) = self.fragment(piece).filter(|f| at >= f.nob) {
            at = at.saturating_sub(fragment.nob);
            piece = piece.saturating_add(1);
        }
        TargetPos {
            key: self.key,
            piece,
            at,
        }
    }

    /// Returns the rest of the piece at `aim`.
    pub(super) fn rest(&self, aim: TargetPos) -> Option<Fragment> {
        let fragment = self.fragment(aim.piece)?;
        Some(Fragment {
            nob: fragment.nob.checked_sub(aim.at)?,
            addr: fragment.addr.wrapping_add(u64::from(aim.at)),
        })
    }

    /// Returns piece number `at`.
    fn fragment(&self, at: usize) -> Option<Fragment> {
        match &self.frags {
            Frags::One(one) => one.get(at),
            Frags::Many(all) => all.get(at),
        }
        .copied()
    }

    /// Returns the largest number of work requests that moving `total` bytes of `map` to the sink can take, with the
    /// message behind them.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the sink is too small.
    pub(super) fn slots(&self, map: &SgMap, total: u32, limits: Limits) -> Result<u16> {
        let (pieces, room) = match &self.frags {
            Frags::One([only]) => (1, u64::from(only.nob)),
            Frags::Many(all) => {
                let sum = |room: u64, f: &Fragment| room.saturating_add(u64::from(f.nob));
                (all.len(), all.iter().fold(0, sum))
            }
        };
        if room < u64::from(total.min(map.nob())) && total > 0 {
            return Err(EPROTO);
        }
        // A WRITE ends with a piece of the sink, or when it has its maximum of gather elements; and each end of a piece
        // may split a range of the source in two.
        let ranges = usize::try_from(map.nr_mapped())?.saturating_add(pieces);
        let full = ranges.checked_div(limits.max_sge).unwrap_or(ranges);
        Ok(u16::try_from(
            pieces.saturating_add(full).saturating_add(1),
        )?)
    }
}
