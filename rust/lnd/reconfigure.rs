// SPDX-License-Identifier: GPL-2.0

//! Changes of the settings of a running NI: the parameters `access`, `ni_tune` and `probe`. The driver reads the
//! current values from [`crate::lnet::NiRef`] each time. Only state that was derived from earlier values is updated
//! here.
//!
//! Context: process, without locks: there may be thousands of peers, and messages that wait for a denied peer go back
//! to LNet.

use super::{
    conn::Conn,
    peer::Peers, //
};
use crate::proto::cause::Cause;

/// Closes connections to peers that are not allowed any more. Runs the timers of the other connections at once, because
/// their timeouts may have changed.
pub(crate) fn settings_changed(peers: &Peers<Conn>) {
    let ni = &peers.ni;
    peers.table.for_each(|peer| {
        if !ni.lnet.allows(peer.nid.raw()) {
            peer.close(Cause::Denied);
            return;
        }
        peer.for_each_conn(|conn| conn.check_now());
    });
    renegotiate_depth(peers);
}

/// Resets the depth of all peers if the depth that the NI offers has changed, so that their next connection requests
/// the new one. Otherwise the depth that they accepted stays: to request more from each costs a rejected request.
pub(crate) fn renegotiate_depth(peers: &Peers<Conn>) {
    // The depth may change meanwhile.
    while peers.ni.has_new_depth() {
        peers
            .table
            .for_each(|peer| peer.ask_for(|| peers.ni.depth()));
    }
}
