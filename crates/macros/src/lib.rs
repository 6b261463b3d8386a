//! The attributes `#[ums::main]` and `#[ums::test]`. The crate `ums` re-exports them.
//!
//! ```text
//!   #[attributes] visibility fn name() -> Result { body }        what is written
//!                    |
//!                    v
//!   #[attributes] visibility fn name() -> ExitCode {             what the compiler gets
//!       fn body() -> Result { body }
//!       ::ums::testing::attributes::.. (builder, body)
//!   }
//! ```
//!
//! The function's tokens are not parsed further: its body is the last group in braces, and what
//! stands before that is its signature. So errors in the body have their own places.
//!
//! Options are calls of the node's builder. This crate does not know their names; the compiler
//! finds a wrong one.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

mod misuse;
mod function;
mod options;

use function::Function;
use misuse::tokens;
use options::Options;

/// Runs `main` on a worker of a node. When it returns, the node shuts down, and running tasks have
/// 10 seconds to end; after a second a line on stderr says so. Then they are cancelled. A program
/// cancels those that never end by themselves.
///
/// ```
/// #[ums::main]
/// fn main() -> std::io::Result<()> {
///     let task = ums::spawn(|| 2 + 2);
///     println!("{}", task.join().unwrap());
///     Ok(())
/// }
/// ```
///
/// Options are the methods of [`Builder`]: `name = value` calls the method with a value, `name`
/// calls it without, and `unsafe(name)` calls one that is unsafe.
///
/// ```
/// // SAFETY: the code keeps nothing of its thread over a wait.
/// #[ums::main(unsafe(fiber_workers), schedulers = 2, max_workers = 1000)]
/// fn main() {
///     assert_eq!(ums::worker::worker_kind(), Some(ums::WorkerKind::Fiber));
/// }
/// ```
///
/// If `main` returns an error, it is printed, and the process exits with code 1, as without the
/// attribute. Nothing may follow a worker's [`std::process::exit`], which ends the process at once.
///
/// [`Builder`]: https://docs.rs/ums/latest/ums/struct.Builder.html
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, false)
}

/// Makes a function a test that runs on a worker of a node of its own, and ends with an orderly
/// shutdown: the test fails if a task is still running then.
///
/// ```
/// #[ums::test]
/// fn children_are_joined() {
///     assert_eq!(ums::spawn(|| 2 + 2).join().unwrap(), 4);
/// }
///
/// #[ums::test(schedulers = 1)]
/// fn with_an_option() -> std::io::Result<()> {
///     Ok(())
/// }
/// ```
///
/// With `sim` it runs in a simulated world, once for each of so many `seeds` (100 if it is not
/// said): each decides the order in which threads run, and how much time passes, which costs none.
/// `faults` is a value of `ums::sim::Faults`; if it is not said, nothing fails. A failure names the
/// seed, and the command that repeats it. This needs the feature `sim` of the crate `ums`.
///
/// ```
/// # #[cfg(any())] // the feature is off here
/// #[ums::test(sim, seeds = 200, faults = ums::sim::Faults { short: 50, ..Default::default() })]
/// fn an_hour_that_takes_no_time() {
///     ums::sleep(std::time::Duration::from_secs(3600)).unwrap();
/// }
/// ```
///
/// The other options are those of [`macro@main`].
#[proc_macro_attribute]
pub fn test(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(options, item, true)
}

fn expand(options: TokenStream, item: TokenStream, is_test: bool) -> TokenStream {
    let parsed = Function::parse(item.clone())
        .and_then(|function| Ok((function, Options::parse(options, is_test)?)));
    match parsed {
        Ok((function, options)) => around(&function, &options, is_test),
        // The function stays, so that the compiler does not report it as missing, too.
        Err(error) => error.to_tokens().into_iter().chain(item).collect(),
    }
}

/// Returns the function whose body runs the other one's on a worker.
fn around(function: &Function, options: &Options, is_test: bool) -> TokenStream {
    // A name that the body cannot see.
    let inner = TokenTree::Ident(Ident::new("body", Span::mixed_site()));
    let returns_nothing = function.returns.is_empty();
    let mut body: TokenStream = tokens("fn");
    body.extend([
        inner.clone(),
        TokenTree::Group(Group::new(Delimiter::Parenthesis, TokenStream::new())),
    ]);
    body.extend(function.returns.clone());
    body.extend([TokenTree::Group(function.body.clone())]);
    let run = match (is_test, options.simulated) {
        (false, _) => "::ums::testing::attributes::run_main",
        (true, false) => "::ums::testing::attributes::run_test",
        (true, true) => "::ums::testing::attributes::run_simulated",
    };
    let mut arguments = options.builder();
    arguments.extend(tokens(","));
    arguments.extend([inner]);
    arguments.extend(options.simulation());
    body.extend(tokens(run));
    body.extend([TokenTree::Group(Group::new(Delimiter::Parenthesis, arguments))]);
    if is_test && returns_nothing {
        // A test that should panic must return nothing.
        body.extend(tokens(";"));
    }

    let mut expanded =
        if is_test { tokens("#[::core::prelude::v1::test]") } else { TokenStream::new() };
    expanded.extend(function.head.clone());
    if !(is_test && returns_nothing) {
        expanded.extend(tokens("-> ::std::process::ExitCode"));
    }
    expanded.extend([TokenTree::Group(Group::new(Delimiter::Brace, body))]);
    expanded
}
