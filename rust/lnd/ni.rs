// SPDX-License-Identifier: GPL-2.0

//! An NI as its peers and connections know it: how it is configured, its device, its way out, its clock and its
//! counters. It knows none of them. How it comes to its device is [`super::ni_device`]'s business.
//!
//! Process context, but for what says otherwise.

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
    device_health::DeviceHealth,
    hca::Hca,
    lnet_glue::O2ib,
    retained_rx::RetainedRx,
    settings::{
        ConnSettings,
        Settings,
        SettingsInUse, //
    },
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
        link_defaults::{
            self,
            DepthReason, //
        },
        link_state::{
            LinkState,
            SendPolicy, //
        },
        liveness::ProbeInterval,
        ni_deletion::{
            LateAction,
            NiDeletion, //
        }, //
    },
    proto::{
        nid::Nid,
        params::{
            high_water,
            QueueDepth, //
        }, //
    },
    rdma::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    }, //
};

/// Least seconds that an attempt to connect may take.
const CONNECT_TIMEOUT_MIN: u32 = 5;
/// Seconds a message may wait beyond the time of one attempt.
const PENDING_GRACE: u32 = 10;

/// What a peer or a connection finds, and who looks after the device of the NI has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceHint {
    /// An attempt to connect was never answered.
    Unheard,
    /// The address of the NI was found on another device.
    Astray,
    /// The device refuses work requests.
    Refuses,
    /// None: somebody reads how it is.
    Watched,
}

/// An NI.
#[pin_data]
pub(crate) struct Ni {
    // Before `lnet`: the shutdown of the NI in LNet waits for `lnet` to be dropped, and the work
    // queues must not be dropped last by one of their own items.
    pub(crate) workers: Arc<WorkQueues>,
    pub(crate) nid: Nid,
    /// Incarnation: microseconds since the epoch.
    pub(crate) stamp: u64,
    pub(crate) path_mtu: Option<u32>,
    /// What the administrator said, if anything.
    pub(crate) wrq_sge: Option<u32>,
    credits: Option<u32>,
    pub(crate) service: u16,
    pub(crate) net: NetNs,
    #[pin]
    hca: Mutex<Option<Arc<Hca>>>,
    /// Whether anybody can be reached.
    #[pin]
    way: SpinLock<LinkState>,
    /// It is not known yet whether the address moves to another device.
    unsettled: Atomic<bool>,
    /// The depth that peers were told of; 0 before that.
    depth_told: Atomic<u32>,
    /// Counters of the connections that are over.
    #[pin]
    pub(crate) past: ClosedCounters,
    /// What the connections that messages may use were made with.
    #[pin]
    in_use: SettingsInUse,
    /// What ended, and why.
    pub(crate) seen: Arc<CloseStats>,
    /// Where the time of messages goes.
    pub(crate) times: Arc<LatencyStats>,
    /// What LNet keeps of connections that are over.
    pub(crate) orphans: RetainedRx,
    /// What came while LNet deletes it.
    #[pin]
    deletion: SpinLock<NiDeletion>,
    /// What ails the device.
    pub(crate) condition: DeviceHealth,
    stopping: Atomic<bool>,
    started: Instant<Monotonic>,
    /// Connections alive, plus one until shutdown.
    live: Arc<ConnCount>,
    on_trouble: fn(&Ni, DeviceHint),
    pub(crate) lnet: NiRef<O2ib>,
}

impl Ni {
    /// As configured. `on_trouble` is called in process context: the NI does not know who looks after it. May sleep.
    ///
    /// # Errors
    ///
    /// What LNet is to say if it does not start.
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
                way <- kernel::new_spinlock!(LinkState::new(), "Ni::way"),
                unsettled: Atomic::new(false),
                depth_told: Atomic::new(0),
                past <- ClosedCounters::new(),
                in_use <- SettingsInUse::new(),
                seen,
                times,
                orphans,
                deletion <- kernel::new_spinlock!(NiDeletion::new(), "Ni::deletion"),
                condition: DeviceHealth::new(),
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

    /// The RDMA device, while there is one.
    pub(crate) fn hca(&self) -> Result<Arc<Hca>> {
        self.hca.lock().clone().ok_or(ENODEV)
    }

    /// Runs `f` on the RDMA device, while there is one. Takes no reference, whose end may be that of the
    /// protection domain, for which the device may take long: for callers that have a lock.
    pub(crate) fn on_hca<R>(&self, f: impl FnOnce(&Hca) -> R) -> Option<R> {
        self.hca.lock().as_deref().map(f)
    }

    /// It has this device from now on, or none.
    pub(crate) fn set_hca(&self, hca: Option<Arc<Hca>>) {
        // Out of the lock: the last reference may sleep for long.
        let old = core::mem::replace(&mut *self.hca.lock(), hca);
        drop(old);
    }

    /// Runs `f` on the state of the way, under its lock. Any context but interrupts.
    pub(crate) fn way<R>(&self, f: impl FnOnce(&mut LinkState) -> R) -> R {
        f(&mut self.way.lock())
    }

    /// What becomes of a message that has no connection.
    pub(crate) fn passage(&self) -> SendPolicy {
        match self.way(|way| way.passage()) {
            SendPolicy::Open if self.is_unsettled() => SendPolicy::Hold,
            passage => passage,
        }
    }

    /// Whether the address moves to another device may be open; while it is, nobody is connected to
    /// ([`crate::policy::device_failover`]). True: it was.
    pub(crate) fn set_unsettled(&self, unsettled: bool) -> bool {
        self.unsettled.xchg(unsettled, Full)
    }

    /// Whether it may be moving.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Acquire)
    }

    /// Whether the interface is down, or about to go.
    pub(crate) fn is_leaving(&self) -> bool {
        self.way(|way| !way.has_interface())
    }

    /// Whether connections were ended because the way is closing or closed: who begins or gets one now ends it.
    pub(crate) fn ends_all(&self) -> bool {
        self.way(|way| way.ends_all())
    }

    /// A peer asks for a connection while the interface goes down.
    pub(crate) fn asked_too_late(&self) {
        let now_ms = self.now_ms();
        self.way(|way| way.asked(now_ms));
    }

    /// Tells who looks after the device. Process context.
    pub(crate) fn tell(&self, trouble: DeviceHint) {
        (self.on_trouble)(self, trouble);
    }

    /// What a connection that is made now goes by.
    pub(crate) fn for_new_conn(&self) -> ConnSettings {
        ConnSettings::new(Settings::now(&self.lnet))
    }

    /// Messages may use a connection that was made with this.
    pub(crate) fn enter(&self, conn: &ConnSettings) {
        self.in_use.enter(conn);
    }

    /// They may no longer.
    pub(crate) fn leave(&self, conn: &ConnSettings) {
        self.in_use.leave(conn);
    }

    /// How many connections were made with other settings than those in force. Does not sleep.
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
        // After the count went up: shutdown either sees it, or is seen here.
        if self.is_stopping() {
            return Err(ESHUTDOWN);
        }
        Ok(live)
    }

    /// LNet has asked the NI to stop: no new connection, and no attempt.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
    }

    /// After [`Ni::stop`]: the NI's own share of the count goes, so that it can come to nothing.
    pub(crate) fn put_own_share(&self) {
        self.live.put();
    }

    /// After [`Ni::put_own_share`]: waits for the last connection, `ms` milliseconds at most. True: it
    /// is gone. May sleep.
    pub(crate) fn wait_for_none(&self, ms: u32) -> bool {
        self.live.wait_for_none(ms)
    }

    /// Whether LNet has asked the NI to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// Whether LNet still lists the NI. It takes an NI from its list first, then waits for the messages under way, and
    /// only then asks the NI to stop: so what waits for a connection meanwhile must not wait for long. Process context;
    /// not with a lock of ours held.
    pub(crate) fn is_listed(&self) -> bool {
        self.lnet.is_listed(self.nid.raw())
    }

    /// A message has come in while LNet deletes the NI. Process context.
    pub(crate) fn came_late(&self) -> LateAction {
        self.deletion.lock().came(Timestamp::now().ns())
    }

    /// Number of connection objects, and one for the NI itself until it stops.
    pub(crate) fn live_count(&self) -> i32 {
        self.live.now()
    }

    /// The queue depth that we offer, and the most that we take.
    pub(crate) fn depth(&self) -> QueueDepth {
        QueueDepth::new(self.lnet.peer_credits()).unwrap_or(QueueDepth::MAX)
    }

    /// Has the depth fit the link of its device, if the administrator said none: for LNet while the NI
    /// starts, for new connections later on. May sleep; not with the shim's NI mutex held.
    pub(crate) fn fit(&self, hca: &Hca) {
        let speed = hca.speed();
        let depth = hca.deepest(link_defaults::depth(speed, self.credits));
        self.lnet
            .choose_depth(depth.get(), link_defaults::ni_credits(depth), speed.mbps());
    }

    /// Whether [`Ni::depth`] is another one than when this was asked last.
    pub(crate) fn has_new_depth(&self) -> bool {
        let depth = u32::from(self.depth().get());
        self.depth_told.xchg(depth, Full) != depth
    }

    /// Why the depth is what it is, if nobody said it.
    pub(crate) fn reason(&self, hca: &Hca) -> Option<DepthReason> {
        (self.lnet.depth_by() == DepthBy::Link).then_some(DepthReason {
            speed: hca.speed(),
            credits: self.credits,
        })
    }

    /// Outstanding credits at which a NOOP returns them.
    pub(crate) fn high_water(&self, depth: QueueDepth) -> u8 {
        let hiw = u8::try_from(self.lnet.peer_credits_hiw()).unwrap_or(u8::MAX);
        high_water(depth, hiw, self.given_by_lnet())
    }

    /// Messages that LNet hands over for one peer at a time: more or fewer than [`Ni::depth`], if that was changed
    /// since, or the first NI of the net is on another link.
    pub(crate) fn given_by_lnet(&self) -> QueueDepth {
        QueueDepth::new(self.lnet.lnet_credits()).unwrap_or(QueueDepth::MAX)
    }

    /// Milliseconds since the NI was started.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0)
    }

    /// Milliseconds an attempt to connect may take (protocol section 4.15).
    pub(crate) fn connect_timeout_ms(&self) -> u32 {
        self.connect_timeout().saturating_mul(1000)
    }

    /// Milliseconds a message may wait for a connection.
    pub(crate) fn pending_limit_ms(&self) -> i64 {
        i64::from(self.connect_timeout().saturating_add(PENDING_GRACE)).saturating_mul(1000)
    }

    /// Milliseconds after which LNet gives up a message.
    pub(crate) fn message_limit_ms(&self) -> i64 {
        i64::from(self.lnet.timeout()).saturating_mul(1000)
    }

    fn connect_timeout(&self) -> u32 {
        (self.lnet.timeout() / 4).max(CONNECT_TIMEOUT_MIN)
    }

    /// After how long a silent peer that owes an answer is asked, if it is.
    pub(crate) fn probe(&self) -> Option<ProbeInterval> {
        ProbeInterval::of_ms(self.lnet.probe_ms())
    }

    /// Whether outgoing messages carry a checksum.
    pub(crate) fn cksum(&self) -> bool {
        params::cksum()
    }
}
