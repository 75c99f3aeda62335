// SPDX-License-Identifier: GPL-2.0

//! Lines of a table, and their colours.

use ratatui::{
    style::{
        Color,
        Modifier,
        Style, //
    },
    text::{
        Line,
        Span, //
    }, //
};

use super::truncate::fit;
use crate::{
    history::LENGTH,
    verdict::{
        Level,
        Verdict, //
    }, //
};

/// Column: its name, its width, and the width of the screen from which on it is shown.
pub(super) type Column = (&'static str, usize, u16);

/// Width of a column of [`bars`].
const BARS: usize = 0;

/// Returns how many rates a screen of that width draws: more where the verdict has enough columns.
pub(super) fn bars(width: u16) -> usize {
    let more = width.saturating_sub(200) / 2;
    usize::from(more).saturating_add(8).min(LENGTH)
}

pub(super) const NI_COLUMNS: [Column; 11] = [
    ("NI", 23, 0),
    ("device", 12, 0),
    ("peers", 5, 90),
    ("conns", 5, 0),
    ("tx/s", 6, 100),
    ("rx/s", 6, 100),
    ("wait", 5, 110),
    ("closed", 6, 0),
    ("failed", 6, 0),
    ("refused", 7, 120),
    ("history", BARS, 130),
];

pub(super) const CONN_COLUMNS: [Column; 12] = [
    ("peer", 23, 0),
    ("by", 5, 120),
    ("state", 6, 90),
    ("cred", 7, 0),
    ("queue", 5, 0),
    ("lnet", 4, 100),
    ("oldest", 7, 0),
    ("tx/s", 6, 110),
    ("rx/s", 6, 110),
    ("qpn", 8, 170),
    ("peer's", 8, 170),
    ("history", BARS, 140),
];

pub(super) const EVENT_COLUMNS: [Column; 4] = [
    ("peer", 23, 0),
    ("ended", 11, 0),
    ("what", 7, 0),
    ("by", 8, 0),
];

/// Returns how many columns of a line are left for the text behind its cells.
pub(super) fn rest(columns: &[Column], width: u16) -> usize {
    let used = cut(columns, &vec![String::new(); columns.len()], width);
    usize::from(width).saturating_sub(used.chars().count())
}

/// Returns the cells that fit, each in its column.
pub(super) fn cut(columns: &[Column], cells: &[String], width: u16) -> String {
    let mut line = String::with_capacity(usize::from(width));
    for ((_, room, from), cell) in columns.iter().zip(cells) {
        if width < *from {
            continue;
        }
        let room = match *room {
            BARS => bars(width),
            room => room,
        };
        let cell = fit(cell, room);
        let used = cell.chars().count().min(room);
        line.push_str(&cell);
        line.extend(std::iter::repeat_n(' ', room - used + 1));
    }
    line
}

pub(super) fn heading(columns: &[Column], width: u16) -> Line<'static> {
    let names: Vec<String> = columns.iter().map(|c| c.0.to_string()).collect();
    named(columns, &names, width)
}

pub(super) fn named(columns: &[Column], names: &[String], width: u16) -> Line<'static> {
    let last = match columns.len() {
        4 => "cause",
        _ => "verdict",
    };
    let line = format!("{}{last}", cut(columns, names, width));
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    Line::from(Span::styled(line, style))
}

pub(super) fn row<'a>(
    columns: &[Column],
    cells: &[String],
    width: u16,
    verdict: &'a Verdict,
) -> Line<'a> {
    let words = fit(verdict.words_or_ok(), rest(columns, width));
    Line::from(vec![
        Span::raw(cut(columns, cells, width)),
        Span::styled(words, style(verdict.level)),
    ])
}

pub(super) fn style(level: Level) -> Style {
    match level {
        Level::Fine => Style::new().fg(Color::Green),
        Level::Note => Style::new().fg(Color::Cyan),
        Level::Warn => Style::new().fg(Color::Yellow),
        Level::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

pub(super) fn known(n: u64) -> String {
    match n {
        0 => "-".to_string(),
        n => n.to_string(),
    }
}

pub(super) fn clock(time: f64) -> String {
    let seconds = time.max(0.0) as u64 % 86_400;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{h:02}:{m:02}:{s:02} UTC")
}
