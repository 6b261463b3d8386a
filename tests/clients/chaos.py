#!/usr/bin/env python3
"""Faults for real: a server, sessions that work beside the fault, and a report of one page.

    chaos.py [--minutes N] [--only NAME[,NAME...]] [--kinds thread,fiber,context] [--seed N] [--list]

Each fault has a server of its own, on a new database, in each kind of workers in turn. Its invariant: the server does not end, a session that
works beside the fault makes progress again when the fault is over, every acknowledged transaction is found, the database is whole, and SIGTERM
ends the server with 0. What else must hold is said by the fault. Without --minutes each fault runs once in each kind; with it the round is
repeated until the time is over. Ends with 1 if an invariant was broken. $UMS_BIN is the program.
"""

import argparse
import contextlib
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wire
from bystanders import Bystanders
from owned import Server

HERE = Path(__file__).parent


class Skipped(Exception):
    """This computer does not have what the fault needs."""


def threads_of(server):
    return [int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()]


def raw_socket(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=wire.PATIENCE)


@contextlib.contextmanager
def limited(server, which, soft):
    """Lowers a limit of the running server, and restores it."""
    before = resource.prlimit(server.pid, which)
    resource.prlimit(server.pid, which, (soft, before[1]))
    yield
    resource.prlimit(server.pid, which, before)


def tries(server, sql, count=1):
    """Returns the SQLSTATEs that new sessions get for this statement, with "" for an answer and "closed" for an ended connection."""
    found = []
    for _ in range(count):
        try:
            conn = wire.Conn(server.port)
            conn.query(sql)
            conn.close()
            found.append("")
        except wire.Refused as error:
            found.append(error.code)
        except (wire.Closed, OSError):
            found.append("closed")
    return found


# --- The faults: each returns what it saw, in a few words --------------------------------------------------------------

def pause(server, beside, dice):
    """The process is stopped and continued, five times"""
    for _ in range(5):
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(dice.uniform(0.05, 0.8))
        os.kill(server.pid, signal.SIGCONT)
        beside.progress()
    return "5 stops"


def affinity(server, beside, dice):
    """The processors that the threads may use change while they run"""
    every = os.sched_getaffinity(0)
    for _ in range(20):
        some = set(dice.sample(sorted(every), dice.randint(1, len(every))))
        for thread in threads_of(server):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, some)
        time.sleep(0.05)
    for thread in threads_of(server):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, every)
    return "20 changes"


@contextlib.contextmanager
def quota_of(server):
    """A control group for the server. Gives the function that sets its quota, in percent of one processor."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found.update({name: path for name in controllers.split(",")})
    old = "cpu" in found
    parent = Path("/sys/fs/cgroup", "cpu" if old else "", found.get("cpu" if old else "", "").lstrip("/"))
    group = parent / f"ums-chaos-{server.pid}"
    file, text = ("cpu.cfs_quota_us", "{}") if old else ("cpu.max", "{} 100000")
    give = lambda percent: (group / file).write_text(text.format(1000 * percent))
    try:
        group.mkdir()
        give(200)
        (group / "cgroup.procs").write_text(str(server.pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise Skipped(f"no control group can be made: {error}") from None
    try:
        yield give
    finally:
        # The server may have ended.
        with contextlib.suppress(OSError):
            (parent / "cgroup.procs").write_text(str(server.pid))
        with contextlib.suppress(OSError):
            group.rmdir()


def quota(server, beside, dice):
    """The quota of processor time changes while the server runs (control group), from a twentieth of a processor to two"""
    with quota_of(server) as give:
        for _ in range(20):
            give(dice.choice([5, 20, 50, 100, 200]))
            time.sleep(0.1)
        beside.progress()
    return "20 changes"


def old_clock(server, beside, dice):
    """The computer was started 50 years ago, says its clock (time namespace); no wait ends before its time"""
    conn = wire.Conn(server.port)
    began = time.monotonic()
    conn.query("waitfor delay '00:00:00.2'")
    assert time.monotonic() - began >= 0.2, "a wait ended before its time"
    conn.close()
    beside.progress()
    return "served"


def descriptors(server, beside, dice):
    """No descriptor is left: connections are refused or wait, and the sessions that are there go on"""
    open_now = len(os.listdir(f"/proc/{server.pid}/fd"))
    held = []
    with limited(server, resource.RLIMIT_NOFILE, open_now + 4):
        for _ in range(40):
            held.append(raw_socket(server))
            held[-1].sendall(wire.startup(user=wire.USER, database=wire.DATABASE))
        beside.progress()
        for one in held:
            one.close()
    assert tries(server, "select 1") == [""], "a new client is not served after the fault"
    return "40 connections at 4 descriptors"


def memory(server, beside, dice):
    """The address space ends: statements that want much are refused, the others go on"""
    size = int(Path(f"/proc/{server.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    sort = "select count(*) from (select hex(randomblob(500)) x from generate_series(1, 200000) order by x)"
    with limited(server, resource.RLIMIT_AS, size + (96 << 20)):
        found = tries(server, sort, 3)
        beside.progress()
    assert tries(server, "select 1") == [""], "a new client is not served after the fault"
    return f"sorts answered {found}"


def file_size(server, beside, dice):
    """Files may not grow (RLIMIT_FSIZE): writes fail with 53100 or the like, reads go on"""
    biggest = max(path.stat().st_size for path in Path(server.database).parent.iterdir() if path.is_file())
    with limited(server, resource.RLIMIT_FSIZE, biggest + 65536):
        found = tries(server, "create table if not exists big(x); insert into big values (zeroblob(3000000))", 3)
        assert tries(server, "select count(*) from accounts") == [""], "reads do not go on"
    assert set(found) <= {"53100", "58030"}, f"writes answered {found}"
    return f"writes answered {found}"


def flood(server, beside, dice):
    """20,000 connections that say nothing, or rubbish, and go"""
    for n in range(20_000):
        try:
            one = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        except OSError:
            continue
        if n % 3 == 1:
            with contextlib.suppress(OSError):
                one.sendall(dice.randbytes(dice.randint(1, 64)))
        if n % 5 == 2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    beside.progress()
    return "20,000 connections"


def half_open(server, beside, dice):
    """200 clients log in byte by byte and stay; 100 begin a message and never end it"""
    slow = [raw_socket(server) for _ in range(200)]
    hello = wire.startup(user=wire.USER, database=wire.DATABASE)
    for at in range(12):
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(hello[at : at + 1])
    unended = []
    for _ in range(100):
        with contextlib.suppress(wire.Closed, wire.Refused, OSError):
            unended.append(wire.Conn(server.port))
            unended[-1].raw(b"Q" + struct.pack("!i", 1000) + b"select")
    beside.progress()
    for one in slow + unended:
        one.close()
    return f"200 slow logins, {len(unended)} unended messages"


def deaf(server, beside, dice):
    """30 clients ask for more than the kernel buffers, and do not read"""
    asking = []
    for _ in range(30):
        conn = wire.Conn(server.port)
        conn.send("select hex(zeroblob(100000)) from generate_series(1, 200)")
        asking.append(conn)
    beside.progress()
    for conn in asking:
        conn.reset()
    return "30 clients that do not read"


def cancels(server, beside, dice):
    """Cancel requests for sessions at any moment, right and wrong keys"""
    sent = 0
    for _ in range(300):
        key = (dice.choice(beside.all).conn or wire.Conn(server.port)).key
        key = dice.randbytes(8) if dice.random() < 0.3 or not key else key
        with contextlib.suppress(OSError), raw_socket(server) as other:
            other.sendall(struct.pack("!ii", 16, 80877102) + key)
            other.recv(1)
            sent += 1
    return f"{sent} cancels"


def disconnects(server, beside, dice):
    """Clients go in the middle of statements, transactions and copies"""
    statements = [
        "begin; insert into accounts select 1000000 + x, 0 from generate_series(1, 5000) as s(x)",
        "select count(*) from generate_series(1, 3000000)",
        "waitfor delay '00:00:05'",
        "begin; update accounts set money = money",
        "copy transfers from stdin",
    ]
    for n in range(100):
        conn = wire.Conn(server.port)
        conn.send(statements[n % len(statements)])
        time.sleep(dice.uniform(0, 0.02))
        (conn.reset if n % 2 else conn.close)()
    beside.progress(120)
    return "100 disconnects"


def no_ring(server, beside, dice):
    """The kernel refuses io_uring from the start (seccomp): the server works without it"""
    beside.progress()
    return "served"


def no_enter(server, beside, dice):
    """The kernel refuses only io_uring_enter and membarrier (seccomp): the server works without them"""
    beside.progress()
    return "served"


OWN = [pause, affinity, quota, old_clock, descriptors, memory, file_size, flood, half_open, deaf, cancels, disconnects, no_ring, no_enter]
# The commands that run the server's command for a fault.
PREFIXES = {
    "no_ring": ["deny.py", "io_uring_setup"],
    "no_enter": ["deny.py", "io_uring_enter,membarrier"],
    "old_clock": ["shifted.py", str(50 * 365 * 24 * 3600)],
}

# Runs that exist beside this one: the command, and what it shows.
OTHER = {
    "kill9": (["kill9.py"], "kill -9 under load: no acknowledged commit is lost"),
    "badfile": (["badfile.py"], "damaged, deleted, read-only and locked files; a full disk"),
    "garbage": (["with-server.sh", "badinput.py"], "every kind of bad input"),
    "attacks": (["with-server.sh", "attacks.py"], "what one client tries against the others"),
}
# Programs that use the library: panics, overflows, spinning, blocking, forks, closed descriptors.
LIBRARY = "serving_faults refusals blocked stalls undeclared".split()


def own(fault, kind, seed):
    """Runs one fault of this file. Returns what it saw."""
    dice = random.Random(seed)
    prefix = [str(HERE / part) if part.endswith(".py") else part for part in PREFIXES.get(fault.__name__, ())]
    prefix = [sys.executable, *prefix, "--"] if prefix else []
    if fault is old_clock and (refused := subprocess.run([*prefix, "true"], capture_output=True, text=True)).returncode:
        raise Skipped(refused.stderr.strip().splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/chaos.db"
        with Server(database, "--workers", kind, prefix=prefix) as server:
            server.database, wire.PORT = database, server.port
            beside = Bystanders(server.port, seed=seed)
            with beside:
                saw = fault(server, beside, dice)
                assert server.process.poll() is None, f"the server has ended:\n{server.said()}"
                beside.progress()
            beside.check()
            return f"{saw}; {beside.done} transactions beside it, {beside.lost} connections lost, longest {1000 * beside.worst:.0f} ms"


def other(name, kind):
    command = [str(HERE / part) for part in OTHER[name][0]]
    if command[0].endswith(".sh"):
        command = [command[0], "--workers", kind, "--", sys.executable, command[1]]
    else:
        command = [sys.executable, command[0], "--workers", kind]
    done = subprocess.run(command, capture_output=True, text=True, env={"ROUNDS": "20", **os.environ}, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return next((line for line in reversed(done.stdout.splitlines()) if "checks passed" in line), "passed")


def library():
    tests = [part for name in LIBRARY for part in ("--test", name)]
    done = subprocess.run(["cargo", "test", "-q", "-p", "ums", *tests], capture_output=True, text=True, cwd=HERE.parent.parent, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return f"{sum(int(line.split()[3]) for line in done.stdout.splitlines() if line.startswith('test result'))} tests, in all kinds"


def plan(kinds):
    """Returns the runs of one round: name, kind, what it is, and the function."""
    runs = [(fault.__name__, kind, fault.__doc__, lambda seed, f=fault, k=kind: own(f, k, seed)) for fault in OWN for kind in kinds]
    runs += [(name, kind, OTHER[name][1], lambda seed, n=name, k=kind: other(n, k)) for name in OTHER for kind in kinds]
    return runs + [("library", "all", "library programs that panic, overflow, spin, block, fork", lambda seed: library())]


def report(results, seconds):
    """Prints the page. Returns whether every invariant held."""
    print(f"\n{'fault':<12} {'kind':<8} {'runs':>4} {'failed':>6}  what was seen last")
    for (name, kind), (runs, failed, skipped, saw) in sorted(results.items()):
        print(f"{name:<12} {kind:<8} {runs:>4} {failed:>6}  {'skipped: ' if skipped else ''}{saw.splitlines()[0][:140] if saw else ''}")
    failed = sum(result[1] for result in results.values())
    skipped = sum(result[2] for result in results.values())
    print(f"chaos.py: {sum(r[0] for r in results.values()) - failed - skipped} runs passed, {failed} failed, {skipped} skipped, {seconds:.0f} s")
    return not failed


def main():
    parser = argparse.ArgumentParser(prog="chaos", description="Faults for real, with invariants and a report.")
    parser.add_argument("--minutes", type=float, default=0, help="repeat the round until this time is over (default: one round)")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    parser.add_argument("--kinds", default="thread,fiber,context", help="kinds of workers, separated by commas")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random choices")
    parser.add_argument("--list", action="store_true", help="print the faults, and end")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if "context" in kinds and "not available" in subprocess.run([os.environ["UMS_BIN"], "probe"], capture_output=True, text=True).stdout.split("own-context", 1)[-1].splitlines()[0]:
        kinds.remove("context")
        print("own contexts are not available on this computer: skipped")
    runs = plan(kinds)
    if options.list:
        return print("\n".join(dict.fromkeys(f"{name:<12} {what}" for name, _, what, _ in runs)))
    only = [name for name in options.only.split(",") if name]
    unknown = set(only) - {name for name, *_ in runs}
    if unknown:
        sys.exit(f"chaos: no fault is called {', '.join(sorted(unknown))}; --list prints the names")
    runs = [run for run in runs if not only or run[0] in only]
    wire.many_files()
    began, seed, results = time.monotonic(), options.seed, {}
    while True:
        for name, kind, _, function in runs:
            at = time.monotonic()
            count, failed, skipped, saw = results.get((name, kind), (0, 0, 0, ""))
            try:
                saw = function(seed)
                word = "ok"
            except Skipped as why:
                skipped, saw, word = skipped + 1, str(why), "skipped"
            except (Exception, subprocess.SubprocessError) as error:
                failed, saw, word = failed + 1, f"seed {seed}: {type(error).__name__}: {error}", "FAILED"
            results[name, kind] = (count + 1, failed, skipped, saw)
            print(f"{name:<12} {kind:<8} {word:<7} {time.monotonic() - at:6.1f} s  {saw}", flush=True)
            if options.minutes and time.monotonic() - began > 60 * options.minutes:
                break
        seed += 1
        if time.monotonic() - began >= 60 * options.minutes:
            break
    sys.exit(0 if report(results, time.monotonic() - began) else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("chaos: interrupted")
