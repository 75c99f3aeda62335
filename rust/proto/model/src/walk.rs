// SPDX-License-Identifier: GPL-2.0

//! Random runs of the credit model with the invariant checked after every step, for depths that no
//! search exhausts. The mood changes now and then: one side's LNet is slow, completions are late, a
//! channel is held up, no message is sent; so that rare states are reached.

use crate::{
    credit::{
        Config,
        Step, //
    },
    messages::{
        other,
        Body, //
    },
    search::{
        Fault,
        Model, //
    }, //
};

/// SplitMix64: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Steps taken.
    pub steps: usize,
    /// Requests sent by each side.
    pub requests: [usize; 2],
    /// NOOPs sent by each side.
    pub noops: [usize; 2],
    /// Most messages to one side at once.
    pub crowd: usize,
    /// Steps after which a side had no credit.
    pub dry: usize,
}

/// Steps between two moods.
const MOOD: usize = 997;

/// Takes `steps` random steps, then lets the system come to rest.
///
/// # Errors
///
/// The rule that was broken, and after how many steps.
pub fn walk(config: &Config, steps: usize, seed: u64) -> Result<Tally, Fault> {
    let mut random = Random(seed);
    let mut state = config.init();
    let mut tally = Tally::default();
    let mut offers = Vec::new();
    // For each side: send, deliver, complete, take, answer, keepalive, ring or feed.
    let mut mood = [[1usize; 7]; 2];
    loop {
        if tally.steps % MOOD == 0 {
            for side in &mut mood {
                for weight in side.iter_mut() {
                    *weight = [0, 1, 4, 16][random.below(4)];
                }
                // A keepalive is rare.
                side[5] = usize::from(random.below(8) == 0);
            }
        }
        offers.clear();
        config.steps(&state, &mut offers);
        let tired = tally.steps >= steps;
        if tired {
            offers.retain(|s| !config.environment(*s));
            if offers.is_empty() {
                config.rest(&state)?;
                return Ok(tally);
            }
        }
        let step = pick(&offers, &mood, &mut random);
        let sent = [0, 1].map(|side: usize| state.to[other(side)].len());
        let at = tally.steps;
        config
            .take(&mut state, step)
            .and_then(|()| config.check(&state))
            .map_err(|fault| format!("step {at}, {step:?}: {fault}"))?;
        tally.steps += 1;
        for (side, sent) in sent.into_iter().enumerate() {
            let to = &state.to[other(side)];
            tally.crowd = tally.crowd.max(to.len());
            // A delivery takes one from the front of the other side's own channel only.
            let first = match step {
                Step::Deliver(s) if s == other(side) => sent.saturating_sub(1),
                _ => sent,
            };
            for msg in to.iter().skip(first) {
                tally.noops[side] += usize::from(msg.body == Body::Noop);
                tally.requests[side] += usize::from(msg.body.is_request());
            }
        }
        tally.dry += usize::from(config.dry(&state));
        if tally.steps > 64 * (steps + 1_000) {
            return Err("it does not come to rest".into());
        }
    }
}

/// Picks an actor by its weight, then one of its steps.
fn pick(offers: &[Step], mood: &[[usize; 7]; 2], random: &mut Random) -> Step {
    let class = |step: &Step| match *step {
        Step::Send(side, _) => (side, 0),
        Step::Deliver(side) => (side, 1),
        Step::Complete(side) => (side, 2),
        Step::Take(side, ..) => (side, 3),
        Step::Answer(side, _) => (side, 4),
        Step::Keepalive(side) => (side, 5),
        Step::Ring(side) | Step::Feed(side) => (side, 6),
    };
    let mut there = [[0usize; 7]; 2];
    for step in offers {
        let (side, kind) = class(step);
        there[side][kind] += 1;
    }
    let weight = |side: usize, kind: usize| match there[side][kind] {
        0 => 0,
        _ => mood[side][kind],
    };
    let all: usize = (0..2)
        .flat_map(|s| (0..7).map(move |k| (s, k)))
        .map(|(s, k)| weight(s, k))
        .sum();
    if all == 0 {
        return offers[random.below(offers.len())];
    }
    let mut left = random.below(all);
    for (side, kind) in (0..2).flat_map(|s| (0..7).map(move |k| (s, k))) {
        let w = weight(side, kind);
        if left < w {
            let nth = random.below(there[side][kind]);
            let mut of = offers.iter().filter(|s| class(s) == (side, kind));
            return *of.nth(nth).unwrap_or(&offers[0]);
        }
        left -= w;
    }
    offers[0]
}
