// SPDX-License-Identifier: GPL-2.0

//! LNet header inside messages: the fields that the driver needs before LNet gets it (spec 2.5). Little-endian whatever
//! the sender's order.

use super::{
    constants::{
        IMMEDIATE_MAX,
        LNET_MTU, //
    },
    nid::Nid,
    wire::{
        array_at,
        Descriptor,
        MsgType,
        RawLnetHdr, //
    }, //
};

numbered! {
    /// Kind of an LNet message (`enum lnet_msg_type`).
    LnetKind: u32 {
        /// Acknowledges a PUT; no payload.
        Ack = 0,
        Put = 1,
        /// Asks the peer for data; no payload, but a sink.
        Get = 2,
        /// Carries data that a GET asked for.
        Reply = 3,
        /// Never used by this LND.
        Hello = 4,
    }
}

impl LnetKind {
    /// Returns whether it answers a message of the peer.
    pub const fn is_answer(self) -> bool {
        matches!(self, Self::Ack | Self::Reply)
    }
}

pub fn dest_nid(hdr: &RawLnetHdr) -> Nid {
    let [a, b, c, d, e, f, g, h, ..] = *hdr;
    Nid::from_raw(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

fn kind_of(hdr: &RawLnetHdr) -> Result<LnetKind, HdrError> {
    let raw = u32_at(hdr, 24);
    LnetKind::from_wire(raw).ok_or(HdrError::UnknownKind(raw))
}

/// Returns the payload length in bytes, as the sender claims.
pub fn payload_length(hdr: &RawLnetHdr) -> u32 {
    u32_at(hdr, 28)
}

/// Returns the number at `off`, which lies inside the 72 bytes.
fn u32_at(hdr: &RawLnetHdr, off: usize) -> u32 {
    array_at(hdr, off).map_or(0, |b| u32::from_le_bytes(*b))
}

errors! {
    /// Reason why a header does not fit its message. The connection must be closed: a correct peer never sends this.
    HdrError {
        UnknownKind(kind: u32): "unknown LNet type {kind}",
        /// This kind cannot travel in this message (H15, H16).
        WrongKind(kind: LnetKind): "LNet {kind:?} in the wrong message type",
        PayloadNotAllowed: "LNet ACK or GET with a payload",
        /// More payload than the message holds (H24), or than LNet allows.
        PayloadTooLong(nob: u32): "LNet payload of {nob} bytes does not fit",
        SinkTooShort(nob: u32): "LNet GET of {nob} bytes exceeds its sink",
    }
}

/// Checks the header of an IMMEDIATE.
///
/// `payload` are the bytes after the header up to the end of the *message*, not of what the HCA received: bytes outside
/// the checksum are not payload.
pub fn check_immediate(hdr: &RawLnetHdr, payload: &[u8]) -> Result<(), HdrError> {
    let nob = payload_length(hdr);
    match kind_of(hdr)? {
        LnetKind::Hello => Err(HdrError::WrongKind(LnetKind::Hello)),
        LnetKind::Ack | LnetKind::Get if nob != 0 => Err(HdrError::PayloadNotAllowed),
        _ if usize::try_from(nob).is_ok_and(|nob| nob <= payload.len()) => Ok(()),
        _ => Err(HdrError::PayloadTooLong(nob)),
    }
}

/// Checks the header of a PUT_REQ.
///
/// Only PUT and REPLY: with a GET, LNet would prepare a source, and we would let the peer write into it (H15).
pub fn check_put(hdr: &RawLnetHdr) -> Result<(), HdrError> {
    match (kind_of(hdr)?, payload_length(hdr)) {
        (LnetKind::Put | LnetKind::Reply, 0..=LNET_MTU) => Ok(()),
        (LnetKind::Put | LnetKind::Reply, nob) => Err(HdrError::PayloadTooLong(nob)),
        (kind, _) => Err(HdrError::WrongKind(kind)),
    }
}

/// Checks the header of a GET_REQ against its descriptor.
///
/// Only GET: with a PUT or REPLY, LNet would prepare a sink, and we would send its old contents to the peer (H16).
pub fn check_get(hdr: &RawLnetHdr, rd: &Descriptor<'_>) -> Result<(), HdrError> {
    // The sender has room for this number of bytes.
    let wanted = u32_at(hdr, 64);
    match kind_of(hdr)? {
        LnetKind::Get if payload_length(hdr) != 0 => Err(HdrError::PayloadNotAllowed),
        LnetKind::Get if wanted > rd.total() => Err(HdrError::SinkTooShort(wanted)),
        LnetKind::Get => Ok(()),
        kind => Err(HdrError::WrongKind(kind)),
    }
}

/// Chooses the message that carries an LNet message, or begins to (spec 6.1).
///
/// `via_router`: the next hop is a router, or the message is forwarded. `nob`: the payload in bytes; for a GET the
/// length of its memory descriptor, because the message itself has none (LU-20326). `gpu`: the memory is a GPU's and
/// cannot be copied by the CPU. `None` for a HELLO, which this LND never carries.
pub fn choose(kind: LnetKind, via_router: bool, nob: u32, gpu: bool) -> Option<MsgType> {
    let small = usize::try_from(nob).is_ok_and(|n| n <= IMMEDIATE_MAX);
    // Without data it does not matter whose memory it is.
    let immediate = nob == 0 || (small && !gpu);
    match kind {
        LnetKind::Ack => Some(MsgType::Immediate),
        LnetKind::Get if via_router || immediate => Some(MsgType::Immediate),
        LnetKind::Get => Some(MsgType::GetReq),
        LnetKind::Put | LnetKind::Reply if immediate => Some(MsgType::Immediate),
        LnetKind::Put | LnetKind::Reply => Some(MsgType::PutReq),
        LnetKind::Hello => None,
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_lnet_hdr))]
mod tests {
    use super::super::wire::{
        decode,
        encode,
        Body,
        BodyOut,
        Cookie,
        DescriptorOut,
        Envelope,
        Fragment,
        Version, //
    };
    use super::*;

    /// Returns a header with the given type, payload length and GET sink length.
    fn hdr(kind: u32, payload: u32, sink: u32) -> RawLnetHdr {
        let mut raw = [0; 72];
        for (off, v) in [(24, kind), (28, payload), (64, sink)] {
            for (to, from) in raw.iter_mut().skip(off).zip(v.to_le_bytes()) {
                *to = from;
            }
        }
        raw
    }

    /// Calls `f` with a descriptor of one fragment of `nob` bytes.
    fn with_rd<T>(nob: u32, f: impl FnOnce(&Descriptor<'_>) -> T) -> Option<T> {
        let env = Envelope {
            version: Version::V2,
            credits: 0,
            src: Nid::new(0, 2),
            src_stamp: 1,
            dst: Nid::new(0, 1),
            dst_stamp: 1,
        };
        let request = BodyOut::GetReq {
            hdr: &[0; 72],
            cookie: Cookie(1),
            rd: DescriptorOut {
                key: 7,
                frags: &[Fragment { nob, addr: 0 }],
            },
        };
        let mut buf = [0; 160];
        encode(&mut buf, &env, &request).ok()?;
        match decode(&buf).ok()?.body {
            Body::GetReq { rd, .. } => Some(f(&rd)),
            _ => None,
        }
    }

    #[test]
    fn immediate_takes_four_kinds() {
        let data = [0u8; 10];
        for n in [0, 2] {
            assert_eq!(check_immediate(&hdr(n, 0, 0), &[]), Ok(()));
            let got = check_immediate(&hdr(n, 1, 0), &data);
            assert_eq!(got, Err(HdrError::PayloadNotAllowed));
        }
        for n in [1, 3] {
            assert_eq!(check_immediate(&hdr(n, 10, 0), &data), Ok(()));
        }
        let got = check_immediate(&hdr(4, 0, 0), &[]);
        assert_eq!(got, Err(HdrError::WrongKind(LnetKind::Hello)));
        let got = check_immediate(&hdr(5, 0, 0), &[]);
        assert_eq!(got, Err(HdrError::UnknownKind(5)));
    }

    #[test]
    fn h24_payload_ends_with_the_message() {
        let data = [0u8; 10];
        let check = |n| check_immediate(&hdr(1, n, 0), &data);
        assert_eq!((check(9), check(10)), (Ok(()), Ok(())));
        assert_eq!(check(11), Err(HdrError::PayloadTooLong(11)));
        assert_eq!(check(u32::MAX), Err(HdrError::PayloadTooLong(u32::MAX)));
    }

    #[test]
    fn h15_put_req_carries_put_or_reply() {
        assert_eq!(check_put(&hdr(1, 5000, 0)), Ok(()));
        assert_eq!(check_put(&hdr(3, LNET_MTU, 0)), Ok(()));
        assert_eq!(
            check_put(&hdr(1, 0x0010_0001, 0)),
            Err(HdrError::PayloadTooLong(0x0010_0001))
        );
        for (n, kind) in [(0, LnetKind::Ack), (2, LnetKind::Get), (4, LnetKind::Hello)] {
            assert_eq!(check_put(&hdr(n, 0, 0)), Err(HdrError::WrongKind(kind)));
        }
        assert_eq!(check_put(&hdr(9, 0, 0)), Err(HdrError::UnknownKind(9)));
    }

    #[test]
    fn h16_get_req_carries_get() {
        let check = |h: RawLnetHdr| with_rd(4096, |rd| check_get(&h, rd));
        assert_eq!(check(hdr(2, 0, 4096)), Some(Ok(())));
        assert_eq!(check(hdr(2, 0, 100)), Some(Ok(())));
        assert_eq!(
            check(hdr(2, 0, 4097)),
            Some(Err(HdrError::SinkTooShort(4097)))
        );
        assert_eq!(
            check(hdr(2, 1, 4096)),
            Some(Err(HdrError::PayloadNotAllowed))
        );
        for (n, kind) in [(0, LnetKind::Ack), (1, LnetKind::Put), (3, LnetKind::Reply)] {
            assert_eq!(check(hdr(n, 0, 0)), Some(Err(HdrError::WrongKind(kind))));
        }
    }

    #[test]
    fn fields_are_little_endian() {
        let mut raw = hdr(1, 0x0102_0304, 0);
        for (to, from) in raw.iter_mut().zip([1, 0, 0, 10, 0, 0, 5, 0]) {
            *to = from;
        }
        assert_eq!(payload_length(&raw), 0x0102_0304);
        assert_eq!(dest_nid(&raw), Nid::new(0, 0x0a00_0001));
    }

    #[test]
    fn method_by_size() {
        use MsgType::*;
        for kind in [LnetKind::Put, LnetKind::Reply] {
            assert_eq!(choose(kind, false, 3976, false), Some(Immediate));
            assert_eq!(choose(kind, false, 3977, false), Some(PutReq));
            assert_eq!(choose(kind, true, 3977, false), Some(PutReq));
            assert_eq!(choose(kind, false, 1, true), Some(PutReq));
            assert_eq!(choose(kind, false, 0, true), Some(Immediate));
        }
        let get = LnetKind::Get;
        assert_eq!(choose(get, false, 3976, false), Some(Immediate));
        assert_eq!(choose(get, false, 3977, false), Some(GetReq));
        assert_eq!(choose(get, false, 1, true), Some(GetReq));
        assert_eq!(choose(get, true, 1 << 20, false), Some(Immediate));
        assert_eq!(choose(LnetKind::Ack, true, 0, false), Some(Immediate));
        assert_eq!(choose(LnetKind::Hello, false, 0, false), None);
    }
}
