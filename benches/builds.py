#!/usr/bin/env python3
"""What a small program costs to build with `ums`, beside tokio and may.

builds.py [--rounds N] [--release] [NAME..]: makes a package for each library, builds each from nothing, in turn, and prints a
table: processor seconds (the median of the rounds), the size of the program, and how many crates were compiled. The libraries
come from the registry, in the newest versions; `ums` comes from this clone. Builds are not measured by the clock, because other
programs may run meanwhile.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
UMS = f'path = "{ROOT}/crates/ums"'
HELLO = """fn main() {
    let node = ums::Node::builder().build().unwrap();
    node.run(|| ums::spawn(|| println!("hello")).join().unwrap());
}
"""
PROGRAMS = {
    "ums": (
        f"ums = {{ {UMS} }}",
        HELLO,
    ),
    "ums, no features": (
        f"ums = {{ {UMS}, default-features = false }}",
        HELLO,
    ),
    "tokio, full": (
        'tokio = { version = "1", features = ["full"] }',
        '#[tokio::main]\nasync fn main() {\n    tokio::spawn(async { println!("hello") }).await.unwrap();\n}\n',
    ),
    "tokio, rt net time": (
        'tokio = { version = "1", features = ["rt", "net", "time"] }',
        "fn main() {\n    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();\n"
        '    runtime.block_on(async { tokio::spawn(async { println!("hello") }).await.unwrap() });\n}\n',
    ),
    "may": (
        'may = "0.3"',
        'fn main() {\n    may::go!(|| println!("hello")).join().unwrap();\n}\n',
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--release", action="store_true", help="build with optimization")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(PROGRAMS)}")
    options = parser.parse_args()
    unknown = set(options.names) - set(PROGRAMS)
    if unknown:
        parser.error(f"no program is called {', '.join(sorted(unknown))}")
    names = options.names or list(PROGRAMS)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in names:
            make(folder, name)
        seconds = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                seconds[name].append(build(folder, name, options.release))
        print("| program | processor seconds | program's size, MB | crates |")
        print("|---|---|---|---|")
        for name in names:
            program = target(folder, name) / ("release" if options.release else "debug") / "hello"
            size = program.stat().st_size / 1e6
            print(f"| {name} | {statistics.median(seconds[name]):.1f} | {size:.1f} | {crates(folder, name)} |")


def package(folder, name):
    return folder / "".join(letter if letter.isalnum() else "-" for letter in name)


def target(folder, name):
    return package(folder, name) / "target"


def make(folder, name):
    """Makes the package, and downloads what it needs."""
    dependency, program = PROGRAMS[name]
    source = package(folder, name) / "src"
    source.mkdir(parents=True)
    (source / "main.rs").write_text(program)
    manifest = f'[package]\nname = "hello"\nversion = "0.1.0"\nedition = "2024"\n\n[dependencies]\n{dependency}\n\n[workspace]\n'
    (source.parent / "Cargo.toml").write_text(manifest)
    cargo(folder, name, "fetch", "-q")


def build(folder, name, release):
    """Builds it from nothing. Returns the processor seconds that this took."""
    shutil.rmtree(target(folder, name), ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    cargo(folder, name, "build", "-q", "--offline", *(["--release"] if release else []))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def crates(folder, name):
    """How many crates of others are compiled for it."""
    listed = cargo(folder, name, "tree", "--offline", "-e", "normal,build", "--prefix", "none", "--no-dedupe")
    return len(set(listed.split("\n")[1:]) - {""})


def cargo(folder, name, *arguments):
    """Runs cargo as a user would: without the settings of the caller's shell. Returns what it printed.

    Never incrementally: cargo would build crates in a folder for changes to come, but not those from the registry.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CARGO_PROFILE", "CARGO_TARGET", "RUSTC", "RUSTFLAGS"))}
    env = kept | {"CARGO_INCREMENTAL": "0"}
    run = subprocess.run(["cargo", *arguments], cwd=package(folder, name), env=env, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


if __name__ == "__main__":
    main()
