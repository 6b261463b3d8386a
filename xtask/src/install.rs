//! Installs the C interface: `cargo run -p xtask -- install-c --prefix DIR`.
//!
//! ```text
//!   DIR/lib/libums.so.0.1.0, libums.so.0, libums.so, libums.a
//!   DIR/lib/pkgconfig/ums.pc, ums-windows.pc
//!   DIR/include/ums.h
//!   DIR/include/ums/windows/windows.h and the headers around it
//! ```
//!
//! It builds the release profile first, unless the argument `--built` says that this was done. It
//! changes and removes no other file.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds and installs below this folder.
///
/// # Errors
/// A message that says what could not be built or written.
pub fn build_and_install(root: &Path, prefix: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--locked", "-p", "ums-capi"])
        .current_dir(root)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("the library could not be built".to_owned());
    }
    install(root, prefix)
}

/// Installs what has been built below this folder.
///
/// # Errors
/// A message that says what could not be written, or is not there.
pub fn install(root: &Path, prefix: &Path) -> Result<(), String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let built = target.join("release/libums_capi.so");
    if !built.exists() {
        return Err(format!("there is no {}: leave out --built", built.display()));
    }
    fs::create_dir_all(prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
    let prefix =
        fs::canonicalize(prefix).map_err(|error| format!("{}: {error}", prefix.display()))?;
    copy_all(root, &target.join("release"), &prefix)
        .map_err(|error| format!("installing below {}: {error}", prefix.display()))?;
    print!("{}", told(&prefix));
    Ok(())
}

/// Returns where things are, and how a program is built with them.
fn told(prefix: &Path) -> String {
    let prefix = prefix.display();
    format!(
        "header         {prefix}/include/ums.h\n\
         libraries      {prefix}/lib/libums.so, {prefix}/lib/libums.a\n\
         for pkg-config {prefix}/lib/pkgconfig/ums.pc, ums-windows.pc\n\n\
         So that pkg-config finds them:\n  \
         export PKG_CONFIG_PATH={prefix}/lib/pkgconfig\n\
         So that a program finds the shared library: link with -Wl,-rpath,{prefix}/lib, or\n\
         call ldconfig if the system looks for libraries there, as in /usr/local/lib.\n"
    )
}

fn copy_all(root: &Path, built: &Path, prefix: &Path) -> io::Result<()> {
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let (pkgconfig, windows) = (lib.join("pkgconfig"), include.join("ums/windows"));
    fs::create_dir_all(&pkgconfig)?;
    fs::create_dir_all(&windows)?;
    let shared = format!("libums.so.{VERSION}");
    put(&built.join("libums_capi.so"), &lib.join(&shared))?;
    put(&built.join("libums_capi.a"), &lib.join("libums.a"))?;
    for name in ["libums.so.0", "libums.so"] {
        let _ = fs::remove_file(lib.join(name));
        symlink(&shared, lib.join(name))?;
    }
    let headers = root.join("crates/ums-capi/include");
    put(&headers.join("ums.h"), &include.join("ums.h"))?;
    for entry in fs::read_dir(headers.join("windows"))? {
        let entry = entry?;
        put(&entry.path(), &windows.join(entry.file_name()))?;
    }
    fs::write(pkgconfig.join("ums.pc"), package(prefix, "ums", "${prefix}/include"))?;
    let windows = package(prefix, "ums-windows", "${prefix}/include/ums/windows");
    fs::write(pkgconfig.join("ums-windows.pc"), windows)
}

/// Copies to a new file, so that a program that has the old file open is not affected.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop)
}

/// What `pkg-config --static` prints in addition ends an earlier `-Wl,-Bstatic`, which is meant for
/// the library alone: glibc stays shared.
fn package(prefix: &Path, name: &str, include: &str) -> String {
    let prefix = prefix.display();
    format!(
        "prefix={prefix}\n\n\
         Name: {name}\n\
         Description: User-mode scheduling for Linux\n\
         Version: {VERSION}\n\
         Cflags: -I{include} -pthread\n\
         Libs: -L${{prefix}}/lib -lums -pthread\n\
         Libs.private: -Wl,-Bdynamic -lgcc_s -lrt -lm -ldl\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_where_things_are_and_how_to_use_them() {
        let text = told(Path::new("/opt/ums"));
        for line in [
            "header         /opt/ums/include/ums.h\n",
            "libraries      /opt/ums/lib/libums.so, /opt/ums/lib/libums.a\n",
            "for pkg-config /opt/ums/lib/pkgconfig/ums.pc, ums-windows.pc\n",
            "  export PKG_CONFIG_PATH=/opt/ums/lib/pkgconfig\n",
            "link with -Wl,-rpath,/opt/ums/lib, or\ncall ldconfig",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn the_package_file_says_where_things_are() {
        let text = package(Path::new("/opt/ums"), "ums", "${prefix}/include");
        assert!(text.starts_with("prefix=/opt/ums\n"));
        assert!(text.contains("\nCflags: -I${prefix}/include -pthread\n"));
        assert!(text.contains("\nLibs: -L${prefix}/lib -lums -pthread\n"));
        assert!(text.contains("\nLibs.private: -Wl,-Bdynamic -lgcc_s -lrt -lm -ldl\n"));
    }
}
