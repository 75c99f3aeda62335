// SPDX-License-Identifier: GPL-2.0

//! The protocol's word for the health of a message, as LNet says it.

use crate::{
    lnet::Health as LnetHealth,
    proto::cause::Health, //
};

/// LNet's name for a health.
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
