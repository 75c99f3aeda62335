// SPDX-License-Identifier: GPL-2.0

//! Reserve of preallocated objects, for use when there is no memory.
//!
//! Context: any but hard interrupts, except for [`Reserve::new`].

use kernel::{
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    }, //
};

use super::sync::{
    new_spinlock_bh,
    SpinLockBh, //
};

/// Preallocated objects that are not in use.
#[pin_data]
pub(crate) struct Reserve<T> {
    #[pin]
    free: SpinLockBh<KVec<UniqueArc<T>>>,
}

impl<T> Reserve<T> {
    /// Keeps `all`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(all: KVec<UniqueArc<T>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                free <- new_spinlock_bh!(all, "Reserve::free"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes an object. `None`: all are in use.
    pub(super) fn take(&self) -> Option<UniqueArc<T>> {
        self.free.lock().pop()
    }

    /// Takes an object back.
    pub(super) fn put(&self, item: UniqueArc<T>) {
        // There is room: it was taken from here.
        let _ = self.free.lock().push_within_capacity(item);
    }
}
