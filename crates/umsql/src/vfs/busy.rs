//! The busy handler: where a worker waits for a lock of the database.
//!
//! SQLite calls the busy handler when a lock was refused and waiting cannot deadlock. The handler
//! parks the worker in the queue of the lock table, and returns whether SQLite should try again.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::callback::guarded;
use super::database::Seat;
use super::locks::Waited;
use crate::host;

/// How long a connection waits for a lock.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes `connection` wait in its database's lock queue, for at most `timeout` at a time.
pub(crate) fn install(
    connection: &mut Connection,
    seat: Seat,
    timeout: Duration,
) -> rusqlite::Result<()> {
    let mut until = Instant::now();
    connection.busy_handler(Some(move |looks: i32| {
        if looks == 0 {
            until = host::after(Instant::now(), timeout);
        }
        guarded(false, || ask_again(&seat, until))
    }))
}

fn ask_again(seat: &Seat, until: Instant) -> bool {
    match seat.database.locks.wait(seat.member, until) {
        Waited::LookAgain => true,
        // The log changed while a snapshot was taken, or the lock is that of an attached database.
        // There is no queue to wait in, so it sleeps.
        Waited::NotHere => Instant::now() < until && host::sleep(Duration::from_millis(1)).is_ok(),
        Waited::Failed => false,
    }
}
