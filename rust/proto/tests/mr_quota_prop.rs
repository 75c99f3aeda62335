// SPDX-License-Identifier: GPL-2.0

//! Connections that need regions of a device, use them, and leave them idle: a connection with less than its share gets
//! one while another one with more has an idle one, and the quota is never exceeded.

use proptest::prelude::*;
use ro2iblnd_proto::policy::mr_quota::{
    bound,
    MrDemand, //
};

#[derive(Clone, Copy, Default, Debug)]
struct User {
    used: u32,
    idle: u32,
}

impl User {
    fn held(self) -> u32 {
        self.used + self.idle
    }
}

struct Device {
    bound: u32,
    users: Vec<User>,
}

impl Device {
    fn there(&self) -> u32 {
        self.users.iter().map(|u| u.held()).sum()
    }

    fn wants(&mut self, who: usize) -> bool {
        if self.users[who].idle > 0 {
            self.users[who].idle -= 1;
            self.users[who].used += 1;
            return true;
        }
        let need = MrDemand {
            bound: self.bound,
            there: self.there(),
            users: self.users.len() as u32,
            held: self.users[who].held(),
        };
        let got = match need.idle_from(false) {
            None => true,
            Some(least) => {
                let from = (0..self.users.len()).find(|i| {
                    *i != who && self.users[*i].idle > 0 && self.users[*i].held() >= least
                });
                if let Some(from) = from {
                    self.users[from].idle -= 1;
                }
                from.is_some()
            }
        };
        self.users[who].used += u32::from(got);
        got
    }
}

proptest! {
    #[test]
    fn every_connection_gets_its_share(
        max_mr in 1u32..200,
        users in 1usize..12,
        does in prop::collection::vec((0usize..12, any::<bool>()), 1..600),
    ) {
        let mut device = Device { bound: bound(max_mr), users: vec![User::default(); users] };
        let share = device.bound / users as u32;
        for (who, takes) in does {
            let who = who % users;
            let user = device.users[who];
            if !takes {
                if user.used > 0 {
                    device.users[who].used -= 1;
                    device.users[who].idle += 1;
                }
                continue;
            }
            let excess_is_used = device
                .users
                .iter()
                .all(|u| u.held() <= share || u.idle == 0);
            let room = device.there() < device.bound;
            let got = device.wants(who);
            prop_assert!(device.there() <= device.bound);
            if user.held() < share && (room || !excess_is_used) {
                prop_assert!(got, "{user:?} of {:?} got none", device.users);
            }
        }
    }
}
