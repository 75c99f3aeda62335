// SPDX-License-Identifier: GPL-2.0

//! Events of the queue pair, passed from an interrupt to the control worker.
//!
//! Context: any; takes no lock.

use crate::{
    proto::{
        cause::Cause,
        conn_state::ConnEvent, //
    },
    rdma::{
        atomic::{
            Atomic,
            Full, //
        },
        wc::QpEvent, //
    }, //
};

/// Events that the queue pair has reported, and the worker has not seen.
pub(super) struct QpEvents {
    /// The queue pair receives from the peer.
    comm_est: Atomic<bool>,
    /// The peer violated the transport's rules.
    misused: Atomic<bool>,
    /// The queue pair is broken.
    error: Atomic<bool>,
}

impl QpEvents {
    /// Creates an empty set of events.
    pub(super) fn new() -> Self {
        Self {
            comm_est: Atomic::new(false),
            misused: Atomic::new(false),
            error: Atomic::new(false),
        }
    }

    /// Records an event. Returns false if the event has no meaning for a connection.
    pub(super) fn note(&self, event: QpEvent) -> bool {
        let flag = match event {
            QpEvent::CommEst => &self.comm_est,
            QpEvent::ReqErr | QpEvent::AccessErr => &self.misused,
            QpEvent::Fatal => &self.error,
            QpEvent::SqDrained
            | QpEvent::PathMig
            | QpEvent::PathMigErr
            | QpEvent::LastWqeReached
            | QpEvent::Other(_) => return false,
        };
        let _ = flag.xchg(true, Full);
        true
    }

    /// Takes the recorded events, as events of the connection.
    pub(super) fn take(&self) -> impl Iterator<Item = ConnEvent> + '_ {
        [
            (&self.comm_est, ConnEvent::EarlyTraffic),
            (&self.misused, ConnEvent::Fail(Cause::RemoteFault)),
            (&self.error, ConnEvent::Fail(Cause::LocalFault)),
        ]
        .into_iter()
        .filter_map(|(flag, event)| flag.xchg(false, Full).then_some(event))
    }
}
