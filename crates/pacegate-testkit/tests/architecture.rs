//! Dependency rules between crates: dependencies point inward.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names in the `[dependencies]` section of a crate.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names = section.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    names.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

#[test]
fn inner_crates_do_not_depend_on_outer_ones() {
    let rules: [(&str, &[&str]); 11] = [
        ("pacegate-core", &["sha2", "smallvec", "thiserror"]),
        (
            "pacegate-store",
            &[
                "pacegate-core",
                "fastrand",
                "futures-util",
                "sha2",
                "smallvec",
                "thiserror",
                "tokio",
                "tracing",
            ],
        ),
        (
            "pacegate-redis",
            &[
                "pacegate-core",
                "pacegate-store",
                "arc-swap",
                "crc16",
                "fastrand",
                "futures-util",
                "redis",
                "rustls",
                "rustls-native-certs",
                "smallvec",
                "thiserror",
                "tokio",
                "tokio-rustls",
                "tracing",
                "percent-encoding",
            ],
        ),
        (
            "pacegate-memory",
            &[
                "pacegate-core",
                "pacegate-store",
                "compact_str",
                "crossbeam-utils",
                "foldhash",
                "parking_lot",
                "quanta",
                "sha2",
                "shuttle",
                "smallvec",
                "spin",
            ],
        ),
        (
            "pacegate-sql",
            &[
                "pacegate-core",
                "pacegate-store",
                "fastrand",
                "futures-util",
                "sha2",
                "smallvec",
                "sqlx",
                "thiserror",
                "tokio",
                "tracing",
            ],
        ),
        (
            "pacegate-config",
            &[
                "pacegate",
                "pacegate-core",
                "pacegate-http",
                "humantime",
                "ipnet",
                "schemars",
                "serde",
                "serde-saphyr",
                "serde_json",
                "thiserror",
            ],
        ),
        (
            "pacegate-http",
            &[
                "pacegate-core",
                "pacegate",
                "arc-swap",
                "bytes",
                "futures-util",
                "hashbrown",
                "http",
                "http-body-util",
                "hyper",
                "hyper-util",
                "ipnet",
                "itoa",
                "parking_lot",
                "pin-project-lite",
                "rustix",
                "rustls",
                "serde",
                "thiserror",
                "tokio",
                "tokio-io-timeout",
                "tokio-rustls",
                "tracing",
                "utoipa",
                "x509-parser",
            ],
        ),
        (
            "pacegate-catalog",
            &[
                "pacegate-core",
                "pacegate",
                "pacegate-config",
                "arc-swap",
                "getrandom",
                "hmac",
                "serde",
                "serde_json",
                "sha2",
                "sqlx",
                "subtle",
                "thiserror",
                "tokio",
                "tracing",
                "uuid",
                "percent-encoding",
            ],
        ),
        (
            "pacegate",
            &[
                "pacegate-core",
                "pacegate-store",
                "pacegate-macros",
                "pacegate-memory",
                "arc-swap",
                "fastrand",
                "foldhash",
                "hashbrown",
                "ipnet",
                "itoa",
                "metrics",
                "parking_lot",
                "serde",
                "sha2",
                "smallvec",
                "thiserror",
                "tokio",
                "tracing",
            ],
        ),
        (
            "pacegate-simulate",
            &[
                "pacegate-core",
                "jiff",
                "pacegate",
                "pacegate-config",
                "compact_str",
                "flate2",
                "foldhash",
                "getrandom",
                "hashbrown",
                "memchr",
                "serde",
                "serde_json",
                "sha2",
                "smallvec",
                "thiserror",
            ],
        ),
        (
            "pacegate-tower",
            &[
                "pacegate-core",
                "pacegate",
                "pacegate-http",
                "axum",
                "bytes",
                "compact_str",
                "http",
                "http-body-util",
                "ipnet",
                "itoa",
                "pin-project-lite",
                "serde",
                "serde_json",
                "sha2",
                "smallvec",
                "thiserror",
                "tokio",
                "tonic",
                "tower-layer",
                "tower-service",
                "tracing",
                "percent-encoding",
            ],
        ),
    ];
    for (name, allowed) in rules {
        for dependency in dependencies(name) {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn reference_model_shares_no_code_with_the_core() {
    for entry in fs::read_dir(crates().join("pacegate-testkit/src/model")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("pacegate_core"), "{}", path.display());
    }
}
