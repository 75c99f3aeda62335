// SPDX-License-Identifier: GPL-2.0

//! Runs worlds: many, or the one of a seed as a story.
//!
//! ```text
//! ro2iblnd-sim                    a minute's worth
//! ro2iblnd-sim --seconds 600      for so long
//! ro2iblnd-sim --count 1000000    so many
//! ro2iblnd-sim --from 17          beginning with that seed
//! ro2iblnd-sim --kept FILE        those of a file, first
//! ro2iblnd-sim --first            until the first that fails
//! ro2iblnd-sim --peers 1000       one large world
//! ro2iblnd-sim --seed 17          one, with its story
//! ```
//!
//! Worlds run in a process of their own: one that crashes takes only itself along.

use std::{
    collections::BTreeMap,
    env,
    fs::{
        File,
        OpenOptions, //
    },
    io::{
        BufRead,
        BufReader,
        Write, //
    },
    os::unix::fs::FileExt,
    panic,
    process::{
        exit,
        Command,
        Stdio, //
    },
    time::{
        Duration,
        Instant, //
    }, //
};

mod host;
mod scenario;
mod storm;

use scenario::Script;

#[global_allocator]
static HOST: host::Host = host::Host;

#[derive(Clone, Debug, Default)]
struct Options {
    from: u64,
    count: Option<u64>,
    seconds: Option<u64>,
    seed: Option<u64>,
    kept: Option<String>,
    /// The file that says which seed runs.
    status: Option<String>,
    /// Stop after so many failures.
    most: Option<u64>,
    /// Stop at the first, at once.
    first: bool,
    /// A large world with so many peers of one node.
    peers: Option<u64>,
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
            "--peers" => o.peers = Some(number(value())),
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

/// What is known of many worlds.
#[derive(Default)]
struct Sum {
    worlds: u64,
    steps: u64,
    points: u64,
    messages: u64,
    faults: u64,
    ops: u64,
    good: u64,
    hours: f64,
}

fn tell(seed: u64) -> ! {
    let end = scenario::run(Script::new(seed), true);
    for line in &end.story {
        // Whoever reads it may have seen enough.
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
        if o.count.is_some_and(|n| sum.worlds >= n)
            || (sum.worlds % 64 == 0
                && o.seconds
                    .is_some_and(|s| begun.elapsed() >= Duration::from_secs(s)))
        {
            break;
        }
        let _ = status.write_at(&seed.to_le_bytes(), 0);
        let end = scenario::run(Script::new(seed), false);
        sum.worlds += 1;
        sum.steps += end.steps;
        sum.points += end.points;
        sum.messages += end.messages;
        sum.faults += end.faults;
        sum.ops += end.ops as u64;
        sum.good += end.good as u64;
        sum.hours += (end.time as f64) / 3.6e12;
        if let Some(what) = end.failed {
            println!("FAIL {seed} {what}");
            if o.first {
                break;
            }
        }
        seed += 1;
    }
    println!(
        "SUM {} {} {} {} {} {} {} {}",
        sum.worlds, sum.steps, sum.points, sum.messages, sum.faults, sum.ops, sum.good, sum.hours
    );
    exit(0);
}

fn kind(what: &str) -> String {
    // Numbers aside.
    what.chars()
        .map(|c| if c.is_ascii_digit() { '#' } else { c })
        .collect::<String>()
        .replace("##", "#")
        .replace("##", "#")
        .chars()
        .take(110)
        .collect()
}

/// Has a worker run seeds until all are done, and gathers what it says.
struct Gather {
    sum: Sum,
    failed: BTreeMap<String, Vec<(u64, String)>>,
    failures: u64,
}

impl Gather {
    fn fail(&mut self, seed: u64, what: &str) {
        self.failures += 1;
        let seeds = self.failed.entry(kind(what)).or_default();
        if seeds.len() < 5 {
            println!("seed {seed}: {what}");
            seeds.push((seed, what.to_owned()));
        }
    }

    fn run(&mut self, o: &Options, mut from: u64, mut count: Option<u64>, seconds: Option<u64>) {
        let begun = Instant::now();
        let path = env::temp_dir().join(format!("ro2iblnd-sim.{}", std::process::id()));
        loop {
            let left = seconds.map(|s| s.saturating_sub(begun.elapsed().as_secs()));
            if left == Some(0) || count == Some(0) || o.most.is_some_and(|m| self.failures >= m) {
                break;
            }
            let status = File::create(&path).expect("a place for temporary files");
            let _ = status.write_at(&from.to_le_bytes(), 0);
            let mut cmd = Command::new(env::current_exe().expect("this program"));
            cmd.arg("--status")
                .arg(&path)
                .arg("--from")
                .arg(from.to_string());
            if o.first {
                cmd.arg("--first");
            }
            if let Some(n) = count {
                cmd.arg("--count").arg(n.to_string());
            }
            if let Some(s) = left {
                cmd.arg("--seconds").arg(s.to_string());
            }
            let mut child = cmd
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program runs");
            let out = child.stdout.take().expect("piped");
            let mut ended = false;
            let mut said = 0;
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                match (words.next(), words.next(), words.next()) {
                    (Some("FAIL"), Some(seed), Some(what)) => {
                        said = seed.parse().unwrap_or(0);
                        self.fail(said, what);
                    }
                    (Some("SUM"), ..) => {
                        ended = true;
                        let v: Vec<f64> = line
                            .split(' ')
                            .skip(1)
                            .filter_map(|v| v.parse().ok())
                            .collect();
                        self.sum.worlds += v[0] as u64;
                        self.sum.steps += v[1] as u64;
                        self.sum.points += v[2] as u64;
                        self.sum.messages += v[3] as u64;
                        self.sum.faults += v[4] as u64;
                        self.sum.ops += v[5] as u64;
                        self.sum.good += v[6] as u64;
                        self.sum.hours += v[7];
                    }
                    _ => println!("{line}"),
                }
            }
            let rc = child.wait().expect("it is ours");
            let mut at = [0; 8];
            let _ = File::open(&path).and_then(|f| f.read_exact_at(&mut at, 0));
            let at = u64::from_le_bytes(at);
            if ended || (o.first && self.failures != 0) {
                break;
            }
            if said != at {
                self.fail(at, &format!("the world's process ended: {rc}"));
            }
            self.sum.worlds += at - from + 1;
            if let Some(n) = &mut count {
                *n = n.saturating_sub(at - from + 1);
            }
            from = at + 1;
        }
        let _ = std::fs::remove_file(&path);
    }
}

fn main() {
    let o = options();
    panic::set_hook(Box::new(|info| {
        // In the driver a panic is the end of the kernel; nothing can be unwound over C.
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
        let end = storm::run(o.from, peers as usize);
        println!(
            "{peers} peers: {} steps, {} messages, {:.1} s; {}",
            end.steps,
            end.messages,
            begun.elapsed().as_secs_f64(),
            end.failed.as_deref().unwrap_or("nothing wrong")
        );
        exit(i32::from(end.failed.is_some()));
    }
    if let Some(seed) = o.seed {
        tell(seed);
    }

    let mut g = Gather {
        sum: Sum::default(),
        failed: BTreeMap::new(),
        failures: 0,
    };
    let begun = Instant::now();
    if let Some(path) = &o.kept {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| {
            eprintln!("{path}: {e}");
            exit(2);
        });
        for seed in text
            .lines()
            .filter_map(|l| l.split_whitespace().next()?.parse().ok())
        {
            g.run(&o, seed, Some(1), None);
        }
    }
    let seconds = match (o.count, o.seconds) {
        (None, None) => Some(50),
        (_, s) => s,
    };
    g.run(&o, o.from, o.count, seconds);
    let took = begun.elapsed().as_secs_f64();

    for (kind, seeds) in &g.failed {
        let list: Vec<String> = seeds.iter().map(|s| s.0.to_string()).collect();
        println!("  {kind}: seeds {}", list.join(" "));
    }
    let s = &g.sum;
    println!(
        "{} worlds in {took:.0} s, {:.0} in an hour; {} points, {} steps, {} messages, {} failed calls, {} operations of which {} ended well, {:.1} simulated hours",
        s.worlds,
        s.worlds as f64 / took * 3600.0,
        s.points,
        s.steps,
        s.messages,
        s.faults,
        s.ops,
        s.good,
        s.hours,
    );
    println!(
        "{} passed, {} failed",
        s.worlds - g.failures.min(s.worlds),
        g.failures
    );
    exit(i32::from(g.failures != 0));
}
