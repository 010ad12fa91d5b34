//! A child process that does not outlive the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Time within which a server must respond, even with a busy disk.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);

/// A program with its output in a file. It is killed when dropped.
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    /// Whether [`kill`](Self::kill) was not called yet; until then the process id cannot be reused.
    running: bool,
    frozen: AtomicBool,
}

impl Process {
    /// Starts `program` in `directory` and writes its output to `log` there.
    pub(super) fn start(program: &str, arguments: &[String], directory: &Path) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command, directory)
    }

    /// Starts a prepared command in `directory` and writes its output to `log` there.
    pub(super) fn spawn(mut command: Command, directory: &Path) -> Self {
        let log = directory.join("log");
        let output = File::create(&log).expect("a file in a temporary directory");
        let errors = output.try_clone().expect("a second handle of a file");
        command.current_dir(directory);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn();
        assert!(child.is_ok(), "{} must be installed: {child:?}", command.get_program().display());
        let child = child.expect("checked above");
        Self { child, log, running: true, frozen: AtomicBool::new(false) }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has neither been killed nor ended by itself.
    pub(super) fn is_running(&mut self) -> bool {
        self.running && self.exit_status().is_none()
    }

    /// Whether it can respond: neither killed nor frozen.
    pub(super) fn is_responsive(&self) -> bool {
        self.running && !self.frozen.load(Ordering::SeqCst)
    }

    /// The exit status, if it ended by itself.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// The output so far.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of the output.
    pub(super) fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub(super) fn kill(&mut self) {
        if self.running {
            // Killing fails only when it has already ended.
            let _ = self.child.kill();
            self.child.wait().expect("a child of this process");
            self.running = false;
            self.frozen.store(false, Ordering::SeqCst);
        }
    }

    /// Stops it with a signal, and returns when it is stopped.
    pub(super) fn freeze(&self) {
        assert!(self.running, "a killed process cannot be frozen");
        if !self.frozen.swap(true, Ordering::SeqCst) {
            let pid = Pid::from_child(&self.child);
            kill_process(pid, Signal::STOP).expect("a signal to a child");
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).expect("the child stops");
        }
    }

    pub(super) fn thaw(&self) {
        assert!(self.running, "a killed process cannot be thawed");
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("a signal to a child");
        self.frozen.store(false, Ordering::SeqCst);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls every few milliseconds until the condition holds; returns whether it did within the time.
#[expect(clippy::disallowed_methods, reason = "other processes run in real time")]
pub(super) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
