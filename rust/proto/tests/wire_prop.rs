// SPDX-License-Identifier: GPL-2.0

//! Properties of decoding and encoding: no input panics, both byte orders
//! round trip, truncation is noticed at every offset.

mod common;

use proptest::{
    collection::vec,
    prelude::*, //
};
use ro2iblnd_proto::{
    constants::*,
    handshake::*,
    lnet_hdr::{
        check_get,
        check_immediate,
        check_put, //
    },
    nid::Nid,
    reject::*,
    wire::*, //
};

use common::{
    encode_as,
    reencode,
    swap::swap_reject, //
};

/// A body that owns what it refers to.
#[derive(Clone, Debug)]
enum Owned {
    Params(bool, ConnParams),
    Noop,
    Immediate([u8; 72], Vec<u8>),
    PutReq([u8; 72], Cookie),
    Done(u8, DoneBody),
    PutAck(Cookie, Cookie, u32, Vec<Fragment>),
    GetReq([u8; 72], Cookie, u32, Vec<Fragment>),
}

impl Owned {
    fn out(&self) -> BodyOut<'_> {
        match self {
            Owned::Params(true, p) => BodyOut::ConnReq(*p),
            Owned::Params(false, p) => BodyOut::ConnAck(*p),
            Owned::Noop => BodyOut::Noop,
            Owned::Immediate(hdr, data) => BodyOut::Immediate {
                hdr,
                payload: data.len(),
            },
            Owned::PutReq(hdr, cookie) => BodyOut::PutReq {
                hdr,
                cookie: *cookie,
            },
            Owned::Done(0, d) => BodyOut::PutNak(*d),
            Owned::Done(1, d) => BodyOut::PutDone(*d),
            Owned::Done(_, d) => BodyOut::GetDone(*d),
            Owned::PutAck(src, dst, key, frags) => BodyOut::PutAck {
                src: *src,
                dst: *dst,
                rd: DescriptorOut { key: *key, frags },
            },
            Owned::GetReq(hdr, cookie, key, frags) => BodyOut::GetReq {
                hdr,
                cookie: *cookie,
                rd: DescriptorOut { key: *key, frags },
            },
        }
    }

    /// Returns the whole message, payload included.
    fn message(&self, order: Order, env: &Envelope) -> Vec<u8> {
        let mut out = vec![0; 4096];
        let nob = encode_as(&mut out, order, env, &self.out()).expect("fits");
        if let Owned::Immediate(_, data) = self {
            out[120..nob].copy_from_slice(data);
        }
        out.truncate(nob);
        out
    }
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Native), Just(Order::Swapped)]
}

fn env() -> impl Strategy<Value = Envelope> {
    let v = prop_oneof![Just(Version::V1), Just(Version::V2)];
    (v, any::<u8>(), any::<[u64; 4]>()).prop_map(|(version, credits, w)| Envelope {
        version,
        credits,
        src: Nid::from_raw(w[0] & !1),
        src_stamp: w[1],
        dst: Nid::from_raw(w[2]),
        dst_stamp: w[3],
    })
}

fn raw_hdr() -> impl Strategy<Value = [u8; 72]> {
    // Mostly a known type and a length that may fit, so that the checks on
    // headers are passed now and then.
    (vec(any::<u8>(), 72), 0u32..6, 0u32..5000).prop_map(|(bytes, kind, len)| {
        let mut hdr = [0; 72];
        hdr.copy_from_slice(&bytes);
        hdr[24..28].copy_from_slice(&kind.to_le_bytes());
        hdr[28..32].copy_from_slice(&len.to_le_bytes());
        hdr
    })
}

fn fragments() -> impl Strategy<Value = Vec<Fragment>> {
    let one = (0u32..4080, 0u64..u64::MAX - 4096).prop_map(|(nob, addr)| Fragment { nob, addr });
    vec(one, 1..=257).prop_map(|mut v| {
        v[0].nob |= 1;
        v
    })
}

fn owned() -> impl Strategy<Value = Owned> {
    let cookie = || any::<u64>().prop_map(Cookie);
    let done = (cookie(), any::<i32>()).prop_map(|(cookie, status)| DoneBody { cookie, status });
    let params = (any::<u16>(), any::<u16>(), any::<u32>()).prop_map(|(d, f, m)| ConnParams {
        queue_depth: d,
        max_frags: f,
        max_msg_size: m,
    });
    prop_oneof![
        (any::<bool>(), params).prop_map(|(req, p)| Owned::Params(req, p)),
        Just(Owned::Noop),
        (raw_hdr(), vec(any::<u8>(), 0..=3976)).prop_map(|(h, d)| Owned::Immediate(h, d)),
        (raw_hdr(), cookie()).prop_map(|(h, c)| Owned::PutReq(h, c)),
        (0u8..3, done).prop_map(|(n, d)| Owned::Done(n, d)),
        (cookie(), cookie(), any::<u32>(), fragments())
            .prop_map(|(s, d, k, f)| Owned::PutAck(s, d, k, f)),
        (raw_hdr(), cookie(), any::<u32>(), fragments())
            .prop_map(|(h, c, k, f)| Owned::GetReq(h, c, k, f)),
    ]
}

/// Feeds bytes to everything that takes bytes from a peer.
fn swallow(bytes: &[u8]) {
    if let Ok(msg) = decode(bytes) {
        assert!(msg.facts.nob() <= bytes.len());
        match msg.body {
            Body::Immediate { hdr, payload } => {
                assert_eq!(payload.len() + 120, msg.facts.nob());
                let _ = check_immediate(hdr, payload);
            }
            Body::PutReq { hdr, .. } => {
                let _ = check_put(hdr);
            }
            Body::GetReq { hdr, rd, .. } => {
                assert!((1..=1 << 20).contains(&rd.total()));
                let _ = check_get(hdr, &rd);
            }
            Body::PutAck { rd, .. } => {
                let sum: u64 = rd.fragments().map(|f| u64::from(f.nob)).sum();
                assert_eq!(sum, u64::from(rd.total()));
                assert_eq!(rd.fragments().count(), usize::from(rd.nfrags()));
            }
            _ => {}
        }
        // A decoded message can be sent; only the checksum is not kept.
        let mut want = bytes[..msg.facts.nob()].to_vec();
        want[12..16].fill(0);
        let got = reencode(&msg).unwrap();
        assert_eq!(got[16..], want[16..got.len()]);
    }
    let ask = PeerParams {
        depth: QueueDepth::MAX,
        frags: MaxFrags::MAX,
        stamp: 1,
    };
    match react_to_reject(28, bytes, &ask) {
        Ok(RetryWhy::SmallerDepth(depth)) => assert!(depth < ask.depth),
        Ok(RetryWhy::FewerFrags(frags)) => assert!(frags < ask.frags),
        _ => {}
    }
    let from = CmSource {
        addr: None,
        port: 0,
        gid: None,
    };
    let ni = NiView {
        nid: Nid::new(0, 1),
        stamp: 1,
        peer_credits: QueueDepth::MAX,
        active: true,
    };
    if let Ok(req) = parse_connreq(bytes, &from, false) {
        let from = CmSource {
            addr: Some(req.src.addr()),
            ..from
        };
        let _ = check_ni(&req, Some(&ni), true, &from);
    }
    let expected = Identity {
        me: ni.nid,
        my_stamp: 1,
        peer: Nid::new(0, 2),
        peer_stamp: 0,
    };
    let _ = validate_conn_ack(bytes, &expected, &ask);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trip(order in order(), env in env(), body in owned(), pad in 0usize..200) {
        let sent = body.message(order, &env);
        let mut received = sent.clone();
        received.resize(sent.len() + pad, 0xaa);
        let msg = decode(&received).expect("own message");
        prop_assert_eq!(msg.env, env);
        prop_assert_eq!(msg.facts.order, order);
        prop_assert_eq!(msg.facts.nob(), sent.len());
        prop_assert_eq!(reencode(&msg).unwrap(), sent);
    }

    #[test]
    fn truncated_anywhere(order in order(), env in env(), body in owned()) {
        let sent = body.message(order, &env);
        for n in 0..sent.len() {
            prop_assert!(decode(&sent[..n]).is_err());
        }
    }

    #[test]
    fn a_length_field_that_lies(order in order(), env in env(), body in owned(), nob: u32) {
        let mut sent = body.message(order, &env);
        let field = match order {
            Order::Native => nob.to_ne_bytes(),
            Order::Swapped => nob.swap_bytes().to_ne_bytes(),
        };
        sent[8..12].copy_from_slice(&field);
        if let Ok(msg) = decode(&sent) {
            prop_assert_eq!(msg.facts.nob(), nob as usize);
        }
        for n in 0..sent.len() {
            let mut short = sent.clone();
            let claim = match order {
                Order::Native => (n as u32).to_ne_bytes(),
                Order::Swapped => (n as u32).swap_bytes().to_ne_bytes(),
            };
            short[8..12].copy_from_slice(&claim);
            match (decode(&short), &body) {
                (Ok(msg), Owned::Immediate(..)) => prop_assert!(msg.facts.nob() >= 120),
                (Ok(_), _) => prop_assert!(false, "claimed {n} bytes"),
                (Err(_), _) => {}
            }
        }
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..300)) {
        swallow(&bytes);
    }

    #[test]
    fn a_good_message_with_some_bytes_changed(
        order in order(),
        env in env(),
        body in owned(),
        hits in vec((any::<u16>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = body.message(order, &env);
        for (at, v) in hits {
            // Mostly in the first bytes, where it matters.
            let at = at as usize % bytes.len().min(if at % 4 == 0 { 4096 } else { 136 });
            bytes[at] = v;
        }
        bytes[12..16].fill(0);
        swallow(&bytes);
    }

    /// Compares [`plain_head`] and [`reparse`] with [`decode`] and [`check_identity`]. Both accept the same messages,
    /// except those with a checksum or of the other byte order.
    #[test]
    fn plain_messages(
        order in order(),
        env in env(),
        body in owned(),
        hits in vec((0usize..124, any::<u8>()), 0..3),
        received in prop_oneof![Just(4096), 0usize..=4096],
        credits: u8,
    ) {
        let sent = body.message(order, &env);
        let mut buf = [0xaa; 4096];
        buf[..sent.len()].copy_from_slice(&sent);
        for (at, v) in hits {
            buf[at] = v;
        }
        buf[7] = credits;
        let expect = Identity {
            me: env.dst,
            my_stamp: env.dst_stamp,
            peer: env.src,
            peer_stamp: env.src_stamp,
        };
        let general = decode(&buf[..received]).ok().filter(|m| {
            m.facts.order == Order::Native && buf[12..16] == [0; 4] && check_identity(&m.env, &expect).is_ok()
        });
        let plain = plain_head(&buf, received, &expect)
            .and_then(|(credits, facts)| Some((credits, facts, reparse(&buf, facts).ok()?)))
            .map(|(credits, facts, body)| match body {
                Body::GetReq { rd, .. } | Body::PutAck { rd, .. } => {
                    (credits, facts.with_descriptor(&rd), body)
                }
                _ => (credits, facts, body),
            });
        prop_assert_eq!(
            plain.map(|(credits, facts, body)| (credits, facts, format!("{body:?}"))),
            general.map(|m| (m.env.credits, m.facts, format!("{:?}", m.body)))
        );
        if let Some((_, facts, body)) = plain {
            let again = reparse(&buf, facts).map(|body| format!("{body:?}"));
            prop_assert_eq!(again, Ok(format!("{body:?}")));
            let payload = match body {
                Body::Immediate { payload, .. } => Some(payload),
                _ => None,
            };
            prop_assert_eq!(facts.is_immediate(), payload.is_some());
            prop_assert_eq!(immediate_payload(&buf, facts), payload);
        }
    }

    #[test]
    fn sealed(env in env(), body in owned(), credits: u8, flip: u16) {
        let mut bytes = body.message(Order::Native, &env);
        let nob = bytes.len();
        finalize_hdr(&mut bytes, nob, credits, true).unwrap();
        let msg = decode(&bytes).expect("sealed message");
        prop_assert_eq!(msg.env.credits, credits);
        prop_assert_ne!(&bytes[12..16], &[0; 4]);

        // A single changed bit outside the checksum never goes unnoticed.
        let at = flip as usize % (bytes.len() - 16) + 16;
        bytes[at] ^= 1;
        prop_assert_eq!(decode(&bytes).err(), Some(WireError::Checksum));
    }

    #[test]
    fn checksum_against_the_definition(bytes in vec(any::<u8>(), 16..300)) {
        let sum = |extend: fn(u8) -> u32| {
            let mut sum = 0u32;
            for (i, &b) in bytes.iter().enumerate() {
                let b = if (12..16).contains(&i) { 0 } else { b };
                sum = sum.rotate_left(1).wrapping_add(extend(b));
            }
            sum.max(1)
        };
        let unsigned = sum(u32::from);
        let signed = sum(|b| b as i8 as i32 as u32);
        prop_assert_eq!(checksum(&bytes), unsigned);
        prop_assert!(cksum_matches(&bytes, unsigned));
        prop_assert!(cksum_matches(&bytes, signed));
    }

    #[test]
    fn rejects_round_trip(order in order(), why: u8, stamp: u64, d: u16, f: u16, m: u32) {
        let reject = Reject {
            version: Version::V2,
            why: RejectWhy(why),
            incarnation: stamp,
            params: ConnParams { queue_depth: d, max_frags: f, max_msg_size: m },
        };
        let mut bytes = reject.encode().to_vec();
        if order == Order::Swapped {
            swap_reject(&mut bytes);
        }
        bytes.resize(148, 0);
        prop_assert_eq!(Reject::decode(&bytes), Ok(reject));
        swallow(&bytes);
    }
}

/// Tests the shortest message of each type (spec 2.4), and one byte less.
#[test]
fn minimum_lengths() {
    let types = [
        (0xc0, 56),
        (0xc1, 56),
        (0xd0, 48),
        (0xd1, 120),
        (0xd2, 128),
        (0xd3, 60),
        (0xd4, 84),
        (0xd5, 60),
        (0xd6, 148),
        (0xd7, 60),
    ];
    for (kind, min) in types {
        let mut m = vec![0u8; min];
        m[..4].copy_from_slice(&0x0be9_1b91u32.to_ne_bytes());
        m[4..6].copy_from_slice(&0x12u16.to_ne_bytes());
        m[6] = kind;
        if let 0xd4 | 0xd6 = kind {
            // One fragment of one byte.
            m[min - 16..min - 12].copy_from_slice(&1u32.to_ne_bytes());
            m[min - 12..min - 8].copy_from_slice(&1u32.to_ne_bytes());
        }
        for nob in 0..=min {
            m[8..12].copy_from_slice(&(nob as u32).to_ne_bytes());
            assert_eq!(decode(&m).is_ok(), nob == min, "{kind:#x} {nob}");
        }
    }
}

/// Tests each check of the decoder on its own, in the order of spec 2.8.
#[test]
fn validation_order() {
    let env = Envelope {
        version: Version::V2,
        credits: 0,
        src: Nid::new(0, 2),
        src_stamp: 1,
        dst: Nid::new(0, 1),
        dst_stamp: 2,
    };
    let frag = |nob, addr| Fragment { nob, addr };
    let good = Owned::PutAck(Cookie(1), Cookie(2), 3, vec![frag(1, 0); 2]);
    let good = good.message(Order::Native, &env);
    let with = |at: usize, bytes: &[u8]| {
        let mut m = good.clone();
        m[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&m).err()
    };
    let ne = u32::to_ne_bytes;
    assert_eq!(decode(&good[..5]).err(), Some(WireError::Short));
    assert_eq!(with(0, &ne(7)), Some(WireError::Magic(7)));
    let v = 0x10u16.to_ne_bytes();
    assert_eq!(with(4, &v), Some(WireError::Version(0x10)));
    assert_eq!(decode(&good[..47]).err(), Some(WireError::ShortHeader));
    assert_eq!(with(8, &ne(97)), Some(WireError::Length(97)));
    assert_eq!(with(8, &ne(u32::MAX)), Some(WireError::Length(u32::MAX)));
    assert_eq!(with(12, &ne(9)), Some(WireError::Checksum));
    assert_eq!(with(16, &[0xff; 8]), Some(WireError::SourceAny));
    assert_eq!(with(8, &ne(71)), Some(WireError::ShortBody));
    assert_eq!(with(8, &ne(3)), Some(WireError::ShortBody));
    assert_eq!(with(6, &[0xd8]), Some(WireError::Type(0xd8)));
    assert_eq!(with(68, &ne(0)), Some(WireError::FragmentCount(0)));
    assert_eq!(with(68, &ne(258)), Some(WireError::FragmentCount(258)));
    assert_eq!(with(68, &ne(3)), Some(WireError::ShortDescriptor));
    assert_eq!(with(8, &ne(95)), Some(WireError::ShortDescriptor));
    // H17, H18.
    assert_eq!(with(72, &ne(1 << 20)), Some(WireError::DescriptorTooLong));
    assert_eq!(with(72, &ne((1 << 20) - 1)), None);
    assert_eq!(with(72, &ne(u32::MAX)), Some(WireError::DescriptorTooLong));
    assert_eq!(with(76, &[0xff; 8]), Some(WireError::AddressWrap));
    let empty = Owned::PutAck(Cookie(1), Cookie(2), 3, vec![frag(0, 0); 2]);
    let empty = empty.message(Order::Native, &env);
    assert_eq!(decode(&empty).err(), Some(WireError::DescriptorEmpty));
}
