// SPDX-License-Identifier: GPL-2.0

//! Verbs and the RDMA connection manager as safe types.
//!
//! One file per object. Every type owns what it wraps: dropping the last owner
//! is the only way to destroy it, and an object holds what it depends on (a QP
//! its PD, its CQ share, its CM id), so that destruction is in the right order
//! by construction. Memory that a device may access belongs to a work request
//! from the moment it is pushed until its completion, or to the QP for as long
//! as a key to it is valid.
//!
//! Nothing here knows LNet. C headers: `include/rdma/ib_verbs.h`,
//! `include/rdma/rdma_cm.h`.

// A library: the driver and the tests use different parts of it.

// The tests use a part of it.
#![cfg_attr(ro2iblnd_kunit, allow(dead_code))]

pub(crate) mod batch;
pub(crate) mod bounce;
pub(crate) mod buf;
pub(crate) mod cm;
pub(crate) mod cm_event;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod layout;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod mr;
pub(crate) mod pages;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod random;
pub(crate) mod rq;
pub(crate) mod send_ring;
pub(crate) mod sg;
pub(crate) mod sq;
pub(crate) mod sync;
pub(crate) mod wc;
pub(crate) mod work;
