// SPDX-License-Identifier: GPL-2.0

//! The slots of a receive queue: the buffers of posted receives, until they complete.
//!
//! [`RecvRing`], inside the QP, is plain data. A slot is used by one side at a time, which its state shows: by the
//! receive queue while it is free, by the completion while it is posted. The slot of a failed receive keeps its buffer
//! until the QP is destroyed. No locks; any context except hard interrupts.

use core::cell::UnsafeCell;

use kernel::{
    container_of,
    ffi,
    pr_warn_once,
    prelude::*,
    types::Opaque, //
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
    cqe::{
        self,
        Done, //
    },
    wc::Wc, //
};
use crate::bindings;

/// A receive that has ended.
pub(crate) struct RecvDone {
    /// The buffer. `None` after a failure: a provider may report it before its device knows, which may use the buffer
    /// until the QP is drained.
    pub(crate) buf: Option<RxBuf>,
    /// Outcome.
    pub(crate) wc: Wc,
    /// Number of bytes that arrived, at most [`MSG_BUF_LEN`]; 0 after a failure.
    pub(crate) len: u32,
    /// It was a plain SEND: not the immediate data of an RDMA WRITE, which leaves the buffer as it was, and it did not
    /// invalidate a local key.
    pub(crate) plain: bool,
}

const FREE: u32 = 0;
const POSTED: u32 = 1;

/// A slot of a ring that an `O` owns.
///
/// # Invariants
///
/// `buf` belongs to the completion while `state` is `POSTED`, and from then on to the ring if that was no success;
/// otherwise to the receive queue.
/// `owner` is what [`RecvRing::new`] was given.
pub(super) struct RecvSlot<O> {
    cqe: Opaque<bindings::ib_cqe>,
    owner: *const O,
    state: Atomic<u32>,
    buf: UnsafeCell<Option<RxBuf>>,
}

impl<O> RecvSlot<O> {
    /// Returns whether it belongs to the receive queue.
    pub(super) fn is_free(&self) -> bool {
        self.state.load(Acquire) == FREE
    }

    /// Puts the buffer of a receive into the slot, and gives the slot to the completion, before the receive is posted.
    /// Returns the entry for the work request.
    ///
    /// # Safety
    ///
    /// The caller has the right to use the receive queue, and found the slot free.
    #[inline(always)]
    pub(super) unsafe fn put(&self, buf: RxBuf) -> *mut bindings::ib_cqe {
        // There is no old buffer to drop: the completion has taken it, or `take_back` has.
        // SAFETY: By the type invariant it belongs to the caller.
        unsafe { self.buf.get().write(Some(buf)) };
        // INVARIANT: From here on we leave `buf` alone.
        self.state.store(POSTED, Release);
        self.cqe.get()
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

    /// Ends the receive of which `wc` is the completion. Returns the owner of the ring, and the outcome for the
    /// handler; `None` if the receive was not posted.
    ///
    /// # Safety
    ///
    /// `wc` is a valid completion of a work request with the entry of a slot of a `RecvRing<O>`, and the owner of that
    /// ring lives for `'a`.
    #[inline]
    pub(super) unsafe fn end<'a>(wc: *const bindings::ib_wc) -> Option<(&'a O, RecvDone)>
    where
        O: 'a,
    {
        // SAFETY: The caller guarantees that `wc` is valid, and that its `wr_cqe` is in a slot, which
        // lives as long as its ring.
        let (slot, wc, byte_len, plain) = unsafe {
            let cqe = (*wc).__bindgen_anon_1.wr_cqe;
            let invalidates = bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as ffi::c_int;

            (
                &*container_of!(Opaque::cast_from(cqe), Self, cqe),
                Wc::of_recv(&*wc),
                (*wc).byte_len,
                (*wc).opcode == bindings::ib_wc_opcode_IB_WC_RECV
                    && (*wc).wc_flags & invalidates == 0,
            )
        };

        if slot.state.load(Acquire) != POSTED {
            pr_warn_once!("completion for a receive that was not posted\n");
            return None;
        }
        // SAFETY: By the type invariant it is the owner, which the caller says lives long enough.
        let owner = unsafe { &*slot.owner };

        if !wc.status.is_success() {
            return Some((
                owner,
                RecvDone {
                    // INVARIANT: It stays where it is, and so does the state.
                    buf: None,
                    wc,
                    len: 0,
                    plain,
                },
            ));
        }
        // SAFETY: By the type invariant the buffer belongs to us.
        let buf = unsafe { (*slot.buf.get()).take() };

        // INVARIANT: We are done with the slot.
        slot.state.store(FREE, Release);

        let buf = buf?;
        let len = byte_len.min(MSG_BUF_LEN as u32);

        buf.sync_for_cpu(len as usize);
        Some((
            owner,
            RecvDone {
                buf: Some(buf),
                wc,
                len,
                plain,
            },
        ))
    }
}

/// The slots of a receive queue, which an `O` owns.
pub(super) struct RecvRing<O> {
    slots: KVVec<RecvSlot<O>>,
}

impl<O> RecvRing<O> {
    /// Creates `depth` free slots, whose completions call `done` and find `owner`. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(depth: u16, done: Done, owner: *const O) -> Result<Self> {
        let mut slots = KVVec::with_capacity(depth.into(), GFP_KERNEL)?;

        for _ in 0..depth {
            slots.push(
                // INVARIANT: It is free.
                RecvSlot {
                    cqe: cqe::new(done),
                    owner,
                    state: Atomic::new(FREE),
                    buf: UnsafeCell::new(None),
                },
                GFP_KERNEL,
            )?;
        }
        Ok(Self { slots })
    }

    /// Returns the slots, in the order in which they are used.
    pub(super) fn slots(&self) -> &[RecvSlot<O>] {
        &self.slots
    }

    /// Returns the number of receives that are posted or pushed, for debugfs: it may change meanwhile.
    pub(super) fn posted(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.state.load(Acquire) == POSTED)
            .count()
    }
}
