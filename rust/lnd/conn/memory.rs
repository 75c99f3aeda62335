// SPDX-License-Identifier: GPL-2.0

//! LNet's pages, made ready for a device: mapped for WRITEs of ours, or behind a key for those of the peer.
//!
//! Context: process; may sleep. The connection lock is taken briefly, to find the device and the queue pair.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    sink::{
        Bounce,
        Sink, //
    },
    Conn, //
};
use crate::{
    proto::{
        params::LNET_MTU,
        wire::Fragment, //
    },
    rdma::{
        bounce::BounceBuf,
        buf::Direction,
        pages::PageVec,
        sg::SgMap, //
    }, //
};

impl Conn {
    /// Maps the pages that our WRITEs read.
    pub(super) fn map_source(&self, pages: &PageVec) -> Result<Arc<SgMap>> {
        SgMap::map(self.hca()?.device.clone(), pages, Direction::ToDevice)
    }

    /// Maps the pages that the peer's WRITEs go to, behind a key of their own: the sink, its only
    /// fragment, and the key.
    pub(super) fn make_sink(&self, pages: &PageVec) -> Result<(Sink, Fragment, u32)> {
        let nob = match u32::try_from(pages.nob()) {
            Ok(n) if n > 0 && n <= LNET_MTU => n,
            _ => return Err(EMSGSIZE),
        };
        let hca = self.hca()?;
        let device = &hca.device;
        let mut map = SgMap::map(device.clone(), pages, Direction::FromDevice)?;
        let mut bounce = None;
        if !map.can_register(hca.mr_pages) {
            // One key cannot cover pages with gaps.
            let buf = BounceBuf::alloc(device.clone(), pages.nob())?;
            map = buf.map().ok_or(ENOMEM)?.clone();
            bounce = Some(KBox::new(Bounce::new(buf, pages.share()), GFP_KERNEL)?);
        }
        let qp = self.with(|inner| inner.wire.qp()).ok_or(ENOTCONN)?;
        let mr = qp.take_mr()?;
        let mr = match qp.map_mr(mr, map) {
            Ok(mr) => mr,
            Err((mr, e)) => {
                qp.put_mr(mr);
                return Err(e);
            }
        };
        let fragment = Fragment {
            nob,
            addr: mr.iova(),
        };
        let rkey = mr.rkey();
        Ok((Sink::new(mr, bounce), fragment, rkey))
    }

    /// Gives a sink up whose key nobody was told.
    pub(super) fn drop_sink(&self, sink: Sink) {
        let qp = self.with(|inner| inner.wire.qp());
        if let (Some(mr), Some(qp)) = (sink.into_unregistered(), qp) {
            qp.put_mr(qp.unmap_mr(mr));
        }
    }
}
