// SPDX-License-Identifier: GPL-2.0

//! A foul peer: what one of the nodes sends is changed on its way, as a script of bytes says.
//!
//! The node itself runs the driver and means well, so that connections come about. Its messages are cut,
//! changed, swallowed, doubled and made up; its WRITEs go elsewhere; so does the private data of the CM
//! change. What has to hold of the driver then holds all the same, on both sides, but that data is right
//! and that a message finds a buffer. When the script is at its end all goes well again.

use crate::world::{
    say,
    telling,
    w, //
};

/// A script, and whose messages it is for.
pub struct Foul {
    node: usize,
    script: Vec<u8>,
    at: usize,
    last: Vec<u8>,
}

/// Numbers that are at the edge of something.
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

/// Where the body of a message begins.
const HEAD: usize = 48;

/// Bytes of a buffer.
const BUF: usize = 4096;

impl Foul {
    /// A script for what `node` sends.
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

    /// Two bytes, as a number below `n`.
    fn below(&mut self, n: usize) -> usize {
        let low = self.byte().unwrap_or(0);
        let high = self.byte().unwrap_or(0);
        usize::from(u16::from_le_bytes([low, high])) % n.max(1)
    }

    /// Writes a few bytes of the script, from some place on.
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
                // One that nobody sent, with the head of this one.
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
            // No checksum: else hardly any would be read.
            for data in &mut more {
                if let Some(cksum) = data.get_mut(12..16) {
                    cksum.fill(0);
                }
            }
        }
        more
    }
}

/// The script, if it is for that node, and not at its end.
fn script(node: usize) -> Option<&'static mut Foul> {
    w().foul
        .as_mut()
        .filter(|f| f.node == node && f.at < f.script.len())
}

/// Whether there is a foul peer in the world.
pub fn is_there() -> bool {
    w().foul.is_some()
}

/// What arrives when `node` sends a message.
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

/// Where a WRITE of `node` goes, and with which key; nowhere, if that is not to be seen.
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

/// What becomes of private data that `node` sends with a message of the CM; its length does not change
/// on InfiniBand.
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

/// All goes well from now on.
pub fn end() {
    if let Some(foul) = &mut w().foul {
        foul.at = foul.script.len();
    }
}
