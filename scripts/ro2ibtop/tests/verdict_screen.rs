// SPDX-License-Identifier: GPL-2.0

//! Verdicts, and their presence on the screen.

mod common;

use std::time::Duration;

use ro2ibtop::{
    histograms::Times,
    model::{
        Conn,
        Counts,
        Event,
        Ni,
        Peer,
        Sample, //
    },
    verdict::{
        self,
        Level, //
    },
    view::{
        App,
        Order, //
    }, //
};

/// Returns the kinds and levels of all verdicts on a problem.
fn troubles(app: &App) -> Vec<(&str, &'static str, Level)> {
    let items = app.items.iter();
    let items = items.filter(|item| item.verdict.level > Level::Note);
    let mut all: Vec<_> = items
        .map(|item| (item.peer.as_str(), item.verdict.kind, item.verdict.level))
        .collect();
    let nis = app.sample.nis.iter().zip(&app.nis);
    let nis = nis.filter(|(_, verdict)| verdict.level > Level::Note);
    all.extend(nis.map(|(ni, verdict)| (ni.nid.as_str(), verdict.kind, verdict.level)));
    all
}

fn on_screen(app: &App, words: &str) -> bool {
    let lines = common::lines(&common::screen(app, 200, 40));
    lines.iter().any(|line| line.contains(words))
}

#[test]
fn a_healthy_node_is_fine() {
    let app = common::app(common::guest("healthy"));
    assert_eq!(troubles(&app), []);
    assert_eq!(app.worst(), Level::Fine);
    assert!(on_screen(&app, "2 connections; nothing wrong"));
}

#[test]
fn a_slow_peer_is_named() {
    let app = common::app(common::guest("slow-peer"));
    let peer = ("10.0.0.2@o2ib", "no-answer", Level::Bad);
    assert_eq!(&troubles(&app)[..2], [peer, peer]);
    assert!(on_screen(
        &app,
        "a PUT or GET has no answer for 5.4 s: the peer's LNet is slow"
    ));
    // An address without a node.
    assert!(troubles(&app).contains(&("10.0.0.77@o2ib", "gone", Level::Bad)));
    assert!(on_screen(&app, "connecting failed 5.5 s ago: unreachable"));
}

#[test]
fn a_peer_that_keeps_all_credits_is_named() {
    let app = common::app(common::guest("starved"));
    assert_eq!(troubles(&app), [("10.0.0.2@o2ib", "starved", Level::Bad)]);
    let words = "peer keeps all credits for 8.3 s: the peer's LNet is slow; 8 messages wait";
    assert!(on_screen(&app, words));
}

#[test]
fn a_slow_node_is_named() {
    let app = common::app(common::guest("slow-here"));
    assert_eq!(
        troubles(&app),
        [("10.0.0.1@o2ib", "our-lnet-slow", Level::Warn)]
    );
    assert!(on_screen(&app, "our LNet keeps 8 requests for 1."));
    assert!(on_screen(
        &app,
        " s: this node is slow, the peer has 0 credits left of 8"
    ));
}

#[test]
fn a_rejected_request_is_shown_on_both_sides() {
    let app = common::app(common::guest("refused"));
    assert!(troubles(&app).contains(&("10.0.0.2@o2ib", "gone", Level::Bad)));
    assert!(on_screen(&app, "refused by the peer (Fatal)"));
    let app = common::app(common::guest("wrong-net"));
    assert_eq!(app.worst(), Level::Warn);
    assert!(on_screen(&app, "no NI has the requested NID"));
    assert!(on_screen(&app, "last of 10.0.0.1@o2ib for 10.0.0.2@o2ib"));
    // No table shows these requests, so they are at the top of the screen.
    let lines = common::lines(&common::screen(&app, 200, 40));
    assert!(lines[1].starts_with("requests for unknown NIs"));
    assert!(on_screen(
        &app,
        "0 connections; wrong: 0 bad, 1 slow or odd"
    ));
}

#[test]
fn a_dead_peer_is_named() {
    let app = common::app(common::guest("dead-peer"));
    let told = troubles(&app);
    assert!(
        told.contains(&("10.0.0.2@o2ib", "not-acknowledged", Level::Bad)),
        "{told:?}"
    );
    assert!(
        told.contains(&("10.0.0.1@o2ib", "retries", Level::Warn)),
        "{told:?}"
    );
    assert!(on_screen(&app, "retries: check the fabric"));
    let app = common::app(common::guest("no-peer"));
    assert!(troubles(&app).contains(&("10.0.0.2@o2ib", "gone", Level::Bad)));
}

#[test]
fn a_booting_peer_is_named() {
    let app = common::app(common::guest("booting"));
    assert_eq!(troubles(&app), [("10.0.0.2@o2ib", "waiting", Level::Bad)]);
    let words = "3 messages wait 5.6 s for a connection; next try in 4.4 s, 9 failures; the peer rejects for now";
    assert!(on_screen(&app, words));
}

#[test]
fn ends_are_reported() {
    let mut app = common::app(common::guest("ended"));
    let told = troubles(&app);
    assert!(
        told.contains(&("10.0.0.2@o2ib", "breaks", Level::Warn)),
        "{told:?}"
    );
    let words = "; so far 4 x closed by the peer, 2 x closed by lctl disconnect, 6 of other causes";
    assert!(on_screen(&app, words));
    assert!(on_screen(&app, "requests for unknown NIs"));
    // All ends are shown, and no line of the list.
    app.events = true;
    assert!(on_screen(&app, "the link is down here"));
    assert!(on_screen(&app, "no NI has the requested NID"));
    assert!(!on_screen(&app, "broke"));
}

fn conn() -> Conn {
    Conn {
        peer: "10.0.0.2@o2ib".into(),
        state: "Established".into(),
        depth: 8,
        credits: 8,
        reserved: 8,
        peer_held: 8,
        sq_free: 100,
        oldest: "none".into(),
        ..Conn::default()
    }
}

fn judged(change: impl FnOnce(&mut Conn)) -> (&'static str, Level, String) {
    let mut conn = conn();
    change(&mut conn);
    let verdict = verdict::conn(&conn, None, verdict::Way::default());
    (verdict.kind, verdict.level, verdict.words)
}

#[test]
fn each_trouble_of_a_connection_has_its_words() {
    assert_eq!(judged(|_| {}).0, "fine");
    let starved = judged(|c| {
        (c.credits, c.q_main, c.oldest_ms) = (1, 5, 4000);
        c.oldest = "queued".into();
    });
    assert_eq!((starved.0, starved.1), ("starved", Level::Bad));
    assert_eq!(
        starved.2,
        "peer keeps all credits for 4.0 s: the peer's LNet is slow; 5 messages wait"
    );
    assert_eq!(judged(|c| (c.credits, c.q_main) = (0, 1)).1, Level::Note);
    assert_eq!(judged(|c| c.counts.rnr = 1).0, "rnr");
    assert_eq!(
        judged(|c| (c.q_unreserved, c.reserved) = (3, 0)).0,
        "no-reserve"
    );
    let late = judged(|c| (c.q_unreserved, c.reserved, c.oldest_ms) = (3, 0, 900));
    assert_eq!((late.0, late.1), ("no-answer", Level::Warn));
    assert_eq!(
        judged(|c| (c.with_lnet, c.peer_held) = (7, 1)).0,
        "our-lnet-slow"
    );
    let unacked = |ms, idle_ms| {
        judged(|c| {
            (c.oldest_ms, c.idle_ms) = (ms, idle_ms);
            c.oldest = "sending".into();
        })
    };
    // Without a receive since then the peer may be dead. With a receive the peer is alive, and large packets are lost.
    assert_eq!(unacked(4000, 3900).0, "not-acknowledged");
    assert_eq!(unacked(600, 590).0, "not-acknowledged");
    let soon = unacked(600, 20);
    assert_eq!((soon.0, soon.1), ("lossy", Level::Warn));
    let lossy = unacked(4000, 300);
    assert_eq!((lossy.0, lossy.1), ("lossy", Level::Bad));
    let words = "not acknowledged for 4.0 s, and the peer was heard 300 ms ago: packets get lost, ";
    assert!(lossy.2.starts_with(words), "{}", lossy.2);
    assert_eq!(judged(|c| c.suspect = true).0, "suspect");
    assert_eq!(judged(|c| c.state = "Draining".into()).0, "closing");
    assert_eq!(judged(|c| c.state = "Resolving".into()).0, "connecting");
    let full = |c: &mut Conn| {
        (c.sq_free, c.oldest_ms) = (0, 900);
        c.oldest = "queued".into();
    };
    assert_eq!(judged(full).0, "no-slots");
}

/// Creates a view of one NI, changed by `changes`, with a sample each second.
fn node(changes: &[&dyn Fn(&mut Ni)]) -> App {
    looked_at(1.0, changes)
}

/// Creates the same view with that number of seconds between two samples.
fn looked_at(every: f64, changes: &[&dyn Fn(&mut Ni)]) -> App {
    let mut app = App::default();
    for (at, change) in changes.iter().enumerate() {
        let mut ni = Ni {
            nid: "10.0.0.1@o2ib".into(),
            device: "mlx5_0".into(),
            ..Ni::default()
        };
        change(&mut ni);
        app.take(Sample {
            time: 1000.0 + every * at as f64,
            nis: vec![ni],
            ..Sample::default()
        });
    }
    app
}

#[test]
fn each_trouble_of_an_ni_has_its_words() {
    let memory = |n| {
        move |ni: &mut Ni| {
            ni.causes
                .insert("other".into(), vec![("NoMemory".into(), n)]);
        }
    };
    let app = node(&[&memory(2), &memory(5)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("memory", Level::Warn));
    assert_eq!(
        app.nis[0].words,
        "no memory for 3 messages just now: they wait, or LNet resends them"
    );
    // PUTs of peers are rejected because there is no memory.
    let refused = |n, naks| {
        move |ni: &mut Ni| {
            memory(n)(ni);
            ni.latency.push(wire("PUT_NAK", naks));
        }
    };
    let app = node(&[&refused(2, 2), &refused(5, 5)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("memory", Level::Bad));
    assert_eq!(
        app.nis[0].words,
        "no memory for 3 PUTs of peers just now: refused"
    );
    // No message waited for the other PUTs.
    let app = node(&[&refused(2, 2), &refused(5, 50)]);
    assert_eq!(
        app.nis[0].words,
        "no memory for 3 PUTs of peers just now: refused"
    );
    // The rejected PUTs are from before the previous sample.
    let app = node(&[&refused(2, 2), &refused(5, 2)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("memory", Level::Warn));
    let used_up = |n| {
        move |ni: &mut Ni| {
            memory(n)(ni);
            (ni.regions, ni.max_regions) = (24, 24);
        }
    };
    let app = node(&[&used_up(2), &used_up(5)]);
    let words = "no memory region, all 24 are in use, for 3 messages just now";
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("memory", Level::Warn));
    assert!(app.nis[0].words.starts_with(words));
    // The device makes no region, although the NI has none yet.
    let no_region = |n| {
        move |ni: &mut Ni| {
            let counts = vec![("NoMemory".into(), n), ("NoRegion".into(), n)];
            ni.causes.insert("other".into(), counts);
            ni.max_regions = 24;
        }
    };
    let app = node(&[&no_region(2), &no_region(3)]);
    let words = "no memory region, the device provides none, for 1 message just now";
    assert!(app.nis[0].words.starts_with(words));
    let app = node(&[&memory(5), &memory(5)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("memory", Level::Note));
    let app = node(&[&|ni: &mut Ni| ni.device.clear()]);
    assert_eq!(
        (app.nis[0].kind, app.nis[0].level),
        ("no-device", Level::Bad)
    );
    // A fault of the device is reported in any state of the link.
    let ill = |health: &'static str| {
        move |ni: &mut Ni| {
            ni.health = health.into();
            ni.link_down = true;
        }
    };
    for (health, kind, words) in [
        ("broken", "device-broken", "mlx5_0 reported a fatal error, "),
        ("gsi_dead", "gsi-dead", "no peer can connect, "),
        ("refuses", "posts-refused", "mlx5_0 refused work requests, "),
        ("ok", "link-down", "the link is down: "),
    ] {
        let app = node(&[&ill(health)]);
        assert_eq!((app.nis[0].kind, app.nis[0].level), (kind, Level::Bad));
        assert!(app.nis[0].words.starts_with(words), "{}", app.nis[0].words);
    }
    let app = node(&[&|ni: &mut Ni| ni.link_down = true]);
    assert_eq!(
        (app.nis[0].kind, app.nis[0].level),
        ("link-down", Level::Bad)
    );
    let counter = |n| {
        move |ni: &mut Ni| {
            ni.hardware.insert("local_ack_timeout_err".into(), n);
        }
    };
    let app = node(&[&counter(7), &counter(9)]);
    assert_eq!(
        app.nis[0].words,
        "retries: check the fabric (local_ack_timeout_err +2)"
    );
    assert_eq!(node(&[&counter(9), &counter(9)]).nis[0].kind, "fine");
    let app = node(&[&|ni: &mut Ni| {
        ni.peers.push(Peer {
            nid: "10.0.0.9@o2ib".into(),
            waiting: 3,
            waited_ms: 7000,
            ..Peer::default()
        });
    }]);
    assert_eq!(troubles(&app), [("10.0.0.9@o2ib", "waiting", Level::Bad)]);
}

/// Returns the histogram of the wire, with that number of messages of a kind.
fn wire(op: &str, n: u64) -> Times {
    Times {
        stage: "wire".into(),
        op: op.into(),
        counts: vec![(1000, n)],
        ..Times::default()
    }
}

#[test]
fn a_connection_whose_messages_are_refused_is_not_fine() {
    let short = |n| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            conn.counts.no_memory = n;
            ni.conns.push(conn);
        }
    };
    let app = node(&[&short(2), &short(4)]);
    let verdict = &app.items[0].verdict;
    assert_eq!((verdict.kind, verdict.level), ("memory", Level::Bad));
    assert_eq!(
        verdict.words,
        "no memory, or no memory region, here for 2 messages just now"
    );
    assert_eq!(node(&[&short(4), &short(4)]).worst(), Level::Fine);
}

#[test]
fn no_answer_where_connections_break_need_not_be_lnet() {
    let waits = |breaks: &'static [f64]| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            (conn.oldest_ms, conn.oldest) = (5900, "answer".into());
            ni.conns.push(conn);
            ni.events.extend(breaks.iter().map(|time| Event {
                what: "closed".into(),
                time: *time,
                peer: "10.0.0.2@o2ib".into(),
                by: "peer".into(),
                cause: "PeerClosed".into(),
                count: 1,
                ..Event::default()
            }));
        }
    };
    let words = |breaks| node(&[&waits(breaks)]).items[0].verdict.words.clone();
    let slow = "a PUT or GET has no answer for 5.9 s: the peer's LNet is slow";
    assert_eq!(words(&[]), slow);
    assert_eq!(words(&[990.0]), slow);
    assert!(words(&[980.0, 990.0]).contains("connections break"));
}

#[test]
fn a_young_ni_is_named() {
    let started = |seconds: u64| move |ni: &mut Ni| ni.incarnation = seconds * 1_000_000;
    let app = node(&[&started(993)]);
    assert_eq!((app.nis[0].level, app.nis[0].kind), (Level::Fine, "fine"));
    assert_eq!(app.nis[0].words, "ok, started 7.0 s ago");
    // Neither a start long ago, nor a start in the future (the clock was set back).
    for seconds in [399, 1002] {
        assert_eq!(node(&[&started(seconds)]).nis[0].words, "");
    }
}

#[test]
fn packets_of_another_partition_are_shown() {
    let bad = |n| move |ni: &mut Ni| ni.bad_pkeys = n;
    let app = node(&[&bad(0), &bad(0)]);
    assert_eq!(app.nis[0].level, Level::Fine);
    let app = node(&[&bad(0), &bad(4)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("pkeys", Level::Warn));
    let words =
        "4 packets of another partition since the NI has this device: compare the P_Keys of both nodes";
    assert_eq!(app.nis[0].words, words);
    // The packets may be an hour old.
    let app = node(&[&bad(4), &bad(4)]);
    assert_eq!((app.nis[0].kind, app.nis[0].level), ("pkeys", Level::Note));
}

#[test]
fn a_peer_that_refuses_messages_is_named() {
    let told = |n| {
        move |ni: &mut Ni| {
            ni.conns.push(conn());
            ni.causes
                .insert("messages".into(), vec![("Told".into(), n)]);
        }
    };
    assert_eq!(node(&[&told(5), &told(5)]).worst(), Level::Fine);
    let app = node(&[&told(5), &told(8)]);
    assert_eq!(
        (app.nis[0].kind, app.nis[0].level),
        ("peer-failed", Level::Warn)
    );
    let words =
        "3 messages failed just now because a peer could not receive or answer them: check the peer";
    assert_eq!(app.nis[0].words, words);
}

#[test]
fn lost_packets_are_looked_at_before_a_slow_lnet() {
    let starved = |retries: u64| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            (conn.credits, conn.q_main, conn.oldest_ms) = (0, 5, 4000);
            conn.oldest = "queued".into();
            ni.conns.push(conn);
            ni.hardware.insert("out_of_sequence".into(), retries);
        }
    };
    let words = |app: &App| app.items[0].verdict.words.clone();
    let quiet = node(&[&starved(7), &starved(7)]);
    assert_eq!(
        words(&quiet),
        "peer keeps all credits for 5.0 s: the peer's LNet is slow; 5 messages wait"
    );
    let lossy = node(&[&starved(7), &starved(9)]);
    assert_eq!(
        words(&lossy),
        "peer keeps all credits for 5.0 s: packets get lost, as the NI says; if not, the peer's LNet is slow; \
         5 messages wait"
    );
}

#[test]
fn a_node_that_takes_nothing_is_bad_after_seconds() {
    let kept = |rx_msgs| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            (conn.with_lnet, conn.peer_held) = (8, 0);
            conn.counts.rx_msgs = rx_msgs;
            ni.conns.push(conn);
        }
    };
    // A sample a second; signs of life arrive.
    let stuck = [&kept(10), &kept(11), &kept(12), &kept(13)];
    let stuck = stuck.map(|k| k as &dyn Fn(&mut Ni));
    assert_eq!(node(&stuck[..3]).worst(), Level::Warn);
    let app = node(&stuck);
    assert_eq!(
        (app.nis[0].kind, app.nis[0].level),
        ("our-lnet-slow", Level::Bad)
    );
    // The peer closed the connection and connected again: the duration continues.
    let again = |number, rx_msgs| {
        move |ni: &mut Ni| {
            kept(rx_msgs)(ni);
            for conn in &mut ni.conns {
                conn.number = number;
            }
        }
    };
    let anew = [&again(1, 10), &again(1, 11), &again(2, 1), &again(3, 2)];
    let app = node(&anew.map(|k| k as &dyn Fn(&mut Ni)));
    assert_eq!(
        (app.nis[0].kind, app.nis[0].level),
        ("our-lnet-slow", Level::Bad)
    );
    // LNet is busy, and takes messages.
    let busy = [&kept(100), &kept(200), &kept(300), &kept(400)];
    assert_eq!(
        node(&busy.map(|k| k as &dyn Fn(&mut Ni))).worst(),
        Level::Warn
    );
}

/// Checks a link that is full: the oldest message has waited for others, and the path is good.
#[test]
fn full_link_is_not_packet_loss() {
    let sending = |retired, idle_ms| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            (conn.oldest_ms, conn.idle_ms) = (4000, idle_ms);
            conn.oldest = "sending".into();
            conn.counts.retired = retired;
            ni.conns.push(conn);
        }
    };
    let said = |looks: &[(u64, u64)]| {
        let looks: Vec<_> = looks.iter().map(|&(n, idle)| sending(n, idle)).collect();
        let looks: Vec<_> = looks.iter().map(|look| look as &dyn Fn(&mut Ni)).collect();
        let app = node(&looks);
        let verdict = &app.items[0].verdict;
        (verdict.kind, verdict.level)
    };
    // One sample cannot show progress.
    assert_eq!(said(&[(7, 300)]), ("lossy", Level::Bad));
    // No message is acknowledged.
    assert_eq!(said(&[(7, 300), (7, 300)]), ("lossy", Level::Bad));
    assert_eq!(
        said(&[(7, 3900), (7, 3900)]),
        ("not-acknowledged", Level::Bad)
    );
    for idle_ms in [300, 3900] {
        assert_eq!(said(&[(7, idle_ms), (9, idle_ms)]), ("full", Level::Note));
    }
    // Sends were acknowledged, and have not been for a second: the wait counts from then.
    assert_eq!(
        said(&[(7, 300), (9, 300), (9, 300)]),
        ("lossy", Level::Warn)
    );
    let still = [(7, 300), (9, 300), (9, 300), (9, 300), (9, 300)];
    assert_eq!(said(&still), ("lossy", Level::Bad));
}

/// Checks a peer that sent many messages just before the second sample, which does not show the time between.
#[test]
fn a_burst_is_not_kept() {
    let looks = |with_lnet: [u64; 2]| {
        let looks = with_lnet.map(|with_lnet| {
            move |ni: &mut Ni| {
                let mut conn = conn();
                (conn.with_lnet, conn.peer_held) = (with_lnet, 8 - with_lnet);
                ni.conns.push(conn);
            }
        });
        looked_at(5.0, &[&looks[0], &looks[1]]).worst()
    };
    assert_eq!(looks([0, 8]), Level::Warn);
    assert_eq!(looks([8, 8]), Level::Bad);
}

#[test]
fn data_that_gets_through_excludes_a_wrong_mtu() {
    let lossy = |done: u64, peers: usize| {
        move |ni: &mut Ni| {
            let mut conn = conn();
            (conn.oldest_ms, conn.idle_ms) = (4000, 300);
            conn.oldest = "sending".into();
            ni.conns.push(conn);
            ni.peers = vec![Peer::default(); peers];
            ni.latency.push(wire("PUT_REQ", 9));
            ni.latency.push(Times {
                stage: "queued".into(),
                ..wire("PUT_DONE", done + 2)
            });
            if done > 0 {
                ni.latency.push(wire("PUT_DONE", done));
            }
        }
    };
    let words = |changes: &[&dyn Fn(&mut Ni)]| {
        let app = node(changes);
        let item = app.items.iter().find(|item| item.conn.is_some());
        item.map(|item| item.verdict.words.clone())
            .unwrap_or_default()
    };
    let mtu =
        "no data has got through since the NI was started: the MTU of the whole path, or a filter";
    let loss = "some packets get lost, data gets through: cable, switch";
    let either =
        "packets get lost, some or all large ones: cable, switch, or the MTU of the whole path, or a filter";
    assert!(words(&[&lossy(0, 1), &lossy(0, 1)]).ends_with(mtu));
    assert!(words(&[&lossy(5, 1), &lossy(13, 1)]).ends_with(loss));
    // No data since the previous sample, but before; or several peers, so that it is not clear which received the data;
    // or no previous sample.
    assert!(words(&[&lossy(5, 1), &lossy(5, 1)]).ends_with(either));
    assert!(words(&[&lossy(5, 2), &lossy(13, 2)]).ends_with(either));
    assert!(words(&[&lossy(13, 1)]).ends_with(either));
}

/// Checks a node that only receives or requests data: it sends no data, so the state of the path is unknown.
#[test]
fn a_node_that_sends_no_data_gets_no_mtu_verdict() {
    let words = |sent: u64, back: bool| {
        let app = node(&[&|ni: &mut Ni| {
            let mut conn = conn();
            if !back {
                (conn.oldest_ms, conn.idle_ms) = (4000, 300);
                conn.oldest = "sending".into();
            }
            ni.conns.push(conn);
            ni.peers = vec![Peer {
                nid: "10.0.0.2@o2ib".into(),
                conns: 1,
                usable: 1,
                ..Peer::default()
            }];
            ni.events = vec![Event {
                what: "closed".into(),
                cause: "TransportRetry".into(),
                by: "path".into(),
                peer: "10.0.0.2@o2ib".into(),
                time: 990.0,
                count: 1,
                ..Event::default()
            }];
            ni.latency = vec![wire("PUT_ACK", 9), wire("IMMEDIATE", 9)];
            if sent > 0 {
                ni.latency.push(Times {
                    stage: "queued".into(),
                    ..wire("PUT_DONE", sent)
                });
            }
        }]);
        let item = app.items.iter().find(|item| item.conn.is_none() == back);
        item.map(|item| item.verdict.words.clone())
            .unwrap_or_default()
    };
    let either =
        "packets get lost, some or all large ones: cable, switch, or the MTU of the whole path, or a filter";
    let away = "it answers again: it was away, or large packets get lost: the MTU of the whole path, or a filter";
    let never =
        "no data has got through since the NI was started: the MTU of the whole path, or a filter";
    assert!(words(0, false).ends_with(either), "{}", words(0, false));
    assert!(words(0, true).ends_with(away), "{}", words(0, true));
    assert!(words(2, false).ends_with(never), "{}", words(2, false));
    assert!(words(2, true).ends_with(never), "{}", words(2, true));
}

/// Returns the verdict on a lost peer with these ends, at these seconds.
fn ended(events: &[(&str, &str, &str, f64)]) -> String {
    let app = node(&[&|ni: &mut Ni| {
        ni.events = events
            .iter()
            .map(|(what, cause, detail, time)| Event {
                what: (*what).into(),
                cause: (*cause).into(),
                detail: (*detail).into(),
                time: *time,
                by: "path".into(),
                peer: "10.0.0.9@o2ib".into(),
                count: 1,
                ..Event::default()
            })
            .collect();
    }]);
    app.items[0].verdict.words.clone()
}

#[test]
fn advice_depends_on_the_cause() {
    assert_eq!(
        ended(&[("failed", "Unreachable", "", 999.0)]),
        "connecting failed 1.0 s ago: unreachable: the address does not answer, or no route: \
         is the NID right, is the node on"
    );
    assert_eq!(
        ended(&[("failed", "NoListener", "NoListener", 999.0)]),
        "connecting failed 1.0 s ago: no listener: is LNet up, with the same service (NoListener): \
         the node answers"
    );
    assert!(ended(&[("failed", "Refused", "Fatal", 999.0)])
        .ends_with("(Fatal): its log says why: another net or NID, or it denies this node"));
    let timeout = ended(&[("failed", "ConnectTimeout", "", 999.0)]);
    assert!(timeout.contains("UDP port 4791") && timeout.contains("P_Key"));
    assert!(!timeout.contains("silent"));
    // The peer was connected before, and then fell silent.
    let broke = ("closed", "TransportRetry", "", 980.0);
    assert!(ended(&[broke, ("failed", "ConnectTimeout", "", 999.0)])
        .ends_with("; a connection to it broke 20 s ago: it fell silent"));
    let left = ("closed", "PeerClosed", "", 990.0);
    assert!(!ended(&[broke, left, ("failed", "ConnectTimeout", "", 999.0)]).contains("silent"));
}

/// Creates a view of a peer for which messages wait, changed by `change`.
fn waits(change: &dyn Fn(&mut Peer)) -> App {
    node(&[&|ni: &mut Ni| {
        let mut peer = Peer {
            nid: "10.0.0.9@o2ib".into(),
            waiting: 3,
            waited_ms: 7000,
            ..Peer::default()
        };
        change(&mut peer);
        ni.peers.push(peer);
    }])
}

#[test]
fn the_next_attempt_is_shown() {
    let words = |change: &dyn Fn(&mut Peer)| waits(change).items[0].verdict.words.clone();
    assert_eq!(words(&|_| {}), "3 messages wait 7.0 s for a connection");
    assert_eq!(
        words(&|p| (p.failures, p.retry_ms) = (5, Some(3000))),
        "3 messages wait 7.0 s for a connection; next try in 3.0 s, 5 failures; \
         the peer rejects for now: it boots, or its log has the reason"
    );
    assert_eq!(
        words(&|p| p.retry_ms = Some(20)),
        "3 messages wait 7.0 s for a connection; next try in 20 ms"
    );
    // An attempt is in progress.
    assert_eq!(
        words(&|p| {
            (p.failures, p.last_ago_ms) = (1, Some(10));
            p.last = "AddressChanged".into();
        }),
        "3 messages wait 7.0 s for a connection; trying now, 1 failure; the last try: \
         an address changed: look at \"ip addr\""
    );
    // The ring of ends has no space for all peers, so the peer itself keeps its last end.
    let late = |ago| {
        move |p: &mut Peer| {
            (p.failures, p.retry_ms, p.last_ago_ms) = (5, Some(3000), Some(ago));
            p.last = "TransportRetry".into();
        }
    };
    assert_eq!(
        words(&late(400)),
        "3 messages wait 7.0 s for a connection; next try in 3.0 s, 5 failures; the last try: \
         the transport gave up retrying: check the fabric: cable, switch, MTU; or the peer is dead"
    );
    assert!(!words(&late(3_600_000)).contains("the last try"));
    // No message waits; the node reconnects because the connection was lost with the link.
    let app = waits(&|p| (p.waiting, p.retry_ms) = (0, Some(900)));
    let verdict = &app.items[0].verdict;
    assert_eq!((verdict.kind, verdict.level), ("waiting", Level::Note));
    assert_eq!(verdict.words, "no connection; next try in 900 ms");
    // One of several connections is replaced, and no message waits for it.
    let app = waits(&|p| (p.waiting, p.conns, p.usable, p.retry_ms) = (0, 2, 2, Some(900)));
    assert_eq!(troubles(&app), []);
}

#[test]
fn causes_of_a_peer_are_shown() {
    let mut app = node(&[&|ni: &mut Ni| {
        ni.conns.push(Conn {
            number: 12,
            qpn: 17,
            ..conn()
        });
        ni.peers.push(Peer {
            nid: "10.0.0.2@o2ib".into(),
            conns: 1,
            usable: 1,
            closed: 7,
            failed: 2,
            ends: vec![("Refused".into(), 2), ("TransportRetry".into(), 7)],
            ..Peer::default()
        });
    }]);
    app.chosen = Some(0);
    assert!(on_screen(&app, "connection 12 of the NI, queue pair 17"));
    let ends = "7 connections ended, 2 attempts failed: 7 x the transport gave up retrying, 2 x refused by the peer";
    assert!(on_screen(&app, ends));
    // A narrow screen shows the verdict, too, on more lines.
    let lines = common::lines(&common::screen(&app, 60, 24)).join(" ");
    assert!(lines.contains("2 x refused by the peer"), "{lines}");
}

#[test]
fn connections_that_break_repeatedly_are_named() {
    let event = |time, cause: &str| Event {
        what: "closed".into(),
        time,
        peer: "10.0.0.2@o2ib".into(),
        by: "path".into(),
        cause: cause.into(),
        count: 1,
        ..Event::default()
    };
    let app = node(&[&|ni: &mut Ni| {
        ni.conns.push(conn());
        ni.peers.push(Peer {
            nid: "10.0.0.2@o2ib".into(),
            conns: 1,
            usable: 1,
            ends: vec![
                ("AdminClose".into(), 1),
                ("TransportRetry".into(), 20),
                ("Refused".into(), 2),
                ("LinkDown".into(), 1),
            ],
            ..Peer::default()
        });
        // Four connections break each time, every 50 s.
        for round in 0..4 {
            for i in 0..4 {
                let time = 840.0 + f64::from(round) * 50.0 + f64::from(i) * 0.01;
                ni.events.push(event(time, "TransportRetry"));
            }
        }
    }]);
    let [item] = &app.items[..1] else { panic!() };
    assert_eq!(
        (item.verdict.kind, item.verdict.level),
        ("breaks", Level::Warn)
    );
    assert!(
        item.verdict.words.starts_with("broke 4 times in 2 min"),
        "{}",
        item.verdict.words
    );
    let ends =
        "; so far 20 x the transport gave up retrying, 2 x refused by the peer, 2 of other causes";
    assert!(item.verdict.words.ends_with(ends), "{}", item.verdict.words);
}

/// Checks ends where the transport gave up: if the peer connected again at once, the path is the cause; otherwise it
/// may be the peer.
#[test]
fn a_peer_that_answers_again_is_not_dead() {
    let words = |usable, times: &[f64]| {
        let app = node(&[&|ni: &mut Ni| {
            let nid = "10.0.0.2@o2ib".to_string();
            ni.events.extend(times.iter().map(|time| Event {
                what: "closed".into(),
                time: *time,
                peer: nid.clone(),
                by: "path".into(),
                cause: "TransportRetry".into(),
                count: 1,
                ..Event::default()
            }));
            ni.conns.extend((0..usable).map(|_| conn()));
            ni.peers.push(Peer {
                nid,
                conns: usable,
                usable,
                ..Peer::default()
            });
        }]);
        let verdicts = app.items.iter().map(|item| item.verdict.words.clone());
        verdicts.collect::<Vec<_>>().join("\n")
    };
    let (alive, dead) = ("large packets get lost", "the peer is dead");
    for times in [&[990.0][..], &[950.0, 970.0, 990.0]] {
        let (gone, back) = (words(0, times), words(1, times));
        assert!(gone.contains(dead) && !gone.contains(alive), "{gone}");
        assert!(back.contains(alive) && !back.contains(dead), "{back}");
    }
}

#[test]
fn replaced_connection_is_still_shown() {
    let app = node(&[&|ni: &mut Ni| {
        ni.events.push(Event {
            what: "closed".into(),
            time: 998.0,
            peer: "10.0.0.2@o2ib".into(),
            by: "local".into(),
            cause: "PeerRestarted".into(),
            count: 1,
            ..Event::default()
        });
        ni.conns.push(conn());
        ni.peers.push(Peer {
            nid: "10.0.0.2@o2ib".into(),
            conns: 1,
            usable: 1,
            ..Peer::default()
        });
    }]);
    assert_eq!(app.worst(), Level::Note);
    assert!(on_screen(&app, "1 connection; nothing wrong now"));
    assert!(on_screen(&app, "closed 2.0 s ago: the peer was restarted"));
}

#[test]
fn rates_are_those_between_two_samples() {
    let sent = |n| {
        move |ni: &mut Ni| {
            ni.conns.push(Conn {
                qpn: 5,
                counts: Counts {
                    tx_msgs: n,
                    ..Counts::default()
                },
                ..conn()
            });
        }
    };
    let app = node(&[&sent(100), &sent(350)]);
    let ni = &app.sample.nis[0];
    assert_eq!(app.history.ni(ni).unwrap().rate.tx, 250.0);
    assert_eq!(app.history.conn(ni, 0).unwrap().rate.tx, 250.0);
    // A counter that fell belongs to a new connection.
    let app = node(&[&sent(100), &sent(3)]);
    assert_eq!(app.history.ni(&app.sample.nis[0]).unwrap().rate.tx, 0.0);
}

#[test]
fn a_connection_is_found_again_wherever_it_is() {
    let with = |qpns: &'static [u64], sent| {
        move |ni: &mut Ni| {
            for qpn in qpns {
                ni.conns.push(Conn {
                    qpn: *qpn,
                    counts: Counts {
                        tx_msgs: qpn * 1000 + sent * qpn,
                        ..Counts::default()
                    },
                    ..conn()
                });
            }
        }
    };
    let app = node(&[
        &with(&[1, 2, 3, 4, 5], 0),
        &with(&[7, 2, 4, 5, 3, 6], 1),
        &with(&[6, 5, 3], 2),
    ]);
    let ni = &app.sample.nis[0];
    let rate = |n| app.history.conn(ni, n).unwrap().rate.tx;
    assert_eq!([rate(0), rate(1), rate(2)], [6.0, 5.0, 3.0]);
    assert!(app.history.conn(ni, 3).is_none());
}

/// Checks that a connection is identified by its number if the driver reports it: numbers of queue pairs are used
/// again, and are known late.
#[test]
fn a_connection_is_known_by_its_number() {
    let one = |number, qpn, sent| {
        move |ni: &mut Ni| {
            ni.conns.push(Conn {
                number,
                qpn,
                counts: Counts {
                    tx_msgs: sent,
                    ..Counts::default()
                },
                ..conn()
            });
        }
    };
    let rate = |app: &App| app.history.conn(&app.sample.nis[0], 0).unwrap().rate.tx;
    assert_eq!(rate(&node(&[&one(1, 0, 0), &one(1, 17, 5)])), 5.0);
    assert_eq!(rate(&node(&[&one(1, 17, 5), &one(2, 17, 9)])), 0.0);
    assert_eq!(rate(&node(&[&one(0, 17, 5), &one(0, 17, 9)])), 4.0);
}

/// Creates a view of a node with `n` NIs, of which `bad` have no device, with connections and times on each.
fn with_nis(n: usize, bad: &[usize]) -> App {
    let ni = |at: usize| Ni {
        nid: format!("10.0.{at}.1@o2ib{at}"),
        device: if bad.contains(&at) { "" } else { "mlx5_0" }.into(),
        conns: vec![conn(); 5],
        latency: vec![Times {
            stage: "wire".into(),
            op: "IMMEDIATE".into(),
            sum_ns: 3000,
            counts: vec![(2048, 2)],
        }],
        ..Ni::default()
    };
    let mut app = App::default();
    app.take(Sample {
        time: 1000.0,
        nis: (0..n).map(ni).collect(),
        ..Sample::default()
    });
    app
}

/// Returns the NIs on a screen of 24 lines, in order: whether the NI is bad, and its NID.
fn shown(app: &App) -> Vec<(bool, String)> {
    let lines = common::lines(&common::screen(app, 100, 24));
    let nis = lines.iter().filter(|line| line.contains(".1@o2ib"));
    let nid = |line: &String| line.split(' ').next().unwrap_or("").to_string();
    nis.map(|line| (line.contains("the RDMA device is"), nid(line)))
        .collect()
}

#[test]
fn a_bad_ni_is_first_and_never_cut_off() {
    let app = with_nis(12, &[11]);
    let seen = shown(&app);
    assert_eq!(seen.first(), Some(&(true, "10.0.11.1@o2ib11".to_string())));
    // The other NIs keep their order.
    assert_eq!(seen[1].1, "10.0.0.1@o2ib0");
    let lines = common::lines(&common::screen(&app, 100, 24));
    let heading = format!("NI, {} of 12 ", seen.len());
    assert!(lines[1].starts_with(&heading), "{}", lines[1]);
    // The list of connections keeps its space.
    assert!(lines.iter().any(|line| line.starts_with("10.0.0.2@o2ib")));
    // The bad NIs take more than a quarter of the screen.
    for how in [Order::Trouble, Order::Nid, Order::Rate] {
        let bad = [1, 2, 4, 5, 6, 7, 8, 10, 11];
        let mut app = with_nis(12, &bad);
        while app.order != how {
            app.reorder();
        }
        let seen = shown(&app);
        assert!(seen.iter().take(9).all(|(bad, _)| *bad), "{seen:?}");
        assert_eq!(seen.iter().filter(|(bad, _)| *bad).count(), 9, "{seen:?}");
    }
    // The ends and the chosen line do not take the place of bad NIs.
    let mut app = with_nis(12, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let ended = |at: usize| Event {
        what: "closed".into(),
        time: 900.0 + at as f64,
        peer: "10.0.0.2@o2ib".into(),
        ..Event::default()
    };
    app.sample.nis[0].events = (0..9).map(ended).collect();
    app.chosen = Some(0);
    assert_eq!(shown(&app).len(), 12);
    // There are more bad NIs than lines: the heading shows their number, and the list keeps two lines.
    let all: Vec<usize> = (0..40).collect();
    let app = with_nis(40, &all);
    let lines = common::lines(&common::screen(&app, 100, 24));
    assert!(shown(&app).len() > 15, "{lines:?}");
    let heading = format!("NI, {} of 40 ", shown(&app).len());
    assert!(lines[1].starts_with(&heading), "{}", lines[1]);
    assert!(lines.iter().any(|line| line.starts_with("10.0.0.2@o2ib")));
}

/// Checks that times are shown if there is space, those of the first NIs first.
#[test]
fn nis_come_before_their_times() {
    let times = |app: &App, height| {
        let lines = common::lines(&common::screen(app, 100, height));
        let told = lines.iter().filter(|line| line.contains("p50/p99"));
        (told.count(), lines[1].starts_with("NI  "))
    };
    // With 15 connections: 24 lines are too few for all, 40 are not.
    assert_eq!(times(&with_nis(3, &[]), 24), (3, true));
    assert_eq!(times(&with_nis(5, &[]), 24), (1, true));
    assert_eq!(times(&with_nis(5, &[]), 60), (5, true));
    let app = with_nis(2, &[1]);
    let lines = common::lines(&common::screen(&app, 100, 24));
    assert!(lines[2].contains("o2ib1") && lines[3].contains("the RDMA device is gone"));
    assert!(lines[4].contains("p50/p99"));
}

#[test]
fn every_size_of_screen_is_drawn() {
    for (_, report) in common::GUESTS {
        let mut app = common::app(report);
        for chosen in [None, Some(0), Some(1000)] {
            app.chosen = chosen;
            for events in [false, true] {
                app.events = events;
                for (width, height) in [(1, 1), (1, 60), (20, 5), (80, 24), (300, 3), (400, 200)] {
                    common::screen(&app, width, height);
                }
            }
        }
        app.reorder();
        app.choose(isize::MAX);
        app.choose(isize::MIN);
    }
}

#[test]
fn an_empty_node_is_drawn() {
    let mut app = App::default();
    app.take(Sample::default());
    app.choose(1);
    common::screen(&app, 80, 24);
}

/// Returns the CPU time of this thread, which other load on the machine does not change.
fn busy() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos = times.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap())
}

/// Checks that a frame with ten thousand connections takes less than 50 ms, and so does all other work between two
/// frames, except the reading.
#[test]
fn ten_thousand_connections_are_quick() {
    let text = common::many(10_000);
    let mut read = Duration::MAX;
    let mut samples = Vec::new();
    for _ in 0..3 {
        let began = busy();
        samples = ro2ibtop::source::report(&text);
        read = read.min((busy() - began) / 2);
    }
    let mut app = App::default();
    let (mut taken, mut drawn) = (Duration::MAX, Duration::MAX);
    for _ in 0..4 {
        for sample in &samples {
            let sample = sample.clone();
            let began = busy();
            app.take(sample);
            taken = taken.min(busy() - began);
        }
        app.sample.time = 0.0;
        app.chosen = Some(5_000);
        let began = busy();
        common::screen(&app, 200, 60);
        drawn = drawn.min(busy() - began);
    }
    println!("10,000 connections: read {read:?}, judged and sorted {taken:?}, drawn {drawn:?}");
    assert_eq!(app.sample.nis[0].conns.len(), 10_000);
    assert_eq!(
        app.items
            .iter()
            .filter(|i| i.verdict.kind == "starved")
            .count(),
        100
    );
    assert!(app.items[..100]
        .iter()
        .all(|i| i.verdict.level == Level::Bad));
    if !cfg!(debug_assertions) {
        assert!(drawn < Duration::from_millis(50), "drawn in {drawn:?}");
        assert!(taken < Duration::from_millis(50), "judged in {taken:?}");
        assert!(read < Duration::from_millis(100), "read in {read:?}");
    }
}

#[test]
fn a_picture_is_well_formed() {
    let mut app = common::app(common::guest("dead-peer"));
    app.title = "a < b & c".to_string();
    let svg = ro2ibtop::svg::picture(&common::screen(&app, 120, 20));
    assert!(svg.contains("a &lt; b &amp; c"));
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.ends_with("</svg>\n"));
}
