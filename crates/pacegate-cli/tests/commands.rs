//! The commands as processes: their output and their exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use process::{Service, file, pacegate, run, started};

#[test]
fn check_exits_with_0_if_allowed_and_3_if_denied() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        "rules: [{name: two, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}]",
    );
    let service = Service::start(&["--config", &config], &[]);
    let check = |cost: &str| {
        run(&["check", "--server", &service.url, "--user", "alice", "--endpoint", "/x", "--cost", cost])
    };
    let (code, output, _) = check("2");
    assert_eq!(code, 0);
    let expected =
        "allowed: user alice, /x, cost 2\n  two (fixed_window): 0 of 2 remaining, state throttled\n";
    assert_eq!(output, expected);
    let (code, output, _) = check("1");
    assert_eq!(code, 3);
    assert!(
        output.starts_with("denied: user alice, /x, cost 1\n") && output.contains("\n  retry in "),
        "{output}"
    );
    let (code, output, _) = check("3");
    assert_eq!(code, 3);
    assert!(output.contains("retrying does not help"), "{output}");
    let (code, _, errors) = check("0");
    assert_eq!(code, 2);
    assert!(errors.contains("cost: must be between 1 and 1000000000"), "{errors}");
}

#[test]
fn check_shows_what_a_shadow_rule_would_have_done() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        "default_limit: none\nrules: [{name: one, dimension: user, mode: shadow, algorithm: fixed_window, limit: 1, window: 1d}]",
    );
    let service = Service::start(&["--config", &config], &[]);
    for (remaining, expected) in
        [(0, "state throttled, shadow\n"), (0, "state throttled, shadow: would be denied\n")]
    {
        let (code, output, _) =
            run(&["check", "--server", &service.url, "--user", "alice", "--endpoint", "/x"]);
        assert_eq!(code, 0, "{output}");
        assert!(output.ends_with(&format!(" {remaining} of 1 remaining, {expected}")), "{output}");
    }
}

#[test]
fn check_explains_the_rules_without_charging() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        "default_limit: none\nrules:\n  - {name: api, dimension: user, algorithm: fixed_window, limit: 1, window: 1d}\n  - {name: api, dimension: user, tier: premium, algorithm: fixed_window, limit: 9, window: 1d}\n  - {name: login, dimension: ip, endpoint: /login, algorithm: fixed_window, limit: 2, window: 1d}\n",
    );
    let service = Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")]);
    let check = |arguments: &[&str]| {
        let check =
            ["check", "--server", &service.url, "--api-key", "secret", "--user", "alice", "--endpoint", "/x"];
        run(&[&check, arguments].concat())
    };
    for _ in 0..2 {
        let (code, output, errors) = check(&["--explain"]);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert_eq!(
            output,
            "allowed: user alice, /x, cost 1\n  api (fixed_window): 1 of 1 remaining, state normal\nrules; nothing was charged:\n  api on *: applies: anyone\n  api on *: applies to tier premium only\n  login on /login: counts by ip; the check has no ip\n"
        );
    }
    let (_, output, _) = check(&["--explain", "--tier", "premium"]);
    assert!(output.contains("9 of 9 remaining") && output.contains("\nrules, tier premium;"), "{output}");
    let (_, output, _) = check(&["--tier", "premium"]);
    assert!(output.contains("8 of 9 remaining"), "{output}");
    let (code, output, _) = check(&["--explain"]);
    assert_eq!(code, 3, "the counter belongs to the name of the rule: {output}");
}

#[test]
fn check_charges_all_identities_of_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let limit = "algorithm: fixed_window, window: 1d";
    let config = file(
        directory.path(),
        &format!(
            "default_limit: none\nrules:\n  - {{name: by-user, dimension: user, limit: 5, {limit}}}\n  - {{name: by-ip, dimension: ip, method: POST, limit: 6, {limit}}}\n  - {{name: by-key, dimension: apikey, limit: 7, {limit}}}\n  - {{name: by-tenant, dimension: tenant, limit: 8, {limit}}}\nplans: {{gold: [{{limit: 9, {limit}}}]}}\n"
        ),
    );
    let service = Service::start(&["--config", &config], &[]);
    let check = |arguments: &[&str]| {
        run(&[&["check", "--server", &service.url, "--endpoint", "/x"], arguments].concat())
    };
    let everything = ["--user", "alice", "--ip", "10.0.0.1", "--key", "k1", "--identity", "tenant=acme"];
    let (code, output, errors) = check(&[&everything[..], &["--method", "POST", "--plan", "gold"]].concat());
    assert_eq!((code, errors.as_str()), (0, ""));
    let first = "allowed: user alice, ip 10.0.0.1, apikey k1, tenant acme, POST /x, cost 1";
    assert_eq!(output.lines().next(), Some(first));
    for line in ["by-user by user", "by-ip by ip", "by-key by apikey", "by-tenant by tenant"] {
        assert!(output.contains(&format!("  {line} (fixed_window): ")), "{line}: {output}");
    }
    assert!(output.contains("gold"), "{output}");
    let (_, output, _) = check(&["--ip", "10.0.0.1", "--method", "GET"]);
    assert_eq!(output, "allowed: ip 10.0.0.1, GET /x, cost 1\n  no limit applies\n");
    let (_, output, _) = check(&["--ip", "10.0.0.1", "--method", "POST"]);
    let expected = "  by-ip (fixed_window): 4 of 6 remaining, state normal\n";
    assert!(output.ends_with(expected), "the first check was charged: {output}");
    for (arguments, reason) in [
        (&[][..], "required arguments were not provided"),
        (&["--identity", "acme"], "expected DIMENSION=ID, such as tenant=acme"),
        (&["--user", "a", "--identity", "user=b"], "duplicate dimension `user`"),
        (&["--user", "a", "--plan", "none"], "none"),
    ] {
        let (code, _, errors) = check(arguments);
        assert!(code == 2 && errors.contains(reason), "{arguments:?}: {errors}");
    }
}

#[test]
fn check_reports_an_unreachable_service() {
    let (code, _, errors) =
        run(&["check", "--server", "http://127.0.0.1:1", "--user", "u", "--endpoint", "/"]);
    assert_eq!(code, 1);
    assert!(errors.starts_with("error: could not reach http://127.0.0.1:1"), "{errors}");
    let (code, _, _) = run(&["check", "--user", "u"]);
    assert_eq!(code, 2, "a missing argument is invalid usage");
}

#[test]
fn config_check_lists_every_error() {
    let directory = tempfile::tempdir().unwrap();
    let good = file(directory.path(), "plans: {gold: [{algorithm: gcra, limit: 1, window: 1s}]}");
    let (code, output, _) = run(&["config", "check", &good]);
    assert_eq!((code, output.trim_end()), (0, format!("{good} is valid: 0 rules, 1 plan").as_str()));
    let bad = file(directory.path(), "server: {http: x}\nrules:\n  - {name: a}\n");
    let (code, _, errors) = run(&["config", "check", &bad]);
    assert_eq!(code, 2);
    assert!(errors.contains(": 5 errors"), "{errors}");
    for line in [
        "line 1: server.http:",
        "line 3: rules[0].dimension: required field is missing",
        "line 3: rules[0].window: required field is missing",
    ] {
        assert!(errors.contains(line), "{errors}");
    }
    let (code, _, errors) = run(&["config", "check", "/nonexistent.yaml"]);
    assert_eq!(code, 2);
    assert!(errors.contains("/nonexistent.yaml"), "{errors}");
    // Errors in the URL of a store are not hidden by others, and are sorted with them.
    let stores = "stores:\n  hot:\n    connections: 2\n    url: redis://\nlog: {level: loud}\nmetrics: 5\n";
    let bad = file(directory.path(), stores);
    let (code, _, errors) = run(&["config", "check", &bad]);
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!((code, lines.len()), (2, 4), "{errors}");
    assert_eq!(lines[0], format!("error: {bad}: 3 errors"));
    for (line, start) in lines[1..].iter().zip(["line 4: stores.hot.url: ", "line 5: ", "line 6: "]) {
        assert!(line.starts_with(start), "{errors}");
    }
}

#[test]
fn config_check_prints_warnings_and_notes_for_a_valid_file() {
    let directory = tempfile::tempdir().unwrap();
    let rule = "rules:\n  - {name: a, dimension: user, endpoint: '/orders/:id', algorithm: gcra, limit: 1, window: 1s}\n";
    let path = file(directory.path(), rule);
    let (code, output, errors) = run(&["config", "check", &path]);
    assert_eq!((code, output.trim_end()), (0, format!("{path} is valid: 1 rule, 0 plans").as_str()));
    let lines: Vec<&str> = errors.lines().collect();
    let warning = "warning: line 2: rules[0].endpoint: `:id` matches only the literal text `:id`; did you mean `/orders/{id}`?";
    let note = "note: the file has no `default_limit`, so requests that match no rule are limited by a token bucket (capacity 100, refill 10 per second); set `default_limit: none` to allow them without a limit";
    assert_eq!(lines, [warning, note]);
    let path = file(directory.path(), &format!("default_limit: none\n{}", rule.replace(":id", "{id}")));
    let (code, _, errors) = run(&["config", "check", &path]);
    assert_eq!((code, errors.as_str()), (0, ""));
    // Warnings of a file with errors are printed too.
    let path = file(directory.path(), &format!("{rule}metrics: 5\n"));
    let (code, _, errors) = run(&["config", "check", &path]);
    assert!(code == 2 && errors.starts_with(warning) && errors.contains(": 1 error\n"), "{errors}");
}

#[test]
fn serve_logs_warnings_of_its_file_once() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        "rules: [{name: a, dimension: user, method: GETT, algorithm: gcra, limit: 1, window: 1s}]",
    );
    let path = directory.path().join("log");
    let log = std::fs::File::create(&path).unwrap();
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let mut command = pacegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--config", &config]);
    let (mut process, _output, _) = started(command.args(["--catalog", &catalog]).stderr(log));
    process.kill().unwrap();
    process.wait().unwrap();
    let log = std::fs::read_to_string(&path).unwrap();
    let warning = "line 1: rules[0].method: GETT is not a registered HTTP method; did you mean GET?";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}

#[test]
fn example_file_is_valid() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pacegate.yaml");
    let (code, output, errors) = run(&["config", "check", example]);
    assert_eq!(code, 0, "{errors}");
    assert!(output.contains("5 rules, 2 plans"), "{output}");
    assert_eq!(errors, "", "the example has no warnings");
}

#[test]
fn openapi_prints_the_document_that_a_service_serves() {
    let (code, output, errors) = run(&["openapi"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let printed: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(printed["openapi"], "3.1.0");
    let service = Service::start(&[], &[]);
    let (status, served) = service.ask("GET", "/openapi.json", "").unwrap();
    assert_eq!((status, served), (200, printed));
}

#[test]
fn openapi_accepts_a_reader_that_stops_early() {
    let mut command =
        process::pacegate().arg("openapi").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The document does not fit into a pipe, so it is still being written now.
    let mut start = [0; 16];
    command.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let output = command.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn serve_rejects_invalid_settings_before_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let bad = file(directory.path(), "rules: 5");
    let (code, output, errors) = run(&["serve", "--config", &bad]);
    assert_eq!((code, output.as_str()), (2, ""));
    assert!(errors.contains("line 1: rules: expected a list"), "{errors}");
    let service = Service::start(&[], &[]);
    let taken = service.url.trim_start_matches("http://");
    let (code, _, errors) = run(&["serve", "--http", taken]);
    assert_eq!(code, 1);
    assert!(errors.contains(&format!("could not listen on {taken}")), "{errors}");
    // A failed start creates no admin key: its secret would be lost.
    let directory = tempfile::tempdir().unwrap();
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let (code, output, _) = run(&["serve", "--http", taken, "--catalog", &catalog]);
    assert_eq!((code, output.as_str()), (1, ""));
    let (code, _, _) = run(&["serve", "--http", "127.0.0.1:0", "--grpc", taken, "--catalog", &catalog]);
    assert_eq!(code, 1);
    let (_, keys, _) = run(&["keys", "list", "--catalog", &catalog]);
    assert_eq!(keys.lines().count(), 1, "{keys}");
}

/// The catalog has hashes of keys and names of users. A wrong path must not create an empty
/// catalog.
#[test]
fn catalog_is_private_and_not_created_by_accident() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.db");
    let catalog = format!("sqlite://{}", path.display());
    for command in [&["audit", "verify"][..], &["keys", "list"], &["keys", "revoke", "x"]] {
        let (code, output, errors) = run(&[command, &["--catalog", &catalog]].concat());
        assert_eq!((code, output.as_str()), (1, ""), "{command:?}");
        assert!(errors.contains(&format!("{} does not exist", path.display())), "{errors}");
        assert!(!path.exists());
    }
    let (code, _, errors) = run(&["keys", "create", "--role", "reader", "--catalog", &catalog]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("note: created a new catalog"), "{errors}");
    let rights = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(rights & 0o777, 0o600);
    assert_eq!(run(&["audit", "verify", "--catalog", &catalog]).0, 0);
}

#[test]
fn environment_variables_of_other_programs_are_ignored() {
    let names = [
        "PACEGATE_API_KEY",
        "PACEGATE_COMMIT",
        "PACEGATE_PORT",
        "PACEGATE_PORT_8080_TCP_ADDR",
        "PACEGATE_SERVICE_HOST",
        "PACEGATE_SERVICE_PORT",
        "PACEGATE_SERVICE_PORT_HTTP",
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "");
    let output =
        pacegate().args(["config", "check", &path]).envs(names.map(|name| (name, "x"))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for unknown in ["PACEGATE_SERVICE_HOSTS", "PACEGATE_PORT__X", "PACEGATE_API_KEYS"] {
        let output = pacegate().args(["config", "check", &path]).env(unknown, "x").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{unknown}");
    }
}

#[test]
fn check_sends_its_api_key() {
    let settings = [("PACEGATE_ADMIN_KEY", "secret"), ("PACEGATE_SERVER__REQUIRE_KEY", "true")];
    let service = Service::start(&[], &settings);
    let check = ["check", "--server", &service.url, "--user", "u", "--endpoint", "/"];
    let (code, _, errors) = run(&check);
    assert_eq!(code, 2);
    assert!(errors.ends_with("; pass --api-key or set PACEGATE_API_KEY\n"), "{errors}");
    assert_eq!(run(&[&check[..], &["--api-key", "wrong"]].concat()).0, 2);
    assert_eq!(run(&[&check[..], &["--api-key", "secret"]].concat()).0, 0);
    let output = pacegate().args(check).env("PACEGATE_API_KEY", "secret").output().unwrap();
    assert!(output.status.success());
}

#[test]
fn start_line_names_every_address() {
    let version = env!("CARGO_PKG_VERSION");
    for (arguments, expected) in [
        (&[][..], format!("pacegate {version} listening on http://* (REST) and * (gRPC)\n")),
        (
            &["--admin", "127.0.0.1:0"],
            format!("pacegate {version} listening on http://* (REST), * (gRPC) and * (admin)\n"),
        ),
    ] {
        let mut command = pacegate();
        command.args(["serve", "--http", "127.0.0.1:0"]).args(arguments).stderr(Stdio::null());
        let (mut process, _output, mut line) = started(&mut command);
        process.kill().unwrap();
        process.wait().unwrap();
        while let Some(at) = line.find("127.0.0.1:") {
            let end = at + line[at..].find(' ').unwrap();
            line.replace_range(at..end, "*");
        }
        assert_eq!(line, expected);
    }
}

#[test]
fn environment_overrides_the_file() {
    let service =
        Service::start(&[], &[("PACEGATE_DEFAULT_LIMIT", "{algorithm: fixed_window, limit: 1, window: 1d}")]);
    let (code, output, _) = run(&["check", "--server", &service.url, "--user", "u", "--endpoint", "/"]);
    assert_eq!(code, 0);
    assert!(output.contains("default (fixed_window): 0 of 1 remaining"), "{output}");
}

#[test]
fn admin_key_is_printed_once_or_chosen() {
    let body = r#"{"user_id":"u","endpoint":"/"}"#;
    let mut generated = Service::start(&[], &[]);
    let mut line = String::new();
    generated.output.read_line(&mut line).unwrap();
    let key = line.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(key.starts_with("pgk_") && key.len() == 85, "{line}");
    assert!(generated.post("/v1/rate-limit/reset", &key, body).starts_with("HTTP/1.1 200"));
    assert!(generated.post("/v1/rate-limit/reset", "guess", body).starts_with("HTTP/1.1 401"));

    let mut chosen = Service::start(&[], &[("PACEGATE_ADMIN_KEY", "my own key")]);
    assert!(chosen.post("/v1/rate-limit/reset", "my own key", body).starts_with("HTTP/1.1 200"));
    chosen.terminate();
    assert_eq!(chosen.process.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    chosen.output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a chosen key is not repeated");
}

#[test]
fn short_admin_key_is_warned_about_and_rejected_on_public_addresses() {
    let serve = |key: &str, http: &str, grpc: &str| {
        let mut command = pacegate();
        command.args(["serve", "--http", http, "--grpc", grpc]).env("PACEGATE_ADMIN_KEY", key);
        command
    };
    let (local, anywhere) = ("127.0.0.1:0", "0.0.0.0:0");
    for (http, grpc) in [(anywhere, local), (local, anywhere), ("[::]:0", local)] {
        let rejected = serve("1234567", http, grpc).output().unwrap();
        let errors = String::from_utf8(rejected.stderr).unwrap();
        assert_eq!(rejected.status.code(), Some(2), "{errors}");
        assert!(errors.contains("PACEGATE_ADMIN_KEY: expected at least 8 characters"), "{errors}");
        assert!(!errors.contains("1234567"), "{errors}");
    }
    let directory = tempfile::tempdir().unwrap();
    for (key, http, warned) in [
        ("1234567", local, true),
        ("12345678", anywhere, true),
        ("123456789012345", local, true),
        ("1234567890123456", anywhere, false),
    ] {
        let path = directory.path().join("log");
        let log = std::fs::File::create(&path).unwrap();
        let (mut process, _output, _) = started(serve(key, http, local).stderr(log));
        process.kill().unwrap();
        process.wait().unwrap();
        let log = std::fs::read_to_string(&path).unwrap();
        assert_eq!(log.contains("PACEGATE_ADMIN_KEY is short"), warned, "{key}: {log}");
        assert!(!log.contains(key), "{log}");
    }
}

#[test]
fn graceful_shutdown_finishes_requests_in_flight() {
    let mut service = Service::start(&[], &[]);
    let body = r#"{"user_id":"u","endpoint":"/"}"#;
    let mut stream = TcpStream::connect(service.url.trim_start_matches("http://")).unwrap();
    let length = body.len();
    write!(stream, "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n").unwrap();
    stream.write_all(&body.as_bytes()[..5]).unwrap();
    // Another request has a response, so the unfinished one has arrived.
    assert!(service.post("/v1/rate-limit/check", "", body).starts_with("HTTP/1.1 200"));
    service.terminate();
    // The service handled the signal once it accepts no connections.
    while TcpStream::connect(service.url.trim_start_matches("http://")).is_ok() {
        std::thread::yield_now();
    }
    stream.write_all(&body.as_bytes()[5..]).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(service.process.wait().unwrap().code(), Some(0));
}

/// As in `pacegate … | head`.
#[test]
fn closed_pipe_is_not_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    for arguments in [&["keys", "create", "--role", "reader"][..], &["keys", "list"], &["openapi"]] {
        let mut process = pacegate()
            .args(arguments)
            .env("PACEGATE_CATALOG__URL", &catalog)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    }
}

#[test]
fn config_schema_prints_json_schema_or_markdown() {
    let (code, output, errors) = run(&["config", "schema"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let schema: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(schema["properties"]["rules"]["type"], serde_json::json!(["array", "null"]));
    let (code, output, errors) = run(&["config", "schema", "--markdown"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(output, include_str!("../../../docs/configuration.md"), "the file is what the command prints");
}
