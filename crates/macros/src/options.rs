//! The options of an attribute: calls of the node's builder, and for a test those of a simulation.

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

use crate::misuse::{Misuse, tokens};

#[derive(Default)]
pub struct Options {
    /// Whether the test runs in a simulated world.
    pub simulated: bool,
    seeds: Option<TokenStream>,
    faults: Option<TokenStream>,
    calls: Vec<Call>,
}

/// One call of a method of the builder.
struct Call {
    method: TokenTree,
    value: TokenStream,
    is_unsafe: bool,
}

impl Options {
    /// # Errors
    /// A sentence about the first option that is not understood.
    pub fn parse(options: TokenStream, is_test: bool) -> Result<Options, Misuse> {
        let mut parsed = Options::default();
        let options: Vec<TokenTree> = options.into_iter().collect();
        let is_comma =
            |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
        for option in options.split(is_comma) {
            parsed.add(option, is_test)?;
        }
        let extra = [("seeds", &parsed.seeds), ("faults", &parsed.faults)];
        if let Some((name, _)) =
            extra.iter().find(|(_, value)| !parsed.simulated && value.is_some())
        {
            return Err(Misuse::new(Span::call_site(), format!("`{name}` needs the option `sim`")));
        }
        Ok(parsed)
    }

    fn add(&mut self, option: &[TokenTree], is_test: bool) -> Result<(), Misuse> {
        let (method, rest) = match option {
            // Behind the last comma, or between the parentheses, nothing may stand.
            [] => return Ok(()),
            [TokenTree::Ident(name), rest @ ..] => (name, rest),
            [other, ..] => {
                let text = "an option is `name`, `name = value` or `unsafe(name)`";
                return Err(Misuse::new(other.span(), text));
            }
        };
        let name = method.to_string();
        let token = |name: &proc_macro::Ident| TokenTree::Ident(name.clone());
        match rest {
            [] if name == "sim" && is_test => self.simulated = true,
            [] => self.call(token(method), TokenStream::new(), false),
            [TokenTree::Punct(equals), value @ ..]
                if equals.as_char() == '=' && !value.is_empty() =>
            {
                let value = value.iter().cloned().collect();
                match name.as_str() {
                    "seeds" if is_test => self.seeds = Some(value),
                    "faults" if is_test => self.faults = Some(value),
                    _ => self.call(token(method), value, false),
                }
            }
            [TokenTree::Group(group)]
                if name == "unsafe" && group.delimiter() == Delimiter::Parenthesis =>
            {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                match inside.as_slice() {
                    [TokenTree::Ident(method)] => {
                        self.call(token(method), TokenStream::new(), true)
                    }
                    _ => {
                        return Err(Misuse::new(
                            group.span(),
                            "the name of an unsafe method of the builder belongs here",
                        ));
                    }
                }
            }
            _ => {
                let text = format!("`{name}` is followed by nothing, or by `= value`");
                return Err(Misuse::new(method.span(), text));
            }
        }
        Ok(())
    }

    fn call(&mut self, method: TokenTree, value: TokenStream, is_unsafe: bool) {
        self.calls.push(Call { method, value, is_unsafe });
    }

    /// Returns an expression for the builder with these options.
    pub fn builder(&self) -> TokenStream {
        self.calls.iter().fold(tokens("::ums::Node::builder()"), |builder, call| {
            let mut called = builder;
            called.extend(tokens("."));
            called.extend([call.method.clone(), group(Delimiter::Parenthesis, call.value.clone())]);
            if !call.is_unsafe {
                return called;
            }
            let mut block = tokens("unsafe");
            block.extend([group(Delimiter::Brace, called)]);
            group(Delimiter::Parenthesis, block).into()
        })
    }

    /// Returns the further arguments for a simulated test; nothing for others.
    pub fn simulation(&self) -> TokenStream {
        if !self.simulated {
            return TokenStream::new();
        }
        let mut arguments = tokens(",");
        arguments.extend(self.seeds.clone().unwrap_or_else(|| tokens("100")));
        arguments.extend(tokens(","));
        arguments.extend(
            self.faults.clone().unwrap_or_else(|| tokens("::core::default::Default::default()")),
        );
        arguments
    }
}

fn group(delimiter: Delimiter, stream: TokenStream) -> TokenTree {
    TokenTree::Group(Group::new(delimiter, stream))
}
