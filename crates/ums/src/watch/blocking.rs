//! How a watched thread makes an interposed call that may block.
//!
//! ```text
//!             certain to block                      unknown
//! seated      gives its place up, call, gate        mode CALL, call, gate if the place was revoked
//! hosted      leaves its host without a place,      leaves its host with its place, then as seated
//!             call, gate
//! ```

use errno::{errno, set_errno};

use super::means::Blocks;
use super::thread::{Watched, gate_handler};
use crate::os::entry;

impl Watched {
    /// Called by the thread itself: runs an interposed call that may block. If the call is certain
    /// to block, the thread gives its place up first.
    pub(super) fn call(&'static self, blocks: &dyn Fn() -> Blocks, call: &mut dyn FnMut()) {
        if entry::is_inside() {
            return call();
        }
        if self.is_hosted() {
            return self.call_of_hosted(blocks(), call);
        }
        if !self.word.in_user() {
            return call();
        }
        if blocks() == Blocks::Certain {
            self.give_up_place();
            return self.call_without_place(call);
        }
        while !self.word.begin_call() {
            self.gate_outside(true);
        }
        call();
        if let Some(lost) = self.must_wait(self.word.end_call()) {
            keep_errno(|| self.gate_outside(lost));
        }
    }

    /// Called by the thread itself, after it has given its place up and its word says REVOKED:
    /// makes the call, and passes the gate after it.
    fn call_without_place(&'static self, call: &mut dyn FnMut()) {
        call();
        // A SIGTRAP at the end of the call may have been the gate already.
        if !self.word.pass() {
            keep_errno(|| self.gate_outside(true));
        }
    }

    /// Called by the thread itself, in user code: gives its place up. From then on the thread is in
    /// the same state as a thread whose place was revoked.
    ///
    /// This is done inside the library, because a SIGTRAP passes no gate there. Otherwise the
    /// handler could find the place lost before the place's owner has been notified, and would wait
    /// at the gate forever.
    fn give_up_place(&'static self) {
        self.enter_library();
        self.vacate_place();
        self.word.lose();
    }

    /// Called by the thread itself, hosted and in user code: runs an interposed call.
    pub(super) fn call_of_hosted(&'static self, blocks: Blocks, call: &mut dyn FnMut()) {
        match blocks {
            Blocks::Unlikely => call(),
            // The thread must stay on its host, so the call holds up the host.
            _ if !gate_handler().may_leave_host() => call(),
            Blocks::Certain => {
                gate_handler().leave_host(true);
                self.word.lose();
                self.call_without_place(call)
            }
            Blocks::Unknown => {
                gate_handler().leave_host(false);
                self.word.leave();
                self.call(&|| Blocks::Unknown, call)
            }
        }
    }
}

fn keep_errno(f: impl FnOnce()) {
    let kept = errno();
    f();
    set_errno(kept);
}
