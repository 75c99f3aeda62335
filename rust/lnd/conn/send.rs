// SPDX-License-Identifier: GPL-2.0

//! Transmits for messages of LNet.
//!
//! Buffers, mappings and memory regions are made first, without a lock; then the message is built and queued
//! ([`super::submit`]).
//!
//! The memory allocation scope is entered only where memory is allocated: a message that is copied needs none.
//!
//! Context: process; may sleep; re-entrant, because LNet sends from inside `lnet_finalize`.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    buf_pool::ReserveUse,
    no_memory::{
        is_shortage,
        NotReady, //
    },
    tx_payload::TxPayload,
    Conn,
    Inner, //
};
use crate::{
    lnd::peer::NotSent,
    lnet::{
        Message,
        Request,
        SendRequest, //
    },
    proto::{
        cause::{
            Cause,
            Health, //
        },
        constants::LNET_MTU,
        lnet_hdr::{
            self,
            Method, //
        },
        tx_state::Op,
        wire::{
            BodyOut,
            DescriptorOut, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        work::NofsScope, //
    }, //
};

/// Result of a send: whether the connection took the message.
type Sent = Result<(), NotSent>;

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(super) fn send(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let pages = req.pages();
    let nob = u32::try_from(pages.nob()).unwrap_or(u32::MAX);
    let method = req
        .kind()
        .and_then(|kind| lnet_hdr::choose(kind, req.is_routed(), nob, pages.is_gpu()));
    match method {
        Some(Method::Immediate) => send_immediate(conn, msg, req),
        Some(Method::PutReq) => send_put(conn, msg, req, nob),
        Some(Method::GetReq) => send_get(conn, msg, req),
        None => unsent(conn, Some(msg), req, EINVAL.into()),
    }
}

/// Handles a message that could not be prepared, or did not become a transmit.
#[cold]
#[inline(never)]
fn unsent(conn: &Arc<Conn>, msg: Option<Message>, req: &SendRequest, why: NotReady) -> Sent {
    // A lost message was reported already.
    let Some(msg) = msg else {
        return Ok(());
    };
    let (msg, ends) = match why {
        NotReady::Short(_) => {
            conn.count_shortage();
            match conn.keep_message(msg, req) {
                Ok(()) => return Ok(()),
                Err(msg) => (msg, Ok(why.cause())),
            }
        }
        // The NI is not at fault, and a retry would not help.
        NotReady::Gpu(e) => {
            msg.finalize(e.to_errno(), Health::Ok);
            return Ok(());
        }
        NotReady::NoRegion(e) if e == ENOBUFS || is_shortage(e) => {
            conn.count_shortage();
            (msg, Ok(why.cause()))
        }
        NotReady::NoRegion(e) | NotReady::Here(e) => (msg, Err(e)),
        NotReady::Lost(cause) => (msg, Ok(cause)),
    };
    if conn.with(|inner| !inner.state.is_up()) {
        // Another connection may take it.
        return Err(NotSent::Closed(msg));
    }
    Err(match ends {
        Ok(cause) => NotSent::Lost(msg, cause),
        Err(e) => NotSent::Failed(msg, e),
    })
}

/// Handles a transfer that did not become a transmit.
#[cold]
#[inline(never)]
fn not_submitted(conn: &Arc<Conn>, transfer: TxPayload, req: &SendRequest, why: NotReady) -> Sent {
    let mut transfer = transfer;
    match transfer.unmap_message() {
        Some(msg) => unsent(conn, Some(msg), req, why),
        // A GET whose REPLY exists.
        None => {
            if let NotReady::Short(_) = why {
                conn.count_shortage();
            }
            conn.give_up(transfer, why.cause());
            Ok(())
        }
    }
}

// Separate functions, so that no kind of message saves registers for another kind.
#[inline(never)]
fn send_immediate(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let payload = req.payload();
    let body = BodyOut::Immediate {
        hdr: req.hdr(),
        payload: payload.nob(),
    };
    let what = |now| TxPayload::new(Some(msg.into()), now);
    let with = (None, Some(&payload));
    conn.submit((Op::Immediate, 1), what, with, &mut None, |_| body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}

/// Takes the objects that a transfer needs, by `parts`, and a message buffer, when there is a place for the transmit.
fn prepare<T>(conn: &Conn, parts: impl FnOnce(&Inner) -> T) -> Result<(T, TxBuf), NotReady> {
    let (parts, has_place, buf) =
        conn.with(|inner| match (inner.state.is_up(), inner.txs.has_free()) {
            (true, true) => Ok((parts(inner), true, inner.buf_pool.take())),
            (true, false) => Ok((parts(inner), false, None)),
            (false, _) => Err(NotReady::Lost(inner.state.end_cause())),
        })?;
    if !has_place {
        conn.grow()?;
    }
    let buf = buf.map_or_else(|| conn.make_buf(ReserveUse::Message), Ok)?;
    Ok((parts, buf))
}

#[inline(never)]
fn send_put(conn: &Arc<Conn>, msg: Message, req: &SendRequest, total: u32) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    if total > LNET_MTU {
        return unsent(conn, Some(msg), req, EMSGSIZE.into());
    }
    let (device, spare) = match prepare(conn, Inner::device) {
        Ok(made) => made,
        Err(why) => return unsent(conn, Some(msg), req, why),
    };
    let owner = match conn.map_source(device, msg, req, ReserveUse::Message) {
        Ok(owner) => owner,
        Err((msg, why)) => {
            conn.undo([Some(spare), None], None);
            return unsent(conn, msg, req, why);
        }
    };
    let what = |now| TxPayload {
        total,
        spare: Some(spare),
        ..TxPayload::new(Some(owner), now)
    };
    let body = |cookie| BodyOut::PutReq { hdr, cookie };
    conn.submit((Op::PutReq, 1), what, (None, None), &mut None, body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}

#[inline(never)]
fn send_get(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    // The buffer and the place, too, before LNet creates a reply, which it does once.
    let (parts, buf) = match prepare(conn, Inner::for_sink) {
        Ok(made) => made,
        Err(why) => return unsent(conn, Some(msg), req, why),
    };
    let (mut owner, sink, fragment, key) = match conn.make_sink(parts, msg, req) {
        Ok(made) => made,
        Err((msg, why)) => {
            conn.undo([Some(buf), None], None);
            return unsent(conn, msg, req, why);
        }
    };
    if !owner.create_reply(&conn.ni.lnet) {
        conn.undo([Some(buf), None], Some(sink));
        // A message that LNet resends has used up its MD with the first reply (2.17): a retry would not help, and no NI
        // is at fault.
        let status = EIO.to_errno();
        conn.ni.close_stats.messages(Cause::Local(status), 1);
        owner.finalize(status, Health::Ok, 0);
        return Ok(());
    }
    let what = |now| TxPayload {
        total: fragment.nob,
        sink: Some(sink),
        ..TxPayload::new(Some(owner), now)
    };
    let body = |cookie| BodyOut::GetReq {
        hdr,
        cookie,
        rd: DescriptorOut {
            key,
            frags: core::slice::from_ref(&fragment),
        },
    };
    conn.submit((Op::GetReq, 1), what, (Some(buf), None), &mut None, body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}
