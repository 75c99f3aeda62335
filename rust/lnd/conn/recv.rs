// SPDX-License-Identifier: GPL-2.0

//! What LNet calls to receive: a request becomes a copy, a sink, or WRITEs.
//!
//! Context: process, from inside of `lnet_parse` or any time later; re-entrant, may sleep. The connection
//! lock is taken briefly. The buffer of a request is posted again before the answer that tells the peer so.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    ended::Owner,
    memory::NotReady,
    received::{
        self,
        Received, //
    },
    remote::{
        Limits,
        Remote, //
    },
    transfer::Transfer,
    Conn, //
};
use crate::{
    lnd::{
        counts::Count,
        log,
        moment::Moment, //
    },
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
        tx::Op,
        wire::{
            reopen,
            Body,
            Cookie,
            Done, //
        }, //
    },
    rdma::{
        buf::RxBuf,
        work::NofsScope, //
    }, //
};

/// A request while LNet has it.
pub(crate) type Rx = received::Rx<Conn>;

/// `lnd_eager_recv`: LNet keeps a request for a while (a lazy portal, a router without buffers).
/// Its buffer is replaced: in the receive queue, if it could not be when it came, else among the
/// spares. May sleep.
pub(crate) fn eager_recv(rx: &mut Rx) {
    let Some((conn, msg)) = rx.lent() else {
        return;
    };
    // It need not be our worker: a message that LNet held back has a thread of its own.
    let nofs = NofsScope::enter();
    let buf = conn.hca().and_then(|hca| RxBuf::alloc(&hca.device));
    drop(nofs);
    let mut guard = conn.lock();
    let inner = &mut *guard;
    if inner.life.may_receive() {
        // Without memory its place stays empty, and the peer's credit withheld, until LNet gives it back.
        if let Ok(Err(fault)) = buf.map(|buf| inner.wire.make_good(msg, buf)) {
            conn.blame(inner, fault);
        }
    }
    drop(guard);
    // LNet may keep it for ever, and the device must not wait for that.
    msg.detach();
}

/// What `lnd_recv` returns: on error LNet finalizes the message it gets back.
type Recv = Result<(), (Option<Message>, Error)>;

/// `lnd_recv`: LNet has matched a request (or wants it discarded). Always gives the buffer back.
pub(crate) fn recv(rx: KBox<Rx>, msg: Option<Message>, req: &RecvRequest) -> Recv {
    let mut rx = rx;
    let Some(conn) = rx.returned() else {
        return Err((msg, EPROTO));
    };
    // It was judged before it went to LNet.
    let had = rx.msg();
    let body = had
        .facts()
        .and_then(|facts| reopen(had.bytes(), facts).ok());
    match body {
        Some(Body::Immediate { payload, .. }) => {
            let result = recv_immediate(&conn, payload, msg, req);
            conn.give_back(rx, Repost::ForPeer, true);
            result
        }
        Some(Body::PutReq { cookie, .. }) => recv_put(&conn, cookie, msg, req, rx),
        Some(Body::GetReq { cookie, rd, .. }) => {
            let remote = Remote::new(&rd);
            recv_get(&conn, cookie, remote, (msg, req), rx)
        }
        _ => {
            drop(rx.msg_mut().take_buf());
            conn.came_back(rx);
            Err((msg, EPROTO))
        }
    }
}

/// An IMMEDIATE: the data is here. Allocates nothing.
fn recv_immediate(conn: &Conn, payload: &[u8], msg: Option<Message>, req: &RecvRequest) -> Recv {
    let Some(msg) = msg else {
        return Ok(());
    };
    let sink = req.pages();
    if sink.is_gpu() {
        // The sender cannot know where it goes.
        return Err((Some(msg), conn.refuse_gpu(EOPNOTSUPP).error()));
    }
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
    msg: Option<Message>,
    req: &RecvRequest,
    rx: KBox<Rx>,
) -> Recv {
    let _nofs = NofsScope::enter();
    let m = match msg {
        Some(m) if req.nob() > 0 => m,
        other => {
            if let Some(m) = other {
                m.finalize(0, LnetHealth::Ok);
            }
            conn.give_back(rx, Repost::ForPeer, false);
            conn.tell(Op::PutNak, cookie, 0, Owner::Nobody);
            return Ok(());
        }
    };
    let (sink, fragment, key) =
        match conn.make_sink(conn.with(|inner| inner.wire.for_sink()), &req.pages()) {
            Ok(made) => made,
            Err(why) => {
                let e = why.error();
                conn.give_back(rx, Repost::ForPeer, false);
                if conn.runs_short(&why) {
                    log::no_sink(conn.nid(), matches!(why, NotReady::NoRegion(_)), e);
                }
                conn.tell(Op::PutNak, cookie, e.to_errno(), Owner::Nobody);
                return Err((Some(m), e));
            }
        };
    // The buffer now serves the PUT_DONE that follows: it must be there before the PUT_ACK leaves.
    conn.give_back(rx, Repost::Plain, false);
    let slots = |limits: Limits| limits.reg_and_send();
    let what = |now| Transfer::message(Owner::Message(m), now).read_into(sink, fragment.nob);
    conn.submit_or_fail(Op::PutAck, slots, what, None, |dst| BodyOut::PutAck {
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
    (msg, req): (Option<Message>, &RecvRequest),
    rx: KBox<Rx>,
) -> Recv {
    let _nofs = NofsScope::enter();
    let Some(m) = msg else {
        conn.give_back(rx, Repost::ForPeer, false);
        conn.tell(Op::GetDone, cookie, -errno::ENODATA, Owner::Nobody);
        return Ok(());
    };
    let total = req.nob();
    if total == 0 {
        conn.give_back(rx, Repost::ForPeer, false);
        conn.tell(Op::GetDone, cookie, 0, Owner::Message(m));
        return Ok(());
    }
    // That LNet's pages are mapped counts.
    let since = Moment::now();
    let plan = remote.map_err(NotReady::from).and_then(|remote| {
        let (device, limits) = conn.with(|inner| (inner.wire.device(), inner.wire.limits()));
        let map = conn.map_source(device, &req.pages())?;
        let slots = remote.slots(&map, total, limits)?;
        let status = i32::try_from(total).map_err(Error::from)?;
        Ok((remote, map, slots, status))
    });
    conn.give_back(rx, Repost::ForPeer, false);
    match plan {
        Ok((remote, map, slots, status)) => {
            let what = |_| Transfer::message(Owner::Message(m), since).write_to(remote, map, total);
            conn.submit_or_fail(
                Op::GetDone,
                |_| slots,
                what,
                None,
                |_| BodyOut::GetDone(Done { cookie, status }),
            );
            Ok(())
        }
        Err(why) => {
            let e = why.error();
            if conn.runs_short(&why) {
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
    /// LNet took the message too late; or it was said already.
    fn runs_short(&self, why: &NotReady) -> bool {
        let up = matches!(why, NotReady::Here(_) | NotReady::NoRegion(_))
            && self.with(|inner| {
                let up = inner.life.is_up();
                if up {
                    inner.wire.count(Count::NoMemory);
                }
                up
            });
        if up {
            self.ni.seen.no_memory();
        }
        up
    }

    /// Makes a buffer ready to be posted that was taken from its device when LNet kept the message, and not
    /// replaced. Not if no more are posted.
    #[cold]
    fn reclaim(&self, msg: &mut Received) -> Result {
        let _nofs = NofsScope::enter();
        match self.with(|inner| inner.life.may_receive().then(|| inner.wire.hca())) {
            Some(hca) => msg.attach(&hca.ok_or(ENODEV)?.device),
            None => Ok(()),
        }
    }

    /// A request is over, and its buffer is gone.
    pub(super) fn came_back(&self, rx: KBox<Rx>) {
        if self.with(|inner| inner.inbox.returned_late(rx)) {
            self.ni.orphans.returned(self.nid());
        }
    }

    /// Posts the buffer of a request again; the message that follows carries the credit. `ring`: none
    /// will follow by itself.
    fn give_back(self: &Arc<Self>, rx: KBox<Rx>, how: Repost, ring: bool) {
        let mut rx = rx;
        let msg = rx.msg_mut();
        let had = match msg.is_missed() {
            true => self.reclaim(msg),
            false => Ok(()),
        };
        let now = Moment::now();
        let mut left = None;
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(facts) = msg.facts() {
            let meter = inner.wire.meter();
            meter.given_back(facts.kind(), msg.at(), now);
        }
        let mut fault = None;
        let mut orphan = false;
        if had.is_ok() && inner.life.may_receive() {
            fault = inner.wire.give_back(msg, how).err();
            inner.inbox.returned(rx);
        } else {
            left = Some(msg.take_buf());
            orphan = inner.inbox.returned_late(rx);
        }
        if let Some(fault) = fault {
            self.blame(inner, fault);
        }
        if had.is_err() {
            self.step(inner, Event::Fail(Cause::NoResources));
        } else if ring {
            self.ring(inner, now);
        }
        drop(guard);
        // Memory goes without the lock.
        if let Some(left) = left {
            drop(left);
            if orphan {
                self.ni.orphans.returned(self.nid());
            }
        }
        if let Err(e) = had {
            log::cannot(self.nid(), "make a receive buffer", e);
        }
    }
}
