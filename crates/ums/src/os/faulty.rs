//! Faults on purpose: for tests, a driver that wraps another driver and makes its operations go
//! wrong.
//!
//! From one seed it delays completions and changes their order, makes transfers short and
//! operations on files fail, and delays cancellations so that they race with the operations that
//! they cancel. The code that uses the driver must not notice more than an error or a short
//! transfer.
//!
//! Delays are counted in *looks*: a look is a call of `reap` or `wait`.
//!
//! ```text
//!   submit --fails--------------------------> held --- so many looks later ---> Done
//!      |                                        ^
//!      +--shortened--> [ the real driver ] --late
//! ```
//!
//! The driver keeps the rule *One Completion*: an operation that fails on purpose is never
//! submitted to the real driver, and a completion of the real driver is delivered once.

use crate::os::driver::{Done, Driver, LiveOp, Op, Submitted, Waker};
use crate::os::lock::Lock;

/// The largest number of looks by which a completion or a cancellation is delayed.
const LOOKS_MAX: u64 = 6;

/// Which faults happen, each in how many of a thousand cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFaults {
    /// The seed. The same seed gives the same faults, as long as the operations are the same.
    pub seed: u64,
    /// Completions and cancellations that are delayed, which also changes their order.
    pub late: u64,
    /// File transfers that move only a part of the data.
    pub short: u64,
    /// File operations that fail with one of `errors`.
    pub fail: u64,
    /// The errors. Zeros are ignored.
    pub errors: [i32; 4],
}

static INSTALLED: Lock<Option<DriverFaults>> = Lock::new(None);

/// Sets the faults of all drivers that are opened from now on; `None` for no faults.
pub fn install(faults: Option<DriverFaults>) {
    *INSTALLED.lock() = faults;
}

/// Returns the driver unchanged, or wrapped in one with the installed faults.
pub fn wrap(driver: Box<dyn Driver>) -> Box<dyn Driver> {
    match *INSTALLED.lock() {
        None => driver,
        Some(faults) => Box::new(Faulty::new(driver, faults)),
    }
}

/// A driver with faults; see the top of this file.
pub struct Faulty {
    inner: Box<dyn Driver>,
    faults: DriverFaults,
    random: u64,
    /// Completions that are delayed, each with the number of looks that remain.
    held: Vec<(u64, Done)>,
    /// Cancellations that are delayed, each with the number of looks that remain.
    cancels: Vec<(u64, u64)>,
    fresh: Vec<Done>,
}

impl Faulty {
    fn new(inner: Box<dyn Driver>, faults: DriverFaults) -> Faulty {
        let random = faults.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let (held, cancels, fresh) = (Vec::new(), Vec::new(), Vec::new());
        Faulty { inner, faults, random, held, cancels, fresh }
    }

    /// Returns the next random number, by xorshift64*.
    fn roll(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn happens(&mut self, in_a_thousand: u64) -> bool {
        self.roll() % 1000 < in_a_thousand
    }

    /// Returns by how many looks to delay something; 0 for not at all.
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

    /// Returns the operation, perhaps with a shorter transfer. Transfers of direct I/O stay
    /// aligned.
    fn shorten(&mut self, mut op: LiveOp<'static>) -> LiveOp<'static> {
        if let Op::Read { len, .. } | Op::Write { len, .. } = *op {
            let step = if len.is_multiple_of(512) { 512 } else { 1 };
            if len > step && self.happens(self.faults.short) {
                op.shorten((1 + self.roll() as usize % (len / step - 1)) * step);
            }
        }
        op
    }

    /// Counts one look: delays some of the new completions, and delivers those whose delay is over.
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

/// Returns whether the operation is on a file. Only such operations fail on purpose.
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

    fn ready(&mut self, now: u64) -> bool {
        !self.held.is_empty() || !self.cancels.is_empty() || self.inner.ready(now)
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

    fn gathers(&mut self, others_can_run: bool) -> bool {
        self.inner.gathers(others_can_run)
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
