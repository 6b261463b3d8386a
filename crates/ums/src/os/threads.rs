//! Threads, sleeping and yielding: the system's, or those of a simulated world.
//!
//! All code of the library that creates a thread, joins it, sleeps or yields the processor uses
//! these functions. In a build without the feature `sim` they call the standard library.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fiber::{Stack, StackThread};

use super::clock;
use super::event::ThreadEvent;
use super::sim;
use crate::os::lock::Lock;

/// The handle of a thread, for joining it.
#[derive(Debug)]
pub struct ThreadHandle {
    real: Real,
    simulated: Option<sim::Enlisted>,
}

/// A thread of the system.
#[derive(Debug)]
enum Real {
    OfStd(std::thread::JoinHandle<()>),
    OnStack(StackThread),
}

impl ThreadHandle {
    /// Waits until the thread has ended. Returns its stack, if it was created by [`spawn_on`]; or
    /// an error if another thread has panicked.
    pub fn join(self) -> std::thread::Result<Option<Stack>> {
        self.simulated.iter().for_each(sim::Enlisted::wait);
        match self.real {
            Real::OfStd(thread) => thread.join().map(|()| None),
            Real::OnStack(thread) => Ok(Some(thread.join())),
        }
    }

    /// Notes, in a simulated world, that the thread's worker was released: it ends on its own
    /// kernel thread.
    pub fn released(&self) {
        self.simulated.iter().for_each(sim::Enlisted::release);
    }

    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        if let Some(simulated) = &self.simulated {
            return simulated.is_gone();
        }
        match &self.real {
            Real::OfStd(thread) => thread.is_finished(),
            Real::OnStack(thread) => thread.is_finished(),
        }
    }
}

/// Creates a thread.
///
/// # Errors
/// An error of the operating system.
// Without the feature `sim` the simulated branch is unreachable.
#[allow(unreachable_code, unused_variables)]
pub fn spawn(
    builder: std::thread::Builder,
    name: String,
    main: impl FnOnce() + Send + 'static,
) -> io::Result<ThreadHandle> {
    if let Some(enlisted) = sim::enlist(&name) {
        let (enlisted, builder) = (enlisted?, builder.name(name));
        let place = enlisted.clone();
        let spawned = start(builder, move || {
            place.enter();
            main();
        });
        let simulated = Some(enlisted.clone());
        return spawned
            .map(|real| ThreadHandle { real: Real::OfStd(real), simulated })
            .inspect_err(|_| enlisted.strike());
    }
    let real = start(builder.name(name), main)?;
    Ok(ThreadHandle { real: Real::OfStd(real), simulated: None })
}

/// Creates a thread that is in no simulated world. What it executes is boxed, so that std's code
/// for starting threads is compiled once, and not for every function that a thread executes.
///
/// # Errors
/// An error of the operating system.
pub fn start(
    builder: std::thread::Builder,
    main: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let main: Box<dyn FnOnce() + Send> = Box::new(main);
    builder.spawn(main)
}

/// Creates a thread on a stack of a pool for threads. Not for simulated worlds.
///
/// # Errors
/// An error of the operating system. Then the stack comes back.
pub fn spawn_on(
    stack: Stack,
    name: &str,
    main: impl FnOnce() + Send + 'static,
) -> Result<ThreadHandle, (io::Error, Stack)> {
    let thread = stack.spawn(name, main)?;
    Ok(ThreadHandle { real: Real::OnStack(thread), simulated: None })
}

/// Sleeps for this long.
pub fn sleep(span: Duration) {
    if let Some(now) = sim::now() {
        let until = now.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2));
        return sim::block(sim::On::Time, until.max(now + 1), "thread::sleep");
    }
    std::thread::sleep(span);
}

/// Lets other threads of this processor run first.
pub fn yield_now() {
    if let Some(now) = sim::now() {
        return sim::block(sim::On::Time, now + 1, "thread::yield_now");
    }
    std::thread::yield_now();
}

/// How long a pause takes in a simulated world.
const SIMULATED_PAUSE: Duration = Duration::from_micros(2);

/// Waits for a moment, between two looks at memory that another processor will write. It makes no
/// system call. In a simulated world it sleeps, so that time goes on and other threads run.
#[inline]
pub fn pause() {
    if sim::is_here() {
        return sleep(SIMULATED_PAUSE);
    }
    std::hint::spin_loop();
}

/// Marks a place where, in a simulated world, another thread may run.
#[inline(always)]
pub fn point(what: &'static str) {
    sim::point(what);
}

/// Marks the beginning of an operation on a lock, a channel or the like. In a simulated world,
/// another thread may run before it. The caller holds no lock of the standard library.
#[inline(always)]
pub fn operation(what: &'static str) {
    sim::operation(what);
}

/// Runs `call`. In a simulated world no other thread runs meanwhile, so the caller may hold a lock
/// of the standard library.
#[inline(always)]
pub fn uninterrupted<R>(call: impl FnOnce() -> R) -> R {
    sim::uninterrupted(call)
}

/// Checks at growing intervals until `so` returns true or the time has passed. Returns whether it
/// became true.
pub fn wait_until(span: Duration, mut so: impl FnMut() -> bool) -> bool {
    let deadline = clock::after(span);
    let mut pause = Duration::from_micros(50);
    while !so() {
        if clock::now() >= deadline {
            return false;
        }
        sleep(pause);
        pause = pause.saturating_mul(2).min(Duration::from_millis(10));
    }
    true
}

/// A value that one thread sets and another waits for.
pub struct Promise<T>(Arc<Promised<T>>);

struct Promised<T> {
    value: Lock<Option<T>>,
    /// Set when the promise has been dropped: the value is there, or never will be.
    settled: ThreadEvent,
}

impl<T> Promise<T> {
    /// Makes the two sides: the first sets the value, the second waits for it.
    pub fn new() -> (Promise<T>, Awaited<T>) {
        let promised = Arc::new(Promised { value: Lock::new(None), settled: ThreadEvent::new() });
        (Promise(Arc::clone(&promised)), Awaited(promised))
    }

    /// Sets the value.
    pub fn keep(self, value: T) {
        *self.0.value.lock() = Some(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.settled.set();
    }
}

/// The waiting side of a [`Promise`].
pub struct Awaited<T>(Arc<Promised<T>>);

impl<T> Awaited<T> {
    /// Waits for the value. Returns `None` if the promise was dropped without a value.
    pub fn wait(self) -> Option<T> {
        self.0.settled.wait();
        self.0.value.lock().take()
    }
}
