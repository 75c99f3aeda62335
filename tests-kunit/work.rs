// SPDX-License-Identifier: GPL-2.0

//! Work queues and what they do with references.

use kernel::{
    impl_has_delayed_work,
    impl_has_work,
    new_delayed_work,
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Release, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};

use crate::rdma::{
    sync::Completion,
    work::{
        cancel,
        cancel_sync,
        delayed_items,
        mod_delayed,
        online_cpu,
        queue_delayed,
        work_items,
        DelayedItem,
        NofsScope,
        OwnedQueue,
        QueueKind, //
    }, //
};

const NOW: u64 = 1;
const LATER: u64 = 2;

#[pin_data]
struct Item {
    queue: Arc<OwnedQueue>,
    ran: Atomic<u32>,
    #[pin]
    done: Completion,
    #[pin]
    now: Work<Item, NOW>,
    #[pin]
    later: DelayedWork<Item, LATER>,
}

work_items!(Item: NOW in now => run_now);
delayed_items!(Item, |item| &item.queue, LATER in later => run_later);

impl Item {
    fn run_now(&self) {
        self.ran.store(1, Release);
        self.done.complete_all();
    }

    fn run_later(&self) {
        self.ran.store(2, Release);
        self.done.complete_all();
    }
}

/// Wants to run again each time it has run, and takes its time.
#[pin_data]
struct Stubborn {
    queue: Arc<OwnedQueue>,
    #[pin]
    begun: Completion,
    #[pin]
    again: DelayedWork<Stubborn>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Stubborn { self.again }
}

impl DelayedItem for Stubborn {
    fn queue(&self) -> &OwnedQueue {
        &self.queue
    }
}

impl WorkItem for Stubborn {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.begun.complete_all();
        fsleep(Delta::from_millis(50));
        mod_delayed::<Self, 0>(this.clone(), 60_000);
    }
}

/// Runs until it may go.
#[pin_data]
struct Held {
    #[pin]
    begun: Completion,
    #[pin]
    go: Completion,
    #[pin]
    work: Work<Held>,
}

impl_has_work! {
    impl HasWork<Self> for Held { self.work }
}

impl WorkItem for Held {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.begun.complete_all();
        this.go.wait();
    }
}

fn held() -> Result<Arc<Held>> {
    Arc::pin_init(
        pin_init!(Held {
            begun <- Completion::new(),
            go <- Completion::new(),
            work <- new_work!("Held::work"),
        }),
        GFP_KERNEL,
    )
}

fn queue(kind: QueueKind, highpri: bool) -> Result<Arc<OwnedQueue>> {
    let queue = OwnedQueue::new(c"ro2iblnd_test", kind, highpri, 0)?;

    Ok(Arc::new(queue, GFP_KERNEL)?)
}

fn item(queue: &Arc<OwnedQueue>) -> Result<Arc<Item>> {
    let queue = queue.clone();

    Arc::pin_init(
        pin_init!(Item {
            queue,
            ran: Atomic::new(0),
            done <- Completion::new(),
            now <- new_work!("Item::now"),
            later <- new_delayed_work!("Item::later"),
        }),
        GFP_KERNEL,
    )
}

#[kunit_tests(ro2iblnd_work)]
mod tests {
    use super::*;

    #[test]
    fn runs_queued_items() -> Result {
        for kind in [QueueKind::PerCpu, QueueKind::Unbound] {
            let queue = queue(kind, false)?;
            let item = item(&queue)?;
            let _scope = NofsScope::enter();

            assert!(queue.enqueue_on::<Item, NOW>(online_cpu(12345), item.clone()));
            item.done.wait();
            queue.flush();
            assert!(item.ran.xchg(0, Full) == 1);
            assert!(item.ran.xchg(0, Full) == 0);
            // The queue has given its reference back.
            assert!(Arc::into_unique_or_drop(item).is_some());
        }
        Ok(())
    }

    #[test]
    fn cancelling_gives_the_reference_back() -> Result {
        let queue = queue(QueueKind::PerCpu, true)?;
        let item = item(&queue)?;

        assert!(queue_delayed::<Item, LATER>(item.clone(), 60_000));
        assert!(!queue_delayed::<Item, LATER>(item.clone(), 60_000));
        assert!(cancel::<Item, LATER>(&item));
        assert!(!cancel::<Item, LATER>(&item));
        mod_delayed::<Item, LATER>(item.clone(), 60_000);
        mod_delayed::<Item, LATER>(item.clone(), 50_000);
        assert!(cancel_sync::<Item, LATER>(&item));
        assert!(!item.done.wait_ms(1));
        assert!(Arc::into_unique_or_drop(item).is_some());
        Ok(())
    }

    #[test]
    fn rearming_makes_it_sooner() -> Result {
        let queue = queue(QueueKind::PerCpu, false)?;
        let item = item(&queue)?;

        assert!(queue_delayed::<Item, LATER>(item.clone(), 60_000));
        mod_delayed::<Item, LATER>(item.clone(), 1);
        assert!(item.done.wait_ms(2000));
        assert!(!cancel_sync::<Item, LATER>(&item));
        assert!(item.ran.xchg(0, Full) == 2);
        assert!(Arc::into_unique_or_drop(item).is_some());
        Ok(())
    }

    #[test]
    fn rearming_while_it_is_cancelled_keeps_no_reference() -> Result {
        let queue = queue(QueueKind::PerCpu, false)?;
        let item = Arc::pin_init(
            pin_init!(Stubborn {
                queue,
                begun <- Completion::new(),
                again <- new_delayed_work!("Stubborn::again"),
            }),
            GFP_KERNEL,
        )?;

        assert!(queue_delayed::<Stubborn, 0>(item.clone(), 0));
        item.begun.wait();
        // It rearms itself while this waits.
        let _ = cancel_sync::<Stubborn, 0>(&item);
        assert!(Arc::into_unique_or_drop(item).is_some());
        Ok(())
    }

    #[test]
    fn a_timer_keeps_its_queue() -> Result {
        let item = item(&queue(QueueKind::PerCpu, false)?)?;

        assert!(queue_delayed::<Item, LATER>(item.clone(), 50));
        // The item has the only reference to the queue.
        assert!(item.done.wait_ms(2000));
        item.queue.flush();
        assert!(Arc::into_unique_or_drop(item).is_some());
        Ok(())
    }

    #[test]
    fn concurrency_is_limited() -> Result {
        for (max_active, waits) in [(1, true), (2, false)] {
            let queue = OwnedQueue::new(c"ro2iblnd_test", QueueKind::Unbound, false, max_active)?;
            let (first, second) = (held()?, held()?);

            assert!(queue.enqueue::<Held, 0>(first.clone()));
            first.begun.wait();
            assert!(queue.enqueue::<Held, 0>(second.clone()));
            if waits {
                assert!(!second.begun.wait_ms(50));
                first.go.complete_all();
            }
            assert!(second.begun.wait_ms(2000));
            first.go.complete_all();
            second.go.complete_all();
            queue.flush();
        }
        Ok(())
    }

    #[test]
    fn dropping_a_queue_runs_remaining_items() -> Result {
        let mine = OwnedQueue::new(c"ro2iblnd_test", QueueKind::PerCpu, false, 0)?;
        let item = item(&queue(QueueKind::PerCpu, false)?)?;

        assert!(mine.enqueue::<Item, NOW>(item.clone()));
        drop(mine);
        assert!(item.ran.xchg(0, Full) == 1);
        assert!(Arc::into_unique_or_drop(item).is_some());
        Ok(())
    }
}
