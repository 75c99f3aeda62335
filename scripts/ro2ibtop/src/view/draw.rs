// SPDX-License-Identifier: GPL-2.0

//! Drawing, and the choice of lines where not all fit.

use ratatui::{
    layout::{
        Constraint,
        Layout,
        Rect, //
    },
    style::{
        Color,
        Modifier,
        Style, //
    },
    text::{
        Line,
        Span, //
    },
    widgets::{
        Paragraph,
        Wrap, //
    },
    Frame, //
};

use super::{
    table::{
        bars,
        clock,
        cut,
        heading,
        known,
        rest,
        row,
        style,
        CONN_COLUMNS,
        EVENT_COLUMNS, //
    },
    truncate::{
        first,
        fit,
        wrap, //
    },
    App,
    Item, //
};
use crate::{
    cause_texts,
    model::{
        Conn,
        Event, //
    },
    number_texts, //
    verdict::{
        self,
        Level, //
    },
};

/// Number of ends shown below the list.
const EVENTS: usize = 8;

/// Lines that are always there: the first and the last one, two headings, a blank one, and two of the list.
const FRAME: u16 = 7;

/// Returns how many lines of that width a text takes if no word is divided; an upper bound.
fn wrapped(line: &Line<'_>, width: u16) -> u16 {
    let longest = line.spans.iter().flat_map(|s| s.content.split(' '));
    let longest = longest.map(|word| word.chars().count()).max().unwrap_or(0);
    let used = usize::from(width).saturating_sub(longest).max(1);
    match line.width() {
        all if all <= usize::from(width) => 1,
        all => u16::try_from(all.div_ceil(used)).unwrap_or(u16::MAX),
    }
}

impl App {
    /// Returns the lines that everything takes on a screen of that width.
    pub fn height(&self, width: u16) -> u16 {
        let nis = usize::from(self.ni_lines(width));
        let events: usize = self.sample.nis.iter().map(|ni| ni.events.len()).sum();
        let events = events.saturating_add(self.sample.unknown_ni_events.len());
        let below = match self.events {
            true => events,
            false => {
                // The frame has two lines of the list; one more separates them from the ends, which have a
                // heading.
                let items = self.items.len().saturating_sub(1);
                let heading = usize::from(events > 0);
                items
                    .saturating_add(events.min(EVENTS))
                    .saturating_add(heading)
            }
        };
        let none = verdict::of_none(&self.sample);
        let none = none.map_or(0, |none| wrap(&none.words, usize::from(width)).len());
        let all = nis.saturating_add(below).saturating_add(none);
        let all = all.saturating_add(usize::from(FRAME));
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    /// Draws the screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let events = self.latest(EVENTS);
        let below = u16::try_from(events.len())
            .unwrap_or(0)
            .min(area.height / 3);
        let below = match below {
            0 => 0,
            _ if self.events => 0,
            n => n.saturating_add(1),
        };
        let told = match self.events {
            true => Vec::new(),
            false => self.detail(),
        };
        let detail = told.iter().map(|line| wrapped(line, area.width));
        let detail: u16 = detail.fold(0, u16::saturating_add);
        let detail = detail.min(area.height / 3);
        let items = u16::try_from(self.items.len()).unwrap_or(u16::MAX);
        let none = verdict::of_none(&self.sample);
        let none = none.map_or(Vec::new(), |none| {
            let all = wrap(&none.words, usize::from(area.width));
            let lines = first(all, usize::from(area.height / 4).max(1)).into_iter();
            let styled = lines.map(|line| Line::from(Span::styled(line, style(none.level))));
            styled.collect()
        });
        let for_none = u16::try_from(none.len()).unwrap_or(u16::MAX);
        let rest = [1, for_none, 2, 1, items, detail, below, 1];
        let rest = rest.into_iter().fold(0, u16::saturating_add);
        let frame_lines = FRAME.saturating_add(for_none);
        let nis = self.ni_room(area, rest, frame_lines);
        let left = area.height.saturating_sub(nis.saturating_add(frame_lines));
        let detail = detail.min(left);
        let below = below.min(left.saturating_sub(detail));
        let [head, second, top, list, detail, tail, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(for_none),
            Constraint::Length(nis.saturating_add(2)),
            Constraint::Min(2),
            Constraint::Length(detail),
            Constraint::Length(below),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(self.head(head.width)), head);
        frame.render_widget(Paragraph::new(none), second);
        self.draw_nis(frame, top);
        if self.events {
            self.draw_events(frame, list, &self.latest(usize::from(list.height)));
        } else {
            self.draw_items(frame, list);
            frame.render_widget(Paragraph::new(told).wrap(Wrap { trim: true }), detail);
            self.draw_events(frame, tail, &events);
        }
        frame.render_widget(self.foot(foot.width), foot);
    }

    fn head(&self, width: u16) -> Line<'_> {
        let line = self.head_with(true);
        // Problems come first.
        match line.width() > usize::from(width) {
            true => self.head_with(false),
            false => line,
        }
    }

    fn head_with(&self, conns: bool) -> Line<'_> {
        let name = Style::new().add_modifier(Modifier::REVERSED);
        let mut line = vec![Span::styled(" ro2ibtop ", name)];
        let time = clock(self.sample.time);
        match self.error {
            Some(_) => {
                line.push(Span::raw(format!(" {}  ", self.title)));
                let old = format!("not read since {time}");
                line.push(Span::styled(old, style(Level::Bad)));
            }
            None => {
                line.push(Span::raw(format!(" {}  {time}  ", self.title)));
                if conns {
                    line.push(Span::raw(format!("{}; ", self.conns_in_words())));
                }
                line.extend(self.summary());
            }
        }
        if self.paused {
            line.push(Span::raw("  (paused)"));
        }
        Line::from(line)
    }

    fn conns_in_words(&self) -> String {
        let conns: usize = self.sample.nis.iter().map(|ni| ni.conns.len()).sum();
        number_texts::plural(conns as u64, "connection", "connections")
    }

    fn summary(&self) -> Vec<Span<'_>> {
        let mut line = Vec::new();
        let (bad, warn) = (self.count(Level::Bad), self.count(Level::Warn));
        match (bad, warn) {
            (0, 0) if self.ended_lately() => {
                line.push(Span::styled("nothing wrong now", style(Level::Fine)));
            }
            (0, 0) => line.push(Span::styled("nothing wrong", style(Level::Fine))),
            _ => {
                line.push(Span::styled(format!("wrong: {bad} bad"), style(Level::Bad)));
                line.push(Span::raw(", "));
                line.push(Span::styled(
                    format!("{warn} slow or odd"),
                    style(Level::Warn),
                ));
            }
        }
        line
    }

    fn draw_items(&self, frame: &mut Frame<'_>, area: Rect) {
        let fit = usize::from(area.height.saturating_sub(1));
        let chosen = self
            .chosen
            .map(|n| n.min(self.items.len().saturating_sub(1)));
        let top = chosen.map_or(0, |n| n.saturating_add(1).saturating_sub(fit));
        let mut lines = vec![heading(&CONN_COLUMNS, area.width)];
        for (at, item) in self.items.iter().enumerate().skip(top).take(fit) {
            let line = match self.conn(item) {
                Some(conn) => {
                    let cells = self.conn_cells(item, conn, area.width);
                    row(&CONN_COLUMNS, &cells, area.width, &item.verdict)
                }
                // A peer has only its verdict to show, and the whole line for it.
                None => {
                    let name = std::slice::from_ref(&item.peer);
                    row(&CONN_COLUMNS[..1], name, area.width, &item.verdict)
                }
            };
            lines.push(match chosen == Some(at) {
                true => line.style(Style::new().add_modifier(Modifier::REVERSED)),
                false => line,
            });
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn conn_cells(&self, item: &Item, conn: &Conn, width: u16) -> [String; 12] {
        let ni = self.sample.nis.get(item.ni);
        let track = ni.and_then(|ni| self.history.conn(ni, item.conn?));
        let rate = track.map(|t| t.rate).unwrap_or_default();
        let queue = conn.q_main.saturating_add(conn.q_nocred);
        let queue = queue.saturating_add(conn.q_unreserved);
        let state = match conn.state.as_str() {
            "Established" => "up",
            "Closing" | "Draining" | "Dead" => "ending",
            "" => "?",
            _ => "set up",
        };
        [
            item.peer.clone(),
            if conn.active { "local" } else { "peer" }.to_string(),
            state.to_string(),
            format!("{}/{}", conn.credits, conn.depth),
            number_texts::short(queue),
            number_texts::short(conn.with_lnet),
            match conn.oldest_ms {
                0 => String::new(),
                ms => number_texts::span(ms),
            },
            self.rate(rate.tx),
            self.rate(rate.rx),
            known(conn.qpn),
            known(conn.peer_qpn),
            track.map(|t| t.picture(bars(width))).unwrap_or_default(),
        ]
    }

    /// Draws the chosen line in full: its problem, its state, its past.
    fn detail(&self) -> Vec<Line<'_>> {
        let chosen = self.chosen.and_then(|n| {
            let last = self.items.len().saturating_sub(1);
            self.items.get(n.min(last))
        });
        let Some(item) = chosen else {
            return Vec::new();
        };
        let verdict = item.verdict.words_or_ok();
        let mut lines = vec![
            Line::default(),
            Line::from(vec![
                Span::raw(format!("{}: ", item.peer)),
                Span::styled(verdict, style(item.verdict.level)),
            ]),
        ];
        if let Some(conn) = self.conn(item) {
            let number = match conn.number {
                0 => String::new(),
                n => format!("connection {n} of the NI, "),
            };
            lines.push(Line::from(format!(
                "{number}queue pair {} (peer's {}), MTU {}, heard {} ago, peer holds {} of {} credits, {} for answers",
                known(conn.qpn),
                known(conn.peer_qpn),
                known(conn.mtu),
                number_texts::span(conn.idle_ms),
                conn.peer_held,
                conn.depth,
                conn.reserved,
            )));
        }
        let ni = self.sample.nis.get(item.ni);
        let peer = ni.and_then(|ni| ni.peers.iter().find(|peer| peer.nid == item.peer));
        if let Some(peer) = peer.filter(|peer| !peer.ends.is_empty()) {
            lines.push(Line::from(format!(
                "{}, {}: {}",
                number_texts::plural(peer.closed, "connection ended", "connections ended"),
                number_texts::plural(peer.failed, "attempt failed", "attempts failed"),
                cause_texts::ends(&peer.ends, usize::MAX)
            )));
        }
        lines
    }

    /// Returns the last ends of all NIs, the newest first.
    fn latest(&self, most: usize) -> Vec<&Event> {
        let nis = self.sample.nis.iter().flat_map(|ni| &ni.events);
        let mut all: Vec<&Event> = nis.chain(&self.sample.unknown_ni_events).collect();
        all.sort_by(|a, b| b.time.total_cmp(&a.time));
        all.truncate(most);
        all
    }

    fn draw_events(&self, frame: &mut Frame<'_>, area: Rect, events: &[&Event]) {
        let mut lines = vec![heading(&EVENT_COLUMNS, area.width)];
        for event in events {
            let why = match event.what.as_str() {
                "refused" => cause_texts::refusal(&event.cause),
                _ => cause_texts::cause(&event.cause),
            };
            let mut why = why.to_string();
            if !event.detail.is_empty() {
                why = format!("{why} ({})", event.detail);
            }
            if event.count > 1 {
                why = format!("{why}, {} times", event.count);
            }
            let ago = (self.sample.time - event.time).max(0.0) * 1000.0;
            let cells = [
                event.peer.clone(),
                format!("{} ago", number_texts::span(ago as u64)),
                event.what.clone(),
                event.by.clone(),
            ];
            let mut line = cut(&EVENT_COLUMNS, &cells, area.width);
            line.push_str(&fit(&why, rest(&EVENT_COLUMNS, area.width)));
            lines.push(Line::from(line));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn foot(&self, width: u16) -> Paragraph<'_> {
        if let Some(error) = &self.error {
            let words = fit(error, usize::from(width));
            return Paragraph::new(Span::styled(words, style(Level::Bad)));
        }
        let mut words = format!(
            "q quit  s sort ({})  e closed  p pause  arrows move",
            self.order.name()
        );
        if self.sample.unread > 0 {
            words = format!("{words}  {} words not understood", self.sample.unread);
        }
        Paragraph::new(Span::styled(words, Style::new().fg(Color::DarkGray)))
    }

    pub(super) fn rate(&self, rate: f64) -> String {
        if self.history.can_compare() {
            number_texts::short(rate.round().max(0.0) as u64)
        } else {
            "-".to_string()
        }
    }
}
