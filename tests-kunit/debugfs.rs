// SPDX-License-Identifier: GPL-2.0

//! Files of debugfs.

use kernel::{
    fmt,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use crate::rdma::debugfs::{
    Dir,
    File,
    Show, //
};

/// Value that counts its live instances.
struct Counted(Arc<Atomic<i32>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Show for Counted {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "here")
    }
}

#[::kernel::macros::kunit_tests(ro2iblnd_debugfs)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_with_its_value() -> Result {
        let live = Arc::new(Atomic::new(1), GFP_KERNEL)?;
        let what = Arc::new(Counted(live.clone()), GFP_KERNEL)?;
        let dir = Dir::new(c"ro2iblnd_kunit");
        let file = File::new(&dir, c"file", &what)?;

        // The value that a file shows lives as long as the file, and so does the directory.
        drop(what);
        drop(dir);
        assert!(live.load(Relaxed) == 1);
        drop(file);
        assert!(live.load(Relaxed) == 0);
        Ok(())
    }
}
