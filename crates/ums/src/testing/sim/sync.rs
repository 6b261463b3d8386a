//! Atomic variables whose operations are points of a simulated world.
//!
//! Between two operations on the atomic variables of the standard library, no other thread of a
//! story runs, so a mistake in their order is not found. Code that uses these instead is run with
//! other threads in between:
//!
//! ```
//! #[cfg(not(feature = "sim"))]
//! use std::sync::atomic::AtomicUsize;
//! # #[cfg(all())]
//! use ums::sim::sync::AtomicUsize;
//!
//! use std::sync::atomic::Ordering;
//!
//! let seats = AtomicUsize::new(3);
//! assert_eq!(seats.fetch_sub(1, Ordering::AcqRel), 3);
//! ```
//!
//! The simulated world does not reorder memory accesses. Weak orderings are tested with loom.

use std::sync::atomic::{self, Ordering};

use crate::os::threads::operation;

macro_rules! atomic {
    ($($name:ident, $value:ty, { $($change:ident)* });* $(;)?) => { $(
        /// The atomic variable of the standard library with this name; each operation is a point.
        #[derive(Debug, Default)]
        pub struct $name(atomic::$name);

        impl $name {
            /// Creates an atomic variable.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            /// Returns the value.
            pub fn load(&self, order: Ordering) -> $value {
                operation(concat!(stringify!($name), ": load"));
                self.0.load(order)
            }

            /// Replaces the value.
            pub fn store(&self, value: $value, order: Ordering) {
                operation(concat!(stringify!($name), ": store"));
                self.0.store(value, order);
            }

            $(
                /// Changes the value, and returns the previous one.
                pub fn $change(&self, value: $value, order: Ordering) -> $value {
                    operation(concat!(stringify!($name), ": ", stringify!($change)));
                    self.0.$change(value, order)
                }
            )*

            /// Replaces the value if it is `current`.
            ///
            /// # Errors
            /// The value, if it is another one.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                operation(concat!(stringify!($name), ": compare_exchange"));
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As `compare_exchange`, which never fails without a cause here.
            ///
            /// # Errors
            /// The value, if it is another one.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Replaces the value by `change` of it, as long as that is `Some`.
            ///
            /// # Errors
            /// The value for which `change` has returned `None`.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.load(fetch);
                while let Some(after) = change(before) {
                    match self.compare_exchange(before, after, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }

            /// Returns the value. The caller owns the variable, so no point is passed.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            /// Returns the value. No other thread can use the variable, so no point is passed.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    )* };
}

atomic! {
    AtomicBool, bool, { swap fetch_and fetch_or fetch_xor };
    AtomicU8, u8, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicU16, u16, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicU32, u32, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicU64, u64, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicUsize, usize, {
        swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min
    };
    AtomicI8, i8, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicI16, i16, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicI32, i32, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicI64, i64, { swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min };
    AtomicIsize, isize, {
        swap fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min
    };
}

/// The atomic pointer of the standard library; each operation is a point.
#[derive(Debug, Default)]
pub struct AtomicPtr<T>(atomic::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// Creates an atomic pointer.
    pub const fn new(value: *mut T) -> Self {
        Self(atomic::AtomicPtr::new(value))
    }

    /// Returns the pointer.
    pub fn load(&self, order: Ordering) -> *mut T {
        operation("AtomicPtr: load");
        self.0.load(order)
    }

    /// Replaces the pointer.
    pub fn store(&self, value: *mut T, order: Ordering) {
        operation("AtomicPtr: store");
        self.0.store(value, order);
    }

    /// Replaces the pointer, and returns the previous one.
    pub fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        operation("AtomicPtr: swap");
        self.0.swap(value, order)
    }

    /// Replaces the pointer if it is `current`.
    ///
    /// # Errors
    /// The pointer, if it is another one.
    pub fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        operation("AtomicPtr: compare_exchange");
        self.0.compare_exchange(current, new, success, failure)
    }

    /// As `compare_exchange`, which never fails without a cause here.
    ///
    /// # Errors
    /// The pointer, if it is another one.
    pub fn compare_exchange_weak(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        self.compare_exchange(current, new, success, failure)
    }

    /// Returns the pointer. The caller owns the variable, so no point is passed.
    pub fn into_inner(self) -> *mut T {
        self.0.into_inner()
    }

    /// Returns the pointer. No other thread can use the variable, so no point is passed.
    pub fn get_mut(&mut self) -> &mut *mut T {
        self.0.get_mut()
    }
}
