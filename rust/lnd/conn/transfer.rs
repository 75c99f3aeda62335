// SPDX-License-Identifier: GPL-2.0

//! Payload of a transmit: the half of a tx that the state machine ([`crate::proto::tx_state`]) does not see.
//!
//! A [`Transfer`] owns the LNet message that it will finalize with the mapping of its pages, and the memory region of a
//! sink. [`super::transfer_end`] releases them at the end.
//!
//! Context: any. Owned by its sender until it is queued, afterwards by the table of transmits under the connection
//! lock.

use kernel::prelude::*;

use super::{
    rdma_sink::RdmaSink,
    rdma_target::{
        Limits,
        RdmaTarget,
        TargetPos, //
    },
    transfer_end::{
        Completed,
        Owner,
        TransferEnd,
        TransferMemory, //
    }, //
};
use crate::{
    lnd::timestamp::Timestamp,
    lnet::Message,
    policy::latency::Stamps,
    proto::{
        cause::Cause,
        wire::{
            Descriptor,
            Fragment, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        sg::{
            SgCursor,
            SgRef, //
        }, //
    }, //
};

/// Payload of one transmit.
///
/// # Invariants
///
/// - `nob` bytes of `buf` are a message, from [`Transfer::load`] until [`Transfer::unload`].
/// - `moved` is no more than `total`, and `total` no more than the memory has.
pub(super) struct Transfer {
    owner: Owner,
    memory: TransferMemory,
    /// Target of WRITEs, once known.
    remote: Option<RdmaTarget>,
    /// Buffer of the next message.
    buf: Option<TxBuf>,
    /// Buffer for the PUT_DONE of a PUT, which may be due before the PUT_REQ has left its buffer.
    spare: Option<TxBuf>,
    /// Bytes of the message in `buf`.
    nob: usize,
    /// Bytes to move by RDMA; for a sink, the bytes that it can take.
    total: u32,
    /// Bytes that arrived in a sink; for a source, the bytes whose WRITEs were built.
    moved: u32,
    /// Time at which it was queued, for its deadline.
    since: Timestamp,
    /// Time at which its stage began, for statistics.
    clock: Stamps<Timestamp>,
}

impl Transfer {
    /// Creates a transfer of a message alone, which begins now.
    #[inline]
    pub(super) fn message(owner: Owner, now: Timestamp) -> Self {
        Self {
            owner,
            memory: TransferMemory::None,
            remote: None,
            buf: None,
            spare: None,
            nob: 0,
            total: 0,
            moved: 0,
            since: now,
            clock: Stamps::queued(now),
        }
    }

    /// Makes it a transfer of `total` bytes of its message's pages, which are mapped, by WRITEs to a sink that is not
    /// known yet. `spare` is for the message behind them.
    #[inline]
    pub(super) fn offer(self, total: u32, spare: TxBuf) -> Self {
        Self {
            total,
            memory: TransferMemory::Source,
            spare: Some(spare),
            ..self
        }
    }

    /// Makes it a transfer of `total` bytes of its message's pages, which are mapped, by WRITEs to `remote`.
    #[inline]
    pub(super) fn write_to(self, remote: RdmaTarget, total: u32) -> Self {
        Self {
            total,
            memory: TransferMemory::Source,
            remote: Some(remote),
            ..self
        }
    }

    /// Makes it a transfer into `sink`, which has room for `nob` bytes, by WRITEs of the peer.
    #[inline]
    pub(super) fn read_into(self, sink: RdmaSink, nob: u32) -> Self {
        Self {
            total: nob,
            memory: TransferMemory::Sink(sink),
            ..self
        }
    }

    /// Returns whether its message has no work request in front of it.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.remote.is_none() && !matches!(self.memory, TransferMemory::Sink(_))
    }

    /// Sets the message to send: `nob` bytes of `buf`.
    #[inline]
    pub(super) fn loaded(self, buf: TxBuf, nob: usize) -> Self {
        Self {
            buf: Some(buf),
            nob,
            ..self
        }
    }

    /// Stores the next message to send: `nob` bytes of `buf`.
    pub(super) fn load(&mut self, buf: TxBuf, nob: usize) {
        self.nob = nob;
        self.buf = Some(buf);
    }

    /// Takes the message to send, and its length.
    #[inline]
    pub(super) fn unload(&mut self) -> Option<(TxBuf, usize)> {
        Some((self.buf.take()?, self.nob))
    }

    /// Takes the buffer for the message behind the WRITEs.
    pub(super) fn take_spare(&mut self) -> Option<TxBuf> {
        self.spare.take()
    }

    /// Restarts the time of the transfer: the time that the peer took does not count against the next step.
    pub(super) fn start_again(&mut self, now: Timestamp) {
        self.since = now;
    }

    /// Returns the times of its stages.
    #[inline]
    pub(super) fn clock(&mut self) -> &mut Stamps<Timestamp> {
        &mut self.clock
    }

    /// Returns these times, with the length of its message, and the number of bytes that may move by RDMA.
    #[inline]
    pub(super) fn measured(&mut self) -> (&mut Stamps<Timestamp>, usize, u32) {
        (&mut self.clock, self.nob, self.total)
    }

    /// Returns the milliseconds since its begin.
    pub(super) fn age_ms(&self) -> i64 {
        self.since.elapsed_ms()
    }

    /// Returns whether LNet waits for a message, and for a reply.
    pub(super) fn awaited(&self) -> (bool, bool) {
        match self.owner {
            Owner::Nobody => (false, false),
            Owner::Message(_) | Owner::MappedMessage(_) => (true, false),
            Owner::Get(_) | Owner::MappedGet(_) => (true, true),
        }
    }

    /// Sets the peer's sink for the data of this side's PUT, from its PUT_ACK. The size of the transfer is now that of
    /// the sink. Returns the number of work requests, with the message behind the WRITEs, and the result for that
    /// message.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with: the sink may want less than offered, never more. The inner error
    /// is the reason why the WRITEs cannot be built, which the peer must get.
    // Inlined into its only user.
    #[inline(always)]
    pub(super) fn set_target(
        &mut self,
        rd: &Descriptor<'_>,
        limits: Limits,
    ) -> Result<Result<(u16, i32)>, Cause> {
        if rd.total() > self.total {
            return Err(Cause::Protocol);
        }
        self.total = rd.total();
        Ok(RdmaTarget::new(rd).and_then(|remote| {
            let slots = remote.slots(self.source()?, self.total, limits)?;
            let status = i32::try_from(rd.total())?;
            self.remote = Some(remote);
            Ok((slots, status))
        }))
    }

    /// Checks the result of a completion message for a sink: an errno, or a byte count, which must be the whole size
    /// for a PUT (`all`) and may be less for a GET.
    pub(super) fn validate(&mut self, status: i32, all: bool) -> Result<(), Cause> {
        let Ok(n) = u32::try_from(status) else {
            return Err(Cause::Told(status));
        };
        if n > self.total || (all && n != self.total) {
            return Err(Cause::Protocol);
        }
        self.moved = n;
        Ok(())
    }

    fn source(&self) -> Result<&SgRef> {
        match (&self.memory, self.owner.map()) {
            (TransferMemory::Source, Some(map)) => Ok(map),
            _ => Err(EPROTO),
        }
    }

    /// Returns the source and target of the next WRITEs, and the number of bytes that are left. `None`: an error, or
    /// zero bytes; only the message is sent.
    pub(super) fn writes(&self) -> Option<(SgCursor, TargetPos, u32)> {
        match (self.source(), &self.remote) {
            (Ok(map), Some(remote)) => {
                let mut cursor = map.cursor();
                if self.moved > 0 {
                    cursor.skip(self.moved);
                }
                let left = self.total.saturating_sub(self.moved);
                Some((cursor, remote.set_target(self.moved), left))
            }
            _ => None,
        }
    }

    /// Returns the source of its WRITE, the address and key of the target, and the number of bytes: if a single WRITE
    /// of `max_sge` gather elements seems to be enough, as is most common.
    #[inline(always)]
    pub(super) fn single_write(&self, max_sge: usize) -> Option<(&SgRef, (u64, u32), u32)> {
        match (self.source(), &self.remote) {
            (Ok(map), Some(remote))
                if self.moved == 0
                    && self.total > 0
                    && usize::try_from(map.nr_mapped()).is_ok_and(|n| n <= max_sge) =>
            {
                Some((map, remote.only(self.total)?, self.total))
            }
            _ => None,
        }
    }

    /// Returns the rest of the piece of the peer's sink at `aim`.
    pub(super) fn piece(&self, aim: TargetPos) -> Option<Fragment> {
        self.remote.as_ref()?.rest(aim)
    }

    /// Notes that WRITEs were built for the source, except for `left` bytes.
    pub(super) fn wrote(&mut self, left: u32) {
        self.moved = self.total.saturating_sub(left);
    }

    /// Returns the sink that the peer's WRITEs go to.
    pub(super) fn sink(&mut self) -> Option<&mut RdmaSink> {
        match &mut self.memory {
            TransferMemory::Sink(sink) => Some(sink),
            TransferMemory::None | TransferMemory::Source => None,
        }
    }

    /// Takes the sink of a transfer that was never queued.
    pub(super) fn take_sink(&mut self) -> Option<RdmaSink> {
        match core::mem::replace(&mut self.memory, TransferMemory::None) {
            TransferMemory::Sink(sink) => Some(sink),
            other => {
                self.memory = other;
                None
            }
        }
    }

    /// Takes the message, if LNet gets nothing more back.
    #[inline]
    pub(super) fn take_message(&mut self) -> Option<Message> {
        if !matches!(self.memory, TransferMemory::None) {
            return None;
        }
        match core::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Message(msg) => Some(msg),
            other => {
                self.owner = other;
                None
            }
        }
    }

    /// Takes the message or GET of a transfer that succeeded, so that no key leads to its memory, if there is one and
    /// no data has to be copied.
    #[inline(always)]
    pub(super) fn take_well(&mut self) -> Option<Completed> {
        if matches!(self.owner, Owner::Nobody) || self.is_bounced() {
            return None;
        }
        self.memory = TransferMemory::None;
        let owner = core::mem::replace(&mut self.owner, Owner::Nobody);
        Some(Completed(owner, self.moved))
    }

    fn is_bounced(&self) -> bool {
        matches!(&self.memory, TransferMemory::Sink(sink) if sink.is_bounced())
    }

    /// Drops a transfer whose message was taken: most have no other resource, and need no check of each field.
    #[inline]
    pub(super) fn clear(entry: &mut Option<Self>) {
        match entry {
            Some(Self {
                owner: Owner::Nobody,
                memory: TransferMemory::None,
                remote,
                buf: None,
                spare: None,
                // The droppable fields of a transfer are named above.
                ..
            }) if remote.as_ref().is_none_or(RdmaTarget::is_plain) => {
                core::mem::forget(entry.take());
            }
            _ => *entry = None,
        }
    }

    /// Takes the objects that LNet gets back; the other fields are only for sending.
    pub(super) fn end(&mut self) -> TransferEnd {
        let owner = core::mem::replace(&mut self.owner, Owner::Nobody);
        let memory = core::mem::replace(&mut self.memory, TransferMemory::None);
        TransferEnd::new(owner, memory, self.moved)
    }
}
