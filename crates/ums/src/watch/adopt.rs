//! How a thread becomes a watched one, and stops being one.

use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::means::Mechanism;
use super::thread::{self, GateHandler, Watched};
use super::{calls, trap};
use crate::os::entry;
use crate::os::linux::perf::Attr;
use crate::os::linux::plain::{self, FdSlot};

thread_local! {
    /// The perf events of the calling thread. They have no destructor, because they must stay open
    /// until all destructors of thread-locals have run.
    static EVENTS: [FdSlot; 3] = const { [const { FdSlot::new() }; 3] };
}

impl Watched {
    /// Makes the calling thread a watched one, with this record. The thread counts as inside the
    /// library until `Word::leave`.
    ///
    /// # Errors
    /// The events of the mechanism could not be opened.
    pub fn adopt(&'static self, handler: Arc<dyn GateHandler>, how: Mechanism) -> io::Result<()> {
        debug_assert!(self.word.in_runtime() && thread::me().is_none());
        let tid = crate::os::thread_number() as i32;
        self.tid.store(tid, Ordering::Relaxed);
        self.stop_asked.store(false, Ordering::Relaxed);
        trap::install();
        let mut events = [const { None }; 3];
        match how {
            Mechanism::Trap => {
                let gate = Attr::gate().open()?;
                self.ring.map(&gate)?;
                self.has_ring.store(true, Ordering::Release);
            }
            Mechanism::Breakpoint => {
                events = self.breakpoint.attach()?.map(Some);
                // If the limit of locked memory is reached, there is no ring; the state file is
                // read instead.
                let ring = Attr::notify().open().and_then(|event| self.ring.map(&event));
                self.has_ring.store(ring.is_ok(), Ordering::Release);
                self.state_file.open(tid)?;
            }
            Mechanism::Calls => self.state_file.open(tid)?,
        }
        EVENTS.with(|slots| slots.iter().zip(events).for_each(|(slot, event)| slot.put(event)));
        thread::become_me(self, handler);
        let entry = entry::mine().unwrap_or(&self.own_entry);
        self.entry.store(Some(entry));
        entry::enter_by(Some(entry));
        Ok(())
    }

    /// Ends the watch of the calling thread. The thread must be inside the library.
    pub fn abandon(&'static self) {
        debug_assert!(self.word.in_runtime());
        thread::end_me();
        if entry::mine().is_some_and(|mine| ptr::eq(mine, &self.own_entry)) {
            entry::enter_by(None);
        }
        self.tid.store(0, Ordering::Relaxed);
        self.breakpoint.detach();
        self.state_file.close();
        self.has_ring.store(false, Ordering::Release);
        self.ring.close();
        EVENTS.with(|slots| slots.iter().for_each(|slot| slot.put(None)));
        self.place.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Prepares the process, once, before the first thread is watched: looks up the C library's
/// functions behind the interposed ones, and makes sure that the one thread of a forked child is
/// not a watched thread.
pub(super) fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // This must be done before a signal handler needs one of these functions. A thread that
        // stopped at its gate while it looked one up would hold the loader's lock, for which the
        // others would wait.
        calls::find_all();
        leave_at_fork();
    });
}

/// Makes the one thread of a forked child an ordinary thread. The child has no perf events. If this
/// thread waited at its gate, no other thread would be there to wake it.
fn leave_at_fork() {
    extern "C" fn forget() {
        thread::forget_me();
    }
    plain::at_fork_in_the_child(forget);
}
