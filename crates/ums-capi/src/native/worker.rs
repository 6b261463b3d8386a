//! Functions of the calling worker: yield, sleep, cancellation, going preemptive, shields.

use std::ffi::c_int;

use ums::WaitReason;
use ums::stats::{REASONS_MAX, WaitClass};

use super::fault::{Fault, answer, guard};
use super::node::text;
use super::options::span;
use super::task::{Call, ums_function};
use crate::caller::{Argument, Out, Text};

/// Lets the other workers of this scheduler run. On a plain thread, lets other threads run.
#[unsafe(no_mangle)]
pub extern "C" fn ums_yield() {
    guard(|| {
        ums::yield_now();
        Ok(0)
    });
}

/// Yields if the caller has run for 4 ms since it was last switched to. Returns true if it has
/// yielded.
#[unsafe(no_mangle)]
pub extern "C" fn ums_yield_if_due() -> bool {
    answer(false, || Ok(ums::yield_if_due()))
}

/// For long loops: yields if the caller's 4 ms are used up. -ECANCELED: the work request was
/// cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn ums_checkpoint() -> c_int {
    guard(|| {
        ums::checkpoint()?;
        Ok(0)
    })
}

/// Returns true if the caller's work request was cancelled. Returns false on a plain thread.
#[unsafe(no_mangle)]
pub extern "C" fn ums_is_cancelled() -> bool {
    answer(false, || Ok(ums::is_cancelled()))
}

/// Waits for this long. Other workers run meanwhile. -ECANCELED: the work request was cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn ums_sleep(ns: u64) -> c_int {
    guard(|| {
        ums::sleep(span(ns))?;
        Ok(0)
    })
}

/// Returns true if the caller is a worker that runs on its scheduler at this moment.
#[unsafe(no_mangle)]
pub extern "C" fn ums_is_worker() -> bool {
    ums::worker::is_worker()
}

/// Returns the number of the caller's scheduler. -EPERM: the caller is a plain thread, or
/// preemptive.
#[unsafe(no_mangle)]
pub extern "C" fn ums_scheduler_id() -> c_int {
    guard(|| {
        let none = || Fault::new(libc::EPERM, "the caller is on no scheduler");
        Ok(ums::worker::scheduler_id().ok_or_else(none)? as c_int)
    })
}

/// Runs external code that may block or run for a long time. Other workers run on the scheduler
/// meanwhile. `reason` names the kind of call in statistics; NULL means PREEMPTIVE_EXTERNAL. A
/// process can have about a hundred names (-ENOSPC). A fiber worker's call runs on another thread.
/// `result` may be NULL. On a plain thread the function is called directly.
#[unsafe(no_mangle)]
pub extern "C" fn ums_go_preemptive(
    reason: Text<'_>,
    function: ums_function,
    arg: Argument,
    mut result: Out<'_, Argument>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let reason = match text(&reason, "reason")? {
            Some(name) => named(name)?,
            None => WaitReason::PREEMPTIVE_EXTERNAL,
        };
        result.put(ums::go_preemptive(reason, move || call.run()));
        Ok(0)
    })
}

/// Calls a function in which no wait fails because the caller's work request was cancelled, and
/// ums_is_cancelled returns false. After it, waits fail again. It is for what must be finished once
/// it has begun. The function should not wait for long without a time limit, because
/// ums_node_shutdown and ums_node_drain wait for it. `result` may be NULL. On a plain thread and in
/// a completion routine, which are never cancelled, the function is only called.
#[unsafe(no_mangle)]
pub extern "C" fn ums_shield(
    function: ums_function,
    arg: Argument,
    mut result: Out<'_, Argument>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        result.put(ums::shield(|| call.run()));
        Ok(0)
    })
}

/// Returns the wait reason with this name. A new reason is kept until the process ends.
fn named(name: &str) -> Result<WaitReason, Fault> {
    if let Some(known) = WaitReason::all().find(|reason| reason.name() == name) {
        return Ok(known);
    }
    if WaitReason::all().count() >= REASONS_MAX {
        return Err(Fault::new(libc::ENOSPC, "too many wait reasons: name kinds of waits"));
    }
    let name = Box::leak(name.to_owned().into_boxed_str());
    Ok(WaitReason::register(name, WaitClass::External))
}
