// SPDX-License-Identifier: GPL-2.0

//! The task that runs.
//!
//! C header: `include/linux/sched.h`.

use crate::{
    bindings,
    types::NotThreadSafe, //
};

/// The identifier of a task.
pub type Pid = crate::ffi::c_int;

/// The task that runs this code.
pub struct CurrentTask(NotThreadSafe);

impl CurrentTask {
    #[doc(hidden)]
    pub fn get() -> Self {
        Self(NotThreadSafe)
    }

    /// Returns the number of the task.
    pub fn pid(&self) -> Pid {
        // SAFETY: No preconditions: there always is a current task.
        unsafe { bindings::ro2ibk_current_pid() }
    }
}

/// The [`CurrentTask`].
#[macro_export]
macro_rules! current {
    () => {
        $crate::task::CurrentTask::get()
    };
}
