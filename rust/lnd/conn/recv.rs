// SPDX-License-Identifier: GPL-2.0

//! Receive calls of LNet: a request becomes a copy, a sink, or WRITEs.
//!
//! Context: process, from inside `lnet_parse` or at any later time; re-entrant, may sleep. The connection lock is taken
//! briefly. The buffer of a request is posted again before the answer that returns its credit.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    buf_pool::ReserveUse,
    no_memory::NotReady,
    rx::Rx,
    send::Answered,
    tx_payload::{
        RdmaTarget,
        TxPayload, //
    },
    Conn, //
};
use crate::{
    lnd::{
        log,
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        RecvRequest,
        Request, //
    },
    proto::{
        cause::{
            errno,
            Health, //
        },
        credits::Repost,
        tx_state::Op,
        wire::{
            Body,
            BodyOut,
            Cookie,
            DescriptorOut,
            DoneBody, //
        }, //
    },
    rdma::work::NofsScope, //
};

/// Request while LNet has it.
pub(crate) type LnetRx = Rx<Conn>;

/// Implements `lnd_eager_recv`: LNet keeps a request for a while (a lazy portal, a router without buffers), perhaps for
/// ever, and the removal of the device must not wait for that. Process context.
pub(crate) fn eager_recv(rx: &mut LnetRx) {
    rx.detach();
}

/// Result of `lnd_recv`: on error LNet finalizes the message that it gets back.
type Recv = Result<(), (Option<Message>, Error)>;

/// Implements `lnd_recv`: LNet has matched a request (or wants it discarded). Always gives the buffer back.
pub(crate) fn recv(rx: KBox<LnetRx>, msg: Option<Message>, req: &RecvRequest) -> Recv {
    let mut rx = rx;
    let Some(conn) = rx.returned() else {
        return Err((msg, EPROTO));
    };
    let Some(msg) = msg else {
        discard(&conn, rx);
        return Ok(());
    };
    // The message was decoded before LNet got it.
    if let Some(payload) = rx.payload() {
        let result = recv_immediate(&conn, payload, msg, req);
        conn.give_back(rx, Repost::ForPeer, true);
        return result;
    }
    match rx.body() {
        Some(Body::PutReq { cookie, .. }) => recv_put(&conn, cookie, msg, req, rx),
        Some(Body::GetReq { cookie, rd, .. }) => {
            let remote = RdmaTarget::new(&rd);
            recv_get(&conn, cookie, remote, (msg, req), rx)
        }
        _ => {
            conn.rx_returned(rx);
            Err((Some(msg), EPROTO))
        }
    }
}

/// Drops a request that LNet does not want: gives its buffer back, and answers it if the peer waits for an answer. The
/// PUT_NAK has status 0, because the sender of an IMMEDIATE learns nothing either; GET_DONE reports that there is no
/// data.
pub(super) fn discard(conn: &Arc<Conn>, rx: KBox<LnetRx>) {
    let _nofs = NofsScope::enter();
    let (op, cookie, status) = match rx.body() {
        Some(Body::PutReq { cookie, .. }) => (Op::PutNak, cookie, 0),
        Some(Body::GetReq { cookie, .. }) => (Op::GetDone, cookie, -errno::ENODATA),
        _ => return conn.give_back(rx, Repost::ForPeer, true),
    };
    let taken = (rx, &RecvRequest::none());
    conn.answer_status(taken, op, DoneBody { cookie, status }, &mut None);
}

/// Receives an IMMEDIATE, whose data has arrived. Allocates nothing.
fn recv_immediate(conn: &Conn, payload: &[u8], msg: Message, req: &RecvRequest) -> Recv {
    let sink = req.pages();
    if sink.is_gpu() {
        // The sender cannot know the kind of memory.
        return Err((Some(msg), conn.refuse_gpu(EOPNOTSUPP).error()));
    }
    let wanted = payload.get(..sink.nob());
    match wanted.map(|bytes| sink.copy_from_slice(0, bytes)) {
        Some(Ok(())) => {
            msg.finalize(0, Health::Ok);
            Ok(())
        }
        _ => Err((Some(msg), EPROTO)),
    }
}

/// Receives a PUT_REQ: offers a sink by PUT_ACK, or reports by PUT_NAK that there is none.
fn recv_put(
    conn: &Arc<Conn>,
    cookie: Cookie,
    m: Message,
    req: &RecvRequest,
    rx: KBox<LnetRx>,
) -> Recv {
    let _nofs = NofsScope::enter();
    if req.nob() == 0 {
        m.finalize(0, Health::Ok);
        discard(conn, rx);
        return Ok(());
    }
    let parts = conn.with(|inner| inner.for_sink());
    let (owner, sink, fragment, key) = match conn.make_sink(parts, m, req) {
        Ok(made) => made,
        Err((msg, why)) => return conn.decline((rx, req), Op::PutNak, cookie, msg, why),
    };
    let what = |now| TxPayload {
        total: fragment.nob,
        sink: Some(sink),
        ..TxPayload::new(Some(owner), now)
    };
    let body = |dst| BodyOut::PutAck {
        src: cookie,
        dst,
        rd: DescriptorOut {
            key,
            frags: core::slice::from_ref(&fragment),
        },
    };
    // The buffer now serves the PUT_DONE that follows.
    let op = (Op::PutAck, 1);
    conn.answer((rx, req), Repost::Plain, op, what, body, &mut None);
    Ok(())
}

/// Serves a GET_REQ: writes the data into the peer's sink and sends GET_DONE.
fn recv_get(
    conn: &Arc<Conn>,
    cookie: Cookie,
    remote: Result<RdmaTarget>,
    (m, req): (Message, &RecvRequest),
    rx: KBox<LnetRx>,
) -> Recv {
    let _nofs = NofsScope::enter();
    let total = req.nob();
    if total == 0 {
        let done = DoneBody { cookie, status: 0 };
        let mut msg = Some(m);
        if conn.answer_status((rx, req), Op::GetDone, done, &mut msg) {
            if let Some(msg) = msg {
                msg.finalize(0, Health::Ok);
            }
        }
        return Ok(());
    }
    // The time to map LNet's pages counts.
    let since = Timestamp::now();
    let remote = match remote {
        Ok(remote) => remote,
        Err(e) => return conn.decline((rx, req), Op::GetDone, cookie, Some(m), e.into()),
    };
    let (device, max_sge) = conn.with(|inner| (inner.device(), inner.max_sge));
    let owner = match conn.map_source(device, m, req, ReserveUse::Answer) {
        Ok(owner) => owner,
        Err((m, why)) => return conn.decline((rx, req), Op::GetDone, cookie, m, why),
    };
    let plan = owner.map().ok_or(EINVAL).and_then(|map| {
        let slots = remote.slots(map, total, max_sge)?;
        Ok((slots, i32::try_from(total)?))
    });
    match plan {
        Ok((slots, status)) => {
            let what = |_| TxPayload {
                total,
                remote: Some(remote),
                ..TxPayload::new(Some(owner), since)
            };
            let done = DoneBody { cookie, status };
            let body = |_| BodyOut::GetDone(done);
            let op = (Op::GetDone, slots);
            conn.answer((rx, req), Repost::ForPeer, op, what, body, &mut None);
            Ok(())
        }
        Err(e) => {
            let msg = owner.into_message();
            conn.decline((rx, req), Op::GetDone, cookie, msg, e.into())
        }
    }
}

/// Request that LNet has taken, and the description of its data.
type TakenRx<'a> = (KBox<LnetRx>, &'a RecvRequest);

impl Conn {
    /// Answers a request: posts its buffer again, and queues the answer behind it. Process context; may sleep.
    ///
    /// Returns false if the request waits for memory, or the connection ends; then the message of the transfer, or
    /// `msg` if it has none, waits or ends, too.
    #[inline(always)]
    fn answer<'a>(
        self: &Arc<Self>,
        (rx, req): TakenRx<'_>,
        how: Repost,
        op: (Op, u16),
        what: impl FnOnce(Timestamp) -> TxPayload,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
        msg: &mut Option<Message>,
    ) -> bool {
        let mut rx = rx;
        self.bring_back(&mut rx);
        let mut answered = Some((rx, how));
        match self.submit(op, what, (None, None), &mut answered, body) {
            Ok(()) => true,
            Err((mut transfer, why)) => {
                let msg = transfer.unmap_message().or_else(|| msg.take());
                self.not_answered(answered, msg, req, why);
                false
            }
        }
    }

    /// Answers a request as [`Conn::answer`] does, with a status and without data.
    #[cold]
    fn answer_status(
        self: &Arc<Self>,
        taken: TakenRx<'_>,
        op: Op,
        done: DoneBody,
        msg: &mut Option<Message>,
    ) -> bool {
        let what = |now| TxPayload::new(None, now);
        let body = |_| match op {
            Op::PutNak => BodyOut::PutNak(done),
            _ => BodyOut::GetDone(done),
        };
        self.answer(taken, Repost::ForPeer, (op, 1), what, body, msg)
    }

    /// Tells the peer why its request cannot be served, and returns the message for LNet to finalize. If there is just
    /// no memory, the request waits instead, unless the peer would soon give up the connection.
    #[cold]
    fn decline(
        self: &Arc<Self>,
        (rx, req): TakenRx<'_>,
        op: Op,
        cookie: Cookie,
        msg: Option<Message>,
        why: NotReady,
    ) -> Recv {
        let mut msg = msg;
        let waits = match why {
            NotReady::Short(_) => rx.at.elapsed_ms() < self.ni.message_limit_ms() / 2,
            // Until one was added, or could not be, however long LNet has kept the request.
            NotReady::NoneIdle => true,
            _ => false,
        };
        if waits {
            self.not_answered(Some((rx, Repost::ForPeer)), msg, req, why);
            return Ok(());
        }
        let e = why.error();
        // On a closed connection it is no news: LNet took the message too late.
        if !matches!(why, NotReady::Gpu(_)) && self.count_shortage(&why) {
            match op {
                Op::PutNak => log::no_sink(self.nid(), matches!(why, NotReady::NoRegion(_)), e),
                _ => log::no_source(self.nid(), e),
            }
        }
        // Without an answer the peer would close the whole connection at its timeout.
        let status = e.to_errno();
        match self.answer_status((rx, req), op, DoneBody { cookie, status }, &mut msg) {
            true => Err((msg, e)),
            false => Ok(()),
        }
    }

    /// Ends the message of a request that was not answered, and the connection. If there is just no memory, the
    /// request waits instead.
    #[cold]
    #[inline(never)]
    fn not_answered(
        self: &Arc<Self>,
        answered: Answered,
        msg: Option<Message>,
        req: &RecvRequest,
        why: NotReady,
    ) {
        // The connection may have been closed meanwhile.
        let over = self.with(|inner| (!inner.state.is_up()).then(|| inner.state.end_cause()));
        let cause = over.unwrap_or(why.cause());
        if why.may_pass() {
            self.count_shortage(&why);
        }
        let (left, msg) = match answered {
            Some((rx, how)) if why.may_pass() => match self.keep_request(rx, msg, req, &why) {
                Ok(()) => return,
                Err((rx, msg)) => (Some((rx, how)), msg),
            },
            left => (left, msg),
        };
        // The peer waits for this answer: the disconnect tells it at once.
        self.end(cause);
        if let Some((rx, how)) = left {
            self.give_back(rx, how, false);
        }
        if let Some(msg) = msg {
            self.give_up(TxPayload::new(Some(msg.into()), Timestamp::now()), cause);
        }
    }
}
