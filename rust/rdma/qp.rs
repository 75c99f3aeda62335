// SPDX-License-Identifier: GPL-2.0

//! Queue pairs of reliable connections.
//!
//! A [`Qp`] owns all memory that the device may access on its behalf: posted
//! buffers, mappings of work requests and memory regions. It is destroyed after
//! all its completions are reaped, which is when that memory is freed.
//!
//! Closing: [`Qp::drain`] takes the rights to post, moves the QP to the error
//! state and posts one marker to each queue. When both have come back every other
//! completion has, too, and [`QpHandler::drained`] is called. Then a worker calls
//! [`Qp::destroy_mrs`] (every key is dead), and drops the QP. A QP that is dropped
//! without all this waits for its completions in `drop`.

use core::{
    marker::PhantomPinned,
    ptr::NonNull, //
};

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
        Arc,
        ArcBorrow, //
    },
    types::Opaque, //
};

use super::{
    cm::{
        CmHandler,
        CmId,
        CmRef, //
    },
    cq::CqShare,
    device::Device,
    mr::{
        Free,
        Mapped,
        Mr,
        MrPool, //
    },
    pd::Pd,
    rq::{
        RecvDone,
        RecvQueue,
        RecvRing, //
    },
    send_ring::{
        SendRing,
        SendsDone, //
    },
    sg::SgMap,
    sq::SendQueue,
    wc::{
        QpEvent,
        Wc, //
    }, //
};
use crate::bindings;

/// Work requests of each queue that are kept for draining: the marker of
/// [`Qp::drain`], and the one of the blocking drain in `drop`.
const DRAIN_WRS: u32 = 2;

/// What a [`Qp`] calls.
///
/// `sends_done` and `recv_done` run where completions are polled
/// ([`super::cq`]): softirq, for all they know. They must not sleep. They are not called
/// concurrently for the same QP.
pub(crate) trait QpHandler: Send + Sync + Sized + 'static {
    /// Work requests of the send queue have ended; in posting order, exactly once
    /// for each that was posted.
    fn sends_done(this: &Arc<Self>, done: &mut SendsDone<'_, Self>);

    /// A receive has ended.
    fn recv_done(this: &Arc<Self>, done: RecvDone);

    /// All completions of a QP on which [`Qp::drain`] succeeded are reaped. Same
    /// context; queue work that destroys the QP. The worker may do so while this
    /// still runs.
    fn drained(this: Arc<Self>);

    /// An asynchronous event. Treat it as hard interrupt context: touch atomics,
    /// queue work.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}

/// Sizes of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpConfig {
    /// Work requests of the send queue.
    pub(crate) sq_depth: u16,
    /// Work requests of the receive queue.
    pub(crate) rq_depth: u16,
    /// Scatter/gather entries per send, from 1 to the device's limit.
    pub(crate) max_send_sge: u16,
    /// Sends of up to this many bytes go inline, if the provider can.
    pub(crate) max_inline: u16,
    /// Memory regions.
    pub(crate) nr_mrs: u16,
    /// Pages of each memory region.
    pub(crate) mr_pages: u16,
}

impl QpConfig {
    /// How many completion queue entries a QP of these sizes needs.
    pub(crate) fn nr_cqe(&self) -> u32 {
        u32::from(self.sq_depth) + u32::from(self.rq_depth) + 2 * DRAIN_WRS
    }
}

/// A new QP, and the rights to post to its queues.
pub(crate) struct QpParts<T: QpHandler> {
    /// The QP.
    pub(crate) qp: Arc<Qp<T>>,
    /// For the send queue.
    pub(crate) sq: SendQueue,
    /// For the receive queue.
    pub(crate) rq: RecvQueue,
}

/// A queue pair (`struct ib_qp`), reliable connected.
///
/// The last reference must be dropped in process context.
///
/// # Invariants
///
/// `raw` is the QP of the CM id `id`, made with `pd`, `cq` and, as its context,
/// the address of this. `drained` is only set when no completion will come any
/// more.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<T: QpHandler> {
    // Dropped in this order, after the QP is destroyed: keys, then memory, then the rest.
    #[pin]
    mrs: MrPool,
    send: SendRing<T>,
    recv: RecvRing<T>,
    sq_marker: Opaque<bindings::ib_cqe>,
    rq_marker: Opaque<bindings::ib_cqe>,
    markers_left: Atomic<u32>,
    drained: Atomic<u32>,
    drain_failed: Atomic<u32>,
    posted: Atomic<u32>,
    nr: u64,
    lkey: u32,
    max_send_sge: u32,
    max_inline: Atomic<u32>,
    qpn: Atomic<u32>,
    reg_wrs: u16,
    cq: CqShare,
    pd: Arc<Pd>,
    handler: Arc<T>,
    id: CmRef,
    raw: NonNull<bindings::ib_qp>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A QP may be used and destroyed by any thread; its slots are protected as their
// invariants say.
unsafe impl<T: QpHandler> Send for Qp<T> {}
// SAFETY: As above.
unsafe impl<T: QpHandler> Sync for Qp<T> {}

/// The type of `ib_cqe.done`.
type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

pub(super) fn new_cqe(done: Done) -> Opaque<bindings::ib_cqe> {
    Opaque::new(bindings::ib_cqe { done: Some(done) })
}

/// Numbers QPs, so that a handle of one is never taken for that of another.
static NEXT_NR: Atomic<u64> = Atomic::new(1);

impl<T: QpHandler> Qp<T> {
    /// Makes a QP on `id`, which must be bound to the device of `pd`. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes of 0 or a CQ share of another device, `EBUSY` if `id`
    /// has a QP, `ENOMEM` (often: the sizes are too large for the device).
    pub(crate) fn create<H: CmHandler>(
        id: &CmId<H>,
        pd: &Arc<Pd>,
        cq: CqShare,
        config: &QpConfig,
        handler: Arc<T>,
    ) -> Result<QpParts<T>> {
        if config.sq_depth == 0
            || config.rq_depth == 0
            || config.max_send_sge == 0
            || !cq.device().same(pd.device())
            || cq.nr_cqe() < config.nr_cqe()
        {
            return Err(EINVAL);
        }
        let nr = NEXT_NR.fetch_add(1, Relaxed);
        let sq = SendQueue::new(nr, config.sq_depth)?;
        let rq = RecvQueue::new(nr)?;
        let send = SendRing::new(config.sq_depth)?;
        let recv = RecvRing::new(config.rq_depth)?;
        let mrs = MrPool::new(nr, pd, config.nr_mrs, config.mr_pages.into())?;
        let id = id.as_ref().clone();
        let mut caps = bindings::ro2ib_qp_caps {
            max_send_wr: u32::from(config.sq_depth) + DRAIN_WRS,
            max_recv_wr: u32::from(config.rq_depth) + DRAIN_WRS,
            max_send_sge: config.max_send_sge.into(),
            max_inline: config.max_inline.into(),
            qpn: 0,
        };

        let qp = Arc::pin_init(
            try_pin_init!(&this in Self {
                mrs <- mrs,
                send,
                recv,
                sq_marker: new_cqe(Self::sq_marker_done),
                rq_marker: new_cqe(Self::rq_marker_done),
                markers_left: Atomic::new(2),
                drained: Atomic::new(0),
                drain_failed: Atomic::new(0),
                posted: Atomic::new(0),
                nr,
                lkey: pd.local_dma_lkey(),
                max_send_sge: config.max_send_sge.into(),
                max_inline: Atomic::new(0),
                qpn: Atomic::new(0),
                reg_wrs: pd.device().reg_wrs(),
                cq,
                pd: pd.clone(),
                handler,
                id,
                _pin: PhantomPinned,
                // INVARIANT: Made here, as the last step.
                raw: {
                    let this = this.as_ptr();

                    // SAFETY: These fields are initialised, and nobody else knows them.
                    unsafe {
                        (*this).send.set_qp(this);
                        (*this).recv.set_qp(this);
                    }
                    // SAFETY: The fields it uses are initialised. Events may come from now on,
                    // they only use `handler`. The CM id, PD and CQ are kept by this.
                    let raw = unsafe {
                        (*this).id.create_qp(
                            &(*this).pd,
                            (*this).cq.as_raw(),
                            this.cast(),
                            Some(Self::event),
                            &mut caps,
                        )
                    }?;

                    // SAFETY: Both are initialised.
                    unsafe {
                        (*this).max_inline.store(caps.max_inline, Relaxed);
                        (*this).qpn.store(caps.qpn, Relaxed);
                    }
                    raw
                },
            }? Error),
            GFP_KERNEL,
        )?;

        Ok(QpParts { qp, sq, rq })
    }

    /// Scatter/gather entries per send.
    pub(crate) fn max_send_sge(&self) -> u32 {
        self.max_send_sge
    }

    /// Sends of up to this many bytes go inline; 0 if the provider cannot.
    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline.load(Relaxed)
    }

    /// Its number, as `rdma resource show qp` has it.
    pub(crate) fn number(&self) -> u32 {
        self.qpn.load(Relaxed)
    }

    /// Work requests that one registration takes; see [`SendQueue::push_reg`].
    pub(crate) fn reg_wrs(&self) -> u16 {
        self.reg_wrs
    }

    pub(super) fn fences_regs(&self) -> bool {
        self.reg_wrs > 1
    }

    /// How many receives are posted. For people: it changes any time.
    pub(crate) fn recvs_posted(&self) -> usize {
        self.recv.posted()
    }

    /// The device it is of.
    pub(crate) fn device(&self) -> &Device {
        self.pd.device()
    }

    /// Takes a memory region, or makes one. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if [`QpConfig::nr_mrs`] are in use, else why none can be made.
    pub(crate) fn take_mr(&self) -> Result<Mr<Free>> {
        self.mrs.take()
    }

    /// Gives a memory region back that was not used.
    pub(crate) fn put_mr(&self, mr: Mr<Free>) {
        self.mrs.put(mr)
    }

    /// Lets a memory region cover all of `sg`, which must be mapped for this
    /// device, to be written by it. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// Gives the token back, with `EINVAL` if one region cannot cover it, and
    /// with `ENODEV` if the regions are destroyed.
    pub(crate) fn map_mr(
        &self,
        mr: Mr<Free>,
        sg: Arc<SgMap>,
    ) -> Result<Mr<Mapped>, (Mr<Free>, Error)> {
        if !sg.is_for(self.device()) {
            return Err((mr, EINVAL));
        }
        self.mrs.map(mr, sg)
    }

    /// Undoes [`Self::map_mr`], if the registration was not pushed.
    pub(crate) fn unmap_mr(&self, mr: Mr<Mapped>) -> Mr<Free> {
        self.mrs.unmap(mr)
    }

    /// Destroys all memory regions. When it returns no key of this QP is valid.
    /// Sleeps.
    ///
    /// If [`Self::drain`] failed it waits for the completions first.
    ///
    /// # Errors
    ///
    /// `EBUSY` before [`Self::drain`] has ended posting.
    pub(crate) fn destroy_mrs(&self) -> Result {
        if self.drained.load(Acquire) == 0 {
            if self.drain_failed.load(Acquire) == 0 {
                return Err(EBUSY);
            }
            // SAFETY: By the type invariant. Nobody can post any more, as `drain` took the rights
            // to; there is room for the two work requests. It waits until all completions have
            // been handled.
            unsafe { bindings::ib_drain_qp(self.as_raw()) };
            // Nor will any for what was posted unsignalled, and went well.
            self.send.drained(self, Wc::FLUSHED);
            // INVARIANT: So none will come any more.
            self.drained.store(1, Release);
        }
        self.mrs.destroy();
        Ok(())
    }

    /// Moves the QP to the error state: the other side can do nothing more with
    /// it, and everything that is posted completes. Sleeps.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub(crate) fn modify_to_err(&self) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe { bindings::ro2ib_qp_to_err(self.as_raw()) })
    }

    /// Ends posting: moves the QP to the error state and posts the markers whose
    /// completions end in [`QpHandler::drained`]. What was pushed and not posted
    /// is freed with the QP. Sleeps.
    ///
    /// # Errors
    ///
    /// What the provider says. Then `drained` is not called: drop the QP instead,
    /// which waits.
    pub(crate) fn drain(&self, sq: SendQueue, rq: RecvQueue) -> Result {
        if !sq.is_of(self.nr) || !rq.is_of(self.nr) {
            return Err(EINVAL);
        }
        drop((sq, rq));
        self.posted.store(1, Relaxed);
        self.post_markers()
            .inspect_err(|_| self.drain_failed.store(1, Release))
    }

    fn post_markers(&self) -> Result {
        self.modify_to_err()?;

        // A WRITE of nothing: its key is not looked at (C9-88), and it is flushed anyway.
        let mut write = bindings::ib_rdma_wr::default();
        let mut bad_send = &raw const write.wr;

        write.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
        write.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED as ffi::c_int;
        write.wr.__bindgen_anon_1.wr_cqe = self.sq_marker.get();
        // SAFETY: By the type invariant. One work request, for which there is room, and whose
        // completion finds `sq_marker` in this, which outlives it.
        to_result(unsafe {
            bindings::ro2ib_ib_post_send(self.as_raw(), &raw const write.wr, &mut bad_send)
        })?;

        let mut recv = bindings::ib_recv_wr::default();
        let mut bad_recv = &raw const recv;

        recv.__bindgen_anon_1.wr_cqe = self.rq_marker.get();
        // SAFETY: As above.
        to_result(unsafe {
            bindings::ro2ib_ib_post_recv(self.as_raw(), &raw const recv, &mut bad_recv)
        })
    }

    /// # Safety
    ///
    /// Called by the core for a completion whose `wr_cqe` is `sq_marker`.
    unsafe extern "C" fn sq_marker_done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The completion of the marker that `drain` posted: `wr_cqe` is `sq_marker` of a
        // QP that outlives it.
        unsafe {
            let cqe = Opaque::cast_from((*wc).__bindgen_anon_1.wr_cqe);
            let this = container_of!(cqe, Self, sq_marker);

            (*this).send.drained(&*this, Wc::from_raw(&*wc));
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
    /// `this` is a QP of which a marker has just come back.
    unsafe fn marker_done(this: *const Self) {
        // SAFETY: Guaranteed by the caller: it lives until `drained` is set.
        let qp = unsafe { &*this };

        if qp.markers_left.fetch_sub(1, Full) != 1 {
            return;
        }
        let handler = qp.handler.clone();

        // INVARIANT: Both markers are the last of their queues.
        qp.drained.store(1, Release);
        // From here on somebody else may free the QP.
        T::drained(handler);
    }

    /// # Safety
    ///
    /// Called by the core for a QP whose context is a `Self`.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut ffi::c_void) {
        // SAFETY: `context` is the QP, which is there until it is destroyed; destroying it waits
        // for event handlers. `event` is valid.
        let (qp, event) = unsafe { (&*context.cast::<Self>(), QpEvent::from_raw((*event).event)) };

        T::async_event(qp.handler().as_arc_borrow(), event);
    }

    pub(super) fn id(&self) -> u64 {
        self.nr
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.raw.as_ptr()
    }

    /// A QP outlives the handlers of its completions: it is not destroyed before all have returned.
    pub(super) fn handler(&self) -> &Arc<T> {
        &self.handler
    }

    pub(super) fn send_ring(&self) -> &SendRing<T> {
        &self.send
    }

    pub(super) fn recv_ring(&self) -> &RecvRing<T> {
        &self.recv
    }

    pub(super) fn mr_pool(&self) -> &MrPool {
        &self.mrs
    }

    pub(super) fn local_dma_lkey(&self) -> u32 {
        self.lkey
    }

    /// Notes that there will be completions to wait for.
    pub(super) fn set_posted(&self) {
        self.posted.store(1, Relaxed);
    }
}

#[pinned_drop]
impl<T: QpHandler> PinnedDrop for Qp<T> {
    fn drop(self: Pin<&mut Self>) {
        if self.drained.load(Acquire) == 0 && self.posted.load(Relaxed) != 0 {
            // SAFETY: By the type invariant. Nobody can post any more, as that takes a reference
            // to this; there is room for the two work requests. It waits until all completions
            // have been handled.
            unsafe { bindings::ib_drain_qp(self.as_raw()) }
        }
        // SAFETY: No completion will come any more.
        unsafe { self.id.destroy_qp() };
    }
}
