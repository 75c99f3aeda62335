// SPDX-License-Identifier: GPL-2.0

//! Wire format: messages from bytes to validated values, and back (spec 2).
//!
//! A value of [`WireMsg`] has passed every check that needs only the bytes. Checks that need the connection (identity,
//! credits, cookies) come later.
//!
//! [`encode`] writes a message once; [`finalize_hdr`] adds the credits that it returns, which may change until it is
//! posted, and the checksum, which depends on them.

use super::{
    constants::{
        FRAGS_MAX,
        HEADER_LEN,
        IMMEDIATE_HEAD,
        IMMEDIATE_MAX,
        LNET_HDR_LEN,
        LNET_MTU,
        MAGIC,
        MSG_SIZE, //
    },
    nid::Nid,
    require, //
};

/// Bytes of a GET_REQ before its fragments.
const GET_REQ_HEAD: usize = 136;
/// Bytes of one fragment in a descriptor.
const FRAGMENT_LEN: usize = 12;
/// Bytes of a descriptor before its first fragment: key and count.
const DESCRIPTOR_HEAD: usize = 8;
/// Offset of the credits that a message returns.
const CREDITS_AT: usize = 7;
/// Offset of the checksum.
const CKSUM_AT: usize = 12;
/// Bytes of the checksum, which count as zero in its own sum.
const CKSUM_ZEROS: [u8; 4] = [0; 4];

const _: () = assert!(GET_REQ_HEAD + FRAGMENT_LEN * FRAGS_MAX as usize <= MSG_SIZE);

/// Byte order of a peer, as seen from this node. Every field of the o2ib headers comes in its sender's order
/// (spec 2.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The same as ours.
    Native,
    /// The opposite of ours.
    Swapped,
}

/// Returns the byte order in which the field `found` is the magic number `magic`.
pub(super) fn order_of(found: u32, magic: u32) -> Option<Order> {
    if found == magic {
        Some(Order::Native)
    } else if found == magic.swap_bytes() {
        Some(Order::Swapped)
    } else {
        None
    }
}

/// Returns the `N` bytes at `off`, or `None` when the slice ends before.
#[inline(always)]
pub(super) fn array_at<const N: usize>(buf: &[u8], off: usize) -> Option<&[u8; N]> {
    buf.get(off..)?.first_chunk::<N>()
}

/// Defines methods of [`Order`] that read an integer at an offset.
macro_rules! readers {
    ($($name:ident: $int:ident),+) => {$(
        #[inline(always)]
        pub(super) fn $name(self, buf: &[u8], off: usize) -> Option<$int> {
            let v = $int::from_ne_bytes(*array_at(buf, off)?);
            Some(match self {
                Order::Native => v,
                Order::Swapped => v.swap_bytes(),
            })
        }
    )+};
}

impl Order {
    readers!(u16_at: u16, u32_at: u32, u64_at: u64);
}

/// Writer of consecutive fields into the rest of a slice; does not write past its end.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl<'a> Writer<'a> {
    /// Writes bytes as they are. Returns their place, so that they can be set later.
    #[inline(always)]
    pub(super) fn raw<const N: usize>(
        &mut self,
        bytes: &[u8; N],
    ) -> Result<&'a mut [u8; N], WireError> {
        let rest = core::mem::take(&mut self.0);
        let (place, rest) = rest.split_first_chunk_mut().ok_or(WireError::NoRoom)?;
        self.0 = rest;
        *place = *bytes;
        Ok(place)
    }

    pub(super) fn params(&mut self, p: &ConnParams) -> Result<(), WireError> {
        self.raw(&p.queue_depth.to_ne_bytes())?;
        self.raw(&p.max_frags.to_ne_bytes())?;
        self.raw(&p.max_msg_size.to_ne_bytes())?;
        Ok(())
    }

    #[inline(always)]
    fn descriptor(&mut self, rd: &DescriptorOut<'_>) -> Result<(), WireError> {
        let count = u32::try_from(rd.frags.len()).unwrap_or(u32::MAX);
        let is_allowed = (1..=u32::from(FRAGS_MAX)).contains(&count);
        require(is_allowed, WireError::FragmentCount(count))?;
        self.raw(&rd.key.to_ne_bytes())?;
        self.raw(&count.to_ne_bytes())?;
        for f in rd.frags {
            self.raw(&f.nob.to_ne_bytes())?;
            self.raw(&f.addr.to_ne_bytes())?;
        }
        Ok(())
    }
}

errors! {
    /// Reason why bytes are not a message, or why a message cannot be written (the last two).
    WireError {
        Short: "too short for a magic",
        Magic(magic: u32): "bad magic {magic:#010x}",
        Version(version: u16): "unknown version {version:#x}",
        ShortHeader: "too short for a header",
        Length(nob: u32): "length {nob} exceeds the bytes received",
        Checksum: "bad checksum",
        /// The sender calls itself "any".
        SourceAny: "wildcard source NID",
        ShortBody: "too short for its type",
        Type(kind: u8): "unknown type {kind:#04x}",
        FragmentCount(n: u32): "{n} fragments",
        ShortDescriptor: "too short for its fragments",
        DescriptorEmpty: "descriptor of zero bytes",
        DescriptorTooLong: "descriptor above 1 MiB",
        AddressWrap: "fragment wraps the address space",
        NoRoom: "no room for the message",
        PayloadTooLong: "payload too long for an IMMEDIATE",
    }
}

numbered! {
    /// Protocol version.
    Version: u16 {
        /// 0x11, before 2009: decoded, never sent.
        V1 = 0x11,
        /// 0x12, which this driver uses.
        V2 = 0x12,
    }
}

numbered! {
    /// Message types (spec 2.4).
    MsgType: u8 {
        /// Asks for a connection; in CM private data only.
        ConnReq = 0xc0 "?",
        /// Accepts a connection; in CM private data only.
        ConnAck = 0xc1 "?",
        /// Returns credits, or keeps the connection alive.
        Noop = 0xd0 "NOOP",
        /// An LNet message with its payload.
        Immediate = 0xd1 "IMMEDIATE",
        /// Offers the payload of a PUT or REPLY.
        PutReq = 0xd2 "PUT_REQ",
        /// Ends a PUT without RDMA.
        PutNak = 0xd3 "PUT_NAK",
        /// Names the memory for the payload.
        PutAck = 0xd4 "PUT_ACK",
        PutDone = 0xd5 "PUT_DONE",
        /// Asks for data and names the memory for it.
        GetReq = 0xd6 "GET_REQ",
        GetDone = 0xd7 "GET_DONE",
    }
}

/// Fields of every message besides its body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    pub version: Version,
    /// Receive credits returned with this message.
    pub credits: u8,
    pub src: Nid,
    /// Incarnation of the sending NI.
    pub src_stamp: u64,
    /// NID of the receiving NI: the next hop, not the final destination.
    pub dst: Nid,
    /// Incarnation of the receiving NI as the sender knows it; 0 = unknown.
    pub dst_stamp: u64,
}

/// Name of a transfer; chosen by one side, returned unchanged by the other.
///
/// The eight bytes in memory order: a cookie is never swapped.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cookie(pub u64);

/// Connection parameters in a CONNREQ, CONNACK or reject; any value possible.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnParams {
    pub queue_depth: u16,
    pub max_frags: u16,
    pub max_msg_size: u32,
}

/// Body of a PUT_NAK, PUT_DONE or GET_DONE.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DoneBody {
    pub cookie: Cookie,
    /// Bytes transferred, or a negative errno.
    pub status: i32,
}

/// LNet header as in a message, little-endian on every host.
pub type RawLnetHdr = [u8; LNET_HDR_LEN];

/// A piece of a memory region.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Length in bytes; fragments of length 0 are skipped.
    pub nob: u32,
    /// Address inside the region (IOVA).
    pub addr: u64,
}

/// Body of a message; see [`MsgType`]. The payload is a `P`, the memory that the receiver may write to a `D`.
#[derive(Copy, Clone, Debug)]
pub enum AnyBody<'a, P, D> {
    ConnReq(ConnParams),
    ConnAck(ConnParams),
    Noop,
    Immediate {
        hdr: &'a RawLnetHdr,
        payload: P,
    },
    PutReq {
        hdr: &'a RawLnetHdr,
        cookie: Cookie,
    },
    PutNak(DoneBody),
    /// `src` is the cookie of the PUT_REQ, `dst` the sink's.
    PutAck {
        src: Cookie,
        dst: Cookie,
        rd: D,
    },
    PutDone(DoneBody),
    GetReq {
        hdr: &'a RawLnetHdr,
        cookie: Cookie,
        rd: D,
    },
    GetDone(DoneBody),
}

/// Body of a received message. Its LNet header is not checked yet, see [`super::lnet_hdr`].
pub type Body<'a> = AnyBody<'a, &'a [u8], Descriptor<'a>>;

/// Body of a message to send. An IMMEDIATE has the length of its payload, which follows in memory.
pub type BodyOut<'a> = AnyBody<'a, usize, DescriptorOut<'a>>;

/// Memory of this node that a peer may write to, for a message to send.
#[derive(Copy, Clone, Debug)]
pub struct DescriptorOut<'a> {
    /// Remote key, one for all fragments.
    pub key: u32,
    pub frags: &'a [Fragment],
}

impl<P, D> AnyBody<'_, P, D> {
    #[inline(always)]
    pub const fn kind(&self) -> MsgType {
        match self {
            Self::ConnReq(_) => MsgType::ConnReq,
            Self::ConnAck(_) => MsgType::ConnAck,
            Self::Noop => MsgType::Noop,
            Self::Immediate { .. } => MsgType::Immediate,
            Self::PutReq { .. } => MsgType::PutReq,
            Self::PutNak(_) => MsgType::PutNak,
            Self::PutAck { .. } => MsgType::PutAck,
            Self::PutDone(_) => MsgType::PutDone,
            Self::GetReq { .. } => MsgType::GetReq,
            Self::GetDone(_) => MsgType::GetDone,
        }
    }
}

/// Memory of a peer that this node may write to, inside a received message.
///
/// # Invariants
///
/// Holds 1..=257 fragments; the sum of their lengths is 1..=1 MiB; no fragment wraps around the end of the address
/// space.
#[derive(Copy, Clone, Debug)]
pub struct Descriptor<'a> {
    key: u32,
    total: u32,
    nfrags: u16,
    rest: &'a [u8],
    order: Order,
}

impl<'a> Descriptor<'a> {
    /// Reads the descriptor at `off` in `msg`, a whole message. Checks its fragments, if the facts have no total.
    #[inline(always)]
    fn decode(msg: &'a [u8], off: usize, facts: ParsedHdr) -> Result<Self, WireError> {
        let order = facts.order;
        let body = msg.get(off..).ok_or(WireError::ShortBody)?;
        let key = order.u32_at(body, 0).ok_or(WireError::ShortBody)?;
        let count = order.u32_at(body, 4).ok_or(WireError::ShortBody)?;
        let nfrags = match u16::try_from(count) {
            Ok(n @ 1..=FRAGS_MAX) => n,
            _ => return Err(WireError::FragmentCount(count)),
        };
        let bytes = FRAGMENT_LEN.saturating_mul(usize::from(nfrags));
        let rest = body
            .get(DESCRIPTOR_HEAD..)
            .and_then(|rest| rest.get(..bytes))
            .ok_or(WireError::ShortDescriptor)?;
        let total = match facts.rd_total {
            0 => total_of(fragments(rest, order))?,
            total => total,
        };
        // INVARIANT: The count is right, and `total_of` checked the sum and the addresses, now or before.
        Ok(Self {
            key,
            total,
            nfrags,
            rest,
            order,
        })
    }

    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns how many bytes the fragments hold together, 1..=1 MiB.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns how many fragments there are, empty ones included, 1..=257.
    pub fn nfrags(&self) -> u16 {
        self.nfrags
    }

    /// Returns the fragments in order, empty ones included.
    pub fn fragments(&self) -> impl Iterator<Item = Fragment> + 'a {
        fragments(self.rest, self.order)
    }
}

/// Checks the fragments of a descriptor, and returns how many bytes they hold together.
fn total_of(fragments: impl Iterator<Item = Fragment>) -> Result<u32, WireError> {
    let mut total = 0u32;
    for f in fragments {
        f.addr
            .checked_add(u64::from(f.nob))
            .ok_or(WireError::AddressWrap)?;
        total = total
            .checked_add(f.nob)
            .filter(|&t| t <= LNET_MTU)
            .ok_or(WireError::DescriptorTooLong)?;
    }
    match total {
        0 => Err(WireError::DescriptorEmpty),
        total => Ok(total),
    }
}

fn fragments(mut bytes: &[u8], order: Order) -> impl Iterator<Item = Fragment> + '_ {
    core::iter::from_fn(move || {
        // Without a division, which `chunks_exact` begins with.
        let (f, rest) = bytes.split_first_chunk::<FRAGMENT_LEN>()?;
        bytes = rest;
        Some(Fragment {
            nob: order.u32_at(f, 0)?,
            addr: order.u64_at(f, 4)?,
        })
    })
}

/// A received message.
#[derive(Copy, Clone, Debug)]
pub struct WireMsg<'a> {
    /// Sender, destination, and the credits returned.
    pub env: Envelope,
    /// Facts for [`reparse`].
    pub facts: ParsedHdr,
    pub body: Body<'a>,
}

/// Results of [`decode`] that [`reparse`] needs, to keep with the bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ParsedHdr {
    kind: MsgType,
    pub order: Order,
    nob: u16,
    /// Total of its descriptor; 0 if that was not read.
    rd_total: u32,
}

impl ParsedHdr {
    pub fn kind(self) -> MsgType {
        self.kind
    }

    /// Returns whether this is an IMMEDIATE that is long enough for its LNet header.
    #[inline]
    pub fn is_immediate(self) -> bool {
        self.kind == MsgType::Immediate && self.nob() >= IMMEDIATE_HEAD
    }

    /// Returns the length of the message in bytes, header and payload included.
    #[inline]
    pub fn nob(self) -> usize {
        usize::from(self.nob)
    }

    /// Returns the facts of a message whose descriptor is `rd`: [`reparse`] does not check it again.
    #[inline]
    pub fn with_descriptor(self, rd: &Descriptor<'_>) -> Self {
        Self {
            rd_total: rd.total(),
            ..self
        }
    }
}

/// Reads a message from `buf`, the bytes that were received.
///
/// Bytes after the length that the message claims are ignored: CM private data is padded. The checks and their order
/// are those of spec 2.8, followed by those on descriptors that the reference driver lacks (H17, H18).
#[inline(always)]
pub fn decode(buf: &[u8]) -> Result<WireMsg<'_>, WireError> {
    let magic = Order::Native.u32_at(buf, 0).unwrap_or(MAGIC);
    let order = order_of(magic, MAGIC).unwrap_or(Order::Native);
    // A known length, so that no field of the header is out of bounds.
    let Some(head) = buf.first_chunk::<HEADER_LEN>() else {
        return Err(opening(buf, order).err().unwrap_or(WireError::ShortHeader));
    };
    let version = opening(head, order)?;
    let claimed = order.u32_at(head, 8).ok_or(WireError::ShortHeader)?;
    // From here on only the bytes of the claimed length are read.
    let (nob, msg) = u16::try_from(claimed)
        .ok()
        .and_then(|nob| Some((nob, buf.get(..usize::from(nob))?)))
        .ok_or(WireError::Length(claimed))?;
    require(msg.len() >= HEADER_LEN, WireError::ShortBody)?;
    let sum = order.u32_at(head, CKSUM_AT).ok_or(WireError::ShortHeader)?;
    let is_intact = sum == 0 || cksum_matches(msg, sum);
    require(is_intact, WireError::Checksum)?;
    let env = envelope(head, order, version).ok_or(WireError::ShortHeader)?;
    require(!env.src.is_any(), WireError::SourceAny)?;
    let [kind] = *array_at::<1>(head, 6).ok_or(WireError::ShortHeader)?;
    let mut facts = ParsedHdr {
        kind: MsgType::from_wire(kind).ok_or(WireError::Type(kind))?,
        order,
        nob,
        rd_total: 0,
    };
    let body = reparse(buf, facts)?;
    if let Body::GetReq { rd, .. } | Body::PutAck { rd, .. } = &body {
        facts = facts.with_descriptor(rd);
    }
    Ok(WireMsg { env, facts, body })
}

/// Checks magic and version, which precede all other fields.
#[inline]
fn opening(buf: &[u8], order: Order) -> Result<Version, WireError> {
    let magic = Order::Native.u32_at(buf, 0).ok_or(WireError::Short)?;
    let version = order.u16_at(buf, 4).ok_or(WireError::Short)?;
    require(
        order_of(magic, MAGIC) == Some(order),
        WireError::Magic(magic),
    )?;
    Version::from_wire(version).ok_or(WireError::Version(version))
}

#[inline(always)]
fn envelope(msg: &[u8; HEADER_LEN], order: Order, version: Version) -> Option<Envelope> {
    let [credits] = *array_at::<1>(msg, CREDITS_AT)?;
    Some(Envelope {
        version,
        credits,
        src: Nid::from_raw(order.u64_at(msg, 16)?),
        src_stamp: order.u64_at(msg, 24)?,
        dst: Nid::from_raw(order.u64_at(msg, 32)?),
        dst_stamp: order.u64_at(msg, 40)?,
    })
}

/// Returns the credits and the facts of a plain message of the connection `expect`, as [`decode`] and
/// [`check_identity`] would, which compare more. Returns `None` for all other messages. `received` bytes of `buf` are
/// the message. It is plain if it is in this host's byte order and has no checksum, as most are. The body is not read
/// yet.
#[inline(always)]
pub fn plain_head(
    buf: &[u8; MSG_SIZE],
    received: usize,
    expect: &Identity,
) -> Option<(u8, ParsedHdr)> {
    let order = Order::Native;
    let [kind, credits] = *array_at::<2>(buf, 6)?;
    let nob = u16::try_from(order.u32_at(buf, 8)?).ok()?;
    let plain = order.u32_at(buf, 0)? == MAGIC
        && order.u16_at(buf, 4)? == Version::V2.wire()
        && order.u32_at(buf, CKSUM_AT)? == 0
        && order.u64_at(buf, 16)? == expect.peer.raw()
        && order.u64_at(buf, 24)? == expect.peer_stamp
        && order.u64_at(buf, 32)? == expect.me.raw()
        && order.u64_at(buf, 40)? == expect.my_stamp
        && (HEADER_LEN..=received).contains(&usize::from(nob))
        && !expect.peer.is_any();
    if !plain {
        return None;
    }
    let facts = ParsedHdr {
        kind: MsgType::from_wire(kind)?,
        order,
        nob,
        rd_total: 0,
    };
    Some((credits, facts))
}

/// Returns the payload of an IMMEDIATE with these facts, see [`reparse`]; `None` for other messages.
#[inline(always)]
pub fn immediate_payload(buf: &[u8], facts: ParsedHdr) -> Option<&[u8]> {
    match facts.kind {
        MsgType::Immediate => buf.get(IMMEDIATE_HEAD..facts.nob()),
        _ => None,
    }
}

pub(super) fn conn_params(buf: &[u8], off: usize, order: Order) -> Option<ConnParams> {
    Some(ConnParams {
        queue_depth: order.u16_at(buf, off)?,
        max_frags: order.u16_at(buf, off.checked_add(2)?)?,
        max_msg_size: order.u32_at(buf, off.checked_add(4)?)?,
    })
}

/// Returns the body of a message with these facts, from the same bytes, without another check of its header and its
/// checksum. Checks its descriptor if the facts have none, and that each field lies within the message, which makes the
/// shortest message of each type that of spec 2.4.
#[inline(always)]
pub fn reparse(buf: &[u8], facts: ParsedHdr) -> Result<Body<'_>, WireError> {
    let (order, short) = (facts.order, WireError::ShortBody);
    let msg = buf
        .get(..facts.nob())
        .ok_or(WireError::Length(facts.nob.into()))?;
    let hdr = || array_at::<LNET_HDR_LEN>(msg, HEADER_LEN).ok_or(short);
    let cookie = |off| Order::Native.u64_at(msg, off).map(Cookie).ok_or(short);
    let params = || conn_params(msg, HEADER_LEN, order).ok_or(short);
    let done = || {
        Ok(DoneBody {
            cookie: cookie(48)?,
            status: i32::from_ne_bytes(order.u32_at(msg, 56).ok_or(short)?.to_ne_bytes()),
        })
    };
    Ok(match facts.kind {
        MsgType::ConnReq => Body::ConnReq(params()?),
        MsgType::ConnAck => Body::ConnAck(params()?),
        MsgType::Noop => Body::Noop,
        MsgType::Immediate => Body::Immediate {
            hdr: hdr()?,
            payload: msg.get(IMMEDIATE_HEAD..).ok_or(short)?,
        },
        MsgType::PutReq => Body::PutReq {
            hdr: hdr()?,
            cookie: cookie(120)?,
        },
        MsgType::PutNak => Body::PutNak(done()?),
        MsgType::PutAck => Body::PutAck {
            src: cookie(48)?,
            dst: cookie(56)?,
            rd: Descriptor::decode(msg, 64, facts)?,
        },
        MsgType::PutDone => Body::PutDone(done()?),
        MsgType::GetReq => Body::GetReq {
            hdr: hdr()?,
            cookie: cookie(120)?,
            rd: Descriptor::decode(msg, 128, facts)?,
        },
        MsgType::GetDone => Body::GetDone(done()?),
    })
}

/// Identities of both ends of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub me: Nid,
    pub my_stamp: u64,
    pub peer: Nid,
    /// Incarnation of the peer, recorded when the connection was made.
    pub peer_stamp: u64,
}

errors! {
    /// Mismatch between a message and its connection.
    Stale {
        Version: "version differs from the connection's",
        SourceNid: "source NID is not the peer's",
        DestinationNid: "destination NID is not ours",
        SourceStamp: "peer incarnation differs",
        DestinationStamp: "sent to an earlier incarnation of this NI",
    }
}

/// Checks that a message on an established connection comes from the peer of this connection, and is for this
/// incarnation of our NI (spec 2.7; the version is H23). Otherwise the connection must be closed.
pub fn check_identity(env: &Envelope, expect: &Identity) -> Result<(), Stale> {
    require(env.version == Version::V2, Stale::Version)?;
    require(env.src == expect.peer, Stale::SourceNid)?;
    require(env.dst == expect.me, Stale::DestinationNid)?;
    require(env.src_stamp == expect.peer_stamp, Stale::SourceStamp)?;
    require(env.dst_stamp == expect.my_stamp, Stale::DestinationStamp)
}

/// Writes a message without checksum in our byte order and returns its length in bytes.
///
/// Of an IMMEDIATE only the 120 bytes before the payload are written, but the length returned counts the payload. Fails
/// when `out` is too small, the payload too long, or the number of fragments not 1..=257.
#[inline(always)]
pub fn encode(out: &mut [u8], env: &Envelope, body: &BodyOut<'_>) -> Result<usize, WireError> {
    let room = out.len();
    let mut w = Writer(out);
    w.raw(&MAGIC.to_ne_bytes())?;
    w.raw(&env.version.wire().to_ne_bytes())?;
    w.raw(&[body.kind().wire(), env.credits])?;
    let length = w.raw(&[0; 4])?;
    w.raw(&CKSUM_ZEROS)?;
    w.raw(&env.src.raw().to_ne_bytes())?;
    w.raw(&env.src_stamp.to_ne_bytes())?;
    w.raw(&env.dst.raw().to_ne_bytes())?;
    w.raw(&env.dst_stamp.to_ne_bytes())?;
    let mut following = 0;
    match body {
        BodyOut::ConnReq(p) | BodyOut::ConnAck(p) => w.params(p)?,
        BodyOut::Noop => {}
        BodyOut::Immediate { payload, .. } if *payload > IMMEDIATE_MAX => {
            return Err(WireError::PayloadTooLong)
        }
        BodyOut::Immediate { hdr, payload } => {
            w.raw(hdr)?;
            following = *payload;
        }
        BodyOut::PutReq { hdr, cookie } => {
            w.raw(hdr)?;
            w.raw(&cookie.0.to_ne_bytes())?;
        }
        BodyOut::PutAck { src, dst, rd } => {
            w.raw(&src.0.to_ne_bytes())?;
            w.raw(&dst.0.to_ne_bytes())?;
            w.descriptor(rd)?;
        }
        BodyOut::GetReq { hdr, cookie, rd } => {
            w.raw(hdr)?;
            w.raw(&cookie.0.to_ne_bytes())?;
            w.descriptor(rd)?;
        }
        BodyOut::PutNak(d) | BodyOut::PutDone(d) | BodyOut::GetDone(d) => {
            w.raw(&d.cookie.0.to_ne_bytes())?;
            w.raw(&d.status.to_ne_bytes())?;
        }
    }
    let written = room.saturating_sub(w.0.len());
    let nob = written.saturating_add(following);
    let wire_nob = u32::try_from(nob).map_err(|_| WireError::NoRoom)?;
    *length = wire_nob.to_ne_bytes();
    Ok(nob)
}

/// Makes a written message ready to post: sets the credits it returns and, if `cksum`, its checksum.
///
/// `msg` holds the first `nob` bytes of the message in our byte order, payload included. May be called again before
/// posting. Fails when `msg` is shorter than `nob`, or `nob` than a header.
#[inline(always)]
pub fn finalize_hdr(msg: &mut [u8], nob: usize, credits: u8, cksum: bool) -> Result<(), WireError> {
    let msg = msg.get_mut(..nob).ok_or(WireError::NoRoom)?;
    require(msg.len() >= HEADER_LEN, WireError::NoRoom)?;
    *msg.get_mut(CREDITS_AT).ok_or(WireError::NoRoom)? = credits;
    let value = if cksum { checksum(msg) } else { 0 };
    let field = msg
        .get_mut(CKSUM_AT..)
        .and_then(|rest| rest.first_chunk_mut());
    *field.ok_or(WireError::NoRoom)? = value.to_ne_bytes();
    Ok(())
}

/// Returns the checksum to send with `msg`, a whole message (spec 2.6); never 0, which means "no checksum".
// Separate function, because most messages carry none.
#[inline(never)]
pub fn checksum(msg: &[u8]) -> u32 {
    sums(msg).0.max(1)
}

/// Returns whether `received` is a right checksum of `msg`, a whole message.
///
/// Peers built with signed `char` (x86 before Linux 6.2) and those built with unsigned `char` differ for bytes above
/// 0x7f; both are right.
pub fn cksum_matches(msg: &[u8], received: u32) -> bool {
    let (unsigned, signed) = sums(msg);
    received == unsigned.max(1) || received == signed.max(1)
}

/// Returns the sums of a message, with its bytes as unsigned and as signed numbers: rotate left by one, add the byte.
fn sums(msg: &[u8]) -> (u32, u32) {
    let (before, rest) = msg.split_at(msg.len().min(CKSUM_AT));
    let (field, after) = rest.split_at(rest.len().min(CKSUM_ZEROS.len()));
    let zeros = CKSUM_ZEROS.iter().take(field.len());
    let bytes = before.iter().chain(zeros).chain(after);
    bytes.fold((0u32, 0u32), |(unsigned, signed), &b| {
        // A C `char` that is signed: the byte is sign-extended first.
        let extended = i32::from(i8::from_ne_bytes([b])) as u32;
        (
            unsigned.rotate_left(1).wrapping_add(u32::from(b)),
            signed.rotate_left(1).wrapping_add(extended),
        )
    })
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_wire))]
mod tests {
    use super::{
        super::swap::swap_message,
        *, //
    };

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

    /// Returns the checksum in a message.
    fn cksum_of(msg: &[u8]) -> Option<u32> {
        Order::Native.u32_at(msg, CKSUM_AT)
    }

    /// Checks the body of each type after encoding and decoding.
    fn through(order: Order, body: &BodyOut<'_>, check: fn(Body<'_>) -> bool) -> bool {
        let mut buf = [0; 200];
        let Ok(nob) = encode(&mut buf, &ENV, body) else {
            return false;
        };
        if order == Order::Swapped {
            swap_message(&mut buf);
        }
        let Ok(msg) = decode(&buf) else {
            return false;
        };
        let same = msg.env == ENV && msg.facts.order == order && msg.facts.nob() == nob;
        let again = reparse(&buf, msg.facts).is_ok_and(check);
        same && again
            && cksum_of(&buf) == Some(0)
            && msg.body.kind() == body.kind()
            && check(msg.body)
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
                payload: 50,
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
                rd: DescriptorOut {
                    key: 0x1234_5678,
                    frags: &FRAGS,
                },
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
                rd: DescriptorOut {
                    key: 1,
                    frags: &FRAGS,
                },
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
            rd: DescriptorOut { key: 1, frags: &[] },
        };
        assert_eq!(
            encode(&mut buf, &ENV, &none),
            Err(WireError::FragmentCount(0))
        );
        let mut imm = |payload| {
            let hdr = &HDR;
            encode(&mut buf, &ENV, &BodyOut::Immediate { hdr, payload })
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
            payload: 10,
        };
        let nob = encode(&mut buf, &ENV, &body)?;
        finalize_hdr(&mut buf, nob, 200, true)?;
        let msg = decode(&buf)?;
        assert_eq!(msg.env.credits, 200);
        let (sum, facts) = (cksum_of(&buf), msg.facts);
        assert!(sum != Some(0));

        // The same once more.
        finalize_hdr(&mut buf, nob, 200, true)?;
        assert_eq!(cksum_of(&buf), sum);

        // Any change is seen; without checksum it is not.
        if let Some(b) = buf.last_mut() {
            *b ^= 1;
        }
        assert_eq!(decode(&buf).map(|m| m.facts), Err(WireError::Checksum));
        // A caller that reopens a message has checked it before.
        assert!(reparse(&buf, facts).is_ok());
        let (cut, _) = buf.split_at(nob.saturating_sub(1));
        assert!(reparse(cut, facts).is_err());
        finalize_hdr(&mut buf, nob, 0, false)?;
        assert_eq!(cksum_of(&buf), Some(0));
        assert_eq!(
            finalize_hdr(&mut buf, 131, 0, false),
            Err(WireError::NoRoom)
        );
        Ok(())
    }

    #[test]
    fn identity() {
        let id = Identity {
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

    #[test]
    fn own_checksum_field_counts_as_zero() {
        let zero = [0u8; 48];
        let mut noise = zero;
        if let Some(field) = noise.get_mut(12..16) {
            field.copy_from_slice(&[1, 2, 3, 4]);
        }
        assert_eq!(checksum(&zero), 1);
        assert_eq!(checksum(&noise), 1);
        assert!(cksum_matches(&noise, 1));
        assert!(!cksum_matches(&noise, 0));
        assert!(!cksum_matches(&noise, 2));
    }

    #[test]
    fn checksum_rotates_then_adds() {
        assert_eq!(checksum(&[1, 0, 0]), 4);
        assert_eq!(checksum(&[1, 2, 3]), 11);
        assert_eq!(checksum(&[]), 1);
    }

    #[test]
    fn both_char_variants_are_accepted() {
        assert_eq!(checksum(&[0x80]), 0x80);
        assert!(cksum_matches(&[0x80], 0x80));
        assert!(cksum_matches(&[0x80], 0xffff_ff80));
        assert!(!cksum_matches(&[0x80], 0x7f));
    }
}
