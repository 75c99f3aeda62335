// SPDX-License-Identifier: GPL-2.0

//! Which messages of LNet's go over the next connection when one has ended before the peer is known to have them.
//!
//! LNet sends such a message again where it has another way. Where it has none, as on a node with one NI whose peers
//! have one, it tells whoever sent it; and of an ACK or a REPLY that is nobody, for who waits for it is on the other
//! node. There the wait ends with a timeout: of a discovery, in which nothing else goes to that peer, after up to four
//! minutes; of bulk data after a hundred seconds.
//!
//! So what no work request was posted of goes over the next connection, as if LNet had sent it just now. An ACK or a
//! REPLY does so though it was posted, and the peer may have it: LNet of the peer's looks for the MD that it names, and
//! drops a second one, because the first has used that up. A PUT or GET that was posted is never sent twice: its sender
//! is told.
//!
//! Only what is all in one message, which is copied, or offers memory that the peer has not been given: an IMMEDIATE or
//! a PUT_REQ. Of a GET_REQ LNet has made the reply already, and would have to make another one, which it does not
//! (2.17). What has waited for as long as a message may does not go again: it would keep its sender waiting for as long
//! once more.
//!
//! Context: any.

use crate::proto::{
    cause::Cause,
    tx::Op, //
};

/// What a message is to LNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsgRole {
    /// A PUT or GET: who sent it is told if it fails.
    Request,
    /// An ACK or REPLY: who waits for it is not.
    Answer,
}

/// Which messages go again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// None.
    Nothing,
    /// Those that nobody is told of.
    Answers,
    /// All.
    All,
}

impl Resend {
    /// Of a transmit that was to do `op` when it ended for `cause`. `posted`: a work request of it reached the device.
    /// `overdue`: it has been under way for longer than it may. What the connection ended for may be another one's
    /// delay.
    pub fn of(op: Op, cause: Cause, posted: bool, overdue: bool) -> Self {
        let whole = matches!(op, Op::Immediate | Op::PutReq);
        if !whole || overdue || !cause.spares_messages() {
            return Self::Nothing;
        }
        match posted {
            false => Self::All,
            // It may be that message which a device does not take, and it would end one connection after the other.
            true if matches!(cause, Cause::LocalFault | Cause::RemoteFault) => Self::Nothing,
            true => Self::Answers,
        }
    }

    /// Whether one does that carries this.
    pub fn takes(self, carries: MsgRole) -> bool {
        match self {
            Self::Nothing => false,
            Self::Answers => carries == MsgRole::Answer,
            Self::All => true,
        }
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_resend))]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_may_have_goes_once() {
        let unposted = Resend::of(Op::Immediate, Cause::PeerClosed, false, false);
        assert!(unposted.takes(MsgRole::Request) && unposted.takes(MsgRole::Answer));
        let posted = Resend::of(Op::Immediate, Cause::PeerClosed, true, false);
        assert!(!posted.takes(MsgRole::Request) && posted.takes(MsgRole::Answer));
    }

    /// Whose memory the peer knows is told by the end of the connection.
    #[test]
    fn only_what_is_all_in_a_message() {
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

    /// One that no device takes would end every connection.
    #[test]
    fn what_may_be_at_fault_does_not() {
        for cause in [Cause::LocalFault, Cause::RemoteFault] {
            assert_eq!(
                Resend::of(Op::Immediate, cause, true, false),
                Resend::Nothing
            );
            assert_eq!(Resend::of(Op::Immediate, cause, false, false), Resend::All);
        }
    }

    /// What a connection has no memory for is an answer, and not these.
    #[test]
    fn memory_that_is_missing_is_for_another() {
        assert_eq!(
            Resend::of(Op::Immediate, Cause::NoResources, false, false),
            Resend::All
        );
        let posted = Resend::of(Op::PutReq, Cause::NoResources, true, false);
        assert_eq!(posted, Resend::Answers);
    }

    /// Whom nobody is to talk to, or who is of another life.
    #[test]
    fn not_to_everybody() {
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
                assert!(!again.takes(MsgRole::Request) && !again.takes(MsgRole::Answer));
            }
        }
    }

    /// That one message has waited for too long says nothing of those behind it.
    #[test]
    fn who_has_not_waited_for_long_goes_again() {
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
