// SPDX-License-Identifier: GPL-2.0

//! LNet as safe types.
//!
//! The driver implements [`Lnd`] once and registers it with [`Registration`]; from then on LNet calls it, through the C
//! shim (`rust/shim/`), with owned values: a [`Message`] must be finalized exactly once, a [`NiRef`] keeps its NI
//! usable, and a value given to [`NiRef::parse`] comes back exactly once in [`Lnd::recv`]. The types make the rules of
//! LNet's contract (protocol specification, section 8) hard to break; their documentation has the rules that types
//! cannot express.
//!
//! # Contexts
//!
//! LNet must never be called from interrupt or softirq context, nor with a spinlock held. Unless a function here says
//! "any context", it needs process context and may sleep.

pub(crate) mod dk;
mod driver;
mod gpu;
mod message;
mod ni;
pub(crate) mod params;
mod send_recv_request;
mod text;
mod text_params;
pub(crate) mod trace;
pub(crate) mod uevent;

pub(crate) use driver::{
    ConnInfo,
    LinkEvent,
    Lnd,
    PeerInfo,
    Registration,
    StartError, //
};
pub(crate) use message::{
    Message,
    TxMsgs, //
};
pub(crate) use ni::{
    ConnSettings,
    DepthBy,
    Fatal,
    NetNs,
    NiConfig,
    NiRef, //
};
pub(crate) use send_recv_request::{
    RecvRequest,
    Request,
    SendRequest, //
};

/// Bytes of an LNet header in its nid4 wire form.
pub(crate) const HDR_SIZE: usize = 72;
