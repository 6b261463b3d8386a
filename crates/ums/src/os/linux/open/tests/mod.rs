//! One test suite for all drivers. Each behaviour is a function that runs on io_uring in each of
//! its modes, on epoll with and without adopted descriptors, and on the synchronous driver.
//!
//! `sockets` moves bytes, `cancels` cancels operations, `waits` tests time and wake-ups, `chores`
//! tests files and calls, `denied` runs child processes under a system call filter.

#![allow(unsafe_code)] // Named invariant "Frozen Buffer": each test keeps its buffers to the end.

mod cancels;
mod denied;
mod chores;
mod sockets;
mod waits;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::os::driver::{CURRENT, Done, LiveOp, Op, Submitted};
use crate::os::linux::owned::{self, DescriptorKind};
use crate::os::op::RECEIVE_MAX;

/// A driver under test, and the completions that it has delivered.
struct Rig {
    io: Box<dyn Driver>,
    adopt: bool,
    done: Vec<Done>,
}

/// A descriptor of a test. It is adopted if the rig asks for that.
struct Sock {
    fd: OwnedFd,
    adopted: bool,
}

impl Drop for Sock {
    fn drop(&mut self) {
        if self.adopted {
            owned::release(self.raw());
        }
    }
}

impl Sock {
    fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Closes the file and gives its number to another file.
    fn replace(&mut self, other: &Sock) {
        if self.adopted {
            owned::release(self.raw());
        }
        rustix::io::dup2(&other.fd, &mut self.fd).unwrap();
        if self.adopted {
            owned::adopt(self.raw(), DescriptorKind::Stream);
        }
    }

    fn poll_in(&self) -> Op {
        Op::PollIn { fd: self.raw() }
    }

    fn poll_out(&self) -> Op {
        Op::PollOut { fd: self.raw() }
    }

    fn recv(&self, buf: &mut [u8]) -> Op {
        Op::Recv { fd: self.raw(), buf: buf.as_mut_ptr(), len: buf.len(), flags: 0 }
    }

    fn receive(&self, into: &mut Vec<u8>) -> Op {
        Op::Receive { fd: self.raw(), into, most: RECEIVE_MAX }
    }

    fn send(&self, buf: &[u8]) -> Op {
        Op::Send { fd: self.raw(), buf: buf.as_ptr(), len: buf.len(), flags: 0 }
    }

    fn write(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.fd, bytes), Ok(bytes.len()));
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; 65_536];
        let n = rustix::io::read(&self.fd, &mut buf[..])?;
        buf.truncate(n);
        Ok(buf)
    }
}

impl Rig {
    /// Returns a ring with the flags of this mode. The last mode, that of the oldest kernels, is
    /// run without buffers that the kernel chooses. If the system has no ring, prints a message and
    /// returns `None`.
    fn ring(mode: usize) -> Option<Rig> {
        match UringDriver::with_modes_from(mode) {
            Ok(mut ring) => {
                if mode == 2 {
                    ring.refuse_buffers();
                }
                Some(Rig { io: Box::new(ring), adopt: false, done: Vec::new() })
            }
            Err(error) => {
                crate::testing::skipped("ring", error);
                None
            }
        }
    }

    fn open(choice: Choice, adopt: bool) -> Rig {
        let io = open_as(choice, DriverThreads::ManyThreads).unwrap();
        Rig { io, adopt, done: Vec::new() }
    }

    fn own(&self, fd: OwnedFd, kind: DescriptorKind) -> Sock {
        if self.adopt {
            owned::adopt(fd.as_raw_fd(), kind);
        }
        Sock { fd, adopted: self.adopt }
    }

    fn pair(&self) -> (Sock, Sock) {
        self.pair_of(SocketType::STREAM, DescriptorKind::Stream)
    }

    fn pair_of(&self, sort: SocketType, kind: DescriptorKind) -> (Sock, Sock) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (a, b) = socketpair(AddressFamily::UNIX, sort, flags, None).unwrap();
        (self.own(a, kind), self.own(b, kind))
    }

    fn listener(&self) -> (Sock, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        (self.own(listener.into(), DescriptorKind::Other), addr)
    }

    fn tcp(&self) -> Sock {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        self.own(fd, DescriptorKind::Stream)
    }

    /// Submits an operation. An immediate completion is recorded like a later one. The test keeps
    /// the buffers until then.
    fn submit(&mut self, token: u64, op: Op) {
        let before = self.io.pending();
        // SAFETY: Frozen Buffer: each test keeps its buffers until it has taken the completion.
        let op = unsafe { LiveOp::of(op) };
        match self.io.submit(token, op) {
            Submitted::Done(result) => self.done.push(Done { token, result }),
            Submitted::Pending => assert!(self.io.pending() > before),
        }
    }

    /// Waits for the completion of a token, and removes it from the record.
    fn take(&mut self, token: u64) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(at) = self.done.iter().position(|done| done.token == token) {
                return self.done.remove(at).result;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no completion of token {token}");
            self.io.wait(Some(100_000_000), &mut self.done);
        }
    }

    fn run(&mut self, token: u64, op: Op) -> i32 {
        self.submit(token, op);
        self.take(token)
    }

    /// Asserts that nothing completes within a few milliseconds.
    fn quiet(&mut self) {
        for _ in 0..3 {
            self.io.wait(Some(2_000_000), &mut self.done);
        }
        assert_eq!(self.done, [], "nothing may complete here");
    }

    /// Asserts that every operation has completed exactly once.
    fn finish(mut self) {
        assert_eq!(self.io.pending(), 0);
        self.quiet();
    }
}

fn connect_op(sock: &Sock, addr: &libc::sockaddr_in) -> Op {
    Op::Connect {
        fd: sock.raw(),
        addr: std::ptr::from_ref(addr).cast(),
        len: size_of::<libc::sockaddr_in>() as u32,
    }
}

fn sockaddr(addr: SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(v4) = addr else { panic!("the tests speak IPv4") };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

macro_rules! on_every_driver {
    ($($room:ident :: $name:ident),* $(,)?) => {
        mod uring { use super::*; $(#[test] fn $name() {
            if let Some(rig) = Rig::ring(0) { super::$room::$name(rig) }
        })* }
        mod uring_cooperative { use super::*; $(#[test] fn $name() {
            if let Some(rig) = Rig::ring(1) { super::$room::$name(rig) }
        })* }
        mod uring_plain { use super::*; $(#[test] fn $name() {
            if let Some(rig) = Rig::ring(2) { super::$room::$name(rig) }
        })* }
        mod epoll { use super::*; $(#[test] fn $name() {
            super::$room::$name(Rig::open(Choice::Epoll, false));
        })* }
        mod epoll_adopted { use super::*; $(#[test] fn $name() {
            super::$room::$name(Rig::open(Choice::Epoll, true));
        })* }
        mod sync { use super::*; $(#[test] fn $name() {
            super::$room::$name(Rig::open(Choice::Sync, false));
        })* }
    };
}

on_every_driver! {
    sockets::tcp_connects_accepts_and_echoes_u57,
    sockets::a_refused_connection_says_so,
    sockets::polls_tell_readable_writable_and_hang_up,
    sockets::many_readers_of_one_socket_share_its_bytes,
    sockets::the_first_reader_in_line_reads_first,
    sockets::a_late_adoption_is_noticed,
    sockets::a_reader_and_a_writer_share_a_socket,
    sockets::a_reused_number_is_the_new_descriptor,
    sockets::a_replaced_descriptor_is_told_from_its_twin,
    sockets::a_peers_reset_ends_the_read,
    sockets::datagrams_go_by_message,
    sockets::pipelined_datagrams_are_all_received,
    sockets::a_big_transfer_arrives_whole,
    sockets::the_end_after_the_last_bytes_is_seen,
    sockets::files_are_read_and_written_in_four_variants_u60,
    sockets::errors_are_completions,
    sockets::a_receive_without_a_buffer_gets_the_bytes_in_order,
    sockets::more_receives_than_buffers_all_get_their_bytes,
    cancels::each_kind_of_operation_can_be_cancelled,
    cancels::a_cancel_that_races_the_completion_leaves_one_completion,
    cancels::three_thousand_cancels_lose_none,
    cancels::a_cancel_frees_the_line_behind_it,
    cancels::an_operation_that_is_not_pending_cannot_be_cancelled,
    cancels::a_driver_dropped_in_the_middle_no_longer_uses_its_buffers,
    chores::a_call_runs_elsewhere_and_its_result_comes_back,
    chores::many_calls_each_come_back_once,
    chores::a_call_that_has_not_begun_never_begins_when_cancelled,
    chores::a_dropped_driver_waits_for_the_call_that_has_begun,
    chores::a_file_is_not_read_by_its_submitter,
    waits::a_wait_lasts_as_long_as_its_timeout_u72,
    waits::a_wake_from_another_thread_ends_the_wait_u74,
    waits::a_wake_before_the_wait_is_kept,
    waits::many_wakes_end_many_waits,
    waits::completion_and_timeout_end_the_wait_in_either_order_u75,
    waits::a_busy_scheduler_sees_completions_without_waiting_u62,
    waits::nine_thousand_polls_all_complete,
    waits::a_hundred_thousand_operations_lose_none,
    waits::a_signal_does_no_harm,
}
