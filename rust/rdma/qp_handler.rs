// SPDX-License-Identifier: GPL-2.0

//! Callbacks of a QP to its owner, and their context.

use kernel::sync::{
    Arc,
    ArcBorrow, //
};

use super::{
    recv_ring::RecvBuffer,
    wc::QpEvent,
    wc_dispatch::Completions,
    work::OwnedQueue, //
};

/// Callbacks of a [`super::qp::Qp`].
///
/// `round` runs where completions are polled ([`super::cq`]): softirq, for all it knows. It must not sleep. It is not
/// called concurrently for the same QP.
pub(crate) trait QpHandler: Send + Sync + Sized + 'static {
    /// Buffer of a receive, with what belongs to it.
    type Recv: RecvBuffer;

    /// Returns the work queue for the completions of software providers; it must exist as long as the handler.
    fn completion_workqueue(&self) -> &OwnedQueue;

    /// Handles the completions of one poll: calls [`Completions::each`], typically with a lock held.
    fn round(this: &Arc<Self>, completions: Completions<'_, Self, Self::Recv>);

    /// Handles the end of a drain: all completions of a QP on which [`super::qp::Qp::drain`] succeeded are reaped. Same
    /// context; queue work that destroys the QP, which waits until this has returned.
    fn drained(this: Arc<Self>);

    /// Handles an asynchronous event. Treat it as hard interrupt context: touch atomics, queue work.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}
