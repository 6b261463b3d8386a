//! One seed repeats a whole run: programs under simulation (feature `sim`).
//!
//! [`run`] runs a *story*: a closure that builds a [`Node`](crate::Node) and uses it as the program
//! does, in a world where one thread runs at a time. A seed decides which thread runs, when
//! operations complete, and what goes wrong. The schedulers, lists, timers, locks and channels are
//! those of the library. A story that fails with a seed fails with that seed again, in the same
//! steps.
//!
//! ```
//! let story = || {
//!     let node = ums::Node::builder().schedulers(2).max_workers(4).build().unwrap();
//!     let sum = node.run(|| {
//!         let half = ums::spawn(|| 20);
//!         half.join().unwrap() + 22
//!     });
//!     assert_eq!(sum, 42);
//! };
//! let ended = ums::sim::run(1, ums::sim::Faults::default(), story);
//! assert_eq!(ended.failed, None);
//! assert_eq!(ended.hash, ums::sim::run(1, ums::sim::Faults::default(), story).hash);
//! ```
//!
//! A story must not block in any other way than through this crate (no lock of the standard library
//! that another of its threads holds, no `std::thread::park`), and must not read a clock or random
//! numbers of the operating system. The streams and listeners of [`ums::net`](crate::net) are on a
//! network of the world's. Datagrams, and sockets that the standard library opened, are real: the
//! seed does not decide when their bytes arrive. Processes that are started meanwhile hold copies
//! of the sockets for a moment.

mod campaign;
mod check;
mod shrink;

use std::time::Duration;

use crate::os::sim::World;
pub use crate::os::sim::{Dice, Ended, Faults, Plan};
use crate::os::{clock, threads};
pub use campaign::{Campaign, campaign};
pub use check::{Check, Checked, check, replays};
pub use shrink::shrink;

/// Runs a story in a world of this seed. A panic of the story is the failure.
pub fn run(seed: u64, faults: Faults, story: impl FnOnce() + Send + 'static) -> Ended {
    run_plan(&Plan::new(seed, faults), story)
}

/// As [`run`], with a plan.
pub fn run_plan(plan: &Plan, story: impl FnOnce() + Send + 'static) -> Ended {
    World::run(plan, story)
}

/// Returns true if the caller is in a story.
pub fn is_here() -> bool {
    crate::os::sim::is_here()
}

/// Returns a number below `sides` from the story's seed; 0 outside of stories.
pub fn below(sides: u64) -> u64 {
    crate::os::sim::below(sides)
}

/// Returns nanoseconds of the story's clock; outside of stories, of the system's.
pub fn now() -> u64 {
    clock::now()
}

/// Turns the power off: every operation on a file fails until [`power_on`]. The
/// caller must end its node before it calls `power_on`.
pub fn power_off() {
    crate::os::sim::power_off();
}

/// Turns the power on again. Everything that workers wrote or truncated and did not sync is lost,
/// or, in half of the worlds, a random part of it; and so are changes of names in folders that were
/// not synced.
///
/// # Errors
/// An error of the file system.
pub fn power_on() -> std::io::Result<()> {
    crate::os::sim::power_on()
}

/// Lets another thread run here, if the seed says so. It belongs in a story's own code, where the
/// order of threads matters.
pub fn point(what: &'static str) {
    threads::point(what);
}

/// Creates a plain thread of the story's, which the story must join.
///
/// # Errors
/// An error of the operating system; the world may refuse the thread ([`Faults::no_thread`]).
pub fn thread(name: &str, main: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
    threads::spawn(std::thread::Builder::new(), name.to_owned(), main).map(Thread)
}

/// A plain thread of a story.
#[derive(Debug)]
pub struct Thread(threads::JoinHandle);

impl Thread {
    /// Waits for its end.
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join(self) -> std::thread::Result<()> {
        self.0.join()
    }
}

/// Sleeps as a plain thread does. A worker that calls this holds its scheduler up.
pub fn thread_sleep(span: Duration) {
    threads::sleep(span);
}
