// SPDX-License-Identifier: GPL-2.0

//! LNet's pages, made ready for a device: mapped for WRITEs of ours, or behind a key for those of the peer.
//!
//! Memory of a GPU is never copied. What would need that is refused here, and said.
//!
//! Context: process; may sleep. The connection lock is taken briefly, to find the device and the queue pair.

use kernel::{
    prelude::*,
    sync::aref::ARef, //
};

use super::{
    sink::{
        Bounce,
        Sink, //
    },
    wire::{
        stock::For,
        ForSink, //
    },
    Conn, //
};
use crate::{
    lnd::log,
    proto::{
        params::LNET_MTU,
        wire::Fragment, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::Direction,
        device::Device,
        mr::{
            Free,
            Mapped,
            Mr, //
        },
        pages::PageVec,
        qp::Qp,
        sg::{
            SgMap,
            SgRef, //
        }, //
    }, //
};

/// Why pages could not be made ready.
pub(super) enum NotReady {
    /// For want of something, or it is no memory for a transfer.
    Here(Error),
    /// For want of a memory region. It was counted.
    NoRegion(Error),
    /// They are a GPU's, and who has it does not map them, or only the CPU could do what is asked. It was
    /// said and counted.
    Gpu(Error),
}

impl NotReady {
    /// Tells whether there was no memory, so that another try may succeed.
    #[cold]
    pub(super) fn is_no_memory(&self) -> bool {
        matches!(self, Self::Here(ENOMEM))
    }

    /// For the peer and for LNet.
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

impl Conn {
    /// Maps the pages that our WRITEs read, for the device of the connection, if it has one still.
    pub(super) fn map_source(
        &self,
        device: Option<ARef<Device>>,
        pages: &PageVec,
        whose: For,
    ) -> Result<SgRef, NotReady> {
        match self.map(device.ok_or(ENODEV)?, pages, Direction::ToDevice) {
            Err(why) if why.is_no_memory() && self.may_use_reserves() => {
                self.map_reserved(pages, whose)
            }
            made => made,
        }
    }

    /// Maps them without allocating memory.
    #[cold]
    fn map_reserved(&self, pages: &PageVec, whose: For) -> Result<SgRef, NotReady> {
        let hca = self.hca()?;
        let (answers, messages) = &hca.reserves;
        let reserve = match whose {
            For::Answer => answers,
            For::Message => messages,
        };
        let map = SgMap::map_reserved(reserve, pages, Direction::ToDevice);
        match pages.is_gpu() {
            false => map.map_err(NotReady::Here),
            true => self.mapped_of_gpu(map),
        }
    }

    /// Maps pages, and counts what is a GPU's.
    #[inline(always)]
    fn map(
        &self,
        device: ARef<Device>,
        pages: &PageVec,
        direction: Direction,
    ) -> Result<SgRef, NotReady> {
        let map = SgMap::map(device, pages, direction);
        match pages.is_gpu() {
            false => map.map_err(NotReady::Here),
            true => self.mapped_of_gpu(map),
        }
    }

    #[cold]
    #[inline(never)]
    fn mapped_of_gpu(&self, map: Result<SgRef>) -> Result<SgRef, NotReady> {
        match map {
            Ok(map) => {
                self.ni.seen.gpu_mapped();
                Ok(map)
            }
            Err(e) if e == EXDEV || e == ENXIO || e == EFAULT => Err(self.refuse_gpu(e)),
            Err(e) => Err(e.into()),
        }
    }

    /// Says and counts that memory of a GPU cannot be used.
    #[cold]
    pub(super) fn refuse_gpu(&self, e: Error) -> NotReady {
        self.ni.seen.gpu_refused();
        log::gpu_refused(self.nid(), e);
        NotReady::Gpu(e)
    }

    /// Maps the pages that the peer's WRITEs go to, behind a key of their own: the sink, its only
    /// fragment, and the key. `parts` are what the connection has for it.
    pub(super) fn make_sink(
        &self,
        parts: Result<ForSink<Self>>,
        pages: &PageVec,
    ) -> Result<(Sink, Fragment, u32), NotReady> {
        let nob = match u32::try_from(pages.nob()) {
            Ok(n) if n > 0 && n <= LNET_MTU => n,
            _ => return Err(EMSGSIZE.into()),
        };
        let (device, (mr_pages, mr_page), qp) = parts?;
        let mut map = self.map(device, pages, Direction::FromDevice)?;
        let mut bounce = None;
        if !map.can_register(mr_pages, mr_page) {
            let (ours, whole) = self.bounce(map.device().clone(), pages)?;
            (map, bounce) = (ours, Some(whole));
        }
        let mr = qp.take_mr().map_err(|e| self.no_region(e))?;
        let (mr, bounce) = match qp.map_mr(mr, map) {
            Ok(mr) => (mr, bounce),
            Err((mr, EINVAL)) if bounce.is_none() => self.bounce_after_all(&qp, mr, pages)?,
            Err((mr, e)) => {
                qp.put_mr(mr);
                return Err(e.into());
            }
        };
        let fragment = Fragment {
            nob,
            addr: mr.iova(),
        };
        let rkey = mr.rkey();
        Ok((Sink::new(mr, bounce), fragment, rkey))
    }

    /// Pages of ours for those of a sink that one key cannot cover, for they have gaps.
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

    /// The pages had no gaps before they were mapped, and have some since: what copies them for the device
    /// (swiotlb) need not keep where in a page they begin. One key covers pages of ours all the same.
    #[cold]
    fn bounce_after_all(
        &self,
        qp: &Qp<Self>,
        mr: Mr<Free>,
        pages: &PageVec,
    ) -> Result<(Mr<Mapped>, Option<KBox<Bounce>>), NotReady> {
        let device = self.with(|inner| inner.wire.device());
        let made = device.ok_or(NotReady::Here(ENODEV));
        let (map, whole) = match made.and_then(|device| self.bounce(device, pages)) {
            Ok(made) => made,
            Err(why) => {
                qp.put_mr(mr);
                return Err(why);
            }
        };
        match qp.map_mr(mr, map) {
            Ok(mr) => Ok((mr, Some(whole))),
            Err((mr, e)) => {
                qp.put_mr(mr);
                Err(e.into())
            }
        }
    }

    /// Counts that there is no region, unless that is because the connection is over.
    #[cold]
    fn no_region(&self, e: Error) -> NotReady {
        if self.with(|inner| inner.life.is_up()) {
            self.ni.seen.no_region();
        }
        NotReady::NoRegion(e)
    }

    /// Gives a sink up whose key nobody was told.
    pub(super) fn drop_sink(&self, sink: Sink) {
        let qp = self.with(|inner| inner.wire.qp());
        if let (Some(mr), Some(qp)) = (sink.into_unregistered(), qp) {
            qp.put_mr(qp.unmap_mr(mr));
        }
    }
}
