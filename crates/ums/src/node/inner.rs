//! The state that all handles to one node share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::acceptors::Acceptors;
use super::builder::Builder;
use super::kinds;
#[cfg(feature = "monitor")]
use crate::monitor::Watching;
use crate::node::placement::Placement;
use crate::node::slow::SlowReadersOf;
use crate::node::stats_socket::Serving;
use crate::os::limits;
use crate::os::lock::Lock;
use crate::os::threads::ThreadHandle;
use crate::scheduler::request::UserId;
use crate::scheduler::{self, Peers, Scheduler, WorkerKind, WorkerLimit};
use crate::task::UserState;

/// The options of a hidden scheduler. By default it has thread workers, as many as the node's
/// automatic maximum, and none are created in advance.
#[derive(Clone, Copy, Debug, Default)]
pub struct HiddenOptions {
    /// The largest number of workers, of which 0 counts as 1; `None` means the automatic maximum of
    /// [`Builder::max_workers`].
    pub max_workers: Option<usize>,
    /// How many workers are created at the start and kept while idle; at most `max_workers` are.
    pub ready: usize,
    /// The nice value of its threads, 0 (normal priority) to 19 (lowest, as is any larger number),
    /// for background work such as a backup. Threads that its requests start inherit it.
    pub nice: u8,
}

pub(crate) struct NodeInner {
    /// The node's number among the nodes of this process, by which its workers find it.
    pub(super) number: u64,
    pub(super) builder: Builder,
    pub visible: Vec<Arc<Scheduler>>,
    pub(super) hidden: Lock<HashMap<String, Arc<Scheduler>>>,
    pub(super) threads: Lock<Vec<ThreadHandle>>,
    pub(super) setting_online: Lock<()>,
    pub closing: AtomicBool,
    pub users: Lock<HashMap<UserId, Weak<UserState>>>,
    /// Set while the monitor watches this node.
    #[cfg(feature = "monitor")]
    pub(super) watching: Lock<Option<Watching>>,
    /// Set while the statistics socket is served.
    pub stats: Lock<Option<Serving>>,
    /// Set while a trace is recorded until the node shuts down. Called then; waits until the trace
    /// is written.
    pub recording: Lock<Option<Box<dyn FnOnce() + Send>>>,
    /// What the program says of itself, for other processes.
    pub about: Lock<String>,
    /// The peers that workers wait for in writes.
    pub slow: SlowReadersOf,
    /// The servers that accept connections.
    pub acceptors: Acceptors,
}

/// The nodes of this process that have not been dropped, by number. A scheduler refers to its node
/// by number, because the scheduler's module may not use the node's.
static NODES: Lock<BTreeMap<u64, Weak<NodeInner>>> = Lock::new(BTreeMap::new());

impl NodeInner {
    /// Returns the state of a new node, with a number that no other node has had.
    pub(super) fn of(
        builder: Builder,
        visible: Vec<Arc<Scheduler>>,
        threads: Vec<ThreadHandle>,
    ) -> NodeInner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NodeInner {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            builder,
            visible,
            hidden: Lock::default(),
            threads: Lock::new(threads),
            setting_online: Lock::default(),
            closing: AtomicBool::new(false),
            users: Lock::default(),
            #[cfg(feature = "monitor")]
            watching: Lock::default(),
            stats: Lock::default(),
            recording: Lock::default(),
            about: Lock::default(),
            slow: SlowReadersOf::default(),
            acceptors: Acceptors::default(),
        }
    }

    /// Makes it possible to find the node by its number, until the node is dropped.
    pub(super) fn register(self: &Arc<Self>) {
        let mut nodes = NODES.lock();
        nodes.retain(|_, node| node.strong_count() > 0);
        nodes.insert(self.number, Arc::downgrade(self));
    }

    /// Returns the node with this number, unless it has been dropped.
    pub(super) fn with_number(number: u64) -> Option<Arc<NodeInner>> {
        NODES.lock().get(&number)?.upgrade()
    }

    pub fn placement(&self) -> Placement {
        self.builder.placement
    }

    /// Returns the hidden scheduler of this name; creates it on first use.
    pub fn hidden(
        self: &Arc<Self>,
        name: &str,
        options: HiddenOptions,
    ) -> std::io::Result<Arc<Scheduler>> {
        let mut map = self.hidden.lock();
        if let Some(scheduler) = map.get(name) {
            return Ok(scheduler.clone());
        }
        if self.closing.load(Ordering::Acquire) {
            return Err(std::io::Error::other("the node is shutting down"));
        }
        let limit = match options.max_workers {
            Some(most) => WorkerLimit::of_builder(most.max(1)),
            None => self.builder.automatic(WorkerKind::Thread, 1, 1),
        };
        kinds::check_worker_count(limit.hard)?;
        let mut made = self.builder.options(name.to_owned(), false, limit, None);
        made.workers_ready = options.ready.min(limit.hard);
        made.workers_floor = made.workers_ready.max(1);
        made.nice = i32::from(options.nice.min(limits::NICE_MAX));
        let index = self.visible.len() + map.len();
        let peers = Arc::new(Peers::new(index + 1));
        let (scheduler, thread) = scheduler::start(index, made, peers)?;
        let _ = scheduler.node.set(self.number);
        self.threads.lock().push(thread);
        map.insert(name.to_owned(), scheduler.clone());
        // The new scheduler may have work before it has slept for the first time, so the monitor is
        // woken.
        scheduler::alarm::stir();
        Ok(scheduler)
    }

    /// Returns all schedulers: the visible ones, then the hidden ones, in order of number.
    pub fn all(&self) -> Vec<Arc<Scheduler>> {
        let map = self.hidden.lock();
        let mut hidden: Vec<_> = map.values().cloned().collect();
        hidden.sort_by_key(|s| s.index);
        self.visible.iter().cloned().chain(hidden).collect()
    }

    /// Returns the hidden scheduler that runs the errands of fibers; none for other workers. An
    /// errand is a part of its fiber's request, so neither it nor its worker counts on its own.
    pub(super) fn errands(&self) -> Option<Arc<Scheduler>> {
        self.visible.iter().find_map(|scheduler| scheduler.outside.get()?.upgrade())
    }

    /// Returns the state of the user with this number, if there is one.
    pub fn user(&self, id: UserId) -> Option<Arc<UserState>> {
        let users = self.users.lock();
        users.get(&id).and_then(Weak::upgrade)
    }

    /// Returns the visible scheduler with the least load.
    pub(super) fn least_loaded(&self) -> &Arc<Scheduler> {
        &self.visible[Placement::LeastLoaded.for_request(&self.visible, 0)]
    }
}
