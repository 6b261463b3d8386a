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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::database::Databases;
    use super::super::disk::{Disk, How};
    use super::super::lossy::LossyDisk;
    use super::*;

    #[test]
    fn a_lock_that_has_no_queue_is_asked_for_again_until_the_time_is_over() {
        let disk: Arc<dyn Disk> = Arc::new(LossyDisk::default());
        let how = How { create: true, ..How::default() };
        let seat = Databases::default().open(&disk, Path::new("/db"), how).unwrap();
        let now = Instant::now();
        assert!(ask_again(&seat, host::after(now, Duration::from_secs(3600))));
        assert!(!ask_again(&seat, now));
    }
}
