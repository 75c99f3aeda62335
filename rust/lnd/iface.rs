// SPDX-License-Identifier: GPL-2.0

//! The addresses that are listened on, with the RDMA devices behind them. NIs with the same address
//! (networks `o2ib` and `o2ib1` on one interface) share one, because a port can be bound only once.
//!
//! An address may move to another device. Then the interface gets another listener and another protection domain,
//! and all of its NIs follow at once; see [`Ifaces::follow`].
//!
//! Process context.
//!
//! # Invariants
//!
//! An NI that is listed as a user has the device of the interface ([`User::settle`]); one that is not has none. Both
//! change under the mutex of the list.

use kernel::{
    prelude::*,
    sync::{
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
    hca::{
        Able,
        Hca, //
    },
    kind::O2ib,
    listen::{
        cannot_listen,
        Accept,
        Asked,
        Listening, //
    },
    log,
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
        home::Found,
        way::Passage, //
    },
    rdma::{
        cm_event::Addr,
        listen::{
            device_of,
            Listener, //
        },
        pd::Pd,
        work::NofsScope, //
    }, //
};

/// Requests that may wait to be judged; 0 is the default of the CM.
const BACKLOG: i32 = 0;

/// The pause before an NI that is just attaching or leaving is asked again to let its device go.
const BETWEEN: Delta = Delta::from_millis(10);

/// An NI that uses an interface.
pub(crate) trait User: Asked + Sized {
    /// It has this device from now on. May sleep.
    ///
    /// # Errors
    ///
    /// What LNet is to say if the NI does not start; then it has the device that it had, of which it hears nothing more.
    fn settle(self: &Arc<Self>, hca: &Arc<Hca>) -> Result<(), StartError>;

    /// It is listed, and nothing can fail any more: from now on it looks after its device. Any context.
    fn entered(self: &Arc<Self>);

    /// It has no device any more. May sleep.
    fn unsettle(self: &Arc<Self>);

    /// It has another device than `old` now: what is on that one ends, and goes on here. May sleep.
    fn moved(self: &Arc<Self>, old: &Hca);

    /// Its address may be on another device. Any context.
    fn doubt_home(self: &Arc<Self>);

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
    /// Not taken on the path of messages.
    #[pin]
    list: Mutex<KVec<Used>>,
    /// Takes NIs off devices that are being removed, and has them look whether they are on the right one.
    #[pin]
    stir: Work<Ifaces>,
}

/// An address that is listened on.
struct Iface {
    net: NetNs,
    ip: [u8; 4],
    port: u16,
    hca: Arc<Hca>,
    accept: Arc<Accept<Ifaces>>,
    /// None only while another one is made.
    listener: Option<Listener<Accept<Ifaces>>>,
}

impl Ifaces {
    /// None yet. `strangers` counts requests that are for none of the NIs. May sleep.
    pub(crate) fn new(workers: Arc<Workers>, strangers: Arc<Seen>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                workers,
                strangers,
                list <- kernel::new_mutex!(KVec::new(), "Ifaces::list"),
                stir <- kernel::new_work!("Ifaces::stir"),
            }),
            GFP_KERNEL,
        )
    }

    /// `user` gets the device behind its address, which is listened on from now on, and is listed as one who
    /// uses it. May sleep.
    ///
    /// # Errors
    ///
    /// What LNet is to say if the NI does not start.
    pub(crate) fn enter(self: &Arc<Self>, user: &Arc<Port>) -> Result<(), StartError> {
        let no_memory = |_| StartError::because("no memory")(ENOMEM);
        let mut list = self.list.lock();
        if let Some(used) = list.iter_mut().find(|used| used.iface.is_for(user.ni())) {
            used.by.reserve(1, GFP_KERNEL).map_err(no_memory)?;
            used.iface.accept_for(user)?;
            let _ = used.by.push_within_capacity(user.clone());
            user.entered();
            return Ok(());
        }
        list.reserve(1, GFP_KERNEL).map_err(no_memory)?;
        let iface = self.open(user.ni(), &list)?;
        let mut by = KVec::new();
        by.push(user.clone(), GFP_KERNEL).map_err(no_memory)?;
        iface.accept_for(user)?;
        if let Err(e) = iface.listen() {
            user.unsettle();
            iface.accept.leave(user.ni());
            return Err(e);
        }
        let _ = list.push_within_capacity(Used { iface, by });
        user.entered();
        Ok(())
    }

    /// Binds the address of `ni`, and makes what connections need on the device that has it, but for what others in the
    /// list have made. Nothing is listened for yet.
    fn open(self: &Arc<Self>, ni: &Ni, list: &[Used]) -> Result<Iface, StartError> {
        let no_memory = || StartError::because("no memory")(ENOMEM);
        let accept = Accept::new(self.clone(), self.strangers.clone())
            .map_err(StartError::because("no memory"))?;
        let addr = Addr::v4(ni.nid.addr(), ni.service);
        let listener = Listener::bind(ni.net.as_rdma(), &addr, accept.clone())
            .map_err(|e| StartError::because(cannot_listen(e))(e))?;
        let device = listener
            .device()
            .ok_or_else(|| StartError::because("the interface has no RDMA device")(ENODEV))?;
        let able = Able::of(&device)?;
        let pd = Pd::alloc(device.clone())
            .map_err(StartError::because("cannot allocate a protection domain"))?;
        let neighbour = list.iter().find(|used| used.iface.hca.device.same(&device));
        let regions = match neighbour {
            Some(used) => used.iface.hca.regions.clone(),
            None => able.regions().map_err(|_| no_memory())?,
        };
        let queues = match neighbour {
            Some(used) => used.iface.hca.queues.clone(),
            None => {
                let waits = device.is_iwarp(listener.port());
                self.workers.for_device(waits).map_err(|_| no_memory())?
            }
        };
        let hca = Hca::new((device, listener.port()), able, pd, regions, queues)
            .map_err(|_| no_memory())?;
        Ok(Iface {
            net: ni.net.clone(),
            ip: ni.nid.addr().to_be_bytes(),
            port: ni.service,
            hca: Arc::new(hca, GFP_KERNEL).map_err(|_| no_memory())?,
            accept,
            listener: Some(listener),
        })
    }

    /// `user` does not use its interface any more, and has no device. The last user's leaving stops the
    /// listening, and waits for the requests being judged. False: it used none. May sleep.
    pub(crate) fn leave(&self, user: &Arc<Port>) -> bool {
        let (mut left, mut unused) = (None, None);
        let mut list = self.list.lock();
        let at = list.iter().position(|used| used.place_of(user).is_some());
        if let Some(used) = at.and_then(|at| list.get_mut(at)) {
            used.iface.accept.leave(user.ni());
            user.unsettle();
            left = used.place_of(user).and_then(|by| used.by.remove(by).ok());
            if used.by.is_empty() {
                unused = at.and_then(|at| list.remove(at).ok());
            }
        }
        // The listener goes with it, without the mutex.
        drop(list);
        drop(unused);
        left.is_some()
    }

    /// Where the address of `user` is now. May sleep.
    pub(crate) fn find(user: &Port) -> Found {
        let ni = user.ni();
        let Ok(hca) = ni.hca() else {
            return Found::Nowhere;
        };
        match device_of(ni.net.as_rdma(), &Addr::v4(ni.nid.addr(), 0)) {
            Ok((device, port)) if device.same(&hca.device) && port == hca.port => Found::Here,
            Ok(_) => Found::Elsewhere,
            Err(_) => Found::Nowhere,
        }
    }

    /// The address of `user` is on another device: all that use the interface follow it there. May sleep.
    ///
    /// The new device is bound first, then the NIs get it, then it is listened on: a request that comes finds
    /// them there. If it is no good they have none, and look for one as after a removal.
    pub(crate) fn follow(self: &Arc<Self>, user: &Arc<Port>) {
        let mut list = self.list.lock();
        let Some(at) = list.iter().position(|used| used.place_of(user).is_some()) else {
            return;
        };
        if Self::find(user) != Found::Elsewhere {
            // Another one of them was here first.
            return;
        }
        // The port can be bound only once.
        if let Some(used) = list.get_mut(at) {
            used.iface.listener = None;
        }
        let opened = self.open(user.ni(), &list);
        let Some(used) = list.get_mut(at) else {
            return;
        };
        let moved = opened.and_then(|new| {
            let old = core::mem::replace(&mut used.iface, new);
            for user in used.by.iter() {
                used.iface.accept_for(user)?;
            }
            used.iface.listen()?;
            Ok(old)
        });
        match moved {
            Ok(old) => used.by.iter().for_each(|user| user.moved(&old.hca)),
            Err(e) => {
                log::cannot_follow(user.ni().nid, e.what, e.error);
                used.iface.accept.give_up();
                self.stirred();
            }
        }
    }

    /// Whether another NI of the net of `ni`, on another device than `hca` or on another port of it, can reach somebody: LNet
    /// has that way, too. Those on the same port lose theirs at the same time, if not in the same moment. An NI of another
    /// net may lead to other nodes. `None`: the NI has no device, and is not in the list.
    pub(crate) fn another_open(&self, ni: &Ni, hca: Option<&Hca>) -> bool {
        let same = |used: &Used, hca: &Hca| {
            used.iface.hca.device.same(&hca.device) && used.iface.hca.port == hca.port
        };
        let list = self.list.lock();
        let mut others = list
            .iter()
            .filter(|used| !hca.is_some_and(|hca| same(used, hca)))
            .flat_map(|used| used.by.iter().map(|other| other.ni()));
        others.any(|other| other.nid.net() == ni.nid.net() && other.passage() == Passage::Open)
    }

    /// Those whose interface has another hardware address look whether they are on the right device.
    fn look_for_homes(&self) {
        let list = self.list.lock();
        let changed = list
            .iter()
            .filter(|used| used.iface.accept.take_readdressed());
        for user in changed.flat_map(|used| used.by.iter()) {
            user.doubt_home();
        }
    }

    /// An NI whose device is being removed.
    fn next_removed(&self) -> Option<Arc<Port>> {
        let list = self.list.lock();
        let used = list.iter().find(|used| used.iface.accept.is_removed())?;
        used.by.first().cloned()
    }
}

impl Used {
    fn place_of(&self, user: &Arc<Port>) -> Option<usize> {
        self.by.iter().position(|u| Arc::ptr_eq(u, user))
    }
}

impl Iface {
    /// Lets requests come.
    fn listen(&self) -> Result<(), StartError> {
        let listening = self
            .listener
            .as_ref()
            .ok_or(EINVAL)
            .and_then(|l| l.start(BACKLOG));
        listening.map_err(|e| StartError::because(cannot_listen(e))(e))
    }

    /// `user` gets the device, and is found by who asks for a connection.
    fn accept_for(&self, user: &Arc<Port>) -> Result<(), StartError> {
        let joined = self.accept.join(user.ni());
        joined.map_err(StartError::because("no memory"))?;
        user.settle(&self.hca)
            .inspect_err(|_| self.accept.leave(user.ni()))
    }

    fn is_for(&self, ni: &Ni) -> bool {
        self.ip == ni.nid.addr().to_be_bytes()
            && self.port == ni.service
            && self.net.as_ptr() == ni.net.as_ptr()
            && !self.accept.is_removed()
    }
}

kernel::impl_has_work! {
    impl HasWork<Self> for Ifaces { self.stir }
}

impl Listening for Ifaces {
    fn stirred(self: &Arc<Self>) {
        let _ = self.workers.control.enqueue::<Self, 0>(self.clone());
    }
}

impl WorkItem for Ifaces {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        this.look_for_homes();
        // Detached, an NI is in the list no more.
        while let Some(user) = this.next_removed() {
            if !user.detach() {
                // It is on its way in or out: between the list and the NI itself.
                fsleep(BETWEEN);
            }
        }
    }
}
