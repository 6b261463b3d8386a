//! Block watch: to notice when a thread blocks in the kernel, and to keep it from running on when
//! it wakes, until somebody lets it. On a stock kernel.
//!
//! NOTIFY and GATE, by one of three *mechanisms*:
//!
//! ```text
//! mechanism   notices by                          gates by                              needs
//! trap        record of the context switch        SIGTRAP after each switch             CAP_PERFMON or paranoid <= 1
//! breakpoint  record of the context switch        a breakpoint where user code goes on, nothing (paranoid <= 2)
//!                                                 SIGTRAP after a slow fault,
//!                                                 a check after interposed calls
//! calls       /proc/self/task/TID/syscall         a check after interposed calls        nothing
//! ```
//!
//! In all three the *catcher*, a thread of the lowest kind on the same processor, looks when the
//! processor has nothing else to do; and ownership of the processor is one atomic word for each
//! thread.
//!
//! * `word`: ownership, and why a thread and who takes its place never both have it.
//! * `state`, `breakpoint`, `signals`: what tells and what gates.
//! * `thread`: a watched thread. `hosted`: one that runs on its scheduler's kernel thread.
//!   `interrupted`: which calls such a one makes again. `carriers`, `taking`: the kernel threads of
//!   a scheduler that is tied to none, and how it leaves one that is blocked. `place`, `watchdog`:
//!   where it runs, and who notices.
//! * `calls`: interposed calls. `trial`: which mechanism works here, by trying.
//!
//! It decides nothing about who runs next: the layers above do, as `Landlord` of a place and
//! `Keeper` of a thread.

pub(crate) mod word;
pub(crate) mod state;
mod breakpoint;
pub(crate) mod signals;
pub(crate) mod watchdog;
pub(crate) mod place;
pub(crate) mod thread;
mod taking;
pub(crate) mod lending;
pub(crate) mod carriers;
mod interrupted;
mod hosted;
pub mod calls;
mod trial;

use std::sync::OnceLock;

pub(crate) use hosted::Pokes;
pub(crate) use hosted::runs_on;
pub(crate) use interrupted::can_be_carried;
pub(crate) use place::{Landlord, Place};
#[cfg(all(test, target_arch = "x86_64", not(loom)))]
pub(crate) use signals::poke;
pub(crate) use signals::{block_here, install, mask_here, poke_blocked};
pub(crate) use state::{StateFile, Waits};
pub(crate) use thread::{Keeper, Watched};

/// Whether a call will block, as far as can be told before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// What it waits for is there.
    Hardly,
    /// Nobody can tell.
    Perhaps,
    /// What it waits for is not there.
    Surely,
}

impl From<bool> for Blocks {
    /// Whether it surely does; otherwise nobody can tell.
    fn from(surely: bool) -> Blocks {
        if surely { Blocks::Surely } else { Blocks::Perhaps }
    }
}

/// By what means blocking threads are noticed and gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// A perf event on context switches that sends SIGTRAP. Covers every system call and page
    /// fault.
    Trap,
    /// Without privilege: records of context switches, interposed calls, and a breakpoint for the
    /// rest.
    Breakpoint,
    /// Without perf: interposed calls only (see [`crate::interpose`]). Other blocking calls and
    /// faults hold up the processor.
    Calls,
}

impl Mechanism {
    /// All of them, best first.
    pub const ALL: [Mechanism; 3] = [Mechanism::Trap, Mechanism::Breakpoint, Mechanism::Calls];

    /// The name that `UMS_WATCH` takes.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Trap => "trap",
            Mechanism::Breakpoint => "breakpoint",
            Mechanism::Calls => "calls",
        }
    }

    /// Tries it on this machine: a thread blocks, is noticed, wakes, and meets its gate.
    ///
    /// # Errors
    /// A sentence with what did not happen, or the kernel's refusal.
    pub fn try_here(self) -> Result<(), String> {
        trial::run(self)
    }
}

/// The mechanism of this process: the best that works, or the one that `UMS_WATCH` names.
///
/// Tried once, with a thread that really blocks.
pub fn mechanism() -> Mechanism {
    static CHOSEN: OnceLock<Mechanism> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let named = std::env::var("UMS_WATCH").unwrap_or_default();
        match Mechanism::ALL.into_iter().find(|how| how.name() == named) {
            Some(how) => how,
            None => best(),
        }
    })
}

fn best() -> Mechanism {
    let mut works = Mechanism::ALL.into_iter().filter(|how| how.try_here().is_ok());
    works.next().unwrap_or(Mechanism::Calls)
}

/// Prepares the process, once: the functions behind interposed ones are found, and a fork leaves a
/// child whose one thread is an ordinary one.
pub(crate) fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // Before a signal handler needs one of them.
        calls::find_all();
        thread::leave_at_fork();
    });
}

#[doc(hidden)]
pub use thread::switch_gate;
