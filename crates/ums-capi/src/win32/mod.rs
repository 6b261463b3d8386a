//! `windows.h`: User-Mode Scheduling as Windows 7 had it, and the Win32 calls that its programs
//! need.
//!
//! ```text
//!   error        the caller's last error
//!   handle       numbers for objects: what is behind a HANDLE
//!   futex        waits on a word, for what is no kernel object on Windows either
//!   thread       threads, their exit codes, their ends
//!   object       event, semaphore, mutex, and waiting for one or several of them
//!   attributes   the attribute list of CreateRemoteThreadEx
//!   registry     which contexts and completion lists are alive
//!   scheduling   the UMS functions themselves
//!   section, local, slist, memory, time      the rest of what such programs use
//! ```
//!
//! A scheduler's entry point runs while a worker may be stopped anywhere, inside `malloc` for
//! instance. So what an entry point may call (the UMS functions, events, waits, the last error,
//! interlocked lists, time) takes no lock and does not allocate here: handles are found without a
//! lock, and what can be waited for is a kernel object, an eventfd.
//!
//! Names, numbers and structures are those of Windows; `docs/windows-c.md` says what differs.

pub mod error;
mod futex;
pub mod handle;
pub mod thread;
pub mod object;
pub mod attributes;
mod registry;
pub mod scheduling;
pub mod section;
pub mod local;
pub mod slist;
pub mod memory;
pub mod time;
