//! The broadcast: every receiver gets every value, in order, unless it falls too far behind.
//!
//! The values have numbers. The channel keeps the newest, up to its bound; a receiver notes the
//! number of its next value. So a sender never waits for a slow receiver: that receiver loses its
//! oldest values, and is told how many. Its copy of a value is made without the channel's lock.
//!
//! ```text
//!             oldest that is kept       newest
//!                    v                    v
//!   0  1  2  3  4  [ 5  6  7  8  9  10  11 ]
//!         ^                      ^
//!         a receiver that has    a receiver whose next value is 9
//!         lost 3 values
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SendError;
use crate::sync::condvar::Condvar;
use crate::sync::mutex::{Mutex, MutexGuard};
use crate::sync::patience::Patience;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Source, Ticket, Waitable};

/// Creates a broadcast that keeps the newest `bound` values for receivers that have not got them.
///
/// # Panics
/// Panics if `bound` is 0.
///
/// ```
/// let (tx, mut first) = ums::sync::channel::broadcast(16);
/// let mut second = tx.subscribe();
/// tx.send("hello").unwrap();
/// assert_eq!((first.recv(), second.recv()), (Ok("hello"), Ok("hello")));
/// ```
#[track_caller]
pub fn broadcast<T: Clone>(bound: usize) -> (BroadcastSender<T>, BroadcastReceiver<T>) {
    assert!(bound > 0, "a broadcast keeps at least one value: its bound is 0");
    let (values, receivers) = (VecDeque::new(), 1);
    let kept = Kept { values, bound, first: 0, senders: 1, receivers };
    let station = Arc::new(Station { kept: Mutex::new(kept), came: Condvar::new() });
    (BroadcastSender { station: station.clone() }, BroadcastReceiver { station, next: 0 })
}

struct Station<T> {
    kept: Mutex<Kept<T>>,
    came: Condvar,
}

struct Kept<T> {
    values: VecDeque<Arc<T>>,
    bound: usize,
    /// The number of the first value that is kept.
    first: u64,
    senders: usize,
    receivers: usize,
}

impl<T> Kept<T> {
    /// Returns the number of the value that is sent next.
    fn end(&self) -> u64 {
        self.first + self.values.len() as u64
    }

    /// Returns whether a receiver whose next value has this number need not wait.
    fn has_news_at(&self, next: u64) -> bool {
        self.end() != next || self.senders == 0
    }
}

impl<T: Clone> Kept<T> {
    /// Returns what a receiver gets whose next value is `next`, and that need not wait.
    fn take(kept: MutexGuard<'_, Kept<T>>, next: &mut u64) -> Result<T, BroadcastError> {
        if *next < kept.first {
            let lost = kept.first - *next;
            *next = kept.first;
            return Err(BroadcastError::Lagged(lost));
        }
        let value = kept.values.get((*next - kept.first) as usize).cloned();
        drop(kept);
        let value = value.ok_or(BroadcastError::Disconnected)?;
        *next += 1;
        // The application's code, without the lock. The last receiver gets the value itself if the
        // channel has let it go.
        Ok(Arc::unwrap_or_clone(value))
    }
}

/// Why a receiver of a [`broadcast`] got no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastError {
    /// The receiver has lost this many values, because it was too slow. It continues with the
    /// oldest that is kept.
    Lagged(u64),
    /// The receiver has got all values, and there is no sender any more.
    Disconnected,
    /// The wait for a value ended: the deadline passed, or the work request was cancelled.
    Wait(WaitError),
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BroadcastError::Lagged(lost) => {
                write!(f, "the receiver was too slow and lost {lost} values")
            }
            BroadcastError::Disconnected => {
                f.write_str("the broadcast has ended: it has no sender any more")
            }
            BroadcastError::Wait(error) => write!(f, "no value was received: {error}"),
        }
    }
}

impl Error for BroadcastError {}

/// The side of a [`broadcast`] that sends. Clones send to the same receivers.
pub struct BroadcastSender<T> {
    station: Arc<Station<T>>,
}

/// A receiver of a [`broadcast`]. A clone gets what the original has not got yet.
pub struct BroadcastReceiver<T> {
    station: Arc<Station<T>>,
    /// The number of the next value.
    next: u64,
}

impl<T: Clone> BroadcastSender<T> {
    /// Sends a value to all receivers. Never waits for them.
    ///
    /// # Errors
    /// [`SendError::Disconnected`] with the value if there is no receiver.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let value = Arc::new(value);
        let mut kept = self.station.kept.lock();
        if kept.receivers == 0 {
            drop(kept);
            let value = Arc::into_inner(value).expect("no receiver has seen it");
            return Err(SendError::Disconnected(value));
        }
        let oldest = if kept.values.len() == kept.bound {
            kept.first += 1;
            kept.values.pop_front()
        } else {
            None
        };
        kept.values.push_back(value);
        drop(kept);
        self.station.came.notify_all();
        // Its destructor is the application's code.
        drop(oldest);
        Ok(())
    }

    /// Creates a receiver of what is sent from now on.
    pub fn subscribe(&self) -> BroadcastReceiver<T> {
        let mut kept = self.station.kept.lock();
        kept.receivers += 1;
        BroadcastReceiver { station: self.station.clone(), next: kept.end() }
    }
}

impl<T: Clone> BroadcastReceiver<T> {
    /// Receives the next value; waits as long as necessary.
    ///
    /// # Errors
    /// [`BroadcastError`] if values were lost, if there is no further value and no sender any more,
    /// or if the work request was cancelled.
    pub fn recv(&mut self) -> Result<T, BroadcastError> {
        self.recv_within(Patience::Cancellable)
    }

    /// Receives the next value within this time.
    ///
    /// # Errors
    /// As [`recv`](BroadcastReceiver::recv); [`BroadcastError::Wait`] also if the time passed.
    pub fn recv_for(&mut self, time: Duration) -> Result<T, BroadcastError> {
        self.recv_within(Patience::For(time))
    }

    /// Receives the next value before this moment.
    ///
    /// # Errors
    /// Like [`recv_for`](BroadcastReceiver::recv_for).
    pub fn recv_until(&mut self, deadline: Instant) -> Result<T, BroadcastError> {
        self.recv_within(Patience::Until(deadline))
    }

    fn recv_within(&mut self, patience: Patience) -> Result<T, BroadcastError> {
        let Station { kept, came } = &*self.station;
        let mut kept = kept.lock();
        let next = self.next;
        let nothing = |kept: &mut Kept<T>| !kept.has_news_at(next);
        let waited = came.wait_while_within(&mut kept, patience.fixed(), nothing);
        waited.map_err(BroadcastError::Wait)?;
        Kept::take(kept, &mut self.next)
    }
}

/// The arm of a [`Select`](crate::sync::Select) that does as [`recv`](BroadcastReceiver::recv).
///
/// ```
/// use std::time::Duration;
/// use ums::sync::{Select, channel::broadcast};
/// let (tx, mut rx) = broadcast(16);
/// tx.send("hello").unwrap();
/// let got = Select::new()
///     .on(&mut rx, |value| value.ok())
///     .on(Duration::from_secs(10), |()| None)
///     .wait()?;
/// assert_eq!(got, Some("hello"));
/// # Ok::<(), ums::WaitError>(())
/// ```
impl<'a, T: Clone> Waitable<'a> for &'a mut BroadcastReceiver<T> {
    type Output = Result<T, BroadcastError>;

    fn arm(self) -> Arm<'a, Self::Output> {
        Arm::new(self)
    }
}

impl<T: Clone> Source<Result<T, BroadcastError>> for &mut BroadcastReceiver<T> {
    fn try_now(&mut self) -> Option<Result<T, BroadcastError>> {
        let kept = self.station.kept.lock();
        kept.has_news_at(self.next).then(|| Kept::take(kept, &mut self.next))
    }

    fn queue(&self, ticket: Ticket) -> bool {
        let Station { kept, came } = &*self.station;
        came.queue_if(kept, ticket, |kept| !kept.has_news_at(self.next))
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        self.station.came.unqueue(ticket, granted);
    }

    fn granted(&mut self) -> Option<Result<T, BroadcastError>> {
        self.try_now()
    }
}

impl<T> Clone for BroadcastSender<T> {
    fn clone(&self) -> BroadcastSender<T> {
        self.station.kept.lock().senders += 1;
        BroadcastSender { station: self.station.clone() }
    }
}

impl<T> Clone for BroadcastReceiver<T> {
    fn clone(&self) -> BroadcastReceiver<T> {
        self.station.kept.lock().receivers += 1;
        BroadcastReceiver { station: self.station.clone(), next: self.next }
    }
}

impl<T> Drop for BroadcastSender<T> {
    fn drop(&mut self) {
        self.station.kept.lock().senders -= 1;
        self.station.came.notify_all();
    }
}

impl<T> Drop for BroadcastReceiver<T> {
    fn drop(&mut self) {
        let mut kept = self.station.kept.lock();
        kept.receivers -= 1;
        // Later receivers begin with later values.
        let unread = if kept.receivers == 0 {
            kept.first = kept.end();
            std::mem::take(&mut kept.values)
        } else {
            VecDeque::new()
        };
        drop(kept);
        // Their destructors are the application's code.
        drop(unread);
    }
}

impl<T> fmt::Debug for BroadcastSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BroadcastReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastReceiver").field("next", &self.next).finish_non_exhaustive()
    }
}
