//! Work requests: what a worker carries out from start to end.
//!
//! `state` is the part that all requests have. `block` is the memory of a request: the state, the
//! closure, and later the result. `origin` is the scope or user whose request it is, and `holds`
//! counts what a user holds from one request to the next.

mod block;
mod holds;
mod origin;
mod state;

pub(crate) use block::{
    CarriedRequest, NoResult, RequestRef, RequestSlot, ResultOf, SpareBlocks, TaskResult,
    WorkRequest, make, make_by,
};
pub(crate) use holds::Holds;
pub(crate) use origin::{Family, Origin};
pub use origin::{RequestId, UserId};
pub(crate) use state::{Cancelled, RequestState, cancel_waiter};
