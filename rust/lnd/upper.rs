// SPDX-License-Identifier: GPL-2.0

//! The LNet half of a connection: what calls LNet, and what LNet calls to receive.
//!
//! [`Conn`]'s `upper` work item hands received requests to `lnet_parse` and finishes transmits, in
//! order, one connection at a time on one CPU. A slow LNet delays its own connection only: the
//! credits of what it has not taken stay withheld, while answers and credits keep flowing in
//! [`super::wire`].
//!
//! Process context. No lock is held across a call into LNet, which may send again from inside.

use core::fmt::{
    self,
    Display, //
};

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::WorkItem, //
};

use super::{
    conn::{
        Conn,
        Inner,
        UPPER, //
    },
    log,
    pump::pump,
    received::{
        self,
        Received, //
    },
    transfer::{
        Ended,
        Memory,
        Owner,
        Remote,
        Transfer, //
    },
    wire, //
};
use crate::{
    lnet::{
        Health as LnetHealth,
        Message,
        RecvRequest, //
    },
    proto::{
        cause::{
            errno,
            Cause, //
        },
        conn::Event,
        credits::Repost,
        encode::BodyOut,
        lnet_hdr::{
            self,
            HdrError, //
        },
        tx::Op,
        wire::{
            reopen,
            Body,
            Cookie,
            Done,
            Facts,
            WireError, //
        }, //
    },
    rdma::{
        buf::RxBuf,
        work::NofsScope, //
    }, //
};

/// Messages and transmits handled before other connections on this CPU get their turn.
const BUDGET: u32 = 64;

/// Messages and transmits after which what they made LNet send is posted.
const CORKED: u32 = 8;

/// Microseconds after which it is posted though they were fewer: LNet may be slow.
const CORKED_US: i64 = 1000;

/// Milliseconds until a message that found no memory is tried again.
const RETRY_MS: u32 = 10;

/// A request while LNet has it.
pub(crate) type Rx = received::Rx<Conn>;

/// As many [`Rx`] wait for their next request. LNet gives back most of them before it takes another.
const RX_KEPT: usize = 4;

/// What the LNet half does next.
enum Job {
    Parse(Received, Option<KBox<Rx>>),
    Finish(Ended, Option<Cause>, bool),
}

impl WorkItem<UPPER> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let me = kernel::current!().pid();
        let mut corked = Instant::<Monotonic>::now();
        for n in 1..=BUDGET {
            let job = {
                let mut guard = this.lock();
                let inner = &mut *guard;
                // What is queued from here on may need to be looked at once more.
                inner.upper_queued = false;
                inner.corked_by = me;
                let job = next_job(inner);
                // What LNet sends from inside goes with one doorbell, but not much later than it
                // could.
                if job.is_none() {
                    uncork(&this, inner);
                } else if n % CORKED == 0 || is_late(corked, n) {
                    uncork(&this, inner);
                    corked = Instant::now();
                    inner.corked_by = me;
                }
                job
            };
            match job {
                Some(Job::Finish(ended, cause, posted)) => {
                    if let Some(cause) = cause {
                        this.ni.seen.messages(cause, ended.messages());
                    }
                    ended.finish(cause, posted)
                }
                Some(Job::Parse(msg, rx)) => {
                    if !parse(&this, msg, rx) {
                        let mut guard = this.lock();
                        uncork(&this, &mut guard);
                        if guard.queues.has_done() {
                            this.kick_upper_again();
                        }
                        return;
                    }
                }
                None => return,
            }
        }
        uncork(&this, &mut this.lock());
        this.kick_upper_again();
    }
}

/// Whether what was queued since `corked`, before the job number `n`, has waited for long enough.
fn is_late(corked: Instant<Monotonic>, n: u32) -> bool {
    n > 1 && corked.elapsed() >= Delta::from_micros(CORKED_US)
}

/// Rings the doorbell for what was queued meanwhile.
fn uncork(conn: &Arc<Conn>, inner: &mut Inner) {
    inner.corked_by = 0;
    pump(conn, inner, false);
}

fn next_job(inner: &mut Inner) -> Option<Job> {
    while let Some(index) = inner.queues.take_done(&mut inner.cells) {
        let at = usize::from(index);
        let (cause, posted) = match inner.cells.get(at) {
            Some(cell) => (cell.tx.cause(), cell.tx.was_posted()),
            None => continue,
        };
        let entry = inner.txs.get_mut(at);
        let ended = entry.and_then(|entry| {
            let ended = entry.as_mut().map(Transfer::end);
            *entry = None;
            ended
        });
        inner.queues.release(&mut inner.cells, index);
        if let Some(ended) = ended {
            return Some(Job::Finish(ended, cause, posted));
        }
    }
    if inner.is_up() && !inner.published {
        // An answer of LNet's must find this connection, and not an older one that may be dead.
        return None;
    }
    let msg = inner.rx.pop()?;
    Some(Job::Parse(msg, inner.rx_boxes.pop()))
}

/// Gives a request to LNet. False: out of memory, the message was put back and is tried again by
/// the timer.
fn parse(conn: &Arc<Conn>, msg: Received, rx: Option<KBox<Rx>>) -> bool {
    let rdma = match judge(msg.bytes(), msg.facts) {
        Ok(rdma) => rdma,
        Err(why) => {
            log::bad_request(conn.nid(), &why);
            conn.fail(Cause::Protocol);
            return true;
        }
    };
    let mut rx = match rx.map_or_else(|| first_rx(conn), Ok) {
        Ok(rx) => rx,
        Err(_) => {
            // Back-pressure, not loss: its credit stays withheld until memory is there again.
            conn.ni.seen.no_memory();
            conn.with(|inner| {
                let _ = inner.rx.push_front(msg);
                conn.rearm_timer(RETRY_MS);
            });
            return false;
        }
    };
    rx.conn = Some(conn.clone());
    rx.msg = msg;
    if let Err((rx, e)) = conn.ni.lnet.parse(conn.nid().raw(), rx, rdma) {
        drop(rx);
        if e != ESHUTDOWN {
            log::refused_by_lnet(conn.nid(), e);
        }
        conn.with(|inner| inner.with_lnet = inner.with_lnet.saturating_sub(1));
        conn.fail(if e == ESHUTDOWN {
            Cause::Shutdown
        } else {
            Cause::Protocol
        });
    }
    true
}

/// A new [`Rx`], and room to keep some.
fn first_rx(conn: &Conn) -> Result<KBox<Rx>> {
    let mut room = KVec::new();
    if conn.with(|inner| inner.rx_boxes.capacity() == 0) {
        room = KVec::with_capacity(RX_KEPT, GFP_KERNEL)?;
    }
    let rx = Rx::new()?;
    conn.with(|inner| {
        if inner.rx_boxes.capacity() == 0 {
            core::mem::swap(&mut inner.rx_boxes, &mut room);
        }
    });
    Ok(rx)
}

/// Why a request is none.
enum BadRequest {
    /// It does not parse. It did before, in the wire half.
    Wire(WireError),
    /// The LNet header does not fit the o2ib message.
    Header(HdrError),
    /// It is an answer.
    NotARequest,
}

impl Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(e) => e.fmt(f),
            Self::Header(e) => e.fmt(f),
            Self::NotARequest => f.write_str("not a request"),
        }
    }
}

/// Checks the LNet header of a request against the kind of o2ib message it came in; tells whether
/// the data moves by RDMA.
fn judge(bytes: &[u8], facts: Option<Facts>) -> Result<bool, BadRequest> {
    let facts = facts.ok_or(BadRequest::NotARequest)?;
    match reopen(bytes, facts).map_err(BadRequest::Wire)? {
        Body::Immediate { hdr, payload } => {
            lnet_hdr::check_immediate(hdr, payload).map_err(BadRequest::Header)?;
            Ok(false)
        }
        Body::PutReq { hdr, .. } => {
            lnet_hdr::check_put(hdr).map_err(BadRequest::Header)?;
            Ok(true)
        }
        Body::GetReq { hdr, rd, .. } => {
            lnet_hdr::check_get(hdr, &rd).map_err(BadRequest::Header)?;
            Ok(true)
        }
        _ => Err(BadRequest::NotARequest),
    }
}

/// `lnd_eager_recv`: LNet keeps a request for a while (a lazy portal, a router without buffers).
/// Its buffer is replaced: in the receive queue, if it could not be when it came, else among the
/// spares. May sleep.
pub(crate) fn eager_recv(rx: &mut Rx) {
    let Rx {
        conn: Some(conn),
        msg,
    } = rx
    else {
        return;
    };
    let buf = conn.hca().and_then(|hca| RxBuf::alloc(&hca.device));
    let mut guard = conn.lock();
    let inner = &mut *guard;
    if inner.may_receive() {
        match (buf, inner.link.as_mut()) {
            (Ok(buf), _) if msg.replaced => {
                // Beyond the capacity it is freed.
                drop(inner.spares.push_within_capacity(buf));
            }
            (Ok(buf), Some(link)) => match link.push_recv(buf) {
                Ok(()) => msg.replaced = true,
                Err(cause) => conn.step(inner, Event::Fail(cause)),
            },
            // Without memory the peer's credit stays withheld until LNet gives the buffer back.
            _ if !msg.replaced => return,
            _ => {}
        }
    }
    drop(guard);
    // LNet may keep it for ever, and the device must not wait for that. It is not posted again:
    // another one is, or the connection is over.
    msg.detach();
}

/// What `lnd_recv` returns: on error LNet finalizes the message it gets back.
type Recv = Result<(), (Option<Message>, Error)>;

/// `lnd_recv`: LNet has matched a request (or wants it discarded). Always gives the buffer back.
pub(crate) fn recv(rx: KBox<Rx>, req: RecvRequest) -> Recv {
    let mut rx = rx;
    let Some(conn) = rx.conn.take() else {
        return Err((req.msg, EPROTO));
    };
    let msg = core::mem::replace(&mut rx.msg, Received::NOTHING);
    // It was judged before it went to LNet.
    let body = msg.facts.and_then(|facts| reopen(msg.bytes(), facts).ok());
    match body {
        Some(Body::Immediate { payload, .. }) => {
            let result = recv_immediate(payload, req);
            conn.give_back(rx, msg, Repost::ForPeer, true);
            result
        }
        Some(Body::PutReq { cookie, .. }) => recv_put(&conn, cookie, req, rx, msg),
        Some(Body::GetReq { cookie, rd, .. }) => {
            let remote = Remote::new(&rd);
            recv_get(&conn, cookie, remote, req, rx, msg)
        }
        _ => {
            conn.with(|inner| inner.with_lnet = inner.with_lnet.saturating_sub(1));
            Err((req.msg, EPROTO))
        }
    }
}

/// An IMMEDIATE: the data is here.
fn recv_immediate(payload: &[u8], req: RecvRequest) -> Recv {
    let Some(msg) = req.msg else {
        return Ok(());
    };
    let sink = req.sink;
    let wanted = payload.get(..sink.nob());
    match wanted.map(|bytes| sink.copy_from_slice(0, bytes)) {
        Some(Ok(())) => {
            msg.finalize(0, LnetHealth::Ok);
            Ok(())
        }
        _ => Err((Some(msg), EPROTO)),
    }
}

/// A PUT_REQ: offers a sink by PUT_ACK, or says by PUT_NAK that none is to be had.
fn recv_put(
    conn: &Arc<Conn>,
    cookie: Cookie,
    req: RecvRequest,
    rx: KBox<Rx>,
    msg: Received,
) -> Recv {
    let nothing_wanted = req.sink.nob() == 0;
    let m = match req.msg {
        Some(m) if !nothing_wanted => m,
        other => {
            if let Some(m) = other {
                m.finalize(0, LnetHealth::Ok);
            }
            conn.give_back(rx, msg, Repost::ForPeer, false);
            conn.tell(Op::PutNak, cookie, 0, Owner::Nobody);
            return Ok(());
        }
    };
    let (sink, fragment, key) = match conn.make_sink(&req.sink) {
        Ok(made) => made,
        Err(e) => {
            conn.give_back(rx, msg, Repost::ForPeer, false);
            if conn.runs_short() {
                log::no_sink(conn.nid(), e);
            }
            conn.tell(Op::PutNak, cookie, e.to_errno(), Owner::Nobody);
            return Err((Some(m), e));
        }
    };
    let mut transfer = Transfer::message(Owner::Message(m));
    transfer.total = fragment.nob;
    transfer.memory = Memory::Sink(sink);
    // The buffer now serves the PUT_DONE that follows: it must be there before the PUT_ACK leaves.
    conn.give_back(rx, msg, Repost::Plain, false);
    let slots = conn.with(|inner| inner.limits().reg_and_send);
    let buf = (None, None);
    conn.submit_or_fail(Op::PutAck, slots, transfer, buf, |dst| BodyOut::PutAck {
        src: cookie,
        dst,
        key,
        frags: core::slice::from_ref(&fragment),
    });
    Ok(())
}

/// A GET_REQ: writes the data into the peer's sink and says so by GET_DONE.
fn recv_get(
    conn: &Arc<Conn>,
    cookie: Cookie,
    remote: Result<Remote>,
    req: RecvRequest,
    rx: KBox<Rx>,
    msg: Received,
) -> Recv {
    let Some(m) = req.msg else {
        conn.give_back(rx, msg, Repost::ForPeer, false);
        conn.tell(Op::GetDone, cookie, -errno::ENODATA, Owner::Nobody);
        return Ok(());
    };
    let Ok(total) = u32::try_from(req.source.nob()) else {
        conn.give_back(rx, msg, Repost::ForPeer, false);
        return Err((Some(m), EMSGSIZE));
    };
    if total == 0 {
        conn.give_back(rx, msg, Repost::ForPeer, false);
        conn.tell(Op::GetDone, cookie, 0, Owner::Message(m));
        return Ok(());
    }
    let mut transfer = Transfer::message(Owner::Nobody);
    transfer.total = total;
    let plan = remote.and_then(|remote| {
        transfer.memory = Memory::Source(conn.map_source(&req.source)?);
        let slots = transfer.slots(&remote, conn.with(|inner| inner.limits()))?;
        transfer.remote = Some(remote);
        Ok((slots, i32::try_from(total)?))
    });
    conn.give_back(rx, msg, Repost::ForPeer, false);
    match plan {
        Ok((slots, status)) => {
            transfer.owner = Owner::Message(m);
            conn.submit_or_fail(Op::GetDone, slots, transfer, (None, None), |_| {
                BodyOut::GetDone(Done { cookie, status })
            });
            Ok(())
        }
        Err(e) => {
            if conn.runs_short() {
                log::no_source(conn.nid(), e);
            }
            // Without an answer the peer would lose the whole connection to its timeout.
            conn.tell(Op::GetDone, cookie, e.to_errno(), Owner::Nobody);
            Err((Some(m), e))
        }
    }
}

impl Conn {
    /// Counts that memory for a request was not to be had. False: no news, the connection is over, and
    /// LNet took the message too late.
    fn runs_short(&self) -> bool {
        let up = self.with(|inner| inner.is_up());
        if up {
            self.ni.seen.no_memory();
        }
        up
    }

    /// Posts the buffer of a request again; the message that follows carries the credit. `ring`: none
    /// will follow by itself.
    fn give_back(self: &Arc<Self>, rx: KBox<Rx>, msg: Received, how: Repost, ring: bool) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.with_lnet = inner.with_lnet.saturating_sub(1);
        // Beyond the capacity it is freed.
        drop(inner.rx_boxes.push_within_capacity(rx));
        if let Err(cause) = wire::give_back(inner, msg, how) {
            self.step(inner, Event::Fail(cause));
        }
        if ring {
            self.ring(inner);
        }
    }
}
