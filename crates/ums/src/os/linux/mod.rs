//! The Linux side of the seams. Each file uses only those above it.

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
/// How many workers the system has room for.
pub mod room;

pub mod facts;

pub mod handlers;

pub mod sample;

pub mod own_memory;

pub mod barrier;
