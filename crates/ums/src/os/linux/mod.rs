//! The implementation on Linux of the interfaces in `os`. Each file uses only the files above it.

pub mod plain;

pub mod owned;

pub(crate) mod call;

pub mod arena;

mod waiting;

mod helpers;

mod epoll;

mod sync;

mod uring;

pub mod open;

pub mod affinity;

pub mod cgroup;

pub mod cpus;

pub mod perf;

mod trial;

pub mod uring_probe;
/// The number of workers for which the system has room.
pub mod room;

pub mod facts;

pub mod handlers;

pub mod sample;

pub mod own_memory;

pub mod barrier;
