// SPDX-License-Identifier: GPL-2.0

//! Files of the driver in debugfs.

pub(crate) mod close_log;
pub(crate) mod files;
pub(crate) mod latency;
pub(crate) mod ni;
