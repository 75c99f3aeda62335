// SPDX-License-Identifier: GPL-2.0

//! Program that runs worlds: many, or the world of a seed with its story.
//!
//! ```text
//! ro2iblnd-sim                    for a minute
//! ro2iblnd-sim --seconds 600      for this time
//! ro2iblnd-sim --count 1000000    this number of worlds
//! ro2iblnd-sim --from 17          beginning with that seed
//! ro2iblnd-sim --kept FILE        the seeds of a file first
//! ro2iblnd-sim --first            until the first failure
//! ro2iblnd-sim --peers 1000       one large world
//! ro2iblnd-sim --peers 1500 --storms 3
//!                                 another large world: all peers connect and close this often
//! ro2iblnd-sim --slow             worlds in which one component is slow
//! ro2iblnd-sim --slow --named TEXT
//!                                 those of them that have the text in their names
//! ro2iblnd-sim --jobs 4           this number of workers at a time
//! ro2iblnd-sim --state FILE       continues where the last run with that file stopped
//! ro2iblnd-sim --interval 60      prints the progress at this interval in seconds
//! ro2iblnd-sim --seed 17          one world, with its story
//! ```
//!
//! Worlds run in processes of their own: a world that crashes ends only its own process.

use std::{
    env,
    fs::OpenOptions,
    io::Write,
    os::unix::fs::FileExt,
    panic,
    process::exit,
    time::{
        Duration,
        Instant, //
    }, //
};

mod distinct;
mod fast_alloc;
mod gather;
mod monotonic_check;
mod scale;
mod scenario;
mod slow_component_isolation;
mod true_counts_check;

use gather::Sum;
use scenario::Script;

#[global_allocator]
static HOST: fast_alloc::Host = fast_alloc::Host;

#[derive(Clone, Debug, Default)]
pub struct Options {
    from: u64,
    count: Option<u64>,
    seconds: Option<u64>,
    seed: Option<u64>,
    kept: Option<String>,
    /// File to which the current seed is written.
    status: Option<String>,
    /// Number of failures after which the run stops.
    most: Option<u64>,
    /// Stop immediately at the first failure.
    first: bool,
    /// Number of workers.
    jobs: u64,
    /// File with the progress of the last run.
    state: Option<String>,
    /// Interval of the progress lines in seconds.
    interval: Option<u64>,
    /// Run a large world with this number of peers of one node.
    peers: Option<u64>,
    /// How often all peers connect and close, with four connections each; otherwise they have one
    /// connection, and many other events happen.
    storms: Option<u64>,
    /// Run the worlds in which one component is slow.
    slow: bool,
    /// Only those of them that have this text in their names.
    named: String,
}

fn options() -> Options {
    let mut o = Options {
        from: 1,
        ..Options::default()
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next().unwrap_or_else(|| {
                eprintln!("{arg} wants a value");
                exit(2);
            })
        };
        let number = |s: String| {
            s.parse::<u64>().unwrap_or_else(|_| {
                eprintln!("{s} is not a number");
                exit(2);
            })
        };
        match arg.as_str() {
            "--from" => o.from = number(value()),
            "--count" => o.count = Some(number(value())),
            "--seconds" => o.seconds = Some(number(value())),
            "--seed" => o.seed = Some(number(value())),
            "--most" => o.most = Some(number(value())),
            "--first" => o.first = true,
            "--jobs" => o.jobs = number(value()),
            "--state" => o.state = Some(value()),
            "--interval" => o.interval = Some(number(value())),
            "--peers" => o.peers = Some(number(value())),
            "--storms" => o.storms = Some(number(value())),
            "--slow" => o.slow = true,
            "--named" => o.named = value(),
            "--kept" => o.kept = Some(value()),
            "--status" => o.status = Some(value()),
            _ => {
                eprintln!("{arg}?");
                exit(2);
            }
        }
    }
    o
}

fn tell(seed: u64) -> ! {
    let end = scenario::run(Script::new(seed), true);
    for line in &end.story {
        // The reader of the pipe may have ended.
        if writeln!(std::io::stdout(), "{line}").is_err() {
            exit(1);
        }
    }
    match end.failed {
        Some(what) => {
            println!("seed {seed}: {what}");
            exit(1);
        }
        None => {
            println!(
                "seed {seed}: nothing wrong; {} steps, {} points",
                end.steps, end.points
            );
            exit(0);
        }
    }
}

/// Runs seeds, and prints those that fail; the last line is the sum.
fn worker(o: &Options, status: &str) -> ! {
    let status = OpenOptions::new()
        .write(true)
        .open(status)
        .expect("the parent made it");
    let begun = Instant::now();
    let mut sum = Sum::default();
    let mut seed = o.from;
    loop {
        let worlds = sum.counts[0];
        if o.count.is_some_and(|n| worlds >= n)
            || (worlds % 64 == 0
                && o.seconds
                    .is_some_and(|s| begun.elapsed() >= Duration::from_secs(s)))
        {
            break;
        }
        let _ = status.write_at(&seed.to_le_bytes(), 0);
        let end = scenario::run(Script::new(seed), false);
        let counts = [
            1,
            end.steps,
            end.points,
            end.messages,
            end.faults,
            end.ops as u64,
            end.good as u64,
        ];
        for (sum, count) in sum.counts.iter_mut().zip(counts) {
            *sum += count;
        }
        sum.hours += (end.time as f64) / 3.6e12;
        sum.distinct.add(end.schedule);
        if let Some(what) = end.failed {
            println!("FAIL {seed} {what}");
            if o.first {
                break;
            }
        }
        seed += 1;
    }
    println!("{}", sum.to_text());
    exit(0);
}

/// Runs each world in which one component is slow, with some seeds; the last line is the sum.
fn slowly(o: &Options) -> i32 {
    let (mut passed, mut failed) = (0, 0);
    let worlds = slow_component_isolation::WORLDS.into_iter();
    for (name, run) in worlds.filter(|(name, _)| name.contains(&o.named)) {
        for seed in o.from..o.from + o.count.unwrap_or(8) {
            let end = run(seed);
            match end.failed {
                None => passed += 1,
                Some(what) => {
                    println!("{name}, seed {seed}: {what}");
                    failed += 1;
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    i32::from(failed != 0)
}

fn main() {
    let o = options();
    panic::set_hook(Box::new(|info| {
        // In the driver a panic stops the kernel; unwinding through C is impossible.
        let text = info.to_string().replace('\n', " ");
        let seed = simc::world::seed();
        if let Some(lines) = simc::world::lines() {
            for line in lines {
                println!("{line}");
            }
        }
        println!("FAIL {seed} panic: {text}");
        let _ = std::io::stdout().flush();
        exit(101);
    }));
    if let Some(status) = &o.status {
        worker(&o, status);
    }
    if let Some(peers) = o.peers {
        let begun = Instant::now();
        let end = match o.storms {
            Some(storms) => scale::again(o.from, peers as usize, 4, storms as usize),
            None => scale::run(o.from, peers as usize),
        };
        println!(
            "{peers} peers: {} steps, {} messages, {:.1} s; {}",
            end.steps,
            end.messages,
            begun.elapsed().as_secs_f64(),
            end.failed.as_deref().unwrap_or("nothing wrong")
        );
        exit(i32::from(end.failed.is_some()));
    }
    if o.slow {
        exit(slowly(&o));
    }
    if let Some(seed) = o.seed {
        tell(seed);
    }

    exit(i32::from(!gather::all(&o)));
}
