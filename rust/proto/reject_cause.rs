// SPDX-License-Identifier: GPL-2.0

//! Reasons to reject a connection request, and the reject with a reason.

use core::fmt;

use super::{
    cause::{
        self,
        errno::ENOMEM, //
    },
    conn_req_types::NiView,
    constants::{
        FRAGS_MAX,
        MSG_SIZE_WIRE, //
    },
    nid::Nid,
    reject::{
        Reject,
        RejectDetails,
        RejectWhy, //
    },
    reject_cause_table::reject_causes,
    wire::{
        ConnParams,
        Version,
        WireError, //
    }, //
};

/// Defines [`RejectCause`] of the table.
macro_rules! define {
    ($($(#[$doc:meta])+ $name:ident $(($value:ident: $kind:ty))?, $why:ident, $log:literal, $phrase:literal;)+) => {
        /// Check that a request failed; for the log and the counters.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum RejectCause {
            $($(#[$doc])+ $name $(($kind))?,)+
        }

        /// Names of [`RejectCause`] without spaces, for programs.
        pub const NAMES: [&str; { [$(stringify!($name)),+].len() }] = [$(stringify!($name)),+];

        impl RejectCause {
            /// Returns the index in [`NAMES`].
            pub const fn number(&self) -> usize {
                enum Number {
                    $($name,)+
                }

                match self {
                    $(Self::$name { .. } => Number::$name as usize,)+
                }
            }

            /// Returns its name in [`NAMES`].
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)+
                }
            }

            /// Returns the reason to send.
            const fn why(&self) -> RejectWhy {
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
        let why = cause.why();
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
    use super::super::constants::QueueDepth;
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
    fn accepted_request_gets_a_race_reject_if_the_link_is_lost() {
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
    fn rejects_with_a_remedy_are_always_sent() {
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
