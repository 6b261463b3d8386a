#!/usr/bin/env python3
"""Which SQL works: runs the statements of tests/statements, and compares the answers with those of PostgreSQL 15.

    statements.py                  checks; fails if a statement has become worse, or if verdicts.txt or docs/sql.md is stale
    statements.py --write          writes those two files
    statements.py --show VERDICT   prints the statements with this verdict, PostgreSQL's answer and the server's
    statements.py --recorded       asks PostgreSQL 15, if it is installed; fails if its answers are not the recorded ones
    statements.py --record         writes PostgreSQL's answers (tests/statements/postgresql-15)

The last three take names of subjects, and are then for these subjects only. Options after `--`, such as `-- --workers fiber`, are for
`ums serve` ($UMS_BIN). Each group of statements has a server of its own.

| verdict | |
|---|---|
| right | the same answer, or an error of the same class |
| different | another answer, for a reason of the list REASONS that a person has written into verdicts.txt |
| refused | an error that says that the server does not have this (REFUSALS), where PostgreSQL answers |
| mistaken | another error, where PostgreSQL answers or has an error of another class |
| wrong | another answer, in silence |

A statement that names what a refused statement of its group should have changed has the verdict of that one (`after`), if that may
explain its own answer (FOLLOWS); so has one in another state of the transaction, and one that names what such a statement has changed. A query also counts as wrong if the server describes
other columns for it when it is prepared (`description`).

To accept a difference, write `different REASON` in place of `wrong ...` or `mistaken ...` in verdicts.txt, and run `--write`. That adds a digest of the
accepted answer, so that yet another answer is wrong again.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("PATIENCE", "30")
from answers import Session, read_groups
from owned import Server, free_ports
from wire import Conn, Refused, wait_for

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/statements"
RECORDED = FOLDER / "postgresql-15"
VERDICTS = FOLDER / "verdicts.txt"
PAGE = ROOT / "docs/sql.md"
BINARIES = Path("/usr/lib/postgresql/15/bin")
# In memory, because the servers need not wait for a disk here.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

ORDER = ["right", "different", "refused", "mistaken", "wrong"]
# PostgreSQL's own codes for what a server does not have: a feature, a function, a type or another object.
REFUSALS = ["0A", "42883", "42704"]
REASONS = {
    "plan": "EXPLAIN shows how SQLite carries the statement out.",
    "name": "The answer names the server, its version or its files.",
    "storage": "The answer depends on how the data is stored: sizes of tables, physical places and the order of rows, numbers of objects, "
    "the blanks at the end of a char(n).",
    "double": "A numeric is computed as a double: it has 15 exact digits, its quotients and functions have no more, and the zeros behind "
    "the last digit are shown where the type says how many digits there are. A double has no negative zero, and the last digit of a "
    "function or a sum may differ.",
    "serial": "A serial number is one more than the greatest that the table has had, not the next one of a sequence, and one that a "
    "transaction has taken is given again if that is rolled back.",
    "C": "Upper and lower case of letters that are not ASCII are different letters, as in a database of PostgreSQL with the locale C.",
    "more": "The server also has this function or spelling, which is SQLite's, where PostgreSQL has an error.",
    "ahead": "The rows of a portal are computed when it is first executed, and their errors come then.",
    "one database": "The server has one database and one schema.",
}
# What a refused statement may cause in later ones: other rows, and errors about constraints, transactions and missing objects.
FOLLOWS = re.compile(
    r"wrong (rows|tag|transaction state|number of results|, )+|(mistaken |wrong no error )(22|23|25|2B|3B|34|26|42P01|42703|42P05|42P07|42P03).*"
)
PROBLEMS_SHOWN = 40
MARK = "<!-- What follows is written by `tests/clients/statements.py --write`. -->\n"


# --- Asking the servers ---


class PostgreSql:
    """A PostgreSQL 15 of its own, in an empty folder, as a context. It refuses to run as root, and is then run as `postgres`."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(dir=MEMORY)
        self.port = free_ports(1)[0]
        as_user = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
            as_user |= {"user": "postgres", "group": "postgres", "extra_groups": []}
        data = f"{self.folder}/data"
        initdb = [BINARIES / "initdb", "-N", "-D", data, "-U", "ums", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        subprocess.run(initdb, check=True, **as_user)
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "timezone": "UTC",
                    "autovacuum": "off", "log_min_messages": "fatal"}  # fmt: skip
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen([BINARIES / "postgres", "-D", data, *options], stderr=subprocess.DEVNULL, **as_user)
        wait_for("PostgreSQL", self.answers, True)
        return self

    def answers(self):
        try:
            Conn(self.port, database="postgres").close()
        except (OSError, Refused):
            return False
        return True

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self.folder)


def ask_postgresql(groups):
    """Returns PostgreSQL's answers to each group, in order. The set-up of each must succeed."""
    answers = []
    with PostgreSql() as server:
        for group in groups:
            owner = Conn(server.port, database="postgres")
            owner.query("drop schema if exists public cascade")
            owner.query("create schema public")
            owner.close()
            session = Session(server.port, database="postgres")
            for step in group.setup:
                answer = session.answer(step)
                assert "error" not in answer["results"][-1], f"{group.subject}: {group.title}: {step.text}: {answer}"
            answers.append([bare(session.answer(step)) for step in group.tries])
            session.close()
    return answers


def bare(answer):
    """Returns an answer without texts of errors."""
    results = [{name: value for name, value in result.items() if name != "message"} for result in answer["results"]]
    return {"results": results, "status": answer["status"]}


def ask_ums(group, options, expected):
    """Returns for each statement its verdict, what that is based on, and the answer."""
    found = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, Server(f"{folder}/test.db", "--no-stats-socket", *options) as server:
        session = Session(server.port)
        behind = Behind()
        for step in group.setup:
            behind.note(step, refusal(session.answer(step)))
        for step, right in zip(group.tries, expected, strict=True):
            described = session.described(step) if step.is_query and session.status == "I" else None
            answer = session.answer(step)
            verdict, detail = judge(step, right, answer, described)
            cause = behind.cause(step)
            if verdict in ("refused", "mistaken") and not step.only_reads and succeeds(right):
                behind.note(step, (verdict, detail))
            if cause and not step.only_reads and not behind.state:
                behind.note(step, cause)
            if cause and FOLLOWS.fullmatch(f"{verdict} {detail}"):
                verdict, detail = cause[0], f"after {cause[1]}"
            behind.state = right["status"] != answer["status"] and (behind.state or (verdict, detail.removeprefix("after ")))
            found.append([verdict, detail, answer])
        session.close()
    return found


class Behind:
    """In what the server is behind PostgreSQL, because it has refused statements of the group: objects by their names, settings (whose
    name is the empty text), and the state of the transaction."""

    def __init__(self):
        self.names, self.state = {}, None

    def note(self, step, cause):
        for name in step.changes() if cause else ():
            self.names.setdefault(name, cause)

    def cause(self, step):
        """Returns the verdict on the statement that this one depends on, if that was refused."""
        causes = (self.names.get(word) for word in ["", *step.words()])
        return self.state or next((cause for cause in causes if cause), None)


def succeeds(answer):
    return not any("error" in result for result in answer["results"])


def refusal(answer):
    """Returns the verdict on an error where PostgreSQL answers."""
    codes = [result["error"] for result in answer["results"] if "error" in result]
    if not codes:
        return None
    return ("refused" if any(codes[0].startswith(code) for code in REFUSALS) else "mistaken"), codes[0]


def judge(step, right, answer, described):
    """Returns the verdict on an answer, and what it is based on."""
    codes = [[result["error"] for result in one["results"] if "error" in result] for one in (right, answer)]
    if [code[:2] for code in codes[0]] == [code[:2] for code in codes[1]]:
        differing = differences(step, right, answer, described)
        return ("wrong", differing) if differing else ("right", "")
    if codes[1]:
        return refusal(answer)
    return "wrong", f"no error {codes[0][0]}"


def differences(step, right, answer, described):
    """Returns what differs between two answers with the same errors."""
    found = []
    if len(right["results"]) != len(answer["results"]):
        found.append("number of results")
    for one, other in zip(right["results"], answer["results"]):
        columns = [result.get("columns", []) for result in (one, other)]
        for index, name in enumerate(["names", "types"]):
            if [column[index] for column in columns[0]] != [column[index] for column in columns[1]]:
                found.append(name)
        if one.get("parameters") != other.get("parameters"):
            found.append("parameters")
        rows = [result.get("rows", []) for result in (one, other)]
        if step.is_unordered:
            rows = [sorted(some, key=str) for some in rows]
        if rows[0] != rows[1]:
            found.append("rows")
        if one.get("tag") != other.get("tag"):
            found.append("tag")
    if described is not None and "columns" in right["results"][0] and described != right["results"][0]["columns"]:
        found.append("description")
    if right["status"] != answer["status"]:
        found.append("transaction state")
    return ", ".join(dict.fromkeys(found))


def digest(answer):
    return hashlib.sha256(json.dumps(bare(answer), sort_keys=True).encode()).hexdigest()[:8]


# --- The files ---


def subjects(only):
    paths = sorted(FOLDER.glob("*.sql"))
    return [group for path in paths if not only or path.stem in only for group in read_groups(path)]


def recorded(groups):
    """Returns the recorded answers to each group; None for statements that have changed since."""
    found = {}
    for path in RECORDED.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found[path.stem, one["group"], one["statement"]] = {"results": one["results"], "status": one["status"]}
    return [[found.get((group.subject, group.title, key)) for key in group.keys()] for group in groups]


def record(groups, answers):
    RECORDED.mkdir(exist_ok=True)
    texts = {group.subject: [] for group in groups}
    for group, some in zip(groups, answers, strict=True):
        for key, answer in zip(group.keys(), some, strict=True):
            texts[group.subject].append(json.dumps({"group": group.title, "statement": key, **answer}, ensure_ascii=False))
    for subject, lines in texts.items():
        (RECORDED / f"{subject}.jsonl").write_text("\n".join(lines) + "\n")


def known_verdicts():
    """Returns the verdict and its detail of each statement that was not right."""
    found, place = {}, None
    for line in VERDICTS.read_text().splitlines() if VERDICTS.exists() else []:
        if line.startswith("["):
            place = tuple(line[1:-1].split(": ", 1))
        elif line and not line.startswith("#"):
            left, statement = line.split(" | ", 1)
            verdict, _, detail = left.partition(" ")
            found[*place, statement] = (verdict, detail)
    return found


def verdicts_text(judged):
    lines = [
        "# The verdicts on the statements that are not right, as `tests/clients/statements.py` explains them.",
        "# A verdict may become better; then write this file anew, by the option --write.",
    ]
    for group, found in judged:
        some = [(key, one) for key, one in zip(group.keys(), found, strict=True) if one[0] != "right"]
        lines += ["", f"[{group.subject}: {group.title}]"] if some else []
        lines += [f"{verdict} {detail} | {key}" for key, (verdict, detail, _) in some]
    return "\n".join(lines) + "\n"


def accept(judged, known):
    """Gives wrong answers the reasons that verdicts.txt has for them. Returns what has become worse."""
    worse = []
    for group, found in judged:
        for index, key in enumerate(group.keys()):
            verdict, detail, answer = found[index]
            before, reason = known.get((group.subject, group.title, key), ("right", ""))
            if verdict in ("wrong", "mistaken") and before == "different":
                name, _, accepted = reason.partition(" #")
                assert name in REASONS, f"verdicts.txt: {name} is no reason: {', '.join(REASONS)}"
                if accepted in ("", digest(answer)):
                    verdict, detail = found[index][:2] = "different", f"{name} #{digest(answer)}"
            if ORDER.index(verdict) > ORDER.index(before):
                worse.append(f"{group.subject}: {group.title}: {verdict} ({detail}), not {before}: {key}")
    return worse


# --- The page ---


def page_text(judged):
    intro = PAGE.read_text().split(MARK)[0] if PAGE.exists() else "# SQL\n\n"
    names = list(dict.fromkeys(group.subject for group, _ in judged))
    lines = ["", "## In figures", "", "| subject | statements | " + " | ".join(ORDER) + " |", "|---|---|" + "---|" * len(ORDER)]
    for name in [*names, None]:
        count = Counter(one[0] for group, found in judged if name in (group.subject, None) for one in found)
        link = f"[{title(name)}](#{name})" if name else "all"
        lines.append(f"| {link} | {count.total()} | " + " | ".join(share(count[verdict], count.total()) for verdict in ORDER) + " |")
    for name in names:
        lines += ["", f"## {title(name)}", "", f"{purpose(name)} [The statements](../tests/statements/{name}.sql)", ""]
        for group, found in judged:
            if group.subject == name:
                lines += group_lines(group, found)
    used = {one[1].split(" #")[0] for _, found in judged for one in found if one[0] == "different"}
    lines += ["", "## Reasons for differences", ""] if used else []
    lines += [f"* {name}: {reason}" for name, reason in REASONS.items() if name in used]
    return intro + MARK + "\n".join(lines) + "\n"


def title(name):
    return name.replace("-", " ").capitalize()


def purpose(name):
    """Returns what a subject is about, which is the comment on the first line of its file."""
    return (FOLDER / f"{name}.sql").read_text().split("\n")[0].removeprefix("-- ")


def share(count, of):
    return f"{count} ({100 * count / of:.0f} %)" if count else "0"


def group_lines(group, found):
    """Returns the page's lines for a group: how many are right, and each other statement."""
    good = sum(one[0] == "right" for one in found)
    lines = [f"* **{group.title}**: {good} of {len(found)} right"]
    for step, (verdict, detail, _) in zip(group.tries, found, strict=True):
        if verdict != "right":
            text = " ".join(step.text.split())
            text = text if len(text) <= 100 else text[:97] + "..."
            fence = "``" if "`" in text else "`"
            lines.append(f"  * {verdict} ({detail.split(' #')[0]}): {fence}{text}{fence}")
    return lines


# --- The commands ---


def show(judged, expected, verdict):
    for (group, found), rights in zip(judged, expected, strict=True):
        for step, one, right in zip(group.tries, found, rights, strict=True):
            if one[0] == verdict:
                print(f"{group.subject}: {group.title}: {one[1]}\n  {step.text}\n    {brief(right)}\n    {brief(one[2])}")


def brief(answer):
    results = [{name: value for name, value in result.items() if name != "tag" or len(result) == 1} for result in answer["results"]]
    return f"{answer['status']} {json.dumps(results, ensure_ascii=False)[:300]}"


def stale(judged):
    texts = ((VERDICTS, verdicts_text(judged)), (PAGE, page_text(judged)))
    return [f"{path.relative_to(ROOT)} is stale: run tests/clients/statements.py --write"
            for path, text in texts if not path.exists() or path.read_text() != text]  # fmt: skip


def compare_recorded(groups, expected):
    """Returns the statements to which PostgreSQL has another answer than the recorded one."""
    if not BINARIES.exists():
        print("statements.py: PostgreSQL 15 is not installed, so the recorded answers are not compared")
        return []
    found = zip(groups, expected, ask_postgresql(groups), strict=True)
    return [f"PostgreSQL's answer is not the recorded one (--record): {group.subject}: {group.title}: {key}"
            for group, before, after in found for key, one, other in zip(group.keys(), before, after, strict=True) if one != other]  # fmt: skip


def finish(problems):
    for problem in problems[:PROBLEMS_SHOWN]:
        print(problem, file=sys.stderr)
    if len(problems) > PROBLEMS_SHOWN:
        print(f"and {len(problems) - PROBLEMS_SHOWN} more", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*")
    for option in ("--write", "--recorded", "--record"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--show", choices=ORDER)
    words = sys.argv[1:]
    mark = words.index("--") if "--" in words else len(words)
    arguments, options = parser.parse_args(words[:mark]), words[mark + 1 :]
    begin = time.monotonic()
    groups = subjects(arguments.subjects)
    if arguments.record:
        return record(groups, ask_postgresql(groups))
    expected = recorded(groups)
    missing = [key for group, some in zip(groups, expected) for key, one in zip(group.keys(), some) if one is None]
    if missing:
        sys.exit(f"statements.py: no recorded answer (--record) to {len(missing)} statements, such as: {missing[0]}")
    if arguments.recorded:
        problems = compare_recorded(groups, expected)
        finish(problems)
        sys.exit(1 if problems else 0)
    judged = [(group, ask_ums(group, options, some)) for group, some in zip(groups, expected)]
    problems = accept(judged, known_verdicts())
    if arguments.show:
        return show(judged, expected, arguments.show)
    if arguments.write:
        VERDICTS.write_text(verdicts_text(judged))
        PAGE.write_text(page_text(judged))
    else:
        problems += stale(judged)
    finish(problems)
    count = Counter(one[0] for _, found in judged for one in found)
    print(f"statements.py: {count.total()} statements in {time.monotonic() - begin:.0f} s: " + ", ".join(
        f"{share(count[verdict], count.total())} {verdict}" for verdict in ORDER))  # fmt: skip
    sys.exit(1 if problems and not arguments.write else 0)


if __name__ == "__main__":
    main()
