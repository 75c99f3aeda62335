// SPDX-License-Identifier: GPL-2.0

//! Objects that live as long as the module: the work queues, the interfaces that NIs listen on, the folder in debugfs.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    debugfs::close_log::CloseLogFile,
    shared_listeners::Ifaces,
    stats::close_log::CloseStats,
    work_queues::WorkQueues, //
};
use crate::rdma::debugfs::{
    Dir,
    File, //
};

/// State of the driver.
pub(crate) struct Driver {
    pub(crate) workers: Arc<WorkQueues>,
    /// Interfaces in use.
    pub(crate) ifaces: Arc<Ifaces>,
    /// Folder `/sys/kernel/debug/ro2iblnd`.
    pub(crate) debugfs: Dir,
    /// Log of rejected requests for none of the NIs.
    strangers: Arc<CloseStats>,
}

impl Driver {
    /// Creates the queues. May sleep.
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

/// Object that the module drops last.
pub(crate) struct Exit {
    // Before the folder that the file is in.
    _strangers: Option<File<CloseLogFile>>,
    driver: Arc<Driver>,
}

impl Exit {
    /// Takes the last reference to the driver. Must be called when nothing else can fail: an open file of the driver
    /// keeps a module loaded, but not a module whose initialization fails.
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self {
            // Without the file only a debugfs view is missing.
            _strangers: CloseLogFile::new(None, &driver.strangers)
                .and_then(|seen| File::new(&driver.debugfs, c"unknown_ni", &seen))
                .ok(),
            driver,
        }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        // Items that are queued or running hold the queues, which must not be dropped by one of them.
        self.driver.workers.flush();
    }
}
