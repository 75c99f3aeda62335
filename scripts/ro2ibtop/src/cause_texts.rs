// SPDX-License-Identifier: GPL-2.0

//! Texts for the causes and reject reasons of the driver.

/// The causes of the driver.
#[allow(dead_code)]
#[path = "../../../rust/proto/cause.rs"]
mod cause;
#[path = "../../../rust/proto/reject_cause_table.rs"]
mod reject_cause_table;

use reject_cause_table::reject_causes;

/// Returns the phrase of a cause, as the log has it.
pub fn cause(name: &str) -> &str {
    let number = cause::NAMES.iter().position(|n| *n == name);

    number
        .and_then(|n| cause::PHRASES.get(n).copied())
        .unwrap_or(name)
}

/// Returns the advice for a cause; empty if there is none.
pub fn advice(name: &str, detail: &str) -> &'static str {
    match name {
        "Protocol" => "report it, with the software of the peer",
        "NoListener" => "the node answers",
        "Unreachable" => "is the NID right, is the node on",
        "Refused" => match detail {
            "Fatal" => "its log says why: another net or NID, or it denies this node",
            "NoResources" => "it has no room for more connections, or no memory",
            _ => "see the log of the peer",
        },
        "ConnectFailed" => "ping the address; is the peer's NI up",
        "ConnectTimeout" => {
            "nothing came over RDMA: ping it; no answer: node or cable; an answer: \
             UDP port 4791 in a firewall, P_Key, or an overloaded peer, of which its own report tells more"
        }
        "NoResources" => "look at memory and \"rdma resource show\"",
        "Backlog" => "LNet on this node is slow or stuck: its log, memory, load",
        "LocalFault" => "look at the device's lines in the log",
        "RemoteFault" => "look at the peer's device",
        "TransportRetry" => "check the fabric: cable, switch, MTU; or the peer is dead",
        "DeadlineQueued" | "DeadlineAnswer" => "the peer's LNet is slow",
        "DeadlineSending" => "check the fabric, or the peer is dead",
        "DeviceGone" => "look at \"rdma link\" and the device's lines in the log",
        "AddressChanged" => "look at \"ip addr\"",
        "LinkDown" => "cable, switch, \"ip link\"",
        "Moved" => "why did the bond fail over: cable, switch",
        _ => "",
    }
}

/// Defines the texts of the table.
macro_rules! phrases {
    ($($(#[$doc:meta])* $name:ident $(($value:ident: $kind:ty))?, $why:ident, $log:literal, $phrase:literal;)+) => {
        /// Returns the text of a reject reason.
        pub fn refusal(name: &str) -> &str {
            match name {
                $(stringify!($name) => $phrase,)+
                other => other,
            }
        }
    };
}

reject_causes!(phrases);

/// Rejects that are part of a negotiation, and no problem.
pub fn is_negotiation(name: &str) -> bool {
    matches!(
        name,
        "Depth" | "Frags" | "Race" | "StaleDestination" | "StalePeer" | "NotReady"
    )
}

/// Lists ends, most frequent first: `3 x refused by the peer, 1 x shutting down`. With more than `most`
/// causes, the rest is summed.
pub fn ends(of: &[(String, u64)], most: usize) -> String {
    let mut of: Vec<_> = of.iter().filter(|(_, n)| *n > 0).collect();
    of.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let (told, rest) = of.split_at(most.min(of.len()));
    let each = told.iter();
    let mut each: Vec<_> = each
        .map(|(name, n)| format!("{n} x {}", cause(name)))
        .collect();
    match rest.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n)) {
        0 => {}
        n => each.push(format!("{n} of other causes")),
    }
    each.join(", ")
}
