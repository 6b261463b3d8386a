//! Tests of cancelled operations: each completes exactly once, in every case.

use super::*;

pub fn each_kind_of_operation_can_be_cancelled(mut rig: Rig) {
    let (a, b) = rig.pair();
    let (listener, _) = rig.listener();
    let (full, _peer) = rig.pair();
    let (mut buf, filler) = ([0u8; 64], [0u8; 65_536]);
    while rustix::io::write(&full.fd, &filler).is_ok() {}
    let mut iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 64 }];
    // SAFETY: Plain Call: all zeros is a message header without name, data and control bytes.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (iov.as_mut_ptr(), 1);
    let (reader, _writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let pipe = reader.as_raw_fd();
    let ptr = buf.as_mut_ptr();
    let mut into = Vec::new();
    let ops = [
        a.poll_in(),
        a.receive(&mut into),
        a.recv(&mut buf),
        Op::RecvMsg { fd: a.raw(), msg: &mut msg, flags: 0 },
        Op::Accept { fd: listener.raw(), flags: 0 },
        Op::Read { fd: pipe, buf: ptr, len: 64, offset: CURRENT },
        Op::Readv { fd: pipe, iov: iov.as_ptr(), cnt: 1, offset: CURRENT },
        full.poll_out(),
        full.send(&filler),
        Op::SendMsg { fd: full.raw(), msg: &msg, flags: 0 },
        Op::Write { fd: full.raw(), buf: filler.as_ptr(), len: 64, offset: CURRENT },
        Op::Writev { fd: full.raw(), iov: iov.as_ptr(), cnt: 1, offset: CURRENT },
    ];
    for flushed in [false, true] {
        for (token, op) in ops.into_iter().enumerate() {
            rig.submit(token as u64, op);
            if flushed {
                rig.quiet();
            }
            rig.io.cancel(token as u64);
            rig.io.cancel(token as u64);
            assert_eq!(rig.take(token as u64), -libc::ECANCELED, "{op:?}, flushed: {flushed}");
        }
    }
    // All of them are submitted together, in one turn.
    for (token, op) in ops.into_iter().enumerate() {
        rig.submit(token as u64, op);
    }
    rig.quiet();
    (0..ops.len() as u64).rev().for_each(|token| rig.io.cancel(token));
    (0..ops.len() as u64).for_each(|token| assert_eq!(rig.take(token), -libc::ECANCELED));
    b.write(b"x");
    assert_eq!(rig.run(99, a.recv(&mut buf)), 1, "the socket is as good as before");
    rig.finish();
}

pub fn a_cancel_that_races_the_completion_leaves_one_completion(mut rig: Rig) {
    let (a, b) = rig.pair();
    let b = std::sync::Arc::new(b);
    let (go, ready) = std::sync::mpsc::sync_channel::<()>(0);
    let peer = std::thread::spawn({
        let b = b.clone();
        move || ready.iter().for_each(|()| b.write(b"x"))
    });
    let (mut buf, mut into, mut got, mut cancelled) = ([0; 8], Vec::new(), 0, 0);
    for round in 0..2_000u64 {
        rig.submit(round, if round % 3 == 0 { a.receive(&mut into) } else { a.recv(&mut buf) });
        if round % 2 == 0 {
            rig.io.wait(Some(0), &mut rig.done);
        }
        go.send(()).unwrap();
        (0..round % 50).for_each(|_| std::hint::spin_loop());
        rig.io.cancel(round);
        match rig.take(round) {
            n if n == -libc::ECANCELED => cancelled += 1,
            n => got += usize::try_from(n).unwrap(),
        }
    }
    drop(go);
    peer.join().unwrap();
    got += a.read().map_or(0, |rest| rest.len());
    assert_eq!(got, 2_000, "no byte is lost to a cancelled receive ({cancelled} cancelled)");
    rig.finish();
}

pub fn three_thousand_cancels_lose_none(mut rig: Rig) {
    let (a, _b) = rig.pair();
    let mut bufs = vec![0u8; 3_000];
    for (token, buf) in bufs.chunks_mut(1).enumerate() {
        rig.submit(token as u64, if token % 3 == 0 { a.poll_in() } else { a.recv(buf) });
    }
    rig.quiet();
    assert_eq!(rig.io.pending(), 3_000);
    (0..3_000).for_each(|token| rig.io.cancel(token));
    let mut seen = vec![false; 3_000];
    while rig.io.pending() > 0 {
        rig.io.wait(Some(1_000_000_000), &mut rig.done);
        for done in rig.done.drain(..) {
            assert_eq!(done.result, -libc::ECANCELED);
            assert!(!std::mem::replace(&mut seen[done.token as usize], true), "twice");
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    rig.finish();
}

pub fn a_cancel_frees_the_line_behind_it(mut rig: Rig) {
    let (a, b) = rig.pair();
    let mut bufs = [[0u8; 1]; 3];
    for (token, buf) in bufs.iter_mut().enumerate() {
        rig.submit(token as u64, a.recv(buf));
    }
    rig.quiet();
    rig.io.cancel(0);
    assert_eq!(rig.take(0), -libc::ECANCELED);
    b.write(b"yz");
    assert_eq!((rig.take(1), rig.take(2)), (1, 1));
    assert_eq!(bufs[0], [0], "the cancelled one got nothing");
    assert_eq!(u32::from(bufs[1][0]) + u32::from(bufs[2][0]), u32::from(b'y') + u32::from(b'z'));
    rig.finish();
}

pub fn an_operation_that_is_not_pending_cannot_be_cancelled(mut rig: Rig) {
    let (a, b) = rig.pair();
    rig.io.cancel(7);
    b.write(b"x");
    assert!(rig.run(7, a.poll_in()) > 0);
    rig.io.cancel(7);
    rig.finish();
}

pub fn a_driver_dropped_in_the_middle_no_longer_uses_its_buffers(mut rig: Rig) {
    let (a, b) = rig.pair();
    let mut bufs = vec![0u8; 500];
    for (token, buf) in bufs.chunks_mut(1).enumerate() {
        rig.submit(token as u64, a.recv(buf));
    }
    rig.io.wait(Some(0), &mut rig.done);
    drop(rig);
    b.write(b"too late");
    assert!(bufs.iter().all(|&byte| byte == 0));
    assert_eq!(a.read().unwrap(), b"too late", "no operation outlives its driver");
}
