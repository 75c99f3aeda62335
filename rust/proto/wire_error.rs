// SPDX-License-Identifier: GPL-2.0

//! Errors in the bytes of a message.

use core::fmt;

/// Reason why bytes are not a message, or why a message cannot be written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Fewer than 6 bytes: not even magic and version.
    Short,
    /// Not an o2ib message in either byte order.
    Magic(u32),
    /// An unknown version.
    Version(u16),
    /// Fewer bytes than the header.
    ShortHeader,
    /// The length field exceeds the bytes received.
    Length(u32),
    /// Checksum present and wrong.
    Checksum,
    /// The sender calls itself "any".
    SourceAny,
    /// The length field is too small for the type.
    ShortBody,
    /// An unknown type.
    Type(u8),
    /// A descriptor with no or too many fragments.
    FragmentCount(u32),
    /// Fewer bytes than the fragments need.
    ShortDescriptor,
    /// A descriptor of zero bytes.
    DescriptorEmpty,
    /// A descriptor of more than one LNet message.
    DescriptorTooLong,
    /// A fragment beyond the end of the address space.
    AddressWrap,
    /// Sending only: the buffer is too small for the message.
    NoRoom,
    /// Sending only: the payload does not fit in an IMMEDIATE.
    PayloadTooLong,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short => f.write_str("too short for a magic"),
            WireError::Magic(m) => write!(f, "bad magic {m:#010x}"),
            WireError::Version(v) => write!(f, "unknown version {v:#x}"),
            WireError::ShortHeader => f.write_str("too short for a header"),
            WireError::Length(n) => write!(f, "length {n} exceeds the bytes received"),
            WireError::Checksum => f.write_str("bad checksum"),
            WireError::SourceAny => f.write_str("wildcard source NID"),
            WireError::ShortBody => f.write_str("too short for its type"),
            WireError::Type(t) => write!(f, "unknown type {t:#04x}"),
            WireError::FragmentCount(n) => write!(f, "{n} fragments"),
            WireError::ShortDescriptor => f.write_str("too short for its fragments"),
            WireError::DescriptorEmpty => f.write_str("descriptor of zero bytes"),
            WireError::DescriptorTooLong => f.write_str("descriptor above 1 MiB"),
            WireError::AddressWrap => f.write_str("fragment wraps the address space"),
            WireError::NoRoom => f.write_str("no room for the message"),
            WireError::PayloadTooLong => f.write_str("payload too long for an IMMEDIATE"),
        }
    }
}
