//! The commands around the service: version, health check, completions and manual pages.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::collections::BTreeSet;
use std::process::Command;

use pacegate_testkit::server::RedisServer;
use process::{Service, pacegate, run};

/// All commands and subcommands, such as `keys list`, as the help lists them.
fn commands() -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    let mut next = 0;
    while next < found.len() {
        let path = found[next].clone();
        let output = pacegate().args(&path).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let listed = listed.split("\n\n").next().unwrap_or_default();
        // Descriptions continue on lines that are indented further.
        let names =
            listed.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
        for name in names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help") {
            found.push([&path[..], &[name.to_owned()]].concat());
        }
        next += 1;
    }
    found
}

#[test]
fn version_names_the_product_and_the_commit() {
    let (code, output, _) = run(&["--version"]);
    assert_eq!(code, 0);
    let version = env!("CARGO_PKG_VERSION");
    let git =
        Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let is_checkout = git.is_ok_and(|output| output.status.success());
    if !is_checkout {
        assert!(output.starts_with(&format!("pacegate {version}")), "{output}");
        return;
    }
    // The commit of the build, which can be older than the current one.
    let commit = output.trim_end().strip_prefix(&format!("pacegate {version} (")).unwrap();
    let commit = commit.strip_suffix(')').unwrap();
    assert!(commit.len() == 8 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{output}");
}

#[test]
fn every_command_has_an_example() {
    let commands = commands();
    assert!(commands.contains(&vec!["users".to_owned(), "import".to_owned()]), "{commands:?}");
    for path in &commands {
        let is_group = commands.iter().any(|other| other.len() > path.len() && other.starts_with(path));
        let output = pacegate().args(path).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{path:?}");
        assert!(help.contains("Example") || (is_group && !path.is_empty()), "{path:?}: {help}");
    }
}

#[test]
fn healthcheck_reports_readiness_and_liveness() {
    let mut redis = RedisServer::start();
    let url = format!("redis://{}", redis.address());
    let service = Service::start(&["--store", &url], &[("PACEGATE_SERVER__REQUIRE_KEY", "true")]);
    let check = |arguments: &[&str]| run(&[&["healthcheck", "--server", &service.url], arguments].concat());
    assert_eq!(check(&[]), (0, format!("{} is ready\n", service.url), String::new()));
    assert_eq!(check(&["--live"]), (0, format!("{} is alive\n", service.url), String::new()));
    redis.kill();
    while service.ask("GET", "/readyz", "").unwrap().0 != 503 {
        std::thread::yield_now();
    }
    let (code, output, errors) = check(&[]);
    assert_eq!((code, output.as_str(), errors.lines().count()), (1, "", 1), "{errors}");
    let expected = format!("error: {} is not ready: /readyz returned 503 Service Unavailable: ", service.url);
    assert!(errors.starts_with(&expected), "{errors}");
    assert_eq!(check(&["--live"]).0, 0, "a service without its store is alive");
    let (code, _, errors) = run(&["healthcheck", "--server", "http://127.0.0.1:1"]);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(errors.starts_with("error: could not reach http://127.0.0.1:1"), "{errors}");
    let (code, _, errors) = run(&["healthcheck", "--server", "ftp://x"]);
    assert_eq!((code, errors.lines().count()), (1, 1), "containers know no other code: {errors}");
}

#[test]
fn completions_cover_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, errors) = run(&["completions", shell]);
        assert_eq!((code, errors.as_str()), (0, ""), "{shell}");
        for command in ["healthcheck", "completions", "import", "--dry-run", "--expires-in"] {
            // Fish lists options without their dashes.
            let command = if shell == "fish" { command.trim_start_matches('-') } else { command };
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (_, script, _) = run(&["completions", "bash"]);
    let complete = format!(
        "{script}\nCOMP_WORDS=(pacegate hea) COMP_CWORD=1\n_pacegate pacegate hea pacegate\necho \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &complete]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "healthcheck\n");
    assert_eq!(run(&["completions", "cmd"]).0, 2);
}

#[test]
fn man_writes_a_page_for_every_command() {
    let (code, page, _) = run(&["man"]);
    assert_eq!(code, 0);
    assert!(page.contains(".TH pacegate 1") && page.contains("rate limiter"), "{page}");
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("man/man1");
    let (code, output, errors) = run(&["man", "--dir", target.to_str().unwrap()]);
    assert_eq!((code, output), (0, format!("manual pages written to {}\n", target.display())), "{errors}");
    let written: BTreeSet<String> = std::fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<String> = commands()
        .iter()
        .map(|path| [&["pacegate".to_owned()], &path[..]].concat().join("-") + ".1")
        .collect();
    assert_eq!(written, expected);
    let import = std::fs::read_to_string(target.join("pacegate-users-import.1")).unwrap();
    assert!(import.contains("users.csv"), "pages have the examples: {import}");
}
