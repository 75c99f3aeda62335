// SPDX-License-Identifier: GPL-2.0

//! Counters of a connection, by the driver's own table.

use schemars::JsonSchema;
use serde::Serialize;

#[path = "../../../rust/lnd/stats/conn_counter_table.rs"]
mod conn_counter_table;

use conn_counter_table::conn_counters;

/// Defines [`Counts`] of the table.
macro_rules! define {
    ($($(#[$doc:meta])+ $count:ident => $key:ident,)+) => {
        /// Counters of a connection, or the sums of an NI.
        #[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])+ pub $key: u64,)+
        }

        impl Counts {
            /// Adds the counters of another connection.
            pub fn add(&mut self, other: &Self) {
                $(self.$key = self.$key.saturating_add(other.$key);)+
            }

            /// Returns the increase since an earlier sample.
            pub fn since(&self, before: &Self) -> Self {
                Self {
                    $($key: self.$key.saturating_sub(before.$key),)+
                }
            }

            /// Returns the counter with a key of debugfs.
            pub fn by_key(&mut self, key: &str) -> Option<&mut u64> {
                match key {
                    $(stringify!($key) => Some(&mut self.$key),)+
                    _ => None,
                }
            }
        }
    };
}

conn_counters!(define);
