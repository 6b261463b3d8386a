//! Compiles C and C++ programs against the library that this build has made, and runs them.
//!
//! These tests need a C compiler. If a compiler is not installed, the programs that need it are
//! skipped, and their names are printed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A temporary folder with the library under its installed name, and the compiled programs.
pub struct Workshop {
    folder: tempfile::TempDir,
}

/// How a program is compiled.
#[derive(Clone, Copy)]
pub struct Recipe<'a> {
    /// The source file: below `tests/c`, or, if it begins with `examples/`, below the crate's
    /// folder.
    pub source: &'a str,
    /// The folder with the headers, below `include`.
    pub include: &'a str,
    /// The name of the compiler; `cc` is the system's for the language of the source.
    pub by: &'a str,
    /// Whether it is linked with the static library.
    pub is_static: bool,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the newest file with this prefix and suffix among those that cargo has built for the
/// test.
fn built(prefix: &str, suffix: &str) -> PathBuf {
    let deps = std::env::current_exe().expect("a test has a path");
    let deps = deps.parent().expect("a test lies in a folder").to_owned();
    let folders = [deps.clone(), deps.parent().expect("in target").to_owned()];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
    let ours = files.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(prefix) && name.ends_with(suffix)
    });
    let age = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).ok();
    ours.max_by_key(age).expect("cargo built the library for this test")
}

/// Returns the compiler with this name.
fn compiler(name: &str) -> Option<Command> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cc::Build::new();
    if !["cc", "c++"].contains(&name) {
        build.compiler(name);
    }
    let tool = build
        .cargo_metadata(false)
        .warnings(false)
        .cpp(name == "c++")
        .opt_level(1)
        .debug(true)
        .target(&triple)
        .host(&triple)
        .try_get_compiler();
    tool.ok().map(|tool| tool.to_command()).filter(|command| {
        let asked = Command::new(command.get_program()).arg("--version").output();
        asked.is_ok_and(|output| output.status.success())
    })
}

impl Workshop {
    /// Returns a new folder with the library.
    pub fn new() -> Workshop {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let link = |from: PathBuf, name: &str| {
            std::os::unix::fs::symlink(from, folder.path().join(name)).expect("a link");
        };
        let shared = built("libums_capi", ".so");
        link(shared.clone(), "libums.so");
        link(shared, "libums.so.0");
        link(built("libums_capi", ".a"), "libums_static.a");
        Workshop { folder }
    }

    /// Compiles a program. If its compiler is not installed, prints that and returns None.
    pub fn make(&self, recipe: Recipe<'_>) -> Option<PathBuf> {
        let is_cpp = recipe.source.ends_with(".cpp");
        let by = if is_cpp && recipe.by == "cc" { "c++" } else { recipe.by };
        let Some(mut command) = compiler(by) else {
            assert!(by != "cc", "these tests need a C compiler");
            ums::testing::skipped(by, recipe.source);
            return None;
        };
        let source = match recipe.source.strip_prefix("examples/") {
            Some(_) => root().join(recipe.source),
            None => root().join("tests/c").join(recipe.source),
        };
        let name = format!("{}_{by}", recipe.source.replace(['/', '.'], "_"));
        let program = self.folder.path().join(if recipe.is_static { name + "_a" } else { name });
        command.arg("-I").arg(root().join("include").join(recipe.include));
        command.arg("-pthread");
        command.args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]);
        command.arg(if is_cpp { "-std=c++17" } else { "-std=c11" });
        command.arg(&source).arg("-o").arg(&program).arg("-L").arg(self.folder.path());
        if recipe.is_static {
            // As the installed `ums.pc` has them for `pkg-config --static`.
            command.args(["-Wl,-Bstatic", "-lums_static", "-Wl,-Bdynamic"]);
            command.args(["-lgcc_s", "-lrt", "-lm", "-ldl"]);
        } else {
            command.arg("-lums").arg(format!("-Wl,-rpath,{}", self.folder.path().display()));
        }
        let output = command.output().expect("the compiler runs");
        assert!(output.status.success(), "{} does not compile:\n{}", recipe.source, said(&output));
        Some(program)
    }

    /// Runs a program until it ends. It must succeed, within a time limit. Returns its output.
    pub fn run(&self, program: &Path, args: &[&str]) -> String {
        self.run_with(program, args, &[])
    }

    /// Like `run`, with these variables in its environment.
    pub fn run_with(&self, program: &Path, args: &[&str], set: &[(&str, &str)]) -> String {
        let (status, output) = self.run_to(program, args, set);
        assert!(
            status == Some(0),
            "{} {args:?} ended with {status:?}:\n{output}",
            program.display()
        );
        output
    }

    /// Runs a program until it ends. Returns its exit code (None if it died by a signal or hung)
    /// and its output.
    fn run_to(&self, program: &Path, args: &[&str], set: &[(&str, &str)]) -> (Option<i32>, String) {
        let log = program.with_extension(format!("{}.log", args.join("-").replace('/', "_")));
        let file = std::fs::File::create(&log).expect("a file for its output");
        let both = file.try_clone().expect("a second descriptor");
        let mut child = Command::new(program)
            .args(args)
            .envs(set.iter().copied())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(both)
            .spawn()
            .expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(90);
        let status = loop {
            if let Some(status) = child.try_wait().expect("our child") {
                break status.code();
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        (status, std::fs::read_to_string(&log).unwrap_or_default())
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
