//! The wakers of the futures that wait in a channel.
//!
//! A future has no place among the tickets of the channel. It leaves its waker in one of two rows,
//! and tries again whenever it is polled:
//!
//! ```text
//!   the future                                  the peer
//!   1 enters its waker in a row                 1 sends (receives), under the channel's lock
//!   2 tries to receive (send), under the        2 looks whether a future waits to receive
//!     channel's lock; pending if it can't         (send), and wakes the first
//! ```
//!
//! *No wake-up is lost.* Both take the channel's lock. If the future tries after the peer's step 1,
//! it finds what the peer has done. If it tries before, the peer's step 2 finds its waker.
//!
//! A waker that was taken from its row stands for one value, or for room for one. A future that
//! finds its own waker gone, and does not use what it was woken for, wakes the next one instead:
//! for example a future that is dropped. A value that goes straight to a waiting receiver uses no
//! room, so its sender wakes the next sender, too.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::current::Operation;
use crate::os::counted::AtomicUsize;
use crate::os::panics::contain;
use crate::os::short_lock::ShortLock;

/// In which row a future waits.
#[derive(Clone, Copy)]
pub(super) enum RowOf {
    Receivers,
    Senders,
}

/// The futures that wait in a channel.
pub(super) struct Awaiting([Row; 2]);

/// The wakers of one side, first come first.
struct Row {
    /// How many there are. Written under the lock.
    len: AtomicUsize,
    wakers: ShortLock<Wakers>,
}

#[derive(Default)]
struct Wakers {
    all: VecDeque<(Number, Waker)>,
    last: Number,
}

/// The number of a waker in its row.
type Number = u64;

impl Awaiting {
    pub(super) fn new() -> Awaiting {
        let row = || Row { len: AtomicUsize::new(0), wakers: ShortLock::default() };
        Awaiting([row(), row()])
    }

    /// Wakes the first future of this side: there is a value for it, or room.
    #[inline]
    pub(super) fn tell(&self, side: RowOf) {
        let row = &self.0[side as usize];
        if row.len.load(Ordering::Relaxed) != 0 {
            row.tell_first();
        }
    }

    /// Wakes all futures: the other side of the channel has gone.
    pub(super) fn tell_all(&self) {
        for row in &self.0 {
            if row.len.load(Ordering::Relaxed) != 0 {
                let all = row.change(|wakers| std::mem::take(&mut wakers.all));
                all.into_iter().for_each(wake);
            }
        }
    }

    /// Returns the part of a future of this side.
    pub(super) fn entry(&self, side: RowOf) -> InRow<'_> {
        InRow { row: &self.0[side as usize], number: None }
    }
}

impl Row {
    #[cold]
    fn tell_first(&self) {
        let first = self.change(|wakers| wakers.all.pop_front());
        first.into_iter().for_each(wake);
    }

    /// Changes the row under its lock. What `change` returns is dropped after that: wakers are code
    /// of the application.
    fn change<R>(&self, change: impl FnOnce(&mut Wakers) -> R) -> R {
        let caller = Operation::begin_release();
        caller.locked(&self.wakers, |wakers| {
            let result = change(wakers);
            self.len.store(wakers.all.len(), Ordering::Relaxed);
            result
        })
    }

    /// Enters a waker at the end.
    fn enter(&self, waker: Waker) -> Number {
        self.change(|Wakers { all, last }| {
            *last += 1;
            all.push_back((*last, waker));
            *last
        })
    }

    /// Takes the future's waker out. Returns false if it was woken: the waker is gone.
    fn leave(&self, number: Number) -> bool {
        let own = self.change(|Wakers { all, .. }| {
            let at = all.iter().position(|entry| entry.0 == number);
            at.and_then(|at| all.remove(at))
        });
        own.is_some()
    }
}

/// Calls a waker, which is code of the application.
fn wake((_, waker): (Number, Waker)) {
    contain(|| waker.wake());
}

/// One future's part in the protocol.
pub(super) struct InRow<'a> {
    row: &'a Row,
    /// Where its waker is, or was before it was woken.
    number: Option<Number>,
}

impl InRow<'_> {
    /// Called in a poll: tries, enters the waker, and tries again. Stays in the row only if
    /// `attempt` returns None both times.
    pub(super) fn poll<R>(
        &mut self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut() -> Option<R>,
    ) -> Poll<R> {
        // Out of the row during the first attempt. Otherwise it might be woken for one thing while
        // it takes another, and not know it.
        self.number.take().into_iter().for_each(|number| _ = self.row.leave(number));
        if let Some(done) = attempt() {
            return Poll::Ready(done);
        }
        self.number = Some(self.row.enter(context.waker().clone()));
        match attempt() {
            None => Poll::Pending,
            Some(done) => {
                self.leave();
                Poll::Ready(done)
            }
        }
    }

    /// Leaves the row. If another thread has woken this future meanwhile, wakes the next one
    /// instead: this one does not use it.
    fn leave(&mut self) {
        if let Some(number) = self.number.take()
            && !self.row.leave(number)
        {
            self.row.tell_first();
        }
    }
}

impl Drop for InRow<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
