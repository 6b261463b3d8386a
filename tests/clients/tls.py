#!/usr/bin/env python3
"""TLS of `ums serve`, with psql, psycopg and Python's ssl.

Certificates of all kinds and a certificate authority of its own (openssl), channel binding, clients that must use TLS and clients that
cannot, files that are refused and files that are read again; then what a hostile or slow client does in a handshake and after it,
beside one that works. It starts its own servers ($UMS_BIN); further arguments are options for `ums serve`.
"""

import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading

os.environ.setdefault("PATIENCE", "60")
import wire
from owned import Server, free_ports
from wire import Checks, Closed, Conn, Refused, message, startup, wait_for

OPTIONS = sys.argv[1:]
QUICK = os.environ.get("QUICK", "0") == "1"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"PGCONNECT_TIMEOUT": "60", "HOME": "/nonexistent"}
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
checks = Checks()


def run(*command, **more):
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, **more)
    return done.returncode, done.stdout.strip()


def openssl(*arguments):
    code, said = run("openssl", *arguments)
    assert code == 0, said


def psql(where, sql, *more):
    return run("psql", "-w", "-XAt", *more, "-c", sql, where, env=ENV)


def refuses(name, answer, *words):
    code, said = answer
    checks.that(name, code != 0 and all(word in said for word in words), f"expected {words}, found {code} and {said!r}")


class Authority:
    """A certificate authority, and the certificates that it signs."""

    def __init__(self, folder):
        self.folder = folder
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=authority",
                "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt")

    def certificate(self, name, key, *signature, host="localhost"):
        """Returns the options of a server with a new certificate for `host`."""
        cert, private = f"{self.folder}/{name}.crt", f"{self.folder}/{name}.key"
        openssl("req", "-new", "-newkey", *key, "-nodes", "-subj", f"/CN={host}", "-keyout", private, "-out", f"{self.folder}/csr")
        with open(f"{self.folder}/ext", "w") as file:
            file.write(f"subjectAltName=DNS:{host},IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{self.folder}/csr", "-CA", f"{self.folder}/ca.crt", "-CAkey", f"{self.folder}/ca.key",
                "-days", "20", "-extfile", f"{self.folder}/ext", "-out", cert, *signature)
        os.chmod(private, 0o600)
        return ["--tls-cert", cert, "--tls-key", private]


P256 = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
P384 = ["ec", "-pkeyopt", "ec_paramgen_curve:P-384"]


def access(folder, authority):
    """Who is let in, how it is encrypted, and what the server prints about it."""
    password = f"{folder}/password"
    with open(password, "w") as file:
        file.write("secret\n")
    os.chmod(password, 0o600)
    root = f"sslrootcert={folder}/ca.crt"
    with Server(f"{folder}/a.db", *authority.certificate("a", P256), "--password-file", password, *OPTIONS, trust=False) as server:
        to = f"host=127.0.0.1 port={server.port} user=ums password=secret"
        for mode in ["disable", "prefer", "require", f"verify-ca {root}", f"verify-full {root}"]:
            used = psql(f"{to} sslmode={mode}", "select 6 * 7", "-c", "\\conninfo")
            checks.that(mode, used[0] == 0 and used[1].endswith("42") and ("TLSv1.3" in used[1]) == (mode != "disable"), used)
        checks.equal("TLS 1.2", (0, "42"), psql(f"{to} sslmode=require ssl_max_protocol_version=TLSv1.2", "select 6 * 7"))
        checks.equal("by the name of the host", (0, "1"), psql(to.replace("127.0.0.1", "localhost") + f" sslmode=verify-full {root}", "select 1"))
        columns = "ssl, version, cipher, bits"
        checks.equal("pg_stat_ssl", (0, "t|TLSv1.2|TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384|256"),
                     psql(f"{to} sslmode=require ssl_max_protocol_version=TLSv1.2", f"select {columns} from pg_stat_ssl"))
        checks.equal("pg_stat_ssl without TLS", (0, "f|||"), psql(f"{to} sslmode=disable", f"select {columns} from pg_stat_ssl"))
        checks.equal("a bound login", (0, "1"), psql(f"{to} channel_binding=require sslmode=require", "select 1"))
        checks.equal("no bound login", (0, "1"), psql(f"{to} channel_binding=disable sslmode=require", "select 1"))
        refuses("a bound login without TLS", psql(f"{to} channel_binding=require sslmode=disable", "select 1"), "channel binding")
        refuses("a wrong password", psql(to.replace("secret", "x") + " channel_binding=require", "select 1"), "authentication failed")
        checks.equal("the administrator's port", (0, "1"), psql(to.replace(str(server.port), str(server.admin)) + " sslmode=require", "select 1"))
        local = psql(f"host={server.sockets} port={server.port} user=ums", "select 1", "-c", "\\conninfo")
        checks.that("the socket has no TLS", local[0] == 0 and "SSL" not in local[1], local)
        commands = wait_for("the commands", lambda: re.findall(r"ums: listening on \S+ with TLS: (.*)", server.said()), lambda found: len(found) == 1)
        printed = run("sh", "-c", f"{commands[0]} -w -XAtc 'select 1' -c '\\conninfo'", env=ENV | {"PGPASSWORD": "secret"})
        checks.that("the command that is printed", printed[0] == 0 and "TLSv1.3" in printed[1], printed)
        driver(server.port, root.split("=")[1])
    with Server(f"{folder}/a.db", *authority.certificate("b", P256, host="elsewhere"), *OPTIONS) as server:
        refuses("another host's certificate", psql(f"host=localhost port={server.port} user=ums sslmode=verify-full {root}", "select 1"), "does not match host name")


def driver(port, root):
    try:
        import psycopg
    except ImportError:
        return
    with psycopg.connect(host="127.0.0.1", port=port, user="ums", password="secret", sslmode="verify-full", sslrootcert=root, channel_binding="require") as conn:
        checks.equal("psycopg", (7,), conn.execute("select 7").fetchone())
        checks.equal("psycopg: a long parameter", ("x" * 100_000,), conn.execute("select %s::text", ("x" * 100_000,)).fetchone())


def kinds_of_certificates(folder, authority):
    """Channel binding works where the certificate's signature has a hash, with keys of every kind."""
    password = f"{folder}/password"
    chosen = [
        ("RSA", ["rsa:2048"], ["-sha256"], True),
        ("SHA-384", P384, ["-sha384"], True),
        ("SHA-512", P256, ["-sha512"], True),
    ]
    for name, key, signature, bound in chosen:
        options = authority.certificate(name, key, *signature)
        with Server(f"{folder}/k.db", *options, "--password-file", password, *OPTIONS, trust=False) as server:
            to = f"host=127.0.0.1 port={server.port} user=ums password=secret sslmode=verify-full sslrootcert={folder}/ca.crt"
            checks.equal(name, (0, "1"), psql(f"{to} channel_binding={'require' if bound else 'disable'}", "select 1"))
    own = f"{folder}/own"
    for name, key, more, bound in [("RSA-PSS", ["rsa:2048"], ["-sigopt", "rsa_padding_mode:pss", "-sha384"], True), ("Ed25519", ["ed25519"], [], False)]:
        openssl("req", "-x509", "-newkey", *key, "-nodes", "-days", "30", "-subj", "/CN=localhost", "-keyout", f"{own}.key", "-out", f"{own}.crt", *more)
        os.chmod(f"{own}.key", 0o600)
        with Server(f"{folder}/k.db", "--tls-cert", f"{own}.crt", "--tls-key", f"{own}.key", "--password-file", password, *OPTIONS, trust=False) as server:
            to = f"host=127.0.0.1 port={server.port} user=ums password=secret sslmode=require"
            checks.equal(name, (0, "1"), psql(f"{to} channel_binding=disable", "select 1"))
            if bound:
                checks.equal(f"{name}, bound", (0, "1"), psql(f"{to} channel_binding=require", "select 1"))
            else:
                refuses(f"{name}, bound", psql(f"{to} channel_binding=require", "select 1"), "channel binding")


def only(folder, authority):
    """A server that insists on TLS."""
    with Server(f"{folder}/o.db", *authority.certificate("o", P256), "--tls-only", *OPTIONS) as server:
        to = f"host=127.0.0.1 port={server.port} user=ums"
        refuses("plain", psql(f"{to} sslmode=disable", "select 1"), "without TLS", "sslmode=require")
        for mode in ["prefer", "allow", "require"]:
            checks.equal(f"only, {mode}", (0, "1"), psql(f"{to} sslmode={mode}", "select 1"))
        checks.equal("only, the socket", (0, "1"), psql(f"host={server.sockets} port={server.port} user=ums", "select 1"))
        checks.that("it says so", "with TLS only" in server.said(), server.said())
        cancels(server)


def cancels(server):
    """Ctrl-C of psql, whose cancel request is plain, and a cancel request over TLS."""
    wire.PORT = server.port
    busy = encrypted(server)
    for over_tls in [False, True]:
        answered = threading.Event()

        def cancel():
            # A cancellation that the server gets before the statement has no effect, as in PostgreSQL.
            while not answered.wait(0.1):
                where = (wire.HOST, server.port)
                with handshake(server) if over_tls else socket.create_connection(where, timeout=wire.PATIENCE) as other:
                    other.sendall(struct.pack("!ii", 16, 80877102) + busy.key)
                    other.recv(1)

        busy.send("select pg_sleep(1000)")
        canceller = threading.Thread(target=cancel)
        canceller.start()
        try:
            busy.until_ready()
            raise AssertionError("it was not cancelled")
        except Refused as error:
            checks.equal(f"cancelled{' over TLS' * over_tls}", "57014", error.code)
        finally:
            answered.set()
            canceller.join()
    busy.close()


def bad_files(folder, authority):
    """Files that the server does not use; it says why, and makes nothing."""
    options = authority.certificate("good", P256)
    cert, key = options[1], options[3]
    other = authority.certificate("other", P256)[3]
    openssl("pkey", "-in", key, "-out", f"{folder}/locked.key", "-aes256", "-passout", "pass:x")
    os.chmod(f"{folder}/locked.key", 0o600)
    for name, mode in [("open", 0o644), ("group", 0o640)]:
        with open(key) as source, open(f"{folder}/{name}.key", "w") as file:
            file.write(source.read())
        os.chmod(f"{folder}/{name}.key", mode)
    secret = open(key).read().split("\n")[1]
    for name, given, words in [
        ("no key", ["--tls-cert", cert], ["--tls-key"]),
        ("no certificate", ["--tls-key", key], ["--tls-cert"]),
        ("TLS only", ["--tls-only"], ["--tls-cert"]),
        ("readable", ["--tls-cert", cert, "--tls-key", f"{folder}/open.key"], ["chmod 600"]),
        ("readable by the group", ["--tls-cert", cert, "--tls-key", f"{folder}/group.key"], ["chmod 600"]),
        ("absent", ["--tls-cert", f"{folder}/absent", "--tls-key", key], ["cannot read", "absent"]),
        ("swapped", ["--tls-cert", key, "--tls-key", key], ["no certificate", key]),
        ("no key inside", ["--tls-cert", cert, "--tls-key", f"{folder}/empty.key"], ["no private key"]),
        ("a passphrase", ["--tls-cert", cert, "--tls-key", f"{folder}/locked.key"], ["passphrase", "locked.key"]),
        ("another's key", ["--tls-cert", cert, "--tls-key", other], ["not that of the certificate"]),
    ]:
        with open(f"{folder}/empty.key", "w"):
            os.chmod(f"{folder}/empty.key", 0o600)
        made = f"{folder}/made"
        answer = run(os.environ["UMS_BIN"], "serve", "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--no-socket", *given, env=ENV | {"XDG_DATA_HOME": made})
        refuses(name, answer, *words)
        checks.that(f"{name}: nothing is made, and nothing of the key printed", not os.path.exists(made) and secret not in answer[1], answer)


def read_again(folder, authority):
    """SIGHUP: a new certificate for new connections; a broken one changes nothing."""
    options = authority.certificate("r", P256, host="first")
    cert, key = options[1], options[3]
    with Server(f"{folder}/r.db", *options, *OPTIONS) as server:
        old = encrypted(server)
        authority.certificate("r", P384, host="second")
        server.process.send_signal(signal.SIGHUP)
        wait_for("the new certificate", lambda: name_of(server), "second")
        checks.equal("the old connection goes on", [("1",)], old.query("select 1"))
        with open(cert, "rb") as file:
            whole = file.read()
        other = authority.certificate("other", P256, host="third")[1]
        with open(other, "rb") as file:
            foreign = file.read()
        for name, text in [("a certificate of another key", foreign), ("half a certificate", whole[: len(whole) // 2])]:
            with open(cert, "wb") as file:
                file.write(text)
            before = server.said().count("the old certificate stays")
            server.process.send_signal(signal.SIGHUP)
            wait_for(f"the message: {name}", lambda: server.said().count("the old certificate stays"), before + 1)
            checks.equal(f"the certificate stays: {name}", "second", name_of(server))
        with open(cert, "wb") as file:
            file.write(whole)
        os.chmod(key, 0o644)
        server.process.send_signal(signal.SIGHUP)
        wait_for("the message", lambda: "chmod 600" in server.said(), True)
        checks.equal("the certificate stays", "second", name_of(server))


def name_of(server):
    with handshake(server) as stream:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(ssl.DER_cert_to_PEM_cert(stream.getpeercert(True)))
            file.flush()
            return run("openssl", "x509", "-in", file.name, "-noout", "-subject", "-nameopt", "multiline")[1].split("=")[-1].strip()


def context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def asked(server):
    """Returns a socket on which the server expects a handshake."""
    plain = socket.create_connection((wire.HOST, server.port), timeout=wire.PATIENCE)
    plain.sendall(SSL_REQUEST)
    answer = plain.recv(1)
    assert answer == b"S", f"the answer to SSLRequest is {answer}"
    return plain


def handshake(server):
    """Returns an encrypted stream."""
    return context().wrap_socket(asked(server), suppress_ragged_eofs=False)


def encrypted(server):
    conn = Conn(server.port, login=False)
    conn.socket.close()
    conn.socket = handshake(server)
    conn.raw(startup(user=wire.USER, database=wire.DATABASE))
    conn.until_ready()
    return conn


def hello():
    """Returns the first packet of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context().wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


class Bystander(threading.Thread):
    """A client that works over TLS until it is stopped; what it has done must be complete."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.conn, self.rounds, self.wrong, self.ends = encrypted(server), 0, None, False
        self.conn.query("create table if not exists work(x int)")
        self.start()

    def run(self):
        try:
            while not self.ends:
                self.conn.query("insert into work values (1)")
                self.rounds += 1
        except Exception as error:
            self.wrong = error

    def stop(self, name):
        seen = self.rounds
        wait_for(f"{name}: the bystander goes on", lambda: self.wrong or self.rounds > seen, lambda found: found)
        self.ends = True
        self.join()
        found = self.wrong or self.conn.query("select count(*) from work")
        checks.equal(f"{name}: beside it", [(str(self.rounds),)], found)
        self.conn.query("delete from work")
        self.conn.close()


def hostile(folder, authority):
    """Handshakes that are wrong, half done, or done and followed by nothing; beside each a client works."""
    count = 100 if QUICK else 1000
    with Server(f"{folder}/h.db", *authority.certificate("h", ["rsa:2048"]), "--max-workers=8", "--schedulers=2", *OPTIONS) as server:
        first = hello()
        for name, parts in [
            ("silence after the request", [b""]),
            ("half a handshake", [first[: len(first) // 2]]),
            ("a handshake byte by byte", [first[at : at + 1] for at in range(40)]),
            ("the first flight only", [first]),
            ("garbage", [os.urandom(4000)]),
            ("records of garbage", [b"\x16\x03\x01\x10\x00" + os.urandom(4096)] * 8),
            ("an endless ClientHello", [b"\x16\x03\x01\x40\x00\x01\x00\xff\x00" + bytes(16380), b"\x16\x03\x03\x40\x00" + bytes(16384)]),
            ("plain messages", [startup(user="ums")]),
        ]:
            bystander = Bystander(server)
            open_sockets = []
            for _ in range(count):
                plain = asked(server)
                try:
                    for part in parts:
                        plain.sendall(part)
                except OSError:
                    pass  # The server has ended the connection already.
                open_sockets.append(plain)
            bystander.stop(name)
            for plain in open_sockets:
                plain.close()
        bystander = Bystander(server)
        silent = [handshake(server) for _ in range(count // 10)]
        bystander.stop("a handshake, then nothing")
        for stream in silent:
            stream.close()
        key_updates(server)
        asking = encrypted(server)
        wait_for("no worker is lost", lambda: asking.query("select count(*) from ums_requests"), [("1",)])


def key_updates(server):
    """openssl's client asks for new keys without end, and is stopped; a few are in order."""
    bystander = Bystander(server)
    for name, count, ends in [("a few key updates", 5, False), ("a flood of key updates", 200, True)]:
        client = subprocess.Popen(["openssl", "s_client", "-connect", f"{wire.HOST}:{server.port}", "-starttls", "postgres", "-tls1_3"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        said = b""
        while b"Verify return code" not in said:
            more = client.stdout.read(4096)
            assert more, said
            said += more
        try:
            for _ in range(count):
                client.stdin.write(b"K\n")
                wait_for("the key update", lambda: client.stdout.read(4096), lambda more: b"KEYUPDATE" in more or not more)
        except OSError:
            pass  # It has ended.
        if ends:
            wait_for(name, lambda: client.poll() is not None, True)
        checks.equal(name, ends, client.poll() is not None)
        client.kill()
        client.wait()
        client.stdin.close()
        client.stdout.close()
    bystander.stop("key updates")


def slow(folder, authority):
    """Time limits are those of plain connections: for the login with its handshake, and for a part of an answer."""
    options = ["--max-workers=8", "--schedulers=1", *authority.certificate("s", P256), *OPTIONS]
    with Server(f"{folder}/s.db", "--login-timeout", "2s", *options) as server:
        for name, part in [("a request only", b""), ("half a handshake", hello()[:50]), ("the first flight", hello())]:
            plain = asked(server)
            plain.sendall(part)
            checks.case(f"the login ends: {name}", until_end, plain)
        checks.case("the login ends: a handshake, then nothing", lambda: until_end(handshake(server)))
    with Server(f"{folder}/s.db", "--answer-timeout", "3", *options) as server:
        bystander, asking = Bystander(server), encrypted(server)
        before = asking.query("select count(*) from ums_users")
        readers = []
        for _ in range(12):
            conn = encrypted(server)
            conn.send("select hex(zeroblob(6000000)) from generate_series(1, 4)")
            readers.append(conn)

        def others():
            for conn in readers:
                read_byte(conn)
            return asking.query("select count(*) from ums_users")

        wait_for("clients that read a byte now and then lose their connections", others, before)
        bystander.stop("slow readers")
        conn = encrypted(server)
        checks.equal("a long answer", 2_000_000, len(conn.query("select hex(zeroblob(1000000))")[0][0]))
        conn.raw(message("X"))
        checks.equal("the end is announced", b"", conn.socket.recv(1))


def until_end(stream):
    """Reads until the server ends the connection; a wait that is too long is the failure."""
    try:
        while stream.recv(4096):
            pass
    except TimeoutError:
        raise
    except OSError:
        pass


def read_byte(conn):
    """Reads one byte without decrypting it, if there is one."""
    with socket.socket(fileno=os.dup(conn.socket.fileno())) as raw:
        raw.setblocking(False)
        try:
            raw.recv(1)
        except OSError:
            pass


def not_offered(folder, _):
    with Server(f"{folder}/n.db", *OPTIONS) as server:
        to = f"host=127.0.0.1 port={server.port} user=ums"
        refuses("TLS is not offered", psql(f"{to} sslmode=require", "select 1"), "does not support SSL")
        checks.equal("nor needed", (0, "1"), psql(f"{to} sslmode=prefer", "select 1"))


def main():
    parts = [access, kinds_of_certificates, only, bad_files, read_again, not_offered, hostile, slow]
    asked_for = os.environ.get("PARTS", "").split()
    wire.many_files()
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(folder)
        with open(f"{folder}/password", "w") as file:
            file.write("secret\n")
        os.chmod(f"{folder}/password", 0o600)
        for part in parts:
            if not asked_for or part.__name__ in asked_for:
                checks.case(part.__name__, part, folder, authority)
    checks.finish()


if __name__ == "__main__":
    main()
