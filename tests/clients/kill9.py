#!/usr/bin/env python3
"""`kill -9` of the server under load: every acknowledged commit is found after the restart.

    kill9.py [--rounds N] [--commits N] [--life SECONDS] [--kinds KIND,..] [--vfs NAME,..] [further options for `ums serve`]

Repeated --rounds times ($ROUNDS), and then until there are --commits acknowledged commits: a server is started on the same database file,
--clients writers ($CLIENTS) record the acknowledged commits, the server is killed at a random moment of the time --life, and the next server is
asked for these commits. At the end plain SQLite checks the file's integrity. With --kinds or --vfs that is done for each combination of a
kind of workers and a file system, with a line for each. $SEED repeats the random choices. Starts its own servers ($UMS_BIN).
"""

import argparse
import itertools
import os
import random
import sqlite3
import tempfile
import threading
import time

import wire
from owned import Server


def arguments():
    number = lambda name, default: int(os.environ.get(name, default))
    parser = argparse.ArgumentParser(prog="kill9", description="kill -9 under load: no acknowledged commit is lost.", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=number("ROUNDS", 50), help="the least number of kills (default: $ROUNDS or 50)")
    parser.add_argument("--commits", type=int, default=0, help="the least number of acknowledged commits (default: one for each kill)")
    parser.add_argument("--clients", type=int, default=number("CLIENTS", 8), help="how many writers there are (default: $CLIENTS or 8)")
    parser.add_argument("--life", type=float, default=0.4, help="the longest time from a start to a kill, in seconds (default: 0.4)")
    parser.add_argument("--kinds", help="kinds of workers, separated by commas")
    parser.add_argument("--vfs", help="file systems, separated by commas: ums, direct, host")
    return parser.parse_known_args()


OPTIONS, SERVE = arguments()
CLIENTS = OPTIONS.clients
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 1 << 30)


def connect(server):
    wire.PORT = server.port
    return wire.Conn()


def write(server, writer, numbers, acknowledged):
    """Commits in every possible way, until the server is killed."""
    try:
        conn = connect(server)
        for number in numbers:
            note = "x" * (number * 37 % 2000)
            how = number // CLIENTS % 4
            if how == 0:
                conn.query(f"insert into done values ({number}, '{note}')")
            elif how == 1:
                conn.query(f"begin; insert into done values ({number}, '{note}'); update sums set n = n + 1; commit")
            elif how == 2:
                conn.prepared("insert into done values ($1, $2)", [number, note])
            else:
                conn.query("begin")
                conn.prepared("insert into done values ($1, $2)", [number, note])
                conn.query("commit")
            acknowledged.append(number)
    except (wire.Closed, OSError):
        pass
    except wire.Refused as error:
        assert error.code.startswith("57"), f"writer {writer}: {error}"


def begin(conn):
    conn.query("create table done(id int primary key, note text)")
    conn.query("create table sums(n int)")
    conn.query("insert into sums values (0)")


def look(conn, acknowledged, where):
    """Asks the server for what was acknowledged, and whether transactions are whole."""
    found = {int(row[0]) for row in conn.query("select id from done")}
    lost = [number for number in acknowledged if number not in found]
    assert not lost, f"{where}: acknowledged and lost: {lost[:10]}"
    sums = int(conn.query("select n from sums")[0][0])
    pairs = sum(1 for number in found if number // CLIENTS % 4 == 1)
    assert sums == pairs, f"{where}: {sums} of {pairs} transactions are whole"


def live(server, first, acknowledged, seconds):
    """A server's life under load: it is killed after this time."""
    threads = []
    for writer in range(CLIENTS):
        numbers = range(first + writer, 1 << 30, CLIENTS)
        threads.append(threading.Thread(target=write, args=(server, writer, numbers, acknowledged)))
        threads[-1].start()
    time.sleep(seconds)
    server.kill()
    for thread in threads:
        thread.join()


def run(name, serve):
    """Kills servers with these options. Returns the numbers of kills and of acknowledged commits."""
    dice = random.Random(SEED)
    first, acknowledged = 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/kill9.db"
        for kills in itertools.count():
            server = Server(path, *serve)
            conn = connect(server)
            if kills == 0:
                begin(conn)
            look(conn, acknowledged, f"seed {SEED}, {name} round {kills}")
            if kills >= OPTIONS.rounds and len(acknowledged) >= OPTIONS.commits:
                assert conn.query("pragma integrity_check") == [("ok",)]
                conn.close()
                server.stop()
                break
            live(server, first, acknowledged, dice.uniform(0.05, OPTIONS.life))
            first = (max([first, *acknowledged]) // CLIENTS + 2) * CLIENTS
        left = [name for name in os.listdir(folder) if name != "kill9.db"]
        assert not left, f"an orderly stop leaves {left}"
        whole = sqlite3.connect(path).execute("pragma integrity_check").fetchone()[0]
        assert whole == "ok", whole
    assert len(acknowledged) > kills, f"only {len(acknowledged)} commits were acknowledged"
    return kills, len(acknowledged)


def main():
    options = [[(f"--{option}", name) for name in names.split(",")] if names else [()]
               for option, names in (("workers", OPTIONS.kinds), ("vfs", OPTIONS.vfs))]
    rows = []
    for combination in itertools.product(*options):
        chosen = [word for pair in combination for word in pair]
        began = time.monotonic()
        rows.append(run(" ".join(chosen[1::2]), chosen + SERVE))
        if chosen:
            said = "{}: {} kills, {} acknowledged commits, none lost".format(" ".join(chosen), *rows[-1])
            print(f"{said}, {time.monotonic() - began:.0f} s", flush=True)
    kills, commits = (sum(column) for column in zip(*rows))
    print(f"kill9.py: {kills} kills, {commits} acknowledged commits, none lost: {len(rows)} checks passed, 0 failed")


main()
