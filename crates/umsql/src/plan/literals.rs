//! Literals that mean a truth value because of the column beside them: `insert into t values ('t')`
//! with a boolean column stores 1, as `true` does, and not a text.
//!
//! Only literals beside a boolean column of a table are changed. The column must be certain: a name
//! that the statement itself gives, or that two tables declare differently, changes nothing.

use rusqlite::Connection;

use super::names::Names;
use super::parameters::implied;
use crate::dialect::tokens::{Token, TokenKind};
use crate::error::{Result, SqlError};
use crate::wire::types;

/// The length of `'false'`, the longest truth value.
const TRUTH_LEN: usize = 7;

/// Returns whether [`read_literals`] could change something in the statement, or refuse it.
pub(super) fn has_literals(tokens: &[Token<'_>]) -> bool {
    let writes = ["insert", "update"].iter().any(|word| tokens[0].is(word));
    let reads = ["select", "delete", "with"].iter().any(|word| tokens[0].is(word));
    let is_literal = |token: &Token<'_>| {
        let truth = || token.text.len() <= TRUTH_LEN && types::truth(&token.value()).is_some();
        token.kind == TokenKind::Text && (writes || truth())
    };
    (writes || reads) && tokens.iter().any(is_literal)
}

/// Marks the literals of the statement that mean a truth value.
///
/// # Errors
/// 22P02 if a literal beside a boolean column is no truth value.
pub(super) fn read_literals(tokens: &mut [Token<'_>], db: &Connection) -> Result<()> {
    let names = Names::certain(db, tokens);
    let mut found = Vec::new();
    implied(tokens, &names, TokenKind::Text, |index, implied| {
        if implied() == Some(types::BOOL) {
            found.push(index);
        }
    });
    for index in found {
        let token = &mut tokens[index];
        let value = token.value();
        if types::truth(&value).is_none() {
            let message = format!("invalid input syntax for type boolean: \"{value:.40}\"");
            let error = SqlError::new("22P02", message);
            return Err(SqlError { offset: Some(token.at), ..error });
        }
        token.kind = TokenKind::Truth;
    }
    Ok(())
}
