//! Decisions of a replay, compared with plain loops that make the same decisions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{Check, MemoryOptions, MemoryStore, Stores, Timestamp};
use pacegate_config::Config;
use pacegate_simulate::{LogOptions, Options, Report, RuleFile, SimulateError, Source, simulate};
use pacegate_testkit::SimulatedClock;

fn source(text: impl Into<Vec<u8>>) -> Source {
    Source { name: "access.log".into(), reader: Box::new(Cursor::new(text.into())) }
}

fn rules(yaml: &str) -> RuleFile {
    RuleFile { name: "rules.yaml".into(), config: Config::parse(yaml).unwrap() }
}

fn run(log: &str, yaml: &[&str], options: &Options) -> Result<Report, SimulateError> {
    let rules: Vec<RuleFile> = yaml.iter().map(|yaml| rules(yaml)).collect();
    simulate(vec![source(log)], &rules, options, &mut |_| {})
}

fn mapped(map: &str) -> Options {
    Options { log: LogOptions { map: map.parse().unwrap(), ..LogOptions::default() }, ..Options::default() }
}

/// A request as JSON, with a fraction of a second.
fn json(seconds: f64, user: &str, path: &str) -> String {
    format!("{{\"ts\":{:.6},\"user\":\"{user}\",\"path\":\"{path}\",\"status\":200}}\n", 1.7e9 + seconds)
}

const TWO_A_MINUTE: &str = "default_limit: none
rules: [{name: two, dimension: user, algorithm: fixed_window, limit: 2, window: 1m}]";

const MANY: &str = r#"
default_limit: {algorithm: token_bucket, limit: 1, window: 10s, burst: 3}
rules:
  - {name: bucket, dimension: user, endpoint: "/api/{*rest}", algorithm: token_bucket, limit: 20, window: 10s, burst: 5}
  - {name: bucket, dimension: user, tier: gold, endpoint: "/api/{*rest}", algorithm: token_bucket, limit: 50, window: 10s, burst: 9}
  - {name: exact, dimension: ip, endpoint: "/api/{*rest}", algorithm: sliding_log, limit: 40, window: 30s}
  - {name: counter, dimension: user, endpoint: /api/orders, method: POST, algorithm: sliding_counter, limit: 4, window: 5s}
  - {name: paced, dimension: ip, endpoint: "/export/{id}", counter: endpoint, algorithm: gcra, limit: 1, window: 2s}
  - {name: watch, dimension: user, mode: shadow, algorithm: fixed_window, limit: 3, window: 10s}
"#;

/// The same as the replay without its parts: a limiter on a simulated clock, counted by hand.
#[test]
fn replay_decides_as_a_plain_loop_does() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = Arc::new(SimulatedClock::at(Timestamp::default()));
        let store = Arc::new(MemoryStore::with_clock(MemoryOptions::default(), clock.clone()));
        let limiter = Config::parse(MANY).unwrap().limiter_with(Stores::memory(store)).unwrap();
        let gold = pacegate::Profile { tier: Some("gold".into()), ..Default::default() };
        let mut micros = 1_700_000_000_000_000;
        let mut log = String::new();
        let (mut allowed, mut blocked) = (0, 0);
        let mut by_user: HashMap<String, u64> = HashMap::new();
        let mut by_rule: HashMap<String, u64> = HashMap::new();
        for _ in 0..3_000 {
            micros += random.u64(0..400_000);
            let user = format!("u{}", random.u32(0..6));
            let (ip, cost) = (format!("192.0.2.{}", random.u32(0..4)), random.u32(1..3));
            let path = ["/api/orders", "/api//x/../orders?a=b", "/export/7", "/other"][random.usize(0..4)];
            let method = ["GET", "POST"][random.usize(0..2)];
            let tier = if user == "u1" { "gold" } else { "" };
            log.push_str(&format!("{micros},{user},{ip},{method},{path},{cost},{tier}\n"));
            clock.set(Timestamp::from_micros(micros));
            let check = Check::new("user", &user)
                .and("ip", &ip)
                .endpoint(path)
                .method(method)
                .cost(pacegate::Cost::try_new(cost.into()).unwrap())
                .profile((tier == "gold").then_some(&gold));
            let decision = limiter.check_now(&check).unwrap();
            for (limit, answer) in decision.limits().iter().zip(decision.answers()) {
                let name = format!("{} {}", limit.name, limit.limit.quota());
                *by_rule.entry(name).or_default() += u64::from(!answer.allowed);
            }
            if decision.allowed() {
                allowed += 1;
            } else {
                blocked += 1;
                *by_user.entry(user.clone()).or_default() += 1;
            }
        }
        let log = format!("time,user,ip,method,path,cost,tier\n{log}");
        let report = run(&log, &[MANY], &Options::default()).unwrap();
        let set = &report.rule_sets[0];
        assert_eq!((set.allowed, set.blocked), (allowed, blocked), "seed {seed}");
        assert!(blocked > 100 && allowed > 100, "seed {seed}: {allowed} {blocked}");
        let found: HashMap<String, u64> =
            set.most_blocked.iter().map(|each| (each.identifier.clone(), each.blocked)).collect();
        assert_eq!(found, by_user, "seed {seed}");
        let mut found: HashMap<String, u64> = HashMap::new();
        for rule in &set.rules {
            *found.entry(format!("{} {}", rule.name, rule.limit)).or_default() += rule.blocked;
        }
        assert_eq!(found, by_rule, "seed {seed}");
        let of_series: u64 = report.series.blocked[0].iter().sum();
        let of_endpoints: u64 = report.endpoints.iter().map(|endpoint| endpoint.blocked[0]).sum();
        assert_eq!((of_series, of_endpoints), (blocked, blocked), "seed {seed}");
    }
}

/// The number in the report is sufficient, and one less is not.
#[test]
fn sufficient_number_for_all_keys_blocks_no_request() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut log = String::new();
    let mut at = 0.0;
    for _ in 0..4_000 {
        at += random.f64() * 0.3;
        log.push_str(&json(at, &format!("u{}", random.u32(0..5)), "/"));
    }
    let rule = |algorithm: &str, limit: u64, burst: Option<u64>| {
        let burst = burst.map(|burst| format!(", burst: {burst}")).unwrap_or_default();
        format!(
            "default_limit: none\nrules: [{{name: r, dimension: user, algorithm: {algorithm}, limit: {limit}, window: 10s{burst}}}]"
        )
    };
    for algorithm in ["fixed_window", "sliding_counter", "token_bucket", "leaky_bucket", "gcra"] {
        let report = run(&log, &[&rule(algorithm, 5, None)], &Options::default()).unwrap();
        let needed = report.rule_sets[0].rules[0].needed.clone().unwrap();
        assert!(report.rule_sets[0].blocked > 0 && needed.exact, "{algorithm}");
        let blocked = |number: u64| {
            let yaml = match needed.number.as_str() {
                "burst" => rule(algorithm, 5, Some(number)),
                _ => rule(algorithm, number, None),
            };
            run(&log, &[&yaml], &Options::default()).unwrap().rule_sets[0].blocked
        };
        assert_eq!(blocked(needed.for_all), 0, "{algorithm} {needed:?}");
        assert!(blocked(needed.for_all - 1) > 0, "{algorithm} {needed:?}");
    }
}

#[test]
fn lines_out_of_order_are_decided_in_order() {
    let lines: Vec<String> = [0.0, 30.0, 61.0, 90.0].map(|at| json(at, "a", "/")).to_vec();
    let sorted = run(&lines.concat(), &[TWO_A_MINUTE], &Options::default()).unwrap();
    let shuffled = [lines[2].clone(), lines[0].clone(), lines[3].clone(), lines[1].clone()].concat();
    let patient = Options { reorder: Duration::from_secs(120), ..Options::default() };
    let report = run(&shuffled, &[TWO_A_MINUTE], &patient).unwrap();
    assert_eq!(report.rule_sets[0].blocked, sorted.rule_sets[0].blocked);
    assert_eq!((report.log.late_requests, report.log.first.clone()), (0, sorted.log.first.clone()));
    let report =
        run(&shuffled, &[TWO_A_MINUTE], &Options { reorder: Duration::ZERO, ..Options::default() }).unwrap();
    assert!(report.log.late_requests > 0);
    assert!(
        report.log.warnings[0].contains("older than an earlier line, by up to"),
        "{:?}",
        report.log.warnings
    );
}

#[test]
fn progress_reaches_the_end() {
    let log: String = (0..5_000).map(|at| json(f64::from(at), "a", "/")).collect();
    let mut seen = Vec::new();
    simulate(vec![source(log.clone())], &[rules(TWO_A_MINUTE)], &Options::default(), &mut |progress| {
        seen.push(progress)
    })
    .unwrap();
    assert!(seen.len() > 2 && seen.is_sorted_by_key(|progress| progress.requests), "{seen:?}");
    assert_eq!(seen.last().map(|last| (last.requests, last.bytes)), Some((5_000, log.len() as u64)));
}

#[test]
fn second_set_of_rules_is_decided_separately() {
    let log: String = (0..10).map(|at| json(f64::from(at), "a", "/")).chain([json(11.0, "b", "/")]).collect();
    let five = TWO_A_MINUTE.replace("limit: 2", "limit: 5");
    let report = run(&log, &[TWO_A_MINUTE, &five], &Options::default()).unwrap();
    let blocked: Vec<u64> = report.rule_sets.iter().map(|set| set.blocked).collect();
    assert_eq!(blocked, [8, 5]);
    let alone: Vec<u64> = [TWO_A_MINUTE, &five]
        .map(|yaml| run(&log, &[yaml], &Options::default()).unwrap().rule_sets[0].blocked)
        .to_vec();
    assert_eq!(blocked, alone);
    let comparison = report.comparison.unwrap();
    assert_eq!((comparison.customers[0].only_a, comparison.customers[0].both), (0, 1));
    assert_eq!(comparison.rules[0].a.as_deref(), Some("fixed_window 2 / 1 min"));
    assert_eq!(comparison.rules[0].b.as_deref(), Some("fixed_window 5 / 1 min"));
    assert_eq!(report.rule_sets[0].most_blocked[0].blocked_by_other, Some(5));
    assert!(report.conclusion[2].starts_with("B blocks 3 requests fewer than A"), "{:?}", report.conclusion);
}

#[test]
fn shadow_rule_blocks_nothing_and_is_counted() {
    let shadow = TWO_A_MINUTE.replace("name: two", "name: two, mode: shadow");
    let log: String = (0..5).map(|at| json(f64::from(at), "a", "/")).collect();
    let report = run(&log, &[&shadow], &Options::default()).unwrap();
    let set = &report.rule_sets[0];
    assert_eq!((set.allowed, set.blocked, set.would_block, set.rules[0].blocked), (5, 0, 3, 3));
    assert_eq!(set.rules[0].mode, "shadow");
    assert!(
        report.conclusion[0]
            .ends_with("would have blocked 3 requests more; use --enforce-shadow to list the customers.")
    );
    assert!(!set.shadow_enforced && set.most_blocked.is_empty());
    let report = run(&log, &[&shadow], &Options { enforce_shadow: true, ..Options::default() }).unwrap();
    let set = &report.rule_sets[0];
    assert_eq!((set.allowed, set.blocked, set.would_block), (2, 3, 0));
    assert_eq!((set.most_blocked[0].identifier.as_str(), set.rules[0].mode.as_str()), ("a", "enforce"));
    assert!(set.shadow_enforced && set.warnings.is_empty(), "{:?}", set.warnings);
    assert!(
        report.conclusion[0].starts_with("These rules, with shadow rules enforced, would have blocked 60 %")
    );
}

/// A customer with blocked requests is still a regular customer.
#[test]
fn blocked_regular_customer_is_in_the_conclusion() {
    let log: String = (0..90)
        .map(|place| json(f64::from(place / 3) * 61.0 + f64::from(place % 3) * 0.1, "best", "/"))
        .chain((0..10).map(|place| json(2_000.0 + f64::from(place) * 61.0, "other", "/")))
        .collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options::default()).unwrap();
    assert_eq!(report.rule_sets[0].regular_hurt[0].identifier, "best");
    assert!(report.rule_sets[0].regular_hurt[0].often);
    for text in [report.to_text(), report.to_html()] {
        let text = text.to_lowercase();
        assert!(!text.contains("no regular customer") && text.contains("1 user often"), "{text}");
    }
}

/// The time of one line does not affect the decisions on others.
#[test]
fn line_from_the_future_is_ignored_and_reported() {
    let line = |second: u32, user: u32| {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!(
            "192.0.2.1 - u{user} [10/Oct/2000:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n"
        )
    };
    let yaml = "default_limit: none
rules: [{name: r, dimension: user, algorithm: gcra, limit: 5, window: 1s, burst: 1}]";
    let mut lines: Vec<String> = (0..6_000).map(|place| line(place / 5, 1)).collect();
    let whole = run(&lines.concat(), &[yaml], &Options::default()).unwrap();
    assert_eq!(whole.rule_sets[0].blocked, 0);
    for place in [0, 3_000, 6_000] {
        lines.insert(place, line(0, 1).replace("2000", "2099"));
        let report = run(&lines.concat(), &[yaml], &Options::default()).unwrap();
        lines.remove(place);
        assert_eq!((report.rule_sets[0].blocked, report.log.requests, report.log.odd_times), (0, 6_000, 1));
        assert_eq!((&report.log.last, report.log.late_requests), (&whole.log.last, 0));
        assert_eq!(report.series.requests, whole.series.requests);
        let odd = &report.log.odd_examples[0];
        assert_eq!((odd.line, odd.time.as_str()), (place as u64 + 1, "2099-10-10T00:00:00Z"));
        let expected = format!(
            "1 line is ignored because of a time far ahead of the rest of the log, such as line {}",
            place + 1
        );
        assert!(report.log.warnings[0].starts_with(&expected), "{:?}", report.log.warnings);
    }
}

#[test]
fn unsorted_log_is_reported_as_not_reliable() {
    let lines: Vec<String> = (0..1_000).map(|second| json(f64::from(second), "a", "/")).collect();
    let late = |count: usize| {
        let mut lines = lines.clone();
        lines.extend_from_within(..count);
        run(&lines.concat(), &[TWO_A_MINUTE], &Options::default()).unwrap()
    };
    let report = late(5);
    assert!(report.log.late_requests == 5 && !report.log.out_of_order);
    assert!(!report.conclusion[0].contains("not reliable") && !report.to_html().contains("not reliable"));
    let report = late(100);
    assert!(report.log.out_of_order);
    let sentence =
        "These numbers are not reliable: the log is not sorted by time. 9.1 % of requests are older than";
    assert!(report.conclusion[0].starts_with(sentence), "{:?}", report.conclusion);
    let page = report.to_html();
    let (headline, warning) =
        (page.find("</h1>").unwrap(), page.find("These numbers are not reliable").unwrap());
    assert!(warning > headline && warning < page.find("What to change").unwrap(), "{page}");
}

#[test]
fn regular_customers_are_listed_by_how_often_they_are_blocked() {
    let mut lines: Vec<(f64, &str)> = (0..200).map(|place| (f64::from(place) * 31.0, "regular")).collect();
    // Three requests at once every minute, one burst of another customer, and a scraper that sends
    // requests all the time.
    lines.extend((0..60).map(|place| (f64::from(place / 3) * 120.0 + f64::from(place % 3), "hasty")));
    lines.extend((0..3).map(|place| (3_600.0 + f64::from(place), "regular")));
    lines.extend((0..2_000).map(|place| (f64::from(place) * 3.0 + 0.5, "scraper")));
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let log: String = lines.into_iter().map(|(at, user)| json(at, user, "/")).collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options::default()).unwrap();
    let set = &report.rule_sets[0];
    let names = |list: &[pacegate_simulate::report::CustomerReport]| -> Vec<String> {
        list.iter().map(|each| each.identifier.clone()).collect()
    };
    assert_eq!(names(&set.most_blocked), ["scraper", "hasty", "regular"]);
    assert_eq!(names(&set.regular_hurt), ["hasty", "regular"]);
    assert_eq!(set.regular_hurt.iter().map(|each| each.often).collect::<Vec<_>>(), [true, false]);
    let blocked = &set.blocked_customers[0];
    assert_eq!((blocked.regular_hurt, blocked.regular_often, blocked.outliers), (2, 1, 1));
    assert_eq!(set.regular_hurt[1].key.as_deref(), Some("user regular"));
    assert_eq!((set.regular_hurt[1].needed, set.regular_hurt[1].available), (Some(5), 2));
    let sentence = &report.conclusion[0];
    assert!(
        sentence.contains("regular customers among them: 1 user often, 1 user occasionally; outliers that want far more than the limit: 1 user."),
        "{sentence}"
    );
    for text in [report.to_text(), report.to_html()] {
        let often = text.find("Regular customers blocked often (5 % of their requests or more)");
        let seldom = text.find("Regular customers blocked occasionally (less than 5 %)");
        let outliers = text.find("Outliers, far above the limit");
        assert!(often.is_some() && often < seldom && seldom < outliers, "{text}");
        assert_eq!(text.matches("user scraper").count(), 1, "a customer is in one list: {text}");
    }
    let page = report.to_html();
    assert!(page.contains("<b>1</b><span class=\"soft\">regular customers blocked often</span>"), "{page}");
    let suggestion = &set.suggestions[0];
    assert_eq!((suggestion.suggested, suggestion.customers, suggestion.outliers_blocked), (5, 2, 1));
    let change = "raise limit from 2 to 5. That allows all requests of all 2 regular customers that this rule blocks. 1 outlier stays blocked.";
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(report.to_text()).contains(change) && words(page).contains(change), "{}", report.to_text());
    // The suggested limit blocks the outlier alone.
    let report = run(&log, &[&TWO_A_MINUTE.replace("limit: 2", "limit: 5")], &Options::default()).unwrap();
    assert_eq!(names(&report.rule_sets[0].most_blocked), ["scraper"]);
    assert!(report.rule_sets[0].suggestions.is_empty());
    assert!(report.to_html().contains("no limit of these rules is too low for a regular customer"));
}

#[test]
fn only_client_of_a_rule_can_be_an_outlier() {
    let log: String = (0..2_000).map(|place| json(f64::from(place) * 3.0, "attacker", "/")).collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options::default()).unwrap();
    let set = &report.rule_sets[0];
    assert!(set.regular_hurt.is_empty() && set.suggestions.is_empty(), "{set:?}");
    assert_eq!(set.outliers[0].identifier, "attacker");
    // A limit that is too low for all clients makes none of them an outlier.
    let log: String =
        (0..2_000).flat_map(|place| ["a", "b"].map(|user| json(f64::from(place) * 3.0, user, "/"))).collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options::default()).unwrap();
    let set = &report.rule_sets[0];
    assert!(set.outliers.is_empty() && set.regular_hurt.len() == 2, "{set:?}");
}

#[test]
fn rules_that_cannot_apply_are_warned_about() {
    let yaml = r#"
rules:
  - {name: tenants, dimension: tenant, algorithm: gcra, limit: 1, window: 1s}
  - {name: golden, dimension: user, tier: gold, algorithm: gcra, limit: 1, window: 1s}
  - {name: posts, dimension: user, method: POST, algorithm: gcra, limit: 1, window: 1s}
  - {name: unused, dimension: user, endpoint: /nowhere, algorithm: gcra, limit: 1, window: 1s}
"#;
    let report = run(&json(0.0, "a", "/"), &[yaml], &Options::default()).unwrap();
    let warnings = report.rule_sets[0].warnings.join("\n");
    for expected in [
        "rule `tenants` never applied: it counts by `tenant`, which is not in the log's first line; set the field with --map tenant=FIELD",
        "rule `golden` never applied: it applies to the tier `gold`",
        "1 rule with a method applied to every request, because no field in its first line is known to be the method; set it with --map method=FIELD",
        "no request of the log matches `unused`",
    ] {
        assert!(warnings.contains(expected), "{warnings}");
    }
    let options = mapped("tenant=path,method=user");
    let report = run(&json(0.0, "POST", "/"), &[yaml], &options).unwrap();
    let warnings = report.rule_sets[0].warnings.join("\n");
    assert!(!warnings.contains("tenants") && !warnings.contains("method"), "{warnings}");
}

#[test]
fn tiers_come_from_the_log_or_from_a_list() {
    let yaml = "default_limit: none
rules:
  - {name: r, dimension: user, algorithm: fixed_window, limit: 1, window: 1m}
  - {name: r, dimension: user, tier: gold, algorithm: fixed_window, limit: 3, window: 1m}";
    let log: String = (0..4).map(|at| json(f64::from(at), "a", "/")).collect();
    let blocked = |options: &Options| run(&log, &[yaml], options).unwrap().rule_sets[0].blocked;
    assert_eq!(blocked(&Options::default()), 3);
    assert_eq!(blocked(&Options { tiers: "a,gold".parse().unwrap(), ..Options::default() }), 1);
    let log = log.replace("\"user\"", "\"plan\":{\"name\":\"gold\"},\"user\"");
    assert_eq!(run(&log, &[yaml], &mapped("tier=plan.name")).unwrap().rule_sets[0].blocked, 1);
}

#[test]
fn keys_beyond_the_bound_share_a_counter_and_are_reported() {
    let log: String =
        (0..50).map(|number| json(f64::from(number) / 100.0, &format!("u{number}"), "/")).collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options { max_keys: 10, ..Options::default() }).unwrap();
    assert_eq!(report.log.requests, 50);
    assert!(report.log.warnings[0].starts_with("40 requests are of customers beyond the first 10"));
    let warnings = report.rule_sets[0].warnings.join("\n");
    assert!(
        warnings.contains("the limiter had 10 keys") && warnings.contains("40 checks were of keys"),
        "{warnings}"
    );
}

/// Keys without usage are evicted by the time of the log, so a long log needs no more memory than a
/// short one.
#[test]
fn keys_without_usage_are_evicted() {
    let log: String =
        (0..20_000).map(|number| json(f64::from(number) * 10.0, &format!("u{number}"), "/")).collect();
    let report = run(&log, &[TWO_A_MINUTE], &Options { max_keys: 1_000, ..Options::default() }).unwrap();
    assert!(!report.rule_sets[0].warnings.iter().any(|warning| warning.contains("further keys shared")));
}

#[test]
fn column_of_the_log_can_be_a_cost_in_a_unit() {
    let log = "time,user,used\n1700000000,a,600\n1700000001,a,600\n1700000002,a,-\n1700000003,a,0\n1700000004,b,600\n";
    let yaml = "default_limit: none
rules: [{name: tokens, dimension: user, algorithm: fixed_window, limit: 1000, window: 1d, unit: tokens}]";
    let report = run(log, &[yaml], &mapped("cost.tokens=used")).unwrap();
    let set = &report.rule_sets[0];
    assert_eq!((set.allowed, set.blocked), (4, 1), "requests without tokens are not counted");
    let fields: Vec<_> = report.log.fields.iter().map(|field| (&*field.part, &*field.field)).collect();
    assert!(fields.contains(&("cost.tokens", "used")), "{fields:?}");
    let unmapped = run(log, &[yaml], &Options::default()).unwrap();
    assert_eq!((unmapped.rule_sets[0].allowed, unmapped.rule_sets[0].blocked), (5, 0));
    let wrong = run(log, &[yaml], &mapped("cost.9=used")).unwrap_err().to_string();
    assert!(wrong.contains("--map cost.9: unit: must be"), "{wrong}");
}
