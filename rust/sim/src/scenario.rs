// SPDX-License-Identifier: GPL-2.0

//! What happens in a world.

use simc::{
    lnet,
    sched::{
        self,
        Kind,
        SEC, //
    },
    world::{
        self,
        w,
        End,
        Plan, //
    }, //
};

/// Runs the world of a seed.
pub fn run(seed: u64, tell: bool) -> End {
    world::begin(seed, Plan::calm(2), tell);
    for node in 0..2 {
        sched::spawn(node, Kind::Process, "admin", move || {
            world::load(ro2iblnd::load).expect("it loads");
            let ni = lnet::ni_up(w().nodes[node].devs[0]).expect("an NI");
            let there = lnet::nid_of(world::ip(1 - node, 0));
            for size in [100, 20000] {
                for kind in [lnet::PUT, lnet::GET] {
                    let op = lnet::begin(ni, kind, there, size, true);
                    lnet::wait(op, 50 * SEC);
                }
            }
            sched::sleep(20 * SEC);
            lnet::ni_down(ni);
            world::unload();
        });
    }
    sched::run(1_000_000, 4600 * SEC);
    world::end()
}
