//! Fuzzing of the C interface: calls are made from bytes.
//!
//! The bytes choose calls and their arguments: an object of the right kind, an object of another
//! kind, a freed object, or NULL. A model, a map from each pointer to the object that should be
//! behind it, says what each call must return. The calls come from a plain thread and never wait.
//!
//! The module is not part of the library: it exists only in tests and with `--cfg fuzzing`.

use std::collections::BTreeMap;
use std::ffi::c_int;

use arbitrary::{Result, Unstructured};
use libc::{EBADF, EBUSY, EDEADLK, EINVAL, EOVERFLOW, EPERM, EPIPE, ETIMEDOUT};

use crate::caller::{Argument, Out};
use crate::native::channel::*;
use crate::native::object::Handle;
use crate::native::sync::*;
use ums::lock::Lock;

/// The object that should be behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Object {
    Mutex { locked: bool },
    Condvar,
    Event { manual: bool, set: bool },
    Semaphore { permits: usize },
    RwLock { readers: usize, writer: bool },
    Barrier { callers: usize },
    Channel { bound: usize, held: usize, closed: bool },
}

/// The kinds, in the order of [`Object`].
const KINDS: usize = 7;

fn kind(object: Object) -> usize {
    match object {
        Object::Mutex { .. } => 0,
        Object::Condvar => 1,
        Object::Event { .. } => 2,
        Object::Semaphore { .. } => 3,
        Object::RwLock { .. } => 4,
        Object::Barrier { .. } => 5,
        Object::Channel { .. } => 6,
    }
}

/// A pointer to any kind of object.
type Pointer = Handle<ums_mutex>;

/// For each pointer that was ever returned, by its address: the pointer, its kind, and the object
/// that is behind it now.
#[derive(Default)]
struct Model(BTreeMap<usize, (Pointer, usize, Option<Object>)>);

impl Model {
    /// Returns a random pointer. Often it is of this kind.
    fn choose(&self, bytes: &mut Unstructured<'_>, wanted: usize) -> Result<Pointer> {
        let fits = |kind: usize, any: bool| any || kind == wanted;
        let any = bytes.ratio(1, 8)?;
        let all = self.0.values().filter(|(_, kind, _)| fits(*kind, any)).map(|(at, ..)| *at);
        let all: Vec<Pointer> = all.collect();
        let null = all.is_empty() || bytes.ratio(1, 32)?;
        if null { Ok(Handle::none()) } else { Ok(*bytes.choose(&all)?) }
    }

    /// Returns the object that a call of this kind finds there, or the error that the call must
    /// return.
    fn find(&mut self, at: Pointer, wanted: usize) -> std::result::Result<&mut Object, c_int> {
        match self.0.get_mut(&at.address()) {
            Some((_, kind, Some(object))) if *kind == wanted => Ok(object),
            // The object was freed, or is of another kind.
            Some(_) => Err(-EBADF),
            None => Err(-EINVAL),
        }
    }

    fn made<O>(&mut self, at: Handle<O>, object: Object) {
        let before = self.0.insert(at.address(), (at.cast(), kind(object), Some(object)));
        let slot_was_free =
            before.is_none_or(|(_, before, lives)| before == kind(object) && lives.is_none());
        assert!(slot_was_free, "a slot that was in use became {object:?}");
    }
}

/// Calls the C interface. One sequence runs at a time, because the model describes all slots of the
/// process.
pub fn calls(bytes: &[u8]) {
    static ALONE: Lock<()> = Lock::new(());
    let _alone = ALONE.lock();
    let mut model = Model::default();
    let _ = calls_of(&mut Unstructured::new(bytes), &mut model);
    // At the end every object can be freed, whatever happened before.
    let all: Vec<_> =
        model.0.values().filter_map(|(at, _, object)| Some((*at, (*object)?))).collect();
    for (at, object) in all {
        match object {
            Object::Mutex { locked: true } => assert_eq!(ums_mutex_unlock(at), 0),
            Object::RwLock { readers, writer } => {
                let held = readers + usize::from(writer);
                (0..held).for_each(|_| assert_eq!(ums_rwlock_unlock(at.cast()), 0));
            }
            _ => {}
        }
        assert_eq!(free(at, kind(object)), 0, "{object:?}");
    }
}

fn free(at: Pointer, kind: usize) -> c_int {
    match kind {
        0 => ums_mutex_free(at),
        1 => ums_condvar_free(at.cast()),
        2 => ums_event_free(at.cast()),
        3 => ums_semaphore_free(at.cast()),
        4 => ums_rwlock_free(at.cast()),
        5 => ums_barrier_free(at.cast()),
        _ => ums_channel_free(at.cast()),
    }
}

/// Returns true if a lock is held, so that it cannot be freed.
fn is_held(object: Object) -> bool {
    match object {
        Object::Mutex { locked } => locked,
        Object::RwLock { readers, writer } => readers > 0 || writer,
        _ => false,
    }
}

fn calls_of(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    while !bytes.is_empty() && model.0.len() < 64 {
        match bytes.int_in_range(0..=10)? {
            0 => make(bytes, model)?,
            1 => {
                let wanted = bytes.choose_index(KINDS)?;
                let at = model.choose(bytes, wanted)?;
                let said = free(at, wanted);
                let expected = match model.find(at, wanted) {
                    _ if at.is_null() => 0,
                    Err(error) => error,
                    Ok(object) if is_held(*object) => -EBUSY,
                    Ok(_) => 0,
                };
                assert_eq!(said, expected, "free");
                if said == 0
                    && let Some((.., object)) = model.0.get_mut(&at.address())
                {
                    *object = None;
                }
            }
            2 | 3 => mutex(bytes, model)?,
            4 | 5 => event(bytes, model)?,
            6 => semaphore(bytes, model)?,
            7 => condvar(bytes, model)?,
            8 => rwlock(bytes, model)?,
            9 => barrier(bytes, model)?,
            _ => channel(bytes, model)?,
        }
    }
    Ok(())
}

fn make(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let (manual, set) = (bytes.arbitrary()?, bytes.arbitrary()?);
    let permits = *bytes.choose(&[0, 1, 3, usize::MAX / 2, usize::MAX])?;
    match bytes.int_in_range(0..=7)? {
        0 => {
            let mut mutex = Handle::none();
            assert_eq!(ums_mutex_new(Out::new(&mut mutex)), 0);
            model.made(mutex, Object::Mutex { locked: false });
        }
        1 => {
            let mut condvar = Handle::none();
            assert_eq!(ums_condvar_new(Out::new(&mut condvar)), 0);
            model.made(condvar, Object::Condvar);
        }
        2 => {
            let mut event = Handle::none();
            assert_eq!(ums_event_new(manual, set, Out::new(&mut event)), 0);
            model.made(event, Object::Event { manual, set });
        }
        3 => {
            let mut semaphore = Handle::none();
            match ums_semaphore_new(permits, Out::new(&mut semaphore)) {
                0 => model.made(semaphore, Object::Semaphore { permits }),
                error => {
                    assert_eq!((error, permits > ums::sync::Semaphore::MAX), (-EOVERFLOW, true))
                }
            }
        }
        4 => {
            let mut rwlock = Handle::none();
            assert_eq!(ums_rwlock_new(Out::new(&mut rwlock)), 0);
            model.made(rwlock, Object::RwLock { readers: 0, writer: false });
        }
        5 => {
            let mut barrier = Handle::none();
            match ums_barrier_new(permits, Out::new(&mut barrier)) {
                0 => model.made(barrier, Object::Barrier { callers: permits }),
                error => assert_eq!((error, permits), (-EINVAL, 0)),
            }
        }
        6 => {
            let mut channel = Handle::none();
            assert_eq!(ums_channel_new(permits, Out::new(&mut channel)), 0);
            model.made(channel, Object::Channel { bound: permits, held: 0, closed: false });
        }
        _ => assert_eq!(ums_mutex_new(Out::null()), -EINVAL),
    }
    Ok(())
}

fn mutex(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 0)?;
    let lock = bytes.arbitrary()?;
    let said = if lock { ums_mutex_lock(at, 0) } else { ums_mutex_unlock(at) };
    let expected = match model.find(at, 0) {
        Err(error) => error,
        Ok(Object::Mutex { locked }) if *locked != lock => {
            *locked = lock;
            0
        }
        Ok(_) => {
            if lock {
                -EDEADLK
            } else {
                -EPERM
            }
        }
    };
    assert_eq!(said, expected, "lock: {lock}");
    Ok(())
}

fn event(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 2)?;
    let which = bytes.int_in_range(0..=3)?;
    let said = match which {
        0 => ums_event_set(at.cast()),
        1 => ums_event_reset(at.cast()),
        2 => ums_event_is_set(at.cast()).into(),
        _ => ums_event_wait(at.cast(), 0),
    };
    let expected = match (model.find(at, 2), which) {
        (Err(_), 2) => 0,
        (Err(error), _) => error,
        (Ok(Object::Event { set, .. }), 0) => {
            *set = true;
            0
        }
        (Ok(Object::Event { set, .. }), 1) => std::mem::take(set).into(),
        (Ok(Object::Event { set, .. }), 2) => (*set).into(),
        (Ok(Object::Event { manual, set }), _) if *set => {
            *set = *manual;
            0
        }
        _ => -ETIMEDOUT,
    };
    assert_eq!(said, expected, "call {which} of an event");
    Ok(())
}

fn semaphore(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 3)?;
    let more = *bytes.choose(&[0, 1, 2, usize::MAX / 2, usize::MAX])?;
    let which = bytes.int_in_range(0..=2)?;
    let said = match which {
        0 => ums_semaphore_acquire(at.cast(), 0),
        1 => ums_semaphore_release(at.cast(), more),
        _ => 0,
    };
    let available = ums_semaphore_available(at.cast());
    let found = model.find(at, 3);
    let (expected, there) = match (found, which) {
        (Err(error), _) => (if which == 2 { 0 } else { error }, 0),
        (Ok(Object::Semaphore { permits }), 0) if *permits > 0 => {
            *permits -= 1;
            (0, *permits)
        }
        (Ok(Object::Semaphore { permits }), 1) => {
            let sum = permits.checked_add(more).filter(|sum| *sum <= ums::sync::Semaphore::MAX);
            *permits = sum.unwrap_or(*permits);
            (if sum.is_some() { 0 } else { -EOVERFLOW }, *permits)
        }
        (Ok(Object::Semaphore { permits }), 2) => (0, *permits),
        _ => (-ETIMEDOUT, 0),
    };
    assert_eq!((said, available), (expected, there), "call {which} of a semaphore");
    Ok(())
}

fn condvar(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let (at, lock) = (model.choose(bytes, 1)?, model.choose(bytes, 0)?);
    let which = bytes.int_in_range(0..=2)?;
    let said = match which {
        0 => ums_condvar_notify_one(at.cast()),
        1 => ums_condvar_notify_all(at.cast()),
        _ => ums_condvar_wait(at.cast(), lock, 0),
    };
    let found = model.find(at, 1).err();
    let expected = match (found, which) {
        (Some(error), _) => error,
        (None, 2) => match model.find(lock, 0) {
            Err(error) => error,
            Ok(Object::Mutex { locked: true }) => -ETIMEDOUT,
            Ok(_) => -EPERM,
        },
        (None, _) => 0,
    };
    assert_eq!(said, expected, "call {which} of a condition variable");
    Ok(())
}

fn rwlock(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 4)?;
    let which = bytes.int_in_range(0..=3)?;
    let said = match which {
        0 => ums_rwlock_read(at.cast(), 0),
        1 => ums_rwlock_write(at.cast(), 0),
        2 => ums_rwlock_unlock(at.cast()),
        _ => ums_rwlock_downgrade(at.cast()),
    };
    let expected = match model.find(at, 4) {
        Err(error) => error,
        Ok(Object::RwLock { readers, writer }) => match (which, *readers, *writer) {
            (0 | 1, _, true) => -EDEADLK,
            (0, before, false) => {
                *readers = before + 1;
                0
            }
            (1, 0, false) => {
                *writer = true;
                0
            }
            (1, ..) => -ETIMEDOUT,
            (2, _, true) => {
                *writer = false;
                0
            }
            (2, before @ 1.., false) => {
                *readers = before - 1;
                0
            }
            (3, _, true) => {
                (*readers, *writer) = (1, false);
                0
            }
            _ => -EPERM,
        },
        Ok(other) => panic!("{other:?} is no lock"),
    };
    assert_eq!(said, expected, "call {which} of a reader-writer lock");
    Ok(())
}

fn barrier(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 5)?;
    let said = ums_barrier_wait(at.cast(), 0);
    let expected = match model.find(at, 5) {
        Err(error) => error,
        Ok(Object::Barrier { callers: 1 }) => 1,
        Ok(_) => -ETIMEDOUT,
    };
    assert_eq!(said, expected, "a wait at a barrier");
    Ok(())
}

fn channel(bytes: &mut Unstructured<'_>, model: &mut Model) -> Result<()> {
    let at = model.choose(bytes, 6)?;
    let which = bytes.int_in_range(0..=3)?;
    let (value, mut place) = (Argument::default(), Argument::default());
    let said = match which {
        0 | 1 => ums_channel_send(at.cast(), value, 0),
        2 => ums_channel_recv(at.cast(), 0, Out::new(&mut place)),
        _ => ums_channel_close(at.cast()),
    };
    let len = ums_channel_len(at.cast());
    let (expected, there) = match model.find(at, 6) {
        Err(error) => (error, 0),
        Ok(Object::Channel { bound, held, closed }) => {
            let expected = match which {
                0 | 1 if *closed => -EPIPE,
                0 | 1 if *held < *bound => {
                    *held += 1;
                    0
                }
                2 if *held > 0 => {
                    *held -= 1;
                    0
                }
                2 if *closed => -EPIPE,
                0..=2 => -ETIMEDOUT,
                _ => {
                    *closed = true;
                    0
                }
            };
            (expected, *held)
        }
        Ok(other) => panic!("{other:?} is no channel"),
    };
    assert_eq!((said, len), (expected, there), "call {which} of a channel");
    Ok(())
}

#[cfg(test)]
#[path = "../../../fuzz/kept.rs"]
mod kept;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn whatever_c_calls_with_whatever_pointer_the_answer_is_the_models(
            bytes in prop::collection::vec(any::<u8>(), 1..1500),
        ) {
            super::calls(&bytes);
        }
    }

    #[test]
    fn calls_that_were_kept_are_answered_as_the_model_says() {
        super::kept::each("calls", super::calls);
    }
}
