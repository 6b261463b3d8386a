//! The statistics socket, where another process of the same operating-system user asks a node for
//! its statistics.
//!
//! ```text
//!   ums stats, ums top --connect--> <folder>/<pid>.sock    which user? (SO_PEERCRED)
//!                      --a line---> "ums_workers\n"
//!                      <--a line--- {"pid":1,...}          and the connection is closed
//! ```
//!
//! One plain thread waits in `accept`. It answers even if every scheduler is stuck, and costs
//! nothing while there are no clients. It serves one client at a time, each for a few seconds at
//! most. An answer that takes longer is prepared and sent by another thread.
//!
//! The socket's file is removed when serving ends. A process that is killed leaves its file behind.
//! If such a file refuses connections, no process listens on it, and it is replaced.
//!
//! This file does not interpret the questions: the caller that starts the socket provides the
//! answers.

use std::fs::{DirBuilder, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;

use crate::os::linux::call;
use crate::os::threads;

/// How long one client may take to send its question, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest question, in bytes.
const QUESTION_MAX: u64 = 1024;
/// How many nodes of one process can have a socket under the process's number.
const NAMES_MAX: usize = 64;

/// Where a node's statistics socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsSocket {
    /// `PID.sock` in [`folder`](StatsSocket::folder), or `PID-2.sock` for a process's second node;
    /// `ums stats` and `ums top` look there.
    ByPid,
    /// The socket has this path.
    At(PathBuf),
}

impl StatsSocket {
    /// Returns the folder of sockets that are found by process number: `ums` in the user's runtime
    /// directory (`XDG_RUNTIME_DIR`), or `ums-UID` in the temporary directory.
    pub fn folder() -> PathBuf {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let own = |dir: &PathBuf| std::fs::metadata(dir).is_ok_and(|seen| is_ours(&seen));
        match runtime.filter(|dir| dir.is_absolute() && own(dir)) {
            Some(dir) => dir.join("ums"),
            None => std::env::temp_dir().join(format!("ums-{}", own_user())),
        }
    }

    /// Returns [`folder`](StatsSocket::folder), which is created if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created, or if other users have access to it: they could put a socket of
    /// theirs under this process's number.
    pub fn own_folder() -> io::Result<PathBuf> {
        let dir = StatsSocket::folder();
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&dir, &error)),
            _ => {}
        }
        let seen = std::fs::symlink_metadata(&dir)?;
        if !is_ours(&seen) || seen.mode() & 0o077 != 0 {
            let text = format!("{} is not a folder that only this user can access", dir.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        Ok(dir)
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_ours(seen: &Metadata) -> bool {
    seen.is_dir() && seen.uid() == own_user()
}

/// A socket that is served until this is dropped.
pub(crate) struct Serving {
    path: PathBuf,
    /// Device and inode number of the socket's file. A file with other numbers at that path is not
    /// removed.
    file: Option<(u64, u64)>,
    listener: Arc<UnixListener>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The answer to a question.
pub(crate) enum Answer {
    /// A line.
    Line(String),
    /// Bytes that are sent when they are ready. The closure arranges that; it receives the client,
    /// and a flag that is set when the server ends. It returns an error line if it cannot send the
    /// bytes.
    Later(Box<dyn FnOnce(Later, Arc<AtomicBool>) -> Result<(), String>>),
}

/// A client that waits for the bytes of [`Answer::Later`].
pub(crate) struct Later(UnixStream);

impl Later {
    /// Sends the bytes.
    pub fn send(self, bytes: &[u8]) {
        // An error means that the client has gone, and is ignored.
        let _ = (&self.0).write_all(bytes);
    }
}

/// Listens, and starts a thread that answers the line of each client.
pub(crate) fn serve(
    at: &StatsSocket,
    answer: impl Fn(&str) -> Answer + Send + 'static,
) -> io::Result<Serving> {
    let (listener, path) = match at {
        StatsSocket::At(path) => (take(path)?, path.clone()),
        StatsSocket::ByPid => by_pid(&StatsSocket::own_folder()?)?,
    };
    // Only the owner of the file may connect.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
    let file = std::fs::symlink_metadata(&path).ok().map(|seen| (seen.dev(), seen.ino()));
    let (listener, ending) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
    let (inbox, end) = (listener.clone(), ending.clone());
    let builder = std::thread::Builder::new().name("ums-stats".into());
    let thread = threads::start(builder, move || stand(&inbox, &end, answer))?;
    Ok(Serving { path, file, listener, ending, thread: Some(thread) })
}

fn stand(inbox: &UnixListener, end: &Arc<AtomicBool>, answer: impl Fn(&str) -> Answer) {
    loop {
        let client = inbox.accept();
        if end.load(Ordering::Acquire) {
            return;
        }
        match client {
            // Errors are ignored: the client has gone away or has sent nonsense.
            Ok((client, _)) => drop(talk(&client, end, &answer)),
            // Usually no descriptor is free. The pause prevents a busy loop.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn talk(
    mut client: &UnixStream,
    end: &Arc<AtomicBool>,
    answer: impl Fn(&str) -> Answer,
) -> io::Result<()> {
    let peer = call::peer_user(client.as_fd())?;
    if peer != 0 && peer != own_user() {
        return Ok(());
    }
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    BufReader::new(client.take(QUESTION_MAX)).read_line(&mut question)?;
    let mut line = match answer(question.trim()) {
        Answer::Line(line) => line,
        Answer::Later(make) => match make(Later(client.try_clone()?), end.clone()) {
            Ok(()) => return Ok(()),
            Err(line) => line,
        },
    };
    line.push('\n');
    client.write_all(line.as_bytes())
}

impl Drop for Serving {
    fn drop(&mut self) {
        let seen = std::fs::symlink_metadata(&self.path);
        if seen.is_ok_and(|seen| self.file == Some((seen.dev(), seen.ino()))) {
            let _ = std::fs::remove_file(&self.path);
        }
        self.ending.store(true, Ordering::Release);
        // This ends the wait in `accept`.
        let ended = SockRef::from(&*self.listener).shutdown(Shutdown::Both).is_ok();
        let is_self = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| ended && !is_self(thread)) {
            let _ = thread.join();
        }
    }
}

fn by_pid(dir: &Path) -> io::Result<(UnixListener, PathBuf)> {
    let pid = std::process::id();
    for n in 1..NAMES_MAX {
        let path = match n {
            1 => dir.join(format!("{pid}.sock")),
            n => dir.join(format!("{pid}-{n}.sock")),
        };
        match take(&path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            taken => return Ok((taken?, path)),
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Listens on this path. A socket that a killed process has left behind is replaced. A socket on
/// which a process listens, and a file that is not a socket, are not replaced.
fn take(path: &Path) -> io::Result<UnixListener> {
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_behind(path) => {
            std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
        }
        bound => bound,
    };
    bound.map_err(|error| at(path, &error))
}

fn is_left_behind(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    // Connecting to a file that is not a socket is refused as well, so the file's type is checked.
    let socket = std::fs::symlink_metadata(path).is_ok_and(|seen| seen.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    socket && UnixStream::connect(path).is_err_and(refused)
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &Path, question: &str) -> io::Result<String> {
        let mut client = UnixStream::connect(path)?;
        client.set_read_timeout(Some(Duration::from_secs(30)))?;
        writeln!(client, "{question}")?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn echo(at: &Path, tag: &'static str) -> io::Result<Serving> {
        serve(&StatsSocket::At(at.to_owned()), move |question| {
            Answer::Line(format!("{tag} {question}"))
        })
    }

    #[test]
    fn the_name_is_for_one_user_and_goes_with_its_server_b47() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let serving = echo(&path, "a").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(ask(&path, "x y").unwrap(), "a x y\n");
        assert_eq!(ask(&path, "").unwrap(), "a \n", "and again, after that");
        drop(serving);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_left_behind_is_taken_over_and_one_in_use_or_no_socket_is_not_b47() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "what a killed process leaves");
        let first = echo(&path, "first").unwrap();
        let refused = echo(&path, "second").err().expect("it is in use");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert_eq!(ask(&path, "").unwrap(), "first \n");
        // Another process has put its file at the path; that file stays.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        assert!(echo(&path, "third").is_err());
        drop(first);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn two_nodes_of_a_process_have_two_names_b47() {
        let dir = tempfile::tempdir().unwrap();
        let (_first, one) = by_pid(dir.path()).unwrap();
        let (_second, two) = by_pid(dir.path()).unwrap();
        assert_ne!(one, two);
        let pid = std::process::id();
        assert_eq!(one.file_name().unwrap().to_str().unwrap(), format!("{pid}.sock"));
    }

    #[test]
    fn a_client_that_says_nothing_keeps_others_waiting_for_a_while_only_b47() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _serving = echo(&path, "a").unwrap();
        let _silent = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&path, "b").unwrap(), "a b\n");
    }
}
