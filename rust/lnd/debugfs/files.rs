// SPDX-License-Identifier: GPL-2.0

//! The files of an NI in debugfs.

use kernel::{
    prelude::*,
    str::CString,
    sync::Arc, //
};

use crate::{
    proto::nid::Nid,
    rdma::debugfs::{
        Dir,
        File,
        Show, //
    }, //
};

/// The files of an NI: how it is now, by an `N`, what ended, by an `S`, and where time goes, by a `T`.
pub(crate) struct NiFiles<N: Show, S: Show, T: Show> {
    _now: File<N>,
    _ends: File<S>,
    _times: File<T>,
}

impl<N: Show, S: Show, T: Show> NiFiles<N, S, T> {
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
        let of_times = CString::try_from_fmt(fmt!("{}.latency", core::format_args!("{nid}")))?;
        Ok(Self {
            _now: File::new(dir, &now, ni)?,
            _ends: File::new(dir, &ends, seen)?,
            _times: File::new(dir, &of_times, times)?,
        })
    }
}
