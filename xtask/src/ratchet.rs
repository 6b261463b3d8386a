//! A ratchet: a list of what was over a limit when the limit was set, with the value of each.
//!
//! A list is a file of lines `name value`, and of comments that begin with `#`. It may only shrink:
//! an entry is a finding if its value is larger than it needs to be, or if it is no longer needed.

use std::collections::BTreeMap;

use crate::source::{Finding, Repository};

/// The entries of a list that have not been used yet.
pub struct Ratchet {
    path: &'static str,
    /// What the values count, for messages.
    unit: &'static str,
    /// The line and the value of each name.
    left: BTreeMap<String, (usize, usize)>,
}

impl Ratchet {
    /// Reads the list at this path; it is empty if there is no such file.
    pub fn read(repository: &Repository, path: &'static str, unit: &'static str) -> Ratchet {
        let text = repository.file(path).map_or("", |file| file.text.as_str());
        let entry = |(n, line): (usize, &str)| {
            let (name, value) = line.trim().rsplit_once(' ')?;
            (!name.starts_with('#')).then_some((name.to_owned(), (n + 1, value.parse().ok()?)))
        };
        Ratchet { path, unit, left: text.lines().enumerate().filter_map(entry).collect() }
    }

    /// Judges something over the limit: nothing if its entry has this value, a finding in the list
    /// if the entry is too large, and the finding `new` if there is no entry or it is too small.
    pub fn judge(&mut self, name: &str, value: usize, new: Finding) -> Option<Finding> {
        match self.left.remove(name) {
            Some((_, most)) if value == most => None,
            Some((line, most)) if value < most => {
                let message = format!(
                    "`{name}` has shrunk from {most} to {value} {}: write {value} here.",
                    self.unit
                );
                Some(Finding { path: self.path.to_owned(), line, message })
            }
            _ => Some(new),
        }
    }

    /// Returns a finding for each entry that was not used.
    pub fn unused(self) -> Vec<Finding> {
        let path = self.path;
        let finding = |(name, (line, _)): (String, (usize, usize))| Finding {
            path: path.to_owned(),
            line,
            message: format!("`{name}` is no longer over the limit: remove this line."),
        };
        self.left.into_iter().map(finding).collect()
    }
}
