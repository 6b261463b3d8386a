//! Golden stories: files (`*.script`) that say which worker runs when.
//!
//! A story consists of some lines of commands, a line of dashes, and the exact outcome. An empty
//! line ends it, and `#` begins a remark. Each story is run on one scheduler, in simulations with
//! several seeds, with each kind of worker. The outcome must be the same every time, because the
//! promised order does not depend on chance.
//!
//! ```text
//! workers 2                      at most this many workers; default: 8 for each scheduler
//! schedulers 2                   this many schedulers; default: 1
//! classic                        first in, first out, like the original
//! synchronous                    operations that can complete immediately do so
//! request a: say hello, yield    a request of a new user; queued in the order of the lines
//! holder b: say me first         a request of a user that holds something
//! again a: say more              another request of a's user
//! gone a                         a's user leaves before the requests below it are created
//! hidden h: say hello            a request on a hidden scheduler
//! ----
//! b: me first
//! a: hello
//! ```
//!
//! The deeds are: `say WORDS`, `yield`, `sleep MS`, `lock X`, `unlock X`, `read X`, `write X`,
//! `leave X`, `wait E`, `set E`, `outside MS` (goes preemptive for this long), `busy MS` (does not
//! yield for this long), `panic`, `spawn NAME [DEED]` (starts a task that does the deed, or that
//! says that it runs), `lists` (says which workers are on which list), `idle` (says how many
//! workers are idle), `worker` (says the number of the worker, in the order of their appearance)
//! and `where` (says which scheduler runs it). With a pipe: `take P` (waits for a byte), `put P`
//! (writes a byte), `put P MS` (writes a byte after this time, from outside), `ask P` (submits an
//! operation that completes when there is a byte; its routine says which request runs it).
//!
//! The remark above a story has the numbers of the behaviours that the story shows. The table in
//! docs/reliability.md has them too.
//!
//! * **Contract**: deeds keep no thread-scoped state across a wait, as fiber workers require.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ums::lock::Lock;
use ums::node::{HiddenOptions, IoChoice};
use ums::sim::{Faults, run};
use ums::sync::{Event, RawMutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ums::{Node, User, WaitReason, WorkerKind};

mod table;

struct Script {
    place: String,
    /// The numbers of behaviours in the remark above the story.
    numbers: Vec<String>,
    commands: Vec<String>,
    outcome: String,
}

/// Returns the stories of a file.
fn scripts(name: &str, text: &str) -> Vec<Script> {
    let (mut all, mut commands, mut told) = (Vec::new(), Vec::new(), None::<String>);
    let mut numbers = Vec::new();
    for (nth, line) in (1..).zip(text.lines().chain([""])) {
        match (line.trim_end(), &mut told) {
            (line, _) if line.starts_with('#') => numbers.extend(table::numbers(line)),
            ("", None) => assert!(commands.is_empty(), "{name}:{nth}: a story without an outcome"),
            ("", Some(outcome)) => {
                let (outcome, commands) = (std::mem::take(outcome), std::mem::take(&mut commands));
                let (place, numbers) = (format!("{name}:{nth}"), std::mem::take(&mut numbers));
                all.push(Script { place, numbers, commands, outcome });
                told = None;
            }
            (dashes, None) if dashes.starts_with("----") => told = Some(String::new()),
            (command, None) => commands.push(command.to_owned()),
            (line, Some(outcome)) => outcome.push_str(&format!("{line}\n")),
        }
    }
    all
}

/// The state that the requests of a story share.
#[derive(Default)]
struct Stage {
    said: Lock<String>,
    /// For each worker, the name of the request that it carries out.
    names: Lock<BTreeMap<u32, String>>,
    /// The workers, in the order of their appearance.
    workers: Lock<Vec<u32>>,
    pipes: Lock<BTreeMap<String, Arc<(UnixStream, UnixStream)>>>,
    locks: Lock<BTreeMap<String, Arc<RawMutex>>>,
    shared: Lock<BTreeMap<String, &'static RwLock<()>>>,
    events: Lock<BTreeMap<String, Arc<Event>>>,
}

/// The guard of a readers-writer lock that a request holds.
#[allow(dead_code)] // Held for its drop.
enum Guard {
    Reads(RwLockReadGuard<'static, ()>),
    Writes(RwLockWriteGuard<'static, ()>),
}

/// Returns the object with this name, and creates it at its first use.
fn named<T>(all: &Lock<BTreeMap<String, Arc<T>>>, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
    all.lock().entry(name.to_owned()).or_insert_with(|| Arc::new(new())).clone()
}

impl Stage {
    fn say(&self, name: &str, what: &str) {
        let _ = writeln!(self.said.lock(), "{name}: {what}");
    }

    fn lists(&self, name: &str) {
        let lists = ums::testing::lists();
        let names = self.names.lock().clone();
        let all = |workers: &[u32]| {
            let names = workers.iter().map(|id| names.get(id).map_or("?", |name| name));
            let names: Vec<_> = names.collect();
            if names.is_empty() { "none".to_owned() } else { names.join(" ") }
        };
        let (runnable, waiting) = (all(&lists.runnable), all(&lists.waiting));
        let text = format!(
            "runnable {runnable}; waiting {waiting}; {} queued, {} timers",
            lists.queued, lists.timers
        );
        self.say(name, &text);
    }

    /// Returns the name of the running request. A completion routine has no name of its own, so it
    /// uses this.
    fn runner(&self) -> String {
        let worker = ums::worker::worker_id().map_or(0, |(_, worker)| worker);
        self.names.lock().get(&worker).cloned().unwrap_or_else(|| "none".to_owned())
    }

    /// Submits an operation whose routine says which request runs it.
    fn ask(self: &Arc<Self>, asker: &str, name: &str) {
        let (stage, asker) = (Arc::clone(self), asker.to_owned());
        let pipe = self.pipe(name);
        let fd = pipe.1.as_raw_fd();
        ums::testing::when_readable(fd, move |_| {
            let listed = ums::testing::lists().io;
            stage.say(
                &stage.runner(),
                &format!("runs the routine of {asker}, {listed} on the I/O list"),
            );
            drop(pipe);
        });
    }

    fn pipe(&self, name: &str) -> Arc<(UnixStream, UnixStream)> {
        named(&self.pipes, name, || UnixStream::pair().expect("two descriptors"))
    }

    fn which_worker(&self, name: &str) {
        let worker = ums::worker::worker_id().map_or(0, |(_, worker)| worker);
        let mut workers = self.workers.lock();
        let nth = workers.iter().position(|known| *known == worker).unwrap_or_else(|| {
            workers.push(worker);
            workers.len() - 1
        });
        drop(workers);
        self.say(name, &format!("worker {}", nth + 1));
    }

    /// Puts a byte into a pipe: immediately, or later and from outside.
    fn put(&self, what: &str) {
        let (name, ms) = what.split_once(' ').unwrap_or((what, ""));
        let pipe = self.pipe(name);
        let put = || (&pipe.0).write_all(b"!").expect("there is room");
        let Ok(ms) = ms.parse() else { return put() };
        ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
            ums::sim::thread_sleep(Duration::from_millis(ms));
            put();
            // The woken request gets its turn before this request returns from its preemptive call.
            ums::sim::thread_sleep(Duration::from_millis(50));
        });
    }

    /// Returns the lock with this name. It is never freed; that is harmless, because a story is
    /// short.
    fn with_readers(&self, name: &str) -> &'static RwLock<()> {
        let new = || &*Box::leak(Box::new(RwLock::new(())));
        self.shared.lock().entry(name.to_owned()).or_insert_with(new)
    }

    fn deed(self: &Arc<Self>, name: &str, deed: &str, guards: &mut BTreeMap<String, Guard>) {
        let (verb, what) = deed.split_once(' ').unwrap_or((deed, ""));
        let ms = || Duration::from_millis(what.parse().expect("a number of milliseconds"));
        let lock = || named(&self.locks, what, RawMutex::new);
        let mut hold = |guard| drop(guards.insert(what.to_owned(), guard));
        let event = || named(&self.events, what, || Event::manual(false));
        match verb {
            "say" => self.say(name, what),
            "yield" => ums::yield_now(),
            "sleep" => ums::sleep(ms()).expect("it is not cancelled"),
            "lock" => lock().lock(WaitReason::MUTEX),
            "unlock" => lock().unlock(),
            "read" => hold(Guard::Reads(self.with_readers(what).read())),
            "write" => hold(Guard::Writes(self.with_readers(what).write())),
            "leave" => drop(guards.remove(what)),
            "wait" => event().wait().expect("it is not cancelled"),
            "set" => event().set(),
            "outside" => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                ums::sim::thread_sleep(ms());
            }),
            "busy" => ums::sim::thread_sleep(ms()),
            "take" => {
                let end = self.pipe(what).1.try_clone().expect("a descriptor");
                ums::net::UnixStream::from(end).read_exact(&mut [0]).expect("a byte");
            }
            "put" => self.put(what),
            "ask" => self.ask(name, what),
            "worker" => self.which_worker(name),
            "where" => {
                let scheduler = ums::worker::scheduler_id().expect("a worker");
                self.say(name, &format!("on scheduler {scheduler}"));
            }
            "idle" => self.say(name, &format!("{} idle", ums::testing::lists().idle.len())),
            "panic" => std::panic::resume_unwind(Box::new("on purpose")),
            "spawn" => {
                let (name, deed) = what.split_once(' ').unwrap_or((what, "say runs"));
                let (stage, name, deed) = (Arc::clone(self), name.to_owned(), deed.to_owned());
                drop(ums::spawn(move || stage.perform(&name, &deed)));
            }
            "lists" => self.lists(name),
            other => panic!("there is no deed `{other}`"),
        }
    }

    fn perform(self: &Arc<Self>, name: &str, deeds: &str) {
        let worker = ums::worker::worker_id().map_or(0, |(_, worker)| worker);
        self.names.lock().insert(worker, name.to_owned());
        let mut guards = BTreeMap::new();
        deeds.split(',').for_each(|deed| self.deed(name, deed.trim(), &mut guards));
    }
}

/// One request of a story: the index of its user, its name and its deeds.
type Request = (usize, String, String);

/// Runs a story, and returns its outcome.
fn tell(commands: &[String], kind: WorkerKind) -> String {
    let words = |command: &str| {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        (verb.to_owned(), rest.to_owned())
    };
    let (options, requests): (Vec<_>, Vec<_>) =
        commands.iter().map(|c| words(c)).partition(|(verb, _)| {
            ["classic", "synchronous", "workers", "schedulers"].contains(&verb.as_str())
        });
    let number = |verb: &str| {
        let given = options.iter().find(|(known, _)| known == verb);
        given.map(|(_, number)| number.parse::<usize>().expect("a number"))
    };
    let schedulers = number("schedulers").unwrap_or(1);
    let workers = number("workers").unwrap_or(8 * schedulers);
    let mut builder = Node::builder();
    for (verb, _) in &options {
        builder = match verb.as_str() {
            "classic" => builder.classic(),
            "synchronous" => builder.io(IoChoice::Sync),
            _ => builder,
        };
    }
    builder = builder.schedulers(schedulers).max_workers(workers);
    let builder = match kind {
        WorkerKind::Thread => builder,
        // SAFETY: Contract: see the module's text.
        #[allow(unsafe_code)]
        WorkerKind::Fiber => unsafe { builder.fiber_workers() },
        WorkerKind::OwnContext => builder.own_context_workers(),
    };
    let node = builder.build().expect("a node");
    let stage = Arc::new(Stage::default());
    let (users, requests) = come(&node, &requests);
    // This closure queues all requests without a yield, so that they all are queued before the
    // first runs.
    let opener = Arc::clone(&stage);
    let (users, tasks) = node.run(move || {
        let begin = |(user, name, deeds): Request| {
            let (stage, user) =
                (Arc::clone(&opener), users[user].as_ref().expect("it has not left"));
            user.enqueue(move || stage.perform(&name, &deeds)).expect("the queue has room")
        };
        let tasks: Vec<_> = requests.into_iter().map(begin).collect();
        (users, tasks)
    });
    for task in tasks {
        let _ = task.join();
    }
    drop(users);
    node.shutdown(Duration::from_secs(1));
    stage.said.lock().clone()
}

/// Creates users and drops users, in the order of the lines.
fn come(node: &Node, lines: &[(String, String)]) -> (Vec<Option<User>>, Vec<Request>) {
    let (mut users, mut names, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    for (verb, rest) in lines {
        let (name, deeds) = rest.split_once(": ").unwrap_or((rest, ""));
        let known = names.iter().position(|known| known == name);
        match (verb.as_str(), known) {
            ("gone", Some(user)) => users[user] = None,
            ("again", Some(user)) => requests.push((user, name.to_owned(), deeds.to_owned())),
            ("request" | "holder" | "hidden", None) => {
                let user = if verb == "hidden" {
                    let hidden =
                        node.hidden("stage", HiddenOptions::default()).expect("a scheduler");
                    node.user_on(&hidden)
                } else {
                    node.user()
                };
                if verb == "holder" {
                    user.hold();
                }
                requests.push((users.len(), name.to_owned(), deeds.to_owned()));
                users.push(Some(user));
                names.push(name.to_owned());
            }
            other => panic!("there is no command {other:?}"),
        }
    }
    // A user that has left has no further requests.
    requests.retain(|(user, ..)| users[*user].is_some());
    (users, requests)
}

fn all_scripts() -> Vec<Script> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "script"));
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        scripts(&name, &std::fs::read_to_string(file).unwrap())
    };
    files.iter().flat_map(read).collect()
}

#[test]
fn every_story_has_its_outcome_whatever_the_seed() {
    let mut told = 0;
    let mut kinds = vec![WorkerKind::Thread, WorkerKind::Fiber];
    kinds
        .extend(ums::probe::own_contexts_are_refused().is_none().then_some(WorkerKind::OwnContext));
    for script in all_scripts() {
        for (seed, kind) in (0..10).flat_map(|seed| kinds.iter().map(move |kind| (seed, *kind))) {
            let (commands, out) = (script.commands.clone(), Arc::new(Lock::new(String::new())));
            let outcome = Arc::clone(&out);
            let story = move || *outcome.lock() = tell(&commands, kind);
            let ended = run(seed, Faults::default(), story);
            let place = format!("{}, seed {seed}, {kind:?}", script.place);
            assert_eq!(ended.failed, None, "{place}");
            assert_eq!(out.lock().as_str(), script.outcome, "{place}: left is what happened");
            told += 1;
        }
    }
    assert!(told >= 20 * 30, "the stories were found");
}
