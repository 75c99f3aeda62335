// SPDX-License-Identifier: GPL-2.0

//! Received message, from its completion until its buffer is posted again.
//!
//! Owned by the completion, the receive queue, or LNet. The owner may read it; no lock is needed.

use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use crate::{
    lnd::timestamp::Timestamp,
    lnet::HDR_SIZE,
    proto::{
        params::HEADER_LEN,
        wire::ParsedHdr, //
    },
    rdma::{
        buf::{
            DetachedBuf,
            RxBuf,
            MSG_BUF_LEN, //
        },
        device::Device, //
    }, //
};

/// A received message with the buffer it lies in.
///
/// # Invariants
///
/// `facts` are what [`crate::proto::wire::decode`] said of these very bytes.
pub(super) struct Received {
    /// The buffer, out of the receive queue until it is posted again.
    buf: BufState,
    /// Bytes received.
    nob: usize,
    /// What it is, once it was judged.
    facts: Option<ParsedHdr>,
    /// When.
    at: Timestamp,
    /// Another buffer was posted in its place.
    replaced: bool,
    /// The connection got a new buffer for this one, which LNet keeps.
    made_good: bool,
}

/// The buffer of a received message.
enum BufState {
    /// It can be posted again.
    Mapped(RxBuf),
    /// It was taken from its device, because LNet keeps the message.
    Detached(DetachedBuf),
    /// Gone: the message is over.
    Nothing,
}

/// What to do with the buffer of a message that is over.
pub(super) enum BufDisposition {
    /// Post it again.
    Post(RxBuf),
    /// Another one was posted in its place: it is a spare.
    Spare(RxBuf),
    /// Nothing: its device does not know it any more.
    Gone,
}

impl Received {
    /// Of `nob` bytes that nobody has judged, received `at` that moment.
    #[inline]
    fn new(buf: RxBuf, nob: usize, at: Timestamp) -> Self {
        Self {
            buf: BufState::Mapped(buf),
            nob,
            facts: None,
            at,
            replaced: false,
            made_good: false,
        }
    }

    /// The bytes received.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        let bytes = self.whole().and_then(|all| all.get(..self.nob));
        bytes.unwrap_or(&[])
    }

    /// They, and what was in the buffer behind them. So there is no end to look for in front of what is in every
    /// message.
    #[inline]
    pub(super) fn whole(&self) -> Option<&[u8; MSG_BUF_LEN]> {
        match &self.buf {
            BufState::Mapped(buf) => Some(buf.as_slice()),
            BufState::Detached(buf) => Some(buf.as_slice()),
            BufState::Nothing => None,
        }
    }

    /// When it was received.
    #[inline]
    pub(super) fn at(&self) -> Timestamp {
        self.at
    }

    /// It was found to be this.
    #[inline]
    pub(super) fn judged(&mut self, facts: ParsedHdr) {
        self.facts = Some(facts);
    }

    /// What it was found to be.
    #[inline]
    pub(super) fn facts(&self) -> Option<ParsedHdr> {
        self.facts
    }

    /// Another buffer is posted in its place.
    #[inline]
    pub(super) fn replace(&mut self) {
        self.replaced = true;
    }

    /// Whether another buffer was posted in its place.
    pub(super) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// Notes that the connection got a new buffer for this one.
    pub(super) fn made_good(&mut self) {
        self.made_good = true;
    }

    /// Takes the buffer from its device: LNet keeps the message.
    pub(super) fn detach(&mut self) {
        self.buf = match core::mem::replace(&mut self.buf, BufState::Nothing) {
            BufState::Mapped(buf) => BufState::Detached(buf.detach()),
            other => other,
        };
    }

    /// Gives the buffer to its device again, if the connection has one too few without it.
    ///
    /// # Errors
    ///
    /// It cannot be mapped, and is gone.
    pub(super) fn attach(&mut self, device: &ARef<Device>) -> Result {
        if !self.is_missed() {
            return Ok(());
        }
        if let BufState::Detached(buf) = core::mem::replace(&mut self.buf, BufState::Nothing) {
            self.buf = BufState::Mapped(buf.attach(device)?);
        }
        Ok(())
    }

    /// Tells whether the buffer is detached, and is missing in the receive queue or among the spares.
    #[inline]
    pub(super) fn is_missed(&self) -> bool {
        !self.made_good && matches!(self.buf, BufState::Detached(_))
    }

    /// The message is over: its buffer, once.
    #[inline]
    pub(super) fn take_buf(&mut self) -> BufDisposition {
        match core::mem::replace(&mut self.buf, BufState::Nothing) {
            BufState::Mapped(buf) if self.replaced => BufDisposition::Spare(buf),
            BufState::Mapped(buf) => BufDisposition::Post(buf),
            BufState::Detached(_) | BufState::Nothing => BufDisposition::Gone,
        }
    }
}

/// The place of a received message, of which a connection, a `C`, has as many as receive buffers from set-up on. A
/// request goes from the inbox to LNet in it, as the `private` of `lnet_parse`, and comes back with `lnd_recv`: what is
/// in it does not move.
pub(crate) struct Rx<C> {
    /// The connection it came on, while LNet has it.
    conn: Option<Arc<C>>,
    /// The message; what is left of the last one where there is none.
    msg: Received,
}

impl<C> Rx<C> {
    /// An empty one. May sleep.
    pub(super) fn new() -> Result<KBox<Self>> {
        let empty = Self {
            conn: None,
            msg: Received {
                buf: BufState::Nothing,
                nob: 0,
                facts: None,
                at: Timestamp::now(),
                replaced: false,
                made_good: false,
            },
        };
        Ok(KBox::new(empty, GFP_KERNEL)?)
    }

    /// A message of `nob` bytes that nobody has judged, received `at` that moment, takes the place.
    #[inline]
    pub(super) fn fill(&mut self, buf: RxBuf, nob: usize, at: Timestamp) {
        let last = core::mem::replace(&mut self.msg, Received::new(buf, nob, at));
        if let BufState::Nothing = last.buf {
            // Nothing is dropped that way, and the compiler knows.
            core::mem::forget(last);
        }
    }

    /// The message.
    #[inline]
    pub(super) fn msg(&self) -> &Received {
        &self.msg
    }

    /// The message.
    #[inline]
    pub(super) fn msg_mut(&mut self) -> &mut Received {
        &mut self.msg
    }

    /// LNet gets it: it belongs to that connection.
    #[inline]
    pub(super) fn lend(&mut self, conn: Arc<C>) {
        self.conn = Some(conn);
    }

    /// LNet gives it back: the connection it belongs to.
    #[inline]
    pub(super) fn returned(&mut self) -> Option<Arc<C>> {
        self.conn.take()
    }

    /// The message while LNet has it, and the connection it came on.
    pub(super) fn lent(&mut self) -> Option<(&Arc<C>, &mut Received)> {
        Some((self.conn.as_ref()?, &mut self.msg))
    }

    /// The LNet header of the request, as it was received.
    pub(crate) fn header(&self) -> &[u8; HDR_SIZE] {
        let rest = self.msg.whole().and_then(|all| all.get(HEADER_LEN..));
        // A request without one is not given to LNet.
        rest.and_then(|rest| rest.first_chunk())
            .unwrap_or(&[0; HDR_SIZE])
    }
}
