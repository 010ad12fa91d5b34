//! A prepared directory that is copied for every server.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// An archive of a directory, in an unlinked file that disappears with this process.
pub(super) struct Template(File);

impl Template {
    /// Archives the content of `directory`.
    pub(super) fn of(directory: &Path) -> Self {
        let archive = tempfile::tempfile().expect("a temporary file");
        let output = archive.try_clone().expect("a second handle of a file");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--numeric-owner", "--directory"]).arg(directory).arg(".").stdout(output);
        run(&mut tar);
        Self(archive)
    }

    /// Extracts to `directory`, which also gets the owner and mode of the archived one.
    pub(super) fn unpack(&self, directory: &Path) {
        // Opened again for an independent file position: several servers may start at once.
        let archive = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd())).expect("an open file");
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--numeric-owner", "--preserve-permissions", "--directory"]).arg(directory);
        run(tar.stdin(archive));
    }
}

/// Runs a command to completion and returns its output.
///
/// # Panics
/// When it fails.
pub(super) fn run(command: &mut Command) -> String {
    let child = command.stderr(Stdio::piped()).spawn();
    assert!(child.is_ok(), "{} must be installed: {child:?}", command.get_program().display());
    let output = child.and_then(std::process::Child::wait_with_output).expect("a child of this process");
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{printed}\n{errors}", output.status);
    printed
}
