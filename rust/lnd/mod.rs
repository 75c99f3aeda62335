// SPDX-License-Identifier: GPL-2.0

//! The driver itself: turns events into calls of [`crate::proto`], and its answers into calls of
//! [`crate::rdma`] and [`crate::lnet`].
//!
//! # Objects
//!
//! ```text
//!  Ni ---- peers (sharded) ----> Peer ----> Conn (1..n per peer)
//!   |                                        |
//!   +--> Iface (listener, shared by the NIs  +--> Qp, CQ share, buffers, memory regions (rdma)
//!        of one address)                     +--> cm_id
//! ```
//!
//! A [`conn::Conn`] points to its peer and its NI, a peer lists its connections; the cycle ends
//! when the connection's worker releases it. An NI counts its living connections, and shutdown
//! waits for zero.
//!
//! # Contexts and locks
//!
//! | what | runs in | takes |
//! |---|---|---|
//! | [`wire`]: completions, credits, the pump | softirq (CQ polling) | connection lock |
//! | [`upper`]: everything that calls LNet | work item, one per connection, ordered | connection lock, briefly |
//! | [`control`]: set-up, close, drain, release | work item, one per connection | cm mutex; peer lock; connection lock, briefly |
//! | [`cm`]: CM events | CM workqueue, under the cm_id's handler mutex | connection lock, briefly |
//! | `lnd_send`, `lnd_recv` | whoever calls LNet | peer lock, then connection lock, never both |
//!
//! The connection lock is a BH spin lock ([`crate::rdma::sync::SpinLockBh`]), the peer lock a plain
//! one (process context only). No lock is held across a call into LNet or the CM; `ib_post_send`
//! and `ib_post_recv` are called under the connection lock, because the order on the wire must be
//! the order of the credits.

#![deny(unsafe_code)]
// A request that was not taken goes back by value: a box would have to be allocated on the send path.
#![expect(clippy::result_large_err)]

pub(crate) mod cm;
pub(crate) mod conn;
pub(crate) mod control;
pub(crate) mod debug;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod fifo;
pub(crate) mod iface;
pub(crate) mod link;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod ni;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod pump;
pub(crate) mod table;
pub(crate) mod transfer;
pub(crate) mod upper;
pub(crate) mod wire;
