// SPDX-License-Identifier: GPL-2.0

//! Rejects of connection requests: the causes on the passive side, the bytes, and the reaction of the active side (spec
//! 4.6).

use core::fmt;

use super::{
    cause::{
        errno::ENOMEM,
        Cause, //
    },
    constants::{
        MaxFrags,
        PeerParams,
        QueueDepth,
        MAGIC,
        MAGIC_UNIFIED,
        REJECT_LEN, //
    },
    nid::Nid,
    reject_cause_table::reject_causes,
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

/// Reason in a reject, by its number on the wire. Any number may arrive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RejectWhy(pub u8);

/// Defines the known reasons. A row has the number, the constant, the name for programs, and the text for the log.
macro_rules! reasons {
    ($($(#[$doc:meta])* $number:literal, $constant:ident, $name:literal, $text:literal;)+) => {
        impl RejectWhy {
            $($(#[$doc])* pub const $constant: Self = Self($number);)+

            /// Returns the name for programs and the text for the log, if the number is known.
            const fn texts(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($number => Some(($name, $text)),)+
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    1, CONN_RACE, "ConnRace", "the peer's own request wins";
    2, NO_RESOURCES, "NoResources", "the peer is out of resources";
    3, FATAL, "Fatal", "the request is invalid or not permitted; see the log of the peer";
    /// No longer sent.
    4, CONN_UNCOMPAT, "ConnUncompat", "the peer has another protocol version";
    5, CONN_STALE, "ConnStale", "one side has a stale incarnation of the other";
    6, RDMA_FRAGS, "RdmaFrags", "too many fragments";
    7, MSG_QUEUE_SIZE, "MsgQueueSize", "queue depth too large";
    /// Historical.
    8, INVALID_SRV_ID, "InvalidSrvId", "no such service";
    9, EARLY, "Early", "the peer's NI is not ready yet";
}

impl RejectWhy {
    /// Returns the name for programs.
    pub fn name(self) -> &'static str {
        self.texts().map_or("Unknown", |(name, _)| name)
    }
}

impl fmt::Display for RejectWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.texts() {
            Some((_, text)) => f.write_str(text),
            None => write!(f, "reason {}", self.0),
        }
    }
}

/// Defines [`RejectCause`] of the table.
macro_rules! define {
    ($($(#[$doc:meta])* $name:ident $(($value:ident: $kind:ty))?, $why:ident, $log:literal, $phrase:literal;)+) => {
        /// Check that a request failed, for which it is rejected; for the log and the counters.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum RejectCause {
            $($(#[$doc])* $name $(($kind))?,)+
        }

        /// Names of [`RejectCause`] without spaces, for programs.
        pub const CAUSE_NAMES: [&str; { [$(stringify!($name)),+].len() }] =
            [$(stringify!($name)),+];

        impl RejectCause {
            /// Returns its name in [`CAUSE_NAMES`].
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)+
                }
            }

            pub const fn why(&self) -> RejectWhy {
                match self {
                    $(Self::$name { .. } => RejectWhy::$why,)+
                }
            }
        }

        impl fmt::Display for RejectCause {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if let Self::NoResources(errno) = self {
                    if *errno == -ENOMEM {
                        return write!(f, "no memory for a connection ({errno})");
                    }
                }
                match self {
                    $(Self::$name $(($value))? => write!(f, $log),)+
                }
            }
        }
    };
}

reject_causes!(define);

impl RejectCause {
    /// Returns the index in [`CAUSE_NAMES`].
    pub fn number(&self) -> usize {
        let number = CAUSE_NAMES.iter().position(|name| *name == self.name());
        number.unwrap_or(CAUSE_NAMES.len())
    }

    /// Returns the cause to reject a request that was accepted, and whose attempt ended for `cause` before the CM
    /// accepted it.
    ///
    /// If only the link was at fault, the peer should ask again, or this node connects: "no resources" would make
    /// ko2iblnd fail all messages that wait for the connection.
    pub const fn of_taken(cause: Cause) -> Self {
        match cause {
            Cause::LinkDown
            | Cause::Moved
            | Cause::PathMtu
            | Cause::AddressChanged
            | Cause::Overtaken
            | Cause::AdminClose => Self::Race,
            Cause::PeerRestarted => Self::StalePeer,
            Cause::Denied => Self::Denied,
            _ => Self::NoResources(-ENOMEM),
        }
    }

    /// Returns the NID that was asked for, if that is wrong.
    pub const fn asked(&self) -> Option<Nid> {
        match self {
            Self::NoSuchNi(asked) => Some(*asked),
            _ => None,
        }
    }

    /// Returns whether the reject tells the peer how to ask again, or that this node connects. After a restart of this
    /// node every peer gets one.
    pub fn invites(&self) -> bool {
        let final_ones = [RejectWhy::FATAL, RejectWhy::NO_RESOURCES, RejectWhy::EARLY];
        !final_ones.contains(&self.why())
    }
}

/// Reject, in CM private data. Incarnation and parameters are 0 in short rejects and in those of version 0x11.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    pub version: Version,
    pub why: RejectWhy,
    /// Incarnation of the rejecting NI; 0 if no NI was found.
    pub incarnation: u64,
    /// Parameters that the rejecter would accept; depth and fragments 0 if no NI was found.
    pub params: ConnParams,
}

impl Reject {
    /// Returns the bytes for the CM private data, in our byte order.
    pub fn encode(&self) -> [u8; REJECT_LEN] {
        let mut out = [0; REJECT_LEN];
        // The fields fill the 24 bytes exactly, so that this cannot fail.
        let _ = self.write(Writer(&mut out));
        out
    }

    fn write(&self, mut w: Writer<'_>) -> Result<(), WireError> {
        w.raw(&MAGIC.to_ne_bytes())?;
        w.raw(&self.version.wire().to_ne_bytes())?;
        w.raw(&[self.why.0, 0])?;
        w.raw(&self.incarnation.to_ne_bytes())?;
        w.params(&self.params)
    }

    /// Reads CM private data; bytes after the 24th are padding. Accepts the reserved unified magic as well: the fixed
    /// part is laid out alike.
    pub fn decode(buf: &[u8]) -> Result<Self, WireError> {
        let magic = Order::Native.u32_at(buf, 0).ok_or(WireError::Short)?;
        let order = order_of(magic, MAGIC)
            .or(order_of(magic, MAGIC_UNIFIED))
            .ok_or(WireError::Magic(magic))?;
        let version = order.u16_at(buf, 4).ok_or(WireError::Short)?;
        let [why] = *array_at::<1>(buf, 6).ok_or(WireError::Short)?;
        let version = Version::from_wire(version).ok_or(WireError::Version(version))?;
        let details = match version {
            Version::V1 => None,
            Version::V2 => order.u64_at(buf, 8).zip(conn_params(buf, 16, order)),
        };
        let (incarnation, params) = details.unwrap_or_default();
        Ok(Reject {
            version,
            why: RejectWhy(why),
            incarnation,
            params,
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
    /// iWARP: no listener, by siw (`ECONNREFUSED`).
    pub const REFUSED: i32 = -111;
    /// iWARP: no listener, by irdma and erdma (`ECONNRESET`).
    pub const RESET: i32 = -104;
}

/// Reason to ask again, with the parameter to ask for if the reject is about one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RetryWhy {
    /// The peer's own request won. Only needed if that one does not succeed.
    Race,
    /// This node or the peer had outdated knowledge of the other. The incarnation of the peer.
    Stale(u64),
    /// The peer's CM has an older connection with the same queue pair number. The CM ends that connection now, and the
    /// next request has another number.
    StaleQp,
    FewerFrags(MaxFrags),
    SmallerDepth(QueueDepth),
    /// The peer is not ready yet: it boots.
    Early,
    /// The peer's CM rejected without a reason ([`UNSAID_MAX`]).
    Unsaid,
}

/// Times in a row that a request is repeated after rejects without a reason.
pub const UNSAID_MAX: u32 = 4;

errors! {
    /// Reason not to ask again.
    Refused {
        NoListener: "no listener (is LNet up there?)",
        Cm(reason: i32): "connection manager, reason {reason}",
        Malformed(e: WireError): "malformed reject: {e}",
        /// Rejected again and again, without a reason.
        NoReason: "the peer gave no reason",
        OldVersion: "the peer supports version 0x11 only",
        /// The peer offers nothing that is less than asked for and not zero (H11).
        NoAgreement(why: RejectWhy): "{why}, and the peer offers no smaller value",
        /// Rejected for good, or at least for now.
        Reason(why: RejectWhy): "{why}",
    }
}

/// Returns why the active side asks again when its request, `asked`, was rejected, once the rejected connection is
/// destroyed and if messages still wait.
///
/// `reason` is the status of the CM event, `private_data` whatever came with it. On iWARP providers do not agree on a
/// number for a reject by the listener (siw `-ECONNRESET`, others `-ECONNREFUSED`); it is the one with private data. A
/// value from a reject is adopted only if it is smaller than ours and not zero, and never makes this driver use version
/// 0x11 (H11). An incarnation is adopted for a stale connection only: at worst the peer's next answer is "stale" again,
/// and the caller's back-off bounds that.
///
/// # Errors
///
/// The reason to give up: queued transmits fail.
pub fn react_to_reject(
    reason: i32,
    private_data: &[u8],
    asked: &PeerParams,
) -> Result<RetryWhy, Refused> {
    match reason {
        cm_reason::STALE_CONN => return Ok(RetryWhy::StaleQp),
        cm_reason::INVALID_SERVICE_ID => return Err(Refused::NoListener),
        // A listener that drops the id before it answers, or cannot accept it, for example because its link has just
        // come back, rejects in this way. That is not a decision of the driver there, nor of another host. In the short
        // form of the CM it is all zeros.
        cm_reason::CONSUMER_DEFINED if private_data.iter().all(|byte| *byte == 0) => {
            return Ok(RetryWhy::Unsaid)
        }
        cm_reason::CONSUMER_DEFINED => {}
        ..0 if !private_data.is_empty() => {}
        cm_reason::REFUSED | cm_reason::RESET => return Err(Refused::NoListener),
        other => return Err(Refused::Cm(other)),
    }
    let reject = Reject::decode(private_data).map_err(Refused::Malformed)?;
    let why = reject.why;
    match (reject.version, why) {
        (_, RejectWhy::CONN_RACE) => Ok(RetryWhy::Race),
        // Unlike ko2iblnd, which gives up. The caller's back-off and the timeout of waiting messages bound it.
        (_, RejectWhy::EARLY) => Ok(RetryWhy::Early),
        (_, RejectWhy::CONN_STALE) => Ok(RetryWhy::Stale(reject.incarnation)),
        (Version::V1, RejectWhy::FATAL) | (_, RejectWhy::CONN_UNCOMPAT) => Err(Refused::OldVersion),
        (_, RejectWhy::RDMA_FRAGS) => MaxFrags::new(reject.params.max_frags)
            .filter(|frags| *frags < asked.frags)
            .map(RetryWhy::FewerFrags)
            .ok_or(Refused::NoAgreement(why)),
        (_, RejectWhy::MSG_QUEUE_SIZE) => QueueDepth::new(reject.params.queue_depth)
            .filter(|depth| *depth < asked.depth)
            .map(RetryWhy::SmallerDepth)
            .ok_or(Refused::NoAgreement(why)),
        _ => Err(Refused::Reason(why)),
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_reject))]
mod tests {
    use super::*;

    const D: u64 = 0x0006_4a1b_0000_0001;

    fn asked() -> PeerParams {
        PeerParams {
            depth: QueueDepth::new(32).unwrap_or(QueueDepth::MIN),
            frags: MaxFrags::MAX,
            stamp: 5,
        }
    }

    fn reject(why: RejectWhy, depth: u16, frags: u16) -> Reject {
        Reject {
            version: Version::V2,
            why,
            incarnation: D,
            params: ConnParams {
                queue_depth: depth,
                max_frags: frags,
                max_msg_size: 4096,
            },
        }
    }

    fn react(r: Reject) -> Result<RetryWhy, Refused> {
        react_to_reject(cm_reason::CONSUMER_DEFINED, &r.encode(), &asked())
    }

    fn fails(r: Reject, with: Refused) -> bool {
        react(r) == Err(with)
    }

    #[test]
    fn both_orders_round_trip() {
        let r = reject(RejectWhy::CONN_STALE, 8, 257);
        let mut bytes = r.encode();
        assert_eq!(Reject::decode(&bytes), Ok(r));
        super::super::swap::swap_reject(&mut bytes);
        assert_eq!(Reject::decode(&bytes), Ok(r));
    }

    #[test]
    fn short_and_old_rejects_have_no_details() {
        let full = reject(RejectWhy::CONN_STALE, 8, 257).encode();
        let details = |r: Reject| (r.incarnation, r.params);
        let none = (0, ConnParams::default());
        for n in 0..REJECT_LEN {
            let got = Reject::decode(full.get(..n).unwrap_or(&[]));
            match n {
                0..=6 => assert_eq!(got, Err(WireError::Short)),
                _ => assert_eq!(got.map(details), Ok(none)),
            }
        }
        let old = Reject {
            version: Version::V1,
            ..reject(RejectWhy::CONN_STALE, 8, 257)
        };
        assert_eq!(Reject::decode(&old.encode()).map(details), Ok(none));
    }

    #[test]
    fn the_unified_magic_is_understood() {
        let mut raw = reject(RejectWhy::CONN_RACE, 8, 257).encode();
        for (to, from) in raw.iter_mut().zip(MAGIC_UNIFIED.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(
            Reject::decode(&raw).map(|r| r.why),
            Ok(RejectWhy::CONN_RACE)
        );
        assert_eq!(Reject::decode(&[0; 24]), Err(WireError::Magic(0)));
        let mut future = reject(RejectWhy::CONN_RACE, 8, 257).encode();
        for (to, from) in future.iter_mut().skip(4).zip(0x13u16.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(Reject::decode(&future), Err(WireError::Version(0x13)));
    }

    #[test]
    fn cm_reasons() {
        let a = asked();
        assert_eq!(react_to_reject(10, &[], &a), Ok(RetryWhy::StaleQp));
        assert_eq!(react_to_reject(8, &[], &a), Err(Refused::NoListener));
        assert_eq!(react_to_reject(4, &[], &a), Err(Refused::Cm(4)));
        let mut data = [0; 148];
        let unsaid = Ok(RetryWhy::Unsaid);
        assert_eq!(react_to_reject(28, &data, &a), unsaid);
        assert_eq!(react_to_reject(28, &[], &a), unsaid);
        // Private data that is not a reject.
        data[147] = 1;
        assert_eq!(
            react_to_reject(28, &data, &a),
            Err(Refused::Malformed(WireError::Magic(0)))
        );
    }

    #[test]
    fn iwarp_reasons() {
        let a = asked();
        let race = reject(RejectWhy::CONN_RACE, 8, 257).encode();
        // By siw, and by irdma and cxgb4.
        for reason in [-104, -111] {
            assert_eq!(react_to_reject(reason, &race, &a), Ok(RetryWhy::Race));
            assert_eq!(
                react_to_reject(reason, &[0; 24], &a),
                Err(Refused::Malformed(WireError::Magic(0)))
            );
        }
        for reason in [-104, -111] {
            assert_eq!(react_to_reject(reason, &[], &a), Err(Refused::NoListener));
        }
        assert_eq!(react_to_reject(-103, &[], &a), Err(Refused::Cm(-103)));
    }

    #[test]
    fn reasons_1_to_5() {
        assert_eq!(
            react(reject(RejectWhy::CONN_RACE, 8, 257)),
            Ok(RetryWhy::Race)
        );
        let no = RejectWhy::NO_RESOURCES;
        assert!(fails(reject(no, 8, 257), Refused::Reason(no)));
        let fatal = RejectWhy::FATAL;
        assert!(fails(reject(fatal, 8, 257), Refused::Reason(fatal)));
        assert!(fails(
            reject(RejectWhy::CONN_UNCOMPAT, 8, 257),
            Refused::OldVersion
        ));
        assert_eq!(
            react(reject(RejectWhy::CONN_STALE, 8, 257)),
            Ok(RetryWhy::Stale(D))
        );
    }

    #[test]
    fn reasons_6_and_7_adopt_only_smaller_values() {
        let why = RejectWhy::RDMA_FRAGS;
        let frags = MaxFrags::new(256).unwrap_or(MaxFrags::MIN);
        assert_eq!(react(reject(why, 8, 256)), Ok(RetryWhy::FewerFrags(frags)));
        // H11: equal, larger, zero.
        for n in [257, 258, u16::MAX, 0] {
            assert!(fails(reject(why, 8, n), Refused::NoAgreement(why)));
        }
        let why = RejectWhy::MSG_QUEUE_SIZE;
        let depth = QueueDepth::new(8).unwrap_or(QueueDepth::MIN);
        assert_eq!(
            react(reject(why, 8, 257)),
            Ok(RetryWhy::SmallerDepth(depth))
        );
        for n in [32, 33, 256, u16::MAX, 0] {
            assert!(fails(reject(why, n, 257), Refused::NoAgreement(why)));
        }
    }

    #[test]
    fn early_is_asked_again() {
        assert_eq!(react(reject(RejectWhy::EARLY, 0, 0)), Ok(RetryWhy::Early));
    }

    #[test]
    fn other_reasons_from_8_on_fail() {
        for n in [8, 10, 200] {
            let why = RejectWhy(n);
            assert!(fails(reject(why, 8, 257), Refused::Reason(why)));
        }
    }

    #[test]
    fn h11_no_downgrade_and_no_made_up_stamp() {
        let old = |why| Reject {
            version: Version::V1,
            ..reject(why, 8, 256)
        };
        assert!(fails(old(RejectWhy::FATAL), Refused::OldVersion));
        let why = RejectWhy::RDMA_FRAGS;
        assert!(fails(old(why), Refused::NoAgreement(why)));
        assert_eq!(react(old(RejectWhy::CONN_STALE)), Ok(RetryWhy::Stale(0)));
    }

    #[test]
    fn later_rows_have_their_reasons() {
        // Spec 4.4 rows 13 and 16.
        assert_eq!(
            RejectCause::NoResources(-ENOMEM).why(),
            RejectWhy::NO_RESOURCES
        );
    }

    #[test]
    fn accepted_request_gets_a_race_reject_if_the_link_is_lost() {
        for (ended, why) in [
            (Cause::LinkDown, RejectWhy::CONN_RACE),
            (Cause::Moved, RejectWhy::CONN_RACE),
            (Cause::PathMtu, RejectWhy::CONN_RACE),
            (Cause::AddressChanged, RejectWhy::CONN_RACE),
            (Cause::Overtaken, RejectWhy::CONN_RACE),
            (Cause::AdminClose, RejectWhy::CONN_RACE),
            (Cause::PeerRestarted, RejectWhy::CONN_STALE),
            (Cause::Denied, RejectWhy::FATAL),
            (Cause::NoResources, RejectWhy::NO_RESOURCES),
            (Cause::ConnectTimeout, RejectWhy::NO_RESOURCES),
            (Cause::Shutdown, RejectWhy::NO_RESOURCES),
            (Cause::DeviceGone, RejectWhy::NO_RESOURCES),
        ] {
            assert_eq!(RejectCause::of_taken(ended).why(), why);
        }
    }

    #[test]
    fn rejects_with_a_remedy_are_always_sent() {
        for cause in [
            RejectCause::Race,
            RejectCause::StalePeer,
            RejectCause::StaleDestination,
            RejectCause::Depth(9),
            RejectCause::Frags(300),
        ] {
            assert!(cause.invites());
        }
        for cause in [
            RejectCause::NoSuchNi(Nid::new(0, 9)),
            RejectCause::NotReady,
            RejectCause::TooMany,
            RejectCause::TooOften,
            RejectCause::TooOftenInAll,
            RejectCause::NoResources(-ENOMEM),
            RejectCause::NoDepth,
            RejectCause::OwnNid,
        ] {
            assert!(!cause.invites());
        }
    }
}
