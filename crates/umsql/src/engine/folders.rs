//! The folders in which clients may name files, by ATTACH and BACKUP. Without any, they name none.
//!
//! A name is compared after all symbolic links in it have been followed, so a link in such a folder
//! leads nowhere else. Clients cannot make links, so the file that is opened is the one that was
//! checked.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, SqlError};

const ALLOW: &str = "Start the server with --file-dir FOLDER, and name a file in that folder.";

/// The folders, without symbolic links.
#[derive(Debug, Default)]
pub(crate) struct Folders(Vec<PathBuf>);

impl Folders {
    pub(super) fn new(folders: &[PathBuf]) -> Result<Folders> {
        let full = |folder: &PathBuf| match fs::canonicalize(folder) {
            Ok(full) if full.is_dir() => Ok(full),
            Ok(_) => Err(SqlError::new("42809", format!("{} is no folder", folder.display()))),
            Err(error) => {
                Err(SqlError::new("58P01", format!("the folder {}: {error}", folder.display())))
            }
        };
        Ok(Folders(folders.iter().map(full).collect::<Result<_>>()?))
    }

    /// Returns the full path of the file, which need not exist.
    ///
    /// # Errors
    /// If the file is not in one of the folders. The message does not say whether it exists.
    pub(crate) fn check(&self, name: &str) -> Result<PathBuf> {
        let allowed = |full: &PathBuf| self.0.iter().any(|folder| full.starts_with(folder));
        let is_file = |full: &PathBuf| fs::metadata(full).map_or(true, |found| found.is_file());
        full_path(Path::new(name)).filter(allowed).filter(is_file).ok_or_else(|| {
            SqlError::new("42501", format!("permission denied for the file \"{name}\"")).hint(ALLOW)
        })
    }
}

/// Returns the path without symbolic links. Its last part need not exist, but may be no link that
/// leads nowhere.
fn full_path(path: &Path) -> Option<PathBuf> {
    if fs::symlink_metadata(path).is_ok() {
        return fs::canonicalize(path).ok();
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
    Some(folder.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_name_leads_out_of_the_folders_neither_by_dots_nor_by_links() {
        let root = std::env::temp_dir().join(format!("ums-folders-{}", std::process::id()));
        let (inside, outside) = (root.join("in"), root.join("out"));
        fs::create_dir_all(inside.join("deep")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::create_dir_all(root.join("in-too")).unwrap();
        fs::write(outside.join("secret"), "").unwrap();
        symlink(outside.join("secret"), inside.join("link")).unwrap();
        symlink(outside.join("nothing"), inside.join("dangling")).unwrap();
        symlink(&outside, inside.join("folder")).unwrap();
        symlink(inside.join("deep"), outside.join("back")).unwrap();
        let folders = Folders::new(std::slice::from_ref(&inside)).unwrap();
        let may = |name: &str| folders.check(&format!("{}/{name}", root.display())).is_ok();
        for name in ["in/new", "in/deep/new", "in/../in/new", "out/back/new"] {
            assert!(may(name), "{name}");
        }
        let refused = [
            "in",
            "in/deep",
            "in/..",
            "in/link",
            "in/dangling",
            "in/folder/new",
            "in/../out/new",
            "in/deep/../../out/secret",
            "in-too/new",
            "out/secret",
            "in/missing/../../out/new",
        ];
        for name in refused {
            assert!(!may(name), "{name}");
        }
        assert_eq!(Folders::default().check("/etc/passwd").unwrap_err().code, "42501");
        assert_eq!(Folders::new(&[root.join("missing")]).unwrap_err().code, "58P01");
        fs::remove_dir_all(&root).unwrap();
    }
}
