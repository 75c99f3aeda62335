// SPDX-License-Identifier: GPL-2.0

//! Connection requests of a peer.
//!
//! Context: process, in the handler of a listener: all other requests wait. The peer lock is taken briefly; the rate
//! limit may take a lock inside.

use super::{
    Connection,
    Peer, //
};
use crate::{
    policy::request_rate::RateExceeded,
    proto::{
        conn_req_check::{
            check_peer,
            ConnReq,
            PeerVerdict,
            PeerView,
            Refusal, //
        },
        constants::QueueDepth, //
    }, //
};

/// Minimum number of connections that a peer may have: more than `conns_per_peer` of this node, because the peer's may
/// be larger.
const CONNS_MIN: u16 = 32;

impl<C: Connection> Peer<C> {
    /// Checks a request against the state of the peer. Counts an accepted request here, and with `ration`, which
    /// returns whether its rate limit has room for it. Returns `None` if the peer is leaving its table.
    pub(crate) fn validate(
        &self,
        asked: &ConnReq,
        ration: impl Fn() -> Result<(), RateExceeded>,
    ) -> Option<PeerVerdict> {
        let wanted = self.ni.lnet.conns_per_peer();
        self.with(|inner| {
            if inner.gone {
                return None;
            }
            let policy = &inner.policy;
            let view = PeerView {
                stamp: (policy.known.stamp != 0).then_some(policy.known.stamp),
                races: policy.races(),
                connecting_ms: self.connecting_ms(inner),
                conns: inner.objects(),
                // The connections that the peer opens, and those of this node.
                max_conns: wanted.max(CONNS_MIN / 2).saturating_mul(2),
            };
            let mut verdict = check_peer(asked, Some(&view));
            if matches!(verdict, PeerVerdict::Accept | PeerVerdict::Reborn) {
                if let Err(spent) = ration() {
                    verdict = PeerVerdict::Refuse(Refusal::new(spent.into()));
                }
            }
            match verdict {
                PeerVerdict::Accept | PeerVerdict::Reborn => inner.policy.accepting(),
                PeerVerdict::Race(_) => inner.policy.race_counted(),
                PeerVerdict::Refuse(_) => {}
            }
            Some(verdict)
        })
    }

    /// Resets the agreed depth to `depth`, so that it is negotiated again with a peer that wanted less. Calls `depth`
    /// with the lock held: of two concurrent calls, the later one sets the current value.
    pub(crate) fn ask_for(&self, depth: impl FnOnce() -> QueueDepth) {
        self.with(|inner| inner.policy.known.depth = depth());
    }
}
