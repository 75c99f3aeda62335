// SPDX-License-Identifier: GPL-2.0

//! Wire half of a connection: credits, transmits, buffers, and the queue pair.
//!
//! It decides what a received message means ([`receive`]), what may be sent next ([`pump`]), and how that becomes work
//! requests ([`post`]). It puts requests into the receive queue. It never sleeps and never calls LNet. It does not know
//! the state of the connection; its callers do.
//!
//! Context: softirq and process context; part of the state that the connection lock protects.
//!
//! # Invariants
//!
//! - Credits change only here, and in the order in which messages are on the wire.
//! - `link` is `Some` from set-up to release.
//! - A receive buffer is posted before any message that returns its credit to the peer.
//! - Pushed work requests are posted, or retired with an error, before the lock is released, unless a doorbell is
//!   certain to follow.

use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use self::{
    buf_pool::{
        BufPool,
        ReserveUse, //
    },
    finished_tx::{
        FinishedTx,
        TakenTx, //
    },
    qp_handle::QpHandle, //
};
use super::{
    rx::{
        Rx,
        RxConn, //
    },
    tx_payload::{
        Limits,
        TxPayload, //
    }, //
};
use crate::{
    lnd::{
        hca::Hca,
        log::CloseReason,
        stats::{
            conn_counters::{
                ClosedCounters,
                Count,
                Counts,
                SnapshotId, //
            },
            conn_latency::ConnStats, //
        },
        timestamp::Timestamp, //
    },
    policy::upcall_sched::SendsInFlight,
    proto::{
        cause::Cause,
        constants::QueueDepth,
        credits::{
            Credits,
            Repost, //
        },
        tx_table::{
            TxSlot,
            TxTable, //
        },
        wire::{
            Envelope,
            Identity,
            Version, //
        }, //
    },
    rdma::{
        buf::TxBuf,
        device::{
            Device,
            RegionPage, //
        },
        qp::Qp,
        random,
        rq::RecvQueue,
        sq::SendQueue, //
    }, //
};

pub(super) mod buf_pool;
pub(super) mod finished_tx;
mod post;
pub(super) mod pump;
pub(super) mod qp_handle;
pub(super) mod receive;
pub(crate) mod snapshot;

/// Arguments of [`Qp::drain`].
pub(super) type DrainParts<C> = (Arc<Qp<C>>, SendQueue, RecvQueue);

/// Resources for a sink, see [`Wire::for_sink`].
pub(super) type SinkParts<C> = (ARef<Device>, (u32, RegionPage), Arc<Qp<C>>);

/// Minimum of transmits that are created when the table is full; half of the current number if that is more, because
/// the table moves each time.
const GROW_BY: usize = 16;

/// Slots of the transmits of a connection.
pub(super) type TxSlots = KVVec<TxSlot<TxPayload>>;

/// Allocates the first slots of a connection, enough to send without memory: for this number of LNet's messages, and
/// for the answers of a connection of that depth. An answer holds its slot until its completion, and the peer has the
/// credit for the next request before that. May sleep.
///
/// # Errors
///
/// `ENOMEM`.
pub(super) fn first_slots(messages: QueueDepth, depth: QueueDepth) -> Result<TxSlots> {
    let answers = usize::from(depth.get()).saturating_mul(2);
    let all = usize::from(messages.get()).saturating_add(answers);
    new_slots(all.max(GROW_BY), GFP_KERNEL)
}

/// Allocates slots for more transmits than the `have` that there are. Does not wait for memory: reclaim may wait for
/// the message that needs a slot. Process context.
///
/// # Errors
///
/// `ENOMEM`, `ENOSPC` if there can be no more.
pub(super) fn more_slots(have: usize) -> Result<TxSlots> {
    let want = have.saturating_add(GROW_BY.max(have / 2));
    match want.min(usize::from(u16::MAX)) {
        want if want > have => new_slots(want, GFP_NOWAIT | __GFP_NOWARN),
        _ => Err(ENOSPC),
    }
}

fn new_slots(n: usize, flags: Flags) -> Result<TxSlots> {
    let mut slots = TxSlots::with_capacity(n, flags)?;
    for _ in 0..n {
        slots.push(TxSlot::FREE, flags)?;
    }
    Ok(slots)
}

/// Wire half of a connection, a `C`.
pub(super) struct Wire<C: RxConn> {
    identity: Identity,
    credits: Credits,
    txs: TxTable<TxSlots>,
    flight: SendsInFlight,
    buf_pool: BufPool<C>,
    link: Option<QpHandle<C>>,
    limits: Limits,
    /// Device, until release: it may be removed afterwards.
    hca: Option<Arc<Hca>>,
    counts: Counts,
    /// Snapshot that last included the counters.
    list: SnapshotId,
    /// Time since which NOOPs are on their way; it restarts when one of two has arrived.
    noop: Option<Timestamp>,
    stats: ConnStats,
}

impl<C: RxConn> Wire<C> {
    /// Creates the wire half of a new connection that requests `depth`.
    pub(super) fn new(
        identity: Identity,
        depth: QueueDepth,
        hca: Arc<Hca>,
        stats: ConnStats,
    ) -> impl Init<Self> {
        init!(Self {
            identity,
            credits: Credits::new(depth, 1),
            txs: TxTable::new(TxSlots::new(), random::u64()),
            flight: SendsInFlight::default(),
            buf_pool: BufPool::EMPTY,
            link: None,
            limits: Limits::NONE,
            hca: Some(hca),
            counts: Counts::default(),
            list: SnapshotId::default(),
            noop: None,
            stats,
        })
    }

    /// Stores, at set-up and before the first receive is posted, the buffers, the limits of a transfer, and the number
    /// of slots for all messages except NOOPs.
    pub(super) fn open(&mut self, stock: BufPool<C>, limits: Limits, slots: u16) {
        self.buf_pool = stock;
        self.limits = limits;
        self.txs.open(slots);
    }

    /// Stores, at set-up, the queue pair with its posted receives; if the connection ends at once, maybe not all are
    /// posted.
    pub(super) fn set_link(&mut self, link: QpHandle<C>) {
        self.stats.set_qpn(link.qp().number());
        self.link = Some(link);
    }

    /// Returns the statistics of the connection.
    #[inline]
    pub(super) fn meter(&self) -> &ConnStats {
        &self.stats
    }

    /// Notes that the handshake is complete: `depth` is agreed on, and the peer's life is `stamp`. `high_water` is the
    /// number of credits that a NOOP returns.
    pub(super) fn established(&mut self, depth: QueueDepth, high_water: u8, stamp: u64) {
        self.credits = Credits::new(depth, high_water);
        self.identity.peer_stamp = stamp;
    }

    /// Returns whether the connection is with that life of the peer.
    pub(super) fn is_with(&self, stamp: u64) -> bool {
        self.identity.peer_stamp == stamp
    }

    /// Returns the envelope of every message of this connection; credits are set when a message is posted.
    #[inline]
    pub(super) fn envelope(&self) -> Envelope {
        Envelope {
            version: Version::V2,
            credits: 0,
            src: self.identity.me,
            src_stamp: self.identity.my_stamp,
            dst: self.identity.peer,
            dst_stamp: self.identity.peer_stamp,
        }
    }

    /// Returns the limits of one transfer.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the RDMA device, until release.
    pub(super) fn hca(&self) -> Option<Arc<Hca>> {
        self.hca.clone()
    }

    /// Returns the device that LNet's pages are mapped for.
    pub(super) fn device(&self) -> Option<ARef<Device>> {
        self.hca.as_ref().map(|hca| hca.device.clone())
    }

    /// Returns the resources for a sink: the device, the number and size of pages that one region covers, and the queue
    /// pair.
    ///
    /// # Errors
    ///
    /// `ENODEV` or `ENOTCONN`: they were released.
    pub(super) fn for_sink(&self) -> Result<SinkParts<C>> {
        let hca = self.hca.as_ref().ok_or(ENODEV)?;
        let link = self.link.as_ref().ok_or(ENOTCONN)?;
        let pages = (hca.mr_pages, hca.mr_page);
        Ok((hca.device.clone(), pages, link.qp().clone()))
    }

    /// Returns the queue pair, from set-up to release.
    pub(super) fn qp(&self) -> Option<Arc<Qp<C>>> {
        self.link.as_ref().map(|link| link.qp().clone())
    }

    /// Returns the milliseconds since the last send; 0 without a link.
    pub(super) fn sent_ms(&self) -> i64 {
        self.link.as_ref().map_or(0, QpHandle::sent_ms)
    }

    /// Returns whether the doorbell rings for the work requests that are queued now, see [`SendsInFlight::rings`].
    #[inline]
    pub(super) fn rings(&self, corked: impl FnOnce() -> bool) -> bool {
        self.flight.rings(corked)
    }

    /// Increments a counter.
    #[inline]
    pub(super) fn count(&mut self, what: Count) {
        self.counts.one(what);
    }

    /// Takes a free message buffer.
    #[inline]
    pub(super) fn take_buf(&mut self) -> Option<TxBuf> {
        self.buf_pool.take()
    }

    /// Takes a message buffer out of the reserve.
    pub(super) fn take_reserved_buf(&mut self, whose: ReserveUse) -> Option<TxBuf> {
        self.buf_pool.take_reserved(whose)
    }

    /// Gives an unused message buffer back.
    pub(super) fn put_buf(&mut self, buf: TxBuf) {
        self.buf_pool.put(buf);
    }

    /// Returns whether there is a place for a transmit. If not: [`Wire::grow`].
    #[inline]
    pub(super) fn has_place(&self) -> bool {
        self.txs.has_free()
    }

    /// Returns the number of places.
    pub(super) fn nr_txs(&self) -> usize {
        self.txs.nr_slots()
    }

    /// Moves the transmits into `bigger`, see [`TxTable::grow`]. The slots that it has afterwards must be freed without
    /// the lock.
    pub(super) fn grow(&mut self, bigger: &mut TxSlots) {
        self.txs.grow(bigger);
    }

    /// Returns whether a transmit is finished, and LNet does not know yet.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        self.txs.done().is_some()
    }

    /// Takes the oldest finished transmit, if there is one, perhaps into `finished`.
    #[inline]
    pub(super) fn take_done(&mut self, finished: &mut FinishedTx) -> Option<TakenTx> {
        self.txs
            .take_done(|tx, transfer| finished.take_tx(tx, transfer))
    }

    /// Takes the memory of the first finished transmit from index `from` on away from the device. Returns the next
    /// index, or `None` if there was no such transmit. After [`Wire::release`].
    pub(super) fn leave_device(&mut self, from: u16) -> Option<u16> {
        let mut rest = from..u16::try_from(self.nr_txs()).unwrap_or(u16::MAX);
        let found = rest.find(|index| self.txs.transfer(*index).is_some())?;
        self.txs.transfer(found)?.leave_device();
        Some(rest.start)
    }

    /// Returns whether any transmit is not finished.
    pub(super) fn has_pending(&self) -> bool {
        self.txs.has_pending()
    }

    /// Ends every transmit because the connection was closed for `cause`.
    pub(super) fn cancel(&mut self, cause: Cause) {
        self.txs.cancel_all(cause);
    }

    /// Returns why a transmit, or a NOOP, has waited for more than `limit` milliseconds, if one has: the peer may have
    /// set how often this side's sends are retried.
    pub(super) fn overdue(&self, limit: i64) -> Option<Cause> {
        let noop = self.noop.is_some_and(|since| since.elapsed_ms() > limit);
        let is_late =
            |slot: &TxSlot<TxPayload>| slot.transfer().is_some_and(|t| t.age_ms() > limit);
        let mut pending = self.txs.pending();
        let late = pending.find_map(|(_, slot)| is_late(slot).then(|| slot.tx().timeout_cause()));
        late.or(noop.then_some(Cause::DeadlineSending))
    }

    /// Posts a receive buffer again, unless another one was posted for it, and books it. Only until the connection
    /// closes.
    ///
    /// # Errors
    ///
    /// Returns the cause to close the connection with.
    #[inline(always)]
    pub(super) fn give_back(&mut self, rx: KBox<Rx<C>>, how: Repost) -> Result<(), CloseReason> {
        let link = self.link.as_mut().ok_or(Cause::Flushed)?;
        if !rx.is_mapped() {
            no_buffer(rx);
        } else if rx.is_replaced() {
            self.buf_pool.put_spare(rx);
        } else {
            link.push_recv_again(rx)?;
        }
        self.credits.reposted(how).map_err(CloseReason::Credits)
    }

    /// Ends all posting: returns the arguments of [`Qp::drain`], once.
    pub(super) fn close(&mut self) -> Option<DrainParts<C>> {
        let link = self.link.as_mut()?;
        let (sq, rq) = link.take_queues()?;
        Some((link.qp().clone(), sq, rq))
    }

    /// Takes the queue pair, at release, to be dropped without the lock. The counters are added to `past`, and are not
    /// counted here any more.
    pub(super) fn take_link(&mut self, past: &ClosedCounters) -> Option<QpHandle<C>> {
        let link = self.link.take()?;
        let counts = core::mem::take(&mut self.counts);
        past.add(&counts.with_recv_wrs(link.recv_wrs()), self.list);
        Some(link)
    }

    /// Notes that the snapshot `list` includes the counters; returns false if it did already.
    pub(super) fn enter(&mut self, list: SnapshotId) -> bool {
        core::mem::replace(&mut self.list, list) != list
    }

    /// Frees, at release, when no key is valid any more, the objects that only a key held, and all buffers. The
    /// counters since the link was taken are added to `past`, too. Returns the device, to be dropped without the lock.
    pub(super) fn release(&mut self, past: &ClosedCounters) -> Option<Arc<Hca>> {
        past.add(&core::mem::take(&mut self.counts), self.list);
        self.txs.keys_dead();
        self.buf_pool.clear();
        self.hca.take()
    }
}

/// Frees a receive whose buffer could not be mapped again.
#[cold]
#[inline(never)]
fn no_buffer<C>(rx: KBox<Rx<C>>) {
    drop(rx);
}
