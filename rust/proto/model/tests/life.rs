// SPDX-License-Identifier: GPL-2.0

//! Connections and transmits from the first message to shutdown.
//!
//! `cargo test` takes the short form; `cargo test -- --ignored --nocapture` the long one, with its
//! figures.

use std::time::Instant;

use ro2iblnd_model::{
    credit::{
        Kind,
        ALL, //
    },
    life::{
        Budget,
        Config, //
    },
    search::{
        search,
        wander, //
    }, //
};

const NONE: &[Kind] = &[];
const SMALL: &[Kind] = &[Kind::Immediate];
const PUT: &[Kind] = &[Kind::Put];
const GET: &[Kind] = &[Kind::Get];

/// One message, and nothing goes wrong.
const CALM: Budget = Budget {
    messages: 1,
    losses: 0,
    crashes: 0,
    upsets: 0,
    shutdowns: 0,
    closes: 0,
};

/// Returns the searched configurations: name, whether it belongs to the short form, bounds.
fn configs() -> Vec<(&'static str, bool, Config)> {
    let base = Config {
        budget: CALM,
        kinds: [SMALL, NONE],
        depth: 2,
        conns: 1,
        over_tcp: false,
        mute: false,
    };
    let any = Config {
        kinds: [ALL, NONE],
        ..base
    };
    let both = Config {
        kinds: [SMALL; 2],
        ..base
    };
    let with = |c: Config, budget| Config { budget, ..c };
    let tcp = |c: Config| Config {
        over_tcp: true,
        ..c
    };
    let two = Budget {
        messages: 2,
        ..CALM
    };
    vec![
        ("one message of any type", true, any),
        ("two in order", true, with(base, two)),
        ("two of any type", true, with(any, two)),
        (
            "one, shut down on either side",
            true,
            with(
                base,
                Budget {
                    shutdowns: 1,
                    ..CALM
                },
            ),
        ),
        (
            "one of any type, a CM message lost",
            true,
            with(any, Budget { losses: 1, ..CALM }),
        ),
        (
            "one of any type, a crash",
            true,
            with(any, Budget { crashes: 1, ..CALM }),
        ),
        (
            "one, an upset",
            true,
            with(base, Budget { upsets: 1, ..CALM }),
        ),
        (
            "one, closed by the administrator",
            true,
            with(base, Budget { closes: 1, ..CALM }),
        ),
        ("over TCP, one of any type", true, tcp(any)),
        (
            "over TCP, one of two connections has nothing to say",
            true,
            Config {
                conns: 2,
                ..tcp(base)
            },
        ),
        (
            "over TCP, a caller that says nothing by itself",
            true,
            Config {
                conns: 2,
                mute: true,
                ..tcp(base)
            },
        ),
        (
            "over TCP, a race, an upset",
            false,
            with(tcp(both), Budget { upsets: 1, ..two }),
        ),
        (
            "one of any type, shut down on either side",
            false,
            with(
                any,
                Budget {
                    shutdowns: 1,
                    ..CALM
                },
            ),
        ),
        (
            "one of any type, both shut down",
            false,
            with(
                any,
                Budget {
                    shutdowns: 2,
                    ..CALM
                },
            ),
        ),
        (
            "one of any type, an upset",
            false,
            with(any, Budget { upsets: 1, ..CALM }),
        ),
        ("a race", false, with(both, two)),
        (
            "a race, both shut down",
            false,
            with(
                both,
                Budget {
                    shutdowns: 2,
                    ..two
                },
            ),
        ),
        (
            "a race, a CM message lost",
            false,
            with(both, Budget { losses: 1, ..two }),
        ),
        (
            "two, a crash, a reconnect",
            false,
            with(both, Budget { crashes: 1, ..two }),
        ),
        (
            "two, two crashes, shut down",
            false,
            with(
                base,
                Budget {
                    crashes: 2,
                    shutdowns: 1,
                    ..two
                },
            ),
        ),
        (
            "a GET and an upset, shut down",
            false,
            with(
                Config {
                    kinds: [GET, NONE],
                    ..base
                },
                Budget {
                    upsets: 1,
                    shutdowns: 1,
                    ..CALM
                },
            ),
        ),
        (
            "a PUT and an upset, shut down",
            false,
            with(
                Config {
                    kinds: [PUT, NONE],
                    ..base
                },
                Budget {
                    upsets: 1,
                    shutdowns: 1,
                    ..CALM
                },
            ),
        ),
        (
            "two upsets, a loss",
            false,
            with(
                base,
                Budget {
                    upsets: 2,
                    losses: 1,
                    ..CALM
                },
            ),
        ),
        (
            "two connections per peer",
            false,
            with(Config { conns: 2, ..both }, two),
        ),
        (
            "three of any type, both ways",
            false,
            with(
                Config {
                    kinds: [ALL; 2],
                    ..base
                },
                Budget {
                    messages: 3,
                    ..CALM
                },
            ),
        ),
    ]
}

fn search_all(limit: usize, long: bool) -> usize {
    let start = Instant::now();
    let (mut states, mut complete, mut n) = (0, 0, 0);
    for (name, short, c) in configs() {
        if !short && !long {
            continue;
        }
        let report = search(&c, limit);
        println!("{name}: {report}");
        assert!(report.violation.is_none(), "see above");
        states += report.states;
        complete += usize::from(report.complete);
        n += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("lives: {states} states in {n} searches, {complete} complete, {seconds:.0} s");
    states
}

#[test]
fn every_life_ends_well_short() {
    assert!(search_all(30_000, false) > 50_000);
}

#[test]
#[ignore = "minutes"]
fn every_life_ends_well() {
    assert!(search_all(1_000_000, true) > 1_000_000);
}

fn wander_all(runs: usize) {
    let everything = Budget {
        messages: 3,
        losses: 2,
        crashes: 1,
        upsets: 2,
        shutdowns: 2,
        closes: 1,
    };
    let start = Instant::now();
    for (seed, conns, depth, over_tcp, budget) in [
        (1, 1, 2, false, everything),
        (2, 2, 2, false, everything),
        (6, 2, 2, true, everything),
        (
            3,
            2,
            2,
            false,
            Budget {
                messages: 6,
                crashes: 3,
                upsets: 4,
                losses: 4,
                closes: 3,
                ..everything
            },
        ),
        (
            4,
            1,
            3,
            false,
            Budget {
                messages: 6,
                shutdowns: 0,
                ..everything
            },
        ),
        (
            5,
            3,
            2,
            false,
            Budget {
                messages: 6,
                shutdowns: 1,
                crashes: 0,
                ..everything
            },
        ),
    ] {
        let c = Config {
            budget,
            kinds: [ALL; 2],
            depth,
            conns,
            over_tcp,
            mute: false,
        };
        match wander(&c, runs, seed) {
            Ok(done) => {
                println!("{conns} connections per peer, over TCP: {over_tcp}, {budget:?}: {done:?}")
            }
            Err(v) => panic!("{v}"),
        }
    }
    println!("random lives: {:.0} s", start.elapsed().as_secs_f64());
}

#[test]
fn random_lives_end_well_short() {
    wander_all(5_000);
}

#[test]
#[ignore = "minutes"]
fn random_lives_end_well() {
    wander_all(200_000);
}
