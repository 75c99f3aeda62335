// SPDX-License-Identifier: GPL-2.0

//! Passive side: checks connection requests.
//!
//! Runs in the CM's workqueue under the listener's handler mutex, so that all other requests wait. Therefore it only
//! checks the request ([`crate::proto::handshake`]) and creates a small object. The connection's control worker
//! creates queue pair and buffers, and accepts the request, or rejects it if that fails.

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use super::{
    conn::Conn,
    log,
    ni::{
        Ni,
        O2ib, //
    },
    peer::{
        Connection,
        Peers, //
    },
    stats::{
        close_log::CloseStats,
        conn_trace, //
    },
    timestamp::Timestamp, //
};
use crate::{
    lnet::{
        params,
        Lnd,
        StartError, //
    },
    policy::request_rate::{
        timer_units,
        RateLimit,
        Rates,
        SourceBucket,
        PARTS,
        REFUSALS,
        TAKEN, //
    },
    proto::{
        cause::Cause,
        constants::PeerParams,
        handshake::{
            check_ni,
            device_ready,
            parse_connreq,
            CmSource,
            ConnReq,
            PeerVerdict, //
        },
        nid::Nid,
        reject::RejectCause as Why, //
    },
    rdma::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        listen::{
            ConnRequest,
            ListenHandler, //
        },
        random,
        work::NofsScope, //
    }, //
};

/// NI as LNet knows it.
pub(crate) type LnetNi = <O2ib as Lnd>::Ni;

/// Handler of the requests of one interface.
#[pin_data]
pub(crate) struct Accept {
    /// Counter of requests for none of the NIs.
    strangers: Arc<CloseStats>,
    /// Set while the device is being removed.
    removed: Atomic<bool>,
    /// NIs that listen here.
    #[pin]
    users: SpinLock<KVec<Arc<LnetNi>>>,
    /// Rate limit of rejects.
    #[pin]
    refusals: SpinLock<RateLimiter>,
    /// Rate limit of accepted requests.
    #[pin]
    taken: SpinLock<RateLimiter>,
}

/// Rate limit with its memory.
type RateLimiter = RateLimit<KVec<SourceBucket>>;

/// Creates an unused rate limit. May sleep.
fn rate_limiter(rates: Rates) -> Result<RateLimiter> {
    let buckets = KVec::from_elem(SourceBucket::UNUSED, PARTS, GFP_KERNEL)?;
    Ok(RateLimit::new(rates, random::u64(), buckets))
}

/// Returns the time on the clock of the rate limits.
fn now_ms() -> u64 {
    Timestamp::now().ns() / 1_000_000
}

/// Findings about a request while it is checked, for the answer and the counters.
#[derive(Default)]
struct Findings {
    src: Option<Nid>,
    ni: Option<Arc<Ni>>,
}

impl Accept {
    /// Creates the handler. May sleep.
    pub(crate) fn new(strangers: Arc<CloseStats>) -> Result<Arc<Self>> {
        let refusals = rate_limiter(REFUSALS)?;
        let taken = rate_limiter(TAKEN)?;
        Arc::pin_init(
            pin_init!(Self {
                strangers,
                removed: Atomic::new(false),
                users <- kernel::new_spinlock!(KVec::new(), "Accept::users"),
                refusals <- kernel::new_spinlock!(refusals, "Accept::refusals"),
                taken <- kernel::new_spinlock!(taken, "Accept::taken"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether the device is being removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Acquire)
    }

    /// Treats the device like one that is being removed, because it cannot be used any more.
    pub(crate) fn withdraw_device(&self) {
        self.removed.store(true, Release);
    }

    /// Makes `user` listen here. Requests for an NI that is not registered here are rejected.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add_ni(&self, user: &Arc<LnetNi>) -> Result {
        Ok(self.users.lock().push(user.clone(), GFP_ATOMIC)?)
    }

    /// Stops listening for `user`.
    pub(crate) fn remove_ni(&self, user: &Arc<LnetNi>) {
        let mut users = self.users.lock();
        let at = users.iter().position(|of| Arc::ptr_eq(of, user));
        let user = at.and_then(|at| users.remove(at).ok());
        drop(users);
        drop(user);
    }

    /// Makes the NIs check their device, because the device of the listener is being removed, or its address may be on
    /// another device. Runs in a handler of the listener, so it must not wait for a device.
    fn check_devices(&self) {
        self.users
            .lock()
            .iter()
            .for_each(|user| user.doubt_address());
    }

    /// Checks a request that came from `from`. Returns the connection object for an accepted request. `Err(None)`: no
    /// answer and no record. Not over TCP.
    fn validate(
        &self,
        req: &ConnRequest<'_>,
        from: &CmSource,
        findings: &mut Findings,
    ) -> Result<Arc<Conn>, Option<Why>> {
        let privileged = params::require_privileged_port();
        let asked = parse_connreq(req.private_data(), from, privileged)?;
        findings.src = Some(asked.src);
        let any = self.users.lock().first().map(|user| user.ni.clone());
        let serves = |of: &LnetNi| {
            self.users
                .lock()
                .iter()
                .any(|user| core::ptr::eq(&**user, of))
        };
        let found = any
            .and_then(|ni| ni.lnet.find(asked.dst.raw()))
            .filter(|found| serves(&found.lnd));
        findings.ni = found.as_ref().map(|found| found.lnd.ni.clone());
        let view = found.as_ref().map(|found| found.lnd.ni.view(found.active));
        let ready = device_ready(
            self.users
                .lock()
                .iter()
                .map(|user| user.ni.lnet.is_active()),
        );
        let known = check_ni(&asked, view.as_ref(), ready, from)?;
        let Some(peers) = found.as_ref().map(|found| &found.lnd.peers) else {
            return Err(Why::NoSuchNi(asked.dst).into());
        };
        if peers.ni.way(|way| !way.has_interface()) {
            // When the link is up again, this node connects.
            if req.is_over_tcp() {
                return Err(Why::Race.into());
            }
            // An answer might find no route any more.
            let now_ms = peers.ni.now_ms();
            peers.ni.way(|way| way.asked(now_ms));
            return Err(None);
        }
        if !peers.ni.lnet.allows(asked.src.raw()) {
            return Err(Why::Denied.into());
        }
        if peers.ni.retained_rx.are_too_many(asked.src) {
            return Err(Why::TooMany.into());
        }
        let units = timer_units(req.packet_life_time());
        let ration = || match req.is_over_tcp() {
            // The CM keeps no timer for a closed connection.
            true => Ok(()),
            false => self.taken.lock().take(from.payer(), now_ms(), units, false),
        };
        Ok(admit(peers, &asked, known, ration)?)
    }
}

/// Checks a request against the state of the peer and `ration` (stage 3). Counts the attempt if the request is
/// accepted.
fn admit(
    peers: &Arc<Peers<Conn>>,
    asked: &ConnReq,
    known: PeerParams,
    ration: impl Fn() -> Result<(), Why>,
) -> Result<Arc<Conn>, Why> {
    let no_resources = |e: Error| Why::NoResources(e.to_errno());
    let mut is_counted = false;
    let mut ration = || {
        // Once, however often the look-up of the peer is repeated.
        if !is_counted {
            ration()?;
            is_counted = true;
        }
        Ok(())
    };
    // An unknown peer takes no memory before this check.
    if peers.table.get(asked.src.addr()).is_none() {
        ration()?;
    }
    loop {
        let peer = peers.get_or_add(asked.src).map_err(no_resources)?;
        let verdict = peer.validate(asked, &mut ration);
        match verdict {
            // The peer is leaving its table: after the removal, the next look-up creates a new one.
            None => peers.remove(&peer),
            Some(PeerVerdict::Accept | PeerVerdict::Reborn) => {
                if verdict == Some(PeerVerdict::Reborn) {
                    // A restarted peer answers on none of them.
                    peer.for_each_conn(|conn| conn.recheck());
                }
                return peer.open(None, known).map_err(|e| {
                    peer.accept_failed(Cause::NoResources);
                    no_resources(e)
                });
            }
            Some(PeerVerdict::Refuse(refusal)) => {
                peer.forget_if_unused();
                return Err(refusal);
            }
        }
    }
}

impl ListenHandler for Accept {
    fn device_removal(&self) {
        // The listener gets the event before its connections: no message that these give up requests another connection
        // on this device.
        for user in self.users.lock().iter() {
            let now_ms = user.ni.now_ms();
            user.ni.way(|way| way.detached(now_ms));
        }
        self.removed.store(true, Release);
        // The listener cannot be dropped in its own handler.
        self.check_devices();
    }

    fn addr_change(&self) {
        self.check_devices();
    }

    fn connect_request(&self, req: &mut ConnRequest<'_>) {
        let _nofs = NofsScope::enter();
        let mut findings = Findings::default();
        let addr = req.dst_addr();
        let from = CmSource {
            addr: addr.and_then(|a| a.ip_v4()),
            port: addr.map_or(u16::MAX, |a| a.port()),
            gid: req.roce_gid(),
        };
        let result = self.validate(req, &from, &mut findings);
        let Findings { src, ni } = findings;
        let reject = |refusal: &Why| refusal.reject(ni.as_ref().map(|ni| ni.view(true)).as_ref());
        match result {
            Ok(conn) => {
                let taken = req
                    .take(conn.clone())
                    .and_then(|id| Ok(Arc::new(id, GFP_KERNEL)?));
                match taken {
                    Ok(id) => conn.requested(id, req.qpn()),
                    Err(e) => {
                        log::cannot(conn.nid(), "take a connection request", e);
                        conn.fail(Cause::NoResources);
                        if req.is_over_tcp() {
                            let refusal = Why::NoResources(e.to_errno());
                            let _ = req.reject(&reject(&refusal).encode());
                        }
                    }
                }
            }
            Err(None) => {}
            Err(Some(refusal)) => {
                let stats = ni.as_ref().map_or(&self.strangers, |ni| &ni.close_stats);
                stats.refused(src, &refusal);
                conn_trace::refused(ni.as_ref().map(|ni| ni.nid), src, &refusal);
                if refusal != Why::Race {
                    log::refused(src, &refusal);
                }
                // Beyond a rate limit a request is dropped. The requester takes that for a lost packet and repeats
                // the request after seconds. Over TCP the provider would answer.
                let is_told = !matches!(refusal, Why::TooOften | Why::TooOftenInAll);
                let may_answer = || {
                    let mut refusals = self.refusals.lock();
                    let counted = refusals.take(from.payer(), now_ms(), 1, refusal.invites());
                    counted.is_ok()
                };
                if is_told && (req.is_over_tcp() || may_answer()) {
                    let _ = req.reject(&reject(&refusal).encode());
                }
            }
        }
    }
}

/// Returns the reason for LNet why the driver cannot listen.
pub(crate) fn cannot_listen(e: Error) -> StartError {
    let why = match e == ENODEV {
        true => "no RDMA device has this address, see \"rdma link\"",
        false => "cannot listen (is the port in use? see the parameter \"service\")",
    };
    StartError::because(why)(e)
}
