//! The configuration file: what its fields mean, and how errors in it are reported.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use pacegate::{Algorithm, Check, CheckError, FailureMode, InvalidRules, Mode, Scope};
use pacegate_config::{AdHocCallers, Config, LogFormat, LogLevel, Role, StoreConfig};
use pacegate_http::HeaderFamily;
use pacegate_testkit::effort;

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse_with_environment(text, environment).map_err(|errors| errors.to_string())
}

const FULL: &str = r#"
server: {http: "127.0.0.1:9090", admin_allow: [127.0.0.0/8, "::1/128"], max_connections: 50, idle_timeout: 5s, request_timeout: 2s}
stores:
  default: {url: "memory:", max_keys: 5000}
default_limit: {algorithm: token_bucket, limit: 10, window: 1s, burst: 100}
log: {format: json, level: debug}
headers: [ietf]
envoy: {headers: []}
plans:
  gold: [{algorithm: gcra, limit: 1, window: 1s, burst: 10}, {algorithm: fixed_window, limit: 1000, window: 1d}]
rules:
  - {name: per-user-minute, dimension: user, endpoint: "/api/v1/{*rest}", algorithm: sliding_counter, limit: 100, window: 60s}
  - name: per-user-minute
    dimension: user
    identifier: 12345
    endpoint: /api/v1/{*rest}
    method: get
    algorithm: SLIDING_WINDOW
    limit: 1000
    window: 1m
    mode: shadow
    counter: endpoint
"#;

#[test]
fn every_field_of_a_file_is_parsed() {
    let config = parse(FULL, &[]).unwrap();
    assert_eq!(config.server.http.port(), 9090);
    assert_eq!(config.server.admin_allow.len(), 2);
    assert_eq!((config.server.max_connections, config.server.idle_timeout), (50, Duration::from_secs(5)));
    assert_eq!(config.stores[0].memory.max_keys, 5_000);
    assert_eq!((config.log.format, config.log.level), (LogFormat::Json, LogLevel::Debug));
    assert_eq!(config.headers, [HeaderFamily::Ietf]);
    assert_eq!(config.envoy_headers, Some(Vec::new()));
    assert_eq!(config.plans[0].1.len(), 2);
    let second = &config.rules[1];
    assert_eq!(second.identifier.as_deref(), Some("12345"));
    assert_eq!(second.methods.as_text(), Some("GET"));
    assert_eq!(second.limit.algorithm(), Algorithm::SlidingLog);
    assert_eq!((second.mode, second.scope), (Mode::Shadow, Scope::Endpoint));
    let limiter = config.limiter().unwrap();
    let decision = limiter.check_now(Check::new("user", "u").endpoint("/api/v1/x")).unwrap();
    assert_eq!(decision.remaining(), Some(99));
}

#[test]
fn empty_file_has_the_defaults() {
    for text in ["", "# nothing\n", "{}", "rules:\n"] {
        let config = parse(text, &[]).unwrap();
        assert_eq!(config.server.http.to_string(), "127.0.0.1:8080");
        assert_eq!(config.default_limit.unwrap().capacity(), 100);
    }
    assert!(parse("default_limit: none", &[]).unwrap().default_limit.is_none());
}

#[test]
fn environment_overrides_any_value() {
    let environment = [
        ("PACEGATE_SERVER__HTTP", "0.0.0.0:8088"),
        ("PACEGATE_DEFAULT_LIMIT__BURST", "7"),
        ("PACEGATE_HEADERS", "[x-ratelimit]"),
        ("PACEGATE_ADMIN_KEY", "not a setting"),
        ("UNRELATED", "x"),
    ];
    let config = parse(FULL, &environment).unwrap();
    assert_eq!(config.server.http.to_string(), "0.0.0.0:8088");
    assert_eq!(config.default_limit.unwrap().capacity(), 7);
    assert_eq!(config.headers, [HeaderFamily::XRateLimit]);
    let error = parse("", &[("PACEGATE_SERVER__HTPP", "x")]).unwrap_err();
    assert!(
        error.contains("environment variable PACEGATE_SERVER__HTPP: server.htpp: unknown field"),
        "{error}"
    );
    let error = parse("", &[("PACEGATE_SERVER__", "x")]).unwrap_err();
    assert!(error.contains("expected names separated by two underscores"), "{error}");
}

#[test]
fn every_error_is_reported_with_its_line_and_path() {
    let text = r#"server: {http: nonsense, speed: 9}
default_limit: {algorithm: token_bucket, limit: 0, window: 1s}
headers: [x-ratelimit, carrier-pigeon]
plans:
  gold: [{algorithm: leaky, limit: 1.5, window: 60}]
rules:
  - {dimension: user, algorithm: gcra, limit: -1, window: forever}
  - {name: a, dimension: "two words", algorithm: fixed_window, limit: 5, window: 1s, burst: 9}
  - {name: b, dimension: user, endpoint: "/x/*", method: "G T", mode: maybe, algorithm: gcra, limit: 5, window: 1us}
  - {name: c, dimension: user, algorithm: gcra, limit: 5, window: 1s}
  - {name: c, dimension: user, algorithm: gcra, limit: 6, window: 1s}
stores: {default: {url: "http://user:secret@localhost"}, hot: {url: "redis://a", max_keys: 5, tls: {cert: a.pem}}}
nonsense: true
log: {level: inof}
"#;
    let error = parse(text, &[]).unwrap_err();
    let expected = [
        "line 1: server.http: expected an address and a port such as \"127.0.0.1:8080\", got \"nonsense\"",
        "line 1: server.speed: unknown field; expected one of http, grpc",
        "line 2: default_limit.limit: must be between 1 and 1000000000, got 0",
        "line 3: headers[1]: expected x-ratelimit or ietf, got \"carrier-pigeon\"",
        "line 5: plans.gold[0].algorithm: expected token_bucket, leaky_bucket",
        "line 5: plans.gold[0].limit: expected a whole number between 1 and 1000000000, got 1.5",
        "line 5: plans.gold[0].window: expected a duration with a unit such as \"60s\", got \"60\"",
        "line 7: rules[0].name: required field is missing",
        "line 7: rules[0].limit: must be between 1 and 1000000000, got -1",
        "line 7: rules[0].window: expected a duration with a unit such as \"60s\", got \"forever\"",
        "line 8: rules[1].dimension: must be 1 to 64",
        "line 8: rules[1].burst: not supported by fixed_window",
        "line 9: rules[2].endpoint: `*`: expected a literal",
        "line 9: rules[2].method: must be a method",
        "line 9: rules[2].mode: expected enforce or shadow, got \"maybe\"",
        "line 9: rules[2].window: must be between 1ms and 366d, got \"1us\"",
        "line 11: rules[4]: duplicate rule `c`: rules[3] has the same dimension",
        "line 12: stores.default.url: expected `memory:` or a URL that starts with redis://",
        "line 12: stores.hot.max_keys: applies only to a store in memory",
        "line 12: stores.hot.tls.cert: `cert` requires `key`",
        "line 13: nonsense: unknown field",
        "line 14: log.level: expected off, error, warn, info, debug or trace, got \"inof\"",
    ];
    for line in expected {
        assert!(error.contains(line), "missing: {line}\n{error}");
    }
    assert_eq!(error.lines().count(), expected.len(), "{error}");
}

#[test]
fn errors_are_sorted_by_line() {
    let text = "rules:\n  - {name: a}\nserver: {http: nonsense}\nlog:\n  level: inof\n";
    let environment = ("PACEGATE_METRICS".to_owned(), "maybe".to_owned());
    let errors = Config::parse_with_environment(text, std::iter::once(environment)).unwrap_err();
    let places: Vec<&str> = errors.0.iter().map(|error| error.place.as_str()).collect();
    let variable = "environment variable PACEGATE_METRICS";
    assert_eq!(places, ["line 2", "line 2", "line 2", "line 2", "line 3", "line 5", variable], "{errors}");
}

/// An invalid value is left out while the rest is parsed, which must not cause further errors.
#[test]
fn one_error_is_reported_once() {
    let rule = |fields: &str| format!("rules: [{{name: a, dimension: user, {fields}}}]");
    let limit = "algorithm: gcra, limit: 1, window: 1s";
    let rows = [
        ("service: {url: 5}\nmode: service".into(), "service.url: expected a URL"),
        ("traces: {otlp: [a]}".into(), "traces.otlp: expected text, got a list"),
        ("traces: {otlp: }".into(), "traces.otlp: required field is missing"),
        ("stores: {default: {url: nowhere, max_keys: 5, connections: 5}}".into(), "stores.default.url: "),
        ("stores: {hot: {url: , connections: 5}}".into(), "stores.hot.connections: applies only to"),
        ("plans: {gold: 5}".into(), "plans.gold: expected a list"),
        (rule("algorithm: gcra, limit: [1], window: 1s"), "rules[0].limit: expected a whole number"),
        (rule(&format!("{limit}, unlimited: ")), "rules[0].unlimited: field has no value"),
        (rule(&format!("{limit}, methods: [GET, 'a b']")), "rules[0].methods[1]: must be a method"),
        (
            rule(&format!("{limit}, tier: [a]}}, {{name: a, dimension: user, {limit}")),
            "rules[0].tier: expected text, got a list",
        ),
        ("descriptors: [{entries: 5, deny: true}]".into(), "descriptors[0].entries: expected a list"),
        (
            "descriptors: [{entries: [{value: a}], deny: true}]".into(),
            "descriptors[0].entries[0].key: required field is missing",
        ),
        (
            "descriptors: [{when: [{key: a, is: [b]}], deny: true}]".into(),
            "descriptors[0].when[0].is: expected text, got a list",
        ),
    ];
    for (text, expected) in rows {
        let error = parse(&text, &[]).unwrap_err();
        assert!(error.starts_with(&format!("line 1: {expected}")), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}: {error}");
    }
}

/// Lists and maps may contain URLs with passwords, so errors name only their kind.
#[test]
fn errors_do_not_quote_passwords() {
    for text in [
        "stores: {default: {shards: 'redis://:hunter2@a'}}",
        "stores: {default: {shards: ['http://:hunter2@a']}}",
        "service: 'http://:hunter2@a'",
        "service: {url: 'ftp://:hunter2@a'}",
        "traces: {otlp: 'ftp://:hunter2@a'}",
        "catalog: {audit_key: hunter2}",
    ] {
        let error = parse(text, &[]).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn syntax_errors_and_wrong_kinds_are_reported() {
    for (text, expected) in [
        ("rules: [", "line"),
        ("a: 1\na: 2\n", "line 2"),
        ("- just\n- a list\n", "line 1: expected a map, got a list"),
        ("rules: 5", "line 1: rules: expected a list, got a whole number"),
        ("plans: [1]", "plans: expected a map, got a list"),
    ] {
        let error = parse(text, &[]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn field_without_a_value_is_not_the_default() {
    for (text, expected) in [
        ("default_limit:", "line 1: default_limit: field has no value"),
        ("plans: {gold: []}", "line 1: plans.gold: must have between 1 and 16 limits, got 0"),
        (
            "rules: [{name: a, dimension: user, identifier: , algorithm: gcra, limit: 1, window: 1s}]",
            "line 1: rules[0].identifier: field has no value",
        ),
        (
            "rules: [{name: a, dimension: user, endpoint: '/a?b', algorithm: gcra, limit: 1, window: 1s}]",
            "line 1: rules[0].endpoint: must not have a query",
        ),
    ] {
        let error = parse(text, &[]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let twice = "rules:
  - {name: a, dimension: user, endpoint: '/x/{id}', algorithm: gcra, limit: 1, window: 1s}
  - {name: a, dimension: user, endpoint: '/x/{name}', algorithm: gcra, limit: 2, window: 1s}";
    let error = parse(twice, &[]).unwrap_err();
    assert!(
        error.contains("line 3: rules[1]: duplicate rule `a`: rules[0] has the same dimension"),
        "{error}"
    );
}

const STORES: &str = r#"
rules:
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, store: hot, on_store_error: closed}
  - {name: b, dimension: user, algorithm: gcra, limit: 1, window: 1s}
stores:
  hot: {url: "memory:", max_keys: 10, max_idempotency_keys: 20}
  default: {url: "rediss://localhost", connections: 4, tls: {ca: ca.pem, cert: cert.pem, key: key.pem}}
failure: {mode: local, timeout: 20ms}
"#;

#[test]
fn stores_and_failure_modes_are_parsed() {
    let config = parse(STORES, &[]).unwrap();
    let names: Vec<&str> = config.stores.iter().map(|store| store.name.as_str()).collect();
    assert_eq!(names, ["default", "hot"], "the default store is first");
    let [default, hot] = &config.stores[..] else { panic!("{:?}", config.stores) };
    assert_eq!((default.url.as_str(), default.connections), ("rediss://localhost", Some(4)));
    let files = [&default.tls.ca, &default.tls.cert, &default.tls.key];
    assert_eq!(files.map(|file| file.as_ref().unwrap().to_str().unwrap()), ["ca.pem", "cert.pem", "key.pem"]);
    assert_eq!(default.place, "line 7");
    assert!(hot.is_memory() && !default.is_memory());
    assert_eq!((hot.memory.max_keys, hot.memory.max_idempotency_keys), (10, 20));
    assert_eq!((config.failure_mode, config.store_timeout), (FailureMode::Local, Duration::from_millis(20)));
    let rules: Vec<_> =
        config.rules.iter().map(|rule| (rule.store.as_deref(), rule.on_store_error)).collect();
    assert_eq!(rules, [(Some("hot"), Some(FailureMode::Closed)), (None, None)]);
    assert_eq!(
        config.limiter().unwrap_err(),
        InvalidRules::NotConnected { store: "default".into() },
        "a remote store must be connected first"
    );
    let defaults = parse("", &[]).unwrap();
    assert_eq!(
        (defaults.failure_mode, defaults.store_timeout),
        (FailureMode::Open, Duration::from_millis(50))
    );
    assert_eq!(defaults.stores, [StoreConfig::new("default", "memory:")]);
}

#[test]
fn rule_counts_in_its_store() {
    let config = parse(STORES, &[("PACEGATE_STORES__DEFAULT", "{url: 'memory:'}")]).unwrap();
    let limiter = config.limiter().unwrap();
    let names: Vec<&str> = limiter.stores().health().map(|(name, _)| name).collect();
    assert_eq!(names, ["default", "hot"]);
    let check = Check::new("user", "u").endpoint("/");
    let rejected = limiter.check_now(&check);
    assert!(matches!(rejected, Err(CheckError::NotInProcess)), "the two rules count in two stores");
}

#[test]
fn environment_overrides_stores_and_failure() {
    let environment = [
        ("PACEGATE_STORES__HOT__URL", "redis://user:p%40ss@cache:6380/2"),
        ("PACEGATE_STORES__COLD__URL", "redis+cluster://a,b"),
        ("PACEGATE_FAILURE__MODE", "closed"),
        ("PACEGATE_FAILURE__TIMEOUT", "1s"),
    ];
    let config = parse("stores: {hot: {url: 'memory:'}}", &environment).unwrap();
    let mut urls: Vec<(&str, &str)> =
        config.stores.iter().map(|store| (store.name.as_str(), store.url.as_str())).collect();
    urls.sort_unstable();
    assert_eq!(
        urls,
        [
            ("cold", "redis+cluster://a,b"),
            ("default", "memory:"),
            ("hot", "redis://user:p%40ss@cache:6380/2")
        ]
    );
    assert_eq!((config.failure_mode, config.store_timeout), (FailureMode::Closed, Duration::from_secs(1)));
    let cold = config.stores.iter().find(|store| store.name == "cold").unwrap();
    assert_eq!(cold.place, "environment variable PACEGATE_STORES__COLD__URL");
    let error = parse("", &[("PACEGATE_STORES__HOT__URL", "http://user:secret@cache")]).unwrap_err();
    assert!(
        error.starts_with("environment variable PACEGATE_STORES__HOT__URL: stores.hot.url: expected"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn errors_in_stores_and_failure_have_their_line() {
    let text = r#"stores:
  hot: {url: "memory:", connections: 2, tls: {ca: a.pem}}
  "two words": {url: "memory:"}
  far: {url: "redis://far", connections: 65, max_keys: 1, colour: red}
failure: {mode: ajar, timeout: 11s, retries: 3}
rules:
  - {name: a, dimension: user, algorithm: gcra, limit: 1, window: 1s, store: hot}
  - name: b
    dimension: user
    algorithm: gcra
    limit: 1
    window: 1s
    store: cold
  - {name: c, dimension: user, algorithm: gcra, limit: 1, window: 1s, store: , on_store_error: shut}
"#;
    let error = parse(text, &[]).unwrap_err();
    let expected = [
        "line 2: stores.hot.connections: applies only to a remote store",
        "line 2: stores.hot.tls: applies only to a remote store",
        "line 3: stores.two words: store name must be",
        "line 4: stores.far.max_keys: applies only to a store in memory",
        "line 4: stores.far.connections: must be between 1 and 64, got 65",
        "line 4: stores.far.colour: unknown field",
        "line 5: failure.mode: expected open, closed or local, got \"ajar\"",
        "line 5: failure.timeout: must be between 1ms and 10s, got \"11s\"",
        "line 5: failure.retries: unknown field",
        "line 13: rules[1].store: unknown store `cold`",
        "line 14: rules[2].store: field has no value",
        "line 14: rules[2].on_store_error: expected open, closed or local, got \"shut\"",
    ];
    for line in expected {
        assert!(error.contains(line), "missing: {line}\n{error}");
    }
    assert_eq!(error.lines().count(), expected.len(), "{error}");
    assert!(parse("failure: {timeout: 999us}", &[]).unwrap_err().contains("between 1ms and 10s"));
    for timeout in ["1ms", "10s"] {
        assert!(parse(&format!("failure: {{timeout: {timeout}}}"), &[]).is_ok());
    }
}

#[test]
fn number_of_stores_is_bounded() {
    let many = |stores: usize| {
        let stores: Vec<String> =
            (1..stores).map(|number| format!("s{number}: {{url: 'memory:'}}")).collect();
        parse(&format!("stores: {{{}}}", stores.join(", ")), &[])
    };
    assert_eq!(many(64).unwrap().stores.len(), 64, "with the default one");
    let error = many(65).unwrap_err();
    assert!(error.contains("line 1: stores: expected at most 64 stores, got 65"), "{error}");
}

#[test]
fn trusted_proxies_are_parsed_and_empty_by_default() {
    assert!(parse("", &[]).unwrap().server.trusted_proxies.is_empty());
    let text = "server: {trusted_proxies: [10.0.0.0/8, \"::1/128\"]}";
    let trusted = parse(text, &[]).unwrap().server.trusted_proxies;
    assert_eq!(trusted, ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
    let error = parse("server: {trusted_proxies: [balancer]}", &[]).unwrap_err();
    assert!(
        error.contains(
            "line 1: server.trusted_proxies[0]: expected a network such as \"10.0.0.0/8\", got \"balancer\""
        ),
        "{error}"
    );
}

#[test]
fn bounds_of_connections_are_parsed() {
    let server = |text: &str| parse(&format!("server: {{{text}}}"), &[]).map(|config| config.server);
    let default = server("").unwrap();
    assert_eq!((default.admin, default.bounds().connections_per_address(10_000)), (None, 1_000));
    // At least 256, and at most half of all connections.
    for (max, expected) in [(1_000_000, 100_000), (1_000, 256), (400, 200), (3, 1), (1, 1)] {
        assert_eq!(default.bounds().connections_per_address(max), expected, "{max}");
    }
    let set = server("max_connections_per_address: 7, admin: \"127.0.0.1:8082\"").unwrap();
    assert_eq!(
        (set.admin, set.bounds().connections_per_address(10_000)),
        (Some(([127, 0, 0, 1], 8082).into()), 7)
    );
    assert_eq!(server("admin: none").unwrap().admin, None);
    let error = server("max_connections_per_address: 0").unwrap_err();
    assert!(error.contains("server.max_connections_per_address: must be between 1 and"), "{error}");
}

#[test]
fn key_max_age_is_parsed() {
    let age = |text: &str| parse(text, &[]).map(|config| config.catalog.key_max_age);
    assert_eq!(age("").unwrap(), Duration::from_secs(300));
    assert_eq!(age("catalog: {key_max_age: 30s}").unwrap(), Duration::from_secs(30));
    let error = age("catalog: {key_max_age: 2days}").unwrap_err();
    assert!(error.contains("catalog.key_max_age: must be between 1s and 1d, got \"2days\""), "{error}");
}

#[test]
fn tls_is_parsed_and_its_errors_are_reported() {
    let text = "server: {tls: {cert: a.pem, key: a.key, client_ca: ca.pem, client_crl: crl.pem, identities: {\"uri:spiffe://example.org/orders\": checker, \"email:ops@example.org\": admin, \"ip:10.0.0.7\": reader}}}";
    let tls = parse(text, &[]).unwrap().server.tls.unwrap();
    assert_eq!((tls.files.cert.to_str(), tls.files.key.to_str()), (Some("a.pem"), Some("a.key")));
    assert_eq!(tls.files.client_ca.unwrap().to_str(), Some("ca.pem"));
    assert_eq!(tls.files.client_crl.unwrap().to_str(), Some("crl.pem"));
    let identities = [
        ("uri:spiffe://example.org/orders", Role::Checker),
        ("email:ops@example.org", Role::Admin),
        ("ip:10.0.0.7", Role::Reader),
    ];
    assert_eq!(tls.identities, identities.map(|(name, role)| (name.parse().unwrap(), role)));
    assert!(parse("server: {}", &[]).unwrap().server.tls.is_none());
    let environment = [("PACEGATE_SERVER__TLS__CERT", "b.pem"), ("PACEGATE_SERVER__TLS__KEY", "b.key")];
    assert_eq!(parse("", &environment).unwrap().server.tls.unwrap().files.cert.to_str(), Some("b.pem"));
    for (tls, expected) in [
        ("{cert: a.pem}", "line 1: server.tls.key: required field is missing"),
        ("{key: a.key}", "line 1: server.tls.cert: required field is missing"),
        ("{cert: a.pem, key: a.key, ca: b.pem}", "line 1: server.tls.ca: unknown field"),
        ("{cert: [a.pem], key: a.key}", "line 1: server.tls.cert: expected text, got a list"),
        ("yes", "line 1: server.tls: expected a map"),
        (
            "{cert: a.pem, key: a.key, identities: {\"dns:a\": admin}}",
            "line 1: server.tls.identities: `identities` requires `client_ca`",
        ),
        (
            "{cert: a.pem, key: a.key, client_ca: b.pem, identities: {\"dns:a\": owner}}",
            "line 1: server.tls.identities.dns:a: expected admin, reader or checker, got \"owner\"",
        ),
        (
            "{cert: a.pem, key: a.key, client_ca: b.pem, identities: {\"a\\tb\": admin}}",
            "a name must be 1 to 1024 bytes long without control characters",
        ),
        (
            "{cert: a.pem, key: a.key, client_ca: b.pem, identities: {ops@example.org: admin}}",
            "server.tls.identities.ops@example.org: expected a name with its type, such as `email:ops@example.org`",
        ),
        (
            "{cert: a.pem, key: a.key, client_crl: b.pem}",
            "line 1: server.tls.client_crl: `client_crl` requires `client_ca`",
        ),
        (
            "{cert: a.pem, key: a.key, client_ca: b.pem, identities: [a]}",
            "server.tls.identities: expected a map, got a list",
        ),
    ] {
        let error = parse(&format!("server: {{tls: {tls}}}"), &[]).unwrap_err();
        assert!(error.contains(expected) && error.lines().count() == 1, "{tls}: {error}");
    }
}

#[test]
fn request_memory_has_a_unit() {
    let memory = |text: &str| parse(text, &[]).unwrap().server.max_request_memory;
    assert_eq!(memory(""), 64 << 20);
    assert_eq!(memory("server: {max_request_memory: 1MiB}"), 1 << 20);
    assert_eq!(memory("server: {max_request_memory: 2048 KiB}"), 2 << 20);
    let environment = [("PACEGATE_SERVER__MAX_REQUEST_MEMORY", "2GiB")];
    assert_eq!(parse("", &environment).unwrap().server.max_request_memory, 2 << 30);
    for (value, expected) in [
        ("1000", "expected a size with a unit such as \"64MiB\", got \"1000\""),
        ("64MB", "expected a size with a unit such as \"64MiB\", got \"64MB\""),
        ("99999999999999999999GiB", "expected a size with a unit"),
        ("-1MiB", "expected a size with a unit"),
        ("1023KiB", "must be between 1MiB and 1024GiB, got \"1023KiB\""),
        ("[1MiB]", "expected text, got a list"),
    ] {
        let errors = parse(&format!("server: {{max_request_memory: {value}}}"), &[]).unwrap_err().to_string();
        assert!(errors.starts_with("line 1: server.max_request_memory: "), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
}

#[test]
fn grpc_streams_drain_delay_and_envoy_timeout_are_parsed() {
    let defaults = parse("", &[]).unwrap();
    assert_eq!(defaults.server.grpc.unwrap().to_string(), "127.0.0.1:8081");
    assert_eq!((defaults.server.max_streams, defaults.server.drain_delay), (128, Duration::from_secs(1)));
    assert_eq!(
        defaults.envoy_store_timeout,
        Duration::from_millis(12),
        "less than the 20 ms that Envoy waits"
    );
    let text = "server: {grpc: \"0.0.0.0:9091\", max_streams: 1000, drain_delay: 5s}\nfailure: {envoy_timeout: 7ms}\n";
    let config = parse(text, &[]).unwrap();
    assert_eq!(config.server.grpc.unwrap().to_string(), "0.0.0.0:9091");
    assert_eq!((config.server.max_streams, config.server.drain_delay), (1_000, Duration::from_secs(5)));
    assert_eq!(config.envoy_store_timeout, Duration::from_millis(7));
    assert_eq!(config.store_timeout, defaults.store_timeout, "the timeout of other requests is unchanged");
    assert!(parse("server: {grpc: none}", &[]).unwrap().server.grpc.is_none());
    assert!(parse(text, &[("PACEGATE_SERVER__GRPC", "none")]).unwrap().server.grpc.is_none());
    assert_eq!(parse("server: {drain_delay: 0s}", &[]).unwrap().server.drain_delay, Duration::ZERO);
    let environment = [
        ("PACEGATE_SERVER__GRPC", "[::1]:7"),
        ("PACEGATE_SERVER__MAX_STREAMS", "3"),
        ("PACEGATE_SERVER__DRAIN_DELAY", "250ms"),
        ("PACEGATE_FAILURE__ENVOY_TIMEOUT", "9ms"),
    ];
    let config = parse(text, &environment).unwrap();
    assert_eq!(config.server.grpc.unwrap().to_string(), "[::1]:7");
    assert_eq!((config.server.max_streams, config.server.drain_delay), (3, Duration::from_millis(250)));
    assert_eq!(config.envoy_store_timeout, Duration::from_millis(9));
    for (text, expected) in [
        ("server: {grpc: nowhere}", "line 1: server.grpc: expected an address and a port"),
        ("server: {grpc: 8081}", "line 1: server.grpc: "),
        ("server: {grpc: [none]}", "line 1: server.grpc: "),
        ("server: {max_streams: 0}", "line 1: server.max_streams: must be between 1 and 10000"),
        ("server: {max_streams: 10001}", "line 1: server.max_streams: must be between 1 and 10000"),
        (
            "server: {max_streams: many}",
            "line 1: server.max_streams: expected a whole number between 1 and 10000, got \"many\"",
        ),
        ("server: {drain_delay: 2h}", "line 1: server.drain_delay: must be between 0s and 1h"),
        ("server: {drain_delay: 5}", "line 1: server.drain_delay: expected a duration with a unit"),
        ("failure: {envoy_timeout: 500us}", "line 1: failure.envoy_timeout: must be between 1ms and 10s"),
        ("failure: {envoy_timeout: 11s}", "line 1: failure.envoy_timeout: must be between 1ms and 10s"),
        ("failure: {envoy_timeout: soon}", "line 1: failure.envoy_timeout: expected a duration with a unit"),
    ] {
        let error = parse(text, &[]).unwrap_err();
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{text}: {error}");
    }
}

#[test]
fn file_can_have_the_maximum_number_of_rules() {
    let rule = |number: usize| {
        format!(
            "  - {{name: r{number}, dimension: user, endpoint: \"/e{number}\", algorithm: gcra, limit: 5, window: 1s, burst: 7, method: GET, tier: t}}\n"
        )
    };
    // The default bound of the YAML parser is a seventh of these rules.
    let count = effort(20_000, pacegate::rules::RULES_MAX);
    let text: String = std::iter::once("rules:\n".to_owned()).chain((0..count).map(rule)).collect();
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.rules.len(), count);
    let rules = config.rules.iter().cycle().take(pacegate::rules::RULES_MAX + 1).cloned().collect();
    let error = Config { rules, ..config }.limiter().unwrap_err().to_string();
    assert_eq!(error, "too many rules: got 100001, the maximum is 100000");
}

#[test]
fn ad_hoc_limits_are_bounded() {
    let ad_hoc_keys = |yaml: &str| Config::parse(yaml).unwrap().stores[0].memory.max_ad_hoc_keys;
    assert_eq!(Config::default().ad_hoc, Config::parse("").unwrap().ad_hoc);
    assert_eq!(ad_hoc_keys(""), 100_000, "a tenth of max_keys");
    assert_eq!(ad_hoc_keys("stores: {default: {max_keys: 500}}"), 50);
    assert_eq!(ad_hoc_keys("stores: {default: {max_keys: 5}}"), 1);
    assert_eq!(ad_hoc_keys("ad_hoc: {max_keys: 7}\nstores: {default: {max_keys: 500}}"), 7);
    assert_eq!(ad_hoc_keys("ad_hoc: {max_keys: 700}\nstores: {default: {max_keys: 500}}"), 500);
    let config = Config::parse("ad_hoc: {allow: with_key, max_window: 2h}").unwrap();
    assert_eq!((config.ad_hoc.allow, config.ad_hoc.max_window.as_secs()), (AdHocCallers::WithKey, 7_200));
    for wrong in ["{allow: everyone}", "{max_window: 367d}", "{max_window: 1ms}", "{max_keys: 0}", "{x: 1}"] {
        let errors = Config::parse(&format!("ad_hoc: {wrong}")).unwrap_err();
        assert!(errors.0[0].path.starts_with("ad_hoc."), "{wrong}: {errors}");
    }
}
