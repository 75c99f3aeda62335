// SPDX-License-Identifier: GPL-2.0

//! Checks of both sides of a handshake: of the passive side on a connection request, CONNREQ (spec 4.4), and of the
//! active side on the answer, CONNACK (spec 4.5).
//!
//! A request has three stages, because the driver has to look up objects between them:
//!
//! 1. [`parse_connreq`]: the bytes alone. Afterwards the driver looks for the NI that the request is for.
//! 2. [`check_ni`]: against that NI. Afterwards the driver looks for the peer.
//! 3. [`check_peer`]: against the state of the peer.
//!
//! [`RejectCause::reject`] makes private data of a reject of any stage.

use super::{
    constants::{
        MaxFrags,
        PeerParams,
        QueueDepth,
        FRAGS_MAX,
        MSG_SIZE_WIRE,
        RACES_MAX, //
    },
    nid::{
        race_key,
        Nid, //
    },
    reject::{
        Reject,
        RejectCause, //
    },
    require,
    wire::{
        check_identity,
        decode,
        Body,
        ConnParams,
        Identity,
        Stale,
        Version,
        WireError, //
    }, //
};

/// First port that needs no privilege to bind (`PROT_SOCK` of the kernel).
pub const UNPRIVILEGED: u16 = 1024;
/// Prefix of an IPv4 address in a GID.
const MAPPED: u128 = 0xffff << 32;

/// Well-formed request, not yet checked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnReq {
    pub src: Nid,
    pub src_stamp: u64,
    /// Requested NI; its NID is of our LND, but it may not exist.
    pub dst: Nid,
    /// Its incarnation as the requester knows it; 0 = unknown.
    pub dst_stamp: u64,
    /// Requested parameters, unchecked.
    pub params: ConnParams,
}

/// The NI that a request is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct NiView {
    pub nid: Nid,
    pub stamp: u64,
    /// Its `peer_credits`: the largest depth it takes.
    pub peer_credits: QueueDepth,
    /// Whether LNet has it in service.
    pub active: bool,
}

/// Source of a request, by the CM.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CmSource {
    /// IPv4 address as a number in host order; `None` for another family.
    pub addr: Option<u32>,
    /// Port in host order.
    pub port: u16,
    /// GID on RoCE, which contains the address; `None` on other networks, whose GID does not.
    pub gid: Option<[u8; 16]>,
}

impl CmSource {
    /// Returns whether it comes from the address with that number. The address is what the sender's CM wrote into a
    /// header, so it may be forged. The answer goes to the GID, so a host with another GID does not get it.
    fn is_from(&self, addr: u32) -> bool {
        let mapped = |gid: [u8; 16]| u128::from_be_bytes(gid) == MAPPED | u128::from(addr);
        self.addr == Some(addr) && self.gid.is_none_or(mapped)
    }

    /// Returns the address whose part of the reject budget ([`RateLimit`]) pays for an answer. A request with the
    /// forged address of another node does not use up that node's part.
    pub fn payer(&self) -> Option<u32> {
        self.addr.filter(|addr| self.is_from(*addr))
    }
}

/// Reads a request, in stage 1 (spec 4.4 rows 1-4 and 8, guards H1-H3). `privileged`: the administrator requires a
/// source port below 1024. Version 0x11 is rejected: only peers before 2009 use it (spec 11).
pub fn parse_connreq(
    private_data: &[u8],
    from: &CmSource,
    privileged: bool,
) -> Result<ConnReq, RejectCause> {
    let permitted = !privileged || from.port < UNPRIVILEGED;
    require(permitted, RejectCause::Port(from.port))?;
    let msg = decode(private_data).map_err(RejectCause::Wire)?;
    require(msg.env.version == Version::V2, RejectCause::OldVersion)?;
    let Body::ConnReq(params) = msg.body else {
        return Err(RejectCause::NotAConnReq);
    };
    require(msg.env.dst.is_o2ib(), RejectCause::ForeignDestination)?;
    require(msg.env.src.is_o2ib(), RejectCause::ForeignSource)?;
    Ok(ConnReq {
        src: msg.env.src,
        src_stamp: msg.env.src_stamp,
        dst: msg.env.dst,
        dst_stamp: msg.env.dst_stamp,
        params,
    })
}

/// Returns whether an interface is ready: it has an NI, and LNet has all of its NIs in service. Until then a node may
/// still get the NID that a request asks for, because it is booting.
pub fn device_ready(nis_active: impl IntoIterator<Item = bool>) -> bool {
    let all = nis_active.into_iter().reduce(|all, active| all && active);
    all == Some(true)
}

/// Checks a request, in stage 2, against the NI it is for (spec 4.4 rows 5-12, guards H4-H8). Returns the parameters
/// that both sides agree on; the hardware may still lower the depth.
///
/// `ni` is the NI with the NID `req.dst`, searched only among the NIs that listen at the address to which the request
/// came: an NI on another interface, of another VLAN or namespace, cannot be reached through this one. `device_ready`
/// is [`device_ready`] of the interface on which the request arrived: if false, an unknown NID may become known soon.
pub fn check_ni(
    req: &ConnReq,
    ni: Option<&NiView>,
    device_ready: bool,
    from: &CmSource,
) -> Result<PeerParams, RejectCause> {
    let Some(ni) = ni else {
        return Err(match device_ready {
            true => RejectCause::NoSuchNi(req.dst),
            false => RejectCause::NotReady,
        });
    };
    require(ni.nid == req.dst, RejectCause::NoSuchNi(req.dst))?;
    require(ni.active, RejectCause::NotReady)?;
    require(req.src.net() == ni.nid.net(), RejectCause::OtherNet)?;
    // LNet may send to its own NID: such a request has our incarnation and, as checked next, comes from our address.
    let is_ours = req.src == ni.nid;
    require(!is_ours || req.src_stamp == ni.stamp, RejectCause::OwnNid)?;
    require(from.is_from(req.src.addr()), RejectCause::SourceAddress)?;
    let is_current = [0, ni.stamp].contains(&req.dst_stamp);
    require(is_current, RejectCause::StaleDestination)?;
    let ConnParams {
        queue_depth,
        max_frags,
        max_msg_size,
    } = req.params;
    require(queue_depth != 0, RejectCause::NoDepth)?;
    let depth = QueueDepth::new(queue_depth)
        .filter(|&d| d <= ni.peer_credits)
        .ok_or(RejectCause::Depth(queue_depth))?;
    require(max_frags != 0, RejectCause::NoFrags)?;
    let frags = MaxFrags::new(max_frags).ok_or(RejectCause::Frags(max_frags))?;
    let msg_size = RejectCause::MsgSize(max_msg_size);
    require(max_msg_size == MSG_SIZE_WIRE, msg_size)?;
    Ok(PeerParams {
        stamp: req.src_stamp,
        depth,
        frags,
    })
}

/// State of the requesting peer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// Its incarnation; `None` = not learnt yet.
    pub stamp: Option<u64>,
    /// Age of our youngest request to it in milliseconds; `None` = there is none.
    pub connecting_ms: Option<u64>,
    /// Races it has lost in a row.
    pub races: u8,
    /// Its connections, established or in progress on the passive side.
    pub conns: u16,
    pub max_conns: u16,
}

/// Age in milliseconds from which on a request of ours no longer wins a race: the requesting peer has not answered it,
/// so it was lost, and the CM repeats it only after 4.3 s. That happens when the peer's link comes back.
pub const STALE_REQUEST_MS: u64 = 500;

/// Checks a request against the state of the peer, in stage 3 (spec 4.4 rows 14-15 and 4.8, guards H9 and H42). The
/// driver acts on the result under the lock that protects the source of [`PeerView`]: it forgets the races and cancels
/// a waiting reconnect, or counts a race for [`RejectCause::Race`].
///
/// Returns whether the request says that the peer was restarted. Another host may have sent it in the peer's name, and
/// then gets no answer. So connections of the known incarnation only become suspect, and end when the new connection is
/// established. The state of a restarted peer does not limit its new incarnation: our own request is for the old one,
/// and will be rejected; the old connections are as good as gone, so the same number again is allowed.
pub fn check_peer(req: &ConnReq, peer: &PeerView) -> Result<bool, RejectCause> {
    let is_reborn = peer.stamp.is_some_and(|known| known != req.src_stamp);
    let we_win = race_key(req.src) < race_key(req.dst);
    let racing = peer.connecting_ms.is_some_and(|ms| ms < STALE_REQUEST_MS);
    let wins = racing && we_win && peer.races < RACES_MAX && !is_reborn;
    require(!wins, RejectCause::Race)?;
    let max_conns = match is_reborn {
        true => peer.max_conns.saturating_mul(2),
        false => peer.max_conns,
    };
    require(peer.conns < max_conns, RejectCause::TooMany)?;
    Ok(is_reborn)
}

impl RejectCause {
    /// Returns the reject to send. `ni` is the NI that the request was for, if it was found: its incarnation and limits
    /// tell the peer how to ask again.
    pub fn reject(&self, ni: Option<&NiView>) -> Reject {
        Reject {
            version: Version::V2,
            why: self.why(),
            incarnation: ni.map_or(0, |ni| ni.stamp),
            params: ConnParams {
                queue_depth: ni.map_or(0, |ni| ni.peer_credits.wire()),
                max_frags: ni.map_or(0, |_| FRAGS_MAX),
                max_msg_size: MSG_SIZE_WIRE,
            },
        }
    }
}

errors! {
    /// Reason why a CONNACK is not acceptable. The queue pair is up by then: the connection must be closed at once.
    AckError {
        Wire(e: WireError): "CONNACK: {e}",
        NotAnAck: "not a CONNACK",
        Version: "CONNACK of another version",
        /// A depth of 0, or above the request (H10).
        Depth(n: u16): "CONNACK with queue depth {n}",
        /// No fragments, or more than in the request (H10).
        Frags(n: u16): "CONNACK with {n} fragments",
        MsgSize(n: u32): "CONNACK with message size {n}",
        /// From another node (H10), or for an earlier incarnation of this one.
        Stale(why: Stale): "CONNACK: {why}",
    }
}

/// Checks the private data of the CM's ESTABLISHED event on the active side. Returns the parameters that both sides
/// agreed on: at most those of the request, and the incarnation that every further message of the peer must have.
///
/// The incarnation is not compared with the one known before: the request's `dststamp` served that purpose.
pub fn validate_conn_ack(
    private_data: &[u8],
    expect: &Identity,
    asked: &PeerParams,
) -> Result<PeerParams, AckError> {
    let msg = decode(private_data).map_err(AckError::Wire)?;
    let Body::ConnAck(params) = msg.body else {
        return Err(AckError::NotAnAck);
    };
    require(msg.env.version == Version::V2, AckError::Version)?;
    let depth = QueueDepth::new(params.queue_depth)
        .filter(|&d| d <= asked.depth)
        .ok_or(AckError::Depth(params.queue_depth))?;
    let frags = MaxFrags::new(params.max_frags)
        .filter(|&n| n <= asked.frags)
        .ok_or(AckError::Frags(params.max_frags))?;
    let msg_size = AckError::MsgSize(params.max_msg_size);
    require(params.max_msg_size == MSG_SIZE_WIRE, msg_size)?;
    let stamp = msg.env.src_stamp;
    let expect = Identity {
        peer_stamp: stamp,
        ..*expect
    };
    check_identity(&msg.env, &expect).map_err(AckError::Stale)?;
    Ok(PeerParams {
        stamp,
        depth,
        frags,
    })
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_handshake))]
mod tests {
    use super::super::{
        constants::{
            high_water,
            CONN_MSG_LEN,
            MAGIC_UNIFIED, //
        },
        reject::RejectWhy,
        swap::swap_message,
        wire::{
            encode,
            BodyOut,
            Envelope,
            Order, //
        }, //
    };
    use super::*;

    const ME: Nid = Nid::new(0, 0x0a00_0001);
    const PEER: Nid = Nid::new(0, 0x0a00_0002);
    const MY_STAMP: u64 = 0x0006_4a1b_0000_0001;
    const STAMP: u64 = 0x0006_4a1b_2c3d_4e5f;
    const FROM: CmSource = CmSource {
        addr: Some(0x0a00_0002),
        port: 1023,
        gid: None,
    };
    const PARAMS: ConnParams = ConnParams {
        queue_depth: 8,
        max_frags: 257,
        max_msg_size: 4096,
    };
    const REQ: ConnReq = ConnReq {
        src: PEER,
        src_stamp: STAMP,
        dst: ME,
        dst_stamp: 0,
        params: PARAMS,
    };

    fn ni() -> NiView {
        NiView {
            nid: ME,
            stamp: MY_STAMP,
            peer_credits: QueueDepth::new(8).unwrap_or(QueueDepth::MIN),
            active: true,
        }
    }

    /// Returns a CONNREQ with an envelope changed by `f`.
    fn bytes(order: Order, f: fn(&mut Envelope)) -> Result<[u8; CONN_MSG_LEN], WireError> {
        let mut env = Envelope {
            version: Version::V2,
            credits: 0,
            src: PEER,
            src_stamp: STAMP,
            dst: ME,
            dst_stamp: 0,
        };
        f(&mut env);
        let mut out = [0; CONN_MSG_LEN];
        encode(&mut out, &env, &BodyOut::ConnReq(PARAMS))?;
        if order == Order::Swapped {
            swap_message(&mut out);
        }
        Ok(out)
    }

    /// Returns why stage 1 rejects a request changed by `f`; `None` if it does not.
    fn stage1(f: fn(&mut Envelope)) -> Option<RejectCause> {
        let req = bytes(Order::Native, f).ok()?;
        parse_connreq(&req, &FROM, true).err()
    }

    /// Returns why stage 1 rejects a request with the byte at `off` changed.
    fn stage1_byte(off: usize, v: u8) -> Option<RejectCause> {
        let mut req = bytes(Order::Native, |_| ()).ok()?;
        *req.get_mut(off)? = v;
        parse_connreq(&req, &FROM, true).err()
    }

    /// Returns why stage 2 rejects; `None` if it does not.
    fn stage2(change: fn(&mut ConnReq, &mut NiView)) -> Option<RejectCause> {
        let (mut req, mut ni) = (REQ, ni());
        change(&mut req, &mut ni);
        check_ni(&req, Some(&ni), true, &FROM).err()
    }

    #[test]
    fn booting_node_rejects_with_early() {
        assert!(!device_ready([]));
        assert!(!device_ready([false]));
        assert!(!device_ready([true, false]));
        assert!(device_ready([true]) && device_ready([true, true]));
        let stage2 = |ready| check_ni(&REQ, None, ready, &FROM).map_err(|r| r.why());
        assert_eq!(stage2(false), Err(RejectWhy::EARLY));
        assert_eq!(stage2(true), Err(RejectWhy::FATAL));
    }

    #[test]
    fn good_requests_pass_in_both_orders() -> Result<(), WireError> {
        for order in [Order::Native, Order::Swapped] {
            let got = parse_connreq(&bytes(order, |_| ())?, &FROM, true);
            assert_eq!(got, Ok(REQ));
        }
        Ok(())
    }

    #[test]
    fn row1_privileged_port() -> Result<(), WireError> {
        let from = CmSource { port: 1024, ..FROM };
        let req = bytes(Order::Native, |_| ())?;
        let got = parse_connreq(&req, &from, true);
        assert_eq!(got, Err(RejectCause::Port(1024)));
        assert!(parse_connreq(&req, &from, false).is_ok());
        Ok(())
    }

    #[test]
    fn row2_to_4_bytes() {
        for n in 0..CONN_MSG_LEN {
            let req = bytes(Order::Native, |_| ()).unwrap_or([0; CONN_MSG_LEN]);
            let cut = req.get(..n).unwrap_or(&[]);
            let why = parse_connreq(cut, &FROM, true).err().map(|r| r.why());
            assert_eq!(why, Some(RejectWhy::FATAL));
        }
        // Row 3: the unified magic, and a future version.
        let mut unified = bytes(Order::Native, |_| ()).unwrap_or([0; CONN_MSG_LEN]);
        for (to, from) in unified.iter_mut().zip(MAGIC_UNIFIED.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(
            parse_connreq(&unified, &FROM, true),
            Err(RejectCause::Wire(WireError::Magic(MAGIC_UNIFIED)))
        );
        assert!(matches!(
            stage1_byte(4, 0x7f),
            Some(RejectCause::Wire(WireError::Version(_)))
        ));
        // Row 4: the source is the wildcard.
        assert_eq!(
            stage1(|e| e.src = Nid::ANY),
            Some(RejectCause::Wire(WireError::SourceAny))
        );
    }

    #[test]
    fn version_1_is_refused_with_version_2() -> Result<(), WireError> {
        let req = bytes(Order::Native, |e| e.version = Version::V1)?;
        let got = parse_connreq(&req, &FROM, true);
        assert_eq!(got, Err(RejectCause::OldVersion));
        let reject = RejectCause::OldVersion.reject(None);
        assert_eq!(reject.version, Version::V2);
        assert_eq!(reject.why, RejectWhy::FATAL);
        Ok(())
    }

    #[test]
    fn h1_h2_h3_foreign_nids() {
        // 0@lo, 10.0.0.1@tcp; then a type byte of 0xff that is not "any".
        assert_eq!(
            stage1(|e| e.dst = Nid::from_raw(0x0009_0000_0000_0000)),
            Some(RejectCause::ForeignDestination)
        );
        assert_eq!(
            stage1(|e| e.dst = Nid::from_raw(0x0002_0000_0a00_0001)),
            Some(RejectCause::ForeignDestination)
        );
        assert_eq!(
            stage1(|e| e.src = Nid::from_raw(0x00ff_0000_0a00_0002)),
            Some(RejectCause::ForeignSource)
        );
    }

    #[test]
    fn row8_not_a_connreq() {
        assert_eq!(stage1_byte(6, 0xc1), Some(RejectCause::NotAConnReq));
    }

    #[test]
    fn rows_5_and_6_the_ni() {
        let missing = |ready| check_ni(&REQ, None, ready, &FROM).err();
        assert_eq!(missing(false).map(|r| r.why()), Some(RejectWhy::EARLY));
        assert_eq!(missing(true).map(|r| r.why()), Some(RejectWhy::FATAL));
        assert_eq!(
            stage2(|_, ni| ni.active = false).map(|r| r.why()),
            Some(RejectWhy::EARLY)
        );
        assert_eq!(
            stage2(|_, ni| ni.nid = Nid::new(0, 0x0a00_0009)),
            Some(RejectCause::NoSuchNi(REQ.dst))
        );
    }

    #[test]
    fn row7_stamp() {
        assert_eq!(stage2(|req, _| req.dst_stamp = MY_STAMP), None);
        let stale = stage2(|req, _| req.dst_stamp = MY_STAMP ^ 1);
        assert_eq!(stale.map(|r| r.why()), Some(RejectWhy::CONN_STALE));
    }

    #[test]
    fn h4_impersonation() {
        assert_eq!(
            stage2(|req, _| req.src = Nid::new(1, 0x0a00_0002)),
            Some(RejectCause::OtherNet)
        );
        assert_eq!(stage2(|req, _| req.src = ME), Some(RejectCause::OwnNid));
        let as_me = |req: &mut ConnReq, _: &mut NiView| {
            req.src = ME;
            req.src_stamp = MY_STAMP;
        };
        assert_eq!(stage2(as_me), Some(RejectCause::SourceAddress));
        let mut mine = REQ;
        as_me(&mut mine, &mut ni());
        let here = CmSource {
            addr: Some(ME.addr()),
            ..FROM
        };
        assert!(check_ni(&mine, Some(&ni()), true, &here).is_ok());
        assert_eq!(
            stage2(|req, _| req.src = Nid::new(0, 0x0a00_0003)),
            Some(RejectCause::SourceAddress)
        );
        let six = CmSource { addr: None, ..FROM };
        let refused = Err(RejectCause::SourceAddress);
        assert_eq!(check_ni(&REQ, Some(&ni()), true, &six), refused);
    }

    #[test]
    fn over_roce_the_gid_has_to_be_that_of_the_address() {
        let addr = REQ.src.addr().to_be_bytes();
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&addr);
        let from = |gid| CmSource {
            gid: Some(gid),
            ..FROM
        };
        let of = |gid| check_ni(&REQ, Some(&ni()), true, &from(gid));
        let refused = Err(RejectCause::SourceAddress);
        assert!(of(gid).is_ok());
        // Another address, one of IPv6 that ends alike, one of the link, and none.
        for at in [0, 8, 9, 11, 12, 15] {
            let mut other = gid;
            if let Some(byte) = other.get_mut(at) {
                *byte ^= 1;
            }
            assert_eq!(of(other), refused);
        }
        let mut link = [0; 16];
        link[..2].copy_from_slice(&[0xfe, 0x80]);
        assert_eq!(of(link), refused);
        assert_eq!(of([0; 16]), refused);
        // And the address in the request must match the NID, too.
        let other = CmSource {
            addr: Some(1),
            ..from(gid)
        };
        assert_eq!(check_ni(&REQ, Some(&ni()), true, &other), refused);
    }

    #[test]
    fn request_with_forged_address_has_no_payer() {
        let gid_of = |addr: u32| (MAPPED | u128::from(addr)).to_be_bytes();
        let addr = REQ.src.addr();
        let liar = CmSource {
            gid: Some(gid_of(addr ^ 1)),
            ..FROM
        };
        let honest = CmSource {
            gid: Some(gid_of(addr)),
            ..FROM
        };
        assert_eq!((liar.payer(), honest.payer()), (None, Some(addr)));
        // If a GID does not contain the address, only the address can be checked.
        assert_eq!(FROM.payer(), Some(addr));
    }

    #[test]
    fn rows_9_to_12_parameters() {
        let why = |r: Option<RejectCause>| r.map(|r| r.why());
        let depth = |f| why(stage2(f));
        // Row 9, H5.
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 9),
            Some(RejectWhy::MSG_QUEUE_SIZE)
        );
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 256),
            Some(RejectWhy::MSG_QUEUE_SIZE)
        );
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 0),
            Some(RejectWhy::FATAL)
        );
        // Row 10, row 11, H7.
        assert_eq!(
            depth(|r, _| r.params.max_frags = 258),
            Some(RejectWhy::RDMA_FRAGS)
        );
        assert_eq!(depth(|r, _| r.params.max_frags = 1), None);
        assert_eq!(depth(|r, _| r.params.max_frags = 256), None);
        assert_eq!(depth(|r, _| r.params.max_frags = 0), Some(RejectWhy::FATAL));
        // Row 12, H8.
        assert_eq!(
            depth(|r, _| r.params.max_msg_size = 8192),
            Some(RejectWhy::FATAL)
        );
        assert_eq!(
            depth(|r, _| r.params.max_msg_size = 2048),
            Some(RejectWhy::FATAL)
        );
    }

    #[test]
    fn h6_depth_1_works() {
        let req = ConnReq {
            params: ConnParams {
                queue_depth: 1,
                ..PARAMS
            },
            ..REQ
        };
        let got = check_ni(&req, Some(&ni()), true, &FROM);
        assert_eq!(got.map(|w| w.depth), Ok(QueueDepth::MIN));
        assert_eq!(high_water(QueueDepth::MIN, 4, ni().peer_credits), 1);
    }

    fn peer() -> PeerView {
        PeerView {
            stamp: Some(STAMP),
            connecting_ms: None,
            races: 0,
            conns: 1,
            max_conns: 8,
        }
    }

    #[test]
    fn row14_restarted_peer() {
        let old = PeerView {
            stamp: Some(STAMP ^ 1),
            ..peer()
        };
        assert_eq!(check_peer(&REQ, &old), Ok(true));
        // A peer with all connections of its old incarnation, and a request of ours for that, does not have to wait.
        let full = PeerView {
            conns: old.max_conns,
            connecting_ms: Some(0),
            ..old
        };
        let reverse = ConnReq {
            src: ME,
            dst: PEER,
            ..REQ
        };
        assert_eq!(check_peer(&reverse, &full), Ok(true));
        let fuller = PeerView {
            conns: old.max_conns.saturating_mul(2),
            ..old
        };
        let too_many = Err(RejectCause::TooMany);
        assert_eq!(check_peer(&REQ, &fuller), too_many);
        let unknown = PeerView {
            stamp: None,
            ..peer()
        };
        assert_eq!(check_peer(&REQ, &unknown), Ok(false));
        assert_eq!(check_peer(&REQ, &peer()), Ok(false));
    }

    #[test]
    fn row15_race() {
        // As the lower side of REQ, the peer's key is the higher one.
        let racing = PeerView {
            connecting_ms: Some(STALE_REQUEST_MS - 1),
            ..peer()
        };
        assert_eq!(check_peer(&REQ, &racing), Ok(false));
        let reverse = ConnReq {
            src: ME,
            dst: PEER,
            ..REQ
        };
        let lost = Err(RejectCause::Race);
        assert_eq!(check_peer(&reverse, &racing), lost);
        let patient = PeerView {
            races: 19,
            ..racing
        };
        assert_eq!(check_peer(&reverse, &patient), lost);
        let lost_request = PeerView {
            connecting_ms: Some(STALE_REQUEST_MS),
            ..racing
        };
        assert_eq!(check_peer(&reverse, &lost_request), Ok(false));
        let tired = PeerView {
            races: 20,
            ..racing
        };
        assert_eq!(check_peer(&reverse, &tired), Ok(false));
        assert_eq!(check_peer(&reverse, &peer()), Ok(false));
    }

    #[test]
    fn h9_connections_are_bounded() {
        let full = PeerView { conns: 8, ..peer() };
        assert_eq!(check_peer(&REQ, &full), Err(RejectCause::TooMany));
    }

    const EXPECTED: Identity = Identity {
        me: ME,
        my_stamp: 11,
        peer: PEER,
        peer_stamp: 0,
    };

    fn asked() -> PeerParams {
        PeerParams {
            depth: QueueDepth::new(8).unwrap_or(QueueDepth::MIN),
            frags: MaxFrags::new(256).unwrap_or(MaxFrags::MIN),
            stamp: 0,
        }
    }

    /// Checks a good CONNACK changed by `f`, padded as the CM does.
    fn validate(f: fn(&mut Envelope, &mut ConnParams)) -> Result<PeerParams, AckError> {
        let mut env = Envelope {
            version: Version::V2,
            credits: 0,
            src: PEER,
            src_stamp: 22,
            dst: ME,
            dst_stamp: 11,
        };
        let mut params = ConnParams {
            queue_depth: 8,
            max_frags: 256,
            max_msg_size: 4096,
        };
        f(&mut env, &mut params);
        let mut out = [0; 196];
        encode(&mut out, &env, &BodyOut::ConnAck(params)).map_err(AckError::Wire)?;
        validate_conn_ack(&out, &EXPECTED, &asked())
    }

    #[test]
    fn good_connacks_pass() {
        let asked = asked();
        assert_eq!(
            validate(|_, _| ()),
            Ok(PeerParams {
                depth: asked.depth,
                frags: asked.frags,
                stamp: 22,
            })
        );
        let less = validate(|_, p| {
            p.queue_depth = 1;
            p.max_frags = 1;
        });
        assert_eq!(
            less,
            Ok(PeerParams {
                depth: QueueDepth::MIN,
                frags: MaxFrags::MIN,
                stamp: 22,
            })
        );
    }

    #[test]
    fn connack_with_more_than_asked_for_fails() {
        assert_eq!(validate(|_, p| p.queue_depth = 9), Err(AckError::Depth(9)));
        assert_eq!(
            validate(|_, p| p.max_frags = 257),
            Err(AckError::Frags(257))
        );
        assert_eq!(
            validate(|_, p| p.max_msg_size = 8192),
            Err(AckError::MsgSize(8192))
        );
        assert_eq!(
            validate(|_, p| p.max_msg_size = 0),
            Err(AckError::MsgSize(0))
        );
    }

    #[test]
    fn h10_connack_with_nothing_or_of_another_node_fails() {
        assert_eq!(validate(|_, p| p.queue_depth = 0), Err(AckError::Depth(0)));
        assert_eq!(validate(|_, p| p.max_frags = 0), Err(AckError::Frags(0)));
        assert_eq!(
            validate(|e, _| e.src = ME),
            Err(AckError::Stale(Stale::SourceNid))
        );
    }

    #[test]
    fn connack_for_another_node_fails() {
        assert_eq!(
            validate(|e, _| e.dst = PEER),
            Err(AckError::Stale(Stale::DestinationNid))
        );
        assert_eq!(
            validate(|e, _| e.dst_stamp = 12),
            Err(AckError::Stale(Stale::DestinationStamp))
        );
        assert_eq!(
            validate(|e, _| e.version = Version::V1),
            Err(AckError::Version)
        );
    }

    #[test]
    fn other_bytes_are_no_connack() {
        assert_eq!(
            validate_conn_ack(&[], &EXPECTED, &asked()),
            Err(AckError::Wire(WireError::Short))
        );
        assert_eq!(
            validate_conn_ack(&[0; 196], &EXPECTED, &asked()),
            Err(AckError::Wire(WireError::Magic(0)))
        );
    }

    #[test]
    fn reject_without_an_ni_offers_nothing() {
        let r = RejectCause::Wire(WireError::Short).reject(None);
        assert_eq!(r.version, Version::V2);
        assert_eq!(r.why, RejectWhy::FATAL);
        assert_eq!(r.incarnation, 0);
        assert_eq!(r.params.queue_depth, 0);
        assert_eq!(r.params.max_frags, 0);
        assert_eq!(r.params.max_msg_size, 4096);
    }

    #[test]
    fn reject_of_an_ni_carries_its_life_and_limits() {
        let ni = NiView {
            nid: Nid::new(0, 0x0a00_0001),
            stamp: 77,
            peer_credits: QueueDepth::MAX,
            active: true,
        };
        let r = RejectCause::Depth(300).reject(Some(&ni));
        assert_eq!(r.why, RejectWhy::MSG_QUEUE_SIZE);
        assert_eq!(r.incarnation, 77);
        assert_eq!(r.params.queue_depth, 255);
        assert_eq!(r.params.max_frags, 257);
    }
}
