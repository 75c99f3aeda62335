// SPDX-License-Identifier: GPL-2.0

//! A world: its nodes, the faults of its run, and what has to hold.
//!
//! # Context
//!
//! [`w`] is valid between [`begin`] and [`end`]. What it returns must not be kept over a call that may
//! switch tasks or enter the driver; all of this is one thread.

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
    hash::Map,
    lnet,
    lock,
    mem,
    misc,
    oracle::Truth,
    rng::Rng,
    sched::{
        self,
        Sched,
        MS,
        SEC,
        US, //
    },
    trace,
    verbs::{
        self,
        Dev,
        Qp, //
    },
    work, //
};

/// What can fail because the seed says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An allocation.
    Alloc,
    /// Making an object of verbs, or mapping a region.
    Verbs,
    /// Mapping memory for a device.
    Dma,
    /// A call of the CM.
    Cm,
    /// Posting a send.
    Post,
    /// A work request.
    Completion,
    /// Posting a receive.
    PostRecv,
}

/// How many kinds there are.
pub const FAULTS: usize = 7;

/// What a node is configured with.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// `peer_credits`.
    pub credits: u32,
    /// Nobody said `peer_credits` nor `wrq_sge`: they fit the link.
    pub open: bool,
    /// `peer_credits_hiw`.
    pub hiw: u32,
    /// `conns_per_peer`.
    pub conns: u32,
    /// Devices, each with an NI.
    pub devs: usize,
    /// A provider like rxe.
    pub software: bool,
    /// It is one like siw.
    pub tcp: bool,
    /// Limits of its device.
    pub max_qp_wr: u32,
    /// As above.
    pub max_sge: u32,
    /// As above: memory regions.
    pub max_mr: u32,
}

/// How a world runs, but for who runs when.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// CPUs of each of them.
    pub cpus: u32,
    /// `cksum`.
    pub cksum: bool,
    /// `timeout`, seconds.
    pub timeout: u32,
    /// `keepalive`, seconds.
    pub keepalive: u32,
    /// `probe`, milliseconds.
    pub probe: u32,
    /// All devices are InfiniBand: the CM and the transport wait longer, an address is resolved through IPoIB, and a
    /// path is a LID.
    pub ib: bool,
    /// `retry_count`.
    pub retry_count: u8,
    /// `rnr_retry_count`.
    pub rnr_retry_count: u8,
    /// `wrq_sge`.
    pub wrq_sge: u32,
    /// `use_privileged_port`.
    pub privileged: bool,
    /// The device of this node promises LOCAL_INV and refuses it when it is posted.
    pub refuses_inv: Option<usize>,
    /// LNet keeps some of the messages that come for most of a minute, and others have to pass.
    pub hoards: bool,
    /// Over TCP, who calls has nothing to say for long, as other drivers may.
    pub shy: bool,
    /// Each step of a handshake takes seconds, none longer than it may.
    pub slow_steps: bool,
    /// Devices send nothing inline.
    pub no_inline: bool,
    /// Nanoseconds that the driver may have a message that is sent; 0: as long as it likes.
    pub patience: u64,
    /// Every send completes by itself.
    pub signal_all: bool,
    /// Somebody looks at trace points.
    pub looked_at: bool,
    /// Nanoseconds on the wire.
    pub wire_min: u64,
    /// As above.
    pub wire_max: u64,
    /// In so many of a million cases a message takes milliseconds.
    pub slow_wire_ppm: u32,
    /// Messages of the CM that are lost, doubled, late.
    pub cm_lost_ppm: u32,
    /// All of those nodes' are lost; they hear those of others.
    pub mute: Range<usize>,
    /// As above.
    pub cm_double_ppm: u32,
    /// As above.
    pub cm_late_ppm: u32,
    /// LNet sleeps in parse and finalize.
    pub slow_lnet_ppm: u32,
    /// At most so long.
    pub slow_lnet_max: u64,
    /// LNet sleeps for so long with each message that failed.
    pub slow_failures: u64,
    /// Received messages that nobody wants.
    pub no_match_ppm: u32,
    /// Messages of which a part is wanted.
    pub cut_ppm: u32,
    /// Memory that is a GPU's.
    pub gpu_ppm: u32,
    /// Messages that are matched later.
    pub delay_ppm: u32,
    /// Some of those are kept until the device is gone, or for a quarter of an hour.
    pub keeps: bool,
    /// LNet refuses what comes up.
    pub parse_error_ppm: u32,
    /// LNet's own injection of failed sends.
    pub send_error_ppm: u32,
    /// Calls that fail, by kind.
    pub fault_ppm: [u32; FAULTS],
    /// The call with that number fails, by kind.
    pub fault_nth: [Option<u64>; FAULTS],
}

impl Plan {
    /// Nothing goes wrong.
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
            timeout: 10,
            keepalive: 100,
            probe: 1000,
            ib: false,
            retry_count: 5,
            rnr_retry_count: 6,
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

/// A node.
pub struct Node {
    /// Its devices; those that were unplugged, too.
    pub devs: Vec<*mut Dev>,
    /// The driver's operations, while its module is loaded.
    pub ops: *const ro2ib_lnd_ops,
    /// What came with them.
    pub driver: *mut c_void,
    /// Its NIs; those that are gone, too.
    pub nis: Vec<*mut lnet::Ni>,
    /// It lost its power.
    pub dead: bool,
    /// References of the network namespace.
    pub net_refs: usize,
    /// The peer that its parameter `access` denies.
    pub denied: Option<u64>,
    /// What its driver did.
    pub truth: Truth,
    /// What its parameter `ni_tune` says of all its NIs.
    pub tune: ro2ib_tuning,
    /// Calls into the driver that have not returned.
    pub inside: usize,
    /// Of the core's list of event handlers.
    pub event_lock: spinlock_t,
    /// The shim's.
    pub ni_lock: spinlock_t,
    /// LNet's spin lock, of what shows NIs.
    pub net_lock: spinlock_t,
    /// The network's.
    pub rtnl: spinlock_t,
    module: Option<Box<dyn Any>>,
}

/// A world.
pub struct World {
    /// Its seed.
    pub seed: u64,
    /// Who runs, and when.
    pub sched: Sched,
    /// Faults, times and choices.
    pub rng: Rng,
    /// How it runs.
    pub plan: Plan,
    /// Faults happen.
    pub faulty: bool,
    /// Nothing holds messages up but credits.
    pub eager: bool,
    /// Nothing goes wrong in this world.
    pub strict: bool,
    /// No task is held up for longer than a moment.
    pub prompt: bool,
    /// The task that finds no memory.
    pub short: usize,
    /// The node whose driver finds no memory.
    pub dry: Option<usize>,
    /// What did not hold.
    pub failed: Option<String>,
    /// What happened, if anybody wants to know.
    pub story: Option<Vec<String>>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Lock classes.
    pub classes: lock::Classes,
    /// Queues and items.
    pub works: work::Works,
    /// Timers that run, and the node of each.
    pub timers: Map<usize, usize>,
    /// Files of debugfs.
    pub dentries: Vec<*mut misc::Dentry>,
    /// Mappings for devices.
    pub maps: dma::Maps,
    /// Scatterlists that live.
    pub sg_tables: usize,
    /// Queue pairs by number.
    pub qps: Map<u32, *mut Qp>,
    /// All there were.
    pub all_qps: Vec<*mut Qp>,
    /// The last number of a queue pair.
    pub next_qpn: u32,
    /// Ids by number.
    pub ids: Map<u64, *mut cm::Id>,
    /// All there were.
    pub all_ids: Vec<*mut cm::Id>,
    /// The last number of an id.
    pub next_id: u64,
    /// LNet.
    pub lnet: lnet::Lnet,
    /// Writes with a key that opened nothing.
    pub bad_keys: usize,
    /// How often a message found no buffer.
    pub rnrs: usize,
    /// Messages on the wire.
    pub messages: u64,
    /// Requests to connect that the driver made.
    pub requests: u64,
    /// Requests to connect that a listener dropped without an answer.
    pub dropped_requests: u64,
    /// Requests to connect that a listener rejected.
    pub rejected_requests: u64,
    /// Calls that could fail, by kind.
    pub calls: [u64; FAULTS],
    /// Those that did.
    pub faults: u64,
    /// Lines printed, by level.
    pub printed: [u64; 8],
    /// What trace points have said.
    pub trace: trace::Seen,
    /// Devices with that address take [`verbs::HANGS`] for each command, from that number on.
    pub hangs: Option<(u32, usize)>,
    /// Commands that it is at.
    pub hung: usize,
    /// One of the nodes sends what it should not.
    pub foul: Option<byzantine::Foul>,
}

thread_local! {
    static WORLD: Cell<*mut World> = const { Cell::new(core::ptr::null_mut()) };
}

/// The world.
#[inline]
pub fn w() -> &'static mut World {
    // SAFETY: One thread; see the module's documentation.
    unsafe { &mut *WORLD.with(Cell::get) }
}

/// Whether there is one.
pub fn is_there() -> bool {
    !WORLD.with(Cell::get).is_null()
}

/// Begins a world. Its tasks are to be spawned, then [`sched::run`].
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
        works: work::Works::default(),
        timers: Map::default(),
        dentries: Vec::new(),
        maps: dma::Maps::default(),
        sg_tables: 0,
        qps: Map::default(),
        all_qps: Vec::new(),
        next_qpn: 0x10,
        ids: Map::default(),
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
        trace: trace::Seen::default(),
        hangs: None,
        hung: 0,
        foul: None,
    });
    trace::begin(looked_at || tell);
    WORLD.with(|c| c.set(Box::into_raw(world)));
}

/// Address of the interface of a node.
pub fn ip(node: usize, dev: usize) -> u32 {
    0x0a00_0001 + ((node as u32) << 8) + dev as u32
}

/// What is known when a world is over.
#[derive(Debug, Default)]
pub struct End {
    /// What did not hold.
    pub failed: Option<String>,
    /// What happened.
    pub story: Vec<String>,
    /// Steps of tasks.
    pub steps: u64,
    /// Points at which another could have run.
    pub points: u64,
    /// Messages on the wire.
    pub messages: u64,
    /// Calls that failed.
    pub faults: u64,
    /// What tells its schedule from others.
    pub schedule: u64,
    /// Operations, and those that ended well.
    pub ops: usize,
    /// As above.
    pub good: usize,
    /// Simulated nanoseconds.
    pub time: u64,
    /// Lines printed as warnings and above.
    pub warnings: u64,
}

/// Ends a world.
pub fn end() -> End {
    let world = w();
    if world.failed.is_none() && sched::any_left() {
        let left = sched::left();
        fail(&format!("somebody waits for ever: {left:?}"));
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

/// Something does not hold; outside of a task.
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

/// Something does not hold: the world ends here.
pub fn violation(what: &str) -> ! {
    fail(what);
    if w().sched.current != sched::NONE {
        loop {
            sched::sleep_on(2);
        }
    }
    // An event: it must not go on.
    std::panic::resume_unwind(Box::new("violation in an event"));
}

/// Whether anybody wants to know.
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

/// A line was printed.
pub fn printed(level: i32) {
    w().printed[level as usize & 7] += 1;
}

/// The driver is called.
pub fn enter() {
    let node = sched::node();
    w().nodes[node].inside += 1;
}

/// The call has returned.
pub fn leave() {
    let node = sched::node();
    w().nodes[node].inside -= 1;
}

/// Whether this call fails.
pub fn fails(what: Fault) -> bool {
    let world = w();
    let i = what as usize;
    world.calls[i] += 1;
    if what == Fault::Alloc && world.dry.is_some() && world.dry == Some(sched::node()) {
        w().faults += 1;
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

/// Whether faults of that kind happen in this world.
pub fn may_fail(what: Fault) -> bool {
    let plan = &w().plan;
    plan.fault_ppm[what as usize] != 0 || plan.fault_nth[what as usize].is_some()
}

/// A message is on the wire.
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

/// A message found no buffer at the other side: with credits that cannot be.
/// Known: NOOPs take no credit. Two of them may be under way; but they are acknowledged when they
/// arrive, and the third finds no buffer if the other side's CPU has not looked (`noops_unseen`).
pub fn rnr(from: u32, to: u32, noops_unseen: bool) {
    w().rnrs += 1;
    if telling() {
        say(&format!("qp {from} -> {to}: no buffer there"));
    }
    if !may_fail(Fault::PostRecv) && !noops_unseen && !byzantine::is_there() {
        violation("a message was sent without a credit: the other side has no buffer posted");
    }
}

/// Loads the driver on the node that runs.
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

/// Unloads the driver from the node that runs; nothing may be left.
pub fn unload() {
    unload_unseen();
    clean(sched::node());
}

/// The same, and what is left is looked at later, by [`clean_all`].
pub fn unload_unseen() {
    let node = sched::node();
    // Whoever called lnd_recv may be about to return when the last reference to the NI is gone. Nothing in LNet
    // waits for that, nor can a driver wait for its own last instructions; what is between them and an rmmod is the
    // time that it takes.
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
    trace::unloaded(node);
}

/// Nothing may be left on any node. [`clean`] of one takes as long as the world is large, so it is only
/// asked if there is anything.
pub fn clean_all() {
    let world = w();
    let nodes = 0..world.nodes.len();
    // SAFETY: All of these stay until the world ends.
    let none = unsafe {
        world.timers.is_empty()
            && dma::none()
            && mem::least_node() == usize::MAX
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

/// Nothing of the driver's may be left on a node.
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
    count(misc::entries(node), "files of debugfs");
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
    if !memory.is_empty() {
        left.push(format!("memory {memory:?} (number, bytes)"));
    }
    if !left.is_empty() {
        violation(&format!(
            "left on node {node} after the module was unloaded: {left:?}"
        ));
    }
}

/// A node loses its power.
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
    trace::forget(node);
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

/// It boots: a new device with the same address.
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
        misc::forget(d, node);
    }
    for slot in 0..w().plan.nodes[node].devs {
        new_device(node, slot);
    }
}

/// The device of a node that has the address of a slot now.
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

/// A device that was unplugged, or whose node lost its power, is replaced by another.
pub fn new_device(node: usize, slot: usize) -> *mut Dev {
    let old = device(node, slot);
    let n = &mut w().nodes[node];
    // SAFETY: Devices stay until the world ends.
    let (ip, attrs, kind) = unsafe { ((*old).ip, (*old).attrs, ((*old).software, (*old).tcp)) };
    let index = n.devs.len();
    let dev = Dev::new(node, index, ip, attrs, kind);
    n.devs.push(dev);
    dev
}

/// The interface of a device is on another one from now on; the old device stays. For a moment its address is nowhere, and
/// the driver is told of the new one by nobody.
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

/// What a removal may take, whatever holds tasks up: what waits for LNet waits for longer.
const REMOVAL_MAX: u64 = 300 * SEC;

/// Unplugs a device: the driver is told, and has to let go of it.
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
        // As disable_device() of the core: the clients, of which the CM is one, then the pool, and
        // only then references.
        while !(*dev).ids.is_empty() {
            sched::sleep_on(dev as usize);
        }
        cq::pool_goes(dev);
        while (*dev).refs != 0 {
            sched::sleep_on(dev as usize);
        }
        if sched::now() - begun > REMOVAL_MAX {
            violation("the removal of a device waits for somebody who waits for it");
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

/// The seed of the world; 0 if there is none.
pub fn seed() -> u64 {
    let p = WORLD.with(Cell::get);
    if p.is_null() {
        return 0;
    }
    w().seed
}

/// The story so far.
pub fn lines() -> Option<Vec<String>> {
    let p = WORLD.with(Cell::get);
    if p.is_null() {
        return None;
    }
    w().story.clone()
}
