//! The macro `select!`: a select whose arms are written in place, with their code.
//!
//! ```text
//!   select! { a = x => A, b = y => B }
//!
//!   let happened = Select::new().on(x, |a| First(a)).on(y, |b| Rest(First(b))).wait();
//!   match happened {
//!       First(a) => A,
//!       Rest(First(b)) => B,
//!   }
//! ```
//!
//! The closures only say which arm has happened, so the code of an arm runs when the select is
//! gone: it may use what the other arms have borrowed, and `return`, `break` and `?`.

/// What an arm of `select!` has got, or what one of the arms after it has.
#[doc(hidden)]
#[derive(Debug)]
pub enum Happened<A, B> {
    First(A),
    Rest(B),
}

/// Waits for several things at once, and runs the code of the first that is ready. Its value is
/// that of the code, in a `Result`: the error is the [`WaitError`](crate::WaitError) of
/// [`Select::wait`](crate::sync::Select::wait), with which this does the same.
/// [`Waitable`](crate::sync::Waitable) lists what can be waited for.
///
/// Each arm is written `pattern = what => code`, with a comma between two arms. The pattern must
/// match every result. The word `biased;` at the beginning prefers the arm that stands first if
/// several are ready.
///
/// ```
/// use std::time::Duration;
/// use ums::sync::{channel::unbounded, select};
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum = node.run(|| {
///     let (tx, numbers) = unbounded::<u32>();
///     let mut task = ums::spawn(move || (1..=3).for_each(|n| tx.send(n).unwrap()));
///     let mut sum = 0;
///     loop {
///         select! {
///             number = &numbers => match number {
///                 Ok(number) => sum += number,
///                 Err(_) => break,
///             },
///             _ = Duration::from_secs(10) => return Err(ums::WaitError::TimedOut),
///         }?;
///     }
///     select! { biased; ended = &mut task => ended.unwrap() }?;
///     Ok(sum)
/// });
/// assert_eq!(sum, Ok(6));
/// # Ok::<(), ums::BuildError>(())
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    (biased; $($arms:tt)+) => {
        $crate::__select_arms!(($crate::sync::Select::new().biased()) [] [] $($arms)+)
    };
    ($($arms:tt)+) => {
        $crate::__select_arms!(($crate::sync::Select::new()) [] [] $($arms)+)
    };
}

pub use __select as select;

/// Takes one arm after the other: `(select so far) [a Rest for each] [their patterns and code]`.
#[doc(hidden)]
#[macro_export]
macro_rules! __select_arms {
    (($select:expr) [$($rest:ident)*] [$($done:tt)*]
        $pattern:pat = $waitable:expr => $code:expr $(, $($more:tt)*)?) => {
        $crate::__select_arms!(
            ($select.on($waitable, |got| $crate::__select_happened!([$($rest)*] got)))
            [$($rest)* Rest]
            [$($done)* { $pattern => $code }]
            $($($more)*)?
        )
    };
    (($select:expr) [$($rest:ident)*] [$($done:tt)*]) => {
        {
            let happened = $select.wait();
            match happened {
                ::std::result::Result::Ok(happened) => {
                    ::std::result::Result::Ok($crate::__select_match!(happened $($done)*))
                }
                ::std::result::Result::Err(error) => ::std::result::Result::Err(error),
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __select_happened {
    ([] $got:ident) => {
        $crate::sync::Happened::First($got)
    };
    ([$first:ident $($rest:ident)*] $got:ident) => {
        $crate::sync::Happened::Rest($crate::__select_happened!([$($rest)*] $got))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __select_match {
    ($happened:ident) => {{
        let none: ::std::convert::Infallible = $happened;
        match none {}
    }};
    ($happened:ident { $pattern:pat => $code:expr } $($more:tt)*) => {
        match $happened {
            $crate::sync::Happened::First($pattern) => $code,
            $crate::sync::Happened::Rest(happened) => {
                $crate::__select_match!(happened $($more)*)
            }
        }
    };
}
