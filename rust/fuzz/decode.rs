// SPDX-License-Identifier: GPL-2.0

//! Fuzzes a received message: the bytes that a peer's SEND leaves in a buffer.
//!
//! Nothing may panic. A decoded message must be one: decoding its body again gives an equal message,
//! and encoding it gives the bytes that it had.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ro2iblnd_proto::{
    constants::{
        FRAGS_MAX,
        HEADER_LEN, //
    },
    lnet_hdr::{
        check_get,
        check_immediate,
        check_put,
        dest_nid,
        payload_length, //
    },
    nid::Nid,
    wire::{
        check_identity,
        decode,
        encode,
        finalize_hdr,
        reparse,
        Body,
        BodyOut,
        Descriptor,
        DescriptorOut,
        Fragment,
        Identity,
        Order,
        WireMsg, //
    }, //
};

#[expect(dead_code, reason = "this target has no rejects")]
#[path = "../proto/tests/common/swap.rs"]
mod swap;

/// A buffer of the driver.
const BUF: usize = 4096;

/// Checks that a descriptor agrees with its fragments.
fn fragments(rd: &Descriptor<'_>) -> Vec<Fragment> {
    let all: Vec<Fragment> = rd.fragments().collect();
    assert_eq!(all.len(), usize::from(rd.nfrags()));
    assert!((1..=FRAGS_MAX).contains(&rd.nfrags()));
    let total: u64 = all.iter().map(|f| u64::from(f.nob)).sum();
    assert_eq!(total, u64::from(rd.total()));
    all
}

/// Reads a body as the LNet half does.
fn validate(body: &Body<'_>) {
    match body {
        Body::Immediate { hdr, payload } => {
            if check_immediate(hdr, payload).is_ok() {
                assert!(payload_length(hdr) as usize <= payload.len());
            }
        }
        Body::PutReq { hdr, .. } => {
            let _ = check_put(hdr).map_err(|e| e.to_string());
        }
        Body::GetReq { hdr, rd, .. } => {
            let _ = check_get(hdr, rd).map_err(|e| e.to_string());
        }
        _ => return,
    }
    if let Body::Immediate { hdr, .. } | Body::PutReq { hdr, .. } | Body::GetReq { hdr, .. } = body
    {
        let _ = dest_nid(hdr);
    }
}

/// Writes it as its sender would have, and compares.
fn write_again(m: &WireMsg<'_>, bytes: &[u8]) {
    let frags = match &m.body {
        Body::PutAck { rd, .. } | Body::GetReq { rd, .. } => fragments(rd),
        _ => Vec::new(),
    };
    let body = match m.body {
        Body::ConnReq(p) => BodyOut::ConnReq(p),
        Body::ConnAck(p) => BodyOut::ConnAck(p),
        Body::Noop => BodyOut::Noop,
        Body::Immediate { hdr, payload } => BodyOut::Immediate {
            hdr,
            payload: payload.len(),
        },
        Body::PutReq { hdr, cookie } => BodyOut::PutReq { hdr, cookie },
        Body::PutNak(d) => BodyOut::PutNak(d),
        Body::PutAck { src, dst, rd } => BodyOut::PutAck {
            src,
            dst,
            rd: DescriptorOut {
                key: rd.key(),
                frags: &frags,
            },
        },
        Body::PutDone(d) => BodyOut::PutDone(d),
        Body::GetReq { hdr, cookie, rd } => BodyOut::GetReq {
            hdr,
            cookie,
            rd: DescriptorOut {
                key: rd.key(),
                frags: &frags,
            },
        },
        Body::GetDone(d) => BodyOut::GetDone(d),
    };
    let mut out = vec![0; bytes.len().max(BUF)];
    let nob = match encode(&mut out, &m.env, &body) {
        Ok(nob) => nob,
        // Longer than any message of ours.
        Err(_) => {
            assert!(bytes.len() > BUF || m.facts.nob() > BUF);
            return;
        }
    };
    assert!(nob <= m.facts.nob());
    if m.facts.order == Order::Swapped {
        swap::swap_message(&mut out);
    }
    if let Body::Immediate { payload, .. } = m.body {
        out[nob - payload.len()..nob].copy_from_slice(payload);
    }
    // A message may claim more bytes than its body has; and its checksum is its own.
    let of = |bytes: &[u8]| {
        let mut bytes = bytes[..nob].to_vec();
        bytes[8..16].fill(0);
        bytes
    };
    assert_eq!(of(&out), of(bytes));

    if m.facts.order == Order::Native {
        finalize_hdr(&mut out, nob, 7, true).expect("there is room");
        let sealed = decode(&out).expect("it is ours");
        assert_eq!((sealed.facts.nob(), sealed.env.credits), (nob, 7));
        assert_ne!(out[12..16], [0; 4]);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let m = match decode(bytes) {
        Ok(m) => m,
        Err(e) => {
            let _ = e.to_string();
            return;
        }
    };
    assert!(m.facts.nob() >= HEADER_LEN && m.facts.nob() <= bytes.len());
    let again = reparse(bytes, m.facts).expect("it was opened before");
    assert_eq!(format!("{again:?}"), format!("{:?}", m.body));
    let me = Identity {
        me: Nid::new(0, 0x0a00_0001),
        my_stamp: 5,
        peer: Nid::new(0, 0x0a00_0002),
        peer_stamp: 6,
    };
    let _ = check_identity(&m.env, &me).map_err(|e| e.to_string());
    validate(&m.body);
    write_again(&m, bytes);
});
