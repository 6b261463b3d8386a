//! Replaces the simulated world (`sim/`) in a build without the feature `sim`: no caller is ever in
//! a simulated world.
//!
//! It has the names of `sim/` that other code uses. So that code needs no second form for such a
//! build: it always asks whether it is in a simulated world. Here the answer is a constant, so the
//! compiler removes the question and the code that depends on it.

/// How many threads a world has room for.
pub const THREADS: u64 = 0;

/// The thing that a thread of a simulated world waits on.
#[expect(dead_code, reason = "without a world, no code reads what a thread waits on")]
pub enum On {
    /// The thread waits for a time only.
    Time,
    /// An event, by its address.
    Event(usize),
    /// A driver's waker, by its descriptor.
    Bell(std::os::fd::RawFd),
}

/// Returns true if the caller is in a simulated world.
#[inline(always)]
pub const fn is_here() -> bool {
    false
}

/// Returns the time of the caller's simulated world; `None` outside every world.
#[inline(always)]
pub const fn now() -> Option<u64> {
    None
}

/// Returns a random number of the caller's simulated world; `None` outside every world.
#[inline(always)]
pub const fn pick(_: u64) -> Option<u64> {
    None
}

/// Marks a place where another thread of the world may run.
#[inline(always)]
pub const fn point(_: &'static str) {}

/// Marks an operation on a lock, a channel or the like, before which another thread of the world
/// may run.
#[inline(always)]
pub const fn operation(_: &'static str) {}

/// Runs `call` while no other thread of the world runs.
#[inline(always)]
pub fn uninterrupted<R>(call: impl FnOnce() -> R) -> R {
    call()
}

/// Waits, in a simulated world.
#[inline(always)]
pub const fn block(_: On, _: u64, _: &'static str) {}

/// Makes those threads of the world runnable that wait on this.
#[inline(always)]
pub const fn wake(_: On) {}

/// Ends the caller's world as failed.
#[inline(always)]
pub const fn fail(_: &str) {}

/// Returns the message of a panic, for [`fail`].
#[inline(always)]
pub const fn text_of(_: &(dyn std::any::Any + Send)) -> String {
    String::new()
}

/// Adds a thread to the caller's world.
#[inline(always)]
pub const fn enlist(_: &str) -> Option<std::io::Result<Enlisted>> {
    None
}

/// A thread of a world. Here there is none, so a handle needs no room for it.
#[derive(Clone, Debug)]
pub enum Enlisted {}

impl Enlisted {
    /// Makes the calling thread this thread of the world.
    pub fn enter(self) {
        match self {}
    }

    /// Removes the thread from the world, because it could not be created.
    pub fn strike(self) {
        match self {}
    }

    /// Returns true if the thread has ended.
    pub fn is_gone(&self) -> bool {
        match *self {}
    }

    /// Waits until the thread has ended.
    pub fn wait(&self) {
        match *self {}
    }

    /// Records that the context of the thread's worker was released.
    pub fn release(&self) {
        match *self {}
    }
}

/// Workers that leave their kernel thread, in a simulated world.
pub mod carry {
    use crate::os::event::ThreadEvent;

    /// The membership in a world that belongs to a host's kernel thread.
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

        /// Takes over the membership, after the calling context was continued.
        #[inline(always)]
        pub const fn arrive(&self) {}
    }

    /// Prepares the calling thread, a worker that will leave its kernel thread. Returns false if it
    /// is in no world.
    #[inline(always)]
    pub const fn leaves_own_thread() -> bool {
        false
    }

    /// Notifies other threads on behalf of a thread of a world whose context is being saved.
    pub fn ferry(_: impl FnOnce() + Send + 'static) -> std::sync::Arc<ThreadEvent> {
        unreachable!("only threads of a world have a ferryman")
    }
}

/// I/O in a simulated world.
pub mod driver {
    use crate::os::driver::Driver;

    /// Returns a driver of the caller's world.
    pub fn open(_: bool) -> std::io::Result<Box<dyn Driver>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Operations on files. In a simulated world, its disk notes what they change.
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

/// Sockets of a simulated network.
pub mod sockets {
    use std::io::Result;
    use std::net::SocketAddr;
    use std::os::fd::{AsRawFd, OwnedFd};

    use socket2::SockAddr;

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

    /// Returns how long it takes until the other side notices a connection, in nanoseconds.
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
    pub const fn connect_to_unix(_: &SockAddr) -> Option<Result<OwnedFd>> {
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
