// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, as debugfs shows them. The owner's lock protects them.

use kernel::fmt;

use super::conn_counter_table::conn_counters;

/// Defines [`Count`] and the keys of debugfs of the table.
macro_rules! define {
    ($($(#[$doc:meta])+ $count:ident => $key:ident,)+) => {
        /// A counter.
        #[derive(Clone, Copy)]
        pub(crate) enum Count {
            $($(#[$doc])+ $count,)+
        }

        const KEYS: [&str; [$(stringify!($key)),+].len()] = [$(stringify!($key)),+];
    };
}

conn_counters!(define);

/// Number of counters in the middle of the line of a connection; later additions are at its end.
const FIRST: usize = 12;

/// Values of all counters of a connection, or their sums over the closed connections of an NI.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts([u64; KEYS.len()]);

impl Counts {
    /// Adds one to a counter.
    #[inline(always)]
    pub(crate) fn one(&mut self, what: Count) {
        if let Some(n) = self.0.get_mut(what as usize) {
            *n = n.wrapping_add(1);
        }
    }

    /// Adds `n` to a counter.
    #[inline(always)]
    pub(crate) fn more(&mut self, what: Count, n: u16) {
        if let Some(all) = self.0.get_mut(what as usize) {
            *all = all.wrapping_add(n.into());
        }
    }

    /// Returns the counters with `recv_wrs`, which the queue pair counts.
    pub(crate) fn with_recv_wrs(mut self, recv_wrs: u64) -> Self {
        if let Some(n) = self.0.get_mut(Count::RecvWrs as usize) {
            *n = recv_wrs;
        }
        self
    }

    /// Adds the counters of a closed connection to the sums of its NI.
    pub(crate) fn add(&mut self, of: &Self) {
        for (sum, n) in self.0.iter_mut().zip(of.0) {
            *sum = sum.wrapping_add(n);
        }
    }

    /// Writes the first counters as `key=value` on the line that the caller began.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        for (key, n) in KEYS.iter().zip(self.0).take(FIRST) {
            write!(f, "{space}{key}={n}")?;
            space = " ";
        }
        Ok(())
    }

    /// Writes the other counters at the end of the line.
    pub(crate) fn show_later(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, n) in KEYS.iter().zip(self.0).skip(FIRST) {
            write!(f, " {key}={n}")?;
        }
        Ok(())
    }
}
