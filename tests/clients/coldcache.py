#!/usr/bin/env python3
"""A cold cache: while one user's page is read from the disk, the scheduler runs other users' requests.

Creates a database of ROWS rows, which is dropped from the page cache five times a second. Reads rows at
random with USERS connections of pgbench, in turn against servers with one scheduler each: `--vfs ums` with fibers (through
the page cache, and past it), `--vfs host` with fibers, `--vfs host` with a thread for each user.

Then measures the time of cached queries (HOT connections) in four cases: alone; beside cold queries at half the rate
that `--vfs host` with fibers reaches; beside as many cold queries as possible, which measures the processor more than
the disk, because these queries use all of the scheduler's time; and, if fio is installed, beside a process fio that
reads as many pages a second as in the second case. The last case shows the computer's own effect on the cached
queries, without any effect of the scheduler.

It starts its own servers ($UMS_BIN); ROUNDS rounds of TIME seconds. Prints JSON lines; figures are reported and not
asserted, because a busy computer distorts them. FOLDER, where the database is created, must be on a real disk, not a tmpfs.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import threading

from owned import Server

ROWS = int(os.environ.get("ROWS", "2000000"))
USERS = int(os.environ.get("USERS", "32"))
HOT = int(os.environ.get("HOT", "4"))
TIME = int(os.environ.get("TIME", "8"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
VARIANTS = {
    "ums-fiber": ["--workers", "fiber"],
    "ums-fiber-direct": ["--workers", "fiber", "--vfs", "direct"],
    "host-fiber": ["--workers", "fiber", "--vfs", "host"],
    "host-thread": ["--workers", "thread", "--vfs", "host", "--max-workers", str(USERS + HOT + 8)],
}


def make(path, rows=ROWS):
    """Creates rows of about 430 bytes: nine rows on a page."""
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode = off")
    db.execute("pragma synchronous = off")
    db.execute("create table cold (id integer primary key, body text)")
    db.execute("create table hot (id integer primary key, body text)")
    body = "x" * 400
    db.executemany("insert into cold values (?, ?)", ((i, f"{i} {body}") for i in range(1, rows + 1)))
    db.executemany("insert into hot values (?, ?)", ((i, f"{i} {body}") for i in range(1, 101)))
    db.commit()
    db.close()


def forget(path):
    """Drops the file's pages from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@contextlib.contextmanager
def kept_cold(path):
    """Drops the file's pages repeatedly; otherwise a fast server would have most of the file in the cache before a run ends."""
    over = threading.Event()

    def keep():
        while not over.wait(0.2):
            forget(path)

    forget(path)
    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def scripts(folder, rows=ROWS):
    for name, rows in (("cold", rows), ("hot", 100)):
        with open(f"{folder}/{name}.sql", "w") as file:
            file.write(f"\\set id random(1, {rows})\nselect body from {name} where id = :id;\n")


def pgbench(server, folder, script, clients, log=None, rate=None):
    command = ["pgbench", "-n", "-M", "prepared", "-j", "1", "-c", str(clients), "-T", str(TIME)]
    if log:
        command += ["-l", f"--log-prefix={log}"]
    if rate:
        command += ["-R", str(int(rate))]
    command += ["-f", f"{folder}/{script}.sql"]
    env = dict(os.environ, PGHOST=server.sockets, PGPORT=str(server.port), PGUSER="ums", PGDATABASE="ums")
    return subprocess.Popen(command, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def tps(process):
    out = process.communicate()[0]
    found = re.search(r"^tps = ([0-9.]+)", out, re.M)
    assert found and process.returncode == 0, out
    return float(found[1])


def p99_us(log):
    times = []
    for path in glob.glob(f"{log}.*"):
        with open(path) as file:
            times += [int(line.split()[2]) for line in file]
        os.remove(path)
    return statistics.quantiles(times, n=100)[98]


def say(metric, peer, value, unit):
    print(json.dumps({"bench": "coldcache", "peer": peer, "metric": metric, "value": round(value, 3), "unit": unit}), flush=True)


def hot(server, folder, cold_rate=None):
    """Returns the 99th percentile of the cached queries, beside cold ones at this rate (0: as many as possible; None: none)."""
    cold = None if cold_rate is None else pgbench(server, folder, "cold", USERS, rate=cold_rate)
    tps(pgbench(server, folder, "hot", HOT, f"{folder}/hot-log"))
    if cold:
        tps(cold)
    return p99_us(f"{folder}/hot-log")


def beside_fio(server, folder, path, rate):
    """As `hot`, while another process reads the disk."""
    fio = ["fio", "--name=beside", f"--filename={path}", "--readonly", "--rw=randread", "--bs=4k", "--direct=1"]
    fio += ["--ioengine=io_uring", f"--iodepth={USERS}", f"--rate_iops={int(rate)}", "--rate_process=poisson"]
    other = subprocess.Popen(fio + ["--time_based", f"--runtime={TIME}"], cwd=folder, stdout=subprocess.DEVNULL)
    p99 = hot(server, folder)
    assert other.wait() == 0, "fio failed"
    return p99


def main():
    folder = tempfile.mkdtemp(dir=os.environ.get("FOLDER"))
    try:
        path = f"{folder}/cold.db"
        make(path)
        scripts(folder)
        print(f"coldcache.py: {os.path.getsize(path) >> 20} MiB, {USERS} users, {ROUNDS} rounds of {TIME} s", flush=True)
        done, times = {name: [] for name in VARIANTS}, {}
        for _ in range(ROUNDS):
            for name, options in VARIANTS.items():
                with kept_cold(path), Server(path, "--schedulers", "1", *options) as server:
                    done[name].append(tps(pgbench(server, folder, "cold", USERS)))
            rate = done["host-fiber"][-1] / 2
            for name in ("ums-fiber", "ums-fiber-direct", "host-fiber"):
                with kept_cold(path), Server(path, "--schedulers", "1", *VARIANTS[name]) as server:
                    figures = [hot(server, folder, cold) for cold in (None, rate, 0)]
                    if shutil.which("fio"):
                        figures.append(beside_fio(server, folder, path, rate))
                times.setdefault(name, []).append(figures)
        middle = {name: statistics.median(values) for name, values in done.items()}
        for name, value in middle.items():
            say("tps", name, value, "1/s")
        for name in ("ums-fiber", "ums-fiber-direct"):
            for host in ("host-fiber", "host-thread"):
                say(f"over_{host}", name, middle[name] / middle[host], "ratio")
        for name, rounds in times.items():
            for at, metric in enumerate(("alone", "beside_cold", "beside_most_cold", "beside_fio")[: len(rounds[0])]):
                say(f"hot_p99_{metric}", name, statistics.median(r[at] for r in rounds), "us")
                if at > 0:
                    say(f"hot_p99_ratio_{metric}", name, statistics.median(r[at] / r[0] for r in rounds), "ratio")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
