// SPDX-License-Identifier: GPL-2.0

//! Messages that are sent again: those that wait for memory ([`super::no_memory`]), over the same connection, and those
//! that a connection lost, over the next connection of the peer, if no other node would resend them.
//! [`crate::policy::resend`] decides which lost messages, and LNet whether it has another path for them.
//!
//! The peer object handles a lost message like a new message of LNet: it waits if there is no connection, a connection
//! is made, and a message that waits too long fails. So a message that is lost again and again is resent until LNet's
//! own time limit for it.
//!
//! Context: process; may sleep. A delayed work item, which is armed while messages or requests wait for memory. If the
//! connection is closed, messages go over the next connection, and requests end. For a lost message the worker that
//! calls LNet, of a closed connection: no work request of the message is outstanding, and the resources made for it are
//! freed before it is resent.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    recv,
    send,
    Conn,
    SHORTAGE, //
};
use crate::{
    lnd::{
        peer::{
            fail_msg,
            NotSent, //
        },
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        SendRequest, //
    },
    policy::resend::Resend,
    proto::cause::{
        Cause,
        Health,
        Outcome, //
    },
    rdma::work::{
        self,
        NofsScope,
        OwnedQueue, //
    }, //
};

impl work::DelayedItem<SHORTAGE> for Conn {
    fn queue(&self) -> &OwnedQueue {
        &self.ni.workers.retries
    }
}

impl WorkItem<SHORTAGE> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let me = kernel::current!().pid();
        // A request that finds no memory again goes to the end of the queue.
        let (requests, messages) = this.with(|inner| {
            inner.retrier = Some(me);
            (inner.waiting_requests.len(), inner.waiting_msgs.len())
        });
        for _ in 0..requests {
            let Some((mut rx, msg, req)) = this.with(|inner| inner.waiting_requests.pop()) else {
                break;
            };
            rx.lend(this.clone());
            if let Err((Some(msg), e)) = recv::recv(rx, msg, &req) {
                this.ni.close_stats.messages(Cause::Local(e.to_errno()), 1);
                msg.finalize(e.to_errno(), Health::Ok);
            }
        }
        for _ in 0..messages {
            let Some((msg, req, since)) = this.with(|inner| inner.waiting_msgs.pop()) else {
                break;
            };
            send_again(&this, msg, &req, since);
        }
        let others_wait = this.with(|inner| {
            inner.retrier = None;
            !inner.waiting_requests.is_empty() || !inner.waiting_msgs.is_empty()
        });
        if others_wait {
            this.retry_soon();
        }
    }
}

/// Sends a message that has waited, over another connection if this one is closed.
fn send_again(conn: &Arc<Conn>, msg: Message, req: &SendRequest, since: Timestamp) {
    if since.elapsed_ms() > conn.ni.message_limit_ms() {
        return fail_msg(&conn.ni, msg, Cause::NoResources);
    }
    conn.with(|inner| inner.retried_since = Some(since));
    let sent = send::send(conn, msg, req);
    // A message that LNet sends when it gets this one back begins to wait then.
    conn.with(|inner| inner.retried_since = None);
    let (msg, cause) = match sent {
        Ok(()) => return,
        Err(NotSent::Closed(msg)) => match conn.peer.peers.send(conn.nid(), msg, req) {
            Ok(()) => return,
            Err((msg, e)) => (msg, Cause::Local(e.to_errno())),
        },
        Err(NotSent::Failed(msg, e)) => (msg, Cause::Local(e.to_errno())),
        Err(NotSent::Lost(msg, cause)) => (msg, cause),
    };
    fail_msg(&conn.ni, msg, cause);
}

/// Resends a message that a connection lost, or finalizes it. Returns true if it has failed.
#[cold]
pub(super) fn send(conn: &Conn, msg: Message, again: Resend, outcome: Outcome) -> bool {
    let health = outcome.health;
    let req = msg
        .again(health)
        .filter(|req| req.kind().is_some_and(|kind| again.takes(kind.is_answer())));
    let failed = match req {
        // Counted first: the message may be finished before the call returns.
        Some(req) => {
            conn.ni.close_stats.sent_again();
            match conn.peer.peers.send(conn.nid(), msg, &req) {
                Ok(()) => return false,
                // For an NI that stops, or a message that cannot be sent.
                Err((msg, _)) => msg,
            }
        }
        None => msg,
    };
    failed.finalize(outcome.status, health);
    true
}
