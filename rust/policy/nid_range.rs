// SPDX-License-Identifier: GPL-2.0

//! Ranges of NIDs in LNet's syntax: `10.0.0.[1-9]@o2ib`, `*@o2ib3`, `10.1.[0-3,7].*@o2ib`,
//! `10.0.0.[0-254/2]@o2ib[1-4]`, `10.0.0.0/24@o2ib`.
//!
//! A word is parsed again for each use: nothing is allocated, and nothing is kept.
//!
//! Context: any.

use core::fmt;

use crate::proto::nid::Nid;

/// Reason why a word is not a range of NIDs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BadRange {
    /// Without `@`.
    NoNet,
    /// Of another network type than o2ib.
    NotO2ib,
    /// The address does not have four parts.
    Address,
    /// A number is missing or too large, or a range runs backwards.
    Number,
    /// The length of a netmask is not 0 to 32.
    Mask,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadRange::NoNet => "it has no @net",
            BadRange::NotO2ib => "the net is not o2ib",
            BadRange::Address => "the address has not four parts",
            BadRange::Number => "a number is wrong or too large",
            BadRange::Mask => "the length of the netmask is not 0 to 32",
        })
    }
}

/// Returns whether `nid` is in the range `word`. All of the word is read whatever the NID, so that a word is valid for
/// all NIDs or for none.
pub fn contains(word: &str, nid: Nid) -> Result<bool, BadRange> {
    let (addr, net) = word.split_once('@').ok_or(BadRange::NoNet)?;
    let numbers = net.strip_prefix("o2ib").ok_or(BadRange::NotO2ib)?;
    let in_net = match numbers {
        "" => nid.net_number() == 0,
        _ => among(numbers, u32::from(nid.net_number()), u32::from(u16::MAX))?,
    };
    let in_addr = in_addr(addr, nid.addr())?;
    Ok(in_net && in_addr && nid.is_o2ib())
}

fn in_addr(word: &str, addr: u32) -> Result<bool, BadRange> {
    if word == "*" {
        return Ok(true);
    }
    // A slash in brackets is a step.
    if !word.contains('[') {
        if let Some((net, bits)) = word.split_once('/') {
            return in_subnet(net, bits, addr);
        }
    }
    let mut parts = word.split('.');
    let mut all = true;
    for octet in addr.to_be_bytes() {
        let part = parts.next().ok_or(BadRange::Address)?;
        all &= among(part, u32::from(octet), u32::from(u8::MAX))?;
    }
    match parts.next() {
        None => Ok(all),
        Some(_) => Err(BadRange::Address),
    }
}

fn in_subnet(net: &str, bits: &str, addr: u32) -> Result<bool, BadRange> {
    let mut parts = net.split('.');
    let mut base = [0u8; 4];
    for octet in &mut base {
        let part = parts.next().ok_or(BadRange::Address)?;
        let n = number(part, u32::from(u8::MAX))?;
        *octet = u8::try_from(n).map_err(|_| BadRange::Number)?;
    }
    if parts.next().is_some() {
        return Err(BadRange::Address);
    }
    let bits = number(bits, u32::BITS).map_err(|_| BadRange::Mask)?;
    // A shift by 32 is none.
    let host = u32::MAX.checked_shr(bits).unwrap_or(0);
    Ok((u32::from_be_bytes(base) ^ addr) & !host == 0)
}

/// Returns whether `value` is among the numbers in `word`: `*`, a number, or in brackets numbers and ranges, optionally
/// with steps. None is above `max`.
fn among(word: &str, value: u32, max: u32) -> Result<bool, BadRange> {
    if word == "*" {
        return Ok(true);
    }
    let Some(list) = word.strip_prefix('[') else {
        return Ok(number(word, max)? == value);
    };
    let list = list.strip_suffix(']').ok_or(BadRange::Number)?;
    let mut any = false;
    for item in list.split(',') {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, number(step, max)?),
            None => (item, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first, max)?, number(last, max)?),
            None => (number(range, max)?, number(range, max)?),
        };
        if first > last {
            return Err(BadRange::Number);
        }
        let ahead = value.checked_sub(first).filter(|_| value <= last);
        // No remainder by zero, and no step of zero either.
        let stepped = |ahead: u32| ahead.checked_rem(step).ok_or(BadRange::Number);
        let _ = stepped(0)?;
        any |= match ahead {
            Some(ahead) => stepped(ahead)? == 0,
            None => false,
        };
    }
    Ok(any)
}

fn number(word: &str, max: u32) -> Result<u32, BadRange> {
    // `parse` would take a sign.
    if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadRange::Number);
    }
    let n = word.parse().map_err(|_| BadRange::Number)?;
    if n > max {
        return Err(BadRange::Number);
    }
    Ok(n)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_nid_range))]
mod tests {
    use super::*;

    fn nid(net: u16, a: u8, b: u8, c: u8, d: u8) -> Nid {
        Nid::new(net, u32::from_be_bytes([a, b, c, d]))
    }

    #[test]
    fn lnets_words_are_understood() {
        let cases = [
            ("10.0.0.1@o2ib", nid(0, 10, 0, 0, 1), true),
            ("10.0.0.1@o2ib", nid(1, 10, 0, 0, 1), false),
            ("10.0.0.1@o2ib", nid(0, 10, 0, 0, 2), false),
            ("*@o2ib", nid(0, 1, 2, 3, 4), true),
            ("*@o2ib", nid(3, 1, 2, 3, 4), false),
            ("*@o2ib3", nid(3, 1, 2, 3, 4), true),
            ("*@o2ib*", nid(777, 1, 2, 3, 4), true),
            ("*@o2ib[1-4,9]", nid(9, 1, 2, 3, 4), true),
            ("*@o2ib[1-4,9]", nid(5, 1, 2, 3, 4), false),
            ("10.1.[0-3,7].*@o2ib", nid(0, 10, 1, 7, 200), true),
            ("10.1.[0-3,7].*@o2ib", nid(0, 10, 1, 4, 200), false),
            ("10.0.0.[1-254/2]@o2ib", nid(0, 10, 0, 0, 7), true),
            ("10.0.0.[1-254/2]@o2ib", nid(0, 10, 0, 0, 8), false),
            ("10.0.0.0/24@o2ib", nid(0, 10, 0, 0, 255), true),
            ("10.0.0.0/24@o2ib", nid(0, 10, 0, 1, 0), false),
            ("10.0.0.77/0@o2ib", nid(0, 192, 168, 1, 1), true),
            ("10.0.0.1/32@o2ib", nid(0, 10, 0, 0, 1), true),
            ("10.0.0.1/32@o2ib", nid(0, 10, 0, 0, 0), false),
        ];
        for (word, nid, expected) in cases {
            assert_eq!((word, contains(word, nid)), (word, Ok(expected)));
        }
        // A NID of another LND is in no range of ours.
        assert_eq!(contains("*@o2ib", Nid::ANY), Ok(false));
        assert_eq!(
            contains("*@o2ib", Nid::from_raw(0x0002_0000_0a00_0001)),
            Ok(false)
        );
    }

    #[test]
    fn malformed_range_is_an_error() {
        let cases = [
            ("", BadRange::NoNet),
            ("10.0.0.1", BadRange::NoNet),
            ("10.0.0.1@tcp", BadRange::NotO2ib),
            ("10.0.0.1@o2ib65536", BadRange::Number),
            ("10.0.0.1@o2ibx", BadRange::Number),
            ("10.0.0@o2ib", BadRange::Address),
            ("10.0.0.0.1@o2ib", BadRange::Address),
            ("10.0.0.256@o2ib", BadRange::Number),
            ("10.0.0.+1@o2ib", BadRange::Number),
            ("10.0.0.[5-1]@o2ib", BadRange::Number),
            ("10.0.0.[1-5/0]@o2ib", BadRange::Number),
            ("10.0.0.[1-5@o2ib", BadRange::Number),
            ("10.0.0.[]@o2ib", BadRange::Number),
            ("10.0.0.0/33@o2ib", BadRange::Mask),
            ("10.0.0.0/@o2ib", BadRange::Mask),
            ("10.0.0/8@o2ib", BadRange::Address),
        ];
        for (word, expected) in cases {
            let got = contains(word, nid(0, 10, 0, 0, 3));
            assert_eq!((word, got), (word, Err(expected)));
        }
    }
}
