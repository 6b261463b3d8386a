//! Block watch: detects that a thread blocks in the kernel, and stops it when it wakes until it may
//! run again. It works on an unmodified kernel.
//!
//! There are three *mechanisms*. Each has a way to detect a block, and a *gate* that the thread
//! must pass before it runs another instruction of the user's code:
//!
//! ```text
//! mechanism   detects by                    gate                                 needs
//! trap        record of context switches    SIGTRAP after each switch            CAP_PERFMON, or
//!                                                                                paranoid <= 1
//! breakpoint  record of context switches    breakpoint where user code resumes,  paranoid <= 2
//!                                           SIGTRAP after a slow fault,
//!                                           check after interposed calls
//! calls       /proc/self/task/TID/syscall   check after interposed calls         nothing
//! ```
//!
//! In all three the *watcher*, an idle-priority thread on the same processor, looks when the
//! processor has nothing else to run. One atomic word for each watched thread says whether the
//! thread owns the processor.
//!
//! * `word`: that ownership, and why a thread and its successor never both have it.
//! * `state`, `breakpoint`, `signals`: what tells a blocked thread, and parts of the gate.
//! * `thread`: a watched thread and the place that it runs at. `blocking`: how it makes a call that
//!   may block. `hosted`: a thread that runs on its scheduler's kernel thread.
//! * `interrupted`: which calls a hosted thread makes again. `carriers`, `taking`: the kernel
//!   threads of a scheduler that is bound to none, and how it leaves a blocked one. `lending`: a
//!   saved worker that may run without the baton.
//! * `place`, `watchdog`: the threads that look.
//! * `calls`: interposed calls. `trap`: the signal handler. `adopt`: how a thread becomes watched.
//!   `trial`: which mechanism works here, by trying.
//!
//! Block watch does not decide which thread runs next. The layers above do, as the `PlaceOwner`
//! of a place and the `GateHandler` of a thread.

pub(crate) mod word;
pub(crate) mod state;
mod means;
mod breakpoint;
pub(crate) mod signals;
pub(crate) mod watchdog;
pub(crate) mod thread;
pub(crate) mod place;
mod blocking;
mod taking;
pub(crate) mod lending;
pub(crate) mod carriers;
mod interrupted;
mod hosted;
pub mod calls;
mod trap;
mod adopt;
mod trial;

pub(crate) use adopt::prepare;
pub(crate) use hosted::Pokes;
pub(crate) use hosted::runs_on;
pub(crate) use interrupted::can_be_carried;
pub use means::{Blocks, Mechanism};
pub(crate) use place::Place;
#[cfg(all(test, target_arch = "x86_64", not(loom)))]
pub(crate) use signals::poke;
pub(crate) use signals::{block_here, mask_here, poke_blocked};
pub(crate) use state::{StateFile, Waits};
pub(crate) use thread::{GateHandler, PlaceOwner, Watched};
pub(crate) use trap::install;
pub use trial::mechanism;

#[doc(hidden)]
pub use thread::switch_gate;
