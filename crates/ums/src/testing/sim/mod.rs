//! One seed replays the world: programs under simulation (feature `sim`).
//!
//! [`run`] runs a *story*, a closure that builds a [`Node`](crate::Node) and does with it what the
//! program does, in a world where one thread runs at a time and a seed chooses which, when
//! operations complete, and what goes wrong. The schedulers, lists, timers, locks and channels are
//! those that are shipped. A story that fails with a seed fails with that seed again, in the same
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
//! What a story must not do: block other than through this crate (a lock of the standard library
//! that another of its threads holds, `std::thread::park`), or read a clock or random numbers of
//! the system. The streams and listeners of [`ums::net`](crate::net) are on a network of the
//! world's; datagrams, and what the standard library opened, are real, and the seed does not know
//! when those bytes arrive. Processes that are started meanwhile hold copies of the sockets for a
//! moment.

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

/// Runs a story in a world of this seed. A panic of the story's is what failed.
pub fn run(seed: u64, faults: Faults, story: impl FnOnce() + Send + 'static) -> Ended {
    run_plan(&Plan::new(seed, faults), story)
}

/// As [`run`], of a plan.
pub fn run_plan(plan: &Plan, story: impl FnOnce() + Send + 'static) -> Ended {
    World::run(plan, story)
}

/// Whether the caller is in a story.
pub fn is_here() -> bool {
    crate::os::sim::is_here()
}

/// A number below `sides` from the story's seed; 0 outside of stories.
pub fn below(sides: u64) -> u64 {
    crate::os::sim::below(sides)
}

/// Nanoseconds on the story's clock; the machine's outside of stories.
pub fn now() -> u64 {
    clock::now()
}

/// The power fails: from now on every operation on a file fails, until [`power_on`]. The story ends
/// its node meanwhile.
pub fn power_off() {
    crate::os::sim::power_off();
}

/// The power is back. Of what workers wrote, cut and did not sync everything is gone, or, in half
/// of the worlds, a random part of it; and so it is with names in folders that were not synced.
///
/// # Errors
/// The system's.
pub fn power_on() -> std::io::Result<()> {
    crate::os::sim::power_on()
}

/// Another thread may run here: to be put into a story's own code, where it matters who is first.
pub fn point(what: &'static str) {
    threads::point(what);
}

/// Makes a plain thread of the story's. It is to be joined.
///
/// # Errors
/// What the system says; the world may refuse it ([`Faults::no_thread`]).
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
    /// With what it panicked with.
    pub fn join(self) -> std::thread::Result<()> {
        self.0.join()
    }
}

/// Sleeps as a plain thread does: a worker that calls this holds its scheduler up.
pub fn thread_sleep(span: Duration) {
    threads::sleep(span);
}
