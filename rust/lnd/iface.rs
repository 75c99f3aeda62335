// SPDX-License-Identifier: GPL-2.0

//! An address that is listened on, with the RDMA device behind it. NIs with the same address
//! (networks `o2ib` and `o2ib1` on one interface) share it, because a port can be bound only once.
//!
//! Process context.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    driver::Driver,
    listen::Accept,
    ni::Ni, //
};
use crate::{
    lnet::{
        NetNs,
        StartError, //
    },
    proto::{
        params::{
            FRAGS_MAX,
            LNET_MTU, //
        },
        way::Passage, //
    },
    rdma::{
        cm_event::Addr,
        device::{
            Device,
            DeviceAttrs, //
        },
        listen::Listener,
        pd::Pd, //
    }, //
};

/// Requests that may wait to be judged; 0 is the default of the CM.
const BACKLOG: i32 = 0;

/// The RDMA device as a connection uses it.
pub(crate) struct Hca {
    pub(crate) device: ARef<Device>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) attrs: DeviceAttrs,
    /// Port of the device.
    pub(crate) port: u32,
    /// Pages that one memory region covers.
    pub(crate) mr_pages: u32,
}

/// An interface and the NIs that use it.
pub(crate) struct Used {
    iface: Arc<Iface>,
    by: KVec<Arc<Ni>>,
}

/// An address that is listened on.
pub(crate) struct Iface {
    net: NetNs,
    ip: [u8; 4],
    port: u16,
    pub(crate) hca: Arc<Hca>,
    accept: Arc<Accept>,
    _listener: Listener<Accept>,
}

impl Iface {
    /// The interface of `ni`: one that is there, or a new one. The NI is listed as its user.
    pub(crate) fn get(ni: &Arc<Ni>) -> Result<Arc<Self>, StartError> {
        let no_memory = StartError::because("no memory");
        let mut ifaces = ni.driver.ifaces.lock();
        if let Some(used) = ifaces.iter_mut().find(|used| used.iface.is_for(ni)) {
            if used.by.push(ni.clone(), GFP_KERNEL).is_err() {
                return Err(no_memory(ENOMEM));
            }
            used.iface.accept.join(ni);
            return Ok(used.iface.clone());
        }
        let iface = Self::open(ni)?;
        iface.accept.join(ni);
        let mut by = KVec::new();
        let listed = by.push(ni.clone(), GFP_KERNEL).and_then(|()| {
            let iface = iface.clone();
            ifaces.push(Used { iface, by }, GFP_KERNEL)
        });
        match listed {
            Ok(()) => Ok(iface),
            Err(_) => {
                iface.accept.leave(ni);
                Err(no_memory(ENOMEM))
            }
        }
    }

    fn open(ni: &Ni) -> Result<Arc<Self>, StartError> {
        let no_memory = |_| StartError::because("no memory")(ENOMEM);
        let accept = Accept::new(ni.driver.clone()).map_err(StartError::because("no memory"))?;
        let addr = Addr::v4(ni.nid.addr(), ni.service);
        let listener = Listener::listen(ni.net.as_rdma(), &addr, BACKLOG, accept.clone())
            .map_err(|e| StartError::because(cannot_listen(e))(e))?;
        let device = listener
            .device()
            .ok_or_else(|| StartError::because("the interface has no RDMA device")(ENODEV))?;
        let attrs = device.attrs();
        if !attrs.mem_mgt_extensions {
            return Err(StartError::because(
                "the RDMA device cannot register memory by work request",
            )(EOPNOTSUPP));
        }
        let mr_pages = u32::from(FRAGS_MAX).min(attrs.max_fast_reg_page_list_len);
        // All that LNet moves at a time. What begins inside of a page may need one page more; if there
        // is none, it is copied.
        if u64::from(mr_pages).saturating_mul(PAGE_SIZE as u64) < u64::from(LNET_MTU) {
            return Err(StartError::because(
                "the RDMA device cannot register 1 MiB at once",
            )(EOPNOTSUPP));
        }
        let pd = Pd::alloc(device.clone())
            .map_err(StartError::because("cannot allocate a protection domain"))?;
        let hca = Hca {
            device,
            pd,
            attrs,
            port: listener.port(),
            mr_pages,
        };
        let iface = Self {
            net: ni.net.clone(),
            ip: ni.nid.addr().to_be_bytes(),
            port: ni.service,
            hca: Arc::new(hca, GFP_KERNEL).map_err(no_memory)?,
            accept,
            _listener: listener,
        };
        Arc::new(iface, GFP_KERNEL).map_err(no_memory)
    }

    fn is_for(&self, ni: &Ni) -> bool {
        self.ip == ni.nid.addr().to_be_bytes()
            && self.port == ni.service
            && self.net.as_ptr() == ni.net.as_ptr()
            && !self.accept.is_removed()
    }

    /// `ni` does not use the interface any more. The last user's leaving stops the listening, and
    /// waits for the requests being judged.
    pub(crate) fn put(ni: &Arc<Ni>, iface: Arc<Self>) {
        iface.accept.leave(ni);
        let (mut user, mut unused) = (None, None);
        let mut ifaces = ni.driver.ifaces.lock();
        let at = ifaces.iter().position(|u| Arc::ptr_eq(&u.iface, &iface));
        if let Some(used) = at.and_then(|at| ifaces.get_mut(at)) {
            let by = used.by.iter().position(|user| Arc::ptr_eq(user, ni));
            user = by.and_then(|by| used.by.remove(by).ok());
            if used.by.is_empty() {
                unused = at.and_then(|at| ifaces.remove(at).ok());
            }
        }
        // The listener goes with the last reference, without the mutex.
        drop(ifaces);
        drop(iface);
        drop(unused);
        drop(user);
    }

    /// Whether an NI on another device than that of `ni` can reach somebody: LNet has that way, too.
    /// Those on the same one lose theirs at the same time, if not in the same moment.
    pub(crate) fn another_open(ni: &Arc<Ni>, device: &Device) -> bool {
        let ifaces = ni.driver.ifaces.lock();
        let mut others = ifaces
            .iter()
            .filter(|used| !used.iface.hca.device.same(device))
            .flat_map(|used| used.by.iter());
        others.any(|other| other.passage() == Passage::Open)
    }

    /// An NI whose device is being removed.
    pub(crate) fn next_removed(driver: &Driver) -> Option<Arc<Ni>> {
        let ifaces = driver.ifaces.lock();
        let used = ifaces.iter().find(|used| used.iface.accept.is_removed())?;
        used.by.first().cloned()
    }
}

/// What keeps it from listening, for the log.
fn cannot_listen(e: Error) -> &'static str {
    if e == ENODEV {
        "no RDMA device has this address, see \"rdma link\""
    } else {
        "cannot listen (is the port in use? see the parameter \"service\")"
    }
}
