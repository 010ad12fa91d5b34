//! The limit of open files.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to the maximum that the operating system allows. Every connection
/// is an open file.
pub(crate) fn allow_all() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the current limit bounds the connections.
    let _ = setrlimit(Resource::Nofile, limit);
}
