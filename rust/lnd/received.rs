// SPDX-License-Identifier: GPL-2.0

//! A message that was received, from its completion to the moment its buffer is posted again.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    lnet::HDR_SIZE,
    proto::{
        params::HEADER_LEN,
        wire::Facts, //
    },
    rdma::buf::{
        DetachedBuf,
        RxBuf, //
    }, //
};

/// A received message with the buffer it lies in.
pub(crate) struct Received {
    /// The buffer, out of the receive queue until it is posted again.
    pub(crate) buf: Held,
    /// Bytes received.
    pub(crate) nob: usize,
    /// What it is, once it was judged.
    pub(crate) facts: Option<Facts>,
    /// Another buffer was posted in its place.
    pub(crate) replaced: bool,
}

/// The buffer of a received message.
pub(crate) enum Held {
    /// It can be posted again.
    Mapped(RxBuf),
    /// It was taken from its device, because LNet keeps the message.
    Detached(DetachedBuf),
    /// Gone; only while it changes.
    Nothing,
}

impl Received {
    /// No message.
    pub(crate) const NOTHING: Self = Self {
        buf: Held::Nothing,
        nob: 0,
        facts: None,
        replaced: false,
    };

    /// The bytes received.
    pub(crate) fn bytes(&self) -> &[u8] {
        let all: &[u8] = match &self.buf {
            Held::Mapped(buf) => buf.as_slice(),
            Held::Detached(buf) => buf.as_slice(),
            Held::Nothing => &[],
        };
        all.get(..self.nob).unwrap_or(&[])
    }

    /// Takes the buffer from its device. Only if another one was posted in its place, or no more
    /// are.
    pub(crate) fn detach(&mut self) {
        self.buf = match core::mem::replace(&mut self.buf, Held::Nothing) {
            Held::Mapped(buf) => Held::Detached(buf.detach()),
            other => other,
        };
    }
}

/// A received request while LNet has it: the `private` of `lnet_parse`, given back by `lnd_recv`.
/// Without one it waits with its connection, a `C`, for the next.
pub(crate) struct Rx<C> {
    /// The connection it came on.
    pub(crate) conn: Option<Arc<C>>,
    /// The request.
    pub(crate) msg: Received,
}

impl<C> Rx<C> {
    /// One for a request. May sleep.
    pub(crate) fn new() -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                conn: None,
                msg: Received::NOTHING,
            },
            GFP_KERNEL,
        )?)
    }

    /// The LNet header of the request, as it was received.
    pub(crate) fn header(&self) -> &[u8; HDR_SIZE] {
        let rest = self.msg.bytes().get(HEADER_LEN..);
        // A request without one is not given to LNet.
        rest.and_then(|rest| rest.first_chunk())
            .unwrap_or(&[0; HDR_SIZE])
    }
}
