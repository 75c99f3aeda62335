// SPDX-License-Identifier: GPL-2.0

//! Reserve of preallocated objects, for use when there is no memory.
//!
//! Several users share the objects. A user may hold no more of them than are free, so that one that does not give its
//! objects back leaves half of them to others, and two such users a quarter.
//!
//! Context: any but hard interrupts, except for [`Reserve::new`].

use kernel::{
    pr_warn_once,
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

/// Preallocated objects.
#[pin_data]
pub(crate) struct Reserve<T> {
    #[pin]
    objects: SpinLockBh<Objects<T>>,
}

/// Objects of a [`Reserve`].
struct Objects<T> {
    free: KVec<UniqueArc<T>>,
    /// Users of the objects that are in use, one entry for each object.
    users: KVec<u64>,
}

impl<T> Reserve<T> {
    /// Keeps `all`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(all: KVec<UniqueArc<T>>) -> Result<Arc<Self>> {
        let users = KVec::with_capacity(all.len(), GFP_KERNEL)?;
        let objects = Objects { free: all, users };

        Arc::pin_init(
            pin_init!(Self {
                objects <- new_spinlock_bh!(objects, "Reserve::objects"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes an object for `user`. `None`: `user` holds as many objects as are free, or none is free.
    pub(super) fn take(&self, user: u64) -> Option<UniqueArc<T>> {
        let mut objects = self.objects.lock();
        let held = objects.users.iter().filter(|other| **other == user);

        if held.count() >= objects.free.len() {
            return None;
        }
        // There is room for a user of each object.
        objects.users.push_within_capacity(user).ok()?;
        objects.free.pop()
    }

    /// Takes back an object that `user` took.
    pub(super) fn put(&self, item: UniqueArc<T>, user: u64) {
        let mut objects = self.objects.lock();
        let at = objects.users.iter().position(|other| *other == user);

        match at {
            Some(at) => drop(objects.users.remove(at)),
            None => pr_warn_once!("an object of a reserve comes back from a user that has none\n"),
        }
        // There is room: it was taken from here.
        let _ = objects.free.push_within_capacity(item);
    }
}
