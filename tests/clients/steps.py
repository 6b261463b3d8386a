#!/usr/bin/env python3
"""steps.py PID THREAD-NAME SYSCALLS: how many instructions a thread executes from one sleep to the next.

Stops one thread of a process, single-steps it through this many futex calls that sleep, and prints the
instructions in user mode for each sleep. The other threads keep running. For x86-64."""

import contextlib
import ctypes
import os
import signal
import statistics
import sys
import time
from pathlib import Path

PTRACE_CONT, PTRACE_SINGLESTEP, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 7, 9, 12, 13, 17, 0x4206, 0x4207
WALL = 0x40000000
RAX, RDX, RIP = 10, 12, 16
FUTEX = 202

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread, data=None):
    if libc.ptrace(request, thread, None, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def thread_of(pid, name):
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    sys.exit(f"steps.py: process {pid} has no thread {name!r}")


def is_asleep(thread):
    """Returns whether the thread sleeps in a system call. A thread that the debugger has stopped does not."""
    return Path(f"/proc/{thread}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def trap_is_pending(thread):
    """Returns whether the thread has a SIGTRAP that has not been delivered."""
    status = Path(f"/proc/{thread}/status").read_text()
    pending = next(line.split()[1] for line in status.splitlines() if line.startswith("SigPnd:"))
    return int(pending, 16) >> (signal.SIGTRAP - 1) & 1


def let_go(thread, stopped, pending):
    """Ends the tracing of a thread, which goes on with the signal that is pending."""
    if not stopped:
        ptrace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WALL)
        # A thread that is interrupted in a system call stops for that first. The trap of the step out of the call comes behind it, and
        # would end the process if nothing traced the thread any more.
        while trap_is_pending(thread):
            ptrace(PTRACE_CONT, thread)
            _, status = os.waitpid(thread, WALL)
            signalled = os.WSTOPSIG(status)
            pending = 0 if signalled == signal.SIGTRAP else signalled
    ptrace(PTRACE_DETACH, thread, pending)


def time_reader(pid):
    """Returns a function that says whether a thread of this process is about to read the time counter (rdtsc)."""
    memory = open(f"/proc/{pid}/mem", "rb", buffering=0)
    known = {}

    def reads_time(registers):
        at = registers[RIP]
        if at not in known:
            memory.seek(at)
            known[at] = memory.read(2) == b"\x0f\x31"
        return known[at]

    return reads_time


def walk(thread, may_sleep=lambda registers: False, reads_time=lambda registers: False):
    """Single-steps a thread: yields its registers before each instruction, until the caller stops.

    It also yields None, again and again, while the thread sleeps in an instruction of which `may_sleep` is true.
    An instruction of which `reads_time` is true reads the time counter. It gets a counter that grows by 1 with each
    instruction, as if the thread were not single-stepped: otherwise whatever the program decides by the length of
    short spans is decided wrongly."""
    registers = (ctypes.c_ulonglong * 27)()
    began, count = 0, 0
    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    os.waitpid(thread, WALL)
    pending, stopped = 0, True
    try:
        while True:
            ptrace(PTRACE_GETREGS, thread, ctypes.addressof(registers))
            yield registers
            polls = os.WNOHANG if may_sleep(registers) else 0
            timed = reads_time(registers)
            count += 1
            ptrace(PTRACE_SINGLESTEP, thread, pending)
            pending, stopped = 0, False
            found, status = os.waitpid(thread, WALL | polls)
            while not found:
                if is_asleep(thread):
                    yield None
                    time.sleep(0.0005)
                found, status = os.waitpid(thread, WALL | os.WNOHANG)
            if not os.WIFSTOPPED(status):
                sys.exit("steps.py: the thread has ended")
            stopped = True
            signalled = os.WSTOPSIG(status)
            pending = 0 if signalled == signal.SIGTRAP else signalled
            if timed and not pending:
                ptrace(PTRACE_GETREGS, thread, ctypes.addressof(registers))
                began = began or registers[RDX] << 32 | registers[RAX]
                registers[RDX], registers[RAX] = divmod(began + count, 1 << 32)
                ptrace(PTRACE_SETREGS, thread, ctypes.addressof(registers))
    finally:
        let_go(thread, stopped, pending)


def steps(pid, thread, sleeps):
    """Returns the numbers of instructions between one futex call and the next."""
    counts, count = [], 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory, contextlib.closing(walk(thread)) as instructions:
        for registers in instructions:
            if registers[RAX] == FUTEX:
                memory.seek(registers[RIP])
                if memory.read(2) == b"\x0f\x05":
                    counts.append(count)
                    count = 0
                    if len(counts) > sleeps:
                        break
            count += 1
    # The first count is dropped, because it does not begin at a sleep.
    return counts[1:]


def main():
    pid, name, sleeps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    counts = steps(pid, thread_of(pid, name), sleeps)
    print(statistics.mean(counts), max(counts))


if __name__ == "__main__":
    main()
