// SPDX-License-Identifier: GPL-2.0

//! LNet and the shim: a model of their contract with a driver.
//!
//! A message takes a credit of its peer; a returned credit sends the next message from inside
//! `lnet_finalize()`. LNet matches a received message at once, later from another task, or never.
//! It sends the ACK of a PUT from inside `lnet_finalize()`, the REPLY of a plain GET from inside
//! `lnet_parse()`. An NI goes when no message refers to it any more.

use std::collections::{
    BTreeMap,
    BTreeSet,
    VecDeque, //
};

use crate::{
    byzantine,
    decl::{
        k::*,
        r::*, //
    },
    dma,
    fixed_hash::Map,
    lock,
    mem,
    sched::{
        self,
        Kind,
        MS,
        SEC, //
    },
    true_counts,
    verbs::{
        self,
        Dev, //
    },
    world::{
        self,
        say,
        telling,
        violation,
        w,
        NodePlan,
        Plan, //
    }, //
};

/// `LNET_MSG_STATUS_LOCAL_DROPPED`.
const LOCAL_DROPPED: u32 = 2;

/// Types of LNet messages.
pub const ACK: u32 = 0;
/// As above.
pub const PUT: u32 = 1;
/// As above.
pub const GET: u32 = 2;
/// As above.
pub const REPLY: u32 = 3;

/// Life cycle of an NI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// `startup` runs, or has just returned.
    Starting,
    /// In use.
    Active,
    /// LNet deletes it.
    Stopping,
    /// The driver's part of the NI is gone.
    Gone,
}

struct Peer {
    credits: u32,
    queue: VecDeque<*mut Msg>,
}

/// NI (`struct ro2ib_ni`, and LNet's).
pub struct Ni {
    /// Node of the NI.
    pub node: usize,
    /// NID of the NI.
    pub nid: u64,
    /// Device of the NI when it started.
    pub dev: *mut Dev,
    /// State in its life cycle.
    pub life: Life,
    /// References of the driver and the shim.
    pub users: usize,
    /// Messages that refer to the NI.
    pub msgs: usize,
    /// Time when LNet asked the driver to stop the NI.
    stopped: Option<u64>,
    found: usize,
    published: bool,
    lnd: *mut c_void,
    link_fatal: bool,
    /// The driver knows that the link goes down, or is down.
    told: bool,
    /// An administrator has deleted a peer of the NI.
    bereft: bool,
    port_fatal: bool,
    peers: Map<u64, Peer>,
    /// LNet's credits for each peer.
    credits: u32,
    /// Depth of new connections if `ni_tune` does not set it.
    depth: u32,
    tune: ro2ib_tuning,
}

impl Ni {
    /// Returns whether LNet knows that the NI cannot be used.
    pub fn is_fatal(&self) -> bool {
        self.link_fatal || self.port_fatal
    }

    /// Returns whether the driver reported that.
    pub fn is_port_fatal(&self) -> bool {
        self.port_fatal
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Core,
    Lnd,
    Done,
}

/// Message (`struct lnet_msg`); the memory stays until the world ends.
pub struct Msg {
    nr: usize,
    ni: *mut Ni,
    kind: u32,
    owner: Owner,
    /// This node sent the message, and took a credit of that peer.
    tx: Option<u64>,
    op: usize,
    mem: Option<usize>,
    len: u32,
    offset: u32,
    /// NID of the target.
    target: u64,
    hdr: [u8; 72],
    /// The message came from a peer.
    rx: bool,
    /// The message ends a GET.
    reply: bool,
    get: Option<*mut Msg>,
    asked: u32,
    status: i32,
    /// Time when the driver last got the message.
    given: u64,
    /// LNet's deadline of the message.
    until: u64,
    /// The driver asked LNet whether to resend the message, and LNet refused.
    refused: bool,
}

/// Memory of an application: fragments of pages.
struct Buf {
    bv: Vec<bio_vec>,
    nob: usize,
    /// LNet takes the memory for a GPU's.
    gpu: bool,
    /// LNet has returned the memory to the application: it is filled with a pattern.
    back: bool,
    users: usize,
}

const BACK: u8 = 0xdd;
/// Seconds for which LNet keeps some messages.
const KEPT: u64 = 900;

/// Operation that an application starts.
#[derive(Debug)]
pub struct Op {
    /// PUT or GET.
    pub kind: u32,
    /// Node of the application.
    pub node: usize,
    /// NID of the target.
    pub target: u64,
    /// Size in bytes.
    pub size: u32,
    /// The application asks for an ACK of the PUT.
    pub ack: bool,
    /// Result, once the operation has ended.
    pub result: Option<i32>,
    /// Status of the sent message, once it is finalized.
    pub sent: Option<i32>,
    /// The data arrived, and was right.
    pub arrived: bool,
    /// LNet of the other node got the header.
    pub came: bool,
    /// LNet of the other node got the message that LNet of this node had sent.
    asked: bool,
    /// LNet of this node got an ACK or REPLY to the operation, or its header.
    heard: bool,
    /// Status of the received message at its end.
    pub taken: Option<i32>,
    /// Number of bytes with which LNet of the other node has answered a GET.
    answered: Option<u32>,
    buf: usize,
}

/// LNet of all nodes.
#[derive(Default)]
pub struct Lnet {
    /// Operations of the world.
    pub ops: Vec<Op>,
    msgs: Vec<*mut Msg>,
    bufs: Vec<Buf>,
    /// Messages that LNet has got, and whose `recv` is still due.
    pub held: usize,
    /// Failed messages that LNet is slow with at the moment.
    pub slow: usize,
    /// A call is in the node of [`world::Plan::stuck`].
    pub is_stuck: bool,
    /// Number of notifications that a peer is gone.
    pub notified: usize,
    /// Node and address of a peer that such a notification may name: the node has asked for a
    /// connection, or has had one.
    pub met: BTreeSet<(usize, u32)>,
    /// Times at which a call to find such a peer failed on the node. If the thread that made the call is late, the
    /// attempt ends by its time limit, and the notification is no error.
    pub unasked: BTreeMap<(usize, u32), u64>,
}

/// Size of the pattern of the data of operations, and the limit of the length of a message.
const MOST: usize = 1 << 20;

thread_local! {
    static PATTERN: Vec<u8> = {
        let mut rng = crate::rng::Rng::new(1);
        (0..MOST / 8 + 512).flat_map(|_| rng.u64().to_le_bytes()).collect()
    };
    static GONE: Vec<u8> = vec![BACK; MOST];
}

/// Returns the offset of an operation's data in the pattern.
fn begins(op: usize) -> usize {
    op * 997 % 4096
}

/// Purpose of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// WRITEs read the memory.
    Source,
    /// WRITEs go to the memory.
    Sink,
    /// Either, or a copy of data that came inside a message.
    Copy,
}

/// Payload that fits into a message.
const INLINE: u32 = 3976;

/// Returns whether memory is a GPU's. In a world without faults this is only memory that the driver
/// does not copy: no memory of a message that carries its data, and no sink that a region cannot
/// cover (`uncovered`).
fn is_gpus(what: For, uncovered: bool) -> bool {
    let world = w();
    let ppm = world.plan.gpu_ppm;
    let copied = what == For::Copy || (what == For::Sink && uncovered);
    ppm != 0 && (!copied || world.faulty) && world.rng.ppm(ppm)
}

/// Allocates memory of `nob` bytes, in a random shape.
fn new_buf(nob: usize, what: For) -> usize {
    let world = w();
    let mut bv = Vec::new();
    let shape = world.rng.below(if nob > 60_000 { 2 } else { 4 });
    let mut left = nob;
    let mut first = true;
    while left != 0 {
        let (offset, most) = match shape {
            // Whole pages.
            0 => (0, 4096),
            // The memory begins inside a page.
            1 => {
                let offset = if first {
                    8 * world.rng.below(500) as usize
                } else {
                    0
                };
                (offset, 4096 - offset)
            }
            // Odd pieces at any offset.
            2 => {
                let offset = world.rng.below(3000) as usize;
                (offset, world.rng.range(1, 1000) as usize)
            }
            // A folio: a piece has more than one page.
            _ => (0, 16384),
        };
        let len = left.min(most);
        let page = mem::get_pages((offset + len).next_multiple_of(4096));
        // SAFETY: There is room.
        unsafe { page.add(offset).write_bytes(BACK, len) };
        bv.push(bio_vec {
            bv_page: page.cast(),
            bv_len: len as u32,
            bv_offset: offset as u32,
        });
        left -= len;
        first = false;
    }
    // A region has no gaps, and no more pages than 1 MiB of whole pages.
    let gpu = is_gpus(what, shape == 2 || bv.len() > 256);
    if gpu {
        let world = w();
        for b in &mut bv {
            b.bv_page = (b.bv_page as u64 | dma::GPU) as *mut page;
        }
        // The application mixes GPU memory with system memory.
        let mixes = world.faulty && world::may_fail(world::Fault::Dma) && world.rng.one_in(8);
        if let (true, Some(b)) = (mixes && nob > 1, bv.last_mut()) {
            b.bv_page = (b.bv_page as u64 & !dma::GPU) as *mut page;
        }
    }
    let lnet = &mut w().lnet;
    lnet.bufs.push(Buf {
        bv,
        nob,
        gpu,
        back: false,
        users: 0,
    });
    lnet.bufs.len() - 1
}

fn bytes(buf: usize, at: usize, nob: usize) -> Vec<(u64, usize)> {
    let b = &w().lnet.bufs[buf];
    // The application of a GPU uses the address for devices.
    dma::fragments(b.bv.as_ptr(), b.bv.len() as u32, at, nob)
        .into_iter()
        .map(|(addr, len)| (addr & !dma::GPU, len))
        .collect()
}

fn fill(buf: usize, op: usize) {
    let nob = w().lnet.bufs[buf].nob;
    let mut i = begins(op);
    PATTERN.with(|p| {
        for (addr, len) in bytes(buf, 0, nob) {
            // SAFETY: The memory of the world, which stays until its end.
            unsafe { core::slice::from_raw_parts_mut(addr as *mut u8, len) }
                .copy_from_slice(&p[i..i + len]);
            i += len;
        }
    });
}

fn is_right(buf: usize, op: usize, nob: usize) -> bool {
    let mut i = begins(op);
    PATTERN.with(|p| {
        bytes(buf, 0, nob).into_iter().all(|(addr, len)| {
            // SAFETY: As above.
            let same =
                unsafe { core::slice::from_raw_parts(addr as *const u8, len) } == &p[i..i + len];
            i += len;
            same
        })
    })
}

/// Returns memory to the application when its last user is gone.
fn give_back(buf: usize) {
    let b = &mut w().lnet.bufs[buf];
    if b.users != 0 || b.back {
        return;
    }
    b.back = true;
    let nob = b.nob;
    for (addr, len) in bytes(buf, 0, nob) {
        // SAFETY: As above.
        unsafe { (addr as *mut u8).write_bytes(BACK, len) };
    }
}

/// Returns a description of memory that was written after its return; called at the end.
pub fn written_late() -> Option<String> {
    for buf in 0..w().lnet.bufs.len() {
        let (nob, back) = {
            let b = &w().lnet.bufs[buf];
            (b.nob, b.back)
        };
        if !back {
            continue;
        }
        for (addr, len) in bytes(buf, 0, nob) {
            // SAFETY: As above.
            let bytes = unsafe { core::slice::from_raw_parts(addr as *const u8, len) };
            if GONE.with(|g| bytes != &g[..len]) {
                return Some(format!(
                    "memory {buf} was written after it went back to the application"
                ));
            }
        }
    }
    None
}

fn new_msg(ni: *mut Ni, kind: u32, op: usize) -> *mut Msg {
    let lnet = &mut w().lnet;
    let nr = lnet.msgs.len();
    let msg = Box::into_raw(Box::new(Msg {
        nr,
        ni,
        kind,
        owner: Owner::Core,
        tx: None,
        op,
        mem: None,
        len: 0,
        offset: 0,
        target: 0,
        hdr: [0; 72],
        rx: false,
        reply: false,
        get: None,
        asked: 0,
        status: 0,
        given: 0,
        until: 0,
        refused: false,
    }));
    lnet.msgs.push(msg);
    // SAFETY: NIs stay until the world ends.
    unsafe { (*ni).msgs += 1 };
    msg
}

fn use_mem(msg: *mut Msg, buf: usize) {
    // SAFETY: Messages stay until the world ends.
    unsafe { (*msg).mem = Some(buf) };
    w().lnet.bufs[buf].users += 1;
}

fn header(m: &mut Msg, src: u64, dst: u64, payload: u32, sink: u32) {
    let h = &mut m.hdr;
    h[0..8].copy_from_slice(&dst.to_le_bytes());
    h[8..16].copy_from_slice(&src.to_le_bytes());
    h[24..28].copy_from_slice(&m.kind.to_le_bytes());
    h[28..32].copy_from_slice(&payload.to_le_bytes());
    h[48..56].copy_from_slice(&(m.op as u64).to_le_bytes());
    if m.kind == GET {
        h[64..68].copy_from_slice(&sink.to_le_bytes());
    }
}

/// Sends the message: takes a credit, or waits for one.
fn send(msg: *mut Msg) {
    sched::point();
    // SAFETY: Messages and NIs stay until the world ends.
    unsafe {
        let m = &mut *msg;
        let ni = &mut *m.ni;
        if ni.life != Life::Active {
            return finish(msg, -(ESHUTDOWN as i32));
        }
        let credits = ni.credits;
        let peer = ni.peers.entry(m.target).or_insert_with(|| Peer {
            credits,
            queue: VecDeque::new(),
        });
        if peer.credits == 0 {
            peer.queue.push_back(msg);
            return;
        }
        peer.credits -= 1;
        m.tx = Some(m.target);
        hand_over(msg);
    }
}

/// Returns the request that a driver gets with a message.
fn request(msg: *mut Msg) -> ro2ib_send_req {
    // SAFETY: Messages stay until the world ends.
    let m = unsafe { &*msg };
    let mut req = ro2ib_send_req {
        msg: msg.cast(),
        target: m.target,
        type_: m.kind,
        hdr: m.hdr,
        ..Default::default()
    };
    let (mut bv, mut nr, mut gpu) = (core::ptr::null(), 0, false);
    if let Some(buf) = m.mem {
        let b = &w().lnet.bufs[buf];
        bv = b.bv.as_ptr();
        nr = b.bv.len() as u32;
        gpu = b.gpu;
    }
    if m.kind == GET {
        if m.asked != 0 {
            req.pages = ro2ib_payload {
                bv,
                nr,
                offset: 0,
                nob: m.asked,
                gpu,
            };
        }
    } else if m.len != 0 {
        req.pages = ro2ib_payload {
            bv,
            nr,
            offset: m.offset,
            nob: m.len,
            gpu,
        };
    }
    req
}

/// Begins a call of the driver that sends or receives a message: reclaim may wait for that message.
fn enter() {
    world::enter();
    w().sched.tasks[sched::current()].for_lnet += 1;
}

/// Ends such a call.
fn leave() {
    w().sched.tasks[sched::current()].for_lnet -= 1;
    world::leave();
}

unsafe fn hand_over(msg: *mut Msg) {
    // SAFETY: As above; the driver's operations are valid while the NI is.
    unsafe {
        let req = request(msg);
        let m = &mut *msg;
        m.owner = Owner::Lnd;
        m.given = sched::now();
        // As in LNet with the two tries of its default.
        m.until = m.given + (u64::from(w().plan.params.timeout) * 3 + 1) * SEC;
        let ni = m.ni;
        let send = ops(ni).send.expect("an operation");
        enter();
        let rc = send((*ni).lnd, &req);
        leave();
        if rc < 0 {
            if (*msg).owner != Owner::Lnd {
                violation("a message was finalized, and then refused");
            }
            if rc == -(crate::decl::k::ENOMEM as i32) {
                violation("a message is refused because memory is short: LNet does not resend it");
            }
            (*msg).owner = Owner::Core;
            finish(msg, rc);
        }
    }
}

fn ops(ni: *mut Ni) -> &'static ro2ib_lnd_ops {
    // SAFETY: NIs stay until the world ends, the operations are a constant of the driver.
    unsafe { &*w().nodes[(*ni).node].ops }
}

fn end_op(op: usize, result: i32) {
    let o = &mut w().lnet.ops[op];
    if o.result.is_none() {
        o.result = Some(result);
        release(op);
        sched::wake_all(op_key(op));
    }
}

/// Releases the operation's memory; messages of the operation may still use it.
fn release(op: usize) {
    let lnet = &mut w().lnet;
    let buf = lnet.ops[op].buf;
    lnet.bufs[buf].users -= 1;
    give_back(buf);
}

fn op_key(op: usize) -> usize {
    usize::MAX / 2 + op
}

/// Ends a message, of any owner.
fn finish(msg: *mut Msg, status: i32) {
    // SAFETY: Messages and NIs stay until the world ends.
    unsafe {
        let m = &mut *msg;
        if m.owner == Owner::Done {
            violation("a message ends twice");
        }
        m.owner = Owner::Done;
        m.status = status;
        let (op, kind, ni) = (m.op, m.kind, m.ni);
        let tx = m.tx;
        let most = w().plan.patience;
        if most != 0 && m.given != 0 && sched::now() - m.given > most {
            violation(&format!(
                "message {} of operation {op} was with the driver for {} s",
                m.nr,
                (sched::now() - m.given) / SEC
            ));
        }
        if telling() {
            say(&format!(
                "message {} of operation {op} ends with {status}",
                m.nr
            ));
        }
        if let Some(buf) = m.mem {
            let nob = w().lnet.bufs[buf].nob;
            // The last message: only the application itself may use the memory, too.
            let of_op = w().lnet.ops[op].buf == buf && w().lnet.ops[op].result.is_none();
            let own = 1 + usize::from(of_op);
            for (addr, len) in bytes(buf, 0, nob) {
                if w().lnet.bufs[buf].users <= own {
                    dma::not_mapped(addr, len as u64, "given back to LNet");
                    verbs::no_key((*ni).node, addr, len as u64);
                }
            }
        }
        let (rx, reply) = ((*msg).rx, (*msg).reply);
        match kind {
            PUT if rx => {
                w().lnet.ops[op].taken = Some(status);
                received(msg, status);
            }
            PUT => {
                w().lnet.ops[op].sent = Some(status);
                if status != 0 || !w().lnet.ops[op].ack {
                    end_op(op, status);
                }
            }
            GET if !rx => {
                w().lnet.ops[op].sent = Some(status);
                if status != 0 {
                    end_op(op, status);
                }
            }
            // The reply of an optimised GET, or a REPLY that came as a message.
            REPLY if reply => {
                received(msg, status);
                end_op(op, status);
            }
            ACK if rx => end_op(op, status),
            _ => {}
        }
        if let Some(buf) = (*msg).mem.take() {
            w().lnet.bufs[buf].users -= 1;
            give_back(buf);
        }
        (*ni).msgs -= 1;
        if let Some(target) = tx {
            let next = match (*ni).peers.get_mut(&target) {
                Some(peer) => match peer.queue.pop_front() {
                    Some(next) => Some(next),
                    None => {
                        peer.credits += 1;
                        None
                    }
                },
                None => None,
            };
            if let Some(next) = next {
                // LNet does not check here whether the NI is being deleted.
                if matches!((*ni).life, Life::Active | Life::Stopping) {
                    (*next).tx = Some(target);
                    hand_over(next);
                } else {
                    if let Some(peer) = (*ni).peers.get_mut(&target) {
                        peer.credits += 1;
                    }
                    finish(next, -(ESHUTDOWN as i32));
                }
            }
        }
        sched::wake_all(ni as usize);
    }
}

/// Handles the data of a message.
unsafe fn received(msg: *mut Msg, status: i32) {
    // SAFETY: Messages stay until the world ends.
    unsafe {
        let m = &*msg;
        if status != 0 {
            return;
        }
        if let Some(buf) = m.mem {
            if !byzantine::is_there() && !is_right(buf, m.op, m.len as usize) {
                violation(&format!(
                    "operation {}: {} bytes arrived, and not those that were sent",
                    m.op, m.len
                ));
            }
        }
        let answered = w().lnet.ops[m.op].answered;
        if m.reply && !byzantine::is_there() && answered != Some(m.len) {
            violation(&format!(
                "operation {}: {} bytes arrived, and {answered:?} were the answer",
                m.op, m.len
            ));
        }
        w().lnet.ops[m.op].arrived = true;
        if m.kind == PUT && w().lnet.ops[m.op].ack {
            let src = u64::from_le_bytes(m.hdr[8..16].try_into().expect("8 bytes"));
            if !is_somebody(src) {
                return;
            }
            let ack = new_msg(m.ni, ACK, m.op);
            let a = &mut *ack;
            a.target = src;
            header(a, (*m.ni).nid, src, 0, 0);
            send(ack);
        }
    }
}

/// Returns whether a node has the NID: LNet has a route to no other.
fn is_somebody(nid: u64) -> bool {
    let world = w();
    (0..world.nodes.len()).any(|node| {
        (0..world.plan.nodes[node].devs).any(|slot| nid_of(world::ip(node, slot)) == nid)
    })
}

/// Begins an operation of an NI; the current task is its application.
pub fn begin(ni: *mut Ni, kind: u32, target: u64, size: u32, ack: bool) -> usize {
    // SAFETY: NIs stay until the world ends.
    let node = unsafe { (*ni).node };
    let op = w().lnet.ops.len();
    // A node that cannot take the answer from a message, because its sink is a GPU's, sends a
    // GET_REQ.
    let what = if kind == PUT { For::Source } else { For::Sink };
    let buf = new_buf(size as usize, what);
    w().lnet.ops.push(Op {
        kind,
        node,
        target,
        size,
        ack,
        result: None,
        sent: None,
        arrived: false,
        came: false,
        asked: false,
        heard: false,
        taken: None,
        answered: None,
        buf,
    });
    if telling() {
        say(&format!(
            "operation {op}: {} of {size} bytes to {:x}",
            if kind == PUT { "PUT" } else { "GET" },
            target & 0xffff_ffff
        ));
    }
    if kind == PUT {
        fill(buf, op);
    }
    w().lnet.bufs[buf].users += 1;
    let msg = new_msg(ni, kind, op);
    use_mem(msg, buf);
    // SAFETY: Just made.
    unsafe {
        let m = &mut *msg;
        m.target = target;
        if kind == PUT {
            m.len = size;
            header(m, (*ni).nid, target, size, 0);
        } else {
            m.asked = size;
            header(m, (*ni).nid, target, 0, size);
        }
    }
    send(msg);
    op
}

/// Waits for the end of an operation, `most` at most; LNet then gives it up.
pub fn wait(op: usize, most: u64) -> Option<i32> {
    let until = sched::now() + most;
    loop {
        if let Some(result) = w().lnet.ops[op].result {
            return Some(result);
        }
        if !sched::sleep_until_on(op_key(op), Some(until)) {
            let o = &mut w().lnet.ops[op];
            if o.result.is_none() {
                o.result = Some(-(ETIMEDOUT as i32));
                release(op);
                return None;
            }
        }
    }
}

unsafe fn recv(ni: *mut Ni, rx: *mut c_void, msg: *mut Msg) {
    // SAFETY: As above.
    unsafe {
        let mut req = ro2ib_recv_req::default();
        if !msg.is_null() {
            let m = &mut *msg;
            req.msg = msg.cast();
            if m.len != 0 {
                if let Some(buf) = m.mem {
                    let b = &w().lnet.bufs[buf];
                    req.pages = ro2ib_payload {
                        bv: b.bv.as_ptr(),
                        nr: b.bv.len() as u32,
                        offset: 0,
                        nob: m.len,
                        gpu: b.gpu,
                    };
                }
            }
            m.owner = Owner::Lnd;
        }
        w().lnet.held -= 1;
        let recv = ops(ni).recv.expect("an operation");
        enter();
        let rc = recv((*ni).lnd, rx, &req);
        leave();
        if rc < 0 && !msg.is_null() {
            if (*msg).owner != Owner::Lnd {
                violation("a received message was finalized, and then refused");
            }
            (*msg).owner = Owner::Core;
            finish(msg, rc);
        }
    }
}

fn slow() {
    let world = w();
    if world.rng.ppm(world.plan.slow_lnet_ppm) {
        let ns = world.rng.range(MS, world.plan.slow_lnet_max);
        sched::sleep(ns);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_parse(
    ni: *mut ro2ib_ni,
    hdr: *const u8,
    from: u64,
    rx: *mut c_void,
    rdma: bool,
) -> i32 {
    lock::might_sleep("lnet_parse");
    sched::point();
    let ni: *mut Ni = ni.cast();
    // SAFETY: NIs stay until the world ends.
    let stopped = unsafe { (*ni).stopped };
    if w().prompt && stopped.is_some_and(|at| sched::now() - at > 50 * MS) {
        violation("LNet is given a request of an NI that it has asked to stop");
    }
    slow();
    // SAFETY: By the contract of this function.
    unsafe {
        // The deletion waits for messages first.
        let asks = (*ni).life == Life::Stopping && (*ni).published;
        if (*ni).life != Life::Active && !asks {
            return -(ESHUTDOWN as i32);
        }
        let rc = parse(ni, hdr, from, rx, rdma);
        if rc < 0 {
            return rc;
        }
        // A message that LNet sent from inside `parse` does not wait for this.
        slow();
        i32::from((*ni).life == Life::Stopping)
    }
}

/// Takes a received message, or refuses it.
///
/// # Safety
///
/// As of [`ro2ib_lnet_parse`].
unsafe fn parse(ni: *mut Ni, hdr: *const u8, from: u64, rx: *mut c_void, rdma: bool) -> i32 {
    // SAFETY: By the contract of this function, for all that follows.
    unsafe {
        let world = w();
        let refuses = world.rng.ppm(world.plan.parse_error_ppm);
        let mut h = [0u8; 72];
        h.copy_from_slice(core::slice::from_raw_parts(hdr, 72));
        let kind = u32::from_le_bytes(h[24..28].try_into().expect("4 bytes"));
        let payload = u32::from_le_bytes(h[28..32].try_into().expect("4 bytes"));
        let op = u64::from_le_bytes(h[48..56].try_into().expect("8 bytes")) as usize;
        let mut op = op;
        if let Some(o) = w().lnet.ops.get_mut(op) {
            o.came = true;
            o.heard |= kind == ACK || kind == REPLY;
            let twice = (kind == PUT || kind == GET) && core::mem::replace(&mut o.asked, true);
            if twice && !byzantine::is_there() {
                violation(&format!(
                    "operation {op}: what LNet has sent once comes twice"
                ));
            }
        }
        if refuses {
            return -(EPROTO as i32);
        }
        if byzantine::is_there() {
            // As LNet, which takes no message longer than its MTU.
            let empty = kind == ACK || kind == GET;
            if payload as usize > MOST || (empty && payload != 0) || kind > REPLY {
                return -(EPROTO as i32);
            }
            let all = w().lnet.ops.len();
            if all == 0 {
                return -(EPROTO as i32);
            }
            op %= all;
            if kind == ACK && w().lnet.ops[op].node != (*ni).node {
                w().lnet.held += 1;
                recv(ni, rx, core::ptr::null_mut());
                return 0;
            }
        }
        if op >= w().lnet.ops.len() {
            violation("a header arrived that no node sent");
        }
        w().lnet.held += 1;
        let drops = world.rng.ppm(world.plan.no_match_ppm);
        match kind {
            PUT => {
                if drops && w().plan.hoards {
                    // A portal that keeps messages for a while, and is closed then.
                    if let Some(eager) = ops(ni).eager_recv {
                        world::enter();
                        eager((*ni).lnd, rx);
                        world::leave();
                    }
                    let (rx, wait) = (rx as usize, w().rng.range(30 * SEC, 60 * SEC));
                    sched::spawn((*ni).node, Kind::Process, "lnet delayed", move || {
                        sched::sleep(wait);
                        recv(ni, rx as *mut c_void, core::ptr::null_mut());
                    });
                    return 0;
                }
                if drops {
                    recv(ni, rx, core::ptr::null_mut());
                    return 0;
                }
                let msg = new_msg(ni, PUT, op);
                let m = &mut *msg;
                m.hdr = h;
                m.rx = true;
                let cut = payload != 0 && world.rng.ppm(world.plan.cut_ppm);
                m.len = if cut {
                    world.rng.below(payload.into()) as u32
                } else {
                    payload
                };
                if m.len != 0 {
                    let what = if payload <= INLINE {
                        For::Copy
                    } else {
                        For::Sink
                    };
                    let buf = new_buf(m.len as usize, what);
                    use_mem(msg, buf);
                }
                if world.rng.ppm(world.plan.delay_ppm) {
                    let keeps = world.plan.keeps && world.faulty && world.rng.one_in(4);
                    // Memory that is short stays short for long.
                    if world.plan.keeps && world.faulty {
                        world.short = world.sched.current;
                    }
                    if let Some(eager) = ops(ni).eager_recv {
                        world::enter();
                        eager((*ni).lnd, rx);
                        world::leave();
                    }
                    w().short = sched::NONE;
                    let rx = rx as usize;
                    let (least, most) = if w().plan.hoards {
                        (30 * SEC, 60 * SEC)
                    } else {
                        (MS, 3 * SEC)
                    };
                    let wait = w().rng.range(least, most);
                    sched::spawn((*ni).node, Kind::Process, "lnet delayed", move || {
                        sched::sleep(wait);
                        for _ in 0..if keeps { KEPT } else { 0 } {
                            if (*(*ni).dev).gone || !w().plan.keeps {
                                break;
                            }
                            sched::sleep(SEC);
                        }
                        recv(ni, rx as *mut c_void, msg);
                    });
                } else {
                    recv(ni, rx, msg);
                }
            }
            GET => {
                let wanted = u32::from_le_bytes(h[64..68].try_into().expect("4 bytes"));
                // LNet supplies at most the data that it has.
                let wanted = wanted.min(MOST as u32);
                if drops {
                    recv(ni, rx, core::ptr::null_mut());
                    return 0;
                }
                let short = wanted != 0 && world.rng.ppm(world.plan.cut_ppm);
                let len = if short {
                    let some = world.rng.below(wanted.into()) as u32;
                    // There is no data at all in some cases.
                    if some % 8 == 0 {
                        0
                    } else {
                        some
                    }
                } else {
                    wanted
                };
                let buf = new_buf(len as usize, For::Source);
                fill(buf, op);
                w().lnet.ops[op].answered = Some(len);
                if rdma {
                    // The driver completes it in its recv.
                    let msg = new_msg(ni, GET, op);
                    (*msg).rx = true;
                    (*msg).len = len;
                    use_mem(msg, buf);
                    recv(ni, rx, msg);
                } else {
                    recv(ni, rx, core::ptr::null_mut());
                    let msg = new_msg(ni, REPLY, op);
                    let m = &mut *msg;
                    m.len = len;
                    m.target = from;
                    header(m, (*ni).nid, from, len, 0);
                    use_mem(msg, buf);
                    send(msg);
                }
            }
            REPLY => {
                let o = &w().lnet.ops[op];
                let foul = byzantine::is_there() && o.node != (*ni).node;
                if o.result.is_some() || o.kind != GET || payload > o.size || foul {
                    recv(ni, rx, core::ptr::null_mut());
                    return 0;
                }
                let buf = o.buf;
                let msg = new_msg(ni, REPLY, op);
                let m = &mut *msg;
                m.rx = true;
                m.reply = true;
                m.len = payload;
                use_mem(msg, buf);
                recv(ni, rx, msg);
            }
            ACK => {
                let msg = new_msg(ni, ACK, op);
                (*msg).rx = true;
                recv(ni, rx, msg);
            }
            _ => violation("a header of an unknown kind came up"),
        }
    }
    0
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_finalize(msg: *mut lnet_msg, status: i32, health: u32) {
    lock::might_sleep("lnet_finalize");
    if sched::is_running("cm request") {
        violation(
            "a message is finalized in a handler of a listener, for which other requests wait",
        );
    }
    sched::point();
    let msg: *mut Msg = msg.cast();
    // SAFETY: Messages stay until the world ends.
    unsafe {
        let answer = (*msg).tx.is_some() && matches!((*msg).kind, ACK | REPLY);
        // Only these statuses mean that the connection closed with the message under way. A node
        // that got the header and not the data knows of the message.
        let lost = answer && !w().lnet.ops[(*msg).op].heard;
        let stays = (*(*msg).ni).life == Life::Active;
        let closed = status == -(ECONNRESET as i32)
            || status == -(ECONNABORTED as i32) && health == LOCAL_DROPPED;
        if lost && stays && closed && !(*msg).refused {
            violation("an answer is lost with its connection, and is not resent");
        }
        if (*msg).owner != Owner::Lnd {
            violation("a message is finalized that is not the driver's");
        }
        if status > 0 {
            violation("a message is finalized with a positive status");
        }
        if let Some(get) = (*msg).get {
            if (*get).owner == Owner::Lnd {
                violation("a reply is finalized before its GET");
            }
        }
    }
    slow();
    if status != 0 && w().plan.slow_failures != 0 {
        w().lnet.slow += 1;
        sched::sleep(w().plan.slow_failures);
        w().lnet.slow -= 1;
    }
    // SAFETY: As above.
    let (node, with_another) = unsafe { ((*(*msg).ni).node, (*msg).get.is_some()) };
    if w().plan.stuck == Some(node) && !core::mem::replace(&mut w().lnet.is_stuck, true) {
        while w().plan.stuck.is_some() {
            sched::sleep(MS);
        }
    }
    true_counts::of(node).messages += u64::from(status != 0 && !with_another);
    finish(msg, status);
    slow();
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_finalize_late(_msg: *mut lnet_msg, _status: i32, _health: u32) {
    violation("a message is dropped without a cause");
}

/// Returns the number of messages that LNet did not let the driver resend.
pub fn not_resent() -> usize {
    // SAFETY: Messages stay until the world ends.
    let refused = |msg: &&*mut Msg| unsafe { (***msg).refused };
    w().lnet.msgs.iter().filter(refused).count()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_prepare_resend(
    msg: *mut lnet_msg,
    _health: u32,
    req: *mut ro2ib_send_req,
) -> bool {
    lock::might_sleep("lnet_net_lock");
    sched::point();
    let msg: *mut Msg = msg.cast();
    // SAFETY: Messages stay until the world ends; the other by the contract of this function.
    unsafe {
        let m = &mut *msg;
        if m.owner != Owner::Lnd {
            violation("a message is sent again that is not the driver's");
        }
        if m.tx.is_none() {
            violation("a message is resent that LNet never sent");
        }
        if let Some(buf) = m.mem.filter(|buf| w().lnet.bufs[*buf].users <= 2) {
            let nob = w().lnet.bufs[buf].nob;
            for (addr, len) in bytes(buf, 0, nob) {
                dma::not_mapped(addr, len as u64, "sent again");
            }
        }
        // LNet has another path, or the deadline is over.
        m.refused = w().rng.one_in(16) || sched::now() > m.until;
        if m.refused {
            return false;
        }
        if telling() {
            say(&format!(
                "message {} of operation {} goes again",
                m.nr, m.op
            ));
        }
        m.given = sched::now();
        req.write(request(msg));
    }
    true
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_create_reply(
    ni: *mut ro2ib_ni,
    get: *mut lnet_msg,
) -> *mut lnet_msg {
    lock::might_sleep("lnet_create_reply_msg");
    sched::point();
    let (ni, get): (*mut Ni, *mut Msg) = (ni.cast(), get.cast());
    // SAFETY: Messages stay until the world ends.
    unsafe {
        if (*get).owner != Owner::Lnd || (*get).kind != GET {
            violation("a reply is made of something that is no GET of the driver's");
        }
        if world::fails(world::Fault::Alloc) {
            return core::ptr::null_mut();
        }
        let reply = new_msg(ni, REPLY, (*get).op);
        let r = &mut *reply;
        r.owner = Owner::Lnd;
        r.reply = true;
        r.get = Some(get);
        r.asked = (*get).asked;
        r.len = (*get).asked;
        if let Some(buf) = (*get).mem {
            use_mem(reply, buf);
        }
        reply.cast()
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_set_reply_len(
    _ni: *mut ro2ib_ni,
    reply: *mut lnet_msg,
    len: u32,
) -> i32 {
    let r: *mut Msg = reply.cast();
    // SAFETY: Messages stay until the world ends.
    unsafe {
        if len > (*r).asked {
            return -(EPROTO as i32);
        }
        (*r).len = len;
    }
    0
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_send_error(_msg: *mut lnet_msg, health: *mut u32) -> bool {
    lock::might_sleep("lnet_send_error_simulation");
    let world = w();
    if world.rng.ppm(world.plan.send_error_ppm) {
        // SAFETY: By the contract of this function.
        unsafe { *health = 5 };
        return true;
    }
    false
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_notify_down(ni: *mut ro2ib_ni, nid: u64, age: u64) {
    lock::might_sleep("lnet_notify");
    sched::point();
    // SAFETY: NIs stay until the world ends.
    let known = unsafe { (*ni.cast::<Ni>()).nid >> 32 == nid >> 32 };
    if !known {
        violation("a peer of another net is reported as down");
    }
    if w().strict {
        violation("a peer is reported as down without a fault");
    }
    if age > sched::now() / SEC {
        violation("a peer was last heard before the node booted");
    }
    // SAFETY: As above.
    let node = unsafe { (*ni.cast::<Ni>()).node };
    let peer = (node, nid as u32);
    let is_late = |at: &u64| sched::now() - at > 10 * SEC;
    if !w().lnet.met.contains(&peer) && !w().lnet.unasked.get(&peer).is_some_and(is_late) {
        violation("a peer is reported as down that this node never connected to, and that never connected to it");
    }
    w().lnet.notified += 1;
}

fn set_link_fatal(ni: &mut Ni, on: bool) -> bool {
    if ni.link_fatal == on {
        return false;
    }
    ni.link_fatal = on;
    true
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_set_fatal(ni: *mut ro2ib_ni, fatal: bool, _told: bool) {
    let ni: *mut Ni = ni.cast();
    // SAFETY: NIs stay until the world ends.
    unsafe {
        let lock = &raw mut w().nodes[(*ni).node].ni_lock;
        lock::take(lock, false, false);
        (*ni).port_fatal = fatal;
        lock::give(lock);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_is_bonded(_ni: *const ro2ib_ni) -> bool {
    false
}

/// Event of a node's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An administrator sets the interface down: the driver gets an event before.
    Down,
    /// The interface loses its carrier.
    Lost,
    /// The interface is up again.
    Up,
}

/// Acts as the shim's notifiers; the current task holds rtnl.
pub fn link(dev: *mut Dev, what: Link) {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        let node = (*dev).node;
        let (rtnl, lock) = {
            let n = &mut w().nodes[node];
            (&raw mut n.rtnl, &raw mut n.ni_lock)
        };
        lock::take(rtnl, false, false);
        if telling() {
            say(&format!("node {node}: link {what:?}"));
        }
        if what == Link::Down {
            let mut told = false;
            for _ in 0..50 {
                let mut busy = false;
                lock::take(lock, false, false);
                for ni in published(dev) {
                    if !told && set_link_fatal(&mut *ni, true) {
                        event(ni, ro2ib_link_event_RO2IB_LINK_LEAVING);
                    }
                    world::enter();
                    busy |= ops(ni).link_busy.expect("an operation")((*ni).lnd);
                    world::leave();
                }
                lock::give(lock);
                told = true;
                if !busy {
                    break;
                }
                sched::sleep(10 * MS);
            }
            // The call waited for half a second, and connections end in half of that.
            if w().prompt && !verbs::up(dev).is_empty() {
                violation("the link goes, which had waited, and a connection is up");
            }
        }
        let up = what == Link::Up;
        (*dev).up = up;
        (*dev).carrier = up;
        (*dev).ups += usize::from(up);
        verbs::dispatch(
            dev,
            if up {
                ib_event_type_IB_EVENT_PORT_ACTIVE
            } else {
                ib_event_type_IB_EVENT_PORT_ERR
            },
        );
        lock::take(lock, false, false);
        for ni in published(dev) {
            if set_link_fatal(&mut *ni, !up) {
                event(
                    ni,
                    match (up, w().plan.ib) {
                        (true, _) => ro2ib_link_event_RO2IB_LINK_UP,
                        (false, true) => ro2ib_link_event_RO2IB_LINK_NO_CARRIER,
                        (false, false) => ro2ib_link_event_RO2IB_LINK_DOWN,
                    },
                );
            }
        }
        lock::give(lock);
        lock::give(rtnl);
    }
}

/// Takes the carrier of IPoIB away, or gives it back. The port stays as it is. The current task
/// holds rtnl.
pub fn carrier(dev: *mut Dev, on: bool) {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        let (rtnl, lock) = {
            let n = &mut w().nodes[(*dev).node];
            (&raw mut n.rtnl, &raw mut n.ni_lock)
        };
        lock::take(rtnl, false, false);
        (*dev).carrier = on;
        lock::take(lock, false, false);
        for ni in published(dev) {
            if set_link_fatal(&mut *ni, !on) {
                event(
                    ni,
                    if on {
                        ro2ib_link_event_RO2IB_LINK_UP
                    } else {
                        ro2ib_link_event_RO2IB_LINK_NO_CARRIER
                    },
                );
            }
        }
        lock::give(lock);
        lock::give(rtnl);
    }
}

/// Gives the interface of a device another MTU. The shim's notifier reports it.
pub fn mtu(dev: *mut Dev, bytes: u32) {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        let lock = &raw mut w().nodes[(*dev).node].ni_lock;
        (*dev).mtu = bytes;
        lock::take(lock, false, false);
        for ni in published(dev) {
            event(ni, ro2ib_link_event_RO2IB_LINK_MTU);
        }
        lock::give(lock);
    }
}

/// Takes the locks that `ip address add` takes for an address that no NI has: rtnl, and the shim's
/// mutex in its notifier.
pub fn network_changes(node: usize) {
    let n = &mut w().nodes[node];
    let (rtnl, lock) = (&raw mut n.rtnl, &raw mut n.ni_lock);
    lock::take(rtnl, false, false);
    lock::take(lock, false, false);
    lock::give(lock);
    lock::give(rtnl);
}

/// Acts as the shim's notifier when a bond fails over, with rtnl held: the core moves the address
/// later.
pub fn fails_over(dev: *mut Dev) {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        let (rtnl, lock) = {
            let n = &mut w().nodes[(*dev).node];
            (&raw mut n.rtnl, &raw mut n.ni_lock)
        };
        lock::take(rtnl, false, false);
        lock::take(lock, false, false);
        for ni in published(dev) {
            event(ni, ro2ib_link_event_RO2IB_LINK_MOVED);
        }
        lock::give(lock);
        lock::give(rtnl);
    }
}

/// Handles the reject of a request by the driver of this device, after it had taken the request,
/// for lack of resources: ko2iblnd fails its messages then.
pub fn refused_for_want(dev: *mut Dev) {
    let world = w();
    // SAFETY: NIs stay until the world ends.
    let only_link =
        |ni: *mut Ni| unsafe { (*ni).life == Life::Active && (*ni).told && !(*ni).bereft };
    let nis = published(dev);
    if world.prompt && world.faults == 0 && !nis.is_empty() && nis.into_iter().all(only_link) {
        violation(
            "a request that arrives while the link goes down is rejected for missing resources",
        );
    }
}

/// Returns whether the NIs on a device are in use and healthy.
pub fn stays(dev: *mut Dev) -> bool {
    let nis = published(dev);
    // SAFETY: NIs stay until the world ends.
    let fine =
        |ni: *mut Ni| unsafe { (*ni).life == Life::Active && !(*ni).told && !(*ni).is_fatal() };
    !nis.is_empty() && nis.into_iter().all(fine)
}

fn published(dev: *mut Dev) -> Vec<*mut Ni> {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        w().nodes[(*dev).node]
            .nis
            .iter()
            .copied()
            .filter(|ni| (**ni).published && (*(**ni).dev).ip == (*dev).ip)
            .collect()
    }
}

unsafe fn event(ni: *mut Ni, event: u32) {
    // SAFETY: NIs stay until the world ends.
    unsafe {
        world::enter();
        ops(ni).link_event.expect("an operation")((*ni).lnd, event);
        world::leave();
        (*ni).told = (*ni).link_fatal;
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_shim_register(
    ops: *const ro2ib_lnd_ops,
    driver: *mut c_void,
) -> i32 {
    lock::might_sleep("register");
    let node = &mut w().nodes[sched::node()];
    if !node.ops.is_null() {
        return -(EBUSY as i32);
    }
    node.ops = ops;
    node.driver = driver;
    0
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_shim_unregister() {
    lock::might_sleep("unregister");
    let node = &mut w().nodes[sched::node()];
    node.ops = core::ptr::null();
    node.driver = core::ptr::null_mut();
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_get(ni: *mut ro2ib_ni) {
    // SAFETY: NIs stay until the world ends.
    unsafe { (*ni.cast::<Ni>()).users += 1 };
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_put(ni: *mut ro2ib_ni) {
    let ni: *mut Ni = ni.cast();
    // SAFETY: NIs stay until the world ends.
    unsafe {
        if (*ni).users == 0 {
            violation("a reference of an NI is put once too often");
        }
        (*ni).users -= 1;
    }
    sched::wake_all(ni as usize);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_active(ni: *const ro2ib_ni) -> bool {
    // SAFETY: NIs stay until the world ends.
    unsafe { (*ni.cast::<Ni>()).life == Life::Active }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_peer_cpu(_ni: *mut ro2ib_ni, nid: u64, salt: u32) -> i32 {
    ((nid as u32).wrapping_add(salt) % w().plan.cpus) as i32
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_find_ni(nid: u64, lnd: *mut *mut c_void) -> *mut ro2ib_ni {
    lock::might_sleep("lnet_nid_to_ni_addref");
    sched::point();
    // SAFETY: NIs stay until the world ends.
    unsafe {
        for ni in &w().nodes[sched::node()].nis {
            let ni = *ni;
            if (*ni).nid == nid
                && matches!((*ni).life, Life::Starting | Life::Active)
                && !(*ni).lnd.is_null()
            {
                (*ni).found += 1;
                *lnd = (*ni).lnd;
                return ni.cast();
            }
        }
    }
    core::ptr::null_mut()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_put_found(ni: *mut ro2ib_ni) {
    let ni: *mut Ni = ni.cast();
    // SAFETY: NIs stay until the world ends.
    unsafe { (*ni).found -= 1 };
    sched::wake_all(ni as usize);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_lnet_set_dma_device(_ni: *mut ro2ib_ni, dev: *mut device) {
    lock::might_sleep("synchronize_rcu");
    // SAFETY: It stands for the RDMA device, and those stay until the world ends.
    if unsafe { dev.cast::<Dev>().as_ref() }.is_some_and(|dev| dev.gone) {
        violation("LNet is given a device that is gone");
    }
    sched::point();
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_net_get(_net: *mut net) {
    w().nodes[sched::node()].net_refs += 1;
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_net_put(_net: *mut net) {
    w().nodes[sched::node()].net_refs -= 1;
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_init_net() -> *mut net {
    static NET: u64 = 0;
    core::ptr::from_ref(&NET).cast_mut().cast()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_param_cksum() -> bool {
    w().plan.cksum
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_param_require_privileged_port() -> bool {
    w().plan.privileged
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_param_use_privileged_port() -> bool {
    w().plan.privileged
}

// Tunables of a running NI: from the parameters `access` and `ni_tune`, or from the plan.

macro_rules! param_tunables_of_a_world {
    ($($key:ident: $get:ident -> $type:ty = $default:expr,)*) => {
        /// Module parameters that `ni_tune` overrides.
        #[derive(Clone, Debug)]
        pub struct Params {
            $(#[doc = concat!("`", stringify!($key), "`.")] pub $key: $type,)*
        }

        impl Default for Params {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        /// `ni_tune` is empty.
        pub const UNTUNED: ro2ib_tuning = ro2ib_tuning {
            conns_per_peer: UNSET,
            tos: UNSET,
            peer_credits: UNSET,
            $($key: UNSET,)*
        };

        $(
            #[no_mangle]
            pub unsafe extern "C" fn $get(ni: *const ro2ib_ni) -> $type {
                // SAFETY: By the contract of this function.
                unsafe { tuned(ni, |t| t.$key, |plan, _| plan.params.$key) }
            }
        )*
    };
}
param_tunables!(param_tunables_of_a_world);

const UNSET: i32 = ro2ib_tune_RO2IB_TUNE_UNSET;

/// Returns the value in force: that of `ni_tune`, or that of the NI's configuration.
unsafe fn tuned<T>(
    ni: *const ro2ib_ni,
    of: fn(&ro2ib_tuning) -> i32,
    configured: fn(&Plan, &NodePlan) -> T,
) -> T
where
    T: TryFrom<i32>,
{
    // SAFETY: NIs stay until the world ends.
    let ni = unsafe { &*ni.cast::<Ni>() };
    let plan = &w().plan;
    match of(&ni.tune) {
        UNSET => configured(plan, &plan.nodes[ni.node]),
        set => T::try_from(set)
            .unwrap_or_else(|_| violation("a world tunes an NI to what it cannot be")),
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_conns_per_peer(ni: *const ro2ib_ni) -> u32 {
    // SAFETY: By the contract of this function, as for all of these.
    unsafe { tuned(ni, |t| t.conns_per_peer, |_, own| own.conns) }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_tos(ni: *const ro2ib_ni) -> i32 {
    // SAFETY: As above.
    unsafe { tuned(ni, |t| t.tos, |_, _| -1) }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_peer_credits(ni: *const ro2ib_ni) -> u32 {
    // SAFETY: As above.
    let depth = unsafe { (*ni.cast::<Ni>()).depth };
    // SAFETY: As above.
    match unsafe { tuned(ni, |t| t.peer_credits, |_, _| UNSET) } {
        UNSET => depth,
        tuned => tuned as u32,
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_choose(ni: *mut ro2ib_ni, depth: u32, _credits: u32, _mbps: u32) {
    // SAFETY: NIs stay until the world ends.
    let ni = unsafe { &mut *ni.cast::<Ni>() };
    let node = &mut w().nodes[ni.node];
    let lock = &raw mut node.ni_lock;
    lock::take(lock, false, false);
    if w().plan.nodes[ni.node].open {
        ni.depth = depth;
        if !ni.published {
            ni.credits = depth;
        }
    }
    lock::give(lock);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_depth_by(ni: *const ro2ib_ni) -> ro2ib_depth_by {
    // SAFETY: As above.
    let ni = unsafe { &*ni.cast::<Ni>() };
    match ni.tune.peer_credits {
        UNSET if w().plan.nodes[ni.node].open => ro2ib_depth_by_RO2IB_DEPTH_CHOSEN,
        UNSET => ro2ib_depth_by_RO2IB_DEPTH_GIVEN,
        _ => ro2ib_depth_by_RO2IB_DEPTH_TUNED,
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_peer_credits_hiw(ni: *const ro2ib_ni) -> u32 {
    // `ni_tune` has no key for it. SAFETY: As above.
    unsafe { tuned(ni, |_| UNSET, |_, own| own.hiw) }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_ni_lnet_credits(ni: *const ro2ib_ni) -> u32 {
    // SAFETY: As above.
    unsafe { (*ni.cast::<Ni>()).credits }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_access_allows(ni: *const ro2ib_ni, peer: u64) -> bool {
    // SAFETY: NIs stay until the world ends.
    let node = unsafe { (*ni.cast::<Ni>()).node };
    let denied = w().nodes[node].denied;
    denied != Some(peer) && denied != Some(ANY)
}

/// All peers, for [`deny`].
pub const ANY: u64 = u64::MAX;

/// Writes `access` on the node whose task runs: this peer may not connect (`None`: all may).
pub fn deny(peer: Option<u64>) {
    let node = sched::node();
    if telling() {
        match peer {
            Some(peer) => say(&format!("node {node}: denies {:x}", peer & 0xffff_ffff)),
            None => say(&format!("node {node}: allows all")),
        }
    }
    w().nodes[node].denied = peer;
    sched::point();
    settings_changed();
}

/// Writes `ni_tune` on the node whose task runs, for all its NIs.
pub fn tune(tune: ro2ib_tuning) {
    let node = sched::node();
    if telling() {
        say(&format!("node {node}: {tune:?}"));
    }
    w().nodes[node].tune = tune;
    sched::point();
    let lock = &raw mut w().nodes[node].ni_lock;
    lock::take(lock, false, false);
    for ni in running(node) {
        // SAFETY: NIs stay until the world ends.
        unsafe { (*ni).tune = tune };
    }
    lock::give(lock);
    settings_changed();
}

/// Acts as `ro2ib_ni_settings_changed()` of the shim.
fn settings_changed() {
    let node = sched::node();
    let lock = &raw mut w().nodes[node].ni_lock;
    lock::take(lock, false, false);
    for ni in running(node) {
        let changed = ops(ni).settings_changed.expect("an operation");
        world::enter();
        // SAFETY: It is on the shim's list, which does not change as long as its lock is held.
        unsafe { changed((*ni).lnd) };
        world::leave();
    }
    lock::give(lock);
}

/// Returns the NIs on the shim's list; the caller holds its lock.
fn running(node: usize) -> Vec<*mut Ni> {
    let nis = &w().nodes[node].nis;
    // SAFETY: NIs stay until the world ends.
    let running = |ni: &*mut Ni| unsafe { (**ni).published };
    nis.iter().copied().filter(running).collect()
}

/// Returns the NID of an address on net 0 of o2ib (`LND_O2IB` is 5).
pub fn nid_of(ip: u32) -> u64 {
    (5 << 48) | u64::from(ip)
}

/// Brings an NI up, as `lnetctl net add` does.
pub fn ni_up(dev: *mut Dev) -> Result<*mut Ni, i32> {
    // SAFETY: Devices and NIs stay until the world ends.
    unsafe {
        let (node, ip) = ((*dev).node, (*dev).ip);
        let plan = &w().plan;
        let own = &plan.nodes[node];
        let mut cfg = ro2ib_ni_cfg {
            nid: nid_of(ip),
            ip: ip.to_be(),
            net: ro2ib_init_net(),
            peer_credits: own.credits,
            peer_credits_open: own.open,
            max_tx_credits_open: own.open,
            max_tx_credits: 256,
            service: 987,
            wrq_sge: plan.wrq_sge,
            wrq_sge_given: !own.open,
            ..Default::default()
        };
        let name = format!("10.0.{node}.{}@o2ib", ip & 0xff);
        cfg.name[..name.len()].copy_from_slice(name.as_bytes());
        let ni = Box::into_raw(Box::new(Ni {
            node,
            nid: cfg.nid,
            dev,
            life: Life::Starting,
            users: 2,
            msgs: 0,
            stopped: None,
            found: 0,
            published: false,
            lnd: core::ptr::null_mut(),
            link_fatal: false,
            told: false,
            bereft: false,
            port_fatal: false,
            peers: Map::default(),
            credits: own.credits,
            depth: own.credits,
            tune: w().nodes[node].tune,
        }));
        w().nodes[node].nis.push(ni);
        let mut lnd = core::ptr::null_mut();
        let driver = w().nodes[node].driver;
        let startup = ops(ni).startup.expect("an operation");
        world::enter();
        let rc = startup(&cfg, ni.cast(), driver, &raw mut lnd);
        world::leave();
        if telling() {
            say(&format!("node {node}: an NI starts: {rc}"));
        }
        if rc < 0 {
            released(ni);
            (*ni).life = Life::Gone;
            return Err(rc);
        }
        sched::point();
        (*ni).lnd = lnd;
        let lock = &raw mut w().nodes[node].ni_lock;
        lock::take(lock, false, false);
        (*ni).published = true;
        (*ni).tune = w().nodes[node].tune;
        let down = !(*dev).up;
        if set_link_fatal(&mut *ni, down) {
            event(ni, ro2ib_link_event_RO2IB_LINK_DOWN);
        }
        lock::give(lock);
        // LNet sets the NI active a moment later.
        if w().rng.one_in(4) {
            let ns = w().rng.below(20 * MS);
            sched::sleep(ns);
        }
        (*ni).life = Life::Active;
        Ok(ni)
    }
}

/// Drops the shim's reference, and waits for the references of the driver.
fn released(ni: *mut Ni) {
    // SAFETY: NIs stay until the world ends.
    unsafe {
        ro2ib_ni_put(ni.cast());
        while (*ni).users != 0 {
            sched::sleep_on(ni as usize);
        }
    }
}

/// Takes an NI down, as `lnetctl net del` does.
pub fn ni_down(ni: *mut Ni) {
    // SAFETY: NIs stay until the world ends.
    unsafe {
        let node = (*ni).node;
        (*ni).life = Life::Stopping;
        if telling() {
            say(&format!("node {node}: an NI stops"));
        }
        // A message that waits for a credit is still sent.
        while (*ni).msgs != 0 || (*ni).found != 0 {
            sched::sleep_on(ni as usize);
        }
        let lock = &raw mut w().nodes[node].ni_lock;
        lock::take(lock, false, false);
        (*ni).published = false;
        lock::give(lock);
        (*ni).stopped = Some(sched::now());
        let shutdown = ops(ni).shutdown.expect("an operation");
        world::enter();
        shutdown((*ni).lnd);
        world::leave();
        let over = sched::now();
        released(ni);
        // The deletion holds LNet's own mutex meanwhile. The driver may be waiting for a timer that
        // it does not need.
        if w().prompt && sched::now() - over > 1100 * MS {
            violation("an NI that is stopped is waited for");
        }
        if (*ni).msgs != 0 {
            violation("an NI has gone with messages");
        }
        (*ni).life = Life::Gone;
        if telling() {
            say(&format!("node {node}: an NI has stopped"));
        }
    }
}

/// Runs a control operation, as `lnetctl` does.
pub fn control(ni: *mut Ni, what: u32, nid: u64) -> i32 {
    // SAFETY: NIs stay until the world ends.
    unsafe {
        if (*ni).life != Life::Active {
            return 0;
        }
        // LNet holds a reference meanwhile.
        (*ni).found += 1;
        let o = ops(ni);
        let lnd = (*ni).lnd;
        (*ni).bereft |= what == 0;
        world::enter();
        let rc = match what {
            0 => o.del_peer.expect("an operation")(lnd, nid),
            1 => o.close_conns.expect("an operation")(lnd, nid),
            2 => {
                let (mut nid, mut refs, mut i) = (0, 0, 0);
                while o.get_peer.expect("an operation")(lnd, i, &raw mut nid, &raw mut refs) == 0 {
                    i += 1;
                }
                i as i32
            }
            4 => o.debug_peer.expect("an operation")(lnd, nid),
            // As `lnetctl net show`, with LNet's lock held.
            5 => {
                let lock = &raw mut w().nodes[(*ni).node].net_lock;
                lock::take(lock, true, false);
                let n = o.older_conns.expect("an operation")(lnd);
                lock::give(lock);
                n as i32
            }
            _ => {
                let (mut nid, mut mtu, mut i) = (0, 0, 0);
                while o.get_conn.expect("an operation")(lnd, i, &raw mut nid, &raw mut mtu) == 0 {
                    i += 1;
                }
                i as i32
            }
        };
        world::leave();
        (*ni).found -= 1;
        sched::wake_all(ni as usize);
        rc
    }
}

/// Returns the peers that the driver lists, and their reference counts by the driver.
pub fn peers(ni: *mut Ni) -> Vec<(u64, u32)> {
    let mut all = Vec::new();
    // SAFETY: NIs stay until the world ends.
    unsafe {
        if (*ni).life != Life::Active {
            return all;
        }
        (*ni).found += 1;
        let get = ops(ni).get_peer.expect("an operation");
        let (mut nid, mut refs) = (0, 0);
        world::enter();
        while get((*ni).lnd, all.len() as u32, &raw mut nid, &raw mut refs) == 0 {
            all.push((nid, refs as u32));
        }
        world::leave();
        (*ni).found -= 1;
    }
    sched::wake_all(ni as usize);
    all
}

/// Returns whether the driver lists a connection with that peer.
pub fn connected(ni: *mut Ni, peer: u64) -> bool {
    // SAFETY: NIs stay until the world ends.
    unsafe {
        if (*ni).life != Life::Active {
            return false;
        }
        (*ni).found += 1;
        let get = ops(ni).get_conn.expect("an operation");
        let (mut nid, mut mtu, mut i) = (0, 0, 0);
        world::enter();
        while get((*ni).lnd, i, &raw mut nid, &raw mut mtu) == 0 && nid != peer {
            i += 1;
            nid = 0;
        }
        world::leave();
        (*ni).found -= 1;
        sched::wake_all(ni as usize);
        nid == peer
    }
}

/// Drops LNet of a node that lost its power.
pub fn forget(node: usize) {
    let world = w();
    // SAFETY: Messages and NIs stay until the world ends.
    unsafe {
        for ni in world.nodes[node].nis.drain(..) {
            (*ni).life = Life::Gone;
        }
        for i in 0..world.lnet.ops.len() {
            if world.lnet.ops[i].node == node {
                end_op(i, -(ESHUTDOWN as i32));
            }
        }
    }
}

/// Returns whether all messages of all nodes have ended.
pub fn none_left() -> bool {
    // SAFETY: Messages stay until the world ends.
    let done = |m: &*mut Msg| unsafe { (**m).owner == Owner::Done };
    w().lnet.msgs.iter().all(done)
}

/// Returns the number of messages of a node that have not ended.
pub fn left(node: usize) -> usize {
    w().lnet
        .msgs
        .iter()
        // SAFETY: Messages and NIs stay until the world ends.
        .filter(|m| unsafe {
            (*(***m).ni).node == node
                && (***m).owner != Owner::Done
                && (*(***m).ni).life != Life::Gone
        })
        .count()
}

/// Frees the objects that stay until the world ends.
pub fn clear() {
    for msg in w().lnet.msgs.drain(..) {
        // SAFETY: The world is over.
        drop(unsafe { Box::from_raw(msg) });
    }
}
