// SPDX-License-Identifier: GPL-2.0

//! Runs worlds.

mod scenario;

fn main() {
    let seed = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    let end = scenario::run(seed, true);
    for line in &end.story {
        println!("{line}");
    }
    println!("{:?}", (end.failed, end.steps, end.points, end.messages, end.ops, end.good));
}
