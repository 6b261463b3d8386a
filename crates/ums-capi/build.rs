//! Gives the shared library the name (soname) under which `xtask install-c` installs it, so that a
//! program loads the version with which it was linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libums.so.0");
}
