// SPDX-License-Identifier: GPL-2.0

//! What LNet asks of the driver, for each NI.
//!
//! Process context throughout.

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
        close_log::SeenBy,
        files::Files,
        latency::TimesOf, //
    },
    driver::Driver,
    hca::Hca,
    iface::User,
    listen::Asked,
    lnet_glue::O2ib,
    log,
    ni::{
        Ni,
        Trouble, //
    },
    ni_device::Port,
    peer::{
        Connection,
        NotSent,
        Peer, //
    },
    peer_debug, //
};
use crate::{
    lnet::{
        dk::dk,
        ConnInfo,
        LinkEvent,
        Lnd,
        Message,
        MsgKind,
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
        nid::Nid, //
    },
    rdma::work::NofsScope, //
};

/// A peer or a connection of the NI found something that the device may be to blame for.
fn trouble(ni: &Ni, trouble: Trouble) {
    // By name, because an NI and what looks after it would hold each other.
    if let Some(found) = ni.lnet.find(ni.nid.raw()) {
        match trouble {
            Trouble::Unheard => found.lnd.unheard(),
            Trouble::Astray => found.lnd.doubt_home(),
            Trouble::Refuses | Trouble::Watched => found.lnd.look_in(0),
        }
    }
}

/// The peer with that NID. Peers are found by address: one of another net is not meant.
fn peer_of(port: &Port, nid: u64) -> Result<Arc<Peer<Conn>>> {
    let nid = Nid::from_raw(nid);
    let peer = port.peers.table.get(nid).ok_or(ENOENT)?;
    (peer.nid == nid).then_some(peer).ok_or(ENOENT)
}

/// Does `f` to the peer with that NID, or to all. `ENOENT` if it did nothing.
fn for_peers(port: &Port, nid: Option<u64>, f: impl Fn(&Arc<Peer<Conn>>) -> bool) -> Result {
    let mut any = false;
    match nid {
        Some(nid) => {
            any = f(&peer_of(port, nid)?);
        }
        None => port.peers.table.for_each(|peer| any |= f(peer)),
    }
    if any {
        Ok(())
    } else {
        Err(ENOENT)
    }
}

impl Lnd for O2ib {
    type Ni = Port;
    type Rx = recv::Rx;
    type Driver = Driver;

    fn startup(
        cfg: &NiConfig<'_>,
        lnet: NiRef<Self>,
        driver: ArcBorrow<'_, Driver>,
    ) -> Result<Arc<Port>, StartError> {
        let ni = Ni::new(cfg, lnet, driver.workers.clone(), trouble)?;
        let port = Port::new(ni.clone(), driver.ifaces.clone())
            .map_err(StartError::because("no memory"))?;
        port.attach()?;
        if let Ok(hca) = ni.hca() {
            if let Some(reason) = ni.reason(&hca) {
                let depth = ni.depth();
                log::fitted(ni.nid, depth, hca.gather(ni.wrq_sge), &reason);
            }
        }
        // Without it nothing is missing but a view.
        let files = SeenBy::new(Some(ni.nid), &ni.seen).and_then(|seen| {
            let times = TimesOf::new(ni.nid, &ni.times)?;
            Files::new(&driver.debugfs, ni.nid, &port, &seen, &times)
        });
        port.set_files(files.ok());
        Ok(port)
    }

    fn shutdown(this: Arc<Port>) {
        let ni = this.ni().clone();
        ni.stop();
        this.set_files(None);
        // From here no request is accepted and no attempt started.
        this.stop_looking();
        let _ = this.leave();
        this.peers
            .table
            .for_each(|peer| peer.close(Cause::Shutdown));
        this.peers.parting.close();
        ni.put_own_share();
        let mut seconds = 0u32;
        while !ni.wait_for_none(10_000) {
            seconds = seconds.saturating_add(10);
            log::shutdown_waits(ni.nid, ni.live_count(), seconds);
            this.peers
                .table
                .for_each(|peer| peer.close(Cause::Shutdown));
        }
        log::stopped(ni.nid);
    }

    fn send(
        this: ArcBorrow<'_, Port>,
        msg: Message,
        req: &SendRequest,
    ) -> Result<(), (Message, Error)> {
        if let Some(health) = msg.simulated_error() {
            msg.finalize(EINVAL.to_errno(), health);
            return Ok(());
        }
        let nid = Nid::from_raw(req.target());
        if this.ni().is_stopping() {
            return Err((msg, ESHUTDOWN));
        }
        dk!(
            Net,
            "sending {} of {} bytes to {nid}",
            req.kind().map_or("?", MsgKind::name),
            req.payload().nob()
        );
        let mut msg = msg;
        // Most often that is all; and no reference on the peer is needed.
        if let Some(conn) = this.peers.table.with(nid, Peer::next_conn) {
            match conn.send(msg, req) {
                Ok(()) => return Ok(()),
                Err(NotSent::Failed(msg, e)) => return Err((msg, e)),
                Err(NotSent::Closed(back)) => msg = back,
            }
        }
        this.peers.send(nid, msg, req)
    }

    fn header(rx: &Self::Rx) -> &[u8; HDR_SIZE] {
        rx.header()
    }

    fn eager_recv(_this: ArcBorrow<'_, Port>, rx: &mut recv::Rx) {
        let _nofs = NofsScope::enter();
        recv::eager_recv(rx);
    }

    fn recv(
        _this: ArcBorrow<'_, Port>,
        rx: KBox<Self::Rx>,
        msg: Option<Message>,
        req: &RecvRequest,
    ) -> Result<(), (Option<Message>, Error)> {
        recv::recv(rx, msg, req)
    }

    fn link_event(this: ArcBorrow<'_, Port>, event: LinkEvent) {
        let this: Arc<Port> = this.into();
        this.link_changed(event);
    }

    fn link_busy(this: ArcBorrow<'_, Port>) -> bool {
        this.is_stirring()
    }

    fn has_gid(this: ArcBorrow<'_, Port>) -> bool {
        this.ni().on_hca(Hca::has_gids).unwrap_or(false)
    }

    fn peer_info(this: ArcBorrow<'_, Port>, index: u32) -> Option<PeerInfo> {
        let peer = this.numbered.peer(&this.peers.table, index)?;
        Some(PeerInfo {
            nid: peer.nid.raw(),
            // One is the table's.
            refs: u32::from(peer.with(|inner| inner.objects())).saturating_add(1),
        })
    }

    fn debug_peer(this: ArcBorrow<'_, Port>, nid: u64) -> Result {
        peer_debug::peer(&peer_of(&this, nid)?)
    }

    fn del_peer(this: ArcBorrow<'_, Port>, nid: Option<u64>) -> Result {
        for_peers(&this, nid, |peer| {
            peer.close(Cause::PeerDeleted);
            true
        })
    }

    fn conn_info(this: ArcBorrow<'_, Port>, index: u32) -> Option<ConnInfo> {
        let conn = this.numbered.conn(&this.peers.table, index)?;
        Some(ConnInfo {
            nid: conn.nid().raw(),
            path_mtu: conn.path_mtu(),
        })
    }

    fn settings_changed(this: ArcBorrow<'_, Port>) {
        let this: Arc<Port> = this.into();
        this.settings_changed();
    }

    fn older_conns(this: ArcBorrow<'_, Port>) -> u32 {
        this.ni().older_conns()
    }

    fn close_conns(this: ArcBorrow<'_, Port>, nid: Option<u64>) -> Result {
        match for_peers(&this, nid, |peer| peer.finish_conns(Cause::AdminClose)) {
            // As ko2iblnd: scripts close them all, whether there are any or not.
            Err(ENOENT) if nid.is_none() => Ok(()),
            result => result,
        }
    }
}
