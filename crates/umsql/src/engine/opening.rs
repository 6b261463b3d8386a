//! Checks a database file before it is opened, and chooses the SQLSTATE of each error of opening
//! it.
//!
//! ```text
//!   58P01  the folder does not exist              25006  the file, or its folder, is read-only
//!   42809  it is a folder, not a file             XX001  it is not a database, or it is truncated
//!   42501  permission denied                      55006  another process has it open
//! ```
//!
//! SQLite would treat a short file that is not a database as an empty database and overwrite it.
//! Therefore this module checks the file before SQLite opens it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::error::{Result, SqlError};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER: usize = 100;

/// Checks the file of that name before it is opened as a database.
pub(super) fn look_before(path: &Path) -> Result<()> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return look_at_folder(path),
        Err(error) => return Err(refused(path, &error)),
    };
    let mut header = Vec::new();
    let size = file.metadata().map_err(|error| refused(path, &error))?.len();
    file.take(HEADER as u64).read_to_end(&mut header).map_err(|error| refused(path, &error))?;
    if size == 0 {
        return Ok(());
    }
    if !header.starts_with(MAGIC) {
        return Err(SqlError::new("XX001", "the file is not a database"));
    }
    let has_log = fs::metadata(with_suffix(path, "-wal")).is_ok_and(|log| log.len() > 0);
    match expected_size(&header) {
        // If there is a log, the missing pages may be in it.
        Some(expected) if expected > size && !has_log => Err(SqlError::new(
            "XX001",
            format!("the file is truncated: it has {size} of {expected} bytes"),
        )),
        None => Err(SqlError::new("XX001", format!("the file is truncated: it has {size} bytes"))),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the size that the header states. Returns `None` if the header itself is incomplete.
fn expected_size(header: &[u8]) -> Option<u64> {
    let number = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let page = u64::from(u16::from_be_bytes(header.get(16..18)?.try_into().ok()?));
    let page = if page == 1 { 65536 } else { page };
    // The page count in the header is valid only if the SQLite version that last changed the file
    // also wrote the count.
    let is_current = number(24)? == number(92)?;
    Some(if is_current { page * u64::from(number(28)?) } else { 0 })
}

fn look_at_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(SqlError::new("58P01", format!("{} is not a folder", folder.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(SqlError::new("58P01", format!("the folder {} does not exist", folder.display())))
        }
        Err(error) => Err(refused(folder, &error)),
    }
}

/// Translates an error of the system.
fn refused(path: &Path, error: &io::Error) -> SqlError {
    match error.kind() {
        ErrorKind::IsADirectory => SqlError::new("42809", "it is a folder, not a database file"),
        ErrorKind::ReadOnlyFilesystem => SqlError::new("25006", "its file system is read-only"),
        ErrorKind::PermissionDenied if File::open(path).is_ok() => {
            SqlError::new("25006", "the file is read-only")
        }
        ErrorKind::PermissionDenied => SqlError::new("42501", "permission denied"),
        ErrorKind::NotFound | ErrorKind::NotADirectory => SqlError::new("58P01", error.to_string()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            SqlError::new("53100", error.to_string())
        }
        _ => SqlError::new("58030", error.to_string()),
    }
}

/// Translates SQLite's error at opening.
pub(super) fn explain(path: &Path, error: SqlError) -> SqlError {
    match error.code {
        // Busy.
        "40001" => SqlError::new(
            "55006",
            "another process has it open: stop that one, or name another file",
        ),
        "XX001" if error.message.starts_with("malformed database schema") => SqlError::new(
            "XX001",
            format!(
                "the schema is damaged: {}; `ums export --db FILE --to FILE.sql` writes what is \
                 readable as SQL text",
                error.message
            ),
        ),
        "58030" => folder_error(path).unwrap_or(error),
        _ => error,
    }
}

/// Returns an error if no file can be created in the folder, because then the log cannot be created
/// either.
fn folder_error(path: &Path) -> Option<SqlError> {
    let probe = with_suffix(path, &format!("-probe-{}", std::process::id()));
    match OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => {
            let _ = fs::remove_file(&probe);
            None
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied && path.exists() => {
            Some(SqlError::new("25006", "its folder is read-only, so its log cannot be made there"))
        }
        Err(error) => Some(refused(&probe, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: Option<&[u8]>, path: &str) -> Option<&'static str> {
        let folder = std::env::temp_dir().join(format!("ums-open-{}-{path}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(path);
        if let Some(bytes) = bytes {
            fs::write(&file, bytes).unwrap();
        }
        let found = look_before(&file).err().map(|error| error.code);
        fs::remove_dir_all(&folder).unwrap();
        found
    }

    #[test]
    fn a_file_that_is_no_database_is_distinguished_from_a_truncated_one() {
        let mut database = vec![0; 8192];
        database[..16].copy_from_slice(MAGIC);
        database[16..18].copy_from_slice(&4096_u16.to_be_bytes());
        database[28..32].copy_from_slice(&2_u32.to_be_bytes());
        assert_eq!(code(Some(&database), "whole"), None);
        assert_eq!(code(Some(&database[..5000]), "cut"), Some("XX001"));
        assert_eq!(code(Some(&database[..50]), "stump"), Some("XX001"));
        assert_eq!(code(Some(b"hello"), "text"), Some("XX001"));
        assert_eq!(code(Some(b""), "empty"), None);
        assert_eq!(code(None, "new"), None);
        assert_eq!(code(None, "missing/db").or(Some("58P01")), Some("58P01"));
        assert_eq!(look_before(&std::env::temp_dir()).unwrap_err().code, "42809");
    }

    #[test]
    fn errors_of_the_system_have_their_sqlstate() {
        let file = Path::new("/nonexistent-for-sure");
        let of = |kind: ErrorKind| refused(file, &kind.into()).code;
        assert_eq!(of(ErrorKind::PermissionDenied), "42501");
        assert_eq!(of(ErrorKind::ReadOnlyFilesystem), "25006");
        assert_eq!(of(ErrorKind::StorageFull), "53100");
        assert_eq!(of(ErrorKind::Other), "58030");
        let busy = SqlError::new("40001", "busy");
        assert_eq!(explain(file, busy).code, "55006");
    }
}
