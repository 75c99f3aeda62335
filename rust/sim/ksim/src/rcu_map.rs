// SPDX-License-Identifier: GPL-2.0

//! Map whose readers take no lock (`rust/helpers/rcu_map.c`), and grace periods.
//!
//! A grace period ends when every task that was in a read section has left it.

use std::collections::BTreeMap;

use crate::{
    decl::{
        k::*,
        r::ro2ib_rcu_map, //
    },
    lock,
    mem,
    sched::{
        self,
        Kind,
        Tid,
        MS, //
    },
    world::{
        self,
        violation,
        w, //
    }, //
};

const ENOMEM: i32 = -12;
const EEXIST: i32 = -17;
const ESHUTDOWN: i32 = -108;

/// Map of a node.
struct Map {
    objects: BTreeMap<u32, usize>,
    closed: bool,
}

fn map(map: *mut ro2ib_rcu_map) -> &'static mut Map {
    // SAFETY: The driver passes a map that it has created and not destroyed.
    unsafe { &mut *map.cast() }
}

/// Begins a read section of the current task.
fn begin_read() {
    sched::point();
    let world = w();
    let tid = world.sched.current;
    let task = &mut world.sched.tasks[tid];
    task.rcu += 1;
    if task.rcu == 1 {
        world.rcu_readers.push(tid);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_create() -> *mut ro2ib_rcu_map {
    lock::might_sleep("kzalloc");
    if world::fails(world::Fault::Alloc) {
        return core::ptr::null_mut();
    }
    let p: *mut Map = mem::get_for_node(size_of::<Map>(), align_of::<Map>(), 0).cast();
    // SAFETY: The memory has its size.
    unsafe {
        p.write(Map {
            objects: BTreeMap::new(),
            closed: false,
        });
    }
    p.cast()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_destroy(m: *mut ro2ib_rcu_map) {
    if !map(m).objects.is_empty() {
        violation("a map with objects is destroyed");
    }
    mem::put(m.cast());
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_begin(m: *mut ro2ib_rcu_map, key: u32) -> *mut c_void {
    begin_read();
    map(m).objects.get(&key).map_or(0, |p| *p) as *mut c_void
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_begin_at(
    m: *mut ro2ib_rcu_map,
    key: *mut u32,
) -> *mut c_void {
    begin_read();
    // SAFETY: The driver passes a valid key.
    let key = unsafe { &mut *key };
    let Some((at, p)) = map(m).objects.range(*key..).next() else {
        return core::ptr::null_mut();
    };
    *key = *at;
    *p as *mut c_void
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_end() {
    let world = w();
    let tid = world.sched.current;
    let task = &mut world.sched.tasks[tid];
    task.rcu -= 1;
    if task.rcu == 0 {
        world.rcu_readers.retain(|reader| *reader != tid);
    }
    sched::point();
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_add(
    m: *mut ro2ib_rcu_map,
    key: u32,
    object: *mut c_void,
) -> i32 {
    lock::might_sleep("xa_reserve");
    sched::point();
    if world::fails(world::Fault::Alloc) {
        return ENOMEM;
    }
    let map = map(m);
    if map.closed {
        return ESHUTDOWN;
    }
    if map.objects.contains_key(&key) {
        return EEXIST;
    }
    map.objects.insert(key, object as usize);
    0
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_remove(
    m: *mut ro2ib_rcu_map,
    key: u32,
    object: *mut c_void,
) -> bool {
    sched::point();
    let objects = &mut map(m).objects;
    let has = objects.get(&key) == Some(&(object as usize));
    if has {
        objects.remove(&key);
    }
    has
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_map_close(m: *mut ro2ib_rcu_map) {
    sched::point();
    map(m).closed = true;
}

/// Waits until each task that is in a read section now has left it.
fn grace_period() {
    let reads = |tid: &Tid| !sched::is_done(*tid) && w().sched.tasks[*tid].rcu != 0;
    let all = &mut w().rcu_readers;
    // A task that lost its power in a read section has ended.
    all.retain(reads);
    let readers = all.clone();
    while readers.iter().any(reads) {
        sched::sleep(MS);
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_drop(
    object: *mut c_void,
    drop: Option<unsafe extern "C" fn(object: *mut c_void)>,
    _wq: *mut workqueue_struct,
) {
    lock::might_sleep("synchronize_rcu");
    let Some(drop) = drop else { return };
    let node = sched::node();
    let dropped = move || {
        grace_period();
        // SAFETY: The driver has passed the function for this object.
        unsafe { drop(object) };
    };
    let tid = sched::spawn(node, Kind::Process, "rcu", dropped);
    let drops = &mut w().rcu_drops;
    drops.retain(|(_, tid)| !sched::is_done(*tid));
    drops.push((node, tid));
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_rcu_barrier() {
    lock::might_sleep("rcu_barrier");
    let here = sched::node();
    while let Some((_, tid)) = w()
        .rcu_drops
        .iter()
        .find(|(node, _)| *node == here)
        .copied()
    {
        sched::join(tid);
        w().rcu_drops.retain(|drop| drop.1 != tid);
    }
}
