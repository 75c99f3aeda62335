// SPDX-License-Identifier: GPL-2.0

//! Queues of messages and requests that wait for memory ([`super::no_memory`]).
//!
//! Context: any; part of the state that the connection lock protects. No memory is allocated here after set-up.

use kernel::prelude::*;

use super::{
    prealloc_fifo::Fifo,
    rx::Rx, //
};
use crate::{
    lnd::timestamp::Timestamp,
    lnet::{
        Message,
        RecvRequest,
        SendRequest, //
    }, //
};

/// Request of the peer that LNet has taken, with its message, which is missing if LNet has none.
pub(super) type WaitingRequest<C> = (KBox<Rx<C>>, Option<Message>, RecvRequest);

/// Message of LNet that was not sent yet, and the time at which it began to wait.
pub(super) type WaitingMsg = (Message, SendRequest, Timestamp);

/// Queues of messages and requests that wait for memory on a connection, a `C`.
pub(super) struct MemoryQueue<C> {
    pub(super) requests: Fifo<WaitingRequest<C>>,
    pub(super) messages: Fifo<WaitingMsg>,
    /// Thread that retries.
    pub(super) retrier: Option<i32>,
    /// The time at which the message that it retries began to wait.
    pub(super) since: Option<Timestamp>,
}

impl<C> MemoryQueue<C> {
    /// Queues without room.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        messages: Fifo::EMPTY,
        retrier: None,
        since: None,
    };

    /// Allocates queues for this number of requests and messages. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn with_capacity(requests: usize, messages: usize) -> Result<Self> {
        Ok(Self {
            requests: Fifo::with_capacity(requests)?,
            messages: Fifo::with_capacity(messages)?,
            ..Self::EMPTY
        })
    }
}
