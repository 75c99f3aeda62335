// SPDX-License-Identifier: GPL-2.0

//! How a QP ends: when no completion will come any more.
//!
//! One marker is posted to each queue of a QP that is in the error state. When both have come back
//! every other completion has, too, and [`QpHandler::drained`] is called. Where that cannot be done
//! `ib_drain_qp()` waits for the completions, which sleeps.
//!
//! No locks: atomics. Markers come back where completions are polled ([`super::cq`]).

use kernel::{
    container_of,
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    types::Opaque, //
};

use super::{
    complete,
    cqe,
    handler::QpHandler,
    qp_shared::QpShared,
    wc::Wc, //
};
use crate::bindings;

/// Work requests of each queue that are kept for draining: the marker of
/// [`Drain::begin`], and the one of `ib_drain_qp()`.
pub(super) const DRAIN_WRS: u32 = 2;

/// How far the end of a QP is.
///
/// # Invariants
///
/// `drained` is only set when no completion will come any more. `shared` is that of the QP that this
/// is in.
pub(super) struct Drain<T: QpHandler> {
    sq_marker: Opaque<bindings::ib_cqe>,
    rq_marker: Opaque<bindings::ib_cqe>,
    markers_left: Atomic<u32>,
    drained: Atomic<u32>,
    failed: Atomic<u32>,
    posted: Atomic<u32>,
    handler: Arc<T>,
    shared: *const QpShared<T>,
}

// SAFETY: It may be used and dropped by any thread: what is not atomic does not
// change, and `shared` belongs to no thread.
unsafe impl<T: QpHandler> Send for Drain<T> {}
// SAFETY: As above.
unsafe impl<T: QpHandler> Sync for Drain<T> {}

impl<T: QpHandler> Drain<T> {
    /// Nothing is posted. `shared` is that of the same QP, and lives as long as this.
    pub(super) fn new(handler: Arc<T>, shared: *const QpShared<T>) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            sq_marker: cqe::new(Self::sq_marker_done),
            rq_marker: cqe::new(Self::rq_marker_done),
            markers_left: Atomic::new(2),
            drained: Atomic::new(0),
            failed: Atomic::new(0),
            posted: Atomic::new(0),
            handler,
            shared,
        }
    }

    /// Notes that there will be completions to wait for.
    pub(super) fn set_posted(&self) {
        self.posted.store(1, Relaxed);
    }

    /// Moves `qp` to the error state and posts the markers whose completions end in
    /// [`QpHandler::drained`]. Sleeps.
    ///
    /// # Errors
    ///
    /// What the provider says. Then `drained` is not called.
    ///
    /// # Safety
    ///
    /// Called once at most, for the QP that this is in, which is not destroyed before [`Self::wait`]
    /// has succeeded or [`Self::wait_at_last`] was called. Nobody posts any more.
    pub(super) unsafe fn begin(&self, qp: *mut bindings::ib_qp) -> Result {
        self.set_posted();
        // SAFETY: The caller guarantees that it is valid.
        to_result(unsafe { bindings::ro2ib_qp_to_err(qp) })
            // SAFETY: Guaranteed by the caller.
            .and_then(|()| unsafe { self.post_markers(qp) })
            .inspect_err(|_| self.failed.store(1, Release))
    }

    /// # Safety
    ///
    /// That of [`Self::begin`].
    unsafe fn post_markers(&self, qp: *mut bindings::ib_qp) -> Result {
        // A WRITE of nothing: its key is not looked at (C9-88), and it is flushed anyway.
        let mut write = bindings::ib_rdma_wr::default();
        let mut bad_send = &raw const write.wr;

        write.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
        write.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        write.wr.__bindgen_anon_1.wr_cqe = self.sq_marker.get();
        // SAFETY: The caller guarantees that `qp` is valid. One work request, for which there is
        // room, and whose completion finds `sq_marker` in this, which outlives it.
        to_result(unsafe { bindings::ro2ib_ib_post_send(qp, &raw const write.wr, &mut bad_send) })?;

        let mut recv = bindings::ib_recv_wr::default();
        let mut bad_recv = &raw const recv;

        recv.__bindgen_anon_1.wr_cqe = self.rq_marker.get();
        // SAFETY: As above.
        to_result(unsafe { bindings::ro2ib_ib_post_recv(qp, &raw const recv, &mut bad_recv) })
    }

    /// Waits for the completions if [`Self::begin`] failed. When it succeeds none will come any
    /// more. Sleeps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there may be some: [`QpHandler::drained`] will be called.
    ///
    /// # Safety
    ///
    /// `qp` is the QP that this is in.
    pub(super) unsafe fn wait(&self, qp: *mut bindings::ib_qp) -> Result {
        if self.drained.load(Acquire) == 0 {
            if self.failed.load(Acquire) == 0 {
                return Err(EBUSY);
            }
            // SAFETY: The caller guarantees that it is valid. Nobody can post any more, as that was
            // so when `begin` was called; there is room for the two work requests. It waits until
            // all completions have been handled.
            unsafe { bindings::ib_drain_qp(qp) };
            // SAFETY: By the type invariant it is valid; all of its completions have been handled.
            unsafe { complete::end_rest(&*self.shared, Wc::FLUSHED) };
            // INVARIANT: So none will come any more.
            self.drained.store(1, Release);
        }
        Ok(())
    }

    /// Waits for the completions, if there may be some. Sleeps.
    ///
    /// # Safety
    ///
    /// `qp` is the QP that this is in. Nobody posts any more.
    pub(super) unsafe fn wait_at_last(&self, qp: *mut bindings::ib_qp) {
        if self.drained.load(Acquire) == 0 && self.posted.load(Relaxed) != 0 {
            // SAFETY: The caller guarantees that it is valid, and that nobody posts any more; there
            // is room for the two work requests. It waits until all completions have been handled.
            unsafe { bindings::ib_drain_qp(qp) }
        }
    }

    /// # Safety
    ///
    /// Called by the core for a completion whose `wr_cqe` is `sq_marker`.
    unsafe extern "C" fn sq_marker_done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The completion of the marker that `begin` posted: `wr_cqe` is `sq_marker` of a
        // QP that outlives it.
        unsafe {
            let cqe = Opaque::cast_from((*wc).__bindgen_anon_1.wr_cqe);
            let this = container_of!(cqe, Self, sq_marker);

            // It is the last of the send queue.
            complete::end_rest(&*(*this).shared, Wc::from_raw(&*wc));
            Self::marker_done(this);
        }
    }

    /// # Safety
    ///
    /// Called by the core for a completion whose `wr_cqe` is `rq_marker`.
    unsafe extern "C" fn rq_marker_done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: As above, for `rq_marker`.
        unsafe {
            let cqe = Opaque::cast_from((*wc).__bindgen_anon_1.wr_cqe);

            Self::marker_done(container_of!(cqe, Self, rq_marker));
        }
    }

    /// # Safety
    ///
    /// `this` is in a QP of which a marker has just come back.
    unsafe fn marker_done(this: *const Self) {
        // SAFETY: Guaranteed by the caller: it lives until `drained` is set.
        let this = unsafe { &*this };

        if this.markers_left.fetch_sub(1, Full) != 1 {
            return;
        }
        let handler = this.handler.clone();

        // INVARIANT: Both markers are the last of their queues.
        this.drained.store(1, Release);
        // From here on somebody else may free the QP.
        T::drained(handler);
    }
}
