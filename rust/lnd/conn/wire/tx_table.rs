// SPDX-License-Identifier: GPL-2.0

//! Transmits of a connection: the state machine of each ([`crate::proto::tx_state`]) with its payload, and the
//! queues that they wait in ([`crate::proto::tx_queues`]).
//!
//! Context: any; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - The cell of a slot is in use iff its transfer is `Some`, except between [`TxTable::alloc`] and
//!   [`VacantTxSlot::fill`] or [`VacantTxSlot::post`], which run under one lock. A filled slot is put into its queue by
//!   [`TxTable::queue`], under the same lock; a posted one is in no queue.
//! - Only this file and [`super::vacant_tx_slot`] change a cell, so that every request of a step is executed.

use kernel::prelude::*;

use super::{
    finished_tx::{
        FinishedTx,
        TakenTx, //
    },
    tx_slot::TxSlot,
    tx_table_grow::TxTableGrow,
    vacant_tx_slot::VacantTxSlot, //
};
use crate::{
    lnd::{
        conn::transfer::Transfer,
        timestamp::Timestamp, //
    },
    policy::latency::Stamps,
    proto::{
        cause::Cause,
        credits::Credits,
        tx_queues::{
            Lengths,
            NextTx,
            QueueKind,
            TxId,
            TxQueues, //
        },
        tx_state::{
            Answer,
            Op,
            Tx,
            TxAction,
            TxState,
            Wr, //
        },
        wire::Cookie, //
    },
    rdma::random, //
};

/// Transmits of a connection.
pub(super) struct TxTable {
    queues: TxQueues,
    slots: KVVec<TxSlot>,
    /// Random; see [`TxId::cookie`].
    mask: u64,
}

impl TxTable {
    /// Creates an empty table; [`TxTable::grow`] adds places.
    pub(super) fn new() -> Self {
        Self {
            queues: TxQueues::EMPTY,
            slots: KVVec::new(),
            mask: random::u64(),
        }
    }

    /// Returns the number of places, used or not.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Moves into a bigger table, unless another thread was faster. The content of `bigger` afterwards must be freed
    /// without the lock.
    pub(super) fn grow(&mut self, bigger: &mut TxTableGrow) {
        let Some(first) = bigger.take_over(&mut self.slots) else {
            return;
        };
        self.queues.grow(&mut self.slots, first);
    }

    /// Returns whether there is a free place.
    #[inline]
    pub(super) fn has_free(&self) -> bool {
        self.queues.has_free()
    }

    /// Takes a free place for `op`, to be filled or released at once. `None`: there is none.
    #[inline(always)]
    pub(super) fn alloc(&mut self, op: Op) -> Option<VacantTxSlot<'_>> {
        let id = self.queues.alloc(&mut self.slots, op)?;
        Some(VacantTxSlot::new(
            (id.index, Cookie(id.cookie(self.mask))),
            self.queues.is_empty(),
            self.slots.get_mut(usize::from(id.index))?,
        ))
    }

    /// Queues a transmit that was just stored.
    #[inline]
    pub(super) fn queue(&mut self, index: u16) {
        self.queues.push(&mut self.slots, index);
    }

    /// Releases a place that was taken, and not filled.
    pub(super) fn release(&mut self, index: u16) {
        self.queues.release(&mut self.slots, index);
    }

    /// Returns the transmit that a cookie names, if the peer may name it.
    pub(super) fn find(&self, cookie: Cookie) -> Result<u16, Cause> {
        TxId::from_cookie(cookie.0, self.mask)
            .and_then(|id| TxQueues::find(&self.slots, id))
            .ok_or(Cause::Protocol)
    }

    /// Returns the transmit that a cookie names, if it awaits an answer to `op`.
    #[inline]
    pub(super) fn awaiting(&self, op: Op, cookie: Cookie) -> Result<u16, Cause> {
        let index = self.find(cookie)?;
        match self.slots.get(usize::from(index)) {
            Some(slot) if slot.cell.tx.awaits(op) => Ok(index),
            _ => Err(Cause::Protocol),
        }
    }

    /// Returns the payload of the transmit at `index`.
    #[inline]
    pub(super) fn transfer(&mut self, index: u16) -> Option<&mut Transfer> {
        self.slots.get_mut(usize::from(index))?.transfer.as_mut()
    }

    /// Returns the operation of the transmit at `index`.
    pub(super) fn op(&self, index: u16) -> Option<Op> {
        Some(self.slots.get(usize::from(index))?.cell.tx.op())
    }

    /// Sets the cause with which the transmit at `index` fails, when it ends.
    pub(super) fn latch(&mut self, index: u16, cause: Cause) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.cell.tx.latch(cause);
        }
    }

    /// Handles the peer's answer to the transmit at `index`; if that is queued again, posting it takes `slots`.
    ///
    /// # Errors
    ///
    /// The peer had no right to answer.
    #[inline(always)]
    pub(super) fn answered(&mut self, index: u16, answer: Answer, slots: u16) -> Result<(), Cause> {
        let slot = self.slots.get_mut(usize::from(index));
        let cell = &mut slot.ok_or(Cause::Protocol)?.cell;
        let then = cell.tx.answered(answer);
        if then == TxAction::Requeue {
            cell.slots = slots;
        }
        match self.queues.follow(&mut self.slots, index, then) {
            true => Err(Cause::Protocol),
            false => Ok(()),
        }
    }

    /// Handles the peer's answer to the transmit at `index` that had arrived when the connection was closed. Returns
    /// false if the transmit awaited no such answer.
    pub(super) fn answered_late(
        &mut self,
        index: u16,
        make: impl FnOnce(&mut Transfer) -> Answer,
    ) -> bool {
        let Some(TxSlot {
            cell,
            transfer: Some(transfer),
        }) = self.slots.get_mut(usize::from(index))
        else {
            return false;
        };
        let awaited = cell.tx.awaits_late();
        if awaited {
            cell.tx.answered_late(make(transfer));
        }
        awaited
    }

    /// Returns whether no transmit is queued, and no NOOP is due, by one quick check.
    #[inline(always)]
    pub(super) fn is_idle(&self, credits: &Credits) -> bool {
        self.queues.is_idle(credits)
    }

    /// Returns whether [`TxTable::next`] would find nothing, whatever room there is.
    #[inline]
    pub(super) fn is_quiet(&self, credits: &Credits, keepalive: bool) -> bool {
        self.queues.is_quiet(credits, keepalive)
    }

    /// Returns whether a PUT_REQ or GET_REQ that is queued now has to wait for a reserved buffer.
    pub(super) fn lacks_reserve(&self, credits: &Credits) -> bool {
        self.queues.lacks_reserve(credits)
    }

    /// Returns whether [`TxTable::next`] would find no credit, and no other work.
    #[inline]
    pub(super) fn is_starved(&self, credits: &Credits, keepalive: bool, patient: bool) -> bool {
        self.queues.is_starved(credits, keepalive, patient)
    }

    /// Takes the next transmit or NOOP to post, and pays for it; see [`TxQueues::next`].
    #[inline]
    pub(super) fn next(
        &mut self,
        credits: &mut Credits,
        sq_free: u16,
        keepalive: bool,
        patient: bool,
    ) -> NextTx {
        self.queues
            .next(&mut self.slots, credits, sq_free, keepalive, patient)
    }

    /// Notes that `wrs` WRITEs of the transmit at `index` were pushed, and it stays queued; see
    /// [`TxQueues::chunk_posted`].
    pub(super) fn chunk_posted(&mut self, index: u16, wrs: u16, all: bool) {
        TxQueues::chunk_posted(&mut self.slots, index, wrs, all);
    }

    /// Sets the number of slots of the send queue for all messages except NOOPs. Before the first transmit is queued.
    pub(super) fn open(&mut self, slots: u16) {
        self.queues.open(slots);
    }

    /// Notes that `wrs` work requests of the transmit at `index` were pushed.
    #[inline]
    pub(super) fn pushed(&mut self, index: u16, wrs: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.cell.tx.pushed(wrs);
        }
    }

    /// Handles the success of a work request in front of another one of the transmit at `index`. Returns false if that
    /// was its only one: [`TxTable::completed`] handles that.
    #[inline(always)]
    #[must_use]
    pub(super) fn completed_in_front(&mut self, index: u16) -> bool {
        let slot = self.slots.get_mut(usize::from(index));
        slot.is_some_and(|slot| slot.cell.tx.completed_in_front())
    }

    /// Handles the completion of a work request of the transmit at `index`. Returns its times, if it was the last of
    /// the posted work requests, and succeeded.
    #[inline]
    pub(super) fn completed(
        &mut self,
        index: u16,
        wr: Wr,
        result: Result<(), Cause>,
    ) -> Option<&mut Stamps<Timestamp>> {
        let tx = &mut self.slots.get_mut(usize::from(index))?.cell.tx;
        let then = tx.completed(wr, result);
        let last = result.is_ok() && !matches!(tx.place(), TxState::Posted { .. });
        // A completion is never the peer's violation.
        let _ = self.queues.follow(&mut self.slots, index, then);
        match last {
            true => Some(self.transfer(index)?.clock()),
            false => None,
        }
    }

    /// Returns whether a transmit is finished, and LNet does not know yet.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        self.queues.has_done()
    }

    /// Takes the oldest finished transmit, if there is one, perhaps into `finished`; its place is free again.
    #[inline]
    pub(super) fn take_done(&mut self, finished: &mut FinishedTx) -> Option<TakenTx> {
        let index = self.queues.take_done(&mut self.slots)?;
        let TxSlot { cell, transfer } = self.slots.get_mut(usize::from(index))?;
        let msg = match (cell.tx.cause(), &mut *transfer) {
            (None, Some(transfer)) => transfer.take_message(),
            _ => None,
        };
        let over = match msg {
            Some(msg) => {
                Transfer::clear(transfer);
                TakenTx::Well(msg)
            }
            None => {
                finished.take(&cell.tx, transfer);
                TakenTx::Other
            }
        };
        self.queues.release(&mut self.slots, index);
        Some(over)
    }

    /// Returns whether any transmit is not finished.
    pub(super) fn has_pending(&self) -> bool {
        TxQueues::has_pending(&self.slots)
    }

    /// Ends every transmit because the connection was closed for `cause`; if that is a deadline, each with a cause of
    /// its own.
    pub(super) fn cancel(&mut self, cause: Cause) {
        let by_place = matches!(
            cause,
            Cause::DeadlineQueued | Cause::DeadlineSending | Cause::DeadlineAnswer
        );
        self.queues.cancel_all(&mut self.slots, cause, by_place);
    }

    /// Releases, when the regions are gone, the objects that only a live key held.
    pub(super) fn keys_dead(&mut self) {
        self.queues.keys_dead(&mut self.slots);
    }

    /// Returns the unfinished transmits, with their index.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u16, &Tx, &Transfer)> {
        (0..=u16::MAX)
            .zip(self.slots.iter())
            .filter_map(|(index, slot)| {
                let tx = &slot.cell.tx;
                let over = matches!(tx.place(), TxState::Free | TxState::Done);
                let transfer = slot.transfer.as_ref()?;
                (!over).then_some((index, tx, transfer))
            })
    }

    /// Returns the payloads of all transmits, finished or not.
    pub(super) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.slots.iter().filter_map(|slot| slot.transfer.as_ref())
    }

    /// Returns the transmit at `index` with its payload and its name on the wire.
    pub(super) fn look(&self, index: u16) -> Option<(&Tx, &Transfer, Cookie)> {
        let slot = self.slots.get(usize::from(index))?;
        let transfer = slot.transfer.as_ref()?;
        let name = TxQueues::name(&self.slots, index)?;
        Some((&slot.cell.tx, transfer, Cookie(name.cookie(self.mask))))
    }

    /// Returns the transmits of a queue, the first in line first.
    pub(super) fn waiting(&self, line: QueueKind) -> impl Iterator<Item = u16> + '_ {
        self.queues.waiting(&self.slots, line)
    }

    /// Returns the lengths of the queues.
    pub(super) fn lengths(&self) -> Lengths {
        self.queues.lengths()
    }
}
