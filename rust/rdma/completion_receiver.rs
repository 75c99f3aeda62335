// SPDX-License-Identifier: GPL-2.0

//! Receiver of the completions of one poll.

use super::{
    buf::TxBuf,
    wc::Wc, //
};

/// Receiver of the completions of one round, with `R` as the buffers of receives. Work requests of the send queue end
/// in posting order, each that was posted exactly once.
pub(crate) trait CompletionReceiver<R> {
    /// Notes a completion of the send queue; the calls for the work requests that it ends follow.
    fn send_completion(&mut self);

    /// Handles a work request of the send queue that has succeeded: its context, and the message buffer of a send. Its
    /// other memory is released.
    fn sent(&mut self, ctx: u32, buf: Option<TxBuf>);

    /// Handles a work request of the send queue that has failed. The QP keeps its memory until it is drained.
    fn send_failed(&mut self, ctx: u32, wc: Wc);

    /// Handles a message of `nob` bytes, at most [`super::buf::MSG_BUF_LEN`].
    fn received(&mut self, buf: R, nob: usize);

    /// Handles a receive that has failed, or ended with success without a message: with the immediate data of an RDMA
    /// WRITE, or the invalidation of a key. The QP keeps the buffer until it is drained, because a provider may report
    /// a failure before its device knows, which may use the buffer until then.
    fn recv_failed(&mut self, wc: Wc);
}
