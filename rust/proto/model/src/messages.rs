// SPDX-License-Identifier: GPL-2.0

//! Messages between two ends, and canonical names of their cookies.

/// Which of the two ends.
pub type Side = usize;

/// Returns the other end.
pub fn other(side: Side) -> Side {
    1 - side
}

/// A message by type, with the cookies it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// NOOP.
    Noop,
    /// IMMEDIATE.
    Immediate,
    /// PUT_REQ with its sender's cookie.
    PutReq(u64),
    /// PUT_ACK: the cookie of the PUT_REQ, and that of the sink.
    PutAck(u64, u64),
    /// PUT_NAK for a PUT_REQ.
    PutNak(u64),
    /// PUT_DONE for a sink, behind the WRITEs if true.
    PutDone(u64, bool),
    /// GET_REQ with its sender's cookie.
    GetReq(u64),
    /// GET_DONE for a GET_REQ, behind the WRITEs if true.
    GetDone(u64, bool),
}

impl Body {
    /// Returns whether it takes one of the receiver's request buffers.
    pub fn is_request(self) -> bool {
        matches!(self, Self::Immediate | Self::PutReq(_) | Self::GetReq(_))
    }

    /// Returns whether it answers a request of the receiver, which reserved a buffer for it.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::PutAck(..) | Self::PutNak(_) | Self::GetDone(..))
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msg {
    /// Kind of the message.
    pub body: Body,
    /// `ibm_credits`.
    pub credits: u8,
    /// Number of its LNet message; 0 where that does not matter.
    pub tag: u8,
}

/// Renames cookies in the order in which they are met, so that states which differ only in which
/// slot or generation a transmit has are the same state.
#[derive(Default)]
pub struct Names {
    met: [Vec<u64>; 2],
}

impl Names {
    /// Returns the name of the cookie that `owner` gave out.
    pub fn of(&mut self, owner: Side, cookie: u64) -> u8 {
        let met = &mut self.met[owner];
        let at = met.iter().position(|c| *c == cookie).unwrap_or_else(|| {
            met.push(cookie);
            met.len() - 1
        });
        at as u8
    }

    /// Returns the cookies of `owner` in the order of their names.
    pub fn met(&self, owner: Side) -> &[u64] {
        &self.met[owner]
    }

    /// Encodes a message from `from`.
    pub fn msg(&mut self, from: Side, m: &Msg, out: &mut Vec<u8>) {
        let to = other(from);
        let (kind, a, b) = match m.body {
            Body::Noop => (0, 0, 0),
            Body::Immediate => (1, 0, 0),
            Body::PutReq(c) => (2, self.of(from, c), 0),
            Body::PutAck(src, dst) => (3, self.of(to, src), self.of(from, dst)),
            Body::PutNak(c) => (4, self.of(to, c), 0),
            Body::PutDone(c, data) => (5, self.of(to, c), u8::from(data)),
            Body::GetReq(c) => (6, self.of(from, c), 0),
            Body::GetDone(c, data) => (7, self.of(to, c), u8::from(data)),
        };
        out.extend([kind, a, b, m.credits, m.tag]);
    }
}
