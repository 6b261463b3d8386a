//! Where `ums serve` listens: addresses as options, and the sockets, with what to do if the system
//! refuses one.
//!
//! ```text
//!   5440                127.0.0.1:5440
//!   localhost:5440      127.0.0.1:5440
//!   [::1]:5440          as it is
//! ```
//!
//! Invariant: no file is made here but the Unix-domain socket, whose name goes with its value.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use ums::stats::StatsSocket;

use crate::access::Fallible;
use crate::asking;

/// Parses an address: a port alone, or a name or number of a computer and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let has_port = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok()
    });
    if !has_port {
        let how = "a port, or an address and a port: 5440, 127.0.0.1:5440, localhost:5440, ";
        return Err(format!("write {how}[::1]:5440"));
    }
    let found =
        text.to_socket_addrs().map_err(|error| format!("there is no such host: {error}"))?;
    let all: Vec<_> = found.collect();
    let first = all.iter().find(|address| address.is_ipv4()).or(all.first());
    first.copied().ok_or_else(|| "this host has no address".to_owned())
}

/// Listens on a port. `option` is the one that names it.
pub fn listen_on(address: SocketAddr, option: &str) -> Fallible<TcpListener> {
    TcpListener::bind(address).map_err(|error| refused(address, option, &error).into())
}

/// Returns why the system refused to listen, and what to do.
pub fn refused(address: SocketAddr, option: &str, error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::AddrInUse => {
            let text = format!("port {address},");
            let ours = asking::all().into_iter().find(|one| one.about.contains(&text));
            let who = ours.map_or("another process listens there".to_owned(), |one| {
                format!("process {} ({}) listens there", one.pid, one.program)
            });
            format!("{who}. End it, or choose another port: {option} PORT")
        }
        io::ErrorKind::AddrNotAvailable => {
            "this computer does not have that address. `ip address` lists those that it has"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 are for root. Choose a higher one: {option} PORT")
        }
        _ => error.to_string(),
    };
    format!("cannot listen on {address}: {what}")
}

/// The path of a Unix-domain socket. Dropping this value removes the socket's file.
pub struct SocketName(PathBuf);

impl SocketName {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Listens in `dir`, at the path that PostgreSQL's clients derive from the port. A socket file
    /// that an earlier server left behind is replaced, but not one that another server listens on.
    fn listen(dir: &Path, port: u16) -> Fallible<(UnixListener, SocketName)> {
        let path = dir.join(format!(".s.PGSQL.{port}"));
        let left_behind = |error: &io::Error| {
            error.kind() == io::ErrorKind::AddrInUse
                && UnixStream::connect(&path)
                    .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
        };
        let bound = match UnixListener::bind(&path) {
            Err(error) if left_behind(&error) => {
                std::fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
            }
            bound => bound,
        };
        match bound {
            Ok(listener) => Ok((listener, SocketName(path))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(format!(
                "cannot listen on {}: another server does. End it, or choose another folder with \
                 --socket-dir, or --no-socket",
                path.display()
            )
            .into()),
            Err(error) => Err(format!("cannot listen on {}: {error}", path.display()).into()),
        }
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on the Unix-domain socket in this folder. If that fails in the default folder, prints a
/// message and continues.
pub fn socket(folder: Option<&Path>, port: u16) -> Fallible<Option<(UnixListener, SocketName)>> {
    if let Some(folder) = folder {
        return SocketName::listen(folder, port).map(Some);
    }
    let own = StatsSocket::own_folder().map_err(Into::into);
    match own.and_then(|folder| SocketName::listen(&folder, port)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => {
            eprintln!("ums: no Unix-domain socket: {error}");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_host_with_a_port() {
        let of = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(of("5440").as_deref(), Ok("127.0.0.1:5440"));
        assert_eq!(of("localhost:5440").as_deref(), Ok("127.0.0.1:5440"));
        assert_eq!(of("0.0.0.0:5440").as_deref(), Ok("0.0.0.0:5440"));
        assert_eq!(of("[::1]:5440").as_deref(), Ok("[::1]:5440"));
        for wrong in ["localhost", "::1", "70000", "127.0.0.1", "", ":5440", "127.0.0.1:x"] {
            let error = of(wrong).unwrap_err();
            assert!(error.starts_with("write a port, or"), "{wrong}: {error}");
        }
        assert!(of("no-such-host.invalid:5440").unwrap_err().contains("no such host"));
    }

    #[test]
    fn a_port_in_use_says_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let first = listen_on(taken, "--listen").unwrap();
        let error = listen_on(taken, "--listen").unwrap_err().to_string();
        let text = format!("cannot listen on {taken}: another process listens there. End it, or");
        assert!(error.starts_with(&text) && error.ends_with(": --listen PORT"), "{error}");
        drop(first);
        let elsewhere = listen_on("192.0.2.1:0".parse().unwrap(), "--admin").unwrap_err();
        assert!(elsewhere.to_string().contains("`ip address`"), "{elsewhere}");
    }
}
