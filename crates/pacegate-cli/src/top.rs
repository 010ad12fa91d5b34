//! `pacegate top`: live figures of a running service in the terminal.

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

/// Width of a frame that is not for a terminal.
const PLAIN_WIDTH: usize = 100;
/// Time after which the thread that reads keys checks whether it is still needed.
const KEYS_POLL: Duration = Duration::from_millis(100);

/// Shows live figures of a running service, updated every second: allowed and blocked requests,
/// latency, the heaviest and the most blocked keys, rules and stores.
///
/// Needs an API key with the role reader or admin. Without a terminal, or with --once, it prints
/// the figures of one second and exits.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  PACEGATE_API_KEY=... pacegate top\n  pacegate top --server https://pacegate.example.com --ca ca.pem --once"
)]
pub(crate) struct Top {
    #[command(flatten)]
    service: ServiceArguments,
    /// Prints one frame as plain text and exits.
    #[arg(long)]
    once: bool,
}

/// What a pressed key does.
enum Command {
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
        // The thread that reads keys can still be waiting for one.
        runtime.shutdown_background();
        Ok(result?)
    }
}

/// Prints the figures of one second.
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
            Some(Update::Rejected(error)) => return Err(error),
            None => return Err(anyhow!("the service closed the stream of figures")),
        }
    }
    let lines = view.lines(PLAIN_WIDTH, None);
    let text: String = lines.iter().map(|line| format!("{}\n", line.text().trim_end())).collect();
    match stdout().write_all(text.as_bytes()) {
        // A reader such as `head` can stop early.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Shows figures until the user quits.
async fn watch(mut view: View, mut updates: mpsc::Receiver<Update>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut at = match updates.recv().await {
        Some(Update::Figures(figures)) => {
            view.update(*figures, None);
            Instant::now()
        }
        // Without a first connection, the address is probably wrong: do not retry.
        Some(Update::Lost(reason)) => return Err(anyhow!(reason)),
        Some(Update::Rejected(error)) => return Err(error),
        None => return Err(anyhow!("the service closed the stream of figures")),
    };
    let mut screen = Screen::open()?;
    let mut commands = commands();
    loop {
        screen.draw(&view)?;
        tokio::select! {
            update = updates.recv() => match update {
                Some(Update::Figures(figures)) => {
                    view.update(*figures, Some(at.elapsed()));
                    at = Instant::now();
                }
                Some(Update::Lost(reason)) => view.lost = Some(reason),
                Some(Update::Rejected(error)) => return Err(error),
                None => return Err(anyhow!("the service closed the stream of figures")),
            },
            command = commands.recv() => match command {
                Some(Command::Sort(sort)) => view.sort = sort,
                Some(Command::Redraw) => {}
                Some(Command::Quit) | None => return Ok(()),
            },
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
        }
    }
}

/// Reads keys on a separate thread, because reading from a terminal blocks.
fn commands() -> mpsc::Receiver<Command> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let command = match crossterm::event::poll(KEYS_POLL) {
                Ok(false) => continue,
                Ok(true) => crossterm::event::read().map(command),
                Err(error) => Err(error),
            };
            // A terminal that cannot be read is gone.
            let Some(command) = command.unwrap_or(Some(Command::Quit)) else { continue };
            if sender.blocking_send(command).is_err() {
                return;
            }
        }
    });
    receiver
}

fn command(event: Event) -> Option<Command> {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else {
        return matches!(event, Event::Resize(..)).then_some(Command::Redraw);
    };
    match code {
        _ if kind == KeyEventKind::Release => None,
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Command::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Command::Quit),
        KeyCode::Char('b') => Some(Command::Sort(Sort::Blocked)),
        KeyCode::Char('a') => Some(Command::Sort(Sort::Allowed)),
        KeyCode::Char('n') => Some(Command::Sort(Sort::Name)),
        _ => None,
    }
}
