#!/usr/bin/env python3
"""Who can log in: the commands that the server prints work as they are, and nothing else does.

The Unix-domain socket for the server's own user, the port with the password that was made at the first start, accounts
with roles, stored verifiers, psql and the drivers. It starts its own servers ($UMS_BIN); further arguments are options
for `ums serve`. As root it also tries to connect as `nobody`. The drivers are tried if they are installed.
"""

import base64
import hashlib
import hmac
import os
import re
import subprocess
import sys
import tempfile

from owned import Server, free_ports
from wire import Checks, wait_for

OPTIONS = sys.argv[1:]
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"PGCONNECT_TIMEOUT": "20"}
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
checks = Checks()


def shell(command, **more):
    """Runs a shell's command. Returns its exit code and everything that it printed."""
    env = ENV | more.pop("env", {})
    done = subprocess.run(["sh", "-c", command], env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120, **more)
    return done.returncode, done.stdout.strip()


def psql(command, sql, **more):
    return shell(f"{command} -w -XAtc '{sql}'", **more)


def printed(server):
    """Returns the two psql commands that the server prints when it is ready."""
    return wait_for("the commands", lambda: re.findall(r"ums: listening on .*?: ((?:PGPASSFILE=.*)?psql .*)", server.said()),
                    lambda found: len(found) == 2)


def refuses(name, answer, *words):
    code, said = answer
    checks.that(name, code != 0 and all(word in said for word in words), f"expected {words}, found {code} and {said!r}")


def verifier(password):
    salt, count = os.urandom(16), 4096
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, count)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    keys = [base64.b64encode(key).decode() for key in (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))]
    return f"SCRAM-SHA-256${count}:{keys[0]}${keys[1]}:{keys[2]}"


def private(path, text, mode=0o600):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def defaults(folder):
    """A server without options for its access."""
    db = f"{folder}/my data.db"
    with Server(db, *OPTIONS, trust=False) as server:
        commands = printed(server)
        for command in commands:
            checks.equal(command, (0, "42"), psql(command, "select 6 * 7"))
        port = f"psql -h 127.0.0.1 -p {server.port}"
        refuses("no password", psql(f"{port} -U ums", "select 1"), "password")
        refuses("a wrong password", psql(f"{port} -U ums", "select 1", env={"PGPASSWORD": "x"}), "authentication failed")
        lines = [line.strip() for line in open(f"{db}.pgpass") if not line.startswith("#")]
        password = lines[0].split(":")[4]
        checks.equal("the file's mode", "0o600", oct(os.stat(f"{db}.pgpass").st_mode & 0o777))
        refuses("another name", psql(f"{port} -U eve", "select 1", env={"PGPASSWORD": password}), "authentication failed")
        admin = f"psql -h 127.0.0.1 -p {server.admin} -U ums"
        refuses("the administrator's port", psql(admin, "select 1", env={"PGPASSWORD": "x"}), "authentication failed")
        checks.equal("the administrator", (0, "1"), psql(admin, "select 1", env={"PGPASSWORD": password}))
        with open(f"/proc/{server.pid}/cmdline", "rb") as file:
            seen = file.read().decode() + server.said()
        checks.that("the password is not printed", len(password) >= 24 and password not in seen, seen)
        if os.geteuid() == 0:
            others(server)
    with Server(db, *OPTIONS, trust=False) as server:
        checks.equal("the same password after a restart", (0, "1"),
                     psql(f"psql -h 127.0.0.1 -p {server.port} -U ums", "select 1", env={"PGPASSWORD": password}))


def others(server):
    """Another user of the computer, who has got access to the socket's file."""
    command = f"psql -h {server.sockets} -p {server.port} -U ums"
    refuses("the socket as another user", psql(command, "select 1", **NOBODY), "ermission denied")
    os.chmod(server.sockets, 0o755)
    os.chmod(f"{server.sockets}/.s.PGSQL.{server.port}", 0o666)
    refuses("an open socket as another user", psql(command, "select 1", **NOBODY), "peer authentication failed")
    checks.equal("an open socket as this user", (0, "1"), psql(command, "select 1"))


def trusted(folder):
    with Server(f"{folder}/open.db", *OPTIONS) as server:
        checks.that("a warning", "WITHOUT A PASSWORD" in server.said(), server.said())
        for command in printed(server):
            checks.equal(command, (0, "42"), psql(command, "select 6 * 7"))
        checks.that("no file with a password", not os.path.exists(f"{folder}/open.db.pgpass"))


def accounts(folder):
    path = private(f"{folder}/accounts", f"# all\nann owner {verifier('of Ann')}\nbob reader of Bob\n")
    with Server(f"{folder}/roles.db", "--accounts", path, *OPTIONS, trust=False) as server:
        def to(name, password, sql, port=server.port):
            return psql(f"psql -h 127.0.0.1 -p {port} -U {name}", sql, env={"PGPASSWORD": password})

        checks.equal("a verifier", (0, "CREATE TABLE\nINSERT 0 1"), to("ann", "of Ann", "create table t(x int); insert into t values (7)"))
        checks.equal("a reader", (0, "7"), to("bob", "of Bob", "select x from t"))
        refuses("a reader writes", to("bob", "of Bob", "delete from t"), "permission denied", "bob")
        refuses("a reader as administrator", to("bob", "of Bob", "select 1", server.admin), "administrator")
        checks.equal("an owner as administrator", (0, "1"), to("ann", "of Ann", "select 1", server.admin))
        refuses("the password of another", to("bob", "of Ann", "select 1"), "authentication failed")
        refuses("a name without an account", to("eve", "of Ann", "select 1"), "authentication failed")
        refuses("a reader on the socket", psql(f"psql -h {server.sockets} -p {server.port} -U bob", "delete from t"), "permission denied")
        drivers(server.port)
        words = ("of Ann", "of Bob", "SCRAM-SHA-256$")
        checks.that("no password is printed", not any(word in server.said() for word in words), server.said())


def drivers(port):
    try:
        import asyncio

        import asyncpg
        import psycopg
    except ImportError:
        return
    where = {"host": "127.0.0.1", "port": port, "user": "ann"}
    with psycopg.connect(**where, password="of Ann", dbname="ums") as conn:
        checks.equal("psycopg", (7,), conn.execute("select x from t").fetchone())
    checks.case("psycopg is refused", lambda: raises(psycopg.OperationalError, lambda: psycopg.connect(**where, password="x", dbname="ums")))

    async def by_asyncpg(password):
        conn = await asyncpg.connect(**where, password=password, database="ums")
        value = await conn.fetchval("select x from t")
        await conn.close()
        return value

    checks.equal("asyncpg", 7, asyncio.run(by_asyncpg("of Ann")))
    checks.case("asyncpg is refused", lambda: raises(asyncpg.InvalidPasswordError, lambda: asyncio.run(by_asyncpg("x"))))


def raises(kind, function):
    try:
        function()
    except kind:
        return
    raise AssertionError("it was accepted")


def refused_files(folder):
    """Files with passwords that the server does not use; it says why, and nothing of what is in them."""
    for name, option, text, mode, words in [
        ("readable", "--password-file", "secret\n", 0o644, ["chmod 600"]),
        ("writable", "--accounts", "ann owner secret\n", 0o620, ["chmod 600"]),
        ("empty", "--password-file", "", 0o600, ["password is empty"]),
        ("no role", "--accounts", "ann secret\n", 0o600, ["line 1"]),
        ("no verifier", "--accounts", "\nann owner SCRAM-SHA-256$secret\n", 0o600, ["line 2"]),
    ]:
        path = private(f"{folder}/{name}", text, mode)
        command = f"'{os.environ['UMS_BIN']}' serve --listen 127.0.0.1:{free_ports(1)[0]} --no-socket --db {folder}/no.db {option} '{path}'"
        answer = shell(command)
        refuses(name, answer, *words)
        checks.that(f"{name}: nothing of the file is printed", "secret" not in answer[1], answer[1])
    open_address = f"'{os.environ['UMS_BIN']}' serve --listen 0.0.0.0:0 --allow-remote --trust --no-socket --db {folder}/no.db"
    refuses("trust for other computers", shell(open_address), "loopback")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for part in (defaults, trusted, accounts, refused_files):
            checks.case(part.__name__, part, folder)
    checks.finish()


if __name__ == "__main__":
    main()
