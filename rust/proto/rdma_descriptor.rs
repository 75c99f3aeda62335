// SPDX-License-Identifier: GPL-2.0

//! RDMA descriptors: memory of a peer that this node may write to (spec 2.4).

use super::{
    bytes::Order,
    constants::{
        FRAGMENT_LEN,
        FRAGS_MAX,
        LNET_MTU, //
    },
    wire_error::WireError, //
};

/// Bytes before the first fragment: key and count.
const HEAD: usize = 8;

/// A piece of a memory region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Length in bytes; fragments of length 0 are skipped.
    pub nob: u32,
    /// Address inside the region (IOVA).
    pub addr: u64,
}

/// A descriptor inside a received message.
///
/// # Invariants
///
/// Holds 1..=257 fragments; the sum of their lengths is 1..=1 MiB; no fragment
/// wraps around the end of the address space.
#[derive(Copy, Clone, Debug)]
pub struct Descriptor<'a> {
    key: u32,
    total: u32,
    order: Order,
    nfrags: u16,
    frags: &'a [u8],
}

impl<'a> Descriptor<'a> {
    /// Reads the descriptor at the start of `body`, the bytes up to the end of
    /// the message.
    pub(super) fn decode(body: &'a [u8], order: Order) -> Result<Self, WireError> {
        let this = Self::read(body, order)?;
        let mut total = 0u32;
        for f in this.fragments() {
            f.addr
                .checked_add(u64::from(f.nob))
                .ok_or(WireError::AddressWrap)?;
            total = total
                .checked_add(f.nob)
                .filter(|&t| t <= LNET_MTU)
                .ok_or(WireError::DescriptorTooLong)?;
        }
        if total == 0 {
            return Err(WireError::DescriptorEmpty);
        }
        // INVARIANT: The sum and the addresses were checked above.
        Ok(Self { total, ..this })
    }

    /// Reads a descriptor of `total` bytes that [`Self::decode`] has read before, from the same bytes.
    #[inline(always)]
    pub(super) fn decode_again(
        body: &'a [u8],
        order: Order,
        total: u32,
    ) -> Result<Self, WireError> {
        // INVARIANT: The sum and the addresses were checked before.
        let this = Self::read(body, order)?;
        Ok(Self { total, ..this })
    }

    /// Reads all except the total, which the caller must set, without a check of the addresses.
    #[inline(always)]
    fn read(body: &'a [u8], order: Order) -> Result<Self, WireError> {
        let key = order.u32_at(body, 0).ok_or(WireError::ShortBody)?;
        let count = order.u32_at(body, 4).ok_or(WireError::ShortBody)?;
        let nfrags = match u16::try_from(count) {
            Ok(n @ 1..=FRAGS_MAX) => n,
            _ => return Err(WireError::FragmentCount(count)),
        };
        let bytes = FRAGMENT_LEN.saturating_mul(usize::from(nfrags));
        let frags = body
            .get(HEAD..)
            .and_then(|rest| rest.get(..bytes))
            .ok_or(WireError::ShortDescriptor)?;
        // INVARIANT: The count is right; the callers establish the rest.
        Ok(Self {
            key,
            total: 0,
            order,
            nfrags,
            frags,
        })
    }

    /// Returns the remote key, one for all fragments.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns how many bytes the fragments hold together, 1..=1 MiB.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns how many fragments there are, empty ones included, 1..=257.
    pub fn nfrags(&self) -> u16 {
        self.nfrags
    }

    /// Returns the fragments in order, empty ones included.
    pub fn fragments(&self) -> Fragments<'a> {
        Fragments::new(self.frags, self.order)
    }
}

/// Iterator over the fragments of a [`Descriptor`].
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Fragments<'a> {
    fn new(frags: &'a [u8], order: Order) -> Self {
        Self { rest: frags, order }
    }
}

impl Iterator for Fragments<'_> {
    type Item = Fragment;

    fn next(&mut self) -> Option<Fragment> {
        // Without a division, which `chunks_exact` begins with.
        let (f, rest) = self.rest.split_first_chunk::<FRAGMENT_LEN>()?;
        self.rest = rest;
        Some(Fragment {
            nob: self.order.u32_at(f, 0)?,
            addr: self.order.u64_at(f, 4)?,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = self.rest.len() / FRAGMENT_LEN;
        (n, Some(n))
    }
}

impl ExactSizeIterator for Fragments<'_> {}
