// SPDX-License-Identifier: GPL-2.0

//! Addresses and events of the connection manager.

use core::net::{
    Ipv4Addr,
    Ipv6Addr, //
};

use kernel::error::code::ETIMEDOUT;

use crate::bindings;

/// An IP address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addr {
    /// IPv4.
    V4 {
        /// The address.
        ip: Ipv4Addr,
        /// The port; 0 to let the CM choose one.
        port: u16,
    },
    /// IPv6.
    V6 {
        /// The address.
        ip: Ipv6Addr,
        /// The port; 0 to let the CM choose one.
        port: u16,
        /// The interface of a link local address.
        scope_id: u32,
    },
}

impl Addr {
    /// Creates the address from an IPv4 address in host order, as in LNet's NIDs.
    pub(crate) fn v4(ip: u32, port: u16) -> Self {
        Self::V4 {
            ip: Ipv4Addr::from(ip),
            port,
        }
    }

    /// Creates the address from an IPv6 address in network order.
    pub(crate) fn v6(ip: [u8; 16], port: u16, scope_id: u32) -> Self {
        Self::V6 {
            ip: Ipv6Addr::from(ip),
            port,
            scope_id,
        }
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        match *self {
            Self::V4 { port, .. } | Self::V6 { port, .. } => port,
        }
    }

    /// Returns the IPv4 address in host order, or `None` for IPv6.
    pub(crate) fn ip_v4(&self) -> Option<u32> {
        match *self {
            Self::V4 { ip, .. } => Some(u32::from(ip)),
            Self::V6 { .. } => None,
        }
    }

    pub(super) fn from_raw(raw: &bindings::ro2ib_addr) -> Self {
        if raw.v6 {
            Self::v6(raw.ip, raw.port, raw.scope_id)
        } else {
            let [a, b, c, d, ..] = raw.ip;

            Self::V4 {
                ip: Ipv4Addr::new(a, b, c, d),
                port: raw.port,
            }
        }
    }

    pub(super) fn to_raw(self) -> bindings::ro2ib_addr {
        let mut raw = bindings::ro2ib_addr {
            port: self.port(),
            ..Default::default()
        };

        match self {
            Self::V4 { ip, .. } => {
                let [a, b, c, d] = ip.octets();
                [raw.ip[0], raw.ip[1], raw.ip[2], raw.ip[3]] = [a, b, c, d];
            }
            Self::V6 { ip, scope_id, .. } => {
                raw.ip = ip.octets();
                raw.scope_id = scope_id;
                raw.v6 = true;
            }
        }
        raw
    }
}

/// An event of a CM id (`enum rdma_cm_event_type`), other than a connect request.
///
/// Private data on InfiniBand and RoCE has the greatest possible length, padded with zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CmEvent<'a> {
    /// The destination address belongs to a port of a device now.
    AddrResolved,
    /// The address could not be resolved in time. It may be tried again on the same id.
    AddrTimeout,
    /// The address could not be resolved.
    AddrError,
    /// There is a route.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// The other side accepted; only seen on an id without a QP.
    ConnectResponse,
    /// Connecting failed.
    ConnectError,
    /// The other side does not answer, or its neighbour entry changed.
    Unreachable,
    /// The other side refused.
    Rejected {
        /// `enum ib_cm_rej_reason`, or a negative errno on iWARP.
        reason: i32,
        /// Private data of the reject if the consumer rejected; otherwise empty.
        private_data: &'a [u8],
    },
    /// Connected.
    Established {
        /// Private data of the passive side; empty on the passive side.
        private_data: &'a [u8],
        /// Number of its queue pair; 0 on the passive side, and on iWARP.
        qpn: u32,
    },
    /// The other side disconnected, or answered our disconnecting.
    Disconnected,
    /// The device goes: destroy the id.
    DeviceRemoval,
    /// The address of the interface changed.
    AddrChange,
    /// The QP may be used again.
    TimewaitExit,
    /// Anything else.
    Other,
}

impl<'a> CmEvent<'a> {
    /// Returns the event.
    ///
    /// # Safety
    ///
    /// `raw.private_data` is valid for `'a`, for as many bytes as `raw` says.
    pub(crate) unsafe fn from_raw(raw: &bindings::ro2ib_cm_event) -> Self {
        // SAFETY: Guaranteed by the caller.
        let private_data: &'a [u8] = unsafe { private_data(raw) };

        match raw.event {
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddrResolved,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR
                if raw.status == ETIMEDOUT.to_errno() =>
            {
                Self::AddrTimeout
            }
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR => Self::AddrError,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => Self::Rejected {
                reason: raw.status,
                private_data,
            },
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => Self::Established {
                private_data,
                qpn: raw.qpn,
            },
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => Self::AddrChange,
            bindings::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            _ => Self::Other,
        }
    }
}

/// Returns the private data of an event.
///
/// # Safety
///
/// As for [`CmEvent::from_raw`].
pub(super) unsafe fn private_data<'a>(raw: &bindings::ro2ib_cm_event) -> &'a [u8] {
    if raw.private_data.is_null() {
        return &[];
    }
    // SAFETY: Guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(raw.private_data.cast(), raw.private_data_len.into()) }
}
