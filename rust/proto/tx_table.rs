// SPDX-License-Identifier: GPL-2.0

//! Table of a connection's transmits: their names on the wire, their queues, and the order in which they are posted.
//!
//! [`super::tx_state`] has the states of one transmit. The table performs each action that a state requires.
//!
//! Context: any; the caller holds the connection's lock.
//!
//! # Invariants
//!
//! A slot is in use iff its transfer is `Some`, except between [`TxTable::alloc`] and [`TxSlot::fill`], which run under
//! one lock. A filled slot is put into its queue, or posted, under the same lock.

use core::ops::DerefMut;

use super::{
    broken,
    cause::Cause,
    credits::{
        Cost,
        Credits,
        NOOPS_MAX, //
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
};

/// No index: the end of a list.
const NONE: u16 = u16::MAX;

/// Slot for a transmit: its state, and the transfer that the caller keeps with it.
#[derive(Clone, Copy, Debug)]
pub struct TxSlot<T> {
    tx: Tx,
    /// Work requests that posting [`Tx::op`] takes.
    pub slots: u16,
    generation: u32,
    next: u16,
    /// `None` while the slot is free.
    transfer: Option<T>,
}

impl<T> TxSlot<T> {
    pub const FREE: Self = Self {
        tx: Tx::FREE,
        slots: 1,
        generation: 0,
        next: NONE,
        transfer: None,
    };

    #[inline(always)]
    pub fn tx(&self) -> &Tx {
        &self.tx
    }

    pub fn transfer(&self) -> Option<&T> {
        self.transfer.as_ref()
    }

    /// Stores the transfer of a new tx. [`TxTable::queue`] or [`TxTable::post`] follows.
    // The slot is at hand, so that the transfer is made in its place.
    #[inline(always)]
    pub fn fill(&mut self, transfer: T) -> &mut T {
        self.transfer.insert(transfer)
    }
}

/// First-in first-out list through the slots.
///
/// # Invariants
///
/// Both ends are [`NONE`] while it is empty, which is the index of no slot.
#[derive(Clone, Copy, Debug)]
struct TxFifo {
    head: u16,
    tail: u16,
}

impl TxFifo {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    fn push<T>(&mut self, slots: &mut [TxSlot<T>], index: u16) {
        match slots.get_mut(usize::from(index)) {
            Some(slot) => slot.next = NONE,
            None => return,
        }
        match slots.get_mut(usize::from(self.tail)) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.head == NONE
    }

    #[inline(always)]
    fn first<'a, T>(&self, slots: &'a mut [TxSlot<T>]) -> Option<&'a mut TxSlot<T>> {
        slots.get_mut(usize::from(self.head))
    }

    /// Removes the first slot, which is `first`, and returns its index.
    #[inline(always)]
    fn take<T>(&mut self, first: &TxSlot<T>) -> u16 {
        let index = self.head;
        self.head = first.next;
        if self.is_empty() {
            self.tail = NONE;
        }
        index
    }
}

/// Next work of the pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextTx {
    /// Post this tx, which is [`Tx::posting`] now, with this number of credits in the message.
    Post {
        index: u16,
        op: Op,
        /// Credits for `ibm_credits`; 0 if it is not a message.
        carried: u8,
    },
    /// Post this number of WRITEs of this tx, or all that it has. Its message waits, and it stays the first of its
    /// queue: [`TxTable::chunk_posted`].
    Part {
        index: u16,
        wrs: u16,
    },
    /// Post a NOOP with this number of credits.
    Noop {
        /// Credits for `ibm_credits`.
        carried: u8,
    },
    /// Nothing may go now: the first tx waits for send queue slots.
    NoSlots,
    /// Nothing may go now: the first tx waits for a credit.
    NoCredit,
    Empty,
}

/// Queue of transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// PUT_REQ and GET_REQ without a reserved buffer for the answer.
    Unreserved,
    /// Transmits that need no credit.
    FreeOfCredit,
    /// Transmits that need a credit.
    Main,
}

impl QueueKind {
    pub const ALL: [Self; 3] = [Self::FreeOfCredit, Self::Unreserved, Self::Main];
}

/// Send queue slots that only a NOOP may take, so that credits can return while transmits that need a credit wait for
/// slots.
pub const NOOP_SLOTS: u16 = NOOPS_MAX as u16;

/// Number of WRITEs that justify a doorbell of their own, of a chain that does not fit as a whole. A tx with fewer work
/// requests is posted in one piece. Only a chain of WRITEs has more.
pub const PART: u16 = 16;

/// Transmits of a connection, in slots that `S` stores, and their queues in the order of protocol section 5.4.
#[derive(Clone, Copy, Debug)]
pub struct TxTable<S> {
    slots: S,
    /// Random; see [`cookie`].
    mask: u64,
    /// The queues of each [`QueueKind`].
    unreserved: TxFifo,
    free_of_credit: TxFifo,
    main: TxFifo,
    /// Finished transmits, which the LNet half takes.
    done: TxFifo,
    free: TxFifo,
    /// Number of WRITEs that justify a doorbell of their own.
    part: u16,
    /// WRITEs were posted after the last tx of `main`: the next tx of `main` goes before more WRITEs.
    main_next: bool,
}

impl<T: 'static, S: DerefMut<Target = [TxSlot<T>]>> TxTable<S> {
    /// Creates a table with these free slots. `mask` is random: see [`cookie`].
    pub fn new(slots: S, mask: u64) -> Self {
        let mut this = Self {
            slots,
            mask,
            unreserved: TxFifo::EMPTY,
            free_of_credit: TxFifo::EMPTY,
            main: TxFifo::EMPTY,
            done: TxFifo::EMPTY,
            free: TxFifo::EMPTY,
            part: PART,
            main_next: false,
        };
        this.add_free(0);
        this
    }

    /// Sets the number of send queue slots for transmits other than NOOPs. In a short send queue the parts of a chain
    /// are shorter than [`PART`]; otherwise the chain would never be posted.
    pub fn open(&mut self, slots: u16) {
        self.part = PART.min(slots).max(1);
    }

    /// Moves all transmits into `bigger`, the slots of which are free, unless it has no more slots. Afterwards `bigger`
    /// has unused slots.
    pub fn grow(&mut self, bigger: &mut S) {
        let first = self.slots.len();
        if bigger.len() <= first {
            return;
        }
        for (old, new) in self.slots.iter_mut().zip(bigger.iter_mut()) {
            core::mem::swap(old, new);
        }
        core::mem::swap(&mut self.slots, bigger);
        self.add_free(first);
    }

    fn add_free(&mut self, first: usize) {
        for (index, _) in (0..NONE).zip(0..self.slots.len()).skip(first) {
            self.free.push(&mut self.slots, index);
        }
    }

    /// Returns the number of slots, used or not.
    pub fn nr_slots(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free slot for a tx of `op`, and returns its index, the name of the tx on the wire, and the slot, to be
    /// filled or released. Returns `None` if the table is full.
    #[inline(always)]
    pub fn alloc(&mut self, op: Op) -> Option<(u16, Cookie, &mut TxSlot<T>)> {
        let slot = self.free.first(&mut self.slots)?;
        let index = self.free.take(slot);
        slot.tx = Tx::new(op);
        Some((index, cookie(index, slot.generation, self.mask), slot))
    }

    /// Queues a new tx, which takes `slots` to post. Returns its transfer.
    #[inline(always)]
    pub fn queue(&mut self, index: u16, slots: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(index))?.slots = slots;
        self.push(index);
        self.transfer(index)
    }

    /// Notes that a new tx of `op` is being posted, as [`TxTable::try_pay`] allowed. Returns its transfer.
    #[inline(always)]
    pub fn post(&mut self, index: u16, op: Op) -> Option<&mut T> {
        let slot = self.slots.get_mut(usize::from(index))?;
        // Not read back: the compiler knows a new tx, and its operation.
        slot.tx = Tx::new(op);
        slot.tx.posting();
        slot.transfer.as_mut()
    }

    /// Gives the slot of a tx back that is finished, or was not stored. Its name is dead from here on.
    pub fn release(&mut self, index: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return;
        };
        if slot.tx.place() == TxState::Free {
            return;
        }
        slot.tx = Tx::FREE;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(&mut self.slots, index);
    }

    /// Returns the index of the tx that a name from the wire belongs to, unless that is stale or nonsense.
    pub fn find(&self, cookie: Cookie) -> Option<u16> {
        let plain = cookie.0 ^ self.mask;
        let generation = u32::try_from(plain >> 16).ok()?;
        let index = u16::try_from(plain & 0xffff).ok()?;
        let slot = self.get(index)?;
        (slot.generation == generation && slot.tx.place() != TxState::Free).then_some(index)
    }

    /// Returns the tx that a name belongs to, if it awaits an answer to `op`.
    #[inline]
    pub fn awaiting(&self, op: Op, cookie: Cookie) -> Result<u16, Cause> {
        let found = self.find(cookie);
        found
            .filter(|index| self.get(*index).is_some_and(|slot| slot.tx.awaits(op)))
            .ok_or(Cause::Protocol)
    }

    #[inline(always)]
    pub fn get(&self, index: u16) -> Option<&TxSlot<T>> {
        self.slots.get(usize::from(index))
    }

    #[inline(always)]
    pub fn transfer(&mut self, index: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(index))?.transfer.as_mut()
    }

    /// Returns the tx at `index`, for events after which no [`TxAction`] follows.
    #[inline(always)]
    pub fn tx(&mut self, index: u16) -> Option<&mut Tx> {
        Some(&mut self.slots.get_mut(usize::from(index))?.tx)
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.unreserved.is_empty() && self.free_of_credit.is_empty() && self.main.is_empty()
    }

    /// Returns whether no tx is queued and no NOOP is due, not even because the peer cannot send. Reads less than
    /// [`TxTable::blocked`], and may therefore be false where that is [`NextTx::Empty`].
    #[inline(always)]
    pub fn is_idle(&self, credits: &Credits) -> bool {
        self.is_empty() && credits.is_content()
    }

    /// Returns the result of [`TxTable::next`] if that would certainly post nothing, whatever free slots there are, and
    /// change nothing: [`NextTx::Empty`] or [`NextTx::NoCredit`].
    #[inline(always)]
    pub fn blocked(&self, credits: &Credits, keepalive: bool, patient: bool) -> Option<NextTx> {
        if self.is_empty() {
            return (!credits.wants_noop(false, false, keepalive)).then_some(NextTx::Empty);
        }
        let starved = !self.main.is_empty()
            && self.free_of_credit.is_empty()
            && (credits.credits() == 0 || (patient && credits.wastes_last()))
            && (self.unreserved.is_empty() || credits.reserved() == 0)
            && !credits.wants_noop(false, true, keepalive);
        starved.then_some(NextTx::NoCredit)
    }

    /// Returns whether a PUT_REQ or GET_REQ that is queued now must wait for a reserved buffer, because the requests
    /// before it take all of them.
    pub fn lacks_reserve(&self, credits: &Credits) -> bool {
        let queued = self.waiting(QueueKind::Unreserved);
        let reserved = usize::from(credits.reserved());
        queued.take(reserved).count() == reserved
    }

    /// Takes the next tx to post, in the order of protocol section 5.4, and pays for it.
    ///
    /// `sq_free` is the number of free send queue slots; [`NOOP_SLOTS`] of them are kept for NOOPs. A chain of WRITEs
    /// that does not fit is posted in parts, so that it does not starve. Between two chains or parts, one tx that needs
    /// a credit is posted, if it has one, so that continuous transfers do not starve such transmits. `patient`: the
    /// caller calls again when LNet has taken the received messages; then the last credit is kept for a message that
    /// can return credits.
    pub fn next(
        &mut self,
        credits: &mut Credits,
        sq_free: u16,
        keepalive: bool,
        patient: bool,
    ) -> NextTx {
        while !self.unreserved.is_empty() && credits.reserve() {
            if let Some(slot) = self.unreserved.first(&mut self.slots) {
                let index = self.unreserved.take(slot);
                self.main.push(&mut self.slots, index);
            }
        }
        let usable = sq_free.saturating_sub(NOOP_SLOTS);
        if self.main_next && !self.free_of_credit.is_empty() {
            if let post @ NextTx::Post { .. } = self.next_of_main(credits, usable, patient) {
                return post;
            }
        }
        let blocked = if let Some(slot) = self.free_of_credit.first(&mut self.slots) {
            if slot.slots <= usable {
                let cost = slot.tx.op().cost();
                self.main_next |= matches!(slot.tx.op(), Op::PutDone | Op::GetDone);
                return NextTx::Post {
                    index: self.free_of_credit.take(slot),
                    op: slot.tx.posting(),
                    carried: cost.and_then(|c| credits.pay(c)).unwrap_or(0),
                };
            } else if usable >= self.part {
                self.main_next = true;
                return NextTx::Part {
                    index: self.free_of_credit.head,
                    wrs: usable,
                };
            }
            NextTx::NoSlots
        } else {
            match self.next_of_main(credits, usable, patient) {
                post @ NextTx::Post { .. } => return post,
                blocked => blocked,
            }
        };
        let (free_queued, main_queued) = (!self.free_of_credit.is_empty(), !self.main.is_empty());
        if sq_free > 0 && credits.wants_noop(free_queued, main_queued, keepalive) {
            if let Some(carried) = credits.pay(Cost::OutOfBand) {
                return NextTx::Noop { carried };
            }
        }
        blocked
    }

    /// Takes the first tx that needs a credit, with `usable` free slots, or returns why it cannot go.
    #[inline(always)]
    fn next_of_main(&mut self, credits: &mut Credits, usable: u16, patient: bool) -> NextTx {
        let Some(slot) = self.main.first(&mut self.slots) else {
            return NextTx::Empty;
        };
        if slot.slots > usable {
            return NextTx::NoSlots;
        }
        if patient && credits.wastes_last() {
            return NextTx::NoCredit;
        }
        // All transmits in this queue cost a credit, and have their reserved buffer.
        let Some(carried) = credits.pay(Cost::Credit) else {
            return NextTx::NoCredit;
        };
        self.main_next = false;
        NextTx::Post {
            index: self.main.take(slot),
            op: slot.tx.posting(),
            carried,
        }
    }

    /// Pays for a tx of `op` that takes `slots` slots, if [`TxTable::queue`] and [`TxTable::next`] would post it, and
    /// returns the credits that it carries, as these would. Returns `None` otherwise, and changes nothing.
    #[inline(always)]
    pub fn try_pay(
        &self,
        (op, slots): (Op, u16),
        credits: &mut Credits,
        sq_free: u16,
        patient: bool,
    ) -> Option<u8> {
        if !self.is_empty() || slots > sq_free.saturating_sub(NOOP_SLOTS) {
            return None;
        }
        match op.cost() {
            Some(Cost::Credit | Cost::CreditAndReserve) if patient && credits.wastes_last() => None,
            Some(cost) => credits.pay(cost),
            None => Some(0),
        }
    }

    /// Counts `wrs` WRITEs of the tx at `index` that were pushed for [`NextTx::Part`]; `all`: only its message is left.
    pub fn chunk_posted(&mut self, index: u16, wrs: u16, all: bool) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            // Its message is left.
            let left = slot.slots.checked_sub(wrs).filter(|left| *left > 0);
            slot.slots = match left {
                Some(left) if !all => left,
                Some(_) => 1,
                None => broken::<u16>("a transmit has more WRITEs than slots").max(1),
            };
        }
    }

    /// Sets the cause with which the tx at `index` fails, when it ends.
    pub fn latch(&mut self, index: u16, cause: Cause) {
        if let Some(tx) = self.tx(index) {
            tx.latch(cause);
        }
    }

    /// Handles the completion of a work request of the tx at `index`. Returns the transfer if it was the last of the
    /// posted work requests, and succeeded.
    #[inline]
    pub fn completed(&mut self, index: u16, wr: Wr, result: Result<(), Cause>) -> Option<&mut T> {
        let tx = self.tx(index)?;
        let then = tx.completed(wr, result);
        let last = result.is_ok() && (tx.place() != TxState::Posted || tx.wrs() == 0);
        self.follow(index, then);
        match last {
            true => self.transfer(index),
            false => None,
        }
    }

    /// Handles the peer's answer to the tx at `index`; if that is queued again, posting it takes `slots`.
    ///
    /// # Errors
    ///
    /// The peer had no right to answer.
    #[inline(always)]
    pub fn answered(&mut self, index: u16, answer: Answer, slots: u16) -> Result<(), Cause> {
        let slot = self.slots.get_mut(usize::from(index));
        let slot = slot.ok_or(Cause::Protocol)?;
        let then = slot.tx.answered(answer)?;
        if then == TxAction::Requeue {
            slot.slots = slots;
        }
        self.follow(index, then);
        Ok(())
    }

    /// Handles an answer that had arrived when the connection ended: see [`Tx::answered_late`]. Returns false if the tx
    /// awaited no such answer.
    pub fn answered_late(&mut self, cookie: Cookie, make: impl FnOnce(&mut T) -> Answer) -> bool {
        let index = self.find(cookie).unwrap_or(NONE);
        match self.slots.get_mut(usize::from(index)) {
            Some(TxSlot {
                tx,
                transfer: Some(transfer),
                ..
            }) if tx.awaits_late() => {
                tx.answered_late(make(transfer));
                true
            }
            _ => false,
        }
    }

    /// Queues a tx by its [`Op`].
    fn push(&mut self, index: u16) {
        let cost = self.get(index).and_then(|slot| slot.tx.op().cost());
        let queue = match cost {
            Some(Cost::CreditAndReserve) => &mut self.unreserved,
            Some(Cost::Credit) => &mut self.main,
            Some(Cost::Answer | Cost::Free | Cost::OutOfBand) | None => &mut self.free_of_credit,
        };
        queue.push(&mut self.slots, index);
    }

    /// Performs the action of a tx.
    fn follow(&mut self, index: u16, then: TxAction) {
        match then {
            TxAction::Nothing => {}
            TxAction::Requeue => self.push(index),
            TxAction::Finish => self.done.push(&mut self.slots, index),
        }
    }

    /// Returns the oldest finished tx, which waits for the LNet half.
    #[inline(always)]
    pub fn done(&self) -> Option<u16> {
        (!self.done.is_empty()).then_some(self.done.head)
    }

    /// Takes the oldest finished tx, out of which `take` moves the transfer. Its slot is free again.
    #[inline(always)]
    pub fn take_done<R>(&mut self, take: impl FnOnce(&Tx, &mut Option<T>) -> R) -> Option<R> {
        let slot = self.done.first(&mut self.slots)?;
        let index = self.done.take(slot);
        let taken = take(&slot.tx, &mut slot.transfer);
        self.release(index);
        Some(taken)
    }

    /// Ends all transmits for `cause` because the connection ended: queued and waiting ones at once, posted ones with
    /// their last completion. If the cause is a deadline, each gets the cause of its own deadline instead.
    pub fn cancel_all(&mut self, cause: Cause) {
        let by_place = matches!(
            cause,
            Cause::DeadlineQueued | Cause::DeadlineSending | Cause::DeadlineAnswer
        );
        self.unreserved = TxFifo::EMPTY;
        self.free_of_credit = TxFifo::EMPTY;
        self.main = TxFifo::EMPTY;
        self.for_each(|tx| {
            let own = if by_place { tx.timeout_cause() } else { cause };
            tx.cancel(own)
        });
    }

    /// Releases transmits that only a live key held, because the memory regions are gone.
    pub fn keys_dead(&mut self) {
        self.for_each(Tx::key_dead);
    }

    fn for_each(&mut self, mut step: impl FnMut(&mut Tx) -> TxAction) {
        for index in 0..NONE {
            let Some(tx) = self.tx(index) else {
                return;
            };
            let then = step(tx);
            self.follow(index, then);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &TxSlot<T>)> {
        (0..NONE).zip(self.slots.iter())
    }

    /// Yields the transmits that are not finished, with their index.
    pub fn pending(&self) -> impl Iterator<Item = (u16, &TxSlot<T>)> {
        self.iter()
            .filter(|(_, slot)| !matches!(slot.tx.place(), TxState::Free | TxState::Done))
    }

    pub fn has_pending(&self) -> bool {
        self.pending().next().is_some()
    }

    /// Yields the transmits of a queue, the next to post first.
    pub fn waiting(&self, queue: QueueKind) -> impl Iterator<Item = u16> + '_ {
        let mut index = match queue {
            QueueKind::Unreserved => self.unreserved.head,
            QueueKind::FreeOfCredit => self.free_of_credit.head,
            QueueKind::Main => self.main.head,
        };
        // A queue holds no more than all of them.
        (0..self.nr_slots()).map_while(move |_| {
            let slot = self.get(index)?;
            Some(core::mem::replace(&mut index, slot.next))
        })
    }

    pub fn queued(&self, queue: QueueKind) -> u16 {
        u16::try_from(self.waiting(queue).count()).unwrap_or(u16::MAX)
    }
}

/// Returns the name of a tx on the wire: index and generation under a random mask of the connection, so that a peer can
/// neither guess the name of another connection nor reuse an old one.
#[inline(always)]
fn cookie(index: u16, generation: u32, mask: u64) -> Cookie {
    Cookie(((u64::from(generation) << 16) | u64::from(index)) ^ mask)
}
#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_tx_table))]
mod tests {
    use core::ops::Deref;

    use super::super::{
        constants::QueueDepth,
        credits::Repost, //
    };
    use super::*;

    /// Slots without transfer.
    #[derive(Clone, Copy)]
    struct Slots<const N: usize>([TxSlot<()>; N]);

    impl<const N: usize> Deref for Slots<N> {
        type Target = [TxSlot<()>];

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }

    impl<const N: usize> DerefMut for Slots<N> {
        fn deref_mut(&mut self) -> &mut Self::Target {
            &mut self.0
        }
    }

    type Table<const N: usize> = TxTable<Slots<N>>;

    fn table<const N: usize>() -> Table<N> {
        TxTable::new(Slots([TxSlot::FREE; N]), 0x1234_5678_9abc_def0)
    }

    /// Queues a new tx. Returns its index, or [`NONE`].
    fn add<S>(q: &mut TxTable<S>, op: Op, slots: u16) -> u16
    where
        S: DerefMut<Target = [TxSlot<()>]>,
    {
        let Some((index, _, slot)) = q.alloc(op) else {
            return NONE;
        };
        slot.fill(());
        q.queue(index, slots);
        index
    }

    /// Returns the credits of a connection whose peer waits for as many answers as it may.
    fn all_owed(depth: QueueDepth, high_water: u8) -> Credits {
        let mut credits = Credits::new(depth, high_water);
        while credits.answer_owed().is_ok() {}
        credits
    }

    #[test]
    fn cookies_do_not_outlive_their_tx() {
        let mut q = table::<2>();
        let Some((index, name, _)) = q.alloc(Op::GetReq) else {
            return;
        };
        assert_eq!(q.find(name), Some(index));
        assert_eq!(q.find(Cookie(name.0 ^ 1)), None);
        assert_eq!(q.find(Cookie(!name.0)), None);
        q.release(index);
        assert_eq!(q.find(name), None);
        let _ = q.alloc(Op::GetReq);
        let _ = q.alloc(Op::GetReq);
        assert_eq!(q.find(name), None);
        assert!(q.alloc(Op::Immediate).is_none());
    }

    #[test]
    fn the_pump_keeps_the_order_of_the_queues() {
        let mut q = table::<8>();
        let mut credits = all_owed(QueueDepth::MIN, 1);
        assert_eq!(q.blocked(&credits, false, false), Some(NextTx::Empty));
        assert_eq!(q.blocked(&credits, true, false), None);
        assert!(!q.lacks_reserve(&credits));
        let get = add(&mut q, Op::GetReq, 1);
        assert_eq!(q.blocked(&credits, false, false), None);
        // Depth 1: the first request takes the only buffer, even before it is posted.
        assert!(q.lacks_reserve(&credits));
        let get2 = add(&mut q, Op::GetReq, 1);
        let done = add(&mut q, Op::GetDone, 1);
        assert!(q.waiting(QueueKind::Unreserved).eq([get, get2]));
        assert!(q.waiting(QueueKind::FreeOfCredit).eq([done]));
        assert_eq!(q.waiting(QueueKind::Main).next(), None);
        // No room for a chain: two slots are kept for NOOPs.
        assert_eq!(q.next(&mut credits, 2, false, false), NextTx::NoSlots);
        let first = q.next(&mut credits, 10, false, false);
        assert_eq!(
            first,
            NextTx::Post {
                index: done,
                op: Op::GetDone,
                carried: 0
            }
        );
        let second = q.next(&mut credits, 10, false, false);
        assert_eq!(
            second,
            NextTx::Post {
                index: get,
                op: Op::GetReq,
                carried: 0
            }
        );
        // Depth 1: neither a reserve nor a credit is left.
        assert_eq!(q.next(&mut credits, 10, false, false), NextTx::Empty);
        assert_eq!(q.queued(QueueKind::Unreserved), 1);
        assert!(q.lacks_reserve(&credits));
        assert_eq!(credits.returned(1), Ok(()));
        assert_eq!(credits.reposted(Repost::ForAnswer), Ok(()));
        // The buffer belongs to the waiting request.
        assert!(q.lacks_reserve(&credits));
        let third = q.next(&mut credits, 10, false, false);
        assert_eq!(
            third,
            NextTx::Post {
                index: get2,
                op: Op::GetReq,
                carried: 0
            }
        );
    }

    #[test]
    fn the_last_credit_waits_for_credits_to_return() {
        let mut q = table::<4>();
        let Some(depth) = QueueDepth::new(2) else {
            return;
        };
        let mut credits = Credits::new(depth, 1);
        for _ in 0..3 {
            add(&mut q, Op::Immediate, 1);
        }
        let none = 0;
        let next = q.next(&mut credits, 10, false, true);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == none));
        assert_eq!(q.blocked(&credits, false, true), Some(NextTx::NoCredit));
        assert_eq!(q.blocked(&credits, false, false), None);
        let next = q.next(&mut credits, 10, false, true);
        assert_eq!(next, NextTx::NoCredit);
        // With a credit to return it goes, and carries that.
        assert_eq!(credits.request_received(), Ok(()));
        assert_eq!(credits.reposted(Repost::ForPeer), Ok(()));
        let next = q.next(&mut credits, 10, false, true);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == 1));
        // Without one it goes, if none is expected.
        assert_eq!(credits.returned(1), Ok(()));
        let next = q.next(&mut credits, 10, false, false);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == none));
    }

    /// Tests that a chain without enough room goes in parts, in its turn, each of at least [`PART`] WRITEs.
    #[test]
    fn a_long_chain_goes_in_parts() {
        const WRITES: u16 = 100;
        let mut q = table::<2>();
        q.open(40);
        let Some(depth) = QueueDepth::new(2) else {
            return;
        };
        let mut credits = all_owed(depth, 1);
        for (op, slots) in [(Op::GetDone, WRITES + 1), (Op::PutNak, 1)] {
            add(&mut q, op, slots);
        }
        let mut next = |q: &mut Table<2>, room: u16| {
            let free = room.saturating_add(NOOP_SLOTS);
            q.next(&mut credits, free, false, false)
        };
        // Fewer slots are not enough, and nothing overtakes.
        assert_eq!(next(&mut q, PART.saturating_sub(1)), NextTx::NoSlots);
        for wrs in [40, PART, 40] {
            assert_eq!(next(&mut q, wrs), NextTx::Part { index: 0, wrs });
            q.chunk_posted(0, wrs, false);
        }
        // 4 WRITEs and the message are left.
        assert_eq!(next(&mut q, 4), NextTx::NoSlots);
        let whole = |n| matches!(n, NextTx::Post { index: 0, .. });
        assert!(whole(next(&mut q, 5)));
        assert!(matches!(next(&mut q, 5), NextTx::Post { index: 1, .. }));
    }

    /// Tests that continuous transfers do not starve messages that need a credit, nor messages the transfers.
    #[test]
    fn messages_and_chains_take_turns() {
        const CHAIN: u16 = 10;
        let mut q = table::<9>();
        q.open(40);
        let Some(depth) = QueueDepth::new(8) else {
            return;
        };
        let mut credits = all_owed(depth, 4);
        let add = |q: &mut Table<9>, op| match op {
            Op::GetDone => super::tests::add(q, op, CHAIN),
            _ => super::tests::add(q, op, 1),
        };
        let mut next = |q: &mut Table<9>, room: u16| {
            let free = room.saturating_add(NOOP_SLOTS);
            match q.next(&mut credits, free, false, false) {
                NextTx::Post { index, .. } => index,
                _ => NONE,
            }
        };
        let [a, b, c] = [Op::GetDone; 3].map(|op| add(&mut q, op));
        let [x, y, z] = [Op::Immediate; 3].map(|op| add(&mut q, op));
        assert_eq!(next(&mut q, CHAIN), a);
        // There is no room for another chain, and one message goes before it.
        assert_eq!(next(&mut q, 5), x);
        // Slots that become free then belong to the chain.
        assert_eq!(next(&mut q, 5), NONE);
        assert_eq!(next(&mut q, CHAIN), b);
        assert_eq!(next(&mut q, CHAIN), y);
        // An answer that takes no time is no reason to wait.
        let d = add(&mut q, Op::PutNak);
        assert_eq!(next(&mut q, CHAIN), c);
        assert_eq!(next(&mut q, CHAIN), z);
        assert_eq!(next(&mut q, CHAIN), d);
        // Parts of one are as good as chains.
        super::tests::add(&mut q, Op::GetDone, 100);
        let w = add(&mut q, Op::Immediate);
        assert_eq!(next(&mut q, PART), NONE);
        assert_eq!(next(&mut q, 1), w);
        assert_eq!(next(&mut q, 1), NONE);
    }

    /// Tests fewer WRITEs than counted, because ranges were adjacent: the message does not wait for their slots.
    #[test]
    fn when_all_is_written_the_message_goes() {
        let mut q = table::<1>();
        let mut credits = Credits::new(QueueDepth::MIN, 1);
        add(&mut q, Op::PutDone, 60);
        let free = |slots: u16| slots.saturating_add(NOOP_SLOTS);
        let part = q.next(&mut credits, free(30), false, false);
        assert_eq!(part, NextTx::Part { index: 0, wrs: 30 });
        q.chunk_posted(0, 20, true);
        let rest = q.next(&mut credits, free(1), false, false);
        assert!(matches!(rest, NextTx::Post { index: 0, .. }));
    }

    /// Tests that any chain goes in a queue that is shorter than [`PART`].
    #[test]
    fn a_short_queue_takes_any_chain() {
        for slots in 1..=PART {
            let mut q = table::<1>();
            q.open(slots);
            let mut credits = Credits::new(QueueDepth::MIN, 1);
            add(&mut q, Op::GetDone, 257);
            let free = slots.saturating_add(NOOP_SLOTS);
            let next = q.next(&mut credits, free, false, false);
            assert_eq!(
                next,
                NextTx::Part {
                    index: 0,
                    wrs: slots
                }
            );
        }
    }

    /// Calls `f` for all small accounts, each with all combinations of three places.
    fn for_each_account(mut f: impl FnMut(Table<6>, Credits)) {
        let Some(depth) = QueueDepth::new(3) else {
            return;
        };
        let ops = [Op::Immediate, Op::GetReq, Op::GetDone].into_iter();
        for queued in 0..64usize {
            for account in 0..128u32 {
                let mut q = table::<6>();
                let mut credits = all_owed(depth, 2);
                for shift in [0, 2, 4] {
                    let Some(op) = ops.clone().nth((queued >> shift) & 3) else {
                        continue;
                    };
                    add(&mut q, op, 1);
                }
                for _ in 0..account & 3 {
                    let _ = credits.pay(Cost::Credit);
                }
                for _ in 0..(account >> 2) & 3 {
                    let _ = credits.request_received();
                    let _ = credits.reposted(Repost::ForPeer);
                }
                for _ in 0..(account >> 4) & 3 {
                    let _ = credits.reserve();
                }
                for _ in 0..(account >> 6) & 1 {
                    let _ = credits.pay(Cost::OutOfBand);
                }
                f(q, credits);
            }
        }
    }

    /// Compares the result and the effect of [`TxTable::try_pay`] with [`TxTable::push`] and [`TxTable::next`], over
    /// all small accounts, all ops, and too few slots and enough.
    #[test]
    fn who_is_passed_on_is_who_would_have_been_next() {
        const OPS: [Op; 8] = [
            Op::Immediate,
            Op::PutReq,
            Op::GetReq,
            Op::PutAck,
            Op::PutNak,
            Op::PutDone,
            Op::GetDone,
            Op::Invalidate,
        ];
        let (mut passed, mut held) = (0u32, 0u32);
        for_each_account(|q, credits| {
            for (op, slots, free, patient) in OPS
                .into_iter()
                .flat_map(|op| [(op, 1), (op, 3)])
                .flat_map(|(op, slots)| [2, 3, 4, 5, 10].map(|free| (op, slots, free)))
                .flat_map(|(op, slots, free)| [false, true].map(|p| (op, slots, free, p)))
            {
                let (mut q, mut paid, before) = (q, credits, credits);
                let mut credits = credits;
                let alone = q.is_empty();
                let carried = q.try_pay((op, slots), &mut paid, free, patient);
                let index = add(&mut q, op, slots);
                let next = q.next(&mut credits, free, false, patient);
                match carried {
                    Some(carried) => {
                        passed = passed.saturating_add(1);
                        assert_eq!(next, NextTx::Post { index, op, carried });
                        assert_eq!(paid, credits);
                        assert!(q.is_empty());
                    }
                    None => {
                        held = held.saturating_add(1);
                        let mine = matches!(next, NextTx::Post { index: i, .. } if i == index);
                        assert!(!(alone && mine));
                        assert_eq!(paid, before);
                    }
                }
            }
        });
        assert!(passed > 100 && held > 100);
    }

    /// Tests that idle queues are quiet, whatever else is the case.
    #[test]
    fn who_is_idle_is_quiet() {
        let mut idle = 0u32;
        for_each_account(|q, credits| {
            if q.is_idle(&credits) {
                idle = idle.saturating_add(1);
                let blocked = q.blocked(&credits, credits.starves_peer(), false);
                assert_eq!(blocked, Some(NextTx::Empty));
            }
        });
        assert!(idle > 10);
    }

    /// Tests that [`TxTable::next`] returns the result of [`TxTable::blocked`], and changes nothing, over all small
    /// accounts.
    #[test]
    fn test_blocked_table_posts_nothing() {
        let (mut starved, mut empty) = (0u32, 0u32);
        for_each_account(|q, credits| {
            for (keepalive, patient) in [(false, false), (false, true), (true, false), (true, true)]
            {
                let Some(blocked) = q.blocked(&credits, keepalive, patient) else {
                    continue;
                };
                match blocked {
                    NextTx::NoCredit => starved = starved.saturating_add(1),
                    _ => empty = empty.saturating_add(1),
                }
                let (mut q, mut credits) = (q, credits);
                let before = (QueueKind::ALL.map(|queue| q.queued(queue)), credits);
                let next = q.next(&mut credits, 10, keepalive, patient);
                assert_eq!(next, blocked);
                assert!((QueueKind::ALL.map(|queue| q.queued(queue)), credits) == before);
            }
        });
        assert!(starved > 100 && empty > 100);
    }

    /// Tests that a bigger table has all transmits, under their names, and in the order of their queues.
    #[test]
    fn test_grown_table_keeps_transmits() {
        let (mut small, mut same, mut big) =
            ([TxSlot::FREE; 2], [TxSlot::FREE; 2], [TxSlot::FREE; 4]);
        let (mut same, mut big) = (&mut same[..], &mut big[..]);
        let mut q = TxTable::new(&mut small[..], 1);
        let names = [Op::GetDone; 2].map(|op| {
            let (index, name, slot) = q.alloc(op)?;
            slot.fill(());
            q.queue(index, 1).map(|()| name)
        });
        q.grow(&mut same);
        assert!(!q.has_free() && q.nr_slots() == 2);
        q.grow(&mut big);
        assert!(q.has_free() && q.nr_slots() == 4 && big.len() == 2);
        let found = names.map(|name| name.and_then(|name| q.find(name)));
        assert_eq!(found, [Some(0), Some(1)]);
        assert!(q.waiting(QueueKind::FreeOfCredit).eq([0, 1]));
        let new = [add(&mut q, Op::Immediate, 1), add(&mut q, Op::Immediate, 1)];
        assert!(new == [2, 3] && !q.has_free());
    }
}
