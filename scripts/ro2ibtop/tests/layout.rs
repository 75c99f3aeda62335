// SPDX-License-Identifier: GPL-2.0

//! Layout for terminals of different widths: truncated text must not look complete.

mod common;

use ratatui::style::Color;
use ro2ibtop::{
    model::{
        Conn,
        Event,
        Ni,
        Sample, //
    },
    verdict::Level,
    view::App, //
};

const WIDTHS: [u16; 6] = [80, 100, 132, 150, 160, 200];

fn ni(nid: &str, device: &str) -> Ni {
    Ni {
        nid: nid.into(),
        device: device.into(),
        ..Ni::default()
    }
}

fn shown(nis: Vec<Ni>) -> App {
    let mut app = App::default();
    app.title = "this node".to_string();
    app.take(Sample {
        time: 1000.0,
        nis,
        ..Sample::default()
    });
    app
}

fn lines(app: &App, width: u16) -> Vec<String> {
    common::lines(&common::screen(app, width, 24))
}

/// Returns the words of the screen without its line breaks.
fn words(app: &App, width: u16) -> String {
    let lines = lines(app, width);
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn all_that_is_wrong_with_an_ni_can_be_read() {
    for (name, report) in common::GUESTS {
        let app = common::app(report);
        for width in WIDTHS {
            let seen = words(&app, width);
            for verdict in app.nis.iter().filter(|v| v.level >= Level::Warn) {
                let words = &verdict.words;
                assert!(seen.contains(words), "{name}, {width}: {words}:\n{seen}");
            }
        }
    }
    // For an NI without problems the start of the text is enough, so it takes only one line.
    let mut young = ni("10.0.0.1@o2ib", "mlx5_0");
    young.incarnation = 993_000_000;
    let app = shown(vec![young]);
    for width in WIDTHS {
        assert!(lines(&app, width)[3].is_empty());
        assert!(lines(&app, width)[2].contains("ok, started 7.0 s ago"));
    }
}

/// Checks that another NI comes before the texts of an NI, and these texts before its times.
#[test]
fn the_words_of_an_ni_are_below_it() {
    let mut lost = ni("10.0.0.1@o2ib", "mlx5_0");
    lost.link_down = true;
    let app = shown(vec![ni("10.0.0.2@o2ib1", "mlx5_1"), lost]);
    let seen = lines(&app, 80);
    assert!(seen[2].starts_with("10.0.0.1@o2ib ") && seen[2].ends_with('~'));
    assert_eq!(
        seen[3],
        "  the link is down: cable, switch, \"ip link\", \"rdma link\""
    );
    assert!(seen[4].starts_with("10.0.0.2@o2ib1 ") && seen[4].ends_with(" ok"));
    let buffer = common::screen(&app, 80, 24);
    assert_eq!(buffer[(2, 3)].style().fg, Some(Color::Red));
    // On a wider screen the text fits.
    let seen = lines(&app, 200);
    assert!(seen[2].ends_with("\"rdma link\"") && seen[3].starts_with("10.0.0.2@o2ib1 "));
    // `--once` has as many lines as the content takes.
    assert_eq!(app.height(80), app.height(200) + 1);
}

#[test]
fn requests_for_unknown_nis_are_shown_in_full() {
    let app = common::app(common::guest("wrong-net"));
    for width in WIDTHS {
        let seen = words(&app, width);
        let told = "requests for unknown NIs, compare nets and \"service\" (1 in 2 min, last of 10.0.0.1@o2ib \
                    for 10.0.0.2@o2ib): no NI has the requested NID NI device";
        assert!(seen.contains(told), "{width}: {seen}");
    }
}

/// Names that differ only at their ends.
const ALIKE: [(&str, &str); 2] = [
    ("192.168.100.202@o2ib1", "rocep65s0f0"),
    ("192.168.100.202@o2ib10", "rocep65s0f1"),
];

fn alike() -> App {
    let each = ALIKE.iter().enumerate();
    let nis = each.map(|(number, (nid, device))| {
        let mut one = ni(nid, device);
        one.conns.push(Conn {
            peer: nid.replace("202", "203"),
            state: "Established".into(),
            credits: 8,
            depth: 8,
            qpn: 16_777_001 + number as u64,
            peer_qpn: 16_777_111 + number as u64,
            ..Conn::default()
        });
        one.events.push(Event {
            what: "closed".into(),
            peer: nid.replace("202", "204"),
            ..Event::default()
        });
        one
    });
    shown(nis.collect())
}

#[test]
fn names_are_whole() {
    let app = alike();
    for width in WIDTHS {
        let seen = lines(&app, width);
        let has = |word: &str| {
            let found = seen.iter().flat_map(|line| line.split_whitespace());
            assert_eq!(found.filter(|w| *w == word).count(), 1, "{width}: {word}");
        };
        for (nid, device) in ALIKE {
            has(nid);
            has(device);
            has(&nid.replace("202", "203"));
            has(&nid.replace("202", "204"));
        }
        if width >= 170 {
            for number in ["16777001", "16777002", "16777111", "16777112"] {
                has(number);
            }
        }
    }
}

#[test]
fn cut_text_is_marked() {
    let mut one = ni("255.255.255.255@o2ib1000", "a_device_of_that_name");
    one.conns.push(Conn {
        peer: "255.255.255.254@o2ib1000".into(),
        state: "Established".into(),
        with_lnet: 8,
        depth: 8,
        ..Conn::default()
    });
    one.events.push(Event {
        what: "closed".into(),
        time: 999.0,
        peer: "255.255.255.253@o2ib1000".into(),
        by: "path".into(),
        cause: "ConnectTimeout".into(),
        detail: "a detail that is much longer than all that any peer says".into(),
        ..Event::default()
    });
    let app = shown(vec![one]);
    for (width, whole) in [(80, false), (400, true)] {
        let seen = lines(&app, width);
        for (start, ends) in [
            ("255.255.255.255@o2ib10~ a_device_of~ ", true),
            ("255.255.255.254@o2ib10~ ", whole),
            ("255.255.255.253@o2ib10~ ", whole),
        ] {
            let line = seen.iter().find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("{width}: {start}: {seen:?}"));
            assert_eq!(line.ends_with('~'), !ends, "{width}: {line}");
        }
    }
}

#[test]
fn rates_of_nis_are_for_wide_screens() {
    let app = common::app(common::guest("healthy"));
    for width in WIDTHS {
        let heading = &lines(&app, width)[1];
        assert!(heading.starts_with("NI "));
        assert_eq!(heading.contains("tx/s"), width >= 100, "{width}");
        assert_eq!(heading.contains("rx/s"), width >= 100, "{width}");
    }
}

/// Checks a sample that is old, for example because the driver was unloaded.
#[test]
fn old_sample_is_not_fine() {
    let mut app = shown(vec![ni("10.0.0.1@o2ib", "mlx5_0")]);
    assert_eq!(app.worst(), Level::Fine);
    app.error = Some("cannot read it".to_string());
    assert_eq!(app.worst(), Level::Bad);
    let buffer = common::screen(&app, 80, 24);
    let first = &common::lines(&buffer)[0];
    assert_eq!(first, " ro2ibtop  this node  not read since 00:16:40 UTC");
    assert_eq!(buffer[(22, 0)].style().fg, Some(Color::Red));
    app.paused = true;
    assert!(lines(&app, 80)[0].ends_with("UTC  (paused)"));
    // The next sample can be read again.
    let sample = app.sample.clone();
    app.take(sample);
    assert_eq!(app.worst(), Level::Fine);
    assert!(lines(&app, 80)[0].contains("nothing wrong"));
}

#[test]
fn small_screen_counts_troubles() {
    let mut one = ni("10.0.0.1@o2ib", "mlx5_0");
    let bad = Conn {
        peer: "10.0.0.2@o2ib".into(),
        state: "Established".into(),
        oldest: "sending".into(),
        oldest_ms: 4000,
        ..Conn::default()
    };
    one.conns = vec![bad; 1234];
    let app = shown(vec![one]);
    assert!(lines(&app, 80)[0].ends_with("UTC  wrong: 1234 bad, 0 slow or odd"));
    assert!(lines(&app, 100)[0].ends_with("1234 connections; wrong: 1234 bad, 0 slow or odd"));
}

/// Checks the screen of `--once`.
#[test]
fn ends_are_shown_without_peers() {
    let app = common::app(common::guest("wrong-net"));
    for width in WIDTHS {
        let seen = common::lines(&common::screen(&app, width, app.height(width)));
        let ended = seen.iter().any(|line| line.contains(" refused local "));
        assert!(ended, "{width}: {seen:?}");
    }
}
