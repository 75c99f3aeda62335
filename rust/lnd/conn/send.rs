// SPDX-License-Identifier: GPL-2.0

//! Transmits for messages of LNet and for answers: their resources, build and submission; and the mapping of LNet's
//! pages for the device: for WRITEs of this node, or behind a key for WRITEs of the peer.
//!
//! Buffers, mappings and memory regions are made first, without a lock; then the message is built and queued under the
//! connection lock, and posted if credits allow ([`Conn::submit`]).
//!
//! The memory allocation scope is entered only where memory is allocated: a message that is copied needs none. A
//! transfer that would need a copy of a GPU's memory is rejected and logged here.
//!
//! Context: process; may sleep; re-entrant, because LNet sends from inside `lnet_finalize`.

use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    buf_pool::ReserveUse,
    no_memory::{
        is_shortage,
        NotReady, //
    },
    rx::Rx,
    tx_payload::{
        new_slots,
        Owner,
        RdmaSink,
        SinkKey,
        TxPayload,
        GROW_BY, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::{
        log,
        peer::NotSent,
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        Request,
        SendRequest, //
    },
    proto::{
        cause::{
            Cause,
            Health, //
        },
        constants::{
            IMMEDIATE_HEAD,
            LNET_MTU, //
        },
        credits::Repost,
        lnet_hdr,
        tx_state::Op,
        wire::{
            BodyOut,
            Cookie,
            DescriptorOut,
            Fragment,
            MsgType, //
        }, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::{
            Direction,
            TxBuf, //
        },
        device::{
            Device,
            RegionPage, //
        },
        mr::{
            Mapped,
            Mr, //
        },
        page_frags::PageVec,
        qp::Qp,
        sg::SgRef,
        work::NofsScope, //
    }, //
};

/// Result of a send: whether the connection took the message.
type Sent = Result<(), NotSent>;

/// Request that a transmit answers, until its buffer is posted again, and the meaning of the repost for the peer.
pub(super) type Answered = Option<(KBox<Rx<Conn>>, Repost)>;

/// Queues a message of LNet on a connection, and posts what may go. May sleep; re-entrant.
pub(super) fn send(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let pages = req.pages();
    let nob = u32::try_from(pages.nob()).unwrap_or(u32::MAX);
    let method = req
        .kind()
        .and_then(|kind| lnet_hdr::choose(kind, req.is_routed(), nob, pages.is_gpu()));
    match method {
        Some(MsgType::Immediate) => send_immediate(conn, msg, req),
        Some(MsgType::PutReq) => send_put(conn, msg, req, nob),
        Some(MsgType::GetReq) => send_get(conn, msg, req),
        _ => unsent(conn, Some(msg), req, EINVAL.into()),
    }
}

/// Handles a message that could not be prepared, or did not become a transmit.
#[cold]
#[inline(never)]
fn unsent(conn: &Arc<Conn>, msg: Option<Message>, req: &SendRequest, why: NotReady) -> Sent {
    // A lost message was reported already.
    let Some(msg) = msg else {
        return Ok(());
    };
    let (msg, ends) = match why {
        NotReady::Short(_) | NotReady::NoneIdle => {
            conn.count_shortage(&why);
            match conn.keep_message(msg, req, &why) {
                Ok(()) => return Ok(()),
                Err(msg) => (msg, Ok(why.cause())),
            }
        }
        // The NI is not at fault, and a retry would not help.
        NotReady::Gpu(e) => {
            msg.finalize(e.to_errno(), Health::Ok);
            return Ok(());
        }
        NotReady::NoRegion(e) => {
            conn.count_shortage(&why);
            let passes = e == ENOBUFS || is_shortage(e);
            (msg, if passes { Ok(why.cause()) } else { Err(e) })
        }
        NotReady::Here(e) => (msg, Err(e)),
        NotReady::Lost(cause) => (msg, Ok(cause)),
    };
    if conn.with(|inner| !inner.state.is_up()) {
        // Another connection may take it.
        return Err(NotSent::Closed(msg));
    }
    Err(match ends {
        Ok(cause) => NotSent::Lost(msg, cause),
        Err(e) => NotSent::Failed(msg, e),
    })
}

/// Handles a transfer that did not become a transmit.
#[cold]
#[inline(never)]
fn not_submitted(conn: &Arc<Conn>, transfer: TxPayload, req: &SendRequest, why: NotReady) -> Sent {
    let mut transfer = transfer;
    match transfer.unmap_message() {
        Some(msg) => unsent(conn, Some(msg), req, why),
        // A GET whose REPLY exists.
        None => {
            if let NotReady::Short(_) = why {
                conn.count_shortage(&why);
            }
            conn.give_up(transfer, why.cause());
            Ok(())
        }
    }
}

// Separate functions, so that no kind of message saves registers for another kind.
#[inline(never)]
fn send_immediate(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let payload = req.payload();
    let body = BodyOut::Immediate {
        hdr: req.hdr(),
        payload: payload.nob(),
    };
    let what = |now| TxPayload::new(Some(msg.into()), now);
    let with = (None, Some(&payload));
    conn.submit((Op::Immediate, 1), what, with, &mut None, |_| body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}

/// Takes the objects that a transfer needs, by `parts`, and a message buffer, when there is a place for the transmit.
fn prepare<T>(conn: &Conn, parts: impl FnOnce(&Inner) -> T) -> Result<(T, TxBuf), NotReady> {
    let (parts, has_place, buf) =
        conn.with(|inner| match (inner.state.is_up(), inner.txs.has_free()) {
            (true, true) => Ok((parts(inner), true, inner.buf_pool.take())),
            (true, false) => Ok((parts(inner), false, None)),
            (false, _) => Err(NotReady::Lost(inner.state.end_cause())),
        })?;
    if !has_place {
        conn.grow()?;
    }
    let buf = buf.map_or_else(|| conn.make_buf(ReserveUse::Message), Ok)?;
    Ok((parts, buf))
}

#[inline(never)]
fn send_put(conn: &Arc<Conn>, msg: Message, req: &SendRequest, total: u32) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    if total > LNET_MTU {
        return unsent(conn, Some(msg), req, EMSGSIZE.into());
    }
    let (device, spare) = match prepare(conn, Inner::device) {
        Ok(made) => made,
        Err(why) => return unsent(conn, Some(msg), req, why),
    };
    let owner = match conn.map_source(device, msg, req, ReserveUse::Message) {
        Ok(owner) => owner,
        Err((msg, why)) => {
            conn.undo([Some(spare), None], None);
            return unsent(conn, msg, req, why);
        }
    };
    let what = |now| TxPayload {
        total,
        spare: Some(spare),
        ..TxPayload::new(Some(owner), now)
    };
    let body = |cookie| BodyOut::PutReq { hdr, cookie };
    conn.submit((Op::PutReq, 1), what, (None, None), &mut None, body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}

#[inline(never)]
fn send_get(conn: &Arc<Conn>, msg: Message, req: &SendRequest) -> Sent {
    let _nofs = NofsScope::enter();
    let hdr = req.hdr();
    // The buffer and the place, too, before LNet creates a reply, which it does once.
    let (parts, buf) = match prepare(conn, Inner::for_sink) {
        Ok(made) => made,
        Err(why) => return unsent(conn, Some(msg), req, why),
    };
    let (mut owner, sink, fragment, key) = match conn.make_sink(parts, msg, req) {
        Ok(made) => made,
        Err((msg, why)) => {
            conn.undo([Some(buf), None], None);
            return unsent(conn, msg, req, why);
        }
    };
    if !owner.create_reply(&conn.ni.lnet) {
        conn.undo([Some(buf), None], Some(sink));
        // A message that LNet resends has used up its MD with the first reply (2.17): a retry would not help, and no NI
        // is at fault.
        let status = EIO.to_errno();
        conn.ni.close_stats.messages(Cause::Local(status), 1);
        owner.finalize(status, Health::Ok, 0);
        return Ok(());
    }
    let what = |now| TxPayload {
        total: fragment.nob,
        sink: Some(sink),
        ..TxPayload::new(Some(owner), now)
    };
    let body = |cookie| BodyOut::GetReq {
        hdr,
        cookie,
        rd: DescriptorOut {
            key,
            frags: core::slice::from_ref(&fragment),
        },
    };
    conn.submit((Op::GetReq, 1), what, (Some(buf), None), &mut None, body)
        .or_else(|(transfer, why)| not_submitted(conn, transfer, req, why))
}

impl Conn {
    /// Finalizes a transfer that was never posted, and counts it. Process context, no lock held.
    pub(super) fn give_up(&self, unsent: TxPayload, cause: Cause) {
        let mut unsent = unsent;
        self.ni.close_stats.messages(cause, unsent.messages());
        unsent.finish(Some(cause), false);
    }

    /// Gives back the message buffers of a transfer that is not queued, and frees its sink, whose key the peer does not
    /// know.
    #[cold]
    #[inline(never)]
    pub(super) fn undo(&self, bufs: [Option<TxBuf>; 2], sink: Option<RdmaSink>) {
        let qp = self.with(|inner| {
            if inner.state.is_up() {
                let bufs = bufs.into_iter().flatten();
                bufs.for_each(|buf| inner.buf_pool.put(buf));
            }
            inner.qp()
        });
        if let (Some(SinkKey::Mapped(mr)), Some(qp)) = (sink.map(|sink| sink.key), qp) {
            qp.unmap_mr(mr);
        }
    }

    /// Builds the message of a transmit, queues it, and posts the transmits that may be sent. `what` creates the
    /// transfer, which may begin now; it takes `slots` work requests, not counting those of a registration. `buf` may
    /// be a message buffer. Copies `payload` into the message ([`copy_payload`]). Posts the buffer of the request that
    /// it answers again, in front of it.
    ///
    /// # Errors
    ///
    /// Returns the transfer with its messages alone, see [`Conn::undo`]. If there is no memory, the request stays in
    /// its place.
    // There may be no memory for a box.
    #[expect(clippy::result_large_err)]
    #[inline(always)]
    pub(super) fn submit<'a>(
        self: &Arc<Self>,
        (op, slots): (Op, u16),
        what: impl FnOnce(Timestamp) -> TxPayload,
        (buf, payload): (Option<TxBuf>, Option<&PageVec>),
        answered: &mut Answered,
        body: impl FnOnce(Cookie) -> BodyOut<'a>,
    ) -> Result<(), (TxPayload, NotReady)> {
        let mut had = buf;
        let (what, why) = 'unsent: {
            let (mut guard, mut buf) = loop {
                let mut guard = self.inner.lock();
                let inner = &mut *guard;
                if !inner.state.is_up() {
                    break 'unsent (what, NotReady::Lost(inner.state.end_cause()));
                }
                let Some(buf) = had.take().or_else(|| inner.buf_pool.take()) else {
                    drop(guard);
                    let whose = match op {
                        Op::PutAck | Op::PutNak | Op::GetDone => ReserveUse::Answer,
                        _ => ReserveUse::Message,
                    };
                    match self.make_buf(whose) {
                        Ok(buf) => had = Some(buf),
                        Err(e) => break 'unsent (what, e.into()),
                    }
                    continue;
                };
                if inner.txs.has_free() {
                    break (guard, buf);
                }
                had = Some(buf);
                drop(guard);
                if let Err(why) = self.grow() {
                    break 'unsent (what, why);
                }
            };
            let inner = &mut *guard;
            if let Some(Err(e)) = payload.map(|payload| copy_payload(&mut buf, payload)) {
                had = Some(buf);
                break 'unsent (what, NotReady::Lost(Cause::Local(e.to_errno())));
            }
            let now = Timestamp::now();
            if let Some((rx, how)) = answered.take() {
                if let Err(cause) = self.post_again(inner, rx, how, now) {
                    break 'unsent (what, NotReady::Lost(cause));
                }
            }
            let slots = match op {
                Op::GetReq | Op::PutAck => inner.reg_and_send,
                _ => slots,
            };
            let built = self.build(inner, (op, slots), what, buf, body, now);
            if let Err((what, cause)) = built {
                break 'unsent (what, NotReady::Lost(cause));
            }
            if inner.liveness.begin() {
                if let Some(probe) = self.ni.probe() {
                    self.schedule_check(inner, probe.ms());
                }
            }
            return Ok(());
        };
        let mut transfer = what(Timestamp::now());
        self.undo([had, transfer.spare.take()], transfer.sink.take());
        Err((transfer, why))
    }

    /// Allocates a message buffer, if none is free, or takes one out of the reserve. Process context.
    #[cold]
    #[inline(never)]
    pub(super) fn make_buf(&self, whose: ReserveUse) -> Result<TxBuf> {
        match TxBuf::alloc(&self.hca()?.device) {
            Err(e) if is_shortage(e) && self.may_use_reserves() => {
                self.with(|inner| inner.buf_pool.take_reserved(whose).ok_or(e))
            }
            made => made,
        }
    }

    /// Creates more transmits, without waiting for memory. Process context.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&self) -> Result<(), NotReady> {
        let have = self.with(|inner| inner.txs.nr_slots());
        let want = have.saturating_add(GROW_BY.max(have / 2));
        let want = want.min(usize::from(u16::MAX));
        if want <= have {
            log::cannot(self.nid(), "make room for a message", ENOSPC);
            return Err(NotReady::Lost(Cause::NoResources));
        }
        // Reclaim may wait for the message that needs a slot.
        let mut bigger = new_slots(want, GFP_NOWAIT | __GFP_NOWARN)?;
        // The old tables are freed without the lock.
        self.with(|inner| inner.txs.grow(&mut bigger));
        Ok(())
    }
}

/// Copies the payload of an IMMEDIATE into a message buffer, behind its head: at most 3976 bytes. A copy is cheaper
/// than a mapping, works for pages of any shape, and is covered by the checksum. The caller holds the connection lock.
#[inline(always)]
fn copy_payload(buf: &mut TxBuf, payload: &PageVec) -> Result {
    if payload.nob() == 0 {
        return Ok(());
    }
    let end = IMMEDIATE_HEAD.checked_add(payload.nob()).ok_or(EMSGSIZE)?;
    let to = buf
        .as_mut_slice()
        .get_mut(IMMEDIATE_HEAD..end)
        .ok_or(EMSGSIZE)?;
    payload.copy_to_slice(0, to)
}

/// Resources for a sink: the device, the number and size of pages that one region covers, and the queue pair.
type SinkParts = (ARef<Device>, (u32, RegionPage), Arc<Qp<Conn>>);

/// Message whose pages could not be prepared, and the reason. `None`: the message was lost, which was reported.
type MapFailed = (Option<Message>, NotReady);

impl Inner {
    /// Returns the device that LNet's pages are mapped for.
    pub(super) fn device(&self) -> Option<ARef<Device>> {
        self.hca.as_ref().map(|hca| hca.device.clone())
    }

    /// Returns the resources for a sink.
    ///
    /// # Errors
    ///
    /// `ENODEV` or `ENOTCONN`: they were released.
    pub(super) fn for_sink(&self) -> Result<SinkParts> {
        let hca = self.hca.as_ref().ok_or(ENODEV)?;
        let link = self.link.as_ref().ok_or(ENOTCONN)?;
        let region = (hca.mr_pages, hca.mr_page);
        Ok((hca.device.clone(), region, link.qp().clone()))
    }
}

impl Conn {
    /// Maps the pages that this node's WRITEs read, for the device of the connection, if it still has one.
    pub(super) fn map_source<R: Request>(
        &self,
        device: Option<ARef<Device>>,
        msg: Message,
        req: &R,
        whose: ReserveUse,
    ) -> Result<Owner, MapFailed> {
        let made = match device {
            Some(device) => msg.map(req, device, Direction::ToDevice),
            None => Err((msg, ENODEV)),
        };
        let made = match made {
            Err((msg, e)) if is_shortage(e) && self.may_use_reserves() => {
                self.map_reserved(msg, req, whose)
            }
            made => made,
        };
        self.mapped(made, req.pages().is_gpu())
    }

    /// Maps them without allocating memory.
    #[cold]
    fn map_reserved<R: Request>(
        &self,
        msg: Message,
        req: &R,
        whose: ReserveUse,
    ) -> Result<Owner, (Message, Error)> {
        let hca = match self.hca() {
            Ok(hca) => hca,
            Err(e) => return Err((msg, e)),
        };
        let (answers, messages) = &hca.reserves;
        let reserve = match whose {
            ReserveUse::Answer => answers,
            ReserveUse::Message => messages,
        };
        // The connections of the peer together are a user: a peer that stops leaves mappings to the others.
        msg.map_reserved(req, (reserve, self.nid().raw()), Direction::ToDevice)
    }

    /// Counts mapped memory of a GPU, and says why pages were not mapped.
    #[inline(always)]
    fn mapped(
        &self,
        made: Result<Owner, (Message, Error)>,
        is_gpu: bool,
    ) -> Result<Owner, MapFailed> {
        match made {
            Ok(owner) => {
                if is_gpu {
                    self.ni.close_stats.gpu_mapped();
                }
                Ok(owner)
            }
            Err((msg, e)) if is_gpu && [EXDEV, ENXIO, EFAULT].contains(&e) => {
                Err((Some(msg), self.refuse_gpu(e)))
            }
            Err((msg, e)) => Err((Some(msg), e.into())),
        }
    }

    /// Logs and counts that memory of a GPU cannot be used.
    #[cold]
    pub(super) fn refuse_gpu(&self, e: Error) -> NotReady {
        self.ni.close_stats.gpu_refused();
        log::gpu_refused(self.nid(), e);
        NotReady::Gpu(e)
    }

    /// Maps the pages of a message that the peer's WRITEs go to, behind a key of their own. Returns the message, the
    /// sink, its only fragment, and the key. `parts` are the connection's resources for it.
    pub(super) fn make_sink<R: Request>(
        &self,
        parts: Result<SinkParts>,
        msg: Message,
        req: &R,
    ) -> Result<(Owner, RdmaSink, Fragment, u32), MapFailed> {
        let pages = req.pages();
        let nob = match u32::try_from(pages.nob()) {
            Ok(n) if n > 0 && n <= LNET_MTU => n,
            _ => return Err((Some(msg), EMSGSIZE.into())),
        };
        let (device, region, qp) = match parts {
            Ok(parts) => parts,
            Err(e) => return Err((Some(msg), e.into())),
        };
        // To map pages is expensive, and a transfer that waits for a region asks again and again.
        if !qp.has_idle_mr() && self.adds_regions() {
            return Err((Some(msg), NotReady::NoneIdle));
        }
        let made = msg.map(req, device, Direction::FromDevice);
        let owner = self.mapped(made, pages.is_gpu())?;
        let covered = match owner.map() {
            Some(map) => self.cover(map, region, &qp, &pages),
            None => Err(EINVAL.into()),
        };
        let (mr, bounce) = match covered {
            Ok(made) => made,
            Err(why) => return Err((owner.into_message(), why)),
        };
        let owner = match bounce {
            None => owner,
            // The peer writes into a bounce buffer. A copy for the device (swiotlb) must not come back behind the data.
            Some(_) => match owner.into_message() {
                Some(msg) => msg.into(),
                None => {
                    qp.unmap_mr(mr);
                    return Err((None, EBUSY.into()));
                }
            },
        };
        let fragment = Fragment {
            nob,
            addr: mr.iova(),
        };
        let rkey = mr.rkey();
        let key = SinkKey::Mapped(mr);
        Ok((owner, RdmaSink { key, bounce }, fragment, rkey))
    }

    /// Maps a memory region over mapped pages, or over a bounce buffer if one key cannot cover them.
    fn cover(
        &self,
        map: &SgRef,
        (mr_pages, mr_page): (u32, RegionPage),
        qp: &Qp<Self>,
        pages: &PageVec,
    ) -> Result<(Mr<Mapped>, Option<KBox<BounceBuf>>), NotReady> {
        if map.can_register(mr_pages, mr_page) {
            match qp.map_mr(map.clone()) {
                // They have gaps only since they were mapped: the layer that copies them for the device (swiotlb) need
                // not keep their offsets within a page. One key covers the bounce buffer all the same.
                Err(EINVAL) => {}
                made => return Ok((made?.ok_or_else(|| self.no_region())?, None)),
            }
        }
        self.bounce(map.device().clone(), qp, pages)
    }

    /// Maps a memory region over a bounce buffer for pages that have gaps.
    #[cold]
    fn bounce(
        &self,
        device: ARef<Device>,
        qp: &Qp<Self>,
        pages: &PageVec,
    ) -> Result<(Mr<Mapped>, Option<KBox<BounceBuf>>), NotReady> {
        if pages.is_gpu() {
            return Err(self.refuse_gpu(ERANGE));
        }
        let buf = KBox::new(
            BounceBuf::alloc(device, pages.share())?,
            GFP_NOWAIT | __GFP_NOWARN,
        )
        .map_err(Error::from)?;
        let map = buf.map().ok_or(ENOMEM)?.clone();
        let mr = qp.map_mr(map)?.ok_or_else(|| self.no_region())?;
        Ok((mr, Some(buf)))
    }
}
