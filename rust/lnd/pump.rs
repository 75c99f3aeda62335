// SPDX-License-Identifier: GPL-2.0

//! The wire half of a connection, sending: builds work requests for whatever may go, and rings the
//! doorbell.
//!
//! Runs in softirq and in process context, always under the connection lock: the order on the wire
//! must be the order of the credits.

use kernel::{
    prelude::*,
    sync::Arc,
    time::Instant, //
};

use super::{
    conn::{
        Conn,
        Inner, //
    },
    log,
    transfer::{
        Key,
        Memory,
        Transfer, //
    }, //
};
use crate::{
    lnet::dk::dk,
    proto::{
        cause::Cause,
        conn::Event,
        encode::{
            encode,
            seal,
            BodyOut, //
        },
        queues::Next,
        tx::{
            Op,
            Wr, //
        },
        wire::Fragment, //
    },
    rdma::buf::TxBuf, //
};

/// Context of a NOOP's work request. Others are made by [`context`].
const NOOP: u32 = u32::MAX;
/// Set in the context of a LOCAL_INV.
const INVALIDATE: u32 = 1 << 16;

/// What the send queue gives back with the completion of a work request of the tx at `index`.
fn context(index: u16, wr: Wr) -> u32 {
    match wr {
        Wr::Any => u32::from(index),
        Wr::Invalidate => u32::from(index) | INVALIDATE,
    }
}

/// Books the end of one send work request.
pub(crate) fn retire(
    inner: &mut Inner,
    context: u32,
    buf: Option<TxBuf>,
    result: Result<(), Cause>,
) {
    if context == NOOP {
        inner.credits.noop_completed();
        if let Some(buf) = buf {
            // Two are in use at most, and there is room for two.
            let _ = inner.noop_bufs.push_within_capacity(buf);
        }
        return;
    }
    if let Some(buf) = buf {
        // Beyond the capacity it is freed.
        let _ = inner.bufs.push_within_capacity(buf);
    }
    let wr = if context & INVALIDATE != 0 {
        Wr::Invalidate
    } else {
        Wr::Any
    };
    let Ok(index) = u16::try_from(context & !INVALIDATE) else {
        return;
    };
    if let Some(cell) = inner.cells.get_mut(usize::from(index)) {
        let then = cell.tx.completed(wr, result);
        // A completion is never the peer's violation.
        let _ = inner.queues.follow(&mut inner.cells, index, then);
    }
}

/// Posts all that may go, with as few doorbells as possible. A NOOP goes if nothing else does, and
/// the peer is to be probed, or stands still.
pub(crate) fn pump(conn: &Arc<Conn>, inner: &mut Inner, probe: bool) {
    if !inner.is_up() {
        return;
    }
    // The LNet half gives the credits of these back, and pumps.
    let patient = !inner.rx.is_empty();
    let mut keepalive = probe || inner.must_feed_peer();
    if inner.pushed.is_empty() && inner.queues.is_quiet(&inner.credits, keepalive) {
        return;
    }
    if let Some(link) = &mut inner.link {
        link.look_for_slots();
    }
    let built = loop {
        let free = inner.link.as_ref().map_or(0, |link| link.slots());
        let next = inner.queues.next(
            &mut inner.cells,
            &mut inner.credits,
            free,
            keepalive,
            patient,
        );
        keepalive = false;
        let built = match next {
            Next::Post { index, carried } => {
                let cksum = conn.ni.cksum();
                post_tx(inner, index, carried.unwrap_or(0), cksum)
            }
            Next::Noop { carried } => post_noop(inner, carried, conn.ni.cksum()),
            Next::NoSlots => {
                inner.counts.no_slots = inner.counts.no_slots.wrapping_add(1);
                break Ok(());
            }
            Next::NoCredit => {
                inner.counts.no_credit = inner.counts.no_credit.wrapping_add(1);
                break Ok(());
            }
            Next::Empty => break Ok(()),
        };
        if built.is_err() {
            break built;
        }
    };
    // Also after a failure: what was pushed completes only if it is posted.
    let flushed = match inner.pushed.is_empty() {
        true => Ok(()),
        false => flush(inner),
    };
    if let Err(cause) = built.and(flushed) {
        log::post_failed(conn.nid());
        conn.step(inner, Event::Fail(cause));
    }
}

/// Rings the doorbell for what was pushed.
fn flush(inner: &mut Inner) -> Result<(), Cause> {
    let Some(link) = inner.link.as_mut() else {
        return Ok(());
    };
    if inner.pushed.is_empty() {
        return Ok(());
    }
    // What is about to be sent may tell the peer of buffers, or ask for an answer that needs one.
    let taken = match link.post_recvs() {
        Ok(()) => {
            inner.counts.doorbells = inner.counts.doorbells.wrapping_add(1);
            inner.last_send = Instant::now();
            let Err(error) = link.post() else {
                inner.pushed.clear();
                return Ok(());
            };
            usize::try_from(error.posted).unwrap_or(usize::MAX)
        }
        Err(_) => {
            link.discard();
            0
        }
    };
    // What the device did not take will not complete by itself.
    let pushed = core::mem::take(&mut inner.pushed);
    for context in pushed.iter().skip(taken) {
        retire(inner, *context, None, Err(Cause::LocalFault));
    }
    Err(Cause::LocalFault)
}

/// Makes sure that one more work request with `sges` gather elements fits into the batch.
fn make_room(inner: &mut Inner, wrs: u16, sges: usize) -> Result<(), Cause> {
    let room = inner.link.as_ref().ok_or(Cause::Flushed)?.room();
    let wrs = usize::from(wrs);
    let books = inner.pushed.capacity().saturating_sub(inner.pushed.len());
    if room.wrs >= wrs && room.sges >= sges && books >= wrs {
        Ok(())
    } else {
        flush(inner)
    }
}

/// Books a work request that was pushed.
fn pushed(inner: &mut Inner, index: u16, context: u32) {
    if let Some(cell) = inner.cells.get_mut(usize::from(index)) {
        cell.tx.pushed();
    }
    book(inner, context);
}

fn book(inner: &mut Inner, context: u32) {
    inner.counts.wrs = inner.counts.wrs.wrapping_add(1);
    // `make_room` saw to it.
    let _ = inner.pushed.push_within_capacity(context);
}

/// Builds a NOOP that carries `credits`.
fn post_noop(inner: &mut Inner, credits: u8, cksum: bool) -> Result<(), Cause> {
    dk!(
        Net,
        "{}: transmit NOOP with {credits} credits",
        inner.identity.peer
    );
    make_room(inner, 1, 1)?;
    let env = inner.envelope();
    let mut buf = inner.noop_bufs.pop().ok_or(Cause::LocalFault)?;
    let nob = encode(buf.as_mut_slice(), &env, &BodyOut::Noop).map_err(|_| Cause::LocalFault)?;
    send(inner, NOOP, buf, nob, credits, cksum)?;
    book(inner, NOOP);
    inner.counts.noops = inner.counts.noops.wrapping_add(1);
    Ok(())
}

/// Builds the work requests of a tx: REG_MR or WRITEs if need be, then the SEND; or LOCAL_INV alone.
fn post_tx(inner: &mut Inner, index: u16, credits: u8, cksum: bool) -> Result<(), Cause> {
    let cell = inner
        .cells
        .get_mut(usize::from(index))
        .ok_or(Cause::LocalFault)?;
    cell.tx.posting();
    let op = cell.tx.op();
    dk!(
        Net,
        "{}: transmit {op:?}, tx {index}, with {credits} credits",
        inner.identity.peer
    );
    match op {
        Op::Invalidate => return post_inv(inner, index),
        Op::GetReq | Op::PutAck => post_reg(inner, index)?,
        Op::PutDone | Op::GetDone => post_writes(inner, index)?,
        Op::Immediate | Op::PutReq | Op::PutNak => {}
    }
    post_send(inner, index, credits, cksum)
}

/// The transfer of a tx that is being posted.
fn transfer(inner: &mut Inner, index: u16) -> Result<&mut Transfer, Cause> {
    inner.transfer(index).ok_or(Cause::LocalFault)
}

/// The key of a tx whose memory is a sink.
fn key(inner: &mut Inner, index: u16) -> Result<&mut Key, Cause> {
    match &mut transfer(inner, index)?.memory {
        Memory::Sink(sink) => Ok(&mut sink.key),
        _ => Err(Cause::LocalFault),
    }
}

fn post_send(inner: &mut Inner, index: u16, credits: u8, cksum: bool) -> Result<(), Cause> {
    make_room(inner, 1, 1)?;
    let transfer = transfer(inner, index)?;
    let nob = transfer.nob;
    let buf = transfer.buf.take().ok_or(Cause::LocalFault)?;
    let context = context(index, Wr::Any);
    send(inner, context, buf, nob, credits, cksum)?;
    pushed(inner, index, context);
    Ok(())
}

/// Seals a message and pushes its SEND.
fn send(
    inner: &mut Inner,
    context: u32,
    buf: TxBuf,
    nob: usize,
    credits: u8,
    cksum: bool,
) -> Result<(), Cause> {
    let mut buf = buf;
    seal(buf.as_mut_slice(), nob, credits, cksum).map_err(|_| Cause::LocalFault)?;
    let nob = u32::try_from(nob).map_err(|_| Cause::LocalFault)?;
    let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
    link.push_send(context, buf, nob)?;
    inner.counts.tx_msgs = inner.counts.tx_msgs.wrapping_add(1);
    Ok(())
}

/// Arms the key of a sink. It goes into the send queue right in front of the message that tells the
/// peer.
fn post_reg(inner: &mut Inner, index: u16) -> Result<(), Cause> {
    let wrs = inner.link.as_ref().ok_or(Cause::Flushed)?.reg_wrs();
    make_room(inner, wrs, 0)?;
    let Key::Mapped(mr) = core::mem::replace(key(inner, index)?, Key::Dead) else {
        return Err(Cause::LocalFault);
    };
    let context = context(index, Wr::Any);
    let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
    let mr = link.push_reg(context, mr)?;
    *key(inner, index)? = Key::Valid(mr);
    for _ in 0..wrs {
        pushed(inner, index, context);
    }
    Ok(())
}

/// Kills the key of a sink.
fn post_inv(inner: &mut Inner, index: u16) -> Result<(), Cause> {
    make_room(inner, 1, 0)?;
    let Key::Valid(mr) = core::mem::replace(key(inner, index)?, Key::Dead) else {
        return Err(Cause::LocalFault);
    };
    let context = context(index, Wr::Invalidate);
    let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
    link.push_inv(context, mr)?;
    pushed(inner, index, context);
    Ok(())
}

/// Moves the data: one WRITE for each piece of the peer's sink, more if the pages are scattered.
fn post_writes(inner: &mut Inner, index: u16) -> Result<(), Cause> {
    let max_sge = inner.limits().max_sge;
    let context = context(index, Wr::Any);
    let transfer = transfer(inner, index)?;
    let (Memory::Source(map), Some(remote)) = (&transfer.memory, &transfer.remote) else {
        // An error, or zero bytes: only the message goes.
        return Ok(());
    };
    let mut cursor = map.cursor();
    let mut total = transfer.total;
    let key = remote.key();
    let mut at = 0;
    while let Some(fragment) = remote_fragment(inner, index, at) {
        let mut addr = fragment.addr;
        let mut left = fragment.nob.min(total);
        total = total.saturating_sub(left);
        while left > 0 {
            make_room(inner, 1, max_sge)?;
            let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
            let n = link.push_write(context, addr, key, &mut cursor, left)?;
            pushed(inner, index, context);
            addr = addr.wrapping_add(u64::from(n));
            left = left.saturating_sub(n);
        }
        at = at.saturating_add(1);
    }
    if total > 0 {
        return Err(Cause::LocalFault);
    }
    Ok(())
}

/// The piece number `at` of the peer's sink.
fn remote_fragment(inner: &mut Inner, index: u16, at: usize) -> Option<Fragment> {
    inner.transfer(index)?.remote.as_ref()?.fragment(at)
}

/// The peer has connected anew, and maybe it closed this connection and its DREQ got lost; or another
/// of its connections broke. Until it is heard of, or acknowledges a NOOP, others are preferred. If it
/// does neither, the transport's retries end the connection.
pub(crate) fn probe(conn: &Arc<Conn>) {
    let mut guard = conn.lock();
    let inner = &mut *guard;
    if inner.is_up() {
        conn.set_doubted();
        pump(conn, inner, true);
    }
}
