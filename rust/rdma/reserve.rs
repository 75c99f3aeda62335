// SPDX-License-Identifier: GPL-2.0

//! Objects that are allocated beforehand, for when there is no memory.
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

/// A number of objects that are not in use.
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

    /// Takes one. `None`: all are in use.
    pub(super) fn take(&self) -> Option<UniqueArc<T>> {
        self.free.lock().pop()
    }

    /// Takes one back.
    pub(super) fn put(&self, item: UniqueArc<T>) {
        // There is room: it was taken from here.
        let _ = self.free.lock().push_within_capacity(item);
    }
}
