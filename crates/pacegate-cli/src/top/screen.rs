//! The terminal: taken over while the view is on it, and given back however that ends.

use std::io::{Stdout, Write, stdout};
use std::sync::Once;

use crossterm::style::{Attribute, Color, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};

use super::frame::{Line, Style, View};

/// The terminal, for as long as this lives.
pub(super) struct Screen {
    out: Stdout,
}

impl Screen {
    pub(super) fn open() -> anyhow::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| before_panics(give_back));
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
        give_back();
    }
}

/// Giving it back twice does no harm.
fn give_back() {
    let _ = execute!(stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Has `first` done before a panic is reported, so that the report can be read.
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
    fn a_panic_gives_the_terminal_back_first() {
        let given_back = Arc::new(AtomicBool::new(false));
        let noted = given_back.clone();
        before_panics(move || noted.store(true, Ordering::SeqCst));
        assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
        assert!(given_back.load(Ordering::SeqCst));
    }
}
