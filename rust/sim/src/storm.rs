// SPDX-License-Identifier: GPL-2.0

//! A large world: many nodes that all talk to one, at once.
//!
//! All connect in the same moment. Then the one restarts its NI, with all of them connected: they
//! meet an end, and connect again. Nothing is drawn but who runs when, and nothing goes wrong: every
//! message of an honest peer must arrive, if not at the first try after the restart.

use simc::{
    lnet,
    sched::{
        self,
        Kind,
        Policy,
        Tid,
        SEC, //
    },
    world::{
        self,
        violation,
        w,
        End,
        Plan, //
    }, //
};

/// Tries of one message; after a restart the first may find a connection that has just ended.
const TRIES: usize = 5;

fn put(node: usize) {
    // SAFETY: NIs stay until the world ends.
    let ni = *w().nodes[node].nis.last().expect("an NI");
    for _ in 0..TRIES {
        let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(0, 0)), 200, true);
        if lnet::wait(op, 100 * SEC) == Some(0) {
            return;
        }
        sched::sleep(SEC);
    }
    violation("a message does not arrive");
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
        "{what:28} {:>9.3} simulated s, {} messages on the wire so far",
        (sched::now() - begun) as f64 / SEC as f64,
        w().messages
    );
}

/// Runs it with so many peers.
pub fn run(seed: u64, peers: usize) -> End {
    let mut plan = Plan::calm(peers + 1);
    // A connection wants 50 of them here.
    plan.timeout = 50;
    world::begin(seed, plan, false);
    w().sched.policy = Policy::Random(10_000);
    sched::spawn(usize::MAX - 1, Kind::Process, "world", move || {
        let all = peers + 1;
        on(0..all, "up", up);
        let begun = sched::now();
        on(1..all, "user", put);
        phase("all connect and send", begun);
        let begun = sched::now();
        on(1..all, "user", put);
        phase("all send", begun);
        let begun = sched::now();
        on(0..1, "down", down);
        phase("the NI of all is deleted", begun);
        on(0..1, "up", up);
        let begun = sched::now();
        on(1..all, "user", put);
        phase("all connect anew and send", begun);
        on(0..all, "down", |node| {
            down(node);
            world::unload();
        });
    });
    sched::run(u64::MAX, 1000 * SEC + 7200 * SEC);
    world::end()
}
