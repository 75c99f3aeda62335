// SPDX-License-Identifier: GPL-2.0

//! Checks of the passive side on a connection request, CONNREQ (spec 4.4).
//!
//! There are three stages, because the driver has to look up objects between them:
//!
//! 1. [`parse_connreq`]: the bytes alone. Afterwards the driver looks for the
//!    NI that the request is for, among its own NIs only.
//! 2. [`check_ni`]: against that NI. Afterwards the driver looks for the peer.
//! 3. [`check_peer`]: against the state of the peer.
//!
//! [`Refusal::reject`] makes private data of a reject of any stage.

use super::{
    constants::{
        MaxFrags,
        QueueDepth,
        MSG_SIZE_WIRE, //
    },
    nid::Nid,
    wire::{
        decode,
        Body,
        ConnParams,
        Envelope,
        Order,
        Version, //
    }, //
};

pub use super::{
    conn_ack_check::{
        validate_conn_ack,
        AckError,
        Agreed,
        Expected, //
    },
    conn_req_peer_check::{
        check_peer,
        PeerVerdict,
        PeerView, //
    },
    conn_req_types::{
        ConnReq,
        NiView, //
    },
    reject::{
        cm_reason,
        react_to_reject,
        Ask,
        Reaction,
        Refused,
        Reject,
        RejectDetails,
        RejectWhy,
        RetryWhy, //
    },
    reject_cause::{
        Refusal,
        RejectCause, //
    }, //
};

/// First port that needs no privilege to bind.
const PRIVILEGED_PORTS: u16 = 1024;

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

/// Prefix of an IPv4 address in a GID.
const MAPPED: u128 = 0xffff << 32;

/// Requirements of the administrator.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Reject source ports of 1024 and above.
    pub require_privileged_port: bool,
    /// Reject source NIDs that do not match the source address. To be switched off only where addresses are translated
    /// on the way.
    pub check_source_addr: bool,
}

/// Reads a request, in stage 1 (spec 4.4 rows 1-4 and 8, guards H1-H3).
///
/// Version 0x11 is rejected here: only peers before 2009 use it (spec 11).
pub fn parse_connreq(
    private_data: &[u8],
    from: &CmSource,
    policy: &Policy,
) -> Result<ConnReq, Refusal> {
    if policy.require_privileged_port && from.port >= PRIVILEGED_PORTS {
        return Err(Refusal::new(RejectCause::Port(from.port)));
    }
    let msg = decode(private_data).map_err(|e| Refusal::new(RejectCause::Wire(e)))?;
    let Envelope {
        version,
        src,
        src_stamp,
        dst,
        dst_stamp,
        ..
    } = msg.env;
    if version != Version::V2 {
        return Err(Refusal::new(RejectCause::OldVersion));
    }
    let Body::ConnReq(params) = msg.body else {
        return Err(Refusal::new(RejectCause::NotAConnReq));
    };
    if !dst.is_o2ib() {
        return Err(Refusal::new(RejectCause::ForeignDestination));
    }
    if !src.is_o2ib() {
        return Err(Refusal::new(RejectCause::ForeignSource));
    }
    Ok(ConnReq {
        src,
        src_stamp,
        dst,
        dst_stamp,
        params,
    })
}

/// Returns whether an interface is ready: it has an NI, and LNet has all of its NIs in service. Until then a node may
/// still get the NID that a request asks for, because it is booting.
pub fn device_ready(nis_active: impl IntoIterator<Item = bool>) -> bool {
    let mut any = false;
    nis_active.into_iter().all(|active| {
        any = true;
        active
    }) && any
}

/// Parameters agreed with an accepted request. The hardware may still lower the depth.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AcceptParams {
    /// Queue depth.
    pub depth: QueueDepth,
    /// Most fragments.
    pub frags: MaxFrags,
}

/// Checks a request, in stage 2, against the NI it is for (spec 4.4 rows 5-12, guards H4-H8).
///
/// `ni` is the NI with the NID `req.dst`, searched only among the NIs that listen at the address to which the request
/// came: an NI on another interface, of another VLAN or namespace, cannot be reached through this one. `device_ready`
/// is [`device_ready`] of the interface on which the request arrived: if false, an unknown NID may become known soon.
pub fn check_ni(
    req: &ConnReq,
    ni: Option<&NiView>,
    device_ready: bool,
    from: &CmSource,
    policy: &Policy,
) -> Result<AcceptParams, Refusal> {
    let refuse = |cause| Err(Refusal::new(cause));
    let Some(ni) = ni else {
        return refuse(match device_ready {
            true => RejectCause::NoSuchNi(req.dst),
            false => RejectCause::NotReady,
        });
    };
    if ni.nid != req.dst {
        return refuse(RejectCause::NoSuchNi(req.dst));
    }
    if !ni.active {
        return refuse(RejectCause::NotReady);
    }
    if req.src.net() != ni.nid.net() {
        return refuse(RejectCause::OtherNet);
    }
    // LNet may send to its own NID: such a request carries our own incarnation
    // and, as checked next, comes from our own address.
    if req.src == ni.nid && req.src_stamp != ni.stamp {
        return refuse(RejectCause::OwnNid);
    }
    if policy.check_source_addr && !from.is_from(req.src.addr()) {
        return refuse(RejectCause::SourceAddress);
    }
    if req.dst_stamp != 0 && req.dst_stamp != ni.stamp {
        return refuse(RejectCause::StaleDestination);
    }
    let ConnParams {
        queue_depth,
        max_frags,
        max_msg_size,
    } = req.params;
    if queue_depth == 0 {
        return refuse(RejectCause::NoDepth);
    }
    let Some(depth) = QueueDepth::new(queue_depth).filter(|&d| d <= ni.peer_credits) else {
        return refuse(RejectCause::Depth(queue_depth));
    };
    if max_frags == 0 {
        return refuse(RejectCause::NoFrags);
    }
    let Some(frags) = MaxFrags::new(max_frags) else {
        return refuse(RejectCause::Frags(max_frags));
    };
    if max_msg_size != MSG_SIZE_WIRE {
        return refuse(RejectCause::MsgSize(max_msg_size));
    }
    Ok(AcceptParams { depth, frags })
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2ib_conn_req_check))]
mod tests {
    use super::super::{
        constants::{
            high_water,
            CONN_MSG_LEN,
            MAGIC_UNIFIED, //
        },
        wire::{
            encode_as,
            BodyOut,
            WireError, //
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
    const STRICT: Policy = Policy {
        require_privileged_port: true,
        check_source_addr: true,
    };
    const LAX: Policy = Policy {
        require_privileged_port: false,
        check_source_addr: false,
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
        encode_as(&mut out, order, &env, &BodyOut::ConnReq(PARAMS))?;
        Ok(out)
    }

    /// Returns why stage 1 rejects a request changed by `f`; `None` if it does not.
    fn stage1(f: fn(&mut Envelope)) -> Option<RejectCause> {
        let req = bytes(Order::Native, f).ok()?;
        parse_connreq(&req, &FROM, &STRICT).err().map(|r| r.cause)
    }

    /// Returns why stage 1 rejects a request with the byte at `off` changed.
    fn stage1_byte(off: usize, v: u8) -> Option<RejectCause> {
        let mut req = bytes(Order::Native, |_| ()).ok()?;
        *req.get_mut(off)? = v;
        parse_connreq(&req, &FROM, &STRICT).err().map(|r| r.cause)
    }

    /// Returns why stage 2 rejects; `None` if it does not.
    fn stage2(change: fn(&mut ConnReq, &mut NiView)) -> Option<Refusal> {
        let (mut req, mut ni) = (REQ, ni());
        change(&mut req, &mut ni);
        check_ni(&req, Some(&ni), true, &FROM, &STRICT).err()
    }

    #[test]
    fn booting_node_rejects_with_early() {
        assert!(!device_ready([]));
        assert!(!device_ready([false]));
        assert!(!device_ready([true, false]));
        assert!(device_ready([true]) && device_ready([true, true]));
        let stage2 = |ready| check_ni(&REQ, None, ready, &FROM, &STRICT).map_err(|r| r.why);
        assert_eq!(stage2(false), Err(RejectWhy::Early));
        assert_eq!(stage2(true), Err(RejectWhy::Fatal));
    }

    #[test]
    fn good_requests_pass_in_both_orders() -> Result<(), WireError> {
        for order in [Order::Native, Order::Swapped] {
            let got = parse_connreq(&bytes(order, |_| ())?, &FROM, &STRICT);
            assert_eq!(got, Ok(REQ));
        }
        Ok(())
    }

    #[test]
    fn row1_privileged_port() -> Result<(), WireError> {
        let from = CmSource { port: 1024, ..FROM };
        let req = bytes(Order::Native, |_| ())?;
        let got = parse_connreq(&req, &from, &STRICT);
        assert_eq!(got, Err(Refusal::new(RejectCause::Port(1024))));
        assert!(parse_connreq(&req, &from, &LAX).is_ok());
        Ok(())
    }

    #[test]
    fn row2_to_4_bytes() {
        for n in 0..CONN_MSG_LEN {
            let req = bytes(Order::Native, |_| ()).unwrap_or([0; CONN_MSG_LEN]);
            let cut = req.get(..n).unwrap_or(&[]);
            let why = parse_connreq(cut, &FROM, &STRICT).err().map(|r| r.why);
            assert_eq!(why, Some(RejectWhy::Fatal));
        }
        // Row 3: the unified magic, and a future version.
        let mut unified = bytes(Order::Native, |_| ()).unwrap_or([0; CONN_MSG_LEN]);
        for (to, from) in unified.iter_mut().zip(MAGIC_UNIFIED.to_ne_bytes()) {
            *to = from;
        }
        assert_eq!(
            parse_connreq(&unified, &FROM, &STRICT),
            Err(Refusal::new(RejectCause::Wire(WireError::Magic(
                MAGIC_UNIFIED
            ))))
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
        let got = parse_connreq(&req, &FROM, &STRICT);
        assert_eq!(got, Err(Refusal::new(RejectCause::OldVersion)));
        let reject = Refusal::new(RejectCause::OldVersion).reject(None);
        assert_eq!(reject.version, Version::V2);
        assert_eq!(reject.why, RejectWhy::Fatal);
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
        let missing = |ready| check_ni(&REQ, None, ready, &FROM, &STRICT).err();
        assert_eq!(missing(false).map(|r| r.why), Some(RejectWhy::Early));
        assert_eq!(missing(true).map(|r| r.why), Some(RejectWhy::Fatal));
        assert_eq!(
            stage2(|_, ni| ni.active = false).map(|r| r.why),
            Some(RejectWhy::Early)
        );
        assert_eq!(
            stage2(|_, ni| ni.nid = Nid::new(0, 0x0a00_0009)),
            Some(Refusal::new(RejectCause::NoSuchNi(REQ.dst)))
        );
    }

    #[test]
    fn row7_stamp() {
        assert_eq!(stage2(|req, _| req.dst_stamp = MY_STAMP), None);
        let stale = stage2(|req, _| req.dst_stamp = MY_STAMP ^ 1);
        assert_eq!(stale.map(|r| r.why), Some(RejectWhy::ConnStale));
    }

    #[test]
    fn h4_impersonation() {
        assert_eq!(
            stage2(|req, _| req.src = Nid::new(1, 0x0a00_0002)),
            Some(Refusal::new(RejectCause::OtherNet))
        );
        assert_eq!(
            stage2(|req, _| req.src = ME),
            Some(Refusal::new(RejectCause::OwnNid))
        );
        let as_me = |req: &mut ConnReq, _: &mut NiView| {
            req.src = ME;
            req.src_stamp = MY_STAMP;
        };
        assert_eq!(
            stage2(as_me),
            Some(Refusal::new(RejectCause::SourceAddress))
        );
        let mut mine = REQ;
        as_me(&mut mine, &mut ni());
        let here = CmSource {
            addr: Some(ME.addr()),
            ..FROM
        };
        assert!(check_ni(&mine, Some(&ni()), true, &here, &STRICT).is_ok());
        assert_eq!(
            stage2(|req, _| req.src = Nid::new(0, 0x0a00_0003)),
            Some(Refusal::new(RejectCause::SourceAddress))
        );
        let six = CmSource { addr: None, ..FROM };
        let of = |policy| check_ni(&REQ, Some(&ni()), true, &six, policy);
        assert_eq!(of(&STRICT), Err(Refusal::new(RejectCause::SourceAddress)));
        assert!(of(&LAX).is_ok());
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
        let of = |gid| check_ni(&REQ, Some(&ni()), true, &from(gid), &STRICT);
        let refused = Err(Refusal::new(RejectCause::SourceAddress));
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
        assert_eq!(check_ni(&REQ, Some(&ni()), true, &other, &STRICT), refused);
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
        let why = |r: Option<Refusal>| r.map(|r| r.why);
        let depth = |f| why(stage2(f));
        // Row 9, H5.
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 9),
            Some(RejectWhy::MsgQueueSize)
        );
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 256),
            Some(RejectWhy::MsgQueueSize)
        );
        assert_eq!(
            depth(|r, _| r.params.queue_depth = 0),
            Some(RejectWhy::Fatal)
        );
        // Row 10, row 11, H7.
        assert_eq!(
            depth(|r, _| r.params.max_frags = 258),
            Some(RejectWhy::RdmaFrags)
        );
        assert_eq!(depth(|r, _| r.params.max_frags = 1), None);
        assert_eq!(depth(|r, _| r.params.max_frags = 256), None);
        assert_eq!(depth(|r, _| r.params.max_frags = 0), Some(RejectWhy::Fatal));
        // Row 12, H8.
        assert_eq!(
            depth(|r, _| r.params.max_msg_size = 8192),
            Some(RejectWhy::Fatal)
        );
        assert_eq!(
            depth(|r, _| r.params.max_msg_size = 2048),
            Some(RejectWhy::Fatal)
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
        let got = check_ni(&req, Some(&ni()), true, &FROM, &STRICT);
        assert_eq!(got.map(|w| w.depth), Ok(QueueDepth::MIN));
        assert_eq!(high_water(QueueDepth::MIN, 4, ni().peer_credits), 1);
    }
}
