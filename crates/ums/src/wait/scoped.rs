//! What holds for a part of a waiter's code, and not for its waiter: a limit, values.
//!
//! [`Values`] is a list that never changes: a scope makes a new one, with one value for each key at
//! most, and the old one comes back after it. So the values can be given to other waiters by
//! counting one reference, and a chain of tasks of which each sets a value does not grow.
//!
//! What this file does not do: it knows no waiter. `bounds` and `locals` set and read what is here.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::os::lock::Lock;

/// What a value is found by: the address of its static.
pub(crate) type Key = usize;

type Entry = (Key, Arc<dyn Any + Send + Sync>);

/// The values that a piece of code sees. A clone is the same list.
#[derive(Clone, Default)]
pub(crate) struct Values(Option<Arc<Vec<Entry>>>);

impl Values {
    /// Returns the value with this key, if there is one of this type.
    pub fn get<T: Send + Sync + 'static>(&self, key: Key) -> Option<Arc<T>> {
        let (_, value) = self.0.as_ref()?.iter().find(|(of, _)| *of == key)?;
        Arc::downcast(value.clone()).ok()
    }

    /// Returns the same values and this one, in the place of another with the same key.
    pub fn with(&self, key: Key, value: Arc<dyn Any + Send + Sync>) -> Values {
        let others = self.0.iter().flat_map(|list| list.iter()).filter(|(of, _)| *of != key);
        Values(Some(Arc::new(others.cloned().chain([(key, value)]).collect())))
    }

    /// Returns whether there is no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns how many values there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.len())
    }
}

/// What holds for a part of the code of one waiter. It is made when there is something for the
/// first time, and then stays with the waiter, which is never freed.
#[derive(Default)]
pub(super) struct Scoped {
    /// The limit of the waits, if they have one, in nanoseconds of the clock.
    pub limit: AtomicU64,
    /// The values of request-locals. The lock is always free, because only the waiter's own code
    /// uses it. It is there because waiters are shared.
    pub values: Lock<Values>,
    /// A value of the waiter's whole request, with the request's number.
    pub of_request: Lock<Option<(u64, Arc<dyn Any + Send + Sync>)>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_value_for_each_key_and_does_not_grow() {
        let mut values = Values::default();
        assert!(values.is_empty() && values.get::<u32>(1).is_none());
        let first = values.with(2, Arc::new("two"));
        for n in 0..1000_u32 {
            values = first.with(1, Arc::new(n)).with(1, Arc::new(n + 1));
            assert_eq!(values.len(), 2);
            assert_eq!(values.get::<u32>(1).as_deref(), Some(&(n + 1)));
        }
        assert_eq!(values.get::<&str>(2).as_deref(), Some(&"two"));
        assert!(values.get::<u64>(1).is_none(), "it has another type");
        assert_eq!(first.len(), 1);
    }
}
