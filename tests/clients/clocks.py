#!/usr/bin/env python3
"""Time limits: no client keeps others from writing, from logging in or from the statistics by doing nothing.

Idle transactions, slow COPYs, clients that go or never log in, timeouts by SET and by option, silent clients of the administrator's
and the metrics' port, SIGHUP, SIGXFSZ, wrong passwords. Starts its own servers ($UMS_BIN); further arguments are options for `ums serve`.
No check asserts a time, but each wait has a limit that is far below the ones that it would meet without the server's limits.
"""

import base64
import hashlib
import hmac
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

import wire
from owned import Server, free_ports
from wire import Checks, Closed, Conn, Refused, execute, message, parse, bind, startup, SYNC, wait_for

OPTIONS = sys.argv[1:]
# How long a check waits for what a limit of a second or two causes.
SOON = 20
checks = Checks()


def connect(server, port=None, **options):
    wire.PORT = server.port
    conn = Conn(port, login=False)
    conn.socket.settimeout(SOON)
    conn.raw(startup(user="ums", database="ums", **options))
    conn.until_ready()
    return conn


def stranger(port, first=b""):
    """A connection that does not log in."""
    client = socket.create_connection(("127.0.0.1", port), timeout=SOON)
    client.sendall(first)
    return client


def ended(client):
    """Returns whether the server closes this connection within the limit."""
    try:
        while client.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def refusal(conn, sql, *more):
    """Returns the SQLSTATE and the message of a statement, or of its connection's end."""
    try:
        conn.query(sql)
    except Refused as error:
        return error.code, str(error)
    except Closed:
        return "closed", ""
    except TimeoutError:
        return "no answer", ""
    return "no error", ""


def last_error(conn):
    """Returns the SQLSTATE and severity with which the server ends a connection."""
    try:
        while True:
            kind, body = conn.receive()
            if kind == "E":
                return wire.notice(body)["C"], wire.notice(body)["S"]
    except Closed:
        return "closed", ""
    except TimeoutError:
        return "no answer", ""


# --- Who holds the write gate -----------------------------------------------------------------------------------------

def idle_owner(server):
    """A session that has written and is idle in its transaction, however it looks busy, makes room for writers that wait."""
    other = connect(server)
    other.query("create table t(x int)")
    owner = connect(server)
    owner.query("begin; insert into t values (1)")
    other.send("insert into t values (2)")
    checks.equal("a silent owner", ("25P03", "FATAL"), last_error(owner))
    checks.case("the waiting writer goes on", other.until_ready)

    # Statements, and parts of messages, do not begin the time again.
    owner = connect(server)
    owner.query("begin; insert into t values (1)")
    other.send("insert into t values (3)")
    end, found = time.monotonic() + SOON, "it goes on"
    while time.monotonic() < end and found == "it goes on":
        time.sleep(0.3)
        try:
            owner.query("select 1")
        except Refused as error:
            found = error.code
        except (Closed, OSError):
            found = "closed"
    checks.that("an owner that asks something every 0.3 s", found in ("25P03", "closed"), found)
    checks.case("the waiting writer goes on", other.until_ready)

    owner = connect(server)
    owner.query("begin; insert into t values (1)")
    other.send("insert into t values (4)")
    end, found = time.monotonic() + SOON, "it goes on"
    for byte in message("Q", b"select '" + b"x" * 1000 + b"'\0"):
        if time.monotonic() > end or found == "closed":
            break
        time.sleep(0.1)
        try:
            owner.raw(bytes([byte]))
        except OSError:
            found = "closed"
    checks.equal("an owner that sends a byte every 0.1 s", "closed", found)
    checks.case("the waiting writer goes on", other.until_ready)

    # Without others that wait, nothing happens.
    owner = connect(server)
    owner.query("begin; insert into t values (5)")
    time.sleep(4)
    checks.equal("an owner that is not waited for", ("no error", ""), refusal(owner, "commit"))
    checks.equal("what was committed", [("2",), ("3",), ("4",), ("5",)], other.query("select x from t order by x"))


def slow_copy(server):
    """A COPY that brings a row now and then ends, if others wait to write."""
    other, copier = connect(server), connect(server)
    other.query("create table c(x int)")
    copier.send("copy c from stdin")
    assert copier.receive()[0] == "G"
    other.send("insert into c values (-1)")
    end, found = time.monotonic() + SOON, "it goes on"
    while time.monotonic() < end and found == "it goes on":
        try:
            copier.raw(message("d", b"1\n"))
            copier.socket.settimeout(0.3)
            kind, body = copier.receive()
            found = wire.notice(body)["C"] if kind == "E" else kind
        except TimeoutError:
            pass
        except (Closed, OSError):
            found = "closed"
    checks.that("a COPY of a row every 0.3 s", found in ("25P03", "closed"), found)
    checks.case("the waiting writer goes on", other.until_ready)
    checks.equal("no row of the COPY", [("-1",)], other.query("select x from c"))
    # One with progress goes on.
    copier = connect(server)
    copier.send("copy c from stdin")
    assert copier.receive()[0] == "G"
    other.send("insert into c values (-2)")
    for _ in range(8):
        copier.raw(message("d", b"7\n" * 40_000))
        time.sleep(0.5)
    copier.raw(message("c"))
    checks.case("a COPY with progress", copier.until_ready)
    checks.case("then the writer", other.until_ready)
    checks.equal("its rows", [("320000",)], other.query("select count(*) from c where x = 7"))


# --- Timeouts ---------------------------------------------------------------------------------------------------------

def settings(server):
    conn = connect(server)
    show = lambda name: conn.query(f"show {name}")[0][0]
    for value, shown in [("100", "100ms"), ("'5s'", "5s"), ("'1min'", "1min"), ("'90s'", "90s"), ("0", "0"), ("'1.5s'", "1500ms")]:
        conn.query(f"set statement_timeout = {value}")
        checks.equal(f"statement_timeout = {value}", shown, show("statement_timeout"))
    for value in ["'soon'", "'5 parsecs'", "-1", "'3000000000'"]:
        code, said = refusal(conn, f"set lock_timeout to {value}")
        checks.equal(f"lock_timeout to {value}", ("22023", True), (code, "lock_timeout" in said))
    conn.query("set statement_timeout = 7; set idle_in_transaction_session_timeout = '2h'")
    conn.query("reset statement_timeout")
    checks.equal("RESET", "0", show("statement_timeout"))
    checks.equal("it keeps the others", "2h", show("idle_in_transaction_session_timeout"))
    conn.query("discard all")
    checks.equal("DISCARD ALL", "0", show("idle_in_transaction_session_timeout"))
    conn.query("begin; set local statement_timeout = '1h'")
    checks.equal("SET LOCAL", "1h", show("statement_timeout"))
    conn.query("commit")
    checks.equal("it ends with the transaction", "0", show("statement_timeout"))
    conn = connect(server, options="-c statement_timeout=8s --lock_timeout=9s", idle_session_timeout="10s")
    names = ["statement_timeout", "lock_timeout", "idle_session_timeout"]
    checks.equal("from the first packet", ["8s", "9s", "10s"], [show(name) for name in names])


def timeouts(server):
    other, conn = connect(server), connect(server)
    other.query("create table w(x int)")
    conn.query("set statement_timeout = '300ms'")
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"
    statement = ("57014", "57014 canceling statement due to statement timeout")
    checks.equal("a statement that computes", statement, refusal(conn, endless))
    checks.equal("one that sleeps", statement, refusal(conn, "select pg_sleep(60)"))
    checks.equal("WAITFOR", statement, refusal(conn, "waitfor delay '00:01:00'"))
    conn.raw(parse("select pg_sleep(60)") + bind() + execute() + SYNC)
    try:
        conn.until_ready()
        found = "no error"
    except Refused as error:
        found = error.code
    checks.equal("a prepared one", "57014", found)
    other.query("begin; insert into w values (1)")
    checks.equal("one that waits for a writer", statement, refusal(conn, "insert into w values (2)"))
    conn.query("set lock_timeout = '200ms'; set statement_timeout = 0")
    lock = ("55P03", "55P03 canceling statement due to lock timeout")
    checks.equal("lock_timeout", lock, refusal(conn, "insert into w values (3)"))
    other.query("rollback")
    checks.equal("the session goes on", ("no error", ""), refusal(conn, "insert into w values (4); select pg_sleep(0.5)"))
    conn.query("set statement_timeout = '300ms'")
    conn.send("copy w from stdin")
    try:
        conn.until_ready()
        conn.until_ready()
        found = "no error"
    except Refused as error:
        found = error.code
    checks.equal("a COPY that waits for its client", "57014", found)
    conn.query("set statement_timeout = 0")
    # A statement that another client cancels says so.
    conn.send("select pg_sleep(60)")
    time.sleep(0.2)
    conn.cancel()
    try:
        conn.until_ready()
        found = "no error"
    except Refused as error:
        found = str(error)
    checks.equal("a cancellation", "57014 canceling statement due to user request", found)
    conn.query("set idle_in_transaction_session_timeout = '300ms'")
    conn.query("select 1")
    time.sleep(1)
    conn.query("begin; select 1")
    checks.equal("idle in a transaction", ("25P03", "FATAL"), last_error(conn))
    conn = connect(server, idle_session_timeout="300ms")
    checks.equal("idle", ("57P05", "FATAL"), last_error(conn))


def crowd(server):
    """Writers beyond the number of workers wait without one; their limits hold, too."""
    owner = connect(server)
    owner.query("create table q(x int)")
    owner.query("begin; insert into q values (0)")
    writers = [connect(server) for _ in range(40)]
    for number, writer in enumerate(writers):
        writer.query(f"set {'lock' if number % 2 else 'statement'}_timeout = '500ms'")
    for writer in writers:
        writer.send("insert into q values (1)")
    found = []
    for writer in writers:
        try:
            writer.until_ready()
            found.append("no error")
        except Refused as error:
            found.append(error.code)
        except TimeoutError:
            found.append("no answer")
    checks.equal("each waiting writer", ["57014", "55P03"] * 20, found)
    checks.equal("all their sessions go on", [[("1",)]] * 40, [writer.query("select 1") for writer in writers])
    owner.query("commit")


# --- Clients that go --------------------------------------------------------------------------------------------------

def gone(server):
    """The statements of clients that have gone end, and what they hold is free."""
    watch = connect(server)
    watch.query("create table g(x int)")
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"

    def busy():
        stats = wire.umsstats(watch)
        return stats["num workers"] - stats["idle workers"]

    before = 1  # The worker of the question itself.
    for how in ["close", "reset"]:
        for sql in [endless, "select pg_sleep(600)", "begin; insert into g values (1); select pg_sleep(600)"]:
            client = connect(server)
            # What follows a statement of a client that has gone is not executed either.
            client.send(sql)
            client.send("insert into g values (666)")
            time.sleep(0.3)
            client.socket.shutdown(socket.SHUT_WR) if how == "close" else None
            client.reset() if how == "reset" else client.close()
            checks.case(f"{how}: {sql[:50]}", wait_for, "no busy worker", busy, lambda now: now <= before, SOON)
    checks.equal("the gate is free", ("no error", ""), refusal(watch, "insert into g values (2)"))
    # A writer that waits in the gate's queue.
    owner, waiting = connect(server), connect(server)
    owner.query("begin; insert into g values (3)")
    waiting.send("insert into g values (4)")
    time.sleep(0.3)
    waiting.close()
    checks.case("a waiting writer", wait_for, "no busy worker", busy, lambda now: now <= before, SOON)
    owner.query("commit")
    checks.equal("only the others wrote", [("2",), ("3",)], watch.query("select x from g order by x"))
    watch.send("select pg_sleep(3)")
    checks.case("a client that waits is left alone", watch.until_ready)


def keepalive(server):
    conn = connect(server)
    mine, theirs = f"{conn.socket.getsockname()[1]:04X}", f"{server.port:04X}"
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file]
    timers = [row[5][:2] for row in rows if row[1].endswith(":" + theirs) and row[2].endswith(":" + mine)]
    # 02 is the timer that asks a silent peer.
    checks.equal("the kernel asks silent clients", ["02"], timers)


# --- Before the login -------------------------------------------------------------------------------------------------

SSL, GSS = b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x08\x04\xd2\x16\x30"


def encryption(server):
    client = stranger(server.port, SSL)
    checks.equal("an SSLRequest", b"N", client.recv(1))
    client.sendall(GSS)
    checks.equal("a GSSENCRequest", b"N", client.recv(1))
    client.sendall(startup(user="ums", database="ums"))
    checks.equal("then a login", b"R", client.recv(1))
    for request in [SSL, GSS]:
        client = stranger(server.port, request * 3)
        answer = b""
        try:
            while more := client.recv(4096):
                answer += more
        except (TimeoutError, ConnectionError):
            answer += b"..."
        checks.that("twice the same request", answer[:2] == b"NE" and b"08P01" in answer and answer.count(b"N") < 3, f"{answer[:99]}")


def slow_login(server):
    """A byte now and then does not begin the time of the login again."""
    client, found = stranger(server.port), "it goes on"
    end = time.monotonic() + SOON
    for byte in startup(user="u" * 1000, database="ums"):
        if time.monotonic() > end or found != "it goes on":
            break
        time.sleep(0.1)
        try:
            client.send(bytes([byte]))
        except OSError:
            found = "closed"
    checks.equal("a login with a byte every 0.1 s", "closed", found)


def strangers(server):
    """Clients that do not log in make room for those that do."""
    silent = [stranger(server.port, b"\0\0\0" if n % 2 else b"") for n in range(12)]
    late = [connect(server) for _ in range(12)]
    checks.equal("those that log in", [[("1",)]] * 12, [conn.query("select 1") for conn in late])
    checks.equal("the oldest silent one", True, ended(silent[0]))
    more = [stranger(server.port) for _ in range(12)]
    checks.equal("those that logged in stay", [[("2",)]] * 12, [conn.query("select 2") for conn in late])
    del more

    # The administrator's place is for one who logs in.
    silent = [stranger(server.admin) for _ in range(20)]
    try:
        admin = connect(server, server.admin)
        found = admin.query("select 1")
    except (Closed, Refused, OSError) as error:
        found = repr(error)
    checks.equal("the administrator beside 20 silent clients", [("1",)], found)
    try:
        connect(server, server.admin)
        found = "accepted"
    except Refused as error:
        found = error.code
    except (Closed, OSError) as error:
        found = repr(error)
    checks.equal("a second administrator", "53300", found)
    if found == "53300":
        admin.close()
        checks.case("the next one", wait_for, "a place", lambda: refused_login(server), "no error", SOON)
    del silent


def refused_login(server):
    try:
        connect(server, server.admin).close()
    except Refused as error:
        return error.code
    return "no error"


# --- Signals, statistics, small things --------------------------------------------------------------------------------

def hangup(server):
    conn = connect(server)
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    checks.equal("SIGHUP does not end the server", (None, [("1",)]), (server.process.poll(), conn.query("select 1")))
    checks.that("it says so", "nothing to load again" in server.said(), server.said())


def file_size(folder):
    """A limit of the size of files is an error of the statement."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        server = Server(f"{folder}/size.db", *OPTIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with server:
        conn = connect(server)
        conn.query("create table s(x blob); insert into s values (x'01')")
        code = refusal(conn, "insert into s select randomblob(1000000) from (select 1 union select 2 union select 3 union select 4)")[0]
        checks.equal("a file that would be too long", "53100", code)
        checks.equal("the server goes on", [("1",)], conn.query("select count(*) from s") if code == "53100" else None)
        if code == "closed":
            server.kill()
            server.process.returncode = 0


def metrics(server, port):
    silent = [stranger(port, b"GET /metr" if n % 2 else b"") for n in range(10)]
    client = stranger(port, b"GET /metrics HTTP/1.0\r\n\r\n")
    client.settimeout(4)
    answer = b""
    try:
        while more := client.recv(65536):
            answer += more
    except TimeoutError:
        pass
    checks.that("metrics beside 10 silent clients", b"200 OK" in answer[:20], f"{answer[:60]}")
    checks.equal("the silent ones end", [True] * 10, [ended(client) for client in silent])


def values(server):
    conn = connect(server)
    for time_ in ["'nan'", "-1", "-1e300", "'-inf'", "null", "0"]:
        checks.equal(f"pg_sleep({time_})", ("no error", ""), refusal(conn, f"select pg_sleep({time_})"))
    checks.equal("pg_sleep('soon')", "22P02", refusal(conn, "select pg_sleep('soon')")[0])
    for time_ in ["1e300", "'inf'"]:
        conn.send(f"select pg_sleep({time_})")
        time.sleep(0.2)
        conn.cancel()
        try:
            conn.until_ready()
            found = "no error"
        except Refused as error:
            found = error.code
        checks.equal(f"pg_sleep({time_}) until it is cancelled", "57014", found)
    for sql in ["select 'a' || char(0) || 'b'", "select cast(x'610062' || '' as text)"]:
        checks.equal(sql, "22021", refusal(conn, sql)[0])
    checks.equal("a blob", [("\\x610062",)], conn.query("select x'610062'"))
    conn.query("create table z(x text)")
    conn.raw(parse("insert into z values ($1)", oids=(25,)) + bind([b"a\0b"]) + execute() + SYNC)
    try:
        conn.until_ready()
        found = "no error"
    except Refused as error:
        found = error.code
    checks.equal("a parameter with a zero byte", "22021", found)


def scram(conn, user, password):
    """Logs in. Returns the SQLSTATE, or None."""
    conn.raw(startup(user=user, database="ums"))
    nonce, bare = base64.b64encode(os.urandom(12)).decode(), None
    try:
        conn.receive()
        bare = f"n=,r={nonce}"
        first = f"n,,{bare}".encode()
        conn.raw(message("p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4, "big") + first))
        answer = conn.receive()[1][4:].decode()
        fields = dict(part.split("=", 1) for part in answer.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={fields['r']}"
        sign = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{answer},{last}".encode(), "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, sign))).decode()
        conn.raw(message("p", f"{last},p={proof}".encode()))
        kind, body = conn.receive()
        return wire.notice(body)["C"] if kind == "E" else None
    except (Closed, OSError) as error:
        return repr(error)


def passwords(folder):
    path = f"{folder}/password"
    with open(path, "w") as file:
        file.write("right\n")
    os.chmod(path, 0o644)
    command = [os.environ["UMS_BIN"], "serve", "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--db", f"{folder}/p.db", "--password-file", path]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SOON)
        found = (done.returncode, f"chmod 600 {path}" in done.stderr)
    except subprocess.TimeoutExpired:
        found = "it runs"
    checks.equal("a password file that others can read", (1, True), found)
    os.chmod(path, 0o600)
    with Server(f"{folder}/p.db", "--password-file", path, *OPTIONS, trust=False) as server:
        wire.PORT = server.port
        conns = [Conn(login=False) for _ in range(6)]
        # A name without an account is refused as a wrong password is.
        found = {scram(conn, name, "wrong") for conn, name in zip(conns, ["eve\nums: all is well", "eve", "ums"])}
        checks.equal("a wrong password, or an unknown name", {"28P01"}, found)
        checks.equal("the right password", None, scram(conns[3], "ums", "right"))
        said = server.said()
        for name in [r"eve\nums: all is well", "eve", "ums"]:
            checks.that(f"{name} is logged", f'login as "{name}" failed: wrong password' in said and "127.0.0.1:" in said, said)
        # What is sent during the pause is ignored, and a client that goes ends it.
        conns[4].socket.settimeout(0.2)
        scram(conns[4], "eve", "wrong")
        conns[4].raw(b"x" * 100_000)
        conns[4].socket.settimeout(SOON)
        checks.equal("after the pause", "28P01", last_error(conns[4])[0])


def numbers(folder):
    """The limits of connections: the client beyond --max-connections gets an error, the others are closed at once."""
    def turned_away(server):
        try:
            Conn(server.port).close()
        except Refused as error:
            return error.code
        except (Closed, OSError):
            return "closed"
        return None

    with Server(f"{folder}/n.db", "--max-connections", "2") as server:
        until = time.monotonic() + SOON
        held = [Conn(server.port), Conn(server.port)]
        checks.equal("too many clients", "53300", turned_away(server))
        held.pop().close()
        # Asked once more, the client would be refused if the server has not yet noticed that the one before has gone.
        while (reason := turned_away(server)) and time.monotonic() < until:
            time.sleep(0.05)
        checks.equal("after one has gone", None, reason)
        held.pop().close()
    for option, allowed in [("--max-per-address", 3), ("--max-rate-per-address", 3), ("--max-rate", 3)]:
        with Server(f"{folder}/n.db", option, str(allowed)) as server:
            time.sleep(1.5)  # The connection by which the server was awaited is gone, and its second over.
            many = [stranger(server.port) for _ in range(40)]
            time.sleep(0.5)  # Connections that are closed have something to read: their end.
            refused = len(select.select(many, [], [], 0)[0])
            checks.that(f"{option}: some are refused", 0 < refused <= 40 - allowed, f"{refused} of 40")
            if option == "--max-per-address":
                checks.equal(f"{option}: how many", 40 - allowed, refused)
            for client in many:
                client.close()
            time.sleep(1.5)
            checks.equal(f"{option}: later", None, turned_away(server))


def main():
    with tempfile.TemporaryDirectory() as folder:
        port = free_ports(1)[0]
        limits = ["--gate-idle", "2s", "--login-timeout", "3s", "--max-new", "8", "--client-check", "500ms", "--metrics", f"127.0.0.1:{port}"]
        if os.environ.get("BEFORE"):  # Options that an earlier server does not have.
            limits = limits[-2:]
        runs = [idle_owner, slow_copy, settings, timeouts, gone, keepalive, encryption, slow_login, strangers, hangup, values]
        only = os.environ.get("ONLY", "").split()
        with Server(f"{folder}/a.db", *limits, *OPTIONS) as server:
            for run in runs:
                if not only or run.__name__ in only:
                    checks.case(run.__name__, run, server)
            if not only or "metrics" in only:
                checks.case("metrics", metrics, server, port)
            if server.process.poll() is not None:
                server.process.returncode = 0
        if not only or "crowd" in only:
            with Server(f"{folder}/b.db", "--max-workers", "8", *OPTIONS) as server:
                checks.case("crowd", crowd, server)
        for run in [file_size, passwords, numbers]:
            if not only or run.__name__ in only:
                checks.case(run.__name__, run, folder)
    checks.finish()


if __name__ == "__main__":
    main()
