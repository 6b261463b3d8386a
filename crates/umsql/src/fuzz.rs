//! The fuzzed functions of this crate: a session as a function of bytes.
//!
//! * [`wire`]: the bytes are what a client sends after it has logged in. Whatever they are, the
//!   answer is whole messages of the protocol, and never an internal error.
//! * [`sql`]: the bytes choose statements, which a session and a plain SQLite connection carry out.
//!   Both return the same rows and the same refusals, after every statement, inside and outside
//!   transactions.
//!
//! The fuzzers in `fuzz/` look for bytes that make these panic; the tests below call them with
//! generated ones. All inputs of a process share one server, whose database is emptied before each.
//!
//! The module exists only in tests and with the feature `fuzz`.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, LazyLock, MutexGuard};

use arbitrary::{Result, Unstructured};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::host::Conn;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use ums::lock::Lock;

/// A client whose input is complete; a read returns at most `piece` bytes of it.
struct Client {
    input: VecDeque<u8>,
    piece: usize,
    output: Vec<u8>,
}

impl Conn for Client {
    fn user(&self) -> u64 {
        1
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.input.len()).min(self.piece);
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (byte, read) in buf.iter_mut().zip(self.input.drain(..len)) {
            *byte = read;
        }
        Ok(len)
    }

    /// Reads; the end of the input is the end of the connection.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf).or(Ok(0))
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| ())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend(bytes);
        Ok(())
    }
}

/// One message of the server.
type Answer = (u8, Vec<u8>);

struct Talk {
    session: Session,
    client: Client,
}

static SERVER: LazyLock<(Arc<Server>, Lock<()>)> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("umsql-fuzzing-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the database");
    let mut settings = Settings::new(dir.join("db"));
    settings.max_message = 1 << 20;
    (Server::open(settings).expect("a server"), Lock::new(()))
});

/// Locks the server, which serves one input at a time.
fn locked() -> MutexGuard<'static, ()> {
    SERVER.1.lock()
}

impl Talk {
    /// Returns a session that has logged in, on a database without tables.
    fn begin(piece: usize) -> Talk {
        let session = SERVER.0.session(1);
        let client = Client { input: VecDeque::new(), piece, output: Vec::new() };
        let mut talk = Talk { session, client };
        let body = b"\0\x03\0\0user\0u\0\0";
        talk.send(&[&(body.len() as u32 + 4).to_be_bytes()[..], body].concat());
        assert!(talk.session.is_logged_in());
        talk.query("set synchronous_commit = off; drop table if exists s; drop table if exists t");
        talk
    }

    /// Passes these bytes to the session. Returns whether the session continues, and its answers.
    fn send(&mut self, bytes: &[u8]) -> (bool, Vec<Answer>) {
        self.client.input.extend(bytes);
        self.client.output.clear();
        let mut flow = Flow::More;
        while flow == Flow::More || (flow == Flow::Idle && !self.client.input.is_empty()) {
            flow = self.session.on_readable(&mut self.client);
        }
        (flow == Flow::Idle, answers(&self.client.output))
    }

    fn query(&mut self, sql: &str) -> Vec<Answer> {
        let (continues, answers) = self.send(&message(b'Q', &[sql.as_bytes(), b"\0"].concat()));
        assert!(continues, "{sql} ended the session: {answers:?}");
        answers
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// Cuts what a session sent into messages.
fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut all = Vec::new();
    while let [tag, a, b, c, d, rest @ ..] = bytes {
        assert!(b"RSKZCTDEN123stInGAV".contains(tag), "an answer of type {tag}");
        let len = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        assert!((4..=rest.len() + 4).contains(&len), "a length of {len}");
        let (body, next) = rest.split_at(len - 4);
        if *tag == b'E' {
            let text = String::from_utf8_lossy(body);
            assert!(!text.contains("XX000"), "an internal error: {text}");
        }
        all.push((*tag, body.to_vec()));
        bytes = next;
    }
    assert!(bytes.is_empty(), "a part of a message: {bytes:?}");
    all
}

/// Statements that are left out, because they wait for long or write other files.
const NOT_ASKED: [&str; 7] =
    ["waitfor", "busy_loop", "recursive", "series", "attach", "backup", "into "];

/// Sends the bytes to a session, in pieces.
pub fn wire(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    if NOT_ASKED.iter().any(|word| text.contains(word)) {
        return;
    }
    let _alone = locked();
    let mut talk = Talk::begin(usize::from(piece).max(1) * 16);
    let (continues, answers) = talk.send(bytes);
    let fatal = |(tag, body): &Answer| *tag == b'E' && body.starts_with(b"SFATAL");
    assert!(!continues || !answers.iter().any(fatal), "a fatal error, but the session continues");
}

/// Runs statements in a session and in plain SQLite, and compares them.
pub fn sql(bytes: &[u8]) {
    let _ = sql_of(&mut Unstructured::new(bytes));
}

/// Returns how many statements were accepted, and how many rows they had.
fn sql_of(bytes: &mut Unstructured<'_>) -> Result<(usize, usize)> {
    let _alone = locked();
    let mut talk = Talk::begin(usize::MAX);
    let mut model = Model::new();
    for table in ["t", "s"] {
        let made = format!("create table {table} (id integer primary key, a integer, b text)");
        talk.query(&made);
        model.query(&made);
    }
    let mut history = Vec::new();
    let (mut taken, mut rows) = (0, 0);
    // A longer history would find nothing that shorter ones do not.
    while !bytes.is_empty() && history.len() < 60 {
        let statement = statement(bytes)?;
        history.push(statement.clone());
        let (said, expected) = (seen(&talk.query(&statement)), model.query(&statement));
        assert_eq!(said, expected, "after {history:#?}");
        taken += usize::from(said.rows.is_some());
        rows += said.rows.map_or(0, |rows| rows.len());
    }
    Ok((taken, rows))
}

/// The rows of a statement as text, or that it was refused; and the transaction's state.
#[derive(Debug, PartialEq)]
struct Seen {
    rows: Option<Vec<Vec<Option<String>>>>,
    state: u8,
}

fn seen(answers: &[Answer]) -> Seen {
    let refused = answers.iter().any(|(tag, _)| *tag == b'E');
    let rows = answers.iter().filter(|(tag, _)| *tag == b'D').map(|(_, body)| row(body));
    let rows = (!refused).then(|| rows.collect());
    let (tag, body) = answers.last().expect("an answer");
    assert_eq!(*tag, b'Z', "ready for the next");
    Seen { rows, state: body[0] }
}

fn row(mut body: &[u8]) -> Vec<Option<String>> {
    let mut take = |len: usize| {
        let (taken, rest) = body.split_at(len);
        body = rest;
        taken
    };
    let count = u16::from_be_bytes(take(2).try_into().expect("two bytes"));
    let mut value = || {
        let len = i32::from_be_bytes(take(4).try_into().expect("four bytes"));
        let text = |len| String::from_utf8(take(len).to_vec()).expect("text");
        usize::try_from(len).ok().map(text)
    };
    (0..count).map(|_| value()).collect()
}

/// A plain connection, with PostgreSQL's rule that a failed transaction accepts no further
/// statement.
struct Model {
    connection: Connection,
    failed: bool,
}

impl Model {
    fn new() -> Model {
        Model { connection: Connection::open_in_memory().expect("memory"), failed: false }
    }

    fn query(&mut self, statement: &str) -> Seen {
        let ends = ["rollback", "commit"].contains(&statement);
        let back = statement.starts_with("rollback");
        let refused = self.failed && !ends && !back;
        let mut rows = if refused { None } else { self.run(statement) };
        if self.failed && ends {
            // COMMIT of a failed transaction is ROLLBACK.
            rows = Some(Vec::new());
        }
        let inside = !self.connection.is_autocommit();
        self.failed = inside && (rows.is_none() || (self.failed && !back));
        let state = if self.failed {
            b'E'
        } else if inside {
            b'T'
        } else {
            b'I'
        };
        Seen { rows, state }
    }

    fn run(&self, statement: &str) -> Option<Vec<Vec<Option<String>>>> {
        let inside = !self.connection.is_autocommit();
        match statement {
            // These warn in PostgreSQL, and change nothing.
            "begin" if inside => return Some(Vec::new()),
            "commit" | "rollback" if !inside => return Some(Vec::new()),
            "commit" if self.failed => return self.run("rollback"),
            // There are no savepoints outside a transaction.
            _ if !inside && (statement.contains("savepoint") || statement.contains("to sp")) => {
                return None;
            }
            _ => (),
        }
        let mut prepared = self.connection.prepare(statement).ok()?;
        let columns = prepared.column_count();
        let mut rows = prepared.query([]).ok()?;
        let mut all = Vec::new();
        loop {
            match rows.next() {
                Err(_) => return None,
                Ok(None) => return Some(all),
                Ok(Some(row)) => {
                    all.push(
                        (0..columns).map(|at| text(row.get_ref(at).expect("a value"))).collect(),
                    );
                }
            }
        }
    }
}

fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        other => panic!("no statement gives {other:?}"),
    }
}

// --- Statements from bytes
// -----------------------------------------------------------------------------------------------

fn statement(bytes: &mut Unstructured<'_>) -> Result<String> {
    let table = *bytes.choose(&["t", "s"])?;
    Ok(match bytes.int_in_range(0..=15)? {
        0..=2 => {
            let skip = *bytes.choose(&[
                "",
                " on conflict do nothing",
                " on conflict (id) do update set a = excluded.a",
            ])?;
            let (id, a, b) = (number(bytes)?, int(bytes, 2)?, string(bytes, 1)?);
            // VALUES can name no column, so it has only literals.
            let (a, b) = (literal(&a), literal(&b));
            format!("insert into {table} values ({id}, {a}, {b}){skip}")
        }
        3 => format!(
            "insert into {table} (a, b) select a, b from {} where {}",
            other(table),
            condition(bytes, 2)?
        ),
        4 | 5 => format!(
            "update {table} set a = {}, b = {} where {}",
            int(bytes, 2)?,
            string(bytes, 2)?,
            condition(bytes, 2)?
        ),
        6 => format!(
            "update {table} set id = id + {} where {}",
            number(bytes)?,
            condition(bytes, 1)?
        ),
        7 => format!("delete from {table} where {}", condition(bytes, 2)?),
        form @ 8..=11 => query(bytes, table, form)?,
        12 => (*bytes.choose(&["begin", "commit", "rollback"])?).into(),
        13 => format!(
            "{} sp{}",
            bytes.choose(&["savepoint", "release savepoint", "rollback to savepoint"])?,
            bytes.int_in_range(0..=1)?
        ),
        14 => format!("delete from {table} where id = {} returning id, a, b", number(bytes)?),
        _ => (*bytes.choose(&[
            "select * from missing",
            "insert into t values (1)",
            "select b from t order by id limit 2 offset 1",
            "create index t_a on t (a)",
            "drop index t_a",
        ])?)
        .into(),
    })
}

fn query(bytes: &mut Unstructured<'_>, table: &str, form: i32) -> Result<String> {
    Ok(match form {
        8 => format!(
            "select id, {}, {} from {table} where {} order by id",
            int(bytes, 3)?,
            string(bytes, 2)?,
            condition(bytes, 2)?
        ),
        9 => format!(
            "select count(*), sum(a), min(b), max({}) from {table} where {}",
            int(bytes, 2)?,
            condition(bytes, 2)?
        ),
        10 => format!(
            "select a, count(*) from {table} group by a having count(*) > {} order by a",
            number(bytes)?
        ),
        _ => format!(
            "select x.id, y.b from t x left join s y on x.a = y.{} order by x.id, y.id",
            bytes.choose(&["id", "a"])?
        ),
    })
}

fn other(table: &str) -> &'static str {
    if table == "t" { "s" } else { "t" }
}

/// Returns the expression if it names no column, otherwise 7.
fn literal(expression: &str) -> &str {
    let names = expression
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| ["id", "a", "b"].contains(&word));
    if names { "7" } else { expression }
}

fn number(bytes: &mut Unstructured<'_>) -> Result<i32> {
    bytes.int_in_range(-3..=12)
}

/// Returns an integer expression. Its numbers stay small, because beyond 64 bits SQLite continues
/// with floating-point numbers.
fn int(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    if depth == 0 {
        return Ok(match bytes.int_in_range(0..=5)? {
            0 | 1 => number(bytes)?.to_string(),
            2 => "id".into(),
            3 => "null".into(),
            _ => "a".into(),
        });
    }
    let (x, y) = (int(bytes, depth - 1)?, int(bytes, depth - 1)?);
    Ok(match bytes.int_in_range(0..=7)? {
        0 => format!("({x} + {y}) % 1000"),
        1 => format!("({x} - {y})"),
        2 => format!("({x} * {y}) % 1000"),
        3 => format!("coalesce({x}, {y})"),
        4 => format!("length({})", string(bytes, depth - 1)?),
        5 => format!("case when {} then {x} else {y} end", condition(bytes, depth - 1)?),
        6 => format!("abs({x})"),
        _ => x,
    })
}

fn string(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    if depth == 0 {
        let literals = ["'x'", "'it''s'", "''", "'a;b --c'", "'€ ü'", "null", "'$1'", "'%'"];
        return Ok(if bytes.arbitrary()? {
            "b".into()
        } else {
            (*bytes.choose(&literals)?).into()
        });
    }
    let (x, y) = (string(bytes, depth - 1)?, string(bytes, depth - 1)?);
    Ok(match bytes.int_in_range(0..=5)? {
        0 => format!("({x} || {y})"),
        1 => format!("upper({x})"),
        2 => format!("substr({x}, 1, {})", bytes.int_in_range(0..=3)?),
        3 => format!("coalesce({x}, {y})"),
        4 => format!("replace({x}, 'x', {y})"),
        _ => x,
    })
}

fn condition(bytes: &mut Unstructured<'_>, depth: u32) -> Result<String> {
    let (x, y) = (int(bytes, depth.saturating_sub(1))?, int(bytes, 0)?);
    Ok(match bytes.int_in_range(0..=8)? {
        0 => format!("{x} < {y}"),
        1 => format!("{x} = {y}"),
        2 => format!("{x} in ({y}, 1, 2)"),
        3 => format!("{x} between {y} and 5"),
        4 => "b is null".into(),
        5 => format!("b like {}", string(bytes, 0)?),
        6 if depth > 0 => {
            format!("({} or {})", condition(bytes, depth - 1)?, condition(bytes, depth - 1)?)
        }
        7 if depth > 0 => format!("not ({})", condition(bytes, depth - 1)?),
        _ => format!("{x} <> {y}"),
    })
}

#[cfg(test)]
#[path = "../../../fuzz/kept.rs"]
mod kept;

#[cfg(test)]
mod tests {
    use arbitrary::Unstructured;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 300,
            max_shrink_iters: 2_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_session_answers_as_plain_sqlite_does(
            bytes in prop::collection::vec(any::<u8>(), 1..2000)
        ) {
            super::sql(&bytes);
        }

        #[test]
        fn whatever_a_client_sends_the_answer_is_whole_messages(
            parts in prop::collection::vec(part(), 0..12),
            piece in any::<u8>(),
        ) {
            super::wire(&[vec![piece], parts.concat()].concat());
        }
    }

    #[test]
    fn sessions_that_were_kept_answer_as_plain_sqlite_does() {
        super::kept::each("sql", super::sql);
    }

    #[test]
    fn what_clients_sent_that_was_kept_is_answered_in_whole_messages() {
        super::kept::each("wire", super::wire);
    }

    /// Found by the fuzzer: IN inside CASE made the whole expression a boolean.
    #[test]
    fn what_stands_in_case_says_nothing_of_the_type_of_the_whole() {
        let _alone = super::locked();
        let mut talk = super::Talk::begin(usize::MAX);
        let said = talk.query("select length('abc') - case when 1 in (1, 2) then 24 else 0 end");
        assert_eq!(super::seen(&said).rows, Some(vec![vec![Some("-21".into())]]));
    }

    #[test]
    fn statements_from_bytes_are_mostly_taken_and_have_rows() {
        let (mut taken, mut rows) = (0, 0);
        for seed in 1..=40u64 {
            let noise = |at: u64| (seed * 7_919 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            let bytes: Vec<u8> = (0..3000).map(|at| noise(at) as u8).collect();
            let (some, of_them) = super::sql_of(&mut Unstructured::new(&bytes)).unwrap_or_default();
            (taken, rows) = (taken + some, rows + of_them);
        }
        println!("{taken} statements of 2400 were taken, with {rows} rows");
        assert!(taken > 1500 && rows > 200, "{taken} of 2400 statements, {rows} rows");
    }

    /// Returns a message that is nearly right, or random bytes.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let tag = prop::sample::select(b"QPBDECSHXdcfFp\0z".to_vec());
        let body = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "(select|begin|commit|copy t from stdin|insert|[a-z'\";$1 ]){0,6}\0"
                .prop_map(String::into_bytes),
            "[a-z]?\0select [$1'+;a-z]{0,9}\0\0\0".prop_map(String::into_bytes),
            Just(b"\0\0\0\0\0\x01\0\0\0\x011\0\0".to_vec()),
        ];
        prop_oneof![
            8 => (tag, body).prop_map(|(tag, body)| super::message(tag, &body)),
            1 => prop::collection::vec(any::<u8>(), 0..30),
        ]
    }
}
