//! The types of the pointers and arguments that a C caller passes.
//!
//! To C, each type is a plain pointer or number. In Rust, only a call from C makes a value of it.
//! So each value meets what the header demands of the caller, and the functions that C calls can be
//! safe code. A value whose type has a lifetime lives no longer than the call that passed it.
//!
//! In C, a pointer and its length are two parameters. In Rust both have the same lifetime `'a`,
//! which no other parameter has, so a length cannot be combined with another pointer. Combining
//! them consumes both.
//!
//! This file has unsafe code so that the functions with these parameters need none.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::Utf8Error;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use ums::Builder;

/// The place for a result: NULL, or a `T` that may be written during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    /// Returns NULL, as a caller passes that wants no result.
    pub const fn null() -> Self {
        Out(std::ptr::null_mut(), PhantomData)
    }

    /// Returns true if the caller wants no result.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores the value, unless the pointer is NULL; then the value is dropped.
    pub fn put(&mut self, value: T) {
        if !self.0.is_null() {
            // SAFETY: C Caller: the place may be written. The value there before is not dropped.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns the value that is there; `None` for NULL.
    pub fn read(&self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: C Caller: where the header asks for a value, it can also be read.
        (!self.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Stores the value, and returns the one that was there; `T`'s default for NULL.
    pub fn replace(&mut self, value: T) -> T
    where
        T: Copy + Default,
    {
        let before = self.read().unwrap_or_default();
        self.put(value);
        before
    }
}

#[cfg(any(test, fuzzing))]
impl<'a, T> Out<'a, T> {
    /// Returns a place for a caller in Rust, such as a test.
    pub fn new(place: &'a mut T) -> Out<'a, T> {
        Out(place, PhantomData)
    }
}

/// The place for a result whose size is another parameter: NULL, or as many bytes as the [`Count`]
/// of the same lifetime says, which may be written during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Place<'a>(*mut c_void, Own<'a>);

impl<'a> Place<'a> {
    /// Combines the place with its size.
    pub fn of(self, size: Count<'a>) -> SizedOut<'a> {
        SizedOut { start: self.0, size: size.number(), place: PhantomData }
    }
}

/// A place for a result, with its size. NULL has a size, too.
#[derive(Debug)]
pub struct SizedOut<'a> {
    start: *mut c_void,
    size: usize,
    place: Own<'a>,
}

impl SizedOut<'_> {
    /// Returns true if the caller wants no result.
    pub fn is_null(&self) -> bool {
        self.start.is_null()
    }

    /// Returns the size of the caller's memory in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Stores the value, unless the pointer is NULL.
    ///
    /// # Panics
    /// If the value has another size.
    pub fn put<T: Copy>(&mut self, value: T) {
        assert_eq!(self.size, size_of::<T>());
        if !self.start.is_null() {
            // SAFETY: C Caller: that many bytes may be written.
            unsafe { self.start.cast::<T>().write_unaligned(value) };
        }
    }
}

/// A value that a C caller passes by pointer: NULL, or a `T` that may be read during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<'a, T>(*const T, PhantomData<&'a T>);

impl<T> In<'_, T> {
    /// Returns true for NULL.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Returns the value; `None` for NULL.
    pub fn read(&self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: C Caller: a `T` is there, for the time of the call.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// A structure whose first field is its size in bytes: NULL, or as many bytes as that field says,
/// which may be read during the call. `T` is the structure as this version of the library has it.
#[repr(transparent)]
#[derive(Debug)]
pub struct Record<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Record<'_, T> {
    /// Returns the structure's bytes: an empty slice for NULL.
    ///
    /// # Errors
    /// The size, if it is larger than `max`, or smaller than the size field itself.
    pub fn bytes(&self, max: usize) -> Result<&[u8], usize> {
        if self.0.is_null() {
            return Ok(&[]);
        }
        // SAFETY: C Caller: the first field is there.
        let size = unsafe { self.0.cast::<usize>().read_unaligned() };
        if size < size_of::<usize>() || size > max {
            return Err(size);
        }
        // SAFETY: C Caller: `size` bytes are there, for the time of the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), size) })
    }
}

impl<T: Copy + Default> Record<'_, T> {
    /// Returns the structure. All fields of NULL, and those that the caller's version of the
    /// structure does not have, are `T`'s default.
    ///
    /// # Errors
    /// [`Misfit`], if the size cannot be one, or the caller's version has more fields than `T` and
    /// uses them.
    pub fn read(&self) -> Result<T, Misfit> {
        let theirs = self.bytes(4096).map_err(Misfit::Size)?;
        let (known, unknown) = theirs.split_at(theirs.len().min(size_of::<T>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Misfit::UnknownField);
        }
        let mut value = T::default();
        // SAFETY: C Caller: these are the first bytes of a `T`, as some version of the library
        // declares it: versions have the same fields, and the newer one has more of them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                known.as_ptr(),
                (&raw mut value).cast::<u8>(),
                known.len(),
            );
        }
        Ok(value)
    }
}

/// Why a [`Record`] cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Its first field cannot be its size.
    Size(usize),
    /// A field that this version does not have is not zero.
    UnknownField,
}

#[cfg(test)]
impl<'a, T> Record<'a, T> {
    /// Returns a structure of these words. The first word is its size in bytes.
    pub(crate) fn of_words(words: &'a [usize]) -> Record<'a, T> {
        assert!(words[0] <= size_of_val(words));
        Record(words.as_ptr().cast(), PhantomData)
    }
}

/// An array whose length is another parameter: NULL, or as many values as the [`Count`] of the same
/// lifetime says, which may be read during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Array<'a, T>(*const T, PhantomData<&'a T>, Own<'a>);

impl<'a, T> Array<'a, T> {
    /// Returns the array's values: an empty slice for NULL, or if there are more than `max` values.
    pub fn of(self, count: Count<'a>, max: usize) -> &'a [T] {
        if self.0.is_null() || count.number() > max {
            return &[];
        }
        // SAFETY: C Caller: an array of that many values is there, for the time of the call.
        unsafe { std::slice::from_raw_parts(self.0, count.number()) }
    }
}

/// The number of values of the [`Array`], or of bytes of the [`Place`], of the same lifetime.
#[repr(transparent)]
#[derive(Debug)]
pub struct Count<'a>(u32, Own<'a>);

impl Count<'_> {
    /// Returns the number.
    pub fn number(&self) -> usize {
        self.0 as usize
    }
}

/// An array for arguments and results: NULL, or as many values as the [`Length`] of the same
/// lifetime says, which may be read and written during the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct OutArray<'a, T>(*mut T, PhantomData<&'a mut T>, Own<'a>);

impl<'a, T: Copy> OutArray<'a, T> {
    /// Combines the array with its length. Returns `None` for NULL, and if there are more than
    /// `max` values.
    pub fn of(self, length: Length<'a>, max: usize) -> Option<SizedArray<'a, T>> {
        let fits = !self.0.is_null() && length.0 <= max;
        fits.then_some(SizedArray { start: self.0, length: length.0, array: PhantomData })
    }
}

/// The number of values of the [`OutArray`] of the same lifetime.
#[repr(transparent)]
#[derive(Debug)]
pub struct Length<'a>(usize, Own<'a>);

/// An array for arguments and results, with its length.
#[derive(Debug)]
pub struct SizedArray<'a, T> {
    start: *mut T,
    length: usize,
    array: Own<'a>,
}

impl<T: Copy> SizedArray<'_, T> {
    /// Returns a copy of the values.
    pub fn read(&self) -> Vec<T> {
        // SAFETY: C Caller: that many values are there, for the time of the call.
        (0..self.length).map(|at| unsafe { self.start.add(at).read_unaligned() }).collect()
    }

    /// Stores the value at this index.
    ///
    /// # Panics
    /// If the array has no such index.
    pub fn put(&mut self, at: usize, value: T) {
        assert!(at < self.length);
        // SAFETY: C Caller: that many values may be written, and this is one of them.
        unsafe { self.start.add(at).write_unaligned(value) };
    }
}

/// An invariant lifetime: the compiler converts it to no other one.
type Own<'a> = PhantomData<Cell<&'a ()>>;

/// The address of a value that other threads may change meanwhile: NULL, or an address that may be
/// read during the call, for as many bytes as another parameter says.
#[repr(transparent)]
#[derive(Debug)]
pub struct Shared<'a>(*const c_void, PhantomData<&'a ()>);

impl Shared<'_> {
    /// Returns the address; 0 for NULL.
    pub fn address(&self) -> usize {
        self.0.addr()
    }

    /// Returns the value, which has this many bytes. Returns `None` for NULL, for a size other than
    /// 1, 2, 4 and 8, and for a value that is not aligned.
    pub fn read(&self, size: usize) -> Option<u64> {
        let at = self.0.cast_mut();
        if at.is_null() || !matches!(size, 1 | 2 | 4 | 8) || !at.addr().is_multiple_of(size) {
            return None;
        }
        // SAFETY: C Caller: that many bytes may be read. They are aligned, so this is an atomic
        // read, and other threads may write them meanwhile.
        Some(unsafe {
            match size {
                1 => AtomicU8::from_ptr(at.cast()).load(Ordering::SeqCst).into(),
                2 => AtomicU16::from_ptr(at.cast()).load(Ordering::SeqCst).into(),
                4 => AtomicU32::from_ptr(at.cast()).load(Ordering::SeqCst).into(),
                _ => AtomicU64::from_ptr(at.cast()).load(Ordering::SeqCst),
            }
        })
    }
}

/// A string: NULL, or bytes that end with a zero, for the time of the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl Text<'_> {
    /// Returns the string; `None` for NULL.
    pub fn get(&self) -> Option<Result<&str, Utf8Error>> {
        // SAFETY: C Caller: a string is there, for the time of the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_str())
    }
}

/// A string that the library has given to the caller, which passes it back once; or NULL.
#[repr(transparent)]
#[derive(Debug)]
pub struct GivenText(*mut c_char);

impl GivenText {
    /// Gives a string to the caller.
    pub fn new(text: CString) -> GivenText {
        GivenText(text.into_raw())
    }

    /// Frees the string, which the caller has passed back.
    pub fn free(self) {
        if !self.0.is_null() {
            // SAFETY: C Caller: it came from `new`, and is passed back once.
            drop(unsafe { CString::from_raw(self.0) });
        }
    }
}

/// The argument of a callback, or its result. A callback may be called with the argument that C
/// passed with it, on any thread, so callbacks have the types of safe functions. So may a value
/// that C sends through a channel.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Argument(*mut c_void);

// SAFETY: C Caller: the argument of a callback may be used on any worker's thread.
unsafe impl Send for Argument {}
// SAFETY: C Caller: as above; here nothing follows the pointer.
unsafe impl Sync for Argument {}

impl Default for Argument {
    /// Returns NULL.
    fn default() -> Argument {
        Argument(std::ptr::null_mut())
    }
}

/// A descriptor that the caller keeps open until the request that uses it has ended; or a negative
/// number.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor(c_int);

impl Descriptor {
    /// Returns the descriptor's number.
    pub fn number(&self) -> c_int {
        self.0
    }

    /// Converts the descriptor to the form that a request uses. Returns `None` if it is a negative
    /// number.
    pub fn lend(self) -> Option<LentDescriptor> {
        (self.0 >= 0).then_some(LentDescriptor(self))
    }
}

/// An open descriptor that a request uses. The request's end drops it, which does not close it.
#[derive(Debug)]
pub struct LentDescriptor(Descriptor);

impl AsFd for LentDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: C Caller: it stays open until the request has ended; `lend` has checked that it
        // is not negative.
        unsafe { BorrowedFd::borrow_raw(self.0.0) }
    }
}

/// Chooses fiber workers for a node of a C program.
pub fn fiber_workers(builder: Builder) -> Builder {
    // SAFETY: C Caller: the header says at UMS_WORKERS_FIBER what may run there.
    unsafe { builder.fiber_workers() }
}
