// SPDX-License-Identifier: GPL-2.0

//! Resend of messages that a connection lost, over the next connection of the peer, if no other node would resend them:
//! [`crate::policy::resend`] decides which messages, and LNet whether it has another path for them.
//!
//! The peer object handles them like new messages of LNet: they wait if there is no connection, a connection is made,
//! and a message that waits too long fails. So a message that is lost again and again is resent until LNet's own time
//! limit for it.
//!
//! Context: the worker that calls LNet, of a closed connection. No work request of the message is outstanding, and the
//! resources made for it are freed before it is resent.

use super::Conn;
use crate::{
    lnd::lnet_types::lnet_health,
    lnet::{
        Message,
        MsgKind, //
    },
    policy::resend::{
        MsgRole,
        Resend, //
    },
    proto::cause::Outcome, //
};

/// Resends a message, or finalizes it. Returns true if it has failed.
#[cold]
pub(super) fn send(conn: &Conn, msg: Message, again: Resend, outcome: Outcome) -> bool {
    let health = lnet_health(outcome.health);
    let req = msg.again(health);
    let req = req.filter(|req| req.kind().is_some_and(|kind| again.takes(carries(kind))));
    let left = match req {
        // Counted first: the message may be finished before the call returns.
        Some(req) => {
            conn.ni.close_stats.sent_again();
            conn.peer.peers.send(conn.nid(), msg, &req).err()
        }
        None => {
            msg.finalize(outcome.status, health);
            return true;
        }
    };
    // For an NI that stops, or a message that cannot be sent.
    let failed = left.is_some();
    if let Some((msg, _)) = left {
        msg.finalize(outcome.status, health);
    }
    failed
}

fn carries(kind: MsgKind) -> MsgRole {
    match kind {
        MsgKind::Put | MsgKind::Get => MsgRole::Request,
        MsgKind::Ack | MsgKind::Reply => MsgRole::Answer,
    }
}
