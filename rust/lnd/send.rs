// SPDX-License-Identifier: GPL-2.0

//! From a message of LNet, or an answer of ours, to a transmit in the queues of a connection.
//!
//! Buffers, mappings and memory regions are made first, without a lock; then the message is built and
//! queued under the connection lock, and what may go is posted ([`super::pump`]).
//!
//! Process context; may sleep; re-entrant, because LNet sends from inside `lnet_finalize`.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    conn::{
        Conn,
        Inner,
        PROBE_MS, //
    },
    peer::NotSent,
    pump::pump,
    transfer::{
        Bounce,
        Ended,
        Key,
        Memory,
        Owner,
        Sink,
        Transfer, //
    }, //
};
use crate::{
    lnet::{
        Message,
        MsgKind,
        SendRequest, //
    },
    proto::{
        cause::Cause,
        encode::{
            encode,
            BodyOut, //
        },
        lnet_hdr::{
            self,
            LnetKind,
            Method, //
        },
        params::{
            IMMEDIATE_HEAD,
            LNET_MTU, //
        },
        queues::Cell,
        tx::Op,
        wire::{
            Cookie,
            Done,
            Fragment, //
        }, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::{
            Direction,
            TxBuf, //
        },
        pages::PageVec,
        sg::SgMap, //
    }, //
};

/// Transmits made at once when the table is full, at least; half as many as there are if that is
/// more, because the table moves each time.
const GROW_BY: usize = 16;

/// Most transmits a table can name.
const TXS_MAX: usize = u16::MAX as usize;

/// Work requests under way from which on further messages wait for the next completion, to go together. Fewer
/// would keep the wire idle between two batches.
const RING_BELOW: u64 = 8;

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(crate) fn send(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
    let Some(buf) = conn.with(|inner| inner.is_up().then(|| inner.bufs.pop())) else {
        return Err(NotSent::Closed(msg));
    };
    let routed = req.to_router || req.routing;
    let (nob, gpu) = match req.kind {
        MsgKind::Get => (req.sink.nob(), req.sink.is_gpu()),
        _ => (req.payload.nob(), req.payload.is_gpu()),
    };
    let nob = u32::try_from(nob).unwrap_or(u32::MAX);
    let sent = match lnet_hdr::choose(lnet_kind(req.kind), routed, nob, gpu) {
        Some(Method::Immediate) => send_immediate(conn, msg, req, buf),
        Some(Method::PutReq) => send_put(conn, msg, req, buf),
        Some(Method::GetReq) => send_get(conn, msg, req, buf),
        None => Err((msg, EINVAL)),
    };
    match sent {
        Err((msg, e)) => match conn.transient(e) {
            Some(cause) => {
                Ended::unsent(msg).finish(Some(cause), false);
                Ok(())
            }
            None => Err(NotSent::Failed(msg, e)),
        },
        Ok(()) => Ok(()),
    }
}

/// What could not be sent, for LNet to finalize.
type Send = Result<(), (Message, Error)>;

fn send_immediate(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let body = BodyOut::Immediate {
        hdr: &req.hdr,
        payload_len: req.payload.nob(),
    };
    conn.submit_or_fail(
        Op::Immediate,
        1,
        Owner::Message(msg),
        (buf, Some(&req.payload)),
        |_| body,
    );
    Ok(())
}

fn send_put(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let SendRequest { hdr, payload, .. } = req;
    let total = match u32::try_from(payload.nob()) {
        Ok(n) if n <= LNET_MTU => n,
        _ => return Err((msg, EMSGSIZE)),
    };
    let made = conn
        .map_source(payload)
        .and_then(|map| Ok((map, conn.take_buf()?)));
    let (map, spare) = match made {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let mut transfer = Transfer::message(Owner::Message(msg));
    transfer.total = total;
    transfer.memory = Memory::Source(map);
    transfer.spare = Some(spare);
    let buf = (buf, None);
    conn.submit_or_fail(Op::PutReq, 1, transfer, buf, |cookie| BodyOut::PutReq {
        hdr,
        cookie,
    });
    Ok(())
}

fn send_get(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let hdr = &req.hdr;
    let (sink, fragment, key) = match conn.make_sink(&req.sink) {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let get = match msg.into_get(&conn.ni.lnet) {
        Ok(get) => get,
        Err(msg) => {
            conn.drop_sink(sink);
            return Err((msg, ENOMEM));
        }
    };
    let mut transfer = Transfer::message(Owner::Get(get));
    transfer.total = fragment.nob;
    transfer.memory = Memory::Sink(sink);
    let slots = conn.with(|inner| inner.limits().reg_and_send);
    conn.submit_or_fail(Op::GetReq, slots, transfer, (buf, None), |cookie| {
        BodyOut::GetReq {
            hdr,
            cookie,
            key,
            frags: core::slice::from_ref(&fragment),
        }
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
    /// Why a transmit could not be built, if another try may go well: the connection has ended
    /// meanwhile, or it is want of memory, of regions, or of room to map (`EIO`). LNet sends again what
    /// ends so, which it does not if it is told that it cannot be sent.
    fn transient(&self, e: Error) -> Option<Cause> {
        let ended = self.with(|inner| {
            let over = !inner.is_up();
            over.then(|| inner.fsm.cause().unwrap_or(Cause::Flushed))
        });
        let short = e == ENOMEM || e == ENOBUFS || e == EIO;
        ended.or(short.then_some(Cause::NoResources))
    }

    /// Rings the doorbell, unless the LNet half will do so in a moment, or a completion, which is certain to
    /// come: the last work request of each batch asks for one.
    pub(super) fn ring(self: &Arc<Self>, inner: &mut Inner) {
        let corked = inner.corked_by != 0 && inner.corked_by == kernel::current!().pid();
        let under_way = inner.counts.wrs.wrapping_sub(inner.counts.retired);
        if !corked && under_way < RING_BELOW {
            pump(self, inner, false);
        }
    }

    /// Sends a completion message: a byte count or a negative errno.
    pub(super) fn tell(self: &Arc<Self>, op: Op, cookie: Cookie, status: i32, owner: Owner) {
        let done = Done { cookie, status };
        self.submit_or_fail(op, 1, owner, (None, None), |_| {
            if op == Op::PutNak {
                BodyOut::PutNak(done)
            } else {
                BodyOut::GetDone(done)
            }
        });
    }

    /// Queues a transmit, or finishes it at once with the reason why not. `what` is the transfer, or
    /// of a message alone its owner; `buf` may be a message buffer, and what is copied into it.
    pub(super) fn submit_or_fail<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: u16,
        what: impl Into<Transfer>,
        buf: (Option<TxBuf>, Option<&PageVec>),
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) {
        if let Err((what, cause)) = self.submit(op, slots, what, buf, body) {
            let mut transfer = what.into();
            if matches!(op, Op::PutAck | Op::PutNak | Op::GetDone) {
                // The peer waits for this answer: the disconnect tells it at once.
                self.fail(cause);
            }
            if let Memory::Sink(sink) = core::mem::replace(&mut transfer.memory, Memory::None) {
                self.drop_sink(sink);
            }
            transfer.end().finish(Some(cause), false);
        }
    }

    /// Builds the message of a transmit, queues it, and posts what may go.
    fn submit<'a, W: Into<Transfer>>(
        self: &Arc<Self>,
        op: Op,
        slots: u16,
        what: W,
        buf: (Option<TxBuf>, Option<&PageVec>),
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (W, Cause)> {
        let mut buf = match self.message_buf(buf) {
            Ok(buf) => buf,
            Err(e) => {
                let cause = self.transient(e);
                return Err((what, cause.unwrap_or(Cause::Local(e.to_errno()))));
            }
        };
        let (mut guard, id) = loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if !inner.is_up() {
                return Err((what, inner.fsm.cause().unwrap_or(Cause::Flushed)));
            }
            if let Some(id) = inner.queues.alloc(&mut inner.cells, op) {
                break (guard, id);
            }
            drop(guard);
            if self.grow().is_err() {
                return Err((what, Cause::NoResources));
            }
        };
        let inner = &mut *guard;
        let at = usize::from(id.index);
        let body = body(Cookie(id.cookie(self.mask)));
        let encoded = encode(buf.as_mut_slice(), &inner.envelope(), &body);
        match (encoded, inner.cells.get_mut(at), inner.txs.get_mut(at)) {
            (Ok(nob), Some(cell), Some(entry)) => {
                let transfer = entry.insert(what.into());
                transfer.nob = nob;
                transfer.buf = Some(buf);
                cell.slots = slots;
                let then = cell.tx.enqueue();
                // Its own sender does not violate anything.
                let _ = inner.queues.follow(&mut inner.cells, id.index, then);
            }
            _ => {
                inner.queues.release(&mut inner.cells, id.index);
                return Err((what, Cause::Local(EMSGSIZE.to_errno())));
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
    fn message_buf(&self, what: (Option<TxBuf>, Option<&PageVec>)) -> Result<TxBuf> {
        let (buf, payload) = what;
        let mut buf = buf.map_or_else(|| self.take_buf(), Ok)?;
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
    pub(super) fn map_source(&self, pages: &PageVec) -> Result<Arc<SgMap>> {
        SgMap::map(self.hca()?.device.clone(), pages, Direction::ToDevice)
    }

    /// Maps the pages that the peer's WRITEs go to, behind a key of their own: the sink, its only
    /// fragment, and the key.
    pub(super) fn make_sink(&self, pages: &PageVec) -> Result<(Sink, Fragment, u32)> {
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
            let buf = BounceBuf::alloc(device.clone(), pages.nob())?;
            let to = pages.share();
            Some(KBox::new(Bounce { buf, to }, GFP_KERNEL)?)
        };
        let map = match bounce.as_ref().map(|bounce| bounce.buf.map()) {
            None => SgMap::map(device.clone(), pages, Direction::FromDevice)?,
            Some(map) => map.ok_or(ENOMEM)?.clone(),
        };
        let qp = self.with(|inner| inner.link.as_ref().map(|link| link.qp().clone()));
        let qp = qp.ok_or(ENOTCONN)?;
        let mr = qp.take_mr()?;
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
        let sink = Sink { key, bounce };
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
        let want = have.saturating_add(GROW_BY.max(have / 2)).min(TXS_MAX);
        if want <= have {
            return Err(ENOSPC);
        }
        let mut cells = KVVec::with_capacity(want, GFP_KERNEL)?;
        let mut txs = KVVec::with_capacity(want, GFP_KERNEL)?;
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
        for _ in have..want {
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
