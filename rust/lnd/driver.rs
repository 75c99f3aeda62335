// SPDX-License-Identifier: GPL-2.0

//! What lives as long as the module: the work queues, and the list of interfaces that are listened
//! on.

use kernel::{
    debugfs::Dir,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    debug::SeenFile,
    iface::{
        Iface,
        Used, //
    },
    seen::Seen, //
};
use crate::rdma::work::{
    self,
    OwnedQueue,
    QueueKind, //
};

/// The pause before an NI that is just attaching or leaving is asked again to let its device go.
const BETWEEN: Delta = Delta::from_millis(10);

/// The driver.
#[pin_data]
pub(crate) struct Driver {
    /// Set-up, close, release, retries, timers: may take long, order does not matter.
    pub(crate) control: OwnedQueue,
    /// Calls into LNet: on the CPU chosen for the connection.
    pub(crate) upper: OwnedQueue,
    /// `/sys/kernel/debug/ro2iblnd`.
    pub(crate) debugfs: Dir,
    /// Requests that were for none of the NIs.
    pub(crate) strangers: Arc<Seen>,
    _strangers_file: Option<Pin<KBox<SeenFile>>>,
    /// Takes NIs off devices that are being removed.
    #[pin]
    removal: Work<Driver>,
    /// The interfaces in use. Startup and shutdown of NIs only.
    #[pin]
    pub(crate) ifaces: Mutex<KVec<Used>>,
}

impl Driver {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let control = OwnedQueue::new(c"ro2iblnd_control", QueueKind::Unbound, false)?;
        let upper = OwnedQueue::new(c"ro2iblnd_upper", QueueKind::PerCpu, true)?;
        let debugfs = Dir::new(c"ro2iblnd");
        let strangers = Seen::of_refusals()?;
        // Without it nothing is missing but a view.
        let file = SeenFile::new(&debugfs, c"strangers", None, &strangers).ok();
        Arc::pin_init(
            pin_init!(Self {
                control,
                upper,
                debugfs,
                strangers,
                _strangers_file: file,
                removal <- kernel::new_work!("Driver::removal"),
                ifaces <- kernel::new_mutex!(KVec::new(), "Driver::ifaces"),
            }),
            GFP_KERNEL,
        )
    }
}

kernel::impl_has_work! {
    impl HasWork<Self> for Driver { self.removal }
}

impl Driver {
    /// A device is being removed: its NIs are to let it go. Any context.
    pub(crate) fn device_removal(self: &Arc<Self>) {
        let _ = self.control.enqueue::<Self, 0>(self.clone());
    }
}

impl WorkItem for Driver {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Detached, an NI is in the list no more.
        while let Some(ni) = Iface::next_removed(&this) {
            if !ni.detach() {
                // It is on its way in or out: between the list and the NI itself.
                fsleep(BETWEEN);
            }
        }
    }
}

/// Dropped as the last thing of the module.
pub(crate) struct Exit(Arc<Driver>);

impl Exit {
    /// Takes the last reference there will be.
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self(driver)
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        // Items that are still queued or running hold the driver: its queues must not go with one
        // of them.
        self.0.control.flush();
        self.0.upper.flush();
        // A completion handler may still be on its way out of our code.
        work::wait_for_callers();
    }
}
