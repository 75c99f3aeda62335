// SPDX-License-Identifier: GPL-2.0

//! Support for the expansion of [`kunit_tests`], for kernels with `CONFIG_KUNIT=y`.
//!
//! C header: `include/kunit/test.h`.
//!
//! [`kunit_tests`]: crate::macros::kunit_tests

use core::ffi::CStr;

use crate::{
    bindings,
    ffi::c_int,
    str::CStrExt as _, //
};

/// Result types of a test.
trait TestResult {
    fn is_test_result_ok(&self) -> bool;
}

impl TestResult for () {
    fn is_test_result_ok(&self) -> bool {
        true
    }
}

impl<T, E> TestResult for Result<T, E> {
    fn is_test_result_ok(&self) -> bool {
        self.is_ok()
    }
}

/// Returns whether a test has passed.
#[doc(hidden)]
#[allow(private_bounds)]
pub fn is_test_result_ok(t: impl TestResult) -> bool {
    t.is_test_result_ok()
}

/// Fails the running test, and ends it.
#[doc(hidden)]
pub fn fail(file: &'static CStr, line: u32, condition: &'static CStr) {
    // SAFETY: All strings are static. It does not come back if a test runs in this task; nothing
    // that is left on its stack is used by anyone else, or else the test is at fault.
    unsafe {
        bindings::ro2ibk_kunit_fail(file.as_char_ptr(), line as c_int, condition.as_char_ptr())
    }
}

/// [`assert!`], telling KUnit.
#[doc(hidden)]
#[macro_export]
macro_rules! kunit_assert {
    ($condition:expr) => {
        if !$condition {
            $crate::kunit::fail(
                $crate::c_str_of!(::core::file!()),
                ::core::line!(),
                $crate::c_str_of!(::core::stringify!($condition)),
            );
        }
    };
}

/// Creates a case of a suite.
#[doc(hidden)]
pub const fn case(
    name: &'static CStr,
    run: unsafe extern "C" fn(*mut bindings::kunit),
) -> bindings::kunit_case {
    let mut case: bindings::kunit_case = pin_init::zeroed();

    case.name = name.as_ptr().cast();
    case.run_case = Some(run);
    case
}

/// A suite, in the section where the module loader looks for suites.
#[doc(hidden)]
#[macro_export]
macro_rules! kunit_suite {
    ($name:ident, $cases:ident) => {
        const _: () = {
            static mut SUITE: $crate::bindings::kunit_suite = {
                let mut suite: $crate::bindings::kunit_suite = ::pin_init::zeroed();
                let name = ::core::stringify!($name).as_bytes();
                let mut i = 0;

                while i < name.len() {
                    suite.name[i] = name[i] as _;
                    i += 1;
                }
                suite.test_cases = (&raw mut $cases).cast();
                suite
            };

            #[used(compiler)]
            #[link_section = ".kunit_test_suites"]
            static mut ENTRY: *const $crate::bindings::kunit_suite = &raw const SUITE;
        };
    };
}
