// SPDX-License-Identifier: GPL-2.0

//! Driver: turns events into calls of [`crate::proto`], and the results into calls of [`crate::rdma`] and
//! [`crate::lnet`].
//!
//! Documentation/architecture.md has the objects, their contexts and locks, and the order in which the files import
//! each other, which `scripts/audit` checks.

#![deny(unsafe_code)]

mod conn;
pub(crate) mod debugfs;
pub(crate) mod hca;
pub(crate) mod listeners;
pub(crate) mod log;
pub(crate) mod ni;
pub(crate) mod ni_device;
pub(crate) mod ops;
pub(crate) mod peer;
pub(crate) mod timestamp;
pub(crate) mod work_queues;

/// Statistics of an NI and of its connections: counters, close log, latency histograms, trace points.
pub(crate) mod stats {
    pub(crate) mod close_log;
    mod conn_counter_table;
    pub(crate) mod conn_counters;
    pub(crate) mod conn_latency;
}
