//! Chooses an I/O driver: tries the back ends in order of preference, and reports why one was not
//! used.
//!
//! ```text
//!                    one thread                     many threads
//!   auto     io_uring -> epoll -> sync              epoll -> sync
//!   uring    io_uring, or the error                 epoll: a ring belongs to one thread
//!   epoll    epoll, or the error                    the same
//!   sync     sync                                   the same
//! ```
//!
//! Containers deny io_uring by default. So the use of another back end is normal and needs no
//! configuration. The reason is part of the driver's description.

use std::io;

use super::epoll::Epoll;
use super::sync::Sync;
use super::uring::UringDriver;
use crate::os::driver::Driver;
use crate::os::faulty;

/// Which back end to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The best that the system and the driver's threads allow.
    #[default]
    Auto,
    /// io_uring or an error; but epoll for many threads, because a ring belongs to
    /// one thread.
    Uring,
    /// epoll or an error.
    Epoll,
    /// Plain synchronous calls and `poll(2)`.
    Sync,
}

impl std::str::FromStr for Choice {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Choice> {
        match text {
            "auto" | "" => Ok(Choice::Auto),
            "uring" | "io_uring" => Ok(Choice::Uring),
            "epoll" => Ok(Choice::Epoll),
            "sync" => Ok(Choice::Sync),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no I/O driver is called {text:?}; known are auto, uring, epoll and sync"),
            )),
        }
    }
}

/// Which threads will call the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverThreads {
    /// The calling thread alone, for the driver's whole life (fiber workers).
    OneThread,
    /// Any thread that holds the baton: thread workers, or the carriers that take turns in carrying
    /// a scheduler of workers with their own context.
    ManyThreads,
}

/// Opens a driver for the calling thread's scheduler. The environment variable `UMS_IO` (`auto`,
/// `uring`, `epoll`, `sync`) overrides `choice`.
///
/// # Errors
///
/// If the chosen back end is denied here (the error says why); if `UMS_IO` is no name of a back
/// end; if the process has no file descriptors left.
///
/// ```text
/// let mut io = open(Choice::Auto, DriverThreads::ManyThreads)?;
/// let mut done = Vec::new();
/// io.waker().wake();
/// io.wait(None, &mut done);
/// assert!(done.is_empty(), "a wake ends the wait and is no completion");
/// ```
pub fn open(choice: Choice, threads: DriverThreads) -> io::Result<Box<dyn Driver>> {
    if crate::os::sim::is_here() {
        let eager = choice == Choice::Sync;
        return crate::os::sim::driver::open(eager);
    }
    let choice = match std::env::var("UMS_IO") {
        Ok(forced) => forced.parse()?,
        Err(_) => choice,
    };
    open_as(choice, threads).map(faulty::wrap)
}

/// Opens a driver as [`open`] does, but ignores the environment variable.
///
/// # Errors
///
/// As for [`open`].
pub fn open_as(choice: Choice, threads: DriverThreads) -> io::Result<Box<dyn Driver>> {
    const SHARED: &str = "a ring belongs to one thread, and this scheduler has many";
    match (choice, threads) {
        (Choice::Sync, _) => Ok(Box::new(Sync::new("it was asked for".into())?)),
        (Choice::Epoll, _) => Ok(Box::new(Epoll::new("it was asked for".into())?)),
        (Choice::Uring, DriverThreads::OneThread) => Ok(Box::new(UringDriver::new()?)),
        (Choice::Uring, DriverThreads::ManyThreads) => Ok(Box::new(Epoll::new(SHARED.into())?)),
        (Choice::Auto, DriverThreads::ManyThreads) => epoll_or_sync(SHARED.into()),
        (Choice::Auto, DriverThreads::OneThread) => match UringDriver::new() {
            Ok(ring) => Ok(Box::new(ring)),
            Err(why) => epoll_or_sync(format!("io_uring: {why}")),
        },
    }
}

fn epoll_or_sync(why: String) -> io::Result<Box<dyn Driver>> {
    match Epoll::new(why.clone()) {
        Ok(epoll) => Ok(Box::new(epoll)),
        Err(error) => Ok(Box::new(Sync::new(format!("{why}; epoll: {error}"))?)),
    }
}

#[cfg(test)]
mod tests;
