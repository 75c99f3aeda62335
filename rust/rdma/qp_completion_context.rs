// SPDX-License-Identifier: GPL-2.0

//! Part of a QP that its completions need: the slots of both queues, the memory regions, the drain, and the handler.
//!
//! It is the context of the completion queue. So [`super::wc_dispatch`] lies below the QP and does not know it. Any
//! context; the fields have their own locks and rules.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    drain::Drain,
    mr_sharing::MrPoolHandle,
    qp_mr_pool::MrPool,
    recv_ring::{
        RecvBuffer,
        RecvRing, //
    },
    send_ring::SendRing, //
};

/// Part of a QP that its completions need, with a handler `T` and `R` as the buffers of receives.
pub(crate) struct QpShared<T, R> {
    // Dropped in this order: keys, then memory, then the handler.
    mrs: MrPoolHandle,
    send: SendRing,
    recv: RecvRing<R>,
    drain: Drain,
    handler: Arc<T>,
}

// SAFETY: It may be used and dropped by any thread; the slots are protected as their invariants say.
unsafe impl<T: Send + Sync, R: Send> Send for QpShared<T, R> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync, R: Send> Sync for QpShared<T, R> {}

impl<T, R: RecvBuffer> QpShared<T, R> {
    /// Creates rings of these depths. Sleeps.
    pub(super) fn new(
        mrs: MrPoolHandle,
        sq_depth: u16,
        rq_depth: u16,
        handler: Arc<T>,
    ) -> Result<Self> {
        Ok(Self {
            mrs,
            send: SendRing::new(sq_depth)?,
            recv: RecvRing::new(rq_depth)?,
            drain: Drain::new(),
            handler,
        })
    }

    /// Returns the slots of the send queue.
    pub(super) fn send_ring(&self) -> &SendRing {
        &self.send
    }

    /// Returns the slots of the receive queue.
    pub(super) fn recv_ring(&self) -> &RecvRing<R> {
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

    /// Returns the progress of the drain.
    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns the handler.
    pub(super) fn handler(&self) -> &Arc<T> {
        &self.handler
    }
}
