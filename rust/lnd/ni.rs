// SPDX-License-Identifier: GPL-2.0

//! NI as its peers and connections see it: its configuration, device, link state, clock and counters. This file uses
//! neither peers nor connections. [`super::ni_device`] attaches the NI to its device.
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
        Instant,
        Monotonic,
        RealTime, //
    }, //
};

use super::{
    conn_count::{
        ConnCount,
        ConnGuard, //
    },
    conn_settings::{
        ConnSettings,
        Settings,
        SettingsInUse, //
    },
    device_health::DeviceHealth,
    hca::Hca,
    lnet_types::O2ib,
    retained_after_close::RetainedRx,
    stats::{
        close_log::CloseStats,
        closed_counters::ClosedCounters,
        latency::LatencyStats, //
    },
    timestamp::Timestamp,
    work_queues::WorkQueues, //
};
use crate::{
    lnet::{
        params,
        DepthBy,
        NetNs,
        NiConfig,
        NiRef,
        StartError, //
    },
    policy::{
        link_speed_defaults::{
            self,
            DepthReason, //
        },
        link_state::{
            LinkState,
            SendPolicy, //
        },
        liveness::ProbeInterval,
        ni_deletion_detect::{
            LateAction,
            NiDeletion, //
        }, //
    },
    proto::{
        constants::{
            high_water,
            QueueDepth, //
        },
        nid::Nid, //
    },
    rdma::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    }, //
};

/// Minimum time in seconds for an attempt to connect.
const CONNECT_TIMEOUT_MIN: u32 = 5;
/// Time in seconds that a message may wait beyond the time of one attempt.
const PENDING_GRACE: u32 = 10;

/// Finding of a peer or a connection, reported to the code that manages the device of the NI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceHint {
    /// No node answered an attempt to connect.
    Unheard,
    /// The address of the NI was found on another device.
    Astray,
    /// The device rejects work requests.
    Refuses,
    /// No finding: a reader asks for the state of the device.
    Watched,
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
    /// Set while the driver does not know whether the address moves to another device.
    unsettled: Atomic<bool>,
    /// Queue depth that peers were last informed of; 0 before that.
    depth_told: Atomic<u32>,
    /// Counters of closed connections.
    #[pin]
    pub(crate) closed_counters: ClosedCounters,
    /// Settings of the connections that messages may use.
    #[pin]
    in_use: SettingsInUse,
    /// Closed connections, failed attempts and rejects, with their causes.
    pub(crate) close_stats: Arc<CloseStats>,
    /// Latency of messages by stage.
    pub(crate) times: Arc<LatencyStats>,
    /// Received buffers that LNet retains from closed connections.
    pub(crate) retained_rx: RetainedRx,
    /// Messages that arrived while LNet deletes the NI.
    #[pin]
    deletion: SpinLock<NiDeletion>,
    /// Health of the device.
    pub(crate) device_health: DeviceHealth,
    stopping: Atomic<bool>,
    started: Instant<Monotonic>,
    /// Number of live connections, plus one until shutdown.
    live: Arc<ConnCount>,
    on_trouble: fn(&Ni, DeviceHint),
    pub(crate) lnet: NiRef<O2ib>,
}

impl Ni {
    /// Creates an NI from its configuration. Calls `on_trouble` in process context with each finding about the device:
    /// the NI does not know the code that manages its device. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet why the NI does not start.
    pub(crate) fn new(
        cfg: &NiConfig<'_>,
        lnet: NiRef<O2ib>,
        workers: Arc<WorkQueues>,
        on_trouble: fn(&Ni, DeviceHint),
    ) -> Result<Arc<Self>, StartError> {
        if QueueDepth::new(cfg.peer_credits()).is_none() {
            return Err(StartError::because("peer_credits out of 1..255")(EINVAL));
        }
        let live = ConnCount::new().map_err(StartError::because("no memory"))?;
        let seen = CloseStats::new().map_err(StartError::because("no memory"))?;
        let times = LatencyStats::new().map_err(StartError::because("no memory"))?;
        let orphans = RetainedRx::new().map_err(StartError::because("no memory"))?;
        let stamp = u64::try_from(RealTime::ktime_get() / 1000).unwrap_or(1);
        Arc::pin_init(
            pin_init!(Self {
                workers,
                nid: Nid::from_raw(cfg.nid()),
                stamp,
                path_mtu: cfg.path_mtu(),
                wrq_sge: cfg.wrq_sge(),
                credits: cfg.credits(),
                service: cfg.service(),
                net: cfg.net(),
                hca <- kernel::new_mutex!(None, "Ni::hca"),
                link_state <- kernel::new_spinlock!(LinkState::new(), "Ni::link_state"),
                unsettled: Atomic::new(false),
                depth_told: Atomic::new(0),
                closed_counters <- ClosedCounters::new(),
                in_use <- SettingsInUse::new(),
                close_stats: seen,
                times,
                retained_rx: orphans,
                deletion <- kernel::new_spinlock!(NiDeletion::new(), "Ni::deletion"),
                device_health: DeviceHealth::new(),
                stopping: Atomic::new(false),
                started: Instant::now(),
                live,
                on_trouble,
                lnet,
            }),
            GFP_KERNEL,
        )
        .map_err(StartError::because("no memory"))
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
        match self.way(|way| way.passage()) {
            SendPolicy::Open if self.is_unsettled() => SendPolicy::Hold,
            passage => passage,
        }
    }

    /// Sets whether the address may be about to move to another device. While it is set, the NI does not connect to any
    /// peer ([`crate::policy::device_failover`]). Returns the previous value.
    pub(crate) fn set_unsettled(&self, unsettled: bool) -> bool {
        self.unsettled.xchg(unsettled, Full)
    }

    /// Returns whether the address may be about to move to another device.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Acquire)
    }

    /// Returns whether the interface is down, or about to go down.
    pub(crate) fn is_leaving(&self) -> bool {
        self.way(|way| !way.has_interface())
    }

    /// Returns whether connections were closed because the link is going down or is down. A caller that starts or
    /// accepts a connection now closes it.
    pub(crate) fn ends_all(&self) -> bool {
        self.way(|way| way.ends_all())
    }

    /// Records that a peer requested a connection while the interface goes down.
    pub(crate) fn asked_too_late(&self) {
        let now_ms = self.now_ms();
        self.way(|way| way.asked(now_ms));
    }

    /// Reports a finding to the code that manages the device. Process context.
    pub(crate) fn tell(&self, trouble: DeviceHint) {
        (self.on_trouble)(self, trouble);
    }

    /// Returns the settings for a connection that is created now.
    pub(crate) fn for_new_conn(&self) -> ConnSettings {
        ConnSettings::new(Settings::now(&self.lnet))
    }

    /// Counts a connection with these settings that messages may use.
    pub(crate) fn enter(&self, conn: &ConnSettings) {
        self.in_use.enter(conn);
    }

    /// Stops counting a connection that messages may no longer use.
    pub(crate) fn leave(&self, conn: &ConnSettings) {
        self.in_use.leave(conn);
    }

    /// Returns how many connections were created with settings other than the current ones. Does not sleep.
    pub(crate) fn older_conns(&self) -> u32 {
        self.in_use.others_than(&Settings::now(&self.lnet))
    }

    /// Counts a new connection.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` once the NI is stopping.
    pub(crate) fn live(&self) -> Result<ConnGuard> {
        let live = ConnCount::take(&self.live);
        // After the count went up: either shutdown sees the new count, or this check sees the shutdown.
        if self.is_stopping() {
            return Err(ESHUTDOWN);
        }
        Ok(live)
    }

    /// Stops the NI, because LNet asked for it: no new connection and no new attempt.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
    }

    /// Drops the NI's own share of the count, so that the count can reach 0. Called after [`Ni::stop`].
    pub(crate) fn put_own_share(&self) {
        self.live.put();
    }

    /// Waits for the release of the last connection, for at most `ms` milliseconds. Returns whether all are released.
    /// Called after [`Ni::put_own_share`]. May sleep.
    pub(crate) fn wait_for_none(&self, ms: u32) -> bool {
        self.live.wait_for_none(ms)
    }

    /// Returns whether LNet has asked the NI to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// Returns whether LNet still lists the NI. LNet takes an NI from its list first, then waits for outstanding
    /// messages, and only then asks the NI to stop. Messages that wait for a connection meanwhile must therefore not
    /// wait for long. Process context; the caller must not hold a lock of this driver.
    pub(crate) fn is_listed(&self) -> bool {
        self.lnet.is_listed(self.nid.raw())
    }

    /// Records a message that arrived while LNet deletes the NI. Process context.
    pub(crate) fn rx_while_deleting(&self) -> LateAction {
        self.deletion.lock().on_message(Timestamp::now().ns())
    }

    /// Returns the number of connection objects, plus one for the NI itself until it stops.
    pub(crate) fn live_count(&self) -> i32 {
        self.live.now()
    }

    /// Returns the queue depth that the NI offers, which is also the largest that it accepts.
    pub(crate) fn depth(&self) -> QueueDepth {
        QueueDepth::new(self.lnet.peer_credits()).unwrap_or(QueueDepth::MAX)
    }

    /// Fits the depth to the link of the device if the administrator did not configure one: for LNet while the NI
    /// starts, for new connections later. May sleep; the caller must not hold the shim's NI mutex.
    pub(crate) fn fit(&self, hca: &Hca) {
        let speed = hca.speed();
        let depth = hca.deepest(link_speed_defaults::depth(speed, self.credits));
        self.lnet.choose_depth(
            depth.get(),
            link_speed_defaults::ni_credits(depth),
            speed.mbps(),
        );
    }

    /// Returns whether [`Ni::depth`] has changed since the last call.
    pub(crate) fn has_new_depth(&self) -> bool {
        let depth = u32::from(self.depth().get());
        self.depth_told.xchg(depth, Full) != depth
    }

    /// Returns the reason for the chosen depth if the administrator did not configure one.
    pub(crate) fn reason(&self, hca: &Hca) -> Option<DepthReason> {
        (self.lnet.depth_by() == DepthBy::Link).then_some(DepthReason {
            speed: hca.speed(),
            credits: self.credits,
        })
    }

    /// Returns the number of outstanding credits at which a NOOP returns them.
    pub(crate) fn high_water(&self, depth: QueueDepth) -> u8 {
        let hiw = u8::try_from(self.lnet.peer_credits_hiw()).unwrap_or(u8::MAX);
        high_water(depth, hiw, self.given_by_lnet())
    }

    /// Returns the number of messages that LNet hands over for one peer at a time: more or fewer than [`Ni::depth`] if
    /// that has changed since, or if the first NI of the net is on another link.
    pub(crate) fn given_by_lnet(&self) -> QueueDepth {
        QueueDepth::new(self.lnet.lnet_credits()).unwrap_or(QueueDepth::MAX)
    }

    /// Returns the milliseconds since the NI was started.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns the milliseconds that an attempt to connect may take (protocol section 4.15).
    pub(crate) fn connect_timeout_ms(&self) -> u32 {
        self.connect_timeout().saturating_mul(1000)
    }

    /// Returns the milliseconds that a message may wait for a connection.
    pub(crate) fn pending_limit_ms(&self) -> i64 {
        i64::from(self.connect_timeout().saturating_add(PENDING_GRACE)).saturating_mul(1000)
    }

    /// Returns the milliseconds after which LNet gives up a message.
    pub(crate) fn message_limit_ms(&self) -> i64 {
        i64::from(self.lnet.timeout()).saturating_mul(1000)
    }

    fn connect_timeout(&self) -> u32 {
        (self.lnet.timeout() / 4).max(CONNECT_TIMEOUT_MIN)
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
