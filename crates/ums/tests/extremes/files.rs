//! Files and I/O requests: positions, lengths and modes.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use ums::fs::{DirectBuffer, File, OpenOptions};
use ums::io::{CURRENT, Request, set_slow_after};
use ums::stats::{WAIT_BUCKETS, wait_bucket_end};

use super::Entry;
use super::On::{Both, Worker};
use super::tries::{ENDLESS, OVER, called, came, moments, panics, woken};

/// The last position that a file can have.
const LAST: u64 = i64::MAX as u64;
/// Positions that no file has.
const NOWHERE: [u64; 3] = [LAST + 1, u64::MAX - 1, u64::MAX];

pub const TABLE: &[Entry] = &[
    ("File::read_at", Both, |_| reads(|file, buf, at| file.read_at(buf, at))),
    ("File::read_full_at", Both, |_| reads(|file, buf, at| file.read_full_at(buf, at))),
    ("File::read_cached_at", Both, |_| {
        reads(|file, buf, at| match file.read_cached_at(buf, at)? {
            Some(n) => Ok(n),
            None => file.read_at(buf, at),
        });
    }),
    ("File::read_vectored_at", Both, |_| {
        reads(|file, buf, at| file.read_vectored_at(&mut [IoSliceMut::new(buf)], at));
    }),
    ("File::read_exact_at", Both, |_| {
        reads(|file, buf, at| match file.read_exact_at(buf, at) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => file.read_at(buf, at),
            other => other.map(|()| buf.len()),
        });
    }),
    ("File::write_at", Both, |_| writes(|file, buf, at| file.write_at(buf, at))),
    ("File::write_all_at", Both, |_| {
        writes(|file, buf, at| file.write_all_at(buf, at).map(|()| buf.len()));
    }),
    ("File::write_vectored_at", Both, |_| {
        writes(|file, buf, at| file.write_vectored_at(&[IoSlice::new(buf)], at));
    }),
    ("File::set_len", Both, |_| {
        let (_folder, file) = ten_bytes();
        for len in [0, 1] {
            called();
            file.set_len(len).unwrap();
            assert_eq!(file.metadata().unwrap().len(), len);
        }
        // A file system may have files of that length.
        called();
        if file.set_len(LAST).is_ok() {
            assert_eq!(file.metadata().unwrap().len(), LAST);
        }
        for len in NOWHERE {
            called();
            assert_eq!(file.set_len(len).unwrap_err().kind(), ErrorKind::InvalidInput, "{len}");
        }
    }),
    ("File::allocate", Both, |_| {
        let (_folder, file) = ten_bytes();
        let mut edges = [0, 1, LAST].to_vec();
        edges.extend(NOWHERE);
        for &offset in &edges {
            for &len in &edges {
                called();
                let done = file.allocate(offset, len);
                assert!(done.is_err() || (offset <= 1 && len == 1), "{len} bytes at {offset}");
            }
        }
        assert!(file.metadata().unwrap().len() <= 10);
    }),
    ("File::set_deadline", Worker, |_| {
        let read = |(reader, _): &Pipe, t| {
            reader.set_deadline(Some(t));
            came((&mut &*reader).read(&mut [0]))
        };
        woken(moments(), pipe, read, |(_, writer)| _ = (&mut &*writer).write(b"x"));
    }),
    ("DirectBuffer::new", Both, |_| {
        for len in [0, 1] {
            called();
            assert_eq!(DirectBuffer::new(len).len(), len);
        }
        // `DirectBuffer::MAX` itself ends the process, like any memory that cannot be had.
        for len in [DirectBuffer::MAX + 1, usize::MAX] {
            assert!(panics(|| DirectBuffer::new(len)).contains("at most DirectBuffer::MAX"));
        }
    }),
    ("OpenOptions::mode", Both, |_| {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0, 1, u32::MAX] {
            called();
            let path = folder.path().join(mode.to_string());
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
            // The system ignores the bits that are no permissions, or refuses them.
            assert!(file.is_ok() || mode == u32::MAX, "{mode:o}");
        }
    }),
    ("OpenOptions::custom_flags", Both, |_| {
        let (folder, _) = ten_bytes();
        for flags in [0, i32::MAX, i32::MIN, -1] {
            called();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path(&folder));
            assert!(file.is_ok() || flags != 0, "the system decides about {flags:x}");
        }
    }),
    ("Request::read", Both, |_| {
        requests(|file, at, tell| {
            Request::read(file, vec![0; 4], at, move |result, _| tell.send(result).unwrap())
        });
    }),
    ("Request::read_scatter", Both, |_| {
        requests(|file, at, tell| {
            let buffers = vec![vec![0; 2], vec![0; 2]];
            Request::read_scatter(file, buffers, at, move |result, _| tell.send(result).unwrap())
        });
    }),
    ("Request::write", Both, |_| {
        requests(|file, at, tell| {
            Request::write(file, vec![0; 4], at, move |result, _| tell.send(result).unwrap())
        });
    }),
    ("Request::write_gather", Both, |_| {
        requests(|file, at, tell| {
            let buffers = vec![vec![0; 2], vec![0; 2]];
            Request::write_gather(file, buffers, at, move |result, _| tell.send(result).unwrap())
        });
    }),
    ("io::set_slow_after", Both, |_| {
        let (_folder, file) = ten_bytes();
        for span in OVER.into_iter().chain(ENDLESS) {
            called();
            set_slow_after(span);
            file.sync_all().unwrap();
        }
        set_slow_after(Duration::from_secs(15));
    }),
    ("record::wait_bucket_end", Both, |_| {
        called();
        assert_eq!(wait_bucket_end(0), Some(1 << 10));
        assert!(wait_bucket_end(WAIT_BUCKETS - 2) > wait_bucket_end(WAIT_BUCKETS - 3));
        for bucket in [WAIT_BUCKETS - 1, WAIT_BUCKETS, usize::MAX - 1, usize::MAX] {
            called();
            assert_eq!(wait_bucket_end(bucket), None, "{bucket}");
        }
    }),
];

fn path(folder: &tempfile::TempDir) -> std::path::PathBuf {
    folder.path().join("ten")
}

/// Returns a file of ten bytes, and its folder, which is removed when it is dropped.
fn ten_bytes() -> (tempfile::TempDir, File) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(path(&folder), b"0123456789").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path(&folder)).unwrap();
    (folder, file)
}

/// Tries positions of a read of a file of ten bytes.
fn reads(read: impl Fn(&File, &mut [u8], u64) -> std::io::Result<usize>) {
    let (_folder, file) = ten_bytes();
    for (at, n) in [(0, 4), (1, 4), (10, 0), (LAST - 4, 0)] {
        called();
        assert_eq!(read(&file, &mut [0; 4], at).unwrap(), n, "at {at}");
    }
    // The system refuses a read that would end beyond the last position.
    called();
    let at_last = read(&file, &mut [0; 4], LAST);
    assert!(at_last.is_ok_and(|n| n == 0) || read(&file, &mut [0; 4], LAST).is_err());
    for at in NOWHERE {
        called();
        let error = read(&file, &mut [0; 4], at).expect_err("no file has this position");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "at {at}: {error}");
        // It has not read from the current position, as the system would for one of these numbers.
        assert_eq!(std::io::Seek::stream_position(&mut &file).unwrap(), 0);
    }
}

/// Tries positions of a write of four bytes into a file of ten.
fn writes(write: impl Fn(&File, &[u8], u64) -> std::io::Result<usize>) {
    let (folder, file) = ten_bytes();
    for at in [0, 1] {
        called();
        assert_eq!(write(&file, b"abcd", at).unwrap(), 4, "at {at}");
    }
    for at in NOWHERE.into_iter().chain([LAST, LAST - 3]) {
        called();
        assert!(write(&file, b"wxyz", at).is_err(), "at {at}");
    }
    assert_eq!(std::fs::read(path(&folder)).unwrap(), b"aabcd56789");
}

type Told = mpsc::Sender<std::io::Result<usize>>;

/// Tries positions of a request of four bytes. [`CURRENT`] is the file's own position.
fn requests(make: impl Fn(std::fs::File, u64, Told) -> Request) {
    let folder = tempfile::tempdir().unwrap();
    let submit = |at| {
        std::fs::write(path(&folder), b"0123456789").unwrap();
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).open(path(&folder)).unwrap();
        let (tell, told) = mpsc::channel();
        called();
        make(file, at, tell).submit();
        let mut answer = None;
        super::common::eventually("the routine was called", || {
            answer = answer.take().or_else(|| told.try_recv().ok());
            answer.is_some()
        });
        answer.unwrap()
    };
    for at in [0, 1, CURRENT] {
        assert_eq!(submit(at).unwrap(), 4, "at {at}");
    }
    for at in [LAST, LAST + 1, u64::MAX - 1] {
        let result = submit(at);
        assert!(result.is_err() || (at == LAST && result.is_ok_and(|n| n == 0)), "at {at}");
        assert_eq!(std::fs::metadata(path(&folder)).unwrap().len(), 10, "at {at}");
    }
}

type Pipe = (File, File);

fn pipe() -> Pipe {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), OwnedFd::from(writer).into())
}
