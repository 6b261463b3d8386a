#!/usr/bin/env python3
"""Counts what the hot paths and a prepared SELECT cost: instructions, locked instructions and system calls of one operation.

    counts.py             counts, prints a table beside the baseline (counts.txt), and fails if a row has grown
    counts.py --write     writes a new baseline
    counts.py yield ...   counts only these rows

A row may have at most 3 % more instructions than the baseline, and no more locked instructions or system calls. Needs $UMS_BIN. With
SHOW=1 it prints the counts of every operation, after the numbers of its system calls.

How it counts, on a machine without performance counters: it single-steps the only scheduler's thread by ptrace, which stops before
each instruction, and reads the instruction's bytes from the process's memory. A *locked* instruction has the prefix F0, or is an
exchange with memory, which locks without a prefix. A string instruction with a repeat prefix counts once, although it stops at each
repetition. So does an instruction of the kernel's vDSO in each visit, because reading the clock tries again if the kernel has updated
the time meanwhile, and single-stepped it takes long. Only instructions in user mode are counted, and only those of this thread.

`ums bench operations` repeats one operation and calls an empty function after each, so the instructions between two calls are those of
an operation and of the loop around it (about ten). Where two tasks take turns, a round of both is counted, and divided by `per`.
`echo` and `select` have no such mark: this script is their client, and an operation lasts from one sleep of the server to the next,
in which it answers one request. In the rows `yield` and `spawn-batch`, readings of the time counter get the number of instructions so
far, because the library finds out by such readings whether turns and tasks are short. (In rows in which the thread sleeps this is not possible.) The median of some operations is reported, so that it does not matter what happens in few of them.

The counts depend on the compiler and its settings, and a little on the C library and on the kernel's features, so the baseline says which
they were. For x86-64."""

import contextlib
import itertools
import json
import os
import platform
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("PATIENCE", "30")
from owned import Server, free_ports
from steps import RAX, RIP, time_reader, walk
from wire import SYNC, Conn, bind, execute, parse

BASELINE = Path(__file__).with_name("counts.txt")
TOLERANCE = 0.03
KINDS = ["fiber", "context"]
# So that glibc takes the same functions for memory and strings on every processor.
PLAIN = ",".join(f"-{extension}" for extension in ["AVX512F", "AVX512VL", "AVX2", "ERMS", "FSRM", "RTM", "AVX_Fast_Unaligned_Load", "Fast_Unaligned_Copy", "SSSE3", "SSE4_1"])
os.environ["GLIBC_TUNABLES"] = f"glibc.cpu.hwcaps={PLAIN}"
# Operations whose counts are dropped, and that are counted, for each row; fewer where an operation is many.
WARM, COUNTED = 3, 9
WARM_BATCHES, COUNTED_BATCHES = 1, 3
# In these rows the thread never sleeps, and what the library does depends on short times.
QUICK = {"yield", "spawn-batch"}
SHOW = bool(os.environ.get("SHOW"))

PREFIXES = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3}
STRING = {0x6C, 0x6D, 0x6E, 0x6F, 0xA4, 0xA5, 0xA6, 0xA7, 0xAA, 0xAB, 0xAC, 0xAD, 0xAE, 0xAF}
LOCKED, SYSCALL, REPEATED, VDSO = 1, 2, 4, 8


def decode(code):
    """Returns what an instruction is, of LOCKED, SYSCALL and REPEATED."""
    at = 0
    while code[at] in PREFIXES:
        at += 1
    prefixes = set(code[:at])
    at += code[at] & 0xF0 == 0x40  # REX
    opcode, following = code[at], code[at + 1]
    found = 0
    if 0xF0 in prefixes or (opcode in (0x86, 0x87) and following < 0xC0):
        found |= LOCKED
    if opcode == 0x0F and following == 0x05:
        found |= SYSCALL
    if opcode in STRING and prefixes & {0xF2, 0xF3}:
        found |= REPEATED
    return found


def test_decode():
    for code, expected in [
        ("f00fb10f", LOCKED),  # lock cmpxchg [rdi], ecx
        ("f0480fc107", LOCKED),  # lock xadd [rdi], rax
        ("66f0830701", LOCKED),  # lock add word [rdi], 1: another prefix before it
        ("64f0ff0425", LOCKED),  # lock inc dword fs:[...]
        ("8707", LOCKED),  # xchg [rdi], eax
        ("488704240000", LOCKED),  # xchg [rsp], rax
        ("4186c0", 0),  # xchg r8b, al: registers only
        ("4887c3", 0),  # xchg rbx, rax
        ("90", 0),  # nop, which is xchg eax, eax
        ("f390", 0),  # pause
        ("0f05", SYSCALL),
        ("0fb10f", 0),  # cmpxchg without lock
        ("f348ab", REPEATED),  # rep stosq
        ("f3a4", REPEATED),  # rep movsb
        ("f30f6f07", 0),  # movdqu
        ("c5f8f007", 0),  # a VEX instruction whose opcode is F0
        ("48b8f00f0500", 0),  # mov rax, immediate with these bytes
    ]:
        assert decode(bytes.fromhex(code) + bytes(4)) == expected, code


class Counter:
    """Single-steps a thread and yields the counts of one operation after another."""

    def __init__(self, pid, thread):
        self.pid, self.thread = pid, thread
        self.known = {}
        [vdso] = (line.split()[0] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[vdso]"))
        self.vdso = range(*(int(end, 16) for end in vdso.split("-")))

    def what_is(self, memory, at):
        found = self.known.get(at)
        if found is None:
            memory.seek(at)
            found = decode(memory.read(16) + bytes(16)) | (VDSO if at in self.vdso else 0)
            self.known[at] = found
        return found

    def operations(self, mark=None, client=None, steps_are_time=False):
        """The end of an operation is a call of `mark`, or a sleep for which `client` returns true."""
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(open(f"/proc/{self.pid}/mem", "rb", buffering=0))
            calls = lambda registers: client is not None and self.what_is(memory, registers[RIP]) & SYSCALL
            times = {"reads_time": time_reader(self.pid)} if steps_are_time else {}
            walked = stack.enter_context(contextlib.closing(walk(self.thread, may_sleep=calls, **times)))
            counts, last, in_vdso = [0, 0, 0], None, set()
            for registers in walked:
                at = mark if registers is None else registers[RIP]
                if at == mark and (client is None or client()):
                    if SHOW:
                        print(*counts)
                    yield tuple(counts)
                    counts = [0, 0, 0]
                if registers is None:
                    continue
                what = self.what_is(memory, at)
                if what & VDSO:
                    if at in in_vdso:
                        continue
                    in_vdso.add(at)
                elif in_vdso:
                    in_vdso = set()
                if what & REPEATED and at == last:
                    continue
                last = at
                counts[0] += 1
                counts[1] += bool(what & LOCKED)
                counts[2] += bool(what & SYSCALL)
                if SHOW and what & SYSCALL:
                    print(f"call {registers[RAX]}", end=" ")


def medians(operations, warm=WARM, counted=COUNTED):
    """Returns the median of each count over some operations."""
    counted = list(itertools.islice(operations, warm, warm + counted))
    operations.close()
    return [statistics.median_low(counts) for counts in zip(*counted)]


def thread_of_scheduler(pid):
    """Returns the thread of the first scheduler."""
    [thread] = (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "ums-0\n")
    return thread


@contextlib.contextmanager
def repeated(kind, name, file=""):
    """Repeats an operation. Returns the process, the thread, the address that each operation ends at, and how many to drop and to count."""
    keys = [f"of={name}", f"n={10**12}", f"kind={kind}", "events=on", f"file={file}"]
    bench = subprocess.Popen([os.environ["UMS_BIN"], "bench", "operations", *keys], stdout=subprocess.PIPE, text=True)
    try:
        lines = [json.loads(bench.stdout.readline() or '{"skip": "the bench ended"}') for _ in range(2)]
        assert "skip" not in lines[0], lines[0]["skip"]
        mark, thread = (int(line["value"]) for line in lines)
        yield bench.pid, thread, mark, (WARM_BATCHES, COUNTED_BATCHES) if name == "spawn-batch" else (WARM, COUNTED)
    finally:
        bench.kill()
        bench.wait()


def of_bench(kind, name, folder):
    file = Path(folder) / "blocks"
    file.write_bytes(bytes(1 << 16))
    with repeated(kind, name, file) as (pid, thread, mark, rounds):
        return medians(Counter(pid, thread).operations(mark=mark, steps_are_time=name in QUICK), *rounds)


def of_echo(kind, _, folder):
    port = free_ports(1)[0]
    bench = subprocess.Popen([os.environ["UMS_BIN"], "bench", "echo", f"port={port}", f"kind={kind}", "events=on"])
    try:
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=30)
                break
            time.sleep(0.05)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = bytes(64)

        def client():
            if not select.select([connection], [], [], 0)[0]:
                return False
            assert connection.recv(1024) == request
            connection.sendall(request)
            return True

        connection.sendall(request)
        return medians(Counter(bench.pid, thread_of_scheduler(bench.pid)).operations(client=client))
    finally:
        bench.kill()
        bench.wait()


def of_select(kind, _, folder):
    # Without the monitor, whose signals would interrupt what takes so long, and without the thread that looks every second whether
    # clients are there, which a request wakes if it slept.
    with Server(f"{folder}/counts-{kind}.db", "--workers", kind, "--schedulers", "1", "--no-stats-socket", "--stall", "0",
                "--client-check", "0") as server:
        conn = Conn(server.port)
        conn.query("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        rows = "WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 1000)"
        conn.query(f"INSERT INTO account {rows} SELECT id, 100 FROM n")
        conn.raw(parse("SELECT balance FROM account WHERE id = $1", "balance", [23]) + SYNC)
        conn.until_ready()
        request = bind([b"500"], "balance") + execute() + SYNC

        def client():
            if not select.select([conn], [], [], 0)[0]:
                return False
            assert conn.until_ready() == [("100",)]
            conn.raw(request)
            return True

        conn.raw(request)
        found = medians(Counter(server.pid, thread_of_scheduler(server.pid)).operations(client=client))
        conn.close()
        return found


# Each row: its name, how many operations a counted one consists of, and how it is counted.
ROWS = {
    "yield": (2, of_bench),
    "spawn": (1, of_bench),
    "spawn-batch": (100, of_bench),
    "channel": (1, of_bench),
    "mutex-free": (1, of_bench),
    "mutex-handed": (2, of_bench),
    "event": (2, of_bench),
    "semaphore": (2, of_bench),
    "sleep": (1, of_bench),
    "timer-cancelled": (2, of_bench),
    "read-direct": (1, of_bench),
    "echo": (1, of_echo),
    "select": (1, of_select),
}
MEANING = """\
# yield            a yield, after which another task runs
# spawn            a task is spawned, and joined
# spawn-batch      a task of a hundred that are spawned, and then joined
# channel          a round trip over two channels: two sends, and two receives that wait
# mutex-free       a lock and an unlock, without contention
# mutex-handed     a lock that waits, and an unlock that hands the mutex over
# event, semaphore a wait that waits, and a set that ends another task's wait
# sleep            a timer is armed, the scheduler sleeps in the kernel, the timer fires
# timer-cancelled  as event; the wait arms a timer, and cancels it
# read-direct      4 KiB of a file, with O_DIRECT
# echo             a request of 64 bytes, received and sent back; the server sleeps before it
# select           Bind, Execute and Sync of a prepared SELECT of one row by its key; the server sleeps before them
"""


def probe():
    """Returns what the library found about this computer, by name."""
    said = subprocess.run([os.environ["UMS_BIN"], "probe"], capture_output=True, text=True, check=True).stdout
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in said.splitlines() if re.match(r"\S.*? {2,}", line))


def surroundings(facts):
    """Returns what the counts depend on, besides the sources."""
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    lto, units = (os.environ.get(f"CARGO_PROFILE_RELEASE_{name}", "of Cargo.toml") for name in ("LTO", "CODEGEN_UNITS"))
    kernel = f"io_uring {facts['io_uring']}, clocksource {facts['clocksource']}"
    return f"rustc {rustc}, lto {lto}, codegen units {units}, {' '.join(platform.libc_ver())}, {kernel}"


def baseline():
    """Returns the surroundings and the rows of the baseline."""
    made_with, rows = "", {}
    for line in BASELINE.read_text().splitlines() if BASELINE.exists() else []:
        if line.startswith("# made with: "):
            made_with = line.removeprefix("# made with: ")
        elif line and not line.startswith("#"):
            kind, row, *counts = line.split()
            rows[kind, row] = tuple(float(count) for count in counts)
    return made_with, rows


def write(rows, made_with):
    lines = [f"{kind:<8} {row:<16} {i:>12g} {l:>7g} {s:>6g}\n" for (kind, row), (i, l, s) in rows.items()]
    head = "# What one operation costs. counts.py compares it, says how it is counted, and writes it.\n#\n"
    columns = f"# {'kind':<6} {'row':<16} {'instructions':>12} {'locked':>7} {'calls':>6}\n"
    BASELINE.write_text(f"{head}{MEANING}#\n# made with: {made_with}\n#\n{columns}{''.join(lines)}")


def has_grown(counts, old):
    # While a batch of a hundred is single-stepped, the time may make one more look due.
    return counts[0] > old[0] * (1 + TOLERANCE) or counts[1] > old[1] + 0.015 or counts[2] > old[2]


def compare(kinds, names, before):
    """Counts the rows and prints them beside the baseline. Returns all rows, and the names of those that the baseline does not allow."""
    now, failed = {}, []
    print(f"{'':<24} {'instructions':>21} {'locked':>15} {'system calls':>15}")
    print(f"{'':<24} {'now':>10} {'baseline':>10} {'now':>6} {'base':>8} {'now':>6} {'base':>8}")
    for kind, name in itertools.product(kinds, names):
        per, count = ROWS[name]
        with tempfile.TemporaryDirectory() as folder:
            counts = now[kind, name] = tuple(count / per for count in count(kind, name, folder))
        old = before.get((kind, name))
        bad = "not in the baseline" if old is None else "GROWN" if has_grown(counts, old) else ""
        columns = [f"{count:g}" if count is not None else "-" for pair in zip(counts, old or [None] * 3) for count in pair]
        print(f"{kind:<8}{name:<16}", *map(str.rjust, columns, (10, 10, 6, 8, 6, 8)), bad, flush=True)
        if bad:
            failed.append(f"{kind} {name}")
    return now, failed


def main():
    test_decode()
    if platform.machine() != "x86_64":
        sys.exit("counts.py: skipped: for x86-64")
    facts = probe()
    kinds = KINDS if not facts["own-context workers"].startswith("not available") else KINDS[:1]
    names = [name for name in sys.argv[1:] if name != "--write"] or list(ROWS)
    # The debugger and the thread take turns, which is faster on one processor.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    made_with, before = baseline()
    now, failed = compare(kinds, names, before)
    if "--write" in sys.argv:
        write(before | now, surroundings(facts))
        print(f"counts.py: wrote {BASELINE}")
    elif failed:
        print(f"counts.py: the baseline does not allow: {', '.join(failed)}")
        if made_with != surroundings(facts):
            print(f"counts.py: the baseline was made with {made_with}; this is {surroundings(facts)}")
        sys.exit(f"counts.py: if a row has to grow, `counts.py --write` writes a new {BASELINE.name}; the commit says why")
    else:
        print(f"counts.py: {len(now)} checks passed, 0 failed")


if __name__ == "__main__":
    main()
