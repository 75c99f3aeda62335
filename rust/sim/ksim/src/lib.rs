// SPDX-License-Identifier: GPL-2.0

//! Simulation of the C that the driver calls, and the scheduler that runs all tasks.
//!
//! The driver and its kernel crate are compiled as they are; the functions that they declare as C
//! (`decl/`) are defined here, in one process, for any number of nodes. One task runs at a time,
//! and the seed determines which: see [`sched`]. `Documentation/simulation.md` describes the
//! simulation.
//!
//! | file | what it stands for |
//! |---|---|
//! | `sched` | tasks, time, and the choice of the next task |
//! | `mem`, `lock`, `rcu_map`, `work`, `kernel_core` | the kernel: memory, locks with lockdep, work queues, trees |
//! | `dma`, `verbs`, `cq` | an RDMA device: mappings, queue pairs, regions, completions |
//! | `cm` | the connection manager, and the fabric between nodes |
//! | `lnet`, `trace_check` | LNet and the C shim |
//! | `true_counts` | true counts of a driver, to compare with its own counters |
//! | `byzantine` | a peer that breaks the protocol |
//! | `world` | a world: nodes, the faults of a run, the checks |
//!
//! # Context
//!
//! One OS thread. [`world::w`] owns all state; no reference into it is kept over a call that may
//! switch tasks or enter the driver.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    clippy::too_many_arguments,
    clippy::new_without_default,
    dangerous_implicit_autorefs,
    non_upper_case_globals
)]

pub mod byzantine;
pub mod cm;
pub mod cq;
pub mod decl;
pub mod dma;
pub mod fixed_hash;
pub mod kernel_core;
pub mod lnet;
pub mod lock;
pub mod mem;
pub mod rcu_map;
pub mod rng;
pub mod sched;
pub mod trace_check;
pub mod true_counts;
pub mod verbs;
pub mod work;
pub mod world;
