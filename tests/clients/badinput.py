#!/usr/bin/env python3
"""Bad input, one case after the other: each gets a clear error or an orderly close, and the server keeps running.

After each case a fresh connection must be answered; at the end the server has as many open files as at the start.
SEED makes the random cases repeatable; ROUNDS is the number of rounds of each.
"""

import os
import random
import resource
import socket
import struct
import sys
import time

from wire import (DATABASE, PID, PLAIN, SYNC, USER, Checks, Closed, Conn, Refused, bind, execute, message, open_files,
                  parse, startup, wait_for)

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "100"))
chance = random.Random(SEED)
HELLO = startup(user=USER, database=DATABASE)


def answers():
    conn = Conn()
    assert conn.query("select 1") == [("1",)]
    conn.close()


def ended(conn, why):
    """Expects an error or a close; the server must not stay silent."""
    try:
        while True:
            kind, _ = conn.receive()
            if kind == "E":
                return
    except Closed:
        return
    except socket.timeout:
        raise AssertionError(f"{why}: neither an error nor a close") from None
    finally:
        conn.close()


def refused(conn, sql, *codes):
    try:
        conn.query(sql)
    except Refused as error:
        assert error.code in codes, f"expected SQLSTATE {codes}, got {error}"
        return
    raise AssertionError(f"{sql[:60]!r} was accepted")


def leave(data, login=False, drain=False):
    """Sends these bytes and closes; the server may have closed first."""
    conn = Conn(login=login)
    try:
        conn.raw(data)
        if drain:
            conn.socket.settimeout(0.05)
            conn.socket.recv(65536)
    except OSError:
        pass
    finally:
        conn.reset() if chance.random() < 0.3 else conn.close()


# --- Before login ---------------------------------------------------------------------------------------------------

def random_start():
    for _ in range(ROUNDS):
        leave(chance.randbytes(chance.randrange(1, 300)), drain=chance.random() < 0.3)


def truncated_start():
    for end in range(len(HELLO)):
        leave(HELLO[:end])


def wrong_start_lengths():
    for length in (0, 1, 3, 4, 7, -1, -2147483648, 2147483647, 1 << 20, 20000):
        conn = Conn(login=False)
        conn.raw(struct.pack("!i", length) + HELLO[4:])
        if length > 10000 or length < 8:
            ended(conn, f"start-up length {length}")
        else:
            conn.close()


def wrong_versions():
    for version in (0, 1 << 16, 2 << 16, 4 << 16, 0x7FFFFFFF):
        conn = Conn(login=False)
        conn.raw(startup(version, user=USER, database=DATABASE))
        ended(conn, f"protocol version {version:#x}")


def wrong_start_bodies():
    for body in (b"", b"user", b"user\0", b"\xff\xfe\0x\0\0", b"user\0" + USER.encode(), b"a" * 9000):
        conn = Conn(login=False)
        conn.raw(struct.pack("!ii", len(body) + 8, 196608) + body)
        ended(conn, f"start-up body {body[:12]!r}")


def negotiation_loops():
    conn = Conn(login=False)
    for code in (80877103, 80877104):
        conn.raw(struct.pack("!ii", 8, code))
        assert conn.socket.recv(1) in (b"N", b"S", b"G")
    conn.raw(chance.randbytes(64))
    conn.close()


def wrong_cancels():
    for body in (b"", b"\0" * 4, b"\0" * 8, b"\xff" * 8, b"\0" * 200):
        leave(struct.pack("!ii", 8 + len(body), 80877102) + body, drain=True)


def slow_start():
    """Many clients send their startup packet a byte at a time, or never completely (Slowloris)."""
    slow = [Conn(login=False) for _ in range(50)]
    for byte in HELLO[:20]:
        for conn in slow:
            try:
                conn.raw(bytes([byte]))
            except OSError:
                pass
        time.sleep(0.02)
    answers()
    # A client that is slow but completes its packet is served like any other.
    patient = Conn(login=False)
    for at in range(len(HELLO)):
        patient.raw(HELLO[at : at + 1])
        time.sleep(0.002)
    patient.until_ready()
    for conn in slow + [patient]:
        conn.close()


def come_and_go():
    for _ in range(5 * ROUNDS):
        conn = Conn(login=False)
        conn.reset() if chance.random() < 0.5 else conn.close()


# --- After login ----------------------------------------------------------------------------------------------------

def random_messages():
    for _ in range(ROUNDS):
        leave(chance.randbytes(chance.randrange(1, 500)), login=True, drain=chance.random() < 0.3)


def framed_random_bodies():
    """Well-framed messages of every known kind with random bodies."""
    for _ in range(ROUNDS):
        kinds = [chance.choice("QPBDECSHXdcfpF") for _ in range(chance.randrange(1, 6))]
        leave(b"".join(message(kind, chance.randbytes(chance.randrange(0, 60))) for kind in kinds) + SYNC,
              login=True, drain=True)


def mutated_cycles():
    """Proper extended cycles with a few bytes changed."""
    proper = parse("select $1, $2") + bind([b"1", None]) + message("D", b"P\0") + execute() + SYNC
    for _ in range(ROUNDS):
        data = bytearray(proper)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        leave(bytes(data), login=True, drain=True)


def truncated_messages():
    whole = message("Q", b"select 1\0") + parse("select $1") + bind([b"1"]) + execute()
    for end in range(1, len(whole)):
        leave(whole[:end], login=True)


def wrong_message_lengths():
    for length in (0, 3, -1, -2147483648, 2147483647):
        conn = Conn()
        conn.raw(b"Q" + struct.pack("!i", length) + b"select 1\0")
        ended(conn, f"message length {length}")


def unknown_kinds():
    for kind in range(256):
        if chr(kind) not in "QPBDECSHXdcfpF":
            conn = Conn()
            conn.raw(bytes([kind]) + struct.pack("!i", 4) + SYNC)
            ended(conn, f"message kind {kind}")


def long_queries():
    conn = Conn()
    text = "x" * (1 << 20)
    assert conn.query(f"select '{text}'") == [(text,)]
    refused(conn, "selec " + text, "42601", "54001", "54000")
    many = " ".join(["select 1;"] * 20000)
    assert len(conn.query(many)) == 20000
    deep = "select " + "(" * 100000 + "1" + ")" * 100000
    try:
        assert conn.query(deep) == [("1",)]
    except Refused as error:
        assert error.code in ("42601", "54001", "54000"), error
    assert conn.query("select 2") == [("2",)]
    conn.close()


def many_parameters():
    conn = Conn()
    for count in (10000, 32767):
        sql = "select " + " + ".join(f"cast(${n + 1} as integer)" for n in range(100))
        numbers = ", ".join(f"${n + 1}" for n in range(count))
        try:
            conn.prepared(f"select 1 where 1 in ({numbers})", range(count), oids=[23] * count if count < 32768 else ())
        except Refused as error:
            assert error.code[:2] in ("54", "42"), error
        assert conn.prepared(sql, [1] * 100) == [("100",)]
    conn.close()


def wrong_parameters():
    conn = Conn()
    cases = [
        parse("select $1") + bind([]) + execute(),
        parse("select 1") + bind([b"1", b"2"]) + execute(),
        bind([], name="no_such_statement") + execute(),
        execute("no_such_portal"),
        message("D", b"Sno_such\0"),
        message("D", b"Z\0"),
        message("C", b"Z\0"),
        parse("select $1", oids=[23]) + bind([b"not a number"]) + execute(),
        parse("select 1; select 2") + bind([]) + execute(),
        parse("select 1", name="twice") + parse("select 1", name="twice"),
    ]
    for number, case in enumerate(cases):
        conn.raw(case + SYNC)
        try:
            conn.until_ready()
            raise AssertionError(f"case {number} was accepted")
        except Refused:
            pass
        except Closed:
            conn = Conn()
        assert conn.query("select 1") == [("1",)], f"case {number}"
    conn.close()


def invalid_text():
    conn = Conn()
    refused(conn, b"select '\xff\xfe'", "22021")
    refused(conn, b"select '\xc3'", "22021")
    assert conn.query("select 1") == [("1",)]
    conn.raw(parse("select $1", oids=[25]) + bind([b"\xff"]) + execute() + SYNC)
    try:
        conn.until_ready()
        raise AssertionError("an invalid parameter was accepted")
    except Refused as error:
        assert error.code == "22021", error
    conn.close()
    conn = Conn()
    conn.raw(message("Q", b"select 1\0; select 2\0"))
    ended(conn, "a NUL inside a query")


def half_closed():
    conn = Conn()
    conn.send("select 7")
    conn.socket.shutdown(socket.SHUT_WR)
    assert conn.until_ready() == [("7",)]
    ended(conn, "half-closed")
    conn = Conn(login=False)
    conn.socket.shutdown(socket.SHUT_WR)
    ended(conn, "half-closed before login")


def never_reads():
    """Requests far more than fits into the sockets' buffers, and never reads it."""
    sql = ("with recursive c(n) as (select 1 union all select n + 1 from c where n < 300000) "
           "select n, 'a row that is long enough to fill every buffer on the way, and then some' from c")
    greedy = [Conn() for _ in range(20)]
    for conn in greedy:
        conn.send(sql)
    time.sleep(1)
    for _ in range(5):
        answers()
    for conn in greedy:
        conn.reset()
    # A client that reads late receives everything.
    conn = Conn()
    conn.send(sql)
    time.sleep(1)
    assert len(conn.until_ready()) == 300000
    conn.close()


def pipelined_flood():
    """Thousands of cycles sent before anything is read."""
    conn = Conn()
    for _ in range(50):
        conn.raw((parse("select 1") + bind() + execute() + SYNC) * 20)
    for _ in range(1000):
        assert conn.until_ready() == [("1",)]
    conn.close()


def copy_misuse():
    setup = Conn()
    setup.query("drop table if exists badinput")
    setup.query("create table badinput (id integer, name text)")
    conn = Conn()
    conn.raw(message("d", b"1\ta\n") + message("c"))
    assert conn.query("select 1") == [("1",)], "copy data outside a copy is ignored"
    endings = [message("f", b"never mind\0"), message("d", b"1\n") + message("c"), message("d", b"x\ty\tz\n") + message("c"),
               message("d", b"\xff\tb\n") + message("c")]
    for number, ending in enumerate(endings):
        conn.query("copy badinput from stdin")
        conn.raw(ending)
        try:
            conn.until_ready()
            raise AssertionError(f"copy case {number} was accepted")
        except Refused:
            pass
        assert conn.query("select 1") == [("1",)]
    for _ in range(5):
        gone = Conn()
        gone.query("copy badinput from stdin")
        gone.raw(message("d", b"1\ta\n"))
        gone.reset()
    wait_for("nothing was copied", lambda: setup.query("select count(*) from badinput"), [("0",)])
    setup.query("drop table badinput")
    setup.close()
    conn.close()


def gone_in_a_transaction():
    """When a client that holds the write lock disappears, the lock must be released."""
    setup = Conn()
    setup.query("drop table if exists badinput")
    setup.query("create table badinput (id integer)")
    for _ in range(20):
        conn = Conn()
        conn.query("begin")
        conn.query("insert into badinput values (1)")
        conn.reset() if chance.random() < 0.5 else conn.close()
    setup.query("insert into badinput values (2)")
    wait_for("only what was committed", lambda: setup.query("select count(*) from badinput"), [("1",)])
    setup.query("drop table badinput")
    setup.close()


def gone_while_running():
    """Clients that disappear during a statement."""
    endless = "with recursive c(n) as (select 1 union all select n + 1 from c where n < 3000000) select count(*) from c"
    for _ in range(10):
        conn = Conn()
        conn.send(endless)
        conn.reset()
    answers()


def files_run_out():
    """While no file descriptor is left, new connections wait or are refused, and old ones work. Later new ones work again."""
    limits = resource.prlimit(PID, resource.RLIMIT_NOFILE)
    old = Conn()
    # There may be a few more connections than are open now.
    resource.prlimit(PID, resource.RLIMIT_NOFILE, (open_files() + 8, limits[1]))
    extra = []
    try:
        for _ in range(40):
            conn = socket.create_connection((os.environ.get("UMS_HOST", "127.0.0.1"), int(os.environ["UMS_PORT"])), 5)
            conn.sendall(HELLO)
            extra.append(conn)
        time.sleep(1)
        assert old.query("select 1") == [("1",)], "an old connection works"
    finally:
        for conn in extra:
            conn.close()
        resource.prlimit(PID, resource.RLIMIT_NOFILE, limits)
    answers()
    old.close()


CASES = [
    random_start, truncated_start, wrong_start_lengths, wrong_versions, wrong_start_bodies, negotiation_loops,
    wrong_cancels, slow_start, come_and_go, random_messages, framed_random_bodies, mutated_cycles, truncated_messages,
    wrong_message_lengths, unknown_kinds, long_queries, many_parameters, wrong_parameters, invalid_text, half_closed,
    never_reads, pipelined_flood, copy_misuse, gone_in_a_transaction, gone_while_running,
]
if PID and not PLAIN:
    CASES.append(files_run_out)

checks = Checks()
wanted = sys.argv[1:]
# Memory and files that the first users allocate (pools, caches) are not a leak.
for conn in [Conn() for _ in range(30)]:
    conn.query("select 1")
    conn.close()
time.sleep(1)
files_before = open_files() if PID else 0
for case in CASES:
    if not wanted or case.__name__ in wanted:
        begin = time.monotonic()
        checks.case(case.__name__, case)
        checks.case(f"the server answers after {case.__name__}", answers)
        print(f"badinput.py: {case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
if PID:
    checks.case("open files are back", wait_for, "open files", open_files, lambda now: now <= files_before + 2, 90)
    print(f"badinput.py: seed {SEED}, open files {files_before} before, {open_files()} after")
checks.finish()
