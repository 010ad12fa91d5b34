//! Import of the rate limit files of other products: the results, and what is rejected.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::path::Path;

use pacegate::descriptor::Descriptor;
use pacegate_config::Config;
use process::run;

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Writes `text` to a file and imports it.
fn import(product: &str, text: &str) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("limits.yaml");
    std::fs::write(&file, text).unwrap();
    run(&["import", product, file.to_str().unwrap()])
}

fn accept(product: &str, text: &str) -> (String, String) {
    let (code, output, errors) = import(product, text);
    assert_eq!(code, 0, "{text}\n{errors}");
    (output, errors)
}

/// Imports a file of tests/data and compares the result.
fn golden(product: &str, notes: &[&str]) -> Config {
    let (code, output, errors) = run(&["import", product, &data(&format!("{product}.yaml"))]);
    assert_eq!(code, 0, "{errors}");
    let expected = std::fs::read_to_string(data(&format!("{product}.pacegate.yaml"))).unwrap();
    assert_eq!(output, expected);
    assert_eq!(errors.lines().collect::<Vec<_>>(), notes);
    let (code, checked, errors) = run(&["config", "check", &data(&format!("{product}.pacegate.yaml"))]);
    assert_eq!(code, 0, "{errors}");
    let config = Config::parse(&output).unwrap();
    assert!(
        checked.ends_with(&format!("0 rules, 0 plans, {} descriptors\n", config.descriptors.len())),
        "{checked}"
    );
    config
}

#[tokio::test]
async fn envoy() {
    let notes = [
        "note: line 10: descriptors[1]: has no rate_limit: requests that match it are unlimited",
        "note: line 29: descriptors[4].detailed_metric: ignored: affects only metrics",
    ];
    let limiter = golden("envoy", &notes).limiter().unwrap();
    let cases: [(&[(&str, &str)], &str); 14] = [
        (&[("remote_address", "198.51.100.7")], "per-address 199"),
        (&[("remote_address", "192.0.2.10")], "unlimited"),
        (&[("remote_address", "203.0.113.66")], "denied"),
        (&[("database", "users")], "database=users 499"),
        (&[("database", "users"), ("remote_address", "198.51.100.7")], "database=users.remote_address 49"),
        (&[("database", "replica-3")], "database=replica-* 99999"),
        (&[("database", "other")], "nothing"),
        (&[("plan", "free")], "nothing"),
        (&[("plan", "free"), ("api_key", "k")], "plan=free.api_key 999"),
        (&[("plan", "free"), ("path", "/v1/export")], "plan=free.path=/v1/export 6"),
        (&[("plan", "paid"), ("path", "/x")], "plan=paid.path 999999"),
        (&[("internal", "yes")], "unlimited"),
        (&[("version", "1.10")], "version=1.10 2"),
        (&[("version", "1.1")], "nothing"),
    ];
    for (entries, expected) in cases {
        let descriptor = Descriptor::new(entries.iter().copied());
        let decision = limiter.check_descriptors("shop", &[descriptor]).await.unwrap();
        let outcome = &decision.outcomes[0];
        let found = match outcome.decision.binding_limit() {
            Some(limit) => format!("{} {}", limit.name, outcome.decision.remaining().unwrap()),
            None if outcome.unlimited => "unlimited".into(),
            None if outcome.banned_by.is_some() => "denied".into(),
            None => "nothing".into(),
        };
        assert_eq!(found, expected, "{entries:?}");
    }
    let paid = Descriptor::new([("plan", "paid"), ("api_key", "k")]);
    let address = Descriptor::new([("remote_address", "198.51.100.8")]);
    let decision = limiter.check_descriptors("shop", &[address, paid]).await.unwrap();
    assert!(decision.outcomes[0].decision.limits().is_empty(), "replaced");
    assert_eq!(&*decision.outcomes[1].decision.limits()[0].name, "paid");
}

#[tokio::test]
async fn limitador() {
    let notes = [
        "note: line 2: Limitador's windows begin at the first request; Pacegate's begin at multiples of their length since 1970",
        "note: line 25: [3].id: ignored: a limit has one name, which is `name`",
        "note: line 31: [4]: has keys without `descriptors[…]` (the syntax before Limitador 2.0): they match in any one descriptor of a request",
    ];
    let limiter = golden("limitador", &notes).limiter().unwrap();
    let query = async |domain: &str, descriptors: &[&[(&str, &str)]]| {
        let descriptors: Vec<Descriptor<'_>> =
            descriptors.iter().map(|entries| Descriptor::new(entries.iter().copied())).collect();
        let decision = limiter.check_descriptors(domain, &descriptors).await.unwrap();
        let limits = |outcome: &pacegate::descriptor::DescriptorOutcome| {
            let limits =
                outcome.decision.limits().iter().map(|limit| (limit.name.to_string(), limit.limit.quota()));
            limits.collect::<Vec<_>>()
        };
        decision.outcomes.iter().map(limits).collect::<Vec<_>>()
    };
    let named = |limits: &[(&str, u32)]| {
        limits.iter().map(|(name, quota)| ((*name).to_owned(), *quota)).collect::<Vec<_>>()
    };
    let toys = "toystore.example.com";
    let post = [("req.method", "POST"), ("req.path", "/toys/1"), ("tier", "free"), ("user_id", "u")];
    let all = named(&[("posts-per-user", 10), ("posts-per-user", 1000), ("everything", 5000)]);
    assert_eq!(query(toys, &[&post]).await, [all]);
    let gold = [("user_id", "u"), ("tier", "gold"), ("req.path", "/toys/1"), ("req.method", "POST")];
    assert_eq!(query(toys, &[&gold]).await, [named(&[("posts-per-user", 1000), ("everything", 5000)])]);
    assert_eq!(
        query(toys, &[&[("x", "y")], &post]).await,
        [named(&[("everything", 5000)]), Vec::new()],
        "only the first descriptor"
    );
    let old = [("req.method", "GET"), ("user_id", "u"), ("app.id", "a")];
    let name = "req.method=GET by user_id, app.id";
    assert_eq!(query("old.example.com", &[&[("x", "y")], &old]).await, [Vec::new(), named(&[(name, 5)])]);
    let workload = [("source.workload", "w")];
    assert_eq!(
        query("mesh", &[&workload, &workload]).await,
        [Vec::new(), named(&[("by source.workload", 100)])]
    );
    let delete = Descriptor::new([("req.method", "DELETE")]);
    let denied = limiter.check_descriptors(toys, &[delete]).await.unwrap();
    assert_eq!(denied.outcomes[0].banned_by.as_deref(), Some("no-deletes"));
}

/// One descriptor of an Envoy file, at line 3.
fn envoy_file(descriptor: &str) -> String {
    format!("domain: d\ndescriptors:\n  - {descriptor}\n")
}

#[test]
fn envoy_settings_without_an_equivalent_are_rejected_by_name_and_line() {
    let cases = [
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}, cost: 5}",
            "descriptors[0].cost: unknown field; expected one of key, value, shadow_mode, rate_limit, descriptors",
        ),
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, burst: 5}}",
            "descriptors[0].rate_limit.burst: unknown field",
        ),
        (
            "{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}",
            "descriptors[0].rate_limit.unit: expected one of second, minute, hour, day, week, month, year, got \"fortnight\"",
        ),
        (
            "{key: a, rate_limit: {unit: unknown, requests_per_unit: 1}}",
            "descriptors[0].rate_limit.unit: expected one of",
        ),
        (
            "{key: a, rate_limit: {requests_per_unit: 1}}",
            "descriptors[0].rate_limit.unit: required field is missing",
        ),
        (
            "{key: a, rate_limit: {unit: minute}}",
            "descriptors[0].rate_limit.requests_per_unit: required field is missing",
        ),
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: -1}}",
            "descriptors[0].rate_limit.requests_per_unit: expected a whole number of at least 0, got -1",
        ),
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: ten}}",
            "descriptors[0].rate_limit.requests_per_unit: expected a whole number of at least 0, got \"ten\"",
        ),
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1.5}}",
            "descriptors[0].rate_limit.requests_per_unit: expected a whole number of at least 0, got 1.5",
        ),
        (
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 2000000000}}",
            "descriptors[0].rate_limit.requests_per_unit: no equivalent: ",
        ),
        (
            "{key: a, rate_limit: {unlimited: true, unit: minute}}",
            "descriptors[0].rate_limit.unit: `unit` and `unlimited` are mutually exclusive",
        ),
        (
            "{key: a, rate_limit: {unlimited: true, requests_per_unit: 1}}",
            "descriptors[0].rate_limit.requests_per_unit: `requests_per_unit` and `unlimited` are mutually exclusive",
        ),
        (
            "{key: a, rate_limit: {unlimited: sometimes}}",
            "descriptors[0].rate_limit.unlimited: expected true or false, got \"sometimes\"",
        ),
        ("{key: a, rate_limit: 5}", "descriptors[0].rate_limit: expected a map, got a whole number"),
        (
            "{key: a, share_threshold: true, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].share_threshold: no equivalent: ",
        ),
        (
            "{key: a, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].quota_mode: no equivalent: ",
        ),
        (
            "{value: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].key: required field is missing",
        ),
        (
            "{key: '', rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].key: must not be empty",
        ),
        (
            "{key: 'a*', rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].key: no equivalent: a `*` is only supported in values",
        ),
        (
            "{key: a, value: [1], rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].value: expected text, got a list",
        ),
        (
            "{key: a, shadow_mode: 1, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "descriptors[0].shadow_mode: expected true or false, got 1",
        ),
        ("{key: a, descriptors: {key: b}}", "descriptors[0].descriptors: expected a list, got a map"),
        ("{key: a, descriptors: [{key: b, valeu: c}]}", "descriptors[0].descriptors[0].valeu: unknown field"),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [b]}}",
            "descriptors[0].rate_limit.replaces[0]: expected a map, got text",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: b}]}}",
            "descriptors[0]: replaces: unknown rule `b`",
        ),
        (
            "{key: a, rate_limit: {name: b, unit: day, requests_per_unit: 1, replaces: [{name: b}]}}",
            "descriptors[0]: replaces: must not contain the rule's own name",
        ),
        (
            "{key: a, rate_limit: {name: \"x\\\"y\", unit: day, requests_per_unit: 1}}",
            "descriptors[0]: name: must be 1 to 128 printable ASCII characters",
        ),
        ("5", "descriptors[0]: expected a map, got a whole number"),
    ];
    for (descriptor, expected) in cases {
        let (code, output, errors) = import("envoy", &envoy_file(descriptor));
        assert_eq!((code, output.as_str()), (2, ""), "{descriptor}\n{errors}");
        let expected = format!("line 3: {expected}");
        assert!(errors.lines().any(|line| line.starts_with(&expected)), "{descriptor}\n{errors}");
    }
}

#[test]
fn every_error_of_an_envoy_file_is_listed() {
    let text = "domian: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: minuet, requests_per_unit: x}\n  - key: a\n    colour: red\n";
    let (code, _, errors) = import("envoy", text);
    assert_eq!(code, 2);
    assert!(errors.starts_with("error: ") && errors.contains("limits.yaml: 6 errors\n"), "{errors}");
    for line in [
        "line 1: domain: required field is missing",
        "line 1: domian: unknown field; expected one of domain, descriptors",
        "line 4: descriptors[0].rate_limit.unit: expected one of",
        "line 4: descriptors[0].rate_limit.requests_per_unit: expected a whole number of at least 0, got \"x\"",
        "line 6: descriptors[1].colour: unknown field",
        "line 5: descriptors[1]: duplicate key `a`; line 3 has it already",
    ] {
        assert!(errors.lines().any(|found| found.starts_with(line)), "{line}\n{errors}");
    }
}

#[test]
fn duplicate_path_is_rejected_but_not_the_same_key_in_another_path() {
    let twice = "domain: d\ndescriptors:\n  - key: a\n    value: x\n    descriptors:\n      - {key: b}\n      - {key: b}\n  - {key: a, value: x}\n";
    let (code, _, errors) = import("envoy", twice);
    assert_eq!(code, 2);
    assert!(
        errors.contains("line 7: descriptors[0].descriptors[1]: duplicate key `b`; line 6 has it already"),
        "{errors}"
    );
    assert!(
        errors.contains("line 8: descriptors[1]: duplicate key `a` with value `x`; line 3 has it already"),
        "{errors}"
    );
    assert!(errors.contains("2 errors"), "{errors}");
    accept(
        "envoy",
        "domain: d\ndescriptors: [{key: a}, {key: a, value: x}, {key: b, descriptors: [{key: a}]}]\n",
    );
    let (_, _, errors) = import(
        "envoy",
        &envoy_file(
            "{key: a, rate_limit: {name: m, unit: day, requests_per_unit: 1, replaces: [{name: o}]}}\n  - {key: b, rate_limit: {name: o, unit: day, requests_per_unit: 1, replaces: [{name: m}]}}",
        ),
    );
    assert!(errors.contains("line 3: descriptors[0]: replaces: `o` replaces this rule in turn"), "{errors}");
}

#[test]
fn unusual_envoy_files_are_accepted() {
    let cases = [
        (
            "{key: a, value: '', rate_limit: {unit: SECOND, requests_per_unit: 1}}",
            "entries: [{key: a}], algorithm: fixed_window, limit: 1, window: 1s",
        ),
        (
            "{key: a, value: true, rate_limit: {unit: second, requests_per_unit: 1}}",
            "entries: [{key: a, value: \"true\"}]",
        ),
        (
            "{key: a, value: 007, rate_limit: {unit: second, requests_per_unit: 1}}",
            "entries: [{key: a, value: \"007\"}]",
        ),
        (
            "{key: a, share_threshold: false, quota_mode: false, rate_limit: {unit: second, requests_per_unit: 1}}",
            "entries: [{key: a}]",
        ),
        (
            "{key: a, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}",
            "deny: true, mode: shadow",
        ),
        ("{key: a, shadow_mode: true, rate_limit: {unlimited: true}}", "unlimited: true}\n"),
        ("{key: a, rate_limit:, descriptors: []}", "unlimited: true}\n"),
        (
            "{key: a, rate_limit: {unit: second, requests_per_unit: 1000000000}}",
            "limit: 1000000000, window: 1s",
        ),
    ];
    for (descriptor, expected) in cases {
        let (output, _) = accept("envoy", &envoy_file(descriptor));
        assert!(output.contains(expected), "{descriptor}\n{output}");
        Config::parse(&output).unwrap();
    }
    let (output, _) = accept("envoy", "domain: d\n");
    assert!(output.ends_with("descriptors: []\n"), "{output}");
    let (_, notes) = accept("envoy", &envoy_file("{key: a, value: '/a/*/b', shadow_mode: true}"));
    assert!(
        notes.contains(
            "line 3: descriptors[0].value: a `*` before the end matches any characters in Pacegate"
        ),
        "{notes}"
    );
    assert!(
        notes.contains("line 3: descriptors[0].shadow_mode: ignored: has no effect without a rate_limit"),
        "{notes}"
    );
}

#[test]
fn limitador_settings_without_an_equivalent_are_rejected_by_name_and_line() {
    let limit = |rest: &str| format!("- namespace: n\n  max_value: 1\n  seconds: 60\n  {rest}\n");
    let condition = |cel: &str| limit(&format!("conditions: [{cel:?}]"));
    let cases = [
        (
            limit("policy: x"),
            "line 4: [0].policy: unknown field; expected one of namespace, max_value, seconds, conditions, variables, name, id",
        ),
        (limit("conditions: descriptors[0].a == 'b'"), "line 4: [0].conditions: expected a list, got text"),
        (limit("conditions: [[a]]"), "line 4: [0].conditions[0]: expected text, got a list"),
        (
            condition("descriptors[0].a.matches('b')"),
            "line 4: [0].conditions[0]: `descriptors[0].a.matches('b')` has no equivalent: expected ",
        ),
        (
            condition("descriptors[0].a == 'b' || true"),
            "line 4: [0].conditions[0]: `descriptors[0].a == 'b' || true` has no equivalent: ",
        ),
        (
            condition("descriptors[0].a == 5"),
            "line 4: [0].conditions[0]: `descriptors[0].a == 5` has no equivalent: a key can only be compared with quoted text",
        ),
        (
            condition("limit.name == 'b'"),
            "line 4: [0].conditions[0]: `limit.name == 'b'` has no equivalent: `limit.name` is not a key of a descriptor",
        ),
        (
            limit("variables: [\"size(descriptors)\"]"),
            "line 4: [0].variables[0]: `size(descriptors)` has no equivalent: ",
        ),
        (
            limit("variables: [\"descriptors[0].a.b\"]"),
            "line 4: [0].variables[0]: `descriptors[0].a.b` has no equivalent: expected only a key to count by",
        ),
        (
            limit("variables: [\"descriptors[0].a\", \"descriptors[1].b\"]"),
            "line 1: [0]: no equivalent: all conditions and variables of a limit must use the same descriptor",
        ),
        (limit("name: \"a\\\\b\""), "line 1: [0]: name: must be 1 to 128 printable ASCII characters"),
        ("- {namespace: n, max_value: 1}".into(), "line 1: [0].seconds: required field is missing"),
        ("- {max_value: 1, seconds: 1}".into(), "line 1: [0].namespace: required field is missing"),
        (
            "- {namespace: n, max_value: -1, seconds: 1}".into(),
            "line 1: [0].max_value: expected a whole number of at least 0, got -1",
        ),
        (
            "- {namespace: n, max_value: many, seconds: 1}".into(),
            "line 1: [0].max_value: expected a whole number of at least 0, got \"many\"",
        ),
        ("- {namespace: n, max_value: 1, seconds: 0}".into(), "line 1: [0].seconds: no equivalent: "),
        ("- {namespace: n, max_value: 0, seconds: 0}".into(), "line 1: [0].seconds: no equivalent: "),
        ("- {namespace: n, max_value: 1, seconds: 99999999}".into(), "line 1: [0].seconds: no equivalent: "),
        (
            "- {namespace: n, max_value: 9999999999, seconds: 1}".into(),
            "line 1: [0].max_value: no equivalent: ",
        ),
        (
            "- {namespace: '', max_value: 1, seconds: 1}".into(),
            "line 1: [0]: domain: must be 1 to 1024 bytes long",
        ),
        ("limits: []".into(), "line 1: expected a list, got a map"),
        ("- 5".into(), "line 1: [0]: expected a map, got a whole number"),
        (
            "- {namespace: n, max_value: 1, seconds: 1}\n- {namespace: n, max_value: 2, seconds: 1}\n".into(),
            "line 2: [1]: duplicate of line 1",
        ),
    ];
    for (text, expected) in cases {
        let (code, output, errors) = import("limitador", &text);
        assert_eq!((code, output.as_str()), (2, ""), "{text}\n{errors}");
        assert!(errors.lines().any(|line| line.starts_with(expected)), "{text}\n{errors}");
    }
}

#[test]
fn invalid_files_are_rejected() {
    for product in ["envoy", "limitador"] {
        for (text, expected) in [
            ("", "line 1: the file is empty"),
            ("# nothing\n", "the file is empty"),
            ("{}", "line 1: the file is empty"),
            ("domain: [1\ndescriptors: {", "line "),
            ("a: 1\n b: 2\n", "line 2: "),
            ("domain: d\ndomain: e\n", "line 2: "),
        ] {
            let (code, output, errors) = import(product, text);
            assert_eq!((code, output.as_str()), (2, ""), "{text:?}\n{errors}");
            assert!(errors.contains(expected), "{text:?}\n{errors}");
        }
        let (code, _, errors) = run(&["import", product, "/nonexistent.yaml"]);
        assert_eq!(code, 2);
        assert!(errors.starts_with("error: could not read /nonexistent.yaml: "), "{errors}");
        let (code, _, _) = run(&["import", product]);
        assert_eq!(code, 2);
        let (code, help, _) = run(&["import", product, "--help"]);
        assert!(code == 0 && help.contains(&format!("pacegate import {product} ")), "{help}");
    }
    let (code, _, errors) = run(&["import", "nginx", "x"]);
    assert!(code == 2 && errors.contains("nginx"), "{errors}");
}

#[test]
fn documented_examples_are_correct() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/importing.md");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [envoy_in, envoy_out, limitador_in, limitador_out, ..] = blocks[..] else { panic!("{blocks:?}") };
    for (product, input, output) in
        [("envoy", envoy_in, envoy_out), ("limitador", limitador_in, limitador_out)]
    {
        assert_eq!(accept(product, input).0, output);
    }
    for block in &blocks[4..] {
        Config::parse(block).unwrap_or_else(|errors| panic!("{errors}\n{block}"));
    }
}
