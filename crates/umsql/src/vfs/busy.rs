//! The busy handler: where a worker waits for a lock of the database.
//!
//! SQLite calls it when a lock was refused and waiting is sound. It parks the worker in the line of
//! the lock table, and says whether SQLite is to ask again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::database::Seat;
use super::locks::Waited;
use crate::host;

/// How long a refused member waits.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes `connection` wait in the lines of its database, for at most `timeout` at a time.
pub(crate) fn install(
    connection: &mut Connection,
    seat: Seat,
    timeout: Duration,
) -> rusqlite::Result<()> {
    let mut until = Instant::now();
    connection.busy_handler(Some(move |looks: i32| {
        if looks == 0 {
            until = Instant::now() + timeout;
        }
        catch_unwind(AssertUnwindSafe(|| ask_again(&seat, until))).unwrap_or(false)
    }))
}

fn ask_again(seat: &Seat, until: Instant) -> bool {
    match seat.database.locks.wait(seat.member, until) {
        Waited::LookAgain => true,
        // A snapshot that was outrun while it was taken, or a lock of an attached database.
        Waited::NotHere => Instant::now() < until && host::sleep(Duration::from_millis(1)).is_ok(),
        Waited::TimedOut | Waited::Interrupted => false,
    }
}
