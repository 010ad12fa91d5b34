//! `pacegate simulate`: replays an access log against a rule file, and reports what it would block.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use pacegate_simulate::{
    FieldMap, Format, LogOptions, Options, Progress, RuleFile, SimulateError, Source, StatusFilter, simulate,
};
use tokio::time::Instant;

use crate::Failure;
use crate::config::error_count;

/// Interval of updates of the progress bar.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 30;
const TIERS_BYTES_MAX: u64 = 1 << 30;

/// Replays an access log against a rule file, offline. The report lists which requests and
/// customers would have been blocked, when, and by which rule. It can compare two rule files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pacegate simulate --rules pacegate.yaml --log /var/log/nginx/access.log
  pacegate simulate --rules pacegate.yaml --rules-b stricter.yaml --log access.log.1.gz access.log --html report.html
  pacegate simulate --rules pacegate.yaml --log app.jsonl --map user=account.id,endpoint=http.path,tenant=org

Parts of a request for --map: time, endpoint, method, request (such as `GET /a HTTP/1.1`), status,
cost, cost.UNIT (such as cost.tokens) and tier. Any other word is a dimension, such as user, ip,
apikey or tenant. `--map user=` disables a part. The fields of access logs are address, ident, user,
time, request, status, bytes, referer, agent, and extra1 to extra9 for further fields.")]
pub(crate) struct Simulate {
    /// Configuration file with the rules, as for `pacegate serve --config`.
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// Second configuration file, to compare with the first.
    #[arg(long, value_name = "FILE")]
    rules_b: Option<PathBuf>,
    /// One log or several, plain or gzip; - is standard input. Several logs are sorted by time.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    log: Vec<PathBuf>,
    /// Format of the log. Defaults to the format detected from the first lines.
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Fields of the parts of a request that do not have their usual names.
    #[arg(long, value_name = "PART=FIELD,…")]
    map: Vec<FieldMap>,
    /// File with the tiers of users: lines of `user,tier`.
    #[arg(long, value_name = "FILE")]
    tiers: Option<PathBuf>,
    /// Replays only requests with these response statuses, such as 2xx,3xx,404.
    #[arg(long, value_name = "STATUS,…")]
    only_status: Option<StatusFilter>,
    /// Maximum delay of a line, compared with its time, for it to be sorted by time.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    reorder: Duration,
    /// Does not spread the requests of one second over it, if times have no fraction of a second.
    #[arg(long)]
    no_spread: bool,
    /// Maximum number of keys in the limiter and in each table.
    #[arg(long, value_name = "NUMBER", default_value_t = Options::MAX_KEYS as u64, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    max_keys: u64,
    /// Enforces rules in shadow mode, so that the report lists the customers they would block.
    #[arg(long)]
    enforce_shadow: bool,
    /// Replaces identifiers by hashes. With a SECRET, hashes are the same in every run.
    #[arg(long, value_name = "SECRET", num_args = 0..=1, default_missing_value = "")]
    hash_keys: Option<String>,
    /// Also writes the report as JSON; - is standard output, instead of text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also writes the report as an HTML page; - is standard output, instead of text.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Common,
    Combined,
    Json,
    Csv,
}

impl Simulate {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let is_output = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
        if is_output(&self.json) && is_output(&self.html) {
            return Err(misused("--json and --html are mutually exclusive on standard output"));
        }
        if self.log.iter().filter(|path| *path == Path::new("-")).count() > 1 {
            return Err(misused("--log: standard input can be given only once"));
        }
        let files = std::iter::once(("--rules", &self.rules))
            .chain(self.rules_b.iter().map(|file| ("--rules-b", file)));
        let rules = files.map(|(option, file)| load(option, file)).collect::<Result<Vec<_>, _>>()?;
        let options = self.options()?;
        // Files are opened before the replay, so that errors are reported early.
        let json_file = self.output("--json", self.json.as_deref())?;
        let html_file = self.output("--html", self.html.as_deref())?;
        let sources = self.log.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut bar = Bar::new(&self.log);
        let report = simulate(sources, &rules, &options, &mut |progress| bar.show(progress));
        bar.finish(report.as_ref().ok().map(|report| report.log.lines));
        let report = report.map_err(|error| match error {
            SimulateError::Misused(message) => misused(message),
            other => Failure::Failed(anyhow!(other)),
        })?;
        let json = || report.to_json().context("could not write JSON");
        if let Some(file) = json_file {
            file.write(&json()?)?;
        }
        if let Some(file) = html_file {
            file.write(&report.to_html())?;
        }
        let text = match (is_output(&self.json), is_output(&self.html)) {
            (true, _) => json()?,
            (_, true) => report.to_html(),
            _ => report.to_text(),
        };
        match std::io::stdout().lock().write_all(text.as_bytes()) {
            // A reader such as `head` can stop early.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(anyhow!(error).context("could not write the report").into()),
            Ok(()) => Ok(()),
        }
    }

    /// Opens an output file. `None` if the option is not set or is standard output.
    fn output(&self, option: &str, path: Option<&Path>) -> Result<Option<OutputFile>, Failure> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(None) };
        let inputs = [("--rules", &self.rules)]
            .into_iter()
            .chain(self.rules_b.iter().map(|path| ("--rules-b", path)))
            .chain(self.log.iter().map(|path| ("--log", path)))
            .chain(self.tiers.iter().map(|path| ("--tiers", path)))
            // The page is opened after the JSON file, which exists by then.
            .chain(self.json.iter().filter(|_| option == "--html").map(|path| ("--json", path)));
        let written = path.metadata().ok().filter(Metadata::is_file);
        let is_written = |input: &PathBuf| match (&written, input.metadata()) {
            (Some(written), Ok(input)) => (written.dev(), written.ino()) == (input.dev(), input.ino()),
            _ => false,
        };
        if let Some((other, _)) = inputs.into_iter().find(|(_, input)| is_written(input)) {
            return Err(misused(format!("{option} {}: same file as {other}", path.display())));
        }
        OutputFile::open(path)
            .map(Some)
            .map_err(|error| misused(format!("{option} {}: {error}", path.display())))
    }

    fn options(&self) -> Result<Options, Failure> {
        let mut map = FieldMap::default();
        for part in &self.map {
            map.merge(part.clone()).map_err(|reason| misused(format!("--map: {reason}")))?;
        }
        let format = self.format.map(|format| match format {
            FormatName::Common => Format::Common,
            FormatName::Combined => Format::Combined,
            FormatName::Json => Format::Json,
            FormatName::Csv => Format::Csv,
        });
        let tiers = match &self.tiers {
            None => Default::default(),
            Some(path) => read_tiers(path)?
                .parse()
                .map_err(|reason| misused(format!("--tiers {}: {reason}", path.display())))?,
        };
        let hash_keys = match self.hash_keys.as_deref() {
            None => None,
            Some("") => Some(
                pacegate_simulate::random_secret().context("could not generate a secret for --hash-keys")?,
            ),
            Some(secret) => Some(secret.as_bytes().to_vec()),
        };
        Ok(Options {
            log: LogOptions { format, map },
            reorder: self.reorder,
            spread: !self.no_spread,
            max_keys: usize::try_from(self.max_keys).unwrap_or(Options::MAX_KEYS),
            only_status: self.only_status.clone(),
            tiers,
            enforce_shadow: self.enforce_shadow,
            hash_keys,
        })
    }
}

fn misused(message: impl Into<String>) -> Failure {
    Failure::Misused(anyhow!(message.into()))
}

/// Loads a rule file without the environment variables, which are for a service on this machine.
fn load(option: &str, path: &Path) -> Result<RuleFile, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| misused(format!("{option} {name}: {error}")))?;
    let config = pacegate_config::Config::parse(&text)
        .map_err(|errors| misused(format!("{option} {name}: {}\n{errors}", error_count(&errors))))?;
    Ok(RuleFile { name, config })
}

fn open(path: &Path) -> Result<Source, Failure> {
    if path == Path::new("-") {
        return Ok(Source { name: "standard input".to_owned(), reader: Box::new(std::io::stdin()) });
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| misused(format!("--log {name}: {error}")))?;
    Ok(Source { name, reader: Box::new(file) })
}

fn read_tiers(path: &Path) -> Result<String, Failure> {
    let wrong = |reason: String| misused(format!("--tiers {}: {reason}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    let read =
        file.take(TIERS_BYTES_MAX).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if read as u64 == TIERS_BYTES_MAX {
        Err(wrong("the file is larger than 1 GiB".to_owned()))
    } else {
        Ok(text)
    }
}

/// An output file that is open and not yet written. Without a report, its contents stay unchanged.
struct OutputFile {
    path: PathBuf,
    file: File,
    /// Whether the file was created, and is removed if there is no report.
    is_new: bool,
}

impl OutputFile {
    fn open(path: &Path) -> std::io::Result<Self> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    fn write(mut self, text: &str) -> Result<(), Failure> {
        self.replace_with(text).with_context(|| format!("could not write {}", self.path.display()))?;
        self.is_new = false;
        Ok(())
    }

    fn replace_with(&mut self, text: &str) -> std::io::Result<()> {
        // A pipe or a device has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            // On an error, an empty file remains.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The progress on standard error: a bar if it is a terminal, and a line at the end.
struct Bar {
    started: Instant,
    shown: Option<Instant>,
    /// The size of all logs. `None` if it is not known, as for a pipe.
    bytes: Option<u64>,
    moves: bool,
}

impl Bar {
    fn new(logs: &[PathBuf]) -> Self {
        let size = |path: &PathBuf| {
            std::fs::metadata(path).ok().filter(|data| data.is_file()).map(|data| data.len())
        };
        let bytes = logs.iter().map(size).sum::<Option<u64>>().filter(|bytes| *bytes > 0);
        Self { started: Instant::now(), shown: None, bytes, moves: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, progress: Progress) {
        let now = Instant::now();
        if !self.moves || self.shown.is_some_and(|shown| now - shown < PROGRESS_EVERY) {
            return;
        }
        self.shown = Some(now);
        let speed = per_minute(progress.requests, now - self.started);
        let bar = match self.bytes {
            None => String::new(),
            Some(bytes) => {
                let part = (progress.bytes as f64 / bytes as f64).min(1.0);
                let full = (part * BAR_WIDTH as f64) as usize;
                format!("{}{} {:3.0} %  ", "#".repeat(full), "-".repeat(BAR_WIDTH - full), part * 100.0)
            }
        };
        let mut errors = std::io::stderr().lock();
        // An error of the terminal does not stop the replay.
        let _ = write!(errors, "\r{bar}{} requests, {speed:.1} million per minute\x1b[K", progress.requests);
        let _ = errors.flush();
    }

    fn finish(&self, lines: Option<u64>) {
        let mut errors = std::io::stderr().lock();
        if self.shown.is_some() {
            let _ = write!(errors, "\r\x1b[K");
        }
        if let Some(lines) = lines {
            let took = self.started.elapsed();
            let speed = per_minute(lines, took);
            let seconds = took.as_secs_f64();
            let _ = writeln!(errors, "{lines} lines in {seconds:.1} s: {speed:.1} million lines per minute");
        }
    }
}

/// Returns millions per minute.
fn per_minute(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9) * 60.0 / 1e6
}
