//! One error does not hide another, and values that can never match are warned about.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate_config::Config;

/// Files, each with all of its errors in order.
const FILES: [(&str, &[&str]); 18] = [
    (
        "rules:
  - name: a
    dimension: user
    algorithm: fixed
    limit: 0
    window: 60
    burst: many
    store: cold
    colour: red
",
        &[
            "line 4: rules[0].algorithm: expected token_bucket",
            "line 5: rules[0].limit: must be between 1 and 1000000000, got 0",
            "line 6: rules[0].window: expected a duration with a unit such as \"60s\", got \"60\"",
            "line 7: rules[0].burst: expected a whole number between 1 and 1000000000, got \"many\"",
            "line 8: rules[0].store: unknown store `cold`; expected one of default",
            "line 9: rules[0].colour: unknown field; expected one of name, dimension",
        ],
    ),
    // Checks of one field against another do not depend on the other fields.
    (
        "rules:
  - {name: a, dimension: user, algorithm: sliding_log, limit: 2000000, window: forever, burst: 5}
  - {dimension: user, algorithm: fixed_window, limit: -1, window: 1s, burst: 5}
  - {name: c, algorithm: fixed_window, limit: 5, burst: 6, window: 1000001ns}
",
        &[
            "line 2: rules[0].window: expected a duration with a unit",
            "line 2: rules[0].limit: must be between 1 and 1000000, ",
            "line 2: rules[0].burst: not supported by sliding_log",
            "line 3: rules[1].limit: must be between 1 and 1000000000, got -1",
            "line 3: rules[1].burst: not supported by fixed_window",
            "line 3: rules[1].name: required field is missing",
            "line 4: rules[2].window: must be a whole number of microseconds",
            "line 4: rules[2].burst: not supported by fixed_window",
            "line 4: rules[2].dimension: required field is missing",
        ],
    ),
    // Duplicates are found among rules with other errors.
    (
        "rules:
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, colour: red}
  - {name: a, dimension: user, algorithm: gcra, limit: 0, window: 1s}
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, store: cold}
",
        &[
            "line 2: rules[0].colour: unknown field",
            "line 3: rules[1].limit: must be between 1 and",
            "line 3: rules[1]: duplicate rule `a`: rules[0] has the same dimension, identifier, tier, endpoint and method",
            "line 4: rules[2].store: unknown store `cold`",
            "line 4: rules[2]: duplicate rule `a`: rules[0] has",
        ],
    ),
    // A rule with an invalid identity is not compared with others.
    (
        "rules:
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, methods: [GET, 'a b']}
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, tier: [x]}
  - {name: a, dimension: ip, algorithm: gcra, limit: 1, window: 1s, identifier: nowhere}
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s}
  - {name: a, dimension: ip, algorithm: gcra, limit: 1, window: 1s}
",
        &[
            "line 2: rules[0].methods[1]: must be a",
            "line 3: rules[1].tier: expected text, got a list",
            "line 4: rules[2].identifier: must be an IP address",
        ],
    ),
    // The limiter compares paths without regard to case, and so does the check.
    (
        "paths: {ignore_case: true}
rules:
  - {name: a, dimension: user, endpoint: /Orders, algorithm: gcra, limit: 1, window: 1s}
  - {name: a, dimension: user, endpoint: /orders, algorithm: gcra, limit: 1, window: 1s}
",
        &["line 4: rules[1]: duplicate rule `a`: rules[0] has the same"],
    ),
    // The line is that of the field, not of its value.
    (
        "rules:
  - name: a
    dimension: user
    tier:
      - gold
    algorithm: gcra
    limit:
      1: 2
    window: 1s
colours:
  - red
",
        &[
            "line 4: rules[0].tier: expected text, got a list",
            "line 7: rules[0].limit: expected a whole number",
            "line 10: colours: unknown field; expected one of mode, service",
        ],
    ),
    (
        "server:
  http: nowhere
  http: 127.0.0.1:8080
rules:
  - {name: a, dimension: user, algorithm: gcra, limit: 1, limit: 2, window: 1}
",
        &[
            "line 2: server.http: expected an address and a port",
            "line 3: server.http: duplicate field",
            "line 5: rules[0].limit: duplicate field",
            "line 5: rules[0].window: expected a duration",
        ],
    ),
    (
        "plans: {1: [], 1: []}\nrules: 5\n",
        // Repeated keys that are numbers are an error of the YAML parser.
        &["line 1: "],
    ),
    (
        "server:
  tls:
    client_crl: crl.pem
    identities: {\"dns:a\": owner}
",
        &[
            "line 2: server.tls.cert: required field is missing",
            "line 2: server.tls.key: required field is missing",
            "line 3: server.tls.client_crl: `client_crl` requires `client_ca`",
            "line 4: server.tls.identities.dns:a: expected admin, reader or checker, got \"owner\"",
            "line 4: server.tls.identities: `identities` requires `client_ca`",
        ],
    ),
    (
        "stores:
  hot: {url: \"redis://a\", shards: [\"redis://b\"], max_keys: 5, tls: {cert: a.pem}}
  cold:
    connections: 0
    tls: {key: a.key}
",
        &[
            "line 2: stores.hot.shards: `url` and `shards` are mutually exclusive",
            "line 2: stores.hot.max_keys: applies only to a store in memory",
            "line 2: stores.hot.tls.cert: `cert` requires `key`",
            "line 4: stores.cold.connections: must be between 1 and 64, got 0",
            "line 5: stores.cold.tls: applies only to a remote store",
            "line 5: stores.cold.tls.key: `key` requires `cert`",
        ],
    ),
    (
        "plans:
  \"a\\tb\":
    - {algorithm: gcra, limit: 1, window: 1s}
    - {algorithm: gcra, limit: 2, window: 1}
    - {algorithm: gcra, limit: 3, window: 1s}
    - {algorithm: fixed_window, limit: 3, window: 1m, burst: 9, unit: Tokens}
",
        &[
            "line 2: plans.a\tb: plan name must be 1 to 128 printable ASCII characters",
            "line 4: plans.a\tb[1].window: expected a duration",
            "line 5: plans.a\tb[2]: duplicate gcra limit over 1s",
            "line 6: plans.a\tb[3].unit: must be 1 to 32 lower-case letters",
            "line 6: plans.a\tb[3].burst: not supported by fixed_window",
        ],
    ),
    (
        "descriptors:
  - {name: n, entries: [{key: ''}, {key: [a]}], deny: true, replaces: [n], overdraw: true}
  - {name: m, by: [a], unlimited: true, deny: true, window: 1s, store: cold}
  - {by: [a], algorithm: gcra, limit: 1, window: 1s, replaces: [n, gone]}
",
        &[
            "line 2: descriptors[0].entries[0].key: must be 1 to 1024 bytes",
            "line 2: descriptors[0].entries[1].key: expected text, got a list",
            "line 3: descriptors[1].store: unknown store `cold`",
            "line 3: descriptors[1].deny: `unlimited` and `deny` are mutually exclusive",
            "line 3: descriptors[1].window: `unlimited` and `window` are mutually exclusive",
            "line 3: descriptors[1].unlimited: ",
            "line 4: descriptors[2].replaces: ",
        ],
    ),
    (
        "descriptors: [{name: n, entries: [{key: a}], deny: true, replaces: [n], overdraw: true, refundable: true}]",
        &[
            "line 1: descriptors[0].replaces: ",
            "line 1: descriptors[0].overdraw: ",
            "line 1: descriptors[0].refundable: ",
        ],
    ),
    (
        "mode: service\ncatalog: {url: \"oracle://:hunter2@a\", audit_key: short}\nlog: {level: loud}\n",
        &[
            "line 1: mode: `mode: service` requires `service.url`",
            "line 2: catalog.url: expected a URL that starts with sqlite:, postgres://",
            "line 2: catalog.audit_key: expected at least 32 bytes, got 5",
            "line 3: log.level: expected off, error",
        ],
    ),
    (
        "rules: [{name: a, dimension: ip, identifier: 10.0.0.0/8, algorithm: gcra, limit: 1, window: 1s}]",
        &[
            "line 1: rules[0].identifier: expected a single address, got the network 10.0.0.0/8; to limit a network as a whole, send it in a dimension of its own, such as `network`",
        ],
    ),
    (
        "rules: [{name: a, dimension: user, endpoint: '/api/*', algorithm: gcra, limit: 1, window: 1s}]",
        &["line 1: rules[0].endpoint: "],
    ),
    (
        "default_limit: {algorithm: fixed_window, limit: 1, window: 1, burst: 3}",
        &[
            "line 1: default_limit.window: expected a duration",
            "line 1: default_limit.burst: not supported by fixed_window",
        ],
    ),
    (
        "default_limit:\nrules:\n  - 5\n",
        &[
            "line 1: default_limit: field has no value; expected a limit or `none`",
            "line 3: rules[0]: expected a map, got a whole number",
        ],
    ),
];

#[test]
fn one_error_does_not_hide_another() {
    for (text, expected) in FILES {
        let errors = Config::parse(text).unwrap_err();
        let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), expected.len(), "{text}\n{errors}");
        // Errors of one line have no particular order.
        for line in expected {
            assert!(lines.iter().any(|error| error.starts_with(line)), "missing: {line}\n{errors}");
        }
        let numbers: Vec<Option<u64>> = errors.0.iter().map(|error| error.line()).collect();
        assert!(numbers.is_sorted(), "{errors}");
    }
    let pattern = Config::parse(FILES[15].0).unwrap_err().to_string();
    assert!(pattern.ends_with("; did you mean `/api/{*rest}`?"), "{pattern}");
}

fn warnings(rule: &str) -> Vec<String> {
    let text = format!("rules:\n  - {{name: a, dimension: user, unlimited: true, {rule}}}\n");
    let text = text.replace("dimension: user, unlimited: true, dimension", "unlimited: true, dimension");
    let config = Config::parse(&text).unwrap_or_else(|errors| panic!("{text}: {errors}"));
    config.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn values_that_can_never_match_are_warned_about() {
    for (rule, expected) in [
        (
            "endpoint: '/api/:id/items/:item'",
            "endpoint: `:id` matches only the literal text `:id`; did you mean `/api/{id}/items/{item}`?",
        ),
        (
            "endpoint: '/api/<int:id>'",
            "endpoint: `<int:id>` matches only the literal text `<int:id>`; did you mean `/api/{id}`?",
        ),
        ("endpoint: '/api/[id]'", "endpoint: `[id]` matches only"),
        (
            "endpoint: 'https://example.com/api'",
            "endpoint: an endpoint has no scheme and host, so this never matches a path; did you mean `/api`?",
        ),
        (
            "endpoint: 'post /login'",
            "endpoint: an endpoint has no method; did you mean `method: POST` and `endpoint: /login`?",
        ),
        ("endpoint: '^/api/v1'", "endpoint: an endpoint is not a regular expression"),
        ("endpoint: '/api/v1$'", "endpoint: an endpoint is not a regular expression"),
        ("method: gett", "method: GETT is not a registered HTTP method; did you mean GET?"),
        ("methods: [POST, PSOT]", "methods[1]: PSOT is not a registered HTTP method; did you mean POST?"),
        ("method: FROBNICATE", "method: FROBNICATE is not a registered HTTP method"),
        (
            "identifier: '*'",
            "identifier: matches only the identifier `*`; to match all identifiers, remove `identifier`",
        ),
        (
            "dimension: ip, identifier: '2001:db8::/32'",
            "identifier: never matches: IPv6 addresses are counted by their first 64 bits (server.ipv6_prefix); to limit a network as a whole",
        ),
    ] {
        let found = warnings(rule);
        assert_eq!(found.len(), 1, "{rule}: {found:?}");
        assert!(found[0].starts_with(&format!("line 2: rules[0].{expected}")), "{rule}: {found:?}");
    }
}

#[test]
fn values_that_can_match_are_not_warned_about() {
    for rule in [
        "endpoint: '*'",
        "endpoint: '/v1/projects/x:cancel'",
        "endpoint: '/users/$count'",
        "endpoint: '/time/12:30'",
        "endpoint: '/a/:'",
        "endpoint: '/a/:8080'",
        "endpoint: 'checkout step'",
        "methods: [GET, get, PURGE, PROPFIND, QUERY]",
        "identifier: 10.0.0.0/8",
        "identifier: alice*",
        "dimension: ip, identifier: 192.0.2.1",
        "dimension: ip, identifier: '2001:db8::1'",
        "dimension: ip, identifier: '2001:db8::/64'",
    ] {
        assert_eq!(warnings(rule), [""; 0], "{rule}");
    }
}

#[test]
fn warnings_are_sorted_by_line_and_are_not_errors() {
    let config = Config::parse(
        "rules:
  - {name: a, dimension: user, unlimited: true, endpoint: '/:id', method: GETT}
  - {name: b, dimension: user, unlimited: true,
     identifier: '*'}
",
    )
    .unwrap();
    let lines: Vec<Option<u64>> = config.warnings.iter().map(|warning| warning.line()).collect();
    assert_eq!(lines, [Some(2), Some(2), Some(4)]);
    config.limiter().unwrap();
}
