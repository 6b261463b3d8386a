#!/usr/bin/env python3
"""Attacks by one client: each is refused with a clear error, and all other clients go on.

Two bystanders, one that reads and one that writes, work during every attack; afterwards their work must be complete. The server must not end.
docs/security.md lists the limits that stop these attacks.
"""

import os
import sqlite3
import threading
import time

from wire import PID, Checks, Closed, Conn, Refused

checks = Checks()


class Bystander(threading.Thread):
    """A session that runs small transactions, one after the other, until it is stopped."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.number, self.done, self.error, self.stopped = number, 0, None, threading.Event()

    def run(self):
        try:
            conn = Conn()
            while not self.stopped.is_set():
                conn.query(f"insert into bystanders values ({self.number}, {self.done})")
                assert conn.query("select 1") == [("1",)]
                self.done += 1
                time.sleep(0.002)
            conn.close()
        except Exception as error:  # Any error of a bystander is a finding.
            self.error = error


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
    sqlite3.connect(secret).execute("create table secret(x)").connection.close()
    os.symlink(secret, f"{folder}/link.db")
    os.symlink(os.path.dirname(secret), f"{folder}/out")
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
    conn.query("create table b.t(x int)")
    checks.that("an attached backup", int(conn.query("select count(*) from a.bystanders")[0][0]) >= 0)
    checks.equal("the secret file", before, os.path.getsize(secret))
    for name in [os.environ["UMS_DB"], os.environ["UMS_DB"] + "-wal", f"{folder}/copy.db", f"{folder}/new.db"]:
        checks.equal(f"the mode of {os.path.basename(name)}", "0o600", oct(os.stat(name).st_mode & 0o777))
    return conn


def chains(conn):
    """Each table has a trigger that inserts into the next one, or refers to the one before; preparing the statement needs a stack as deep."""
    count = 800
    sql = [f"create table chain_{n}(x int); create trigger go_{n} after insert on chain_{n} begin insert into chain_{n + 1} values (new.x); end"
           for n in range(count)]
    conn.query(";".join(sql) + f"; create table chain_{count}(x int)")
    conn = refused("a chain of triggers", conn, "insert into chain_0 values (1)", "54001", "triggers nested too deep")
    conn = refused("prepared", conn, "insert into chain_0 values ($1)", "54001", "triggers nested too deep", [1], (23,))
    conn.query(f"insert into chain_{count - 50} values (1)")
    checks.equal("a short chain", [("1",)], conn.query(f"select count(*) from chain_{count}"))
    sql = [f"create table link_{n + 1}(x int primary key references link_{n}(x) on delete cascade)" for n in range(count)]
    conn.query("create table link_0(x int primary key);" + ";".join(sql))
    conn = refused("a cascade", conn, "delete from link_0", "54001", "triggers nested too deep")
    sql = [f"create view view_{n + 1} as select * from view_{n}" for n in range(count)]
    conn.query("create view view_0 as select 1 as x;" + ";".join(sql))
    conn = refused("views", conn, f"select * from view_{count}", "54001", "nested too deep")
    drops = [f"drop table chain_{n}" for n in range(count + 1)] + [f"drop view view_{n}" for n in range(count + 1)]
    conn.query(";".join(drops + [f"drop table link_{n}" for n in reversed(range(count + 1))]))
    return conn


def main():
    conn = Conn()
    conn.query("create table bystanders(number int, done int)")
    for attack in ATTACKS:
        bystanders = [Bystander(number) for number in range(2)]
        for bystander in bystanders:
            bystander.start()
        try:
            conn = attack(conn) or conn
        except (Closed, Refused, OSError, AssertionError) as error:
            checks.that(attack.__name__, False, repr(error))
        for bystander in bystanders:
            bystander.stopped.set()
            bystander.join(60)
            name = f"a bystander of {attack.__name__}"
            checks.that(name, not bystander.error and not bystander.is_alive(), repr(bystander.error))
        if PID and not os.path.exists(f"/proc/{PID}"):
            checks.that(attack.__name__, False, "the server has ended")
            break
        conn.close()
        conn = Conn()
        for bystander in bystanders:
            kept = conn.query(f"select count(*) from bystanders where number = {bystander.number}")
            checks.that(f"what a bystander of {attack.__name__} committed", int(kept[0][0]) >= bystander.done, f"{kept}")
        conn.query("delete from bystanders")
    checks.finish()


ATTACKS = [functions, pragmas, modules, schema, files, chains]
main()
