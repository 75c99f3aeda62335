// SPDX-License-Identifier: GPL-2.0

//! Comparison of the table of causes in `Documentation/reference.md` with [`Cause`].

use std::collections::BTreeMap;

use ro2iblnd_proto::cause::{
    errno,
    Cause,
    Health, //
};

/// An errno that no cause has by itself, for causes that carry one.
const CARRIED: i32 = -61;

macro_rules! causes {
    ($($name:ident),* $(,)?) => {
        const CAUSES: &[Cause] = &[$(Cause::$name,)* Cause::Told(CARRIED), Cause::Local(CARRIED)];

        /// Fails to compile if a cause is missing above.
        fn is_listed(cause: Cause) -> bool {
            match cause {
                $(Cause::$name)|* | Cause::Told(_) | Cause::Local(_) => true,
            }
        }
    };
}

causes!(
    Shutdown,
    AdminClose,
    PeerDeleted,
    Denied,
    Backlog,
    PeerClosed,
    PeerRestarted,
    Protocol,
    Unreachable,
    NoListener,
    Refused,
    ConnectFailed,
    ConnectTimeout,
    NoResources,
    LocalFault,
    RemoteFault,
    TransportRetry,
    Flushed,
    DeadlineConnecting,
    DeadlineQueued,
    DeadlineSending,
    DeadlineAnswer,
    DeviceGone,
    LinkDown,
    Overtaken,
    AddressChanged,
    Moved,
    PathMtu,
);

/// Returns the name of `status` in the document.
fn status_name(status: i32) -> &'static str {
    match -status {
        errno::EIO => "EIO",
        errno::ENOMEM => "ENOMEM",
        errno::EBUSY => "EBUSY",
        errno::EPROTO => "EPROTO",
        errno::ENETDOWN => "ENETDOWN",
        errno::ECONNABORTED => "ECONNABORTED",
        errno::ECONNRESET => "ECONNRESET",
        errno::ETIMEDOUT => "ETIMEDOUT",
        errno::ECONNREFUSED => "ECONNREFUSED",
        errno::EHOSTUNREACH => "EHOSTUNREACH",
        errno::ESTALE => "ESTALE",
        n if n == -CARRIED => "that errno",
        n => panic!("errno {n} has no name here"),
    }
}

/// Returns LNet's name of `health` without its prefix.
fn health_name(health: Health) -> &'static str {
    match health {
        Health::Ok => "OK",
        Health::LocalInterrupt => "LOCAL_INTERRUPT",
        Health::LocalDropped => "LOCAL_DROPPED",
        Health::LocalAborted => "LOCAL_ABORTED",
        Health::LocalNoRoute => "LOCAL_NO_ROUTE",
        Health::LocalError => "LOCAL_ERROR",
        Health::LocalTimeout => "LOCAL_TIMEOUT",
        Health::RemoteError => "REMOTE_ERROR",
        Health::RemoteDropped => "REMOTE_DROPPED",
        Health::RemoteTimeout => "REMOTE_TIMEOUT",
        Health::NetworkTimeout => "NETWORK_TIMEOUT",
    }
}

/// Returns one value, or both if they differ for a posted message.
fn both(before: &str, posted: &str) -> String {
    if before == posted {
        before.into()
    } else {
        format!("{before}, posted: {posted}")
    }
}

/// Returns the rows of the table by the name of the cause.
fn rows() -> BTreeMap<String, Vec<String>> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../Documentation/reference.md"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text
        .split_once("\n## Causes and their LNet status\n")
        .unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut rows = BTreeMap::new();
    for line in section
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
    {
        let cells = line
            .trim_matches('|')
            .split('|')
            .map(|c| c.trim().to_string());
        let cells: Vec<_> = cells.collect();
        let name = cells[1].trim_matches('`').to_string();
        assert!(rows.insert(name, cells).is_none(), "twice: {line}");
    }
    rows
}

#[test]
fn table_of_causes_matches_the_code() {
    let mut rows = rows();
    for &cause in CAUSES {
        assert!(is_listed(cause));
        let name = format!("{cause:?}").replace(&CARRIED.to_string(), "errno");
        let cells = rows
            .remove(&name)
            .unwrap_or_else(|| panic!("no row: {name}"));
        let (before, posted) = (cause.outcome(false), cause.outcome(true));
        let phrase = &cells[0];
        assert!(
            phrase.starts_with("(none") || phrase.starts_with(cause.as_str()),
            "{name}: {phrase}"
        );
        let status = both(status_name(before.status), status_name(posted.status));
        assert_eq!(cells[2], status, "{name}");
        let health = both(health_name(before.health), health_name(posted.health));
        assert_eq!(cells[3], health, "{name}");
        // Single messages end for these, and no connection.
        let of_a_message = matches!(
            cause,
            Cause::DeadlineConnecting | Cause::Told(_) | Cause::Local(_)
        );
        let down = cause.has(Cause::BLAMES_PEER) && !of_a_message;
        assert_eq!(cells[4] == "yes", down, "{name}: peer down");
    }
    assert!(rows.is_empty(), "no such cause: {:?}", rows.keys());
}
