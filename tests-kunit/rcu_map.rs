// SPDX-License-Identifier: GPL-2.0

//! Maps whose readers take no lock.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use crate::rdma::{
    rcu_map::{
        rcu_barrier,
        MapWalk,
        RcuMap, //
    },
    work::{
        OwnedQueue,
        QueueKind, //
    }, //
};

/// Object with a number, which counts its live instances.
struct Numbered(u64, Arc<Atomic<i32>>);

impl Drop for Numbered {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Relaxed);
    }
}

/// Adds a new object to a map, with its key as its number.
fn add(map: &RcuMap<Numbered>, key: u32, live: &Arc<Atomic<i32>>) -> Result<Arc<Numbered>> {
    live.fetch_add(1, Relaxed);
    let object = Arc::new(Numbered(key.into(), live.clone()), GFP_KERNEL)?;
    map.add(key, &object)?;
    Ok(object)
}

#[::kernel::macros::kunit_tests(ro2iblnd_rcu_map)]
mod tests {
    use super::*;

    const KEYS: [u32; 5] = [0, 1, 0x0a00_0001, 0xc0a8_0001, u32::MAX];

    #[test]
    fn objects_are_found_until_they_are_removed() -> Result {
        let live = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let queue = OwnedQueue::new(c"ro2iblnd_kunit", QueueKind::Unbound, false, 0)?;
        let map = RcuMap::new()?;
        for key in KEYS.iter().rev() {
            assert!(map.get(*key).is_none());
            drop(add(&map, *key, &live)?);
            assert!(add(&map, *key, &live).err() == Some(EEXIST));
        }
        assert!(live.load(Relaxed) == 5);
        for key in KEYS {
            assert!(map.with(key, |object| object.0) == Some(key.into()));
        }
        let one = map.get(1).ok_or(ENOENT)?;
        // Another key does not have it.
        map.remove(0, &one, &queue);
        assert!(map.get(0).is_some());
        map.remove(1, &one, &queue);
        assert!(map.get(1).is_none());
        // The object remains while a caller has it, and is dropped after a grace period otherwise.
        rcu_barrier();
        queue.flush();
        assert!(live.load(Relaxed) == 5);
        drop(one);
        assert!(live.load(Relaxed) == 4);
        let last = map.get(u32::MAX).ok_or(ENOENT)?;
        map.remove(u32::MAX, &last, &queue);
        drop(last);
        rcu_barrier();
        queue.flush();
        assert!(live.load(Relaxed) == 3);
        // The map drops the others.
        drop(map);
        assert!(live.load(Relaxed) == 0);
        Ok(())
    }

    #[test]
    fn a_walk_is_in_the_order_of_the_keys() -> Result {
        let live = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let queue = OwnedQueue::new(c"ro2iblnd_kunit", QueueKind::Unbound, false, 0)?;
        let map = RcuMap::new()?;
        for key in KEYS.iter().rev() {
            drop(add(&map, *key, &live)?);
        }
        let mut keys = KEYS.iter();
        map.for_each(|object| assert!(keys.next().is_some_and(|key| object.0 == (*key).into())));
        assert!(keys.next().is_none());
        // A walk goes on behind an object that was removed.
        let mut walk = MapWalk::default();
        let first = map.next(&mut walk).ok_or(ENOENT)?;
        map.remove(0, &first, &queue);
        assert!(map.next(&mut walk).is_some_and(|object| object.0 == 1));
        // Before the end of the queue.
        rcu_barrier();
        Ok(())
    }

    #[test]
    fn a_closed_map_takes_no_object() -> Result {
        let live = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let map = RcuMap::new()?;
        drop(add(&map, 7, &live)?);
        map.close();
        assert!(add(&map, 8, &live).err() == Some(ESHUTDOWN));
        assert!(map.get(8).is_none());
        assert!(map.get(7).is_some());
        Ok(())
    }
}
