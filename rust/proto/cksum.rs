// SPDX-License-Identifier: GPL-2.0

//! The message checksum (spec 2.6): covers message bytes, never RDMA data.

/// Offset of the checksum field, which counts as zero in its own sum.
const FIELD: usize = 12;
const FIELD_LEN: usize = 4;

/// Checksum in progress: rotate left by one, add the byte.
///
/// For messages whose payload does not follow the header in memory; feed the
/// header through [`Running::header`] and then each piece.
#[derive(Copy, Clone, Debug, Default)]
pub struct Running {
    unsigned: u32,
    signed: u32,
}

impl Running {
    /// Starts with a message whose checksum field counts as zero.
    pub fn header(msg: &[u8]) -> Self {
        let (before, rest) = msg.split_at(msg.len().min(FIELD));
        let (field, after) = rest.split_at(rest.len().min(FIELD_LEN));
        let mut sum = Self::default();
        sum.update(before);
        for _ in field {
            sum.byte(0);
        }
        sum.update(after);
        sum
    }

    /// Adds the next bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.byte(b);
        }
    }

    fn byte(&mut self, b: u8) {
        self.unsigned = self.unsigned.rotate_left(1).wrapping_add(u32::from(b));
        // A C `char` that is signed: the byte is sign-extended first.
        let extended = i32::from(i8::from_ne_bytes([b])) as u32;
        self.signed = self.signed.rotate_left(1).wrapping_add(extended);
    }

    /// Returns the value to send; never 0, which means "no checksum".
    pub fn finish(self) -> u32 {
        nonzero(self.unsigned)
    }

    /// Returns whether a received value matches.
    ///
    /// Peers built with signed `char` (x86 before Linux 6.2) and those built
    /// with unsigned `char` differ for bytes above 0x7f; both are right.
    pub fn matches(self, received: u32) -> bool {
        received == nonzero(self.unsigned) || received == nonzero(self.signed)
    }
}

fn nonzero(sum: u32) -> u32 {
    match sum {
        0 => 1,
        n => n,
    }
}

/// Returns the checksum to send with `msg`, a whole message.
pub fn checksum(msg: &[u8]) -> u32 {
    Running::header(msg).finish()
}

/// Returns whether `received` is a right checksum of `msg`, a whole message.
pub fn verify(msg: &[u8], received: u32) -> bool {
    Running::header(msg).matches(received)
}

#[cfg(any(test, ro2iblnd_kunit))]
#[cfg_attr(ro2iblnd_kunit, ::kernel::macros::kunit_tests(ro2iblnd_proto_cksum))]
mod tests {
    use super::*;

    #[test]
    fn own_field_counts_as_zero() {
        let zero = [0u8; 48];
        let mut noise = zero;
        if let Some(field) = noise.get_mut(12..16) {
            field.copy_from_slice(&[1, 2, 3, 4]);
        }
        assert_eq!(checksum(&zero), 1);
        assert_eq!(checksum(&noise), 1);
        assert!(verify(&noise, 1));
        assert!(!verify(&noise, 0));
        assert!(!verify(&noise, 2));
    }

    #[test]
    fn rotates_then_adds() {
        assert_eq!(checksum(&[1, 0, 0]), 4);
        assert_eq!(checksum(&[1, 2, 3]), 11);
        assert_eq!(checksum(&[]), 1);
    }

    #[test]
    fn both_char_variants_are_accepted() {
        assert_eq!(checksum(&[0x80]), 0x80);
        assert!(verify(&[0x80], 0x80));
        assert!(verify(&[0x80], 0xffff_ff80));
        assert!(!verify(&[0x80], 0x7f));
    }

    #[test]
    fn pieces_equal_the_whole() {
        let msg = [0xa5u8; 150];
        let (head, tail) = msg.split_at(120);
        let mut sum = Running::header(head);
        sum.update(tail);
        assert_eq!(sum.finish(), checksum(&msg));
    }
}
