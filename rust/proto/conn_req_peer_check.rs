// SPDX-License-Identifier: GPL-2.0

//! Check of a connection request against the state of its sender: restarts, races and limits.

use super::{
    conn_req_types::ConnReq,
    constants::RACES_MAX,
    nid::race_key,
    reject_cause::{
        Refusal,
        RejectCause, //
    }, //
};

/// State of the requesting peer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// Its incarnation; `None` = not learnt yet.
    pub stamp: Option<u64>,
    /// Age of our youngest request to it in milliseconds; `None` = there is none.
    pub connecting_ms: Option<u64>,
    /// Races it has lost in a row.
    pub races: u8,
    /// Its connections, established or in progress on the passive side.
    pub conns: u16,
    /// Largest number of its connections.
    pub max_conns: u16,
}

/// Age in milliseconds from which on a request of ours no longer wins a race: the requesting peer has not answered it,
/// so it was lost, and the CM repeats it only after 4.3 s. That happens when the peer's link comes back.
pub const STALE_REQUEST_MS: u64 = 500;

/// Outcome of stage 3. The driver acts on it under the lock that protects the source of [`PeerView`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PeerVerdict {
    /// Accept the request: forget the races, cancel a waiting reconnect.
    Accept,
    /// Accept the request, which says that the peer was restarted. Another host may have sent it in the peer's name,
    /// and then gets no answer. So connections of the known incarnation only become suspect, and end when the new
    /// connection is established.
    Reborn,
    /// Count a race, and reject.
    Race(Refusal),
    /// Reject.
    Refuse(Refusal),
}

/// Checks a request against the state of the peer, in stage 3 (spec 4.4 rows 14-15 and 4.8, guards H9 and H42). `peer`
/// is `None` for an unknown peer.
///
/// The state of a restarted peer does not limit its new incarnation: our own request is for the old one, and will be
/// rejected; the old connections are as good as gone, so the same number again is allowed.
pub fn check_peer(req: &ConnReq, peer: Option<&PeerView>) -> PeerVerdict {
    let Some(peer) = peer else {
        return PeerVerdict::Accept;
    };
    if peer.stamp.is_some_and(|known| known != req.src_stamp) {
        return match peer.conns >= peer.max_conns.saturating_mul(2) {
            true => PeerVerdict::Refuse(Refusal::new(RejectCause::TooMany)),
            false => PeerVerdict::Reborn,
        };
    }
    let we_win = race_key(req.src) < race_key(req.dst);
    let racing = peer.connecting_ms.is_some_and(|ms| ms < STALE_REQUEST_MS);
    if racing && we_win && peer.races < RACES_MAX {
        return PeerVerdict::Race(Refusal::new(RejectCause::Race));
    }
    if peer.conns >= peer.max_conns {
        return PeerVerdict::Refuse(Refusal::new(RejectCause::TooMany));
    }
    PeerVerdict::Accept
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_conn_req_peer))]
mod tests {
    use super::super::{
        nid::Nid,
        wire::{
            ConnParams,
            Order, //
        }, //
    };
    use super::*;

    const ME: Nid = Nid::new(0, 0x0a00_0001);
    const PEER: Nid = Nid::new(0, 0x0a00_0002);
    const STAMP: u64 = 0x0006_4a1b_2c3d_4e5f;
    const REQ: ConnReq = ConnReq {
        src: PEER,
        src_stamp: STAMP,
        dst: ME,
        dst_stamp: 0,
        params: ConnParams {
            queue_depth: 8,
            max_frags: 257,
            max_msg_size: 4096,
        },
    };

    fn peer() -> PeerView {
        PeerView {
            stamp: Some(STAMP),
            connecting_ms: None,
            races: 0,
            conns: 1,
            max_conns: 8,
        }
    }

    #[test]
    fn row14_restarted_peer() {
        let old = PeerView {
            stamp: Some(STAMP ^ 1),
            ..peer()
        };
        assert_eq!(check_peer(&REQ, Some(&old)), PeerVerdict::Reborn);
        // A peer with all connections of its old incarnation, and a request of ours for that, does not have to wait.
        let full = PeerView {
            conns: old.max_conns,
            connecting_ms: Some(0),
            ..old
        };
        let reverse = ConnReq {
            src: ME,
            dst: PEER,
            ..REQ
        };
        assert_eq!(check_peer(&reverse, Some(&full)), PeerVerdict::Reborn);
        let fuller = PeerView {
            conns: old.max_conns.saturating_mul(2),
            ..old
        };
        let too_many = PeerVerdict::Refuse(Refusal::new(RejectCause::TooMany));
        assert_eq!(check_peer(&REQ, Some(&fuller)), too_many);
        let unknown = PeerView {
            stamp: None,
            ..peer()
        };
        assert_eq!(check_peer(&REQ, Some(&unknown)), PeerVerdict::Accept);
        assert_eq!(check_peer(&REQ, Some(&peer())), PeerVerdict::Accept);
        assert_eq!(check_peer(&REQ, None), PeerVerdict::Accept);
    }

    #[test]
    fn row15_race() {
        // As the lower side of REQ, the peer's key is the higher one.
        let racing = PeerView {
            connecting_ms: Some(STALE_REQUEST_MS - 1),
            ..peer()
        };
        assert_eq!(check_peer(&REQ, Some(&racing)), PeerVerdict::Accept);
        let reverse = ConnReq {
            src: ME,
            dst: PEER,
            ..REQ
        };
        let lost = PeerVerdict::Race(Refusal::new(RejectCause::Race));
        assert_eq!(check_peer(&reverse, Some(&racing)), lost);
        let patient = PeerView {
            races: 19,
            ..racing
        };
        assert_eq!(check_peer(&reverse, Some(&patient)), lost);
        let lost_request = PeerView {
            connecting_ms: Some(STALE_REQUEST_MS),
            ..racing
        };
        assert_eq!(
            check_peer(&reverse, Some(&lost_request)),
            PeerVerdict::Accept
        );
        let tired = PeerView {
            races: 20,
            ..racing
        };
        assert_eq!(check_peer(&reverse, Some(&tired)), PeerVerdict::Accept);
        assert_eq!(check_peer(&reverse, Some(&peer())), PeerVerdict::Accept);
    }

    #[test]
    fn h9_connections_are_bounded() {
        let full = PeerView { conns: 8, ..peer() };
        assert_eq!(
            check_peer(&REQ, Some(&full)),
            PeerVerdict::Refuse(Refusal::new(RejectCause::TooMany))
        );
    }
}
