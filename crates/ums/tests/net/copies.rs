//! Copies from stream to stream, and from files to streams.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use ums::fs::File;
use ums::net::{UnixStream, copy, send_file};
use ums::{Node, WaitError};

use super::common::dice::Dice;
use super::common::ms;
use super::{everywhere, tcp_pair};

/// Bytes of which each piece differs from the others.
fn bytes(length: usize) -> Vec<u8> {
    let mut dice = Dice(length as u64);
    std::iter::repeat_with(|| dice.roll(256) as u8).take(length).collect()
}

/// Reads to the end, in another task.
fn collect(node: &Node, mut stream: impl Read + Send + 'static) -> ums::JoinHandle<Vec<u8>> {
    let collect = move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all).unwrap()
    };
    node.spawn(collect).unwrap()
}

#[test]
fn a_copy_moves_every_byte_of_one_stream_to_the_other() {
    let sent = bytes(3_000_001);
    everywhere(|node| {
        let ((client, front), (back, server)) = (tcp_pair(), UnixStream::pair().unwrap());
        let forward = node.spawn(move || {
            let copied = copy(&front, &back).unwrap();
            back.shutdown(Shutdown::Write).unwrap();
            copied
        });
        let arrived = collect(node, server);
        let bytes = sent.clone();
        let sender = node.spawn(move || {
            for piece in bytes.chunks(70_001) {
                (&client).write_all(piece).unwrap();
                ums::yield_now();
            }
        });
        sender.unwrap().join().unwrap();
        assert_eq!(forward.unwrap().join().unwrap(), sent.len() as u64);
        assert!(arrived.join().unwrap() == sent, "the same bytes in the same order");
    });
}

#[test]
fn a_copy_waits_as_reads_and_writes_do() {
    everywhere(|node| {
        let ((client, front), (back, server)) = (tcp_pair(), UnixStream::pair().unwrap());
        front.set_read_timeout(Some(ms(20))).unwrap();
        let task = node.spawn(move || (copy(&front, &back).unwrap_err(), front, back));
        let (error, front, back) = task.unwrap().join().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "nothing arrives");

        // There is no room at the other end.
        back.set_write_timeout(Some(ms(20))).unwrap();
        let flood = node.spawn(move || while (&client).write_all(&[1; 10_000]).is_ok() {});
        let task = node.spawn(move || (copy(&front, &back).unwrap_err(), front, back));
        let (error, front, back) = task.unwrap().join().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "no one reads");
        drop((front, server));
        flood.unwrap().join().unwrap();
        drop(back);

        let ((_client, front), (back, _server)) = (tcp_pair(), UnixStream::pair().unwrap());
        let (begun, begins) = std::sync::mpsc::channel();
        let task = node.spawn(move || {
            begun.send(()).unwrap();
            copy(&front, &back).unwrap_err()
        });
        begins.recv().unwrap();
        let task = task.unwrap();
        task.cancel();
        let error = task.join().unwrap();
        assert_eq!(WaitError::of(&error), Some(WaitError::Cancelled));
    });
}

#[test]
fn a_file_is_sent_in_part_and_whole_from_memory_and_from_the_disk() {
    let content = bytes(1_000_001);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, &content).unwrap();
    everywhere(|node| {
        let ranges =
            [0..u64::MAX, 0..0, 5..6, 70_000..900_000, 999_999..2_000_000, 2_000_000..u64::MAX];
        for range in ranges {
            let file = File::open(&path).unwrap();
            if range.start % 2 == 0 {
                // The next read comes from the disk, if the file system has one.
                file.sync_all().unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            let (here, there) = UnixStream::pair().unwrap();
            let arrived = collect(node, there);
            let wanted = range.clone();
            let task = node.spawn(move || send_file(&file, wanted, &here).unwrap());
            let cut = |at: u64| (at as usize).min(content.len());
            let expected = &content[cut(range.start)..cut(range.end)];
            assert_eq!(task.unwrap().join().unwrap(), expected.len() as u64, "{range:?}");
            assert!(arrived.join().unwrap() == expected, "{range:?}");
        }
    });
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let (here, _there) = UnixStream::pair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "text").unwrap();
    let file = File::open(folder.path().join("file")).unwrap();
    let far = send_file(&file, u64::MAX - 1..u64::MAX, &here).unwrap_err();
    assert_eq!(far.kind(), ErrorKind::InvalidInput);
    let backwards = std::ops::Range { start: 3, end: 1 };
    assert_eq!(send_file(&file, backwards, &here).unwrap(), 0);
    here.set_deadline(Some(Instant::now()));
    assert_eq!(copy(&here, &here).unwrap_err().kind(), ErrorKind::TimedOut);
}
