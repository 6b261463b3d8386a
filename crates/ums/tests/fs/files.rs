//! Files: the same interface as std's, the cache, direct I/O; and other workers run while a file
//! operation waits.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::fs::{Advice, CWD, FileType, Mode, fadvise, mknodat};
use ums::fs::{self, DirectBuffer, File};

use super::*;

#[test]
fn a_file_is_read_and_written_as_in_std_u60() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        node.run(move || {
            let mut file = File::create_new(&path).unwrap();
            assert_eq!(kind_of(File::create_new(&path)), ErrorKind::AlreadyExists);
            file.write_all(b"0123456789").unwrap();
            assert_eq!(
                file.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cd")]).unwrap(),
                4
            );
            assert_eq!(file.stream_position().unwrap(), 14);
            file.seek(SeekFrom::Start(2)).unwrap();
            let mut three = [0; 3];
            file.read_exact(&mut three).unwrap();
            assert_eq!((&three, file.stream_position().unwrap()), (b"234", 5));

            let mut buf = [0; 4];
            file.read_exact_at(&mut buf, 8).unwrap();
            assert_eq!(&buf, b"89ab");
            let (mut left, mut right) = ([0; 2], [0; 8]);
            let parts = &mut [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)];
            assert_eq!(file.read_vectored_at(parts, 10).unwrap(), 4);
            assert_eq!((&left, &right), (b"ab", b"cd\0\0\0\0\0\0"));
            file.write_all_at(b"XY", 1).unwrap();
            let parts = [IoSlice::new(b"p"), IoSlice::new(b"q")];
            assert_eq!(file.write_vectored_at(&parts, 5).unwrap(), 2);
            assert_eq!(file.stream_position().unwrap(), 5, "positioned calls do not move it");

            file.sync_all().unwrap();
            file.set_len(12).unwrap();
            file.sync_data().unwrap();
            assert_eq!(file.metadata().unwrap().len(), 12);
            assert_eq!(file.read_full_at(&mut [0; 64], 4).unwrap(), 8);
            assert_eq!(kind_of(file.read_exact_at(&mut [0; 64], 4)), ErrorKind::UnexpectedEof);
            assert_eq!(file.read_at(&mut buf, 12).unwrap(), 0, "the end");
            assert_eq!(file.read_at(&mut buf, 99).unwrap(), 0, "beyond the end");
            for nowhere in [u64::MAX, 1 << 63] {
                assert_eq!(kind_of(file.read_at(&mut buf, nowhere)), ErrorKind::InvalidInput);
                assert_eq!(kind_of(file.write_at(b"x", nowhere)), ErrorKind::InvalidInput);
            }
            assert_eq!(file.stream_position().unwrap(), 5, "nor do those that fail");

            let again = file.try_clone().unwrap();
            file.close().unwrap();
            again.allocate(0, 8192).unwrap();
            assert_eq!(again.metadata().unwrap().len(), 8192);
            drop(again);
            assert_eq!(&fs::read(&path).unwrap()[..12], b"0XY34pq789ab");
        });
    });
}

#[test]
fn paths_are_handled_as_in_std() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let at = move |name: &str| root.join(name);
        node.run(move || {
            fs::create_dir(at("a")).unwrap();
            fs::create_dir_all(at("b/c/d")).unwrap();
            fs::write(at("a/x"), "text").unwrap();
            assert_eq!(fs::read_to_string(at("a/x")).unwrap(), "text");
            fs::rename(at("a/x"), at("b/y")).unwrap();
            fs::sync_dir(at("b")).unwrap();
            assert!(fs::exists(at("b/y")) && !fs::exists(at("a/x")));
            assert_eq!(fs::copy(at("b/y"), at("b/z")).unwrap(), 4);
            fs::hard_link(at("b/y"), at("b/w")).unwrap();
            fs::symlink(at("b/y"), at("b/v")).unwrap();
            assert_eq!(fs::read_link(at("b/v")).unwrap(), at("b/y"));
            assert!(fs::symlink_metadata(at("b/v")).unwrap().is_symlink());
            assert_eq!(fs::metadata(at("b/v")).unwrap().len(), 4);
            let real = fs::canonicalize(at("b/v")).unwrap();
            assert_eq!(real.file_name(), Some("y".as_ref()));
            let names = fs::read_dir(at("b")).unwrap().map(|e| e.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            assert_eq!(names, ["c", "v", "w", "y", "z"]);
            let mut rights = fs::metadata(at("b/z")).unwrap().permissions();
            rights.set_readonly(true);
            fs::set_permissions(at("b/z"), rights).unwrap();
            assert!(fs::metadata(at("b/z")).unwrap().permissions().readonly());
            fs::remove_file(at("b/w")).unwrap();
            assert_eq!(kind_of(fs::remove_dir(at("b"))), ErrorKind::DirectoryNotEmpty);
            fs::remove_dir_all(at("b")).unwrap();
            fs::remove_dir(at("a")).unwrap();
            assert_eq!(kind_of(fs::read(at("a/x"))), ErrorKind::NotFound);
            assert_eq!(kind_of(File::open(at("nothing"))), ErrorKind::NotFound);
        });
    });
}

#[test]
fn a_plain_thread_uses_files_too() {
    let file = File::from(tempfile::tempfile().unwrap());
    file.write_all_at(b"hello", 3).unwrap();
    file.sync_all().unwrap();
    let mut buf = [7; 8];
    assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 8);
    assert_eq!(&buf, b"\0\0\0hello");
    assert_eq!(file.read_cached_at(&mut buf, 0).unwrap(), Some(8), "it was just written");
}

#[test]
fn the_cache_is_asked_and_a_miss_is_read_from_the_disk() {
    everywhere(|node| {
        let file = File::from(tempfile::tempfile().unwrap());
        let page = vec![42; 4096];
        node.run(move || {
            file.write_all_at(&page, 0).unwrap();
            let mut buf = vec![0; 4096];
            let cached = file.read_cached_at(&mut buf, 0).unwrap();
            assert_eq!((cached, &buf), (Some(4096), &page));
            assert_eq!(file.read_cached_at(&mut buf, 4096).unwrap(), Some(0), "the end");
            let mut missed = false;
            for _ in 0..1000 {
                file.sync_all().unwrap();
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                missed = file.read_cached_at(&mut buf, 0).unwrap().is_none();
                if missed {
                    break;
                }
            }
            if !missed {
                return eprintln!("not run: this file system keeps pages that it is told to drop");
            }
            buf.fill(0);
            assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4096);
            assert_eq!(buf, page);
            assert_eq!(file.read_cached_at(&mut buf, 0).unwrap(), Some(4096), "now it is there");
        });
    });
}

#[test]
fn direct_io_takes_aligned_buffers_and_says_what_is_wrong_with_others() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("direct");
        node.run(move || {
            let mut options = File::options();
            let opened = options.read(true).write(true).create(true).direct(true).open(&path);
            let Ok(file) = opened else {
                return eprintln!("not run: {:?}", opened.err());
            };
            let mut out = DirectBuffer::new(8192);
            out.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
            file.write_all_at(&out, 4096).unwrap();
            let mut back = DirectBuffer::new(8192);
            assert_eq!(file.read_at(&mut back, 4096).unwrap(), 8192);
            assert!(back[..] == out[..]);
            let parts = &mut [IoSliceMut::new(&mut back)];
            assert_eq!(file.read_vectored_at(parts, 0).unwrap(), 8192);
            assert!(back[4096..] == out[..4096] && back[..4096].iter().all(|b| *b == 0));
            assert_eq!(file.read_full_at(&mut back, 8192).unwrap(), 4096, "the end");
            assert_eq!(file.read_cached_at(&mut back, 0).unwrap(), None);
            for (from, to, offset) in [(1, 4097, 0), (0, 100, 0), (0, 4096, 7)] {
                let error = file.read_at(&mut back[from..to], offset).expect_err("misaligned");
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains("multiples of"), "{error}");
                let error = file.write_at(&back[from..to], offset).expect_err("misaligned");
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
            }
        });
    });
}

/// Opening a named pipe waits for the other side. If that blocked the scheduler, no worker could
/// open the other side.
#[test]
fn others_run_while_an_open_waits() {
    asynchronously(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (here, there) = (path.clone(), path);
        let scheduler = node.scheduler_count() - 1;
        let reader = common::start(node, scheduler, move || {
            let mut text = String::new();
            File::open(here).unwrap().read_to_string(&mut text).map(|_| text)
        });
        common::on(node, scheduler, move || {
            let mut pipe = File::options().write(true).open(there).unwrap();
            ums::yield_now();
            pipe.write_all(b"through the pipe").unwrap();
        });
        assert_eq!(reader.join().unwrap().unwrap(), "through the pipe");
    });
}

/// A sibling that runs between two file operations shows that the sync parked its worker.
#[test]
fn a_sync_parks_its_worker_and_others_run() {
    asynchronously(|node| {
        let file = File::from(tempfile::tempfile().unwrap());
        common::on(node, 0, move || {
            file.write_all_at(&[1; 4096], 0).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let (seen, told) = (stop.clone(), Arc::new(AtomicBool::new(false)));
            let note = told.clone();
            let sibling = ums::spawn(move || {
                while !seen.load(SeqCst) {
                    note.store(true, SeqCst);
                    ums::yield_now();
                }
            });
            common::eventually("the sibling ran during a sync", || {
                file.write_all_at(&[2; 4096], 0).unwrap();
                told.store(false, SeqCst);
                file.sync_all().unwrap();
                told.load(SeqCst)
            });
            stop.store(true, SeqCst);
            sibling.join().unwrap();
        });
    });
}

/// Opens a named pipe whose other side a plain thread opens some time later.
fn open_slowly(node: &Node) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let there = path.clone();
    let other = std::thread::spawn(move || {
        std::thread::sleep(common::ms(30));
        std::fs::OpenOptions::new().write(true).open(there).unwrap();
    });
    common::on(node, 0, move || drop(File::open(path).unwrap()));
    other.join().unwrap();
}

#[test]
fn waits_for_files_that_take_long_are_counted_b50() {
    asynchronously(|node| {
        let slow = || ums::testing::scheduler(node, 0).counters.slow_io;
        open_slowly(node);
        assert_eq!(slow(), 0, "no wait was longer than the limit");
        ums::io::set_slow_after(common::ms(10));
        // A worker that gets no processor for a while may find the pipe open.
        common::eventually("a slow open is counted", || {
            open_slowly(node);
            slow() > 0
        });
        ums::io::set_slow_after(std::time::Duration::from_secs(15));
        assert_eq!(slow(), 1);
    });
}

#[test]
fn a_submission_that_blocks_is_counted_b51() {
    on_back_ends(
        |_| true,
        |node, io| {
            open_slowly(node);
            let slow = ums::testing::scheduler(node, 0).counters.slow_submissions;
            // The synchronous back end always makes the call in the worker. (A slow host may add
            // more.)
            assert!(slow >= u64::from(io == IoChoice::Sync));
        },
    );
}
