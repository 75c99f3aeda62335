// SPDX-License-Identifier: GPL-2.0

//! What a terminal of some width has room for, and that nobody takes a part for the whole.

mod common;

use ratatui::style::Color;
use ro2ibtop::{
    model::{
        Ni,
        Sample, //
    },
    verdict::Level,
    view::App, //
};

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

/// The driver was unloaded, say: what is shown is old.
#[test]
fn what_is_old_is_not_green() {
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
    // It is read again.
    let sample = app.sample.clone();
    app.take(sample);
    assert_eq!(app.worst(), Level::Fine);
    assert!(lines(&app, 80)[0].contains("nothing wrong"));
}
