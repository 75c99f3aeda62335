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

/// What the queue pair has told, and the worker has not seen.
pub(super) struct QpEvents {
    /// It hears the peer.
    comm_est: Atomic<bool>,
    /// The peer did what it may not.
    misused: Atomic<bool>,
    /// It is broken.
    error: Atomic<bool>,
}

impl QpEvents {
    /// Nothing was told.
    pub(super) fn new() -> Self {
        Self {
            comm_est: Atomic::new(false),
            misused: Atomic::new(false),
            error: Atomic::new(false),
        }
    }

    /// Remembers an event. False: it means nothing to a connection.
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

    /// Takes what was remembered, as events of the connection.
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
