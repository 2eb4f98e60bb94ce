//! A bit string, filled from the least significant bit of each byte: one bit at a time, as the format is
//! defined.

use alloc::vec::Vec;

/// Appends bits to bytes. The last byte is filled up with zeros.
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    written: usize,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { out, written: 0 }
    }

    /// Appends the `count` low bits of `bits`, at most 32.
    pub fn put(&mut self, bits: u32, count: u32) {
        for at in 0..count {
            if self.written.is_multiple_of(8) {
                self.out.push(0);
            }
            if let Some(last) = self.out.last_mut() {
                *last |= ((bits >> at & 1) as u8) << (self.written % 8);
            }
            self.written += 1;
        }
    }

    /// Appends `gap >> rice` ones, a zero, and the `rice` low bits of `gap`.
    pub fn put_rice(&mut self, gap: u32, rice: u32) {
        for _ in 0..gap >> rice {
            self.put(1, 1);
        }
        self.put(0, 1);
        self.put(gap, rice);
    }
}

/// Reads bits from bytes. Past the last byte it returns zeros, so that a reader checks for the end only
/// once.
#[derive(Clone)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, at: 0 }
    }

    /// Returns the next bit.
    pub fn bit(&mut self) -> bool {
        let byte = self.bytes.get(self.at / 8).copied().unwrap_or(0);
        self.at += 1;
        byte >> ((self.at - 1) % 8) & 1 == 1
    }

    /// Returns the next `count` bits, at most 32.
    pub fn take(&mut self, count: u32) -> u32 {
        (0..count).fold(0, |bits, at| bits | u32::from(self.bit()) << at)
    }

    pub fn skip(&mut self, count: usize) {
        self.at += count;
    }

    /// Returns a gap as [`BitWriter::put_rice`] writes it; `None` if it is at least `limit`, however many
    /// ones there are.
    pub fn take_rice(&mut self, rice: u32, limit: u32) -> Option<u32> {
        let mut quotient = 0;
        while self.bit() {
            quotient += 1;
            if quotient >= limit {
                return None;
            }
        }
        Some(quotient << rice | self.take(rice)).filter(|gap| *gap < limit)
    }

    pub fn is_past_end(&self) -> bool {
        self.at > 8 * self.bytes.len()
    }

    /// Returns the unread bits of the current byte, and whether whole bytes follow.
    pub fn rest(&self) -> (u8, bool) {
        let begun = if self.at.is_multiple_of(8) {
            0
        } else {
            self.bytes.get(self.at / 8).map_or(0, |byte| byte >> (self.at % 8))
        };
        (begun, self.at.div_ceil(8) < self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gaps_and_bits_read_back_as_they_were_written(
            rice in 0u32..=12,
            gaps in proptest::collection::vec(0u32..4096, 0..50),
            words in proptest::collection::vec((any::<u32>(), 0u32..=32), 0..50),
        ) {
            let words = words.iter().map(|(word, count)| (word & ((1u64 << count) - 1) as u32, *count));
            let mut bytes = Vec::new();
            let mut writer = BitWriter::new(&mut bytes);
            gaps.iter().for_each(|gap| writer.put_rice(*gap, rice));
            words.clone().for_each(|(word, count)| writer.put(word, count));

            let mut reader = BitReader::new(&bytes);
            for gap in gaps {
                prop_assert_eq!(reader.take_rice(rice, 4096), Some(gap));
            }
            for (word, count) in words {
                prop_assert_eq!(reader.take(count), word);
            }
            prop_assert!(!reader.is_past_end());
            prop_assert_eq!(reader.rest(), (0, false));
        }
    }

    #[test]
    fn a_row_of_ones_without_end_is_given_up() {
        let bytes = [0xff; 4096];
        assert_eq!(BitReader::new(&bytes).take_rice(0, 4096), None);
        assert_eq!(BitReader::new(&bytes).take_rice(12, 4096), None);
    }

    #[test]
    fn reading_past_the_end_gives_zeros_and_is_noticed() {
        let mut reader = BitReader::new(&[0b101]);
        assert_eq!((reader.take(3), reader.rest()), (0b101, (0, false)));
        assert_eq!((reader.take(32), reader.is_past_end()), (0, true));
        assert_eq!(reader.take_rice(5, 4096), Some(0));
    }
}
