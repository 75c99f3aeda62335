// SPDX-License-Identifier: GPL-2.0

//! A data race on purpose, which shows that a kernel that looks for races finds races of Rust code. It runs in such a
//! kernel only, because it is undefined behaviour. `tests-vm/test_kcsan_works.py` looks for the report in the log.

use core::cell::UnsafeCell;

use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::rdma::work::{
    OwnedQueue,
    QueueKind, //
};

/// Rounds of a work item. The kernel watches one of some thousand accesses.
const ROUNDS: u32 = 200_000;

/// Numbers that two work items change at the same time.
struct Shared {
    raced: UnsafeCell<u32>,
    told: Atomic<u32>,
}

// SAFETY: It is not: that is what it is for. `told` is what is looked at.
unsafe impl Sync for Shared {}

#[pin_data]
struct Racer {
    shared: Arc<Shared>,
    atomic: bool,
    #[pin]
    work: Work<Racer>,
}

impl_has_work! {
    impl HasWork<Self> for Racer { self.work }
}

impl WorkItem for Racer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for _ in 0..ROUNDS {
            if this.atomic {
                let _ = this.shared.told.fetch_add(1, Relaxed);
            } else {
                changes_what_another_changes(&this.shared);
            }
        }
    }
}

/// Adds 1 without a lock. The kernel's report contains the name of this function.
#[inline(never)]
fn changes_what_another_changes(shared: &Shared) {
    // SAFETY: None: another CPU does the same, and does not wait.
    unsafe { *shared.raced.get() = (*shared.raced.get()).wrapping_add(1) };
}

/// Runs two work items at the same time. Returns the numbers that they have changed.
fn race(atomic: bool) -> Result<Arc<Shared>> {
    let shared = Arc::new(
        Shared {
            raced: UnsafeCell::new(0),
            told: Atomic::new(0),
        },
        GFP_KERNEL,
    )?;
    let queue = OwnedQueue::new(c"ro2iblnd_test", QueueKind::Unbound, false, 0)?;

    for _ in 0..2 {
        let shared = shared.clone();
        let racer = Arc::pin_init(
            pin_init!(Racer {
                shared,
                atomic,
                work <- new_work!("Racer::work"),
            }),
            GFP_KERNEL,
        )?;

        assert!(queue.enqueue::<Racer, 0>(racer));
    }
    queue.flush();
    Ok(shared)
}

#[kunit_tests(ro2iblnd_races)]
mod tests {
    use super::*;

    #[test]
    fn atomic_access_is_no_race() -> Result {
        assert!(race(true)?.told.load(Relaxed) == 2 * ROUNDS);
        Ok(())
    }

    #[test]
    fn a_race_is_one() -> Result {
        let _ = race(false)?;
        Ok(())
    }
}
