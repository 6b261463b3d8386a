//! The client of the statistics socket: finds the processes that have one, and sends a question to
//! one of them.
//!
//! The server is `ums::Node::serve_stats`. The socket is a file; a question is one line, and so is
//! the answer.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

/// How long to wait for an answer; another client may be served first.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait for an answer that takes time, such as names of functions.
const MUCH_PATIENCE: Duration = Duration::from_secs(60);

/// A process that serves statistics.
pub struct Found {
    /// The path of its statistics socket.
    pub path: PathBuf,
    /// The process number.
    pub pid: u64,
    /// The name of the program.
    pub program: String,
    /// What the program says of itself, such as its port; may be empty.
    pub about: String,
}

/// Returns the socket that a command's argument names: by a process number or by the socket's path.
/// Without an argument, returns the socket of the only process, if there is just one.
pub fn find(target: Option<&str>) -> Result<PathBuf, String> {
    let Some(target) = target else { return the_only_one(all()) };
    if target.bytes().all(|byte| byte.is_ascii_digit()) {
        let named = folders().into_iter().map(|dir| dir.join(format!("{target}.sock")));
        let found = named.into_iter().find(|path| path.exists());
        return found.ok_or_else(|| {
            let what = "it must use ums, call Node::serve_stats (ums serve does), and be yours";
            format!("process {target} has no statistics socket: {what}\n{}", list(&all()))
        });
    }
    let path = PathBuf::from(target);
    if path.exists() {
        return Ok(path);
    }
    Err(format!("{target} is neither a process's number nor a statistics socket\n{}", list(&all())))
}

fn the_only_one(mut found: Vec<Found>) -> Result<PathBuf, String> {
    match found.len() {
        0 => Err(list(&found)),
        1 => Ok(found.remove(0).path),
        n => {
            let first = found[0].pid;
            let how = format!("there are {n} processes: add the number of one, such as {first}");
            Err(format!("{how}\n{}", list(&found)))
        }
    }
}

fn list(found: &[Found]) -> String {
    if found.is_empty() {
        let folder = ums::stats::StatsSocket::folder();
        return format!(
            "no process of yours serves statistics (no socket in {}): start ums serve, or call \
             Node::serve_stats in your program",
            folder.display()
        );
    }
    let what = |one: &Found| match one.about.is_empty() {
        true => one.path.display().to_string(),
        false => one.about.clone(),
    };
    let line = |one: &Found| format!("{:>9}  {:12}  {}", one.pid, one.program, what(one));
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns what an answer says of its process: program, number, and what it says of itself.
pub fn title(answer: &Map<String, Value>) -> String {
    let text = |key: &str| printable(answer.get(key).and_then(Value::as_str).unwrap_or(""));
    let (program, about) = (text("program"), text("about"));
    let pid = answer.get("pid").and_then(Value::as_u64).unwrap_or(0);
    if about.is_empty() { format!("{program} {pid}") } else { format!("{program} {pid}: {about}") }
}

/// Returns every process that serves statistics, by process number. Socket files of processes that
/// have ended are left out.
pub fn all() -> Vec<Found> {
    let files = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = folders().into_iter().flat_map(files).map(|entry| entry.path());
    let sockets = paths.filter(|path| path.extension().is_some_and(|end| end == "sock"));
    let mut found: Vec<_> = sockets.filter_map(introduce).collect();
    found.sort_by_key(|one| one.pid);
    found
}

fn introduce(path: PathBuf) -> Option<Found> {
    // This view is the cheapest.
    let answer = ask(&path, "ums_monitor").ok()?;
    let pid = answer["pid"].as_u64()?;
    let text = |key: &str| printable(answer.get(key).and_then(Value::as_str).unwrap_or(""));
    Some(Found { path, pid, program: text("program"), about: text("about") })
}

/// Returns the folders to search for sockets: the one in which this user's processes create them,
/// and for root those of all users.
fn folders() -> Vec<PathBuf> {
    let mut folders = vec![ums::stats::StatsSocket::folder()];
    let user = rustix::process::geteuid();
    let temporary = std::env::temp_dir();
    // The other process may have another environment (XDG_RUNTIME_DIR), so both possible folders
    // are searched.
    folders.push(temporary.join(format!("ums-{}", user.as_raw())));
    folders.push(format!("/run/user/{}/ums", user.as_raw()).into());
    if user.is_root() {
        let inside = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
        folders.extend(inside(Path::new("/run/user")).map(|entry| entry.path().join("ums")));
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ums-"))
        };
        folders.extend(inside(&temporary).map(|entry| entry.path()).filter(ours));
    }
    // A folder that other users may write to could contain false sockets.
    let private = |dir: &PathBuf| {
        std::fs::symlink_metadata(dir).is_ok_and(|seen| seen.is_dir() && seen.mode() & 0o022 == 0)
    };
    folders.sort();
    folders.dedup();
    folders.retain(private);
    folders
}

/// Sends one question, and returns the answer.
pub fn ask(path: &Path, question: &str) -> Result<Map<String, Value>, String> {
    ask_for(path, question, PATIENCE)
}

/// Like [`ask`], for an answer that takes the process some time.
pub fn ask_patiently(path: &Path, question: &str) -> Result<Map<String, Value>, String> {
    ask_for(path, question, MUCH_PATIENCE)
}

fn ask_for(path: &Path, question: &str, patience: Duration) -> Result<Map<String, Value>, String> {
    let line = exchange(path, question, patience).map_err(|error| sentence(path, &error))?;
    object(path, &line)
}

/// Like [`ask`], for an answer of any bytes, which takes the process this long.
pub fn ask_for_bytes(path: &Path, question: &str, takes: Duration) -> Result<Vec<u8>, String> {
    let patience = PATIENCE.saturating_add(takes);
    let bytes = exchange(path, question, patience).map_err(|error| sentence(path, &error))?;
    match bytes.starts_with(b"{\"error\"") {
        true => object(path, &bytes).and(Err("it refused without a reason".into())),
        false if bytes.is_empty() => object(path, &bytes).map(|_| bytes),
        false => Ok(bytes),
    }
}

fn sentence(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => format!("{}: its process has ended", path.display()),
        ErrorKind::NotFound => format!("{}: there is no such socket", path.display()),
        ErrorKind::WouldBlock => format!("{}: no answer", path.display()),
        _ => format!("{}: {error}", path.display()),
    }
}

/// Parses an answer of one line.
fn object(path: &Path, line: &[u8]) -> Result<Map<String, Value>, String> {
    if line.is_empty() {
        return Err(format!("{}: it answers only the user that runs it", path.display()));
    }
    let answer: Value = serde_json::from_slice(line)
        .map_err(|error| format!("{}: not an answer: {error}", path.display()))?;
    match answer {
        Value::Object(answer) => match answer.get("error").and_then(Value::as_str) {
            Some(sentence) => Err(printable(sentence)),
            None => Ok(answer),
        },
        _ => Err(format!("{}: not an answer", path.display())),
    }
}

fn exchange(path: &Path, question: &str, patience: Duration) -> std::io::Result<Vec<u8>> {
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(patience))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    // The question is sent by one write. A server that refuses the client closes immediately, and
    // then the write fails; the reason is found below, when the answer is read.
    let _ = socket.write_all(format!("{question}\n").as_bytes());
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Vec::new()),
        read => read.map(|_| answer),
    }
}

/// Returns a text of another process without control characters, so that a terminal can show it
/// safely.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: u64) -> Found {
        let about = if pid == 8 { "port 127.0.0.1:5433, database /srv/a.db" } else { "" };
        let (path, program) = (format!("/x/{pid}.sock").into(), "ums".into());
        Found { path, pid, program, about: about.into() }
    }

    #[test]
    fn without_a_name_the_only_process_is_meant_b47() {
        assert_eq!(the_only_one(vec![one(7)]), Ok(PathBuf::from("/x/7.sock")));
        let none = the_only_one(Vec::new()).unwrap_err();
        assert!(none.starts_with("no process of yours serves statistics"), "{none}");
        let two = the_only_one(vec![one(7), one(8)]).unwrap_err();
        assert!(
            two.starts_with("there are 2 processes: add the number of one, such as 7\n"),
            "{two}"
        );
        let lines: Vec<_> = two.lines().skip(1).map(str::split_whitespace).collect();
        let words = |n: usize| lines[n].clone().collect::<Vec<_>>().join(" ");
        assert_eq!(words(0), "7 ums /x/7.sock");
        assert_eq!(words(1), "8 ums port 127.0.0.1:5433, database /srv/a.db");
        let wrong = find(Some("/nonexistent/socket")).unwrap_err();
        assert!(wrong.contains("neither a process's number nor a statistics socket"), "{wrong}");
    }

    #[test]
    fn a_real_node_is_asked_and_what_goes_wrong_is_a_sentence_b47() {
        let dir = std::env::temp_dir().join(format!("ums-asking-{}", std::process::id()));
        let at = ums::stats::StatsSocket::At(dir.clone());
        let node = ums::Node::builder().schedulers(2).build().unwrap();
        node.serve_stats(at).unwrap();
        let answer = ask(&dir, "ums_schedulers").unwrap();
        assert_eq!(answer["pid"], u64::from(std::process::id()));
        assert_eq!(answer["tables"]["ums_schedulers"][1]["scheduler_id"], 1);
        assert_eq!(ask(&dir, "ums_x").unwrap_err(), "there is no view \"ums_x\"");
        drop(node);
        let gone = ask(&dir, "*").unwrap_err();
        assert!(gone.ends_with("there is no such socket"), "{gone}");
    }
}
