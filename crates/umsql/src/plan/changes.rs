//! Changes of a statement's text, each at a token, that are made all at once.
//!
//! ```text
//!   d + 1     before `d`: date_pli(     instead of `+`: ,     after `1`: )
//! ```
//!
//! What is put around a part goes outside what has been put around parts of it, so the order of the
//! calls is that from the inside to the outside. The work is linear in the text.

use std::borrow::Cow;

use crate::dialect::tokens::Token;

type Text = Cow<'static, str>;

#[derive(Debug, Default)]
pub(super) struct Changes {
    before: Vec<(usize, Text)>,
    instead: Vec<(usize, Text)>,
    after: Vec<(usize, Text)>,
}

impl Changes {
    pub(super) fn before(&mut self, token: usize, text: impl Into<Text>) {
        self.before.push((token, text.into()));
    }

    pub(super) fn instead(&mut self, token: usize, text: impl Into<Text>) {
        self.instead.push((token, text.into()));
    }

    pub(super) fn after(&mut self, token: usize, text: impl Into<Text>) {
        self.after.push((token, text.into()));
    }

    /// Returns the first token that is changed, or has something before or behind it.
    pub(super) fn first(&self) -> Option<usize> {
        let all = [&self.before, &self.instead, &self.after].into_iter().flatten();
        all.map(|(token, _)| *token).min()
    }

    /// Returns the text, which consists of these tokens, with the changes. Where a token is
    /// replaced twice, the last text counts.
    pub(super) fn apply(mut self, text: &str, tokens: &[Token<'_>]) -> String {
        self.before.reverse();
        for list in [&mut self.before, &mut self.instead, &mut self.after] {
            list.sort_by_key(|(token, _)| *token);
        }
        let mut lists =
            [self.before, self.instead, self.after].map(Vec::into_iter).map(Iterator::peekable);
        let mut out = String::with_capacity(text.len() + 64);
        let mut copied = 0;
        for (index, token) in tokens.iter().enumerate() {
            out.push_str(&text[copied..token.at]);
            let mut at = [String::new(), String::new(), String::new()];
            for (list, here) in lists.iter_mut().zip(&mut at) {
                while let Some((_, text)) = list.next_if(|(token, _)| *token == index) {
                    here.push_str(&text);
                }
            }
            let [before, instead, after] = at;
            out.push_str(&before);
            out.push_str(if instead.is_empty() { token.text } else { &instead });
            out.push_str(&after);
            copied = token.end();
        }
        out.push_str(&text[copied..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tokens::tokens;

    #[test]
    fn what_is_put_around_later_is_outside() {
        let text = "a + b + c -- x";
        let mut edits = Changes::default();
        for (end, name) in [(2, "f("), (4, "g(")] {
            edits.before(0, name);
            edits.instead(end - 1, ",");
            edits.after(end, ")");
        }
        edits.after(4, " COLLATE x");
        assert_eq!(edits.first(), Some(0));
        assert_eq!(edits.apply(text, &tokens(text).unwrap()), "g(f(a , b) , c) COLLATE x -- x");
        assert_eq!(Changes::default().first(), None);
    }
}
