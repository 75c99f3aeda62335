// SPDX-License-Identifier: GPL-2.0

//! The C that the driver calls, simulated, and the scheduler under which everything runs.
//!
//! The driver and our own kernel crate are compiled as they are; what they declare as C (`decl/`) is
//! defined here, in one process, for any number of nodes. Only one thing runs at a time, and which one
//! is drawn from the seed: see [`sched`]. `Documentation/simulation.md` tells what is simulated.
//!
//! | file | what it stands for |
//! |---|---|
//! | `sched` | tasks, time, and who runs next |
//! | `mem`, `lock`, `work`, `misc` | the kernel: memory, locks with lockdep, work queues, trees |
//! | `dma`, `verbs`, `cq` | an RDMA device: mappings, queue pairs, regions, completions |
//! | `cm` | the connection manager, and the fabric between nodes |
//! | `lnet`, `trace` | LNet and the C shim |
//! | `truth` | what a driver did, to compare with what it says |
//! | `foul` | a peer that sends what it should not |
//! | `world` | a world: nodes, the faults of a run, what has to hold |
//!
//! # Context
//!
//! One OS thread. All state hangs from [`world::w`]; no reference into it is kept over a call that may
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
pub mod hash;
pub mod lnet;
pub mod lock;
pub mod mem;
pub mod misc;
pub mod oracle;
pub mod rng;
pub mod sched;
pub mod trace;
pub mod verbs;
pub mod work;
pub mod world;
