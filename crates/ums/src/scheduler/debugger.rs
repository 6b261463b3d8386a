//! The symbol that debuggers read, from which a script finds every worker of a living process or a
//! core file, even if the program has no debug information.
//!
//! ```text
//!   UMS_DEBUG --waiters--> the waiter made last --made_before--> ... --> null
//!      '--- offsets of the fields that the script shows
//! ```
//!
//! The layout of [`Descriptor`] is an interface: `gdb/ums.py` reads it, and other tools may. New
//! fields are added only before `end`, with a new `size`; any other change gets a new `version`.
//! The offsets, and the data at them, may change with every release of this library.
//!
//! Named invariant **Loaded**: nothing else in a program is called `UMS_DEBUG`.

#![allow(unsafe_code)] // Exported names.

use std::mem::offset_of;

use crate::os::atomic_ref::AtomicRef;
use crate::os::pool::Member;
use crate::record::reason::BUILT_IN_NAMES;
use crate::wait::Inbox;
use crate::wait::{WAITERS, Waiter};

/// Number of built-in reasons.
const REASONS: usize = BUILT_IN_NAMES.len();

/// Where a debugger finds the data that it shows. Offsets are in bytes from the beginning of a
/// waiter, except `inbox_number`, which counts from the beginning of the inbox that `home` points
/// at.
#[repr(C)]
pub struct Descriptor {
    magic: [u8; 8],
    version: u32,
    size: u32,
    /// Pointer to the waiter that was made last.
    waiters: &'static AtomicRef<Waiter>,
    /// Names of 32 bytes, padded with zeroes.
    reasons: &'static [[u8; 32]; REASONS],
    reasons_count: u32,
    /// Pointer: the waiter that was made before this one, or null.
    made_before: u32,
    /// One byte: whether the waiter is in use.
    in_use: u32,
    /// Pointer: its scheduler's inbox; null for a plain thread.
    home: u32,
    /// u32 in that inbox: the scheduler's number.
    inbox_number: u32,
    /// u32: the worker's number; 0 for the standby.
    worker: u32,
    /// u16: the number of the reason why it waits, or waited last.
    reason: u32,
    /// u64: the resource that it waits for.
    resource: u32,
    /// Pointer: the waiter that holds that resource, or null.
    blocker: u32,
    /// One byte: 0 new, 1 running, 2 runnable, 3 waiting, 4 idle, 5 preemptive, 6 retired.
    state: u32,
    /// u64: the request that it carries out, or 0.
    request: u32,
    /// u64: the user of that request, or 0.
    user: u32,
    /// u32: the kernel's number of its thread; 0 for a fiber.
    thread: u32,
    /// Word: the lowest address of its stack, or 0.
    stack_low: u32,
    /// Word: one past the highest address of its stack.
    stack_top: u32,
    /// Word: for a fiber or an own context, the address of the word that holds its stack pointer
    /// while it is saved and 0 while it runs; 0 for a thread.
    saved_at: u32,
    end: u32,
}

/// Debuggers find it by its name, or by the eight bytes that it begins with.
#[used]
#[unsafe(no_mangle)]
pub static UMS_DEBUG: Descriptor = Descriptor {
    magic: *b"UMSDEBUG",
    version: 1,
    size: size_of::<Descriptor>() as u32,
    waiters: WAITERS.newest(),
    reasons: &BUILT_IN_NAMES,
    reasons_count: REASONS as u32,
    made_before: (offset_of!(Waiter, member) + Member::<Waiter>::OLDER) as u32,
    in_use: (offset_of!(Waiter, member) + Member::<Waiter>::IN_USE) as u32,
    home: offset_of!(Waiter, home) as u32,
    inbox_number: offset_of!(Inbox, number) as u32,
    worker: offset_of!(Waiter, worker) as u32,
    reason: offset_of!(Waiter, reason) as u32,
    resource: offset_of!(Waiter, record.view.resource) as u32,
    blocker: offset_of!(Waiter, blocker) as u32,
    state: offset_of!(Waiter, record.view.state) as u32,
    request: offset_of!(Waiter, record.view.request) as u32,
    user: offset_of!(Waiter, record.view.user) as u32,
    thread: offset_of!(Waiter, record.view.thread) as u32,
    stack_low: offset_of!(Waiter, record.view.stack_low) as u32,
    stack_top: offset_of!(Waiter, record.view.stack_top) as u32,
    saved_at: offset_of!(Waiter, record.view.saved_at) as u32,
    end: 0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::lists::worker_list::State;

    #[test]
    fn the_descriptor_says_what_the_script_was_written_for() {
        // `gdb/ums.py` contains these numbers, too.
        assert_eq!((offset_of!(Descriptor, waiters), offset_of!(Descriptor, reasons)), (16, 24));
        assert_eq!(offset_of!(Descriptor, reasons_count), 32);
        assert_eq!((offset_of!(Descriptor, end), UMS_DEBUG.size), (96, 104));
        let states = [
            State::New,
            State::Running,
            State::Runnable,
            State::Waiting,
            State::Idle,
            State::Preemptive,
            State::Retired,
        ];
        assert!(states.iter().enumerate().all(|(number, state)| *state as usize == number));
        let number = crate::record::reason::WaitReason::MUTEX.index();
        assert!(BUILT_IN_NAMES[number].starts_with(b"MUTEX\0"));
    }
}
