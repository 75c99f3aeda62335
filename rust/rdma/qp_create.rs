// SPDX-License-Identifier: GPL-2.0

//! Creation of a QP with the rights to post to its queues, and the end of these rights.
//!
//! The rights ([`SendQueue`], [`RecvQueue`]) are made once per QP, and [`Qp::drain`] takes them
//! back. Process context.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    cm::{
        CmHandler,
        CmId, //
    },
    mr_sharing::Regions,
    pd::Pd,
    qp::{
        Qp,
        QpConfig, //
    },
    qp_handler::QpHandler,
    rq::RecvQueue,
    sq::SendQueue, //
};

/// A new QP, and the rights to post to its queues.
pub(crate) struct QpParts<T: QpHandler> {
    /// The QP.
    pub(crate) qp: Arc<Qp<T>>,
    /// For the send queue.
    pub(crate) sq: SendQueue,
    /// For the receive queue.
    pub(crate) rq: RecvQueue,
}

impl<T: QpHandler> Qp<T> {
    /// Makes a QP on `id`, with completions from completion vector `vector`, modulo their number. `id` must be bound to
    /// the device of the protection domain in `on`, and the regions in `on` are those of that device. Sleeps; not in a
    /// handler of `id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for sizes of 0, `ENODEV` if `id` is not bound to that device or it goes, `EBUSY` if
    /// `id` has a QP, `ENOMEM` (often: the sizes are too large for the device).
    #[inline(never)]
    pub(crate) fn create<H: CmHandler>(
        id: &CmId<H>,
        on: (&Arc<Pd>, &Arc<Regions>),
        vector: u32,
        config: &QpConfig,
        handler: Arc<T>,
    ) -> Result<QpParts<T>> {
        let qp = Self::new(id, on, vector, config, handler)?;

        Ok(QpParts {
            sq: SendQueue::new(qp.id(), config.sq_depth)?,
            rq: RecvQueue::new(qp.id())?,
            qp,
        })
    }

    /// Ends posting: moves the QP to the error state and posts the markers whose completions end in
    /// [`QpHandler::drained`]. Work requests that were pushed and not posted are freed with the QP. Sleeps.
    ///
    /// # Errors
    ///
    /// `EINVAL` if they are not the rights of this QP, otherwise the error of the provider. Then `drained` is not
    /// called; [`Qp::destroy_mrs`] and dropping the QP do not wait for it.
    pub(crate) fn drain(&self, sq: SendQueue, rq: RecvQueue) -> Result {
        if !sq.is_of(self.id()) || !rq.is_of(self.id()) {
            return Err(EINVAL);
        }
        drop((sq, rq));
        // SAFETY: Both were the only ones of this QP: `create` made them.
        unsafe { self.end_posting() }
    }

    /// Ends posting as if [`Qp::drain`] had failed, as with a device that ignores commands.
    #[cfg(ro2iblnd_kunit)]
    pub(crate) fn fail_to_drain(&self, sq: SendQueue, rq: RecvQueue) {
        drop((sq, rq));
        self.end_without_drain();
    }
}
