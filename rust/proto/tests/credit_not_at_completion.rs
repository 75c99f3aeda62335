// SPDX-License-Identifier: GPL-2.0

//! Why the credit of an IMMEDIATE does not come back with the completion of its SEND.
//!
//! It would save the message that returns it. But a completion says that the HCA of the peer has the message,
//! not that its LND has posted another buffer; and a peer of today, which knows nothing of such a rule, returns
//! the credit as well. Both are shown here, with the counters of the driver as one end.

use ro2iblnd_proto::{
    constants::QueueDepth,
    credits::{
        Cost,
        CreditError,
        Credits,
        Repost, //
    }, //
};

const DEPTH: u16 = 8;
const HIGH_WATER: u8 = 4;

fn end() -> Credits {
    Credits::new(QueueDepth::new(DEPTH).expect("a depth"), HIGH_WATER)
}

/// Takes an IMMEDIATE as a correct receiver, posts its buffer again, and returns with how many
/// credits its next NOOP would go, if it wants to send one.
fn take(receiver: &mut Credits) -> Result<Option<u8>, CreditError> {
    receiver.request_received()?;
    receiver.reposted(Repost::ForPeer)?;
    if receiver.wants_noop(false, false, false) {
        let carried = receiver.pay(Cost::OutOfBand);
        receiver.noop_completed();
        return Ok(carried);
    }
    Ok(None)
}

/// Tests the rule as it is: for ever, whatever the ratio of messages to returns.
#[test]
fn credits_come_back_by_messages() {
    let (mut a, mut b) = (end(), end());
    let mut noops = 0;
    for _ in 0..10_000 {
        assert_eq!(a.pay(Cost::Credit), Some(0));
        if let Some(n) = take(&mut b).expect("within its credits") {
            a.returned(n).expect("no more than were spent");
            noops += 1;
        }
    }
    assert_eq!(noops, 10_000 / u32::from(HIGH_WATER));
}

/// Tests a sender that takes the credit back at the completion, towards a peer that returns it as always: the sum
/// is more than there are buffers. ko2iblnd checks the same at its end and closes with EPROTO.
#[test]
fn taken_back_and_returned_is_one_too_many() {
    let (mut a, mut b) = (end(), end());
    let mut refused = None;
    for message in 1..=u32::from(HIGH_WATER) {
        assert_eq!(a.pay(Cost::Credit), Some(0));
        // The completion of the SEND.
        assert_eq!(a.returned(1), Ok(()));
        if let Some(n) = take(&mut b).expect("within its credits") {
            refused = Some((message, a.returned(n)));
        }
    }
    // With the very first return.
    assert_eq!(
        refused,
        Some((u32::from(HIGH_WATER), Err(CreditError::Returned)))
    );
}

/// Tests the same sender with a correct receiver whose LNet is slow: it sends into buffers that are not there.
/// On the wire that is a receiver-not-ready NAK, here the account of the receiver.
#[test]
fn a_completion_is_no_buffer() {
    let (mut a, mut b) = (end(), end());
    for _ in 0..DEPTH {
        assert_eq!(a.pay(Cost::Credit), Some(0));
        assert_eq!(a.returned(1), Ok(()));
        // LNet has it; the buffer is not posted again yet.
        assert_eq!(b.request_received(), Ok(()));
    }
    assert!(a.credits() > 0);
    assert_eq!(b.request_received(), Err(CreditError::Sent));
}

/// Tests the reverse: a receiver that returns nothing for IMMEDIATEs, because it takes the sender for one
/// that helps itself. A sender of today stands still after one depth of messages, for ever.
#[test]
fn not_returned_is_starved() {
    let (mut a, mut b) = (end(), end());
    for _ in 0..DEPTH {
        assert_eq!(a.pay(Cost::Credit), Some(0));
        assert_eq!(b.request_received(), Ok(()));
        // No account changes.
        assert_eq!(b.reposted(Repost::Plain), Ok(()));
        assert!(!b.wants_noop(false, false, false));
    }
    assert_eq!(a.pay(Cost::Credit), None);
}
