//! Wait reasons: why a worker waits. Every wait has a reason, which is unique and printable.
//!
//! A reason is a small number with a name; statistics are tables indexed by the number. The
//! built-in reasons are constants. An application adds its own with [`WaitReason::register`], for
//! instance one for each kind of external call that goes preemptive. Names are upper case with
//! underscores, as in the wait statistics of the original.

use crate::os::lock::Lock;

/// How many reasons a process can have, built-in and registered ones together.
pub const REASONS_MAX: usize = 128;

/// The kind of thing that a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitClass {
    /// Something that another worker or a device holds.
    Resource,
    /// Work: the wait of an idle worker.
    Queue,
    /// Code outside the scheduler's control. The worker may be running during such a wait.
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
    /// The wait of a worker that has yielded, until it runs again.
    SCHEDULER_YIELD Resource;
    /// The wait of a request for a worker.
    THREADPOOL Queue;
    /// A call of `sleep`.
    SLEEP Queue;
    /// A wait for a mutex.
    MUTEX Resource;
    /// The wait of a reader for a reader-writer lock.
    RWLOCK_SHARED Resource;
    /// The wait of a writer for a reader-writer lock.
    RWLOCK_EXCLUSIVE Resource;
    /// A wait for a condition variable.
    CONDVAR Resource;
    /// A wait for a semaphore.
    SEMAPHORE Resource;
    /// A wait for an event.
    EVENT Resource;
    /// A wait for a barrier.
    BARRIER Resource;
    /// A wait for initialisation by another worker.
    ONCE Resource;
    /// A wait for room in a channel.
    CHANNEL_SEND Resource;
    /// A wait for a message from a channel.
    CHANNEL_RECEIVE Resource;
    /// A wait for the first of several things.
    SELECT Resource;
    /// A wait for the end of a spawned task.
    JOIN Resource;
    /// A wait for a future.
    FUTURE Resource;
    /// A wait for input from a socket.
    NETWORK_READ Resource;
    /// A wait for room in a socket's send buffer.
    NETWORK_WRITE Resource;
    /// A wait for a new connection.
    NETWORK_ACCEPT Resource;
    /// A wait for a connection that is being made.
    NETWORK_CONNECT Resource;
    /// A wait for the end of a child process, or for a pipe to it.
    CHILD Resource;
    /// A wait for a signal.
    SIGNAL Resource;
    /// A read or write of a file, and any I/O request without a reason of its own.
    IO_COMPLETION Resource;
    /// An operation on a file that a file helper thread does: opening, growing, directories.
    ASYNC_IO_COMPLETION Resource;
    /// A wait until written data is on the disk: `fsync`, `fdatasync`.
    WRITELOG Resource;
    /// A wait for the lock of a file, which another open file or process holds.
    FILE_LOCK Resource;
    /// A wait for a lock on a database, which a user holds.
    LCK_M_X Resource;
    /// A wait to become preemptive, because the number of preemptive workers is limited.
    PREEMPTIVE_CAP Queue;
    /// External code, without a reason of its own.
    PREEMPTIVE_EXTERNAL External;
    /// External code that resolves a name.
    PREEMPTIVE_RESOLVE External;
    /// External code that waits for another process.
    PREEMPTIVE_PROCESS External;
    /// A wait for which the application gave no reason.
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
    /// Returns the reason with this name. The first call with a name creates the reason.
    ///
    /// # Panics
    /// If the process would have more than [`REASONS_MAX`] reasons. So register kinds of waits, not
    /// single waits.
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

    /// Returns the reason's name, as statistics show it.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// Returns the reason's name if it is built in. Takes no lock, because a signal handler calls
    /// this.
    pub(crate) fn name_if_built_in(self) -> &'static str {
        BUILT_IN.get(self.index()).map_or("(registered)", |(name, _)| name)
    }

    /// Returns the reason's class.
    pub fn class(self) -> WaitClass {
        self.entry().1
    }

    /// Returns every reason that exists now, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = WaitReason> {
        let registered = REGISTERED.lock().len();
        (0..(BUILT_IN.len() + registered) as u16).map(WaitReason)
    }

    /// Returns the reason's index in a table of [`REASONS_MAX`] rows.
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
