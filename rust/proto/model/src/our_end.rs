// SPDX-License-Identifier: GPL-2.0

//! Our end of a connection: the real credits, queues and transmits, with as little around them as the driver has. Each
//! function names the function of `rust/lnd/` that it models; the steps are the same, in the same order.
//!
//! Beside the real queues runs a plain copy of what they should contain, which is compared at each
//! step: the lists through the cells are order-preserving or the model stops.

use std::collections::VecDeque;

use ro2iblnd_proto::{
    cause::Cause,
    constants::QueueDepth,
    credits::{
        Cost,
        Credits,
        Repost, //
    },
    tx_state::{
        Answer,
        Op,
        Tx,
        TxState,
        Wr, //
    },
    tx_table::{
        NextTx,
        QueueKind,
        TxSlot,
        TxTable,
        NOOP_SLOTS, //
    },
    wire::Cookie, //
};

use crate::{
    messages::{
        Body,
        Msg,
        Names,
        Side, //
    },
    search::Fault, //
};

/// Purpose of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The SEND of a NOOP.
    Noop,
    /// A SEND of the tx at this index.
    Send(u16),
    /// A REG_MR or WRITE of it: completes with what is signalled behind it.
    Quiet(u16),
    /// A WRITE of it, the last of its batch.
    Write(u16),
    /// A LOCAL_INV of it.
    Invalidate(u16),
}

/// State of the driver beside a tx (`lnd/conn/tx_payload.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The peer's cookie, once there is one.
    pub peer: u64,
    /// Whether data moves with PUT_DONE or GET_DONE.
    pub data: bool,
    /// Number of the LNet message.
    pub tag: u8,
}

/// A request that LNet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The request.
    pub body: Body,
    /// Number of the LNet message.
    pub tag: u8,
}

/// Reason why the driver would close the connection.
pub const VIOLATION: &str = "the peer broke the protocol";

/// Our end.
#[derive(Clone, Debug)]
pub struct Ours {
    side: Side,
    /// The credit word.
    pub credits: Credits,
    /// The transmits and their queues.
    pub txs: TxTable<Vec<TxSlot<Transfer>>>,
    /// Cookie of the last tx of each slot.
    cookies: Vec<u64>,
    /// The send queue.
    pub sq: VecDeque<Work>,
    sq_size: u16,
    /// Work requests of a transfer, its message included.
    pub chain: u16,
    /// Posted receive buffers.
    pub posted: u16,
    /// Receive buffers that go with the next doorbell. The driver also posts them when there are
    /// many, or in place of those that LNet has; without that there are fewer here than there,
    /// never more.
    unposted: u16,
    /// Requests that were received and validated, and that LNet has not given back.
    pub held: Vec<Held>,
    /// Requests accepted as sinks whose PUT_DONE has not come.
    pub sinks: u16,
    /// Requests that reserved a buffer and have not been answered.
    pub asked: u16,
    /// Expected contents of the real queues: unreserved, free of credit, main.
    copy: [VecDeque<u16>; 3],
    /// Finished, in order, for [`Ours::take_done`].
    done: VecDeque<u16>,
}

/// Returns the mask of the cookies of a side.
fn mask(side: Side) -> u64 {
    [0x5ca1_ab1e_0000_0000, 0x0000_b1ab_1e00_1234][side]
}

impl Ours {
    /// Creates the state after establishment (`Inner::agreed`), with all receives posted.
    pub fn new(side: Side, depth: QueueDepth, high_water: u8, sq_size: u16, cells: usize) -> Self {
        let mut txs = TxTable::new(vec![TxSlot::FREE; cells], mask(side));
        txs.open(sq_size.saturating_sub(NOOP_SLOTS));
        Self {
            side,
            credits: Credits::new(depth, high_water),
            txs,
            cookies: vec![0; cells],
            sq: VecDeque::new(),
            sq_size,
            chain: 2,
            posted: depth.rx_buffers(),
            unposted: 0,
            held: Vec::new(),
            sinks: 0,
            asked: 0,
            copy: Default::default(),
            done: VecDeque::new(),
        }
    }

    /// Models `Conn::submit`, without the pump behind it. False: no free tx.
    pub fn submit(&mut self, op: Op, slots: u16, transfer: Transfer) -> Result<bool, Fault> {
        let Some((index, cookie, slot)) = self.txs.alloc(op) else {
            return Ok(false);
        };
        self.cookies[usize::from(index)] = cookie.0;
        if slot.transfer().is_some() {
            return Err("a slot in use was given out".into());
        }
        slot.fill(transfer);
        self.txs.queue(index, slots);
        self.copy[self.queue_of(index)].push_back(index);
        self.compare()?;
        Ok(true)
    }

    fn slot(&self, index: u16) -> Result<&TxSlot<Transfer>, Fault> {
        self.txs.get(index).ok_or_else(|| "no such slot".into())
    }

    /// Models `QpHandle::post_recvs`.
    fn post_recvs(&mut self) {
        self.posted += std::mem::take(&mut self.unposted);
    }

    /// Returns whether `pump` with `keepalive` because of `Credits::starves_peer` does something.
    pub fn feeds_peer(&self) -> bool {
        let queued = |queue| self.txs.queued(queue) > 0;
        let (free, main) = (queued(QueueKind::FreeOfCredit), queued(QueueKind::Main));
        let slot = self.sq.len() < usize::from(self.sq_size);
        self.credits.starves_peer() && self.credits.wants_noop(free, main, true) && slot
    }

    /// Models `post::pump`.
    pub fn pump(&mut self, keepalive: bool, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        let probe = keepalive;
        let mut keepalive = keepalive;
        let patient = !probe && !self.held.is_empty();
        let pushed = self.sq.len();
        loop {
            let free = self.sq_size - self.sq.len() as u16;
            let before = self.txs.queued(QueueKind::Unreserved);
            let next = self.txs.next(&mut self.credits, free, keepalive, patient);
            keepalive = false;
            for _ in self.txs.queued(QueueKind::Unreserved)..before {
                let moved = self.copy[0].pop_front().ok_or("moved from nowhere")?;
                self.copy[2].push_back(moved);
                self.asked += 1;
            }
            match next {
                NextTx::Post { index, carried, .. } => self.post_tx(index, carried, out)?,
                NextTx::Noop { carried } => {
                    if carried == 0 && before == 0 && free == 0 {
                        return Err("a NOOP without a slot".into());
                    }
                    self.push(Work::Noop)?;
                    out.push_back(Msg {
                        body: Body::Noop,
                        credits: carried,
                        tag: 0,
                    });
                }
                NextTx::Part { index, wrs } => self.post_part(index, wrs)?,
                NextTx::NoSlots | NextTx::NoCredit | NextTx::Empty => break,
            }
        }
        // `post::flush`: receives first, what is sent may tell the peer of them.
        if self.sq.len() > pushed {
            self.post_recvs();
            // `Batch::end`.
            if let Some(Work::Quiet(index)) = self.sq.back().copied() {
                self.sq.pop_back();
                self.sq.push_back(Work::Write(index));
            }
        }
        let may_go = self.txs.queued(QueueKind::Main) > 0 && self.credits.credits() > 0;
        if probe && may_go && self.sq.is_empty() {
            return Err("a dead peer is not probed, although a message may go".into());
        }
        self.compare()
    }

    /// Models `post::post_part`: WRITEs alone.
    fn post_part(&mut self, index: u16, wrs: u16) -> Result<(), Fault> {
        if self.copy[1].front() != Some(&index) {
            return Err("a part of what is not the first in line".into());
        }
        if !matches!(self.slot(index)?.tx().op(), Op::PutDone | Op::GetDone) {
            return Err("a part of what has no WRITEs".into());
        }
        let left = self.slot(index)?.slots;
        if wrs == 0 || wrs >= left {
            return Err("a part that is nothing, or all".into());
        }
        for _ in 0..wrs {
            self.push(Work::Quiet(index))?;
            self.pushed(index);
        }
        self.txs.chunk_posted(index, wrs, wrs == left - 1);
        Ok(())
    }

    /// Models `Inner::post_tx` (`post.rs`) with `post_reg`, `post_writes`, `post_send` and `post_inv`.
    fn post_tx(&mut self, index: u16, credits: u8, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        let queue = if self.copy[1].front() == Some(&index) {
            1
        } else {
            2
        };
        if self.copy[queue].pop_front() != Some(index) {
            return Err("the pump broke the order of a queue".into());
        }
        let slot = self.slot(index)?;
        let (op, slots) = (slot.tx().op(), slot.slots);
        let transfer = *slot.transfer().ok_or("posting a tx without a transfer")?;
        let own = self.cookie(index);
        let quiet = match op {
            Op::GetReq | Op::PutAck => 1,
            Op::PutDone | Op::GetDone => slots.saturating_sub(1),
            _ => 0,
        };
        for _ in 0..quiet {
            self.push(Work::Quiet(index))?;
            self.pushed(index);
        }
        let body = match op {
            Op::Immediate => Body::Immediate,
            Op::PutReq => Body::PutReq(own),
            Op::GetReq => Body::GetReq(own),
            Op::PutAck => Body::PutAck(transfer.peer, own),
            Op::PutNak => Body::PutNak(transfer.peer),
            Op::PutDone => Body::PutDone(transfer.peer, transfer.data),
            Op::GetDone => Body::GetDone(transfer.peer, transfer.data),
            Op::Invalidate => {
                self.push(Work::Invalidate(index))?;
                self.pushed(index);
                return Ok(());
            }
        };
        self.push(Work::Send(index))?;
        self.pushed(index);
        out.push_back(Msg {
            body,
            credits,
            tag: transfer.tag,
        });
        Ok(())
    }

    fn push(&mut self, work: Work) -> Result<(), Fault> {
        if self.sq.len() >= usize::from(self.sq_size) {
            return Err("the send queue overflows".into());
        }
        self.sq.push_back(work);
        Ok(())
    }

    /// Models `CompletionReceiver::sent`: the next completion, which also retires the unsignalled ones before
    /// it. Without the pump behind it.
    pub fn complete(&mut self) -> Result<(), Fault> {
        while let Some(work) = self.retire(Ok(()))? {
            if !matches!(work, Work::Quiet(_)) {
                break;
            }
        }
        Ok(())
    }

    /// Models `post::retire` for the oldest work request.
    pub fn retire(&mut self, result: Result<(), Cause>) -> Result<Option<Work>, Fault> {
        let Some(work) = self.sq.pop_front() else {
            return Ok(None);
        };
        let (index, wr) = match work {
            Work::Noop => {
                self.credits.noop_completed();
                return Ok(Some(work));
            }
            Work::Send(index) | Work::Write(index) | Work::Quiet(index) => (index, Wr::Any),
            Work::Invalidate(index) => (index, Wr::Invalidate),
        };
        let place = self.slot(index)?.tx().place();
        self.txs.completed(index, wr, result);
        self.note_follow(index, place)?;
        Ok(Some(work))
    }

    /// Models `post::flush` when the device refuses the batch from its work request number `taken` on:
    /// what was pushed since the send queue had `before` entries. Returns how many of the messages
    /// were accepted.
    pub fn refuse(&mut self, before: usize, taken: usize) -> Result<usize, Fault> {
        let refused = self.sq.split_off((before + taken).min(self.sq.len()));
        let is_message = |w: &&Work| matches!(w, Work::Noop | Work::Send(_));
        let sent = self.sq.iter().skip(before).filter(is_message).count();
        let waiting = std::mem::replace(&mut self.sq, refused);
        while self.retire(Err(Cause::LocalFault))?.is_some() {}
        self.sq = waiting;
        Ok(sent)
    }

    /// Models `Inner::receive`, without the pump behind it.
    ///
    /// # Errors
    ///
    /// [`VIOLATION`] where the driver closes the connection.
    pub fn received(&mut self, msg: Msg) -> Result<(), Fault> {
        if self.posted == 0 {
            return Err("a message meets no receive buffer (RNR)".into());
        }
        self.posted -= 1;
        self.credits.returned(msg.credits).map_err(|e| broke(&e))?;
        let repost = match msg.body {
            Body::Noop => Repost::Plain,
            body @ (Body::Immediate | Body::PutReq(_) | Body::GetReq(_)) => {
                self.credits.request_received().map_err(|e| broke(&e))?;
                if body != Body::Immediate {
                    self.credits.answer_owed().map_err(|e| broke(&e))?;
                }
                self.held.push(Held { body, tag: msg.tag });
                return Ok(());
            }
            Body::PutAck(src, dst) => {
                let index = self.find(src)?;
                let transfer = self.txs.transfer(index).ok_or("no transfer")?;
                transfer.peer = dst;
                transfer.data = true;
                self.answer(index, Answer::PutAck, self.chain)?;
                Repost::ForAnswer
            }
            Body::PutNak(c) => {
                let index = self.find(c)?;
                self.answer(index, Answer::PutNak(0), 1)?;
                Repost::ForAnswer
            }
            Body::GetDone(c, _) => {
                let index = self.find(c)?;
                self.answer(index, Answer::GetDone(Ok(())), 1)?;
                Repost::ForAnswer
            }
            Body::PutDone(c, _) => {
                let index = self.find(c)?;
                self.answer(index, Answer::PutDone(Ok(())), 1)?;
                self.sinks -= 1;
                Repost::ForPeer
            }
        };
        self.give_back(repost)?;
        if msg.body == Body::Noop {
            self.post_recvs();
        }
        Ok(())
    }

    /// Models `Inner::give_back`.
    pub fn give_back(&mut self, how: Repost) -> Result<(), Fault> {
        self.unposted += 1;
        if how == Repost::ForAnswer {
            self.asked -= 1;
        }
        self.credits.reposted(how).map_err(|e| broke(&e))
    }

    fn find(&self, cookie: u64) -> Result<u16, Fault> {
        let found = self.txs.find(Cookie(cookie));
        found.ok_or_else(|| format!("{VIOLATION}: unknown cookie"))
    }

    /// Models `Inner::answer`.
    fn answer(&mut self, index: u16, answer: Answer, slots: u16) -> Result<(), Fault> {
        let tx = *self.slot(index)?.tx();
        if self.txs.answered(index, answer, slots).is_err() {
            return Err(format!("{VIOLATION}: {answer:?} in {tx:?}"));
        }
        self.note_follow(index, tx.place())
    }

    /// Follows the tx at `index`, which was in the state `before`, into its list.
    fn note_follow(&mut self, index: u16, before: TxState) -> Result<(), Fault> {
        let queued = |place| place == TxState::Queued;
        match self.slot(index)?.tx().place() {
            now if queued(now) && !queued(before) => {
                self.copy[self.queue_of(index)].push_back(index);
            }
            TxState::Done if before != TxState::Done => self.done.push_back(index),
            _ => {}
        }
        self.compare()
    }

    fn queue_of(&self, index: u16) -> usize {
        match self.txs.get(index).and_then(|slot| slot.tx().op().cost()) {
            Some(Cost::CreditAndReserve) => 0,
            Some(Cost::Credit) => 2,
            _ => 1,
        }
    }

    fn compare(&self) -> Result<(), Fault> {
        let queues = [
            QueueKind::Unreserved,
            QueueKind::FreeOfCredit,
            QueueKind::Main,
        ];
        let real = queues.map(|queue| usize::from(self.txs.queued(queue)));
        let copy = [0, 1, 2].map(|i: usize| self.copy[i].len());
        if real != copy {
            return Err(format!("queue lengths {real:?} should be {copy:?}"));
        }
        Ok(())
    }

    /// Models `TxTable::take_done`: the next finished tx, released; and the cookie it had.
    pub fn take_done(&mut self) -> Result<Option<(Transfer, Tx, u64)>, Fault> {
        let Some(index) = self.txs.done() else {
            return match self.done.is_empty() {
                true => Ok(None),
                false => Err("a finished tx is lost".into()),
            };
        };
        if self.done.pop_front() != Some(index) {
            return Err("finished transmits change their order".into());
        }
        let tx = *self.slot(index)?.tx();
        if tx.place() != TxState::Done {
            return Err(format!("{tx:?} is handed to LNet as finished"));
        }
        let uses = |work: &Work| match *work {
            Work::Noop => false,
            Work::Send(i) | Work::Write(i) | Work::Quiet(i) | Work::Invalidate(i) => i == index,
        };
        if self.sq.iter().any(uses) {
            return Err("a tx is finished while the device still has work of it".into());
        }
        if tx.is_key_live() {
            return Err("a tx is finished with a live key".into());
        }
        let cookie = self.cookie(index);
        let taken = self.txs.take_done(|_, transfer| transfer.take());
        let transfer = taken.flatten().ok_or("finished twice")?;
        Ok(Some((transfer, tx, cookie)))
    }

    /// Models `TxTable::cancel_all`.
    pub fn cancel(&mut self, cause: Cause) {
        let before = self.places();
        self.txs.cancel_all(cause);
        self.copy = Default::default();
        self.note_done(&before);
    }

    /// Models `TxTable::keys_dead`, of `Conn::release`.
    pub fn keys_dead(&mut self) {
        let before = self.places();
        self.txs.keys_dead();
        self.note_done(&before);
    }

    fn places(&self) -> Vec<TxState> {
        self.txs.iter().map(|(_, slot)| slot.tx().place()).collect()
    }

    fn pushed(&mut self, index: u16) {
        if let Some(tx) = self.txs.tx(index) {
            tx.pushed(1);
        }
    }

    fn note_done(&mut self, before: &[TxState]) {
        for ((index, now), was) in (0..).zip(self.places()).zip(before) {
            if *was != TxState::Done && now == TxState::Done {
                self.done.push_back(index);
            }
        }
    }

    /// Returns the number of transmits in use.
    pub fn in_use(&self) -> usize {
        let used = self
            .txs
            .iter()
            .filter(|(_, slot)| slot.transfer().is_some());
        used.count()
    }

    /// Returns whether nothing is queued, posted, held or awaited.
    pub fn idle(&self) -> bool {
        self.in_use() == 0 && self.sq.is_empty() && self.held.is_empty() && self.done.is_empty()
    }

    /// Returns which end it is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the cookie of the tx at `index`.
    pub fn cookie(&self, index: u16) -> u64 {
        self.cookies[usize::from(index)]
    }

    /// Appends the state, except for the part of [`Ours::encode_txs`].
    pub fn encode(&self, names: &mut Names, out: &mut Vec<u8>) {
        let s = &self.credits;
        out.extend([
            s.credits(),
            s.outstanding(),
            s.reserved(),
            s.peer_held(),
            s.noops(),
        ]);
        out.extend([self.posted as u8, self.unposted as u8]);
        out.extend([self.sinks as u8, self.asked as u8]);
        for queue in self.copy.iter().chain([&self.done]) {
            out.push(queue.len() as u8);
            for index in queue {
                out.push(names.of(self.side, self.cookie(*index)));
            }
        }
        out.push(self.sq.len() as u8);
        for work in &self.sq {
            let (kind, index) = match *work {
                Work::Noop => (0, None),
                Work::Send(i) => (1, Some(i)),
                Work::Quiet(i) => (2, Some(i)),
                Work::Invalidate(i) => (3, Some(i)),
                Work::Write(i) => (4, Some(i)),
            };
            out.push(kind);
            if let Some(index) = index {
                out.push(names.of(self.side, self.cookie(index)));
            }
        }
        out.push(self.held.len() as u8);
        for held in &self.held {
            let msg = Msg {
                body: held.body,
                credits: 0,
                tag: held.tag,
            };
            names.msg(1 - self.side, &msg, out);
        }
    }

    /// Appends the transmits, by name. To be called when everything that refers to one has been
    /// encoded.
    pub fn encode_txs(&self, names: &mut Names, out: &mut Vec<u8>) {
        // Transmits without a reference come last, in the order of the table.
        for (index, slot) in self.txs.iter() {
            if slot.transfer().is_some() {
                names.of(self.side, self.cookie(index));
            }
        }
        for at in 0..names.met(self.side).len() {
            let cookie = names.met(self.side)[at];
            let Ok(index) = self.find(cookie) else {
                out.push(0xff);
                continue;
            };
            let Some(slot) = self.txs.get(index) else {
                continue;
            };
            let tx = slot.tx();
            out.extend([tx.place() as u8, tx.wrs() as u8, tx.op() as u8]);
            for flag in [
                tx.awaits_answer(),
                tx.is_key_live(),
                tx.was_posted(),
                tx.cause().is_some(),
            ] {
                out.push(u8::from(flag));
            }
            out.push(slot.slots as u8);
            if let Some(t) = slot.transfer() {
                let peer = match t.peer {
                    0 => 0xff,
                    c => names.of(1 - self.side, c),
                };
                out.extend([peer, u8::from(t.data), t.tag]);
            }
        }
    }
}

fn broke(e: &dyn std::fmt::Debug) -> Fault {
    format!("{VIOLATION}: {e:?}")
}
