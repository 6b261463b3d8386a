//! The Linux side of the seams. Each file uses only those above it.

pub mod owned;
pub(crate) mod call;
pub(super) mod waiting;

pub(super) mod epoll;
pub(super) mod sync;
pub(super) mod uring;

pub mod cgroup;
pub mod cpus;

mod trial;
pub mod uring_probe;
pub mod facts;
