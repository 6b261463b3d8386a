//! Options of sockets, streams in two halves, and locks of files.

mod common;

use std::fs::TryLockError;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use common::{both_kinds, ms, on, start};
use ums::net::{ByteStream, TcpListener, TcpStream, UnixStream};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn options_are_set_and_read_and_wrong_ones_refused() {
    let (stream, _peer) = pair();
    assert_eq!(stream.keepalive().unwrap(), None, "off at first");
    stream.set_keepalive(Some(Duration::from_secs(7))).unwrap();
    assert_eq!(stream.keepalive().unwrap(), Some(Duration::from_secs(7)));
    for wrong in [Duration::ZERO, ms(999), Duration::from_secs(32_768), Duration::MAX] {
        let refused = stream.set_keepalive(Some(wrong)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{wrong:?}");
        assert_eq!(stream.keepalive().unwrap(), Some(Duration::from_secs(7)), "nothing changed");
    }
    stream.set_keepalive(None).unwrap();
    assert_eq!(stream.keepalive().unwrap(), None);
    assert_eq!(stream.linger().unwrap(), None);
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    assert_eq!(stream.linger().unwrap(), Some(Duration::ZERO));
    stream.set_send_buffer_size(50_000).unwrap();
    assert!(stream.send_buffer_size().unwrap() >= 50_000);
    let (unix, _peer) = UnixStream::pair().unwrap();
    unix.set_recv_buffer_size(50_000).unwrap();
    assert!(unix.recv_buffer_size().unwrap() >= 50_000);
}

#[test]
fn a_stream_that_lingers_for_no_time_is_reset() {
    let (one, two) = pair();
    one.set_linger(Some(Duration::ZERO)).unwrap();
    drop(one);
    let error = (&two).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn shared_listeners_divide_the_connections_of_one_address() {
    both_kinds(|node, _, n| {
        let one = TcpListener::bind_shared("127.0.0.1:0").unwrap();
        let address = one.local_addr().unwrap();
        let alone = TcpListener::bind(address).unwrap_err();
        assert_eq!(alone.kind(), ErrorKind::AddrInUse, "only those that share");
        let two = TcpListener::bind_shared(address).unwrap();
        let serve = |listener: TcpListener, name: &'static [u8]| {
            start(node, n - 1, move || {
                let mut served = 0;
                for stream in listener.incoming().flatten() {
                    (&stream).write_all(name).unwrap();
                    served += 1;
                }
                served
            })
        };
        let (one, two) = (serve(one, b"1"), serve(two, b"2"));
        let mut heard = [0; 2];
        // The system chooses by the client's port.
        for round in 0.. {
            let mut name = [0];
            TcpStream::connect(address).unwrap().read_exact(&mut name).unwrap();
            heard[usize::from(name[0] - b'1')] += 1;
            if heard.iter().all(|count| *count > 0) {
                break;
            }
            assert!(round < 10_000, "one of them gets everything: {heard:?}");
        }
        one.cancel();
        two.cancel();
        let served = [one.join().unwrap(), two.join().unwrap()];
        assert_eq!(served, heard);
    });
}

#[test]
fn each_half_has_a_task_and_the_end_of_the_writing_one_is_read() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let (client, server) = pair();
            let (mut from, mut to) = server.into_split();
            let echo = ums::spawn(move || std::io::copy(&mut from, &mut to).map(|_| (from, to)));
            let (mut reads, mut writes) = client.into_split();
            let writer = ums::spawn(move || writes.write_all(&[7; 100_000]));
            let mut bytes = Vec::new();
            let reader = ums::spawn(move || reads.read_to_end(&mut bytes).map(|_| bytes.len()));
            writer.join().unwrap().unwrap();
            let (from, to) = echo.join().unwrap().unwrap();
            let whole = from.reunite(to).unwrap();
            drop(whole);
            assert_eq!(reader.join().unwrap().unwrap(), 100_000);
        });
        let ((one, _), (two, _)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let ((of_one, _to), (_from, of_two)) = (one.into_split(), two.into_split());
        assert!(of_one.reunite(of_two).is_err(), "halves of different streams");
    });
}

#[test]
fn a_lock_of_a_file_is_waited_for_and_the_wait_can_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locked");
    ums::fs::write(&path, b"").unwrap();
    both_kinds(|node, _, n| {
        let path = path.clone();
        on(node, n - 1, move || {
            let open = || ums::fs::File::open(&path).unwrap();
            let (one, two) = (open(), open());
            one.lock().unwrap();
            assert!(matches!(two.try_lock(), Err(TryLockError::WouldBlock)));
            let late = ums::with_timeout(ms(5), || two.lock()).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            assert_eq!(late.to_string(), "the wait for FILE_LOCK timed out");
            let waits = ums::spawn(move || {
                two.lock_shared()?;
                std::io::Result::Ok(two)
            });
            ums::yield_now();
            one.unlock().unwrap();
            let two = waits.join().unwrap().unwrap();
            one.try_lock_shared().unwrap();
            let both = one.try_lock();
            assert!(matches!(both, Err(TryLockError::WouldBlock)), "two has it, too");
            drop(two);
            one.lock().unwrap();
        });
    });
}
