// SPDX-License-Identifier: GPL-2.0

//! Messages of a host with the other byte order, for tests: the driver sends in its own order only.

/// Offset and length of each field of the header that comes in its sender's order (spec 2.2).
const HEADER: [(usize, usize); 8] = [
    (0, 4),
    (4, 2),
    (8, 4),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 8),
];

fn reverse(bytes: &mut [u8], fields: &[(usize, usize)]) {
    for (at, len) in fields {
        let field = bytes.get_mut(*at..).and_then(|rest| rest.get_mut(..*len));
        if let Some(field) = field {
            field.reverse();
        }
    }
}

fn swap_descriptor(msg: &mut [u8], at: usize) {
    reverse(msg, &[(at, 4), (at.saturating_add(4), 4)]);
    for fragment in (at.saturating_add(8)..msg.len()).step_by(12) {
        reverse(msg, &[(fragment, 4), (fragment.saturating_add(4), 8)]);
    }
}

/// Changes the byte order of a message, which is in this host's order.
pub fn swap_message(msg: &mut [u8]) {
    reverse(msg, &HEADER);
    match msg.get(6) {
        Some(0xc0 | 0xc1) => reverse(msg, &[(48, 2), (50, 2), (52, 4)]),
        Some(0xd3 | 0xd5 | 0xd7) => reverse(msg, &[(56, 4)]),
        Some(0xd4) => swap_descriptor(msg, 64),
        Some(0xd6) => swap_descriptor(msg, 128),
        _ => {}
    }
}

/// Changes the byte order of a reject, which is in this host's order.
pub fn swap_reject(reject: &mut [u8]) {
    reverse(reject, &[(0, 4), (4, 2), (8, 8), (16, 2), (18, 2), (20, 4)]);
}
