//! The layer that notes which spans the application's code enters and exits.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::dispatcher::WeakDispatch;
use tracing::span::Id;
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::code::{self, Collector};

/// Makes the application's `tracing` spans follow its workers, with the feature `spans`. A worker
/// that waits or yields exits the spans that its code is inside, and enters them again when it
/// runs. So code of other workers, which may be fibers of the same thread, does not run inside
/// them, and the busy time of a span is the time in which its worker ran.
///
/// A span that the code of a request has not exited, because it has forgotten the guard, is exited
/// with the request. A closure of [`go_preemptive`](crate::go_preemptive) runs inside the spans of
/// its caller, also if a hidden scheduler runs it for a fiber. Spawned tasks are not inside the
/// spans of their spawner.
///
/// The layer must see every span, so add it without a filter of its own. Other layers get an exit
/// and an entry for each switch, on schedulers' threads, in the middle of turns and in signal
/// handlers, so they must not call this crate.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// use ums::stats::SpanLayer;
///
/// let subscriber = tracing_subscriber::registry().with(SpanLayer::new()); // and other layers
/// tracing::subscriber::set_global_default(subscriber)?;
///
/// // SAFETY: the closures keep nothing of their thread over a wait.
/// let node = unsafe { ums::Node::builder().fiber_workers() }.schedulers(1).build()?;
/// node.run(|| {
///     let span = tracing::info_span!("outer").entered();
///     let other = ums::spawn(|| tracing::Span::current().metadata().map(|span| span.name()));
///     assert_ne!(other.join().unwrap(), Some("outer")); // it ran on the same thread
///     let current = tracing::Span::current();
///     assert_eq!(current.id(), span.id());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SpanLayer {
    number: u64,
    /// Where the layer's spans are entered and exited; empty until the layer has a subscriber.
    to: OnceLock<Collector>,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl SpanLayer {
    /// Makes the layer. A subscriber has one.
    pub fn new() -> SpanLayer {
        SpanLayer { number: NEXT.fetch_add(1, Ordering::Relaxed), to: OnceLock::new() }
    }

    fn to(&self) -> Option<&Collector> {
        self.to.get().or_else(|| self.find())
    }

    /// Finds the subscriber of a layer that was not told it, such as one in an `Option`.
    #[cold]
    fn find(&self) -> Option<&Collector> {
        let dispatch = tracing::dispatcher::get_default(|to| {
            let is_here = to.downcast_ref().is_some_and(|layer| std::ptr::eq(self, layer));
            is_here.then(|| to.downgrade())
        });
        dispatch.map(|dispatch| self.to.get_or_init(|| self.collector(dispatch)))
    }

    fn collector(&self, dispatch: WeakDispatch) -> Collector {
        Collector { layer: self.number, dispatch }
    }
}

impl Default for SpanLayer {
    fn default() -> SpanLayer {
        SpanLayer::new()
    }
}

impl<S: Subscriber> Layer<S> for SpanLayer {
    fn on_register_dispatch(&self, to: &Dispatch) {
        drop(self.to.set(self.collector(to.downgrade())));
    }

    fn on_enter(&self, span: &Id, _: Context<'_, S>) {
        self.to().into_iter().for_each(|to| code::note_enter(to, span));
    }

    fn on_exit(&self, span: &Id, _: Context<'_, S>) {
        self.to.get().into_iter().for_each(|to| code::note_exit(to, span));
    }
}
