// SPDX-License-Identifier: GPL-2.0

//! Statistics of an NI and of its connections: counters, close log, latency histograms, trace points.

pub(crate) mod close_log;
mod conn_counter_table;
pub(crate) mod conn_counters;
pub(crate) mod conn_trace;
