//! Gives the shared library the name under which `xtask install-c` installs it, so that a program
//! that was linked with it finds the version it was linked with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libums.so.0");
}
