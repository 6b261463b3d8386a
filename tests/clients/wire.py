"""A small client of the PostgreSQL protocol, for runs that send invalid input or that need many clients.

A Conn is one socket. It can run queries (`query`, `prepared`), send and receive separately (`send`, `receive`), or send any bytes
(`raw`). Every wait has a time limit, so a server that does not answer a client causes a failure, not a hang.
"""

import os
import resource
import socket
import struct
import sys
import time

HOST = os.environ.get("UMS_HOST", "127.0.0.1")
PORT = int(os.environ.get("UMS_PORT", "5433"))
ADMIN_PORT = int(os.environ.get("UMS_ADMIN_PORT", "0"))
PID = int(os.environ.get("UMS_PID", "0"))
PLAIN = os.environ.get("PLAIN", "0") == "1"
USER = os.environ.get("PGUSER", "ums")
DATABASE = os.environ.get("PGDATABASE", "ums")
PATIENCE = float(os.environ.get("PATIENCE", "60"))


class Refused(Exception):
    """The server answered with an error: SQLSTATE and message."""

    def __init__(self, fields):
        self.code = fields.get("C", "")
        super().__init__(f"{self.code} {fields.get('M', '')}")


class Closed(Exception):
    """The server closed the connection."""


def message(kind, body=b""):
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def startup(version=196608, **options):
    body = struct.pack("!i", version)
    for name, value in options.items():
        body += name.encode() + b"\0" + value.encode() + b"\0"
    return struct.pack("!i", len(body) + 5) + body + b"\0"


def parse(sql, name="", oids=()):
    sql = sql if isinstance(sql, bytes) else sql.encode()
    return message("P", name.encode() + b"\0" + sql + b"\0" + struct.pack(f"!h{len(oids)}i", len(oids), *oids))


def bind(values=(), name="", portal=""):
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack("!hH", 0, len(values))
    for value in values:
        body += struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
    return message("B", body + struct.pack("!h", 0))


def execute(portal="", rows=0):
    return message("E", portal.encode() + b"\0" + struct.pack("!i", rows))


SYNC = message("S")


class Conn:
    def __init__(self, port=None, login=True, database=DATABASE):
        self.socket = socket.create_connection((HOST, port or PORT), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""
        self.key = None
        if login:
            self.raw(startup(user=USER, database=database))
            self.until_ready()

    def raw(self, data):
        self.socket.sendall(data)

    def fileno(self):
        return self.socket.fileno()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes without a Terminate message: the other side sees a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self):
        """Returns the next message: its kind and body."""
        while len(self.pending) < 5 or len(self.pending) < 1 + struct.unpack("!i", self.pending[1:5])[0]:
            try:
                more = self.socket.recv(65536)
            except ConnectionError as error:
                raise Closed(str(error)) from None
            if not more:
                raise Closed("end of stream")
            self.pending += more
        end = 1 + struct.unpack("!i", self.pending[1:5])[0]
        kind, body = chr(self.pending[0]), self.pending[5:end]
        self.pending = self.pending[end:]
        return kind, body

    def until_ready(self):
        """Returns the rows up to ReadyForQuery; raises Refused for the first error before it."""
        rows, error, self.tags = [], None, []
        while True:
            kind, body = self.receive()
            if kind == "D":
                rows.append(fields_of(body))
            elif kind == "E":
                error = error or Refused(notice(body))
                if notice(body).get("S") in ("FATAL", "PANIC"):
                    raise error
            elif kind == "C":
                self.tags.append(body.rstrip(b"\0").decode())
            elif kind == "K":
                self.key = body
            elif kind == "R" and body[:4] != b"\0\0\0\0":
                raise Refused({"M": "the server requires a password; these runs have none"})
            elif kind == "G":
                return rows
            elif kind == "Z":
                self.status = body.decode()
                if error:
                    raise error
                return rows

    def send(self, sql):
        sql = sql if isinstance(sql, bytes) else sql.encode()
        self.raw(message("Q", sql + b"\0"))

    def query(self, sql):
        self.send(sql)
        return self.until_ready()

    def prepared(self, sql, values=(), name="", oids=()):
        values = [None if value is None else str(value).encode() for value in values]
        self.raw(parse(sql, name, oids) + bind(values, name) + execute() + SYNC)
        return self.until_ready()

    def cancel(self):
        """Asks the server to cancel the statement that this connection runs."""
        with socket.create_connection((HOST, PORT), timeout=PATIENCE) as other:
            other.sendall(struct.pack("!ii", 16, 80877102) + self.key)
            other.recv(1)


def fields_of(body):
    count, at, row = struct.unpack("!h", body[:2])[0], 2, []
    for _ in range(count):
        size = struct.unpack("!i", body[at : at + 4])[0]
        at += 4
        row.append(None if size < 0 else body[at : at + size].decode())
        at += max(size, 0)
    return tuple(row)


def notice(body):
    parts = [part for part in body.split(b"\0") if part]
    return {chr(part[0]): part[1:].decode("utf-8", "replace") for part in parts}


def umsstats(conn):
    """Returns the totals over all visible schedulers, and the number of schedulers."""
    totals = {}
    for name, value in conn.query("DBCC SQLPERF(umsstats)"):
        name = name.strip()
        totals[name] = totals.get(name, 0.0) + (1.0 if name == "Scheduler ID" else float(value))
    return totals


def wait_for(what, question, expected, seconds=PATIENCE):
    """Repeats the question until the answer is the expected one, or until `expected(answer)` is true. Returns the answer."""
    good = expected if callable(expected) else lambda answer: answer == expected
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if good(answer):
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"{what}: still {answer} after {seconds:.0f} s")
        time.sleep(0.05)


def open_files(pid=PID):
    """Returns the server's number of open files, without those of its pooled database connections, whose number is bounded."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue
        count += not path.startswith(os.environ.get("UMS_DB", "\0"))
    return count


def many_files():
    """Raises this client's limit of open files as far as the system permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Checks:
    """Runs named checks and counts them; `finish` exits with 1 if one failed."""

    def __init__(self):
        self.run, self.passed, self.failed = os.path.basename(sys.argv[0]), 0, 0

    def equal(self, name, expected, found):
        self.that(name, expected == found and type(expected) is type(found), f"expected {expected!r}, found {found!r}")

    def that(self, name, holds, detail=""):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"{self.run}: {name}: {detail}", file=sys.stderr, flush=True)

    def case(self, name, function, *arguments):
        """Runs a function that passes if it returns; an exception is the failure."""
        try:
            function(*arguments)
            self.passed += 1
        except Exception as error:  # Any of them is a finding with this name.
            self.failed += 1
            print(f"{self.run}: {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def finish(self):
        print(f"{self.run}: {self.passed} checks passed, {self.failed} failed")
        sys.exit(1 if self.failed else 0)
