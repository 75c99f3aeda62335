// SPDX-License-Identifier: GPL-2.0

//! Rejects of connection requests, and the reaction of the active side (spec 4.6).

use core::fmt;

use super::{
    constants::{
        MaxFrags,
        QueueDepth,
        MAGIC,
        MAGIC_UNIFIED,
        REJECT_LEN, //
    },
    wire::{
        array_at,
        conn_params,
        order_of,
        ConnParams,
        Order,
        Version,
        WireError,
        Writer, //
    }, //
};

/// Reason in a reject.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RejectWhy {
    /// 1: both sides sent a request, and the other side's won.
    ConnRace,
    /// 2: out of memory, connections or queue pairs.
    NoResources,
    /// 3: the request is invalid, or not allowed.
    Fatal,
    /// 4: version not supported; no longer sent.
    ConnUncompat,
    /// 5: one side knows an earlier incarnation of the other.
    ConnStale,
    /// 6: too many fragments asked for.
    RdmaFrags,
    /// 7: queue depth too large.
    MsgQueueSize,
    /// 8: historical.
    InvalidSrvId,
    /// 9: the NI is not ready yet.
    Early,
    /// A number not known here.
    Unknown(u8),
}

impl RejectWhy {
    /// Returns the number on the wire.
    pub const fn wire(self) -> u8 {
        match self {
            RejectWhy::ConnRace => 1,
            RejectWhy::NoResources => 2,
            RejectWhy::Fatal => 3,
            RejectWhy::ConnUncompat => 4,
            RejectWhy::ConnStale => 5,
            RejectWhy::RdmaFrags => 6,
            RejectWhy::MsgQueueSize => 7,
            RejectWhy::InvalidSrvId => 8,
            RejectWhy::Early => 9,
            RejectWhy::Unknown(n) => n,
        }
    }

    /// Returns the reason with that number.
    pub const fn from_wire(v: u8) -> Self {
        match v {
            1 => RejectWhy::ConnRace,
            2 => RejectWhy::NoResources,
            3 => RejectWhy::Fatal,
            4 => RejectWhy::ConnUncompat,
            5 => RejectWhy::ConnStale,
            6 => RejectWhy::RdmaFrags,
            7 => RejectWhy::MsgQueueSize,
            8 => RejectWhy::InvalidSrvId,
            9 => RejectWhy::Early,
            n => RejectWhy::Unknown(n),
        }
    }
}

/// Details, in the longer form of a reject only.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RejectDetails {
    /// Incarnation of the rejecting NI; 0 if no NI was found.
    pub incarnation: u64,
    /// Parameters that the rejecter would accept; depth and fragments 0 if no NI was found.
    pub params: ConnParams,
}

/// Reject, in CM private data.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The rejecter's version.
    pub version: Version,
    /// The reason.
    pub why: RejectWhy,
    /// Absent in short rejects and in those of version 0x11.
    pub details: Option<RejectDetails>,
}

impl Reject {
    /// Returns the bytes for the CM private data, in our byte order.
    pub fn encode(&self) -> [u8; REJECT_LEN] {
        self.encode_as(Order::Native)
    }

    /// Encodes like [`Reject::encode`], in the byte order of a peer; for tests and tools.
    pub fn encode_as(&self, order: Order) -> [u8; REJECT_LEN] {
        let mut out = [0; REJECT_LEN];
        // The fields fill the 24 bytes exactly, so that this cannot fail.
        let _ = self.write(Writer::new(&mut out, order));
        out
    }

    fn write(&self, mut w: Writer<'_>) -> Option<()> {
        let details = self.details.unwrap_or_default();
        w.int(MAGIC.to_ne_bytes())?;
        w.int(self.version.wire().to_ne_bytes())?;
        w.raw(&[self.why.wire(), 0])?;
        w.int(details.incarnation.to_ne_bytes())?;
        w.params(&details.params)
    }

    /// Reads CM private data; bytes after the 24th are padding.
    ///
    /// The reserved unified magic is accepted as well: the fixed part is laid
    /// out alike.
    pub fn decode(buf: &[u8]) -> Result<Self, WireError> {
        let magic = Order::Native.u32_at(buf, 0).ok_or(WireError::Short)?;
        let order = order_of(magic, MAGIC)
            .or(order_of(magic, MAGIC_UNIFIED))
            .ok_or(WireError::Magic(magic))?;
        let version = order.u16_at(buf, 4).ok_or(WireError::Short)?;
        let [why] = *array_at::<1>(buf, 6).ok_or(WireError::Short)?;
        let version = Version::from_wire(version)?;
        let details = || {
            Some(RejectDetails {
                incarnation: order.u64_at(buf, 8)?,
                params: conn_params(buf, 16, order)?,
            })
        };
        Ok(Reject {
            version,
            why: RejectWhy::from_wire(why),
            details: match version {
                Version::V1 => None,
                Version::V2 => details(),
            },
        })
    }
}

/// CM reject reasons that matter here: `enum ib_cm_rej_reason`, and a negative errno on iWARP.
pub mod cm_reason {
    /// No listener on that service id.
    pub const INVALID_SERVICE_ID: i32 = 8;
    /// The other side still has our queue pair number in TIMEWAIT.
    pub const STALE_CONN: i32 = 10;
    /// The listener rejected, with the reason in private data.
    pub const CONSUMER_DEFINED: i32 = 28;
    /// iWARP: no listener (`ECONNREFUSED`).
    pub const REFUSED: i32 = -111;
}

/// Parameters of a connection request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Queue depth.
    pub depth: QueueDepth,
    /// Most fragments.
    pub frags: MaxFrags,
    /// The peer's incarnation (`dststamp`); 0 = unknown.
    pub stamp: u64,
}

/// Reason to ask again.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RetryWhy {
    /// The peer's own request won. Only needed if that one does not succeed.
    Race,
    /// This node or the peer had outdated knowledge of the other.
    Stale,
    /// The peer wants fewer fragments.
    FewerFrags,
    /// The peer wants a smaller depth.
    SmallerDepth,
    /// The peer is not ready yet: it boots.
    Early,
    /// The peer's CM rejected without a reason ([`UNSAID_MAX`]).
    Unsaid,
}

/// Times in a row that a request is repeated after rejects without a reason.
pub const UNSAID_MAX: u32 = 4;

/// Reason not to ask again.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No listener: the host is up, LNet is not.
    NoListener,
    /// The CM rejected for a reason of its own.
    Cm(i32),
    /// The private data is not a reject.
    Malformed(WireError),
    /// Rejected again and again, without a reason.
    Unsaid,
    /// The peer supports version 0x11 only, which this driver does not.
    OldVersion,
    /// The peer asks for less, but offers nothing that is less and not zero (H11).
    NoAgreement(RejectWhy),
    /// Rejected for good, or at least for now.
    Reason(RejectWhy),
}

impl fmt::Display for RejectWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectWhy::ConnRace => "the peer's own request wins",
            RejectWhy::NoResources => "the peer is out of resources",
            RejectWhy::Fatal => "the request is invalid or not permitted; see the log of the peer",
            RejectWhy::ConnUncompat => "the peer has another protocol version",
            RejectWhy::ConnStale => "one side has a stale incarnation of the other",
            RejectWhy::RdmaFrags => "too many fragments",
            RejectWhy::MsgQueueSize => "queue depth too large",
            RejectWhy::InvalidSrvId => "no such service",
            RejectWhy::Early => "the peer's NI is not ready yet",
            RejectWhy::Unknown(n) => return write!(f, "reason {n}"),
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoListener => f.write_str("no listener (is LNet up there?)"),
            Refused::Cm(n) => write!(f, "connection manager, reason {n}"),
            Refused::Malformed(e) => write!(f, "malformed reject: {e}"),
            Refused::Unsaid => f.write_str("the peer gave no reason"),
            Refused::OldVersion => f.write_str("the peer supports version 0x11 only"),
            Refused::NoAgreement(why) => write!(f, "{why}, and the peer offers no smaller value"),
            Refused::Reason(why) => why.fmt(f),
        }
    }
}

/// Reaction to a reject.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// Send another request, as given, once the rejected connection is destroyed, if messages still wait.
    Retry(RetryWhy, Ask),
    /// Give up; queued transmits fail.
    Fail(Refused),
}

/// Returns the reaction of the active side when its request, `asked`, was rejected.
///
/// `reason` is the status of the CM event, `private_data` whatever came with it. On iWARP providers do not agree on a
/// number for a reject by the listener (siw `-ECONNRESET`, others `-ECONNREFUSED`); it is the one with private data. A
/// value from a reject is adopted only if it is smaller than ours and not zero, and never makes this driver use version
/// 0x11 (H11). An incarnation is adopted for a stale connection only: at worst the peer's next answer is "stale" again,
/// and the caller's back-off bounds that.
/// "stale" again, and the caller's back-off bounds that.
pub fn react_to_reject(reason: i32, private_data: &[u8], asked: &Ask) -> Reaction {
    match reason {
        cm_reason::STALE_CONN => return Reaction::Retry(RetryWhy::Stale, *asked),
        cm_reason::INVALID_SERVICE_ID => return Reaction::Fail(Refused::NoListener),
        // A listener that drops the id before it answers, or cannot accept it, for example because its link has just
        // come back, rejects in this way. That is not a decision of the driver there, nor of another host. In the short
        // form of the CM it is all zeros.
        cm_reason::CONSUMER_DEFINED if private_data.iter().all(|byte| *byte == 0) => {
            return Reaction::Retry(RetryWhy::Unsaid, *asked)
        }
        cm_reason::CONSUMER_DEFINED => {}
        ..0 if !private_data.is_empty() => {}
        cm_reason::REFUSED => return Reaction::Fail(Refused::NoListener),
        other => return Reaction::Fail(Refused::Cm(other)),
    }
    let reject = match Reject::decode(private_data) {
        Ok(r) => r,
        Err(e) => return Reaction::Fail(Refused::Malformed(e)),
    };
    let offered = reject.details.map(|d| d.params).unwrap_or_default();
    match (reject.version, reject.why) {
        (_, RejectWhy::ConnRace) => Reaction::Retry(RetryWhy::Race, *asked),
        // Unlike ko2iblnd, which gives up. The caller's back-off and the timeout of waiting messages bound it.
        (_, RejectWhy::Early) => Reaction::Retry(RetryWhy::Early, *asked),
        (_, RejectWhy::ConnStale) => Reaction::Retry(
            RetryWhy::Stale,
            Ask {
                // A reject without details leaves the incarnation unknown.
                stamp: reject.details.map_or(0, |d| d.incarnation),
                ..*asked
            },
        ),
        (Version::V1, RejectWhy::Fatal) | (_, RejectWhy::ConnUncompat) => {
            Reaction::Fail(Refused::OldVersion)
        }
        (_, why @ RejectWhy::RdmaFrags) => match MaxFrags::new(offered.max_frags) {
            Some(frags) if frags < asked.frags => {
                Reaction::Retry(RetryWhy::FewerFrags, Ask { frags, ..*asked })
            }
            _ => Reaction::Fail(Refused::NoAgreement(why)),
        },
        (_, why @ RejectWhy::MsgQueueSize) => match QueueDepth::new(offered.queue_depth) {
            Some(depth) if depth < asked.depth => {
                Reaction::Retry(RetryWhy::SmallerDepth, Ask { depth, ..*asked })
            }
            _ => Reaction::Fail(Refused::NoAgreement(why)),
        },
        (_, why) => Reaction::Fail(Refused::Reason(why)),
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_reject))]
mod tests {
    use super::*;

    const D: u64 = 0x0006_4a1b_0000_0001;

    fn asked() -> Ask {
        Ask {
            depth: QueueDepth::new(32).unwrap_or(QueueDepth::MIN),
            frags: MaxFrags::MAX,
            stamp: 5,
        }
    }

    fn reject(why: RejectWhy, depth: u16, frags: u16) -> Reject {
        Reject {
            version: Version::V2,
            why,
            details: Some(RejectDetails {
                incarnation: D,
                params: ConnParams {
                    queue_depth: depth,
                    max_frags: frags,
                    max_msg_size: 4096,
                },
            }),
        }
    }

    fn react(r: Reject) -> Reaction {
        react_to_reject(cm_reason::CONSUMER_DEFINED, &r.encode(), &asked())
    }

    fn fails(r: Reject, with: Refused) -> bool {
        react(r) == Reaction::Fail(with)
    }

    #[test]
    fn both_orders_round_trip() {
        let r = reject(RejectWhy::ConnStale, 8, 257);
        assert_eq!(Reject::decode(&r.encode_as(Order::Native)), Ok(r));
        assert_eq!(Reject::decode(&r.encode_as(Order::Swapped)), Ok(r));
        for n in 0..=u8::MAX {
            assert_eq!(RejectWhy::from_wire(n).wire(), n);
        }
    }

    #[test]
    fn short_and_old_rejects_have_no_details() {
        let full = reject(RejectWhy::ConnStale, 8, 257).encode();
        for n in 0..REJECT_LEN {
            let got = Reject::decode(full.get(..n).unwrap_or(&[]));
            match n {
                0..=6 => assert_eq!(got, Err(WireError::Short)),
                _ => assert_eq!(got.map(|r| r.details), Ok(None)),
            }
        }
        let old = Reject {
            version: Version::V1,
            ..reject(RejectWhy::ConnStale, 8, 257)
        };
        assert_eq!(Reject::decode(&old.encode()).map(|r| r.details), Ok(None));
    }

    #[test]
    fn the_unified_magic_is_understood() {
        let mut raw = reject(RejectWhy::ConnRace, 8, 257).encode();
        for (to, from) in raw.iter_mut().zip(MAGIC_UNIFIED.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(Reject::decode(&raw).map(|r| r.why), Ok(RejectWhy::ConnRace));
        assert_eq!(Reject::decode(&[0; 24]), Err(WireError::Magic(0)));
        let mut future = reject(RejectWhy::ConnRace, 8, 257).encode();
        for (to, from) in future.iter_mut().skip(4).zip(0x13u16.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(Reject::decode(&future), Err(WireError::Version(0x13)));
    }

    #[test]
    fn cm_reasons() {
        let a = asked();
        assert_eq!(
            react_to_reject(10, &[], &a),
            Reaction::Retry(RetryWhy::Stale, a)
        );
        assert_eq!(
            react_to_reject(8, &[], &a),
            Reaction::Fail(Refused::NoListener)
        );
        assert_eq!(react_to_reject(4, &[], &a), Reaction::Fail(Refused::Cm(4)));
        let mut data = [0; 148];
        let unsaid = Reaction::Retry(RetryWhy::Unsaid, a);
        assert_eq!(react_to_reject(28, &data, &a), unsaid);
        assert_eq!(react_to_reject(28, &[], &a), unsaid);
        // Private data that is not a reject.
        data[147] = 1;
        assert_eq!(
            react_to_reject(28, &data, &a),
            Reaction::Fail(Refused::Malformed(WireError::Magic(0)))
        );
    }

    #[test]
    fn iwarp_reasons() {
        let a = asked();
        let race = reject(RejectWhy::ConnRace, 8, 257).encode();
        // By siw, and by irdma and cxgb4.
        for reason in [-104, -111] {
            assert_eq!(
                react_to_reject(reason, &race, &a),
                Reaction::Retry(RetryWhy::Race, a)
            );
            assert_eq!(
                react_to_reject(reason, &[0; 24], &a),
                Reaction::Fail(Refused::Malformed(WireError::Magic(0)))
            );
        }
        assert_eq!(
            react_to_reject(-111, &[], &a),
            Reaction::Fail(Refused::NoListener)
        );
        assert_eq!(
            react_to_reject(-104, &[], &a),
            Reaction::Fail(Refused::Cm(-104))
        );
    }

    #[test]
    fn reasons_1_to_5() {
        assert_eq!(
            react(reject(RejectWhy::ConnRace, 8, 257)),
            Reaction::Retry(RetryWhy::Race, asked())
        );
        let no = RejectWhy::NoResources;
        assert!(fails(reject(no, 8, 257), Refused::Reason(no)));
        let fatal = RejectWhy::Fatal;
        assert!(fails(reject(fatal, 8, 257), Refused::Reason(fatal)));
        assert!(fails(
            reject(RejectWhy::ConnUncompat, 8, 257),
            Refused::OldVersion
        ));
        assert_eq!(
            react(reject(RejectWhy::ConnStale, 8, 257)),
            Reaction::Retry(
                RetryWhy::Stale,
                Ask {
                    stamp: D,
                    ..asked()
                }
            )
        );
    }

    #[test]
    fn reasons_6_and_7_adopt_only_smaller_values() {
        let why = RejectWhy::RdmaFrags;
        let frags = MaxFrags::new(256).unwrap_or(MaxFrags::MIN);
        assert_eq!(
            react(reject(why, 8, 256)),
            Reaction::Retry(RetryWhy::FewerFrags, Ask { frags, ..asked() })
        );
        // H11: equal, larger, zero.
        for n in [257, 258, u16::MAX, 0] {
            assert!(fails(reject(why, 8, n), Refused::NoAgreement(why)));
        }
        let why = RejectWhy::MsgQueueSize;
        let depth = QueueDepth::new(8).unwrap_or(QueueDepth::MIN);
        assert_eq!(
            react(reject(why, 8, 257)),
            Reaction::Retry(RetryWhy::SmallerDepth, Ask { depth, ..asked() })
        );
        for n in [32, 33, 256, u16::MAX, 0] {
            assert!(fails(reject(why, n, 257), Refused::NoAgreement(why)));
        }
    }

    #[test]
    fn early_is_asked_again() {
        assert_eq!(
            react(reject(RejectWhy::Early, 0, 0)),
            Reaction::Retry(RetryWhy::Early, asked())
        );
    }

    #[test]
    fn other_reasons_from_8_on_fail() {
        for n in [8, 10, 200] {
            let why = RejectWhy::from_wire(n);
            assert!(fails(reject(why, 8, 257), Refused::Reason(why)));
        }
    }

    #[test]
    fn h11_no_downgrade_and_no_made_up_stamp() {
        let old = |why| Reject {
            version: Version::V1,
            ..reject(why, 8, 256)
        };
        assert!(fails(old(RejectWhy::Fatal), Refused::OldVersion));
        let why = RejectWhy::RdmaFrags;
        assert!(fails(old(why), Refused::NoAgreement(why)));
        assert_eq!(
            react(old(RejectWhy::ConnStale)),
            Reaction::Retry(
                RetryWhy::Stale,
                Ask {
                    stamp: 0,
                    ..asked()
                }
            )
        );
    }
}
