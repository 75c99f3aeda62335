// SPDX-License-Identifier: GPL-2.0

//! Explicit-state models of the o2ib driver. The code under test is the real one of `rust/proto/`,
//! on both ends; what stands between it and the search is kept small and names the driver function
//! it stands for.
//!
//! - [`credit`]: the credit protocol, ours against ours and against [`ko2`], a model of ko2iblnd;
//! - [`walk`]: long random runs of the same model at depths that no search exhausts;
//! - [`life`]: connections and transmits from the first message to shutdown, on two [`node`]s;
//! - [`tables`]: the state tables of the documentation;
//! - [`search`]: the search itself.
//!
//! `Documentation/model.md` has the properties, `Documentation/results.md` the number of states.

pub mod between_nodes;
pub mod conn;
pub mod credit;
pub mod ko2;
pub mod life;
pub mod messages;
pub mod node;
pub mod our_end;
pub mod search;
pub mod tables;
pub mod walk;
