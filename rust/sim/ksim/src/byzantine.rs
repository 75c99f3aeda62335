// SPDX-License-Identifier: GPL-2.0

//! Byzantine peer: a script of bytes changes the messages of one node on the wire.
//!
//! The node itself runs the unchanged driver, so that connections come about. The script cuts,
//! changes, drops, duplicates and makes up its messages; it redirects its WRITEs and changes its
//! private data of the CM. The invariants of the driver must hold on both sides all the same,
//! except that data is right and that a message finds a buffer. After the end of the script the
//! world changes no message.

use crate::world::{
    say,
    telling,
    w, //
};

/// Script, and the node whose messages it changes.
pub struct Foul {
    node: usize,
    script: Vec<u8>,
    at: usize,
    last: Vec<u8>,
}

/// Numbers at the limits of fields.
const EDGES: [u32; 16] = [
    0,
    1,
    2,
    255,
    256,
    257,
    258,
    4095,
    4096,
    4097,
    1 << 20,
    (1 << 20) + 1,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_f000,
    u32::MAX,
];

/// Offset of the body of a message.
const HEAD: usize = 48;

/// Size of a buffer in bytes.
const BUF: usize = 4096;

impl Foul {
    /// Creates a script for the messages that `node` sends.
    pub fn new(node: usize, script: Vec<u8>) -> Self {
        Self {
            node,
            script,
            at: 0,
            last: Vec::new(),
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.script.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    /// Takes two bytes of the script, as a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        let low = self.byte().unwrap_or(0);
        let high = self.byte().unwrap_or(0);
        usize::from(u16::from_le_bytes([low, high])) % n.max(1)
    }

    /// Writes a few bytes of the script, at an offset that the script selects.
    fn overwrite(&mut self, data: &mut [u8], from: usize) {
        let at = from + self.below(data.len().saturating_sub(from));
        let n = self.byte().unwrap_or(0) % 32;
        for to in data.iter_mut().skip(at).take(n.into()) {
            *to = self.byte().unwrap_or(0);
        }
    }

    fn message(&mut self, data: Vec<u8>) -> Vec<Vec<u8>> {
        let original = data.clone();
        let last = core::mem::replace(&mut self.last, original.clone());
        let Some(what) = self.byte() else {
            return vec![data];
        };
        let mut data = data;
        let mut more = Vec::new();
        match what & 0xf {
            0 | 1 => return vec![data],
            2 => {
                let at = self.below(data.len());
                data[at] = self.byte().unwrap_or(0);
            }
            3 => {
                let at = self.below(data.len());
                data[at] ^= 1 << (self.byte().unwrap_or(0) & 7);
            }
            4 => {
                let at = self.below(data.len() / 4) * 4;
                let edge = EDGES[usize::from(self.byte().unwrap_or(0)) % EDGES.len()];
                data[at..at + 4].copy_from_slice(&edge.to_le_bytes());
            }
            5 => {
                let n = self.below(data.len());
                data.truncate(n);
            }
            6 => {
                let n = self.below(BUF + 100);
                data.resize(n, 0);
            }
            7 => return Vec::new(),
            8 => data[6] = 0xd0 + self.byte().unwrap_or(0) % 8,
            9 => data[7] = self.byte().unwrap_or(0),
            10 => self.overwrite(&mut data, HEAD),
            11 => {
                // A message that the node never sent, with the head of this message.
                let mut made = original;
                let n = HEAD + self.below(BUF - HEAD);
                made.resize(n, 0);
                made[6] = 0xd0 + self.byte().unwrap_or(0) % 8;
                made[8..12].copy_from_slice(&(n as u32).to_le_bytes());
                self.overwrite(&mut made, HEAD);
                more.push(made);
            }
            12 => more.push(original),
            13 if !last.is_empty() => more.push(last),
            13 => {}
            14 => {
                let at = 16 + self.below(HEAD - 16);
                data[at] ^= self.byte().unwrap_or(0);
            }
            _ => {
                let n = self.below(BUF + 100) as u32;
                data[8..12].copy_from_slice(&n.to_le_bytes());
            }
        }
        more.push(data);
        if what & 0x80 == 0 {
            // No checksum: otherwise the receiver would drop nearly all of them.
            for data in &mut more {
                if let Some(cksum) = data.get_mut(12..16) {
                    cksum.fill(0);
                }
            }
        }
        more
    }
}

/// Returns the script, if it is for that node and not at its end.
fn script(node: usize) -> Option<&'static mut Foul> {
    w().foul
        .as_mut()
        .filter(|f| f.node == node && f.at < f.script.len())
}

/// Returns whether the world has a byzantine peer.
pub fn is_there() -> bool {
    w().foul.is_some()
}

/// Returns the messages that arrive when `node` sends a message.
pub fn message(node: usize, data: Vec<u8>) -> Vec<Vec<u8>> {
    let Some(foul) = script(node) else {
        return vec![data];
    };
    let from = foul.at;
    let messages = foul.message(data);
    if telling() {
        let to = foul.at;
        say(&format!("foul: {:02x?}", &foul.script[from..to]));
    }
    messages
}

/// Returns the address and key of a WRITE of `node`, or nothing if the script drops it.
pub fn write(node: usize, addr: u64, rkey: u32, data: &mut Vec<u8>) -> Option<(u64, u32)> {
    let Some(foul) = script(node) else {
        return Some((addr, rkey));
    };
    let from = foul.at;
    let (mut addr, mut rkey) = (addr, rkey);
    match foul.byte().unwrap_or(0) & 0xf {
        10 => {
            addr = addr
                .wrapping_add(foul.below(8192) as u64)
                .wrapping_sub(4096)
        }
        11 => rkey ^= 1 << (foul.byte().unwrap_or(0) & 31),
        12 => {
            let n = foul.below(data.len());
            data.truncate(n);
        }
        13 => data.resize(data.len() + foul.below(8192), 0),
        14 => return None,
        15 if !data.is_empty() => {
            let at = foul.below(data.len());
            data[at] ^= 0x5a;
        }
        _ => {}
    }
    if telling() {
        let to = foul.at;
        say(&format!("foul write: {:02x?}", &foul.script[from..to]));
    }
    Some((addr, rkey))
}

/// Changes private data that `node` sends with a CM message; its length does not change on
/// InfiniBand.
pub fn private(node: usize, data: &mut [u8]) {
    let Some(foul) = script(node) else {
        return;
    };
    if data.is_empty() {
        return;
    }
    let from = foul.at;
    match foul.byte().unwrap_or(0) & 0xf {
        11 => {
            let at = foul.below(data.len());
            data[at] = foul.byte().unwrap_or(0);
        }
        12 => foul.overwrite(data, 0),
        13 => {
            let at = foul.below(data.len() / 2) * 2;
            let edge = EDGES[usize::from(foul.byte().unwrap_or(0)) % EDGES.len()];
            data[at..at + 2].copy_from_slice(&edge.to_le_bytes()[..2]);
        }
        14 => {
            let n = foul.below(data.len());
            data[n..].fill(0);
        }
        15 => data.fill(foul.byte().unwrap_or(0)),
        _ => return,
    }
    if telling() {
        let to = foul.at;
        say(&format!(
            "foul private data: {:02x?}",
            &foul.script[from..to]
        ));
    }
}

/// Ends the script: the world changes no more messages.
pub fn end() {
    if let Some(foul) = &mut w().foul {
        foul.at = foul.script.len();
    }
}
