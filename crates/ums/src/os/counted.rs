//! The standard library's atomics. In a simulated world, the accesses to them are counted.
//!
//! To share memory costs time when a thread needs a cache line that another thread has written, or
//! writes one that others have read. A test counts that in a simulated world (`sim/lines.rs`), with
//! the real code of the schedulers. In a build without the feature `sim` these are the standard
//! library's types, and [`note_change`] is nothing.
//!
//! What this file does not do: it has no atomics for models (`atomic.rs` has), and counts nothing
//! that is shared in other ways, by locks or by counts of references, unless their users call
//! [`note_change`].

#[cfg(not(feature = "sim"))]
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

#[cfg(feature = "sim")]
pub use self::noted::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

/// Counts a read-modify-write of memory that is no atomic of this file: a lock's, or a count of
/// references.
#[inline(always)]
pub fn note_change<T: ?Sized>(_at: &T) {
    #[cfg(feature = "sim")]
    super::sim::noted::note(_at, super::sim::noted::Access::Change);
}

#[cfg(feature = "sim")]
mod noted {
    use std::sync::atomic::Ordering;

    use crate::os::sim::noted::{Access, note};

    /// The methods that every atomic has.
    macro_rules! noted {
        ($name:ident $(<$generic:ident>)?, $value:ty) => {
            /// The standard library's type, of which a simulated world counts the accesses.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name$(<$generic>)?(std::sync::atomic::$name$(<$generic>)?);

            #[allow(dead_code, reason = "no type needs all methods")]
            impl$(<$generic>)? $name$(<$generic>)? {
                #[inline]
                pub const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }

                #[inline]
                pub fn load(&self, order: Ordering) -> $value {
                    note(self, Access::Read);
                    self.0.load(order)
                }

                #[inline]
                pub fn store(&self, value: $value, order: Ordering) {
                    note(self, Access::Write);
                    self.0.store(value, order);
                }

                #[inline]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    note(self, Access::Change);
                    self.0.swap(value, order)
                }

                #[inline]
                pub fn compare_exchange(
                    &self,
                    from: $value,
                    to: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    note(self, Access::Change);
                    self.0.compare_exchange(from, to, order, failed)
                }

                #[inline]
                pub fn compare_exchange_weak(
                    &self,
                    from: $value,
                    to: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    note(self, Access::Change);
                    self.0.compare_exchange_weak(from, to, order, failed)
                }

                #[inline]
                pub fn fetch_update(
                    &self,
                    order: Ordering,
                    failed: Ordering,
                    to: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    note(self, Access::Change);
                    self.0.fetch_update(order, failed, to)
                }
            }

            /// For accesses that need not be counted, such as those in assembly.
            impl$(<$generic>)? std::ops::Deref for $name$(<$generic>)? {
                type Target = std::sync::atomic::$name$(<$generic>)?;
                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }

            impl$(<$generic>)? std::ops::DerefMut for $name$(<$generic>)? {
                fn deref_mut(&mut self) -> &mut Self::Target {
                    &mut self.0
                }
            }
        };
    }

    /// Read-modify-writes of some types.
    macro_rules! changes {
        ($name:ident, $value:ty: $($change:ident)*) => {
            #[allow(dead_code, reason = "no type needs all methods")]
            impl $name {
                $(
                    #[inline]
                    pub fn $change(&self, value: $value, order: Ordering) -> $value {
                        note(self, Access::Change);
                        self.0.$change(value, order)
                    }
                )*
            }
        };
    }

    noted!(AtomicBool, bool);
    noted!(AtomicU8, u8);
    noted!(AtomicU16, u16);
    noted!(AtomicU32, u32);
    noted!(AtomicU64, u64);
    noted!(AtomicUsize, usize);
    noted!(AtomicPtr<T>, *mut T);
    changes!(AtomicU8, u8: fetch_or fetch_and);
    changes!(AtomicU32, u32: fetch_add fetch_sub fetch_or fetch_and);
    changes!(AtomicU64, u64: fetch_add fetch_sub fetch_or fetch_and fetch_max);
    changes!(AtomicUsize, usize: fetch_add fetch_sub fetch_or fetch_and);
}
