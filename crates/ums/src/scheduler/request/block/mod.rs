//! The memory of a work request: one block with its state, its closure, and later its result.
//!
//! Three types refer to a block, and the word in its state counts the references. The last one that
//! is dropped frees it.
//!
//! * A [`WorkRequest`] is the right to carry the request out, or to abandon it. Each request has
//!   one.
//! * A [`ResultOf`] is the right to take the result, and to wait for it. Each request has one.
//! * A [`RequestRef`] reaches only the state, for cancellation. There may be many.
//!
//! | field | which type may touch it |
//! |---|---|
//! | `closure` | the `WorkRequest` |
//! | `result` | the `WorkRequest` until the request is Done, then the `ResultOf` |
//! | `joiner` | the `ResultOf`; once the request has ended and was joined, the `WorkRequest` |
//!
//! A queued request may be in a [`RequestSlot`], from which one of several threads takes it.
//!
//! This is how named invariant **Handed Over** is kept: each of the two rights is one value that
//! cannot be copied, and the word in the state passes a field from one to the other.
//!
//! `memory.rs` has the memory of blocks. This file does not queue requests, and it wakes no waiter:
//! it returns the claimed wait of the joiner. If a future awaits the request, it calls the future's
//! waker.

#![allow(unsafe_code)]

mod memory;

use std::alloc::Layout;
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, needs_drop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, from_ref, null_mut};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use self::memory::Memory;
pub(crate) use self::memory::SpareBlocks;
use super::state::{JoinedRequest, RequestState, drop_ref, end_and_drop};
use crate::os::atomic::AtomicPtr;
use crate::os::entry::Inside;
use crate::os::panics::contain;
use crate::wait::{Claimed, Outcome, Ticket, Waiter};

/// Why a task that has ended has no result.
pub(crate) enum NoResult {
    Panicked(Box<dyn Any + Send + 'static>),
    NeverRan,
}

pub(crate) type TaskResult<T> = Result<T, NoResult>;

/// What a request's end resumes.
enum Joiner {
    /// A waiter in its wait.
    Waiter(Ticket),
    /// A future, by its waker.
    Future(Waker),
}

/// The first part of every block, which begins with its state.
#[repr(C)]
struct Header {
    state: RequestState,
    job: &'static Job,
    joiner: UnsafeCell<Option<Joiner>>,
}

impl Header {
    /// Returns a number that stands for the code of the closure; see [`WorkRequest::code`].
    #[inline]
    fn code(&self) -> usize {
        from_ref(self.job).addr()
    }
}

/// The first part of the blocks of all requests with results of this type.
#[repr(C)]
struct Front<T> {
    header: Header,
    result: UnsafeCell<Option<TaskResult<T>>>,
}

/// A block. Its front is its first field, and its header the first field of that, so that a pointer
/// to any block is one to a header.
#[repr(C)]
struct Block<F, T> {
    front: Front<T>,
    closure: UnsafeCell<Option<F>>,
}

/// What depends on the types of a block's closure and result. Each function is called with the
/// address of a block of these types.
struct Job {
    /// Runs the closure, if it is still there, and stores its result.
    ///
    /// # Safety
    /// Contract: the caller has the request's only [`WorkRequest`].
    run: unsafe fn(NonNull<Header>),
    /// Drops the closure, if it is still there, and stores that it never ran.
    ///
    /// # Safety
    /// Contract: as for `run`.
    abandon: unsafe fn(NonNull<Header>),
    /// Drops the block, and keeps or frees its memory.
    ///
    /// # Safety
    /// Contract: the caller has the last reference, and does not use it again.
    free: unsafe fn(NonNull<Header>),
}

impl<F, T> Block<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    const JOB: Job = Job { run: Self::run, abandon: Self::abandon, free: Self::free };

    /// # Safety
    /// Contract: that of [`Job::run`].
    unsafe fn run(at: NonNull<Header>) {
        // SAFETY: Held: the caller's reference is counted, so the block is alive.
        let block = unsafe { at.cast::<Self>().as_ref() };
        // SAFETY: Handed Over: the caller has the `WorkRequest`, which may touch the closure.
        let Some(f) = (unsafe { (*block.closure.get()).take() }) else { return };
        let result = catch_unwind(AssertUnwindSafe(f)).map_err(NoResult::Panicked);
        // SAFETY: Contract: the caller's. The closure was there, so the request has not ended.
        unsafe { block.store(result) }
    }

    /// # Safety
    /// Contract: that of [`Job::abandon`].
    unsafe fn abandon(at: NonNull<Header>) {
        // SAFETY: Held: the caller's reference is counted, so the block is alive.
        let block = unsafe { at.cast::<Self>().as_ref() };
        // SAFETY: Handed Over: the caller has the `WorkRequest`, which may touch the closure.
        let Some(f) = (unsafe { (*block.closure.get()).take() }) else { return };
        // The closure's destructor is code of the application: a panic in it is contained here.
        contain(|| drop(f));
        // SAFETY: Contract: the caller's. The closure was there, so the request has not ended.
        unsafe { block.store(Err(NoResult::NeverRan)) }
    }

    /// # Safety
    /// Contract: that of [`Job::free`].
    unsafe fn free(at: NonNull<Header>) {
        // SAFETY: Own Memory: this was the last reference.
        let block = unsafe { at.cast::<Self>().as_mut() };
        if block.owns_something() {
            // SAFETY: Contract: that of this function.
            return unsafe { Self::free_with_contents(at) };
        }
        Memory::of(at.cast(), Layout::new::<Self>()).give_back();
    }

    /// Does the same for a block with something to drop.
    ///
    /// # Safety
    /// Contract: that of [`Job::free`].
    #[cold]
    #[inline(never)]
    unsafe fn free_with_contents(at: NonNull<Header>) {
        let memory = Memory::of(at.cast(), Layout::new::<Self>());
        // SAFETY: Own Memory: this was the last reference. Dropping `memory` frees the block, also
        // if a destructor panics.
        unsafe { at.cast::<Self>().drop_in_place() };
        memory.give_back();
    }

    /// Returns whether the block has something with a destructor. The closure and the result of a
    /// request that has ended were mostly taken out, or have none.
    #[inline]
    fn owns_something(&mut self) -> bool {
        let Block { front: Front { header, result }, closure } = self;
        let Header { state, job: _, joiner } = header;
        let owns_result = match result.get_mut() {
            Some(Ok(_)) => needs_drop::<T>(),
            Some(Err(_)) => true,
            None => false,
        };
        let owns_closure = needs_drop::<F>() && closure.get_mut().is_some();
        state.owns_something() || joiner.get_mut().is_some() || owns_result || owns_closure
    }

    /// Stores the result.
    ///
    /// # Safety
    /// Contract: as for [`Job::run`], and the request has not ended.
    #[inline]
    unsafe fn store(&self, result: TaskResult<T>) {
        // SAFETY: Handed Over: the request is not Done, so the `WorkRequest` may touch this field.
        unsafe { *self.front.result.get() = Some(result) };
    }
}

/// Wakes a future. Its waker is code of the application: a panic in it is contained here.
#[cold]
fn wake(waker: Waker) -> Option<Claimed> {
    contain(|| waker.wake());
    None
}

/// The first part of a block: a header, or a front, which begins with one.
trait Part {}
impl Part for Header {}
impl<T> Part for Front<T> {}

/// A counted reference to a block, by one of its first parts.
struct Counted<P: Part>(NonNull<P>);

// SAFETY: Held, Handed Over: a counted reference keeps the block. One thread at a time touches each
// field behind an `UnsafeCell`, as the module's text says, and the contents may be sent between
// threads: `make`, the only function that makes blocks, requires that.
unsafe impl<P: Part> Send for Counted<P> {}
// SAFETY: Held, Handed Over: as above.
unsafe impl<P: Part> Sync for Counted<P> {}

impl<P: Part> Counted<P> {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: Held: this reference is counted, so the block is alive. Plain Data: every part
        // begins with a header.
        unsafe { self.0.cast::<Header>().as_ref() }
    }

    /// Returns the block's state.
    #[inline]
    fn state(&self) -> &RequestState {
        &self.header().state
    }

    /// Makes another reference to the same block.
    fn another(&self) -> Counted<Header> {
        self.state().add_ref();
        Counted(self.0.cast())
    }
}

impl<T> Counted<Front<T>> {
    #[inline]
    fn result(&self) -> &UnsafeCell<Option<TaskResult<T>>> {
        // SAFETY: Held: this reference is counted, so the block is alive.
        unsafe { &self.0.as_ref().result }
    }
}

impl<P: Part> Drop for Counted<P> {
    #[inline]
    fn drop(&mut self) {
        if !drop_ref(self.state().word()) {
            // SAFETY: Contract: this was the last reference.
            unsafe { (self.header().job.free)(self.0.cast()) };
        }
    }
}

/// Makes a request: puts a closure and its state into a block.
#[inline(always)]
pub(crate) fn make<F, T>(state: RequestState, f: F) -> (WorkRequest, ResultOf<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    make_by(None, || state, f)
}

/// Does the same, and makes the state when there is a place for it. `inside` is as for
/// [`Memory::take`].
#[inline(always)]
pub(crate) fn make_by<F, T>(
    inside: Option<&Inside>,
    state: impl FnOnce() -> RequestState,
    f: F,
) -> (WorkRequest, ResultOf<T>)
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let at = Memory::take(Layout::new::<Block<F, T>>(), inside).cast::<Block<F, T>>();
    let (job, joiner) = (&Block::<F, T>::JOB, UnsafeCell::new(None));
    let header = Header { state: state(), job, joiner };
    let front = Front { header, result: UnsafeCell::new(None) };
    // SAFETY: Own Memory: the memory was just taken, for a value of this type. A new state counts
    // two references, which are made here.
    unsafe { at.write(Block { front, closure: UnsafeCell::new(Some(f)) }) };
    (WorkRequest(Counted(at.cast())), ResultOf(Counted(at.cast())))
}

/// The right to carry a request out, once.
pub(crate) struct WorkRequest(Counted<Header>);

impl WorkRequest {
    /// Returns the request's state.
    #[inline]
    pub fn state(&self) -> &RequestState {
        self.0.state()
    }

    /// Returns a number that stands for the code of the closure and is not 0. Closures of the same
    /// code may have different numbers, but few.
    #[inline]
    pub fn code(&self) -> usize {
        self.0.header().code()
    }

    /// Drops this reference, unless it is the last one. The last one is returned, because dropping
    /// it runs destructors of the application.
    #[inline]
    pub fn drop_unless_last(self) -> Option<WorkRequest> {
        if drop_ref(self.state().word()) {
            std::mem::forget(self);
            return None;
        }
        Some(self)
    }

    /// Runs the closure. A panic in it becomes the result. The caller then ends the request. A
    /// second call does nothing.
    #[inline]
    pub fn run(&mut self) {
        // SAFETY: Contract: this is the only `WorkRequest`, borrowed mutably.
        unsafe { (self.0.header().job.run)(self.0.0.cast()) }
    }

    /// Ends the request, after `run`. Returns the claimed wait for its end, if a waiter waits; the
    /// caller makes that waiter ready. The caller is where it may use its scheduler.
    #[inline(always)]
    pub fn end(&mut self) -> Option<Claimed> {
        if !self.state().finish() {
            return None;
        }
        // SAFETY: Handed Over: the request has ended and was joined, so the `WorkRequest`, borrowed
        // mutably, may touch the joiner.
        match unsafe { (*self.0.header().joiner.get()).take() }? {
            Joiner::Waiter(ticket) => ticket.claim(Outcome::Granted),
            Joiner::Future(waker) => wake(waker),
        }
    }

    /// Ends the request without carrying it out: its result says that it never ran. Returns the
    /// claimed wait for its end, like `end`.
    pub fn abandon(mut self) -> Option<Claimed> {
        self.give_up();
        self.end()
    }

    /// Does the first half: the caller then ends the request.
    fn give_up(&mut self) {
        // SAFETY: Contract: this is the only `WorkRequest`, borrowed mutably.
        unsafe { (self.0.header().job.abandon)(self.0.0.cast()) }
    }
}

/// A request that a worker carries out. The worker calls `left` in the end; otherwise the reference
/// stays.
pub(crate) struct CarriedRequest {
    request: ManuallyDrop<WorkRequest>,
    /// Whether the reference was dropped with the end. Then nothing touches the block any more.
    dropped: bool,
}

impl CarriedRequest {
    #[inline(always)]
    pub fn new(request: WorkRequest) -> CarriedRequest {
        CarriedRequest { request: ManuallyDrop::new(request), dropped: false }
    }

    /// Runs the closure, as [`WorkRequest::run`], and ends the request, unless it must end while
    /// its worker has the baton (`RequestState::is_alone`). Returns whether it has ended, and the
    /// claimed wait as [`WorkRequest::end`]. `runner` is the waiter of the worker.
    #[inline(always)]
    pub fn run(&mut self, runner: &'static Waiter) -> (bool, Option<Claimed>) {
        self.request.run();
        let state = self.request.state();
        if let Some(plain) = state.ends_plainly(runner)
            && end_and_drop(state.word(), plain, runner)
        {
            self.dropped = true;
            return (true, None);
        }
        self.end_unless_alone()
    }

    /// Does the same without the closure, which is dropped: the result says that it never ran.
    pub fn give_up(&mut self) -> (bool, Option<Claimed>) {
        self.request.give_up();
        self.end_unless_alone()
    }

    #[inline(always)]
    fn end_unless_alone(&mut self) -> (bool, Option<Claimed>) {
        if self.request.state().is_alone() { (false, None) } else { (true, self.request.end()) }
    }

    /// Returns the request, unless its reference was dropped.
    #[inline(always)]
    pub fn left(self) -> Option<WorkRequest> {
        (!self.dropped).then(|| ManuallyDrop::into_inner(self.request))
    }
}

/// The right to a request's result, and to wait for it.
pub(crate) struct ResultOf<T>(Counted<Front<T>>);

impl<T> ResultOf<T> {
    /// Returns the request's state.
    #[inline]
    pub fn state(&self) -> &RequestState {
        self.0.state()
    }

    /// Takes the result, if the request has ended.
    ///
    /// # Panics
    /// Panics if the result was taken before.
    #[inline]
    pub fn take(&mut self) -> Option<TaskResult<T>> {
        if !self.state().is_done() {
            return None;
        }
        // SAFETY: Handed Over: the request is Done, so its result belongs to this value.
        let result = unsafe { (*self.0.result().get()).take() };
        Some(result.expect("the task's result was taken already"))
    }

    /// Takes the result, if the request has ended. Otherwise stores the waker of a future, in place
    /// of that of an earlier call. The end of the request wakes that future.
    ///
    /// # Panics
    /// As [`take`](ResultOf::take).
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<TaskResult<T>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        // Cloned first: the waker is code of the application, which may do anything.
        let waker = Joiner::Future(context.waker().clone());
        if self.state().forget_joiner() {
            // SAFETY: Handed Over: the request has not ended and is not joined, so until `join`
            // returns, only this value, borrowed mutably, may touch the field.
            let before = unsafe { (*self.0.header().joiner.get()).replace(waker) };
            let joined = self.state().join();
            drop(before);
            if joined {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.take().expect("a request that has ended has a result"))
    }

    /// Withdraws the waker of an earlier `poll`. Called before `begin_to_join`.
    #[inline]
    pub fn withdraw_waker(&mut self) {
        if self.state().is_joined() {
            self.forget_waker();
        }
    }

    #[cold]
    fn forget_waker(&mut self) {
        if self.state().forget_joiner() {
            // SAFETY: Handed Over: the request has not ended and is not joined, so only this value,
            // borrowed mutably, may touch the field.
            drop(unsafe { (*self.0.header().joiner.get()).take() });
        }
    }

    /// Begins to wait for the request's end.
    #[inline]
    pub fn begin_to_join(&mut self) -> Join<'_, T> {
        Join { result: self, alone: PhantomData }
    }

    /// Returns a reference to the request.
    pub fn request(&self) -> RequestRef
    where
        T: 'static,
    {
        RequestRef(self.0.another())
    }
}

/// A wait for a result. It borrows the right to the result, and cannot move to another thread.
pub(crate) struct Join<'a, T> {
    result: &'a ResultOf<T>,
    alone: PhantomData<*mut ()>,
}

impl<'a, T> Join<'a, T> {
    /// Returns the request's state.
    #[inline]
    pub fn state(&self) -> &'a RequestState {
        self.result.state()
    }

    /// Returns what others see of the request.
    #[inline]
    pub fn seen(&self) -> JoinedRequest<'a> {
        JoinedRequest { state: self.state(), code: self.result.0.header().code() }
    }

    /// Stores the ticket that the end of the request claims. Returns false if the request has
    /// ended. `taken` says that the caller, a worker, has taken the request from its queue, and
    /// that its own scheduler will carry it out, or calls `is_alone_no_more`.
    #[inline]
    pub fn wait(&self, ticket: Ticket, taken: bool) -> bool {
        if self.state().is_done() {
            return false;
        }
        // SAFETY: Handed Over: the request has not ended and is not joined, because the ticket of
        // an earlier wait was withdrawn, and the waker of an earlier poll. So until `join` returns,
        // only the `ResultOf` may touch the field, and this value alone borrows it.
        unsafe { *self.result.0.header().joiner.get() = Some(Joiner::Waiter(ticket)) };
        if taken { self.state().join_taken() } else { self.state().join() }
    }

    /// Withdraws the ticket. Called if its wait has ended before the request.
    pub fn forget(&self) {
        self.state().forget_joiner();
    }
}

/// A reference to a request, which reaches its state only.
pub(crate) struct RequestRef(Counted<Header>);

impl RequestRef {
    /// Returns the request's state.
    pub fn state(&self) -> &RequestState {
        self.0.state()
    }
}

impl Clone for RequestRef {
    fn clone(&self) -> RequestRef {
        RequestRef(self.0.another())
    }
}

/// A slot for a queued request. One thread at a time puts requests there; any thread may take them.
///
/// A slot holds null, or the address of the `WorkRequest` that was put there. The thread whose
/// exchange sets the slot to null owns that `WorkRequest`.
pub(crate) struct RequestSlot(AtomicPtr<Header>);

impl RequestSlot {
    pub fn new() -> RequestSlot {
        RequestSlot(AtomicPtr::new(null_mut()))
    }

    /// Returns whether no request is here. If not, one may be taken at any time.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }

    /// Puts a request here. The slot must be free, and the caller the only one that puts.
    #[inline]
    pub fn put(&self, request: WorkRequest) {
        debug_assert!(self.is_free());
        let request = ManuallyDrop::new(request);
        // Release: the thread that takes the request sees all of it.
        self.0.store(request.0.0.as_ptr(), Ordering::Release);
    }

    /// Takes the request that is here.
    #[inline]
    pub fn take(&self) -> Option<WorkRequest> {
        let at = self.0.load(Ordering::Relaxed);
        self.take_if(at)
    }

    /// Takes this request, if it is here.
    #[inline]
    pub fn take_this(&self, request: &RequestState) -> Option<WorkRequest> {
        // While a request is in a slot, its block exists, so the address is that of no other.
        self.take_if(from_ref(request).cast_mut().cast())
    }

    #[inline]
    fn take_if(&self, at: *mut Header) -> Option<WorkRequest> {
        let at = NonNull::new(at)?;
        let taken =
            self.0.compare_exchange(at.as_ptr(), null_mut(), Ordering::Acquire, Ordering::Relaxed);
        taken.ok().and_then(NonNull::new).map(|at| WorkRequest(Counted(at)))
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
