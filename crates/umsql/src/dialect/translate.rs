//! Rewrites a statement from PostgreSQL's spelling to SQLite's.
//!
//! Most of it is one pass over the tokens that copies what it does not know. A cast `x::t` is the one form
//! that reaches backwards: the pass remembers where the last complete operand began in the output, and puts
//! `CAST(` there.
//!
//! What it does not do: it knows no grammar, so a form that is not listed here goes to SQLite as it is and
//! SQLite's syntax error comes back.

use super::statement::{Reader, Sql, near};
use super::tokens::{Kind, Token};
use crate::error::{Result, SqlError};
use crate::wire::types;

/// Translates one statement of the query `source`.
pub(crate) fn sql(tokens: &[Token<'_>], source: &str) -> Result<Sql> {
    if let Some(sql) = whole_statement(Reader::new(tokens))? {
        return Ok(sql);
    }
    let tokens = trim(tokens);
    let text = Rewriter::new(source, tokens).run();
    let verbatim_at = source[tokens[0].at..].starts_with(&text).then_some(tokens[0].at);
    let first = tokens[0].text.to_ascii_lowercase();
    let second = tokens.get(1).map(|token| token.text.to_ascii_lowercase()).unwrap_or_default();
    let temporary = matches!(second.as_str(), "temp" | "temporary");
    Ok(Sql {
        tag: tag(&first, &second, tokens),
        verbatim_at,
        alters: matches!(
            first.as_str(),
            "create" | "drop" | "alter" | "reindex" | "vacuum" | "pragma"
        ),
        pins: matches!(first.as_str(), "pragma" | "attach" | "detach")
            || (first == "create" && temporary),
        alone: first == "vacuum",
        catalog: tokens.iter().any(|t| {
            let start = t.text.get(..3).unwrap_or_default();
            t.kind == Kind::Word
                && (start.eq_ignore_ascii_case("pg_")
                    || t.is("information_schema")
                    || t.is("regclass"))
        }),
        texts: vec![text],
    })
}

fn tag(first: &str, second: &str, tokens: &[Token<'_>]) -> &'static str {
    let object = if matches!(second, "temp" | "temporary" | "unique" | "unlogged" | "virtual") {
        tokens.get(2).map(|token| token.text.to_ascii_lowercase()).unwrap_or_default()
    } else {
        second.to_owned()
    };
    match (first, object.as_str()) {
        ("select" | "values" | "table", _) => "SELECT",
        ("insert" | "replace", _) => "INSERT 0",
        ("update", _) => "UPDATE",
        ("delete", _) => "DELETE",
        ("with", _) => with_tag(tokens),
        ("create", "table") if tokens.iter().any(|token| token.is("select")) => "SELECT",
        ("create", "table") => "CREATE TABLE",
        ("create", "index") => "CREATE INDEX",
        ("create", "view") => "CREATE VIEW",
        ("create", "trigger") => "CREATE TRIGGER",
        ("drop", "table") => "DROP TABLE",
        ("drop", "index") => "DROP INDEX",
        ("drop", "view") => "DROP VIEW",
        ("drop", "trigger") => "DROP TRIGGER",
        ("alter", _) => "ALTER TABLE",
        ("analyze", _) => "ANALYZE",
        ("vacuum", _) => "VACUUM",
        ("explain", _) => "EXPLAIN",
        ("reindex", _) => "REINDEX",
        ("pragma", _) => "PRAGMA",
        ("attach", _) => "ATTACH",
        ("detach", _) => "DETACH",
        _ => "OK",
    }
}

/// What stands behind the common table expressions.
fn with_tag(tokens: &[Token<'_>]) -> &'static str {
    let mut depth = 0usize;
    for token in tokens {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            _ if token.is("select") => return "SELECT",
            _ if token.is("insert") || token.is("replace") => return "INSERT 0",
            _ if token.is("update") => return "UPDATE",
            _ if token.is("delete") => return "DELETE",
            _ => (),
        }
    }
    "SELECT"
}

/// Statements whose translation is a new text rather than a rewritten one.
fn whole_statement(mut r: Reader<'_, '_>) -> Result<Option<Sql>> {
    let ddl = |texts: Vec<String>, tag| Sql {
        texts,
        tag,
        verbatim_at: None,
        alters: true,
        pins: false,
        alone: false,
        catalog: false,
    };
    if r.take(&["truncate"]) {
        r.take(&["table"]);
        let texts = tables(&mut r)?.iter().map(|t| format!("DELETE FROM {}", quote(t))).collect();
        return Ok(Some(Sql { alters: false, ..ddl(texts, "TRUNCATE TABLE") }));
    }
    if r.take(&["vacuum"]) {
        while ["full", "freeze", "verbose"].iter().any(|word| r.take(&[word])) {}
        if r.take(&["analyze"]) {
            let target = if r.rest.is_empty() { String::new() } else { quote(&r.table()?) };
            return Ok(Some(ddl(vec![format!("ANALYZE {target}")], "VACUUM")));
        }
        return Ok(Some(Sql { alone: true, ..ddl(vec!["VACUUM".into()], "VACUUM") }));
    }
    for (words, tag) in [
        (["drop", "table"], "DROP TABLE"),
        (["drop", "view"], "DROP VIEW"),
        (["drop", "index"], "DROP INDEX"),
    ] {
        if r.take(&words) {
            let exists = if r.take(&["if", "exists"]) { "IF EXISTS " } else { "" };
            let drop = |name: &String| format!("{tag} {exists}{}", quote(name));
            return Ok(Some(ddl(tables(&mut r)?.iter().map(drop).collect(), tag)));
        }
    }
    if r.take(&["alter", "table"]) {
        return Ok(add_key(r)?.map(|text| ddl(vec![text], "ALTER TABLE")));
    }
    Ok(None)
}

/// `a, b [CASCADE | RESTRICT | RESTART IDENTITY]`.
fn tables(r: &mut Reader<'_, '_>) -> Result<Vec<String>> {
    r.take(&["only"]);
    let mut names = vec![r.table()?];
    while r.take(&[","]) {
        names.push(r.table()?);
    }
    let _ = r.take(&["restart", "identity"]) || r.take(&["continue", "identity"]);
    let _ = r.take(&["cascade"]) || r.take(&["restrict"]);
    r.end()?;
    Ok(names)
}

/// A key that is added to a table becomes a unique index, which is what a key is in SQLite.
fn add_key(mut r: Reader<'_, '_>) -> Result<Option<String>> {
    r.take(&["if", "exists"]);
    r.take(&["only"]);
    let table = r.table()?;
    if !r.take(&["add"]) {
        return Ok(None);
    }
    let named = if r.take(&["constraint"]) { Some(r.name()?) } else { None };
    let suffix = if r.take(&["primary", "key"]) {
        "pkey"
    } else if r.take(&["unique"]) {
        "key"
    } else if named.is_some() || r.take(&["foreign"]) || r.take(&["check"]) {
        return Err(SqlError::unsupported(
            "SQLite cannot add this constraint to a table that exists",
        )
        .hint("Write the constraint in CREATE TABLE."));
    } else {
        return Ok(None);
    };
    let open = r.next()?;
    if !open.sign("(") {
        return Err(near(open));
    }
    let mut columns = vec![quote(&r.name()?)];
    while r.take(&[","]) {
        columns.push(quote(&r.name()?));
    }
    let name = named.unwrap_or_else(|| format!("{table}_{suffix}"));
    let (name, table) = (quote(&name), quote(&table));
    Ok(Some(format!("CREATE UNIQUE INDEX {name} ON {table} ({})", columns.join(", "))))
}

/// A name in quotes.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Leaves out what stands at the end and says nothing to SQLite: storage options of a new table, and the
/// row locks of a query, since a writer owns the whole database here.
fn trim<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut depth = 0usize;
    let creates = tokens[0].is("create");
    for (index, token) in tokens.iter().enumerate() {
        let next = tokens.get(index + 1);
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 || index == 0 => (),
            _ if creates && token.is("with") && next.is_some_and(|next| next.sign("(")) => {
                return &tokens[..index];
            }
            _ if creates && token.is("tablespace") => return &tokens[..index],
            _ if token.is("for")
                && next.is_some_and(|next| {
                    ["update", "share", "no", "key"].iter().any(|word| next.is(word))
                }) =>
            {
                return &tokens[..index];
            }
            _ => (),
        }
    }
    tokens
}

/// An open parenthesis in the output.
struct Open {
    /// Where the operand that it belongs to began: the function's name, or the parenthesis itself.
    operand: usize,
    /// It is the one of `CAST (`.
    cast: bool,
}

struct Rewriter<'t, 'a> {
    source: &'a str,
    tokens: &'t [Token<'a>],
    at: usize,
    out: String,
    /// Where the last complete operand began in `out`; none after an operator.
    operand: Option<usize>,
    open: Vec<Open>,
    /// The end of the last token that was copied, to copy the space behind it.
    copied: usize,
}

impl<'t, 'a> Rewriter<'t, 'a> {
    fn new(source: &'a str, tokens: &'t [Token<'a>]) -> Rewriter<'t, 'a> {
        let copied = tokens[0].at;
        let out = String::with_capacity(source.len() + 16);
        Rewriter { source, tokens, at: 0, out, operand: None, open: Vec::new(), copied }
    }

    fn run(mut self) -> String {
        while let Some(token) = self.peek(0) {
            if !self.special(&token) {
                self.copy(&token);
            }
        }
        self.out
    }

    fn peek(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn next_is(&self, ahead: usize, text: &str) -> bool {
        self.peek(ahead).is_some_and(|token| token.is(text) || token.sign(text))
    }

    /// Skips `count` tokens.
    fn skip(&mut self, count: usize) {
        self.at += count;
        if let Some(last) = self.tokens.get(self.at - 1) {
            self.copied = last.end();
        }
    }

    /// Writes `text` in the place of the next `count` tokens.
    fn put(&mut self, count: usize, text: &str) -> usize {
        self.space();
        let start = self.out.len();
        self.out.push_str(text);
        self.skip(count);
        start
    }

    /// Copies the space in front of the next token; a comment becomes one space.
    fn space(&mut self) {
        let Some(token) = self.peek(0) else { return };
        let gap = &self.source[self.copied..token.at];
        if gap.chars().all(char::is_whitespace) {
            self.out.push_str(gap);
        } else {
            self.out.push(' ');
        }
    }

    fn copy(&mut self, token: &Token<'a>) {
        let name_before = self.at > 0 && self.tokens[self.at - 1].kind == Kind::Word;
        let after_dot = self.at > 0 && self.tokens[self.at - 1].sign(".");
        let start = self.put(1, token.text);
        match (token.kind, token.text) {
            (Kind::Sign, "(") => {
                let cast = name_before && self.tokens[self.at - 2].is("cast");
                let call = name_before && !is_operator_word(&self.tokens[self.at - 2]);
                let operand = if call { self.operand.unwrap_or(start) } else { start };
                self.open.push(Open { operand, cast });
                self.operand = None;
            }
            (Kind::Sign, ")") => self.operand = self.open.pop().map(|open| open.operand),
            (Kind::Sign, ".") => (),
            (Kind::Sign, _) => self.operand = None,
            (Kind::Word, _) if is_operator_word(token) && !after_dot => self.operand = None,
            _ if after_dot && self.operand.is_some() => (),
            _ => self.operand = Some(start),
        }
    }

    /// Translates a form that begins at `token`. False when there is none.
    fn special(&mut self, token: &Token<'a>) -> bool {
        match token.kind {
            Kind::Sign => self.special_sign(token),
            Kind::Word => self.special_word(token),
            Kind::Escaped | Kind::Dollar => {
                let text = format!("'{}'", token.value().replace('\'', "''"));
                self.operand = Some(self.put(1, &text));
                true
            }
            _ => false,
        }
    }

    fn special_sign(&mut self, token: &Token<'a>) -> bool {
        let operator = match token.text {
            "::" => return self.cast_suffix(),
            "~" if self.operand.is_some() => "REGEXP",
            "!~" => "NOT REGEXP",
            "~*" => "REGEXP '(?i)' ||",
            "!~*" => "NOT REGEXP '(?i)' ||",
            "~~" | "~~*" => "LIKE",
            "!~~" | "!~~*" => "NOT LIKE",
            _ => return false,
        };
        self.operator(1, operator);
        true
    }

    fn operator(&mut self, count: usize, operator: &str) {
        self.put(count, &format!(" {operator} "));
        self.operand = None;
    }

    fn special_word(&mut self, token: &Token<'a>) -> bool {
        let lower = token.text.to_ascii_lowercase();
        let dotted = self.next_is(1, ".");
        match lower.as_str() {
            "pg_catalog" | "public" if dotted => self.skip_prefix(),
            "information_schema" if dotted => {
                self.operand = Some(self.put(2, "information_schema_"));
                // The name that follows continues this one.
                if let Some(name) = self.peek(0) {
                    self.copied = name.at;
                    self.put(1, name.text);
                }
            }
            "operator" if self.next_is(1, "(") => return self.spelled_operator(),
            "collate" if self.next_is(1, "pg_catalog") => self.skip(4),
            "ilike" => self.operator(1, "LIKE"),
            "as" if self.open.last().is_some_and(|open| open.cast) => {
                let Some((len, oid)) = self.type_name(1) else { return false };
                self.put(1 + len, &format!("AS {}", storage(oid)));
            }
            "current_user" | "session_user" | "current_catalog" | "current_schema"
            | "current_role"
                if !self.next_is(1, "(") =>
            {
                self.operand = Some(self.put(1, &format!("{lower}()")));
            }
            "generate_series" if self.next_is(1, "(") => return self.series(),
            "array" if self.next_is(1, "(") && self.next_is(2, "select") => return self.array(),
            "unlogged" if self.at == 1 => self.skip(1),
            "concurrently" if self.tokens[0].is("create") => self.skip(1),
            "using" if self.next_is(1, "btree") => self.skip(2),
            "default" if self.next_is(1, "now") => {
                self.put(4, "DEFAULT CURRENT_TIMESTAMP");
            }
            "serial" | "bigserial" | "smallserial" if self.tokens[0].is("create") => {
                self.put(1, "INTEGER");
            }
            "json" | "jsonb" | "date" | "timestamp" | "timestamptz"
                if self.peek(1).is_some_and(|token| token.kind == Kind::Text) =>
            {
                // A literal with its type in front: the text alone says the same.
                self.skip_prefix_word();
            }
            _ => return false,
        }
        true
    }

    /// Leaves out a schema's name and its dot.
    fn skip_prefix(&mut self) {
        self.space();
        self.skip(2);
        self.copied = self.peek(0).map_or(self.copied, |next| next.at);
    }

    fn skip_prefix_word(&mut self) {
        self.space();
        self.skip(1);
        self.copied = self.peek(0).map_or(self.copied, |next| next.at);
    }

    /// `OPERATOR(pg_catalog.~)`.
    fn spelled_operator(&mut self) -> bool {
        let mut len = 2;
        while self.peek(len).is_some_and(|token| token.is_name() || token.sign(".")) {
            len += 1;
        }
        let (Some(sign), true) = (self.peek(len), self.next_is(len + 1, ")")) else { return false };
        let operator = match sign.text {
            "~" => "REGEXP",
            "!~" => "NOT REGEXP",
            "~~" => "LIKE",
            "!~~" => "NOT LIKE",
            other => other,
        };
        self.operator(len + 2, operator);
        true
    }

    /// The operand that just ended gets a type.
    fn cast_suffix(&mut self) -> bool {
        let (Some(start), Some((len, oid))) = (self.operand, self.type_name(1)) else {
            return false;
        };
        let type_text =
            self.peek(1).map(|token| token.text.to_ascii_lowercase()).unwrap_or_default();
        self.skip(1 + len);
        let operand = self.out.split_off(start);
        let operand = operand.trim_end();
        let text = match (oid, type_text.as_str()) {
            (types::BOOL, _) => format!("pg_bool({operand})"),
            (types::DATE, _) => format!("date({operand})"),
            (types::OID, "regclass") => {
                format!("(SELECT oid FROM pg_class WHERE relname = {operand} OR oid = {operand})")
            }
            _ => format!("CAST({operand} AS {})", storage(oid)),
        };
        self.out.push_str(&text);
        self.operand = Some(start);
        true
    }

    /// The type whose name begins `ahead` tokens from here: how many tokens it takes, and its number.
    fn type_name(&self, ahead: usize) -> Option<(usize, u32)> {
        let mut len = 0;
        if self.next_is(ahead, "pg_catalog") && self.next_is(ahead + 1, ".") {
            len = 2;
        }
        let first = self.peek(ahead + len).filter(Token::is_name)?;
        let mut name = first.text.to_owned();
        len += 1;
        let follows: &[&str] = match first.text.to_ascii_lowercase().as_str() {
            "double" => &["precision"],
            "character" => &["varying"],
            _ => &[],
        };
        for word in follows {
            if self.next_is(ahead + len, word) {
                name = format!("{name} {word}");
                len += 1;
            }
        }
        if self.next_is(ahead + len, "(") {
            while !self.next_is(ahead + len, ")") {
                self.peek(ahead + len)?;
                len += 1;
            }
            len += 1;
        }
        if ["with", "without"].iter().any(|word| self.next_is(ahead + len, word))
            && self.next_is(ahead + len + 1, "time")
        {
            let with = self.next_is(ahead + len, "with");
            name.push_str(if with { " with time zone" } else { "" });
            len += 3;
        }
        if self.next_is(ahead + len, "[") && self.next_is(ahead + len + 1, "]") {
            len += 2;
        }
        Some((len, types::by_name(&name)))
    }

    /// `ARRAY(SELECT ..)` becomes one text in PostgreSQL's form of an array.
    fn array(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1) else { return false };
        let select = Rewriter::new(self.source, &self.tokens[self.at + 2..close]).run();
        let list = format!("SELECT NULL AS item WHERE 0 UNION ALL {select}");
        let text = format!("(SELECT '{{' || coalesce(group_concat(item), '') || '}}' FROM ({list}))");
        self.operand = Some(self.put(close + 1 - self.at, &text));
        true
    }

    /// In PostgreSQL the column of `generate_series(..) AS i` is called `i`, or `generate_series`.
    fn series(&mut self) -> bool {
        let from = self.at > 0
            && (self.tokens[self.at - 1].is("from")
                || self.tokens[self.at - 1].is("join")
                || self.tokens[self.at - 1].sign(","));
        let Some(close) = self.closing(self.at + 1).filter(|_| from && !self.open_is_call()) else {
            return false;
        };
        let mut after = close + 1;
        let aliased = self.tokens.get(after).is_some_and(|token| token.is("as"));
        after += usize::from(aliased);
        let alias = match self.tokens.get(after) {
            Some(token) if token.is_name() && (aliased || !is_clause_word(token)) => token,
            _ => {
                after = close;
                &self.tokens[self.at]
            }
        };
        let mut column = alias.text;
        let list = after + 1;
        if self.tokens.get(list).is_some_and(|token| token.sign("(")) && after > close {
            column = self.tokens.get(list + 1).map_or(column, |token| token.text);
            after = list + 2;
        }
        let call = Rewriter::new(self.source, &self.tokens[self.at + 1..=close]).run();
        let text =
            format!("(SELECT value AS {column} FROM generate_series{call}) AS {}", alias.text);
        let count = after + 1 - self.at;
        self.put(count.min(self.tokens.len() - self.at), &text);
        self.operand = None;
        true
    }

    /// True inside the arguments of a function, where a comma does not continue a FROM clause.
    fn open_is_call(&self) -> bool {
        let Some(open) = self.open.last() else { return false };
        !self.out[open.operand..].starts_with('(')
    }

    /// The parenthesis that closes the one at `open`.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            if token.sign("(") {
                depth += 1;
            } else if token.sign(")") {
                depth -= 1;
                if depth == 0 {
                    return Some(index);
                }
            }
        }
        None
    }
}

/// The type name for a SQLite cast to what PostgreSQL calls `oid`.
fn storage(oid: u32) -> &'static str {
    match oid {
        types::INT2 | types::INT4 | types::OID => "int",
        types::INT8 => "bigint",
        types::FLOAT4 | types::FLOAT8 => "real",
        types::NUMERIC => "numeric",
        types::BOOL => "boolean",
        types::BYTEA => "blob",
        _ => "text",
    }
}

/// Words that stand between operands, so that neither a call nor a cast reaches over them.
fn is_operator_word(token: &Token<'_>) -> bool {
    const WORDS: [&str; 34] = [
        "select",
        "from",
        "where",
        "and",
        "or",
        "not",
        "in",
        "is",
        "like",
        "between",
        "then",
        "else",
        "when",
        "case",
        "on",
        "values",
        "as",
        "by",
        "having",
        "limit",
        "offset",
        "returning",
        "set",
        "distinct",
        "all",
        "union",
        "except",
        "intersect",
        "any",
        "exists",
        "using",
        "join",
        "order",
        "group",
    ];
    token.kind == Kind::Word && WORDS.iter().any(|word| token.is(word))
}

fn is_clause_word(token: &Token<'_>) -> bool {
    const WORDS: [&str; 16] = [
        "where", "order", "group", "limit", "join", "left", "right", "inner", "cross", "full",
        "natural", "on", "union", "offset", "having", "except",
    ];
    WORDS.iter().any(|word| token.is(word))
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn all(source: &str) -> Vec<String> {
        sql(&tokens(source).unwrap(), source).unwrap().texts
    }

    fn one(source: &str) -> String {
        all(source).remove(0)
    }

    #[test]
    fn casts_take_the_whole_operand_before_them() {
        let cases = [
            ("select $1::int + 1", "select CAST($1 AS int) + 1"),
            ("select a.b::text", "select CAST(a.b AS text)"),
            ("select f(x, (1))::int8", "select CAST(f(x, (1)) AS bigint)"),
            ("select (a + b)::double precision", "select CAST((a + b) AS real)"),
            ("select x::int::text", "select CAST(CAST(x AS int) AS text)"),
            ("select 1 where a in (1)::int", "select 1 where a in CAST((1) AS int)"),
            ("select '1'::pg_catalog.int4", "select CAST('1' AS int)"),
            ("select 't'::bool", "select pg_bool('t')"),
            ("select $1::varchar(20)[] , 2", "select CAST($1 AS text) , 2"),
            ("select cast(a as timestamp with time zone)", "select cast(a AS text)"),
            ("select ':: x'", "select ':: x'"),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn ddl_that_pgbench_sends_is_understood_by_sqlite() {
        let create =
            "create table pgbench_tellers(tid int not null,filler char(84)) with (fillfactor=100)";
        assert_eq!(one(create), "create table pgbench_tellers(tid int not null,filler char(84))");
        let drop = all("drop table if exists a, public.b cascade");
        assert_eq!(drop, ["DROP TABLE IF EXISTS \"a\"", "DROP TABLE IF EXISTS \"b\""]);
        assert_eq!(all("truncate table a, b"), ["DELETE FROM \"a\"", "DELETE FROM \"b\""]);
        let key = one("alter table pgbench_branches add primary key (bid)");
        assert_eq!(
            key,
            "CREATE UNIQUE INDEX \"pgbench_branches_pkey\" ON \"pgbench_branches\" (\"bid\")"
        );
        assert_eq!(one("vacuum analyze t"), "ANALYZE \"t\"");
        assert_eq!(
            one("create unlogged table t(a serial primary key)"),
            "create table t(a INTEGER primary key)"
        );
    }

    #[test]
    fn catalogue_spellings_become_sqlite_ones() {
        let from = "select 1 from pg_catalog.pg_class c where c.relname OPERATOR(pg_catalog.~) '^(t)$' \
                    COLLATE pg_catalog.default and pg_catalog.f(c.oid)";
        let to = "select 1 from pg_class c where c.relname  REGEXP  '^(t)$' and f(c.oid)";
        assert_eq!(one(from), to);
        assert_eq!(one("select current_user, E'a\\n'"), "select current_user(), 'a\n'");
        assert_eq!(one("select ~1, a ~ 'x'"), "select ~1, a  REGEXP  'x'");
    }

    #[test]
    fn a_series_gives_its_column_the_name_postgresql_gives_it() {
        let cases = [
            (
                "select i from generate_series(1, $1::int) as i where i > 1",
                "select i from (SELECT value AS i FROM generate_series(1, CAST($1 AS int))) AS i where i > 1",
            ),
            (
                "select * from generate_series(1,3)",
                "select * from (SELECT value AS generate_series FROM generate_series(1,3)) AS generate_series",
            ),
            (
                "select n from generate_series(1,3) t(n)",
                "select n from (SELECT value AS n FROM generate_series(1,3)) AS t",
            ),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn an_unchanged_statement_is_known_to_be_verbatim() {
        let source = "select 1;  select nope";
        let list = tokens(source).unwrap();
        let second = super::super::tokens::statements(&list)[1];
        assert_eq!(sql(second, source).unwrap().verbatim_at, Some(11));
        assert_eq!(
            sql(&tokens("select 1::int").unwrap(), "select 1::int").unwrap().verbatim_at,
            None
        );
    }
}
