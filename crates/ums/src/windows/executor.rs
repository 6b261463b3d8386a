//! The executor: the part of a scheduler that its worker uses. It holds the place where the worker
//! runs, the news of how the worker's run has ended, and the context that the worker switches back
//! to.
//!
//! Each run ends with exactly one piece of news. A worker that switches back to its scheduler's
//! kernel thread stores its news in `here`. A worker on its own kernel thread, and the block watch,
//! store it in `news` and set the event. They may do so before the switch back has ended, so the
//! two ways use different fields.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::os::event::ThreadEvent;
use crate::watch::{self, Place};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    BlockedInCall = 1,
    BlockedInTrap = 2,
    Yielded = 3,
}

/// How a run ended, and the parameter of the yield if it ended by one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEnd {
    pub news: News,
    pub param: usize,
}

/// The part of a scheduler that its worker uses.
pub(super) struct Executor {
    place: OnceLock<Arc<Place>>,
    news: AtomicU32,
    /// The news of a worker that has switched back to this thread.
    here: AtomicU32,
    param: AtomicUsize,
    pub(super) event: ThreadEvent,
    /// The context that workers with their own context switch back to; null if there are no such
    /// workers.
    root: AtomicPtr<::context::Context>,
    /// The kernel thread id of the scheduler.
    pub(super) thread: i32,
    /// The signals that the scheduler's thread blocks while no signal handler of a worker runs on
    /// it.
    pub(super) host_mask: u64,
}

impl Executor {
    /// Makes the executor of the calling thread, which has no place yet.
    pub(super) fn new() -> Executor {
        Executor {
            place: OnceLock::new(),
            news: AtomicU32::new(0),
            here: AtomicU32::new(0),
            param: AtomicUsize::new(0),
            event: ThreadEvent::new(),
            root: AtomicPtr::new(ptr::null_mut()),
            thread: crate::os::thread_number() as i32,
            host_mask: watch::mask_here(),
        }
    }

    pub(super) fn set_place(&self, place: Arc<Place>) {
        let _ = self.place.set(place);
    }

    pub(super) fn place(&self) -> &Place {
        self.place.get().expect("a scheduler has a place while it is in scheduling mode")
    }

    /// Closes the place, if there is one.
    pub(super) fn close_place(&self) {
        if let Some(place) = self.place.get() {
            place.close();
        }
    }

    pub(super) fn set_root(&self, root: &::context::Context) {
        self.root.store(ptr::from_ref(root).cast_mut(), Ordering::Relaxed);
    }

    /// Returns the context that a worker in user mode switches back to.
    #[inline]
    pub(super) fn root(&self) -> *const ::context::Context {
        self.root.load(Ordering::Relaxed)
    }

    /// Records how the run of the worker on this kernel thread ended. Called by the worker just
    /// before it switches back. `None` means that the run has not ended, because the worker
    /// continues on its own kernel thread.
    #[inline]
    pub(super) fn note_here(&self, news: Option<News>, param: usize) {
        self.here.store(news.map_or(0, |news| news as u32), Ordering::Relaxed);
        self.param.store(param, Ordering::Relaxed);
    }

    /// Records that the run of a worker on its own kernel thread has ended by a yield. The event is
    /// set afterwards, when the worker is saved.
    pub(super) fn note_yield(&self, param: usize) {
        self.param.store(param, Ordering::Relaxed);
        self.news.store(News::Yielded as u32, Ordering::Release);
    }

    /// Returns the news of the worker that has just switched back.
    #[inline]
    pub(super) fn ended_here(&self) -> Option<RunEnd> {
        self.ended(self.here.load(Ordering::Relaxed))
    }

    #[inline]
    fn ended(&self, news: u32) -> Option<RunEnd> {
        let news = match news {
            1 => News::BlockedInCall,
            2 => News::BlockedInTrap,
            3 => News::Yielded,
            _ => return None,
        };
        Some(RunEnd { news, param: self.param.load(Ordering::Relaxed) })
    }

    /// Reports that the run has ended. Called by any thread.
    pub(super) fn report(&self, news: News, param: usize) {
        self.param.store(param, Ordering::Relaxed);
        let before = self.news.swap(news as u32, Ordering::AcqRel);
        debug_assert_eq!(before, 0, "a run ends once");
        self.event.set();
    }

    /// Waits until a thread other than this one reports that the run has ended.
    pub(super) fn wait_for_end(&self) -> RunEnd {
        loop {
            self.event.wait();
            if let Some(ended) = self.ended(self.news.swap(0, Ordering::AcqRel)) {
                // The worker may have left before this thread seated it; see `Context::run`.
                self.place().clear();
                return ended;
            }
        }
    }
}
