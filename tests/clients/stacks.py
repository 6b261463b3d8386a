#!/usr/bin/env python3
"""`ums stacks` of a program that was built for release: the application's functions and no others, for workers of each
kind, with line tables, without debug information, and stripped. A fiber that waits alone on its scheduler is among them.

Needs UMS_BIN, and PARKED: the program of crates/ums/examples/parked.rs, built for release. Starts its own processes.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
UMS = os.path.abspath(os.environ.get("UMS_BIN", os.path.join(ROOT, "target/release/ums")))
PARKED = os.path.abspath(os.environ.get("PARKED", os.path.join(ROOT, "target/release/examples/parked")))
# What each of the three workers is in, the innermost function first.
FUNCTIONS = {"WAITING SLEEP": ["sleeps_for_an_hour", "holds_the_ledger"], "WAITING MUTEX": ["books"], "RUNNING": ["computes"]}
OURS = re.compile(r"at <*(ums|fiber|context|io_uring|rustix|std|alloc)::|worker_main|syscall|start_thread|0x")
checks = 0


def check(so, what, text):
    global checks
    if not so:
        sys.exit(f"stacks.py: FAILED: {what}\n{text}")
    checks += 1


def stacks(socket, *args):
    done = subprocess.run([UMS, "stacks", socket, *args], capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, "ums stacks answers", done.stderr)
    return done.stdout


def examine(text, named):
    parts = text.split("\n\n")[1:]
    check(len(parts) == 3, "three workers are shown", text)
    for state, functions in FUNCTIONS.items():
        part = next((part for part in parts if f": {state}" in part), "")
        frames = part.splitlines()[1:]
        if not named:
            check(len(frames) == 1 and "it was stripped" in part, f"{state}: there are no names, and it says so", text)
            continue
        places = [part.find(f"at parked::{function}") for function in functions]
        check(-1 not in places and places == sorted(places), f"{state}: {functions}", text)
        wrong = [frame for frame in frames if OURS.search(frame)]
        check(not wrong, f"{state}: no function of the library or the system: {wrong}", text)


def main():
    folder = tempfile.mkdtemp()
    try:
        programs = [("as built", PARKED, True)]
        for how, option, named in (("without debug information", "--strip-debug", True), ("stripped", "--strip-all", False)):
            if shutil.which("objcopy"):
                to = f"{folder}/{option.strip('-')}"
                subprocess.run(["objcopy", option, PARKED, to], check=True)
                programs.append((how, to, named))
        for how, program, named in programs:
            for kind in ("fiber", "thread", "context"):
                socket = f"{folder}/{kind}.sock"
                with subprocess.Popen([program, kind, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) as process:
                    if process.stdout.readline() != "ready\n":
                        print(f"stacks.py: {kind}: skipped: {process.stderr.read().strip()}")
                        continue
                    print(f"stacks.py: {kind} workers, {how}")
                    examine(stacks(socket), named)
                    process.stdin.close()
    finally:
        shutil.rmtree(folder)
    print(f"stacks.py: {checks} checks passed")


main()
