#!/usr/bin/env python3
"""The gdb script, crates/ums/gdb/ums.py: workers and their backtraces, of a live process and of a core file, with
workers of each kind, with debug information and without.

Needs gdb, and PARKED: the program of crates/ums/examples/parked.rs. If gdb is missing, it prints that and exits with 0.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "../../crates/ums/gdb/ums.py")
PARKED = os.path.abspath(os.environ.get("PARKED", os.path.join(HERE, "../../target/debug/examples/parked")))
checks = 0


def check(so, what, text=""):
    global checks
    if not so:
        lines = "\n".join(line[:200] for line in text.splitlines()[-150:])
        sys.exit(f"gdb.py: FAILED: {what}\n{lines}")
    checks += 1


def gdb(*args):
    """Returns the output of gdb, which runs without the user's settings, without the network and without questions."""
    env = dict(os.environ, DEBUGINFOD_URLS="", LC_ALL="C")
    command = ["gdb", "--batch", "-nx", "-iex", "set auto-load off", *args]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def ums(*commands):
    """Returns the output of each of the script's commands."""
    parts = [f"source {SCRIPT}"]
    for command in commands:
        parts += ["echo \\n== next ==\\n", command]
    return [part for command in parts for part in ("-ex", command)]


def answers(text):
    return text.split("== next ==\n")[1:] or [text]


class Parked:
    """A process whose workers are all parked. `folder` is where its core file would be."""

    def __init__(self, program, kind, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [program, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2))
        line = self.process.stdout.readline()
        check(line == "ready\n", "the program says that it is ready", line)
        self.pid = str(self.process.pid)

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        check(code == 0, f"the program goes on after gdb, and ends well: {code}")

    def crash(self):
        """Returns the kernel's core file, or None if core files go elsewhere. gdb's own gcore is not used, because it fails at guard pages."""
        self.process.send_signal(signal.SIGABRT)
        self.process.wait(timeout=120)
        found = [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.startswith("core")]
        return found[0] if found else None


def sections(text):
    """Returns the backtraces, by their numbers in the text."""
    parts = re.split(r"^(\d+): (?=\d+/\d+ )", text, flags=re.M)[1:]
    return dict(zip((int(n) for n in parts[::2]), parts[1::2]))


def examine(run, kind, named):
    """Checks one process or core file: `run` returns gdb's output for each of some commands."""
    made_of = {"fiber": "fiber", "thread": r"thread \d+", "context": r"own context \d+"}[kind]
    # The order is that of schedulers and workers, so the worker of scheduler 0 comes first.
    text = run("ums workers", "ums bt full", "ums bt 0", "ums select 0", "bt 40", "ums select none", "ums bt 99")
    check(len(text) == 7, "gdb answers each command", "\n".join(text))
    table, full, one, _, looked, _, wrong = text
    rows = [line for line in table.splitlines() if re.match(rf"\d+ +\d+/\d+ +{made_of} ", line)]
    check(len(rows) == 3, f"three {kind} workers are listed", table)
    holder = next((row for row in rows if " WAITING  SLEEP" in row), "")
    booker = next((row for row in rows if " WAITING  MUTEX of 0x" in row), "")
    computer = next((row for row in rows if " RUNNING " in row), "")
    check(holder and booker and computer, "one sleeps, one waits for it, one computes", table)
    check(f" held by {holder.split()[1]}" in booker, "the one in the way is named", table)
    check(re.search(r" user \d+ +request \d+", booker), "the user and the request are named", table)
    check("not a number in the list" in wrong, "a wrong number is told so", wrong)
    if not named:
        return
    stacks = sections(full)
    of = lambda row: stacks.get(int(row.split()[0]), "")
    for row, functions in (
        (holder, ["sleeps_for_an_hour", "holds_the_ledger", "worker_main"]),
        (booker, ["books", "worker_main"]),
        (computer, ["computes", "worker_main"]),
    ):
        places = [of(row).find(function) for function in functions]
        check(-1 not in places and places == sorted(places), f"{functions} from the inside to the root", full)
    check("previous frame" not in full and "corrupt" not in full, "no backtrace breaks", full)
    check(kind != "fiber" or "run_standby" not in full, "a fiber's frames are not followed by those of the root loop", full)
    check(holder.split()[0] == "0" and list(sections(one)) == [0], "one backtrace alone", table + one)
    check("parked::sleeps_for_an_hour" in one, "with the application's functions", one)
    check(not re.search(r" in <*(ums::scheduler|std|core)::", one), "and without the library's", one)
    check("sleeps_for_an_hour" in looked, "a worker can be selected", looked)


def strip(program, to, how):
    subprocess.run(["objcopy", how, program, to], check=True)
    return to


def main():
    if shutil.which("gdb") is None:
        print("gdb.py: skipped: there is no gdb")
        return
    if "yes" not in gdb("-ex", "python print('yes')"):
        print("gdb.py: skipped: this gdb has no Python")
        return
    if not os.path.exists(PARKED):
        sys.exit(f"gdb.py: no {PARKED}: cargo build -p ums --example parked")
    with tempfile.TemporaryDirectory() as folder:
        programs = [("as built", PARKED, True)]
        if shutil.which("objcopy"):
            programs.append(("without debug information", strip(PARKED, f"{folder}/lean", "--strip-debug"), True))
            programs.append(("stripped", strip(PARKED, f"{folder}/bare", "--strip-all"), False))
        refused = subprocess.run([PARKED, "context"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        kinds = ["thread", "fiber"] + ["context"] * (refused.returncode == 0)
        if refused.returncode != 0:
            print(f"gdb.py: own contexts: skipped: {refused.stderr.strip()}")
        for what, program, named in programs:
            for kind in kinds:
                print(f"gdb.py: {kind} workers, {what}")
                parked = Parked(program, kind, folder)
                live = lambda *commands: answers(gdb("-p", parked.pid, *ums(*commands)))
                if programs[0][1] == program and "ptrace: Operation not permitted" in live("ums workers")[0]:
                    parked.end()
                    print("gdb.py: skipped: gdb may not attach here")
                    return
                examine(live, kind, named)
                parked.end()
                core = Parked(program, kind, folder).crash()
                if core is None:
                    print("gdb.py: core files: skipped: the system keeps none here")
                    continue
                examine(lambda *commands: answers(gdb(program, core, *ums(*commands))), kind, named)
                os.remove(core)
        nothing = gdb("/bin/true", *ums("ums workers"))
        check("no program that uses ums" in nothing, "a program without ums is told so", nothing)
    print(f"gdb.py: {checks} checks passed")


if __name__ == "__main__":
    main()
