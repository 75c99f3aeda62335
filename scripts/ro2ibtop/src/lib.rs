// SPDX-License-Identifier: GPL-2.0

//! Reads, judges and draws the state that the driver ro2iblnd has in debugfs.
//!
//! [`parse`] parses the driver's lines, [`source`] gets them from the running kernel or from a report of
//! `ro2ib-report`, [`verdict`] finds problems, and [`view`], [`json`], [`prometheus`] and [`svg`] show the
//! result. Only [`source`] and [`device_counters`] access the machine.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod cause_texts;
pub mod conn_counters;
pub mod device_counters;
pub mod histograms;
pub mod history;
pub mod json;
pub mod link_flaps;
pub mod model;
pub mod number_texts;
pub mod parse;
pub mod prometheus;
pub mod source;
pub mod svg;
pub mod verdict;
pub mod view;
