//! The live table on a terminal, and plain lines elsewhere. Both show the same [`Observer`].

use crate::log;
use protocol::{Role, Uid, Window};
use ratatui::{
    Terminal, TerminalOptions, Viewport,
    backend::CrosstermBackend,
    widgets::{Paragraph, Widget as _, Wrap},
};
use std::io::{self, IsTerminal as _, Stdout};
use watch::{
    draw::{Page, View},
    observe::{Observer, outcome_word},
    units,
};

/// The display of the network's state.
pub enum Display {
    Live(Live),
    Plain(Plain),
}

/// The table, redrawn in place.
pub struct Live {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    rows: u16,
}

/// One line for each window and each fault. Holds how many have been printed.
#[derive(Default)]
pub struct Plain {
    windows: u32,
    faults: usize,
    missed: usize,
}

impl Display {
    /// Returns a live table if standard output is a terminal and `plain` is false.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn open(plain: bool) -> io::Result<Display> {
        if plain || !io::stdout().is_terminal() {
            return Ok(Display::Plain(Plain::default()));
        }
        let live = Live { terminal: terminal(1)?, rows: 1 };
        log::hold();
        Ok(Display::Live(live))
    }

    /// Shows changes.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        match self {
            Display::Live(live) => live.show(view),
            Display::Plain(plain) => {
                plain.show(view.observer);
                Ok(())
            }
        }
    }

    /// Restores the terminal, with the last table above the cursor.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub fn close(self) -> io::Result<()> {
        if let Display::Live(mut live) = self {
            // Below the table, at its final position on the screen.
            let bottom = live.terminal.get_frame().area().bottom();
            live.terminal.set_cursor_position((0, bottom.saturating_sub(1)))?;
            live.terminal.show_cursor()?;
            println!();
            log::release();
        }
        Ok(())
    }
}

fn terminal(rows: u16) -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    let options = TerminalOptions { viewport: Viewport::Inline(rows) };
    Terminal::with_options(CrosstermBackend::new(io::stdout()), options)
}

impl Live {
    fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        for line in log::take() {
            self.print_above(line)?;
        }
        let size = self.terminal.size()?;
        let page = Page::of(view, size.width.into(), size.height.into());
        let rows = u16::try_from(page.rows()).unwrap_or(u16::MAX).min(size.height).max(1);
        if rows != self.rows {
            // An inline viewport has a fixed height, so it is replaced.
            self.terminal.clear()?;
            let top = self.terminal.get_frame().area().top();
            self.terminal.set_cursor_position((0, top))?;
            self.terminal = terminal(rows)?;
            self.rows = rows;
        }
        self.terminal.draw(|frame| frame.render_widget(&page, frame.area()))?;
        Ok(())
    }

    fn print_above(&mut self, line: String) -> io::Result<()> {
        let width = usize::from(self.terminal.size()?.width).max(1);
        let rows = u16::try_from(line.chars().count().div_ceil(width).max(1)).unwrap_or(1);
        self.terminal.insert_before(rows, |buffer| {
            Paragraph::new(line).wrap(Wrap { trim: false }).render(buffer.area, buffer);
        })
    }
}

impl Plain {
    fn show(&mut self, observer: &Observer) {
        for fault in &observer.faults[self.faults..] {
            let seat = observer.name_of(Uid(fault.uid));
            println!(
                "window {:>4}  {} reports {seat}: {} ({})",
                fault.window, fault.by, fault.label, fault.reason
            );
        }
        self.faults = observer.faults.len();
        for (window, name, reason) in &observer.missed[self.missed..] {
            println!("window {:>4}  {name}: {reason}", window.0);
        }
        self.missed = observer.missed.len();
        // A window is printed once it is judged, or the next one is finalised.
        while self.windows < observer.windows()
            && (observer.held_out.contains_key(&Window(self.windows))
                || self.windows.saturating_add(1) < observer.windows())
        {
            println!("{}", window_line(observer, Window(self.windows)));
            self.windows += 1;
        }
    }
}

/// One finalised window on one line.
fn window_line(observer: &Observer, window: Window) -> String {
    let outcome = observer.outcomes.get(&window).map_or("", outcome_word);
    let loss = observer.held_out_loss(window).map_or("-".into(), units::loss);
    let shares: Vec<String> = observer
        .seats_of(Role::Miner)
        .filter_map(|seat| observer.weight_share(seat.id.uid))
        .map(units::percent)
        .collect();
    let weights =
        if shares.is_empty() { "no weights yet".to_owned() } else { format!("weights {}", shares.join(" ")) };
    let merged = match observer.last_merge {
        Some((merged, bytes, inputs)) if merged == window => {
            format!("  {}, {}", units::count(inputs, "contribution"), units::bytes(bytes))
        }
        _ => String::new(),
    };
    format!("window {:>4}  {outcome:<6}  held-out loss {loss:<11}  {weights}{merged}", window.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use watch::sample::network;

    #[test]
    fn the_plain_line_of_a_window() {
        let observer = network();
        let lines: Vec<String> = [0, 2, 5].map(|window| window_line(&observer, Window(window))).to_vec();
        expect![[r#"
            window    0  merged  held-out loss 7.99 ± 0.02  weights 34 % 33 % 32 % 0 %
            window    2  void: no agreement  held-out loss 5.31 ± 0.02  weights 34 % 33 % 32 % 0 %
            window    5  merged  held-out loss 3.28 ± 0.02  weights 34 % 33 % 32 % 0 %  4 contributions, 91.6 kB"#]]
        .assert_eq(&lines.join("\n"));
    }
}
