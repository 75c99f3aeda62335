// SPDX-License-Identifier: GPL-2.0

//! The driver itself: turns events into calls of [`crate::proto`], and its answers into calls of
//! [`crate::rdma`] and [`crate::lnet`].
//!
//! # Objects
//!
//! ```text
//!  Port --> Peers (sharded) --> Peer --> Conn (1..n per peer)
//!   |  |                         |        |
//!   |  +--> Ni <-----------------+--------+--> Qp, CQ share, buffers, memory regions (rdma)
//!   +--> Iface (listener, shared by the NIs    cm_id
//!        of one address)
//! ```
//!
//! A [`conn::Conn`] points to its peer and its NI, a peer lists its connections; the cycle ends
//! when the connection's worker releases it. An NI counts its living connections, and shutdown
//! waits for zero.
//!
//! The files import each other in one direction; Documentation/architecture.md tells which, and
//! `scripts/audit` holds it.
//!
//! # Contexts and locks
//!
//! | what | runs in | takes |
//! |---|---|---|
//! | [`conn`]: completions | softirq (CQ polling) | connection lock |
//! | [`conn`]: what calls LNet, and `lnd_recv` | work item, one per connection, ordered; or whoever calls LNet | connection lock, briefly |
//! | [`conn`]: `lnd_send`, answers | whoever calls LNet | peer lock, then connection lock |
//! | [`conn`]: set-up, close, drain, release | two work items per connection, never both at a time | peer lock; connection lock |
//! | [`conn`]: CM events | CM workqueue, under the cm_id's handler mutex | connection lock; after a reject peer lock |
//! | [`listen`]: connection requests | the same, under the listener's too | peer lock |
//! | [`port`]: an NI and its RDMA device | work item of the NI; events in hard irq | `Port::events`, `Ni::hca` |
//!
//! No two of these locks are held together. Inside a connection's lock there is that of [`past`] only;
//! the list of [`parting`] may be held where a connection's is taken.
//!
//! The connection lock is a BH spin lock ([`crate::rdma::sync::SpinLockBh`]), the peer lock a plain
//! one (process context only). No spin lock is held across a call into LNet or the CM, but for a line of
//! LNet's debug log; the mutex of the list of interfaces, and the shim's, are. `ib_post_send` and
//! `ib_post_recv` are called under the connection lock, because the order on the wire must be
//! the order of the credits.

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
