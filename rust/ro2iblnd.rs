// SPDX-License-Identifier: GPL-2.0

//! ro2iblnd: an LNet network driver (LND) for InfiniBand and RoCE, wire compatible with ko2iblnd.
//!
//! | room | what it holds |
//! |---|---|
//! | `proto` | the o2ib protocol: wire format, negotiation, credits, state machines; pure |
//! | `policy` | local rules that a peer cannot see: reconnect, timeouts, quotas, sizes; pure |
//! | `rdma` | verbs and the connection manager as safe types |
//! | `lnet` | LNet as safe types, over the C shim in `rust/shim/` |
//! | `lnd` | the driver: events in, protocol decisions, calls out |
//!
//! Imports go one way: `lnd` -> {`policy`, `lnet`, `rdma`}, `policy` -> `proto`, {`lnet`, `rdma`} -> `bindings`.

use kernel::{
    pr_warn_once,
    prelude::*, //
};

mod bindings;
mod lnd;
mod lnet;
mod policy;
mod proto;
mod rdma;

module! {
    type: Ro2iblnd,
    name: "ro2iblnd",
    authors: ["The ro2iblnd authors"],
    description: "LNet network driver for RDMA networks, wire compatible with ko2iblnd",
    license: "GPL v2",
}

/// Logs the first broken invariant that `proto` or `policy` reports.
fn report_broken(what: &'static str) {
    pr_warn_once!("internal error: {what}\n");
}

struct Ro2iblnd {
    // First: no NI can exist once it is dropped.
    _registration: lnet::Registration<lnd::ni::O2ib>,
    // Last: waits until no code of this module runs any more.
    _exit: lnd::ops::Exit,
}

impl kernel::Module for Ro2iblnd {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        rdma::layout_check::check()?;
        let ifaces = lnd::listeners::Ifaces::new()?;
        Ok(Self {
            _registration: lnet::Registration::new(ifaces.clone())?,
            _exit: lnd::ops::Exit::new(ifaces),
        })
    }
}
