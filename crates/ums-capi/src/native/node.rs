//! The node: building it from options, giving it work, and shutting it down.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ums::Node;
use ums::node::{HiddenOptions, ShutdownReport};

use super::fault::{Fault, answer, guard};
use super::object::{self, ConstHandle, Handle, Ref, objects};
use super::options::{span, ums_options};
use super::task::{Call, UMS_FOREVER, give, ums_function, ums_task};
use crate::caller::{Argument, Out, Record, Text};

/// A process's set of schedulers.
pub struct ums_node {
    _opaque: [u8; 0],
}

objects! {
    ums_node = b"ums node": Owned;
}

/// The object behind a node pointer.
pub struct Owned {
    pub(super) node: Node,
    was_shut_down: AtomicBool,
}

/// The result of a shutdown.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ums_shutdown_report {
    /// The number of requests that had not ended when the grace time was over, and were cancelled.
    pub cancelled: usize,
    /// The number of workers that could not be ended, because their functions still run: do not
    /// free what these use. Their threads and stacks are leaked on purpose.
    pub left: usize,
}

/// Returns the number if there is such a scheduler, otherwise a fault.
fn scheduler(owned: &Ref<ums_node>, number: usize) -> Result<usize, Fault> {
    let count = owned.node.scheduler_count();
    let none = || Fault::new(libc::EINVAL, format!("scheduler {number} of {count}"));
    (number < count).then_some(number).ok_or_else(none)
}

fn not_on_a_worker(what: &str) -> Result<(), Fault> {
    let text = || format!("{what} waits for all workers, so it is not called on one");
    if ums::worker::is_worker() { Err(Fault::new(libc::EDEADLK, text())) } else { Ok(()) }
}

/// Builds a node and starts its schedulers. If `options` is NULL, all options have their defaults.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_new(
    options: Record<'_, ums_options>,
    mut node: Out<'_, Handle<ums_node>>,
) -> c_int {
    guard(|| {
        if node.is_null() {
            return Err(Fault::null("node"));
        }
        let built = ums_options::read(&options)?.builder()?.build()?;
        let owned = Owned { node: built, was_shut_down: AtomicBool::new(false) };
        node.put(object::make(owned));
        Ok(0)
    })
}

/// Shuts the node down in this order: accepts no more work, lets running requests finish during the
/// grace time, cancels the others, which have as long again to end, at least a second, and ends
/// every worker. `report` may be NULL. On a worker: -EDEADLK. A second call changes nothing; its
/// report says how many workers are left.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_shutdown(
    node: Handle<ums_node>,
    grace_ns: u64,
    mut report: Out<'_, ums_shutdown_report>,
) -> c_int {
    guard(|| {
        report.put(end(node, "ums_node_shutdown", |node| node.shutdown(span(grace_ns)))?);
        Ok(0)
    })
}

/// Like `ums_node_shutdown`, for a node that serves clients: first stops its servers, and cancels
/// tasks that wait in ums_accept, and those that begin such a wait later. All other tasks, also
/// those that read, write or connect, get the grace time. May take twice that time: tasks that are
/// cancelled after it have as long again to end, at least a second. After one second a line on
/// stderr says what the node waits for, unless UMS_NO_WARNINGS is set.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_drain(
    node: Handle<ums_node>,
    grace_ns: u64,
    mut report: Out<'_, ums_shutdown_report>,
) -> c_int {
    guard(|| {
        report.put(end(node, "ums_node_drain", |node| node.drain(span(grace_ns)))?);
        Ok(0)
    })
}

/// Ends a node for the function of this name.
fn end(
    node: Handle<ums_node>,
    what: &str,
    how: impl FnOnce(Node) -> ShutdownReport,
) -> Result<ums_shutdown_report, Fault> {
    let owned = object::get(node)?;
    not_on_a_worker(what)?;
    owned.was_shut_down.store(true, Ordering::Relaxed);
    let found = how(owned.node.clone());
    Ok(ums_shutdown_report { cancelled: found.cancelled, left: found.left })
}

/// Frees the node. If it was not shut down, shuts it down with a grace time of 10 seconds. NULL is
/// allowed. Users, tasks and pending requests of the node may be freed afterwards. On a worker:
/// -EDEADLK.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_free(node: Handle<ums_node>) -> c_int {
    guard(|| {
        if node.is_null() {
            return Ok(0);
        }
        let owned = object::get(node)?;
        not_on_a_worker("ums_node_free")?;
        object::retire(&owned);
        if !owned.was_shut_down.load(Ordering::Relaxed) {
            owned.node.clone().shutdown(Duration::from_secs(10));
        }
        Ok(0)
    })
}

/// Returns the number of its schedulers; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_scheduler_count(node: ConstHandle<ums_node>) -> usize {
    answer(0, || Ok(object::get(node)?.node.scheduler_count()))
}

/// Runs the function on a worker and waits for its result. This is how a plain thread calls code on
/// a worker. `result` may be NULL. -ENODATA: the node was shut down before the function began.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_run(
    node: Handle<ums_node>,
    function: ums_function,
    arg: Argument,
    mut result: Out<'_, Argument>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let owned = object::get(node)?;
        ums::worker::assert_may_wait();
        let handle = owned.node.spawn(move || call.run())?;
        drop(owned);
        result.put(handle.join_uncancellable()?);
        Ok(0)
    })
}

/// Queues a task: on the least loaded scheduler, or, if the caller is a worker, on its own
/// scheduler. `task` may be NULL; then the task runs detached. -EAGAIN: the work queue is full.
/// -ESHUTDOWN: the node accepts no more work.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_spawn(
    node: Handle<ums_node>,
    function: ums_function,
    arg: Argument,
    task: Out<'_, Handle<ums_task>>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let handle = object::get(node)?.node.spawn(move || call.run())?;
        give(handle, task);
        Ok(0)
    })
}

/// Like ums_node_spawn, on this scheduler. No other scheduler takes the task from it.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_spawn_on(
    node: Handle<ums_node>,
    scheduler_number: usize,
    function: ums_function,
    arg: Argument,
    task: Out<'_, Handle<ums_task>>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let owned = object::get(node)?;
        let number = scheduler(&owned, scheduler_number)?;
        let handle = owned.node.spawn_on(number, move || call.run())?;
        give(handle, task);
        Ok(0)
    })
}

/// Queues a task on the hidden scheduler with this name, whose workers are threads. It is for work
/// that should not delay the other schedulers. It is created at its first use, with at most
/// `max_workers` workers (0: as many as a node for one processor).
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_spawn_hidden(
    node: Handle<ums_node>,
    name: Text<'_>,
    max_workers: usize,
    function: ums_function,
    arg: Argument,
    task: Out<'_, Handle<ums_task>>,
) -> c_int {
    guard(|| {
        let call = Call::new(function, arg)?;
        let owned = object::get(node)?;
        let name = text(&name, "name")?.ok_or_else(|| Fault::null("name"))?;
        let max_workers = (max_workers > 0).then_some(max_workers);
        let hidden =
            owned.node.hidden(name, HiddenOptions { max_workers, ..Default::default() })?;
        let handle = hidden.spawn(move || call.run())?;
        give(handle, task);
        Ok(0)
    })
}

/// Cancels the request that the user with this number enqueued last. -ESRCH: there is no such user,
/// or its request has ended.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_cancel(node: Handle<ums_node>, user: u64) -> c_int {
    guard(|| {
        let cancelled = object::get(node)?.node.cancel(user);
        let none = || Fault::new(libc::ESRCH, format!("user {user} has no request to cancel"));
        cancelled.then_some(0).ok_or_else(none)
    })
}

/// Takes a scheduler out of service for new work, or returns it to service. -EBUSY: it is the last
/// scheduler online.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_set_online(
    node: Handle<ums_node>,
    scheduler_number: usize,
    online: bool,
) -> c_int {
    guard(|| {
        let owned = object::get(node)?;
        let number = scheduler(&owned, scheduler_number)?;
        let last = || Fault::new(libc::EBUSY, "the last scheduler online stays online");
        owned.node.set_online(number, online).then_some(0).ok_or_else(last)
    })
}

/// Returns the string that the caller passed; `None` for NULL.
pub(super) fn text<'a>(given: &'a Text<'_>, what: &str) -> Result<Option<&'a str>, Fault> {
    let not = |_| Fault::new(libc::EILSEQ, format!("{what} is not UTF-8"));
    given.get().transpose().map_err(not)
}

/// Returns true if there is no time limit.
pub(super) fn is_forever(timeout_ns: u64) -> bool {
    timeout_ns == UMS_FOREVER
}
