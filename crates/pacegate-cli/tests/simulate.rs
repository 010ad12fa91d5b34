//! `pacegate simulate`: its output, its files and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use process::{pacegate, run};

const RULES: &str = "default_limit: none
rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 2, window: 1h}
  - {name: watch, dimension: ip, mode: shadow, algorithm: fixed_window, limit: 4, window: 1h}
";

/// Five requests of alice within two seconds, one of bob, and a line that is not a request.
fn log() -> String {
    let line = |user: &str, second: u32| {
        format!(
            "192.0.2.1 - {user} [10/Oct/2000:13:55:{second} -0700] \"GET /orders/{second} HTTP/1.1\" 200 1 \"-\" \"x\"\n"
        )
    };
    let mut log: String = [36, 36, 37, 37, 38].map(|second| line("alice", second)).concat();
    log.push_str(&line("bob", 38));
    log.push_str("not a request\n");
    log
}

fn put(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn report_and_its_files_agree() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let (json, html) = (directory.path().join("out.json"), directory.path().join("out.html"));
    let (json, html) = (json.to_str().unwrap(), html.to_str().unwrap());
    let (code, output, errors) =
        run(&["simulate", "--rules", &rules, "--log", &log, "--json", json, "--html", html]);
    assert_eq!(code, 0, "{errors}");
    for part in [
        "(combined): 6 requests in 2 s",
        "fields: time=time, request=request, status=status, user=user, ip=address",
        "1 line is not a request:",
        "line 7: has no `[time] \"request\"`: not a request",
        "per-user        user  fixed_window 2/h         6        3   50 %     2        1",
        "user alice         5        3   60 %  10-10 20:55 ",
        "/orders/{id}",
        "These rules would have blocked 50 % of requests (3 of 6): 1 of 2 users; none of them is a",
    ] {
        assert!(output.contains(part), "{part}\n{output}");
    }
    // Without a terminal there is no bar, only a line at the end.
    assert!(errors.starts_with("7 lines in ") && errors.lines().count() == 1, "{errors}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["format_version"], 2);
    assert_eq!(report["log"]["requests"], 6);
    assert_eq!(report["log"]["broken_examples"][0]["line"], 7);
    let set = &report["rule_sets"][0];
    assert_eq!(
        (&set["allowed"], &set["blocked"], &set["blocked_share"]),
        (&3.into(), &3.into(), &0.5.into())
    );
    assert_eq!(set["rules"][0]["needed"]["for_all"], 5);
    assert_eq!(set["most_blocked"][0]["identifier"], "alice");
    assert_eq!(set["most_blocked"][0]["first_blocked"], "2000-10-10T20:55:37Z");
    assert_eq!(report["comparison"], serde_json::Value::Null);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("user alice") && page.contains("<svg"));
}

#[test]
fn two_rule_files_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let (a, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let b = put(directory.path(), "b.yaml", &RULES.replace("limit: 2", "limit: 5"));
    let (code, output, errors) = run(&["simulate", "--rules", &a, "--rules-b", &b, "--log", &log]);
    assert_eq!(code, 0, "{errors}");
    for part in [
        "per-user  fixed_window 2 / 1 h  fixed_window 5 / 1 h",
        "Rules B would have blocked none of the 6 requests.",
        "B blocks 3 requests fewer than A; 1 user would no longer be blocked, 0 users would be newly",
    ] {
        assert!(output.contains(part), "{part}\n{output}");
    }
}

#[test]
fn standard_input_is_read_and_standard_output_written() {
    let directory = tempfile::tempdir().unwrap();
    let rules = put(directory.path(), "a.yaml", RULES);
    let mut command = pacegate()
        .args(["simulate", "--rules", &rules, "--log", "-", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    command.stdin.take().unwrap().write_all(log().as_bytes()).unwrap();
    let output = command.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["log"]["files"][0], "standard input");
}

#[test]
fn closed_output_is_not_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let rules = put(directory.path(), "a.yaml", RULES);
    // With many customers, the page is larger than the buffer of a pipe.
    let many: String =
        (0..3_000).map(|number| log().replace("alice", &format!("a{}", number % 60))).collect();
    let log = put(directory.path(), "access.log", &many);
    let mut command = pacegate()
        .args(["simulate", "--rules", &rules, "--rules-b", &rules, "--log", &log, "--html", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 16];
    command.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = command.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn errors_have_their_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let bad = put(directory.path(), "bad.yaml", "rules:\n  - {name: a, limit: 0}\n");
    let empty = put(directory.path(), "empty.log", "");
    let words = put(directory.path(), "words.log", "a\nb\n");
    let csv = put(directory.path(), "log.csv", "time,ip\n1700000000,192.0.2.1\n");
    let tiers = put(directory.path(), "tiers.csv", "alice\n");
    let linked = directory.path().join("linked").to_str().unwrap().to_owned();
    std::fs::hard_link(&log, &linked).unwrap();
    let out = directory.path().join("out").to_str().unwrap().to_owned();
    let rows: &[(&[&str], i32, &str)] = &[
        (&["--log", &log], 2, "--rules <FILE>"),
        (&["--rules", &rules], 2, "--log <FILE>..."),
        (&["--rules", &bad, "--log", &log], 2, "line 2: rules[0].dimension: required field is missing"),
        (&["--rules", &rules, "--rules-b", &bad, "--log", &log], 2, "--rules-b"),
        (&["--rules", "/nonexistent.yaml", "--log", &log], 2, "/nonexistent.yaml"),
        (&["--rules", &rules, "--log", "/nonexistent.log"], 2, "--log /nonexistent.log: "),
        (&["--rules", &rules, "--log", &empty], 1, "the log is empty"),
        (&["--rules", &rules, "--log", &words], 1, "unknown format"),
        (&["--rules", &rules, "--log", &words, "--format", "json"], 2, "--map time=FIELD"),
        (&["--rules", &rules, "--log", &words, "--format", "xml"], 2, "--format <FORMAT>"),
        (
            &["--rules", &rules, "--log", &csv, "--map", "user=account"],
            2,
            "has no field `account`; the log has time, ip",
        ),
        (&["--rules", &rules, "--log", &log, "--map", "user"], 2, "expected PART=FIELD"),
        (
            &["--rules", &rules, "--log", &log, "--map", "user=a", "--map", "user=b"],
            2,
            "--map: duplicate part `user`",
        ),
        (
            &["--rules", &rules, "--log", &log, "--only-status", "9xx"],
            2,
            "expected a status such as 404 or a class such as 2xx",
        ),
        (&["--rules", &rules, "--log", &log, "--only-status", "5xx"], 1, "--only-status ignores all"),
        (&["--rules", &rules, "--log", &log, "--tiers", &tiers], 2, "line 1: expected `user,tier`"),
        (&["--rules", &rules, "--log", &log, "--max-keys", "0"], 2, "--max-keys"),
        (&["--rules", &rules, "--log", &log, "--json", "/nonexistent/x"], 2, "--json /nonexistent/x: "),
        (&["--rules", &rules, "--log", &log, "--json", "-", "--html", "-"], 2, "--json and --html"),
        (&["--rules", &rules, "--log", &log, "--map", "a b=user"], 2, "`a b` is neither a part of a request"),
        (&["--rules", &rules, "--log", &log, "--json", &log], 2, "same file as --log"),
        (&["--rules", &rules, "--log", &log, "--html", &rules], 2, "same file as --rules"),
        (&["--rules", &rules, "--log", &log, "--html", &linked], 2, "same file as --log"),
        (&["--rules", &rules, "--log", &log, "--json", &out, "--html", &out], 2, "same file as --json"),
        // The log is not read.
        (&["--rules", &rules, "--log", &empty, "--html", "/nonexistent/x"], 2, "--html /nonexistent/x: "),
    ];
    for (arguments, expected, part) in rows {
        let (code, output, errors) = run(&[&["simulate"], *arguments].concat());
        assert_eq!((code, output.as_str()), (*expected, ""), "{arguments:?}\n{errors}");
        assert!(errors.contains(part), "{arguments:?}\n{errors}");
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), self::log());
    assert_eq!(std::fs::read_to_string(&rules).unwrap(), RULES);
    assert!(!Path::new(&out).exists(), "there is no output file without a report");
}

#[test]
fn failed_run_keeps_the_previous_report() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let empty = put(directory.path(), "empty.log", "");
    let before = "x".repeat(1 << 20);
    let json = put(directory.path(), "out.json", &before);
    assert_eq!(run(&["simulate", "--rules", &rules, "--log", &empty, "--json", &json]).0, 1);
    assert_eq!(std::fs::read_to_string(&json).unwrap(), before);
    let new = directory.path().join("new.json");
    assert_eq!(run(&["simulate", "--rules", &rules, "--log", &empty, "--json", new.to_str().unwrap()]).0, 1);
    assert!(!new.exists());
    assert_eq!(run(&["simulate", "--rules", &rules, "--log", &log, "--json", &json]).0, 0);
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["log"]["requests"], 6);
    assert_eq!(run(&["simulate", "--rules", &rules, "--log", &log, "--json", "/dev/null"]).0, 0);
}

#[test]
fn environment_does_not_change_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let output = pacegate()
        .args(["simulate", "--rules", &rules, "--log", &log])
        .env("PACEGATE_DEFAULT_LIMIT", "{algorithm: fixed_window, limit: 1, window: 1h}")
        .env("PACEGATE_NO_SUCH_VALUE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), text),
        (Some(0), run(&["simulate", "--rules", &rules, "--log", &log]).1)
    );
}

#[test]
fn shadow_rules_can_be_enforced() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let (_, output, _) = run(&["simulate", "--rules", &rules, "--log", &log]);
    assert!(!output.contains("--enforce-shadow"), "{output}");
    let lenient = put(directory.path(), "b.yaml", &RULES.replace("limit: 2", "limit: 5"));
    // Sentences are wrapped at the end of the line.
    let flat = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let output = flat(run(&["simulate", "--rules", &lenient, "--log", &log]).1);
    assert!(
        output.contains("would have blocked 2 requests more; use --enforce-shadow to list the customers"),
        "{output}"
    );
    let (code, output, errors) = run(&["simulate", "--rules", &lenient, "--log", &log, "--enforce-shadow"]);
    assert_eq!(code, 0, "{errors}");
    let output = flat(output);
    for part in [
        "watch (192.0.2.1)",
        "These rules, with shadow rules enforced, would have blocked 33 % of requests (2 of 6)",
    ] {
        assert!(output.contains(part), "{part}\n{output}");
    }
}

#[test]
fn identifiers_are_hidden_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let (rules, log) = (put(directory.path(), "a.yaml", RULES), put(directory.path(), "access.log", &log()));
    let (code, output, _) = run(&["simulate", "--rules", &rules, "--log", &log, "--hash-keys"]);
    assert_eq!(code, 0);
    assert!(!output.contains("alice") && output.contains("user #"), "{output}");
    let words = put(directory.path(), "words.log", "alice\nalice\n");
    let (code, _, errors) =
        run(&["simulate", "--rules", &rules, "--log", &words, "--format", "common", "--hash-keys"]);
    assert!(code == 1 && errors.contains("got:      (hidden by --hash-keys)"), "{errors}");
    let (_, again, _) = run(&["simulate", "--rules", &rules, "--log", &log, "--hash-keys"]);
    assert_ne!(output, again, "each run has its own random secret");
    let kept = || run(&["simulate", "--rules", &rules, "--log", &log, "--hash-keys", "pepper"]).1;
    assert_eq!(kept(), kept());
}
