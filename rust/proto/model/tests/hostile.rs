// SPDX-License-Identifier: GPL-2.0

//! One real end against a peer that sends arbitrary messages: the counters keep their bounds, a lie
//! closes the connection, and then every transmit ends once.

use std::collections::VecDeque;

use ro2iblnd_model::{
    messages::{
        Body,
        Msg, //
    },
    our_end::{
        Ours,
        Transfer,
        VIOLATION, //
    },
    walk::Random, //
};
use ro2iblnd_proto::{
    cause::Cause,
    constants::{
        high_water,
        QueueDepth, //
    },
    credits::{
        Repost,
        NOOPS_MAX, //
    },
    tx_state::Op, //
};

const CELLS: usize = 64;

/// Returns a message of the peer: often a valid one, with cookies that it has received.
fn lie(random: &mut Random, told: &[u64]) -> Msg {
    let known = match told {
        [] => random.draw(),
        told => told[random.below(told.len())],
    };
    // A cookie it was never told, now and then.
    let cookie = match random.below(8) {
        0 | 1 if random.below(4) == 0 => known ^ 1 << random.below(64),
        _ => known,
    };
    let body = match random.below(if told.is_empty() { 3 } else { 8 }) {
        0 => Body::Noop,
        1 => Body::Immediate,
        2 => Body::PutReq(random.draw()),
        3 => Body::PutAck(cookie, random.draw()),
        4 => Body::PutNak(cookie),
        5 => Body::PutDone(cookie, true),
        6 => Body::GetReq(random.draw()),
        _ => Body::GetDone(cookie, true),
    };
    let credits = match random.below(12) {
        0 => 255,
        1 => 1,
        _ => 0,
    };
    Msg {
        body,
        credits,
        tag: 0,
    }
}

/// Takes a random step of our own side.
fn work(o: &mut Ours, random: &mut Random) -> Result<(), String> {
    let transfer = |peer| Transfer {
        peer,
        data: true,
        tag: 0,
    };
    let op = [Op::Immediate, Op::PutReq, Op::GetReq][random.below(3)];
    match random.below(3) {
        0 if o.in_use() < CELLS / 2 => o.submit(op, 2, transfer(0)).map(|_| ()),
        1 => o.complete(),
        _ if o.held.is_empty() => Ok(()),
        _ => {
            let held = o.held.remove(0);
            let (how, op, peer) = match held.body {
                Body::PutReq(c) => (Repost::Plain, Op::PutAck, c),
                Body::GetReq(c) => (Repost::ForPeer, Op::GetDone, c),
                _ => return o.give_back(Repost::ForPeer),
            };
            o.sinks += u16::from(op == Op::PutAck);
            o.give_back(how)?;
            o.submit(op, 2, transfer(peer)).map(|_| ())
        }
    }
}

fn bounds(o: &Ours) {
    let s = &o.credits;
    assert!(
        s.credits() <= s.depth() && s.reserved() <= s.depth(),
        "{s:?}"
    );
    assert!(
        u16::from(s.peer_held()) + u16::from(s.outstanding()) <= u16::from(s.depth()),
        "{s:?}"
    );
    assert!(s.noops() <= NOOPS_MAX, "{s:?}");
}

/// Closes the connection: flush, drain, release. Every transmit ends exactly once.
fn close(mut o: Ours) {
    let (mut ended, all) = (0, o.in_use());
    let mut reap = |o: &mut Ours| {
        while o.take_done().expect("each ends once").is_some() {
            ended += 1;
        }
    };
    o.cancel(Cause::Protocol);
    reap(&mut o);
    while o
        .retire(Err(Cause::Flushed))
        .expect("a flush is no violation")
        .is_some()
    {
        reap(&mut o);
    }
    o.keys_dead();
    reap(&mut o);
    assert_eq!((o.in_use(), ended), (0, all));
}

#[test]
fn a_lying_peer_is_closed_and_nothing_is_lost() {
    let mut random = Random(42);
    let (mut closed, mut messages) = (0, 0);
    for run in 0..4_000u16 {
        let depth = QueueDepth::new(1 + run % 4).expect("a depth");
        let hiw = high_water(depth, 0, depth);
        let mut o = Ours::new(0, depth, hiw, 12, CELLS);
        let mut told = Vec::new();
        let mut out = VecDeque::new();
        for _ in 0..200 {
            work(&mut o, &mut random).expect("we do nothing wrong");
            let lied = random.below(4) == 0 && o.posted > 0;
            let result = match lied {
                true => o.received(lie(&mut random, &told)),
                false => Ok(()),
            };
            messages += usize::from(lied);
            bounds(&o);
            if let Err(fault) = result {
                assert!(fault.starts_with(VIOLATION), "{fault}");
                closed += 1;
                break;
            }
            o.pump(false, &mut out).expect("the pump keeps its order");
            bounds(&o);
            for msg in out.drain(..) {
                if let Body::PutReq(c) | Body::GetReq(c) | Body::PutAck(_, c) = msg.body {
                    told.push(c);
                }
            }
        }
        close(o);
    }
    println!("{messages} messages, {closed} connections closed");
    assert!(closed > 3_000 && messages > 10_000);
}
