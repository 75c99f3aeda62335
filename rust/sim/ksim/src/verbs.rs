// SPDX-License-Identifier: GPL-2.0

//! RDMA device: protection domains, regions, queue pairs, and their accesses to memory.
//!
//! A queue pair carries out work requests in order, some time after they were posted; their
//! completions come later still. In between the other side already has the message.

use std::{
    collections::VecDeque,
    ffi::CString, //
};

use crate::{
    byzantine,
    cm::Id,
    cq::{
        self,
        Cq, //
    },
    decl::{
        k::*,
        r::*, //
    },
    dma,
    lock,
    mem,
    rng::Rng,
    sched::{
        self,
        Kind,
        MS,
        SEC,
        US, //
    },
    true_counts,
    world::{
        self,
        say,
        telling,
        violation,
        w,
        Fault, //
    }, //
};

/// Device (`struct ib_device`).
pub struct Dev {
    /// Node of the device.
    pub node: usize,
    /// Index among the devices of the node.
    pub index: usize,
    name: CString,
    /// Address of its interface, host order.
    pub ip: u32,
    /// Counted references.
    pub refs: usize,
    /// The device can be found and referenced.
    pub registered: bool,
    /// The device was unplugged, and the driver has released it.
    pub gone: bool,
    /// Since when the driver knows that the address is about to move away.
    pub moves: Option<u64>,
    /// Since when another device has the address of its interface.
    pub moved: Option<u64>,
    /// The link carries messages.
    pub up: bool,
    /// How often the link came up: each time with another speed.
    pub ups: usize,
    /// IPoIB has a carrier. Used for InfiniBand only.
    pub carrier: bool,
    /// LID that the subnet manager gave its port. Used for InfiniBand only.
    pub lid: u32,
    /// Active MTU in bytes.
    pub mtu: u32,
    /// Limits of the device.
    pub attrs: ro2ib_device_attrs,
    /// A provider like rxe: completions in work items, fenced registrations.
    pub software: bool,
    /// The device is iWARP: the passive side must not send first.
    pub tcp: bool,
    /// Its completion queues, destroyed or not.
    pub cqs: Vec<*mut Cq>,
    /// Number of live protection domains.
    pub pds: usize,
    /// Live regions.
    pub mrs: Vec<*mut Mr>,
    /// Number of live queue pairs.
    pub qps: usize,
    /// Ids bound to the device.
    pub ids: Vec<*mut Id>,
    /// The ids that listen, or did.
    pub listeners: Vec<*mut Id>,
    handlers: Vec<*mut ib_event_handler>,
    next_key: u32,
    /// Identity of the adapter (its GUID). A device that comes after a removal or a loss of power is
    /// the same adapter.
    pub guid: u64,
    /// Numbers that its queue pairs, and those of earlier devices of the adapter, have had.
    numbers: Vec<u32>,
    /// Number of those that were handed out since the device exists, in order: each device begins
    /// with the first.
    begun: usize,
    /// Numbers of destroyed queue pairs, and the time from which each may be used again.
    free: VecDeque<(u32, u64)>,
    /// Its node lost its power: the checks of leaks skip the device.
    pub lost: bool,
}

impl Dev {
    /// Returns whether no event is under way for the device, and its link is up.
    pub fn is_calm(&self) -> bool {
        self.registered && self.up && self.moves.is_none() && self.moved.is_none()
    }

    /// Creates a device, registered and with its link up.
    pub fn new(
        node: usize,
        index: usize,
        ip: u32,
        attrs: ro2ib_device_attrs,
        (software, tcp): (bool, bool),
    ) -> *mut Self {
        Box::into_raw(Box::new(Self {
            node,
            index,
            name: CString::new(format!("sim{node}{index}")).expect("no NUL"),
            ip,
            refs: 0,
            registered: true,
            gone: false,
            moves: None,
            moved: None,
            up: true,
            ups: 0,
            carrier: true,
            lid: 1,
            mtu: 4096,
            attrs,
            software,
            tcp,
            cqs: Vec::new(),
            pds: 0,
            mrs: Vec::new(),
            qps: 0,
            ids: Vec::new(),
            listeners: Vec::new(),
            handlers: Vec::new(),
            next_key: 0x10,
            guid: (node as u64) << 32 | index as u64,
            numbers: Vec::new(),
            begun: 0,
            free: VecDeque::new(),
            lost: false,
        }))
    }

    /// Makes the device the successor of another one of the same adapter.
    pub fn succeed(&mut self, old: &Self) {
        self.guid = old.guid;
        self.numbers.clone_from(&old.numbers);
    }

    /// Returns the number of a new queue pair. Numbers of live queue pairs are unique in the world.
    fn number(&mut self) -> u32 {
        let world = w();
        if self
            .free
            .front()
            .is_some_and(|free| free.1 <= world.sched.now)
        {
            if let Some((number, _)) = self.free.pop_front() {
                world.reused = true;
                return number;
            }
        }
        let again = self.numbers.get(self.begun).copied();
        self.begun += 1;
        if let Some(number) = again {
            world.reused = true;
            return number;
        }
        world.next_qpn += 1;
        self.numbers.push(world.next_qpn);
        world.next_qpn
    }

    /// Returns a description of its objects that are left; empty if there are none.
    pub fn left(&self) -> String {
        // SAFETY: Queues stay until the world ends.
        let cqs = self
            .cqs
            .iter()
            .filter(|cq| unsafe { !(***cq).gone && !(***cq).abandoned });
        let mut s = String::new();
        if self.lost {
            return s;
        }
        let (mut kept_qps, mut kept_pds) = (0, Vec::new());
        for qp in kept(self) {
            kept_qps += 1;
            kept_pds.push(qp.pd as usize);
        }
        for mr in kept_mrs(self) {
            kept_pds.push(mr.pd as usize);
        }
        kept_pds.sort_unstable();
        kept_pds.dedup();
        for (n, what) in [
            (self.refs, "references"),
            (self.pds - kept_pds.len(), "protection domains"),
            (self.mrs.len() - kept_mrs(self).count(), "regions"),
            (self.qps - kept_qps, "queue pairs"),
            (
                self.ids
                    .iter()
                    .filter(|id| crate::cm::is_drivers(**id))
                    .count(),
                "ids",
            ),
            (self.handlers.len(), "event handlers"),
            (cqs.count(), "completion queues"),
            (dma::left(self).abs_diff(kept_buffers(self)), "mappings"),
        ] {
            if n != 0 {
                s += &format!("{n} {what}, ");
            }
        }
        s
    }
}

/// Delivers an event of a device or its port to all handlers.
pub fn dispatch(dev: *mut Dev, event: u32) {
    // SAFETY: Devices stay until the world ends.
    let node = unsafe { (*dev).node };
    sched::spawn(node, Kind::Process, "ib_event", move || {
        // Under a lock of the core that unregistering takes, too.
        let lock = &raw mut w().nodes[node].event_lock;
        lock::take(lock, false, false);
        // SAFETY: As above; handlers stay until they are unregistered, under the lock.
        unsafe {
            for i in 0..(*dev).handlers.len() {
                let Some(h) = (*dev).handlers.get(i).copied() else {
                    break;
                };
                let mut ev = ib_event {
                    device: dev.cast(),
                    event,
                    ..Default::default()
                };
                ev.element.port_num = 1;
                if let Some(f) = (*h).handler {
                    world::enter();
                    f(h, &raw mut ev);
                    world::leave();
                }
            }
        }
        lock::give(lock);
    });
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_register_event_handler(
    h: *mut ib_event_handler,
    dev: *mut ib_device,
    f: Option<unsafe extern "C" fn(*mut ib_event_handler, *mut ib_event)>,
) {
    let lock = &raw mut w().nodes[sched::node()].event_lock;
    lock::take(lock, false, false);
    // SAFETY: By the contract of this function.
    unsafe {
        h.write(ib_event_handler {
            device: dev,
            handler: f,
            list: list_head::default(),
        });
        (*dev.cast::<Dev>()).handlers.push(h);
    }
    lock::give(lock);
}
#[no_mangle]
pub unsafe extern "C" fn ib_unregister_event_handler(h: *mut ib_event_handler) {
    let lock = &raw mut w().nodes[sched::node()].event_lock;
    lock::take(lock, false, false);
    // SAFETY: By the contract of this function.
    unsafe { (*(*h).device.cast::<Dev>()).handlers.retain(|x| *x != h) };
    lock::give(lock);
}
/// Returns at once: no address is lost here.
#[no_mangle]
pub unsafe extern "C" fn rdma_roce_rescan_device(_dev: *mut ib_device) {
    lock::might_sleep("rtnl_lock");
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_try_get(dev: *mut ib_device) -> bool {
    let dev: *mut Dev = dev.cast();
    // SAFETY: Devices stay until the world ends.
    unsafe {
        if !(*dev).registered && (*dev).refs == 0 {
            return false;
        }
        (*dev).refs += 1;
    }
    true
}
#[no_mangle]
pub unsafe extern "C" fn ib_device_put(dev: *mut ib_device) {
    let dev: *mut Dev = dev.cast();
    // SAFETY: As above.
    unsafe {
        if (*dev).refs == 0 {
            violation("a device is put once too often");
        }
        (*dev).refs -= 1;
    }
    sched::wake_all(dev as usize);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_attrs(dev: *mut ib_device, out: *mut ro2ib_device_attrs) {
    // SAFETY: By the contract of this function.
    unsafe { *out = (*dev.cast::<Dev>()).attrs };
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_is_iwarp(dev: *mut ib_device, _port: u32) -> bool {
    // SAFETY: By the contract of this function.
    unsafe { (*dev.cast::<Dev>()).tcp }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_is_roce(dev: *mut ib_device, _port: u32) -> bool {
    // SAFETY: By the contract of this function.
    unsafe { !(*dev.cast::<Dev>()).tcp && !w().plan.ib }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_is_ib(_dev: *mut ib_device, _port: u32) -> bool {
    w().plan.ib
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_is_software(dev: *mut ib_device) -> bool {
    // SAFETY: By the contract of this function.
    unsafe { (*dev.cast::<Dev>()).software }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_uses_irq(dev: *mut ib_device) -> bool {
    // SAFETY: By the contract of this function.
    unsafe { !(*dev.cast::<Dev>()).software }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_replays_local_wrs(dev: *mut ib_device) -> bool {
    // SAFETY: By the contract of this function.
    unsafe { (*dev.cast::<Dev>()).software }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_reads_after_completion(_dev: *mut ib_device) -> bool {
    false
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_port_query(dev: *mut ib_device, _port: u32, out: *mut ro2ib_port) {
    lock::might_sleep("ib_query_port");
    command(dev.cast());
    // SAFETY: By the contract of this function.
    unsafe {
        let dev = &*dev.cast::<Dev>();
        *out = ro2ib_port {
            active: dev.up,
            // As mlx4 reports a port that is down, and mlx5 its LID.
            mtu: if dev.up { dev.mtu } else { 256 },
            lid: match (w().plan.ib, dev.up) {
                (false, _) => 0,
                (true, true) => dev.lid,
                (true, false) => 0xffff,
            },
            speed: SPEEDS[dev.ups % 3].0,
            width: 2,
            bad_pkeys: 0,
        };
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_gsi_failed(_dev: *mut ib_device, _port: u32) -> bool {
    lock::might_sleep("ib_register_mad_agent");
    false
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_event_port(ev: *const ib_event) -> u32 {
    // SAFETY: By the contract of this function.
    unsafe { (*ev).element.port_num }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_dma(dev: *mut ib_device) -> *mut device {
    dev.cast()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_device_name(dev: *mut ib_device, buf: *mut u8, len: usize) {
    // SAFETY: By the contract of this function.
    unsafe {
        let name = (*dev.cast::<Dev>()).name.as_bytes_with_nul();
        assert!(name.len() <= len, "a short name");
        core::ptr::copy_nonoverlapping(name.as_ptr(), buf, name.len());
    }
}

/// Duration of a command of a device that hangs.
pub const HANGS: u64 = 60 * SEC;

/// Waits as long as a command of the device takes; the device may hang.
pub fn command(dev: *mut Dev) {
    // SAFETY: Devices stay until the world ends.
    let (ip, index) = unsafe { ((*dev).ip, (*dev).index) };
    let hangs =
        |(there, which): &(u32, core::ops::Range<usize>)| *there == ip && which.contains(&index);
    if w().hangs.as_ref().is_some_and(hangs) {
        w().hung += 1;
        sched::sleep(HANGS);
        w().hung -= 1;
    }
}

/// Protection domain.
pub struct Pd {
    dev: *mut Dev,
    users: usize,
    /// Largest inline size that a queue pair asked for and got.
    inline: u32,
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_alloc_pd(dev: *mut ib_device) -> *mut ib_pd {
    lock::might_sleep("ib_alloc_pd");
    mem::allocates("ib_alloc_pd");
    if world::fails(Fault::Verbs) {
        return (-(ENOMEM as isize)) as *mut ib_pd;
    }
    let dev: *mut Dev = dev.cast();
    command(dev);
    // SAFETY: Devices stay until the world ends.
    unsafe { (*dev).pds += 1 };
    Box::into_raw(Box::new(Pd {
        dev,
        users: 0,
        inline: 0,
    }))
    .cast()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dealloc_pd(pd: *mut ib_pd) {
    // SAFETY: By the contract of this function.
    let pd = unsafe { Box::from_raw(pd.cast::<Pd>()) };
    if pd.users != 0 {
        violation("a protection domain goes that is in use");
    }
    command(pd.dev);
    // SAFETY: Devices stay until the world ends.
    unsafe { (*pd.dev).pds -= 1 };
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_pd_lkey(_pd: *mut ib_pd) -> u32 {
    1
}

/// Memory region.
pub struct Mr {
    pd: *mut Pd,
    dev: *mut Dev,
    rkey: u32,
    iova: u64,
    length: u64,
    max_pages: u32,
    /// The device refused to destroy the region, which is not the driver's any more.
    kept: bool,
    /// Memory that a registration would make valid, for the device and for the CPU.
    staged: (Vec<(u64, u32)>, Vec<(u64, u32)>),
    /// Memory that the key is valid for.
    active: Option<Active>,
}

struct Active {
    rkey: u32,
    iova: u64,
    length: u64,
    parts: Vec<(u64, u32)>,
    /// The same memory, with addresses for the CPU.
    cpu: Vec<(u64, u32)>,
}

/// Checks that no key of the node opens any of that memory.
pub fn no_key(node: usize, addr: u64, len: u64) {
    for dev in &w().nodes[node].devs {
        // SAFETY: Devices stay until the world ends, regions until they are deregistered.
        unsafe {
            for mr in &(**dev).mrs {
                if let Some(active) = &(**mr).active {
                    if active
                        .cpu
                        .iter()
                        .any(|(a, l)| *a < addr + len && addr < a + u64::from(*l))
                    {
                        violation("a key is alive whose memory goes back to LNet");
                    }
                }
            }
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_alloc_mr(pd: *mut ib_pd, max_pages: u32) -> *mut ib_mr {
    lock::might_sleep("ib_alloc_mr");
    mem::allocates("ib_alloc_mr");
    mem::waits("ib_alloc_mr");
    sched::point();
    if w().region_time != 0 {
        sched::sleep(w().region_time);
    }
    w().region_fails = w().region_fails.map(|n| n.wrapping_sub(1));
    if world::fails(Fault::Verbs) || w().region_fails == Some(0) {
        return (-(ENOMEM as isize)) as *mut ib_mr;
    }
    let pd: *mut Pd = pd.cast();
    // SAFETY: By the contract of this function.
    unsafe {
        let dev = (*pd).dev;
        if max_pages > (*dev).attrs.max_fast_reg_page_list_len {
            return (-(EINVAL as isize)) as *mut ib_mr;
        }
        if (*dev).mrs.len() >= (*dev).attrs.max_mr as usize {
            return (-(ENOMEM as isize)) as *mut ib_mr;
        }
        (*pd).users += 1;
        (*dev).next_key += 1;
        let mr = Box::into_raw(Box::new(Mr {
            pd,
            dev,
            rkey: (*dev).next_key << 8,
            iova: 0,
            length: 0,
            max_pages,
            kept: false,
            staged: (Vec::new(), Vec::new()),
            active: None,
        }));
        (*dev).mrs.push(mr);
        mr.cast()
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_dereg_mr(mr: *mut ib_mr) -> bool {
    lock::might_sleep("ib_dereg_mr");
    sched::point();
    let mr: *mut Mr = mr.cast();
    // SAFETY: By the contract of this function.
    unsafe {
        if w().keeps_mrs == Some((*(*mr).dev).node) {
            (*mr).kept = true;
            return false;
        }
        (*(*mr).dev).mrs.retain(|m| *m != mr);
        (*(*mr).pd).users -= 1;
        drop(Box::from_raw(mr));
    }
    true
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_map_mr_sg(
    mr: *mut ib_mr,
    sgt: *mut sg_table,
    page_size: u32,
) -> i32 {
    // That of hns may sleep.
    lock::might_sleep("ib_map_mr_sg");
    mem::allocates("ib_map_mr_sg");
    sched::point();
    if world::fails(Fault::Verbs) {
        return -(ENOMEM as i32);
    }
    // SAFETY: By the contract of this function.
    let mr = unsafe { &mut *mr.cast::<Mr>() };
    if mr.active.is_some() {
        violation("a region is mapped again while its key is alive");
    }
    let list = dma::elements(sgt);
    if list.iter().any(|sg| sg.addr == 0) {
        violation("a region covers what is not mapped");
    }
    let page = u64::from(page_size);
    // SAFETY: A region goes before its device.
    if page & unsafe { (*mr.dev).attrs.page_size_cap } == 0 {
        violation("a region has pages of a size that the device has not");
    }
    let mut pages = 0;
    for (i, sg) in list.iter().enumerate() {
        let end = sg.addr + u64::from(sg.dma_len);
        if (i != 0 && sg.addr % page != 0) || (i + 1 != list.len() && end % page != 0) {
            return -(EINVAL as i32);
        }
        pages += end.div_ceil(page) - sg.addr / page;
    }
    if pages > mr.max_pages.into() {
        return -(EINVAL as i32);
    }
    let parts = list.iter().map(|sg| (sg.addr, sg.dma_len)).collect();
    mr.staged = (parts, dma::memory_of(sgt).collect());
    mr.iova = list[0].addr;
    mr.length = list.iter().map(|sg| u64::from(sg.dma_len)).sum();
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_mr_bump_key(mr: *mut ib_mr) {
    // SAFETY: By the contract of this function.
    let mr = unsafe { &mut *mr.cast::<Mr>() };
    mr.rkey = (mr.rkey & !0xff) | (mr.rkey.wrapping_add(1) & 0xff);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_mr_get(
    mr: *const ib_mr,
    rkey: *mut u32,
    iova: *mut u64,
    length: *mut u64,
) {
    // SAFETY: By the contract of this function.
    unsafe {
        let mr = &*mr.cast::<Mr>();
        *rkey = mr.rkey;
        *iova = mr.iova;
        *length = mr.length;
    }
}

/// Behaviour of an adapter's provider that the verbs leave open. The seed chooses one for all
/// adapters of a world; software devices have the behaviour of rxe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Work requests are flushed at once, sends first.
    Plain,
    /// The device flushes some time after the error, each queue by itself.
    Mlx5,
    /// The driver flushes every 20 ms, if the completion queue is empty at that moment. No COMM_EST.
    Irdma,
    /// The driver flushes at once, receives first.
    BnxtRe,
    /// The device flushes from a work item. No COMM_EST.
    Hns,
    /// Keys become valid and invalid when the work request is posted. No COMM_EST.
    Rdmavt,
    /// The firmware flushes late. No COMM_EST.
    Erdma,
    /// The firmware knows a queue pair from when it is connected, and flushes nothing of others. No COMM_EST.
    Qedr,
}

impl Family {
    /// Chooses the family of a world.
    pub fn of(seed: u64) -> Self {
        Rng::new(seed ^ 0xfa31_17e5).of(&[
            Self::Plain,
            Self::Plain,
            Self::Plain,
            Self::Plain,
            Self::Mlx5,
            Self::Irdma,
            Self::BnxtRe,
            Self::Hns,
            Self::Rdmavt,
            Self::Erdma,
            Self::Qedr,
        ])
    }

    /// Returns the largest number of inline bytes that a queue pair may ask for: max_hw_inline of
    /// the second generation of irdma, and ERDMA_MAX_INLINE.
    fn max_inline(self) -> u32 {
        match self {
            Self::Irdma => 101,
            Self::Erdma => 96,
            _ => u32::MAX,
        }
    }

    /// Returns the time for which the number of a destroyed queue pair is not used again. `None`:
    /// for longer than a world lasts, unless the device is removed or its node loses its power.
    fn number_rests(self) -> Option<u64> {
        match self {
            Self::Mlx5 => Some(SEC),
            Self::BnxtRe | Self::Hns => Some(0),
            _ => None,
        }
    }

    /// Returns whether an event reports a message before the connection is established.
    fn has_comm_est(self) -> bool {
        matches!(self, Self::Plain | Self::Mlx5 | Self::BnxtRe)
    }
}

/// Returns the behaviour of a device.
pub fn family(dev: *const Dev) -> Family {
    // SAFETY: Devices stay until the world ends.
    match unsafe { (*dev).software } {
        true => Family::Plain,
        false => w().family,
    }
}

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Created.
    Init,
    /// The queue pair sends and receives.
    Rts,
    /// The queue pair neither sends nor receives, ever again.
    Err,
}

enum Op {
    Send,
    Write { addr: u64, rkey: u32 },
    Reg { mr: *mut Mr, key: u32 },
    Inv { key: u32 },
}

struct Wr {
    seq: u64,
    op: Op,
    /// The device has carried out the operation when it was posted.
    at_post: bool,
    signaled: bool,
    id: u64,
    parts: Vec<(u64, u32)>,
    inline: Option<Vec<u8>>,
}

struct Recv {
    id: u64,
    addr: u64,
    len: u32,
}

/// Queue pair.
pub struct Qp {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Device of the queue pair.
    pub dev: *mut Dev,
    pd: *mut Pd,
    pub cq: *mut Cq,
    /// State of the queue pair.
    pub state: State,
    /// Number of the other side's queue pair.
    pub peer: u32,
    /// The LID of the other side's port when it was connected.
    lid: u32,
    /// Path MTU in bytes.
    mtu: u32,
    /// The driver or the CM learned that the connection is established.
    pub established: bool,
    /// Its connection closes, and posts no more receives.
    closes: bool,
    /// Since when the passive side has waited for a message of the active side; `None` on the
    /// active side.
    pub called: Option<u64>,
    /// Since when the active side may send; `None` on the passive side.
    pub calls: Option<u64>,
    /// A message has arrived.
    heard: bool,
    /// Retries while the other side has no buffer; 7 means without limit.
    pub rnr_retry: u8,
    /// Retries while the other side does not answer.
    pub retry: u8,
    /// Completions that the driver has not seen.
    pub completions: usize,
    /// Completions that the driver is handling.
    pub handling: usize,
    /// The queue pair is destroyed; the memory stays until the world ends.
    pub gone: bool,
    /// The device refused to destroy the queue pair, which is not the driver's any more.
    pub kept: bool,
    /// Memory of receives that the driver then left to the device, and the number of receives that had completed
    /// without the driver having seen that.
    left: (Vec<(u64, u32)>, usize),
    /// Memory of receives that did not succeed.
    flushed: Vec<(u64, u32)>,
    caps: ro2ib_qp_caps,
    sq: VecDeque<Wr>,
    rq: VecDeque<Recv>,
    /// Number of entries of `sq` that are carried out, but not acknowledged.
    done: usize,
    busy: bool,
    seq: u64,
    rnr: u8,
    silent_since: Option<u64>,
    drained: bool,
    /// The device failed to drain the queue pair, or only claimed to.
    pub undrained: bool,
    /// The queue pair is never flushed.
    stuck: bool,
    /// A flush is under way, of the sends and of the receives.
    flushing: [bool; 2],
    /// The device refused a work request when it was posted.
    refused: bool,
    /// Number of work requests that the device had then.
    pub had: usize,
    /// Time when the queue pair entered the error state.
    failed_at: Option<u64>,
    /// Memory of flushed work requests that the device may still access, to write or to read: some
    /// providers complete them before the device knows. It may until a task has waited for the
    /// device to know.
    late: Vec<(u64, u32, bool)>,
    events: usize,
}

/// Time after which the passive side may send, because the active side has no message.
const FIRST_WORD: u64 = 5 * SEC;

/// Time for which a shy active side sends no message: longer than an attempt may take, shorter than
/// the deadline of a message.
const SHY: u64 = 20 * SEC;

/// The driver must not give up waiting for completions in less time than this.
const PATIENCE: u64 = 5 * SEC;

/// Returns the live queue pair with that number.
pub fn qp_of(qpn: u32) -> Option<*mut Qp> {
    w().qps.get(&qpn).copied()
}

/// Returns the number of established connections of a node.
pub fn connected(node: usize) -> usize {
    // SAFETY: Queue pairs that live are valid, and devices stay until the world ends.
    let is_so = |qp: &&*mut Qp| unsafe { (***qp).established && (*(***qp).dev).node == node };
    w().qps.values().filter(is_so).count()
}

/// Creates a queue pair. `first`: the driver has not tried that before for the same connection.
pub unsafe fn create_qp(
    pd: *mut ib_pd,
    cq: *mut ro2ib_cq,
    caps: *mut ro2ib_qp_caps,
    first: bool,
) -> Result<*mut Qp, i32> {
    lock::might_sleep("ib_create_qp");
    mem::allocates("ib_create_qp");
    sched::point();
    let pd: *mut Pd = pd.cast();
    // SAFETY: By the contract of this function.
    unsafe {
        let dev = (*pd).dev;
        if world::fails(Fault::Verbs) {
            return Err(match family(dev) {
                // For any command that fails.
                Family::Irdma => -(EINVAL as i32),
                _ => -(ENOMEM as i32),
            });
        }
        let caps = &mut *caps;
        if caps.max_send_wr > (*dev).attrs.max_qp_wr
            || caps.max_recv_wr > (*dev).attrs.max_qp_wr
            || caps.max_send_sge > (*dev).attrs.max_send_sge
        {
            return Err(-(EINVAL as i32));
        }
        if first && caps.max_inline < (*pd).inline {
            violation("a queue pair asks for less inline than others had");
        }
        if caps.max_inline > family(dev).max_inline() {
            return Err(-(EINVAL as i32));
        }
        (*pd).inline = (*pd).inline.max(caps.max_inline);
        let qpn = (*dev).number();
        let world = w();
        if world.plan.no_inline {
            caps.max_inline = 0;
        }
        caps.qpn = qpn;
        (*pd).users += 1;
        (*dev).qps += 1;
        let qp = Box::into_raw(Box::new(Qp {
            qpn,
            dev,
            pd,
            cq: cq.cast(),
            state: State::Init,
            peer: 0,
            lid: 0,
            mtu: 0,
            established: false,
            closes: false,
            called: None,
            calls: None,
            heard: false,
            rnr_retry: 0,
            retry: 0,
            completions: 0,
            handling: 0,
            gone: false,
            kept: false,
            left: (Vec::new(), 0),
            flushed: Vec::new(),
            caps: *caps,
            sq: VecDeque::new(),
            rq: VecDeque::new(),
            done: 0,
            busy: false,
            seq: 0,
            rnr: 0,
            silent_since: None,
            drained: false,
            undrained: false,
            stuck: false,
            flushing: [false; 2],
            refused: false,
            had: 0,
            failed_at: None,
            late: Vec::new(),
            events: 0,
        }));
        cq::attach(cq.cast(), qp);
        world.qps.insert(qpn, qp);
        world.all_qps.push(qp);
        Ok(qp)
    }
}

/// Destroys a queue pair.
pub fn destroy_qp(qp: *mut Qp) {
    lock::might_sleep("ib_destroy_qp");
    sched::point();
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    // SAFETY: Devices stay until the world ends.
    let node = unsafe { (*q.dev).node };
    if w().keeps_qps.is_some_and(|(of, _)| of == node) {
        if telling() {
            say(&format!("qp {}: the device refuses to destroy it", q.qpn));
        }
        q.kept = true;
        return;
    }
    know(q);
    while q.events != 0 {
        sched::sleep_on(qp as usize);
    }
    if q.gone {
        violation("a queue pair is destroyed twice");
    }
    if q.completions != 0 || !q.sq.is_empty() || !q.rq.is_empty() {
        // On a slow node they may just be late.
        q.undrained |= q.failed_at.is_some_and(|at| sched::now() - at >= PATIENCE);
        if !q.undrained {
            violation("a queue pair is destroyed whose completions are still to come");
        }
        // SAFETY: Devices stay until the world ends.
        true_counts::of(unsafe { (*q.dev).node }).undrained = true;
        while pop_send(q).is_some() {}
        while pop_recv(q).is_some() {}
        cq::clean(q.cq, qp);
    }
    q.gone = true;
    q.state = State::Err;
    (q.sq, q.rq) = Default::default();
    w().qps.remove(&q.qpn);
    // SAFETY: The QP holds its domain.
    unsafe {
        if let Some(wait) = family(q.dev).number_rests() {
            (*q.dev).free.push_back((q.qpn, sched::now() + wait));
        }
        (*q.pd).users -= 1;
        (*q.dev).qps -= 1;
    }
}

/// Returns the queue pairs that a device refused to destroy.
pub fn kept(dev: *const Dev) -> impl Iterator<Item = &'static Qp> {
    // SAFETY: The memory stays until the world ends.
    let all = w().all_qps.iter().map(|qp| unsafe { &**qp });
    all.filter(move |qp| qp.kept && qp.dev.cast_const() == dev)
}

/// Returns the regions that a device refused to destroy.
pub fn kept_mrs(dev: &Dev) -> impl Iterator<Item = &Mr> {
    // SAFETY: Such a region stays for ever.
    dev.mrs
        .iter()
        .map(|mr| unsafe { &**mr })
        .filter(|mr| mr.kept)
}

impl Qp {
    /// Returns whether events are on the way to the driver.
    pub fn has_events(&self) -> bool {
        self.events != 0
    }

    /// Notes that the driver leaves the queue pair to the device. `unseen` receives have completed.
    pub fn leave(&mut self, unseen: usize) {
        let posted = self.rq.iter().filter(|recv| recv.len != 0);
        let posted = posted.map(|recv| (recv.addr, recv.len));
        self.left = (posted.chain(self.flushed.drain(..)).collect(), unseen);
    }
}

/// Counts the message buffers that a device keeps for such queue pairs, when the driver has no other. Checks that the
/// device can write to those of receives. The driver also leaves those that it was about to post.
pub fn kept_buffers(dev: *const Dev) -> usize {
    let (mut least, mut most) = (0, 0);
    for qp in kept(dev) {
        let (posted, unseen) = &qp.left;
        least += posted.len() + unseen;
        most += qp.caps.max_recv_wr as usize;
        let is_there = |(addr, len): &(u64, u32)| dma::touch(dev, *addr, (*len).into(), true);
        if !posted.iter().all(is_there) {
            violation("a device does not destroy a queue pair, and has no memory for its receives");
        }
    }
    if most == 0 {
        return 0;
    }
    let receives = dma::receive_buffers(dev);
    if receives < least || receives > most {
        violation("a device does not destroy a queue pair, and has too few buffers, or too many");
    }
    receives + dma::send_buffers(dev)
}

/// Returns the devices of all nodes.
pub fn all() -> impl Iterator<Item = &'static Dev> {
    // SAFETY: Devices stay until the world ends.
    w().nodes
        .iter()
        .flat_map(|node| node.devs.iter().map(|dev| unsafe { &**dev }))
}

/// Returns whether a device can be used.
pub fn is_good(dev: *const Dev) -> bool {
    // SAFETY: Devices stay until the world ends.
    unsafe { (*dev).registered && (*dev).up && (*dev).moved.is_none() }
}

/// QDR, EDR and SDR, and the speed of four lanes of each: the next one each time that the link
/// comes up.
const SPEEDS: [(u32, u64); 3] = [(4, 40_000), (32, 100_000), (1, 10_000)];

/// Returns the speed of a device's port in Mb/s.
pub fn mbps(dev: *const Dev) -> u64 {
    // SAFETY: Devices stay until the world ends.
    unsafe { SPEEDS[(*dev).ups % 3].1 }
}

/// Returns the queue pairs of a device whose connections are up.
pub fn up(dev: *const Dev) -> Vec<*mut Qp> {
    // SAFETY: The memory stays until the world ends.
    let is = |qp: &*mut Qp| unsafe {
        (**qp).dev.cast_const() == dev && (**qp).state == State::Rts && (**qp).established
    };
    w().qps.values().copied().filter(is).collect()
}

/// Counts the queue pairs whose connections are up, and whose path MTU is larger than the MTU of
/// the device.
pub fn too_large(dev: *const Dev) -> usize {
    // SAFETY: Devices and the memory of queue pairs stay until the world ends.
    let is = |qp: &&*mut Qp| unsafe { (***qp).mtu > (*dev).mtu };
    up(dev).iter().filter(is).count()
}

/// Returns whether a queue pair is up.
pub fn is_up(qp: *mut Qp) -> bool {
    // SAFETY: As above.
    unsafe { (*qp).state == State::Rts }
}

/// Notes that the driver closes the connection of a queue pair.
pub fn closes(qpn: u32) {
    if let Some(qp) = qp_of(qpn) {
        // SAFETY: The memory stays until the world ends.
        unsafe { (*qp).closes = true };
    }
}

/// Returns whether the other side's queue pair exists and is up.
pub fn is_answered(qpn: u32) -> bool {
    let other = |qp: *mut Qp| {
        // SAFETY: As above.
        let other = qp_of(unsafe { (*qp).peer })?;
        // SAFETY: As above.
        let here = unsafe { (*other).peer == qpn && !(*(*other).dev).lost };
        Some(here && is_up(other))
    };
    qp_of(qpn).and_then(other).unwrap_or(false)
}

fn complete(qp: *mut Qp, id: u64, status: u32, opcode: u32, byte_len: u32) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    if q.gone {
        // Its node lost its power meanwhile.
        return;
    }
    let mut wc = ib_wc {
        status,
        opcode,
        byte_len,
        qp: qp.cast(),
        ..Default::default()
    };
    wc.__bindgen_anon_1.wr_id = id;
    if status != 0 && telling() {
        say(&format!(
            "qp {}: completion {opcode} with status {status}",
            q.qpn
        ));
    }
    cq::push(q.cq, qp, wc);
}

fn opcode(op: &Op) -> u32 {
    match op {
        Op::Send => ib_wc_opcode_IB_WC_SEND,
        Op::Write { .. } => ib_wc_opcode_IB_WC_RDMA_WRITE,
        Op::Reg { .. } => ib_wc_opcode_IB_WC_REG_MR,
        Op::Inv { .. } => ib_wc_opcode_IB_WC_LOCAL_INV,
    }
}

const FLUSHED: u32 = ib_wc_status_IB_WC_WR_FLUSH_ERR;

/// Takes the oldest work request from the send queue.
fn pop_send(q: &mut Qp) -> Option<Wr> {
    let wr = q.sq.pop_front()?;
    if wr.inline.is_none() {
        for (addr, len) in &wr.parts {
            dma::unpost(q.dev, *addr, u64::from(*len), false);
        }
    }
    Some(wr)
}

/// Takes the oldest work request from the receive queue.
fn pop_recv(q: &mut Qp) -> Option<Recv> {
    let recv = q.rq.pop_front()?;
    dma::unpost(q.dev, recv.addr, recv.len.into(), true);
    Some(recv)
}

/// Moves a queue pair to the error state: the device flushes all posted work requests.
pub fn to_err(qp: *mut Qp) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    if q.state != State::Err && telling() {
        say(&format!(
            "qp {}: to error, {} sends, {} receives",
            q.qpn,
            q.sq.len(),
            q.rq.len()
        ));
    }
    if q.state == State::Init && family(q.dev) == Family::Qedr {
        (q.stuck, q.undrained) = (true, true);
    }
    q.state = State::Err;
    q.done = 0;
    q.failed_at.get_or_insert(sched::now());
    if q.stuck {
        return;
    }
    let waits = &mut |most: u64| w().family_rng.range(US, most);
    match family(q.dev) {
        Family::Plain | Family::Rdmavt => {
            flush_sends(q);
            flush_receives(q);
        }
        Family::BnxtRe => {
            flush_receives(q);
            flush_sends(q);
        }
        Family::Mlx5 => {
            flush_later(q, 0, waits(MS));
            flush_later(q, 1, waits(MS));
        }
        Family::Hns | Family::Qedr => {
            let wait = waits(5 * MS);
            flush_later(q, 0, wait);
            flush_later(q, 1, wait);
        }
        Family::Irdma => {
            flush_later(q, 0, 20 * MS);
            flush_later(q, 1, 20 * MS);
        }
        Family::Erdma => {
            flush_later(q, 1, waits(200 * MS));
            flush_later(q, 0, waits(200 * MS));
        }
    }
}

/// Returns whether the provider flushes before the device knows of the error.
fn flushes_early(q: &Qp) -> bool {
    matches!(
        family(q.dev),
        Family::Plain | Family::BnxtRe | Family::Rdmavt
    )
}

fn flush_sends(q: &mut Qp) {
    let (qp, early): (*mut Qp, _) = (q, flushes_early(q));
    while let Some(wr) = pop_send(q) {
        if early && wr.inline.is_none() {
            q.late
                .extend(wr.parts.iter().map(|&(addr, len)| (addr, len, false)));
        }
        complete(qp, wr.id, FLUSHED, opcode(&wr.op), 0);
    }
}

fn flush_receives(q: &mut Qp) {
    let (qp, early): (*mut Qp, _) = (q, flushes_early(q));
    while let Some(r) = pop_recv(q) {
        if r.len != 0 {
            q.flushed.push((r.addr, r.len));
        }
        if early && r.len != 0 {
            q.late.push((r.addr, r.len, true));
        }
        complete(qp, r.id, FLUSHED, ib_wc_opcode_IB_WC_RECV, 0);
    }
}

/// Flushes a queue after some time: the send queue (0) or the receive queue (1).
fn flush_later(q: &mut Qp, queue: usize, wait: u64) {
    if core::mem::replace(&mut q.flushing[queue], true) {
        return;
    }
    let qp: *mut Qp = q;
    sched::after(wait, move || {
        // SAFETY: The memory stays until the world ends.
        let q = unsafe { &mut *qp };
        q.flushing[queue] = false;
        if q.gone {
            return;
        }
        if family(q.dev) == Family::Irdma && !cq::is_empty(q.cq) {
            return flush_later(q, queue, wait);
        }
        match queue {
            0 => flush_sends(q),
            _ => flush_receives(q),
        }
        sched::wake_all(qp as usize);
    });
}

/// Waits until the device knows that the queue pair is in the error state.
fn know(q: &mut Qp) {
    for (addr, len, write) in core::mem::take(&mut q.late) {
        // Memory that a removed or lost device used has no owner any more.
        if is_good(q.dev) && !dma::touch(q.dev, addr, u64::from(len), write) {
            violation("memory of a flushed work request is unmapped while the device may use it");
        }
    }
}

/// Flushes all queue pairs of a device that goes away.
pub fn all_to_err(dev: *mut Dev) {
    for qp in w().all_qps.clone() {
        // SAFETY: The memory stays until the world ends.
        unsafe {
            if (*qp).dev == dev && !(*qp).gone {
                to_err(qp);
            }
        }
    }
}

/// Makes a queue pair able to send and receive, if it has not ended.
pub fn connect(qp: *mut Qp, peer: u32, mtu: u32, retry: u8, rnr_retry: u8) -> bool {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    let can = q.state == State::Init;
    if can {
        q.state = State::Rts;
        q.peer = peer;
        q.mtu = mtu;
        // SAFETY: As above.
        q.lid = qp_of(peer).map_or(0, |p| unsafe { (*(*p).dev).lid });
        q.retry = retry;
        q.rnr_retry = rnr_retry;
        kick(qp);
    }
    can
}

/// Returns the retry counts of a queue pair, if there is a queue pair, since it is connected.
pub fn retries(qp: *mut Qp) -> Option<(u8, u8)> {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { qp.as_ref() }?;
    (q.state != State::Init).then_some((q.retry, q.rnr_retry))
}

/// Returns the time of one try of the transport, as the path of the CM has it: 4.096 us * 2^[`ack_timeout`].
pub fn ack_ns() -> u64 {
    if w().plan.ib {
        2147 * MS
    } else {
        500 * MS
    }
}

/// Returns the exponent of that time.
pub fn ack_timeout() -> i8 {
    if w().plan.ib {
        19
    } else {
        17
    }
}

fn latency() -> u64 {
    let world = w();
    let plan = &world.plan;
    if world.rng.ppm(plan.slow_wire_ppm) {
        world.rng.range(MS, 50 * MS)
    } else {
        world.rng.range(plan.wire_min, plan.wire_max)
    }
}

fn kick(qp: *mut Qp) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    if q.kept || q.state != State::Rts || q.busy || q.done >= q.sq.len() {
        return;
    }
    q.busy = true;
    let local = matches!(q.sq[q.done].op, Op::Reg { .. } | Op::Inv { .. });
    let wait = if local { 200 } else { latency() };
    sched::after(wait, move || carry_out(qp));
}

fn again(qp: *mut Qp, wait: u64) {
    // SAFETY: The memory stays until the world ends.
    unsafe { (*qp).busy = true };
    sched::after(wait, move || carry_out(qp));
}

/// Completes the first work request that is not acknowledged with `status`, and those before it
/// with success.
fn fail(qp: *mut Qp, status: u32) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    while q.done > 0 {
        acknowledge(qp, q.sq[0].seq);
    }
    if let Some(wr) = pop_send(q) {
        complete(qp, wr.id, status, opcode(&wr.op), 0);
    }
    to_err(qp);
}

fn acknowledge(qp: *mut Qp, seq: u64) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    while q.done > 0 && q.sq.front().is_some_and(|wr| wr.seq <= seq) {
        q.done -= 1;
        if let Some(wr) = pop_send(q) {
            if wr.signaled {
                complete(qp, wr.id, 0, opcode(&wr.op), 0);
            }
        }
    }
}

enum Outcome {
    Done,
    /// The other side has no buffer, for a NOOP or for another message.
    NoBuffer {
        noop: bool,
    },
    /// The other side does not answer.
    Silence,
    /// The work request is invalid: this status here, and that one at the other side, if any.
    Wrong(u32, Option<u32>),
}

/// Returns whether a packet gets from one device to another.
pub fn reaches(a: *const Dev, b: *const Dev) -> bool {
    // SAFETY: Devices stay until the world ends.
    unsafe {
        let (a, b) = (&*a, &*b);
        a.up && b.up
            && a.moved.is_none()
            && b.moved.is_none()
            && a.registered
            && b.registered
            && !w().nodes[a.node].dead
            && !w().nodes[b.node].dead
    }
}

fn gather(q: &Qp, wr: &Wr) -> Option<Vec<u8>> {
    if let Some(inline) = &wr.inline {
        return Some(inline.clone());
    }
    let mut data = Vec::new();
    for (addr, len) in &wr.parts {
        if !dma::read(q.dev, *addr, u64::from(*len), &mut data) {
            violation("a device reads memory that is not mapped for it");
        }
    }
    Some(data)
}

fn scatter(dev: *const Dev, addr: u64, data: &[u8]) {
    if !dma::write(dev, addr, data) {
        violation("a device writes memory that is not mapped for it");
    }
}

/// Makes a key valid or invalid.
fn local(dev: *mut Dev, op: &Op) -> Outcome {
    match op {
        Op::Reg { mr, key } => {
            // SAFETY: The driver keeps regions until their queue pair is drained.
            let mr = unsafe { &mut **mr };
            if mr.active.is_some() {
                return Outcome::Wrong(ib_wc_status_IB_WC_LOC_QP_OP_ERR, None);
            }
            mr.active = Some(Active {
                rkey: *key,
                iova: mr.iova,
                length: mr.length,
                parts: mr.staged.0.clone(),
                cpu: mr.staged.1.clone(),
            });
            Outcome::Done
        }
        Op::Inv { key } => {
            // SAFETY: Devices stay until the world ends, regions until they are deregistered.
            unsafe {
                for mr in &(*dev).mrs {
                    if (**mr).active.as_ref().is_some_and(|a| a.rkey == *key) {
                        (**mr).active = None;
                        return Outcome::Done;
                    }
                    // A dead key is a fence, which software providers need.
                    if (**mr).rkey >> 8 == *key >> 8 {
                        return Outcome::Done;
                    }
                }
            }
            Outcome::Wrong(ib_wc_status_IB_WC_LOC_QP_OP_ERR, None)
        }
        _ => Outcome::Done,
    }
}

fn try_send(q: &mut Qp, at: usize) -> Outcome {
    let wr = &q.sq[at];
    if wr.at_post {
        return Outcome::Done;
    }
    match wr.op {
        Op::Reg { .. } | Op::Inv { .. } => return local(q.dev, &wr.op),
        _ => {}
    }
    let Some(peer) = qp_of(q.peer) else {
        return Outcome::Silence;
    };
    // SAFETY: The memory stays until the world ends.
    let p = unsafe { &mut *peer };
    // SAFETY: Devices stay until the world ends.
    let lid = unsafe { (*p.dev).lid };
    if !reaches(q.dev, p.dev) || p.state != State::Rts || p.peer != q.qpn || lid != q.lid {
        return Outcome::Silence;
    }
    // SAFETY: Devices stay until the world ends.
    let node = unsafe { (*q.dev).node };
    let Some(mut data) = gather(q, wr) else {
        return Outcome::Wrong(ib_wc_status_IB_WC_LOC_PROT_ERR, None);
    };
    // SAFETY: Devices stay until the world ends.
    let (here, there) = unsafe { ((*q.dev).mtu, (*p.dev).mtu) };
    let packet = q.mtu.min(data.len() as u32);
    if packet > here {
        return Outcome::Wrong(ib_wc_status_IB_WC_LOC_QP_OP_ERR, None);
    }
    if packet > there {
        return Outcome::Silence;
    }
    p.heard = true;
    if !p.established && p.events == 0 {
        // The connection is in use before the CM has reported it as established.
        if family(p.dev).has_comm_est() {
            tell(peer, ib_event_type_IB_EVENT_COMM_EST);
        }
        // SAFETY: As above.
        let met = unsafe { ((*p.dev).node, (*q.dev).ip) };
        w().lnet.met.insert(met);
    }
    match wr.op {
        Op::Send => {
            if p.rq.is_empty() {
                let noop = data.get(6) == Some(&0xd0);
                return Outcome::NoBuffer { noop };
            }
            // One message, unless the sender is byzantine; then there may be fewer buffers than
            // messages.
            for data in byzantine::message(node, data) {
                let Some(r) = pop_recv(p) else {
                    break;
                };
                if data.len() > r.len as usize {
                    complete(
                        peer,
                        r.id,
                        ib_wc_status_IB_WC_LOC_LEN_ERR,
                        ib_wc_opcode_IB_WC_RECV,
                        0,
                    );
                    to_err(peer);
                    return Outcome::Wrong(ib_wc_status_IB_WC_REM_INV_REQ_ERR, None);
                }
                scatter(p.dev, r.addr, &data);
                world::seen(&data, q.qpn, p.qpn);
                complete(peer, r.id, 0, ib_wc_opcode_IB_WC_RECV, data.len() as u32);
            }
            Outcome::Done
        }
        Op::Write { addr, rkey } => {
            let Some((addr, rkey)) = byzantine::write(node, addr, rkey, &mut data) else {
                return Outcome::Done;
            };
            let mut at = None;
            // SAFETY: Devices stay until the world ends, regions until they are deregistered.
            unsafe {
                for mr in &(*p.dev).mrs {
                    if let Some(a) = (**mr).active.as_ref().filter(|a| a.rkey == rkey) {
                        if core::ptr::eq((**mr).pd, p.pd)
                            && addr >= a.iova
                            && addr + data.len() as u64 <= a.iova + a.length
                        {
                            at = Some((addr - a.iova, a.parts.clone()));
                        }
                    }
                }
            }
            let Some((mut skip, parts)) = at else {
                if telling() {
                    say(&format!(
                        "qp {}: write of {} bytes with key {rkey:#x}, which opens nothing there",
                        q.qpn,
                        data.len()
                    ));
                }
                w().bad_keys += 1;
                return Outcome::Wrong(
                    ib_wc_status_IB_WC_REM_ACCESS_ERR,
                    Some(ib_event_type_IB_EVENT_QP_ACCESS_ERR),
                );
            };
            let mut rest = &data[..];
            for (a, l) in parts {
                let l = u64::from(l);
                if skip >= l {
                    skip -= l;
                    continue;
                }
                let n = rest.len().min((l - skip) as usize);
                scatter(p.dev, a + skip, &rest[..n]);
                rest = &rest[n..];
                skip = 0;
                if rest.is_empty() {
                    break;
                }
            }
            Outcome::Done
        }
        _ => Outcome::Done,
    }
}

/// Delivers an asynchronous event of a queue pair. The destruction of the queue pair waits for the
/// handler.
pub fn tell(qp: *mut Qp, event: u32) {
    // SAFETY: The memory stays until the world ends.
    let node = unsafe {
        (*qp).events += 1;
        (*(*qp).dev).node
    };
    sched::spawn(node, Kind::Softirq, "qp event", move || {
        // SAFETY: As above.
        unsafe {
            let mut ev = ib_event {
                device: (*qp).dev.cast(),
                event,
                ..Default::default()
            };
            ev.element.qp = qp.cast();
            if !(*qp).gone {
                if telling() {
                    say(&format!("qp {}: event {event}", (*qp).qpn));
                }
                cq::qp_event((*qp).cq, &raw mut ev);
            }
            (*qp).events -= 1;
            if event == ib_event_type_IB_EVENT_COMM_EST {
                (*qp).established = true;
            }
        }
        sched::wake_all(qp as usize);
    });
}

/// Returns the number of queue pairs that send to a queue pair of a node that lost its power.
pub fn orphans() -> usize {
    let world = w();
    let lost = |qp: &&*mut Qp| {
        // SAFETY: Queue pairs and devices stay until the world ends.
        unsafe {
            let (q, node) = (&***qp, (*(***qp).dev).node);
            let there = world.all_qps.iter().find(|p| (***p).qpn == q.peer);
            let dead = there.is_some_and(|p| world.nodes[(*(**p).dev).node].dead);
            !q.gone && q.state == State::Rts && !world.nodes[node].dead && dead
        }
    };
    world.all_qps.iter().filter(lost).count()
}

/// Breaks a queue pair of the device, without a visible reason.
pub fn break_one(dev: *mut Dev) {
    let world = w();
    // SAFETY: The memory stays until the world ends.
    let live: Vec<*mut Qp> = unsafe {
        let of = |qp: &*mut Qp| (**qp).dev == dev && !(**qp).gone && (**qp).state == State::Rts;
        world.all_qps.iter().copied().filter(of).collect()
    };
    if !live.is_empty() {
        let qp = world.rng.of(&live);
        let event = world.rng.of(&[
            ib_event_type_IB_EVENT_QP_FATAL,
            ib_event_type_IB_EVENT_QP_REQ_ERR,
            ib_event_type_IB_EVENT_QP_ACCESS_ERR,
            ib_event_type_IB_EVENT_SQ_DRAINED,
            ib_event_type_IB_EVENT_PATH_MIG,
        ]);
        if event <= ib_event_type_IB_EVENT_QP_ACCESS_ERR {
            to_err(qp);
        }
        tell(qp, event);
    }
}

/// Returns whether the queue pair is the active side over TCP, and sends no message yet.
fn is_shy(q: &Qp) -> bool {
    // SAFETY: Devices and the memory of queue pairs stay until the world ends.
    let tcp = unsafe { qp_of(q.peer).is_some_and(|p| (*(*p).dev).tcp) };
    let long = q.calls.is_some_and(|at| sched::now() < at + SHY);
    w().plan.shy && tcp && long && !q.heard
}

fn carry_out(qp: *mut Qp) {
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    q.busy = false;
    if q.kept || q.state != State::Rts || q.done >= q.sq.len() || w().failed.is_some() {
        return;
    }
    if is_shy(q) {
        return again(qp, SEC);
    }
    if world::fails(Fault::Completion) {
        let status = w().rng.of(&[
            ib_wc_status_IB_WC_LOC_LEN_ERR,
            ib_wc_status_IB_WC_LOC_QP_OP_ERR,
            ib_wc_status_IB_WC_LOC_PROT_ERR,
            ib_wc_status_IB_WC_BAD_RESP_ERR,
            ib_wc_status_IB_WC_LOC_ACCESS_ERR,
            ib_wc_status_IB_WC_REM_INV_REQ_ERR,
            ib_wc_status_IB_WC_REM_ACCESS_ERR,
            ib_wc_status_IB_WC_REM_OP_ERR,
            ib_wc_status_IB_WC_RETRY_EXC_ERR,
            ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
            ib_wc_status_IB_WC_REM_ABORT_ERR,
            ib_wc_status_IB_WC_FATAL_ERR,
            ib_wc_status_IB_WC_GENERAL_ERR,
        ]);
        // In some cases the other side has got the message all the same.
        if w().rng.one_in(2) && matches!(try_send(q, q.done), Outcome::Done) {
            q.done += 1;
            while q.done > 1 {
                acknowledge(qp, q.sq[0].seq);
            }
            q.done = 0;
        }
        return fail(qp, status);
    }
    match try_send(q, q.done) {
        Outcome::Done => {
            q.rnr = 0;
            q.silent_since = None;
            let wr = &q.sq[q.done];
            let seq = wr.seq;
            let local = matches!(wr.op, Op::Reg { .. } | Op::Inv { .. });
            q.done += 1;
            let wait = if local && q.done == 1 { 100 } else { latency() };
            sched::after(wait, move || acknowledge(qp, seq));
            kick(qp);
        }
        Outcome::NoBuffer { noop } => {
            // SAFETY: The memory stays until the world ends.
            let may = |p: *mut Qp| unsafe { (*p).completions >= 2 || (*p).closes };
            world::rnr(q.qpn, q.peer, noop && qp_of(q.peer).is_some_and(may));
            q.rnr += 1;
            if q.rnr_retry != 7 && q.rnr > q.rnr_retry {
                fail(qp, ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR);
            } else {
                q.rnr = q.rnr.min(100);
                again(qp, MS);
            }
        }
        Outcome::Silence => {
            let now = sched::now();
            let since = *q.silent_since.get_or_insert(now);
            if now - since > (u64::from(q.retry) + 1) * ack_ns() {
                fail(qp, ib_wc_status_IB_WC_RETRY_EXC_ERR);
            } else {
                again(qp, 50 * MS);
            }
        }
        Outcome::Wrong(status, there) => {
            let peer = qp_of(q.peer);
            fail(qp, status);
            if let (Some(event), Some(peer)) = (there, peer) {
                to_err(peer);
                tell(peer, event);
            }
        }
    }
}

/// Moves a queue pair to the error state for the CM. Returns false if the device refuses.
#[must_use]
pub fn cm_to_err(qp: *mut Qp) -> bool {
    // SAFETY: The memory stays until the world ends, and so do devices.
    let (q, node) = unsafe { (&mut *qp, (*(*qp).dev).node) };
    let refuses = w().keeps_qps == Some((node, false));
    q.undrained |= refuses;
    if !refuses {
        to_err(qp);
    }
    !refuses
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_qp_to_err(qp: *mut ib_qp) -> i32 {
    sched::point();
    let qp: *mut Qp = qp.cast();
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    // SAFETY: Devices stay until the world ends.
    if w().keeps_qps == Some((unsafe { (*q.dev).node }, false)) {
        q.undrained = true;
        return -(EIO as i32);
    }
    // A flush that is under way goes on when a later command fails.
    let flushing = q.flushing.contains(&true);
    if world::fails(Fault::Verbs) && !flushing {
        q.undrained = true;
        // The device reports the error, or claims success and is dead.
        if w().rng.ppm(500_000) {
            return -(EIO as i32);
        }
        q.stuck = true;
        // A message may have to wait for that.
        let patience = &mut w().plan.patience;
        if *patience != 0 {
            *patience += PATIENCE + SEC;
        }
    }
    to_err(qp);
    know(q);
    0
}

/// Limit of the number of queue pairs of a node whose posts may fail: after eight in a row the
/// driver closes the NI.
const MOST_REFUSED: u32 = 6;

/// Returns whether a post to the queue pair may fail.
fn may_refuse(q: &Qp) -> bool {
    // SAFETY: Devices stay until the world ends.
    q.refused || true_counts::of(unsafe { (*q.dev).node }).refused_qps < MOST_REFUSED
}

/// Marks a queue pair whose post failed.
fn refused(q: &mut Qp) {
    if !q.refused {
        q.refused = true;
        q.had = q.sq.len();
        // SAFETY: Devices stay until the world ends.
        true_counts::of(unsafe { (*q.dev).node }).refused_qps += 1;
    }
}

/// Returns whether the provider posts a list as a whole or not at all. When it refuses one, it
/// returns the first work request; the other providers return the one that they refuse, and have
/// posted those before it.
fn refuses_lists(q: &Qp) -> bool {
    family(q.dev) == Family::Erdma
}

/// Returns whether a work request is the marker of a drain: a WRITE without data.
fn is_marker(wr: &ib_send_wr) -> bool {
    wr.opcode == ib_wr_opcode_IB_WR_RDMA_WRITE && wr.num_sge == 0
}

/// Returns whether a list that the provider refuses as a whole has a marker; `None`: the provider
/// does not refuse it.
///
/// # Safety
///
/// `wr` is a valid list.
unsafe fn refuses_list(q: &Qp, mut wr: *const ib_send_wr) -> Option<bool> {
    let (mut fails, mut marks) = (false, false);
    // SAFETY: By the contract of this function.
    while let (true, Some(r)) = (refuses_lists(q), unsafe { wr.as_ref() }) {
        fails |= may_refuse(q) && world::fails(Fault::Post);
        marks |= is_marker(r);
        wr = r.next;
    }
    fails.then_some(marks)
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_ib_post_send(
    qp: *mut ib_qp,
    wr: *const ib_send_wr,
    bad: *mut *const ib_send_wr,
) -> i32 {
    sched::point();
    let qp: *mut Qp = qp.cast();
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    if q.gone {
        violation("posts a send to a queue pair that is gone");
    }
    if q.drained {
        violation("posts a send after the queue pair was drained");
    }
    // SAFETY: Devices stay until the world ends.
    let tcp = unsafe { (*q.dev).tcp };
    let up = q.state == State::Rts;
    if tcp && up && !q.heard && q.called.is_some_and(|at| sched::now() < at + FIRST_WORD) {
        violation("speaks first over TCP, though it was called");
    }
    // SAFETY: By the contract of this function.
    if let Some(marks) = unsafe { refuses_list(q, wr) } {
        refused(q);
        q.undrained |= q.state == State::Err && marks;
        // SAFETY: As above.
        unsafe { *bad = wr };
        kick(qp);
        return -(ENOMEM as i32);
    }
    let mut at = wr;
    while !at.is_null() {
        // SAFETY: By the contract of this function; what follows depends on the opcode.
        unsafe {
            let r = &*at;
            *bad = at;
            if q.state == State::Init {
                return -(EINVAL as i32);
            }
            let inv = r.opcode == ib_wr_opcode_IB_WR_LOCAL_INV;
            if inv && world::w().plan.refuses_inv == Some((*q.dev).node) {
                refused(q);
                kick(qp);
                return -(EINVAL as i32);
            }
            if !refuses_lists(q) && may_refuse(q) && world::fails(Fault::Post) {
                refused(q);
                // If the device refuses a work request other than the marker, a WRITE without data,
                // the queue pair can still be drained.
                q.undrained |= q.state == State::Err && is_marker(r);
                kick(qp);
                return -(ENOMEM as i32);
            }
            if q.sq.len() >= q.caps.max_send_wr as usize {
                violation("posts more than the send queue holds");
            }
            if r.num_sge > q.caps.max_send_sge as i32 {
                violation("posts more elements than a work request may have");
            }
            let list = core::slice::from_raw_parts(
                if r.num_sge == 0 {
                    core::ptr::dangling()
                } else {
                    r.sg_list.cast_const()
                },
                r.num_sge as usize,
            );
            let op = match r.opcode {
                ib_wr_opcode_IB_WR_SEND => Op::Send,
                ib_wr_opcode_IB_WR_RDMA_WRITE => {
                    let w = &*at.cast::<ib_rdma_wr>();
                    Op::Write {
                        addr: w.remote_addr,
                        rkey: w.rkey,
                    }
                }
                ib_wr_opcode_IB_WR_REG_MR => {
                    let w = &*at.cast::<ib_reg_wr>();
                    Op::Reg {
                        mr: w.mr.cast(),
                        key: w.key,
                    }
                }
                ib_wr_opcode_IB_WR_LOCAL_INV => Op::Inv {
                    key: r.ex.invalidate_rkey,
                },
                _ => violation("posts what no driver posts"),
            };
            let is_local = matches!(op, Op::Reg { .. } | Op::Inv { .. });
            let at_post = is_local && up && family(q.dev) == Family::Rdmavt;
            if at_post && !matches!(local(q.dev, &op), Outcome::Done) {
                violation("a key is made valid or invalid that is not in the state for it");
            }
            let inline = (r.send_flags & ib_send_flags_IB_SEND_INLINE != 0).then(|| {
                let mut data = Vec::new();
                for sge in list {
                    if !dma::is_cpus(q.dev, sge.addr) {
                        violation("inline data have a DMA address");
                    }
                    data.extend_from_slice(core::slice::from_raw_parts(
                        sge.addr as *const u8,
                        sge.length as usize,
                    ));
                }
                if data.len() > q.caps.max_inline as usize {
                    violation("posts more inline than there is room for");
                }
                data
            });
            if inline.is_none() {
                for sge in list {
                    dma::post(q.dev, sge.addr, sge.length.into(), false);
                }
            }
            let truth = true_counts::of((*q.dev).node);
            let marks = is_marker(r);
            match list.first() {
                _ if marks => truth.marks(),
                first => {
                    let sends = first.filter(|_| r.opcode == ib_wr_opcode_IB_WR_SEND);
                    let message = sends.map(|sge| {
                        let mut data = inline.clone().unwrap_or_default();
                        if inline.is_none() {
                            dma::read(q.dev, sge.addr, sge.length.into(), &mut data);
                        }
                        data
                    });
                    truth.takes(at == wr, message.as_deref());
                }
            }
            q.seq += 1;
            q.sq.push_back(Wr {
                seq: q.seq,
                op,
                at_post,
                signaled: r.send_flags & ib_send_flags_IB_SEND_SIGNALED != 0,
                id: r.__bindgen_anon_1.wr_id,
                parts: list.iter().map(|s| (s.addr, s.length)).collect(),
                inline,
            });
            at = r.next;
        }
    }
    if q.state == State::Err {
        to_err(qp);
    } else {
        kick(qp);
    }
    0
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_ib_post_recv(
    qp: *mut ib_qp,
    wr: *const ib_recv_wr,
    bad: *mut *const ib_recv_wr,
) -> i32 {
    sched::point();
    let qp: *mut Qp = qp.cast();
    // SAFETY: The memory stays until the world ends.
    let q = unsafe { &mut *qp };
    if q.gone {
        violation("posts a receive to a queue pair that is gone");
    }
    if q.drained {
        violation("posts a receive after the queue pair was drained");
    }
    let mut at = wr;
    while !at.is_null() {
        // SAFETY: By the contract of this function.
        unsafe {
            let r = &*at;
            *bad = at;
            if may_refuse(q) && world::fails(Fault::PostRecv) {
                refused(q);
                q.undrained |= q.state == State::Err && r.num_sge == 0;
                return -(ENOMEM as i32);
            }
            if q.rq.len() >= q.caps.max_recv_wr as usize {
                violation("posts more than the receive queue holds");
            }
            let (addr, len) = if r.num_sge == 0 {
                (0, 0)
            } else {
                ((*r.sg_list).addr, (*r.sg_list).length)
            };
            if r.num_sge == 0 {
                true_counts::of((*q.dev).node).marks_recv();
            }
            dma::post(q.dev, addr, len.into(), true);
            q.rq.push_back(Recv {
                id: r.__bindgen_anon_1.wr_id,
                addr,
                len,
            });
            at = r.next;
        }
    }
    if q.state == State::Err {
        to_err(qp);
    }
    0
}

// KUnit tests change these; here completions have the right status from the start.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_wc_send(_wc: *const ib_wc) -> i32 {
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_wc_other(_wc: *const ib_wc) -> i32 {
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_wc_recv(_wc: *const ib_wc) -> i32 {
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_signal_all() -> bool {
    w().plan.signal_all
}
