// SPDX-License-Identifier: GPL-2.0

//! Message buffers: single pages that are mapped for a device once.

use super::device::Device;
use crate::bindings;
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

/// A buffer for one message of up to [`MSG_BUF_LEN`] bytes, mapped for a device.
///
/// Moved into a work request when it is posted and handed back by the
/// completion: whoever holds one may access it.
///
/// # Invariants
///
/// `page` is a page in low memory, owned by this, mapped at `dma` for `device`
/// in the direction `D`; the device does not access it while this is owned
/// outside a work request.
pub(crate) struct MsgBuf<D: DirectionType> {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    dma: u64,
    device: ARef<Device>,
    _direction: PhantomData<D>,
}

/// A buffer to send from.
pub(crate) type TxBuf = MsgBuf<ToDevice>;
/// A buffer to receive into.
pub(crate) type RxBuf = MsgBuf<FromDevice>;

// SAFETY: Pages and their mappings belong to no thread.
unsafe impl<D: DirectionType> Send for MsgBuf<D> {}
// SAFETY: A shared reference only gives read access.
unsafe impl<D: DirectionType> Sync for MsgBuf<D> {}

impl<D: DirectionType> MsgBuf<D> {
    /// Allocates and maps a buffer, zeroed. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `EIO` if it cannot be mapped.
    pub(crate) fn alloc(device: &ARef<Device>) -> Result<Self> {
        // SAFETY: No preconditions.
        let page = NonNull::new(unsafe { bindings::ro2ib_alloc_page() }).ok_or(ENOMEM)?;
        // SAFETY: `page` is valid.
        let virt = NonNull::new(unsafe { bindings::ro2ib_page_address(page.as_ptr()) });
        let mut dma = 0;
        let mut rc = -(bindings::EIO as ffi::c_int);

        if virt.is_some() {
            // SAFETY: `device` is registered, `page` is ours, `dma` is valid for writes.
            rc = unsafe {
                bindings::ro2ib_dma_map_page(
                    device.as_raw(),
                    page.as_ptr(),
                    D::DIRECTION.as_raw(),
                    &mut dma,
                )
            };
        }
        match (virt, to_result(rc)) {
            (Some(virt), Ok(())) => {
                let this = Self {
                    // INVARIANT: Allocated and mapped above.
                    page,
                    virt: virt.cast(),
                    dma,
                    device: device.clone(),
                    _direction: PhantomData,
                };

                this.sync_for_cpu(MSG_BUF_LEN);
                Ok(this)
            }
            (_, rc) => {
                // SAFETY: `page` is ours and not mapped.
                unsafe { bindings::ro2ib_free_page(page.as_ptr()) };
                Err(rc.err().unwrap_or(EIO))
            }
        }
    }

    /// The contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant the page is ours, and it is at least that long. It was
        // zeroed when it was allocated.
        unsafe { &*self.virt.as_ptr().cast() }
    }

    /// The contents, to be changed.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8; MSG_BUF_LEN] {
        // SAFETY: As above, and `self` is borrowed mutably.
        unsafe { &mut *self.virt.as_ptr().cast() }
    }

    /// Takes the buffer from its device: unmaps it and lets the device go, but keeps the contents. Any
    /// context but hard interrupts.
    pub(crate) fn detach(self) -> DetachedBuf {
        let this = core::mem::ManuallyDrop::new(self);

        // SAFETY: By the type invariant it is mapped and the device does not access it; `this` is
        // not used any more, so nothing is unmapped or dropped a second time.
        unsafe {
            bindings::ro2ib_dma_unmap_page(this.device.as_raw(), this.dma, D::DIRECTION.as_raw());
            drop(core::ptr::read(&this.device));
        }
        // INVARIANT: The page was ours and is not mapped any more.
        DetachedBuf {
            page: this.page,
            virt: this.virt,
        }
    }

    pub(super) fn dma(&self) -> u64 {
        self.dma
    }

    /// The address as it goes into an inline send.
    pub(super) fn virt(&self) -> u64 {
        self.virt.as_ptr().addr() as u64
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
    /// Unmaps and frees it. Any context but hard interrupts.
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is mapped, the device does not access it, and it is
        // ours.
        unsafe {
            bindings::ro2ib_dma_unmap_page(self.device.as_raw(), self.dma, D::DIRECTION.as_raw());
            bindings::ro2ib_free_page(self.page.as_ptr());
        }
    }
}

/// The contents of a buffer that no device knows any more.
///
/// # Invariants
///
/// `page` is a page in low memory at `virt`, owned by this, initialised, and mapped for no device.
pub(crate) struct DetachedBuf {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
}

// SAFETY: Pages belong to no thread.
unsafe impl Send for DetachedBuf {}
// SAFETY: A shared reference only gives read access.
unsafe impl Sync for DetachedBuf {}

impl DetachedBuf {
    /// The contents.
    pub(crate) fn as_slice(&self) -> &[u8; MSG_BUF_LEN] {
        // SAFETY: By the type invariant; a page is at least that long.
        unsafe { &*self.virt.as_ptr().cast() }
    }
}

impl Drop for DetachedBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours.
        unsafe { bindings::ro2ib_free_page(self.page.as_ptr()) }
    }
}
