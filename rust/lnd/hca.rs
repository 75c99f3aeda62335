// SPDX-License-Identifier: GPL-2.0

//! RDMA device as a connection uses it. All of it is constant, except the inline size, the speed and the MTU of the
//! port.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::work_queues::DeviceShares;
use crate::{
    lnet::StartError,
    policy::{
        mr_quota::{
            self,
            MrDemand, //
        },
        queue_sizes, //
    },
    proto::constants::{
        QueueDepth,
        LNET_MTU,
        LNET_PIECES, //
    },
    rdma::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        device::{
            Device,
            DeviceAttrs,
            PortState,
            RegionPage, //
        },
        mr_sharing::Regions,
        pd::Pd,
        sg::{
            SgMap,
            SgReserve, //
        }, //
    }, //
};

/// Number of mappings of each kind that are reserved for a shortage of memory, which is the number of transfers that
/// can go on at a time then. All peers of an interface share them, because one mapping takes 16 KiB; a peer holds no
/// more of them than are free.
const RESERVED_MAPS: usize = 8;

/// No queue pair of the device has been made yet: the inline size is the one that the search begins with.
pub(crate) const INLINE_UNKNOWN: u32 = 1 << 16;

pub(crate) struct Hca {
    pub(crate) device: ARef<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) attrs: DeviceAttrs,
    /// Work queues and memory regions, which all addresses on the device share.
    pub(crate) shares: Arc<DeviceShares>,
    pub(crate) port: u32,
    /// Number of pages that one memory region covers.
    pub(crate) mr_pages: u32,
    /// Size of these pages.
    pub(crate) mr_page: RegionPage,
    /// Mappings for a shortage of memory: for answers, and for messages of LNet.
    pub(crate) reserves: (Arc<SgReserve>, Arc<SgReserve>),
    /// Bytes of a send that fit into a work request itself ([`queue_sizes::smaller_inline`]), and [`INLINE_UNKNOWN`]
    /// until a queue pair has been made.
    pub(crate) inline: Atomic<u32>,
    /// Packets of other partitions that the port had received when the NI started to use it.
    bad_pkeys_before: u32,
    /// Number of such packets since then, at the last query.
    pub(crate) bad_pkeys: Atomic<u32>,
    /// Speed of the port in Mb/s, 0 if it is not known.
    mbps: Atomic<u32>,
    /// Active MTU of the port in bytes, 0 if it is not known.
    mtu: Atomic<u32>,
    /// Whether the port was active at the last query.
    pub(crate) active: Atomic<bool>,
}

/// Creates the memory regions of a device, shared as [`crate::policy::mr_quota`] specifies. May sleep.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn regions(device: &Device) -> Result<Arc<Regions>> {
    Regions::new(mr_quota::bound(device.attrs().max_mr), |usage, failed| {
        let need = MrDemand {
            bound: usage.limit,
            there: usage.allocated,
            users: usage.users,
            held: usage.held,
        };
        need.idle_from(failed)
    })
}

/// Returns the number of pages that one memory region covers, and their size.
///
/// # Errors
///
/// The reason for LNet if the device is unusable.
fn region_pages(attrs: &DeviceAttrs) -> Result<(u32, RegionPage), StartError> {
    let lacks = |what| Err(StartError::because(what)(EOPNOTSUPP));
    if !attrs.mem_mgt_extensions {
        return lacks("the RDMA device cannot register memory by work request");
    }
    if !attrs.local_inv {
        return lacks("the RDMA device cannot invalidate memory by work request (hns)");
    }
    let Some(page) = attrs.region_page() else {
        return lacks("the RDMA device cannot register memory in pages as small as the kernel's");
    };
    let needed = LNET_MTU.div_ceil(page.len().max(1));
    let pages = attrs
        .max_fast_reg_page_list_len
        .min(mr_quota::pages(needed));
    if pages < needed {
        return Err(StartError::limited(
            "the RDMA device cannot register 1 MiB at once",
            "pages per memory region",
            (pages, needed),
        ));
    }
    Ok((pages, page))
}

impl Hca {
    /// Creates the object for port `port` of a device. May sleep.
    ///
    /// # Errors
    ///
    /// The reason for LNet if the device is unusable, or memory is missing.
    pub(crate) fn new(
        device: ARef<Device>,
        port: u32,
        shares: Arc<DeviceShares>,
    ) -> Result<Arc<Self>, StartError> {
        let attrs = device.attrs();
        let (mr_pages, mr_page) = region_pages(&attrs)?;
        let pd = Pd::alloc(device.clone())
            .map_err(StartError::because("cannot allocate a protection domain"))?;
        let state = device.port(port);
        let reserve =
            || SgMap::reserve(&device, RESERVED_MAPS, LNET_PIECES).map_err(StartError::no_memory);
        let reserves = (reserve()?, reserve()?);
        // rxe gains nothing from inline data, and that of RHEL 9.6 sends other memory in its place.
        let inline = match device.is_software() {
            true => 0,
            false => queue_sizes::INLINE_MOST,
        };
        let hca = Self {
            device,
            reserves,
            pd,
            shares,
            attrs,
            port,
            mr_pages,
            mr_page,
            inline: Atomic::new(u32::from(inline) | INLINE_UNKNOWN),
            bad_pkeys_before: state.bad_pkeys,
            bad_pkeys: Atomic::new(0),
            mbps: Atomic::new(0),
            mtu: Atomic::new(0),
            active: Atomic::new(false),
        };
        hca.update_port(state);
        Arc::new(hca, GFP_KERNEL).map_err(|e| StartError::no_memory(e.into()))
    }

    /// Returns whether it is port `port` of `device`.
    pub(crate) fn is_at(&self, device: &Device, port: u32) -> bool {
        self.device.same(device) && self.port == port
    }

    /// Returns whether the device has GIDs for addresses of the interface, as over RoCE. The GIDs follow these
    /// addresses.
    pub(crate) fn has_gids(&self) -> bool {
        self.device.is_roce(self.port)
    }

    /// Returns the speed of the port when it was last up, in Mb/s; 0 if it is not known.
    pub(crate) fn mbps(&self) -> u32 {
        self.mbps.load(Relaxed)
    }

    /// Updates the speed, the MTU and the counter from the state of the port. A port that is down may report any speed;
    /// that speed is used only if no better one is known.
    pub(crate) fn update_port(&self, port: PortState) {
        let bad_pkeys = port.bad_pkeys.saturating_sub(self.bad_pkeys_before);
        self.bad_pkeys.store(bad_pkeys, Relaxed);
        self.active.store(port.active, Relaxed);
        // mlx4 reports the smallest MTU while it has no interface.
        if port.active {
            self.mtu.store(port.mtu, Relaxed);
        }
        if port.active || self.mbps.load(Relaxed) == 0 {
            let mbps = queue_sizes::port_mbps(port.speed, port.width);
            self.mbps.store(mbps, Relaxed);
        }
    }

    /// Returns the active MTU of the port in bytes at the last query; `None`: not known. A query takes rtnl with most
    /// providers, which set-up and end of a connection must not wait for.
    pub(crate) fn port_mtu(&self) -> Option<u32> {
        Some(self.mtu.load(Relaxed)).filter(|mtu| *mtu != 0)
    }

    /// Returns the largest depth up to `wanted` that the limits of the device allow.
    pub(crate) fn deepest(&self, wanted: QueueDepth) -> QueueDepth {
        queue_sizes::deepest(
            wanted,
            self.attrs.max_qp_wr,
            mr_quota::bound(self.attrs.max_mr),
        )
    }

    /// Returns the number of gather elements of a work request; `wanted` is the value that the administrator
    /// configured.
    pub(crate) fn gather(&self, wanted: Option<u32>) -> u16 {
        queue_sizes::gather(self.attrs.max_send_sge, wanted)
    }
}
