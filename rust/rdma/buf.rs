// SPDX-License-Identifier: GPL-2.0

//! Message buffers: 4096 bytes that are mapped for a device once, whatever the size of a page is.
//!
//! Their memory comes in pieces of several ([`Supply`]), for a connection needs dozens; each is mapped, and given back,
//! by itself. Who keeps one of them keeps the memory of its piece, 32 KiB, as a slab would be kept.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    ffi,
    prelude::*,
    sync::aref::ARef, //
};

use super::device::Device;
use crate::bindings;

/// Which way data goes between memory and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes.
    FromDevice,
}

impl Direction {
    pub(super) fn as_raw(self) -> ffi::c_int {
        match self {
            Self::ToDevice => 0,
            Self::FromDevice => 1,
        }
    }
}

/// A [`Direction`] as a type.
pub(crate) trait DirectionType: Send + Sync + 'static {
    /// The value.
    const DIRECTION: Direction;
}

/// The device reads.
pub(crate) struct ToDevice;
/// The device writes.
pub(crate) struct FromDevice;

impl DirectionType for ToDevice {
    const DIRECTION: Direction = Direction::ToDevice;
}

impl DirectionType for FromDevice {
    const DIRECTION: Direction = Direction::FromDevice;
}

/// The length of a message buffer in bytes.
pub(crate) const MSG_BUF_LEN: usize = 4096;

// Aligned, so that it shares no cache line and lies in one page.
#[repr(C, align(4096))]
struct Bytes {
    raw: [u8; MSG_BUF_LEN],
}

const _: () = assert!(size_of::<Bytes>() == MSG_BUF_LEN);

/// Memory of one buffer.
///
/// # Invariants
///
/// It is one that `ro2ib_bufs_alloc()` gave, and this one's alone.
struct Memory(NonNull<Bytes>);

// SAFETY: It owns bytes, which belong to no thread.
unsafe impl Send for Memory {}
// SAFETY: With a shared reference they are read only.
unsafe impl Sync for Memory {}

impl Memory {
    #[inline]
    fn bytes(&self) -> &[u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant.
        unsafe { &self.0.as_ref().raw }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant.
        unsafe { &mut self.0.as_mut().raw }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; it ends here. Any context but hard interrupts will do.
        unsafe { bindings::ro2ib_buf_free(self.0.as_ptr().cast()) }
    }
}

/// Where the buffers of a connection are from: memory for a number of them.
///
/// # Invariants
///
/// The `left` buffers from `next` on are of one piece, and nobody else's.
pub(crate) struct Supply {
    device: ARef<Device>,
    /// So many more will be asked for.
    wanted: u32,
    next: *mut Bytes,
    left: u32,
}

impl Supply {
    /// For `wanted` buffers. Nothing is allocated yet.
    pub(crate) fn new(device: &ARef<Device>, wanted: usize) -> Self {
        // INVARIANT: There is no piece.
        Self {
            device: device.clone(),
            wanted: u32::try_from(wanted).unwrap_or(u32::MAX),
            next: core::ptr::null_mut(),
            left: 0,
        }
    }

    /// One more, see [`MsgBuf::alloc`]. More than were wanted come one by one. May sleep; inside a
    /// [`super::work::NofsScope`].
    ///
    /// # Errors
    ///
    /// As [`MsgBuf::alloc`].
    pub(crate) fn make<D: DirectionType>(&mut self) -> Result<MsgBuf<D>> {
        if self.left == 0 {
            let device = &self.device;
            let mut n = self.wanted;
            // SAFETY: `device` is registered, and `n` may be written.
            let raw = unsafe { bindings::ro2ib_bufs_alloc(device.as_raw(), &mut n) };

            if raw.is_null() {
                return Err(ENOMEM);
            }
            // INVARIANT: A new piece of `n`.
            self.next = raw.cast();
            self.left = n;
        }
        let memory = self.cut().ok_or(ENOMEM)?;

        self.wanted = self.wanted.saturating_sub(1);
        MsgBuf::map(memory, &self.device)
    }

    /// The next one of the piece.
    fn cut(&mut self) -> Option<Memory> {
        self.left = self.left.checked_sub(1)?;
        // INVARIANT: It is not counted any more, so it is the returned one's alone. What is zeroed is `Bytes`.
        let memory = Memory(NonNull::new(self.next)?);

        // SAFETY: By the type invariant at most to the end of the piece.
        self.next = unsafe { self.next.add(1) };
        Some(memory)
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        while let Some(memory) = self.cut() {
            drop(memory);
        }
    }
}

/// A buffer for one message of up to [`MSG_BUF_LEN`] bytes, mapped for a device.
///
/// Moved into a work request when it is posted and handed back by the
/// completion: whoever holds one may access it.
///
/// # Invariants
///
/// `memory` is mapped at `dma` for `device` in the direction `D`; the device does not access it
/// while this is owned outside a work request.
pub(crate) struct MsgBuf<D: DirectionType> {
    memory: Memory,
    dma: u64,
    device: ARef<Device>,
    _direction: PhantomData<D>,
}

/// A buffer to send from.
pub(crate) type TxBuf = MsgBuf<ToDevice>;
/// A buffer to receive into.
pub(crate) type RxBuf = MsgBuf<FromDevice>;

impl<D: DirectionType> MsgBuf<D> {
    /// Allocates and maps a buffer, zeroed, on the device's NUMA node if there is room. May sleep; inside a
    /// [`super::work::NofsScope`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: &ARef<Device>) -> Result<Self> {
        Supply::new(device, 1).make()
    }

    fn map(mut memory: Memory, device: &ARef<Device>) -> Result<Self> {
        let mut dma = 0;

        // SAFETY: `device` is registered, `memory` is ours and can be mapped, `dma` is
        // valid for writes.
        to_result(unsafe {
            bindings::ro2ib_dma_map_buf(
                device.as_raw(),
                memory.bytes_mut().as_mut_ptr().cast(),
                MSG_BUF_LEN,
                D::DIRECTION.as_raw(),
                &mut dma,
            )
        })?;
        let this = Self {
            // INVARIANT: Mapped above, and not posted yet.
            memory,
            dma,
            device: device.clone(),
            _direction: PhantomData,
        };

        this.sync_for_cpu(MSG_BUF_LEN);
        Ok(this)
    }

    /// Whether it is mapped for `device`.
    pub(super) fn is_for(&self, device: &Device) -> bool {
        self.device.same(device)
    }

    /// The contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        self.memory.bytes()
    }

    /// The contents, to be changed.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8; MSG_BUF_LEN] {
        self.memory.bytes_mut()
    }

    /// Takes the buffer from its device: unmaps it and lets the device go, but keeps the contents. Any
    /// context but hard interrupts.
    pub(crate) fn detach(self) -> DetachedBuf {
        let this = core::mem::ManuallyDrop::new(self);

        // SAFETY: By the type invariant it is mapped and the device does not access it; `this` is
        // not used any more, so nothing is unmapped or dropped a second time.
        unsafe {
            this.unmap();
            drop(core::ptr::read(&this.device));
            DetachedBuf(core::ptr::read(&this.memory))
        }
    }

    /// # Safety
    ///
    /// The device does not access it, and it is not used or unmapped afterwards.
    unsafe fn unmap(&self) {
        // SAFETY: By the type invariant it is mapped so; the rest is the caller's.
        unsafe {
            bindings::ro2ib_dma_unmap_buf(
                self.device.as_raw(),
                self.dma,
                MSG_BUF_LEN,
                D::DIRECTION.as_raw(),
            )
        }
    }

    pub(super) fn dma(&self) -> u64 {
        self.dma
    }

    /// The address as it goes into an inline send.
    pub(super) fn virt(&self) -> u64 {
        self.memory.0.addr().get() as u64
    }

    pub(super) fn sync_for_cpu(&self, len: usize) {
        // SAFETY: By the type invariant; `len` is cut to the mapping.
        unsafe {
            bindings::ro2ib_dma_sync_for_cpu(
                self.device.as_raw(),
                self.dma,
                len.min(MSG_BUF_LEN),
                D::DIRECTION.as_raw(),
            )
        }
    }

    pub(super) fn sync_for_device(&self, len: usize) {
        // SAFETY: By the type invariant; `len` is cut to the mapping.
        unsafe {
            bindings::ro2ib_dma_sync_for_device(
                self.device.as_raw(),
                self.dma,
                len.min(MSG_BUF_LEN),
                D::DIRECTION.as_raw(),
            )
        }
    }
}

impl<D: DirectionType> Drop for MsgBuf<D> {
    /// Unmaps it; then it is freed. Any context but hard interrupts.
    fn drop(&mut self) {
        // SAFETY: By the type invariant the device does not access it, and it ends here.
        unsafe { self.unmap() }
    }
}

/// The contents of a buffer that no device knows any more.
pub(crate) struct DetachedBuf(Memory);

impl DetachedBuf {
    /// Maps it for a device to receive into. Needs no memory of its own. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// `EIO` if it cannot be mapped; it is freed then.
    pub(crate) fn attach(self, device: &ARef<Device>) -> Result<RxBuf> {
        RxBuf::map(self.0, device)
    }

    /// The contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        self.0.bytes()
    }
}
