// SPDX-License-Identifier: GPL-2.0

//! Messages that wait for a connection, in order. Linking and unlinking cannot fail and may be done
//! under a spin lock; a message is taken in and ended outside of it.
//!
//! Short (LNet's credits bound it) and off the fast path, so appending walks.

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use super::lnet_glue::lnet_health;
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

    /// The message, and what is to be done with it.
    pub(crate) fn into_parts(self) -> (Message, SendRequest) {
        (self.msg, self.req)
    }

    /// The message, back from a connection that did not take it; it has not waited anew.
    pub(crate) fn again(
        msg: Message,
        req: &SendRequest,
        since: Instant<Monotonic>,
    ) -> Result<KBox<Self>, Message> {
        let mut pending = Self::new(msg, req)?;
        pending.since = since;
        Ok(pending)
    }

    /// When it came.
    pub(crate) fn since(&self) -> Instant<Monotonic> {
        self.since
    }

    fn waited_ms(&self) -> i64 {
        self.since.elapsed().as_millis()
    }
}

/// The list.
pub(crate) struct PendingList {
    head: Option<KBox<Pending>>,
}

impl PendingList {
    /// Nothing waits.
    pub(crate) const EMPTY: Self = Self { head: None };

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        let mut n: usize = 0;
        let mut at = &self.head;
        while let Some(pending) = at {
            n = n.saturating_add(1);
            at = &pending.next;
        }
        n
    }

    /// Milliseconds that the oldest one has waited; 0 if nothing waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.head.as_ref().map_or(0, |oldest| oldest.waited_ms())
    }

    /// Appends one.
    pub(crate) fn push_back(&mut self, pending: KBox<Pending>) {
        let mut at = &mut self.head;
        while let Some(there) = at {
            at = &mut there.next;
        }
        *at = Some(pending);
    }

    /// Puts one in front.
    pub(crate) fn push_front(&mut self, mut pending: KBox<Pending>) {
        pending.next = self.head.take();
        self.head = Some(pending);
    }

    /// Takes the oldest.
    pub(crate) fn pop_front(&mut self) -> Option<KBox<Pending>> {
        let mut pending = self.head.take()?;
        self.head = pending.next.take();
        Some(pending)
    }

    /// Takes those that have waited longer than `limit_ms` milliseconds. They are in order, so that is one walk over
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

    /// Takes all.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::EMPTY)
    }

    /// Ends every message for `cause`. Process context, no lock held.
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
