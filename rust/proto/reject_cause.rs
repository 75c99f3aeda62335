// SPDX-License-Identifier: GPL-2.0

//! Reasons to reject a connection request, and the reject with a reason.

use core::fmt;

use super::{
    cause::{
        self,
        errno::ENOMEM, //
    },
    conn_req_types::NiView,
    nid::Nid,
    params::{
        FRAGS_MAX,
        MSG_SIZE_WIRE, //
    },
    reject::{
        Reject,
        RejectDetails,
        RejectWhy, //
    },
    wire::{
        ConnParams,
        Version,
        WireError, //
    }, //
};

/// Check that a request failed; for the log and the counters.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RejectCause {
    /// The request comes from an unprivileged port.
    Port(u16),
    /// Not a message, or of an unknown version.
    Wire(WireError),
    /// Version 0x11.
    OldVersion,
    /// A message, but not a CONNREQ.
    NotAConnReq,
    /// For a NID of another LND (H1, H2).
    ForeignDestination,
    /// From a NID of another LND (H3).
    ForeignSource,
    /// No NI of that NID, but perhaps soon.
    NotReady,
    /// The device has no NI of the requested NID.
    NoSuchNi(Nid),
    /// From a NID of another network than the NI's (H4).
    OtherNet,
    /// From our own NID, but not by this node (H4).
    OwnNid,
    /// The source NID does not match the CM's source address (H4).
    SourceAddress,
    /// For an earlier incarnation of the NI.
    StaleDestination,
    /// The depth is 0 (H5).
    NoDepth,
    /// The depth is above our peer credits.
    Depth(u16),
    /// No fragments (H7).
    NoFrags,
    /// More fragments than possible.
    Frags(u16),
    /// Another message size than 4096 (H8).
    MsgSize(u32),
    /// The peer has a new incarnation or version.
    StalePeer,
    /// Our own request to that peer wins.
    Race,
    /// The peer has as many connections as allowed (H9), or LNet retains too many requests of closed ones (H41).
    TooMany,
    /// Too many requests from the address were accepted lately (H44). The peer gets no answer: its CM repeats the
    /// request after seconds.
    TooOften,
    /// Too many requests from all addresses together were accepted lately (H44). No answer, either.
    TooOftenInAll,
    /// Objects of a connection could not be created: the errno.
    NoResources(i32),
    /// The CM did not accept.
    AcceptFailed,
    /// The settings of the administrator exclude the peer ([`crate::policy::access_and_tune::allows`]).
    Denied,
}

impl fmt::Display for RejectCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RejectCause::Port(n) => write!(f, "unprivileged source port {n}"),
            RejectCause::Wire(e) => e.fmt(f),
            RejectCause::OldVersion => f.write_str("version 0x11"),
            RejectCause::NotAConnReq => f.write_str("not a CONNREQ"),
            RejectCause::ForeignDestination => f.write_str("destination NID of another LND"),
            RejectCause::ForeignSource => f.write_str("source NID of another LND"),
            RejectCause::NotReady => f.write_str("NI not ready yet"),
            RejectCause::NoSuchNi(asked) => write!(f, "no NI {asked} on this device"),
            RejectCause::OtherNet => f.write_str("source NID of another network"),
            RejectCause::OwnNid => f.write_str("source NID is our own"),
            RejectCause::SourceAddress => f.write_str("source NID is not the source address"),
            RejectCause::StaleDestination => {
                f.write_str("sent to an earlier incarnation of this NI")
            }
            RejectCause::NoDepth => f.write_str("queue depth 0"),
            RejectCause::Depth(n) => write!(f, "queue depth {n} too large"),
            RejectCause::NoFrags => f.write_str("no fragments"),
            RejectCause::Frags(n) => write!(f, "{n} fragments are too many"),
            RejectCause::MsgSize(n) => write!(f, "message size {n}"),
            RejectCause::StalePeer => f.write_str("peer has a new incarnation"),
            RejectCause::Race => f.write_str("lost a connection race"),
            RejectCause::TooMany => f.write_str(
                "the peer has the maximum of connections, or of requests that LNet retains",
            ),
            RejectCause::TooOften => {
                f.write_str("too many requests from its address; its CM retries")
            }
            RejectCause::TooOftenInAll => {
                f.write_str("too many requests from all peers; its CM retries")
            }
            RejectCause::NoResources(e) if *e == -ENOMEM => {
                write!(f, "no memory for a connection ({e})")
            }
            RejectCause::NoResources(e) => write!(f, "cannot create the connection ({e})"),
            RejectCause::AcceptFailed => f.write_str("accept failed"),
            RejectCause::Denied => f.write_str("denied by the parameter access"),
        }
    }
}

impl RejectCause {
    /// Returns the NID that was asked for, if that is wrong.
    pub const fn asked(&self) -> Option<Nid> {
        match self {
            Self::NoSuchNi(asked) => Some(*asked),
            _ => None,
        }
    }
}

/// Decision to reject a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Reason to send.
    pub why: RejectWhy,
    /// Failed check.
    pub cause: RejectCause,
}

impl Refusal {
    /// Creates it; `why` follows from `cause`.
    pub const fn new(cause: RejectCause) -> Self {
        let why = match cause {
            RejectCause::Port(_)
            | RejectCause::Wire(_)
            | RejectCause::OldVersion
            | RejectCause::NotAConnReq
            | RejectCause::ForeignDestination
            | RejectCause::ForeignSource
            | RejectCause::NoSuchNi(_)
            | RejectCause::OtherNet
            | RejectCause::OwnNid
            | RejectCause::SourceAddress
            | RejectCause::NoDepth
            | RejectCause::NoFrags
            | RejectCause::MsgSize(_)
            | RejectCause::AcceptFailed
            | RejectCause::Denied => RejectWhy::Fatal,
            RejectCause::NotReady => RejectWhy::Early,
            RejectCause::StaleDestination | RejectCause::StalePeer => RejectWhy::ConnStale,
            RejectCause::Depth(_) => RejectWhy::MsgQueueSize,
            RejectCause::Frags(_) => RejectWhy::RdmaFrags,
            RejectCause::Race => RejectWhy::ConnRace,
            RejectCause::TooMany
            | RejectCause::TooOften
            | RejectCause::TooOftenInAll
            | RejectCause::NoResources(_) => RejectWhy::NoResources,
        };
        Self { why, cause }
    }

    /// Returns the reject for a request that was accepted, and whose attempt ended for `cause` before the CM accepted
    /// it.
    ///
    /// If only the link was at fault, the peer should ask again, or this node connects: "no resources" would make
    /// ko2iblnd fail all messages that wait for the connection.
    pub const fn of_taken(cause: cause::Cause) -> Self {
        use cause::Cause as Ended;
        Self::new(match cause {
            Ended::LinkDown
            | Ended::Moved
            | Ended::PathMtu
            | Ended::AddressChanged
            | Ended::Overtaken
            | Ended::AdminClose => RejectCause::Race,
            Ended::PeerRestarted => RejectCause::StalePeer,
            Ended::Denied => RejectCause::Denied,
            _ => RejectCause::NoResources(-ENOMEM),
        })
    }

    /// Returns whether the reject tells the peer how to ask again, or that this node connects. After a restart of this
    /// node every peer gets one.
    pub const fn invites(&self) -> bool {
        matches!(
            self.why,
            RejectWhy::ConnStale
                | RejectWhy::ConnRace
                | RejectWhy::MsgQueueSize
                | RejectWhy::RdmaFrags
        )
    }

    /// Returns the reject to send. `ni` is the NI that the request was for, if it was found: its incarnation and limits
    /// tell the peer how to ask again.
    ///
    /// Always has version 0x12, the only one this driver uses.
    pub fn reject(&self, ni: Option<&NiView>) -> Reject {
        Reject {
            version: Version::V2,
            why: self.why,
            details: Some(RejectDetails {
                incarnation: ni.map_or(0, |ni| ni.stamp),
                params: ConnParams {
                    queue_depth: ni.map_or(0, |ni| ni.peer_credits.wire()),
                    max_frags: ni.map_or(0, |_| FRAGS_MAX),
                    max_msg_size: MSG_SIZE_WIRE,
                },
            }),
        }
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_reject_cause))]
mod tests {
    use super::super::params::QueueDepth;
    use super::*;

    #[test]
    fn later_rows_have_their_reasons() {
        // Spec 4.4 rows 13 and 16, and row 17.
        assert_eq!(
            Refusal::new(RejectCause::NoResources(-ENOMEM)).why,
            RejectWhy::NoResources
        );
        assert_eq!(
            Refusal::new(RejectCause::AcceptFailed).why,
            RejectWhy::Fatal
        );
    }

    #[test]
    fn who_was_taken_is_to_come_again_if_only_the_way_is_gone() {
        use super::super::cause::Cause as Ended;
        for (ended, why) in [
            (Ended::LinkDown, RejectWhy::ConnRace),
            (Ended::Moved, RejectWhy::ConnRace),
            (Ended::PathMtu, RejectWhy::ConnRace),
            (Ended::AddressChanged, RejectWhy::ConnRace),
            (Ended::Overtaken, RejectWhy::ConnRace),
            (Ended::AdminClose, RejectWhy::ConnRace),
            (Ended::PeerRestarted, RejectWhy::ConnStale),
            (Ended::Denied, RejectWhy::Fatal),
            (Ended::NoResources, RejectWhy::NoResources),
            (Ended::ConnectTimeout, RejectWhy::NoResources),
            (Ended::Shutdown, RejectWhy::NoResources),
            (Ended::DeviceGone, RejectWhy::NoResources),
        ] {
            assert_eq!(Refusal::of_taken(ended).why, why);
        }
    }

    #[test]
    fn what_helps_the_peer_to_connect_is_always_answered() {
        for cause in [
            RejectCause::Race,
            RejectCause::StalePeer,
            RejectCause::StaleDestination,
            RejectCause::Depth(9),
            RejectCause::Frags(300),
        ] {
            assert!(Refusal::new(cause).invites());
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
            assert!(!Refusal::new(cause).invites());
        }
    }

    #[test]
    fn reject_without_an_ni_offers_nothing() {
        let r = Refusal::new(RejectCause::Wire(WireError::Short)).reject(None);
        assert_eq!(r.version, Version::V2);
        assert_eq!(r.why, RejectWhy::Fatal);
        let d = r.details.unwrap_or_default();
        assert_eq!(d.incarnation, 0);
        assert_eq!(d.params.queue_depth, 0);
        assert_eq!(d.params.max_frags, 0);
        assert_eq!(d.params.max_msg_size, 4096);
    }

    #[test]
    fn reject_of_an_ni_carries_its_life_and_limits() {
        let ni = NiView {
            nid: Nid::new(0, 0x0a00_0001),
            stamp: 77,
            peer_credits: QueueDepth::MAX,
            active: true,
        };
        let r = Refusal::new(RejectCause::Depth(300)).reject(Some(&ni));
        assert_eq!(r.why, RejectWhy::MsgQueueSize);
        let d = r.details.unwrap_or_default();
        assert_eq!(d.incarnation, 77);
        assert_eq!(d.params.queue_depth, 255);
        assert_eq!(d.params.max_frags, 257);
    }
}
