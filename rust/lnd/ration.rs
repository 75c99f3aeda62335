// SPDX-License-Identifier: GPL-2.0

//! What strangers may have us do, with the memory that it takes to count it; [`crate::proto::budget`] has the rule.
//!
//! Context: any; whoever has one locks it.

use kernel::prelude::*;

use crate::{
    proto::budget::{
        Budget,
        Part,
        Rates,
        PARTS, //
    },
    rdma::random, //
};

/// What is rationed.
pub(crate) struct Rationed {
    all: Budget,
    parts: KVec<Part>,
}

impl Rationed {
    /// Nothing was used. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(rates: Rates) -> Result<Self> {
        Ok(Self {
            all: Budget::new(rates, random::u64()),
            parts: KVec::from_elem(Part::UNUSED, PARTS, GFP_KERNEL)?,
        })
    }

    /// Whether `payer` may have one more; see [`Budget::take`].
    pub(crate) fn take(&mut self, payer: Option<u32>, now_ms: u64, overdraws: bool) -> bool {
        self.all.take(&mut self.parts, payer, now_ms, overdraws)
    }
}
