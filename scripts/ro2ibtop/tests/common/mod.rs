// SPDX-License-Identifier: GPL-2.0

//! Code that the tests share: text of guests, and a node with many connections.

// Not every test uses everything.
#![allow(dead_code)]

use std::fmt::Write as _;

use ratatui::{
    backend::TestBackend,
    buffer::Buffer,
    Terminal, //
};
use ro2ibtop::{
    source,
    view::App, //
};

/// Text of the driver in guests, in the form of `ro2ib-report`. `tests-vm/test_diagnosis.py` causes the problems that
/// the files show, and writes the files.
pub const GUESTS: [(&str, &str); 11] = [
    ("healthy", include_str!("../guest/healthy.txt")),
    ("slow-peer", include_str!("../guest/slow-peer.txt")),
    ("starved", include_str!("../guest/starved.txt")),
    ("slow-here", include_str!("../guest/slow-here.txt")),
    ("refused", include_str!("../guest/refused.txt")),
    ("wrong-net", include_str!("../guest/wrong-net.txt")),
    ("dead-peer", include_str!("../guest/dead-peer.txt")),
    ("no-peer", include_str!("../guest/no-peer.txt")),
    ("booting", include_str!("../guest/booting.txt")),
    ("ended", include_str!("../guest/ended.txt")),
    ("broken-device", include_str!("../guest/broken-device.txt")),
];

/// Returns the text of one guest.
pub fn guest(name: &str) -> &'static str {
    let found = GUESTS.iter().find(|(n, _)| *n == name);
    found.expect("no such text").1
}

/// Creates the view of a report.
pub fn app(report: &str) -> App {
    let mut app = App::default();
    for sample in source::report(report) {
        app.take(sample);
    }
    app
}

/// Returns the screen.
pub fn screen(app: &App, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| app.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// Returns the lines of a screen.
pub fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |y| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_string()
    };
    (0..buffer.area.height).map(line).collect()
}

/// Returns a line with other values of some keys.
fn with(line: &str, values: &[(&str, u64)]) -> String {
    let words = line.split(' ').map(|word| {
        let key = word.split('=').next().unwrap();
        match values.iter().find(|(k, _)| *k == key) {
            Some((key, value)) => format!("{key}={value}"),
            None => word.to_string(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns two samples of a server with `n` clients, every hundredth of which is slow, with a full ring.
pub fn many(n: u32) -> String {
    let healthy = guest("healthy");
    let ni_line = |start| healthy.lines().find(|l| l.starts_with(start)).unwrap();
    let conn = ni_line("conn=");
    let peer = ni_line("peer=");
    let dir = "/sys/kernel/debug/ro2iblnd";
    let mut text = String::new();
    for round in 0..2u64 {
        let now = 1_795_305_837 + round * 2;
        writeln!(text, "==> sample {now}.000 <==").unwrap();
        writeln!(text, "==> {dir}/10.0.0.1@o2ib <==").unwrap();
        for start in ["ni=", "closed_conns="] {
            writeln!(text, "{}", ni_line(start)).unwrap();
        }
        for line in healthy.lines().filter(|l| l.starts_with("causes=10")) {
            writeln!(text, "{line}").unwrap();
        }
        for i in 0..n {
            let nid = format!("10.{}.{}.{}@o2ib", i >> 16 & 255, i >> 8 & 255, i & 255);
            let number = u64::from(i);
            let mut one = with(
                &conn.replace("10.0.0.2@o2ib", &nid),
                &[
                    ("tx_msgs", 69 + round * (number % 1000)),
                    ("qpn", number + 17),
                    ("number", number + 1),
                    ("oldest_ms", 0),
                ],
            );
            if i % 100 == 0 {
                let starved = [
                    ("oldest_ms", 4321),
                    ("credits", 1),
                    ("q_main", 7),
                    ("tx_msgs", 42),
                ];
                one = with(&one, &starved)
                    .replace("oldest=none", "oldest=queued")
                    .replace("oldest=sending", "oldest=queued");
            }
            writeln!(text, "{}\n{one}", peer.replace("10.0.0.2@o2ib", &nid)).unwrap();
        }
        writeln!(text, "==> {dir}/10.0.0.1@o2ib.closes <==").unwrap();
        writeln!(
            text,
            "closes=10.0.0.1@o2ib ends=256 refusals=256 now={now}.000"
        )
        .unwrap();
        for i in 0..512 {
            let (what, cause) = match i % 2 {
                0 => ("closed", "TransportRetry"),
                _ => ("refused", "SourceAddress"),
            };
            let at = now - 600 + i;
            writeln!(
                text,
                "event={what} number={i} time={at}.000 peer=10.1.2.{}@o2ib role=active by=path cause={cause} detail=- count=1",
                i % 256
            )
            .unwrap();
        }
    }
    text
}
