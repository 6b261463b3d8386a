//! Buffers from which the kernel chooses one when bytes have arrived.
//!
//! The kernel and the driver share a ring of descriptions of free buffers. The kernel takes the
//! first one when a receive that has no buffer can proceed, and its completion contains the
//! buffer's number. The driver copies the bytes to their owner immediately and gives the buffer
//! back. So a slow reader occupies no buffer, and the buffers run out only while one batch of
//! completions is handled.
//!
//! ```text
//!   page 0: descriptions of 16 bytes: address | length, 4 bytes | number, 2 | 2 unused ones,
//!                                     which in the first description are the ring's tail
//!   pages 1..: the buffers
//! ```
//!
//! All of it is atomic words, so no code here is unsafe. A buffer that was given to the kernel is
//! not read until a completion has returned it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::op::RECEIVE_MAX;

/// The number of the group of buffers; a driver has one.
pub(super) const GROUP: u16 = 0;
/// The number of buffers, a power of two.
pub(super) const COUNT: u16 = 64;
const PAGE: usize = 4096;
const PAGES: usize = 1 + COUNT as usize * RECEIVE_MAX / PAGE;
const WORD: usize = size_of::<u64>();

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE / WORD]);

/// The buffers of one driver.
pub(super) struct Buffers {
    pages: Box<[Page]>,
    /// How many buffers were given to the kernel so far, modulo 65536.
    tail: u16,
}

impl Buffers {
    /// Allocates buffers. None of them is described yet.
    pub fn new() -> Buffers {
        let page = || Page([const { AtomicU64::new(0) }; PAGE / WORD]);
        Buffers { pages: (0..PAGES).map(|_| page()).collect(), tail: 0 }
    }

    /// Returns the address of the descriptions.
    pub fn address(&self) -> u64 {
        self.pages.as_ptr().expose_provenance() as u64
    }

    /// Returns the number of the word at which a buffer begins.
    fn start(number: u16) -> usize {
        assert!(number < COUNT, "the kernel returned buffer {number}");
        (PAGE + usize::from(number) * RECEIVE_MAX) / WORD
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.pages[at / (PAGE / WORD)].0[at % (PAGE / WORD)]
    }

    /// Copies the first bytes of a buffer that a completion has returned.
    pub fn copy(&self, number: u16, len: usize) -> Vec<u8> {
        let start = Buffers::start(number);
        // Whole words, and then the last of them is cut.
        let words = len.div_ceil(WORD);
        let mut bytes = Vec::with_capacity(words * WORD);
        for at in start..start + words {
            bytes.extend_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Gives a buffer to the kernel.
    pub fn give(&mut self, number: u16) {
        let address = self.address() + (Buffers::start(number) * WORD) as u64;
        let place = usize::from(self.tail & (COUNT - 1));
        let described = RECEIVE_MAX as u64 | u64::from(number) << 32;
        let tail = |tail: u16| u64::from(tail) << 48;
        let rest = self.word(2 * place + 1);
        self.word(2 * place).store(address, Ordering::Relaxed);
        // The first description keeps the old tail until the next line but one.
        rest.store(
            if place == 0 { described | tail(self.tail) } else { described },
            Ordering::Relaxed,
        );
        self.tail = self.tail.wrapping_add(1);
        let first = self.word(1);
        let others = first.load(Ordering::Relaxed) & (u64::MAX >> 16);
        first.store(others | tail(self.tail), Ordering::Release);
    }
}
