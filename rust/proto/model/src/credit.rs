// SPDX-License-Identifier: GPL-2.0

//! The credit protocol on one established connection: two ends, a FIFO channel each way.
//!
//! LNet offers requests of every type as long as fewer than `window` of its own are open, takes
//! received ones in any order and as late as it likes, and wants the data of a PUT or not.
//! Completions of SENDs come as late as they like, too. A message occupies a receive buffer of the
//! other end from the moment it is posted, which is the worst case: it has arrived, and the softirq
//! that will handle it has not run.
//!
//! The window is a bound on what is open and not on how much is sent, so that a complete search
//! covers runs of any length.

use std::collections::VecDeque;

use ro2iblnd_proto::{
    constants::QueueDepth,
    credits::{
        Repost,
        NOOPS_MAX, //
    },
    tx_state::{
        Op,
        TxState, //
    }, //
};

use crate::{
    ko2::Ko2,
    messages::{
        other,
        Body,
        Msg,
        Names,
        Side, //
    },
    our_end::{
        Ours,
        Transfer, //
    },
    search::{
        Fault,
        Model, //
    }, //
};

/// Messages that LNet sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A small message.
    Immediate,
    /// A large PUT.
    Put,
    /// A large GET.
    Get,
}

/// Every kind.
pub const ALL: &[Kind] = &[Kind::Immediate, Kind::Put, Kind::Get];

/// Driver at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The code of this driver.
    Ours,
    /// The model of ko2iblnd.
    Ko2,
}

/// The bounds of one search.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The two ends.
    pub who: [Who; 2],
    /// Queue depth.
    pub depth: u16,
    /// High-water mark of each end.
    pub high_water: [u8; 2],
    /// Slots of the send queue.
    pub sq: u16,
    /// Work requests of a transfer, its message included.
    pub chain: u16,
    /// Messages that each side may send.
    pub kinds: [&'static [Kind]; 2],
    /// Open requests of each side.
    pub window: [usize; 2],
    /// Whether keepalives may fall due.
    pub keepalive: bool,
    /// Whether LNet may keep requests so long that their peer has to be fed.
    pub feed: bool,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// LNet of that side sends.
    Send(Side, Kind),
    /// The oldest message to that side is handled.
    Deliver(Side),
    /// The oldest send work request of that side completes.
    Complete(Side),
    /// LNet of that side takes a request; true: wants the data of a PUT.
    Take(Side, usize, bool),
    /// `lnd_recv` of that side comes to its second half: it queues the answer.
    Answer(Side, usize),
    /// The LNet half of that side rings the doorbell for what it did (`deliver.rs`).
    Ring(Side),
    /// A keepalive of that side is due.
    Keepalive(Side),
    /// That side feeds a peer which has no credit left (`Credits::starves_peer`). The driver does so
    /// only when LNet has had all that came; here, at any time.
    Feed(Side),
}

/// Next steps of the LNet half of our end; the lock is dropped in between.
#[derive(Clone, Debug, Default)]
pub struct Half {
    /// Answers that `lnd_recv` will queue.
    owed: Vec<(Op, Transfer)>,
    /// It has given buffers back or queued something, and not rung the doorbell.
    corked: bool,
}

/// One end.
#[derive(Clone, Debug)]
pub enum End {
    /// Ours.
    Ours(Ours, Half),
    /// The model of ko2iblnd.
    Ko2(Ko2),
}

/// Both ends and what travels between them.
#[derive(Clone, Debug)]
pub struct State {
    /// The ends.
    pub ends: [End; 2],
    /// Messages to each side, oldest first.
    pub to: [VecDeque<Msg>; 2],
}

impl End {
    fn open(&self) -> usize {
        match self {
            Self::Ours(o, _) => o
                .txs
                .iter()
                .filter(|(_, slot)| {
                    let tx = slot.tx();
                    let answers = matches!(tx.op(), Op::PutAck | Op::PutNak | Op::GetDone);
                    tx.place() != TxState::Free && !answers
                })
                .count(),
            Self::Ko2(k) => k.open(),
        }
    }

    fn held(&self) -> impl Iterator<Item = Body> + '_ {
        let (ours, ko2) = match self {
            Self::Ours(o, _) => (Some(o.held.iter().map(|h| h.body)), None),
            Self::Ko2(k) => (None, Some(k.held.iter().map(|h| h.body))),
        };
        ours.into_iter().flatten().chain(ko2.into_iter().flatten())
    }

    /// Credits, outstanding, NOOPs, reserved, requests held, sinks open, answers awaited, buffers
    /// posted.
    fn counters(&self) -> [i32; 8] {
        match self {
            Self::Ours(o, _) => {
                let s = &o.credits;
                [
                    s.credits().into(),
                    s.outstanding().into(),
                    s.noops().into(),
                    s.reserved().into(),
                    o.held.len() as i32,
                    o.sinks.into(),
                    o.asked.into(),
                    o.posted.into(),
                ]
            }
            Self::Ko2(k) => {
                let [credits, outstanding, noops, reserved] = k.counters();
                let held = k.held.len() as i32;
                [
                    credits,
                    outstanding,
                    noops,
                    reserved,
                    held,
                    k.sinks,
                    k.asked,
                    k.posted,
                ]
            }
        }
    }
}

impl Config {
    fn end(&self, side: Side) -> End {
        let depth = QueueDepth::new(self.depth).expect("a depth");
        let hiw = self.high_water[side];
        match self.who[side] {
            Who::Ours => {
                // Own requests, what the send queue holds, answers and LOCAL_INVs that wait for it.
                let waiting = usize::from(self.sq) + 2 * usize::from(self.depth);
                let cells = self.window[side] + waiting + 4;
                let mut ours = Ours::new(side, depth, hiw, self.sq, cells);
                ours.chain = self.chain;
                End::Ours(ours, Half::default())
            }
            Who::Ko2 => End::Ko2(Ko2::new(side, depth.get(), hiw, self.sq)),
        }
    }

    /// Returns whether a side has no credit to spend.
    pub fn dry(&self, s: &State) -> bool {
        s.ends.iter().any(|e| e.counters()[0] == 0)
    }

    /// Checks one direction: requests from `a` to `b`.
    fn direction(&self, s: &State, a: Side) -> Result<(), Fault> {
        let b = other(a);
        let depth = i32::from(self.depth);
        let [credits, _, noops, reserved, _, _, asked, _] = s.ends[a].counters();
        let [_, outstanding, _, _, held, sinks, _, posted] = s.ends[b].counters();
        let flying = s.to[b].iter().filter(|m| m.body.is_request()).count() as i32;
        let returning: i32 = s.to[a].iter().map(|m| i32::from(m.credits)).sum();
        if credits + flying + held + sinks + outstanding + returning != depth {
            return Err(format!(
                "credits of side {a} are not conserved: {credits} to spend, {flying} in flight, \
                 {held} held, {sinks} sinks, {outstanding} outstanding, {returning} returning"
            ));
        }
        if reserved + asked != depth {
            return Err(format!(
                "reserve of side {a}: {reserved} free, {asked} asked"
            ));
        }
        if noops > i32::from(NOOPS_MAX) {
            return Err(format!("{noops} NOOPs of side {a} are uncompleted"));
        }
        if (s.to[b].len() as i32) > posted {
            return Err(format!(
                "side {b} has {posted} receives posted for {} messages (RNR)",
                s.to[b].len()
            ));
        }
        if let End::Ours(o, _) = &s.ends[b] {
            let known = i32::from(o.credits.peer_held());
            if known != credits + flying + returning {
                return Err(format!("side {b} thinks that side {a} has {known} credits"));
            }
        }
        Ok(())
    }
}

impl Model for Config {
    type State = State;
    type Step = Step;

    fn init(&self) -> State {
        State {
            ends: [self.end(0), self.end(1)],
            to: Default::default(),
        }
    }

    fn steps(&self, s: &State, out: &mut Vec<Step>) {
        for side in 0..2 {
            if !s.to[side].is_empty() {
                out.push(Step::Deliver(side));
            }
            for (at, body) in s.ends[side].held().enumerate() {
                out.push(Step::Take(side, at, true));
                if matches!(body, Body::PutReq(_)) {
                    out.push(Step::Take(side, at, false));
                }
            }
            match &s.ends[side] {
                End::Ours(o, half) => {
                    out.extend((0..half.owed.len()).map(|at| Step::Answer(side, at)));
                    if half.corked {
                        out.push(Step::Ring(side));
                    }
                    if self.feed && o.feeds_peer() {
                        out.push(Step::Feed(side));
                    }
                    if !o.sq.is_empty() {
                        out.push(Step::Complete(side));
                    }
                }
                End::Ko2(k) if k.has_completions() => out.push(Step::Complete(side)),
                End::Ko2(_) => {}
            }
            if s.ends[side].open() < self.window[side] {
                out.extend(self.kinds[side].iter().map(|k| Step::Send(side, *k)));
            }
            // Its interval is a second at least: nothing sent before is still unhandled, nor will
            // it be itself when more follows.
            if self.keepalive && s.to[other(side)].is_empty() {
                out.push(Step::Keepalive(side));
            }
        }
    }

    fn take(&self, s: &mut State, step: Step) -> Result<(), Fault> {
        let side = match step {
            Step::Send(side, _) | Step::Deliver(side) | Step::Complete(side) => side,
            Step::Take(side, ..) | Step::Answer(side, _) => side,
            Step::Ring(side) | Step::Keepalive(side) | Step::Feed(side) => side,
        };
        let message = match step {
            Step::Deliver(_) => s.to[side].pop_front(),
            _ => None,
        };
        let out = &mut s.to[other(side)];
        match &mut s.ends[side] {
            End::Ours(o, half) => {
                ours(o, half, step, message, out)?;
                // The LNet half: finished transmits leave at once, they change no credit.
                while o.take_done()?.is_some() {}
            }
            End::Ko2(k) => ko2(k, step, message, out)?,
        }
        if matches!(step, Step::Keepalive(_)) {
            while !s.to[other(side)].is_empty() {
                self.take(s, Step::Deliver(other(side)))?;
            }
        }
        Ok(())
    }

    fn environment(&self, step: Step) -> bool {
        matches!(step, Step::Send(..) | Step::Keepalive(_))
    }

    fn check(&self, s: &State) -> Result<(), Fault> {
        self.direction(s, 0)?;
        self.direction(s, 1)
    }

    fn rest(&self, s: &State) -> Result<(), Fault> {
        for side in 0..2 {
            let idle = match &s.ends[side] {
                End::Ours(o, half) => o.idle() && half.owed.is_empty(),
                End::Ko2(k) => k.idle(),
            };
            if !idle {
                return Err(format!("side {side} is stuck: {:?}", s.ends[side]));
            }
        }
        Ok(())
    }

    fn encode(&self, s: &State, out: &mut Vec<u8>) {
        let mut names = Names::default();
        for side in 0..2 {
            match &s.ends[side] {
                End::Ours(o, half) => {
                    o.encode(&mut names, out);
                    out.extend([half.owed.len() as u8, u8::from(half.corked)]);
                    for (op, t) in &half.owed {
                        out.extend([*op as u8, names.of(other(side), t.peer)]);
                    }
                }
                End::Ko2(k) => k.encode(&mut names, out),
            }
            out.push(s.to[side].len() as u8);
            for msg in &s.to[side] {
                names.msg(other(side), msg, out);
            }
        }
        for end in &s.ends {
            match end {
                End::Ours(o, _) => o.encode_txs(&mut names, out),
                End::Ko2(k) => k.encode_txs(&mut names, out),
            }
        }
    }
}

/// Takes a step of our end.
fn ours(
    o: &mut Ours,
    half: &mut Half,
    step: Step,
    message: Option<Msg>,
    out: &mut VecDeque<Msg>,
) -> Result<(), Fault> {
    let transfer = |peer| Transfer {
        peer,
        data: true,
        tag: 0,
    };
    match step {
        // `send::send`
        Step::Send(_, kind) => {
            let (op, slots) = match kind {
                Kind::Immediate => (Op::Immediate, 1),
                Kind::Put => (Op::PutReq, 1),
                Kind::Get => (Op::GetReq, 2),
            };
            submit(o, op, slots, transfer(0))?;
        }
        // `CompletionReceiver::received`
        Step::Deliver(_) => o.received(message.ok_or("no message")?)?,
        // `CompletionReceiver::sent`
        Step::Complete(_) => o.complete()?,
        // `recv.rs`, first half: the buffer goes back
        Step::Take(_, at, want) => {
            let held = o.held.remove(at);
            let how = match held.body {
                Body::PutReq(c) if want => {
                    half.owed.push((Op::PutAck, transfer(c)));
                    o.sinks += 1;
                    Repost::Plain
                }
                Body::PutReq(c) => {
                    half.owed.push((Op::PutNak, transfer(c)));
                    Repost::ForPeer
                }
                Body::GetReq(c) => {
                    half.owed.push((Op::GetDone, transfer(c)));
                    Repost::ForPeer
                }
                _ => Repost::ForPeer,
            };
            o.give_back(how)?;
            half.corked = true;
            return Ok(());
        }
        // second half: `Conn::answer` or `Conn::answer_status`
        Step::Answer(_, at) => {
            let (op, transfer) = half.owed.remove(at);
            let slots = match op {
                Op::PutNak => 1,
                Op::GetDone => o.chain,
                _ => 2,
            };
            submit(o, op, slots, transfer)?;
            half.corked = true;
            return Ok(());
        }
        Step::Ring(_) => half.corked = false,
        // `WorkItem<TIMER>`
        Step::Keepalive(_) | Step::Feed(_) => return o.pump(true, out),
    }
    o.pump(false, out)
}

fn submit(o: &mut Ours, op: Op, slots: u16, transfer: Transfer) -> Result<(), Fault> {
    match o.submit(op, slots, transfer)? {
        true => Ok(()),
        false => Err("the model has too few cells".into()),
    }
}

/// Takes a step of ko2iblnd's end.
fn ko2(
    k: &mut Ko2,
    step: Step,
    message: Option<Msg>,
    out: &mut VecDeque<Msg>,
) -> Result<(), Fault> {
    match step {
        Step::Send(_, kind) => {
            let body = match kind {
                Kind::Immediate => Body::Immediate,
                Kind::Put => Body::PutReq(0),
                Kind::Get => Body::GetReq(0),
            };
            k.send(body, 0, out)
        }
        Step::Deliver(_) => k.received(message.ok_or("no message")?, out),
        Step::Complete(_) => k.complete(out),
        Step::Take(_, at, want) => k.take(at, want, out),
        Step::Answer(..) | Step::Ring(_) | Step::Feed(_) => Err("ko2iblnd answers at once".into()),
        Step::Keepalive(_) => k.check_sends_or_keepalive(true, out),
    }
}
