// SPDX-License-Identifier: GPL-2.0

//! Driver: turns events into calls of [`crate::proto`], and the results into calls of [`crate::rdma`] and
//! [`crate::lnet`].
//!
//! Documentation/architecture.md has the objects, their contexts and locks, and the order in which the files import
//! each other, which `scripts/audit` checks.

#![deny(unsafe_code)]

mod conn;
pub(crate) mod conn_count;
pub(crate) mod debugfs;
pub(crate) mod device_health;
mod device_watch;
pub(crate) mod driver;
pub(crate) mod hca;
pub(crate) mod iface;
mod index_walk;
pub(crate) mod lingering;
pub(crate) mod listen;
pub(crate) mod lnet_glue;
pub(crate) mod log;
pub(crate) mod ni;
pub(crate) mod ni_device;
pub(crate) mod ops;
pub(crate) mod peer;
pub(crate) mod peer_debug;
pub(crate) mod peer_table;
pub(crate) mod pending;
mod rate_limit;
pub(crate) mod reconfigure;
mod retained_rx;
pub(crate) mod settings;
pub(crate) mod stats;
pub(crate) mod timestamp;
pub(crate) mod work_queues;
