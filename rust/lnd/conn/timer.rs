// SPDX-License-Identifier: GPL-2.0

//! Timer of a connection: an attempt that takes too long, a peer that does not send first, transmits that take too
//! long, a silent peer, a DREQ without an answer.
//!
//! Context: a delayed work item. It is armed again only under the connection lock, except for the steps of an attempt,
//! and only while the state that needs it lasts: a release, which cancels it, comes later.

use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

use super::{
    Conn,
    CLOSING_MS,
    TIMER, //
};
use crate::{
    lnd::lingering::Lingering,
    policy::liveness::Check,
    proto::conn_state::{
        ConnEvent,
        State, //
    },
    rdma::work::NofsScope, //
};

impl WorkItem<TIMER> for Conn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        let mut guard = this.lock();
        let inner = &mut *guard;
        match inner.state.state() {
            State::Init
            | State::Resolving
            | State::Connecting
            | State::Accepting
            | State::Called => match inner.timers.step_left_ms() {
                0 => this.step(inner, ConnEvent::Timeout),
                ms => {
                    this.rearm_timer(ms);
                    let waits_for_peer = inner.state.state() == State::Accepting;
                    drop(guard);
                    if !this.holds_queue() {
                        this.peer.does_not_answer(&this);
                    }
                    if waits_for_peer {
                        this.peer.does_not_go_on();
                    }
                }
            },
            State::Established if this.look_whether_finished(inner) => {}
            State::Established => {
                let limit = i64::from(this.ni.lnet.timeout()).saturating_mul(1000);
                if let Some(cause) = inner.wire.overdue(limit) {
                    return this.step(inner, ConnEvent::Fail(cause));
                }
                let waits = inner.wire.has_pending();
                let sent_ms = inner.wire.sent_ms();
                // Read once: it may change in between.
                let probe = this.ni.probe();
                let keepalive = this.ni.lnet.keepalive();
                let look = inner.timers.look(waits, sent_ms, probe, keepalive);
                this.pump(inner, look != Check::Nothing);
                let next_ms = inner.timers.next_ms(inner.wire.sent_ms(), probe);
                // Checks deadlines, too, however seldom silent peers are probed.
                let idle_ms = this.timer_ms();
                this.arm_timer(next_ms.map_or(idle_ms, |ms| ms.min(idle_ms)));
                let held = inner.wire.qp().map_or(0, |qp| qp.regions());
                if inner.timers.look_at_regions(held) {
                    this.kick_queue_pair();
                }
                if look == Check::All {
                    drop(guard);
                    this.peer.probe_all();
                }
            }
            State::Closing | State::Draining => {
                drop(guard);
                if !this.holds_queue() {
                    this.peer.end_turn(&this);
                }
                let mut inner = this.lock();
                // In state Dead the timer belongs to the wait for the peer's answer.
                if inner.state.state() != State::Dead {
                    this.rearm_timer(CLOSING_MS);
                }
                if inner.timers.drains_for_too_long() && inner.state.state() == State::Draining {
                    drop(inner);
                    this.give_up_drain();
                }
            }
            State::Dead if inner.dreq_wait.is_mute() => {
                drop(guard);
                this.look_for_route();
            }
            State::Dead => match inner.dreq_wait.left_ms() {
                None => {}
                Some(0) => {
                    drop(guard);
                    this.farewell_over();
                }
                Some(ms) => this.rearm_timer(ms),
            },
        }
    }
}

impl Conn {
    /// Returns whether a slow attempt blocks others all the same: if connecting waits for the other side's TCP in the
    /// queue that all queue pairs of the device share, too many waiting attempts would keep all other attempts from
    /// their turn. That is siw; over adapters only the end of an attempt that the peer does not answer waits.
    fn holds_queue(&self) -> bool {
        self.over_tcp && self.near
    }

    /// Runs the timer immediately: the time until a probe, or the time limit of a transmit, was changed.
    pub(crate) fn check_now(self: &Arc<Self>) {
        let inner = self.lock();
        if inner.state.is_up() {
            self.rearm_timer(0);
        }
    }
}
