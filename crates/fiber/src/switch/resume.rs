//! Why a switch to a fiber has come back. In a file of its own, because both switches return it.

/// Why [`Fiber::resume`](crate::Fiber::resume) returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Resume {
    /// The fiber suspended itself and can be resumed.
    Suspended,
    /// The closure has returned: that of the fiber, or of one that was passed to since.
    /// [`Fiber::into_stack`](crate::Fiber::into_stack) returns the stack.
    Finished,
}
