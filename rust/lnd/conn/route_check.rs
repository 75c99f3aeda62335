// SPDX-License-Identifier: GPL-2.0

//! Checks whether a connection can still reach its peer, and over the device that it was made for.
//!
//! Context: process; may sleep, except for [`Conn::reachability_now`].

use kernel::sync::Arc;

use super::Conn;
use crate::rdma::cm::{
    CmId,
    Reachability, //
};

impl Conn {
    /// Returns whether a message can reach the peer. While the next device of the NI's address is unknown, a software
    /// device must not send: the GID may go before the message does.
    pub(super) fn reachability(&self, id: &CmId<Self>) -> Reachability {
        self.reachability_now(id.reachability())
    }

    /// Returns whether a message can reach the peer, by what the CM has just returned.
    pub(super) fn reachability_now(&self, now: Reachability) -> Reachability {
        let software = || self.ni.hca().is_ok_and(|hca| hca.device.is_software());
        if now == Reachability::Reachable && self.ni.is_unsettled() && software() {
            return Reachability::NoRoute;
        }
        now
    }

    /// Returns whether the NI has another device by now, or the address has left the device of the connection.
    pub(super) fn is_elsewhere(&self) -> bool {
        if let (Ok(old), Ok(new)) = (self.hca(), self.ni.hca()) {
            if !Arc::ptr_eq(&old, &new) {
                return true;
            }
        }
        // Last, because it waits for the handlers of the id. On iWARP a connect may hold the id for minutes, and there
        // is no GID to check.
        if self.over_tcp {
            return false;
        }
        let id = self.cm.id();
        id.is_some_and(|id| id.reachability() == Reachability::NoAddress)
    }
}
