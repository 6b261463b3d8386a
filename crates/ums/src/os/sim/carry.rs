//! Threads that leave their kernel thread, in a world.
//!
//! What has the token is a kernel thread: a host, or a worker's own. A worker with its own context
//! finds all that is a thread's, and so its place in the world too, by a register that changes when
//! it goes from one kernel thread to another. So the place is carried:
//!
//! ```text
//!   switch on a host      from's place is put down, `to` picks it up: the token stays with the host
//!   couple                the same; and the worker's own kernel thread can run, and waits for its turn there
//!   come in, detach       a ferryman takes the place of the worker's own kernel thread, until the worker is saved:
//!                         then he tells others so, and gives the token on for it
//!   release               its own kernel thread can run
//! ```
//!
//! The ferryman is a thread of the system that is nobody in the world: a worker that is saved has
//! no code left to say so with, but the few instructions that crate `context` has for it, and these
//! set an event.
//!
//! Invariant: *One Token*. Between putting the place down and picking it up no point is passed.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Condition, On, PLACE, Place, UNINTERRUPTED, World, place};
use crate::os;
use crate::os::clock::NEVER;
use crate::os::event::Event;

/// Where the place of a host's kernel thread is while no context has it. One for each scheduler.
#[derive(Default)]
pub struct Carried(Mutex<Option<Place>>);

/// A worker's own kernel thread.
struct Home {
    world: Arc<World>,
    number: usize,
    /// By the kernel's number.
    thread: u32,
}

thread_local! {
    /// Of the context that runs; none for a host's own.
    static HOME: RefCell<Option<Home>> = const { RefCell::new(None) };
}

impl Place {
    /// The calling context has it from now on.
    fn settle(self) {
        self.world.lock().members[self.number].os = Some(std::thread::current());
        PLACE.set(Some(self));
    }
}

impl World {
    /// A kernel thread that sleeps at home can go on, when it has the token.
    fn release(&self, number: usize) {
        let member = &mut self.lock().members[number];
        if matches!(member.condition, Condition::Blocked { on: On::Home, .. }) {
            member.condition = Condition::Ready;
        }
    }

    /// A kernel thread sleeps at home. Gives the token on.
    fn sleeps_at_home(&self, number: usize) {
        let mut state = self.lock();
        state.note(number, "is saved");
        let (on, until, fds) = (On::Home, NEVER, Vec::new());
        state.members[number].condition = Condition::Blocked { on, until, fds };
        self.give_on(state);
    }
}

impl super::Enlisted {
    /// Its context was released.
    pub fn release(&self) {
        self.world.release(self.number);
    }
}

/// The calling thread is a worker that will leave its kernel thread. False: it is in no world.
pub fn is_at_home() -> bool {
    let home = place().map(|(world, number)| Home { world, number, thread: os::thread_number() });
    HOME.set(home);
    HOME.with_borrow(Option::is_some)
}

impl Carried {
    /// Runs a switch, and comes back where and when this context is continued.
    pub fn along(&self, switch: impl FnOnce()) {
        if place().is_none() {
            return switch();
        }
        self.put_down();
        switch();
        self.arrive();
    }

    /// As [`Carried::along`], of a switch that also continues this context on its own kernel
    /// thread.
    pub fn home(&self, switch: impl FnOnce()) {
        if place().is_some() {
            HOME.with_borrow(|home| home.iter().for_each(|home| home.world.release(home.number)));
        }
        self.along(switch);
    }

    fn put_down(&self) {
        let place = PLACE.take();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// This context has been continued: on a host, whose place it picks up, or on its own kernel
    /// thread.
    pub fn arrive(&self) {
        let own = |home: &Home| home.thread == os::thread_number();
        let place_of = |home: &Home| Place { world: Arc::clone(&home.world), number: home.number };
        let home = HOME.with_borrow(|home| home.as_ref().filter(|home| own(home)).map(place_of));
        if let Some(home) = home {
            let (world, number) = (Arc::clone(&home.world), home.number);
            home.settle();
            return world.until_running(number);
        }
        let carried = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        carried.into_iter().for_each(Place::settle);
    }
}

/// The calling thread, which is at home, is about to be saved and to set this event. Then `tell` is
/// called for it, and its kernel thread sleeps.
pub fn ferry(tell: impl FnOnce() + Send + 'static) -> Arc<Event> {
    let saved = Arc::new(Event::new());
    let (seen, place) = (Arc::clone(&saved), PLACE.take());
    let ferryman = move || {
        seen.wait();
        let Some(place) = place else { return };
        let (world, number) = (Arc::clone(&place.world), place.number);
        place.settle();
        // Who hears of it must not run before the kernel thread is known to sleep: he may be told
        // to send it home again.
        UNINTERRUPTED.set(true);
        tell();
        // It has not ended: its place is only put away.
        PLACE.take().into_iter().for_each(|mut place| place.number = 0);
        world.sleeps_at_home(number);
    };
    let thread = std::thread::Builder::new().name("ferryman".into()).spawn(ferryman);
    thread.unwrap_or_else(|error| panic!("no thread for a ferryman: {error}"));
    saved
}
