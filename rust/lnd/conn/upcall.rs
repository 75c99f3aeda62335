// SPDX-License-Identifier: GPL-2.0

//! LNet half of a connection: the worker that calls LNet.
//!
//! It passes received requests to `lnet_parse` and finishes transmits, in order, one connection at a time on one CPU. A
//! slow LNet delays only its own connection: the credits of requests that LNet has not taken stay withheld, while
//! answers and credits keep flowing.
//!
//! It also resends messages that a connection lost over the next connection of the peer ([`crate::policy::resend`]).
//! The peer object handles a lost message like a new message of LNet. So a message that is lost again and again is
//! resent until LNet's own time limit for it. The retry of messages that wait for memory is a work item of its own.
//!
//! Context: process. No lock is held across a call into LNet. LNet may send again from inside such a call; the transmit
//! waits for the doorbell that this worker rings ([`crate::policy::upcall_sched`]).

use core::mem::ManuallyDrop;

use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    has_job,
    has_request,
    recv,
    rx::Rx,
    send,
    tx_payload::{
        FinishedTx,
        TakenTx,
        TxPayload, //
    },
    Conn,
    Inner,
    SHORTAGE,
    UPPER, //
};
use crate::{
    lnd::{
        log,
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
    proto::{
        cause::{
            Cause,
            Health,
            Outcome, //
        },
        lnet_hdr,
        nid::Nid,
        tx_state::Tx,
        wire::Body, //
    },
    rdma::{
        atomic::Relaxed,
        work::{
            self,
            NofsScope,
            OwnedQueue, //
        }, //
    }, //
};

/// Number of rounds, each with a request, a finished transmit, or both, after which other connections on this CPU get
/// their turn.
const BUDGET: u32 = 64;

/// Number of rounds after which the doorbell rings for the messages that LNet sent meanwhile.
const CORKED: u32 = 8;

/// Nanoseconds after which it rings though they were fewer: LNet may be slow.
const CORKED_NS: u64 = 1_000_000;

impl WorkItem<UPPER> for Conn {
    type Pointer = Arc<Self>;

    // Functions that allocate memory enter an allocation scope themselves; LNet passes GFP_NOFS.
    fn run(this: Arc<Self>) {
        let me = kernel::current!().pid();
        let began = Timestamp::now();
        // Not dropped: `finish` takes the value that `take_done` stores.
        let mut finished = ManuallyDrop::new(FinishedTx::default());
        let (mut n, mut paid) = (0u32, began);
        while n < BUDGET {
            n = n.wrapping_add(1);
            // A request and a finished transmit share a round of the lock, and neither waits for all of the others.
            let (request, taken) = {
                let mut guard = this.inner.lock();
                let inner = &mut *guard;
                inner.upcall_task = me;
                this.upcall.takes();
                let request = match has_request(inner) {
                    true => inner.rx_queue.pop(),
                    false => None,
                };
                let taken = inner.txs.take_done(|tx, entry| finished.take_tx(tx, entry));
                // If something is due that was held back for the last request, or for the doorbell of this worker, a
                // round without a job pumps: LNet may keep the request, and then returns no credit. The worker of
                // another connection may have left the doorbell to this one before its first round, because both run
                // in one thread.
                let held_back = request.is_some() || taken.is_some();
                if has_job(inner) || held_back && is_due(inner) {
                    this.upcall.stays();
                }
                if (request.is_none() && taken.is_none()) || n % CORKED == 0 {
                    // Messages that LNet has sent from inside share one doorbell, which is not much later than
                    // without sharing.
                    this.pump(inner, false, None);
                }
                (request, taken)
            };
            // The request first: it is not in the queue any more, for whose requests credits are held back.
            if let Some(rx) = request {
                parse(&this, rx);
            }
            match taken {
                Some(TakenTx::Well(msg)) => msg.finalize(0, Health::Ok),
                Some(TakenTx::Other) => finish(&this, &mut finished),
                None => {}
            }
            if this.upcall.has_work() {
                let now = Timestamp::now();
                if now.ns_since(began) >= CORKED_NS {
                    // Other tasks have their turn, and the doorbell rings.
                    break;
                }
                continue;
            }
            let now = Timestamp::now();
            this.upcall.ran(paid, now);
            paid = now;
            if this.upcall.rests() {
                return;
            }
        }
        let now = Timestamp::now();
        this.with(|inner| this.pump(inner, false, Some(now)));
        this.upcall.ran(paid, now);
        this.upcall.stays();
        this.queue_upper(false);
    }
}

/// Returns whether the pump would send something now that no request waits for LNet.
#[inline(always)]
fn is_due(inner: &Inner) -> bool {
    !inner.txs.is_idle(&inner.credits)
        && inner.state.is_up()
        && !inner.is_blocked(inner.credits.starves_peer(), false)
}

/// Finalizes the finished transmit that was taken.
#[inline(never)]
fn finish(conn: &Conn, finished: &mut FinishedTx) {
    if let Some(well) = finished.well.take() {
        well.finish();
    } else if let Some((tx, ended)) = finished.ended.take() {
        finish_ended(conn, tx, ended);
    }
}

/// Finalizes a transmit that failed, or that needs more work.
#[cold]
#[inline(never)]
fn finish_ended(conn: &Conn, tx: Tx, ended: TxPayload) {
    let _nofs = NofsScope::enter();
    let mut ended = ended;
    let (mut cause, posted) = (tx.cause(), tx.was_posted());
    let messages = ended.messages();
    if let Some(why) = cause {
        let late = ended.age_ms() > conn.ni.message_limit_ms();
        // A broken device is no fault of the message.
        let again = Resend::of(tx.op(), why, posted, late);
        let why = match conn.ni.is_broken() {
            true => why.on_broken_device(),
            false => why,
        };
        if again != Resend::Nothing && conn.ni.is_listed() {
            if let Some(msg) = ended.unmap_message() {
                if !resend(conn, msg, again, why.outcome(posted)) {
                    return;
                }
            }
        }
        conn.ni.close_stats.messages(why, messages);
        cause = Some(why);
    }
    ended.finish(cause, posted);
}

/// Resends a message that a connection lost, or finalizes it. Returns true if it has failed.
#[cold]
fn resend(conn: &Conn, msg: Message, again: Resend, outcome: Outcome) -> bool {
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

/// Gives a request to LNet, unless LNet has asked the NI to stop: a portal that keeps the request then would keep the
/// NI.
fn parse(conn: &Arc<Conn>, rx: KBox<Rx<Conn>>) {
    if conn.ni.is_stopping() {
        return give_up(conn, rx, Cause::Shutdown);
    }
    let Some(rdma) = validate(conn.nid(), &rx) else {
        return give_up(conn, rx, Cause::Protocol);
    };
    let mut rx = rx;
    rx.lend(conn.clone());
    match conn.ni.lnet.parse(conn.nid().raw(), rx, rdma) {
        Ok(false) => {}
        Ok(true) => rx_while_deleting(conn),
        Err((rx, ESHUTDOWN)) => give_up(conn, rx, Cause::Shutdown),
        Err((rx, e)) => refused(conn, rx, e),
    }
}

/// Drops a request that LNet does not take. `validate` has found its header valid, so LNet refuses its destination: a
/// NID of another NI of this node, of a node that the sender should have reached directly, or of a node that a GET_REQ
/// cannot be forwarded to. That is an error of a route, and costs this request only: all others of the connection go
/// on.
#[cold]
#[inline(never)]
fn refused(conn: &Arc<Conn>, rx: KBox<Rx<Conn>>, e: Error) {
    let mut rx = rx;
    drop(rx.returned());
    log::refused_by_lnet(conn.nid(), lnet_hdr::dest_nid(rx.header()), e);
    conn.ni.close_stats.not_for_lnet();
    recv::discard(conn, rx);
}

/// Handles a message for an NI that LNet deletes. A peer that goes on sending would delay the deletion without limit.
#[cold]
#[inline(never)]
fn rx_while_deleting(conn: &Arc<Conn>) {
    let _nofs = NofsScope::enter();
    let now_ms = conn.ni.now_ms();
    if let Some(is_first) = conn.ni.way(|way| way.rx_while_deleting(now_ms)) {
        if is_first {
            log::deletion_waits(conn.ni.nid);
        }
        conn.finish(Cause::Shutdown);
    }
}

/// Closes the connection for a request that LNet does not get, or that comes when LNet stops the NI; the close frees
/// the buffer.
#[cold]
fn give_up(conn: &Arc<Conn>, rx: KBox<Rx<Conn>>, cause: Cause) {
    let _nofs = NofsScope::enter();
    let mut rx = rx;
    drop(rx.returned());
    conn.rx_returned(rx);
    conn.end(cause);
}

/// Checks the LNet header of a request against the kind of o2ib message it came in. Returns whether the data moves by
/// RDMA; logs a fault.
#[inline(always)]
fn validate(nid: Nid, rx: &Rx<Conn>) -> Option<bool> {
    let checked = match rx.payload() {
        Some(payload) => lnet_hdr::check_immediate(rx.header(), payload),
        None => return validate_transfer(nid, rx),
    };
    checked.inspect_err(|why| log::bad_request(nid, why)).ok()?;
    Some(false)
}

/// Checks the LNet header of a PUT_REQ or GET_REQ.
// Separate function, for the sake of messages that carry their data.
#[inline(never)]
fn validate_transfer(nid: Nid, rx: &Rx<Conn>) -> Option<bool> {
    let checked = match rx.body() {
        Some(Body::PutReq { hdr, .. }) => lnet_hdr::check_put(hdr).map(|()| true),
        Some(Body::GetReq { hdr, rd, .. }) => lnet_hdr::check_get(hdr, &rd).map(|()| true),
        // Never happens: `Inner::receive` has decoded it, and queues only requests.
        _ => {
            log::bad_request(nid, &"not a request");
            return None;
        }
    };
    checked.inspect_err(|why| log::bad_request(nid, why)).ok()
}

impl work::DelayedItem<SHORTAGE> for Conn {
    fn queue(&self) -> &OwnedQueue {
        match self.retry_ends.load(Relaxed) {
            true => &self.ni.workers.upper_busy,
            false => &self.ni.workers.retries,
        }
    }
}

impl WorkItem<SHORTAGE> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let me = kernel::current!().pid();
        // A request that finds no memory again goes to the end of the queue.
        let (up, requests, messages) = this.with(|inner| {
            inner.retrier = Some(me);
            let waiting = (inner.waiting_requests.len(), inner.waiting_msgs.len());
            (inner.state.is_up(), waiting.0, waiting.1)
        });
        if !up && !this.retry_ends.xchg(true, Relaxed) {
            // The end of these calls LNet, and waits for memory for another connection: not in this queue.
            return work::mod_delayed::<Self, SHORTAGE>(this, 0);
        }
        let is_same = |inner: &Inner| inner.state.is_up() == up;
        for _ in 0..requests {
            let next = |inner: &mut Inner| is_same(inner).then(|| inner.waiting_requests.pop())?;
            let Some((mut rx, msg, req)) = this.with(next) else {
                break;
            };
            rx.lend(this.clone());
            if let Err((Some(msg), e)) = recv::recv(rx, msg, &req) {
                this.ni.close_stats.messages(Cause::Local(e.to_errno()), 1);
                msg.finalize(e.to_errno(), Health::Ok);
            }
        }
        for _ in 0..messages {
            let next = |inner: &mut Inner| is_same(inner).then(|| inner.waiting_msgs.pop())?;
            let Some((msg, req, since)) = this.with(next) else {
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
