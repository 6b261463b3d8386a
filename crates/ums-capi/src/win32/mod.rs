//! `windows.h`: User-Mode Scheduling of Windows 7, and the Win32 calls that its programs
//! need.
//!
//! ```text
//!   error        the caller's last error
//!   system       calls of the C library: words, eventfds, clocks, keys, the heap
//!   pthread      a thread, its exit code, its end
//!   waitable     the objects behind handles: event, semaphore, mutex, thread, completion list
//!   handle       numbers for objects: finds the object of a HANDLE
//!   registry     a set of pointers that are alive
//!   worker       the contexts and lists that are alive; starting and suspending a worker
//!   attributes   the attribute list of CreateRemoteThreadEx
//!   object       the functions for events, semaphores and mutexes, and for waiting
//!   thread       the functions for threads
//!   process      the functions for the calling process
//!   address      waiting until a value in memory changes
//!   scheduling   the UMS functions themselves
//!   section, local, slist, memory, time      the other calls that such programs use
//! ```
//!
//! A scheduler's entry point runs while a worker may be stopped anywhere, for instance inside
//! `malloc`. So the functions that an entry point may call (the UMS functions, events, waits, the
//! last error, interlocked lists, time) take no lock and do not allocate. Handles are found without
//! a lock, and each object that can be waited for has an eventfd in the kernel.
//!
//! An exported name counts as unsafe code, so the lint is off for the whole folder. Only `system`,
//! `pthread`, `handle`, `worker`, `attributes`, `slist` and `thread` contain other unsafe code. The
//! other files receive C's arguments as types of `caller`.
//!
//! Names, numbers and structures are those of Windows. `docs/windows-c.md` says what differs.

#![allow(unsafe_code)] // Exported names.

pub mod error;
mod system;
mod pthread;
mod waitable;
pub mod handle;
mod registry;
mod worker;
pub mod attributes;
pub mod object;
pub mod thread;
pub mod process;
pub mod address;
pub mod scheduling;
pub mod section;
pub mod local;
pub mod slist;
pub mod memory;
pub mod time;
