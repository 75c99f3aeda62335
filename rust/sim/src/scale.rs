// SPDX-License-Identifier: GPL-2.0

//! Large world: many nodes that all talk to one node, the hub ("the one" in the output), at the
//! same time.
//!
//! One of them, the honest node, has a connection already. All others connect at the same moment,
//! close at the same moment, and connect again. Then the link of the hub goes and comes back, and
//! at last the hub restarts its NI: all connections end, and all nodes connect again. Only the
//! order of tasks is random, and there are no faults: every message must arrive, if not at the
//! first try after the restart, and messages of the honest node always at the first.
//!
//! Before they connect again, half of them are dead for a while, and the hub sends to them all the
//! same: nodes that answer must not wait for nodes that do not.
//!
//! A message takes the same number of locks and allocations with all nodes connected as with one,
//! and an idle connection costs its keepalive. The time of a message is printed, not checked: all
//! nodes of a world share one simulated CPU.

use std::{
    cell::Cell,
    rc::Rc, //
};

use simc::{
    lnet::{
        self,
        Link, //
    },
    mem,
    sched::{
        self,
        Kind,
        Policy,
        Tid,
        MS,
        SEC,
        US, //
    },
    verbs,
    world::{
        self,
        violation,
        w,
        End,
        Plan, //
    }, //
};

/// Tries of a message; after a restart the first may find a connection that has just ended.
const TRIES: usize = 5;

fn put(node: usize) {
    send(node, 0);
}

fn send(node: usize, to: usize) {
    // SAFETY: NIs stay until the world ends.
    let ni = *w().nodes[node].nis.last().expect("an NI");
    for _ in 0..TRIES {
        let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(to, 0)), 200, true);
        if lnet::wait(op, 100 * SEC) == Some(0) {
            return;
        }
        sched::sleep(SEC);
    }
    violation("a message does not arrive");
}

/// Sends a message to a node that may be dead.
fn send_in_vain(node: usize, to: usize) {
    // SAFETY: NIs stay until the world ends.
    let ni = *w().nodes[node].nis.last().expect("an NI");
    let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(to, 0)), 200, false);
    if lnet::wait(op, 200 * SEC).is_none() {
        violation("a message does not end");
    }
}

/// Sends from the hub to each of these nodes, at the same time.
fn to_each(nodes: core::ops::Range<usize>, f: fn(usize, usize)) -> Vec<Tid> {
    let reach = |to| sched::spawn(0, Kind::Process, "user", move || f(0, to));
    nodes.map(reach).collect()
}

fn join_all(tids: Vec<Tid>) {
    for tid in tids {
        sched::join(tid);
    }
}

/// Makes half of the nodes, none of them connected, silent. The hub reaches the other nodes as soon
/// as without silent nodes, except the first time: until then no node knows of the silence.
fn some_are_dead(all: usize) {
    let living = all / 2;
    w().plan.mute = living..all;
    let begun = sched::now();
    // Of many messages the last have no turn before their deadline.
    for _ in 0..3 {
        join_all(to_each(living..all, send_in_vain));
    }
    phase("half of them are dead", begun);
    let begun = sched::now();
    let in_vain = to_each(living..all, send_in_vain);
    sched::sleep(10 * MS);
    let asked = sched::now();
    join_all(to_each(1..living, send));
    let took = sched::now() - asked;
    phase("the one connects with the others", asked);
    join_all(in_vain);
    phase("and does not with these", begun);
    // The messages under way get no answer, and the CM would resend them after seconds.
    sched::sleep(REST);
    w().plan.mute = 0..0;
    judge_connecting(took, all);
}

fn on(nodes: core::ops::Range<usize>, name: &'static str, f: fn(usize)) {
    let tids: Vec<Tid> = nodes
        .map(|node| sched::spawn(node, Kind::Process, name, move || f(node)))
        .collect();
    for tid in tids {
        sched::join(tid);
    }
}

fn up(node: usize) {
    if w().nodes[node].ops.is_null() && world::load(ro2iblnd::load).is_err() {
        violation("the module does not load");
    }
    if lnet::ni_up(world::device(node, 0)).is_err() {
        violation("an NI does not start");
    }
}

fn down(node: usize) {
    let ni = *w().nodes[node].nis.last().expect("an NI");
    lnet::ni_down(ni);
}

fn phase(what: &str, begun: u64) {
    println!(
        "{what:34} {:>9.3} simulated s, {} messages on the wire so far",
        (sched::now() - begun) as f64 / SEC as f64,
        w().messages
    );
}

/// The node that has a connection before the other nodes come.
const HONEST: usize = 1;
/// Number of its messages in each phase.
const MESSAGES: usize = 50;

/// More locks and allocations than a message and its acknowledgement need, at both ends, on an
/// established connection: a message that waits for a connection, as if there were none, needs ten
/// locks more.
const LOCKS: u64 = 30;
const ALLOCATIONS: u64 = 3;

/// More locks than both ends of a connection need to end and to free its id. An event of the link, and the query of the
/// port after it, each look whether ids that wait have a route.
const LOCKS_TO_END: u64 = 650;

/// Time after which deferred one-time work has been done.
const REST: u64 = 20 * SEC;

/// Time without messages. Several times as long as a connection may be silent.
const IDLE: u64 = 600 * SEC;

/// Lists all peers and all connections of the hub, as `lctl` does: the cost of each is independent
/// of their number.
fn list(_node: usize) {
    let peers = w().nodes.len() - 1;
    let ni = *w().nodes[0].nis.last().expect("an NI");
    for (what, control) in [("peers", 2), ("connections", 3)] {
        let before = w().classes.taken;
        let listed = lnet::control(ni, control, 0);
        let locks = w().classes.taken - before;
        println!("  {listed} {what} are listed with {locks} locks");
        if listed < peers as i32 || locks > LOCKS * peers as u64 {
            violation("to list all takes more locks than it should");
        }
    }
}

/// Cost of the messages of the honest node.
#[derive(Clone, Copy, Default)]
struct Cost {
    locks: u64,
    allocations: u64,
}

/// Sends the messages of the honest node; prints their time, and their cost while the other nodes
/// are idle.
fn honest(what: &str) -> Cost {
    // SAFETY: NIs stay until the world ends.
    let ni = *w().nodes[HONEST].nis.last().expect("an NI");
    let before = Cost {
        locks: w().classes.taken,
        allocations: mem::allocations(),
    };
    let mut times = Vec::new();
    for _ in 0..MESSAGES {
        let begun = sched::now();
        let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(0, 0)), 200, true);
        if lnet::wait(op, 100 * SEC) != Some(0) {
            violation("a message of the honest node does not arrive");
        }
        times.push((sched::now() - begun) / US);
    }
    times.sort_unstable();
    println!(
        "  a message with {what:24} median {} us, longest {} us",
        times[MESSAGES / 2],
        times[MESSAGES - 1]
    );
    Cost {
        locks: w().classes.taken - before.locks,
        allocations: mem::allocations() - before.allocations,
    }
}

/// Measures the cost while all other nodes are idle.
fn alone(what: &'static str) -> Cost {
    // Lets all earlier work end.
    sched::sleep(REST);
    let cost = Rc::new(Cell::new(Cost::default()));
    let out = cost.clone();
    let tid = sched::spawn(HONEST, Kind::Process, "user", move || {
        out.set(honest(what));
    });
    sched::join(tid);
    cost.get()
}

/// Sends the messages while all other nodes run `f`. Returns the time of that.
fn beside(what: &'static str, nodes: core::ops::Range<usize>, f: fn(usize)) -> u64 {
    let begun = sched::now();
    let tid = sched::spawn(HONEST, Kind::Process, "user", move || {
        honest(what);
    });
    on(nodes, "user", f);
    phase(what, begun);
    let took = sched::now() - begun;
    sched::join(tid);
    took
}

/// Checks that no connecting node is blocked, and that none waits for a timer.
fn judge_connecting(took: u64, peers: usize) {
    if took > SEC / 2 + peers as u64 * SEC / 1000 {
        violation("to connect takes longer than it should");
    }
}

/// Checks that an idle connection costs its keepalive only.
fn idle(what: &str, conns: usize) {
    let before = w().classes.taken;
    sched::sleep(IDLE);
    let locks = (w().classes.taken - before) as f64 / (IDLE / SEC) as f64;
    println!("  an idle second with {what}: {locks:.1} locks, all nodes");
    if locks > conns as f64 / 2.0 {
        violation("an idle connection costs more than it should");
    }
}

/// Takes the link of the hub away with all nodes connected. All ids wait for a route then, and send
/// their DREQs when the link is back: the cost of each is independent of their number.
fn link_returns(peers: usize) {
    let dev = world::device(0, 0);
    let before = w().classes.taken;
    lnet::link(dev, Link::Lost);
    sched::sleep(5 * SEC);
    lnet::link(dev, Link::Up);
    sched::sleep(REST);
    let locks = (w().classes.taken - before) / peers as u64;
    println!(
        "  the link of the one is lost and comes back: {locks} locks for a connection, both ends"
    );
    if locks > LOCKS_TO_END {
        violation("connections that end with their link take more locks than they should");
    }
}

fn per_message(what: &str, cost: Cost) {
    let n = MESSAGES as f64;
    println!(
        "  with {what}: {:.1} locks and {:.1} allocations for a message and its acknowledgement, both ends",
        cost.locks as f64 / n,
        cost.allocations as f64 / n
    );
}

/// Returns the bytes of memory of the hub.
fn held() -> usize {
    mem::left(0).iter().map(|(_, size)| size).sum()
}

/// Begins a world of `peers` peers of one node, with `conns` connections each.
fn crowd(seed: u64, peers: usize, conns: u32) {
    mem::use_sparse_pages();
    let mut plan = Plan::calm(peers + 1);
    // A connection needs 50 of them here.
    plan.params.timeout = 50;
    plan.cpus = 16;
    for node in &mut plan.nodes {
        node.credits = 2;
        node.hiw = 1;
        node.conns = conns;
    }
    world::begin(seed, plan, false);
    w().sched.choose(Policy::Random(10_000));
    sched::expect(4 * peers);
}

/// Simulated time by which all connections of a storm must be established.
const STORM: u64 = 60 * SEC;

/// Simulated time between the end of a storm and the next one.
const CALM: u64 = 3 * SEC;

/// A node with the largest `conns_per_peer`, of which the hub takes no more than `TAKEN`.
const GREEDY: usize = 2;
const TAKEN: usize = 32;

/// Waits until the hub has this number of connections.
fn all_connected(conns: usize) {
    let begun = sched::now();
    while verbs::connected(0) < conns {
        if sched::now() - begun > STORM {
            violation("a storm of honest peers is not connected after a minute");
        }
        sched::sleep(100 * MS);
    }
}

/// Runs a world in which all peers connect, with `conns` connections each (one peer asks for 127),
/// and close, again and again: as when the server's switch port flaps. The budgets of requests are
/// meant for hostile peers: the driver must drop no request here.
pub fn again(seed: u64, peers: usize, conns: usize, storms: usize) -> End {
    crowd(seed, peers, conns as u32);
    w().plan.nodes[GREEDY].conns = 127;
    let more = TAKEN.saturating_sub(conns);
    sched::spawn(usize::MAX - 1, Kind::Process, "world", move || {
        let all = peers + 1;
        on(0..all, "up", up);
        for storm in 1..=storms {
            let begun = sched::now();
            on(1..all, "user", put);
            all_connected(peers * conns + more);
            phase("all connect, several times each", begun);
            if w().dropped_requests > 0 {
                violation("a request of an honest peer is dropped");
            }
            if storm < storms {
                on(1..all, "down", down);
                sched::sleep(CALM);
                on(1..all, "up", up);
                continue;
            }
            // All further requests of the greedy peer.
            sched::sleep(REST);
            if verbs::connected(0) != peers * conns + more {
                violation("connections are lost because a peer wants more of them");
            }
            if w().rejected_requests > (127 + 16) * storms as u64 {
                violation("a peer asks again and again for more connections than it may have");
            }
        }
        on(0..all, "down", down);
        on(0..all, "unload", |_| world::unload_unseen());
        world::clean_all();
    });
    sched::run(u64::MAX, 3600 * SEC);
    world::end()
}

/// Runs the large world with this number of peers.
pub fn run(seed: u64, peers: usize) -> End {
    crowd(seed, peers, 1);
    sched::spawn(usize::MAX - 1, Kind::Process, "world", move || {
        let all = peers + 1;
        on(0..all, "up", up);
        on(HONEST..HONEST + 1, "user", put);
        let one = alone("nobody else");
        per_message("one peer", one);
        idle("one peer", 1);
        let n = MESSAGES as u64;
        if one.locks > LOCKS * n || one.allocations > ALLOCATIONS * n {
            violation("a message takes more locks or allocations than it should");
        }
        let before = held();
        judge_connecting(beside("all connect and send", 2..all, put), peers);
        let begun = sched::now();
        on(1..all, "user", put);
        phase("all send", begun);
        let most = held();
        on(0..1, "user", list);
        let among = alone("all connected");
        per_message("all", among);
        idle("all", peers);
        if among.locks * 10 > one.locks * 11 || among.allocations * 10 > one.allocations * 11 {
            violation("a message costs more when there are many peers");
        }
        beside("all but one close", 2..all, down);
        sched::sleep(REST);
        let left = held();
        println!("  the one has {before} bytes of memory with one peer, {most} with all, {left} when they are gone");
        if left * 10 > before * 11 {
            violation("memory of peers that are gone is kept");
        }
        on(2..all, "up", up);
        judge_connecting(beside("they connect again", 2..all, put), peers);
        let tid = sched::spawn(0, Kind::Process, "happens", move || link_returns(peers));
        sched::join(tid);
        on(1..all, "user", put);
        let begun = sched::now();
        on(0..1, "down", down);
        phase("the NI of all is deleted", begun);
        on(0..1, "up", up);
        some_are_dead(all);
        // A node that sends to many nodes makes them wait for their turn.
        let begun = sched::now();
        join_all(to_each(1..all, send));
        phase("the one connects with all", begun);
        judge_connecting(sched::now() - begun, peers);
        let begun = sched::now();
        on(1..all, "user", put);
        phase("all send", begun);
        on(0..all, "down", |node| {
            down(node);
            world::unload_unseen();
        });
        world::clean_all();
    });
    sched::run(u64::MAX, 1000 * SEC + 7200 * SEC);
    world::end()
}
