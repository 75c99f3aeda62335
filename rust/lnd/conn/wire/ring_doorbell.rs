// SPDX-License-Identifier: GPL-2.0

//! Doorbell for the pushed work requests of a connection.
//!
//! Context: softirq and process, under the connection lock.

use super::{
    qp_handle::{
        QpHandle,
        Unposted, //
    },
    Wire, //
};
use crate::{
    lnd::{
        conn::rx::RxConn,
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    proto::cause::Cause, //
};

impl<C: RxConn> Wire<C> {
    /// Rings the doorbell for the pushed work requests, because there is no room for more.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_full(&mut self) -> Result<(), Cause> {
        self.flush(Timestamp::now())
    }

    /// Rings the doorbell for the pushed work requests, if there are any.
    #[inline(always)]
    pub(super) fn flush(&mut self, now: Timestamp) -> Result<(), Cause> {
        let Some(link) = self.link.as_mut() else {
            return Ok(());
        };
        if link.is_empty() {
            return Ok(());
        }
        let rang = link.flush(now);
        self.flushed(rang)
    }

    /// Handles the result of the doorbell for the pushed work requests.
    #[inline(always)]
    pub(super) fn flushed(&mut self, rang: Result<(), Unposted>) -> Result<(), Cause> {
        match rang {
            Ok(()) => {
                self.counts.one(Count::Doorbells);
                Ok(())
            }
            Err(unposted) => self.lost(unposted),
        }
    }

    #[cold]
    #[inline(never)]
    fn lost(&mut self, unposted: Unposted) -> Result<(), Cause> {
        if unposted.rang {
            self.counts.one(Count::Doorbells);
        }
        // Work requests that the device did not take will not complete by themselves.
        while let Some(context) = self.link.as_mut().and_then(QpHandle::next_unposted) {
            self.retire_failed(context, Cause::LocalFault);
        }
        Err(Cause::LocalFault)
    }
}
