// SPDX-License-Identifier: GPL-2.0

//! A peer that runs ko2iblnd, written from the protocol specification (sections 2.4, 5 and 6) and
//! from nothing of ours: it shares no code with `rust/proto/`, so that a misunderstanding there
//! does not cancel out here.
//!
//! It returns the credit of an IMMEDIATE when LNet has taken the message, queues its NOOPs with the
//! other messages that cost nothing, discards those that have become redundant, stops at
//! `concurrent_sends`, and closes the connection when it gets back more credits than there are.

use std::collections::VecDeque;

use crate::{
    messages::{
        other,
        Body,
        Msg,
        Names,
        Side, //
    },
    search::Fault, //
};

/// State of a tx descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    PutAck,
    PutDone,
    GetDone,
}

/// A tx descriptor; one cookie for its whole life.
#[derive(Clone, Copy, Debug)]
struct Tx {
    cookie: u64,
    body: Body,
    tag: u8,
    sending: u8,
    wait: Wait,
    queued: bool,
}

/// A request that LNet has.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The request.
    pub body: Body,
    /// Number of the LNet message.
    pub tag: u8,
}

/// The end of a connection that ko2iblnd keeps.
#[derive(Clone, Debug)]
pub struct Ko2 {
    side: Side,
    depth: i32,
    high_water: i32,
    concurrent_sends: i32,
    credits: i32,
    outstanding: i32,
    reserved: i32,
    sends_posted: i32,
    noops_posted: i32,
    next_cookie: u64,
    txs: Vec<Tx>,
    rsrvd: VecDeque<u64>,
    nocred: VecDeque<u64>,
    main: VecDeque<u64>,
    /// Uncompleted SENDs.
    sq: VecDeque<u64>,
    /// Posted receive buffers.
    pub posted: i32,
    /// Requests that LNet has not taken.
    pub held: Vec<Held>,
    /// Sinks whose PUT_DONE has not come.
    pub sinks: i32,
    /// Requests with a reserved buffer and no answer yet.
    pub asked: i32,
}

impl Ko2 {
    /// Creates the state after establishment.
    pub fn new(side: Side, depth: u8, high_water: u8, concurrent_sends: u16) -> Self {
        let depth = i32::from(depth);
        Self {
            side,
            depth,
            high_water: i32::from(high_water),
            concurrent_sends: i32::from(concurrent_sends),
            credits: depth,
            outstanding: 0,
            reserved: depth,
            sends_posted: 0,
            noops_posted: 0,
            next_cookie: 1,
            txs: Vec::new(),
            rsrvd: VecDeque::new(),
            nocred: VecDeque::new(),
            main: VecDeque::new(),
            sq: VecDeque::new(),
            posted: 2 * depth + 2,
            held: Vec::new(),
            sinks: 0,
            asked: 0,
        }
    }

    fn tx(&mut self, cookie: u64) -> Result<&mut Tx, Fault> {
        self.txs
            .iter_mut()
            .find(|t| t.cookie == cookie)
            .ok_or_else(|| "ko2iblnd loses a tx".into())
    }

    fn new_tx(&mut self, make: impl FnOnce(u64) -> Body, wait: Wait, tag: u8) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.txs.push(Tx {
            cookie,
            body: make(cookie),
            tag,
            sending: 0,
            wait,
            queued: true,
        });
        cookie
    }

    /// Sends a message of LNet.
    pub fn send(&mut self, body: Body, tag: u8, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        match body {
            Body::Immediate => {
                let c = self.new_tx(|_| Body::Immediate, Wait::Nothing, tag);
                self.main.push_back(c);
            }
            Body::PutReq(_) => {
                let c = self.new_tx(Body::PutReq, Wait::PutAck, tag);
                self.rsrvd.push_back(c);
            }
            Body::GetReq(_) => {
                let c = self.new_tx(Body::GetReq, Wait::GetDone, tag);
                self.rsrvd.push_back(c);
            }
            _ => return Err("LNet sends requests only".into()),
        }
        self.check_sends(out)
    }

    fn need_noop(&self, keepalive: bool) -> bool {
        if self.outstanding < self.high_water && !keepalive {
            return false;
        }
        self.nocred.is_empty() && (self.main.is_empty() || self.credits == 0)
    }

    /// Runs the queues, in the order of section 5.4.
    fn check_sends(&mut self, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        self.check_sends_or_keepalive(false, out)
    }

    /// Checks the same when the keepalive interval has passed.
    pub fn check_sends_or_keepalive(
        &mut self,
        keepalive: bool,
        out: &mut VecDeque<Msg>,
    ) -> Result<(), Fault> {
        while self.reserved > 0 {
            let Some(c) = self.rsrvd.pop_front() else {
                break;
            };
            self.reserved -= 1;
            self.asked += 1;
            self.main.push_back(c);
        }
        if self.need_noop(keepalive) {
            let c = self.new_tx(|_| Body::Noop, Wait::Nothing, 0);
            self.nocred.push_back(c);
        }
        loop {
            let (cookie, cost, free) = match (self.nocred.front(), self.main.front()) {
                (Some(c), _) => (*c, 0, true),
                (None, Some(c)) => (*c, 1, false),
                (None, None) => return Ok(()),
            };
            if self.sends_posted == self.concurrent_sends || (cost == 1 && self.credits == 0) {
                return Ok(());
            }
            if free {
                self.nocred.pop_front();
            } else {
                self.main.pop_front();
            }
            self.post(cookie, cost, keepalive, out)?;
        }
    }

    fn post(
        &mut self,
        cookie: u64,
        cost: i32,
        keepalive: bool,
        out: &mut VecDeque<Msg>,
    ) -> Result<(), Fault> {
        let redundant = !self.need_noop(keepalive) || self.noops_posted == 2;
        let tx = self.tx(cookie)?;
        if tx.body == Body::Noop && redundant {
            self.txs.retain(|t| t.cookie != cookie);
            return Ok(());
        }
        tx.queued = false;
        tx.sending += 1;
        let (body, tag) = (tx.body, tx.tag);
        if body == Body::Noop {
            self.noops_posted += 1;
        }
        self.credits -= cost;
        self.sends_posted += 1;
        let credits = u8::try_from(self.outstanding).map_err(|_| "ko2iblnd: outstanding")?;
        self.outstanding = 0;
        self.sq.push_back(cookie);
        out.push_back(Msg { body, credits, tag });
        Ok(())
    }

    /// Completes the oldest SEND.
    pub fn complete(&mut self, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        let Some(cookie) = self.sq.pop_front() else {
            return Ok(());
        };
        self.sends_posted -= 1;
        let tx = self.tx(cookie)?;
        tx.sending -= 1;
        if tx.body == Body::Noop {
            self.noops_posted -= 1;
        }
        self.reap(cookie);
        self.check_sends(out)
    }

    fn reap(&mut self, cookie: u64) {
        self.txs
            .retain(|t| t.cookie != cookie || t.sending > 0 || t.queued || t.wait != Wait::Nothing);
    }

    /// Handles a received message.
    pub fn received(&mut self, msg: Msg, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        if self.posted == 0 {
            return Err("ko2iblnd has no receive buffer for a message of ours (RNR)".into());
        }
        self.posted -= 1;
        if msg.credits > 0 {
            self.credits += i32::from(msg.credits);
            if self.credits > self.depth {
                return Err("ko2iblnd closes: more credits came back than there are".into());
            }
            self.check_sends(out)?;
        }
        match msg.body {
            Body::Noop => self.posted += 1,
            body @ (Body::Immediate | Body::PutReq(_) | Body::GetReq(_)) => {
                self.held.push(Held { body, tag: msg.tag });
            }
            Body::PutAck(src, dst) => {
                self.matched(src, Wait::PutAck)?;
                self.post_rx(out, |me| {
                    me.reserved += 1;
                    me.asked -= 1;
                })?;
                let tx = self.tx(src)?;
                tx.body = Body::PutDone(dst, true);
                tx.queued = true;
                self.nocred.push_back(src);
                self.check_sends(out)?;
            }
            Body::PutNak(c) => self.answered(c, Wait::PutAck, out)?,
            Body::GetDone(c, _) => self.answered(c, Wait::GetDone, out)?,
            Body::PutDone(c, _) => {
                self.matched(c, Wait::PutDone)?;
                self.reap(c);
                self.sinks -= 1;
                self.post_rx(out, |me| me.outstanding += 1)?;
            }
        }
        if self.outstanding > self.depth || self.reserved > self.depth {
            return Err("ko2iblnd: a counter is above the depth".into());
        }
        Ok(())
    }

    fn answered(&mut self, c: u64, wait: Wait, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        self.matched(c, wait)?;
        self.reap(c);
        self.post_rx(out, |me| {
            me.reserved += 1;
            me.asked -= 1;
        })
    }

    fn matched(&mut self, cookie: u64, wait: Wait) -> Result<(), Fault> {
        match self.txs.iter_mut().find(|t| t.cookie == cookie) {
            Some(tx) if tx.wait == wait && !tx.queued => {
                tx.wait = Wait::Nothing;
                Ok(())
            }
            _ => Err("ko2iblnd closes: an answer without a question".into()),
        }
    }

    fn post_rx(
        &mut self,
        out: &mut VecDeque<Msg>,
        book: impl FnOnce(&mut Self),
    ) -> Result<(), Fault> {
        self.posted += 1;
        book(self);
        self.check_sends(out)
    }

    /// Takes the request at `at`, as LNet; `want`: the data of a PUT.
    pub fn take(&mut self, at: usize, want: bool, out: &mut VecDeque<Msg>) -> Result<(), Fault> {
        let Held { body, tag } = self.held.remove(at);
        match body {
            Body::Immediate => {}
            Body::PutReq(src) if want => {
                let c = self.new_tx(|me| Body::PutAck(src, me), Wait::PutDone, tag);
                self.sinks += 1;
                self.nocred.push_back(c);
                // The buffer for PUT_DONE is posted only after the PUT_ACK was queued.
                self.check_sends(out)?;
                self.posted += 1;
                return Ok(());
            }
            Body::PutReq(src) => {
                let c = self.new_tx(|_| Body::PutNak(src), Wait::Nothing, tag);
                self.nocred.push_back(c);
                self.check_sends(out)?;
            }
            Body::GetReq(src) => {
                let c = self.new_tx(|_| Body::GetDone(src, true), Wait::Nothing, tag);
                self.nocred.push_back(c);
                self.check_sends(out)?;
            }
            _ => return Err("not a request".into()),
        }
        self.post_rx(out, |me| me.outstanding += 1)
    }

    /// Credits it may spend, credits it has to return, NOOPs uncompleted, reserved buffers free.
    pub fn counters(&self) -> [i32; 4] {
        [
            self.credits,
            self.outstanding,
            self.noops_posted,
            self.reserved,
        ]
    }

    /// Requests of its LNet that are not finished.
    pub fn open(&self) -> usize {
        self.txs
            .iter()
            .filter(|t| t.body.is_request() || matches!(t.body, Body::PutDone(..)))
            .count()
    }

    /// Returns whether something completes.
    pub fn has_completions(&self) -> bool {
        !self.sq.is_empty()
    }

    /// Returns whether nothing is left over.
    pub fn idle(&self) -> bool {
        self.txs.is_empty() && self.sq.is_empty() && self.held.is_empty()
    }

    /// Appends the state, except for what only [`Ko2::encode_txs`] can tell.
    pub fn encode(&self, names: &mut Names, out: &mut Vec<u8>) {
        for n in [
            self.credits,
            self.outstanding,
            self.reserved,
            self.sends_posted,
        ] {
            out.push(n as u8);
        }
        for n in [self.noops_posted, self.posted, self.sinks, self.asked] {
            out.push(n as u8);
        }
        for queue in [&self.rsrvd, &self.nocred, &self.main, &self.sq] {
            out.push(queue.len() as u8);
            for cookie in queue {
                out.push(names.of(self.side, *cookie));
            }
        }
        out.push(self.held.len() as u8);
        for held in &self.held {
            let msg = Msg {
                body: held.body,
                credits: 0,
                tag: held.tag,
            };
            names.msg(other(self.side), &msg, out);
        }
    }

    /// Appends the tx descriptors, by name.
    pub fn encode_txs(&self, names: &mut Names, out: &mut Vec<u8>) {
        for tx in &self.txs {
            names.of(self.side, tx.cookie);
        }
        for at in 0..names.met(self.side).len() {
            let cookie = names.met(self.side)[at];
            let Some(tx) = self.txs.iter().find(|t| t.cookie == cookie) else {
                out.push(0xff);
                continue;
            };
            out.extend([tx.sending, tx.wait as u8, u8::from(tx.queued)]);
            let msg = Msg {
                body: tx.body,
                credits: 0,
                tag: tx.tag,
            };
            names.msg(self.side, &msg, out);
        }
    }
}
