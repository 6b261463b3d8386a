#!/usr/bin/env python3
"""Attacks by one client: each is refused with a clear error, and all other clients go on.

Two bystanders work during every attack; afterwards their work must be complete. The server must not end. docs/security.md lists the limits
that stop these attacks.

For each attack the 99th percentile of the bystanders' delays is printed beside that of a control, in which processes that only compute
(processor hogs) are in the attackers' place. For that, an attack is repeated until there are enough delays. A time is never a failure. CONTROL
is the seconds of a control; 0 leaves them out.
"""

import multiprocessing
import os
import select
import sqlite3
import struct
import subprocess
import sys
import time

from wire import PATIENCE, PID, SYNC, Checks, Closed, Conn, Refused, bind, execute, parse

checks = Checks()
FORKS = multiprocessing.get_context("fork")


class Bystander:
    """A session that runs small transactions, one after the other, until it is stopped. It has a process of its own, so the attacking client
    cannot keep it from running."""

    def __init__(self, number):
        self.number, self.error, self.waits = number, None, []
        self.count, self.stopped = FORKS.Value("q", 0), FORKS.Event()
        self.first = 0
        self.result, end = FORKS.Pipe(False)
        self.process = FORKS.Process(target=self.work, args=(end,), daemon=True)
        self.process.start()
        end.close()

    @property
    def done(self):
        """How many transactions are done."""
        return self.count.value

    @property
    def measured(self):
        """How many of them have been done since `measure`."""
        return self.done - self.first

    @property
    def failed(self):
        return not self.process.is_alive()

    def work(self, end):
        waits, error = [], None
        try:
            conn = Conn()
            while not self.stopped.is_set():
                began, number = time.monotonic(), self.count.value
                conn.query(f"insert into bystanders values ({self.number}, {number})")
                assert conn.query("select 1 from bystanders limit 1") == [("1",)]
                self.count.value = number + 1
                waits.append(time.monotonic() - began)
                time.sleep(0.002)
            conn.close()
        except Exception as found:  # Any error of a bystander is a finding.
            error = repr(found)
        end.send((waits, error))

    def measure(self):
        """The delays of the transactions so far do not count."""
        self.first = self.done

    def stop(self):
        """Ends the session, and takes its delays and its error."""
        self.stopped.set()
        try:
            waits, self.error = self.result.recv() if self.result.poll(60) else ([], "it does not end")
        except EOFError:
            waits, self.error = [], "its process has ended"
        self.waits = waits[self.first:]
        self.process.join(1)


def refusal(conn, sql, values=None, oids=()):
    """Returns the error, or None if the statement was accepted."""
    try:
        conn.query(sql) if values is None else conn.prepared(sql, values, oids=oids)
    except Refused as error:
        return error
    return None


def refused(name, conn, sql, code, word, values=None, oids=()):
    """The statement is refused with this SQLSTATE; the message names the thing. The session goes on."""
    try:
        error = refusal(conn, sql, values, oids)
        found = (error.code, word.lower() in str(error).lower()) if error else "accepted"
        checks.that(name, found == (code, True), f"expected {code} and {word!r}, found {error or 'no error'}")
        checks.equal(f"{name}: the session goes on", [("1",)], conn.query("select 1"))
    except (Closed, OSError) as error:
        checks.that(name, False, f"the connection ended: {error!r}")
        return Conn()
    return conn


# --- What clients may use of SQLite -----------------------------------------------------------------------------------

def functions(conn):
    for call, values, oids in [
        ("fts3_tokenizer('simple')", None, ()),
        ("fts3_tokenizer($1)", ["simple"], (25,)),
        ("fts3_tokenizer($1, $2)", ["simple", "AAAAAAAA"], (25, 25)),
        ("load_extension('/tmp/x')", None, ()),
        ("sqlite_log(1, 'x')", None, ()),
        ("json_patch('{}', '{}')", None, ()),
    ]:
        conn = refused(call, conn, f"select {call}", "42883", call[: call.index("(")], values, oids)
    return conn


def pragmas(conn):
    for pragma, code in [
        ("temp_store_directory = '/tmp'", "0A000"), ("case_sensitive_like = on", "0A000"),
        ("hard_heap_limit = 1000", "42501"), ("soft_heap_limit = 1000", "42501"), ("mmap_size = 100000000", "42501"),
        ("busy_timeout = 100000", "42501"), ("synchronous = off", "42501"), ("journal_mode = off", "42501"),
        ("writable_schema = on", "42501"), ("trusted_schema = on", "42501"), ("schema_version = 7", "42501"),
    ]:
        conn = refused(f"pragma {pragma}", conn, f"pragma {pragma}", code, pragma.split()[0])
    return conn


def modules(conn):
    for module in ["fts3tokenize(simple)", "csv(filename='/etc/passwd')", "fsdir"]:
        conn = refused(module, conn, f"create virtual table v using {module}", "0A000", module.split("(")[0])
    return conn


def schema(conn):
    conn.query("create virtual table words using fts5(x)")
    conn.query("create view sleepy as select pg_sleep(0)")
    for sql, word in [
        ("update sqlite_schema set sql = 'nonsense'", "sqlite_master"), ("delete from sqlite_master", "sqlite_master"),
        ("insert into sqlite_schema values ('table', 't', 't', 0, 'nonsense')", "sqlite_master"),
        ("insert into words_data values (1, x'00')", "words_data"), ("drop table words_content", "words_content"),
        ("select * from sleepy", "pg_sleep"),
    ]:
        conn = refused(sql, conn, sql, "42501", word)
    checks.equal("the database is whole", [("ok",)], conn.query("pragma integrity_check"))
    conn.query("drop table words")
    conn.query("drop view sleepy")
    return conn


def files(conn):
    """Files outside the server's folder for clients ($UMS_FILES), by name, by link, by dots, by expression."""
    folder, secret = os.environ["UMS_FILES"], os.path.dirname(os.environ["UMS_DB"]) + "/secret.db"
    sqlite3.connect(secret).execute("create table if not exists secret(x)").connection.close()
    for target, name in [(secret, "link.db"), (os.path.dirname(secret), "out")]:
        if not os.path.lexists(f"{folder}/{name}"):
            os.symlink(target, f"{folder}/{name}")
    names = [secret, f"{folder}/link.db", f"{folder}/out/secret.db", f"{folder}/../secret.db", "/etc/passwd", "/dev/zero", folder,
             f"{folder}/out/new.db"]
    for name in names:
        conn = refused(f"attach {name}", conn, f"attach '{name}' as a", "42501", name)
        conn = refused(f"backup to {name}", conn, f"backup to '{name}'", "42501", name)
    conn = refused("an expression", conn, f"attach '{secret}' || '' as a", "42501", "not a text")
    conn = refused("a parameter", conn, "attach $1 as a", "42501", "not a text", [secret], (25,))
    conn = refused("a URI", conn, f"attach 'file:{folder}/a.db?vfs=unix-none' as a", "0A000", "URI")
    conn = refused("vacuum into", conn, f"vacuum into '{folder}/a.db'", "0A000", "into")
    before = os.path.getsize(secret)
    conn.query(f"backup to '{folder}/copy.db'")
    conn.query(f"attach '{folder}/copy.db' as a")
    conn.query(f"attach '{folder}/new.db' as b")
    conn.query("create table if not exists b.t(x int)")
    checks.that("an attached backup", int(conn.query("select count(*) from a.bystanders")[0][0]) >= 0)
    checks.equal("the secret file", before, os.path.getsize(secret))
    for name in [os.environ["UMS_DB"], os.environ["UMS_DB"] + "-wal", f"{folder}/copy.db", f"{folder}/new.db"]:
        checks.equal(f"the mode of {os.path.basename(name)}", "0o600", oct(os.stat(name).st_mode & 0o777))
    # A file that is open cannot be backed up to when the attack is repeated.
    conn.query("detach a")
    conn.query("detach b")
    return conn


TABLES = 800


def made():
    """Statements that make tables, each of which has a trigger that inserts into the next one, or refers to the one before, and views of views."""
    last = TABLES
    return ([f"create table chain_{n}(x int);"
             f" create trigger go_{n} after insert on chain_{n} begin insert into chain_{n + 1} values (new.x); end" for n in range(last)]
            + [f"create table chain_{last}(x int)", "create table link_0(x int primary key)"]
            + [f"create table link_{n + 1}(x int primary key references link_{n}(x) on delete cascade)" for n in range(last)]
            + ["create view view_0 as select 1 as x"] + [f"create view view_{n + 1} as select * from view_{n}" for n in range(last)])


def dropped():
    numbers = range(TABLES, -1, -1)
    return [f"drop {what}_{n}" for what in ("table chain", "table link", "view view") for n in numbers]


def by_tens(statements):
    """Runs ten statements in a transaction, so that bystanders write between two of them."""
    conn = Conn()
    for first in range(0, len(statements), 10):
        conn.query(";".join(statements[first:first + 10]))
    conn.close()


def tables(conn):
    """A long schema that changes all the time, so that all other clients read it again all the time."""
    by_tens(made())
    by_tens(dropped())
    return conn


def chains(conn):
    """Preparing the statement needs a stack as deep as the chain is long. The tables are there before the bystanders begin."""
    conn = refused("a chain of triggers", conn, "insert into chain_0 values (1)", "54001", "triggers nested too deep")
    conn = refused("prepared", conn, "insert into chain_0 values ($1)", "54001", "triggers nested too deep", [1], (23,))
    count = f"select count(*) from chain_{TABLES}"
    before = int(conn.query(count)[0][0])
    conn.query(f"insert into chain_{TABLES - 50} values (1)")
    checks.equal("a short chain", [(str(before + 1),)], conn.query(count))
    conn = refused("a cascade", conn, "delete from link_0", "54001", "triggers nested too deep")
    views = f"select * from view_{TABLES}"
    # A connection that knows the columns of the views does not nest them. It knows them after it has looked at the views one
    # by one, and sometimes after a refused statement, until another client changes the schema. So the statement is tried once.
    try:
        checks.equal("views: their row", [("1",)], conn.query(views))
    except Refused as error:
        checks.that("views", error.code == "54001" and "nested too deep" in str(error), f"found {error}")
        checks.equal("views: the session goes on", [("1",)], conn.query("select 1"))
    return conn


# --- Long computations --------------------------------------------------------------------------------------------------

ZEROS = "hex(zeroblob(8000000))"
ENDLESS = "with recursive c(i) as (select 1 union all select i + 1 from c) select count({}) from c"
LONG = [
    f"select instr({ZEROS}, hex(zeroblob(4000000)) || '1')",
    f"select length(replace({ZEROS}, hex(zeroblob(2000000)) || '1', ''))",
    f"select {ZEROS} like '%{'0' * 900}1'",
    f"select {ZEROS} glob '*{'0' * 900}1'",
    f"select trim({ZEROS}, replace({ZEROS}, '0', 'x') || '0')",
    f"select unhex('{'- ' * 1000}' || {ZEROS}, replace({ZEROS}, '0', 'x') || '- ')",
    f"select substr({ZEROS}, 1, 3000000) regexp '(0|00|000)+1'",
    ENDLESS.format(f"length(upper({ZEROS})) + i"),
    ENDLESS.format("length(printf('%.*c', 16000000 - i % 2, 'x'))"),
    ENDLESS.format("length(hex(randomblob(8000000 - i % 2)))"),
    ENDLESS.format(f"{ZEROS} like '%1%' || i || '%'"),
    "with recursive c(i) as (select 1 union all select i + 1 from c limit 100000)"
    " select max(length(g)) from (select group_concat(i) over (order by i) as g from c)",
]


def long(conn):
    """One such statement for each scheduler and one more. Meanwhile the server admits a client, answers it, and carries out its cancellations."""
    conn = refused("a long value", conn, "select length(hex(zeroblob(100000000)))", "54000", "too big")
    conn = refused("a long pattern", conn, f"select 'x' like '{'%' * 1001}'", "54001", "too complex")
    conn = refused("a long replacement", conn, f"select replace({ZEROS}, '0', 'xx')", "54000", "too big")
    schedulers = int(conn.query("select count(*) from ums_schedulers where is_online = 1")[0][0])
    for sql in LONG:
        attackers = [Conn() for _ in range(schedulers + 1)]
        for attacker in attackers:
            attacker.send(sql)
        begun = [bystander.done for bystander in BYSTANDERS]
        limit = time.monotonic() + PATIENCE
        while any(b.done < done + 3 for b, done in zip(BYSTANDERS, begun)) and time.monotonic() < limit:
            time.sleep(0.01)
        checks.that(f"bystanders go on: {sql[:60]}", time.monotonic() < limit)
        witness = Conn()
        shown = int(witness.query("select count(*) from ums_schedulers where is_online = 1")[0][0])
        checks.that(f"statistics: {sql[:60]}", shown >= schedulers, f"{shown}")
        witness.close()
        for attacker in attackers:
            attacker.cancel()
        for attacker in attackers:
            # A cancellation that the server gets before the statement has no effect, as in PostgreSQL.
            limit = time.monotonic() + PATIENCE
            while not select.select([attacker], [], [], 1)[0] and time.monotonic() < limit:
                attacker.cancel()
            try:
                attacker.until_ready()
            except Refused as error:
                checks.that(f"how it ends: {sql[:60]}", error.code in ("57014", "54000", "53200"), str(error))
            checks.equal(f"afterwards: {sql[:60]}", [("1",)], attacker.query("select 1"))
            attacker.close()
    return conn


# --- Memory -------------------------------------------------------------------------------------------------------------

def peak():
    """The most memory that the server has had, in MiB."""
    with open(f"/proc/{PID}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))


def rows_of(count, size):
    return f"with recursive c(i) as (select 1 union all select i + 1 from c limit {count}) select i, randomblob({size}) as x from c"


def memory(conn):
    """The server has --client-memory 64 and --memory 256. Everything here would take several times that."""
    sort = f"select count(*) from (select * from ({rows_of(200000, 1000)}) order by x limit 200000)"
    checks.equal("a large sort", [("200000",)], conn.query(sort))
    conn.query(f"create temp table large as {rows_of(150000, 1000)}")
    checks.equal("a large temporary table", [("150000",)], conn.query("select count(*) from large"))
    shown = conn.query("select sum(temporary_file_bytes) from ums_memory where user_id > 0")
    checks.that("the view shows the temporary file", int(shown[0][0]) > 50000000, f"{shown}")
    conn.query("drop table large")
    conn.query("attach ':memory:' as m")
    conn = refused("a database in memory", conn, f"create table m.large as {rows_of(150000, 1000)}", "53200", "memory")
    conn = refused("a wide row", conn, f"select {', '.join(['x'] * 100)} from (select zeroblob(16000000) as x)", "53200", "memory")
    groups = f"select length(json_group_array(hex(x))) from ({rows_of(200, 50000)})"
    conn = refused("a long group", conn, groups, "54000", "too big")
    portals(conn)
    unfinished()
    checks.that("the server's memory", peak() < 1000, f"{peak()} MiB")
    return conn


def portals(conn):
    """Suspended portals, whose rows are kept."""
    codes = set()
    holders = [Conn() for _ in range(8)]
    for holder in holders:
        holder.query("begin")
        for number in range(12):
            name = f"p{number}"
            sql = f"select hex(zeroblob(500000)) from ({rows_of(20, 1)})"
            holder.raw(parse(sql, name) + bind((), name, name) + execute(name, 1) + SYNC)
            try:
                holder.until_ready()
            except Refused as error:
                codes.add(error.code)
    checks.that("suspended portals", "53200" in codes and codes <= {"53200", "25P02", "26000"}, f"{codes}")
    for holder in holders:
        holder.close()


def unfinished():
    """Messages of 63 MiB that do not end for a while. There is no memory for any of them, and each is answered with one error when it has ended."""
    holders, piece = [Conn() for _ in range(10)], bytes(1 << 20)
    for holder in holders:
        holder.raw(b"Q" + struct.pack("!i", 63 << 20))
        for _ in range(60):
            holder.raw(piece)
    checks.equal("beside unfinished messages", [("1",)], Conn().query("select 1"))
    for holder in holders:
        holder.raw(bytes((3 << 20) - 4))
        try:
            holder.until_ready()
            checks.that("a message without memory", False, "it was accepted")
        except Refused as error:
            checks.equal("a message without memory", "53200", error.code)
        checks.equal("afterwards", [("1",)], holder.query("select 1"))
        holder.close()


# --- Clients that do not read -------------------------------------------------------------------------------------------

SLOW = 48


def slow(conn):
    """More clients that do not read than there are workers (--max-workers 32)."""
    readers = [Conn() for _ in range(SLOW)]
    for reader in readers:
        reader.send(f"select hex(zeroblob(1000000)) from ({rows_of(1000, 1)})")
    begun = [bystander.done for bystander in BYSTANDERS]
    limit = time.monotonic() + PATIENCE / 2
    while any(b.done < done + 20 for b, done in zip(BYSTANDERS, begun)) and time.monotonic() < limit:
        time.sleep(0.01)
    checks.that("bystanders go on", time.monotonic() < limit)
    checks.equal("a client is admitted", [("1",)], Conn().query("select 1"))
    for reader in readers:
        reader.socket.close()
    return conn


# --- The bystanders ------------------------------------------------------------------------------------------------------

BYSTANDERS = []
CONTROL = float(os.environ.get("CONTROL", "2"))
# The fewest delays of one bystander of which a percentile is taken.
SAMPLES = 500
CONTROLS = {}


def beside(name, deed):
    """Runs the deed beside bystanders. Returns its result, or None if it failed, and their delays in seconds."""
    BYSTANDERS[:] = [Bystander(number) for number in range(2)]
    # The first transactions of a connection read the schema; that is no delay by the deed.
    limit = time.monotonic() + PATIENCE
    while any(b.done < 5 and not b.failed for b in BYSTANDERS) and time.monotonic() < limit:
        time.sleep(0.01)
    for bystander in BYSTANDERS:
        bystander.measure()
    result = None
    try:
        result = deed()
    except (Closed, Refused, OSError, AssertionError) as error:
        checks.that(name, False, repr(error))
    for bystander in BYSTANDERS:
        bystander.stop()
        checks.that(f"a bystander of {name}", not bystander.error, str(bystander.error))
    return result, [wait for bystander in BYSTANDERS for wait in bystander.waits]


def percentile(waits):
    """Returns the 99th percentile in milliseconds."""
    return 1000 * sorted(waits)[len(waits) * 99 // 100] if waits else float("inf")


def control(hogs):
    """Returns the percentile beside this many processes that only compute."""
    if hogs not in CONTROLS:
        processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(hogs)]
        try:
            CONTROLS[hogs] = percentile(beside("a control", lambda: time.sleep(CONTROL))[1])
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return CONTROLS[hogs]


def compare(attack, delay, schedulers):
    """Prints the bystanders' delay during an attack beside that of the control, which has a hog in the place of each attacking client."""
    hogs = {"long": schedulers + 1, "slow": SLOW}.get(attack, 1)
    beside_hogs = control(hogs)
    print(f"attacks.py: {attack}: p99 of the bystanders {delay:.1f} ms, {delay / beside_hogs:.1f} times the {beside_hogs:.1f} ms"
          f" beside {hogs} processor hog{'s' * (hogs > 1)}", flush=True)


def deep(statements):
    """Makes or drops the tables of `chains`, without bystanders."""
    try:
        by_tens(statements)
    except (Closed, Refused, OSError) as error:
        checks.that("the tables of chains", False, repr(error))


def repeated(attack, conn):
    """Runs an attack, and again until there are enough delays for a percentile. Of few, it would be the longest."""
    limit = time.monotonic() + PATIENCE
    conn = attack(conn)
    while CONTROL > 0 and time.monotonic() < limit and all(b.measured < SAMPLES and not b.failed for b in BYSTANDERS):
        conn.close()
        conn = attack(Conn())
    return conn


def run(attack, conn):
    """Runs an attack beside bystanders, whose work must be complete. Returns a new connection, and the bystanders' delays."""
    result, waits = beside(attack.__name__, lambda: repeated(attack, conn))
    bystanders = list(BYSTANDERS)
    if PID and not os.path.exists(f"/proc/{PID}"):
        return conn, []
    (result or conn).close()
    conn = Conn()
    for bystander in bystanders:
        kept = conn.query(f"select count(*) from bystanders where number = {bystander.number}")
        checks.that(f"what a bystander of {attack.__name__} committed", int(kept[0][0]) >= bystander.done, f"{kept}")
    conn.query("delete from bystanders")
    return conn, waits


def main():
    conn = Conn()
    conn.query("create table bystanders(number int, done int)")
    schedulers = int(conn.query("select count(*) from ums_schedulers where is_online = 1")[0][0])
    for attack in ATTACKS:
        if attack == chains:
            deep(made())
        conn, waits = run(attack, conn)
        if PID and not os.path.exists(f"/proc/{PID}"):
            checks.that(attack.__name__, False, "the server has ended")
            break
        if attack == chains:
            deep(dropped())
        if CONTROL > 0:
            compare(attack.__name__, percentile(waits), schedulers)
    checks.finish()


ATTACKS = [functions, pragmas, modules, schema, files, tables, chains, long, memory, slow]
if os.environ.get("ONLY"):
    ATTACKS = [attack for attack in ATTACKS if attack.__name__ in os.environ["ONLY"].split()]
main()
