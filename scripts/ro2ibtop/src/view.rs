// SPDX-License-Identifier: GPL-2.0

//! The screen: NIs, then peers and connections with what is wrong first, then what ended last.

use std::cmp::Reverse;

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

use crate::{
    history::{
        History,
        LENGTH, //
    },
    model::{
        Conn,
        Event,
        Ni,
        Sample, //
    },
    times,
    verdict::{
        self,
        Level,
        Verdict,
        Way, //
    },
    words, //
};

/// What the list is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What is wrong first.
    #[default]
    Trouble,
    /// By NID.
    Nid,
    /// What moves most first.
    Rate,
}

impl Order {
    /// The one after it.
    pub fn next(self) -> Self {
        match self {
            Self::Trouble => Self::Nid,
            Self::Nid => Self::Rate,
            Self::Rate => Self::Trouble,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Nid => "nid",
            Self::Rate => "rate",
        }
    }
}

/// A line of the list.
#[derive(Clone, Debug)]
pub struct Item {
    /// Number of its NI in the sample.
    pub ni: usize,
    /// The peer.
    pub peer: String,
    /// Number of the connection in the NI; `None` is the peer itself.
    pub conn: Option<usize>,
    /// What is wrong.
    pub verdict: Verdict,
    rate: f64,
    address: Vec<u32>,
}

/// What the screen shows.
#[derive(Debug, Default)]
pub struct App {
    /// The last sample.
    pub sample: Sample,
    /// What was before.
    pub history: History,
    /// Peers and connections, in order.
    pub items: Vec<Item>,
    /// What is said of each NI.
    pub nis: Vec<Verdict>,
    /// Numbers of the NIs in the sample, those with trouble first.
    ranks: Vec<usize>,
    /// The order.
    pub order: Order,
    /// The line of the list of which all is told; `None` if nobody can choose one.
    pub chosen: Option<usize>,
    /// Where the sample is from.
    pub title: String,
    /// Nothing is read for now.
    pub paused: bool,
    /// What ended is shown instead of the list.
    pub events: bool,
    /// What could not be read.
    pub error: Option<String>,
}

impl App {
    /// Shows another sample.
    pub fn take(&mut self, sample: Sample) {
        self.history.take(&sample);
        self.sample = sample;
        self.error = None;
        self.judge();
        self.sort();
    }

    fn judge(&mut self) {
        let now = self.sample.time;
        self.items.clear();
        self.nis.clear();
        for (at, ni) in self.sample.nis.iter().enumerate() {
            self.nis.push(verdict::ni(ni, &self.history, now));
            let way = Way::of(ni, &self.history);
            let item = |peer: &str, conn, verdict, rate| Item {
                ni: at,
                peer: peer.to_string(),
                conn,
                verdict,
                rate,
                address: numbers(peer),
            };
            for (number, conn) in ni.conns.iter().enumerate() {
                let track = self.history.conn(ni, number);
                let rate = track.map_or(0.0, |t| t.rate.tx + t.rate.rx);
                let verdict = verdict::conn(conn, track, way);
                self.items
                    .push(item(&conn.peer, Some(number), verdict, rate));
            }
            let noisy = verdict::noisy(ni);
            for peer in &ni.peers {
                let quiet = peer.waiting == 0
                    && peer.retry_ms.is_none()
                    && !noisy.contains(peer.nid.as_str());
                let verdict = match quiet {
                    true => Verdict::fine(),
                    false => verdict::peer(ni, peer, now, way),
                };
                // A peer that is fine is told by its connections.
                if verdict.level > Level::Fine || peer.conns == 0 {
                    self.items.push(item(&peer.nid, None, verdict, 0.0));
                }
            }
            for (nid, verdict) in verdict::lost(ni, now) {
                self.items.push(item(&nid, None, verdict, 0.0));
            }
        }
        self.ranks = (0..self.nis.len()).collect();
        let level = |at: &usize| self.nis.get(*at).map(|v| v.level);
        self.ranks.sort_by_key(|at| Reverse(level(at)));
    }

    fn sort(&mut self) {
        match self.order {
            Order::Trouble => self.items.sort_by(|a, b| {
                let level = b.verdict.level.cmp(&a.verdict.level);
                level.then_with(|| a.address.cmp(&b.address))
            }),
            Order::Nid => self.items.sort_by(|a, b| a.address.cmp(&b.address)),
            Order::Rate => self.items.sort_by(|a, b| b.rate.total_cmp(&a.rate)),
        }
    }

    /// Sorts by something else.
    pub fn reorder(&mut self) {
        self.order = self.order.next();
        self.sort();
    }

    /// Chooses another line of the list.
    pub fn choose(&mut self, by: isize) {
        let last = self.items.len().saturating_sub(1);
        let chosen = self.chosen.unwrap_or(0).min(last);
        self.chosen = Some(chosen.saturating_add_signed(by).min(last));
    }

    /// All levels there are: of peers and connections, of NIs, and of what is for none of them.
    fn levels(&self) -> impl Iterator<Item = Level> + '_ {
        let items = self.items.iter().map(|item| item.verdict.level);
        let nis = self.nis.iter().map(|v| v.level);
        let strangers = verdict::strangers(&self.sample).map(|v| v.level);
        items.chain(nis).chain(strangers)
    }

    /// How many things are as bad as that.
    pub fn count(&self, level: Level) -> usize {
        self.levels().filter(|l| *l == level).count()
    }

    /// Whether something ended lately that is made good by now.
    fn ended_lately(&self) -> bool {
        let ended = |item: &Item| item.verdict.kind == "ended";
        self.items.iter().any(ended)
    }

    /// The worst there is.
    pub fn worst(&self) -> Level {
        self.levels().max().unwrap_or(Level::Fine)
    }

    /// The connection of an item.
    pub fn conn(&self, item: &Item) -> Option<&Conn> {
        self.sample.nis.get(item.ni)?.conns.get(item.conn?)
    }

    /// Lines that everything takes, if there is room.
    pub fn height(&self) -> u16 {
        let nis = usize::from(self.ni_lines());
        let events: usize = self.sample.nis.iter().map(|ni| ni.events.len()).sum();
        let events = events.saturating_add(self.sample.stranger_events.len());
        let below = match self.events {
            true => events,
            false => self.items.len().saturating_add(events.min(EVENTS)),
        };
        let strangers = usize::from(verdict::strangers(&self.sample).is_some());
        let all = nis.saturating_add(below).saturating_add(strangers);
        let all = all.saturating_add(usize::from(FRAME));
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    /// Draws it all.
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
        let strangers = verdict::strangers(&self.sample);
        let for_strangers = u16::from(strangers.is_some());
        let rest = [1, for_strangers, 2, 1, items, detail, below, 1];
        let nis = self.ni_room(area.height, rest.into_iter().fold(0, u16::saturating_add));
        let frame_lines = FRAME.saturating_add(for_strangers);
        let left = area.height.saturating_sub(nis.saturating_add(frame_lines));
        let detail = detail.min(left);
        let below = below.min(left.saturating_sub(detail));
        let [head, second, top, list, detail, tail, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(for_strangers),
            Constraint::Length(nis.saturating_add(2)),
            Constraint::Min(2),
            Constraint::Length(detail),
            Constraint::Length(below),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(self.head(), head);
        if let Some(strangers) = strangers {
            let line = Span::styled(strangers.words, style(strangers.level));
            frame.render_widget(Paragraph::new(line), second);
        }
        self.draw_nis(frame, top);
        if self.events {
            self.draw_events(frame, list, &self.latest(usize::from(list.height)));
        } else {
            self.draw_items(frame, list);
            frame.render_widget(Paragraph::new(told).wrap(Wrap { trim: true }), detail);
            self.draw_events(frame, tail, &events);
        }
        frame.render_widget(self.foot(), foot);
    }

    fn head(&self) -> Paragraph<'_> {
        let conns: usize = self.sample.nis.iter().map(|ni| ni.conns.len()).sum();
        let mut line = vec![
            Span::styled(" ro2ibtop ", Style::new().add_modifier(Modifier::REVERSED)),
            Span::raw(format!(" {}  {}  ", self.title, clock(self.sample.time))),
            Span::raw(words::plural(conns as u64, "connection", "connections")),
            Span::raw("; "),
        ];
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
        if self.paused {
            line.push(Span::raw("  (paused)"));
        }
        Paragraph::new(Line::from(line))
    }

    fn draw_nis(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = area.width;
        let room = usize::from(area.height.saturating_sub(2));
        let shown = self.ranks.len().min(room);
        let mut names: Vec<String> = NI_COLUMNS.iter().map(|c| c.0.to_string()).collect();
        if let (Some(first), true) = (names.first_mut(), shown < self.ranks.len()) {
            *first = format!("NI, {shown} of {}", self.ranks.len());
        }
        let mut lines = vec![named(&NI_COLUMNS, &names, area.width)];
        // An NI comes before the times of another one.
        let mut more = room.saturating_sub(shown);
        for at in self.ranks.iter().take(shown) {
            let (Some(ni), Some(verdict)) = (self.sample.nis.get(*at), self.nis.get(*at)) else {
                continue;
            };
            let track = self.history.ni(ni);
            let rate = track.map(|t| t.rate).unwrap_or_default();
            let device = if ni.device.is_empty() {
                "none"
            } else {
                &ni.device
            };
            let cells = [
                ni.nid.clone(),
                device.to_string(),
                ni.peers.len().to_string(),
                ni.conns.len().to_string(),
                self.rate(rate.tx),
                self.rate(rate.rx),
                words::short(ni.waiting),
                words::short(ni.count_all("closed")),
                words::short(ni.count_all("failed")),
                words::short(ni.count_all("refused")),
                track.map(|t| t.picture(bars(width))).unwrap_or_default(),
            ];
            lines.push(row(&NI_COLUMNS, &cells, area.width, verdict));
            if let (Some(times), 1..) = (self.where_time_goes(ni), more) {
                lines.push(times);
                more = more.saturating_sub(1);
            }
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Half and 99 of 100 of what took most time since the last look, if the driver tells.
    fn where_time_goes(&self, ni: &Ni) -> Option<Line<'static>> {
        let times = times::costly(self.history.times(ni));
        if times.is_empty() {
            return None;
        }
        let mut words = "  p50/p99".to_string();
        for (number, times) in times.iter().take(COSTLY).enumerate() {
            let of = |of_1000| times.quantile(of_1000).map_or("?".to_string(), times::span);
            let comma = if number > 0 { "," } else { "" };
            let (stage, op) = (&times.stage, &times.op);
            words = format!("{words}{comma} {op} {stage} {}/{}", of(500), of(990));
        }
        Some(Line::from(Span::styled(
            words,
            Style::new().fg(Color::DarkGray),
        )))
    }

    /// Lines that NIs take.
    fn ni_lines(&self) -> u16 {
        let nis = self.sample.nis.iter();
        let more = nis.filter(|ni| !times::costly(self.history.times(ni)).is_empty());
        let all = self.sample.nis.len() + more.count();
        u16::try_from(all).unwrap_or(u16::MAX)
    }

    /// Lines for NIs on a screen of so many, of which the rest wants `rest`: a quarter, or what is left, and in any case
    /// all that are bad while the list keeps two.
    fn ni_room(&self, height: u16, rest: u16) -> u16 {
        let bad = self.nis.iter().filter(|v| v.level == Level::Bad).count();
        let bad = u16::try_from(bad).unwrap_or(u16::MAX);
        let fair = (height / 4).max(height.saturating_sub(rest));
        let fair = fair.min(self.ni_lines());
        fair.max(bad.min(height.saturating_sub(FRAME)))
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
                // A peer has nothing but its verdict to show, and all the room for it.
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
        let queue = conn.q_main.saturating_add(conn.q_free);
        let queue = queue.saturating_add(conn.q_unreserved);
        let state = match conn.state.as_str() {
            "Established" => "up",
            "Closing" | "Draining" | "Dead" => "ending",
            "" => "?",
            _ => "set up",
        };
        [
            item.peer.clone(),
            if conn.active { "us" } else { "peer" }.to_string(),
            state.to_string(),
            format!("{}/{}", conn.credits, conn.depth),
            words::short(queue),
            words::short(conn.with_lnet),
            match conn.oldest_ms {
                0 => String::new(),
                ms => words::span(ms),
            },
            self.rate(rate.tx),
            self.rate(rate.rx),
            known(conn.qpn),
            known(conn.peer_qpn),
            track.map(|t| t.picture(bars(width))).unwrap_or_default(),
        ]
    }

    /// All of the chosen line: what is wrong, what it is, what there was before.
    fn detail(&self) -> Vec<Line<'_>> {
        let chosen = self.chosen.and_then(|n| {
            let last = self.items.len().saturating_sub(1);
            self.items.get(n.min(last))
        });
        let Some(item) = chosen else {
            return Vec::new();
        };
        let verdict = match item.verdict.level {
            Level::Fine => "ok",
            _ => item.verdict.words.as_str(),
        };
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
                words::span(conn.idle_ms),
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
                words::plural(peer.closed, "connection ended", "connections ended"),
                words::plural(peer.failed, "attempt failed", "attempts failed"),
                words::ends(&peer.ends, usize::MAX)
            )));
        }
        lines
    }

    /// What ended last of all NIs, the newest first.
    fn latest(&self, most: usize) -> Vec<&Event> {
        let nis = self.sample.nis.iter().flat_map(|ni| &ni.events);
        let mut all: Vec<&Event> = nis.chain(&self.sample.stranger_events).collect();
        all.sort_by(|a, b| b.time.total_cmp(&a.time));
        all.truncate(most);
        all
    }

    fn draw_events(&self, frame: &mut Frame<'_>, area: Rect, events: &[&Event]) {
        let mut lines = vec![heading(&EVENT_COLUMNS, area.width)];
        for event in events {
            let why = match event.what.as_str() {
                "refused" => words::refusal(&event.cause),
                _ => words::cause(&event.cause),
            };
            let mut why = why.to_string();
            if !event.detail.is_empty() {
                why = format!("{why} ({})", event.detail);
            }
            if event.times > 1 {
                why = format!("{why}, {} times", event.times);
            }
            let ago = (self.sample.time - event.time).max(0.0) * 1000.0;
            let cells = [
                event.peer.clone(),
                format!("{} ago", words::span(ago as u64)),
                event.what.clone(),
                event.by.clone(),
            ];
            let mut line = cut(&EVENT_COLUMNS, &cells, area.width);
            line.push_str(&why);
            lines.push(Line::from(line));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn foot(&self) -> Paragraph<'_> {
        if let Some(error) = &self.error {
            return Paragraph::new(Span::styled(error.as_str(), style(Level::Bad)));
        }
        let mut words = format!(
            "q quit  s sort ({})  e what ended  p pause  arrows move",
            self.order.name()
        );
        if self.sample.unread > 0 {
            words = format!("{words}  {} words not understood", self.sample.unread);
        }
        Paragraph::new(Span::styled(words, Style::new().fg(Color::DarkGray)))
    }

    fn rate(&self, rate: f64) -> String {
        if self.history.can_compare() {
            words::short(rate.round().max(0.0) as u64)
        } else {
            "-".to_string()
        }
    }
}

/// What ended that is shown below the list.
const EVENTS: usize = 8;

/// Lines that are always there: the first and the last one, two headings, a blank one, and two of the list.
const FRAME: u16 = 7;

/// Stages of which the times are shown.
const COSTLY: usize = 4;

/// How many lines of that width a line takes, if words are not divided. Too many rather than too few.
fn wrapped(line: &Line<'_>, width: u16) -> u16 {
    let longest = line.spans.iter().flat_map(|s| s.content.split(' '));
    let longest = longest.map(|word| word.chars().count()).max().unwrap_or(0);
    let used = usize::from(width).saturating_sub(longest).max(1);
    match line.width() {
        all if all <= usize::from(width) => 1,
        all => u16::try_from(all.div_ceil(used)).unwrap_or(u16::MAX),
    }
}

fn known(n: u64) -> String {
    match n {
        0 => "-".to_string(),
        n => n.to_string(),
    }
}

fn numbers(nid: &str) -> Vec<u32> {
    let parts = nid.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

fn clock(time: f64) -> String {
    let seconds = time.max(0.0) as u64 % 86_400;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{h:02}:{m:02}:{s:02} UTC")
}

/// A column: its name, its width, and from which width of the screen on it is shown.
type Column = (&'static str, usize, u16);

/// Width of a column that [`bars`] tells.
const BARS: usize = 0;

/// How many rates are drawn on a screen of that width: more where the verdict has its room.
fn bars(width: u16) -> usize {
    let more = width.saturating_sub(200) / 2;
    usize::from(more).saturating_add(8).min(LENGTH)
}

const NI_COLUMNS: [Column; 11] = [
    ("NI", 20, 0),
    ("device", 8, 0),
    ("peers", 5, 90),
    ("conns", 5, 0),
    ("tx/s", 6, 80),
    ("rx/s", 6, 80),
    ("wait", 5, 100),
    ("closed", 6, 0),
    ("failed", 6, 0),
    ("refused", 7, 110),
    ("history", BARS, 130),
];

const CONN_COLUMNS: [Column; 12] = [
    ("peer", 20, 0),
    ("by", 4, 120),
    ("state", 6, 90),
    ("cred", 7, 0),
    ("queue", 5, 0),
    ("lnet", 4, 100),
    ("oldest", 7, 0),
    ("tx/s", 6, 110),
    ("rx/s", 6, 110),
    ("qpn", 6, 150),
    ("peer's", 6, 150),
    ("history", BARS, 140),
];

const EVENT_COLUMNS: [Column; 4] = [
    ("peer", 20, 0),
    ("ended", 11, 0),
    ("what", 8, 0),
    ("by", 9, 0),
];

/// The cells that fit, each in its column.
fn cut(columns: &[Column], cells: &[String], width: u16) -> String {
    let mut line = String::with_capacity(usize::from(width));
    for ((_, room, from), cell) in columns.iter().zip(cells) {
        if width < *from {
            continue;
        }
        let room = match *room {
            BARS => bars(width),
            room => room,
        };
        let used = cell.chars().count().min(room);
        line.extend(cell.chars().take(room));
        line.extend(std::iter::repeat_n(' ', room - used + 1));
    }
    line
}

fn heading(columns: &[Column], width: u16) -> Line<'static> {
    let names: Vec<String> = columns.iter().map(|c| c.0.to_string()).collect();
    named(columns, &names, width)
}

fn named(columns: &[Column], names: &[String], width: u16) -> Line<'static> {
    let last = match columns.len() {
        4 => "cause",
        _ => "verdict",
    };
    let line = format!("{}{last}", cut(columns, names, width));
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    Line::from(Span::styled(line, style))
}

fn row<'a>(columns: &[Column], cells: &[String], width: u16, verdict: &'a Verdict) -> Line<'a> {
    let words = match verdict.level {
        Level::Fine => "ok",
        _ => verdict.words.as_str(),
    };
    Line::from(vec![
        Span::raw(cut(columns, cells, width)),
        Span::styled(words, style(verdict.level)),
    ])
}

fn style(level: Level) -> Style {
    match level {
        Level::Fine => Style::new().fg(Color::Green),
        Level::Note => Style::new().fg(Color::Cyan),
        Level::Warn => Style::new().fg(Color::Yellow),
        Level::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}
