// SPDX-License-Identifier: GPL-2.0

//! Receive of a connection: its buffer, and the message in it from the completion until the buffer is posted again.
//!
//! Owned by the queue pair, the receive queue, or LNet. The owner may read it; no lock is needed.

use kernel::{
    alloc::Flags,
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
        constants::HEADER_LEN,
        wire::{
            immediate_payload,
            reparse,
            Body,
            ParsedHdr, //
        }, //
    },
    rdma::{
        buf::{
            DetachedBuf,
            RxBuf,
            MSG_BUF_LEN, //
        },
        device::Device,
        recv_ring::RecvBuffer, //
    }, //
};

/// Buffer of a received message.
enum BufState {
    /// The buffer can be posted again.
    Mapped(RxBuf),
    /// The buffer was unmapped from its device, because LNet keeps the message.
    Detached(DetachedBuf),
    /// No buffer, while the state changes.
    Nothing,
}

/// Receive of a connection, a `C`: its buffer, and the message that was received into it. It is posted as a whole, and
/// LNet gets it as the `private` of `lnet_parse` and returns it with `lnd_recv`: the content does not move.
///
/// # Invariants
///
/// `facts` are the result of [`crate::proto::wire::decode`] for these very bytes.
pub(crate) struct Rx<C> {
    /// Connection that received the message, while LNet has it.
    conn: Option<Arc<C>>,
    buf: BufState,
    /// Number of bytes received. This and the rest are of an old message if there is no message.
    pub(super) nob: usize,
    /// Result of the decoding, once the message is decoded.
    pub(super) facts: Option<ParsedHdr>,
    /// Time of the receive.
    pub(super) at: Timestamp,
    /// Another buffer was posted in its place.
    pub(super) replaced: bool,
}

impl<C: Send + Sync + 'static> RecvBuffer for KBox<Rx<C>> {
    #[inline(always)]
    fn buf_mut(&mut self) -> Option<&mut RxBuf> {
        match &mut self.buf {
            BufState::Mapped(buf) => Some(buf),
            BufState::Detached(_) | BufState::Nothing => None,
        }
    }

    fn into_buf(mut self) -> Option<RxBuf> {
        match core::mem::replace(&mut self.buf, BufState::Nothing) {
            BufState::Mapped(buf) => Some(buf),
            BufState::Detached(_) | BufState::Nothing => None,
        }
    }
}

impl<C> Rx<C> {
    /// Creates a receive without a message.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(buf: RxBuf, flags: Flags) -> Result<KBox<Self>> {
        let empty = Self {
            conn: None,
            buf: BufState::Mapped(buf),
            nob: 0,
            facts: None,
            at: Timestamp::now(),
            replaced: false,
        };
        Ok(KBox::new(empty, flags)?)
    }

    /// Notes that a message of `nob` bytes, which is not decoded yet, was received at the time `at`.
    #[inline]
    pub(super) fn arrived(&mut self, nob: usize, at: Timestamp) {
        self.nob = nob;
        self.facts = None;
        self.at = at;
        self.replaced = false;
    }

    /// Returns the received bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        let bytes = self.whole().and_then(|all| all.get(..self.nob));
        bytes.unwrap_or(&[])
    }

    /// Returns the whole buffer: the received bytes, and old bytes behind them. So the fields that are in every message
    /// need no check of the length.
    #[inline]
    pub(super) fn whole(&self) -> Option<&[u8; MSG_BUF_LEN]> {
        match &self.buf {
            BufState::Mapped(buf) => Some(buf.as_slice()),
            BufState::Detached(buf) => Some(buf.as_slice()),
            BufState::Nothing => None,
        }
    }

    /// Returns the payload of a decoded IMMEDIATE.
    #[inline(always)]
    pub(super) fn payload(&self) -> Option<&[u8]> {
        let facts = self.facts?;
        immediate_payload(self.whole()?, facts)
    }

    /// Returns the body of a decoded message.
    #[inline]
    pub(super) fn body(&self) -> Option<Body<'_>> {
        reparse(self.bytes(), self.facts?).ok()
    }

    /// Returns whether the buffer can be posted.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.buf, BufState::Mapped(_))
    }

    /// Unmaps the buffer from its device, because LNet keeps the message.
    pub(super) fn detach(&mut self) {
        self.buf = match core::mem::replace(&mut self.buf, BufState::Nothing) {
            BufState::Mapped(buf) => BufState::Detached(buf.detach()),
            other => other,
        };
    }

    /// Maps the buffer for its device again, if it was unmapped.
    ///
    /// # Errors
    ///
    /// Returns the error of the mapping; the message stays.
    pub(super) fn attach(&mut self, device: &ARef<Device>) -> Result {
        let buf = match core::mem::replace(&mut self.buf, BufState::Nothing) {
            BufState::Detached(buf) => buf,
            other => {
                self.buf = other;
                return Ok(());
            }
        };
        let (buf, result) = match buf.attach(device) {
            Ok(buf) => (BufState::Mapped(buf), Ok(())),
            Err((buf, e)) => (BufState::Detached(buf), Err(e)),
        };
        self.buf = buf;
        result
    }

    /// Returns whether the buffer is unmapped.
    #[inline]
    pub(super) fn is_detached(&self) -> bool {
        matches!(self.buf, BufState::Detached(_))
    }

    /// Stores the connection of the message before LNet gets it.
    #[inline]
    pub(super) fn lend(&mut self, conn: Arc<C>) {
        // Not an assignment, which would call the destructor of an `Option` that is `None`.
        if let Some(lent_before) = self.conn.replace(conn) {
            cold_drop(lent_before);
        }
    }

    /// Takes the connection of the message after LNet has returned it.
    #[inline]
    pub(super) fn returned(&mut self) -> Option<Arc<C>> {
        self.conn.take()
    }

    /// Returns the LNet header of the request, as it was received.
    pub(crate) fn header(&self) -> &[u8; HDR_SIZE] {
        let rest = self.whole().and_then(|all| all.get(HEADER_LEN..));
        // A request without a header is not given to LNet.
        rest.and_then(|rest| rest.first_chunk())
            .unwrap_or(&[0; HDR_SIZE])
    }
}

/// Drops a value in a case that is rare; a separate function, so that callers have no drop code.
#[cold]
#[inline(never)]
pub(super) fn cold_drop<T>(value: T) {
    drop(value);
}
