// SPDX-License-Identifier: GPL-2.0

//! Drain of a QP: how it ends, and when no completion will come any more.
//!
//! One drain work request (marker), as in `ib_drain_qp()`, is posted to each queue of a QP that is in the error state.
//! When both have completed, every other work request has completed, too, and [`QpHandler::drained`] is called. A
//! device that is being reset or is broken may refuse the post, or never flush ([`Drain::give_up`]). Then the QP is
//! destroyed first: nothing new completes after that, and the driver waits until the completions that exist are handled
//! ([`super::cq`]). `ib_drain_qp()` does not help there: if it cannot post, it warns and returns at once.
//!
//! No locks: atomics. Markers come back where completions are polled ([`super::cq`]).

use kernel::{
    container_of,
    error::to_result,
    ffi,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    cqe,
    qp_handler::QpHandler,
    qp_shared::QpShared,
    send_ring::PriorWrs,
    wc::Wc,
    wc_dispatch, //
};
use crate::bindings;

/// Work requests of each queue that are reserved for draining: the marker of [`Drain::begin`], and the one of
/// `ib_drain_qp()` if [`Drain::begin`] was never called.
pub(super) const DRAIN_WRS: u32 = 2;

/// Progress of the drain of a QP.
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
    /// One of those below.
    stage: Atomic<u32>,
    posted: Atomic<u32>,
    handler: Arc<T>,
    shared: *const QpShared<T>,
}

/// Work requests may be posted.
const OPEN: u32 = 0;
/// Posting has ended, and the markers will complete.
const BEGUN: u32 = 1;
/// The markers will not complete: the QP has to be destroyed first.
const FAILED: u32 = 2;
/// A caller is about to destroy it.
const ENDING: u32 = 3;

/// State of the completions of a QP.
pub(super) enum DrainState {
    /// None will come any more.
    Done,
    /// Completions will come, and the markers as the last.
    Pending,
    /// The caller must destroy the QP, wait until its completions are handled, and call [`Drain::finish_destroyed`].
    /// No other caller gets this answer.
    DestroyFirst,
}

// SAFETY: It may be used and dropped by any thread: what is not atomic does not
// change, and `shared` belongs to no thread.
unsafe impl<T: QpHandler> Send for Drain<T> {}
// SAFETY: As above.
unsafe impl<T: QpHandler> Sync for Drain<T> {}

impl<T: QpHandler> Drain<T> {
    /// Creates the state of a QP on which nothing is posted. `shared` is that of the same QP, and lives as long as
    /// this.
    pub(super) fn new(handler: Arc<T>, shared: *const QpShared<T>) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            sq_marker: cqe::new(Self::sq_marker_done),
            rq_marker: cqe::new(Self::rq_marker_done),
            markers_left: Atomic::new(2),
            drained: Atomic::new(0),
            stage: Atomic::new(OPEN),
            posted: Atomic::new(0),
            handler,
            shared,
        }
    }

    /// Records that there will be completions to wait for.
    pub(super) fn set_posted(&self) {
        self.posted.store(1, Relaxed);
    }

    /// Moves `qp` to the error state and posts the markers whose completions end in
    /// [`QpHandler::drained`]. Sleeps.
    ///
    /// # Errors
    ///
    /// Those of the provider. Then `drained` is not called.
    ///
    /// # Safety
    ///
    /// Called once at most, for the QP that this is in, which is not destroyed before [`Self::rest`] says so or
    /// [`Self::drain_on_drop`] was called. Posting has ended.
    pub(super) unsafe fn begin(&self, qp: *mut bindings::ib_qp) -> Result {
        self.set_posted();
        // SAFETY: The caller guarantees that it is valid.
        let begun = to_result(unsafe { bindings::ro2ib_qp_to_err(qp) })
            // SAFETY: Guaranteed by the caller.
            .and_then(|()| unsafe { self.post_markers(qp) });
        let stage = if begun.is_ok() { BEGUN } else { FAILED };

        self.stage.store(stage, Release);
        begun
    }

    /// Stops waiting for the markers. Does nothing before [`Self::begin`] has returned, or after it failed.
    pub(super) fn give_up(&self) {
        let _ = self.stage.cmpxchg(BEGUN, FAILED, Full);
    }

    /// Enters the state after a failed [`Self::begin`].
    #[cfg(ro2iblnd_kunit)]
    pub(super) fn fail(&self) {
        self.set_posted();
        self.stage.store(FAILED, Release);
    }

    /// Posts one marker to each queue.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::begin`].
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

    /// Returns whether completions will come.
    pub(super) fn rest(&self) -> DrainState {
        if self.drained.load(Acquire) != 0 {
            DrainState::Done
        } else if self.stage.cmpxchg(FAILED, ENDING, Full).is_ok() {
            DrainState::DestroyFirst
        } else {
            DrainState::Pending
        }
    }

    /// Ends the work requests that were posted and have no completion.
    ///
    /// # Safety
    ///
    /// [`Self::rest`] returned [`DrainState::DestroyFirst`] to the caller, the QP that this is in is destroyed, and all
    /// of its completions have been handled.
    pub(super) unsafe fn finish_destroyed(&self) {
        // SAFETY: By the type invariant it is valid; the caller guarantees the rest.
        unsafe {
            wc_dispatch::end_rest(&*self.shared, Wc::FLUSHED, PriorWrs::Unknown);
            (*self.shared).send_ring().release_unfinished();
        }
        // INVARIANT: None will come any more.
        self.drained.store(1, Release);
    }

    /// Waits for the completions of a QP that is dropped without [`Self::begin`], if there may be some. Sleeps. Returns
    /// whether the caller must wait for handled completions once more when the QP is destroyed.
    ///
    /// # Safety
    ///
    /// `qp` is the QP that this is in. Posting has ended, and no other caller is in this function.
    pub(super) unsafe fn drain_on_drop(&self, qp: *mut bindings::ib_qp) -> bool {
        if self.drained.load(Acquire) != 0 || self.posted.load(Relaxed) == 0 {
            return false;
        }
        if self.stage.load(Acquire) <= BEGUN {
            // SAFETY: The caller guarantees that it is valid, and that posting has ended; there is room for the two
            // work requests.
            unsafe { bindings::ib_drain_qp(qp) }
        }
        true
    }

    /// Handles the completion of the marker of the send queue.
    ///
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
            wc_dispatch::end_rest(&*(*this).shared, Wc::of_send(&*wc), PriorWrs::Completed);
            Self::marker_done(this);
        }
    }

    /// Handles the completion of the marker of the receive queue.
    ///
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

    /// Counts a completed marker; the last one ends the drain.
    ///
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

        // SAFETY: By the type invariant it is valid. Both markers are the last of their queues: they were posted after
        // posting had ended and after the QP was moved to the error state.
        unsafe { (*this.shared).send_ring().release_unfinished() };
        // INVARIANT: As above.
        this.drained.store(1, Release);
        // From here on another thread may free the QP.
        T::drained(handler);
    }
}
