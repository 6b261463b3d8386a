//! The safe side: handles that keep what they name alive.
//!
//! Named invariant **Held**: a handle owns one count of its context; see `context.rs` for the
//! thread's.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::context::Context;
use super::list::{self, List};
use super::{TimedOut, WorkerCounts, boot, nanoseconds, own, primary};
use crate::watch::Blocks;
use crate::watch::calls::may_block;

/// Where workers appear that may be executed: new ones, and those that were blocked and are no
/// more. Cloning it gives another handle of the same list.
#[derive(Clone, Debug)]
pub struct CompletionList(pub(super) Arc<List>);

impl CompletionList {
    /// An empty list.
    ///
    /// # Errors
    /// No descriptor for its event.
    pub fn new() -> io::Result<CompletionList> {
        Ok(CompletionList(Arc::new(List::new()?)))
    }

    /// Takes all workers that are there, waiting for at most `timeout` for one; None waits for
    /// ever.
    ///
    /// # Errors
    /// Nothing came within the time.
    pub fn dequeue(&self, timeout: Option<Duration>) -> Result<Items, TimedOut> {
        let chain = super::take_within(&self.0, nanoseconds(timeout));
        if chain.is_null() { Err(TimedOut) } else { Ok(self.items(chain)) }
    }

    /// Takes all workers that are there, perhaps none.
    pub fn poll(&self) -> Items {
        self.items(self.0.take())
    }

    fn items(&self, chain: *const Context) -> Items {
        Items { chain, list: self.clone() }
    }

    /// Its event: signalled when the list stops being empty.
    pub fn event(&self) -> ListEvent<'_> {
        ListEvent(&self.0)
    }

    /// Whether nothing is there at the moment.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many workers were created with this list and have not been taken out of it after their
    /// end.
    pub fn members(&self) -> usize {
        self.0.members.load(Ordering::Relaxed)
    }
}

/// The event of a completion list. As a descriptor it is readable while it is signalled; reading
/// eight bytes resets it. It may be signalled while the list is empty.
#[derive(Debug)]
pub struct ListEvent<'a>(&'a List);

impl ListEvent<'_> {
    /// Waits until it is signalled (true) and resets it, or until the time is over (false).
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let wait = || self.0.wait(nanoseconds(timeout));
        match primary::here() {
            Some(primary) => primary.resting(wait),
            // A worker's wait, perhaps.
            None => may_block(|| Blocks::Unknown, wait),
        }
    }

    /// Resets it. True: it was signalled.
    pub fn reset(&self) -> bool {
        self.0.reset()
    }
}

impl AsFd for ListEvent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event()
    }
}

/// Workers taken from a list, oldest first. Those that are not taken out of it are queued again.
#[derive(Debug)]
#[must_use = "workers that are not taken out are queued again"]
pub struct Items {
    chain: *const Context,
    list: CompletionList,
}

impl Iterator for Items {
    type Item = WorkerContext;

    fn next(&mut self) -> Option<WorkerContext> {
        if self.chain.is_null() {
            return None;
        }
        // SAFETY: Held: what is in a chain is alive (Members, in `list.rs`).
        let context = unsafe { &*self.chain };
        let worker = WorkerContext::of(context);
        self.chain = list::next(context);
        // SAFETY: Held: by the handle made above.
        unsafe { context.release_system_hold() };
        Some(worker)
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        while !self.chain.is_null() {
            // SAFETY: Held: as above.
            let context = unsafe { &*self.chain };
            self.chain = list::next(context);
            context.requeue(&self.list.0);
        }
    }
}

/// A worker thread, as its scheduler sees it. Clones are handles of the same.
#[derive(Clone)]
pub struct WorkerContext(pub(super) Arc<Context>);

impl WorkerContext {
    /// Creates a worker that will run `f`. It is queued to the list, and does not run until a
    /// scheduler executes it. Its thread ends with `f`; a panic in it ends only this worker.
    ///
    /// # Errors
    /// No thread, or no means to watch it, can be had.
    pub fn spawn(
        list: &CompletionList,
        f: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerContext> {
        WorkerContext::builder().spawn(list, f)
    }

    /// Options for a worker.
    pub fn builder() -> WorkerBuilder {
        let own_context = own::by_default();
        WorkerBuilder { stack_size: 256 << 10, user_context: 0, name: None, own_context }
    }

    pub(super) fn of(context: &Context) -> WorkerContext {
        // SAFETY: Held: contexts are only ever made inside an `Arc`, and this one is alive.
        unsafe {
            Arc::increment_strong_count(ptr::from_ref(context));
            WorkerContext(Arc::from_raw(context))
        }
    }

    /// What the application keeps here.
    pub fn user_context(&self) -> usize {
        self.0.user.load(Ordering::Acquire)
    }

    /// Keeps something here.
    pub fn set_user_context(&self, value: usize) {
        self.0.user.store(value, Ordering::Release);
    }

    /// Whether it is suspended.
    pub fn is_suspended(&self) -> bool {
        self.0.is_suspended()
    }

    /// Whether its thread has ended.
    pub fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }

    /// Suspends it once more, and gives how often it was before. If it runs it stops, and its
    /// scheduler is called as if it had blocked.
    pub fn suspend(&self) -> u32 {
        self.0.suspend()
    }

    /// Resumes it once, and gives how often it was suspended before. If it ran when it was
    /// suspended it comes on the completion list; otherwise it can just be executed again.
    pub fn resume(&self) -> u32 {
        self.0.resume()
    }

    /// Holds the context still: as long as the guard lives, claiming it gives `Locked`.
    pub fn lock(&self) -> ContextLock {
        self.0.locks.fetch_add(1, Ordering::SeqCst);
        ContextLock(self.clone())
    }

    /// A number for the application's scheduler to go by; 0 at first.
    pub fn priority(&self) -> i32 {
        self.0.priority.load(Ordering::Relaxed)
    }

    /// Sets that number.
    pub fn set_priority(&self, priority: i32) {
        self.0.priority.store(priority, Ordering::Relaxed);
    }

    /// The processors it may be executed on, one bit for each of the first 64; 0 means all.
    pub fn affinity(&self) -> u64 {
        self.0.affinity.load(Ordering::Relaxed)
    }

    /// Sets them. Schedulers of other processors cannot claim it from then on.
    pub fn set_affinity(&self, cpus: u64) {
        self.0.affinity.store(cpus, Ordering::Relaxed);
    }

    /// Whether it is executed in user mode: see [`WorkerBuilder::own_context`].
    pub fn has_own_context(&self) -> bool {
        self.0.has_own_context.load(Ordering::Relaxed)
    }

    /// How often it was executed, and has yielded in which way. While it runs, the numbers of a
    /// moment ago.
    pub fn counts(&self) -> WorkerCounts {
        self.0.counted()
    }

    /// The kernel's number of its thread.
    pub fn thread_id(&self) -> u32 {
        self.0.tid.load(Ordering::Relaxed)
    }
}

impl PartialEq for WorkerContext {
    fn eq(&self, other: &WorkerContext) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WorkerContext {}

impl std::hash::Hash for WorkerContext {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for WorkerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerContext({})", self.thread_id())
    }
}

/// Options for a worker.
#[derive(Clone, Debug)]
pub struct WorkerBuilder {
    stack_size: usize,
    user_context: usize,
    name: Option<String>,
    own_context: bool,
}

impl WorkerBuilder {
    /// Bytes of its stack; 256 KiB by default.
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> WorkerBuilder {
        self.stack_size = bytes;
        self
    }

    /// What [`WorkerContext::user_context`] gives at first.
    #[must_use]
    pub fn user_context(mut self, value: usize) -> WorkerBuilder {
        self.user_context = value;
        self
    }

    /// The name of its thread, of which the system keeps 15 bytes.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.name = Some(name.into());
        self
    }

    /// Whether it has its own context, and is executed in user mode, on the kernel thread of its
    /// scheduler: then executing it and its yield make no system call. The default is false, or
    /// what `UMS_WINDOWS_WORKERS=context` in the environment says.
    ///
    /// It is a thread all the same, with its own thread-locals, `errno` and identity. What is keyed
    /// to the kernel thread, and calls that block and are not interposed ([`crate::interpose`]),
    /// docs/windows.md is about. x86-64 and glibc only.
    #[must_use]
    pub fn own_context(mut self, yes: bool) -> WorkerBuilder {
        self.own_context = yes;
        self
    }

    /// Creates the worker; see [`WorkerContext::spawn`].
    ///
    /// # Errors
    /// `Unsupported`, with the reason: it cannot have its own context here. No thread, or no means
    /// to watch it, can be had.
    pub fn spawn(
        self,
        list: &CompletionList,
        f: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerContext> {
        let context = Context::new();
        context.user.store(self.user_context, Ordering::Relaxed);
        let work: Work = Box::new(f);
        let arg = Box::into_raw(Box::new(work));
        if let Err(error) =
            boot::start(&context, &list.0, self.own_context, self.stack_size, run_work, arg.cast())
        {
            // SAFETY: Held: the routine was not started, so the box is ours still.
            drop(unsafe { Box::from_raw(arg) });
            return Err(error);
        }
        let worker = WorkerContext(context);
        if let Some(name) = self.name {
            name_thread(worker.thread_id(), &name);
        }
        Ok(worker)
    }
}

type Work = Box<dyn FnOnce() + Send>;

extern "C-unwind" fn run_work(work: *mut c_void) -> *mut c_void {
    // SAFETY: Held: `spawn` made this box for us alone.
    let work = *unsafe { Box::from_raw(work.cast::<Work>()) };
    // The panic has been told by the hook; its payload is nobody's.
    if let Err(payload) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        std::mem::forget(payload);
    }
    ptr::null_mut()
}

fn name_thread(tid: u32, name: &str) {
    let fits = |n: &mut usize, c: char| {
        *n += c.len_utf8();
        (*n <= 15).then_some(c)
    };
    let short: String = name.chars().scan(0, fits).collect();
    // The name is for people; without it nothing is lost.
    let _ = std::fs::write(format!("/proc/self/task/{tid}/comm"), short.as_bytes());
}

/// Holds a context still until it is dropped.
#[derive(Debug)]
pub struct ContextLock(WorkerContext);

impl Drop for ContextLock {
    fn drop(&mut self) {
        self.0.0.locks.fetch_sub(1, Ordering::SeqCst);
    }
}
