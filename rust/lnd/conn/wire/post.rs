// SPDX-License-Identifier: GPL-2.0

//! Work requests of a transmit.
//!
//! Context: as [`super::pump`].
//!
//! # Invariants
//!
//! A pushed work request has a context that identifies its transmit ([`index_of`]), and was counted in its transmit
//! before the next one is built.

use super::Wire;
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
            BodyOut, //
        }, //
    },
    rdma::buf::TxBuf, //
};

/// Context of a NOOP's work request. [`context`] creates all others.
const NOOP: u32 = u32::MAX;
/// Set in the context of a LOCAL_INV.
const INVALIDATE: u32 = 1 << 16;
/// Set in the context of a work request in front of a message.
const IN_FRONT: u32 = 1 << 17;

/// Returns the context of a work request of the tx at `index`, which the send queue returns with its completion.
#[inline(always)]
pub(super) fn context(index: u16, wr: Wr, load: WrRole) -> u32 {
    let wr = match wr {
        Wr::Any => 0,
        Wr::Invalidate => INVALIDATE,
    };
    let load = match load {
        WrRole::Last => 0,
        WrRole::InFront => IN_FRONT,
    };
    u32::from(index) | wr | load
}

/// Returns whether a context is that of a NOOP's work request.
#[inline]
pub(super) fn is_noop(context: u32) -> bool {
    context == NOOP
}

/// Returns the index of the tx that a context belongs to.
#[inline(always)]
pub(super) fn index_of(context: u32) -> Option<u16> {
    u16::try_from(context & !(INVALIDATE | IN_FRONT)).ok()
}

/// Returns the kind of its work request.
#[inline(always)]
pub(super) fn wr_of(context: u32) -> Wr {
    if context & INVALIDATE != 0 {
        Wr::Invalidate
    } else {
        Wr::Any
    }
}

/// Returns the role of that work request.
#[inline(always)]
pub(super) fn load_of(context: u32) -> WrRole {
    if context & IN_FRONT != 0 {
        WrRole::InFront
    } else {
        WrRole::Last
    }
}

impl<C: RxConn> Wire<C> {
    /// Ensures that one more work request with `sges` gather elements fits into the batch.
    #[inline]
    fn make_room(&mut self, wrs: u16, sges: usize) -> Result<(), Cause> {
        let link = self.link.as_ref().ok_or(Cause::Flushed)?;
        if link.fits(wrs, sges) {
            Ok(())
        } else {
            self.flush_full()
        }
    }

    /// Books a pushed work request.
    #[inline(always)]
    fn pushed(&mut self, index: u16, load: WrRole) {
        self.txs.pushed(index, 1);
        self.flight.pushed(load);
        self.counts.one(Count::Wrs);
    }

    /// Builds a NOOP that carries `credits`.
    #[inline(never)]
    pub(super) fn post_noop(&mut self, credits: u8, cksum: bool) -> Result<(), Cause> {
        dk!(
            Net,
            "{}: transmit NOOP with {credits} credits",
            self.identity.peer
        );
        let env = self.envelope();
        let mut buf = self.buf_pool.take_for_noop().ok_or(Cause::LocalFault)?;
        let nob =
            encode(buf.as_mut_slice(), &env, &BodyOut::Noop).map_err(|_| Cause::LocalFault)?;
        self.send(NOOP, buf, nob, credits, cksum)?;
        self.flight.pushed(WrRole::Last);
        self.stats.noop_posted(credits);
        if self.noop.is_none() {
            self.noop = Some(Timestamp::now());
        }
        self.counts.one(Count::Wrs);
        self.counts.one(Count::Noops);
        Ok(())
    }

    /// Builds the work requests of a tx: REG_MR or WRITEs if needed, then the SEND; or LOCAL_INV alone.
    pub(super) fn post_tx(
        &mut self,
        (op, index): (Op, u16),
        credits: u8,
        cksum: bool,
        now: Timestamp,
    ) -> Result<(), Cause> {
        let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
        let (clock, nob, total) = transfer.measured();
        self.stats
            .posted((op, index), clock, (nob, total, credits), now);
        dk!(
            Net,
            "{}: transmit {op:?}, tx {index}, with {credits} credits",
            self.identity.peer
        );
        let message = match op {
            Op::Invalidate => return self.post_inv(index),
            Op::GetReq | Op::PutAck => {
                self.post_reg(index)?;
                self.transfer(index)?.unload()
            }
            Op::PutDone | Op::GetDone => {
                self.post_all_writes(index)?;
                self.transfer(index)?.unload()
            }
            Op::Immediate | Op::PutReq | Op::PutNak => transfer.unload(),
        };
        self.post_send(index, message, credits, cksum)
    }

    /// Returns the transfer of a tx that is being posted.
    #[inline]
    fn transfer(&mut self, index: u16) -> Result<&mut Transfer, Cause> {
        self.txs.transfer(index).ok_or(Cause::LocalFault)
    }

    #[inline(always)]
    fn post_send(
        &mut self,
        index: u16,
        message: Option<(TxBuf, usize)>,
        credits: u8,
        cksum: bool,
    ) -> Result<(), Cause> {
        let (buf, nob) = message.ok_or(Cause::LocalFault)?;
        let context = context(index, Wr::Any, WrRole::Last);
        self.send(context, buf, nob, credits, cksum)?;
        self.pushed(index, WrRole::Last);
        Ok(())
    }

    /// Seals a message and pushes its SEND.
    #[inline(always)]
    fn send(
        &mut self,
        context: u32,
        buf: TxBuf,
        nob: usize,
        credits: u8,
        cksum: bool,
    ) -> Result<(), Cause> {
        let mut buf = buf;
        finalize_hdr(buf.as_mut_slice(), nob, credits, cksum).map_err(|_| Cause::LocalFault)?;
        let nob = u32::try_from(nob).map_err(|_| Cause::LocalFault)?;
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        if let Some(buf) = link.push_send(context, buf, nob)? {
            self.send_after_all(context, buf, nob)?;
        }
        self.counts.one(Count::TxMsgs);
        Ok(())
    }

    /// Pushes the SEND after a flush, when the batch was full.
    #[cold]
    #[inline(never)]
    fn send_after_all(&mut self, context: u32, buf: TxBuf, nob: u32) -> Result<(), Cause> {
        self.flush_full()?;
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        match link.push_send(context, buf, nob)? {
            None => Ok(()),
            Some(_) => Err(Cause::LocalFault),
        }
    }

    /// Registers the key of a sink. The registration goes into the send queue right in front of the message that tells
    /// the peer.
    fn post_reg(&mut self, index: u16) -> Result<(), Cause> {
        let wrs = self.link.as_ref().ok_or(Cause::Flushed)?.wrs_per_reg();
        self.make_room(wrs, 0)?;
        let transfer = self.txs.transfer(index).ok_or(Cause::LocalFault)?;
        let sink = transfer.sink().ok_or(Cause::LocalFault)?;
        let mr = sink.take_unregistered().ok_or(Cause::LocalFault)?;
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        let mr = link.push_reg(context(index, Wr::Any, WrRole::InFront), mr)?;
        sink.registered(mr);
        // As `pushed` does for each; work requests in front of a message do not count in `flight`.
        self.txs.pushed(index, wrs);
        self.counts.more(Count::Wrs, wrs);
        Ok(())
    }

    /// Invalidates the key of a sink.
    fn post_inv(&mut self, index: u16) -> Result<(), Cause> {
        self.make_room(1, 0)?;
        let sink = self.transfer(index)?.sink().ok_or(Cause::LocalFault)?;
        let mr = sink.take_registered().ok_or(Cause::LocalFault)?;
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        link.push_inv(context(index, Wr::Invalidate, WrRole::Last), mr)?;
        self.pushed(index, WrRole::Last);
        Ok(())
    }

    /// Builds WRITEs of a tx that stays the first in line: `wrs`, if it has as many.
    // Separate function, as the next but one: most posted transmits are a message alone.
    #[inline(never)]
    pub(super) fn post_part(&mut self, index: u16, wrs: u16) -> Result<(), Cause> {
        let (pushed, left) = self.post_writes(index, wrs)?;
        if pushed == 0 {
            // The tx would stay the first in line for ever.
            return Err(Cause::LocalFault);
        }
        self.txs.chunk_posted(index, pushed, left == 0);
        Ok(())
    }

    /// Builds the WRITEs of a tx that were not built yet.
    #[inline(always)]
    fn post_all_writes(&mut self, index: u16) -> Result<(), Cause> {
        // Most often a single WRITE is enough, and needs no cursor.
        let max_sge = self.limits.max_sge();
        if let (Some(transfer), Some(link)) = (self.txs.transfer(index), &mut self.link) {
            if let Some((map, to, nob)) = transfer.single_write(max_sge) {
                if link.push_single_write(context(index, Wr::Any, WrRole::InFront), map, to, nob)? {
                    transfer.wrote(0);
                    self.pushed(index, WrRole::InFront);
                    return Ok(());
                }
            }
        }
        match self.post_writes(index, u16::MAX)? {
            (_, 0) => Ok(()),
            // The sink is smaller than before.
            _ => Err(Cause::LocalFault),
        }
    }

    /// Moves the data: one WRITE for each piece of the peer's sink, more if the pages are scattered. Continues at the
    /// current position; returns the number of WRITEs that it pushed, at most `wrs`, and the number of bytes that are
    /// left.
    #[inline(never)]
    fn post_writes(&mut self, index: u16, wrs: u16) -> Result<(u16, u32), Cause> {
        let max_sge = self.limits.max_sge();
        let context = context(index, Wr::Any, WrRole::InFront);
        let Some((mut cursor, mut aim, mut left)) = self.transfer(index)?.writes() else {
            // An error, or zero bytes: only the message is sent.
            return Ok((0, 0));
        };
        let mut pushed = 0u16;
        while left > 0 && pushed < wrs {
            let Some(to) = self.transfer(index)?.piece(aim) else {
                break;
            };
            self.make_room(1, max_sge)?;
            let link = self.link.as_mut().ok_or(Cause::Flushed)?;
            let nob = to.nob.min(left);
            let moved = link.push_write(context, to.addr, aim.key(), &mut cursor, nob)?;
            self.pushed(index, WrRole::InFront);
            pushed = pushed.saturating_add(1);
            left = left.saturating_sub(moved);
            aim.moves_on(moved, to);
        }
        self.transfer(index)?.wrote(left);
        Ok((pushed, left))
    }
}
