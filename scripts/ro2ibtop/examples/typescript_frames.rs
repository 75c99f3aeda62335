// SPDX-License-Identifier: GPL-2.0

//! Frames that a program drew on a terminal: each frame as text with a form feed behind it, then the final screen.
//! Tests that run the program in a guest save its terminal to a file and read it with this.
//!
//! `frames ROWS COLUMNS <typescript`

use std::{
    env,
    io::{
        self,
        Read,
        Write, //
    }, //
};

/// ratatui hides the cursor after each frame.
const END: &[u8] = b"\x1b[?25l";

fn text(screen: &vt100::Screen) -> String {
    let rows = screen.rows(0, screen.size().1);
    rows.map(|row| format!("{}\n", row.trim_end())).collect()
}

fn main() -> io::Result<()> {
    let size: Vec<u16> = env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let [rows, columns] = size[..] else {
        return Err(io::Error::other("usage: frames ROWS COLUMNS <typescript"));
    };
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let mut terminal = vt100::Parser::new(rows, columns, 0);
    let mut out = io::stdout().lock();
    let mut rest = &bytes[..];
    while let Some(at) = rest.windows(END.len()).position(|w| w == END) {
        let (frame, after) = rest.split_at(at + END.len());
        terminal.process(frame);
        rest = after;
        // The program hides the cursor once before the first frame, which shows nothing yet.
        if terminal.screen().alternate_screen() {
            write!(out, "{}\u{c}", text(terminal.screen()))?;
        }
    }
    terminal.process(rest);
    let screen = terminal.screen();
    write!(
        out,
        "{}alternate screen {}, cursor hidden {}\n",
        text(screen),
        screen.alternate_screen(),
        screen.hide_cursor()
    )
}
