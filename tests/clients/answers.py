"""Statements in files, and what a server answers to them.

A file of tests/statements is a *subject*. It has groups; each begins in an empty database with its set-up:

    \\group Unknown names
    create table t (a int);
    \\try
    select b from t;

What ends a statement says how it is sent: `;` as a simple query (of several statements, if `\\;` is between them), and as in psql
`\\bind VALUE...` in the extended protocol, `\\parse NAME`, `\\bind_named NAME VALUE...` and `\\close_prepared NAME` with a named
statement. Ours are `\\rows N`, which asks for N rows at a time, `\\portal NAME`, which binds a portal without executing it,
`\\execute NAME N` and `\\close_portal NAME`. A value is NULL, a word, or a text in quotes. The data of COPY FROM STDIN follows the
statement, and ends with a line `\\.`.

An *answer* is what the client sees: for each result its columns with their types, its rows as text and its tag, or the error; and the
state of the transaction afterwards. Notices, positions and texts of errors are no part of it.
"""

import re
from dataclasses import dataclass, field

from wire import SYNC, Closed, Conn, bind, execute, fields_of, message, notice, parse

TYPES = {
    16: "bool", 17: "bytea", 18: "char", 19: "name", 20: "int8", 21: "int2", 23: "int4", 25: "text", 26: "oid", 114: "json", 700: "float4",
    701: "float8", 705: "unknown", 1000: "bool[]", 1005: "int2[]", 1007: "int4[]", 1009: "text[]", 1015: "varchar[]", 1016: "int8[]",
    1022: "float8[]", 1042: "bpchar", 1043: "varchar", 1082: "date", 1083: "time", 1114: "timestamp", 1182: "date[]", 1184: "timestamptz",
    1186: "interval", 1231: "numeric[]", 1266: "timetz", 1560: "bit", 1562: "varbit", 1700: "numeric", 2205: "regclass", 2206: "regtype",
    2249: "record", 2278: "void", 2950: "uuid", 3802: "jsonb",
}  # fmt: skip
FLUSH = message("H")
# No statement here has more portions; a server that never ends a portal is found out.
PORTIONS_MAX = 20

PIECE = re.compile(
    r"""(?P<quoted>\b[eE]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|"(?:""|[^"])*"|\$(?P<tag>[A-Za-z_]*)\$.*?\$(?P=tag)\$)
    |(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<join>\\;)|(?P<command>\\[a-z_]+[^\n]*)|(?P<end>;)|.""",
    re.VERBOSE | re.DOTALL,
)
WORD = re.compile(r"\\[a-z_]+|'(?:''|[^'])*'|\S+")
FROM_STDIN = re.compile(r"copy\b.*\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)
CHANGED = re.compile(
    r"\b(?:table|into|from|update|view|index|sequence|type|schema|prepare|declare|cursor|portal|parse|copy|savepoint|function|trigger)"
    r"\s+(?:if\s+(?:not\s+)?exists\s+)?(?:only\s+)?\"?(\w+)", re.IGNORECASE)  # fmt: skip
READS = re.compile(r"(select|values|with|table|show|explain|copy\b.*\bto)\b(?!.*\\;)(?!.*\binto\b)", re.IGNORECASE | re.DOTALL)
UNORDERED = re.compile(r"\(*(select|values|with|table|insert|update|delete|copy)\b", re.IGNORECASE)
QUERY = re.compile(r"(select|values|with|table)\b(?!.*\\;)", re.IGNORECASE | re.DOTALL)


@dataclass
class Step:
    """One statement: its text as in the file, what is sent, and the commands after it."""

    text: str
    sql: str
    commands: dict = field(default_factory=dict)
    data: str | None = None

    @property
    def is_query(self):
        return not self.commands and QUERY.match(self.sql) is not None

    @property
    def is_unordered(self):
        """Whether SQL leaves the order of the statement's rows open."""
        return UNORDERED.match(self.sql) is not None and "order by" not in self.sql.lower()

    @property
    def only_reads(self):
        return set(self.commands) <= {"bind", "rows"} and READS.match(self.sql) is not None

    def words(self):
        return re.findall(r"\w+", self.text.lower())

    def changes(self):
        """Returns the names of the objects that the statement may change, and the empty text if it changes settings."""
        settings = re.match(r"(set|reset|discard)\b", self.sql, re.IGNORECASE)
        return {name.lower() for name in CHANGED.findall(self.text)} | ({""} if settings else set())


@dataclass
class Group:
    subject: str
    title: str
    setup: list
    tries: list

    def keys(self):
        """Returns each statement's key, which is its text on one line; later equal ones have a number."""
        seen, keys = {}, []
        for step in self.tries:
            text = " ".join(step.text.split())
            seen[text] = seen.get(text, 0) + 1
            keys.append(text if seen[text] == 1 else f"{text} #{seen[text]}")
        return keys


def read_groups(path):
    """Returns the groups of a file."""
    groups = []
    for part in re.split(r"^\\group ", path.read_text(), flags=re.MULTILINE)[1:]:
        title, body = part.split("\n", 1)
        setup, _, tries = body.partition("\n\\try\n") if not body.startswith("\\try\n") else ("", "", body[5:])
        groups.append(Group(path.stem, title.strip(), read_steps(setup), read_steps(tries)))
    return groups


def read_steps(text):
    steps, at, sql = [], 0, ""
    while found := PIECE.match(text, at):
        at = found.end()
        if found["comment"]:
            continue
        if not found["end"] and not found["command"]:
            sql += ";" if found["join"] else found[0]
            continue
        step = Step((sql.strip() + " " + (found["command"] or "")).strip(), sql.strip(), commands(found["command"] or ""))
        if FROM_STDIN.match(step.sql):
            data = re.compile(r"\s*?\n(.*?)^\\\.$", re.DOTALL | re.MULTILINE).match(text, at)
            step.data, at = data[1], data.end()
            step.text += "\n" + step.data
        steps.append(step)
        sql = ""
    assert not sql.strip(), f"a statement has no end: {sql.strip()}"
    return steps


def commands(text):
    """Returns the arguments of each command by its name."""
    found, name = {}, None
    for word in WORD.findall(text):
        if word.startswith("\\"):
            name = word[1:]
            found[name] = []
        else:
            quoted = word.startswith("'")
            value = word[1:-1].replace("''", "'") if quoted else word
            found[name].append(None if value == "NULL" and not quoted else value)
    return found


class Session:
    """A connection that asks for answers. A server that ends it, or does not answer in time, gives the answer `lost`."""

    def __init__(self, port, **login):
        self.port, self.login, self.status = port, login, "I"
        self.conn = Conn(port, **login)

    def close(self):
        self.conn.close()

    def answer(self, step):
        return self.guarded(self.messages(step), step)

    def described(self, step):
        """Returns the columns that the server describes for a prepared statement, or None if it refuses it."""
        answer = self.guarded(parse(step.sql) + message("D", b"S\0") + SYNC, step)
        return answer["results"][-1].get("columns") if answer["results"] else None

    def guarded(self, sent, step):
        try:
            self.conn.raw(sent)
            answer = self.read(step)
        except (Closed, OSError):
            self.conn.close()
            self.conn, answer = Conn(self.port, **self.login), {"results": [{"error": "lost"}], "status": "I"}
        self.status = answer["status"]
        return answer

    def messages(self, step):
        """Returns what is sent first; the rest follows when the server has answered."""
        has = step.commands
        if not has:
            return message("Q", step.sql.encode() + b"\0")
        if "parse" in has:
            name = has["parse"][0]
            return parse(step.sql, name) + message("D", b"S" + name.encode() + b"\0") + SYNC
        if "close_prepared" in has:
            return message("C", b"S" + has["close_prepared"][0].encode() + b"\0") + SYNC
        if "close_portal" in has:
            return message("C", b"P" + has["close_portal"][0].encode() + b"\0") + SYNC
        if "execute" in has:
            portal, rows = has["execute"][0], int(has["execute"][1])
            return message("D", b"P" + portal.encode() + b"\0") + execute(portal, rows) + SYNC
        name, *values = has["bind_named"] if "bind_named" in has else ["", *has["bind"]]
        values = [None if value is None else value.encode() for value in values]
        begin = b"" if "bind_named" in has else parse(step.sql)
        if "portal" in has:
            return begin + bind(values, name, has["portal"][0]) + SYNC
        rows = int(has.get("rows", [0])[0])
        return begin + bind(values, name) + message("D", b"P\0") + execute("", rows) + (FLUSH if rows else SYNC)

    def read(self, step):
        """Reads the messages up to ReadyForQuery."""
        results, result = [], {}
        rows = int(step.commands.get("rows", [0])[0])
        while True:
            kind, body = self.conn.receive()
            if kind == "T":
                result["columns"] = columns_of(body)
            elif kind == "t":
                result["parameters"] = types_of(body)
            elif kind == "D":
                result.setdefault("rows", []).append(list(fields_of(body)))
            elif kind == "d":
                result.setdefault("rows", []).append([body.decode("utf-8", "replace").rstrip("\n")])
            elif kind == "G":
                self.conn.raw(message("d", (step.data or "").encode()) + message("c"))
            elif kind in "CIsE":
                ends = {"C": lambda: {"tag": body[:-1].decode()}, "I": lambda: {"tag": ""}, "s": lambda: {"tag": "suspended"}}
                # What the server sent of a result before its error does not count.
                result = result | ends[kind]() if kind != "E" else error_of(body)
                results.append(result)
                result = {}
                if rows and kind == "s" and len(results) < PORTIONS_MAX:
                    self.conn.raw(execute("", rows) + FLUSH)
                elif rows:
                    self.conn.raw(SYNC)
            elif kind == "Z":
                if result:
                    results.append(result)
                return {"results": results, "status": body.decode()}


def error_of(body):
    fields = notice(body)
    return {"error": fields.get("C", ""), "message": fields.get("M", "")}


def types_of(body):
    return [type_name(int.from_bytes(body[at : at + 4], "big")) for at in range(2, len(body), 4)]


def columns_of(body):
    columns, at = [], 2
    while at < len(body):
        end = body.index(b"\0", at)
        columns.append([body[at:end].decode(), type_name(int.from_bytes(body[end + 7 : end + 11], "big"))])
        at = end + 19
    return columns


def type_name(oid):
    # The number of a table's row type depends on what was created before.
    return TYPES.get(oid, str(oid) if oid < 16384 else "a row type")
