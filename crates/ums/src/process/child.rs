//! Child processes. Their end is the readiness of a descriptor (`pidfd_open`), so a worker waits
//! for it as for a socket.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{self, Command, ExitStatus, Output, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpgid, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};

use super::pipe::{PipeReader, PipeWriter};
use crate::current::{checkpoint_for, go_preemptive};
use crate::io::{Watch, submit_poll};
use crate::os::driver::Side;
use crate::os::lock::Lock;
use crate::record::reason::WaitReason;
use crate::scheduler::here;
use crate::sync::Select;
use crate::wait::Arm;

/// Dropped children whose end no worker waits for: those that were dropped elsewhere than on a
/// worker, and those whose scheduler has ended before them. They are reaped when the next child is
/// started or dropped.
static ABANDONED: Lock<Vec<process::Child>> = Lock::new(Vec::new());

fn reap_abandoned() {
    ABANDONED.lock().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// Reaps the child when it has ended, so that the system does not keep a record of it.
fn abandon(mut child: process::Child) {
    reap_abandoned();
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let worker = here();
    match worker.as_ref().and_then(|_| end_of(&child).ok()) {
        None => ABANDONED.lock().push(child),
        Some(ended) => {
            let fd = ended.as_raw_fd();
            let reap = move |_| {
                drop(ended);
                // If its scheduler has ended, it may still run.
                if let Ok(None) = child.try_wait() {
                    ABANDONED.lock().push(child);
                }
            };
            submit_poll(fd, Box::new(reap));
        }
    }
}

/// Returns a descriptor that becomes readable when the child has ended.
fn end_of(child: &process::Child) -> io::Result<OwnedFd> {
    // `child` has not been waited for, so the number is still its own.
    Ok(pidfd_open(pid(child.id())?, PidfdFlags::empty())?)
}

/// A child process.
///
/// Dropping it neither ends the process, unless [`kill_on_drop`](Child::kill_on_drop) was called,
/// nor waits for it. If a worker drops it, its scheduler has an I/O request until the child ends,
/// which then leaves no record in the system (a *zombie*). A child that is dropped elsewhere (on
/// another thread, or in [`go_preemptive`](crate::go_preemptive)), or whose scheduler ends first,
/// leaves one until the program next starts or drops a child.
///
/// ```
/// use std::io::{Read, Write};
/// use std::process::{Command, Stdio};
/// use std::time::Duration;
/// use ums::process::Child;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(|| {
///     let mut sort = Command::new("sort");
///     let mut child = Child::spawn(sort.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
///     child.stdin.take().unwrap().write_all(b"two\none\n")?; // and closed: the end of its input
///     let mut sorted = String::new();
///     child.stdout.take().unwrap().read_to_string(&mut sorted)?;
///     assert_eq!(sorted, "one\ntwo\n");
///     assert!(child.wait()?.success());
///
///     let mut slow = Child::spawn(Command::new("sleep").arg("600"))?.kill_on_drop();
///     let waited = ums::with_timeout(Duration::from_millis(10), || slow.wait());
///     assert_eq!(waited.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Child {
    /// Its standard input, if it is [piped](Stdio::piped).
    pub stdin: Option<PipeWriter>,
    /// Its standard output, if it is piped.
    pub stdout: Option<PipeReader>,
    /// Its standard error, if it is piped.
    pub stderr: Option<PipeReader>,
    /// Becomes readable when the process has ended.
    ended: Watch<OwnedFd>,
    /// `None` while the child is dropped.
    inner: Option<process::Child>,
    kill_on_drop: bool,
}

/// The near ends of what connects this process with a child.
struct Ends {
    ended: Watch<OwnedFd>,
    stdin: Option<PipeWriter>,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
}

impl Ends {
    fn of(child: &mut process::Child) -> io::Result<Ends> {
        Ok(Ends {
            ended: Watch::new(end_of(child)?),
            stdin: child.stdin.take().map(PipeWriter::new).transpose()?,
            stdout: child.stdout.take().map(PipeReader::new).transpose()?,
            stderr: child.stderr.take().map(PipeReader::new).transpose()?,
        })
    }
}

fn pid(id: u32) -> io::Result<Pid> {
    let number = i32::try_from(id).ok().and_then(Pid::from_raw);
    Ok(number.ok_or(io::ErrorKind::InvalidData)?)
}

fn signal(number: i32) -> io::Result<Signal> {
    Signal::from_named_raw(number).ok_or_else(|| {
        let why = match number {
            0 => "it only asks whether the process runs, which `try_wait` answers",
            _ => "it is none of the signals that have names",
        };
        let text = format!("signal {number} cannot be sent: {why}");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// The error of a call that needs the child's number, which the child has lost.
fn was_waited_for(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, text)
}

impl Child {
    /// Starts a process. `command` says what it inherits, as for [`Command::spawn`].
    ///
    /// # Errors
    /// The system's error: `NotFound` if there is no such program; `Unsupported` by a kernel before
    /// 5.3.
    pub fn spawn(command: &mut Command) -> io::Result<Child> {
        reap_abandoned();
        // The thread that starts a process stands still until the new process runs its program.
        let mut inner = go_preemptive(WaitReason::PREEMPTIVE_PROCESS, || command.spawn())?;
        match Ends::of(&mut inner) {
            Ok(Ends { ended, stdin, stdout, stderr }) => {
                let inner = Some(inner);
                Ok(Child { stdin, stdout, stderr, ended, inner, kill_on_drop: false })
            }
            Err(error) => {
                let _ = inner.kill();
                abandon(inner);
                Err(error)
            }
        }
    }

    /// Makes the end of this value kill the process, with its process group if it leads one
    /// (`CommandExt::process_group(0)`): for a child that must not outlive a request that is
    /// cancelled.
    #[must_use]
    pub fn kill_on_drop(mut self) -> Child {
        self.kill_on_drop = true;
        self
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.inner.as_ref().map_or(0, process::Child::id)
    }

    /// Closes the child's input, and waits for its end.
    ///
    /// # Errors
    /// The system's error; an error whose source is a [`WaitError`](crate::WaitError) if the work
    /// request was cancelled or a time limit has passed. The child goes on then.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            self.ended.wait(Side::In, WaitReason::CHILD)?;
        }
    }

    /// Returns how the child has ended, or `None` while it runs.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.inner.as_mut().map_or(Ok(None), process::Child::try_wait)
    }

    /// Returns the arm of a [`Select`] that waits for the child's end; then
    /// [`try_wait`](Child::try_wait) says how it ended. Only a worker can wait for it.
    pub fn ended(&self) -> Arm<'_, io::Result<()>> {
        self.ended.readable()
    }

    /// Closes the child's input, reads all that it writes to its piped outputs, and waits for its
    /// end.
    ///
    /// # Errors
    /// As for [`wait`](Child::wait).
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) = match (self.stdout.take(), self.stderr.take()) {
            (Some(stdout), Some(stderr)) => read_both(&stdout, &stderr)?,
            (stdout, stderr) => (read_all(stdout)?, read_all(stderr)?),
        };
        Ok(Output { status: self.wait()?, stdout, stderr })
    }

    /// Kills the process. It still must be waited for, or dropped. If it has ended, this does
    /// nothing and succeeds, also after it was waited for.
    ///
    /// # Errors
    /// The system's error.
    pub fn kill(&mut self) -> io::Result<()> {
        self.inner.as_mut().map_or(Ok(()), process::Child::kill)
    }

    /// Sends the process a signal, by the system's number: 15 is `SIGTERM`, which asks it to end.
    /// If it has ended, and was not waited for, this does nothing and succeeds.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such signal; `NotFound` if the child was waited for; the
    /// system's error.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        match pidfd_send_signal(self.ended.get_ref(), signal(number)?) {
            Err(Errno::SRCH) => Err(was_waited_for("the child has ended and was waited for")),
            sent => Ok(sent?),
        }
    }

    /// Sends a signal, by the system's number, to the child's process group: to the child, and to
    /// the processes that it has started, if they have not left the group. The child must have been
    /// started as the leader of a group. It may have ended, and the others go on; but it must not
    /// have been waited for, because then its number may be another's: use
    /// [`ended`](Child::ended).
    ///
    /// ```
    /// use std::io::Read;
    /// use std::os::unix::process::CommandExt;
    /// use std::process::{Command, Stdio};
    /// use ums::process::Child;
    ///
    /// let mut shell = Command::new("sh");
    /// shell.args(["-c", "sleep 600 & wait"]).process_group(0).stdout(Stdio::piped());
    /// let mut child = Child::spawn(&mut shell)?;
    /// let mut output = child.stdout.take().unwrap();
    /// child.signal_group(15)?; // SIGTERM
    /// output.read_to_end(&mut Vec::new())?; // neither has the pipe any more
    /// assert!(!child.wait()?.success());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if there is no such signal, or if the child is not the leader of a process
    /// group; `NotFound` if the child was waited for; the system's error, also if no process of the
    /// group is left.
    pub fn signal_group(&self, number: i32) -> io::Result<()> {
        let signal = signal(number)?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::PidFd(self.ended.get_ref().as_fd()), look) {
            Err(Errno::CHILD) => {
                return Err(was_waited_for("the child was waited for: signal its group before"));
            }
            looked => drop(looked?),
        }
        // What waits for the child borrows it mutably, so the number is its own during this call.
        let child = pid(self.id())?;
        if getpgid(Some(child))? != child {
            let text = "the child is not the leader of a process group: start it with \
                        `CommandExt::process_group(0)`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(kill_process_group(child, signal)?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.kill_on_drop {
            let _ = self.signal_group(9).or_else(|_| self.kill());
        }
        self.inner.take().into_iter().for_each(abandon);
    }
}

fn read_all(pipe: Option<PipeReader>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// Reads both pipes to their ends. A child that has filled one pipe must not wait for the reader of
/// the other.
fn read_both(one: &PipeReader, two: &PipeReader) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut of_one, mut of_two) = (Vec::new(), Vec::new());
    if here().is_none() {
        let ((mut one, mut two), bytes) = ((one, two), &mut of_two);
        std::thread::scope(|scope| {
            let other = scope.spawn(move || two.read_to_end(bytes));
            one.read_to_end(&mut of_one).and(other.join().expect("reading does not panic"))
        })?;
        return Ok((of_one, of_two));
    }
    let mut part = vec![0; 16 << 10];
    loop {
        let ready = Select::new()
            .on(one.readable(), |ready| ready.map(|()| true))
            .on(two.readable(), |ready| ready.map(|()| false));
        let is_one = ready.wait().map_err(|error| error.during(WaitReason::CHILD))??;
        let (mut pipe, bytes) = if is_one { (one, &mut of_one) } else { (two, &mut of_two) };
        let n = pipe.read(&mut part)?;
        bytes.extend_from_slice(&part[..n]);
        if n == 0 {
            let (mut other, bytes) = if is_one { (two, &mut of_two) } else { (one, &mut of_one) };
            other.read_to_end(bytes)?;
            return Ok((of_one, of_two));
        }
    }
}

/// Runs a process to its end, and returns all that it writes. Its input is empty. For another input
/// use [`Child::spawn`] and [`Child::wait_with_output`]. If the caller is cancelled, the process is
/// killed, with its process group if it leads one (`CommandExt::process_group(0)`). If the caller
/// was cancelled before, or its time is over, nothing is started.
///
/// # Errors
/// As for [`Child::spawn`] and [`Child::wait`].
pub fn output(command: &mut Command) -> io::Result<Output> {
    checkpoint_for(WaitReason::CHILD)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Child::spawn(command)?.kill_on_drop().wait_with_output()
}

/// Runs a process to its end. If the caller is cancelled, the process is killed, with its process
/// group if it leads one (`CommandExt::process_group(0)`). If the caller was cancelled before, or
/// its time is over, nothing is started.
///
/// # Errors
/// As for [`Child::spawn`] and [`Child::wait`].
///
/// ```
/// use std::process::Command;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let status = node.run(|| ums::process::status(&mut Command::new("false")))?;
/// assert!(!status.success());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn status(command: &mut Command) -> io::Result<ExitStatus> {
    checkpoint_for(WaitReason::CHILD)?;
    Child::spawn(command)?.kill_on_drop().wait()
}
