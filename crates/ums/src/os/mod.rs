//! Everything that comes from the operating system, behind interfaces of this library.
//!
//! Time ([`clock`]), threads ([`threads`]) and their events ([`event`]), I/O ([`driver`]) and the
//! number of processors (`linux::cpus`) are asked for here and nowhere else, so that a simulation
//! can put its own in their place. The library's own limits are here, too, in [`limits`]. Nothing
//! in this room uses workers or schedulers.

pub mod asleep;
pub mod atomic;
pub mod atomic_ref;
pub mod bias;
pub mod clock;
pub mod counted;
pub mod driver;
pub mod entry;
pub mod event;
pub mod faulty;
pub mod limits;
pub mod linux;
pub mod lock;
pub mod op;
pub mod panics;
pub mod planted;
pub mod pool;
pub mod random;
pub mod short_lock;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(not(feature = "sim"))]
pub mod no_sim;
#[cfg(not(feature = "sim"))]
pub use no_sim as sim;
pub mod sockets;
pub mod stderr;
pub mod threads;

/// Returns the kernel's number of the calling thread.
pub fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
