// SPDX-License-Identifier: GPL-2.0

//! Trace points, which `perf`, `trace-cmd` and `bpftrace` find as `ro2iblnd:*`. The C half defines them
//! (`rust/shim/ro2iblnd_trace.h`).
//!
//! An event that is off costs one read of a word and a branch; nothing is formatted. Any context except NMI.
//!
//! An event has NIDs and words as text of a fixed size, and no address of memory.

use core::fmt::{
    Debug,
    Display, //
};

use super::text::Text;
use crate::{
    bindings,
    rdma::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Bytes of a NID as text.
const NID: usize = bindings::RO2IB_TRACE_NID as usize;
/// Bytes of a word.
const WORD: usize = bindings::RO2IB_TRACE_WORD as usize;

/// A trace event.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Event {
    /// State change of a connection.
    ConnState = bindings::ro2ib_trace_bit_RO2IB_TRACE_CONN_STATE,
    /// Stall of sending.
    Stall = bindings::ro2ib_trace_bit_RO2IB_TRACE_STALL,
    /// End of a stall.
    StallOver = bindings::ro2ib_trace_bit_RO2IB_TRACE_STALL_OVER,
    /// Post of the work requests of a transmit.
    Post = bindings::ro2ib_trace_bit_RO2IB_TRACE_POST,
    /// Completion of a work request.
    Complete = bindings::ro2ib_trace_bit_RO2IB_TRACE_COMPLETE,
    /// Received message.
    Receive = bindings::ro2ib_trace_bit_RO2IB_TRACE_RECEIVE,
    /// End of a stage of a message, and the time that the stage took.
    Stage = bindings::ro2ib_trace_bit_RO2IB_TRACE_STAGE,
    /// End of a connection, or of an attempt.
    Close = bindings::ro2ib_trace_bit_RO2IB_TRACE_CLOSE,
    /// Reject of a peer's request.
    Refuse = bindings::ro2ib_trace_bit_RO2IB_TRACE_REFUSE,
}

/// Returns whether an event is enabled.
#[inline(always)]
pub(crate) fn wanted(event: Event) -> bool {
    any_wanted() & event as u32 != 0
}

/// Returns the enabled events.
#[inline(always)]
fn any_wanted() -> u32 {
    // SAFETY: A word of the module, which C writes as a whole.
    unsafe { Atomic::from_ptr((&raw const bindings::ro2ib_trace_on).cast_mut()) }.load(Relaxed)
}

/// Connection that the events belong to.
///
/// # Invariants
///
/// The texts end with 0.
pub(crate) struct Conn(bindings::ro2ib_trace_conn);

impl Conn {
    /// Creates the description of a connection, or attempt, of the NI `ni` with `peer`, with its number there (0:
    /// none). `active`: this side requested it.
    pub(crate) fn new(ni: &dyn Display, peer: &dyn Display, number: u32, active: bool) -> Self {
        // INVARIANT: `Text` ends so.
        Self(bindings::ro2ib_trace_conn {
            ni: Text::<NID>::of(format_args!("{ni}")).bytes,
            peer: Text::<NID>::of(format_args!("{peer}")).bytes,
            number,
            qpn: 0,
            active,
        })
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Sets the number of its queue pair.
    pub(crate) fn set_qpn(&mut self, qpn: u32) {
        self.0.qpn = qpn;
    }

    /// Reports a change of state because of `why`.
    #[cold]
    #[inline(never)]
    pub(crate) fn state(&self, from: &dyn Debug, to: &dyn Debug, why: &dyn Debug) {
        let from = Text::<WORD>::of(format_args!("{from:?}"));
        let to = Text::<WORD>::of(format_args!("{to:?}"));
        let why = Text::<WORD>::of(format_args!("{why:?}"));
        // SAFETY: All texts are as long as they have to be, and end with 0.
        unsafe {
            bindings::ro2ib_trace_conn_state(&self.0, from.as_ptr(), to.as_ptr(), why.as_ptr())
        };
    }

    /// Reports that sending stalled for lack of `want`, with the number of queued transmits.
    #[cold]
    #[inline(never)]
    pub(crate) fn stall(&self, want: &str, queued: u32, credits: u32) {
        let want = Text::<WORD>::word(want);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_stall(&self.0, want.as_ptr(), queued, credits) };
    }

    /// Reports the end of a stall, which took `ns` nanoseconds.
    #[cold]
    #[inline(never)]
    pub(crate) fn stall_over(&self, want: &str, ns: u64) {
        let want = Text::<WORD>::word(want);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_stall_over(&self.0, want.as_ptr(), ns) };
    }

    /// Reports that the transmit `tx` is posted: its message, the bytes that it moves by RDMA, and the credits that it
    /// returns.
    #[cold]
    #[inline(never)]
    pub(crate) fn post(&self, op: &str, tx: u32, bytes: u32, credits: u32) {
        let op = Text::<WORD>::word(op);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_post(&self.0, op.as_ptr(), tx, bytes, credits) };
    }

    /// Reports the end of a work request of the transmit `tx`.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete(&self, op: &str, tx: u32, result: &str) {
        let op = Text::<WORD>::word(op);
        let result = Text::<WORD>::word(result);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_complete(&self.0, op.as_ptr(), tx, result.as_ptr()) };
    }

    /// Reports a received message, with its size and the credits that it returns.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive(&self, op: &str, bytes: u32, credits: u32) {
        let op = Text::<WORD>::word(op);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_receive(&self.0, op.as_ptr(), bytes, credits) };
    }

    /// Reports the time of a message in a stage.
    #[cold]
    #[inline(never)]
    pub(crate) fn stage(&self, op: &str, stage: &str, ns: u64) {
        let op = Text::<WORD>::word(op);
        let stage = Text::<WORD>::word(stage);
        // SAFETY: As in `state`.
        unsafe { bindings::ro2ib_trace_stage(&self.0, op.as_ptr(), stage.as_ptr(), ns) };
    }

    /// Reports the end of a connection (`up`) or attempt (`!up`).
    #[cold]
    #[inline(never)]
    pub(crate) fn close(&self, up: bool, by: &str, cause: &str, detail: &str) {
        let by = Text::<WORD>::word(by);
        let cause = Text::<WORD>::word(cause);
        let detail = Text::<WORD>::word(detail);
        // SAFETY: As in `state`.
        unsafe {
            bindings::ro2ib_trace_close(&self.0, up, by.as_ptr(), cause.as_ptr(), detail.as_ptr())
        };
    }
}

/// Reports that `ni` rejected a request of `peer`, as far as they are known.
#[cold]
#[inline(never)]
pub(crate) fn refuse(ni: Option<&dyn Display>, peer: Option<&dyn Display>, cause: &str) {
    let ni = Text::<NID>::of(format_args!("{}", ni.unwrap_or(&"none")));
    let peer = Text::<NID>::of(format_args!("{}", peer.unwrap_or(&"unknown")));
    let cause = Text::<WORD>::word(cause);
    // SAFETY: As in `Conn::state`.
    unsafe { bindings::ro2ib_trace_refuse(ni.as_ptr(), peer.as_ptr(), cause.as_ptr()) };
}
