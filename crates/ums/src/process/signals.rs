//! Signals of this process, as waits.
//!
//! ```text
//!   handler (signal-hook)      flag of the signal := true, then one byte into a socket
//!   try_wait                   reads all bytes, then looks at the flags
//! ```
//!
//! *A set flag is never overlooked*: it has a byte in the socket, which ends a wait, or a caller of
//! `try_wait` has taken that byte and is about to look at the flags. A caller that finds more flags
//! than the one it takes writes a byte for the others.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use signal_hook::consts::{FORBIDDEN, SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use crate::io::Watch;
use crate::os::driver::Side;
use crate::record::reason::WaitReason;
use crate::wait::Arm;

/// Signals that are received instead of ending the process. Each is received by one of the callers
/// that wait for it. Several of the same kind, before one is received, are one. Every value of this
/// type receives its signals; the handlers that were installed before are called, too.
///
/// When it is dropped, these signals have no effect: the system's default does not come back.
///
/// ```standalone_crate
/// use ums::process::Signals;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let stop = Signals::termination()?; // before anything is started that must be stopped
/// # signal_hook::low_level::raise(15)?;
/// let signal = node.run(|| {
///     // ... start the server ...
///     stop.wait()
/// })?;
/// println!("stopping: signal {signal}");
/// # assert_eq!(signal, 15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Signals {
    flags: Vec<(i32, Arc<AtomicBool>)>,
    handlers: Vec<SigId>,
    bytes: Watch<UnixStream>,
    writer: UnixStream,
}

impl Signals {
    /// Receives the signals that ask a process to end: `SIGINT`, which Ctrl-C sends, and `SIGTERM`.
    /// Only the first of them is received. A further one ends the process at once.
    ///
    /// # Errors
    /// The system's error.
    pub fn termination() -> io::Result<Signals> {
        let mut signals = Signals::new([])?;
        let seen = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // In this order: the first signal finds that none has been seen, and then sets that.
            signals.handlers.push(flag::register_conditional_default(number, seen.clone())?);
            signals.handlers.push(flag::register(number, seen.clone())?);
            signals.add(number)?;
        }
        Ok(signals)
    }

    /// Receives the signals with these numbers of the system. A number may be named twice; its
    /// signals are received once all the same.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is no signal's, and for a signal that cannot be received,
    /// or that reports a fault of the program: `SIGKILL`, `SIGSTOP`, `SIGILL`, `SIGFPE`, `SIGSEGV`.
    /// Then no signal is received. The system's error.
    pub fn new(numbers: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        let numbers: Vec<i32> = numbers.into_iter().collect();
        // Before the first is registered, because that cannot be undone.
        numbers.iter().try_for_each(|number| may_be_received(*number))?;
        let (bytes, writer) = UnixStream::pair()?;
        bytes.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let bytes = Watch::new(bytes);
        let mut signals = Signals { flags: Vec::new(), handlers: Vec::new(), bytes, writer };
        numbers.into_iter().try_for_each(|number| signals.add(number))?;
        Ok(signals)
    }

    fn add(&mut self, number: i32) -> io::Result<()> {
        if self.flags.iter().any(|(other, _)| *other == number) {
            return Ok(());
        }
        let flag = Arc::new(AtomicBool::new(false));
        self.handlers.push(flag::register(number, flag.clone())?);
        self.flags.push((number, flag));
        self.handlers.push(low_level::pipe::register(number, self.writer.try_clone()?)?);
        Ok(())
    }

    /// Waits for one of the signals, and returns its number.
    ///
    /// # Errors
    /// An error whose source is a [`WaitError`](crate::WaitError) if the work request was cancelled
    /// or a time limit has passed.
    pub fn wait(&self) -> io::Result<i32> {
        loop {
            if let Some(number) = self.try_wait() {
                return Ok(number);
            }
            self.bytes.wait(Side::In, WaitReason::SIGNAL)?;
        }
    }

    /// Returns the number of a signal that has arrived and was not received yet.
    pub fn try_wait(&self) -> Option<i32> {
        let mut taken = [0; 64];
        while matches!(self.bytes.get_ref().read(&mut taken), Ok(n) if n > 0) {}
        let is_set = |(_, flag): &&(i32, Arc<AtomicBool>)| flag.swap(false, Ordering::AcqRel);
        let (number, _) = self.flags.iter().find(is_set)?;
        if self.flags.iter().any(|(_, flag)| flag.load(Ordering::Acquire)) {
            // If there is no room, there are bytes.
            let _ = (&self.writer).write(&[0]);
        }
        Some(*number)
    }

    /// Returns the arm of a [`Select`](crate::sync::Select) that waits for one of the signals; then
    /// [`try_wait`](Signals::try_wait) returns it, unless another caller has received it. Only a
    /// worker can wait for it.
    pub fn arrived(&self) -> Arm<'_, io::Result<()>> {
        self.bytes.readable()
    }
}

fn may_be_received(number: i32) -> io::Result<()> {
    let exists = Signal::from_named_raw(number).is_some()
        || (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number);
    let why = if !exists {
        "there is no such signal"
    } else if FORBIDDEN.contains(&number) {
        "it cannot be caught, or it reports a fault of the program"
    } else {
        return Ok(());
    };
    let text = format!("signal {number} cannot be received: {why}");
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in &self.handlers {
            low_level::unregister(*handler);
        }
    }
}
