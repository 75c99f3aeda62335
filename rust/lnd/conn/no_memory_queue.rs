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
pub(super) struct WaitingRequest<C> {
    pub(super) rx: KBox<Rx<C>>,
    pub(super) msg: Option<Message>,
    pub(super) req: RecvRequest,
}

/// Message of LNet that was not sent yet.
pub(super) struct WaitingMsg {
    pub(super) msg: Message,
    pub(super) req: SendRequest,
    pub(super) since: Timestamp,
}

/// Thread that retries.
struct Retrier {
    pid: i32,
    /// The time at which the message that it retries began to wait.
    since: Option<Timestamp>,
}

/// Queue of messages and requests that wait for memory on a connection, a `C`.
pub(super) struct MemoryQueue<C> {
    requests: Fifo<WaitingRequest<C>>,
    messages: Fifo<WaitingMsg>,
    retrier: Option<Retrier>,
}

/// Memory for the queues of a [`MemoryQueue`].
pub(super) struct MemoryQueueRoom<C> {
    requests: Fifo<WaitingRequest<C>>,
    messages: Fifo<WaitingMsg>,
}

impl<C> MemoryQueueRoom<C> {
    /// Allocates queues for this number of requests and messages. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(requests: usize, messages: usize) -> Result<Self> {
        Ok(Self {
            requests: Fifo::with_capacity(requests)?,
            messages: Fifo::with_capacity(messages)?,
        })
    }
}

impl<C> MemoryQueue<C> {
    /// Queues without room.
    pub(super) const EMPTY: Self = Self {
        requests: Fifo::EMPTY,
        messages: Fifo::EMPTY,
        retrier: None,
    };

    /// Sets the room of the queues, at set-up, before the first receive is posted.
    pub(super) fn open(&mut self, room: MemoryQueueRoom<C>) {
        self.requests = room.requests;
        self.messages = room.messages;
    }

    /// Returns whether the thread `pid` retries.
    pub(super) fn is_retried_by(&self, pid: i32) -> bool {
        matches!(&self.retrier, Some(retrier) if retrier.pid == pid)
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
    pub(super) fn add_message(&mut self, mut unsent: WaitingMsg, pid: i32) -> Result<(), Message> {
        let retrier = self.retrier.as_mut().filter(|r| r.pid == pid);
        if let Some(since) = retrier.and_then(|retrier| retrier.since.take()) {
            unsent.since = since;
        }
        self.messages.push(unsent).map_err(|full| full.msg)
    }

    /// Begins a retry by the thread `pid`. Returns the number of requests and messages that wait.
    pub(super) fn begin(&mut self, pid: i32) -> (usize, usize) {
        self.retrier = Some(Retrier { pid, since: None });
        (self.requests.len(), self.messages.len())
    }

    /// Takes the oldest request.
    pub(super) fn next_request(&mut self) -> Option<WaitingRequest<C>> {
        self.requests.pop()
    }

    /// Takes the oldest message.
    pub(super) fn next_message(&mut self) -> Option<WaitingMsg> {
        let next = self.messages.pop()?;
        if let Some(retrier) = &mut self.retrier {
            retrier.since = Some(next.since);
        }
        Some(next)
    }

    /// Ends a retry. Returns whether messages or requests still wait.
    pub(super) fn end(&mut self) -> bool {
        self.retrier = None;
        !self.requests.is_empty() || !self.messages.is_empty()
    }
}
