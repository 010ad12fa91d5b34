//! A program that calls a service compiles no store driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

#[test]
fn service_alone_depends_on_no_driver() {
    let cargo = std::env::var_os("CARGO").unwrap();
    let tree = |features: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["tree", "--offline", "-p", "pacegate-connect", "-e", "normal", "--prefix", "none"]);
        let output = command.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let (all, service) = (tree(&[]), tree(&["--no-default-features", "--features", "service"]));
    for driver in ["sqlx", "pacegate-sql", "redis", "pacegate-redis"] {
        assert!(has(&all, driver), "all features together need {driver}");
        assert!(!has(&service, driver), "{driver}");
    }
    assert!(has(&service, "tonic"));
    assert!(!has(&tree(&["--no-default-features"]), "tonic"));
}
