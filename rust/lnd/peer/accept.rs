// SPDX-License-Identifier: GPL-2.0

//! A peer is asked for a connection by the other side.
//!
//! Context: process, in the handler of a listener: all other requests wait. The peer lock is taken briefly; what
//! rations requests may take a lock inside.

use super::{
    Connection,
    Peer, //
};
use crate::{
    policy::rate_limit::RateExceeded,
    proto::{
        conn_req_check::{
            check_peer,
            ConnReq,
            PeerVerdict,
            PeerView,
            Refusal, //
        },
        params::QueueDepth, //
    }, //
};

/// Connections that a peer may have at least: more than our own `conns_per_peer`, because its may
/// be larger.
const CONNS_MIN: u16 = 32;

impl<C: Connection> Peer<C> {
    /// Judges a request against what is known of the peer. A request that is taken is counted here, and by
    /// `ration`, which says whether its budget has room for it. `None`: the peer is leaving its table just now.
    pub(crate) fn judge(
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
                // Those it opens and ours.
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

    /// What was agreed on with a peer that wants less is found out again, from `depth` down. It is asked with the lock
    /// held: of two who have this done at a time the later one has what is in force.
    pub(crate) fn ask_for(&self, depth: impl FnOnce() -> QueueDepth) {
        self.with(|inner| inner.policy.known.depth = depth());
    }
}
