//! The header that is kept says what the sources say.
//!
//! cbindgen writes `ums.h` anew from the sources; a difference fails. `UMS_BLESS=1` keeps the new
//! one.

use std::path::Path;

#[test]
fn the_native_header_is_what_cbindgen_writes_from_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("its settings");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["fault", "options", "task", "node", "user", "worker", "sync", "io", "stats"] {
        builder = builder.with_src(root.join(format!("src/native/{file}.rs")));
    }
    let mut written = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut written);
    let written = String::from_utf8(written).expect("a header is text");
    let kept = root.join("include/ums.h");
    if std::env::var_os("UMS_BLESS").is_some() {
        std::fs::write(&kept, &written).expect("the header can be written");
    }
    let kept = std::fs::read_to_string(&kept).unwrap_or_default();
    let differs = kept.lines().zip(written.lines()).position(|(kept, written)| kept != written);
    assert!(
        kept == written,
        "include/ums.h differs from the sources at line {:?}: UMS_BLESS=1 cargo test -p ums-capi \
         --test header writes it anew",
        differs.map(|at| at + 1)
    );
}
