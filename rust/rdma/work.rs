// SPDX-License-Identifier: GPL-2.0

//! Work queues, CPU choice, delayed work, and the allocation scope for the storage path.
//!
//! C headers: `include/linux/workqueue.h`, `include/linux/sched/mm.h`.

use core::ptr::NonNull;

use kernel::{
    container_of,
    error::code::ENOMEM,
    ffi,
    prelude::*,
    sync::Arc,
    types::NotThreadSafe,
    workqueue::{
        HasDelayedWork,
        HasWork,
        RawWorkItem,
        Work,
        WorkItem, //
    }, //
};

use crate::bindings;

/// CPUs on which the items of a queue run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// On the CPU they were queued on or for.
    PerCpu,
    /// Anywhere; for long items.
    Unbound,
}

/// A work queue that makes progress under memory pressure (`WQ_MEM_RECLAIM`).
///
/// Dropping it runs everything that is queued, then destroys it; it must not be
/// dropped by one of its own items.
///
/// # Invariants
///
/// `wq` is a work queue that only `drop` destroys.
pub(crate) struct OwnedQueue {
    wq: NonNull<bindings::workqueue_struct>,
}

// SAFETY: Work queues may be used and destroyed by any thread.
unsafe impl Send for OwnedQueue {}
// SAFETY: All operations on a work queue are thread safe.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Creates a queue of which up to `max_active` items run at a time; 0 for the kernel's maximum. Kernels differ in
    /// what they count, see `ro2ib_alloc_workqueue()`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        name: &'static CStr,
        kind: QueueKind,
        highpri: bool,
        max_active: u8,
    ) -> Result<Self> {
        // SAFETY: `name` is a valid C string; the queue copies it.
        let wq = unsafe {
            bindings::ro2ib_alloc_workqueue(
                name.as_char_ptr(),
                kind == QueueKind::Unbound,
                highpri,
                max_active.into(),
            )
        };

        // INVARIANT: It is ours, and nothing else knows it.
        Ok(Self {
            wq: NonNull::new(wq).ok_or(ENOMEM)?,
        })
    }

    /// Queues `item` on the CPU of the caller (or anywhere, if unbound).
    /// Returns false if it was queued already. Any context.
    pub(crate) fn enqueue<T, const ID: u64>(&self, item: Arc<T>) -> bool
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        self.queue_on(
            bindings::wq_misc_consts_WORK_CPU_UNBOUND as ffi::c_int,
            item,
        )
    }

    /// Queues `item` on `cpu`, which must have come from [`online_cpu`].
    /// Returns false if it was queued already. Any context.
    pub(crate) fn enqueue_on<T, const ID: u64>(&self, cpu: Cpu, item: Arc<T>) -> bool
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        self.queue_on(cpu.0 as ffi::c_int, item)
    }

    fn queue_on<T, const ID: u64>(&self, cpu: ffi::c_int, item: Arc<T>) -> bool
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID> + Send + Sync + 'static,
    {
        let wq = self.wq.as_ptr();

        // SAFETY: `queue_work_on()` returns false only if the item is queued already, and `T` is
        // `Send` and has no lifetimes. By the type invariant `wq` is valid.
        unsafe { item.__enqueue(move |work| bindings::queue_work_on(cpu, wq, work)) }.is_ok()
    }

    /// Waits for everything that is queued now. Process context, not from one of
    /// its own items.
    pub(crate) fn flush(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::ro2ib_flush_workqueue(self.wq.as_ptr()) }
    }
}

impl OwnedQueue {
    pub(super) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.wq.as_ptr()
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; nothing can queue any more, because this is being dropped.
        unsafe { bindings::destroy_workqueue(self.wq.as_ptr()) }
    }
}

/// Delayed work item (`struct delayed_work`) with its queue: the item keeps the queue, so the timer cannot run when the
/// queue is gone.
pub(crate) trait DelayedItem<const ID: u64 = 0>:
    WorkItem<ID, Pointer = Arc<Self>> + HasDelayedWork<Self, ID> + Send + Sync + Sized + 'static
{
    /// Returns the queue it goes to.
    fn queue(&self) -> &OwnedQueue;
}

/// Defines work items of a type: each is in a field, and runs a method, in a [`NofsScope`].
macro_rules! work_items {
    ($of:ty: $($id:ident in $field:ident => $run:ident),+ $(,)?) => {
        ::kernel::impl_has_work! {
            $(impl HasWork<Self, $id> for $of { self.$field })+
        }
        $crate::rdma::work::work_items!(@run $of: $($id => $run),+);
    };
    (@run $of:ty: $($id:ident => $run:ident),+) => {$(
        impl ::kernel::workqueue::WorkItem<$id> for $of {
            type Pointer = ::kernel::sync::Arc<Self>;

            fn run(this: ::kernel::sync::Arc<Self>) {
                let _nofs = $crate::rdma::work::NofsScope::enter();
                this.$run();
            }
        }
    )+};
}
pub(crate) use work_items;

/// Defines delayed work items of a type as [`work_items!`] does. A function of the object returns their queue.
macro_rules! delayed_items {
    ($of:ty, $queue:expr, $($id:ident in $field:ident => $run:ident),+ $(,)?) => {
        ::kernel::impl_has_delayed_work! {
            $(impl HasDelayedWork<Self, $id> for $of { self.$field })+
        }
        $crate::rdma::work::work_items!(@run $of: $($id => $run),+);
        $(
            impl $crate::rdma::work::DelayedItem<$id> for $of {
                fn queue(&self) -> &$crate::rdma::work::OwnedQueue {
                    let queue: fn(&Self) -> &$crate::rdma::work::OwnedQueue = $queue;
                    queue(self)
                }
            }
        )+
    };
}
pub(crate) use delayed_items;

/// Queues a delayed `item` in `delay_ms` milliseconds, unless it is pending already or being cancelled. Returns whether
/// it was queued. Any context.
///
/// [`cancel`] of an idle item sets its pending bit for a moment, so a concurrent
/// `queue_delayed` may return false.
pub(crate) fn queue_delayed<T: DelayedItem<ID>, const ID: u64>(
    item: Arc<T>,
    delay_ms: u32,
) -> bool {
    let wq = item.queue().wq.as_ptr();
    let delay = kernel::time::msecs_to_jiffies(delay_ms);

    // SAFETY: As in `OwnedQueue::queue_on`; `T: HasDelayedWork` means that `work` is embedded in a
    // `struct delayed_work`. The queue is there as long as the item, of which the timer has a
    // reference. It also returns false for an item that is disabled: then, too, no queue has taken
    // the reference, and `__enqueue` gives it back, which is all that it does.
    unsafe {
        item.__enqueue(move |work| {
            bindings::queue_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as ffi::c_int,
                wq,
                container_of!(work, bindings::delayed_work, work),
                delay,
            )
        })
    }
    .is_ok()
}

/// Makes a delayed `item` run in `delay_ms` milliseconds from now, whether it is pending or not. If another caller
/// queues it at the same time, that caller's delay counts. Does nothing while [`cancel_sync`] waits for the item. Any
/// context.
///
/// Not `mod_delayed_work_on()`: its result does not distinguish an item that was queued from a disabled one, and so
/// does not show whether the queue took the reference.
pub(crate) fn mod_delayed<T: DelayedItem<ID>, const ID: u64>(item: Arc<T>, delay_ms: u32) {
    let _ = cancel(&item);
    let _ = queue_delayed(item, delay_ms);
}

fn raw_delayed_work<T, const ID: u64>(item: &Arc<T>) -> *mut bindings::delayed_work
where
    T: HasDelayedWork<T, ID>,
{
    // SAFETY: `item` is a valid `T`.
    let work = unsafe { T::raw_get_work(Arc::as_ptr(item).cast_mut()) };
    // SAFETY: `raw_get_work` returns a valid pointer.
    let work = unsafe { Work::raw_get(work) };

    // SAFETY: `T: HasDelayedWork` means that `work` is embedded in a `struct delayed_work`.
    unsafe { container_of!(work, bindings::delayed_work, work) }
}

/// Takes back the reference that a queue held.
///
/// # Safety
///
/// `item` was just cancelled, successfully.
unsafe fn take_back<T>(item: &Arc<T>) {
    // SAFETY: A successful enqueue leaks one reference, which `run` takes back. It will not run,
    // as it was cancelled, so the reference is ours.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(item)) });
}

/// Cancels a delayed item that has not begun to run. Returns whether it was pending. Does not wait for a running one.
/// Any context.
pub(crate) fn cancel<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    // SAFETY: `item` keeps the delayed work valid.
    let was_pending = unsafe { bindings::cancel_delayed_work(raw_delayed_work(item)) };

    if was_pending {
        // SAFETY: It was pending and is not any more.
        unsafe { take_back(item) };
    }
    was_pending
}

/// Cancels a delayed item and waits until it does not run; returns whether it
/// was pending. Process context, not from the item itself.
pub(crate) fn cancel_sync<T, const ID: u64>(item: &Arc<T>) -> bool
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    // SAFETY: `item` keeps the delayed work valid.
    let was_pending = unsafe { bindings::cancel_delayed_work_sync(raw_delayed_work(item)) };

    if was_pending {
        // SAFETY: It was pending and is not any more.
        unsafe { take_back(item) };
    }
    was_pending
}

/// Waits until every callback of the module that has dropped its last reference, such as a completion handler, has
/// returned. Call before unloading. Sleeps.
pub(crate) fn synchronize_callbacks() {
    // SAFETY: No preconditions; we may sleep.
    unsafe { bindings::ro2ib_synchronize_callbacks() }
}

/// The number of a CPU that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu(u32);

impl Cpu {
    /// Returns the number.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Returns CPU number `hint` if it is online now, otherwise an online one. If a CPU goes offline later, the work queue
/// runs the item on another one.
pub(crate) fn online_cpu(hint: u32) -> Cpu {
    // SAFETY: No preconditions.
    Cpu(unsafe { bindings::ro2ib_online_cpu(hint) })
}

/// Returns the number of CPUs that the host may ever have.
pub(crate) fn cpus() -> u32 {
    // SAFETY: No preconditions.
    unsafe { bindings::ro2ib_cpus() }
}

/// Scope in which allocations of the task do not enter file systems (`memalloc_nofs_save()`), which may be waiting for
/// the driver.
pub(crate) struct NofsScope {
    flags: ffi::c_uint,
    _not_send: NotThreadSafe,
}

impl NofsScope {
    /// Begins the scope. Scopes nest, first in, last out. Process context.
    pub(crate) fn enter() -> Self {
        Self {
            // SAFETY: No preconditions.
            flags: unsafe { bindings::ro2ib_memalloc_nofs_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for NofsScope {
    fn drop(&mut self) {
        // SAFETY: `flags` came from the matching save, in the same task.
        unsafe { bindings::ro2ib_memalloc_nofs_restore(self.flags) }
    }
}
