// SPDX-License-Identifier: GPL-2.0

//! Verbs and the RDMA connection manager as safe types.
//!
//! One file per object. Every type owns what it wraps: dropping the last owner
//! is the only way to destroy it, and an object holds what it depends on (a QP
//! its PD, its completion queue, its CM id), so that destruction is in the right order
//! by construction. Memory that a device may access belongs to a work request
//! from the moment it is pushed until its completion, or to the QP for as long
//! as a key to it is valid.
//!
//! A queue pair is in several modules, which import each other in one direction only. Lowest first:
//!
//! | module | content |
//! |---|---|
//! | [`raw_mr`], [`mr`], [`mr_slots`], [`qp_mr_pool`], [`mr_sharing`] | memory regions: from one to those of a device |
//! | [`send_ring`], [`recv_ring`] | the slots with the resources of posted work requests |
//! | [`wr_id`], [`drain`] | numbers of work requests, and the drain |
//! | [`qp_completion_context`] | the part of a QP that completions need |
//! | [`completion_receiver`], [`wc_dispatch`] | completions of a poll, and their receiver |
//! | [`qp_handler`] | callbacks to the owner of a QP |
//! | [`cq`] | the completion queue |
//! | [`qp`] | the QP |
//! | [`sq`], [`sq_reg`], [`rq`] | the rights to post; over [`batch`] |
//! | [`qp_create`] | creation of the QP and the rights, and their end |
//!
//! An id of the connection manager, lowest first:
//!
//! | module | content |
//! |---|---|
//! | [`cm_event`], [`cm_path`], [`net_ns`] | addresses, events, paths, namespaces |
//! | [`cm_locked`] | operations on an id under its handler mutex |
//! | [`cm_ref`] | counted references to an id; over [`refcount`] |
//! | [`cm`] | the id, and the handler of its events |
//! | [`listen`] | an id to listen on, and its requests |
//!
//! Wrappers of kernel interfaces other than RDMA: [`debugfs`], [`percpu_histogram`], [`random`], [`ratelimit`],
//! [`rcu_map`], [`sync`], [`work`].
//!
//! Nothing here knows LNet or the owners of GPU memory ([`gpu`]). C headers: `include/rdma/ib_verbs.h`,
//! `include/rdma/rdma_cm.h`.

// The tests use a part of it.
#![cfg_attr(ro2iblnd_kunit, allow(dead_code))]

// The driver's own atomics, with each kernel crate: those of the kernel's crate call a C function for each access.
#[allow(dead_code, unreachable_pub)]
#[path = "../kernel/sync/atomic.rs"]
pub(crate) mod atomic;
pub(crate) mod batch;
pub(crate) mod bounce;
pub(crate) mod buf;
pub(crate) mod cm;
pub(crate) mod cm_event;
pub(crate) mod cm_locked;
pub(crate) mod cm_path;
pub(crate) mod cm_ref;
pub(crate) mod completion_receiver;
pub(crate) mod cq;
pub(crate) mod debugfs;
pub(crate) mod device;
pub(crate) mod drain;
pub(crate) mod gpu;
pub(crate) mod layout_check;
pub(crate) mod listen;
pub(crate) mod mr;
pub(crate) mod mr_sharing;
pub(crate) mod mr_slots;
pub(crate) mod net_ns;
pub(crate) mod object_reserve;
pub(crate) mod owned_mapping;
pub(crate) mod page_frags;
pub(crate) mod pd;
pub(crate) mod percpu_histogram;
pub(crate) mod qp;
pub(crate) mod qp_completion_context;
pub(crate) mod qp_create;
pub(crate) mod qp_handler;
pub(crate) mod qp_mr_pool;
pub(crate) mod random;
pub(crate) mod ratelimit;
pub(crate) mod raw_mr;
pub(crate) mod rcu_map;
pub(crate) mod recv_ring;
pub(crate) mod refcount;
pub(crate) mod return_code;
pub(crate) mod rq;
pub(crate) mod send_ring;
pub(crate) mod sg;
pub(crate) mod sq;
pub(crate) mod sq_reg;
pub(crate) mod sync;
pub(crate) mod wc;
pub(crate) mod wc_dispatch;
pub(crate) mod work;
pub(crate) mod wr_id;
