// SPDX-License-Identifier: GPL-2.0

//! The RDMA device as a connection uses it: nothing here changes, but what is known of its room and of
//! the speed of its port.

use kernel::sync::{
    aref::ARef,
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::{
    proto::fit::{
        self,
        Speed, //
    },
    rdma::{
        device::{
            Device,
            DeviceAttrs,
            PortState, //
        },
        pd::Pd, //
    }, //
};

/// The RDMA device as a connection uses it.
pub(crate) struct Hca {
    pub(crate) device: ARef<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) attrs: DeviceAttrs,
    /// Port of the device.
    pub(crate) port: u32,
    /// Pages that one memory region covers.
    pub(crate) mr_pages: u32,
    /// The depth there was room for ([`crate::proto::sizes::DepthMemory`]).
    pub(crate) depth: Atomic<u64>,
    /// Speed of the port in Mb/s, 0 if it is not known.
    pub(crate) mbps: Atomic<u32>,
}

impl Hca {
    /// The speed of the port, as it was when the port was up last.
    pub(crate) fn speed(&self) -> Speed {
        Speed::from_mbps(self.mbps.load(Relaxed))
    }

    /// The port says this of itself. A port that is down may say anything of its speed: that is taken only
    /// if nothing better is known.
    pub(crate) fn learn(&self, port: PortState) {
        if port.active || self.mbps.load(Relaxed) == 0 {
            let speed = Speed::of_port(port.speed, port.width);
            self.mbps.store(speed.mbps(), Relaxed);
        }
    }

    /// Gather elements of a work request on it; `wanted` is what the administrator said.
    pub(crate) fn gather(&self, wanted: Option<u32>) -> u16 {
        fit::gather(self.attrs.max_send_sge, self.speed(), wanted)
    }
}
