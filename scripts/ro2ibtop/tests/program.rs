// SPDX-License-Identifier: GPL-2.0

//! The program itself: its options, and a terminal.

mod common;

use std::{
    env,
    fs,
    io::{
        Read,
        Write, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        Command,
        Output,
        Stdio, //
    },
    thread,
    time::Duration, //
};

use ro2ibtop::{
    verdict::Level,
    words, //
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ro2ibtop");

/// A directory that goes with it.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("ro2ibtop-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// The files of the last sample of a report, below it.
    fn node(name: &str, report: &str) -> Self {
        let dir = Self::new(name);
        let mut file = None;
        for line in report.lines() {
            if let Some(path) = line
                .strip_prefix("==> ")
                .and_then(|l| l.strip_suffix(" <=="))
            {
                let path = dir.0.join(path.trim_start_matches('/'));
                file = path.is_absolute().then(|| {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::File::create(path).unwrap()
                });
            } else if let Some(file) = &mut file {
                writeln!(file, "{line}").unwrap();
            }
        }
        dir
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_snapshot_is_shown() {
    let dir = Dir::new("snapshot");
    let file = dir.0.join("report.txt");
    fs::write(&file, common::guest("slow-peer")).unwrap();
    let shown = run(&["--once", "--snapshot", text(&file)]);
    assert!(shown.status.success(), "{}", said(&shown));
    assert!(
        said(&shown).contains("its LNet is slow")
            || said(&shown).contains("the peer's LNet is slow")
    );
    for (mode, begins) in [
        ("--json", "{\"version\":1,"),
        ("--prometheus", "# HELP"),
        ("--svg", "<!--"),
    ] {
        let shown = run(&[mode, "--snapshot", text(&file)]);
        assert!(
            shown.status.success() && said(&shown).starts_with(begins),
            "{mode}"
        );
    }
    let checked = run(&["--once", "--check", "--snapshot", text(&file)]);
    assert_eq!(checked.status.code(), Some(2));
    fs::write(&file, common::guest("healthy")).unwrap();
    assert!(run(&["--once", "--check", "--snapshot", text(&file)])
        .status
        .success());
}

#[test]
fn what_cannot_be_read_is_said() {
    let dir = Dir::new("nothing");
    let none = run(&["--once", "--root", text(&dir.0)]);
    assert_eq!(none.status.code(), Some(3));
    assert!(
        said(&none).contains("is the module loaded"),
        "{}",
        said(&none)
    );
    let file = dir.0.join("empty");
    fs::write(&file, "nothing of the kind\n").unwrap();
    let empty = run(&["--once", "--snapshot", text(&file)]);
    assert_eq!(empty.status.code(), Some(3));
    assert!(
        said(&empty).contains("no report of ro2ib-report"),
        "{}",
        said(&empty)
    );
    for wrong in [
        &["--nonsense"][..],
        &["--interval", "0"],
        &["--width"],
        &["--rows", "1"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(3), "{wrong:?}");
    }
    assert!(said(&run(&["--help"])).contains("--prometheus"));
}

#[test]
fn a_node_is_looked_at() {
    let node = Dir::node("node", common::guest("healthy"));
    let shown = run(&["--once", "--interval", "0.1", "--root", text(&node.0)]);
    assert!(
        said(&shown).contains("2 connections: nothing wrong"),
        "{}",
        said(&shown)
    );
    // Two looks: there are rates.
    assert!(!said(&shown).contains(" -  "), "{}", said(&shown));
}

/// What `ro2ib-report` writes is what a snapshot is.
#[test]
fn a_report_is_a_snapshot() {
    let node = Dir::node("report", common::guest("slow-peer"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../ro2ib-report");
    let file = node.0.join("out.txt");
    let made = Command::new(script)
        .args(["-s", "0.1", "-r", text(&node.0), "-o", text(&file)])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let report = fs::read_to_string(&file).unwrap();
    assert_eq!(report.matches("==> sample ").count(), 2, "{report}");
    assert!(!report.contains(text(&node.0)), "{report}");
    let shown = run(&["--once", "--check", "--snapshot", text(&file)]);
    assert!(
        said(&shown).contains("the peer's LNet is slow"),
        "{}",
        said(&shown)
    );
    assert_eq!(shown.status.code(), Some(2));
    let json = run(&["--json", "--snapshot", text(&file)]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json["parameters"]["timeout"], &json["unread"]),
        (&"50".into(), &0.into())
    );
    assert!(json["nis"][0]["hardware"]["rdma_sends"].as_u64() > Some(0));
    // More looks are a longer history.
    let longer = Command::new(script)
        .args(["-s", "0.1", "-n", "4", "-r", text(&node.0), "-o", "-"])
        .output()
        .unwrap();
    assert_eq!(said(&longer).matches("==> sample ").count(), 4);
    for wrong in ["0", "x", "-1", ""] {
        let made = Command::new(script)
            .args(["-n", wrong, "-r", text(&node.0), "-o", "-"])
            .output()
            .unwrap();
        assert_eq!(made.status.code(), Some(2), "{wrong}");
    }
    let none = Command::new(script)
        .args(["-r", "/nonexistent"])
        .output()
        .unwrap();
    assert_eq!(none.status.code(), Some(1));
}

/// `make screenshot` makes them.
#[test]
fn the_pictures_in_the_documentation_are_these() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = here.join("../../Documentation");
    let explained = fs::read_to_string(document.join("operators.md")).unwrap();
    let pictures = [
        ("healthy", "150", false),
        ("slow-peer", "170", false),
        ("dead-peer", "195", false),
        ("ended", "150", true),
    ];
    let mut names = Vec::new();
    for (name, width, events) in pictures {
        let file = here.join(format!("tests/guest/{name}.txt"));
        let mut args = vec!["--svg", "--width", width, "--snapshot", text(&file)];
        args.extend(events.then_some("--events"));
        let shown = run(&args);
        let picture = format!("ro2ibtop-{name}.svg");
        let there = fs::read(document.join(&picture)).unwrap_or_default();
        assert!(shown.stdout == there, "{picture}: run make screenshot");
        assert!(explained.contains(&format!("]({picture})")), "{picture}");
        names.push(picture.clone());
        // No verdict is cut.
        let app = common::app(common::guest(name));
        let drawn = said(&shown).replace("&lt;", "<").replace("&amp;", "&");
        let items = app.items.iter().map(|item| &item.verdict);
        let verdicts = app.nis.iter().chain(items.filter(|_| !events));
        for verdict in verdicts.filter(|verdict| verdict.level != Level::Fine) {
            let whole = format!(">{}</text>", verdict.words);
            assert!(drawn.contains(&whole), "{picture}: {whole}");
        }
        for event in app.sample.nis.iter().flat_map(|ni| &ni.events) {
            let why = words::cause(&event.cause);
            assert!(!events || drawn.contains(why), "{picture}: {why}");
        }
    }
    // And no others.
    let mut there: Vec<String> = fs::read_dir(&document)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("ro2ibtop") && name.ends_with(".svg"))
        .collect();
    there.sort();
    names.sort();
    assert_eq!(there, names);
}

/// On a pseudo terminal: it draws, keys do what they should, the terminal is given back, and it ends.
#[test]
fn keys_do_what_they_should() {
    let node = Dir::node("keys", common::guest("slow-peer"));
    let command = format!(
        "stty rows 40 cols 180; {PROGRAM} --interval 0.2 --root {}; echo status $?",
        text(&node.0)
    );
    let mut child = Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let _ = out.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    });
    for key in ["j", "s", "e", "e", "p", "\x1b[B", "q"] {
        thread::sleep(Duration::from_millis(400));
        keys.write_all(key.as_bytes()).unwrap();
        keys.flush().unwrap();
    }
    let status = child.wait().unwrap();
    drop(keys);
    let out = reader.join().unwrap();
    assert!(status.success(), "{out}");
    assert!(out.contains("status 0"), "{out}");
    // Into the other screen, and back.
    assert!(
        out.contains("\x1b[?1049h") && out.contains("\x1b[?1049l"),
        "{out}"
    );
    assert!(
        out.contains("10.0.0.2@o2ib") && out.contains("paused"),
        "{out}"
    );
}
