//! A row of bits, filled from the least significant bit of each byte.

use alloc::vec::Vec;

/// Appends bits to bytes, a word at a time.
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    /// Bits in `pending`: under 32 between two calls.
    held: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { out, pending: 0, held: 0 }
    }

    /// The `count` low bits of `bits`, whose others are zero; at most 32.
    pub fn put(&mut self, bits: u32, count: u32) {
        self.pending |= u64::from(bits) << self.held;
        self.held += count;
        if self.held >= 32 {
            self.out.extend_from_slice(&(self.pending as u32).to_le_bytes());
            self.pending >>= 32;
            self.held -= 32;
        }
    }

    /// `gap >> rice` ones, a zero, and the `rice` low bits of `gap`.
    pub fn put_rice(&mut self, gap: u32, rice: u32) {
        let mut ones = gap >> rice;
        while ones >= 32 {
            self.put(u32::MAX, 32);
            ones -= 32;
        }
        self.put((1 << ones) - 1, ones + 1);
        self.put(gap & ((1 << rice) - 1), rice);
    }

    /// Zero bits up to a whole byte.
    pub fn finish(self) {
        let bytes = self.held.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..bytes]);
    }
}

/// Reads bits from bytes. After the last byte come zeros without end, so that a reader looks once, at the end, whether
/// it went too far.
#[derive(Clone)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// As many bits as [`BitReader::ahead`] shows, wherever it stands in a byte.
const AHEAD: u32 = 57;

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, at: 0 }
    }

    /// The next `count` bits, at most 32.
    pub fn take(&mut self, count: u32) -> u32 {
        let bits = self.ahead() & ((1 << count) - 1);
        self.at += count as usize;
        bits as u32
    }

    pub fn skip(&mut self, count: usize) {
        self.at += count;
    }

    /// A gap as [`BitWriter::put_rice`] writes it; `None` if it is `limit` or more, however long its row of ones is.
    pub fn take_rice(&mut self, rice: u32, limit: u32) -> Option<u32> {
        let low = (1 << rice) - 1;
        let ahead = self.ahead();
        let ones = ahead.trailing_ones();
        if ones + 1 + rice <= AHEAD {
            self.at += (ones + 1 + rice) as usize;
            let gap = ones << rice | (ahead >> (ones + 1)) as u32 & low;
            return (gap < limit).then_some(gap);
        }

        let mut quotient = 0;
        loop {
            let ones = self.ahead().trailing_ones();
            if ones < AHEAD {
                quotient += ones;
                self.skip(ones as usize + 1);
                break;
            }
            quotient += AHEAD;
            self.skip(AHEAD as usize);
            if quotient >= limit {
                return None;
            }
        }
        let gap = quotient << rice | self.take(rice);
        (gap < limit).then_some(gap)
    }

    pub fn is_past_end(&self) -> bool {
        self.at > 8 * self.bytes.len()
    }

    /// What is left: the unread bits of the byte begun, and whether whole bytes follow.
    pub fn rest(&self) -> (u8, bool) {
        let begun = if self.at.is_multiple_of(8) {
            0
        } else {
            self.bytes.get(self.at / 8).map_or(0, |byte| byte >> (self.at % 8))
        };
        (begun, self.at.div_ceil(8) < self.bytes.len())
    }

    /// The next bits, [`AHEAD`] of them or a few more.
    fn ahead(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or(&[]);
        let word = match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        word >> (self.at % 8)
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
            writer.finish();

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
