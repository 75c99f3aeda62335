// SPDX-License-Identifier: GPL-2.0

//! Parsing of the driver's text, intact and damaged.

mod common;

use ro2ibtop::{
    histograms, //
    parse,
    source,
};

#[test]
fn a_connection_is_read() {
    let mut samples = source::report(common::guest("slow-peer"));
    assert_eq!(samples.len(), 2);
    let sample = samples.pop().unwrap();
    assert_eq!(sample.unread, 0);
    assert_eq!(sample.parameters["timeout"], "50");
    let [ni] = &sample.nis[..] else { panic!() };
    assert_eq!(
        (ni.nid.as_str(), ni.device.as_str()),
        ("10.0.0.1@o2ib", "rxe0")
    );
    assert_eq!(ni.count("failed", "Unreachable"), 2);
    assert_eq!(ni.count_all("closed"), 0);
    assert!(ni.hardware["rdma_sends"] > 0);
    let [first, second] = &ni.conns[..] else {
        panic!()
    };
    assert_eq!((first.depth, first.credits, first.reserved), (8, 5, 5));
    assert_eq!((first.qpn, first.peer_qpn, first.mtu), (19, 19, 4096));
    assert_eq!((second.oldest_ms, second.oldest.as_str()), (5418, "answer"));
    assert!(first.active && first.state == "Established");
    assert_eq!((first.number, first.counts.tx_msgs), (1, 5));
    let [peer] = &ni.peers[..] else { panic!() };
    assert_eq!((peer.usable, peer.closed, peer.last_ago_ms), (2, 0, None));
    assert_eq!((peer.failures, peer.retry_ms), (0, None));
    assert!(!ni.link_down && ni.speed_mbps == 2500 && ni.depth_by == "link");
    let mut put = ni.latency.iter().filter(|times| times.op == "PUT_REQ");
    assert!(put.any(|times| times.stage == "queued" && times.n() > 0));
    assert_eq!(ni.events.len(), 2);
    assert_eq!(ni.events[0].by, "path");
}

#[test]
fn every_line_of_guests_is_parsed() {
    for (name, report) in common::GUESTS {
        let samples = source::report(report);
        assert!(!samples.is_empty(), "{name}");
        assert!(
            samples.iter().all(|s| s.unread == 0 && s.nis.len() == 1),
            "{name}"
        );
    }
}

/// Checks that the files contain everything that the driver reports now: a change that adds keys must create the files
/// again.
#[test]
fn guest_reports_have_all_keys() {
    for (name, report) in common::GUESTS {
        for key in ["link", "speed_mbps", "depth_by", "gather"] {
            assert!(report.contains(&format!(" {key}=")), "{name}: {key}");
        }
        assert!(
            report.contains("@o2ib.latency <==") || report.contains("@o2ib5.latency <=="),
            "{name}"
        );
        for line in report.lines().filter(|line| line.starts_with("peer=")) {
            for key in ["failures", "retry_ms", "ends"] {
                assert!(line.contains(&format!(" {key}=")), "{name}: {line}");
            }
        }
        for line in report.lines().filter(|line| line.starts_with("conn=")) {
            assert!(line.contains(" number="), "{name}: {line}");
        }
    }
    let broken = source::report(common::guest("broken-device"))
        .pop()
        .unwrap();
    assert_eq!(broken.nis[0].health, "broken");
    let ended = source::report(common::guest("ended")).pop().unwrap();
    let ends = &ended.nis[0].peers[0].ends;
    assert!(ends.contains(&("LinkDown".to_string(), 2)), "{ends:?}");
    // Each end is that of a connection or of an attempt.
    let sum: u64 = ends.iter().map(|(_, n)| n).sum();
    let peer = &ended.nis[0].peers[0];
    assert_eq!(sum, peer.closed + peer.failed);
}

#[test]
fn requests_for_unknown_nis_are_parsed() {
    let sample = source::report(common::guest("wrong-net")).pop().unwrap();
    assert!(sample.unknown_ni.contains(&("NoSuchNi".to_string(), 1)));
    assert_eq!(sample.unknown_ni_events[0].count, 1);
}

#[test]
fn an_older_driver_is_understood() {
    let mut unread = 0;
    let old = "ni=10.0.0.2@o2ib incarnation=1 device=none peers=1 conns=1 waiting=0 lingering=0\n\
               closed_conns=10.0.0.2@o2ib tx_msgs=3 rx_msgs=4\n\
               conn=10.0.0.1@o2ib role=passive state=Established depth=8 credits=8 rnr=0\n";
    let ni = parse::ni(old, &mut unread).unwrap();
    assert_eq!(unread, 0);
    assert!(ni.device.is_empty() && ni.health.is_empty());
    assert_eq!(
        (
            ni.past.tx_msgs,
            ni.conns[0].qpn,
            ni.conns[0].oldest.as_str()
        ),
        (3, 0, "")
    );
}

#[test]
fn last_ends_of_a_peer_are_parsed() {
    let mut unread = 0;
    let told = "ni=10.0.0.1@o2ib device=mlx5_0\n\
                peer=10.0.0.2@o2ib conns=0 usable=0 waiting=3 waited_ms=7000 closed=3 failed=6 last=Refused last_ago_ms=40 \
                failures=5 retry_ms=3000 ends=TransportRetry:3,Refused:6\n\
                peer=10.0.0.3@o2ib conns=1 usable=1 closed=0 failed=0 last=none last_ago_ms=-1 failures=0 retry_ms=-1 ends=-\n\
                conn=10.0.0.3@o2ib role=active state=Established qpn=17 number=12\n";
    let ni = parse::ni(told, &mut unread).unwrap();
    let [bad, good] = &ni.peers[..] else { panic!() };
    assert_eq!((bad.failures, bad.retry_ms), (5, Some(3000)));
    assert_eq!(
        bad.ends,
        [
            ("TransportRetry".to_string(), 3),
            ("Refused".to_string(), 6)
        ]
    );
    assert_eq!(
        (good.failures, good.retry_ms, good.ends.len()),
        (0, None, 0)
    );
    assert_eq!((ni.conns[0].number, unread), (12, 0));
    // Of a damaged line, the rest is used; the values of a repeated cause are added.
    let broken = "ni=a\npeer=b failures=many retry_ms= ends=A:1,B,A:2,C:x,,";
    let ni = parse::ni(broken, &mut unread).unwrap();
    assert_eq!(
        ni.peers[0].ends,
        [("A".to_string(), 3), ("C".to_string(), 0)]
    );
    assert_eq!((unread, ni.peers[0].retry_ms), (6, Some(0)));
}

#[test]
fn a_newer_driver_is_understood() {
    let mut unread = 0;
    let new = "ni=10.0.0.2@o2ib device=mlx5_0 moon=full\nquasar=1 words=2\n\
               conn=10.0.0.1@o2ib depth=8 colour=red shape=round\n";
    let ni = parse::ni(new, &mut unread).unwrap();
    assert_eq!((unread, ni.conns[0].depth), (0, 8));
}

#[test]
fn numbers_out_of_range_are_cut() {
    let mut unread = 0;
    let line = "ni=a device=b waiting=99999999999999999999999 lingering=-3\nconn=x depth=many credits= q_main=1e3";
    let ni = parse::ni(line, &mut unread).unwrap();
    assert_eq!(
        (ni.waiting, ni.lingering, ni.conns[0].depth),
        (u64::MAX, 0, 0)
    );
    assert_eq!(unread, 3);
}

#[test]
fn nothing_is_nothing() {
    let mut unread = 0;
    assert!(parse::ni("", &mut unread).is_none());
    assert!(parse::ni("\0\u{1b}[2J\nhello world\n", &mut unread).is_none());
    assert!(unread > 0);
    assert!(source::report("").is_empty());
    assert!(source::report("==> /etc/passwd <==\nroot\n").is_empty());
    assert!(source::report("==> sample x <==\n==> sample -1 <==\n").is_empty());
}

#[test]
fn names_cannot_move_the_cursor() {
    let mut unread = 0;
    let ni = parse::ni("ni=a\u{1b}[31m device=\u{7}\u{202e}x", &mut unread).unwrap();
    assert!(ni
        .nid
        .chars()
        .chain(ni.device.chars())
        .all(|c| c.is_ascii_graphic()));
}

/// Checks that damaged text is read, judged and drawn.
#[test]
fn broken_text_breaks_nothing() {
    let mut random = 1u64;
    let mut next = move |below: usize| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (random >> 33) as usize % below.max(1)
    };
    for (_, report) in common::GUESTS {
        for _ in 0..60 {
            let mut bytes = report.as_bytes().to_vec();
            for _ in 0..next(40) {
                let at = next(bytes.len());
                match next(4) {
                    0 => bytes.truncate(bytes.len() - next(200).min(bytes.len())),
                    1 => bytes.insert(at, next(256) as u8),
                    2 => drop(bytes.drain(at..(at + next(50)).min(bytes.len()))),
                    _ => {
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = b"=9- \n.\xff"[next(7)];
                        }
                    }
                }
            }
            let app = common::app(&String::from_utf8_lossy(&bytes));
            common::screen(&app, 120, 30);
            let json = ro2ibtop::json::document(&app);
            serde_json::from_str::<serde_json::Value>(&json).unwrap();
            ro2ibtop::prometheus::text(&app);
        }
    }
}

const TIMES: &str = "latency=10.0.0.1@o2ib stage=answer op=PUT_REQ n=40 sum_ns=41839104 p50_ns=1048576 p99_ns=4194304 lt_524288=3 lt_1048576=28 lt_2097152=8 lt_4194304=1\n\
    latency=10.0.0.1@o2ib stage=lnet op=IMMEDIATE n=3 sum_ns=700000000000 p50_ns=512 p99_ns=549755813888 lt_512=2 more=1\n";

#[test]
fn histograms_are_read() {
    let mut unread = 0;
    let times = parse::times(TIMES, &mut unread);
    assert_eq!(unread, 0);
    let [answer, lnet] = &times[..] else { panic!() };
    assert_eq!(
        (answer.stage.as_str(), answer.op.as_str()),
        ("answer", "PUT_REQ")
    );
    assert_eq!((answer.n(), answer.sum_ns), (40, 41_839_104));
    assert_eq!(answer.quantile(500), Some(1 << 20));
    assert_eq!(answer.quantile(990), Some(1 << 22));
    assert_eq!(lnet.quantile(500), Some(512));
    // The limit of this quantile is unknown.
    assert_eq!(lnet.quantile(990), None);
    // Of a damaged line, the rest is used.
    let mut unread = 0;
    let times = parse::times(
        "latency=x stage=wire lt_x=3 lt_512=many lt_1024\nnothing\n",
        &mut unread,
    );
    assert_eq!((times.len(), unread), (1, 4));
}

#[test]
fn histogram_difference_is_computed() {
    let mut unread = 0;
    let before = parse::times(TIMES, &mut unread);
    let later = TIMES
        .replace("lt_4194304=1", "lt_4194304=3 lt_8388608=1")
        .replace("41839104", "50000000");
    let now = parse::times(&later, &mut unread);
    let since = histograms::since(&now, &before);
    let [answer] = &since[..] else { panic!() };
    assert_eq!(answer.counts, [(1 << 22, 2), (1 << 23, 1)]);
    assert_eq!(answer.sum_ns, 50_000_000 - 41_839_104);
    // After a new start of the NI everything counts as increase.
    let again = histograms::since(&before, &now);
    assert_eq!(again, [before[0].clone()]);
    assert_eq!(histograms::since(&now, &now), []);
    assert_eq!(histograms::costly(&now)[0].stage, "lnet");
}
