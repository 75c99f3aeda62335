// SPDX-License-Identifier: GPL-2.0

//! Counted references to an id of the connection manager.
//!
//! An id is held by the driver, by a QP and a completion queue made on it, and by each of its handlers while
//! it runs. The last of them destroys it. A handler cannot destroy its id, because that waits for its handlers: it
//! hands the id on ([`HandlerOps::released_in_handler`]).
//!
//! The handler of the driver is a plain pointer here; [`super::cm`] knows its type. No locks, only atomics; destroying
//! sleeps.

use core::ptr::NonNull;

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
        Release, //
    },
    cm_locked::CmLocked,
    device::Device,
    pd::Pd,
    refcount::Refcount, //
};
use crate::bindings;

/// Functions of an id for its handler, whose type is not known here.
#[derive(Clone, Copy)]
pub(super) struct HandlerOps {
    /// Gives its reference back.
    ///
    /// # Safety
    ///
    /// It is the handler, and not used again.
    pub(super) drop: unsafe fn(*mut ffi::c_void),
    /// Takes the last reference to the id, which was released while a handler ran.
    ///
    /// # Safety
    ///
    /// It is the handler, which the reference keeps.
    pub(super) released_in_handler: unsafe fn(*mut ffi::c_void, CmRef),
}

/// The id has no address, or could not resolve the last one.
const NO_ADDRESS: u32 = 0;
/// The address is being resolved: no event has ended that yet.
const RESOLVING: u32 = 1;
/// The address is resolved, and never again.
const RESOLVED: u32 = 2;

/// State that the holders of an id share. The context pointer of the id points to it.
///
/// # Invariants
///
/// `id` is valid until the last of `users` destroys it; `handler` is a reference that `ops.drop`
/// takes back. Once `address` is [`RESOLVED`] it stays so, and no call that resolves an address begins.
pub(super) struct Shared {
    id: *mut bindings::rdma_cm_id,
    users: Refcount,
    has_qp: Atomic<u32>,
    /// A call that begins to resolve an address has not returned.
    in_resolve_call: Atomic<bool>,
    /// Whether the id has an address: [`NO_ADDRESS`], [`RESOLVING`] or [`RESOLVED`].
    address: Atomic<u32>,
    handler: *mut ffi::c_void,
    ops: HandlerOps,
}

impl Shared {
    /// Creates the state with one user and no id yet. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `handler` stays the caller's.
    ///
    /// # Safety
    ///
    /// `handler` is a reference that `ops` knows how to use and to give back, in any thread.
    pub(super) unsafe fn new(handler: *mut ffi::c_void, ops: HandlerOps) -> Result<NonNull<Self>> {
        let shared = KBox::new(
            // INVARIANT: Guaranteed by the caller; there is no id yet.
            Self {
                id: core::ptr::null_mut(),
                users: Refcount::new(1),
                has_qp: Atomic::new(0),
                in_resolve_call: Atomic::new(false),
                address: Atomic::new(NO_ADDRESS),
                handler,
                ops,
            },
            GFP_KERNEL,
        )?;

        NonNull::new(KBox::into_raw(shared)).ok_or(ENOMEM)
    }

    /// Frees the state, and gives the handler back.
    ///
    /// # Safety
    ///
    /// `this` has no users any more, and its id no handlers.
    pub(super) unsafe fn free(this: NonNull<Self>) {
        // SAFETY: Guaranteed by the caller, and the type invariant.
        unsafe {
            let shared = KBox::from_raw(this.as_ptr());

            (shared.ops.drop)(shared.handler);
        }
    }

    /// Returns the handler. Valid while the caller is a user.
    pub(super) fn handler(&self) -> *mut ffi::c_void {
        self.handler
    }

    /// Notes that the address is resolved; also for an id that was made with one, by a request.
    pub(super) fn resolve_done(&self) {
        // INVARIANT: `begin_resolve` does not begin any more. A call that has not returned has succeeded, and the CM
        // does nothing more in it.
        self.address.store(RESOLVED, Release);
    }

    /// Notes that no address is being resolved any more: the query failed, or was cancelled.
    pub(super) fn resolve_failed(&self) {
        // An address that is resolved stays.
        let _ = self.address.cmpxchg(RESOLVING, NO_ADDRESS, Full);
    }

    /// Returns whether the address is resolved. The CM then binds the id, and releases its device, only under the
    /// handler mutex.
    pub(super) fn is_resolved(&self) -> bool {
        self.address.load(Acquire) == RESOLVED
    }

    /// Takes a reference for a handler of the id that begins to run, unless the last user has gone.
    ///
    /// # Safety
    ///
    /// `this` is not freed during the call.
    pub(super) unsafe fn try_get(this: NonNull<Self>) -> Option<CmRef> {
        // SAFETY: Guaranteed by the caller.
        let got = unsafe { this.as_ref() }.users.try_get();

        // INVARIANT: Counted above.
        got.then_some(CmRef(this))
    }
}

/// A counted reference to an id.
///
/// # Invariants
///
/// It is one of the users.
pub(crate) struct CmRef(NonNull<Shared>);

// SAFETY: Ids may be used and destroyed by any thread, and so may handlers.
unsafe impl Send for CmRef {}
// SAFETY: The operations on ids are thread safe, except those that `begin_resolve` keeps apart.
unsafe impl Sync for CmRef {}

impl Clone for CmRef {
    fn clone(&self) -> Self {
        self.shared().users.get();
        // INVARIANT: Counted above.
        Self(self.0)
    }
}

impl Drop for CmRef {
    fn drop(&mut self) {
        if !self.shared().users.put() {
            return;
        }
        let unresolved = !self.shared().is_resolved();

        // SAFETY: We were the last user. This waits for a handler that runs, and afterwards
        // there are no more. It is not called by a handler, as that is a user of its own.
        unsafe {
            bindings::ro2ib_cm_destroy(self.as_raw(), unresolved);
            Shared::free(self.0);
        }
    }
}

impl CmRef {
    /// Takes over one reference, and `id`, whose context is to be `shared`.
    ///
    /// # Safety
    ///
    /// The caller owns the reference and the id, which nothing else uses.
    pub(super) unsafe fn adopt(shared: NonNull<Shared>, id: *mut bindings::rdma_cm_id) -> Self {
        // SAFETY: Guaranteed by the caller.
        unsafe { (*shared.as_ptr()).id = id };
        // INVARIANT: Guaranteed by the caller.
        Self(shared)
    }

    pub(super) fn shared(&self) -> &Shared {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.shared().id
    }

    /// Gives the reference back inside of a handler of the id; the last one goes to
    /// [`HandlerOps::released_in_handler`].
    ///
    /// # Safety
    ///
    /// The caller runs in a handler of the id.
    pub(super) unsafe fn put_in_handler(self) {
        let this = core::mem::ManuallyDrop::new(self);
        let shared = this.shared();

        if !shared.users.put() {
            return;
        }
        // No other user is left, and there will be none: handlers do not run concurrently.
        shared.users.resurrect();
        // INVARIANT: Counted above.
        let id = CmRef(this.0);

        // SAFETY: By the type invariant of `Shared`; `id` keeps the handler.
        unsafe { (shared.ops.released_in_handler)(shared.handler, id) };
    }

    /// Waits until no handler runs, and keeps handlers from running. Not inside a handler of the same id, which has the
    /// lock. Sleeps.
    pub(super) fn lock(&self) -> CmLocked<'_> {
        // SAFETY: The id is valid for as long as this, which the result borrows. By the invariant of `Shared` no
        // address is resolved from then on.
        unsafe { CmLocked::lock(self.as_raw(), self.shared().is_resolved()) }
    }

    /// Returns whether the id is bound to `device`, and so keeps it from being unregistered; it stays bound. Sleeps;
    /// not inside a handler of the same id.
    pub(super) fn is_bound_to(&self, device: &Device) -> bool {
        self.lock().device().is_some_and(|bound| bound.same(device))
    }

    /// Calls `begin`, which begins to resolve an address.
    ///
    /// # Errors
    ///
    /// `EBUSY` if an address is being resolved, or is resolved. The CM has no lock there: two calls at once would both
    /// bind the id, and a failing one releases the device that [`CmLocked`] reads.
    pub(super) fn begin_resolve(
        &self,
        begin: impl FnOnce(*mut bindings::rdma_cm_id) -> ffi::c_int,
    ) -> Result {
        let shared = self.shared();

        if shared.in_resolve_call.xchg(true, Acquire) {
            return Err(EBUSY);
        }
        // Set before the call, because the event may come before the call returns.
        let result = if shared.address.cmpxchg(NO_ADDRESS, RESOLVING, Full).is_err() {
            Err(EBUSY)
        } else {
            to_result(begin(shared.id)).inspect_err(|_| shared.resolve_failed())
        };

        shared.in_resolve_call.store(false, Release);
        result
    }

    /// Makes the QP of this id.
    ///
    /// # Safety
    ///
    /// `pd` and `cq`, which no other QP uses, stay valid until [`Self::destroy_qp`] has destroyed the QP.
    pub(super) unsafe fn create_qp(
        &self,
        pd: &Pd,
        cq: *mut bindings::ro2ib_cq,
        caps: &mut bindings::ro2ib_qp_caps,
    ) -> Result<NonNull<bindings::ib_qp>> {
        let mut raw = core::ptr::null_mut();

        if self.shared().has_qp.cmpxchg(0, 1, Full).is_err() {
            return Err(EBUSY);
        }
        // SAFETY: The id is valid and has no QP; the caller guarantees the rest.
        let made = to_result(unsafe {
            bindings::ro2ib_create_qp(self.as_raw(), pd.as_raw(), cq, caps, &mut raw)
        })
        .and_then(|()| NonNull::new(raw).ok_or(EINVAL));

        if made.is_err() {
            self.shared().has_qp.store(0, Release);
        }
        made
    }

    /// Destroys the QP of this id. A provider may refuse, as when the firmware of its device does not answer: then the
    /// QP exists for ever, but is not the QP of this id any more ([`super::cq::Cq::is_used`] tells).
    ///
    /// # Safety
    ///
    /// The caller owns the QP that [`Self::create_qp`] made. The memory that its work requests refer to stays until all
    /// of its completions have been handled.
    pub(super) unsafe fn destroy_qp(&self) {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::rdma_destroy_qp(self.as_raw()) };
        self.shared().has_qp.store(0, Release);
    }
}
