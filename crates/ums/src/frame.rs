//! A frame: one function of a backtrace, as reports show it.
//!
//! Who finds frames and names them is the monitor's `unwind.rs`; this is what is left of them.

/// A function that a thread or worker is in, or was in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Its name, or its address where that has none.
    pub name: String,
    /// File and line, where they are known.
    pub place: Option<String>,
}

impl Frame {
    /// A frame with this name.
    pub(crate) fn new(name: String, place: Option<String>) -> Frame {
        Frame { name, place }
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}
