// SPDX-License-Identifier: GPL-2.0

//! Names that the driver and LNet share: the type that stands for this driver in LNet's generic types, and
//! LNet's value for each health of a message.

use crate::{
    lnet::Health as LnetHealth,
    proto::cause::Health, //
};

/// The driver of networks `o2ib`, as a type parameter. Its callbacks are in [`super::ops`].
pub(crate) enum O2ib {}

/// Returns LNet's value for a health.
pub(crate) fn lnet_health(health: Health) -> LnetHealth {
    match health {
        Health::Ok => LnetHealth::Ok,
        Health::LocalDropped => LnetHealth::LocalDropped,
        Health::LocalAborted => LnetHealth::LocalAborted,
        Health::LocalError => LnetHealth::LocalError,
        Health::RemoteError => LnetHealth::RemoteError,
        Health::RemoteDropped => LnetHealth::RemoteDropped,
        Health::RemoteTimeout => LnetHealth::RemoteTimeout,
        Health::NetworkTimeout => LnetHealth::NetworkTimeout,
    }
}
