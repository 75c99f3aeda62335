// SPDX-License-Identifier: GPL-2.0

//! The o2ib protocol without any I/O: wire formats, negotiation, credits and state machines.
//!
//! The code here depends on `core` only: no allocation, no clock, no lock, no kernel call. All functions may therefore
//! run in any context (softirq included); the caller holds the lock that protects the data it passes in. Input of a
//! peer is hostile: no function can panic on any input.
//!
//! "spec N.M" in the comments refers to the numbered sections of Documentation/protocol.md, "H1", "H2".. to the rows of
//! Documentation/hostile-peers.md.

#![deny(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]
// The host crate makes all items public because tests and models use more of them than the driver does.
#![allow(dead_code, unreachable_pub, unused_imports)]

/// Defines an enum of errors. A row has a variant, which may carry a value, and its text for the log.
macro_rules! errors {
    (
        $(#[$attr:meta])+
        $name:ident {
            $($(#[$doc:meta])* $variant:ident $(($value:ident: $kind:ty))?: $text:literal,)+
        }
    ) => {
        $(#[$attr])+
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$doc])* $variant $(($kind))?,)+
        }

        impl $name {
            /// Returns the name of the variant, for programs.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => stringify!($variant),)+
                }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self {
                    $(Self::$variant $(($value))? => write!(f, $text),)+
                }
            }
        }
    };
}

/// Defines an enum with a number for each variant, as on the wire, and with its name for programs if that is not the
/// variant's own.
macro_rules! numbered {
    (@name $variant:ident) => {
        stringify!($variant)
    };
    (@name $variant:ident $text:literal) => {
        $text
    };
    (
        $(#[$attr:meta])+
        $name:ident: $int:ident {
            $($(#[$doc:meta])* $variant:ident = $number:literal $($text:literal)?,)+
        }
    ) => {
        $(#[$attr])+
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr($int)]
        pub enum $name {
            $($(#[$doc])* $variant = $number,)+
        }

        impl $name {
            pub const fn wire(self) -> $int {
                self as $int
            }

            /// Returns the name, for programs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => numbered!(@name $variant $($text)?),)+
                }
            }

            /// Returns the variant with a number; `None` if there is none.
            #[inline]
            pub const fn from_wire(number: $int) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use numbered;

pub mod cause;
pub mod conn_state;
pub mod constants;
pub mod credits;
pub mod handshake;
pub mod lnet_hdr;
pub mod nid;
pub mod reject;
mod reject_cause_table;
pub mod tx_state;
pub mod tx_table;
pub mod wire;

/// Returns `error` unless a condition holds.
#[inline(always)]
pub fn require<E>(holds: bool, error: E) -> Result<(), E> {
    match holds {
        true => Ok(()),
        false => Err(error),
    }
}

/// Reports a broken invariant of the driver itself, which no peer and no device can cause. Returns the default value,
/// which replaces a count that would be negative. The kernel logs the first report only, because later ones may follow
/// from it; on the host the test fails.
#[cold]
#[inline(never)]
pub fn broken<T: Default>(what: &'static str) -> T {
    crate::report_broken(what);
    T::default()
}

#[cfg(any(test, ro2iblnd_kunit))]
#[path = "tests/common/swap.rs"]
mod swap;
