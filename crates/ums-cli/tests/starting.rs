//! The start of `ums serve` as a user sees it: a server that cannot listen, or is given options
//! that do not go together, says what to do and leaves no file behind.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A home without files, which is removed at the end.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let path = std::env::temp_dir().join(format!("ums-starting-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }

    fn serve(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ums"));
        command.arg("serve").args(args).env("HOME", &self.0).env_remove("XDG_DATA_HOME");
        command.env_remove("UMS_IO").env("XDG_RUNTIME_DIR", "/nonexistent");
        command.env("TMPDIR", &self.0).stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }

    /// Returns what the command says, which must fail, and leave nothing in the home.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let done = self.serve(args).output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success(), "{args:?}: {text}");
        assert_eq!(names(&self.0), Vec::<String>::new(), "{args:?}: {text}");
        text
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_server_that_cannot_listen_leaves_nothing_behind() {
    let home = Home::new("taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let db = home.0.join("my.db").display().to_string();
    let listen = home.refused(&["--listen", &port]);
    assert!(listen.contains("another process listens there"), "{listen}");
    assert!(listen.contains("choose another port: --listen PORT"), "{listen}");
    let named = home.refused(&["--listen", &port, "--db", &db]);
    assert!(named.contains("another process listens there"), "{named}");
    let admin = home.refused(&["--listen", "0", "--no-socket", "--db", &db, "--admin", &port]);
    assert!(admin.contains("--admin PORT"), "{admin}");
    let metrics = home.refused(&["--listen", "0", "--no-socket", "--db", &db, "--metrics", &port]);
    assert!(metrics.contains("--metrics PORT"), "{metrics}");
}

#[test]
fn options_that_cannot_be_served_are_refused_with_what_to_do() {
    let home = Home::new("options");
    let told = [
        (&["--workers", "fiber", "--detect-blocking"][..], "do not go together"),
        (&["--io", "uring"], "Choose --workers fiber or context"),
        (&["--listen", "0.0.0.0:0"], "add --allow-remote"),
        (&["--listen", "localhost"], "write a port, or an address and a port"),
        (&["--admin", "192.0.2.1:5434"], "must be a loopback address"),
        (&["--db", "/nonexistent/my.db"], "there is no folder /nonexistent: create it"),
    ];
    for (args, what) in told {
        let all = [args, &["--no-socket"]].concat();
        let text = home.refused(&all);
        assert!(text.replace('\n', " ").contains(what), "{args:?}: {text}");
    }
}

/// A server that is killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_port_and_a_name_with_a_port_are_addresses() {
    for listen in ["0", "localhost:0"] {
        let home = Home::new("listening");
        let args = ["--listen", listen, "--no-socket", "--no-stats-socket", "--schedulers", "1"];
        let mut server = Running(home.serve(&args).spawn().unwrap());
        let lines = BufReader::new(server.0.stderr.take().unwrap()).lines();
        let said: Vec<String> = lines.map_while(Result::ok).take(3).collect();
        let (kind, greeting) = (&said[1], &said[2]);
        assert!(kind.starts_with("ums: 1 scheduler, thread workers; "), "{said:?}");
        assert!(greeting.starts_with("ums: listening on 127.0.0.1:"), "{said:?}");
        assert!(home.0.join(".local/share/ums/ums.db").exists(), "{said:?}");
    }
}
