//! Readiness: waits until a descriptor has input, or room, as one arm of a select.
//!
//! ```text
//!   Idle ──about_to_wait──▶ Submitted ──queue──▶ Waiting(ticket)
//!    ▲                          │  ▲                   │  │ the poll completes:
//!    │ try_now                  │  └──── unqueue ──────┘  │ the ticket is claimed
//!    └──────── Complete ◀───────┴─────────────────────────┘
//! ```
//!
//! The descriptor is looked at first, so a poll is submitted only before a wait. A poll has no
//! buffer, so its completion may come when the select has ended; it then finds no ticket. The poll
//! stays on the I/O list while the select tries its arms again, and is cancelled when the arm is
//! dropped. With io_uring the kernel keeps the socket open until it has carried that out, which is
//! at the latest when the scheduler next waits.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::request::Pending;
use super::{decode, submit};
use crate::current::{before_short_lock, ready};
use crate::os::driver::{LiveOp, Side};
use crate::os::linux::call::{Tried, try_now};
use crate::os::short_lock::ShortLock;
use crate::os::sockets;
use crate::scheduler::here;
use crate::wait::{Outcome, Source, Ticket};

/// Waits until a descriptor is ready. The descriptor stays open while this lives.
pub(crate) struct Readiness {
    fd: RawFd,
    side: Side,
    poll: Arc<ShortLock<Poll>>,
    pending: RefCell<Option<Pending>>,
}

enum Poll {
    Idle,
    /// The caller cannot wait here, because it is no worker, or preemptive.
    Refused,
    Submitted,
    Waiting(Ticket),
    /// With the result of the system call.
    Complete(i32),
}

impl Readiness {
    /// Readiness of this descriptor, which a socket keeps open.
    pub(crate) fn new(fd: RawFd, side: Side) -> Readiness {
        let poll = Arc::new(ShortLock::new(Poll::Idle));
        Readiness { fd, side, poll, pending: RefCell::new(None) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Poll) -> R) -> R {
        let _settled = before_short_lock();
        change(&mut self.poll.lock())
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        let under_way = self.change(|poll| matches!(poll, Poll::Submitted | Poll::Waiting(_)));
        if under_way && let Some(pending) = self.pending.take() {
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
            Poll::Idle | Poll::Submitted | Poll::Waiting(_) => Poll::Idle,
        });
        match completed {
            Poll::Refused => {
                let text = "only a worker on its scheduler can wait for a socket in a select";
                return Some(Err(io::Error::new(io::ErrorKind::Unsupported, text)));
            }
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
        let submits = self.change(|poll| {
            let idle = matches!(poll, Poll::Idle);
            if idle {
                *poll = if is_worker { Poll::Submitted } else { Poll::Refused };
            }
            idle && is_worker
        });
        if !submits {
            return;
        }
        let poll = Arc::clone(&self.poll);
        let complete = move |result| {
            let before = mem::replace(&mut *poll.lock(), Poll::Complete(result));
            if let Poll::Waiting(ticket) = before {
                ticket.claim(Outcome::Granted).into_iter().for_each(ready);
            }
        };
        let token = submit(LiveOp::poll(self.fd, self.side), Box::new(complete));
        *self.pending.borrow_mut() = Some(Pending::of(token));
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
