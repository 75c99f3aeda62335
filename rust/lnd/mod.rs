// SPDX-License-Identifier: GPL-2.0

//! Driver: turns events into calls of [`crate::proto`], and the results into calls of [`crate::rdma`] and
//! [`crate::lnet`].
//!
//! # Objects
//!
//! ```text
//!  NiDevice --> Peers (sharded) --> Peer --> Conn (1..n per peer)
//!   |  |                             |        |
//!   |  +--> Ni <---------------------+--------+--> Qp, CQ share, buffers, memory regions (rdma)
//!   +--> Iface (listener, shared by                cm_id
//!        the NIs of one address)
//! ```
//!
//! A [`conn::Conn`] holds its peer and its NI, and a peer lists its connections. The cycle ends when the connection's
//! worker releases it. An NI counts its live connections, and shutdown waits for zero.
//!
//! The files import each other in one direction; Documentation/architecture.md has the order, and `scripts/audit`
//! checks it.
//!
//! # Contexts and locks
//!
//! | code | runs in | takes |
//! |---|---|---|
//! | [`conn`]: completions | softirq (CQ polling) | connection lock |
//! | [`conn`]: calls into LNet | work item, one per connection, ordered | connection lock, briefly |
//! | [`conn`]: `lnd_recv` | the same work item, or the thread that calls LNet | connection lock, briefly |
//! | [`conn`]: `lnd_send`, answers | the thread that calls LNet | peer lock, then connection lock |
//! | [`conn`]: set-up, close, drain, release | three work items per connection, one at a time | peer lock; connection lock |
//! | [`conn`]: CM events | CM workqueue, under the id's handler mutex | connection lock; after a reject peer lock |
//! | [`listen`]: connection requests | the same, under the listener's mutex, too | peer lock |
//! | [`ni_device`]: an NI and its RDMA device | work item of the NI; events in hard irq | `NiDevice::events`, `Ni::hca` |
//!
//! No two of these locks are held together, with these exceptions: inside a connection lock only the lock of
//! [`stats::closed_counters`] is taken; the list of [`lingering`] may be held when a connection lock is taken; a sender
//! may hold the lock of a shard of [`peer_table`] when it takes a peer lock; and the connect queue and the rate limits
//! are locked inside a peer lock.
//!
//! The connection lock is a BH spin lock ([`crate::rdma::sync::SpinLockBh`]), the peer lock a plain one (process
//! context only). No spin lock is held across a call into LNet or the CM, except for a line of LNet's debug log. The
//! mutex of an interface, and the shim's mutex, are held across such calls. `ib_post_send` and `ib_post_recv` are
//! called under the connection lock, because the order on the wire must be the order of the credits.

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
