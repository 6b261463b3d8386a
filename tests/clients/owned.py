"""Starts servers on a given database file, for runs that need several servers or restarts."""

import os
import random
import signal
import socket
import subprocess
import tempfile
import time


def free_ports(count):
    """Returns ports below the range that the system uses for outgoing connections."""
    found = []
    while len(found) < count:
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", random.randrange(15000, 30000)))
            found.append(candidate)
        except OSError:
            candidate.close()
    ports = [s.getsockname()[1] for s in found]
    for s in found:
        s.close()
    return ports


class Server:
    """`$UMS_BIN serve` on one file, as a context: stopped with SIGTERM at the end, and then its exit code is 0.

    It listens on `port`, for one administrator on `admin`, and on a Unix-domain socket in the folder `sockets`.
    If an ended server is given, it takes over that server's ports and folder. `prefix` is a command that runs the server's command.
    Unless `trust` is false, the server asks for no password.
    """

    def __init__(self, db, *options, at=None, prefix=(), trust=True):
        self.port, self.admin = (at.port, at.admin) if at else free_ports(2)
        self.log = tempfile.TemporaryFile()
        self.folder = at.folder if at else tempfile.TemporaryDirectory()
        self.sockets = self.folder.name
        listen = ["--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}", "--db", db]
        listen += ["--socket-dir", self.sockets] + ["--trust"] * trust
        self.process = subprocess.Popen(
            [*prefix, os.environ["UMS_BIN"], "serve", *listen, *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )
        self.until_it_listens()

    @property
    def pid(self):
        return self.process.pid

    def until_it_listens(self):
        """Waits until it accepts connections, and has printed where it listens, which it does later."""
        for _ in range(300):
            assert self.process.poll() is None, f"the server ended before it listened:\n{self.said()}"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                if f"listening on 127.0.0.1:{self.port}" in self.said():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"the server does not listen:\n{self.said()}")

    def said(self):
        """Returns everything that it printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def kill(self):
        """Kills it with SIGKILL, and waits for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self, patience=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server does not stop:\n{self.said()}") from None
        assert code == 0, f"the server ended with {code}:\n{self.said()}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        elif self.process.poll() is None:
            self.kill()
