// SPDX-License-Identifier: GPL-2.0

//! A peer: the node at the other end, its connections, and the messages that wait for one.
//!
//! A peer is in its NI's table from the first message or accepted request until nothing of it
//! remains: no connection, no attempt, no retry. What decides about attempts is
//! [`crate::policy::reconnect`].
//!
//! It does not know what a connection is made of: [`Connection`] is all it asks of one.
//!
//! Messages keep their order: while any waits here, new ones wait behind it; the blocking worker of
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
    conn_list::{
        ConnList,
        ConnListEntry, //
    },
    connect_queue::ConnectWaiters, //
};
use super::{
    lingering::{
        Lingering,
        LingeringConns, //
    },
    ni::Ni,
    peer_table::{
        HasNid,
        PeerTable, //
    },
    pending::PendingList, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    policy::{
        connect_queue::{
            ConnectPriority,
            QueueState, //
        },
        reconnect::{
            PeerParams,
            ReconnectState as Policy, //
        }, //
    },
    proto::{
        cause::Cause,
        nid::Nid, //
    },
    rdma::random, //
};

mod accept;
pub(super) mod conn_list;
mod connect;
mod connect_queue;
mod connect_slot;
mod link_change;
mod pending_timeout;
pub(super) mod send;
mod snapshot;

/// Ids of the delayed works: that tries again, that looks after messages that wait.
const RETRY: u64 = 1;
const PATIENCE: u64 = 2;

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
pub(crate) trait Connection:
    Lingering + ConnListEntry + Send + Sync + Sized + 'static
{
    /// Makes one to `peer`, not listed there yet: in that `turn` of ours, or for one the peer asked for. `salt` spreads
    /// those of one peer over CPUs. May sleep.
    fn open(
        peer: &Arc<Peer<Self>>,
        turn: Option<ConnectPriority>,
        known: PeerParams,
        salt: u32,
    ) -> Result<Arc<Self>>;

    /// Begins the attempt, if it is ours.
    fn start(self: &Arc<Self>);

    /// Queues a message of LNet, and posts what may go. May sleep; re-entrant.
    fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), NotSent>;

    /// Ends it for `cause`, if nothing has yet.
    fn fail(self: &Arc<Self>, cause: Cause);

    /// The same when what is under way on it has ended, and soon in any case. Nothing new goes over it.
    fn finish(self: &Arc<Self>, cause: Cause);

    /// Ends it if it is on another device than the NI, or the NI's address has left that.
    fn moved(self: &Arc<Self>);

    /// Ends it if its path MTU is larger than `mtu` bytes.
    fn fit_mtu(self: &Arc<Self>, mtu: u32);

    /// Returns for how long its queue pair sends a packet again that is not acknowledged, in milliseconds. `None`:
    /// it is not known yet.
    fn transport_ms(&self) -> Option<u64>;

    /// The turn in line that our attempt had until now; it has none any more.
    fn end_turn(&self) -> Option<ConnectPriority>;

    /// Ends it if it is an attempt yet: the peer has connected meanwhile.
    fn overtaken(self: &Arc<Self>);

    /// The peer may have given it up: finds out, and others are preferred until then.
    fn doubt(self: &Arc<Self>);

    /// The same, though it was asked just now: it is to be answered from now on.
    fn doubt_now(self: &Arc<Self>);

    /// Something waits on another connection, whose peer is silent: it is asked on this one, too, unless it has just
    /// said something here.
    fn ask(self: &Arc<Self>);

    /// Whether it is established, and not over yet.
    fn is_up(&self) -> bool;

    /// Whether it is that, and with another life of the peer than `stamp`.
    fn is_stale(&self, stamp: u64) -> bool;

    /// Whether one side has the other's answer for sure. Else somebody has sent into its queue pair.
    fn is_confirmed(&self) -> bool;

    /// Whether we asked for it.
    fn is_active(&self) -> bool;

    /// When something good was last received, on the NI's clock in milliseconds.
    fn heard_ms(&self) -> u64;

    /// For how many milliseconds it was there, and not over yet.
    fn lived_ms(&self) -> u64;
}

/// The peers of an NI, and what is left of their connections.
#[pin_data]
pub(crate) struct Peers<C: Connection> {
    pub(crate) ni: Arc<Ni>,
    #[pin]
    pub(crate) table: PeerTable<Peer<C>>,
    /// Connections that are over but for their CM id.
    #[pin]
    pub(crate) parting: LingeringConns<C>,
    /// Who may begin to connect.
    #[pin]
    line: SpinLock<ConnectWaiters>,
}

impl<C: Connection> Peers<C> {
    /// None yet. May sleep.
    pub(crate) fn new(ni: Arc<Ni>) -> Result<Arc<Self>> {
        let table = PeerTable::new()?;
        let line = ConnectWaiters::new(random::u64())?;
        Arc::pin_init(
            pin_init!(Self {
                ni,
                table <- table,
                parting <- LingeringConns::new(),
                line <- kernel::new_spinlock!(line, "Peers::line"),
            }),
            GFP_KERNEL,
        )
    }

    /// The peer with that NID, made if need be. May sleep.
    pub(crate) fn get_or_add(self: &Arc<Self>, nid: Nid) -> Result<Arc<Peer<C>>> {
        let new = || Peer::new(self, nid);
        self.table.get_or_add(nid, new, || self.ni.is_stopping())
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
    conns: ConnList<C>,
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
    place: QueueState,
    /// What the attempts that were counted last have their turn for.
    claim: ConnectPriority,
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
    #[pin]
    patience: DelayedWork<Peer<C>, PATIENCE>,
}

kernel::impl_has_delayed_work! {
    impl{C: Connection} HasDelayedWork<Self, RETRY> for Peer<C> { self.retry }
    impl{C: Connection} HasDelayedWork<Self, PATIENCE> for Peer<C> { self.patience }
}

impl<C: Connection> HasNid for Peer<C> {
    fn nid(&self) -> Nid {
        self.nid
    }
}

impl<C: Connection> Peer<C> {
    /// Makes a peer that is in no table yet. May sleep.
    fn new(peers: &Arc<Peers<C>>, nid: Nid) -> Result<Arc<Self>> {
        let ni = &peers.ni;
        let known = PeerParams {
            stamp: 0,
            depth: ni.depth(),
            frags: crate::proto::params::MaxFrags::MAX,
        };
        let inner = PeerInner {
            policy: Policy::new(known),
            conns: ConnList::EMPTY,
            pending: PendingList::EMPTY,
            flushing: false,
            gone: false,
            last_cause: None,
            heard_ms: ni.now_ms(),
            asked_ms: 0,
            lost_ms: 0,
            place: QueueState::Nowhere,
            claim: ConnectPriority::First,
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
                patience <- kernel::new_delayed_work!("Peer::patience"),
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

    /// For how many milliseconds our youngest request is under way.
    pub(super) fn connecting_ms(&self, inner: &PeerInner<C>) -> Option<u64> {
        let since = self.ni.now_ms().saturating_sub(inner.asked_ms);
        inner.policy.connecting().then_some(since)
    }

    /// Ends every connection and every attempt, and fails what waits.
    pub(crate) fn close(self: &Arc<Self>, cause: Cause) {
        let waiting = self.with(|inner| {
            inner.policy.no_more();
            inner.pending.take()
        });
        self.ni.seen.messages(cause, waiting.len());
        waiting.fail(cause);
        self.for_each_conn(|conn| conn.fail(cause));
        self.with(|inner| {
            let _ = inner.policy.cancel_retry();
            self.retry_no_more();
        });
        self.forget_if_idle(Some(cause));
    }

    /// One connection ended because nothing was heard: whether the others are as dead shows now,
    /// not when something is to be sent on each of them.
    pub(crate) fn doubt_all(&self) {
        self.for_each_conn(|conn| conn.doubt());
    }

    /// Somebody says that the peer was restarted: if so none of them is answered any more.
    pub(crate) fn doubt_lives(&self) {
        self.for_each_conn(|conn| conn.doubt_now());
    }

    /// Something waits on one connection, and nothing is heard: whether the peer is dead shows on all of them at
    /// about the same time, not on one after the other.
    pub(crate) fn ask_all(&self) {
        self.for_each_conn(|conn| conn.ask());
    }

    /// Closes the connections but keeps the peer. What is under way on them ends first, if that is soon. False: there
    /// were none.
    pub(crate) fn finish_conns(&self, cause: Cause) -> bool {
        let mut any = false;
        self.with(|inner| inner.policy.no_more());
        self.for_each_conn(|conn| {
            any = true;
            conn.finish(cause);
        });
        any
    }

    /// The connection at that place, in whatever state. Those that come later are behind it.
    pub(crate) fn conn_at(&self, place: usize) -> Option<Arc<C>> {
        self.with(|inner| inner.conns.at(place))
    }

    /// Calls `f` for each connection, without the lock; for some twice if others go meanwhile. Needs no
    /// memory.
    pub(crate) fn for_each_conn(&self, mut f: impl FnMut(&Arc<C>)) {
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
}

impl<C: Connection> PeerInner<C> {
    /// The next connection to use; none while older messages wait.
    fn pick(&mut self) -> Option<Arc<C>> {
        if self.flushing || !self.pending.is_empty() {
            return None;
        }
        self.conns.pick()
    }
}
