//! The harness of the behaviour tests. Every body runs with each kind of worker, on 1, 2 and 4
//! schedulers, and each run ends with an orderly shutdown that leaves nothing behind.
//!
//! ```text
//! both_kinds(|node, kind, n| ...)                     every kind, with 1, 2 and 4 schedulers
//! both_kinds_with(|b| b.max_workers(4), |node, ..|)   the same, with options
//! ```
//!
//! *Nothing left behind* means: the shutdown report is empty, no thread of the node is alive, and
//! as many descriptors are open as before. The tests of one program run one at a time, so that no
//! other test changes these counts or uses the processors. A watchdog ends a test that hangs, and
//! prints its name.
//!
//! Named invariant **Contract**: only closures of these tests run on fibers here, and they keep no
//! thread-scoped state across a wait or a yield.

#![allow(unsafe_code, dead_code)] // Each test file uses its own part of the harness.

pub mod dice;
pub mod seccomp;
#[cfg(feature = "monitor")]
pub mod watching;

use std::io::Write;
use std::process::{Command, Output};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use ums::lock::Lock;
use ums::node::{IoChoice, Placement, ShutdownReport};
use ums::task::JoinError;
use ums::user::UserLock;
use ums::{BuildError, Builder, JoinHandle, Node, WorkerKind};

/// Returns the worker kinds that this system supports. Every test runs with each of them.
pub fn kinds() -> Vec<WorkerKind> {
    let all = [WorkerKind::Thread, WorkerKind::Fiber, WorkerKind::OwnContext];
    all.into_iter().filter(|kind| can_be_had(*kind)).collect()
}

/// Returns the kind with this `Debug` text. A test passes the text to a child process.
pub fn kind_named(name: impl AsRef<str>) -> WorkerKind {
    let name = name.as_ref();
    kinds().into_iter().find(|kind| format!("{kind:?}") == name).expect("a kind")
}
/// The numbers of schedulers: 1, 2 and N.
pub const COUNTS: [usize; 3] = [1, 2, 4];
/// How long a condition may take to become true. Far more than it needs on a slow computer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The time after which a run counts as hung.
const HUNG: Duration = Duration::from_secs(150);

/// Returns how long a stress test runs: `UMS_STRESS_SECS` in seconds if it is set, otherwise the
/// test's own number.
pub fn stress_time(seconds: f64) -> Duration {
    let said = std::env::var("UMS_STRESS_SECS").map(|text| text.parse().expect("a number"));
    Duration::from_secs_f64(said.unwrap_or(seconds))
}

/// Runs the body with each kind of worker on 1, 2 and 4 schedulers.
pub fn both_kinds(body: impl Fn(&Node, WorkerKind, usize)) {
    both_kinds_with(|b| b, body);
}

/// Like [`both_kinds`], with options of the builder.
pub fn both_kinds_with(
    options: impl Fn(Builder) -> Builder,
    body: impl Fn(&Node, WorkerKind, usize),
) {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(kind, |b| options(b.schedulers(n)), |node| body(node, kind, n));
        }
    }
}

/// Runs a body that ends the node itself, and checks that nothing of the node is left.
pub fn each_end(options: impl Fn(Builder) -> Builder, body: impl Fn(Node, WorkerKind, usize)) {
    for kind in kinds() {
        for n in COUNTS {
            let _turn = turn();
            let _watch = Watchdog::start(format!("{kind:?} workers on {n} schedulers"));
            let descriptors = open_descriptors();
            body(build(kind, |b| options(b.schedulers(n))), kind, n);
            eventually("every thread of the node has ended", || node_threads().is_empty());
            eventually("every descriptor is closed", || open_descriptors() <= descriptors);
        }
    }
}

/// Like [`both_kinds_with`], for behaviours inside one scheduler: a request stays where it was
/// spawned, because no scheduler takes requests from another. The body uses scheduler 0, or each
/// scheduler in turn.
pub fn each_alone(options: impl Fn(Builder) -> Builder, body: impl Fn(&Node, WorkerKind, usize)) {
    both_kinds_with(|b| options(b.placement(Placement::AlwaysPreferred)), body);
}

/// Runs `f` on a scheduler and waits for its result. To be called by a plain thread.
pub fn on<T: Send + 'static>(
    node: &Node,
    scheduler: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> T {
    match start(node, scheduler, f).join() {
        Ok(value) => value,
        Err(JoinError::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(error) => panic!("{error}"),
    }
}

/// Starts `f` on a scheduler. To be called by a plain thread.
pub fn start<T: Send + 'static>(
    node: &Node,
    scheduler: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    node.spawn_on(scheduler, f).expect("the node takes work")
}

/// Runs the body on one node, and checks that nothing of the node is left. It first waits until no
/// other test runs.
pub fn one_kind(
    kind: WorkerKind,
    options: impl FnOnce(Builder) -> Builder,
    body: impl FnOnce(&Node),
) {
    let _turn = turn();
    let _watch = Watchdog::start(format!("{kind:?} workers"));
    let descriptors = open_descriptors();
    let threads = node_threads().len();
    let node = build(kind, options);
    body(&node);
    let report = node.shutdown(Duration::from_secs(30));
    assert_eq!(report, ShutdownReport::default(), "the shutdown found {kind:?} workers in trouble");
    eventually("every thread of the node has ended", || node_threads().len() <= threads);
    eventually("every descriptor of the node is closed", || open_descriptors() <= descriptors);
}

/// Returns the I/O back ends that a kind of worker can have. A ring belongs to one thread, so
/// thread workers cannot have one. Where io_uring is denied, no kind can.
pub fn back_ends(kind: WorkerKind) -> Vec<IoChoice> {
    static RING: OnceLock<bool> = OnceLock::new();
    let mut list = vec![IoChoice::Epoll, IoChoice::Sync];
    let has_ring = || {
        let _turn = turn();
        let node = build(kind, |b| b.schedulers(1));
        node.io_text().starts_with("io_uring")
    };
    if kind != WorkerKind::Thread && *RING.get_or_init(has_ring) {
        list.push(IoChoice::Uring);
    }
    list
}

/// Returns whether this system supports workers of this kind.
pub fn can_be_had(kind: WorkerKind) -> bool {
    kind != WorkerKind::OwnContext || ums::probe::own_contexts_are_refused().is_none()
}

/// Builds a node of this kind.
pub fn build(kind: WorkerKind, options: impl FnOnce(Builder) -> Builder) -> Node {
    try_build(kind, options).expect("a node can be built here")
}

/// Like [`build`], for a node that may be refused.
pub fn try_build(
    kind: WorkerKind,
    options: impl FnOnce(Builder) -> Builder,
) -> Result<Node, BuildError> {
    let builder = options(Node::builder());
    let builder = match kind {
        // SAFETY: Contract.
        WorkerKind::Fiber => unsafe { builder.fiber_workers() },
        WorkerKind::OwnContext => builder.own_context_workers(),
        WorkerKind::Thread => builder,
    };
    builder.build()
}

/// Waits until the condition holds. Meanwhile a worker yields, and a plain thread sleeps.
///
/// # Panics
/// If the condition does not hold after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "waited too long for: {what}");
        if ums::worker::is_worker() {
            ums::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Shuts the node down, and checks that no request had to be cancelled or was left running.
pub fn end(node: Node) {
    let report = node.shutdown(Duration::from_secs(20));
    assert_eq!((report.cancelled, report.left), (0, 0));
}

/// Returns the kernel's number of the calling thread.
pub fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Reads one byte, by a system call that no library interposes.
pub fn bare_read(pipe: &std::io::PipeReader) -> u8 {
    let mut byte = [0];
    assert_eq!(rustix::io::read(pipe, &mut byte), Ok(1));
    byte[0]
}

/// A list of events, in the order in which they were recorded. A clone refers to the same list.
pub struct Log<T>(Arc<Lock<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Log<T> {
        Log(self.0.clone())
    }
}

impl<T> Default for Log<T> {
    fn default() -> Log<T> {
        Log(Arc::default())
    }
}

impl<T: Clone> Log<T> {
    /// Records one event.
    pub fn push(&self, what: T) {
        self.0.lock().push(what);
    }

    /// Returns the events recorded so far.
    pub fn all(&self) -> Vec<T> {
        self.0.lock().clone()
    }

    /// Returns the number of events recorded so far.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// A gate at which workers wait, in order: a lock that the test itself owns at first. Each worker
/// that passes lets the next one through.
#[derive(Clone)]
pub struct Gate {
    lock: Arc<UserLock>,
    next: Arc<AtomicU64>,
}

impl Gate {
    const KEEPER: u64 = u64::MAX;

    /// Returns a shut gate.
    pub fn shut() -> Gate {
        let lock = UserLock::new();
        lock.acquire(Gate::KEEPER, None).expect("a new lock is free");
        Gate { lock: Arc::new(lock), next: Arc::new(AtomicU64::new(1 << 32)) }
    }

    /// Waits until it is open.
    pub fn pass(&self) {
        let me = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock.acquire(me, None).expect("a wait at a gate is not cancelled");
        self.lock.release(me);
    }

    /// Opens it. The first waiter becomes runnable.
    pub fn open(&self) {
        self.lock.release(Gate::KEEPER);
    }

    /// Shuts it again. To be called when no worker is passing.
    pub fn shut_again(&self) {
        self.lock.acquire(Gate::KEEPER, None).expect("a plain thread is not cancelled");
    }

    /// Returns how many workers wait at it.
    pub fn waiters(&self) -> usize {
        self.lock.waiters()
    }
}

/// A request that computes on scheduler 0, without yielding, until it is told to stop.
pub struct Computing {
    enough: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Computing {
    /// Starts the request, and returns when it computes.
    pub fn on(node: &Node) -> Computing {
        let [enough, computes] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let (last, tell) = (enough.clone(), computes.clone());
        let task = node.spawn_on(0, move || {
            tell.store(true, SeqCst);
            while !last.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        eventually("the other computes", || computes.load(SeqCst));
        Computing { enough, task: task.expect("it is enqueued") }
    }

    pub fn end(self) {
        self.enough.store(true, SeqCst);
        self.task.join().expect("it does not panic");
    }
}

/// Keeps the processor for this long without yielding.
pub fn spin(span: Duration) {
    let began = Instant::now();
    while began.elapsed() < span {
        std::hint::spin_loop();
    }
}

/// Returns a duration of this many milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The kernel's number of the calling thread.
pub fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Returns the contents of a file in `/proc` about a thread of this process, or an empty text if
/// the thread has ended.
pub fn about_thread(thread: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}")).unwrap_or_default()
}

/// Returns a number from `/proc/self/task/<thread>/status`.
pub fn thread_status(thread: u32, field: &str) -> u64 {
    let status = about_thread(thread, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn thread_numbers() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc/self/task").expect("/proc is there");
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Returns the numbers of the monitor's threads, of which there is at most one. A thread sets its
/// name only when it first runs, so a new one may be missing.
pub fn monitor_threads() -> Vec<u32> {
    thread_numbers().filter(|n| about_thread(*n, "comm") == "ums-monitor\n").collect()
}

/// Returns the number of voluntary context switches of the monitor's thread, which must exist.
pub fn switches_of_the_monitor() -> u64 {
    eventually("the monitor has its name", || !monitor_threads().is_empty());
    let all = monitor_threads();
    assert_eq!(all.len(), 1, "one for the whole process");
    thread_status(all[0], "voluntary_ctxt_switches")
}

/// Returns the numbers of all threads of nodes in this process.
pub fn node_thread_numbers() -> Vec<u32> {
    // The file helpers, the watchdog and the monitor belong to the process, not to a node.
    let of_the_process = ["ums-file-", "ums-call-", "ums-watchdog", "ums-monitor"];
    let helps = |name: &str| of_the_process.iter().any(|begin| name.starts_with(begin));
    let ours = |name: String| name.starts_with("ums-") && !helps(&name);
    thread_numbers().filter(|n| ours(about_thread(*n, "comm"))).collect()
}

/// Waits until the threads of nodes, except these, sleep. A thread that gave its turn away may
/// still be on its way there.
pub fn others_sleep(these: &[u32]) {
    let sleeps = |t: &u32| these.contains(t) || about_thread(*t, "stat").contains(") S ");
    eventually("the others sleep", || node_thread_numbers().iter().all(sleeps));
}

/// Returns the names of all threads of nodes in this process.
pub fn node_threads() -> Vec<String> {
    let names = node_thread_numbers().into_iter().map(|n| about_thread(n, "comm"));
    names.filter(|name| !name.is_empty()).map(|name| name.trim().to_owned()).collect()
}

/// Returns how many descriptors this process has open.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
}

static TURN: Lock<()> = Lock::new(());

/// Waits until no other test of this program runs. For tests that build their nodes themselves.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock()
}

/// Aborts the process, with a message, unless it is dropped in time. Without it, a hung test would
/// print nothing.
pub struct Watchdog(#[allow(dead_code)] std::sync::mpsc::Sender<()>);

impl Watchdog {
    /// Starts the watchdog.
    pub fn start(what: String) -> Watchdog {
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let (alive, watched) = channel::<()>();
        std::thread::spawn(move || {
            if watched.recv_timeout(HUNG) == Err(RecvTimeoutError::Timeout) {
                // `eprintln` is not used, because the hung test may hold its lock.
                let _ = writeln!(std::io::stderr(), "{name} hangs ({what})");
                std::process::abort();
            }
        });
        Watchdog(alive)
    }
}

/// Returns the errand of a child process that [`run_child`] started, or `None` in the test itself.
pub fn child_errand() -> Option<String> {
    std::env::var(CHILD).ok()
}

const CHILD: &str = "UMS_TEST_CHILD";

/// Runs this test again in a process of its own, where [`child_errand`] returns `errand`. For a
/// test that would end or change the whole process.
pub fn run_child(test: &str, errand: &str) -> Output {
    child(test, errand).output().expect("a test can run itself")
}

/// Like [`run_child`], but returns the command without starting it.
pub fn child(test: &str, errand: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its file"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, errand);
    command
}
