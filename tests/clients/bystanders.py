"""Sessions that do small transactions beside a fault or an attack, and notice whatever they lose.

Each session moves money between accounts and keeps what was acknowledged. `Bystanders.check` then asks the server: every acknowledged transfer
is there, and the sum of the accounts is what it was. A session that loses its connection connects again, so that it can also stand beside a
fault that ends connections; `lost` counts how often.
"""

import random
import threading
import time

import wire

ACCOUNTS = 100
START = 1000

# Classes of SQLSTATE that a session beside a fault may get: a cancellation, a conflict, a limit, the end of its connection.
EXPECTED = ("57", "40", "53", "55", "08")


class Gate:
    """Where sessions wait between two transactions while it is closed: then the server is at rest."""

    def __init__(self):
        self.opened, self.lock, self.waiting = threading.Event(), threading.Lock(), 0
        self.open = self.opened.set
        self.close = self.opened.clear
        self.open()

    def go_through(self):
        if not self.opened.is_set():
            with self.lock:
                self.waiting += 1
            self.opened.wait()
            with self.lock:
                self.waiting -= 1


class Bystander(threading.Thread):
    def __init__(self, port, number, seed, gate):
        super().__init__(daemon=True)
        self.port, self.number, self.dice, self.gate = port, number, random.Random(seed * 1000 + number), gate
        self.acknowledged, self.lost, self.refused, self.error = [], 0, 0, None
        self.waits, self.stopped, self.conn = [], threading.Event(), None

    def run(self):
        serial = 0
        try:
            while not self.stopped.is_set():
                self.gate.go_through()
                try:
                    self.conn = self.conn or wire.Conn(self.port)
                    serial += 1
                    began = time.monotonic()
                    self.transfer(serial)
                    self.waits.append(time.monotonic() - began)
                    self.acknowledged.append(serial)
                    time.sleep(0.002)
                except wire.Refused as error:
                    self.refused += 1
                    if not error.code.startswith(EXPECTED):
                        raise
                    self.again()
                except (wire.Closed, OSError):
                    self.lost += 1
                    self.again()
        except Exception as error:  # Any other error of a bystander is a finding.
            self.error = error

    def again(self):
        """The next transaction gets a new connection, because the state of the old one is not known."""
        if self.conn:
            self.conn.close()
        self.conn = None
        time.sleep(0.05)

    def transfer(self, serial):
        source, target = self.dice.sample(range(ACCOUNTS), 2)
        self.conn.query(
            "begin immediate;"
            f"update accounts set money = money - 1 where id = {source};"
            f"update accounts set money = money + 1 where id = {target};"
            f"insert into transfers values ({self.number}, {serial}); commit"
        )


class Bystanders:
    """A context: its sessions work while the block runs."""

    def __init__(self, port, sessions=4, seed=1):
        self.port, self.gate = port, Gate()
        conn = wire.Conn(port)
        conn.query("create table if not exists accounts(id int primary key, money int)")
        conn.query("create table if not exists transfers(session int, number int)")
        if conn.query("select count(*) from accounts") == [("0",)]:
            rows = ",".join(f"({account}, {START})" for account in range(ACCOUNTS))
            conn.query(f"insert into accounts values {rows}")
        (first,) = conn.query("select coalesce(max(session), 0) + 1 from transfers")[0]
        conn.close()
        self.all = [Bystander(port, int(first) + n, seed, self.gate) for n in range(sessions)]

    def __enter__(self):
        for one in self.all:
            one.start()
        self.progress()
        return self

    def __exit__(self, kind, *_):
        self.gate.open()
        for one in self.all:
            one.stopped.set()
        for one in self.all:
            one.join(wire.PATIENCE * 2)
            assert kind or not one.is_alive(), "a bystander hangs"

    @property
    def done(self):
        return sum(len(one.acknowledged) for one in self.all)

    @property
    def lost(self):
        return sum(one.lost for one in self.all)

    @property
    def worst(self):
        """Returns the longest time that a transaction took, in seconds."""
        return max((max(one.waits, default=0.0) for one in self.all), default=0.0)

    def progress(self, seconds=wire.PATIENCE):
        """Returns when every session has done one more transaction."""
        before = [len(one.acknowledged) for one in self.all]
        missing = lambda: [one.number for one, count in zip(self.all, before) if len(one.acknowledged) == count and not one.error]
        wire.wait_for("sessions without progress", missing, [], seconds)

    def check(self, port=None):
        """Asks the server for everything that was acknowledged. Called when the sessions have ended."""
        for one in self.all:
            assert one.error is None, f"bystander {one.number}: {one.error!r}"
        conn = wire.Conn(port or self.port)
        assert conn.query("select sum(money), count(*) from accounts") == [(str(ACCOUNTS * START), str(ACCOUNTS))], "money was lost or made"
        for one in self.all:
            found = {int(serial) for (serial,) in conn.query(f"select number from transfers where session = {one.number}")}
            missing = [serial for serial in one.acknowledged if serial not in found]
            assert not missing, f"acknowledged and lost: {missing[:5]}"
        assert conn.query("pragma integrity_check") == [("ok",)], "the database is damaged"
        conn.close()
