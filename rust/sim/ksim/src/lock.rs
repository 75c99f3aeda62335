// SPDX-License-Identifier: GPL-2.0

//! Locks with the checks of lockdep, and completions.
//!
//! Two locks of one class are one lock for lockdep. The checks: no two classes are ever taken in
//! both orders; no task sleeps with a spin lock or in a softirq; a lock that a softirq takes is
//! taken elsewhere with bottom halves off.

use std::ffi::CStr;

use crate::{
    decl::k::*,
    sched::{
        self,
        Kind,
        MS, //
    },
    world::{
        violation,
        w, //
    }, //
};

/// Lock that a task holds.
#[derive(Clone, Copy)]
pub struct Held {
    lock: usize,
    class: usize,
    name: *const u8,
    spin: bool,
    bh: bool,
}

impl core::fmt::Debug for Held {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&text(self.name))
    }
}

fn text(name: *const u8) -> String {
    if name.is_null() {
        return "?".into();
    }
    // SAFETY: Names of classes are static.
    unsafe { CStr::from_ptr(name.cast()) }
        .to_string_lossy()
        .into_owned()
}

#[derive(Default)]
struct Class {
    /// Classes that were taken while this class was held.
    then: Set,
    in_softirq: bool,
    bh_on: bool,
}

/// Set of classes by their number.
#[derive(Clone, Copy, Default)]
struct Set([u64; 2]);

/// Upper limit of the number of classes.
const CLASSES: usize = 128;

impl Set {
    fn has(&self, class: usize) -> bool {
        self.0[class / 64] >> (class % 64) & 1 != 0
    }

    fn add(&mut self, class: usize) {
        self.0[class / 64] |= 1 << (class % 64);
    }
}

/// Classes of the locks of a world, and their order.
pub struct Classes {
    /// Key of each class and its number plus 1, by a hash of the key; 0: free.
    numbers: [(usize, u32); 2 * CLASSES],
    known: Vec<Class>,
    /// Number of locks taken.
    pub taken: u64,
}

impl Default for Classes {
    fn default() -> Self {
        Self {
            numbers: [(0, 0); 2 * CLASSES],
            known: Vec::with_capacity(CLASSES / 4),
            taken: 0,
        }
    }
}

impl Classes {
    /// Returns the number of a lock's class. The lock stores it, because it does not outlive the
    /// world.
    #[inline]
    fn number_of(&mut self, lock: &mut spinlock_t) -> usize {
        if lock.number == 0 {
            lock.number = self.number(lock.class) as u32 + 1;
        }
        lock.number as usize - 1
    }

    /// Returns the number of the class with that key.
    fn number(&mut self, key: usize) -> usize {
        let mut at = (key >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        loop {
            let (there, number) = self.numbers[at];
            if number == 0 {
                break;
            }
            if there == key {
                return number as usize - 1;
            }
            at = (at + 1) % self.numbers.len();
        }
        self.known.push(Class::default());
        assert!(self.known.len() <= CLASSES, "more classes of locks");
        self.numbers[at] = (key, self.known.len() as u32);
        self.known.len() - 1
    }

    #[cold]
    fn leads(&self, from: usize, to: usize) -> bool {
        let mut todo = vec![from];
        let mut seen = Set::default();
        while let Some(class) = todo.pop() {
            if class == to {
                return true;
            }
            if !seen.has(class) {
                seen.add(class);
                let then = &self.known[class].then;
                todo.extend((0..self.known.len()).filter(|c| then.has(*c)));
            }
        }
        false
    }
}

/// Checks the rules before a lock is taken. Returns its class.
#[inline]
fn asks(lock: *mut spinlock_t, spin: bool, bh: bool) -> usize {
    let world = w();
    let Some(task) = world.sched.tasks.get(world.sched.current) else {
        violation("an event takes a lock");
    };
    // SAFETY: The caller has a valid lock.
    let class = world.classes.number_of(unsafe { &mut *lock });
    // SAFETY: As above.
    let name = unsafe { (*lock).name };
    let softirq = task.kind == Kind::Softirq;
    let mut off = bh || softirq;
    for held in &task.held {
        if held.lock == lock as usize {
            violation(&format!("takes {} again", text(name)));
        }
        off |= held.bh;
    }
    if !spin {
        might_sleep("mutex_lock");
    } else {
        let known = &mut world.classes.known[class];
        known.in_softirq |= softirq;
        known.bh_on |= !off;
        if known.in_softirq && known.bh_on {
            violation(&format!(
                "{} is taken in a softirq, and elsewhere with bottom halves on",
                text(name)
            ));
        }
    }
    for held in &task.held {
        if held.class == class {
            violation(&format!("two locks of the class {} at a time", text(name)));
        }
        let known = &mut world.classes.known[held.class];
        if known.then.has(class) {
            continue;
        }
        known.then.add(class);
        if world.classes.leads(class, held.class) {
            violation(&format!(
                "lock order: {} is taken with {} held, and elsewhere the other way round",
                text(name),
                text(held.name)
            ));
        }
    }
    class
}

#[inline]
fn has(lock: *mut spinlock_t, class: usize, spin: bool, bh: bool) {
    let world = w();
    let tid = world.sched.current;
    world.classes.taken += 1;
    // SAFETY: The caller has a valid lock.
    let name = unsafe {
        (*lock).owner = tid + 1;
        (*lock).name
    };
    world.sched.tasks[tid].held.push(Held {
        lock: lock as usize,
        class,
        name,
        spin,
        bh,
    });
}

/// Takes a lock.
pub fn take(lock: *mut spinlock_t, spin: bool, bh: bool) {
    sched::point();
    let class = asks(lock, spin, bh);
    // SAFETY: The caller has a valid lock.
    while unsafe { (*lock).owner } != 0 {
        // SAFETY: As above.
        unsafe { (*lock).wanted = 1 };
        sched::sleep_on(lock as usize);
    }
    has(lock, class, spin, bh);
}

/// Takes a lock if it is free.
pub fn try_take(lock: *mut spinlock_t, spin: bool, bh: bool) -> bool {
    sched::point();
    // SAFETY: The caller has a valid lock.
    if unsafe { (*lock).owner } != 0 {
        return false;
    }
    // SAFETY: As above.
    let class = w().classes.number_of(unsafe { &mut *lock });
    has(lock, class, spin, bh);
    true
}

/// Releases a lock.
pub fn give(lock: *mut spinlock_t) {
    let s = &mut w().sched;
    let tid = s.current;
    // SAFETY: The caller has a valid lock.
    if unsafe { (*lock).owner } != tid + 1 {
        // SAFETY: As above.
        violation(&format!(
            "{} is given back by another",
            text(unsafe { (*lock).name })
        ));
    }
    // SAFETY: As above.
    unsafe { (*lock).owner = 0 };
    let held = &mut s.tasks[tid].held;
    // A task holds a lock once, and nearly always releases the last one first.
    match held.last() {
        Some(last) if last.lock == lock as usize => drop(held.pop()),
        _ => held.retain(|h| h.lock != lock as usize),
    }
    // SAFETY: As above. A task that sleeps on the lock has set the word, also if it was killed
    // meanwhile.
    if unsafe { core::mem::replace(&mut (*lock).wanted, 0) } != 0 {
        sched::wake_all(lock as usize);
    }
    sched::point();
}

/// Returns whether the current task holds the lock.
pub fn mine(lock: *const spinlock_t) -> bool {
    // SAFETY: The caller has a valid lock.
    unsafe { (*lock).owner == w().sched.current + 1 }
}

/// Creates a lock for the simulated C.
pub fn new(class: &'static CStr) -> spinlock_t {
    spinlock_t {
        owner: 0,
        class: class.as_ptr() as usize,
        name: class.as_ptr().cast(),
        number: 0,
        wanted: 0,
    }
}

/// Checks that the current task, which may wait for memory here, holds no mutex of this class: NIs that have to clean
/// pages take it.
pub fn may_wait_for_memory(class: &str) {
    let s = &w().sched;
    if s.tasks[s.current]
        .held
        .iter()
        .any(|h| text(h.name) == class)
    {
        violation(&format!("waits for memory and holds {class}"));
    }
}

/// Checks that the current task may sleep here.
pub fn might_sleep(what: &str) {
    let s = &w().sched;
    let Some(task) = s.tasks.get(s.current) else {
        violation(&format!("{what} in an event"));
    };
    if task.kind == Kind::Softirq {
        violation(&format!("{what} sleeps in a softirq"));
    }
    if let Some(held) = task.held.iter().find(|h| h.spin) {
        violation(&format!("{what} sleeps with the spin lock {held:?}"));
    }
    if task.rcu != 0 {
        violation(&format!("{what} sleeps in an RCU read section"));
    }
}

/// Checks that the current task holds no lock of the driver.
pub fn no_spin_lock(what: &str) {
    might_sleep(what);
}

/// Checks that the current task, in a softirq or not, holds no spin lock: the operation may take
/// long.
pub fn takes_long(what: &str) {
    let s = &w().sched;
    let task = s.tasks.get(s.current);
    if let Some(held) = task.and_then(|task| task.held.iter().find(|h| h.spin)) {
        violation(&format!("{what} with the spin lock {held:?}"));
    }
}

fn init(lock: *mut spinlock_t, name: *const u8, key: *mut lock_class_key) {
    // SAFETY: By the contract of the caller.
    unsafe {
        lock.write(spinlock_t {
            owner: 0,
            class: key as usize,
            name,
            number: 0,
            wanted: 0,
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_spin_lock_init(
    l: *mut spinlock_t,
    name: *const u8,
    key: *mut lock_class_key,
) {
    init(l, name, key);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_spin_lock(l: *mut spinlock_t) {
    take(l, true, false);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_spin_trylock(l: *mut spinlock_t) -> bool {
    try_take(l, true, false)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_spin_unlock(l: *mut spinlock_t) {
    give(l);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_spin_assert_held(l: *mut spinlock_t) {
    if !mine(l) {
        violation("a spin lock should be held");
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_mutex_lock_init(
    l: *mut mutex,
    name: *const u8,
    key: *mut lock_class_key,
) {
    // SAFETY: By the contract of this function.
    init(unsafe { &raw mut (*l).lock }, name, key);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_mutex_lock(l: *mut mutex) {
    // SAFETY: By the contract of this function.
    take(unsafe { &raw mut (*l).lock }, false, false);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_mutex_trylock(l: *mut mutex) -> bool {
    // SAFETY: By the contract of this function.
    try_take(unsafe { &raw mut (*l).lock }, false, false)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_mutex_unlock(l: *mut mutex) {
    // SAFETY: By the contract of this function.
    give(unsafe { &raw mut (*l).lock });
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_mutex_assert_held(l: *mut mutex) {
    // SAFETY: By the contract of this function.
    if !mine(unsafe { &raw const (*l).lock }) {
        violation("a mutex should be held");
    }
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_spin_lock_bh(l: *mut spinlock_t) {
    take(l, true, true);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_spin_trylock_bh(l: *mut spinlock_t) -> i32 {
    try_take(l, true, true).into()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_spin_unlock_bh(l: *mut spinlock_t) {
    give(l);
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_spin_assert_held(l: *mut spinlock_t) {
    if !mine(l) {
        violation("a spin lock should be held");
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_init_completion(x: *mut completion) {
    // SAFETY: By the contract of this function.
    unsafe { x.write(completion { done: 0 }) };
}
#[no_mangle]
pub unsafe extern "C" fn complete_all(x: *mut completion) {
    // SAFETY: By the contract of this function.
    unsafe { (*x).done = 1 };
    sched::wake_all(x as usize);
    sched::point();
}
#[no_mangle]
pub unsafe extern "C" fn wait_for_completion(x: *mut completion) {
    might_sleep("wait_for_completion");
    // SAFETY: By the contract of this function.
    while unsafe { (*x).done } == 0 {
        sched::sleep_on(x as usize);
    }
}
#[no_mangle]
pub unsafe extern "C" fn wait_for_completion_timeout(x: *mut completion, timeout: usize) -> usize {
    might_sleep("wait_for_completion_timeout");
    let until = sched::now() + timeout as u64 * MS;
    // SAFETY: By the contract of this function.
    while unsafe { (*x).done } == 0 {
        if !sched::sleep_until_on(x as usize, Some(until)) {
            // SAFETY: As above.
            return unsafe { (*x).done };
        }
    }
    1
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_memalloc_nofs_save() -> u32 {
    let s = &mut w().sched;
    let task = &mut s.tasks[s.current];
    task.nofs += 1;
    task.nofs - 1
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_memalloc_nofs_restore(flags: u32) {
    let s = &mut w().sched;
    s.tasks[s.current].nofs = flags;
}
