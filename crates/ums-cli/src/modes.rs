//! The modes of a database that existed before the server started: a warning if other users can
//! read or replace it. Older versions made files that they could read.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::access::{own_user, quoted};

/// What the group and others may do with a file: read or write.
const OPEN: u32 = 0o066;
/// What they may do with a folder that lets them replace a file in it: write. They see its names,
/// and no file, if they can only read it.
const WRITABLE: u32 = 0o022;
/// The bit of a folder, such as /tmp, in which users can remove only their own files.
const STICKY: u32 = 0o1000;

/// Warns on stderr if other users can read or write the database or its log, or can replace them,
/// and prints the command that corrects it.
pub fn warn_of_open_modes(database: &Path) {
    if let Some(command) = correction(database) {
        eprintln!(
            "ums: WARNING: other users of this computer can read or write files of the database: \
             {command}"
        );
    }
}

/// Returns the command that keeps other users out; `None` if they are already. A folder that many
/// users share, or that belongs to another one, stays as it is.
fn correction(database: &Path) -> Option<String> {
    let beside = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let is_open = |path: &PathBuf| path.metadata().is_ok_and(|seen| seen.mode() & OPEN != 0);
    let lets_replace = |path: &PathBuf| {
        path.metadata().is_ok_and(|seen| {
            seen.mode() & WRITABLE != 0 && seen.mode() & STICKY == 0 && seen.uid() == own_user()
        })
    };
    let whole = std::path::absolute(database).ok();
    let folder = whole.as_deref().and_then(Path::parent).map(Path::to_owned).filter(lets_replace);
    let files = ["", "-wal", "-shm"].map(beside).into_iter().filter(is_open);
    let words: Vec<_> = files.map(|path| quoted(&path.to_string_lossy())).collect();
    let of_files = (!words.is_empty()).then(|| format!("chmod go-rwx {}", words.join(" ")));
    let of_folder = folder.map(|path| format!("chmod go-w {}", quoted(&path.to_string_lossy())));
    let commands: Vec<_> = [of_files, of_folder].into_iter().flatten().collect();
    (!commands.is_empty()).then(|| commands.join(" && "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_can_read_is_named_with_the_command_that_corrects_it() {
        let dir = std::env::temp_dir().join(format!("ums-modes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let set = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let (db, wal) = (dir.join("my db"), dir.join("my db-wal"));
        set(&dir, 0o700);
        assert_eq!(correction(&db), None, "there is no file yet");
        for path in [&db, &wal] {
            std::fs::write(path, "").unwrap();
            set(path, 0o600);
        }
        assert_eq!(correction(&db), None);
        set(&wal, 0o644);
        let wal_only = format!("chmod go-rwx '{}'", wal.display());
        assert_eq!(correction(&db), Some(wal_only));
        set(&db, 0o640);
        set(&wal, 0o600);
        let of_file = format!("chmod go-rwx '{}'", db.display());
        for mode in [0o755, 0o1777] {
            set(&dir, mode);
            assert_eq!(correction(&db), Some(of_file.clone()));
        }
        set(&dir, 0o775);
        let both = format!("{of_file} && chmod go-w {}", dir.display());
        assert_eq!(correction(&db), Some(both));
        set(&db, 0o600);
        assert_eq!(correction(&db), Some(format!("chmod go-w {}", dir.display())));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
