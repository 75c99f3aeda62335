// SPDX-License-Identifier: GPL-2.0

//! Real ko2iblnd traffic must decode, make sense, and encode to the same bytes.

mod common;

use std::{
    collections::HashMap,
    net::Ipv4Addr, //
};

use ro2iblnd_proto::{
    constants::*,
    handshake::*,
    lnet_hdr::{
        check_get,
        check_immediate,
        check_put,
        payload_length, //
    },
    wire::*, //
};

use common::{
    frags,
    reencode,
    transcript,
    Entry, //
};

const TRAFFIC: &str = "ko2iblnd-ping-put-get.json";
const CHECKSUMS: &str = "ko2iblnd-checksum-on.json";

fn ip(s: &str) -> u32 {
    u32::from(s.parse::<Ipv4Addr>().expect("address"))
}

fn pick<'a>(all: &'a [Entry], name: &str) -> &'a Entry {
    all.iter().find(|e| e.name == name).expect(name)
}

fn asked() -> PeerParams {
    PeerParams {
        depth: QueueDepth::new(8).unwrap(),
        frags: MaxFrags::MAX,
        stamp: 0,
    }
}

#[test]
fn every_message_decodes_and_encodes_to_the_same_bytes() {
    let mut seen = 0;
    for e in transcript(TRAFFIC) {
        let Some(bytes) = e.message() else { continue };
        let msg = decode(bytes).unwrap_or_else(|err| panic!("{}: {err}", e.name));
        assert_eq!(
            reencode(&msg).unwrap(),
            bytes[..msg.facts.nob()],
            "{}",
            e.name
        );
        let padding = &bytes[msg.facts.nob()..];
        assert!(padding.iter().all(|&b| b == 0));
        assert!(e.kind == "cm" || padding.is_empty());
        assert_eq!(msg.env.src.addr(), ip(&e.src));
        assert_eq!(msg.env.dst.addr(), ip(&e.dst));
        seen += 1;
    }
    assert_eq!(seen, 115);
}

#[test]
fn the_handshake_is_accepted_by_both_sides() {
    for file in [TRAFFIC, CHECKSUMS] {
        let all = transcript(file);
        let req = pick(&all, "REQ CONNREQ");
        let from = CmSource {
            addr: Some(ip(&req.src)),
            port: 1023,
            gid: None,
        };
        let parsed = parse_connreq(req.message().unwrap(), &from, true).unwrap();
        let ack = pick(&all, "REP CONNACK");
        let ack_msg = decode(&ack.bytes).unwrap();
        let ni = NiView {
            nid: parsed.dst,
            stamp: ack_msg.env.src_stamp,
            peer_credits: asked().depth,
            active: true,
        };
        let wanted = check_ni(&parsed, Some(&ni), true, &from).unwrap();
        assert_eq!(wanted.depth, asked().depth);
        assert_eq!(wanted.frags, MaxFrags::MAX);
        let unknown = PeerView {
            stamp: None,
            connecting_ms: None,
            races: 0,
            conns: 0,
            max_conns: 1,
        };
        assert_eq!(check_peer(&parsed, &unknown), Ok(false));

        let expected = Identity {
            me: parsed.src,
            my_stamp: parsed.src_stamp,
            peer: parsed.dst,
            peer_stamp: 0,
        };
        let agreed = validate_conn_ack(&ack.bytes, &expected, &asked()).unwrap();
        assert_eq!(agreed.stamp, ni.stamp);
        assert_eq!(agreed.depth, wanted.depth);
        assert_eq!(agreed.frags, wanted.frags);
    }
}

#[test]
fn every_message_passes_the_guards() {
    let all = transcript(TRAFFIC);
    let req = decode(pick(&all, "REQ CONNREQ").message().unwrap())
        .unwrap()
        .env;
    let ack = decode(&pick(&all, "REP CONNACK").bytes).unwrap().env;
    let mut answers: HashMap<Cookie, u32> = HashMap::new();
    for e in all.iter().filter(|e| e.kind == "send") {
        let msg = decode(&e.bytes).unwrap();
        // As the side that receives this message sees the two of them.
        let (them, us) = match msg.env.src == req.src {
            true => (req, ack),
            false => (ack, req),
        };
        let id = Identity {
            me: us.src,
            my_stamp: us.src_stamp,
            peer: them.src,
            peer_stamp: them.src_stamp,
        };
        assert_eq!(check_identity(&msg.env, &id), Ok(()));
        match msg.body {
            Body::Immediate { hdr, payload } => {
                check_immediate(hdr, payload).unwrap();
                assert_eq!(payload_length(hdr) as usize, payload.len());
            }
            Body::PutReq { hdr, cookie } => {
                check_put(hdr).unwrap();
                answers.insert(cookie, payload_length(hdr));
            }
            Body::PutAck { src, dst, rd } => {
                let offered = answers.remove(&src).expect("PUT_REQ of the PUT_ACK");
                assert_eq!(rd.total(), offered);
                answers.insert(dst, rd.total());
            }
            Body::GetReq { hdr, cookie, rd } => {
                check_get(hdr, &rd).unwrap();
                answers.insert(cookie, rd.total());
            }
            Body::PutDone(d) | Body::GetDone(d) => {
                let total = answers.remove(&d.cookie).expect("request of the answer");
                assert_eq!(d.status, total as i32);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(answers.is_empty());
}

#[test]
fn rdma_writes_match_the_descriptor() {
    let mut sinks: Vec<(u32, u64, u64)> = Vec::new();
    let mut writes = 0;
    for e in transcript(TRAFFIC) {
        if e.kind == "rdma_write" {
            let addr = u64::from_be_bytes(e.bytes[..8].try_into().unwrap());
            let key = u32::from_be_bytes(e.bytes[8..12].try_into().unwrap());
            let len = u64::from(u32::from_be_bytes(e.bytes[12..16].try_into().unwrap()));
            assert!(sinks
                .iter()
                .any(|&(k, from, to)| k == key && from <= addr && addr + len <= to));
            writes += 1;
        } else if let Some(bytes) = e.message() {
            if let Body::PutAck { rd, .. } | Body::GetReq { rd, .. } = decode(bytes).unwrap().body {
                let ranges = frags(&rd).into_iter();
                sinks.extend(ranges.map(|f| (rd.key(), f.addr, f.addr + u64::from(f.nob))));
            }
        }
    }
    assert_eq!(writes, 18);
}

#[test]
fn three_checksums_are_right_and_one_is_wrong() {
    let mut right = 0;
    let mut wrong = 0;
    for e in transcript(CHECKSUMS) {
        let Some(bytes) = e.message() else { continue };
        match decode(bytes) {
            Ok(msg) => {
                assert_ne!(bytes[12..16], [0; 4]);
                // Ours of the same message is the same.
                let mut again = reencode(&msg).unwrap();
                finalize_hdr(&mut again, msg.facts.nob(), msg.env.credits, true).unwrap();
                assert_eq!(again, bytes[..msg.facts.nob()]);
                right += 1;
            }
            Err(err) => {
                assert_eq!(err, WireError::Checksum);
                assert_eq!(e.name, "IMMEDIATE");
                wrong += 1;
            }
        }
    }
    assert_eq!((right, wrong), (3, 1));
}
