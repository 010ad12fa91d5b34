//! Follows files: what changes in them comes into force without a restart, and a bad file changes nothing.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pacegate::Limiter;
use pacegate_config::Config;

/// How often files are looked at. Looking works for every editor and every mount, which notifications do not.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What tells one state of a file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    inode: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

impl Mark {
    fn of(path: &PathBuf) -> Option<Self> {
        let of = |metadata: Metadata| Self {
            inode: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        std::fs::metadata(path).ok().map(of)
    }
}

/// Files that are looked at a few times a second.
#[derive(Debug)]
pub struct Watch {
    files: Vec<PathBuf>,
    /// As they were when they were last taken for new, and at the last look.
    known: Vec<Option<Mark>>,
    seen: Vec<Option<Mark>>,
}

impl Watch {
    /// Watches these files, as they are now.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files: Vec<PathBuf> = files.into_iter().collect();
        let marks: Vec<Option<Mark>> = files.iter().map(Mark::of).collect();
        Self { files, known: marks.clone(), seen: marks }
    }

    /// Completes when a file has changed and has stayed so for a moment: one that is still being written, or of several that belong together
    /// only some, is left alone until then.
    pub async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now: Vec<Option<Mark>> = self.files.iter().map(Mark::of).collect();
            let settled = std::mem::replace(&mut self.seen, now.clone()) == now;
            if settled && now != self.known && now.iter().all(Option::is_some) {
                self.known = now;
                return;
            }
        }
    }

    /// Takes the files as they are for known.
    pub fn acknowledge(&mut self) {
        self.known = self.files.iter().map(Mark::of).collect();
        self.seen.clone_from(&self.known);
    }
}

/// Has the plans, rules, default limit and failure mode of a file come into force in `limiter` whenever it changes, until the task is aborted. A file with mistakes is
/// refused, with all of them in the log, and changes nothing.
///
/// [`from_config(path).follow()`](crate::FromConfig::follow) does this for a limiter that it makes.
pub fn follow(path: PathBuf, limiter: Limiter) -> impl Future<Output = ()> + Send + 'static {
    // From now on, and not only from when the task first runs.
    follow_from(Watch::new([path.clone()]), path, limiter)
}

/// As [`follow`], with what changed since `watch` was made.
pub(crate) async fn follow_from(mut watch: Watch, path: PathBuf, limiter: Limiter) {
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
    fn a_bad_file_changes_nothing() {
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
