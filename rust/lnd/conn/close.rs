// SPDX-License-Identifier: GPL-2.0

//! End of a connection: no new messages, a DREQ to the peer, drain of the queue pair, release of all resources.
//!
//! Context: the workers ([`super::control_work`]), one at a time; may sleep. Resources are taken out under the
//! connection lock and freed without it.
//!
//! # Invariants
//!
//! No key is valid, and no work request holds memory of LNet ([`Conn::release`]), before transmits that a key held go
//! back to LNet ([`Conn::part`]).

use kernel::sync::Arc;

use super::{
    state::CloseSummary,
    wire::qp_handle::QpHandle,
    Conn, //
};
use crate::{
    lnd::{
        log,
        ni::DeviceHint,
        timestamp::Timestamp, //
    },
    lnet::uevent,
    proto::{
        cause::Cause,
        conn_state::ConnEvent,
        reject::RetryWhy, //
    },
    rdma::{
        cm::Reachability,
        device::DeviceName, //
    }, //
};

impl Conn {
    /// Ends traffic: disconnects, puts the queue pair into error, and posts the drain markers.
    pub(super) fn close(self: &Arc<Self>) {
        let (cause, made, asked, failed) = self.with(|inner| {
            let asked = inner.dreq_wait.was_asked();
            let failed = inner.state.attempt_failed();
            (inner.state.cause(), inner.peer_has_it(), asked, failed)
        });
        self.peer.closing(self, failed);
        self.ni.leave(&self.made_with);
        if cause.is_some_and(Cause::is_silent) {
            self.peer.doubt_all();
        }
        // The connection was closed before the handler of the request took the id.
        let id = self.cm.id();
        if id.is_none() && !self.active {
            self.with(|inner| inner.dreq_wait.owe_answer());
        }
        if let Some(id) = id {
            let way = self.reachability(&id);
            if made && way != Reachability::NoAddress {
                // No id waits before the connection is released.
                let _ = self.with(|inner| inner.dreq_wait.begin(way == Reachability::Reachable));
            }
            match (way, asked) {
                (Reachability::Reachable, false) => {
                    self.reject(&id, cause.unwrap_or(Cause::PeerClosed))
                }
                // Refused if it was never connected; the drain puts the queue pair into error anyway.
                (Reachability::Reachable, true) => {
                    let _ = id.disconnect();
                }
                (Reachability::NoRoute, false) => self.with(|inner| inner.dreq_wait.owe_answer()),
                // The peer cannot be told: not now without a route, never without an address.
                (Reachability::NoRoute, true) | (Reachability::NoAddress, _) => {}
            }
        }
        let drain = self.with(|inner| inner.wire.close());
        // Before the markers are posted: they may complete before this returns.
        self.event(ConnEvent::DrainStarted);
        let draining = match drain {
            Some((qp, sq, rq)) => qp.drain(sq, rq).is_ok(),
            None => false,
        };
        if draining {
            self.with(|inner| inner.timers.drains());
        } else {
            // There is no queue pair, or its regions are freed without a drain.
            self.event(ConnEvent::Drained);
        }
    }

    /// Gives up the drain: a device that does not flush its queues is dead, and its reset may wait for this driver. So
    /// the queue pair is destroyed as it is.
    pub(super) fn give_up_drain(self: &Arc<Self>) {
        if let Some(qp) = self.with(|inner| inner.wire.qp()) {
            log::not_flushed(self.nid());
            qp.give_up_drain();
        }
        self.event(ConnEvent::Drained);
    }

    /// Frees the queue pair and its memory. Afterwards no key is valid.
    pub(super) fn release(self: &Arc<Self>) {
        self.cancel_timer();
        // A sender that has mapped a sink still finds the queue pair, to free the sink.
        if let Some(qp) = self.with(|inner| inner.wire.qp()) {
            // The rights to post are gone, so this does not return `EBUSY`.
            let _ = qp.destroy_mrs();
        }
        let link = self.with(|inner| inner.wire.take_link(&self.ni.closed_counters));
        if link.as_ref().is_some_and(QpHandle::is_refused) {
            self.refused_post();
        }
        drop(link);
    }

    /// Counts the connection as closed because the device refused a work request.
    fn refused_post(&self) {
        let lived_ms = self.with(|inner| inner.state.lived_ms());
        let ni = &self.ni;
        if !ni.device_health.refused_post(lived_ms, ni.now_ms()) {
            return;
        }
        let name = self.hca().ok().map(|hca| hca.device.name());
        let name = name.as_ref().map(DeviceName::as_str);
        log::refuses_posts(ni.nid, name.unwrap_or("the RDMA device"));
        uevent::device(uevent::Device::Fatal, &ni.nid, name);
        ni.tell(DeviceHint::Refuses);
    }

    /// Frees all other resources, except the id if the peer may still need a DREQ, and tells LNet and the peer object.
    /// After [`Conn::release`].
    pub(super) fn part(self: &Arc<Self>) {
        // The queue pair may have detected that first.
        let left_behind = self.is_elsewhere();
        let epitaph = self.with(|inner| inner.state.epitaph());
        if !self.wait_for_farewell() {
            self.free_id();
        }
        let (hca, room) = self.with(|inner| {
            // An ESTABLISHED event that was on its way has come by now.
            let room = inner.rx_queue.close();
            inner.rx_queue.detach();
            self.ni
                .retained_rx
                .left(self.peer.nid, inner.rx_queue.count_retained());
            let hca = inner.wire.release(&self.ni.closed_counters);
            self.queue_upcall(inner, Timestamp::now());
            (hca, room)
        });
        drop(room);
        let CloseSummary {
            failed,
            retry,
            cause,
            rejected,
        } = epitaph;
        // The MTU may have become smaller just now.
        let port_mtu = || hca.as_ref().and_then(|hca| hca.query_mtu());
        let cause = cause.with_mtus(self.cm.path_mtu(), port_mtu);
        // Maybe the last reference: then the protection domain is freed, which sleeps.
        drop(hca);
        let seen = &self.ni.close_stats;
        if retry.is_some_and(|invited| invited.why == RetryWhy::Unsaid) {
            // Rejects that invite a retry with a reason are no news, and are not counted.
            seen.unsaid();
        }
        if retry.is_none() {
            let noted = seen.ended(self.nid(), self.active, !failed, cause, rejected);
            self.with(|inner| inner.wire.meter().over(!failed, cause, rejected));
            log::conn_over(self.nid(), cause, !failed, noted);
        }
        let moved = left_behind || cause == Cause::Moved;
        self.peer.released(self, failed, retry, cause, moved);
    }
}
