// SPDX-License-Identifier: GPL-2.0

//! A connection as one of its peer's: what [`Connection`] asks for, in the words of this room.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    conn::Conn,
    peer::{
        Connection,
        NotSent,
        Peer, //
    },
    pump,
    send, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    proto::{
        cause::Cause,
        conn::{
            Event,
            State, //
        },
        peer::Known, //
    }, //
};

impl Connection for Conn {
    fn open(peer: &Arc<Peer<Self>>, active: bool, known: Known, salt: u32) -> Result<Arc<Self>> {
        Self::new(peer, active, known, salt)
    }

    fn start(self: &Arc<Self>) {
        self.event(Event::Start);
    }

    fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent> {
        send::send(self, msg, req)
    }

    fn fail(self: &Arc<Self>, cause: Cause) {
        self.event(Event::Fail(cause));
    }

    fn overtaken(self: &Arc<Self>) {
        let mut guard = self.lock();
        if guard.fsm.state() < State::Established {
            self.step(&mut guard, Event::Fail(Cause::Overtaken));
        }
    }

    fn doubt(self: &Arc<Self>) {
        pump::probe(self);
    }

    fn is_doubted(&self) -> bool {
        self.doubted()
    }

    fn is_stale(&self, stamp: u64) -> bool {
        self.with(|inner| inner.is_up() && inner.identity.peer_stamp != stamp)
    }

    fn is_active(&self) -> bool {
        self.active
    }

    fn heard_ms(&self) -> u64 {
        let ago = self.with(|inner| inner.last_recv.elapsed().as_millis());
        let now_ms = self.ni.now_ms();
        now_ms.saturating_sub(u64::try_from(ago).unwrap_or(0))
    }
}
