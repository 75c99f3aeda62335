// SPDX-License-Identifier: GPL-2.0

//! Mapping of LNet's pages for the device: for WRITEs of this node, or behind a key for WRITEs of the peer.
//!
//! Memory of a GPU is never copied. A transfer that would need a copy is rejected and logged here.
//!
//! Context: process; may sleep. The connection lock is taken briefly, to find the device and the queue pair.

use kernel::{
    prelude::*,
    sync::aref::ARef, //
};

use super::{
    rdma_sink::{
        Bounce,
        RdmaSink, //
    },
    transfer_end::Owner,
    wire::{
        buf_pool::ReserveUse,
        SinkParts, //
    },
    Conn, //
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
        owned_mapping::Mapping,
        page_frags::PageVec,
        qp::{
            MapMrError,
            Qp, //
        },
        sg::SgRef, //
    }, //
};

/// Returns whether an error is a lack of memory, or of room to map memory for the device (`EIO`): with an IOMMU, or
/// where memory bounces. A retry may succeed.
pub(super) fn is_shortage(e: Error) -> bool {
    e == ENOMEM || e == EIO
}

/// Reason why pages could not be prepared.
pub(super) enum NotReady {
    /// A resource is missing, or the memory is not suitable for a transfer.
    Here(Error),
    /// No memory region was free. It was counted.
    NoRegion(Error),
    /// The pages are a GPU's, and its provider does not map them, or the transfer needs a copy by the CPU. It was
    /// logged and counted.
    Gpu(Error),
}

impl NotReady {
    /// Returns whether a retry may succeed.
    #[cold]
    pub(super) fn is_shortage(&self) -> bool {
        matches!(self, Self::Here(e) if is_shortage(*e))
    }

    /// Returns the error for the peer and for LNet.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::Here(e) | Self::NoRegion(e) | Self::Gpu(e) => *e,
        }
    }
}

impl From<Error> for NotReady {
    fn from(e: Error) -> Self {
        Self::Here(e)
    }
}

/// Owner of pages, and the reason why they could not be prepared.
pub(super) type MapFailed<M> = (M, NotReady);

impl Conn {
    /// Maps the pages that this node's WRITEs read, for the device of the connection, if it still has one.
    pub(super) fn map_source<R: Request>(
        &self,
        device: Option<ARef<Device>>,
        msg: Message,
        req: &R,
        whose: ReserveUse,
    ) -> Result<Owner, MapFailed<Message>> {
        let Some(device) = device else {
            return Err((msg, ENODEV.into()));
        };
        let made = match self.map(device, msg, req, Direction::ToDevice) {
            Err((msg, why)) if why.is_shortage() && self.may_use_reserves() => {
                self.map_reserved(msg, req, whose)
            }
            made => made,
        };
        made.map(Owner::MappedMessage)
    }

    /// Maps them without allocating memory.
    #[cold]
    fn map_reserved<R: Request>(
        &self,
        msg: Message,
        req: &R,
        whose: ReserveUse,
    ) -> Result<Mapping<Message>, MapFailed<Message>> {
        let hca = match self.hca() {
            Ok(hca) => hca,
            Err(e) => return Err((msg, e.into())),
        };
        let (answers, messages) = &hca.reserves;
        let reserve = match whose {
            ReserveUse::Answer => answers,
            ReserveUse::Message => messages,
        };
        // The connections of the peer together are a user: a peer that stops leaves mappings to the others.
        let user = self.nid().raw();
        let map = msg.map_reserved(req, (reserve, user), Direction::ToDevice);
        self.mapped(map, req)
    }

    /// Maps the pages of a message, and counts GPU memory.
    #[inline(always)]
    fn map<R: Request>(
        &self,
        device: ARef<Device>,
        msg: Message,
        req: &R,
        direction: Direction,
    ) -> Result<Mapping<Message>, MapFailed<Message>> {
        self.mapped(msg.map(req, device, direction), req)
    }

    #[inline(always)]
    fn mapped<R: Request>(
        &self,
        map: Result<Mapping<Message>, (Message, Error)>,
        req: &R,
    ) -> Result<Mapping<Message>, MapFailed<Message>> {
        match req.pages().is_gpu() {
            false => map.map_err(|(msg, e)| (msg, NotReady::Here(e))),
            true => self.mapped_of_gpu(map),
        }
    }

    #[cold]
    #[inline(never)]
    fn mapped_of_gpu(
        &self,
        map: Result<Mapping<Message>, (Message, Error)>,
    ) -> Result<Mapping<Message>, MapFailed<Message>> {
        match map {
            Ok(map) => {
                self.ni.close_stats.gpu_mapped();
                Ok(map)
            }
            Err((msg, e)) if e == EXDEV || e == ENXIO || e == EFAULT => {
                Err((msg, self.refuse_gpu(e)))
            }
            Err((msg, e)) => Err((msg, e.into())),
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
        parts: Result<SinkParts<Self>>,
        msg: Message,
        req: &R,
    ) -> Result<(Owner, RdmaSink, Fragment, u32), MapFailed<Owner>> {
        let pages = req.pages();
        let nob = match u32::try_from(pages.nob()) {
            Ok(n) if n > 0 && n <= LNET_MTU => n,
            _ => return Err((Owner::Message(msg), EMSGSIZE.into())),
        };
        let (device, region, qp) = match parts {
            Ok(parts) => parts,
            Err(e) => return Err((Owner::Message(msg), e.into())),
        };
        let mapped = match self.map(device, msg, req, Direction::FromDevice) {
            Ok(mapped) => mapped,
            Err((msg, why)) => return Err((Owner::Message(msg), why)),
        };
        let (mr, bounce) = match self.cover(mapped.map(), region, &qp, &pages) {
            Ok(made) => made,
            Err(why) => return Err((Owner::MappedMessage(mapped), why)),
        };
        let owner = match bounce {
            None => Owner::MappedMessage(mapped),
            // The peer writes into a bounce buffer.
            Some(_) => Owner::MappedMessage(mapped).unmapped(),
        };
        let fragment = Fragment {
            nob,
            addr: mr.iova(),
        };
        let rkey = mr.rkey();
        Ok((owner, RdmaSink::new(mr, bounce), fragment, rkey))
    }

    /// Maps a memory region over mapped pages, or over a bounce buffer if one key cannot cover them.
    fn cover(
        &self,
        mapped: &SgRef,
        (mr_pages, mr_page): (u32, RegionPage),
        qp: &Qp<Self>,
        pages: &PageVec,
    ) -> Result<(Mr<Mapped>, Option<KBox<Bounce>>), NotReady> {
        let (mut map, mut bounce) = (mapped.clone(), None);
        if !map.can_register(mr_pages, mr_page) {
            let (ours, whole) = self.bounce(map.device().clone(), pages)?;
            (map, bounce) = (ours, Some(whole));
        }
        match qp.map_mr(map) {
            Ok(mr) => Ok((mr, bounce)),
            Err(MapMrError::Map(EINVAL)) if bounce.is_none() => self.bounce_after_all(qp, pages),
            Err(why) => Err(self.not_mapped(why)),
        }
    }

    /// Allocates a bounce buffer for the pages of a sink that one key cannot cover, because they have gaps.
    #[cold]
    fn bounce(
        &self,
        device: ARef<Device>,
        pages: &PageVec,
    ) -> Result<(SgRef, KBox<Bounce>), NotReady> {
        if pages.is_gpu() {
            return Err(self.refuse_gpu(ERANGE));
        }
        let buf = BounceBuf::alloc(device, pages.nob())?;
        let map = buf.map().ok_or(ENOMEM)?.clone();
        let whole = Bounce::new(buf, pages.share());
        Ok((map, KBox::new(whole, GFP_KERNEL).map_err(Error::from)?))
    }

    /// Allocates a bounce buffer for pages that have gaps only since they were mapped: the layer that copies them for
    /// the device (swiotlb) need not keep their offsets within a page. One key covers the bounce buffer all the same.
    #[cold]
    fn bounce_after_all(
        &self,
        qp: &Qp<Self>,
        pages: &PageVec,
    ) -> Result<(Mr<Mapped>, Option<KBox<Bounce>>), NotReady> {
        let device = self.with(|inner| inner.wire.device());
        let device = device.ok_or(NotReady::Here(ENODEV))?;
        let (map, whole) = self.bounce(device, pages)?;
        match qp.map_mr(map) {
            Ok(mr) => Ok((mr, Some(whole))),
            Err(why) => Err(self.not_mapped(why)),
        }
    }

    #[cold]
    fn not_mapped(&self, why: MapMrError) -> NotReady {
        match why {
            MapMrError::NoRegion(e) => self.no_region(e),
            MapMrError::Map(e) => NotReady::Here(e),
        }
    }

    /// Counts that there is no region, unless the reason is that the connection is closed.
    #[cold]
    fn no_region(&self, e: Error) -> NotReady {
        if self.with(|inner| inner.state.is_up()) {
            self.ni.close_stats.no_region();
        }
        NotReady::NoRegion(e)
    }

    /// Frees a sink whose key the peer does not know.
    pub(super) fn drop_sink(&self, sink: RdmaSink) {
        let qp = self.with(|inner| inner.wire.qp());
        if let (Some(mr), Some(qp)) = (sink.into_unregistered(), qp) {
            qp.unmap_mr(mr);
        }
    }
}
