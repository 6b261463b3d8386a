//! Channels: pointers from many senders to many receivers, each to one of them, in order.
//!
//! In C a channel has one pointer for both sides, so it does not end when a side is gone, but when
//! it is closed: then nothing more is sent, and what is in it can still be received.

use std::ffi::c_int;

use ums::sync::channel::{Receiver, Sender, bounded};

use super::fault::{Fault, answer, guard};
use super::object::{self, ConstHandle, Handle, discard, give, objects};
use super::options::span;
use crate::caller::{Argument, Out};

/// A queue of pointers between workers and threads; first come, first served.
pub struct ums_channel {
    _opaque: [u8; 0],
}

objects! {
    ums_channel = b"ums chan": Channel;
}

/// The object behind a channel pointer: both sides of the channel.
pub struct Channel {
    pub(super) sender: Sender<Argument>,
    pub(super) receiver: Receiver<Argument>,
}

/// Creates a channel that holds up to `bound` pointers. With 0, a send waits until a receiver has
/// taken the pointer; with SIZE_MAX, no send waits.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_new(bound: usize, channel: Out<'_, Handle<ums_channel>>) -> c_int {
    guard(|| {
        let (sender, receiver) = bounded(bound);
        give(channel, Channel { sender, receiver })
    })
}

/// Frees a channel. NULL is allowed. Pointers that are still in it are forgotten, and what they
/// point at is not freed: to free it, close the channel first and receive until -EPIPE. -EBUSY:
/// a call that sends or receives has not returned yet.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_free(channel: Handle<ums_channel>) -> c_int {
    discard(channel, |_| true)
}

/// Sends a pointer, which may be NULL; waits for room for at most this long. If it fails, the
/// pointer was not sent. -ETIMEDOUT: there was no room in that time; with the limit 0, the channel
/// is full. -EPIPE: the channel was closed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_send(
    channel: Handle<ums_channel>,
    value: Argument,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        let channel = object::get(channel)?;
        match timeout_ns {
            0 => channel.sender.try_send(value)?,
            _ => channel.sender.send_for(value, span(timeout_ns))?,
        }
        Ok(0)
    })
}

/// Receives the pointer that was sent first; waits for one for at most this long. -ETIMEDOUT: none
/// came in that time; with the limit 0, the channel is empty. -EPIPE: the channel was closed, and
/// is empty.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_recv(
    channel: Handle<ums_channel>,
    timeout_ns: u64,
    mut value: Out<'_, Argument>,
) -> c_int {
    guard(|| {
        // Checked before a pointer is taken, which would be lost.
        if value.is_null() {
            return Err(Fault::null("value"));
        }
        let channel = object::get(channel)?;
        value.put(match timeout_ns {
            0 => channel.receiver.try_recv()?,
            _ => channel.receiver.recv_for(span(timeout_ns))?,
        });
        Ok(0)
    })
}

/// Closes a channel: each further send fails with -EPIPE, and so do the sends that wait. The
/// pointers in the channel can still be received. A second call has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_close(channel: Handle<ums_channel>) -> c_int {
    guard(|| {
        object::get_briefly(channel)?.receiver.close();
        Ok(0)
    })
}

/// Returns how many pointers the channel holds; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_channel_len(channel: ConstHandle<ums_channel>) -> usize {
    answer(0, || Ok(object::get_briefly(channel)?.receiver.len()))
}
