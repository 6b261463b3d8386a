//! Draws the screen of `ums top` from the model and the user's choices. Drawing reads and changes
//! nothing else, so tests can compare whole screens.
//!
//! ```text
//!   head: process, totals                                     2 lines
//!   schedulers, a bar each                                    at most a third of the height
//!   tabs, and the list of one | from 132 columns on: top waits and the monitor's reports
//!   narrow: top waits and the monitor's reports, a line each
//!   keys                                                      1 line
//! ```

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line as Words, Span};
use ratatui::widgets::{Block, Borders, Cell as Field, Paragraph, Row, Table};

use super::model::{Finding, Model, Scheduler, busiest, count_text, span_text};
use super::sheet::{Cell, Line, Sheet, Tab};
use super::state::State;
use crate::words::counted;

/// From this width on the lists have a side panel.
const WIDE: u16 = 132;
/// The width of the names on a worker's page.
const NAMES: usize = 12;
/// The width of the side panel.
const SIDE: u16 = 46;

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().fg(Color::DarkGray);
const BELOW: Style = FAINT.add_modifier(Modifier::ITALIC);
const ALARM: Style = Style::new().fg(Color::LightRed).add_modifier(Modifier::BOLD);

/// Draws everything. Returns how many lines of a worker's page are above the screen.
pub fn draw(frame: &mut Frame<'_>, model: &Model, state: &State) -> usize {
    let area = frame.area();
    let all = model.schedulers();
    let most = usize::from(area.height / 3).max(2);
    let others = all.len().saturating_sub(most);
    let schedulers = busiest(all, most);
    let shown = schedulers.len();
    let wide = area.width >= WIDE;
    let [head, bars, tabs, middle, foot, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(shown as u16 + 1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(if wide { 0 } else { 2 }),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, model, state);
    draw_schedulers(frame, bars, &schedulers, others);
    draw_tabs(frame, tabs, state);
    let [list, side] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(if wide { SIDE } else { 0 })])
            .areas(middle);
    let scrolled = match state.detail {
        Some(worker) => draw_worker(frame, list, model, worker, state.scrolled),
        None => {
            draw_sheet(frame, list, &state.sheet(model), state);
            0
        }
    };
    if wide {
        draw_side(frame, side, model);
    } else {
        let lines = vec![waits_line(model, foot.width), findings_line(model, foot.width)];
        frame.render_widget(Paragraph::new(lines), foot);
    }
    frame.render_widget(Paragraph::new(keys_line(state)), keys);
    scrolled
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model, state: &State) {
    let t = model.totals();
    let now = &model.now;
    let rhythm = match (&state.trouble, state.paused) {
        (Some(trouble), _) => Span::styled(format!("{trouble} "), ALARM),
        (None, true) => Span::styled("PAUSED ", HEAD.fg(Color::Yellow)),
        (None, false) => Span::raw(format!("every {} s ", state.every.as_secs_f64())),
    };
    let hidden = if t.hidden > 0 { format!(" + {} hidden", t.hidden) } else { String::new() };
    let kind = t.kind.to_lowercase();
    let title = vec![
        Span::styled("ums top", HEAD.fg(Color::Cyan)),
        Span::styled(format!("  {} {}", now.program, now.pid), HEAD),
        Span::raw(format!("  {}{hidden}, {kind} workers", counted(t.schedulers, "scheduler"))),
    ];
    let rate = |rate: Option<f64>| rate.map_or("-".into(), count_text);
    let totals = Words::from(vec![
        Span::raw(format!("done/s {}  switches/s {}", rate(t.done), rate(t.switches))),
        Span::raw(format!("  workers {} of {}", t.workers, t.workers_max)),
        Span::styled(
            format!("  queued {}", t.queued),
            if t.queued > 0 { ALARM } else { Style::new() },
        ),
        // The least important words are last, because a narrow screen cuts them.
        Span::raw(format!("  users {}, {} busy", t.users, t.users_busy)),
    ]);
    let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    frame.render_widget(Paragraph::new(Words::from(title)), first);
    // If both do not fit, this text covers the title, because a problem is more important.
    let width = (rhythm.width() as u16).min(first.width);
    let right = Rect { x: first.right() - width, width, ..first };
    frame.render_widget(Paragraph::new(Words::from(rhythm)), right);
    frame.render_widget(Paragraph::new(totals), second);
}

fn draw_schedulers(frame: &mut Frame<'_>, area: Rect, shown: &[Scheduler], others: usize) {
    let name = if area.width < 100 { 8 } else { 14 };
    let bar = area.width.saturating_sub(62 + name).clamp(10, 60);
    let widths = [name, bar, 4, 8, 6, 4, 4, 4, 4, 9, 5, 3].map(Constraint::Length);
    let heads = [
        "sched", "busy", "", "switch/s", "done/s", "run", "wait", "idle", "out", "workers",
        "queue", "I/O",
    ];
    let right = |text: &str| Words::from(text.to_owned()).right_aligned();
    let head = heads.iter().enumerate().map(|(at, text)| match at {
        0 | 1 => Field::from(*text),
        _ => Field::from(right(text)),
    });
    let rate = |rate: Option<f64>| right(&rate.map_or("-".into(), count_text));
    let rows = shown.iter().map(|s| {
        let busy = s.busy.unwrap_or(0.0);
        let alarm = if s.is_out_of_workers() { ALARM } else { Style::new() };
        let base = if s.is_hidden { FAINT } else { Style::new() };
        let percent = s.busy.map_or("-".into(), |busy| format!("{:.0}%", busy * 100.0));
        let count = |n: i64| right(&n.to_string());
        Row::new(vec![
            Field::from(s.name.clone()),
            Field::from(Span::styled(bar_text(busy, bar), bar_style(busy))),
            Field::from(right(&percent)),
            Field::from(rate(s.switches)),
            Field::from(rate(s.done)),
            Field::from(count(s.runnable)),
            Field::from(count(s.waiting)),
            Field::from(count(s.idle)),
            Field::from(count(s.preemptive)),
            Field::from(right(&share_text(s.workers, s.workers_max))).style(alarm),
            Field::from(count(s.queued)).style(alarm),
            Field::from(count(s.io)),
        ])
        .style(base)
    });
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(HEAD.add_modifier(Modifier::UNDERLINED)));
    frame.render_widget(table, area);
    if others > 0 && area.width > 20 {
        let text = format!("+{others} idler");
        let place = Rect { x: area.x + 10, y: area.y, width: 12, height: 1 };
        frame.render_widget(Paragraph::new(text).style(FAINT), place);
    }
}

/// Returns a number of workers and the most that there may be, in nine characters.
fn share_text(n: i64, most: i64) -> String {
    let short = |n: i64| if n < 10_000 { n.to_string() } else { format!("{}k", n / 1000) };
    format!("{}/{}", short(n), short(most))
}

/// Returns a bar in eighths of a character.
fn bar_text(share: f64, width: u16) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * f64::from(width) * 8.0).round() as usize;
    "█".repeat(eighths / 8) + PARTS[eighths % 8]
}

fn bar_style(share: f64) -> Style {
    Style::new().fg(match share {
        share if share >= 0.9 => Color::Red,
        share if share >= 0.6 => Color::Yellow,
        _ => Color::Green,
    })
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let chosen = Style::new().add_modifier(Modifier::REVERSED);
    let mut words = Vec::new();
    for (at, tab) in Tab::ALL.into_iter().enumerate() {
        let style = if tab == state.tab { chosen } else { Style::new() };
        words.push(Span::styled(format!(" {} {} ", at + 1, tab.name()), style));
    }
    let line = Words::from(words).style(Style::new().bg(Color::Indexed(236)));
    frame.render_widget(Paragraph::new(line).bg(Color::Indexed(236)), area);
}

fn draw_sheet(frame: &mut Frame<'_>, area: Rect, sheet: &Sheet, state: &State) {
    // As many columns are shown as fit. The first columns are the most important.
    let mut room = area.width;
    let fits = |&&(_, width): &&(&str, u16)| {
        let fit = room >= width;
        room = room.saturating_sub(width + 1);
        fit
    };
    let count = sheet.heads.iter().take_while(fits).count();
    let (by, down) = state.sort();
    let is_number = |at: usize| sheet.lines.iter().any(|line| line.cells[at].is_number());
    let head = sheet.heads[..count].iter().enumerate().map(|(at, (name, _))| {
        let mark = if at != by {
            ""
        } else if down {
            "↓"
        } else {
            "↑"
        };
        let text = Words::from(format!("{name}{mark}"));
        Field::from(if is_number(at) { text.right_aligned() } else { text })
    });
    let last = sheet.lines.len().saturating_sub(1);
    let selected = state.selected.min(last);
    let below =
        sheet.lines.get(selected).map_or(String::new(), |line| left_out(sheet, line, count));
    let below = wrap(&below, usize::from(area.width));
    let [area, foot] = match area.height {
        0..6 => [area, Rect::ZERO],
        _ => Layout::vertical([Constraint::Min(0), Constraint::Length(below.len() as u16)])
            .areas(area),
    };
    frame.render_widget(Paragraph::new(below.join("\n")).style(BELOW), foot);
    let rows_shown = usize::from(area.height.saturating_sub(1));
    // The list moves only when the selected line would leave it.
    let first = (selected + 1).saturating_sub(rows_shown);
    let rows = sheet.lines.iter().enumerate().skip(first).take(rows_shown).map(|(at, line)| {
        let style = line_style(line);
        let style = if at == selected { style.add_modifier(Modifier::REVERSED) } else { style };
        Row::new(line.cells[..count].iter().map(field)).style(style)
    });
    let widths = sheet.heads[..count].iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths).header(Row::new(head).style(HEAD));
    frame.render_widget(table, area);
    if sheet.lines.is_empty() && area.height > 1 {
        let place = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Paragraph::new("(none)").style(FAINT), place);
    }
}

/// Returns the cells of the chosen line for which the screen has no column.
fn left_out(sheet: &Sheet, line: &Line, count: usize) -> String {
    let cells = sheet.heads.iter().zip(&line.cells).skip(count);
    let cells = cells.map(|((head, _), cell)| (head, cell.text()));
    let cells = cells.filter(|(_, text)| !text.is_empty());
    cells.map(|(head, text)| format!("{head}: {text}")).collect::<Vec<_>>().join("   ")
}

/// Breaks a text between words, or in a word that is longer than a line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let length = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(last) if length(last) + 1 + length(word) <= width => *last += &format!(" {word}"),
            _ => {
                let chars: Vec<char> = word.chars().collect();
                lines.extend(chars.chunks(width).map(|part| part.iter().collect::<String>()));
            }
        }
    }
    lines
}

fn field(cell: &Cell) -> Field<'static> {
    let text = Words::from(cell.text());
    Field::from(if cell.is_number() { text.right_aligned() } else { text })
}

fn line_style(line: &Line) -> Style {
    let state = line.cells.iter().find_map(|cell| match cell {
        Cell::Text(text) => match text.as_str() {
            "RUNNING" | "IDLING" => Some(Style::new().fg(Color::LightGreen)),
            "RUNNABLE" | "PENDING" => Some(Style::new().fg(Color::LightYellow)),
            "PREEMPTIVE" | "HOLDING" => Some(Style::new().fg(Color::LightMagenta)),
            "IDLE" => Some(FAINT),
            _ => None,
        },
        _ => None,
    });
    state.unwrap_or_default()
}

/// Draws the details of one worker: its state, what it waits for, the chain of holders, and its
/// functions. Long lines are wrapped, and what does not fit is scrolled to.
fn draw_worker(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    id: (i64, i64),
    scrolled: usize,
) -> usize {
    let room = usize::from(area.width).saturating_sub(NAMES).max(1);
    let mut lines = Vec::new();
    for (name, text) in worker_lines(model, id) {
        for (n, part) in wrap(&text, room).into_iter().enumerate() {
            let name = if n == 0 { name } else { "" };
            let name = Span::styled(format!("{name:NAMES$}"), FAINT);
            lines.push(Words::from(vec![name, Span::raw(part)]));
        }
    }
    let height = usize::from(area.height.saturating_sub(1));
    let first = scrolled.min(lines.len().saturating_sub(height));
    let below = lines.len().saturating_sub(first + height);
    let more = if below > 0 { format!(" ↓ {below} more ") } else { String::new() };
    let title = format!(" worker {} of scheduler {} ", id.1, id.0);
    let block = Block::new()
        .borders(Borders::TOP)
        .title(Span::styled(title, HEAD))
        .title(Words::from(Span::styled(more, HEAD)).right_aligned());
    let shown: Vec<_> = lines.into_iter().skip(first).collect();
    frame.render_widget(Paragraph::new(shown).block(block), area);
    first
}

/// Returns the lines of a worker's page, each with its name.
fn worker_lines(model: &Model, id: (i64, i64)) -> Vec<(&'static str, String)> {
    let Some(row) = model.worker(id) else { return vec![("", "It has ended.".into())] };
    let pair = |name: &'static str, text: String| (name, text);
    let waits = match (row.text("wait_type").as_str(), row.text("last_wait_type").as_str()) {
        ("", "") => String::new(),
        ("", last) => format!(", last waited for {last}"),
        (now, _) => format!(" for {now}, {}", span_text(row.number("wait_duration_ms") * 1000)),
    };
    let thread = match row.number("os_thread_id") {
        0 => "a fiber".to_owned(),
        thread => format!("kernel thread {thread}"),
    };
    let kib = |column| row.number(column) / 1024;
    let mut lines = vec![
        pair("state", row.text("state") + &waits),
        pair("made of", thread),
        pair("stack", format!("{} KiB used of {}", kib("stack_bytes_used"), kib("stack_bytes"))),
        pair(
            "so far",
            format!(
                "{}, {}",
                counted(row.number("tasks_processed_count") as usize, "request"),
                switches(row.number("context_switch_count"))
            ),
        ),
    ];
    let request = row.number("request_id");
    let found =
        model.now.rows("ums_requests").find(|r| request != 0 && r.number("request_id") == request);
    if let Some(of) = found {
        lines.push(pair(
            "request",
            format!(
                "{request} of user {}: queued {}, running for {}, {}",
                of.number("user_id"),
                span_text(of.number("queueing_time_microseconds")),
                span_text(of.number("elapsed_us")),
                switches(of.number("context_switches_count")),
            ),
        ));
        let waits =
            model.now.rows("ums_request_waits").filter(|w| w.number("request_id") == request);
        for wait in waits {
            let (name, count) = (wait.text("wait_type"), wait.number("completed_waits"));
            let time = span_text(wait.number("wait_time_us"));
            let times = counted(count as usize, "time");
            lines.push(pair("", format!("waited {times} for {name}, {time} in all")));
        }
    }
    let chain = model.chain(id).into_iter().enumerate();
    lines.extend(chain.map(|(at, text)| pair(if at == 0 { "wait chain" } else { "" }, text)));
    if let Some((_, stack)) = model.stack.as_ref().filter(|(worker, _)| *worker == id) {
        let functions = stack.iter().cloned().enumerate();
        lines.extend(functions.map(|(at, text)| pair(if at == 0 { "in" } else { "" }, text)));
    }
    lines
}

/// Draws the side panel of a wide screen.
fn draw_side(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let findings = model.findings();
    let below = (findings.len() as u16 + 2).max(3);
    let [top, bottom] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(below)]).areas(area);
    let block = |title: &'static str| {
        Block::new().borders(Borders::LEFT | Borders::TOP).title(title).border_style(FAINT)
    };
    let words = |text: String| Words::from(text);
    let mut lines = vec![
        words(format!("{:20}{:>7}{:>8}{:>9}", "", "waiting", "waits/s", "time/s")).style(HEAD),
    ];
    lines.extend(model.waits().into_iter().map(|wait| {
        let rate = wait.rate.map_or("-".into(), count_text);
        let us = wait.us_rate.map_or("-".into(), |us| span_text(us as i64));
        words(format!("{:20.20}{:>7}{rate:>8}{us:>9}", wait.name, wait.waiting))
    }));
    frame.render_widget(Paragraph::new(lines).block(block(" top waits ")), top);
    let mut lines =
        vec![words(format!("{:20}{:>7}{:>8}{:>9}", "", "reports", "new", "left out")).style(HEAD)];
    lines.extend(findings.into_iter().map(|found| {
        let style = match (found.new, found.reports) {
            (1.., _) => ALARM,
            (_, 1..) => Style::new().fg(Color::Yellow),
            _ => FAINT,
        };
        words(format!(
            "{:20}{:>7}{:>8}{:>9}",
            found.condition, found.reports, found.new, found.suppressed
        ))
        .style(style)
    }));
    if lines.len() == 1 {
        lines = vec![words("there is no monitor".into()).style(FAINT)];
    }
    frame.render_widget(Paragraph::new(lines).block(block(" monitor ")), bottom);
}

fn switches(n: i64) -> String {
    if n == 1 { "1 switch".into() } else { format!("{n} switches") }
}

fn waits_line(model: &Model, width: u16) -> Words<'static> {
    let some =
        model.waits().into_iter().filter(|w| w.us_rate.unwrap_or(0.0) > 0.0 || w.waiting > 0);
    let words = some.map(|wait| {
        let us = wait.us_rate.map_or("-".into(), |us| span_text(us as i64));
        Span::raw(format!(" {}: {} now, {us}/s ", wait.name, wait.waiting))
    });
    fitting("top waits ", words.collect(), width)
}

fn findings_line(model: &Model, width: u16) -> Words<'static> {
    let all = model.findings();
    let words = if all.is_empty() {
        vec![Span::styled(" there is no monitor", FAINT)]
    } else if all.iter().all(|found| found.reports == 0) {
        vec![Span::styled(" nothing found", FAINT)]
    } else {
        let found = all.into_iter().filter(|found| found.reports > 0);
        let word = |found: Finding| {
            let style = if found.new > 0 { ALARM } else { Style::new().fg(Color::Yellow) };
            Span::styled(format!(" {} {} ", found.condition, found.reports), style)
        };
        found.map(word).collect()
    };
    fitting("monitor   ", words, width)
}

/// Returns a line with as many of these words as fit, and the number of the others.
fn fitting(head: &'static str, words: Vec<Span<'static>>, width: u16) -> Words<'static> {
    const MORE: usize = " +99".len();
    let mut line = vec![Span::styled(head, HEAD)];
    let mut room = usize::from(width).saturating_sub(head.len());
    let count = words.len();
    for (at, word) in words.into_iter().enumerate() {
        let kept = if at + 1 == count { 0 } else { MORE };
        if word.width() + kept > room {
            line.push(Span::raw(format!(" +{}", count - at)));
            break;
        }
        room -= word.width();
        line.push(word);
    }
    Words::from(line)
}

fn keys_line(state: &State) -> Words<'static> {
    let keys: &[(&str, &str)] = match state.detail {
        Some(_) => &[
            ("Esc", "back"),
            ("↑↓", "scroll"),
            ("b", "functions again"),
            ("p", "pause"),
            ("+-", "every"),
            ("q", "quit"),
        ],
        None => &[
            ("1-7", "list"),
            ("↑↓", "line"),
            ("Enter", "worker"),
            ("s", "sort"),
            ("r", "reverse"),
            ("i", "idle"),
            ("p", "pause"),
            ("+-", "every"),
            ("q", "quit"),
        ],
    };
    let words = keys.iter().flat_map(|(key, what)| {
        [Span::styled(format!(" {key}"), HEAD.fg(Color::Cyan)), Span::raw(format!(" {what}"))]
    });
    Words::from(words.collect::<Vec<_>>())
}
