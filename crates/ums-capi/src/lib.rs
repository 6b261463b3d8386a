//! The C interface of `ums`: a shared and a static library with two sets of headers.
//!
//! * `ums.h`, the *native* interface to the cooperative scheduler: node, users, tasks, waits, I/O
//!   requests with completion routines, statistics. docs/c-api.md is its manual.
//! * `windows/windows.h`: User-Mode Scheduling of Windows 7, and the Win32 calls around it.
//!   Programs that were written for it compile for Linux unchanged. docs/windows-c.md says what
//!   differs.
//!
//! Two rules hold for every function here. No panic leaves the function: a panic becomes an error
//! code. Every argument is checked as far as that is possible: for NULL, for a pointer to the wrong
//! kind of object, and for an object that was freed.
//!
//! For all functions the header requires three things of the caller: that a pointer is NULL or
//! valid for its documented use, that an opaque pointer came from this library, and that a callback
//! may be called with its argument on any worker's thread. `caller` has types that express these
//! requirements, so most functions are safe. The unsafe functions have no `# Safety` section each,
//! because C has no `unsafe` and the header states the requirements.

#![allow(clippy::missing_safety_doc)]
// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
#![allow(non_camel_case_types, clippy::upper_case_acronyms)] // The names are those of the header.

mod caller;
mod native;
mod win32;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;

// With this, a C worker's blocking calls let other workers run, as a Rust worker's do. On a thread
// that is no worker, such a call reads two thread-locals and then calls the C library's own
// function.
#[cfg(feature = "interpose")]
ums::interpose!();
