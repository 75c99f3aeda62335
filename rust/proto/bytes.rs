// SPDX-License-Identifier: GPL-2.0

//! Bounded reading and writing of integers in a peer's byte order.

/// Byte order of a peer, as seen from this node. Every field of the o2ib
/// headers comes in its sender's order (spec 2.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The same as ours.
    Native,
    /// The opposite of ours.
    Swapped,
}

/// Returns the byte order in which the field `found` is the magic number `magic`.
pub(super) fn order_of(found: u32, magic: u32) -> Option<Order> {
    if found == magic {
        Some(Order::Native)
    } else if found == magic.swap_bytes() {
        Some(Order::Swapped)
    } else {
        None
    }
}

/// Returns the `N` bytes at `off`, or `None` when the slice ends before.
#[inline(always)]
pub(super) fn array_at<const N: usize>(buf: &[u8], off: usize) -> Option<&[u8; N]> {
    buf.get(off..)?.first_chunk::<N>()
}

impl Order {
    /// Reads two bytes at `off`.
    #[inline(always)]
    pub(super) fn u16_at(self, buf: &[u8], off: usize) -> Option<u16> {
        let v = u16::from_ne_bytes(*array_at(buf, off)?);
        Some(match self {
            Order::Native => v,
            Order::Swapped => v.swap_bytes(),
        })
    }

    /// Reads four bytes at `off`.
    #[inline(always)]
    pub(super) fn u32_at(self, buf: &[u8], off: usize) -> Option<u32> {
        let v = u32::from_ne_bytes(*array_at(buf, off)?);
        Some(match self {
            Order::Native => v,
            Order::Swapped => v.swap_bytes(),
        })
    }

    /// Reads eight bytes at `off`.
    #[inline(always)]
    pub(super) fn u64_at(self, buf: &[u8], off: usize) -> Option<u64> {
        let v = u64::from_ne_bytes(*array_at(buf, off)?);
        Some(match self {
            Order::Native => v,
            Order::Swapped => v.swap_bytes(),
        })
    }

    /// Returns the bytes of `v` in this order.
    pub(super) fn u16_bytes(self, v: u16) -> [u8; 2] {
        match self {
            Order::Native => v.to_ne_bytes(),
            Order::Swapped => v.swap_bytes().to_ne_bytes(),
        }
    }

    /// Returns the bytes of `v` in this order.
    pub(super) fn u32_bytes(self, v: u32) -> [u8; 4] {
        match self {
            Order::Native => v.to_ne_bytes(),
            Order::Swapped => v.swap_bytes().to_ne_bytes(),
        }
    }

    /// Returns the bytes of `v` in this order.
    pub(super) fn u64_bytes(self, v: u64) -> [u8; 8] {
        match self {
            Order::Native => v.to_ne_bytes(),
            Order::Swapped => v.swap_bytes().to_ne_bytes(),
        }
    }
}

/// Writer of consecutive fields into a slice; does not write past its end.
pub(super) struct Writer<'a> {
    rest: &'a mut [u8],
    order: Order,
}

impl<'a> Writer<'a> {
    /// Creates a writer at the first byte of `out`.
    pub(super) fn new(out: &'a mut [u8], order: Order) -> Self {
        Self { rest: out, order }
    }

    /// Writes `bytes` as they are.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Option<()> {
        let (head, tail) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes.len())?;
        head.copy_from_slice(bytes);
        self.rest = tail;
        Some(())
    }

    /// Writes one byte.
    pub(super) fn u8(&mut self, v: u8) -> Option<()> {
        self.raw(&[v])
    }

    /// Writes two bytes in the writer's order.
    pub(super) fn u16(&mut self, v: u16) -> Option<()> {
        self.raw(&self.order.u16_bytes(v))
    }

    /// Writes four bytes in the writer's order.
    pub(super) fn u32(&mut self, v: u32) -> Option<()> {
        self.raw(&self.order.u32_bytes(v))
    }

    /// Writes eight bytes in the writer's order.
    pub(super) fn u64(&mut self, v: u64) -> Option<()> {
        self.raw(&self.order.u64_bytes(v))
    }
}
