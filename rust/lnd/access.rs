// SPDX-License-Identifier: GPL-2.0

//! What is done when the administrator changes a setting of a running NI: the parameters `access`, `ni_tune` and
//! `probe`. What is in force is asked of [`crate::lnet::NiRef`] each time; here only what was derived
//! from it before is put right.
//!
//! Process context, with the shim's NI mutex held: nothing here waits.

use super::{
    conn::Conn,
    peer::Peers, //
};
use crate::proto::cause::Cause;

/// Ends connections to peers that are not allowed any more, has the others ask for the depth of now when
/// they connect anew, and the timers of their connections look at once, for how long they wait may have changed.
pub(crate) fn settings_changed(peers: &Peers<Conn>) {
    let ni = &peers.ni;
    let depth = ni.depth();
    peers.table.for_each(|peer| {
        if !ni.lnet.allows(peer.nid.raw()) {
            peer.close(Cause::Denied);
            return;
        }
        peer.ask_for(depth);
        for conn in peer.conns() {
            conn.look_again();
        }
    });
}
