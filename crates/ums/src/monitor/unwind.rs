//! Finds which functions a thread was in: from a sample to the functions' names.
//!
//! This runs on the monitor's thread and works on a copy of the sampled thread's stack. The sampled
//! thread keeps running meanwhile, so unwinding may take the loader's lock and allocate memory for
//! debug information: the sampled thread can release a lock that it holds.
//!
//! Named invariant **Loaded**: `dl_iterate_phdr` holds the loader's lock while it calls the
//! callback with an object, so the sections of that object stay mapped during the callback, and are
//! copied there. An object is not unloaded while one of its functions is being called. **Plain
//! Call**: as in ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::Path;

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module, UnwindRegsNative,
    Unwinder, UnwinderNative,
};

use crate::os::linux::own_memory::OwnMemory;
use crate::os::linux::sample::{self, Sample};
use crate::record::frame::{Frame, end_at_root, full_name};
use crate::watch::Waits;

/// Number of frames that are kept.
const FRAMES_MAX: usize = 64;

/// Finds the frames in samples. Reads the unwind information once for many samples.
pub(crate) struct Walker {
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    /// Names by address.
    names: HashMap<usize, Vec<Frame>>,
}

impl Walker {
    pub(crate) fn new() -> Walker {
        let mut unwinder = UnwinderNative::new();
        loaded_objects().into_iter().for_each(|module| unwinder.add_module(module));
        Walker { unwinder, cache: CacheNative::new(), names: HashMap::new() }
    }

    /// Returns the frames of a sample, the innermost first.
    pub(crate) fn frames(&mut self, sample: &Sample) -> Vec<Frame> {
        let addresses = self.walk(sample);
        let name = |address: usize| {
            let names = self.names.entry(address).or_insert_with(|| named(&[address]));
            names.clone()
        };
        let mut frames: Vec<_> = addresses.into_iter().flat_map(name).collect();
        end_at_root(&mut frames);
        frames
    }

    /// Returns the addresses of the frames, the innermost first.
    fn walk(&mut self, sample: &Sample) -> Vec<usize> {
        let mut read = |address| sample.word(address).ok_or(());
        let (instruction, registers) = (sample.instruction(), registers(sample));
        let mut frames =
            self.unwinder.iter_frames(instruction, registers, &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        while addresses.len() < FRAMES_MAX {
            match frames.next() {
                Ok(Some(frame)) => addresses.push(frame.address_for_lookup() as usize),
                _ => break,
            }
        }
        addresses
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // Without this call, the debug information would keep tens of megabytes of memory.
        backtrace::clear_symbol_cache();
    }
}

/// Returns the frames of a sample, the innermost first.
pub(crate) fn frames(sample: &Sample) -> Vec<Frame> {
    Walker::new().frames(sample)
}

/// Returns the frames of a thread that was seen to wait in the kernel. It does not send the thread
/// a signal, which could end a system call. If a function keeps a frame pointer, as those of the
/// standard library do, the list ends with that function, because the position of its frame is not
/// known. The caller checks afterwards that the thread still waits there.
pub(crate) fn frames_of_waiting(waits: &Waits) -> Vec<Frame> {
    let Some(memory) = OwnMemory::open() else { return Vec::new() };
    let stack = memory.copy_up_to(waits.sp as usize, sample::COPY_MAX);
    frames(&Sample::of_sleeping(waits.pc, waits.sp, stack))
}

/// Returns the frames with these return addresses, which a worker has recorded itself.
pub(super) fn frames_of(addresses: &[usize]) -> Vec<Frame> {
    let addresses: Vec<_> = addresses.iter().map(|address| address.saturating_sub(1)).collect();
    let names = named(&addresses);
    backtrace::clear_symbol_cache();
    names
}

#[cfg(target_arch = "x86_64")]
fn registers(sample: &Sample) -> UnwindRegsNative {
    use framehop::x86_64::Reg;
    let all = [
        Reg::RAX,
        Reg::RDX,
        Reg::RCX,
        Reg::RBX,
        Reg::RSI,
        Reg::RDI,
        Reg::RBP,
        Reg::RSP,
        Reg::R8,
        Reg::R9,
        Reg::R10,
        Reg::R11,
        Reg::R12,
        Reg::R13,
        Reg::R14,
        Reg::R15,
    ];
    let mut registers = UnwindRegsNative::new(sample.instruction(), sample.stack_pointer(), 0);
    for (register, value) in all.into_iter().zip(sample.regs) {
        registers.set(register, value);
    }
    registers
}

#[cfg(target_arch = "aarch64")]
fn registers(sample: &Sample) -> UnwindRegsNative {
    UnwindRegsNative::new(sample.regs[3], sample.stack_pointer(), sample.regs[2])
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

/// Returns the names of the functions at these instruction addresses. Where functions were inlined,
/// returns all of them.
fn named(addresses: &[usize]) -> Vec<Frame> {
    let mut frames = Vec::new();
    for address in addresses {
        let system = is_the_systems(*address);
        let before = frames.len();
        // `resolve` takes a return address, and looks at the byte before it. So 1 is added: the
        // byte before a function's first instruction, which may begin a loop, belongs to another
        // function.
        backtrace::resolve((*address + 1) as *mut c_void, |symbol| {
            let Some(name) = symbol.name() else { return };
            let file = symbol.filename();
            let place = file.zip(symbol.lineno());
            let place = place.map(|(file, line)| format!("{}:{line}", short(file)));
            // The format `#` leaves out the hash at the end of the name.
            let name = full_name(format!("{name:#}"), file);
            frames.push(Frame::new(name, place).in_system(system));
        });
        if frames.len() == before {
            frames.push(Frame::new(format!("{address:#x}"), None).in_system(system));
        }
    }
    frames
}

/// Returns true if the code at this address belongs to the C library, the loader or the kernel's
/// vDSO.
fn is_the_systems(address: usize) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: Plain Call: the function looks an address up and writes a local structure.
    let found = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) } != 0;
    // SAFETY: Plain Call: all zeroes are a valid value.
    let name = unsafe { info.assume_init() }.dli_fname;
    if !found || name.is_null() {
        return false;
    }
    // SAFETY: Loaded: the loader's own name of an object, which is not unloaded while one of its
    // functions runs.
    let path = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy();
    let file = path.rsplit('/').next().unwrap_or_default();
    let of = ["libc.", "libc-", "ld-", "libpthread", "libm.", "librt.", "libgcc_s", "linux-vdso"];
    of.iter().any(|start| file.starts_with(start))
}

/// Returns every loaded object, with the data that is needed to unwind through its code.
fn loaded_objects() -> Vec<Module<Vec<u8>>> {
    let mut modules: Vec<Module<Vec<u8>>> = Vec::new();
    // SAFETY: Loaded: `each` has the required signature, and is passed the vector above.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut modules).cast()) };
    modules
}

unsafe extern "C" fn each(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    modules: *mut c_void,
) -> c_int {
    // SAFETY: Loaded: the loader passes valid information, and as many headers as it says.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    // SAFETY: Loaded: this is the vector that `loaded_objects` passed.
    let modules = unsafe { &mut *modules.cast::<Vec<Module<Vec<u8>>>>() };
    // SAFETY: Loaded: the headers describe an object that is mapped.
    modules.extend(unsafe { module(info.dlpi_addr, headers) });
    0
}

/// # Safety
/// Loaded: the headers are those of an object that is mapped at `base`.
unsafe fn module(base: u64, headers: &[libc::Elf64_Phdr]) -> Option<Module<Vec<u8>>> {
    let segment = |kind| headers.iter().filter(move |h| h.p_type == kind);
    let loaded = |kind| segment(kind).map(|h| (h.p_vaddr, h.p_vaddr + h.p_memsz));
    let low = loaded(libc::PT_LOAD).map(|(low, _)| low).min()?;
    let high = loaded(libc::PT_LOAD).map(|(_, high)| high).max()?;
    let (index, index_end) = loaded(libc::PT_GNU_EH_FRAME).next()?;
    // SAFETY: Loaded: the segment is mapped.
    let bytes = |from: u64, to: u64| unsafe {
        let at = std::ptr::with_exposed_provenance::<u8>((base + from) as usize);
        std::slice::from_raw_parts(at, (to - from) as usize).to_vec()
    };
    let header = bytes(index, index_end);
    // The header's fifth to eighth byte hold the distance from there to the frames, in the only
    // encoding that linkers use (relative, signed, four bytes).
    let [1, 0x1b, ..] = header[..] else { return None };
    let distance = i32::from_ne_bytes(header.get(4..8)?.try_into().ok()?);
    let frames = (index + 4).checked_add_signed(distance.into())?;
    let frames_end = loaded(libc::PT_LOAD).find(|(l, h)| (*l..*h).contains(&frames))?.1;
    let text = segment(libc::PT_LOAD).find(|h| h.p_flags & libc::PF_X != 0)?;
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: Some(text.p_vaddr..text.p_vaddr + text.p_memsz),
        eh_frame_hdr_svma: Some(index..index_end),
        eh_frame_hdr: Some(header),
        eh_frame_svma: Some(frames..frames_end),
        eh_frame: Some(bytes(frames, frames_end)),
        ..ExplicitModuleSectionInfo::default()
    };
    Some(Module::new(String::new(), base + low..base + high, base, sections))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::linux::sample;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    #[test]
    fn a_file_is_named_shortly_and_a_module_with_its_folder() {
        assert_eq!(short(Path::new("/a/src/park.rs")), "park.rs");
        assert_eq!(short(Path::new("/a/src/wait/mod.rs")), "wait/mod.rs");
        assert_eq!(short(Path::new("mod.rs")), "mod.rs");
    }

    #[test]
    fn the_first_instruction_of_a_function_is_its_own() {
        let first = named as fn(&[usize]) -> Vec<Frame> as usize;
        let frames = named(&[first]);
        assert!(
            frames.last().is_some_and(|frame| frame.name.ends_with("unwind::named")),
            "{frames:?}"
        );
    }

    static STOP: AtomicBool = AtomicBool::new(false);

    #[inline(never)]
    fn guilty_function(told: &AtomicU32) -> u64 {
        told.store(crate::os::thread_number(), Ordering::SeqCst);
        let mut turns = 0;
        while !STOP.load(Ordering::Relaxed) {
            turns += 1;
        }
        turns
    }

    #[inline(never)]
    fn its_caller(told: &AtomicU32) -> u64 {
        std::hint::black_box(guilty_function(told)) + 1
    }

    #[test]
    fn the_functions_of_a_thread_that_computes_are_named_b40() {
        let number = AtomicU32::new(0);
        let frames = std::thread::scope(|scope| {
            scope.spawn(|| {
                sample::this_thread_is_on(fiber::StackRange::of_this_thread());
                its_caller(&number);
            });
            while number.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let sample = sample::take(number.load(Ordering::SeqCst));
            STOP.store(true, Ordering::SeqCst);
            frames(&sample.expect("it can answer"))
        });
        let at = |name: &str| frames.iter().position(|frame| frame.name.contains(name));
        let guilty = at("guilty_function").unwrap_or_else(|| panic!("{frames:#?}"));
        let caller = at("its_caller").unwrap_or_else(|| panic!("{frames:#?}"));
        assert!(guilty < caller, "{frames:#?}");
    }

    #[inline(never)]
    fn guilty_sleeper(told: &AtomicU32) {
        told.store(crate::os::thread_number(), Ordering::SeqCst);
        while !STOP_SLEEPING.load(Ordering::Relaxed) {
            // SAFETY: Plain Call: no descriptors.
            std::hint::black_box(unsafe { libc::poll(std::ptr::null_mut(), 0, 500) });
        }
    }

    static STOP_SLEEPING: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_functions_of_a_thread_that_sleeps_in_the_kernel_are_named_without_waking_it_b40() {
        use crate::watch::state;
        let number = AtomicU32::new(0);
        let frames = std::thread::scope(|scope| {
            scope.spawn(|| guilty_sleeper(&number));
            let sleeps = |waits: &Waits| waits.call.is_some_and(|call| call != libc::SYS_futex);
            let waits = loop {
                let number = number.load(Ordering::SeqCst) as i32;
                if let Some(waits) = state::look_at(number).filter(sleeps) {
                    break waits;
                }
                std::thread::yield_now();
            };
            let frames = frames_of_waiting(&waits);
            STOP_SLEEPING.store(true, Ordering::Relaxed);
            frames
        });
        let is_there = |name: &str| frames.iter().any(|frame| frame.name.contains(name));
        assert!(is_there("guilty_sleeper"), "{frames:#?}");
    }

    #[test]
    fn what_a_worker_recorded_of_itself_is_named_b40() {
        let mut addresses = Vec::new();
        backtrace::trace(|frame| {
            addresses.push(frame.ip() as usize);
            true
        });
        let frames = frames_of(&addresses);
        let name = "what_a_worker_recorded_of_itself_is_named_b40";
        assert!(frames.iter().any(|frame| frame.name.contains(name)), "{frames:#?}");
    }
}
