// SPDX-License-Identifier: GPL-2.0

//! Build and submission of a transmit: it is queued, and posted if credits allow.
//!
//! Context: process; may sleep; re-entrant. The message is built and queued under the connection lock; its resources
//! are made before, without the lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    close_reason::CloseReason,
    mapping::is_shortage,
    rdma_target::Limits,
    rx::Rx,
    transfer::Transfer,
    transfer_end::TransferEnd,
    wire::{
        buf_pool::ReserveUse,
        more_slots,
        pump::BuildResult, //
    },
    Conn, //
};
use crate::{
    lnd::{
        log,
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        constants::IMMEDIATE_HEAD,
        credits::Repost,
        tx_state::Op,
        wire::{
            BodyOut,
            Cookie, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        page_frags::PageVec,
        work::NofsScope, //
    }, //
};

/// Reason why a message did not become a transmit.
pub(super) enum SubmitError {
    /// The connection was closed for this cause.
    Over(Cause),
    /// There is no memory at the moment.
    NoMemory,
    /// The transmit could not be built.
    Failed(Cause),
}

impl SubmitError {
    /// Returns the cause to report.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Over(cause) | Self::Failed(cause) => *cause,
            Self::NoMemory => Cause::NoResources,
        }
    }
}

/// Request that a transmit answers, until its buffer is posted again, and the meaning of the repost for the peer.
pub(super) type Answered = Option<(KBox<Rx<Conn>>, Repost)>;

impl Conn {
    /// Returns the cause if a transmit could not be built and a retry may succeed: the connection was closed meanwhile,
    /// or there is no memory, no region, or no room to map (`EIO`). LNet resends a message that ends with such a cause,
    /// but not a message that cannot be sent.
    pub(super) fn transient(&self, e: Error) -> Option<Cause> {
        let short = is_shortage(e) || e == ENOBUFS;
        let ended = self.with(|inner| (!inner.state.is_up()).then(|| inner.state.end_cause()));
        if short && ended.is_none() {
            self.count_shortage();
        }
        ended.or(short.then_some(Cause::NoResources))
    }

    /// Queues a transmit, or finishes it immediately with the error. `what` creates the transfer, which may begin now,
    /// and `slots` returns the number of its work requests; `buf` may be a message buffer.
    pub(super) fn submit_or_fail<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: impl FnOnce(Timestamp) -> Transfer,
        buf: Option<TxBuf>,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) {
        if let Err((what, why)) = self.submit(op, slots, what, (buf, None), &mut None, body) {
            let mut transfer = what(Timestamp::now());
            if let Some(sink) = transfer.take_sink() {
                self.drop_sink(sink);
            }
            self.give_up(transfer.end(), why.cause());
        }
    }

    /// Finalizes a transfer that was never posted, and counts it. Process context, no lock held.
    pub(super) fn give_up(&self, unsent: TransferEnd, cause: Cause) {
        let mut unsent = unsent;
        self.ni.close_stats.messages(cause, unsent.messages());
        unsent.finish(Some(cause), false);
    }

    /// Builds the message of a transmit, queues it, and posts the transmits that may be sent. Copies `payload` into the
    /// message ([`copy_payload`]). Posts the buffer of the request that it answers again, in front of it. If there is
    /// no memory, that request stays in its place.
    #[inline(always)]
    pub(super) fn submit<'a, W: FnOnce(Timestamp) -> Transfer>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: W,
        (buf, payload): (Option<TxBuf>, Option<&PageVec>),
        answered: &mut Answered,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (W, SubmitError)> {
        let mut had = buf;
        let (mut guard, mut buf) = loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if !inner.state.is_up() {
                return Err((what, SubmitError::Over(inner.state.end_cause())));
            }
            let Some(buf) = had.take().or_else(|| inner.wire.take_buf()) else {
                drop(guard);
                match self.make_buf(reserve_for(op)) {
                    Ok(buf) => had = Some(buf),
                    Err(e) => return Err((what, self.no_buf(e))),
                }
                continue;
            };
            if inner.wire.has_place() {
                break (guard, buf);
            }
            had = Some(buf);
            drop(guard);
            if let Err(e) = self.grow() {
                return Err((what, self.no_place(had, e)));
            }
        };
        let inner = &mut *guard;
        if let Some(Err(e)) = payload.map(|payload| copy_payload(&mut buf, payload)) {
            inner.wire.put_buf(buf);
            return Err((what, SubmitError::Failed(Cause::Local(e.to_errno()))));
        }
        let now = Timestamp::now();
        if let Some((rx, how)) = answered.take() {
            if let Err(cause) = self.post_again(inner, rx, how, now) {
                return Err((what, SubmitError::Over(cause)));
            }
        }
        let slots = slots(inner.wire.limits());
        let at_once = self.at_once(inner);
        let built = inner
            .wire
            .build((op, slots), what, buf, body, now, at_once)
            .map_err(|(what, cause)| (what, SubmitError::Failed(cause)))?;
        // A transmit whose post fails ends with the connection.
        match built {
            BuildResult::Posted(Ok(())) => {}
            BuildResult::Posted(Err(cause)) => self.blame(inner, CloseReason::Post(cause)),
            BuildResult::Queued if at_once.is_some() => self.pump_if_due(inner, false, Some(now)),
            BuildResult::Queued => {}
        }
        if inner.timers.begin() {
            if let Some(probe) = self.ni.probe() {
                self.schedule_check(inner, probe.ms());
            }
        }
        Ok(())
    }

    /// Returns why there is no message buffer for a transmit.
    #[cold]
    #[inline(never)]
    pub(super) fn no_buf(&self, e: Error) -> SubmitError {
        match self.transient(e) {
            Some(Cause::NoResources) if is_shortage(e) => SubmitError::NoMemory,
            cause => SubmitError::Failed(cause.unwrap_or(Cause::Local(e.to_errno()))),
        }
    }

    /// Gives the buffer of a transmit without a place back, and returns why there is no place.
    #[cold]
    #[inline(never)]
    fn no_place(&self, buf: Option<TxBuf>, e: Error) -> SubmitError {
        if let Some(buf) = buf {
            self.with(|inner| inner.wire.put_buf(buf));
        }
        if e == ENOMEM {
            self.count_shortage();
            return SubmitError::NoMemory;
        }
        log::cannot(self.nid(), "make room for a message", e);
        SubmitError::Failed(Cause::NoResources)
    }

    /// Allocates a message buffer, if none is free, or takes one out of the reserve. Process context.
    #[cold]
    #[inline(never)]
    pub(super) fn make_buf(&self, whose: ReserveUse) -> Result<TxBuf> {
        match TxBuf::alloc(&self.hca()?.device) {
            Err(e) if is_shortage(e) && self.may_use_reserves() => {
                self.with(|inner| inner.wire.take_reserved_buf(whose).ok_or(e))
            }
            made => made,
        }
    }

    /// Creates more transmits. May sleep.
    #[cold]
    #[inline(never)]
    fn grow(&self) -> Result {
        let _nofs = NofsScope::enter();
        let mut bigger = more_slots(self.with(|inner| inner.wire.nr_txs()))?;
        // The old tables are freed without the lock.
        self.with(|inner| inner.wire.grow(&mut bigger));
        Ok(())
    }
}

/// Copies the payload of an IMMEDIATE into a message buffer, behind its head: at most 3976 bytes. A copy is cheaper
/// than a mapping, works for pages of any shape, and is covered by the checksum. The caller holds the connection lock.
#[inline(always)]
fn copy_payload(buf: &mut TxBuf, payload: &PageVec) -> Result {
    if payload.nob() == 0 {
        return Ok(());
    }
    let end = IMMEDIATE_HEAD.checked_add(payload.nob()).ok_or(EMSGSIZE)?;
    let to = buf
        .as_mut_slice()
        .get_mut(IMMEDIATE_HEAD..end)
        .ok_or(EMSGSIZE)?;
    payload.copy_to_slice(0, to)
}

/// Returns the reserve for a transmit of that kind.
fn reserve_for(op: Op) -> ReserveUse {
    match op {
        Op::PutAck | Op::PutNak | Op::GetDone => ReserveUse::Answer,
        _ => ReserveUse::Message,
    }
}
