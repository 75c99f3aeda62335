// SPDX-License-Identifier: GPL-2.0

//! Verdicts on connections that ended, and ends that are not a problem.

mod common;

use ro2ibtop::{
    model::{
        Event,
        Ni,
        Peer,
        Sample, //
    },
    verdict::Level,
    view::App, //
};

/// Returns the end of a client's connection.
fn closed(client: usize, cause: &str, time: f64) -> Event {
    let by = match cause {
        "PeerClosed" => "peer",
        "LinkDown" | "DeviceGone" | "Moved" => "device",
        "AddressChanged" => "unknown",
        _ => "local",
    };
    Event {
        what: "closed".into(),
        time,
        peer: format!("10.0.1.{client}@o2ib"),
        by: by.into(),
        cause: cause.into(),
        count: 1,
        ..Event::default()
    }
}

/// Adds a sample of a server at that time, with the last 256 of these events.
fn look(app: &mut App, now: f64, events: &[Event], peers: Vec<Peer>) {
    let ni = Ni {
        nid: "10.0.0.1@o2ib".into(),
        device: "mlx5_0".into(),
        events: events[events.len().saturating_sub(256)..].to_vec(),
        peers,
        ..Ni::default()
    };
    app.take(Sample {
        time: now,
        nis: vec![ni],
        ..Sample::default()
    });
}

fn server(now: f64, events: &[Event]) -> App {
    let mut app = App::default();
    look(&mut app, now, events, Vec::new());
    app
}

/// Returns the ends of connections of several clients that ended together, within a second.
fn all(clients: usize, cause: &str, time: f64) -> Vec<Event> {
    let each = 0..clients;
    each.map(|i| closed(i, cause, time + i as f64 / clients as f64))
        .collect()
}

/// Returns several clients, all of them connected.
fn connected(clients: usize) -> Vec<Peer> {
    let peer = |i| Peer {
        nid: format!("10.0.1.{i}@o2ib"),
        conns: 1,
        usable: 1,
        ..Peer::default()
    };
    (0..clients).map(peer).collect()
}

#[test]
fn a_flapping_link_is_a_verdict_on_the_ni() {
    let mut app = App::default();
    let mut events = all(100, "LinkDown", 1000.0);
    look(&mut app, 1010.0, &events, connected(100));
    assert_eq!((app.nis[0].kind, app.worst()), ("fine", Level::Note));
    // The ring has no space for three ends of each peer.
    events.extend(all(100, "LinkDown", 1100.0));
    look(&mut app, 1120.0, &events, connected(100));
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("flaps", Level::Warn));
    assert_eq!(
        app.nis[0].words,
        "flaps, 2 times in 2 min, last 19 s ago: the link is down here: cable, switch, \"ip link\""
    );
    assert_eq!(app.worst(), Level::Warn);
    // One sample is enough.
    let one = server(1120.0, &events);
    assert_eq!(one.nis[0], app.nis[0]);
    // An hour later the flaps are no longer reported.
    look(&mut app, 1120.0 + 3600.0, &events, connected(100));
    assert_eq!(app.nis[0].kind, "fine");
}

#[test]
fn flaps_are_counted_whatever_the_cause() {
    let of = |causes: &[(&str, f64)]| {
        let each = causes.iter();
        let events: Vec<_> = each
            .flat_map(|(cause, time)| all(3, cause, *time))
            .collect();
        server(2000.0, &events).nis[0].words.clone()
    };
    assert!(
        of(&[("DeviceGone", 1500.0), ("Moved", 1600.0)]).starts_with(
            "flaps, 2 times in 8 min, last 6 min ago: the interface moved to another RDMA device: "
        )
    );
    assert!(of(&[("LinkDown", 1500.0), ("AddressChanged", 1990.0)]).starts_with("flaps, 2 times"));
    // An end that follows within seconds belongs to the same flap.
    assert_eq!(of(&[("LinkDown", 1990.0), ("Moved", 1993.0)]), "");
    // These causes are not this node's link, or an operator's action.
    for cause in ["PeerClosed", "TransportRetry", "AdminClose"] {
        assert_eq!(of(&[("LinkDown", 1500.0), (cause, 1990.0)]), "", "{cause}");
    }
}

/// Checks that a present problem comes before flaps, which are remembered for an hour.
#[test]
fn flaps_hide_nothing() {
    let mut app = App::default();
    for n in [3, 5] {
        let ni = Ni {
            nid: "10.0.0.1@o2ib".into(),
            device: "mlx5_0".into(),
            hardware: [("out_of_sequence".to_string(), n)].into(),
            events: [all(2, "LinkDown", 900.0), all(2, "LinkDown", 950.0)].concat(),
            ..Ni::default()
        };
        app.take(Sample {
            time: 1000.0 + n as f64,
            nis: vec![ni],
            ..Sample::default()
        });
        let kind = if n == 3 { "flaps" } else { "retries" };
        assert_eq!(app.nis[0].kind, kind);
    }
}

/// Checks that flaps are remembered if each of them fills the ring, and removes the one before.
#[test]
fn flaps_of_a_large_server_are_remembered() {
    let mut app = App::default();
    let mut events = Vec::new();
    for n in 0..3 {
        let time = 1000.0 + f64::from(n) * 60.0;
        events.extend(all(500, "LinkDown", time));
        // A sample during the flap, and a sample afterwards.
        let midst = events.len() - 250;
        look(&mut app, time + 0.5, &events[..midst], Vec::new());
        look(&mut app, time + 2.0, &events, Vec::new());
    }
    let words = &app.nis[0].words;
    assert!(words.starts_with("flaps, 3 times in 2"), "{words}");
    // The clock was set back, so earlier flaps are forgotten.
    look(&mut app, 500.0, &[], Vec::new());
    assert_eq!(app.nis[0].kind, "fine");
}

/// Checks that repeated restarts of a peer also name the other cause: two nodes with one NID end each other's
/// connection.
#[test]
fn a_peer_that_restarts_repeatedly_may_be_two_nodes() {
    let words = |times: &[f64], cause| {
        let events: Vec<_> = times.iter().map(|time| closed(7, cause, *time)).collect();
        let mut app = App::default();
        let mut peers = connected(8);
        peers.retain(|peer| peer.nid == "10.0.1.7@o2ib");
        look(&mut app, 1000.0, &events, peers);
        app.items[0].verdict.words.clone()
    };
    let two = "the peer was restarted, or two nodes have its address";
    let thrice = [970.0, 980.0, 990.0];
    assert!(words(&thrice, "PeerRestarted").starts_with("broke 3 times in 30 s, last 10 s ago: "));
    assert!(words(&thrice, "PeerRestarted").ends_with(two));
    assert!(!words(&thrice, "PeerClosed").contains("two nodes"));
    assert!(!words(&thrice[1..], "PeerRestarted").contains("two nodes"));
}

/// Checks that a client that unmounts (its connection closes) or restarts (a new incarnation) is not reported as a
/// problem of this node.
#[test]
fn a_client_that_goes_in_order_is_a_note() {
    for cause in ["PeerClosed", "PeerRestarted"] {
        let events = [closed(7, cause, 990.0)];
        // The peer exists for a while, and then it does not.
        let peer = |waiting| Peer {
            nid: "10.0.1.7@o2ib".into(),
            waiting,
            waited_ms: 900,
            ..Peer::default()
        };
        for peers in [vec![peer(0)], Vec::new()] {
            let mut app = App::default();
            look(&mut app, 1000.0, &events, peers);
            assert_eq!(app.worst(), Level::Note, "{cause}");
            assert!(app.items[0].verdict.words.starts_with("closed 10 s ago: "));
        }
        // A message waits for the peer.
        let mut app = App::default();
        look(&mut app, 1000.0, &events, vec![peer(1)]);
        assert_eq!(app.worst(), Level::Warn, "{cause}");
    }
    let broke = server(1000.0, &[closed(7, "TransportRetry", 990.0)]);
    assert_eq!(broke.worst(), Level::Warn);
    let failed = Event {
        what: "failed".into(),
        ..closed(7, "PeerRestarted", 990.0)
    };
    assert_eq!(server(1000.0, &[failed]).worst(), Level::Bad);
}
