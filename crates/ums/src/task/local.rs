//! Request-locals: values that belong to a work request, and that its code finds without being
//! passed them, such as the number under which a request is traced.
//!
//! ```text
//!   TRACE.scope(7, || ..)              the code inside sees 7, in whatever it calls
//!     scope, task_group                so do their tasks, as long as they run
//!     spawn(f)                         f sees nothing
//!     spawn(with_locals(f))            f sees 7
//!     TRACE.scope(8, || ..)            hides 7 until its closure ends
//! ```
//!
//! * A value belongs to the *code* of a scope, on the caller's worker or plain thread. A
//!   thread-local belongs to a thread, which carries out many requests, and many fibers share it.
//! * A value ends with the closure of its scope, also by a panic, and every scope of a request ends
//!   before the request. So the next request of the worker finds nothing, and nothing has to be
//!   cleared.
//! * The values live at the caller's waiter (`wait/locals`), so a switch does not touch them.
//!
//! Which code sees the values of a scope:
//!
//! * What its closure calls, also after waits and yields. That includes preemptive code
//!   ([`go_preemptive`], [`couple`]), even if a hidden scheduler runs it for a fiber, and futures
//!   of [`block_on`], which the caller polls.
//! * Tasks of a [`scope`] or [`task_group`] see what their spawner sees when it spawns them.
//! * Tasks of [`spawn`], [`Node::spawn`] and [`spawn_future`], and closures of [`Node::run`] and of
//!   a [hidden scheduler](crate::node::HiddenScheduler), which are requests of their own, see
//!   nothing, unless [`with_locals`] or [`Locals::future`] passes the values on.
//! * Completion routines of [`io`](crate::io), and wakers that a scheduler calls in a turn, see
//!   nothing, whichever code they run inside.
//!
//! A value that is shared ends with its last user. Its destructor is code of that user, which still
//! sees the values outside the scope: it may wait, and its panic is the user's. A task that never
//! runs ends its share of inherited values where its closure is dropped. That may be in a turn, so
//! the destructor must not wait there, and a panic of it is contained.
//!
//! What this file does not do: nothing sets a value for the rest of a request, or for a thread.
//!
//! [`block_on`]: crate::future::block_on
//! [`couple`]: crate::worker::couple
//! [`go_preemptive`]: crate::go_preemptive
//! [`Node::run`]: crate::Node::run
//! [`Node::spawn`]: crate::Node::spawn
//! [`scope`]: fn@crate::scope
//! [`spawn`]: fn@crate::spawn
//! [`spawn_future`]: crate::future::spawn_future
//! [`task_group`]: crate::task_group

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;

use crate::current::waiter_of_request as me;
use crate::wait::{Key, Values, are_used};

/// Declares request-locals: statics of the type [`RequestLocal`], which documents them.
///
/// ```
/// ums::task::request_local! {
///     /// The number under which the request is traced.
///     pub static TRACE: u64;
///     static USER: String;
/// }
///
/// let seen = TRACE.scope(7, || USER.scope("ann".into(), || (TRACE.get(), USER.get())));
/// assert_eq!(seen, (Some(7), Some("ann".into())));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __request_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty);+ $(;)?) => {
        $(
            $(#[$attribute])*
            $visible static $name: $crate::task::RequestLocal<$type> =
                $crate::task::RequestLocal::__named(
                    ::core::concat!(::core::module_path!(), "::", ::core::stringify!($name)),
                );
        )+
    };
}

pub use __request_local as request_local;

/// A value that the code of a work request sees, and no other request. [`request_local!`] declares
/// it. It has a value inside [`scope`](RequestLocal::scope), and nowhere else.
///
/// It works in every kind of worker, and on plain threads, where what the thread runs counts as one
/// request. A value is shared with other tasks by reference, so it must be [`Sync`]; a
/// [`Mutex`](crate::sync::Mutex) in it can be changed.
///
/// ```
/// use ums::task::with_locals;
///
/// ums::task::request_local! {
///     static TRACE: u64;
/// }
///
/// fn log() -> String {
///     format!("request {:?}", TRACE.get()) // no caller passes it on
/// }
///
/// let node = ums::Node::builder().build()?;
/// let logged = node.run(|| {
///     TRACE.scope(7, || {
///         ums::yield_now(); // other requests of this thread do not see it
///         let forgets = ums::spawn(log);
///         let inherits = ums::spawn(with_locals(log));
///         [log(), forgets.join().unwrap(), inherits.join().unwrap()]
///     })
/// });
/// assert_eq!(logged, ["request Some(7)", "request None", "request Some(7)"]);
/// # Ok::<(), ums::BuildError>(())
/// ```
pub struct RequestLocal<T> {
    /// Also keeps the static from having no size, so that its address is its own.
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> RequestLocal<T> {
    /// For the expansion of [`request_local!`].
    #[doc(hidden)]
    pub const fn __named(name: &'static str) -> RequestLocal<T> {
        RequestLocal { name, value: PhantomData }
    }

    fn key(&'static self) -> Key {
        std::ptr::from_ref(self).addr()
    }
}

impl<T: Send + Sync + 'static> RequestLocal<T> {
    /// Calls `f`, whose code sees this value. A scope inside another one hides the outer value,
    /// which is visible again when the inner closure returns or panics.
    ///
    /// The value is dropped after `f`, or when the last task has ended that has inherited it. If
    /// its destructor panics, so does the code that drops it; if that is unwinding already, the
    /// process aborts, as with a local variable.
    ///
    /// ```
    /// ums::task::request_local! {
    ///     static DEPTH: u32;
    /// }
    /// DEPTH.scope(1, || {
    ///     assert_eq!(DEPTH.scope(2, || DEPTH.get()), Some(2));
    ///     assert_eq!(DEPTH.get(), Some(1));
    /// });
    /// assert_eq!(DEPTH.get(), None);
    /// ```
    pub fn scope<R>(&'static self, value: T, f: impl FnOnce() -> R) -> R {
        let me = me();
        let values = me.values().with(self.key(), Arc::new(value));
        me.within(values, f)
    }

    /// Calls `f` with the value. `f` may wait, and may open scopes.
    ///
    /// # Panics
    /// Panics if the caller sees no value.
    #[track_caller]
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        match self.visible() {
            Some(value) => f(&value),
            None => panic!("{} has no value here: call this inside its `scope`", self.name),
        }
    }

    /// Calls `f` with the value. Returns `None`, and does not call `f`, if the caller sees none.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.visible().map(|value| f(&value))
    }

    /// Returns a clone of the value, or `None` if the caller sees none.
    pub fn get(&'static self) -> Option<T>
    where
        T: Clone,
    {
        self.try_with(T::clone)
    }

    fn visible(&'static self) -> Option<Arc<T>> {
        visible().get(self.key())
    }
}

impl<T> fmt::Debug for RequestLocal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestLocal").field(&self.name).finish()
    }
}

/// The values of all request-locals that some code sees, to be passed on to other code. The default
/// has none. A clone shares the values.
///
/// ```
/// use ums::task::Locals;
///
/// ums::task::request_local! {
///     static TRACE: u64;
/// }
///
/// let node = ums::Node::builder().build()?;
/// let locals = TRACE.scope(7, Locals::capture);
/// let seen = node.run(move || locals.scope(|| TRACE.get()));
/// assert_eq!(seen, Some(7));
/// # Ok::<(), ums::BuildError>(())
/// ```
#[derive(Clone, Default)]
pub struct Locals {
    values: Values,
}

impl Locals {
    /// Returns the values that the caller sees.
    pub fn capture() -> Locals {
        Locals { values: visible() }
    }

    /// Calls `f`, whose code sees these values instead of those that the caller sees.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        me().within(self.values.clone(), f)
    }

    /// Awaits a future, which sees these values in each of its polls, wherever it is polled. The
    /// destructor of a future that is dropped before its end sees those of the code that drops it.
    ///
    /// ```
    /// use ums::future::spawn_future;
    /// use ums::task::Locals;
    ///
    /// ums::task::request_local! {
    ///     static TRACE: u64;
    /// }
    ///
    /// let node = ums::Node::builder().build()?;
    /// let seen = node.run(|| {
    ///     let (to, from) = tokio::sync::oneshot::channel::<()>();
    ///     let task = TRACE.scope(7, || {
    ///         spawn_future(Locals::capture().future(async {
    ///             from.await.unwrap();
    ///             TRACE.get()
    ///         }))
    ///     });
    ///     to.send(()).unwrap();
    ///     task.join().unwrap()
    /// });
    /// assert_eq!(seen, Some(7));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub async fn future<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| self.scope(|| future.as_mut().poll(context))).await
    }
}

impl fmt::Debug for Locals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locals").field("values", &self.values.len()).finish()
    }
}

/// Returns a closure that calls `f`, whose code sees the values of request-locals that the caller
/// of this function sees now. For tasks that may outlive the caller; see [`RequestLocal`] for an
/// example. Tasks of a [`scope`](fn@crate::scope) see the values of their spawner without it.
pub fn with_locals<F, R>(f: F) -> impl FnOnce() -> R + use<F, R>
where
    F: FnOnce() -> R,
{
    let locals = Locals::capture();
    move || locals.scope(f)
}

/// Returns the values that the caller sees.
#[inline]
pub(super) fn visible() -> Values {
    if are_used() { me().values() } else { Values::default() }
}

/// Calls `f`, the code of a task, which sees these values.
#[inline]
pub(super) fn seeing<R>(values: Values, f: impl FnOnce() -> R) -> R {
    if values.is_empty() { f() } else { me().within(values, f) }
}
