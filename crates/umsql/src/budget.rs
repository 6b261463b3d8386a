//! The budget of a server: how much memory all its clients together may take.
//!
//! It knows no clients; `memory.rs` has their accounts, which take their parts of it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::error::SqlError;

/// How many servers a process may have at the same time.
const SUMS: usize = 1 << 12;

static ALL: [Sum; SUMS] = [const { Sum::new() }; SUMS];

/// What the accounts of one server take, and may take, in bytes. It is never freed, because
/// accounts refer to it by its number.
pub(crate) struct Sum {
    in_use: AtomicBool,
    limit: AtomicUsize,
    taken: AtomicUsize,
    pub(crate) refusals: AtomicU64,
}

impl Sum {
    const fn new() -> Sum {
        Sum {
            in_use: AtomicBool::new(false),
            limit: AtomicUsize::new(usize::MAX),
            taken: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// Returns the sum with this number, which a [`Budget`] has or has had.
    pub(crate) fn of(number: usize) -> &'static Sum {
        &ALL[number % SUMS]
    }

    /// Takes `bytes` of it. Returns false, and takes nothing, if so much is not left. What is
    /// `small` is never refused.
    pub(crate) fn take(&self, bytes: usize, small: bool) -> bool {
        let taken = self.taken.fetch_add(bytes, Relaxed) + bytes;
        let may = small || taken <= self.limit.load(Relaxed);
        if !may {
            self.give_back(bytes);
        }
        may
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

/// The budget of one server, until this is dropped.
#[derive(Debug)]
pub(crate) struct Budget {
    number: usize,
}

impl Budget {
    /// Returns a budget of this many bytes.
    ///
    /// # Errors
    /// 53300 if the process has too many servers.
    pub(crate) fn new(bytes: usize) -> Result<Budget, SqlError> {
        let free = |sum: &Sum| !sum.in_use.load(Relaxed) && !sum.in_use.swap(true, Relaxed);
        let number = ALL.iter().position(free);
        let number =
            number.ok_or_else(|| SqlError::new("53300", "the process has too many servers"))?;
        ALL[number].limit.store(bytes, Relaxed);
        ALL[number].refusals.store(0, Relaxed);
        Ok(Budget { number })
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn limit(&self) -> usize {
        ALL[self.number].limit.load(Relaxed)
    }

    /// Returns what of it is taken.
    pub(crate) fn taken(&self) -> usize {
        ALL[self.number].taken.load(Relaxed)
    }

    /// Returns how often a limit has forbidden something, to any client of the server.
    pub(crate) fn refusals(&self) -> u64 {
        ALL[self.number].refusals.load(Relaxed)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        ALL[self.number].in_use.store(false, Relaxed);
    }
}
