// SPDX-License-Identifier: GPL-2.0

//! Functions that LNet calls, for each NI, and the end of the module.
//!
//! Context: process.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    conn::{
        recv,
        Conn, //
    },
    debugfs::{
        print_peer,
        NiFiles, //
    },
    hca::Hca,
    listeners::Ifaces,
    log,
    ni::{
        Ni,
        O2ib, //
    },
    ni_device::NiDevice,
    peer::Peer,
    stats::close_log::CloseStats, //
};
use crate::{
    lnet::{
        dk::dk,
        ConnInfo,
        DepthBy,
        LinkEvent,
        Lnd,
        Message,
        NiConfig,
        NiRef,
        PeerInfo,
        RecvRequest,
        SendRequest,
        StartError,
        HDR_SIZE, //
    },
    policy::queue_sizes::DepthReason,
    proto::{
        cause::Cause,
        lnet_hdr::LnetKind,
        nid::Nid, //
    },
    rdma::{
        debugfs::File,
        work::NofsScope, //
    }, //
};

/// Object that the module drops last.
pub(crate) struct Exit {
    // Before the folder that the file is in.
    _strangers: Option<File<CloseStats>>,
    ifaces: Arc<Ifaces>,
}

impl Exit {
    /// Takes the last reference to the driver. Must be called when nothing else can fail: an open file of the driver
    /// keeps a module loaded, but not a module whose initialization fails.
    pub(crate) fn new(ifaces: Arc<Ifaces>) -> Self {
        Self {
            // Without the file only a debugfs view is missing.
            _strangers: File::new(&ifaces.debugfs, c"unknown_ni", &ifaces.strangers).ok(),
            ifaces,
        }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        // Items that are queued or running hold the queues, which must not be dropped by one of them.
        self.ifaces.workers.flush();
    }
}

/// Returns the peer with that NID. The table finds peers by address, so a peer of another net is filtered out.
fn peer_of(port: &NiDevice, nid: u64) -> Result<Arc<Peer>> {
    let nid = Nid::from_raw(nid);
    let peer = port.peers.table.get(nid.addr()).ok_or(ENOENT)?;
    (peer.nid == nid).then_some(peer).ok_or(ENOENT)
}

/// Runs `f` on the peer with that NID, or on all peers. Returns `ENOENT` if `f` did nothing.
fn for_peers(port: &NiDevice, nid: Option<u64>, f: impl Fn(&Arc<Peer>) -> bool) -> Result {
    let mut any = false;
    match nid {
        Some(nid) => any = f(&peer_of(port, nid)?),
        None => port.peers.table.for_each(|peer| any |= f(peer)),
    }
    any.then_some(()).ok_or(ENOENT)
}

impl Lnd for O2ib {
    type Ni = NiDevice;
    type Rx = recv::LnetRx;
    type Driver = Ifaces;

    fn startup(
        cfg: &NiConfig<'_>,
        lnet: NiRef<Self>,
        driver: ArcBorrow<'_, Ifaces>,
    ) -> Result<Arc<NiDevice>, StartError> {
        // It takes mutexes that the checks of other NIs take.
        let _nofs = NofsScope::enter();
        let ni = Ni::new(cfg, lnet, driver.workers.clone())?;
        let driver: Arc<Ifaces> = driver.into();
        let iface = driver.iface(&ni);
        let port = iface.and_then(|iface| NiDevice::new(ni.clone(), iface));
        let port = port.map_err(StartError::no_memory)?;
        port.iface.start(&port)?;
        if let (DepthBy::Link, Ok(hca)) = (ni.lnet.depth_by(), ni.hca()) {
            let (depth, gather) = (ni.lnet.peer_credits(), hca.gather(ni.wrq_sge));
            let reason = DepthReason(hca.mbps(), cfg.credits());
            log::fitted(ni.nid, depth, gather, &reason);
        }
        // Without the files only the debugfs view is missing.
        port.set_files(NiFiles::new(&driver.debugfs, &port.peers).ok());
        Ok(port)
    }

    fn shutdown(this: Arc<NiDevice>) {
        let ni = this.ni.clone();
        ni.stop();
        this.peers.table.close();
        this.set_files(None);
        // From here on no request is accepted and no attempt is started.
        this.stop_looking();
        this.iface.stop(&this);
        let table = &this.peers.table;
        table.for_each(|peer| peer.close(Cause::Shutdown));
        this.peers.for_each_lingering(Conn::end_linger);
        ni.put_share();
        let mut seconds = 0u32;
        while !ni.none_lives.wait_ms(10_000) {
            seconds = seconds.saturating_add(10);
            log::shutdown_waits(ni.nid, ni.live_count(), seconds);
            table.for_each(|peer| peer.close(Cause::Shutdown));
        }
        log::stopped(ni.nid);
    }

    fn send(
        this: ArcBorrow<'_, NiDevice>,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), (Message, Error)> {
        if let Some(health) = msg.simulated_error() {
            msg.finalize(EINVAL.to_errno(), health);
            return Ok(());
        }
        let nid = Nid::from_raw(req.target());
        if this.ni.is_stopping() {
            return Err((msg, ESHUTDOWN));
        }
        dk!(
            Net,
            "sending {} of {} bytes to {nid}",
            req.kind().map_or("?", LnetKind::name),
            req.payload().nob()
        );
        this.peers.send(nid, msg, req)
    }

    fn header(rx: &Self::Rx) -> &[u8; HDR_SIZE] {
        rx.header()
    }

    fn eager_recv(_this: ArcBorrow<'_, NiDevice>, rx: &mut recv::LnetRx) {
        let _nofs = NofsScope::enter();
        recv::eager_recv(rx);
    }

    fn recv(
        _this: ArcBorrow<'_, NiDevice>,
        rx: KBox<Self::Rx>,
        msg: Option<Message>,
        req: &RecvRequest,
    ) -> Result<(), (Option<Message>, Error)> {
        recv::recv(rx, msg, req)
    }

    fn link_event(this: ArcBorrow<'_, NiDevice>, event: LinkEvent) {
        let this: Arc<NiDevice> = this.into();
        this.link_changed(event);
    }

    fn link_busy(this: ArcBorrow<'_, NiDevice>) -> bool {
        let now_ms = this.ni.now_ms();
        this.ni.way(|way| !way.is_quiet(now_ms))
    }

    fn has_gid(this: ArcBorrow<'_, NiDevice>) -> bool {
        this.ni.on_hca(Hca::has_gids).unwrap_or(false)
    }

    fn peer_info(this: ArcBorrow<'_, NiDevice>, index: u32) -> Option<PeerInfo> {
        let peer = this.peers.peer_at(index)?;
        Some(PeerInfo {
            nid: peer.nid.raw(),
            // One reference is the table's.
            refs: u32::from(peer.with(|inner| inner.objects())).saturating_add(1),
        })
    }

    fn debug_peer(this: ArcBorrow<'_, NiDevice>, nid: u64) -> Result {
        let peer = peer_of(&this, nid)?;
        print_peer(&peer)
    }

    fn del_peer(this: ArcBorrow<'_, NiDevice>, nid: Option<u64>) -> Result {
        for_peers(&this, nid, |peer| {
            peer.close(Cause::PeerDeleted);
            true
        })
    }

    fn conn_info(this: ArcBorrow<'_, NiDevice>, index: u32) -> Option<ConnInfo> {
        let conn = this.peers.conn_at(index)?;
        Some(ConnInfo {
            nid: conn.nid().raw(),
            path_mtu: conn.path_mtu(),
        })
    }

    fn settings_changed(this: ArcBorrow<'_, NiDevice>) {
        let this: Arc<NiDevice> = this.into();
        this.settings_changed();
    }

    fn older_conns(this: ArcBorrow<'_, NiDevice>) -> u32 {
        this.peers.older_conns()
    }

    fn close_conns(this: ArcBorrow<'_, NiDevice>, nid: Option<u64>) -> Result {
        match for_peers(&this, nid, |peer| peer.finish_conns(Cause::AdminClose)) {
            // As in ko2iblnd: scripts close all connections, even if there are none.
            Err(ENOENT) if nid.is_none() => Ok(()),
            result => result,
        }
    }
}
