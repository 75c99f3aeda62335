// SPDX-License-Identifier: GPL-2.0

//! World: its nodes, the faults of its run, and its checks.
//!
//! # Context
//!
//! [`w`] is valid between [`begin`] and [`end`]. The reference that it returns must not be kept
//! over a call that may switch tasks or enter the driver; all of this is one thread.

use std::{
    any::Any,
    cell::Cell,
    ops::Range, //
};

use crate::{
    byzantine,
    cm,
    cq,
    decl::{
        k::*,
        r::*, //
    },
    dma,
    fixed_hash::Map,
    kernel_core,
    lnet,
    lock,
    mem,
    rng::Rng,
    sched::{
        self,
        Sched,
        MS,
        SEC,
        US, //
    },
    trace_check,
    true_counts::Truth,
    verbs::{
        self,
        Dev,
        Qp, //
    },
    work, //
};

/// Kind of a fault that the seed can cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An allocation.
    Alloc,
    /// Creation of an object of verbs, or the mapping of a region.
    Verbs,
    /// A mapping of memory for a device.
    Dma,
    /// A call of the CM.
    Cm,
    /// A post of a send.
    Post,
    /// A work request.
    Completion,
    /// A post of a receive.
    PostRecv,
}

/// Number of kinds.
pub const FAULTS: usize = 7;

/// Configuration of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// `peer_credits`.
    pub credits: u32,
    /// Neither `peer_credits` nor `wrq_sge` is set: the driver fits them to the link.
    pub open: bool,
    /// `peer_credits_hiw`.
    pub hiw: u32,
    /// `conns_per_peer`.
    pub conns: u32,
    /// Number of devices, each with an NI.
    pub devs: usize,
    /// A provider like rxe.
    pub software: bool,
    /// A provider like siw.
    pub tcp: bool,
    /// Limits of its device.
    pub max_qp_wr: u32,
    /// As above.
    pub max_sge: u32,
    /// Limit of its device: memory regions.
    pub max_mr: u32,
}

/// Configuration and faults of a world, without the order of tasks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes of the world.
    pub nodes: Vec<NodePlan>,
    /// CPUs of each node.
    pub cpus: u32,
    /// `cksum`.
    pub cksum: bool,
    /// Module parameters that `ni_tune` overrides.
    pub params: lnet::Params,
    /// All devices are InfiniBand: the CM and the transport wait longer, an address is resolved
    /// through IPoIB, and a path is a LID.
    pub ib: bool,
    /// The CM is that of OFED, which waits four times as long for an answer.
    pub ofed: bool,
    /// `wrq_sge`.
    pub wrq_sge: u32,
    /// `use_privileged_port`.
    pub privileged: bool,
    /// The device of this node advertises LOCAL_INV and refuses it when it is posted.
    pub refuses_inv: Option<usize>,
    /// LNet keeps some of the received messages for most of a minute, and other messages must pass.
    pub hoards: bool,
    /// Over TCP the active side sends no message for long, as other drivers may do.
    pub shy: bool,
    /// Each step of a handshake takes seconds, but no step exceeds its limit.
    pub slow_steps: bool,
    /// Devices send no message inline.
    pub no_inline: bool,
    /// Nanoseconds for which the driver may keep a message that is sent; 0: no limit.
    pub patience: u64,
    /// Every send has a completion of its own.
    pub signal_all: bool,
    /// Trace points are enabled.
    pub looked_at: bool,
    /// Shortest time on the wire in nanoseconds.
    pub wire_min: u64,
    /// Longest time on the wire in nanoseconds.
    pub wire_max: u64,
    /// Messages of a million that take milliseconds.
    pub slow_wire_ppm: u32,
    /// Messages of the CM, of a million, that are lost.
    pub cm_lost_ppm: u32,
    /// Nodes whose CM messages are all lost; they receive the messages of others.
    pub mute: Range<usize>,
    /// Messages of the CM, of a million, that are duplicated.
    pub cm_double_ppm: u32,
    /// Messages of the CM, of a million, that are late.
    pub cm_late_ppm: u32,
    /// Calls of a million in which LNet sleeps in parse or finalize.
    pub slow_lnet_ppm: u32,
    /// Longest such sleep.
    pub slow_lnet_max: u64,
    /// Time for which LNet sleeps with each failed message.
    pub slow_failures: u64,
    /// Time for which a disconnect waits for the TCP of a peer that has not answered, as in the kernel's iw_cm.
    pub tcp_gives_up: u64,
    /// Node whose LNet does not return from its next call that ends a message, until this is `None` again.
    pub stuck: Option<usize>,
    /// Received messages, of a million, that no application wants.
    pub no_match_ppm: u32,
    /// Messages, of a million, of which the application wants a part.
    pub cut_ppm: u32,
    /// Memory, of a million buffers, that is a GPU's.
    pub gpu_ppm: u32,
    /// Messages, of a million, that LNet matches later.
    pub delay_ppm: u32,
    /// LNet keeps some of these until the device is gone, or for a quarter of an hour.
    pub keeps: bool,
    /// Received messages, of a million, that LNet refuses.
    pub parse_error_ppm: u32,
    /// Sends, of a million, that LNet itself makes fail.
    pub send_error_ppm: u32,
    /// Calls of a million that fail, by kind.
    pub fault_ppm: [u32; FAULTS],
    /// Number of the call that fails, by kind.
    pub fault_nth: [Option<u64>; FAULTS],
}

impl Plan {
    /// Creates a plan without faults.
    pub fn calm(nodes: usize) -> Self {
        Self {
            nodes: vec![
                NodePlan {
                    credits: 8,
                    open: false,
                    hiw: 4,
                    conns: 1,
                    devs: 1,
                    software: false,
                    tcp: false,
                    max_qp_wr: 16384,
                    max_sge: 16,
                    max_mr: 1 << 16,
                };
                nodes
            ],
            cpus: 4,
            cksum: false,
            params: lnet::Params::default(),
            ib: false,
            ofed: false,
            wrq_sge: 2,
            privileged: false,
            refuses_inv: None,
            hoards: false,
            shy: false,
            slow_steps: false,
            no_inline: false,
            patience: 0,
            signal_all: false,
            looked_at: false,
            wire_min: US,
            wire_max: 20 * US,
            slow_wire_ppm: 0,
            cm_lost_ppm: 0,
            mute: 0..0,
            cm_double_ppm: 0,
            cm_late_ppm: 0,
            slow_lnet_ppm: 0,
            slow_lnet_max: 100 * MS,
            slow_failures: 0,
            tcp_gives_up: 0,
            stuck: None,
            no_match_ppm: 0,
            cut_ppm: 0,
            gpu_ppm: 0,
            delay_ppm: 0,
            keeps: false,
            parse_error_ppm: 0,
            send_error_ppm: 0,
            fault_ppm: [0; FAULTS],
            fault_nth: [None; FAULTS],
        }
    }
}

/// Node of a world.
pub struct Node {
    /// Devices of the node, unplugged ones too.
    pub devs: Vec<*mut Dev>,
    /// The driver's operations, while its module is loaded.
    pub ops: *const ro2ib_lnd_ops,
    /// The driver's pointer for these operations.
    pub driver: *mut c_void,
    /// NIs of the node, deleted ones too.
    pub nis: Vec<*mut lnet::Ni>,
    /// The node has lost its power.
    pub dead: bool,
    /// References of the network namespace.
    pub net_refs: usize,
    /// The peer that its parameter `access` denies.
    pub denied: Option<u64>,
    /// True counts of its driver.
    pub truth: Truth,
    /// Value of its parameter `ni_tune`, for all its NIs.
    pub tune: ro2ib_tuning,
    /// Calls into the driver that have not returned.
    pub inside: usize,
    /// Lock of the core's list of event handlers.
    pub event_lock: spinlock_t,
    /// The shim's mutex.
    pub ni_lock: spinlock_t,
    /// LNet's spin lock, held while NIs are shown.
    pub net_lock: spinlock_t,
    /// The network's rtnl.
    pub rtnl: spinlock_t,
    module: Option<Box<dyn Any>>,
}

/// World of a seed.
pub struct World {
    /// Seed of the world.
    pub seed: u64,
    /// Scheduler.
    pub sched: Sched,
    /// Source of faults, times and choices.
    pub rng: Rng,
    /// Plan of the world.
    pub plan: Plan,
    /// Faults happen.
    pub faulty: bool,
    /// Only credits hold messages up.
    pub eager: bool,
    /// No fault happens in this world.
    pub strict: bool,
    /// No task is held up for longer than a moment.
    pub prompt: bool,
    /// The task whose allocations fail.
    pub short: usize,
    /// The node whose driver's allocations fail.
    pub dry: Option<usize>,
    /// First check that failed.
    pub failed: Option<String>,
    /// Story of the world, if it is recorded.
    pub story: Option<Vec<String>>,
    /// Nodes of the world.
    pub nodes: Vec<Node>,
    /// Lock classes.
    pub classes: lock::Classes,
    /// Work queues and items.
    pub works: work::Works,
    /// Tasks that drop objects after a grace period, and the node of each.
    pub rcu_drops: Vec<(usize, sched::Tid)>,
    /// Tasks in an RCU read section.
    pub rcu_readers: Vec<sched::Tid>,
    /// Running timers, and the node of each.
    pub timers: Map<usize, usize>,
    /// Files of debugfs.
    pub dentries: Vec<*mut kernel_core::Dentry>,
    /// Behaviour of adapters.
    pub family: verbs::Family,
    /// Source of its times.
    pub family_rng: Rng,
    /// Mappings for devices.
    pub maps: dma::Maps,
    /// Number of live scatterlists.
    pub sg_tables: usize,
    /// Number of live scatterlists of reserves.
    pub sg_reserved: usize,
    /// Queue pairs by number.
    pub qps: Map<u32, *mut Qp>,
    /// Queue pairs of the world, destroyed ones too.
    pub all_qps: Vec<*mut Qp>,
    /// A queue pair has the number of an earlier one.
    pub reused: bool,
    /// Number of requests and answers of the CM that were rejected as of a stale connection.
    pub stale: u64,
    /// Last number of a queue pair.
    pub next_qpn: u32,
    /// Ids by number.
    pub ids: Map<u64, *mut cm::Id>,
    /// The last id that was made for the request of an id, by the number of that id.
    pub asked: Map<u64, *mut cm::Id>,
    /// Ids by the other side's queue pair: GUID of its adapter, and number.
    pub ids_by_remote: Map<(u64, u32), Vec<*mut cm::Id>>,
    /// Ids of the world, destroyed ones too.
    pub all_ids: Vec<*mut cm::Id>,
    /// Last number of an id.
    pub next_id: u64,
    /// LNet of all nodes.
    pub lnet: lnet::Lnet,
    /// Number of WRITEs with a key that opened no memory.
    pub bad_keys: usize,
    /// Number of messages that found no buffer.
    pub rnrs: usize,
    /// Number of messages on the wire.
    pub messages: u64,
    /// Number of connection requests of drivers.
    pub requests: u64,
    /// Number of connection requests that a listener dropped without an answer.
    pub dropped_requests: u64,
    /// Number of connection requests that a listener rejected.
    pub rejected_requests: u64,
    /// Number of calls that could fail, by kind.
    pub calls: [u64; FAULTS],
    /// Number of calls that failed.
    pub faults: u64,
    /// Number of lines printed, by level.
    pub printed: [u64; 8],
    /// Contents of the trace events.
    pub trace: trace_check::Seen,
    /// Devices with this address and one of these numbers take [`verbs::HANGS`] for each command.
    pub hangs: Option<(u32, core::ops::Range<usize>)>,
    /// Number of such commands that are under way.
    pub hung: usize,
    /// Node whose devices refuse to destroy queue pairs, while there is one, and whether they flush them.
    pub keeps_qps: Option<(usize, bool)>,
    /// Node whose devices refuse to destroy regions, while there is one.
    pub keeps_mrs: Option<usize>,
    /// Duration of each allocation of a memory region, in nanoseconds.
    pub region_time: u64,
    /// Number of allocations of memory regions until one fails.
    pub region_fails: Option<usize>,
    /// No device has a GID of the address of an NI at the moment.
    pub no_gid: bool,
    /// The LID of the subnet manager is not known at the moment.
    pub no_sm: bool,
    /// Node that has no route to other nodes at the moment, though its interfaces are up.
    pub no_route: Option<usize>,
    /// Node whose driver must not wait for memory in LNet's calls.
    pub no_wait: Option<usize>,
    /// Script of the byzantine peer, if the world has one.
    pub foul: Option<byzantine::Foul>,
}

thread_local! {
    static WORLD: Cell<*mut World> = const { Cell::new(core::ptr::null_mut()) };
}

/// Returns the world.
#[inline]
pub fn w() -> &'static mut World {
    // SAFETY: One thread; see the module's documentation.
    unsafe { &mut *WORLD.with(Cell::get) }
}

/// Returns whether there is a world.
pub fn is_there() -> bool {
    !WORLD.with(Cell::get).is_null()
}

/// Begins a world. The caller then spawns its tasks and calls [`sched::run`].
pub fn begin(seed: u64, plan: Plan, tell: bool) {
    let nodes = plan
        .nodes
        .iter()
        .enumerate()
        .map(|(i, n)| {
            let attrs = ro2ib_device_attrs {
                max_qp: 1 << 16,
                max_qp_wr: n.max_qp_wr,
                max_send_sge: n.max_sge,
                max_cqe: 1 << 20,
                max_mr: n.max_mr,
                max_fast_reg_page_list_len: 512,
                page_size_cap: !0xfff,
                mem_mgt_extensions: true,
                local_inv: true,
            };
            Node {
                devs: (0..n.devs)
                    .map(|d| Dev::new(i, d, ip(i, d), attrs, (n.software, n.tcp)))
                    .collect(),
                ops: core::ptr::null(),
                driver: core::ptr::null_mut(),
                nis: Vec::new(),
                dead: false,
                net_refs: 0,
                denied: None,
                truth: Truth::default(),
                tune: lnet::UNTUNED,
                inside: 0,
                event_lock: lock::new(c"ib_event_lock"),
                ni_lock: lock::new(c"ro2ib_ni_mutex"),
                net_lock: lock::new(c"lnet_net_lock"),
                rtnl: lock::new(c"rtnl_mutex"),
                module: None,
            }
        })
        .collect();
    let looked_at = plan.looked_at;
    let world = Box::new(World {
        seed,
        sched: Sched::new(Rng::new(seed ^ 0x5ced)),
        rng: Rng::new(seed),
        plan,
        faulty: false,
        strict: false,
        eager: false,
        prompt: false,
        short: sched::NONE,
        dry: None,
        failed: None,
        story: tell.then(Vec::new),
        nodes,
        classes: lock::Classes::default(),
        rcu_drops: Vec::new(),
        rcu_readers: Vec::new(),
        works: work::Works::default(),
        timers: Map::default(),
        dentries: Vec::new(),
        family: verbs::Family::of(seed),
        family_rng: Rng::new(seed ^ 0xf1a5_4000),
        maps: dma::Maps::new(seed),
        sg_tables: 0,
        sg_reserved: 0,
        qps: Map::default(),
        all_qps: Vec::new(),
        reused: false,
        stale: 0,
        next_qpn: 0x10,
        ids: Map::default(),
        asked: Map::default(),
        ids_by_remote: Map::default(),
        all_ids: Vec::new(),
        next_id: 0,
        lnet: lnet::Lnet::default(),
        bad_keys: 0,
        rnrs: 0,
        messages: 0,
        requests: 0,
        dropped_requests: 0,
        rejected_requests: 0,
        calls: [0; FAULTS],
        faults: 0,
        printed: [0; 8],
        trace: trace_check::Seen::default(),
        hangs: None,
        hung: 0,
        keeps_qps: None,
        keeps_mrs: None,
        region_time: 0,
        region_fails: None,
        no_gid: false,
        no_sm: false,
        no_route: None,
        no_wait: None,
        foul: None,
    });
    trace_check::begin(looked_at || tell);
    WORLD.with(|c| c.set(Box::into_raw(world)));
}

/// Returns the address of the interface of a node's device.
pub fn ip(node: usize, dev: usize) -> u32 {
    0x0a00_0001 + ((node as u32) << 8) + dev as u32
}

/// Returns the node that has an address of [`ip`].
pub fn node_of(ip: u32) -> usize {
    (ip.wrapping_sub(0x0a00_0001) >> 8) as usize
}

/// Result of a world.
#[derive(Debug, Default)]
pub struct End {
    /// First check that failed.
    pub failed: Option<String>,
    /// Story of the world.
    pub story: Vec<String>,
    /// Steps of tasks.
    pub steps: u64,
    /// Points at which another task could have run.
    pub points: u64,
    /// Messages on the wire.
    pub messages: u64,
    /// Calls that failed.
    pub faults: u64,
    /// Hash of its schedule.
    pub schedule: u64,
    /// Number of operations.
    pub ops: usize,
    /// Number of operations that succeeded.
    pub good: usize,
    /// Simulated nanoseconds.
    pub time: u64,
    /// Lines printed with level warning or above.
    pub warnings: u64,
}

/// Ends a world.
pub fn end() -> End {
    let world = w();
    if world.failed.is_none() && sched::any_left() {
        let left = sched::left();
        fail(&format!("tasks wait for ever: {left:?}"));
    }
    sched::clear();
    if let Some(late) = lnet::written_late() {
        fail(&late);
    }
    for node in &mut world.nodes {
        core::mem::forget(node.module.take());
    }
    if let Some(bad) = mem::clear() {
        fail(&bad);
    }
    let end = End {
        failed: world.failed.take(),
        story: world.story.take().unwrap_or_default(),
        steps: world.sched.steps,
        points: world.sched.points,
        messages: world.messages,
        faults: world.faults,
        schedule: sched::hash(),
        ops: world.lnet.ops.len(),
        good: world
            .lnet
            .ops
            .iter()
            .filter(|o| o.result == Some(0))
            .count(),
        time: world.sched.now,
        warnings: world.printed[..5].iter().sum(),
    };
    lnet::clear();
    // SAFETY: The world is over; each was made by a box, and is in one list.
    unsafe {
        for qp in world.all_qps.drain(..) {
            drop(Box::from_raw(qp));
        }
        for id in world.all_ids.drain(..) {
            drop(Box::from_raw(id));
        }
        for d in world.dentries.drain(..) {
            drop(Box::from_raw(d));
        }
        for node in world.nodes.drain(..) {
            for dev in node.devs {
                for cq in (*dev).cqs.drain(..) {
                    drop(Box::from_raw(cq));
                }
                drop(Box::from_raw(dev));
            }
            for ni in node.nis {
                drop(Box::from_raw(ni));
            }
        }
        drop(Box::from_raw(
            WORLD.with(|c| c.replace(core::ptr::null_mut())),
        ));
    }
    end
}

/// Records a failed check, outside of a task.
pub fn fail(what: &str) {
    let world = w();
    if world.failed.is_none() {
        let s = &world.sched;
        let who = match s.tasks.get(s.current) {
            Some(t) => format!(" (task {} {}, node {})", s.current, t.name, t.node),
            None => String::new(),
        };
        let what = format!("{what}{who}");
        say(&format!("VIOLATION: {what}"));
        w().failed = Some(what);
    }
}

/// Records a failed check, and ends the world.
pub fn violation(what: &str) -> ! {
    fail(what);
    if w().sched.current != sched::NONE {
        loop {
            sched::sleep_on(2);
        }
    }
    // An event must not go on.
    std::panic::resume_unwind(Box::new("violation in an event"));
}

/// Returns whether the story is recorded.
pub fn telling() -> bool {
    w().story.is_some()
}

/// Adds a line to the story.
pub fn say(what: &str) {
    let world = w();
    let s = &world.sched;
    if let Some(story) = &mut world.story {
        let t = s.now - 1000 * SEC;
        let who = match s.tasks.get(s.current) {
            Some(t) => format!("n{} {}:{}", t.node, s.current, t.name),
            None => "-".into(),
        };
        let line = format!("{:>6}.{:06} {:<28} {what}", t / SEC, t % SEC / 1000, who);
        if std::env::var_os("RO2IB_SIM_LIVE").is_some() {
            eprintln!("{line}");
        }
        story.push(line);
    }
}

/// Counts a printed line.
pub fn printed(level: i32) {
    w().printed[level as usize & 7] += 1;
}

/// Counts a call into the driver.
pub fn enter() {
    let node = sched::node();
    w().nodes[node].inside += 1;
}

/// Ends a call into the driver.
pub fn leave() {
    let node = sched::node();
    w().nodes[node].inside -= 1;
}

/// Key of the tasks that sleep until the node without memory needs some.
pub const DRY: usize = 3;

/// Returns whether this call fails.
pub fn fails(what: Fault) -> bool {
    let world = w();
    let i = what as usize;
    world.calls[i] += 1;
    if what == Fault::Alloc && world.dry.is_some() && world.dry == Some(sched::node()) {
        w().faults += 1;
        sched::wake_all(DRY);
        return true;
    }
    if !world.faulty {
        return false;
    }
    let ppm = world.plan.fault_ppm[i];
    let short = what == Fault::Alloc && world.short == world.sched.current;
    let nth = world.plan.fault_nth[i] == Some(world.calls[i]);
    let fails = short || nth || (ppm != 0 && world.rng.ppm(ppm));
    if fails {
        world.faults += 1;
        if telling() {
            say(&format!("fails: {what:?}, call {}", w().calls[i]));
        }
    }
    fails
}

/// Returns whether faults of that kind happen in this world.
pub fn may_fail(what: Fault) -> bool {
    let plan = &w().plan;
    plan.fault_ppm[what as usize] != 0 || plan.fault_nth[what as usize].is_some()
}

/// Counts a message on the wire.
pub fn seen(data: &[u8], from: u32, to: u32) {
    w().messages += 1;
    if telling() {
        let kind = match data.get(6) {
            Some(0xc0) => "CONNREQ",
            Some(0xc1) => "CONNACK",
            Some(0xd0) => "NOOP",
            Some(0xd1) => "IMMEDIATE",
            Some(0xd2) => "PUT_REQ",
            Some(0xd3) => "PUT_NAK",
            Some(0xd4) => "PUT_ACK",
            Some(0xd5) => "PUT_DONE",
            Some(0xd6) => "GET_REQ",
            Some(0xd7) => "GET_DONE",
            _ => "?",
        };
        let credits = data.get(7).copied().unwrap_or(0);
        say(&format!(
            "qp {from} -> {to}: {kind}, {credits} credits, {} bytes",
            data.len()
        ));
    }
}

/// Handles a message that found no buffer at the other side: credits make that impossible.
///
/// Known exception: NOOPs take no credit. Two of them may be under way; but the other side
/// acknowledges them when they arrive, and the third finds no buffer if the CPU of the other side
/// has not seen them, or if the other side closes the connection (`noop_may`).
pub fn rnr(from: u32, to: u32, noop_may: bool) {
    w().rnrs += 1;
    if telling() {
        say(&format!("qp {from} -> {to}: no buffer there"));
    }
    if !may_fail(Fault::PostRecv) && !noop_may && !byzantine::is_there() {
        violation("a message was sent without a credit: the other side has no buffer posted");
    }
}

/// Loads the driver on the current node.
pub fn load(load: fn() -> Result<Box<dyn Any>, i32>) -> Result<(), i32> {
    let node = sched::node();
    enter();
    let module = load();
    leave();
    if telling() {
        say(&format!(
            "node {node}: the module is loaded: {:?}",
            module.as_ref().err()
        ));
    }
    w().nodes[node].module = Some(module?);
    Ok(())
}

/// Unloads the driver from the current node, and checks that no object is left.
pub fn unload() {
    unload_unseen();
    clean(sched::node());
}

/// Unloads the driver as [`unload`] does; [`clean_all`] checks later that no object is left.
pub fn unload_unseen() {
    let node = sched::node();
    // The caller of lnd_recv may be about to return when the last reference to the NI is gone. LNet
    // does not wait for that, nor can a driver wait for its own last instructions; in practice the
    // time until an rmmod suffices.
    while w().nodes[node].inside > 0 {
        sched::sleep(sched::US);
    }
    enter();
    let module = w().nodes[node].module.take();
    drop(module);
    leave();
    if telling() {
        say(&format!("node {node}: the module is unloaded"));
    }
    trace_check::unloaded(node);
}

/// Checks that no node has objects left. [`clean`] of a node takes longer the larger the world is,
/// so it is only called if there is an object.
pub fn clean_all() {
    let world = w();
    let nodes = 0..world.nodes.len();
    // SAFETY: All of these stay until the world ends.
    let none = unsafe {
        world.timers.is_empty()
            && dma::none()
            && !mem::any_left()
            && world.ids.values().all(|id| !cm::is_drivers(*id))
            && world.dentries.iter().all(|d| (**d).gone)
            && nodes.clone().all(|n| world.works.left(n) == 0)
            && world.nodes.iter().all(|n| {
                n.inside == 0
                    && n.net_refs == 0
                    && n.ops.is_null()
                    && n.devs.iter().all(|dev| (**dev).left().is_empty())
            })
            && lnet::none_left()
    };
    if !none {
        nodes.for_each(clean);
        violation("something is left, and no node has it");
    }
}

/// Allocations of a message buffer.
const OF_A_BUFFER: usize = 3;

/// Checks that the driver has no object left on a node, except for queue pairs that a device refused to destroy.
pub fn clean(node: usize) {
    let world = w();
    let n = &world.nodes[node];
    let mut left = Vec::new();
    let mut count = |n: usize, what: &str| {
        if n != 0 {
            left.push(format!("{n} {what}"));
        }
    };
    count(n.inside, "calls into the driver that have not returned");
    count(n.net_refs, "references of the namespace");
    count(world.works.left(node), "work queues");
    count(
        world.timers.values().filter(|t| **t == node).count(),
        "timers",
    );
    count(kernel_core::entries(node), "files of debugfs");
    count(cm::left(node), "ids");
    count(lnet::left(node), "messages");
    count(usize::from(!n.ops.is_null()), "registrations");
    for dev in &n.devs {
        // SAFETY: Devices stay until the world ends.
        let d = unsafe { &**dev }.left();
        if !d.is_empty() {
            left.push(format!("device: {d}"));
        }
    }
    let memory = mem::left(node);
    // SAFETY: Devices stay until the world ends.
    let kept = n
        .devs
        .iter()
        .map(|dev| verbs::kept_buffers(*dev))
        .sum::<usize>();
    if memory.len() > kept * OF_A_BUFFER {
        left.push(format!("memory {memory:?} (number, bytes)"));
    }
    if !left.is_empty() {
        violation(&format!(
            "left on node {node} after the module was unloaded: {left:?}"
        ));
    }
}

/// Takes a node's power away.
pub fn power_off(node: usize) {
    if telling() {
        say(&format!("node {node}: loses its power"));
    }
    sched::kill(node);
    let world = w();
    for dev in world.nodes[node].devs.clone() {
        // SAFETY: Devices stay until the world ends.
        unsafe {
            (*dev).registered = false;
            (*dev).lost = true;
            dma::forget(dev);
        }
    }
    cm::forget(node);
    lnet::forget(node);
    trace_check::forget(node);
    world.works.forget(node);
    world.timers.retain(|_, n| *n != node);
    mem::forget(node);
    for qp in world.all_qps.clone() {
        // SAFETY: Queue pairs and devices stay until the world ends.
        unsafe {
            if (*(*qp).dev).node == node {
                (*qp).gone = true;
                (*qp).state = verbs::State::Err;
                w().qps.remove(&(*qp).qpn);
            }
        }
    }
    let n = &mut w().nodes[node];
    n.dead = true;
    core::mem::forget(n.module.take());
}

/// Boots a node: a new device gets the same address.
pub fn power_on(node: usize) {
    if telling() {
        say(&format!("node {node}: boots"));
    }
    let n = &mut w().nodes[node];
    n.dead = false;
    n.ops = core::ptr::null();
    n.driver = core::ptr::null_mut();
    n.inside = 0;
    n.net_refs = 0;
    n.denied = None;
    n.tune = lnet::UNTUNED;
    n.event_lock = lock::new(c"ib_event_lock");
    n.ni_lock = lock::new(c"ro2ib_ni_mutex");
    n.net_lock = lock::new(c"lnet_net_lock");
    n.rtnl = lock::new(c"rtnl_mutex");
    for d in w().dentries.clone() {
        kernel_core::forget(d, node);
    }
    for slot in 0..w().plan.nodes[node].devs {
        new_device(node, slot);
    }
}

/// Returns the device of a node that has the address of a slot now.
pub fn device(node: usize, slot: usize) -> *mut Dev {
    let n = &w().nodes[node];
    // SAFETY: Devices stay until the world ends.
    let has = |d: &&*mut Dev| unsafe { (***d).ip == ip(node, slot) };
    *n.devs
        .iter()
        .rev()
        .find(has)
        .expect("each slot has had a device")
}

/// Replaces a device that was unplugged, or whose node lost its power.
pub fn new_device(node: usize, slot: usize) -> *mut Dev {
    let old = device(node, slot);
    let n = &mut w().nodes[node];
    // SAFETY: Devices stay until the world ends.
    let (ip, attrs, kind) = unsafe { ((*old).ip, (*old).attrs, ((*old).software, (*old).tcp)) };
    let index = n.devs.len();
    let dev = Dev::new(node, index, ip, attrs, kind);
    n.devs.push(dev);
    // SAFETY: Devices stay until the world ends.
    unsafe {
        if (*old).moved.is_none() {
            (*dev).succeed(&*old);
        }
    }
    dev
}

/// Moves the interface to another device; the old device stays. For a moment no device has the
/// address, and no event tells the driver of the new device.
pub fn fail_over(dev: *mut Dev) {
    // SAFETY: Devices stay until the world ends.
    unsafe {
        let (node, index) = ((*dev).node, (*dev).index);
        if telling() {
            say(&format!(
                "node {node}: device {index} loses its address to another"
            ));
        }
        let slot = (*dev).ip - ip(node, 0);
        lnet::fails_over(dev);
        (*dev).moves = Some(sched::now());
        let ns = w().rng.below(20 * MS);
        sched::sleep(ns);
        if !(*dev).registered || (*dev).moved.is_some() {
            return;
        }
        (*dev).moved = Some(sched::now());
        verbs::dispatch(dev, ib_event_type_IB_EVENT_GID_CHANGE);
        if w().rng.one_in(2) {
            // As rxe does with the next packet.
            verbs::all_to_err(dev);
        }
        let ns = w().rng.below(20 * MS);
        sched::sleep(ns);
        new_device(node, slot as usize);
    }
}

/// Longest time of a removal, whatever holds tasks up: a removal that waits for LNet may take
/// longer.
const REMOVAL_MAX: u64 = 300 * SEC;

/// Unplugs a device: the driver gets an event, and must release the device.
pub fn unplug(dev: *mut Dev, broken: bool) {
    // SAFETY: Devices stay until the world ends.
    unsafe {
        if telling() {
            say(&format!(
                "node {}: the device is unplugged{}",
                (*dev).node,
                if broken { ", broken" } else { "" }
            ));
        }
        (*dev).registered = false;
        if broken {
            (*dev).up = false;
            verbs::dispatch(dev, ib_event_type_IB_EVENT_DEVICE_FATAL);
            verbs::all_to_err(dev);
        }
        let begun = sched::now();
        cm::removal(dev);
        // As disable_device() of the core: the clients, among them the CM, and only then the
        // references.
        while !(*dev).ids.is_empty() {
            sched::sleep_on(dev as usize);
        }
        cq::device_goes(dev);
        while (*dev).refs != 0 {
            sched::sleep_on(dev as usize);
        }
        if sched::now() - begun > REMOVAL_MAX {
            violation("the removal of a device waits for a task that waits for the removal");
        }
        (*dev).gone = true;
        let left = (*dev).left();
        if !left.is_empty() {
            violation(&format!("a device goes with {left}"));
        }
        (*dev).up = false;
        if telling() {
            say("the device is gone");
        }
    }
}

/// Returns the seed of the world; 0 if there is none.
pub fn seed() -> u64 {
    let p = WORLD.with(Cell::get);
    if p.is_null() {
        return 0;
    }
    w().seed
}

/// Returns the story so far.
pub fn lines() -> Option<Vec<String>> {
    let p = WORLD.with(Cell::get);
    if p.is_null() {
        return None;
    }
    w().story.clone()
}
