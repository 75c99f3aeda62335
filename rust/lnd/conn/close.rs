// SPDX-License-Identifier: GPL-2.0

//! End of a connection: no new messages, the transfers under way if it is closed on purpose, a DREQ to the peer, drain
//! of the queue pair, release of all resources.
//!
//! Context: the workers ([`super::workers`]), one at a time; may sleep. Resources are taken out under the connection
//! lock and freed without it.
//!
//! # Invariants
//!
//! No key is valid, and no work request holds memory of LNet ([`Conn::release`]), before transmits that a key held go
//! back to LNet ([`Conn::part`]).

use kernel::sync::Arc;

use super::{
    wire::qp_handle::QpHandle,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log,
        peer::Connection,
        timestamp::Timestamp, //
    },
    lnet::uevent,
    policy::link_state::{
        may_end,
        ConnActivity,
        FINISH_LOOK_MS, //
    },
    proto::{
        cause::Cause,
        conn_state::{
            Actions,
            ConnEvent, //
        },
        reject::RetryWhy, //
    },
    rdma::device::DeviceName, //
};

/// Milliseconds that the device has to flush its queues. A device that takes longer is dead.
const DRAIN_MS: u32 = 5_000;

impl Conn {
    /// Closes the connection for `cause` when the transfers under way have ended, and soon in any case.
    pub(super) fn close_graceful(self: &Arc<Self>, cause: Cause) {
        self.with(|inner| {
            if inner.state.is_up() {
                // An interface that goes down does not wait as long as an administrator.
                let replaces = |(first, _)| cause == Cause::LinkDown && first != cause;
                if inner.finishing.is_none_or(replaces) {
                    inner.finishing = Some((cause, Timestamp::now()));
                }
                let _ = self.look_whether_finished(inner);
            } else {
                self.step(inner, ConnEvent::Fail(cause));
            }
        });
        // LNet's next messages wait for the next connection. This must follow the begin of the close, which a caller
        // that lists the connection checks afterwards ([`Conn::publish`]).
        self.peer.unpublish(self);
    }

    /// Closes the connection if it waits only for transfers under way, and these have ended. Returns false if it does
    /// not wait for them.
    pub(super) fn look_whether_finished(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some((cause, since)) = inner.finishing else {
            return false;
        };
        let waited_ms = u64::try_from(since.elapsed_ms()).unwrap_or(0);
        let still_ms = inner.idle_ms().min(inner.wire.sent_ms());
        let under_way = ConnActivity {
            transmits: inner.wire.has_pending(),
            requests: inner.rx_queue.owed() > 0,
            still_ms: u64::try_from(still_ms).unwrap_or(0),
        };
        if may_end(cause, under_way, waited_ms) {
            self.step(inner, ConnEvent::Fail(cause));
        } else {
            self.rearm_timer(FINISH_LOOK_MS);
        }
        true
    }

    /// Ends traffic: disconnects, puts the queue pair into error, and posts the drain markers.
    pub(super) fn close(self: &Arc<Self>) {
        let (cause, failed) = self.with(|inner| (inner.state.cause(), inner.up.is_none()));
        self.peer.closing(self, failed);
        self.ni.leave(&self.made_with);
        if cause.is_some_and(|cause| cause.has(Cause::IS_SILENT)) {
            // Dead connections are then found now, and not when a message is to be sent on each of them.
            self.peer.for_each_conn(|conn| conn.doubt());
        }
        match self.id() {
            Some(id) => self.tell_end(&id, self.reachability(id.reachability())),
            // The connection was closed before the handler of the request took the id.
            None => self.with(|inner| inner.owes_reject = true),
        }
        let drain = self.with(|inner| {
            // The time of the drain counts from when the device has begun.
            inner.begin_step(u32::MAX);
            inner.wire.close()
        });
        // Before the markers are posted: they may complete before this returns.
        self.event(ConnEvent::DrainStarted);
        let draining = match drain {
            Some((qp, sq, rq)) => qp.drain(sq, rq).is_ok(),
            None => false,
        };
        if draining {
            self.with(|inner| inner.begin_step(DRAIN_MS));
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

    /// Frees the queue pair and its memory. Afterwards no key is valid; [`Conn::part`] follows.
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
        self.with(|inner| inner.state.add_steps(Actions::PART));
    }

    /// Counts the connection as closed because the device refused a work request.
    fn refused_post(&self) {
        let lived_ms = self.with(|inner| inner.lived_ms);
        let ni = &self.ni;
        let now_ms = ni.now_ms();
        if !ni.way(|way| way.refused_post(lived_ms, now_ms)) {
            return;
        }
        let name = self.hca().ok().map(|hca| hca.device.name());
        let name = name.as_ref().map(DeviceName::as_str);
        log::refuses_posts(ni.nid, name.unwrap_or("the RDMA device"));
        uevent::device(uevent::Device::Fatal, &ni.nid, name);
        ni.check_device();
    }

    /// Frees all other resources, except the id if the peer may still need a DREQ, and tells LNet and the peer object.
    /// After [`Conn::release`].
    pub(super) fn part(self: &Arc<Self>) {
        // The queue pair may have detected that first.
        let left_behind = self.is_elsewhere();
        let (failed, retry, cause, rejected) = self.with(|inner| {
            let cause = inner.state.cause().unwrap_or(Cause::PeerClosed);
            (inner.up.is_none(), inner.retry, cause, inner.rejected)
        });
        if !self.wait_for_drep() {
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
        // The MTU may have become smaller just now.
        let port_mtu = || hca.as_ref().and_then(|hca| hca.query_mtu());
        let cause = cause.with_mtus(self.path_mtu(), port_mtu);
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
