// SPDX-License-Identifier: GPL-2.0

//! What programs get.

mod common;

use std::collections::HashSet;

use ro2ibtop::{
    json,
    prometheus,
    verdict, //
};
use serde_json::Value;

/// As much of JSON Schema as `schema.json` uses.
fn check(at: &str, value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    for (word, rule) in schema.as_object().ok_or("a schema is an object")? {
        let good = match word.as_str() {
            "$schema" | "$comment" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let path = rule.as_str().and_then(|r| r.strip_prefix('#'));
                let found = path
                    .and_then(|path| root.pointer(path))
                    .ok_or("no such $ref")?;
                check(at, value, found, root)?;
                true
            }
            "type" => match rule.as_str() {
                Some("object") => value.is_object(),
                Some("array") => value.is_array(),
                Some("string") => value.is_string(),
                Some("boolean") => value.is_boolean(),
                Some("integer") => value.is_u64() || value.is_i64(),
                Some("number") => value.is_number(),
                _ => return Err(format!("unknown type {rule}")),
            },
            "const" => value == rule,
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.as_f64() >= rule.as_f64(),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(&format!("{at}[{i}]"), item, rule, root)?;
                }
                true
            }
            "required" => {
                let mut keys = rule
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str);
                keys.all(|key| value.get(key).is_some())
            }
            "properties" | "additionalProperties" => {
                for (key, item) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}.{key}");
                    let known = schema.get("properties").and_then(|p| p.get(key));
                    match (word.as_str(), known) {
                        ("properties", Some(known)) => check(&at, item, known, root)?,
                        ("additionalProperties", None) if *rule == Value::Bool(false) => {
                            return Err(format!("{at} is not in the schema"));
                        }
                        ("additionalProperties", None) => check(&at, item, rule, root)?,
                        _ => {}
                    }
                }
                true
            }
            other => return Err(format!("unknown word {other}")),
        };
        if !good {
            return Err(format!("{at}: {word} {rule} does not hold for {value}"));
        }
    }
    Ok(())
}

fn schema() -> Value {
    serde_json::from_str(include_str!("../schema.json")).unwrap()
}

#[test]
fn json_is_as_the_schema_says() {
    let schema = schema();
    for (name, report) in common::GUESTS {
        let text = json::document(&common::app(report));
        let value: Value = serde_json::from_str(&text).unwrap();
        check(name, &value, &schema, &schema).unwrap();
    }
    let text = json::document(&common::app(&common::many(300)));
    let value: Value = serde_json::from_str(&text).unwrap();
    check("many", &value, &schema, &schema).unwrap();
    assert_eq!(value["nis"][0]["conns"].as_array().map(Vec::len), Some(300));
    // The check itself.
    for wrong in ["{}", "[]", "{\"version\":2}"] {
        let wrong: Value = serde_json::from_str(wrong).unwrap();
        assert!(check("", &wrong, &schema, &schema).is_err());
    }
}

#[test]
fn the_schema_knows_every_kind() {
    let schema = schema();
    let kinds = schema
        .pointer("/$defs/verdict/properties/kind/enum")
        .unwrap();
    let kinds: HashSet<&str> = kinds
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(kinds, verdict::KINDS.into_iter().collect());
}

#[test]
fn json_escapes() {
    let mut app = common::app(common::guest("healthy"));
    app.sample
        .parameters
        .insert("odd".into(), "\"\\\n\u{1}\u{e9}".into());
    let value: Value = serde_json::from_str(&json::document(&app)).unwrap();
    assert_eq!(value["parameters"]["odd"], "\"\\\n\u{1}\u{e9}");
}

#[test]
fn prometheus_can_read_it() {
    for (name, report) in common::GUESTS {
        let text = prometheus::text(&common::app(report));
        let (mut declared, mut seen) = (HashSet::new(), HashSet::new());
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
                assert!(declared.insert(family), "{name}: {family} twice");
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{name}: {line}");
            assert!(seen.insert(series), "{name}: {series} twice");
            assert_eq!(series.split('{').next(), Some(family), "{name}: {line}");
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
