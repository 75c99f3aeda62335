// SPDX-License-Identifier: GPL-2.0

//! Mapping of LNet's pages for the device: for WRITEs of this node, or behind a key for WRITEs of the peer.
//!
//! Memory of a GPU is never copied. A transfer that would need a copy is rejected and logged here.
//!
//! Context: process; may sleep. The connection lock is taken briefly, to find the device and the queue pair.

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
    tx_payload::{
        Owner,
        RdmaSink,
        SinkKey, //
    },
    Conn,
    Inner, //
};
use crate::{
    lnd::log,
    lnet::{
        Message,
        Request, //
    },
    proto::{
        constants::LNET_MTU,
        wire::Fragment, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::Direction,
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
        sg::SgRef, //
    }, //
};

/// Resources for a sink: the device, the number and size of pages that one region covers, and the queue pair.
type SinkParts = (ARef<Device>, (u32, RegionPage), Arc<Qp<Conn>>);

/// Message whose pages could not be prepared, and the reason. `None`: the message was lost, which was reported.
pub(super) type MapFailed = (Option<Message>, NotReady);

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
        if !qp.has_idle_mr() {
            return Err((Some(msg), self.no_region()));
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
