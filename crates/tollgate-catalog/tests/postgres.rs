//! The suite on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use suite::Place;
use tollgate_testkit::server::Postgres;

/// One server for the tests that run at a time, with a database for each. A static one would never be stopped.
static SERVER: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static DATABASES: AtomicUsize = AtomicUsize::new(0);

fn database() -> Place {
    let server = {
        let mut shared = SERVER.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Postgres::start());
            *shared = Arc::downgrade(&server);
            server
        })
    };
    let name = format!("catalog_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    server.query(&format!("CREATE DATABASE {name} OWNER tollgate"));
    let url = format!("postgres://tollgate:secret@127.0.0.1:{}/{name}", server.port());
    Place::new(url, server)
}

catalog_suite!(database());
