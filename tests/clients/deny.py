#!/usr/bin/env python3
"""deny.py CALL[,CALL...] -- command: runs a command to which the kernel refuses some system calls, with EPERM. For x86-64.

The filter is inherited by everything that the command starts, and cannot be removed.
"""

import ctypes
import os
import struct
import sys

CALLS = {"io_uring_setup": 425, "io_uring_enter": 426, "membarrier": 324, "sched_setaffinity": 203, "timerfd_create": 283, "perf_event_open": 298, "sigaltstack": 131}
EPERM = 1
ALLOW, ERRNO = 0x7FFF0000, 0x00050000 | EPERM
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def instruction(code, true, false, value):
    return struct.pack("<HBBI", code, true, false, value)


def deny(numbers):
    program = instruction(0x20, 0, 0, 0)  # The number of the call.
    for number in numbers:
        program += instruction(0x15, 0, 1, number) + instruction(0x06, 0, 0, ERRNO)
    program += instruction(0x06, 0, 0, ALLOW)
    filter = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(filter))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)]:
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if len(sys.argv) < 4 or sys.argv[2] != "--" or not set(sys.argv[1].split(",")) <= set(CALLS):
    sys.exit(f"usage: deny.py CALL[,CALL...] -- command; calls: {', '.join(CALLS)}")
deny([CALLS[name] for name in sys.argv[1].split(",")])
os.execvp(sys.argv[3], sys.argv[3:])
