// SPDX-License-Identifier: GPL-2.0

//! Module that can be loaded more than once: each simulated node has one.

use crate::{
    bindings,
    error::Result,
    types::Opaque, //
};

/// Life cycle of a module.
pub trait Module: Sized + Sync + Send {
    /// Initializes the module when it is loaded; dropping the value unloads it. Process context.
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
        // SAFETY: It is a static without content.
        unsafe { &*bindings::ro2ibk_this_module().cast::<Self>() }
    }
}

/// Declares the module: `load()` is what the loader calls.
#[macro_export]
macro_rules! module {
    (
        type: $type:ty,
        name: $name:literal,
        $($rest:tt)*
    ) => {
        /// Prefix of every line that is printed.
        const __LOG_PREFIX: &::core::ffi::CStr =
            match ::core::ffi::CStr::from_bytes_with_nul(::core::concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => ::core::panic!("a name with a NUL in it"),
            };

        /// Loads the module; dropping the returned value unloads it.
        ///
        /// # Errors
        ///
        /// Returns the negative errno.
        pub fn load() -> ::core::result::Result<::std::boxed::Box<dyn ::core::any::Any>, i32> {
            match <$type as $crate::Module>::init($crate::ThisModule::get()) {
                Ok(live) => Ok(::std::boxed::Box::new(live)),
                Err(e) => Err(e.to_errno()),
            }
        }
    };
}
