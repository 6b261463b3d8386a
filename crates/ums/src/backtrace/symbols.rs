//! The names of functions: from an address to the functions whose code is there, with source file
//! and line.
//!
//! | what the object has | what is known of a function |
//! |---|---|
//! | debug information | name, file and line, also of the functions that were inlined |
//! | a table of symbols | name |
//! | neither (it was stripped) | names that it exports |
//!
//! Debug information may be in a file of its own, which is found as debuggers find it: by the
//! build's number, or by the name that the object gives. An object's file is read when one of its
//! addresses is first asked for.
//!
//! What this file does not do: it reads no compressed sections, and no debug information that was
//! left in object files (`split-debuginfo`). Then the table of symbols is used.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, NativeEndian};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::loaded::{self, Loaded};
use crate::record::frame::{Frame, full_name};

type Elf = ElfFile64<'static>;
type Bytes = EndianSlice<'static, NativeEndian>;

/// Where distributions keep debug information.
const SEPARATE: &str = "/usr/lib/debug";

/// The functions of all loaded objects.
pub(super) struct Symbols(Vec<(Loaded, OnceCell<Functions>)>);

impl Symbols {
    pub fn new() -> Symbols {
        Symbols(loaded::objects().into_iter().map(|object| (object, OnceCell::new())).collect())
    }

    /// Returns the frames of the functions at the address of an instruction: if functions were
    /// inlined, all of them, the innermost first. If there is no name, the frame has the address.
    pub fn named(&self, address: usize) -> Vec<Frame> {
        let of = self.0.iter().find(|(object, _)| object.addresses.contains(&address));
        let system = of.is_some_and(|(object, _)| is_the_systems(&object.path));
        let mut frames = of.map_or(Vec::new(), |(object, functions)| {
            let functions = functions.get_or_init(|| Functions::read(&object.path));
            functions.at(address.wrapping_sub(object.base) as u64)
        });
        if frames.is_empty() {
            frames.push(Frame::new(format!("{address:#x}"), None));
        }
        frames.into_iter().map(|frame| frame.in_system(system)).collect()
    }
}

/// The functions of one object.
struct Functions {
    debug: Option<Context<Bytes>>,
    /// By their addresses in the file.
    table: Vec<Symbol>,
    /// The files that were read.
    files: Vec<&'static [u8]>,
}

struct Symbol {
    from: u64,
    to: u64,
    name: &'static [u8],
}

impl Drop for Functions {
    /// Otherwise the debug information would keep tens of megabytes of memory.
    fn drop(&mut self) {
        self.files.iter().for_each(|file| loaded::forget(file));
    }
}

impl Functions {
    fn read(path: &Path) -> Functions {
        let mut all = Functions { debug: None, table: Vec::new(), files: Vec::new() };
        let Some((elf, contents)) = read(path) else { return all };
        all.files.push(contents);
        all.debug = debug(&elf);
        all.table = table(elf.symbols());
        if all.debug.is_none()
            && let Some((apart, contents)) = separate(&elf, path)
        {
            all.files.push(contents);
            all.debug = debug(&apart);
            if all.table.is_empty() {
                all.table = table(apart.symbols());
            }
        }
        if all.table.is_empty() {
            all.table = table(elf.dynamic_symbols());
        }
        all
    }

    /// Returns the frames of the functions at an address of the file.
    fn at(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        let found = self.debug.as_ref().map(|debug| debug.find_frames(address).skip_all_loads());
        if let Some(Ok(mut found)) = found {
            while let Ok(Some(frame)) = found.next() {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                let Some(name) = name else { continue };
                let file =
                    frame.location.as_ref().and_then(|location| location.file).map(Path::new);
                let place = file.zip(frame.location.as_ref().and_then(|location| location.line));
                let place = place.map(|(file, line)| format!("{}:{line}", short(file)));
                frames.push(Frame::new(full_name(demangled(&name), file), place));
            }
        }
        if frames.is_empty() {
            let after = self.table.partition_point(|symbol| symbol.from <= address);
            let before = after.checked_sub(1).map(|at| &self.table[at]);
            frames.extend(before.filter(|symbol| address < symbol.to).map(Symbol::frame));
        }
        frames
    }
}

impl Symbol {
    fn frame(&self) -> Frame {
        Frame::new(full_name(demangled(&String::from_utf8_lossy(self.name)), None), None)
    }
}

/// Returns a name as it is in the source, without the hash at its end.
fn demangled(name: &str) -> String {
    rustc_demangle::try_demangle(name).map_or_else(|_| name.to_owned(), |name| format!("{name:#}"))
}

fn read(path: &Path) -> Option<(Elf, &'static [u8])> {
    let contents = loaded::contents(path)?;
    Some((Elf::parse(contents).ok()?, contents))
}

/// Returns the debug information, if the file has any.
fn debug(elf: &Elf) -> Option<Context<Bytes>> {
    let section = |name: &str| {
        let data = elf.section_by_name(name)?.uncompressed_data().ok()?;
        if let Cow::Borrowed(data) = data { Some(data) } else { None }
    };
    let load = |id: addr2line::gimli::SectionId| {
        Ok::<_, addr2line::gimli::Error>(Bytes::new(
            section(id.name()).unwrap_or(&[]),
            NativeEndian,
        ))
    };
    section(".debug_info")?;
    Context::from_dwarf(Dwarf::load(load).ok()?).ok()
}

/// Returns the functions among these symbols, in the order of their addresses.
fn table<'a>(symbols: impl Iterator<Item = impl ObjectSymbol<'static>> + 'a) -> Vec<Symbol> {
    let functions =
        symbols.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    let mut table: Vec<_> = functions
        .filter_map(|symbol| {
            let (from, name) = (symbol.address(), symbol.name_bytes().ok()?);
            Some(Symbol { from, to: from.saturating_add(symbol.size().max(1)), name })
        })
        .collect();
    table.sort_by_key(|symbol| symbol.from);
    table
}

/// Returns the file that has the debug information of this object.
fn separate(elf: &Elf, path: &Path) -> Option<(Elf, &'static [u8])> {
    let build = elf.build_id().ok().flatten();
    let is_of_this_build = |(apart, _): &(Elf, _)| apart.build_id().ok().flatten() == build;
    let names = by_build(build).into_iter().chain(by_link(elf, path));
    names.filter_map(|name| read(&name)).find(is_of_this_build)
}

fn by_build(build: Option<&[u8]>) -> Option<PathBuf> {
    let (first, rest) = build?.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{SEPARATE}/.build-id/{first:02x}/{rest}.debug").into())
}

fn by_link(elf: &Elf, path: &Path) -> Vec<PathBuf> {
    let Ok(Some((name, _))) = elf.gnu_debuglink() else { return Vec::new() };
    let name = OsStr::from_bytes(name);
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(folder) = path.parent() else { return Vec::new() };
    let below = Path::new(SEPARATE).join(folder.strip_prefix("/").unwrap_or(folder));
    [folder.to_owned(), folder.join(".debug"), below].map(|folder| folder.join(name)).to_vec()
}

/// Returns whether an object is the C library, the loader or the kernel's vDSO.
fn is_the_systems(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of = ["libc.", "libc-", "ld-", "libpthread", "libm.", "librt.", "libgcc_s", "linux-vdso"];
    of.iter().any(|start| name.starts_with(start))
}

/// Returns the name of a source file. A `mod.rs` is returned with its folder, because there are
/// many.
fn short(file: &Path) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    match file.parent().and_then(Path::file_name) {
        Some(folder) if name == "mod.rs" => format!("{}/{name}", folder.to_string_lossy()),
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_shortly_and_a_module_with_its_folder() {
        assert_eq!(short(Path::new("/a/src/park.rs")), "park.rs");
        assert_eq!(short(Path::new("/a/src/wait/mod.rs")), "wait/mod.rs");
        assert_eq!(short(Path::new("mod.rs")), "mod.rs");
    }

    #[test]
    fn the_first_instruction_of_a_function_is_its_own() {
        let first = demangled as fn(&str) -> String as usize;
        let frames = Symbols::new().named(first);
        assert!(
            frames.last().is_some_and(|frame| frame.name.ends_with("symbols::demangled")),
            "{frames:?}"
        );
    }

    #[inline(never)]
    fn known() -> usize {
        std::hint::black_box(known as *const () as usize)
    }

    /// Returns the frames of `known` that are found in this file, a copy of the test program.
    fn of_known(file: &Path) -> Vec<Frame> {
        let all = loaded::objects();
        let own = all.iter().find(|object| object.addresses.contains(&known())).unwrap();
        Functions::read(file).at((known() - own.base) as u64)
    }

    #[test]
    fn debug_information_in_a_file_of_its_own_is_found_by_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let objcopy = |arguments: &[&str]| {
            let mut command = std::process::Command::new("objcopy");
            command.args(arguments).current_dir(folder.path()).status()
        };
        std::fs::copy("/proc/self/exe", folder.path().join("whole")).unwrap();
        match objcopy(&["--only-keep-debug", "whole", "apart.debug"]) {
            Err(error) => return crate::testing::skipped("objcopy", error),
            Ok(status) => assert!(status.success()),
        }
        assert!(objcopy(&["--strip-all", "whole", "bare"]).unwrap().success());
        let link = ["--strip-all", "--add-gnu-debuglink=apart.debug", "whole", "linked"];
        assert!(objcopy(&link).unwrap().success());
        let found = |name: &str| of_known(&folder.path().join(name));
        let whole = found("whole");
        assert!(whole.last().unwrap().name.ends_with("symbols::tests::known"), "{whole:?}");
        assert!(whole.last().unwrap().place.as_ref().unwrap().starts_with("symbols.rs:"));
        assert_eq!(found("linked"), whole);
        assert_eq!(found("bare"), [], "a stripped program has no names");
        // As after an update: the link leads to the file of another build.
        std::fs::copy("/bin/sh", folder.path().join("apart.debug")).unwrap();
        assert_eq!(found("linked"), []);
        assert_eq!(found("none"), []);
        assert!(loaded::contents(Path::new("Cargo.toml")).is_none(), "as the vDSO's name");
        assert!(loaded::contents(Path::new("./Cargo.toml")).is_some());
    }

    #[test]
    fn without_debug_information_a_name_comes_from_the_table_of_symbols() {
        let folder = tempfile::tempdir().unwrap();
        let bare = folder.path().join("bare");
        let mut strip = std::process::Command::new("objcopy");
        strip.arg("--strip-debug").arg(std::env::current_exe().unwrap()).arg(&bare);
        match strip.status() {
            Err(error) => return crate::testing::skipped("objcopy", error),
            Ok(status) => assert!(status.success()),
        }
        let found = of_known(&bare);
        let [frame] = &found[..] else { panic!("{found:?}") };
        assert!(frame.name.ends_with("symbols::tests::known"), "{found:?}");
        assert_eq!(frame.place, None);
    }
}
