// SPDX-License-Identifier: GPL-2.0

//! Callbacks of a QP to its owner, and their context.

use kernel::sync::{
    Arc,
    ArcBorrow, //
};

use super::{
    qp_shared::QpShared,
    recv_ring::RecvDone,
    send_ring::Retired,
    wc::QpEvent, //
};

/// Work requests of the send queue that one completion retires, in posting order, as [`super::send_ring::SendDone`].
/// Dropping it retires the remaining ones.
pub(crate) type SendsDone<'a, T> = Retired<'a, QpShared<T>>;

/// Callbacks of a [`super::qp::Qp`].
///
/// `sends_done` and `recv_done` run where completions are polled
/// ([`super::cq`]): softirq, for all they know. They must not sleep. They are not called
/// concurrently for the same QP.
pub(crate) trait QpHandler: Send + Sync + Sized + 'static {
    /// Handles work requests of the send queue that have ended: in posting order, exactly once for each that was
    /// posted.
    fn sends_done(this: &Arc<Self>, done: SendsDone<'_, Self>);

    /// Handles a receive that has ended. The QP keeps the buffer of a failed receive until it is destroyed.
    fn recv_done(this: &Arc<Self>, done: RecvDone);

    /// Handles the end of a drain: all completions of a QP on which [`super::qp::Qp::drain`] succeeded are reaped. Same
    /// context; queue work that destroys the QP. The worker may do so while this still runs.
    fn drained(this: Arc<Self>);

    /// Handles an asynchronous event. Treat it as hard interrupt context: touch atomics, queue work.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}
