//! The handles to a node and to its hidden schedulers: the interface that programs call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::builder::Builder;
use super::inner::{HiddenOptions, NodeInner};
use crate::os::threads;
use crate::record::plural::counted;
use crate::record::report::{self, WarningKind};
use crate::scheduler::request::UserId;
use crate::scheduler::{self, Scheduler, WorkerKind, away, here};
use crate::task::{self, JoinError, JoinHandle};
use crate::wait::error::EnqueueError;

/// A set of schedulers with their workers. Clones are handles to the same node. When the handle
/// that [`Builder::build`] returned is dropped, the node shuts down as with [`Node::shutdown`] and
/// a grace time of 10 seconds. If a task never ends by itself, such as an accept loop that was not
/// cancelled, the drop takes that long.
///
/// ```
/// let node = ums::Node::builder().build()?;
/// let four = node.run(|| ums::spawn(|| 2 + 2).join().unwrap());
/// assert_eq!(four, 4);
/// assert_eq!(node.shutdown(std::time::Duration::from_secs(1)).left, 0);
/// # Ok::<(), ums::BuildError>(())
/// ```
pub struct Node {
    pub(crate) inner: Arc<NodeInner>,
    pub(super) owner: bool,
}

impl Clone for Node {
    fn clone(&self) -> Node {
        Node { inner: self.inner.clone(), owner: false }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.inner.builder.kind;
        let schedulers = counted(self.inner.visible.len(), "scheduler");
        write!(f, "Node({schedulers}, {kind:?} workers)")
    }
}

/// A scheduler in addition to the visible ones, for work that should not delay theirs: backups,
/// administration, calls that block. Its workers are threads. Created by [`Node::hidden`].
#[derive(Clone)]
pub struct HiddenScheduler {
    pub(crate) scheduler: Arc<Scheduler>,
}

impl HiddenScheduler {
    /// Starts a task on this scheduler.
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down.
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_on(&self.scheduler, crate::current::user(), f)
    }

    /// Runs `f` on this scheduler and waits for it, so `f` may borrow from the caller's stack.
    /// Inside `f`, [`is_cancelled`](crate::is_cancelled) tells whether the caller is cancelled.
    ///
    /// # Panics
    /// Passes on a panic of `f`. Panics if the node is shutting down.
    pub fn run<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        let reason = crate::record::reason::WaitReason::OTHER;
        scheduler::run_on(&self.scheduler, reason, f)
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns the scheduler's number; hidden schedulers are numbered after the visible ones.
    pub fn id(&self) -> usize {
        self.scheduler.index
    }
}

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// How many requests had not ended within the grace time and were cancelled. Each spawned and
    /// each scoped task counts.
    pub cancelled: usize,
    /// How many workers could not be ended, because their code does not return or their wait
    /// ignores cancellation. Their threads and stacks are leaked on purpose. So are idle workers of
    /// a scheduler that such a worker holds up; these do not count.
    pub left: usize,
}

impl Node {
    /// Returns the node of the calling worker, or `None` on a plain thread and while the worker is
    /// preemptive.
    pub fn current() -> Option<Node> {
        NodeInner::with_number(*here()?.node.get()?).map(Node::of)
    }

    /// Returns another handle, whose drop does not shut the node down.
    pub(crate) fn of(inner: Arc<NodeInner>) -> Node {
        Node { inner, owner: false }
    }

    /// Returns a builder with the defaults: thread workers, one scheduler per processor.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a task on the least loaded scheduler or, if called on a worker of this node, on that
    /// worker's scheduler. An idle scheduler may take the task from there before the task has
    /// begun, as with [`spawn`](crate::spawn()).
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down.
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_on(&self.near(), crate::current::user(), f)
    }

    /// Returns the caller's scheduler if it is one of this node's visible ones, or the least loaded
    /// one of these.
    fn near(&self) -> Arc<Scheduler> {
        let is_ours = |s: &Arc<Scheduler>| {
            self.inner.visible.get(s.index).is_some_and(|ours| Arc::ptr_eq(ours, s))
        };
        let own = here().map(|s| s.arc()).filter(is_ours);
        own.unwrap_or_else(|| self.inner.least_loaded().clone())
    }

    /// Starts a task on the visible scheduler with this number; no other scheduler takes it.
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down.
    ///
    /// # Panics
    /// Panics if there is no such scheduler.
    #[track_caller]
    pub fn spawn_on<F, T>(&self, scheduler: usize, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_bound(self.visible_scheduler(scheduler), f)
    }

    /// Runs `f` on a worker, waits for it and returns its result. A program's plain threads, such
    /// as `main`, enter the node this way. Returns only when `f` has returned, so `f` may borrow
    /// from the caller: if the caller is a worker, cancelling its request does not end this wait.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let mut words = vec!["two", "one"];
    /// node.run(|| words.sort());
    /// assert_eq!(words, ["one", "two"]);
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    ///
    /// # Panics
    /// Passes on a panic of `f`. Panics if the node is shutting down, if the work queue is full,
    /// and in a completion routine, which must not wait.
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // If the caller must not wait, this panics before `f` is run.
        let _ = crate::current::about_to_wait();
        match task::run_on(&self.near(), f) {
            Ok(Ok(value)) => value,
            Ok(Err(JoinError::Panicked(panic))) => std::panic::resume_unwind(panic),
            Ok(Err(error)) => panic!("{error}"),
            Err(error) => panic!("the task was not accepted: {error}"),
        }
    }

    /// Returns the hidden scheduler of this name. The first call creates it with these options;
    /// later calls ignore them.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or descriptors, or the node is shutting down.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let backup = node.hidden("backup", ums::node::HiddenOptions::default())?;
    /// let copied = backup.spawn(|| 42)?; // runs beside the node's visible scheduler
    /// assert_eq!(copied.join()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hidden(&self, name: &str, options: HiddenOptions) -> std::io::Result<HiddenScheduler> {
        Ok(HiddenScheduler { scheduler: self.inner.hidden(name, options)? })
    }

    /// Cancels the request that this user enqueued last. Returns false if there is no such user or
    /// the request has ended.
    pub fn cancel(&self, user: UserId) -> bool {
        self.inner.user(user).is_some_and(|u| u.cancel())
    }

    /// Returns the number of visible schedulers.
    pub fn scheduler_count(&self) -> usize {
        self.inner.visible.len()
    }

    /// Returns the kind of the node's workers.
    pub fn worker_kind(&self) -> WorkerKind {
        self.inner.builder.kind
    }

    /// Takes a visible scheduler out of service, or puts it back. While a scheduler is offline it
    /// gets no new users or requests, and continues those that it has. The last scheduler that is
    /// online cannot be taken out of service: then this returns false and changes nothing.
    ///
    /// # Panics
    /// Panics if there is no such scheduler.
    #[track_caller]
    pub fn set_online(&self, scheduler: usize, online: bool) -> bool {
        let all = &self.inner.visible;
        let chosen = self.visible_scheduler(scheduler);
        // One call at a time. Otherwise two calls could take the last two schedulers offline.
        let _alone = self.inner.setting_online.lock();
        let others =
            all.iter().filter(|s| s.index != scheduler && s.online.load(Ordering::Relaxed));
        if !online && others.count() == 0 {
            return false;
        }
        chosen.online.store(online, Ordering::Relaxed);
        // If the scheduler sleeps, it is marked as willing to take work of others. This message
        // makes it check again and remove the mark.
        chosen.inbox.send(crate::wait::Letter::LookAgain);
        true
    }

    #[track_caller]
    fn visible_scheduler(&self, number: usize) -> &Arc<Scheduler> {
        let all = &self.inner.visible;
        let last = all.len() - 1;
        assert!(number <= last, "there is no scheduler {number}: the last is {last}");
        &all[number]
    }

    /// Describes the node's I/O back end, with the reason why each better one is not used.
    pub fn io_text(&self) -> String {
        self.inner.visible[0].driver_text.clone()
    }

    /// Shuts the node down. It accepts no more work, lets accepted requests finish within `grace`,
    /// cancels those that have not finished, waits for every I/O request, and ends and joins every
    /// worker. Cancelled requests get the same time again to end, but at least a second. So do the
    /// threads then, but at least five seconds.
    ///
    /// From the start of the shutdown, requests from plain threads are refused with
    /// [`EnqueueError::ShuttingDown`]. Running requests may still queue others, and so may the
    /// completion of their I/O and the input of served connections, until all requests are done or
    /// the time is over.
    ///
    /// Once a node has ended, a further call changes nothing, and returns at once how many workers
    /// are left; while it ends, those that have not ended yet count.
    ///
    /// A task that accepts connections is a request too. It accepts throughout the grace time,
    /// which is then always used up. So servers use [`drain`](Node::drain).
    ///
    /// # Signals
    /// [`Signals`](crate::process::Signals) receives SIGINT and SIGTERM, for an orderly end. The
    /// library itself handles SIGTRAP, SIGURG and, for [`Node::print_stacks_on_sigusr2`], SIGUSR2;
    /// do not block these.
    ///
    /// # Panics
    /// Panics on a worker of a node, because the worker would wait for its own end.
    pub fn shutdown(self, grace: Duration) -> ShutdownReport {
        self.end(grace, false)
    }

    /// Shuts down a node that serves clients: ends accepting first, then gives open connections the
    /// grace time, as [`shutdown`](Node::shutdown) does.
    ///
    /// Each [`Server`](crate::serve::Server) of the node [stops](crate::serve::Server::stop). Each
    /// request that waits in `accept`, or begins such a wait later, is cancelled: its `accept`
    /// fails, [`incoming`](crate::net::TcpListener::incoming) ends, and when the request has
    /// dropped its listener, the system refuses new clients. These requests do not count as
    /// [cancelled](ShutdownReport::cancelled), unless they are still there after the grace time.
    ///
    /// A drain may take twice the grace time: cancelled requests have as long again to end. After a
    /// second, a line on stderr says what the node waits for, unless
    /// [`warnings`](crate::Builder::warnings) are off.
    ///
    /// ```standalone_crate
    /// use std::time::Duration;
    ///
    /// let signals = ums::process::Signals::termination()?;
    /// let node = ums::Node::builder().build()?;
    /// let listener = ums::net::TcpListener::bind("127.0.0.1:0")?;
    /// node.spawn(move || {
    ///     for stream in listener.incoming().flatten() {
    ///         ums::spawn(move || std::io::copy(&mut &stream, &mut &stream));
    ///     }
    /// })?;
    ///
    /// # signal_hook::low_level::raise(15)?;
    /// let signal = signals.wait()?;
    /// let report = node.drain(Duration::from_secs(5)); // connections get 5 s to end
    /// println!("{} tasks were cancelled", report.cancelled);
    /// # assert_eq!((signal, report.left), (15, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics on a worker of a node, because the worker would wait for its own end.
    pub fn drain(self, grace: Duration) -> ShutdownReport {
        self.end(grace, true)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.owner {
            return;
        }
        let (node, grace) = (self.clone(), Duration::from_secs(10));
        if here().is_none() && away().is_none() {
            node.end(grace, false);
            return;
        }
        // A worker cannot wait for its own end, so another thread shuts the node down.
        let end = move || {
            node.end(grace, false);
        };
        if let Err(error) = threads::spawn(std::thread::Builder::new(), "ums-ender".into(), end) {
            let text =
                format_args!("a node dropped by its own worker could not be shut down: {error}");
            report::warn(WarningKind::NoWorker, text);
        }
    }
}
