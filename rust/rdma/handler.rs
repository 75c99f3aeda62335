// SPDX-License-Identifier: GPL-2.0

//! What a QP tells its owner: the trait, and in which context.

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

/// The work requests of the send queue that one completion retires, in posting order, as
/// [`super::send_ring::SendDone`]. Those that are not taken from it are retired all the same.
pub(crate) type SendsDone<'a, T> = Retired<'a, QpShared<T>>;

/// What a [`super::qp::Qp`] calls.
///
/// `sends_done` and `recv_done` run where completions are polled
/// ([`super::cq`]): softirq, for all they know. They must not sleep. They are not called
/// concurrently for the same QP.
pub(crate) trait QpHandler: Send + Sync + Sized + 'static {
    /// Work requests of the send queue have ended; in posting order, exactly once
    /// for each that was posted.
    fn sends_done(this: &Arc<Self>, done: SendsDone<'_, Self>);

    /// A receive has ended. The buffer of one that did not end well is not ours again before the QP is destroyed.
    fn recv_done(this: &Arc<Self>, done: RecvDone);

    /// All completions of a QP on which [`super::qp::Qp::drain`] succeeded are reaped. Same
    /// context; queue work that destroys the QP. The worker may do so while this
    /// still runs.
    fn drained(this: Arc<Self>);

    /// An asynchronous event. Treat it as hard interrupt context: touch atomics,
    /// queue work.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}
