// SPDX-License-Identifier: GPL-2.0

//! Uevents of the module for programs that watch the node, such as udev.

use core::fmt::Display;

use kernel::prelude::*;

use super::text::Text;
use crate::bindings;

/// Limit of the bytes of a NID as text.
const NID: usize = 32;
/// Limit of the bytes of a device's name.
const DEVICE: usize = 64;

/// Change of the RDMA device of an NI.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device {
    /// The device was removed, or reset.
    Gone,
    /// The device is back.
    Back,
    /// The device reported a fatal error.
    Fatal,
    /// The device cannot send messages of the connection manager any more.
    Mute,
    /// The interface is on this device now.
    Moved,
}

/// Sends the uevent of a change of `device`, with its name if known. Sends nothing if there is no memory. May sleep,
/// and does not wait for a file system.
pub(crate) fn device(what: Device, ni: &dyn Display, device: Option<&str>) {
    let what = match what {
        Device::Gone => c"device_gone",
        Device::Back => c"device_back",
        Device::Fatal => c"device_fatal",
        Device::Mute => c"device_gsi_dead",
        Device::Moved => c"device_moved",
    };
    let ni = Text::<NID>::of(format_args!("{ni}"));
    let device = Text::<DEVICE>::word(device.unwrap_or("none"));
    // SAFETY: All three are strings that end with NUL.
    unsafe { bindings::ro2ib_uevent(what.as_char_ptr(), ni.as_ptr(), device.as_ptr()) };
}
