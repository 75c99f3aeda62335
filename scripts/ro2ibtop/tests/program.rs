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
        Child,
        ChildStdin,
        Command,
        ExitStatus,
        Output,
        Stdio, //
    },
    sync::{
        Arc,
        Mutex, //
    },
    thread::{
        self,
        JoinHandle, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

use ratatui::style::{
    Color,
    Modifier, //
};
use ro2ibtop::{
    cause_texts, //
    verdict::Level,
    view::App,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ro2ibtop");

/// Directory that is deleted on drop.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("ro2ibtop-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// Creates a directory with the files of the last sample of a report.
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
        said(&shown).contains("the peer's LNet is slow")
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
fn unreadable_files_are_reported() {
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

/// Checks a node with a loaded module and no NI, as after a failed boot.
#[test]
fn a_node_without_an_ni_is_no_healthy_one() {
    let node = Dir::new("no-ni");
    let debugfs = node.0.join("sys/kernel/debug/ro2iblnd");
    fs::create_dir_all(&debugfs).unwrap();
    fs::write(
        debugfs.join("unknown_ni"),
        "unknown_ni=all now=1795220651.0\n",
    )
    .unwrap();
    let shown = run(&["--once", "--check", "--root", text(&node.0)]);
    assert!(
        said(&shown).contains("there is no o2ib NI"),
        "{}",
        said(&shown)
    );
    assert_eq!(shown.status.code(), Some(2));
    let series = said(&run(&["--prometheus", "--root", text(&node.0)]));
    assert!(series.contains("\nro2ib_nis 0\n"), "{series}");
    assert!(
        series.contains("ro2ib_trouble{ni=\"\",level=\"bad\",kind=\"no-ni\"} 1"),
        "{series}"
    );
    // Without a device there is no link either.
    let report = common::guest("healthy").replace(" device=rxe0 ", " device=none ");
    let node = Dir::node("no-device", &report.replace(" link=up", " link=none"));
    let series = said(&run(&["--prometheus", "--root", text(&node.0)]));
    assert!(
        series.contains("\nro2ib_nis 1\n") && !series.contains("ro2ib_link_up 1"),
        "{series}"
    );
    let link = series.lines().find(|l| l.starts_with("ro2ib_link_up"));
    assert!(link.is_some_and(|l| l.ends_with(" 0")), "{series}");
}

/// Checks an NI that LNet avoids while its link is up.
#[test]
fn a_broken_device_is_not_healthy() {
    let told = common::guest("broken-device");
    let up = "\nro2ib_device_up{ni=\"10.0.0.1@o2ib\",device=\"rxe0\"} ";
    for (health, kind, words, works) in [
        ("broken", "device-broken", "rxe0 reported a fatal error", 0),
        ("gsi_dead", "gsi-dead", "no peer can connect", 0),
        ("refuses", "posts-refused", "rxe0 refused work requests", 0),
        ("ok", "", "nothing wrong", 1),
    ] {
        let now = told.replace(" health=broken", &format!(" health={health}"));
        let node = Dir::node(&format!("health-{health}"), &now);
        let shown = run(&["--once", "--check", "--root", text(&node.0)]);
        let status = if works == 1 { 0 } else { 2 };
        assert!(said(&shown).contains(words), "{}", said(&shown));
        assert_eq!(shown.status.code(), Some(status), "{health}");
        let series = said(&run(&["--prometheus", "--root", text(&node.0)]));
        assert!(series.contains(&format!("{up}{works}\n")), "{series}");
        assert!(series.contains("\nro2ib_link_up{ni=\"10.0.0.1@o2ib\"} 1\n"));
        assert_eq!(series.contains(&format!("kind=\"{kind}\"")), works == 0);
        let all = said(&run(&["--json", "--root", text(&node.0)]));
        assert!(all.contains(&format!("\"health\":\"{health}\"")), "{all}");
    }
    // An older driver does not report its health.
    let node = Dir::node("health-untold", common::guest("healthy"));
    let series = said(&run(&["--prometheus", "--root", text(&node.0)]));
    assert!(series.contains(&format!("{up}1\n")), "{series}");
}

#[test]
fn a_node_is_looked_at() {
    let node = Dir::node("node", common::guest("healthy"));
    let shown = run(&["--once", "--interval", "0.1", "--root", text(&node.0)]);
    assert!(
        said(&shown).contains("2 connections; nothing wrong"),
        "{}",
        said(&shown)
    );
    // With two samples there are rates.
    assert!(!said(&shown).contains(" -  "), "{}", said(&shown));
}

/// Checks a device that hangs: the process that reads its counters waits and cannot be killed. Here the device is a
/// pipe without a writer.
#[test]
fn a_hanging_device_delays_no_other() {
    let dir = Dir::node("counters-hang", common::guest("healthy"));
    let counters = dir.0.join("sys/class/infiniband/rxe0/ports/1/hw_counters");
    fs::create_dir_all(&counters).unwrap();
    let pipe = counters.join("zz_stuck");
    assert!(Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .unwrap()
        .success());
    // Each run finds the process that the run before left behind.
    let runs: Vec<(bool, Output)> = (0..3).map(|_| within_30_s(&dir.0)).collect();
    let left = readers_of(&pipe);
    // A writer lets all readers continue.
    drop(fs::OpenOptions::new().read(true).write(true).open(&pipe));
    for (ended, shown) in runs {
        assert!(ended, "it waits for the device");
        assert_eq!(shown.status.code(), Some(2), "{}", said(&shown));
        let shown = said(&shown);
        assert!(
            shown.contains("rxe0 does not return its counters"),
            "{shown}"
        );
    }
    assert_eq!(left, 1);
}

/// Returns whether the program ended by itself, and its output.
fn within_30_s(root: &Path) -> (bool, Output) {
    let mut program = Command::new(PROGRAM)
        .args(["--once", "--check", "--root", text(root)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while program.try_wait().unwrap().is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    let ended = program.try_wait().unwrap().is_some();
    if !ended {
        program.kill().unwrap();
    }
    (ended, program.wait_with_output().unwrap())
}

/// Counts the processes whose command line has this file.
fn readers_of(file: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|it| {
            let words = fs::read(it.path().join("cmdline")).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|word| word == text(file).as_bytes())
        })
        .count()
}

/// Checks that the output of `ro2ib-report` is a snapshot.
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
    // More samples give a longer history.
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

/// Compares the pictures with the output; `make screenshot` creates them.
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
            let why = cause_texts::cause(&event.cause);
            assert!(!events || drawn.contains(why), "{picture}: {why}");
        }
    }
    // There are no other pictures.
    let mut there: Vec<String> = fs::read_dir(&document)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("ro2ibtop") && name.ends_with(".svg"))
        .collect();
    there.sort();
    names.sort();
    assert_eq!(there, names);
}

/// Process that ends with its test, even if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pseudo terminal with the program on it, and what it shows.
struct Seen {
    child: Running,
    keys: ChildStdin,
    terminal: Arc<Mutex<vt100::Parser>>,
    reader: JoinHandle<()>,
}

const ROWS: u16 = 40;
const COLUMNS: u16 = 180;

impl Seen {
    fn new(args: &str) -> Self {
        let command = format!("stty rows {ROWS} cols {COLUMNS}; {PROGRAM} {args}; echo status $?");
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let mut out = child.stdout.take().unwrap();
        let terminal = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let shown = terminal.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..n]);
            }
        });
        Self {
            child: Running(child),
            keys,
            terminal,
            reader,
        }
    }

    fn press(&mut self, key: &str) {
        self.keys.write_all(key.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn lines(&self) -> Vec<String> {
        let terminal = self.terminal.lock().unwrap();
        let rows = terminal.screen().rows(0, COLUMNS);
        rows.map(|row| row.trim_end().to_string()).collect()
    }

    /// Waits until `found` returns a value for the screen, and returns this value.
    fn until<T>(&self, what: &str, found: impl Fn(&Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            let screen = self.lines().join("\n");
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{what} not seen:\n{screen}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until every cell of the screen is as that view draws it: its character, colour and attributes.
    fn shows(&self, what: &str, app: &App) {
        let drawn = common::screen(app, COLUMNS, ROWS);
        let colour = |of: Option<Color>| match of {
            None | Some(Color::Reset) => vt100::Color::Default,
            Some(Color::Red) => vt100::Color::Idx(1),
            Some(Color::Green) => vt100::Color::Idx(2),
            Some(Color::Yellow) => vt100::Color::Idx(3),
            Some(Color::Cyan) => vt100::Color::Idx(6),
            Some(Color::DarkGray) => vt100::Color::Idx(8),
            Some(other) => panic!("{other}"),
        };
        let differs = |at: (u16, u16)| {
            let terminal = self.terminal.lock().unwrap();
            let seen = terminal.screen().cell(at.1, at.0).unwrap();
            let wanted = &drawn[at];
            let style = wanted.style();
            let has = |modifier| style.add_modifier.contains(modifier);
            let text = match seen.contents() {
                blank if blank.is_empty() => " ".to_string(),
                text => text,
            };
            let good = text == wanted.symbol()
                && seen.bold() == has(Modifier::BOLD)
                && seen.underline() == has(Modifier::UNDERLINED)
                && seen.inverse() == has(Modifier::REVERSED)
                && seen.fgcolor() == colour(style.fg)
                && seen.bgcolor() == colour(style.bg);
            (!good).then(|| format!("{what}: {at:?} is {text:?}, {seen:?}, not {wanted:?}"))
        };
        let cells = || (0..ROWS).flat_map(|y| (0..COLUMNS).map(move |x| (x, y)));
        let began = Instant::now();
        while let Some(why) = cells().find_map(differs) {
            let screen = self.lines().join("\n");
            assert!(began.elapsed() < Duration::from_secs(30), "{why}\n{screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of the program, and returns the exit status and the final terminal.
    fn end(mut self) -> (ExitStatus, vt100::Parser) {
        let status = self.child.0.wait().unwrap();
        drop(self.keys);
        self.reader.join().unwrap();
        let terminal = Arc::into_inner(self.terminal).unwrap();
        (status, terminal.into_inner().unwrap())
    }
}

/// Checks the program on a pseudo terminal: it draws, obeys keys, restores the terminal, and ends.
#[test]
fn keys_act() {
    let dir = Dir::new("keys");
    let file = dir.0.join("report.txt");
    fs::write(&file, common::guest("ended")).unwrap();
    let mut seen = Seen::new(&format!("--interval 0.2 --snapshot {}", text(&file)));
    let mut app = common::app(common::guest("ended"));
    app.title = "report.txt".to_string();
    app.chosen = Some(0);
    seen.shows("the first screen", &app);
    type Change = fn(&mut App);
    let keys: [(&str, Change); 12] = [
        ("j", |app| app.choose(1)),
        ("\x1b[B", |app| app.choose(1)),
        ("k", |app| app.choose(-1)),
        ("s", App::reorder),
        ("s", App::reorder),
        ("e", |app| app.events = true),
        ("e", |app| app.events = false),
        ("\x1b[F", |app| app.choose(isize::MAX)),
        ("\x1b[H", |app| app.chosen = Some(0)),
        ("\x1b[6~", |app| app.choose(20)),
        ("p", |app| app.paused = true),
        ("p", |app| app.paused = false),
    ];
    for (number, (key, change)) in keys.into_iter().enumerate() {
        seen.press(key);
        change(&mut app);
        seen.shows(&format!("what key {number}, {key:?}, does"), &app);
    }
    // The program uses the alternate screen, without a cursor.
    let own = |seen: &Seen| {
        let terminal = seen.terminal.lock().unwrap();
        terminal.screen().alternate_screen() && terminal.screen().hide_cursor()
    };
    assert!(own(&seen));
    seen.press("q");
    let (status, terminal) = seen.end();
    let screen = terminal.screen();
    assert!(status.success(), "{}", screen.contents());
    assert_eq!(screen.contents().trim(), "status 0");
    assert!(!screen.alternate_screen() && !screen.hide_cursor());
}

/// Checks that a terminal shows the output of `--once`, and the chosen line again in full.
#[test]
fn a_terminal_shows_the_output_of_once() {
    for name in ["slow-peer", "dead-peer", "booting", "healthy"] {
        let dir = Dir::new(name);
        let file = dir.0.join("report.txt");
        fs::write(&file, common::guest(name)).unwrap();
        let args = format!("--snapshot {}", text(&file));
        let width = COLUMNS.to_string();
        let printed = run(&["--once", "--width", &width, "--snapshot", text(&file)]);
        let printed = said(&printed);
        let printed: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
        let mut seen = Seen::new(&args);
        let foot = printed[printed.len() - 1];
        seen.until("the last line", |seen| {
            (seen.lines()[usize::from(ROWS) - 1] == foot).then_some(())
        });
        let shown = seen.lines();
        let mut rest = shown.iter();
        for line in &printed {
            assert!(
                rest.any(|seen| seen == line),
                "{name}: {line:?} is not in its place:\n{}",
                shown.join("\n")
            );
        }
        let more = shown.iter().filter(|line| !line.is_empty());
        let more: Vec<_> = more.filter(|l| !printed.contains(&l.as_str())).collect();
        assert!(
            more.first()
                .is_some_and(|line| line.starts_with("10.0.0.2@o2ib: ")),
            "{name}: {more:?}"
        );
        assert!(more.len() < 5, "{name}: {more:?}");
        seen.press("\x1b");
        assert!(seen.end().0.success());
    }
}

/// Checks that the program reads new samples, and reports a failed read.
#[test]
fn a_terminal_is_kept_up_to_date() {
    let node = Dir::node("live", common::guest("slow-peer"));
    let mut seen = Seen::new(&format!("--interval 0.2 --root {}", text(&node.0)));
    let line = |words: &'static str| {
        move |seen: &Seen| seen.lines().into_iter().find(|line| line.contains(words))
    };
    seen.until("a verdict", line("has no answer for 5.4 s"));
    let debugfs = node.0.join(ro2ibtop::source::DEBUGFS);
    let file = debugfs.join("10.0.0.1@o2ib");
    let text = fs::read_to_string(&file).unwrap();
    // The file is written in another place and renamed, because the program may read it at any moment.
    let next = node.0.join("next");
    fs::write(&next, text.replace("oldest=answer", "oldest=none")).unwrap();
    fs::rename(&next, &file).unwrap();
    let good = seen.until("that it is over", |seen| {
        let lines = seen.lines();
        let none = lines.iter().all(|line| !line.contains("has no answer"));
        none.then(|| lines.into_iter().find(|line| line.ends_with(" ok")))
    });
    assert!(good.is_some());
    seen.press("p");
    seen.until("a pause", line("(paused)"));
    seen.press("p");
    fs::remove_dir_all(&debugfs).unwrap();
    seen.until("what is missing", line("is the module loaded"));
    seen.until("that it is old", line("  not read since "));
    seen.press("\x03");
    assert!(seen.end().0.success());
}
