// SPDX-License-Identifier: GPL-2.0

//! The credit protocol: searched through within bounds, and walked at random beyond them.
//!
//! `cargo test` takes the short form; `cargo test -- --ignored --nocapture` the long one, with its
//! figures.

use std::time::Instant;

use ro2iblnd_model::{
    credit::{
        Config,
        Kind,
        Step,
        Who,
        ALL, //
    },
    search::{
        search,
        Model, //
    },
    walk::walk, //
};
use ro2iblnd_proto::constants::{
    high_water,
    QueueDepth, //
};

const NONE: &[Kind] = &[];
const SMALL: &[Kind] = &[Kind::Immediate];
const PUT: &[Kind] = &[Kind::Put];
const GET: &[Kind] = &[Kind::Get];

const OURS: [Who; 2] = [Who::Ours; 2];
const PAIRS: [[Who; 2]; 3] = [OURS, [Who::Ours, Who::Ko2], [Who::Ko2, Who::Ours]];

/// Returns the lowest mark that the driver ever uses at that depth.
fn mark(depth: u16) -> u8 {
    let depth = QueueDepth::new(depth).expect("a depth");
    high_water(depth, 0, QueueDepth::MAX)
}

fn config(who: [Who; 2], depth: u16) -> Config {
    Config {
        who,
        depth,
        high_water: [mark(depth); 2],
        sq: 6,
        chain: 2,
        kinds: [ALL; 2],
        window: [1; 2],
        keepalive: false,
        feed: true,
    }
}

/// Returns the searched configurations, by name.
fn configs() -> Vec<(&'static str, Config)> {
    let mut all = Vec::new();
    for who in PAIRS {
        for depth in 1..=4u16 {
            let base = config(who, depth);
            let d = usize::from(depth);
            let full = [base.high_water[0], depth as u8];
            all.push(("any type, both ways", base));
            all.push((
                "any type, two open one way",
                Config {
                    window: [2, 0],
                    ..base
                },
            ));
            all.push((
                "a flood one way",
                Config {
                    kinds: [SMALL, NONE],
                    window: [d + 2, 0],
                    ..base
                },
            ));
            all.push((
                "a flood both ways",
                Config {
                    kinds: [SMALL; 2],
                    window: [d + 1, 2],
                    high_water: full,
                    ..base
                },
            ));
            all.push((
                "GETs against a flood",
                Config {
                    kinds: [GET, SMALL],
                    window: [d.min(3), d.min(3)],
                    sq: 12,
                    ..base
                },
            ));
            all.push((
                "PUTs, send queue short",
                Config {
                    kinds: [PUT, SMALL],
                    window: [2, 1],
                    sq: 4,
                    ..base
                },
            ));
            all.push((
                "transfers longer than the send queue",
                Config {
                    kinds: [PUT, GET],
                    window: [2, 1],
                    sq: 4,
                    chain: 6,
                    ..base
                },
            ));
            all.push((
                "keepalives",
                Config {
                    kinds: [SMALL, NONE],
                    window: [d + 1, 0],
                    keepalive: true,
                    ..base
                },
            ));
        }
    }
    all
}

fn search_all(limit: usize) -> usize {
    let start = Instant::now();
    let (mut states, mut complete, mut n) = (0, 0, 0);
    for (name, c) in configs() {
        let report = search(&c, limit);
        let who = c.who;
        println!(
            "{who:?} depth {} hiw {:?}, {name}: {report}",
            c.depth, c.high_water
        );
        assert!(report.violation.is_none(), "see above");
        states += report.states;
        complete += usize::from(report.complete);
        n += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "credit protocol: {states} states in {n} searches, {complete} complete, {seconds:.0} s"
    );
    states
}

#[test]
fn credits_add_up_short() {
    assert!(search_all(4_000) > 100_000);
}

#[test]
#[ignore = "minutes"]
fn credits_add_up() {
    assert!(search_all(250_000) > 5_000_000);
}

fn walk_all(steps: usize) {
    for who in PAIRS {
        for depth in [1u16, 2, 8, 127, 255] {
            let d = usize::from(depth);
            let start = Instant::now();
            let c = Config {
                window: [2 * d + 1, d + 2],
                sq: 4 * depth + 6,
                keepalive: who == OURS,
                ..config(who, depth)
            };
            match walk(&c, steps, u64::from(depth)) {
                Ok(t) => {
                    let seconds = start.elapsed().as_secs_f64();
                    println!("{who:?} depth {depth}: {t:?}, {seconds:.1} s");
                    assert!(t.dry > 0, "credits never ran out");
                }
                Err(fault) => panic!("{who:?} depth {depth}: {fault}"),
            }
        }
    }
}

#[test]
fn random_steps_short() {
    walk_all(20_000);
}

#[test]
#[ignore = "minutes"]
fn random_steps() {
    walk_all(1_000_000);
}

/// Tests that one NOOP returns at least a mark of credits while LNet keeps nothing: no storm at any depth, even at 1.
#[test]
fn noops_are_bounded_by_progress() {
    for depth in [1u16, 2, 3, 8, 255] {
        let c = Config {
            kinds: [SMALL, NONE],
            window: [usize::from(depth) + 1, 0],
            sq: 8,
            feed: false,
            ..config(OURS, depth)
        };
        let t = walk(&c, 50_000, 7).expect("no violation");
        assert!(t.requests[0] > 1_000);
        assert!(
            t.noops[1] * usize::from(mark(depth)) <= t.requests[0],
            "{t:?}"
        );
        assert_eq!(t.noops[0], 0);
    }
}

/// Shows why the mark may not be lower: with a mark of 1 at depth 3 three NOOPs can be on their way to a
/// side that has buffers for two, because the completions of NOOPs come from its device and not
/// from its softirq.
#[test]
fn a_low_mark_overruns_the_receive_queue() {
    let c = Config {
        high_water: [1; 2],
        kinds: [GET, SMALL],
        window: [3, 3],
        sq: 30,
        ..config(OURS, 3)
    };
    assert_eq!(mark(3), 2);
    let mut state = c.init();
    let mut run = |steps: &[Step]| -> Result<(), String> {
        for step in steps {
            c.take(&mut state, *step)?;
            c.check(&state)?;
        }
        Ok(())
    };
    for _ in 0..3 {
        assert_eq!(run(&[Step::Send(0, Kind::Get), Step::Deliver(1)]), Ok(()));
    }
    for _ in 0..3 {
        // The doorbell between the two halves of `lnd_recv` is another CPU's.
        let one = [Step::Take(1, 0, true), Step::Ring(1), Step::Complete(1)];
        assert_eq!(run(&one), Ok(()));
    }
    assert_eq!(
        run(&[
            Step::Answer(1, 0),
            Step::Answer(1, 0),
            Step::Answer(1, 0),
            Step::Ring(1)
        ]),
        Ok(())
    );
    let flood = run(&[Step::Send(1, Kind::Immediate); 3]);
    assert!(flood.is_err_and(|fault| fault.contains("RNR")));
}
