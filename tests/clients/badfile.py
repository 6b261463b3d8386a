#!/usr/bin/env python3
"""Database files that cannot be served: each has its SQLSTATE, and a running server keeps running.

When the server starts, the file is: not a database, truncated, read-only, in a read-only or missing folder, not
permitted, a folder, or in use by another server. While the server runs: SQLite in another process is locked out, the
file is deleted, the disk is full. Starts
its own servers ($UMS_BIN); further arguments are options for `ums serve`. As root it starts them as `nobody`, because
root has every permission, and creates a small file system for the full disk. Without that right these parts are
skipped.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile

import wire
from owned import Server, free_ports

OPTIONS = sys.argv[1:]
ROOT = os.geteuid() == 0
checks = 0


def check(what, expected, found):
    global checks
    checks += 1
    assert found == expected, f"{what}: expected {expected}, found {found}"


def refusal(path):
    """Returns the message of a server that cannot open its database."""
    command = [os.environ["UMS_BIN"], "serve", "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--db", path, "--trust", *OPTIONS]
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if ROOT else {}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **nobody)
    assert done.returncode == 1, f"{path}: exit code {done.returncode}: {done.stderr}"
    return done.stderr.strip().splitlines()[-1]


def code(text):
    return text[text.rindex("(") + 1 : text.rindex(")")]


def connect(server):
    wire.PORT = server.port
    return wire.Conn()


def refused(conn, sql):
    try:
        conn.query(sql)
    except wire.Refused as error:
        return error.code
    return "nothing"


def at_the_start(folder):
    good = f"{folder}/good.db"
    db = sqlite3.connect(good)
    db.executescript("create table t(x); insert into t values (zeroblob(100000))")
    db.close()
    os.chmod(good, 0o666)

    def file(name, content, mode=0o666):
        path = f"{folder}/{name}"
        with open(path, "wb") as out:
            out.write(content)
        os.chmod(path, mode)
        return path

    whole = open(good, "rb").read()
    check("no database", "XX001", code(refusal(file("text.db", b"hello world\n" * 1000))))
    check("a short text", "XX001", code(refusal(file("short.db", b"hello"))))
    check("a short text is as it was", b"hello", open(f"{folder}/short.db", "rb").read())
    check("truncated", "XX001", code(refusal(file("cut.db", whole[:50000]))))
    check("its header cut off", "XX001", code(refusal(file("stump.db", whole[:60]))))
    check("damaged", "XX001", code(refusal(file("damaged.db", whole[:100] + b"\xff" * 4000 + whole[4100:]))))
    poisoned = file("poisoned.db", whole)
    db = sqlite3.connect(poisoned, isolation_level=None)
    db.executescript("create table u(x); insert into u values (7); pragma writable_schema = on")
    db.execute("update sqlite_schema set sql = 'nonsense' where name = 't'")
    db.close()
    os.chmod(poisoned, 0o666)
    said = refusal(poisoned)
    check("a damaged schema", "XX001", code(said))
    assert "ums export" in said, said
    done = subprocess.run([os.environ["UMS_BIN"], "export", "--db", poisoned], capture_output=True, text=True, timeout=60)
    check("exported with something left out", 2, done.returncode)
    assert "left out: t" in done.stderr, done.stderr
    saved = sqlite3.connect(":memory:")
    saved.executescript(done.stdout)
    check("what was readable", [(7,)], saved.execute("select x from u").fetchall())
    check("read-only", "25006", code(refusal(file("readonly.db", whole, 0o444))))
    check("not permitted", "42501", code(refusal(file("secret.db", whole, 0o000))))
    check("a folder", "42809", code(refusal(folder)))
    check("no such folder", "58P01", code(refusal(f"{folder}/missing/x.db")))
    os.mkdir(f"{folder}/closed")
    shutil.copy(good, f"{folder}/closed/x.db")
    os.chmod(f"{folder}/closed/x.db", 0o666)
    os.chmod(f"{folder}/closed", 0o555)
    check("in a read-only folder", "25006", code(refusal(f"{folder}/closed/x.db")))
    check("new in a read-only folder", "42501", code(refusal(f"{folder}/closed/new.db")))
    os.chmod(f"{folder}/closed", 0o755)


def while_it_runs(folder):
    path = f"{folder}/run.db"
    with Server(path, *OPTIONS) as server:
        conn = connect(server)
        os.chmod(path, 0o666)
        conn.query("create table t(x int)")
        said = refusal(path)
        check("a second server", "55006", code(said))
        assert "name another file" in said, said
        try:
            sqlite3.connect(path, timeout=0).execute("select count(*) from t")
            raise AssertionError("stock SQLite could open the file")
        except sqlite3.OperationalError as error:
            check("stock SQLite", "database is locked", str(error))
        conn.query("insert into t values (1)")
        conn.close()
    check("no log is left", False, os.path.exists(path + "-wal"))
    check("after the stop", 1, sqlite3.connect(path).execute("select x from t").fetchone()[0])

    for gone in ["", "-wal"]:
        path = f"{folder}/gone.db"
        with Server(path, *OPTIONS) as server:
            conn = connect(server)
            conn.query("create table t(x int)")
            os.remove(path + gone)
            check(f"a commit after the file{gone} was deleted", "58P01", refused(conn, "insert into t values (1)"))
            again = connect(server)
            check("the next one", "58P01", refused(again, "insert into t values (2)"))
            check("reading goes on", [("1",)], again.query("select 1"))
        for name in os.listdir(folder):
            if name.startswith("gone.db"):
                os.remove(f"{folder}/{name}")


def on_a_full_disk(folder):
    small = f"{folder}/small"
    os.mkdir(small)
    mounted = ROOT and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], capture_output=True)
    if not mounted or mounted.returncode != 0:
        print("badfile.py: no right to make a small file system; the full disk is left out")
        return
    try:
        with Server(f"{small}/full.db", *OPTIONS) as server:
            conn = connect(server)
            conn.query("create table t(x int, filler text)")
            for number in range(10_000):
                found = refused(conn, f"insert into t values ({number}, '{'x' * 50_000}')")
                if found != "nothing":
                    break
            check("a commit on a full disk", "53100", found)
            check("what was committed is there", [(str(number),)], conn.query("select count(*) from t"))
            check("reading goes on", [("ok",)], conn.query("pragma integrity_check"))
    finally:
        subprocess.run(["umount", small], check=True)


def main():
    folder = tempfile.mkdtemp()
    try:
        os.chmod(folder, 0o777)
        at_the_start(folder)
        while_it_runs(folder)
        on_a_full_disk(folder)
    finally:
        shutil.rmtree(folder)
    print(f"badfile.py: {checks} checks passed, 0 failed")


main()
