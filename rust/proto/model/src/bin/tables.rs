// SPDX-License-Identifier: GPL-2.0

//! Prints `Documentation/state-tables.md`.

fn main() {
    print!("{}", ro2iblnd_model::tables::document());
}
