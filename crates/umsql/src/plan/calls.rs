//! Reads the calls of functions: their arguments, some of which have a syntax of their own, and
//! what follows a call of an aggregate.

use std::ops::Range;

use super::analysis::Analysis;
use super::expression::{Argument, Typed, call};
use super::parts::{NameScope, TypedOperand};
use crate::wire::types;

/// Returns whether the function makes one value of the rows of a group.
fn is_aggregate(function: &str, arguments: usize) -> bool {
    const NAMES: [&str; 21] = [
        "count",
        "sum",
        "avg",
        "total",
        "group_concat",
        "string_agg",
        "array_agg",
        "bool_and",
        "bool_or",
        "every",
        "json_agg",
        "jsonb_agg",
        "json_object_agg",
        "jsonb_object_agg",
        "json_group_array",
        "json_group_object",
        "stddev",
        "variance",
        "corr",
        "bit_and",
        "bit_or",
    ];
    NAMES.contains(&function)
        || ["stddev_", "var_", "regr_", "covar_", "percentile_", "mode"]
            .iter()
            .any(|start| function.starts_with(start))
        || (["min", "max"].contains(&function) && arguments == 1)
}

/// The arguments of a call.
#[derive(Default)]
struct Arguments {
    operands: Vec<TypedOperand>,
    places: Vec<Range<usize>>,
    is_star: bool,
}

impl Arguments {
    fn push(&mut self, operand: TypedOperand, place: Range<usize>) {
        self.operands.push(operand);
        self.places.push(place);
    }
}

impl Analysis<'_, '_> {
    /// Reads the arguments of the function whose name is at `name`, and what follows the call.
    pub(super) fn function(
        &mut self,
        scope: &NameScope<'_>,
        name: usize,
        inner: Range<usize>,
        (at, end): (&mut usize, usize),
    ) -> Option<TypedOperand> {
        let function = self.tokens[name].folded();
        if function == "cast" {
            return self.cast_call(scope, inner);
        }
        let is_aggregate =
            is_aggregate(&function, self.split(inner.clone()).len()) && !self.is_window(*at, end);
        self.enter_aggregate(is_aggregate);
        let arguments = self.arguments(scope, &function, inner);
        if is_aggregate {
            self.filter(scope, at, end);
        }
        self.leave_aggregate(is_aggregate);
        let arguments = arguments?;
        if arguments.operands.is_empty() && ["greatest", "least"].contains(&function.as_str()) {
            self.refuse(name + 2, "42601", "syntax error at or near \")\"".to_owned());
        }
        if !is_aggregate {
            self.filter(scope, at, end);
            self.over(scope, at, end)?;
        }
        self.within_group(at, end)?;
        if !arguments.is_star {
            self.call(name, &function, &arguments.operands);
        }
        Some(TypedOperand::of(self.typed_call(&function, &arguments)))
    }

    fn typed_call(&mut self, function: &str, arguments: &Arguments) -> Option<Typed> {
        let numbered = || arguments.places.iter().map(|place| place.start);
        let common: Vec<_> = numbered().zip(arguments.operands.iter().copied()).collect();
        match function {
            "array_agg" => {
                let element = arguments.operands.first().and_then(|operand| operand.typed);
                if element.is_some_and(|typed| !typed.is_open() && typed.array().is_none()) {
                    self.unsupported(
                        arguments.places[0].start,
                        "array_agg of this type is not supported",
                        "Cast its argument to text.",
                    );
                }
            }
            "coalesce" => return self.common("COALESCE", &common),
            "greatest" | "least" => {
                return self.common(&function.to_ascii_uppercase(), &common);
            }
            "nullif" => {
                if let [one, other] = arguments.operands[..] {
                    self.compare(arguments.places[0].start, "=", one, other);
                }
            }
            _ => (),
        }
        let list: Vec<_> = arguments.operands.iter().zip(&arguments.places).collect();
        let list: Vec<_> = list
            .iter()
            .map(|(operand, place)| Argument {
                typed: operand.typed,
                tokens: &self.tokens[(*place).clone()],
            })
            .collect();
        call(function, &list)
    }

    fn arguments(
        &mut self,
        scope: &NameScope<'_>,
        function: &str,
        inner: Range<usize>,
    ) -> Option<Arguments> {
        let mut found = Arguments::default();
        let (mut at, end) = (inner.start, inner.end);
        if self.is(at, end, "*") && at + 1 == end {
            found.is_star = true;
            return Some(found);
        }
        if function == "extract" {
            found.push(TypedOperand::default(), at..at + 1);
            let from = self.is(at + 1, end, "from");
            at += if from { 2 } else { return None };
        }
        if function == "trim" {
            let sides = ["leading", "trailing", "both"];
            at += usize::from(sides.iter().any(|side| self.is(at, end, side)));
            at += usize::from(self.is(at, end, "from"));
        }
        let distinct = self.is(at, end, "distinct") || self.is(at, end, "all");
        at += usize::from(distinct);
        // `position(a IN b)`: what is searched for is no operand of IN.
        let least = if function == "position" { 6 } else { 0 };
        while at < end {
            if self.is(at + 1, end, "=") && self.is(at + 2, end, ">") {
                // `make_interval(days => 1)`
                at += 3;
            }
            let start = at;
            let operand = self.operand(scope, &mut at, end, least)?;
            found.push(operand, start..at);
            const BETWEEN: [&str; 6] = [",", "from", "for", "in", "placing", "similar"];
            if BETWEEN.iter().any(|word| self.is(at, end, word)) {
                at += 1;
            } else if self.is(at, end, "order") && self.is(at + 1, end, "by") {
                self.order_within(scope, at + 2..end);
                at = end;
            } else if at < end {
                return None;
            }
        }
        Some(found)
    }

    /// Reads the ORDER BY of a call or a window.
    fn order_within(&mut self, scope: &NameScope<'_>, range: Range<usize>) {
        for item in self.split(range) {
            let mut at = item.start;
            self.wholly(|me| me.operand(scope, &mut at, item.end, 0));
        }
    }

    /// Reads `CAST(x AS type)`.
    fn cast_call(&mut self, scope: &NameScope<'_>, inner: Range<usize>) -> Option<TypedOperand> {
        let mut at = inner.start;
        let operand = self.operand(scope, &mut at, inner.end, 0)?;
        if !self.is(at, inner.end, "as") {
            return None;
        }
        let is_array = self.tokens[inner.end - 1].sign("]");
        let cast = if is_array { None } else { self.type_of(at + 1..inner.end) };
        Some(self.cast_of(at, operand, TypedOperand::of(cast)))
    }

    /// Returns whether the call before `at` is one of a window.
    fn is_window(&self, mut at: usize, end: usize) -> bool {
        if self.is(at, end, "filter") && self.is(at + 1, end, "(") {
            at = self.closing(at + 1, end).map_or(end, |close| close + 1);
        }
        self.is(at, end, "over")
    }

    fn filter(&mut self, scope: &NameScope<'_>, at: &mut usize, end: usize) {
        if self.is(*at, end, "filter")
            && self.is(*at + 1, end, "(")
            && self.is(*at + 2, end, "where")
            && let Some(close) = self.closing(*at + 1, end)
        {
            self.condition_at(scope, "FILTER", *at + 3..close);
            *at = close + 1;
        }
    }

    /// Reads OVER and the window after it.
    fn over(&mut self, scope: &NameScope<'_>, at: &mut usize, end: usize) -> Option<()> {
        if !self.is(*at, end, "over") {
            return Some(());
        }
        *at += 2;
        if self.is(*at - 1, end, "(") {
            let close = self.closing(*at - 1, end)?;
            let mut inner = *at;
            for word in ["partition", "order"] {
                if self.is(inner, close, word) && self.is(inner + 1, close, "by") {
                    inner += 2;
                    let mut more = true;
                    while more {
                        self.operand(scope, &mut inner, close, 0)?;
                        const WORDS: [&str; 5] = ["asc", "desc", "nulls", "first", "last"];
                        while WORDS.iter().any(|word| self.is(inner, close, word)) {
                            inner += 1;
                        }
                        more = self.is(inner, close, ",");
                        inner += usize::from(more);
                    }
                }
            }
            *at = close + 1;
        }
        Some(())
    }

    /// Skips `WITHIN GROUP (..)`.
    fn within_group(&mut self, at: &mut usize, end: usize) -> Option<()> {
        if self.is(*at, end, "within") && self.is(*at + 1, end, "group") {
            *at = self.closing(*at + 2, end)? + 1;
        }
        Some(())
    }

    /// Returns the type of the only column of what a function returns as a table.
    pub(super) fn series(&mut self, scope: &NameScope<'_>, inner: Range<usize>) -> Option<Typed> {
        let items = self.split(inner);
        let mut typed = items.into_iter().map(|item| self.expression(scope, item).typed);
        let first = typed.next()??;
        let found = typed.try_fold(first, |all, one| all.or(one?))?;
        let is_number = matches!(found.oid, types::INT4 | types::INT8 | types::NUMERIC);
        if found.is_open() || found.oid == types::INT2 {
            return Some(Typed::new(types::INT4));
        }
        is_number.then_some(found)
    }
}
