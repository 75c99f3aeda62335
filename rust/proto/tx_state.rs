// SPDX-License-Identifier: GPL-2.0

//! The life of one transmit (tx). [`super::tx_table`] has the queues that it waits in.
//!
//! A tx is in exactly one place. It ends exactly once, with the first cause, and not before (a) every work request of
//! it has completed, (b) the answer it asked for has arrived or can no longer arrive, (c) no remote key covers its
//! memory, and (d) no device reads its memory. A device may still read it if a work request that reads it was flushed,
//! because a provider may report the flush before its device knows.
//!
//! ```text
//!                posting      last WR, and the answer if one is wanted
//!  Free -> Queued -----> Posted --------------------> Done
//!            ^             | |                          ^
//!            |   PUT_ACK,  | |  cancelled, key live     |
//!            | final answer| |  or flushed, and its     |
//!            | with a key  | v  memory may be read      |
//!            +-------------+ Held ------ KeyDead -------+
//! ```
//!
//! A final answer to a tx whose key is live sends the tx through the queue once more, as [`Op::Invalidate`]. `Held`
//! lasts until the memory region is destroyed after the drain, because a queue pair in error does not disarm a key of
//! its protection domain.
//!
//! The peer's final answer is the result, whatever happens to the connection afterwards, because the peer knows that
//! its answer arrived. A tx that waits for no answer succeeded if all its work requests succeed, even if they were in
//! flight when the connection ended: the peer has the message.
//!
//! Context: any; the caller holds the connection's lock.

use super::{
    cause::Cause,
    credits::Cost,
    require,
    wire::MsgType, //
};

/// Next step of a tx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Immediate,
    /// SEND of a PUT_REQ, which a PUT_ACK or PUT_NAK answers.
    PutReq,
    /// REG_MR and SEND of a GET_REQ, which a GET_DONE answers.
    GetReq,
    /// REG_MR and SEND of a PUT_ACK, which a PUT_DONE answers.
    PutAck,
    PutNak,
    /// WRITEs and SEND of a PUT_DONE.
    PutDone,
    /// WRITEs and SEND of a GET_DONE.
    GetDone,
    /// LOCAL_INV of the sink's key.
    Invalidate,
}

impl Op {
    /// Returns its cost; `None` for a step that is not a message.
    pub fn cost(self) -> Option<Cost> {
        match self {
            Self::Immediate => Some(Cost::Credit),
            Self::PutReq | Self::GetReq => Some(Cost::CreditAndReserve),
            Self::PutAck | Self::PutNak | Self::GetDone => Some(Cost::Answer),
            Self::PutDone => Some(Cost::Free),
            Self::Invalidate => None,
        }
    }

    /// Returns the message that it posts; `None` if it is not a message.
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

    /// Returns whether its memory is a sink that a memory region covers.
    pub fn needs_key(self) -> bool {
        matches!(self, Self::GetReq | Self::PutAck)
    }

    /// Returns whether its work requests read memory of LNet. The data of a message is copied.
    fn reads_pages(self) -> bool {
        matches!(self, Self::PutDone | Self::GetDone)
    }

    /// Returns whether the peer answers it.
    pub fn wants_answer(self) -> bool {
        matches!(self, Self::PutReq | Self::GetReq | Self::PutAck)
    }

    /// Returns whether the peer has all of it when its work requests have succeeded.
    pub fn ends_with_send(self) -> bool {
        !self.wants_answer() && self != Self::Invalidate
    }
}

/// Answer of the peer to a tx, already matched by its cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// PUT_ACK: go on with the WRITEs and PUT_DONE.
    PutAck,
    /// PUT_NAK: 0 means that LNet there wanted no data, which is success.
    PutNak(i32),
    /// PUT_DONE with its status, already validated.
    PutDone(Result<(), Cause>),
    /// GET_DONE with its status, already validated.
    GetDone(Result<(), Cause>),
}

/// Kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wr {
    /// SEND, RDMA WRITE or REG_MR.
    Any,
    Invalidate,
}

/// Place of a tx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    Free,
    /// In a queue, or new; work requests of an earlier step, or WRITEs of this one, may still be uncompleted.
    Queued,
    /// A work request is uncompleted, or an answer is still to come.
    Posted,
    /// Held only by the live key, or because the device may not know yet that the queue pair is in the error state.
    Held,
    /// Finished; the LNet half has it.
    Done,
}

/// Next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TxAction {
    Nothing,
    /// Put it into the queue of its (new) [`Op`].
    Requeue,
    /// Hand it to the LNet half, once.
    Finish,
}

/// The state of one tx.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    place: TxState,
    /// Uncompleted work requests.
    wrs: u16,
    /// It is posted, and the peer's answer is still to come.
    answer: bool,
    op: Op,
    /// A memory region covers its memory, from the time the tx is built, because the mapping alone keeps the memory.
    /// The peer may use the key once the registration is posted.
    key_live: bool,
    /// A work request that reads its memory failed: the device may read it until the queue pair is drained.
    may_be_read: bool,
    cause: Option<Cause>,
    /// The connection ended for `cause` while all work requests were posted. If they succeed, the tx succeeds.
    cut: bool,
    posted: bool,
    /// The final answer has arrived: `cause` is its result.
    told: bool,
}

impl Tx {
    pub const FREE: Self = Self {
        place: TxState::Free,
        wrs: 0,
        answer: false,
        op: Op::Immediate,
        key_live: false,
        may_be_read: false,
        cause: None,
        cut: false,
        posted: false,
        told: false,
    };

    /// Creates a tx for `op`, which enters a queue or is posted next.
    pub fn new(op: Op) -> Self {
        Self {
            place: TxState::Queued,
            op,
            key_live: op.needs_key(),
            ..Self::FREE
        }
    }

    /// Returns its place.
    pub fn place(&self) -> TxState {
        self.place
    }

    /// Returns the number of its uncompleted work requests.
    pub fn wrs(&self) -> u16 {
        self.wrs
    }

    /// Returns whether the peer's answer is still to come.
    pub fn awaits_answer(&self) -> bool {
        self.answer
    }

    /// Returns whether a remote key covers its memory.
    pub fn is_key_live(&self) -> bool {
        self.key_live
    }

    /// Returns whether it may still succeed, although the connection ended.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns whether the peer's final answer has arrived.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Returns its next or last step.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns why it ended; `None` is success.
    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Returns whether any work request of it reached the device.
    pub fn was_posted(&self) -> bool {
        self.posted
    }

    /// Returns the cause if it timed out now, by the place where it waits (protocol section 7).
    pub fn timeout_cause(&self) -> Cause {
        match self.place {
            TxState::Posted if self.wrs > 0 => Cause::DeadlineSending,
            TxState::Posted => Cause::DeadlineAnswer,
            _ => Cause::DeadlineQueued,
        }
    }

    /// Begins to post its work requests, and returns their [`Op`]. [`Tx::pushed`] follows for each. If not all of them
    /// can be posted, [`Tx::latch`] follows before the connection ends.
    #[inline]
    pub fn posting(&mut self) -> Op {
        if self.place == TxState::Queued {
            self.place = TxState::Posted;
            self.answer = self.op.wants_answer() && self.cause.is_none();
        }
        self.op
    }

    /// Notes that the device got nothing of it: its work requests were refused together with an earlier one of another
    /// tx. [`Tx::completed`] follows for each. A transmit with WRITEs is not resent, and may have had some of them
    /// posted.
    pub fn take_back(&mut self) {
        self.posted &= !matches!(self.op, Op::Immediate | Op::PutReq);
    }

    /// Counts `n` work requests that will be given to the device; WRITEs perhaps while it is still queued. For each
    /// work request that is refused, [`Tx::completed`] is called with an error.
    #[inline]
    pub fn pushed(&mut self, n: u16) {
        self.wrs = self.wrs.saturating_add(n);
        self.posted = true;
    }

    /// Handles the success of one of its work requests in front of another one. Returns false if that was its only
    /// uncompleted work request: [`Tx::completed`] handles that.
    #[inline(always)]
    #[must_use]
    pub fn completed_in_front(&mut self) -> bool {
        let is_in_front = self.wrs > 1;
        self.wrs = self.wrs.saturating_sub(is_in_front.into());
        is_in_front
    }

    /// Handles the completion of one of its work requests. The send ring reports a completion without a work request,
    /// so the count of work requests is not 0 here.
    pub fn completed(&mut self, wr: Wr, result: Result<(), Cause>) -> TxAction {
        match result {
            Err(cause) => {
                self.latch(cause);
                self.cut = false;
                self.may_be_read |= self.op.reads_pages();
            }
            Ok(()) if wr == Wr::Invalidate => self.key_live = false,
            Ok(()) => {}
        }
        self.wrs = self.wrs.saturating_sub(1);
        if self.place != TxState::Posted {
            return TxAction::Nothing;
        }
        self.answer &= result.is_ok();
        self.settle()
    }

    /// Handles the peer's answer.
    ///
    /// # Errors
    ///
    /// The peer had no right to answer.
    #[inline(always)]
    pub fn answered(&mut self, answer: Answer) -> Result<TxAction, Cause> {
        require(self.answer, Cause::Protocol)?;
        let result = match (self.op, answer) {
            (Op::PutReq, Answer::PutAck) => return Ok(self.requeue(Op::PutDone)),
            (Op::PutReq, Answer::PutNak(0)) => Ok(()),
            (Op::PutReq, Answer::PutNak(status)) => Err(Cause::Told(status)),
            (Op::PutAck, Answer::PutDone(result)) => result,
            (Op::GetReq, Answer::GetDone(result)) => result,
            _ => return Err(Cause::Protocol),
        };
        if let Err(cause) = result {
            self.latch(cause);
        }
        self.told = true;
        if self.key_live {
            return Ok(self.requeue(Op::Invalidate));
        }
        self.answer = false;
        Ok(self.settle())
    }

    #[inline(always)]
    fn requeue(&mut self, op: Op) -> TxAction {
        self.op = op;
        self.place = TxState::Queued;
        self.answer = false;
        TxAction::Requeue
    }

    /// Returns whether its step is `op` and the peer's answer may arrive now. Otherwise [`Tx::answered`] takes no
    /// answer.
    #[inline]
    pub fn awaits(&self, op: Op) -> bool {
        self.answer && self.op == op
    }

    /// Handles an answer that had arrived when the connection ended. If it says so, the data of a transfer is there,
    /// and no other message will ever report that. The peer knows that its other transfers failed.
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

    /// Returns whether it ended with the connection before the answer that says whether the data is there.
    pub fn awaits_late(&self) -> bool {
        let over = matches!(self.place, TxState::Posted | TxState::Held) && !self.answer;
        over && !self.told && self.op.needs_key()
    }

    /// Cancels it because the connection ended. The caller has emptied the queues, so a queued tx is in no queue.
    pub fn cancel(&mut self, cause: Cause) -> TxAction {
        if matches!(self.place, TxState::Free | TxState::Held | TxState::Done) {
            return TxAction::Nothing;
        }
        if self.cause.is_none() {
            let posted = self.place == TxState::Posted && self.wrs > 0;
            self.cut = posted && self.op.ends_with_send();
        }
        self.latch(cause);
        self.place = TxState::Posted;
        self.answer = false;
        self.settle()
    }

    /// Notes that the queue pair is drained and the memory region destroyed: no device uses its memory, and no key
    /// covers it.
    pub fn key_dead(&mut self) -> TxAction {
        self.key_live = false;
        self.may_be_read = false;
        match self.place {
            TxState::Held => {
                self.place = TxState::Done;
                TxAction::Finish
            }
            _ => TxAction::Nothing,
        }
    }

    /// Latches a cause without ending anything. An earlier cause, or the peer's answer, stays.
    pub fn latch(&mut self, cause: Cause) {
        if self.cause.is_none() && !self.told {
            self.cause = Some(cause);
        }
    }

    fn settle(&mut self) -> TxAction {
        if self.wrs > 0 || self.answer {
            return TxAction::Nothing;
        }
        if self.key_live || self.may_be_read {
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
        Tx::new(op)
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

    #[test]
    fn a_work_request_in_front_never_settles_a_tx() {
        let mut tx = posted(Op::GetDone, 3);
        assert!(tx.completed_in_front());
        assert!(tx.completed_in_front());
        let before = tx.place;
        assert!(!tx.completed_in_front());
        assert_eq!(tx.place, before);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert!(!tx.completed_in_front());
        // WRITEs of a part: the tx is queued yet.
        let mut tx = queued(Op::PutDone);
        tx.pushed(2);
        assert!(tx.completed_in_front());
        assert_eq!((tx.place, tx.wrs), (TxState::Queued, 1));
    }

    /// Tests that [`Tx::awaits`] is true exactly for a tx that takes an answer.
    #[test]
    fn waiting_tx_takes_its_answer() {
        const ANSWERS: [(Op, Answer); 4] = [
            (Op::PutReq, Answer::PutAck),
            (Op::PutReq, Answer::PutNak(0)),
            (Op::PutAck, Answer::PutDone(Ok(()))),
            (Op::GetReq, Answer::GetDone(Ok(()))),
        ];
        let places = [
            (TxState::Free, 0, false),
            (TxState::Queued, 1, false),
            (TxState::Posted, 1, true),
            (TxState::Posted, 1, false),
            (TxState::Posted, 0, true),
            (TxState::Held, 0, false),
            (TxState::Done, 0, false),
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
                for (place, wrs, awaited) in places {
                    let mut tx = Tx {
                        place,
                        wrs,
                        answer: awaited,
                        ..posted(op, 1)
                    };
                    let awaits = tx.awaits(to);
                    assert_eq!(awaits, tx.answered(answer).is_ok());
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
        assert_eq!(tx.answered(Answer::PutAck), Ok(TxAction::Requeue));
        assert_eq!(tx.op(), Op::PutDone);
        assert_eq!((tx.place, tx.wrs), (TxState::Queued, 1));
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
            assert_eq!((tx.place, tx.wrs), (TxState::Queued, 2));
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
        // A WRITE fails: the others are not posted, because the connection ends.
        let mut tx = parted();
        assert_eq!(
            tx.completed(Wr::Any, Err(Cause::RemoteFault)),
            TxAction::Nothing
        );
        assert_eq!(tx.cancel(Cause::RemoteFault), TxAction::Nothing);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::RemoteFault));
    }

    /// Tests a provider that reports work requests as flushed before its device knows.
    #[test]
    fn flushed_memory_is_held_until_the_drain() {
        for op in [Op::PutDone, Op::GetDone] {
            let mut tx = posted(op, 2);
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
            // A device that continues may report success of the last work request.
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.place, TxState::Held);
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.key_dead(), TxAction::Finish);
            assert_eq!(tx.cause(), Some(Cause::PeerClosed));
            assert_eq!(tx.key_dead(), TxAction::Nothing);
        }
        // The data of a message is in its own buffer.
        for op in [Op::Immediate, Op::PutNak] {
            let mut tx = posted(op, 1);
            assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Finish);
        }
    }

    /// Tests that the end of a connection does not fail a message that the peer's device acknowledged.
    #[test]
    fn acknowledged_tx_succeeds() {
        for op in [Op::Immediate, Op::PutNak, Op::PutDone, Op::GetDone] {
            let mut tx = posted(op, 2);
            assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            // An end may be reported twice.
            assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
            assert_eq!(tx.cause(), None);
            // Whichever completion is first: the tx fails, for the cause of the connection's end.
            for (first, second) in [(Ok(()), FLUSHED), (FLUSHED, Ok(()))] {
                let mut tx = posted(op, 2);
                assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
                let _ = tx.completed(Wr::Any, first);
                let _ = tx.completed(Wr::Any, second);
                let _ = tx.key_dead();
                assert_eq!(tx.place, TxState::Done);
                assert_eq!(tx.cause(), Some(Cause::AdminClose));
            }
            // It had failed before.
            let mut tx = posted(op, 1);
            tx.latch(Cause::Local(-22));
            assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
            assert_eq!(tx.cause(), Some(Cause::Local(-22)));
        }
        // A tx that expects an answer has not ended with that.
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.cancel(Cause::AdminClose), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::AdminClose));
        // Nor has a tx that was not posted completely.
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
        assert_eq!((tx.place, tx.wrs, tx.answer), (TxState::Posted, 0, true));
        assert_eq!(tx.timeout_cause(), Cause::DeadlineAnswer);
        assert_eq!(tx.answered(Answer::PutNak(0)), Ok(TxAction::Finish));
        assert_eq!(tx.cause(), None);
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.answered(Answer::PutNak(-12)), Ok(TxAction::Nothing));
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
            assert!(tx.key_live);
            assert_eq!(tx.answered(done), Ok(TxAction::Requeue));
            assert_eq!(tx.op(), Op::Invalidate);
            post(&mut tx, 1);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
            assert_eq!(tx.completed(Wr::Invalidate, Ok(())), TxAction::Finish);
            assert!(!tx.key_live);
            assert_eq!(tx.cause(), None);
        }
    }

    #[test]
    fn a_cancelled_tx_with_a_live_key_is_held() {
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.cancel(Cause::PeerClosed), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.place, TxState::Held);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), Some(Cause::PeerClosed));
        // A flushed LOCAL_INV proves nothing either.
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.answered(Answer::GetDone(Ok(()))), Ok(TxAction::Requeue));
        post(&mut tx, 1);
        for _ in 0..2 {
            assert_eq!(tx.completed(Wr::Any, Ok(())), TxAction::Nothing);
        }
        assert_eq!(tx.completed(Wr::Invalidate, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.place, TxState::Held);
        // The transfer did not even fail: the peer knows that its answer arrived.
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), None);
    }

    #[test]
    fn the_answer_is_the_result_whatever_follows() {
        // Its SENDs are flushed after the answer has come.
        let mut tx = posted(Op::PutAck, 2);
        assert_eq!(tx.answered(Answer::PutDone(Ok(()))), Ok(TxAction::Requeue));
        assert_eq!(tx.cancel(Cause::TransportRetry), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.completed(Wr::Any, FLUSHED), TxAction::Nothing);
        assert_eq!(tx.key_dead(), TxAction::Finish);
        assert_eq!(tx.cause(), None);
        let mut tx = posted(Op::PutReq, 1);
        assert_eq!(tx.answered(Answer::PutNak(0)), Ok(TxAction::Nothing));
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
            assert_eq!(tx.place, TxState::Held);
            tx.answered_late(Answer::PutDone(Err(Cause::Protocol)));
            tx.answered_late(Answer::GetDone(Err(Cause::Protocol)));
            assert_eq!(tx.key_dead(), TxAction::Finish);
            assert_eq!(tx.cause(), None);
            tx.answered_late(Answer::PutDone(Err(Cause::Protocol)));
            assert_eq!(tx.cause(), None);
        }
        // A status of the peer counts, too.
        let mut tx = posted(Op::PutAck, 1);
        assert_eq!(tx.cancel(Cause::LocalFault), TxAction::Nothing);
        tx.answered_late(Answer::PutDone(Err(Cause::Told(-5))));
        assert_eq!(tx.cause(), Some(Cause::Told(-5)));
        // No WRITE can follow a PUT_ACK any more, and no answer fits another request.
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
        assert_eq!(tx.answered(Answer::PutAck), Err(Cause::Protocol));
        let mut tx = posted(Op::GetReq, 2);
        assert_eq!(tx.answered(Answer::PutNak(0)), Err(Cause::Protocol));
        let mut tx = queued(Op::PutReq);
        assert_eq!(tx.answered(Answer::PutAck), Err(Cause::Protocol));
    }
}
