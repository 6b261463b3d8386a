//! An atomic reference to an object that is never freed.
//!
//! Waiters, event rings, watched threads and events are never freed, only used again. Another
//! thread may still have a reference to such an object when it is used for something else. The
//! thread notices that by a word in the object.
//!
//! Named invariant **Type Stable**: an [`AtomicRef`] holds null or a pointer that was made from a
//! `&'static T`, and returns that reference. A store releases and a load acquires: every change
//! that the storing thread made to the object before, such as making it, is visible to the thread
//! that follows the reference. A caller cannot choose a weaker ordering, because the type promises
//! a valid `&'static T` to safe code. On x86-64 both are plain moves.
//!
//! An [`AtomicMarkedRef`] is a reference and a mark in one word. The mark is the lowest bit.
//!
//! Atomics that loom models check are in `os/atomic.rs`.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering;

use super::counted::AtomicPtr;

/// An `Option<&'static T>` that threads share. As a pointer in memory, null for None.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicRef<T: 'static> {
    at: AtomicPtr<T>,
    to: PhantomData<&'static T>,
}

fn pointer<T>(to: Option<&'static T>) -> *mut T {
    to.map_or(null_mut(), |to| from_ref(to).cast_mut())
}

impl<T> Default for AtomicRef<T> {
    fn default() -> AtomicRef<T> {
        AtomicRef::new()
    }
}

impl<T> AtomicRef<T> {
    /// Makes a reference to nothing.
    pub const fn new() -> AtomicRef<T> {
        AtomicRef { at: AtomicPtr::new(null_mut()), to: PhantomData }
    }

    /// Returns the object that the reference refers to.
    #[inline]
    pub fn load(&self) -> Option<&'static T> {
        // SAFETY: Type Stable: null, or from a `&'static T`, whose making is visible.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the reference refer to `to`.
    #[inline]
    pub fn store(&self, to: Option<&'static T>) {
        self.at.store(pointer(to), Ordering::Release);
    }

    /// Makes the reference refer to nothing, if it refers to `it`. Returns whether it did.
    pub fn clear_if(&self, it: &'static T) -> bool {
        let it = pointer(Some(it));
        self.at.compare_exchange(it, null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A reference that may be null, with a mark in its lowest bit.
#[derive(Debug)]
pub struct MarkedRef<T: 'static>(*mut T);

impl<T> Clone for MarkedRef<T> {
    fn clone(&self) -> MarkedRef<T> {
        *self
    }
}

impl<T> Copy for MarkedRef<T> {}

impl<T> MarkedRef<T> {
    const MARK: usize = 1;
    /// Null, without a mark.
    pub const NULL: MarkedRef<T> = MarkedRef(null_mut());

    /// Makes a reference to `it`, without a mark.
    #[inline]
    pub fn of(it: &'static T) -> MarkedRef<T> {
        const { assert!(align_of::<T>() > MarkedRef::<T>::MARK) };
        MarkedRef(from_ref(it).cast_mut())
    }

    /// Returns the same reference with the mark.
    #[inline]
    pub fn marked(self) -> MarkedRef<T> {
        MarkedRef(self.0.map_addr(|addr| addr | Self::MARK))
    }

    /// Returns whether the reference has the mark.
    #[inline]
    pub fn is_marked(self) -> bool {
        self.0.addr() & Self::MARK != 0
    }

    /// Returns whether the reference is null and has no mark.
    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the object that the reference refers to, whether or not the reference has the mark.
    #[inline]
    pub fn get(self) -> Option<&'static T> {
        let it = self.0.map_addr(|addr| addr & !Self::MARK);
        // SAFETY: Type Stable: null, or from a `&'static T`, whose making is visible, because the
        // word was stored with release and loaded with acquire.
        unsafe { it.as_ref() }
    }
}

/// A [`MarkedRef`] that threads share. As in [`AtomicRef`], a store releases and a load acquires.
#[derive(Debug)]
pub struct AtomicMarkedRef<T: 'static> {
    at: AtomicPtr<T>,
    to: PhantomData<&'static T>,
}

impl<T> AtomicMarkedRef<T> {
    /// Makes a shared reference that is null and has no mark.
    pub const fn new() -> AtomicMarkedRef<T> {
        AtomicMarkedRef { at: AtomicPtr::new(null_mut()), to: PhantomData }
    }

    /// Returns the current value.
    #[inline]
    pub fn load(&self) -> MarkedRef<T> {
        MarkedRef(self.at.load(Ordering::Acquire))
    }

    /// Sets the value.
    #[inline]
    pub fn store(&self, to: MarkedRef<T>) {
        self.at.store(to.0, Ordering::Release);
    }

    /// Sets the value to `to` if it is `from`. Otherwise returns the value as an error.
    #[inline]
    pub fn compare_exchange(
        &self,
        from: MarkedRef<T>,
        to: MarkedRef<T>,
    ) -> Result<(), MarkedRef<T>> {
        self.at
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(MarkedRef)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_what_was_stored_and_is_cleared_only_if_it_is_that() {
        static VALUES: [u32; 2] = [1, 2];
        let to = AtomicRef::new();
        assert!(to.load().is_none());
        to.store(Some(&VALUES[1]));
        assert!(to.load().is_some_and(|value| std::ptr::eq(value, &VALUES[1])));
        assert!(!to.clear_if(&VALUES[0]) && to.clear_if(&VALUES[1]));
        assert!(to.load().is_none());
    }
}
