//! The objects that the loader has mapped: the program, its libraries and the kernel's vDSO. Finds
//! what is needed to unwind through their code, and their files.
//!
//! Named invariant **Loaded**: `dl_iterate_phdr` holds the loader's lock while it calls the
//! callback with an object, so the sections of that object stay mapped during the callback, and are
//! copied there. The file of an object is mapped a second time here, and stays mapped. A program
//! whose file is changed in place breaks anyway; package managers replace files instead. **Plain
//! Call**: as in ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use framehop::{ExplicitModuleSectionInfo, Module};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

use crate::os::lock::Lock;

/// An object that is mapped.
pub(super) struct Loaded {
    /// By how much its addresses are larger than those in its file.
    pub base: usize,
    /// The addresses from its first segment to its last.
    pub addresses: Range<usize>,
    /// Its file. The vDSO has a name, but no file.
    pub path: PathBuf,
}

/// An object, while the loader's lock is held.
struct Mapped<'a> {
    base: u64,
    name: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
}

/// Returns all objects.
pub(super) fn objects() -> Vec<Loaded> {
    let mut all = Vec::new();
    for_each(&mut |mapped| all.extend(mapped.loaded()));
    all
}

/// Returns the data that is needed to unwind through the code of all objects.
pub(super) fn modules() -> Vec<Module<Vec<u8>>> {
    let mut all = Vec::new();
    for_each(&mut |mapped| all.extend(mapped.module()));
    all
}

type Each<'a> = &'a mut dyn FnMut(&Mapped<'_>);

fn for_each(mut each: Each<'_>) {
    // SAFETY: Loaded: `call` has the required signature, and is passed what it expects.
    unsafe { libc::dl_iterate_phdr(Some(call), (&raw mut each).cast()) };
}

unsafe extern "C" fn call(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    each: *mut c_void,
) -> c_int {
    // SAFETY: Loaded: the loader passes valid information, and as many headers as it says.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let name = info.dlpi_name;
    // SAFETY: Loaded: the loader's own name of the object.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    // SAFETY: Loaded: this is what `for_each` passed.
    let each = unsafe { &mut *each.cast::<Each<'_>>() };
    each(&Mapped { base: info.dlpi_addr, name, headers });
    0
}

impl Mapped<'_> {
    fn segments(&self, kind: u32) -> impl Iterator<Item = Range<u64>> + '_ {
        let all = self.headers.iter().filter(move |header| header.p_type == kind);
        all.map(|header| header.p_vaddr..header.p_vaddr + header.p_memsz)
    }

    /// Returns the addresses in the file from the first segment to the last.
    fn span(&self) -> Option<Range<u64>> {
        let low = self.segments(libc::PT_LOAD).map(|segment| segment.start).min()?;
        Some(low..self.segments(libc::PT_LOAD).map(|segment| segment.end).max()?)
    }

    fn loaded(&self) -> Option<Loaded> {
        let Range { start, end } = self.span()?;
        let addresses = (self.base + start) as usize..(self.base + end) as usize;
        let path = match self.name.to_bytes() {
            // The program, also if its file has been replaced.
            b"" => "/proc/self/exe".into(),
            name => OsStr::from_bytes(name).into(),
        };
        Some(Loaded { base: self.base as usize, addresses, path })
    }

    fn module(&self) -> Option<Module<Vec<u8>>> {
        let Range { start: low, end: high } = self.span()?;
        let index = self.segments(libc::PT_GNU_EH_FRAME).next()?;
        let header = self.bytes(index.clone());
        // The header's fifth to eighth byte hold the distance from there to the frames, in the only
        // encoding that linkers use (relative, signed, four bytes).
        let [1, 0x1b, ..] = header[..] else { return None };
        let distance = i32::from_ne_bytes(header.get(4..8)?.try_into().ok()?);
        let frames = (index.start + 4).checked_add_signed(distance.into())?;
        let end = self.segments(libc::PT_LOAD).find(|segment| segment.contains(&frames))?.end;
        let is_code = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
        };
        let text = self.headers.iter().find(is_code)?;
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: Some(text.p_vaddr..text.p_vaddr + text.p_memsz),
            eh_frame_hdr_svma: Some(index),
            eh_frame_hdr: Some(header),
            eh_frame_svma: Some(frames..end),
            eh_frame: Some(self.bytes(frames..end)),
            ..ExplicitModuleSectionInfo::default()
        };
        let addresses = self.base + low..self.base + high;
        Some(Module::new(String::new(), addresses, self.base, sections))
    }

    /// Returns a copy of a part of a segment.
    fn bytes(&self, part: Range<u64>) -> Vec<u8> {
        let at = std::ptr::with_exposed_provenance::<u8>((self.base + part.start) as usize);
        // SAFETY: Loaded: the segment is mapped, because the loader calls with this object.
        unsafe { std::slice::from_raw_parts(at, (part.end - part.start) as usize).to_vec() }
    }
}

/// The files that are mapped, by device and number.
static FILES: Lock<Vec<([u64; 2], &'static [u8])>> = Lock::new(Vec::new());

/// Returns the contents of a file: of an object, or of its debug information. A file is mapped when
/// it is first asked for, and stays mapped.
pub(super) fn contents(path: &Path) -> Option<&'static [u8]> {
    // The name of the vDSO has no folder, and would be looked for in the current one.
    path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let file = File::open(path).ok()?;
    let about = file.metadata().ok().filter(|about| about.is_file() && about.len() > 0)?;
    let name = [about.dev(), about.ino()];
    let len = usize::try_from(about.len()).ok()?;
    let mut files = FILES.lock();
    if let Some((_, known)) =
        files.iter().find(|(known, bytes)| *known == name && bytes.len() == len)
    {
        return Some(known);
    }
    // SAFETY: Plain Call: a new mapping, at an address that the system chooses.
    let at = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.ok()?;
    // SAFETY: Loaded: the mapping has this length, and is never unmapped.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    files.push((name, bytes));
    Some(bytes)
}

/// Gives the memory of a file's contents back to the system, which reads them again when they are
/// needed.
pub(super) fn forget(contents: &'static [u8]) {
    let at = contents.as_ptr().cast_mut().cast();
    // SAFETY: Loaded: `contents` is a private mapping of a file that nothing writes to.
    let _ = unsafe { madvise(at, contents.len(), Advice::LinuxDontNeed) };
}
