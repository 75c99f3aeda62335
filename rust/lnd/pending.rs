// SPDX-License-Identifier: GPL-2.0

//! Messages that wait for a connection, in order. Linking and unlinking cannot fail and may be done under a spin lock;
//! a message is allocated and finalized without it.
//!
//! The list is short, because LNet's credits limit it, and off the fast path. So appending walks the list.

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use super::lnet_types::lnet_health;
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    proto::cause::Cause, //
};

/// A waiting message.
pub(crate) struct Pending {
    msg: Message,
    req: SendRequest,
    since: Instant<Monotonic>,
    next: Option<KBox<Pending>>,
}

impl Pending {
    /// Wraps a message, or gives it back if there is no memory. May sleep.
    pub(crate) fn new(msg: Message, req: &SendRequest) -> Result<KBox<Self>, Message> {
        match KBox::new_uninit(GFP_KERNEL) {
            Ok(slot) => Ok(KBox::write(
                slot,
                Self {
                    msg,
                    req: req.keep(),
                    since: Instant::now(),
                    next: None,
                },
            )),
            Err(_) => Err(msg),
        }
    }

    /// Returns the message and its request.
    pub(crate) fn into_parts(self) -> (Message, SendRequest) {
        (self.msg, self.req)
    }

    /// Wraps a message that a connection did not take; it keeps the time of its arrival.
    pub(crate) fn again(
        msg: Message,
        req: &SendRequest,
        since: Instant<Monotonic>,
    ) -> Result<KBox<Self>, Message> {
        let mut pending = Self::new(msg, req)?;
        pending.since = since;
        Ok(pending)
    }

    /// Returns the time of its arrival.
    pub(crate) fn since(&self) -> Instant<Monotonic> {
        self.since
    }

    fn waited_ms(&self) -> i64 {
        self.since.elapsed().as_millis()
    }
}

/// List of waiting messages.
pub(crate) struct PendingList {
    head: Option<KBox<Pending>>,
}

impl PendingList {
    /// List without messages.
    pub(crate) const EMPTY: Self = Self { head: None };

    /// Returns whether no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Returns the number of waiting messages.
    pub(crate) fn len(&self) -> usize {
        let mut n: usize = 0;
        let mut at = &self.head;
        while let Some(pending) = at {
            n = n.saturating_add(1);
            at = &pending.next;
        }
        n
    }

    /// Returns how long the oldest message has waited, in milliseconds; 0 if none waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.head.as_ref().map_or(0, |oldest| oldest.waited_ms())
    }

    /// Appends a message.
    pub(crate) fn push_back(&mut self, pending: KBox<Pending>) {
        let mut at = &mut self.head;
        while let Some(there) = at {
            at = &mut there.next;
        }
        *at = Some(pending);
    }

    /// Inserts a message at the front.
    pub(crate) fn push_front(&mut self, mut pending: KBox<Pending>) {
        pending.next = self.head.take();
        self.head = Some(pending);
    }

    /// Takes the oldest message.
    pub(crate) fn pop_front(&mut self) -> Option<KBox<Pending>> {
        let mut pending = self.head.take()?;
        self.head = pending.next.take();
        Some(pending)
    }

    /// Takes the messages that have waited longer than `limit_ms` milliseconds. The list is in order, so one walk finds
    /// them.
    pub(crate) fn take_expired(&mut self, limit_ms: i64) -> Self {
        let mut at = &mut self.head;
        while at.as_ref().is_some_and(|p| p.waited_ms() > limit_ms) {
            let Some(expired) = at else { break };
            at = &mut expired.next;
        }
        let rest = at.take();
        Self {
            head: core::mem::replace(&mut self.head, rest),
        }
    }

    /// Takes all messages.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::EMPTY)
    }

    /// Finalizes every message with `cause`. Process context, no lock held.
    pub(crate) fn fail(mut self, cause: Cause) {
        let outcome = cause.outcome(false);
        while let Some(pending) = self.pop_front() {
            KBox::into_inner(pending)
                .msg
                .finalize(outcome.status, lnet_health(outcome.health));
        }
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        // One by one: dropping the head would recurse through the list.
        while self.pop_front().is_some() {}
    }
}
