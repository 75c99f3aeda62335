// SPDX-License-Identifier: GPL-2.0

//! What a connection lost goes over the peer's next one, where nobody would send it again: [`crate::policy::resend`]
//! says which messages, LNet whether it has another way for them.
//!
//! To the peer it is as if LNet had sent them just now: they wait if there is no connection, one is made, and who waits
//! for too long fails. So a message that is lost time and again is so until LNet's own time for it is over.
//!
//! Context: the worker that calls LNet, of a connection that is over. No work request of the message is under way, and
//! what was made for it goes before it is sent.

use super::Conn;
use crate::{
    lnd::lnet_glue::lnet_health,
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

/// Sends a message again, or gives it back to LNet. True: it has failed.
#[cold]
pub(super) fn send(conn: &Conn, msg: Message, again: Resend, outcome: Outcome) -> bool {
    let health = lnet_health(outcome.health);
    let req = msg.again(health);
    let req = req.filter(|req| req.kind().is_some_and(|kind| again.takes(carries(kind))));
    let left = match req {
        // Counted first: it may be over before that returns.
        Some(req) => {
            conn.ni.seen.sent_again();
            conn.peer.peers.send(conn.nid(), msg, &req).err()
        }
        None => {
            msg.finalize(outcome.status, health);
            return true;
        }
    };
    // Of an NI that stops, or a message that cannot be sent.
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
