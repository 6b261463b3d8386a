//! Why a worker waits: every wait has a reason, unique and printable.
//!
//! A reason is a small number with a name; statistics are tables indexed by it. The built-in ones
//! are constants; an application adds its own with [`WaitReason::register`], for instance one for
//! each kind of external call that goes preemptive. Names are upper case with underscores, as in
//! the wait statistics of the original.

use crate::os::lock::Lock;

/// How many reasons a process can have, built in and registered.
pub const REASONS_MAX: usize = 128;

/// What kind of thing is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitClass {
    /// Something that another worker or the device holds.
    Resource,
    /// Work, in an idle worker's wait.
    Queue,
    /// Code outside the scheduler's control; the worker may well be running.
    External,
}

/// A reason to wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WaitReason(u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $class:ident;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),* }
        impl WaitReason {
            $($(#[$doc])* pub const $name: WaitReason = WaitReason(Number::$name as u16);)*
        }
        const BUILT_IN: &[(&str, WaitClass)] =
            &[$((stringify!($name), WaitClass::$class)),*];
    };
}

reasons! {
    /// Running again after a yield.
    SCHEDULER_YIELD Resource;
    /// A request waiting for a worker.
    THREADPOOL Queue;
    /// `sleep`.
    SLEEP Queue;
    /// A mutex.
    MUTEX Resource;
    /// A reader of a reader-writer lock.
    RWLOCK_SHARED Resource;
    /// A writer of a reader-writer lock.
    RWLOCK_EXCLUSIVE Resource;
    /// A condition variable.
    CONDVAR Resource;
    /// A semaphore.
    SEMAPHORE Resource;
    /// An event.
    EVENT Resource;
    /// A barrier.
    BARRIER Resource;
    /// Initialisation by another worker.
    ONCE Resource;
    /// Room in a channel.
    CHANNEL_SEND Resource;
    /// A message from a channel.
    CHANNEL_RECEIVE Resource;
    /// The end of a spawned task.
    JOIN Resource;
    /// Input from a socket.
    NETWORK_READ Resource;
    /// Room in a socket.
    NETWORK_WRITE Resource;
    /// A new connection.
    NETWORK_ACCEPT Resource;
    /// A connection being made.
    NETWORK_CONNECT Resource;
    /// A read or write of a file, and any I/O request that has no reason of its own.
    IO_COMPLETION Resource;
    /// An operation on a file that the file helpers do: opening, growing, directories.
    ASYNC_IO_COMPLETION Resource;
    /// The arrival of written data on the disk: `fsync`, `fdatasync`.
    WRITELOG Resource;
    /// A lock on a database, held by a user.
    LCK_M_X Resource;
    /// A place among the workers that may be preemptive at once.
    PREEMPTIVE_CAP Queue;
    /// External code without a reason of its own.
    PREEMPTIVE_EXTERNAL External;
    /// Name resolution.
    PREEMPTIVE_RESOLVE External;
    /// Another process.
    PREEMPTIVE_PROCESS External;
    /// A wait that the application gave no reason.
    OTHER Resource;
}

/// The longest name of a built-in reason, in bytes, rounded up.
const NAME_MAX: usize = 32;

/// The names of the built-in reasons by their numbers, padded with zeroes, for debuggers.
pub(crate) static BUILT_IN_NAMES: [[u8; NAME_MAX]; BUILT_IN.len()] = {
    let mut names = [[0; NAME_MAX]; BUILT_IN.len()];
    let mut at = 0;
    while at < names.len() {
        let (name, _) = BUILT_IN[at];
        let (to, _) = names[at].split_at_mut(name.len());
        to.copy_from_slice(name.as_bytes());
        at += 1;
    }
    names
};

static REGISTERED: Lock<Vec<(&'static str, WaitClass)>> = Lock::new(Vec::new());

impl WaitReason {
    /// Returns the reason of this name, which is made on first use.
    ///
    /// # Panics
    /// If the process would have more than [`REASONS_MAX`] reasons: name kinds of waits, not single
    /// waits.
    ///
    /// ```
    /// use ums::WaitReason;
    /// use ums::stats::WaitClass;
    /// let reason = WaitReason::register("PREEMPTIVE_OLE", WaitClass::External);
    /// assert_eq!(reason.name(), "PREEMPTIVE_OLE");
    /// assert_eq!(reason, WaitReason::register("PREEMPTIVE_OLE", WaitClass::External));
    /// ```
    pub fn register(name: &'static str, class: WaitClass) -> WaitReason {
        if let Some(at) = BUILT_IN.iter().position(|(n, _)| *n == name) {
            return WaitReason(at as u16);
        }
        let mut list = REGISTERED.lock();
        let at = list.iter().position(|(n, _)| *n == name).unwrap_or_else(|| {
            assert!(
                BUILT_IN.len() + list.len() < REASONS_MAX,
                "more than {REASONS_MAX} wait reasons: register kinds of waits, not single waits"
            );
            list.push((name, class));
            list.len() - 1
        });
        WaitReason((BUILT_IN.len() + at) as u16)
    }

    /// Returns its name, as statistics show it.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Returns its name if it is built in, without the lock that a signal handler must not take.
    pub(crate) fn name_if_built_in(self) -> &'static str {
        BUILT_IN.get(self.index()).map_or("(registered)", |(name, _)| name)
    }

    /// Returns its class.
    pub fn class(self) -> WaitClass {
        self.entry().1
    }

    /// Returns every reason that exists now, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = WaitReason> {
        let registered = REGISTERED.lock().len();
        (0..(BUILT_IN.len() + registered) as u16).map(WaitReason)
    }

    /// Returns its index in a table of [`REASONS_MAX`] rows.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> WaitReason {
        WaitReason(index as u16)
    }

    fn entry(self) -> (&'static str, WaitClass) {
        let at = self.index();
        BUILT_IN.get(at).copied().unwrap_or_else(|| REGISTERED.lock()[at - BUILT_IN.len()])
    }
}

impl std::fmt::Debug for WaitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_b20() {
        let mut names: Vec<_> = WaitReason::all().map(WaitReason::name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        assert_eq!(WaitReason::MUTEX.name(), "MUTEX");
        assert_eq!(WaitReason::PREEMPTIVE_EXTERNAL.class(), WaitClass::External);
    }
}
