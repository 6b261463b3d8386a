//! Work requests: what a worker carries out from start to end.
//!
//! `state` is the part that all requests have. `block` is the memory of a request: the state, the
//! closure, and later the result.

mod block;
mod state;

pub(crate) use block::{
    NoResult, RequestRef, RequestSlot, ResultOf, SpareBlocks, TaskResult, WorkRequest, make,
    make_by,
};
pub(crate) use state::{Cancelled, Family, Holds, RequestState, cancel_waiter};
pub use state::{RequestId, UserId};
