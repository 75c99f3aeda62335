// SPDX-License-Identifier: GPL-2.0

//! Table of a connection's transmits: their names on the wire, their queues, and the order in which they are posted.
//!
//! [`super::tx_state`] has the states of one transmit.
//!
//! Context: any; the caller holds the connection's lock.

use super::{
    broken,
    cause::Cause,
    credits::{
        Cost,
        Credits,
        NOOPS_MAX, //
    },
    tx_state::{
        Op,
        Tx,
        TxAction,
        TxState, //
    }, //
};

/// No index: the end of a list.
const NONE: u16 = u16::MAX;

/// A tx in its table: state, generation and list link.
#[derive(Clone, Copy, Debug)]
pub struct TxCell {
    /// The state.
    pub tx: Tx,
    /// Work requests that posting [`Tx::op`] takes.
    pub slots: u16,
    generation: u32,
    next: u16,
}

impl TxCell {
    /// A free cell.
    pub const FREE: Self = Self {
        tx: Tx::FREE,
        slots: 1,
        generation: 0,
        next: NONE,
    };
}

/// Slot of a table of transmits: a cell, and perhaps what the caller keeps beside it.
pub trait HasTxCell {
    /// Returns the cell.
    fn cell(&self) -> &TxCell;

    /// Returns the cell for changes.
    fn cell_mut(&mut self) -> &mut TxCell;
}

impl HasTxCell for TxCell {
    #[inline(always)]
    fn cell(&self) -> &TxCell {
        self
    }

    #[inline(always)]
    fn cell_mut(&mut self) -> &mut TxCell {
        self
    }
}

/// Returns the cell at `index`.
#[inline(always)]
fn at(cells: &[impl HasTxCell], index: u16) -> Option<&TxCell> {
    cells.get(usize::from(index)).map(HasTxCell::cell)
}

/// Returns the cell at `index` for changes.
#[inline(always)]
fn at_mut(cells: &mut [impl HasTxCell], index: u16) -> Option<&mut TxCell> {
    cells.get_mut(usize::from(index)).map(HasTxCell::cell_mut)
}

/// Name of a tx in its table; a stale name (the cell was reused) matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxId {
    /// Index into the table.
    pub index: u16,
    generation: u32,
}

impl TxId {
    /// Returns the 64-bit cookie for the wire: index and generation under a random mask of the connection, so that a
    /// peer can neither guess the cookie of another connection nor reuse an old one.
    pub fn cookie(self, mask: u64) -> u64 {
        ((u64::from(self.generation) << 16) | u64::from(self.index)) ^ mask
    }

    /// Returns the tx that a cookie names. The cookie may be stale or nonsense: [`TxQueues::find`] decides.
    pub fn from_cookie(cookie: u64, mask: u64) -> Option<Self> {
        let plain = cookie ^ mask;
        let generation = u32::try_from(plain >> 16).ok()?;
        let index = u16::try_from(plain & 0xffff).ok()?;
        Some(Self { index, generation })
    }
}

/// First-in first-out list through the cells.
///
/// # Invariants
///
/// Both ends are [`NONE`] while it is empty, which is the index of no cell.
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

    fn is_empty(&self) -> bool {
        self.head == NONE
    }

    fn push(&mut self, cells: &mut [impl HasTxCell], index: u16) {
        match at_mut(cells, index) {
            Some(cell) => cell.next = NONE,
            None => return,
        }
        match at_mut(cells, self.tail) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    fn pop(&mut self, cells: &mut [impl HasTxCell]) -> Option<u16> {
        let cell = self.first(cells)?;
        Some(self.take(cell))
    }

    /// Returns the first cell.
    #[inline(always)]
    fn first<'a>(&self, cells: &'a mut [impl HasTxCell]) -> Option<&'a mut TxCell> {
        at_mut(cells, self.head)
    }

    /// Removes the first cell, which is `first`, and returns its index.
    #[inline(always)]
    fn take(&mut self, first: &mut TxCell) -> u16 {
        let index = self.head;
        self.head = first.next;
        if self.head == NONE {
            self.tail = NONE;
        }
        index
    }
}

/// List with a length.
///
/// # Invariants
///
/// `len` cells are in `list`.
#[derive(Clone, Copy, Debug)]
struct TxQueue {
    list: TxFifo,
    len: u16,
}

impl TxQueue {
    const EMPTY: Self = Self {
        list: TxFifo::EMPTY,
        len: 0,
    };

    fn push(&mut self, cells: &mut [impl HasTxCell], index: u16) {
        self.list.push(cells, index);
        self.len = self.len.saturating_add(1);
    }

    fn pop(&mut self, cells: &mut [impl HasTxCell]) -> Option<u16> {
        let cell = self.first(cells)?;
        Some(self.take(cell))
    }

    /// Returns the first cell.
    #[inline(always)]
    fn first<'a>(&self, cells: &'a mut [impl HasTxCell]) -> Option<&'a mut TxCell> {
        self.list.first(cells)
    }

    /// Removes the first cell, which is `first`, and returns its index.
    #[inline(always)]
    fn take(&mut self, first: &mut TxCell) -> u16 {
        let left = self.len.checked_sub(1);
        self.len = left.unwrap_or_else(|| broken("a queue holds more transmits than it counts"));
        self.list.take(first)
    }
}

/// Next work of the pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextTx {
    /// Post this tx, which is [`Tx::posting`] now, with this number of credits in the message.
    Post {
        /// Index of the tx.
        index: u16,
        /// Step to post.
        op: Op,
        /// Credits for `ibm_credits`; 0 if it is not a message.
        carried: u8,
    },
    /// Post this number of WRITEs of this tx, or all that it has. Its message waits, and it stays the first of its
    /// queue: [`TxQueues::chunk_posted`].
    Part {
        /// Index of the tx.
        index: u16,
        /// Number of work requests that there is room for.
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
    /// Nothing is queued.
    Empty,
}

/// The queues of a connection in the order of protocol section 5.4, and the list of free cells.
#[derive(Clone, Copy, Debug)]
pub struct TxQueues {
    /// PUT_REQ and GET_REQ without a reserved buffer for the answer.
    unreserved: TxQueue,
    /// Transmits that need no credit.
    free_of_credit: TxQueue,
    /// Transmits that need a credit.
    main: TxQueue,
    /// Finished transmits, which the LNet half takes.
    done: TxFifo,
    free: TxFifo,
    /// Number of WRITEs that justify a doorbell of their own.
    part: u16,
    /// WRITEs were posted after the last tx of `main`: the next tx of `main` goes before more WRITEs.
    main_next: bool,
}

/// The length of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// PUT_REQ and GET_REQ without a reserved buffer for the answer.
    pub unreserved: u16,
    /// Queued transmits that need no credit.
    pub free_of_credit: u16,
    /// Queued transmits that need a credit.
    pub main: u16,
}

/// Queue, for debugfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// PUT_REQ and GET_REQ without a reserved buffer for the answer.
    Unreserved,
    /// Transmits that need no credit.
    FreeOfCredit,
    /// Transmits that need a credit.
    Main,
}

/// Send queue slots that only a NOOP may take, so that credits can return while transmits that need a credit wait for
/// slots.
pub const NOOP_SLOTS: u16 = NOOPS_MAX as u16;

/// Number of WRITEs that justify a doorbell of their own, of a chain that does not fit as a whole. A tx with fewer work
/// requests is posted in one piece. Only a chain of WRITEs has more.
pub const PART: u16 = 16;

impl TxQueues {
    /// Empty queues; no cell exists yet.
    pub const EMPTY: Self = Self {
        unreserved: TxQueue::EMPTY,
        free_of_credit: TxQueue::EMPTY,
        main: TxQueue::EMPTY,
        done: TxFifo::EMPTY,
        free: TxFifo::EMPTY,
        part: PART,
        main_next: false,
    };

    /// Sets the number of send queue slots for transmits other than NOOPs. In a short send queue the parts of a chain
    /// are shorter than [`PART`]; otherwise the chain would never be posted.
    pub fn open(&mut self, slots: u16) {
        self.part = PART.min(slots).max(1);
    }

    /// Adds the cells from `first` on, which the caller has just appended, to the free list.
    pub fn grow(&mut self, cells: &mut [impl HasTxCell], first: u16) {
        let Ok(end) = u16::try_from(cells.len()) else {
            return;
        };
        for index in first..end {
            self.free.push(cells, index);
        }
    }

    /// Returns whether there is a free cell.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free cell for a tx of `op`. Returns `None` if the table is full.
    pub fn alloc(&mut self, cells: &mut [impl HasTxCell], op: Op) -> Option<TxId> {
        let index = self.free.pop(cells)?;
        let cell = at_mut(cells, index)?;
        cell.tx = Tx::mapped(op);
        cell.slots = 1;
        Some(TxId {
            index,
            generation: cell.generation,
        })
    }

    /// Gives a finished cell back. Its cookie is dead from here on.
    pub fn release(&mut self, cells: &mut [impl HasTxCell], index: u16) {
        let Some(cell) = at_mut(cells, index) else {
            return;
        };
        if cell.tx.place() == TxState::Free {
            return;
        }
        cell.tx = Tx::FREE;
        cell.generation = cell.generation.wrapping_add(1);
        self.free.push(cells, index);
    }

    /// Returns the index of a tx, if its name is not stale.
    pub fn find(cells: &[impl HasTxCell], id: TxId) -> Option<u16> {
        let cell = at(cells, id.index)?;
        (cell.generation == id.generation && cell.tx.place() != TxState::Free).then_some(id.index)
    }

    /// Returns the full name of the tx at `index`.
    pub fn name(cells: &[impl HasTxCell], index: u16) -> Option<TxId> {
        let generation = at(cells, index)?.generation;
        Some(TxId { index, generation })
    }

    /// Queues a tx by its [`Op`].
    pub fn push(&mut self, cells: &mut [impl HasTxCell], index: u16) {
        let Some(cell) = at(cells, index) else {
            return;
        };
        let queue = match cell.tx.op().cost() {
            Some(Cost::CreditAndReserve) => &mut self.unreserved,
            Some(Cost::Credit) => &mut self.main,
            Some(Cost::Answer | Cost::Free | Cost::OutOfBand) | None => &mut self.free_of_credit,
        };
        queue.push(cells, index);
    }

    /// Returns whether no tx is queued.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.unreserved.len | self.free_of_credit.len | self.main.len == 0
    }

    /// Returns whether no tx is queued and no NOOP is due, not even because the peer cannot send. Reads less than
    /// [`TxQueues::is_quiet`], and may therefore be false where that is true.
    #[inline(always)]
    pub fn is_idle(&self, credits: &Credits) -> bool {
        self.is_empty() && credits.is_content()
    }

    /// Returns whether [`TxQueues::next`] would find nothing, even with enough slots: no tx is queued, and no NOOP is
    /// due.
    #[inline(always)]
    pub fn is_quiet(&self, credits: &Credits, keepalive: bool) -> bool {
        self.is_empty() && !credits.wants_noop(false, false, keepalive)
    }

    /// Returns whether [`TxQueues::next`] would certainly return [`NextTx::NoCredit`] (or [`NextTx::NoSlots`] without
    /// slots), and change nothing.
    pub fn is_starved(&self, credits: &Credits, keepalive: bool, patient: bool) -> bool {
        self.main.len > 0
            && self.free_of_credit.len == 0
            && (!credits.may_send(Cost::Credit) || (patient && credits.has_last_bare()))
            && (self.unreserved.len == 0 || !credits.may_reserve())
            && !credits.wants_noop(false, true, keepalive)
    }

    /// Returns whether a PUT_REQ or GET_REQ that is queued now must wait for a reserved buffer, because the requests
    /// before it take all of them.
    pub fn lacks_reserve(&self, credits: &Credits) -> bool {
        self.unreserved.len >= u16::from(credits.reserved())
    }

    /// Takes the next tx to post, in the order of protocol section 5.4, and pays for it.
    ///
    /// `sq_free` is the number of free send queue slots; [`NOOP_SLOTS`] of them are kept for NOOPs. A chain of WRITEs
    /// that does not fit is posted in parts, as slots become free, and later transmits wait for it, so that a long
    /// chain does not starve. Between two chains or parts, one tx that needs a credit is posted, if it has one.
    /// Otherwise a peer with continuous transfers would starve such transmits. `patient` says that the caller calls
    /// again when LNet has taken the received messages; then the last credit is kept for a message that can return
    /// credits.
    pub fn next(
        &mut self,
        cells: &mut [impl HasTxCell],
        credits: &mut Credits,
        sq_free: u16,
        keepalive: bool,
        patient: bool,
    ) -> NextTx {
        while self.unreserved.len > 0 && credits.reserve() {
            if let Some(index) = self.unreserved.pop(cells) {
                self.main.push(cells, index);
            }
        }
        let usable = sq_free.saturating_sub(NOOP_SLOTS);
        if self.main_next && self.free_of_credit.len > 0 {
            if let post @ NextTx::Post { .. } = self.next_of_main(cells, credits, usable, patient) {
                return post;
            }
        }
        let blocked = if let Some(cell) = self.free_of_credit.first(cells) {
            if cell.slots <= usable {
                let cost = cell.tx.op().cost();
                self.main_next |= matches!(cell.tx.op(), Op::PutDone | Op::GetDone);
                return NextTx::Post {
                    index: self.free_of_credit.take(cell),
                    op: cell.tx.posting(),
                    carried: cost.and_then(|c| credits.pay(c)).unwrap_or(0),
                };
            } else if usable >= self.part {
                self.main_next = true;
                return NextTx::Part {
                    index: self.free_of_credit.list.head,
                    wrs: usable,
                };
            }
            NextTx::NoSlots
        } else {
            match self.next_of_main(cells, credits, usable, patient) {
                post @ NextTx::Post { .. } => return post,
                blocked => blocked,
            }
        };
        let (free_queued, main_queued) = (self.free_of_credit.len > 0, self.main.len > 0);
        if sq_free > 0 && credits.wants_noop(free_queued, main_queued, keepalive) {
            if let Some(carried) = credits.pay(Cost::OutOfBand) {
                return NextTx::Noop { carried };
            }
        }
        blocked
    }

    /// Takes the first tx that needs a credit, with `usable` free slots, or returns why it cannot go.
    #[inline(always)]
    fn next_of_main(
        &mut self,
        cells: &mut [impl HasTxCell],
        credits: &mut Credits,
        usable: u16,
        patient: bool,
    ) -> NextTx {
        let Some(cell) = self.main.first(cells) else {
            return NextTx::Empty;
        };
        if cell.slots > usable {
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
            index: self.main.take(cell),
            op: cell.tx.posting(),
            carried,
        }
    }

    /// Pays for a tx of `op` that takes `slots` slots, if [`TxQueues::push`] and [`TxQueues::next`] would post it, and
    /// returns the credits that it carries, as these would. Returns `None` otherwise, and changes nothing. Only while
    /// [`TxQueues::is_empty`].
    #[inline(always)]
    pub fn try_pay(
        (op, slots): (Op, u16),
        credits: &mut Credits,
        sq_free: u16,
        patient: bool,
    ) -> Option<u8> {
        if slots > sq_free.saturating_sub(NOOP_SLOTS) {
            return None;
        }
        let cost = op.cost();
        match cost {
            Some(Cost::Credit | Cost::CreditAndReserve) => {
                let reserves = cost == Some(Cost::CreditAndReserve);
                if (patient && credits.wastes_last()) || (reserves && !credits.may_reserve()) {
                    return None;
                }
                let carried = credits.pay(Cost::Credit)?;
                // A buffer is free.
                let _ = reserves && credits.reserve();
                Some(carried)
            }
            Some(cost) => credits.pay(cost),
            None => Some(0),
        }
    }

    /// Counts `wrs` WRITEs of the tx at `index` that were pushed for [`NextTx::Part`]; `all`: only its message is left.
    pub fn chunk_posted(cells: &mut [impl HasTxCell], index: u16, wrs: u16, all: bool) {
        if let Some(cell) = at_mut(cells, index) {
            // Its message is left.
            let left = cell.slots.checked_sub(wrs).filter(|left| *left > 0);
            cell.slots = match left {
                Some(left) if !all => left,
                Some(_) => 1,
                None => broken::<u16>("a transmit has more WRITEs than slots").max(1),
            };
        }
    }

    /// Performs the action of a tx. Returns true if the peer broke the protocol by causing it.
    #[must_use]
    pub fn follow(&mut self, cells: &mut [impl HasTxCell], index: u16, then: TxAction) -> bool {
        match then {
            TxAction::Nothing => {}
            TxAction::Requeue => self.push(cells, index),
            TxAction::Finish => self.done.push(cells, index),
            TxAction::Violation => return true,
        }
        false
    }

    /// Takes the oldest finished tx.
    pub fn take_done(&mut self, cells: &mut [impl HasTxCell]) -> Option<u16> {
        self.done.pop(cells)
    }

    /// Returns whether a finished tx waits for the LNet half.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns whether any tx is not finished.
    pub fn has_pending(cells: &[impl HasTxCell]) -> bool {
        cells
            .iter()
            .any(|c| !matches!(c.cell().tx.place(), TxState::Free | TxState::Done))
    }

    /// Ends all transmits for `cause` because the connection ended: queued and waiting ones at once, posted ones with
    /// their last completion. With `by_place` each tx gets the cause of its own deadline instead.
    pub fn cancel_all(&mut self, cells: &mut [impl HasTxCell], cause: Cause, by_place: bool) {
        self.unreserved = TxQueue::EMPTY;
        self.free_of_credit = TxQueue::EMPTY;
        self.main = TxQueue::EMPTY;
        self.for_each(cells, |tx| {
            let own = if by_place { tx.timeout_cause() } else { cause };
            tx.cancel(own)
        });
    }

    /// Releases transmits that only a live key held, because the memory regions are gone.
    pub fn keys_dead(&mut self, cells: &mut [impl HasTxCell]) {
        self.for_each(cells, Tx::key_dead);
    }

    fn for_each(
        &mut self,
        cells: &mut [impl HasTxCell],
        mut step: impl FnMut(&mut Tx) -> TxAction,
    ) {
        let Ok(end) = u16::try_from(cells.len()) else {
            return;
        };
        for index in 0..end {
            let Some(cell) = at_mut(cells, index) else {
                return;
            };
            let then = step(&mut cell.tx);
            // A local step is never a violation.
            let _ = self.follow(cells, index, then);
        }
    }

    /// Yields the transmits of a queue, the next to post first.
    pub fn waiting<'a>(
        &self,
        cells: &'a [impl HasTxCell],
        line: QueueKind,
    ) -> impl Iterator<Item = u16> + 'a {
        let queue = match line {
            QueueKind::Unreserved => self.unreserved,
            QueueKind::FreeOfCredit => self.free_of_credit,
            QueueKind::Main => self.main,
        };
        let mut index = queue.list.head;
        (0..queue.len).map_while(move |_| {
            let cell = at(cells, index)?;
            Some(core::mem::replace(&mut index, cell.next))
        })
    }

    /// Returns the queue lengths, for debugfs.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            unreserved: self.unreserved.len,
            free_of_credit: self.free_of_credit.len,
            main: self.main.len,
        }
    }
}
#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_tx_queues))]
mod tests {
    use super::super::{
        constants::QueueDepth,
        credits::Repost, //
    };
    use super::*;

    /// Returns the credits of a connection whose peer waits for as many answers as it may.
    fn all_owed(depth: QueueDepth, high_water: u8) -> Credits {
        let mut credits = Credits::new(depth, high_water);
        while credits.answer_owed().is_ok() {}
        credits
    }

    #[test]
    fn cookies_do_not_outlive_their_tx() {
        let mut cells = [TxCell::FREE; 2];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        let a = q.alloc(&mut cells, Op::GetReq);
        assert!(a.is_some());
        let Some(a) = a else { return };
        let cookie = a.cookie(0x1234_5678_9abc_def0);
        assert_eq!(TxId::from_cookie(cookie, 0x1234_5678_9abc_def0), Some(a));
        assert_eq!(TxQueues::find(&cells, a), Some(a.index));
        q.release(&mut cells, a.index);
        assert_eq!(TxQueues::find(&cells, a), None);
        let _ = q.alloc(&mut cells, Op::GetReq);
        let _ = q.alloc(&mut cells, Op::GetReq);
        assert_eq!(TxQueues::find(&cells, a), None);
        assert!(q.alloc(&mut cells, Op::Immediate).is_none());
    }

    #[test]
    fn the_pump_keeps_the_order_of_the_queues() {
        let mut cells = [TxCell::FREE; 8];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        let mut credits = all_owed(QueueDepth::MIN, 1);
        let add = |q: &mut TxQueues, cells: &mut [TxCell; 8], op| {
            let Some(id) = q.alloc(cells, op) else {
                return NONE;
            };
            if let Some(c) = cells.get_mut(usize::from(id.index)) {
                let _ = c.tx.enqueue();
            }
            q.push(cells, id.index);
            id.index
        };
        assert!(q.is_quiet(&credits, false) && !q.is_quiet(&credits, true));
        assert!(!q.lacks_reserve(&credits));
        let get = add(&mut q, &mut cells, Op::GetReq);
        assert!(!q.is_quiet(&credits, false));
        // Depth 1: the first request takes the only buffer, even before it is posted.
        assert!(q.lacks_reserve(&credits));
        let get2 = add(&mut q, &mut cells, Op::GetReq);
        let done = add(&mut q, &mut cells, Op::GetDone);
        assert!(q.waiting(&cells, QueueKind::Unreserved).eq([get, get2]));
        assert!(q.waiting(&cells, QueueKind::FreeOfCredit).eq([done]));
        assert_eq!(q.waiting(&cells, QueueKind::Main).next(), None);
        // No room for a chain: two slots are kept for NOOPs.
        assert_eq!(
            q.next(&mut cells, &mut credits, 2, false, false),
            NextTx::NoSlots
        );
        let first = q.next(&mut cells, &mut credits, 10, false, false);
        assert_eq!(
            first,
            NextTx::Post {
                index: done,
                op: Op::GetDone,
                carried: 0
            }
        );
        let second = q.next(&mut cells, &mut credits, 10, false, false);
        assert_eq!(
            second,
            NextTx::Post {
                index: get,
                op: Op::GetReq,
                carried: 0
            }
        );
        // Depth 1: neither a reserve nor a credit is left.
        assert_eq!(
            q.next(&mut cells, &mut credits, 10, false, false),
            NextTx::Empty
        );
        assert_eq!(q.lengths().unreserved, 1);
        assert!(q.lacks_reserve(&credits));
        assert_eq!(credits.returned(1), Ok(()));
        assert_eq!(credits.reposted(Repost::ForAnswer), Ok(()));
        // The buffer belongs to the waiting request.
        assert!(q.lacks_reserve(&credits));
        let third = q.next(&mut cells, &mut credits, 10, false, false);
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
        let mut cells = [TxCell::FREE; 4];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        let Some(depth) = QueueDepth::new(2) else {
            return;
        };
        let mut credits = Credits::new(depth, 1);
        for _ in 0..3 {
            let Some(id) = q.alloc(&mut cells, Op::Immediate) else {
                return;
            };
            if let Some(c) = cells.get_mut(usize::from(id.index)) {
                let _ = c.tx.enqueue();
            }
            q.push(&mut cells, id.index);
        }
        let none = 0;
        let next = q.next(&mut cells, &mut credits, 10, false, true);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == none));
        assert!(q.is_starved(&credits, false, true) && !q.is_starved(&credits, false, false));
        let next = q.next(&mut cells, &mut credits, 10, false, true);
        assert_eq!(next, NextTx::NoCredit);
        // With a credit to return it goes, and carries that.
        assert_eq!(credits.request_received(), Ok(()));
        assert_eq!(credits.reposted(Repost::ForPeer), Ok(()));
        let next = q.next(&mut cells, &mut credits, 10, false, true);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == 1));
        // Without one it goes, if none is expected.
        assert_eq!(credits.returned(1), Ok(()));
        let next = q.next(&mut cells, &mut credits, 10, false, false);
        assert!(matches!(next, NextTx::Post { carried, .. } if carried == none));
    }

    /// Tests that a chain without enough room goes in parts, in its turn, each of at least [`PART`] WRITEs.
    #[test]
    fn a_long_chain_goes_in_parts() {
        const WRITES: u16 = 100;
        let mut cells = [TxCell::FREE; 2];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        q.open(40);
        let Some(depth) = QueueDepth::new(2) else {
            return;
        };
        let mut credits = all_owed(depth, 1);
        for (op, slots) in [(Op::GetDone, WRITES + 1), (Op::PutNak, 1)] {
            let Some(id) = q.alloc(&mut cells, op) else {
                return;
            };
            if let Some(c) = cells.get_mut(usize::from(id.index)) {
                c.slots = slots;
                let _ = c.tx.enqueue();
            }
            q.push(&mut cells, id.index);
        }
        let mut next = |q: &mut TxQueues, cells: &mut [TxCell; 2], room: u16| {
            let free = room.saturating_add(NOOP_SLOTS);
            q.next(cells, &mut credits, free, false, false)
        };
        // Fewer slots are not enough, and nothing overtakes.
        assert_eq!(
            next(&mut q, &mut cells, PART.saturating_sub(1)),
            NextTx::NoSlots
        );
        for wrs in [40, PART, 40] {
            assert_eq!(
                next(&mut q, &mut cells, wrs),
                NextTx::Part { index: 0, wrs }
            );
            TxQueues::chunk_posted(&mut cells, 0, wrs, false);
        }
        // 4 WRITEs and the message are left.
        assert_eq!(next(&mut q, &mut cells, 4), NextTx::NoSlots);
        let whole = |n| matches!(n, NextTx::Post { index: 0, .. });
        assert!(whole(next(&mut q, &mut cells, 5)));
        assert!(matches!(
            next(&mut q, &mut cells, 5),
            NextTx::Post { index: 1, .. }
        ));
    }

    /// Tests that continuous transfers do not starve messages that need a credit, nor messages the transfers.
    #[test]
    fn messages_and_chains_take_turns() {
        const CHAIN: u16 = 10;
        let mut cells = [TxCell::FREE; 9];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        q.open(40);
        let Some(depth) = QueueDepth::new(8) else {
            return;
        };
        let mut credits = all_owed(depth, 4);
        let add = |q: &mut TxQueues, cells: &mut [TxCell; 9], op| {
            let Some(id) = q.alloc(cells, op) else {
                return NONE;
            };
            if let Some(c) = cells.get_mut(usize::from(id.index)) {
                c.slots = if op == Op::GetDone { CHAIN } else { 1 };
                let _ = c.tx.enqueue();
            }
            q.push(cells, id.index);
            id.index
        };
        let mut next = |q: &mut TxQueues, cells: &mut [TxCell; 9], room: u16| {
            let free = room.saturating_add(NOOP_SLOTS);
            match q.next(cells, &mut credits, free, false, false) {
                NextTx::Post { index, .. } => index,
                _ => NONE,
            }
        };
        let [a, b, c] = [Op::GetDone; 3].map(|op| add(&mut q, &mut cells, op));
        let [x, y, z] = [Op::Immediate; 3].map(|op| add(&mut q, &mut cells, op));
        assert_eq!(next(&mut q, &mut cells, CHAIN), a);
        // There is no room for another chain, and one message goes before it.
        assert_eq!(next(&mut q, &mut cells, 5), x);
        // Slots that become free then belong to the chain.
        assert_eq!(next(&mut q, &mut cells, 5), NONE);
        assert_eq!(next(&mut q, &mut cells, CHAIN), b);
        assert_eq!(next(&mut q, &mut cells, CHAIN), y);
        // An answer that takes no time is no reason to wait.
        let d = add(&mut q, &mut cells, Op::PutNak);
        assert_eq!(next(&mut q, &mut cells, CHAIN), c);
        assert_eq!(next(&mut q, &mut cells, CHAIN), z);
        assert_eq!(next(&mut q, &mut cells, CHAIN), d);
        // Parts of one are as good as chains.
        let long = add(&mut q, &mut cells, Op::GetDone);
        if let Some(c) = cells.get_mut(usize::from(long)) {
            c.slots = 100;
        }
        let w = add(&mut q, &mut cells, Op::Immediate);
        assert_eq!(next(&mut q, &mut cells, PART), NONE);
        assert_eq!(next(&mut q, &mut cells, 1), w);
        assert_eq!(next(&mut q, &mut cells, 1), NONE);
    }

    /// Tests fewer WRITEs than counted, because ranges were adjacent: the message does not wait for their slots.
    #[test]
    fn when_all_is_written_the_message_goes() {
        let mut cells = [TxCell::FREE; 1];
        let mut q = TxQueues::EMPTY;
        q.grow(&mut cells, 0);
        let mut credits = Credits::new(QueueDepth::MIN, 1);
        let Some(id) = q.alloc(&mut cells, Op::PutDone) else {
            return;
        };
        if let Some(c) = cells.get_mut(usize::from(id.index)) {
            c.slots = 60;
            let _ = c.tx.enqueue();
        }
        q.push(&mut cells, id.index);
        let free = |slots: u16| slots.saturating_add(NOOP_SLOTS);
        let part = q.next(&mut cells, &mut credits, free(30), false, false);
        assert_eq!(part, NextTx::Part { index: 0, wrs: 30 });
        TxQueues::chunk_posted(&mut cells, 0, 20, true);
        let rest = q.next(&mut cells, &mut credits, free(1), false, false);
        assert!(matches!(rest, NextTx::Post { index: 0, .. }));
    }

    /// Tests that any chain goes in a queue that is shorter than [`PART`].
    #[test]
    fn a_short_queue_takes_any_chain() {
        for slots in 1..=PART {
            let mut cells = [TxCell::FREE; 1];
            let mut q = TxQueues::EMPTY;
            q.grow(&mut cells, 0);
            q.open(slots);
            let mut credits = Credits::new(QueueDepth::MIN, 1);
            let Some(id) = q.alloc(&mut cells, Op::GetDone) else {
                return;
            };
            if let Some(c) = cells.get_mut(usize::from(id.index)) {
                c.slots = 257;
                let _ = c.tx.enqueue();
            }
            q.push(&mut cells, id.index);
            let free = slots.saturating_add(NOOP_SLOTS);
            let next = q.next(&mut cells, &mut credits, free, false, false);
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
    fn for_each_account(mut f: impl FnMut(TxQueues, [TxCell; 6], Credits)) {
        let Some(depth) = QueueDepth::new(3) else {
            return;
        };
        let ops = [Op::Immediate, Op::GetReq, Op::GetDone].into_iter();
        for queued in 0..64usize {
            for account in 0..128u32 {
                let mut cells = [TxCell::FREE; 6];
                let mut q = TxQueues::EMPTY;
                q.grow(&mut cells, 0);
                let mut credits = all_owed(depth, 2);
                for shift in [0, 2, 4] {
                    let Some(op) = ops.clone().nth((queued >> shift) & 3) else {
                        continue;
                    };
                    let Some(id) = q.alloc(&mut cells, op) else {
                        return;
                    };
                    if let Some(c) = cells.get_mut(usize::from(id.index)) {
                        let _ = c.tx.enqueue();
                    }
                    q.push(&mut cells, id.index);
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
                f(q, cells, credits);
            }
        }
    }

    /// Compares the result and the effect of [`TxQueues::try_pay`] with [`TxQueues::push`] and [`TxQueues::next`], over
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
        for_each_account(|q, cells, credits| {
            for (op, slots, free, patient) in OPS
                .into_iter()
                .flat_map(|op| [(op, 1), (op, 3)])
                .flat_map(|(op, slots)| [2, 3, 4, 5, 10].map(|free| (op, slots, free)))
                .flat_map(|(op, slots, free)| [false, true].map(|p| (op, slots, free, p)))
            {
                let (mut q, mut cells) = (q, cells);
                let Some(id) = q.alloc(&mut cells, op) else {
                    return;
                };
                if let Some(c) = cells.get_mut(usize::from(id.index)) {
                    c.slots = slots;
                    let _ = c.tx.enqueue();
                }
                let (alone, mut paid) = (q.is_empty(), credits);
                let carried = match alone {
                    true => TxQueues::try_pay((op, slots), &mut paid, free, patient),
                    false => None,
                };
                let before = credits;
                let mut credits = credits;
                q.push(&mut cells, id.index);
                let next = q.next(&mut cells, &mut credits, free, false, patient);
                let index = id.index;
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
        for_each_account(|q, _, credits| {
            if q.is_idle(&credits) {
                idle = idle.saturating_add(1);
                assert!(q.is_quiet(&credits, credits.starves_peer()));
            }
        });
        assert!(idle > 10);
    }

    /// Tests that [`TxQueues::next`] returns no credit, and changes nothing, while [`TxQueues::is_starved`], over all
    /// small accounts.
    #[test]
    fn who_is_starved_misses_nothing() {
        let mut starved = 0u32;
        for_each_account(|q, cells, credits| {
            for (keepalive, patient) in [(false, false), (false, true), (true, false), (true, true)]
            {
                if !q.is_starved(&credits, keepalive, patient) {
                    continue;
                }
                starved = starved.saturating_add(1);
                let (mut q, mut cells, mut credits) = (q, cells, credits);
                let before = (q.lengths(), credits);
                let next = q.next(&mut cells, &mut credits, 10, keepalive, patient);
                assert_eq!(next, NextTx::NoCredit);
                assert!((q.lengths(), credits) == before);
            }
        });
        assert!(starved > 100);
    }
}
