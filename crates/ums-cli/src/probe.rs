//! `ums probe`: what this computer supports, what ums will use, and the reason for each fallback.

use std::process::ExitCode;

use ums::WorkerKind;

use crate::raw::workers_of;

/// Options of `ums probe`.
#[derive(clap::Args)]
pub struct ProbeArgs {
    /// Print JSON: one object for each fact.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> ExitCode {
    let mut facts = ums::probe::Facts::read().lines();
    facts.extend(chosen());
    facts.extend(watch());
    if args.json {
        println!("{}", ums::probe::facts_to_json(&facts));
        return ExitCode::SUCCESS;
    }
    let width = facts.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for fact in &facts {
        println!("{:width$}  {}", fact.name, fact.value);
        if !fact.consequence.is_empty() {
            println!("{:width$}    -> {}", "", fact.consequence);
        }
    }
    ExitCode::SUCCESS
}

/// Reports which mechanisms can detect and gate blocking threads here. Each is tried with a thread
/// that really blocks.
fn watch() -> Vec<ums::probe::Fact> {
    use ums::watch::{Mechanism, mechanism};
    let tried = |(name, how): (&'static str, Mechanism)| {
        let (value, consequence) = match how.try_here() {
            Ok(()) => ("works".to_string(), String::new()),
            Err(text) => ("does not work".to_string(), text),
        };
        ums::probe::Fact { name, value, consequence }
    };
    let names = ["watch.trap", "watch.breakpoint", "watch.calls"];
    let mut facts: Vec<_> = names.into_iter().zip(Mechanism::ALL).map(tried).collect();
    let (value, covers) = match mechanism() {
        Ok(how) => (how.name().to_string(), covers(how).to_string()),
        Err(error) => ("refused".to_string(), error.to_string()),
    };
    facts.push(ums::probe::Fact { name: "watch", value, consequence: covers });
    facts.push(taking_over());
    facts
}

/// Returns what this mechanism covers.
fn covers(how: ums::watch::Mechanism) -> &'static str {
    use ums::watch::Mechanism;
    match how {
        Mechanism::Trap => "every blocking system call and page fault is detected and gated",
        Mechanism::Breakpoint => {
            "as trap, without privilege, except waits for the address space's lock"
        }
        Mechanism::Calls => "only interposed calls are detected and gated: see docs/windows.md",
    }
}

/// Reports whether a node here can take its scheduler away from a blocked thread worker.
fn taking_over() -> ums::probe::Fact {
    let (value, consequence) = match ums::probe::taking_over_is_refused() {
        None => ("works".to_string(), String::new()),
        Some(why) => (
            "does not work".to_string(),
            format!("thread workers that block hold up their schedulers: membarrier: {why}"),
        ),
    };
    ums::probe::Fact { name: "take over blocked workers", value, consequence }
}

/// Reports what a node here uses, by building one of each kind.
fn chosen() -> Vec<ums::probe::Fact> {
    let kinds = [
        ("thread workers", WorkerKind::Thread),
        ("fiber workers", WorkerKind::Fiber),
        ("own-context workers", WorkerKind::OwnContext),
    ];
    kinds
        .into_iter()
        .map(|(name, kind)| {
            let builder = ums::Node::builder().schedulers(1);
            let (value, consequence) = match workers_of(kind, builder).build() {
                Ok(node) => (node.io_text(), String::new()),
                Err(error) => ("not available".to_string(), error.to_string()),
            };
            ums::probe::Fact { name, value, consequence }
        })
        .collect()
}
