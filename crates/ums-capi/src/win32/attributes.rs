//! The attribute list of `CreateRemoteThreadEx`, in memory that the program provides.
//!
//! ```text
//!   +0 mark   +8 room   +16 used   +24 entries: attribute, a copy of the value
//! ```
//!
//! Of the attributes of Windows, only the UMS attribute has an effect here. Attributes for a
//! processor or for a group of processors are accepted and ignored, because a worker runs where its
//! scheduler runs.
//!
//! Windows requires that a value outlives the list. Some programs break this rule, so the value is
//! copied.
//!
//! Some programs pass an array of bytes as the memory, so it need not be aligned.
//!
//! This file has unsafe code, because the entries are in the program's memory, behind the list's
//! header.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;

use super::error::{
    BOOL, ERROR_BAD_LENGTH, ERROR_GEN_FAILURE, ERROR_INSUFFICIENT_BUFFER, ERROR_INVALID_PARAMETER,
    ERROR_NOT_SUPPORTED, done,
};
use super::worker::{ContextPointer, ListPointer, UMS_VERSION, Worker};
use crate::caller::{In, Out};

/// The worker's context and completion list.
pub const PROC_THREAD_ATTRIBUTE_UMS_THREAD: usize = 0x0003_0006;
/// A group of processors: accepted, without effect.
pub const PROC_THREAD_ATTRIBUTE_GROUP_AFFINITY: usize = 0x0003_0003;
/// A processor to prefer: accepted, without effect.
pub const PROC_THREAD_ATTRIBUTE_IDEAL_PROCESSOR: usize = 0x0003_0005;

const MARK: u64 = u64::from_be_bytes(*b"umsattrs");
const ROOM_MAX: usize = 64;

/// An attribute list, opaque to the program.
#[repr(C, packed)]
pub struct AttributeList {
    mark: u64,
    room: usize,
    used: usize,
}

#[repr(C, packed)]
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
    context: ContextPointer,
    list: ListPointer,
}

fn size_for(count: usize) -> usize {
    size_of::<AttributeList>() + count * size_of::<Entry>()
}

/// A pointer to a list in the program's memory. It is NULL, or the memory has the size that was
/// stated when the list was initialised.
#[repr(transparent)]
#[derive(Debug)]
pub struct Attributes<'a>(*mut AttributeList, PhantomData<&'a mut AttributeList>);

impl Attributes<'_> {
    /// Returns no list.
    pub(super) fn none() -> Self {
        Attributes(std::ptr::null_mut(), PhantomData)
    }

    /// Returns the list, if it has been initialised.
    fn header(&mut self) -> Result<&mut AttributeList, u32> {
        if self.0.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // SAFETY: C Caller: it points to a list.
        let list = unsafe { &mut *self.0 };
        if list.mark == MARK && list.room <= ROOM_MAX && list.used <= list.room {
            Ok(list)
        } else {
            Err(ERROR_INVALID_PARAMETER)
        }
    }

    fn entries(&self) -> *mut Entry {
        self.0.wrapping_add(1).cast()
    }

    /// Initialises the memory as an empty list. The memory has `size` bytes.
    fn initialise(&mut self, count: usize, size: usize) -> Result<(), u32> {
        if self.0.is_null() || size < size_for(count) {
            return Err(ERROR_INSUFFICIENT_BUFFER);
        }
        // SAFETY: C Caller: the memory has `size` bytes.
        unsafe { self.0.write(AttributeList { mark: MARK, room: count, used: 0 }) };
        Ok(())
    }

    /// Adds an entry. Returns an error if there is no room.
    fn push(&mut self, entry: Entry) -> Result<(), u32> {
        let entries = self.entries();
        let header = self.header()?;
        if header.used == header.room {
            return Err(ERROR_GEN_FAILURE);
        }
        // SAFETY: C Caller: the memory has room for `room` entries, and `used` is less than that.
        unsafe { entries.add(header.used).write(entry) };
        header.used += 1;
        Ok(())
    }

    /// Returns the context and list of a UMS worker, if the list has this attribute.
    pub(super) fn worker(mut self) -> Result<Option<Worker>, u32> {
        if self.0.is_null() {
            return Ok(None);
        }
        let used = self.header()?.used;
        // SAFETY: C Caller: there are `used` entries.
        let entries = unsafe { std::slice::from_raw_parts(self.entries(), used) };
        let is_worker = |entry: &&Entry| entry.attribute == PROC_THREAD_ATTRIBUTE_UMS_THREAD;
        let Some(entry) = entries.iter().find(is_worker) else {
            return Ok(None);
        };
        let said = entry.worker;
        if said.version != UMS_VERSION || said.context.is_null() || said.list.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        Ok(Some(Worker { context: said.context, list: said.list }))
    }
}

/// Initialises a list for `count` attributes, or stores how large it must be.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeProcThreadAttributeList(
    mut list: Attributes<'_>,
    count: u32,
    flags: u32,
    mut size: Out<'_, usize>,
) -> BOOL {
    let mut initialise = || {
        let count = count as usize;
        if size.is_null() || flags != 0 || count > ROOM_MAX {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let given = size.replace(size_for(count));
        list.initialise(count, given)
    };
    done(initialise())
}

/// Adds an attribute.
#[unsafe(no_mangle)]
pub extern "C" fn UpdateProcThreadAttribute(
    mut list: Attributes<'_>,
    flags: u32,
    attribute: usize,
    value: In<'_, CreateThreadAttributes>,
    size: usize,
    _previous: *mut c_void,
    _returned: *mut usize,
) -> BOOL {
    let mut update = || {
        list.header()?;
        if flags != 0 || value.is_null() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let worker = match attribute {
            PROC_THREAD_ATTRIBUTE_UMS_THREAD if size != size_of::<CreateThreadAttributes>() => {
                return Err(ERROR_BAD_LENGTH);
            }
            // The attribute and the size show that the value is such a structure.
            PROC_THREAD_ATTRIBUTE_UMS_THREAD => value.read().ok_or(ERROR_INVALID_PARAMETER)?,
            PROC_THREAD_ATTRIBUTE_GROUP_AFFINITY | PROC_THREAD_ATTRIBUTE_IDEAL_PROCESSOR => {
                CreateThreadAttributes {
                    version: 0,
                    context: ContextPointer::NULL,
                    list: ListPointer::NULL,
                }
            }
            _ => return Err(ERROR_NOT_SUPPORTED),
        };
        list.push(Entry { attribute, worker })
    };
    done(update())
}

/// Ends the use of a list. The memory belongs to the program.
#[unsafe(no_mangle)]
pub extern "C" fn DeleteProcThreadAttributeList(mut list: Attributes<'_>) {
    if let Ok(list) = list.header() {
        list.mark = 0;
    }
}
