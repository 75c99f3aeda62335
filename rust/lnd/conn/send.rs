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
    mapping::NotReady,
    rdma_target::Limits,
    submit::SubmitError,
    transfer::Transfer,
    transfer_end::Owner,
    wire::buf_pool::ReserveUse,
    Conn, //
};
use crate::{
    lnd::{
        peer::NotSent,
        timestamp::Timestamp, //
    },
    lnet::{
        Health as LnetHealth,
        Message,
        MsgKind,
        Request,
        SendRequest, //
    },
    proto::{
        cause::Cause,
        constants::LNET_MTU,
        lnet_hdr::{
            self,
            LnetKind,
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

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(super) fn send(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let pages = req.pages();
    let nob = u32::try_from(pages.nob()).unwrap_or(u32::MAX);
    let method = req
        .kind()
        .and_then(|kind| lnet_hdr::choose(lnet_kind(kind), req.is_routed(), nob, pages.is_gpu()));
    match method {
        Some(Method::Immediate) => send_immediate(conn, msg, req),
        Some(Method::PutReq) => send_put(conn, msg, req),
        Some(Method::GetReq) => send_get(conn, msg, req),
        None => not_ready(conn, msg, req, EINVAL.into()),
    }
}

/// Result of a send: whether the connection took the message.
type Sent = Result<(), NotSent>;

/// Handles a message for which a mapping, buffer or region could not be made.
#[cold]
#[inline(never)]
fn not_ready(conn: &Arc<Conn>, msg: Message, req: &SendRequest, why: NotReady) -> Sent {
    match why {
        why if why.is_shortage() => {
            conn.count_shortage();
            no_memory(conn, msg, req)
        }
        // The NI is not at fault, and a retry would not help.
        NotReady::Gpu(e) => {
            msg.finalize(e.to_errno(), LnetHealth::Ok);
            Ok(())
        }
        NotReady::Here(e) | NotReady::NoRegion(e) => match conn.transient(e) {
            Some(cause) => fail(conn, msg, cause),
            None => Err(NotSent::Failed(msg, e)),
        },
    }
}

/// Keeps a message until there is memory.
#[cold]
fn no_memory(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    match conn.keep_message(msg, req) {
        Ok(()) => Ok(()),
        Err(msg) => fail(conn, msg, Cause::NoResources),
    }
}

/// Returns the message, which is lost for `cause`; if the connection was closed meanwhile, another connection may take
/// it.
#[cold]
fn fail(conn: &Conn, msg: Message, cause: Cause) -> Sent {
    if conn.with(|inner| !inner.state.is_up()) {
        return closed(msg);
    }
    Err(NotSent::Lost(msg, cause))
}

/// Returns the message of a closed connection: another connection may take it.
#[cold]
fn closed(msg: Message) -> Sent {
    Err(NotSent::Closed(msg))
}

// Separate functions, so that no kind of message saves registers for another kind.
#[inline(never)]
fn send_immediate(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let payload = req.payload();
    let body = BodyOut::Immediate {
        hdr: req.hdr(),
        payload: payload.nob(),
    };
    let what = |now| Transfer::message(Owner::Message(msg), now);
    match conn.submit(
        Op::Immediate,
        |_| 1,
        what,
        (None, Some(&payload)),
        &mut None,
        |_| body,
    ) {
        Ok(()) => Ok(()),
        Err((what, why)) => not_submitted(conn, what(Timestamp::now()), req, why),
    }
}

/// Handles a message that did not become a transmit, and unmaps its pages.
#[cold]
#[inline(never)]
fn not_submitted(
    conn: &Arc<Conn>,
    transfer: Transfer,
    req: &SendRequest,
    why: SubmitError,
) -> Sent {
    let mut transfer = transfer;
    match transfer.end().take_message() {
        Some(msg) => unsent(conn, msg, req, why),
        // Never happens: the transfer has a message.
        None => Ok(()),
    }
}

/// Handles a message that did not become a transmit.
#[cold]
fn unsent(conn: &Arc<Conn>, msg: Message, req: &SendRequest, why: SubmitError) -> Sent {
    match why {
        SubmitError::Over(_) => closed(msg),
        SubmitError::NoMemory => no_memory(conn, msg, req),
        SubmitError::Failed(cause) => fail(conn, msg, cause),
    }
}

#[inline(never)]
fn send_put(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    let total = match u32::try_from(req.pages().nob()) {
        Ok(n) if n <= LNET_MTU => n,
        _ => return not_ready(conn, msg, req, EMSGSIZE.into()),
    };
    let parts = conn.with(|inner| {
        let wire = &mut inner.wire;
        let up = inner.state.is_up();
        up.then(|| (wire.device(), wire.take_buf(), wire.take_buf()))
    });
    let Some((device, buf, spare)) = parts else {
        return closed(msg);
    };
    let spare = match spare.map_or_else(|| conn.make_buf(ReserveUse::Message), Ok) {
        Ok(spare) => spare,
        Err(e) => {
            put_back(conn, buf);
            return not_ready(conn, msg, req, e.into());
        }
    };
    let owner = match conn.map_source(device, msg, req, ReserveUse::Message) {
        Ok(owner) => owner,
        Err((msg, why)) => {
            put_back(conn, buf);
            put_back(conn, Some(spare));
            return not_ready(conn, msg, req, why);
        }
    };
    let what = |now| Transfer::message(owner, now).offer(total, spare);
    let body = |cookie| BodyOut::PutReq { hdr, cookie };
    match conn.submit(Op::PutReq, |_| 1, what, (buf, None), &mut None, body) {
        Ok(()) => Ok(()),
        Err((what, why)) => {
            let mut transfer = what(Timestamp::now());
            put_back(conn, transfer.take_spare());
            not_submitted(conn, transfer, req, why)
        }
    }
}

/// Gives an unused message buffer back.
#[cold]
fn put_back(conn: &Conn, buf: Option<TxBuf>) {
    if let Some(buf) = buf {
        conn.with(|inner| inner.wire.put_buf(buf));
    }
}

#[inline(never)]
fn send_get(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    let parts = conn.with(|inner| {
        let wire = &mut inner.wire;
        let up = inner.state.is_up();
        up.then(|| (wire.for_sink(), wire.take_buf()))
    });
    let Some((parts, buf)) = parts else {
        return closed(msg);
    };
    // Before LNet creates a reply, which it does once.
    let buf = match buf.map_or_else(|| conn.make_buf(ReserveUse::Message), Ok) {
        Ok(buf) => buf,
        Err(e) => return unsent(conn, msg, req, conn.no_buf(e)),
    };
    let (owner, sink, fragment, key) = match conn.make_sink(parts, msg, req) {
        Ok(made) => made,
        Err((owner, why)) => {
            put_back(conn, Some(buf));
            return match owner.into_message() {
                Ok(msg) => not_ready(conn, msg, req, why),
                // A lost message was reported already.
                Err(_) => Ok(()),
            };
        }
    };
    let get = match owner.into_get(&conn.ni.lnet) {
        Ok(get) => get,
        Err(owner) => {
            conn.drop_sink(sink);
            put_back(conn, Some(buf));
            let Ok(msg) = owner.into_message() else {
                return Ok(());
            };
            // A message that LNet resends has used up its MD with the first reply (2.17): a retry would not help, and
            // no NI is at fault.
            conn.ni
                .close_stats
                .messages(Cause::Local(EIO.to_errno()), 1);
            msg.finalize(EIO.to_errno(), LnetHealth::Ok);
            return Ok(());
        }
    };
    let what = |now| Transfer::message(get, now).read_into(sink, fragment.nob);
    let slots = |limits: Limits| limits.reg_and_send();
    conn.submit_or_fail(Op::GetReq, slots, what, Some(buf), |cookie| {
        BodyOut::GetReq {
            hdr,
            cookie,
            rd: DescriptorOut {
                key,
                frags: core::slice::from_ref(&fragment),
            },
        }
    });
    Ok(())
}

/// Returns the protocol's type for LNet's.
fn lnet_kind(kind: MsgKind) -> LnetKind {
    match kind {
        MsgKind::Ack => LnetKind::Ack,
        MsgKind::Put => LnetKind::Put,
        MsgKind::Get => LnetKind::Get,
        MsgKind::Reply => LnetKind::Reply,
    }
}
