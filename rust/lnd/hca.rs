// SPDX-License-Identifier: GPL-2.0

//! The RDMA device as a connection uses it: nothing here changes, but what is known of its room.

use kernel::sync::{
    aref::ARef,
    atomic::Atomic,
    Arc, //
};

use crate::rdma::{
    device::{
        Device,
        DeviceAttrs, //
    },
    pd::Pd, //
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
}
