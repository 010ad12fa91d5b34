//! The suite on SQLite files, and what only files have.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use suite::Place;

fn file() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
    Place::new(url, directory)
}

catalog_suite!(file());
