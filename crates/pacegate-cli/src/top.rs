//! `pacegate top`: what a running service is doing, in the terminal.

mod events;
mod figures;
mod frame;
mod screen;

use std::io::{ErrorKind, IsTerminal, Write, stdin, stdout};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::Failure;
use crate::client::ServiceArguments;
use events::{Source, Update};
use frame::{Sort, View};
use screen::Screen;

/// How wide a frame is that is not for a terminal.
const PLAIN_WIDTH: usize = 100;
/// How often it is looked whether somebody still wants keys.
const KEYS_LOOK: Duration = Duration::from_millis(100);

/// Watches a running service: allowed and blocked requests, latency, the heaviest and the most blocked keys, rules and stores, anew every second.
///
/// Needs a key of the role reader or admin. Without a terminal, or with --once, it prints what happened within a second and ends.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  PACEGATE_API_KEY=... pacegate top\n  pacegate top --server https://pacegate.example.com --ca ca.pem --once"
)]
pub(crate) struct Top {
    #[command(flatten)]
    service: ServiceArguments,
    /// Prints one frame as plain text and ends.
    #[arg(long)]
    once: bool,
}

/// What a key does.
enum Wish {
    Quit,
    Sort(Sort),
    Redraw,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let service = self.service.service()?;
        let view = View::new(service.url());
        let source = Source(service);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let plain = self.once || !stdout().is_terminal() || !stdin().is_terminal();
        let result = runtime.block_on(async {
            let (sender, updates) = mpsc::channel(1);
            tokio::spawn(source.follow(sender));
            if plain { once(view, updates).await } else { watch(view, updates).await }
        });
        // The thread that reads keys may still wait for one.
        runtime.shutdown_background();
        Ok(result?)
    }
}

/// Prints what happened between two figures.
async fn once(mut view: View, mut updates: mpsc::Receiver<Update>) -> anyhow::Result<()> {
    let mut first = None;
    loop {
        match updates.recv().await {
            Some(Update::Figures(figures)) => {
                let elapsed = first.as_ref().map(Instant::elapsed);
                view.update(*figures, elapsed);
                if elapsed.is_some() {
                    break;
                }
                first = Some(Instant::now());
            }
            Some(Update::Lost(reason)) => return Err(anyhow!(reason)),
            Some(Update::Refused(error)) => return Err(error),
            None => return Err(anyhow!("the figures ended")),
        }
    }
    let lines = view.lines(PLAIN_WIDTH, None);
    let text: String = lines.iter().map(|line| format!("{}\n", line.text().trim_end())).collect();
    match stdout().write_all(text.as_bytes()) {
        // Whoever reads has seen enough, as `head` does.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Shows figures as they come, until somebody has seen enough.
async fn watch(mut view: View, mut updates: mpsc::Receiver<Update>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut at = match updates.recv().await {
        Some(Update::Figures(figures)) => {
            view.update(*figures, None);
            Instant::now()
        }
        // An address that was never right is not tried for ever.
        Some(Update::Lost(reason)) => return Err(anyhow!(reason)),
        Some(Update::Refused(error)) => return Err(error),
        None => return Err(anyhow!("the figures ended")),
    };
    let mut screen = Screen::open()?;
    let mut wishes = wishes();
    loop {
        screen.draw(&view)?;
        tokio::select! {
            update = updates.recv() => match update {
                Some(Update::Figures(figures)) => {
                    view.update(*figures, Some(at.elapsed()));
                    at = Instant::now();
                }
                Some(Update::Lost(reason)) => view.lost = Some(reason),
                Some(Update::Refused(error)) => return Err(error),
                None => return Err(anyhow!("the figures ended")),
            },
            wish = wishes.recv() => match wish {
                Some(Wish::Sort(sort)) => view.sort = sort,
                Some(Wish::Redraw) => {}
                Some(Wish::Quit) | None => return Ok(()),
            },
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
        }
    }
}

/// Reads keys on a thread of its own: a terminal cannot be waited for otherwise.
fn wishes() -> mpsc::Receiver<Wish> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let wish = match crossterm::event::poll(KEYS_LOOK) {
                Ok(false) => continue,
                Ok(true) => crossterm::event::read().map(wish),
                Err(error) => Err(error),
            };
            // A terminal that cannot be read from is gone.
            let Some(wish) = wish.unwrap_or(Some(Wish::Quit)) else { continue };
            if sender.blocking_send(wish).is_err() {
                return;
            }
        }
    });
    receiver
}

fn wish(event: Event) -> Option<Wish> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else {
        return matches!(event, Event::Resize(..)).then_some(Wish::Redraw);
    };
    match code {
        _ if kind == KeyEventKind::Release => None,
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('b') => Some(Wish::Sort(Sort::Blocked)),
        KeyCode::Char('a') => Some(Wish::Sort(Sort::Allowed)),
        KeyCode::Char('n') => Some(Wish::Sort(Sort::Name)),
        _ => None,
    }
}
