// SPDX-License-Identifier: GPL-2.0

//! The byte examples of the specification (section 12), in both directions.
//!
//! They are those of a little-endian sender; on a big-endian host they are
//! decoded as swapped.

mod common;

use ro2iblnd_proto::{
    nid::{
        race_key,
        Nid, //
    },
    reject::{
        Reject,
        RejectWhy, //
    },
    wire::*, //
};

use common::{
    encode_as,
    reencode,
    swap::swap_reject,
    unhex, //
};

const S: u64 = 0x0006_4a1b_2c3d_4e5f;
const D: u64 = 0x0006_4a1b_0000_0001;
const SRC: &str = "02 00 00 0a 00 00 05 00";
const DST: &str = "01 00 00 0a 00 00 05 00";
const S_HEX: &str = "5f 4e 3d 2c 1b 4a 06 00";
const D_HEX: &str = "01 00 00 00 1b 4a 06 00";
const LITTLE: Order = if cfg!(target_endian = "little") {
    Order::Native
} else {
    Order::Swapped
};
const BIG: Order = if cfg!(target_endian = "little") {
    Order::Swapped
} else {
    Order::Native
};

fn env(credits: u8, dst_stamp: u64) -> Envelope {
    Envelope {
        version: Version::V2,
        credits,
        src: Nid::new(0, 0x0a00_0002),
        src_stamp: S,
        dst: Nid::new(0, 0x0a00_0001),
        dst_stamp,
    }
}

/// Encodes, compares with `hex`, decodes and encodes again.
fn both_ways(order: Order, env: &Envelope, body: &BodyOut<'_>, hex: &str) {
    let want = unhex(hex);
    let mut out = vec![0; 4096];
    let nob = encode_as(&mut out, order, env, body).unwrap();
    assert_eq!(out[..nob], want);
    let msg = decode(&want).unwrap();
    assert_eq!(msg.facts.order, order);
    assert_eq!(msg.env, *env);
    assert_eq!(msg.body.kind(), body.kind());
    assert_eq!(reencode(&msg).unwrap(), want);
}

fn connreq() -> BodyOut<'static> {
    BodyOut::ConnReq(ConnParams {
        queue_depth: 8,
        max_frags: 257,
        max_msg_size: 4096,
    })
}

#[test]
fn first_connreq() {
    let hex = format!(
        "91 1b e9 0b 12 00 c0 00 38 00 00 00 00 00 00 00 {SRC} {S_HEX} {DST} \
         00 00 00 00 00 00 00 00 08 00 01 01 00 10 00 00"
    );
    both_ways(LITTLE, &env(0, 0), &connreq(), &hex);
    assert_eq!(unhex(&hex).len(), 56);
}

#[test]
fn first_connreq_of_a_big_endian_node() {
    let hex = "0b e9 1b 91 00 12 c0 00 00 00 00 38 00 00 00 00 \
               00 05 00 00 0a 00 00 02 00 06 4a 1b 2c 3d 4e 5f \
               00 05 00 00 0a 00 00 01 00 00 00 00 00 00 00 00 \
               00 08 01 01 00 00 10 00";
    both_ways(BIG, &env(0, 0), &connreq(), hex);
}

#[test]
fn noop_returning_4_credits() {
    let hex = format!(
        "91 1b e9 0b | 12 00 | d0 | 04 | 30 00 00 00 | 00 00 00 00 | {SRC} | {S_HEX} | {DST} | {D_HEX}"
    );
    both_ways(LITTLE, &env(4, D), &BodyOut::Noop, &hex);
}

#[test]
fn get_done() {
    let cookie = Cookie(u64::from_ne_bytes([
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    ]));
    for (status, bytes) in [(0x0010_0000, "00 00 10 00"), (-61, "c3 ff ff ff")] {
        let hex = format!(
            "91 1b e9 0b 12 00 d7 00 3c 00 00 00 00 00 00 00 {SRC} {S_HEX} {DST} {D_HEX} \
             88 77 66 55 44 33 22 11 {bytes}"
        );
        both_ways(
            LITTLE,
            &env(0, D),
            &BodyOut::GetDone(DoneBody { cookie, status }),
            &hex,
        );
    }
}

#[test]
fn put_ack_of_one_sink() {
    let hex = format!(
        "91 1b e9 0b 12 00 d4 00 54 00 00 00 00 00 00 00 {SRC} {S_HEX} {DST} {D_HEX} \
         01 02 03 04 05 06 07 08 11 12 13 14 15 16 17 18 78 56 34 12 01 00 00 00 \
         00 00 01 00 00 10 00 ff 00 00 00 00"
    );
    let ack = BodyOut::PutAck {
        src: Cookie(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8])),
        dst: Cookie(u64::from_ne_bytes([
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ])),
        rd: DescriptorOut {
            key: 0x1234_5678,
            frags: &[Fragment {
                nob: 65536,
                addr: 0xff00_1000,
            }],
        },
    };
    both_ways(LITTLE, &env(0, D), &ack, &hex);
    assert_eq!(unhex(&hex).len(), 84);
}

#[test]
fn conn_stale_reject() {
    let want = unhex(&format!(
        "91 1b e9 0b | 12 00 | 05 | 00 | {D_HEX} | 08 00 | 01 01 | 00 10 00 00"
    ));
    let reject = Reject {
        version: Version::V2,
        why: RejectWhy::CONN_STALE,
        incarnation: D,
        params: ConnParams {
            queue_depth: 8,
            max_frags: 257,
            max_msg_size: 4096,
        },
    };
    let mut bytes = reject.encode();
    if LITTLE == Order::Swapped {
        swap_reject(&mut bytes);
    }
    assert_eq!(bytes[..], want);
    assert_eq!(Reject::decode(&want), Ok(reject));
}

#[test]
fn largest_descriptors() {
    let frags = vec![Fragment { nob: 1, addr: 0 }; 258];
    let mut out = vec![0; 4096];
    let hdr = [0; 72];
    let mut nob = |n: usize, get: bool| {
        let (cookie, frags) = (Cookie(0), &frags[..n]);
        let rd = DescriptorOut { key: 0, frags };
        let body = match get {
            true => BodyOut::GetReq {
                hdr: &hdr,
                cookie,
                rd,
            },
            false => BodyOut::PutAck {
                src: cookie,
                dst: cookie,
                rd,
            },
        };
        encode_as(&mut out, Order::Native, &env(0, D), &body)
    };
    assert_eq!(nob(257, false), Ok(3156));
    assert_eq!(nob(257, true), Ok(3220));
    assert_eq!(nob(258, true), Err(WireError::FragmentCount(258)));
}

#[test]
fn nids_print_as_lnet_prints_them() {
    let show = |raw| Nid::from_raw(raw).to_string();
    assert_eq!(show(0x0005_0001_0a00_0001), "10.0.0.1@o2ib1");
    assert_eq!(show(0x0005_0000_c0a8_01fe), "192.168.1.254@o2ib");
    assert_eq!(show(0x0002_0003_0a00_0001), "10.0.0.1@tcp3");
    assert_eq!(show(0x0009_0000_0000_0000), "0@lo");
    assert_eq!(show(u64::MAX), "<any>");
    assert_eq!(show(0x00ff_0000_0a00_0001), "0x00ff00000a000001");
}

#[test]
fn race_key_is_nidhash_on_a_little_endian_host() {
    // nidhash: net ^ address words in network order, read natively.
    let nid = Nid::new(3, 0x0a01_0203);
    let stored = 0x0a01_0203u32.to_be_bytes();
    assert_eq!(race_key(nid), 0x0005_0003 ^ u32::from_le_bytes(stored));
}
