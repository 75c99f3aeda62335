// SPDX-License-Identifier: GPL-2.0

//! Properties of the administrator's texts: no text panics, what is accepted for one NID is accepted
//! for all, and a range holds exactly what it says.

use proptest::{
    collection::vec,
    prelude::*, //
};
use ro2iblnd_proto::{
    nid::Nid,
    policy::text_params::{
        allows,
        contains,
        tuning, //
    }, //
};

/// A piece of a range: what it says, and how it is written.
#[derive(Clone, Debug)]
enum Piece {
    All,
    One(u8),
    Some(Vec<(u8, u8, u8)>),
}

impl Piece {
    fn has(&self, n: u8) -> bool {
        match self {
            Piece::All => true,
            Piece::One(one) => *one == n,
            Piece::Some(some) => some.iter().any(|&(first, last, step)| {
                (first..=last).step_by(usize::from(step)).any(|m| m == n)
            }),
        }
    }

    fn text(&self) -> String {
        match self {
            Piece::All => "*".into(),
            Piece::One(one) => one.to_string(),
            Piece::Some(some) => {
                let items: Vec<_> = some
                    .iter()
                    .map(|(first, last, step)| match (first == last, step) {
                        (true, 1) => first.to_string(),
                        (_, 1) => format!("{first}-{last}"),
                        _ => format!("{first}-{last}/{step}"),
                    })
                    .collect();
                format!("[{}]", items.join(","))
            }
        }
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let range = (any::<u8>(), any::<u8>(), 1..=9u8).prop_map(|(a, b, s)| (a.min(b), a.max(b), s));
    prop_oneof![
        Just(Piece::All),
        any::<u8>().prop_map(Piece::One),
        vec(range, 1..4).prop_map(Piece::Some),
    ]
}

/// Addresses near each other, so that ranges hit.
fn address() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        any::<[u8; 4]>(),
        (0..4u8, 0..4u8).prop_map(|(c, d)| [10, 0, c, d])
    ]
}

/// Returns a text of the words of the language, in any order.
fn gibberish() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("on".to_string()),
        Just("allow".to_string()),
        Just("deny".to_string()),
        Just(";".to_string()),
        Just("\n".to_string()),
        Just("*@o2ib".to_string()),
        Just("10.0.0.[1-4]@o2ib".to_string()),
        Just("timeout=7".to_string()),
        Just("tos=-1".to_string()),
        "[0-9.*@o2ib,/=\\[\\]-]{0,12}",
        any::<String>(),
    ];
    vec(word, 0..12).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn a_range_matches_its_addresses(
        parts in [piece(), piece(), piece(), piece()], net in 0..4u16,
        addr in address(), of in 0..4u16,
    ) {
        let texts: Vec<_> = parts.iter().map(Piece::text).collect();
        let word = format!("{}@o2ib{}", texts.join("."), if net == 0 { String::new() } else { net.to_string() });
        let expected = net == of && parts.iter().zip(addr).all(|(part, n)| part.has(n));
        prop_assert_eq!(contains(&word, Nid::new(of, u32::from_be_bytes(addr))), Ok(expected), "{}", word);
    }

    #[test]
    fn a_netmask_matches_its_addresses(base in any::<[u8; 4]>(), bits in 0..=32u32, addr in address()) {
        let [a, b, c, d] = base;
        let word = format!("{a}.{b}.{c}.{d}/{bits}@o2ib");
        let same = (u64::from(u32::from_be_bytes(base)) >> (32 - bits))
            == (u64::from(u32::from_be_bytes(addr)) >> (32 - bits));
        prop_assert_eq!(contains(&word, Nid::new(0, u32::from_be_bytes(addr))), Ok(same));
    }

    #[test]
    fn syntax_check_is_the_same_for_all_nids(text in gibberish(), nids in [any::<u64>(), any::<u64>(), any::<u64>()]) {
        let [a, b, c] = nids.map(Nid::from_raw);
        prop_assert_eq!(allows(&text, a, b).is_ok(), allows(&text, b, c).is_ok());
        prop_assert_eq!(tuning(&text, a).is_ok(), tuning(&text, b).is_ok());
    }

    #[test]
    fn the_first_that_names_the_peer_counts(clauses in vec((any::<bool>(), piece()), 0..6), last in any::<u8>()) {
        let text: Vec<_> = clauses
            .iter()
            .map(|(allow, part)| format!("{} 10.0.0.{}@o2ib", if *allow { "allow" } else { "deny" }, part.text()))
            .collect();
        let first = clauses.iter().find(|(_, part)| part.has(last));
        let peer = Nid::new(0, u32::from_be_bytes([10, 0, 0, last]));
        let text = text.join("; ");
        prop_assert_eq!(allows(&text, Nid::ANY, peer), Ok(first.is_none_or(|(allow, _)| *allow)));
    }
}
