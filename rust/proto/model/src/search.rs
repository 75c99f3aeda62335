// SPDX-License-Identifier: GPL-2.0

//! Breadth-first search through every state of a model.
//!
//! Three things are asked of a model: an invariant in each state, that a state in which only the
//! environment can act is a good place to rest, and that the system alone cannot run for ever. The
//! last is checked on the graph without the steps of the environment, which must have no cycle.
//! Together they say that whatever is begun is ended, under any schedule and without any assumption
//! of fairness.
//!
//! A state is known by the hash of its canonical encoding; a trace is found by replaying the steps
//! that led to it, which are the shortest ones.

use std::{
    collections::{
        hash_map::DefaultHasher,
        HashMap,
        VecDeque, //
    },
    fmt::{
        self,
        Debug, //
    },
    hash::{
        BuildHasherDefault,
        Hasher, //
    },
    time::Instant, //
};

/// Error in words.
pub type Fault = String;

/// A system to search through.
pub trait Model {
    /// One state of the whole system.
    type State: Clone;
    /// One atomic step.
    type Step: Copy + Debug;

    /// Returns the initial state.
    fn init(&self) -> Self::State;
    /// Appends the possible steps, in a fixed order.
    fn steps(&self, s: &Self::State, out: &mut Vec<Self::Step>);
    /// Takes one of them.
    ///
    /// # Errors
    ///
    /// The step itself broke a rule.
    fn take(&self, s: &mut Self::State, step: Self::Step) -> Result<(), Fault>;
    /// Returns whether a step belongs to the environment: it may happen, but nothing relies on it.
    fn environment(&self, step: Self::Step) -> bool;
    /// Checks the invariant of every state.
    ///
    /// # Errors
    ///
    /// The violation.
    fn check(&self, s: &Self::State) -> Result<(), Fault>;
    /// Checks a state in which only the environment can act.
    ///
    /// # Errors
    ///
    /// The object that is left over.
    fn rest(&self, s: &Self::State) -> Result<(), Fault>;
    /// Encodes the state in bytes: equal for states that behave alike.
    fn encode(&self, s: &Self::State, out: &mut Vec<u8>);
}

/// Result of a search.
pub struct Report {
    /// Different states seen.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States in which only the environment can act.
    pub rests: usize,
    /// Length of the longest of the shortest paths.
    pub depth: u32,
    /// Whether every reachable state was seen.
    pub complete: bool,
    /// How long it took.
    pub seconds: f64,
    /// The first violation, with the shortest way to it.
    pub violation: Option<Violation>,
}

/// A broken property.
pub struct Violation {
    /// Which.
    pub fault: Fault,
    /// The steps from the start.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VIOLATION: {}", self.fault)?;
        for (i, step) in self.trace.iter().enumerate() {
            write!(f, "\n  {i:3} {step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} steps, {} rests, depth {}, {}, {:.1} s",
            self.states,
            self.steps,
            self.rests,
            self.depth,
            if self.complete { "complete" } else { "cut" },
            self.seconds
        )?;
        if let Some(v) = &self.violation {
            write!(f, "\n{v}")?;
        }
        Ok(())
    }
}

/// The hash is the key already.
#[derive(Default)]
struct Keep(u64);

impl Hasher for Keep {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys");
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }
}

const ROOT: u32 = u32::MAX;

/// The searched graph: states by number, in the order in which they were first seen.
struct Graph {
    seen: HashMap<u64, u32, BuildHasherDefault<Keep>>,
    /// For each state the one before it, and the number of the step from there.
    parent: Vec<(u32, u16)>,
    depth: Vec<u32>,
    /// Steps of the system alone, as (from, to); `first[from]..first[from + 1]` in `to`.
    first: Vec<usize>,
    to: Vec<u32>,
}

impl Graph {
    fn trace<M: Model>(&self, model: &M, id: u32, last: Option<M::Step>) -> Vec<String> {
        let mut numbers = Vec::new();
        let mut at = id;
        while let Some(&(parent, number)) = self.parent.get(at as usize) {
            if parent == ROOT {
                break;
            }
            numbers.push(number);
            at = parent;
        }
        let mut state = model.init();
        let mut names = Vec::new();
        let mut steps = Vec::new();
        for number in numbers.iter().rev() {
            steps.clear();
            model.steps(&state, &mut steps);
            let step = steps[*number as usize];
            let result = model.take(&mut state, step);
            names.push(format!(
                "{step:?}{}",
                if result.is_err() { " !" } else { "" }
            ));
        }
        if let Some(last) = last {
            names.push(format!("{last:?}"));
        }
        names
    }

    /// Returns a state on a cycle of the system's own steps, if there is one.
    fn cycle(&self) -> Option<u32> {
        let n = self.first.len().saturating_sub(1);
        let mut entries = vec![0u32; self.parent.len()];
        for to in &self.to {
            entries[*to as usize] += 1;
        }
        let mut ready: Vec<u32> = (0..self.parent.len() as u32)
            .filter(|id| entries[*id as usize] == 0)
            .collect();
        let mut left = self.parent.len();
        while let Some(id) = ready.pop() {
            left -= 1;
            if id as usize >= n {
                continue;
            }
            for to in &self.to[self.first[id as usize]..self.first[id as usize + 1]] {
                entries[*to as usize] -= 1;
                if entries[*to as usize] == 0 {
                    ready.push(*to);
                }
            }
        }
        if left == 0 {
            return None;
        }
        entries.iter().position(|n| *n > 0).map(|id| id as u32)
    }
}

/// Searches at most `limit` states.
pub fn search<M: Model>(model: &M, limit: usize) -> Report {
    let start = Instant::now();
    let mut graph = Graph {
        seen: HashMap::default(),
        parent: Vec::new(),
        depth: Vec::new(),
        first: vec![0],
        to: Vec::new(),
    };
    let mut report = Report {
        states: 0,
        steps: 0,
        rests: 0,
        depth: 0,
        complete: true,
        seconds: 0.0,
        violation: None,
    };
    let mut bytes = Vec::new();
    let mut key = |state: &M::State| {
        bytes.clear();
        model.encode(state, &mut bytes);
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        hasher.finish()
    };
    let mut frontier = VecDeque::new();
    let init = model.init();
    graph.seen.insert(key(&init), 0);
    graph.parent.push((ROOT, 0));
    graph.depth.push(0);
    if let Err(fault) = model.check(&init) {
        report.violation = Some(Violation {
            fault,
            trace: Vec::new(),
        });
    }
    frontier.push_back((0u32, init));
    let mut steps = Vec::new();
    'all: while let Some((id, state)) = frontier.pop_front() {
        if report.violation.is_some() {
            break;
        }
        steps.clear();
        model.steps(&state, &mut steps);
        let mut rests = true;
        for (number, step) in steps.iter().enumerate() {
            let mut next = state.clone();
            report.steps += 1;
            let result = model
                .take(&mut next, *step)
                .and_then(|()| model.check(&next));
            if let Err(fault) = result {
                let trace = graph.trace(model, id, Some(*step));
                report.violation = Some(Violation { fault, trace });
                break 'all;
            }
            let own = !model.environment(*step);
            rests &= !own;
            let hash = key(&next);
            let known = graph.seen.get(&hash).copied();
            let to = match known {
                Some(to) => to,
                None => {
                    if graph.parent.len() >= limit {
                        report.complete = false;
                        continue;
                    }
                    let to = graph.parent.len() as u32;
                    graph.seen.insert(hash, to);
                    graph.parent.push((id, number as u16));
                    let depth = graph.depth[id as usize] + 1;
                    graph.depth.push(depth);
                    report.depth = report.depth.max(depth);
                    frontier.push_back((to, next));
                    to
                }
            };
            if own {
                graph.to.push(to);
            }
        }
        graph.first.push(graph.to.len());
        if rests {
            report.rests += 1;
            if let Err(fault) = model.rest(&state) {
                let trace = graph.trace(model, id, None);
                report.violation = Some(Violation { fault, trace });
                break;
            }
        }
    }
    report.states = graph.parent.len();
    if report.violation.is_none() {
        if let Some(id) = graph.cycle() {
            let trace = graph.trace(model, id, None);
            let fault = "the system can run for ever by itself".into();
            report.violation = Some(Violation { fault, trace });
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// Summary of random runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// Runs taken to their end.
    pub runs: usize,
    /// Steps in all of them.
    pub steps: usize,
    /// The longest.
    pub longest: usize,
}

/// Takes random runs to their ends, for what lies deeper than a search gets. The model's faults
/// must be bounded.
///
/// # Errors
///
/// The broken property and the run that broke it.
pub fn wander<M: Model>(model: &M, runs: usize, seed: u64) -> Result<Runs, Violation> {
    let mut random = crate::walk::Random(seed);
    let mut done = Runs::default();
    let mut steps = Vec::new();
    for _ in 0..runs {
        let mut state = model.init();
        let mut trace = Vec::new();
        // Some runs are calm: faults come rarely; in others at once.
        let calm = [1, 4, 16, 64][random.below(4)];
        loop {
            steps.clear();
            model.steps(&state, &mut steps);
            let own = steps.iter().filter(|s| !model.environment(**s)).count();
            let result = if own == 0 { model.rest(&state) } else { Ok(()) };
            if let Err(fault) = result {
                return Err(Violation { fault, trace });
            }
            if steps.is_empty() {
                break;
            }
            if own > 0 && random.below(calm) > 0 {
                steps.retain(|s| !model.environment(*s));
            }
            let step = steps[random.below(steps.len())];
            trace.push(format!("{step:?}"));
            let taken = model
                .take(&mut state, step)
                .and_then(|()| model.check(&state));
            let endless = trace.len() > 100_000;
            let fault = match taken {
                Err(fault) => fault,
                Ok(()) if endless => "the run does not end".into(),
                Ok(()) => continue,
            };
            return Err(Violation { fault, trace });
        }
        done.runs += 1;
        done.steps += trace.len();
        done.longest = done.longest.max(trace.len());
    }
    Ok(done)
}
