// SPDX-License-Identifier: GPL-2.0

//! Repost of the receive buffers of finished requests.
//!
//! Context: process; may sleep, except for [`Conn::post_again`].

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    rx::{
        cold_drop,
        Rx, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log::{
            self,
            CloseReason, //
        },
        timestamp::Timestamp, //
    },
    proto::{
        cause::Cause,
        credits::Repost, //
    },
    rdma::work::NofsScope, //
};

impl Inner {
    /// Posts a receive buffer again, unless another one was posted for it, and books it. Only until the connection
    /// closes.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with.
    #[inline(always)]
    pub(super) fn give_back(&mut self, rx: KBox<Rx<Conn>>, how: Repost) -> Result<(), CloseReason> {
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        if !rx.is_mapped() {
            // Its buffer could not be mapped again.
            cold_drop(rx);
        } else if rx.replaced {
            self.buf_pool.put_spare(rx);
        } else {
            link.push_recv_again(rx)?;
        }
        self.credits.reposted(how).map_err(CloseReason::Credits)
    }
}

impl Conn {
    /// Posts the buffer of a request again, and books its credit. The caller holds the connection lock.
    ///
    /// # Errors
    ///
    /// Returns the cause if that closed the connection.
    #[inline(always)]
    pub(super) fn post_again(
        self: &Arc<Self>,
        inner: &mut Inner,
        rx: KBox<Rx<Self>>,
        how: Repost,
        now: Timestamp,
    ) -> Result<(), Cause> {
        if let Some(facts) = rx.facts() {
            inner.stats.given_back(facts.kind(), rx.at, now);
        }
        inner.rx_queue.returned();
        match inner.give_back(rx, how).err() {
            None => Ok(()),
            Some(fault) => {
                self.blame(inner, fault);
                Err(inner.state.end_cause())
            }
        }
    }

    /// Maps a buffer again that was detached when LNet kept the message, if the connection needs it. If that fails, the
    /// connection has one spare fewer, or is closed because a place in the receive queue stays empty.
    #[inline(always)]
    pub(super) fn bring_back(self: &Arc<Self>, rx: &mut Rx<Self>) {
        if rx.is_detached() {
            self.attach(rx);
        }
    }

    #[cold]
    #[inline(never)]
    fn attach(self: &Arc<Self>, rx: &mut Rx<Self>) {
        let _nofs = NofsScope::enter();
        let back = match self.with(|inner| inner.state.may_receive().then(|| inner.hca.clone())) {
            Some(Some(hca)) => rx.attach(&hca.device),
            Some(None) => Err(ENODEV),
            None => Ok(()),
        };
        if let Err(e) = back {
            log::cannot(self.nid(), "make a receive buffer", e);
            if !rx.replaced {
                self.end(Cause::NoResources);
            }
        }
    }

    /// Books a finished request of a connection that ends, and frees it without the lock.
    #[cold]
    #[inline(never)]
    pub(super) fn rx_returned(&self, rx: KBox<Rx<Self>>) {
        drop(rx);
        if self.with(|inner| inner.rx_queue.returned_late()) {
            self.ni.retained_rx.returned(self.nid());
        }
    }

    /// Posts the buffer of a request again; the message that follows carries the credit. `ring`: no message will follow
    /// by itself.
    pub(super) fn give_back(self: &Arc<Self>, rx: KBox<Rx<Self>>, how: Repost, ring: bool) {
        let mut rx = rx;
        self.bring_back(&mut rx);
        let now = Timestamp::now();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.state.may_receive() {
            let _ = self.post_again(inner, rx, how, now);
            if ring {
                self.ring(inner, now);
            }
            return;
        }
        if let Some(facts) = rx.facts() {
            inner.stats.given_back(facts.kind(), rx.at, now);
        }
        drop(guard);
        self.rx_returned(rx);
    }
}
