// SPDX-License-Identifier: GPL-2.0

//! Table of the reasons to reject a connection request. The driver makes the causes and the log lines of it, and
//! ro2ibtop its texts.

/// Calls the macro `$with` with the table. A row has the name, for programs, and the value of a cause; the reason that
/// the peer gets ([`RejectWhy`](super::reject::RejectWhy)); the text for the log; the text for ro2ibtop.
macro_rules! reject_causes {
    ($with:ident) => {
        $with! {
            Port(value: u16), FATAL,
                "unprivileged source port {value}",
                "unprivileged source port";
            /// Not a message, or of an unknown version.
            Wire(value: WireError), FATAL,
                "{value}",
                "no o2ib request";
            OldVersion, FATAL,
                "version 0x11",
                "version 0x11";
            NotAConnReq, FATAL,
                "not a CONNREQ",
                "not a request";
            /// For a NID of another LND (H1, H2).
            ForeignDestination, FATAL,
                "destination NID of another LND",
                "NID of another kind of network";
            /// From a NID of another LND (H3).
            ForeignSource, FATAL,
                "source NID of another LND",
                "NID of another kind of network";
            NotReady, EARLY,
                "NI not ready yet",
                "NI not ready yet";
            NoSuchNi(value: Nid), FATAL,
                "no NI {value} on this device",
                "no NI has the requested NID";
            /// From a NID of another network than the NI's (H4).
            OtherNet, FATAL,
                "source NID of another network",
                "it is on another network";
            /// From our own NID, but not by this node (H4).
            OwnNid, FATAL,
                "source NID is our own",
                "it has our own NID";
            /// The source NID does not match the CM's source address (H4).
            SourceAddress, FATAL,
                "source NID is not the source address",
                "its NID is not its address";
            StaleDestination, CONN_STALE,
                "sent to an earlier incarnation of this NI",
                "the request is for an earlier incarnation of this node";
            /// The depth is 0 (H5).
            NoDepth, FATAL,
                "queue depth 0",
                "no proper o2ib request";
            /// The depth is above our peer credits.
            Depth(value: u16), MSG_QUEUE_SIZE,
                "queue depth {value} too large",
                "another queue depth is agreed on";
            /// No fragments (H7).
            NoFrags, FATAL,
                "no fragments",
                "no proper o2ib request";
            Frags(value: u16), RDMA_FRAGS,
                "{value} fragments are too many",
                "another number of fragments is agreed on";
            /// Another message size than 4096 (H8).
            MsgSize(value: u32), FATAL,
                "message size {value}",
                "no proper o2ib request";
            StalePeer, CONN_STALE,
                "peer has a new incarnation",
                "the peer was restarted";
            Race, CONN_RACE,
                "lost a connection race",
                "our own request wins";
            /// The peer has as many connections as allowed (H9), or LNet retains too many requests of closed ones
            /// (H41).
            TooMany, NO_RESOURCES,
                "the peer has the maximum of connections, or of requests that LNet retains",
                "the peer has the maximum of connections, or of requests that LNet retains";
            /// Too many requests from the address were accepted lately (H44). The peer gets no answer: its CM repeats
            /// the request after seconds.
            TooOften, NO_RESOURCES,
                "too many requests from its address; its CM retries",
                "too many requests from its address";
            /// Too many requests from all addresses together were accepted lately (H44). No answer, either.
            TooOftenInAll, NO_RESOURCES,
                "too many requests from all peers; its CM retries",
                "too many requests from all peers";
            /// Objects of a connection could not be created: the errno.
            NoResources(value: i32), NO_RESOURCES,
                "cannot create the connection ({value})",
                "no memory, or no device resources, here";
            /// The settings of the administrator exclude the peer ([`crate::policy::text_params::allows`]).
            Denied, FATAL,
                "denied by the parameter access",
                "denied by the parameter access";
        }
    };
}

pub(crate) use reject_causes;
