// SPDX-License-Identifier: GPL-2.0

//! A message of LNet becomes a transmit of its kind.
//!
//! Buffers, mappings and memory regions are made first, without a lock; then the message is built and
//! queued ([`super::submit`]).
//!
//! Context: process; may sleep; re-entrant, because LNet sends from inside `lnet_finalize`.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    memory::NotReady,
    remote::Limits,
    transfer::{
        Ended,
        Owner,
        Transfer, //
    },
    Conn, //
};
use crate::{
    lnd::peer::NotSent,
    lnet::{
        Health as LnetHealth,
        Message,
        MsgKind,
        SendRequest, //
    },
    proto::{
        encode::BodyOut,
        lnet_hdr::{
            self,
            LnetKind,
            Method, //
        },
        params::LNET_MTU,
        tx::Op, //
    },
    rdma::buf::TxBuf, //
};

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(super) fn send(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
    let Some(buf) = conn.with(|inner| inner.life.is_up().then(|| inner.wire.take_buf())) else {
        return Err(NotSent::Closed(msg));
    };
    let pages = req.pages();
    let nob = u32::try_from(pages.nob()).unwrap_or(u32::MAX);
    let method = req
        .kind()
        .and_then(|kind| lnet_hdr::choose(lnet_kind(kind), req.is_routed(), nob, pages.is_gpu()));
    let sent = match method {
        Some(Method::Immediate) => send_immediate(conn, msg, req, buf),
        Some(Method::PutReq) => send_put(conn, msg, req, buf),
        Some(Method::GetReq) => send_get(conn, msg, req, buf),
        None => Err((msg, EINVAL.into())),
    };
    match sent {
        // Nothing is wrong with this NI, and another try would not help.
        Err((msg, NotReady::Gpu(e))) => {
            msg.finalize(e.to_errno(), LnetHealth::Ok);
            Ok(())
        }
        Err((msg, NotReady::Here(e) | NotReady::NoRegion(e))) => match conn.transient(e) {
            Some(cause) => {
                conn.give_up(Ended::unsent(msg), cause);
                Ok(())
            }
            None => Err(NotSent::Failed(msg, e)),
        },
        Ok(()) => Ok(()),
    }
}

/// What could not be sent, for LNet to finalize.
type Send = Result<(), (Message, NotReady)>;

fn send_immediate(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let payload = req.payload();
    let body = BodyOut::Immediate {
        hdr: req.hdr(),
        payload_len: payload.nob(),
    };
    conn.submit_or_fail(
        Op::Immediate,
        |_| 1,
        |now| Transfer::message(Owner::Message(msg), now),
        (buf, Some(&payload)),
        |_| body,
    );
    Ok(())
}

fn send_put(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let (hdr, payload) = (req.hdr(), req.pages());
    let total = match u32::try_from(payload.nob()) {
        Ok(n) if n <= LNET_MTU => n,
        _ => return Err((msg, EMSGSIZE.into())),
    };
    let made = conn
        .map_source(&payload, |wire| wire.take_buf())
        .and_then(|(map, buf)| Ok((map, buf.map_or_else(|| conn.make_buf(), Ok)?)));
    let (map, spare) = match made {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let what = |now| Transfer::message(Owner::Message(msg), now).offer(map, total, spare);
    let buf = (buf, None);
    conn.submit_or_fail(
        Op::PutReq,
        |_| 1,
        what,
        buf,
        |cookie| BodyOut::PutReq { hdr, cookie },
    );
    Ok(())
}

fn send_get(conn: &Arc<Conn>, msg: Message, req: &SendRequest, buf: Option<TxBuf>) -> Send {
    let hdr = req.hdr();
    let (sink, fragment, key) = match conn.make_sink(&req.pages()) {
        Ok(made) => made,
        Err(e) => return Err((msg, e)),
    };
    let get = match msg.into_get(&conn.ni.lnet) {
        Ok(get) => get,
        Err(msg) => {
            conn.drop_sink(sink);
            return Err((msg, ENOMEM.into()));
        }
    };
    let what = |now| Transfer::message(Owner::Get(get), now).read_into(sink, fragment.nob);
    let slots = |limits: Limits| limits.reg_and_send();
    conn.submit_or_fail(Op::GetReq, slots, what, (buf, None), |cookie| {
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
