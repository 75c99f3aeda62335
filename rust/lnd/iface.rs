// SPDX-License-Identifier: GPL-2.0

//! An address that is listened on, with the RDMA device behind it. NIs with the same address (networks
//! `o2ib` and `o2ib1` on one interface) share it, because a port can be bound only once.
//!
//! Process context.

use super::driver::Driver;
use super::listen::Accept;
use crate::lnet::NetNs;
use crate::lnet::NiConfig;
use crate::lnet::StartError;
use crate::proto::params::FRAGS_MAX;
use crate::rdma::cm_event::Addr;
use crate::rdma::device::Device;
use crate::rdma::device::DeviceAttrs;
use crate::rdma::listen::Listener;
use crate::rdma::pd::Pd;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::Arc;

/// Requests that may wait to be judged; 0 is the default of the CM.
const BACKLOG: i32 = 0;

/// The RDMA device as a connection uses it.
pub(crate) struct Hca {
    pub(crate) device: ARef<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) attrs: DeviceAttrs,
    /// Pages that one memory region covers.
    pub(crate) mr_pages: u32,
}

/// An interface and how many NIs use it.
pub(crate) struct Used {
    iface: Arc<Iface>,
    by: usize,
}

/// An address that is listened on.
pub(crate) struct Iface {
    net: NetNs,
    ip: [u8; 4],
    port: u16,
    pub(crate) hca: Arc<Hca>,
    _listener: Listener<Accept>,
}

impl Iface {
    /// The interface with the address of `cfg`: one that is there, or a new one.
    pub(crate) fn get(
        driver: &Driver,
        cfg: &NiConfig<'_>,
        accept: impl FnOnce() -> Result<Arc<Accept>>,
    ) -> Result<Arc<Self>, StartError> {
        let net = cfg.net();
        let (ip, port) = (cfg.ipv4(), cfg.service());
        let mut ifaces = driver.ifaces.lock();
        if let Some(used) = ifaces.iter_mut().find(|u| u.iface.is(&net, ip, port)) {
            used.by = used.by.saturating_add(1);
            return Ok(used.iface.clone());
        }
        let iface = Self::open(net, ip, port, accept)?;
        let used = Used {
            iface: iface.clone(),
            by: 1,
        };
        ifaces
            .push(used, GFP_KERNEL)
            .map_err(|_| StartError::because("no memory")(ENOMEM))?;
        Ok(iface)
    }

    fn open(
        net: NetNs,
        ip: [u8; 4],
        port: u16,
        accept: impl FnOnce() -> Result<Arc<Accept>>,
    ) -> Result<Arc<Self>, StartError> {
        let addr = Addr::v4(u32::from_be_bytes(ip), port);
        let listener = accept()
            .and_then(|accept| Listener::listen(net.as_rdma(), &addr, BACKLOG, accept))
            .map_err(StartError::because(
                "cannot listen (is the port in use? see the parameter \"service\")",
            ))?;
        let device = listener
            .device()
            .ok_or_else(|| StartError::because("the interface has no RDMA device")(ENODEV))?;
        let attrs = device.attrs();
        if !attrs.mem_mgt_extensions {
            return Err(StartError::because(
                "the RDMA device cannot register memory by work request",
            )(EOPNOTSUPP));
        }
        let pd = Pd::alloc(device.clone())
            .map_err(StartError::because("cannot allocate a protection domain"))?;
        let mr_pages = u32::from(FRAGS_MAX).min(attrs.max_fast_reg_page_list_len);
        let hca = Hca {
            device,
            pd,
            attrs,
            mr_pages,
        };
        let no_memory = |_| StartError::because("no memory")(ENOMEM);
        let hca = Arc::new(hca, GFP_KERNEL).map_err(no_memory)?;
        let iface = Self {
            net,
            ip,
            port,
            hca,
            _listener: listener,
        };
        Arc::new(iface, GFP_KERNEL).map_err(no_memory)
    }

    fn is(&self, net: &NetNs, ip: [u8; 4], port: u16) -> bool {
        self.ip == ip && self.port == port && self.net.as_ptr() == net.as_ptr()
    }

    /// Gives one use up; the last one stops listening, and waits for the requests being judged.
    pub(crate) fn put(driver: &Driver, iface: Arc<Self>) {
        let mut ifaces = driver.ifaces.lock();
        let mut unused = None;
        let at = ifaces.iter().position(|u| Arc::ptr_eq(&u.iface, &iface));
        if let Some(used) = at.and_then(|at| ifaces.get_mut(at)) {
            used.by = used.by.saturating_sub(1);
            if used.by == 0 {
                unused = at.and_then(|at| ifaces.remove(at).ok());
            }
        }
        // The listener goes with the last reference, without the mutex.
        drop(ifaces);
        drop(iface);
        drop(unused);
    }
}
