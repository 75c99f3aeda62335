// SPDX-License-Identifier: GPL-2.0

//! The RDMA device as a connection uses it: nothing here changes, but what is known of its room and of
//! the speed of its port.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::work_queues::DeviceQueues;
use crate::{
    lnet::StartError,
    policy::{
        inline_size::InlineSearch,
        link_defaults::{
            self,
            LinkSpeed, //
        },
        mr_quota::{
            self,
            MrDemand,
            MrSource, //
        },
        queue_sizes, //
    },
    proto::params::{
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

/// Mappings that are kept for when there is no memory, of each kind: so many transfers at a time go on then. All
/// connections of an interface share them, because one takes 8 KiB.
const RESERVED_MAPS: usize = 8;

/// The RDMA device as a connection uses it.
pub(crate) struct Hca {
    pub(crate) device: ARef<Device>,
    pub(crate) pd: Arc<Pd>,
    /// The memory regions that all interfaces of the device share.
    pub(crate) regions: Arc<Regions>,
    pub(crate) attrs: DeviceAttrs,
    /// Where what is done with it has its turn; all interfaces of the device share them.
    pub(crate) queues: DeviceQueues,
    /// Port of the device.
    pub(crate) port: u32,
    /// Pages that one memory region covers.
    pub(crate) mr_pages: u32,
    /// How large they are.
    pub(crate) mr_page: RegionPage,
    /// For data that leaves when there is no memory: of answers, and of messages of LNet's.
    pub(crate) reserves: (Arc<SgReserve>, Arc<SgReserve>),
    /// The depth there was room for ([`crate::policy::queue_sizes::DepthMemory`]).
    pub(crate) depth: Atomic<u64>,
    /// Bytes of a send that a work request itself carries, as far as known ([`InlineSearch`]).
    pub(crate) inline: Atomic<u32>,
    /// Packets of other partitions that the port had got when the NI came to it.
    bad_pkeys_before: u32,
    bad_pkeys: Atomic<u32>,
    /// Speed of the port in Mb/s, 0 if it is not known.
    pub(crate) mbps: Atomic<u32>,
    /// Active MTU of the port in bytes, 0 if it is not known.
    mtu: Atomic<u32>,
}

/// What a device can do, which is enough.
pub(crate) struct DeviceCaps {
    attrs: DeviceAttrs,
    mr_pages: u32,
    mr_page: RegionPage,
}

impl DeviceCaps {
    /// Asks the device.
    ///
    /// # Errors
    ///
    /// What LNet is to say if it is of no use.
    pub(crate) fn of(device: &Device) -> Result<Self, StartError> {
        let attrs = device.attrs();
        let lacks = |what| Err(StartError::because(what)(EOPNOTSUPP));
        if !attrs.mem_mgt_extensions {
            return lacks("the RDMA device cannot register memory by work request");
        }
        if !attrs.local_inv {
            return lacks("the RDMA device cannot invalidate memory by work request (hns)");
        }
        let Some(mr_page) = attrs.region_page() else {
            return lacks(
                "the RDMA device cannot register memory in pages as small as the kernel's",
            );
        };
        let needed = LNET_MTU.div_ceil(mr_page.len().max(1));
        let mr_pages = attrs
            .max_fast_reg_page_list_len
            .min(mr_quota::pages(needed));
        if mr_pages < needed {
            return Err(StartError::limited(
                "the RDMA device cannot register 1 MiB at once",
                "pages per memory region",
                (mr_pages, needed),
            ));
        }
        Ok(Self {
            attrs,
            mr_pages,
            mr_page,
        })
    }

    /// The memory regions that we may have of it, shared as [`crate::policy::mr_quota`] says. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn regions(&self) -> Result<Arc<Regions>> {
        Regions::new(mr_quota::bound(self.attrs.max_mr), |usage, failed| {
            let need = MrDemand {
                bound: usage.limit,
                there: usage.allocated,
                users: usage.users,
                held: usage.held,
            };
            let source = if failed { need.idle() } else { need.source() };
            match source {
                MrSource::New => None,
                MrSource::Idle(least) => Some(least),
            }
        })
    }
}

impl Hca {
    /// Port `port` of a device. All interfaces of the device share `regions` and `queues`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        (device, port): (ARef<Device>, u32),
        able: DeviceCaps,
        pd: Arc<Pd>,
        regions: Arc<Regions>,
        queues: DeviceQueues,
    ) -> Result<Self> {
        let state = device.port(port);
        let reserve = || SgMap::reserve(&device, RESERVED_MAPS, LNET_PIECES);
        let reserves = (reserve()?, reserve()?);
        let hca = Self {
            device,
            reserves,
            pd,
            regions,
            queues,
            attrs: able.attrs,
            port,
            mr_pages: able.mr_pages,
            mr_page: able.mr_page,
            depth: Atomic::new(0),
            inline: Atomic::new(InlineSearch::MOST.into()),
            bad_pkeys_before: state.bad_pkeys,
            bad_pkeys: Atomic::new(0),
            mbps: Atomic::new(0),
            mtu: Atomic::new(0),
        };
        hca.learn(state);
        Ok(hca)
    }

    /// Whether the device has GIDs for addresses of the interface, as over RoCE. They go and come with these.
    pub(crate) fn has_gids(&self) -> bool {
        self.device.is_roce(self.port)
    }

    /// Returns whether the port is one of InfiniBand or OPA.
    pub(crate) fn is_ib(&self) -> bool {
        self.device.is_ib(self.port)
    }

    /// The speed of the port, as it was when the port was up last.
    pub(crate) fn speed(&self) -> LinkSpeed {
        LinkSpeed::from_mbps(self.mbps.load(Relaxed))
    }

    /// The port says this of itself. A port that is down may say anything of its speed: that is taken only
    /// if nothing better is known.
    pub(crate) fn learn(&self, port: PortState) {
        let bad_pkeys = port.bad_pkeys.saturating_sub(self.bad_pkeys_before);
        self.bad_pkeys.store(bad_pkeys, Relaxed);
        self.mtu.store(port.mtu, Relaxed);
        if port.active || self.mbps.load(Relaxed) == 0 {
            let speed = LinkSpeed::of_port(port.speed, port.width);
            self.mbps.store(speed.mbps(), Relaxed);
        }
    }

    /// Returns the active MTU of the port in bytes, as the port said last; `None`: it is not known.
    pub(crate) fn mtu(&self) -> Option<u32> {
        Some(self.mtu.load(Relaxed)).filter(|mtu| *mtu != 0)
    }

    /// Packets of other partitions that the port has got since the NI came to it, as it said last.
    pub(crate) fn bad_pkeys(&self) -> u32 {
        self.bad_pkeys.load(Relaxed)
    }

    /// The greatest depth up to `wanted` that it has room for, as far as its limits tell.
    pub(crate) fn deepest(&self, wanted: QueueDepth) -> QueueDepth {
        queue_sizes::deepest(
            wanted,
            self.attrs.max_qp_wr,
            mr_quota::bound(self.attrs.max_mr),
        )
    }

    /// Gather elements of a work request on it; `wanted` is what the administrator said.
    pub(crate) fn gather(&self, wanted: Option<u32>) -> u16 {
        link_defaults::gather(self.attrs.max_send_sge, wanted)
    }
}
