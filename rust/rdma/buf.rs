// SPDX-License-Identifier: GPL-2.0

//! Message buffers: 4096 bytes that are mapped for a device once, whatever the size of a page is.
//!
//! [`BufAllocator`] allocates them in chunks, because a connection needs dozens. Each buffer is mapped and dropped by
//! itself. One buffer in use keeps the memory of its whole chunk (32 KiB), as an object keeps its slab.

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    error::to_result,
    ffi,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::device::Device;
use crate::bindings;

/// Direction of data between memory and device.
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

/// Memory of buffers that were allocated together. Each buffer of it that is in use has a reference.
///
/// # Invariants
///
/// `bytes` are the `n` buffers that `ro2ib_bufs_alloc()` gave.
struct BufChunk {
    bytes: NonNull<Bytes>,
    n: u32,
    slots: KVec<UnsafeCell<Slot>>,
}

// SAFETY: It owns bytes, and slots, and each slot is used only by the buffer that was carved from it.
unsafe impl Send for BufChunk {}
// SAFETY: As above.
unsafe impl Sync for BufChunk {}

impl BufChunk {
    /// Allocates a chunk of up to `n` buffers. Sleeps only if `flags` are [`GFP_KERNEL`].
    fn new(device: &Device, n: u32, flags: Flags) -> Result<Arc<Self>> {
        let mut n = n;
        let wait = flags == GFP_KERNEL;
        // SAFETY: `device` is registered, and `n` may be written.
        let raw = unsafe { bindings::ro2ib_bufs_alloc(device.as_raw(), &mut n, wait) };
        // INVARIANT: These are the buffers of `ro2ib_bufs_alloc()`. Zeroed memory is a valid `Bytes`.
        let mut chunk = Self {
            bytes: NonNull::new(raw.cast()).ok_or(ENOMEM)?,
            n,
            slots: KVec::new(),
        };

        chunk.slots.reserve(n as usize, flags)?;
        for i in 0..n as usize {
            let slot = Slot {
                // SAFETY: Within the chunk.
                bytes: unsafe { chunk.bytes.add(i) },
                dma: 0,
                device: None,
                syncs: true,
                chunk: core::ptr::null(),
            };

            chunk.slots.push(UnsafeCell::new(slot), flags)?;
        }
        Ok(Arc::new(chunk, flags)?)
    }
}

impl Drop for BufChunk {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and no buffer of it is in use: each would have a reference.
        unsafe { bindings::ro2ib_bufs_free(self.bytes.as_ptr().cast(), self.n) }
    }
}

/// A buffer in its chunk: the bytes, and their DMA address. `chunk` is the reference of the buffer in use.
struct Slot {
    bytes: NonNull<Bytes>,
    dma: u64,
    device: Option<ARef<Device>>,
    /// The mapping is not coherent: it needs syncs between device and CPU.
    syncs: bool,
    chunk: *const BufChunk,
}

/// A buffer without a device, or in a [`MsgBuf`]. It moves often, and so is one pointer.
///
/// # Invariants
///
/// It points to a slot with a reference to its chunk, of which this is the only owner; so it is of the bytes.
struct BufSlot(NonNull<Slot>);

// SAFETY: It owns what belongs to no thread.
unsafe impl Send for BufSlot {}
// SAFETY: With a shared reference nothing is changed.
unsafe impl Sync for BufSlot {}

impl BufSlot {
    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut Slot {
        // SAFETY: By the type invariant.
        unsafe { self.0.as_mut() }
    }

    #[inline]
    fn bytes(&self) -> &[u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant.
        unsafe { &self.slot().bytes.as_ref().raw }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant.
        unsafe { &mut self.slot_mut().bytes.as_mut().raw }
    }
}

impl Drop for BufSlot {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the slot has a reference, which ends here.
        drop(unsafe { Arc::from_raw(self.slot().chunk) });
    }
}

/// Allocator of the message buffers of a connection.
///
/// # Invariants
///
/// The slots of `chunk` from `next` on have no owner.
pub(crate) struct BufAllocator {
    device: ARef<Device>,
    /// Number of buffers that the caller will still make.
    remaining: u32,
    /// Flags of the allocations.
    flags: Flags,
    chunk: Option<Arc<BufChunk>>,
    next: usize,
}

impl BufAllocator {
    /// Prepares `remaining` buffers. Allocates nothing yet.
    pub(crate) fn new(device: &ARef<Device>, remaining: usize) -> Self {
        // INVARIANT: There is no chunk.
        Self {
            device: device.clone(),
            remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            flags: GFP_KERNEL,
            chunk: None,
            next: 0,
        }
    }

    /// Makes one more buffer. Allocates buffers beyond the prepared number one by one. May sleep; call inside a
    /// [`super::work::NofsScope`].
    ///
    /// # Errors
    ///
    /// As [`MsgBuf::alloc`].
    pub(crate) fn make<D: DirectionType>(&mut self) -> Result<MsgBuf<D>> {
        let memory = match self.carve() {
            Some(memory) => memory,
            None => {
                // INVARIANT: All of it is without an owner.
                self.chunk = Some(BufChunk::new(
                    &self.device,
                    self.remaining.max(1),
                    self.flags,
                )?);
                self.next = 0;
                self.carve().ok_or(ENOMEM)?
            }
        };

        self.remaining = self.remaining.saturating_sub(1);
        MsgBuf::map(memory, &self.device).map_err(|(_, e)| e)
    }

    /// Returns the next buffer of the chunk.
    fn carve(&mut self) -> Option<BufSlot> {
        let chunk = self.chunk.as_ref()?;
        let slot = NonNull::new(chunk.slots.get(self.next)?.get())?;

        self.next = self.next.wrapping_add(1);
        // SAFETY: By the type invariant nothing else uses it.
        unsafe { (*slot.as_ptr()).chunk = Arc::into_raw(chunk.clone()) };
        // INVARIANT: It got its reference, and will not be carved again.
        Some(BufSlot(slot))
    }
}

/// A buffer for one message of up to [`MSG_BUF_LEN`] bytes, mapped for a device.
///
/// It moves into a work request when it is posted, and its completion hands it back: the owner of one may access it.
///
/// # Invariants
///
/// The slot has a `device`, for which its bytes are mapped at `dma` in the direction `D`; the device does not access
/// them while this is owned outside a work request.
pub(crate) struct MsgBuf<D: DirectionType> {
    memory: BufSlot,
    _direction: PhantomData<D>,
}

/// A buffer to send from.
pub(crate) type TxBuf = MsgBuf<ToDevice>;
/// A buffer to receive into.
pub(crate) type RxBuf = MsgBuf<FromDevice>;

impl<D: DirectionType> MsgBuf<D> {
    /// Allocates and maps a zeroed buffer, on the device's NUMA node if possible. Does not wait for memory, because
    /// some pages become clean only when the caller has sent them: reclaim could wait for the caller.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory right now, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: &ARef<Device>) -> Result<Self> {
        let mut supply = BufAllocator::new(device, 1);

        supply.flags = GFP_NOWAIT | __GFP_NOWARN;
        supply.make()
    }

    fn map(mut memory: BufSlot, device: &ARef<Device>) -> Result<Self, (BufSlot, Error)> {
        let mut dma = 0;

        // SAFETY: `device` is registered, `memory` is ours and can be mapped, `dma` is
        // valid for writes.
        let mapped = to_result(unsafe {
            bindings::ro2ib_dma_map_buf(
                device.as_raw(),
                memory.bytes_mut().as_mut_ptr().cast(),
                MSG_BUF_LEN,
                D::DIRECTION.as_raw(),
                &mut dma,
            )
        });
        if let Err(e) = mapped {
            return Err((memory, e));
        }
        let slot = memory.slot_mut();

        // SAFETY: `device` is registered, and `dma` is what it was mapped at.
        slot.syncs = unsafe { bindings::ro2ib_dma_needs_sync(device.as_raw(), dma) };
        slot.dma = dma;
        slot.device = Some(device.clone());
        let this = Self {
            // INVARIANT: Mapped above, and not posted yet.
            memory,
            _direction: PhantomData,
        };

        this.sync_for_cpu(MSG_BUF_LEN);
        Ok(this)
    }

    fn device(&self) -> *mut bindings::ib_device {
        let device = self.memory.slot().device.as_ref();

        // By the type invariant there is a device.
        device.map_or(core::ptr::null_mut(), |device| device.as_raw())
    }

    /// Returns whether it is mapped for `device`.
    pub(super) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(self.device(), device.as_raw())
    }

    /// Returns the contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        self.memory.bytes()
    }

    /// Returns the contents for writing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8; MSG_BUF_LEN] {
        self.memory.bytes_mut()
    }

    /// Leaves the buffer to a device that may access it for ever: it stays mapped, and its chunk allocated. Releases
    /// the device, whose removal must not wait for that. Process context.
    pub(super) fn abandon(self) {
        let mut this = core::mem::ManuallyDrop::new(self);

        // INVARIANT: `this` is not used any more, and no other buffer is carved from its slot.
        this.memory.slot_mut().device = None;
    }

    /// Unmaps the buffer and releases its device, but keeps the contents. Any context but hard interrupts.
    pub(crate) fn detach(self) -> DetachedBuf {
        let mut this = core::mem::ManuallyDrop::new(self);

        // SAFETY: By the type invariant it is mapped and the device does not access it; `this` is
        // not used any more, so nothing is unmapped or dropped a second time.
        unsafe {
            this.unmap();
            DetachedBuf(core::ptr::read(&this.memory))
        }
    }

    /// Unmaps it, and releases the device.
    ///
    /// # Safety
    ///
    /// The device does not access it, and it is not used or unmapped afterwards.
    unsafe fn unmap(&mut self) {
        let slot = self.memory.slot_mut();

        if let Some(device) = slot.device.take() {
            // SAFETY: By the type invariant it is mapped so; the rest is the caller's.
            unsafe {
                bindings::ro2ib_dma_unmap_buf(
                    device.as_raw(),
                    slot.dma,
                    MSG_BUF_LEN,
                    D::DIRECTION.as_raw(),
                )
            }
        }
    }

    pub(super) fn dma(&self) -> u64 {
        self.memory.slot().dma
    }

    /// Returns the address for an inline send. The provider reads the bytes through that integer.
    pub(super) fn virt(&self) -> u64 {
        self.memory.slot().bytes.as_ptr().expose_provenance() as u64
    }

    #[inline]
    pub(super) fn sync_for_cpu(&self, len: usize) {
        if !self.memory.slot().syncs {
            return;
        }
        // SAFETY: By the type invariant; `len` is cut to the mapping.
        unsafe {
            bindings::ro2ib_dma_sync_for_cpu(
                self.device(),
                self.dma(),
                len.min(MSG_BUF_LEN),
                D::DIRECTION.as_raw(),
            )
        }
    }

    #[inline]
    pub(super) fn sync_for_device(&self, len: usize) {
        if !self.memory.slot().syncs {
            return;
        }
        // SAFETY: By the type invariant; `len` is cut to the mapping.
        unsafe {
            bindings::ro2ib_dma_sync_for_device(
                self.device(),
                self.dma(),
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

/// Contents of a buffer that is not mapped for a device.
pub(crate) struct DetachedBuf(BufSlot);

impl DetachedBuf {
    /// Maps it for a device to receive into. Needs no memory of its own. Any context but hard interrupts.
    ///
    /// # Errors
    ///
    /// `EIO` if it cannot be mapped; returns the contents.
    pub(crate) fn attach(self, device: &ARef<Device>) -> Result<RxBuf, (Self, Error)> {
        RxBuf::map(self.0, device).map_err(|(memory, e)| (Self(memory), e))
    }

    /// Returns the contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        self.0.bytes()
    }
}
