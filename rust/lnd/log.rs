// SPDX-License-Identifier: GPL-2.0

//! Log lines of the driver: the NID, the cause, and the action to take if there is one. Every line that a peer can
//! provoke is rate limited. A function without a comment logs what its line says.

use core::fmt::Display;

use kernel::prelude::*;

use crate::{
    lnet::dk::dk,
    policy::{
        close_log::Recorded,
        link_state,
        queue_sizes::DepthReason, //
    },
    proto::{
        cause::Cause,
        constants::QueueDepth,
        credits::CreditError,
        nid::Nid,
        wire::{
            Stale,
            WireError, //
        }, //
    },
    rdma::wc::Wc, //
};

/// Prints a warning unless too many were printed lately.
macro_rules! warn_limited {
    ($($arg:tt)*) => { warn_if!(crate::rdma::ratelimit::allowed(), $($arg)*) };
}

/// Prints a warning that any host of the network can provoke. Such warnings have a limit of their own, so that they
/// cannot suppress warnings about other peers.
macro_rules! warn_noise {
    ($($arg:tt)*) => { warn_if!(crate::rdma::ratelimit::untrusted_allowed(), $($arg)*) };
}

// LNet's debug log has the lines that the limit suppresses.
macro_rules! warn_if {
    ($allowed:expr, $($arg:tt)*) => {{
        dk!(NetError, $($arg)*);
        if $allowed {
            say!(pr_warn, $($arg)*);
        }
    }};
}

/// Prints a line by a macro of the kernel, whose own formatter has not the traits of `core` that `proto` implements.
macro_rules! say {
    ($print:ident, $($arg:tt)*) => { $print!("{}", ::core::format_args!($($arg)*)) };
}

/// Returns the text of a kernel error; the kernel's own text depends on its configuration.
fn why(e: Error) -> Worded {
    let words = match e {
        ENOMEM => "out of memory",
        ENODEV => "no RDMA device",
        ESHUTDOWN => "the NI is shutting down",
        EINVAL => "the device or LNet does not accept it",
        EADDRNOTAVAIL => "the address is not on this node",
        EADDRINUSE => "no free port",
        ENETUNREACH | EHOSTUNREACH => "no route",
        EACCES | EPERM => "not allowed",
        EAGAIN | EBUSY => "no resources left",
        EOVERFLOW => "the device has no more of them",
        EMSGSIZE => "it has more pieces than one transfer can have",
        _ => "error",
    };
    Worded(words, e.to_errno())
}

/// Text of an error, and its errno.
struct Worded(&'static str, i32);

impl Display for Worded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.0, self.1)
    }
}

/// Reason why a connection ends, with the details for the log. It is found under the connection lock, in softirq, and
/// logged without the lock by a worker: a console may be slow, and the lock is held with bottom halves off.
pub(crate) enum CloseReason {
    Plain(Cause),
    /// A SEND, WRITE or work request for a region failed.
    Send(Cause, Wc),
    /// A receive failed, for example because the message is too long.
    Recv(Cause, Wc),
    /// The received operation was no SEND, or did more than a SEND.
    NotASend,
    /// Work requests could not be built or posted.
    Post(Cause),
    Message(WireError),
    /// A message is of another life of the peer.
    Stale(Stale),
    Credits(CreditError),
}

impl From<Cause> for CloseReason {
    #[inline]
    fn from(cause: Cause) -> Self {
        Self::Plain(cause)
    }
}

impl CloseReason {
    /// Returns the cause to close with.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::Plain(cause)
            | Self::Send(cause, _)
            | Self::Recv(cause, _)
            | Self::Post(cause) => *cause,
            Self::NotASend | Self::Message(_) | Self::Credits(_) => Cause::Protocol,
            Self::Stale(_) => Cause::PeerRestarted,
        }
    }
}

/// Defines functions that log a line: arguments, how the line is printed, and its text. Lines printed by `say` can
/// appear only so often that they need no limit.
macro_rules! lines {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $of:ty),+), $how:ident $($level:ident)?, $text:literal $(, $value:expr)*;
    )+) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($arg: $of),+) {
            $how!($($level,)? $text $(, $value)*);
        }
    )+};
}

lines! {
    /// Logs the depth that the driver chose for the link, once for each NI.
    fitted(nid: Nid, depth: QueueDepth, gather: u16, reason: &DepthReason), say pr_info,
        "{nid}: peer_credits is {}: {reason}; {gather} gather elements\n", depth.get();
    /// Logs that LNet stopped an NI, once for each NI.
    stopped(nid: Nid), say pr_info, "{nid}: the NI is stopped\n";
    /// Logs once for each NI that messages still arrive while LNet deletes it and waits for the last one.
    deletion_waits(nid: Nid), say pr_info,
        "{nid}: the NI is being deleted and messages still arrive; closing the connections they arrive on\n";
    /// Logs that the shutdown of an NI takes long, at most every ten seconds.
    shutdown_waits(nid: Nid, conns: i32, seconds: u32), say pr_warn,
        "{nid}: shutdown has waited {seconds} s for {conns} connections\n";

    cannot(nid: Nid, what: &str, e: Error), warn_limited, "{nid}: cannot {what}: {}\n", why(e);
    /// Reports that no queue pair could be made at any depth. Providers return `ENOMEM` or `EOVERFLOW` if the device
    /// has none left.
    no_queue_pair(nid: Nid, e: Error, max_qp: u32), warn_limited,
        "{nid}: cannot make the queue pair or its completion queue: {}: \
         the device has {max_qp} queue pairs at most; \"rdma resource show\" counts those in use\n",
        why(e);
    not_flushed(nid: Nid), warn_limited,
        "{nid}: the RDMA device does not flush a queue pair that is in error; if this repeats, reset it\n";
    rejected(nid: Nid, why: &dyn Display), warn_limited, "{nid}: rejected our connection request: {why}\n";
    bad_request(nid: Nid, e: &dyn Display), warn_noise, "{nid}: bad request: {e}; closing\n";
    /// Logs that LNet refused a message. The header was good, so LNet does not accept the destination.
    refused_by_lnet(nid: Nid, to: Nid, e: Error), warn_noise,
        "{nid}: LNet refused a message for {to}: {}: dropped; check the routes on the peer\n", why(e);
    no_source(nid: Nid, e: Error), warn_limited, "{nid}: cannot answer a GET: {}\n", unmapped(e);

    detached(nid: Nid), say pr_warn, "{nid}: the RDMA device is gone; waiting for it to come back\n";
    attached(nid: Nid), say pr_info, "{nid}: the RDMA device is back\n";
    addr_moved(nid: Nid, device: &str), warn_limited,
        "{nid}: {device} has no GID for the interface address; asking the RDMA core to rescan\n";
    moved(nid: Nid, from: &str, to: &str), warn_limited,
        "{nid}: the interface moved from {from} to {to}; reconnecting\n";
    new_lid(nid: Nid, lid: u32), warn_limited, "{nid}: the LID of the port changed to {lid}; reconnecting\n";
    cannot_follow(nid: Nid, what: &dyn Display, e: Error), warn_limited,
        "{nid}: the interface moved to another RDMA device, which cannot be used: {what}: {}\n", why(e);
    /// Reports that the NI cannot use the device that has its address, once for each error.
    cannot_use(nid: Nid, what: &dyn Display, e: Error), warn_limited,
        "{nid}: the RDMA device cannot be used: {what}: {}; retrying every second\n", why(e);
    broken(nid: Nid), say pr_err,
        "{nid}: the RDMA device reported a fatal error; LNet avoids this NI until the device is reset\n";
    healed(nid: Nid), say pr_info, "{nid}: the RDMA device works again\n";
    /// Logs once for each device that it rejected work requests of several connections in a row.
    refuses_posts(nid: Nid, device: &str), say pr_err,
        "{nid}: {device} refused work requests of {} connections in a row: the NI is closed, and LNet avoids it; \
         update the driver of the device, or use another device; \
         delete and add the NI to try again\n",
        link_state::MANY_REFUSALS;
    gsi_dead(nid: Nid, device: &str), say pr_err,
        "{nid}: no connection is possible: queue pair 1 of {device} is in the error state; \
         recreate the device with \"rdma link delete\" and \"rdma link add\"\n";
}

/// Logs the end of a connection. Leaves out connections that close together with their NI, because the NI logs that.
/// Logs few lines for a peer that connects and closes all the time, to leave room for other peers.
pub(crate) fn conn_over(nid: Nid, cause: Cause, established: bool, noted: Recorded) {
    // The NI logs once that its link is down or has moved.
    if matches!(
        cause,
        Cause::Shutdown | Cause::LinkDown | Cause::Overtaken | Cause::Moved
    ) {
        return;
    }
    let what = if established {
        "connection closed"
    } else {
        "connecting failed"
    };
    let (cause, n) = (cause.as_str(), noted.times);
    if !noted.is_news() {
        dk!(NetError, "{nid}: {what}: {cause} ({n} times)\n");
    } else if noted.are_many() {
        warn_limited!("{nid}: {what}: {cause} ({n} times)\n");
    } else {
        warn_limited!("{nid}: {what}: {cause}\n");
    }
}

/// Logs the reason for the close of a connection. Not under a lock.
pub(crate) fn close_reason(nid: Nid, reason: CloseReason) {
    match reason {
        // A flush follows from an error that is logged already, or soon.
        CloseReason::Plain(_)
        | CloseReason::Send(Cause::Flushed, _)
        | CloseReason::Recv(Cause::Flushed, _) => {}
        CloseReason::Send(_, wc) => {
            let (status, code) = (wc.status, wc.vendor_err);
            warn_limited!("{nid}: a send failed: {status:?} (vendor code {code:#x})\n");
        }
        CloseReason::Recv(_, wc) => {
            let (status, code) = (wc.status, wc.vendor_err);
            warn_noise!("{nid}: a receive failed: {status:?} (vendor code {code:#x})\n");
        }
        CloseReason::NotASend => {
            warn_noise!("{nid}: the peer sent an unexpected RDMA operation; closing\n");
        }
        CloseReason::Post(_) => {
            warn_limited!("{nid}: a work request could not be built or posted; closing\n");
        }
        CloseReason::Message(e) => warn_noise!("{nid}: bad message: {e}; closing\n"),
        CloseReason::Stale(e) => warn_noise!("{nid}: stale message: {e}; closing\n"),
        CloseReason::Credits(e) => warn_noise!("{nid}: the peer {e}; closing\n"),
    }
}

/// Logs that a PUT cannot be received because memory or a memory region (`region`) is missing.
pub(crate) fn no_sink(nid: Nid, region: bool, e: Error) {
    let why = match (region, e) {
        (true, ENOBUFS) => Worded("all memory regions are in use", e.to_errno()),
        (true, _) => Worded("the device provides no memory region", e.to_errno()),
        (false, _) => unmapped(e),
    };
    warn_limited!("{nid}: cannot receive a PUT: {why}\n");
}

/// Returns the text for memory that could not be mapped for the device.
fn unmapped(e: Error) -> Worded {
    match e {
        EIO => Worded("no room to map memory for the device", e.to_errno()),
        _ => why(e),
    }
}

pub(crate) fn gpu_refused(nid: Nid, e: Error) {
    let why = match e {
        EXDEV => "only some of its pages are GPU memory; the application must not mix them",
        ENXIO => "its pages are no longer registered; is nvidia-fs loaded?",
        ERANGE => "it has gaps, or is too large for one memory region, and cannot be copied",
        EOPNOTSUPP => {
            "the data arrived inside a message and cannot be copied to the GPU; transfer 4 KiB or more"
        }
        _ => "nvidia-fs did not map it; see its lines in the log",
    };
    warn_limited!(
        "{nid}: a message with GPU memory failed: {why} ({})\n",
        e.to_errno()
    );
}

/// Logs messages that failed because no connection was made. While LNet deletes an NI, it may send many, one by one.
pub(crate) fn gave_up(nid: Nid, messages: usize, cause: Cause) {
    if cause == Cause::Shutdown {
        return;
    }
    let s = if messages == 1 { "" } else { "s" };
    warn_limited!("{nid}: {messages} message{s} failed: {}\n", cause.as_str());
}

pub(crate) fn refused(nid: Option<Nid>, why: &dyn Display) {
    match nid {
        Some(nid) => warn_noise!("{nid}: rejected its connection request: {why}\n"),
        None => warn_noise!("rejected a connection request: {why}\n"),
    }
}

/// Logs that the driver does not connect to the peer. LNet may ask for a connection again and again.
pub(crate) fn not_connected(nid: Nid, cause: Cause, noted: Recorded) {
    let cause = cause.as_str();
    match noted.is_news() {
        true => warn_limited!("{nid}: connection not attempted: {cause}\n"),
        false => dk!(NetError, "{nid}: connection not attempted: {cause}\n"),
    }
}
