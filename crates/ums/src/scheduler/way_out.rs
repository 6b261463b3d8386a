//! The way by which a worker leaves its stack, once it has handed the baton on. In a file of its
//! own, because a scheduler's data names the type, too.

use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

use context::Context;
use fiber::{Fiber, Suspender};

/// How the worker that was current leaves its stack. Functions that are not inlined return a
/// [`WayOut`], in registers.
pub(super) enum Leave {
    /// It does not leave: it was chosen itself, or has the baton again; or the caller is the root
    /// loop of the host thread, which resumes the current fiber next.
    Stay,
    /// No worker can run: the caller hosts the idle loop.
    Nowhere,
    /// A fiber passes to another one, or, if there is none, to the root loop of the host thread.
    Fiber(Suspender, Option<NonNull<Fiber>>),
    /// A worker with its own context switches to another context.
    Context(*const Context, *const Context),
}

/// A [`Leave`] in two words, also as an `Option`.
#[must_use]
pub(super) struct WayOut {
    /// The suspender of a fiber, or a context's address plus 1, or one of the numbers below.
    from: NonNull<()>,
    /// A fiber or a context, or null.
    to: *const (),
}

/// In `from`: that of a context. Suspenders and contexts have even addresses.
const CONTEXT: usize = 1;
const _: () = assert!(align_of::<Context>() > CONTEXT);

/// In `from`, if the worker does not leave. They are no addresses of suspenders or contexts.
const STAY: NonNull<()> = NonNull::without_provenance(NonZeroUsize::new(2).unwrap());
const NOWHERE: NonNull<()> = NonNull::without_provenance(NonZeroUsize::new(4).unwrap());

impl WayOut {
    pub(super) const STAY: WayOut = WayOut { from: STAY, to: ptr::null() };
    pub(super) const NOWHERE: WayOut = WayOut { from: NOWHERE, to: ptr::null() };

    /// The way of a fiber.
    #[inline(always)]
    pub(super) fn of_fiber(me: Suspender, next: Option<NonNull<Fiber>>) -> WayOut {
        let to = next.map_or(ptr::null(), |next| next.as_ptr().cast_const().cast());
        WayOut { from: me.into_raw(), to }
    }

    /// The way of a worker with its own context.
    #[inline(always)]
    pub(super) fn of_context(from: NonNull<Context>, to: NonNull<Context>) -> WayOut {
        let from = from.cast().map_addr(|at| at | CONTEXT);
        WayOut { from, to: to.as_ptr().cast_const().cast() }
    }

    #[inline(always)]
    pub(super) fn get(self) -> Leave {
        let WayOut { from, to } = self;
        let at = from.addr();
        if at <= NOWHERE.addr() {
            return if at == STAY.addr() { Leave::Stay } else { Leave::Nowhere };
        }
        if at.get() & CONTEXT == 0 {
            return Leave::Fiber(Suspender::from_raw(from), NonNull::new(to.cast_mut().cast()));
        }
        let from = from.as_ptr().cast_const().map_addr(|at| at & !CONTEXT);
        Leave::Context(from.cast(), to.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_out_comes_back_from_two_words() {
        assert!(size_of::<Option<WayOut>>() == 2 * size_of::<usize>());
        assert!(matches!(WayOut::STAY.get(), Leave::Stay));
        assert!(matches!(WayOut::NOWHERE.get(), Leave::Nowhere));
        let me = NonNull::<Context>::dangling().cast();
        for next in [Some(NonNull::dangling()), None] {
            let way_out = WayOut::of_fiber(Suspender::from_raw(me), next);
            let Leave::Fiber(of, to) = way_out.get() else { panic!("a fiber's way out") };
            assert_eq!((of.into_raw(), to), (me, next));
        }
        let (from, to) = (NonNull::<Context>::dangling(), NonNull::dangling());
        let Leave::Context(left, reached) = WayOut::of_context(from, to).get() else {
            panic!("a context's way out")
        };
        assert_eq!((left, reached), (from.as_ptr().cast_const(), to.as_ptr().cast_const()));
    }
}
