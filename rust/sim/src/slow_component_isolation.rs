// SPDX-License-Identifier: GPL-2.0

//! Worlds in which one component is slow, with limits for the time of other operations.
//!
//! - A device takes a minute for each command: the NI of another device follows its link, is deleted, and loses its
//!   device, as soon as if all devices were fast.
//! - A device takes a minute for each command: no peer is blamed for that.
//! - A device takes a minute for each command, and the address moves to another device: the NI follows.
//! - LNet is slow with messages that failed, and all peers, for which messages wait, are denied at once: a change of
//!   the network, which takes rtnl and the shim's mutex, does not wait for that.
//! - LNet is slow with messages that failed, and many attempts fail at once: the first message of each other peer
//!   passes all the same.
//! - Over iWARP, the end of an attempt waits for the TCP of the other side, for many peers: other peers connect.
//! - LNet is slow with a message that waited for a connection and then failed: other messages to that peer go on.
//! - LNet keeps messages for which there was no memory for other buffers: the removal of the device does not wait.
//! - LNet is slow with messages that failed, or with requests that wait for memory, and their device is removed: the
//!   removal does not wait for LNet.
//! - The core has no GID for an address yet, or does not know the subnet manager: messages wait for that.
//! - An address moves to another InfiniBand device, and only its link tells: other nodes reach it there.
//! - A node with soft-RoCE has no route to a peer that connects: it sends nothing until there is a route.
//! - A node that lost its power boots. Its adapter uses the same queue pair numbers again, and the CM of the other
//!   node, which still has the old connections, rejects requests as stale: the first message arrives all the same.
//! - The CM of OFED repeats a lost DREQ after 17 s: the peer learns of the end then.
//! - A node has no memory, and one peer or two do not answer PUTs: messages to the other peers go on.
//! - A node has no memory, and more messages wait than the depth of the connection, or a peer wanted no data before:
//!   they are sent later, or with the reserve.
//! - A node has no memory for longer than a message waits: only messages that have waited as long fail.
//! - A device has no room to map anything, and LNet drops a request that it has kept: the peer gets the answer.
//! - LNet keeps the last request that the credits of a peer allowed: the peer gets the credits of the others at once.
//! - A device takes long for each memory region, or refuses one: the pages of transfers that wait for regions are not
//!   mapped meanwhile, one of them fails at most, and no region is added for a transfer that does not wait any more.
//! - A device does not destroy the queue pairs of connections that close, and messages arrive there afterwards: the
//!   device writes to no memory that has another owner, and neither the NI nor the removal of the device waits.
//! - A device does not move queue pairs to the error state, so the CM sends no DREQ: the peer learns of the end when
//!   the queue pair is destroyed.
//! - A node has no memory for the answers of GETs, for some of which there is no data: each is answered later.
//! - LNet sends and receives messages of all kinds over a connection: no call waits for memory for them.
//! - A node has no memory, and a monitoring program reads its files: no connection is missing.

use std::{
    cell::Cell,
    rc::Rc, //
};

use simc::{
    cm,
    decl::{
        k::EREMOTEIO,
        r::ib_event_type_IB_EVENT_PORT_ERR,
        r::ib_event_type_IB_EVENT_QP_FATAL,
        r::ro2ib_tuning, //
    },
    kernel_core,
    lnet::{
        self,
        Link, //
    },
    sched::{
        self,
        Kind,
        Policy,
        Tid,
        MS,
        SEC, //
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

use crate::monotonic_check::Sums;

/// Longest time of an operation that must not wait for the slow component, in nanoseconds.
const SOON: u64 = SEC;

/// Longest time of a change of the network, in nanoseconds.
const AT_ONCE: u64 = 100 * MS;

/// Peers that are denied at once.
const DENIED: usize = 1000;

/// Peers that do not exist.
const LOST: usize = 200;

/// Peers that connect meanwhile.
const HONEST: usize = 20;

/// Worlds by name.
pub const WORLDS: [(&str, fn(u64) -> End); 40] = [
    ("a device hangs, another NI is deleted", |seed| {
        hangs(seed, false)
    }),
    ("a device hangs, another one is removed", |seed| {
        hangs(seed, true)
    }),
    ("a device hangs, its address moves", |seed| {
        hangs_and_moves(seed, false)
    }),
    (
        "a device with another LID hangs, its address moves",
        |seed| hangs_and_moves(seed, true),
    ),
    ("a device hangs, a peer is called", blames),
    ("all peers are denied", denied),
    ("many attempts fail", fails),
    ("many peers do not answer TCP", tcp_waits),
    ("a message that waited fails", |seed| waited(seed, false)),
    ("a GET that waited has no region", |seed| waited(seed, true)),
    ("a kept message has no other buffer", kept),
    ("a device is removed, LNet is slow", |seed| {
        removed(seed, false)
    }),
    ("a device is removed, requests wait for memory", |seed| {
        removed(seed, true)
    }),
    ("no GID for a while", |seed| unsettled(seed, false)),
    ("no subnet manager for a while", |seed| {
        unsettled(seed, true)
    }),
    ("an address moves without an event", moves_unseen),
    ("no route to a peer that connects", unrouted),
    ("queue pair numbers repeat", boots),
    ("a DREQ is lost", loses_dreq),
    ("no memory, and a peer stops", |seed| stops(seed, 1)),
    ("no memory, and two peers stop", |seed| stops(seed, 2)),
    ("no memory for answers of GETs", answers),
    ("no memory for longer than a message waits", lasting),
    ("LNet sends and receives messages of all kinds", busy),
    ("no memory, and debugfs is read", shown),
    (
        "no room to map, and LNet drops what it has kept",
        dropped_late,
    ),
    ("no memory, and a small depth", small_depth),
    ("no memory, and a peer that wants no data", unwanted),
    ("a device does not destroy a queue pair", |seed| {
        keeps_qps(seed, false)
    }),
    ("a device does not destroy a flushed queue pair", |seed| {
        keeps_qps(seed, true)
    }),
    ("a device refuses the error state", refuses_error_state),
    ("a device does not destroy a region", keeps_mrs),
    ("GETs wait for slow regions", |seed| regions(seed, false)),
    ("a device refuses one region", |seed| regions(seed, true)),
    ("regions come after the load", surplus),
    ("a device refuses one message", refuses_one),
    (
        "a device flushes connected queue pairs only",
        flushes_connected,
    ),
    ("events of a flush are lost", loses_events),
    ("LNet keeps the last requests", |seed| keeps_last(seed, 0)),
    ("LNet keeps the last request, messages finish", |seed| {
        keeps_last(seed, 3)
    }),
];

fn on(node: usize, name: &'static str, f: impl FnOnce() + 'static) -> Tid {
    sched::spawn(node, Kind::Process, name, f)
}

/// Runs `f` on a node until it is over.
fn done_on(node: usize, name: &'static str, f: impl FnOnce() + 'static) {
    sched::join(on(node, name, f));
}

fn ni(node: usize, slot: usize) -> *mut lnet::Ni {
    w().nodes[node].nis[slot]
}

fn up(node: usize, slots: usize) {
    done_on(node, "up", move || {
        if world::load(ro2iblnd::load).is_err() {
            violation("the module does not load");
        }
        for slot in 0..slots {
            if lnet::ni_up(world::device(node, slot)).is_err() {
                violation("an NI does not start");
            }
        }
    });
}

fn down(node: usize, slots: core::ops::Range<usize>) {
    done_on(node, "down", move || {
        for slot in slots {
            lnet::ni_down(ni(node, slot));
        }
        world::unload_unseen();
    });
}

/// Sends one message, which arrives within `most`.
fn send(from: *mut lnet::Ni, to: u32, most: u64, what: &str) {
    let op = lnet::begin(from, lnet::PUT, lnet::nid_of(to), 200, true);
    if lnet::wait(op, most) != Some(0) {
        violation(what);
    }
}

/// Sends the first message of a node while the core has no GID of the node's address, or knows no route. The message
/// waits.
fn unsettled(seed: u64, route: bool) -> End {
    let mut plan = Plan::calm(2);
    plan.ib = route;
    run(seed, plan, 16, move || {
        up(0, 1);
        up(1, 1);
        (w().no_gid, w().no_sm) = (!route, route);
        let at = w().lnet.ops.len();
        on(0, "user", || {
            let to = lnet::nid_of(world::ip(1, 0));
            let _ = lnet::begin(ni(0, 0), lnet::PUT, to, 200, false);
        });
        sched::sleep(100 * MS);
        (w().no_gid, w().no_sm) = (false, false);
        within(5 * SEC, "a message did not wait for the core", || {
            w().lnet.ops[at].sent == Some(0)
        });
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Moves an address to another InfiniBand device. Only the link of the interface tells, and this node sends nothing. A
/// third node reaches the address there.
fn moves_unseen(seed: u64) -> End {
    let mut plan = Plan::calm(3);
    plan.ib = true;
    run(seed, plan, 32, || {
        for node in 0..3 {
            up(node, 1);
        }
        let sends = |from: usize, what| {
            done_on(from, "user", move || {
                send(ni(from, 0), world::ip(0, 0), 5 * SEC, what);
            });
        };
        sends(1, "no connection");
        let old = world::device(0, 0);
        done_on(0, "happens", move || {
            lnet::link(old, Link::Lost);
            // SAFETY: Devices stay until the world ends.
            unsafe { (*old).moved = Some(sched::now()) };
            world::new_device(0, 0);
            lnet::link(old, Link::Up);
        });
        sched::sleep(2 * SEC);
        sends(2, "nothing listens on the new device");
        for node in 0..3 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Lets a peer connect to a node with soft-RoCE that has no route, and a peer that the node denies. Neither an accept
/// nor a reject is sent before there is a route, and then the first peer connects.
fn unrouted(seed: u64) -> End {
    let mut plan = Plan::calm(3);
    for node in &mut plan.nodes {
        node.software = true;
    }
    run(seed, plan, 32, || {
        for node in 0..3 {
            up(node, 1);
        }
        done_on(0, "happens", || {
            lnet::deny(Some(lnet::nid_of(world::ip(2, 0))));
        });
        w().no_route = Some(0);
        for node in 1..3 {
            on(node, "user", move || {
                let to = lnet::nid_of(world::ip(0, 0));
                let _ = lnet::begin(ni(node, 0), lnet::PUT, to, 200, false);
            });
        }
        sched::sleep(SEC);
        if w().requests < 2 {
            violation("a peer sends no request");
        }
        w().no_route = None;
        // The first message may fail, because the node was out of resources for it.
        sched::sleep(5 * SEC);
        done_on(1, "user", || {
            let what = "a node is not reached that had no route";
            send(ni(1, 0), world::ip(0, 0), 20 * SEC, what);
        });
        for node in 0..3 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Connections of a node that boots.
const CONNS: usize = 16;

/// Time in which a node that boots reaches the other: each of its old connections rejects one request.
const BOOTS: u64 = 5 * SEC;

/// Runs a world in which a node loses its power, boots, and sends a message at once.
fn boots(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    for node in &mut plan.nodes {
        node.conns = CONNS as u32;
    }
    run(seed, plan, 64, || {
        let asks = |most| {
            done_on(1, "user", move || {
                let ni = *w().nodes[1].nis.last().expect("an NI");
                send(
                    ni,
                    world::ip(0, 0),
                    most,
                    "the first message of a node does not arrive",
                );
            });
            within(60 * SEC, "not all connections are established", || {
                verbs::connected(0) == CONNS && verbs::connected(1) == CONNS
            });
        };
        up(0, 1);
        up(1, 1);
        asks(SOON);
        world::power_off(1);
        sched::sleep(SEC);
        world::power_on(1);
        up(1, 1);
        asks(BOOTS);
        if w().stale == 0 {
            violation("no request was rejected as stale");
        }
        for node in 0..2 {
            let last = w().nodes[node].nis.len() - 1;
            down(node, last..last + 1);
        }
        world::clean_all();
    })
}

/// Runs a world in which the first DREQ of a connection is lost. Only the CM tells the peer of the
/// end, when it repeats the DREQ.
fn loses_dreq(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.ofed = true;
    plan.params.probe = 0;
    run(seed, plan, 16, || {
        up(0, 1);
        up(1, 1);
        let peer = world::ip(1, 0);
        done_on(0, "user", move || {
            send(ni(0, 0), peer, SOON, "no connection")
        });
        w().plan.mute = 0..1;
        done_on(0, "user", move || {
            let _ = lnet::control(ni(0, 0), 1, lnet::nid_of(peer));
        });
        sched::sleep(SEC);
        w().plan.mute = 0..0;
        within(
            cm::resend() + SEC,
            "a peer keeps a connection whose DREQ was lost",
            || verbs::connected(1) == 0,
        );
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Waits until `is_so`, for `most`.
fn within(most: u64, what: &str, is_so: impl Fn() -> bool) {
    let until = sched::now() + most;
    while !is_so() {
        if sched::now() > until {
            violation(what);
        }
        sched::sleep(MS);
    }
}

fn run(seed: u64, plan: Plan, tasks: usize, f: impl FnOnce() + 'static) -> End {
    world::begin(seed, plan, std::env::var_os("RO2IB_SIM_LIVE").is_some());
    w().sched.choose(Policy::Random(20_000));
    sched::expect(tasks);
    sched::spawn(usize::MAX - 1, Kind::Process, "world", f);
    sched::run(u64::MAX, 1000 * SEC + 7200 * SEC);
    world::end()
}

/// Moves the address of an NI to a device that hangs. Another device loses its link, and then is
/// removed, or its NI deleted.
fn hangs(seed: u64, removed: bool) -> End {
    let mut plan = Plan::calm(2);
    plan.nodes[0].devs = 2;
    run(seed, plan, 64, move || {
        up(0, 2);
        up(1, 1);
        for slot in 0..2 {
            done_on(0, "user", move || {
                send(ni(0, slot), world::ip(1, 0), 50 * SEC, "no connection");
            });
        }
        // The device that the address moves to.
        w().hangs = Some((world::ip(0, 0), w().nodes[0].devs.len()..usize::MAX));
        let moves = on(0, "happens", || world::fail_over(world::device(0, 0)));
        within(SOON, "the NI does not follow its address", || w().hung != 0);
        if !cm::listens(world::ip(0, 0)) {
            violation("the listener has gone before the new device is ready");
        }
        let healthy = world::device(0, 1);
        for link in [Link::Lost, Link::Up] {
            done_on(0, "happens", move || lnet::link(healthy, link));
            within(
                SOON,
                "the link of a device waits for another device",
                || {
                    // SAFETY: NIs stay until the world ends.
                    unsafe { (*ni(0, 1)).is_port_fatal() == (link == Link::Lost) }
                },
            );
        }
        let begun = sched::now();
        match removed {
            true => done_on(0, "happens", move || world::unplug(healthy, false)),
            false => done_on(0, "down", || lnet::ni_down(ni(0, 1))),
        }
        if sched::now() - begun > SOON {
            violation("a device or its NI goes, and waits for another device");
        }
        if w().hung == 0 {
            violation("the other device hangs no longer");
        }
        sched::join(moves);
        w().hangs = None;
        sched::sleep(200 * SEC);
        down(0, if removed { 0..2 } else { 0..1 });
        down(1, 0..1);
        world::clean_all();
    })
}

/// Moves the address of an NI away from a device that hangs, while a query of its port waits. A message arrives over
/// the other device. The answer of the query changes nothing there: with `ib`, the old port has another LID, and a
/// connection ends when the LID of its port changes.
fn hangs_and_moves(seed: u64, ib: bool) -> End {
    let mut plan = Plan::calm(2);
    plan.ib = ib;
    run(seed, plan, 64, move || {
        // SAFETY: Devices stay until the world ends.
        unsafe { (*world::device(0, 0)).lid = 7 };
        up(0, 1);
        up(1, 1);
        let sends = |most, what| {
            done_on(0, "user", move || {
                send(ni(0, 0), world::ip(1, 0), most, what)
            });
        };
        sends(50 * SEC, "no connection");
        let device = world::device(0, 0);
        w().hangs = Some((world::ip(0, 0), 0..w().nodes[0].devs.len()));
        verbs::dispatch(device, ib_event_type_IB_EVENT_PORT_ERR);
        within(SOON, "nothing queries the port", || w().hung != 0);
        done_on(0, "happens", move || world::fail_over(device));
        if ib {
            // No message waits for the move, because no event of a GID belongs to it.
            sched::sleep(SOON);
        }
        sends(2 * SOON, "the NI does not follow its address");
        if w().hung == 0 {
            violation("the old device hangs no longer");
        }
        let made = w().all_qps.len();
        sched::sleep(2 * verbs::HANGS);
        w().hangs = None;
        let changed = "the query of the old device has changed the NI";
        sends(SOON, changed);
        if w().all_qps.len() != made {
            violation(changed);
        }
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Calls a peer over a device that takes a minute for each command. LNet is not told that the peer is down.
fn blames(seed: u64) -> End {
    run(seed, Plan::calm(2), 64, || {
        up(0, 1);
        up(1, 1);
        w().hangs = Some((world::ip(0, 0), 0..usize::MAX));
        done_on(0, "user", || {
            let to = lnet::nid_of(world::ip(1, 0));
            let _ = lnet::begin(ni(0, 0), lnet::PUT, to, 200, false);
        });
        sched::sleep(100 * SEC);
        w().hangs = None;
        sched::sleep(100 * SEC);
        if w().lnet.notified != 0 {
            violation("a peer is blamed for a device that hangs");
        }
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Sends a message from node 0 to each peer that does not exist.
fn call_lost() {
    for peer in 0..LOST {
        let to = world::ip(100 + peer, 0);
        done_on(0, "user", move || {
            let _ = lnet::begin(ni(0, 0), lnet::PUT, lnet::nid_of(to), 200, false);
        });
    }
}

/// Sends the first message of each other peer to node 0, which arrives soon; otherwise `late` happened.
fn honest_connect(late: &'static str) {
    for node in 1..=HONEST {
        done_on(node, "user", move || {
            send(ni(node, 0), world::ip(0, 0), SOON, late);
        });
    }
}

/// Calls many peers that do not answer, over a device whose disconnects wait for their TCP. Other peers connect.
fn tcp_waits(seed: u64) -> End {
    let mut plan = Plan::calm(1 + HONEST);
    for node in &mut plan.nodes {
        (node.tcp, node.software) = (true, false);
    }
    // This peer rejects the first request, for a smaller depth.
    (plan.nodes[1].credits, plan.nodes[1].hiw) = (4, 2);
    plan.tcp_gives_up = 350 * SEC;
    run(seed, plan, 4 * LOST, || {
        for node in 0..=HONEST {
            up(node, 1);
        }
        call_lost();
        sched::sleep(60 * SEC);
        let late = "a message waits for peers that do not answer TCP";
        done_on(0, "user", move || {
            send(ni(0, 0), world::ip(1, 0), SOON, late);
        });
        honest_connect("a connection waits for peers that do not answer");
        sched::sleep(1000 * SEC);
        for node in 0..=HONEST {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Sends the first message to a peer with a smaller depth, which rejects the first request, over a device that flushes
/// nothing of a queue pair that was never connected.
fn flushes_connected(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    (plan.nodes[1].credits, plan.nodes[1].hiw) = (4, 2);
    for node in &mut plan.nodes {
        node.software = false;
    }
    run(seed, plan, 16, || {
        w().family = verbs::Family::Qedr;
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            let late = "a retry waits for a device that does not flush";
            send(ni(0, 0), world::ip(1, 0), 2 * SEC, late);
        });
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Closes connections over devices of which events are lost that come while completions are handled.
fn loses_events(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    for node in &mut plan.nodes {
        node.software = false;
    }
    run(seed, plan, 64, || {
        w().family = verbs::Family::BnxtRe;
        up(0, 1);
        up(1, 1);
        for _ in 0..150 {
            done_on(0, "user", || {
                send(ni(0, 0), world::ip(1, 0), 50 * SEC, "no connection");
                let _ = lnet::control(ni(0, 0), 1, lnet::nid_of(world::ip(1, 0)));
            });
            // SAFETY: Devices stay until the world ends.
            let none = |node| unsafe { (*world::device(node, 0)).qps == 0 };
            within(3 * SEC, "a close waits for a lost event", || {
                none(0) && none(1)
            });
        }
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Denies many peers, for which messages wait, while the network changes.
fn denied(seed: u64) -> End {
    let mut plan = Plan::calm(1);
    plan.params.timeout = 50;
    plan.slow_failures = 10 * MS;
    run(seed, plan, 4 * DENIED, || {
        up(0, 1);
        for peer in 0..DENIED {
            let to = world::ip(1 + peer, 0);
            done_on(0, "user", move || {
                let _ = lnet::begin(ni(0, 0), lnet::PUT, lnet::nid_of(to), 200, false);
            });
        }
        let denies = on(0, "happens", || lnet::deny(Some(lnet::ANY)));
        for _ in 0..20 {
            let begun = sched::now();
            done_on(0, "happens", || lnet::network_changes(0));
            if sched::now() - begun > AT_ONCE {
                violation("the network waits for messages that go back to LNet");
            }
            sched::sleep(10 * MS);
        }
        sched::join(denies);
        sched::sleep(100 * SEC);
        if (0..DENIED).any(|op| w().lnet.ops[op].sent.is_none_or(|status| status == 0)) {
            violation("a message waits for a peer that is denied");
        }
        down(0, 0..1);
        world::clean_all();
    })
}

/// Connects peers while attempts to reach other peers fail, whose messages LNet is slow with.
fn fails(seed: u64) -> End {
    let mut plan = Plan::calm(1 + HONEST);
    plan.params.timeout = 50;
    plan.slow_failures = 20 * SEC;
    run(seed, plan, 4 * LOST, || {
        for node in 0..=HONEST {
            up(node, 1);
        }
        call_lost();
        within(60 * SEC, "no attempt fails", || w().lnet.slow != 0);
        honest_connect("a first message waits for messages of others that failed");
        sched::sleep(600 * SEC);
        for node in 0..=HONEST {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Lets a message fail when its connection is established, and LNet be slow with it, while a message to the same peer
/// is sent.
fn waited(seed: u64, no_region: bool) -> End {
    let mut plan = Plan::calm(2);
    plan.slow_failures = 20 * SEC;
    if no_region {
        plan.nodes[0].max_mr = 0;
    }
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        if !no_region {
            // The pages of a large message cannot be mapped.
            w().maps.refuses = Some((world::device(0, 0) as usize, EREMOTEIO));
        }
        let waits = on(0, "user", || {
            let to = lnet::nid_of(world::ip(1, 0));
            let _ = lnet::begin(ni(0, 0), lnet::GET, to, 5000, false);
            let behind = "a message waits behind another one that LNet is slow with";
            send(ni(0, 0), world::ip(1, 0), 2 * SEC, behind);
        });
        within(60 * SEC, "the message does not fail", || w().lnet.slow != 0);
        sched::join(waits);
        done_on(0, "user", || {
            let late = "a message waits for another one of its peer that LNet is slow with";
            send(ni(0, 0), world::ip(1, 0), SOON, late);
        });
        if w().lnet.slow == 0 {
            violation("LNet is not slow");
        }
        w().maps.refuses = None;
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Messages that LNet keeps; a connection has 32 spare buffers.
const KEPT: u32 = 64;

/// Removes a device while LNet keeps more messages than there are spare buffers.
fn kept(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    for node in &mut plan.nodes {
        node.credits = KEPT;
    }
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        done_on(1, "user", || {
            send(ni(1, 0), world::ip(0, 0), 50 * SEC, "no connection");
        });
        w().dry = Some(0);
        // LNet keeps what arrives for half a minute at least.
        w().plan.delay_ppm = 1_000_000;
        w().plan.hoards = true;
        for _ in 0..KEPT {
            done_on(1, "user", || {
                let to = lnet::nid_of(world::ip(0, 0));
                let _ = lnet::begin(ni(1, 0), lnet::PUT, to, 200, false);
            });
        }
        sched::sleep(SEC);
        let begun = sched::now();
        done_on(0, "happens", || world::unplug(world::device(0, 0), false));
        if sched::now() - begun > 10 * SEC {
            violation("the removal of a device waits for a message that LNet keeps");
        }
        w().dry = None;
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Removes a device while three transfers of its node are under way; or, `dry`, while requests of the peer wait for
/// memory. LNet takes 20 s for each message that fails.
fn removed(seed: u64, dry: bool) -> End {
    run(seed, Plan::calm(2), 64, move || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            send(ni(0, 0), world::ip(1, 0), 50 * SEC, "no connection");
        });
        let user = usize::from(dry);
        w().dry = dry.then_some(0);
        for _ in 0..3 {
            done_on(user, "user", move || {
                let to = lnet::nid_of(world::ip(1 - user, 0));
                let _ = lnet::begin(ni(user, 0), lnet::PUT, to, 5000, false);
            });
        }
        if dry {
            sched::sleep(100 * MS);
        }
        w().plan.slow_failures = 20 * SEC;
        let begun = sched::now();
        done_on(0, "happens", || world::unplug(world::device(0, 0), false));
        if sched::now() - begun > 10 * SEC {
            violation("the removal of a device waits for LNet");
        }
        w().dry = None;
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Takes the memory of a node away for a minute while `stopped` of its peers answer no PUT. PUTs to
/// the other peers do not wait for that.
fn stops(seed: u64, stopped: usize) -> End {
    let nodes = stopped + 3;
    let mut plan = Plan::calm(nodes);
    plan.params.timeout = 200;
    for node in &mut plan.nodes {
        node.conns = 4;
        node.credits = 16;
    }
    let most = plan.nodes[0].credits;
    run(seed, plan, 64, move || {
        for node in 0..nodes {
            up(node, 1);
        }
        let put = |to: usize, wait: Option<&'static str>| {
            let to = world::ip(to, 0);
            done_on(0, "user", move || {
                let op = lnet::begin(ni(0, 0), lnet::PUT, lnet::nid_of(to), 5000, wait.is_some());
                if wait.is_some_and(|_| lnet::wait(op, SOON) != Some(0)) {
                    violation(wait.unwrap_or_default());
                }
            });
        };
        for to in 1..nodes {
            put(to, Some("no connection"));
        }
        // Until all connections are established and have buffers for many messages.
        sched::sleep(SEC);
        for to in 1..nodes {
            for _ in 0..most {
                put(to, None);
            }
        }
        sched::sleep(SEC);
        w().dry = Some(0);
        // LNet keeps what arrives for half a minute at least.
        w().plan.delay_ppm = 1_000_000;
        w().plan.hoards = true;
        for to in 1..=stopped {
            for _ in 0..most {
                put(to, None);
            }
        }
        sched::sleep(SEC);
        w().plan.delay_ppm = 0;
        for _ in 0..10 {
            for to in stopped + 1..nodes {
                put(
                    to,
                    Some("a message waits for another peer, which does not answer"),
                );
            }
            sched::sleep(SEC);
        }
        sched::sleep(60 * SEC);
        w().dry = None;
        sched::sleep(60 * SEC);
        if w().lnet.ops.iter().any(|op| op.sent != Some(0)) {
            violation("a message failed because there was no memory");
        }
        for node in 0..nodes {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Sends PUTs of 5000 bytes from node 0 to node 1 without waiting for their end.
fn puts(n: usize) {
    for _ in 0..n {
        done_on(0, "user", || {
            let to = lnet::nid_of(world::ip(1, 0));
            let _ = lnet::begin(ni(0, 0), lnet::PUT, to, 5000, false);
        });
    }
}

/// Takes the memory of a node away while LNet sends as many messages as it has credits for, over a connection with a
/// smaller depth. All wait for memory.
fn small_depth(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 200;
    plan.nodes[0].credits = 16;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            lnet::tune(ro2ib_tuning {
                peer_credits: 2,
                ..lnet::UNTUNED
            });
            send(ni(0, 0), world::ip(1, 0), 50 * SEC, "no connection");
        });
        w().dry = Some(0);
        puts(16);
        sched::sleep(10 * SEC);
        w().dry = None;
        sched::sleep(60 * SEC);
        if w().lnet.ops.iter().any(|op| op.sent != Some(0)) {
            violation("a message failed because there was no memory");
        }
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Takes the memory of a node away while its peer wants no data of three PUTs. The next PUT finds the whole reserve.
fn unwanted(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 200;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            send(ni(0, 0), world::ip(1, 0), 50 * SEC, "no connection");
        });
        w().dry = Some(0);
        w().plan.no_match_ppm = 1_000_000;
        puts(3);
        sched::sleep(10 * SEC);
        w().plan.no_match_ppm = 0;
        puts(1);
        sched::sleep(SOON);
        if w().lnet.ops.iter().any(|op| op.sent != Some(0)) {
            violation("a message waits for the reserve, which nothing uses");
        }
        w().dry = None;
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Takes the memory of a node away while LNet of the node answers GETs, with less data than they ask for.
/// Often there is none. Each GET ends well once there is memory again.
fn answers(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 200;
    for node in &mut plan.nodes {
        node.credits = KEPT;
    }
    plan.cut_ppm = 1_000_000;
    run(seed, plan, 2 * KEPT as usize, move || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            send(ni(0, 0), world::ip(1, 0), 50 * SEC, "no connection");
        });
        w().dry = Some(1);
        for _ in 0..KEPT {
            on(0, "user", || {
                let to = lnet::nid_of(world::ip(1, 0));
                let _ = lnet::begin(ni(0, 0), lnet::GET, to, 5000, true);
            });
        }
        sched::sleep(10 * SEC);
        w().dry = None;
        sched::sleep(60 * SEC);
        if w().lnet.ops.iter().any(|op| op.result != Some(0)) {
            violation("a GET failed because there was no memory for its answer");
        }
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Takes the memory of a node away for three seconds longer than a message waits, while LNet has more GETs than credits
/// for the peer. Those that LNet sends when the first ones fail have their own time.
fn lasting(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 20;
    for node in &mut plan.nodes {
        node.credits = 2;
    }
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            send(ni(0, 0), world::ip(1, 0), 10 * SEC, "no connection");
        });
        w().dry = Some(0);
        let first = w().lnet.ops.len();
        for _ in 0..6 {
            on(0, "user", || {
                let to = lnet::nid_of(world::ip(1, 0));
                let _ = lnet::begin(ni(0, 0), lnet::GET, to, 5000, true);
            });
        }
        sched::sleep(23 * SEC);
        w().dry = None;
        sched::sleep(20 * SEC);
        let failed = w().lnet.ops[first..]
            .iter()
            .filter(|op| op.result != Some(0));
        if failed.count() > 2 {
            violation("a GET fails as if it had waited as long as another one");
        }
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Messages of each kind that LNet of both nodes sends.
const EACH: usize = 40;

/// Lets LNet of both nodes send PUTs and GETs of these sizes, and waits for their end.
fn exchange(sizes: &[u32]) {
    let at = w().lnet.ops.len();
    let kinds = [lnet::PUT, lnet::GET];
    for _ in 0..EACH {
        for (kind, nob) in kinds
            .into_iter()
            .flat_map(|kind| sizes.iter().map(move |nob| (kind, *nob)))
        {
            for node in 0..2 {
                on(node, "user", move || {
                    let to = lnet::nid_of(world::ip(1 - node, 0));
                    let _ = lnet::begin(ni(node, 0), kind, to, nob, true);
                });
            }
        }
    }
    let all = at + 4 * EACH * sizes.len();
    within(100 * SEC, "a message does not end", || {
        let ops = &w().lnet.ops;
        ops.len() == all && ops[at..].iter().all(|op| op.result == Some(0))
    });
}

/// Lets LNet send and receive messages of all kinds, with sinks that have gaps among them. No call of the driver waits
/// for memory.
fn busy(seed: u64) -> End {
    run(seed, Plan::calm(2), 20 * EACH + 32, || {
        up(0, 1);
        up(1, 1);
        for node in 0..2 {
            done_on(node, "user", move || {
                let to = world::ip(1 - node, 0);
                send(ni(node, 0), to, 50 * SEC, "no connection");
            });
        }
        sched::sleep(SEC);
        w().no_wait = Some(0);
        exchange(&[200]);
        exchange(&[5000]);
        for _ in 0..EACH {
            for (node, kind) in [(0, lnet::GET), (1, lnet::PUT)] {
                done_on(node, "user", move || {
                    let to = lnet::nid_of(world::ip(1 - node, 0));
                    let op = lnet::begin(ni(node, 0), kind, to, 5000, true);
                    if lnet::wait(op, SOON) != Some(0) {
                        violation("a message does not end");
                    }
                });
            }
        }
        w().no_wait = None;
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Reads the files of a node while it has no memory.
fn shown(seed: u64) -> End {
    run(seed, Plan::calm(2), 16, || {
        up(0, 1);
        up(1, 1);
        done_on(0, "user", || {
            let to = world::ip(1, 0);
            send(ni(0, 0), to, 50 * SEC, "no connection");
            let mut sums = Sums::default();
            for dry in [None, Some(0)] {
                w().dry = dry;
                for file in kernel_core::files(0) {
                    let _ = sums.cat(file);
                }
            }
            w().dry = None;
        });
        for node in 0..2 {
            down(node, 0..1);
        }
        world::clean_all();
    })
}

/// Lets LNet keep a PUT, and drop it while the device has no room to map anything: neither the buffer of the request
/// again, nor one for the answer. The reserve has one for the answer.
fn dropped_late(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 200;
    plan.hoards = true;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        // No message of node 0, whose buffer would be free then.
        let put = |nob| {
            done_on(1, "user", move || {
                let to = lnet::nid_of(world::ip(0, 0));
                let _ = lnet::begin(ni(1, 0), lnet::PUT, to, nob, false);
            });
        };
        put(200);
        within(50 * SEC, "no connection", || {
            w().lnet.ops[0].taken.is_some()
        });
        w().plan.no_match_ppm = 1_000_000;
        w().maps.full = Some(world::device(0, 0) as usize);
        put(5000);
        sched::sleep(70 * SEC);
        if w().lnet.ops.iter().any(|op| op.sent != Some(0)) {
            violation("a request that LNet dropped has no answer");
        }
        w().maps.full = None;
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Closes a connection of a node whose device refuses to destroy queue pairs, and, unless it `flushes` them, to move
/// them to the error state. The peer does not learn of the end, and sends messages, which arrive. Then the NI is
/// deleted, and the device is removed.
fn keeps_qps(seed: u64, flushes: bool) -> End {
    let mut plan = Plan::calm(2);
    plan.params.probe = 0;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        let (here, there) = (world::ip(0, 0), world::ip(1, 0));
        let connects = || {
            done_on(0, "user", move || {
                send(ni(0, 0), there, 50 * SEC, "no connection");
            });
        };
        let puts = |n| {
            for _ in 0..n {
                done_on(1, "user", move || {
                    let _ = lnet::begin(ni(1, 0), lnet::PUT, lnet::nid_of(here), 200, false);
                });
            }
        };
        let tells = || {
            for qp in w().all_qps.clone() {
                verbs::tell(qp, ib_event_type_IB_EVENT_QP_FATAL);
            }
            sched::sleep(SEC);
        };
        let device = world::device(0, 0);
        let kept = move || verbs::kept(device).count();
        connects();
        puts(1);
        sched::sleep(SEC);
        w().keeps_qps = Some((0, flushes));
        w().plan.mute = 0..1;
        done_on(0, "user", move || {
            let _ = lnet::control(ni(0, 0), 1, lnet::nid_of(there));
        });
        within(60 * SEC, "the queue pair is not destroyed", || kept() != 0);
        sched::sleep(SEC);
        let written = w().messages;
        puts(3);
        sched::sleep(SEC);
        if !flushes && w().messages == written {
            violation("no message arrives at the queue pair");
        }
        tells();
        w().plan.mute = 0..0;
        connects();
        let begun = sched::now();
        done_on(0, "down", || lnet::ni_down(ni(0, 0)));
        if sched::now() - begun > 30 * SEC {
            violation("an NI waits for a queue pair that its device does not destroy");
        }
        if kept() < 2 {
            violation("the device has destroyed a queue pair");
        }
        done_on(0, "happens", move || world::unplug(device, false));
        tells();
        // The kernel does not unload the module, in which functions for completions are. Here that shows what is left.
        done_on(0, "down", world::unload_unseen);
        down(1, 0..1);
        for node in 0..2 {
            world::clean(node);
        }
    })
}

/// Closes a connection of a node whose device refuses to move queue pairs to the error state: the CM then sends no
/// DREQ, and the queue pair is destroyed when its drain was given up. The peer learns of the end soon afterwards.
fn refuses_error_state(seed: u64) -> End {
    let mut plan = Plan::calm(2);
    plan.params.probe = 0;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        let there = world::ip(1, 0);
        done_on(0, "user", move || {
            send(ni(0, 0), there, 50 * SEC, "no connection");
        });
        sched::sleep(SEC);
        w().keeps_qps = Some((0, false));
        done_on(0, "user", move || {
            let _ = lnet::control(ni(0, 0), 1, lnet::nid_of(there));
        });
        let left = Rc::new(Cell::new(0));
        for _ in 0..12 {
            sched::sleep(SEC);
            let left = left.clone();
            done_on(1, "user", move || left.set(lnet::control(ni(1, 0), 3, 0)));
        }
        if left.get() != 0 {
            violation("a peer is not told that its connection has ended");
        }
        done_on(0, "down", || lnet::ni_down(ni(0, 0)));
        done_on(0, "happens", move || {
            world::unplug(world::device(0, 0), false)
        });
        done_on(0, "down", world::unload_unseen);
        down(1, 0..1);
        for node in 0..2 {
            world::clean(node);
        }
    })
}

/// Deletes an NI whose device refuses to destroy regions, but destroys queue pairs. Then the device is removed.
fn keeps_mrs(seed: u64) -> End {
    run(seed, Plan::calm(2), 64, move || {
        up(0, 1);
        up(1, 1);
        let (there, device) = (world::ip(1, 0), world::device(0, 0));
        done_on(0, "user", move || {
            let _ = lnet::begin(ni(0, 0), lnet::GET, lnet::nid_of(there), 1 << 20, false);
        });
        sched::sleep(SEC);
        w().keeps_mrs = Some(0);
        done_on(0, "down", || lnet::ni_down(ni(0, 0)));
        // SAFETY: Devices stay until the world ends.
        if verbs::kept_mrs(unsafe { &*device }).count() == 0 {
            violation("the device has destroyed each region");
        }
        done_on(0, "happens", move || world::unplug(device, false));
        done_on(0, "down", world::unload_unseen);
        down(1, 0..1);
        world::clean_all();
    })
}

/// GETs that begin at once on a connection without memory regions.
const GETS: usize = 8;

/// Lets LNet send GETs that need memory regions, each of which takes a command of a second, or of which the device
/// refuses one. Their pages are not mapped again and again meanwhile, and at most one GET fails.
fn regions(seed: u64, refuses: bool) -> End {
    run(seed, Plan::calm(2), 64, move || {
        up(0, 1);
        up(1, 1);
        let there = world::ip(1, 0);
        done_on(0, "user", move || {
            send(ni(0, 0), there, 50 * SEC, "no connection");
        });
        let (first, maps) = (w().lnet.ops.len(), w().maps.lists);
        match refuses {
            true => w().region_fails = Some(3),
            false => w().region_time = SEC,
        }
        done_on(0, "user", move || {
            for _ in 0..GETS {
                let _ = lnet::begin(ni(0, 0), lnet::GET, lnet::nid_of(there), 5000, false);
            }
        });
        within(50 * SEC, "a GET does not end", || {
            w().lnet.ops[first..]
                .iter()
                .all(|op| op.result.is_some() || op.sent.is_some_and(|status| status != 0))
        });
        let failed = w().lnet.ops[first..]
            .iter()
            .filter(|op| op.result != Some(0));
        if failed.count() > usize::from(refuses) {
            violation("a GET fails that the device has a region for");
        }
        // The peer maps the data that it sends, too.
        if w().maps.lists - maps > 4 * GETS {
            violation("pages are mapped although there is no region for them");
        }
        w().region_time = 0;
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Lets LNet send four GETs at a time while the allocation of a region takes longer than all of them. No region is
/// added for a GET that has found an idle one.
fn surplus(seed: u64) -> End {
    run(seed, Plan::calm(2), 8192, move || {
        up(0, 1);
        up(1, 1);
        let (there, device) = (world::ip(1, 0), world::device(0, 0));
        done_on(0, "user", move || {
            send(ni(0, 0), there, 50 * SEC, "no connection");
        });
        w().region_time = SEC;
        let users: Vec<Tid> = (0..4)
            .map(|_| {
                on(0, "user", move || {
                    for _ in 0..1000 {
                        let op = lnet::begin(ni(0, 0), lnet::GET, lnet::nid_of(there), 5000, true);
                        let _ = lnet::wait(op, 50 * SEC);
                    }
                })
            })
            .collect();
        for user in users {
            sched::join(user);
        }
        sched::sleep(8 * SEC);
        // SAFETY: Devices stay until the world ends.
        if unsafe { (*device).mrs.len() } > 4 {
            violation("regions were added for transfers that did not wait any more");
        }
        w().region_time = 0;
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Sends messages of which the device refuses one when it is posted. It has got none of those that were posted with
/// that one, behind it: they arrive over the next connection.
fn refuses_one(seed: u64) -> End {
    const MESSAGES: usize = 24;
    run(seed, Plan::calm(2), 64, move || {
        up(0, 1);
        up(1, 1);
        let there = world::ip(1, 0);
        done_on(0, "user", move || {
            send(ni(0, 0), there, 50 * SEC, "no connection");
        });
        let first = w().lnet.ops.len();
        w().faulty = true;
        let posted = w().calls[world::Fault::Post as usize];
        w().plan.fault_nth[world::Fault::Post as usize] = Some(posted + 8 + seed);
        done_on(0, "user", move || {
            for _ in 0..MESSAGES {
                let _ = lnet::begin(ni(0, 0), lnet::PUT, lnet::nid_of(there), 200, false);
            }
        });
        sched::sleep(20 * SEC);
        let failed = w().lnet.ops[first..].iter().filter(|op| op.sent != Some(0));
        // SAFETY: Queue pairs stay until the world ends.
        let had: usize = w().all_qps.iter().map(|qp| unsafe { (**qp).had }).sum();
        // The peer may have refused an answer instead.
        if failed.count() > had + 1 + lnet::not_resent() && w().nodes[0].truth.refused_qps != 0 {
            violation("a message fails that the device has not got");
        }
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}

/// Credits of a connection whose requests LNet keeps.
const FEW: u32 = 8;

/// Lets LNet keep the requests of a peer, receive one of them, and keep the last one that the peer had a credit for,
/// and which returned a credit of this node. The next message of the peer waits for the credit of the one that LNet
/// received, and for nothing else. Meanwhile LNet does not return from the end of the first of `finished` messages to
/// the peer, and the others wait for that.
fn keeps_last(seed: u64, finished: usize) -> End {
    let mut plan = Plan::calm(2);
    plan.params.timeout = 400;
    for node in &mut plan.nodes {
        node.credits = FEW;
    }
    // LNet keeps what arrives for half a minute at least.
    plan.hoards = true;
    run(seed, plan, 64, move || {
        up(0, 1);
        up(1, 1);
        let put = |from: usize| {
            let at = w().lnet.ops.len();
            done_on(from, "user", move || {
                let to = lnet::nid_of(world::ip(1 - from, 0));
                let _ = lnet::begin(ni(from, 0), lnet::PUT, to, 200, false);
            });
            at
        };
        let is_taken = |at: usize| w().lnet.ops.get(at).is_some_and(|op| op.taken.is_some());
        let first = put(1);
        within(50 * SEC, "no connection", || is_taken(first));
        w().plan.delay_ppm = 1_000_000;
        let kept: Vec<usize> = (1..FEW).map(|_| put(0)).collect();
        sched::sleep(SEC);
        w().plan.delay_ppm = 0;
        w().plan.stuck = (finished > 0).then_some(1);
        let back = put(1);
        within(SOON, "a message does not arrive", || is_taken(back));
        for _ in 1..finished {
            put(1);
        }
        within(60 * SEC, "LNet keeps all requests", || {
            kept.iter().any(|at| is_taken(*at))
        });
        w().plan.delay_ppm = 1_000_000;
        put(0);
        let last = put(0);
        sched::sleep(100 * MS);
        w().plan.stuck = None;
        let late = "a message waits for a credit that this node does not return";
        // The peer probes after a second.
        within(SOON / 2, late, || w().lnet.ops[last].came);
        sched::sleep(200 * SEC);
        down(0, 0..1);
        down(1, 0..1);
        world::clean_all();
    })
}
