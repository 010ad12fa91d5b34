//! Invalid descriptor rules: every error in a file has its line, and a builder rejects the same
//! rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate::{
    InvalidRules, Limit, Limiter,
    descriptor::{DescriptorRule, PathEntry},
};
use pacegate_config::Config;

#[test]
fn errors_are_reported_with_their_lines() {
    let cases = [
        (
            "{domain: d, algorithm: fixed_window, limit: 1, window: 1s}",
            "entries: required field is missing; use `when` or `by` for entries in any order",
        ),
        ("{entries: [], unlimited: true}", "entries: expected 1 to 64 entries, got 0"),
        ("{entries: 5, unlimited: true}", "entries: expected a list, got a whole number"),
        ("{entries: [{value: x}], unlimited: true}", "entries[0].key: required field is missing"),
        (
            "{entries: [{key: ''}], unlimited: true}",
            "entries[0].key: must be 1 to 1024 bytes long without control characters",
        ),
        (
            "{entries: [{key: a, value: ''}], unlimited: true}",
            "entries[0].value: must be 1 to 1024 bytes long without control characters",
        ),
        (
            "{entries: [{key: a, valeu: b}], unlimited: true}",
            "entries[0].valeu: unknown field; expected one of key, value",
        ),
        ("{entries: [{key: a}], by: [b], unlimited: true}", "by: `entries` and `by` are mutually exclusive"),
        ("{entries: [{key: a}]}", "limit: required field is missing"),
        (
            "{entries: [{key: a}], unlimited: true, limit: 5}",
            "limit: `unlimited` and `limit` are mutually exclusive",
        ),
        (
            "{entries: [{key: a}], deny: true, window: 5s}",
            "window: `deny` and `window` are mutually exclusive",
        ),
        (
            "{entries: [{key: a}], deny: true, unlimited: true}",
            "deny: `unlimited` and `deny` are mutually exclusive",
        ),
        (
            "{entries: [{key: a}], unlimited: yes please}",
            "unlimited: expected true or false, got \"yes please\"",
        ),
        ("{entries: [{key: a}], unlimited: true, shadow: true}", "shadow: unknown field; expected one of"),
        (
            "{entries: [{key: a}], unlimited: true, mode: shade}",
            "mode: expected enforce or shadow, got \"shade\"",
        ),
        ("{entries: [{key: a}], unlimited: true, store: s}", "store: unknown store `s`"),
        ("{entries: [{key: a}], unlimited: true, overdraw: true}", "overdraw: requires a limit"),
        ("{entries: [{key: a}], unlimited: true, overdraw: 1}", "overdraw: expected true or false, got 1"),
        ("{entries: [{key: a}], unlimited: true, replaces: [b]}", "replaces: unknown rule `b`"),
        (
            "{entries: [{key: a}], unlimited: true, name: n, replaces: [n]}",
            "replaces: must not contain the rule's own name",
        ),
        (
            "{entries: [{key: a}], unlimited: true, name: 'a\"b'}",
            "name: must be 1 to 128 printable ASCII characters without quotes and backslashes",
        ),
        ("{entries: [{key: a}], algorithm: fixed_window, limit: 0, window: 1s}", "limit: "),
        (
            "{when: [{key: a}], deny: true}",
            "when[0]: expected exactly one of `is`, `is_not` and `starts_with`",
        ),
        (
            "{when: [{key: a, is: 1, is_not: 2}], deny: true}",
            "when[0]: expected exactly one of `is`, `is_not` and `starts_with`",
        ),
        (
            "{when: [{key: a, matches: 1}], deny: true}",
            "when[0].matches: unknown field; expected one of key, is, is_not, starts_with",
        ),
        (
            "{when: [], unlimited: true}",
            "unlimited: has no effect with `when` or `by`: every such rule that matches is charged",
        ),
        ("{when: [], descriptor: -1, deny: true}", "descriptor: must be between 0 and 63, got -1"),
        ("{by: [''], deny: true}", "by[0]: must be 1 to 1024 bytes long without control characters"),
        ("5", "expected a map, got a whole number"),
    ];
    for (rule, expected) in cases {
        let errors = Config::parse(&format!("descriptors:\n\n  - {rule}\n")).unwrap_err();
        let path = if rule == "5" { "descriptors[0]: " } else { "descriptors[0]." };
        let expected = format!("line 3: {path}{expected}");
        let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert!(lines.iter().any(|line| line.starts_with(&expected)), "{rule}: {lines:?}");
    }
}

#[test]
fn conflicting_rules_are_rejected() {
    let cases = [
        (
            "{entries: [{key: a}, {key: b, value: c}], X}",
            "{entries: [{key: a}, {key: b, value: c}], unlimited: true}",
            "descriptors[1].entries: selects the same as descriptors[0]",
        ),
        (
            "{name: n, by: [a, b], X}",
            "{name: n, by: [b, a], X}",
            "descriptors[1].when: selects the same as descriptors[0]",
        ),
        (
            "{when: [{key: a, is: 1}, {key: b, is: 2}], X}",
            "{when: [{key: b, is: 2}, {key: a, is: 1}], X}",
            "descriptors[1].when: selects the same as descriptors[0]",
        ),
        (
            "{name: a, by: [a], replaces: [b], X}",
            "{name: b, by: [b], replaces: [a], X}",
            "descriptors[0].replaces: `b` replaces this rule in turn, so neither would apply",
        ),
    ];
    let numbers = "algorithm: fixed_window, limit: 1, window: 1s";
    for (first, second, expected) in cases {
        let text = format!("descriptors:\n  - {first}\n  - {second}\n").replace('X', numbers);
        let errors = Config::parse(&text).unwrap_err();
        assert!(errors.to_string().contains(expected), "{errors}");
    }
    for text in [
        "descriptors: [{domain: a, entries: [{key: a}], X}, {domain: b, entries: [{key: a}], X}]",
        "descriptors: [{entries: [{key: a}], X}, {entries: [{key: a, value: b}], X}, {entries: [{key: a}, {key: a}], X}]",
        "descriptors: [{name: m, by: [a], X}, {name: n, by: [a], X}, {name: m, by: [a], X}]"
            .replace("m, by: [a], X}]", "m, by: [a], descriptor: 0, X}]")
            .as_str(),
    ] {
        let config = Config::parse(&text.replace('X', numbers)).unwrap();
        config.limiter().unwrap();
    }
}

#[test]
fn builder_rejects_what_a_file_cannot_express() {
    let rule = |key: &str| DescriptorRule::path([PathEntry::any(key)], Limit::per_second(1).build().unwrap());
    let build = |rule: DescriptorRule| Limiter::builder().descriptor(rule).build().unwrap_err();
    let error = build(rule("a\nb"));
    assert!(matches!(error, InvalidRules::InvalidDescriptor { index: 0, field: "entries", .. }), "{error}");
    let error = build(DescriptorRule { replaces: vec!["x".into()], ..rule("a") });
    assert_eq!(error.to_string(), "descriptors[0].replaces: unknown rule `x`");
    let error = build(DescriptorRule { store: Some("x".into()), ..rule("a") });
    assert!(matches!(error, InvalidRules::UnknownStore { .. }), "{error}");
    let duplicate = Limiter::builder().descriptor(rule("a")).descriptor(rule("a")).build().unwrap_err();
    assert!(matches!(duplicate, InvalidRules::InvalidDescriptor { index: 1, .. }), "{duplicate}");
}
