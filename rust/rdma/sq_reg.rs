// SPDX-License-Identifier: GPL-2.0

//! Registration and invalidation of memory regions in the send queue: the life of a key.
//!
//! The types of [`super::mr`] are the states of a region. Any context except hard interrupts, as all of the
//! [`SendQueue`].

use kernel::ffi;

use super::{
    batch::{
        AnyWr,
        PushError, //
    },
    mr::{
        Mapped,
        Mr,
        Valid, //
    },
    qp::Qp,
    qp_handler::QpHandler,
    send_ring::{
        Resources,
        WrMemory, //
    },
    sq::{
        signal,
        SendQueue, //
    }, //
};
use crate::bindings;

impl SendQueue {
    /// Pushes the registration that makes the key of `mr` valid for writes of the
    /// other side: [`Qp::wrs_per_reg`] work requests, all or none of them.
    ///
    /// On rxe a LOCAL_INV of the region's last key, which is dead, goes first. When rxe retransmits unacknowledged
    /// requests, it executes the local work requests behind them again, finds a region that is already registered, and
    /// breaks the QP. But rxe begins a LOCAL_INV only when all work requests before it are complete. So this LOCAL_INV
    /// and the registration behind it are first in the queue, and done before there is anything to retransmit.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the token comes back.
    // It has one caller, which requests no completion.
    #[inline(always)]
    pub(crate) fn push_reg<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        mr: Mr<Mapped>,
        signaled: bool,
    ) -> Result<Mr<Valid>, (PushError, Mr<Mapped>)> {
        if let Err(e) = self.check(qp, qp.wrs_per_reg().into()) {
            return Err((e, mr));
        }
        if !self.is_of(mr.qp_id()) {
            return Err((PushError::Foreign, mr));
        }
        let Some(parts) = qp.mr_pool().register(mr.index(), mr.rkey()) else {
            return Err((PushError::Closed, mr));
        };

        let set_reg = |wr: &mut AnyWr| {
            // SAFETY: Whatever was there, these are integers and a pointer.
            let reg = unsafe { &mut wr.reg };

            reg.mr = parts.mr;
            reg.key = parts.key;
            reg.access = (bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE)
                as ffi::c_int;
        };

        if qp.reg_needs_fence() {
            // SAFETY: It was checked above.
            unsafe {
                self.push(
                    qp,
                    0,
                    bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
                    0,
                    Resources {
                        ctx,
                        ..Default::default()
                    },
                    |wr| set_invalidate(wr, parts.device_rkey),
                )
            };
        }
        // SAFETY: It was checked above.
        unsafe {
            self.push(
                qp,
                0,
                bindings::ib_wr_opcode_IB_WR_REG_MR,
                signal(signaled),
                Resources {
                    ctx,
                    ..Default::default()
                },
                set_reg,
            )
        };
        Ok(mr.into_valid())
    }

    /// Pushes the invalidation of the key of `mr`. Always signalled: when its completion is reported as a success
    /// ([`super::wc_dispatch`]), the key is dead, the region does not map the memory any more, and the region is free
    /// again. After a failure this holds when the regions are destroyed.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the token comes back.
    // As the one above.
    #[inline(always)]
    pub(crate) fn push_inv<T: QpHandler>(
        &mut self,
        qp: &Qp<T>,
        ctx: u32,
        mr: Mr<Valid>,
    ) -> Result<(), (PushError, Mr<Valid>)> {
        if let Err(e) = self.check(qp, 1) {
            return Err((e, mr));
        }
        if !self.is_of(mr.qp_id()) {
            return Err((PushError::Foreign, mr));
        }
        // SAFETY: It was checked above.
        unsafe {
            self.push(
                qp,
                0,
                bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
                signal(true),
                Resources {
                    ctx,
                    buf: None,
                    memory: WrMemory::Invalidates(mr.index()),
                },
                |wr| set_invalidate(wr, mr.rkey()),
            )
        };
        Ok(())
    }
}

fn set_invalidate(wr: &mut AnyWr, rkey: u32) {
    // SAFETY: All members of the union begin with an `ib_send_wr`.
    let send = unsafe { &mut wr.send };

    send.ex.invalidate_rkey = rkey;
}
