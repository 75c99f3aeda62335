// SPDX-License-Identifier: GPL-2.0

//! The slots of a receive queue: the buffers of posted receives, until they complete.
//!
//! [`RecvRing`], inside the QP, is plain data. A slot is used by one side at a time, which its state shows: by the
//! receive queue while it is free, by the completion while it is posted. The slot of a failed receive keeps its buffer
//! until the QP is destroyed; if the device does not destroy it, for ever ([`RecvRing::abandon`]). No locks; any
//! context except hard interrupts.

use core::cell::UnsafeCell;

use kernel::{
    ffi,
    pr_warn_once,
    prelude::*, //
};

use super::{
    atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    buf::{
        RxBuf,
        MSG_BUF_LEN, //
    },
    completion_receiver::CompletionReceiver,
    wc::Wc, //
};
use crate::bindings;

/// Object that owns the buffer of a receive.
pub(crate) trait RecvBuffer: Send + 'static {
    /// Returns the buffer; `None` if it has none. Exclusive: nothing else can read the buffer while the device may
    /// write to it, because the object belongs to the queue meanwhile.
    fn buf_mut(&mut self) -> Option<&mut RxBuf>;

    /// Returns the buffer, and drops the rest; `None` if it has none.
    fn into_buf(self) -> Option<RxBuf>;
}

#[cfg(ro2iblnd_kunit)]
impl RecvBuffer for RxBuf {
    fn buf_mut(&mut self) -> Option<&mut RxBuf> {
        Some(self)
    }

    fn into_buf(self) -> Option<RxBuf> {
        Some(self)
    }
}

const FREE: u32 = 0;
const POSTED: u32 = 1;

/// A slot of a ring.
///
/// # Invariants
///
/// `buf` belongs to the completion while `state` is `POSTED`, and from then on to the ring if that was no success;
/// otherwise to the receive queue.
pub(super) struct RecvSlot<R> {
    state: Atomic<u32>,
    buf: UnsafeCell<Option<R>>,
}

impl<R> RecvSlot<R> {
    /// Returns whether it belongs to the receive queue.
    pub(super) fn is_free(&self) -> bool {
        self.state.load(Acquire) == FREE
    }

    /// Puts the buffer of a receive into the slot, and gives the slot to the completion, before the receive is posted.
    ///
    /// # Safety
    ///
    /// The caller has the right to use the receive queue, and found the slot free.
    #[inline(always)]
    pub(super) unsafe fn put(&self, buf: R) {
        // There is no old buffer to drop: the completion has taken it, or `take_back` has.
        // SAFETY: By the type invariant it belongs to the caller.
        unsafe { self.buf.get().write(Some(buf)) };
        // INVARIANT: From here on we leave `buf` alone.
        self.state.store(POSTED, Release);
    }

    /// Takes it back from its completion, and frees the buffer.
    ///
    /// # Safety
    ///
    /// The caller has the right to use the receive queue, and there will be no completion.
    pub(super) unsafe fn take_back(&self) {
        // SAFETY: There will be no completion for this one, so it is the caller's again.
        drop(unsafe { (*self.buf.get()).take() });
        // INVARIANT: As above.
        self.state.store(FREE, Release);
    }
}

/// The slots of a receive queue.
pub(super) struct RecvRing<R> {
    slots: KVVec<RecvSlot<R>>,
}

impl<R: RecvBuffer> RecvRing<R> {
    /// Creates `depth` free slots. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(depth: u16) -> Result<Self> {
        let mut slots = KVVec::with_capacity(depth.into(), GFP_KERNEL)?;

        for _ in 0..depth {
            slots.push(
                // INVARIANT: It is free.
                RecvSlot {
                    state: Atomic::new(FREE),
                    buf: UnsafeCell::new(None),
                },
                GFP_KERNEL,
            )?;
        }
        Ok(Self { slots })
    }

    /// Returns the slots, in the order in which they are used.
    pub(super) fn slots(&self) -> &[RecvSlot<R>] {
        &self.slots
    }

    /// Ends the receive in slot `index`, of which `wc` is the completion: passes it to `round`.
    ///
    /// # Safety
    ///
    /// `wc` is the completion of that receive, and is handled once.
    #[inline(always)]
    pub(super) unsafe fn end(
        &self,
        index: u32,
        wc: &bindings::ib_wc,
        round: &mut impl CompletionReceiver<R>,
    ) {
        let slot = self.slots.get(index as usize);
        let Some(slot) = slot.filter(|slot| slot.state.load(Acquire) == POSTED) else {
            pr_warn_once!("completion for a receive that was not posted\n");
            return;
        };
        let invalidates = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as ffi::c_int;

        if wc.status != bindings::ib_wc_status_IB_WC_SUCCESS
            || wc.opcode != bindings::ib_wc_opcode_IB_WC_RECV
            || wc.wc_flags & invalidates != 0
        {
            // INVARIANT: The buffer stays where it is, and so does the state.
            return round.recv_failed(Wc::of(wc));
        }
        // SAFETY: By the type invariant of the slot the buffer belongs to us.
        let buf = unsafe { (*slot.buf.get()).take() };

        // INVARIANT: We are done with the slot.
        slot.state.store(FREE, Release);
        if let Some(mut buf) = buf {
            let nob = (wc.byte_len as usize).min(MSG_BUF_LEN);

            if let Some(buf) = buf.buf_mut() {
                buf.sync_for_cpu(nob);
            }
            round.received(buf, nob);
        }
    }

    /// Leaves the buffers of all receives that have not succeeded to the device, for ever. Process context.
    ///
    /// # Safety
    ///
    /// No completion is being handled, or will be, and posting has ended. Not called by two threads at a time.
    pub(super) unsafe fn abandon(&self) {
        for slot in &*self.slots {
            if slot.is_free() {
                continue;
            }
            // SAFETY: By the caller's guarantee nothing else uses it: the completion has ended, or will never be
            // handled.
            let buf = unsafe { (*slot.buf.get()).take() };

            // INVARIANT: The state stays, so that nothing is ever posted in the slot.
            if let Some(buf) = buf.and_then(R::into_buf) {
                buf.abandon();
            }
        }
    }

    /// Returns the number of receives that are posted or pushed, for debugfs: it may change meanwhile.
    pub(super) fn posted(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.state.load(Acquire) == POSTED)
            .count()
    }
}
