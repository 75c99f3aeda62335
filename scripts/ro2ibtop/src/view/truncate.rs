// SPDX-License-Identifier: GPL-2.0

//! Truncation of text.

use std::borrow::Cow;

/// Mark behind a truncated text: a part of a name may be another name.
const CUT: char = '~';

/// Truncates a text to a width.
pub(super) fn fit(text: &str, room: usize) -> Cow<'_, str> {
    if text.chars().count() <= room {
        return Cow::Borrowed(text);
    }
    let Some(room) = room.checked_sub(1) else {
        return Cow::Borrowed("");
    };
    let mut cut: String = text.chars().take(room).collect();
    cut.push(CUT);
    Cow::Owned(cut)
}

/// Wraps a text at a width. Only a word that is longer is divided.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length <= width {
            line.push(' ');
            line.push_str(word);
            used += 1 + length;
            continue;
        }
        if used > 0 {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        for c in word.chars() {
            if used == width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += 1;
        }
    }
    if used > 0 {
        lines.push(line);
    }
    lines
}

/// Returns the first lines. The last one shows if there were more.
pub(super) fn first(mut lines: Vec<String>, most: usize) -> Vec<String> {
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            last.pop();
            last.push(CUT);
        }
    }
    lines
}
