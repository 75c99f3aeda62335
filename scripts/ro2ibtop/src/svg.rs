// SPDX-License-Identifier: GPL-2.0

//! A picture of the screen.

use std::fmt::Write as _;

use ratatui::{
    buffer::Buffer,
    style::{
        Color,
        Modifier,
        Style, //
    }, //
};

/// Size of a character.
const WIDTH: f32 = 8.4;
const HEIGHT: f32 = 18.0;

/// Draws a buffer.
pub fn picture(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (width, height) = (
        f32::from(area.width) * WIDTH + 16.0,
        f32::from(area.height) * HEIGHT + 16.0,
    );
    let mut svg = format!(
        "<!-- SPDX-License-Identifier: GPL-2.0 -->\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"monospace\" font-size=\"14\" xml:space=\"preserve\" style=\"white-space:pre\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1c1f24\"/>\n"
    );
    for y in 0..area.height {
        let mut x = 0;
        while x < area.width {
            let first = &buffer[(x, y)];
            let style = first.style();
            let mut text = String::new();
            let start = x;
            while x < area.width && buffer[(x, y)].style() == style {
                text.push_str(buffer[(x, y)].symbol());
                x += 1;
            }
            span(&mut svg, start, x - start, y, text.trim_end(), style);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn span(svg: &mut String, x: u16, n: u16, y: u16, text: &str, style: Style) {
    let (left, top) = (f32::from(x) * WIDTH + 8.0, f32::from(y) * HEIGHT + 8.0);
    let reversed = style.add_modifier.contains(Modifier::REVERSED);
    if reversed {
        let width = f32::from(n) * WIDTH;
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"#d4d7dc\"/>"
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let colour = match style.fg {
        _ if reversed => "#1c1f24",
        Some(Color::Green) => "#7bc275",
        Some(Color::Cyan) => "#6cc0cf",
        Some(Color::Yellow) => "#e5c25b",
        Some(Color::Red) => "#ef6f6c",
        Some(Color::DarkGray) => "#8a919c",
        _ => "#d4d7dc",
    };
    let mut more = String::new();
    if style.add_modifier.contains(Modifier::BOLD) {
        more.push_str(" font-weight=\"bold\"");
    }
    if style.add_modifier.contains(Modifier::UNDERLINED) {
        more.push_str(" text-decoration=\"underline\"");
    }
    // Leading blanks are dropped, as some viewers drop them anyway.
    let trimmed = text.trim_start();
    let blanks = text_length(text) - text_length(trimmed);
    let left = left + blanks * WIDTH;
    let text = trimmed
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let baseline = top + 14.0;
    let length = text_length(&text) * WIDTH;
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{baseline:.1}\" textLength=\"{length:.1}\" fill=\"{colour}\"{more}>{text}</text>"
    );
}

fn text_length(escaped: &str) -> f32 {
    let mut n = 0u16;
    let mut inside = false;
    for c in escaped.chars() {
        inside = (inside || c == '&') && c != ';';
        if !inside {
            n = n.saturating_add(1);
        }
    }
    f32::from(n)
}
