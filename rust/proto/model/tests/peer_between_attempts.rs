// SPDX-License-Identifier: GPL-2.0

//! State of a peer between attempts, where two modules take part in it.

use ro2iblnd_proto::{
    constants::{
        MaxFrags,
        PeerParams,
        QueueDepth,
        MSG_SIZE_WIRE,
        RACES_MAX, //
    },
    handshake::{
        check_peer,
        ConnReq,
        PeerView, //
    },
    nid::Nid,
    policy::reconnect::ReconnectState,
    reject::RejectCause,
    wire::ConnParams, //
};

/// Requests of `src` to `dst` that are refused for a race, until one is accepted.
fn races(src: Nid, dst: Nid) -> usize {
    let known = PeerParams {
        stamp: 7,
        depth: QueueDepth::MIN,
        frags: MaxFrags::MAX,
    };
    let req = ConnReq {
        src,
        src_stamp: 7,
        dst,
        dst_stamp: 0,
        params: ConnParams {
            queue_depth: 1,
            max_frags: 1,
            max_msg_size: MSG_SIZE_WIRE,
        },
    };
    let mut peer = ReconnectState::default();
    peer.known = known;
    assert!(peer.may_start());
    peer.begin(1);
    for lost in 0..1_000 {
        let view = PeerView {
            stamp: Some(7),
            connecting_ms: peer.connecting().then_some(0),
            races: peer.races,
            conns: 0,
            max_conns: 1,
        };
        match check_peer(&req, &view) {
            Err(RejectCause::Race) => peer.race_counted(),
            Ok(false) => {
                peer.accepting();
                assert_eq!(peer.races, 0);
                return lost;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("refused for ever");
}

/// Tests that the peer's attempt is accepted in the end if our own hangs, and at once if the peer wins.
#[test]
fn a_race_is_not_lost_for_ever() {
    let (a, b) = (Nid::new(0, 0x0a00_0001), Nid::new(0, 0x0a00_0002));
    let mut lost = [races(a, b), races(b, a)];
    lost.sort_unstable();
    assert_eq!(lost, [0, usize::from(RACES_MAX)]);
}
