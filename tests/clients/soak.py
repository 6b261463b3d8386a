#!/usr/bin/env python3
"""Hours under mixed load: what grows, what slows down, what is lost.

    soak.py [--minutes N] [--kinds thread,fiber,context] [--csv FILE]

A server for each kind of workers, all at the same time, each with the same load: transfers between accounts, prepared reads, sorts that are
cancelled, portals that are left suspended, COPY, clients that go in the middle, new connections all the time. After each 90 seconds
the descriptors, threads and workers of each server are read, and the delays of the transfers.

Then all servers come to rest, too: the transfers pause between two transactions, the other sessions have gone, and the server
gives free memory back to the system, which takes up to ten seconds; then its memory (RSS) is read, and the load goes on. Under load the
memory varies by some MiB, which hides what is lost. So do several heaps, each of which keeps up to 3 MiB at its end, and the threads'
caches of small blocks, which keep the pages around them: these servers have one heap and no such caches.

The report has for each kind the slope of RSS at rest in MiB a minute, after the first third of the time, with its confidence interval of
95 %. It is the median of the slopes between every two rests: at one rest of ten a server has 2 MiB more than at the others, as much as the
cache of one connection to its database, and by least squares a few such rests hide what is lost. What follows: memory does not grow (the
interval lies below 0.02 MiB a minute), grows (it lies above), or there were too few minutes to say;
first and last descriptors, threads, workers; the median and 99th percentile of the delays in the
first and the last third. It is a violation if an acknowledged transaction is missing, the database is damaged, a session gets an answer that
it must not get, a server does not come to rest, does not end with 0 at SIGTERM, or its memory grows. Ends with 1 if there was one.
$UMS_BIN is the program. Python is slow, so this load keeps no server busy; it is the mixture that counts.
"""

import argparse
import contextlib
import itertools
import math
import os
import random
import signal
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
SAMPLE = 2.0  # Seconds between two looks at the memory under load.
PERIOD = 90.0  # Seconds from one rest to the next.
QUIET = 1.5  # A server that has not been giving memory back for so many seconds has given it back.
REST = 25.0  # The longest time, in seconds, in which a server without load gives its free memory back.
FEW = 8  # With fewer rests there is no confidence interval.


class Mixer(threading.Thread):
    """A session that does one thing after the other, most of which end badly."""

    def __init__(self, server, seed, gate):
        super().__init__(daemon=True)
        self.server, self.dice, self.gate = server, random.Random(seed), gate
        self.stopped, self.error, self.done = threading.Event(), None, 0

    def run(self):
        deeds = [self.read, self.sort, self.portal, self.copy, self.leave, self.cancelled, self.large]
        try:
            while not self.stopped.is_set():
                self.gate.go_through()
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
        conn.query("select sum(length(x)) from filling")  # So the cache of each of the server's connections is soon as large as it may be.
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
        self.gate = self.beside.gate
        self.mixers = [Mixer(self.server, seed * 100 + n, self.gate) for n in range(3)]
        self.memory, self.rows = [], []

    def start(self):
        with contextlib.closing(wire.Conn(self.server.port)) as conn:
            conn.query("create table filling as select randomblob(1000) as x from generate_series(1, 4000)")
        self.beside.__enter__()
        for one in self.mixers:
            one.start()

    def rss(self):
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def trims(self):
        """Returns whether the server is about to give free memory back: it has a thread for that."""
        for task in Path(f"/proc/{self.server.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # The thread has ended.
                if (task / "comm").read_text().strip() == "ums-trim":
                    return True
        return False

    def come_to_rest(self):
        """Waits until no session has a statement. Then a large value makes sure that the server gives back what is free."""
        sessions = len(self.beside.all) + len(self.mixers)
        wire.wait_for(f"{self.kind}: sessions at rest", lambda: self.gate.waiting == sessions or not self.alive(), True)
        with contextlib.closing(wire.Conn(self.server.port)) as conn:
            conn.query("select length(hex(zeroblob(8000000)))")

    def reading(self, minute):
        """Returns the figures at rest, so many minutes after the beginning."""
        under_load, self.memory = statistics.median(self.memory or [math.nan]), []
        waits = sorted(wait for one in self.beside.all for wait in one.waits)
        for one in self.beside.all:
            one.waits = []
        with contextlib.closing(wire.Conn(self.server.admin)) as admin:
            workers = wire.umsstats(admin)["num workers"]
        at = lambda share: 1000 * waits[min(len(waits) - 1, int(share * len(waits)))] if waits else math.nan
        proc = Path(f"/proc/{self.server.pid}")
        self.rows.append({
            "minute": minute, "rss": self.rss(), "load": under_load, "descriptors": len(list((proc / "fd").iterdir())), "workers": int(workers),
            "threads": len(list((proc / "task").iterdir())), "p50": at(0.5), "p99": at(0.99), "done": self.beside.done,
        })
        return self.rows[-1]

    def alive(self):
        return self.server.process.poll() is None and not any(one.error for one in [*self.beside.all, *self.mixers])

    def end(self):
        """Stops the load and the server. Returns the violations."""
        found = []
        self.gate.open()
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


def slope(points):
    """Returns the median of the slopes between every two points (Theil and Sen), and its confidence interval of 95 % (by Kendall's statistic)."""
    n = len(points)
    if n < FEW:
        return math.nan, math.nan, math.nan
    slopes = sorted((y - b) / (x - a) for (a, b), (x, y) in itertools.combinations(points, 2))
    spread = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = (len(slopes) - spread) / 2, (len(slopes) + spread) / 2
    return statistics.median(slopes), slopes[max(0, math.floor(low))], slopes[min(len(slopes) - 1, math.ceil(high))]


def rest(kinds):
    """Brings all servers to rest, until each has given its free memory back."""
    for one in kinds:
        one.gate.close()
    for one in kinds:
        one.come_to_rest()
    # The large value was followed by a thread that waits ten seconds, if there was none. A new thread has its name only when it runs.
    began, quiet = time.monotonic(), time.monotonic() + 2 * QUIET
    while time.monotonic() < min(quiet, began + REST):
        if any(one.trims() for one in kinds):
            quiet = time.monotonic() + QUIET
        time.sleep(0.1)


def verdict(low, high):
    if high <= LIMIT:
        return "does not grow"
    return "grows" if low > LIMIT else "too few minutes to say"


def report(one, found):
    """Prints the figures of one kind, and returns the violations."""
    rows = one.rows
    if not rows:
        return found
    late = rows[len(rows) // 3 :]
    rise, low, high = slope([(row["minute"], row["rss"]) for row in late])
    if verdict(low, high) == "grows":
        found.append(f"memory grows by {rise:.3f} MiB a minute")
    third = max(1, len(rows) // 3)
    before, after = rows[:third], rows[-third:]
    figure = lambda part, name: statistics.median(row[name] for row in part)
    print(f"{one.kind}: {one.beside.done} transfers, {sum(mixer.done for mixer in one.mixers)} other deeds, {one.beside.lost} connections lost")
    print(f"  memory       {rows[0]['rss']:.1f} -> {rows[-1]['rss']:.1f} MiB at rest, {rows[0]['load']:.1f} -> {rows[-1]['load']:.1f} MiB under load")
    print(f"  slope        {rise:+.3f} MiB a minute at rest ({low:+.3f} to {high:+.3f}): {verdict(low, high)} (the limit is {LIMIT})")
    for name in ("descriptors", "threads", "workers"):
        print(f"  {name:<12} {rows[0][name]} -> {rows[-1][name]}")
    for name in ("p50", "p99"):
        print(f"  delay {name:<6} {figure(before, name):.1f} -> {figure(after, name):.1f} ms")
    for violation in found:
        print(f"  VIOLATION: {violation}")
    if found:
        print("  what the server said at the end:", *one.server.said().splitlines()[-40:], sep="\n    ")
    return found


def tell(minute, rows, csv):
    """Prints the figures of each kind."""
    say = lambda kind, row: f"{kind} {row['rss']:.1f} MiB, {row['descriptors']} descriptors, {row['threads']} threads, p99 {row['p99']:.1f} ms"
    print(f"{minute:>5.1f} min  " + "; ".join(say(*pair) for pair in rows.items()), flush=True)
    for kind, row in rows.items():
        values = [row[name] for name in ("rss", "load", "descriptors", "threads", "workers", "p50", "p99", "done")]
        print(kind, *(f"{value:.3f}" for value in [minute, *values]), sep=",", file=csv)


def main():
    parser = argparse.ArgumentParser(prog="soak", description="Hours under mixed load: what grows, what slows down, what is lost.")
    parser.add_argument("--minutes", type=float, default=45, help="how long the load runs (default: 45)")
    parser.add_argument("--kinds", default="thread,fiber,context", help="kinds of workers, separated by commas")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random choices")
    parser.add_argument("--csv", help="write the figures of each rest to this file")
    options = parser.parse_args()
    wire.many_files()
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"
    for sign in (signal.SIGINT, signal.SIGTERM):  # Each ends the run with a report, in the background too.
        signal.signal(sign, signal.default_int_handler)
    resting = 0.0
    with tempfile.TemporaryDirectory() as folder, open(options.csv or os.devnull, "w", buffering=1) as csv:
        print("kind,minute,rss_mib,load_mib,descriptors,threads,workers,p50_ms,p99_ms,transfers", file=csv)
        kinds = [Watched(kind, folder, options.seed) for kind in options.kinds.split(",")]
        alive = lambda: all(one.alive() for one in kinds)
        restless = []
        for one in kinds:
            one.start()
        began = time.monotonic()
        try:
            for period in range(1, math.ceil(60 * options.minutes / PERIOD) + 1):
                while time.monotonic() < began + min(PERIOD * period, 60 * options.minutes) and alive():
                    time.sleep(SAMPLE)
                    for one in kinds:
                        one.memory.append(one.rss())
                if not alive():
                    break
                paused = time.monotonic()
                rest(kinds)
                minute = (time.monotonic() - began) / 60
                tell(minute, {one.kind: one.reading(minute) for one in kinds}, csv)
                for one in kinds:
                    one.gate.open()
                resting += time.monotonic() - paused
        except KeyboardInterrupt:
            print("interrupted: the report is of the time until now", flush=True)
        except (AssertionError, wire.Closed, wire.Refused, OSError) as error:
            restless = [f"{type(error).__name__}: {error}"]
        except BaseException:
            for one in kinds:
                one.server.kill()
            raise
        took = time.monotonic() - began
        violations = restless + [violation for one in kinds for violation in report(one, one.end())]
    for violation in restless:
        print(f"VIOLATION: {violation}")
    print(f"soak.py: {took / 60:.1f} minutes, with load for {1 - resting / took:.0%} of them, {len(violations)} violations")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
