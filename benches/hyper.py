#!/usr/bin/env python3
"""Compares hyper on ums with hyper on tokio: the same server, asked by wrk, in one run.

    cargo build --release -p ums-compat --example hyper_server --example hyper_tokio
    benches/hyper.py [--rounds 5] [--seconds 4] [--connections 64] [--kinds fiber,context,thread]
                     [--shared]

The servers run on processor 0, with one scheduler or one worker each, and wrk on processor 1,
unless `--shared` lets all of them run on any. In each round every server is asked once, in a
changing order, so that a disturbance of the machine concerns all of them. Prints the medians of
requests/s and of the 99th percentile, and the ratio to tokio's. `/` answers at once; `/nap` sleeps
a millisecond in the runtime's own sleep; `/block` sleeps it in the system, as code does that knows
nothing of the runtime. Needs wrk.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


def on_processor(number, arguments):
    """Returns what a child process calls first, to run on this processor alone."""
    return None if arguments.shared else lambda: os.sched_setaffinity(0, {number})


def ask(command, path, arguments):
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=on_processor(0, arguments)
    )
    try:
        address = server.stdout.readline().removeprefix("listening on ").strip()
        wrk = ["wrk", "-t1", f"-c{arguments.connections}", f"-d{arguments.seconds}s", "--latency"]
        wrk.append(f"http://{address}{path}")
        first = on_processor(1, arguments)
        said = subprocess.run(wrk, capture_output=True, text=True, preexec_fn=first)
        rate = re.search(r"Requests/sec:\s+([\d.]+)", said.stdout)
        late = re.search(r"99%\s+([\d.]+)(us|ms|s|m)", said.stdout)
        if not rate or not late or "Non-2xx" in said.stdout:
            sys.exit(f"{' '.join(command)}: wrk said\n{said.stdout}{said.stderr}")
        return float(rate[1]), float(late[1]) * UNITS[late[2]]
    finally:
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--kinds", default="fiber,context,thread")
    parser.add_argument("--paths", default="/,/nap,/block")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--examples", default="target/release/examples")
    arguments = parser.parse_args()
    servers = {"tokio": [os.path.join(arguments.examples, "hyper_tokio"), "127.0.0.1:0"]}
    for kind in arguments.kinds.split(","):
        servers[kind] = [os.path.join(arguments.examples, "hyper_server"), "127.0.0.1:0", kind]
    for path in arguments.paths.split(","):
        results = {name: [] for name in servers}
        for turn in range(arguments.rounds):
            names = list(servers)
            for name in names[turn % len(names):] + names[: turn % len(names)]:
                results[name].append(ask(servers[name], path, arguments))
        base = [statistics.median(column) for column in zip(*results["tokio"])]
        for name, rows in results.items():
            rate, late = (statistics.median(column) for column in zip(*rows))
            print(f"{path:8} {name:8} {rate:10.0f}/s {rate / base[0]:6.2f} of tokio's"
                  f"   p99 {late:8.2f} ms {late / base[1]:6.2f} of tokio's", flush=True)


main()
