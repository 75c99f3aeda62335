// SPDX-License-Identifier: GPL-2.0

//! What the driver tells people: one line with the NID, the cause, and what to do where there is
//! something to do. Everything a peer can provoke is rate limited.

use core::fmt::Display;

use kernel::prelude::*;

use crate::{
    lnet::dk::dk,
    policy::{
        close_log::Recorded,
        link_defaults::DepthReason,
        post_failures, //
    },
    proto::{
        cause::Cause,
        credits::CreditError,
        nid::Nid,
        params::QueueDepth,
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

/// The same for what any stranger can provoke: with a limit of its own, so that the noise of one does
/// not hide what is said of others.
macro_rules! warn_noise {
    ($($arg:tt)*) => { warn_if!(crate::rdma::ratelimit::untrusted_allowed(), $($arg)*) };
}

// Whoever has LNet's debug log finds there what the limit leaves out.
macro_rules! warn_if {
    ($allowed:expr, $($arg:tt)*) => {{
        dk!(NetError, $($arg)*);
        if $allowed {
            // The kernel's printing knows a formatter of its own; `proto` implements that of
            // `core`.
            pr_warn!("{}", ::core::format_args!($($arg)*));
        }
    }};
}

/// An error of the kernel in words; the kernel's own text for it depends on its configuration.
fn why(e: Error) -> Worded {
    let words = match e {
        ENOMEM => "out of memory",
        ENODEV => "the RDMA device is gone",
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

/// Words, and the errno for those who look it up.
struct Worded(&'static str, i32);

impl Display for Worded {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.0, self.1)
    }
}

/// The NI starts with a depth that the driver chose for the link. Once for an NI, so it needs no limit.
pub(crate) fn fitted(nid: Nid, depth: QueueDepth, gather: u16, reason: &DepthReason) {
    pr_info!(
        "{}\n",
        core::format_args!(
            "{nid}: peer_credits is {}: {reason}; {gather} gather elements",
            depth.get()
        )
    );
}

/// A connection ended. Nothing is said of what goes with its NI: the NI says that. Of a peer that connects and closes
/// all the time little is said, so that there is room for others.
pub(crate) fn conn_over(nid: Nid, cause: Cause, established: bool, noted: Recorded) {
    // That the link is down, or elsewhere, is said once, by the NI.
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

/// A step of the handshake failed here.
pub(crate) fn cannot(nid: Nid, what: &str, e: Error) {
    warn_limited!("{nid}: cannot {what}: {}\n", why(e));
}

/// Reports that no queue pair could be made at any depth. Providers return `ENOMEM` or `EOVERFLOW`
/// if the device has none left.
pub(crate) fn no_queue_pair(nid: Nid, e: Error, max_qp: u32) {
    warn_limited!(
        "{nid}: cannot make the queue pair or its completion queue: {}: \
         the device has {max_qp} queue pairs at most; \"rdma resource show\" counts those in use\n",
        why(e)
    );
}

/// A queue pair was told to flush, and does not.
pub(crate) fn not_flushed(nid: Nid) {
    warn_limited!(
        "{nid}: the RDMA device does not flush a queue pair that is in error; if this repeats, reset it\n"
    );
}

/// LNet stopped an NI. Once for an NI, so it needs no limit.
pub(crate) fn stopped(nid: Nid) {
    pr_info!("{}\n", core::format_args!("{nid}: the NI is stopped"));
}

/// LNet waits for the last message of an NI that it deletes, and more come in. Once for an NI, so it needs no limit.
pub(crate) fn deletion_waits(nid: Nid) {
    pr_info!(
        "{}\n",
        core::format_args!(
            "{nid}: the NI is being deleted, and messages still come in; connections end over which they do"
        )
    );
}

/// The shutdown of an NI takes long. Said every ten seconds at most, so it needs no limit.
pub(crate) fn shutdown_waits(nid: Nid, conns: i32, seconds: u32) {
    pr_warn!(
        "{}\n",
        core::format_args!("{nid}: shutdown has waited {seconds} s for {conns} connections")
    );
}

/// A send, a WRITE, or work on a region failed.
pub(crate) fn send_failed(nid: Nid, wc: Wc) {
    let (status, code) = (wc.status, wc.vendor_err);
    warn_limited!("{nid}: a send failed: {status:?} (vendor code {code:#x})\n");
}

/// A receive failed, as of a message that is too long.
pub(crate) fn receive_failed(nid: Nid, wc: Wc) {
    let (status, code) = (wc.status, wc.vendor_err);
    warn_noise!("{nid}: a receive failed: {status:?} (vendor code {code:#x})\n");
}

/// Work requests could not be posted.
pub(crate) fn post_failed(nid: Nid) {
    warn_limited!("{nid}: a work request could not be built or posted; closing\n");
}

/// What arrived was no SEND, or one that did more than send.
pub(crate) fn not_a_send(nid: Nid) {
    warn_noise!("{nid}: the peer used an operation that is none of the protocol's; closing\n");
}

/// A message is none.
pub(crate) fn bad_message(nid: Nid, e: &WireError) {
    warn_noise!("{nid}: bad message: {e}; closing\n");
}

/// A message is of another life.
pub(crate) fn stale_message(nid: Nid, e: &Stale) {
    warn_noise!("{nid}: stale message: {e}; closing\n");
}

/// The peer broke the credit rules.
pub(crate) fn bad_credits(nid: Nid, e: CreditError) {
    let what = match e {
        CreditError::Returned => "returned more credits than there are",
        CreditError::Sent => "sent more than it had credits for",
        CreditError::Answered => "answered more than was asked",
        CreditError::Asked => "asks for more answers than it has buffers for",
    };
    warn_noise!("{nid}: the peer {what}; closing\n");
}

/// The LNet header in a request does not fit it.
pub(crate) fn bad_request(nid: Nid, e: &dyn Display) {
    warn_noise!("{nid}: bad request: {e}; closing\n");
}

/// Logs that LNet refused a message. The header was good, so LNet does not accept the destination.
pub(crate) fn refused_by_lnet(nid: Nid, to: Nid, e: Error) {
    warn_noise!(
        "{nid}: LNet refused a message for {to}: {}: dropped; see the routes there\n",
        why(e)
    );
}

/// A PUT cannot be received for want of memory, or of a memory region (`region`).
pub(crate) fn no_sink(nid: Nid, region: bool, e: Error) {
    let why = match (region, e) {
        (true, ENOBUFS) => Worded("all memory regions of ours are in use", e.to_errno()),
        (true, _) => Worded("the device gives no memory region", e.to_errno()),
        (false, _) => unmapped(e),
    };
    warn_limited!("{nid}: cannot receive a PUT: {why}\n");
}

/// Why memory could not be made ready for the device.
fn unmapped(e: Error) -> Worded {
    match e {
        EIO => Worded("no room to map memory for the device", e.to_errno()),
        _ => why(e),
    }
}

/// The data of a GET cannot be sent.
pub(crate) fn no_source(nid: Nid, e: Error) {
    warn_limited!("{nid}: cannot answer a GET: {}\n", unmapped(e));
}

/// A message failed because its memory is a GPU's.
pub(crate) fn gpu_refused(nid: Nid, e: Error) {
    let why = match e {
        EXDEV => "only some of its pages are a GPU's; what uses it must not mix them",
        ENXIO => "nobody has its pages any more; is nvidia-fs loaded?",
        ERANGE => "it has gaps, or is too much for one region, and cannot be copied",
        EOPNOTSUPP => {
            "the data came inside of a message, and cannot be copied there; transfer 4 KiB or more"
        }
        _ => "nvidia-fs did not map it; see what that says",
    };
    warn_limited!(
        "{nid}: a message with memory of a GPU failed: {why} ({})\n",
        e.to_errno()
    );
}

/// Messages failed because no connection could be had. Of an NI that is being deleted LNet may send many one by one.
pub(crate) fn gave_up(nid: Nid, messages: usize, cause: Cause) {
    if cause == Cause::Shutdown {
        return;
    }
    let s = if messages == 1 { "" } else { "s" };
    warn_limited!("{nid}: {messages} message{s} failed: {}\n", cause.as_str());
}

/// A connection request was refused.
pub(crate) fn refused(nid: Option<Nid>, why: &dyn Display) {
    match nid {
        Some(nid) => warn_noise!("{nid}: refused its connection request: {why}\n"),
        None => warn_noise!("refused a connection request: {why}\n"),
    }
}

/// There is to be no connection to the peer. LNet may ask for one time and again.
pub(crate) fn not_connected(nid: Nid, cause: Cause, noted: Recorded) {
    let cause = cause.as_str();
    match noted.is_news() {
        true => warn_limited!("{nid}: not connected to: {cause}\n"),
        false => dk!(NetError, "{nid}: not connected to: {cause}\n"),
    }
}

/// The peer refused ours.
pub(crate) fn rejected(nid: Nid, why: &dyn Display) {
    warn_limited!("{nid}: refused our connection request: {why}\n");
}

/// The RDMA device of an NI went away.
pub(crate) fn detached(nid: Nid) {
    pr_warn!(
        "{}\n",
        core::format_args!("{nid}: the RDMA device is gone; waiting for it to come back")
    );
}

/// The interface has the address of an NI, and its RDMA device has not.
pub(crate) fn astray(nid: Nid, device: &str) {
    warn_limited!(
        "{nid}: {device} lost the address, which is set; the RDMA core is told to look\n"
    );
}

/// The interface of an NI is on another RDMA device now.
pub(crate) fn moved(nid: Nid, from: &str, to: &str) {
    warn_limited!("{nid}: the interface moved from {from} to {to}; connections are made anew\n");
}

/// Says that the subnet manager gave the port of an NI another LID.
pub(crate) fn new_lid(nid: Nid, lid: u32) {
    warn_limited!("{nid}: the LID of the port changed to {lid}; connections are made again\n");
}

/// Reports that the NI cannot use the device that its interface is on now.
pub(crate) fn cannot_follow(nid: Nid, why: &dyn Display, e: Error) {
    warn_limited!(
        "{nid}: the interface moved to another RDMA device, which cannot be used: {why}: {}\n",
        self::why(e)
    );
}

/// Reports that the NI cannot use the device that has its address, once for each error.
pub(crate) fn cannot_use(nid: Nid, what: &dyn Display, e: Error) {
    warn_limited!(
        "{nid}: the RDMA device cannot be used: {what}: {}; trying again each second\n",
        self::why(e)
    );
}

/// The RDMA device of an NI told of a fatal error.
pub(crate) fn broken(nid: Nid) {
    pr_err!(
        "{}\n",
        core::format_args!(
            "{nid}: the RDMA device says that it is broken; LNet avoids this NI until it is reset"
        )
    );
}

/// Reports a device that refused work requests of several connections in a row. Once for a device,
/// so it needs no limit.
pub(crate) fn refuses_posts(nid: Nid, device: &str) {
    pr_err!(
        "{}\n",
        core::format_args!(
            "{nid}: {device} refused work requests of {} connections in a row: the NI is closed, and LNet avoids it; \
             update the driver of the device, or use another device; \
             delete and add the NI to try again",
            post_failures::MANY
        )
    );
}

/// It told that it works again.
pub(crate) fn healed(nid: Nid) {
    pr_info!(
        "{}\n",
        core::format_args!("{nid}: the RDMA device works again")
    );
}

/// Nothing of the connection manager leaves the RDMA device of an NI any more.
pub(crate) fn mute(nid: Nid, device: &str) {
    pr_err!(
        "{}\n",
        core::format_args!(
            "{nid}: no node can be connected to: queue pair 1 of {device} is in the error state; \
             make the device anew with \"rdma link delete\" and \"rdma link add\""
        )
    );
}

/// The RDMA device of an NI is back.
pub(crate) fn attached(nid: Nid) {
    pr_info!("{}\n", core::format_args!("{nid}: the RDMA device is back"));
}
