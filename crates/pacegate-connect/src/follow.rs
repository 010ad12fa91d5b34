//! Watches files and applies their changes without a restart. An invalid file changes nothing.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pacegate::Limiter;
use pacegate_config::Config;

/// Polling interval. Polling works with every editor and every mount; file notifications do not.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Identifies one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(path: &PathBuf) -> Option<Self> {
        let of = |metadata: Metadata| Self {
            inode: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        std::fs::metadata(path).ok().map(of)
    }
}

/// Watches files for changes by polling.
#[derive(Debug)]
pub struct Watch {
    files: Vec<PathBuf>,
    /// The versions when a change was last reported, and at the last poll.
    known: Vec<Option<Version>>,
    seen: Vec<Option<Version>>,
}

impl Watch {
    /// Starts to watch these files in their current version.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files: Vec<PathBuf> = files.into_iter().collect();
        let versions: Vec<Option<Version>> = files.iter().map(Version::of).collect();
        Self { files, known: versions.clone(), seen: versions }
    }

    /// Completes when a file has changed and then stayed the same for one polling interval. Files
    /// that are still being written, or only partly replaced, are not reported until then.
    pub async fn changed(&mut self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now: Vec<Option<Version>> = self.files.iter().map(Version::of).collect();
            let settled = std::mem::replace(&mut self.seen, now.clone()) == now;
            if settled && now != self.known && now.iter().all(Option::is_some) {
                self.known = now;
                return;
            }
        }
    }

    /// Treats the current versions as already reported.
    pub fn acknowledge(&mut self) {
        self.known = self.files.iter().map(Version::of).collect();
        self.seen.clone_from(&self.known);
    }
}

/// Applies the plans, rules, default limit and failure mode of a file to `limiter` whenever the
/// file changes, until the task is aborted. An invalid file changes nothing, and all its errors are
/// logged.
///
/// [`from_config(path).follow()`](crate::FromConfig::follow) does this for the limiter that it
/// creates.
pub fn follow(path: PathBuf, limiter: Limiter) -> impl Future<Output = ()> + Send + 'static {
    // Watch from now on, not from the first poll of the future.
    follow_from(Watch::new([path.clone()]), path, limiter)
}

/// Like [`follow`], including changes since `watch` was created, which is best done before the file
/// is first read.
pub async fn follow_from(mut watch: Watch, path: PathBuf, limiter: Limiter) {
    loop {
        watch.changed().await;
        reload(&path, &limiter);
    }
}

fn reload(path: &Path, limiter: &Limiter) {
    let file = path.display();
    match Config::load(Some(path)) {
        Ok(config) => match limiter.replace(config.builder()) {
            Ok(()) => tracing::info!(%file, "rule set reloaded"),
            Err(error) => tracing::error!(%file, %error, "reload failed; the previous rules stay in force"),
        },
        Err(errors) => {
            for error in &errors.0 {
                tracing::error!(%file, "{error}");
            }
            tracing::error!(%file, errors = errors.0.len(), "reload failed; the previous rules stay in force");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use pacegate::Check;

    use super::*;

    #[test]
    fn invalid_file_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pacegate.yaml");
        let limiter = Limiter::default();
        let has_plan = || limiter.check_now(Check::key("k").plan("gold")).is_ok();
        std::fs::write(&path, "plans: {gold: [{algorithm: gcra, limit: 9, window: 1s}]}").unwrap();
        reload(&path, &limiter);
        assert!(has_plan());
        for bad in ["plans: {gold: nonsense}", "plans: {silver: []}", "{"] {
            std::fs::write(&path, bad).unwrap();
            reload(&path, &limiter);
            assert!(has_plan(), "{bad}");
        }
        std::fs::write(&path, "plans: {}").unwrap();
        reload(&path, &limiter);
        assert!(!has_plan());
    }
}
