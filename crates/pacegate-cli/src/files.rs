//! How many files the process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files, of which every connection is one, as far as the operating system lets this process do it.
pub(crate) fn allow_all() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What it is then bounds the connections.
    let _ = setrlimit(Resource::Nofile, limit);
}
