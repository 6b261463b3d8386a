//! A part of Redis: strings, numbers, lists, sets, hashes, and keys that expire.
//!
//! `cargo run --release -p ums --example redis [ADDRESS]`, and then
//! `redis-benchmark -p 6379 -t ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,lrange,mset`
//!
//! Each connection has a task with plain code: it reads a command, carries it out, and writes the
//! answer. Answers to commands that came together leave together. The keys are divided among
//! shards with a lock each. SIGTERM and Ctrl-C stop accepting, and give connections a second.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ums::net::{TcpListener, TcpStream};
use ums::process::Signals;
use ums::sync::Mutex;

/// The most bytes in the arguments of a command, and the most arguments.
const BYTES_MAX: usize = 16 << 20;
const ARGUMENTS_MAX: usize = 100_000;
/// The longest line, with its end.
const LINE_MAX: usize = 64 << 10;
const SHARDS: usize = 64;
const GRACE: Duration = Duration::from_secs(1);

type Bytes = Vec<u8>;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:6379".into());
    let signals = Signals::termination()?;
    let node = ums::Node::builder().build()?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let store = Arc::new(Store::new());
    node.spawn(move || {
        for stream in listener.incoming().flatten() {
            let store = store.clone();
            drop(ums::task::try_spawn(move || connection(&stream, &store)));
        }
    })?;
    signals.wait()?;
    node.drain(GRACE);
    Ok(())
}

/// Carries out the commands of one client until it leaves. Commands that are already there are
/// answered with one write.
fn connection(stream: &TcpStream, store: &Store) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut answers) = (BufReader::with_capacity(16 << 10, stream), Vec::new());
    loop {
        let command = match read_command(&mut input) {
            Ok(Some(command)) => command,
            Ok(None) => return (&*stream).write_all(&answers),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Answer::Error(format!("ERR Protocol error: {error}")).write(&mut answers);
                return (&*stream).write_all(&answers);
            }
            Err(error) => return (&*stream).write_all(&answers).and(Err(error)),
        };
        let (name, arguments) = command.split_first().expect("a command has a name");
        carry_out(&name.to_ascii_uppercase(), arguments, store).write(&mut answers);
        if input.buffer().is_empty() || answers.len() > 64 << 10 {
            (&*stream).write_all(&answers)?;
            answers.clear();
        }
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Reads a command, as an array of strings or as a line of words. Returns `None` at the end.
fn read_command(input: &mut impl BufRead) -> io::Result<Option<Vec<Bytes>>> {
    loop {
        let line = read_line(input)?;
        let Some((kind, count)) = line.split_first() else {
            if input.fill_buf()?.is_empty() {
                return Ok(None);
            }
            continue; // an empty line
        };
        let command: Vec<Bytes> = if *kind == b'*' {
            let (count, mut left) = (length(count, ARGUMENTS_MAX)?, BYTES_MAX);
            (0..count).map(|_| read_string(input, &mut left)).collect::<io::Result<_>>()?
        } else {
            let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.map(Bytes::from).collect()
        };
        if !command.is_empty() {
            return Ok(Some(command));
        }
    }
}

/// Reads a string of at most `left` bytes, and takes its length from `left`.
fn read_string(input: &mut impl BufRead, left: &mut usize) -> io::Result<Bytes> {
    let line = read_line(input)?;
    let length = match line.split_first() {
        Some((b'$', digits)) => length(digits, *left)?,
        _ => return Err(invalid("expected '$'")),
    };
    *left -= length;
    // Not more at once than has arrived, whatever the client says.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    if input.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    read_line(input)?;
    Ok(bytes)
}

/// Reads a line, without its end. It is empty at the end of the input.
fn read_line(input: &mut impl BufRead) -> io::Result<Bytes> {
    let mut line = Vec::new();
    input.take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
    if line.last().is_some_and(|byte| *byte != b'\n') {
        return Err(match line.len() {
            LINE_MAX => invalid("the line is too long"),
            _ => ErrorKind::UnexpectedEof.into(), // the client has left in the middle of it
        });
    }
    while matches!(line.last(), Some(b'\r' | b'\n')) {
        line.pop();
    }
    Ok(line)
}

fn length(digits: &[u8], most: usize) -> io::Result<usize> {
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.filter(|number| *number <= most).ok_or_else(|| invalid("invalid length"))
}

enum Answer {
    Simple(&'static str),
    Error(String),
    Number(i64),
    Bytes(Bytes),
    Nothing,
    List(Vec<Answer>),
}

impl Answer {
    fn write(&self, to: &mut Vec<u8>) {
        let head = |to: &mut Vec<u8>, kind: char, text: &dyn std::fmt::Display| {
            write!(to, "{kind}{text}\r\n").expect("memory can be written to");
        };
        match self {
            Answer::Simple(text) => head(to, '+', text),
            Answer::Error(text) => head(to, '-', text),
            Answer::Number(number) => head(to, ':', number),
            Answer::Nothing => head(to, '$', &-1),
            Answer::Bytes(bytes) => {
                head(to, '$', &bytes.len());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Answer::List(list) => {
                head(to, '*', &list.len());
                list.iter().for_each(|answer| answer.write(to));
            }
        }
    }
}

enum Value {
    String(Bytes),
    List(VecDeque<Bytes>),
    Set(HashSet<Bytes>),
    Hash(HashMap<Bytes, Bytes>),
}

struct Entry {
    value: Value,
    expires: Option<Instant>,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }
}

type Shard = HashMap<Bytes, Entry>;

struct Store {
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

impl Store {
    fn new() -> Store {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect();
        Store { hasher: RandomState::new(), shards }
    }

    /// Calls `f` with the shard of this key, from which the key is gone if its time is over.
    fn with<R>(&self, key: &[u8], f: impl FnOnce(&mut Shard) -> R) -> R {
        let at = self.hasher.hash_one(key) as usize % SHARDS;
        let mut shard = self.shards[at].lock();
        if shard.get(key).is_some_and(Entry::is_over) {
            shard.remove(key);
        }
        f(&mut shard)
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_NUMBER: &str = "ERR value is not an integer or out of range";

/// Calls the closure with the value of a key, which is made if there is none. An empty list or set
/// is removed.
macro_rules! on {
    ($store:expr, $key:expr, $kind:ident, $f:expr) => {
        $store.with($key, |shard| {
            let make = || Entry { value: Value::$kind(Default::default()), expires: None };
            let entry = shard.entry($key.clone()).or_insert_with(make);
            let Value::$kind(value) = &mut entry.value else {
                return Answer::Error(WRONG_TYPE.into());
            };
            let answer = $f(value);
            if value.is_empty() {
                shard.remove($key);
            }
            answer
        })
    };
}

fn carry_out(name: &[u8], arguments: &[Bytes], store: &Store) -> Answer {
    let number = |count: usize| Answer::Number(count as i64);
    match (name, arguments) {
        (b"PING", []) => Answer::Simple("PONG"),
        (b"PING" | b"ECHO", [text]) => Answer::Bytes(text.clone()),
        (b"SELECT" | b"CLIENT", _) => Answer::Simple("OK"),
        (b"CONFIG" | b"COMMAND", _) => Answer::List(Vec::new()),
        (b"SET", [key, value, options @ ..]) => set(store, key, value, options),
        (b"MSET", pairs) if pairs.len() % 2 == 0 && !pairs.is_empty() => {
            pairs.chunks(2).for_each(|pair| _ = set(store, &pair[0], &pair[1], &[]));
            Answer::Simple("OK")
        }
        (b"GET", [key]) => get(store, key),
        (b"MGET", keys) => Answer::List(keys.iter().map(|key| get(store, key)).collect()),
        (b"INCR", [key]) => add(store, key, Some(1)),
        (b"DECR", [key]) => add(store, key, Some(-1)),
        (b"INCRBY", [key, step]) => add(store, key, parsed(step)),
        (b"DECRBY", [key, step]) => add(store, key, parsed(step).and_then(i64::checked_neg)),
        (b"DEL" | b"UNLINK", keys) => {
            let is_there = |key: &&Bytes| store.with(key, |shard| shard.remove(*key).is_some());
            number(keys.iter().filter(is_there).count())
        }
        (b"EXISTS", keys) => {
            let is_there = |key: &&Bytes| store.with(key, |shard| shard.contains_key(*key));
            number(keys.iter().filter(is_there).count())
        }
        (b"EXPIRE", [key, seconds]) => expire(store, key, seconds),
        (b"FLUSHALL" | b"FLUSHDB", _) => {
            store.shards.iter().for_each(|shard| shard.lock().clear());
            Answer::Simple("OK")
        }
        _ => collections(name, arguments, store),
    }
}

/// Commands for lists, sets and hashes.
fn collections(name: &[u8], arguments: &[Bytes], store: &Store) -> Answer {
    let number = |count: usize| Answer::Number(count as i64);
    let or_nothing = |bytes: Option<Bytes>| bytes.map_or(Answer::Nothing, Answer::Bytes);
    match (name, arguments) {
        (b"LPUSH" | b"RPUSH", [key, values @ ..]) if !values.is_empty() => {
            on!(store, key, List, |list: &mut VecDeque<Bytes>| {
                values.iter().cloned().for_each(|value| match name {
                    b"LPUSH" => list.push_front(value),
                    _ => list.push_back(value),
                });
                number(list.len())
            })
        }
        (b"LPOP", [key]) => on!(store, key, List, |l: &mut VecDeque<_>| or_nothing(l.pop_front())),
        (b"RPOP", [key]) => on!(store, key, List, |l: &mut VecDeque<_>| or_nothing(l.pop_back())),
        (b"LLEN", [key]) => on!(store, key, List, |l: &mut VecDeque<_>| number(l.len())),
        (b"LRANGE", [key, from, to]) => range(store, key, from, to),
        (b"SADD", [key, members @ ..]) if !members.is_empty() => {
            on!(store, key, Set, |set: &mut HashSet<Bytes>| {
                number(members.iter().filter(|member| set.insert(member.to_vec())).count())
            })
        }
        (b"SPOP", [key]) => on!(store, key, Set, |set: &mut HashSet<Bytes>| {
            let any = set.iter().next().cloned();
            or_nothing(any.inspect(|any| _ = set.remove(any)))
        }),
        (b"SCARD", [key]) => on!(store, key, Set, |set: &mut HashSet<_>| number(set.len())),
        (b"HSET", [key, pairs @ ..]) if pairs.len() % 2 == 0 && !pairs.is_empty() => {
            on!(store, key, Hash, |hash: &mut HashMap<Bytes, Bytes>| {
                let mut insert = |pair: &&[Bytes]| hash.insert(pair[0].clone(), pair[1].clone());
                number(pairs.chunks(2).filter(|pair| insert(pair).is_none()).count())
            })
        }
        (b"HGET", [key, field]) => on!(store, key, Hash, |hash: &mut HashMap<Bytes, Bytes>| {
            or_nothing(hash.get(field).cloned())
        }),
        _ => {
            let name = String::from_utf8_lossy(name);
            Answer::Error(format!("ERR unknown command '{name}', or wrong number of arguments"))
        }
    }
}

fn set(store: &Store, key: &Bytes, value: &Bytes, options: &[Bytes]) -> Answer {
    let expires = match options {
        [] => None,
        [unit, count] if unit.eq_ignore_ascii_case(b"EX") || unit.eq_ignore_ascii_case(b"PX") => {
            let unit = if unit.eq_ignore_ascii_case(b"EX") { 1000 } else { 1 };
            match parsed(count).and_then(|n| u64::try_from(n).ok()?.checked_mul(unit)) {
                Some(ms) => Instant::now().checked_add(Duration::from_millis(ms)),
                None => return Answer::Error(NO_NUMBER.into()),
            }
        }
        _ => return Answer::Error("ERR syntax error".into()),
    };
    let entry = Entry { value: Value::String(value.clone()), expires };
    store.with(key, |shard| shard.insert(key.clone(), entry));
    Answer::Simple("OK")
}

fn get(store: &Store, key: &Bytes) -> Answer {
    store.with(key, |shard| match shard.get(key).map(|entry| &entry.value) {
        None => Answer::Nothing,
        Some(Value::String(bytes)) => Answer::Bytes(bytes.clone()),
        Some(_) => Answer::Error(WRONG_TYPE.into()),
    })
}

fn add(store: &Store, key: &Bytes, step: Option<i64>) -> Answer {
    store.with(key, |shard| {
        let make = || Entry { value: Value::String(b"0".to_vec()), expires: None };
        let Value::String(text) = &mut shard.entry(key.clone()).or_insert_with(make).value else {
            return Answer::Error(WRONG_TYPE.into());
        };
        let Some(sum) = parsed(text).zip(step).and_then(|(n, step)| n.checked_add(step)) else {
            return Answer::Error(NO_NUMBER.into());
        };
        *text = sum.to_string().into_bytes();
        Answer::Number(sum)
    })
}

fn expire(store: &Store, key: &Bytes, seconds: &Bytes) -> Answer {
    let Some(seconds) = parsed(seconds) else { return Answer::Error(NO_NUMBER.into()) };
    let after = Duration::from_secs(seconds.max(0) as u64);
    store.with(key, |shard| match shard.get_mut(key) {
        Some(entry) => {
            entry.expires = Instant::now().checked_add(after);
            Answer::Number(1)
        }
        None => Answer::Number(0),
    })
}

fn range(store: &Store, key: &Bytes, from: &Bytes, to: &Bytes) -> Answer {
    let (Some(from), Some(to)) = (parsed(from), parsed(to)) else {
        return Answer::Error(NO_NUMBER.into());
    };
    on!(store, key, List, |list: &mut VecDeque<Bytes>| {
        // Negative numbers count from the end.
        let len = list.len() as i64;
        let place = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at.min(len) };
        let (first, end) = (place(from), if to < -len { 0 } else { place(to).saturating_add(1) });
        let count = end.min(len).saturating_sub(first).max(0);
        let range = list.iter().skip(first as usize).take(count as usize);
        Answer::List(range.cloned().map(Answer::Bytes).collect())
    })
}

fn parsed(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
