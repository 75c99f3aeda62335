// SPDX-License-Identifier: GPL-2.0

//! Memory regions: keys that let the other side write into our memory.
//!
//! The regions belong to the QP ([`MrPool`]); what the driver holds are tokens
//! ([`Mr`]) whose type says how far a region is:
//!
//! `Free` - map -> `Mapped` - push_reg -> `Valid` - push_inv -> (in the QP) ->
//! free again, when the invalidation has completed.
//!
//! A pool begins without any and gets regions as they are needed, up to a number that
//! is known from the start: allocating one may take a command of the device's firmware,
//! a server has thousands of QPs, and of those that are tried for a connection only one
//! is used.
//!
//! The pool keeps the mapping from `map` on until no key to it can be valid:
//! until the invalidation has completed, or the region is destroyed. A token
//! that is lost costs its region until then, nothing more. A key is changed only
//! after a registration was posted with it, so that the message which carries it
//! and the region always agree.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

use super::{
    buf::Direction,
    pd::Pd,
    sg::SgMap,
    sync::{
        new_spinlock_bh,
        SpinLockBh, //
    }, //
};
use crate::bindings;

/// A region that is mapped nowhere.
pub(crate) struct Free;
/// A region that knows its memory; its key is not valid yet.
pub(crate) struct Mapped;
/// A region whose registration is in the send queue or done: the other side may
/// use its key.
pub(crate) struct Valid;

/// The right to go on with one memory region of a QP.
pub(crate) struct Mr<S> {
    index: u16,
    qp_id: u64,
    rkey: u32,
    len: u32,
    iova: u64,
    _state: PhantomData<S>,
}

impl<S> Mr<S> {
    fn into_state<N>(self) -> Mr<N> {
        Mr {
            index: self.index,
            qp_id: self.qp_id,
            rkey: self.rkey,
            len: self.len,
            iova: self.iova,
            _state: PhantomData,
        }
    }

    pub(super) fn index(&self) -> u16 {
        self.index
    }

    pub(super) fn qp_id(&self) -> u64 {
        self.qp_id
    }
}

impl Mr<Valid> {
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Mr<Mapped> {
    /// The key for the other side.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address of the first byte, as the other side is to use it.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// How many bytes the key covers.
    #[cfg(ro2iblnd_kunit)]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn into_valid(self) -> Mr<Valid> {
        self.into_state()
    }
}

/// A memory region (`struct ib_mr`).
///
/// # Invariants
///
/// `mr` is a region of the protection domain that only `drop` destroys.
pub(super) struct RawMr {
    mr: NonNull<bindings::ib_mr>,
    _pd: Arc<Pd>,
}

impl RawMr {
    /// Sleeps.
    fn alloc(pd: &Arc<Pd>, max_pages: u32) -> Result<Self> {
        // SAFETY: `pd` is valid.
        let mr = from_err_ptr(unsafe { bindings::ro2ib_alloc_mr(pd.as_raw(), max_pages) })?;

        Ok(Self {
            // INVARIANT: Just allocated.
            mr: NonNull::new(mr).ok_or(ENOMEM)?,
            _pd: pd.clone(),
        })
    }

    /// What it is now.
    fn get(&self) -> Region {
        let mut is = Region::default();

        // SAFETY: By the type invariant; the others are valid for writes.
        unsafe {
            bindings::ro2ib_mr_get(self.mr.as_ptr(), &mut is.rkey, &mut is.iova, &mut is.length);
        }
        is
    }

    /// Lets it cover all of `sg`, with its next key if `next_key`. Not while a registration with its
    /// key is under way. Sleeps, with some providers.
    fn map(&self, sg: &SgMap, next_key: bool) -> Result<Region> {
        let raw = self.mr.as_ptr();

        // SAFETY: By the type invariant, and the table is mapped. Whoever has this in his hands is
        // the only one who uses it.
        to_result(unsafe { bindings::ro2ib_map_mr_sg(raw, sg.table()) })?;
        if next_key {
            // SAFETY: As above; no registration with the old key is under way.
            unsafe { bindings::ro2ib_mr_bump_key(raw) };
        }
        Ok(self.get())
    }
}

/// What a region is at the moment.
#[derive(Default)]
struct Region {
    rkey: u32,
    iova: u64,
    length: u64,
}

// SAFETY: A memory region may be used and destroyed by any thread.
unsafe impl Send for RawMr {}

impl Drop for RawMr {
    /// Sleeps. Afterwards its key is dead.
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_dereg_mr(self.mr.as_ptr()) }
    }
}

struct Entry {
    // Not there while it is being mapped: that may sleep, so it is not done under the lock.
    raw: Option<RawMr>,
    // Set from `map` until no key to it can be valid.
    sg: Option<Arc<SgMap>>,
    // The current key went into a posted registration: the next one needs another.
    key_used: bool,
    // The key that the device knows: of the last registration, or of the beginning.
    known: u32,
}

impl From<RawMr> for Entry {
    fn from(raw: RawMr) -> Self {
        let known = raw.get().rkey;

        Self {
            raw: Some(raw),
            sg: None,
            key_used: false,
            known,
        }
    }
}

// Both have room for as many as there may be; none, once the pool is destroyed.
struct Inner {
    entries: KVec<Entry>,
    free: KVec<u16>,
}

/// The memory regions of a QP.
#[pin_data]
pub(super) struct MrPool {
    qp_id: u64,
    pd: Arc<Pd>,
    max_pages: u32,
    most: u16,
    #[pin]
    inner: SpinLockBh<Inner>,
}

/// What a work request needs to know of a region.
pub(super) struct RegParts {
    pub(super) mr: *mut bindings::ib_mr,
    pub(super) key: u32,
    /// The key that the device knows until then: dead, as the region is free.
    pub(super) known: u32,
}

impl MrPool {
    /// A pool for `most` regions of `max_pages` pages. Sleeps.
    pub(super) fn new(
        qp_id: u64,
        pd: &Arc<Pd>,
        most: u16,
        max_pages: u32,
    ) -> Result<impl PinInit<Self>> {
        let entries = KVec::with_capacity(most.into(), GFP_KERNEL)?;
        let free = KVec::with_capacity(most.into(), GFP_KERNEL)?;
        let pd = pd.clone();

        Ok(pin_init!(Self {
            qp_id,
            pd,
            max_pages,
            most,
            inner <- new_spinlock_bh!(Inner { entries, free }),
        }))
    }

    /// Takes a free region, or makes one. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if as many are in use as the pool may have, or it is destroyed;
    /// else why there is no further region.
    pub(super) fn take(&self) -> Result<Mr<Free>> {
        let free = self.inner.lock().free.pop();
        let index = match free {
            Some(index) => index,
            None => self.add()?,
        };

        Ok(Mr {
            index,
            qp_id: self.qp_id,
            rkey: 0,
            len: 0,
            iova: 0,
            _state: PhantomData,
        })
    }

    /// How many regions there are.
    #[cfg(ro2iblnd_kunit)]
    pub(super) fn len(&self) -> usize {
        self.inner.lock().entries.len()
    }

    /// Makes one more region, which is not free.
    fn add(&self) -> Result<u16> {
        if self.inner.lock().entries.len() >= usize::from(self.most) {
            return Err(ENOBUFS);
        }
        let raw = RawMr::alloc(&self.pd, self.max_pages)?;
        let mut inner = self.inner.lock();
        let index = u16::try_from(inner.entries.len())?;

        if index >= self.most {
            // Somebody was faster. The region goes after the lock.
            drop(inner);
            return Err(ENOBUFS);
        }
        let added = inner.entries.push_within_capacity(raw.into());

        drop(inner);
        // The same if the pool is destroyed by now.
        added.map_err(|_| ENOBUFS)?;
        Ok(index)
    }

    fn put_index(inner: &mut Inner, index: u16) {
        // There is room for all of them, so this cannot fail.
        let _ = inner.free.push_within_capacity(index);
    }

    /// Gives a free region back.
    pub(super) fn put(&self, mr: Mr<Free>) {
        if mr.qp_id == self.qp_id {
            Self::put_index(&mut self.inner.lock(), mr.index);
        }
    }

    /// Lets a region cover all of `sg`, and makes its next key. Sleeps, with some providers.
    pub(super) fn map(
        &self,
        mr: Mr<Free>,
        sg: Arc<SgMap>,
    ) -> Result<Mr<Mapped>, (Mr<Free>, Error)> {
        if mr.qp_id != self.qp_id || sg.direction() != Direction::FromDevice {
            return Err((mr, EINVAL));
        }
        let mut inner = self.inner.lock();
        let taken = inner
            .entries
            .get_mut(usize::from(mr.index))
            .and_then(|entry| Some((entry.raw.take()?, entry.key_used)));

        drop(inner);
        // The caller has the only token, so it is there unless the pool is destroyed.
        let Some((raw, key_used)) = taken else {
            return Err((mr, ENODEV));
        };
        // It is nobody's but ours.
        let mapped = raw.map(&sg, key_used);
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entries.get_mut(usize::from(mr.index)) else {
            drop(inner);
            // The pool was destroyed meanwhile. No key of this region is valid.
            drop(raw);
            return Err((mr, ENODEV));
        };

        entry.raw = Some(raw);
        match mapped {
            Ok(Region { rkey, iova, length }) => {
                // It has had its next key if it needed one.
                entry.key_used = false;
                if length != u64::from(sg.nob()) {
                    return Err((mr, EINVAL));
                }
                let len = sg.nob();

                entry.sg = Some(sg);
                Ok(Mr {
                    rkey,
                    len,
                    iova,
                    ..mr.into_state()
                })
            }
            Err(e) => Err((mr, e)),
        }
    }

    /// Undoes `map`.
    pub(super) fn unmap(&self, mr: Mr<Mapped>) -> Mr<Free> {
        if mr.qp_id == self.qp_id {
            let mut inner = self.inner.lock();
            let sg = inner
                .entries
                .get_mut(usize::from(mr.index))
                .and_then(|entry| entry.sg.take());

            drop(inner);
            drop(sg);
        }
        mr.into_state()
    }

    /// The parts of a registration, which is about to be posted.
    pub(super) fn register(&self, mr: &Mr<Mapped>) -> Option<RegParts> {
        let mut inner = self.inner.lock();
        let entry = inner.entries.get_mut(usize::from(mr.index))?;
        let raw = entry.raw.as_ref()?.mr.as_ptr();

        entry.key_used = true;
        Some(RegParts {
            mr: raw,
            key: mr.rkey,
            known: core::mem::replace(&mut entry.known, mr.rkey),
        })
    }

    /// The invalidation of a region has completed: its key is dead.
    pub(super) fn invalidated(&self, index: u16) {
        let mut inner = self.inner.lock();
        let sg = inner
            .entries
            .get_mut(usize::from(index))
            .and_then(|entry| entry.sg.take());

        Self::put_index(&mut inner, index);
        drop(inner);
        // Unmapped outside the lock, if this was the last.
        drop(sg);
    }

    /// Destroys all regions. Sleeps. Afterwards no key is valid.
    ///
    /// The send queue must be empty and closed: a registration would refer to
    /// what is gone.
    pub(super) fn destroy(&self) {
        let entries = {
            let mut inner = self.inner.lock();

            inner.free.clear();
            for entry in inner.entries.iter_mut() {
                // Mapped, and its registration never posted: whoever mapped it may be about to
                // give the memory back, and must find it unmapped. Hence inside the lock.
                if !entry.key_used {
                    entry.sg = None;
                }
            }
            core::mem::take(&mut inner.entries)
        };

        // The fields of an entry are dropped in order: first the region, then the mapping. A region
        // that is being mapped now goes with whoever maps it: it has no key that is valid.
        drop(entries);
    }
}
