// SPDX-License-Identifier: GPL-2.0

//! Drain of a QP: how it ends, and when no completion will come any more.
//!
//! One drain work request (marker), as in `ib_drain_qp()`, is posted to each queue of a QP that is in the error state.
//! When both have completed, every other work request has completed, too, and the QP calls its owner
//! ([`super::qp_handler`]). A device that is being reset or is broken may refuse the post, or never flush
//! ([`Drain::give_up`]). Then the QP is destroyed first: nothing new completes after that, and the driver waits until
//! the completions that exist are handled ([`super::cq`]). `ib_drain_qp()` does not help there: if it cannot post, it
//! warns and returns at once.
//!
//! No locks: atomics. Markers come back where completions are polled ([`super::cq`]).

use kernel::{
    error::to_result,
    ffi,
    prelude::*, //
};

use super::{
    atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    wr_id::WrId, //
};
use crate::bindings;

/// Work requests of each queue that are reserved for draining: the marker of [`Drain::begin`].
pub(super) const DRAIN_WRS: u32 = 1;

/// Progress of the drain of a QP.
///
/// # Invariants
///
/// `drained` is only set when no completion will come any more, or be handled if the device did not destroy the QP.
pub(super) struct Drain {
    markers_left: Atomic<u32>,
    drained: Atomic<u32>,
    /// One of those below.
    stage: Atomic<u32>,
    posted: Atomic<u32>,
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
    /// None will come any more, or be handled.
    Done,
    /// Completions will come, and the markers as the last.
    Pending,
    /// The caller must destroy the QP, wait until its completions are handled, and call
    /// [`super::wc_dispatch::Completions::rest`].
    /// No other caller gets this answer.
    DestroyFirst,
}

impl Drain {
    /// Creates the state of a QP on which nothing is posted.
    pub(super) fn new() -> Self {
        Self {
            markers_left: Atomic::new(2),
            drained: Atomic::new(0),
            stage: Atomic::new(OPEN),
            posted: Atomic::new(0),
        }
    }

    /// Records that there will be completions to wait for.
    pub(super) fn set_posted(&self) {
        self.posted.store(1, Relaxed);
    }

    /// Moves `qp` to the error state and posts the markers whose completions end in
    /// [`super::qp_handler::QpHandler::drained`]. Sleeps.
    ///
    /// # Errors
    ///
    /// Those of the provider. Then `drained` is not called.
    ///
    /// # Safety
    ///
    /// Called once at most, for the QP that this is in, which is not destroyed before [`Self::rest`] says so. Posting
    /// has ended.
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
        write.wr.__bindgen_anon_1.wr_id = WrId::SendMarker.number();
        // SAFETY: The caller guarantees that `qp` is valid. One work request, for which there is room.
        to_result(unsafe { bindings::ro2ib_ib_post_send(qp, &raw const write.wr, &mut bad_send) })?;

        let mut recv = bindings::ib_recv_wr::default();
        let mut bad_recv = &raw const recv;

        recv.__bindgen_anon_1.wr_id = WrId::RecvMarker.number();
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

    /// Returns whether no completion will come any more, or the QP has none that must be waited for.
    pub(super) fn is_settled(&self) -> bool {
        self.drained.load(Acquire) != 0 || self.posted.load(Relaxed) == 0
    }

    /// Counts a completed marker.
    pub(super) fn marker_done(&self) {
        self.markers_left.fetch_sub(1, Full);
    }

    /// Returns whether both markers have come back, and this was not noted yet.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.markers_left.load(Relaxed) == 0 && self.drained.load(Relaxed) == 0
    }

    /// Notes that no completion will come any more, or be handled.
    pub(super) fn set_drained(&self) {
        // INVARIANT: Guaranteed by the caller.
        self.drained.store(1, Release);
    }
}
