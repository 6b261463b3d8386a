//! What the user of `ums top` has chosen, and what each key changes of it.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::Model;
use super::sheet::{Sheet, Tab, sheet};

/// Shortest and longest time between two readings.
const EVERY_MIN: Duration = Duration::from_millis(125);
const EVERY_MAX: Duration = Duration::from_secs(64);
/// Lines that a page key moves.
const PAGE: usize = 10;

/// The choices.
#[derive(Clone, Debug)]
pub struct State {
    /// The list that is shown.
    pub tab: Tab,
    /// By tab: the column that it is sorted by, and whether the largest come first.
    sorts: [(usize, bool); Tab::ALL.len()],
    /// The line that is chosen.
    pub selected: usize,
    /// The worker that is looked at.
    pub detail: Option<(i64, i64)>,
    /// The functions of this worker are wanted: they are asked for once, for putting names to them
    /// costs the process milliseconds.
    pub wants_stack: Option<(i64, i64)>,
    /// Nothing is read meanwhile.
    pub paused: bool,
    /// Time between two readings.
    pub every: Duration,
    /// Whether idle workers are listed.
    show_idle: bool,
    /// Why the last reading failed.
    pub trouble: Option<String>,
}

impl State {
    /// The choices at the start.
    pub fn new(every: Duration) -> State {
        State {
            tab: Tab::Workers,
            sorts: Tab::ALL.map(Tab::first_sort),
            selected: 0,
            detail: None,
            wants_stack: None,
            paused: false,
            every: every.clamp(EVERY_MIN, EVERY_MAX),
            show_idle: false,
            trouble: None,
        }
    }

    /// How the list is sorted.
    pub fn sort(&self) -> (usize, bool) {
        self.sorts[self.tab as usize]
    }

    /// The list that is shown.
    pub fn sheet(&self, model: &Model) -> Sheet {
        sheet(model, self.tab, self.sort(), self.show_idle)
    }

    /// Does what a key says. False: the user wants to go.
    pub fn press(&mut self, key: KeyEvent, model: &Model) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc | KeyCode::Backspace => self.detail = None,
            KeyCode::Char(n @ '1'..='7') => self.turn_to(n as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.tab as usize + 1),
            KeyCode::BackTab | KeyCode::Left => {
                self.turn_to(self.tab as usize + Tab::ALL.len() - 1)
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1, model),
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1), model),
            KeyCode::PageDown => self.select(self.selected + PAGE, model),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(PAGE), model),
            KeyCode::Home => self.select(0, model),
            KeyCode::End => self.select(usize::MAX, model),
            KeyCode::Enter => {
                let lines = self.sheet(model).lines;
                let chosen = lines.get(self.selected.min(lines.len().saturating_sub(1)));
                self.detail = chosen.and_then(|line| line.worker);
                self.wants_stack = self.detail;
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
            KeyCode::Char('+') => self.every = (self.every * 2).min(EVERY_MAX),
            KeyCode::Char('-') => self.every = (self.every / 2).max(EVERY_MIN),
            _ => {}
        }
        true
    }

    fn turn_to(&mut self, tab: usize) {
        self.tab = Tab::ALL[tab % Tab::ALL.len()];
        (self.selected, self.detail) = (0, None);
    }

    fn select(&mut self, line: usize, model: &Model) {
        self.selected = line.min(self.sheet(model).lines.len().saturating_sub(1));
    }
}
