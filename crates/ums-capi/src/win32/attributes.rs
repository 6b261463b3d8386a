//! The attribute list of `CreateRemoteThreadEx`, in memory that the program provides.
//!
//! ```text
//!   +0 mark   +8 room   +16 used   +24 entries: attribute, a copy of the value
//! ```
//!
//! Of the attributes of Windows, only the UMS one has an effect here. Attributes for a processor or
//! a group of them are accepted and ignored: a worker runs where its scheduler does.
//!
//! Windows demands that the value outlives the list. Some programs break this rule, so the value is
//! copied.

#![allow(unsafe_code)] // Named invariant "C Caller" of lib.rs: the program's memory.

use std::ffi::c_void;

use super::error::{
    BOOL, ERROR_BAD_LENGTH, ERROR_GEN_FAILURE, ERROR_INSUFFICIENT_BUFFER, ERROR_INVALID_PARAMETER,
    ERROR_NOT_SUPPORTED, done,
};
use super::worker::{UMS_VERSION, Worker};

/// The worker's context and completion list.
pub const PROC_THREAD_ATTRIBUTE_UMS_THREAD: usize = 0x0003_0006;
/// A group of processors: accepted, without effect.
pub const PROC_THREAD_ATTRIBUTE_GROUP_AFFINITY: usize = 0x0003_0003;
/// A processor to prefer: accepted, without effect.
pub const PROC_THREAD_ATTRIBUTE_IDEAL_PROCESSOR: usize = 0x0003_0005;

const MARK: u64 = u64::from_be_bytes(*b"umsattrs");
const ROOM_MAX: usize = 64;

/// An attribute list, opaque to the program.
#[repr(C)]
pub struct AttributeList {
    mark: u64,
    room: usize,
    used: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    attribute: usize,
    worker: CreateThreadAttributes,
}

/// `UMS_CREATE_THREAD_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CreateThreadAttributes {
    version: u32,
    context: *mut c_void,
    list: *mut c_void,
}

fn size_for(count: usize) -> usize {
    size_of::<AttributeList>() + count * size_of::<Entry>()
}

/// Returns the list, if it has been initialised.
///
/// # Safety
/// C Caller: NULL or a list.
unsafe fn found<'a>(list: *mut AttributeList) -> Result<&'a mut AttributeList, u32> {
    if list.is_null() || !list.is_aligned() {
        return Err(ERROR_INVALID_PARAMETER);
    }
    // SAFETY: C Caller: a list.
    let list = unsafe { &mut *list };
    if list.mark == MARK && list.room <= ROOM_MAX && list.used <= list.room {
        Ok(list)
    } else {
        Err(ERROR_INVALID_PARAMETER)
    }
}

fn entries(list: *mut AttributeList) -> *mut Entry {
    list.wrapping_add(1).cast()
}

/// Initialises a list for `count` attributes, or stores how large it must be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeProcThreadAttributeList(
    list: *mut AttributeList,
    count: u32,
    flags: u32,
    size: *mut usize,
) -> BOOL {
    let initialise = || {
        let count = count as usize;
        if size.is_null() || flags != 0 || count > ROOM_MAX {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: C Caller: `size` can be read and written.
        let given = unsafe { size.replace(size_for(count)) };
        if list.is_null() || given < size_for(count) {
            return Err(ERROR_INSUFFICIENT_BUFFER);
        }
        if !list.is_aligned() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: C Caller: as large as `size` said.
        unsafe { list.write(AttributeList { mark: MARK, room: count, used: 0 }) };
        Ok(())
    };
    done(initialise())
}

/// Adds an attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn UpdateProcThreadAttribute(
    list: *mut AttributeList,
    flags: u32,
    attribute: usize,
    value: *mut c_void,
    size: usize,
    _previous: *mut c_void,
    _returned: *mut usize,
) -> BOOL {
    let update = || {
        // SAFETY: C Caller: NULL or a list.
        let header = unsafe { found(list) }?;
        if flags != 0 || value.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let worker = match attribute {
            PROC_THREAD_ATTRIBUTE_UMS_THREAD if size != size_of::<CreateThreadAttributes>() => {
                return Err(ERROR_BAD_LENGTH);
            }
            // SAFETY: C Caller: as many bytes as the size says, which was checked.
            PROC_THREAD_ATTRIBUTE_UMS_THREAD => unsafe {
                value.cast::<CreateThreadAttributes>().read_unaligned()
            },
            PROC_THREAD_ATTRIBUTE_GROUP_AFFINITY | PROC_THREAD_ATTRIBUTE_IDEAL_PROCESSOR => {
                CreateThreadAttributes { version: 0, context: value, list: value }
            }
            _ => return Err(ERROR_NOT_SUPPORTED),
        };
        if header.used == header.room {
            return Err(ERROR_GEN_FAILURE);
        }
        // SAFETY: C Caller: `used` is below `room`, for which there is memory.
        unsafe { entries(list).add(header.used).write(Entry { attribute, worker }) };
        header.used += 1;
        Ok(())
    };
    done(update())
}

/// Ends the use of a list; its memory belongs to the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DeleteProcThreadAttributeList(list: *mut AttributeList) {
    // SAFETY: C Caller: NULL or a list.
    if let Ok(list) = unsafe { found(list) } {
        list.mark = 0;
    }
}

/// Returns the context and list of a UMS worker, if the list has this attribute.
///
/// # Safety
/// C Caller: NULL, or a list.
pub(super) unsafe fn ums(list: *mut AttributeList) -> Result<Option<Worker>, u32> {
    if list.is_null() {
        return Ok(None);
    }
    // SAFETY: C Caller: a list.
    let used = unsafe { found(list) }?.used;
    for at in 0..used {
        // SAFETY: C Caller: there are `used` entries.
        let entry = unsafe { *entries(list).add(at) };
        if entry.attribute == PROC_THREAD_ATTRIBUTE_UMS_THREAD {
            let said = entry.worker;
            if said.version != UMS_VERSION || said.context.is_null() || said.list.is_null() {
                return Err(ERROR_INVALID_PARAMETER);
            }
            return Ok(Some(Worker { context: said.context, list: said.list }));
        }
    }
    Ok(None)
}
