//! What `operators` keeps of the parts of a statement that are not complete: a frame for the
//! statement and for each open parenthesis or CASE.

/// What an operand is, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A text in quotes, whose type depends on what is beside it.
    Literal,
    Number,
    Column,
    Other,
}

/// An operand: tokens from `start` up to `end`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand {
    pub(super) start: usize,
    pub(super) end: usize,
    /// `None` if the type is not known.
    pub(super) oid: Option<u32>,
    pub(super) shape: Shape,
}

/// An operator that waits for its right operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operator {
    pub(super) at: usize,
    pub(super) rank: u8,
    pub(super) is_unary: bool,
}

/// The ranks of operators; the higher bind more closely.
pub(super) const UNARY: u8 = 9;
const JOIN: u8 = 8;
const PRODUCT: u8 = 7;
const SUM: u8 = 6;
pub(super) const BITS: u8 = 5;
const ORDER: u8 = 4;
const EQUAL: u8 = 3;
pub(super) const NOT: u8 = 2;
/// The rank of OR, too: their results are truth values in any order.
pub(super) const AND: u8 = 1;

/// Returns the rank of a sign between two operands; `None` if it is no such operator.
pub(super) fn rank(sign: &str) -> Option<u8> {
    Some(match sign {
        "||" | "->" | "->>" => JOIN,
        "*" | "/" | "%" => PRODUCT,
        "+" | "-" => SUM,
        "&" | "|" | "<<" | ">>" => BITS,
        "<" | ">" | "<=" | ">=" => ORDER,
        "=" | "==" | "<>" | "!=" => EQUAL,
        _ => return None,
    })
}

/// The rank of `IS` and of other words between two operands.
pub(super) const WORD: u8 = EQUAL;

pub(super) fn is_comparison(rank: u8) -> bool {
    matches!(rank, ORDER | EQUAL)
}

pub(super) fn is_logical(rank: u8) -> bool {
    rank == AND
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The statement, or a query in parentheses.
    Query,
    Parentheses,
    /// A call; the operand begins with its name, at this token.
    Call(usize),
    /// `CAST(x AS t)`.
    Cast,
    Case,
    /// What follows OVER or FILTER.
    Window,
    /// The list after IN, and what is looked for.
    List,
}

/// The part of a query in which the pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clause {
    /// The select list, or the list after RETURNING.
    Items,
    /// The tables of a query.
    Tables,
    /// Conditions.
    Conditions,
    /// `SET a = 1`; whether the sign of the present item has come.
    Set(bool),
    /// ORDER BY and GROUP BY.
    Order,
    /// The result of a branch of CASE.
    Branch,
    /// The rows after VALUES.
    Rows,
}

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// Where the operand begins that the frame becomes.
    pub(super) start: usize,
    /// Where the query begins in which the frame is.
    pub(super) query: usize,
    pub(super) clause: Clause,
    pub(super) is_distinct: bool,
    pub(super) operands: Vec<Operand>,
    pub(super) operators: Vec<Operator>,
    /// How many operators have a left operand.
    binary: usize,
    /// The left side of BETWEEN, or of IN.
    pub(super) base: Option<Operand>,
    /// Whether the AND of BETWEEN has come.
    pub(super) and_came: bool,
    /// Whether the list after IN comes next.
    pub(super) is_in: bool,
    /// The parenthesis of the list of names that the query gives to its columns.
    pub(super) names: Option<usize>,
    /// That of the query which comes next.
    pub(super) next_names: Option<usize>,
    /// What is looked for in the list, or by the query, that the frame is.
    pub(super) sought: Option<Operand>,
    /// The expressions that are complete: the arguments of a call, the items of a query, the
    /// results of CASE.
    pub(super) items: Vec<Operand>,
    /// How many expressions are complete.
    pub(super) count: usize,
}

impl Frame {
    pub(super) fn new(kind: Kind, start: usize, query: usize) -> Frame {
        Frame {
            kind,
            start,
            query,
            clause: Clause::Conditions,
            is_distinct: false,
            operands: Vec::new(),
            operators: Vec::new(),
            binary: 0,
            base: None,
            and_came: false,
            is_in: false,
            names: None,
            next_names: None,
            sought: None,
            items: Vec::new(),
            count: 0,
        }
    }

    /// Returns whether an operand has just ended, so that an operator may follow.
    pub(super) fn is_complete(&self) -> bool {
        self.operands.len() > self.binary
    }

    pub(super) fn push_operator(&mut self, at: usize, rank: u8, is_unary: bool) {
        self.binary += usize::from(!is_unary);
        self.operators.push(Operator { at, rank, is_unary });
    }

    pub(super) fn drop_operator(&mut self) {
        if self.operators.pop().is_some_and(|operator| !operator.is_unary) {
            self.binary -= 1;
        }
    }

    /// Forgets the expression.
    pub(super) fn clear(&mut self) {
        self.operands.clear();
        self.operators.clear();
        self.binary = 0;
        (self.base, self.and_came, self.is_in) = (None, false, false);
    }
}
