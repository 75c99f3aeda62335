// SPDX-License-Identifier: GPL-2.0

//! Causes of the end of a connection or a transmit, and the status that LNet gets for each.
//!
//! The health status that comes with `lnet_finalize` decides whether LNet resends a message, and whether it lowers the
//! health of the local or of the remote interface: the mapping is behaviour, not a label. The table is protocol section
//! 7, except for rows where ko2iblnd blames the wrong side (Documentation/reference.md).

/// Errno values that cross the border to LNet, as positive numbers (`asm-generic/errno*.h`).
pub mod errno {
    pub const EIO: i32 = 5;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EBUSY: i32 = 16;
    pub const ENODEV: i32 = 19;
    pub const EINVAL: i32 = 22;
    pub const ENODATA: i32 = 61;
    pub const EPROTO: i32 = 71;
    pub const EADDRINUSE: i32 = 98;
    pub const EADDRNOTAVAIL: i32 = 99;
    pub const ENETDOWN: i32 = 100;
    pub const ENETUNREACH: i32 = 101;
    pub const ECONNABORTED: i32 = 103;
    pub const ECONNRESET: i32 = 104;
    pub const ETIMEDOUT: i32 = 110;
    pub const ECONNREFUSED: i32 = 111;
    pub const EHOSTUNREACH: i32 = 113;
    pub const ESTALE: i32 = 116;
}

/// LNet's health of a message, with the values of `enum lnet_msg_hstatus`: the side that LNet blames, and whether LNet
/// resends it over another path. Section 7 of the specification has the failures. LNet ignores a health that
/// contradicts the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Ok = 0,
    LocalInterrupt = 1,
    /// Dropped before it left this node; LNet resends it.
    LocalDropped = 2,
    /// Aborted before it left this node; LNet resends it.
    LocalAborted = 3,
    LocalNoRoute = 4,
    /// The local interface or the request is at fault; LNet does not resend it.
    LocalError = 5,
    /// Still queued here at its deadline; LNet resends it.
    LocalTimeout = 6,
    /// The peer answered with an error; LNet does not resend it.
    RemoteError = 7,
    /// The peer did not take it; LNet resends it.
    RemoteDropped = 8,
    /// The peer received it and never answered.
    RemoteTimeout = 9,
    /// It is unknown which side lost it.
    NetworkTimeout = 10,
}

/// Arguments of `lnet_finalize`: `status` is 0 or a negative errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub status: i32,
    pub health: Health,
}

/// Sides that initiate an end, for programs.
pub mod side {
    /// This node: a limit was reached, a resource was missing, or the peer sent something invalid.
    pub const LOCAL: &str = "local";
    /// The peer or its device, which reported it.
    pub const PEER: &str = "peer";
    /// Neither side: the other side no longer answered.
    pub const PATH: &str = "path";
    /// The device of this node.
    pub const DEVICE: &str = "device";
    /// The administrator of this node, or the shutdown of the NI.
    pub const OPERATOR: &str = "operator";
    /// Perhaps an address of either side moved.
    pub const UNKNOWN: &str = "unknown";
}

/// Defines [`Cause`]. A row has the variant, whose name programs read; the errno and the health that LNet gets; the
/// side that initiated the end; the classes; and the phrase for the log.
macro_rules! causes {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($carried:ty))?, $errno:ident, $health:ident, $by:ident, [$($class:ident)|*],
        $phrase:literal;
    )+) => {
        /// Reason of an end. The first cause is kept, later ones are consequences.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cause {
            $($(#[$doc])* $name $(($carried))?,)+
        }

        /// Names of [`Cause`] without spaces, for programs.
        pub const NAMES: [&str; { [$(stringify!($name)),+].len() }] = [$(stringify!($name)),+];

        /// Phrases for the log, in the order of [`NAMES`].
        pub const PHRASES: [&str; NAMES.len()] = [$($phrase),+];

        impl Cause {
            /// Returns the name for programs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name { .. } => stringify!($name),)+
                }
            }

            /// Returns the phrase for the log.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name { .. } => $phrase,)+
                }
            }

            /// Returns errno, health, initiator and classes of its row.
            const fn row(self) -> (i32, Health, &'static str, u16) {
                match self {
                    $(Self::$name { .. } => (
                        errno::$errno,
                        Health::$health,
                        side::$by,
                        0 $(| Self::$class)*,
                    ),)+
                }
            }
        }
    };
}

causes! {
    /// The NI is being deleted by the operator, or the module unloaded. LNet may have another NI.
    Shutdown, EIO, LocalDropped, OPERATOR, [IS_OURS | IS_WANTED],
        "shutting down";
    /// The administrator closed the connection, `lctl disconnect`, and wants a new one that sends the messages.
    AdminClose, EIO, LocalDropped, OPERATOR, [IS_OURS | IS_WANTED | SPARES_MESSAGES | SPARES_WAITING],
        "closed by lctl disconnect";
    PeerDeleted, EIO, LocalError, OPERATOR, [IS_OURS | IS_WANTED],
        "the peer was deleted (lctl del_peer)";
    /// The settings of the administrator exclude the peer ([`crate::policy::text_params::allows`]). This NI must not
    /// send to that peer; it reaches others.
    Denied, EIO, RemoteDropped, OPERATOR, [IS_OURS | IS_WANTED | DISCREDITS_RX],
        "denied by the parameter access";
    /// LNet keeps too many requests of earlier connections of the peer (`rust/lnd/ni.rs`). Our
    /// NI has no part in it: LNet reaches other peers over it.
    Backlog, EBUSY, RemoteDropped, LOCAL, [IS_OURS],
        "LNet retains too many requests of earlier connections";
    /// The peer closed the connection. Our NI has no part in that: LNet reaches other peers over it. If LNet has no
    /// other NI of the peer, the driver resends.
    PeerClosed, ECONNRESET, RemoteDropped, PEER, [IS_RETRYABLE],
        "closed by the peer";
    PeerRestarted, ESTALE, RemoteDropped, LOCAL, [BLAMES_PEER | SPARES_WAITING | DISCREDITS_RX],
        "the peer was restarted";
    Protocol, EPROTO, RemoteError, LOCAL, [BLAMES_PEER | DISCREDITS_RX],
        "the peer broke the protocol";
    Unreachable, EHOSTUNREACH, RemoteDropped, PATH, [BLAMES_PEER],
        "unreachable: the address does not answer, or no route";
    /// The node answers, but no LND listens there.
    NoListener, EHOSTUNREACH, RemoteDropped, PEER, [BLAMES_PEER],
        "no listener: is LNet up, with the same service";
    Refused, ECONNREFUSED, RemoteDropped, PEER, [BLAMES_PEER],
        "refused by the peer";
    /// The handshake failed in another way (CM error, reset before establishment).
    ConnectFailed, ECONNABORTED, RemoteDropped, UNKNOWN, [BLAMES_PEER],
        "the handshake failed";
    ConnectTimeout, ETIMEDOUT, RemoteDropped, PATH, [BLAMES_PEER],
        "the handshake took too long";
    NoResources, ENOMEM, LocalDropped, LOCAL, [IS_RETRYABLE],
        "out of memory or of device resources here";
    /// A work request failed because of this node (`IB_WC_LOC_*`, a failed post).
    LocalFault, EIO, LocalDropped, DEVICE, [IS_RETRYABLE],
        "a work request failed here";
    /// A work request failed because of the peer (`IB_WC_REM_*`).
    RemoteFault, EIO, RemoteError, PEER, [BLAMES_PEER | IS_RETRYABLE],
        "the peer's device refused a work request";
    /// The transport gave up (`IB_WC_RETRY_EXC_ERR`, `IB_WC_RNR_RETRY_EXC_ERR`).
    TransportRetry, EIO, RemoteDropped, PATH, [BLAMES_PEER | IS_SILENT | IS_RETRYABLE],
        "the transport gave up retrying";
    /// Flushed with the connection; the connection's own cause says why. An orderly close of the peer may show as a
    /// flush before the CM reports it.
    Flushed, ECONNRESET, RemoteDropped, UNKNOWN, [IS_SILENT | IS_RETRYABLE],
        "the queue pair went into the error state";
    DeadlineConnecting, ETIMEDOUT, RemoteDropped, LOCAL, [BLAMES_PEER],
        "no connection in time";
    /// Waited too long in a queue of the connection, for credits, which the peer returns.
    DeadlineQueued, ECONNABORTED, RemoteDropped, LOCAL, [IS_RETRYABLE],
        "queued too long";
    DeadlineSending, ECONNABORTED, NetworkTimeout, LOCAL, [BLAMES_PEER | IS_SILENT | IS_RETRYABLE],
        "the send did not complete in time";
    DeadlineAnswer, ECONNABORTED, RemoteTimeout, LOCAL, [BLAMES_PEER | IS_SILENT | IS_RETRYABLE],
        "the peer did not answer in time";
    /// The device went away or reported a fatal error.
    DeviceGone, EIO, LocalDropped, DEVICE, [IS_OURS | SPARES_MESSAGES],
        "the RDMA device is gone";
    /// The link of the NI closed: no carrier, no address, or a port that is not active.
    LinkDown, ENETDOWN, LocalDropped, DEVICE, [IS_OURS | SPARES_MESSAGES | SPARES_WAITING],
        "the link is down here";
    Overtaken, ECONNABORTED, RemoteDropped, PEER, [IS_OURS | SPARES_MESSAGES | SPARES_WAITING],
        "the peer connected first";
    AddressChanged, ECONNABORTED, LocalDropped, UNKNOWN, [IS_RETRYABLE | SPARES_WAITING],
        "an address changed";
    Moved, ENETDOWN, LocalDropped, DEVICE, [IS_OURS | SPARES_MESSAGES | SPARES_WAITING | IS_OURS_TO_CONNECT],
        "the interface moved to another RDMA device";
    /// The path MTU of the connection is larger than the MTU of the port here.
    PathMtu, ECONNABORTED, LocalDropped, DEVICE, [IS_OURS | IS_RETRYABLE | SPARES_WAITING | IS_OURS_TO_CONNECT],
        "the path MTU is larger than the MTU of the interface here allows: set the same MTU on both nodes";
    /// The peer reported this negative errno in a completion message.
    Told(i32), EIO, RemoteError, PEER, [],
        "the peer reported an error";
    /// The transfer could not be built here: a negative errno.
    Local(i32), EIO, LocalError, LOCAL, [],
        "the transfer could not be built here";
}

/// Classes, see [`Cause::has`].
impl Cause {
    /// The peer is gone, so that LNet should be told.
    pub const BLAMES_PEER: u16 = 1;
    /// The peer did not announce the end: its other connections may be dead, too.
    pub const IS_SILENT: u16 = 1 << 1;
    /// Neither side wanted the end, and another attempt may succeed.
    pub const IS_RETRYABLE: u16 = 1 << 2;
    /// An event of this node caused the end. The peer can bring about any other cause, so a peer whose connections end
    /// in such a way at once, again and again, is retried with pauses.
    pub const IS_OURS: u16 = 1 << 3;
    /// The administrator ended it: no connection is made again before LNet sends.
    pub const IS_WANTED: u16 = 1 << 4;
    /// The messages of the connection may go over the next one, as for [`Self::IS_RETRYABLE`]: the peer may have them,
    /// and the messages themselves can be sent. If a connection lacked memory, that was for an answer to the peer: a
    /// lack of memory for a message ends only that message.
    pub const SPARES_MESSAGES: u16 = 1 << 5;
    /// The cause of a failed attempt says nothing about the peer: it conflicted with something else on this node.
    /// Messages that wait for a connection wait for the next one.
    pub const SPARES_WAITING: u16 = 1 << 6;
    /// Earlier messages of the peer no longer count: the peer is known to be wrong, restarted, or unwelcome. An error
    /// of either device does not discredit messages that arrived complete.
    pub const DISCREDITS_RX: u16 = 1 << 7;
    /// This node connects, because the peer cannot: the peer has another address of this node than the NI, or asks for
    /// larger packets than its port takes.
    pub const IS_OURS_TO_CONNECT: u16 = 1 << 8;

    /// Returns whether it has one of `classes`.
    pub const fn has(self, classes: u16) -> bool {
        self.row().3 & classes != 0
    }

    /// Returns the [`side`] that initiated the end.
    pub const fn initiator(self) -> &'static str {
        self.row().2
    }

    /// Returns the index in [`NAMES`] and [`PHRASES`].
    pub fn number(self) -> usize {
        let number = NAMES.iter().position(|name| *name == self.name());
        number.unwrap_or(NAMES.len())
    }

    /// Returns the status and health of a message that ends for this cause. `posted`: a work request of it reached the
    /// device. LNet can resend a message without harm if none did.
    pub fn outcome(self, posted: bool) -> Outcome {
        let (errno, health, ..) = self.row();
        let errno = match self {
            Self::Told(carried) | Self::Local(carried) => positive(carried),
            _ => errno,
        };
        let health = match self {
            Self::LocalFault | Self::AdminClose | Self::Shutdown if posted => Health::LocalAborted,
            _ => health,
        };
        Outcome {
            status: errno.saturating_neg(),
            health,
        }
    }

    /// Returns the cause on a device of this node that reports itself broken: a flush there was not caused by the peer.
    pub fn on_broken_device(self) -> Self {
        match self {
            Self::Flushed => Self::LocalFault,
            other => other,
        }
    }

    /// Returns the cause of an end whose queue pair failed: [`Cause::PathMtu`] if the path MTU of the connection is
    /// larger than the MTU of the port (both in bytes), because a device may drop such a packet or fail the queue pair.
    /// Calls `port_mtu` only if it matters.
    pub fn with_mtus(self, path_mtu: u32, port_mtu: impl Fn() -> Option<u32>) -> Self {
        match self {
            Self::Flushed | Self::TransportRetry | Self::LocalFault
                if port_mtu().is_some_and(|mtu| path_mtu > mtu) =>
            {
                Self::PathMtu
            }
            other => other,
        }
    }

    /// Returns the cause of an attempt whose resolution of the address or route could not start, by its negative errno.
    /// Most of them are not the peer's fault.
    pub fn of_resolving(e: i32) -> Self {
        match e.saturating_neg() {
            // No device has the GID of the address yet, after each change of the address; this node has no such
            // address; the LID of the subnet manager is being looked up.
            errno::ENODEV | errno::EADDRNOTAVAIL | errno::EAGAIN => Self::AddressChanged,
            errno::ENETUNREACH | errno::EHOSTUNREACH | errno::ETIMEDOUT => Self::Unreachable,
            // ENOMEM, EADDRINUSE of our own port, or another failure of the RDMA core.
            _ => Self::NoResources,
        }
    }
}

/// Returns an errno from the wire or from a call as a positive number; any other number becomes `EIO`.
fn positive(e: i32) -> i32 {
    match e.checked_neg() {
        Some(n) if (1..=4095).contains(&n) => n,
        _ => errno::EIO,
    }
}

/// All causes, one value of each, for tests.
#[cfg(any(test, ro2iblnd_kunit))]
pub const ALL: [Cause; NAMES.len()] = [
    Cause::Shutdown,
    Cause::AdminClose,
    Cause::PeerDeleted,
    Cause::Denied,
    Cause::Backlog,
    Cause::PeerClosed,
    Cause::PeerRestarted,
    Cause::Protocol,
    Cause::Unreachable,
    Cause::NoListener,
    Cause::Refused,
    Cause::ConnectFailed,
    Cause::ConnectTimeout,
    Cause::NoResources,
    Cause::LocalFault,
    Cause::RemoteFault,
    Cause::TransportRetry,
    Cause::Flushed,
    Cause::DeadlineConnecting,
    Cause::DeadlineQueued,
    Cause::DeadlineSending,
    Cause::DeadlineAnswer,
    Cause::DeviceGone,
    Cause::LinkDown,
    Cause::Overtaken,
    Cause::AddressChanged,
    Cause::Moved,
    Cause::PathMtu,
    Cause::Told(-61),
    Cause::Local(-22),
];

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_cause))]
mod tests {
    use super::*;

    #[test]
    fn all_causes_are_listed() {
        for (number, cause) in ALL.into_iter().enumerate() {
            assert_eq!(cause.number(), number);
        }
    }

    #[test]
    fn a_status_is_always_a_negative_errno() {
        for e in [0, 1, -1, -61, i32::MIN, i32::MAX] {
            let told = Cause::Told(e).outcome(true);
            assert!((-4095..0).contains(&told.status));
            assert_eq!(told.health, Health::RemoteError);
        }
        assert_eq!(Cause::Told(-61).outcome(true).status, -61);
    }

    /// Tests that a failure of this node is no reason for LNet to avoid the peer.
    #[test]
    fn unrequested_answer_does_not_blame_the_peer() {
        for e in [
            errno::ENOMEM,
            errno::ENODEV,
            errno::EADDRINUSE,
            errno::EADDRNOTAVAIL,
            errno::EINVAL,
            0,
            i32::MIN,
        ] {
            let cause = Cause::of_resolving(e.saturating_neg());
            assert!(!cause.has(Cause::BLAMES_PEER));
            assert_eq!(cause.outcome(false).health, Health::LocalDropped);
        }
        for e in [errno::ENODEV, errno::EADDRNOTAVAIL, errno::EAGAIN] {
            assert!(Cause::of_resolving(e.saturating_neg()).has(Cause::SPARES_WAITING));
        }
        let no_route = Cause::of_resolving(-errno::ENETUNREACH);
        assert_eq!(no_route, Cause::Unreachable);
    }

    /// Tests a device that flushes before it reports that it is broken.
    #[test]
    fn no_peer_is_blamed_for_a_broken_device_of_ours() {
        let flushed = |cause: Cause| cause.on_broken_device().outcome(true).health;
        assert_eq!(flushed(Cause::Flushed), Health::LocalAborted);
        assert_eq!(flushed(Cause::PeerClosed), Health::RemoteDropped);
    }

    /// Tests that LNet lowers no peer's health, and marks no peer down, for what happens to a link or device of this
    /// node: a flap of either would make LNet avoid all peers of a route.
    #[test]
    fn no_local_cause_blames_the_peer() {
        for cause in [
            Cause::LinkDown,
            Cause::Moved,
            Cause::AddressChanged,
            Cause::PathMtu,
            Cause::DeviceGone,
            Cause::LocalFault,
            Cause::NoResources,
            Cause::AdminClose,
            Cause::Shutdown,
            Cause::Local(errno::EINVAL),
        ] {
            assert!(!cause.has(Cause::BLAMES_PEER));
            for posted in [false, true] {
                assert!(matches!(
                    cause.outcome(posted).health,
                    Health::LocalDropped | Health::LocalAborted | Health::LocalError
                ));
            }
        }
    }

    /// Tests that a peer that ends each connection at once is retried with pauses, whatever the cause.
    #[test]
    fn remote_causes_need_backoff() {
        for cause in [
            Cause::PeerClosed,
            Cause::PeerRestarted,
            Cause::Protocol,
            Cause::Unreachable,
            Cause::NoListener,
            Cause::Refused,
            Cause::ConnectFailed,
            Cause::ConnectTimeout,
            Cause::NoResources,
            Cause::LocalFault,
            Cause::RemoteFault,
            Cause::TransportRetry,
            Cause::Flushed,
            Cause::DeadlineConnecting,
            Cause::DeadlineQueued,
            Cause::DeadlineSending,
            Cause::DeadlineAnswer,
            Cause::AddressChanged,
            Cause::Told(-61),
            Cause::Local(-22),
        ] {
            assert!(!cause.has(Cause::IS_OURS));
        }
        for cause in [
            Cause::Shutdown,
            Cause::AdminClose,
            Cause::PeerDeleted,
            Cause::Denied,
            Cause::Backlog,
            Cause::DeviceGone,
            Cause::LinkDown,
            Cause::Overtaken,
            Cause::Moved,
            Cause::PathMtu,
        ] {
            assert!(cause.has(Cause::IS_OURS));
        }
        // A peer that does not speak the protocol, or was restarted, gets no second attempt.
        assert!(!Cause::Protocol.has(Cause::IS_RETRYABLE));
        assert!(!Cause::PeerRestarted.has(Cause::IS_RETRYABLE));
    }

    #[test]
    fn the_mtu_is_named_if_it_may_be_the_cause() {
        for failed in [Cause::Flushed, Cause::TransportRetry, Cause::LocalFault] {
            assert_eq!(failed.with_mtus(4096, || Some(1024)), Cause::PathMtu);
            assert_eq!(failed.with_mtus(1024, || Some(1024)), failed);
            assert_eq!(failed.with_mtus(4096, || None), failed);
            // iWARP has no path MTU.
            assert_eq!(failed.with_mtus(0, || Some(1024)), failed);
        }
        let closed = Cause::PeerClosed.with_mtus(4096, || Some(1024));
        assert_eq!(closed, Cause::PeerClosed);
        assert!(!Cause::PathMtu.has(Cause::BLAMES_PEER));
    }

    /// Tests that a peer that returns no credits, leaves more requests with LNet than allowed, or is excluded does not
    /// change the health of our NI, over which LNet reaches other peers.
    #[test]
    fn peer_without_credits_is_blamed() {
        for posted in [false, true] {
            for cause in [Cause::DeadlineQueued, Cause::Backlog, Cause::Denied] {
                assert_eq!(cause.outcome(posted).health, Health::RemoteDropped);
            }
        }
        // But the peer is there: LNet does not mark it down.
        assert!(!Cause::Backlog.has(Cause::BLAMES_PEER));
    }

    #[test]
    fn failed_attempt_lets_lnet_resend() {
        for cause in [
            Cause::Unreachable,
            Cause::NoListener,
            Cause::Refused,
            Cause::ConnectFailed,
            Cause::ConnectTimeout,
            Cause::DeadlineConnecting,
            Cause::NoResources,
            Cause::Backlog,
            Cause::PeerRestarted,
            Cause::TransportRetry,
            Cause::AdminClose,
            Cause::Shutdown,
            Cause::LocalFault,
            Cause::LinkDown,
            Cause::DeviceGone,
            Cause::AddressChanged,
            Cause::Moved,
            Cause::PathMtu,
        ] {
            let health = cause.outcome(false).health;
            let resent = matches!(health, Health::LocalDropped | Health::RemoteDropped);
            // KUnit's takes no message.
            assert!(resent);
        }
    }

    #[test]
    fn local_close_spares_pending_messages() {
        for cause in [
            Cause::PeerRestarted,
            Cause::AdminClose,
            Cause::Overtaken,
            Cause::Moved,
            // The link may be back by then. If it is not, and LNet has another NI, no message waits.
            Cause::LinkDown,
            Cause::AddressChanged,
            Cause::PathMtu,
        ] {
            assert!(cause.has(Cause::SPARES_WAITING));
        }
        // The peer rejects this node, is not there, or is excluded.
        for cause in [
            Cause::Refused,
            Cause::Unreachable,
            Cause::ConnectTimeout,
            Cause::Denied,
            Cause::PeerDeleted,
            Cause::Shutdown,
        ] {
            assert!(!cause.has(Cause::SPARES_WAITING));
        }
    }

    #[test]
    fn device_fault_accepts_late_rx() {
        for cause in [
            Cause::RemoteFault,
            Cause::LocalFault,
            Cause::DeviceGone,
            Cause::Shutdown,
        ] {
            assert!(!cause.has(Cause::DISCREDITS_RX));
        }
        for cause in [Cause::Protocol, Cause::PeerRestarted, Cause::Denied] {
            assert!(cause.has(Cause::DISCREDITS_RX));
        }
    }
}
