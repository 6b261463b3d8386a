//! A disk in memory that loses unsynced writes when its power fails. For tests of durability.
//!
//! For every file the disk keeps a durable image, and a list of the writes and truncations since
//! its last sync. Created and removed names become durable when their folder is synced. After a
//! number of operations the *power goes off*: from then on every operation fails, so no commit can
//! be acknowledged. [`LossyDisk::after_loss`] returns the disk after a restart. Everything unsynced
//! is gone, or a random part of it has survived, whole or torn at sectors of 512 bytes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, DiskFile, How};
use ums::lock::Lock;

const SECTOR: usize = 512;

/// A small random sequence (xorshift), the same for the same seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// The disk.
#[derive(Debug, Default, Clone)]
pub(crate) struct LossyDisk {
    state: Arc<Lock<State>>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<u64, Content>,
    names: BTreeMap<PathBuf, u64>,
    /// The durable names.
    lasting: BTreeMap<PathBuf, u64>,
    /// The changes of names that are not durable yet. None for the file means that the name was
    /// removed.
    renamed: Vec<(PathBuf, Option<u64>)>,
    next: u64,
    /// The number of operations until the power goes off.
    left: Option<u64>,
    off: bool,
    faults: Faults,
}

/// The faults that a test injects.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    /// Syncs of the log report success and do nothing.
    pub(crate) log_sync_does_nothing: bool,
    /// Syncs fail.
    pub(crate) sync_fails: bool,
    /// The disk's capacity, in bytes.
    pub(crate) room: Option<u64>,
    /// Opening for writing fails with this error.
    pub(crate) open_fails: Option<io::ErrorKind>,
}

#[derive(Debug, Default, Clone)]
struct Content {
    now: Vec<u8>,
    lasting: Vec<u8>,
    /// The changes since the last sync, each with its number, counted since the file was created.
    since: Vec<(u64, Change)>,
    changes: u64,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, bytes) => {
            let end = at + bytes.len();
            if image.len() < end {
                image.resize(end, 0);
            }
            image[*at..end].copy_from_slice(bytes);
        }
        Change::Size(size) => image.resize(*size, 0),
    }
}

/// Applies a random part of a write's sectors.
fn tear(image: &mut Vec<u8>, change: &Change, dice: &mut Dice) {
    let Change::Write(at, bytes) = change else { return apply(image, change) };
    let mut from = 0;
    while from < bytes.len() {
        let to = (((at + from) / SECTOR + 1) * SECTOR - at).min(bytes.len());
        if dice.roll(2) == 0 {
            apply(image, &Change::Write(at + from, bytes[from..to].to_vec()));
        }
        from = to;
    }
}

impl LossyDisk {
    /// Returns how often the file with this name was written or truncated.
    pub(crate) fn changes(&self, path: &str) -> u64 {
        let state = self.state.lock();
        state.names.get(Path::new(path)).map_or(0, |id| state.files[id].changes)
    }

    /// Makes the power go off after this many operations.
    pub(crate) fn power_off_after(&self, operations: u64) {
        self.state.lock().left = Some(operations);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.state.lock().off
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Returns whether a file with this name exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.state.lock().names.contains_key(Path::new(path))
    }

    /// Returns the sum of the sizes of all files, those without a name among them.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().files.values().map(|content| content.now.len()).sum()
    }

    /// Removes a name, as another process would, without telling any connection.
    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().names.remove(Path::new(path));
    }

    /// Returns the disk after the power loss. `dice` chooses the unsynced changes that survive.
    /// Without `dice` none survives.
    pub(crate) fn after_loss(&self, mut dice: Option<Dice>) -> LossyDisk {
        let state = self.state.lock();
        let mut names = state.lasting.clone();
        for (path, file) in &state.renamed {
            if dice.as_mut().is_some_and(|dice| dice.roll(2) == 0) {
                match file {
                    Some(file) => drop(names.insert(path.clone(), *file)),
                    None => drop(names.remove(path)),
                }
            }
        }
        let mut files = HashMap::new();
        for (id, content) in &state.files {
            let mut image = content.lasting.clone();
            for (_, change) in &content.since {
                let Some(dice) = &mut dice else { break };
                match dice.roll(4) {
                    0 | 1 => apply(&mut image, change),
                    2 => tear(&mut image, change, dice),
                    _ => (),
                }
            }
            let content = Content { now: image.clone(), lasting: image, ..Content::default() };
            files.insert(*id, content);
        }
        let (lasting, next) = (names.clone(), state.next);
        let found = State { files, names, lasting, next, ..State::default() };
        LossyDisk { state: Arc::new(Lock::new(found)) }
    }
}

impl State {
    /// Counts one operation that changes the disk.
    fn tick(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.left {
            self.off |= *left == 0;
            *left = left.saturating_sub(1);
        }
        self.power()
    }

    fn power(&self) -> io::Result<()> {
        if self.off { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn make(&mut self, path: &Path) -> u64 {
        self.next += 1;
        let id = self.next;
        self.files.insert(id, Content::default());
        self.names.insert(path.to_owned(), id);
        self.renamed.push((path.to_owned(), Some(id)));
        id
    }

    fn file(&mut self, id: u64) -> &mut Content {
        self.files.get_mut(&id).expect("files are never removed from the map")
    }

    fn change(&mut self, id: u64, change: Change) -> io::Result<()> {
        self.tick()?;
        if let (Some(room), Change::Write(at, bytes)) = (self.faults.room, &change) {
            let used: usize = self.names.values().map(|id| self.files[id].now.len()).sum();
            let grows = (at + bytes.len()).saturating_sub(self.files[&id].now.len());
            if (used + grows) as u64 > room && grows > 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let content = self.file(id);
        apply(&mut content.now, &change);
        content.since.push((content.changes, change));
        content.changes += 1;
        Ok(())
    }
}

struct LossyFile {
    disk: LossyDisk,
    id: u64,
    log: bool,
}

impl Disk for LossyDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.power()?;
        if let Some(kind) = state.faults.open_fails.filter(|_| !how.read_only) {
            return Err(kind.into());
        }
        let id = match state.names.get(path) {
            Some(_) if how.new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(id) => *id,
            None if !how.create || how.read_only => return Err(io::ErrorKind::NotFound.into()),
            None => {
                state.tick()?;
                state.make(path)
            }
        };
        Ok(Box::new(LossyFile { disk: self.clone(), id, log: how.log }))
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.tick()?;
        state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        state.renamed.push((path.to_owned(), None));
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.tick()?;
        for (path, file) in std::mem::take(&mut state.renamed) {
            match file {
                Some(file) => drop(state.lasting.insert(path, file)),
                None => drop(state.lasting.remove(&path)),
            }
        }
        Ok(())
    }

    fn size_of(&self, path: &Path) -> io::Result<Option<u64>> {
        let state = self.state.lock();
        state.power()?;
        Ok(state.names.get(path).map(|id| state.files[id].now.len() as u64))
    }

    fn full_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }
}

impl DiskFile for LossyFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut state = self.disk.state.lock();
        state.power()?;
        let now = &state.file(self.id).now;
        let rest = now.get(at as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.disk.state.lock().change(self.id, Change::Write(at as usize, buf.to_vec()))
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.disk.state.lock().change(self.id, Change::Size(size as usize))
    }

    /// Makes everything durable that was written before the call. Writes during the call may not be
    /// covered.
    fn sync(&self) -> io::Result<()> {
        let covered = {
            let mut state = self.disk.state.lock();
            state.tick()?;
            state.file(self.id).changes
        };
        for _ in 0..3 {
            let _ = crate::host::sleep(std::time::Duration::ZERO);
        }
        let mut state = self.disk.state.lock();
        state.power()?;
        if state.faults.sync_fails {
            return Err(io::Error::other("the disk is broken"));
        }
        if self.log && state.faults.log_sync_does_nothing {
            return Ok(());
        }
        let content = state.file(self.id);
        let (lasts, later) = std::mem::take(&mut content.since)
            .into_iter()
            .partition(|(number, _)| *number < covered);
        content.since = later;
        let lasts: Vec<(u64, Change)> = lasts;
        for (_, change) in &lasts {
            apply(&mut content.lasting, change);
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let mut state = self.disk.state.lock();
        state.power()?;
        Ok(state.file(self.id).now.len() as u64)
    }

    fn links(&self) -> io::Result<u64> {
        Ok(u64::from(self.disk.state.lock().names.values().any(|id| *id == self.id)))
    }

    /// Returns true, so that the tests cover the pool of pages too.
    fn is_direct(&self) -> bool {
        true
    }

    fn lock_out(&self) -> io::Result<bool> {
        Ok(true)
    }
}
