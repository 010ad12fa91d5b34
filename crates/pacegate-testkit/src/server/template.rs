//! A prepared directory that is copied for every server.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// An archive of a directory, in a file without a name: nobody has to remove it, and it is gone with this
/// process however that ends.
pub(super) struct Template(File);

impl Template {
    /// Archives what is in `directory`.
    pub(super) fn of(directory: &Path) -> Self {
        let archive = tempfile::tempfile().expect("a temporary file");
        let output = archive.try_clone().expect("a second handle of a file");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--numeric-owner", "--directory"]).arg(directory).arg(".").stdout(output);
        run(&mut tar);
        Self(archive)
    }

    /// Fills `directory`, which gets the owner and the mode of the archived one too.
    pub(super) fn unpack(&self, directory: &Path) {
        // Opened anew, for a position of its own: several servers may start at once.
        let archive = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd())).expect("an open file");
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--numeric-owner", "--preserve-permissions", "--directory"]).arg(directory);
        run(tar.stdin(archive));
    }
}

/// Runs a command to its end and returns what it printed.
///
/// # Panics
///
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
