// SPDX-License-Identifier: GPL-2.0

//! Connection manager, and its messages on the fabric.
//!
//! Follows `drivers/infiniband/core/cma.c` and `cm.c`: the events of an id come one after the
//! other, under its mutex, and only those that fit its state. The CM resends a message that gets no
//! answer, and gives up after a while. Messages can be lost, late and duplicated.

use crate::{
    byzantine,
    cq,
    decl::{
        k::*,
        r::*, //
    },
    lnet,
    lock,
    mem,
    sched::{
        self,
        Kind,
        MS,
        SEC, //
    },
    verbs::{
        self,
        Dev,
        Qp, //
    },
    work::{
        self,
        Limited, //
    },
    world::{
        self,
        say,
        telling,
        violation,
        w,
        Fault, //
    }, //
};

/// States of `enum rdma_cm_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    AddrQuery,
    AddrResolved,
    RouteQuery,
    RouteResolved,
    Connect,
    Disconnect,
    Bound,
    Listen,
    Removal,
    Destroying,
}

/// States of `enum ib_cm_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cm {
    Idle,
    ReqSent,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    Timewait,
}

/// Address in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Addr {
    ip: u32,
    port: u16,
}

/// Id (`struct rdma_cm_id`); the memory stays until the world ends.
pub struct Id {
    node: usize,
    nr: u64,
    handler: ro2ib_cm_handler,
    context: *mut c_void,
    lock: spinlock_t,
    dev: *mut Dev,
    qp: *mut Qp,
    /// Queue pair that the id had before.
    old_qp: *mut Qp,
    /// The driver has tried to make a queue pair.
    tried: bool,
    state: State,
    cm: Cm,
    src: Addr,
    dst: Addr,
    /// Number of the id of the other side.
    other: u64,
    active: bool,
    route: bool,
    mtu: u32,
    /// ToS of the active side: the passive side does not learn it.
    tos: u8,
    tries: u32,
    /// Number of address resolutions.
    resolved: u32,
    epoch: u64,
    param: (u8, u8),
    /// The other side's queue pair: GUID of its adapter, and number.
    remote_guid: u64,
    remote_qpn: u32,
    gone: bool,
    /// The driver has not accepted the id: the core destroys it.
    core: bool,
    /// The driver has accepted this request.
    taken: bool,
    /// The driver got the event ESTABLISHED while the id still had its queue pair.
    told: bool,
    /// Time when the driver disconnected the id, and how often the link had come up by then.
    said: (u64, usize),
    /// Requests that the listener handles.
    requests: Limited,
}

/// Event (`struct rdma_cm_event`).
struct Event {
    event: u32,
    status: i32,
    private: Vec<u8>,
    qpn: u32,
}

#[derive(Clone)]
enum Packet {
    Req {
        from: u64,
        src: Addr,
        dst: Addr,
        qpn: u32,
        mtu: u32,
        private: Vec<u8>,
        param: (u8, u8),
    },
    Rep {
        to: u64,
        from: u64,
        qpn: u32,
        private: Vec<u8>,
    },
    Rtu {
        to: u64,
    },
    Rej {
        to: u64,
        reason: i32,
        private: Vec<u8>,
    },
    /// Reject by an active side that waits no longer (`IB_CM_REJ_TIMEOUT`): it does not know the id
    /// of the passive side.
    Over {
        from: u64,
    },
    Dreq {
        to: u64,
        from: u64,
    },
    Drep {
        to: u64,
    },
}

/// Reject by a consumer (`IB_CM_REJ_CONSUMER_DEFINED`).
const CONSUMER: i32 = 28;
/// The active side waits no longer, or the id does not exist (`IB_CM_REJ_TIMEOUT`).
const TIMEOUT: i32 = 4;
/// Reject reason of the LND protocol: no resources.
const NO_RESOURCES: u8 = 2;
/// The CM has a connection with that queue pair (`IB_CM_REJ_STALE_CONN`).
const STALE: i32 = 10;
/// No listener (`IB_CM_REJ_INVALID_SERVICE_ID`).
const NO_SERVICE: i32 = 8;

/// Packet life time that the CM gives each path over RoCE (`CMA_IBOE_PACKET_LIFETIME`).
const PACKET_LIFE_TIME: u8 = 16;
/// Returns the nanoseconds until the CM resends a message.
pub fn resend() -> u64 {
    let response = if w().plan.ofed {
        17_200 * MS
    } else {
        4300 * MS
    };
    let paths = if w().plan.ib { 2100 * MS } else { 0 };
    response + paths
}
/// Number of requests that a listener handles at a time.
const REQUESTS: usize = 64;
/// Number of resends of a message.
const TRIES: u32 = 15;

/// Returns whether an id of the driver listens at that address.
pub fn listens(ip: u32) -> bool {
    // SAFETY: Ids stay until the world ends.
    let there = |id: &*mut Id| unsafe { (**id).state == State::Listen && (**id).src.ip == ip };
    verbs::all().any(|dev| dev.listeners.iter().any(there))
}

fn id_of(nr: u64) -> Option<*mut Id> {
    w().ids.get(&nr).copied()
}

fn dev_of(ip: u32) -> Option<*mut Dev> {
    let devs = &w().nodes.get(world::node_of(ip))?.devs;
    // SAFETY: Devices stay until the world ends.
    devs.iter()
        .copied()
        .find(|d| unsafe { (**d).ip == ip && (**d).registered && (**d).moved.is_none() })
}

fn local_dev(node: usize, ip: u32) -> Option<*mut Dev> {
    // SAFETY: As above.
    dev_of(ip).filter(|d| unsafe { (**d).node == node })
}

fn text(p: &Packet) -> String {
    match p {
        Packet::Req { from, qpn, .. } => format!("REQ of id {from}, qp {qpn}"),
        Packet::Rep { to, from, qpn, .. } => format!("REP of id {from} to {to}, qp {qpn}"),
        Packet::Rtu { to } => format!("RTU to id {to}"),
        Packet::Rej { to, reason, .. } => format!("REJ {reason} to id {to}"),
        Packet::Dreq { to, from } => format!("DREQ of id {from} to {to}"),
        Packet::Over { from } => format!("REJ of id {from}: it waits no longer"),
        Packet::Drep { to } => format!("DREP to id {to}"),
    }
}

fn transmit(dev: *mut Dev, ip: u32, packet: Packet) {
    let world = w();
    let plan = &world.plan;
    // SAFETY: Devices stay until the world ends.
    let mute = plan.mute.contains(unsafe { &(*dev).node });
    let lost = world.rng.ppm(plan.cm_lost_ppm) || mute;
    let doubled = world.rng.ppm(plan.cm_double_ppm);
    if lost {
        if telling() {
            say(&format!("lost: {}", text(&packet)));
        }
        return;
    }
    for _ in 0..=u32::from(doubled) {
        let late = world.rng.ppm(plan.cm_late_ppm);
        let slow = plan.slow_steps && matches!(packet, Packet::Req { .. } | Packet::Rep { .. });
        let wait = if slow {
            world.rng.range(3 * SEC, 4 * SEC)
        } else if late {
            world.rng.range(10 * MS, 8 * SEC)
        } else {
            world.rng.range(plan.wire_min, 20 * plan.wire_max)
        };
        let packet = packet.clone();
        sched::after(wait, move || {
            let Some(to) = dev_of(ip) else { return };
            if verbs::reaches(dev, to) {
                arrived(dev, to, packet);
            }
        });
    }
}

/// Returns whether the id has no GID any more: the CM sends no new message for it.
fn speechless(id: &Id) -> bool {
    // SAFETY: Devices stay until the world ends.
    !id.dev.is_null() && unsafe { (*id.dev).moved.is_some() }
}

fn send(id: &Id, mut packet: Packet) {
    if speechless(id) {
        return;
    }
    // SAFETY: Devices stay until the world ends.
    let dev = unsafe { &*id.dev };
    if w().no_route == Some(id.node) && dev.software {
        violation("the CM sends a message without a route, which soft-RoCE does not survive");
    }
    // A reject of a request cannot wait: the CM sends it with the id. And the CM answers a REP by
    // itself. No driver could prevent a resend in that moment: when it destroys an attempt, the CM
    // sends a message, too.
    let word = !matches!(packet, Packet::Rej { .. } | Packet::Rtu { .. }) && id.tries < 2;
    if word && w().prompt && dev.software && dev.moves.is_some_and(|at| sched::now() - at > MS) {
        // For a rxe that is a little slow, the message has no GID.
        violation("the CM sends a message whose GID is about to go");
    }
    if let Packet::Req { private, .. } | Packet::Rep { private, .. } | Packet::Rej { private, .. } =
        &mut packet
    {
        byzantine::private(id.node, private);
    }
    if telling() {
        say(&format!("id {}: sends {}", id.nr, text(&packet)));
    }
    transmit(id.dev, id.dst.ip, packet);
}

/// Sends the packet now, and resends it until another event changes the id.
fn send_again(id: *mut Id, packet: Packet) {
    // SAFETY: The memory stays until the world ends.
    let i = unsafe { &mut *id };
    if i.gone {
        return;
    }
    i.tries += 1;
    // SAFETY: Devices stay until the world ends.
    let moved = unsafe { (*i.dev).moved };
    if w().prompt && moved.is_some_and(|at| sched::now() - at > resend()) {
        // rxe would never recover from such a message. The driver had time to destroy the id,
        // except where tasks stand still for seconds.
        violation("the CM repeats a message without a GID");
    }
    let epoch = i.epoch;
    send(i, packet.clone());
    sched::after(resend(), move || {
        // SAFETY: As above.
        let i = unsafe { &mut *id };
        if i.epoch != epoch || i.gone {
            return;
        }
        if i.tries <= TRIES {
            return send_again(id, packet);
        }
        let event = match i.cm {
            Cm::DreqSent => {
                set(i, Cm::Timewait);
                timewait(id);
                rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED
            }
            _ => {
                set(i, Cm::Idle);
                rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE
            }
        };
        tell(id, event, -(ETIMEDOUT as i32), Vec::new(), 0);
    });
}

fn set(id: &mut Id, cm: Cm) {
    id.cm = cm;
    id.epoch += 1;
    id.tries = 0;
}

fn timewait(id: *mut Id) {
    let wait = w().rng.range(SEC, 3 * SEC);
    sched::after(wait, move || {
        // SAFETY: The memory stays until the world ends.
        if unsafe { !(*id).gone && (*id).cm == Cm::Timewait } {
            tell(
                id,
                rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT,
                0,
                Vec::new(),
                0,
            );
        }
    });
}

/// Delivers an event to the driver, in a task of its own.
fn tell(id: *mut Id, event: u32, status: i32, private: Vec<u8>, qpn: u32) {
    // SAFETY: The memory stays until the world ends.
    let (node, nr) = unsafe { ((*id).node, (*id).nr) };
    sched::spawn(node, Kind::Process, "cm event", move || {
        // SAFETY: As above.
        let i = unsafe { &mut *id };
        if i.gone {
            return;
        }
        lock::take(&raw mut i.lock, false, false);
        use State::*;
        let ev = event;
        let fits = match i.state {
            Destroying | Removal => false,
            AddrQuery => ev <= rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR,
            RouteQuery => {
                ev == rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED
                    || ev == rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR
            }
            Connect => ev != rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT,
            Disconnect => ev == rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT,
            _ => false,
        } || ((ev == rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL
            || ev == rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE)
            && i.state != Destroying
            && i.state != Removal);
        if fits && i.core && ev == rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL {
            // A request that the driver has not seen, and will not see.
            i.state = State::Removal;
        } else if fits && !i.gone && !i.core {
            let event = prepare(i, ev, qpn);
            if telling() {
                say(&format!("id {nr}: event {}, status {status}", name(event)));
            }
            handle(
                id,
                Event {
                    event: ev,
                    status,
                    private,
                    qpn,
                },
            );
        }
        lock::give(&raw mut i.lock);
    });
}

/// Updates the CM's state before an event; returns the event that the driver gets.
fn prepare(i: &mut Id, ev: u32, qpn: u32) -> u32 {
    match ev {
        rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => i.state = State::AddrResolved,
        rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR => i.state = State::Bound,
        rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => {
            i.state = State::RouteResolved;
            i.route = true;
            // SAFETY: Devices stay until the world ends.
            i.mtu = unsafe { (*i.dev).mtu };
        }
        rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => i.state = State::AddrResolved,
        rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => {
            if i.active {
                // As in cma_ib_handler() and cma_rep_recv(): the CM does not answer without a queue
                // pair.
                if i.qp.is_null() {
                    return rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE;
                }
                i.remote_qpn = qpn;
                if !verbs::connect(i.qp, qpn, i.mtu, i.param.0, i.param.1) || i.cm != Cm::RepRcvd {
                    verbs::to_err(i.qp);
                    if i.cm == Cm::RepRcvd {
                        refuse_rep(i);
                    }
                    return rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR;
                }
                // SAFETY: The memory of the queue pair stays until the world ends.
                unsafe { (*i.qp).calls = Some(sched::now()) };
                set(i, Cm::Established);
                let packet = Packet::Rtu { to: i.other };
                send(i, packet);
            }
            // Later the driver destroys the id, and the CM may deliver no event for it.
            i.told = !i.qp.is_null();
            if !i.qp.is_null() {
                // SAFETY: The memory stays until the world ends.
                unsafe { (*i.qp).established = true };
            }
        }
        rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => i.state = State::Disconnect,
        rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => {
            if !i.qp.is_null() {
                verbs::to_err(i.qp);
            }
        }
        rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => i.state = State::Removal,
        _ => {}
    }
    ev
}

/// Rejects a REP: the active side does not want the connection any more.
fn refuse_rep(i: &mut Id) {
    let packet = Packet::Rej {
        to: i.other,
        reason: CONSUMER,
        private: Vec::new(),
    };
    send(i, packet);
    set(i, Cm::Timewait);
}

fn name(ev: u32) -> &'static str {
    [
        "ADDR_RESOLVED",
        "ADDR_ERROR",
        "ROUTE_RESOLVED",
        "ROUTE_ERROR",
        "CONNECT_REQUEST",
        "CONNECT_RESPONSE",
        "CONNECT_ERROR",
        "UNREACHABLE",
        "REJECTED",
        "ESTABLISHED",
        "DISCONNECTED",
        "DEVICE_REMOVAL",
        "MULTICAST_JOIN",
        "MULTICAST_ERROR",
        "ADDR_CHANGE",
        "TIMEWAIT_EXIT",
    ]
    .get(ev as usize)
    .copied()
    .unwrap_or("?")
}

fn handle(id: *mut Id, mut event: Event) -> i32 {
    // SAFETY: The memory stays until the world ends; the handler is the driver's for this id.
    unsafe {
        let Some(f) = (*id).handler else { return 0 };
        world::enter();
        let rc = f(id.cast(), (&raw mut event).cast());
        world::leave();
        rc
    }
}

fn new_id(
    node: usize,
    class: &'static core::ffi::CStr,
    handler: ro2ib_cm_handler,
    context: *mut c_void,
) -> *mut Id {
    let world = w();
    world.next_id += 1;
    let nr = world.next_id;
    let id = Box::into_raw(Box::new(Id {
        node,
        nr,
        handler,
        context,
        lock: lock::new(class),
        dev: core::ptr::null_mut(),
        qp: core::ptr::null_mut(),
        old_qp: core::ptr::null_mut(),
        tried: false,
        state: State::Idle,
        cm: Cm::Idle,
        src: Addr::default(),
        dst: Addr::default(),
        other: 0,
        active: false,
        route: false,
        mtu: 4096,
        tos: 0,
        tries: 0,
        resolved: 0,
        epoch: 0,
        param: (0, 0),
        remote_guid: 0,
        remote_qpn: 0,
        gone: false,
        core: false,
        taken: false,
        told: false,
        said: (0, 0),
        requests: Limited::new(Some(REQUESTS)),
    }));
    world.ids.insert(nr, id);
    world.all_ids.push(id);
    id
}

fn attach(id: &mut Id, dev: *mut Dev) {
    if id.dev.is_null() {
        id.dev = dev;
        let this: *mut Id = id;
        // SAFETY: Devices stay until the world ends.
        unsafe { (*dev).ids.push(this) };
    }
}

/// Returns the live id of a node that has the request of id `from`.
fn asked_by(node: usize, from: u64) -> Option<&'static Id> {
    // SAFETY: Ids stay until the world ends.
    let id = w().asked.get(&from).map(|id| unsafe { &**id })?;
    (id.node == node && !id.gone).then_some(id)
}

/// Sets the queue pair of the other side.
fn set_remote(id: *mut Id, from: *mut Dev, qpn: u32) {
    // SAFETY: Devices and ids stay until the world ends.
    let i = unsafe { &mut *id };
    // SAFETY: As above.
    i.remote_guid = unsafe { (*from).guid };
    i.remote_qpn = qpn;
    let ids = w().ids_by_remote.entry((i.remote_guid, qpn)).or_default();
    // SAFETY: As above.
    ids.retain(|id| unsafe { !(**id).gone });
    ids.push(id);
}

/// Ends a connection of the node with the queue pair that a request or an answer names, as
/// cm_insert_remote_qpn() finds it: the number was used again, and this side does not know of the
/// end. Returns whether there is one; then the message is rejected.
fn is_stale(node: usize, from: *mut Dev, qpn: u32, to: u64) -> bool {
    // SAFETY: Devices stay until the world ends.
    let (guid, ip, tcp) = unsafe { ((*from).guid, (*from).ip, (*from).tcp) };
    if !w().reused || tcp || qpn == 0 {
        return false;
    }
    let connects = |id: &&*mut Id| {
        // SAFETY: Ids stay until the world ends.
        let i = unsafe { &***id };
        let known = matches!(
            i.cm,
            Cm::ReqRcvd | Cm::RepSent | Cm::RepRcvd | Cm::Established | Cm::DreqSent | Cm::DreqRcvd
        );
        known && !i.gone && w().nodes[node].devs.contains(&i.dev)
    };
    let ids = w().ids_by_remote.get(&(guid, qpn));
    let Some(old) = ids.and_then(|ids| ids.iter().find(connects)).copied() else {
        return false;
    };
    // SAFETY: As above.
    let i = unsafe { &mut *old };
    w().stale += 1;
    transmit(
        i.dev,
        ip,
        Packet::Rej {
            to,
            reason: STALE,
            private: Vec::new(),
        },
    );
    if i.cm == Cm::Established && !speechless(i) {
        set(i, Cm::DreqSent);
        send_again(
            old,
            Packet::Dreq {
                to: i.other,
                from: i.nr,
            },
        );
    }
    true
}

/// Handles a packet that has reached a device.
fn arrived(from_dev: *mut Dev, dev: *mut Dev, packet: Packet) {
    // SAFETY: Devices and ids stay until the world ends.
    let (node, from_ip) = unsafe { ((*dev).node, (*from_dev).ip) };
    let to = match &packet {
        Packet::Req { .. } => 0,
        Packet::Over { from } => asked_by(node, *from).map_or(0, |id| id.nr),
        Packet::Rep { to, .. }
        | Packet::Rtu { to }
        | Packet::Rej { to, .. }
        | Packet::Dreq { to, .. }
        | Packet::Drep { to } => *to,
    };
    if let Packet::Req {
        from,
        src,
        dst,
        qpn,
        mtu,
        private,
        param,
    } = packet
    {
        // A request that is known already is a duplicate.
        let known = asked_by(node, from).map_or(Cm::Idle, |id| id.cm);
        if !matches!(known, Cm::Idle | Cm::Timewait) || is_stale(node, from_dev, qpn, from) {
            return;
        }
        return request(
            dev,
            from_dev,
            node,
            from,
            src,
            dst,
            (qpn, mtu),
            private,
            param,
        );
    }
    let Some(id) = id_of(to).filter(|id| unsafe { (**id).dev == dev }) else {
        match packet {
            Packet::Dreq { from, .. } => transmit(dev, from_ip, Packet::Drep { to: from }),
            // An answer to an id that does not exist: the peer sees that over TCP. Otherwise it
            // gets no reject (`cm_dup_rep_handler()`). SAFETY: Devices stay until the world ends.
            Packet::Rep { from, .. } if unsafe { (*dev).tcp } => transmit(
                dev,
                from_ip,
                Packet::Rej {
                    to: from,
                    reason: TIMEOUT,
                    private: Vec::new(),
                },
            ),
            _ => {}
        }
        return;
    };
    // SAFETY: As above.
    let i = unsafe { &mut *id };
    match packet {
        Packet::Rep {
            from, qpn, private, ..
        } => match i.cm {
            // The request stays, and is sent again.
            Cm::ReqSent if is_stale(node, from_dev, qpn, from) => {}
            Cm::ReqSent => {
                set_remote(id, from_dev, qpn);
                i.other = from;
                set(i, Cm::RepRcvd);
                tell(
                    id,
                    rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED,
                    0,
                    private,
                    qpn,
                );
            }
            Cm::Established if i.other == from => {
                let packet = Packet::Rtu { to: from };
                send(i, packet);
            }
            _ => {}
        },
        Packet::Rtu { .. } => established(id),
        Packet::Rej { .. } | Packet::Over { .. } => {
            let (reason, private) = match packet {
                Packet::Rej {
                    reason, private, ..
                } => (reason, private),
                _ => (TIMEOUT, Vec::new()),
            };
            // As cm_rej_handler() does.
            let next = match i.cm {
                Cm::ReqSent | Cm::RepSent | Cm::ReqRcvd if reason == STALE => Cm::Timewait,
                Cm::ReqSent | Cm::RepSent | Cm::ReqRcvd => Cm::Idle,
                Cm::RepRcvd | Cm::Established | Cm::DreqSent => Cm::Timewait,
                Cm::Idle | Cm::DreqRcvd | Cm::Timewait => return,
            };
            // Over TCP there is no message for that: the stream ends. SAFETY: Devices stay until
            // the world ends.
            let tcp = unsafe { (*i.dev).tcp };
            let ends = tcp && matches!(i.cm, Cm::Established | Cm::DreqSent);
            set(i, next);
            if next == Cm::Timewait {
                timewait(id);
            }
            if !i.qp.is_null() && tcp {
                // The provider closes the stream by itself, and does not wait for the handler's
                // mutex.
                verbs::to_err(i.qp);
            }
            let (event, private) = match ends {
                true => (rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED, Vec::new()),
                false => (rdma_cm_event_type_RDMA_CM_EVENT_REJECTED, private),
            };
            tell(id, event, reason, private, 0);
        }
        Packet::Dreq { from, .. } => match i.cm {
            Cm::Established | Cm::RepSent | Cm::DreqSent => {
                set(i, Cm::DreqRcvd);
                tell(
                    id,
                    rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED,
                    0,
                    Vec::new(),
                    0,
                );
            }
            Cm::Timewait => {
                let packet = Packet::Drep { to: from };
                send(i, packet);
            }
            _ => {}
        },
        Packet::Drep { .. } => {
            if i.cm == Cm::DreqSent {
                set(i, Cm::Timewait);
                timewait(id);
                tell(
                    id,
                    rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED,
                    0,
                    Vec::new(),
                    0,
                );
            }
        }
        Packet::Req { .. } => {}
    }
}

fn established(id: *mut Id) {
    // SAFETY: The memory stays until the world ends.
    let i = unsafe { &mut *id };
    if i.cm == Cm::RepSent {
        set(i, Cm::Established);
        w().lnet.met.insert((i.node, i.dst.ip));
        tell(
            id,
            rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED,
            0,
            Vec::new(),
            0,
        );
    }
}

fn request(
    dev: *mut Dev,
    from_dev: *mut Dev,
    node: usize,
    from: u64,
    src: Addr,
    dst: Addr,
    (qpn, mtu): (u32, u32),
    private: Vec<u8>,
    param: (u8, u8),
) {
    // SAFETY: Devices and ids stay until the world ends.
    let listener = unsafe {
        let listeners = (*dev).listeners.iter().copied();
        let hears = |id: &*mut Id| (**id).state == State::Listen && (**id).src.port == dst.port;
        listeners.filter(hears).min_by_key(|id| (**id).nr)
    };
    let Some(listener) = listener else {
        return transmit(
            dev,
            src.ip,
            Packet::Rej {
                to: from,
                reason: NO_SERVICE,
                private: Vec::new(),
            },
        );
    };
    // SAFETY: As above.
    let l = unsafe { &mut *listener };
    let id = new_id(node, c"cm_id (passive)", l.handler, l.context);
    // SAFETY: Just made.
    let i = unsafe { &mut *id };
    i.src = dst;
    i.dst = src;
    i.other = from;
    set_remote(id, from_dev, qpn);
    i.mtu = mtu;
    i.param = param;
    i.state = State::Connect;
    i.route = true;
    attach(i, dev);
    w().asked.insert(from, id);
    set(i, Cm::ReqRcvd);
    // Until the driver has accepted the id.
    i.core = true;
    // SAFETY: As above.
    let gate = move || unsafe { (*listener).requests.waits() };
    sched::spawn_gated(node, "cm request", gate, move || {
        // SAFETY: As above.
        let requests = unsafe { &mut (*listener).requests };
        requests.begin();
        give_request(listener, id, private, qpn);
        requests.end();
    });
}

/// Gives a request to the handler of the listener.
fn give_request(listener: *mut Id, id: *mut Id, private: Vec<u8>, qpn: u32) {
    // SAFETY: Ids stay until the world ends.
    let (l, i) = unsafe { (&mut *listener, &mut *id) };
    lock::take(&raw mut l.lock, false, false);
    if l.gone || l.state != State::Listen {
        i.core = true;
        lock::give(&raw mut l.lock);
        return destroy(id);
    }
    lock::take(&raw mut i.lock, false, false);
    // Its device may be on its way out.
    let mut rc = 1;
    let asked = i.state == State::Connect;
    if asked {
        if telling() {
            say(&format!("id {}: event CONNECT_REQUEST", i.nr));
        }
        rc = handle(
            id,
            Event {
                event: rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST,
                status: 0,
                private,
                qpn,
            },
        );
    }
    i.core = rc != 0;
    if i.core {
        // Under the mutex of the id, as in destroy_id_handler_unlock(): no event follows.
        i.state = State::Destroying;
    }
    lock::give(&raw mut i.lock);
    lock::give(&raw mut l.lock);
    // SAFETY: Devices stay until the world ends.
    if asked && rc != 0 && i.cm == Cm::ReqRcvd && unsafe { (*i.dev).tcp } {
        // Over TCP no request is dropped silently: the provider refuses it, and the active side
        // takes that for the end.
        violation("a request over TCP gets no answer of the driver's");
    }
    if rc == -(ENOMEM as i32) {
        // A request is dropped without an answer (cm_destroy_id()): the peer resends it.
        w().dropped_requests += u64::from(asked);
        set(i, Cm::Idle);
    }
    if rc != 0 {
        destroy(id);
    }
}

fn destroy(id: *mut Id) {
    // SAFETY: The memory stays until the world ends.
    let i = unsafe { &mut *id };
    if i.gone {
        violation("an id is destroyed twice");
    }
    lock::take(&raw mut i.lock, false, false);
    i.state = State::Destroying;
    lock::give(&raw mut i.lock);
    if !i.qp.is_null() {
        violation("an id is destroyed that has a queue pair");
    }
    if !i.old_qp.is_null() && cq::has_left(i.old_qp) {
        violation(
            "an id is destroyed, and completions of its queue pair, which is gone, are to come",
        );
    }
    // The active side takes that for a peer that does not know the protocol.
    if i.cm == Cm::ReqRcvd && i.taken && !speechless(i) && w().faults == 0 {
        violation("who asked is refused without a word of the driver's");
    }
    if i.told && is_not_heard(i) {
        violation("a connection that the peer has is ended with one DREQ");
    }
    let other = i.other;
    match i.cm {
        Cm::ReqRcvd | Cm::RepSent => send(
            i,
            Packet::Rej {
                to: other,
                reason: CONSUMER,
                private: Vec::new(),
            },
        ),
        Cm::Established => send(
            i,
            Packet::Dreq {
                to: other,
                from: i.nr,
            },
        ),
        Cm::DreqRcvd => send(i, Packet::Drep { to: other }),
        Cm::RepRcvd => refuse_rep(i),
        // SAFETY: Devices stay until the world ends.
        Cm::ReqSent if !unsafe { (*i.dev).tcp } => send(i, Packet::Over { from: i.nr }),
        _ => {}
    }
    i.gone = true;
    i.epoch += 1;
    w().ids.remove(&i.nr);
    if !i.dev.is_null() {
        // SAFETY: Devices stay until the world ends.
        unsafe {
            (*i.dev).ids.retain(|x| *x != id);
            (*i.dev).listeners.retain(|x| *x != id);
        }
        sched::wake_all(i.dev as usize);
    }
}

/// Returns whether the driver destroys the id before the DREQ is answered or resent, without a
/// reason.
fn is_not_heard(i: &Id) -> bool {
    // SAFETY: Devices stay until the world ends.
    let dev = unsafe { &*i.dev };
    let (said, ups) = i.said;
    let soon = sched::now() - said < resend() && dev.ups == ups;
    let once = i.cm == Cm::Established || (i.cm == Cm::DreqSent && soon);
    let many = dev.ids.len() > 30;
    let calm = w().prompt && w().faults == 0 && w().foul.is_none();
    once && calm && !many && !speechless(i) && dev.is_calm() && lnet::stays(i.dev)
}

/// Removes a device: all its ids get an event, and the driver has to destroy them.
pub fn removal(dev: *mut Dev) {
    // SAFETY: Devices and ids stay until the world ends.
    unsafe {
        for id in (*dev).ids.clone() {
            tell(
                id,
                rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL,
                0,
                Vec::new(),
                0,
            );
        }
    }
}

/// Tells the ids of a device that the address of its interface moved, or that the core believes so.
pub fn addr_change(dev: *mut Dev) {
    // SAFETY: Devices and ids stay until the world ends.
    unsafe {
        for id in (*dev).ids.clone() {
            tell(
                id,
                rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE,
                0,
                Vec::new(),
                0,
            );
        }
    }
}

/// Returns the number of ids that a node has left.
pub fn left(node: usize) -> usize {
    // SAFETY: Ids stay until the world ends.
    w().ids
        .values()
        .filter(|i| unsafe { (***i).node == node && !(***i).core })
        .count()
}

/// Returns whether the id belongs to the driver.
pub fn is_drivers(id: *mut Id) -> bool {
    // SAFETY: Ids stay until the world ends.
    unsafe { !(*id).core }
}

/// Drops the ids of a node that lost its power.
pub fn forget(node: usize) {
    let world = w();
    // SAFETY: Ids stay until the world ends.
    unsafe {
        world.ids.retain(|_, i| (**i).node != node);
        for i in &world.all_ids {
            if (**i).node == node {
                (**i).gone = true;
                (**i).epoch += 1;
            }
        }
        for dev in &world.nodes[node].devs {
            (**dev).ids.clear();
            (**dev).listeners.clear();
        }
    }
}

fn raw(a: *const ro2ib_addr) -> Addr {
    // SAFETY: The caller passes a valid one.
    let a = unsafe { &*a };
    Addr {
        ip: u32::from_be_bytes([a.ip[0], a.ip[1], a.ip[2], a.ip[3]]),
        port: a.port,
    }
}

fn id_mut<'a>(id: *mut rdma_cm_id) -> &'a mut Id {
    // SAFETY: The memory stays until the world ends.
    let i = unsafe { &mut *id.cast::<Id>() };
    if i.gone {
        violation("an id is used that was destroyed");
    }
    i
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_create(
    _net: *mut net,
    handler: ro2ib_cm_handler,
    context: *mut c_void,
) -> *mut rdma_cm_id {
    lock::might_sleep("rdma_create_id");
    mem::allocates("rdma_create_id");
    sched::point();
    if world::fails(Fault::Alloc) {
        return (-(ENOMEM as isize)) as *mut rdma_cm_id;
    }
    new_id(sched::node(), c"cm_id", handler, context).cast()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_context(id: *mut rdma_cm_id) -> *mut c_void {
    id_mut(id).context
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_adopt(
    id: *mut rdma_cm_id,
    handler: ro2ib_cm_handler,
    context: *mut c_void,
) {
    let i = id_mut(id);
    i.handler = handler;
    i.context = context;
    i.taken = true;
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_device(id: *mut rdma_cm_id) -> *mut ib_device {
    id_mut(id).dev.cast()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_port(_id: *mut rdma_cm_id) -> u32 {
    1
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_dst_addr(id: *mut rdma_cm_id, out: *mut ro2ib_addr) -> bool {
    let i = id_mut(id);
    let mut a = ro2ib_addr {
        port: i.dst.port,
        ..Default::default()
    };
    a.ip[..4].copy_from_slice(&i.dst.ip.to_be_bytes());
    // SAFETY: By the contract of this function.
    unsafe { *out = a };
    true
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_event_get(
    _id: *mut rdma_cm_id,
    ev: *mut rdma_cm_event,
    out: *mut ro2ib_cm_event,
) {
    // SAFETY: By the contract of this function; the event is the one that `handle` has.
    unsafe {
        let e = &*ev.cast::<Event>();
        let with = matches!(
            e.event,
            rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST
                | rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE
                | rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED
        ) || (e.event == rdma_cm_event_type_RDMA_CM_EVENT_REJECTED
            && e.status == CONSUMER);
        *out = ro2ib_cm_event {
            private_data: if with && !e.private.is_empty() {
                e.private.as_ptr().cast()
            } else {
                core::ptr::null()
            },
            event: e.event,
            status: e.status,
            qpn: if with { e.qpn } else { 0 },
            private_data_len: if with { e.private.len() as u8 } else { 0 },
            packet_life_time: if e.event == rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST {
                PACKET_LIFE_TIME
            } else {
                0
            },
        };
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_bind(id: *mut rdma_cm_id, addr: *const ro2ib_addr) -> i32 {
    lock::might_sleep("rdma_bind_addr");
    sched::point();
    let i = id_mut(id);
    let a = raw(addr);
    if world::fails(Fault::Cm) {
        return -(ENOMEM as i32);
    }
    let Some(dev) = local_dev(i.node, a.ip) else {
        // The address may be moving from one device to another.
        w().faults += 1;
        return -(ENODEV as i32);
    };
    // SAFETY: Devices and ids stay until the world ends.
    let taken = unsafe {
        let mut ids = w().nodes[i.node].devs.iter().flat_map(|dev| &(**dev).ids);
        ids.any(|x| (**x).src == a && matches!((**x).state, State::Bound | State::Listen))
    };
    if taken {
        return -(EADDRINUSE as i32);
    }
    i.src = a;
    i.state = State::Bound;
    attach(i, dev);
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_listen(id: *mut rdma_cm_id, _backlog: i32) -> i32 {
    lock::might_sleep("rdma_listen");
    sched::point();
    if world::fails(Fault::Cm) {
        return -(ENOMEM as i32);
    }
    let i = id_mut(id);
    if i.state != State::Bound {
        return -(EINVAL as i32);
    }
    i.state = State::Listen;
    // SAFETY: Devices stay until the world ends.
    unsafe { (*i.dev).listeners.push(id.cast()) };
    0
}

fn resolve(
    id: *mut rdma_cm_id,
    src: *const ro2ib_addr,
    dst: *const ro2ib_addr,
    port: Option<u16>,
    timeout_ms: u32,
) -> i32 {
    lock::might_sleep("rdma_resolve_addr");
    mem::allocates("rdma_resolve_addr");
    sched::point();
    let i = id_mut(id);
    if world::fails(Fault::Cm) {
        let peer = raw(dst).ip;
        w().lnet.unasked.insert((i.node, peer), sched::now());
        return -(ENOMEM as i32);
    }
    if i.state != State::Idle && i.state != State::Bound {
        return -(EINVAL as i32);
    }
    i.dst = raw(dst);
    if !src.is_null() {
        i.src = raw(src);
    }
    // An id that resolves its address again keeps its port.
    if !src.is_null() || i.src.port == 0 {
        i.src.port = port.unwrap_or_else(|| 32768 + (i.nr % 20000) as u16);
    }
    let found = local_dev(i.node, i.src.ip).filter(|_| !w().no_gid);
    let Some(dev) = found else {
        return -(ENODEV as i32);
    };
    i.state = State::AddrQuery;
    i.active = true;
    w().lnet.met.insert((i.node, i.dst.ip));
    let id: *mut Id = id.cast();
    let world = w();
    i.resolved += 1;
    let slow = world.plan.slow_steps && i.resolved < 5;
    let lost = slow || world.rng.ppm(world.plan.cm_lost_ppm);
    let wait = if lost {
        u64::from(timeout_ms) * MS
    } else {
        world
            .rng
            .range(world.plan.wire_min, 40 * world.plan.wire_max)
    };
    sched::after(wait, move || {
        // SAFETY: Ids and devices stay until the world ends.
        let i = unsafe { &mut *id };
        if i.gone {
            return;
        }
        // SAFETY: As above. Only InfiniBand loses a carrier and not the link.
        let there = dev_of(i.dst.ip)
            .is_some_and(|d| unsafe { verbs::reaches(dev, d) && (*dev).carrier && (*d).carrier });
        // The neighbour of a peer that does not answer TCP is still known.
        if lost || (!there && w().plan.tcp_gives_up == 0) {
            let wait = if lost { 0 } else { u64::from(timeout_ms) * MS };
            sched::after(wait, move || {
                tell(
                    id,
                    rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR,
                    -(ETIMEDOUT as i32),
                    Vec::new(),
                    0,
                );
            });
        } else {
            attach(i, dev);
            tell(
                id,
                rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED,
                0,
                Vec::new(),
                0,
            );
        }
    });
    0
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_resolve_addr(
    id: *mut rdma_cm_id,
    src: *const ro2ib_addr,
    dst: *const ro2ib_addr,
    timeout_ms: u32,
) -> i32 {
    resolve(id, src, dst, None, timeout_ms)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_resolve_addr_privileged(
    id: *mut rdma_cm_id,
    src: *const ro2ib_addr,
    dst: *const ro2ib_addr,
    timeout_ms: u32,
    share: bool,
) -> i32 {
    // SAFETY: By the contract of this function.
    let port = match unsafe { (*src).port } {
        port @ 1..1024 if share => port,
        _ => 1023,
    };
    if share {
        has_own_path(id_mut(id).node, (raw(src).ip, raw(dst).ip), port);
    }
    resolve(id, src, dst, Some(port), timeout_ms)
}

/// Checks that no established connection of `node` as the active side has source port `port`
/// between the two addresses.
fn has_own_path(node: usize, (from, to): (u32, u32), port: u16) {
    for dev in &w().nodes[node].devs {
        // SAFETY: Ids, queue pairs and devices stay until the world ends.
        let shared = unsafe { &(**dev).ids }.iter().any(|id| unsafe {
            let i = &**id;
            let up = !i.qp.is_null() && verbs::up(*dev).contains(&i.qp);
            up && i.active && (i.src.ip, i.dst.ip, i.src.port) == (from, to, port)
        });
        if shared {
            violation("two connections to one peer have one source port");
        }
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_destroy(id: *mut rdma_cm_id, unresolved: bool) {
    if !unresolved {
        // SAFETY: By the contract of this function.
        return unsafe { rdma_destroy_id(id) };
    }
    lock::might_sleep("rdma_destroy_id");
    sched::point();
    destroy(id.cast());
}
#[no_mangle]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) {
    lock::might_sleep("rdma_destroy_id");
    work::frees(id_mut(id).dev);
    sched::point();
    destroy(id.cast());
    sched::point();
    work::freed();
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_resolve_route(id: *mut rdma_cm_id, timeout_ms: u32) -> i32 {
    lock::might_sleep("rdma_resolve_route");
    mem::allocates("rdma_resolve_route");
    sched::point();
    if world::fails(Fault::Cm) {
        return -(ENOMEM as i32);
    }
    let i = id_mut(id);
    if i.state != State::AddrResolved {
        return -(EINVAL as i32);
    }
    if w().no_sm {
        return -(EAGAIN as i32);
    }
    i.state = State::RouteQuery;
    let id: *mut Id = id.cast();
    let world = w();
    let lost = world.rng.ppm(world.plan.cm_lost_ppm);
    let wait = if lost {
        u64::from(timeout_ms) * MS
    } else if world.plan.slow_steps {
        u64::from(timeout_ms) * MS * 9 / 10
    } else {
        world
            .rng
            .range(world.plan.wire_min, 40 * world.plan.wire_max)
    };
    sched::after(wait, move || {
        let ev = if lost {
            rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR
        } else {
            rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED
        };
        tell(
            id,
            ev,
            if lost { -(ETIMEDOUT as i32) } else { 0 },
            Vec::new(),
            0,
        );
    });
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_set_min_rnr_timer(_id: *mut rdma_cm_id, _timer: u8) -> i32 {
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_set_path_mtu(id: *mut rdma_cm_id, bytes: u32, most: u32) -> i32 {
    let i = id_mut(id);
    if !i.route || ![256, 512, 1024, 2048, 4096].contains(&bytes) {
        return -(EINVAL as i32);
    }
    i.mtu = bytes.min(most);
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_path(id: *mut rdma_cm_id, out: *mut ro2ib_cm_path) {
    let i = id_mut(id);
    let mut path = ro2ib_cm_path {
        port: u32::from(!i.dev.is_null()),
        tos: -1,
        sl: -1,
        retry_count: -1,
        rnr_retry_count: -1,
        ack_timeout: -1,
        ..Default::default()
    };
    if i.route {
        (path.sgid, path.dgid) = (gid(&i.src), gid(&i.dst));
        (path.mtu, path.tos, path.sl) = (i.mtu, i.tos.into(), 0);
    }
    if let Some((retry, rnr_retry)) = verbs::retries(i.qp) {
        (path.retry_count, path.rnr_retry_count) = (retry as i8, rnr_retry as i8);
        path.ack_timeout = verbs::ack_timeout();
    }
    // SAFETY: By the contract of this function.
    unsafe { *out = path };
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_roce_gid(id: *mut rdma_cm_id, to: *mut u8) -> bool {
    let i = id_mut(id);
    // SAFETY: Devices stay until the world ends, and a request came to one.
    if unsafe { (*i.dev).tcp } || w().plan.ib {
        return false;
    }
    // SAFETY: By the contract of this function.
    unsafe { to.cast::<[u8; 16]>().write(gid(&i.dst)) };
    true
}

/// Returns the GID that RoCE derives from an IPv4 address.
fn gid(of: &Addr) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&of.ip.to_be_bytes());
    gid
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_reachability(id: *mut rdma_cm_id) -> ro2ib_cm_reachability {
    let i = id_mut(id);
    if i.dev.is_null() || w().plan.ib {
        return ro2ib_cm_reachability_RO2IB_CM_REACHABLE;
    }
    // SAFETY: Devices stay until the world ends.
    let (moved, up) = unsafe { ((*i.dev).moved.is_some(), (*i.dev).up) };
    match (moved, up && w().no_route != Some(i.node)) {
        (true, _) => ro2ib_cm_reachability_RO2IB_CM_NO_ADDRESS,
        (false, false) => ro2ib_cm_reachability_RO2IB_CM_NO_ROUTE,
        (false, true) => ro2ib_cm_reachability_RO2IB_CM_REACHABLE,
    }
}
#[no_mangle]
pub unsafe extern "C" fn rdma_set_service_type(id: *mut rdma_cm_id, tos: i32) {
    id_mut(id).tos = tos as u8;
}
#[no_mangle]
pub unsafe extern "C" fn rdma_set_ack_timeout(_id: *mut rdma_cm_id, _timeout: u8) -> i32 {
    0
}
#[no_mangle]
pub unsafe extern "C" fn rdma_lock_handler(id: *mut rdma_cm_id) {
    lock::take(&raw mut id_mut(id).lock, false, false);
}
#[no_mangle]
pub unsafe extern "C" fn rdma_unlock_handler(id: *mut rdma_cm_id) {
    lock::give(&raw mut id_mut(id).lock);
}

fn private(p: &ro2ib_conn_param) -> Vec<u8> {
    if p.private_data_len == 0 {
        return Vec::new();
    }
    // SAFETY: The caller passes valid bytes.
    unsafe { core::slice::from_raw_parts(p.private_data.cast::<u8>(), p.private_data_len.into()) }
        .to_vec()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_connect_locked(
    id: *mut rdma_cm_id,
    param: *const ro2ib_conn_param,
) -> i32 {
    lock::might_sleep("rdma_connect_locked");
    mem::allocates("rdma_connect_locked");
    sched::point();
    let i = id_mut(id);
    if !lock::mine(&raw const i.lock) {
        violation("rdma_connect_locked without the lock");
    }
    if world::fails(Fault::Cm) {
        return -(ENOMEM as i32);
    }
    if i.state != State::RouteResolved || speechless(i) {
        return -(EINVAL as i32);
    }
    // SAFETY: By the contract of this function.
    let p = unsafe { &*param };
    i.state = State::Connect;
    i.param = (p.retry_count, p.rnr_retry_count);
    w().requests += 1;
    set(i, Cm::ReqSent);
    // The receiver gets as much as the message holds.
    let mut data = private(p);
    data.resize(56, 0);
    // SAFETY: The memory of the queue pair stays until the world ends.
    let qpn = if i.qp.is_null() {
        0
    } else {
        unsafe { (*i.qp).qpn }
    };
    let packet = Packet::Req {
        from: i.nr,
        src: i.src,
        dst: i.dst,
        qpn,
        mtu: i.mtu,
        private: data,
        param: i.param,
    };
    send_again(id.cast(), packet);
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_accept_locked(
    id: *mut rdma_cm_id,
    param: *const ro2ib_conn_param,
) -> i32 {
    lock::might_sleep("rdma_accept");
    mem::allocates("rdma_accept");
    sched::point();
    let i = id_mut(id);
    if !lock::mine(&raw const i.lock) {
        violation("rdma_accept without the lock");
    }
    if world::fails(Fault::Cm) {
        // The core rejects the request by itself; the driver does nothing.
        if i.state == State::Connect && i.cm == Cm::ReqRcvd {
            if !i.qp.is_null() {
                verbs::to_err(i.qp);
            }
            let packet = Packet::Rej {
                to: i.other,
                reason: CONSUMER,
                private: vec![0; 148],
            };
            send(i, packet);
            set(i, Cm::Idle);
        }
        return -(ENOMEM as i32);
    }
    if i.state != State::Connect || i.cm != Cm::ReqRcvd || speechless(i) {
        return -(EINVAL as i32);
    }
    // SAFETY: Devices stay until the world ends. An adapter refuses such a path, rxe takes it.
    if unsafe { i.mtu > (*i.dev).mtu && !(*i.dev).software } {
        let packet = Packet::Rej {
            to: i.other,
            reason: CONSUMER,
            private: vec![0; 148],
        };
        send(i, packet);
        set(i, Cm::Idle);
        return -(EINVAL as i32);
    }
    // SAFETY: By the contract of this function.
    let p = unsafe { &*param };
    let mut data = private(p);
    data.resize(196, 0);
    set(i, Cm::RepSent);
    // SAFETY: The memory of the queue pair stays until the world ends.
    let qpn = if i.qp.is_null() {
        0
    } else {
        unsafe { (*i.qp).qpn }
    };
    if !i.qp.is_null() {
        verbs::connect(i.qp, i.remote_qpn, i.mtu, i.param.0, p.rnr_retry_count);
        // SAFETY: As above.
        unsafe { (*i.qp).called = Some(sched::now()) };
    }
    let packet = Packet::Rep {
        to: i.other,
        from: i.nr,
        qpn,
        private: data,
    };
    send_again(id.cast(), packet);
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cm_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> i32 {
    lock::might_sleep("rdma_reject");
    sched::point();
    let i = id_mut(id);
    if i.cm != Cm::ReqRcvd {
        return -(EINVAL as i32);
    }
    // SAFETY: By the contract of this function.
    let mut bytes = if len == 0 {
        Vec::new()
    } else {
        unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
    };
    bytes.resize(148, 0);
    if i.taken && bytes[6] == NO_RESOURCES {
        lnet::refused_for_want(i.dev);
    }
    w().rejected_requests += 1;
    let packet = Packet::Rej {
        to: i.other,
        reason: CONSUMER,
        private: bytes,
    };
    send(i, packet);
    set(i, Cm::Idle);
    0
}
#[no_mangle]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> i32 {
    lock::might_sleep("rdma_disconnect");
    sched::point();
    let i = id_mut(id);
    if i.cm == Cm::Idle && i.other == 0 {
        return -(EINVAL as i32);
    }
    let until = sched::now() + w().plan.tcp_gives_up;
    while id_mut(id).cm == Cm::ReqSent && sched::now() < until {
        sched::sleep(SEC);
    }
    let i = id_mut(id);
    // Nothing is sent from a queue pair that does not enter the error state.
    if !i.qp.is_null() && !verbs::cm_to_err(i.qp) {
        return -(EIO as i32);
    }
    let (nr, other) = (i.nr, i.other);
    match i.cm {
        Cm::Established if speechless(i) => {
            set(i, Cm::Timewait);
            timewait(id.cast());
        }
        Cm::Established => {
            // SAFETY: Devices stay until the world ends.
            i.said = (sched::now(), unsafe { (*i.dev).ups });
            set(i, Cm::DreqSent);
            send_again(
                id.cast(),
                Packet::Dreq {
                    to: other,
                    from: nr,
                },
            );
        }
        Cm::DreqRcvd => {
            send(i, Packet::Drep { to: other });
            set(i, Cm::Timewait);
            timewait(id.cast());
        }
        _ => {}
    }
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ib_pd,
    cq: *mut ro2ib_cq,
    caps: *mut ro2ib_qp_caps,
    out: *mut *mut ib_qp,
) -> i32 {
    let i = id_mut(id);
    if i.dev.is_null() {
        return -(EINVAL as i32);
    }
    if !i.qp.is_null() {
        violation("a second queue pair of an id");
    }
    verbs::command(i.dev);
    // SAFETY: By the contract of this function.
    unsafe {
        let first = !core::mem::replace(&mut i.tried, true);
        match verbs::create_qp(pd, cq, caps, first) {
            Ok(qp) => {
                id_mut(id).qp = qp;
                *out = qp.cast();
                0
            }
            Err(e) => e,
        }
    }
}
#[no_mangle]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let i = id_mut(id);
    let qp = i.qp;
    verbs::destroy_qp(qp);
    i.qp = core::ptr::null_mut();
    i.old_qp = qp;
}
