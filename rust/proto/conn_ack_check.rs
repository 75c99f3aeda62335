// SPDX-License-Identifier: GPL-2.0

//! Checks of the active side on the answer to its request: CONNACK (spec 4.5).

use core::fmt;

use super::{
    constants::{
        MaxFrags,
        QueueDepth,
        MSG_SIZE_WIRE, //
    },
    nid::Nid,
    reject::Ask,
    wire::{
        decode,
        Body,
        Stale,
        Version,
        WireError, //
    }, //
};

/// Expected sender of the CONNACK, and the parameters of the request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// NID of our NI.
    pub me: Nid,
    /// Incarnation of our NI.
    pub my_stamp: u64,
    /// NID of the peer.
    pub peer: Nid,
    /// Parameters of our CONNREQ.
    pub asked: Ask,
}

/// Parameters that both sides agreed on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Queue depth, at most that of the request.
    pub depth: QueueDepth,
    /// Most fragments, at most those of the request.
    pub frags: MaxFrags,
    /// The peer's incarnation, which every further message must have.
    pub stamp: u64,
}

/// Reason why a CONNACK is not acceptable. The queue pair is up by then: the connection must be closed at once.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AckError {
    /// Not a message.
    Wire(WireError),
    /// A message, but not a CONNACK.
    NotAnAck,
    /// Another version than that of the request.
    Version,
    /// A depth of 0, or above the request (H10).
    Depth(u16),
    /// No fragments, or more than in the request (H10).
    Frags(u16),
    /// Not the message size that all versions use.
    MsgSize(u32),
    /// From another node (H10), or for an earlier incarnation of this one.
    Stale(Stale),
}

impl fmt::Display for AckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AckError::Wire(e) => write!(f, "CONNACK: {e}"),
            AckError::NotAnAck => f.write_str("not a CONNACK"),
            AckError::Version => f.write_str("CONNACK of another version"),
            AckError::Depth(n) => write!(f, "CONNACK with queue depth {n}"),
            AckError::Frags(n) => write!(f, "CONNACK with {n} fragments"),
            AckError::MsgSize(n) => write!(f, "CONNACK with message size {n}"),
            AckError::Stale(s) => write!(f, "CONNACK: {s}"),
        }
    }
}

/// Checks the private data of the CM's ESTABLISHED event on the active side.
///
/// The incarnation is not compared with the one known before: the request's `dststamp` served that purpose.
pub fn validate_conn_ack(private_data: &[u8], expected: &Expected) -> Result<Agreed, AckError> {
    let msg = decode(private_data).map_err(AckError::Wire)?;
    let Body::ConnAck(params) = msg.body else {
        return Err(AckError::NotAnAck);
    };
    if msg.env.version != Version::V2 {
        return Err(AckError::Version);
    }
    let depth = QueueDepth::new(params.queue_depth)
        .filter(|&d| d <= expected.asked.depth)
        .ok_or(AckError::Depth(params.queue_depth))?;
    let frags = MaxFrags::new(params.max_frags)
        .filter(|&n| n <= expected.asked.frags)
        .ok_or(AckError::Frags(params.max_frags))?;
    if params.max_msg_size != MSG_SIZE_WIRE {
        return Err(AckError::MsgSize(params.max_msg_size));
    }
    if msg.env.dst != expected.me {
        return Err(AckError::Stale(Stale::DestinationNid));
    }
    if msg.env.dst_stamp != expected.my_stamp {
        return Err(AckError::Stale(Stale::DestinationStamp));
    }
    if msg.env.src != expected.peer {
        return Err(AckError::Stale(Stale::SourceNid));
    }
    Ok(Agreed {
        depth,
        frags,
        stamp: msg.env.src_stamp,
    })
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_conn_ack_check))]
mod tests {
    use super::super::wire::{
        encode,
        BodyOut,
        ConnParams,
        Envelope, //
    };
    use super::*;

    const ME: Nid = Nid::new(0, 0x0a00_0001);
    const PEER: Nid = Nid::new(0, 0x0a00_0002);

    fn expected() -> Expected {
        Expected {
            me: ME,
            my_stamp: 11,
            peer: PEER,
            asked: Ask {
                depth: QueueDepth::new(8).unwrap_or(QueueDepth::MIN),
                frags: MaxFrags::new(256).unwrap_or(MaxFrags::MIN),
                stamp: 0,
            },
        }
    }

    /// Checks a good CONNACK changed by `f`, padded as the CM does.
    fn validate(f: fn(&mut Envelope, &mut ConnParams)) -> Result<Agreed, AckError> {
        let mut env = Envelope {
            version: Version::V2,
            credits: 0,
            src: PEER,
            src_stamp: 22,
            dst: ME,
            dst_stamp: 11,
        };
        let mut params = ConnParams {
            queue_depth: 8,
            max_frags: 256,
            max_msg_size: 4096,
        };
        f(&mut env, &mut params);
        let mut out = [0; 196];
        encode(&mut out, &env, &BodyOut::ConnAck(params)).map_err(AckError::Wire)?;
        validate_conn_ack(&out, &expected())
    }

    #[test]
    fn good_ones() {
        let asked = expected().asked;
        assert_eq!(
            validate(|_, _| ()),
            Ok(Agreed {
                depth: asked.depth,
                frags: asked.frags,
                stamp: 22,
            })
        );
        let less = validate(|_, p| {
            p.queue_depth = 1;
            p.max_frags = 1;
        });
        assert_eq!(
            less,
            Ok(Agreed {
                depth: QueueDepth::MIN,
                frags: MaxFrags::MIN,
                stamp: 22,
            })
        );
    }

    #[test]
    fn more_than_asked_for() {
        assert_eq!(validate(|_, p| p.queue_depth = 9), Err(AckError::Depth(9)));
        assert_eq!(
            validate(|_, p| p.max_frags = 257),
            Err(AckError::Frags(257))
        );
        assert_eq!(
            validate(|_, p| p.max_msg_size = 8192),
            Err(AckError::MsgSize(8192))
        );
        assert_eq!(
            validate(|_, p| p.max_msg_size = 0),
            Err(AckError::MsgSize(0))
        );
    }

    #[test]
    fn h10_nothing_and_impersonation() {
        assert_eq!(validate(|_, p| p.queue_depth = 0), Err(AckError::Depth(0)));
        assert_eq!(validate(|_, p| p.max_frags = 0), Err(AckError::Frags(0)));
        assert_eq!(
            validate(|e, _| e.src = ME),
            Err(AckError::Stale(Stale::SourceNid))
        );
    }

    #[test]
    fn not_for_us() {
        assert_eq!(
            validate(|e, _| e.dst = PEER),
            Err(AckError::Stale(Stale::DestinationNid))
        );
        assert_eq!(
            validate(|e, _| e.dst_stamp = 12),
            Err(AckError::Stale(Stale::DestinationStamp))
        );
        assert_eq!(
            validate(|e, _| e.version = Version::V1),
            Err(AckError::Version)
        );
    }

    #[test]
    fn not_an_ack() {
        assert_eq!(
            validate_conn_ack(&[], &expected()),
            Err(AckError::Wire(WireError::Short))
        );
        assert_eq!(
            validate_conn_ack(&[0; 196], &expected()),
            Err(AckError::Wire(WireError::Magic(0)))
        );
    }
}
