// SPDX-License-Identifier: GPL-2.0

//! Number of a work request, which its completion carries (`wr_id`).

use crate::bindings;

/// Work request of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// The one in this slot of the send queue.
    Send(u32),
    /// The receive in this slot.
    Recv(u32),
    /// Marker of [`super::drain`] in the send queue.
    SendMarker,
    /// Marker in the receive queue.
    RecvMarker,
}

/// Set in the number of a receive.
const RECV: u64 = 1 << 32;
/// Set in the number of a marker.
const MARKER: u64 = 1 << 33;

impl WrId {
    /// Returns the work request of a completion.
    #[inline(always)]
    pub(super) fn of(wc: &bindings::ib_wc) -> Self {
        // SAFETY: Both members of the union are integers of that size, or pointers.
        let id = unsafe { wc.__bindgen_anon_1.wr_id };
        let (index, recv) = (id as u32, id & RECV != 0);

        match (id & MARKER != 0, recv) {
            (false, false) => Self::Send(index),
            (false, true) => Self::Recv(index),
            (true, false) => Self::SendMarker,
            (true, true) => Self::RecvMarker,
        }
    }

    /// Returns the number.
    #[inline(always)]
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Send(index) => index.into(),
            Self::Recv(index) => RECV | u64::from(index),
            Self::SendMarker => MARKER,
            Self::RecvMarker => MARKER | RECV,
        }
    }
}
