// SPDX-License-Identifier: GPL-2.0

//! Local policy of a node, which a peer cannot see: reconnects, resends, timeouts, quotas, queue sizes
//! and statistics.
//!
//! The code here depends on `core` and [`crate::proto`] only. It has no clock, no allocation, no lock and
//! no kernel call, so every function may run in any context (softirq included). The caller holds the
//! lock that protects the data it passes in. No function can panic on any input.
//!
//! "spec N.M" in the comments refers to the numbered sections of Documentation/protocol.md, "H1", "H2"..
//! to the rows of Documentation/hostile-peers.md.

#![deny(unsafe_code)]
#![deny(missing_docs)]
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

pub mod close_log;
pub mod cm_id_linger;
pub mod connect_queue;
pub mod ecmp_source_port;
pub mod latency;
pub mod link_state;
pub mod liveness;
pub mod mr_quota;
pub mod queue_sizes;
pub mod reconnect;
pub mod request_rate;
pub mod resend;
pub mod salted_hash;
pub mod text_params;
pub mod upcall_sched;
