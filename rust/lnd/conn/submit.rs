// SPDX-License-Identifier: GPL-2.0

//! A transmit is built, queued, and what may go is posted.
//!
//! Context: process; may sleep; re-entrant. The message is built and queued under the connection lock; what
//! it needs is made before, without it.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    ended::{
        Ended,
        Owner, //
    },
    fault::Fault,
    remote::Limits,
    transfer::Transfer,
    wire::{
        bigger::Bigger,
        build::Built, //
    },
    Conn, //
};
use crate::{
    lnd::{
        counts::Count,
        log,
        moment::Moment, //
    },
    proto::{
        cause::Cause,
        encode::BodyOut,
        params::IMMEDIATE_HEAD,
        tx::Op,
        wire::{
            Cookie,
            Done, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        pages::PageVec,
        work::NofsScope, //
    }, //
};

/// Why something did not become a transmit.
pub(super) enum Unsent {
    /// The connection has ended, for this.
    Over(Cause),
    /// It could not be built.
    Failed(Cause),
}

impl Conn {
    /// Why a transmit could not be built, if another try may go well: the connection has ended
    /// meanwhile, or it is want of memory, of regions, or of room to map (`EIO`). LNet sends again what
    /// ends so, which it does not if it is told that it cannot be sent.
    pub(super) fn transient(&self, e: Error) -> Option<Cause> {
        let short = e == ENOMEM || e == ENOBUFS || e == EIO;
        let ended = self.with(|inner| {
            let over = !inner.life.is_up();
            if short && !over {
                inner.wire.count(Count::NoMemory);
            }
            over.then(|| inner.life.end_cause())
        });
        if short && ended.is_none() {
            self.ni.seen.no_memory();
        }
        ended.or(short.then_some(Cause::NoResources))
    }

    /// Sends a completion message: a byte count or a negative errno.
    pub(super) fn tell(self: &Arc<Self>, op: Op, cookie: Cookie, status: i32, owner: Owner) {
        let done = Done { cookie, status };
        let what = |now| Transfer::message(owner, now);
        self.submit_or_fail(
            op,
            |_| 1,
            what,
            None,
            |_| {
                if op == Op::PutNak {
                    BodyOut::PutNak(done)
                } else {
                    BodyOut::GetDone(done)
                }
            },
        );
    }

    /// Queues a transmit, or finishes it at once with the reason why not. `what` makes the transfer, which may
    /// begin now, and `slots` says how many work requests it takes; `buf` may be a message buffer.
    pub(super) fn submit_or_fail<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: impl FnOnce(Moment) -> Transfer,
        buf: Option<TxBuf>,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) {
        if let Err((what, Unsent::Over(cause) | Unsent::Failed(cause))) =
            self.submit(op, slots, what, buf, body)
        {
            let mut transfer = what(Moment::now());
            if matches!(op, Op::PutAck | Op::PutNak | Op::GetDone) {
                // The peer waits for this answer: the disconnect tells it at once.
                self.end(cause);
            }
            if let Some(sink) = transfer.take_sink() {
                self.drop_sink(sink);
            }
            self.give_up(transfer.end(), cause);
        }
    }

    /// Gives what was never posted back to LNet, and counts it. Process context, no lock held.
    pub(super) fn give_up(&self, unsent: Ended, cause: Cause) {
        let mut unsent = unsent;
        self.ni.seen.messages(cause, unsent.messages());
        unsent.finish(Some(cause), false);
    }

    /// Builds the message of a transmit, queues it, and posts what may go.
    #[inline(always)]
    pub(super) fn submit<'a, W: FnOnce(Moment) -> Transfer>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: W,
        buf: Option<TxBuf>,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (W, Unsent)> {
        let mut had = buf;
        let (mut guard, buf) = loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if !inner.life.is_up() {
                return Err((what, Unsent::Over(inner.life.end_cause())));
            }
            let Some(buf) = had.take().or_else(|| inner.wire.take_buf()) else {
                drop(guard);
                match self.make_buf() {
                    Ok(buf) => had = Some(buf),
                    Err(e) => return Err((what, Unsent::Failed(self.no_buf(e)))),
                }
                continue;
            };
            if inner.wire.has_place() {
                break (guard, buf);
            }
            had = Some(buf);
            drop(guard);
            if let Err(e) = self.grow() {
                log::cannot(self.nid(), "make room for a message", e);
                return Err((what, Unsent::Failed(Cause::NoResources)));
            }
        };
        let inner = &mut *guard;
        let now = Moment::now();
        let slots = slots(inner.wire.limits());
        let at_once = self.at_once(inner);
        let built = inner
            .wire
            .build((op, slots), what, buf, body, now, at_once)
            .map_err(|(what, cause)| (what, Unsent::Failed(cause)))?;
        // Who fails in that is finished with the connection.
        match built {
            Built::Posted(Ok(())) => {}
            Built::Posted(Err(cause)) => self.blame(inner, Fault::Post(cause)),
            Built::Queued if at_once.is_some() => self.pump_due(inner, false, Some(now)),
            Built::Queued => {}
        }
        if inner.watch.begin() {
            if let Some(probe) = self.ni.probe() {
                self.look_in(inner, probe.ms());
            }
        }
        Ok(())
    }

    /// Why there is no message buffer for a transmit.
    #[cold]
    #[inline(never)]
    pub(super) fn no_buf(&self, e: Error) -> Cause {
        let cause = self.transient(e);
        cause.unwrap_or(Cause::Local(e.to_errno()))
    }

    /// The payload of an IMMEDIATE in a message buffer, behind its head. At most 3976 bytes: a copy is
    /// cheaper than a mapping, right for any shape of pages, and covered by the checksum.
    #[inline(always)]
    pub(super) fn copied(&self, buf: Option<TxBuf>, payload: &PageVec) -> Result<TxBuf> {
        let mut buf = buf.map_or_else(|| self.make_buf(), Ok)?;
        let end = IMMEDIATE_HEAD.checked_add(payload.nob()).ok_or(EMSGSIZE)?;
        let to = buf
            .as_mut_slice()
            .get_mut(IMMEDIATE_HEAD..end)
            .ok_or(EMSGSIZE)?;
        payload.copy_to_slice(0, to)?;
        Ok(buf)
    }

    /// A new message buffer, where none is free. May sleep.
    #[cold]
    #[inline(never)]
    pub(super) fn make_buf(&self) -> Result<TxBuf> {
        let _nofs = NofsScope::enter();
        TxBuf::alloc(&self.hca()?.device)
    }

    /// Makes more transmits. May sleep.
    #[cold]
    #[inline(never)]
    fn grow(&self) -> Result {
        let _nofs = NofsScope::enter();
        let mut bigger = Bigger::new(self.with(|inner| inner.wire.nr_txs()))?;
        // The old tables are freed without the lock.
        self.with(|inner| inner.wire.grow(&mut bigger));
        Ok(())
    }
}
