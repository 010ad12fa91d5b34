//! Determines what `pacegate --version` prints: the version, and the commit if it is known.

use std::path::Path;
use std::process::Command;

/// Number of hexadecimal digits of the commit that are shown.
const DIGITS: usize = 8;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PACEGATE_COMMIT");
    let given = std::env::var("PACEGATE_COMMIT").ok().filter(|commit| !commit.trim().is_empty());
    let commit = given.or_else(packaged).or_else(checked_out).map(|commit| shortened(commit.trim()));
    let version = env!("CARGO_PKG_VERSION");
    let shown = commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"));
    // `cargo run` sets it in the environment of the program too, where a name that starts with
    // PACEGATE_ is a setting.
    println!("cargo::rustc-env=VERSION_AND_COMMIT={shown}");
}

/// The commit that Cargo recorded when it packaged the crate.
fn packaged() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    println!("cargo::rerun-if-changed=.cargo_vcs_info.json");
    let (_, rest) = info.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(str::to_owned)
}

/// The commit of the repository that the crate is built in. A copy of the crate in another
/// repository does not match, because it lies elsewhere in that repository.
fn checked_out() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "crates/pacegate-cli/" {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    // The log of HEAD has every commit, also while the branch is only in the packed references.
    // Cargo rebuilds for ever if a file to watch does not exist.
    let watched = [Some("HEAD"), branch.as_deref(), Some("logs/HEAD")];
    for name in watched.into_iter().flatten() {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Some(commit)
}

/// What git prints on one line, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The first digits of a commit. Other names, such as tags, stay as they are.
fn shortened(commit: &str) -> String {
    let is_hash = commit.len() > DIGITS && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { commit[..DIGITS].to_owned() } else { commit.to_owned() }
}
