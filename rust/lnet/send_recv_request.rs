// SPDX-License-Identifier: GPL-2.0

//! Requests of LNet to the driver.

use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::prelude::*;

use super::{
    gpu,
    Message,
    HDR_SIZE, //
};
use crate::{
    bindings,
    proto::lnet_hdr::LnetKind,
    rdma::page_frags::PageVec, //
};

/// Describes the pages of a message.
///
/// # Safety
///
/// `p` must come from the shim together with a message that has not been finalized, and the
/// result, and everything mapped from it, must be gone when the message is finalized.
unsafe fn pages(p: &bindings::ro2ib_payload) -> PageVec {
    // SAFETY: The shim describes a valid array of `nr` pieces, or nothing at all; LNet keeps the
    // array and the pages until the message is finalized, and the caller uses the result no
    // longer than that.
    unsafe { PageVec::from_raw(p.bv, p.nr, p.offset, p.nob, gpu::mem_kind(p.gpu)) }
}

/// Description of an LNet message by LNet.
pub(crate) trait Request {
    /// Returns the pages of the message.
    fn pages(&self) -> PageVec;

    /// Returns whether it describes the message at `msg`.
    fn is_of(&self, msg: NonNull<bindings::lnet_msg>) -> bool;
}

/// Request to send an LNet message ([`Lnd::send`](super::Lnd::send)).
///
/// It is the shim's structure, read in place: most fields are needed once. The pages are LNet's again as soon as the
/// message is finalized.
#[repr(transparent)]
pub(crate) struct SendRequest(bindings::ro2ib_send_req);

// SAFETY: The message that it names is not touched by it, and its pages belong to no thread.
unsafe impl Send for SendRequest {}
// SAFETY: As above; it does not change.
unsafe impl Sync for SendRequest {}

impl SendRequest {
    /// Takes a request of the shim with its message. On error the message stays LNet's.
    ///
    /// # Safety
    ///
    /// `req` must come from the shim, and its message must pass to the driver on success. The pages must be used no
    /// longer than until the message is finalized.
    #[inline]
    pub(super) unsafe fn from_raw(req: &bindings::ro2ib_send_req) -> Result<(Message, &Self)> {
        let msg = NonNull::new(req.msg).ok_or(EINVAL)?;
        // SAFETY: `Self` is nothing but that structure.
        let this = unsafe { &*core::ptr::from_ref(req).cast::<Self>() };
        // SAFETY: The caller passes the message on.
        Ok((unsafe { Message::from_raw(msg) }, this))
    }

    /// Prepares the request for a message that was sent before, and failed with `health`; see [`Message::again`].
    ///
    /// # Safety
    ///
    /// `msg` must be a valid message that LNet has handed over, and that has not been finalized. The pages must be used
    /// no longer than until it is.
    pub(super) unsafe fn again(msg: NonNull<bindings::lnet_msg>, health: u32) -> Option<Self> {
        let mut req = MaybeUninit::uninit();
        // SAFETY: The message is valid by the contract of this function; the other is a local, which is written only.
        let goes =
            unsafe { bindings::ro2ib_lnet_prepare_resend(msg.as_ptr(), health, req.as_mut_ptr()) };
        // SAFETY: The shim has written all of it if it returns true.
        goes.then(|| Self(unsafe { req.assume_init() }))
    }

    /// Returns the NID of the next hop, 64-bit form; not the final destination when a router is involved.
    pub(crate) fn target(&self) -> u64 {
        self.0.target
    }

    /// Returns the kind of message to send. `None`: LNet knows no such kind.
    #[inline]
    pub(crate) fn kind(&self) -> Option<LnetKind> {
        LnetKind::from_wire(self.0.type_)
    }

    /// Returns whether the next hop is a router, or this node is one and forwards a message of another node.
    #[inline]
    pub(crate) fn is_routed(&self) -> bool {
        self.0.to_router || self.0.routing
    }

    /// Returns the LNet header in wire form.
    pub(crate) fn hdr(&self) -> &[u8; HDR_SIZE] {
        &self.0.hdr
    }

    /// Returns the bytes of a PUT or REPLY, none for other types.
    #[inline]
    pub(crate) fn payload(&self) -> PageVec {
        let mut raw = self.0.pages;
        if self.kind() == Some(LnetKind::Get) {
            (raw.nob, raw.gpu) = (0, false);
        }
        // SAFETY: As above.
        unsafe { pages(&raw) }
    }

    /// Copies the request, for a message that has to wait.
    pub(crate) fn keep(&self) -> Self {
        Self(bindings::ro2ib_send_req { ..self.0 })
    }
}

impl Request for SendRequest {
    /// Returns the bytes of a PUT or REPLY, none for an ACK. For a GET, returns the sink of its answer: none if the GET
    /// is forwarded, and maybe more pieces than one transfer can describe.
    #[inline]
    fn pages(&self) -> PageVec {
        // SAFETY: It came from the shim with its message; the caller of `from_raw` uses the result no longer than that.
        unsafe { pages(&self.0.pages) }
    }

    #[inline]
    fn is_of(&self, msg: NonNull<bindings::lnet_msg>) -> bool {
        self.0.msg == msg.as_ptr()
    }
}

/// Request to complete a message that was given to LNet with [`NiRef::parse`](super::NiRef::parse)
/// ([`Lnd::recv`](super::Lnd::recv)).
///
/// As [`SendRequest`], it is the shim's structure, read in place.
#[repr(transparent)]
pub(crate) struct RecvRequest(bindings::ro2ib_recv_req);

// SAFETY: The message that it names is not touched by it, and its pages belong to no thread.
unsafe impl Send for RecvRequest {}
// SAFETY: As above; it does not change.
unsafe impl Sync for RecvRequest {}

impl RecvRequest {
    /// Takes a request of the shim, with the message to finalize when the data has arrived (or been delivered, for a
    /// GET). `None`: the received data must be discarded; for a GET_REQ it means that LNet found no match.
    ///
    /// # Safety
    ///
    /// `req` must come from the shim, and its message, if any, must pass to the driver. The pages must be used no
    /// longer than until the message is finalized.
    #[inline]
    pub(super) unsafe fn from_raw(req: &bindings::ro2ib_recv_req) -> (Option<Message>, &Self) {
        // SAFETY: The caller passes the message on.
        let msg = NonNull::new(req.msg).map(|msg| unsafe { Message::from_raw(msg) });
        // SAFETY: `Self` is nothing but that structure.
        let this = unsafe { &*core::ptr::from_ref(req).cast::<Self>() };

        (msg, this)
    }

    /// Returns the number of bytes in its pages.
    #[inline]
    pub(crate) fn nob(&self) -> u32 {
        self.0.pages.nob
    }

    /// Creates a request without pages, for a received message that the driver drops without a message of LNet.
    pub(crate) fn none() -> Self {
        Self(bindings::ro2ib_recv_req::default())
    }

    /// Copies the request, for a message that has to wait.
    pub(crate) fn keep(&self) -> Self {
        Self(bindings::ro2ib_recv_req { ..self.0 })
    }
}

impl Request for RecvRequest {
    /// Returns the sink of the wanted bytes; it may be shorter than the received data, and empty. For an optimised GET,
    /// returns the data that the GET must deliver.
    #[inline]
    fn pages(&self) -> PageVec {
        // SAFETY: It came from the shim with its message; the caller of `from_raw` uses the result no longer than that.
        unsafe { pages(&self.0.pages) }
    }

    #[inline]
    fn is_of(&self, msg: NonNull<bindings::lnet_msg>) -> bool {
        self.0.msg == msg.as_ptr()
    }
}
