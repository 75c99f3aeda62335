// SPDX-License-Identifier: GPL-2.0

//! Table of NIs: a line for each; below it the full verdict, if the line has no space for it, and the
//! latencies.

use ratatui::{
    layout::Rect,
    style::{
        Color,
        Style, //
    },
    text::{
        Line,
        Span, //
    },
    widgets::Paragraph,
    Frame, //
};

use super::{
    table::{
        bars,
        named,
        rest,
        row,
        style,
        NI_COLUMNS, //
    },
    truncate::{
        first,
        wrap, //
    },
    App, //
};
use crate::{
    histograms,
    model::Ni,
    number_texts, //
    verdict::{
        Level,
        Verdict, //
    },
};

/// Number of stages whose times are shown.
const COSTLY: usize = 4;

/// Prefix of a line that belongs to the line above.
const INDENT: &str = "  ";

/// Returns the text of the verdict if its line has no space for all of it.
fn in_full(verdict: &Verdict, width: u16) -> Vec<String> {
    let fits = verdict.words.chars().count() <= rest(&NI_COLUMNS, width);
    match verdict.level < Level::Warn || fits {
        true => Vec::new(),
        false => {
            let room = usize::from(width).saturating_sub(INDENT.len());
            wrap(&verdict.words, room)
        }
    }
}

impl App {
    pub(super) fn draw_nis(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = area.width;
        let room = usize::from(area.height.saturating_sub(2));
        let shown = self.ranks.len().min(room);
        let mut names: Vec<String> = NI_COLUMNS.iter().map(|c| c.0.to_string()).collect();
        if let (Some(first), true) = (names.first_mut(), shown < self.ranks.len()) {
            *first = format!("NI, {shown} of {}", self.ranks.len());
        }
        let nis = self.ranks.iter().take(shown);
        let nis = nis.filter_map(|at| Some((self.sample.nis.get(*at)?, self.nis.get(*at)?)));
        // An NI comes before the text of another one, and texts before times.
        let mut more = room.saturating_sub(shown);
        let told = nis.map(|(ni, verdict)| {
            let words = first(in_full(verdict, width), more);
            more = more.saturating_sub(words.len());
            (ni, verdict, words)
        });
        let told: Vec<_> = told.collect();
        let mut lines = vec![named(&NI_COLUMNS, &names, width)];
        for (ni, verdict, words) in told {
            let cells = self.ni_cells(ni, width);
            lines.push(row(&NI_COLUMNS, &cells, width, verdict));
            let words = words.iter().map(|line| format!("{INDENT}{line}"));
            let style = style(verdict.level);
            lines.extend(words.map(|line| Line::from(Span::styled(line, style))));
            if let (Some(times), 1..) = (self.where_time_goes(ni, width), more) {
                lines.push(times);
                more = more.saturating_sub(1);
            }
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn ni_cells(&self, ni: &Ni, width: u16) -> [String; 11] {
        let track = self.history.ni(ni);
        let rate = track.map(|t| t.rate).unwrap_or_default();
        let device = if ni.device.is_empty() {
            "none"
        } else {
            &ni.device
        };
        [
            ni.nid.clone(),
            device.to_string(),
            ni.peers.len().to_string(),
            ni.conns.len().to_string(),
            self.rate(rate.tx),
            self.rate(rate.rx),
            number_texts::short(ni.waiting),
            number_texts::short(ni.count_all("closed")),
            number_texts::short(ni.count_all("failed")),
            number_texts::short(ni.count_all("refused")),
            track.map(|t| t.picture(bars(width))).unwrap_or_default(),
        ]
    }

    /// Formats median and 99th percentile of the stages that took most time since the previous sample, as far
    /// as they fit.
    fn where_time_goes(&self, ni: &Ni, width: u16) -> Option<Line<'static>> {
        let times = histograms::costly(self.history.times(ni));
        if times.is_empty() {
            return None;
        }
        let mut words = format!("{INDENT}p50/p99");
        for (number, times) in times.iter().take(COSTLY).enumerate() {
            let of = |of_1000| {
                times
                    .quantile(of_1000)
                    .map_or("?".to_string(), histograms::span)
            };
            let comma = if number > 0 { "," } else { "" };
            let (stage, op) = (&times.stage, &times.op);
            let next = format!("{comma} {op} {stage} {}/{}", of(500), of(990));
            if number > 0 && words.len().saturating_add(next.len()) > usize::from(width) {
                break;
            }
            words.push_str(&next);
        }
        Some(Line::from(Span::styled(
            words,
            Style::new().fg(Color::DarkGray),
        )))
    }

    /// Returns the lines that NIs take.
    pub(super) fn ni_lines(&self, width: u16) -> u16 {
        let nis = self.sample.nis.iter();
        let times = nis.filter(|ni| !histograms::costly(self.history.times(ni)).is_empty());
        let words = self.nis.iter().map(|v| in_full(v, width).len());
        let all = self.sample.nis.len() + times.count() + words.sum::<usize>();
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    /// Returns the lines that NIs with problems take, without times.
    fn wrong_lines(&self, width: u16) -> u16 {
        let wrong = self.nis.iter().filter(|v| v.level >= Level::Warn);
        let all: usize = wrong.map(|v| in_full(v, width).len() + 1).sum();
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    /// Returns the lines for NIs on a screen where the other parts want `rest` and keep `frame`: a quarter or
    /// what is left; half of it for problems; and in any case one line for each NI that is bad.
    pub(super) fn ni_room(&self, screen: Rect, rest: u16, frame: u16) -> u16 {
        let (width, height) = (screen.width, screen.height);
        let bad = self.nis.iter().filter(|v| v.level == Level::Bad).count();
        let bad = u16::try_from(bad).unwrap_or(u16::MAX);
        let fair = (height / 4).max(height.saturating_sub(rest));
        let fair = fair.min(self.ni_lines(width));
        let wrong = self.wrong_lines(width).min(height / 2);
        fair.max(bad.max(wrong).min(height.saturating_sub(frame)))
    }
}
