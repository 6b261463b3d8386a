//! The safe interface to lists and workers: handles that keep a list or a context alive.
//!
//! Named invariant **Held**: a handle owns one count of its context; `context.rs` describes the
//! count that the worker's thread owns.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::context::{Context, ContextList, WorkerCounts};
use super::error::TimedOut;
use super::list;
use super::primary::{take_within, waiting};
use super::{boot, own};

/// A list on which workers appear that may be executed: new workers, and workers whose block has
/// ended. A clone is another handle to the same list.
#[derive(Clone, Debug)]
pub struct CompletionList(pub(super) Arc<ContextList>);

impl CompletionList {
    /// Creates an empty list.
    ///
    /// # Errors
    /// The system's error, if it has no file descriptor left for the list's event.
    pub fn new() -> io::Result<CompletionList> {
        Ok(CompletionList(Arc::new(ContextList::new()?)))
    }

    /// Takes all workers that are on the list. If there are none, waits for one for at most
    /// `timeout`; `None` waits without a limit.
    ///
    /// # Errors
    /// [`TimedOut`] if no worker appeared within the time.
    pub fn dequeue(&self, timeout: Option<Duration>) -> Result<Items, TimedOut> {
        let chain = take_within(&self.0, nanoseconds(timeout));
        if chain.is_null() { Err(TimedOut) } else { Ok(self.items(chain)) }
    }

    /// Takes all workers that are on the list, without waiting. There may be none.
    pub fn poll(&self) -> Items {
        self.items(self.0.take())
    }

    fn items(&self, chain: *const Context) -> Items {
        Items { chain, list: self.clone() }
    }

    /// Returns its event, which is signalled when the list stops being empty.
    pub fn event(&self) -> ListEvent<'_> {
        ListEvent(&self.0)
    }

    /// Returns true if no worker is on the list at the moment.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many workers were created with this list and have not been taken from it after
    /// their end.
    pub fn members(&self) -> usize {
        self.0.members.load(Ordering::Relaxed)
    }
}

/// The event of a completion list. As a descriptor it is readable while it is signalled, and
/// reading eight bytes resets it. It may be signalled while the list is empty.
#[derive(Debug)]
pub struct ListEvent<'a>(&'a ContextList);

impl ListEvent<'_> {
    /// Waits until the event is signalled and resets it. Returns false if the time has passed
    /// first.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        waiting(|| self.0.wait(nanoseconds(timeout)))
    }

    /// Resets the event. Returns true if the event was signalled.
    pub fn reset(&self) -> bool {
        self.0.reset()
    }
}

impl AsFd for ListEvent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event()
    }
}

/// Workers taken from a list, the oldest first. When this is dropped, the remaining workers are
/// queued again.
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
        // SAFETY: Held: an item in a chain is alive (see `list.rs`).
        let context = unsafe { &*self.chain };
        let worker = WorkerContext::of(context);
        self.chain = list::next(context);
        // SAFETY: Held: the handle made above has a hold of its own.
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

/// A worker thread, as its scheduler uses it. A clone is another handle to the same worker.
#[derive(Clone)]
pub struct WorkerContext(pub(super) Arc<Context>);

impl WorkerContext {
    /// Creates a worker that will run `f`. The worker is queued to the list, and does not run until
    /// a scheduler executes it. Its thread ends with `f`; a panic in `f` ends only this worker.
    ///
    /// # Errors
    /// If the thread cannot be created, or cannot be watched.
    pub fn spawn(
        list: &CompletionList,
        f: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerContext> {
        WorkerContext::builder().spawn(list, f)
    }

    /// Returns the options for a new worker.
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder { stack_size: 256 << 10, user_context: 0, name: None, own_context: None }
    }

    pub(super) fn of(context: &Context) -> WorkerContext {
        // SAFETY: Held: contexts are only ever made inside an `Arc`, and this one is alive.
        unsafe {
            Arc::increment_strong_count(ptr::from_ref(context));
            WorkerContext(Arc::from_raw(context))
        }
    }

    /// Returns the value that the application stored with
    /// [`set_user_context`](Self::set_user_context).
    pub fn user_context(&self) -> usize {
        self.0.user.load(Ordering::Acquire)
    }

    /// Stores a value, which the application chooses.
    pub fn set_user_context(&self, value: usize) {
        self.0.user.store(value, Ordering::Release);
    }

    /// Returns true if it is suspended.
    pub fn is_suspended(&self) -> bool {
        self.0.is_suspended()
    }

    /// Returns true if the worker's thread has ended.
    pub fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }

    /// Increments the worker's count of suspensions, and returns the previous count. If the worker
    /// runs, it stops, and its scheduler is called as if the worker had blocked.
    pub fn suspend(&self) -> u32 {
        self.0.suspend()
    }

    /// Decrements the worker's count of suspensions, and returns the previous count. If the worker
    /// was running when it was suspended, the last resume puts it on the completion list. Otherwise
    /// it can be executed again.
    pub fn resume(&self) -> u32 {
        self.0.resume()
    }

    /// Locks the context: while the guard exists, claiming the worker fails with `Locked`.
    pub fn lock(&self) -> ContextLock {
        self.0.locks.fetch_add(1, Ordering::SeqCst);
        ContextLock(self.clone())
    }

    /// Returns the worker's priority, 0 at first. Only the application's scheduler gives it a
    /// meaning.
    pub fn priority(&self) -> i32 {
        self.0.priority.load(Ordering::Relaxed)
    }

    /// Sets the priority.
    pub fn set_priority(&self, priority: i32) {
        self.0.priority.store(priority, Ordering::Relaxed);
    }

    /// Returns the processors it may be executed on, one bit for each of the first 64; 0 means all.
    pub fn affinity(&self) -> u64 {
        self.0.affinity.load(Ordering::Relaxed)
    }

    /// Sets the processors. From now on, schedulers of other processors cannot claim the worker.
    pub fn set_affinity(&self, cpus: u64) {
        self.0.affinity.store(cpus, Ordering::Relaxed);
    }

    /// Returns true if the worker is executed in user mode; see [`WorkerBuilder::own_context`].
    pub fn has_own_context(&self) -> bool {
        self.0.has_own_context.load(Ordering::Relaxed)
    }

    /// Returns how often it was executed, and how often it has yielded in each way. While it runs,
    /// the numbers may be slightly out of date.
    pub fn counts(&self) -> WorkerCounts {
        self.0.counted()
    }

    /// Returns the kernel thread id of its thread.
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

/// Options for a new worker.
#[derive(Clone, Debug)]
pub struct WorkerBuilder {
    stack_size: usize,
    user_context: usize,
    name: Option<String>,
    own_context: Option<bool>,
}

impl WorkerBuilder {
    /// Sets the bytes of its stack; 256 KiB by default.
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> WorkerBuilder {
        self.stack_size = bytes;
        self
    }

    /// Sets what [`WorkerContext::user_context`] returns at first.
    #[must_use]
    pub fn user_context(mut self, value: usize) -> WorkerBuilder {
        self.user_context = value;
        self
    }

    /// Sets the name of its thread, of which the kernel keeps 15 bytes.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.name = Some(name.into());
        self
    }

    /// Sets whether the worker has its own context. Then it is executed in user mode, on the kernel
    /// thread of its scheduler: executing it and its yields make no system call. The default is
    /// false, unless `UMS_WINDOWS_WORKERS=context` is in the environment.
    ///
    /// The worker is still a thread, with its own thread-locals, `errno` and identity. Two things
    /// differ: state that the kernel keeps for each kernel thread, and blocking calls that are not
    /// interposed ([`crate::interpose`]). The page `docs/windows.md` in the repository explains
    /// them. Available on x86-64 with glibc only.
    #[must_use]
    pub fn own_context(mut self, yes: bool) -> WorkerBuilder {
        self.own_context = Some(yes);
        self
    }

    /// Creates the worker; see [`WorkerContext::spawn`].
    ///
    /// # Errors
    /// `Unsupported`, with the reason, if the worker cannot have its own context here.
    /// `InvalidInput` if `UMS_WINDOWS_WORKERS` or `UMS_WATCH` in the environment has a value that
    /// it cannot have. Another error if the thread cannot be created or cannot be watched.
    pub fn spawn(
        self,
        list: &CompletionList,
        f: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerContext> {
        let own = match self.own_context {
            Some(own) => own,
            None => own::by_default()?.unwrap_or(false),
        };
        let context = Context::new();
        context.user.store(self.user_context, Ordering::Relaxed);
        let work: Work = Box::new(f);
        let arg = Box::into_raw(Box::new(work));
        if let Err(error) =
            boot::start(&context, &list.0, own, self.stack_size, run_work, arg.cast())
        {
            // SAFETY: Held: the routine was not started, so this function still owns the box.
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
    // SAFETY: Held: `spawn` made this box, and passed it to this function only.
    let work = *unsafe { Box::from_raw(work.cast::<Work>()) };
    // The panic hook has reported the panic. The payload is forgotten, because no code reads it.
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
    // The name is for diagnostics only: failing to set it has no other effect.
    let _ = std::fs::write(format!("/proc/self/task/{tid}/comm"), short.as_bytes());
}

/// Keeps a context locked until it is dropped.
#[derive(Debug)]
pub struct ContextLock(WorkerContext);

impl Drop for ContextLock {
    fn drop(&mut self) {
        self.0.0.locks.fetch_sub(1, Ordering::SeqCst);
    }
}

fn nanoseconds(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reset_says_whether_the_event_was_signalled_w9() {
        let list = CompletionList::new().unwrap();
        assert!(!list.event().reset());
        rustix::io::write(list.event(), &1_u64.to_ne_bytes()).unwrap();
        assert!(list.event().reset());
        assert!(!list.event().reset(), "the first reset has reset it");
    }
}
