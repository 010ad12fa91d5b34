//! Writes rules as YAML, one line each.

use std::fmt::Write as _;
use std::time::Duration;

use pacegate::{
    Mode,
    descriptor::{Allowance, DescriptorRule, Selector, ValueTest},
};

/// The section `descriptors` of a configuration file.
pub(super) fn descriptors(rules: &[DescriptorRule]) -> String {
    if rules.is_empty() {
        return "descriptors: []\n".into();
    }
    let mut text = String::from("descriptors:\n");
    for rule in rules {
        let _ = writeln!(text, "  - {{{}}}", fields(rule).join(", "));
    }
    text
}

fn fields(rule: &DescriptorRule) -> Vec<String> {
    let mut fields = Vec::new();
    fields.extend(rule.domain.as_ref().map(|domain| format!("domain: {}", scalar(domain))));
    fields.extend(rule.name.as_ref().map(|name| format!("name: {}", scalar(name))));
    match &rule.selects {
        Selector::Path(entries) => fields.push(list("entries", entries, |entry| {
            let key = scalar(&entry.key);
            match &entry.value {
                None => format!("{{key: {key}}}"),
                Some(value) => format!("{{key: {key}, value: {}}}", scalar(value)),
            }
        })),
        Selector::Conditions { descriptor, when, by } => {
            fields.extend(descriptor.map(|index| format!("descriptor: {index}")));
            fields.push(list("when", when, |condition| {
                let (word, text) = match &condition.test {
                    ValueTest::Is(text) => ("is", text),
                    ValueTest::IsNot(text) => ("is_not", text),
                    ValueTest::StartsWith(text) => ("starts_with", text),
                };
                format!("{{key: {}, {word}: {}}}", scalar(&condition.key), scalar(text))
            }));
            if !by.is_empty() {
                fields.push(list("by", by, |key| scalar(key)));
            }
        }
    }
    match &rule.allowance {
        Allowance::Unlimited => fields.push("unlimited: true".into()),
        Allowance::Nothing => fields.push("deny: true".into()),
        Allowance::Limit(limit) => {
            fields.push(format!("algorithm: {}", limit.algorithm()));
            fields.push(format!("limit: {}", limit.quota()));
            fields.push(format!("window: {}", duration(limit.window())));
        }
    }
    if rule.mode == Mode::Shadow {
        fields.push("mode: shadow".into());
    }
    if !rule.replaces.is_empty() {
        fields.push(list("replaces", &rule.replaces, |name| scalar(name)));
    }
    if rule.overdraw {
        fields.push("overdraw: true".into());
    }
    if rule.refundable {
        fields.push("refundable: true".into());
    }
    fields
}

fn list<T>(name: &str, items: &[T], write: impl Fn(&T) -> String) -> String {
    format!("{name}: [{}]", items.iter().map(write).collect::<Vec<_>>().join(", "))
}

/// A duration in the largest unit that divides it.
fn duration(window: Duration) -> String {
    let seconds = window.as_secs();
    let (length, unit) = [(86_400, "d"), (3_600, "h"), (60, "m")]
        .into_iter()
        .find(|(length, _)| seconds.is_multiple_of(*length))
        .unwrap_or((1, "s"));
    format!("{}{unit}", seconds / length)
}

/// Text as a YAML scalar, quoted if it could be read as anything else.
fn scalar(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    // Some parsers read `y`, `off` and `null` as other types.
    let word = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"];
    if text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.bytes().all(plain)
        && !word.contains(&text.to_ascii_lowercase().as_str())
    {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Characters that YAML requires to be escaped.
            _ if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _ = write!(quoted, "\\u{:04x}", character as u32);
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use pacegate::{
        Algorithm, Limit,
        descriptor::{Condition, PathEntry},
    };
    use pacegate_config::Config;

    #[test]
    fn written_rules_are_parsed_back() {
        let texts = [
            "plain",
            "/a/b-c_d.e",
            "y",
            "No",
            "NULL",
            "~",
            "007",
            "1.10",
            "0x1f",
            "*",
            "a*b",
            "a: b",
            "#x",
            "'",
            "\"q\"",
            "back\\slash",
            " space ",
            "- x",
            "{x}",
            "[x]",
            "é",
            "🦀",
            "\u{2028}",
            "&a",
            "!t",
            "@x",
            "`",
            "%x",
            "1e3",
            ".5",
            "=",
            "true",
        ];
        let limit = |quota| {
            Allowance::Limit(Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(90)).unwrap())
        };
        let mut rules = Vec::new();
        for text in texts {
            let path = vec![PathEntry::any(text), PathEntry::exact(text, text)];
            let mut rule = DescriptorRule::new(Selector::Path(path), limit(1));
            rule.domain = Some(text.into());
            rule.mode = Mode::Shadow;
            rules.push(rule);
            let tests = [
                ValueTest::Is(text.into()),
                ValueTest::IsNot(String::new()),
                ValueTest::StartsWith(text.into()),
            ];
            let when = tests.map(|test| Condition { key: text.into(), test }).to_vec();
            let selects = Selector::Conditions { descriptor: Some(1), when, by: vec![text.into()] };
            rules.push(DescriptorRule::new(selects, Allowance::Nothing));
        }
        let named = DescriptorRule {
            name: Some("n".into()),
            overdraw: true,
            refundable: true,
            ..DescriptorRule::path(
                [PathEntry::any("n")],
                Limit::try_new(Algorithm::FixedWindow, 5, Duration::from_secs(60)).unwrap(),
            )
        };
        let replacing = DescriptorRule {
            replaces: vec!["n".into()],
            ..DescriptorRule::new(Selector::Path(vec![PathEntry::any("r")]), Allowance::Unlimited)
        };
        rules.extend([named, replacing]);
        let yaml = descriptors(&rules);
        let config = Config::parse(&yaml).unwrap_or_else(|errors| panic!("{errors}\n{yaml}"));
        assert_eq!(config.descriptors, rules);
    }

    #[test]
    fn durations_use_the_largest_unit() {
        for (seconds, expected) in [
            (1, "1s"),
            (59, "59s"),
            (60, "1m"),
            (90, "90s"),
            (3_600, "1h"),
            (86_400, "1d"),
            (90_000, "25h"),
            (31_536_000, "365d"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), expected);
        }
    }
}
