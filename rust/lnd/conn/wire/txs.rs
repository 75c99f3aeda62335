// SPDX-License-Identifier: GPL-2.0

//! The transmits of a connection: the state machine of each ([`crate::proto::tx`]) with its payload, and the
//! queues they wait in ([`crate::proto::queues`]).
//!
//! Context: any; a part of what the connection lock protects.
//!
//! # Invariants
//!
//! - `cells` and `transfers` have the same length, and a cell is in use iff its transfer is `Some`; but for
//!   the moment between [`Txs::alloc`] and [`Txs::enqueue`], which are under one lock.
//! - Nobody changes a cell but here, so that whatever a step asks for is done.

use kernel::prelude::*;

use super::bigger::Bigger;
use crate::{
    lnd::{
        conn::transfer::{
            Ended,
            Transfer, //
        },
        moment::Moment, //
    },
    lnet::Message,
    proto::{
        cause::Cause,
        credits::Credits,
        queues::{
            Cell,
            Lengths,
            Line,
            Next,
            Queues,
            TxId, //
        },
        times::Stamps,
        tx::{
            Answer,
            Op,
            Place,
            Then,
            Tx,
            Wr, //
        },
        wire::Cookie, //
    },
    rdma::{
        buf::TxBuf,
        random, //
    }, //
};

/// The transmits of a connection.
pub(super) struct Txs {
    queues: Queues,
    cells: KVVec<Cell>,
    transfers: KVVec<Option<Transfer>>,
    /// Random; see [`TxId::cookie`].
    mask: u64,
}

/// A transmit that is over, for LNet.
pub(crate) struct Finished {
    ended: Ended,
    cause: Option<Cause>,
    /// The device was given some of it.
    posted: bool,
}

/// A transmit that is over.
pub(crate) enum Over {
    /// A message alone that went well, as most do.
    Well(Message),
    /// Another, which is in the place that was given for it.
    Other,
}

impl Finished {
    // Apart, because most were a message alone and went well.
    #[inline(never)]
    fn take(to: &mut Option<Self>, tx: &Tx, entry: &mut Option<Transfer>) {
        if let (None, Some(transfer)) = (&to, &mut *entry) {
            // Nothing is dropped that way, and the compiler knows.
            core::mem::forget(to.replace(Self {
                ended: transfer.end(),
                cause: tx.cause(),
                posted: tx.was_posted(),
            }));
        }
        Transfer::clear(entry);
    }

    /// Why it failed, and how many messages of LNet's that are; `None` if it did not.
    pub(crate) fn failed(&self) -> Option<(Cause, usize)> {
        Some((self.cause?, self.ended.messages()))
    }

    /// Gives everything back to LNet. Process context, no lock held: LNet may send from inside.
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        self.ended.finish(self.cause, self.posted)
    }
}

impl Txs {
    /// None; [`Txs::grow`] makes some.
    pub(super) fn new() -> Self {
        Self {
            queues: Queues::EMPTY,
            cells: KVVec::new(),
            transfers: KVVec::new(),
            mask: random::u64(),
        }
    }

    /// How many there are, used or not.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Moves into a bigger table, unless somebody else was faster. What is in `bigger` afterwards is to be
    /// freed without the lock.
    pub(super) fn grow(&mut self, bigger: &mut Bigger) {
        let Some(first) = bigger.take_over(&mut self.cells, &mut self.transfers) else {
            return;
        };
        self.queues.grow(&mut self.cells, first);
    }

    /// Takes a free one for `op`. `None`: there is none.
    #[inline]
    pub(super) fn alloc(&mut self, op: Op) -> Option<TxId> {
        self.queues.alloc(&mut self.cells, op)
    }

    /// Its name on the wire.
    #[inline]
    pub(super) fn cookie(&self, id: TxId) -> Cookie {
        Cookie(id.cookie(self.mask))
    }

    /// Queues one that was just taken: what makes its payload, its message of `nob` bytes in `buf`, the `slots` that
    /// posting it takes.
    ///
    /// # Errors
    ///
    /// What makes the payload, if there is no such place.
    #[inline(always)]
    pub(super) fn enqueue<W: FnOnce(Moment) -> Transfer>(
        &mut self,
        id: TxId,
        slots: u16,
        what: W,
        (buf, nob): (TxBuf, usize),
        now: Moment,
    ) -> Result<(), W> {
        let at = usize::from(id.index);
        let (Some(cell), Some(entry)) = (self.cells.get_mut(at), self.transfers.get_mut(at)) else {
            return Err(what);
        };
        entry.insert(what(now)).load(buf, nob);
        cell.slots = slots;
        let then = cell.tx.enqueue();
        // Its own sender does not violate anything.
        let _ = self.queues.follow(&mut self.cells, id.index, then);
        Ok(())
    }

    /// Gives one back that was taken, and not queued.
    pub(super) fn release(&mut self, id: TxId) {
        self.queues.release(&mut self.cells, id.index);
    }

    /// The one a cookie names, if the peer may name it.
    pub(super) fn find(&self, cookie: Cookie) -> Result<u16, Cause> {
        TxId::from_cookie(cookie.0, self.mask)
            .and_then(|id| Queues::find(&self.cells, id))
            .ok_or(Cause::Protocol)
    }

    /// The payload of the one at `index`.
    #[inline]
    pub(super) fn transfer(&mut self, index: u16) -> Option<&mut Transfer> {
        self.transfers.get_mut(usize::from(index))?.as_mut()
    }

    /// What the one at `index` does.
    pub(super) fn op(&self, index: u16) -> Option<Op> {
        Some(self.cells.get(usize::from(index))?.tx.op())
    }

    /// The one at `index` fails for `cause`, when it ends.
    pub(super) fn latch(&mut self, index: u16, cause: Cause) {
        if let Some(cell) = self.cells.get_mut(usize::from(index)) {
            cell.tx.latch(cause);
        }
    }

    /// The peer answered the one at `index`; if it is queued again, posting it takes `slots`.
    ///
    /// # Errors
    ///
    /// The peer had no right to.
    #[inline(always)]
    pub(super) fn answered(&mut self, index: u16, answer: Answer, slots: u16) -> Result<(), Cause> {
        let cell = self
            .cells
            .get_mut(usize::from(index))
            .ok_or(Cause::Protocol)?;
        let then = cell.tx.answered(answer);
        if then == Then::Requeue {
            cell.slots = slots;
        }
        match self.queues.follow(&mut self.cells, index, then) {
            true => Err(Cause::Protocol),
            false => Ok(()),
        }
    }

    /// The peer's answer to the one at `index` had arrived when the connection ended. False: nothing of that kind
    /// was waited for.
    pub(super) fn answered_late(
        &mut self,
        index: u16,
        make: impl FnOnce(&mut Transfer) -> Answer,
    ) -> bool {
        let at = usize::from(index);
        let (Some(cell), Some(Some(transfer))) =
            (self.cells.get_mut(at), self.transfers.get_mut(at))
        else {
            return false;
        };
        let awaited = cell.tx.awaits_late();
        if awaited {
            cell.tx.answered_late(make(transfer));
        }
        awaited
    }

    /// Whether [`Txs::next`] would find nothing, whatever room there is.
    #[inline]
    pub(super) fn is_quiet(&self, credits: &Credits, keepalive: bool) -> bool {
        self.queues.is_quiet(credits, keepalive)
    }

    /// Whether a PUT_REQ or GET_REQ that is queued now has to wait for a reserved buffer.
    pub(super) fn lacks_reserve(&self, credits: &Credits) -> bool {
        self.queues.lacks_reserve(credits)
    }

    /// Whether [`Txs::next`] would find no credit, and nothing else to do.
    #[inline]
    pub(super) fn is_starved(&self, credits: &Credits, keepalive: bool, patient: bool) -> bool {
        self.queues.is_starved(credits, keepalive, patient)
    }

    /// Takes the next thing to post, and pays for it; see [`Queues::next`].
    #[inline]
    pub(super) fn next(
        &mut self,
        credits: &mut Credits,
        sq_free: u16,
        keepalive: bool,
        patient: bool,
    ) -> Next {
        self.queues
            .next(&mut self.cells, credits, sq_free, keepalive, patient)
    }

    /// `wrs` WRITEs of the one at `index` were pushed, and it stays queued; see [`Queues::parted`].
    pub(super) fn parted(&mut self, index: u16, wrs: u16, all: bool) {
        Queues::parted(&mut self.cells, index, wrs, all);
    }

    /// The send queue has `slots` for other things than NOOPs. Before the first is queued.
    pub(super) fn open(&mut self, slots: u16) {
        self.queues.open(slots);
    }

    /// A work request of the one at `index` was pushed.
    #[inline]
    pub(super) fn pushed(&mut self, index: u16) {
        if let Some(cell) = self.cells.get_mut(usize::from(index)) {
            cell.tx.pushed();
        }
    }

    /// A work request of the one at `index` has ended. Its clock, if it was the last of those that are
    /// posted, and went well.
    #[inline]
    pub(super) fn completed(
        &mut self,
        index: u16,
        wr: Wr,
        result: Result<(), Cause>,
    ) -> Option<&mut Stamps<Moment>> {
        let cell = self.cells.get_mut(usize::from(index))?;
        let then = cell.tx.completed(wr, result);
        let last = result.is_ok() && !matches!(cell.tx.place(), Place::Posted { .. });
        // A completion is never the peer's violation.
        let _ = self.queues.follow(&mut self.cells, index, then);
        match last {
            true => Some(self.transfer(index)?.clock()),
            false => None,
        }
    }

    /// Whether one is over, and LNet was not told.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        self.queues.has_done()
    }

    /// Takes the oldest that is over, if one is, perhaps into `finished`; its place is free again.
    #[inline]
    pub(super) fn take_done(&mut self, finished: &mut Option<Finished>) -> Option<Over> {
        let index = self.queues.take_done(&mut self.cells)?;
        let at = usize::from(index);
        let (cell, entry) = (self.cells.get(at)?, self.transfers.get_mut(at)?);
        let msg = match (cell.tx.cause(), &mut *entry) {
            (None, Some(transfer)) => transfer.take_message(),
            _ => None,
        };
        let over = match msg {
            Some(msg) => {
                Transfer::clear(entry);
                Over::Well(msg)
            }
            None => {
                Finished::take(finished, &cell.tx, entry);
                Over::Other
            }
        };
        self.queues.release(&mut self.cells, index);
        Some(over)
    }

    /// Whether any is not over.
    pub(super) fn has_pending(&self) -> bool {
        Queues::has_pending(&self.cells)
    }

    /// Ends every one because the connection has, for `cause`; if that is a deadline, each for its own.
    pub(super) fn cancel(&mut self, cause: Cause) {
        let by_place = matches!(
            cause,
            Cause::DeadlineQueued | Cause::DeadlineSending | Cause::DeadlineAnswer
        );
        self.queues.cancel_all(&mut self.cells, cause, by_place);
    }

    /// The regions are gone: lets go of what only a live key held.
    pub(super) fn keys_dead(&mut self) {
        self.queues.keys_dead(&mut self.cells);
    }

    /// Those that are not over, with their index.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u16, &Tx, &Transfer)> {
        let both = self.cells.iter().zip(self.transfers.iter());
        (0..=u16::MAX)
            .zip(both)
            .filter_map(|(index, (cell, transfer))| {
                let over = matches!(cell.tx.place(), Place::Free | Place::Done);
                let transfer = transfer.as_ref()?;
                (!over).then_some((index, &cell.tx, transfer))
            })
    }

    /// Those that are over or not.
    pub(super) fn transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().flatten()
    }

    /// The one at `index` with its payload and its name on the wire.
    pub(super) fn look(&self, index: u16) -> Option<(&Tx, &Transfer, Cookie)> {
        let at = usize::from(index);
        let transfer = self.transfers.get(at)?.as_ref()?;
        let name = Queues::name(&self.cells, index)?;
        Some((&self.cells.get(at)?.tx, transfer, self.cookie(name)))
    }

    /// Those in a queue, the first to go first.
    pub(super) fn waiting(&self, line: Line) -> impl Iterator<Item = u16> + '_ {
        self.queues.waiting(&self.cells, line)
    }

    /// How long the queues are.
    pub(super) fn lengths(&self) -> Lengths {
        self.queues.lengths()
    }
}
