//! Threads that leave their kernel thread, in a world.
//!
//! The token belongs to a kernel thread: a host, or a worker's own. A worker with its own context
//! finds its thread-locals, and so its membership in the world, by a register that changes when the
//! worker moves from one kernel thread to another. So the membership is carried along:
//!
//! ```text
//!   switch on a host      the context that is left puts the membership down, the next picks it up:
//!                         the token stays with the host
//!   couple                the same; and the worker's own kernel thread becomes runnable
//!   decouple, detach      a helper thread takes the membership of the worker's own kernel thread
//!                         until the worker is saved; then it notifies the scheduler, and passes
//!                         the token on
//!   release               the worker's own kernel thread becomes runnable
//! ```
//!
//! The helper is a real thread without a membership of its own. It is needed because a worker that
//! is being saved has no code left to notify anything: only the few instructions of crate
//! `context`, which set an event.
//!
//! Invariant: *One Token*. Between putting the membership down and picking it up no point is
//! passed.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Condition, On, PLACE, Place, UNINTERRUPTED, World, place};
use crate::os;
use crate::os::clock::NEVER;
use crate::os::event::Event;
use crate::os::lock::Lock;

/// The membership of a host's kernel thread while no context has it. One for each scheduler.
#[derive(Default)]
pub struct Carried(Lock<Option<Place>>);

/// A worker's own kernel thread.
struct Home {
    world: Arc<World>,
    number: usize,
    /// Its kernel thread id.
    thread: u32,
}

thread_local! {
    /// The home of the running context; None for a host's own context.
    static HOME: RefCell<Option<Home>> = const { RefCell::new(None) };
}

impl Place {
    /// Gives the membership to the calling context.
    fn settle(self) {
        self.world.lock().members[self.number].os = Some(std::thread::current());
        PLACE.set(Some(self));
    }
}

impl World {
    /// Makes a kernel thread runnable that sleeps while its worker runs elsewhere.
    fn release(&self, number: usize) {
        let member = &mut self.lock().members[number];
        if matches!(member.condition, Condition::Blocked { on: On::Home, .. }) {
            member.condition = Condition::Ready;
        }
    }

    /// Puts a kernel thread to sleep while its worker runs elsewhere. Passes the token on.
    fn sleeps_on_own_thread(&self, number: usize) {
        let mut state = self.lock();
        state.note(number, "is saved");
        let (on, until, fds) = (On::Home, NEVER, Vec::new());
        state.members[number].condition = Condition::Blocked { on, until, fds };
        self.give_on(state);
    }
}

impl super::Enlisted {
    /// Records that its context was released.
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
    /// Runs a switch, and returns where and when this context is continued.
    pub fn along(&self, switch: impl FnOnce()) {
        if place().is_none() {
            return switch();
        }
        self.put_down();
        switch();
        self.arrive();
    }

    /// As [`Carried::along`], for a switch that also continues this context on its own kernel
    /// thread.
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

    /// Picks up the membership, after this context was continued: on a host, the host's; on its own
    /// kernel thread, its own.
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

/// Returns an event that the calling thread, which is on its own kernel thread, sets when it is
/// saved. Then `tell` is called on its behalf, and its kernel thread sleeps.
pub fn ferry(tell: impl FnOnce() + Send + 'static) -> Arc<Event> {
    let saved = Arc::new(Event::new());
    let (seen, place) = (Arc::clone(&saved), PLACE.take());
    let ferryman = move || {
        seen.wait();
        let Some(place) = place else { return };
        let (world, number) = (Arc::clone(&place.world), place.number);
        place.settle();
        // The receiver must not run before the kernel thread is known to sleep: it may send the
        // worker back to that thread.
        UNINTERRUPTED.set(true);
        tell();
        // It has not ended: the membership is only dropped.
        PLACE.take().into_iter().for_each(|mut place| place.number = 0);
        world.sleeps_on_own_thread(number);
    };
    let thread = std::thread::Builder::new().name("ferryman".into()).spawn(ferryman);
    thread.unwrap_or_else(|error| panic!("no thread for a ferryman: {error}"));
    saved
}
