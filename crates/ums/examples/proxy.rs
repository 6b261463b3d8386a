//! A TCP proxy: connects each client to a target, and copies bytes in both directions.
//!
//! `cargo run -p ums --example proxy LISTEN TARGET [idle seconds] [connections]`
//!
//! A connection ends when both sides have ended, or when no byte has moved in either direction for
//! the idle time. Clients beyond the limit wait in the listener's queue. SIGTERM and Ctrl-C stop
//! accepting and give open connections ten seconds; a second signal ends the process at once.
//!
//! As a service of systemd: if LISTEN is `systemd`, the proxy takes the socket of its `.socket`
//! unit, so that clients wait instead of being refused while it is not running. With `Type=notify`
//! it tells systemd when it is ready, and when it stops.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use ums::net::{TcpListener, TcpStream, ToSocketAddrs};
use ums::process::Signals;
use ums::sync::Semaphore;

const CONNECT: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(10);
static SEATS: Semaphore = Semaphore::new(0); // one for each connection; `main` adds them

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(target)) = (args.next(), args.next()) else {
        return Err("usage: proxy LISTEN TARGET [idle seconds] [connections]".into());
    };
    let target = target.to_socket_addrs()?.next().ok_or("the target has no address")?;
    let idle = Duration::try_from_secs_f64(args.next().map_or(Ok(60.0), |text| text.parse())?)?;
    let seats = args.next().map_or(Ok(1000), |text| text.parse::<u32>())?;
    SEATS.add_permits(seats as usize);

    let signals = Signals::termination()?;
    let node = ums::Node::builder().build()?;
    let listener = listener(&listen)?;
    println!("listening on {}", listener.local_addr()?);
    node.spawn(move || accept(&listener, target, idle))?;
    sd_notify::notify(&[NotifyState::Ready])?; // without systemd it does nothing

    signals.wait()?; // a further one ends the process
    sd_notify::notify(&[NotifyState::Stopping])?;
    let report = node.drain(GRACE); // accepts no more connections, and lets the open ones end
    println!("ended; {} tasks were cancelled", report.cancelled);
    Ok(())
}

/// Listens on this address, or on the socket that systemd has passed.
fn listener(listen: &str) -> io::Result<TcpListener> {
    if listen != "systemd" {
        return TcpListener::bind(listen);
    }
    let passed = listenfd::ListenFd::from_env().take_tcp_listener(0)?;
    let none = || io::Error::other("systemd has passed no socket: is there a .socket unit?");
    passed.map(TcpListener::from).ok_or_else(none)
}

/// Accepts connections until the task is cancelled. Before each accept it takes a seat, so that at
/// most as many connections are open as there are seats.
fn accept(listener: &TcpListener, target: SocketAddr, idle: Duration) {
    while let Ok(seat) = SEATS.acquire() {
        let (client, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(_) if ums::is_cancelled() => return,
            Err(_) => continue, // out of descriptors: `accept` says so, and pauses next time
        };
        let task = move || {
            if let Err(error) = connection(client, target, idle) {
                eprintln!("{peer}: {error}");
            }
            drop(seat);
        };
        if let Err(error) = ums::task::try_spawn(task) {
            eprintln!("{peer}: {error}");
        }
    }
}

/// Copies both directions of a connection at once: this task copies one, and a task that the scope
/// starts copies the other. Both use the two streams by reference.
fn connection(client: TcpStream, target: SocketAddr, idle: Duration) -> io::Result<()> {
    let target = TcpStream::connect_timeout(&target, CONNECT)?;
    let pair = Pair { client, target, idle, began: Instant::now(), moved: AtomicU64::new(0) };
    ums::scope(|s| {
        let up = s.try_spawn(|| pair.copy(&pair.client, &pair.target));
        let up = up.map_err(io::Error::other)?;
        pair.copy(&pair.target, &pair.client)?;
        up.join().map_err(|error| io::Error::other(error.to_string()))?
    })
}

/// What the two directions of a connection share.
struct Pair {
    client: TcpStream,
    target: TcpStream,
    idle: Duration,
    began: Instant,
    moved: AtomicU64, // when bytes moved last, in milliseconds after `began`
}

impl Pair {
    /// Copies from `from` to `to` until `from` ends, and then shuts down the writing side of `to`.
    /// After an error it shuts both streams down, so that the task of the other direction stops
    /// waiting.
    fn copy(&self, from: &TcpStream, to: &TcpStream) -> io::Result<()> {
        let result = self.copy_to_end(from, to);
        match &result {
            Ok(()) => drop(to.shutdown(Shutdown::Write)),
            Err(_) => drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both))),
        }
        result
    }

    fn copy_to_end(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; 16 * 1024];
        to.set_write_timeout(Some(self.idle))?; // for a peer that does not read
        loop {
            from.set_read_timeout(Some(self.left().max(Duration::from_millis(1))))?;
            let n = match from.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::TimedOut && !self.left().is_zero() => {
                    continue; // the other direction is not idle
                }
                result => result?,
            };
            to.write_all(&buffer[..n])?;
            self.moved.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
            if n == 0 {
                return Ok(());
            }
        }
    }

    /// Returns how long the connection may still be idle.
    fn left(&self) -> Duration {
        let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
        (moved + self.idle).saturating_sub(self.began.elapsed())
    }
}
