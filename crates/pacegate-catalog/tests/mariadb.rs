//! The suite on a real MariaDB.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pacegate_testkit::server::MariaDb;
use suite::TestDatabase;

/// One server shared by concurrent tests, with a database for each. A static server would never be
/// stopped.
static SERVER: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
static DATABASES: AtomicUsize = AtomicUsize::new(0);

fn database() -> TestDatabase {
    let server = {
        // A start that fails must not fail the other tests.
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(MariaDb::start());
            *shared = Arc::downgrade(&server);
            server
        })
    };
    let name = format!("catalog_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    // MySQL's default collation ignores case and supports few characters.
    server.query(&format!(
        "CREATE DATABASE {name} CHARACTER SET latin1 COLLATE latin1_swedish_ci; GRANT ALL ON {name}.* TO pacegate@'%'"
    ));
    let url = format!("mysql://pacegate:secret@127.0.0.1:{}/{name}", server.port());
    TestDatabase::new(url, server)
}

catalog_suite!(database());
