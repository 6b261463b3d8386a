//! The Linux side of the seams. Each file uses only those above it.

pub(crate) mod call;
pub mod owned;
pub(super) mod waiting;

pub(super) mod epoll;
pub(super) mod sync;
pub(super) mod uring;

pub mod cgroup;
pub mod cpus;

pub mod facts;
mod trial;
pub mod uring_probe;
