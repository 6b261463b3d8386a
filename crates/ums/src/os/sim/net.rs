//! The simulated network of a world: connections whose data travels for as long as the seed
//! decides.
//!
//! ```text
//!   one end's socket --taken--> [ due, bytes ] [ due, bytes ] [ due, end ] --given--> other end's
//!                                       a way, in the world's memory
//! ```
//!
//! The ends are real sockets of this process, so that every operation on a descriptor works. But
//! they are not connected to each other. Each is connected to a socket that the world holds. When
//! the world polls its descriptors, it takes the data that was sent, cuts it into pieces, and gives
//! each piece to the other end when the piece is due. Pieces on one way (one direction of a
//! connection) stay in order; different ways have different delays, so the data of two connections
//! arrives in any order. A connection may break while a piece travels
//! ([`Faults::cut`](super::Faults)). Then both ends see a reset, and the data on its way is lost.
//!
//! A port of the world is a listening Unix-domain socket whose abstract name contains the address.
//! So a port is free again when its listener is closed, and no other process can connect to it.
//! Connecting takes a while, as on a real network. The sockets that the world holds have names,
//! too, by which it finds the connection that a socket belongs to.
//!
//! Datagrams, and sockets that the standard library made, are real. On a Unix-domain connection,
//! the address of the other end is such a name.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, listen, recv, send, shutdown, socket_with, socketpair,
};

use super::plan::{Dice, Faults, lateness};
use crate::os::clock::NEVER;
use crate::os::linux::call;

/// How many bytes may travel on one way.
const WINDOW: usize = 64 << 10;
/// How many connections may wait at a port.
const BACKLOG: i32 = 128;
/// The first number that is used for a listener or a connection that asks for any port.
const FREE_PORTS: u16 = 49_152;

enum Piece {
    Bytes(Vec<u8>),
    /// The end of the data.
    End,
}

/// The data that travels in one direction of a connection.
#[derive(Default)]
struct Way {
    pieces: VecDeque<(u64, Piece)>,
    bytes: usize,
    /// Whether the sender has shut its side down.
    ended: bool,
    /// Whether the receiver's socket is full.
    stuck: bool,
}

/// A connection. Way 0 leads from end 0, which connected, to end 1, and way 1 back.
pub(super) struct Wire {
    /// The socket that the world holds for each end. `None` when the connection is over.
    ends: Option<[OwnedFd; 2]>,
    pub(super) addresses: Option<[SocketAddr; 2]>,
    ways: [Way; 2],
    pub(super) cut: bool,
}

/// The network of a world; see the top of this file.
pub struct Net {
    /// A number that tells this world's names from those of other worlds in this process.
    number: u64,
    pub(super) wires: Vec<Wire>,
    next_port: u16,
}

impl Default for Net {
    fn default() -> Net {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Net { number, wires: Vec::new(), next_port: FREE_PORTS }
    }
}

/// What one pass over the network needs: time, random sequences and faults.
pub struct Luck<'a> {
    pub now: u64,
    pub when: &'a mut Dice,
    pub luck: &'a mut Dice,
    pub faults: Faults,
    pub is_wild: bool,
}

impl Luck<'_> {
    fn happens(&mut self, cases: u64) -> bool {
        self.luck.below(10_000) < cases && self.is_wild
    }
}

impl Way {
    /// Adds a piece. It arrives after those that are travelling already.
    fn add(&mut self, piece: Piece, luck: &mut Luck<'_>) {
        let due = luck.now + lateness(luck.when);
        let before = self.pieces.back().map_or(0, |(due, _)| *due);
        self.pieces.push_back((due.max(before), piece));
    }

    /// Takes the data that was sent. Returns an error if the sender has closed its end without
    /// reading everything.
    fn take(&mut self, from: &OwnedFd, luck: &mut Luck<'_>) -> Result<()> {
        let mut buffer = [0; 4096];
        while !self.ended && self.bytes < WINDOW {
            match recv(from, &mut buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
                Ok((0, _)) => {
                    self.ended = true;
                    self.add(Piece::End, luck);
                }
                Ok((count, _)) => {
                    self.bytes += count;
                    let mut rest = &buffer[..count];
                    while !rest.is_empty() {
                        let short = luck.happens(luck.faults.short);
                        let by = luck.luck.below(rest.len() as u64) as usize;
                        let (piece, after) = rest.split_at(if short { 1 + by } else { rest.len() });
                        self.add(Piece::Bytes(piece.to_vec()), luck);
                        rest = after;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives the pieces that are due to the receiver. Returns an error if the receiver has closed
    /// its end.
    fn give(&mut self, to: &OwnedFd, now: u64) -> Result<()> {
        self.stuck = false;
        while let Some((due, piece)) = self.pieces.front_mut()
            && *due <= now
        {
            match piece {
                Piece::End => match shutdown(to, Shutdown::Write) {
                    Ok(()) | Err(Errno::NOTCONN) => {}
                    Err(error) => return Err(error),
                },
                Piece::Bytes(bytes) => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    match send(to, bytes, flags) {
                        Err(Errno::AGAIN) => {
                            self.stuck = true;
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                        Ok(sent) => {
                            self.bytes -= sent;
                            bytes.drain(..sent);
                            if !bytes.is_empty() {
                                continue;
                            }
                        }
                    }
                }
            }
            self.pieces.pop_front();
        }
        Ok(())
    }

    fn next_due(&self) -> u64 {
        let front = self.pieces.front().filter(|_| !self.stuck);
        front.map_or(NEVER, |(due, _)| *due)
    }

    fn is_over(&self) -> bool {
        self.ended && self.pieces.is_empty()
    }
}

impl Wire {
    fn look(&mut self, luck: &mut Luck<'_>) {
        let Some([near, far]) = &self.ends else { return };
        let [there, back] = &mut self.ways;
        let before = there.pieces.len() + back.pieces.len();
        let moved = there
            .take(near, luck)
            .and_then(|()| back.take(far, luck))
            .and_then(|()| there.give(far, luck.now))
            .and_then(|()| back.give(near, luck.now));
        let more = there.pieces.len() + back.pieces.len() > before;
        let breaks = more && luck.happens(luck.faults.cut);
        if moved.is_err() || breaks {
            self.cut = true;
        }
        if self.cut || (there.is_over() && back.is_over()) {
            self.ends = None;
            self.ways = Default::default();
        }
    }
}

pub(super) fn stream() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

pub(super) fn two() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl Net {
    /// On all connections, takes the data that was sent and gives the pieces that are due.
    pub fn look(&mut self, mut luck: Luck<'_>) {
        self.wires.iter_mut().for_each(|wire| wire.look(&mut luck));
    }

    /// Returns when the next piece on any connection is due.
    pub fn next_due(&self) -> u64 {
        self.wires.iter().flat_map(|wire| &wire.ways).map(Way::next_due).min().unwrap_or(NEVER)
    }

    fn name(&self, what: &str) -> Result<SocketAddrUnix> {
        let (process, number) = (std::process::id(), self.number);
        SocketAddrUnix::new_abstract_name(format!("ums-sim/{process}/{number}/{what}").as_bytes())
    }

    /// Returns what follows the world's prefix in a socket name, or `None` if the name is not of
    /// this world.
    pub(super) fn told<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&format!("ums-sim/{}/{}/", std::process::id(), self.number))
    }

    /// Names the two sockets that the world holds for the next connection. Each is the peer of one
    /// of the program's sockets: the first of the connecting socket, the second of the accepted
    /// one. [`Net::end_of`] finds the connection of a socket by the name of its peer.
    pub(super) fn name_ends(&self, ends: [&OwnedFd; 2]) -> Result<()> {
        let wire = self.wires.len();
        let name = |(side, end)| bind(end, &self.name(&format!("wire/{wire}/{side}"))?);
        ends.into_iter().enumerate().try_for_each(name)
    }

    pub(super) fn add(&mut self, ends: [OwnedFd; 2], addresses: Option<[SocketAddr; 2]>) {
        let (ends, ways, cut) = (Some(ends), Default::default(), false);
        self.wires.push(Wire { ends, addresses, ways, cut });
    }

    fn port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FREE_PORTS);
        port
    }

    pub(super) fn bind(&mut self, address: &SocketAddr) -> Result<OwnedFd> {
        let socket = stream()?;
        let mut address = *address;
        let any = address.port() == 0;
        loop {
            if any {
                address.set_port(self.port());
            }
            match bind(&socket, &self.name(&format!("port/{address}"))?) {
                Err(Errno::ADDRINUSE) if any => {}
                result => break result?,
            }
        }
        listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    pub(super) fn connect(&mut self, to: &SocketAddr) -> Result<OwnedFd> {
        // A listener at all addresses of the computer is named by the unspecified address.
        let ip = to.ip();
        let every: std::net::IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let listeners = [*to, SocketAddr::new(every, to.port())];
        let (mine, near) = two()?;
        let far = stream()?;
        let from = SocketAddr::new(ip, self.port());
        self.name_ends([&near, &far])?;
        let mut result = Err(Errno::CONNREFUSED);
        for listener in listeners {
            result = connect(&far, &self.name(&format!("port/{listener}"))?);
            if result != Err(Errno::CONNREFUSED) {
                break;
            }
        }
        result?;
        self.add([near, far], Some([from, *to]));
        Ok(mine)
    }

    /// Returns the connection to which the socket with this descriptor belongs, and which of its
    /// two ends the socket is.
    pub(super) fn end_of(&self, fd: RawFd) -> Option<(&Wire, usize)> {
        let name = call::simulated::peer_name(fd)?;
        let (wire, side) = self.told(&name)?.strip_prefix("wire/")?.split_once('/')?;
        Some((self.wires.get(wire.parse::<usize>().ok()?)?, side.parse().ok()?))
    }
}
