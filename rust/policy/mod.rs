// SPDX-License-Identifier: GPL-2.0

//! Local policy of a node, which a peer cannot see: reconnects, resends, timeouts, quotas, queue sizes and statistics.
//!
//! The code here depends on `core` and [`crate::proto`] only, and keeps the rules of [`crate::proto`].

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

pub mod addr_hash;
pub mod close_log;
pub mod cm_id_linger;
pub mod connect_queue;
pub mod latency;
pub mod link_state;
pub mod liveness;
pub mod mr_quota;
pub mod queue_sizes;
pub mod reconnect;
pub mod request_rate;
pub mod resend;
pub mod text_params;
pub mod upcall_sched;
