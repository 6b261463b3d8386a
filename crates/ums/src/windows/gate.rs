//! The methods that the block watch calls on a worker of this layer: they put the worker on its
//! list when it has woken, stop the worker when it is suspended, and move it to its own kernel
//! thread.

use super::context::{Context, OUT};
use super::executor::News;
use super::own;
use crate::os::event::ThreadEvent;
use crate::watch::{GateHandler, signals};

impl GateHandler for Context {
    fn report(&self) {
        self.wait_until_resumed();
        self.queue();
    }

    fn owns_place(&self) -> bool {
        self.is_running()
    }

    fn event(&self) -> &'static ThreadEvent {
        &self.watched().go
    }

    fn stop(&self) {
        if self.is_suspended() {
            self.hand_back(OUT, News::BlockedInTrap, 0);
            self.report();
            self.wait_to_run();
        }
    }

    fn leave_host(&self, blocks: bool) {
        self.couple(blocks.then_some(News::BlockedInCall));
    }

    fn may_leave_host(&self) -> bool {
        self.is_on_its_stack() && signals::mask_here() == self.executor().host_mask
    }

    fn stop_on_host(&self) -> bool {
        if !self.is_suspended() {
            return false;
        }
        // The worker is marked as suspended before other threads can run: from now on a resume sets
        // the event that the worker waits for.
        self.set_out();
        self.couple(Some(News::BlockedInTrap));
        signals::masked(|| {
            self.report();
            self.wait_to_run();
            signals::swallow();
        });
        true
    }

    fn before_exit(&self) {
        own::leave_for_good();
    }
}
