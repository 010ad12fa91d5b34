//! `pacegate users import` against a running service.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::path::Path;

use process::{Service, file, run};
use serde_json::{Value, json};

const RULES: &str = "rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 10, window: 1h}
  - {name: per-user, dimension: user, tier: gold, algorithm: fixed_window, limit: 100, window: 1h}
";

fn start(directory: &Path) -> Service {
    Service::start(&["--config", &file(directory, RULES)], &[("PACEGATE_ADMIN_KEY", "secret")])
}

fn import(service: &Service, directory: &Path, csv: &str, arguments: &[&str]) -> (i32, String, String) {
    let path = directory.join("users.csv");
    std::fs::write(&path, csv).unwrap();
    let import = ["users", "import", path.to_str().unwrap(), "--server", &service.url, "--api-key", "secret"];
    let (code, output, errors) = run(&[&import, arguments].concat());
    let name = format!("{}/", directory.display());
    (code, output.replace(&name, ""), errors.replace(&name, ""))
}

fn limit_of(service: &Service, user_id: &str) -> Value {
    let body = json!({"user_id": user_id, "endpoint": "/"}).to_string();
    service.ask("POST", "/v1/rate-limit/check", &body).unwrap().1["limit"].clone()
}

fn audit(service: &Service) -> Vec<Value> {
    let (status, body) = service.ask("GET", "/api/v1/audit", "").unwrap();
    assert_eq!(status, 200, "{body}");
    body["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|record| record["action"] == "user.put")
        .cloned()
        .collect()
}

#[test]
fn import_takes_effect_at_once_in_one_audited_change() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path());
    // The service has cached that these users have no profile.
    for user in ["alice", "bob", "carol"] {
        assert_eq!(limit_of(&service, user), 10);
    }
    assert_eq!(service.ask("PUT", "/api/v1/users/carol/tier", r#"{"tier": "gold"}"#).unwrap().0, 200);
    assert_eq!(service.ask("PUT", "/api/v1/users/dave/tier", r#"{"tier": "gold"}"#).unwrap().0, 200);
    let csv = "user_id,tier,rule,limit,window_seconds,burst_capacity\n\
               alice,gold,,,,\n\"bob\",gold,per-user,500,3600,\ncarol,,per-user,7,,\ndave,gold,,,,\n";
    let before = audit(&service).len();
    let outcome = "created  alice\ncreated  bob\nupdated  carol\n";
    let (code, output, errors) = import(&service, directory.path(), csv, &["--dry-run"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    let counts = "2 created, 1 updated, 1 unchanged";
    assert_eq!(output, format!("{outcome}dry run of users.csv, nothing was imported: {counts}\n"));
    assert_eq!((limit_of(&service, "alice"), audit(&service).len()), (json!(10), before));

    let (code, output, errors) = import(&service, directory.path(), csv, &[]);
    assert_eq!((code, errors.as_str()), (0, ""), "{output}");
    assert_eq!(output, format!("{outcome}imported users.csv: {counts}\n"));
    let limits = ["alice", "bob", "carol", "dave"].map(|user| limit_of(&service, user));
    assert_eq!(limits, [100, 500, 7, 100].map(Value::from));
    let records = audit(&service);
    assert_eq!(records.len(), before + 3);
    let ids: Vec<&Value> = records[..3].iter().map(|record| &record["request_id"]).collect();
    assert!(ids[0].is_string() && ids.iter().all(|id| *id == ids[0]), "they are one change: {records:?}");
    let (_, output, _) = import(&service, directory.path(), csv, &[]);
    assert_eq!(output, "imported users.csv: 0 created, 0 updated, 4 unchanged\n");
    assert_eq!(audit(&service).len(), before + 3, "without a difference there is no record");
}

#[test]
fn import_with_an_invalid_line_changes_nothing_and_reports_every_line() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path());
    let csv = "user_id,tier,rule,limit\nalice,gold,,\nbob,,per-user,0\ncarol,,unknown,5\ndave,,per-user,many\n,gold,,\n";
    for arguments in [&[][..], &["--dry-run"]] {
        let (code, output, errors) = import(&service, directory.path(), csv, arguments);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(lines[0], "error: users.csv: 4 errors, nothing was imported");
        assert!(lines[1].starts_with("  line 3: limit: must be between 1 and"), "{errors}");
        assert_eq!(
            lines[2..],
            [
                "  line 4: rule: unknown rule `unknown` in dimension user",
                "  line 5: limit: expected a positive whole number, got `many`",
                "  line 6: user_id: must not be empty",
            ]
        );
    }
    assert_eq!(service.ask("GET", "/api/v1/users/alice", "").unwrap().0, 404);
    assert_eq!(audit(&service), [] as [Value; 0]);
}

#[test]
fn import_has_a_named_bound_and_needs_an_admin_key() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path());
    let csv = |count: usize| {
        let lines: String = (0..count).map(|number| format!("user-{number},gold\n")).collect();
        format!("user_id,tier\n{lines}")
    };
    let (code, output, errors) = import(&service, directory.path(), &csv(10_000), &[]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(output.ends_with("imported users.csv: 10000 created, 0 updated, 0 unchanged\n"));
    assert_eq!(limit_of(&service, "user-9999"), 100);
    let (code, _, errors) = import(&service, directory.path(), &csv(10_001), &[]);
    assert_eq!(code, 2);
    assert!(errors.contains("users: must have at most 10000 entries, got 10001"), "{errors}");
    let (code, _, errors) = import(&service, directory.path(), &csv(1), &["--api-key", "wrong"]);
    assert!(code == 2, "{errors}");
    let (code, _, errors) = run(&["users", "import", "/nonexistent.csv"]);
    assert_eq!(code, 2);
    assert!(errors.starts_with("error: could not read /nonexistent.csv"), "{errors}");
}

#[test]
fn tier_without_a_rule_is_warned_about() {
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path());
    let csv = "user_id,tier\na,gold\nb,golden\nc,golden\n";
    let (code, output, errors) = import(&service, directory.path(), csv, &[]);
    assert_eq!(
        (code, output.lines().last()),
        (0, Some("imported users.csv: 3 created, 0 updated, 0 unchanged"))
    );
    let warning = "no rule has the tier `golden`; its users get the limits of users without a tier";
    assert_eq!(errors, format!("warning: {warning}\n"));
    let put = |tier: &str| {
        let body = json!({"tier": tier}).to_string();
        service.ask("PUT", "/api/v1/users/u/tier", &body).unwrap()
    };
    let (status, user) = put("golden");
    assert_eq!((status, &user["warnings"]), (200, &json!([warning])));
    let (status, same) = service.ask("PUT", "/api/v1/users/u/tier", &user.to_string()).unwrap();
    assert_eq!((status, &same["warnings"]), (200, &json!([warning])), "a response can be sent back");
    let (status, user) = put("gold");
    assert_eq!((status, user.get("warnings")), (200, None));
}
