// SPDX-License-Identifier: GPL-2.0

//! Trace points, notices, and per-CPU counters.
//!
//! In some worlds (`looked_at` of the plan) all events are enabled. Their contents must be
//! consistent: a connection changes from the state that it was in, has a unique number, and ends
//! once; an established connection ends as such, and each end was reported when the module is
//! unloaded; a stage is not longer than the world is old.

use std::{
    borrow::Cow,
    ffi::CStr,
    fmt,
    sync::atomic::{
        AtomicU32,
        Ordering, //
    }, //
};

use crate::{
    byzantine,
    decl::r::*,
    fixed_hash::Map,
    mem,
    sched::{
        self,
        MS, //
    },
    verbs,
    world::{
        self,
        say,
        telling,
        violation,
        w, //
    }, //
};

/// Mask of all events.
const ALL: u32 = 0x1ff;

/// Longest time for which the driver holds back a message of an established connection, apart from
/// waits for credits and slots of the send queue.
const HELD: u64 = 20 * MS;

/// Mask of the enabled events.
#[no_mangle]
pub static ro2ib_trace_on: AtomicU32 = AtomicU32::new(0);

/// Contents of the events so far.
#[derive(Default)]
pub struct Seen {
    /// State of a connection, by node, NI and number.
    states: Map<Which<'static>, String>,
    /// Connections that are or were established, and whose end no event has reported.
    ups: Map<Which<'static>, ()>,
    /// Number of events.
    pub events: u64,
    /// Stalled connections, and the reason of each.
    stalls: Map<Which<'static>, (String, u64)>,
    /// Wait of the next posted message, without the wait for a credit.
    waited: u64,
    /// Last stall of a connection: its end, and its length.
    stood: Map<Which<'static>, (u64, u64)>,
    /// Counts of each node.
    told: Map<usize, Told>,
}

/// Counts of events of a node, to compare with the true counts and of the driver.
#[derive(Clone, Copy, Default)]
pub struct Told {
    /// Messages posted.
    pub posts: u64,
    /// Established connections that have ended.
    pub closes: u64,
    /// Attempts that failed.
    pub fails: u64,
    /// Requests that were rejected.
    pub refuses: u64,
}

/// Returns the counts of a node.
pub fn told(node: usize) -> Told {
    w().trace.told.get(&node).copied().unwrap_or_default()
}

/// Forgets the connections of a node that lost its power, perhaps between the event of a post and the post.
pub fn forget(node: usize) {
    let posts = w().nodes[node].truth.tx_msgs;
    if let Some(told) = w().trace.told.get_mut(&node) {
        told.posts = posts;
    }
    w().trace.stalls.retain(|(of, _, _), _| *of != node);
    w().trace.ups.retain(|(of, _, _), _| *of != node);
}

/// Checks, when the module is unloaded, that events reported the end of all connections of the
/// node.
pub fn unloaded(node: usize) {
    if let Some((_, ni, number)) = w().trace.ups.keys().find(|(of, _, _)| *of == node) {
        violation(&format!(
            "the connection {number} of {ni} was up, and no event reported its end"
        ));
    }
}

/// Returns the stalled connections of a node, with their reasons.
pub fn stalls(node: usize) -> Vec<String> {
    let stalls = &w().trace.stalls;
    let here = stalls.iter().filter(|((of, _, _), _)| *of == node);
    here.map(|((_, ni, number), (want, _))| format!("{ni} {number}: {want}"))
        .collect()
}

/// Resets the state for a new world.
pub fn begin(looked_at: bool) {
    let on = if looked_at {
        ALL
    } else {
        ro2ib_trace_bit_RO2IB_TRACE_CONN_STATE
    };
    ro2ib_trace_on.store(on, Ordering::Relaxed);
}

/// Returns a text of `size` bytes, valid during the event.
fn text<'a>(p: *const u8, size: u32) -> Cow<'a, str> {
    // SAFETY: The driver passes so many bytes.
    let bytes = unsafe { core::slice::from_raw_parts(p, size as usize) };
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) if !text.is_empty() => text.to_string_lossy(),
        _ => violation("a text of an event is empty, or has no end"),
    }
}

fn word<'a>(p: *const u8) -> Cow<'a, str> {
    text(p, RO2IB_TRACE_WORD)
}

/// Key of a connection: its node, NI and number.
type Which<'a> = (usize, Cow<'a, str>, u32);

/// Checks that the event is enabled, counts it, and returns its connection. Formats `more` only if
/// the story is recorded.
fn event<'a>(
    bit: u32,
    name: &str,
    c: *const ro2ib_trace_conn,
    more: fmt::Arguments<'_>,
) -> Which<'a> {
    if ro2ib_trace_on.load(Ordering::Relaxed) & bit == 0 {
        violation("an event that is not enabled");
    }
    w().trace.events += 1;
    // SAFETY: The driver passes a valid one.
    let c: &'a ro2ib_trace_conn = unsafe { &*c };
    let (ni, peer) = (
        text(c.ni.as_ptr(), RO2IB_TRACE_NID),
        text(c.peer.as_ptr(), RO2IB_TRACE_NID),
    );
    if telling() {
        let (number, qpn) = (c.number, c.qpn);
        say(&format!(
            "{name}: ni={ni} peer={peer} conn={number} qpn={qpn} {more}"
        ));
    }
    (sched::node(), ni, c.number)
}

/// Converts the key into an owned one.
fn owned((node, ni, number): Which<'_>) -> Which<'static> {
    (node, Cow::Owned(ni.into_owned()), number)
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_conn_state(
    c: *const ro2ib_trace_conn,
    from: *const u8,
    to: *const u8,
    why: *const u8,
) {
    let (from, to, why) = (word(from), word(to), word(why));
    if to == "Closing" {
        // SAFETY: The driver passes a valid one.
        verbs::closes(unsafe { (*c).qpn });
    }
    if ro2ib_trace_on.load(Ordering::Relaxed) != ALL {
        return;
    }
    let key = event(
        ro2ib_trace_bit_RO2IB_TRACE_CONN_STATE,
        "conn_state",
        c,
        format_args!("from={from} to={to} why={why}"),
    );
    // SAFETY: The driver passes a valid one.
    let qpn = unsafe { (*c).qpn };
    // A request may be late, and of an earlier life; and a byzantine peer may claim any life.
    let known = sched::is_running("Conn::control") && !byzantine::is_there();
    if known && why.contains("PeerRestarted") && verbs::is_answered(qpn) {
        violation("a connection to the peer's present life ends for an earlier one");
    }
    let key = owned(key);
    if to == "Established" {
        w().trace.ups.insert(key.clone(), ());
    }
    let before = w().trace.states.insert(key, to.into_owned());
    // Numbers start again with the NI.
    if from != "Init" && before.as_deref() != Some(&*from) {
        violation(&format!(
            "a connection goes from {from}, and was {before:?}"
        ));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_stall(
    c: *const ro2ib_trace_conn,
    want: *const u8,
    queued: u32,
    credits: u32,
) {
    let want = word(want);
    let key = event(
        ro2ib_trace_bit_RO2IB_TRACE_STALL,
        "stall",
        c,
        format_args!("want={want} queued={queued} credits={credits}"),
    );
    if queued == 0 {
        violation("a connection stands still, and nothing is queued");
    }
    let begun = (want.into_owned(), sched::now());
    if let Some((before, _)) = w().trace.stalls.insert(owned(key), begun) {
        violation(&format!(
            "a connection stands still that still does, for {before}"
        ));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_stall_over(
    c: *const ro2ib_trace_conn,
    want: *const u8,
    ns: u64,
) {
    let want = word(want);
    let key = event(
        ro2ib_trace_bit_RO2IB_TRACE_STALL_OVER,
        "stall_over",
        c,
        format_args!("want={want} ns={ns}"),
    );
    since_the_beginning(ns);
    let key = owned(key);
    let before = w().trace.stalls.remove(&key);
    w().trace.stood.insert(key, (sched::now(), ns));
    let before = before.map(|(want, _)| want);
    if before.as_deref() != Some(&*want) {
        violation(&format!(
            "a connection stood still for {want}, and it was {before:?}"
        ));
    }
}

fn since_the_beginning(ns: u64) {
    if ns > sched::now() {
        violation("something took longer than the world is old");
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_post(
    c: *const ro2ib_trace_conn,
    op: *const u8,
    tx: u32,
    bytes: u32,
    credits: u32,
) {
    let op = word(op);
    let key = event(
        ro2ib_trace_bit_RO2IB_TRACE_POST,
        "post",
        c,
        format_args!("op={op} tx={tx} bytes={bytes} credits={credits}"),
    );
    let node = key.0;
    let mut waited = core::mem::take(&mut w().trace.waited);
    if waited > HELD {
        // The stall is for a credit, and then for a slot of the send queue; the latter ends when
        // all queued messages are posted.
        let key = owned(key);
        if let Some((_, begun)) = w().trace.stalls.get(&key) {
            waited = waited.saturating_sub(sched::now().saturating_sub(*begun));
        }
        if let Some((end, ns)) = w().trace.stood.get(&key) {
            if sched::now().saturating_sub(*end) < waited {
                waited = waited.saturating_sub(*ns);
            }
        }
    }
    // The answer to a request may have to wait for a send buffer.
    if w().eager && op == "IMMEDIATE" && waited > HELD {
        violation(&format!(
            "{op} waited {} ms, and not for a credit",
            waited / MS
        ));
    }
    // An invalidation is no message.
    w().trace.told.entry(node).or_default().posts += u64::from(op != "LOCAL_INV");
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_complete(
    c: *const ro2ib_trace_conn,
    op: *const u8,
    tx: u32,
    result: *const u8,
) {
    let (op, result) = (word(op), word(result));
    event(
        ro2ib_trace_bit_RO2IB_TRACE_COMPLETE,
        "complete",
        c,
        format_args!("op={op} tx={tx} result={result}"),
    );
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_receive(
    c: *const ro2ib_trace_conn,
    op: *const u8,
    bytes: u32,
    credits: u32,
) {
    let op = word(op);
    event(
        ro2ib_trace_bit_RO2IB_TRACE_RECEIVE,
        "receive",
        c,
        format_args!("op={op} bytes={bytes} credits={credits}"),
    );
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_stage(
    c: *const ro2ib_trace_conn,
    op: *const u8,
    stage: *const u8,
    ns: u64,
) {
    let (op, stage) = (word(op), word(stage));
    event(
        ro2ib_trace_bit_RO2IB_TRACE_STAGE,
        "stage",
        c,
        format_args!("op={op} stage={stage} ns={ns}"),
    );
    since_the_beginning(ns);
    let waited = &mut w().trace.waited;
    match &*stage {
        "queued" => *waited = ns,
        "credit" => *waited = waited.saturating_sub(ns),
        _ => {}
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_close(
    c: *const ro2ib_trace_conn,
    up: bool,
    by: *const u8,
    cause: *const u8,
    detail: *const u8,
) {
    let (by, cause, detail) = (word(by), word(cause), word(detail));
    let key = event(
        ro2ib_trace_bit_RO2IB_TRACE_CLOSE,
        "close",
        c,
        format_args!("up={up} by={by} cause={cause} detail={detail}"),
    );
    if cause == "Protocol" && !byzantine::is_there() {
        violation("a connection ends for a breach of the protocol, and every peer is honest");
    }
    let over = "over".to_string();
    let told = w().trace.told.entry(key.0).or_default();
    *(if up {
        &mut told.closes
    } else {
        &mut told.fails
    }) += 1;
    if key.2 != 0 {
        let key = owned(key);
        w().trace.stalls.remove(&key);
        if w().trace.ups.remove(&key).is_some() != up {
            violation(&format!("a connection is over, and up={up} is wrong"));
        }
        match w().trace.states.insert(key, over).as_deref() {
            Some("Dead") => {}
            other => violation(&format!("a connection is over that was {other:?}")),
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_trace_refuse(ni: *const u8, peer: *const u8, cause: *const u8) {
    if ro2ib_trace_on.load(Ordering::Relaxed) & ro2ib_trace_bit_RO2IB_TRACE_REFUSE == 0 {
        violation("an event that is not enabled");
    }
    w().trace.events += 1;
    let (ni, peer) = (text(ni, RO2IB_TRACE_NID), text(peer, RO2IB_TRACE_NID));
    let cause = word(cause);
    w().trace.told.entry(sched::node()).or_default().refuses += 1;
    if telling() {
        say(&format!("refuse: ni={ni} peer={peer} cause={cause}"));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_uevent(what: *const u8, ni: *const u8, device: *const u8) {
    crate::lock::might_sleep("uevent");
    // SAFETY: The driver passes strings.
    let [what, ni, device] =
        [what, ni, device].map(|p| unsafe { CStr::from_ptr(p.cast()) }.to_string_lossy());
    if telling() {
        say(&format!("notice: {what} {ni} {device}"));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_percpu_alloc(n: u32) -> *mut u64 {
    crate::lock::might_sleep("alloc_percpu");
    sched::point();
    if world::fails(world::Fault::Alloc) {
        return core::ptr::null_mut();
    }
    mem::get_for_node(n as usize * size_of::<u64>(), 8, 0).cast()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_percpu_free(p: *mut u64) {
    mem::put(p.cast());
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_percpu_record(p: *mut u64, row: usize, n: u64) {
    // SAFETY: The driver has allocated it, and has so many rows.
    unsafe {
        let row = p.add(row * 64);
        *row.add((n | 511).ilog2() as usize) += 1;
        *row += n;
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_percpu_sum(p: *mut u64, at: u32) -> u64 {
    // SAFETY: As above.
    unsafe { *p.add(at as usize) }
}
