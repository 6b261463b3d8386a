//! Users: logical connections. A user that is idle has no worker.

use std::ffi::c_int;

use super::fault::{Fault, answer, guard};
use super::node::ums_node;
use super::object::{self, ConstHandle, Handle, objects};
use super::task::{Call, give, ums_function, ums_task};
use crate::caller::{Argument, Out};

/// A logical connection. Each of its work requests is carried out by one worker from start to end.
pub struct ums_user {
    _opaque: [u8; 0],
}

objects! {
    ums_user = b"ums user": ums::User;
}

/// Creates a user, on the scheduler that the node's placement chooses.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_new(
    node: Handle<ums_node>,
    mut user: Out<'_, Handle<ums_user>>,
) -> c_int {
    guard(|| {
        if user.is_null() {
            return Err(Fault::null("user"));
        }
        let made = object::get(node)?.node.user();
        user.put(object::make(made));
        Ok(0)
    })
}

/// Frees the user, which leaves its scheduler. Requests that it has enqueued are still carried out.
/// NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_free(user: Handle<ums_user>) -> c_int {
    guard(|| {
        if !user.is_null() {
            object::retire(&object::get(user)?);
        }
        Ok(0)
    })
}

/// Returns the user's number, which no other user of the process has; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_id(user: ConstHandle<ums_user>) -> u64 {
    answer(0, || Ok(object::get(user)?.id()))
}

/// Returns the number of the user's preferred scheduler, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_scheduler(user: ConstHandle<ums_user>) -> c_int {
    guard(|| Ok(object::get(user)?.scheduler() as c_int))
}

/// Enqueues a work request of the user. `task` may be NULL; then the request runs detached.
/// -EAGAIN: the work queue is full. -ESHUTDOWN: the node accepts no more work.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_enqueue(
    user: Handle<ums_user>,
    function: ums_function,
    arg: Argument,
    task: Out<'_, Handle<ums_task>>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let handle = object::get(user)?.enqueue(move || call.run())?;
        give(handle, task);
        Ok(0)
    })
}

/// Records that the user holds something that others may wait for. Until ums_user_release its
/// requests never wait for a worker. Holds are counted.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_hold(user: Handle<ums_user>) -> c_int {
    guard(|| {
        object::get(user)?.hold();
        Ok(0)
    })
}

/// Ends the effect of one ums_user_hold. -EPERM: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_release(user: Handle<ums_user>) -> c_int {
    guard(|| {
        let user = object::get(user)?;
        if !user.is_holding() {
            return Err(Fault::new(libc::EPERM, "the user holds nothing"));
        }
        user.release();
        Ok(0)
    })
}

/// Cancels the request that the user enqueued last. -ESRCH: the request has ended, or there was
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_cancel(user: Handle<ums_user>) -> c_int {
    guard(|| {
        let cancelled = object::get(user)?.cancel();
        let none = || Fault::new(libc::ESRCH, "the user has no request to cancel");
        cancelled.then_some(0).ok_or_else(none)
    })
}

/// Returns true if the user's last request is queued or being carried out; false for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_user_is_busy(user: ConstHandle<ums_user>) -> bool {
    answer(false, || Ok(object::get(user)?.is_busy()))
}
