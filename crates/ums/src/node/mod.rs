//! The node: a process's set of schedulers, how it is built and how it ends.
//!
//! One scheduler per processor that the process may use (U15, B55), workers spread evenly over
//! them (U17, G9), hidden schedulers made when somebody wants one (U89).
//!
//! `node/kinds.rs` chooses what workers are made of.

mod ending;
mod kinds;
mod room;
mod seen;
mod started;
pub(crate) mod placement;
pub(crate) mod serve;
pub(crate) mod stats_socket;
pub(crate) mod user;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use crate::limits;
use crate::monitor::{self, Watching};
use crate::node::stats_socket::{Serving, StatsSocket};
use crate::os::clock;
use crate::os::linux::open::Choice;
use crate::os::threads::{self, JoinHandle as Thread};
use crate::record::report::{self, Kind};
use crate::scheduler::Peers;
use crate::scheduler::request::UserId;
use crate::scheduler::{self, Scheduler, WorkerKind, away, here};
use crate::task::{self, JoinHandle, TaskError, UserState};
use crate::wait::error::BuildError;

pub use crate::node::placement::Placement;
pub use crate::os::linux::open::Choice as IoChoice;
pub use crate::wait::error::EnqueueError;
pub use kinds::own_contexts_are_refused;
use room::{Limit, raise_descriptors};
use started::Started;

/// The options of a node. Made by [`Node::builder`]; the defaults suit a server.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    kind: WorkerKind,
    schedulers: Option<usize>,
    max_workers: Option<usize>,
    min_workers: usize,
    placement: Placement,
    fifo: bool,
    queue_limit: usize,
    stack_size: Option<usize>,
    precommit: bool,
    idle_worker_timeout: Duration,
    idle_spin: Duration,
    holder_spin: Duration,
    queue_timeout: Duration,
    preemptive_limit: Option<usize>,
    pin: bool,
    detect_blocking: bool,
    take_over_blocked: bool,
    io: Choice,
    monitor: Option<monitor::Options>,
    ring: bool,
    warnings: bool,
    stats: Option<StatsSocket>,
    stacks_on_sigusr2: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            kind: WorkerKind::Thread,
            schedulers: None,
            max_workers: None,
            min_workers: 1,
            placement: Placement::default(),
            fifo: false,
            queue_limit: limits::QUEUE_MAX,
            stack_size: None,
            precommit: false,
            idle_worker_timeout: Duration::from_nanos(limits::TRIM_AFTER_NS),
            idle_spin: Duration::ZERO,
            holder_spin: Duration::from_nanos(limits::HOLDER_SPIN_NS),
            queue_timeout: Duration::MAX,
            preemptive_limit: None,
            pin: false,
            detect_blocking: false,
            take_over_blocked: true,
            io: Choice::Auto,
            monitor: None,
            ring: true,
            warnings: true,
            stats: None,
            stacks_on_sigusr2: false,
        }
    }
}

impl Builder {
    /// How many schedulers. Default: as many as processors the process may use, which is the least
    /// of its affinity mask, its cpuset and its control group's quota rounded up (U15, B55).
    pub fn schedulers(mut self, n: usize) -> Builder {
        self.schedulers = Some(n);
        self
    }

    /// Most workers in all, spread evenly over the schedulers: they differ by at most one and the
    /// sum is exact (U17, G9). The limit is hard: beyond it requests wait in line until a worker is
    /// free, for as long as that takes.
    ///
    /// Default: as many as a share of this machine's memory, mappings and threads allows, which
    /// `ums probe` prints. From 512 workers on (more where there are more than four processors)
    /// further ones are made only when none becomes free.
    pub fn max_workers(mut self, n: usize) -> Builder {
        self.max_workers = Some(n);
        self
    }

    /// Workers that each scheduler keeps however long they are idle (G10). Default 1.
    pub fn min_workers(mut self, n: usize) -> Builder {
        self.min_workers = n;
        self
    }

    /// How users and requests are spread. Default [`Placement::Hinted`].
    pub fn placement(mut self, placement: Placement) -> Builder {
        self.placement = placement;
        self
    }

    /// The behaviour of the original as a whole: classic placement, a runnable list that is first
    /// in first out, 255 workers (rule 15).
    pub fn classic(mut self) -> Builder {
        self.placement = Placement::Classic;
        self.fifo = true;
        self.max_workers = Some(limits::CLASSIC_WORKERS);
        self
    }

    /// Requests that may wait for a worker on one scheduler before more are refused (G2, B19).
    pub fn queue_limit(mut self, n: usize) -> Builder {
        self.queue_limit = n;
        self
    }

    /// How long a request may wait for a worker (B19). One that waited longer is not carried out:
    /// its `JoinHandle` says cancelled, a served client is told and its connection closed. Requests
    /// of users that hold something are exempt. Default: as long as it takes.
    pub fn queue_timeout(mut self, span: Duration) -> Builder {
        self.queue_timeout = span;
        self
    }

    /// Stack of a worker, in bytes (B16). Default: 2 MiB for threads, 256 KiB for fibers. Both are
    /// address space, backed by memory only where touched. At least 16 KiB for fibers, 32 KiB for
    /// threads, about 64 KiB for own contexts.
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Backs fiber stacks with memory when they are made, so that their growth can never fail
    /// (B16). Default off.
    pub fn precommit_stacks(mut self, yes: bool) -> Builder {
        self.precommit = yes;
        self
    }

    /// How long a worker may be idle before it is destroyed (U39). Default 15 minutes.
    pub fn idle_worker_timeout(mut self, span: Duration) -> Builder {
        self.idle_worker_timeout = span;
        self
    }

    /// How long a scheduler without work looks for some before it sleeps (B57). Default zero: an
    /// idle scheduler uses no processor time. Some tens of microseconds can pay where a wake-up
    /// costs more than the processor's time.
    pub fn idle_spin(mut self, span: Duration) -> Builder {
        self.idle_spin = span;
        self
    }

    /// How long a scheduler without work looks for the next request of a served user that holds a
    /// lock ([`User::hold`](crate::User::hold)) before it sleeps. Default 100 microseconds: others
    /// wait for that user, and a client that answers at once does so sooner than a sleeping thread
    /// is woken. It is spent once for each request, and threads that want the processor get it
    /// meanwhile. Zero: it sleeps at once.
    pub fn holder_spin(mut self, span: Duration) -> Builder {
        self.holder_spin = span;
        self
    }

    /// Most workers of one scheduler that may be preemptive at once; more wait (B30). Default: no
    /// limit but that of workers.
    pub fn preemptive_limit(mut self, n: usize) -> Builder {
        self.preemptive_limit = Some(n);
        self
    }

    /// Pins each scheduler's threads to a processor of its own, as far as there are processors for
    /// them. Default off (U16).
    pub fn pin(mut self, yes: bool) -> Builder {
        self.pin = yes;
        self
    }

    /// Takes an undeclared block of a thread worker, or of one with its own context, for going
    /// preemptive: the baton is handed on, and the worker comes home through the inbox, running
    /// none of its code before it has the baton again. Seen are system calls and page faults, by
    /// what [`crate::watch::mechanism`] says; in programs that say [`crate::interpose`], functions
    /// of the C library hand the baton on before they block, which is faster. Each scheduler's
    /// threads are pinned to one processor then. Default off, and then it costs nothing. See
    /// docs/workers.md.
    ///
    /// Of workers with their own context a system call is interrupted and made again; and their
    /// schedulers, which a few more threads carry in turn, use epoll, not io_uring. See
    /// docs/worker-kinds.md. Interposed calls they couple for without this option.
    pub fn detect_blocking(mut self, yes: bool) -> Builder {
        self.detect_blocking = yes;
        self
    }

    /// Which I/O back end to use. Default: the best that the machine allows.
    pub fn io(mut self, choice: Choice) -> Builder {
        self.io = choice;
        self
    }

    /// Builds the node and starts its schedulers.
    ///
    /// # Errors
    /// [`BuildError`] says which option makes no sense, or what the system refused.
    pub fn build(self) -> Result<Node, BuildError> {
        clock::start();
        let machine = crate::os::linux::cpus::Cpus::read();
        let cpus = machine.count;
        let count = self.schedulers.unwrap_or(cpus);
        let option = |text: String| Err(BuildError::Option(text));
        if count == 0 || count > 1024 {
            return option(format!("{count} schedulers: there must be 1 to 1024"));
        }
        // First, for the room that the machine has is counted in stacks.
        self.can_have_its_stack()?;
        let limit = self.limit(self.kind, cpus, count);
        let workers = limit.hard;
        if workers < count {
            return option(format!(
                "{workers} workers for {count} schedulers: each scheduler needs one at least"
            ));
        }
        if workers.div_ceil(count) > limits::WORKERS_PER_SCHEDULER_MAX {
            return option(format!("{workers} workers are more than this library can number"));
        }
        self.can_have_its_kind(count)?;
        raise_descriptors();
        let os = |what| move |source| BuildError::Os { what, source };
        let peers = Arc::new(Peers::new(count));
        let mut started = Started::default();
        for index in 0..count {
            // 255 over 4: 64, 64, 64, 63 (G9).
            let share = limit.share(index, count);
            // Processor numbers need not begin at 0: places come from the mask, not from counting.
            let place = machine.allowed.get(index).copied().filter(|_| self.pin);
            // What notices blocked workers must find them on one processor.
            let detects = self.detect_blocking && scheduler::can_detect(self.kind);
            let any = || machine.allowed.get(index % machine.allowed.len().max(1)).copied();
            let place = if detects { place.or_else(any) } else { place };
            let options = self.options(index.to_string(), true, share, place);
            let made = scheduler::start(index, options, peers.clone());
            let (scheduler, thread) = made.map_err(os("starting a scheduler"))?;
            started.schedulers.push(scheduler);
            started.threads.push(thread);
        }
        let (visible, threads) = started.keep();
        peers.introduce(visible.iter().map(Arc::downgrade).collect());
        let inner = Arc::new(NodeInner {
            builder: self,
            visible,
            hidden: RwLock::default(),
            threads: Mutex::new(threads),
            setting_online: Mutex::default(),
            closing: AtomicBool::new(false),
            users: Mutex::default(),
            watching: Mutex::default(),
            stats: Mutex::default(),
        });
        let weak: std::sync::Weak<NodeInner> = Arc::downgrade(&inner);
        for scheduler in &inner.visible {
            let _ = scheduler.node.set(weak.clone());
        }
        // From here on an error takes down what was started: the node is dropped.
        let node = Ok(Node { inner: inner.clone(), owner: true });
        if inner.builder.kind == WorkerKind::Fiber {
            // Where the fibers' external calls go (U85). Not to be seen in umsstats (U86).
            let outside = inner.hidden("preemptive", HiddenOptions::default());
            let outside = outside.map_err(os("starting the hidden scheduler for external code"))?;
            for scheduler in &inner.visible {
                let _ = scheduler.outside.set(Arc::downgrade(&outside));
            }
        }
        node.and_then(Node::be_seen)
    }
}

/// How a hidden scheduler differs from the default: threads, as many workers as the node's
/// automatic maximum, none ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct HiddenOptions {
    /// Most workers; None: as many as the machine has room for, as with
    /// [`Builder::max_workers`].
    pub max_workers: Option<usize>,
    /// Workers made at the start and never trimmed (B18).
    pub ready: usize,
    /// By how much its threads stand back where processors are short, as `nice(1)` has it: from 0,
    /// as everybody, to 19. For work that nobody waits for: a backup, a check. Threads that its
    /// requests make are as nice.
    pub nice: u8,
}

pub(crate) struct NodeInner {
    builder: Builder,
    pub visible: Vec<Arc<Scheduler>>,
    hidden: RwLock<HashMap<String, Arc<Scheduler>>>,
    threads: Mutex<Vec<Thread>>,
    setting_online: Mutex<()>,
    pub closing: AtomicBool,
    pub users: Mutex<HashMap<UserId, std::sync::Weak<UserState>>>,
    /// While the monitor watches.
    watching: Mutex<Option<Watching>>,
    /// While its statistics socket is served.
    pub stats: Mutex<Option<Serving>>,
}

impl NodeInner {
    pub fn placement(&self) -> Placement {
        self.builder.placement
    }

    /// The hidden scheduler of this name, made on first use (U89).
    pub fn hidden(
        self: &Arc<Self>,
        name: &str,
        options: HiddenOptions,
    ) -> std::io::Result<Arc<Scheduler>> {
        let found = |map: &HashMap<String, Arc<Scheduler>>| map.get(name).cloned();
        if let Some(scheduler) = found(&self.hidden.read().unwrap_or_else(|e| e.into_inner())) {
            return Ok(scheduler);
        }
        let mut map = self.hidden.write().unwrap_or_else(|e| e.into_inner());
        if let Some(scheduler) = found(&map) {
            return Ok(scheduler);
        }
        if self.closing.load(Ordering::Acquire) {
            return Err(std::io::Error::other("the node is shutting down"));
        }
        let limit = match options.max_workers {
            Some(most) => Limit::of_builder(most.max(1)),
            None => self.builder.automatic(WorkerKind::Thread, 1, 1),
        };
        kinds::can_be_numbered(limit.hard)?;
        let mut made = self.builder.options(name.to_owned(), false, limit, None);
        made.workers_ready = options.ready.min(limit.hard);
        made.workers_floor = made.workers_ready.max(1);
        made.nice = i32::from(options.nice.min(limits::NICE_MAX));
        let index = self.visible.len() + map.len();
        let peers = Arc::new(Peers::new(index + 1));
        let (scheduler, thread) = scheduler::start(index, made, peers)?;
        let weak: std::sync::Weak<NodeInner> = Arc::downgrade(self);
        let _ = scheduler.node.set(weak);
        self.threads.lock().unwrap_or_else(|e| e.into_inner()).push(thread);
        map.insert(name.to_owned(), scheduler.clone());
        // It may be at work before it has ever slept.
        scheduler::alarm::stir();
        Ok(scheduler)
    }

    /// Every scheduler, visible ones first, hidden ones in order of number.
    pub fn all(&self) -> Vec<Arc<Scheduler>> {
        let map = self.hidden.read().unwrap_or_else(|e| e.into_inner());
        let mut hidden: Vec<_> = map.values().cloned().collect();
        hidden.sort_by_key(|s| s.index);
        self.visible.iter().cloned().chain(hidden).collect()
    }

    /// What is known of the user with this number.
    pub fn user(&self, id: UserId) -> Option<Arc<UserState>> {
        let users = self.users.lock().unwrap_or_else(|e| e.into_inner());
        users.get(&id).and_then(std::sync::Weak::upgrade)
    }

    fn least_loaded(&self) -> &Arc<Scheduler> {
        &self.visible[Placement::LeastLoaded.for_request(&self.visible, 0)]
    }
}

/// A process's set of schedulers. Clones are handles to the same node; when the first one, which
/// [`Builder::build`] gave, is dropped, the node shuts down as by [`Node::shutdown`] with a grace
/// time of 10 seconds.
pub struct Node {
    pub(crate) inner: Arc<NodeInner>,
    owner: bool,
}

impl Clone for Node {
    fn clone(&self) -> Node {
        Node { inner: self.inner.clone(), owner: false }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.inner.builder.kind;
        write!(f, "Node({} schedulers, {kind:?} workers)", self.inner.visible.len())
    }
}

/// A scheduler outside the visible ones, for work that should not stand in their way: backups,
/// administration, calls that block (U89..U91). Its workers are threads.
#[derive(Clone)]
pub struct HiddenScheduler {
    pub(crate) scheduler: Arc<Scheduler>,
}

impl HiddenScheduler {
    /// Queues a task here.
    ///
    /// # Errors
    /// [`EnqueueError`].
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_on(&self.scheduler, crate::current::user(), false, f)
    }

    /// Runs `f` here and waits for it. The caller's stack stays as it is meanwhile, so `f` may
    /// borrow from it. Inside, [`is_cancelled`](crate::is_cancelled) sees the caller's
    /// cancellation.
    ///
    /// # Panics
    /// With what `f` panics with, and when the node is shutting down.
    pub fn run<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send,
        R: Send,
    {
        let reason = crate::record::reason::WaitReason::OTHER;
        scheduler::run_on(&self.scheduler, reason, f)
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Its number; hidden schedulers count on from the visible ones.
    pub fn id(&self) -> usize {
        self.scheduler.index
    }
}

/// What a shutdown found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Requests that had not ended when the grace time was over and were cancelled.
    pub cancelled: usize,
    /// Workers that could not be ended: external code that does not return, waits that nobody
    /// ends. Their threads and stacks are left alone on purpose.
    pub left: usize,
}

impl Node {
    /// The node of the worker that calls; None on a plain thread and while preemptive.
    pub fn current() -> Option<Node> {
        here()?.node.get()?.upgrade()?.downcast().ok().map(Node::of)
    }

    /// One more handle.
    pub(crate) fn of(inner: Arc<NodeInner>) -> Node {
        Node { inner, owner: false }
    }

    /// A builder with the defaults: thread workers, one scheduler per processor.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Queues a task on the least loaded scheduler (or, on a worker, on its own).
    ///
    /// # Errors
    /// [`EnqueueError`].
    pub fn spawn<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let is_ours = |s: &Arc<Scheduler>| {
            self.inner.visible.get(s.index).is_some_and(|ours| Arc::ptr_eq(ours, s))
        };
        let own = here().map(|s| s.arc()).filter(is_ours);
        let scheduler = own.unwrap_or_else(|| self.inner.least_loaded().clone());
        task::spawn_on(&scheduler, crate::current::user(), false, f)
    }

    /// Queues a task on this visible scheduler; no other scheduler takes it.
    ///
    /// # Errors
    /// [`EnqueueError`].
    ///
    /// # Panics
    /// When there is no such scheduler.
    pub fn spawn_on<F, T>(&self, scheduler: usize, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        task::spawn_bound(&self.inner.visible[scheduler], f)
    }

    /// Runs `f` on a worker and waits for it: the way in from a plain thread.
    ///
    /// # Panics
    /// With what `f` panics with, when the node is shutting down, and where a worker must not wait:
    /// in a completion routine.
    #[track_caller]
    pub fn run<F, T>(&self, f: F) -> T
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // A run that would be refused its wait does not begin.
        let _ = crate::current::about_to_wait();
        match self.spawn(f).map(JoinHandle::join) {
            Ok(Ok(value)) => value,
            Ok(Err(TaskError::Panicked(panic))) => std::panic::resume_unwind(panic),
            Ok(Err(error)) => panic!("{error}"),
            Err(error) => panic!("the task was not taken: {error}"),
        }
    }

    /// The hidden scheduler of this name; made on first use with these options, which are ignored
    /// when it exists.
    ///
    /// # Errors
    /// When the system refuses a thread or descriptors, or the node is shutting down.
    pub fn hidden(&self, name: &str, options: HiddenOptions) -> std::io::Result<HiddenScheduler> {
        Ok(HiddenScheduler { scheduler: self.inner.hidden(name, options)? })
    }

    /// Cancels the request that this user enqueued last (B59). False: there is no such user, or
    /// its request has ended.
    pub fn cancel(&self, user: UserId) -> bool {
        self.inner.user(user).is_some_and(|u| u.cancel())
    }

    /// How many visible schedulers there are.
    pub fn scheduler_count(&self) -> usize {
        self.inner.visible.len()
    }

    /// What its workers are made of.
    pub fn worker_kind(&self) -> WorkerKind {
        self.inner.builder.kind
    }

    /// Takes a visible scheduler out of service, or puts it back: while it is offline no new users
    /// or requests come to it, and it goes on with those it has (B6). At least one stays online.
    ///
    /// # Panics
    /// When there is no such scheduler, and when it would be the last.
    pub fn set_online(&self, scheduler: usize, online: bool) {
        let all = &self.inner.visible;
        // One at a time, or the last two could be taken offline at once.
        let _alone = self.inner.setting_online.lock().unwrap_or_else(|e| e.into_inner());
        let others =
            all.iter().filter(|s| s.index != scheduler && s.online.load(Ordering::Relaxed));
        assert!(online || others.count() > 0, "the last scheduler online cannot be taken offline");
        all[scheduler].online.store(online, Ordering::Relaxed);
        // If it sleeps it has said that it would take work: it looks again, and says so no more.
        all[scheduler].inbox.send(crate::scheduler::inbox::Letter::LookAgain);
    }

    /// How its I/O back end describes itself, with the reason for each step down.
    pub fn io_text(&self) -> String {
        self.inner.visible[0].driver_text.clone()
    }

    /// Shuts the node down in order (G13): takes no more work, lets what it has taken finish for
    /// `grace`, cancels what has not, reaps every I/O request, ends and joins every worker.
    ///
    /// From the start on, requests from plain threads are refused with
    /// [`EnqueueError::ShuttingDown`]. Requests that are being carried out may still queue others,
    /// and so may the completion of their I/O and the input of served connections, until all is
    /// done or the time is over. What was taken is not abandoned before that.
    ///
    /// # Panics
    /// On a worker: it would wait for itself.
    pub fn shutdown(self, grace: Duration) -> ShutdownReport {
        self.end(grace)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.owner {
            return;
        }
        let (node, grace) = (self.clone(), Duration::from_secs(10));
        if here().is_none() && away().is_none() {
            node.end(grace);
            return;
        }
        // A worker cannot wait for its own end: somebody else does.
        let end = move || {
            node.end(grace);
        };
        if let Err(error) = threads::spawn(std::thread::Builder::new(), "ums-ender".into(), end) {
            let text =
                format_args!("a node dropped by its own worker could not be shut down: {error}");
            report::warn(Kind::NoWorker, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_fails_half_way_takes_down_what_it_had_started_g13() {
        let builder = Node::builder();
        let mut started = Started::default();
        let peers = Arc::new(Peers::new(2));
        for index in 0..2 {
            let options = builder.options(index.to_string(), true, Limit::of_builder(2), None);
            let (scheduler, thread) = scheduler::start(index, options, peers.clone()).unwrap();
            started.schedulers.push(scheduler);
            started.threads.push(thread);
        }
        let left: Vec<_> = started.schedulers.iter().map(Arc::downgrade).collect();
        drop(started);
        assert!(
            left.iter().all(|scheduler| scheduler.upgrade().is_none()),
            "their threads have ended"
        );
    }
}

#[cfg(all(test, target_arch = "x86_64", not(loom)))]
mod interrupted_tests;
