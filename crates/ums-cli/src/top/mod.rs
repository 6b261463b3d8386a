//! `ums top`: a live view of a process that uses ums.
//!
//! ```text
//!   socket --a line of JSON--> reading --two of them--> model --lists--> sheet
//!                                                         |               |
//!   keys --> state: tab, sort, pause, which worker --------+------> draw --+--> terminal
//! ```
//!
//! Only this file touches the terminal, the socket and the clock. The terminal is restored when the
//! user quits, on SIGTERM, and on a panic.
//!
//! `ums top` changes nothing in the observed process.

mod draw;
mod model;
mod reading;
mod sheet;
mod state;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::asking;
use model::Model;
use reading::Reading;
use state::State;

/// How long to wait for a key before checking the time and signals.
const ATTENTION: Duration = Duration::from_millis(100);

/// Options of `ums top`.
#[derive(clap::Args)]
pub struct TopArgs {
    /// The process's number or its socket. Default: the only process; if there are several, they
    /// are listed.
    #[arg(value_name = "PID|SOCKET")]
    target: Option<String>,

    /// Seconds between two readings.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
}

/// Runs the command.
pub fn run(args: &TopArgs) -> ExitCode {
    match top(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("ums top: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn top(args: &TopArgs) -> Result<(), String> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("it needs a terminal; use ums stats in scripts".into());
    }
    let every =
        Duration::try_from_secs_f64(args.every).map_err(|_| "--every takes seconds".to_owned())?;
    let path = asking::find(args.target.as_deref())?;
    let mut model = Model::default();
    model.read(Reading::of(asking::ask(&path, "*")?));
    let ended = Arc::new(AtomicBool::new(false));
    // SIGHUP is not handled: it ends the process, and then there is no terminal to restore.
    signal_hook::flag::register(signal_hook::consts::SIGTERM, ended.clone())
        .map_err(|error| error.to_string())?;
    // `try_init` also restores the terminal if this thread panics.
    let mut terminal = ratatui::try_init().map_err(|error| error.to_string())?;
    let outcome = watch(&mut terminal, &path, &mut model, &mut State::new(every), &ended);
    ratatui::restore();
    outcome.map_err(|error| error.to_string())
}

fn watch(
    terminal: &mut DefaultTerminal,
    path: &Path,
    model: &mut Model,
    state: &mut State,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    // The second reading is taken early, because the first rates need it.
    let soon = state.every.min(Duration::from_millis(250));
    let mut next = Instant::now().checked_add(soon).unwrap_or_else(Instant::now);
    while !ended.load(Ordering::Relaxed) {
        let mut scrolled = 0;
        terminal.draw(|frame| scrolled = draw::draw(frame, model, state))?;
        state.scrolled = scrolled;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let wait = if state.paused { ATTENTION } else { left.min(ATTENTION) };
            // Checked before each read, because the library would keep reading from a closed
            // terminal without end.
            if !is_there(Duration::ZERO)? || (!event::poll(Duration::ZERO)? && !is_there(wait)?) {
                return Ok(());
            }
            if event::poll(Duration::ZERO)? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if !state.press(key, model) {
                            return Ok(());
                        }
                        if let Some(worker) = state.wants_stack.take() {
                            let question = format!("stack {} {}", worker.0, worker.1);
                            model.read_stack(worker, asking::ask(path, &question));
                        }
                        break;
                    }
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
            if ended.load(Ordering::Relaxed) || (!state.paused && Instant::now() >= next) {
                break;
            }
        }
        if !state.paused && Instant::now() >= next {
            match asking::ask(path, "*") {
                Ok(answer) => {
                    model.read(Reading::of(answer));
                    state.trouble = None;
                }
                // The screen continues to show the last reading.
                Err(sentence) => state.trouble = Some(sentence),
            }
            next = Instant::now().checked_add(state.every).unwrap_or_else(Instant::now);
        }
    }
    Ok(())
}

/// Waits for input, at most this long. Returns false if the terminal is closed.
fn is_there(wait: Duration) -> std::io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = std::io::stdin();
    let mut input = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec::try_from(wait).map_err(std::io::Error::other)?;
    match poll(&mut input, Some(&wait)) {
        // The call was interrupted because the window's size changed, or by a signal to end.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            Ok(!input[0].revents().intersects(gone))
        }
    }
}
