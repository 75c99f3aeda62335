// SPDX-License-Identifier: GPL-2.0

//! Received messages: from bytes to validated values (spec 2).
//!
//! A value of [`WireMsg`] has passed every check that needs only the bytes. Checks that need the connection (identity,
//! credits, cookies) come later.

use core::fmt;

use super::{
    bytes::{
        array_at,
        order_of, //
    },
    cksum,
    constants::{
        HEADER_LEN,
        IMMEDIATE_HEAD,
        LNET_HDR_LEN,
        MAGIC,
        MSG_SIZE, //
    },
    nid::Nid,
    rdma_descriptor::Descriptor, //
};

pub use super::{
    bytes::Order,
    rdma_descriptor::{
        Fragment,
        Fragments, //
    },
    wire_error::WireError, //
};

/// Protocol version.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// 0x11, before 2009: decoded, never sent.
    V1,
    /// 0x12, which this driver uses.
    V2,
}

impl Version {
    /// Returns the number on the wire.
    pub const fn wire(self) -> u16 {
        match self {
            Version::V1 => 0x11,
            Version::V2 => 0x12,
        }
    }

    /// Returns the version of a number; `None` if there is none.
    pub const fn from_wire(v: u16) -> Option<Self> {
        match v {
            0x11 => Some(Version::V1),
            0x12 => Some(Version::V2),
            _ => None,
        }
    }
}

/// Message types (spec 2.4).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MsgType {
    /// Asks for a connection; in CM private data only.
    ConnReq = 0xc0,
    /// Accepts a connection; in CM private data only.
    ConnAck = 0xc1,
    /// Returns credits, or keeps the connection alive.
    Noop = 0xd0,
    /// An LNet message with its payload.
    Immediate = 0xd1,
    /// Offers the payload of a PUT or REPLY.
    PutReq = 0xd2,
    /// Ends a PUT without RDMA.
    PutNak = 0xd3,
    /// Names the memory for the payload.
    PutAck = 0xd4,
    /// The payload was written.
    PutDone = 0xd5,
    /// Asks for data and names the memory for it.
    GetReq = 0xd6,
    /// The data was written.
    GetDone = 0xd7,
}

impl MsgType {
    /// Returns the type of a number; `None` if there is none.
    pub const fn from_wire(v: u8) -> Option<Self> {
        Some(match v {
            0xc0 => MsgType::ConnReq,
            0xc1 => MsgType::ConnAck,
            0xd0 => MsgType::Noop,
            0xd1 => MsgType::Immediate,
            0xd2 => MsgType::PutReq,
            0xd3 => MsgType::PutNak,
            0xd4 => MsgType::PutAck,
            0xd5 => MsgType::PutDone,
            0xd6 => MsgType::GetReq,
            0xd7 => MsgType::GetDone,
            _ => return None,
        })
    }

    /// Returns the number on the wire.
    pub const fn wire(self) -> u8 {
        self as u8
    }
}

/// Fields of every message besides its body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Protocol version of the sender.
    pub version: Version,
    /// Receive credits returned with this message.
    pub credits: u8,
    /// NID of the sending NI.
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
    /// Queue depth.
    pub queue_depth: u16,
    /// Most fragments in a descriptor.
    pub max_frags: u16,
    /// Largest message in bytes.
    pub max_msg_size: u32,
}

/// Body of a PUT_NAK, PUT_DONE or GET_DONE.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DoneBody {
    /// The transfer that ends.
    pub cookie: Cookie,
    /// Bytes transferred, or a negative errno.
    pub status: i32,
}

/// LNet header as in a message, little-endian on every host.
pub type RawLnetHdr = [u8; LNET_HDR_LEN];

/// Body of a received message.
#[derive(Copy, Clone, Debug)]
#[allow(missing_docs)] // the field names are those of the specification
pub enum Body<'a> {
    /// See [`MsgType::ConnReq`].
    ConnReq(ConnParams),
    /// See [`MsgType::ConnAck`].
    ConnAck(ConnParams),
    /// See [`MsgType::Noop`].
    Noop,
    /// See [`MsgType::Immediate`]; use [`super::lnet_hdr::check_immediate`].
    Immediate {
        hdr: &'a RawLnetHdr,
        payload: &'a [u8],
    },
    /// See [`MsgType::PutReq`]; use [`super::lnet_hdr::check_put`].
    PutReq { hdr: &'a RawLnetHdr, cookie: Cookie },
    /// See [`MsgType::PutNak`].
    PutNak(DoneBody),
    /// See [`MsgType::PutAck`]; `src` is our cookie, `dst` the sink's.
    PutAck {
        src: Cookie,
        dst: Cookie,
        rd: Descriptor<'a>,
    },
    /// See [`MsgType::PutDone`].
    PutDone(DoneBody),
    /// See [`MsgType::GetReq`]; use [`super::lnet_hdr::check_get`].
    GetReq {
        hdr: &'a RawLnetHdr,
        cookie: Cookie,
        rd: Descriptor<'a>,
    },
    /// See [`MsgType::GetDone`].
    GetDone(DoneBody),
}

impl Body<'_> {
    /// Returns the message type.
    pub const fn kind(&self) -> MsgType {
        match self {
            Body::ConnReq(_) => MsgType::ConnReq,
            Body::ConnAck(_) => MsgType::ConnAck,
            Body::Noop => MsgType::Noop,
            Body::Immediate { .. } => MsgType::Immediate,
            Body::PutReq { .. } => MsgType::PutReq,
            Body::PutNak(_) => MsgType::PutNak,
            Body::PutAck { .. } => MsgType::PutAck,
            Body::PutDone(_) => MsgType::PutDone,
            Body::GetReq { .. } => MsgType::GetReq,
            Body::GetDone(_) => MsgType::GetDone,
        }
    }
}

/// A received message.
#[derive(Copy, Clone, Debug)]
pub struct WireMsg<'a> {
    /// Sender, destination, and the credits returned.
    pub env: Envelope,
    /// The sender's byte order.
    pub order: Order,
    /// Length in bytes, header and payload included.
    pub nob: usize,
    /// The checksum as received and verified; 0 = none.
    pub cksum: u32,
    /// Body, by type.
    pub body: Body<'a>,
}

/// Reads connection parameters at `off`.
pub(super) fn conn_params(buf: &[u8], off: usize, order: Order) -> Option<ConnParams> {
    Some(ConnParams {
        queue_depth: order.u16_at(buf, off)?,
        max_frags: order.u16_at(buf, off.checked_add(2)?)?,
        max_msg_size: order.u32_at(buf, off.checked_add(4)?)?,
    })
}

fn cookie(buf: &[u8], off: usize) -> Option<Cookie> {
    Some(Cookie(u64::from_ne_bytes(*array_at(buf, off)?)))
}

fn done(buf: &[u8], order: Order) -> Option<DoneBody> {
    Some(DoneBody {
        cookie: cookie(buf, 48)?,
        status: i32::from_ne_bytes(order.u32_at(buf, 56)?.to_ne_bytes()),
    })
}

/// Reads a message from `buf`, the bytes that were received.
///
/// Bytes after the length that the message claims are ignored: CM private
/// data is padded. The checks and their order are those of spec 2.8, followed
/// by those on descriptors that the reference driver lacks (H17, H18).
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
    let msg = u16::try_from(claimed)
        .ok()
        .and_then(|nob| buf.get(..usize::from(nob)))
        .ok_or(WireError::Length(claimed))?;
    if msg.len() < HEADER_LEN {
        return Err(WireError::ShortBody);
    }
    let received = order.u32_at(head, 12).ok_or(WireError::ShortHeader)?;
    if received != 0 && !cksum::verify(msg, received) {
        return Err(WireError::Checksum);
    }
    let env = envelope(head, order, version).ok_or(WireError::ShortHeader)?;
    if env.src.is_any() {
        return Err(WireError::SourceAny);
    }
    let [kind] = *array_at::<1>(head, 6).ok_or(WireError::ShortHeader)?;
    let kind = MsgType::from_wire(kind).ok_or(WireError::Type(kind))?;
    Ok(WireMsg {
        env,
        order,
        nob: msg.len(),
        cksum: received,
        body: body(kind, msg, order, 0)?,
    })
}

/// Results of [`decode`] that [`reparse`] needs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ParsedHdr {
    kind: MsgType,
    order: Order,
    nob: u16,
    /// Total of its descriptor; 0 if that was not read.
    rd_total: u32,
}

impl ParsedHdr {
    /// Returns the message type.
    pub fn kind(self) -> MsgType {
        self.kind
    }

    /// Returns whether this is an IMMEDIATE that is long enough for its LNet header.
    #[inline]
    pub fn is_immediate(self) -> bool {
        self.kind == MsgType::Immediate && self.nob() >= IMMEDIATE_HEAD
    }

    /// Returns the length of the message in bytes.
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

impl WireMsg<'_> {
    /// Returns the facts to keep with the bytes for [`reparse`].
    #[inline(always)]
    pub fn facts(&self) -> ParsedHdr {
        let head = ParsedHdr {
            kind: self.body.kind(),
            order: self.order,
            // `decode` reads no longer messages.
            nob: u16::try_from(self.nob).unwrap_or(u16::MAX),
            rd_total: 0,
        };
        match &self.body {
            Body::GetReq { rd, .. } | Body::PutAck { rd, .. } => head.with_descriptor(rd),
            _ => head,
        }
    }
}

/// Returns the body of a message with these facts, from the same bytes, without another check of its header and its
/// checksum; of its descriptor only if the facts have none.
#[inline(always)]
pub fn reparse(buf: &[u8], facts: ParsedHdr) -> Result<Body<'_>, WireError> {
    let msg = buf
        .get(..facts.nob())
        .ok_or(WireError::Length(facts.nob.into()))?;
    body(facts.kind, msg, facts.order, facts.rd_total)
}

/// Returns the credits and the facts of a plain message of the connection `expect` in `buf`, as [`decode`] and
/// [`check_identity`] would, which have to compare more. Returns `None` for all other messages. `received` bytes of
/// `buf` are the message. A message is plain if it is in this host's byte order and has no checksum, as most are. The
/// body is not read yet.
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
        && order.u16_at(buf, 4)? == expect.version.wire()
        && order.u32_at(buf, 12)? == 0
        && order.u64_at(buf, 16)? == expect.peer.raw()
        && order.u64_at(buf, 24)? == expect.peer_stamp
        && order.u64_at(buf, 32)? == expect.me.raw()
        && order.u64_at(buf, 40)? == expect.my_stamp
        && (HEADER_LEN..=received).contains(&usize::from(nob))
        && !expect.peer.is_any();
    if !plain {
        return None;
    }
    let kind = MsgType::from_wire(kind)?;
    let facts = ParsedHdr {
        kind,
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

/// Checks magic and version, which precede all other fields.
#[inline]
fn opening(buf: &[u8], order: Order) -> Result<Version, WireError> {
    let magic = Order::Native.u32_at(buf, 0).ok_or(WireError::Short)?;
    let version = order.u16_at(buf, 4).ok_or(WireError::Short)?;
    if order_of(magic, MAGIC) != Some(order) {
        return Err(WireError::Magic(magic));
    }
    Version::from_wire(version).ok_or(WireError::Version(version))
}

#[inline(always)]
fn envelope(msg: &[u8; HEADER_LEN], order: Order, version: Version) -> Option<Envelope> {
    let [credits] = *array_at::<1>(msg, 7)?;
    Some(Envelope {
        version,
        credits,
        src: Nid::from_raw(order.u64_at(msg, 16)?),
        src_stamp: order.u64_at(msg, 24)?,
        dst: Nid::from_raw(order.u64_at(msg, 32)?),
        dst_stamp: order.u64_at(msg, 40)?,
    })
}

#[inline(always)]
fn lnet_hdr(msg: &[u8]) -> Result<&RawLnetHdr, WireError> {
    array_at::<LNET_HDR_LEN>(msg, HEADER_LEN).ok_or(WireError::ShortBody)
}

#[inline(always)]
fn descriptor(
    msg: &[u8],
    off: usize,
    order: Order,
    rd_total: u32,
) -> Result<Descriptor<'_>, WireError> {
    let body = msg.get(off..).ok_or(WireError::ShortBody)?;
    match rd_total {
        0 => Descriptor::decode(body, order),
        total => Descriptor::decode_again(body, order, total),
    }
}

/// Reads the body; each field must lie within `msg`, which makes the shortest
/// message of each type that of spec 2.4. `rd_total` is that of [`ParsedHdr`].
#[inline(always)]
fn body(kind: MsgType, msg: &[u8], order: Order, rd_total: u32) -> Result<Body<'_>, WireError> {
    let short = WireError::ShortBody;
    Ok(match kind {
        MsgType::ConnReq => Body::ConnReq(conn_params(msg, 48, order).ok_or(short)?),
        MsgType::ConnAck => Body::ConnAck(conn_params(msg, 48, order).ok_or(short)?),
        MsgType::Noop => Body::Noop,
        MsgType::Immediate => Body::Immediate {
            hdr: lnet_hdr(msg)?,
            payload: msg.get(IMMEDIATE_HEAD..).ok_or(short)?,
        },
        MsgType::PutReq => Body::PutReq {
            hdr: lnet_hdr(msg)?,
            cookie: cookie(msg, 120).ok_or(short)?,
        },
        MsgType::PutNak => Body::PutNak(done(msg, order).ok_or(short)?),
        MsgType::PutAck => Body::PutAck {
            src: cookie(msg, 48).ok_or(short)?,
            dst: cookie(msg, 56).ok_or(short)?,
            rd: descriptor(msg, 64, order, rd_total)?,
        },
        MsgType::PutDone => Body::PutDone(done(msg, order).ok_or(short)?),
        MsgType::GetReq => Body::GetReq {
            hdr: lnet_hdr(msg)?,
            cookie: cookie(msg, 120).ok_or(short)?,
            rd: descriptor(msg, 128, order, rd_total)?,
        },
        MsgType::GetDone => Body::GetDone(done(msg, order).ok_or(short)?),
    })
}

/// Identities of both ends of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Version agreed for the connection.
    pub version: Version,
    /// NID of our NI.
    pub me: Nid,
    /// Incarnation of our NI.
    pub my_stamp: u64,
    /// NID of the peer.
    pub peer: Nid,
    /// Incarnation of the peer, recorded when the connection was made.
    pub peer_stamp: u64,
}

/// Mismatch between a message and its connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names say it all
pub enum Stale {
    Version,
    SourceNid,
    DestinationNid,
    SourceStamp,
    DestinationStamp,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stale::Version => "version differs from the connection's",
            Stale::SourceNid => "source NID is not the peer's",
            Stale::DestinationNid => "destination NID is not ours",
            Stale::SourceStamp => "peer incarnation differs",
            Stale::DestinationStamp => "sent to an earlier incarnation of this NI",
        })
    }
}

/// Checks that a message on an established connection comes from the peer of this connection, and is for this
/// incarnation of our NI (spec 2.7; the version is H23). Otherwise the connection must be closed.
pub fn check_identity(env: &Envelope, expect: &Identity) -> Result<(), Stale> {
    if env.version != expect.version {
        Err(Stale::Version)
    } else if env.src != expect.peer {
        Err(Stale::SourceNid)
    } else if env.dst != expect.me {
        Err(Stale::DestinationNid)
    } else if env.src_stamp != expect.peer_stamp {
        Err(Stale::SourceStamp)
    } else if env.dst_stamp != expect.my_stamp {
        Err(Stale::DestinationStamp)
    } else {
        Ok(())
    }
}
