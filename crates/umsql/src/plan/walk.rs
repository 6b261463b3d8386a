//! The pass over a statement's tokens that finds the operands of its operators, and their types.
//!
//! ```text
//!   SELECT id, max(d) - min(d) FROM day ORDER BY 1
//!              ╰ a frame for each parenthesis and CASE: operands and operators that wait
//! ```
//!
//! It is no parser: SQLite is. A statement that it misreads keeps its text, or SQLite refuses it.
//! The work is linear in the tokens, without recursion, and the depth is bounded.

use std::collections::HashMap;

use super::changes::Changes;
use super::frames::{AND, BITS, Clause, Frame, Kind, NOT, Operand, Shape, UNARY, WORD, rank};
use super::names::number;
use super::operator_rules::{COLLATE, UNSURE, of_number};
use crate::dialect::tokens::{Token, TokenKind};
use crate::error::{Result, SqlError};
use crate::wire::canonical::is_temporal;
use crate::wire::types::{self, DATE, INTERVAL, TIMESTAMPTZ};

/// The deepest nesting that is understood.
const DEPTH_MAX: usize = 1000;
/// The most queries that are told apart in which one name is given.
const NAMED_MAX: usize = 16;

/// The queries whose select lists give a name, and the types of the expressions.
pub(super) type Named = Vec<(usize, Option<u32>)>;

/// What is known of the statement's names.
#[derive(Clone, Copy)]
pub(super) struct KnownNames<'w> {
    pub(super) columns: &'w HashMap<String, Option<u32>>,
    pub(super) parameters: &'w [u32],
    /// The names that the pass before has found.
    pub(super) names: &'w HashMap<String, Named>,
}

impl KnownNames<'_> {
    /// Returns the type of a name within the query that begins at this token. In that query, its
    /// own names of items mean nothing yet.
    fn column(&self, name: &str, query: usize) -> Option<u32> {
        let declared = self.columns.get(name).copied();
        let named = self.names.get(name).into_iter().flatten();
        let mut all = named.filter(|(of, _)| *of != query).map(|(_, oid)| *oid).chain(declared);
        let first = all.next()?;
        let (mut is_same, mut is_time) = (true, first.is_some_and(is_temporal));
        for other in all {
            is_same &= other == first;
            is_time |= other.is_some_and(is_temporal);
        }
        if is_same { first } else { is_time.then_some(UNSURE) }
    }
}

/// How often the left side of a comparison is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Only,
    First,
    Later,
}

/// One pass over the tokens.
pub(super) struct Walk<'w> {
    pub(super) tokens: &'w [Token<'w>],
    known: KnownNames<'w>,
    pub(super) found: HashMap<String, Named>,
    frames: Vec<Frame>,
    pub(super) edits: Changes,
    /// The first error, and its token.
    pub(super) error: Option<(usize, SqlError)>,
}

impl<'w> Walk<'w> {
    pub(super) fn new(tokens: &'w [Token<'w>], known: KnownNames<'w>) -> Walk<'w> {
        let frames = vec![Frame::new(Kind::Query, 0, 0)];
        let (found, edits) = (HashMap::new(), Changes::default());
        Walk { tokens, known, found, frames, edits, error: None }
    }

    pub(super) fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the statement's frame stays")
    }

    pub(super) fn is(&self, at: usize, word: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(word) || token.sign(word))
    }

    pub(super) fn fail(&mut self, at: usize, code: &'static str, message: String) {
        self.error.get_or_insert_with(|| (at, SqlError::new(code, message)));
    }

    pub(super) fn statement(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.tokens.len() {
            at = self.token(at)?;
        }
        while self.frames.len() > 1 {
            self.close(self.tokens.len() - 1);
        }
        self.end_item();
        Ok(())
    }

    /// Reads the token, and returns the place of the next one that is to be read.
    fn token(&mut self, at: usize) -> Result<usize> {
        let token = self.tokens[at];
        match token.kind {
            TokenKind::Word | TokenKind::Quoted => return self.word(at),
            TokenKind::Number => self.operand(at, at + 1, of_number(token.text), Shape::Number),
            TokenKind::Param => {
                let known = number(&token).and_then(|number| number.checked_sub(1));
                let oid = known.and_then(|at| self.known.parameters.get(at)).copied();
                self.operand(at, at + 1, oid, Shape::Other);
            }
            TokenKind::Sign => return self.sign(at),
            _ => self.operand(at, at + 1, Some(types::UNKNOWN), Shape::Literal),
        }
        Ok(at + 1)
    }

    fn sign(&mut self, at: usize) -> Result<usize> {
        let sign = self.tokens[at].text;
        match sign {
            "(" => self.open(Kind::Parentheses, at, at)?,
            ")" => self.close(at),
            "," => {
                self.end_item();
                if let Clause::Set(came) = &mut self.frame().clause {
                    *came = false;
                }
            }
            "-" | "+" | "~" if !self.frame().is_complete() => {
                self.frame().push_operator(at, UNARY, true);
            }
            "=" if self.frame().clause == Clause::Set(false) => {
                self.frame().operands.clear();
                self.frame().clause = Clause::Set(true);
            }
            _ => match rank(sign) {
                Some(rank) if self.frame().is_complete() => self.operator(at, rank),
                // `*` as an item, or a sign that is not known.
                _ => self.end_expression(),
            },
        }
        Ok(at + 1)
    }

    fn operator(&mut self, at: usize, rank: u8) {
        if rank <= WORD {
            self.end_between();
        }
        self.reduce(rank);
        self.frame().push_operator(at, rank, false);
    }

    fn open(&mut self, kind: Kind, start: usize, paren: usize) -> Result<()> {
        if self.frames.len() > DEPTH_MAX {
            return Err(SqlError::new("54001", "stack depth limit exceeded"));
        }
        let is_query = ["select", "with", "values"].iter().any(|word| self.is(paren + 1, word));
        let parent = self.frame();
        let is_list = kind == Kind::Parentheses && std::mem::take(&mut parent.is_in);
        let sought = if is_list { parent.base.take() } else { None };
        let (query, start) = (parent.query, sought.map_or(start, |sought| sought.start));
        let kind = match kind {
            Kind::Parentheses if is_query => Kind::Query,
            Kind::Parentheses if is_list => Kind::List,
            kind => kind,
        };
        if let (Kind::Query, Some(INTERVAL)) = (kind, sought.and_then(|sought| sought.oid)) {
            self.edits.after(sought.map_or(paren, |sought| sought.end - 1), COLLATE);
        }
        let query = if kind == Kind::Query { paren } else { query };
        let names = self.frame().next_names.take().filter(|_| kind == Kind::Query);
        let mut frame = Frame::new(kind, start, query);
        (frame.sought, frame.names) = (sought, names);
        self.frames.push(frame);
        Ok(())
    }

    /// Ends the frame whose parenthesis closes, or whose CASE ends, at this token.
    fn close(&mut self, at: usize) {
        self.end_item();
        if self.frames.len() == 1 {
            return;
        }
        let Some(frame) = self.frames.pop() else { return };
        let first = frame.items.first().copied();
        let mut oid = first.and_then(|item| item.oid);
        match frame.kind {
            Kind::Window => {
                if let Some(operand) = self.frame().operands.last_mut() {
                    operand.end = at + 1;
                }
                return;
            }
            Kind::Call(name) => oid = self.call(name, &frame),
            Kind::Cast => oid = self.cast(&frame, at),
            Kind::Case => {
                let known = frame.items.iter().filter_map(|item| item.oid);
                oid = known.into_iter().find(|oid| *oid != types::UNKNOWN);
            }
            Kind::List => oid = Some(types::BOOL),
            Kind::Query if frame.sought.is_some() => oid = Some(types::BOOL),
            Kind::Query => self.name_columns(&frame),
            Kind::Parentheses if frame.count != 1 => {
                oid = None;
                self.row(&frame);
            }
            Kind::Parentheses => self.row(&frame),
        }
        self.operand(frame.start, at + 1, oid, Shape::Other);
    }

    /// Takes the types of a query's columns from its first row of VALUES.
    fn row(&mut self, row: &Frame) {
        let frame = self.frame();
        if frame.clause == Clause::Rows && frame.items.is_empty() {
            frame.items.clone_from(&row.items);
        }
    }

    /// Keeps the types of the names in `WITH t(a, b) AS (..)`.
    fn name_columns(&mut self, query: &Frame) {
        let Some(open) = query.names else { return };
        let tokens = self.tokens[open + 1..].iter().take_while(|token| !token.sign(")"));
        let names = tokens.filter(|token| token.is_name());
        for (token, item) in names.zip(&query.items) {
            // They mean columns within the query, too, if that is recursive.
            self.give(token, usize::MAX, item.oid);
        }
    }

    /// Keeps the type of a name that a query gives.
    fn give(&mut self, token: &Token<'_>, query: usize, oid: Option<u32>) {
        let named = self.found.entry(token.name().to_ascii_lowercase()).or_default();
        if named.len() < NAMED_MAX && !named.contains(&(query, oid)) {
            named.push((query, oid));
        }
    }

    /// Adds a complete operand.
    fn operand(&mut self, start: usize, end: usize, oid: Option<u32>, shape: Shape) {
        if self.frame().is_complete() {
            // `ORDER BY x ROWS ..`
            match self.frame().clause {
                Clause::Order => self.end_item(),
                _ => self.end_expression(),
            }
        }
        self.frame().operands.push(Operand { start, end, oid, shape });
    }

    /// Completes the expression, and returns it.
    fn complete(&mut self) -> Option<Operand> {
        self.end_between();
        self.reduce(0);
        let frame = self.frame();
        let operand = frame.operands.pop();
        frame.clear();
        operand
    }

    /// Completes a BETWEEN whose upper bound has come.
    fn end_between(&mut self) {
        let frame = self.frame();
        if !frame.and_came {
            return;
        }
        frame.and_came = false;
        let base = frame.base.take();
        self.reduce(BITS);
        if let (Some(base), Some(upper)) = (base, self.frame().operands.pop()) {
            self.compare(base, base.end, upper, Turn::Later);
            self.operand(base.start, upper.end, Some(types::BOOL), Shape::Other);
        }
    }

    /// Ends an expression that is no item.
    fn end_expression(&mut self) {
        let _ = self.complete();
    }

    /// Ends an item: of a select list, an ORDER BY, the arguments of a call.
    fn end_item(&mut self) {
        let Some(item) = self.complete() else { return };
        self.item(item);
    }

    fn item(&mut self, item: Operand) {
        let tokens = self.tokens;
        let frame = self.frame();
        frame.count += 1;
        let (kind, clause) = (frame.kind, frame.clause);
        let is_distinct = frame.is_distinct;
        let is_interval = item.oid == Some(INTERVAL);
        match (kind, clause) {
            (Kind::List, _) => {
                if let Some(sought) = self.frame().sought {
                    let turn = if self.frame().count == 1 { Turn::First } else { Turn::Later };
                    self.compare(sought, sought.end, item, turn);
                }
            }
            (Kind::Query, Clause::Items) => {
                if is_distinct && is_interval {
                    self.edits.after(item.end - 1, COLLATE);
                }
                self.frame().items.push(item);
            }
            (_, Clause::Order) => {
                let oid = match item.shape {
                    Shape::Number => {
                        let place = tokens[item.start].text.parse::<usize>().ok();
                        let index = place.and_then(|place| place.checked_sub(1));
                        index.and_then(|index| self.frame().items.get(index)?.oid)
                    }
                    Shape::Column if item.end == item.start + 1 => {
                        let name = tokens[item.start].name().to_ascii_lowercase();
                        let query = self.frame().query;
                        let named = self.found.get(&name).into_iter().flatten();
                        let own = named.rev().find(|(of, _)| *of == query);
                        own.map_or(item.oid, |(_, oid)| *oid)
                    }
                    _ => item.oid,
                };
                if oid == Some(INTERVAL) {
                    self.edits.after(item.end - 1, COLLATE);
                }
            }
            (Kind::Call(_), _) => {
                if is_distinct && is_interval {
                    self.edits.after(item.end - 1, COLLATE);
                }
                self.frame().items.push(item);
            }
            (Kind::Case, Clause::Branch) | (Kind::Parentheses, _) => self.frame().items.push(item),
            (Kind::Cast, _) if self.frame().count == 1 => self.frame().items.push(item),
            _ => (),
        }
    }

    /// Reads a word: a keyword, a name or a call.
    fn word(&mut self, at: usize) -> Result<usize> {
        let token = self.tokens[at];
        if token.kind == TokenKind::Word
            && let Some(next) = self.keyword(at, token.text.to_ascii_lowercase().as_str())?
        {
            return Ok(next);
        }
        let mut end = at + 1;
        while self.is(end, ".") && self.tokens.get(end + 1).is_some_and(Token::is_name) {
            end += 2;
        }
        if self.is(end, "(") {
            let kind = if token.is("cast") { Kind::Cast } else { Kind::Call(end - 1) };
            self.open(kind, at, end)?;
            return Ok(end + 1);
        }
        let frame = self.frame();
        if frame.is_complete() && frame.kind == Kind::Query && frame.clause == Clause::Items {
            self.name_item(at);
            return Ok(at + 1);
        }
        let query = frame.query;
        let path = &self.tokens[at..end];
        let name = |token: &Token<'_>| token.name().to_ascii_lowercase();
        let qualified = match path {
            [.., table, _, column] => {
                self.known.columns.get(&format!("{}.{}", name(table), name(column)))
            }
            _ => None,
        };
        let oid = match qualified {
            Some(oid) => *oid,
            None => self.known.column(&name(&self.tokens[end - 1]), query),
        };
        self.operand(at, end, oid, Shape::Column);
        Ok(end)
    }

    /// Ends an item of a select list, to which the token gives a name.
    fn name_item(&mut self, at: usize) {
        let Some(item) = self.complete() else { return };
        self.item(item);
        let query = self.frame().query;
        if let Some(token) = self.tokens.get(at).filter(|token| token.is_name()) {
            self.give(token, query, item.oid);
        }
    }

    /// Reads a keyword, and returns the place of the next token that is to be read. Returns `None`
    /// if the word is none here.
    fn keyword(&mut self, at: usize, word: &str) -> Result<Option<usize>> {
        let is_complete = self.frame().is_complete();
        match word {
            "select" => {
                self.begin(Clause::Items);
                self.frame().is_distinct = self.is(at + 1, "distinct");
                let skips = self.is(at + 1, "distinct") || self.is(at + 1, "all");
                return Ok(Some(at + 1 + usize::from(skips)));
            }
            // `IS DISTINCT FROM`
            "distinct" if self.is(at + 1, "from") => return Ok(Some(at + 2)),
            "distinct" => self.frame().is_distinct = true,
            "returning" => self.begin(Clause::Items),
            "from" | "into" | "update" | "join" | "using" => self.begin(Clause::Tables),
            "set" => self.begin(Clause::Set(false)),
            "by" => self.begin(Clause::Order),
            "values" => self.begin(Clause::Rows),
            "where" | "on" | "having" | "when" | "limit" | "offset" | "window" => {
                self.begin(Clause::Conditions);
            }
            "then" | "else" => self.begin(Clause::Branch),
            "order" | "group" | "partition" if self.is(at + 1, "by") => self.end_item(),
            "union" | "except" | "intersect" => {
                self.end_item();
                // The names of the first query mean something in a recursive one.
                self.frame().query = at;
            }
            "all" | "asc" | "desc" | "with" | "recursive" | "materialized" | "exists" | "left"
            | "inner" | "cross" | "do" => self.end_item(),
            "nulls" => {
                self.end_item();
                return Ok(Some(at + 2));
            }
            "as" => return Ok(Some(self.alias(at))),
            "case" => self.open(Kind::Case, at, at)?,
            "end" if self.frame().kind == Kind::Case => self.close(at),
            "over" | "filter" if is_complete && self.is(at + 1, "(") => {
                self.open(Kind::Window, at, at + 1)?;
                return Ok(Some(at + 2));
            }
            // `OVER w`, `COLLATE x`: they belong to the operand.
            "over" | "filter" | "collate" if is_complete => {
                if let Some(operand) = self.frame().operands.last_mut() {
                    operand.end = at + 2;
                }
                return Ok(Some(at + 2));
            }
            "at" if is_complete && self.is(at + 1, "time") && self.is(at + 2, "zone") => {
                self.at_zone(at);
                return Ok(Some(at + 4));
            }
            "null" => self.operand(at, at + 1, None, Shape::Other),
            "true" | "false" => self.operand(at, at + 1, Some(types::BOOL), Shape::Other),
            "current_timestamp" => self.operand(at, at + 1, Some(TIMESTAMPTZ), Shape::Other),
            "current_date" => self.operand(at, at + 1, Some(DATE), Shape::Other),
            _ => return Ok(self.operator_word(at, word).then_some(at + 1)),
        }
        Ok(Some(at + 1))
    }

    /// Reads a word between operands. Returns false if it is none.
    fn operator_word(&mut self, at: usize, word: &str) -> bool {
        let is_complete = self.frame().is_complete();
        match word {
            "and" if self.frame().base.is_some() && !self.frame().and_came => {
                self.reduce(BITS);
                let frame = self.frame();
                frame.and_came = true;
                if let (Some(base), Some(lower)) = (frame.base, frame.operands.pop()) {
                    self.compare(base, at, lower, Turn::First);
                }
            }
            "and" | "or" if is_complete => self.operator(at, AND),
            "not" if is_complete || self.is(at.wrapping_sub(1), "is") => (),
            "not" => self.frame().push_operator(at, NOT, true),
            "is" | "like" | "ilike" | "regexp" | "glob" | "match" | "escape" if is_complete => {
                self.operator(at, WORD);
            }
            "isnull" | "notnull" if is_complete => {
                self.reduce(WORD);
                if let Some(operand) = self.frame().operands.last_mut() {
                    (operand.end, operand.oid) = (at + 1, Some(types::BOOL));
                }
            }
            "between" | "in" if is_complete => {
                self.end_between();
                self.reduce(BITS);
                let is_in = word == "in" && self.is(at + 1, "(");
                let frame = self.frame();
                let base = frame.operands.pop();
                (frame.base, frame.is_in) = (base.filter(|_| word == "between" || is_in), is_in);
            }
            _ => return false,
        }
        true
    }

    fn begin(&mut self, clause: Clause) {
        self.end_item();
        self.frame().clause = clause;
    }

    /// Reads AS: before a type, a name of an item, or a name or a query of a table.
    fn alias(&mut self, at: usize) -> usize {
        let frame = self.frame();
        match (frame.kind, frame.clause) {
            (Kind::Query, Clause::Items) if frame.is_complete() => {
                self.name_item(at + 1);
                at + 2
            }
            _ => {
                let names = frame.operands.last().map(|operand| operand.start + 1);
                let names = names.filter(|open| self.is(*open, "("));
                self.frame().next_names = names;
                self.end_item();
                at + 1
            }
        }
    }
}
