//! Block watch: detects that a thread is blocked in the kernel, and stops the thread when it wakes,
//! before it runs another instruction of its own code. It works on an unmodified kernel.
//!
//! Words that all files of this folder use:
//!
//! * *User code* is the application's code, outside the library.
//! * A *watched thread* is one whose blocks are detected. A *place* stands for one processor, on
//!   which one watched thread at a time runs user code. That thread *owns* the place and is
//!   *seated* at it.
//! * To *revoke* is to take the place away from a thread that is blocked.
//! * The *gate* is a check that the thread passes before it returns to user code. A thread that has
//!   lost its place waits at its gate until it owns a place again.
//! * A thread with its own context (crate `context`) is *hosted* while it runs on a kernel thread
//!   that is not its own: its *host*.
//! * R1 to R15 are races; `docs/design/races.md` lists them.
//!
//! There are three *mechanisms*. Each has a way to detect a block, and a kind of gate:
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
//! `paranoid` is the setting `/proc/sys/kernel/perf_event_paranoid`. An *interposed call* is a call
//! of a function of the C library that the program replaces by one of this crate's (`calls`).
//!
//! In all three mechanisms the *watcher*, an idle-priority thread on the same processor, looks when
//! the processor has nothing else to run. One atomic word for each watched thread says whether the
//! thread owns its place.
//!
//! * `word`: that ownership word, and why a thread and its successor never both own the place.
//! * `state`, `breakpoint`, `signals`: how a blocked thread is detected, and parts of the gate.
//! * `thread`: a watched thread and the seat that it has at its place. `blocking`: how it makes a
//!   call that may block. `hosted`: a watched thread that runs on its host.
//! * `interrupted`: which system calls a hosted thread makes again on its own kernel thread.
//!   `carriers`, `taking`: the kernel threads of a scheduler that is bound to none of them, and how
//!   the scheduler is taken from one that is blocked. `lending`: a saved worker that may run
//!   without the baton.
//! * `place`, `watchdog`: the threads that look for blocked threads.
//! * `calls`: interposed calls. `trap`: the handler of SIGTRAP. `adopt`: how a thread becomes
//!   watched. `trial`: finds by trying which mechanism works here.
//!
//! Block watch does not decide which thread runs next. The layers above do: they implement
//! `PlaceOwner` for a place and `GateHandler` for a thread.

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
