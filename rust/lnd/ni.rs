// SPDX-License-Identifier: GPL-2.0

//! A network interface of LNet: start, stop, and LNet's requests.
//!
//! Process context throughout.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        ArcBorrow,
        Mutex,
        SpinLock, //
    },
    time::{
        ClockSource,
        Instant,
        Monotonic,
        RealTime, //
    },
    workqueue::DelayedWork, //
};

use super::{
    access,
    conn::{
        Conn,
        Counts, //
    },
    debug::NiFiles,
    device::{
        Attached,
        Health,
        DEVICE, //
    },
    driver::Driver,
    dump,
    log,
    parting::Parting,
    peer::{
        Peer,
        PeerError, //
    },
    seen::Seen,
    table::PeerTable,
    upper, //
};
use crate::{
    lnet::{
        dk::dk,
        params,
        ConnInfo,
        LinkEvent,
        Lnd,
        Message,
        NetNs,
        NiConfig,
        NiRef,
        PeerInfo,
        RecvRequest,
        SendRequest,
        StartError,
        HDR_SIZE, //
    },
    proto::{
        cause::Cause,
        nid::Nid,
        params::{
            high_water,
            QueueDepth, //
        },
        way::Way, //
    },
    rdma::{
        sync::Completion,
        work::NofsScope, //
    }, //
};

/// Least seconds that an attempt to connect may take.
const CONNECT_TIMEOUT_MIN: u32 = 5;
/// Seconds a message may wait beyond the time of one attempt.
const PENDING_GRACE: u32 = 10;

/// An NI.
#[pin_data]
pub(crate) struct Ni {
    // Before `lnet`: the shutdown of the NI in LNet waits for `lnet` to be dropped, and the work
    // queues must not be dropped last by one of their own items.
    pub(crate) driver: Arc<Driver>,
    pub(crate) nid: Nid,
    /// Incarnation: microseconds since the epoch.
    pub(crate) stamp: u64,
    pub(crate) path_mtu: Option<u32>,
    pub(crate) wrq_sge: u32,
    pub(crate) service: u16,
    /// The interface is a bond.
    pub(crate) bonded: bool,
    pub(crate) net: NetNs,
    #[pin]
    pub(crate) attached: Mutex<Option<Attached>>,
    pub(crate) health: Health,
    /// Whether anybody can be reached.
    #[pin]
    pub(super) way: SpinLock<Way>,
    #[pin]
    look: DelayedWork<Ni, DEVICE>,
    #[pin]
    pub(crate) peers: PeerTable,
    /// Connections that are over but for their CM id.
    #[pin]
    pub(crate) parting: Parting,
    /// Counters of the connections that are over.
    #[pin]
    pub(crate) past: SpinLock<Counts>,
    #[pin]
    debug: Mutex<Option<NiFiles>>,
    /// What ended, and why.
    pub(crate) seen: Arc<Seen>,
    stopping: Atomic<bool>,
    started: Instant<Monotonic>,
    /// Connections alive, plus one until shutdown.
    live: Arc<LiveCount>,
    pub(crate) lnet: NiRef<Ni>,
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, DEVICE> for Ni { self.look }
}

/// Counts connections, so that shutdown can wait for the last one.
#[pin_data]
pub(crate) struct LiveCount {
    count: Atomic<i32>,
    #[pin]
    none: Completion,
}

/// One living connection.
pub(crate) struct Live(Arc<LiveCount>);

impl LiveCount {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(1),
                none <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn put(&self) {
        if self.count.fetch_sub(1, Full) == 1 {
            self.none.complete_all();
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.put();
    }
}

impl Ni {
    /// Counts a new connection.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN` once the NI is stopping.
    pub(crate) fn live(&self) -> Result<Live> {
        self.live.count.fetch_add(1, Full);
        let live = Live(self.live.clone());
        // After the count went up: shutdown either sees it, or is seen here.
        if self.is_stopping() {
            return Err(ESHUTDOWN);
        }
        Ok(live)
    }

    /// Whether LNet has asked the NI to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// Whether LNet still lists the NI. It takes an NI from its list first, then waits for the messages under
    /// way, and only then asks the NI to stop: so what waits for a connection meanwhile must not wait for long.
    ///
    /// Process context; not with a lock of ours held.
    pub(crate) fn is_listed(&self) -> bool {
        NiRef::<Self>::find(self.nid.raw()).is_some_and(|found| core::ptr::eq(&*found.lnd, self))
    }

    /// Number of living connection objects, without those of which only the CM id is left.
    pub(crate) fn conns(&self) -> i32 {
        let parting = i32::try_from(self.parting.len()).unwrap_or(0);
        // One is the NI's own.
        let live = self.live.count.load(Relaxed).saturating_sub(1);
        live.saturating_sub(parting)
    }

    /// The queue depth that we offer, and the most that we take.
    pub(crate) fn depth(&self) -> QueueDepth {
        QueueDepth::new(self.lnet.peer_credits()).unwrap_or(QueueDepth::MAX)
    }

    /// Outstanding credits at which a NOOP returns them.
    pub(crate) fn high_water(&self, depth: QueueDepth) -> u8 {
        let hiw = u8::try_from(self.lnet.peer_credits_hiw()).unwrap_or(u8::MAX);
        high_water(depth, hiw, self.depth())
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

    fn connect_timeout(&self) -> u32 {
        (self.lnet.timeout() / 4).max(CONNECT_TIMEOUT_MIN)
    }

    /// Whether outgoing messages carry a checksum.
    pub(crate) fn cksum(&self) -> bool {
        params::cksum()
    }

    /// Closes the peer with that NID, or all.
    fn close_peers(&self, nid: Option<u64>, f: impl Fn(&Arc<Peer>) -> bool) -> Result {
        let mut any = false;
        match nid {
            Some(nid) => {
                if let Some(peer) = self.peers.get(Nid::from_raw(nid)) {
                    any = f(&peer);
                }
            }
            None => self.peers.for_each(|peer| any |= f(peer)),
        }
        if any {
            Ok(())
        } else {
            Err(ENOENT)
        }
    }

    fn conn_number(&self, index: u32) -> Option<Arc<Conn>> {
        let mut left = index;
        let mut found = None;
        self.peers.for_each(|peer| {
            for conn in peer.conns() {
                if found.is_none() {
                    match left.checked_sub(1) {
                        Some(less) => left = less,
                        None => found = Some(conn),
                    }
                }
            }
        });
        found
    }
}

impl Lnd for Ni {
    type Rx = KBox<upper::Rx>;
    type Driver = Driver;

    fn startup(
        cfg: &NiConfig<'_>,
        lnet: NiRef<Self>,
        driver: ArcBorrow<'_, Driver>,
    ) -> Result<Arc<Self>, StartError> {
        let driver: Arc<Driver> = driver.into();
        let no_memory = StartError::because("no memory");
        if QueueDepth::new(cfg.peer_credits()).is_none() {
            return Err(StartError::because("peer_credits out of 1..255")(EINVAL));
        }
        let live = LiveCount::new().map_err(no_memory)?;
        let peers = PeerTable::new().map_err(StartError::because("no memory"))?;
        let seen = Seen::new().map_err(StartError::because("no memory"))?;
        let stamp = u64::try_from(RealTime::ktime_get() / 1000).unwrap_or(1);
        let ni = Arc::pin_init(
            pin_init!(Self {
                driver,
                nid: Nid::from_raw(cfg.nid()),
                stamp,
                path_mtu: cfg.path_mtu(),
                wrq_sge: cfg.wrq_sge(),
                service: cfg.service(),
                bonded: cfg.is_bonded(),
                net: cfg.net(),
                attached <- kernel::new_mutex!(None, "Ni::attached"),
                health: Health::new(),
                way <- kernel::new_spinlock!(Way::new(), "Ni::way"),
                look <- kernel::new_delayed_work!("Ni::look"),
                peers <- peers,
                parting <- Parting::new(),
                past <- kernel::new_spinlock!(Counts::default(), "Ni::past"),
                debug <- kernel::new_mutex!(None, "Ni::debug"),
                seen,
                stopping: Atomic::new(false),
                started: Instant::now(),
                live,
                lnet,
            }),
            GFP_KERNEL,
        )
        .map_err(StartError::because("no memory"))?;
        ni.attach()?;
        // Without it nothing is missing but a view.
        *ni.debug.lock() = NiFiles::new(&ni.driver.debugfs, &ni).ok();
        Ok(ni)
    }

    fn shutdown(this: Arc<Self>) {
        this.stopping.store(true, Release);
        let file = this.debug.lock().take();
        drop(file);
        // From here no request is accepted and no attempt started.
        this.stop_looking();
        let _ = this.leave();
        this.peers.for_each(|peer| peer.close(Cause::Shutdown));
        this.parting.close();
        this.live.put();
        let mut seconds = 0u32;
        while !this.live.none.wait_ms(10_000) {
            seconds = seconds.saturating_add(10);
            log::shutdown_waits(&this, this.live.count.load(Relaxed), seconds);
            this.peers.for_each(|peer| peer.close(Cause::Shutdown));
        }
    }

    fn send(
        this: ArcBorrow<'_, Self>,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), (Message, Error)> {
        let _nofs = NofsScope::enter();
        if let Some(health) = msg.simulated_error() {
            msg.finalize(EINVAL.to_errno(), health);
            return Ok(());
        }
        let nid = Nid::from_raw(req.target);
        if this.is_stopping() {
            return Err((msg, ESHUTDOWN));
        }
        let (kind, nob) = (req.kind, req.payload.nob());
        dk!(Net, "sending {kind:?} of {nob} bytes to {nid}");
        let mut msg = msg;
        loop {
            // A known peer is found without a reference on the NI, whose counter all CPUs share.
            let found = match this.peers.get(nid) {
                Some(peer) => Ok(peer),
                None => this.peers.get_or_add(&Arc::from(this), nid),
            };
            let peer = match found {
                Ok(peer) => peer,
                Err(e) => return Err((msg, e)),
            };
            match peer.send(msg, req) {
                Ok(()) => return Ok(()),
                Err(PeerError::Failed(msg, e)) => return Err((msg, e)),
                Err(PeerError::Gone(back)) => {
                    // It is leaving the table just now: with that done, the next look-up makes a
                    // new one.
                    this.peers.remove(&peer);
                    msg = back;
                }
            }
        }
    }

    fn header(rx: &Self::Rx) -> &[u8; HDR_SIZE] {
        rx.header()
    }

    fn eager_recv(_this: ArcBorrow<'_, Self>, rx: &mut upper::Rx) {
        let _nofs = NofsScope::enter();
        upper::eager_recv(rx);
    }

    fn recv(
        _this: ArcBorrow<'_, Self>,
        rx: Self::Rx,
        req: RecvRequest,
    ) -> Result<(), (Option<Message>, Error)> {
        let _nofs = NofsScope::enter();
        upper::recv(rx, req)
    }

    fn link_event(this: ArcBorrow<'_, Self>, event: LinkEvent) {
        let this: Arc<Self> = this.into();
        this.link_changed(event);
    }

    fn link_users(&self) -> u32 {
        // An answered DREQ is the proof that it left.
        let mut users = self.parting.unanswered();
        self.peers.for_each(|peer| {
            let conns = peer.with(|inner| inner.objects());
            users = users.saturating_add(u32::from(conns));
        });
        users
    }

    fn peer_info(&self, index: u32) -> Option<PeerInfo> {
        let mut left = index;
        let mut found = None;
        self.peers.for_each(|peer| {
            if found.is_none() {
                match left.checked_sub(1) {
                    Some(less) => left = less,
                    None => {
                        found = Some(PeerInfo {
                            nid: peer.nid.raw(),
                            // One is the table's.
                            refs: u32::from(peer.with(|inner| inner.objects())).saturating_add(1),
                        });
                    }
                }
            }
        });
        found
    }

    fn debug_peer(&self, nid: u64) -> Result {
        let peer = self.peers.get(Nid::from_raw(nid)).ok_or(ENOENT)?;
        dump::peer(&peer)
    }

    fn del_peer(this: ArcBorrow<'_, Self>, nid: Option<u64>) -> Result {
        this.close_peers(nid, |peer| {
            peer.close(Cause::AdminClose);
            true
        })
    }

    fn conn_info(&self, index: u32) -> Option<ConnInfo> {
        let conn = self.conn_number(index)?;
        Some(ConnInfo {
            nid: conn.nid().raw(),
            path_mtu: conn.path_mtu(),
        })
    }

    fn settings_changed(this: ArcBorrow<'_, Self>) {
        access::settings_changed(&this);
    }

    fn close_conns(this: ArcBorrow<'_, Self>, nid: Option<u64>) -> Result {
        match this.close_peers(nid, |peer| peer.close_conns(Cause::AdminClose)) {
            // As ko2iblnd: scripts close them all, whether there are any or not.
            Err(ENOENT) if nid.is_none() => Ok(()),
            result => result,
        }
    }
}
