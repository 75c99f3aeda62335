// SPDX-License-Identifier: GPL-2.0

//! NI as its peers and connections see it: its configuration, device, link state, clock and counters, and the number
//! of live connections. This file uses neither peers nor connections.
//! [`super::ni_device`] attaches the NI to its device.
//!
//! Context: process, unless a function says otherwise.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        ClockSource,
        RealTime, //
    }, //
};

use super::{
    hca::Hca,
    stats::{
        close_log::CloseStats,
        conn_counters::ClosedCounters,
        conn_latency::LatencyStats, //
    },
    timestamp::Timestamp,
    work_queues::WorkQueues, //
};
use crate::{
    lnet::{
        params,
        NetNs,
        NiConfig,
        NiRef,
        StartError, //
    },
    policy::{
        addr_hash,
        link_state::{
            LinkState,
            SendPolicy, //
        },
        liveness::ProbeInterval,
        queue_sizes, //
    },
    proto::{
        constants::QueueDepth,
        handshake::NiView,
        nid::Nid, //
    },
    rdma::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        random,
        sync::Completion, //
    }, //
};

/// Minimum time in seconds for an attempt to connect.
const CONNECT_TIMEOUT_MIN: u32 = 5;
/// Time in milliseconds that a message may wait beyond the time of one attempt.
const PENDING_GRACE_MS: u32 = 10_000;

/// Number of counts of a table: in a cluster of ten thousand nodes some twenty share one.
const PARTS: usize = 512;

/// Retained requests of the addresses that share a count, from which on they get no new connection: those of sixteen
/// connections with the largest queue depth, all retained.
const MOST: u32 = 4096;

// An honest peer may lose that many connections while LNet is stuck.
const _: () = assert!(16 * 255 < MOST);

/// The driver of networks `o2ib`, as a type parameter. Its callbacks are in [`super::ops`].
pub(crate) enum O2ib {}

/// Share of one live connection in the count of its NI.
pub(crate) struct ConnGuard(Arc<Ni>);

impl Drop for ConnGuard {
    fn drop(&mut self) {
        self.0.put_share();
    }
}

/// Network interface of LNet.
#[pin_data]
pub(crate) struct Ni {
    // Before `lnet`: the shutdown of the NI in LNet waits for `lnet` to be dropped, and the work
    // queues must not be dropped last by one of their own items.
    pub(crate) workers: Arc<WorkQueues>,
    pub(crate) nid: Nid,
    /// Incarnation: microseconds since the epoch.
    pub(crate) stamp: u64,
    pub(crate) path_mtu: Option<u32>,
    /// Value that the administrator configured, if any.
    pub(crate) wrq_sge: Option<u32>,
    credits: Option<u32>,
    pub(crate) service: u16,
    pub(crate) net: NetNs,
    #[pin]
    hca: Mutex<Option<Arc<Hca>>>,
    /// Link state: whether the NI can reach any peer.
    #[pin]
    link_state: SpinLock<LinkState>,
    /// The last event of the device reported a fatal error. Set in any context, including hard interrupts.
    pub(crate) broken: Atomic<bool>,
    #[pin]
    pub(crate) closed_counters: ClosedCounters,
    /// Closed connections, failed attempts and rejects, with their causes.
    pub(crate) close_stats: Arc<CloseStats>,
    /// Latency of messages by stage.
    pub(crate) times: LatencyStats,
    /// Received buffers that LNet retains from closed connections.
    pub(crate) retained_rx: RetainedRx,
    stopping: Atomic<bool>,
    started: Timestamp,
    /// Number of live connections, plus one until shutdown.
    live: Atomic<i32>,
    /// Completed at the release of the last connection after [`Ni::put_share`].
    #[pin]
    pub(crate) none_lives: Completion,
    pub(crate) lnet: NiRef<O2ib>,
}

impl Ni {
    /// Creates an NI from its configuration. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet why the NI does not start.
    pub(crate) fn new(
        cfg: &NiConfig<'_>,
        lnet: NiRef<O2ib>,
        workers: Arc<WorkQueues>,
    ) -> Result<Arc<Self>, StartError> {
        if QueueDepth::new(cfg.peer_credits()).is_none() {
            return Err(StartError::because("peer_credits out of 1..255")(EINVAL));
        }
        let nid = Nid::from_raw(cfg.nid());
        let close_stats = CloseStats::new(Some(nid)).map_err(StartError::no_memory)?;
        let times = LatencyStats::new().map_err(StartError::no_memory)?;
        let retained_rx = RetainedRx::new().map_err(StartError::no_memory)?;
        let stamp = u64::try_from(RealTime::ktime_get() / 1000).unwrap_or(1);
        Arc::pin_init(
            pin_init!(Self {
                workers,
                nid,
                stamp,
                path_mtu: cfg.path_mtu(),
                wrq_sge: cfg.wrq_sge(),
                credits: cfg.credits(),
                service: cfg.service(),
                net: cfg.net(),
                hca <- kernel::new_mutex!(None, "Ni::hca"),
                link_state <- kernel::new_spinlock!(LinkState::default(), "Ni::link_state"),
                broken: Atomic::new(false),
                closed_counters <- ClosedCounters::new(),
                close_stats,
                times,
                retained_rx,
                stopping: Atomic::new(false),
                started: Timestamp::now(),
                live: Atomic::new(1),
                none_lives <- Completion::new(),
                lnet,
            }),
            GFP_KERNEL,
        )
        .map_err(StartError::no_memory)
    }

    /// Returns the RDMA device if the NI has one.
    pub(crate) fn hca(&self) -> Result<Arc<Hca>> {
        self.hca.lock().clone().ok_or(ENODEV)
    }

    /// Runs `f` on the RDMA device if the NI has one. Takes no reference, because dropping the last one may destroy the
    /// protection domain, and the device may take long for that: for callers that hold a lock.
    pub(crate) fn on_hca<R>(&self, f: impl FnOnce(&Hca) -> R) -> Option<R> {
        self.hca.lock().as_deref().map(f)
    }

    /// Sets the device of the NI, or removes it.
    pub(crate) fn set_hca(&self, hca: Option<Arc<Hca>>) {
        // Outside the lock: dropping the last reference may sleep for a long time.
        let old = core::mem::replace(&mut *self.hca.lock(), hca);
        drop(old);
    }

    /// Runs `f` on the link state, under its lock. Any context except interrupts.
    pub(crate) fn way<R>(&self, f: impl FnOnce(&mut LinkState) -> R) -> R {
        f(&mut self.link_state.lock())
    }

    /// Returns what to do with a message that has no connection.
    pub(crate) fn passage(&self) -> SendPolicy {
        self.way(|way| way.passage())
    }

    /// Returns whether the address may be about to move to another device. Meanwhile the NI does not connect to any
    /// peer.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.way(|way| way.address.unsettled)
    }

    /// Returns whether connections were closed because the link is going down or is down. A caller that starts or
    /// accepts a connection now closes it.
    pub(crate) fn ends_all(&self) -> bool {
        self.way(|way| way.ends_all())
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Acquire)
    }

    /// Queues the check of the device and the link. Process context; the caller must not hold a lock of this driver.
    pub(crate) fn check_device(&self) {
        // By NID, because the NI and the object that has its work item would otherwise hold each other.
        if let Some(found) = self.lnet.find(self.nid.raw()) {
            found.check_soon();
        }
    }

    /// Returns the health of the device as one word for debugfs.
    pub(crate) fn device_health(&self) -> &'static str {
        let state = self.way(|way| way.device_state);
        match (self.is_broken(), state.mute, state.shut) {
            (true, ..) => "broken",
            (false, true, _) => "gsi_dead",
            (false, false, true) => "refuses",
            (false, false, false) => "ok",
        }
    }

    /// Counts a new connection.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` once the NI is stopping.
    pub(crate) fn live(self: &Arc<Self>) -> Result<ConnGuard> {
        self.live.fetch_add(1, Full);
        let live = ConnGuard(self.clone());
        // After the count went up: either shutdown sees the new count, or this check sees the shutdown.
        if self.is_stopping() {
            return Err(ESHUTDOWN);
        }
        Ok(live)
    }

    /// Drops a share of the count: a connection's, or after [`Ni::stop`] the NI's own, so that the count can reach 0.
    pub(crate) fn put_share(&self) {
        if self.live.fetch_sub(1, Full) == 1 {
            self.none_lives.complete_all();
        }
    }

    /// Returns the number of connection objects, plus one for the NI itself until it stops.
    pub(crate) fn live_count(&self) -> i32 {
        self.live.load(Relaxed)
    }

    /// Stops the NI, because LNet asked for it: no new connection and no new attempt.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// Returns whether LNet still lists the NI. LNet takes an NI from its list first, then waits for outstanding
    /// messages, and only then asks the NI to stop. Messages that wait for a connection meanwhile must therefore not
    /// wait for long. Process context; the caller must not hold a lock of this driver.
    pub(crate) fn is_listed(&self) -> bool {
        self.lnet.is_listed(self.nid.raw())
    }

    /// Returns the NI as the checks of connection requests need it.
    pub(crate) fn view(&self) -> NiView {
        NiView {
            nid: self.nid,
            stamp: self.stamp,
            peer_credits: self.lnet.peer_credits(),
            active: self.lnet.is_active() && !self.is_stopping(),
        }
    }

    /// Fits the depth to the link of the device if the administrator did not configure one: for LNet while the NI
    /// starts, for new connections later. May sleep; the caller must not hold the shim's NI mutex.
    pub(crate) fn fit(&self, hca: &Hca) {
        let mbps = hca.mbps();
        let depth = hca.deepest(queue_sizes::default_depth(mbps, self.credits));
        self.lnet
            .choose_depth(depth.get(), queue_sizes::ni_credits(depth), mbps);
    }

    /// Returns the milliseconds since the NI was started.
    pub(crate) fn now_ms(&self) -> u64 {
        Timestamp::now().ns_since(self.started) / 1_000_000
    }

    /// Returns the milliseconds that an attempt to connect may take (protocol section 4.15).
    pub(crate) fn connect_timeout_ms(&self) -> u32 {
        let seconds = (self.lnet.timeout() / 4).max(CONNECT_TIMEOUT_MIN);
        seconds.saturating_mul(1000)
    }

    /// Returns the milliseconds that a message may wait for a connection.
    pub(crate) fn pending_limit_ms(&self) -> i64 {
        i64::from(self.connect_timeout_ms().saturating_add(PENDING_GRACE_MS))
    }

    /// Returns the milliseconds after which LNet gives up a message.
    pub(crate) fn message_limit_ms(&self) -> i64 {
        i64::from(self.lnet.timeout()).saturating_mul(1000)
    }

    /// Returns after how long the driver probes a silent peer that owes an answer; `None`: never.
    pub(crate) fn probe(&self) -> Option<ProbeInterval> {
        ProbeInterval::of_ms(self.lnet.probe_ms())
    }

    /// Returns whether outgoing messages carry a checksum.
    pub(crate) fn cksum(&self) -> bool {
        params::cksum()
    }
}

/// Counts of the requests of closed connections of an NI that LNet retains, by the address of the peer. Any context.
///
/// The credits of a connection limit the requests that LNet retains of it. A new connection has new credits, so a peer
/// that reconnects again and again could use up all memory (H41). The requests are counted twice by address, and some
/// addresses share a count ([`addr_hash`]): an address is excluded only if both of its counts are too large, and it
/// hardly ever shares both with a hostile address.
pub(crate) struct RetainedRx {
    /// Two tables of [`PARTS`], one behind the other.
    counts: KVec<Atomic<u32>>,
    salts: [u64; 2],
}

impl RetainedRx {
    /// Creates counts of zero. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let mut counts = KVec::with_capacity(2 * PARTS, GFP_KERNEL)?;
        for _ in 0..2 * PARTS {
            counts.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let salts = [random::u64(), random::u64()];
        Ok(Self { counts, salts })
    }

    fn of(&self, nid: Nid) -> impl Iterator<Item = &Atomic<u32>> {
        let tables = self.counts.chunks(PARTS).zip(self.salts);
        tables.filter_map(move |(table, salt)| {
            table.get(addr_hash::index(nid.addr(), salt, table.len()))
        })
    }

    /// Counts `n` requests that LNet retains from a closed connection with `nid`.
    pub(crate) fn left(&self, nid: Nid, n: u16) {
        for count in self.of(nid) {
            count.fetch_add(n.into(), Relaxed);
        }
    }

    /// Counts a request that LNet has returned.
    pub(crate) fn returned(&self, nid: Nid) {
        for count in self.of(nid) {
            // The request was counted before.
            count.fetch_sub(1, Relaxed);
        }
    }

    /// Returns whether `nid` gets no connection until LNet returns some requests.
    pub(crate) fn are_too_many(&self, nid: Nid) -> bool {
        self.of(nid).all(|count| count.load(Relaxed) >= MOST)
    }

    /// Returns the number of all retained requests.
    pub(crate) fn all(&self) -> u32 {
        let counts = self.counts.iter().take(PARTS);
        counts.fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }
}
