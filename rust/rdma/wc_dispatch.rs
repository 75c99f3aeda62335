// SPDX-License-Identifier: GPL-2.0

//! Completion functions that the RDMA core calls, from the slot to the handler.
//!
//! Runs where completions are polled ([`super::cq`]): softirq, for all it knows. Those of a QP come
//! from one CQ, one after the other. Takes no lock while it calls the handler.

use super::{
    qp_handler::QpHandler,
    qp_shared::QpShared,
    recv_ring::RecvSlot,
    send_ring::{
        PriorWrs,
        SendRing, //
    },
    wc::Wc, //
};
use crate::bindings;

/// Handles a completion of the send queue.
///
/// # Safety
///
/// Called by the core for a completion whose `wr_cqe` is that of a slot in the send ring of a
/// `QpShared<T>`.
pub(super) unsafe extern "C" fn send_done<T: QpHandler>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The core passes a valid completion, whose `wr_cqe` is the one of its work request. A
    // QP outlives its completions: it is not destroyed before all have returned.
    let ((shared, index), wc) = unsafe { (SendRing::<QpShared<T>>::find(wc), Wc::of_send(&*wc)) };

    // SAFETY: This is its completion; the next one comes when this has returned.
    unsafe { end(shared, index, (wc, PriorWrs::Completed)) }
}

/// Ends the work request in slot `index` and all before it.
///
/// # Safety
///
/// As of [`SendRing::retire`].
#[inline(always)]
unsafe fn end<T: QpHandler>(shared: &QpShared<T>, index: u32, ends: (Wc, PriorWrs)) {
    // Releases the memory first, because the handler may take a lock, and memory must not be unmapped under that lock.
    // SAFETY: Guaranteed by the caller.
    let done = unsafe { shared.send_ring().retire(index, ends, shared.mr_pool()) };

    if let Some(done) = done {
        T::sends_done(shared.handler(), done);
    }
}

/// Handles a completion of the receive queue.
///
/// # Safety
///
/// Called by the core for a completion whose `wr_cqe` is that of a slot in the receive ring of a
/// `QpShared<T>`.
pub(super) unsafe extern "C" fn recv_done<T: QpHandler>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: As above.
    if let Some((shared, done)) = unsafe { RecvSlot::<QpShared<T>>::end(wc) } {
        T::recv_done(shared.handler(), done);
    }
}

/// Ends the work requests that are left in the send queue: the last one with the outcome `wc`, those before it as
/// `prior` says. After a post that failed in the middle, the last work request that was posted is not signalled: if it
/// succeeded, it has no completion.
///
/// # Safety
///
/// No completion of the send queue of `shared` will come any more, and none is being handled.
#[cold]
pub(super) unsafe fn end_rest<T: QpHandler>(shared: &QpShared<T>, wc: Wc, prior: PriorWrs) {
    let ring = shared.send_ring();

    if let Some(index) = ring.last_used() {
        // SAFETY: Guaranteed by the caller: this stands for its completion.
        unsafe { end(shared, index, (wc, prior)) }
    }
}
