//! Readiness: waits until a descriptor has input, or room, as one arm of a select or for a future.
//!
//! ```text
//!   Idle ──about_to_wait──▶ Submitted ──queue──▶ Waiting(ticket), or Awaited(waker)
//!    ▲                          │  ▲                   │  │ the poll completes:
//!    │ try_now                  │  └──── unqueue ──────┘  │ the ticket is claimed,
//!    └──────── Complete ◀───────┴─────────────────────────┘ or the waker is called
//! ```
//!
//! A future submits a poll, too, and leaves its waker: see [`Readiness::poll`].
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
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

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
    stage: Arc<ShortLock<Stage>>,
    /// How many polls have been submitted. Changed under the lock of `stage`.
    rounds: AtomicU64,
    /// The last poll that was submitted, and its number.
    pending: Lock<(u64, Option<Pending>)>,
}

enum Stage {
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
        let stage = Arc::new(ShortLock::new(Stage::Idle));
        Readiness { fd, side, stage, rounds: AtomicU64::new(0), pending: Lock::new((0, None)) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut Stage) -> R) -> R {
        let _settled = before_short_lock();
        change(&mut self.stage.lock())
    }

    /// Returns whether the descriptor has become ready since a poll was submitted. If not, submits
    /// a poll if none is under way, and keeps the waker until it completes. Of several callers, the
    /// waker of the last one is kept.
    ///
    /// # Errors
    /// `Unsupported` if the caller would have to wait and is no worker on its scheduler; the
    /// system's error.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mine = context.waker();
        let is_known =
            |stage: &mut Stage| matches!(stage, Stage::Awaited(waker) if waker.will_wake(mine));
        if self.change(is_known) {
            return Poll::Pending;
        }
        // The code of a waker is the application's, and is not called under the lock.
        let mut waker = Some(mine.clone());
        loop {
            let before = self.change(|stage| {
                let next = match stage {
                    Stage::Idle | Stage::Refused | Stage::Complete(_) => Stage::Idle,
                    Stage::Submitted | Stage::Waiting(_) | Stage::Awaited(_) => {
                        waker.take().map_or(Stage::Submitted, Stage::Awaited)
                    }
                };
                mem::replace(stage, next)
            });
            match before {
                Stage::Complete(result) => return Poll::Ready(decode(result).map(drop)),
                Stage::Submitted | Stage::Waiting(_) | Stage::Awaited(_) => return Poll::Pending,
                Stage::Idle | Stage::Refused if here().is_none() => {
                    return Poll::Ready(self.look().unwrap_or_else(|| Err(refused())));
                }
                // Between this and the next look, the poll may complete, and another caller may
                // take its result.
                Stage::Idle | Stage::Refused => self.submit(),
            }
        }
    }

    /// Returns the descriptor's state now: `None` if it is not ready.
    fn look(&self) -> Option<io::Result<()>> {
        match try_now(&mut LiveOp::poll(self.fd, self.side)) {
            Tried::Finished(result) => Some(decode(result).map(drop)),
            Tried::WouldBlock => None,
        }
    }

    /// Submits a poll, if none is under way.
    fn submit(&self) {
        let begins = self
            .change(|stage| stage.begin().then(|| self.rounds.fetch_add(1, Ordering::Relaxed) + 1));
        let Some(round) = begins else { return };
        let stage = Arc::clone(&self.stage);
        let complete = move |result| {
            let before = mem::replace(&mut *stage.lock(), Stage::Complete(result));
            match before {
                Stage::Waiting(ticket) => {
                    ticket.claim(Outcome::Granted).into_iter().for_each(ready);
                }
                Stage::Awaited(waker) => waker.wake(),
                Stage::Idle | Stage::Refused | Stage::Submitted | Stage::Complete(_) => (),
            }
        };
        let token = submit(LiveOp::poll(self.fd, self.side), Box::new(complete));
        let mut pending = self.pending.lock();
        // Of two callers, the one that submitted first may come here last.
        if pending.0 < round {
            *pending = (round, Some(Pending::of(token)));
        }
    }
}

impl Stage {
    /// Changes the state from idle to submitted. Returns whether it was idle.
    fn begin(&mut self) -> bool {
        let idle = matches!(self, Stage::Idle);
        if idle {
            *self = Stage::Submitted;
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
        let under_way = match self.change(|stage| mem::replace(stage, Stage::Idle)) {
            Stage::Submitted | Stage::Waiting(_) | Stage::Awaited(_) => true,
            Stage::Idle | Stage::Refused | Stage::Complete(_) => false,
        };
        if under_way && let Some(pending) = self.pending.lock().1.take() {
            pending.cancel();
        }
    }
}

impl Source<io::Result<()>> for Readiness {
    /// The error is `Unsupported` if the caller would have had to wait, and cannot; or the error of
    /// a poll.
    fn try_now(&mut self) -> Option<io::Result<()>> {
        let completed = self.change(|stage| match stage {
            Stage::Refused | Stage::Complete(_) => mem::replace(stage, Stage::Idle),
            Stage::Idle | Stage::Submitted | Stage::Waiting(_) | Stage::Awaited(_) => Stage::Idle,
        });
        match completed {
            Stage::Refused => return Some(Err(refused())),
            Stage::Complete(result) if result < 0 => return Some(decode(result).map(drop)),
            // In a simulated world only a completion says that the descriptor is ready.
            Stage::Complete(_) if !sockets::are_tried_first() => return Some(Ok(())),
            _ if !sockets::are_tried_first() => return None,
            // It may have been ready when the poll completed, and have been emptied since.
            _ => {}
        }
        self.look()
    }

    /// Submits a poll, if none is under way.
    fn about_to_wait(&self) {
        if here().is_some() {
            return self.submit();
        }
        self.change(|stage| {
            if stage.begin() {
                *stage = Stage::Refused;
            }
        });
    }

    /// Gives the ticket to the poll. Returns false if no poll is under way.
    fn queue(&self, ticket: Ticket) -> bool {
        // The poll has completed, or completes after this and finds the ticket.
        self.change(|stage| {
            let waits = matches!(stage, Stage::Submitted);
            if waits {
                *stage = Stage::Waiting(ticket);
            }
            waits
        })
    }

    /// Takes the ticket back, if it is still there.
    fn unqueue(&self, _: Ticket, _: bool) {
        self.change(|stage| {
            if let Stage::Waiting(_) = stage {
                *stage = Stage::Submitted;
            }
        });
    }

    fn granted(&mut self) -> Option<io::Result<()>> {
        self.try_now()
    }
}
