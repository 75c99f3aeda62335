// SPDX-License-Identifier: GPL-2.0

//! What the driver ro2iblnd shows in debugfs, read, judged and drawn.
//!
//! [`text`] takes the driver's lines apart, [`source`] gets them from the running kernel or from what
//! `ro2ib-report` saved, [`verdict`] says what is wrong, and [`view`], [`json`], [`prometheus`] and
//! [`svg`] show it. Nothing but [`source`] and [`counters`] touch the machine.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod counters;
pub mod flaps;
pub mod history;
pub mod json;
pub mod model;
pub mod prometheus;
pub mod source;
pub mod svg;
pub mod text;
pub mod times;
pub mod verdict;
pub mod view;
pub mod words;
