//! The function that has the attribute, in parts.

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

use crate::misuse::Misuse;

/// A function without parameters.
pub struct Function {
    /// Its attributes, visibility, name and empty parameters.
    pub head: TokenStream,
    /// The arrow and the type that it returns, or nothing.
    pub returns: TokenStream,
    pub body: Group,
}

impl Function {
    /// # Errors
    /// A sentence, if the item is no function, is asynchronous, or has parameters.
    pub fn parse(item: TokenStream) -> Result<Function, Misuse> {
        let mut item: Vec<TokenTree> = item.into_iter().collect();
        let is_word = |token: &TokenTree, word: &str| match token {
            TokenTree::Ident(name) => name.to_string() == word,
            _ => false,
        };
        let whole = item.first().map_or(Span::call_site(), TokenTree::span);
        let Some(begin) = item.iter().position(|token| is_word(token, "fn")) else {
            return Err(Misuse::new(whole, "this attribute belongs to a function"));
        };
        if let Some(word) = item[..begin].iter().find(|token| is_word(token, "async")) {
            let text = "a worker runs blocking code: remove `async`, or call future::block_on";
            return Err(Misuse::new(word.span(), text));
        }
        let Some(TokenTree::Group(body)) = item.pop_if(|last| is_group(last, Delimiter::Brace))
        else {
            return Err(Misuse::new(whole, "this attribute belongs to a function with a body"));
        };
        // After `fn` come the name and the parameters.
        let end = begin.saturating_add(3).min(item.len());
        match item.get(begin.saturating_add(2)) {
            Some(TokenTree::Group(parameters))
                if parameters.delimiter() == Delimiter::Parenthesis =>
            {
                if !parameters.stream().is_empty() {
                    return Err(Misuse::new(
                        parameters.span(),
                        "this function must not have parameters",
                    ));
                }
            }
            _ => return Err(Misuse::new(whole, "this function must not be generic")),
        }
        let returns = item.split_off(end).into_iter().collect();
        Ok(Function { head: item.into_iter().collect(), returns, body })
    }
}

fn is_group(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}
