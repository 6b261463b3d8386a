//! The C interface of `ums`: a shared and a static library with two sets of headers.
//!
//! * `ums.h`, the *native* interface to the cooperative scheduler: node, users, tasks, waits, I/O
//!   requests with completion routines, statistics. docs/c-api.md is its manual.
//! * `windows/windows.h`: User-Mode Scheduling of Windows 7, and the Win32 calls around it,
//!   so that programs written for it compile for Linux unchanged. docs/windows-c.md says what
//!   differs.
//!
//! Two rules hold for every function here. No panic leaves it: a panic becomes an error code. And
//! what can be checked is checked: NULL, a pointer to the wrong kind of object, an object that was
//! freed.
//!
//! The header asks the caller, for all functions: pointers are NULL or valid for what is said of
//! them, opaque ones came from this library, and a callback may be called with its argument on any
//! worker's thread. So `caller` has types for them, and most functions are safe. Those that are not
//! carry no `# Safety` section each: C has no `unsafe`, and the header says it.

#![allow(clippy::missing_safety_doc)]
#![allow(non_camel_case_types, clippy::upper_case_acronyms)] // The names are those of the header.

mod caller;
mod native;
mod win32;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;

// A C worker's calls that block let others run, as a Rust worker's do. On a thread that is no
// worker they read two thread-locals and call the C library's own function.
#[cfg(feature = "interpose")]
ums::interpose!();
