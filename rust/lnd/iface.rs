// SPDX-License-Identifier: GPL-2.0

//! The addresses that are listened on, with the RDMA devices behind them. NIs with the same address
//! (networks `o2ib` and `o2ib1` on one interface) share one, because a port can be bound only once.
//!
//! Process context.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    hca::Hca,
    kind::O2ib,
    listen::{
        Accept,
        Asked,
        Listening, //
    },
    ni::Ni,
    seen::Seen,
    workers::Workers, //
};
use crate::{
    lnet::{
        Lnd,
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
        device::Device,
        listen::Listener,
        pd::Pd, //
    }, //
};

/// Requests that may wait to be judged; 0 is the default of the CM.
const BACKLOG: i32 = 0;

/// The pause before an NI that is just attaching or leaving is asked again to let its device go.
const BETWEEN: Delta = Delta::from_millis(10);

/// An NI that uses an interface.
pub(crate) trait User: Asked + Sized {
    /// The device is being removed: lets everything of it go. False: it had none. May sleep.
    fn detach(self: &Arc<Self>) -> bool;
}

/// What LNet calls an NI of ours.
type Port = <O2ib as Lnd>::Ni;

/// An interface and the NIs that use it.
struct Used {
    iface: Iface,
    by: KVec<Arc<Port>>,
}

/// The interfaces in use.
#[pin_data]
pub(crate) struct Ifaces {
    workers: Arc<Workers>,
    strangers: Arc<Seen>,
    /// Startup and shutdown of NIs only.
    #[pin]
    list: Mutex<KVec<Used>>,
    /// Takes NIs off devices that are being removed.
    #[pin]
    removal: Work<Ifaces>,
}

/// An address that is listened on.
struct Iface {
    net: NetNs,
    ip: [u8; 4],
    port: u16,
    hca: Arc<Hca>,
    accept: Arc<Accept<Ifaces>>,
    _listener: Listener<Accept<Ifaces>>,
}

impl Ifaces {
    /// None yet. `strangers` counts requests that are for none of the NIs. May sleep.
    pub(crate) fn new(workers: Arc<Workers>, strangers: Arc<Seen>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                workers,
                strangers,
                list <- kernel::new_mutex!(KVec::new(), "Ifaces::list"),
                removal <- kernel::new_work!("Ifaces::removal"),
            }),
            GFP_KERNEL,
        )
    }

    /// The device behind the address of `user`, which is listened on from now on, and `user` is listed
    /// as one who uses it. May sleep.
    ///
    /// # Errors
    ///
    /// What LNet is to say if the NI does not start.
    pub(crate) fn enter(self: &Arc<Self>, user: &Arc<Port>) -> Result<Arc<Hca>, StartError> {
        let no_memory = StartError::because("no memory");
        let mut list = self.list.lock();
        if let Some(used) = list.iter_mut().find(|used| used.iface.is_for(user.ni())) {
            if used.by.push(user.clone(), GFP_KERNEL).is_err() {
                return Err(no_memory(ENOMEM));
            }
            used.iface.accept.join(user.ni());
            return Ok(used.iface.hca.clone());
        }
        let iface = self.open(user.ni())?;
        let (hca, accept) = (iface.hca.clone(), iface.accept.clone());
        accept.join(user.ni());
        let mut by = KVec::new();
        let listed = by
            .push(user.clone(), GFP_KERNEL)
            .and_then(|()| list.push(Used { iface, by }, GFP_KERNEL));
        match listed {
            Ok(()) => Ok(hca),
            Err(_) => {
                accept.leave(user.ni());
                Err(no_memory(ENOMEM))
            }
        }
    }

    fn open(self: &Arc<Self>, ni: &Ni) -> Result<Iface, StartError> {
        let no_memory = |_| StartError::because("no memory")(ENOMEM);
        let accept = Accept::new(self.clone(), self.strangers.clone())
            .map_err(StartError::because("no memory"))?;
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
            depth: Atomic::new(0),
            mbps: Atomic::new(0),
        };
        hca.learn(hca.device.port(hca.port));
        Ok(Iface {
            net: ni.net.clone(),
            ip: ni.nid.addr().to_be_bytes(),
            port: ni.service,
            hca: Arc::new(hca, GFP_KERNEL).map_err(no_memory)?,
            accept,
            _listener: listener,
        })
    }

    /// `user` does not use its interface any more. The last user's leaving stops the listening, and
    /// waits for the requests being judged. May sleep.
    pub(crate) fn leave(&self, user: &Arc<Port>) {
        let (mut left, mut unused) = (None, None);
        let mut list = self.list.lock();
        let of = |used: &Used| used.by.iter().position(|u| Arc::ptr_eq(u, user));
        let at = list.iter().position(|used| of(used).is_some());
        if let Some(used) = at.and_then(|at| list.get_mut(at)) {
            used.iface.accept.leave(user.ni());
            left = of(used).and_then(|by| used.by.remove(by).ok());
            if used.by.is_empty() {
                unused = at.and_then(|at| list.remove(at).ok());
            }
        }
        // The listener goes with it, without the mutex.
        drop(list);
        drop(unused);
        drop(left);
    }

    /// Whether an NI on another device than `device` can reach somebody: LNet has that way, too. Those
    /// on the same one lose theirs at the same time, if not in the same moment.
    pub(crate) fn another_open(&self, device: &Device) -> bool {
        let list = self.list.lock();
        let mut others = list
            .iter()
            .filter(|used| !used.iface.hca.device.same(device))
            .flat_map(|used| used.by.iter());
        others.any(|other| other.ni().passage() == Passage::Open)
    }

    /// An NI whose device is being removed.
    fn next_removed(&self) -> Option<Arc<Port>> {
        let list = self.list.lock();
        let used = list.iter().find(|used| used.iface.accept.is_removed())?;
        used.by.first().cloned()
    }
}

impl Iface {
    fn is_for(&self, ni: &Ni) -> bool {
        self.ip == ni.nid.addr().to_be_bytes()
            && self.port == ni.service
            && self.net.as_ptr() == ni.net.as_ptr()
            && !self.accept.is_removed()
    }
}

kernel::impl_has_work! {
    impl HasWork<Self> for Ifaces { self.removal }
}

impl Listening for Ifaces {
    fn device_removal(self: &Arc<Self>) {
        let _ = self.workers.control.enqueue::<Self, 0>(self.clone());
    }
}

impl WorkItem for Ifaces {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Detached, an NI is in the list no more.
        while let Some(user) = this.next_removed() {
            if !user.detach() {
                // It is on its way in or out: between the list and the NI itself.
                fsleep(BETWEEN);
            }
        }
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
