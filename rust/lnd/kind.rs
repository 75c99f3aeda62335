// SPDX-License-Identifier: GPL-2.0

//! The name of this driver among LNet's. What it does is in [`super::ops`].

/// The driver of networks `o2ib`.
pub(crate) enum O2ib {}
