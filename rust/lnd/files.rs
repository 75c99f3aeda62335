// SPDX-License-Identifier: GPL-2.0

//! Files in debugfs: whatever can show itself.

use core::ffi::CStr;

use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};

use crate::proto::nid::Nid;

/// What can show itself, as lines of `key=value`.
pub(crate) trait Show: Send + Sync + 'static {
    /// Writes all of it. May sleep.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A file that shows a `T`; it is gone when this is dropped, which waits for readers.
#[pin_data]
pub(crate) struct ShowFile<T: Show> {
    #[pin]
    _file: File<Arc<T>>,
}

impl<T: Show> ShowFile<T> {
    /// Makes the file. May sleep.
    pub(crate) fn new(dir: &Dir, name: &CStr, what: &Arc<T>) -> Result<Pin<KBox<Self>>> {
        let what = what.clone();
        KBox::pin_init(
            pin_init!(Self {
                _file <- dir.read_callback_file(name, what, &|what: &Arc<T>, f: &mut fmt::Formatter<'_>| {
                    what.show(f)
                }),
            }),
            GFP_KERNEL,
        )
    }
}

/// The files of an NI: how it is now, by an `N`, what ended, by an `S`, and where time goes, by a `T`.
pub(crate) struct Files<N: Show, S: Show, T: Show> {
    _now: Pin<KBox<ShowFile<N>>>,
    _ends: Pin<KBox<ShowFile<S>>>,
    _times: Pin<KBox<ShowFile<T>>>,
}

impl<N: Show, S: Show, T: Show> Files<N, S, T> {
    /// Makes the files. May sleep.
    pub(crate) fn new(
        dir: &Dir,
        nid: Nid,
        ni: &Arc<N>,
        seen: &Arc<S>,
        times: &Arc<T>,
    ) -> Result<Self> {
        let now = CString::try_from_fmt(fmt!("{}", core::format_args!("{nid}")))?;
        let ends = CString::try_from_fmt(fmt!("{}.closes", core::format_args!("{nid}")))?;
        let of_times = CString::try_from_fmt(fmt!("{}.times", core::format_args!("{nid}")))?;
        Ok(Self {
            _now: ShowFile::new(dir, &now, ni)?,
            _ends: ShowFile::new(dir, &ends, seen)?,
            _times: ShowFile::new(dir, &of_times, times)?,
        })
    }
}
