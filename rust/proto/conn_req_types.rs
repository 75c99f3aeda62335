// SPDX-License-Identifier: GPL-2.0

//! Decoded connection request, and the NI that it is for.

use super::{
    constants::QueueDepth,
    nid::Nid,
    wire::ConnParams, //
};

/// Well-formed request, not yet checked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnReq {
    /// Requesting NI.
    pub src: Nid,
    /// Its incarnation.
    pub src_stamp: u64,
    /// Requested NI; its NID is of our LND, but it may not exist.
    pub dst: Nid,
    /// Its incarnation as the requester knows it; 0 = unknown.
    pub dst_stamp: u64,
    /// Requested parameters, unchecked.
    pub params: ConnParams,
}

/// The NI that a request is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NiView {
    /// Its NID.
    pub nid: Nid,
    /// Its incarnation.
    pub stamp: u64,
    /// Its `peer_credits`: the largest depth it takes.
    pub peer_credits: QueueDepth,
    /// Whether LNet has it in service.
    pub active: bool,
}
