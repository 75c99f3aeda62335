// SPDX-License-Identifier: GPL-2.0

//! Peer: the remote node, its connections, and the messages that wait for one.
//!
//! A peer is in its NI's table from the first message or accepted request until it has no connection, no attempt and no
//! retry. [`crate::policy::reconnect`] decides about attempts.
//!
//! Messages that wait keep their order. The blocking worker of a new connection hands them over, the sender of a new
//! message, or a retry ([`send`]). Meanwhile other new messages use the connection directly: LNet relies on no order.
//!
//! Context: process. The peer lock is a plain spin lock and is never held together with the lock of a connection.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLock, //
    },
    workqueue::DelayedWork, //
};

use super::{
    log,
    ni::{
        Ni,
        O2ib, //
    },
    timestamp::Timestamp, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    policy::{
        cm_id_linger,
        connect_queue::{
            ConnectPriority,
            ConnectQueue,
            QueueState, //
        },
        liveness,
        reconnect::ReconnectState as Policy, //
    },
    proto::{
        cause::Cause,
        constants::{
            PeerParams,
            QueueDepth, //
        },
        nid::Nid, //
    },
    rdma::{
        rcu_map::{
            MapWalk,
            RcuMap, //
        },
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

mod connect;
mod send;

/// Ids of the delayed works: the retry, and the timeout of waiting messages.
const RETRY: u64 = 1;
const PENDING: u64 = 2;

/// Milliseconds between two checks of messages that wait for the link to come up.
const RECHECK_MS: u32 = 1000;

/// Reason why [`Conn::send`] or [`Peer::wait`] did not take a message.
pub(crate) enum NotSent {
    /// The connection is closed, or the peer object is out of the table: another one may take the message.
    Closed(Message),
    /// The message cannot be sent at all; LNet finalizes it, if it has not waited.
    Failed(Message, Error),
    /// The message cannot be sent now; the caller finalizes it with this cause ([`fail_msg`]).
    Lost(Message, Cause),
}

/// Names the type of the connections, which a higher file defines.
pub(crate) trait HasConns {
    type Conn;
}

type Conn = <O2ib as HasConns>::Conn;

/// Peers of an NI, and their closed connections that still have a CM id.
#[pin_data]
pub(crate) struct Peers {
    pub(crate) ni: Arc<Ni>,
    /// Peers by IPv4 address: all peers of an NI are on its network.
    pub(crate) table: RcuMap<Peer>,
    /// Closed connections, which no peer lists: each has nothing except its CM id, which waits for the DREP or for a
    /// route ([`cm_id_linger`]). With each, whether it waited for a route when it was listed: thousands may do so while
    /// a link is down. No connection is added once the NI stops.
    #[pin]
    lingering: Mutex<KVVec<(Arc<Conn>, bool)>>,
    /// Attempts in flight, and numbers of peers that wait for their turn to connect.
    #[pin]
    line: SpinLock<ConnectQueue>,
    /// Position behind the peer whose turn came last.
    #[pin]
    turn_walk: SpinLock<MapWalk>,
    /// Positions in LNet's lists of peers and connections.
    #[pin]
    peer_walk: Mutex<WalkPos>,
    #[pin]
    conn_walk: Mutex<WalkPos>,
}

impl Peers {
    /// Creates an empty set. May sleep.
    pub(crate) fn new(ni: Arc<Ni>) -> Result<Arc<Self>> {
        let table = RcuMap::new()?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                table,
                lingering <- kernel::new_mutex!(KVVec::new(), "Peers::lingering"),
                line <- kernel::new_spinlock!(ConnectQueue::default(), "Peers::line"),
                turn_walk <- kernel::new_spinlock!(MapWalk::default(), "Peers::turn_walk"),
                peer_walk <- kernel::new_mutex!(WalkPos::default(), "Peers::peer_walk"),
                conn_walk <- kernel::new_mutex!(WalkPos::default(), "Peers::conn_walk"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the peer with that NID, and creates it if necessary. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `ESHUTDOWN` if the NI stops.
    // Off the path of messages: a new peer takes much stack.
    #[inline(never)]
    pub(crate) fn get_or_add(self: &Arc<Self>, nid: Nid) -> Result<Arc<Peer>> {
        loop {
            if let Some(peer) = self.table.get(nid.addr()) {
                return Ok(peer);
            }
            // The file system may wait for the caller.
            let _nofs = NofsScope::enter();
            let peer = Peer::new(self, nid)?;
            match self.table.add(nid.addr(), &peer) {
                Ok(()) => return Ok(peer),
                // Another caller has just added it.
                Err(EEXIST) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Removes a peer from the map. May sleep.
    pub(crate) fn remove(&self, peer: &Arc<Peer>) {
        let _nofs = NofsScope::enter();
        let queue = &self.ni.workers.control;
        self.table.remove(peer.nid.addr(), peer, queue);
    }

    /// Returns peer number `index`.
    pub(crate) fn peer_at(&self, index: u32) -> Option<Arc<Peer>> {
        let mut pos = self.peer_walk.lock();
        pos.find(&self.table, index, |peer, at| match at {
            0 => Ok(peer.clone()),
            _ => Err(1),
        })
    }

    /// Returns connection number `index`.
    pub(crate) fn conn_at(&self, index: u32) -> Option<Arc<Conn>> {
        let mut pos = self.conn_walk.lock();
        pos.find(&self.table, index, |peer, at| {
            let conn = usize::try_from(at).ok().and_then(|at| peer.conn_at(at));
            conn.ok_or_else(|| peer.with(|inner| inner.objects()))
        })
    }

    /// Calls `f` for each connection of each peer, without a lock ([`Peer::for_each_conn`]).
    pub(crate) fn for_each_conn(&self, mut f: impl FnMut(&Arc<Conn>)) {
        self.table.for_each(|peer| peer.for_each_conn(&mut f));
    }

    /// Lists a closed connection whose CM id waits. With `mute`, its DREQ is not sent yet. Returns false if the id
    /// cannot wait.
    pub(crate) fn add_lingering(&self, conn: &Arc<Conn>, mute: bool) -> bool {
        let mut list = self.lingering.lock();
        let told = list.iter().filter(|(_, mute)| !mute);
        let told = told.map(|(other, _)| other.nid() == conn.nid());
        cm_id_linger::has_room(mute, list.len(), told)
            // Either this sees that the NI stops, or the shutdown sees the connection.
            && !self.ni.is_stopping()
            && list.push((conn.clone(), mute), GFP_KERNEL).is_ok()
    }

    /// Takes `conn`, to which the caller has another reference, off that list.
    pub(crate) fn remove_lingering(&self, conn: &Arc<Conn>) {
        let mut list = self.lingering.lock();
        list.retain(|(other, _)| !Arc::ptr_eq(other, conn));
    }

    /// Calls `f` for each connection of that list, without the lock, as [`Peer::for_each_conn`] does.
    pub(crate) fn for_each_lingering(&self, mut f: impl FnMut(&Arc<Conn>)) {
        for at in (0..self.nr_lingering()).rev() {
            let conn = self.lingering.lock().get(at).map(|(conn, _)| conn.clone());
            conn.iter().for_each(&mut f);
        }
    }

    /// Returns the number of CM ids that wait.
    pub(crate) fn nr_lingering(&self) -> usize {
        self.lingering.lock().len()
    }

    /// Returns how many of the connections that messages may use were created with settings other than the current
    /// ones. Does not sleep.
    pub(crate) fn older_conns(&self) -> u32 {
        let (now, mut older) = (self.ni.lnet.conn_settings(), 0u32);
        let is_older = |conn: &&Arc<Conn>| conn.is_usable() && !conn.has_settings(&now);
        self.table.for_each(|peer| {
            let n = peer.with(|inner| inner.conns.all.iter().filter(is_older).count());
            older = older.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        });
        older
    }
}

/// Position of a walk over the peers or connections of an NI. LNet lists them by asking for number 0, 1, 2 and so on
/// until there is none. A walk that began at the first peer for each number would take a minute with ten thousand
/// peers, so the walk continues from its last position. Administrators that list at the same time disturb each other:
/// then a walk begins at the first peer.
#[derive(Default)]
struct WalkPos {
    /// Number of the next peer, or of its first connection.
    first: u32,
    walk: MapWalk,
}

impl WalkPos {
    /// Returns item `index` of the peers. `item` returns an item of one peer by number, otherwise how many it has.
    /// Continues from the current position if that is not behind `index`.
    fn find<T>(
        &mut self,
        peers: &RcuMap<Peer>,
        index: u32,
        item: impl Fn(&Arc<Peer>, u32) -> Result<T, u16>,
    ) -> Option<T> {
        // Peers that were passed without a connection may have one now.
        if index == 0 || index < self.first {
            *self = Self::default();
        }
        loop {
            let mut walk = self.walk;
            let peer = peers.next(&mut walk)?;
            match item(&peer, index.saturating_sub(self.first)) {
                Ok(found) => return Some(found),
                Err(items) => self.first = self.first.saturating_add(items.into()),
            }
            self.walk = walk;
        }
    }
}

/// State that the peer lock protects.
pub(crate) struct PeerInner {
    pub(crate) policy: Policy,
    conns: ConnList,
    pending: PendingList,
    /// A thread is handing over the messages of `pending`.
    flushing: bool,
    /// The peer is out of the table: a new message needs a new peer object.
    gone: bool,
    /// Cause of the last end of a connection or attempt.
    last_cause: Option<Cause>,
    /// Time of the last valid message of the peer on a closed connection, on the NI's clock.
    heard_ms: u64,
    /// Time of the start of the last attempt, on the NI's clock.
    asked_ms: u64,
    /// Depth that the NI offered then. If it offers another one, the limit that the peer has set is forgotten.
    offered: QueueDepth,
    /// Time of the end of the last connection, on the NI's clock.
    lost_ms: u64,
    /// State in the connect queue.
    turn: QueueState,
    /// Time of its turn in the connect queue, on the NI's clock; 0 if the peer never had to wait for it.
    called_ms: u64,
    /// Time of the next attempt, on the NI's clock, if one is due.
    retry_ms: u64,
}

/// State of a peer, by the keys of debugfs.
pub(crate) struct PeerSnapshot {
    pub(crate) conns: u16,
    pub(crate) usable: usize,
    pub(crate) waiting: usize,
    pub(crate) waited_ms: i64,
    pub(crate) failures: u32,
    /// Time of the next attempt, on the NI's clock; `None` if none is due.
    pub(crate) retry_at_ms: Option<u64>,
}

#[pin_data]
pub(crate) struct Peer {
    pub(crate) ni: Arc<Ni>,
    /// The set of peers that has this peer.
    pub(crate) peers: Arc<Peers>,
    pub(crate) nid: Nid,
    #[pin]
    inner: SpinLock<PeerInner>,
    #[pin]
    retry: DelayedWork<Peer, RETRY>,
    #[pin]
    pending_timer: DelayedWork<Peer, PENDING>,
}

impl Peer {
    /// Creates a peer that is in no table yet. May sleep.
    fn new(peers: &Arc<Peers>, nid: Nid) -> Result<Arc<Self>> {
        let ni = &peers.ni;
        let inner = PeerInner {
            policy: Policy::default(),
            conns: ConnList::default(),
            pending: PendingList::default(),
            flushing: false,
            gone: false,
            last_cause: None,
            heard_ms: ni.now_ms(),
            asked_ms: 0,
            offered: ni.lnet.peer_credits(),
            lost_ms: 0,
            turn: QueueState::Nowhere,
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
                pending_timer <- kernel::new_delayed_work!("Peer::pending_timer"),
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `f` under the peer lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut PeerInner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Creates a connection object and lists it. May sleep.
    pub(crate) fn open(
        self: &Arc<Self>,
        turn: Option<ConnectPriority>,
        known: PeerParams,
    ) -> Result<Arc<Conn>> {
        // Spreads the connections of one peer over CPUs and completion vectors.
        let salt = u32::from(self.with(|inner| inner.objects()));
        let conn = Conn::new(self, turn, known, salt)?;
        let mut inner = self.inner.lock();
        // Either this sees that the NI stops, or the shutdown, which takes the lock after it has set the flag, sees the
        // connection. The same holds for a peer that is no longer allowed.
        if inner.gone || self.ni.is_stopping() || !self.ni.lnet.allows(self.nid.raw()) {
            return Err(ESHUTDOWN);
        }
        inner.conns.add(&conn)?;
        drop(inner);
        Ok(conn)
    }

    pub(crate) fn snapshot(&self) -> PeerSnapshot {
        self.with(|inner| PeerSnapshot {
            conns: inner.objects(),
            usable: inner.conns.usable(),
            waiting: inner.pending.len(),
            waited_ms: inner.pending.waited_ms(),
            failures: inner.policy.failures,
            retry_at_ms: inner.policy.is_due().then_some(inner.retry_ms),
        })
    }

    /// Closes the connections but keeps the peer. Outstanding transfers end first if that is soon. Returns whether
    /// there were connections.
    pub(crate) fn finish_conns(&self, cause: Cause) -> bool {
        let any = self.with(|inner| {
            inner.policy.no_more();
            inner.objects() > 0
        });
        self.for_each_conn(|conn| conn.finish(cause));
        any
    }

    /// Returns the connection at index `place`, in any state. New connections are added at the end, and a removal moves
    /// only those behind it.
    pub(crate) fn conn_at(&self, place: usize) -> Option<Arc<Conn>> {
        self.with(|inner| inner.conns.all.get(place).cloned())
    }

    /// Calls `f` for each connection, without the lock. May call it twice for one connection if others are removed
    /// meanwhile. Needs no memory.
    pub(crate) fn for_each_conn(&self, mut f: impl FnMut(&Arc<Conn>)) {
        // From the end: see `conn_at`.
        for at in (0..self.with(|inner| inner.conns.all.len())).rev() {
            self.conn_at(at).iter().for_each(&mut f);
        }
    }

    /// Closes every connection and every attempt, and fails the waiting messages.
    pub(crate) fn close(self: &Arc<Self>, cause: Cause) {
        let waiting = self.with(|inner| {
            inner.policy.no_more();
            core::mem::take(&mut inner.pending)
        });
        waiting.fail(&self.ni, cause);
        self.for_each_conn(|conn| conn.end(cause));
        self.drop_retry(cause);
    }

    /// Fails the waiting messages, because LNet has another path for them.
    pub(crate) fn refuse_waiting(&self) {
        let waiting = self.with(|inner| core::mem::take(&mut inner.pending));
        waiting.fail(&self.ni, self.ni.way(|way| way.why()));
    }

    /// Cancels the retry, and forgets an idle peer: messages do not wait for another attempt.
    fn drop_retry(self: &Arc<Self>, cause: Cause) {
        self.with(|inner| inner.policy.cancel_retry());
        self.forget(Some(cause), true);
    }

    /// Takes the peer from its table if it has no waiting message and no connection. Does not blame the peer.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        if self.with(|inner| inner.pending.is_empty()) {
            self.forget(Some(Cause::PeerClosed), true);
        }
    }

    /// Takes the peer from its table if it has no connection and no attempt, and fails the messages that still wait.
    /// While messages are handed over, the peer stays, because they may come back.
    /// `asked`: this node had requested a connection or had one, so LNet is notified that the peer is down if the cause
    /// blames the peer. May sleep, because LNet may send another message from inside when a message is finalized.
    fn forget(self: &Arc<Self>, cause: Option<Cause>, asked: bool) {
        let (waiting, heard_ms, last_cause) = {
            let mut guard = self.inner.lock();
            let inner = &mut *guard;
            let is_used = !inner.policy.idle() || inner.flushing || inner.objects() > 0;
            if is_used || inner.gone {
                return;
            }
            inner.gone = true;
            self.peers.line.lock().forget(&mut inner.turn);
            let waiting = core::mem::take(&mut inner.pending);
            (waiting, inner.heard_ms, inner.last_cause)
        };
        let _ = work::cancel::<Self, PENDING>(self);
        let _ = work::cancel::<Self, RETRY>(self);
        self.peers.remove(self);
        let cause = cause.or(last_cause).unwrap_or(Cause::PeerClosed);
        if !waiting.is_empty() {
            log::gave_up(self.nid, waiting.len(), cause);
        }
        waiting.fail(&self.ni, cause);
        if asked && !self.ni.is_stopping() && cause.has(Cause::BLAMES_PEER) {
            let age = self.ni.now_ms().saturating_sub(heard_ms) / 1000;
            self.ni.lnet.notify_down(self.nid.raw(), age);
        }
    }
}

impl PeerInner {
    /// Returns the number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.conns.all.len()).unwrap_or(u16::MAX)
    }
}

/// Connections of a peer, in any state. The caller holds the peer lock.
#[derive(Default)]
struct ConnList {
    all: KVec<Arc<Conn>>,
    /// Place of the connection that had the last turn.
    next: usize,
}

impl ConnList {
    /// Lists a new connection object, and assigns the lowest unused index. Any context.
    fn add(&mut self, conn: &Arc<Conn>) -> Result {
        let has = |index: &u32| self.all.iter().any(|conn| conn.index() == *index);
        let index = (0..=u32::MAX).find(|index| !has(index)).unwrap_or(0);
        conn.set_index(index);
        Ok(self.all.push(conn.clone(), GFP_ATOMIC)?)
    }

    fn remove(&mut self, conn: &Arc<Conn>) {
        self.all.retain(|other| !Arc::ptr_eq(other, conn));
    }

    /// Returns the next connection to use.
    fn pick(&mut self) -> Option<Arc<Conn>> {
        // Usually there is one, and it takes all turns.
        if let [only] = &*self.all {
            return only.is_usable().then(|| only.clone());
        }
        let next = liveness::pick(&mut self.next, &self.all, |conn| conn.is_sound());
        next.cloned().or_else(|| self.best())
    }

    /// Returns the oldest connection that is not doubted, otherwise the newest.
    #[cold]
    #[inline(never)]
    fn best(&self) -> Option<Arc<Conn>> {
        let sound = self.all.iter().find(|conn| conn.is_sound());
        let newest = || self.all.iter().rfind(|conn| conn.is_usable());
        sound.or_else(newest).cloned()
    }

    /// Returns the number of connections that messages may use.
    fn usable(&self) -> usize {
        self.all.iter().filter(|conn| conn.is_usable()).count()
    }
}

/// A waiting message.
struct Pending {
    /// `None` while a connection has it.
    msg: Option<Message>,
    req: SendRequest,
    /// Cause for which a connection failed it.
    cause: Option<Cause>,
    since: Timestamp,
    next: Option<KBox<Pending>>,
}

impl Pending {
    /// Wraps a message, or gives it back if there is no memory. May sleep.
    fn new(msg: Message, req: &SendRequest) -> Result<KBox<Self>, Message> {
        let Ok(slot) = KBox::new_uninit(GFP_KERNEL) else {
            return Err(msg);
        };
        let pending = Self {
            msg: Some(msg),
            req: req.keep(),
            cause: None,
            since: Timestamp::now(),
            next: None,
        };
        Ok(KBox::write(slot, pending))
    }
}

/// List of waiting messages, in order. Linking and unlinking cannot fail, and is done under the peer lock; a message is
/// allocated and finalized without it. The list is short, because LNet's credits limit it, and off the fast path. So
/// appending walks the list.
#[derive(Default)]
struct PendingList {
    head: Option<KBox<Pending>>,
}

impl PendingList {
    fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    fn len(&self) -> usize {
        core::iter::successors(self.head.as_deref(), |of| of.next.as_deref()).count()
    }

    /// Returns how long the oldest message has waited, in milliseconds; 0 if none waits.
    fn waited_ms(&self) -> i64 {
        self.head
            .as_ref()
            .map_or(0, |oldest| oldest.since.elapsed_ms())
    }

    fn push_back(&mut self, pending: KBox<Pending>) {
        let mut at = &mut self.head;
        while let Some(there) = at {
            at = &mut there.next;
        }
        *at = Some(pending);
    }

    fn push_front(&mut self, mut pending: KBox<Pending>) {
        pending.next = self.head.take();
        self.head = Some(pending);
    }

    fn pop_front(&mut self) -> Option<KBox<Pending>> {
        let mut pending = self.head.take()?;
        self.head = pending.next.take();
        Some(pending)
    }

    /// Takes the messages that have waited longer than `limit_ms` milliseconds. The list is in order, so one walk finds
    /// them.
    fn take_expired(&mut self, limit_ms: i64) -> Self {
        let mut at = &mut self.head;
        while at.as_ref().is_some_and(|p| p.since.elapsed_ms() > limit_ms) {
            let Some(expired) = at else { break };
            at = &mut expired.next;
        }
        let rest = at.take();
        Self {
            head: core::mem::replace(&mut self.head, rest),
        }
    }

    /// Finalizes every message for its own cause, otherwise for `cause`. Process context, no lock held.
    fn fail(mut self, ni: &Ni, cause: Cause) {
        while let Some(pending) = self.pop_front() {
            let pending = KBox::into_inner(pending);
            if let Some(msg) = pending.msg {
                fail_msg(ni, msg, pending.cause.unwrap_or(cause));
            }
        }
    }
}

impl Drop for PendingList {
    fn drop(&mut self) {
        // One by one: dropping the head would recurse through the list.
        while self.pop_front().is_some() {}
    }
}

/// Finalizes a message of an NI with `cause`, because LNet does not resend a message that the driver did not take.
pub(crate) fn fail_msg(ni: &Ni, msg: Message, cause: Cause) {
    ni.close_stats.messages(cause, 1);
    let outcome = cause.outcome(false);
    msg.finalize(outcome.status, outcome.health);
}
