//! Golden stories: who runs when, told in files (`*.script`).
//!
//! A story is some lines of commands, a line of dashes, and the exact outcome; an empty line ends it, `#` begins a remark.
//! Each is told on one scheduler in simulated worlds of several seeds, with threads and with fibers, and has the same
//! outcome every time: what is promised about order does not depend on luck.
//!
//! ```text
//! workers 2                      at most so many; 8 if nothing is said
//! classic                        first in, first out, as the original
//! request a: say hello, yield    queued in the order of the lines, before any of them begins
//! holder b: say me first         the request of a user that holds something
//! ----
//! b: me first
//! a: hello
//! ```
//!
//! Deeds: `say WORDS`, `yield`, `sleep MS`, `lock X`, `unlock X`, `read X`, `write X`, `leave X`, `wait E`, `set E`, `outside MS` (goes
//! preemptive for so long), `panic`, `spawn NAME` (a task that says that it runs), `lists` (says who is on which list).
//!
//! * **Contract**: deeds keep nothing of their thread's over a wait, as fiber workers ask.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ums::sim::{Faults, run};
use ums::sync::{Event, RawMutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use ums::{Node, WaitReason};

struct Script {
    place: String,
    commands: Vec<String>,
    outcome: String,
}

/// The stories of a file.
fn scripts(name: &str, text: &str) -> Vec<Script> {
    let (mut all, mut commands, mut told) = (Vec::new(), Vec::new(), None::<String>);
    for (nth, line) in (1..).zip(text.lines().chain([""])) {
        match (line.trim_end(), &mut told) {
            (line, _) if line.starts_with('#') => {}
            ("", None) => assert!(commands.is_empty(), "{name}:{nth}: a story without an outcome"),
            ("", Some(outcome)) => {
                let (outcome, commands) = (std::mem::take(outcome), std::mem::take(&mut commands));
                all.push(Script { place: format!("{name}:{nth}"), commands, outcome });
                told = None;
            }
            (dashes, None) if dashes.starts_with("----") => told = Some(String::new()),
            (command, None) => commands.push(command.to_owned()),
            (line, Some(outcome)) => outcome.push_str(&format!("{line}\n")),
        }
    }
    all
}

/// What the requests of a story share.
#[derive(Default)]
struct Stage {
    said: Mutex<String>,
    /// Whose request each worker carries out.
    names: Mutex<BTreeMap<u32, String>>,
    locks: Mutex<BTreeMap<String, Arc<RawMutex>>>,
    shared: Mutex<BTreeMap<String, &'static RwLock<()>>>,
    events: Mutex<BTreeMap<String, Arc<Event>>>,
}

/// What a request has of a lock that has readers.
#[allow(dead_code)] // Held for its drop.
enum Guard {
    Reads(RwLockReadGuard<'static, ()>),
    Writes(RwLockWriteGuard<'static, ()>),
}

fn held<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thing of this name, made at its first use.
fn named<T>(all: &Mutex<BTreeMap<String, Arc<T>>>, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
    held(all).entry(name.to_owned()).or_insert_with(|| Arc::new(new())).clone()
}

impl Stage {
    fn say(&self, who: &str, what: &str) {
        let _ = writeln!(held(&self.said), "{who}: {what}");
    }

    fn lists(&self, who: &str) {
        let lists = ums::testing::lists();
        let names = held(&self.names).clone();
        let all = |workers: &[u32]| {
            let names = workers.iter().map(|id| names.get(id).map_or("?", |name| name));
            let names: Vec<_> = names.collect();
            if names.is_empty() { "nobody".to_owned() } else { names.join(" ") }
        };
        let (runnable, waiting) = (all(&lists.runnable), all(&lists.waiting));
        let text = format!(
            "runnable {runnable}; waiting {waiting}; {} queued, {} timers",
            lists.queued, lists.timers
        );
        self.say(who, &text);
    }

    /// The lock of this name. A story is short, and what it makes may stay.
    fn with_readers(&self, name: &str) -> &'static RwLock<()> {
        let new = || &*Box::leak(Box::new(RwLock::new(())));
        held(&self.shared).entry(name.to_owned()).or_insert_with(new)
    }

    fn deed(self: &Arc<Self>, who: &str, deed: &str, guards: &mut BTreeMap<String, Guard>) {
        let (verb, what) = deed.split_once(' ').unwrap_or((deed, ""));
        let ms = || Duration::from_millis(what.parse().expect("a number of milliseconds"));
        let lock = || named(&self.locks, what, RawMutex::new);
        let mut hold = |guard| drop(guards.insert(what.to_owned(), guard));
        let event = || named(&self.events, what, || Event::manual(false));
        match verb {
            "say" => self.say(who, what),
            "yield" => ums::yield_now(),
            "sleep" => ums::sleep(ms()).expect("nobody cancels it"),
            "lock" => lock().lock(WaitReason::MUTEX),
            "unlock" => lock().unlock(),
            "read" => hold(Guard::Reads(self.with_readers(what).read())),
            "write" => hold(Guard::Writes(self.with_readers(what).write())),
            "leave" => drop(guards.remove(what)),
            "wait" => event().wait(),
            "set" => event().set(),
            "outside" => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                ums::sim::thread_sleep(ms());
            }),
            "panic" => std::panic::resume_unwind(Box::new("on purpose")),
            "spawn" => {
                let (stage, name) = (Arc::clone(self), what.to_owned());
                drop(ums::spawn(move || stage.perform(&name, "say runs")));
            }
            "lists" => self.lists(who),
            other => panic!("nobody knows how to `{other}`"),
        }
    }

    fn perform(self: &Arc<Self>, who: &str, deeds: &str) {
        let worker = ums::worker_id().map_or(0, |(_, worker)| worker);
        held(&self.names).insert(worker, who.to_owned());
        let mut guards = BTreeMap::new();
        deeds.split(',').for_each(|deed| self.deed(who, deed.trim(), &mut guards));
    }
}

/// Tells a story, and gives its outcome.
fn tell(commands: &[String], fibers: bool) -> String {
    let mut builder = Node::builder().schedulers(1).max_workers(8);
    let mut requests = Vec::new();
    for command in commands {
        let (verb, rest) = command.split_once(' ').unwrap_or((command, ""));
        match verb {
            "classic" => builder = builder.classic(),
            "workers" => builder = builder.max_workers(rest.parse().expect("a number of workers")),
            "request" | "holder" => {
                let (name, deeds) = rest.split_once(": ").expect("a name and deeds");
                requests.push((verb == "holder", name.to_owned(), deeds.to_owned()));
            }
            other => panic!("nobody knows the command `{other}`"),
        }
    }
    // SAFETY: Contract: see the module's text.
    #[allow(unsafe_code)]
    let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
    let (node, stage) = (builder.build().expect("a node"), Arc::new(Stage::default()));
    let users: Vec<_> = requests.iter().map(|_| node.user()).collect();
    users.iter().zip(&requests).filter(|(_, (holds, ..))| *holds).for_each(|(user, _)| user.hold());
    // The opener queues them all, and does not yield.
    let (opener, all) = (Arc::clone(&stage), std::mem::take(&mut requests));
    let (users, tasks) = node.run(move || {
        let begin = |(user, (_, name, deeds)): (&ums::User, (bool, String, String))| {
            let stage = Arc::clone(&opener);
            user.enqueue(move || stage.perform(&name, &deeds)).expect("the queue has room")
        };
        let tasks: Vec<_> = users.iter().zip(all).map(begin).collect();
        (users, tasks)
    });
    for task in tasks {
        let _ = task.join();
    }
    drop(users);
    node.shutdown(Duration::from_secs(1));
    held(&stage.said).clone()
}

#[test]
fn every_story_has_its_outcome_whatever_the_seed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "script"));
    files.sort();
    let mut told = 0;
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for script in scripts(&name, &std::fs::read_to_string(&file).unwrap()) {
            for (seed, fibers) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
                let (commands, out) =
                    (script.commands.clone(), Arc::new(Mutex::new(String::new())));
                let outcome = Arc::clone(&out);
                let story = move || *held(&outcome) = tell(&commands, fibers);
                let ended = run(seed, Faults::default(), story);
                let place = format!("{}, seed {seed}, fibers: {fibers}", script.place);
                assert_eq!(ended.failed, None, "{place}");
                assert_eq!(held(&out).as_str(), script.outcome, "{place}: left is what happened");
                told += 1;
            }
        }
    }
    assert!(told >= 20 * 12, "the stories were found");
}
