// SPDX-License-Identifier: GPL-2.0

//! Fuzzes the private data of the connection manager: a request, its answer, and a refusal.
//!
//! The first bytes say which of the three it is and what this side knows; the others are private data.
//! Nothing may panic, no side may agree to more than it asked for or offered, and the other side can read
//! each answer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ro2iblnd_proto::{
    constants::{
        MaxFrags,
        PeerParams,
        QueueDepth, //
    },
    handshake::{
        check_ni,
        check_peer,
        parse_connreq,
        validate_conn_ack,
        CmSource,
        NiView,
        PeerView, //
    },
    nid::Nid,
    reject::{
        react_to_reject,
        Reject,
        RejectCause,
        RetryWhy, //
    },
    wire::Identity, //
};

const ME: Nid = Nid::new(0, 0x0a00_0001);
const PEER: Nid = Nid::new(0, 0x0a00_0002);
const STAMP: u64 = 0x0006_4a1b_0000_0001;

/// State of this side, from eight bytes.
struct Known<'a>(&'a [u8]);

impl Known<'_> {
    fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    fn bit(&self, at: usize, bit: u8) -> bool {
        self.byte(at) >> bit & 1 != 0
    }

    fn depth(&self, at: usize) -> QueueDepth {
        QueueDepth::new(self.byte(at).into()).unwrap_or(QueueDepth::MIN)
    }

    fn frags(&self, at: usize) -> MaxFrags {
        MaxFrags::new(u16::from(self.byte(at)) + 2).unwrap_or(MaxFrags::MAX)
    }
}

/// Handles a request.
fn asked(known: &Known<'_>, private: &[u8]) {
    let from = CmSource {
        addr: known.bit(1, 0).then_some(0x0a00_0002),
        port: u16::from(known.byte(2)) * 16,
        gid: None,
    };
    let ni = NiView {
        nid: ME,
        stamp: STAMP,
        peer_credits: known.depth(3),
        active: !known.bit(1, 3),
    };
    let refused = |refusal: RejectCause| {
        let _ = refusal.to_string();
        for ni in [None, Some(&ni)] {
            let reject = refusal.reject(ni);
            assert_eq!(Reject::decode(&reject.encode()), Ok(reject));
        }
    };
    let asked = match parse_connreq(private, &from, known.bit(1, 1)) {
        Ok(asked) => asked,
        Err(refusal) => return refused(refusal),
    };
    assert!(asked.src.is_o2ib() && asked.dst.is_o2ib());
    // A request from the address of its NID reaches the other checks.
    let from = CmSource {
        addr: from
            .addr
            .filter(|_| known.bit(1, 2))
            .or(Some(asked.src.addr())),
        ..from
    };
    let found = (asked.dst == ME || known.bit(1, 5)).then_some(&ni);
    match check_ni(&asked, found, known.bit(1, 6), &from) {
        Err(refusal) => return refused(refusal),
        Ok(wanted) => assert!(wanted.depth <= ni.peer_credits && wanted.frags <= MaxFrags::MAX),
    }
    let peer = PeerView {
        stamp: known.bit(4, 0).then_some(u64::from(known.byte(5))),
        connecting_ms: known.bit(4, 1).then_some(u64::from(known.byte(6)) * 100),
        races: known.byte(7).into(),
        conns: known.byte(5).into(),
        max_conns: known.byte(6).into(),
    };
    let _ = format!("{:?}", check_peer(&asked, &peer));
}

fn ask(known: &Known<'_>) -> PeerParams {
    PeerParams {
        depth: known.depth(1),
        frags: known.frags(2),
        stamp: known.byte(3).into(),
    }
}

/// Handles the answer that accepts a request of this side.
fn accepted(known: &Known<'_>, private: &[u8]) {
    let asked = ask(known);
    let expected = Identity {
        me: ME,
        my_stamp: STAMP,
        peer: PEER,
        peer_stamp: 0,
    };
    match validate_conn_ack(private, &expected, &asked) {
        Ok(agreed) => assert!(agreed.depth <= asked.depth && agreed.frags <= asked.frags),
        Err(e) => {
            let _ = e.to_string();
        }
    }
}

/// Handles the answer that rejects a request of this side.
fn refused(known: &Known<'_>, private: &[u8]) {
    let asked = ask(known);
    let reason = match known.byte(4) {
        // Mostly by the peer itself.
        n @ 0..=15 => -i32::from(n),
        16..=127 => 28,
        n => i32::from(n - 128),
    };
    match react_to_reject(reason, private, &asked) {
        Ok(RetryWhy::SmallerDepth(depth)) => assert!(depth < asked.depth),
        Ok(RetryWhy::FewerFrags(frags)) => assert!(frags < asked.frags),
        Ok(_) => {}
        Err(why) => {
            let _ = why.to_string();
        }
    }
    // One that is too short to say more is written with zeros.
    if let Ok(reject) = Reject::decode(private) {
        assert_eq!(Reject::decode(&reject.encode()), Ok(reject));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((known, private)) = bytes.split_at_checked(8) else {
        return;
    };
    let known = Known(known);
    match known.byte(0) % 3 {
        0 => asked(&known, private),
        1 => accepted(&known, private),
        _ => refused(&known, private),
    }
});
