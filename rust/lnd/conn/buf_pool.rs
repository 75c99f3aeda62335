// SPDX-License-Identifier: GPL-2.0

//! Pool of unused message buffers of a connection: mapped once, used often.
//!
//! Context: any, except where stated; part of the state that the connection lock protects. No memory is allocated under
//! the lock: a buffer that does not fit into the pool is freed.

use kernel::prelude::*;

use super::rx::{
    cold_drop,
    Rx, //
};
use crate::{
    policy::queue_sizes,
    proto::{
        constants::QueueDepth,
        credits::NOOPS_MAX, //
    },
    rdma::buf::{
        BufAllocator,
        TxBuf, //
    }, //
};

/// Send buffers that are reserved for a shortage of memory: a PUT takes two.
const RESERVED: usize = 3;

/// Number of these that only answers get. A message of LNet may wait for a credit, and so for the peer; an answer does
/// not.
const FOR_ANSWERS: usize = 1;

/// Use of a reserve.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ReserveUse {
    Answer,
    Message,
}

/// Unused buffers.
pub(super) struct BufPool<C> {
    /// Send buffers, up to the capacity.
    bufs: KVec<TxBuf>,
    /// Send buffers that only NOOPs use.
    noop_bufs: KVec<TxBuf>,
    /// Receives to post in place of those that LNet has, up to the capacity.
    spares: KVec<KBox<Rx<C>>>,
}

impl<C> BufPool<C> {
    /// Pool before set-up, and after release.
    pub(super) const EMPTY: Self = Self {
        bufs: KVec::new(),
        noop_bufs: KVec::new(),
        spares: KVec::new(),
    };

    /// Returns the number of buffers that the pool of a connection of `depth` begins with.
    pub(super) fn size(depth: QueueDepth) -> usize {
        let sends = RESERVED.saturating_add(NOOPS_MAX.into());
        queue_sizes::spare_buffers(depth).saturating_add(sends)
    }

    /// Creates the pool of a connection of `depth`. May sleep.
    pub(super) fn new(depth: QueueDepth, supply: &mut BufAllocator) -> Result<Self> {
        let mut bufs = KVec::with_capacity(usize::from(depth.rx_buffers()), GFP_KERNEL)?;
        for _ in 0..RESERVED {
            bufs.push(supply.make()?, GFP_KERNEL)?;
        }
        let mut spares = KVec::with_capacity(queue_sizes::spare_buffers(depth), GFP_KERNEL)?;
        while spares.len() < spares.capacity() {
            spares.push(Rx::new(supply.make()?, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let mut noop_bufs = KVec::with_capacity(usize::from(NOOPS_MAX), GFP_KERNEL)?;
        for _ in 0..NOOPS_MAX {
            noop_bufs.push(supply.make()?, GFP_KERNEL)?;
        }
        Ok(Self {
            bufs,
            noop_bufs,
            spares,
        })
    }

    /// Takes a send buffer. Leaves the reserve.
    #[inline]
    pub(super) fn take(&mut self) -> Option<TxBuf> {
        if self.bufs.len() <= RESERVED {
            return None;
        }
        self.bufs.pop()
    }

    /// Takes a send buffer out of the reserve, which buffers of completed sends fill up again.
    #[cold]
    pub(super) fn take_reserved(&mut self, whose: ReserveUse) -> Option<TxBuf> {
        let left = match whose {
            ReserveUse::Answer => 0,
            ReserveUse::Message => FOR_ANSWERS,
        };
        if self.bufs.len() <= left {
            return None;
        }
        self.bufs.pop()
    }

    /// Puts back a buffer whose send has completed. Beyond the capacity it is freed.
    #[inline]
    pub(super) fn put(&mut self, buf: TxBuf) {
        if let Err(full) = self.bufs.push_within_capacity(buf) {
            cold_drop(full);
        }
    }

    pub(super) fn take_for_noop(&mut self) -> Option<TxBuf> {
        self.noop_bufs.pop()
    }

    pub(super) fn put_of_noop(&mut self, buf: TxBuf) {
        // Two are in use at most, and there is room for two.
        let _ = self.noop_bufs.push_within_capacity(buf);
    }

    #[inline]
    pub(super) fn take_spare(&mut self) -> Option<KBox<Rx<C>>> {
        self.spares.pop()
    }

    /// Puts back a receive. Beyond the capacity it is freed.
    #[inline]
    pub(super) fn put_spare(&mut self, rx: KBox<Rx<C>>) {
        if let Err(full) = self.spares.push_within_capacity(rx) {
            cold_drop(full);
        }
    }
}
