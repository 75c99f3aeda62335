// SPDX-License-Identifier: GPL-2.0

//! Events of a world, drawn from its seed.
//!
//! Nodes load the driver and start an NI each. Users send to each other; meanwhile events happen to
//! nodes. Then the faults end, and after a while every node must reach every other node again. At
//! last the NIs are deleted and the modules unloaded, and no object may be left.

use simc::{
    byzantine,
    cm,
    decl::{
        k::{
            EIO,
            ENOMEM,
            EOPNOTSUPP,
            EREMOTEIO, //
        },
        r::{
            ib_event_type_IB_EVENT_LID_CHANGE,
            ro2ib_tuning, //
        }, //
    },
    kernel_core,
    lnet::{
        self,
        Life,
        Link,
        Ni, //
    },
    rng::Rng,
    sched::{
        self,
        Kind,
        Policy,
        Tid,
        MS,
        SEC,
        US, //
    },
    verbs,
    world::{
        self,
        say,
        telling,
        violation,
        w,
        End,
        Fault,
        NodePlan,
        Plan,
        FAULTS, //
    }, //
};

use crate::{
    monotonic_check::{
        self,
        Sums, //
    },
    true_counts_check, //
};

/// Event of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happens {
    /// An administrator deletes a peer (all: 0).
    DelPeer,
    /// An administrator closes connections.
    CloseConns,
    /// An administrator reads peers, connections and debugfs.
    Look,
    /// The link is set down, and comes back.
    LinkDown,
    /// The link is lost, and comes back.
    LinkLost,
    /// IPoIB has no carrier for a while, as when no subnet manager answers. The port stays active.
    CarrierGoes,
    /// The subnet manager gives the port another LID: IPoIB loses its carrier for a moment.
    LidChanges,
    /// The interface gets a smaller MTU for a while.
    MtuShrinks,
    /// A bond fails over, again and again, and its RDMA device, its address and its GID stay.
    BondFlaps,
    /// The device is unplugged, and replaced by another.
    Unplug,
    /// The NI is deleted, and added again.
    Restart,
    /// The module is unloaded, and loaded again.
    Reload,
    /// The node loses its power, and boots.
    Power,
    /// A queue pair breaks, or gets an event.
    QpBreaks,
    /// The device reports an event of its port.
    PortEvents,
    /// The core reports that the address moved to another device.
    AddrChange,
    /// The interface moves to another device; in some worlds the old device is unplugged later.
    FailOver,
    /// LNet deletes the NI while a message waits until the address has settled. The peer requests
    /// connections meanwhile, for which the node finds no memory.
    DeletedDry,
    /// An administrator denies a peer, and allows it again.
    Deny,
    /// An administrator changes the tunables of the running NIs, and then restores them.
    Tune,
    /// The driver of the node finds no memory. No connection ends because of that.
    NoMemory,
    /// The device of the node has no room to map pages, as with a full bounce buffer. No connection
    /// ends because of that.
    NoRoom,
    /// The device of the node does not reach the pages, as memory of another PCI device. No
    /// connection ends because of that.
    NoReach,
}

/// Event with its time.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    what: Happens,
    node: usize,
    slot: usize,
    /// Begin in nanoseconds after the users.
    at: u64,
    /// Duration in nanoseconds.
    long: u64,
}

/// User of a world: an application that sends messages.
#[derive(Clone, Debug)]
pub struct User {
    node: usize,
    slot: usize,
    at: u64,
    /// Kind, size, acknowledged, pause before it.
    ops: Vec<(u32, u32, bool, usize, u64)>,
}

/// Script of a world: all choices that precede its begin.
#[derive(Clone, Debug)]
pub struct Script {
    /// Seed of the world.
    pub seed: u64,
    /// Plan of the world.
    pub plan: Plan,
    policy: Policy,
    jump_ppm: u32,
    jump_max: u64,
    stall_ppm: u32,
    stall_max: u64,
    /// No faults: every operation must succeed.
    pub strict: bool,
    /// Users wait until all NIs are in use.
    together: bool,
    /// Faults happen while modules load and NIs start, too.
    early: bool,
    /// Users with their messages.
    pub users: Vec<User>,
    /// Events meanwhile.
    pub steps: Vec<Step>,
    /// A node with several connections dies, without other faults: how soon do the peers notice?
    punctual: bool,
    /// All nodes must reach all others at the end.
    check: bool,
    /// A program reads the counters of each node, all the time.
    watched: bool,
}

/// Combination of faults that few tiny worlds would have by chance.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rare {
    Nothing,
    /// Administrators close attempts, and tasks lose their CPU meanwhile.
    Hurry,
    /// Posts fail in the middle of a transfer, and so does the marker that drains the queue.
    Unposted,
}

impl Rare {
    fn of(rng: &mut Rng) -> Self {
        match rng.below(16) {
            0 => Self::Hurry,
            1 => Self::Unposted,
            _ => Self::Nothing,
        }
    }
}

/// One world of this number is not tiny.
const LARGE: u64 = 24;

fn size(rng: &mut Rng) -> u32 {
    match rng.below(40) {
        0 if rng.one_in(8) => 1 << 20,
        0 | 1 => 70_000,
        2..=5 => 20_000,
        6..=11 => 5_000,
        12..=15 => rng.range(3900, 4200) as u32,
        16..=18 => 0,
        19..=21 => 1,
        _ => rng.range(1, 3000) as u32,
    }
}

impl Script {
    /// Draws the script of a seed.
    pub fn new(seed: u64) -> Self {
        let rng = &mut Rng::new(seed ^ 0x5c21_9700);
        if rng.below(LARGE) != 0 {
            return Self::tiny(seed, rng);
        }
        // Most worlds are small: most races need no more than two messages.
        let small = rng.below(3) != 0;
        let n = if !small && rng.one_in(3) { 3 } else { 2 };
        let mut plan = Plan::calm(n);
        plan.cpus = Rng::new(seed ^ 0x0c70_5000).of(&[1, 4, 16]);
        let strict = rng.one_in(4);
        let tcp = rng.one_in(4);

        for node in &mut plan.nodes {
            let credits = rng.of(&[1, 2, 3, 4, 8, 8, 16]);
            *node = NodePlan {
                credits,
                // Every second world with the default.
                open: credits == 8 && seed % 2 == 1,
                hiw: rng.below(credits.into()) as u32,
                conns: rng.of(&[1, 1, 1, 2, 4]),
                devs: if rng.one_in(5) { 2 } else { 1 },
                software: rng.one_in(3),
                // Other drivers may connect and send no message.
                tcp: tcp && !rng.one_in(4),
                // So short that large transfers go in parts.
                max_qp_wr: if !strict && rng.one_in(6) {
                    rng.of(&[24, 40, 60, 300])
                } else {
                    16384
                },
                max_sge: rng.of(&[1, 2, 6, 30]),
                max_mr: 1 << 16,
            };
        }
        // From a source of its own, as below.
        let own = &mut Rng::new(seed ^ 0x0fe3_4e61);
        if !strict && own.one_in(8) {
            let max_mr = own.of(&[1, 2, 4, 12, 40]);
            plan.nodes.iter_mut().for_each(|node| node.max_mr = max_mr);
        }
        plan.cksum = rng.one_in(3);
        plan.params.timeout = rng.of(&[5, 10, 10, 50]);
        plan.params.keepalive = rng.of(&[0, 1, 5, 100]);
        plan.params.retry_count = rng.of(&[0, 2, 5, 7]);
        plan.params.rnr_retry_count = rng.of(&[0, 6, 7]);
        plan.wrq_sge = rng.of(&[1, 2, 4]);
        plan.privileged = rng.one_in(4);
        plan.no_inline = rng.one_in(4);
        plan.signal_all = rng.one_in(8);
        plan.looked_at = rng.one_in(2);
        plan.wire_max = rng.of(&[2 * US, 20 * US, 200 * US, 5 * MS]);
        plan.slow_wire_ppm = rng.of(&[0, 0, 10_000]);
        plan.delay_ppm = rng.of(&[0, 0, 100_000, 500_000]);
        plan.slow_lnet_ppm = rng.of(&[0, 0, 100_000]);
        plan.slow_lnet_max = rng.of(&[5 * MS, 500 * MS]);

        // From a source of its own, so that other worlds do not change.
        plan.gpu_ppm = Rng::new(seed ^ 0x6770_7573).of(&[0, 0, 0, 0, 300_000, 1_000_000]);

        if strict {
            // A message that waits behind slow ones must not be late.
            plan.params.timeout = 50;
            plan.delay_ppm = plan.delay_ppm.min(100_000);
            // From a source of its own, as below.
            plan.shy = tcp && Rng::new(seed ^ 0x5f0f_4b1d).one_in(2);
        }

        let mut steps = Vec::new();
        let mut early = false;
        if !strict {
            if rng.one_in(3) {
                plan.cm_lost_ppm = rng.of(&[10_000, 200_000]);
            }
            if rng.one_in(3) {
                plan.cm_double_ppm = rng.of(&[100_000, 500_000]);
            }
            if rng.one_in(3) {
                plan.cm_late_ppm = rng.of(&[50_000, 300_000]);
            }
            if rng.one_in(4) {
                plan.no_match_ppm = 200_000;
            }
            if rng.one_in(4) {
                plan.cut_ppm = 200_000;
            }
            if rng.one_in(6) {
                plan.parse_error_ppm = 50_000;
            }
            if rng.one_in(6) {
                plan.send_error_ppm = 50_000;
            }
            for i in 0..FAULTS {
                match rng.below(8) {
                    0 => plan.fault_ppm[i] = rng.of(&[500, 5_000, 50_000, 300_000]),
                    1 => plan.fault_nth[i] = Some(rng.range(1, 150)),
                    _ => {}
                }
            }
            early = rng.one_in(4);
            for _ in 0..rng.of(&[0, 1, 1, 2, 3]) {
                let what = rng.of(&[
                    Happens::DelPeer,
                    Happens::CloseConns,
                    Happens::Look,
                    Happens::LinkDown,
                    Happens::LinkLost,
                    Happens::Unplug,
                    Happens::Restart,
                    Happens::Reload,
                    Happens::Power,
                    Happens::QpBreaks,
                    Happens::PortEvents,
                    Happens::AddrChange,
                ]);
                steps.push(Step {
                    what,
                    node: rng.below(n as u64) as usize,
                    slot: rng.below(2) as usize,
                    at: when(rng),
                    long: when(rng),
                });
            }
        } else if rng.one_in(2) {
            steps.push(Step {
                what: Happens::Look,
                node: 0,
                slot: 0,
                at: when(rng),
                long: 0,
            });
        }

        if !strict {
            // From a source of its own: the worlds of other seeds do not change.
            let rng = &mut Rng::new(seed ^ 0xacce_55a5);
            for what in [Happens::Deny, Happens::Tune] {
                if rng.one_in(12) {
                    let at = rng.below(steps.len() as u64 + 1) as usize;
                    let step = Step {
                        what,
                        node: rng.below(n as u64) as usize,
                        slot: rng.below(2) as usize,
                        at: when(rng),
                        long: when(rng),
                    };
                    steps.insert(at, step);
                }
            }
            let rng = &mut Rng::new(seed ^ 0xfa11_07e4);
            if rng.one_in(8) {
                for _ in 0..rng.of(&[1, 1, 2, 4]) {
                    steps.push(Step {
                        what: Happens::FailOver,
                        node: rng.below(n as u64) as usize,
                        slot: rng.below(2) as usize,
                        at: when(rng),
                        long: when(rng),
                    });
                }
            }
        }

        let mut users = Vec::new();
        for node in 0..n {
            for _ in 0..rng.of(if small {
                &[0, 1, 1, 1, 2]
            } else {
                &[0, 1, 1, 2, 4]
            }) {
                let ops = (0..rng.range(1, if small { 2 } else { 5 }))
                    .map(|_| {
                        let pause = if rng.one_in(12) {
                            rng.below(30 * SEC)
                        } else if rng.one_in(3) {
                            rng.below(2 * MS)
                        } else {
                            0
                        };
                        (
                            rng.of(&[lnet::PUT, lnet::PUT, lnet::GET]),
                            size(rng),
                            rng.one_in(2),
                            rng.below(n as u64 - 1) as usize,
                            pause,
                        )
                    })
                    .collect();
                users.push(User {
                    node,
                    slot: rng.below(2) as usize,
                    at: if rng.one_in(2) { 0 } else { rng.below(2 * MS) },
                    ops,
                });
            }
        }
        // From a source of its own, as above. If both sides connect there are races, and more than
        // one attempt.
        let one_asks = users.iter().all(|u: &User| u.node == users[0].node);
        plan.slow_steps = strict && one_asks && !plan.shy && Rng::new(seed ^ 0x0571_ea9e).one_in(4);
        let unplugged = steps.iter_mut().find(|s| s.what == Happens::Unplug);
        if let Some(step) = unplugged {
            // From a source of its own, as above.
            let own = &mut Rng::new(seed ^ 0x1e55_0e15);
            plan.keeps = own.one_in(2);
            if plan.keeps {
                keep_much(own, &mut plan, &mut users, step);
            }
        }
        let mut script = Self {
            seed,
            policy: if rng.one_in(3) {
                Policy::Priority(rng.of(&[1_000, 10_000, 100_000]))
            } else {
                Policy::Random(rng.of(&[500_000, 100_000, 20_000, 2_000]))
            },
            jump_ppm: rng.of(&[0, 0, 1_000, 50_000]),
            jump_max: if strict {
                MS
            } else {
                rng.of(&[MS, 100 * MS, 20 * SEC])
            },
            stall_ppm: rng.of(&[0, 0, 30, 1_000]),
            stall_max: if strict {
                100 * US
            } else {
                rng.of(&[100 * US, 10 * MS, 2 * SEC])
            },
            strict,
            together: strict || rng.one_in(2),
            early,
            users,
            steps,
            punctual: false,
            check: rng.one_in(3),
            watched: Rng::new(seed ^ 0x05ee_0a11).one_in(64),
            plan,
        };
        // From a source of its own, as above.
        let own = &mut Rng::new(seed ^ 0x0a5c_ed00);
        script.plan.params.probe = own.of(&[1000, 1000, 0, 250, 3000]);
        script.plan.ofed = Rng::new(seed ^ 0x0fed_22d3).one_in(32);
        let own = &mut Rng::new(seed ^ 0x0dea_d0de);
        if !strict && own.one_in(16) {
            script.dies(own);
        }
        let own = &mut Rng::new(seed ^ 0x0b2e_a500);
        if !strict && !script.punctual && own.one_in(16) {
            script.breaks(own);
        }
        let own = &mut Rng::new(seed ^ 0x0f1a_9500);
        if !strict && !script.punctual && own.one_in(16) {
            script.flaps(own);
        }
        let own = &mut Rng::new(seed ^ 0x01b0_1b00);
        if !strict && !script.punctual && own.one_in(16) {
            script.infiniband(own);
        }
        let own = &mut Rng::new(seed ^ 0x0a70_05a1);
        if !strict && !script.punctual && own.one_in(32) {
            script.mtu_shrinks(own);
        }
        let own = &mut Rng::new(seed ^ 0x0e1d_0a57);
        if !strict && !script.punctual && own.one_in(64) {
            script.outlasts(own);
        }
        let own = &mut Rng::new(seed ^ 0x0b0d_f1a9);
        if !strict && !script.punctual && own.one_in(32) {
            script.bond_flaps(own);
        }
        let own = &mut Rng::new(seed ^ 0x02eb_0211);
        if !strict && !script.punctual && own.one_in(32) {
            script.reborn(own);
            return script;
        }
        let own = &mut Rng::new(seed ^ 0x0de1_d2f0);
        if !strict && !script.punctual && own.one_in(16) {
            script.deleted_dry(own);
        }
        let own = &mut Rng::new(seed ^ 0x0a17_e000);
        if !strict && !script.punctual && own.one_in(16) {
            script.mutes(own);
        }
        let own = &mut Rng::new(seed ^ 0x0b0f_fe25);
        if !strict && !script.punctual && own.one_in(16) {
            script.lacks_buffer(own);
        }
        let own = &mut Rng::new(seed ^ 0x0b0f_1000);
        if !strict && !script.punctual && own.one_in(16) {
            script.refuses(own);
        }
        let own = &mut Rng::new(seed ^ 0x0d3a_f011);
        if !strict && !script.punctual && own.one_in(16) {
            script.maps_nothing(own);
            return script;
        }
        script.bounded()
    }

    /// Lets no page be mapped for the device of node 0, for a moment, or for longer than a message
    /// may wait, without other faults. Transfers wait for room for as long as LNet waits for them.
    /// They do not wait for memory that the device does not reach.
    fn maps_nothing(&mut self, rng: &mut Rng) {
        let timeout = rng.of(&[5, 10]);
        let what = rng.of(&[Happens::NoRoom, Happens::NoRoom, Happens::NoReach]);
        self.plan = Plan {
            patience: match what {
                Happens::NoRoom => (u64::from(timeout) + 5) * SEC,
                _ => SEC,
            },
            ..Plan::calm(2)
        };
        self.plan.params.timeout = timeout;
        for node in &mut self.plan.nodes {
            node.software = rng.one_in(4);
        }
        self.early = false;
        self.together = true;
        self.check = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        self.steps = vec![Step {
            what,
            node: 0,
            slot: 0,
            at: 5 * SEC,
            long: rng.of(&[SEC, 4 * SEC, 60 * SEC]),
        }];
        self.users = (0..4)
            .map(|i| User {
                node: i % 2,
                slot: 0,
                at: rng.below(MS),
                ops: (0..rng.range(4, 12))
                    .map(|n| {
                        let kind = rng.of(&[lnet::PUT, lnet::GET]);
                        let size = rng.of(&[100, 5000, 20_000, 70_000]);
                        let pause = if n == 0 { 0 } else { rng.below(4 * SEC) };
                        (kind, size, rng.one_in(2), 0, pause)
                    })
                    .collect(),
            })
            .collect();
    }

    /// Makes the device of node 1 refuse LOCAL_INV when it is posted, without other faults. Small
    /// messages pass, and each bulk transfer ends the connection.
    fn refuses(&mut self, rng: &mut Rng) {
        self.plan = Plan {
            refuses_inv: Some(1),
            ..Plan::calm(2)
        };
        let conns = rng.of(&[1, 2]);
        for node in &mut self.plan.nodes {
            node.conns = conns;
            // A device like rxe would refuse the registration, too.
            node.software = false;
        }
        self.early = false;
        self.together = true;
        self.check = false;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        self.steps = Vec::new();
        let kind = rng.of(&[lnet::PUT, lnet::GET]);
        let node = usize::from(kind == lnet::GET);
        self.users = vec![User {
            node,
            slot: 0,
            at: 0,
            // The sink is on node 1.
            ops: (0..rng.range(20, 40))
                .map(|_| (kind, 6000, false, 0, rng.below(SEC)))
                .collect(),
        }];
    }

    /// Lets a node with several connections die, without other faults.
    fn dies(&mut self, rng: &mut Rng) {
        self.plan = Plan::calm(2);
        self.plan.params.retry_count = rng.of(&[2, 5]);
        self.plan.params.probe = rng.of(&[250, 1000, 3000]);
        for node in &mut self.plan.nodes {
            node.conns = rng.of(&[1, 2, 4]);
            node.software = rng.one_in(2);
        }
        self.early = false;
        self.together = true;
        self.punctual = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        self.steps = vec![Step {
            what: Happens::Power,
            node: 1,
            slot: 0,
            at: SEC + rng.below(3 * SEC),
            long: 20 * SEC,
        }];
        let kind = rng.of(&[lnet::PUT, lnet::GET]);
        self.users = vec![User {
            node: 0,
            slot: 0,
            at: 0,
            ops: (0..8)
                .map(|_| (kind, 6000, false, 0, rng.below(SEC)))
                .collect(),
        }];
    }

    /// Breaks one of several connections, without other faults.
    fn breaks(&mut self, rng: &mut Rng) {
        self.plan = Plan::calm(2);
        let conns = rng.of(&[2, 3, 4]);
        for node in &mut self.plan.nodes {
            node.conns = conns;
            node.software = rng.one_in(2);
        }
        self.early = false;
        self.together = true;
        self.punctual = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        self.steps = vec![Step {
            what: Happens::QpBreaks,
            node: rng.below(2) as usize,
            slot: 0,
            at: SEC + rng.below(3 * SEC),
            long: 0,
        }];
        self.users = vec![User {
            node: rng.below(2) as usize,
            slot: 0,
            at: 0,
            ops: (0..rng.range(1, 12))
                .map(|_| (lnet::PUT, 100, rng.one_in(2), 0, rng.below(SEC)))
                .collect(),
        }];
    }

    /// Drops the messages of a node to the CM of the other node, without other faults. The other
    /// node sends requests again and again: each of its requests stands for a request of the first
    /// node.
    fn mutes(&mut self, rng: &mut Rng) {
        let timeout = rng.of(&[5, 10]);
        self.plan = Plan {
            mute: 0..1,
            ..Plan::calm(2)
        };
        self.plan.params.timeout = timeout;
        self.early = false;
        self.together = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        // Its administrator closes attempts, so that it sends a request again before the last
        // request times out.
        self.steps = (0..rng.range(1, 20))
            .map(|_| Step {
                what: Happens::CloseConns,
                node: 1,
                slot: 0,
                at: rng.below(4 * SEC),
                long: 8 * rng.below(100),
            })
            .collect();
        self.users = (0..6)
            .map(|number| User {
                node: number % 2,
                slot: 0,
                at: rng.below(5 * SEC),
                ops: (0..rng.range(1, 8))
                    .map(|_| (lnet::PUT, 100, rng.one_in(2), 0, rng.below(2 * SEC)))
                    .collect(),
            })
            .collect();
    }

    /// Delays many messages in a slow LNet, so that the driver posts other buffers in place of
    /// theirs, and one of these posts fails. There are no other faults.
    fn lacks_buffer(&mut self, rng: &mut Rng) {
        self.plan = Plan {
            slow_lnet_ppm: rng.of(&[200_000, 1_000_000]),
            ..Plan::calm(2)
        };
        for node in &mut self.plan.nodes {
            node.credits = rng.of(&[16, 32]);
            node.software = rng.one_in(2);
        }
        // Each node posts some 34 or 66 buffers before the first message.
        self.plan.fault_nth[Fault::PostRecv as usize] = Some(rng.range(60, 200));
        self.early = false;
        self.together = true;
        self.check = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        self.steps = Vec::new();
        self.users = (0..rng.range(16, 48))
            .map(|_| User {
                node: 0,
                slot: 0,
                at: rng.below(MS),
                ops: (0..rng.range(1, 3))
                    .map(|_| (lnet::PUT, 100, false, 0, 0))
                    .collect(),
            })
            .collect();
    }

    /// Takes links down and up, without other faults.
    fn flaps(&mut self, rng: &mut Rng) {
        self.plan = Plan::calm(2);
        self.plan.params.retry_count = rng.of(&[2, 5, 7]);
        self.plan.params.keepalive = rng.of(&[1, 100]);
        for node in &mut self.plan.nodes {
            node.conns = rng.of(&[1, 2, 4]);
            node.software = rng.one_in(2);
        }
        self.early = false;
        self.together = true;
        self.punctual = true;
        (self.jump_ppm, self.stall_ppm) = (0, 0);
        // One after the other, all of one node.
        let node = rng.below(2) as usize;
        let flaps = rng.range(1, 3);
        self.steps = (0..flaps)
            .map(|_| Step {
                what: rng.of(&[Happens::LinkDown, Happens::LinkLost]),
                node,
                slot: 0,
                at: rng.below(4 * SEC),
                long: rng.of(&[100 * MS, SEC, 4 * SEC, 8 * SEC, 30 * SEC]),
            })
            .collect();
        self.users = (0..2)
            .map(|node| User {
                node,
                slot: 0,
                at: 0,
                ops: (0..rng.below(30))
                    .map(|_| {
                        let kind = rng.of(&[lnet::PUT, lnet::GET]);
                        (
                            kind,
                            rng.of(&[100, 6000]),
                            rng.one_in(2),
                            0,
                            rng.below(2 * SEC),
                        )
                    })
                    .collect(),
            })
            .collect();
    }

    /// Puts two nodes on InfiniBand: the carrier of IPoIB goes, the port fails for less than the
    /// transport retries last, or for longer, or gets another LID. There are no other faults.
    fn infiniband(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        self.plan.ib = true;
        self.plan.params.timeout = rng.of(&[10, 50]);
        for step in &mut self.steps {
            step.what = rng.of(&[
                Happens::CarrierGoes,
                Happens::CarrierGoes,
                Happens::LidChanges,
                Happens::LinkLost,
            ]);
            step.long = match step.what {
                Happens::CarrierGoes => rng.range(2 * SEC, 40 * SEC),
                Happens::LidChanges => rng.below(SEC),
                _ => rng.of(&[SEC, 4 * SEC, 8 * SEC, 11 * SEC, 30 * SEC]),
            };
        }
    }

    /// Gives the interface of a node a smaller MTU for a while, without other faults.
    fn mtu_shrinks(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        for step in &mut self.steps {
            step.what = Happens::MtuShrinks;
            step.long = rng.range(10 * MS, 3 * SEC);
        }
    }

    /// Takes the link of a node away for longer than the peer resends, and for less time than the
    /// node holds its connections. The peer sends meanwhile, and so ends some of the connections,
    /// which the node opened and believes to be up.
    fn outlasts(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        self.plan.params.retry_count = 2;
        let conns = rng.of(&[2, 4]);
        for node in &mut self.plan.nodes {
            node.conns = conns;
        }
        let node = rng.below(2) as usize;
        let at = rng.range(SEC, 2 * SEC);
        self.steps = vec![Step {
            what: Happens::LinkLost,
            node,
            slot: 0,
            at,
            long: rng.range(1700 * MS, 2900 * MS),
        }];
        let user = |node, at, ops| User {
            node,
            slot: 0,
            at,
            ops: vec![(lnet::PUT, 100, true, 0, 0); ops],
        };
        self.users = vec![
            user(node, 0, 1),
            user(1 - node, at + rng.below(200 * MS), rng.range(1, 3) as usize),
        ];
    }

    /// Makes the bond of a node, which is over one RDMA device, fail over many times a second.
    fn bond_flaps(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        for step in &mut self.steps {
            step.what = Happens::BondFlaps;
            step.long = rng.range(10 * MS, 3 * SEC);
        }
    }

    /// Takes the power of a node that has connected over TCP and sent no message. Its next life connects before the
    /// other node stops to wait for the first message of the earlier connection. There are no other faults.
    fn reborn(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        self.plan.shy = true;
        // The trace points tell why connections end.
        self.plan.looked_at = true;
        for node in &mut self.plan.nodes {
            node.tcp = true;
        }
        let node = rng.below(2) as usize;
        self.steps = vec![Step {
            what: Happens::Power,
            node,
            slot: 0,
            at: rng.range(10 * MS, 2 * SEC),
            long: rng.range(10 * MS, 2 * SEC),
        }];
        self.users = vec![User {
            node,
            slot: 0,
            at: 0,
            ops: vec![(lnet::PUT, 100, false, 0, 0)],
        }];
        self.punctual = false;
    }

    /// Deletes an NI for which a message waits, while the peer requests connections that the node
    /// has no memory for, without other faults.
    fn deleted_dry(&mut self, rng: &mut Rng) {
        self.flaps(rng);
        for step in &mut self.steps {
            step.what = Happens::DeletedDry;
        }
        self.users = Vec::new();
    }

    /// Draws a world of two nodes with one connection or two, a handful of messages, and at most
    /// two faults: enough for most races, in a tenth of the time of other worlds.
    fn tiny(seed: u64, rng: &mut Rng) -> Self {
        let mut plan = Plan::calm(2);
        // With four shards two peers may be in one.
        plan.cpus = 1;
        let conns = if rng.one_in(8) { 2 } else { 1 };
        for node in &mut plan.nodes {
            node.credits = rng.of(&[1, 2, 2, 4]);
            node.hiw = rng.below(node.credits.into()) as u32;
            node.conns = conns;
            node.software = rng.one_in(3);
            node.max_sge = rng.of(&[1, 2, 30]);
        }
        plan.cksum = rng.one_in(8);
        plan.params.timeout = rng.of(&[5, 10]);
        plan.params.retry_count = rng.of(&[0, 5]);
        plan.params.rnr_retry_count = rng.of(&[0, 6]);
        plan.no_inline = rng.one_in(4);
        plan.wire_max = rng.of(&[2 * US, 20 * US, 200 * US, 5 * MS]);
        plan.delay_ppm = rng.of(&[0, 0, 300_000]);
        plan.slow_lnet_ppm = rng.of(&[0, 0, 100_000]);
        plan.slow_lnet_max = 5 * MS;
        plan.looked_at = rng.one_in(8);

        let wrong = rng.of(&[0, 1, 1, 2]);
        let strict = wrong == 0;
        if strict {
            // As above: a message that waits behind slow ones must not be late.
            plan.params.timeout = 50;
        }
        let mut steps = Vec::new();
        for _ in 0..wrong {
            match rng.below(16) {
                0 => plan.cm_lost_ppm = 300_000,
                1 => plan.cm_double_ppm = 500_000,
                2 => plan.cm_late_ppm = 300_000,
                3 => plan.no_match_ppm = 300_000,
                4 => plan.cut_ppm = 300_000,
                5 => plan.parse_error_ppm = 200_000,
                6 => plan.send_error_ppm = 200_000,
                7..=10 => {
                    let most = rng.of(&[4, 16, 64]);
                    let kind = rng.below(FAULTS as u64) as usize;
                    plan.fault_nth[kind] = Some(rng.range(1, most));
                    // Faults of two kinds together.
                    if rng.one_in(2) {
                        plan.fault_ppm[rng.below(FAULTS as u64) as usize] = 100_000;
                    }
                }
                _ => {
                    let what = rng.of(&[
                        Happens::DelPeer,
                        Happens::CloseConns,
                        Happens::LinkDown,
                        Happens::LinkLost,
                        Happens::Unplug,
                        Happens::Restart,
                        Happens::Reload,
                        Happens::Power,
                        Happens::QpBreaks,
                        Happens::QpBreaks,
                        Happens::AddrChange,
                        Happens::Deny,
                    ]);
                    let most = rng.of(&[100 * US, 2 * MS, SEC]);
                    steps.push(Step {
                        what,
                        node: rng.below(2) as usize,
                        slot: 0,
                        at: rng.below(most),
                        long: rng.below(most),
                    });
                }
            }
        }
        // Combinations that a few rare defects need, see scripts/sim-defects.
        let rare = if strict { Rare::Nothing } else { Rare::of(rng) };
        match rare {
            Rare::Nothing => {}
            Rare::Hurry => {
                for node in 0..2 {
                    steps.push(Step {
                        what: rng.of(&[Happens::DelPeer, Happens::CloseConns]),
                        node,
                        slot: 0,
                        at: rng.below(300 * US),
                        long: 8 * rng.below(100) + 7,
                    });
                }
            }
            Rare::Unposted => plan.fault_ppm[Fault::Post as usize] = 300_000,
        }
        let mut users = Vec::new();
        for node in 0..2 {
            for _ in 0..rng.of(&[0, 1, 1, 2]) {
                let ops = (0..rng.of(&[1, 1, 2]))
                    .map(|_| {
                        let kind = rng.of(&[lnet::PUT, lnet::PUT, lnet::GET]);
                        let sizes: &[u32] = match rare {
                            Rare::Unposted => &[5000, 20_000],
                            _ => &[1, 100, 3000, 5000],
                        };
                        let size = rng.of(sizes);
                        let pause = if rng.one_in(3) { rng.below(2 * MS) } else { 0 };
                        (kind, size, rng.one_in(2), 0, pause)
                    })
                    .collect();
                let at = if rng.one_in(2) { 0 } else { rng.below(2 * MS) };
                users.push(User {
                    node,
                    slot: 0,
                    at,
                    ops,
                });
            }
        }
        let policy = if rng.one_in(2) {
            Policy::Priority(rng.of(&[1_000, 10_000, 100_000]))
        } else {
            Policy::Random(rng.of(&[500_000, 100_000, 20_000]))
        };
        let jump_max = rng.of(&[MS, 100 * MS, 20 * SEC]);
        let hurry = rare == Rare::Hurry;
        let stall_max = rng.of(&[100 * US, 10 * MS, 2 * SEC]);
        Self {
            seed,
            policy,
            jump_ppm: rng.of(&[0, 0, 1_000]),
            jump_max: if strict { MS } else { jump_max },
            stall_ppm: if hurry {
                20_000
            } else {
                rng.of(&[0, 0, 1_000])
            },
            stall_max: if strict {
                100 * US
            } else if hurry {
                MS
            } else {
                stall_max
            },
            strict,
            together: strict || hurry || rng.one_in(2),
            early: !hurry && rng.one_in(4),
            users,
            steps,
            punctual: false,
            check: rng.one_in(16),
            watched: Rng::new(seed ^ 0x05ee_0a11).one_in(64),
            plan,
        }
        .hoarding()
        .bounded()
        .drying()
    }
}

impl Script {
    /// Creates a world with two nodes, of which the second is byzantine, and its script: from bytes
    /// of a fuzzer. Returns `None` if there are too few bytes.
    #[allow(dead_code)] // Used by rust/fuzz.
    pub fn foul(bytes: &[u8]) -> Option<(Self, byzantine::Foul)> {
        const HEAD: usize = 48;
        let (head, script) = bytes.split_at_checked(HEAD)?;
        let mut head = head.iter().copied();
        let mut byte = || head.next().unwrap_or(0);
        let mut plan = Plan::calm(2);
        let flags = byte();
        plan.cksum = flags & 1 != 0;
        plan.no_inline = flags & 2 != 0;
        plan.params.keepalive = if flags & 4 != 0 { 1 } else { 100 };
        plan.delay_ppm = if flags & 8 != 0 { 300_000 } else { 0 };
        plan.no_match_ppm = if flags & 16 != 0 { 200_000 } else { 0 };
        plan.cut_ppm = if flags & 32 != 0 { 200_000 } else { 0 };
        let early = flags & 64 != 0;
        let check = flags & 128 != 0;
        for node in &mut plan.nodes {
            let b = byte();
            let credits = [1, 2, 8, 16][usize::from(b & 3)];
            *node = NodePlan {
                credits,
                open: false,
                hiw: u32::from(b >> 2 & 3).min(credits - 1),
                conns: [1, 1, 2, 4][usize::from(b >> 4 & 3)],
                devs: 1,
                software: b & 64 != 0,
                tcp: false,
                max_qp_wr: 16384,
                max_sge: if b & 128 != 0 { 2 } else { 30 },
                max_mr: 1 << 16,
            };
        }
        let seed = u64::from(byte() % 8);
        plan.looked_at = seed % 2 == 0;
        let policy = match byte() % 4 {
            0 => Policy::Priority(10_000),
            1 => Policy::Random(500_000),
            2 => Policy::Random(20_000),
            _ => Policy::Random(2_000),
        };
        for nth in &mut plan.fault_nth {
            *nth = Some(byte()).filter(|b| *b != 0).map(u64::from);
        }
        let mut users = Vec::new();
        for node in 0..2 {
            let n = byte() % 4;
            let ops = (0..n)
                .map(|_| {
                    let (b, size) = (byte(), u32::from(byte()));
                    let size = match b >> 4 & 3 {
                        0 => size,
                        1 => size * 16,
                        2 => size * 80,
                        _ => size * 4096,
                    };
                    let kind = if b & 1 != 0 { lnet::GET } else { lnet::PUT };
                    let pause = if b & 8 != 0 { SEC } else { 0 };
                    (kind, size, b & 2 != 0, 0, pause)
                })
                .collect();
            // The script must begin at the same byte as with three.
            for _ in n..3 {
                let _ = (byte(), byte());
            }
            users.push(User {
                node,
                slot: 0,
                at: 0,
                ops,
            });
        }
        let happens = [
            Happens::DelPeer,
            Happens::CloseConns,
            Happens::Look,
            Happens::LinkDown,
            Happens::LinkLost,
            Happens::Unplug,
            Happens::Restart,
            Happens::Reload,
            Happens::QpBreaks,
            Happens::PortEvents,
            Happens::AddrChange,
            Happens::Deny,
            Happens::Tune,
            Happens::FailOver,
        ];
        let mut steps = Vec::new();
        for _ in 0..2 {
            let (what, node, at, long) = (byte(), byte(), byte(), byte());
            // Mostly no event.
            if let Some(what) = happens.get(usize::from(what)) {
                steps.push(Step {
                    what: *what,
                    node: usize::from(node & 1),
                    slot: 0,
                    at: u64::from(at) << (10 + (node >> 4)),
                    long: u64::from(long) << (10 + (node >> 4)),
                });
            }
        }
        let script = byzantine::Foul::new(1, script.to_vec());
        let world = Self {
            seed,
            policy,
            jump_ppm: 0,
            jump_max: MS,
            stall_ppm: 0,
            stall_max: 100 * US,
            strict: false,
            together: true,
            early,
            users,
            steps,
            punctual: false,
            check,
            watched: false,
            plan,
        };
        Some((world.bounded(), script))
    }

    /// Makes LNet keep many messages, or take less data than there is, in some worlds without
    /// faults.
    fn hoarding(mut self) -> Self {
        if self.strict && Rng::new(self.seed ^ 0x0c07_1e55).one_in(8) {
            self.plan.cut_ppm = 300_000;
        }
        self.plan.hoards = self.strict && Rng::new(self.seed ^ 0x40a2_d000).one_in(8);
        if self.plan.hoards {
            self.plan.delay_ppm = 500_000;
            // The driver withholds the credit of a message that LNet keeps, and the data of other
            // messages waits for LNet.
            for node in &mut self.plan.nodes {
                (node.credits, node.hiw) = (16, 8);
            }
            let ops = self.users.iter_mut().flat_map(|user| &mut user.ops);
            ops.for_each(|(_, size, ..)| *size = (*size).min(3000));
        }
        self
    }

    /// Takes the memory of a node away for a minute, in some tiny worlds without faults. The node
    /// sends messages of all sizes meanwhile, and the other node fetches data from it. No message
    /// takes long.
    fn drying(mut self) -> Self {
        let own = &mut Rng::new(self.seed ^ 0x0d57_a110);
        if !self.strict || !own.one_in(16) {
            return self;
        }
        self.plan.hoards = false;
        self.plan.cut_ppm = 0;
        self.plan.patience = 10 * SEC;
        self.steps = vec![Step {
            what: Happens::NoMemory,
            node: 0,
            slot: 0,
            at: 5 * SEC,
            long: 60 * SEC,
        }];
        let ops = |own: &mut Rng, kinds: &[(u32, u32)]| {
            let first = [(lnet::PUT, 100, true, 0, 0)];
            let ops = (0..own.range(4, 12)).map(|_| {
                let (kind, size) = own.of(kinds);
                (kind, size, own.one_in(2), 0, own.below(10 * SEC))
            });
            first.into_iter().chain(ops).collect()
        };
        // Data for the node goes into messages: without memory the node cannot offer a sink.
        let writes = [100, 3000, 5000, 20_000, 70_000].map(|size| (lnet::PUT, size));
        let fetches = [(lnet::PUT, 3000), (lnet::GET, 5000), (lnet::GET, 70_000)];
        self.users = (0..8)
            .map(|i| User {
                node: i % 2,
                slot: 0,
                at: own.below(MS),
                ops: ops(own, if i % 2 == 0 { &writes } else { &fetches }),
            })
            .collect();
        self
    }

    /// Returns whether the only faults are failed allocations or failed creations of objects of
    /// verbs.
    fn only_memory_is_short(&self) -> bool {
        let plan = &self.plan;
        let short = [Fault::Dma, Fault::Verbs, Fault::Alloc].map(|kind| kind as usize);
        let others = (0..FAULTS).filter(|kind| !short.contains(kind));
        let cm = [plan.cm_lost_ppm, plan.cm_double_ppm, plan.cm_late_ppm];
        cm.iter().all(|ppm| *ppm == 0)
            && others
                .into_iter()
                .all(|kind| plan.fault_ppm[kind] == 0 && plan.fault_nth[kind].is_none())
            && plan.slow_lnet_max <= 5 * MS
            && plan.delay_ppm == 0
            && plan.no_match_ppm == 0
            && !plan.slow_steps
            && !plan.shy
            && plan.params.rnr_retry_count != 0
    }

    /// Sets how long the driver may keep a message, unless tasks lose their CPU for long.
    fn bounded(mut self) -> Self {
        let calm = self.stall_ppm == 0 || self.stall_max <= 10 * MS;
        let own_time = self.jump_ppm == 0 || self.jump_max <= 100 * MS;
        if calm && own_time {
            self.plan.patience = (4 * u64::from(self.plan.params.timeout) + 60) * SEC;
        }
        let calm = self.plan.patience != 0 && self.steps.is_empty() && self.stall_ppm == 0;
        if !self.plan.mute.is_empty() {
            // As long as a message waits for a connection, and some seconds.
            let timeout = u64::from(self.plan.params.timeout);
            let waits = timeout.max((timeout / 4).max(5) + 10);
            self.plan.patience = (waits + 5) * SEC;
        }
        // A message that LNet keeps at the other node blocks no other message; and a node without
        // memory reports that.
        if self.plan.hoards || (calm && self.only_memory_is_short()) {
            self.plan.patience = 10 * SEC;
        }
        self
    }
}

/// Adds users that send to a node that keeps many messages and has no memory, over connections with
/// few spare buffers, until its device is unplugged.
fn keep_much(rng: &mut Rng, plan: &mut Plan, users: &mut Vec<User>, step: &mut Step) {
    let n = plan.nodes.len();
    for node in &mut plan.nodes {
        node.credits = rng.of(&[2, 4]);
        node.hiw = 1;
    }
    plan.delay_ppm = 500_000;
    step.at = rng.range(5 * SEC, 60 * SEC);
    for which in 0..n - 1 {
        let node = other_of(n, step.node, which);
        let to = (0..n - 1).find(|&to| other_of(n, node, to) == step.node);
        let ops = (0..16)
            .map(|_| {
                let size = rng.range(1, 3000) as u32;
                (lnet::PUT, size, false, to.unwrap_or(0), rng.below(3 * SEC))
            })
            .collect();
        users.push(User {
            node,
            slot: step.slot,
            at: 0,
            ops,
        });
    }
}

fn other_of(n: usize, node: usize, which: usize) -> usize {
    (node + 1 + which) % n
}

fn when(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(2 * MS),
        1 => rng.below(20 * MS),
        2 => rng.below(SEC),
        _ => rng.below(20 * SEC),
    }
}

/// Returns the number of device slots of a node.
fn slots(node: usize) -> usize {
    w().plan.nodes[node].devs
}

/// Returns the NI in a slot of a node, if it is in use.
fn active(node: usize, slot: usize) -> Option<*mut Ni> {
    let nid = lnet::nid_of(world::ip(node, slot));
    let nis = &w().nodes[node].nis;
    // SAFETY: NIs stay until the world ends.
    nis.iter()
        .rev()
        .copied()
        .find(|ni| unsafe { (**ni).nid == nid && (**ni).life == Life::Active })
}

/// Loads the module if it is not loaded.
fn loaded(node: usize) {
    for _ in 0..20 {
        if !w().nodes[node].ops.is_null() || world::load(ro2iblnd::load).is_ok() {
            return;
        }
        must_be_faulty("the module does not load");
    }
    w().faulty = false;
    if world::load(ro2iblnd::load).is_err() {
        violation("the module does not load without faults");
    }
}

/// Starts the NI of a slot; with faults it may take some tries.
fn up_one(node: usize, slot: usize) {
    for _ in 0..20 {
        if lnet::ni_up(world::device(node, slot)).is_ok() {
            return;
        }
        must_be_faulty("an NI does not start");
        sched::sleep(10 * MS);
    }
    w().faulty = false;
    if lnet::ni_up(world::device(node, slot)).is_err() {
        violation("an NI does not start without faults");
    }
}

fn up(node: usize) {
    loaded(node);
    for slot in 0..slots(node) {
        up_one(node, slot);
    }
}

fn must_be_faulty(what: &str) {
    if w().faults == 0 {
        violation(what);
    }
}

fn down_one(node: usize, slot: usize) {
    if let Some(ni) = active(node, slot) {
        lnet::ni_down(ni);
    }
}

fn down(node: usize) {
    for slot in 0..slots(node) {
        down_one(node, slot);
    }
}

fn other(node: usize, which: usize) -> usize {
    other_of(w().nodes.len(), node, which)
}

fn user(user: User, ends_well: bool) {
    sched::sleep(user.at);
    for (kind, size, ack, to, pause) in user.ops {
        if pause != 0 {
            sched::sleep(pause);
        }
        let to = other(user.node, to);
        let Some(ni) = active(user.node, user.slot % slots(user.node)) else {
            sched::sleep(20 * MS);
            continue;
        };
        let op = lnet::begin(
            ni,
            kind,
            lnet::nid_of(world::ip(to, user.slot % slots(to))),
            size,
            ack,
        );
        let result = lnet::wait(op, 300 * SEC);
        if ends_well
            && (result != Some(0) || (!w().lnet.ops[op].arrived && (kind == lnet::GET || ack)))
        {
            violation(&format!(
                "operation {op} ends with {result:?}, and nothing is wrong"
            ));
        }
    }
}

/// Time after the end of one of several connections by which another connection replaces it.
const REPLACED: u64 = 10 * SEC;

/// Returns how long after the link is down no connection is up any more: connections are held for 3 s, on InfiniBand
/// for as long as their transport retries last, and the driver looks each second.
fn hold() -> u64 {
    match w().plan.ib {
        true => retries().max(3 * SEC) + 2 * SEC,
        false => 5 * SEC,
    }
}

/// Returns for how long the transport resends a packet that is not acknowledged, unless the driver
/// closes the connection because a transfer is stuck.
fn retries() -> u64 {
    let transport = (u64::from(w().plan.params.retry_count) + 1) * verbs::ack_ns();
    transport.min(u64::from(w().plan.params.timeout) * SEC)
}

/// Counts those of these queue pairs that are not up any more.
fn over(before: &[*mut verbs::Qp]) -> usize {
    before.iter().filter(|qp| !verbs::is_up(**qp)).count()
}

/// Sends a message over the connection of a node immediately, though the driver finds its NI to be
/// down.
fn sends_without_way(node: usize) {
    let to = lnet::nid_of(world::ip(other(node, 0), 0));
    let Some(ni) = active(node, 0).filter(|ni| lnet::connected(*ni, to)) else {
        return;
    };
    let op = lnet::begin(ni, lnet::PUT, to, 6000, true);
    let result = lnet::wait(op, SEC);
    if result != Some(0) {
        violation(&format!(
            "a message does not go over a connection that works: {result:?}"
        ));
    }
}

/// Time after the link is back by which messages pass again, both ways.
const BACK: u64 = 5 * SEC;

/// Checks a node whose link is back, while there is no other fault.
fn returns(node: usize, within: u64) {
    let there = other(node, 0);
    let tids = [(node, there), (there, node)].map(|(from, to)| {
        sched::spawn(from, Kind::Process, "returns", move || {
            reaches_soon(from, to, within)
        })
    });
    for tid in tids {
        sched::join(tid);
    }
}

/// Checks a node whose link is back, and which has held all of its connections. The peer may have
/// ended some of them, and could not tell the node. The node must not send ACKs over those.
fn answers(node: usize) {
    let there = other(node, 0);
    sched::join(sched::spawn(there, Kind::Process, "answers", move || {
        // The node probes its connections meanwhile.
        sched::sleep(600 * MS);
        let Some(ni) = active(there, 0) else { return };
        for _ in 0..8 {
            let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(node, 0)), 100, true);
            // Less than the time in which the transport notices a dead connection.
            if lnet::wait(op, SEC) != Some(0) {
                violation(
                    "an ACK goes over a connection that the peer ended while the link was away",
                );
            }
        }
    }));
}

/// Checks that all connections of the node are back, not only the connection that the first message
/// needed. The active side makes as many connections as its configuration says, so both sides must
/// be configured alike.
fn all_return(node: usize, dev: *const verbs::Dev) {
    let wants = [node, other(node, 0)].map(|node| w().plan.nodes[node].conns);
    if wants[0] != wants[1] {
        return;
    }
    sched::sleep(REPLACED);
    let mut up = verbs::up(dev).len();
    if up < wants[0] as usize && w().stale != 0 {
        // The CM of the peer rejects requests with the number of an old queue pair until it has repeated the DREQ.
        sched::sleep(2 * cm::resend());
        up = verbs::up(dev).len();
    }
    if up < wants[0] as usize {
        violation(&format!(
            "{up} connections are up {} s after the link is back, of {}",
            REPLACED / SEC,
            wants[0]
        ));
    }
}

fn reaches_soon(node: usize, to: usize, within: u64) {
    let until = sched::now() + within;
    let Some(ni) = active(node, 0) else { return };
    loop {
        let op = lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(to, 0)), 6000, true);
        let result = lnet::wait(op, until.saturating_sub(sched::now()));
        if result == Some(0) {
            return;
        }
        if sched::now() >= until {
            violation(&format!(
                "node {node} does not reach node {to} {} s after the link is back: {result:?}",
                within / SEC
            ));
        }
        sched::sleep(100 * MS);
    }
}

fn happens(step: Step, punctual: bool) {
    let node = step.node;
    sched::sleep(step.at);
    if telling() {
        say(&format!("node {node}: {:?}", step.what));
    }
    let slot = step.slot % slots(node);
    let dev = world::device(node, slot);
    match step.what {
        Happens::DelPeer | Happens::CloseConns => {
            // An administrator who repeats the command, so that it meets attempts.
            for i in 0..1 + step.long % 8 {
                if let Some(ni) = active(node, slot) {
                    let nid = if (step.long + i) % 3 != 0 {
                        u64::MAX
                    } else {
                        lnet::nid_of(world::ip(other(node, 0), 0))
                    };
                    let _ = lnet::control(ni, u32::from(step.what == Happens::CloseConns), nid);
                }
                let ns = w().rng.range(US, 200 * US);
                sched::sleep(ns);
            }
            close_all(node, slot, step.what == Happens::CloseConns);
        }
        Happens::Look => {
            let mut sums = Sums::default();
            for _ in 0..5 {
                if let Some(ni) = active(node, slot) {
                    let _ = lnet::control(ni, 2, 0);
                    let _ = lnet::control(ni, 3, 0);
                    let peer = lnet::nid_of(world::ip(other(node, 0), 0));
                    let _ = lnet::control(ni, 4, peer);
                    let _ = lnet::control(ni, 5, 0);
                }
                for file in kernel_core::files(node) {
                    let text = sums.cat(file);
                    if telling() {
                        for line in text.lines() {
                            say(&format!("  {line}"));
                        }
                    }
                }
                sched::sleep(step.long / 5);
            }
        }
        Happens::CarrierGoes => {
            let before = verbs::up(dev);
            lnet::carrier(dev, false);
            sched::sleep(step.long / 2);
            sends_without_way(node);
            sched::sleep(step.long / 2);
            if over(&before) != 0 {
                violation("a connection ended, and only IPoIB had no carrier");
            }
            lnet::carrier(dev, true);
            returns(node, BACK);
            all_return(node, dev);
        }
        Happens::LidChanges => {
            let before = verbs::up(dev);
            // SAFETY: Devices stay until the world ends.
            unsafe { (*dev).lid += 1 };
            verbs::dispatch(dev, ib_event_type_IB_EVENT_LID_CHANGE);
            lnet::carrier(dev, false);
            sched::sleep(step.long);
            lnet::carrier(dev, true);
            returns(node, BACK);
            if over(&before) != before.len() {
                violation("a connection is up that goes to a LID which no port has any more");
            }
            all_return(node, dev);
        }
        Happens::MtuShrinks => {
            lnet::mtu(dev, 1024);
            sched::sleep(step.long);
            // The peer's requests ask for larger packets than the port takes, so this node has to connect, although it
            // has no message.
            let peer = other(node, 0);
            let sends = move || reaches_soon(peer, node, BACK);
            sched::join(sched::spawn(peer, Kind::Process, "returns", sends));
            returns(node, BACK);
            if verbs::too_large(dev) != 0 {
                violation("a connection is up that sends larger packets than the port takes");
            }
            lnet::mtu(dev, 4096);
        }
        Happens::BondFlaps => {
            let before = verbs::up(dev);
            for _ in 0..10 {
                lnet::fails_over(dev);
                sched::sleep(step.long / 10);
                sends_without_way(node);
            }
            returns(node, BACK);
            if over(&before) != 0 {
                violation("a connection ended, and the bond has the device that it had");
            }
        }
        Happens::DeletedDry => {
            close_all(node, slot, true);
            let Some(ni) = active(node, slot) else {
                return;
            };
            // No attempt starts for a second, and requests of the peer are accepted.
            lnet::fails_over(dev);
            let peer = other(node, 0);
            lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(peer, 0)), 100, true);
            // An NI that is being deleted accepts no request, so its deletion begins when the node has accepted one.
            let deletion = sched::spawn(node, Kind::Process, "deletes", move || {
                sched::sleep_until_on(world::DRY, Some(sched::now() + SEC));
                down_one(node, slot);
            });
            let asking = sched::spawn(peer, Kind::Process, "asks", move || {
                for _ in 0..8 {
                    if let Some(ni) = active(peer, 0) {
                        lnet::begin(ni, lnet::PUT, lnet::nid_of(world::ip(node, 0)), 100, true);
                    }
                    sched::sleep(20 * MS);
                }
            });
            // The node handles the event first. The request takes longer.
            sched::sleep(200 * US);
            w().dry = Some(node);
            sched::join(asking);
            w().dry = None;
            sched::join(deletion);
            sched::sleep(step.long);
            up_one(node, slot);
        }
        Happens::LinkDown | Happens::LinkLost => {
            let before = verbs::up(dev);
            lnet::link(
                dev,
                if step.what == Happens::LinkDown {
                    Link::Down
                } else {
                    Link::Lost
                },
            );
            sched::sleep(step.long);
            if punctual && step.long > hold() && !verbs::up(dev).is_empty() {
                violation("a connection is up though the link has been down for seconds");
            }
            let held = w().plan.ib && step.long + SEC < retries();
            if punctual && held && over(&before) != 0 {
                violation("a connection ended whose transport sends again");
            }
            lnet::link(dev, Link::Up);
            if punctual && !w().plan.ib && !before.is_empty() && over(&before) == 0 {
                answers(node);
            }
            if punctual {
                // The other node may have a dead connection, and must detect that.
                returns(
                    node,
                    if w().plan.ib {
                        retries() + 2 * SEC
                    } else {
                        BACK
                    },
                );
                all_return(node, dev);
            }
        }
        Happens::Unplug => {
            // SAFETY: Devices stay until the world ends.
            if unsafe { !(*dev).registered || (*dev).moved.is_some() } {
                return;
            }
            world::unplug(dev, step.long % 2 == 0);
            sched::sleep(step.long);
            world::new_device(node, slot);
            down_one(node, slot);
            up_one(node, slot);
        }
        Happens::Restart => {
            down_one(node, slot);
            sched::sleep(step.long);
            up_one(node, slot);
        }
        Happens::QpBreaks => {
            let before = verbs::up(dev).len();
            verbs::break_one(dev);
            if punctual {
                sched::sleep(REPLACED);
                let after = verbs::up(dev).len();
                if after < before {
                    violation(&format!(
                        "{before} connections were up, and {after} are since one broke"
                    ));
                }
            }
        }
        Happens::PortEvents => {
            let event = w().rng.range(8, 18) as u32;
            verbs::dispatch(dev, event);
        }
        Happens::AddrChange => cm::addr_change(dev),
        Happens::FailOver => {
            // SAFETY: Devices stay until the world ends.
            if unsafe { !(*dev).registered || (*dev).moved.is_some() } {
                return;
            }
            world::fail_over(dev);
            if step.long % 2 == 0 {
                return;
            }
            // The removal does not wait for any use of it. In some worlds the device goes while the
            // driver follows.
            let most = if step.long % 8 == 3 { 2 * MS } else { u64::MAX };
            sched::sleep(step.long % most);
            if unsafe { (*dev).registered } {
                world::unplug(dev, false);
            }
        }
        Happens::Reload => {
            down(node);
            world::unload();
            sched::sleep(step.long);
            up(node);
        }
        Happens::Deny => {
            let to = other(node, step.long as usize % 2);
            let peer = lnet::nid_of(world::ip(to, slot % slots(to)));
            // Some administrators reverse the change, so that it meets attempts.
            for _ in 0..step.long % 8 {
                lnet::deny(Some(peer));
                let ns = w().rng.range(US, 200 * US);
                sched::sleep(ns);
                lnet::deny(None);
                let ns = w().rng.range(US, 200 * US);
                sched::sleep(ns);
            }
            lnet::deny(Some(peer));
            sched::sleep(step.long);
            if step.long > SEC {
                ends(node, slot, peer);
            }
            lnet::deny(None);
        }
        Happens::Tune => {
            lnet::tune(tuning());
            sched::sleep(step.long);
            // To the end in some worlds: the agreed values stay in force.
            if step.long % 2 == 0 {
                lnet::tune(lnet::UNTUNED);
            }
        }
        Happens::NoMemory => {
            let before = verbs::up(dev);
            w().dry = Some(node);
            sched::sleep(step.long);
            w().dry = None;
            if before.is_empty() || !before.iter().all(|qp| verbs::is_up(*qp)) {
                violation("a connection ended because there was no memory, or there was none");
            }
        }
        Happens::NoRoom | Happens::NoReach => {
            let before = verbs::up(dev);
            let error = if step.what == Happens::NoRoom {
                EIO
            } else {
                EREMOTEIO
            };
            w().maps.refuses = Some((dev as usize, error));
            sched::sleep(step.long);
            w().maps.refuses = None;
            if before.is_empty() || !before.iter().all(|qp| verbs::is_up(*qp)) {
                violation(
                    "a connection ended because its device could map nothing, or there was none",
                );
            }
        }
        Happens::Power => {}
    }
}

/// Closes all connections of an NI, and waits until they are closed.
fn close_all(node: usize, slot: usize, conns_only: bool) {
    let dev = world::device(node, slot);
    let Some(ni) = active(node, slot) else {
        return;
    };
    let before = verbs::up(dev);
    let _ = lnet::control(ni, u32::from(conns_only), u64::MAX);
    for _ in 0..60 {
        if !before.iter().any(|qp| verbs::is_up(*qp)) {
            return;
        }
        sched::sleep(SEC);
    }
    violation("a connection is up a minute after an administrator closed it");
}

/// Waits until an NI has closed its connections with a peer that was denied.
fn ends(node: usize, slot: usize, peer: u64) {
    for _ in 0..120 {
        match active(node, slot) {
            Some(ni) if lnet::connected(ni, peer) => sched::sleep(SEC),
            _ => return,
        }
    }
    violation("a peer is connected two minutes after it was denied");
}

/// Returns tunables that an administrator may set in `ni_tune`.
fn tuning() -> ro2ib_tuning {
    let world = w();
    let timeout = world.plan.params.timeout as i32;
    // Only the plan combines depth 1 with several connections, see `world::rnr`.
    let one = world.plan.nodes.iter().any(|n| n.credits == 1);
    let conns: &[i32] = if one { &[1] } else { &[1, 2, 4] };
    let rng = &mut world.rng;
    let mut tune = lnet::UNTUNED;
    let mut may = |word: &mut i32, values: &[i32]| {
        if rng.one_in(3) {
            *word = rng.of(values);
        }
    };
    may(&mut tune.conns_per_peer, conns);
    may(&mut tune.tos, &[-1, 0, 106]);
    may(&mut tune.peer_credits, &[2, 8, 16, 32]);
    may(&mut tune.retry_count, &[0, 7]);
    may(&mut tune.rnr_retry_count, &[0, 7]);
    // Not longer: `patience` depends on the plan's timeout.
    may(&mut tune.timeout, &[5, timeout]);
    may(&mut tune.keepalive, &[0, 1, 100]);
    may(&mut tune.probe, &[0, 250, 3000, 60_000]);
    tune
}

/// The node that no event happens to.
const GOD: usize = usize::MAX - 1;

/// Sends to a node that has just died: all connections with it must end within the time of one
/// probe and the transport's retries.
fn noticed(dead: usize) {
    let before = verbs::orphans();
    if let Some(ni) = active(other(dead, 0), 0) {
        let there = lnet::nid_of(world::ip(dead, 0));
        lnet::begin(ni, lnet::GET, there, 6000, false);
    }
    let retries = (u64::from(w().plan.params.retry_count) + 1) * 500 * MS;
    // Time until the driver probes the peer on the connection that waits for an answer, and then on
    // its other connections.
    let asked = (u64::from(w().plan.params.probe) + 250) * MS;
    sched::sleep(asked + retries + 500 * MS);
    if verbs::orphans() != 0 {
        violation(&format!(
            "{} of {before} connections outlive their peer by seconds",
            verbs::orphans()
        ));
    }
}

fn power(step: Step, punctual: bool) {
    sched::sleep(step.at);
    world::power_off(step.node);
    let mut long = step.long;
    if punctual {
        let tid = sched::spawn(other(step.node, 0), Kind::Process, "noticed", move || {
            noticed(step.node)
        });
        sched::join(tid);
        long = long.max(20 * SEC);
    }
    sched::sleep(long);
    world::power_on(step.node);
    let node = step.node;
    let was_shy = core::mem::replace(&mut w().plan.shy, false);
    let tid = sched::spawn(node, Kind::Process, "boot", move || {
        up(node);
        if was_shy {
            reaches_soon(node, other(node, 0), BACK);
            // The other node waits 5 s for the first message of a connection.
            sched::sleep(6 * SEC);
        }
    });
    sched::join(tid);
}

fn on_all(name: &'static str, f: fn(usize)) {
    let tids: Vec<Tid> = (0..w().nodes.len())
        .map(|node| sched::spawn(node, Kind::Process, name, move || f(node)))
        .collect();
    for tid in tids {
        sched::join(tid);
    }
}

fn whole(script: Script) {
    w().faulty = script.early;
    w().strict = script.strict;
    let plan = &script.plan;
    w().eager = script.strict && plan.slow_wire_ppm == 0 && plan.wire_max <= MS && !plan.shy;
    let n = w().nodes.len();
    let ups: Vec<Tid> = (0..n)
        .map(|node| sched::spawn(node, Kind::Process, "up", move || up(node)))
        .collect();
    if script.together {
        for tid in &ups {
            sched::join(*tid);
        }
    }
    w().faulty = !script.strict;
    w().prompt = (script.jump_ppm == 0 || script.jump_max <= MS)
        && (script.stall_ppm == 0 || script.stall_max <= 100 * US);
    let mut tids = ups;
    let ends_well = script.strict;
    for u in script.users {
        tids.push(sched::spawn(u.node, Kind::Process, "user", move || {
            user(u, ends_well)
        }));
    }
    if script.watched {
        for node in 0..n {
            tids.push(sched::spawn(node, Kind::Process, "watcher", move || {
                monotonic_check::watch(node)
            }));
        }
    }
    // Only one event at a time happens to a node.
    for node in 0..n {
        let steps: Vec<Step> = script
            .steps
            .iter()
            .copied()
            .filter(|s| s.node == node)
            .collect();
        if steps.is_empty() {
            continue;
        }
        let first = tids[node];
        let punctual = script.punctual;
        tids.push(sched::spawn(GOD, Kind::Process, "happens", move || {
            sched::join(first);
            for step in steps {
                if step.what == Happens::Power {
                    power(step, punctual);
                } else {
                    let tid = sched::spawn(node, Kind::Process, "happens", move || {
                        happens(step, punctual)
                    });
                    sched::join(tid);
                }
            }
        }));
    }
    for tid in tids {
        sched::join(tid);
    }
    w().faulty = false;
    if let Some(node) = script.plan.refuses_inv {
        gives_up(node);
    }
    calm_down();
    if script.check {
        // Long enough to notice losses.
        sched::sleep(60 * SEC);
        let regions: Vec<usize> = verbs::all().map(|dev| dev.mrs.len()).collect();
        sched::sleep(90 * SEC);
        idle_regions_are_given_back(&regions);
        // A byzantine node changes its messages.
        if !byzantine::is_there() && script.plan.parse_error_ppm == 0 {
            nothing_lost(&script.steps);
        }
        on_all("check", |node| {
            for which in 0..w().nodes.len() - 1 {
                let to = other(node, which);
                let (Some(ni), Some(_)) = (active(node, 0), active(to, 0)) else {
                    violation("an NI is not up after all");
                };
                // The first message may find a connection that the peer has forgotten; LNet tries
                // again.
                let mut result = None;
                for _ in 0..3 {
                    let there = lnet::nid_of(world::ip(to, 0));
                    let op = lnet::begin(ni, lnet::PUT, there, 6000, true);
                    result = lnet::wait(op, 60 * SEC);
                    if result == Some(0) {
                        break;
                    }
                    sched::sleep(SEC);
                }
                if result != Some(0) {
                    violation(&format!(
                        "node {node} does not reach node {to} long after everything was good again: {result:?}"
                    ));
                }
            }
        });
        ends_of_requests();
    }
    // Not in all worlds without other checks: it takes time. Objects that are kept for a shortage may be lost in it.
    let was_dry = script
        .steps
        .iter()
        .any(|step| step.what == Happens::NoMemory);
    if script.check || was_dry || (script.strict && script.seed % 8 == 0) {
        say_what_is(&script.steps, &script.plan, script.early);
    }
    w().strict = false;
    on_all("down", |node| {
        down(node);
        world::unload();
    });
}

/// Checks that nodes stop to request connections, after any earlier reject, when all faults are
/// over and no message is sent.
fn ends_of_requests() {
    // Nodes request the rest of several connections within seconds.
    sched::sleep(30 * SEC);
    let before = w().requests;
    sched::sleep(60 * SEC);
    if w().requests != before && !byzantine::is_there() {
        violation("a node asks for connections though nothing is sent, and does not stop");
    }
}

/// Checks that connections which were idle for 90 s gave regions back: each device had as many as
/// `before`.
fn idle_regions_are_given_back(before: &[usize]) {
    for (dev, before) in verbs::all().zip(before) {
        // Two regions of each connection stay, and a check of the others takes 12.5 s at most.
        let most = usize::max(2 * dev.qps, before.saturating_sub(5));
        if dev.mrs.len() > most {
            violation(&format!(
                "{} memory regions of {} idle connections, of {before}",
                dev.mrs.len(),
                dev.qps
            ));
        }
    }
}

/// Checks that the driver of `node` does not use a device that refuses work requests, and that LNet
/// knows.
fn gives_up(node: usize) {
    sched::sleep(60 * SEC);
    let refused = w().nodes[node].truth.refused_qps;
    // Other connections were up, or were attempts, beside the last one.
    if !(8..=16).contains(&refused) {
        violation(&format!(
            "{refused} connections ended because the device refuses work requests"
        ));
    }
    // SAFETY: NIs stay until the world ends.
    let fatal = active(node, 0).is_some_and(|ni| unsafe { (*ni).is_fatal() });
    if !fatal {
        violation("LNet was not told of a device that refuses work requests");
    }
}

/// Number of mappings that an interface reserves: for answers and for messages.
const RESERVED: usize = 2 * 8;

/// Compares the counters of the nodes with the true counts when all is quiet. Checks that the reserves are complete.
fn say_what_is(steps: &[Step], plan: &Plan, early: bool) {
    // Counters go with their NI.
    let goes = |step: &Step| {
        matches!(
            step.what,
            Happens::Unplug
                | Happens::Power
                | Happens::Reload
                | Happens::Restart
                | Happens::DeletedDry
        )
    };
    sched::sleep(5 * SEC);
    if !steps.iter().any(goes) && w().sg_reserved % RESERVED != 0 {
        violation(&format!(
            "{} mappings are reserved for a shortage of memory, and each interface begins with {RESERVED}",
            w().sg_reserved
        ));
    }
    for node in 0..plan.nodes.len() {
        let same = !early && !steps.iter().any(|step| step.node == node && goes(step));
        // A link may come back at another speed, and the tunables follow it.
        let tunes = |step: &Step| {
            matches!(
                step.what,
                Happens::Tune | Happens::LinkDown | Happens::LinkLost
            )
        };
        let tuned = steps.iter().any(tunes);
        let past = true_counts_check::Past {
            plan: plan.clone(),
            same,
            tuned,
            broken: steps.iter().any(|step| step.what == Happens::PortEvents),
        };
        let tid = sched::spawn(node, Kind::Process, "said", move || {
            true_counts_check::look(node, &past)
        });
        sched::join(tid);
    }
    if !byzantine::is_there() {
        true_counts_check::credits();
    }
}

/// Checks that no acknowledged PUT is lost. Its sender does not send it again, so LNet must have
/// got it, unless LNet or the NI there was gone meanwhile, or did not want it, or a queue pair
/// there went with its received messages. Messages of an earlier life of the sender do not count
/// once a new life begins.
fn nothing_lost(steps: &[Step]) {
    let gone = |step: &&Step| {
        matches!(
            step.what,
            Happens::Unplug
                | Happens::Power
                | Happens::Reload
                | Happens::Restart
                | Happens::DeletedDry
                | Happens::Deny
        )
    };
    let undrained = (0..w().nodes.len()).filter(|&node| w().nodes[node].truth.undrained);
    let excused: Vec<u64> = steps
        .iter()
        .filter(gone)
        .map(|step| step.node)
        .chain(undrained)
        .flat_map(|node| (0..slots(node)).map(move |slot| world::ip(node, slot)))
        .map(lnet::nid_of)
        .collect();
    let has_other_lives = |node| {
        // After an unplugged device the NI is deleted and added, too.
        let ends = |step: &Step| {
            matches!(
                step.what,
                Happens::Unplug
                    | Happens::Power
                    | Happens::Reload
                    | Happens::Restart
                    | Happens::DeletedDry
            )
        };
        steps.iter().any(|step| step.node == node && ends(step))
    };
    for (op, put) in w().lnet.ops.iter().enumerate() {
        let excused = excused.contains(&put.target) || has_other_lives(put.node);
        let sent = put.kind == lnet::PUT && put.sent == Some(0) && !excused;
        // LNet had no memory to put the data into.
        let kept = put.taken.is_none_or(|end| NO_ROOM.contains(&end));
        if sent && !(put.came && kept) {
            violation(&format!(
                "operation {op} was sent, and did not arrive: {:?}",
                put.taken
            ));
        }
    }
}

/// Status at the end of a received PUT whose sender got its ACK: LNet had it, and then there was no
/// memory, or the memory was a GPU's.
const NO_ROOM: [i32; 3] = [0, -(ENOMEM as i32), -(EOPNOTSUPP as i32)];

/// Ends the faults of the plan.
fn calm_down() {
    byzantine::end();
    let plan = &mut w().plan;
    plan.cm_lost_ppm = 0;
    plan.mute = 0..0;
    plan.cm_double_ppm = 0;
    plan.cm_late_ppm = 0;
    plan.no_match_ppm = 0;
    plan.keeps = false;
    plan.hoards = false;
    plan.cut_ppm = 0;
    plan.parse_error_ppm = 0;
    plan.send_error_ppm = 0;
    plan.slow_lnet_ppm = 0;
    plan.slow_wire_ppm = 0;
    let s = &mut w().sched;
    s.stall(0, 0);
    s.jump_ppm = 0;
}

/// Runs the world of a script.
pub fn run(script: Script, tell: bool) -> End {
    run_with(script, None, tell)
}

/// Runs the world with one of the nodes byzantine.
pub fn run_with(script: Script, foul: Option<byzantine::Foul>, tell: bool) -> End {
    world::begin(script.seed, script.plan.clone(), tell);
    w().foul = foul;
    let s = &mut w().sched;
    s.choose(script.policy);
    s.jump_ppm = script.jump_ppm;
    s.jump_max = script.jump_max;
    s.stall(script.stall_ppm, script.stall_max);
    if tell {
        say(&format!("{script:?}"));
    }
    sched::spawn(GOD, Kind::Process, "world", move || whole(script));
    sched::run(3_000_000, 1000 * SEC + 7200 * SEC);
    world::end()
}
