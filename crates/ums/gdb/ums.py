"""Workers of ums in gdb: in a live process or a core file, with or without debug information.

    (gdb) source ums.py             or found by itself, where auto-load may load from the program
    (gdb) ums workers               every worker: scheduler, state, what it waits for, user, request
    (gdb) ums bt 3                  the application's functions in the backtrace of number 3 of that list
    (gdb) ums bt                    of every worker that is not idle
    (gdb) ums bt full 3             with the functions of ums, too; also ums bt full
    (gdb) ums select 3              look around in it: bt, up, info locals; until
    (gdb) ums select none

Everything is found from one symbol, UMS_DEBUG (crates/ums/src/scheduler/debugger.rs says what is in it).
Nothing is written to the process: the frames of a fiber that does not run are shown by an unwinder that
gives gdb the fiber's registers as those of the caller of frame 0. A worker with its own context is saved
in the same way.
"""

import re
import struct

import gdb
import gdb.unwinder

STATES = ["NEW", "RUNNING", "RUNNABLE", "WAITING", "IDLE", "PREEMPTIVE", "RETIRED"]
FIELDS = (
    "reasons_count made_before in_use home inbox_number worker reason resource blocker state request user thread "
    "stack_low stack_top saved_at"
).split()
# Where a switch leaves what, from the saved stack pointer; and how much it pushes.
SAVED = {
    "x86-64": ({"rip": 0, "rbx": 8, "rbp": 16}, 24, "rsp", "rip"),
    "aarch64": ({"x19": 0, "x29": 8, "pc": 16}, 32, "sp", "pc"),
}
FRAMES_MAX = 100


def memory(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def number(address, form):
    return struct.unpack("<" + form, memory(address, struct.calcsize(form)))[0]


def saved_by_a_switch():
    arch = gdb.selected_inferior().architecture().name()
    for name, how in SAVED.items():
        if name in arch:
            return how
    raise gdb.GdbError("ums: fibers of %s are not known here" % arch)


def find_descriptor():
    try:
        text = gdb.execute("info address UMS_DEBUG", to_string=True)
        found = re.search(r"0x[0-9a-f]+", text)
        if found:
            return int(found.group(), 16)
    except gdb.error:
        pass
    # A program without symbols still has sections.
    inferior = gdb.selected_inferior()
    for line in gdb.execute("info files", to_string=True).splitlines():
        section = re.search(r"(0x[0-9a-f]+) - (0x[0-9a-f]+) is (\.data\S*)", line)
        if section:
            low, high = int(section.group(1), 16), int(section.group(2), 16)
            try:
                at = inferior.search_memory(low, high - low, b"UMSDEBUG")
            except gdb.MemoryError:
                continue
            if at:
                return at
    raise gdb.GdbError("ums: no program that uses ums, or it is not running yet")


class Worker:
    """One worker, as it is now."""

    def __init__(self, waiter, d):
        at = lambda field, form: number(waiter + d[field], form)
        self.waiter = waiter
        self.id = at("worker", "I")
        self.scheduler = number(at("home", "Q") + d["inbox_number"], "I")
        state = at("state", "B")
        self.state = STATES[state] if state < len(STATES) else str(state)
        self.reason = ""
        if self.state in ("WAITING", "PREEMPTIVE"):
            reason = at("reason", "H")
            self.reason = "reason %d" % reason
            if reason < d["reasons_count"]:
                self.reason = memory(d["reasons"] + 32 * reason, 32).rstrip(b"\0").decode()
        waits = self.state == "WAITING"
        self.resource = at("resource", "Q") if waits else 0
        self.blocker = at("blocker", "Q") if waits else 0
        self.request, self.user = at("request", "Q"), at("user", "Q")
        self.thread = at("thread", "I")
        self.low, self.top = at("stack_low", "Q"), at("stack_top", "Q")
        self.saved_at = at("saved_at", "Q")

    def name(self):
        return "%d/%d" % (self.scheduler, self.id)

    def made_of(self):
        # A thread has no number for a moment after it was made.
        if self.saved_at == 0:
            return "thread %d" % self.thread
        return "own context %d" % self.thread if self.thread else "fiber"

    def saved(self):
        """The stack pointer of a fiber that is suspended, or of an own context that is saved, or None."""
        if self.saved_at == 0:
            return None
        at = number(self.saved_at, "Q")
        return at if self.low <= at < self.top else None

    def gdb_thread(self):
        """The thread that it runs on now, if it does."""
        threads = gdb.selected_inferior().threads()
        own = next((thread for thread in threads if thread.ptid[1] == self.thread), None)
        if self.saved_at == 0:
            return own
        for thread in threads:
            # While an own context runs on a host, its own kernel thread sleeps on the same stack.
            if thread == own:
                continue
            with Selection():
                thread.switch()
                sp = int(gdb.newest_frame().read_register(saved_by_a_switch()[2]))
                if self.low <= sp < self.top:
                    return thread
        return own


def workers():
    """Every worker of the process, by scheduler and number."""
    at = find_descriptor()
    if memory(at, 8) != b"UMSDEBUG":
        raise gdb.GdbError("ums: the program is not running yet")
    version = number(at + 8, "I")
    if version != 1:
        raise gdb.GdbError("ums: this script is for version 1 of the descriptor, not %d" % version)
    d = {field: number(at + 32 + 4 * n, "I") for n, field in enumerate(FIELDS)}
    d["reasons"] = number(at + 24, "Q")
    waiter = number(number(at + 16, "Q"), "Q")
    found = []
    while waiter:
        used = number(waiter + d["in_use"], "B") and number(waiter + d["home"], "Q")
        # Number 0 is the standby, which carries out nothing.
        if used and number(waiter + d["worker"], "I"):
            found.append(Worker(waiter, d))
        waiter = number(waiter + d["made_before"], "Q")
    return sorted(found, key=lambda w: (w.scheduler, w.id, w.waiter))


class Selection:
    """The thread and frame that the user has selected: as before afterwards."""

    def __enter__(self):
        self.thread = gdb.selected_thread()
        try:
            self.frame = gdb.selected_frame()
        except gdb.error:
            self.frame = None

    def __exit__(self, *_):
        if self.thread is not None and self.thread.is_valid():
            self.thread.switch()
        if self.frame is not None and self.frame.is_valid():
            self.frame.select()


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class Fibers(gdb.unwinder.Unwinder):
    """Makes a suspended fiber the caller of the innermost frame of the selected thread."""

    def __init__(self):
        super().__init__("ums fibers")
        self.saved = None
        self.innermost = None

    def __call__(self, pending):
        if self.saved is None:
            return None
        registers, pushed, sp, pc = saved_by_a_switch()
        if (int(pending.read_register(sp)), int(pending.read_register(pc))) != self.innermost:
            return None
        typed = lambda value, register: gdb.Value(value).cast(pending.read_register(register).type)
        # As if that frame stood right below the fiber's frames: gdb wants addresses to rise.
        below = FrameId(typed(self.saved - 16, sp), pending.read_register(pc))
        info = pending.create_unwind_info(below)
        for register, offset in registers.items():
            info.add_saved_register(register, typed(number(self.saved + offset, "Q"), register))
        info.add_saved_register(sp, typed(self.saved + pushed, sp))
        return info

    def show(self, saved):
        """Shows the fiber with this saved stack pointer from now on; None for none. Returns its innermost frame."""
        self.saved = None
        gdb.invalidate_cached_frames()
        if saved is None:
            return None
        _, pushed, sp, pc = saved_by_a_switch()
        place = lambda frame: (int(frame.read_register(sp)), int(frame.read_register(pc)))
        self.innermost = place(gdb.newest_frame())
        self.saved = saved
        gdb.invalidate_cached_frames()
        frame = gdb.newest_frame()
        # Functions that were inlined share the innermost frame.
        while frame is not None and place(frame)[0] != saved + pushed:
            frame = frame.older()
        return frame


fibers = Fibers()
gdb.unwinder.register_unwinder(None, fibers, replace=True)


def frame_text(frame):
    name = frame.name() or "??"
    sal = frame.find_sal()
    text = "0x%x in %s" % (frame.pc(), name)
    if sal is not None and sal.symtab is not None:
        text += " at %s:%d" % (sal.symtab.filename, sal.line)
    return text


# Which functions are the library's or the system's. A name without a path is the C library's.
MACHINE = re.compile(r"(ums|fiber|corosensei|core|std|alloc|rustix|io_uring)::|[^:]*$")
PARKS = re.compile(r"(ums::scheduler|fiber|corosensei)::")
# How the name of a fiber's first frame begins: on x86-64, where its hash follows, and elsewhere.
FIBER_STARTS = ("fiber::switch::direct::start", "stack_init_trampoline")
GLUE = re.compile(r"(ums::(scheduler|os::entry|os::panics|task|node::serve|node::user)|core|std)::|__rust")


def of_the_application(frames):
    """The frames without those in which ums parked the worker, and those in which it called the request."""
    names = [(frame.name() or "").lstrip("<") for frame in frames]
    end = next((n for n, name in enumerate(names) if "worker_main" in name), len(names))
    # From the outside first: what the application calls may be a function of ums, too.
    while end > 0 and GLUE.match(names[end - 1]):
        end -= 1
    first = 0
    for n in range(end):
        if not MACHINE.match(names[n]):
            break
        if PARKS.match(names[n]):
            first = n + 1
    return frames[first:end]


def all_frames(frame):
    frames = []
    # Beyond a fiber's first frame stands the code that resumed it last.
    while frame is not None and frame.is_valid() and not (frame.name() or "").startswith(FIBER_STARTS):
        frames.append(frame)
        if len(frames) == FRAMES_MAX:
            break
        try:
            frame = frame.older()
        except gdb.error as error:
            print("  " + str(error))
            break
    return frames


def print_frames(frame, full):
    frames = all_frames(frame)
    shown = of_the_application(frames)
    for n, frame in enumerate(frames):
        if full or frame in shown:
            print("  #%-3d%s" % (n, frame_text(frame)))


def print_worker(n, worker, full):
    print("%d: %s" % (n, " ".join(text for text in describe(worker) if text)))
    with Selection():
        before = fibers.saved
        try:
            saved = worker.saved()
            if saved is not None:
                print_frames(fibers.show(saved), full)
                return
            thread = worker.gdb_thread()
            if thread is None:
                print("  (its stack was not found)")
                return
            fibers.show(None)
            thread.switch()
            print_frames(gdb.newest_frame(), full)
        finally:
            fibers.show(before)


def describe(w):
    waits = w.reason
    if w.resource:
        waits += " of 0x%x" % w.resource
    return [
        w.name(),
        w.made_of(),
        w.state,
        waits,
        "user %d" % w.user if w.user else "",
        "request %d" % w.request if w.request else "",
    ]


def chosen(all_workers, text):
    try:
        return all_workers[int(text)]
    except (ValueError, IndexError):
        raise gdb.GdbError('ums: "%s" is not a number in the list of "ums workers"' % text)


class Ums(gdb.Command):
    """Workers of ums: ums workers, ums bt [full] [N], ums select N|none."""

    def __init__(self):
        super().__init__("ums", gdb.COMMAND_STACK, prefix=True)


class UmsWorkers(gdb.Command):
    """List every worker: number, scheduler/worker, kind, state, wait, user, request, and the blocker."""

    def __init__(self):
        super().__init__("ums workers", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        found = workers()
        names = {w.waiter: w.name() for w in found}
        lines = [["", "worker", "made of", "state", "waits for", "user", "request"]]
        for n, w in enumerate(found):
            cells = describe(w)
            if w.blocker:
                cells[3] += " held by %s" % names.get(w.blocker, "a plain thread")
            lines.append([str(n)] + cells)
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


class UmsBt(gdb.Command):
    """Print the backtrace of a worker, by its number in "ums workers", or of all that are not idle: ums bt [full] [N]."""

    def __init__(self):
        super().__init__("ums bt", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        found = workers()
        words = argument.split()
        full = words[:1] == ["full"]
        words = words[full:]
        if words in ([], ["all"]):
            for n, worker in enumerate(found):
                if worker.state != "IDLE":
                    print_worker(n, worker, full)
            return
        worker = chosen(found, " ".join(words))
        print_worker(int(words[0]), worker, full)


class UmsSelect(gdb.Command):
    """Look around in a worker: "bt", "up" and "info locals" show it until "ums select none"."""

    def __init__(self):
        super().__init__("ums select", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        fibers.show(None)
        if argument.strip() in ("", "none"):
            return
        worker = chosen(workers(), argument)
        saved = worker.saved()
        if saved is not None:
            frame = fibers.show(saved)
            if frame is not None:
                frame.select()
        else:
            thread = worker.gdb_thread()
            if thread is None:
                raise gdb.GdbError("ums: its stack was not found")
            thread.switch()
        print(" ".join(text for text in describe(worker) if text))


Ums()
UmsWorkers()
UmsBt()
UmsSelect()
