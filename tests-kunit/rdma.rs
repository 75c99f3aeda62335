// SPDX-License-Identifier: GPL-2.0

//! Tests of `rust/rdma/` with a real provider: two soft-RoCE links in one kernel, 10.0.1.1 and
//! 10.0.1.2.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use crate::{
    bindings,
    rdma::{
        batch::PushError,
        bounce::BounceBuf,
        buf::{
            BufAllocator,
            Direction,
            RxBuf,
            TxBuf,
            MSG_BUF_LEN, //
        },
        cm::{
            CmHandler,
            CmId,
            CmLocked,
            ConnParam,
            Reachability, //
        },
        cm_event::{
            Addr,
            CmEvent, //
        },
        cm_path::Path,
        completion_receiver::CompletionReceiver,
        device::{
            Device,
            DeviceEvent,
            DeviceEvents,
            EventRegistration,
            RegionPage, //
        },
        gpu::{
            GpuMemOps,
            MemKind, //
        },
        listen::{
            device_of,
            ConnRequest,
            ListenHandler,
            Listener, //
        },
        mr::{
            Mapped,
            Mr, //
        },
        mr_sharing::Regions,
        net_ns::NetNs,
        page_frags::PageVec,
        pd::Pd,
        percpu_histogram::PercpuHistogram,
        qp::{
            Qp,
            QpConfig, //
        },
        qp_create::QpParts,
        qp_handler::QpHandler,
        refcount::Refcount,
        rq::RecvQueue,
        sg::{
            SgMap,
            SgRef, //
        },
        sq::SendQueue,
        sync::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        wc::{
            QpEvent,
            Wc,
            WcStatus, //
        },
        wc_dispatch::Completions,
        work::{
            OwnedQueue,
            QueueKind, //
        }, //
    }, //
};

const LEFT: u32 = 0x0a000101;
const RIGHT: u32 = 0x0a000102;
const PORT: u16 = 9870;
const RX_BUFS: u16 = 8;

const CONFIG: QpConfig = QpConfig {
    sq_depth: 16,
    rq_depth: RX_BUFS,
    max_send_sge: 4,
    max_inline: 64,
    nr_mrs: 2,
    mr_pages: 257,
};

/// Events and completions of one side of a connection.
#[derive(Default)]
struct Seen {
    route: bool,
    established: bool,
    disconnected: bool,
    failed: bool,
    drained: bool,
    rejected: Option<(i32, u8)>,
    first_private_byte: Option<u8>,
    sends: KVec<(u32, WcStatus)>,
    receives: KVec<(u32, u8, WcStatus)>,
    bufs_back: usize,
    drop_in_handler: Option<CmId<Side>>,
    late_id: Option<CmId<Side>>,
}

#[pin_data]
struct Side {
    drops_id: bool,
    queue: OwnedQueue,
    #[pin]
    seen: SpinLockBh<Seen>,
}

impl Side {
    fn new() -> Result<Arc<Self>> {
        Self::with(false)
    }

    fn with(drops_id: bool) -> Result<Arc<Self>> {
        let mut seen = Seen::default();

        seen.sends.reserve(64, GFP_KERNEL)?;
        seen.receives.reserve(64, GFP_KERNEL)?;
        Arc::pin_init(
            try_pin_init!(Self {
                drops_id,
                queue: OwnedQueue::new(c"ro2iblnd_test", QueueKind::PerCpu, true, 0)?,
                seen <- new_spinlock_bh!(seen),
            }),
            GFP_KERNEL,
        )
    }

    fn wait(&self, mut until: impl FnMut(&Seen) -> bool) -> Result {
        for _ in 0..4000 {
            if until(&self.seen.lock()) {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
        }
        Err(ETIMEDOUT)
    }
}

impl CmHandler for Side {
    fn cm_event(this: ArcBorrow<'_, Self>, id: &CmLocked<'_>, event: &CmEvent<'_>) {
        let mut failed = false;
        let mut dropped = None;

        if matches!(event, CmEvent::AddrResolved) {
            if this.drops_id {
                let _ = this.wait(|seen| seen.drop_in_handler.is_some());
                dropped = this.seen.lock().drop_in_handler.take();
            } else {
                failed = id.resolve_route(2000).is_err();
            }
        }
        drop(dropped);

        let mut seen = this.seen.lock();

        seen.failed |= failed;
        match event {
            CmEvent::AddrResolved => (),
            CmEvent::RouteResolved => seen.route = true,
            CmEvent::Established { private_data, .. } => {
                seen.established = true;
                seen.first_private_byte = private_data.first().copied();
            }
            CmEvent::Disconnected => seen.disconnected = true,
            CmEvent::Rejected {
                reason,
                private_data,
            } => seen.rejected = Some((*reason, private_data.first().copied().unwrap_or(0))),
            CmEvent::TimewaitExit => (),
            _ => seen.failed = true,
        }
    }

    fn released_in_handler(this: ArcBorrow<'_, Self>, id: CmId<Self>) {
        this.seen.lock().late_id = Some(id);
    }
}

impl CompletionReceiver<RxBuf> for Seen {
    fn send_completion(&mut self) {}

    fn sent(&mut self, ctx: u32, buf: Option<TxBuf>) {
        self.bufs_back += usize::from(buf.is_some());
        let _ = self.sends.push_within_capacity((ctx, WcStatus::Success));
    }

    fn send_failed(&mut self, ctx: u32, wc: Wc) {
        let _ = self.sends.push_within_capacity((ctx, wc.status));
    }

    fn received(&mut self, buf: RxBuf, nob: usize) {
        let first = buf.as_slice().first().copied().unwrap_or(0);
        let _ = self
            .receives
            .push_within_capacity((nob as u32, first, WcStatus::Success));
    }

    fn recv_failed(&mut self, wc: Wc) {
        let _ = self.receives.push_within_capacity((0, 0, wc.status));
    }
}

impl QpHandler for Side {
    type Recv = RxBuf;

    fn completion_workqueue(&self) -> &OwnedQueue {
        &self.queue
    }

    fn round(this: &Arc<Self>, completions: Completions<'_, Self, RxBuf>) {
        completions.each(&mut *this.seen.lock());
    }

    fn drained(this: Arc<Self>) {
        this.seen.lock().drained = true;
    }

    fn async_event(_this: ArcBorrow<'_, Self>, _event: QpEvent) {}
}

/// Listener that accepts one request for `side`, and rejects all others.
#[pin_data]
struct Acceptor {
    #[pin]
    wanted: SpinLockBh<Wanted>,
}

struct Wanted {
    side: Option<Arc<Side>>,
    id: Option<CmId<Side>>,
}

impl ListenHandler for Acceptor {
    fn addr_change(&self) {}

    fn connect_request(&self, request: &mut ConnRequest<'_>) {
        let side = self.wanted.lock().side.take();

        match side {
            Some(side) => {
                if let Ok(id) = request.take(side) {
                    self.wanted.lock().id = Some(id);
                }
            }
            None => {
                let _ = request.reject(&[77]);
            }
        }
    }

    fn device_removal(&self) {}
}

/// One side of an established connection.
struct End {
    side: Arc<Side>,
    pd: Arc<Pd>,
    qp: Arc<Qp<Side>>,
    sq: SendQueue,
    rq: RecvQueue,
    id: CmId<Side>,
}

impl End {
    fn new(id: CmId<Side>, side: Arc<Side>) -> Result<Self> {
        let device = id.lock().device().ok_or(ENODEV)?;

        Self::on(id, side, (&Pd::alloc(device)?, &plenty()?))
    }

    fn on(id: CmId<Side>, side: Arc<Side>, on: (&Arc<Pd>, &Arc<Regions>)) -> Result<Self> {
        let pd = on.0.clone();
        let QpParts { qp, sq, mut rq } = Qp::create(&id, on, 0, &CONFIG, side.clone())?;

        for _ in 0..RX_BUFS {
            rq.push(&qp, RxBuf::alloc(pd.device())?)
                .map_err(|_| ENOSPC)?;
        }
        rq.post(&qp).map_err(|_| EIO)?;
        Ok(Self {
            side,
            pd,
            qp,
            sq,
            rq,
            id,
        })
    }

    fn send(&mut self, ctx: u32, first: u8, nob: u32, signaled: bool) -> Result {
        let mut buf = TxBuf::alloc(self.pd.device())?;

        buf.as_mut_slice()[0] = first;
        self.sq
            .push_send(&self.qp, ctx, buf, nob, signaled)
            .map_err(|_| ENOSPC)
    }

    fn post(&mut self) -> Result {
        self.sq.post(&self.qp).map_err(|_| EIO)
    }

    /// Closes as the driver does, and checks that all receive buffers come back.
    fn close(self) -> Result {
        let _ = self.id.disconnect();
        self.qp.drain(self.sq, self.rq)?;
        self.side.wait(|seen| seen.drained)?;
        self.qp.destroy_mrs()?;
        check(self.side.seen.lock().receives.len() == usize::from(RX_BUFS))
    }
}

/// Creates a supply of regions without a limit.
fn plenty() -> Result<Arc<Regions>> {
    Regions::new(u32::MAX, |_, _| None)
}

fn check(condition: bool) -> Result {
    if condition {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

fn listen(port: u16, side: Option<Arc<Side>>) -> Result<(Arc<Acceptor>, Listener<Acceptor>)> {
    let acceptor = Arc::pin_init(
        try_pin_init!(Acceptor {
            wanted <- new_spinlock_bh!(Wanted { side, id: None }),
        }),
        GFP_KERNEL,
    )?;
    let listener = Listener::bind(NetNs::init()?, &Addr::v4(RIGHT, port), acceptor.clone())?;
    listener.start()?;

    check(listener.device().is_some() && listener.port() == 1)?;

    Ok((acceptor, listener))
}

const PARAM: ConnParam<'static> = ConnParam {
    private_data: &[42; 56],
    retry_count: 5,
    rnr_retry_count: 6,
    min_rnr_timer: 18,
};

/// Connects the left link to the right one.
fn connect(port: u16) -> Result<(End, End)> {
    connect_by(port, End::new)
}

/// Connects as [`connect`] does, with a left end that `make` makes.
fn connect_by(
    port: u16,
    make: impl FnOnce(CmId<Side>, Arc<Side>) -> Result<End>,
) -> Result<(End, End)> {
    let (left, right) = (Side::new()?, Side::new()?);
    let (acceptor, _listener) = listen(port, Some(right.clone()))?;
    let id = CmId::create(NetNs::init()?, left.clone())?;

    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, port), 2000)?;
    left.wait(|seen| seen.route || seen.failed)?;

    let left_end = make(id, left.clone())?;

    left_end.id.connect(&PARAM)?;
    for _ in 0..4000 {
        if acceptor.wanted.lock().id.is_some() {
            break;
        }
        fsleep(Delta::from_millis(1));
    }
    let id = acceptor.wanted.lock().id.take().ok_or(ETIMEDOUT)?;
    let right_end = End::new(id, right.clone())?;

    right_end.id.accept(&PARAM)?;
    left.wait(|seen| seen.established)?;
    right.wait(|seen| seen.established)?;
    Ok((left_end, right_end))
}

/// Pages of a test, with a list of fragments that begins and ends inside a page. No page follows the page before it in
/// memory: such pages would become one element.
struct TestPages(KVec<bindings::bio_vec>);

impl TestPages {
    fn new(n: usize) -> Result<Self> {
        let mut this = Self(KVec::with_capacity(n, GFP_KERNEL)?);

        for _ in 0..n {
            // SAFETY: No preconditions.
            let bv_page = unsafe { bindings::ro2ib_alloc_page() };

            if bv_page.is_null() {
                return Err(ENOMEM);
            }
            this.0.push(
                bindings::bio_vec {
                    bv_page,
                    bv_len: 4096,
                    bv_offset: 0,
                },
                GFP_KERNEL,
            )?;
        }
        for i in 0..n {
            for j in i + 1..n {
                if this.0[i].bv_page < this.0[j].bv_page {
                    this.0.swap(i, j);
                }
            }
        }
        Ok(this)
    }

    fn vec(&self, offset: usize, nob: usize) -> PageVec {
        let (n, offset, nob) = (self.0.len() as u32, offset as u32, nob as u32);

        // SAFETY: The pages live as long as `self`; the tests drop what uses them before.
        unsafe { PageVec::from_raw(self.0.as_ptr(), n, offset, nob, MemKind::Host) }
    }
}

/// Maps pages of a test.
fn map_pages(device: ARef<Device>, pages: &PageVec, direction: Direction) -> Result<SgRef> {
    // SAFETY: The pages live as long as `TestPages`; the tests drop what uses them before.
    unsafe { SgMap::map(device, pages, direction) }
}

impl Drop for TestPages {
    fn drop(&mut self) {
        for bvec in self.0.iter() {
            // SAFETY: Allocated by `new`, and no code uses it any more.
            unsafe { bindings::ro2ib_free_page(bvec.bv_page) };
        }
    }
}

fn pattern(i: usize) -> u8 {
    (i % 251) as u8
}

fn fill(pages: &PageVec) -> Result {
    for at in (0..pages.nob()).step_by(64) {
        let mut chunk = [0u8; 64];
        let n = chunk.len().min(pages.nob() - at);

        for (i, b) in chunk.iter_mut().enumerate() {
            *b = pattern(at + i);
        }
        pages.copy_from_slice(at, &chunk[..n])?;
    }
    Ok(())
}

fn has_pattern(pages: &PageVec, nob: usize) -> Result<bool> {
    for at in (0..nob).step_by(64) {
        let mut chunk = [0u8; 64];
        let n = chunk.len().min(nob - at);

        pages.copy_to_slice(at, &mut chunk[..n])?;
        if (0..n).any(|i| chunk[i] != pattern(at + i)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn send_and_receive() -> Result {
    let (mut left, mut right) = connect(PORT)?;

    // The middle one is not signalled: its completion comes with the last.
    left.send(1, 11, 4096, true)?;
    left.send(2, 12, 20, false)?;
    left.send(3, 13, 65, true)?;
    check(left.sq.pending() == 3)?;
    check(left.sq.free_slots(&left.qp) == 13)?;
    check(matches!(
        left.sq
            .push_send(&right.qp, 9, TxBuf::alloc(left.pd.device())?, 1, true),
        Err((PushError::Foreign, _))
    ))?;
    left.post()?;
    right.send(4, 14, 1, true)?;
    right.post()?;
    left.side
        .wait(|seen| seen.sends.len() == 3 && seen.receives.len() == 1)?;
    right
        .side
        .wait(|seen| seen.sends.len() == 1 && seen.receives.len() == 3)?;

    let ok = WcStatus::Success;

    check(left.side.seen.lock().sends[..] == [(1, ok), (2, ok), (3, ok)])?;
    check(left.side.seen.lock().bufs_back == 3)?;
    check(left.side.seen.lock().receives[..] == [(1, 14, ok)])?;
    check(left.side.seen.lock().first_private_byte == Some(42))?;
    check(right.side.seen.lock().receives[..] == [(4096, 11, ok), (20, 12, ok), (65, 13, ok)])?;
    check(left.sq.free_slots(&left.qp) == 16)?;
    left.close()?;
    right.close()
}

/// Checks all steps of a bulk transfer: registration, write, invalidation; then a write with the
/// invalidated key, which fails.
fn write_to_a_key() -> Result {
    const NOB: usize = 9 * 4096 - 100;

    let (mut left, mut right) = connect(PORT + 2)?;
    let source = TestPages::new(10)?;
    let from = source.vec(2050, NOB);
    let sink = TestPages::new(10)?;
    let to = sink.vec(1000, NOB);

    fill(&from)?;

    let map = map_pages(right.pd.device().clone(), &to, Direction::FromDevice)?;
    let mr = map_mr(&right.qp, map.clone())?;
    let (remote, rkey) = (mr.iova(), mr.rkey());

    // On rxe a registration is two work requests.
    let regs = usize::from(right.qp.wrs_per_reg());
    check(mr.len() as usize == NOB)?;
    let mr = right
        .sq
        .push_reg(&right.qp, 1, mr, true)
        .map_err(|_| ENOSPC)?;
    right.post()?;
    right.side.wait(|seen| seen.sends.len() == regs)?;

    // Ten fragments, at most four in one work request: three of these.
    let source_map = map_pages(left.pd.device().clone(), &from, Direction::ToDevice)?;
    let mut cursor = source_map.cursor();
    let mut done = 0u32;
    let mut wrs = 0;

    let page = left.pd.device().attrs().region_page().ok_or(EINVAL)?;

    check(source_map.can_register(10, page) && !source_map.can_register(9, page))?;

    while cursor.left() != 0 {
        let at = remote + u64::from(done);

        done += left
            .sq
            .push_write(&left.qp, 10 + wrs, at, rkey, &mut cursor, u32::MAX, false)
            .map_err(|_| ENOSPC)?;
        wrs += 1;
    }
    check(done as usize == NOB && wrs == 3)?;
    left.send(20, 1, 100, true)?;
    left.post()?;
    right.side.wait(|seen| seen.receives.len() == 1)?;
    left.side.wait(|seen| seen.sends.len() == 4)?;

    check(right.sq.push_inv(&right.qp, 2, mr).is_ok())?;
    right.post()?;
    right.side.wait(|seen| seen.sends.len() == regs + 1)?;
    check(right.side.seen.lock().sends[regs] == (2, WcStatus::Success))?;
    // Only this test still has a reference to the mapping: the QP has dropped its own.
    check(map.unmap())?;
    check(has_pattern(&to, NOB)?)?;

    // The same region again: another key.
    let map = map_pages(right.pd.device().clone(), &to, Direction::FromDevice)?;
    let mr = map_mr(&right.qp, map.clone())?;
    let other = map_mr(&right.qp, map.clone())?;
    check(has_no_region(&right, &map))?;
    check(mr.rkey() != rkey)?;
    // Unmapped without having been posted, the key may be the same next time.
    let next = mr.rkey();
    right.qp.unmap_mr(other);
    right.qp.unmap_mr(mr);
    let mr = map_mr(&right.qp, map)?;
    check(mr.rkey() == next)?;
    right.qp.unmap_mr(mr);

    let mut cursor = map_pages(left.pd.device().clone(), &from, Direction::ToDevice)?.cursor();
    left.sq
        .push_write(&left.qp, 30, remote, rkey, &mut cursor, 100, true)
        .map_err(|_| ENOSPC)?;
    left.post()?;
    left.side.wait(|seen| seen.sends.len() == 5)?;
    check(left.side.seen.lock().sends[4] == (30, WcStatus::RemAccess))?;
    left.close()?;
    right.close()
}

/// Checks that a sink with a gap receives its data through a bounce buffer, whose region is still
/// valid when the connection ends.
fn bounce() -> Result {
    const NOB: usize = 5000;

    let (mut left, mut right) = connect(PORT + 3)?;
    let source = TestPages::new(2)?;
    let from = source.vec(0, NOB);
    let mut sink = TestPages::new(3)?;

    sink.0[1].bv_len = 100;
    let to = sink.vec(10, NOB);

    fill(&from)?;
    let device = right.pd.device().clone();
    let page = device.attrs().region_page().ok_or(EINVAL)?;

    check(!map_pages(device, &to, Direction::FromDevice)?.can_register(257, page))?;

    let mut bounce = BounceBuf::alloc(right.pd.device().clone(), to.share())?;
    let map = bounce.map().ok_or(EINVAL)?.clone();
    let mr = map_mr(&right.qp, map)?;
    let (remote, rkey) = (mr.iova(), mr.rkey());
    let _mr = right
        .sq
        .push_reg(&right.qp, 1, mr, true)
        .map_err(|_| ENOSPC)?;

    right.post()?;
    right
        .side
        .wait(|seen| seen.sends.len() == usize::from(right.qp.wrs_per_reg()))?;

    let mut cursor = map_pages(left.pd.device().clone(), &from, Direction::ToDevice)?.cursor();
    left.sq
        .push_write(&left.qp, 1, remote, rkey, &mut cursor, NOB as u32, true)
        .map_err(|_| ENOSPC)?;
    left.post()?;
    left.side.wait(|seen| seen.sends.len() == 1)?;

    left.close()?;
    right.close()?;
    bounce.copy_out(NOB as u32)?;
    check(has_pattern(&to, NOB)?)
}

/// Checks, for lists of all shapes, how many elements are mapped, and whether one region can cover them.
fn lists() -> Result {
    let (_acceptor, listener) = listen(PORT + 13, None)?;
    let device = listener.device().ok_or(ENODEV)?;
    let map = |pages: &PageVec| map_pages(device.clone(), pages, Direction::ToDevice);
    let page = device.attrs().region_page().ok_or(EINVAL)?;
    let half = RegionPage::choose(0x800, 12).ok_or(EINVAL)?;

    // More than one piece of a scatterlist, of which only the first elements are used.
    let many = TestPages::new(300)?;
    let few = map(&many.vec(100, 5000))?;

    check(few.nob() == 5000 && few.nr_mapped() == 2 && few.can_register(2, page))?;
    let all = map(&many.vec(0, 300 * 4096))?;

    check(all.can_register(300, page) && !all.can_register(299, page))?;
    let inner = map(&many.vec(4095, 298 * 4096 + 2))?;

    check(inner.can_register(300, page) && !inner.can_register(299, page))?;
    // A region of half pages needs more of them, but not two for a kernel page that the list uses in part.
    check(all.can_register(600, half) && !all.can_register(599, half))?;
    check(inner.can_register(598, half) && !inner.can_register(597, half))?;
    // Fewer bytes than that, or none.
    check(map(&many.vec(1, 300 * 4096)).err() == Some(EINVAL))?;
    check(map(&many.vec(300 * 4096, 1)).err() == Some(EINVAL))?;
    check(map(&many.vec(0, 0)).err() == Some(EINVAL))?;

    // A mapping of a reserve comes back with its last reference.
    let reserve = SgMap::reserve(&device, 1, 300)?;
    let reserved = |pages: &PageVec| {
        // SAFETY: `many` lives as long as this test, which drops what uses it before.
        unsafe { SgMap::map_reserved((&reserve, 1), pages, Direction::ToDevice) }
    };

    for _ in 0..3 {
        let all = reserved(&many.vec(0, 300 * 4096))?;
        let other = all.clone();

        check(all.nob() == 300 * 4096 && all.can_register(300, page))?;
        drop(all);
        check(reserved(&many.vec(0, 1)).err() == Some(ENOMEM))?;
        drop(other);
        check(reserved(&many.vec(0, 0)).err() == Some(EINVAL))?;
        check(reserved(&many.vec(100, 5000))?.nob() == 5000)?;
    }
    let reserve = SgMap::reserve(&device, 1, 299)?;
    // SAFETY: As above.
    let map_300 =
        unsafe { SgMap::map_reserved((&reserve, 1), &many.vec(0, 1), Direction::ToDevice) };

    check(map_300.err() == Some(ENOMEM))?;

    // A user holds no more mappings than are free.
    let reserve = SgMap::reserve(&device, 8, 300)?;
    let mut held: KVec<SgRef> = KVec::new();

    for (user, most) in [(1, 4), (2, 2), (3, 1), (4, 1), (5, 0)] {
        let before = held.len();

        // SAFETY: As above.
        while let Ok(map) = unsafe {
            SgMap::map_reserved((&reserve, user), &many.vec(0, 4096), Direction::ToDevice)
        } {
            held.push(map, GFP_KERNEL)?;
        }
        check(held.len() - before == most)?;
    }
    // They come back, and are for any user.
    drop(held);
    // SAFETY: As above.
    let again =
        unsafe { SgMap::map_reserved((&reserve, 5), &many.vec(0, 4096), Direction::ToDevice) };

    check(again.is_ok())?;

    // One fragment.
    let one = TestPages::new(1)?;
    let part = map(&one.vec(100, 3996))?;

    check(part.nob() == 3996 && part.nr_mapped() == 1 && part.can_register(1, page))?;
    check(map(&one.vec(100, 3997)).err() == Some(EINVAL))?;
    check(map(&many.vec(299 * 4096 + 1, 4095))?.nr_mapped() == 1)?;

    // A list may begin and end inside a page, but one region covers no other gap. An empty fragment is not a gap.
    let mut odd = TestPages::new(5)?;

    odd.0[0].bv_offset = 96;
    odd.0[0].bv_len = 4000;
    odd.0[2].bv_len = 0;
    let whole = map(&odd.vec(4, 3996 + 2 * 4096 + 5))?;

    check(whole.nr_mapped() <= 4 && whole.can_register(4, page) && !whole.can_register(3, page))?;
    odd.0[3].bv_len = 4095;
    check(map(&odd.vec(4, 3996 + 4096 + 4095))?.can_register(3, page))?;
    let gap = map(&odd.vec(4, 3996 + 4096 + 4095 + 1))?;

    check(!gap.can_register(u32::MAX, page) && !gap.can_register(u32::MAX, half))
}

/// Checks which page size regions have, of the sizes that a device reports.
fn sizes_of_pages() -> Result {
    let len = |cap, ours| RegionPage::choose(cap, ours).map(RegionPage::len);
    // The sizes that irdma, rxe and siw report, with kernel pages of 4 KiB and of 64 KiB.
    let (irdma, rxe, siw) = (0x4020_1000, 0xffff_f000, 0x1_0000);

    check(len(irdma, 12) == Some(0x1000) && len(irdma, 16) == Some(0x1000))?;
    check(len(rxe, 12) == Some(0x1000) && len(rxe, 16) == Some(0x1_0000))?;
    check(len(siw, 16) == Some(0x1_0000) && len(u64::MAX, 14) == Some(0x4000))?;
    // A device that reports no sizes, and devices with small pages.
    check(len(0, 12) == Some(0x1000) && len(0, 16) == Some(0x1_0000))?;
    check(len(0x800, 12) == Some(0x800) && len(0x20_0800, 12) == Some(0x800))?;
    // Only sizes above the kernel's page size, and a size below the least one.
    check(len(0x4020_0000, 12).is_none() && len(siw, 12).is_none() && len(0x100, 12).is_none())?;

    let most = |cap, ours, nob| RegionPage::choose(cap, ours).map(|page| page.max_pages_for(nob));
    check(most(irdma, 12, 1 << 20) == Some(257) && most(irdma, 16, 1 << 20) == Some(257))?;
    check(most(rxe, 16, 1 << 20) == Some(17) && most(0x200, 12, 1 << 20) == Some(2049))
}

/// Owner of memory of a GPU that returns the answer set by a test. It never gives a DMA address.
struct FakeGpu {
    answer: Atomic<i32>,
    /// If not 0, every other page is not memory of the owner.
    mixed: Atomic<i32>,
    asked: Atomic<i32>,
    maps: Atomic<i32>,
    unmaps: Atomic<i32>,
}

static GPU: FakeGpu = FakeGpu {
    answer: Atomic::new(0),
    mixed: Atomic::new(0),
    asked: Atomic::new(0),
    maps: Atomic::new(0),
    unmaps: Atomic::new(0),
};

// SAFETY: A list without lengths is never used.
unsafe impl GpuMemOps for FakeGpu {
    unsafe fn map(
        &self,
        _dev: *mut bindings::device,
        _sg: *mut bindings::scatterlist,
        _n: u32,
        _direction: Direction,
    ) -> i32 {
        self.maps.store(self.maps.load(Relaxed) + 1, Relaxed);
        self.answer.load(Relaxed)
    }

    unsafe fn unmap(
        &self,
        _dev: *mut bindings::device,
        _sg: *mut bindings::scatterlist,
        _n: u32,
        _direction: Direction,
    ) {
        self.unmaps.store(self.unmaps.load(Relaxed) + 1, Relaxed);
    }

    unsafe fn has(&self, _page: *mut bindings::page) -> bool {
        let asked = self.asked.load(Relaxed) + 1;

        self.asked.store(asked, Relaxed);
        self.mixed.load(Relaxed) == 0 || asked % 2 == 0
    }
}

/// Checks that memory that the owner has not mapped is not unmapped, and that memory that it has mapped wrongly is
/// unmapped at once and not used.
fn distrusts_a_gpu() -> Result {
    let (_acceptor, listener) = listen(PORT + 14, None)?;
    let device = listener.device().ok_or(ENODEV)?;
    let many = TestPages::new(5)?;
    let pages = |offset, nob| {
        // SAFETY: The pages live as long as `many`.
        unsafe { PageVec::from_raw(many.0.as_ptr(), 5, offset, nob, MemKind::Gpu(&GPU)) }
    };
    let cases = [
        // Memory without an owner, and an owner that fails to map its memory.
        (0, false, ENXIO, 0),
        (-5, false, EFAULT, 0),
        // Elements without lengths, and more elements than the list has.
        (3, false, EFAULT, 1),
        (6, false, EFAULT, 1),
        (i32::MAX, false, EFAULT, 1),
        // Pages that only partly belong to the owner give `EXDEV`, even if its answer means another error.
        (0, true, EXDEV, 0),
        (-5, true, EXDEV, 0),
    ];

    for (answer, mixed, e, unmapped) in cases {
        let before = (GPU.maps.load(Relaxed), GPU.unmaps.load(Relaxed));

        GPU.answer.store(answer, Relaxed);
        GPU.mixed.store(i32::from(mixed), Relaxed);
        let map = map_pages(device.clone(), &pages(100, 10000), Direction::ToDevice);

        check(map.err() == Some(e))?;
        check(GPU.maps.load(Relaxed) == before.0 + 1)?;
        check(GPU.unmaps.load(Relaxed) == before.1 + unmapped)?;
    }
    // The owner is asked only about pages that are used.
    let asked = GPU.asked.load(Relaxed);

    check(
        map_pages(device.clone(), &pages(8192, 4096), Direction::ToDevice).err() == Some(EFAULT),
    )?;
    check(GPU.asked.load(Relaxed) == asked + 1)?;
    // The CPU does not access memory of a GPU.
    let mut bytes = [0u8; 8];

    check(pages(0, 8).copy_to_slice(0, &mut bytes).err() == Some(EOPNOTSUPP))?;
    check(pages(0, 8).copy_from_slice(0, &bytes).err() == Some(EOPNOTSUPP))
}

/// Checks that the part of a bounce buffer that the peer has not written is zero, and not old content of the memory.
fn unwritten_bounce() -> Result {
    const NOB: usize = 3 * 4096;
    let (left, right) = connect(PORT + 7)?;
    let sink = TestPages::new(4)?;
    let to = sink.vec(10, NOB);

    // Dirty pages for the allocator to hand out again.
    for _ in 0..4 {
        let dirty = TestPages::new(32)?;

        fill(&dirty.vec(0, 32 * 4096))?;
    }
    fill(&to)?;
    BounceBuf::alloc(right.pd.device().clone(), to.share())?.copy_out(NOB as u32)?;
    left.close()?;
    right.close()?;

    let mut seen = KVec::from_elem(1u8, NOB, GFP_KERNEL)?;

    to.copy_to_slice(0, &mut seen)?;
    check(seen.iter().all(|b| *b == 0))
}

/// Checks that a QP that is dropped with posted work requests is gone afterwards: none completes any more.
fn drop_without_drain() -> Result {
    let (mut left, right) = connect(PORT + 4)?;
    let (left_side, right_side) = (left.side.clone(), right.side.clone());

    for i in 0..10 {
        left.send(i, 1, 100, false)?;
    }
    left.post()?;
    drop(left);
    drop(right);

    let counts = || {
        [&left_side, &right_side].map(|side| {
            let seen = side.seen.lock();

            (seen.receives.len(), seen.sends.len(), seen.bufs_back)
        })
    };
    let before = counts();

    fsleep(Delta::from_millis(50));
    check(counts() == before)
}

/// Checks that a request that the handler does not take is rejected, with the handler's private data.
fn refuse() -> Result {
    let left = Side::new()?;
    let (_acceptor, _listener) = listen(PORT + 5, None)?;
    let id = CmId::create(NetNs::init()?, left.clone())?;

    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, PORT + 5), 2000)?;
    left.wait(|seen| seen.route)?;
    let end = End::new(id, left.clone())?;

    end.id.connect(&PARAM)?;
    left.wait(|seen| seen.rejected.is_some())?;
    // IB_CM_REJ_CONSUMER_DEFINED.
    check(left.seen.lock().rejected == Some((28, 77)))?;
    end.close()
}

/// Checks that a send queue takes no more work requests than it has slots, and that slots of work
/// requests that the provider refuses become free again.
fn refused_post() -> Result {
    let side = Side::new()?;
    let id = CmId::create(NetNs::init()?, side.clone())?;

    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, 1), 2000)?;
    side.wait(|seen| seen.route)?;
    let mut end = End::new(id, side.clone())?;

    for i in 0..u32::from(CONFIG.sq_depth) {
        end.send(i, 1, 100, false)?;
    }
    check(matches!(
        end.sq
            .push_send(&end.qp, 99, TxBuf::alloc(end.pd.device())?, 1, true),
        Err((PushError::NoSlot, _))
    ))?;
    // The QP is not connected.
    let refused = end.sq.post(&end.qp).err().ok_or(EINVAL)?;
    check(refused.posted == 0)?;
    check(end.sq.free_slots(&end.qp) == u32::from(CONFIG.sq_depth))?;
    check(matches!(
        end.sq
            .push_send(&end.qp, 99, TxBuf::alloc(end.pd.device())?, 1, true),
        Err((PushError::Closed, _))
    ))?;
    check(side.seen.lock().sends.is_empty())?;
    // The QP was never connected, so it has to be drained, but not disconnected.
    end.close()
}

/// Checks that work requests that never completed count as flushed, even those in front of the last one: their outcome
/// is unknown, so the driver must not assume that one of them has invalidated a key.
fn undrained() -> Result {
    const FIRST: u32 = 100;

    let (left, mut right) = connect(PORT + 17)?;
    let sink = TestPages::new(1)?;
    let map = map_pages(
        right.pd.device().clone(),
        &sink.vec(0, 4096),
        Direction::FromDevice,
    )?;
    let mr = map_mr(&right.qp, map)?;
    let mr = right
        .sq
        .push_reg(&right.qp, 1, mr, true)
        .map_err(|_| ENOSPC)?;
    right.post()?;
    // The peer has no buffer for one more message.
    for i in 0..u32::from(RX_BUFS) {
        right.send(10 + i, 1, 100, true)?;
        right.post()?;
        left.side.wait(|seen| seen.receives.len() > i as usize)?;
    }
    let before = usize::from(right.qp.wrs_per_reg()) + usize::from(RX_BUFS);
    right.side.wait(|seen| seen.sends.len() == before)?;

    right.send(FIRST, 1, 100, false)?;
    check(right.sq.push_inv(&right.qp, FIRST + 1, mr).is_ok())?;
    right.send(FIRST + 2, 1, 100, true)?;
    right.post()?;

    let side = right.side.clone();
    right.qp.fail_to_drain(right.sq, right.rq);
    right.qp.destroy_mrs()?;
    {
        let seen = side.seen.lock();
        let rest = seen.sends.get(before..).ok_or(EINVAL)?;

        check(rest.len() == 3)?;
        for (i, (ctx, status)) in (0u32..).zip(rest) {
            check(*ctx == FIRST + i && *status == WcStatus::Flush)?;
        }
    }
    left.close()
}

/// Checks that a registration, which takes two slots on rxe, is pushed when the send queue has
/// counted one slot left, and more slots are free.
fn registration_at_the_last_slot() -> Result {
    let (left, mut right) = connect(PORT + 9)?;
    let sink = TestPages::new(1)?;
    let to = sink.vec(0, 4096);
    let map = map_pages(right.pd.device().clone(), &to, Direction::FromDevice)?;
    let regs = u32::from(right.qp.wrs_per_reg());
    let mut ended = 0;

    check(regs == 2)?;
    // The send queue does not count its free slots again before it has too few.
    while right.sq.slots() > 1 {
        let mr = map_mr(&right.qp, map.clone())?;
        let mr = right
            .sq
            .push_reg(&right.qp, 1, mr, true)
            .map_err(|_| ENOSPC)?;

        check(right.sq.push_inv(&right.qp, 2, mr).is_ok())?;
        right.post()?;
        ended += regs as usize + 1;
        right.side.wait(|seen| seen.sends.len() == ended)?;
    }
    check(right.sq.slots() == 1)?;
    check(right.sq.free_slots(&right.qp) == u32::from(CONFIG.sq_depth))?;

    let mr = map_mr(&right.qp, map.clone())?;

    check(right.sq.push_reg(&right.qp, 3, mr, true).is_ok())?;
    check(right.sq.slots() == u32::from(CONFIG.sq_depth) - regs)?;
    right.post()?;
    right
        .side
        .wait(|seen| seen.sends.len() == ended + regs as usize)?;
    left.close()?;
    right.close()
}

struct Watcher;

impl DeviceEvents for Watcher {
    fn device_event(_this: ArcBorrow<'_, Self>, _event: DeviceEvent) {}
}

fn watch_device() -> Result {
    let (_acceptor, listener) = listen(PORT + 6, None)?;
    let device = listener.device().ok_or(ENODEV)?;
    let attrs = device.attrs();

    check(attrs.mem_mgt_extensions && attrs.max_qp_wr > 0 && !device.name().as_str().is_empty())?;
    check(device.is_roce(1) || device.is_iwarp(1))?;
    // The core would look these up behind the end of an array.
    for port in [0, 2, u32::MAX] {
        check(!device.is_roce(port) && !device.is_iwarp(port) && !device.port(port).active)?;
    }
    check(device.port(listener.port()).active)?;
    drop(EventRegistration::new(
        device,
        Arc::new(Watcher, GFP_KERNEL)?,
    )?);
    Ok(())
}

/// Checks that the last owner of an id can drop it inside the handler of the id.
fn drop_in_handler() -> Result {
    let side = Side::with(true)?;
    let id = CmId::create(NetNs::init()?, side.clone())?;

    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, 1), 2000)?;
    side.seen.lock().drop_in_handler = Some(id);
    fsleep(Delta::from_millis(300));
    check(side.seen.lock().drop_in_handler.is_none())?;
    let late = side.seen.lock().late_id.take();
    check(late.is_some())?;
    drop(late);
    // The id held the other reference to its handler.
    check(Arc::into_unique_or_drop(side).is_some())
}

/// Checks that a queue takes only buffers that are mapped for its device.
fn foreign_buffer() -> Result {
    let (mut left, mut right) = connect(PORT + 10)?;

    check(!left.pd.device().same(right.pd.device()))?;
    check(matches!(
        left.sq
            .push_send(&left.qp, 1, TxBuf::alloc(right.pd.device())?, 1, true),
        Err((PushError::Foreign, _))
    ))?;
    // A receive completes, so that there is room for another.
    left.send(2, 1, 1, true)?;
    left.post()?;
    right.side.wait(|seen| seen.receives.len() == 1)?;
    check(
        right
            .rq
            .push(&right.qp, RxBuf::alloc(left.pd.device())?)
            .is_err(),
    )?;
    check(right.rq.pending() == 0)?;
    check(
        right
            .rq
            .push(&right.qp, RxBuf::alloc(right.pd.device())?)
            .is_ok(),
    )?;
    check(right.rq.pending() == 1)?;
    left.close()?;
    right.close()
}

/// Checks that buffers of one allocation are independent: each is zeroed, and lives until its owner drops it, even if
/// the other buffers and the allocator are gone. A caller may make more or fewer buffers than were prepared.
fn buffers_in_pieces() -> Result {
    const WANTED: u8 = 21;

    let (left, right) = connect(PORT + 18)?;
    let device = left.pd.device().clone();
    let mut supply = BufAllocator::new(&device, WANTED.into());
    let mut bufs = KVec::<TxBuf>::with_capacity(32, GFP_KERNEL)?;

    drop(BufAllocator::new(&device, 8));
    for i in 0..WANTED + 2 {
        let mut buf: TxBuf = supply.make()?;

        check(buf.as_slice().iter().all(|byte| *byte == 0))?;
        buf.as_mut_slice().fill(i + 1);
        bufs.push(buf, GFP_KERNEL)?;
    }
    drop(supply);
    // Every third buffer is freed, and new buffers may use its memory.
    for (i, buf) in core::mem::take(&mut bufs).into_iter().enumerate() {
        if i % 3 != 0 {
            bufs.push(buf, GFP_KERNEL)?;
        }
    }
    let mut others = KVec::<RxBuf>::new();
    let mut supply = BufAllocator::new(&device, 11);

    for _ in 0..10 {
        let buf: RxBuf = supply.make()?;

        check(buf.as_slice().iter().all(|byte| *byte == 0))?;
        others.push(buf, GFP_KERNEL)?;
    }
    // The allocator has one buffer left.
    drop(supply);
    let kept = others.pop().ok_or(EINVAL)?.detach();

    drop(others);
    for (i, buf) in (0..WANTED + 2).filter(|i| i % 3 != 0).zip(&bufs) {
        check(buf.as_slice() == &[i + 1; MSG_BUF_LEN])?;
    }
    check(kept.as_slice().iter().all(|byte| *byte == 0))?;
    drop(kept.attach(&device).map_err(|(_, e)| e)?);
    left.close()?;
    right.close()
}

/// Maps memory with an idle region of a queue pair, or adds one.
fn map_mr(qp: &Qp<Side>, map: SgRef) -> Result<Mr<Mapped>> {
    if let Some(mr) = qp.map_mr(map.clone())? {
        return Ok(mr);
    }
    qp.add_mr()?;
    qp.map_mr(map)?.ok_or(ENOBUFS)
}

/// Returns whether a queue pair can have no further region.
fn has_no_region(end: &End, map: &SgRef) -> bool {
    matches!(end.qp.map_mr(map.clone()), Ok(None)) && matches!(end.qp.add_mr(), Err(ENOBUFS))
}

/// Checks that a queue pair allocates a region only when it needs one and none of its own is free.
fn regions_when_wanted() -> Result {
    let (left, right) = connect(PORT + 11)?;
    let sink = TestPages::new(1)?;
    let map = map_pages(
        left.pd.device().clone(),
        &sink.vec(0, 4096),
        Direction::FromDevice,
    )?;

    check(left.qp.regions() == 0)?;
    let one = map_mr(&left.qp, map.clone())?;
    check(left.qp.regions() == 1)?;
    left.qp.unmap_mr(one);
    let one = map_mr(&left.qp, map.clone())?;
    check(left.qp.regions() == 1)?;
    let two = map_mr(&left.qp, map)?;
    check(left.qp.regions() == 2)?;
    left.qp.unmap_mr(one);
    left.qp.unmap_mr(two);
    left.close()?;
    right.close()
}

/// Checks that a queue pair that needs a region takes an idle one of another queue pair if no more may be allocated.
/// The region works there, with another key. Regions in use stay.
fn regions_move() -> Result {
    const NOB: usize = 5000;

    let device = device_of(NetNs::init()?, &Addr::v4(LEFT, 0))?.0;
    let pd = Pd::alloc(device)?;
    let regions = Regions::new(2, |usage, failed| {
        (failed || usage.allocated >= usage.limit).then_some(1)
    })?;
    let on = (&pd, &regions);
    let (mut one, one_peer) = connect_by(PORT + 15, |id, side| End::on(id, side, on))?;
    let (mut two, mut two_peer) = connect_by(PORT + 16, |id, side| End::on(id, side, on))?;
    let sink = TestPages::new(3)?;
    let to = sink.vec(1000, NOB);
    let source = TestPages::new(3)?;
    let from = source.vec(10, NOB);
    let cover = || map_pages(pd.device().clone(), &to, Direction::FromDevice);
    let regs = usize::from(one.qp.wrs_per_reg());

    // Both regions are in use. The key of one of them is used and invalidated.
    let used = map_mr(&one.qp, cover()?)?;
    let kept = map_mr(&one.qp, cover()?)?;
    check(has_no_region(&two, &cover()?))?;
    let old = used.rkey();
    let used = one
        .sq
        .push_reg(&one.qp, 1, used, true)
        .map_err(|_| ENOSPC)?;
    check(one.sq.push_inv(&one.qp, 2, used).is_ok())?;
    one.post()?;
    one.side.wait(|seen| seen.sends.len() == regs + 1)?;
    check(one.qp.regions() == 2 && two.qp.regions() == 0)?;

    // That region is idle now.
    let moved = map_mr(&two.qp, cover()?)?;
    check(one.qp.regions() == 1 && two.qp.regions() == 1)?;
    check(has_no_region(&two, &cover()?))?;
    let view = regions.view();
    check(view.allocated == 2 && view.limit == 2 && view.moved == 1)?;

    // The peer writes to the region.
    fill(&from)?;
    let (remote, rkey) = (moved.iova(), moved.rkey());
    check(rkey != old)?;
    let moved = two
        .sq
        .push_reg(&two.qp, 3, moved, true)
        .map_err(|_| ENOSPC)?;
    two.post()?;
    two.side.wait(|seen| seen.sends.len() == regs)?;
    let mut cursor = map_pages(two_peer.pd.device().clone(), &from, Direction::ToDevice)?.cursor();
    while cursor.left() != 0 {
        let done = NOB as u32 - cursor.left();

        two_peer
            .sq
            .push_write(
                &two_peer.qp,
                4,
                remote + u64::from(done),
                rkey,
                &mut cursor,
                u32::MAX,
                false,
            )
            .map_err(|_| ENOSPC)?;
    }
    two_peer.send(5, 1, 100, true)?;
    two_peer.post()?;
    two.side.wait(|seen| seen.receives.len() == 1)?;
    check(two.sq.push_inv(&two.qp, 6, moved).is_ok())?;
    two.post()?;
    two.side.wait(|seen| seen.sends.len() == regs + 1)?;
    check(has_pattern(&to, NOB)?)?;

    // The region goes back, to a place in the pool that was there before.
    one.qp.unmap_mr(kept);
    let again = (map_mr(&one.qp, cover()?)?, map_mr(&one.qp, cover()?)?);
    check(one.qp.regions() == 2 && two.qp.regions() == 0 && regions.view().moved == 2)?;
    one.qp.unmap_mr(again.0);
    one.qp.unmap_mr(again.1);

    // A queue pair that ends leaves room for regions of another.
    one.close()?;
    check(regions.view().allocated == 0)?;
    let new = (map_mr(&two.qp, cover()?)?, map_mr(&two.qp, cover()?)?);
    check(two.qp.regions() == 2 && regions.view().moved == 2)?;
    two.qp.unmap_mr(new.0);
    two.qp.unmap_mr(new.1);
    two.close()?;
    check(regions.view().allocated == 0)?;
    one_peer.close()?;
    two_peer.close()
}

/// Checks that the path MTU is set to the requested value, even if it is larger than the one of the path. (This test
/// cannot show the limit of the port, because these ports support every path MTU.)
fn path_mtu() -> Result {
    let side = Side::new()?;
    let id = CmId::create(NetNs::init()?, side.clone())?;

    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, 1), 2000)?;
    side.wait(|seen| seen.route || seen.failed)?;
    let mtu = || id.lock().path().mtu;

    check(mtu() == Some(4096))?;
    id.set_path_mtu(1024)?;
    check(mtu() == Some(1024))?;
    id.set_path_mtu(2048)?;
    check(mtu() == Some(2048))?;
    check(id.set_path_mtu(1000).is_err() && mtu() == Some(2048))
}

/// Checks that an id rejects a second resolution while it resolves an address.
fn resolve_twice() -> Result {
    let side = Side::new()?;
    let id = CmId::create(NetNs::init()?, side.clone())?;
    let (from, to) = (Addr::v4(LEFT, 0), Addr::v4(RIGHT, 1));

    id.resolve_addr(Some(&from), &to, 2000)?;
    // The event may have come in between.
    check(id.resolve_addr(Some(&from), &to, 2000).err() == Some(EBUSY))?;
    side.wait(|seen| seen.route)
}

/// Checks that an id shows no device before its address is resolved, and resolves no other one afterwards: the CM
/// binds the id, and may release its device, without the mutex of the id.
fn no_device_before_the_address() -> Result {
    let side = Side::new()?;
    let id = CmId::create(NetNs::init()?, side.clone())?;
    let (from, to) = (Addr::v4(LEFT, 0), Addr::v4(RIGHT, 1));
    let shows_nothing = || {
        let locked = id.lock();

        check(locked.device().is_none() && locked.port() == 0)?;
        check(locked.path() == Path::UNKNOWN && locked.reachability() == Reachability::Reachable)
    };

    shows_nothing()?;
    // No host has that address.
    id.resolve_addr(Some(&from), &Addr::v4(LEFT ^ 0x80, 1), 1000)?;
    shows_nothing()?;
    check(id.resolve_addr(None, &to, 2000).err() == Some(EBUSY))?;
    side.wait(|seen| seen.failed)?;
    shows_nothing()?;
    id.resolve_addr(None, &to, 2000)?;
    side.wait(|seen| seen.route)?;
    check(id.lock().device().is_some() && id.lock().port() == 1)?;
    check(id.resolve_addr(None, &to, 2000).err() == Some(EBUSY))?;
    let device = id.lock().device();

    check(device.is_some())
}

/// Checks that a queue pair is created only for an id that is bound to the device of its protection domain.
fn unbound_id() -> Result {
    let (_acceptor, listener) = listen(PORT + 12, None)?;
    let pd = Pd::alloc(listener.device().ok_or(ENODEV)?)?;
    let regions = plenty()?;
    let on = (&pd, &regions);
    let side = Side::new()?;
    let id = CmId::create(NetNs::init()?, side.clone())?;

    check(Qp::create(&id, on, 0, &CONFIG, side.clone()).err() == Some(ENODEV))?;
    // Bound, but to the other device.
    id.resolve_addr(Some(&Addr::v4(LEFT, 0)), &Addr::v4(RIGHT, 1), 2000)?;
    side.wait(|seen| seen.route)?;
    check(Qp::create(&id, on, 0, &CONFIG, side).err() == Some(ENODEV))
}

/// Checks that an event that the driver does not know is none of those that it handles.
fn unknown_event() -> Result {
    let raw = bindings::ro2ib_cm_event {
        event: u32::MAX,
        ..Default::default()
    };
    // SAFETY: It has no private data.
    let event = unsafe { CmEvent::from_raw(&raw) };

    check(matches!(event, CmEvent::Other))
}

/// Checks that a count of too many users saturates, so that no user is ever the last one.
fn users_saturate() -> Result {
    let users = Refcount::new(1);

    users.get();
    check(!users.put() && users.put() && !users.try_get())?;
    users.resurrect();
    check(users.try_get() && !users.put() && users.put())?;

    let users = Refcount::new(u32::MAX);

    // This would make it 0.
    users.get();
    check(users.try_get())?;
    let users = Refcount::new((1 << 31) + 1);

    check(!users.put() && !users.put())?;
    check(users.try_get())
}

/// Checks that C counts a number by its highest bit, as `policy::latency` reads the rows.
fn histograms() -> Result {
    let rows = PercpuHistogram::<2>::new()?;
    for n in [0, 1, 511, 512, 1023, 1024, 1 << 40, u64::MAX] {
        rows.record(1, n);
    }
    rows.record(2, 1);
    for (word, expected) in [(8, 3), (9, 2), (10, 1), (40, 1), (63, 1)] {
        check(rows.sum(1, word) == expected)?;
    }
    let all = (1..64).map(|word| rows.sum(1, word));
    check(all.fold(0, u64::wrapping_add) == 8)?;
    let sum = (1 + 511 + 512 + 1023 + 1024 + (1u64 << 40)).wrapping_add(u64::MAX);
    check(rows.sum(1, 0) == sum)?;
    check((0..64).all(|word| rows.sum(0, word) == 0))?;
    check(rows.sum(2, 8) == 0 && rows.sum(1, 64) == 0)
}

#[kunit_tests(ro2iblnd_rdma)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_the_highest_bit() -> Result {
        histograms()
    }

    #[test]
    fn takes_no_buffer_of_another_device() -> Result {
        foreign_buffer()
    }

    #[test]
    fn makes_buffers_in_pieces() -> Result {
        buffers_in_pieces()
    }

    #[test]
    fn makes_regions_when_they_are_wanted() -> Result {
        regions_when_wanted()
    }

    #[test]
    fn moves_idle_regions() -> Result {
        regions_move()
    }

    #[test]
    fn sets_the_path_mtu() -> Result {
        path_mtu()
    }

    #[test]
    fn resolves_one_address_at_a_time() -> Result {
        resolve_twice()
    }

    #[test]
    fn shows_no_device_before_the_address_is_resolved() -> Result {
        no_device_before_the_address()
    }

    #[test]
    fn takes_no_id_of_another_device() -> Result {
        unbound_id()
    }

    #[test]
    fn unknown_cm_event_is_no_other_event() -> Result {
        unknown_event()
    }

    #[test]
    fn counts_users_without_overflow() -> Result {
        users_saturate()
    }

    #[test]
    fn sends_and_receives_in_order() -> Result {
        send_and_receive()
    }

    #[test]
    fn writes_to_a_key_until_it_is_dead() -> Result {
        write_to_a_key()
    }

    #[test]
    fn maps_lists_of_all_shapes() -> Result {
        lists()
    }

    #[test]
    fn chooses_the_pages_of_regions() -> Result {
        sizes_of_pages()
    }

    #[test]
    fn maps_memory_of_a_gpu_or_refuses_it() -> Result {
        distrusts_a_gpu()
    }

    #[test]
    fn bounces_a_sink_with_a_gap() -> Result {
        bounce()
    }

    #[test]
    fn shows_no_old_memory_in_a_bounce() -> Result {
        unwritten_bounce()
    }

    #[test]
    fn is_gone_when_dropped_without_drain() -> Result {
        drop_without_drain()
    }

    #[test]
    fn believes_nothing_of_a_queue_that_is_gone() -> Result {
        undrained()
    }

    #[test]
    fn rejects_an_unclaimed_request() -> Result {
        refuse()
    }

    #[test]
    fn failed_post_returns_its_buffer() -> Result {
        refused_post()
    }

    #[test]
    fn looks_for_the_slots_of_a_registration() -> Result {
        registration_at_the_last_slot()
    }

    #[test]
    fn knows_and_watches_its_device() -> Result {
        watch_device()
    }

    #[test]
    fn may_drop_an_id_in_its_handler() -> Result {
        drop_in_handler()
    }
}
