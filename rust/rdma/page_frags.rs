// SPDX-License-Identifier: GPL-2.0

//! Lists of page fragments, of LNet or of the driver.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::gpu::MemKind;
use crate::bindings;

/// Pages that belong to the driver.
///
/// # Invariants
///
/// Every `bv_page` is an allocated page that only `drop` frees.
pub(super) struct Pages(KVVec<bindings::bio_vec>);

// SAFETY: Pages belong to no thread.
unsafe impl Send for Pages {}
// SAFETY: The vector does not change.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        for bvec in self.0.iter() {
            // SAFETY: By the type invariant.
            unsafe { bindings::ro2ib_free_page(bvec.bv_page) };
        }
    }
}

/// A list of page fragments that data is read from or written to.
///
/// The functions that use the bytes check whether there are as many as stated.
///
/// # Invariants
///
/// `bvecs` points to `n` elements whose pages are valid, both for as long as
/// this lives.
pub(crate) struct PageVec {
    bvecs: *const bindings::bio_vec,
    n: u32,
    offset: u32,
    nob: u32,
    kind: MemKind,
    own: Option<Arc<Pages>>,
}

// SAFETY: By the type invariant it is valid wherever it is used; pages belong to no thread.
unsafe impl Send for PageVec {}
// SAFETY: As above; the contents are only accessed by copying.
unsafe impl Sync for PageVec {}

impl PageVec {
    /// Wraps `nob` bytes from `offset` on of the `n` fragments at `bvecs`. Memory of a GPU must be declared as such
    /// (`kind`), otherwise other memory is read or written.
    ///
    /// # Safety
    ///
    /// `bvecs` points to `n` valid elements. They and their pages stay as they are until the returned value, and every
    /// value that is shared with it, is gone.
    #[inline]
    pub(crate) unsafe fn from_raw(
        bvecs: *const bindings::bio_vec,
        n: u32,
        offset: u32,
        nob: u32,
        kind: MemKind,
    ) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            bvecs,
            n,
            offset,
            nob,
            kind,
            own: None,
        }
    }

    /// Returns the number of bytes that it covers.
    pub(crate) fn nob(&self) -> usize {
        self.nob as usize
    }

    /// Returns whether it is memory of a GPU, which the CPU cannot copy.
    pub(crate) fn is_gpu(&self) -> bool {
        matches!(self.kind, MemKind::Gpu(_))
    }

    /// Returns a reference to its pages if they belong to the driver.
    pub(super) fn own(&self) -> Option<Arc<Pages>> {
        self.own.clone()
    }

    /// Returns the kind of its memory.
    pub(super) fn kind(&self) -> MemKind {
        self.kind
    }

    /// Returns whether some of its pages, but not all, stand for memory of a GPU.
    pub(super) fn is_mixed(&self) -> bool {
        let MemKind::Gpu(gpu) = self.kind else {
            return false;
        };
        let (mut some, mut others) = (false, false);
        let (mut at, mut end) = (self.offset, self.offset.saturating_add(self.nob));

        for i in 0..self.n as usize {
            // SAFETY: By the type invariant there are `n` elements.
            let bvec = unsafe { &*self.bvecs.add(i) };

            // Only pages that hold bytes of this list.
            let is_before = at >= bvec.bv_len;
            at = at.saturating_sub(bvec.bv_len);
            if is_before {
                end = end.saturating_sub(bvec.bv_len);
                continue;
            }
            if end == 0 {
                break;
            }
            end = end.saturating_sub(bvec.bv_len);
            // SAFETY: By the type invariant it is a page.
            if unsafe { gpu.has(bvec.bv_page) } {
                some = true;
            } else {
                others = true;
            }
        }
        some && others
    }

    /// Copies `to.len()` bytes from position `at` on. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are fewer, `EOPNOTSUPP` for memory of a GPU.
    #[inline]
    pub(crate) fn copy_to_slice(&self, at: usize, to: &mut [u8]) -> Result {
        // Most messages carry no data.
        if to.is_empty() {
            return Ok(());
        }
        let at = self.check(at, to.len())?;

        // SAFETY: By the type invariant; `to` is valid for writes.
        let done = unsafe {
            bindings::ro2ib_bvec_read(self.bvecs, self.n, at, to.as_mut_ptr().cast(), to.len())
        };
        if done == to.len() {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Copies `from` to position `at`. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not fit, `EOPNOTSUPP` for memory of a GPU.
    #[inline]
    pub(crate) fn copy_from_slice(&self, at: usize, from: &[u8]) -> Result {
        // As above.
        if from.is_empty() {
            return Ok(());
        }
        let at = self.check(at, from.len())?;

        // SAFETY: By the type invariant; `from` is valid for reads.
        let done = unsafe {
            bindings::ro2ib_bvec_write(self.bvecs, self.n, at, from.as_ptr().cast(), from.len())
        };
        if done == from.len() {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Checks a range and returns its position in the raw list.
    fn check(&self, at: usize, len: usize) -> Result<usize> {
        if self.is_gpu() {
            return Err(EOPNOTSUPP);
        }
        match at.checked_add(len) {
            Some(end) if end <= self.nob() => Ok(self.offset as usize + at),
            _ => Err(EINVAL),
        }
    }

    /// Returns the fragments, their number, the offset of the first byte in them, and the number of bytes.
    pub(super) fn as_raw(&self) -> (*const bindings::bio_vec, u32, u32, u32) {
        (self.bvecs, self.n, self.offset, self.nob)
    }

    /// Allocates zeroed pages for `nob` bytes, without waiting for memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn alloc(nob: usize) -> Result<Self> {
        let n = nob.div_ceil(PAGE_SIZE);
        // INVARIANT: (of `Pages`) Empty.
        let mut pages = Pages(KVVec::with_capacity(n, GFP_NOWAIT | __GFP_NOWARN)?);
        let mut left = nob;

        while left != 0 {
            // SAFETY: No preconditions.
            let page = unsafe { bindings::ro2ib_alloc_page() };
            let len = left.min(PAGE_SIZE);

            if page.is_null() {
                return Err(ENOMEM);
            }
            // INVARIANT: (of `Pages`) Just allocated. There is room for all of them.
            let pushed = pages.0.push_within_capacity(bindings::bio_vec {
                bv_page: page,
                bv_len: len as u32,
                bv_offset: 0,
            });
            if pushed.is_err() {
                return Err(ENOMEM);
            }
            left -= len;
        }
        let pages = Arc::new(pages, GFP_NOWAIT | __GFP_NOWARN)?;
        // SAFETY: The list does not move, and `own`, set below and never changed, keeps it and the
        // pages.
        let mut vec = unsafe {
            let (n, nob) = (u32::try_from(n)?, u32::try_from(nob)?);
            Self::from_raw(pages.0.as_ptr(), n, 0, nob, MemKind::Host)
        };

        vec.own = Some(pages);
        Ok(vec)
    }

    /// Copies the first `nob` bytes of `from` to the beginning of this.
    ///
    /// # Errors
    ///
    /// `EINVAL` if either is shorter, `EOPNOTSUPP` for memory of a GPU.
    pub(super) fn copy_from(&self, from: &Self, nob: usize) -> Result {
        let to_at = self.check(0, nob)?;
        let from_at = from.check(0, nob)?;

        // SAFETY: By the invariants of both.
        let done = unsafe {
            bindings::ro2ib_bvec_copy(self.bvecs, self.n, to_at, from.bvecs, from.n, from_at, nob)
        };
        if done == nob {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Returns a second list of the same pages. The conditions of [`Self::from_raw`] apply to both.
    pub(crate) fn share(&self) -> Self {
        Self {
            own: self.own.clone(),
            ..*self
        }
    }
}
