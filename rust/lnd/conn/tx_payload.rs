// SPDX-License-Identifier: GPL-2.0

//! Payload of a transmit: the half of a tx that the state machine ([`crate::proto::tx_state`]) does not see.
//!
//! A [`TxPayload`] owns the LNet message that it will finalize with the mapping of its pages, and the sink of a
//! transfer to this node, and knows the target of this node's WRITEs. The end releases them, after the state machine
//! has reported that no work request and no remote key uses the memory any more. [`FinishedTx`] is a finished transmit
//! on its way from the table to LNet.
//!
//! Context: any, except where stated. Owned by its sender until it is queued, afterwards by the table of transmits
//! under the connection lock, until the worker that calls LNet takes it.

use kernel::{
    alloc::Flags,
    prelude::*, //
};

use crate::{
    lnd::{
        ni::O2ib,
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        TxMsgs, //
    },
    policy::latency::Stamps,
    proto::{
        cause::{
            Cause,
            Health,
            Outcome, //
        },
        tx_state::Tx,
        tx_table::TxSlot,
        wire::{
            Descriptor,
            Fragment, //
        }, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::TxBuf,
        mr::{
            Mapped,
            Mr,
            Valid, //
        },
        owned_mapping::Mapping,
        sg::{
            SgCursor,
            SgMap,
            SgRef, //
        }, //
    }, //
};

/// Slots of the transmits of a connection.
pub(super) type TxSlots = KVVec<TxSlot<TxPayload>>;

/// Minimum of transmits that are created when the table is full; half of the current number if that is more, because
/// the table moves each time.
pub(super) const GROW_BY: usize = 16;

/// Allocates `n` free slots.
///
/// # Errors
///
/// `ENOMEM`.
pub(super) fn new_slots(n: usize, flags: Flags) -> Result<TxSlots> {
    let mut slots = TxSlots::with_capacity(n, flags)?;
    for _ in 0..n {
        slots.push(TxSlot::FREE, flags)?;
    }
    Ok(slots)
}

/// LNet's messages of a transfer, with the mapping of their pages.
pub(super) type Owner = Mapping<TxMsgs<O2ib>>;

/// Key of a sink, by the next operation that is allowed.
///
/// # Invariants
///
/// A key is registered at most once, before the message that carries it to the peer, and invalidated at most once. If
/// it is not invalidated, the destruction of the queue pair's regions ends it.
pub(super) enum SinkKey {
    /// Its registration is not posted: no node can use it.
    Mapped(Mr<Mapped>),
    /// Its registration was pushed, in front of the message that tells the peer: the peer may use it.
    Valid(Mr<Valid>),
    /// Its invalidation is posted, and the key is dead when that completes; or there is no key.
    Dead,
}

impl SinkKey {
    /// Takes the key for its next operation.
    pub(super) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::Dead)
    }
}

/// Memory that a peer writes to.
pub(super) struct RdmaSink {
    /// Key of the memory region that covers it.
    pub(super) key: SinkKey,
    /// Set if LNet's pages have gaps, which one key cannot cover: the data is copied afterwards.
    pub(super) bounce: Option<KBox<BounceBuf>>,
}

/// Payload of one transmit.
///
/// # Invariants
///
/// - `nob` bytes of `buf` are a message, from [`TxPayload::load`] until [`TxPayload::unload`].
/// - `moved` is no more than `total`, and `total` no more than the memory has.
pub(super) struct TxPayload {
    /// Messages that LNet gets back. `None`: a PUT_NAK, or an answer that carries only an error.
    pub(super) owner: Option<Owner>,
    /// Memory that the peer's WRITEs go to. Without a sink, this side's WRITEs read the pages of `owner`.
    pub(super) sink: Option<RdmaSink>,
    /// Target of WRITEs, once known.
    pub(super) remote: Option<RdmaTarget>,
    /// Buffer of the next message.
    pub(super) buf: Option<TxBuf>,
    /// Buffer for the PUT_DONE of a PUT, which may be due before the PUT_REQ has left its buffer.
    pub(super) spare: Option<TxBuf>,
    /// Bytes of the message in `buf`.
    pub(super) nob: usize,
    /// Bytes to move by RDMA; for a sink, the bytes that it can take.
    pub(super) total: u32,
    /// Bytes that arrived in a sink; for a source, the bytes whose WRITEs were built.
    pub(super) moved: u32,
    /// Time at which it was queued, for its deadline, and times for statistics.
    pub(super) stamps: Stamps<Timestamp>,
}

impl TxPayload {
    /// Creates a transfer of a message alone, which begins now.
    #[inline(always)]
    pub(super) fn new(owner: Option<Owner>, now: Timestamp) -> Self {
        Self {
            owner,
            sink: None,
            remote: None,
            buf: None,
            spare: None,
            nob: 0,
            total: 0,
            moved: 0,
            stamps: Stamps::new(now),
        }
    }

    /// Returns whether its message has no work request in front of it.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.remote.is_none() && self.sink.is_none()
    }

    /// Stores the next message to send: `nob` bytes of `buf`.
    #[inline]
    pub(super) fn load(&mut self, buf: TxBuf, nob: usize) {
        self.nob = nob;
        self.buf = Some(buf);
    }

    /// Takes the message to send, and its length.
    #[inline]
    pub(super) fn unload(&mut self) -> Option<(TxBuf, usize)> {
        Some((self.buf.take()?, self.nob))
    }

    /// Returns its times, the length of its message, and the number of bytes that may move by RDMA.
    #[inline]
    pub(super) fn measured(&mut self) -> (&mut Stamps<Timestamp>, usize, u32) {
        (&mut self.stamps, self.nob, self.total)
    }

    /// Returns the milliseconds since its begin.
    pub(super) fn age_ms(&self) -> i64 {
        self.stamps.queued.elapsed_ms()
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
        max_sge: usize,
    ) -> Result<Result<(u16, i32)>, Cause> {
        if rd.total() > self.total {
            return Err(Cause::Protocol);
        }
        self.total = rd.total();
        Ok(RdmaTarget::new(rd).and_then(|remote| {
            let slots = remote.slots(self.source()?, self.total, max_sge)?;
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
        match (&self.sink, &self.owner) {
            (None, Some(owner)) => owner.map().ok_or(EPROTO),
            _ => Err(EPROTO),
        }
    }

    /// Returns the source of the next WRITEs, and the number of bytes that are left. `None`: an error, or zero bytes;
    /// only the message is sent.
    pub(super) fn writes(&self) -> Option<(SgCursor, u32)> {
        self.remote.as_ref()?;
        let mut cursor = self.source().ok()?.cursor();
        if self.moved > 0 {
            cursor.skip(self.moved);
        }
        Some((cursor, self.total.saturating_sub(self.moved)))
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

    /// Notes that WRITEs were built for the source, except for `left` bytes.
    pub(super) fn wrote(&mut self, left: u32) {
        self.moved = self.total.saturating_sub(left);
    }

    /// Takes the message, if it is all that LNet gets back, and if its pages are not mapped.
    #[inline(always)]
    fn take_plain_message(&mut self) -> Option<Message> {
        if self.sink.is_some() {
            return None;
        }
        match self.owner.take()?.into_plain_message() {
            Ok(msg) => Some(msg),
            Err(owner) => {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(self.owner.replace(owner));
                None
            }
        }
    }

    /// Takes the message, if it is all that LNet gets back, and unmaps its pages. Process context, no lock held.
    pub(super) fn unmap_message(&mut self) -> Option<Message> {
        match &self.owner {
            Some(owner) if self.sink.is_none() && !owner.has_reply() => {
                self.owner.take()?.into_message()
            }
            _ => None,
        }
    }

    /// Takes the messages of a transfer that succeeded, so that no key leads to its memory, if there is a message and
    /// no data has to be copied.
    #[inline(always)]
    fn take_well(&mut self) -> Option<Completed> {
        if matches!(&self.sink, Some(sink) if sink.bounce.is_some()) {
            return None;
        }
        let owner = self.owner.take()?;
        self.sink = None;
        Some(Completed(owner, self.moved))
    }

    /// Drops a transfer whose messages were taken: most have no other resource, and need no check of each field.
    #[inline]
    fn clear(entry: &mut Option<Self>) {
        match entry {
            Some(Self {
                owner: None,
                sink: None,
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

    /// Unmaps and frees all that the device knows of a finished transfer. No key leads to its memory, and no work
    /// request uses it. Any context except hard interrupts.
    pub(super) fn leave_device(&mut self) {
        (self.buf, self.spare) = (None, None);
        if let Some(bounce) = self.sink.as_mut().and_then(|sink| sink.bounce.as_mut()) {
            // An error was reported, and changes no data.
            let _ = bounce.unmap();
        }
        self.owner = self.owner.take().and_then(Owner::unmap).map(Owner::none);
    }

    /// Returns the number of its LNet messages; a GET and its REPLY are one.
    pub(super) fn messages(&self) -> usize {
        usize::from(self.owner.is_some())
    }

    /// Finalizes all its messages. Process context, no lock held: LNet may send from inside.
    // Inlined, so that the compiler knows at the call that nothing is left to be dropped.
    #[inline(always)]
    pub(super) fn finish(&mut self, cause: Option<Cause>, posted: bool) {
        let mut outcome = match cause {
            None => Outcome {
                status: 0,
                health: Health::Ok,
            },
            Some(cause) => cause.outcome(posted),
        };
        let copied = match &mut self.sink {
            Some(RdmaSink {
                bounce: Some(bounce),
                ..
            }) if cause.is_none() => bounce.copy_out(self.moved),
            _ => Ok(()),
        };
        self.sink = None;
        if let Err(e) = copied {
            outcome = Cause::Local(e.to_errno()).outcome(posted);
        }
        if let Some(owner) = self.owner.take() {
            owner.finalize(outcome.status, outcome.health, self.moved);
        }
    }
}

/// Owner of a transfer that succeeded, and the number of bytes that arrived for a GET.
pub(super) struct Completed(Owner, u32);

impl Completed {
    /// Finalizes it. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(super) fn finish(self) {
        self.0.finalize(0, Health::Ok, self.1);
    }
}

/// Place for a finished transmit, for LNet.
#[derive(Default)]
pub(super) struct FinishedTx {
    /// It succeeded, as most do.
    pub(super) well: Option<Completed>,
    /// It failed, or needs more work than to be finalized.
    pub(super) ended: Option<(Tx, TxPayload)>,
}

/// Finished transmit as the table returns it.
pub(super) enum TakenTx {
    /// Message alone that succeeded.
    Well(Message),
    /// Another transmit, which is in the place that was given for it.
    Other,
}

impl FinishedTx {
    /// Takes a transmit out of its entry of the table, perhaps into this place, which is empty.
    #[inline(always)]
    pub(super) fn take_tx(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) -> TakenTx {
        let msg = match (tx.cause(), &mut *entry) {
            (None, Some(transfer)) => transfer.take_plain_message(),
            _ => None,
        };
        match msg {
            Some(msg) => {
                TxPayload::clear(entry);
                TakenTx::Well(msg)
            }
            None => {
                self.take(tx, entry);
                TakenTx::Other
            }
        }
    }

    // Separate function, for the sake of messages alone.
    #[inline(never)]
    fn take(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) {
        if let (None, None, Some(transfer)) = (&self.well, tx.cause(), &mut *entry) {
            if let Some(well) = transfer.take_well() {
                // Nothing is dropped that way, and the compiler knows.
                core::mem::forget(self.well.replace(well));
                return TxPayload::clear(entry);
            }
        }
        self.end(tx, entry);
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self, tx: &Tx, entry: &mut Option<TxPayload>) {
        if let Some(mut ended) = entry.take() {
            // Only what LNet gets back may outlive the table.
            (ended.buf, ended.spare) = (None, None);
            self.ended = Some((*tx, ended));
        }
    }
}

/// Sink of the peer, without the bytes that were written ([`RdmaTarget::advance`]). Its descriptor is copied out of a
/// message, whose buffer is reused before the WRITEs complete.
pub(super) struct RdmaTarget {
    pub(super) key: u32,
    frags: Frags,
}

enum Frags {
    One([Fragment; 1]),
    /// Pieces, and the index of the first that is not written.
    Many(KVec<Fragment>, usize),
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
                Frags::Many(all, 0)
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

    #[inline]
    fn pieces(&self) -> &[Fragment] {
        match &self.frags {
            Frags::One(one) => one,
            Frags::Many(all, at) => all.get(*at..).unwrap_or(&[]),
        }
    }

    /// Returns the address of the first `nob` bytes, and the key, if the bytes fit into one piece.
    #[inline]
    pub(super) fn only(&self, nob: u32) -> Option<(u64, u32)> {
        match &self.frags {
            Frags::One([only]) if only.nob >= nob => Some((only.addr, self.key)),
            _ => None,
        }
    }

    /// Returns the first piece that is not written, if there is one.
    pub(super) fn first(&self) -> Option<Fragment> {
        self.pieces().first().copied().filter(|f| f.nob > 0)
    }

    /// Notes that the first `nob` bytes of the first piece are written.
    pub(super) fn advance(&mut self, nob: u32) {
        let (first, at) = match &mut self.frags {
            Frags::One([only]) => (only, None),
            Frags::Many(all, at) => match all.get_mut(*at) {
                Some(first) => (first, Some(at)),
                None => return,
            },
        };
        first.nob = first.nob.saturating_sub(nob);
        first.addr = first.addr.wrapping_add(nob.into());
        if let (0, Some(at)) = (first.nob, at) {
            *at = at.saturating_add(1);
        }
    }

    /// Returns the largest number of work requests that moving `total` bytes of `map` to the sink can take, with
    /// `max_sge` gather elements each at most, and with the message behind them.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the sink is too small.
    pub(super) fn slots(&self, map: &SgMap, total: u32, max_sge: usize) -> Result<u16> {
        let pieces = self.pieces();
        let sum = |room: u64, f: &Fragment| room.saturating_add(u64::from(f.nob));
        if pieces.iter().fold(0, sum) < u64::from(total.min(map.nob())) && total > 0 {
            return Err(EPROTO);
        }
        // A WRITE ends with a piece of the sink, or when it has its maximum of gather elements; and each end of a piece
        // may split a range of the source in two.
        let ranges = usize::try_from(map.nr_mapped())?.saturating_add(pieces.len());
        let full = ranges.checked_div(max_sge).unwrap_or(ranges);
        let slots = pieces.len().saturating_add(full).saturating_add(1);
        Ok(u16::try_from(slots)?)
    }
}
