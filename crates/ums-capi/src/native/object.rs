//! The object behind an opaque pointer of `ums.h`.
//!
//! A pointer points at a *slot*. A slot has the kind of object that it is for, a flag that says
//! whether there is an object, the number of calls that use the object at this moment, and the
//! object. Calls that cannot wait, such as the one that sets an event, are counted apart: the
//! waiter that such a call wakes may free the object before that call has returned.
//!
//! ```text
//!   state word            | meaning                              | a call     | free
//!   0                     | no object                            | EBADF      | EBADF
//!   LIVE + n + m * BRIEF  | an object; n calls use it, and m     | n + 1, or  | 0 if n = 0,
//!                         | that cannot wait                     | m + 1      | or EBUSY
//!   n + m * BRIEF         | freed; the last of the calls drops it| EBADF      | EBADF
//! ```
//!
//! This file has unsafe code, because it follows pointers that C has stored. It keeps its
//! invariants as follows:
//!
//! * Type Stable: a slot is never returned to the allocator, only used again for the same kind. So
//!   a call with a stale pointer reads live memory, and recognises that the object was freed. A
//!   slot that has been used again meanwhile is not recognised; then the call uses the new object,
//!   which is of the same kind.
//! * Held: the object is written and dropped only by the thread that found the count at 0 without
//!   LIVE, and it is read only by a call that is counted.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fault::{Fault, guard};
use crate::caller::Out;
use ums::pool::{Member, Pool, Pooled};

const LIVE: u64 = 1 << 63;
/// What a call that cannot wait counts as.
const BRIEF: u64 = 1 << 32;

/// An opaque pointer of the header: NULL, or a pointer that [`make`] has returned, perhaps for
/// another kind of object. Only [`make`] and C callers create values of this type.
#[repr(transparent)]
pub struct Handle<O>(*const O);

/// A pointer that the header declares const.
pub type ConstHandle<O> = Handle<O>;

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Handle<O> {
        *self
    }
}

impl<O> Copy for Handle<O> {}

impl<O> Handle<O> {
    /// Returns NULL.
    pub fn none() -> Handle<O> {
        Handle(std::ptr::null())
    }

    /// Returns true for NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns the same pointer with the type of another kind of object.
    pub fn cast<P>(self) -> Handle<P> {
        Handle(self.0.cast())
    }
}

#[cfg(any(test, fuzzing))]
impl<O> Handle<O> {
    /// Returns its address.
    pub fn address(self) -> usize {
        self.0.addr()
    }
}

/// A kind of object, implemented by the opaque type that names it in the header.
pub trait Object: 'static {
    /// The type of the object.
    type Value: Send + Sync + 'static;
    /// A number that no other kind has, and that is unlikely to occur elsewhere in memory.
    const KIND: u64;
    /// Its name in error messages.
    const NAME: &'static str;
    /// Returns the pool of its slots.
    fn pool() -> &'static Pool<Slot<Self::Value>>;
}

/// A slot: the memory of one object, in cache lines of its own. In every slot the kind is the first
/// field.
#[repr(C, align(64))]
pub struct Slot<T: 'static> {
    kind: u64,
    state: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
    member: Member<Slot<T>>,
}

// SAFETY: Held: the value is shared as `&T`, and only one thread at a time moves it in or out.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T: Send + Sync> Pooled for Slot<T> {
    fn member(&self) -> &Member<Slot<T>> {
        &self.member
    }
}

/// Defines the kinds of objects behind opaque types.
macro_rules! objects {
    ($($name:ident = $kind:literal: $value:ty;)*) => {
        $(
            impl $crate::native::object::Object for $name {
                type Value = $value;
                const KIND: u64 = u64::from_be_bytes(*$kind);
                const NAME: &'static str = stringify!($name);
                fn pool() -> &'static ums::pool::Pool<$crate::native::object::Slot<$value>> {
                    static POOL: ums::pool::Pool<$crate::native::object::Slot<$value>> =
                        ums::pool::Pool::new();
                    &POOL
                }
            }
        )*
    };
}
pub(crate) use objects;

/// A counted use of an object, and what was counted: 1, or `BRIEF`.
pub struct Ref<O: Object>(&'static Slot<O::Value>, u64);

impl<O: Object> Deref for Ref<O> {
    type Target = O::Value;

    fn deref(&self) -> &O::Value {
        // SAFETY: Held: this use is counted, so the value exists and is not written.
        unsafe { (*self.0.value.get()).assume_init_ref() }
    }
}

impl<O: Object> Drop for Ref<O> {
    fn drop(&mut self) {
        // Release: this use happens before the object is dropped. Acquire: this use may be the
        // last, which drops the object.
        if self.0.state.fetch_sub(self.1, Ordering::AcqRel) == self.1 {
            drop_value::<O>(self.0);
        }
    }
}

/// Creates an object and returns the pointer for C.
pub fn make<O: Object>(value: O::Value) -> Handle<O> {
    let make = |member| Slot {
        kind: O::KIND,
        state: AtomicU64::new(0),
        value: UnsafeCell::new(MaybeUninit::uninit()),
        member,
    };
    let slot = O::pool().take(make, |_| {});
    // SAFETY: Held: a slot from the pool, or a new one, has no other user.
    unsafe { (*slot.value.get()).write(value) };
    slot.state.store(LIVE, Ordering::Release);
    Handle(std::ptr::from_ref(slot).cast())
}

/// Returns the object behind a pointer. The object is in use until the result is dropped, and
/// cannot be freed.
pub fn get<O: Object>(pointer: Handle<O>) -> Result<Ref<O>, Fault> {
    count_use(pointer, 1)
}

/// Returns the object behind a pointer, for a call that cannot wait. The object may be freed; then
/// it is dropped with the last use.
pub fn get_briefly<O: Object>(pointer: Handle<O>) -> Result<Ref<O>, Fault> {
    count_use(pointer, BRIEF)
}

fn count_use<O: Object>(pointer: Handle<O>, unit: u64) -> Result<Ref<O>, Fault> {
    let slot = slot(pointer)?;
    let mut state = slot.state.load(Ordering::Relaxed);
    loop {
        if state & LIVE == 0 {
            return Err(gone::<O>());
        }
        let entered = slot.state.compare_exchange_weak(
            state,
            state + unit,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        match entered {
            Ok(_) => return Ok(Ref(slot, unit)),
            Err(now) => state = now,
        }
    }
}

/// Frees an object. Returns `EBUSY` if a call that may wait uses the object, or if `idle` returns
/// false.
pub fn free<O: Object>(
    pointer: Handle<O>,
    idle: impl FnOnce(&O::Value) -> bool,
) -> Result<(), Fault> {
    let busy = || Fault::new(libc::EBUSY, format!("the {} is in use", O::NAME));
    let object = get(pointer)?;
    if !idle(&object) {
        return Err(busy());
    }
    // If this is the only use beside brief ones, no other begins without LIVE, and the end of the
    // last one drops the object.
    let freed = object.0.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |state| {
        (state & LIVE != 0 && state % BRIEF == 1).then_some(state & !LIVE)
    });
    freed.map_err(|state| if state & LIVE == 0 { gone::<O>() } else { busy() })?;
    Ok(())
}

/// Creates an object and stores the pointer for C.
pub fn give<O: Object>(mut out: Out<'_, Handle<O>>, value: O::Value) -> Result<c_int, Fault> {
    if out.is_null() {
        return Err(Fault::null(O::NAME));
    }
    out.put(make(value));
    Ok(0)
}

/// Frees an object, for a function of the header: NULL is allowed, and the result is an error
/// number.
pub fn discard<O: Object>(pointer: Handle<O>, idle: impl FnOnce(&O::Value) -> bool) -> c_int {
    guard(|| if pointer.is_null() { Ok(0) } else { free(pointer, idle).map(|()| 0) })
}

/// Separates an object from its pointer: from now on no call finds the object. It is dropped when
/// the last call that uses it ends, and not before `object` is dropped.
pub fn retire<O: Object>(object: &Ref<O>) {
    object.0.state.fetch_and(!LIVE, Ordering::AcqRel);
}

fn drop_value<O: Object>(slot: &'static Slot<O::Value>) {
    // SAFETY: Held: the count is 0 without LIVE, so no use is left.
    let value = unsafe { (*slot.value.get()).assume_init_read() };
    drop(value);
    O::pool().give_back(slot);
}

fn gone<O: Object>() -> Fault {
    Fault::new(libc::EBADF, format!("this {} was freed", O::NAME))
}

fn slot<O: Object>(Handle(pointer): Handle<O>) -> Result<&'static Slot<O::Value>, Fault> {
    if pointer.is_null() {
        return Err(Fault::null(O::NAME));
    }
    let other = || Fault::new(libc::EBADF, format!("this points at no {}", O::NAME));
    let kind = pointer.cast::<u64>();
    if !pointer.cast::<Slot<O::Value>>().is_aligned() || !kind.is_aligned() {
        return Err(other());
    }
    // SAFETY: C Caller, Type Stable: the pointer came from `make` of some kind, and each slot
    // begins with its kind.
    if unsafe { *kind } != O::KIND {
        return Err(other());
    }
    // SAFETY: Type Stable: the kind shows that this is a slot of this type.
    Ok(unsafe { &*pointer.cast::<Slot<O::Value>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct thing;
    struct other;
    objects! {
        thing = b"thing\0\0\0": Arc<u32>;
        other = b"other\0\0\0": Arc<u32>;
    }

    #[test]
    fn an_object_is_found_until_it_is_freed_and_a_second_free_is_told() {
        let value = Arc::new(7);
        let pointer: Handle<thing> = make(value.clone());
        assert_eq!(**get(pointer).unwrap(), 7);
        free(pointer, |_| true).unwrap();
        assert_eq!(Arc::strong_count(&value), 1, "the value was dropped");
        assert_eq!(get(pointer).err().unwrap().errno(), libc::EBADF);
        assert_eq!(free(pointer, |_| true).unwrap_err().errno(), libc::EBADF);
    }

    #[test]
    fn null_and_the_wrong_kind_are_told() {
        assert_eq!(get(Handle::<thing>::none()).err().unwrap().errno(), libc::EINVAL);
        let pointer: Handle<other> = make(Arc::new(1));
        assert_eq!(get(pointer.cast::<thing>()).err().unwrap().errno(), libc::EBADF);
        free(pointer, |_| true).unwrap();
    }

    #[test]
    fn what_is_in_use_is_not_freed_and_what_is_retired_ends_with_its_last_user() {
        let value = Arc::new(7);
        let pointer: Handle<thing> = make(value.clone());
        let user = get(pointer).unwrap();
        assert_eq!(free(pointer, |_| true).unwrap_err().errno(), libc::EBUSY);
        assert_eq!(free(pointer, |_| false).unwrap_err().errno(), libc::EBUSY);
        let brief = get_briefly(pointer).unwrap();
        assert_eq!(free(pointer, |_| true).unwrap_err().errno(), libc::EBUSY);
        drop(brief);
        retire(&user);
        assert_eq!(get(pointer).err().unwrap().errno(), libc::EBADF);
        assert_eq!(Arc::strong_count(&value), 2, "a call still uses it");
        drop(user);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_call_that_cannot_wait_does_not_hinder_a_free_and_keeps_the_object_until_it_ends() {
        let value = Arc::new(7);
        let pointer: Handle<thing> = make(value.clone());
        let users = [(); 2].map(|()| get_briefly(pointer).unwrap());
        free(pointer, |_| true).unwrap();
        for _ in users {
            assert_eq!(get_briefly(pointer).err().unwrap().errno(), libc::EBADF);
            assert_eq!(free(pointer, |_| true).unwrap_err().errno(), libc::EBADF);
            assert_eq!(Arc::strong_count(&value), 2, "a call still uses it");
        }
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
