// SPDX-License-Identifier: GPL-2.0

//! Formats for programs.

mod common;

use std::collections::HashSet;

use ro2ibtop::{
    json,
    prometheus,
    view::App, //
};
use serde_json::Value;

/// Returns the document of a screen, after it has been checked against the schema.
fn document(app: &App) -> Value {
    let schema: Value = serde_json::from_str(&json::schema()).unwrap();
    let value: Value = serde_json::from_str(&json::document(app)).unwrap();
    jsonschema::validate(&schema, &value).unwrap();
    value
}

#[test]
fn json_matches_its_schema() {
    for (_, report) in common::GUESTS {
        document(&common::app(report));
    }
    let value = document(&common::app(&common::many(300)));
    assert_eq!(value["nis"][0]["conns"].as_array().map(Vec::len), Some(300));
}

#[test]
fn schema_rejects_other_documents() {
    let schema: Value = serde_json::from_str(&json::schema()).unwrap();
    let good = document(&common::app(common::guest("healthy")));
    let broken = |edit: fn(&mut Value)| {
        let mut value = good.clone();
        edit(&mut value);
        assert!(jsonschema::validate(&schema, &value).is_err(), "{value}");
    };
    broken(|v| v["version"] = 2.into());
    broken(|v| v["worst"] = "worse".into());
    broken(|v| v["nis"][0]["verdict"]["kind"] = "unknown".into());
    broken(|v| v["nis"][0]["conns"][0]["credits"] = "8".into());
    broken(|v| {
        v["nis"][0]["peers"][0]
            .as_object_mut()
            .unwrap()
            .remove("usable");
    });
}

#[test]
fn json_escapes() {
    let mut app = common::app(common::guest("healthy"));
    app.sample
        .parameters
        .insert("odd".into(), "\"\\\n\u{1}\u{e9}".into());
    assert_eq!(document(&app)["parameters"]["odd"], "\"\\\n\u{1}\u{e9}");
}

#[test]
fn prometheus_can_read_it() {
    for (name, report) in common::GUESTS {
        let text = prometheus::text(&common::app(report));
        let (mut declared, mut seen) = (HashSet::new(), HashSet::new());
        let (mut family, mut histogram) = ("", false);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
                histogram = rest.ends_with(" histogram");
                assert!(declared.insert(family), "{name}: {family} twice");
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{name}: {line}");
            assert!(seen.insert(series), "{name}: {series} twice");
            let of = series.split('{').next().unwrap();
            let plain = match histogram {
                true => ["_bucket", "_sum", "_count"].map(|end| of.strip_suffix(end)),
                false => [Some(of); 3],
            };
            assert!(plain.contains(&Some(family)), "{name}: {line}");
            if let Some((_, labels)) = series.split_once('{') {
                assert!(labels.ends_with("\"}") && labels.matches('"').count() % 2 == 0);
            }
        }
        assert!(
            seen.iter().any(|s| s.starts_with("ro2ib_device_up{")),
            "{name}"
        );
    }
    let text = prometheus::text(&common::app(common::guest("slow-peer")));
    assert!(
        text.contains("ro2ib_trouble{ni=\"10.0.0.1@o2ib\",level=\"bad\",kind=\"no-answer\"} 2\n")
    );
    assert!(text.contains(
        "ro2ib_ended_total{ni=\"10.0.0.1@o2ib\",of=\"failed\",cause=\"Unreachable\"} 2\n"
    ));
}

/// A peer that the node retries, and a peer that it does not.
const RETRIED: &str = "\
==> sample 100 <==
==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib <==
ni=10.0.0.1@o2ib incarnation=1 device=rxe0 peers=2 conns=1 waiting=3 lingering=0 link=up
peer=10.0.0.2@o2ib conns=0 usable=0 waiting=3 waited_ms=7000 closed=3 failed=6 last=Refused last_ago_ms=40 failures=5 retry_ms=3000 ends=TransportRetry:3,Refused:6
peer=10.0.0.3@o2ib conns=1 usable=1 waiting=0 waited_ms=0 closed=0 failed=0 last=none last_ago_ms=-1 failures=0 retry_ms=-1 ends=-
conn=10.0.0.3@o2ib role=active state=Established depth=8 credits=8 qpn=17 number=12
";

#[test]
fn attempts_and_closed_connections_are_exported() {
    let app = common::app(RETRIED);
    let value = document(&app);
    let ni = &value["nis"][0];
    let (bad, good) = (&ni["peers"][0], &ni["peers"][1]);
    assert_eq!(
        (&bad["failures"], &bad["retry_ms"]),
        (&5.into(), &3000.into())
    );
    assert_eq!(
        bad["ends"],
        serde_json::json!({"TransportRetry": 3, "Refused": 6})
    );
    assert_eq!(
        (&good["retry_ms"], &good["failures"]),
        (&Value::Null, &0.into())
    );
    assert_eq!(ni["conns"][0]["number"], 12);
    let text = prometheus::text(&app);
    let bad = "{ni=\"10.0.0.1@o2ib\",peer=\"10.0.0.2@o2ib\"";
    for line in [
        format!("ro2ib_peer_failures{bad}}} 5\n"),
        format!("ro2ib_peer_waiting{bad}}} 3\n"),
        format!("ro2ib_peer_retry_ms{bad}}} 3000\n"),
        format!("ro2ib_peer_ended_total{bad},cause=\"TransportRetry\"}} 3\n"),
        format!("ro2ib_peer_ended_total{bad},cause=\"Refused\"}} 6\n"),
        "ro2ib_peer_failures{ni=\"10.0.0.1@o2ib\",peer=\"10.0.0.3@o2ib\"} 0\n".to_string(),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
    // No attempt is due for the other peer.
    assert_eq!(text.matches("ro2ib_peer_retry_ms{").count(), 1);
}

/// Two samples of a node that reports latencies.
const TIMES: &str = "\
==> sample 100 <==
==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib <==
ni=10.0.0.1@o2ib incarnation=1 device=rxe0 peers=0 conns=0 waiting=0 lingering=0 link=up
==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib.latency <==
latency=10.0.0.1@o2ib stage=wire op=IMMEDIATE n=2 sum_ns=3000 p50_ns=2048 p99_ns=2048 lt_2048=2
==> sample 105 <==
==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib <==
ni=10.0.0.1@o2ib incarnation=1 device=rxe0 peers=0 conns=0 waiting=0 lingering=0 link=up
==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib.latency <==
latency=10.0.0.1@o2ib stage=queued op=IMMEDIATE n=1 sum_ns=100 p50_ns=512 p99_ns=512 lt_512=1
latency=10.0.0.1@o2ib stage=wire op=IMMEDIATE n=5 sum_ns=3003000 p50_ns=2048 p99_ns=2097152 lt_2048=3 lt_2097152=2
";

#[test]
fn latencies_are_exported() {
    let app = common::app(TIMES);
    let value = document(&app);
    let wire = &value["nis"][0]["latency"][1];
    assert_eq!(
        (&wire["n"], &wire["p99_ns"]),
        (&5.into(), &2_097_152.into())
    );
    let text = prometheus::text(&app);
    let series = "{ni=\"10.0.0.1@o2ib\",stage=\"wire\",op=\"IMMEDIATE\"";
    for line in [
        format!("ro2ib_stage_seconds_bucket{series},le=\"0.000001024\"}} 0\n"),
        format!("ro2ib_stage_seconds_bucket{series},le=\"0.000002048\"}} 3\n"),
        format!("ro2ib_stage_seconds_bucket{series},le=\"0.002097152\"}} 5\n"),
        format!("ro2ib_stage_seconds_bucket{series},le=\"+Inf\"}} 5\n"),
        format!("ro2ib_stage_seconds_sum{series}}} 0.003003\n"),
        format!("ro2ib_stage_seconds_count{series}}} 5\n"),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
    // The screen shows the increase between the two samples, most time first.
    let lines = common::lines(&common::screen(&app, 120, 20));
    let told = lines.iter().find(|line| line.contains("p50/p99")).unwrap();
    assert_eq!(
        told.trim(),
        "p50/p99 IMMEDIATE wire 2.0 ms/2.0 ms, IMMEDIATE queued 512 ns/512 ns"
    );
}

/// Checks the rule of operators.md, which sums everything with the same NI: the kind of a problem may differ from
/// sample to sample, and the problem is as bad.
#[test]
fn an_alarm_goes_on_when_the_kind_is_another() {
    let document = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../Documentation/operators.md"
    );
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains("`sum by (instance, ni) (ro2ib_trouble{level=\"bad\"}) > 0`"));
    let bad = |name| {
        let text = prometheus::text(&common::app(common::guest(name)));
        let start = "ro2ib_trouble{ni=\"10.0.0.1@o2ib\",level=\"bad\",kind=\"";
        let kinds = text.lines().filter_map(|line| line.strip_prefix(start));
        let kinds = kinds.filter_map(|rest| rest.split('"').next());
        kinds.map(str::to_string).collect::<HashSet<_>>()
    };
    let (one, other) = (bad("starved"), bad("dead-peer"));
    assert!(!one.is_empty() && !other.is_empty());
    assert!(one.is_disjoint(&other));
}
