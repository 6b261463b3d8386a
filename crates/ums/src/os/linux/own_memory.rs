//! Reads this process's memory through the kernel, so that reading an address where nothing is
//! mapped fails and does not fault. This is for memory that other threads may change or unmap
//! meanwhile, such as the stack of a worker that does not run. Afterwards the reader must check
//! whether the memory still was what it expected.
//!
//! What this file does not do: it writes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The file `/proc/self/mem`, open for reading.
pub struct OwnMemory(File);

impl OwnMemory {
    /// Opens the file. Returns `None` if there is no `/proc`, or access to it is denied.
    pub fn open() -> Option<OwnMemory> {
        File::open("/proc/self/mem").ok().map(OwnMemory)
    }

    /// Returns the `len` bytes at this address. Returns `None` if not all of them are mapped.
    pub fn copy(&self, address: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, address as u64).ok()?;
        Some(bytes)
    }

    /// Returns the `len` bytes at this address, or fewer if the mapped memory ends before.
    pub fn copy_up_to(&self, address: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut copied = 0;
        while copied < len {
            let at = address.saturating_add(copied);
            match self.0.read_at(&mut bytes[copied..], at as u64) {
                Ok(n) if n > 0 => copied += n,
                _ => break,
            }
        }
        bytes.truncate(copied);
        bytes
    }

    /// Returns the word at this address. Returns `None` if it is not mapped.
    pub fn word(&self, address: usize) -> Option<usize> {
        let bytes = self.copy(address, size_of::<usize>())?;
        Some(usize::from_ne_bytes(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_read_and_unmapped_memory_is_no_fault() {
        let memory = OwnMemory::open().expect("there is a /proc");
        let words = std::hint::black_box([7usize, 8]);
        let at = std::ptr::from_ref(&words).expose_provenance();
        assert_eq!((memory.word(at), memory.word(at + 8)), (Some(7), Some(8)));
        assert_eq!(memory.copy(at, 16).map(|bytes| bytes[8]), Some(8));
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.copy_up_to(at, 16).len(), 16);
        assert_eq!(memory.copy_up_to(8, 16), []);
    }
}
