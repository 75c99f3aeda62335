// SPDX-License-Identifier: GPL-2.0

//! Rules of resending messages over the next connection, if a connection ended before the peer is known to have them.
//! Documentation/architecture.md lists them.
//!
//! LNet resends such a message if it has another NI or route. Otherwise it reports the failure to the sender. An ACK or
//! a REPLY has no sender to report to, because the task that waits for it is on the other node. There the wait ends
//! with a timeout: of a discovery, in which nothing else goes to that peer, after up to four minutes; of bulk data
//! after a hundred seconds. So these are resent even if they were posted: the peer's LNet drops a second one, because
//! the first has used up the MD that it names.
//!
//! Context: any.

use crate::proto::{
    cause::Cause,
    tx_state::Op, //
};

/// Messages to resend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    Nothing,
    /// ACKs and REPLYs: LNet does not report their failure to the node that waits for them.
    Answers,
    All,
}

impl Resend {
    /// Returns what to resend of a transmit for `op` that ended for `cause`. `posted`: a work request of it reached the
    /// device. `overdue`: it has been in flight for longer than allowed. The connection may have ended because of
    /// another transmit's delay.
    pub fn of(op: Op, cause: Cause, posted: bool, overdue: bool) -> Self {
        let whole = matches!(op, Op::Immediate | Op::PutReq);
        if !whole || overdue || !cause.has(Cause::SPARES_MESSAGES | Cause::IS_RETRYABLE) {
            return Self::Nothing;
        }
        match posted {
            false => Self::All,
            // That message may be the one that a device rejects, and would end one connection after the other.
            true if matches!(cause, Cause::LocalFault | Cause::RemoteFault) => Self::Nothing,
            true => Self::Answers,
        }
    }

    /// Returns whether it includes an ACK or REPLY (`is_answer`), or a PUT or GET.
    pub fn takes(self, is_answer: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Answers => is_answer,
            Self::All => true,
        }
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_resend))]
mod tests {
    use super::*;

    #[test]
    fn posted_request_is_not_resent() {
        let unposted = Resend::of(Op::Immediate, Cause::PeerClosed, false, false);
        assert!(unposted.takes(false) && unposted.takes(true));
        let posted = Resend::of(Op::Immediate, Cause::PeerClosed, true, false);
        assert!(!posted.takes(false) && posted.takes(true));
    }

    /// Tests that a message with memory that the peer knows ends with the connection.
    #[test]
    fn only_complete_messages_are_resent() {
        for op in [
            Op::GetReq,
            Op::PutAck,
            Op::PutNak,
            Op::PutDone,
            Op::GetDone,
            Op::Invalidate,
        ] {
            assert_eq!(
                Resend::of(op, Cause::LinkDown, false, false),
                Resend::Nothing
            );
        }
        for op in [Op::Immediate, Op::PutReq] {
            assert_eq!(Resend::of(op, Cause::LinkDown, false, false), Resend::All);
            assert_eq!(
                Resend::of(op, Cause::LinkDown, true, false),
                Resend::Answers
            );
        }
    }

    /// Tests a message that devices reject, which would end every connection.
    #[test]
    fn message_that_may_have_caused_the_close_is_not_resent() {
        for cause in [Cause::LocalFault, Cause::RemoteFault] {
            assert_eq!(
                Resend::of(Op::Immediate, cause, true, false),
                Resend::Nothing
            );
            assert_eq!(Resend::of(Op::Immediate, cause, false, false), Resend::All);
        }
    }

    /// Tests that a lack of memory in a connection concerns an answer, and not these messages.
    #[test]
    fn memory_that_is_missing_is_for_another() {
        assert_eq!(
            Resend::of(Op::Immediate, Cause::NoResources, false, false),
            Resend::All
        );
        let posted = Resend::of(Op::PutReq, Cause::NoResources, true, false);
        assert_eq!(posted, Resend::Answers);
    }

    /// Tests peers that are excluded or were restarted.
    #[test]
    fn excluded_peers_get_no_resend() {
        for cause in [
            Cause::Shutdown,
            Cause::PeerDeleted,
            Cause::Denied,
            Cause::Backlog,
            Cause::PeerRestarted,
            Cause::Protocol,
            Cause::Local(-22),
            Cause::Told(-5),
        ] {
            for posted in [false, true] {
                let again = Resend::of(Op::Immediate, cause, posted, false);
                assert!(!again.takes(false) && !again.takes(true));
            }
        }
    }

    /// Tests that a message that has waited for too long does not affect those behind it.
    #[test]
    fn message_is_resent_after_a_deadline_of_another() {
        for cause in [
            Cause::DeadlineQueued,
            Cause::DeadlineSending,
            Cause::DeadlineAnswer,
        ] {
            assert_eq!(Resend::of(Op::Immediate, cause, false, false), Resend::All);
            assert_eq!(
                Resend::of(Op::Immediate, cause, true, false),
                Resend::Answers
            );
            assert_eq!(
                Resend::of(Op::Immediate, cause, false, true),
                Resend::Nothing
            );
            assert_eq!(
                Resend::of(Op::Immediate, cause, true, true),
                Resend::Nothing
            );
        }
    }
}
