//! Faults on purpose: a driver around a driver, for tests.
//!
//! From one seed it makes completions late and out of order, transfers short, operations on files
//! fail, and cancellations arrive late, so that they race with what they cancel. The code above the
//! seam must not notice more than an error or a short transfer.
//!
//! ```text
//!   submit --fails--------------------------> held --- so many looks later ---> Done
//!      |                                        ^
//!      +--shortened--> [ the real driver ] --late
//! ```
//!
//! Rule: *One Completion* (the seam): an operation that fails on purpose is
//! never given to the real driver, and what the real driver completes is delivered once.

use crate::os::driver::{Done, Driver, LiveOp, Op, Submitted, Waker};
use crate::os::lock::Lock;

/// The most looks for which a completion or a cancellation is held back.
const LOOKS_MAX: u64 = 6;

/// What goes wrong, in how many of a thousand cases each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The same seed gives the same faults, as long as the operations are the same.
    pub seed: u64,
    /// Completions and cancellations that are held back, and so change their order.
    pub late: u64,
    /// Transfers of files that move only a part.
    pub short: u64,
    /// Operations on files that fail, with one of `errors`.
    pub fail: u64,
    /// The errors; zeros are left out.
    pub errors: [i32; 4],
}

static INSTALLED: Lock<Option<Faults>> = Lock::new(None);

/// Gives the drivers that are opened from now on these faults; None for none.
pub fn install(faults: Option<Faults>) {
    *INSTALLED.lock() = faults;
}

/// Returns the driver itself, or with the installed faults around it.
pub fn wrap(driver: Box<dyn Driver>) -> Box<dyn Driver> {
    match *INSTALLED.lock() {
        None => driver,
        Some(faults) => Box::new(Faulty::new(driver, faults)),
    }
}

/// A driver with faults; see the module's text.
pub struct Faulty {
    inner: Box<dyn Driver>,
    faults: Faults,
    random: u64,
    /// Completions that are held back, and for how many looks.
    held: Vec<(u64, Done)>,
    /// Cancellations that are held back.
    cancels: Vec<(u64, u64)>,
    fresh: Vec<Done>,
}

impl Faulty {
    fn new(inner: Box<dyn Driver>, faults: Faults) -> Faulty {
        let random = faults.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let (held, cancels, fresh) = (Vec::new(), Vec::new(), Vec::new());
        Faulty { inner, faults, random, held, cancels, fresh }
    }

    /// Returns the next number of xorshift64*.
    fn roll(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn happens(&mut self, in_a_thousand: u64) -> bool {
        self.roll() % 1000 < in_a_thousand
    }

    /// Returns for how many looks to hold something back; 0 for not at all.
    fn lateness(&mut self) -> u64 {
        if self.happens(self.faults.late) { 1 + self.roll() % LOOKS_MAX } else { 0 }
    }

    fn error(&mut self) -> Option<i32> {
        if !self.happens(self.faults.fail) {
            return None;
        }
        let errors = self.faults.errors.into_iter().filter(|e| *e != 0);
        let at = self.roll() as usize % errors.clone().count().max(1);
        errors.clone().nth(at)
    }

    /// Returns the operation, possibly with a shorter transfer. Direct I/O stays aligned.
    fn shorten(&mut self, mut op: LiveOp<'static>) -> LiveOp<'static> {
        if let Op::Read { len, .. } | Op::Write { len, .. } = *op {
            let step = if len.is_multiple_of(512) { 512 } else { 1 };
            if len > step && self.happens(self.faults.short) {
                op.shorten((1 + self.roll() as usize % (len / step - 1)) * step);
            }
        }
        op
    }

    /// Takes one look: sorts the completions, and delivers those that have been held back long
    /// enough.
    fn pass(&mut self, out: &mut Vec<Done>) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for done in fresh.drain(..) {
            match self.lateness() {
                0 => out.push(done),
                looks => self.held.push((looks, done)),
            }
        }
        self.fresh = fresh;
        self.held.retain_mut(|(looks, done)| {
            *looks -= 1;
            if *looks == 0 {
                out.push(*done);
            }
            *looks > 0
        });
        let inner = &mut self.inner;
        self.cancels.retain_mut(|(looks, token)| {
            *looks -= 1;
            if *looks == 0 {
                inner.cancel(*token);
            }
            *looks > 0
        });
    }
}

/// Returns whether it is an operation on a file, which may fail on purpose.
fn is_of_a_file(op: &Op) -> bool {
    let moves =
        matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Readv { .. } | Op::Writev { .. });
    moves || op.blocks()
}

impl Driver for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn describe(&self) -> String {
        format!("{}, with {:?}", self.inner.describe(), self.faults)
    }

    fn submit(&mut self, token: u64, op: LiveOp<'static>) -> Submitted {
        if !is_of_a_file(&op) {
            return self.inner.submit(token, op);
        }
        if let Some(errno) = self.error() {
            let looks = 1 + self.roll() % LOOKS_MAX;
            self.held.push((looks, Done { token, result: -errno }));
            return Submitted::Pending;
        }
        let op = self.shorten(op);
        match self.inner.submit(token, op) {
            Submitted::Pending => Submitted::Pending,
            Submitted::Done(result) => match self.lateness() {
                0 => Submitted::Done(result),
                looks => {
                    self.held.push((looks, Done { token, result }));
                    Submitted::Pending
                }
            },
        }
    }

    fn cancel(&mut self, token: u64) {
        match self.lateness() {
            0 => self.inner.cancel(token),
            looks => self.cancels.push((looks, token)),
        }
    }

    fn ready(&mut self) -> bool {
        !self.held.is_empty() || !self.cancels.is_empty() || self.inner.ready()
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        self.inner.reap(&mut self.fresh);
        self.pass(out);
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        let holds = !self.held.is_empty() || !self.cancels.is_empty();
        let timeout_ns = if holds { Some(0) } else { timeout_ns };
        self.inner.wait(timeout_ns, &mut self.fresh);
        self.pass(out);
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn done(&mut self) -> usize {
        self.inner.done() + self.held.len()
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.held.len()
    }
}
