// SPDX-License-Identifier: GPL-2.0

//! What is done when the administrator changes a setting of a running NI: the parameters `access`, `ni_tune` and
//! `probe`. What is in force is asked of [`crate::lnet::NiRef`] each time; here only what was derived
//! from it before is put right.
//!
//! Process context, without locks: there may be thousands of peers, and what waits for a peer that
//! is denied goes back to LNet.

use super::{
    conn::Conn,
    peer::Peers, //
};
use crate::proto::cause::Cause;

/// Ends connections to peers that are not allowed any more; the timers of the others' connections look at once, for
/// how long they wait may have changed.
pub(crate) fn settings_changed(peers: &Peers<Conn>) {
    let ni = &peers.ni;
    peers.table.for_each(|peer| {
        if !ni.lnet.allows(peer.nid.raw()) {
            peer.close(Cause::Denied);
            return;
        }
        peer.for_each_conn(|conn| conn.look_again());
    });
    ask_anew(peers);
}

/// If the depth that the NI offers is another one than before, peers are asked for that when they connect anew. Else
/// what they were found to take stays: to ask each of them for more costs a request that is refused.
pub(crate) fn ask_anew(peers: &Peers<Conn>) {
    // It may change meanwhile.
    while peers.ni.has_new_depth() {
        peers
            .table
            .for_each(|peer| peer.ask_for(|| peers.ni.depth()));
    }
}
