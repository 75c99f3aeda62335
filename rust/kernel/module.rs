// SPDX-License-Identifier: GPL-2.0

//! A module: what happens when it is loaded and unloaded, and what `modinfo` tells.
//!
//! C header: `include/linux/module.h`.

use crate::{
    bindings,
    error::Result,
    types::Opaque, //
};

/// A module's life.
pub trait Module: Sized + Sync + Send {
    /// Initialises the module when it is loaded; dropping the value unloads it. Process context.
    fn init(module: &'static ThisModule) -> Result<Self>;
}

/// The module itself (`THIS_MODULE`).
#[repr(transparent)]
pub struct ThisModule(Opaque<bindings::module>);

// SAFETY: It is only pointed at.
unsafe impl Sync for ThisModule {}

impl ThisModule {
    #[doc(hidden)]
    pub fn get() -> &'static Self {
        // SAFETY: It is there as long as any of the module's code runs.
        unsafe { &*bindings::ro2ibk_this_module().cast::<Self>() }
    }

    /// Returns the pointer for C.
    pub fn as_ptr(&self) -> *mut bindings::module {
        self.0.get()
    }
}

/// Returns the bytes of a string literal as an array.
#[doc(hidden)]
pub const fn bytes_of<const N: usize>(s: &str) -> [u8; N] {
    let from = s.as_bytes();
    let mut to = [0; N];
    let mut i = 0;

    while i < N {
        to[i] = from[i];
        i += 1;
    }
    to
}

/// One line of `modinfo`.
#[doc(hidden)]
#[macro_export]
macro_rules! modinfo {
    ($key:literal, $value:literal) => {
        const _: () = {
            const TEXT: &str = ::core::concat!($key, "=", $value, "\0");

            #[used(compiler)]
            #[link_section = ".modinfo"]
            static LINE: [u8; TEXT.len()] = $crate::module::bytes_of(TEXT);
        };
    };
}

/// Declares the module. The keys are those of the in-tree macro, in its order.
#[macro_export]
macro_rules! module {
    (
        type: $type:ty,
        name: $name:literal,
        authors: [$($author:literal),* $(,)?],
        description: $description:literal,
        license: $license:literal,
    ) => {
        /// In front of every line that is printed.
        const __LOG_PREFIX: &::core::ffi::CStr =
            match ::core::ffi::CStr::from_bytes_with_nul(::core::concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => ::core::panic!("a name with a NUL in it"),
            };

        $($crate::modinfo!("author", $author);)*
        $crate::modinfo!("description", $description);
        $crate::modinfo!("license", $license);

        #[doc(hidden)]
        mod __module_life {
            use super::*;

            static mut LIVE: ::core::option::Option<$type> = ::core::option::Option::None;

            /// Initialises the module.
            ///
            /// # Safety
            ///
            /// Called once, by the module loader.
            #[no_mangle]
            #[link_section = ".init.text"]
            unsafe extern "C" fn init_module() -> $crate::ffi::c_int {
                match <$type as $crate::Module>::init($crate::ThisModule::get()) {
                    Ok(live) => {
                        // SAFETY: No other code has a pointer to it; it is accessed again only when the
                        // module goes.
                        unsafe { (&raw mut LIVE).write(Some(live)) };
                        0
                    }
                    Err(e) => e.to_errno(),
                }
            }

            // That the loader calls them by their address is what objtool wants to see before it
            // leaves them their landing pads.
            #[used(compiler)]
            #[link_section = ".init.data"]
            static ADDRESSABLE_INIT: unsafe extern "C" fn() -> $crate::ffi::c_int = init_module;
            #[used(compiler)]
            #[link_section = ".exit.data"]
            static ADDRESSABLE_CLEANUP: unsafe extern "C" fn() = cleanup_module;

            /// Drops the module.
            ///
            /// # Safety
            ///
            /// Called once, by the module loader, after a successful `init_module`.
            #[no_mangle]
            #[link_section = ".exit.text"]
            unsafe extern "C" fn cleanup_module() {
                // SAFETY: No other code has a pointer to it.
                drop(unsafe { (*(&raw mut LIVE)).take() });
            }
        }
    };
}
