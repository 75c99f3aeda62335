// SPDX-License-Identifier: GPL-2.0

//! Collector of results: runs workers on each CPU, collects their results, and saves the progress.

use std::{
    collections::BTreeMap,
    env,
    fs::{
        self,
        File, //
    },
    io::{
        BufRead,
        BufReader, //
    },
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{
        exit,
        Command,
        Stdio, //
    },
    sync::Mutex,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use crate::{
    distinct::Distinct,
    Options, //
};

/// Sum of the results of many worlds.
#[derive(Clone, Default)]
pub struct Sum {
    /// Worlds, steps, points, messages, failed calls, operations, and operations that succeeded.
    pub counts: [u64; 7],
    /// Simulated hours.
    pub hours: f64,
    /// Their schedules.
    pub distinct: Distinct,
}

impl Sum {
    /// Returns the sum as a line.
    pub fn to_text(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(u64::to_string).collect();
        format!(
            "SUM {} {} {}",
            counts.join(" "),
            self.hours,
            self.distinct.to_text()
        )
    }

    /// Parses that line.
    fn from_text(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("SUM ")?.split(' ');
        let mut sum = Self::default();
        for count in &mut sum.counts {
            *count = words.next()?.parse().ok()?;
        }
        sum.hours = words.next()?.parse().ok()?;
        sum.distinct = Distinct::from_text(words.next()?)?;
        Some(sum)
    }

    fn add(&mut self, other: &Self) {
        for (mine, its) in self.counts.iter_mut().zip(&other.counts) {
            *mine += its;
        }
        self.hours += other.hours;
        self.distinct.merge(&other.distinct);
    }
}

/// Number of seeds that a worker gets at a time.
const CHUNK: u64 = 20_000;

/// First seed and number of seeds.
type Seeds = (u64, u64);

/// Results so far, and seeds to run.
pub struct Gather {
    sum: Sum,
    /// Seeds that failed with the failed check, by kind.
    failed: BTreeMap<String, Vec<(u64, String)>>,
    failures: u64,
    /// Seeds not run, or not to the end.
    todo: Vec<Seeds>,
    /// Seeds being run.
    doing: Vec<Seeds>,
    next: u64,
    left: Option<u64>,
    /// Seconds of earlier runs.
    before: f64,
}

fn kind(what: &str) -> String {
    // Without numbers.
    what.chars()
        .map(|c| if c.is_ascii_digit() { '#' } else { c })
        .collect::<String>()
        .replace("##", "#")
        .replace("##", "#")
        .chars()
        .take(110)
        .collect()
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

    /// Takes the next seeds to run.
    fn take(&mut self, most: u64) -> Option<Seeds> {
        let seeds = self.todo.pop().or_else(|| {
            let n = most.min(self.left.unwrap_or(u64::MAX));
            if n == 0 {
                return None;
            }
            self.left = self.left.map(|left| left - n);
            self.next += n;
            Some((self.next - n, n))
        })?;
        self.doing.push(seeds);
        Some(seeds)
    }

    /// Notes that these seeds were run, except the last `rest`.
    fn did(&mut self, seeds: Seeds, rest: u64) {
        self.doing.retain(|s| *s != seeds);
        if rest != 0 {
            self.todo.push((seeds.0 + seeds.1 - rest, rest));
        }
    }

    fn state(&self, took: f64) -> String {
        let mut text = format!("next {}\ntook {took}\n", self.next);
        for (from, n) in self.todo.iter().chain(&self.doing) {
            text += &format!("todo {from} {n}\n");
        }
        for (seed, what) in self.failed.values().flatten() {
            text += &format!("failed {seed} {what}\n");
        }
        text += &format!("failures {}\n{}\n", self.failures, self.sum.to_text());
        text
    }

    fn go_on(&mut self, state: &str) -> Option<()> {
        for line in state.lines() {
            let (word, rest) = line.split_once(' ')?;
            let mut words = rest.splitn(2, ' ');
            let mut number = || words.next()?.parse::<u64>().ok();
            match word {
                "next" => self.next = number()?,
                "took" => self.before = rest.parse().ok()?,
                "todo" => self.todo.push((number()?, number()?)),
                "failed" => {
                    let seed = number()?;
                    self.fail(seed, words.next()?);
                }
                "failures" => self.failures = number()?,
                "SUM" => self.sum = Sum::from_text(line)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn line(&self, took: f64) -> String {
        let [worlds, ..] = self.sum.counts;
        format!(
            "{worlds} worlds, {:.0} in an hour, about {:.0} different schedules, {} failed",
            worlds as f64 / took * 3600.0,
            self.sum.distinct.count(),
            self.failures
        )
    }
}

/// Place where a worker runs.
struct Place<'a> {
    o: &'a Options,
    all: &'a Mutex<Gather>,
    begun: Instant,
    end: Option<Instant>,
    status: PathBuf,
}

impl Place<'_> {
    fn took(&self, g: &Gather) -> f64 {
        g.before + self.begun.elapsed().as_secs_f64()
    }

    fn over(&self, g: &Gather) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
            || self.o.most.is_some_and(|m| g.failures >= m)
            || (self.o.first && g.failures != 0)
    }

    fn save(&self, g: &Gather) {
        let Some(path) = &self.o.state else { return };
        let new = format!("{path}.new");
        let saved = fs::write(&new, g.state(self.took(g))).and_then(|()| fs::rename(&new, path));
        if let Err(e) = saved {
            eprintln!("{path}: {e}; the next run begins where it was before");
        }
    }

    /// Runs seeds until none is left.
    fn work(&self) {
        loop {
            let seeds = {
                let mut g = self.all.lock().expect("no thread panics");
                if self.over(&g) {
                    return;
                }
                let Some(seeds) = g.take(CHUNK) else { return };
                self.save(&g);
                seeds
            };
            let rest = self.run(seeds);
            let mut g = self.all.lock().expect("no thread panics");
            g.did(seeds, rest);
            self.save(&g);
        }
    }

    /// Runs some seeds; returns the number of seeds that are left if time is over.
    fn run(&self, (mut from, mut count): Seeds) -> u64 {
        while count != 0 {
            let status = File::create(&self.status).expect("a place for temporary files");
            let _ = status.write_at(&from.to_le_bytes(), 0);
            let mut cmd = Command::new(env::current_exe().expect("this program"));
            cmd.arg("--status").arg(&self.status);
            cmd.args(["--from", &from.to_string(), "--count", &count.to_string()]);
            if self.o.first {
                cmd.arg("--first");
            }
            if let Some(end) = self.end {
                let left = end.saturating_duration_since(Instant::now());
                cmd.args(["--seconds", &left.as_secs().max(1).to_string()]);
            }
            let mut child = cmd
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program runs");
            let out = child.stdout.take().expect("piped");
            let (mut sum, mut said) = (None, 0);
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                match (words.next(), words.next(), words.next()) {
                    (Some("FAIL"), Some(seed), Some(what)) => {
                        said = seed.parse().unwrap_or(0);
                        self.all.lock().expect("no thread panics").fail(said, what);
                    }
                    (Some("SUM"), ..) => sum = Sum::from_text(&line),
                    _ => println!("{line}"),
                }
            }
            let rc = child.wait().expect("it is ours");
            let mut g = self.all.lock().expect("no thread panics");
            if let Some(sum) = sum {
                g.sum.add(&sum);
                return count - sum.counts[0].min(count);
            }
            let mut at = [0; 8];
            let _ = File::open(&self.status).and_then(|f| f.read_exact_at(&mut at, 0));
            let at = u64::from_le_bytes(at).clamp(from, from + count - 1);
            if said != at {
                g.fail(at, &format!("the world's process ended: {rc}"));
            }
            // The other counts of the worker are lost.
            g.sum.counts[0] += at - from + 1;
            if self.over(&g) {
                return count - (at - from + 1);
            }
            count -= at - from + 1;
            from = at + 1;
        }
        0
    }
}

fn of_file(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| {
        eprintln!("{path}: {e}");
        exit(2);
    })
}

/// Runs the worlds that the options select. Returns whether none failed.
pub fn all(o: &Options) -> bool {
    let mut g = Gather {
        sum: Sum::default(),
        failed: BTreeMap::new(),
        failures: 0,
        todo: Vec::new(),
        doing: Vec::new(),
        next: o.from,
        left: o.count,
        before: 0.0,
    };
    if let Some(path) = o.state.as_ref().filter(|p| fs::exists(p).unwrap_or(false)) {
        if g.go_on(&of_file(path)).is_none() {
            eprintln!("{path} is not what this program writes; remove it to start again");
            exit(2);
        }
        println!("goes on: {}", g.line(g.before.max(1.0)));
    }
    let jobs = if o.first { 1 } else { o.jobs.max(1) };
    let seconds = match (o.count, o.seconds, &o.state) {
        (None, None, None) => Some(50),
        (_, s, _) => s,
    };
    let begun = Instant::now();
    let kept: Vec<u64> = o.kept.iter().flat_map(|path| seeds_of(path)).collect();
    let all = Mutex::new(g);
    let place = |job: u64| Place {
        o,
        all: &all,
        begun,
        end: seconds.map(|s| begun + Duration::from_secs(s)),
        status: env::temp_dir().join(format!("ro2iblnd-sim.{}.{job}", std::process::id())),
    };
    for seed in kept {
        place(0).run((seed, 1));
    }
    let done = &Mutex::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|job| {
                let place = place(job);
                scope.spawn(move || {
                    place.work();
                    let _ = fs::remove_file(&place.status);
                })
            })
            .collect();
        let place = place(0);
        if let Some(interval) = o.interval {
            scope.spawn(move || {
                let mut last = Instant::now();
                while !*done.lock().expect("no thread panics") {
                    thread::sleep(Duration::from_millis(200));
                    if last.elapsed() >= Duration::from_secs(interval) {
                        last = Instant::now();
                        let g = place.all.lock().expect("no thread panics");
                        println!("{}", g.line(place.took(&g)));
                    }
                }
            });
        }
        for worker in workers {
            let _ = worker.join();
        }
        *done.lock().expect("no thread panics") = true;
    });
    let place = place(0);
    let g = place.all.lock().expect("no thread panics");
    let took = place.took(&g);
    for (kind, seeds) in &g.failed {
        let list: Vec<String> = seeds.iter().map(|s| s.0.to_string()).collect();
        println!("  {kind}: seeds {}", list.join(" "));
    }
    let [worlds, steps, points, messages, faults, ops, good] = g.sum.counts;
    println!(
        "{worlds} worlds in {took:.0} s, {:.0} in an hour, about {:.0} different schedules; {points} points, {steps} steps, {messages} messages, {faults} failed calls, {ops} operations of which {good} ended well, {:.1} simulated hours",
        worlds as f64 / took * 3600.0,
        g.sum.distinct.count(),
        g.sum.hours,
    );
    println!(
        "{} passed, {} failed",
        worlds - g.failures.min(worlds),
        g.failures
    );
    g.failures == 0
}

fn seeds_of(path: &str) -> Vec<u64> {
    of_file(path)
        .lines()
        .filter_map(|l| l.split_whitespace().next()?.parse().ok())
        .collect()
}
