#!/usr/bin/env python3
"""Hours under mixed load: what grows, what slows down, what is lost.

    soak.py [--minutes N] [--kinds thread,fiber,context] [--csv FILE]

A server for each kind of workers, all at the same time, each with the same load: transfers between accounts, prepared reads, sorts that are
cancelled, portals that are left suspended, COPY, clients that go in the middle, new connections all the time. Each minute
the memory (RSS), descriptors, threads and workers of each server are read, and the delays of the transfers.

The report has for each kind the slope of RSS in MiB a minute by least squares over the medians of each minute, after the first third of the
time, with its confidence interval of 95 %; first and last descriptors, threads, workers; the median and 99th percentile of the delays in the
first and the last third. It is a violation if an acknowledged transaction is missing, the database is damaged, a session gets an answer that
it must not get, or a server does not end with 0 at SIGTERM, and if memory certainly grows (all of the interval lies above 0.02 MiB a minute).
Ends with 1 if there was one. $UMS_BIN is the program. Python is slow, so this load keeps no server busy; it is the mixture that counts.
"""

import argparse
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import wire
from bystanders import EXPECTED, Bystanders
from owned import Server

LIMIT = 0.02  # MiB a minute.
SAMPLE = 2.0  # Seconds between two looks at the memory.
# Quantiles of Student's t distribution for 97.5 %, by degrees of freedom; beyond the last it is nearly the normal distribution's.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 15: 2.13, 20: 2.09, 30: 2.04, 60: 2.00}


class Mixer(threading.Thread):
    """A session that does one thing after the other, most of which end badly."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.dice = server, random.Random(seed)
        self.stopped, self.error, self.done = threading.Event(), None, 0

    def run(self):
        deeds = [self.read, self.sort, self.portal, self.copy, self.leave, self.cancelled, self.large]
        try:
            while not self.stopped.is_set():
                deed = self.dice.choice(deeds)
                try:
                    with contextlib.closing(wire.Conn(self.server.port)) as conn:
                        deed(conn)
                except wire.Refused as error:
                    if not error.code.startswith(EXPECTED):
                        raise AssertionError(f"{deed.__name__}: {error}") from error
                self.done += 1
                self.stopped.wait(self.dice.uniform(0.01, 0.08))
        except Exception as error:  # Any other error is a violation.
            self.error = error

    def read(self, conn):
        for _ in range(20):
            conn.prepared("select money from accounts where id = $1", [self.dice.randrange(100)], name="", oids=(23,))

    def sort(self, conn):
        conn.query("select count(*) from (select hex(randomblob(50)) x from generate_series(1, 3000) order by x)")

    def portal(self, conn):
        conn.query("begin")
        conn.raw(wire.parse("select * from generate_series(1, 100000)") + wire.bind(portal="p") + wire.execute("p", 10) + wire.SYNC)
        conn.until_ready()

    def copy(self, conn):
        conn.query("create temp table if not exists copied(a int, b text)")
        conn.query("copy copied from stdin")
        for n in range(100):
            conn.raw(wire.message("d", b"%d\t%s\n" % (n, b"x" * (n * 37 % 200))))
        if self.dice.random() < 0.7:  # Otherwise it goes in the middle.
            conn.raw(wire.message("c"))
            conn.until_ready()
            assert conn.query("select count(*) from copied") == [("100",)]

    def leave(self, conn):
        conn.send("select hex(randomblob(2000)) from generate_series(1, 500)")
        time.sleep(self.dice.uniform(0, 0.01))
        conn.reset()

    def cancelled(self, conn):
        conn.send("select count(*) from (select randomblob(100) x from generate_series(1, 300000) order by x)")
        time.sleep(self.dice.uniform(0, 0.05))
        wire.PORT = self.server.port
        with contextlib.closing(wire.socket.create_connection(("127.0.0.1", self.server.port), timeout=wire.PATIENCE)) as other:
            other.sendall(wire.struct.pack("!ii", 16, 80877102) + conn.key)
            other.recv(1)
        conn.until_ready()

    def large(self, conn):
        conn.query("select hex(zeroblob(1000000))")


class Watched:
    """A server of one kind with its load and its figures."""

    def __init__(self, kind, folder, seed):
        self.kind = kind
        self.server = Server(f"{folder}/{kind}.db", "--workers", kind)
        self.beside = Bystanders(self.server.port, sessions=3, seed=seed)
        self.mixers = [Mixer(self.server, seed * 100 + n) for n in range(3)]
        self.memory, self.rows = [], []

    def start(self):
        self.beside.__enter__()
        for one in self.mixers:
            one.start()

    def look(self):
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    def minute(self):
        """Ends a minute: its median of the memory, and the other figures."""
        waits = sorted(wait for one in self.beside.all for wait in one.waits)
        for one in self.beside.all:
            one.waits = []
        with contextlib.closing(wire.Conn(self.server.admin)) as admin:
            workers = wire.umsstats(admin)["num workers"]
        at = lambda share: 1000 * waits[min(len(waits) - 1, int(share * len(waits)))] if waits else math.nan
        proc = Path(f"/proc/{self.server.pid}")
        self.rows.append({
            "rss": statistics.median(self.memory), "descriptors": len(list((proc / "fd").iterdir())), "workers": int(workers),
            "threads": len(list((proc / "task").iterdir())), "p50": at(0.5), "p99": at(0.99), "done": self.beside.done,
        })
        self.memory = []
        return self.rows[-1]

    def alive(self):
        return self.server.process.poll() is None and not any(one.error for one in [*self.beside.all, *self.mixers])

    def end(self):
        """Stops the load and the server. Returns the violations."""
        found = []
        for one in self.mixers:
            one.stopped.set()
        for one in self.mixers:
            one.join(wire.PATIENCE * 2)
            if one.error or one.is_alive():
                found.append(f"a session: {one.error or 'it hangs'!r}")
        for step in (lambda: self.beside.__exit__(None), self.beside.check, self.server.stop):
            try:
                step()
            except Exception as error:  # Each is a violation.
                found.append(f"{type(error).__name__}: {error}")
        return found


def slope(values):
    """Returns the slope of a line through these values, one a minute, and half the width of its confidence interval of 95 %."""
    n = len(values)
    if n < 3:
        return math.nan, math.nan
    middle, mean = (n - 1) / 2, statistics.fmean(values)
    spread = sum((x - middle) ** 2 for x in range(n))
    rise = sum((x - middle) * (value - mean) for x, value in enumerate(values)) / spread
    rest = sum((value - mean - rise * (x - middle)) ** 2 for x, value in enumerate(values))
    quantile = T[max(degrees for degrees in T if degrees <= n - 2)]
    return rise, quantile * math.sqrt(rest / (n - 2) / spread)


def report(one, found):
    """Prints the figures of one kind, and returns the violations."""
    rows = one.rows
    late = rows[len(rows) // 3 :]
    rise, half = slope([row["rss"] for row in late])
    if rise - half > LIMIT:
        found.append(f"memory grows by {rise:.3f} MiB a minute")
    sure = "" if math.isnan(half) or rise + half <= LIMIT else f" (too few minutes to say that it is at most {LIMIT})"
    third = max(1, len(rows) // 3)
    before, after = rows[:third], rows[-third:]
    figure = lambda part, name: statistics.median(row[name] for row in part)
    print(f"{one.kind}: {one.beside.done} transfers, {sum(mixer.done for mixer in one.mixers)} other deeds, {one.beside.lost} connections lost")
    print(f"  memory       {rows[0]['rss']:.1f} -> {rows[-1]['rss']:.1f} MiB; slope {rise:+.3f} +- {half:.3f} MiB a minute{sure}")
    for name in ("descriptors", "threads", "workers"):
        print(f"  {name:<12} {rows[0][name]} -> {rows[-1][name]}")
    for name in ("p50", "p99"):
        print(f"  delay {name:<6} {figure(before, name):.1f} -> {figure(after, name):.1f} ms")
    for violation in found:
        print(f"  VIOLATION: {violation}")
    return found


def main():
    parser = argparse.ArgumentParser(prog="soak", description="Hours under mixed load: what grows, what slows down, what is lost.")
    parser.add_argument("--minutes", type=float, default=45, help="how long the load runs (default: 45)")
    parser.add_argument("--kinds", default="thread,fiber,context", help="kinds of workers, separated by commas")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random choices")
    parser.add_argument("--csv", help="write the figures of each minute to this file")
    options = parser.parse_args()
    wire.many_files()
    with tempfile.TemporaryDirectory() as folder:
        kinds = [Watched(kind, folder, options.seed) for kind in options.kinds.split(",")]
        for one in kinds:
            one.start()
        began = time.monotonic()
        try:
            for minute in range(1, math.ceil(options.minutes) + 1):
                while time.monotonic() < began + 60 * min(minute, options.minutes) and all(one.alive() for one in kinds):
                    time.sleep(SAMPLE)
                    for one in kinds:
                        one.look()
                rows = {one.kind: one.minute() for one in kinds}
                say = lambda kind, row: f"{kind} {row['rss']:.1f} MiB, {row['descriptors']} descriptors, {row['threads']} threads, p99 {row['p99']:.1f} ms"
                print(f"{minute:>4} min  " + "; ".join(say(*pair) for pair in rows.items()), flush=True)
                if not all(one.alive() for one in kinds):
                    break
        except KeyboardInterrupt:
            print("interrupted: the report is of the time until now", flush=True)
        violations = [violation for one in kinds for violation in report(one, one.end())]
    if options.csv:
        with open(options.csv, "w") as file:
            print("kind,minute,rss_mib,descriptors,threads,workers,p50_ms,p99_ms,transfers", file=file)
            for one in kinds:
                for minute, row in enumerate(one.rows, 1):
                    values = [row[name] for name in ("rss", "descriptors", "threads", "workers", "p50", "p99", "done")]
                    print(one.kind, minute, *(f"{value:.3f}" for value in values), sep=",", file=file)
    print(f"soak.py: {(time.monotonic() - began) / 60:.1f} minutes, {len(violations)} violations")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
