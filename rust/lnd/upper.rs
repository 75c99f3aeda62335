// SPDX-License-Identifier: GPL-2.0

//! The LNet half of a connection: everything that calls LNet, and what LNet calls to send and
//! receive.
//!
//! [`Conn`]'s `upper` work item hands received requests to `lnet_parse` and finishes transmits, in
//! order, one connection at a time on one CPU. A slow LNet delays its own connection only: the
//! credits of what it has not taken stay withheld, while answers and credits keep flowing in
//! [`super::wire`].
//!
//! Process context. No lock is held across a call into LNet, which may send again from inside.

use super::conn::Conn;
use super::conn::Inner;
use super::conn::Received;
use super::conn::UPPER;
use super::control::PROBE_MS;
use super::log;
use super::pump::pump;
use super::transfer::Key;
use super::transfer::Memory;
use super::transfer::Owner;
use super::transfer::Remote;
use super::transfer::Sink;
use super::transfer::Transfer;
use super::wire;
use crate::lnet::Health as LnetHealth;
use crate::lnet::Message;
use crate::lnet::MsgKind;
use crate::lnet::RecvRequest;
use crate::lnet::SendRequest;
use crate::proto::cause::errno;
use crate::proto::cause::Cause;
use crate::proto::conn::Event;
use crate::proto::credits::Repost;
use crate::proto::encode::encode;
use crate::proto::encode::BodyOut;
use crate::proto::lnet_hdr;
use crate::proto::lnet_hdr::HdrError;
use crate::proto::lnet_hdr::LnetKind;
use crate::proto::lnet_hdr::Method;
use crate::proto::params::IMMEDIATE_HEAD;
use crate::proto::params::LNET_MTU;
use crate::proto::tx::Cell;
use crate::proto::tx::Op;
use crate::proto::wire::decode;
use crate::proto::wire::Body;
use crate::proto::wire::Cookie;
use crate::proto::wire::Done;
use crate::proto::wire::Fragment;
use crate::proto::wire::WireError;
use crate::rdma::page::Direction;
use crate::rdma::page::RxBuf;
use crate::rdma::page::TxBuf;
use crate::rdma::pages::BounceBuf;
use crate::rdma::pages::PageVec;
use crate::rdma::sg::SgMap;
use crate::rdma::work::NofsScope;
use core::fmt;
use core::fmt::Display;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::time::Delta;
use kernel::time::Instant;
use kernel::time::Monotonic;
use kernel::workqueue::WorkItem;

/// Messages and transmits handled before other connections on this CPU get their turn.
const BUDGET: u32 = 64;

/// Messages and transmits after which what they made LNet send is posted.
const CORKED: u32 = 8;

/// Microseconds after which it is posted though they were fewer: LNet may be slow.
const CORKED_US: i64 = 1000;

/// Milliseconds until a message that found no memory is tried again.
const RETRY_MS: u32 = 10;

/// Transmits made at once when the table is full.
const GROW_BY: usize = 16;

/// A received request while LNet has it: the `private` of `lnet_parse`, given back by `lnd_recv`.
pub(crate) struct Rx {
    pub(crate) conn: Arc<Conn>,
    msg: Received,
}

/// What the LNet half does next.
// One at a time, on the stack.
#[expect(clippy::large_enum_variant)]
enum Job {
    Parse(Received),
    Finish(Transfer, Option<Cause>, bool),
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
                inner.corked_by = me;
                let job = next_job(inner);
                // What LNet sends from inside goes with one doorbell, but not much later than it
                // could.
                let late = corked.elapsed() >= Delta::from_micros(CORKED_US);
                if job.is_none() || late || n % CORKED == 0 {
                    uncork(&this, inner);
                    corked = Instant::now();
                    if job.is_some() {
                        inner.corked_by = me;
                    }
                }
                job
            };
            match job {
                Some(Job::Finish(transfer, cause, posted)) => transfer.finish(cause, posted),
                Some(Job::Parse(msg)) => {
                    if !parse(&this, msg) {
                        return uncork(&this, &mut this.lock());
                    }
                }
                None => return,
            }
        }
        uncork(&this, &mut this.lock());
        this.kick_upper_again();
    }
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
        let transfer = inner.txs.get_mut(at).and_then(Option::take);
        inner.queues.release(&mut inner.cells, index);
        if let Some(transfer) = transfer {
            return Some(Job::Finish(transfer, cause, posted));
        }
    }
    inner.rx.pop().map(Job::Parse)
}

/// Gives a request to LNet. False: out of memory, the message was put back and is tried again by
/// the timer.
fn parse(conn: &Arc<Conn>, msg: Received) -> bool {
    let (hdr, rdma) = match request_header(msg.bytes()) {
        Ok(found) => found,
        Err(why) => {
            log::bad_request(conn, &why);
            conn.fail(Cause::Protocol);
            return true;
        }
    };
    let rx = match KBox::new_uninit(GFP_KERNEL) {
        Ok(slot) => KBox::write(
            slot,
            Rx {
                conn: conn.clone(),
                msg,
            },
        ),
        Err(_) => {
            // Back-pressure, not loss: its credit stays withheld until memory is there again.
            conn.with(|inner| {
                let _ = inner.rx.push_front(msg);
            });
            conn.rearm_timer(RETRY_MS);
            return false;
        }
    };
    if let Err((rx, e)) = conn.ni.lnet.parse(&hdr, conn.nid().raw(), rx, rdma) {
        drop(rx);
        log::refused_by_lnet(conn, e);
        conn.with(|inner| inner.with_lnet = inner.with_lnet.saturating_sub(1));
        conn.fail(if e == ESHUTDOWN {
            Cause::Shutdown
        } else {
            Cause::Protocol
        });
    }
    true
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

/// The LNet header of a request, checked against the kind of o2ib message it came in; and whether
/// the data moves by RDMA.
fn request_header(bytes: &[u8]) -> Result<([u8; 72], bool), BadRequest> {
    let msg = decode(bytes).map_err(BadRequest::Wire)?;
    match msg.body {
        Body::Immediate { hdr, payload } => {
            lnet_hdr::check_immediate(hdr, payload).map_err(BadRequest::Header)?;
            Ok((*hdr, false))
        }
        Body::PutReq { hdr, .. } => {
            lnet_hdr::check_put(hdr).map_err(BadRequest::Header)?;
            Ok((*hdr, true))
        }
        Body::GetReq { hdr, rd, .. } => {
            lnet_hdr::check_get(hdr, &rd).map_err(BadRequest::Header)?;
            Ok((*hdr, true))
        }
        _ => Err(BadRequest::NotARequest),
    }
}

/// `lnd_eager_recv`: LNet keeps a request for a while (a lazy portal, a router without buffers).
/// Its buffer is replaced now if it could not be when it came. May sleep.
pub(crate) fn eager_recv(rx: &mut Rx) {
    let Rx { conn, msg } = rx;
    if !msg.replaced {
        // Without memory the peer's credit stays withheld, which is all the harm.
        let Ok(buf) = conn.hca().and_then(|hca| RxBuf::alloc(&hca.device)) else {
            return;
        };
        let mut guard = conn.lock();
        let inner = &mut *guard;
        if !inner.may_receive() {
            return;
        }
        let posted = match inner.link.as_mut() {
            Some(link) => link.push_recv(buf),
            None => return,
        };
        match posted {
            Ok(()) => msg.replaced = true,
            Err(cause) => return conn.step(inner, Event::Fail(cause)),
        }
    }
    // LNet may keep it for ever: the device must not wait for that.
    msg.detach();
}

/// What `lnd_recv` returns: on error LNet finalizes the message it gets back.
type Recv = Result<(), (Option<Message>, Error)>;

/// `lnd_recv`: LNet has matched a request (or wants it discarded). Always gives the buffer back.
pub(crate) fn recv(rx: Rx, req: RecvRequest) -> Recv {
    let Rx { conn, msg } = rx;
    conn.with(|inner| inner.with_lnet = inner.with_lnet.saturating_sub(1));
    // It was judged before it went to LNet.
    let Ok(message) = decode(msg.bytes()) else {
        return Err((req.msg, EPROTO));
    };
    match message.body {
        Body::Immediate { payload, .. } => {
            let result = recv_immediate(payload, req);
            conn.give_back(msg, Repost::ForPeer);
            conn.ring(&mut conn.lock());
            result
        }
        Body::PutReq { cookie, .. } => recv_put(&conn, cookie, req, msg),
        Body::GetReq { cookie, rd, .. } => {
            let remote = Remote::new(&rd);
            recv_get(&conn, cookie, remote, req, msg)
        }
        _ => Err((req.msg, EPROTO)),
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
fn recv_put(conn: &Arc<Conn>, cookie: Cookie, req: RecvRequest, msg: Received) -> Recv {
    let nothing_wanted = req.sink.nob() == 0;
    let m = match req.msg {
        Some(m) if !nothing_wanted => m,
        other => {
            if let Some(m) = other {
                m.finalize(0, LnetHealth::Ok);
            }
            conn.give_back(msg, Repost::ForPeer);
            conn.tell(Op::PutNak, cookie, 0, Owner::Nobody);
            return Ok(());
        }
    };
    let (sink, fragment, key) = match conn.make_sink(req.sink) {
        Ok(made) => made,
        Err(e) => {
            conn.give_back(msg, Repost::ForPeer);
            log::no_sink(conn, e);
            conn.tell(Op::PutNak, cookie, e.to_errno(), Owner::Nobody);
            return Err((Some(m), e));
        }
    };
    let mut transfer = Transfer::message(Owner::Message(m));
    transfer.total = fragment.nob;
    transfer.memory = Memory::Sink(sink);
    // The buffer now serves the PUT_DONE that follows: it must be there before the PUT_ACK leaves.
    conn.give_back(msg, Repost::Plain);
    conn.submit_or_fail(Op::PutAck, 2, transfer, None, |dst| BodyOut::PutAck {
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
    msg: Received,
) -> Recv {
    let Some(m) = req.msg else {
        conn.give_back(msg, Repost::ForPeer);
        conn.tell(Op::GetDone, cookie, -errno::ENODATA, Owner::Nobody);
        return Ok(());
    };
    let Ok(total) = u32::try_from(req.source.nob()) else {
        conn.give_back(msg, Repost::ForPeer);
        return Err((Some(m), EMSGSIZE));
    };
    if total == 0 {
        conn.give_back(msg, Repost::ForPeer);
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
    conn.give_back(msg, Repost::ForPeer);
    match plan {
        Ok((slots, status)) => {
            transfer.owner = Owner::Message(m);
            conn.submit_or_fail(Op::GetDone, slots, transfer, None, |_| {
                BodyOut::GetDone(Done { cookie, status })
            });
            Ok(())
        }
        Err(e) => {
            log::no_source(conn, e);
            // Without an answer the peer would lose the whole connection to its timeout.
            conn.tell(Op::GetDone, cookie, e.to_errno(), Owner::Nobody);
            Err((Some(m), e))
        }
    }
}

/// Why [`send`] did not take a request.
pub(crate) enum NotSent {
    /// The connection is over; another one may take it.
    Closed(SendRequest),
    /// It cannot be sent at all; LNet finalizes it.
    Failed(Message, Error),
}

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(crate) fn send(conn: &Arc<Conn>, req: SendRequest) -> Result<(), NotSent> {
    if !conn.with(|inner| inner.is_up()) {
        return Err(NotSent::Closed(req));
    }
    let routed = req.to_router || req.routing;
    let (nob, gpu) = match req.kind {
        MsgKind::Get => (req.sink.nob(), req.sink.is_gpu()),
        _ => (req.payload.nob(), req.payload.is_gpu()),
    };
    let nob = u32::try_from(nob).unwrap_or(u32::MAX);
    let sent = match lnet_hdr::choose(lnet_kind(req.kind), routed, nob, gpu) {
        Some(Method::Immediate) => send_immediate(conn, req),
        Some(Method::PutReq) => send_put(conn, req),
        Some(Method::GetReq) => send_get(conn, req),
        None => Err((req.msg, EINVAL)),
    };
    sent.map_err(|(msg, e)| NotSent::Failed(msg, e))
}

/// What could not be sent, for LNet to finalize.
type Send = Result<(), (Message, Error)>;

fn send_immediate(conn: &Arc<Conn>, req: SendRequest) -> Send {
    let SendRequest {
        msg, hdr, payload, ..
    } = req;
    let payload_len = payload.nob();
    let transfer = Transfer::message(Owner::Message(msg));
    conn.submit_or_fail(Op::Immediate, 1, transfer, Some(&payload), |_| {
        BodyOut::Immediate {
            hdr: &hdr,
            payload_len,
        }
    });
    Ok(())
}

fn send_put(conn: &Arc<Conn>, req: SendRequest) -> Send {
    let SendRequest {
        msg, hdr, payload, ..
    } = req;
    let total = match u32::try_from(payload.nob()) {
        Ok(n) if n <= LNET_MTU => n,
        _ => return Err((msg, EMSGSIZE)),
    };
    let made = conn
        .map_source(&payload)
        .and_then(|map| Ok((map, conn.take_buf()?)));
    let (map, spare) = match made {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let mut transfer = Transfer::message(Owner::Message(msg));
    transfer.total = total;
    transfer.memory = Memory::Source(map);
    transfer.spare = Some(spare);
    conn.submit_or_fail(Op::PutReq, 1, transfer, None, |cookie| BodyOut::PutReq {
        hdr: &hdr,
        cookie,
    });
    Ok(())
}

fn send_get(conn: &Arc<Conn>, req: SendRequest) -> Send {
    let SendRequest { msg, hdr, sink, .. } = req;
    let (sink, fragment, key) = match conn.make_sink(sink) {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let Some(reply) = msg.create_reply(&conn.ni.lnet) else {
        conn.drop_sink(sink);
        return Err((msg, ENOMEM));
    };
    let mut transfer = Transfer::message(Owner::Get { get: msg, reply });
    transfer.total = fragment.nob;
    transfer.memory = Memory::Sink(sink);
    conn.submit_or_fail(Op::GetReq, 2, transfer, None, |cookie| BodyOut::GetReq {
        hdr: &hdr,
        cookie,
        key,
        frags: core::slice::from_ref(&fragment),
    });
    Ok(())
}

/// The protocol's name for LNet's.
fn lnet_kind(kind: MsgKind) -> LnetKind {
    match kind {
        MsgKind::Ack => LnetKind::Ack,
        MsgKind::Put => LnetKind::Put,
        MsgKind::Get => LnetKind::Get,
        MsgKind::Reply => LnetKind::Reply,
    }
}

impl Conn {
    /// Posts the buffer of a request again; the message that follows carries the credit.
    fn give_back(self: &Arc<Self>, msg: Received, how: Repost) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Err(cause) = wire::give_back(inner, msg, how) {
            self.step(inner, Event::Fail(cause));
        }
    }

    /// Rings the doorbell, unless the LNet half will do so in a moment.
    fn ring(self: &Arc<Self>, inner: &mut Inner) {
        if inner.corked_by == 0 || inner.corked_by != kernel::current!().pid() {
            pump(self, inner, false);
        }
    }

    /// Sends a completion message: a byte count or a negative errno.
    fn tell(self: &Arc<Self>, op: Op, cookie: Cookie, status: i32, owner: Owner) {
        let done = Done { cookie, status };
        self.submit_or_fail(op, 1, Transfer::message(owner), None, |_| {
            if op == Op::PutNak {
                BodyOut::PutNak(done)
            } else {
                BodyOut::GetDone(done)
            }
        });
    }

    /// Queues a transmit, or finishes it at once with the reason why not.
    fn submit_or_fail<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: u16,
        transfer: Transfer,
        payload: Option<&PageVec>,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) {
        if let Err((mut transfer, cause)) = self.submit(op, slots, transfer, payload, body) {
            if matches!(op, Op::PutAck | Op::PutNak | Op::GetDone) {
                // The peer waits for this answer: the disconnect tells it at once.
                self.fail(cause);
            }
            if let Memory::Sink(sink) = core::mem::replace(&mut transfer.memory, Memory::None) {
                self.drop_sink(sink);
            }
            transfer.finish(Some(cause), false);
        }
    }

    /// Builds the message of a transmit, queues it, and posts what may go.
    fn submit<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: u16,
        transfer: Transfer,
        payload: Option<&PageVec>,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (Transfer, Cause)> {
        let mut transfer = transfer;
        let mut buf = match self.message_buf(payload) {
            Ok(buf) => buf,
            Err(e) => return Err((transfer, Cause::Local(e.to_errno()))),
        };
        let (mut guard, id) = loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if !inner.is_up() {
                return Err((transfer, inner.fsm.cause().unwrap_or(Cause::Flushed)));
            }
            if let Some(id) = inner.queues.alloc(&mut inner.cells, op) {
                break (guard, id);
            }
            drop(guard);
            if self.grow().is_err() {
                return Err((transfer, Cause::NoResources));
            }
        };
        let inner = &mut *guard;
        let at = usize::from(id.index);
        let body = body(Cookie(id.cookie(self.mask)));
        let encoded = encode(buf.as_mut_slice(), &inner.envelope(), &body);
        match (encoded, inner.cells.get_mut(at), inner.txs.get_mut(at)) {
            (Ok(nob), Some(cell), Some(entry)) => {
                transfer.nob = nob;
                transfer.buf = Some(buf);
                *entry = Some(transfer);
                cell.slots = slots;
                let then = cell.tx.enqueue();
                // Its own sender does not violate anything.
                let _ = inner.queues.follow(&mut inner.cells, id.index, then);
            }
            _ => {
                inner.queues.release(&mut inner.cells, id.index);
                return Err((transfer, Cause::Local(EMSGSIZE.to_errno())));
            }
        }
        self.ring(inner);
        self.kick_upper(inner);
        if !core::mem::replace(&mut inner.watched, true) {
            self.rearm_timer(PROBE_MS);
        }
        Ok(())
    }

    /// A message buffer, with the payload of an IMMEDIATE already behind its head. At most 3976
    /// bytes: a copy is cheaper than a mapping, right for any shape of pages, and covered by the
    /// checksum.
    fn message_buf(&self, payload: Option<&PageVec>) -> Result<TxBuf> {
        let mut buf = self.take_buf()?;
        if let Some(pages) = payload {
            let end = IMMEDIATE_HEAD.checked_add(pages.nob()).ok_or(EMSGSIZE)?;
            let to = buf
                .as_mut_slice()
                .get_mut(IMMEDIATE_HEAD..end)
                .ok_or(EMSGSIZE)?;
            pages.copy_to_slice(0, to)?;
        }
        Ok(buf)
    }

    /// A free message buffer, or a new one. May sleep.
    fn take_buf(&self) -> Result<TxBuf> {
        match self.with(|inner| inner.bufs.pop()) {
            Some(buf) => Ok(buf),
            None => TxBuf::alloc(&self.hca()?.device),
        }
    }

    /// Maps the pages that our WRITEs read.
    fn map_source(&self, pages: &PageVec) -> Result<Arc<SgMap>> {
        SgMap::map(self.hca()?.device.clone(), pages, Direction::ToDevice)
    }

    /// Maps the pages that the peer's WRITEs go to, behind a key of their own: the sink, its only
    /// fragment, and the key.
    fn make_sink(&self, pages: PageVec) -> Result<(Sink, Fragment, u32)> {
        let nob = match u32::try_from(pages.nob()) {
            Ok(n) if n > 0 && n <= LNET_MTU => n,
            _ => return Err(EMSGSIZE),
        };
        let hca = self.hca()?;
        let device = &hca.device;
        let bounce = if pages.can_register(hca.mr_pages) {
            None
        } else {
            // One key cannot cover pages with gaps.
            Some(BounceBuf::alloc(device.clone(), pages.nob())?)
        };
        let map = match bounce.as_ref().map(BounceBuf::map) {
            None => SgMap::map(device.clone(), &pages, Direction::FromDevice)?,
            Some(map) => map.ok_or(ENOMEM)?.clone(),
        };
        let qp = self.with(|inner| inner.link.as_ref().map(|link| link.qp().clone()));
        let qp = qp.ok_or(ENOTCONN)?;
        let mr = qp.take_mr().ok_or(ENOBUFS)?;
        let mr = match qp.map_mr(mr, map) {
            Ok(mr) => mr,
            Err((mr, e)) => {
                qp.put_mr(mr);
                return Err(e);
            }
        };
        let fragment = Fragment {
            nob,
            addr: mr.iova(),
        };
        let rkey = mr.rkey();
        let key = Key::Mapped(mr);
        let sink = Sink { key, pages, bounce };
        Ok((sink, fragment, rkey))
    }

    /// Gives a sink up whose key nobody was told.
    fn drop_sink(&self, sink: Sink) {
        let qp = self.with(|inner| inner.link.as_ref().map(|link| link.qp().clone()));
        if let (Key::Mapped(mr), Some(qp)) = (sink.key, qp) {
            qp.put_mr(qp.unmap_mr(mr));
        }
    }

    /// Makes more transmits. May sleep.
    fn grow(&self) -> Result {
        let have = self.with(|inner| inner.cells.len());
        let want = have.saturating_add(GROW_BY);
        let mut cells = KVec::with_capacity(want, GFP_KERNEL)?;
        let mut txs = KVec::with_capacity(want, GFP_KERNEL)?;
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.cells.len() != have {
            // Somebody else was faster.
            return Ok(());
        }
        let first = u16::try_from(have)?;
        // All of this fits into the room made above.
        for cell in inner.cells.iter() {
            let _ = cells.push_within_capacity(*cell);
        }
        for entry in inner.txs.iter_mut() {
            let _ = txs.push_within_capacity(entry.take());
        }
        for _ in 0..GROW_BY {
            let _ = cells.push_within_capacity(Cell::FREE);
            let _ = txs.push_within_capacity(None);
        }
        core::mem::swap(&mut inner.cells, &mut cells);
        core::mem::swap(&mut inner.txs, &mut txs);
        inner.queues.grow(&mut inner.cells, first);
        // The old tables are freed without the lock.
        drop(guard);
        Ok(())
    }
}
