// SPDX-License-Identifier: GPL-2.0

//! Queue pairs of reliable connections.
//!
//! A [`Qp`] owns all memory that the device may access on its behalf: posted
//! buffers, mappings of work requests and memory regions. It is destroyed after
//! all its completions are reaped, which is when that memory is freed.
//!
//! Below it are the parts that its completions need ([`super::qp_completion_context`], [`super::wc_dispatch`]). Above
//! it are the queues that work requests are posted with ([`super::sq`], [`super::rq`]), and [`super::qp_create`], which
//! makes all three.
//!
//! Closing: [`Qp::drain`] takes the rights to post, moves the QP to the error
//! state and posts one marker to each queue. When both have come back every other
//! completion has, too, and [`QpHandler::drained`] is called. Then a worker calls
//! [`Qp::destroy_mrs`] (every key is dead), and drops the QP. A QP that is dropped
//! without all this is destroyed before its completions are handled.
//!
//! A device may refuse to destroy a QP, for example if its firmware does not answer. Then the device may write to
//! posted buffers, and report completions and events, until it is reset. The objects that it can reach stay allocated
//! for ever: these buffers, their mappings, the protection domain, and the completion queue, which is also the context
//! of the QP, and is cut off from the rest ([`Cq::abandon`]). All else is freed as usual, so that nothing waits for it.

use core::{
    marker::PhantomPinned,
    ptr::NonNull, //
};

use kernel::{
    ffi,
    prelude::*,
    sync::Arc, //
};

use super::{
    atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
    buf::Direction,
    cm::{
        CmHandler,
        CmId, //
    },
    cm_ref::CmRef,
    cq::Cq,
    device::Device,
    drain::{
        DrainState,
        DRAIN_WRS, //
    },
    mr::{
        Mapped,
        Mr, //
    },
    mr_sharing::{
        MrPoolHandle,
        Regions, //
    },
    pd::Pd,
    qp_completion_context::QpShared,
    qp_handler::QpHandler,
    qp_mr_pool::MrPool,
    recv_ring::RecvRing,
    send_ring::SendRing,
    sg::SgRef,
    wc::QpEvent,
    wc_dispatch::Completions, //
};
use crate::bindings;

/// Sizes of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpConfig {
    /// Work requests of the send queue.
    pub(crate) sq_depth: u16,
    /// Work requests of the receive queue.
    pub(crate) rq_depth: u16,
    /// Scatter/gather entries per send, from 1 to the device's limit.
    pub(crate) max_send_sge: u16,
    /// Sends of up to this many bytes go inline, if the provider can; 0: none does, even if the provider offers that.
    pub(crate) max_inline: u16,
    /// Memory regions.
    pub(crate) nr_mrs: u16,
    /// Pages of each memory region.
    pub(crate) mr_pages: u16,
}

impl QpConfig {
    /// Returns the number of completion queue entries that a QP of these sizes needs.
    fn nr_cqe(&self) -> u32 {
        u32::from(self.sq_depth) + u32::from(self.rq_depth) + 2 * DRAIN_WRS
    }
}

/// A queue pair (`struct ib_qp`), reliable connected.
///
/// The last reference must be dropped in process context.
///
/// # Invariants
///
/// `raw` is the QP of the CM id `id`, made with `pd` and `cq`, until `gone` is set. The slots in `shared` are posted to
/// no other. `cq` has the address of `shared` as its context, and is used by no other QP.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<T: QpHandler> {
    // Dropped in this order, after the QP is destroyed: the queue, so that no round is under way; keys and memory; the
    // rest.
    cq: Cq,
    shared: QpShared<T, T::Recv>,
    nr: u64,
    lkey: u32,
    max_send_sge: u32,
    max_inline: Atomic<u32>,
    qpn: Atomic<u32>,
    gone: Atomic<u32>,
    wrs_per_reg: u16,
    signals_all: bool,
    pd: Arc<Pd>,
    id: CmRef,
    raw: NonNull<bindings::ib_qp>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A QP may be used and destroyed by any thread, and its other fields are `Send`.
unsafe impl<T: QpHandler> Send for Qp<T> {}
// SAFETY: The core lets any thread use a QP, and its other fields are `Sync`.
unsafe impl<T: QpHandler> Sync for Qp<T> {}

/// Numbers QPs, so that a handle of one is never taken for that of another.
static NEXT_NR: Atomic<u64> = Atomic::new(1);

impl<T: QpHandler> Qp<T> {
    /// Makes the QP of [`Self::create`], without the rights to post.
    pub(super) fn new<H: CmHandler>(
        id: &CmId<H>,
        (pd, regions): (&Arc<Pd>, &Arc<Regions>),
        vector: u32,
        config: &QpConfig,
        handler: Arc<T>,
    ) -> Result<Arc<Self>> {
        if config.sq_depth == 0 || config.rq_depth == 0 || config.max_send_sge == 0 {
            return Err(EINVAL);
        }
        let id = id.as_ref().clone();
        let nr = NEXT_NR.fetch_add(1, Relaxed);
        let pool = MrPool::new(nr, pd, config.nr_mrs, config.mr_pages.into())?;
        let mrs = MrPoolHandle::new(pool, regions);
        let shared = QpShared::new(mrs, config.sq_depth, config.rq_depth, handler)?;
        let mut caps = bindings::ro2ib_qp_caps {
            max_send_wr: u32::from(config.sq_depth) + DRAIN_WRS,
            max_recv_wr: u32::from(config.rq_depth) + DRAIN_WRS,
            max_send_sge: config.max_send_sge.into(),
            max_inline: config.max_inline.into(),
            qpn: 0,
        };

        Arc::pin_init(
            try_pin_init!(&this in Self {
                shared,
                nr,
                lkey: pd.local_dma_lkey(),
                max_send_sge: config.max_send_sge.into(),
                max_inline: Atomic::new(0),
                qpn: Atomic::new(0),
                gone: Atomic::new(0),
                wrs_per_reg: pd.device().wrs_per_reg(),
                signals_all: pd.device().reads_after_completion(),
                pd: pd.clone(),
                id,
                // INVARIANT: Its context is the address of `shared`.
                cq: {
                    let this = this.as_ptr();

                    // SAFETY: The fields it uses are initialised, and stay where they are until the queue is dropped.
                    // The handler keeps its work queue.
                    unsafe {
                        Cq::create(
                            (&(*this).id, &(*this).pd),
                            config.nr_cqe(),
                            vector,
                            (*this).shared.handler().completion_workqueue(),
                            (Self::round, Self::event),
                            (&raw mut (*this).shared).cast(),
                        )
                    }?
                },
                _pin: PhantomPinned,
                // INVARIANT: Made here, as the last step.
                raw: {
                    let this = this.as_ptr();

                    // SAFETY: The fields it uses are initialised. Events may come from now on, they only use `shared`.
                    // The CM id, PD and CQ are kept by this; `destroy` keeps what the QP uses if it outlives this.
                    let (id, pd, cq) = unsafe { (&(*this).id, &(*this).pd, &(*this).cq) };
                    // SAFETY: As above.
                    let made = unsafe { id.create_qp(pd, cq.as_raw(), &mut caps) };

                    if made.is_err() && cq.is_used() {
                        // The core could not make the new QP usable, and the device then refused to destroy it. Nothing
                        // is posted.
                        pd.keep();
                        // SAFETY: The last use of the queue before it is dropped.
                        unsafe { cq.abandon() };
                    }
                    let raw = made?;

                    // The provider may offer more than was asked for.
                    let inline = match config.max_inline {
                        0 => 0,
                        _ => caps.max_inline,
                    };

                    // SAFETY: Both are initialised.
                    unsafe {
                        (*this).max_inline.store(inline, Relaxed);
                        (*this).qpn.store(caps.qpn, Relaxed);
                    }
                    raw
                },
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the number of scatter/gather entries per send.
    pub(crate) fn max_send_sge(&self) -> u32 {
        self.max_send_sge
    }

    /// Returns the size up to which sends go inline; 0 if the provider cannot send inline.
    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline.load(Relaxed)
    }

    /// Returns its number, as in `rdma resource show qp`.
    pub(crate) fn number(&self) -> u32 {
        self.qpn.load(Relaxed)
    }

    /// Returns the number of work requests that one registration takes; see [`super::sq::SendQueue::push_reg`].
    pub(crate) fn wrs_per_reg(&self) -> u16 {
        self.wrs_per_reg
    }

    /// Returns whether each work request with data requests a completion.
    ///
    /// siw gives TCP the pages of a large work request without a requested completion, and calls it done. TCP reads the
    /// pages when it sends, which may be after the completion of a later work request, when the pages may have another
    /// owner. siw copies the data of signalled work requests.
    pub(super) fn signals_all(&self) -> bool {
        self.signals_all
    }

    pub(super) fn reg_needs_fence(&self) -> bool {
        self.wrs_per_reg > 1
    }

    /// Returns the number of posted receives, for debugfs: it may change at any time.
    pub(crate) fn recvs_posted(&self) -> usize {
        self.shared.recv_ring().posted()
    }

    /// Returns its device.
    pub(crate) fn device(&self) -> &Device {
        self.pd.device()
    }

    /// Destroys one memory region that was not used since the last call, if there is one. Sleeps.
    pub(crate) fn drop_unused_mr(&self) {
        self.mr_pool().drop_unused();
    }

    /// Returns the number of memory regions, used or not.
    pub(crate) fn regions(&self) -> u32 {
        self.mr_pool().held()
    }

    /// Adds an idle memory region: a new one, or that of another QP. Sleeps, and waits for memory and for commands of
    /// the device.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if [`QpConfig::nr_mrs`] exist, or all that the driver may have of the device are in use; otherwise the
    /// error of the allocation.
    pub(crate) fn add_mr(&self) -> Result {
        self.shared.regions().add()
    }

    /// Returns whether a memory region is idle. Others may take it before the caller does.
    pub(crate) fn has_idle_mr(&self) -> bool {
        self.mr_pool().has_idle()
    }

    /// Maps all of `sg` with an idle memory region. `None`: none is idle. The list must be mapped for this device, to
    /// be written by it. Sleeps, with some providers.
    ///
    /// # Errors
    ///
    /// `EINVAL` if one region cannot cover the list, `ENODEV` if the regions are destroyed, or the provider's error.
    pub(crate) fn map_mr(&self, sg: SgRef) -> Result<Option<Mr<Mapped>>> {
        if !sg.is_for(self.device()) || sg.direction() != Direction::FromDevice {
            return Err(EINVAL);
        }
        let pool = self.mr_pool();
        pool.take_idle()
            .map(|taken| pool.map(taken, sg))
            .transpose()
    }

    /// Undoes [`Self::map_mr`], if the registration was not pushed.
    pub(crate) fn unmap_mr(&self, mr: Mr<Mapped>) {
        self.mr_pool().unmap(mr)
    }

    /// Destroys all memory regions. When it returns no key of this QP is valid.
    /// Sleeps.
    ///
    /// If [`Self::drain`] failed or was given up, destroys the QP first.
    ///
    /// # Errors
    ///
    /// `EBUSY` before [`Self::drain`] has ended posting and [`QpHandler::drained`] was called.
    pub(crate) fn destroy_mrs(&self) -> Result {
        match self.shared.drain().rest() {
            DrainState::Done => {}
            DrainState::Pending => return Err(EBUSY),
            DrainState::DestroyFirst => {
                // SAFETY: A drain was tried, so posting has ended; `rest` gives this answer to one caller.
                unsafe { self.destroy(false) };
                // SAFETY: `rest` returned `DestroyFirst` to us; nothing of a destroyed QP completes, and `destroy`
                // waited for the completions that existed. Completions of an abandoned one are not handled.
                unsafe { self.end_rest() };
            }
        }
        self.shared.regions().destroy();
        Ok(())
    }

    /// Looks for completions, in case the device has not reported them. Any context.
    pub(crate) fn poll_again(&self) {
        self.cq.poll();
    }

    /// Gives up a drain that does not end: the next [`Self::destroy_mrs`] does not wait for it. [`QpHandler::drained`]
    /// may still be called. Does nothing before [`Self::drain`] has returned.
    pub(crate) fn give_up_drain(&self) {
        self.shared.drain().give_up();
    }

    /// Destroys the QP, if it is there, and abandons it if the device refuses. Sleeps.
    ///
    /// If not `settled`, handles the completions in its queue before and after that. Before, because irdma synthesises
    /// completions of flushed work requests that point into its QP: they are polled before the QP is freed. This does
    /// not close the gap, as irdma may add some until the QP is destroyed. After, because software providers leave
    /// completions in the queue.
    ///
    /// # Safety
    ///
    /// Posting has ended. If `settled`, so has the drain, or there was nothing to drain.
    unsafe fn destroy(&self, settled: bool) {
        if self.gone.xchg(1, Full) != 0 {
            return;
        }
        // SAFETY: By the type invariant it is ours, and it was not gone. Its slots stay. The others are called by the
        // thread that sets `gone`, and by no other.
        unsafe {
            if !settled {
                self.cq.quiesce();
            }
            self.id.destroy_qp();
            if !settled {
                self.cq.quiesce();
            }
            if self.cq.is_used() {
                self.abandon();
            }
        }
    }

    /// Keeps what the device can still reach of a QP that was not destroyed.
    ///
    /// # Safety
    ///
    /// Posting has ended; called once, by the thread that has set `gone`.
    #[cold]
    unsafe fn abandon(&self) {
        self.pd.keep();
        // SAFETY: The last use of the queue before it is dropped. Afterwards no completion is being handled, or will
        // be, and `shared` is no context any more.
        unsafe {
            self.cq.abandon();
            self.shared.recv_ring().abandon();
            self.shared.send_ring().abandon();
        }
    }

    /// Ends posting, for [`Self::drain`], which has consumed the rights to post.
    ///
    /// # Safety
    ///
    /// Called once at most, when posting has ended.
    pub(super) unsafe fn end_posting(&self) -> Result {
        // SAFETY: Guaranteed by the caller; it is ours.
        unsafe { self.shared.drain().begin(self.as_raw()) }
    }

    /// Ends posting as a failed drain, for [`Self::fail_to_drain`].
    #[cfg(ro2iblnd_kunit)]
    pub(super) fn end_without_drain(&self) {
        self.shared.drain().fail();
    }

    /// Handles the completions of one poll.
    ///
    /// # Safety
    ///
    /// As of [`super::cq::RoundFn`], for a completion queue whose context is the `shared` of the only QP that uses it.
    unsafe extern "C" fn round(
        context: *mut ffi::c_void,
        wcs: *mut bindings::ib_wc,
        n: ffi::c_int,
    ) {
        // SAFETY: The caller guarantees that it is the context of the queue, that there are so many completions, and
        // that no other thread handles completions.
        let (shared, completions) = unsafe {
            let shared = &*context.cast::<QpShared<T, T::Recv>>();
            let wcs = core::slice::from_raw_parts_mut(wcs, n as usize);

            (shared, Completions::new(shared, wcs))
        };

        T::round(shared.handler(), completions);
        if shared.drain().is_over() {
            // SAFETY: Both markers have come back, and they are the last of their queues: they were posted after
            // posting had ended and after the QP was moved to the error state. No completion is being handled.
            unsafe { shared.send_ring().release_unfinished() };
            shared.drain().set_drained();
            T::drained(shared.handler().clone());
        }
    }

    /// Ends the work requests that are left in the send queue of a destroyed QP, as flushed.
    ///
    /// # Safety
    ///
    /// No completion of the send queue will be handled any more, and none is being handled.
    #[cold]
    unsafe fn end_rest(&self) {
        // SAFETY: Guaranteed by the caller.
        T::round(self.shared.handler(), unsafe {
            Completions::rest(&self.shared)
        });
        // SAFETY: Guaranteed by the caller: the QP is destroyed or abandoned.
        unsafe { self.send_ring().release_unfinished() };
        self.shared.drain().set_drained();
    }

    /// Handles an asynchronous event of the QP.
    ///
    /// # Safety
    ///
    /// As of [`super::cq::EventFn`], for a completion queue whose context is the `shared` of the only QP that uses it.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut ffi::c_void) {
        // SAFETY: `context` is the `shared` of the QP, which is there until the QP is destroyed or abandoned, both of
        // which wait for event handlers. It is initialised since before the QP was made, the rest of the QP may not be
        // yet. `event` is valid.
        let (shared, event) = unsafe {
            (
                &*context.cast::<QpShared<T, T::Recv>>(),
                QpEvent::from_raw((*event).event),
            )
        };

        T::async_event(shared.handler().as_arc_borrow(), event);
    }

    pub(super) fn id(&self) -> u64 {
        self.nr
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.raw.as_ptr()
    }

    pub(super) fn send_ring(&self) -> &SendRing {
        self.shared.send_ring()
    }

    pub(super) fn recv_ring(&self) -> &RecvRing<T::Recv> {
        self.shared.recv_ring()
    }

    pub(super) fn mr_pool(&self) -> &MrPool {
        self.shared.mr_pool()
    }

    pub(super) fn local_dma_lkey(&self) -> u32 {
        self.lkey
    }

    /// Records that there will be completions to wait for.
    pub(super) fn set_posted(&self) {
        self.shared.drain().set_posted();
    }
}

#[pinned_drop]
impl<T: QpHandler> PinnedDrop for Qp<T> {
    fn drop(self: Pin<&mut Self>) {
        let settled = self.shared.drain().is_settled();

        // SAFETY: Nothing can post any more, because that takes a reference to this.
        unsafe { self.destroy(settled) };
    }
}
