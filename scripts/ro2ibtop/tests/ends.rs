// SPDX-License-Identifier: GPL-2.0

//! What is said of connections that ended, and what of it is nothing.

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

/// The connection of a client that ended.
fn closed(client: usize, cause: &str, time: f64) -> Event {
    let by = match cause {
        "PeerClosed" => "peer",
        "LinkDown" | "DeviceGone" | "Moved" | "AddressChanged" => "device",
        _ => "us",
    };
    Event {
        what: "closed".into(),
        time,
        peer: format!("10.0.1.{client}@o2ib"),
        by: by.into(),
        cause: cause.into(),
        times: 1,
        ..Event::default()
    }
}

/// A server at that time, with the last 256 of these events.
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

/// A client that unmounts closes its connection, one that was restarted has another life: neither is a trouble of this
/// node.
#[test]
fn a_client_that_goes_in_order_is_a_note() {
    for cause in ["PeerClosed", "PeerRestarted"] {
        let events = [closed(7, cause, 990.0)];
        // Its peer is there for a while, and then it is not.
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
        // Something waits for it.
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
