// SPDX-License-Identifier: GPL-2.0

//! Initialising values where they are to stay: glue between `pin_init` and our allocations.

use pin_init::{
    init_from_closure,
    pin_init_from_closure,
    Init,
    PinInit, //
};

use crate::{
    alloc::{
        allocator::AllocError,
        flags::Flags, //
    },
    error::{
        Error,
        Result, //
    }, //
};

/// A pointer whose allocation can be initialised in place.
pub trait InPlaceInit<T>: Sized {
    /// The pointer when the value must not move any more.
    type PinnedSelf;

    /// Allocates, and initialises the value, pinned.
    fn try_pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::PinnedSelf, E>
    where
        E: From<AllocError>;

    /// Allocates, and initialises the value.
    fn try_init<E>(init: impl Init<T, E>, flags: Flags) -> Result<Self, E>
    where
        E: From<AllocError>;

    /// Calls [`Self::try_pin_init`], and converts an error to an [`Error`].
    #[inline]
    fn pin_init<E>(init: impl PinInit<T, E>, flags: Flags) -> Result<Self::PinnedSelf>
    where
        Error: From<E>,
    {
        // SAFETY: It does what `init` does; only the type of the error is another.
        let init =
            unsafe { pin_init_from_closure(|slot| init.__pinned_init(slot).map_err(Error::from)) };
        Self::try_pin_init(init, flags)
    }

    /// Calls [`Self::try_init`], and converts an error to an [`Error`].
    #[inline]
    fn init<E>(init: impl Init<T, E>, flags: Flags) -> Result<Self>
    where
        Error: From<E>,
    {
        // SAFETY: As above.
        let init = unsafe { init_from_closure(|slot| init.__init(slot).map_err(Error::from)) };
        Self::try_init(init, flags)
    }
}

/// [`pin_init::pin_init!`] whose fields may fail, with an [`Error`] if no other type is named.
#[macro_export]
macro_rules! try_pin_init {
    ($(&$this:ident in)? $t:ident $(::<$($generics:ty),* $(,)?>)? {
        $($fields:tt)*
    }) => {
        ::pin_init::try_pin_init!($(&$this in)? $t $(::<$($generics),*>)? {
            $($fields)*
        }? $crate::error::Error)
    };
    ($(&$this:ident in)? $t:ident $(::<$($generics:ty),* $(,)?>)? {
        $($fields:tt)*
    }? $err:ty) => {
        ::pin_init::try_pin_init!($(&$this in)? $t $(::<$($generics),*>)? {
            $($fields)*
        }? $err)
    };
}
