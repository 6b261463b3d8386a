//! Errors: a negative errno for the program, and a message for people.
//!
//! Every function of `ums.h` that can fail does its work inside [`guard`]. A panic would be
//! undefined behaviour in a C caller, so `guard` turns it into `-ENOTRECOVERABLE`. `guard` also
//! stores the message of each failure, which [`ums_last_error`] returns.
//!
//! One message is stored for each thread. Fiber workers share a thread, so a worker must read its
//! message before its next wait.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ums::node::EnqueueError;
use ums::sync::channel::{RecvError, SendError, TryRecvError, TrySendError};
use ums::task::JoinError;
use ums::{BuildError, WaitError};

/// The reason why a call failed.
#[derive(Debug)]
pub struct Fault {
    errno: c_int,
    text: Cow<'static, str>,
}

impl Fault {
    /// Returns a fault with this error number, which is positive, and this message.
    pub fn new(errno: c_int, text: impl Into<Cow<'static, str>>) -> Fault {
        Fault { errno, text: text.into() }
    }

    /// Returns the fault for a parameter that must not be NULL.
    pub fn null(what: &'static str) -> Fault {
        Fault::new(libc::EINVAL, format!("{what} is NULL"))
    }

    /// Returns its error number, positive.
    pub fn errno(&self) -> c_int {
        self.errno
    }
}

impl From<WaitError> for Fault {
    fn from(error: WaitError) -> Fault {
        let errno = match error {
            WaitError::TimedOut => libc::ETIMEDOUT,
            WaitError::Cancelled => libc::ECANCELED,
            WaitError::Deadlock(_) => libc::EDEADLK,
        };
        Fault::new(errno, error.to_string())
    }
}

impl From<EnqueueError> for Fault {
    fn from(error: EnqueueError) -> Fault {
        let errno = match error {
            EnqueueError::QueueFull(_) | EnqueueError::WaitedTooLong => libc::EAGAIN,
            EnqueueError::ShuttingDown => libc::ESHUTDOWN,
        };
        Fault::new(errno, error.to_string())
    }
}

impl<H> From<JoinError<H>> for Fault {
    fn from(error: JoinError<H>) -> Fault {
        let errno = match error {
            JoinError::Panicked(_) => libc::ENOTRECOVERABLE,
            JoinError::NeverRan => libc::ENODATA,
            JoinError::Wait(_, error) => return error.into(),
        };
        Fault::new(errno, error.to_string())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        if let Some(wait) = WaitError::of(&error) {
            return wait.into();
        }
        // The library's own errors have no number of the system.
        let by_kind = match error.kind() {
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::NotFound => libc::ENOENT,
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            io::ErrorKind::Unsupported => libc::EPERM,
            _ => libc::EIO,
        };
        Fault::new(error.raw_os_error().unwrap_or(by_kind), error.to_string())
    }
}

impl<T> From<SendError<T>> for Fault {
    fn from(error: SendError<T>) -> Fault {
        match error {
            SendError::Wait(_, error) => error.into(),
            SendError::Disconnected(_) => closed(),
        }
    }
}

impl<T> From<TrySendError<T>> for Fault {
    fn from(error: TrySendError<T>) -> Fault {
        match error {
            TrySendError::Full(_) => WaitError::TimedOut.into(),
            TrySendError::Disconnected(_) => closed(),
        }
    }
}

impl From<RecvError> for Fault {
    fn from(error: RecvError) -> Fault {
        match error {
            RecvError::Wait(error) => error.into(),
            RecvError::Disconnected => closed(),
        }
    }
}

impl From<TryRecvError> for Fault {
    fn from(error: TryRecvError) -> Fault {
        match error {
            TryRecvError::Empty => WaitError::TimedOut.into(),
            TryRecvError::Disconnected => closed(),
        }
    }
}

fn closed() -> Fault {
    Fault::new(libc::EPIPE, "the channel was closed")
}

impl From<BuildError> for Fault {
    fn from(error: BuildError) -> Fault {
        let errno = match &error {
            BuildError::Option(_) => libc::EINVAL,
            BuildError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        };
        Fault::new(errno, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's work. Returns its result, or the negative error number.
pub fn guard(work: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "a panic without a text".to_string());
        Err(Fault::new(libc::ENOTRECOVERABLE, text))
    });
    result.unwrap_or_else(|fault| tell(&fault))
}

/// Stores the fault's message, and returns its error number, negative.
pub fn tell(fault: &Fault) -> c_int {
    remember(&fault.text);
    -fault.errno
}

/// Like [`guard`], for functions that return a value. Returns `otherwise` if the work fails.
pub fn answer<T>(otherwise: T, work: impl FnOnce() -> Result<T, Fault>) -> T {
    let mut given = None;
    guard(|| {
        given = Some(work()?);
        Ok(0)
    });
    given.unwrap_or(otherwise)
}

fn remember(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // While a thread ends, the message cannot be stored, and no code would read it.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Returns the message of the calling thread's last failed call, or an empty text if none has
/// failed. It is valid until the next call that fails on the same thread. Workers that are fibers
/// share a thread.
#[unsafe(no_mangle)]
pub extern "C" fn ums_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library: major << 16 | minor << 8 | patch.
#[unsafe(no_mangle)]
pub extern "C" fn ums_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        LAST.with_borrow(|last| last.to_string_lossy().into_owned())
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_text() {
        assert_eq!(guard(|| panic!("out of {}", "tea")), -libc::ENOTRECOVERABLE);
        assert_eq!(last(), "out of tea");
    }

    #[test]
    fn every_wait_error_has_its_number() {
        for (error, errno) in
            [(WaitError::TimedOut, libc::ETIMEDOUT), (WaitError::Cancelled, libc::ECANCELED)]
        {
            assert_eq!(guard(|| Err(error.into())), -errno);
            assert_eq!(last(), error.to_string());
        }
    }
}
