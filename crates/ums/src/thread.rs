//! The interface of [`std::thread`], for tasks: code that was written for threads runs on workers
//! if `std::thread` is replaced by `ums::thread`, and `std::sync` by [`ums::sync`](crate::sync).
//!
//! What differs:
//!
//! * A *thread* of this module is a task. It runs on a worker of the caller's node and yields when
//!   it waits; a loop that never waits keeps its scheduler (see [`yield_if_due`]).
//! * The number of workers is limited. A thread that is beyond the limit begins when another has
//!   ended, or when it is joined. So threads that wait for one another other than by joining need
//!   [`Builder::max_workers`](crate::Builder::max_workers) large enough for all of them.
//! * If the caller's request is cancelled, [`park`], [`sleep`] and [`JoinHandle::join`] return
//!   early. Loops around them ask [`is_cancelled`](crate::is_cancelled).
//! * A thread that has not ended when its node shuts down is cancelled then.
//! * [`scope`] is the one of tasks.
//!
//! [`spawn`] is for workers only. The other functions work on plain threads, too.
//!
//! ```
//! use ums::thread;
//!
//! let node = ums::Node::builder().build()?;
//! let sum = node.run(|| {
//!     let parts: Vec<_> = (0..4).map(|n| thread::spawn(move || n * n)).collect();
//!     parts.into_iter().map(|part| part.join().unwrap()).sum::<i32>()
//! });
//! assert_eq!(sum, 14);
//! # Ok::<(), ums::BuildError>(())
//! ```
//!
//! [`yield_if_due`]: crate::yield_if_due

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::current::{self, waiter_of_request};
use crate::os::counted::AtomicU64;
use crate::scheduler::here;
use crate::sync::Event;
use crate::task::{self, JoinError};
#[doc(inline)]
pub use crate::task::{Scope, ScopedJoinHandle, scope};

/// The number of a [`Thread`], which no other thread of the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(u64);

/// A thread of this module, or a plain thread that uses it. Clones are the same thread.
#[derive(Clone)]
pub struct Thread(Arc<Inner>);

struct Inner {
    id: ThreadId,
    name: Option<String>,
    /// Set by `unpark`; a `park` waits for it and resets it.
    token: Event,
}

impl Thread {
    fn new(name: Option<String>) -> Thread {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = ThreadId(NEXT.fetch_add(1, Ordering::Relaxed));
        Thread(Arc::new(Inner { id, name, token: Event::auto(false) }))
    }

    /// Returns the thread's number.
    pub fn id(&self) -> ThreadId {
        self.0.id
    }

    /// Returns the name that the thread was given by [`Builder::name`].
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Ends the thread's [`park`], or its next one if it is not parked.
    pub fn unpark(&self) {
        self.0.token.set();
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("id", &self.id()).field("name", &self.name()).finish()
    }
}

/// Returns the calling thread. A task that was not started by this module, such as the closure of
/// [`Node::run`](crate::Node::run), is a thread without a name.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(|| {
///     let parent = ums::thread::current();
///     ums::thread::spawn(move || parent.unpark());
///     ums::thread::park();
/// });
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn current() -> Thread {
    Thread(waiter_of_request().of_request(|| Thread::new(None).0))
}

/// Waits until the calling thread is [unparked](Thread::unpark). Like [`std::thread::park`] it may
/// return early; it does so if the work request is cancelled or its time is over, after it has let
/// others run.
pub fn park() {
    if current().0.token.wait().is_err() {
        current::yield_now();
    }
}

/// Like [`park`], for at most this time.
pub fn park_timeout(span: Duration) {
    if current().0.token.wait_for(span).is_err() {
        current::yield_now();
    }
}

/// Lets this time pass. Returns early if the work request is cancelled or its time is over.
pub fn sleep(span: Duration) {
    if current::sleep(span).is_err() {
        current::yield_now();
    }
}

/// Gives others a turn; see [`ums::yield_now`](crate::yield_now).
pub fn yield_now() {
    current::yield_now();
}

/// A handle to wait for a thread's result. If it is dropped, the thread continues without it.
pub struct JoinHandle<T> {
    task: task::JoinHandle<T>,
    thread: Thread,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end, and returns its result.
    ///
    /// # Errors
    /// The payload of the thread's panic. A [`JoinError`] as the payload if the thread never ran,
    /// or the caller's wait was cancelled; the thread continues then.
    pub fn join(self) -> std::thread::Result<T> {
        self.task.join().map_err(|error| -> Box<dyn Any + Send> {
            match error {
                JoinError::Panicked(payload) => payload,
                JoinError::NeverRan => Box::new(JoinError::<()>::NeverRan),
                JoinError::Wait(_, error) => Box::new(JoinError::Wait((), error)),
            }
        })
    }

    /// Returns the thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// Starts a thread on the caller's node; see [`ums::spawn`](crate::spawn()).
///
/// # Panics
/// Panics on a plain thread, and if the work queue is full or the node shuts down (use
/// [`Builder::spawn`]).
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    match Builder::new().spawn(f) {
        Ok(handle) => handle,
        Err(error) => panic!("the thread was not started: {error}"),
    }
}

/// The properties of a new thread.
///
/// ```
/// use ums::thread;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let name = node.run(|| {
///     let named = thread::Builder::new().name("writer".into());
///     let thread = named.spawn(|| thread::current().name().map(String::from))?;
///     std::io::Result::Ok(thread.join().unwrap())
/// })?;
/// assert_eq!(name.as_deref(), Some("writer"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Builder {
    name: Option<String>,
    stack_size: usize,
}

impl Builder {
    /// Creates a builder for a thread without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Sets the thread's name.
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Sets how many bytes of stack the thread needs. All workers of a node have the same size of
    /// stack ([`ums::Builder::stack_size`](crate::Builder::stack_size)).
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = bytes;
        self
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// `InvalidInput` if the node's stacks are smaller than this thread needs. An error whose
    /// source is an [`EnqueueError`](crate::node::EnqueueError) if the work queue is full or the
    /// node shuts down.
    ///
    /// # Panics
    /// Panics on a plain thread.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let size = here().map_or(usize::MAX, |here| here.options.stack_size);
        if size < self.stack_size {
            let needed = self.stack_size;
            let text = format!(
                "a stack of {needed} bytes: this node's stacks have {size}; \
                 ums::Builder::stack_size sets that"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let thread = Thread::new(self.name);
        let own = thread.clone();
        let run = move || {
            waiter_of_request().of_request(|| own.0);
            f()
        };
        let task = task::try_spawn(run).map_err(io::Error::other)?;
        Ok(JoinHandle { task, thread })
    }
}
