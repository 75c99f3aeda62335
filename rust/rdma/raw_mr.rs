// SPDX-License-Identifier: GPL-2.0

//! One memory region of a device, and the budget of regions.
//!
//! A device has a limited number of regions, and NFS and other drivers use it, too. So the regions of the driver are
//! counted ([`MrBudget`]), and have a limit. [`super::mr_sharing`] divides them between queue pairs.

use core::ptr::NonNull;

use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

use super::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    device::RegionPage,
    pd::Pd,
    return_code::check,
    sg::SgMap, //
};
use crate::bindings;

/// Number of regions that the driver has, and may have, of a device. Any context.
pub(super) struct MrBudget {
    limit: u32,
    allocated: Atomic<u32>,
}

impl MrBudget {
    /// Creates a budget for `limit` regions.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit,
            allocated: Atomic::new(0),
        }
    }

    /// Returns the limit.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of allocated regions.
    pub(super) fn allocated(&self) -> u32 {
        self.allocated.load(Relaxed)
    }
}

/// A place in the budget, which one region holds until it is destroyed.
struct Counted(Arc<MrBudget>);

impl Counted {
    /// Counts one more region. `None`: the limit is reached.
    fn new(budget: &Arc<MrBudget>) -> Option<Self> {
        // Counted before the check, so that no two take the last place.
        let counted = Self(budget.clone());

        (budget.allocated.fetch_add(1, Relaxed) < budget.limit).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.allocated.fetch_sub(1, Relaxed);
    }
}

/// A memory region (`struct ib_mr`).
///
/// # Invariants
///
/// `mr` is a region of the protection domain that only `drop` destroys. `page` is of its device.
pub(super) struct RawMr {
    mr: NonNull<bindings::ib_mr>,
    pd: Arc<Pd>,
    page: RegionPage,
    // Dropped last: the device has the region until then.
    _counted: Counted,
}

impl RawMr {
    /// Allocates a region of `pd` for `max_pages` pages. Sleeps.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` if the budget is used up, `EOPNOTSUPP` if the device has no pages that are small enough, otherwise the
    /// error of the provider.
    pub(super) fn alloc(budget: &Arc<MrBudget>, pd: &Arc<Pd>, max_pages: u32) -> Result<Self> {
        let counted = Counted::new(budget).ok_or(ENOBUFS)?;
        let page = pd.device().attrs().region_page().ok_or(EOPNOTSUPP)?;
        // SAFETY: `pd` is valid.
        let mr = from_err_ptr(unsafe { bindings::ro2ib_alloc_mr(pd.as_raw(), max_pages) })?;

        Ok(Self {
            // INVARIANT: Just allocated, and the page size is that of the device.
            mr: NonNull::new(mr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            page,
            _counted: counted,
        })
    }

    /// Returns whether queue pairs of `pd` can use it.
    pub(super) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    /// Returns the region, for a work request.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.mr.as_ptr()
    }

    /// Returns its current state.
    pub(super) fn get(&self) -> Region {
        let mut is = Region::default();

        // SAFETY: By the type invariant; the others are valid for writes.
        unsafe {
            bindings::ro2ib_mr_get(self.mr.as_ptr(), &mut is.rkey, &mut is.iova, &mut is.length);
        }
        is
    }

    /// Maps all of `sg`, with the next key if `next_key`. Not while a registration with its key is in flight. Sleeps,
    /// with some providers.
    pub(super) fn map(&self, sg: &SgMap, next_key: bool) -> Result<Region> {
        let raw = self.mr.as_ptr();

        // SAFETY: By the type invariant, and the table is mapped. The device has pages of that size. `&self` is
        // exclusive in fact: the region was taken out of its pool.
        check(unsafe { bindings::ro2ib_map_mr_sg(raw, sg.table(), self.page.len()) })?;
        if next_key {
            // SAFETY: As above; no registration with the old key is in flight.
            unsafe { bindings::ro2ib_mr_bump_key(raw) };
        }
        Ok(self.get())
    }
}

/// Current state of a region.
#[derive(Default)]
pub(super) struct Region {
    pub(super) rkey: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
}

// SAFETY: A memory region may be used and destroyed by any thread.
unsafe impl Send for RawMr {}

impl Drop for RawMr {
    /// Destroys the region. Sleeps. Afterwards its key is dead, unless the device refuses, which is logged.
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        let destroyed = unsafe { bindings::ro2ib_dereg_mr(self.mr.as_ptr()) };

        if !destroyed {
            self.pd.keep();
        }
    }
}
