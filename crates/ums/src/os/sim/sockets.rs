//! Sockets, for `ums::net`. In a simulated world they are ends of its [network](super::net).

use std::io::Result;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::{SockAddr, SockRef};

use super::net::{stream, two};
use super::place;
use super::plan::lateness;
use super::state::WorldState;
use crate::os::linux::call;
use crate::os::op::Op;

fn here<R>(ask: impl FnOnce(&mut WorldState) -> R) -> Option<R> {
    place().map(|(world, _)| ask(&mut world.lock()))
}

/// Returns two connected sockets, or `None` if the caller is in no world.
pub fn pair() -> Option<Result<(OwnedFd, OwnedFd)>> {
    here(|state| {
        let ((mine, near), (theirs, far)) = (two()?, two()?);
        state.net.name_ends([&near, &far])?;
        state.net.add([near, far], None);
        Ok((mine, theirs))
    })
}

/// Returns a socket that listens on a port of the caller's world.
pub fn listener(address: &SocketAddr) -> Option<Result<OwnedFd>> {
    here(|state| Ok(state.net.bind(address)?))
}

/// Returns how long it takes until the other side notices a connection, in nanoseconds.
pub fn until_connected() -> Option<u64> {
    here(|state| lateness(&mut state.when))
}

/// Connects to a port of the caller's world. Fails with `AGAIN` if too many connections wait there.
pub fn connect_to(address: &SocketAddr) -> Option<Result<OwnedFd>> {
    here(|state| Ok(state.net.connect(address)?))
}

/// Connects to a Unix-domain listener. Fails with `AGAIN` if too many connections wait there.
pub fn connect_to_unix(address: &SockAddr) -> Option<Result<OwnedFd>> {
    here(|state| {
        let ((mine, near), far) = (two()?, stream()?);
        state.net.name_ends([&near, &far])?;
        SockRef::from(&far).connect(address)?;
        state.net.add([near, far], None);
        Ok(mine)
    })
}

/// Returns the addresses of a TCP connection of the caller's world: that of this end, then the
/// other's.
pub fn addresses(fd: &impl AsRawFd) -> Option<[SocketAddr; 2]> {
    here(|state| {
        let (wire, side) = state.net.end_of(fd.as_raw_fd())?;
        let [from, to] = wire.addresses?;
        Some(if side == 0 { [from, to] } else { [to, from] })
    })?
}

/// Returns the address of a listener of the caller's world.
pub fn listens_at(fd: &impl AsRawFd) -> Option<SocketAddr> {
    here(|state| {
        let name = call::simulated::own_name(fd.as_raw_fd())?;
        state.net.told(&name)?.strip_prefix("port/")?.parse().ok()
    })?
}

/// Returns an operation's result. On a connection that the world has broken, the end of the data
/// becomes a reset.
pub fn result(op: &Op, result: i32) -> i32 {
    let reads = matches!(op, Op::Recv { .. } | Op::Receive { .. } | Op::RecvMsg { .. });
    let reads = reads && result == 0;
    let writes = matches!(op, Op::Send { .. } | Op::SendMsg { .. }) && result == -libc::EPIPE;
    let cut = |state: &mut WorldState| {
        let sockets = state.net.wires.iter().any(|wire| wire.cut);
        sockets && state.net.end_of(op.fd()).is_some_and(|(wire, _)| wire.cut)
    };
    if (reads || writes) && here(cut) == Some(true) { -libc::ECONNRESET } else { result }
}
