//! Errors, which the compiler reports in the place of the fault.

use proc_macro::{Span, TokenStream};

/// Returns the tokens of a piece of Rust. They see what is declared where the attribute is used,
/// except local variables.
pub fn tokens(rust: &str) -> TokenStream {
    rust.parse().expect("this file contains only valid tokens")
}

/// What is wrong with the use of an attribute, and where.
pub struct Misuse {
    at: Span,
    text: String,
}

impl Misuse {
    pub fn new(at: Span, text: impl Into<String>) -> Misuse {
        Misuse { at, text: text.into() }
    }

    /// Returns a call of `compile_error!` in the place of the fault.
    pub fn to_tokens(&self) -> TokenStream {
        let call = format!("::core::compile_error! {{ {:?} }}", self.text);
        tokens(&call)
            .into_iter()
            .map(|mut token| {
                token.set_span(self.at);
                token
            })
            .collect()
    }
}
