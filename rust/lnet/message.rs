// SPDX-License-Identifier: GPL-2.0

//! LNet messages that the driver owns.

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use kernel::{
    pr_warn_once,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    Lnd,
    NiRef,
    Request,
    SendRequest, //
};
use crate::{
    bindings,
    proto::cause::Health,
    rdma::{
        buf::Direction,
        device::Device,
        owned_mapping::Mapping,
        page_frags::PageVec,
        sg::{
            SgMap,
            SgRef,
            SgReserve, //
        }, //
    }, //
};

/// Returns the health that LNet calls `raw`; [`Health::LocalError`] for one that this driver does not know.
fn health_from_raw(raw: u32) -> Health {
    match raw {
        0 => Health::Ok,
        1 => Health::LocalInterrupt,
        2 => Health::LocalDropped,
        3 => Health::LocalAborted,
        4 => Health::LocalNoRoute,
        6 => Health::LocalTimeout,
        7 => Health::RemoteError,
        8 => Health::RemoteDropped,
        9 => Health::RemoteTimeout,
        10 => Health::NetworkTimeout,
        _ => Health::LocalError,
    }
}

/// LNet message that LNet has given to the driver and that must be finalized exactly once.
///
/// Its pages belong to the application again as soon as [`Message::finalize`] is called. A message whose pages are
/// mapped is in a [`Mapping`], and comes back when no code uses the mapping any more.
///
/// Dropping a message, in any context, makes a work item finalize it with `-ECONNABORTED`, and warns once, because the
/// driver has then lost the first cause of the failure.
///
/// # Invariants
///
/// `ptr` is a valid `lnet_msg` that LNet has handed over, and nothing else will finalize it.
#[must_use = "a message must be finalized, or given back to LNet"]
pub(crate) struct Message {
    ptr: NonNull<bindings::lnet_msg>,
}

// SAFETY: LNet lets any thread finalize a message; the pointer is used for nothing else that
// depends on the thread.
unsafe impl Send for Message {}

// SAFETY: The methods that take `&Message` call LNet functions that take LNet's own locks.
unsafe impl Sync for Message {}

impl Message {
    /// Takes over a message.
    ///
    /// # Safety
    ///
    /// `ptr` must be a valid `lnet_msg` that the caller owes a finalization, and the caller must
    /// pass that duty on.
    pub(super) unsafe fn from_raw(ptr: NonNull<bindings::lnet_msg>) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self { ptr }
    }

    /// Completes the message: `status` is 0 or a negative errno.
    ///
    /// Process context. LNet may call [`Lnd::send`] from inside, so no lock may be held that
    /// `send` takes.
    pub(crate) fn finalize(self, status: i32, health: Health) {
        let msg = ManuallyDrop::new(self);
        // SAFETY: By the type invariant the message is ours to finalize; `ManuallyDrop` keeps
        // `Drop` from doing it a second time.
        unsafe { bindings::ro2ib_lnet_finalize(msg.ptr.as_ptr(), status, health as u32) };
    }

    /// Gives the message up without finalizing it, because LNet is about to do so: for the error
    /// return of a send or receive operation.
    pub(super) fn release_to_lnet(self) {
        let _ = ManuallyDrop::new(self);
    }

    /// Maps the pages of the message for `device`, and keeps the message until they are unmapped. `req` describes the
    /// message. Process context.
    ///
    /// # Errors
    ///
    /// The message and the error; see [`SgMap::map`]. `EINVAL` if `req` is of another message.
    #[inline(always)]
    pub(crate) fn map<R: Request, L: Lnd>(
        self,
        req: &R,
        device: ARef<Device>,
        direction: Direction,
    ) -> Result<Mapping<TxMsgs<L>>, (Self, Error)> {
        self.map_with(req, |pages| {
            // SAFETY: LNet keeps the pages until the message is finalized, and `map_with` keeps the message.
            unsafe { SgMap::map(device, pages, direction) }
        })
    }

    /// Maps the pages of the message with a mapping of a reserve, which the user takes, see [`SgMap::map_reserved`].
    ///
    /// # Errors
    ///
    /// As [`Message::map`].
    pub(crate) fn map_reserved<R: Request, L: Lnd>(
        self,
        req: &R,
        reserve: (&Arc<SgReserve>, u64),
        direction: Direction,
    ) -> Result<Mapping<TxMsgs<L>>, (Self, Error)> {
        self.map_with(req, |pages| {
            // SAFETY: As in `map`.
            unsafe { SgMap::map_reserved(reserve, pages, direction) }
        })
    }

    /// Joins the mapping that `map` makes of the pages with the message.
    #[inline(always)]
    fn map_with<R: Request, L: Lnd>(
        self,
        req: &R,
        map: impl FnOnce(&PageVec) -> Result<SgRef>,
    ) -> Result<Mapping<TxMsgs<L>>, (Self, Error)> {
        if !req.is_of(self.ptr) {
            return Err((self, EINVAL));
        }
        match map(&req.pages()) {
            // SAFETY: `req` is of this message, so LNet keeps the pages until the message is finalized.
            Ok(map) => Ok(unsafe { Mapping::new(map, TxMsgs::new(self)) }),
            Err(e) => Err((self, e)),
        }
    }

    /// Prepares to resend a message that failed with `health`. `None`: the caller must finalize the message with that
    /// health, because LNet resends it itself over another path, does not want it any more, or has never sent it.
    ///
    /// No mapping of its pages and no posted buffer may be left. Process context; takes LNet's locks.
    pub(crate) fn again(&self, health: Health) -> Option<SendRequest> {
        // SAFETY: The message is valid by the type invariant, and ours. The pages are those that it came with; the user
        // of the request has the message, too, as with any that is sent.
        unsafe { SendRequest::again(self.ptr, health as u32) }
    }

    /// Asks LNet's fault injection whether this send should fail. `Some`: the caller must not
    /// send, but finalize with `-EINVAL` and the health returned.
    pub(crate) fn simulated_error(&self) -> Option<Health> {
        let mut health = 0;
        // SAFETY: The message is valid by the type invariant, `health` is a local.
        let fail = unsafe { bindings::ro2ib_lnet_send_error(self.ptr.as_ptr(), &mut health) };
        fail.then(|| health_from_raw(health))
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        pr_warn_once!("a message was dropped without a cause\n");
        // SAFETY: By the type invariant the message is ours to finalize, and this is the end of the value: nothing can
        // finalize it again.
        unsafe {
            bindings::ro2ib_lnet_finalize_late(
                self.ptr.as_ptr(),
                ECONNABORTED.to_errno(),
                Health::LocalError as u32,
            )
        };
    }
}

/// Messages that a transmit finalizes: a message, and the REPLY of an optimised GET, which never travels as a message.
#[must_use = "a message must be finalized, or given back to LNet"]
pub(crate) struct TxMsgs<L: Lnd> {
    // In this order, which is that of LNet.
    msg: Message,
    reply: Option<(Message, NiRef<L>)>,
}

impl<L: Lnd> TxMsgs<L> {
    fn new(msg: Message) -> Self {
        Self { msg, reply: None }
    }
}

impl<L: Lnd> From<Message> for Mapping<TxMsgs<L>> {
    /// Takes a message whose pages are not mapped.
    #[inline(always)]
    fn from(msg: Message) -> Self {
        Self::none(TxMsgs::new(msg))
    }
}

impl<L: Lnd> Mapping<TxMsgs<L>> {
    /// Makes the REPLY that LNet wants to see for an optimised GET, whose data comes without an LNet message of its
    /// own. Returns false if the message is no GET of this node's for a peer that is no router, if there is no memory,
    /// or if it is not waiting for a reply any more.
    pub(crate) fn create_reply(&mut self, ni: &NiRef<L>) -> bool {
        // SAFETY: The message stays, and LNet keeps the pages until GET and REPLY are finalized.
        let msgs = unsafe { self.keeper_mut() };

        if msgs.reply.is_some() {
            return false;
        }
        // SAFETY: `ni` is a referenced NI, and the message is valid by its type invariant. No other reply was made for
        // it.
        let ptr = unsafe { bindings::ro2ib_lnet_create_reply(ni.as_ptr(), msgs.msg.ptr.as_ptr()) };
        let Some(ptr) = NonNull::new(ptr) else {
            return false;
        };

        // SAFETY: LNet has just made this message for the driver to finalize.
        msgs.reply = Some((unsafe { Message::from_raw(ptr) }, ni.clone()));
        true
    }

    /// Returns whether there is a REPLY.
    #[inline]
    pub(crate) fn has_reply(&self) -> bool {
        self.keeper().reply.is_some()
    }

    /// Returns the message, if its pages are not mapped, and it has no REPLY.
    ///
    /// # Errors
    ///
    /// Returns this otherwise.
    #[inline(always)]
    pub(crate) fn into_plain_message(self) -> Result<Message, Self> {
        match self.into_unmapped()? {
            TxMsgs { msg, reply: None } => Ok(msg),
            msgs => Err(Self::none(msgs)),
        }
    }

    /// Unmaps the pages, and returns the message, which has no REPLY. `None`: it was lost, see [`Mapping::unmap`].
    #[inline(always)]
    pub(crate) fn into_message(self) -> Option<Message> {
        Some(self.unmap()?.msg)
    }

    /// Unmaps the pages, and completes the message as [`Message::finalize`]; then its REPLY with `len` bytes, which the
    /// peer says it wrote. If these are more than the GET requested, the REPLY ends with `EPROTO`. LNet judges health
    /// by the GET alone.
    #[inline(always)]
    pub(crate) fn finalize(self, status: i32, health: Health, len: u32) {
        let Some(TxMsgs { msg, reply }) = self.unmap() else {
            return;
        };

        match reply {
            None => msg.finalize(status, health),
            Some((reply, ni)) => {
                // SAFETY: `ni` is a referenced NI, and the message is a reply made by `ro2ib_lnet_create_reply` that
                // has not been finalized.
                let set = || unsafe {
                    bindings::ro2ib_lnet_set_reply_len(ni.as_ptr(), reply.ptr.as_ptr(), len)
                };
                let replied = if status != 0 || set() == 0 {
                    status
                } else {
                    EPROTO.to_errno()
                };

                msg.finalize(status, health);
                reply.finalize(replied, Health::Ok);
            }
        }
    }
}
