// SPDX-License-Identifier: GPL-2.0

//! Reason for the close of a connection, with the details for the log.
//!
//! The reason is found under the connection lock, in softirq, and logged without the lock by a worker
//! ([`super::Conn::blame`]): a console may be slow, and the lock is held with bottom halves off.

use crate::{
    lnd::log,
    proto::{
        cause::Cause,
        credits::CreditError,
        nid::Nid,
        wire::{
            Stale,
            WireError, //
        }, //
    },
    rdma::wc::Wc, //
};

/// Reason why a connection ends.
pub(super) enum CloseReason {
    /// A cause without details.
    Plain(Cause),
    /// A send failed.
    Send(Cause, Wc),
    /// A receive failed.
    Recv(Cause, Wc),
    /// The received operation was no SEND, or did more than a SEND.
    NotASend,
    /// Work requests could not be built or posted.
    Post(Cause),
    /// A message is invalid.
    Message(WireError),
    /// A message is of another life of the peer.
    Stale(Stale),
    /// The peer broke the credit rules.
    Credits(CreditError),
}

impl From<Cause> for CloseReason {
    #[inline]
    fn from(cause: Cause) -> Self {
        Self::Plain(cause)
    }
}

impl CloseReason {
    /// Returns the cause to close with.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Plain(cause)
            | Self::Send(cause, _)
            | Self::Recv(cause, _)
            | Self::Post(cause) => *cause,
            Self::NotASend | Self::Message(_) | Self::Credits(_) => Cause::Protocol,
            Self::Stale(_) => Cause::PeerRestarted,
        }
    }

    /// Logs the reason. Not under a lock.
    pub(super) fn log_reason(self, nid: Nid) {
        match self {
            // A flush follows from an error that is logged already, or soon.
            Self::Plain(_) | Self::Send(Cause::Flushed, _) | Self::Recv(Cause::Flushed, _) => {}
            Self::Send(_, wc) => log::send_failed(nid, wc),
            Self::Recv(_, wc) => log::receive_failed(nid, wc),
            Self::NotASend => log::not_a_send(nid),
            Self::Post(_) => log::post_failed(nid),
            Self::Message(e) => log::bad_message(nid, &e),
            Self::Stale(e) => log::stale_message(nid, &e),
            Self::Credits(e) => log::bad_credits(nid, e),
        }
    }
}
