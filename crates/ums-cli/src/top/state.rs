//! The choices of the user of `ums top`, and the effect of each key on them.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::Model;
use super::sheet::{Sheet, Tab, sheet};

/// Shortest and longest time between two readings.
const EVERY_MIN: Duration = Duration::from_millis(125);
const EVERY_MAX: Duration = Duration::from_secs(64);
/// The number of lines that a page key moves.
const PAGE: isize = 10;

/// The choices.
#[derive(Clone, Debug)]
pub struct State {
    /// The list that is shown.
    pub tab: Tab,
    /// For each tab, its sort column, and whether the largest values come first.
    sorts: [(usize, bool); Tab::ALL.len()],
    /// The selected line.
    pub selected: usize,
    /// The worker that is shown in detail.
    pub detail: Option<(i64, i64)>,
    /// How many lines of that worker's page are above the screen. After a key it may be too large;
    /// drawing returns what it has become.
    pub scrolled: usize,
    /// The worker whose backtrace must be requested. It is requested once, because looking the
    /// names up costs the process milliseconds.
    pub wants_stack: Option<(i64, i64)>,
    /// Whether readings are paused.
    pub paused: bool,
    /// The time between two readings.
    pub every: Duration,
    /// Whether idle workers are listed.
    show_idle: bool,
    /// Why the last reading failed.
    pub trouble: Option<String>,
}

impl State {
    /// Returns the initial choices.
    pub fn new(every: Duration) -> State {
        State {
            tab: Tab::Workers,
            sorts: Tab::ALL.map(Tab::first_sort),
            selected: 0,
            detail: None,
            scrolled: 0,
            wants_stack: None,
            paused: false,
            every: every.clamp(EVERY_MIN, EVERY_MAX),
            show_idle: false,
            trouble: None,
        }
    }

    /// Returns the sort column and direction of the list.
    pub fn sort(&self) -> (usize, bool) {
        self.sorts[self.tab as usize]
    }

    /// Returns the list that is shown.
    pub fn sheet(&self, model: &Model) -> Sheet {
        sheet(model, self.tab, self.sort(), self.show_idle)
    }

    /// Handles a key. Returns false if the key quits.
    pub fn press(&mut self, key: KeyEvent, model: &Model) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc | KeyCode::Backspace => (self.detail, self.scrolled) = (None, 0),
            KeyCode::Char(n @ '1'..='7') => self.turn_to(n as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.tab as usize + 1),
            KeyCode::BackTab | KeyCode::Left => {
                self.turn_to(self.tab as usize + Tab::ALL.len() - 1)
            }
            KeyCode::Down | KeyCode::Char('j') => self.go(1, model),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1, model),
            KeyCode::PageDown => self.go(PAGE, model),
            KeyCode::PageUp => self.go(-PAGE, model),
            KeyCode::Home => self.go(isize::MIN, model),
            KeyCode::End => self.go(isize::MAX, model),
            KeyCode::Enter => {
                let lines = self.sheet(model).lines;
                let chosen = lines.get(self.selected.min(lines.len().saturating_sub(1)));
                self.detail = chosen.and_then(|line| line.worker);
                self.wants_stack = self.detail;
                self.scrolled = 0;
            }
            KeyCode::Char('b') => self.wants_stack = self.detail,
            KeyCode::Char('s') => {
                let columns = self.sheet(model).heads.len();
                let sort = &mut self.sorts[self.tab as usize];
                sort.0 = (sort.0 + 1) % columns;
            }
            KeyCode::Char('r') => self.sorts[self.tab as usize].1 ^= true,
            KeyCode::Char('i') => self.show_idle ^= true,
            KeyCode::Char(' ' | 'p') => self.paused ^= true,
            KeyCode::Char('+') => self.every = self.every.saturating_mul(2).min(EVERY_MAX),
            KeyCode::Char('-') => self.every = self.every.div_f64(2.0).max(EVERY_MIN),
            _ => {}
        }
        true
    }

    fn turn_to(&mut self, tab: usize) {
        self.tab = Tab::ALL[tab % Tab::ALL.len()];
        (self.selected, self.detail, self.scrolled) = (0, None, 0);
    }

    /// Chooses another line of the list, or scrolls the page of a worker.
    fn go(&mut self, lines: isize, model: &Model) {
        if self.detail.is_some() {
            self.scrolled = self.scrolled.saturating_add_signed(lines);
        } else {
            let last = self.sheet(model).lines.len().saturating_sub(1);
            self.selected = self.selected.saturating_add_signed(lines).min(last);
        }
    }
}
