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

/// Queue of messages and requests that wait for memory on a connection, a `C`.
pub(super) struct MemoryQueue<C> {
    requests: Fifo<WaitingRequest<C>>,
    messages: Fifo<WaitingMsg>,
    /// Thread that retries.
    retrier: Option<i32>,
    /// The time at which the message that it retries began to wait.
    since: Option<Timestamp>,
}

impl<C> MemoryQueue<C> {
    /// Queue without room.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        messages: Fifo::EMPTY,
        retrier: None,
        since: None,
    };

    /// Allocates a queue for this number of requests and messages. May sleep.
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

    /// Returns whether the thread `pid` retries.
    pub(super) fn is_retried_by(&self, pid: i32) -> bool {
        self.retrier == Some(pid)
    }

    /// Appends a request.
    ///
    /// # Errors
    ///
    /// Returns the request if there is no room.
    pub(super) fn add_request(
        &mut self,
        request: WaitingRequest<C>,
    ) -> Result<(), WaitingRequest<C>> {
        self.requests.push(request)
    }

    /// Appends a message. A message that the thread `pid` retries keeps the time at which it began to wait.
    ///
    /// # Errors
    ///
    /// Returns the message if there is no room.
    pub(super) fn add_message(
        &mut self,
        msg: Message,
        req: SendRequest,
        pid: i32,
    ) -> Result<(), Message> {
        let retried = self.is_retried_by(pid);
        let since = self.since.take_if(|_| retried);
        let unsent = (msg, req, since.unwrap_or_else(Timestamp::now));
        self.messages.push(unsent).map_err(|(msg, ..)| msg)
    }

    /// Begins a retry by the thread `pid`. Returns the number of requests and messages that wait.
    pub(super) fn begin(&mut self, pid: i32) -> (usize, usize) {
        self.retrier = Some(pid);
        (self.requests.len(), self.messages.len())
    }

    /// Takes the oldest request.
    pub(super) fn next_request(&mut self) -> Option<WaitingRequest<C>> {
        self.requests.pop()
    }

    /// Takes the oldest message. If the retry fails, it keeps the time at which it began to wait.
    pub(super) fn next_message(&mut self) -> Option<WaitingMsg> {
        let next = self.messages.pop()?;
        self.since = Some(next.2);
        Some(next)
    }

    /// Ends a retry. Returns whether messages or requests still wait.
    pub(super) fn end(&mut self) -> bool {
        (self.retrier, self.since) = (None, None);
        !self.requests.is_empty() || !self.messages.is_empty()
    }
}
