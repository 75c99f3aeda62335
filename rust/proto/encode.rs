// SPDX-License-Identifier: GPL-2.0

//! Messages to send: from values to bytes (spec 2).
//!
//! [`encode`] writes a message once; [`finalize_hdr`] adds the credits that it returns, which may change until it is
//! posted, and the checksum, which depends on them.

use super::{
    bytes::Writer,
    cksum::Running,
    constants::{
        DONE_LEN,
        FRAGMENT_LEN,
        FRAGS_MAX,
        GET_REQ_HEAD,
        HEADER_LEN,
        IMMEDIATE_HEAD,
        IMMEDIATE_MAX,
        MAGIC,
        PUT_ACK_HEAD,
        PUT_REQ_LEN, //
    },
    wire::{
        ConnParams,
        Cookie,
        DoneBody,
        Envelope,
        Fragment,
        MsgType,
        Order,
        RawLnetHdr,
        WireError, //
    }, //
};

const CREDITS_AT: usize = 7;
const CKSUM_AT: core::ops::Range<usize> = 12..16;

/// Body of a message to send; the twin of [`super::wire::Body`].
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs)] // the names are those of `Body`
pub enum BodyOut<'a> {
    ConnReq(ConnParams),
    ConnAck(ConnParams),
    Noop,
    /// The payload follows in memory or in further gather elements.
    Immediate {
        hdr: &'a RawLnetHdr,
        payload_len: usize,
    },
    PutReq {
        hdr: &'a RawLnetHdr,
        cookie: Cookie,
    },
    PutNak(DoneBody),
    PutAck {
        src: Cookie,
        dst: Cookie,
        key: u32,
        frags: &'a [Fragment],
    },
    PutDone(DoneBody),
    GetReq {
        hdr: &'a RawLnetHdr,
        cookie: Cookie,
        key: u32,
        frags: &'a [Fragment],
    },
    GetDone(DoneBody),
}

impl BodyOut<'_> {
    /// Returns the message type.
    #[inline(always)]
    pub const fn kind(&self) -> MsgType {
        match self {
            BodyOut::ConnReq(_) => MsgType::ConnReq,
            BodyOut::ConnAck(_) => MsgType::ConnAck,
            BodyOut::Noop => MsgType::Noop,
            BodyOut::Immediate { .. } => MsgType::Immediate,
            BodyOut::PutReq { .. } => MsgType::PutReq,
            BodyOut::PutNak(_) => MsgType::PutNak,
            BodyOut::PutAck { .. } => MsgType::PutAck,
            BodyOut::PutDone(_) => MsgType::PutDone,
            BodyOut::GetReq { .. } => MsgType::GetReq,
            BodyOut::GetDone(_) => MsgType::GetDone,
        }
    }

    /// Returns the length of the whole message in bytes.
    #[inline(always)]
    fn nob(&self) -> Result<usize, WireError> {
        let with_frags = |head: usize, n: usize| match u16::try_from(n) {
            Ok(1..=FRAGS_MAX) => Ok(head.saturating_add(n.saturating_mul(FRAGMENT_LEN))),
            _ => Err(WireError::FragmentCount(
                u32::try_from(n).unwrap_or(u32::MAX),
            )),
        };
        match self {
            BodyOut::ConnReq(_) | BodyOut::ConnAck(_) => Ok(super::constants::CONN_MSG_LEN),
            BodyOut::Noop => Ok(HEADER_LEN),
            BodyOut::Immediate { payload_len, .. } if *payload_len > IMMEDIATE_MAX => {
                Err(WireError::PayloadTooLong)
            }
            BodyOut::Immediate { payload_len, .. } => {
                Ok(IMMEDIATE_HEAD.saturating_add(*payload_len))
            }
            BodyOut::PutReq { .. } => Ok(PUT_REQ_LEN),
            BodyOut::PutAck { frags, .. } => with_frags(PUT_ACK_HEAD, frags.len()),
            BodyOut::GetReq { frags, .. } => with_frags(GET_REQ_HEAD, frags.len()),
            BodyOut::PutNak(_) | BodyOut::PutDone(_) | BodyOut::GetDone(_) => Ok(DONE_LEN),
        }
    }
}

/// Writes a message without checksum in our byte order and returns its length
/// in bytes.
///
/// Of an IMMEDIATE only the 120 bytes before the payload are written, but the
/// length returned counts the payload. Fails when `out` is too small, the
/// payload too long, or the number of fragments not 1..=257.
#[inline(always)]
pub fn encode(out: &mut [u8], env: &Envelope, body: &BodyOut<'_>) -> Result<usize, WireError> {
    encode_as(out, Order::Native, env, body)
}

/// Encodes like [`encode`], in the byte order of a peer.
///
/// The driver itself always sends its own order; this is for tests and tools.
#[inline(always)]
pub fn encode_as(
    out: &mut [u8],
    order: Order,
    env: &Envelope,
    body: &BodyOut<'_>,
) -> Result<usize, WireError> {
    let nob = body.nob()?;
    let wire_nob = u32::try_from(nob).map_err(|_| WireError::NoRoom)?;
    write(Writer::new(out, order), env, body, wire_nob).ok_or(WireError::NoRoom)?;
    Ok(nob)
}

#[inline(always)]
fn write(mut w: Writer<'_>, env: &Envelope, body: &BodyOut<'_>, nob: u32) -> Option<()> {
    w.u32(MAGIC)?;
    w.u16(env.version.wire())?;
    w.u8(body.kind().wire())?;
    w.u8(env.credits)?;
    w.u32(nob)?;
    w.u32(0)?;
    w.u64(env.src.raw())?;
    w.u64(env.src_stamp)?;
    w.u64(env.dst.raw())?;
    w.u64(env.dst_stamp)?;
    match body {
        BodyOut::ConnReq(p) | BodyOut::ConnAck(p) => write_params(&mut w, p),
        BodyOut::Noop => Some(()),
        BodyOut::Immediate { hdr, .. } => w.raw(*hdr),
        BodyOut::PutReq { hdr, cookie } => {
            w.raw(*hdr)?;
            w.raw(&cookie.0.to_ne_bytes())
        }
        BodyOut::PutAck {
            src,
            dst,
            key,
            frags,
        } => {
            w.raw(&src.0.to_ne_bytes())?;
            w.raw(&dst.0.to_ne_bytes())?;
            write_rd(&mut w, *key, frags)
        }
        BodyOut::GetReq {
            hdr,
            cookie,
            key,
            frags,
        } => {
            w.raw(*hdr)?;
            w.raw(&cookie.0.to_ne_bytes())?;
            write_rd(&mut w, *key, frags)
        }
        BodyOut::PutNak(d) | BodyOut::PutDone(d) | BodyOut::GetDone(d) => {
            w.raw(&d.cookie.0.to_ne_bytes())?;
            w.u32(u32::from_ne_bytes(d.status.to_ne_bytes()))
        }
    }
}

pub(super) fn write_params(w: &mut Writer<'_>, p: &ConnParams) -> Option<()> {
    w.u16(p.queue_depth)?;
    w.u16(p.max_frags)?;
    w.u32(p.max_msg_size)
}

// It has one user for each kind of message.
#[inline(always)]
fn write_rd(w: &mut Writer<'_>, key: u32, frags: &[Fragment]) -> Option<()> {
    w.u32(key)?;
    w.u32(u32::try_from(frags.len()).ok()?)?;
    for f in frags {
        w.u32(f.nob)?;
        w.u64(f.addr)?;
    }
    Some(())
}

/// Makes a written message ready to post: sets the credits it returns and, if `cksum`, its checksum.
///
/// `msg` holds the first `nob` bytes of the message in our byte order, payload
/// included; with a payload elsewhere use [`seal_parts`]. May be called again
/// before posting. Fails when `msg` is shorter than `nob` or than a header.
#[inline(always)]
pub fn finalize_hdr(msg: &mut [u8], nob: usize, credits: u8, cksum: bool) -> Result<(), WireError> {
    let msg = msg.get_mut(..nob).ok_or(WireError::NoRoom)?;
    seal_parts(msg, core::iter::empty(), credits, cksum)
}

/// Seals like [`finalize_hdr`] a message whose bytes after `head` are in `pieces`.
///
/// `head` must end where the first piece begins: 120 bytes for an IMMEDIATE.
#[inline(always)]
pub fn seal_parts<'a>(
    head: &mut [u8],
    pieces: impl Iterator<Item = &'a [u8]>,
    credits: u8,
    cksum: bool,
) -> Result<(), WireError> {
    if head.len() < HEADER_LEN {
        return Err(WireError::NoRoom);
    }
    *head.get_mut(CREDITS_AT).ok_or(WireError::NoRoom)? = credits;
    let value = if cksum { sum_of(head, pieces) } else { 0 };
    head.get_mut(CKSUM_AT)
        .ok_or(WireError::NoRoom)?
        .copy_from_slice(&value.to_ne_bytes());
    Ok(())
}

// Apart, because most messages carry none.
#[inline(never)]
fn sum_of<'a>(head: &[u8], pieces: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut sum = Running::header(head);
    for piece in pieces {
        sum.update(piece);
    }
    sum.finish()
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_wire))]
mod tests {
    use super::super::{
        nid::Nid,
        wire::{
            check_identity,
            decode,
            reparse,
            Body,
            Identity,
            Stale,
            Version, //
        }, //
    };
    use super::*;

    const ENV: Envelope = Envelope {
        version: Version::V2,
        credits: 3,
        src: Nid::new(0, 0x0a00_0002),
        src_stamp: 0x0006_4a1b_2c3d_4e5f,
        dst: Nid::new(0, 0x0a00_0001),
        dst_stamp: 0x0006_4a1b_0000_0001,
    };
    const HDR: RawLnetHdr = [0x5a; 72];
    const A: Cookie = Cookie(0x1122_3344_5566_7788);
    const B: Cookie = Cookie(0xaabb_ccdd_eeff_0011);
    const FRAGS: [Fragment; 2] = [
        Fragment {
            nob: 4096,
            addr: 0xffff_1000,
        },
        Fragment { nob: 0, addr: 1 },
    ];

    /// Checks the body of each type after encoding and decoding.
    fn through(order: Order, body: &BodyOut<'_>, check: fn(Body<'_>) -> bool) -> bool {
        let mut buf = [0; 200];
        let Ok(nob) = encode_as(&mut buf, order, &ENV, body) else {
            return false;
        };
        let Ok(msg) = decode(&buf) else {
            return false;
        };
        let same = msg.env == ENV && msg.order == order && msg.nob == nob;
        let again = reparse(&buf, msg.facts()).is_ok_and(check);
        same && again && msg.cksum == 0 && msg.body.kind() == body.kind() && check(msg.body)
    }

    #[test]
    fn every_type_round_trips_in_both_orders() {
        let done = DoneBody {
            cookie: A,
            status: -61,
        };
        let params = ConnParams {
            queue_depth: 8,
            max_frags: 257,
            max_msg_size: 4096,
        };
        for order in [Order::Native, Order::Swapped] {
            assert!(through(order, &BodyOut::Noop, |b| matches!(b, Body::Noop)));
            assert!(through(order, &BodyOut::ConnReq(params), |b| {
                matches!(b, Body::ConnReq(p) if p.max_frags == 257 && p.queue_depth == 8)
            }));
            assert!(through(order, &BodyOut::ConnAck(params), |b| {
                matches!(b, Body::ConnAck(p) if p.max_msg_size == 4096)
            }));
            let imm = BodyOut::Immediate {
                hdr: &HDR,
                payload_len: 50,
            };
            assert!(through(order, &imm, |b| {
                matches!(b, Body::Immediate { hdr, payload } if *hdr == HDR && payload.len() == 50)
            }));
            let req = BodyOut::PutReq {
                hdr: &HDR,
                cookie: A,
            };
            assert!(through(order, &req, |b| {
                matches!(b, Body::PutReq { hdr, cookie } if *hdr == HDR && cookie == A)
            }));
            assert!(through(order, &BodyOut::PutNak(done), |b| {
                matches!(b, Body::PutNak(d) if d.status == -61 && d.cookie == A)
            }));
            assert!(through(order, &BodyOut::PutDone(done), |b| {
                matches!(b, Body::PutDone(d) if d.status == -61 && d.cookie == A)
            }));
            assert!(through(order, &BodyOut::GetDone(done), |b| {
                matches!(b, Body::GetDone(d) if d.status == -61 && d.cookie == A)
            }));
            let ack = BodyOut::PutAck {
                src: A,
                dst: B,
                key: 0x1234_5678,
                frags: &FRAGS,
            };
            assert!(through(order, &ack, |b| {
                let Body::PutAck { src, dst, rd } = b else {
                    return false;
                };
                let same = rd.fragments().eq(FRAGS) && rd.key() == 0x1234_5678;
                same && src == A && dst == B && rd.total() == 4096 && rd.nfrags() == 2
            }));
            let get = BodyOut::GetReq {
                hdr: &HDR,
                cookie: B,
                key: 1,
                frags: &FRAGS,
            };
            assert!(through(order, &get, |b| {
                matches!(b, Body::GetReq { cookie, rd, .. } if cookie == B && rd.nfrags() == 2)
            }));
        }
    }

    #[test]
    fn too_long_for_the_wire_or_the_buffer() {
        // The kernel's stack is small: the upper limit is tried on the host.
        let mut buf = [0; 160];
        let none = BodyOut::PutAck {
            src: A,
            dst: B,
            key: 1,
            frags: &[],
        };
        assert_eq!(
            encode(&mut buf, &ENV, &none),
            Err(WireError::FragmentCount(0))
        );
        let mut imm = |payload_len| {
            let hdr = &HDR;
            encode(&mut buf, &ENV, &BodyOut::Immediate { hdr, payload_len })
        };
        assert_eq!(imm(3976), Ok(4096));
        assert_eq!(imm(3977), Err(WireError::PayloadTooLong));
        let mut short = [0; 47];
        assert_eq!(
            encode(&mut short, &ENV, &BodyOut::Noop),
            Err(WireError::NoRoom)
        );
    }

    #[test]
    fn sealed_messages_verify() -> Result<(), WireError> {
        let mut buf = [0xeeu8; 130];
        let body = BodyOut::Immediate {
            hdr: &HDR,
            payload_len: 10,
        };
        let nob = encode(&mut buf, &ENV, &body)?;
        finalize_hdr(&mut buf, nob, 200, true)?;
        let msg = decode(&buf)?;
        assert_eq!(msg.env.credits, 200);
        assert!(msg.cksum != 0);
        let (sum, facts) = (msg.cksum, msg.facts());

        // The same with the payload elsewhere, and once more.
        let (head, payload) = buf.split_at_mut(120);
        seal_parts(head, [&*payload].into_iter(), 200, true)?;
        assert_eq!(decode(&buf)?.cksum, sum);

        // Any change is seen; without checksum it is not.
        if let Some(b) = buf.last_mut() {
            *b ^= 1;
        }
        assert_eq!(decode(&buf).map(|m| m.nob), Err(WireError::Checksum));
        // A caller that reopens a message has checked it before.
        assert!(reparse(&buf, facts).is_ok());
        let (cut, _) = buf.split_at(nob.saturating_sub(1));
        assert!(reparse(cut, facts).is_err());
        finalize_hdr(&mut buf, nob, 0, false)?;
        assert_eq!(decode(&buf)?.cksum, 0);
        assert_eq!(
            finalize_hdr(&mut buf, 131, 0, false),
            Err(WireError::NoRoom)
        );
        Ok(())
    }

    #[test]
    fn identity() {
        let id = Identity {
            version: Version::V2,
            me: ENV.dst,
            my_stamp: ENV.dst_stamp,
            peer: ENV.src,
            peer_stamp: ENV.src_stamp,
        };
        assert_eq!(check_identity(&ENV, &id), Ok(()));
        let with = |f: fn(&mut Envelope)| {
            let mut env = ENV;
            f(&mut env);
            check_identity(&env, &id)
        };
        assert_eq!(with(|e| e.version = Version::V1), Err(Stale::Version));
        assert_eq!(with(|e| e.src = e.dst), Err(Stale::SourceNid));
        assert_eq!(with(|e| e.dst = e.src), Err(Stale::DestinationNid));
        assert_eq!(with(|e| e.src_stamp = 0), Err(Stale::SourceStamp));
        assert_eq!(with(|e| e.dst_stamp = 0), Err(Stale::DestinationStamp));
    }
}
