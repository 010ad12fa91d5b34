//! `pacegate top` against running services: one frame as text, and the live view in a terminal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use process::{Service, ask, file, pacegate, run, signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const RULES: &str = "rules: [{name: five, dimension: user, algorithm: fixed_window, limit: 5, window: 1d}]\n";
/// Time within which the live view must show something.
const TIMEOUT: Duration = Duration::from_secs(20);

fn service() -> Service {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), RULES);
    Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")])
}

/// A service at the address of an earlier one.
fn service_again(url: &str, key: &str) -> Service {
    let mut process = pacegate()
        .args(["serve", "--http", url.trim_start_matches("http://")])
        .env("PACEGATE_ADMIN_KEY", key)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    Service { process, output, url: url.to_owned(), grpc: String::new() }
}

fn check(service: &Service, user: &str) {
    let body = format!(r#"{{"user_id":"{user}","endpoint":"/"}}"#);
    service.ask("POST", "/v1/rate-limit/check", &body).unwrap();
}

#[test]
fn one_frame_shows_the_figures() {
    let service = service();
    for _ in 0..7 {
        check(&service, "alice");
    }
    // Without a terminal, it prints one frame.
    for once in [&["--once"][..], &[]] {
        let arguments = [&["top", "--server", &service.url, "--api-key", "secret"], once].concat();
        let (code, output, errors) = run(&arguments);
        assert_eq!((code, errors.as_str()), (0, ""), "{output}");
        let first = format!("pacegate {}  {}  ready  up ", env!("CARGO_PKG_VERSION"), service.url);
        assert!(output.starts_with(&first), "{output}");
        for part in [" allowed/s ", " blocked/s ", "latency: p50 ", "STORE  ", "RULE  ", "HEAVIEST KEYS  "] {
            assert!(output.contains(part), "{part} is not in:\n{output}");
        }
        let line = |name: &str| {
            let line = output.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("five ").starts_with("five fixed_window ") && line("five ").ends_with(" 2"), "{output}");
        assert_eq!(line("user alice"), "user alice 5 2 user alice 5 2", "{output}");
        assert!(line("default ").starts_with("default up closed 1 "), "{output}");
        assert!(!output.contains('\u{1b}'), "plain text: {output:?}");
    }
    let (code, _, errors) = run(&["top", "--once", "--server", "http://127.0.0.1:1"]);
    assert_eq!(
        (code, errors.as_str()),
        (1, "error: could not reach http://127.0.0.1:1: Connection refused (os error 111)\n")
    );
}

#[test]
fn missing_permission_is_reported() {
    let service = service();
    let (_, created) = ask(&service.url, "POST", "/api/v1/keys", r#"{"role":"checker","name":"c"}"#).unwrap();
    let checker = created["secret"].as_str().unwrap_or_else(|| panic!("{created}"));
    for (key, status) in [("guess", "401 Unauthorized"), ("", "401 Unauthorized"), (checker, "403 Forbidden")]
    {
        let (code, output, errors) = run(&["top", "--server", &service.url, "--api-key", key]);
        assert_eq!((code, output.as_str()), (1, ""), "{errors}");
        assert!(
            errors.contains(&format!("returned {status}: ")) && errors.contains("role reader"),
            "{errors}"
        );
    }
    let (_, created) = ask(&service.url, "POST", "/api/v1/keys", r#"{"role":"reader","name":"r"}"#).unwrap();
    let mut command = pacegate();
    command
        .args(["top", "--server", &service.url])
        .env("PACEGATE_API_KEY", created["secret"].as_str().unwrap());
    assert!(command.output().unwrap().status.success());
    let (code, _, errors) = run(&["top", "--server", "ftp://x"]);
    assert!(code == 2 && errors.contains("--server: `ftp://x` must start with http://"), "{errors}");
}

/// A terminal with the live view.
struct Terminal {
    process: Child,
    /// The input of the terminal.
    keyboard: File,
    /// Kept open to read its settings.
    inside: OwnedFd,
    shown: mpsc::Receiver<String>,
    text: String,
}

impl Terminal {
    fn open(url: &str) -> Self {
        let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&outside).unwrap();
        unlockpt(&outside).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&outside, size).unwrap();
        let name = ptsname(&outside, Vec::new()).unwrap();
        let inside = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let end = || Stdio::from(inside.try_clone().unwrap());
        let process = pacegate()
            .args(["top", "--server", url, "--api-key", "secret"])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keyboard = File::from(outside);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut piece) {
                if sender.send(String::from_utf8_lossy(&piece[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { process, keyboard, inside: inside.into(), shown, text: String::new() }
    }

    /// Waits until the new output of the terminal contains `part`.
    fn wait_for(&mut self, part: &str) {
        while !self.text.contains(part) {
            match self.shown.recv_timeout(TIMEOUT) {
                Ok(piece) => self.text.push_str(&piece),
                Err(_) => panic!("timed out waiting for {part}:\n{}", self.text),
            }
        }
        self.text.clear();
    }

    /// Waits for the end, with `last` in the output, and asserts that the terminal is restored.
    fn ends(mut self, code: i32, last: &str) {
        assert_eq!(self.process.wait().unwrap().code(), Some(code));
        while !(self.text.contains("\u{1b}[?25h") && self.text.contains(last)) {
            self.text.push_str(&self.shown.recv_timeout(TIMEOUT).unwrap());
        }
        assert!(self.text.contains("\u{1b}[?1049l"), "the other screen is left: {:?}", self.text);
        let modes = tcgetattr(&self.inside).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn live_view_updates_and_restores_the_terminal() {
    let service = service();
    check(&service, "alice");
    let mut terminal = Terminal::open(&service.url);
    terminal.wait_for("user alice");
    terminal.wait_for("[n]ame");
    let modes = tcgetattr(&terminal.inside).unwrap().local_modes;
    assert!(!modes.contains(LocalModes::ICANON), "keys work without a return");
    check(&service, "bob");
    terminal.wait_for("user bob");
    // The current sort order is bold.
    terminal.keyboard.write_all(b"n").unwrap();
    terminal.wait_for("\u{1b}[1m[n]ame");
    terminal.keyboard.write_all(b"q").unwrap();
    terminal.ends(0, "");

    let mut terminal = Terminal::open(&service.url);
    terminal.wait_for("[n]ame");
    terminal.keyboard.write_all(b"\x03").unwrap();
    terminal.ends(0, "");

    for name in ["TERM", "INT", "HUP"] {
        let mut terminal = Terminal::open(&service.url);
        terminal.wait_for("[n]ame");
        signal(&terminal.process, name);
        terminal.ends(0, "");
    }
}

#[test]
fn live_view_reconnects_after_a_restart() {
    let mut gone = service();
    let url = gone.url.clone();
    let mut terminal = Terminal::open(&url);
    terminal.wait_for("ready");
    gone.kill();
    terminal.wait_for("reconnecting…");
    let back = service_again(&url, "secret");
    terminal.wait_for("ready");
    check(&back, "carol");
    terminal.wait_for("user carol");
    drop(back);

    // After a restart with another key, the view ends with the error.
    terminal.wait_for("reconnecting…");
    let _other = service_again(&url, "another");
    terminal.ends(1, "returned 401 Unauthorized");
}
