// SPDX-License-Identifier: GPL-2.0

//! Memory regions: keys that let the other side write into local memory.
//!
//! The regions belong to the QP ([`super::mr_pool`]). The driver holds tokens ([`Mr`]) whose type is the state of the
//! region:
//!
//! `Free` - map -> `Mapped` - push_reg -> `Valid` - push_inv -> (in the QP) ->
//! free again, when the invalidation has completed.
//!
//! A token that is lost costs its region until the QP is destroyed, nothing more.

use core::marker::PhantomData;

use super::raw_mr::Region;

/// State of a region that is not mapped.
pub(crate) struct Free;
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

impl Mr<Free> {
    /// Creates a token for the pool of `qp_id`. The caller makes sure that `index` has no other token.
    pub(super) fn new(index: u16, qp_id: u64) -> Self {
        Self {
            index,
            qp_id,
            rkey: 0,
            len: 0,
            iova: 0,
            _state: PhantomData,
        }
    }

    /// Returns the token of the mapped region, which covers `len` bytes.
    pub(super) fn into_mapped(self, region: &Region, len: u32) -> Mr<Mapped> {
        Mr {
            rkey: region.rkey,
            len,
            iova: region.iova,
            ..self.into_state()
        }
    }
}

impl Mr<Valid> {
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Mr<Mapped> {
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

    pub(super) fn into_valid(self) -> Mr<Valid> {
        self.into_state()
    }

    pub(super) fn into_free(self) -> Mr<Free> {
        self.into_state()
    }
}
