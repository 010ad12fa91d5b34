//! The terminal screen. It is restored when the command ends, also after a panic.

use std::io::{Stdout, Write, stdout};
use std::sync::Once;

use crossterm::style::{Attribute, Color, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};

use super::frame::{Line, Style, View};

/// The alternate screen of the terminal. Dropping it restores the terminal.
pub(super) struct Screen {
    out: Stdout,
}

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| before_panics(restore));
        let mut screen = Self { out: stdout() };
        enable_raw_mode()?;
        execute!(screen.out, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, view: &View) -> anyhow::Result<()> {
        let (width, height) = size()?;
        queue!(self.out, BeginSynchronizedUpdate)?;
        let lines = view.lines(usize::from(width), Some(usize::from(height)));
        for (row, line) in (0..height).zip(&lines) {
            queue!(self.out, cursor::MoveTo(0, row))?;
            self.write(line)?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        Ok(self.out.flush()?)
    }

    fn write(&mut self, line: &Line) -> anyhow::Result<()> {
        for (style, text) in &line.0 {
            match style {
                Style::Plain => {}
                Style::Head => queue!(self.out, SetAttribute(Attribute::Bold))?,
                Style::Good => queue!(self.out, SetForegroundColor(Color::Green))?,
                Style::Bad => queue!(self.out, SetForegroundColor(Color::Red))?,
            }
            write!(self.out, "{text}")?;
            queue!(self.out, SetAttribute(Attribute::Reset))?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Calling it twice is harmless.
fn restore() {
    let _ = execute!(stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Runs `first` before a panic is reported, so that the report is visible.
fn before_panics(first: impl Fn() + Send + Sync + 'static) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        first();
        report(panic);
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "this is about panics")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn panic_restores_the_terminal_first() {
        let restored = Arc::new(AtomicBool::new(false));
        let called = restored.clone();
        before_panics(move || called.store(true, Ordering::SeqCst));
        assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
        assert!(restored.load(Ordering::SeqCst));
    }
}
