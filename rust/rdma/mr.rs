// SPDX-License-Identifier: GPL-2.0

//! Memory regions: keys that let the other side write into local memory.
//!
//! The regions belong to the QP ([`super::qp_mr_pool`]). The driver holds tokens ([`Mr`]) whose type is the state of
//! the region:
//!
//! (in the QP) - map -> `Mapped` - push_reg -> `Valid` - push_inv -> (in the QP) ->
//! free again, when the invalidation has completed.
//!
//! A token that is lost costs its region until the QP is destroyed, nothing more.

use core::marker::PhantomData;

use super::raw_mr::Region;

/// State of a region that is mapped, and whose key is not valid yet.
pub(crate) struct Mapped;
/// State of a region whose registration is in the send queue or done: the other side may use its key.
pub(crate) struct Valid;

/// Token of one memory region of a QP: the right to change its state.
pub(crate) struct Mr<S> {
    index: u16,
    qp_id: u64,
    rkey: u32,
    len: u32,
    iova: u64,
    _state: PhantomData<S>,
}

impl<S> Mr<S> {
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
    /// Creates a token for the mapped region, which covers `len` bytes, of the pool of `qp_id`. The caller makes sure
    /// that `index` has no other token.
    pub(super) fn new(index: u16, qp_id: u64, region: &Region, len: u32) -> Self {
        Self {
            index,
            qp_id,
            rkey: region.rkey,
            len,
            iova: region.iova,
            _state: PhantomData,
        }
    }

    /// Returns the key for the other side.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the address of the first byte for the other side.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the number of bytes that the key covers.
    #[cfg(ro2iblnd_kunit)]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the token after the registration was posted.
    pub(super) fn into_valid(self) -> Mr<Valid> {
        Mr {
            index: self.index,
            qp_id: self.qp_id,
            rkey: self.rkey,
            len: self.len,
            iova: self.iova,
            _state: PhantomData,
        }
    }
}
