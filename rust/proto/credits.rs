// SPDX-License-Identifier: GPL-2.0

//! Credits of a connection.
//!
//! A credit is a receive buffer posted at the peer. Three counters follow the peer's buffers, a fourth follows our
//! buffers for the peer's messages, a fifth the answers that the peer waits for. Together they are protocol sections
//! 5.1 to 5.5 for version 0x12.
//!
//! # Invariants
//!
//! With `depth` the negotiated queue depth:
//!
//! - `credits <= depth` and `reserved <= depth`;
//! - `owed <= depth`: the number of buffers that the peer can have reserved for answers;
//! - `peer_held + outstanding <= depth`; the difference is the number of request buffers that hold
//!   a message which LNet has not taken yet, or wait for a PUT_DONE;
//! - `noops <= NOOPS_MAX`.
//!
//! Nothing here asserts: a peer that breaks the rules gets a [`CreditError`] and the caller closes
//! the connection (ko2iblnd panics there: guard H12).
//!
//! Context: any; the caller holds the connection's lock.

use super::{
    broken,
    constants::QueueDepth,
    require, //
};

/// Out-of-band messages (NOOP) that may be uncompleted at once (protocol section 1).
pub const NOOPS_MAX: u8 = 2;

errors! {
    /// Violation of the credit rules by the peer.
    CreditError {
        Returned: "returned more credits than exist",
        Sent: "sent more than it had credits for",
        Answered: "answered more requests than were sent",
        Asked: "asks for more answers than it has buffers for",
    }
}

/// Cost of a message for its sender (protocol section 2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// IMMEDIATE: a request buffer of the peer.
    Credit,
    /// PUT_REQ, GET_REQ: a request buffer of the peer, and one of ours reserved for the answer.
    CreditAndReserve,
    /// PUT_ACK, PUT_NAK, GET_DONE: the requester has reserved the buffer.
    Answer,
    /// PUT_DONE: its buffer is that of the PUT_REQ.
    Free,
    /// NOOP: one of the peer's out-of-band buffers.
    OutOfBand,
}

/// Use of a receive buffer after it is posted again (protocol section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Repost {
    /// The peer may send another request: one more credit to return.
    ForPeer,
    /// It can receive an answer to a request of this node again.
    ForAnswer,
    /// No account changes: out-of-band buffers, and the buffer of a PUT_REQ which now waits for
    /// PUT_DONE.
    Plain,
}

/// Credit counters of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    depth: u8,
    high_water: u8,
    credits: u8,
    outstanding: u8,
    reserved: u8,
    peer_held: u8,
    /// Requests of the peer whose answer was not posted.
    owed: u8,
    noops: u8,
}

impl Credits {
    /// Creates the state after the handshake. `high_water` is already scaled to `depth`
    /// ([`super::constants::high_water`]) and is never 0.
    pub fn new(depth: QueueDepth, high_water: u8) -> Self {
        // INVARIANT: both sides start with all of the other's request buffers.
        Self {
            depth: depth.get(),
            high_water: if high_water == 0 { 1 } else { high_water },
            credits: depth.get(),
            outstanding: 0,
            reserved: depth.get(),
            peer_held: depth.get(),
            owed: 0,
            noops: 0,
        }
    }

    /// Applies the credits a received message carries, before it is interpreted.
    ///
    /// # Errors
    ///
    /// [`CreditError::Returned`] if there cannot be that many.
    pub fn returned(&mut self, n: u8) -> Result<(), CreditError> {
        let sum = self.credits.checked_add(n).filter(|sum| *sum <= self.depth);
        // INVARIANT: By the filter.
        self.credits = sum.ok_or(CreditError::Returned)?;
        Ok(())
    }

    /// Notes that the peer has spent a credit on a request (IMMEDIATE, PUT_REQ, GET_REQ).
    ///
    /// # Errors
    ///
    /// [`CreditError::Sent`] if it held none.
    pub fn request_received(&mut self) -> Result<(), CreditError> {
        self.peer_held = self.peer_held.checked_sub(1).ok_or(CreditError::Sent)?;
        Ok(())
    }

    /// Notes that a received request (PUT_REQ, GET_REQ) must be answered. Its credit may return to the peer long before
    /// the answer is sent, so credits do not bound answers; the buffers that the peer reserves for them do.
    ///
    /// # Errors
    ///
    /// [`CreditError::Asked`] if the peer has no buffer left. A correct peer has one: it reserves a buffer before it
    /// sends the request, and frees it when the answer has arrived (protocol section 5.2), which is after it was posted
    /// here.
    #[inline(always)]
    pub fn answer_owed(&mut self) -> Result<(), CreditError> {
        require(self.owed < self.depth, CreditError::Asked)?;
        // INVARIANT: checked right above.
        self.owed = self.owed.saturating_add(1);
        Ok(())
    }

    /// Counts a receive buffer that was posted again.
    ///
    /// # Errors
    ///
    /// An error means that a message was counted that the peer had no right to send.
    #[inline(always)]
    pub fn reposted(&mut self, how: Repost) -> Result<(), CreditError> {
        match how {
            Repost::Plain => {}
            Repost::ForPeer => {
                let known = self.outstanding.checked_add(self.peer_held);
                require(known.is_some_and(|sum| sum < self.depth), CreditError::Sent)?;
                // INVARIANT: the sum is below the depth, so one more fits.
                self.outstanding = self.outstanding.saturating_add(1);
            }
            Repost::ForAnswer => {
                require(self.reserved < self.depth, CreditError::Answered)?;
                // INVARIANT: checked right above.
                self.reserved = self.reserved.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Takes one of our buffers for the answer to a request that moves to the main queue. Returns false if none is
    /// left; the request stays in its queue.
    #[must_use]
    pub fn reserve(&mut self) -> bool {
        let is_there = self.reserved > 0;
        self.reserved = self.reserved.saturating_sub(1);
        is_there
    }

    /// Returns the number of buffers that [`Credits::reserve`] would find.
    pub fn reserved(&self) -> u8 {
        self.reserved
    }

    /// Pays for a message that is being posted, and returns the credits it carries to the peer. Returns `None` and
    /// changes nothing if it may not go now. A message of the main queue costs [`Cost::Credit`]: its reserve was taken
    /// when it entered the queue.
    #[must_use]
    pub fn pay(&mut self, cost: Cost) -> Option<u8> {
        match cost {
            Cost::Free => {}
            Cost::Answer => {
                let left = self.owed.checked_sub(1);
                self.owed = left.unwrap_or_else(|| broken("an answer is sent twice"));
            }
            Cost::Credit => self.credits = self.credits.checked_sub(1)?,
            Cost::CreditAndReserve => {
                let reserved = self.reserved.checked_sub(1)?;
                self.credits = self.credits.checked_sub(1)?;
                self.reserved = reserved;
            }
            Cost::OutOfBand => {
                let noops = self.noops.checked_add(1);
                self.noops = noops.filter(|noops| *noops <= NOOPS_MAX)?;
            }
        }
        let carried = self.outstanding;
        // INVARIANT: what leaves `outstanding` enters `peer_held`; the sum stays.
        self.peer_held = self.peer_held.saturating_add(carried);
        self.outstanding = 0;
        Some(carried)
    }

    pub fn noop_completed(&mut self) {
        let left = self.noops.checked_sub(1);
        self.noops = left.unwrap_or_else(|| broken("a NOOP completes twice"));
    }

    /// Returns the number of NOOPs whose SEND has not completed.
    pub fn noops(&self) -> u8 {
        self.noops
    }

    /// Returns whether to send a NOOP to return credits (protocol section 5.5): enough are outstanding (or `keepalive`
    /// is due), no other message can carry them, and the two out-of-band slots are not both taken.
    ///
    /// `free_queued`: the queue of credit-free messages is not empty; `main_queued`: the main one
    /// is not.
    pub fn wants_noop(&self, free_queued: bool, main_queued: bool, keepalive: bool) -> bool {
        (self.outstanding >= self.high_water || keepalive)
            && !free_queued
            && (!main_queued || self.credits == 0)
            && self.noops < NOOPS_MAX
    }

    /// Returns whether the next message that needs a credit takes the last and returns none. If credits to return are
    /// expected soon, it should wait; otherwise a NOOP has to carry them.
    #[inline(always)]
    pub fn wastes_last(&self) -> bool {
        self.credits == 1 && self.outstanding == 0 && self.depth > 1
    }

    /// Returns whether no NOOP is due except a keepalive: the high-water mark is not reached, and the peer has a
    /// credit. Reads less than [`Credits::wants_noop`] and [`Credits::starves_peer`].
    #[inline(always)]
    pub fn is_content(&self) -> bool {
        self.outstanding < self.high_water && self.peer_held > 0
    }

    /// Returns whether the peer has spent every credit while some wait here below the high-water mark. That happens
    /// only while LNet keeps requests: their buffers are not posted, and the mark is not reached without them. A NOOP
    /// is due then ([`Credits::wants_noop`], `keepalive`), one at a time: this is true again only when the peer has
    /// spent the credits of the last one.
    pub fn starves_peer(&self) -> bool {
        self.outstanding > 0 && self.peer_held == 0
    }

    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns how many messages may still go into the peer's request buffers.
    pub fn credits(&self) -> u8 {
        self.credits
    }

    /// Returns the number of buffers reposted for the peer whose credits have not been returned yet.
    pub fn outstanding(&self) -> u8 {
        self.outstanding
    }

    /// Returns the credits that the peer has, as far as this node can know.
    pub fn peer_held(&self) -> u8 {
        self.peer_held
    }
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_credits))]
mod tests {
    use super::*;

    fn credits(depth: u16, high_water: u8) -> Credits {
        let depth = QueueDepth::new(depth).unwrap_or(QueueDepth::MIN);
        Credits::new(depth, high_water)
    }

    #[test]
    fn a_request_costs_and_its_return_is_carried() {
        let mut a = credits(2, 1);
        assert_eq!(a.pay(Cost::Credit), Some(0));
        assert_eq!(a.pay(Cost::CreditAndReserve), Some(0));
        assert_eq!(a.pay(Cost::Credit), None);
        assert!({ a }.pay(Cost::Free).is_some());
        assert_eq!(a.returned(2), Ok(()));
        assert_eq!(a.returned(1), Err(CreditError::Returned));
        assert_eq!(a.returned(255), Err(CreditError::Returned));
    }

    #[test]
    fn a_peer_cannot_send_more_than_it_was_granted() {
        let mut b = credits(1, 1);
        assert_eq!(b.request_received(), Ok(()));
        assert_eq!(b.request_received(), Err(CreditError::Sent));
        assert_eq!(b.reposted(Repost::ForPeer), Ok(()));
        // Reposting twice for one message would mint a credit.
        assert_eq!(b.reposted(Repost::ForPeer), Err(CreditError::Sent));
        assert_eq!(b.pay(Cost::Free), Some(1));
        assert_eq!(b.request_received(), Ok(()));
    }

    #[test]
    fn who_does_not_wait_for_answers_owes_no_more_than_it_has_buffers() {
        let mut b = credits(4, 2);
        // It has its credits back from other messages, and sends another request.
        for _ in 0..4 {
            assert_eq!(b.request_received(), Ok(()));
            assert_eq!(b.answer_owed(), Ok(()));
            assert_eq!(b.reposted(Repost::ForPeer), Ok(()));
            assert_eq!(b.pay(Cost::Free), Some(1));
        }
        assert_eq!(b.request_received(), Ok(()));
        assert_eq!(b.answer_owed(), Err(CreditError::Asked));
        // An answer that is posted may be there when the next request is sent.
        assert_eq!(b.pay(Cost::Answer), Some(0));
        assert_eq!(b.answer_owed(), Ok(()));
        assert_eq!(b.answer_owed(), Err(CreditError::Asked));
    }

    #[test]
    fn reserves_are_bounded() {
        let mut a = credits(1, 1);
        assert!(a.reserve());
        assert!(!a.reserve());
        assert_eq!(a.reposted(Repost::ForAnswer), Ok(()));
        assert_eq!(a.reposted(Repost::ForAnswer), Err(CreditError::Answered));
        assert_eq!(a.reposted(Repost::Plain), Ok(()));
    }

    #[test]
    fn noop_rule() {
        let mut b = credits(4, 2);
        assert!(!b.wants_noop(false, false, false));
        assert!(b.wants_noop(false, false, true));
        for _ in 0..2 {
            assert_eq!(b.request_received(), Ok(()));
            assert_eq!(b.reposted(Repost::ForPeer), Ok(()));
        }
        assert!(b.wants_noop(false, false, false));
        // A message that can go will carry them.
        assert!(!b.wants_noop(true, false, false));
        assert!(!b.wants_noop(false, true, false));
        assert_eq!(b.pay(Cost::OutOfBand), Some(2));
        assert!(!b.wants_noop(false, false, false));
        assert_eq!(b.pay(Cost::OutOfBand), Some(0));
        assert_eq!(b.pay(Cost::OutOfBand), None);
        assert!(!b.wants_noop(false, false, true));
        b.noop_completed();
        assert!(b.noops() < NOOPS_MAX);
    }

    #[test]
    fn what_is_below_the_mark_is_returned_when_the_peer_has_nothing_left() {
        let mut b = credits(4, 2);
        for _ in 0..4 {
            assert_eq!(b.request_received(), Ok(()));
            // Nothing to return yet.
            assert!(!b.starves_peer());
        }
        // LNet takes one and keeps three.
        assert_eq!(b.reposted(Repost::ForPeer), Ok(()));
        assert!(!b.wants_noop(false, false, false));
        assert!(b.starves_peer());
        assert_eq!(b.pay(Cost::OutOfBand), Some(1));
        assert!(!b.starves_peer());
        assert_eq!(b.reposted(Repost::ForPeer), Ok(()));
        // The peer has one still.
        assert!(!b.starves_peer());
        assert_eq!(b.request_received(), Ok(()));
        assert!(b.starves_peer());
    }

    #[test]
    fn high_water_is_never_zero() {
        let b = credits(1, 0);
        // With a mark of 0 both ends would exchange NOOPs for ever.
        assert!(!b.wants_noop(false, false, false));
    }
}
