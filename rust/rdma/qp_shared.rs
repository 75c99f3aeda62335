// SPDX-License-Identifier: GPL-2.0

//! Part of a QP that its completions need: the slots of both queues, the memory regions, and the handler.
//!
//! A slot points to the [`QpShared`] that it is in, not to the QP. So [`super::wc_dispatch`] lies below the QP and does
//! not know it. Any context; the fields have their own locks and rules.

use core::marker::PhantomPinned;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    cqe::Done,
    mr_pool::MrPool,
    mr_sharing::MrPoolHandle,
    recv_ring::RecvRing,
    send_ring::SendRing, //
};

/// Part of a QP with a handler `T` that its completions need.
///
/// # Invariants
///
/// It is the owner of both rings, and stays where it is.
#[pin_data]
pub(crate) struct QpShared<T> {
    // Dropped in this order: keys, then memory, then the handler.
    mrs: MrPoolHandle,
    send: SendRing<Self>,
    recv: RecvRing<Self>,
    handler: Arc<T>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: It may be used and dropped by any thread; the slots, which have pointers to it and to
// what they own, are protected as their invariants say.
unsafe impl<T: Send + Sync> Send for QpShared<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for QpShared<T> {}

impl<T> QpShared<T> {
    /// Creates rings of these depths, with the functions that their completions call: these may take the owner of the
    /// ring for a `QpShared<T>`. Sleeps.
    pub(super) fn new(
        mrs: MrPoolHandle,
        send: (u16, Done),
        recv: (u16, Done),
        handler: Arc<T>,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            mrs,
            // INVARIANT: The owner is this.
            send: SendRing::new(send.0, send.1, this.as_ptr())?,
            recv: RecvRing::new(recv.0, recv.1, this.as_ptr())?,
            handler,
            _pin: PhantomPinned,
        }? Error)
    }

    /// Returns the slots of the send queue.
    pub(super) fn send_ring(&self) -> &SendRing<Self> {
        &self.send
    }

    /// Returns the slots of the receive queue.
    pub(super) fn recv_ring(&self) -> &RecvRing<Self> {
        &self.recv
    }

    /// Returns the memory regions, with their source.
    pub(super) fn regions(&self) -> &MrPoolHandle {
        &self.mrs
    }

    /// Returns the memory regions.
    pub(super) fn mr_pool(&self) -> &MrPool {
        &self.mrs
    }

    /// Returns the handler.
    pub(super) fn handler(&self) -> &Arc<T> {
        &self.handler
    }
}
