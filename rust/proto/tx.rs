// SPDX-License-Identifier: GPL-2.0

//! The life of one transmit (tx). The queues it waits in: [`super::tx_queues`].
//!
//! A tx is in exactly one place. It ends exactly once, with the first cause, and not before (a)
//! every work request of it has completed, (b) the answer it asked for has come or will never come,
//! (c) no remote key covers its memory any more, and (d) no device reads it: one of the work requests that do was
//! flushed, which a provider may say before its device knows.
//!
//! ```text
//!            enqueue          posting                  last WR
//!  Free -> Mapped -----> Queued -----> Posted --------------------> Done
//!                          ^             | \                         ^
//!                          |   PUT_ACK,  |  \ last WR, answer wanted |
//!                          | final answer|   v                       |
//!                          | with a key  |  Waiting --- answer ------+
//!                          +-------------+---- |                     |
//!                           cancelled, key live|or flushed, and its |
//!                           memory may be read v                     |
//!                                             Held ---- KeyDead -----+
//! ```
//!
//! A final answer to a tx whose key is live sends it through the queue once more, as
//! [`Op::Invalidate`]; a cancelled one keeps its memory in `Held` until the memory region is
//! destroyed after the drain, because a queue pair in error does not disarm a key of its protection
//! domain. So does one whose WRITEs were flushed.
//!
//! What the peer's final answer says is the result, whatever becomes of the connection afterwards: the peer
//! was told that its answer arrived. That holds for an answer that had arrived when the connection ended, too
//! ([`Tx::answered_late`]). And what waits for no answer went well if all its work requests do, though they were under
//! way when the connection ended: the peer has it.
//!
//! Context: any; the caller holds the connection's lock.

use super::{
    cause::Cause,
    credits::Cost,
    wire::MsgType, //
};

/// What is posted next for a tx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND of an IMMEDIATE.
    Immediate,
    /// SEND of a PUT_REQ; a PUT_ACK or PUT_NAK is to come.
    PutReq,
    /// REG_MR and SEND of a GET_REQ; a GET_DONE is to come.
    GetReq,
    /// REG_MR and SEND of a PUT_ACK; a PUT_DONE is to come.
    PutAck,
    /// SEND of a PUT_NAK.
    PutNak,
    /// WRITEs and SEND of a PUT_DONE.
    PutDone,
    /// WRITEs and SEND of a GET_DONE.
    GetDone,
    /// LOCAL_INV of the sink's key.
    Invalidate,
}

impl Op {
    /// What it costs; `None` for what is not a message.
    pub fn cost(self) -> Option<Cost> {
        match self {
            Self::Immediate => Some(Cost::Credit),
            Self::PutReq | Self::GetReq => Some(Cost::CreditAndReserve),
            Self::PutAck | Self::PutNak | Self::GetDone => Some(Cost::Answer),
            Self::PutDone => Some(Cost::Free),
            Self::Invalidate => None,
        }
    }

    /// The message that it posts; `None` if it is not a message.
    pub const fn message(self) -> Option<MsgType> {
        Some(match self {
            Self::Immediate => MsgType::Immediate,
            Self::PutReq => MsgType::PutReq,
            Self::GetReq => MsgType::GetReq,
            Self::PutAck => MsgType::PutAck,
            Self::PutNak => MsgType::PutNak,
            Self::PutDone => MsgType::PutDone,
            Self::GetDone => MsgType::GetDone,
            Self::Invalidate => return None,
        })
    }

    /// Whether its memory is a sink that a memory region covers.
    pub fn needs_key(self) -> bool {
        matches!(self, Self::GetReq | Self::PutAck)
    }

    /// Whether its work requests read memory that is LNet's. What a message carries is copied.
    fn reads_pages(self) -> bool {
        matches!(self, Self::PutDone | Self::GetDone)
    }

    fn wants_answer(self) -> bool {
        matches!(self, Self::PutReq | Self::GetReq | Self::PutAck)
    }

    /// Whether the peer has all of it when its work requests have ended well.
    fn ends_with_send(self) -> bool {
        match self {
            Self::Immediate | Self::PutNak | Self::PutDone | Self::GetDone => true,
            Self::PutReq | Self::GetReq | Self::PutAck | Self::Invalidate => false,
        }
    }
}

/// An answer of the peer to a tx, already matched by its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// PUT_ACK: go on with the WRITEs and PUT_DONE.
    PutAck,
    /// PUT_NAK: 0 means that nothing was wanted, which is success.
    PutNak(i32),
    /// PUT_DONE with its status, already judged.
    PutDone(Result<(), Cause>),
    /// GET_DONE with its status, already judged.
    GetDone(Result<(), Cause>),
}

/// What a work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wr {
    /// SEND, RDMA WRITE or REG_MR.
    Any,
    /// LOCAL_INV.
    Invalidate,
}

/// Where a tx is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// Not in use.
    Free,
    /// Built, owned by the one who builds it.
    Mapped,
    /// In a queue; `wrs` of an earlier step, or WRITEs of this one, may still be uncompleted.
    Queued {
        /// Uncompleted work requests.
        wrs: u16,
    },
    /// At least one work request is uncompleted.
    Posted {
        /// Uncompleted work requests.
        wrs: u16,
        /// An answer is still to come.
        answer: bool,
    },
    /// All work requests completed, the answer is still to come.
    Waiting,
    /// Only the live key keeps it, or that the device may not know yet that the queue pair is in the error state.
    Held,
    /// Over; the LNet half has it.
    Done,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxAction {
    /// Nothing.
    Nothing,
    /// Put it into the queue of its (new) [`Op`].
    Requeue,
    /// Hand it to the LNet half, once.
    Finish,
    /// The peer had no right to send this: close the connection.
    Violation,
}

/// What keeps the memory of a tx from being given back when all else is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    /// Nothing.
    None,
    /// A memory region covers it. It does from the time the tx is built, because the mapping alone keeps the memory;
    /// the peer may use the key once the registration is posted.
    Live,
    /// A work request that reads it did not end well: the device may do so until the queue pair is drained.
    Read,
}

/// The state of one tx.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    place: TxState,
    op: Op,
    key: KeyState,
    cause: Option<Cause>,
    /// The connection ended for `cause` while all was posted, and it may end well yet.
    cut: bool,
    posted: bool,
    /// The final answer has come: `cause` is what it said.
    told: bool,
}

impl Tx {
    /// A tx nobody uses.
    pub const FREE: Self = Self {
        place: TxState::Free,
        op: Op::Immediate,
        key: KeyState::None,
        cause: None,
        cut: false,
        posted: false,
        told: false,
    };

    /// A tx just built for `op`.
    pub fn mapped(op: Op) -> Self {
        Self {
            place: TxState::Mapped,
            op,
            key: if op.needs_key() {
                KeyState::Live
            } else {
                KeyState::None
            },
            ..Self::FREE
        }
    }

    /// Where it is.
    pub fn place(&self) -> TxState {
        self.place
    }

    /// What is posted next, or was last.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Why it ended; `None` is success.
    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether the connection ended for its cause while all of it was posted: if all that ends well, so does it, and
    /// has none.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Whether any work request of it reached the device.
    pub fn was_posted(&self) -> bool {
        self.posted
    }

    /// Whether the peer's final answer has come.
    pub fn was_told(&self) -> bool {
        self.told
    }

    /// Whether a remote key covers its memory.
    pub fn key_live(&self) -> bool {
        self.key == KeyState::Live
    }

    /// The cause if it timed out now, by where it waits (protocol section 7).
    pub fn timeout_cause(&self) -> Cause {
        match self.place {
            TxState::Posted { .. } => Cause::DeadlineSending,
            TxState::Waiting => Cause::DeadlineAnswer,
            _ => Cause::DeadlineQueued,
        }
    }

    /// It enters a queue. `TxAction::Nothing` if it is not in a state to.
    pub fn enqueue(&mut self) -> TxAction {
        if self.place == TxState::Mapped {
            self.place = TxState::Queued { wrs: 0 };
            return TxAction::Requeue;
        }
        TxAction::Nothing
    }

    /// Its work requests are being posted, [`Tx::pushed`] follows for each: those of the [`Op`] that is returned. If
    /// not all of them can be, [`Tx::latch`] follows before the connection ends.
    #[inline]
    pub fn posting(&mut self) -> Op {
        if let TxState::Queued { wrs } = self.place {
            let answer = self.op.wants_answer() && self.cause.is_none();
            self.place = TxState::Posted { wrs, answer };
        }
        self.op
    }

    /// `n` work requests of it will be given to the device; WRITEs perhaps while it is still queued. For each that is
    /// refused [`Tx::completed`] is called with an error.
    #[inline]
    pub fn pushed(&mut self, n: u16) {
        match &mut self.place {
            TxState::Posted { wrs, .. } | TxState::Queued { wrs } => {
                *wrs = wrs.saturating_add(n);
                self.posted = true;
            }
            TxState::Free | TxState::Mapped | TxState::Waiting | TxState::Held | TxState::Done => {}
        }
    }

    /// One work request of it completed.
    pub fn completed(&mut self, wr: Wr, result: Result<(), Cause>) -> TxAction {
        match result {
            Err(cause) => {
                self.latch(cause);
                self.cut = false;
                if self.key == KeyState::None && self.op.reads_pages() {
                    self.key = KeyState::Read;
                }
            }
            Ok(()) if wr == Wr::Invalidate => self.key = KeyState::None,
            Ok(()) => {}
        }
        match self.place {
            TxState::Queued { wrs } => {
                self.place = TxState::Queued {
                    wrs: wrs.saturating_sub(1),
                };
                TxAction::Nothing
            }
            TxState::Posted { wrs, answer } => {
                let wrs = wrs.saturating_sub(1);
                let answer = answer && result.is_ok();
                self.place = TxState::Posted { wrs, answer };
                self.settle()
            }
            TxState::Free | TxState::Mapped | TxState::Waiting | TxState::Held | TxState::Done => {
                TxAction::Nothing
            }
        }
    }

    /// The peer answered.
    #[inline(always)]
    pub fn answered(&mut self, answer: Answer) -> TxAction {
        let wrs = match self.place {
            TxState::Posted { wrs, answer: true } => wrs,
            TxState::Waiting => 0,
            _ => return TxAction::Violation,
        };
        let result = match (self.op, answer) {
            (Op::PutReq, Answer::PutAck) => {
                self.op = Op::PutDone;
                self.place = TxState::Queued { wrs };
                return TxAction::Requeue;
            }
            (Op::PutReq, Answer::PutNak(0)) => Ok(()),
            (Op::PutReq, Answer::PutNak(status)) => Err(Cause::Told(status)),
            (Op::PutAck, Answer::PutDone(result)) => result,
            (Op::GetReq, Answer::GetDone(result)) => result,
            _ => return TxAction::Violation,
        };
        if let Err(cause) = result {
            self.latch(cause);
        }
        self.told = true;
        if self.key == KeyState::Live {
            self.op = Op::Invalidate;
            self.place = TxState::Queued { wrs };
            return TxAction::Requeue;
        }
        self.place = TxState::Posted { wrs, answer: false };
        self.settle()
    }

    /// Whether it is one of `op`, and the peer's answer may come now: [`Tx::answered`] takes none where that is not so.
    #[inline]
    pub fn awaits(&self, op: Op) -> bool {
        let awaits = matches!(
            self.place,
            TxState::Posted { answer: true, .. } | TxState::Waiting
        );
        awaits && self.op == op
    }

    /// The peer's answer, which had arrived when the connection ended. The data of a transfer is there if it says so,
    /// and nobody else will ever be told; of others the peer knows that they failed.
    pub fn answered_late(&mut self, answer: Answer) {
        let awaited = self.awaits_late();
        match (self.op, answer) {
            (Op::PutAck, Answer::PutDone(result)) | (Op::GetReq, Answer::GetDone(result))
                if awaited =>
            {
                self.told = true;
                self.cause = result.err();
            }
            _ => {}
        }
    }

    /// Whether it ended with the connection before the answer came that says whether data is there.
    pub fn awaits_late(&self) -> bool {
        let over = matches!(
            self.place,
            TxState::Posted { answer: false, .. } | TxState::Held
        );
        over && !self.told && self.op.needs_key()
    }

    /// The connection is over. The caller has emptied its queues, so a queued tx is in none.
    pub fn cancel(&mut self, cause: Cause) -> TxAction {
        let (wrs, posted) = match self.place {
            TxState::Free | TxState::Held | TxState::Done => return TxAction::Nothing,
            TxState::Mapped | TxState::Waiting => (0, false),
            TxState::Queued { wrs } => (wrs, false),
            TxState::Posted { wrs, .. } => (wrs, wrs > 0),
        };
        if self.cause.is_none() {
            self.cut = posted && self.op.ends_with_send();
        }
        self.latch(cause);
        self.place = TxState::Posted { wrs, answer: false };
        self.settle()
    }

    /// The queue pair is drained, and the memory region was destroyed: no device uses its memory, and no key covers it.
    pub fn key_dead(&mut self) -> TxAction {
        self.key = KeyState::None;
        match self.place {
            TxState::Held => {
                self.place = TxState::Done;
                TxAction::Finish
            }
            _ => TxAction::Nothing,
        }
    }

    /// Latches a cause without ending anything: the first one stays, and the peer's answer does.
    pub fn latch(&mut self, cause: Cause) {
        if self.cause.is_none() && !self.told {
            self.cause = Some(cause);
        }
    }

    fn settle(&mut self) -> TxAction {
        let TxState::Posted { wrs: 0, answer } = self.place else {
            return TxAction::Nothing;
        };
        if answer {
            self.place = TxState::Waiting;
            return TxAction::Nothing;
        }
        if self.key != KeyState::None {
            self.place = TxState::Held;
            return TxAction::Nothing;
        }
        if self.cut {
            self.cause = None;
        }
        self.place = TxState::Done;
        TxAction::Finish
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_tx))]
mod tests {
    use super::*;

    const FLUSHED: Result<(), Cause> = Err(Cause::Flushed);

    fn queued(op: Op) -> Tx {
        let mut tx = Tx::mapped(op);
        let _ = tx.enqueue();
        tx
    }

    fn post(tx: &mut Tx, n: u16) {
        tx.posting();
        tx.pushed(n);
    }

    fn posted(op: Op, n: u16) -> Tx {
        let mut tx = queued(op);
        post(&mut tx, n);
        tx
    }

    /// Whoever asks [`Tx::awaits`] first changes nothing of a transmit that takes no answer, and misses none.
    #[test]
    fn who_awaits_an_answer_takes_it() {
        const ANSWERS: [(Op, Answer); 4] = [
            (Op::PutReq, Answer::PutAck),
            (Op::PutReq, Answer::PutNak(0)),
            (Op::PutAck, Answer::PutDone(Ok(()))),
            (Op::GetReq, Answer::GetDone(Ok(()))),
        ];
        let sent = TxState::Posted {
            wrs: 1,
            answer: true,
        };
        let answered = TxState::Posted {
            wrs: 1,
            answer: false,
        };
        let places = [
            TxState::Free,
            TxState::Mapped,
            TxState::Queued { wrs: 1 },
            sent,
            answered,
            TxState::Waiting,
            TxState::Held,
            TxState::Done,
        ];
        for (to, answer) in ANSWERS {
            for op in [
                Op::Immediate,
                Op::PutReq,
                Op::GetReq,
                Op::PutAck,
                Op::PutNak,
                Op::PutDone,
                Op::GetDone,
                Op::Invalidate,
            ] {
                for place in places {
                    let mut tx = Tx {
                        place,
                        ..posted(op, 1)
                    };
                    let awaits = tx.awaits(to);
                    assert_eq!(awaits, tx.answered(answer) != TxAction::Violation);
                }
            }
        }
    }

    #[test]
    fn an_immediate_ends_with_its_send() {
        let mut tx = posted(Op::Immediate, 1);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), None);
        // Nothing ends twice.
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        assert_eq!(tx.cancel(Cause::Shutdown), TxAction::Nothing);
        assert_eq!(tx.key_dead(), TxAction::Nothing);
    }

    #[test]
    fn a_put_goes_on_with_the_ack_even_before_its_send_completed() {
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.answered(Answer::PutAck), TxAction::Requeue);
        assert_eq!(tx.op(), Op::PutDone);
        assert_eq!(tx.place(), TxState::Queued { wrs: 1 });
        post(&mut tx, 3);
        for _ in 0..3 {
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        }
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), None);
    }

    #[test]
    fn writes_of_one_that_is_still_queued_are_waited_for() {
        let parted = || {
            let mut tx = queued(Op::GetDone);
            tx.pushed(2);
            assert_eq!(tx.place(), TxState::Queued { wrs: 2 });
            assert!(tx.was_posted());
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            tx
        };
        // The rest is posted.
        let mut tx = parted();
        post(&mut tx, 2);
        for _ in 0..2 {
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        }
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), None);
        // The connection ends first: its memory is read until the last WRITE has ended.
        let mut tx = parted();
        assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::PeerClosed));
        // A WRITE fails: the rest does not go, for the connection ends.
        let mut tx = parted();
        assert_eq!(
            tx.completed(Wr::Any, Err(Cause::RemoteFault)),
            TxAction::Nothing
        );
        assert_eq!(tx.cancel(Cause::RemoteFault), TxAction::Nothing);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::RemoteFault));
    }

    /// Some providers say that work requests were flushed before their device knows of it.
    #[test]
    fn what_was_flushed_is_read_until_the_queue_pair_is_drained() {
        for op in [Op::PutDone, Op::GetDone] {
            let mut tx = posted(op, 2);
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
            // A device that goes on may say that the last one went well.
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.place(), TxState::Held);
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.key_dead(), TxAction::Finish);
            assert_eq!(tx.cause(), Some(Cause::PeerClosed));
            assert_eq!(tx.key_dead(), TxAction::Nothing);
        }
        // What a message carries lies in its own buffer.
        for op in [Op::Immediate, Op::PutNak] {
            let mut tx = posted(op, 1);
            assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Finish);
        }
    }

    /// The end of a connection says nothing of what the peer has: its device acknowledged that.
    #[test]
    fn what_was_all_acknowledged_went_well() {
        for op in [Op::Immediate, Op::PutNak, Op::PutDone, Op::GetDone] {
            let mut tx = posted(op, 2);
            assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            // Ends may be told of twice.
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
            assert_eq!(tx.cause(), None);
            // Whatever comes first of those that did not: it failed, for what ended the connection.
            for (first, second) in [(Ok(()), FLUSHED), (FLUSHED, Ok(()))] {
                let mut tx = posted(op, 2);
                assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
                let _ = tx.completed(Wr::Any, first);
                let _ = tx.completed(Wr::Any, second);
                let _ = tx.key_dead();
                assert_eq!(tx.place(), TxState::Done);
                assert_eq!(tx.cause(), Some(Cause::AdminClose));
            }
            // It had failed before.
            let mut tx = posted(op, 1);
            tx.latch(Cause::Local(-22));
            assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
            assert_eq!(tx.cause(), Some(Cause::Local(-22)));
        }
        // What an answer is to come to has not ended with that.
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::AdminClose));
        // Nor what was not all posted.
        let mut tx = queued(Op::GetDone);
        tx.pushed(1);
        assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::AdminClose));
    }

    #[test]
    fn a_nak_of_zero_is_success() {
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        assert_eq!(tx.place(), TxState::Waiting);
        assert_eq!(tx.answered(Answer::PutNak(0)), TxAction::Finish);
        assert_eq!(tx.cause(), None);
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.answered(Answer::PutNak(-12)), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::Told(-12)));
    }

    #[test]
    fn a_key_is_dead_before_the_end() {
        for op in [Op::GetReq, Op::PutAck] {
            let done = if op == Op::GetReq {
                Answer::GetDone(Ok(()))
            } else {
                Answer::PutDone(Ok(()))
            };
            let mut tx = posted(op, 2);
            assert!(tx.key_live());
            assert_eq!(tx.answered(done), TxAction::Requeue);
            assert_eq!(tx.op(), Op::Invalidate);
            post(&mut tx, 1);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Invalidate, Ok(())), TxAction::Finish);
            assert!(!tx.key_live());
            assert_eq!(tx.cause(), None);
        }
    }

    #[test]
    fn a_cancelled_tx_with_a_live_key_is_held() {
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.place(), TxState::Held);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::PeerClosed));
        // A flushed LOCAL_INV proves nothing either.
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.answered(Answer::GetDone(Ok(()))), TxAction::Requeue);
        post(&mut tx, 1);
        for _ in 0..2 {
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        }
        assert_eq!(tx.completed(Wr::Invalidate, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.place(), TxState::Held);
        // Not even that the transfer failed: the peer was told that its answer arrived.
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), None);
    }

    #[test]
    fn the_answer_is_the_result_whatever_follows() {
        // Its SENDs are flushed after the answer has come.
        let mut tx = posted(Op::PutAck, 2);
        assert_eq!(tx.answered(Answer::PutDone(Ok(()))), TxAction::Requeue);
        assert_eq!(tx.cancel(Cause::TransportRetry), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), None);
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.answered(Answer::PutNak(0)), TxAction::Nothing);
        assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Finish);
        assert_eq!(tx.cause(), None);
    }

    #[test]
    fn an_answer_that_had_arrived_when_the_connection_ended_counts() {
        for (op, answer) in [
            (Op::GetReq, Answer::GetDone(Ok(()))),
            (Op::PutAck, Answer::PutDone(Ok(()))),
        ] {
            let mut tx = posted(op, 1);
            assert_eq!(tx.cancel(Cause::LocalFault), TxAction::Nothing);
            tx.answered_late(answer);
            assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
            // The key is alive yet.
            assert_eq!(tx.place(), TxState::Held);
            tx.answered_late(Answer::PutDone(Err(Cause::Protocol)));
            tx.answered_late(Answer::GetDone(Err(Cause::Protocol)));
            assert_eq!(tx.key_dead(), TxAction::Finish);
            assert_eq!(tx.cause(), None);
            tx.answered_late(Answer::PutDone(Err(Cause::Protocol)));
            assert_eq!(tx.cause(), None);
        }
        // What the peer says of itself counts, too.
        let mut tx = posted(Op::PutAck, 1);
        assert_eq!(tx.cancel(Cause::LocalFault), TxAction::Nothing);
        tx.answered_late(Answer::PutDone(Err(Cause::Told(-5))));
        assert_eq!(tx.cause(), Some(Cause::Told(-5)));
        // A PUT_ACK is an invitation that nobody can follow any more, and no answer is one to something else.
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.cancel(Cause::LocalFault), TxAction::Nothing);
        tx.answered_late(Answer::PutAck);
        tx.answered_late(Answer::PutNak(0));
        tx.answered_late(Answer::PutDone(Ok(())));
        assert_eq!(tx.cause(), Some(Cause::LocalFault));
        // Nor is it late while the connection is up.
        let mut tx = posted(Op::PutAck, 1);
        tx.answered_late(Answer::PutDone(Err(Cause::Protocol)));
        assert_eq!(tx.cause(), None);
    }

    #[test]
    fn wrong_answers_are_violations() {
        let mut tx = posted(Op::Immediate, 1);
        assert_eq!(tx.answered(Answer::PutAck), TxAction::Violation);
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.answered(Answer::PutNak(0)), TxAction::Violation);
        let mut tx = queued(Op::PutReq);
        assert_eq!(tx.answered(Answer::PutAck), TxAction::Violation);
    }
}
