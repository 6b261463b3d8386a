//! The file `ums.h` agrees with the sources.
//!
//! cbindgen generates `ums.h` from the sources, and the test fails if the file differs. With
//! `UMS_BLESS=1` the test replaces the file. cbindgen reads a copy of the sources in which pointer
//! types such as `Out<T>` are replaced by the plain pointers that C passes.

use std::path::Path;

/// Types of parameters in the sources, and the C types that replace them.
const PLAIN: [(&str, &str); 12] = [
    ("OutArray<", "*mut "),
    ("Length<'a>", "usize"),
    ("Out<", "*mut "),
    ("Record<", "*const "),
    ("ConstHandle<", "*const "),
    ("Handle<", "*mut "),
    ("Text<'_>", "*const c_char"),
    ("GivenText", "*mut c_char"),
    ("Argument", "*mut c_void"),
    ("Descriptor", "c_int"),
    ("'_, ", ""),
    ("'a, ", ""),
];

/// Returns the sources with plain pointers.
fn plain(sources: &str) -> String {
    let is_import = |line: &&str| line.starts_with("use ") && line.ends_with(';');
    let mut text = sources.lines().filter(|line| !is_import(line)).collect::<Vec<_>>().join("\n");
    // The lifetime that an array and its length have in common.
    text = text.replace("<'a>(", "(");
    for (ours, cs) in PLAIN {
        let mut from = 0;
        while let Some(at) = text[from..].find(ours).map(|at| from + at) {
            from = at + cs.len();
            let is_word = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if is_word || text[at + ours.len()..].starts_with("::") {
                from = at + ours.len();
                continue;
            }
            if ours.ends_with('<') {
                let end = closing(&text[at + ours.len()..]) + at + ours.len();
                text.replace_range(end..=end, "");
            }
            text.replace_range(at..at + ours.len(), cs);
        }
    }
    text
}

/// Returns the position of the `>` that closes a `<` in front of this text.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '<') - i32::from(c == '>' && !text[..at].ends_with('-'));
        if depth == 0 {
            return at;
        }
    }
    panic!("a `<` is not closed: {text:.60}")
}

#[test]
fn the_native_header_is_what_cbindgen_writes_from_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("its settings");
    let mut builder = cbindgen::Builder::new().with_config(config);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let files = [
        "fault", "options", "monitor", "task", "node", "group", "user", "worker", "sync",
        "channel", "io", "select", "serve", "stats",
    ];
    for file in files {
        let sources = std::fs::read_to_string(root.join(format!("src/native/{file}.rs")));
        let copy = folder.join(format!("{file}.rs"));
        std::fs::write(&copy, plain(&sources.expect("the sources"))).expect("a copy of them");
        builder = builder.with_src(copy);
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
