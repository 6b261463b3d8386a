//! Simulation: runs programs in a simulated world, where one seed repeats a whole run (feature
//! `sim`).
//!
//! [`run`] runs a *story*: a closure that builds a [`Node`](crate::Node) and uses it as a program
//! does, in a simulated world where one thread runs at a time. A seed decides which thread runs,
//! when operations complete, and what goes wrong. The schedulers, lists, timers, locks and channels
//! are the real ones of the library. A story that fails with a seed fails with that seed again,
//! after the same steps.
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
//! A story must not block except through this crate. So it must not take a lock of the standard
//! library that another of its threads holds, and not call `std::thread::park`. It must not read a
//! clock or random numbers of the operating system. The streams and listeners of
//! [`ums::net`](crate::net) use a simulated network. Datagrams, and sockets that the standard
//! library opened, are real: the seed does not decide when their bytes arrive. A process that is
//! started during a story holds copies of the sockets until it executes its program.

mod campaign;
mod check;
mod shrink;
pub mod sync;

use std::time::Duration;

use crate::backtrace::unwind;
use crate::os::linux::sample;
use crate::os::sim::World;
pub use crate::os::sim::lines::LineCounts;
pub use crate::os::sim::{Dice, Ended, Faults, Plan};
use crate::os::{clock, threads};
use crate::record::frame::Frame;
pub use campaign::{Campaign, campaign};
pub use check::{Check, Checked, check, replays};
pub use shrink::shrink;

/// Runs a story in a world with this seed. A panic of the story is reported as its failure.
pub fn run(seed: u64, faults: Faults, story: impl FnOnce() + Send + 'static) -> Ended {
    run_plan(&Plan::new(seed, faults), story)
}

/// Runs a story as [`run`] does, with a plan.
pub fn run_plan(plan: &Plan, story: impl FnOnce() + Send + 'static) -> Ended {
    World::run(plan, stack_of, story)
}

/// Returns the functions that a thread of a failed world is in, one on a line.
fn stack_of(thread: u32) -> String {
    let waiting = || crate::watch::state::look_at(thread as i32);
    let is_application = |frame: &&Frame| !frame.is_foundation();
    let mut frames = Vec::new();
    // On a busy computer the thread may answer late. The signal by which it is sampled may end its
    // system call, which does no harm now.
    for _ in 0..5 {
        frames = match sample::take(thread) {
            Some(sample) => unwind::frames(&sample),
            None => waiting().map(|waits| unwind::frames_of_waiting(&waits)).unwrap_or_default(),
        };
        if frames.iter().any(|frame| is_application(&frame)) {
            break;
        }
    }
    let all = !frames.iter().any(|frame| is_application(&frame));
    let shown = frames.iter().filter(|frame| all || is_application(frame));
    let lines: Vec<_> = shown.map(|frame| format!("    {frame}")).collect();
    if lines.is_empty() { "    (it could not be read)".to_owned() } else { lines.join("\n") }
}

/// Returns true if the caller is in a story.
pub fn is_here() -> bool {
    crate::os::sim::is_here()
}

/// Returns whether this seed runs the threads by a random walk, and not by priorities. For stories
/// that count what is done in a run of the usual kind.
pub fn walks_at_random(seed: u64) -> bool {
    crate::os::sim::walks_at_random(seed)
}

/// Returns a random number below `sides`, which the story's seed decides. Returns 0 outside of
/// stories.
pub fn below(sides: u64) -> u64 {
    crate::os::sim::below(sides)
}

/// Returns the time of the story's clock in nanoseconds; outside of stories, that of the system's
/// clock.
pub fn now() -> u64 {
    clock::now()
}

/// Returns what the threads of the story have done with the cache lines that they share, in the
/// library's own memory, since the first call in this story. Outside of stories, returns zeros.
pub fn line_counts() -> LineCounts {
    crate::os::sim::noted::counts()
}

/// Simulates a loss of power: every operation on a file fails until [`power_on`] is called. The
/// caller must end its node before that call.
pub fn power_off() {
    crate::os::sim::power_off();
}

/// Ends the loss of power. Everything that workers wrote or truncated and did not sync is lost; in
/// half of the worlds, only a random part of it is lost. The same holds for changes of names in
/// folders that were not synced.
///
/// # Errors
/// An error of the file system.
pub fn power_on() -> std::io::Result<()> {
    crate::os::sim::power_on()
}

/// Lets another thread run here if the seed decides so. A story calls this in its own code, at
/// places where the order of threads matters.
pub fn point(what: &'static str) {
    threads::point(what);
}

/// Starts a plain thread, which belongs to the story. The story must join it.
///
/// # Errors
/// An error of the operating system. The simulated world may also refuse the thread
/// ([`Faults::no_thread`]).
pub fn thread(name: &str, main: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
    threads::spawn(std::thread::Builder::new(), name.to_owned(), main).map(Thread)
}

/// A plain thread of a story.
#[derive(Debug)]
pub struct Thread(threads::ThreadHandle);

impl Thread {
    /// Waits for the end of the thread.
    ///
    /// # Errors
    /// The panic of the thread.
    pub fn join(self) -> std::thread::Result<()> {
        self.0.join().map(|_| ())
    }
}

/// Sleeps as a plain thread does. A worker that calls this stops its whole scheduler for that time.
pub fn thread_sleep(span: Duration) {
    threads::sleep(span);
}
