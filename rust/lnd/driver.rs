// SPDX-License-Identifier: GPL-2.0

//! What lives as long as the module: the work queues, the interfaces that are listened on, the folder
//! in debugfs.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    debugfs::close_log::CloseLogFile,
    iface::Ifaces,
    stats::close_log::CloseStats,
    work_queues::WorkQueues, //
};
use crate::rdma::debugfs::{
    Dir,
    File, //
};

/// The driver.
pub(crate) struct Driver {
    pub(crate) workers: Arc<WorkQueues>,
    /// The interfaces in use.
    pub(crate) ifaces: Arc<Ifaces>,
    /// `/sys/kernel/debug/ro2iblnd`.
    pub(crate) debugfs: Dir,
    /// What was refused, and from where.
    strangers: Arc<CloseStats>,
}

impl Driver {
    /// Makes the queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let workers = WorkQueues::new()?;
        let debugfs = Dir::new(c"ro2iblnd");
        let strangers = CloseStats::of_refusals()?;
        let ifaces = Ifaces::new(workers.clone(), strangers.clone())?;
        Ok(Arc::new(
            Self {
                workers,
                ifaces,
                debugfs,
                strangers,
            },
            GFP_KERNEL,
        )?)
    }
}

/// Dropped as the last thing of the module.
pub(crate) struct Exit {
    // Before the folder it is in.
    _strangers: Option<File<CloseLogFile>>,
    driver: Arc<Driver>,
}

impl Exit {
    /// Takes the last reference there will be. To be called when nothing can fail any more: who has one of our files
    /// open keeps a module, but not one whose loading fails.
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self {
            // Without it nothing is missing but a view.
            _strangers: CloseLogFile::new(None, &driver.strangers)
                .and_then(|seen| File::new(&driver.debugfs, c"unknown_ni", &seen))
                .ok(),
            driver,
        }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        // Items that are still queued or running hold the queues, which must not go with one of them.
        self.driver.workers.flush();
    }
}
