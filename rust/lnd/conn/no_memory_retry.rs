// SPDX-License-Identifier: GPL-2.0

//! Work item that retries messages and requests that wait for memory ([`super::no_memory`]).
//!
//! Context: a delayed work item; may sleep. It is armed while messages or requests wait. If the connection is closed,
//! messages go over the next connection, and requests end.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    no_memory_queue::WaitingMsg,
    recv,
    send,
    Conn,
    SHORTAGE, //
};
use crate::{
    lnd::peer::{
        send as peer_send,
        NotSent, //
    },
    lnet::Health as LnetHealth,
    proto::cause::Cause,
    rdma::work::{
        self,
        NofsScope,
        OwnedQueue, //
    }, //
};

impl work::DelayedItem<SHORTAGE> for Conn {
    fn queue(&self) -> &OwnedQueue {
        &self.ni.workers.upper_busy
    }
}

impl WorkItem<SHORTAGE> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let me = kernel::current!().pid();
        // A request that finds no memory again goes to the end of the queue.
        let (requests, messages) = this.with(|inner| inner.waiting.begin(me));
        for _ in 0..requests {
            let Some(kept) = this.with(|inner| inner.waiting.next_request()) else {
                break;
            };
            let mut rx = kept.rx;
            rx.lend(this.clone());
            if let Err((Some(msg), e)) = recv::recv(rx, kept.msg, &kept.req) {
                this.ni.close_stats.messages(Cause::Local(e.to_errno()), 1);
                msg.finalize(e.to_errno(), LnetHealth::Ok);
            }
        }
        for _ in 0..messages {
            let Some(unsent) = this.with(|inner| inner.waiting.next_message()) else {
                break;
            };
            send_again(&this, unsent);
        }
        if this.with(|inner| inner.waiting.end()) {
            this.retry_soon();
        }
    }
}

/// Sends a message that has waited, over another connection if this one is closed.
fn send_again(conn: &Arc<Conn>, unsent: WaitingMsg) {
    let WaitingMsg { msg, req, since } = unsent;
    if since.elapsed_ms() > conn.ni.message_limit_ms() {
        return peer_send::fail_msg(&conn.ni, msg, Cause::NoResources);
    }
    let (msg, cause) = match send::send(conn, msg, &req) {
        Ok(()) => return,
        Err(NotSent::Closed(msg)) => match conn.peer.peers.send(conn.nid(), msg, &req) {
            Ok(()) => return,
            Err((msg, e)) => (msg, Cause::Local(e.to_errno())),
        },
        Err(NotSent::Failed(msg, e)) => (msg, Cause::Local(e.to_errno())),
        Err(NotSent::Lost(msg, cause)) => (msg, cause),
    };
    peer_send::fail_msg(&conn.ni, msg, cause);
}
