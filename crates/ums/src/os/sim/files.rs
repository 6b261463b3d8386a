//! Operations on files, for `ums::fs`. In a simulated world, its [disk](super::disk) notes what
//! they change.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::disk::{Disk, Known, Name, Recent, content, file_at};
use super::place;

/// Calls `deed`, an operation on a file. In a simulated world, `before` and `after` note in its
/// disk what the operation changes, and while there is no power the operation fails.
fn with_disk<B, R>(
    before: impl FnOnce(&mut Disk) -> io::Result<B>,
    deed: impl FnOnce() -> io::Result<R>,
    after: impl FnOnce(&mut Disk, B),
) -> io::Result<R> {
    let Some((world, _)) = place() else { return deed() };
    let seen = {
        let disk = &mut world.lock().disk;
        if disk.off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        before(disk)?
    };
    let result = deed()?;
    after(&mut world.lock().disk, seen);
    Ok(result)
}

/// Opens a file. This may create or truncate it.
pub fn open<R>(path: &Path, open: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let path = std::path::absolute(path)?;
    let before = |_: &mut Disk| {
        let file = file_at(&path);
        let lasting = file.as_ref().map(content).transpose()?;
        Ok(file.zip(lasting))
    };
    let was_there = std::fs::symlink_metadata(&path).is_ok();
    with_disk(before, open, |disk, before| match before {
        Some((file, lasting)) => {
            if let Ok(about) = file.metadata()
                && about.len() < lasting.len() as u64
            {
                let known = Known { file, lasting };
                disk.files.entry((about.dev(), about.ino())).or_insert(known);
            }
        }
        None if was_there => {}
        None => disk.names.push(Recent::new(Name::Made(path.clone()))),
    })
}

/// Writes a file as a whole.
pub fn overwrite(path: &Path, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let Some((world, _)) = place() else { return write() };
    let lasting = file_at(path).as_ref().map(content).transpose()?.unwrap_or_default();
    open(path, write)?;
    if let Some(file) = file_at(path) {
        let (about, known) = (file.metadata()?, Known { file, lasting });
        world.lock().disk.files.entry((about.dev(), about.ino())).or_insert(known);
    }
    Ok(())
}

/// Removes a file's name.
pub fn remove(path: &Path, remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    with_disk(
        |_| Ok(file_at(&path)),
        remove,
        |disk, file| {
            let removed = file.map(|file| Recent::new(Name::Removed(path.clone(), file)));
            disk.names.extend(removed);
        },
    )
}

/// Gives a file another name.
pub fn rename(from: &Path, to: &Path, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (from, to) = (std::path::absolute(from)?, std::path::absolute(to)?);
    with_disk(
        |_| Ok(file_at(&to)),
        rename,
        |disk, instead_of| {
            disk.names.push(Recent::new(Name::Changed { from, to: to.clone(), instead_of }));
        },
    )
}

/// Changes the length of an open file.
pub fn resize(fd: RawFd, resize: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let keep = |disk: &mut Disk| {
        disk.keep(fd);
        Ok(())
    };
    with_disk(keep, resize, |_, ()| ())
}

/// Syncs a folder.
pub fn sync_folder(path: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    with_disk(|_| Ok(()), sync, |disk, ()| disk.synced(&path))
}
