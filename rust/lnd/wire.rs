// SPDX-License-Identifier: GPL-2.0

//! The wire half of a connection, receiving: completions, credits, and what each message means.
//!
//! Runs in softirq, always under the connection lock. It never sleeps and never calls LNet; what
//! LNet must see goes to [`super::upper`]. A receive buffer is posted again before any message that
//! tells the peer so.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::Instant, //
};

use super::{
    conn::{
        Conn,
        Inner, //
    },
    log,
    pump,
    received::{
        Held,
        Received, //
    },
    transfer::{
        Remote,
        Transfer, //
    }, //
};
use crate::{
    lnet::dk::dk,
    proto::{
        cause::Cause,
        conn::{
            Event,
            State, //
        },
        credits::Repost,
        desc::Descriptor,
        encode::{
            encode,
            BodyOut, //
        },
        queues::{
            Queues,
            TxId, //
        },
        tx::{
            Answer,
            Op,
            Then, //
        },
        wire::{
            check_identity,
            decode,
            Body,
            Cookie,
            Done, //
        }, //
    },
    rdma::{
        handler::{
            QpHandler,
            SendsDone, //
        },
        recv_ring::RecvDone,
        wc::{
            QpEvent,
            WcStatus, //
        }, //
    }, //
};

impl QpHandler for Conn {
    fn sends_done(this: &Arc<Self>, done: &mut SendsDone<'_, Self>) {
        let mut guard = this.lock();
        let inner = &mut *guard;
        inner.counts.cqes = inner.counts.cqes.wrapping_add(1);
        let mut good = false;
        for one in done {
            inner.counts.retired = inner.counts.retired.wrapping_add(1);
            let result = outcome(one.wc.status);
            pump::retire(inner, one.ctx, one.buf, result);
            match result {
                Ok(()) => good = true,
                Err(cause) => {
                    if one.wc.status == WcStatus::RnrRetryExc {
                        inner.counts.rnr = inner.counts.rnr.wrapping_add(1);
                    }
                    if cause != Cause::Flushed {
                        log::wr_failed(this.nid(), "a send", one.wc);
                    }
                    this.step(inner, Event::Fail(cause));
                }
            }
        }
        if good {
            this.heard();
        }
        pump::pump(this, inner, false);
        this.kick_upper(inner);
    }

    fn recv_done(this: &Arc<Self>, done: RecvDone) {
        let mut guard = this.lock();
        let inner = &mut *guard;
        inner.counts.recv_cqes = inner.counts.recv_cqes.wrapping_add(1);
        if let Err(cause) = recv_outcome(done.wc.status) {
            // A flush follows from something that is known already, or soon.
            if cause != Cause::Flushed {
                log::wr_failed(this.nid(), "a receive", done.wc);
            } else if inner.fsm.state() < State::Established {
                // The CM moves the queue pair to the error state before it tells that the request
                // was refused. Its answer is the cause, and decides whether to try again.
                return;
            }
            this.step(inner, Event::Fail(cause));
            return;
        }
        if !done.plain {
            log::not_a_send(this.nid());
            this.step(inner, Event::Fail(Cause::Protocol));
            return;
        }
        inner.last_recv = Instant::now();
        this.heard();
        let Ok(nob) = usize::try_from(done.len) else {
            return;
        };
        let msg = Received {
            buf: Held::Mapped(done.buf),
            nob,
            facts: None,
            replaced: false,
        };
        match inner.fsm.state() {
            State::Init | State::Resolving | State::Connecting => {
                // The peer's CONNACK is still in the CM's queue: its first messages wait for it.
                if inner.early.push(msg).is_err() {
                    this.step(inner, Event::Fail(Cause::Protocol));
                }
                return;
            }
            State::Accepting => this.step(inner, Event::EarlyTraffic),
            State::Established => {}
            State::Closing | State::Draining | State::Dead => return,
        }
        received(this, inner, msg);
        pump::pump(this, inner, false);
        this.kick_upper(inner);
    }

    fn drained(this: Arc<Self>) {
        this.event(Event::Drained);
    }

    /// Hard interrupt context is possible: only the worker is queued.
    fn async_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        match event {
            QpEvent::CommEst | QpEvent::Fatal | QpEvent::ReqErr | QpEvent::AccessErr => {
                let this: Arc<Self> = this.into();
                this.note_qp_event(event);
            }
            QpEvent::SqDrained
            | QpEvent::PathMig
            | QpEvent::PathMigErr
            | QpEvent::LastWqeReached
            | QpEvent::Other(_) => {}
        }
    }
}

/// What a completion status says about the request, and about whom to blame.
fn outcome(status: WcStatus) -> Result<(), Cause> {
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

/// The same of a receive: there the peer chose the length and the operation, and our buffers are
/// all alike and registered.
fn recv_outcome(status: WcStatus) -> Result<(), Cause> {
    match status {
        WcStatus::LocLen | WcStatus::LocAccess => Err(Cause::RemoteFault),
        other => outcome(other),
    }
}

/// Takes what came before our own ESTABLISHED event (active side).
pub(crate) fn received_early(conn: &Arc<Conn>, inner: &mut Inner) {
    while let Some(msg) = inner.early.pop() {
        received(conn, inner, msg);
    }
    conn.kick_upper(inner);
}

/// Takes one message. Whatever is wrong with it ends the connection.
fn received(conn: &Arc<Conn>, inner: &mut Inner, msg: Received) {
    if !inner.is_up() {
        return;
    }
    inner.counts.rx_msgs = inner.counts.rx_msgs.wrapping_add(1);
    if let Err(cause) = handle(inner, conn.mask, msg) {
        conn.step(inner, Event::Fail(cause));
    }
}

fn handle(inner: &mut Inner, mask: u64, msg: Received) -> Result<(), Cause> {
    let m = decode(msg.bytes()).map_err(|e| {
        log::bad_message(&inner.identity, &e);
        Cause::Protocol
    })?;
    check_identity(&m.env, &inner.identity).map_err(|e| {
        log::stale_message(&inner.identity, &e);
        Cause::PeerRestarted
    })?;
    dk!(
        Net,
        "{}: received {:?} of {} bytes with {} credits",
        inner.identity.peer,
        m.body.kind(),
        m.nob,
        m.env.credits
    );
    // The credits come first: they count whatever the message says.
    inner
        .credits
        .returned(m.env.credits)
        .map_err(|e| log::bad_credits(&inner.identity, e))?;
    let repost = match m.body {
        Body::Noop => Repost::Plain,
        Body::Immediate { .. } | Body::PutReq { .. } | Body::GetReq { .. } => {
            inner
                .credits
                .request_received()
                .map_err(|e| log::bad_credits(&inner.identity, e))?;
            inner.with_lnet = inner.with_lnet.saturating_add(1);
            let facts = m.facts();
            let mut msg = msg;
            msg.facts = Some(facts);
            replace(inner, &mut msg)?;
            return inner.rx.push(msg).map_err(|_| Cause::Protocol);
        }
        Body::PutAck { src, dst, rd } => {
            put_ack(inner, mask, src, dst, &rd)?;
            Repost::ForAnswer
        }
        Body::PutNak(done) => {
            answer(inner, mask, done.cookie, |_| Answer::PutNak(done.status))?;
            Repost::ForAnswer
        }
        Body::GetDone(done) => {
            answer(inner, mask, done.cookie, |t| {
                Answer::GetDone(judge(done.status, false, t))
            })?;
            Repost::ForAnswer
        }
        Body::PutDone(done) => {
            answer(inner, mask, done.cookie, |t| {
                Answer::PutDone(judge(done.status, true, t))
            })?;
            Repost::ForPeer
        }
        Body::ConnReq(_) | Body::ConnAck(_) => return Err(Cause::Protocol),
    };
    let urgent = matches!(m.body, Body::Noop);
    give_back(inner, msg, repost)?;
    if urgent {
        // No credit covers the buffers of NOOPs: the next one may be on its way.
        inner.link.as_mut().ok_or(Cause::Flushed)?.post_recvs()?;
    }
    Ok(())
}

/// Posts a spare buffer in place of the one a request came in, which LNet may keep for long.
/// Without a spare the place stays empty until LNet gives the buffer back: the peer cannot notice,
/// for its credit is withheld as long.
fn replace(inner: &mut Inner, msg: &mut Received) -> Result<(), Cause> {
    let Some(spare) = inner.spares.pop() else {
        return Ok(());
    };
    msg.replaced = true;
    let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
    link.push_recv(spare)
}

/// Posts a receive buffer again, unless another one was posted for it, and books it.
pub(crate) fn give_back(inner: &mut Inner, msg: Received, how: Repost) -> Result<(), Cause> {
    if !inner.may_receive() {
        return Ok(());
    }
    let link = inner.link.as_mut().ok_or(Cause::Flushed)?;
    match msg.buf {
        // Beyond the capacity it is freed.
        Held::Mapped(buf) if msg.replaced => drop(inner.spares.push_within_capacity(buf)),
        Held::Mapped(buf) => link.push_recv(buf)?,
        Held::Detached(_) | Held::Nothing => {}
    }
    inner
        .credits
        .reposted(how)
        .map_err(|e| log::bad_credits(&inner.identity, e))
}

/// What a completion message says of a sink: an errno, or a byte count, which must be all of it for
/// a PUT and may be less for a GET.
fn judge(status: i32, all: bool, transfer: &mut Transfer) -> Result<(), Cause> {
    let Ok(n) = u32::try_from(status) else {
        return Err(Cause::Told(status));
    };
    if n > transfer.total || (all && n != transfer.total) {
        return Err(Cause::Protocol);
    }
    transfer.arrived = n;
    Ok(())
}

/// The tx a cookie names, if the peer may name it.
fn find(inner: &mut Inner, mask: u64, cookie: Cookie) -> Result<u16, Cause> {
    TxId::from_cookie(cookie.0, mask)
        .and_then(|id| Queues::find(&inner.cells, id))
        .ok_or(Cause::Protocol)
}

/// Matches an answer to its tx.
fn answer(
    inner: &mut Inner,
    mask: u64,
    cookie: Cookie,
    make: impl FnOnce(&mut Transfer) -> Answer,
) -> Result<(), Cause> {
    let index = find(inner, mask, cookie)?;
    let answer = make(inner.transfer(index).ok_or(Cause::Protocol)?);
    // What may follow is a LOCAL_INV.
    step_tx(inner, index, answer, 1)
}

/// `slots` is what the next post of the tx takes, if it is queued again.
fn step_tx(inner: &mut Inner, index: u16, answer: Answer, slots: u16) -> Result<(), Cause> {
    let cell = inner
        .cells
        .get_mut(usize::from(index))
        .ok_or(Cause::Protocol)?;
    let then = cell.tx.answered(answer);
    if then == Then::Requeue {
        cell.slots = slots;
    }
    match inner.queues.follow(&mut inner.cells, index, then) {
        true => Err(Cause::Protocol),
        false => Ok(()),
    }
}

/// A PUT_ACK: where the data of our PUT goes. If the WRITEs cannot be built the peer is told by
/// PUT_DONE, and our own message ends with the same error.
fn put_ack(
    inner: &mut Inner,
    mask: u64,
    src: Cookie,
    dst: Cookie,
    rd: &Descriptor<'_>,
) -> Result<(), Cause> {
    let index = find(inner, mask, src)?;
    let env = inner.envelope();
    let limits = inner.limits();
    let cell = inner
        .cells
        .get_mut(usize::from(index))
        .ok_or(Cause::Protocol)?;
    let transfer = inner
        .txs
        .get_mut(usize::from(index))
        .and_then(Option::as_mut)
        .ok_or(Cause::Protocol)?;
    // The sink may want less than we offered, never more.
    if cell.tx.op() != Op::PutReq || rd.total() > transfer.total {
        return Err(Cause::Protocol);
    }
    // From here on the transfer is what the sink wants of it.
    transfer.total = rd.total();
    let plan = Remote::new(rd).and_then(|remote| {
        let slots = transfer.slots(&remote, limits)?;
        let status = i32::try_from(rd.total())?;
        Ok((remote, slots, status))
    });
    let (slots, status) = match plan {
        Ok((remote, slots, status)) => {
            transfer.remote = Some(remote);
            (slots, status)
        }
        Err(e) => {
            cell.tx.latch(Cause::Local(e.to_errno()));
            (1, e.to_errno())
        }
    };
    // The buffer of the PUT_REQ may still be in the send queue.
    let mut buf = transfer.spare.take().ok_or(Cause::LocalFault)?;
    let done = BodyOut::PutDone(Done {
        cookie: dst,
        status,
    });
    transfer.nob = encode(buf.as_mut_slice(), &env, &done).map_err(|_| Cause::LocalFault)?;
    transfer.buf = Some(buf);
    // The time the sink took to answer does not count against the WRITEs (protocol section 4.15).
    transfer.since = Instant::now();
    step_tx(inner, index, Answer::PutAck, slots)
}
