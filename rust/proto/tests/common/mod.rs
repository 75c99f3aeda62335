// SPDX-License-Identifier: GPL-2.0

//! Shared by the host tests: reading transcripts, and writing back what was
//! decoded.

#![allow(dead_code)]

pub mod swap;

use ro2iblnd_proto::wire::{
    encode,
    Body,
    BodyOut,
    Descriptor,
    DescriptorOut,
    Envelope,
    Fragment,
    Order,
    WireError,
    WireMsg, //
};
use serde_json::Value;

pub fn unhex(s: &str) -> Vec<u8> {
    let digits: Vec<u8> = s
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '|')
        .map(|c| c.to_digit(16).expect("hex digit") as u8)
        .collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

pub fn frags(rd: &Descriptor<'_>) -> Vec<Fragment> {
    rd.fragments().collect()
}

/// Encodes a message as `encode` does, in the byte order of a peer.
pub fn encode_as(
    out: &mut [u8],
    order: Order,
    env: &Envelope,
    body: &BodyOut<'_>,
) -> Result<usize, WireError> {
    let nob = encode(out, env, body)?;
    if order == Order::Swapped {
        swap::swap_message(out);
    }
    Ok(nob)
}

/// Encodes a decoded message again, in its sender's order, payload included
/// but without checksum.
pub fn reencode(msg: &WireMsg<'_>) -> Result<Vec<u8>, WireError> {
    let list = match &msg.body {
        Body::PutAck { rd, .. } | Body::GetReq { rd, .. } => frags(rd),
        _ => Vec::new(),
    };
    let mut tail: &[u8] = &[];
    let body = match msg.body {
        Body::ConnReq(p) => BodyOut::ConnReq(p),
        Body::ConnAck(p) => BodyOut::ConnAck(p),
        Body::Noop => BodyOut::Noop,
        Body::Immediate { hdr, payload } => {
            tail = payload;
            BodyOut::Immediate {
                hdr,
                payload: payload.len(),
            }
        }
        Body::PutReq { hdr, cookie } => BodyOut::PutReq { hdr, cookie },
        Body::PutNak(d) => BodyOut::PutNak(d),
        Body::PutAck { src, dst, rd } => BodyOut::PutAck {
            src,
            dst,
            rd: DescriptorOut {
                key: rd.key(),
                frags: &list,
            },
        },
        Body::PutDone(d) => BodyOut::PutDone(d),
        Body::GetReq { hdr, cookie, rd } => BodyOut::GetReq {
            hdr,
            cookie,
            rd: DescriptorOut {
                key: rd.key(),
                frags: &list,
            },
        },
        Body::GetDone(d) => BodyOut::GetDone(d),
    };
    let mut out = vec![0xee; 4096];
    let nob = encode_as(&mut out, msg.facts.order, &msg.env, &body)?;
    out.truncate(nob - tail.len());
    out.extend_from_slice(tail);
    Ok(out)
}

/// One line of a transcript.
pub struct Entry {
    pub name: String,
    pub kind: String,
    pub src: String,
    pub dst: String,
    /// CM private data, SEND payload or RETH.
    pub bytes: Vec<u8>,
}

/// Reads a transcript of real traffic.
pub fn transcript(file: &str) -> Vec<Entry> {
    let path = format!("{}/tests/transcripts/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("transcript");
    let Value::Array(lines) = serde_json::from_str(&text).expect("JSON") else {
        panic!("not an array");
    };
    lines
        .iter()
        .map(|l| {
            let text = |key: &str| l[key].as_str().unwrap_or_default().to_string();
            let hex = ["private_data", "bytes", "reth"]
                .iter()
                .find_map(|key| l[*key].as_str())
                .unwrap_or_default();
            Entry {
                name: text("name"),
                kind: text("kind"),
                src: text("src"),
                dst: text("dst"),
                bytes: unhex(hex),
            }
        })
        .collect()
}

impl Entry {
    /// Returns the o2ib message in it; `None` if there is none.
    pub fn message(&self) -> Option<&[u8]> {
        match self.name.as_str() {
            // The CM puts 36 bytes of its own before ours in a REQ.
            "REQ CONNREQ" => self.bytes.get(36..),
            "REP CONNACK" => Some(&self.bytes),
            _ if self.kind == "send" => Some(&self.bytes),
            _ => None,
        }
    }
}
