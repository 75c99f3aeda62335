// SPDX-License-Identifier: GPL-2.0

//! Short texts for C, without allocation.

use core::fmt::{
    self,
    Write, //
};

/// Text of `N` bytes, of which the last is 0; longer texts are cut.
///
/// # Invariants
///
/// The last byte is 0.
pub(super) struct Text<const N: usize> {
    pub(super) bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const EMPTY: Self = Self {
        bytes: [0; N],
        len: 0,
    };

    /// Formats the arguments.
    pub(super) fn of(args: fmt::Arguments<'_>) -> Self {
        let mut text = Self::EMPTY;
        // Only the `Display` of an argument can fail: then the text is shorter.
        let _ = text.write_fmt(args);
        text
    }

    /// Creates a text from a word.
    pub(super) fn word(word: &str) -> Self {
        let mut text = Self::EMPTY;
        let _ = text.write_str(word);
        text
    }

    /// Returns a pointer to its `N` bytes.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = N.saturating_sub(1);
        let to = self.bytes.iter_mut().take(room).skip(self.len);
        for (to, from) in to.zip(s.bytes()) {
            *to = from;
            self.len = self.len.saturating_add(1);
        }
        Ok(())
    }
}
