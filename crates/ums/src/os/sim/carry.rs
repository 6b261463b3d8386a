//! Workers that leave their kernel thread, in a simulated world.
//!
//! The token of a world belongs to a kernel thread: a host, or a worker's own thread. The
//! thread-local `PLACE` says which *membership* (thread number in the world) the running code has.
//! But a worker with its own context takes its thread-locals with it when it moves to another
//! kernel thread. So the code below moves the membership explicitly at each switch:
//!
//! ```text
//!   switch on a host      the context that is left puts the membership down, and the next context
//!                         picks it up: the token stays with the host
//!   couple                the same; and the worker's own kernel thread becomes runnable
//!   decouple, detach      a helper thread takes the membership of the worker's own kernel thread
//!                         until the worker is saved; then it notifies the scheduler, and passes
//!                         the token on
//!   release               the worker's own kernel thread becomes runnable
//! ```
//!
//! The helper is a real thread without a membership of its own. It is needed because a worker that
//! is being saved cannot run code that notifies others: it runs only a few instructions of the
//! crate `context`, which set an event.
//!
//! Invariant: *One Token*. Between putting the membership down and picking it up, no point is
//! passed.

use std::cell::RefCell;
use std::sync::Arc;

use super::state::ThreadState;
use super::{On, PLACE, Place, UNINTERRUPTED, World, place};
use crate::os;
use crate::os::clock::NEVER;
use crate::os::event::ThreadEvent;
use crate::os::lock::Lock;
use crate::os::threads;

/// The membership of a host's kernel thread while no context has it. There is one for each
/// scheduler.
#[derive(Default)]
pub struct Carried(Lock<Option<Place>>);

/// A worker's own kernel thread.
struct Home {
    world: Arc<World>,
    number: usize,
    /// The kernel's id of the thread.
    thread: u32,
}

thread_local! {
    /// The own kernel thread of the running context; `None` for the host's own context.
    static HOME: RefCell<Option<Home>> = const { RefCell::new(None) };
}

impl Place {
    /// Gives the membership to the calling context.
    fn settle(self) {
        self.world.lock().members[self.number].runs_here();
        PLACE.set(Some(self));
    }
}

impl World {
    /// Makes a worker's own kernel thread runnable, if it sleeps while its worker runs elsewhere.
    fn release(&self, number: usize) {
        let member = &mut self.lock().members[number];
        if matches!(member.condition, ThreadState::Blocked { on: On::Home, .. }) {
            member.condition = ThreadState::Ready;
        }
    }

    /// Makes a worker's own kernel thread sleep while its worker runs elsewhere. Passes the token
    /// on.
    fn sleeps_on_own_thread(&self, number: usize) {
        let mut state = self.lock();
        state.note(number, "is saved");
        let (on, until, fds) = (On::Home, NEVER, Vec::new());
        state.members[number].condition = ThreadState::Blocked { on, until, fds };
        self.give_on(state);
    }
}

impl super::Enlisted {
    /// Records that the context of the thread's worker was released.
    pub fn release(&self) {
        self.world.release(self.number);
    }
}

/// Prepares the calling thread, a worker that will leave its kernel thread. Returns false if it is
/// in no world.
pub fn leaves_own_thread() -> bool {
    let home = place().map(|(world, number)| Home { world, number, thread: os::thread_number() });
    HOME.set(home);
    HOME.with_borrow(Option::is_some)
}

impl Carried {
    /// Performs a switch. Returns when this context is continued, on whatever thread that happens.
    pub fn along(&self, switch: impl FnOnce()) {
        if place().is_none() {
            return switch();
        }
        self.put_down();
        switch();
        self.arrive();
    }

    /// Does what [`Carried::along`] does, for a switch that also continues this context on its own
    /// kernel thread.
    pub fn home(&self, switch: impl FnOnce()) {
        if place().is_some() {
            HOME.with_borrow(|home| home.iter().for_each(|home| home.world.release(home.number)));
        }
        self.along(switch);
    }

    fn put_down(&self) {
        let place = PLACE.take();
        *self.0.lock() = place;
    }

    /// Takes over the membership, after this context was continued. On a host that is the host's
    /// membership; on its own kernel thread it is the thread's own.
    pub fn arrive(&self) {
        let own = |home: &Home| home.thread == os::thread_number();
        let place_of = |home: &Home| Place { world: Arc::clone(&home.world), number: home.number };
        let home = HOME.with_borrow(|home| home.as_ref().filter(|home| own(home)).map(place_of));
        if let Some(home) = home {
            let (world, number) = (Arc::clone(&home.world), home.number);
            home.settle();
            return world.until_running(number);
        }
        let carried = self.0.lock().take();
        carried.into_iter().for_each(Place::settle);
    }
}

/// Returns an event that the calling thread, a worker on its own kernel thread, sets when it has
/// been saved. Then a helper thread calls `tell` on its behalf, and the kernel thread sleeps.
pub fn ferry(tell: impl FnOnce() + Send + 'static) -> Arc<ThreadEvent> {
    let saved = Arc::new(ThreadEvent::new());
    let (seen, place) = (Arc::clone(&saved), PLACE.take());
    let ferryman = move || {
        seen.wait();
        let Some(place) = place else { return };
        let (world, number) = (Arc::clone(&place.world), place.number);
        place.settle();
        // The thread that `tell` notifies must not run before the kernel thread counts as asleep,
        // because it may send the worker back to that kernel thread.
        UNINTERRUPTED.set(true);
        tell();
        // The kernel thread has not ended. With number 0 the drop does not report its end.
        PLACE.take().into_iter().for_each(|mut place| place.number = 0);
        world.sleeps_on_own_thread(number);
    };
    let thread = threads::start(std::thread::Builder::new().name("ferryman".into()), ferryman);
    thread.unwrap_or_else(|error| panic!("no thread for a ferryman: {error}"));
    saved
}
