// SPDX-License-Identifier: GPL-2.0

//! Fast path of sending: a transmit is built, and posted at once if credits, slots and earlier transmits allow it.
//!
//! Context: process, under the connection lock.

use kernel::prelude::*;

use super::{
    post,
    Wire, //
};
use crate::{
    lnd::{
        conn::{
            rx::RxConn,
            transfer::Transfer, //
        },
        stats::conn_counters::Count,
        timestamp::Timestamp, //
    },
    lnet::dk::dk,
    policy::upcall_sched::WrRole,
    proto::{
        cause::Cause,
        tx_state::{
            Op,
            Wr, //
        },
        wire::{
            encode,
            finalize_hdr,
            BodyOut,
            Cookie, //
        }, //
    },
    rdma::buf::TxBuf, //
};

/// Conditions for the immediate post of a new transmit.
#[derive(Clone, Copy)]
pub(crate) struct FastPathLimits {
    /// As of [`Wire::pump`].
    pub(crate) patient: bool,
    /// As of [`Wire::pump`].
    pub(crate) cksum: bool,
}

/// Result of the build of a transmit.
pub(crate) enum BuildResult {
    /// It was posted, with its doorbell; or the post failed, with the cause to close the connection with.
    Posted(Result<(), Cause>),
    /// It is queued.
    Queued,
}

impl<C: RxConn> Wire<C> {
    /// Builds a transmit: its message in `buf`, and `what` creates its payload, which may begin now. Posting it takes
    /// `slots`. A message alone is posted if [`Wire::pump`] would have done nothing more than that; other transmits are
    /// queued. `at_once`: the doorbell rings for it.
    ///
    /// # Errors
    ///
    /// Returns the creator of its payload, and the reason: the message is too long, or there is no place.
    #[inline(always)]
    pub(crate) fn build<'a, W: FnOnce(Timestamp) -> Transfer>(
        &mut self,
        (op, slots): (Op, u16),
        what: W,
        buf: TxBuf,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
        now: Timestamp,
        at_once: Option<FastPathLimits>,
    ) -> Result<BuildResult, (W, Cause)> {
        let mut buf = buf;
        if matches!(op, Op::PutReq | Op::GetReq) && self.txs.lacks_reserve(&self.credits) {
            self.counts.one(Count::NoReserved);
        }
        let env = self.envelope();
        let Some(mut free) = self.txs.alloc(op) else {
            return Err((what, Cause::NoResources));
        };
        let index = free.index();
        let Ok(nob) = encode(buf.as_mut_slice(), &env, &body(free.cookie())) else {
            self.txs.release(index);
            return Err((what, Cause::Local(EMSGSIZE.to_errno())));
        };
        let mut transfer = what(now);
        if let (Some(how), true, Some(link)) = (at_once, transfer.is_alone(), &mut self.link) {
            let room = link.room();
            if let Some(carried) = free.try_pay((op, slots), &mut self.credits, room, how.patient) {
                let (clock, _, total) = transfer.measured();
                let sizes = (nob, total, carried);
                self.stats.posted((op, index), clock, sizes, now);
                dk!(
                    Net,
                    "{}: transmit {:?}, tx {}, with {} credits",
                    self.identity.peer,
                    { op },
                    { index },
                    { carried }
                );
                free.post(transfer);
                let sealed = finalize_hdr(buf.as_mut_slice(), nob, carried, how.cksum);
                let pushed = match (sealed, u32::try_from(nob)) {
                    (Ok(()), Ok(nob)) => {
                        link.push_send(post::context(index, Wr::Any, WrRole::Last), buf, nob)
                    }
                    _ => Err(Cause::LocalFault),
                };
                // There was room for it.
                if !matches!(pushed, Ok(None)) {
                    let cause = pushed.err().unwrap_or(Cause::LocalFault);
                    return Ok(BuildResult::Posted(Err(cause)));
                }
                let rang = link.flush(now);
                // After the doorbell, because its completion waits for the lock; and before a failure of that is
                // booked.
                free.pushed();
                self.flight.pushed(WrRole::Last);
                self.counts.one(Count::TxMsgs);
                self.counts.one(Count::Wrs);
                self.stats.flows();
                return Ok(BuildResult::Posted(self.flushed(rang)));
            }
        }
        free.fill(slots, transfer.loaded(buf, nob));
        self.txs.queue(index);
        Ok(BuildResult::Queued)
    }
}
