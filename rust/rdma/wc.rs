// SPDX-License-Identifier: GPL-2.0

//! Outcome of work requests, and events of a QP.

#[cfg(ro2iblnd_test_hooks)]
use kernel::ffi;

use crate::bindings;

/// The status of a work completion (`enum ib_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WcStatus {
    /// Done.
    Success,
    /// A local buffer has the wrong length.
    LocLen,
    /// The work request makes no sense to the QP.
    LocQpOp,
    /// A local buffer is not covered by its key.
    LocProt,
    /// Not executed, because the QP is in the error state.
    Flush,
    /// The answer could not be understood.
    BadResp,
    /// The QP may not access this local buffer.
    LocAccess,
    /// The other side says that the request is invalid.
    RemInvReq,
    /// The other side says that its memory may not be accessed with this key.
    RemAccess,
    /// The other side failed.
    RemOp,
    /// No acknowledgement, after all retries.
    RetryExc,
    /// The other side had no receive buffer, after all retries.
    RnrRetryExc,
    /// The other side gave up the operation.
    RemAbort,
    /// The device is broken.
    Fatal,
    /// No response in time.
    RespTimeout,
    /// An error of no kind above.
    General,
    /// Any other status: its number.
    Other(u32),
}

impl WcStatus {
    #[inline]
    pub(super) fn from_raw(status: bindings::ib_wc_status) -> Self {
        match status {
            bindings::ib_wc_status_IB_WC_SUCCESS => Self::Success,
            other => Self::of_error(other),
        }
    }

    // Not inlined: errors are rare.
    #[cold]
    fn of_error(status: bindings::ib_wc_status) -> Self {
        match status {
            bindings::ib_wc_status_IB_WC_LOC_LEN_ERR => Self::LocLen,
            bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR => Self::LocQpOp,
            bindings::ib_wc_status_IB_WC_LOC_PROT_ERR => Self::LocProt,
            bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR => Self::Flush,
            bindings::ib_wc_status_IB_WC_BAD_RESP_ERR => Self::BadResp,
            bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR => Self::LocAccess,
            bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR => Self::RemInvReq,
            bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR => Self::RemAccess,
            bindings::ib_wc_status_IB_WC_REM_OP_ERR => Self::RemOp,
            bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR => Self::RetryExc,
            bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR => Self::RnrRetryExc,
            bindings::ib_wc_status_IB_WC_REM_ABORT_ERR => Self::RemAbort,
            bindings::ib_wc_status_IB_WC_FATAL_ERR => Self::Fatal,
            bindings::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR => Self::RespTimeout,
            bindings::ib_wc_status_IB_WC_GENERAL_ERR => Self::General,
            other => Self::Other(other),
        }
    }

    /// Returns whether the work request was executed.
    pub(crate) fn is_success(self) -> bool {
        self == Self::Success
    }
}

/// The outcome of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wc {
    /// How it ended.
    pub(crate) status: WcStatus,
    /// The provider's own code for an error.
    pub(crate) vendor_err: u32,
}

impl Wc {
    pub(super) const SUCCESS: Self = Self {
        status: WcStatus::Success,
        vendor_err: 0,
    };

    pub(super) const FLUSHED: Self = Self {
        status: WcStatus::Flush,
        vendor_err: 0,
    };

    /// Returns the outcome in `wc`.
    #[inline(always)]
    pub(super) fn of(wc: &bindings::ib_wc) -> Self {
        Self {
            status: WcStatus::from_raw(wc.status),
            vendor_err: wc.vendor_err,
        }
    }

    /// Gives completions that succeeded the status that a test injects.
    #[inline(always)]
    pub(super) fn inject(wcs: &mut [bindings::ib_wc]) {
        #[cfg(ro2iblnd_test_hooks)]
        for wc in wcs {
            if wc.status == bindings::ib_wc_status_IB_WC_SUCCESS {
                wc.status = injected(wc).unsigned_abs();
            }
        }
        #[cfg(not(ro2iblnd_test_hooks))]
        let _ = wcs;
    }
}

/// Returns the status that a test injects for a success: a negated status, or 0.
#[cfg(ro2iblnd_test_hooks)]
fn injected(wc: &bindings::ib_wc) -> ffi::c_int {
    match wc.opcode {
        // SAFETY: `wc` is valid; the function only reads it.
        bindings::ib_wc_opcode_IB_WC_SEND => unsafe { bindings::ro2ib_wc_send(wc) },
        // SAFETY: As above.
        bindings::ib_wc_opcode_IB_WC_RECV => unsafe { bindings::ro2ib_wc_recv(wc) },
        // SAFETY: As above.
        _ => unsafe { bindings::ro2ib_wc_other(wc) },
    }
}

/// An asynchronous event of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// A message arrived before the connection was established.
    CommEst,
    /// The QP is broken.
    Fatal,
    /// The other side sent something invalid.
    ReqErr,
    /// The other side accessed what it may not.
    AccessErr,
    /// The send queue is empty after a change to SQD.
    SqDrained,
    /// The path changed.
    PathMig,
    /// The path could not be changed.
    PathMigErr,
    /// The last receive request of an SRQ was taken.
    LastWqeReached,
    /// Anything else: the number of the event.
    Other(u32),
}

impl QpEvent {
    pub(super) fn from_raw(event: bindings::ib_event_type) -> Self {
        match event {
            bindings::ib_event_type_IB_EVENT_COMM_EST => Self::CommEst,
            bindings::ib_event_type_IB_EVENT_QP_FATAL => Self::Fatal,
            bindings::ib_event_type_IB_EVENT_QP_REQ_ERR => Self::ReqErr,
            bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR => Self::AccessErr,
            bindings::ib_event_type_IB_EVENT_SQ_DRAINED => Self::SqDrained,
            bindings::ib_event_type_IB_EVENT_PATH_MIG => Self::PathMig,
            bindings::ib_event_type_IB_EVENT_PATH_MIG_ERR => Self::PathMigErr,
            bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED => Self::LastWqeReached,
            other => Self::Other(other),
        }
    }
}
