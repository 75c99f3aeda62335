// SPDX-License-Identifier: GPL-2.0

//! Report of a broken invariant of the driver itself, which no peer and no device can cause.

/// Reports a broken invariant, and returns the default value, which replaces a count that would be negative. The kernel
/// logs the first report only, because later ones may follow from it; on the host the test fails.
#[cold]
#[inline(never)]
pub fn broken<T: Default>(what: &'static str) -> T {
    crate::report_broken(what);
    T::default()
}
