//! Search: finds a part in a long text or blob, in steps.
//!
//! A part of at most [`PIECE`] bytes is looked for in one window of the whole after the other, by a
//! search that takes time in proportion to the window. Two windows overlap by the part's length
//! less one byte.
//!
//! Such a search would have to examine a longer part before it begins, all at once. So a longer
//! part is found by its hash (Rabin and Karp). The search keeps the hash of as many bytes of the
//! whole as the part has, and computes it for the next place from the byte that leaves and the byte
//! that enters. If the hashes are equal, the bytes are compared. The bytes are the coefficients of
//! a polynomial, and the hash is its value at a random point. A client does not know the point, so
//! it cannot choose different bytes that have the same hash.

use std::hash::{BuildHasher, RandomState};

use memchr::memmem::Finder;
use rusqlite::Result;

use super::steps::{Steps, look};
use super::values::PIECE;

/// A search of all places of a part that do not overlap, from the first to the last.
pub(super) struct Search<'a> {
    whole: &'a [u8],
    part: &'a [u8],
    method: Method<'a>,
    /// Where the next place may begin.
    at: usize,
    steps: Steps,
}

#[expect(clippy::large_enum_variant, reason = "a search is on the stack, for one call")]
enum Method<'a> {
    InWindows(Finder<'a>),
    ByHash(Hash),
}

impl<'a> Search<'a> {
    pub(super) fn new(whole: &'a [u8], part: &'a [u8]) -> Result<Search<'a>> {
        let mut steps = Steps::default();
        let method = if part.len() > whole.len() {
            // It is nowhere, and is not examined.
            Method::InWindows(Finder::new(&[]))
        } else if part.len() <= PIECE {
            steps.bytes(part.len())?;
            Method::InWindows(Finder::new(part))
        } else {
            Method::ByHash(Hash::of(part)?)
        };
        Ok(Search { whole, part, method, at: 0, steps })
    }

    /// Begins again with the first place.
    pub(super) fn restart(&mut self) {
        self.at = 0;
    }

    /// Returns where the next place begins; `None` if there is none. An empty part is found at 0
    /// again and again.
    pub(super) fn find_next(&mut self) -> Result<Option<usize>> {
        if self.part.len() > self.whole.len() - self.at {
            return Ok(None);
        }
        let found = match &self.method {
            Method::InWindows(finder) => {
                in_windows(finder, self.whole, self.part.len(), self.at, &mut self.steps)?
            }
            Method::ByHash(hash) => hash.find(self.whole, self.part, self.at, &mut self.steps)?,
        };
        self.at = found.map_or(self.whole.len(), |found| found + self.part.len());
        Ok(found)
    }
}

fn in_windows(
    finder: &Finder<'_>,
    whole: &[u8],
    part: usize,
    mut at: usize,
    steps: &mut Steps,
) -> Result<Option<usize>> {
    loop {
        let end = whole.len().min(at + PIECE + part);
        let found = finder.find(&whole[at..end]);
        steps.bytes(found.map_or(end - at, |found| found + part))?;
        if let Some(found) = found {
            return Ok(Some(at + found));
        }
        if end == whole.len() {
            return Ok(None);
        }
        at = end + 1 - part;
    }
}

/// The modulus of the hash, a prime.
const PRIME: u64 = (1 << 61) - 1;

/// The hash of a part, by which its places are found.
struct Hash {
    /// The point at which the polynomial is taken.
    point: u64,
    /// What the first byte of the part is multiplied by.
    first: u64,
    part: u64,
}

impl Hash {
    fn of(part: &[u8]) -> Result<Hash> {
        let point = 256 + RandomState::new().hash_one(part.len()) % (PRIME - 256);
        let mut hash = Hash { point, first: power(point, part.len() - 1), part: 0 };
        for piece in part.chunks(PIECE) {
            look()?;
            for byte in piece {
                hash.part = hash.with(hash.part, *byte);
            }
        }
        Ok(hash)
    }

    /// Returns the hash of bytes with this hash and one more byte.
    fn with(&self, hash: u64, byte: u8) -> u64 {
        (times(hash, self.point) + u64::from(byte)) % PRIME
    }

    fn find(
        &self,
        whole: &[u8],
        part: &[u8],
        mut at: usize,
        steps: &mut Steps,
    ) -> Result<Option<usize>> {
        let Some(bytes) = whole.get(at..at + part.len()) else { return Ok(None) };
        let mut hash = 0;
        for byte in bytes {
            steps.step()?;
            hash = self.with(hash, *byte);
        }
        loop {
            if hash == self.part && same(&whole[at..at + part.len()], part)? {
                return Ok(Some(at));
            }
            let Some(new) = whole.get(at + part.len()) else { return Ok(None) };
            steps.step()?;
            let without = hash + PRIME - times(u64::from(whole[at]), self.first);
            hash = self.with(without % PRIME, *new);
            at += 1;
        }
    }
}

/// Returns the product modulo [`PRIME`], of numbers that are less.
fn times(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    // 2^61 is 1 in this arithmetic.
    let sum = (product as u64 & PRIME) + (product >> 61) as u64;
    if sum >= PRIME { sum - PRIME } else { sum }
}

fn power(base: u64, mut exponent: usize) -> u64 {
    let (mut power, mut square) = (1, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = times(power, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    power
}

fn same(a: &[u8], b: &[u8]) -> Result<bool> {
    for (a, b) in a.chunks(PIECE).zip(b.chunks(PIECE)) {
        look()?;
        if a != b {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(whole: &[u8], part: &[u8], by_hash: bool) -> Vec<usize> {
        let mut search = Search::new(whole, part).unwrap();
        if by_hash {
            search.method = Method::ByHash(Hash::of(part).unwrap());
        }
        std::iter::from_fn(|| search.find_next().unwrap()).collect()
    }

    #[test]
    fn both_methods_find_every_place_that_does_not_overlap() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % below
        };
        for _ in 0..2_000 {
            let whole: Vec<u8> = (0..next(40)).map(|_| b"ab"[next(2)]).collect();
            let part: Vec<u8> = (0..1 + next(5)).map(|_| b"ab"[next(2)]).collect();
            let expected: Vec<usize> = memchr::memmem::find_iter(&whole, &part).collect();
            assert_eq!(all(&whole, &part, false), expected, "{whole:?} {part:?}");
            assert_eq!(all(&whole, &part, true), expected, "{whole:?} {part:?}");
        }
    }

    #[test]
    fn places_at_the_ends_of_windows_and_long_parts_are_found() {
        let part = b"a part of the whole";
        for at in (PIECE - 25..PIECE + 25).chain(2 * PIECE..2 * PIECE + 50) {
            let mut whole = vec![b'a'; 3 * PIECE];
            whole[at..at + part.len()].copy_from_slice(part);
            assert_eq!(all(&whole, part, false), [at]);
        }
        let mut whole = vec![b'0'; 5 * PIECE];
        let mut part = vec![b'0'; PIECE + 1];
        assert_eq!(all(&whole, &part, false), [0, 1, 2, 3].map(|n| n * (PIECE + 1)));
        part[PIECE] = b'1';
        assert_eq!(all(&whole, &part, false), []);
        whole[3 * PIECE] = b'1';
        assert_eq!(all(&whole, &part, false), [2 * PIECE]);
        assert_eq!(all(b"short", &part, false), []);
    }

    #[test]
    fn what_has_the_same_hash_is_compared() {
        let mut search = Search::new(b"aab", b"ab").unwrap();
        // At the point 0, a hash is the last byte alone.
        search.method = Method::ByHash(Hash { point: 0, first: 0, part: u64::from(b'b') });
        assert_eq!(search.find_next().unwrap(), Some(1));
        let mut search = Search::new(b"bb", b"ab").unwrap();
        search.method = Method::ByHash(Hash { point: 0, first: 0, part: u64::from(b'b') });
        assert_eq!(search.find_next().unwrap(), None);
    }
}
