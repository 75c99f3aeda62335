// SPDX-License-Identifier: GPL-2.0

//! A peer: the node at the other end, its connections, and the messages that wait for one.
//!
//! A peer is in its NI's table from the first message or accepted request until nothing of it
//! remains: no connection, no attempt, no retry. What decides about attempts is
//! [`crate::proto::peer`].
//!
//! It does not know what a connection is made of: [`Connection`] is all it asks of one.
//!
//! Messages keep their order: while any waits here, new ones wait behind it; the control worker of
//! the first connection hands them over before others may use it ([`carry`]).
//!
//! Process context. The peer lock is a plain spin lock and never held together with a connection's.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    workqueue::DelayedWork, //
};

use self::{
    line::{
        Line,
        Place, //
    },
    roster::{
        Doubtful,
        Roster, //
    }, //
};
use super::{
    ni::Ni,
    parting::{
        Leaving,
        Parting, //
    },
    pending::PendingList,
    table::{
        Named,
        PeerTable, //
    }, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    proto::{
        cause::Cause,
        nid::Nid,
        peer::{
            Known,
            Peer as Policy, //
        },
        way::Passage, //
    },
    rdma::work, //
};

mod admit;
mod attempts;
mod carry;
mod line;
pub(super) mod roster;
mod way;

/// Id of the delayed work that tries again.
const RETRY: u64 = 1;

/// Milliseconds between two looks at messages that wait for the way to open.
const HOLD_LOOK_MS: u32 = 1000;

/// Why [`Connection::send`] did not take a request.
pub(crate) enum NotSent {
    /// The connection is over; another one may take it.
    Closed(Message),
    /// It cannot be sent at all; LNet finalizes it.
    Failed(Message, Error),
}

/// Why [`Peer::send`] did not take a message.
pub(crate) enum PeerError {
    /// The peer object is out of the table.
    Gone(Message),
    /// The message cannot be sent.
    Failed(Message, Error),
}

/// A connection as its peer sees it. No lock of the peer's is held in a call. What it tells its peer is
/// [`Peer::established`], [`Peer::unpublish`], [`Peer::released`].
pub(crate) trait Connection: Leaving + Doubtful + Send + Sync + Sized + 'static {
    /// Makes one to `peer`, not listed there yet. `salt` spreads those of one peer over CPUs. May
    /// sleep.
    fn open(peer: &Arc<Peer<Self>>, active: bool, known: Known, salt: u32) -> Result<Arc<Self>>;

    /// Begins the attempt, if it is ours.
    fn start(self: &Arc<Self>);

    /// Queues a message of LNet, and posts what may go. May sleep; re-entrant.
    fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent>;

    /// Ends it for `cause`, if nothing has yet.
    fn fail(self: &Arc<Self>, cause: Cause);

    /// Ends it if it is an attempt yet: the peer has connected meanwhile.
    fn overtaken(self: &Arc<Self>);

    /// The peer may have given it up: finds out, and others are preferred until then.
    fn doubt(self: &Arc<Self>);

    /// Whether it is established, and with another life of the peer than `stamp`.
    fn is_stale(&self, stamp: u64) -> bool;

    /// Whether we asked for it.
    fn is_active(&self) -> bool;

    /// When something good was last received, on the NI's clock in milliseconds.
    fn heard_ms(&self) -> u64;
}

/// The peers of an NI, and what is left of their connections.
#[pin_data]
pub(crate) struct Peers<C: Connection> {
    pub(crate) ni: Arc<Ni>,
    #[pin]
    pub(crate) table: PeerTable<Peer<C>>,
    /// Connections that are over but for their CM id.
    #[pin]
    pub(crate) parting: Parting<C>,
    /// Who may begin to connect.
    #[pin]
    line: SpinLock<Line>,
}

impl<C: Connection> Peers<C> {
    /// None yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>) -> Result<Arc<Self>> {
        let table = PeerTable::new()?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                table <- table,
                parting <- Parting::new(),
                line <- kernel::new_spinlock!(Line::EMPTY, "Peers::line"),
            }),
            GFP_KERNEL,
        )
    }

    /// The peer with that NID, made if need be. May sleep.
    pub(crate) fn get_or_add(self: &Arc<Self>, nid: Nid) -> Result<Arc<Peer<C>>> {
        let new = || Peer::new(self, nid);
        self.table.get_or_add(nid, new, || self.ni.is_stopping())
    }

    /// So many attempts of ours are over: who waits may begin.
    fn leave_line(&self, attempts: u16) {
        self.line.lock().leave(attempts);
        self.call_next();
    }

    /// Calls who is next in line, if there is room; who has gone meanwhile is passed over.
    fn call_next(&self) {
        loop {
            let next = self.line.lock().next();
            let Some(nid) = next else { return };
            if let Some(peer) = self.table.get(nid) {
                if peer.call() {
                    return;
                }
            }
        }
    }

    /// Number of living connection objects, without those of which only the CM id is left.
    pub(crate) fn conns(&self) -> i32 {
        let parting = i32::try_from(self.parting.len()).unwrap_or(0);
        // One is the NI's own.
        let live = self.ni.live_count().saturating_sub(1);
        live.saturating_sub(parting)
    }

    /// Whether there are connections, or peers that have been told and not been heard.
    pub(crate) fn are_busy(&self) -> bool {
        // An answered DREQ is the proof that it left.
        let mut busy = self.parting.unanswered() > 0;
        self.table.for_each(|peer| {
            busy = busy || peer.with(|inner| inner.objects()) > 0;
        });
        busy
    }
}

/// What the peer lock protects.
pub(crate) struct PeerInner<C> {
    policy: Policy,
    conns: Roster<C>,
    pending: PendingList,
    /// A worker is handing `pending` over.
    flushing: bool,
    /// Out of the table: a new message needs a new peer object.
    gone: bool,
    /// Why the last connection or attempt ended.
    last_cause: Option<Cause>,
    /// When something good was last heard from it, on the NI's clock.
    heard_ms: u64,
    /// When its last attempt was started, on the NI's clock.
    asked_ms: u64,
    /// When the way took its last connection along, on the NI's clock.
    lost_ms: u64,
    /// Whether it waits for its turn to connect.
    place: Place,
    /// When its turn came, on the NI's clock; 0 if it never had to wait for it.
    called_ms: u64,
    /// When the next try is due, on the NI's clock, if one is.
    retry_ms: u64,
}

/// A peer, whose connections are each a `C`.
#[pin_data]
pub(crate) struct Peer<C: Connection> {
    pub(crate) ni: Arc<Ni>,
    /// Those it is one of.
    pub(crate) peers: Arc<Peers<C>>,
    pub(crate) nid: Nid,
    #[pin]
    inner: SpinLock<PeerInner<C>>,
    #[pin]
    retry: DelayedWork<Peer<C>, RETRY>,
}

kernel::impl_has_delayed_work! {
    impl{C: Connection} HasDelayedWork<Self, RETRY> for Peer<C> { self.retry }
}

impl<C: Connection> work::Timed<RETRY> for Peer<C> {
    fn queue(&self) -> &work::OwnedQueue {
        &self.ni.workers.control
    }
}

impl<C: Connection> Named for Peer<C> {
    fn nid(&self) -> Nid {
        self.nid
    }
}

impl<C: Connection> Peer<C> {
    /// Makes a peer that is in no table yet. May sleep.
    fn new(peers: &Arc<Peers<C>>, nid: Nid) -> Result<Arc<Self>> {
        let ni = &peers.ni;
        let known = Known {
            stamp: 0,
            depth: ni.depth(),
            frags: crate::proto::params::MaxFrags::MAX,
        };
        let inner = PeerInner {
            policy: Policy::new(known),
            conns: Roster::EMPTY,
            pending: PendingList::EMPTY,
            flushing: false,
            gone: false,
            last_cause: None,
            heard_ms: ni.now_ms(),
            asked_ms: 0,
            lost_ms: 0,
            place: Place::Nowhere,
            called_ms: 0,
            retry_ms: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                ni: ni.clone(),
                peers: peers.clone(),
                nid,
                inner <- kernel::new_spinlock!(inner, "Peer::inner"),
                retry <- kernel::new_delayed_work!("Peer::retry"),
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `f` under the peer lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut PeerInner<C>) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Lists a new connection object.
    pub(crate) fn add(&self, conn: &Arc<C>) -> Result {
        let mut inner = self.inner.lock();
        // Either this sees that the NI stops, or its shutdown, which takes the lock after saying
        // so, sees the connection. The same for a peer that is not allowed any more.
        if inner.gone || self.ni.is_stopping() || !self.ni.lnet.allows(self.nid.raw()) {
            return Err(ESHUTDOWN);
        }
        inner.conns.add(conn)
    }

    /// Messages may no longer use `conn`.
    pub(crate) fn unpublish(&self, conn: &Arc<C>) {
        self.inner.lock().conns.unpublish(conn);
    }

    /// Its turn has come. False: it does not want it any more.
    fn call(self: &Arc<Self>) -> bool {
        let now_ms = self.ni.now_ms();
        let due = self.with(|inner| {
            if inner.place != Place::Waiting {
                return false;
            }
            if !inner.policy.is_due() {
                inner.place = Place::Nowhere;
                return false;
            }
            inner.place = Place::Called;
            inner.called_ms = now_ms;
            true
        });
        if due {
            work::rearm::<Self, RETRY>(self.clone(), 0);
        }
        due
    }

    /// Milliseconds that a message may wait for a connection: those in line are not to blame.
    fn patience_ms(&self, inner: &PeerInner<C>) -> i64 {
        let limit = self.ni.pending_limit_ms();
        let since = self.ni.now_ms().saturating_sub(inner.called_ms);
        let late = inner.called_ms != 0 && i64::try_from(since).is_ok_and(|ms| ms < limit);
        if late || inner.place == Place::Waiting {
            limit.max(self.ni.message_limit_ms())
        } else {
            limit
        }
    }

    /// For people: the next try is in so many milliseconds.
    fn note_retry(&self, ms: u32) {
        let at_ms = self.ni.now_ms().saturating_add(u64::from(ms));
        self.with(|inner| inner.retry_ms = at_ms);
    }

    fn retry_in(self: &Arc<Self>, ms: u32) {
        self.note_retry(ms);
        let _ = work::arm::<Self, RETRY>(self.clone(), ms);
    }

    /// For how many milliseconds our youngest request is under way.
    pub(super) fn connecting_ms(&self, inner: &PeerInner<C>) -> Option<u64> {
        let since = self.ni.now_ms().saturating_sub(inner.asked_ms);
        inner.policy.connecting().then_some(since)
    }

    /// Ends every connection and every attempt, and fails what waits.
    pub(crate) fn close(self: &Arc<Self>, cause: Cause) {
        let waiting = self.with(|inner| inner.pending.take());
        self.ni.seen.messages(cause, waiting.len());
        waiting.fail(cause);
        self.for_each_conn(|conn| conn.fail(cause));
        let _ = work::cancel::<Self, RETRY>(self);
        // Whether there was one or not: somebody may be arming it now, and in vain.
        let _ = self.with(|inner| inner.policy.cancel_retry());
        self.forget_if_idle(Some(cause));
    }

    /// One connection ended because nothing was heard: whether the others are as dead shows now,
    /// not when something is to be sent on each of them.
    pub(crate) fn doubt_all(&self) {
        self.for_each_conn(|conn| conn.doubt());
    }

    /// Closes the connections but keeps the peer. False: there were none.
    pub(crate) fn close_conns(&self, cause: Cause) -> bool {
        let mut any = false;
        self.for_each_conn(|conn| {
            any = true;
            conn.fail(cause);
        });
        any
    }

    /// Calls `f` for each connection, without the lock; for some twice if others go meanwhile. Needs no
    /// memory.
    fn for_each_conn(&self, mut f: impl FnMut(&Arc<C>)) {
        let mut left = self.with(|inner| inner.conns.len());
        // From the end, for new ones come there, and what goes moves only what is behind it.
        while let Some(at) = left.checked_sub(1) {
            left = at;
            let conn = self.with(|inner| inner.conns.at(at));
            if let Some(conn) = conn {
                f(&conn);
            }
        }
    }

    /// The connections, for people; without memory not all of them.
    pub(crate) fn conns(&self) -> KVec<Arc<C>> {
        self.with(|inner| inner.conns.snapshot())
    }
}

impl<C: Connection> PeerInner<C> {
    /// Races lost by the peer in a row.
    pub(crate) fn races(&self) -> u8 {
        self.policy.races()
    }

    /// Attempts that failed in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.policy.failures()
    }

    /// Why the last connection or attempt ended, if none was made since.
    pub(crate) fn last_cause(&self) -> Option<Cause> {
        self.last_cause
    }

    /// When something good was last heard on a connection that is over, on the NI's clock.
    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Messages that wait for a connection.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Number of connections that messages may use.
    pub(crate) fn usable(&self) -> usize {
        self.conns.usable()
    }

    /// Milliseconds that the oldest waiting message has waited; 0 if none waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.pending.waited_ms()
    }

    /// When the next try is due, on the NI's clock; `None` if none is.
    pub(crate) fn retry_at_ms(&self) -> Option<u64> {
        self.policy.is_due().then_some(self.retry_ms)
    }

    /// Number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.conns.len()).unwrap_or(u16::MAX)
    }

    /// A message wants a connection and there is none: how many attempts to start, and whether a
    /// retry is to be armed because the way is closed, or it is not its turn.
    fn want(&mut self, peer: &Peer<C>, passage: Passage) -> (u16, bool) {
        let attempts = peer.ni.lnet.conns_per_peer().max(1);
        if passage != Passage::Open {
            return (0, self.policy.hold());
        }
        if !self.policy.may_start() {
            return (0, false);
        }
        if self.has_turn(peer, attempts) {
            (self.policy.start(attempts), false)
        } else {
            (0, self.policy.hold())
        }
    }

    /// A retry is due: how many attempts to start, and whether to look again because it is not its turn.
    fn try_again(&mut self, peer: &Peer<C>) -> (u16, bool) {
        let conns_per_peer = peer.ni.lnet.conns_per_peer();
        let waiting = !self.pending.is_empty();
        let wanted = self.policy.would_retry(waiting, conns_per_peer);
        if wanted > 0 && !self.has_turn(peer, wanted) {
            return (0, true);
        }
        // As many as that: the lock is held.
        let started = self.policy.retry(waiting, conns_per_peer);
        (started, false)
    }

    /// Whether so many attempts may begin now, which counts them; else it is in line.
    fn has_turn(&mut self, peer: &Peer<C>, attempts: u16) -> bool {
        let mut line = peer.peers.line.lock();
        if line.enter(attempts, self.place) {
            self.place = Place::Nowhere;
            return true;
        }
        if self.place != Place::Waiting {
            self.place = line.join(peer.nid);
        }
        false
    }

    /// The next connection to use; none while older messages wait.
    fn pick(&mut self) -> Option<Arc<C>> {
        if self.flushing || !self.pending.is_empty() {
            return None;
        }
        self.conns.pick()
    }
}
