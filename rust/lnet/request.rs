// SPDX-License-Identifier: GPL-2.0

//! What LNet asks of the driver.

use core::ptr::NonNull;

use kernel::prelude::*;

use super::{
    gpu,
    Message,
    HDR_SIZE, //
};
use crate::{
    bindings,
    rdma::pages::PageVec, //
};

/// Type of an LNet message (`enum lnet_msg_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MsgKind {
    /// Acknowledges a PUT; no payload.
    Ack,
    /// Carries data to the peer.
    Put,
    /// Asks the peer for data; no payload, but a sink.
    Get,
    /// Carries data that a GET asked for.
    Reply,
}

impl MsgKind {
    /// `None` for a type that no LND ever sends.
    fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Ack),
            1 => Some(Self::Put),
            2 => Some(Self::Get),
            3 => Some(Self::Reply),
            _ => None,
        }
    }
}

/// Describes LNet's pages. `EINVAL`: the pieces do not hold as many bytes as LNet says.
///
/// # Safety
///
/// `p` must come from the shim together with a message that has not been finalized, and the
/// result, and everything mapped from it, must be gone when the message is finalized.
unsafe fn pages(p: &bindings::ro2ib_payload) -> PageVec {
    // SAFETY: The shim describes a valid array of `nr` pieces, or nothing at all; LNet keeps the
    // array and the pages until the message is finalized, and the caller uses the result no
    // longer than that.
    unsafe { PageVec::from_raw(p.bv, p.nr, p.offset, p.nob, gpu::home(p.gpu)) }
}

/// What is to be done with an LNet message to send ([`Lnd::send`](super::Lnd::send)).
///
/// `payload` and `sink` describe pages that are LNet's again as soon as the message is finalized.
pub(crate) struct SendRequest {
    /// NID of the next hop, 64-bit form; not the final destination when a router is involved.
    pub(crate) target: u64,
    /// What to send.
    pub(crate) kind: MsgKind,
    /// The next hop is a router.
    pub(crate) to_router: bool,
    /// This node is a router, forwarding somebody else's message.
    pub(crate) routing: bool,
    /// The LNet header in wire form.
    pub(crate) hdr: [u8; HDR_SIZE],
    /// The bytes of a PUT or REPLY, empty for the others.
    pub(crate) payload: PageVec,
    /// Where the answer of a GET goes; empty for the others and for a forwarded GET. May have
    /// more pieces than one transfer can describe.
    pub(crate) sink: PageVec,
}

impl SendRequest {
    /// On error the message stays LNet's.
    ///
    /// # Safety
    ///
    /// `req` must come from the shim, and its message must pass to the driver on success. The
    /// pages must be used no longer than until the message is finalized.
    pub(super) unsafe fn from_raw(req: &bindings::ro2ib_send_req) -> Result<(Message, Self)> {
        let kind = MsgKind::from_raw(req.type_).ok_or(EINVAL)?;
        let msg = NonNull::new(req.msg).ok_or(EINVAL)?;
        // SAFETY: `req` comes from the shim, the pages stay with the message in the result.
        let payload = unsafe { pages(&req.payload) };
        // SAFETY: As above.
        let sink = unsafe { pages(&req.sink) };
        // SAFETY: The caller passes the message on.
        let msg = unsafe { Message::from_raw(msg) };
        Ok((
            msg,
            Self {
                target: req.target,
                kind,
                to_router: req.to_router,
                routing: req.routing,
                hdr: req.hdr,
                payload,
                sink,
            },
        ))
    }

    /// A copy, for a message that has to wait.
    pub(crate) fn keep(&self) -> Self {
        Self {
            payload: self.payload.share(),
            sink: self.sink.share(),
            ..*self
        }
    }
}

/// What to do with a message that went up with [`NiRef::parse`](super::NiRef::parse)
/// ([`Lnd::recv`](super::Lnd::recv)).
pub(crate) struct RecvRequest {
    /// To finalize when the data has arrived (or been delivered, for a GET). `None`: discard the
    /// message; for a GET_REQ it means that nothing matched.
    pub(crate) msg: Option<Message>,
    /// Where the wanted bytes go; may be shorter than `rlen`, and empty.
    pub(crate) sink: PageVec,
    /// What an optimised GET must deliver.
    pub(crate) source: PageVec,
}

impl RecvRequest {
    /// # Safety
    ///
    /// `req` must come from the shim, and its message, if any, must pass to the driver. The pages
    /// must be used no longer than until the message is finalized.
    pub(super) unsafe fn from_raw(req: &bindings::ro2ib_recv_req) -> Self {
        // SAFETY: `req` comes from the shim, the pages stay with the message in the result.
        let sink = unsafe { pages(&req.sink) };
        // SAFETY: As above.
        let source = unsafe { pages(&req.source) };
        Self {
            // SAFETY: The caller passes the message on.
            msg: NonNull::new(req.msg).map(|m| unsafe { Message::from_raw(m) }),
            sink,
            source,
        }
    }
}
