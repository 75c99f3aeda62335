// SPDX-License-Identifier: GPL-2.0

//! A peer: the node at the other end, its connections, and the messages that wait for one.
//!
//! A peer is in its NI's table from the first message or accepted request until nothing of it
//! remains: no connection, no attempt, no retry. What decides about attempts is
//! [`crate::proto::peer`].
//!
//! Messages keep their order: while any waits here, new ones wait behind it; the control worker of
//! the first connection hands them over before others may use it.
//!
//! Process context. The peer lock is a plain spin lock and never held together with a connection's.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    }, //
};

use super::{
    conn::Conn,
    log,
    ni::Ni,
    pending::{
        Pending,
        PendingList, //
    },
    send::{
        self,
        NotSent, //
    },
    transfer::lnet_health, //
};
use crate::{
    lnet::{
        Message,
        SendRequest, //
    },
    proto::{
        cause::Cause,
        conn::Event,
        nid::Nid,
        peer::{
            After,
            Known,
            Peer as Policy, //
        },
        race::STALE_REQUEST_MS,
        way::{
            Passage,
            RECALL_MS, //
        }, //
    },
    rdma::{
        random,
        work::{
            self,
            NofsScope, //
        }, //
    }, //
};

/// Id of the delayed work that tries again.
const RETRY: u64 = 1;

/// Milliseconds between two looks at messages that wait for the way to open.
const HOLD_LOOK_MS: u32 = 1000;

/// Milliseconds over which peers without a message are connected to when the way opens.
const RECALL_SPREAD_MS: u32 = 200;

/// What the peer lock protects.
pub(crate) struct PeerInner {
    pub(crate) policy: Policy,
    /// Every connection object, in whatever state.
    all: KVec<Arc<Conn>>,
    /// Those that messages may use.
    up: KVec<Arc<Conn>>,
    /// Round robin over `up`.
    next: usize,
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
}

/// A peer.
#[pin_data]
pub(crate) struct Peer {
    pub(crate) ni: Arc<Ni>,
    pub(crate) nid: Nid,
    #[pin]
    inner: SpinLock<PeerInner>,
    #[pin]
    retry: DelayedWork<Peer, RETRY>,
}

kernel::impl_has_delayed_work! {
    impl HasDelayedWork<Self, RETRY> for Peer { self.retry }
}

impl WorkItem<RETRY> for Peer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _nofs = NofsScope::enter();
        this.fail_expired();
        if this.ni.passage() != Passage::Open {
            return this.wait_for_way();
        }
        let listed = this.ni.is_listed();
        let attempts = this.with(|inner| {
            if !listed {
                let _ = inner.policy.cancel_retry();
            }
            let waiting = !inner.pending.is_empty();
            inner.policy.retry(waiting, this.ni.lnet.conns_per_peer())
        });
        for _ in 0..attempts {
            this.attempt();
        }
        if attempts == 0 {
            this.forget_if_idle(None);
        }
    }
}

impl Peer {
    /// Makes a peer that is in no table yet. May sleep.
    pub(crate) fn new(ni: &Arc<Ni>, nid: Nid) -> Result<Arc<Self>> {
        let known = Known {
            stamp: 0,
            depth: ni.depth(),
            frags: crate::proto::params::MaxFrags::MAX,
        };
        let inner = PeerInner {
            policy: Policy::new(known),
            all: KVec::new(),
            up: KVec::new(),
            next: 0,
            pending: PendingList::EMPTY,
            flushing: false,
            gone: false,
            last_cause: None,
            heard_ms: ni.now_ms(),
            asked_ms: 0,
            lost_ms: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                ni: ni.clone(),
                nid,
                inner <- kernel::new_spinlock!(inner, "Peer::inner"),
                retry <- kernel::new_delayed_work!("Peer::retry"),
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `f` under the peer lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut PeerInner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Sends a message over one of the connections, or keeps it until there is one.
    ///
    /// # Errors
    ///
    /// [`PeerError::Gone`] if the peer is out of the table: look it up again.
    pub(crate) fn send(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), PeerError> {
        let mut msg = msg;
        loop {
            let conn = {
                let mut inner = self.inner.lock();
                if inner.gone {
                    return Err(PeerError::Gone(msg));
                }
                match inner.pick() {
                    Some(conn) => conn,
                    None => break,
                }
            };
            match send::send(&conn, msg, req) {
                Ok(()) => return Ok(()),
                Err(NotSent::Failed(msg, e)) => return Err(PeerError::Failed(msg, e)),
                Err(NotSent::Closed(back)) => {
                    msg = back;
                    self.unpublish(&conn);
                }
            }
        }
        self.wait(msg, req)
    }

    /// Keeps a message until there is a connection, and starts making one if there is a way.
    fn wait(self: &Arc<Self>, msg: Message, req: &SendRequest) -> Result<(), PeerError> {
        let passage = self.ni.passage();
        if passage == Passage::Refuse && self.with(|inner| inner.up.is_empty()) {
            // Ended here, for LNet would not send again what is not taken.
            self.ni.seen.messages(Cause::LinkDown, 1);
            end_one(msg, Cause::LinkDown);
            self.forget_if_unused();
            return Ok(());
        }
        let pending = match Pending::new(msg, req) {
            Ok(pending) => pending,
            Err(msg) => return Err(PeerError::Failed(msg, ENOMEM)),
        };
        let (attempts, hold, flusher) = {
            let mut inner = self.inner.lock();
            if inner.gone {
                let (msg, _) = KBox::into_inner(pending).into_parts();
                return Err(PeerError::Gone(msg));
            }
            inner.pending.push_back(pending);
            let (attempts, hold) = inner.want(passage, self.ni.lnet.conns_per_peer());
            (attempts, hold, inner.best())
        };
        if hold {
            self.retry_in(HOLD_LOOK_MS);
        }
        for _ in 0..attempts {
            self.attempt();
        }
        if let Some(conn) = flusher {
            self.flush(&conn);
        }
        Ok(())
    }

    /// Starts one attempt that the policy has already counted.
    fn attempt(self: &Arc<Self>) {
        let now_ms = self.ni.now_ms();
        let (known, salt) = self.with(|inner| {
            inner.asked_ms = now_ms;
            (inner.policy.known, inner.all.len())
        });
        let salt = u32::try_from(salt).unwrap_or(0);
        if !self.ni.lnet.allows(self.nid.raw()) {
            return self.denied();
        }
        let made = Conn::new(&self.ni, self, true, known, salt)
            .and_then(|conn| self.add(&conn).map(|()| conn));
        match made {
            Ok(conn) => conn.event(Event::Start),
            Err(e) => {
                let cause = match e {
                    ENODEV => Cause::DeviceGone,
                    _ => Cause::NoResources,
                };
                self.ni.seen.ended(self.nid, true, false, cause, None);
                self.attempt_over(true, None, cause);
            }
        }
    }

    /// The administrator does not want the attempt that was just counted.
    fn denied(self: &Arc<Self>) {
        log::denied(self.nid);
        let seen = &self.ni.seen;
        seen.ended(self.nid, true, false, Cause::AdminClose, Some("Denied"));
        self.attempt_over(true, None, Cause::AdminClose);
    }

    /// Lists a new connection object.
    pub(crate) fn add(&self, conn: &Arc<Conn>) -> Result {
        let mut inner = self.inner.lock();
        // Either this sees that the NI stops, or its shutdown, which takes the lock after saying
        // so, sees the connection.
        if inner.gone || self.ni.is_stopping() {
            return Err(ESHUTDOWN);
        }
        // Room for both lists now, so that publishing cannot fail.
        let n = inner.all.len().saturating_add(1);
        let more = n.saturating_sub(inner.up.len());
        inner.up.reserve(more, GFP_ATOMIC)?;
        inner.all.push(conn.clone(), GFP_ATOMIC)?;
        Ok(())
    }

    /// An attempt became a connection: messages that waited go first, then it is open to all.
    /// Called by the connection's control worker.
    pub(crate) fn established(self: &Arc<Self>, conn: &Arc<Conn>, known: Known) {
        let now_ms = self.ni.now_ms();
        let (others, stale) = {
            let mut inner = self.inner.lock();
            let stale = now_ms.saturating_sub(inner.asked_ms) >= STALE_REQUEST_MS;
            inner.policy.established(conn.active, known);
            inner.last_cause = None;
            let others = inner.snapshot();
            inner.publish(conn);
            (others, stale)
        };
        for other in others {
            // Of an earlier life of the peer.
            if other.is_stale(known.stamp) {
                other.fail(Cause::PeerRestarted);
            } else if !conn.active && !Arc::ptr_eq(&other, conn) {
                if other.active && stale {
                    other.overtaken();
                }
                other.doubt();
            }
        }
        self.flush(conn);
    }

    /// Hands waiting messages to `conn`, in order, until none waits. Only one does it at a time,
    /// and while it does nobody overtakes.
    fn flush(self: &Arc<Self>, conn: &Arc<Conn>) {
        if self.with(|inner| core::mem::replace(&mut inner.flushing, true)) {
            return;
        }
        loop {
            let pending = {
                let mut inner = self.inner.lock();
                match inner.pending.pop_front() {
                    Some(pending) => pending,
                    None => {
                        inner.flushing = false;
                        return;
                    }
                }
            };
            let since = pending.since();
            let (msg, req) = KBox::into_inner(pending).into_parts();
            match send::send(conn, msg, &req) {
                Ok(()) => {}
                Err(NotSent::Failed(msg, e)) => fail_one(msg, e),
                Err(NotSent::Closed(msg)) => {
                    let back = Pending::again(msg, &req, since);
                    let mut late = PendingList::EMPTY;
                    let mut lost = None;
                    {
                        // At once, so that nobody overtakes.
                        let mut inner = self.inner.lock();
                        inner.unpublish(conn);
                        inner.flushing = false;
                        match back {
                            // The peer was forgotten while the message was on its way to the
                            // connection.
                            Ok(pending) if inner.gone => late.push_back(pending),
                            Ok(pending) => inner.pending.push_front(pending),
                            Err(msg) => lost = Some(msg),
                        }
                    }
                    late.fail(Cause::PeerClosed);
                    if let Some(msg) = lost {
                        fail_one(msg, ENOMEM);
                    }
                    self.serve_waiting();
                    return;
                }
            }
        }
    }

    /// Sees to it that messages that wait get a connection: one that is up, or a new one.
    ///
    /// Not a new one if LNet deletes the NI. Then the messages end with the last object of the peer.
    fn serve_waiting(self: &Arc<Self>) {
        let listed = self.ni.is_listed();
        let passage = self.ni.passage();
        let (attempts, hold, flusher) = self.with(|inner| {
            if inner.pending.is_empty() || inner.gone {
                return (0, false, None);
            }
            if let Some(conn) = inner.best() {
                return (0, false, Some(conn));
            }
            if !listed {
                return (0, false, None);
            }
            let (attempts, hold) = inner.want(passage, self.ni.lnet.conns_per_peer());
            (attempts, hold, None)
        });
        if hold {
            self.retry_in(HOLD_LOOK_MS);
        }
        for _ in 0..attempts {
            self.attempt();
        }
        if let Some(conn) = flusher {
            self.flush(&conn);
        }
    }

    /// Messages may no longer use `conn`.
    pub(crate) fn unpublish(&self, conn: &Arc<Conn>) {
        self.inner.lock().unpublish(conn);
    }

    /// The connection object is released. Called by its control worker, last of all.
    pub(crate) fn released(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        attempt_failed: bool,
        retry: Option<Known>,
        cause: Cause,
    ) {
        // Before the lock: it takes the connection's.
        let heard_ms = conn.heard_ms();
        {
            let mut inner = self.inner.lock();
            inner.heard_ms = inner.heard_ms.max(heard_ms);
            inner.unpublish(conn);
            inner.all.retain(|c| !Arc::ptr_eq(c, conn));
        }
        if attempt_failed {
            self.attempt_over(conn.active, retry, cause);
            return;
        }
        let lost = self.ni.passage() != Passage::Open && !self.ni.is_stopping();
        let now_ms = self.ni.now_ms();
        let recall = self.with(|inner| {
            inner.last_cause = Some(cause);
            let _ = inner.policy.closed();
            inner.lost_ms = now_ms;
            lost && cause != Cause::AdminClose && !inner.gone && inner.policy.recall()
        });
        if recall {
            self.retry_in(HOLD_LOOK_MS);
        }
        // Messages that came while it was closing want another one.
        self.serve_waiting();
        self.forget_if_idle(Some(cause));
    }

    /// An attempt is over, and its object released.
    pub(crate) fn attempt_over(self: &Arc<Self>, active: bool, retry: Option<Known>, cause: Cause) {
        if cause == Cause::ConnectTimeout {
            self.ni.unheard();
        }
        let random = random::u32();
        // An NI that LNet deletes cannot be connected to, so it would lose every race against a peer that
        // keeps trying.
        let listed = self.ni.is_listed();
        // What the way closed on waits for it to open.
        let again = retry.is_some() || self.ni.passage() == Passage::Hold;
        let after = self.with(|inner| {
            if let Some(known) = retry {
                inner.policy.learnt(known);
            }
            inner.last_cause = Some(cause);
            let waiting = listed && !inner.pending.is_empty() && !inner.gone;
            inner.policy.failed(active, again, waiting, random)
        });
        match after {
            After::RetryIn(ms) => self.retry_in(ms),
            After::OthersRemain => {}
            After::GiveUp => self.forget_if_idle(Some(cause)),
        }
    }

    /// Takes the peer from its table if it was only looked at.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        if self.with(|inner| inner.pending.is_empty()) {
            self.forget_if_idle(Some(Cause::Refused));
        }
    }

    /// Takes the peer from its table if nothing of it remains, and fails what still waits.
    fn forget_if_idle(self: &Arc<Self>, cause: Option<Cause>) {
        let (waiting, heard_ms) = {
            let mut inner = self.inner.lock();
            if !inner.policy.idle() || inner.gone || !inner.all.is_empty() {
                return;
            }
            inner.gone = true;
            (inner.pending.take(), inner.heard_ms)
        };
        self.ni.peers.remove(self);
        let cause = cause
            .or_else(|| self.with(|inner| inner.last_cause))
            .unwrap_or(Cause::PeerClosed);
        if !waiting.is_empty() {
            log::gave_up(self, waiting.len(), cause);
        }
        waiting.fail(cause);
        if !self.ni.is_stopping() && cause.blames_peer() {
            let age = self.ni.now_ms().saturating_sub(heard_ms) / 1000;
            self.ni.lnet.notify_down(self.nid.raw(), age);
        }
    }

    /// The way is closed: a retry waits for it to open, but not for ever.
    fn wait_for_way(self: &Arc<Self>) {
        let refuse = self.ni.passage() == Passage::Refuse;
        let now_ms = self.ni.now_ms();
        let again = self.with(|inner| {
            if self.ni.is_stopping() {
                // A connection that was released meanwhile may have asked for it.
                let _ = inner.policy.cancel_retry();
                return false;
            }
            let waiting = !refuse && !inner.pending.is_empty();
            let recalled =
                inner.policy.is_recalled() && now_ms.saturating_sub(inner.lost_ms) < RECALL_MS;
            if !waiting && !recalled {
                let _ = inner.policy.cancel_retry();
                return false;
            }
            // The pause after an attempt may have ended meanwhile, and with it what is due.
            inner.policy.hold() || inner.policy.is_due()
        });
        if again {
            self.retry_in(HOLD_LOOK_MS);
        } else {
            self.forget_if_idle(Some(Cause::LinkDown));
        }
    }

    /// The way closed: connections end, and if LNet has another way (`refuse`) so do messages that
    /// wait for one.
    pub(super) fn way_closed(self: &Arc<Self>, refuse: bool) {
        for conn in self.conns() {
            conn.fail(Cause::LinkDown);
        }
        if refuse {
            let waiting = self.with(|inner| inner.pending.take());
            self.ni.seen.messages(Cause::LinkDown, waiting.len());
            waiting.fail(Cause::LinkDown);
        }
    }

    /// The way is open: what waits for it goes at once; others soon, but not all of them in the same
    /// moment.
    pub(super) fn way_opened(self: &Arc<Self>) {
        let (due, waiting) = self.with(|inner| (inner.policy.is_due(), !inner.pending.is_empty()));
        if due {
            let ms = if waiting {
                0
            } else {
                random::u32() % RECALL_SPREAD_MS
            };
            self.ni
                .driver
                .control
                .rearm::<Self, RETRY>(self.clone(), ms);
        }
    }

    fn retry_in(self: &Arc<Self>, ms: u32) {
        let _ = self.ni.driver.control.arm::<Self, RETRY>(self.clone(), ms);
    }

    /// For how many milliseconds our youngest request is under way.
    pub(super) fn connecting_ms(&self, inner: &PeerInner) -> Option<u64> {
        let since = self.ni.now_ms().saturating_sub(inner.asked_ms);
        inner.policy.connecting().then_some(since)
    }

    /// Ends messages that have waited longer than they may.
    pub(super) fn fail_expired(&self) {
        let limit = self.ni.pending_limit_ms();
        let mut expired = PendingList::EMPTY;
        while let Some(pending) = self.with(|inner| inner.pending.pop_expired(limit)) {
            expired.push_back(pending);
        }
        let seen = &self.ni.seen;
        seen.messages(Cause::DeadlineConnecting, expired.len());
        expired.fail(Cause::DeadlineConnecting);
    }

    /// Ends every connection and every attempt, and fails what waits.
    pub(crate) fn close(self: &Arc<Self>, cause: Cause) {
        let (conns, waiting) = {
            let mut inner = self.inner.lock();
            (inner.snapshot(), inner.pending.take())
        };
        self.ni.seen.messages(cause, waiting.len());
        waiting.fail(cause);
        for conn in conns {
            conn.fail(cause);
        }
        let _ = work::cancel::<Self, RETRY>(self);
        // Whether there was one or not: somebody may be arming it now, and in vain.
        let _ = self.with(|inner| inner.policy.cancel_retry());
        self.forget_if_idle(Some(cause));
    }

    /// One connection ended because nothing was heard: whether the others are as dead shows now,
    /// not when something is to be sent on each of them.
    pub(crate) fn doubt_all(&self) {
        for conn in self.conns() {
            conn.doubt();
        }
    }

    /// Closes the connections but keeps the peer. False: there were none.
    pub(crate) fn close_conns(&self, cause: Cause) -> bool {
        let conns = self.with(|inner| inner.snapshot());
        let any = !conns.is_empty();
        for conn in conns {
            conn.fail(cause);
        }
        any
    }

    /// The connections, for people.
    pub(crate) fn conns(&self) -> KVec<Arc<Conn>> {
        self.with(|inner| inner.snapshot())
    }
}

impl PeerInner {
    /// Whether it left the table.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
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
        self.up.len()
    }

    /// Milliseconds that the oldest waiting message has waited; 0 if none waits.
    pub(crate) fn waited_ms(&self) -> i64 {
        self.pending.waited_ms()
    }

    /// Number of connection objects.
    pub(crate) fn objects(&self) -> u16 {
        u16::try_from(self.all.len()).unwrap_or(u16::MAX)
    }

    /// A message wants a connection and there is none: how many attempts to start, and whether a
    /// retry is to be armed because the way is closed.
    fn want(&mut self, passage: Passage, conns_per_peer: u16) -> (u16, bool) {
        match passage {
            Passage::Open => (self.policy.start(conns_per_peer), false),
            Passage::Hold | Passage::Refuse => (0, self.policy.hold()),
        }
    }

    /// The next connection to use; none while older messages wait.
    fn pick(&mut self) -> Option<Arc<Conn>> {
        if self.flushing || !self.pending.is_empty() {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        let at = self.next.checked_rem(self.up.len())?;
        match self.up.get(at) {
            Some(conn) if !conn.is_doubted() => Some(conn.clone()),
            _ => self.best(),
        }
    }

    /// The oldest connection that is not doubted, or else the newest.
    fn best(&self) -> Option<Arc<Conn>> {
        let sound = self.up.iter().find(|conn| !conn.is_doubted());
        sound.or(self.up.last()).cloned()
    }

    fn publish(&mut self, conn: &Arc<Conn>) {
        if !self.all.iter().any(|c| Arc::ptr_eq(c, conn)) {
            return;
        }
        // `Peer::add` made room.
        let _ = self.up.push_within_capacity(conn.clone());
    }

    fn unpublish(&mut self, conn: &Arc<Conn>) {
        self.up.retain(|c| !Arc::ptr_eq(c, conn));
    }

    fn snapshot(&self) -> KVec<Arc<Conn>> {
        let mut list = KVec::new();
        for conn in self.all.iter() {
            if list.push(conn.clone(), GFP_ATOMIC).is_err() {
                break;
            }
        }
        list
    }
}

/// Why [`Peer::send`] did not take a message.
pub(crate) enum PeerError {
    /// The peer object is out of the table.
    Gone(Message),
    /// The message cannot be sent.
    Failed(Message, Error),
}

fn end_one(msg: Message, cause: Cause) {
    let outcome = cause.outcome(false);
    msg.finalize(outcome.status, lnet_health(outcome.health));
}

fn fail_one(msg: Message, e: Error) {
    msg.finalize(e.to_errno(), crate::lnet::Health::LocalError);
}
