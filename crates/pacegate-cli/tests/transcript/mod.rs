//! Runs the `console` blocks of a page and compares what they print with what the page shows.
//!
//! Every page has a directory and a service of its own. Pages write `127.0.0.1:8080` and
//! `127.0.0.1:8081`; commands get the ports on which the page's service really listens.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use regex::Regex;
use tempfile::TempDir;

use crate::markdown::{Block, Page};

const HTTP: &str = "127.0.0.1:8080";
const GRPC: &str = "127.0.0.1:8081";
/// Ports of programs that pages start in the background (`command &`), such as a proxy.
const BACKGROUND: [&str; 3] = ["127.0.0.1:8090", "127.0.0.1:8091", "127.0.0.1:3000"];
/// Printed after each command, so that outputs can be told apart.
const END: char = '\u{1}';

/// Runs a page's blocks from top to bottom. Returns what differs.
pub(crate) fn run(page: &Page) -> Vec<String> {
    let mut session = Session::new();
    let mut failures = Vec::new();
    for block in page.blocks() {
        let place = format!("{}:{}", page.name, block.line);
        if let Some(name) = block.marks.get("file").or(block.marks.get("service")) {
            session.write(name, &block.text);
        }
        if let Some(name) = block.marks.get("service") {
            let arguments = if name == "default" { vec![] } else { vec!["--config", name.as_str()] };
            let printed = session.serve(&[], &arguments);
            if session.service.is_none() {
                failures.push(format!("{place}: the service did not start:\n{printed}"));
            }
        }
        if block.language != "console" || block.marks.contains_key("not run") {
            continue;
        }
        let steps = steps(&block);
        if steps.is_empty() {
            failures.push(format!("{place}: neither a command (`$ `) nor marked `<!-- not run: reason -->`"));
        }
        for (step, printed) in steps.iter().zip(session.console(&steps)) {
            if let Err(difference) = compare(&step.expected, &printed) {
                failures.push(format!("{place}: $ {}\n{difference}", step.command));
            }
        }
    }
    failures
}

struct Step {
    command: String,
    expected: String,
}

impl Step {
    fn in_background(&self) -> bool {
        self.command.split(" #").next().unwrap().trim_end().ends_with('&')
    }
}

/// A line that starts with `$ ` is a command; it goes on while lines end with a backslash, and on
/// lines that start with `> `. What follows is its output.
fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continued = false;
    for line in block.text.lines() {
        let start = line.strip_prefix("$ ");
        if let Some(command) = start {
            steps.push(Step { command: command.to_owned(), expected: String::new() });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ") {
                _ if continued => write!(step.command, "\n{line}").unwrap(),
                Some(more) if step.expected.is_empty() => write!(step.command, "\n{more}").unwrap(),
                _ => writeln!(step.expected, "{line}").unwrap(),
            }
        }
        continued = line.ends_with('\\') && (start.is_some() || continued);
    }
    steps
}

struct Session {
    directory: TempDir,
    service: Option<Service>,
    /// A free address for each of `BACKGROUND`, held until a program needs it.
    free: Vec<String>,
    held: Vec<Option<TcpListener>>,
    background: Vec<Background>,
}

/// A program that the page started with `&`, stopped with the page.
struct Background(Child, #[expect(dead_code, reason = "keeps the pipe open")] BufReader<ChildStdout>);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running service, stopped with the page.
struct Service {
    process: Child,
    _output: BufReader<ChildStdout>,
    http: String,
    grpc: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Session {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join(".bin");
        std::fs::create_dir(&bin).unwrap();
        // Commands that call a service call this page's, unless they name one.
        let pacegate = format!(
            "case \"$1\" in check|healthcheck|top|users) case \" $* \" in *\" --server \"*) ;; *) set -- \"$@\" --server \"http://$PAGE_HTTP\" ;; esac ;; esac\nexec {} \"$@\"",
            env!("CARGO_BIN_EXE_pacegate")
        );
        // `cargo run -q --release -- check …` runs the program that the test was built with.
        let cargo =
            "[ \"$1\" = run ] || exit 1\nwhile [ \"$1\" != -- ]; do shift; done; shift\nexec pacegate \"$@\"";
        for (name, script) in [("pacegate", pacegate.as_str()), ("cargo", cargo)] {
            executable(&bin.join(name), &format!("#!/bin/sh\n{script}\n"));
        }
        let held = BACKGROUND.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let free = held.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        Self { directory, service: None, free, held: held.map(Some).into(), background: Vec::new() }
    }

    fn write(&mut self, name: &str, text: &str) {
        if text.contains(HTTP) && !name.ends_with(".yaml") {
            self.ensure_service();
        }
        std::fs::write(self.directory.path().join(name), self.real(text)).unwrap();
    }

    fn ensure_service(&mut self) {
        if self.service.is_none() {
            let printed = self.serve(&[], &[]);
            assert!(self.service.is_some(), "the default service did not start:\n{printed}");
        }
    }

    /// Documented addresses, each with the real one.
    fn addresses(&self) -> Vec<(&str, &str)> {
        let mut addresses: Vec<_> =
            BACKGROUND.iter().copied().zip(self.free.iter().map(String::as_str)).collect();
        if let Some(service) = &self.service {
            addresses.extend([(HTTP, service.http.as_str()), (GRPC, service.grpc.as_str())]);
        }
        addresses
    }

    /// Replaces the documented addresses by the real ones.
    fn real(&self, text: &str) -> String {
        let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
        let upstream = format!("http.server {}", port(&self.free[2]));
        let text = text.replace("http.server 3000", &upstream);
        self.addresses().iter().fold(text, |text, (documented, real)| text.replace(documented, real))
    }

    /// Replaces the real addresses by the documented ones.
    fn documented(&self, text: &str) -> String {
        self.addresses()
            .iter()
            .fold(text.to_owned(), |text, (documented, real)| text.replace(real, documented))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PACEGATE_")) {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap();
        let bin = self.directory.path().join(".bin");
        command.env("PATH", format!("{}:{path}", bin.display())).current_dir(self.directory.path());
        command.env("NO_COLOR", "1").env("PYTHONUNBUFFERED", "1");
        if let Some(service) = &self.service {
            command.env("PAGE_HTTP", &service.http);
        }
        command
    }

    /// Starts this page's service, in place of an earlier one. Returns what it prints.
    fn serve(&mut self, environment: &[(&str, &str)], arguments: &[&str]) -> String {
        self.service = None;
        let errors = self.directory.path().join(".stderr");
        let mut command = self.command("pacegate");
        command
            .env("PACEGATE_ADMIN_KEY", "change-me-before-use")
            .env("PACEGATE_SERVER__DRAIN_DELAY", "0s")
            .envs(environment.iter().copied())
            .arg("serve")
            .args(arguments)
            .args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors).unwrap());
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = Regex::new(r"127\.0\.0\.1:[0-9]+").unwrap();
        let mut addresses = address.find_iter(&line).map(|found| found.as_str().to_owned());
        if let (Some(http), Some(grpc)) = (addresses.next(), addresses.next()) {
            self.service = Some(Service { process, _output: output, http, grpc });
            return self.documented(&line);
        }
        process.wait().unwrap();
        line + &std::fs::read_to_string(errors).unwrap()
    }

    /// Runs the steps of one block. Returns what each printed.
    fn console(&mut self, steps: &[Step]) -> Vec<String> {
        if let [Step { command, .. }] = steps
            && let Some((environment, arguments)) = serve_command(command)
        {
            return vec![self.serve(&environment, &arguments)];
        }
        self.ensure_service();
        let mut printed = Vec::new();
        for group in steps.chunk_by(|a, b| !a.in_background() && !b.in_background()) {
            if group[0].in_background() {
                printed.push(self.start(&group[0].command));
            } else {
                printed.extend(self.shell(group));
            }
        }
        printed
    }

    /// Runs the commands in one shell.
    fn shell(&self, steps: &[Step]) -> Vec<String> {
        let mut script = String::from("exec 2>&1\n");
        for step in steps {
            writeln!(script, "{}\nprintf '{END}\\n'", self.real(&step.command)).unwrap();
        }
        let mut shell = self.command("timeout");
        shell.args(["120", "bash", "-c", &script]);
        let mut shell = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = Vec::new();
        shell.stdout.take().unwrap().read_to_end(&mut printed).unwrap();
        shell.wait().unwrap();
        let printed = self.documented(&String::from_utf8_lossy(&printed));
        let mut outputs: Vec<String> = printed.split(END).map(ToOwned::to_owned).collect();
        outputs.resize(steps.len(), "(did not run)".to_owned());
        outputs
    }

    /// Starts a program and waits for its first line.
    fn start(&mut self, command: &str) -> String {
        for (address, held) in BACKGROUND.iter().zip(&mut self.held) {
            if command.contains(address.rsplit(':').next().unwrap()) {
                *held = None;
            }
        }
        let command = self.real(command.split(" #").next().unwrap().trim().trim_end_matches('&'));
        let mut shell = self.command("bash");
        shell.args(["-c", &format!("exec {command} 2>&1")]);
        let mut process = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        self.background.push(Background(process, output));
        self.documented(&line)
    }
}

fn executable(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

type Environment<'a> = Vec<(&'a str, &'a str)>;

/// Splits a command that starts the service into its environment and its arguments.
fn serve_command(command: &str) -> Option<(Environment<'_>, Vec<&str>)> {
    let mut words = command.split_whitespace().peekable();
    let mut environment = Vec::new();
    while let Some(pair) = words.peek().and_then(|word| word.split_once('=')) {
        environment.push(pair);
        words.next();
    }
    let rest: Vec<&str> = words.collect();
    let rest = match rest.iter().position(|word| *word == "--") {
        Some(dashes) if rest[0] == "cargo" => &rest[dashes + 1..],
        _ => rest.strip_prefix(&["pacegate"])?,
    };
    Some((environment, rest.strip_prefix(&["serve"])?.to_vec()))
}

/// Compares outputs. In the expected one, `…` stands for any text.
fn compare(expected: &str, printed: &str) -> Result<(), String> {
    let (expected, printed) = (normalise(expected), normalise(printed));
    let pattern: Vec<String> = expected.split('…').map(regex::escape).collect();
    let pattern = Regex::new(&format!("(?s)^{}$", pattern.join(".*"))).unwrap();
    if pattern.is_match(&printed) {
        return Ok(());
    }
    Err(format!("expected:\n{expected}\nprinted:\n{printed}\n"))
}

/// What differs from run to run, and its replacement.
static VOLATILE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rules = [
        (r"\x1b\[[0-9;]*m", ""),
        (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
        (r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT", "DATE"),
        (r"\breq_[0-9a-f]+", "REQUEST"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
        (r"\bpgk_[0-9a-f]{16}_[0-9a-f]{64}\b", "SECRET"),
        (r"\b1[6-9][0-9]{8}(?:[0-9]{3}|[0-9]{6})?\b", "UNIX"),
        (r"\b[0-9a-f]{16,64}\b", "HASH"),
        (r"(?i)content-length: [0-9]+", "content-length: N"),
        (r"(?i)retry-after: [0-9]+", "retry-after: N"),
        (r#""(retry_after|retry_after_ms|delay_ms|uptimeSeconds)": ?[0-9]+"#, "\"$1\":N"),
        (r"retry in [0-9.]+ m?s\b", "retry in N s"),
        (r"; ?t=[0-9]+", ";t=N"),
    ];
    rules.map(|(pattern, with)| (Regex::new(pattern).unwrap(), with)).into()
});

/// Replaces what differs from run to run.
fn normalise(text: &str) -> String {
    let mut text = text.replace('\r', "");
    for (pattern, with) in VOLATILE.iter() {
        text = pattern.replace_all(&text, *with).into_owned();
    }
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim().to_owned()
}
