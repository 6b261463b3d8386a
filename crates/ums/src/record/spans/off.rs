//! Replaces the spans in a build without the feature `spans`: the functions are empty, and the
//! compiler removes them.

/// The spans of one worker.
pub(crate) struct WorkerSpans;

impl WorkerSpans {
    pub const fn new() -> WorkerSpans {
        WorkerSpans
    }

    #[inline(always)]
    pub fn begin_worker(&self, _kind: &'static str, _name: impl FnOnce() -> String) {}

    #[inline(always)]
    pub fn end_worker(&self) {}

    #[inline(always)]
    pub fn begin_request(&self, _request: u64, _user: u64) {}

    #[inline(always)]
    pub fn end_request(&self) {}

    #[inline(always)]
    pub fn end_code(&self) {}

    #[inline(always)]
    pub fn pause(&self) {}

    #[inline(always)]
    pub fn go_on(&self) {}

    #[inline(always)]
    pub fn paused(&self) -> PausedSpans {
        PausedSpans
    }

    #[inline(always)]
    pub fn woken(&self) {}

    #[inline(always)]
    pub fn carried(&self) -> CarriedSpans {
        CarriedSpans
    }
}

/// The time in which the spans are left.
pub(crate) struct PausedSpans;

/// The spans of a fiber's code.
pub(crate) struct CarriedSpans;

impl CarriedSpans {
    #[inline(always)]
    pub fn around<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }
}
