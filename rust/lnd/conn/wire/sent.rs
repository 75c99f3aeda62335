// SPDX-License-Identifier: GPL-2.0

//! End of a work request of the send queue: its buffer, and the transmit that it belongs to.
//!
//! Context: softirq, or process context after a post that failed, under the connection lock.

use super::{
    post,
    Wire, //
};
use crate::{
    lnd::{
        conn::rx::RxConn,
        stats::{
            conn_counters::Count,
            conn_trace::ConnStats, //
        },
        timestamp::Timestamp, //
    },
    policy::upcall_sched::WrRole,
    proto::cause::Cause,
    rdma::{
        buf::TxBuf,
        wc::WcStatus, //
    }, //
};

/// Returns the result of a request by its completion status, and which side is to blame.
pub(super) fn outcome(status: WcStatus) -> Result<(), Cause> {
    match status {
        WcStatus::Success => Ok(()),
        WcStatus::Flush => Err(Cause::Flushed),
        WcStatus::RetryExc | WcStatus::RnrRetryExc | WcStatus::RespTimeout => {
            Err(Cause::TransportRetry)
        }
        WcStatus::RemInvReq
        | WcStatus::RemAccess
        | WcStatus::RemOp
        | WcStatus::RemAbort
        | WcStatus::BadResp => Err(Cause::RemoteFault),
        WcStatus::LocLen
        | WcStatus::LocQpOp
        | WcStatus::LocProt
        | WcStatus::LocAccess
        | WcStatus::Fatal
        | WcStatus::General
        | WcStatus::Other(_) => Err(Cause::LocalFault),
    }
}

impl<C: RxConn> Wire<C> {
    /// Handles a work request of the send queue that has succeeded: its context, and the message buffer of a send.
    #[inline(always)]
    pub(crate) fn sent(&mut self, context: u32, buf: Option<TxBuf>, now: Timestamp) {
        self.counts.one(Count::Retired);
        self.retire(context, buf, Ok(()), Some(now));
    }

    /// Handles a work request in front of a message that has succeeded. Returns false if [`Wire::sent`] must handle it.
    #[inline(always)]
    pub(crate) fn sent_in_front(&mut self, context: u32) -> bool {
        if post::load_of(context) != WrRole::InFront || ConnStats::wants_completions() {
            return false;
        }
        let done = post::index_of(context).is_some_and(|index| self.txs.completed_in_front(index));
        if done {
            self.counts.one(Count::Retired);
        }
        done
    }

    /// Handles a work request of the send queue that has failed. Returns the cause to close the connection with, before
    /// the next completion is handled.
    pub(crate) fn send_failed(&mut self, context: u32, status: WcStatus) -> Cause {
        self.counts.one(Count::Retired);
        let cause = outcome(status).err().unwrap_or(Cause::LocalFault);
        self.retire_failed(context, cause);
        if status == WcStatus::RnrRetryExc {
            self.counts.one(Count::Rnr);
        }
        cause
    }

    // Separate function, so that the other one knows that the send succeeded. There is no buffer: the device may still
    // use it.
    #[cold]
    #[inline(never)]
    pub(super) fn retire_failed(&mut self, context: u32, cause: Cause) {
        self.retire(context, None, Err(cause), None);
    }

    /// Books the end of one send work request.
    #[inline(always)]
    fn retire(
        &mut self,
        context: u32,
        buf: Option<TxBuf>,
        result: Result<(), Cause>,
        now: Option<Timestamp>,
    ) {
        let index = post::index_of(context);
        if ConnStats::wants_completions() {
            let op = index.and_then(|index| Some((self.txs.op(index)?, index)));
            self.stats.completed(op, result);
        }
        if post::is_noop(context) {
            self.flight.ended(WrRole::Last);
            self.credits.noop_completed();
            self.noop = (self.credits.noops() > 0).then(Timestamp::now);
            if let Some(buf) = buf {
                self.buf_pool.put_of_noop(buf);
            }
            return;
        }
        if let Some(buf) = buf {
            self.buf_pool.put(buf);
        }
        let load = post::load_of(context);
        self.flight.ended(load);
        if let Some(index) = index {
            let sent = self.txs.completed(index, post::wr_of(context), result);
            if let (Some(clock), Some(now), WrRole::Last) = (sent, now, load) {
                self.stats.sent(clock, now);
            }
        }
    }
}
