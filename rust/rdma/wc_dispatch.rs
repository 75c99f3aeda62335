// SPDX-License-Identifier: GPL-2.0

//! Dispatch of completions, from the array of one poll to the handler.
//!
//! Each work request has a number (`wr_id`): the index of its slot with the kind of its queue. Runs where completions
//! are polled ([`super::cq`]): softirq, for all it knows. Takes no lock while it calls the handler.

use super::{
    completion_receiver::CompletionReceiver,
    qp_completion_context::QpShared,
    recv_ring::RecvBuffer,
    send_ring::PriorWrs,
    wc::Wc,
    wr_id::WrId, //
};
use crate::bindings;

/// Completions of one poll of the queue of a QP, with a handler `T` and `R` as the buffers of receives.
///
/// # Invariants
///
/// `wcs` are the next completions of the QP of `shared`, and no other thread handles completions of it. If there is a
/// `rest`, no other completion of its send queue will be handled.
pub(crate) struct Completions<'a, T, R: RecvBuffer> {
    shared: &'a QpShared<T, R>,
    wcs: &'a [bindings::ib_wc],
    /// Also ends all other work requests of the send queue, with these outcomes.
    rest: Option<(Wc, PriorWrs)>,
}

impl<'a, T, R: RecvBuffer> Completions<'a, T, R> {
    /// Takes the next completions of the queue that `shared` is the context of.
    ///
    /// # Safety
    ///
    /// They are of the QP of `shared`, in their order, and no other thread handles completions of that QP.
    pub(super) unsafe fn new(shared: &'a QpShared<T, R>, wcs: &'a mut [bindings::ib_wc]) -> Self {
        Wc::inject(wcs);
        Self {
            shared,
            wcs,
            rest: None,
        }
    }

    /// Stands for the completions of the work requests that are left in the send queue, as flushed.
    ///
    /// # Safety
    ///
    /// No completion of the send queue of `shared` will be handled any more, and none is being handled.
    pub(super) unsafe fn rest(shared: &'a QpShared<T, R>) -> Self {
        Self {
            shared,
            wcs: &[],
            rest: Some((Wc::FLUSHED, PriorWrs::Unknown)),
        }
    }

    /// Passes each completion to `round`, in the order in which they came.
    #[inline(always)]
    pub(crate) fn each(self, round: &mut impl CompletionReceiver<R>) {
        let shared = self.shared;

        for wc in self.wcs {
            match WrId::of(wc) {
                WrId::Send(index) => {
                    round.send_completion();
                    // SAFETY: This is its completion; by the type invariant no other thread retires.
                    unsafe {
                        shared.send_ring().retire(
                            (index, Wc::of(wc), PriorWrs::Completed),
                            shared.mr_pool(),
                            round,
                        )
                    };
                }
                WrId::Recv(index) => {
                    // SAFETY: This is a completion of the receive in that slot; by the type invariant it is
                    // handled once, by one thread.
                    unsafe { shared.recv_ring().end(index, wc, round) };
                }
                // After a post that failed in the middle, the last work request that was posted is not signalled: if it
                // succeeded, it has no completion. The marker is the last of the send queue.
                WrId::SendMarker => {
                    Self::last_sends(shared, round, Wc::of(wc), PriorWrs::Completed);
                    shared.drain().marker_done();
                }
                WrId::RecvMarker => shared.drain().marker_done(),
            }
        }
        if let Some((wc, prior)) = self.rest {
            Self::last_sends(shared, round, wc, prior);
        }
    }

    /// Ends all work requests that are left in the send queue: the last one with the outcome `wc`, those before it as
    /// `prior` says.
    #[cold]
    #[inline(never)]
    fn last_sends(
        shared: &QpShared<T, R>,
        round: &mut impl CompletionReceiver<R>,
        wc: Wc,
        prior: PriorWrs,
    ) {
        if let Some(index) = shared.send_ring().last_used() {
            // SAFETY: This stands for its completion; as in `each`.
            unsafe {
                shared
                    .send_ring()
                    .retire((index, wc, prior), shared.mr_pool(), round)
            };
        }
    }
}
