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
    remote::Limits,
    transfer::{
        Ended,
        Owner,
        Transfer, //
    },
    wire::bigger::Bigger,
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
        pages::PageVec, //
    }, //
};

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
            (None, None),
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
    /// begin now, and `slots` says how many work requests it takes; `buf` may be a message buffer, and what is
    /// copied into it.
    pub(super) fn submit_or_fail<'a>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: impl FnOnce(Moment) -> Transfer,
        buf: (Option<TxBuf>, Option<&PageVec>),
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) {
        if let Err((what, cause)) = self.submit(op, slots, what, buf, body) {
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
    fn submit<'a, W: FnOnce(Moment) -> Transfer>(
        self: &Arc<Self>,
        op: Op,
        slots: impl FnOnce(Limits) -> u16,
        what: W,
        buf: (Option<TxBuf>, Option<&PageVec>),
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (W, Cause)> {
        let buf = match self.message_buf(buf) {
            Ok(buf) => buf,
            Err(e) => {
                let cause = self.transient(e);
                return Err((what, cause.unwrap_or(Cause::Local(e.to_errno()))));
            }
        };
        let (mut guard, id) = loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if !inner.life.is_up() {
                return Err((what, inner.life.end_cause()));
            }
            if let Some(id) = inner.wire.alloc(op) {
                break (guard, id);
            }
            drop(guard);
            if let Err(e) = self.grow() {
                log::cannot(self.nid(), "make room for a message", e);
                return Err((what, Cause::NoResources));
            }
        };
        let inner = &mut *guard;
        let now = Moment::now();
        let slots = slots(inner.wire.limits());
        inner.wire.enqueue((id, slots), what, buf, body, now)?;
        // Who fails in that is finished with the connection.
        self.ring(inner, Some(now));
        if inner.watch.begin() {
            if let Some(probe) = self.ni.probe() {
                self.look_in(inner, probe.ms());
            }
        }
        Ok(())
    }

    /// A message buffer, with the payload of an IMMEDIATE already behind its head. At most 3976
    /// bytes: a copy is cheaper than a mapping, right for any shape of pages, and covered by the
    /// checksum.
    #[inline(always)]
    fn message_buf(&self, what: (Option<TxBuf>, Option<&PageVec>)) -> Result<TxBuf> {
        let (buf, payload) = what;
        let mut buf = buf.map_or_else(|| self.take_buf(), Ok)?;
        if let Some(pages) = payload {
            let end = IMMEDIATE_HEAD.checked_add(pages.nob()).ok_or(EMSGSIZE)?;
            let to = buf
                .as_mut_slice()
                .get_mut(IMMEDIATE_HEAD..end)
                .ok_or(EMSGSIZE)?;
            pages.copy_to_slice(0, to)?;
        }
        Ok(buf)
    }

    /// A free message buffer, or a new one. May sleep.
    #[inline]
    pub(super) fn take_buf(&self) -> Result<TxBuf> {
        match self.with(|inner| inner.wire.take_buf()) {
            Some(buf) => Ok(buf),
            None => self.make_buf(),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_buf(&self) -> Result<TxBuf> {
        TxBuf::alloc(&self.hca()?.device)
    }

    /// Makes more transmits. May sleep.
    fn grow(&self) -> Result {
        let mut bigger = Bigger::new(self.with(|inner| inner.wire.nr_txs()))?;
        // The old tables are freed without the lock.
        self.with(|inner| inner.wire.grow(&mut bigger));
        Ok(())
    }
}
