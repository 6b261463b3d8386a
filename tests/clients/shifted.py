#!/usr/bin/env python3
"""shifted.py SECONDS -- command: runs a command for which the clocks that count from the start of the computer began so much earlier.

It makes a time namespace, for which it needs the rights of root. Ends with 1 if the kernel refuses.
"""

import ctypes
import os
import sys

CLONE_NEWTIME = 0x80

if len(sys.argv) < 4 or sys.argv[2] != "--" or not sys.argv[1].isdigit():
    sys.exit("usage: shifted.py SECONDS -- command")
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWTIME):
    sys.exit(f"shifted.py: no time namespace: {os.strerror(ctypes.get_errno())}")
with open("/proc/self/timens_offsets", "w", encoding="ascii") as offsets:
    offsets.write("".join(f"{clock} {sys.argv[1]} 0\n" for clock in ("monotonic", "boottime")))
# This process enters the namespace that its children would be in.
if libc.setns(os.open("/proc/self/ns/time_for_children", os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWTIME):
    sys.exit(f"shifted.py: the time namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[3], sys.argv[3:])
