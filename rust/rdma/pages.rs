// SPDX-License-Identifier: GPL-2.0

//! Lists of page fragments: those of others, and bounce buffers of our own.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    buf::Direction,
    device::Device,
    sg::SgMap, //
};
use crate::bindings;

/// Pages that belong to us.
///
/// # Invariants
///
/// Every `bv_page` is an allocated page that only `drop` frees.
struct Pages(KVVec<bindings::bio_vec>);

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
/// # Invariants
///
/// `bvecs` points to `n` elements whose pages are valid, both for as long as
/// this lives; `offset + nob` is within them.
pub(crate) struct PageVec {
    bvecs: *const bindings::bio_vec,
    n: u32,
    offset: usize,
    nob: usize,
    gpu: bool,
    own: Option<Arc<Pages>>,
}

// SAFETY: By the type invariant it is valid wherever it is used; pages belong to no thread.
unsafe impl Send for PageVec {}
// SAFETY: As above; the contents are only accessed by copying.
unsafe impl Sync for PageVec {}

/// One fragment of a [`PageVec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where it begins in its page.
    pub(crate) offset: usize,
    /// Its length in bytes; it may go on into the pages that follow.
    pub(crate) len: usize,
}

impl PageVec {
    /// Wraps `nob` bytes from `offset` on of the `n` fragments at `bvecs`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are fewer bytes than that.
    ///
    /// # Safety
    ///
    /// `bvecs` points to `n` valid elements. They and their pages stay as they
    /// are until the returned value, and every [`SgMap`] made from it, is gone.
    pub(crate) unsafe fn from_raw(
        bvecs: *const bindings::bio_vec,
        n: u32,
        offset: usize,
        nob: usize,
        gpu: bool,
    ) -> Result<Self> {
        // INVARIANT: Guaranteed by the caller, except for the length, which is checked here.
        let this = Self {
            bvecs,
            n,
            offset,
            nob,
            gpu,
            own: None,
        };
        let total = this
            .as_bvecs()
            .iter()
            .try_fold(0usize, |sum, bvec| sum.checked_add(bvec.bv_len as usize));

        match (total, offset.checked_add(nob)) {
            (Some(total), Some(end)) if end <= total => Ok(this),
            _ => Err(EINVAL),
        }
    }

    fn as_bvecs(&self) -> &[bindings::bio_vec] {
        if self.n == 0 {
            return &[];
        }
        // SAFETY: By the type invariant.
        unsafe { core::slice::from_raw_parts(self.bvecs, self.n as usize) }
    }

    /// How many bytes it covers.
    pub(crate) fn nob(&self) -> usize {
        self.nob
    }

    /// Whether it is memory of a GPU, which the CPU cannot copy.
    pub(crate) fn is_gpu(&self) -> bool {
        self.gpu
    }

    /// The fragments, without what is before the first and behind the last byte.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut skip = self.offset;
        let mut left = self.nob;

        self.as_bvecs().iter().filter_map(move |bvec| {
            let len = bvec.bv_len as usize;
            let skipped = skip.min(len);
            let take = (len - skipped).min(left);

            skip -= skipped;
            left -= take;
            (take != 0).then(|| Segment {
                offset: (bvec.bv_offset as usize + skipped) % PAGE_SIZE,
                len: take,
            })
        })
    }

    /// Whether one memory region of `max_pages` pages can cover it: no gaps
    /// inside, that is, every fragment but the first begins and every one but the
    /// last ends at the edge of a page.
    pub(crate) fn can_register(&self, max_pages: u32) -> bool {
        let mut pages = 0usize;
        let mut ended = true;

        for (i, s) in self.segments().enumerate() {
            if !ended || (i != 0 && s.offset != 0) {
                return false;
            }
            let end = s.offset + s.len;

            pages += end.div_ceil(PAGE_SIZE);
            ended = end % PAGE_SIZE == 0;
        }
        pages != 0 && pages <= max_pages as usize
    }

    /// Copies `to.len()` bytes from position `at` on. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are fewer, `EOPNOTSUPP` for memory of a GPU.
    pub(crate) fn copy_to_slice(&self, at: usize, to: &mut [u8]) -> Result {
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
    pub(crate) fn copy_from_slice(&self, at: usize, from: &[u8]) -> Result {
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
        if self.gpu {
            return Err(EOPNOTSUPP);
        }
        match at.checked_add(len) {
            Some(end) if end <= self.nob => Ok(self.offset + at),
            _ => Err(EINVAL),
        }
    }

    pub(super) fn as_raw(&self) -> (*const bindings::bio_vec, u32, usize) {
        (self.bvecs, self.n, self.offset)
    }

    /// A second reference to the same pages.
    ///
    /// Not `Clone`: the contract of [`Self::from_raw`] covers the values made by
    /// this module only.
    pub(super) fn share(&self) -> Self {
        Self {
            own: self.own.clone(),
            ..*self
        }
    }
}

/// A buffer of our own, for sinks that one memory region cannot cover: the
/// device writes here, then the data is copied.
pub(crate) struct BounceBuf {
    pages: PageVec,
    map: Option<Arc<SgMap>>,
}

impl BounceBuf {
    /// Allocates and maps `nob` bytes, zeroed: what the peer says it has written, and has not,
    /// must not be old contents of our memory. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for 0, `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: ARef<Device>, nob: usize) -> Result<Self> {
        let n = nob.div_ceil(PAGE_SIZE);
        // INVARIANT: (of `Pages`) Empty.
        let mut pages = Pages(KVVec::with_capacity(n, GFP_KERNEL)?);
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
        let pages = Arc::new(pages, GFP_KERNEL)?;
        // INVARIANT: `own` keeps the pages and the list, which does not move.
        let pages = PageVec {
            bvecs: pages.0.as_ptr(),
            n: u32::try_from(n)?,
            offset: 0,
            nob,
            gpu: false,
            own: Some(pages),
        };
        let map = SgMap::map(device, &pages, Direction::FromDevice)?;

        Ok(Self {
            pages,
            map: Some(map),
        })
    }

    /// The mapping, until the data is copied out.
    pub(crate) fn map(&self) -> Option<&Arc<SgMap>> {
        self.map.as_ref()
    }

    /// Copies the first `nob` bytes to the beginning of `to`. The buffer is
    /// unmapped before, so its key must be dead. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a work request or memory region still uses the mapping,
    /// `EINVAL` if either is shorter, `EOPNOTSUPP` for memory of a GPU.
    pub(crate) fn copy_to(&mut self, to: &PageVec, nob: usize) -> Result {
        if let Some(map) = self.map.take() {
            drop(Arc::into_unique_or_drop(map).ok_or(EBUSY)?);
        }
        copy(to, &self.pages, nob)
    }
}

fn copy(to: &PageVec, from: &PageVec, nob: usize) -> Result {
    let to_at = to.check(0, nob)?;
    let from_at = from.check(0, nob)?;

    // SAFETY: By the invariants of both.
    let done = unsafe {
        bindings::ro2ib_bvec_copy(to.bvecs, to.n, to_at, from.bvecs, from.n, from_at, nob)
    };
    if done == nob {
        Ok(())
    } else {
        Err(EINVAL)
    }
}
