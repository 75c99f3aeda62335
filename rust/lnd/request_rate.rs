// SPDX-License-Identifier: GPL-2.0

//! Rate limit of requests and rejects that any host can provoke, with the memory of its parts;
//! [`crate::policy::request_rate`] has the rule.
//!
//! Context: any; the owner of a rate limit locks it.

use kernel::prelude::*;

use crate::{
    policy::request_rate::{
        RateExceeded,
        RateLimit,
        Rates,
        SourceBucket,
        PARTS, //
    },
    rdma::random, //
};

/// Rate limit and its parts.
pub(crate) struct RateLimiter {
    all: RateLimit,
    parts: KVec<SourceBucket>,
}

impl RateLimiter {
    /// Creates an unused rate limit. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(rates: Rates) -> Result<Self> {
        Ok(Self {
            all: RateLimit::new(rates, random::u64()),
            parts: KVec::from_elem(SourceBucket::UNUSED, PARTS, GFP_KERNEL)?,
        })
    }

    /// Counts a request of `payer`; see [`RateLimit::take`].
    ///
    /// # Errors
    ///
    /// The rate limit that is exceeded.
    pub(crate) fn take(
        &mut self,
        payer: Option<u32>,
        now_ms: u64,
        units: u32,
        overdraws: bool,
    ) -> Result<(), RateExceeded> {
        self.all
            .take(&mut self.parts, payer, now_ms, units, overdraws)
    }
}
