//! The types that make up a wait, and the pool of waiters.
//!
//! The types are in one file because they refer to each other: a waiter, what it waits for, the
//! ticket of its wait, the question that asks the resource for its owners, and the inbox through
//! which a worker reaches its scheduler.
//!
//! The invariant **Held**, for asking a resource, is explained in `owners`.

#![allow(unsafe_code)]

use std::ptr::null_mut;
/// Atomics of the standard library, for fields that take part in no protocol. The models in
/// `loom.rs` need not check them.
use std::sync::atomic as plain;
use std::sync::atomic::Ordering;

#[cfg(debug_assertions)]
use super::foreign::ForeignLocks;
use super::record::WorkerRecord;
use super::scoped::{Scoped, Values};
use crate::os::asleep::Asleep;
use crate::os::atomic::{self, AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use crate::os::atomic_ref::AtomicRef;
use crate::os::counted::AtomicU16;
use crate::os::driver::Waker;
use crate::os::event::ThreadEvent;
use crate::os::linux::plain::{prefetch, prefetch_to_write};
use crate::os::pool::{Member, Pool, Pooled};
use crate::os::short_lock::ShortLock;
use crate::record::reason::WaitReason;

pub(super) const STATE_BITS: u32 = 3;
pub(super) const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
/// The lowest bits of a ticket's number: which arm of the wait it is for (`arm`).
pub(super) const ARM_MASK: u64 = 0xff;
pub(super) const QUIET: u64 = 0;
pub(super) const WAITING: u64 = 1;

/// In `manner`: cancelling the work request ends the wait.
pub(super) const CANCELLABLE: u8 = 1;
/// In `manner`: the wait is for a resource that may have a holder.
pub(super) const MAY_BE_HELD: u8 = 2;

/// In `manner`: the waiter's limit ends the wait (`bounds`).
pub(super) const LIMITABLE: u8 = 4;

/// What a wait is for, as views show it.
#[derive(Clone, Copy)]
pub(crate) struct What {
    pub reason: WaitReason,
    /// The resource's address; 0 if there is none.
    pub resource: usize,
    /// The waiter that holds the resource, if it is known.
    pub blocker: Option<&'static Waiter>,
    /// The user that holds the resource, if the holder is a user.
    pub blocking_user: u64,
    /// Whether cancelling the work request ends this wait.
    pub cancellable: bool,
    /// Whether the waiter's limit ends this wait, if it is cancellable.
    pub limitable: bool,
    /// Whether the wait is for a resource that may have a holder: one of the two above.
    pub may_be_held: bool,
}

impl What {
    #[inline]
    pub(crate) fn new(reason: WaitReason) -> What {
        What {
            reason,
            resource: 0,
            blocker: None,
            blocking_user: 0,
            cancellable: true,
            limitable: true,
            may_be_held: false,
        }
    }

    /// Sets the resource: the address of the object that keeps the tickets of its waiters.
    #[inline]
    pub(crate) fn on<T>(mut self, resource: &T) -> What {
        self.resource = std::ptr::from_ref(resource) as usize;
        self
    }

    /// Sets the resource to a file descriptor.
    pub(crate) fn fd(mut self, fd: i32) -> What {
        self.resource = fd as usize;
        self
    }

    /// Sets the waiter that holds the resource.
    pub(crate) fn blocked_by(mut self, holder: Option<&'static Waiter>) -> What {
        self.blocker = holder;
        self.may_be_held = true;
        self
    }

    /// Sets the user that holds the resource.
    pub(crate) fn blocked_by_user(mut self, user: u64) -> What {
        self.blocking_user = user;
        self.may_be_held = true;
        self
    }

    /// Makes the wait ignore the waiter's limit.
    pub(crate) fn unlimited(mut self) -> What {
        self.limitable = false;
        self
    }

    /// Makes the wait ignore cancellation of the work request, because the wait must not fail.
    pub(crate) fn uncancellable(mut self) -> What {
        self.cancellable = false;
        self
    }
}

/// A worker or a plain thread: anything that can wait. Never freed (Type Stable).
///
/// In the order of the fields, so that the first cache line has all that the waker of a worker
/// touches, if it runs on another processor. The first two have all that a wait touches for which
/// there is no holder.
#[repr(C, align(64))]
pub(crate) struct Waiter {
    /// The present or last wait: `wait number << 11 | arm << 3 | state`. The arm is that whose
    /// ticket was claimed; 0 before.
    pub(super) word: AtomicU64,
    /// The inbox of the worker's scheduler; none for a plain thread.
    pub(crate) home: AtomicRef<Inbox>,
    /// The link of the inbox that the waiter is passing through.
    pub(crate) next: AtomicPtr<Waiter>,
    /// When the present wait was claimed: the end of its resource wait, and the start of its signal
    /// wait.
    pub(crate) signalled: plain::AtomicU64,
    /// When the present wait began, in ticks of the clock.
    pub(crate) began: plain::AtomicU64,
    /// The worker's number in its scheduler.
    pub(crate) worker: AtomicU32,
    /// Why the waiter waits. Written by the waiter, read by views, as `blocker` and `blocking_user`
    /// are.
    pub(crate) reason: AtomicU16,
    /// Some of [`CANCELLABLE`], [`MAY_BE_HELD`] and [`LIMITABLE`].
    pub(super) manner: AtomicU8,
    /// Set by the canceller of the work request that this waiter runs.
    pub(crate) cancelled: AtomicBool,
    /// What the waiter has in addition if it is a worker.
    pub(crate) record: WorkerRecord,
    /// The event that the waiter's thread waits on. Fibers do not use it.
    pub(crate) event: ThreadEvent,
    /// The number of the last deadlock whose victim was a wait of this waiter.
    pub(crate) deadlock: plain::AtomicU32,
    pub(crate) blocker: AtomicRef<Waiter>,
    pub(crate) blocking_user: plain::AtomicU64,
    /// The question that asks the resource of the present wait for its owners; null if the wait
    /// carries none. Other threads follow it only while they hold the waiter in its wait, so the
    /// true lifetime is not `'static`.
    pub(super) question: AtomicPtr<Question<'static>>,
    /// The waiter for which this one carries out a closure on a hidden scheduler; null if there is
    /// none.
    pub(crate) origin: AtomicRef<Waiter>,
    /// The foreign locks that the waiter has declared that it holds.
    #[cfg(debug_assertions)]
    pub(crate) foreign: ForeignLocks,
    /// What holds for a part of the waiter's code; null until there is something.
    pub(super) scoped: AtomicRef<Scoped>,
    /// A number that belongs to the program: `ums::worker::word`.
    pub(crate) program: plain::AtomicU64,
    pub(crate) member: Member<Waiter>,
}

// The size decides how much memory an idle worker takes. With an odd number of cache lines, the
// same field of many waiters, which lie side by side, is in every set of a cache.
#[cfg(all(not(debug_assertions), not(loom), not(feature = "spans"), target_pointer_width = "64"))]
const _: () = assert!(size_of::<Waiter>() == 5 * 64);
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    const LINE: usize = 64;
    assert!(offset_of!(Waiter, record.view.resource) <= LINE);
    // As much of the request's waits as a wait for its first reason touches.
    assert!(offset_of!(Waiter, record.view.waits) + 48 <= 2 * LINE);
};

/// What comes through the inbox, other than workers. The scheduler acts on it in its next turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// Ask for the cancellation of the I/O request with this token.
    CancelIo(u64),
    /// Cancel the request that this worker carries out, if it still carries out this one.
    CancelRequest {
        /// The worker's number.
        worker: u32,
        /// The request's number.
        request: u64,
    },
    /// Cancel the requests whose workers wait for a connection.
    CancelAccepts,
    /// Take the timer with this number off the list, and drop the routine that it would call.
    DoNotCall(u64),
    /// Look at the state that the scheduler shares with other threads, because a part of it has
    /// changed.
    LookAgain,
}

/// The way into a scheduler from outside. Never freed (Type Stable).
///
/// In the order of the fields, so that the first cache line has all that a push touches if the
/// scheduler is awake. The alignment keeps the inboxes of two schedulers apart, also if the
/// processor fetches lines in pairs.
#[repr(C, align(128))]
pub(crate) struct Inbox {
    pub(super) stack: AtomicPtr<Waiter>,
    pub(super) mail_count: AtomicUsize,
    /// The number of the inbox's scheduler, for records.
    pub(crate) number: plain::AtomicU32,
    pub(super) asleep: Asleep,
    pub(super) mail: ShortLock<Vec<Letter>>,
    pub(super) waker: ShortLock<Option<Waker>>,
    pub(super) member: Member<Inbox>,
}

/// All waiters.
pub(crate) static WAITERS: Pool<Waiter> = Pool::new();

impl Pooled for Waiter {
    fn member(&self) -> &Member<Waiter> {
        &self.member
    }
}

/// The name of one wait of one waiter, or of one arm of that wait.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) waiter: &'static Waiter,
    /// `wait number << 8 | arm`.
    pub(super) number: u64,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        std::ptr::eq(self.waiter, other.waiter) && self.number == other.number
    }
}

/// The holder of a resource that others wait for.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// A worker or thread.
    Waiter(&'static Waiter),
    /// A user, which holds the resource through the worker that carries out its request.
    User(u64),
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        match (self, other) {
            (Owner::Waiter(a), Owner::Waiter(b)) => std::ptr::eq(*a, *b),
            (Owner::User(a), Owner::User(b)) => a == b,
            _ => false,
        }
    }
}

/// What happens to a wait that is chosen as the victim of a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsVictim {
    /// It fails with an error.
    Fails,
    /// The function that waits returns no error, so it panics.
    Panics,
    /// It is never chosen.
    Never,
}

/// A resource that has owners and that others wait for.
pub(crate) trait Owned: Sync {
    /// Calls `tell` for each owner that this wait is for.
    fn owners(&self, waiter: Ticket, tell: &mut dyn FnMut(Owner));

    /// Returns what the wait is for, if it is a join.
    fn joined(&self) -> Option<Joined> {
        None
    }
}

/// A work request for whose end a worker or thread waits.
#[derive(Clone, Copy)]
pub(crate) struct Joined {
    /// When it was queued, in ticks.
    pub enqueued: u64,
    /// A number that stands for its code.
    pub code: usize,
    /// The worker that carries it out, if it has begun and not ended.
    pub runner: Option<&'static Waiter>,
}

/// What other threads may ask about a wait. It lives in the frame of `Waiter::in_wait_for`.
pub(super) struct Question<'a> {
    pub(super) resource: &'a dyn Owned,
    pub(super) as_victim: AsVictim,
}

impl Waiter {
    #[inline(always)]
    fn new(member: Member<Waiter>) -> Waiter {
        Waiter {
            word: AtomicU64::new(0),
            home: AtomicRef::new(),
            worker: AtomicU32::new(0),
            next: AtomicPtr::new(null_mut()),
            event: ThreadEvent::new(),
            cancelled: AtomicBool::new(false),
            manner: AtomicU8::new(0),
            reason: AtomicU16::new(0),
            blocker: AtomicRef::new(),
            blocking_user: plain::AtomicU64::new(0),
            origin: AtomicRef::new(),
            began: plain::AtomicU64::new(0),
            signalled: plain::AtomicU64::new(0),
            question: AtomicPtr::new(null_mut()),
            #[cfg(debug_assertions)]
            foreign: ForeignLocks::new(),
            scoped: AtomicRef::new(),
            deadlock: plain::AtomicU32::new(0),
            program: plain::AtomicU64::new(0),
            record: WorkerRecord::new(),
            member,
        }
    }

    /// Takes a waiter from the pool: for worker number `worker` of the scheduler with the inbox
    /// `home`, or for a plain thread if `home` is `None`.
    pub(crate) fn take(home: Option<&'static Inbox>, worker: u32) -> &'static Waiter {
        WAITERS.take(Waiter::new, |waiter| {
            waiter.home.store(home);
            waiter.worker.store(worker, Ordering::Relaxed);
            waiter.cancelled.store(false, Ordering::Relaxed);
            waiter.record.reset();
        })
    }

    /// Returns the waiter to the pool. Its worker or thread must have ended and must not be
    /// waiting.
    pub(crate) fn give_back(&'static self) {
        debug_assert_eq!(self.word.load(Ordering::Relaxed) & STATE_MASK, QUIET);
        let left = self.scoped.load().map(|scoped| std::mem::take(&mut *scoped.values.lock()));
        debug_assert_eq!(
            left.as_ref().map_or(0, Values::len),
            0,
            "each scope takes its value back"
        );
        // Outside the lock, because a destructor is the application's code.
        drop(left);
        // The event may be set without a wait having consumed it. It must not wake the next owner
        // of this waiter.
        while self.event.wait_until(0) {}
        WAITERS.give_back(self);
    }

    /// Returns the inbox of the worker's scheduler, or None for a plain thread.
    #[inline]
    pub(crate) fn inbox(&self) -> Option<&'static Inbox> {
        self.home.load()
    }

    /// Returns the place for what holds for a part of the code of this waiter, which is the caller.
    pub(super) fn scoped(&self) -> &'static Scoped {
        self.scoped.load().unwrap_or_else(|| {
            let made: &Scoped = Box::leak(Box::default());
            self.scoped.store(Some(made));
            made
        })
    }

    /// Returns whether this waiter is in no wait.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATE_MASK == QUIET
    }

    /// Notes what the wait that begins is for.
    #[inline(always)]
    pub(super) fn note(&self, what: What) {
        self.reason.store(what.reason.index() as u16, Ordering::Relaxed);
        self.record.view.resource.store(what.resource as u64, Ordering::Relaxed);
        // Few waits have a holder, and these fields are in another cache line.
        if what.may_be_held || self.waits_as(MAY_BE_HELD) {
            self.blocker.store(what.blocker);
            self.blocking_user.store(what.blocking_user, Ordering::Relaxed);
        }
        let manner = [
            (what.cancellable, CANCELLABLE),
            (what.cancellable && what.limitable, LIMITABLE),
            (what.may_be_held, MAY_BE_HELD),
        ];
        let manner = manner.map(|(is, bit)| if is { bit } else { 0 });
        self.manner.store(manner[0] | manner[1] | manner[2], Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn waits_as(&self, manner: u8) -> bool {
        self.manner.load(Ordering::Relaxed) & manner != 0
    }

    /// Returns the waiter that holds what the present wait is for, if it is known.
    pub(crate) fn blocker(&self) -> Option<&'static Waiter> {
        self.blocker.load()
    }
}

impl Ticket {
    /// Returns the present owners of the resource that this wait is for. Returns `None` if the wait
    /// has ended or carries no question.
    pub(crate) fn owners(self) -> Option<Vec<Owner>> {
        self.hold(|question| {
            let mut owners = Vec::new();
            question.resource.owners(self, &mut |owner| owners.push(owner));
            owners
        })
    }

    /// Returns what this wait is for, if it is a join. Returns `None` if it is none or has ended,
    /// and also if another thread asks its question at this moment, for which the caller would have
    /// to wait.
    pub(crate) fn joined(self) -> Option<Joined> {
        if self.may_ask() { self.hold_asked(|question| question.resource.joined())? } else { None }
    }

    /// Calls `f` with the wait's question, and keeps the waiter in its wait meanwhile; see
    /// `owners`. Returns `None` if the wait has ended or carries no question.
    pub(super) fn hold<T>(self, f: impl FnOnce(&Question<'_>) -> T) -> Option<T> {
        while !self.may_ask() {
            // Another looker asks this question at this moment, which takes a few instructions.
            atomic::let_others_run();
        }
        self.hold_asked(f)
    }

    /// Sets `asked`. Returns false if another looker has set it.
    fn may_ask(self) -> bool {
        let asked = &self.waiter.record.view.asked;
        asked.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Does the same for the looker that has set `asked`.
    fn hold_asked<T>(self, f: impl FnOnce(&Question<'_>) -> T) -> Option<T> {
        let Waiter { question, .. } = self.waiter;
        atomic::no_overtaking();
        let word = self.waiter.word.load(Ordering::SeqCst);
        let still = word == self.waiting();
        let question = if still { question.load(Ordering::SeqCst) } else { null_mut() };
        // SAFETY: Held: a question that is found in the wait stays in its frame until `asked` is
        // false, and borrows the resource for as long.
        let told = unsafe { question.as_ref() }.map(f);
        self.waiter.record.view.asked.store(false, Ordering::Release);
        told
    }
}

impl Waiter {
    /// Lets the processor get what the thread writes that ends the present wait. No effect
    /// otherwise.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
        prefetch(self.expects());
    }

    /// Returns the address that [`Ticket::expects`] has noted last.
    #[inline(always)]
    fn expects(&self) -> *const u8 {
        std::ptr::without_provenance(self.record.view.expects.load(Ordering::Relaxed))
    }
}

// The stack of an inbox. Its links are fields of the waiters, which Type Stable allows to use as
// references.
impl Inbox {
    /// Pushes a waiter onto the stack. The waiter must be on no other stack.
    pub(super) fn link(&self, waiter: &'static Waiter) {
        let mut head = self.stack.load(Ordering::Relaxed);
        loop {
            waiter.next.store(head, Ordering::Relaxed);
            let new = std::ptr::from_ref(waiter).cast_mut();
            // Release: the thread that takes the stack sees the link, and all that the claimer of
            // the wait wrote before.
            match self.stack.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }

    /// Returns whether this worker has arrived, and no other has. If so, the caller sees what the
    /// thread that pushed the worker did before, such as to send a letter.
    #[inline]
    pub(crate) fn has_only(&self, waiter: &'static Waiter) -> bool {
        // Acquire: also the link, which stays as it is until the waiter is taken.
        std::ptr::eq(self.stack.load(Ordering::Acquire), waiter)
            && waiter.next.load(Ordering::Relaxed).is_null()
    }

    /// Takes this worker, for which `has_only` has returned true. Returns false, and changes
    /// nothing, if another worker has arrived since.
    #[inline]
    pub(crate) fn take_only(&self, waiter: &'static Waiter) -> bool {
        let (at, none) = (std::ptr::from_ref(waiter).cast_mut(), null_mut());
        self.stack.compare_exchange(at, none, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes every worker that has arrived, and passes each to `each`, the oldest first. No other
    /// thread touches their links once they are taken.
    pub(crate) fn take_all(&self, mut each: impl FnMut(&'static Waiter)) {
        // If another processor has pushed the waiter, it has the lines of the stack, of the waiter,
        // and of the value that it has put: all are asked for at the same time.
        let newest = self.stack.load(Ordering::Relaxed);
        prefetch_to_write(newest);
        // SAFETY: Type Stable: as below. The load did not acquire, but the inbox gets only workers
        // of this scheduler, which were made before by a holder of the baton that the caller has.
        if let Some(waiter) = unsafe { newest.as_ref() } {
            prefetch(waiter.expects());
        }
        let mut newest = self.stack.swap(null_mut(), Ordering::Acquire);
        let mut oldest: *mut Waiter = null_mut();
        // SAFETY: Type Stable: every pointer on the stack came from a `&'static Waiter`.
        while let Some(waiter) = unsafe { newest.as_ref() } {
            newest = waiter.next.load(Ordering::Relaxed);
            waiter.next.store(oldest, Ordering::Relaxed);
            oldest = std::ptr::from_ref(waiter).cast_mut();
        }
        // SAFETY: Type Stable, as above. The link is read before `each` gets the waiter, because
        // the waiter may run from then on and pass through the inbox again.
        while let Some(waiter) = unsafe { oldest.as_ref() } {
            oldest = waiter.next.load(Ordering::Relaxed);
            waiter.next.store(null_mut(), Ordering::Relaxed);
            each(waiter);
        }
    }
}
