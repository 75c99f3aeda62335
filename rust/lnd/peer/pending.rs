// SPDX-License-Identifier: GPL-2.0

//! Messages that wait for a connection, in order. Linking and unlinking cannot fail and may be done under a spin lock;
//! a message is allocated and finalized without it.
//!
//! The list is short, because LNet's credits limit it, and off the fast path. So appending walks the list.

use kernel::prelude::*;

use crate::{
    lnd::{
        ni::Ni,
        timestamp::Timestamp, //
    },
    lnet::{
        Message,
        SendRequest, //
    },
    proto::cause::Cause, //
};

/// A waiting message.
pub(super) struct Pending {
    /// `None` while a connection has it.
    pub(super) msg: Option<Message>,
    pub(super) req: SendRequest,
    /// Cause for which a connection failed it.
    pub(super) cause: Option<Cause>,
    since: Timestamp,
    next: Option<KBox<Pending>>,
}

impl Pending {
    /// Wraps a message, or gives it back if there is no memory. May sleep.
    pub(super) fn new(msg: Message, req: &SendRequest) -> Result<KBox<Self>, Message> {
        match KBox::new_uninit(GFP_KERNEL) {
            Ok(slot) => Ok(KBox::write(
                slot,
                Self {
                    msg: Some(msg),
                    req: req.keep(),
                    cause: None,
                    since: Timestamp::now(),
                    next: None,
                },
            )),
            Err(_) => Err(msg),
        }
    }
}

/// List of waiting messages.
pub(super) struct PendingList {
    head: Option<KBox<Pending>>,
}

impl PendingList {
    pub(super) const EMPTY: Self = Self { head: None };

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    pub(super) fn len(&self) -> usize {
        core::iter::successors(self.head.as_deref(), |of| of.next.as_deref()).count()
    }

    /// Returns how long the oldest message has waited, in milliseconds; 0 if none waits.
    pub(super) fn waited_ms(&self) -> i64 {
        self.head
            .as_ref()
            .map_or(0, |oldest| oldest.since.elapsed_ms())
    }

    pub(super) fn push_back(&mut self, pending: KBox<Pending>) {
        let mut at = &mut self.head;
        while let Some(there) = at {
            at = &mut there.next;
        }
        *at = Some(pending);
    }

    pub(super) fn push_front(&mut self, mut pending: KBox<Pending>) {
        pending.next = self.head.take();
        self.head = Some(pending);
    }

    pub(super) fn pop_front(&mut self) -> Option<KBox<Pending>> {
        let mut pending = self.head.take()?;
        self.head = pending.next.take();
        Some(pending)
    }

    /// Takes the messages that have waited longer than `limit_ms` milliseconds. The list is in order, so one walk finds
    /// them.
    pub(super) fn take_expired(&mut self, limit_ms: i64) -> Self {
        let mut at = &mut self.head;
        while at.as_ref().is_some_and(|p| p.since.elapsed_ms() > limit_ms) {
            let Some(expired) = at else { break };
            at = &mut expired.next;
        }
        let rest = at.take();
        Self {
            head: core::mem::replace(&mut self.head, rest),
        }
    }

    pub(super) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::EMPTY)
    }

    /// Finalizes every message for its own cause, otherwise for `cause`. Process context, no lock held.
    pub(super) fn fail(mut self, ni: &Ni, cause: Cause) {
        while let Some(pending) = self.pop_front() {
            let pending = KBox::into_inner(pending);
            if let Some(msg) = pending.msg {
                fail_msg(ni, msg, pending.cause.unwrap_or(cause));
            }
        }
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        // One by one: dropping the head would recurse through the list.
        while self.pop_front().is_some() {}
    }
}

/// Finalizes a message of an NI with `cause`, because LNet does not resend a message that the driver did not take.
pub(crate) fn fail_msg(ni: &Ni, msg: Message, cause: Cause) {
    ni.close_stats.messages(cause, 1);
    let outcome = cause.outcome(false);
    msg.finalize(outcome.status, outcome.health);
}
