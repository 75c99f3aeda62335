// SPDX-License-Identifier: GPL-2.0

//! Parser of two parameters of the administrator, each a list of clauses that end with `;` or a newline: the peers that
//! may connect (`access`), and the tuning of an NI (`ni_tune`). Documentation/parameters.md has their meaning.
//!
//! ```text
//! access   = clause { ";" clause }
//! clause   = [ "on" range { range } ] ( "allow" | "deny" ) range { range }
//!
//! ni_tune  = tuning { ";" tuning }
//! tuning   = range { range } key "=" value { key "=" value }
//! ```
//!
//! The texts are checked when they are set, and parsed again for each use. Context: any.

use core::fmt;

use super::liveness::{
    LOOK_MIN_MS,
    PROBE_MAX_MS, //
};
use crate::proto::{
    nid::Nid,
    require, //
};

/// Reasons why a word is not a range of NIDs.
const NO_NET: &str = "no range of NIDs: it has no @net";
const NOT_O2IB: &str = "no range of NIDs: the net is not o2ib";
const ADDRESS: &str = "no range of NIDs: the address has not four parts";
const NUMBER: &str = "no range of NIDs: a number is wrong or too large";
const MASK: &str = "no range of NIDs: the length of the netmask is not 0 to 32";

/// Reasons why a clause is wrong.
const NO_VERDICT: &str = "it says neither allow nor deny";
const NO_RANGE: &str = "it names nobody";
const NO_KEY: &str = "it has no key=value";
const UNKNOWN_KEY: &str = "there is no such key";

/// Error in a text.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RuleError<'a> {
    /// The word, or the clause if a word is missing.
    pub at: &'a str,
    pub what: RuleErrorKind,
}

/// Kind of an error in a word.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RuleErrorKind {
    /// The word, the clause or its key is wrong.
    Wrong(&'static str),
    /// The value is not a number in this range, nor 0 if that is allowed, too.
    Value(i64, i64, bool),
}

impl fmt::Display for RuleError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": ", self.at)?;
        match self.what {
            RuleErrorKind::Wrong(why) => f.write_str(why),
            RuleErrorKind::Value(lo, hi, false) => write!(f, "out of range {lo}..{hi}"),
            RuleErrorKind::Value(lo, hi, true) => write!(f, "out of range: 0 or {lo}..{hi}"),
        }
    }
}

fn wrong<'a>(at: &'a str, why: &'static str) -> RuleError<'a> {
    let what = RuleErrorKind::Wrong(why);
    RuleError { at, what }
}

fn clauses(text: &str) -> impl Iterator<Item = &str> {
    let clauses = text.split([';', '\n']).map(str::trim);
    clauses.filter(|clause| !clause.is_empty())
}

/// Returns the number of clauses of a text.
pub fn count(text: &str) -> usize {
    clauses(text).count()
}

/// Returns whether one of the words names `nid`; all of them are read.
fn named<'a>(
    words: impl Iterator<Item = &'a str>,
    nid: Nid,
) -> Result<Option<bool>, RuleError<'a>> {
    let mut found = None;
    for word in words {
        let within = contains(word, nid).map_err(|why| wrong(word, why))?;
        found = Some(found.unwrap_or(false) | within);
    }
    Ok(found)
}

/// Returns whether a clause of `access` allows a peer on an NI; `None` if it does not name them.
fn verdict<'a>(clause: &'a str, ni: Nid, peer: Nid) -> Result<Option<bool>, RuleError<'a>> {
    let mut words = clause.split_ascii_whitespace().peekable();
    let mut ours = true;
    if words.next_if_eq(&"on").is_some() {
        // Not `take_while`, which would consume the verdict.
        let on = core::iter::from_fn(|| words.next_if(|word| !matches!(*word, "allow" | "deny")));
        ours = named(on, ni)?.ok_or(wrong(clause, NO_RANGE))?;
    }
    let allow = match words.next() {
        Some("allow") => true,
        Some("deny") => false,
        _ => return Err(wrong(clause, NO_VERDICT)),
    };
    let theirs = named(words, peer)?.ok_or(wrong(clause, NO_RANGE))?;
    Ok((ours && theirs).then_some(allow))
}

/// Returns whether `access` allows connections between `peer` and our `ni`.
///
/// # Errors
///
/// The first error of the text, even in a clause that names neither.
pub fn allows<'a>(access: &'a str, ni: Nid, peer: Nid) -> Result<bool, RuleError<'a>> {
    let mut first = None;
    for clause in clauses(access) {
        let says = verdict(clause, ni, peer)?;
        first = first.or(says);
    }
    Ok(first.unwrap_or(true))
}

/// Calls the macro `$with` with the keys of `ni_tune`, and the smallest and the largest value of each.
macro_rules! tunables {
    ($with:ident) => {
        $with! {
            /// Connections that this node opens to a peer.
            conns_per_peer: 1, 127;
            /// IP type of service of connections that this node opens, -1 for none.
            tos: -1, 255;
            /// Queue depth to offer, and the largest to accept.
            peer_credits: 1, 255;
            /// Transport retries.
            retry_count: 0, 7;
            /// Receiver-not-ready retries; 7 means no limit.
            rnr_retry_count: 0, 7;
            /// Seconds until a stuck transmit closes its connection.
            timeout: 1, 86_400;
            /// Idle seconds until a NOOP is sent, 0 for never.
            keepalive: 0, 86_400;
            /// Milliseconds of silence until a peer that owes an answer is probed, 0 for never.
            /// [`ProbeInterval`](super::liveness::ProbeInterval) does not clamp other values.
            probe: LOOK_MIN_MS, PROBE_MAX_MS, or 0;
        }
    };
}

macro_rules! tuning {
    ($($(#[$doc:meta])* $key:ident: $lo:expr, $hi:expr $(, or $zero:literal)?;)*) => {
        /// Tuning of an NI by `ni_tune`; `None`: the value of the module parameter, or of LNet.
        #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
        pub struct Tuning {
            $($(#[$doc])* pub $key: Option<i32>,)*
        }

        impl Tuning {
            fn set<'a>(&mut self, word: &'a str) -> Result<(), RuleError<'a>> {
                let (key, value) = word.split_once('=').ok_or(wrong(word, NO_KEY))?;
                $(if key == stringify!($key) {
                    let or_zero = false $(|| $zero == 0)?;
                    self.$key = Some(value_of(word, value, $lo.into(), $hi.into(), or_zero)?);
                    return Ok(());
                })*
                Err(wrong(word, UNKNOWN_KEY))
            }
        }
    };
}

tunables!(tuning);

pub(crate) use tunables;

/// Returns the tuning of an NI by `ni_tune`.
///
/// # Errors
///
/// The first error of the text, even in a clause that does not name the NI.
pub fn tuning<'a>(ni_tune: &'a str, ni: Nid) -> Result<Tuning, RuleError<'a>> {
    let mut all = Tuning::default();
    for clause in clauses(ni_tune) {
        let mut words = clause.split_ascii_whitespace().peekable();
        let ranges = core::iter::from_fn(|| words.next_if(|word| !word.contains('=')));
        let ours = named(ranges, ni)?.ok_or(wrong(clause, NO_RANGE))?;
        require(words.peek().is_some(), wrong(clause, NO_KEY))?;
        // All of the text is checked, including clauses for other NIs.
        let mut here = all;
        for word in words {
            here.set(word)?;
        }
        if ours {
            all = here;
        }
    }
    Ok(all)
}

/// Returns a value between `lo` and `hi`, or 0 if `or_zero`.
fn value_of<'a>(
    word: &'a str,
    value: &str,
    lo: i64,
    hi: i64,
    or_zero: bool,
) -> Result<i32, RuleError<'a>> {
    let what = RuleErrorKind::Value(lo, hi, or_zero);
    let n: Option<i64> = value.parse().ok();
    n.filter(|n| (lo..=hi).contains(n) || (or_zero && *n == 0))
        .and_then(|n| i32::try_from(n).ok())
        .ok_or(RuleError { at: word, what })
}

/// Returns whether `nid` is in the range `word`. All of the word is read whatever the NID, so that a word is valid for
/// all NIDs or for none.
pub fn contains(word: &str, nid: Nid) -> Result<bool, &'static str> {
    let (addr, net) = word.split_once('@').ok_or(NO_NET)?;
    let numbers = net.strip_prefix("o2ib").ok_or(NOT_O2IB)?;
    let in_net = match numbers {
        "" => nid.net_number() == 0,
        _ => among(numbers, u32::from(nid.net_number()), u32::from(u16::MAX))?,
    };
    let in_addr = in_addr(addr, nid.addr())?;
    Ok(in_net && in_addr && nid.is_o2ib())
}

fn in_addr(word: &str, addr: u32) -> Result<bool, &'static str> {
    if word == "*" {
        return Ok(true);
    }
    // A slash in brackets is a step.
    if !word.contains('[') {
        if let Some((net, bits)) = word.split_once('/') {
            return in_subnet(net, bits, addr);
        }
    }
    let mut all = true;
    for (part, octet) in parts(word)?.into_iter().zip(addr.to_be_bytes()) {
        all &= among(part, u32::from(octet), u32::from(u8::MAX))?;
    }
    Ok(all)
}

/// Returns the four parts of an address.
fn parts(word: &str) -> Result<[&str; 4], &'static str> {
    let mut words = word.split('.');
    let mut parts = [""; 4];
    for part in &mut parts {
        *part = words.next().ok_or(ADDRESS)?;
    }
    require(words.next().is_none(), ADDRESS)?;
    Ok(parts)
}

fn in_subnet(net: &str, bits: &str, addr: u32) -> Result<bool, &'static str> {
    let mut base = 0u32;
    for part in parts(net)? {
        base = base.wrapping_shl(8) | number(part, u32::from(u8::MAX))?;
    }
    let bits = number(bits, u32::BITS).map_err(|_| MASK)?;
    // A shift by 32 is none.
    let host = u32::MAX.checked_shr(bits).unwrap_or(0);
    Ok((base ^ addr) & !host == 0)
}

/// Returns whether `value` is among the numbers in `word`: `*`, a number, or in brackets numbers and ranges, optionally
/// with steps. None is above `max`.
fn among(word: &str, value: u32, max: u32) -> Result<bool, &'static str> {
    if word == "*" {
        return Ok(true);
    }
    let Some(list) = word.strip_prefix('[') else {
        return Ok(number(word, max)? == value);
    };
    let list = list.strip_suffix(']').ok_or(NUMBER)?;
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
        require(first <= last && step > 0, NUMBER)?;
        let ahead = value.checked_sub(first).filter(|_| value <= last);
        any |= ahead.is_some_and(|ahead| ahead.checked_rem(step) == Some(0));
    }
    Ok(any)
}

fn number(word: &str, max: u32) -> Result<u32, &'static str> {
    // `parse` would take a sign.
    let is_plain = word.bytes().all(|b| b.is_ascii_digit());
    let n = word.parse().ok().filter(|n| is_plain && *n <= max);
    n.ok_or(NUMBER)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_text_params))]
mod tests {
    use super::*;

    const NI: Nid = Nid::new(0, 0x0a00_0001);
    const NI1: Nid = Nid::new(1, 0x0a00_0001);

    fn peer(last: u8) -> Nid {
        Nid::new(0, u32::from_be_bytes([10, 0, 0, last]))
    }

    #[test]
    fn the_first_clause_that_names_the_peer_counts() {
        let text = "deny 10.0.0.[5-7]@o2ib 10.0.0.9@o2ib; allow 10.0.0.0/28@o2ib\ndeny *@o2ib";
        for (last, expected) in [(5, false), (7, false), (9, false), (8, true), (16, false)] {
            assert_eq!((last, allows(text, NI, peer(last))), (last, Ok(expected)));
        }
        // A peer that no clause names.
        assert_eq!(allows(text, NI, Nid::new(3, 1)), Ok(true));
        assert_eq!(allows("", NI, peer(1)), Ok(true));
        assert_eq!(allows(" ;\n ; ", NI, peer(1)), Ok(true));
    }

    #[test]
    fn clauses_are_counted() {
        for (text, n) in [
            ("", 0),
            (" ;\n ; ", 0),
            ("allow *@o2ib", 1),
            ("deny 10.0.0.5@o2ib;; allow *@o2ib\ndeny *@o2ib*;", 3),
        ] {
            assert_eq!((text, count(text)), (text, n));
        }
    }

    #[test]
    fn a_clause_may_be_for_one_of_our_nis() {
        let text = "on 10.0.0.1@o2ib1 deny *@o2ib*; on *@o2ib deny 10.0.0.4@o2ib";
        assert_eq!(allows(text, NI1, Nid::new(1, 7)), Ok(false));
        assert_eq!(allows(text, NI, peer(3)), Ok(true));
        assert_eq!(allows(text, NI, peer(4)), Ok(false));
    }

    #[test]
    fn access_faults_are_found_wherever_they_are() {
        let says = |text| allows(text, NI, peer(1)).map_err(|f| (f.at, f.what));
        assert_eq!(
            says("allow *@o2ib; refuse *@o2ib"),
            Err(("refuse *@o2ib", RuleErrorKind::Wrong(NO_VERDICT)))
        );
        assert_eq!(
            says("allow"),
            Err(("allow", RuleErrorKind::Wrong(NO_RANGE)))
        );
        assert_eq!(
            says("on deny *@o2ib"),
            Err(("on deny *@o2ib", RuleErrorKind::Wrong(NO_RANGE)))
        );
        assert_eq!(
            says("on *@o2ib"),
            Err(("on *@o2ib", RuleErrorKind::Wrong(NO_VERDICT)))
        );
        assert_eq!(
            says("allow *@o2ib; deny 10.0.0.1@tcp"),
            Err(("10.0.0.1@tcp", RuleErrorKind::Wrong(NOT_O2IB)))
        );
    }

    #[test]
    fn later_tunings_win() {
        let text = "*@o2ib* timeout=20 tos=96; 10.0.0.1@o2ib1 tos=-1 conns_per_peer=4\n\
                    9.9.9.9@o2ib retry_count=1";
        let expected = Tuning {
            timeout: Some(20),
            tos: Some(96),
            ..Tuning::default()
        };
        assert_eq!(tuning(text, NI), Ok(expected));
        let expected = Tuning {
            tos: Some(-1),
            conns_per_peer: Some(4),
            ..expected
        };
        assert_eq!(tuning(text, NI1), Ok(expected));
        assert_eq!(tuning("", NI), Ok(Tuning::default()));
    }

    #[test]
    fn tuning_faults_are_found_wherever_they_are() {
        let says = |text| tuning(text, NI).map_err(|f| (f.at, f.what));
        for (word, lo, hi) in [
            ("conns_per_peer=0", 1, 127),
            ("conns_per_peer=128", 1, 127),
            ("tos=256", -1, 255),
            ("peer_credits=0", 1, 255),
            ("retry_count=8", 0, 7),
            ("rnr_retry_count=-1", 0, 7),
            ("timeout=0", 1, 86_400),
            ("keepalive=x", 0, 86_400),
            ("timeout=99999999999999999999", 1, 86_400),
        ] {
            let value = RuleErrorKind::Value(lo, hi, false);
            let mut text = [0u8; 64];
            let clause = [b"9.9.9.9@o2ib ".as_slice(), word.as_bytes()];
            let mut at = 0;
            for byte in clause.into_iter().flatten() {
                if let Some(to) = text.get_mut(at) {
                    *to = *byte;
                }
                at = at.saturating_add(1);
            }
            let text = text.get(..at).and_then(|t| core::str::from_utf8(t).ok());
            assert_eq!(
                tuning(text.unwrap_or(""), NI).map_err(|f| (f.at, f.what)),
                Err((word, value))
            );
        }
        for text in [
            "*@o2ib probe=1",
            "*@o2ib probe=249",
            "*@o2ib probe=60001",
            "*@o2ib probe=-1",
            "*@o2ib probe=x",
        ] {
            let word = text.trim_start_matches("*@o2ib ");
            assert_eq!(
                says(text),
                Err((word, RuleErrorKind::Value(250, 60_000, true)))
            );
        }
        for (text, expected) in [("*@o2ib probe=0", 0), ("*@o2ib probe=250", 250)] {
            assert_eq!(tuning(text, NI).map(|t| t.probe), Ok(Some(expected)));
        }
        assert_eq!(
            says("*@o2ib"),
            Err(("*@o2ib", RuleErrorKind::Wrong(NO_KEY)))
        );
        assert_eq!(
            says("tos=1"),
            Err(("tos=1", RuleErrorKind::Wrong(NO_RANGE)))
        );
        assert_eq!(
            says("*@o2ib ntx=1"),
            Err(("ntx=1", RuleErrorKind::Wrong(UNKNOWN_KEY)))
        );
        assert_eq!(
            says("*@o2ib tos=1 x"),
            Err(("x", RuleErrorKind::Wrong(NO_KEY)))
        );
    }

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
            ("", NO_NET),
            ("10.0.0.1", NO_NET),
            ("10.0.0.1@tcp", NOT_O2IB),
            ("10.0.0.1@o2ib65536", NUMBER),
            ("10.0.0.1@o2ibx", NUMBER),
            ("10.0.0@o2ib", ADDRESS),
            ("10.0.0.0.1@o2ib", ADDRESS),
            ("10.0.0.256@o2ib", NUMBER),
            ("10.0.0.+1@o2ib", NUMBER),
            ("10.0.0.[5-1]@o2ib", NUMBER),
            ("10.0.0.[1-5/0]@o2ib", NUMBER),
            ("10.0.0.[1-5@o2ib", NUMBER),
            ("10.0.0.[]@o2ib", NUMBER),
            ("10.0.0.0/33@o2ib", MASK),
            ("10.0.0.0/@o2ib", MASK),
            ("10.0.0/8@o2ib", ADDRESS),
        ];
        for (word, expected) in cases {
            let got = contains(word, nid(0, 10, 0, 0, 3));
            assert_eq!((word, got), (word, Err(expected)));
        }
    }
}
