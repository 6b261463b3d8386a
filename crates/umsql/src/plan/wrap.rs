//! The calls that are written around the values of one column.

use super::fit::{Fit, is_literal, without_parentheses};
use super::rows::is_default;
use super::targets::{Table, Target};
use crate::dialect::tokens::Token;

/// What is written around the values of a column.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wrap {
    pub(super) converts: bool,
    pub(super) refuses_null: bool,
    /// Whether a literal is stored in place of the value.
    pub(super) is_replaced: bool,
    /// How a number becomes a text.
    pub(super) spelling: Option<i64>,
    /// Whether a row has DEFAULT here, which may be NULL: SQLite puts a number in its place.
    pub(super) defaults: bool,
}

impl Wrap {
    /// Adds what a value of the column needs.
    pub(super) fn add(&mut self, fit: Fit, item: &[Token<'_>], target: &Target) {
        self.defaults |= is_default(item);
        self.refuses_null |= target.keyed && !is_literal(without_parentheses(item));
        self.refuses_null &= !self.defaults;
        match fit {
            Fit::Stored => (),
            Fit::Instead(_) => self.is_replaced = true,
            Fit::Call(spelling) => {
                self.converts = true;
                self.spelling = self.spelling.or(spelling);
            }
        }
    }

    /// Returns what is before the value.
    pub(super) fn begin(&self) -> &'static str {
        match (self.converts, self.refuses_null) {
            (false, false) => "",
            (true, false) => "ums_assign(",
            (false, true) => "ums_not_null(",
            (true, true) => "ums_not_null(ums_assign(",
        }
    }

    /// Returns what is after the value.
    pub(super) fn end(&self, target: &Target, table: &Table) -> String {
        let mut text = String::new();
        if self.converts {
            text = format!(", {}, {}", target.oid, target.modifier);
            if let Some(spelling) = self.spelling {
                text.push_str(&format!(", {spelling}"));
            }
            text.push(')');
        }
        if self.refuses_null {
            let quoted = |name: &str| name.replace('\'', "''");
            let (column, table) = (quoted(&target.name), quoted(&table.name));
            text.push_str(&format!(", '{column}', '{table}')"));
        }
        text
    }
}
