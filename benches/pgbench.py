#!/usr/bin/env python3
"""Compares `ums serve` with a small server of the same SQLite and wire code on tokio, by pgbench.

    cargo build --release
    cargo build --release --manifest-path benches/tokio-sql/Cargo.toml --target-dir target
    UMS_BIN=target/release/ums TOKIO_BIN=target/release/tokio-sql python3 benches/pgbench.py

    pgbench.py [--rounds 5] [--seconds 8] [--clients 64] [--kinds fiber,context,thread]

pgbench runs prepared SELECTs of one row by its key (the script of `pgbench -S`), and is pinned to processor 1. The servers, with one
scheduler or one worker each, are pinned to processor 0. All of them run the whole time, each with its own copy of one database; those
without clients do nothing. The server on tokio is what its author would write who knows SQLite: a connection and a cache of statements
for each client, one call of `spawn_blocking` and one write for all messages up to a Sync. The rounds are interleaved, and each number is the median of its rounds:

* CPU: user and system time of the server, divided by pgbench's transactions, in microseconds;
* tps: transactions a second;
* p99: the 99th percentile of the latency, in microseconds, from pgbench's log of all transactions.

For a quiet machine with two processors: another process on them changes all three."""

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "clients"))
from owned import Server, free_ports

SCRIPT = """\\set aid random(1, 100000 * :scale)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
"""
SERVER_CPU, CLIENT_CPU = "0", "1"
TICK = os.sysconf("SC_CLK_TCK")


def pgbench(port, *options, prefix=()):
    command = [*prefix, "pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", "ums", *options, "ums"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PGSSLMODE": "disable", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_database(path):
    with Server(path) as server:
        pgbench(server.port, "-i", "-s", "1", "-q")


def start_ums(stack, kind, path):
    options = ["--workers", kind, "--schedulers", "1", "--no-stats-socket"]
    server = stack.enter_context(Server(path, *options, prefix=["taskset", "-c", SERVER_CPU]))
    return server.port, server.pid


def until_it_listens(port, process):
    for _ in range(100):
        assert process.poll() is None, "tokio-sql ended before it listened"
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), timeout=5).close()
        time.sleep(0.1)
    raise AssertionError("tokio-sql does not listen")


def start_tokio(stack, path):
    [port] = free_ports(1)
    command = ["taskset", "-c", SERVER_CPU, os.environ["TOKIO_BIN"], path, f"127.0.0.1:{port}", "1"]
    process = subprocess.Popen(command)
    stack.callback(process.wait)
    stack.callback(process.kill)
    until_it_listens(port, process)
    return port, process.pid


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def measure(port, pid, clients, length):
    """Returns CPU in microseconds a transaction, transactions a second, and the 99th percentile of the latency in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "select.sql")
        script.write_text(SCRIPT)
        options = ["-n", "-M", "prepared", "-c", str(clients), "-j", "1", *length, "-D", "scale=1", "-f", str(script)]
        before = cpu_seconds(pid)
        said = pgbench(port, *options, "-l", f"--log-prefix={folder}/log", prefix=["taskset", "-c", CLIENT_CPU])
        used = cpu_seconds(pid) - before
        transactions = int(re.search(r"actually processed: (\d+)", said)[1])
        assert transactions and "number of failed transactions: 0 " in said, said
        tps = float(re.search(r"tps = ([\d.]+)", said)[1])
        # The third field of each line is the latency.
        latencies = sorted(int(line.split()[2]) for log in Path(folder).glob("log*") for line in log.open())
        assert len(latencies) == transactions
    return used / transactions * 1e6, tps, latencies[len(latencies) * 99 // 100]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kinds", default="fiber,context,thread")
    args = parser.parse_args()
    began = time.monotonic()
    kinds = args.kinds.split(",")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        make_database(f"{folder}/made.db")
        servers = {}
        for name in [*kinds, "tokio"]:
            path = shutil.copy(f"{folder}/made.db", f"{folder}/{name}.db")
            servers[name] = start_tokio(stack, path) if name == "tokio" else start_ums(stack, name, path)
        for port, pid in servers.values():
            measure(port, pid, args.clients, ["-t", "100"])
        rows = {name: [] for name in servers}
        for number in range(args.rounds):
            for name, (port, pid) in servers.items():
                row = measure(port, pid, args.clients, ["-T", str(args.seconds)])
                rows[name].append(row)
                print(f"round {number + 1} {name:<8} {row[0]:7.2f} us CPU {row[1]:9.0f} tps {row[2]:7} us p99", file=sys.stderr)
    medians = {name: [statistics.median(column) for column in zip(*row)] for name, row in rows.items()}
    print(f"{'':<8} {'CPU us':>8} {'of tokio':>9} {'tps':>9} {'p99 us':>8}")
    for name, (cpu, tps, p99) in medians.items():
        share = f"1/{medians['tokio'][0] / cpu:.2f}"
        print(f"{name:<8} {cpu:8.2f} {share:>9} {tps:9.0f} {p99:8.0f}")
    print(f"{args.rounds} rounds of {args.seconds} s, {args.clients} clients, {time.monotonic() - began:.0f} s in all")


main()
