// SPDX-License-Identifier: GPL-2.0

//! Tests of the interfaces of the `kernel` crate that the driver uses. The driver is built with the
//! kernel's own crate or with `rust/kernel/`, and both have to pass the same tests.

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    impl_has_work,
    new_mutex,
    new_spinlock,
    new_work,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    types::ForeignOwnable,
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::rdma::{
    sync::{
        new_spinlock_bh,
        Completion,
        SpinLockBh, //
    },
    work::{
        online_cpu,
        OwnedQueue,
        QueueKind, //
    }, //
};

/// Value that counts its live instances.
struct Counted(Arc<Atomic<i32>>);

impl Counted {
    fn new(live: &Arc<Atomic<i32>>) -> Self {
        live.fetch_add(1, Relaxed);
        Self(live.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn counter() -> Result<Arc<Atomic<i32>>> {
    Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
}

/// How often each side of a race takes a lock.
const ROUNDS: u32 = 50_000;

/// Counters that two CPUs change, one under each kind of lock and one without a lock.
#[pin_data]
struct Race {
    #[pin]
    spin: SpinLock<u32>,
    #[pin]
    bh: SpinLockBh<u32>,
    #[pin]
    mutex: Mutex<u32>,
    bare: Atomic<u32>,
    /// Number of CPUs that hold the lock, which is made of this atomic only.
    inside: Atomic<u32>,
    met: Atomic<bool>,
    #[pin]
    done: Completion,
    #[pin]
    other: Work<Race>,
}

impl_has_work! {
    impl HasWork<Self> for Race { self.other }
}

impl WorkItem for Race {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.count();
        this.done.complete_all();
    }
}

impl Race {
    fn count(&self) {
        for _ in 0..ROUNDS {
            *self.spin.lock() += 1;
            *self.bh.lock() += 1;
            *self.mutex.lock() += 1;
            self.bare.fetch_add(1, Relaxed);
            // A lock made of an atomic: no other CPU may be inside.
            if self.inside.cmpxchg(0, 1, Acquire).is_ok() {
                if self.inside.load(Relaxed) != 1 {
                    self.met.store(true, Relaxed);
                }
                self.inside.store(0, Release);
            }
        }
    }
}

/// Larger than its alignment, and no power of two.
#[repr(C, align(1024))]
struct Aligned([u8; 3072]);

/// Aligned to more than a page.
#[repr(C, align(16384))]
struct Pages([u8; 16384]);

#[kunit_tests(kernel_crate)]
mod tests {
    use super::*;

    #[test]
    fn an_arc_is_dropped_once_by_the_last() -> Result {
        let live = counter()?;
        let first = Arc::new(Counted::new(&live), GFP_KERNEL)?;
        let second = first.clone();

        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert!(live.load(Relaxed) == 1);
        let raw = Arc::into_raw(second);
        // SAFETY: It comes from `into_raw`, and is taken back once.
        let back = unsafe { Arc::from_raw(raw) };
        let borrowed: Arc<Counted> = back.as_arc_borrow().into();
        drop(back);
        assert!(live.load(Relaxed) == 1);
        let foreign = borrowed.into_foreign();
        // SAFETY: It comes from `into_foreign`, and is taken back once.
        drop(unsafe { <Arc<Counted> as ForeignOwnable>::from_foreign(foreign) });
        assert!(live.load(Relaxed) == 0);
        Ok(())
    }

    #[test]
    fn only_the_last_arc_becomes_unique() -> Result {
        let live = counter()?;
        let first = Arc::new(Counted::new(&live), GFP_KERNEL)?;
        let second = first.clone();

        assert!(Arc::into_unique_or_drop(first).is_none());
        let unique = Arc::into_unique_or_drop(second);
        assert!(unique.is_some());
        assert!(live.load(Relaxed) == 1);
        drop(unique);
        assert!(live.load(Relaxed) == 0);
        Ok(())
    }

    #[test]
    fn a_failed_initialiser_leaves_nothing() -> Result {
        let live = counter()?;
        let of = live.clone();
        let made = Arc::pin_init(
            try_pin_init!(Race {
                spin <- new_spinlock!(Counted::new(&of).0.load(Relaxed) as u32),
                bh <- new_spinlock_bh!(0),
                mutex <- new_mutex!(0),
                bare: Atomic::new(0),
                inside: Atomic::new(0),
                met: Err(ENODATA)?,
                done <- Completion::new(),
                other <- new_work!(),
            }),
            GFP_KERNEL,
        );

        assert!(matches!(made, Err(e) if e == ENODATA));
        assert!(live.load(Relaxed) == 0);
        Ok(())
    }

    #[test]
    fn locks_keep_two_cpus_apart() -> Result {
        let queue = OwnedQueue::new(c"ro2iblnd_test", QueueKind::PerCpu, false, 0)?;
        let race = Arc::pin_init(
            pin_init!(Race {
                spin <- new_spinlock!(0, "Race::spin"),
                bh <- new_spinlock_bh!(0, "Race::bh"),
                mutex <- new_mutex!(0, "Race::mutex"),
                bare: Atomic::new(0),
                inside: Atomic::new(0),
                met: Atomic::new(false),
                done <- Completion::new(),
                other <- new_work!("Race::other"),
            }),
            GFP_KERNEL,
        )?;

        // On another CPU, wherever this one runs, if there are two.
        assert!(queue.enqueue_on::<Race, 0>(online_cpu(1), race.clone()));
        race.count();
        race.done.wait();
        assert!(*race.spin.lock() == 2 * ROUNDS);
        assert!(*race.bh.lock() == 2 * ROUNDS);
        assert!(*race.mutex.lock() == 2 * ROUNDS);
        assert!(race.bare.load(Relaxed) == 2 * ROUNDS);
        assert!(!race.met.load(Relaxed));
        Ok(())
    }

    #[test]
    fn a_held_lock_cannot_be_tried() -> Result {
        let spin = KBox::pin_init(new_spinlock!(1, "spin"), GFP_KERNEL)?;
        let mutex = KBox::pin_init(new_mutex!(1, "mutex"), GFP_KERNEL)?;
        let held = mutex.lock();

        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
        let free = spin.try_lock().is_some();
        assert!(free);
        Ok(())
    }

    #[test]
    fn atomics_return_the_old_value() -> Result {
        let n = Atomic::<u32>::new(u32::MAX);
        let flag = Atomic::<bool>::new(false);
        let wide = Atomic::<u64>::new(1 << 40);

        assert!(n.fetch_add(2, Full) == u32::MAX);
        assert!(n.fetch_sub(2, Release) == 1);
        assert!(n.xchg(7, Full) == u32::MAX);
        assert!(n.cmpxchg(7, 8, Full) == Ok(7));
        assert!(n.cmpxchg(7, 9, Full) == Err(8));
        assert!(n.load(Acquire) == 8);
        assert!(!flag.xchg(true, Full));
        assert!(flag.xchg(false, Relaxed));
        assert!(wide.fetch_add(1, Relaxed) == 1 << 40);
        Ok(())
    }

    #[test]
    fn time_passes() -> Result {
        let then = Instant::<Monotonic>::now();

        // Short enough for a timer of high resolution: a delay in jiffies may end early where ticks come late.
        fsleep(Delta::from_millis(2));
        assert!(then.elapsed() >= Delta::from_millis(2));
        assert!(then.elapsed().as_millis() >= 2);
        assert!(then.elapsed() < Delta::from_millis(60_000));
        assert!(msecs_to_jiffies(0) == 0);
        assert!(msecs_to_jiffies(1) >= 1);
        assert!(msecs_to_jiffies(10_000) >= 10 * msecs_to_jiffies(900));
        assert!(Delta::from_micros(1).as_nanos() == 1000);
        Ok(())
    }

    #[test]
    fn a_vector_keeps_order_and_drops_all() -> Result {
        let live = counter()?;
        let mut v = KVec::new();

        for _ in 0..10 {
            v.push(Counted::new(&live), GFP_KERNEL)?;
        }
        v.truncate(8);
        assert!(live.load(Relaxed) == 8);
        drop(v.pop());
        assert!(v.len() == 7);
        for (i, item) in v.drain_all().enumerate() {
            if i == 3 {
                drop(item);
                break;
            }
        }
        assert!(live.load(Relaxed) == 0);
        let mut numbers = KVec::with_capacity(3, GFP_KERNEL)?;
        for n in [5, 6, 7] {
            assert!(numbers.push_within_capacity(n).is_ok());
        }
        numbers.retain(|n| *n != 6);
        assert!(numbers[..] == [5, 7]);
        let large = KVVec::from_elem(9u8, 1 << 20, GFP_KERNEL)?;
        assert!(large.iter().all(|b| *b == 9));
        Ok(())
    }

    #[test]
    fn memory_is_aligned() -> Result {
        for _ in 0..8 {
            let b = KBox::new(Aligned([1; 3072]), GFP_KERNEL)?;
            assert!(core::ptr::from_ref(&*b).addr() % 1024 == 0);
            assert!(b.0[3071] == 1);
        }
        Ok(())
    }

    #[test]
    fn mapped_memory_is_aligned_or_refused() {
        // More than `kmalloc()` has. Pages are mapped at any page.
        for _ in 0..8 {
            if let Ok(v) = KVVec::<Pages>::with_capacity(512, GFP_KERNEL | __GFP_NOWARN) {
                assert!(v.as_ptr().addr() % 16384 == 0);
            }
        }
        assert!(size_of::<Pages>() == Pages([0; 16384]).0.len());
    }

    #[test]
    fn oversized_allocation_fails() {
        assert!(KVec::<u64>::with_capacity(usize::MAX, GFP_KERNEL).is_err());
        assert!(KVec::<u64>::with_capacity(1 << 40, GFP_KERNEL | __GFP_NOWARN).is_err());
        assert!(KVVec::<u64>::with_capacity(1 << 50, GFP_KERNEL | __GFP_NOWARN).is_err());
        let mut v = KVec::<u8>::new();
        assert!(v.push_within_capacity(1).is_err());
        assert!(v.reserve(usize::MAX, GFP_KERNEL).is_err());
        assert!(v.push(1, GFP_KERNEL).is_ok());
    }

    #[test]
    fn strings_are_checked() -> Result {
        let s = CString::try_from_fmt(fmt!("{}-{}", 1, "two"))?;

        assert!(s.to_bytes() == b"1-two");
        assert!(CString::try_from_fmt(fmt!("a\0b")).is_err());
        Ok(())
    }

    #[test]
    fn errnos_come_through() {
        assert!(to_result(0).is_ok());
        assert!(to_result(7).is_ok());
        assert!(to_result(-12) == Err(ENOMEM));
        assert!(ENOMEM.to_errno() == -12);
        assert!(Error::from_errno(-110) == ETIMEDOUT);
        let bad = core::ptr::without_provenance_mut::<u8>(-22isize as usize);
        assert!(from_err_ptr(bad) == Err(EINVAL));
        let good = core::ptr::without_provenance_mut::<u8>(4096);
        assert!(from_err_ptr(good).is_ok());
    }

    #[test]
    fn the_task_has_a_number() {
        assert!(kernel::current!().pid() > 0);
    }
}
