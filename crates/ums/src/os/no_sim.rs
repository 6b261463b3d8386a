//! What stands for the simulated world (`sim/`) in a build without the feature `sim`: no caller is
//! in one.
//!
//! It has the names that the code outside uses, so that this code asks at run time, and has no
//! second form for a build without simulation. All of it is constant: the compiler removes the
//! question and what follows it.

/// Number of threads that a world has room for.
pub const THREADS: u64 = 0;

/// What a thread waits on in a world.
#[expect(dead_code, reason = "without a world, no code reads what a thread waits on")]
pub enum On {
    /// Nothing but the time.
    Time,
    /// An event, by its address.
    Event(usize),
    /// A driver's bell, by its descriptor.
    Bell(std::os::fd::RawFd),
}

/// Returns true if the caller is in a world.
#[inline(always)]
pub const fn is_here() -> bool {
    false
}

/// Returns the time of the caller's world.
#[inline(always)]
pub const fn now() -> Option<u64> {
    None
}

/// Marks a place where another thread of the world may run.
#[inline(always)]
pub const fn point(_: &'static str) {}

/// Waits, in a world.
#[inline(always)]
pub const fn block(_: On, _: u64, _: &'static str) {}

/// Makes the threads of the world runnable that wait for this.
#[inline(always)]
pub const fn wake(_: On) {}

/// Ends the caller's world.
#[inline(always)]
pub const fn fail(_: &str) {}

/// Returns the text of a panic, for [`fail`].
#[inline(always)]
pub const fn text_of(_: &(dyn std::any::Any + Send)) -> String {
    String::new()
}

/// Adds a thread to the caller's world.
#[inline(always)]
pub const fn enlist(_: &str) -> Option<std::io::Result<Enlisted>> {
    None
}

/// A thread of a world: there is none, so that a handle has no room for it.
#[derive(Clone, Debug)]
pub enum Enlisted {}

impl Enlisted {
    /// Makes the calling thread this thread of the world.
    pub fn enter(self) {
        match self {}
    }

    /// Removes the thread, which could not be created.
    pub fn strike(self) {
        match self {}
    }

    /// Returns true if it has ended.
    pub fn is_gone(&self) -> bool {
        match *self {}
    }

    /// Waits until it has ended.
    pub fn wait(&self) {
        match *self {}
    }

    /// Records that its context was released.
    pub fn release(&self) {
        match *self {}
    }
}

/// Threads that leave their kernel thread, in a world.
pub mod carry {
    use crate::os::event::Event;

    /// Where the membership of a host's kernel thread is kept.
    #[derive(Default)]
    pub struct Carried;

    impl Carried {
        /// Runs a switch.
        #[inline(always)]
        pub fn along(&self, switch: impl FnOnce()) {
            switch();
        }

        /// Runs a switch that also continues the calling context on its own kernel thread.
        #[inline(always)]
        pub fn home(&self, switch: impl FnOnce()) {
            switch();
        }

        /// Picks up the membership.
        #[inline(always)]
        pub const fn arrive(&self) {}
    }

    /// Prepares the calling thread. Returns false if it is in no world.
    #[inline(always)]
    pub const fn leaves_own_thread() -> bool {
        false
    }

    /// Notifies on behalf of a thread of a world that is being saved.
    pub fn ferry(_: impl FnOnce() + Send + 'static) -> std::sync::Arc<Event> {
        unreachable!("only threads of a world have a ferryman")
    }
}

/// I/O in a world.
pub mod driver {
    use crate::os::driver::Driver;

    /// Returns a driver of the caller's world.
    pub fn open(_: bool) -> std::io::Result<Box<dyn Driver>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Operations on files. In a world its disk notes what they change.
pub mod files {
    use std::io::Result;
    use std::os::fd::RawFd;
    use std::path::Path;

    /// Opens a file.
    #[inline(always)]
    pub fn open<R>(_: &Path, open: impl FnOnce() -> Result<R>) -> Result<R> {
        open()
    }

    /// Writes a file as a whole.
    #[inline(always)]
    pub fn overwrite(_: &Path, write: impl FnOnce() -> Result<()>) -> Result<()> {
        write()
    }

    /// Removes a file's name.
    #[inline(always)]
    pub fn remove(_: &Path, remove: impl FnOnce() -> Result<()>) -> Result<()> {
        remove()
    }

    /// Gives a file another name.
    #[inline(always)]
    pub fn rename(_: &Path, _: &Path, rename: impl FnOnce() -> Result<()>) -> Result<()> {
        rename()
    }

    /// Changes the length of an open file.
    #[inline(always)]
    pub fn resize(_: RawFd, resize: impl FnOnce() -> Result<()>) -> Result<()> {
        resize()
    }

    /// Syncs a folder.
    #[inline(always)]
    pub fn sync_folder(_: &Path, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        sync()
    }
}

/// Sockets of a world's network.
pub mod sockets {
    use std::net::SocketAddr;
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::io::Result;
    use rustix::net::SocketAddrUnix;

    use crate::os::op::Op;

    /// Returns two ends of a connection.
    #[inline(always)]
    pub const fn pair() -> Option<Result<(OwnedFd, OwnedFd)>> {
        None
    }

    /// Returns a socket that listens on a port.
    #[inline(always)]
    pub const fn listener(_: &SocketAddr) -> Option<Result<OwnedFd>> {
        None
    }

    /// Returns how long it takes until the other side learns of a connection, in nanoseconds.
    #[inline(always)]
    pub const fn until_connected() -> Option<u64> {
        None
    }

    /// Connects to a port.
    #[inline(always)]
    pub const fn connect_to(_: &SocketAddr) -> Option<Result<OwnedFd>> {
        None
    }

    /// Connects to a Unix-domain listener.
    #[inline(always)]
    pub const fn connect_to_unix(_: &SocketAddrUnix) -> Option<Result<OwnedFd>> {
        None
    }

    /// Returns the addresses of a TCP connection.
    #[inline(always)]
    pub const fn addresses(_: &impl AsRawFd) -> Option<[SocketAddr; 2]> {
        None
    }

    /// Returns the address of a listener.
    #[inline(always)]
    pub const fn listens_at(_: &impl AsRawFd) -> Option<SocketAddr> {
        None
    }

    /// Returns an operation's result.
    #[inline(always)]
    pub const fn result(_: &Op, result: i32) -> i32 {
        result
    }
}
