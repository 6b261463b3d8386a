//! Readiness: waits until a descriptor has input, or room, as one arm of a select or for a future.
//!
//! ```text
//!   Idle ──about_to_wait──▶ Submitted ──queue──▶ Waiting(ticket), or Awaited(waker)
//!    ▲                          │  ▲                   │  │ the poll completes:
//!    │ try_now                  │  └──── unqueue ──────┘  │ the ticket is claimed,
//!    └──────── Complete ◀───────┴─────────────────────────┘ or the waker is called
//! ```
//!
//! A select looks at the descriptor first, so a poll is submitted only before a wait. A poll has no
//! buffer, so its completion may come when the select has ended; it then finds no ticket. The poll
//! stays on the I/O list while the select tries its arms again, and is cancelled when the arm is
//! dropped. With io_uring the kernel keeps the socket open until it has carried that out, which is
//! at the latest when the scheduler next waits.

use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::{self, Context, Waker};

use super::request::Pending;
use super::{decode, submit};
use crate::current::{before_short_lock, ready};
use crate::os::driver::{LiveOp, Side};
use crate::os::linux::call::{Tried, try_now};
use crate::os::lock::Lock;
use crate::os::short_lock::ShortLock;
use crate::os::sockets;
use crate::scheduler::here;
use crate::wait::{Outcome, Source, Ticket};

/// Waits until a descriptor is ready. The descriptor stays open while this lives.
pub(crate) struct Readiness {
    fd: RawFd,
    side: Side,
    poll: Arc<ShortLock<Poll>>,
    pending: Lock<Option<Pending>>,
}

enum Poll {
    Idle,
    /// The caller cannot wait here, because it is no worker, or preemptive.
    Refused,
    Submitted,
    Waiting(Ticket),
    Awaited(Waker),
    /// With the result of the system call.
    Complete(i32),
}

impl Readiness {
    /// Readiness of this descriptor, which a socket keeps open.
    pub(crate) fn new(fd: RawFd, side: Side) -> Readiness {
        let poll = Arc::new(ShortLock::new(Poll::Idle));
        Readiness { fd, side, poll, pending: Lock::new(None) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Poll) -> R) -> R {
        let _settled = before_short_lock();
        change(&mut self.poll.lock())
    }

    /// Returns whether the descriptor has become ready since a poll was submitted. If not, submits
    /// a poll if none is under way, and keeps the waker until it completes. Of several callers, the
    /// waker of the last one is kept.
    ///
    /// # Errors
    /// `Unsupported` if the caller is no worker on its scheduler; the system's error.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> task::Poll<io::Result<()>> {
        let mine = context.waker();
        let is_known =
            |poll: &mut Poll| matches!(poll, Poll::Awaited(waker) if waker.will_wake(mine));
        if self.change(is_known) {
            return task::Poll::Pending;
        }
        if here().is_none() {
            return task::Poll::Ready(Err(refused()));
        }
        // The code of a waker is the application's, and is not called under the lock.
        let mut waker = Some(mine.clone());
        if self.change(Poll::begin) {
            self.submit();
        }
        let before = self.change(|poll| {
            let next = match poll {
                Poll::Complete(_) => Poll::Idle,
                _ => waker.take().map_or(Poll::Idle, Poll::Awaited),
            };
            mem::replace(poll, next)
        });
        match before {
            Poll::Complete(result) => task::Poll::Ready(decode(result).map(drop)),
            _ => task::Poll::Pending,
        }
    }

    /// Submits a poll. The state says so already.
    fn submit(&self) {
        let poll = Arc::clone(&self.poll);
        let complete = move |result| {
            let before = mem::replace(&mut *poll.lock(), Poll::Complete(result));
            match before {
                Poll::Waiting(ticket) => {
                    ticket.claim(Outcome::Granted).into_iter().for_each(ready);
                }
                Poll::Awaited(waker) => waker.wake(),
                Poll::Idle | Poll::Refused | Poll::Submitted | Poll::Complete(_) => (),
            }
        };
        let token = submit(LiveOp::poll(self.fd, self.side), Box::new(complete));
        *self.pending.lock() = Some(Pending::of(token));
    }
}

impl Poll {
    /// Changes the state from idle to submitted. Returns whether it was idle.
    fn begin(&mut self) -> bool {
        let idle = matches!(self, Poll::Idle);
        if idle {
            *self = Poll::Submitted;
        }
        idle
    }
}

fn refused() -> io::Error {
    let text = "only a worker on its scheduler can wait for a socket in a select or a future";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

impl Drop for Readiness {
    fn drop(&mut self) {
        let under_way = match self.change(|poll| mem::replace(poll, Poll::Idle)) {
            Poll::Submitted | Poll::Waiting(_) | Poll::Awaited(_) => true,
            Poll::Idle | Poll::Refused | Poll::Complete(_) => false,
        };
        if under_way && let Some(pending) = self.pending.lock().take() {
            pending.cancel();
        }
    }
}

impl Source<io::Result<()>> for Readiness {
    /// The error is `Unsupported` if the caller would have had to wait, and cannot; or the error of
    /// a poll.
    fn try_now(&mut self) -> Option<io::Result<()>> {
        let completed = self.change(|poll| match poll {
            Poll::Refused | Poll::Complete(_) => mem::replace(poll, Poll::Idle),
            Poll::Idle | Poll::Submitted | Poll::Waiting(_) | Poll::Awaited(_) => Poll::Idle,
        });
        match completed {
            Poll::Refused => return Some(Err(refused())),
            Poll::Complete(result) if result < 0 => return Some(decode(result).map(drop)),
            // In a simulated world only a completion says that the descriptor is ready.
            Poll::Complete(_) if !sockets::are_tried_first() => return Some(Ok(())),
            _ if !sockets::are_tried_first() => return None,
            // It may have been ready when the poll completed, and have been emptied since.
            _ => {}
        }
        match try_now(&mut LiveOp::poll(self.fd, self.side)) {
            Tried::Finished(result) => Some(decode(result).map(drop)),
            Tried::WouldBlock => None,
        }
    }

    /// Submits a poll, if none is under way.
    fn about_to_wait(&self) {
        let is_worker = here().is_some();
        let begins = self.change(|poll| {
            let begins = poll.begin();
            if begins && !is_worker {
                *poll = Poll::Refused;
            }
            begins && is_worker
        });
        if begins {
            self.submit();
        }
    }

    /// Gives the ticket to the poll. Returns false if no poll is under way.
    fn queue(&self, ticket: Ticket) -> bool {
        // The poll has completed, or completes after this and finds the ticket.
        self.change(|poll| {
            let waits = matches!(poll, Poll::Submitted);
            if waits {
                *poll = Poll::Waiting(ticket);
            }
            waits
        })
    }

    /// Takes the ticket back, if it is still there.
    fn unqueue(&self, _: Ticket, _: bool) {
        self.change(|poll| {
            if let Poll::Waiting(_) = poll {
                *poll = Poll::Submitted;
            }
        });
    }

    fn granted(&mut self) -> Option<io::Result<()>> {
        self.try_now()
    }
}
