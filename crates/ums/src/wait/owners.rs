//! Owners: whom a wait is for, asked of the resource itself while somebody waits for it.
//!
//! A waiter notes its blocker when it begins to wait, but a lock goes from hand to hand while
//! others wait. Who looks for deadlocks has to know who holds it now, and only the lock can say.
//! So a wait for something with an owner carries a *question*: how to ask the resource. A waiter
//! borrows what it waits for, so the resource is there as long as the wait is; the looker makes
//! sure that this is so for as long as it asks, by *holding* the waiter:
//!
//! ```text
//!   looker                              waiter
//!   L1 held = true                      (somebody claims the wait: W1, a swap of the word)
//!   L2 is the wait still going on?      W2 takes the outcome
//!   L3 if so, ask the resource          W3 while held: wait
//!   L4 held = false                     W4 leaves, and the resource may go
//! ```
//!
//! L1, L2, W1 and W3 are sequentially consistent. If L2 sees the wait going on, W1 comes after L2
//! in their one order, so W3 comes after L1 and sees it (or L4, when the looker is done). So a wait
//! that is over costs one load more, and one that nobody looks at costs nothing else.
//!
//! Named invariant **Held Waiter**: a question is put only between L2 and L4; then the waiter is in
//! its wait, or waits at W3, and what it borrows is alive.
//!
//! What this file does not do: it follows no chain and judges nothing.

#![allow(unsafe_code)]

use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use super::{STATE_BITS, STATE_MASK, Ticket, WAITING, Waiter};
use crate::os::atomic::{self, AtomicBool, AtomicPtr, AtomicU32};

/// Who has what somebody waits for.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// A worker or thread.
    Waiter(&'static Waiter),
    /// A user, whichever worker carries out its request.
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

/// Something that somebody owns while others wait for it.
pub(crate) trait Owned {
    /// Tells each owner that this wait is for.
    fn owners(&self, waiter: Ticket, tell: &mut dyn FnMut(Owner));
}

/// How to ask a resource whose type is known to the waiter only.
struct Question {
    /// # Safety
    /// Held Waiter: the pointer is the one that the waiter gave with the question.
    ask: unsafe fn(resource: *const (), waiter: Ticket, tell: &mut dyn FnMut(Owner)),
}

/// # Safety
/// As for [`Question::ask`].
unsafe fn ask<R: Owned>(resource: *const (), waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
    // SAFETY: Held Waiter: it points to what the waiter borrows, which is an `R`.
    unsafe { &*resource.cast::<R>() }.owners(waiter, tell);
}

/// The question that a waiter's present wait carries, and whether somebody asks it.
pub(super) struct Asking {
    question: AtomicPtr<Question>,
    resource: AtomicPtr<()>,
    as_victim: AtomicU32,
    held: AtomicBool,
}

impl Asking {
    pub(super) fn new() -> Asking {
        Asking {
            question: AtomicPtr::new(null_mut()),
            resource: AtomicPtr::new(null_mut()),
            as_victim: AtomicU32::new(0),
            held: AtomicBool::new(false),
        }
    }
}

/// The caller's next wait can be asked, until this is dropped, after it.
#[must_use = "it is asked only while this lives"]
pub(crate) struct Askable<'a> {
    waiter: &'static Waiter,
    borrowed: std::marker::PhantomData<&'a ()>,
}

impl Waiter {
    /// The next wait of this waiter, which is the caller's, is for this resource. What this gives
    /// is dropped after the wait, while the resource is still borrowed.
    #[inline]
    pub(crate) fn will_wait_for<'a, R: Owned>(
        &'static self,
        resource: &'a R,
        as_victim: AsVictim,
    ) -> Askable<'a> {
        if self.home.load(Ordering::Relaxed).is_null() {
            // A worker notes it when it parks.
            self.began.store(crate::os::clock::ticks(), Ordering::Relaxed);
        }
        // Published by the store that begins the wait.
        self.asking.resource.store(from_ref(resource).cast_mut().cast(), Ordering::Relaxed);
        self.asking.as_victim.store(as_victim as u32, Ordering::Relaxed);
        let question: &'static Question = const { &Question { ask: ask::<R> } };
        self.asking.question.store(from_ref(question).cast_mut(), Ordering::Relaxed);
        Askable { waiter: self, borrowed: std::marker::PhantomData }
    }

    /// Its present wait, if it waits for something that can be asked.
    pub(crate) fn askable_wait(&'static self) -> Option<Ticket> {
        let word = self.word.load(Ordering::Acquire);
        let waits =
            word & STATE_MASK == WAITING && !self.asking.question.load(Ordering::Relaxed).is_null();
        waits.then_some(Ticket { waiter: self, number: word >> STATE_BITS })
    }
}

impl Drop for Askable<'_> {
    #[inline]
    fn drop(&mut self) {
        let asking = &self.waiter.asking;
        atomic::no_overtaking();
        while asking.held.load(Ordering::SeqCst) {
            // Somebody asks at this very moment, which takes a few instructions.
            atomic::let_others_run();
        }
        asking.question.store(null_mut(), Ordering::Relaxed);
    }
}

impl Ticket {
    /// The number of this wait among those of its waiter.
    pub(crate) fn number(self) -> u64 {
        self.number
    }

    /// What happens to it as a victim. None: the wait is over, or cannot be asked.
    pub(crate) fn as_victim(self) -> Option<AsVictim> {
        self.hold(|_, _| match self.waiter.asking.as_victim.load(Ordering::Relaxed) {
            n if n == AsVictim::Fails as u32 => AsVictim::Fails,
            n if n == AsVictim::Panics as u32 => AsVictim::Panics,
            _ => AsVictim::Never,
        })
    }

    /// Whom it is for, at this moment. None: the wait is over, or cannot be asked.
    pub(crate) fn owners(self) -> Option<Vec<Owner>> {
        self.hold(|question, resource| {
            let mut owners = Vec::new();
            // SAFETY: Held Waiter: `hold` says so, and gives the waiter's own pointer.
            unsafe { (question.ask)(resource, self, &mut |owner| owners.push(owner)) };
            owners
        })
    }

    /// Does this while the waiter stays where it is.
    fn hold<T>(self, f: impl FnOnce(&'static Question, *const ()) -> T) -> Option<T> {
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

/// One looker at a time, so that who lets a waiter go is who held it.
fn lookers() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}
