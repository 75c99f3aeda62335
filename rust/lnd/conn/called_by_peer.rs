// SPDX-License-Identifier: GPL-2.0

//! Functions of a connection that its peer ([`Connection`]) and its NI call.
//!
//! Context: process. The peer lock is not held, except in functions that take no lock.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    send,
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        peer::{
            Connection,
            NotSent,
            Peer, //
        },
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        SendRequest, //
    },
    policy::{
        connect_queue::ConnectPriority,
        link_state::{
            may_end,
            transport_ms,
            FINISH_LOOK_MS, //
        },
        liveness::LOOK_MIN_MS,
        reconnect::PeerParams, //
    },
    proto::{
        cause::Cause,
        conn_state::ConnEvent, //
    },
    rdma::atomic::Relaxed, //
};

impl Conn {
    /// Closes the connection if it is on another device than the NI, or if the NI's address has left its device.
    pub(crate) fn moved(self: &Arc<Self>) {
        if self.is_elsewhere() {
            self.end(Cause::Moved);
        }
    }

    /// Closes the connection if its path MTU is larger than `mtu` bytes.
    pub(crate) fn fit_mtu(self: &Arc<Self>, mtu: u32) {
        if self.path_mtu() > mtu {
            self.end(Cause::PathMtu);
        }
    }

    /// Returns for how long its queue pair retransmits a packet that is not acknowledged, in milliseconds. `None`: not
    /// known yet.
    pub(crate) fn transport_ms(&self) -> Option<u64> {
        let path = self.with(|inner| inner.path);
        Some(transport_ms(path.ack_timeout?, path.retry_count?))
    }

    /// Probes the peer on this connection, because the peer is silent on another one that waits for it. Does nothing if
    /// the peer has just sent something here.
    pub(super) fn ask(self: &Arc<Self>) {
        self.with(|inner| {
            let ago = inner.elapsed();
            if inner.state.is_up() && inner.liveness.ask(ago) {
                if let Some(ms) = inner.liveness.next_ms(ago, self.ni.probe()) {
                    self.schedule_check(inner, ms);
                }
            }
        });
    }

    /// Closes the connection if it waits only for transfers under way, and these have ended. Returns false if it does
    /// not wait for them.
    pub(super) fn look_whether_finished(self: &Arc<Self>, inner: &mut Inner) -> bool {
        let Some((cause, since)) = inner.finishing else {
            return false;
        };
        let waited_ms = u64::try_from(since.elapsed_ms()).unwrap_or(0);
        let ago = inner.elapsed();
        let still_ms = u64::try_from(ago.sent.min(ago.heard)).unwrap_or(0);
        let busy = inner.txs.has_pending() || inner.rx_queue.owed() > 0;
        if may_end(cause, busy, still_ms, waited_ms) {
            self.step(inner, ConnEvent::Fail(cause));
        } else {
            self.rearm_timer(FINISH_LOOK_MS);
        }
        true
    }
}

impl Connection for Conn {
    fn open(
        peer: &Arc<Peer<Self>>,
        turn: Option<ConnectPriority>,
        known: PeerParams,
        salt: u32,
    ) -> Result<Arc<Self>> {
        Self::new(peer, turn, known, salt)
    }

    fn start(self: &Arc<Self>) {
        self.event(ConnEvent::Start);
    }

    #[inline]
    fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        send::send(self, msg, req)
    }

    fn fail(self: &Arc<Self>, cause: Cause) {
        self.end(cause);
    }

    fn finish(self: &Arc<Self>, cause: Cause) {
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

    fn end_turn(&self) -> Option<ConnectPriority> {
        self.with(|inner| inner.turn.take())
    }

    fn overtaken(self: &Arc<Self>) {
        let mut guard = self.inner.lock();
        if guard.state.is_attempt() {
            self.step(&mut guard, ConnEvent::Fail(Cause::Overtaken));
        }
    }

    fn doubt(self: &Arc<Self>, again: bool) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let recent = |then: Timestamp| then.elapsed_ms() < i64::from(LOOK_MIN_MS);
        if inner.state.is_up() && (again || !inner.probed.is_some_and(recent)) {
            inner.probed = Some(Timestamp::now());
            self.is_doubted.store(true, Relaxed);
            self.pump(inner, true, None);
        }
    }

    fn is_up(&self) -> bool {
        self.with(|inner| inner.state.is_up())
    }

    fn is_stale(&self, stamp: u64) -> bool {
        self.with(|inner| inner.state.is_up() && inner.identity.peer_stamp != stamp)
    }

    fn is_confirmed(&self) -> bool {
        self.over_tcp || self.with(|inner| inner.connected)
    }

    fn is_active(&self) -> bool {
        self.active
    }

    fn heard_ms(&self) -> u64 {
        let ago = self.with(|inner| inner.idle_ms());
        let now_ms = self.ni.now_ms();
        now_ms.saturating_sub(u64::try_from(ago).unwrap_or(0))
    }

    fn lived_ms(&self) -> u64 {
        self.with(|inner| inner.lived_ms)
    }

    fn is_doubted(&self) -> bool {
        self.is_doubted.load(Relaxed)
    }

    fn set_index(&self, index: u32) {
        self.index.store(index, Relaxed);
    }
}
