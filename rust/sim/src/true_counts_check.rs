// SPDX-License-Identifier: GPL-2.0

//! Comparison of the driver's own counters, in a quiet world, with the true counts of its devices.
//!
//! Administrators rely on these numbers. A wrong number misleads them, and no other check of a
//! world finds it.

use std::{
    cell::RefCell,
    rc::Rc, //
};

use simc::{
    dma,
    kernel_core,
    lnet::{
        self,
        Life,
        Ni, //
    },
    sched::{
        self,
        Kind,
        MS, //
    },
    trace_check,
    verbs,
    world::{
        violation,
        w,
        Fault,
        Plan, //
    }, //
};

/// Number of tries: a message may be under way, a NOOP for instance.
const TRIES: u32 = 6;

/// Summary of the world's events.
#[derive(Clone)]
pub struct Past {
    /// Plan of the world.
    pub plan: Plan,
    /// The NIs of the node are those that it began with.
    pub same: bool,
    /// An administrator changed tunables.
    pub tuned: bool,
    /// Its device may have reported that it is broken, and sent no other event since.
    pub broken: bool,
}

/// Compares the counters of a node while no message is sent.
pub fn look(node: usize, past: &Past) {
    for left in (0..TRIES).rev() {
        match differs(node, past) {
            None => return,
            Some(what) if left == 0 => violation(&format!("node {node} says {what}")),
            Some(_) => sched::sleep(200 * MS),
        }
    }
}

/// Checks that both ends of each connection together have the agreed number of credits.
pub fn credits() {
    for left in (0..TRIES).rev() {
        match lost() {
            None => return,
            Some(what) if left == 0 => violation(&what),
            Some(_) => sched::sleep(200 * MS),
        }
    }
}

/// Credits of one end of a connection.
#[derive(Clone, Copy, Debug)]
struct End {
    qpn: u64,
    peer_qpn: u64,
    depth: u64,
    credits: u64,
    outstanding: u64,
    /// Credits of the other end, as this end sees them.
    peer_held: u64,
    with_lnet: u64,
}

impl End {
    fn of(line: &[(&str, &str)]) -> Option<Self> {
        let number = |key| number(line, key);
        Some(Self {
            qpn: number("qpn")?,
            peer_qpn: number("peer_qpn")?,
            depth: number("depth")?,
            credits: number("credits")?,
            outstanding: number("outstanding")?,
            peer_held: number("peer_held")?,
            with_lnet: number("with_lnet")?,
        })
    }
}

fn lost() -> Option<String> {
    let ends = Rc::new(RefCell::new(Vec::new()));
    for node in 0..w().nodes.len() {
        let ends = ends.clone();
        let tid = sched::spawn(node, Kind::Process, "credits", move || {
            let text: String = kernel_core::files(node)
                .into_iter()
                .map(kernel_core::cat)
                .collect();
            let conns = text.lines().filter(|line| line.starts_with("conn="));
            ends.borrow_mut()
                .extend(conns.filter_map(|line| End::of(&words(line))));
        });
        sched::join(tid);
    }
    let ends = ends.borrow();
    // LNet may have more, of closed connections.
    let (says, is) = (
        ends.iter().map(|end| end.with_lnet).sum::<u64>(),
        w().lnet.held,
    );
    if says > is as u64 {
        return Some(format!(
            "the driver reports {says} messages that LNet holds, and LNet holds {is}"
        ));
    }
    for here in ends.iter() {
        let there = ends
            .iter()
            .find(|end| end.qpn == here.peer_qpn && end.peer_qpn == here.qpn);
        // An end that does not know its other end, or has none, is about to go.
        let Some(there) = there else { continue };
        let all = here.credits + there.outstanding + there.with_lnet;
        if here.depth != there.depth || all != here.depth || here.credits != there.peer_held {
            return Some(format!("credits are lost, or made up: {here:?}, {there:?}"));
        }
    }
    None
}

/// Kinds of the lines that are compared.
const KINDS: [&str; 6] = [
    "ni=",
    "conn=",
    "closed_conns=",
    "causes=",
    "closes=",
    "event=",
];

/// Returns a description of the first inconsistency.
fn differs(node: usize, past: &Past) -> Option<String> {
    let Past {
        plan,
        same,
        tuned,
        broken,
    } = past.clone();
    let files = kernel_core::files(node);
    let text: String = files.iter().copied().map(kernel_core::cat).collect();
    let lines = text
        .lines()
        .filter(|line| KINDS.iter().any(|kind| line.starts_with(kind)));
    let lines: Vec<Vec<(&str, &str)>> = lines.map(words).collect();
    let of = |key: &str| -> Vec<&Vec<(&str, &str)>> {
        lines.iter().filter(|line| is(line, key)).collect()
    };
    let conns = of("conn");
    // SAFETY: NIs stay until the world ends.
    let in_use = |ni: &&*mut Ni| unsafe { (***ni).life == Life::Active };
    let nis: Vec<*mut Ni> = w().nodes[node].nis.iter().filter(in_use).copied().collect();
    let truth = w().nodes[node].truth;

    let may =
        |kind: Fault| plan.fault_ppm[kind as usize] != 0 || plan.fault_nth[kind as usize].is_some();
    // Without memory a node lacks some of its files: three of each NI, and one of requests for no
    // NI.
    if files.len() < 3 * nis.len() + 1 && may(Fault::Alloc) {
        return None;
    }
    // The device reports a failed post after the driver has counted it; and the driver does not
    // count posts of a queue pair that failed before its connection had it.
    let posts = ![
        Fault::Post,
        Fault::PostRecv,
        Fault::Alloc,
        Fault::Verbs,
        Fault::Dma,
        Fault::Cm,
    ]
    .into_iter()
    .any(may);
    if same && posts && !truth.undrained {
        for (key, is) in truth.named() {
            let all = of("closed_conns").into_iter().chain(conns.iter().copied());
            let says: u64 = all.filter_map(|line| number(line, key)).sum();
            if says != is {
                return Some(format!("{key}={says}, and it was {is}"));
            }
        }
    }
    let told = trace_check::told(node);
    if plan.looked_at {
        if posts && told.posts != truth.tx_msgs {
            let posts = told.posts;
            return Some(format!("post {posts} times, and it was {}", truth.tx_msgs));
        }
        if let Some(stall) = trace_check::stalls(node).first() {
            return Some(format!(
                "that it stands still, and nothing is queued: {stall}"
            ));
        }
    }
    if same {
        let of_causes = |kind: &str| -> u64 {
            let causes = of("causes");
            let these = causes
                .iter()
                .filter(|line| line.get(1) == Some(&("of", kind)));
            these
                .flat_map(|line| line.iter().skip(2))
                .filter_map(|(_, n)| n.parse::<u64>().ok())
                .sum()
        };
        let (closed, failed) = (of_causes("closed"), of_causes("failed"));
        if plan.looked_at && (closed, failed) != (told.closes, told.fails) {
            let (closes, fails) = (told.closes, told.fails);
            return Some(format!(
                "closed={closed} failed={failed}, and events tell {closes} and {fails}"
            ));
        }
        if plan.looked_at {
            let here = (of_causes("refused"), told.refuses);
            if here.0 != here.1 {
                return Some(format!("refused={}, and events tell {}", here.0, here.1));
            }
        }
        let (closes, events) = (of("closes"), of("event"));
        let ends: u64 = closes.iter().filter_map(|line| number(line, "ends")).sum();
        let refusals: u64 = closes
            .iter()
            .filter_map(|line| number(line, "refusals"))
            .sum();
        if ends + refusals != 0 && events.is_empty() {
            return Some(format!(
                "ends={ends} refusals={refusals}, and tells of none"
            ));
        }
        // The driver counts rejected GPU memory separately, and does not count messages that LNet
        // makes fail.
        if plan.gpu_ppm == 0 && plan.send_error_ppm == 0 && of_causes("messages") != truth.messages
        {
            let says = of_causes("messages");
            return Some(format!("messages={says}, and it was {}", truth.messages));
        }
    }
    // Each connection may have as many regions as it can use, and the device has them.
    let has_all = plan.nodes[node].max_mr >= 1 << 16
        && ![Fault::Alloc, Fault::Verbs, Fault::Dma]
            .into_iter()
            .any(may);
    let counts = of("causes");
    let others = counts
        .iter()
        .find(|line| line.get(1) == Some(&("of", "other")));
    if let Some(times) = others.and_then(|line| number(line, "NoRegion")) {
        if has_all && times != 0 {
            return Some(format!("NoRegion={times}, and there were some"));
        }
    }
    if let Some(what) = speeds(node, past, &of("ni")) {
        return Some(what);
    }
    let mut listed = 0;
    for ni in nis {
        let refs: u32 = lnet::peers(ni).iter().map(|(_, refs)| refs - 1).sum();
        let older = lnet::control(ni, 5, 0);
        listed += lnet::control(ni, 3, 0) as usize;
        // SAFETY: NIs and devices stay until the world ends.
        if !broken && unsafe { (*ni).is_fatal() && verbs::is_good((*ni).dev) } {
            return Some("that its device is broken".to_string());
        }
        if refs as usize > conns.len() || older as usize > conns.len() {
            return Some(format!(
                "{refs} references, {older} older, {} connections",
                conns.len()
            ));
        }
        if !tuned && older != 0 {
            return Some(format!(
                "{older} connections have other settings, and there are none"
            ));
        }
    }
    if listed != conns.len() {
        return Some(format!("{} connections, and lists {listed}", conns.len()));
    }
    // A buffer that cannot be mapped again is lost.
    if !may(Fault::Dma) {
        return buffers(node, &conns);
    }
    None
}

/// Checks that each connection has as many receive buffers as it began with, unless LNet keeps
/// some. Connections that are not listed yet, or not any more, have buffers, too.
fn buffers(node: usize, conns: &[&Vec<(&str, &str)>]) -> Option<String> {
    let mut should = 0;
    for line in conns {
        let depth = number(line, "depth")?;
        if !line.contains(&("state", "Established")) || number(line, "with_lnet") != Some(0) {
            return None;
        }
        should += 2 * depth + 2 + depth.clamp(4, 32);
    }
    let devs = w().nodes[node].devs.clone();
    let is: usize = devs.into_iter().map(|dev| dma::receive_buffers(dev)).sum();
    ((is as u64) < should)
        .then(|| format!("{is} buffers to receive into, and it should be {should}"))
}

/// Checks that the port speed in an NI's file is the current speed of the port.
fn speeds(node: usize, past: &Past, lines: &[&Vec<(&str, &str)>]) -> Option<String> {
    let devs = w().nodes[node].devs.clone();
    if past.broken || !devs.iter().all(|dev| verbs::is_good(*dev)) {
        return None;
    }
    let mut says: Vec<u64> = lines
        .iter()
        .filter_map(|line| number(line, "speed_mbps"))
        .collect();
    let mut is: Vec<u64> = devs.iter().map(|dev| verbs::mbps(*dev)).collect();
    says.sort_unstable();
    is.sort_unstable();
    (says != is).then(|| format!("speeds {says:?}, and they are {is:?}"))
}

/// Returns whether a line is of `kind`.
fn is(line: &[(&str, &str)], kind: &str) -> bool {
    line.first().is_some_and(|(key, _)| *key == kind)
}

/// Returns the pairs of key and value.
fn words(line: &str) -> Vec<(&str, &str)> {
    line.split(' ')
        .filter_map(|word| word.split_once('='))
        .collect()
}

fn number(line: &[(&str, &str)], key: &str) -> Option<u64> {
    let found = line.iter().find(|(k, _)| *k == key);
    found.and_then(|(_, n)| n.parse().ok())
}
