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
//! | [`wire`] receives, [`pump`] sends | softirq (CQ polling); `pump` anywhere | connection lock |
//! | [`upper`]: what calls LNet, and `lnd_recv` | work item, one per connection, ordered | connection lock, briefly |
//! | [`send`]: `lnd_send`, answers | whoever calls LNet | peer lock, then connection lock |
//! | [`control`]: set-up, close, drain, release | work item, one per connection | peer lock; connection lock |
//! | [`cm`]: CM events | CM workqueue, under the cm_id's handler mutex | connection lock |
//! | [`listen`]: connection requests | the same, under the listener's too | peer lock |
//! | [`device`]: an NI and its RDMA device | work item of the NI; events in hard irq | `Ni::attached` |
//!
//! No two of these locks are held together.
//!
//! The connection lock is a BH spin lock ([`crate::rdma::sync::SpinLockBh`]), the peer lock a plain
//! one (process context only). No lock is held across a call into LNet or the CM; `ib_post_send`
//! and `ib_post_recv` are called under the connection lock, because the order on the wire must be
//! the order of the credits.

#![deny(unsafe_code)]

pub(crate) mod access;
pub(crate) mod cm;
pub(crate) mod conn;
pub(crate) mod control;
pub(crate) mod debug;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod dump;
pub(crate) mod fifo;
pub(crate) mod iface;
pub(crate) mod link;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod ni;
pub(crate) mod parting;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod pump;
pub(crate) mod seen;
pub(crate) mod send;
pub(crate) mod table;
pub(crate) mod transfer;
pub(crate) mod upper;
pub(crate) mod wire;
