//! Select: waits for several things at once, and takes the first that is ready.
//!
//! Each arm of the caller becomes an arm of the library's select. Exactly one of them happens. A
//! task's handle is taken for the time of the call, as by a join, and put back unless its arm
//! happens.

use std::ffi::{c_int, c_void};

use ums::io::Watch;
use ums::sync::Select;
use ums::{JoinHandle, WaitError};

use super::channel::ums_channel;
use super::fault::{Fault, guard, tell};
use super::io::{self, UMS_READABLE, UMS_WRITABLE};
use super::object::{self, Handle, Ref};
use super::options::span;
use super::sync::{ums_event, ums_semaphore};
use super::task::ums_task;
use crate::caller::{Argument, Descriptor, Length, LentDescriptor, OutArray};

/// Receives from the channel `object`, and stores the pointer in `value`.
pub const UMS_ARM_RECV: u32 = 1;
/// Sends `value` to the channel `object`.
pub const UMS_ARM_SEND: u32 = 2;
/// Waits for the end of the task `object`, and stores its result in `value`. If this arm happens,
/// the task pointer is freed, as by ums_task_join.
pub const UMS_ARM_TASK: u32 = 3;
/// Waits for the event `object`.
pub const UMS_ARM_EVENT: u32 = 4;
/// Acquires a permit of the semaphore `object`.
pub const UMS_ARM_SEMAPHORE: u32 = 5;
/// Waits until a read of `fd` would find input, the end, or an error.
pub const UMS_ARM_READABLE: u32 = 6;
/// Waits until a write to `fd` would find room or an error.
pub const UMS_ARM_WRITABLE: u32 = 7;

/// For ums_select: of several arms that are ready, takes the first. Without it, takes one of them
/// at random, so that none starves.
pub const UMS_SELECT_BIASED: u32 = 1;

/// The largest number of arms.
const ARMS_MAX: usize = 256;

/// One of the things that ums_select waits for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ums_arm {
    /// UMS_ARM_...
    pub kind: u32,
    /// Set if this arm happens: 0, or the negative errno with which it failed. A channel that was
    /// closed is -EPIPE.
    pub result: c_int,
    /// The descriptor.
    pub fd: Descriptor,
    /// The channel, task, event or semaphore.
    pub object: Handle<c_void>,
    /// The pointer to send, the received pointer, or the task's result.
    pub value: Argument,
}

/// What an arm waits for.
enum Awaited {
    Received(Ref<ums_channel>),
    Sent(Ref<ums_channel>, Argument),
    Ended(TakenTask),
    Set(Ref<ums_event>),
    Acquired(Ref<ums_semaphore>),
    Ready(Watch<LentDescriptor>, u32),
}

/// A task whose handle this call has taken. The handle is put back when this is dropped.
struct TakenTask {
    task: Ref<ums_task>,
    handle: Option<JoinHandle<Argument>>,
}

impl Drop for TakenTask {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.task.put_back(handle);
        }
    }
}

/// What an arm that happens has got: nothing, a pointer, or a failure of its own.
type Got = Result<Option<Argument>, Fault>;

impl Awaited {
    fn of(arm: &ums_arm) -> Result<Awaited, Fault> {
        Ok(match arm.kind {
            UMS_ARM_RECV => Awaited::Received(object::get(arm.object.cast())?),
            UMS_ARM_SEND => Awaited::Sent(object::get(arm.object.cast())?, arm.value),
            UMS_ARM_TASK => {
                let task = object::get::<ums_task>(arm.object.cast())?;
                let handle = Some(task.take()?);
                Awaited::Ended(TakenTask { task, handle })
            }
            UMS_ARM_EVENT => Awaited::Set(object::get(arm.object.cast())?),
            UMS_ARM_SEMAPHORE => Awaited::Acquired(object::get(arm.object.cast())?),
            UMS_ARM_READABLE => Awaited::ready(arm.fd, UMS_READABLE)?,
            UMS_ARM_WRITABLE => Awaited::ready(arm.fd, UMS_WRITABLE)?,
            other => {
                return Err(Fault::new(libc::EINVAL, format!("ums_arm.kind cannot be {other}")));
            }
        })
    }

    fn ready(fd: Descriptor, event: u32) -> Result<Awaited, Fault> {
        Ok(Awaited::Ready(Watch::new(io::lend(fd)?), event))
    }

    /// Adds the arm with this number to a select.
    fn add_to<'a>(
        &'a mut self,
        select: Select<'a, (usize, Got)>,
        number: usize,
    ) -> Select<'a, (usize, Got)> {
        match self {
            Awaited::Received(channel) => select
                .on(&channel.receiver, move |got| (number, got.map(Some).map_err(Fault::from))),
            Awaited::Sent(channel, value) => select
                .on(channel.sender.sending(*value), move |sent| {
                    (number, sent.map(|()| None).map_err(Fault::from))
                }),
            Awaited::Ended(task) => {
                let handle = task.handle.as_mut().expect("the handle was taken for this call");
                select.on(handle, move |ended| (number, ended.map(Some).map_err(Fault::from)))
            }
            Awaited::Set(event) => select.on(&**event, move |()| (number, Ok(None))),
            Awaited::Acquired(semaphore) => select.on(&**semaphore, move |permit| {
                permit.forget();
                (number, Ok(None))
            }),
            Awaited::Ready(watch, event) => select.on(io::arm(watch, *event), move |ready| {
                (number, ready.map(|()| None).map_err(Fault::from))
            }),
        }
    }

    /// Ends the arm that has happened.
    fn happened(&mut self) {
        if let Awaited::Ended(TakenTask { task, handle }) = self {
            drop(handle.take());
            object::retire(task);
        }
    }
}

/// Waits for several things at once, for at most this long, and takes the first that is ready.
/// Nothing happens to the others. Returns the number of the arm that has happened, and sets its
/// `result` and `value`. `flags` is 0 or UMS_SELECT_BIASED. -EINVAL: no arm, or more than 256.
/// -EBUSY: another caller waits for a task of an arm. -EPERM: on a plain thread, a wait for a
/// descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn ums_select<'a>(
    arms: OutArray<'a, ums_arm>,
    count: Length<'a>,
    flags: u32,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        let most = || Fault::new(libc::EINVAL, "arms is NULL, or has more than 256");
        let mut arms = arms.of(count, ARMS_MAX).ok_or_else(most)?;
        let given = arms.read();
        if given.is_empty() {
            return Err(Fault::new(libc::EINVAL, "a select needs at least one arm"));
        }
        if flags & !UMS_SELECT_BIASED != 0 {
            return Err(Fault::new(libc::EINVAL, format!("flags of a select cannot be {flags}")));
        }
        let mut awaited = given.iter().map(Awaited::of).collect::<Result<Vec<_>, _>>()?;
        let (number, got) = first(&mut awaited, flags & UMS_SELECT_BIASED != 0, timeout_ns)?;
        awaited[number].happened();
        let before = given[number];
        arms.put(
            number,
            match got {
                Ok(value) => ums_arm { result: 0, value: value.unwrap_or(before.value), ..before },
                Err(fault) => ums_arm { result: tell(&fault), ..before },
            },
        );
        Ok(number as c_int)
    })
}

/// Waits for the first of them. Returns its number and what it has got.
fn first(awaited: &mut [Awaited], biased: bool, timeout_ns: u64) -> Result<(usize, Got), Fault> {
    let has_descriptor = awaited.iter().any(|one| matches!(one, Awaited::Ready(..)));
    if has_descriptor && timeout_ns != 0 && !ums::worker::is_worker() {
        let text = "only a worker can wait for a descriptor in a select";
        return Err(Fault::new(libc::EPERM, text));
    }
    let select = Select::new();
    let mut select = if biased { select.biased() } else { select };
    for (number, one) in awaited.iter_mut().enumerate() {
        select = one.add_to(select, number);
    }
    match timeout_ns {
        0 => select.try_now().ok_or_else(|| WaitError::TimedOut.into()),
        _ => Ok(select.wait_for(span(timeout_ns))?),
    }
}
