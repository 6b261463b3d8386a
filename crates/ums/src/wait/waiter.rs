//! The types of a wait, which name each other: a waiter, what it waits for, the ticket of its wait,
//! the question by which the resource can be asked for its owners, and the inbox through which a
//! worker reaches its scheduler. And the pool of waiters.
//!
//! Named invariant **Held**: see `owners`, where questions are put.

#![allow(unsafe_code)]

use std::ptr::{null, null_mut};
use std::sync::MutexGuard;
/// For what is no part of a protocol.
use std::sync::atomic as plain;
use std::sync::atomic::{AtomicU16, Ordering};

#[cfg(debug_assertions)]
use super::foreign::ForeignLocks;
use super::record::WorkerRecord;
use crate::os::asleep::Asleep;
use crate::os::atomic::{self, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use crate::os::atomic_ref::AtomicRef;
use crate::os::driver::Waker;
use crate::os::event::Event;
use crate::os::lock::Lock;
use crate::os::pool::{Member, Pool, Pooled};
use crate::os::short_lock::ShortLock;
use crate::record::reason::WaitReason;

pub(super) const STATE_BITS: u32 = 3;
pub(super) const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
pub(super) const QUIET: u64 = 0;
pub(super) const WAITING: u64 = 1;

/// What a wait is for, as views show it.
#[derive(Clone, Copy)]
pub(crate) struct What {
    pub reason: WaitReason,
    /// The resource's address, 0 when there is none.
    pub resource: usize,
    /// The waiter that holds the resource, where it is known.
    pub blocker: Option<&'static Waiter>,
    /// The user that holds the resource, where a user does.
    pub blocking_user: u64,
    /// Whether cancelling the work request ends this wait.
    pub cancellable: bool,
}

impl What {
    pub(crate) fn new(reason: WaitReason) -> What {
        What { reason, resource: 0, blocker: None, blocking_user: 0, cancellable: true }
    }

    /// Names the resource by the address of the thing that holds its waiters.
    pub(crate) fn on<T>(mut self, resource: &T) -> What {
        self.resource = std::ptr::from_ref(resource) as usize;
        self
    }

    /// Names a file descriptor as the resource.
    pub(crate) fn fd(mut self, fd: i32) -> What {
        self.resource = fd as usize;
        self
    }

    /// Names the waiter that holds the resource.
    pub(crate) fn blocked_by(mut self, holder: Option<&'static Waiter>) -> What {
        self.blocker = holder;
        self
    }

    /// Names the user that holds the resource.
    pub(crate) fn blocked_by_user(mut self, user: u64) -> What {
        self.blocking_user = user;
        self
    }

    /// Makes the wait uninterruptible by cancellation: for waits that must not fail.
    pub(crate) fn uncancellable(mut self) -> What {
        self.cancellable = false;
        self
    }
}

/// A worker or a plain thread, as what can wait. Never freed (Type Stable).
pub(crate) struct Waiter {
    /// `wait number << 3 | state`.
    pub(super) word: AtomicU64,
    /// The inbox of the worker's scheduler; none for a plain thread.
    pub(crate) home: AtomicRef<Inbox>,
    /// The worker's number in its scheduler.
    pub(crate) worker: AtomicU32,
    /// Link of the inbox it is passing through.
    pub(crate) next: AtomicPtr<Waiter>,
    /// What its thread waits on. Fibers do not use it.
    pub(crate) event: Event,
    /// Set by the canceller of the work request that this waiter runs.
    pub(crate) cancelled: AtomicBool,
    pub(super) cancellable: AtomicBool,
    /// What the present wait is for. Written by the waiter, read by views.
    pub(crate) reason: AtomicU16,
    pub(crate) resource: plain::AtomicU64,
    pub(crate) blocker: AtomicRef<Waiter>,
    pub(crate) blocking_user: plain::AtomicU64,
    /// The waiter for which this one carries out a closure on a hidden scheduler; null for none.
    pub(crate) origin: AtomicRef<Waiter>,
    /// When the present wait began, in ticks of the clock.
    pub(crate) began: plain::AtomicU64,
    /// When it was claimed: the end of its resource wait, the start of its signal wait.
    pub(crate) signalled: plain::AtomicU64,
    /// How to ask which owners the present wait is for.
    pub(super) asking: Asking,
    /// The foreign locks that it says it holds.
    #[cfg(debug_assertions)]
    pub(crate) foreign: ForeignLocks,
    /// The last deadlock of which it was the victim.
    pub(crate) deadlock: plain::AtomicU64,
    /// What it has besides as a worker.
    pub(crate) record: WorkerRecord,
    pub(crate) member: Member<Waiter>,
}

/// What comes through the inbox, other than workers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// Ask for the cancellation of the I/O request with this token.
    CancelIo(u64),
    /// Cancel the request that this worker carries out, if it is this one.
    CancelRequest {
        /// The worker's number.
        worker: u32,
        /// The request's number.
        request: u64,
    },
    /// Look at the shared state again: a part of it has changed.
    LookAgain,
}

/// The way in. Never freed (Type Stable).
pub(crate) struct Inbox {
    pub(super) stack: AtomicPtr<Waiter>,
    pub(super) asleep: Asleep,
    pub(super) mail: ShortLock<Vec<Letter>>,
    pub(super) mail_count: AtomicUsize,
    pub(super) waker: ShortLock<Option<Waker>>,
    /// Its scheduler's number, for records.
    pub(crate) number: plain::AtomicU32,
    pub(super) member: Member<Inbox>,
}

/// All waiters.
pub(crate) static WAITERS: Pool<Waiter> = Pool::new();

impl Pooled for Waiter {
    fn member(&self) -> &Member<Waiter> {
        &self.member
    }
}

/// One wait of one waiter.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) waiter: &'static Waiter,
    pub(super) number: u64,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        std::ptr::eq(self.waiter, other.waiter) && self.number == other.number
    }
}

/// What holds a resource that others wait for.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// A worker or thread.
    Waiter(&'static Waiter),
    /// A user, through the worker that carries out its request.
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

/// What happens to a wait that is chosen as a deadlock's victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsVictim {
    /// It fails with an error.
    Fails,
    /// Its verb cannot fail, so it panics.
    Panics,
    /// It is never chosen.
    Never,
}

/// A resource with owners, which others wait for.
pub(crate) trait Owned {
    /// Tells each owner that this wait is for.
    fn owners(&self, waiter: Ticket, tell: &mut dyn FnMut(Owner));
}

/// How to ask a resource whose type is known to the waiter only.
pub(super) struct Question {
    /// # Safety
    /// Held: `resource` is the pointer that the waiter stored with this question, and the waiter is
    /// still in that wait.
    pub(super) ask: unsafe fn(resource: *const (), waiter: Ticket, tell: &mut dyn FnMut(Owner)),
}

/// # Safety
/// As for [`Question::ask`].
pub(super) unsafe fn ask<R: Owned>(
    resource: *const (),
    waiter: Ticket,
    tell: &mut dyn FnMut(Owner),
) {
    // SAFETY: Held: it points to what the waiter borrows, which is an `R`.
    unsafe { &*resource.cast::<R>() }.owners(waiter, tell);
}

/// The question that a waiter's present wait carries, and whether it is being asked.
pub(super) struct Asking {
    pub(super) question: AtomicPtr<Question>,
    pub(super) resource: AtomicPtr<()>,
    pub(super) as_victim: AtomicU32,
    pub(super) held: AtomicBool,
}

impl Asking {
    fn new() -> Asking {
        Asking {
            question: AtomicPtr::new(null_mut()),
            resource: AtomicPtr::new(null_mut()),
            as_victim: AtomicU32::new(0),
            held: AtomicBool::new(false),
        }
    }
}

impl Waiter {
    fn new(member: Member<Waiter>) -> Waiter {
        Waiter {
            word: AtomicU64::new(0),
            home: AtomicRef::new(),
            worker: AtomicU32::new(0),
            next: AtomicPtr::new(null_mut()),
            event: Event::new(),
            cancelled: AtomicBool::new(false),
            cancellable: AtomicBool::new(false),
            reason: AtomicU16::new(0),
            resource: plain::AtomicU64::new(0),
            blocker: AtomicRef::new(),
            blocking_user: plain::AtomicU64::new(0),
            origin: AtomicRef::new(),
            began: plain::AtomicU64::new(0),
            signalled: plain::AtomicU64::new(0),
            asking: Asking::new(),
            #[cfg(debug_assertions)]
            foreign: ForeignLocks::new(),
            deadlock: plain::AtomicU64::new(0),
            record: WorkerRecord::new(),
            member,
        }
    }

    /// Takes a waiter for worker number `worker` of the scheduler with the inbox `home`, or for a
    /// plain thread (none).
    pub(crate) fn take(home: Option<&'static Inbox>, worker: u32) -> &'static Waiter {
        WAITERS.take(Waiter::new, |waiter| {
            waiter.home.store(home, Ordering::Relaxed);
            waiter.worker.store(worker, Ordering::Relaxed);
            waiter.cancelled.store(false, Ordering::Relaxed);
            waiter.record.reset();
        })
    }

    /// Gives the waiter back for reuse. Its owner must have ended and must not be waiting.
    pub(crate) fn give_back(&'static self) {
        debug_assert_eq!(self.word.load(Ordering::Relaxed) & STATE_MASK, QUIET);
        // A set that was not consumed must not wake the next owner.
        while self.event.wait_until(0) {}
        WAITERS.give_back(self);
    }

    /// Returns the inbox of the worker's scheduler, or None for a plain thread.
    #[inline]
    pub(crate) fn inbox(&self) -> Option<&'static Inbox> {
        self.home.load(Ordering::Relaxed)
    }

    /// Returns whether this waiter is in no wait.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATE_MASK == QUIET
    }

    /// Returns the holder of what the present wait is for, if it is known.
    pub(crate) fn blocker(&self) -> Option<&'static Waiter> {
        self.blocker.load(Ordering::Relaxed)
    }

    /// Returns whether the work request was cancelled that this waiter runs, or runs a part of for
    /// another worker.
    pub(crate) fn is_cancelled(&self) -> bool {
        let origin = self.origin.load(Ordering::Relaxed);
        self.cancelled.load(Ordering::Relaxed)
            || origin.is_some_and(|o| o.cancelled.load(Ordering::Relaxed))
    }
}

impl Ticket {
    /// Returns the owners of what it is for, at this moment, or None if the wait has ended or
    /// cannot be asked.
    pub(crate) fn owners(self) -> Option<Vec<Owner>> {
        self.hold(|question, resource| {
            let mut owners = Vec::new();
            // SAFETY: Held: `hold` holds it, and passes the waiter's own pointer.
            unsafe { (question.ask)(resource, self, &mut |owner| owners.push(owner)) };
            owners
        })
    }

    /// Calls `f` while the waiter stays in its wait: see `owners`.
    pub(super) fn hold<T>(self, f: impl FnOnce(&'static Question, *const ()) -> T) -> Option<T> {
        let _alone = lookers();
        let asking = &self.waiter.asking;
        asking.held.store(true, Ordering::SeqCst);
        atomic::no_overtaking();
        let word = self.waiter.word.load(Ordering::SeqCst);
        let still = word == self.number << STATE_BITS | WAITING;
        let question = asking.question.load(Ordering::Relaxed);
        let resource = if still { asking.resource.load(Ordering::Relaxed) } else { null_mut() };
        let question = if still { question.cast_const() } else { null() };
        // SAFETY: Type Stable, in a small way: questions are statics.
        let question: Option<&'static Question> = unsafe { question.as_ref() };
        let told = question.map(|question| f(question, resource));
        asking.held.store(false, Ordering::Release);
        told
    }
}

/// Admits one looker at a time, so that only the looker that holds a waiter releases it.
fn lookers() -> MutexGuard<'static, ()> {
    static ALONE: Lock<()> = Lock::new(());
    ALONE.lock()
}

// The stack of an inbox: its links are in the waiters. Type Stable makes them references.
impl Inbox {
    /// Puts a waiter on the stack. It is on no other.
    pub(super) fn link(&self, waiter: &'static Waiter) {
        let mut head = self.stack.load(Ordering::Relaxed);
        loop {
            waiter.next.store(head, Ordering::Relaxed);
            let new = std::ptr::from_ref(waiter).cast_mut();
            // Release: the taker sees the link and all that the claimer did before.
            match self.stack.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }

    /// Takes every worker that has arrived, oldest first, and hands each to `each`.
    pub(crate) fn take_all(&self, mut each: impl FnMut(&'static Waiter)) {
        let mut newest = self.stack.swap(null_mut(), Ordering::Acquire);
        let mut oldest: *mut Waiter = null_mut();
        // SAFETY: Type Stable: every pointer on the stack came from a `&'static Waiter`.
        while let Some(waiter) = unsafe { newest.as_ref() } {
            newest = waiter.next.swap(oldest, Ordering::Relaxed);
            oldest = std::ptr::from_ref(waiter).cast_mut();
        }
        // SAFETY: Type Stable, as above. The link is read before the waiter is handed on, for it
        // may pass through the inbox again as soon as it runs.
        while let Some(waiter) = unsafe { oldest.as_ref() } {
            oldest = waiter.next.swap(null_mut(), Ordering::Relaxed);
            each(waiter);
        }
    }
}
