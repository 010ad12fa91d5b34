//! Limits on descriptors, with the behaviour of Envoy's rate limit service and of Limitador, on a
//! clock that moves only when it is set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Cost, FailureMode, Limit, Limiter, MemoryOptions, MemoryStore, Mode, Profile, StoreError,
    Stores, Timestamp,
    descriptor::{
        Allowance, Descriptor, DescriptorDecision, DescriptorOutcome, DescriptorRule, Hits, PathEntry,
    },
    store::{ApplyFuture, Command, Store},
};
use pacegate_config::Config;
use pacegate_testkit::SimulatedClock;

/// A whole number of days, so that no test reaches the end of a minute.
const START: Timestamp = Timestamp::from_micros(2_900 * 7 * 86_400 * 1_000_000);

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
    Algorithm::Gcra,
];

fn limiter(yaml: &str) -> (Arc<SimulatedClock>, Limiter) {
    let clock = Arc::new(SimulatedClock::at(START));
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    let config = Config::parse(yaml).unwrap_or_else(|errors| panic!("{yaml}\n{errors}"));
    (clock, config.limiter_with(Stores::memory(Arc::new(store))).unwrap())
}

/// Parses `edge: a=1, b=2 @3; c=3`: the domain, then descriptors, each with its hits (`@0` peeks,
/// `@-1` refunds).
async fn check(limiter: &Limiter, request: &str) -> DescriptorDecision {
    let (domain, descriptors) = request.split_once(": ").unwrap();
    let descriptors: Vec<Descriptor<'_>> = descriptors
        .split("; ")
        .map(|text| {
            let (text, hits) = text.rsplit_once(" @").unwrap_or((text, "1"));
            let number: i64 = hits.parse().unwrap();
            let cost = || Cost::try_new(number.unsigned_abs()).unwrap();
            let hits = match number {
                0 => Hits::Peek,
                1.. => Hits::Take(cost()),
                _ => Hits::Refund(cost()),
            };
            Descriptor::new(text.split(", ").map(|entry| entry.split_once('=').unwrap())).hits(hits)
        })
        .collect();
    let decision = limiter.check_descriptors(domain, &descriptors).await.unwrap();
    assert_eq!(decision.outcomes.len(), descriptors.len());
    assert_eq!(
        decision.allowed,
        decision.outcomes.iter().all(|outcome| outcome.decision.allowed()),
        "{request}"
    );
    decision
}

/// `name 4`: allowed with 4 remaining; `!name 0`: denied; `~name 0`: a shadow limit; `-`: no rule
/// matches; `passes`: a rule matches but limits nothing.
fn describe(outcome: &DescriptorOutcome) -> String {
    if let Some(name) = &outcome.banned_by {
        assert!(!outcome.decision.allowed() && outcome.matched);
        return format!("banned by {name}");
    }
    if outcome.unlimited {
        assert!(outcome.decision.allowed() && outcome.matched);
        return "unlimited".into();
    }
    let limits = outcome.decision.limits().iter().zip(outcome.decision.answers());
    let limits: Vec<String> = limits
        .map(|(limit, answer)| {
            assert_eq!(answer.shadow, limit.mode == Mode::Shadow);
            let sign = if answer.shadow {
                "~"
            } else if answer.allowed {
                ""
            } else {
                "!"
            };
            format!("{sign}{} {}", limit.name, answer.remaining.unwrap())
        })
        .collect();
    match (limits.is_empty(), outcome.matched) {
        (false, matched) => {
            assert!(matched);
            limits.join(" & ")
        }
        (true, true) => "passes".into(),
        (true, false) => "-".into(),
    }
}

async fn run(name: &str, rules: &str, steps: &[(&str, &str)]) {
    let rules: String = rules.lines().map(|line| format!("  - {{{}}}\n", line.trim())).collect();
    let (_, limiter) = limiter(&format!("default_limit: none\ndescriptors:\n{rules}"));
    for (index, (request, expected)) in steps.iter().enumerate() {
        let decision = check(&limiter, request).await;
        let outcomes: Vec<String> = decision.outcomes.iter().map(describe).collect();
        assert_eq!(outcomes.join("; "), *expected, "{name}, step {index}: {request}");
    }
}

/// The limit of a rule: fixed windows of a minute.
macro_rules! per_minute {
    ($quota:literal, $($rule:tt)*) => {
        concat!($($rule)*, ", algorithm: fixed_window, limit: ", $quota, ", window: 1m")
    };
}

macro_rules! rules {
    ($first:expr $(, $rest:expr)* $(,)?) => { concat!($first $(, "\n", $rest)*) };
}

/// A name, the rules, and requests with the expected outcome of each descriptor.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
const PATHS: &[Case] = &[
    ("a key alone limits each value by itself",
        per_minute!(2, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1", "a 1"), ("edge: ip=1", "a 0"), ("edge: ip=1", "!a 0"), ("edge: ip=2", "a 1")]),
    ("an exact value limits only itself",
        per_minute!(2, "name: a, entries: [{key: ip, value: 1}]"),
        &[("edge: ip=1", "a 1"), ("edge: ip=2", "-"), ("edge: ip=11", "-")]),
    ("another key is not limited",
        per_minute!(2, "name: a, entries: [{key: ip}]"),
        &[("edge: user=1", "-"), ("edge: ipv=1", "-")]),
    ("exact precedes the key alone",
        rules!(per_minute!(2, "name: all, entries: [{key: ip}]"), per_minute!(9, "name: one, entries: [{key: ip, value: x}]")),
        &[("edge: ip=x", "one 8"), ("edge: ip=y", "all 1")]),
    ("exact precedes a wildcard that comes first",
        rules!(per_minute!(2, "name: wild, entries: [{key: ip, value: 'x*'}]"), per_minute!(9, "name: one, entries: [{key: ip, value: xy}]")),
        &[("edge: ip=xy", "one 8"), ("edge: ip=xz", "wild 1")]),
    ("a wildcard precedes the key alone that comes first",
        rules!(per_minute!(2, "name: all, entries: [{key: ip}]"), per_minute!(9, "name: wild, entries: [{key: ip, value: 'x*'}]")),
        &[("edge: ip=xy", "wild 8"), ("edge: ip=yx", "all 1")]),
    ("the first of two wildcards wins",
        rules!(per_minute!(2, "name: wide, entries: [{key: p, value: '/*'}]"), per_minute!(9, "name: narrow, entries: [{key: p, value: '/api/*'}]")),
        &[("edge: p=/api/x", "wide 1")]),
    ("the first of two wildcards wins, in reverse order",
        rules!(per_minute!(9, "name: narrow, entries: [{key: p, value: '/api/*'}]"), per_minute!(2, "name: wide, entries: [{key: p, value: '/*'}]")),
        &[("edge: p=/api/x", "narrow 8"), ("edge: p=/x", "wide 1")]),
    ("each value of a wildcard has a counter",
        per_minute!(1, "name: wild, entries: [{key: p, value: 'f*'}]"),
        &[("edge: p=f1", "wild 0"), ("edge: p=f2", "wild 0"), ("edge: p=f1", "!wild 0")]),
    ("a star matches nothing as well",
        per_minute!(1, "name: wild, entries: [{key: p, value: 'f*'}]"),
        &[("edge: p=f", "wild 0"), ("edge: p=g", "-")]),
    ("a star alone matches everything",
        per_minute!(1, "name: wild, entries: [{key: p, value: '*'}]"),
        &[("edge: p=anything", "wild 0"), ("edge: p=", "wild 0")]),
    ("a star in the middle",
        per_minute!(1, "name: wild, entries: [{key: p, value: 'a*c'}]"),
        &[("edge: p=abc", "wild 0"), ("edge: p=ac", "wild 0"), ("edge: p=ab", "-")]),
    ("several stars",
        per_minute!(1, "name: wild, entries: [{key: p, value: '*/v*/x'}]"),
        &[("edge: p=a/v1/x", "wild 0"), ("edge: p=a/w1/x", "-")]),
    ("a value that is spelled like a wildcard",
        rules!(per_minute!(1, "name: first, entries: [{key: p, value: 'a*'}]"), per_minute!(5, "name: second, entries: [{key: p, value: 'ab*'}]")),
        &[("edge: p=ab*", "second 4"), ("edge: p=abc", "first 0")]),
    ("wildcards of one key do not concern another",
        rules!(per_minute!(1, "name: p, entries: [{key: p, value: 'a*'}]"), per_minute!(5, "name: q, entries: [{key: q}]")),
        &[("edge: q=abc", "q 4")]),
    ("an empty value is a value",
        per_minute!(2, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=", "a 1"), ("edge: ip=", "a 0"), ("edge: ip=", "!a 0")]),
    ("two entries, in order",
        per_minute!(2, "name: a, entries: [{key: db, value: users}, {key: ip}]"),
        &[("edge: db=users, ip=1", "a 1"), ("edge: ip=1, db=users", "-"), ("edge: db=posts, ip=1", "-")]),
    ("too few entries",
        per_minute!(2, "name: a, entries: [{key: db, value: users}, {key: ip}]"),
        &[("edge: db=users", "-")]),
    ("too many entries",
        per_minute!(2, "name: a, entries: [{key: db, value: users}]"),
        &[("edge: db=users, ip=1", "-"), ("edge: db=users", "a 1")]),
    ("a limit at each depth, counted separately",
        rules!(per_minute!(3, "name: outer, entries: [{key: db}]"), per_minute!(2, "name: inner, entries: [{key: db}, {key: ip}]")),
        &[("edge: db=x", "outer 2"), ("edge: db=x, ip=1", "inner 1"), ("edge: db=x", "outer 1"), ("edge: db=x; db=x, ip=1", "outer 0; inner 0")]),
    ("three levels without limits on the way",
        per_minute!(2, "name: deep, entries: [{key: a, value: 1}, {key: b}, {key: c, value: 3}]"),
        &[("edge: a=1, b=2, c=3", "deep 1"), ("edge: a=1, b=9, c=3", "deep 1"), ("edge: a=1, b=2, c=4", "-"), ("edge: a=1", "-"), ("edge: a=1, b=2", "-")]),
    ("values of inner levels count",
        per_minute!(1, "name: a, entries: [{key: user}, {key: path}]"),
        &[("edge: user=1, path=x", "a 0"), ("edge: user=2, path=x", "a 0"), ("edge: user=1, path=y", "a 0"), ("edge: user=1, path=x", "!a 0")]),
    ("no backtracking: exact",
        rules!(per_minute!(2, "name: any, entries: [{key: a}, {key: b}]"), per_minute!(9, "name: one, entries: [{key: a, value: x}, {key: c}]")),
        &[("edge: a=x, b=1", "-"), ("edge: a=x, c=1", "one 8"), ("edge: a=y, b=1", "any 1")]),
    ("no backtracking: wildcard",
        rules!(per_minute!(2, "name: any, entries: [{key: a}, {key: b}]"), per_minute!(9, "name: wild, entries: [{key: a, value: 'x*'}, {key: c}]")),
        &[("edge: a=xx, b=1", "-"), ("edge: a=xx, c=1", "wild 8"), ("edge: a=y, b=1", "any 1")]),
    ("an exact value without a limit hides the limit of the key",
        rules!(per_minute!(1, "name: all, entries: [{key: ip}]"), "entries: [{key: ip, value: friend}], unlimited: true"),
        &[("edge: ip=friend", "unlimited"), ("edge: ip=friend", "unlimited"), ("edge: ip=x", "all 0")]),
    ("the same key at two levels",
        per_minute!(2, "name: a, entries: [{key: generic_key, value: x}, {key: generic_key, value: y}]"),
        &[("edge: generic_key=x, generic_key=y", "a 1"), ("edge: generic_key=y, generic_key=x", "-")]),
    ("wildcards at the second level, in order",
        rules!(per_minute!(2, "name: first, entries: [{key: a}, {key: p, value: 'x*'}]"), per_minute!(9, "name: second, entries: [{key: a}, {key: p, value: '*'}]")),
        &[("edge: a=1, p=xy", "first 1"), ("edge: a=1, p=yx", "second 8")]),
    ("unlimited counts nothing",
        "entries: [{key: internal}], unlimited: true",
        &[("edge: internal=1 @1000000", "unlimited"), ("edge: internal=1", "unlimited")]),
    ("deny denies every request",
        "name: ban, entries: [{key: ip, value: evil}], deny: true",
        &[("edge: ip=evil", "banned by ban"), ("edge: ip=evil @0", "banned by ban"), ("edge: ip=good", "-")]),
    ("a refund is not denied",
        "name: ban, entries: [{key: ip, value: evil}], deny: true",
        &[("edge: ip=evil @-1", "passes")]),
    ("a ban charges no other descriptor",
        rules!("name: ban, entries: [{key: ip, value: evil}], deny: true", per_minute!(5, "name: user, entries: [{key: user}]")),
        &[("edge: user=1; ip=evil", "user 5; banned by ban"), ("edge: user=1", "user 4")]),
    ("a shadow ban denies nothing",
        "name: ban, entries: [{key: ip}], deny: true, mode: shadow",
        &[("edge: ip=1", "passes")]),
    ("a shadow limit counts and never denies",
        per_minute!(2, "name: watch, mode: shadow, entries: [{key: ip}]"),
        &[("edge: ip=1", "~watch 1"), ("edge: ip=1", "~watch 0"), ("edge: ip=1", "~watch 0")]),
    ("a shadow limit beside one that denies",
        rules!(per_minute!(1, "name: watch, mode: shadow, entries: [{key: ip}]"), per_minute!(2, "name: user, entries: [{key: user}]")),
        &[("edge: ip=1; user=1", "~watch 0; user 1"), ("edge: ip=1; user=1", "~watch 0; user 0"), ("edge: ip=1; user=1", "~watch 0; !user 0")]),
    ("all or nothing over descriptors",
        rules!(per_minute!(1, "name: ip, entries: [{key: ip}]"), per_minute!(5, "name: user, entries: [{key: user}]")),
        &[("edge: user=1; ip=1", "user 4; ip 0"), ("edge: user=1; ip=1", "user 4; !ip 0"), ("edge: user=1", "user 3")]),
    ("rules of another domain do not apply",
        per_minute!(2, "domain: edge, name: a, entries: [{key: ip}]"),
        &[("edge: ip=1", "a 1"), ("mesh: ip=1", "-")]),
    ("the same path in two domains",
        rules!(per_minute!(2, "domain: edge, name: a, entries: [{key: ip}]"), per_minute!(9, "domain: mesh, name: b, entries: [{key: ip}]")),
        &[("edge: ip=1", "a 1"), ("mesh: ip=1", "b 8"), ("edge: ip=1", "a 0")]),
    ("a rule without a domain applies to all, counted separately",
        per_minute!(1, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1", "a 0"), ("mesh: ip=1", "a 0"), ("edge: ip=1", "!a 0")]),
    ("rules of a domain precede those for any domain",
        rules!(per_minute!(1, "name: any, entries: [{key: ip, value: x}]"), per_minute!(9, "domain: edge, name: own, entries: [{key: ip}]")),
        &[("edge: ip=x", "own 8"), ("mesh: ip=x", "any 0")]),
    ("rules for any domain apply where those of the domain do not match",
        rules!(per_minute!(3, "name: any, entries: [{key: user}]"), per_minute!(9, "domain: edge, name: own, entries: [{key: ip}]")),
        &[("edge: user=1", "any 2")]),
    ("replaces removes the other rule from the request",
        rules!(per_minute!(1, "name: small, entries: [{key: ip}]"), per_minute!(9, "name: large, entries: [{key: vip}], replaces: [small]")),
        &[("edge: ip=1; vip=1", "passes; large 8"), ("edge: ip=1", "small 0"), ("edge: ip=1; vip=1", "passes; large 7"), ("edge: ip=1", "!small 0")]),
    ("the order of the descriptors does not matter to replaces",
        rules!(per_minute!(1, "name: small, entries: [{key: ip}]"), per_minute!(9, "name: large, entries: [{key: vip}], replaces: [small]")),
        &[("edge: vip=1; ip=1", "large 8; passes")]),
    ("a replaced rule still replaces others",
        rules!(per_minute!(1, "name: c, entries: [{key: c}]"), per_minute!(1, "name: b, entries: [{key: b}], replaces: [c]"), per_minute!(9, "name: a, entries: [{key: a}], replaces: [b]")),
        &[("edge: a=1; b=1; c=1", "a 8; passes; passes"), ("edge: b=1; c=1", "b 0; passes")]),
    ("unlimited can replace",
        rules!(per_minute!(1, "name: small, entries: [{key: ip}]"), "entries: [{key: internal}], unlimited: true, replaces: [small]"),
        &[("edge: ip=1; internal=1", "passes; unlimited")]),
    ("a ban can be replaced",
        rules!("name: ban, entries: [{key: ip}], deny: true", "entries: [{key: internal}], unlimited: true, replaces: [ban]"),
        &[("edge: ip=1; internal=1", "passes; unlimited"), ("edge: ip=1", "banned by ban")]),
    ("replaces reaches every limit of that name",
        rules!(per_minute!(1, "name: small, entries: [{key: a}]"), per_minute!(1, "name: small, entries: [{key: b}]"), per_minute!(9, "name: large, entries: [{key: c}], replaces: [small]")),
        &[("edge: a=1; b=1; c=1", "passes; passes; large 8")]),
    ("the same descriptor twice counts twice",
        per_minute!(3, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1; ip=1", "a 1; a 1"), ("edge: ip=1; ip=1", "!a 1; !a 1"), ("edge: ip=1", "a 0")]),
    ("hits of more than one",
        per_minute!(10, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1 @7", "a 3"), ("edge: ip=1 @4", "!a 3"), ("edge: ip=1 @3", "a 0")]),
    ("zero hits only peek, and see when nothing remains",
        per_minute!(1, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1 @0", "a 1"), ("edge: ip=1 @0", "a 1"), ("edge: ip=1", "a 0"), ("edge: ip=1 @0", "!a 0")]),
    ("negative hits refund, never beyond a fresh counter",
        per_minute!(5, "name: a, entries: [{key: ip}]"),
        &[("edge: ip=1 @4", "a 1"), ("edge: ip=1 @-3", "a 4"), ("edge: ip=1 @-9", "a 5"), ("edge: ip=1 @5", "a 0"), ("edge: ip=1 @-1", "a 1")]),
    ("different hits, admitted",
        rules!(per_minute!(10, "name: a, entries: [{key: a}]"), per_minute!(10, "name: b, entries: [{key: b}]")),
        &[("edge: a=1 @3; b=1 @5", "a 7; b 5"), ("edge: a=1; b=1 @5", "a 6; b 0")]),
    ("different hits, denied by the smaller: the larger is refunded",
        rules!(per_minute!(1, "name: a, entries: [{key: a}]"), per_minute!(10, "name: b, entries: [{key: b}]")),
        &[("edge: a=1", "a 0"), ("edge: a=1; b=1 @5", "!a 0; b 10"), ("edge: b=1 @10", "b 0")]),
    ("different hits, denied by the larger: nothing is charged",
        rules!(per_minute!(9, "name: a, entries: [{key: a}]"), per_minute!(10, "name: b, entries: [{key: b}]")),
        &[("edge: b=1", "b 9"), ("edge: a=1; b=1 @10", "a 9; !b 9"), ("edge: a=1", "a 8")]),
    ("a denied peek prevents other charges",
        rules!(per_minute!(1, "name: a, entries: [{key: a}]"), per_minute!(10, "name: b, entries: [{key: b}]")),
        &[("edge: a=1", "a 0"), ("edge: a=1 @0; b=1", "!a 0; b 10"), ("edge: b=1", "b 9")]),
    ("a denied request refunds nothing",
        rules!(per_minute!(1, "name: a, entries: [{key: a}]"), per_minute!(10, "name: b, entries: [{key: b}]")),
        &[("edge: a=1; b=1", "a 0; b 9"), ("edge: a=1; b=1 @-1", "!a 0; b 9"), ("edge: b=1 @-1", "b 10")]),
    ("the default name is the path",
        per_minute!(5, "entries: [{key: db, value: users}, {key: ip}]"),
        &[("edge: db=users, ip=1", "db=users.ip 4")]),
];

#[rustfmt::skip]
const CONDITIONS: &[Case] = &[
    ("conditions match in any order, with other entries present",
        per_minute!(5, "name: posts, when: [{key: method, is: POST}, {key: path, starts_with: /v1/}]"),
        &[("api: method=POST, path=/v1/x", "posts 4"), ("api: path=/v1/y, user=1, method=POST", "posts 3"), ("api: method=GET, path=/v1/x", "-"), ("api: method=POST, path=/v2/x", "-")]),
    ("each counted value has a counter",
        per_minute!(1, "name: a, when: [{key: method, is: POST}], by: [user]"),
        &[("api: method=POST, user=1", "a 0"), ("api: method=POST, user=2", "a 0"), ("api: user=1, method=POST", "!a 0")]),
    ("counted by two values",
        per_minute!(1, "name: a, by: [user, app]"),
        &[("api: user=1, app=2", "a 0"), ("api: app=2, user=1", "!a 0"), ("api: user=2, app=1", "a 0")]),
    ("a rule does not apply if a counted key is missing",
        per_minute!(1, "name: a, by: [user]"),
        &[("api: method=POST", "-")]),
    ("is_not requires the key, like CEL",
        per_minute!(5, "name: a, when: [{key: tier, is_not: gold}]"),
        &[("api: tier=free", "a 4"), ("api: tier=gold", "-"), ("api: user=1", "-")]),
    ("no conditions at all",
        per_minute!(2, "name: a, when: []"),
        &[("api: x=1", "a 1"), ("api: y=1", "a 0"), ("mesh: y=1", "a 1")]),
    ("all matching rules apply, and all or none are charged",
        rules!(per_minute!(5, "name: each, by: [user]"), per_minute!(2, "name: all, when: [{key: method, is: GET}]")),
        &[("api: method=GET, user=1", "each 4 & all 1"), ("api: method=GET, user=2", "each 4 & all 0"), ("api: method=GET, user=1", "each 4 & !all 0"), ("api: user=1", "each 3")]),
    ("a path and conditions apply together",
        rules!(per_minute!(5, "name: path, entries: [{key: user}]"), per_minute!(3, "name: cond, when: [{key: user, is: 1}]")),
        &[("api: user=1", "path 4 & cond 2"), ("api: user=2", "path 4")]),
    ("conditions of another domain",
        rules!(per_minute!(5, "domain: api, name: a, when: []"), per_minute!(7, "domain: mesh, name: b, when: []")),
        &[("api: x=1", "a 4"), ("mesh: x=1", "b 6"), ("edge: x=1", "-")]),
    ("rules of a domain and of any domain apply together, counted separately",
        rules!(per_minute!(5, "domain: api, name: a, when: []"), per_minute!(5, "name: a, when: []")),
        &[("api: x=1", "a 4 & a 4"), ("mesh: x=1", "a 4")]),
    ("only the descriptor at an index",
        per_minute!(5, "name: first, descriptor: 0, when: [{key: x, is: 1}]"),
        &[("api: x=1; x=1", "first 4; -"), ("api: y=1; x=1", "-; -")]),
    ("without an index, every matching descriptor counts",
        per_minute!(5, "name: a, when: [{key: x, is: 1}]"),
        &[("api: x=1; x=1", "a 3; a 3"), ("api: y=1; x=1", "-; a 2")]),
    ("several windows over the same conditions",
        rules!(per_minute!(5, "name: a, when: []"), "name: a, when: [], algorithm: fixed_window, limit: 6, window: 1h"),
        &[("api: x=1", "a 4 & a 5")]),
    ("deny with conditions",
        "name: ban, when: [{key: ip, starts_with: '10.'}], deny: true",
        &[("api: ip=10.1", "banned by ban"), ("api: ip=11.1", "-")]),
    ("the last value of a duplicate key counts",
        per_minute!(5, "name: a, when: [{key: x, is: 2}]"),
        &[("api: x=1, x=2", "a 4"), ("api: x=2, x=1", "-")]),
    ("conditions can be replaced, and replace",
        rules!(per_minute!(1, "name: small, by: [ip]"), per_minute!(9, "name: large, when: [{key: vip, is: 1}], replaces: [small]")),
        &[("api: ip=1, vip=1", "large 8"), ("api: ip=1", "small 0")]),
    ("an empty value can be required",
        per_minute!(5, "name: a, when: [{key: x, is_not: ''}]"),
        &[("api: x=", "-"), ("api: x=1", "a 4")]),
    ("the default name is the conditions",
        per_minute!(5, "when: [{key: m, is: POST}, {key: tier, is_not: gold}], by: [user, app]"),
        &[("api: m=POST, tier=x, user=1, app=2", "m=POST and tier!=gold by user, app 4")]),
];

#[tokio::test]
async fn paths() {
    assert!(PATHS.len() >= 40);
    for (name, rules, steps) in PATHS {
        run(name, rules, steps).await;
    }
}

#[tokio::test]
async fn conditions() {
    for (name, rules, steps) in CONDITIONS {
        run(name, rules, steps).await;
    }
}

#[tokio::test]
async fn windows_are_aligned_to_the_epoch() {
    const DAY: u64 = 86_400;
    for (window, seconds) in [
        ("1s", 1),
        ("1m", 60),
        ("1h", 3_600),
        ("1d", DAY),
        ("7d", 7 * DAY),
        ("30d", 30 * DAY),
        ("365d", 365 * DAY),
    ] {
        let rule = format!("{{entries: [{{key: k}}], algorithm: fixed_window, limit: 2, window: {window}}}");
        let (clock, limiter) = limiter(&format!("descriptors: [{rule}]"));
        // Three quarters into a window that begins at a multiple of its length.
        let begin = START.as_micros() / 1_000_000 / seconds * seconds * 1_000_000 + seconds * 1_000_000;
        let at = |micros: u64| clock.set(Timestamp::from_micros(micros));
        at(begin + seconds * 750_000);
        assert!(check(&limiter, "edge: k=1 @2").await.allowed, "{window}");
        let denied = check(&limiter, "edge: k=1").await;
        assert!(!denied.allowed, "{window}");
        let decision = &denied.outcomes[0].decision;
        assert_eq!(decision.retry_after(), Some(Duration::from_millis(seconds * 250)), "{window}");
        assert_eq!(decision.binding().unwrap().reset_at.unwrap().as_micros(), begin + seconds * 1_000_000);
        assert_eq!(denied.at.as_micros(), begin + seconds * 750_000);
        at(begin + seconds * 1_000_000 - 1);
        assert!(!check(&limiter, "edge: k=1").await.allowed, "{window}");
        at(begin + seconds * 1_000_000);
        assert!(check(&limiter, "edge: k=1 @2").await.allowed, "{window}");
    }
}

#[tokio::test]
async fn descriptor_without_matching_rule_uses_the_ordinary_rules() {
    let (_, limiter) = limiter(
        r#"
rules:
  - {name: everywhere, dimension: user, algorithm: fixed_window, limit: 9, window: 1m}
  - {name: orders, dimension: user, endpoint: "/orders/{*rest}", method: POST, algorithm: fixed_window, limit: 2, window: 1m}
  - {name: ips, dimension: ip, algorithm: fixed_window, limit: 5, window: 1m}
  - {name: premium, dimension: user, tier: premium, algorithm: fixed_window, limit: 3, window: 1m}
  - {name: root, dimension: user, endpoint: "/", algorithm: fixed_window, limit: 1, window: 1m}
descriptors:
  - {name: own, entries: [{key: user}, {key: special}], algorithm: fixed_window, limit: 1, window: 1m}
"#,
    );
    for (request, expected) in [
        ("edge: user=1", "everywhere 8"),
        ("any: user=1, path=/orders/7, method=POST", "everywhere 7 & orders 1"),
        ("edge: method=post, endpoint=//orders/./8?x=y, user=1", "everywhere 6 & orders 0"),
        ("edge: user=1, path=/orders/9, method=GET", "everywhere 5"),
        ("edge: user=1, path=/orders/9, method=POST", "everywhere 5 & !orders 0"),
        ("edge: user=2, ip=1", "everywhere 8 & ips 4"),
        ("edge: user=2; ip=1", "everywhere 7; ips 3"),
        ("edge: user=2, special=1", "own 0"),
        ("edge: user=2", "everywhere 6"),
        ("edge: user=2, path=not a path", "everywhere 5"),
        // The default limit does not apply to descriptors.
        ("edge: generic_key=x", "-"),
        ("edge: path=/orders/1", "-"),
        ("edge: :bad key=1", "-"),
        ("edge: user=", "-"),
    ] {
        let decision = check(&limiter, request).await;
        let outcomes: Vec<String> = decision.outcomes.iter().map(describe).collect();
        assert_eq!(outcomes.join("; "), expected, "{request}");
    }
    let profile = Profile { tier: Some("premium".into()), ..Profile::default() };
    let descriptor = Descriptor::new([("user", "9")]).profile(&profile);
    let decision = limiter.check_descriptors("edge", &[descriptor]).await.unwrap();
    assert_eq!(describe(&decision.outcomes[0]), "everywhere 8 & premium 2");
}

#[tokio::test]
async fn request_can_contain_an_ad_hoc_limit() {
    let (_, limiter) = limiter(
        r#"
descriptors:
  - {name: own, entries: [{key: ip}], algorithm: fixed_window, limit: 9, window: 1m}
  - {name: all, when: [{key: user, is: u}], algorithm: fixed_window, limit: 3, window: 1m}
"#,
    );
    let limit = Limit::try_new(Algorithm::FixedWindow, 10, Duration::from_secs(60)).unwrap();
    let given = |allowance| Descriptor::new([("ip", "1")]).allowance(allowance);
    let check = async |descriptors: &[Descriptor<'_>]| {
        let decision = limiter.check_descriptors("edge", descriptors).await.unwrap();
        decision.outcomes.iter().map(describe).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(check(&[given(Allowance::Limit(limit))]).await, "ad-hoc 9");
    // The counter belongs to the path, whichever limit applies.
    assert_eq!(check(&[Descriptor::new([("ip", "1")])]).await, "own 7");
    // In one request the two have different numbers, so they are two charges; both are counted.
    assert_eq!(
        check(&[given(Allowance::Limit(limit)), Descriptor::new([("ip", "1")])]).await,
        "ad-hoc 7; own 5"
    );
    assert_eq!(check(&[given(Allowance::Unlimited)]).await, "unlimited");
    assert_eq!(check(&[given(Allowance::Nothing)]).await, "banned by ad-hoc");
    let with_condition = Descriptor::new([("user", "u")]).allowance(Allowance::Limit(limit));
    assert_eq!(check(&[with_condition]).await, "ad-hoc 9 & all 2");
}

#[tokio::test]
async fn values_of_any_length_and_characters_are_counted() {
    let (_, limiter) = limiter(
        r#"
rules: [{name: user, dimension: user, algorithm: fixed_window, limit: 1, window: 1m}]
descriptors: [{name: ip, entries: [{key: ip}], algorithm: fixed_window, limit: 1, window: 1m}]
"#,
    );
    for key in ["ip", "user"] {
        for value in ["a\0b".to_owned(), "x".repeat(5_000), "x".repeat(5_001), "é\n".to_owned()] {
            let descriptor = [Descriptor::new([(key, value.as_str())])];
            let first = limiter.check_descriptors("edge", &descriptor).await.unwrap();
            assert!(first.allowed, "{key} {value:?}");
            let second = limiter.check_descriptors("edge", &descriptor).await.unwrap();
            assert!(!second.allowed, "{key} {value:?}");
        }
    }
}

#[tokio::test]
async fn parts_of_a_path_are_unambiguous() {
    let (_, limiter) = limiter(
        "descriptors: [{entries: [{key: a}, {key: b}], algorithm: fixed_window, limit: 1, window: 1m}]",
    );
    for (domain, first, second) in [
        ("d", "x", "y"),
        ("d", "x;1:y", ""),
        ("d", "x;b;y", ""),
        ("d", "x", "y;b;"),
        ("d", "", "x"),
        ("d", "x", ""),
        ("d1:", "x", "y"),
        ("d", "1:x;", "y"),
    ] {
        let descriptor = [Descriptor::new([("a", first), ("b", second)])];
        assert!(
            limiter.check_descriptors(domain, &descriptor).await.unwrap().allowed,
            "{domain} {first} {second}"
        );
        assert!(!limiter.check_descriptors(domain, &descriptor).await.unwrap().allowed);
    }
}

#[tokio::test]
async fn limits_in_several_stores_are_charged_all_or_nothing() {
    let stores = Stores::memory(Arc::new(MemoryStore::default())).and_memory("hot", Arc::default());
    let limit = |quota| Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(86_400)).unwrap();
    let mut hot = DescriptorRule::path([PathEntry::any("a")], limit(1));
    hot.store = Some("hot".into());
    let builder = Limiter::builder().stores(stores).descriptor(hot);
    let limiter = builder.descriptor(DescriptorRule::path([PathEntry::any("b")], limit(10))).build().unwrap();
    assert!(check(&limiter, "d: a=1; b=1 @3").await.allowed);
    for request in ["d: a=1; b=1 @3", "d: b=1; a=1", "d: a=1 @0; b=1"] {
        let denied = check(&limiter, request).await;
        assert!(!denied.allowed, "{request}");
    }
    assert_eq!(describe(&check(&limiter, "d: b=1 @0").await.outcomes[0]), "b 7");
}

/// Checks each request and its expected outcome, in turn.
async fn expect(limiter: &Limiter, steps: &[(&str, &str)]) {
    for (index, (request, expected)) in steps.iter().enumerate() {
        let decision = check(limiter, request).await;
        let outcomes: Vec<String> = decision.outcomes.iter().map(describe).collect();
        assert_eq!(outcomes.join("; "), *expected, "{index}: {request}");
    }
}

#[tokio::test]
async fn hits_above_the_capacity_are_denied_and_charged() {
    for algorithm in ALGORITHMS {
        let yaml = |mode| {
            format!(
                "descriptors:
  - {{entries: [{{key: a}}], algorithm: {algorithm}, limit: 100, window: 1h, mode: {mode}}}
  - {{entries: [{{key: b}}], algorithm: {algorithm}, limit: 200, window: 1h}}"
            )
        };
        let (clock, enforced) = limiter(&yaml("enforce"));
        // Hits that could fit at another time charge nothing, nor do other limits of the request.
        let before = [("d: a=1 @0", "a 100"), ("d: a=1 @30", "a 70"), ("d: a=1 @100", "!a 70")];
        expect(&enforced, &before).await;
        expect(&enforced, &[("d: a=1 @101; b=1 @101", "!a 0; b 200")]).await;
        expect(&enforced, &[("d: a=1 @0", "!a 0"), ("d: a=1", "!a 0"), ("d: a=2 @0", "a 100")]).await;
        // Two descriptors of one request that exceed the capacity only together charge nothing.
        expect(&enforced, &[("d: a=2 @60; a=2 @60", "!a 100; !a 100")]).await;
        clock.advance(Duration::from_secs(7_200));
        expect(&enforced, &[("d: a=1 @0", "a 100")]).await;
        let (_, watched) = limiter(&yaml("shadow"));
        expect(&watched, &[("d: a=1 @30", "~a 70"), ("d: a=1 @101; b=1", "~a 0; b 199")]).await;
    }
}

#[tokio::test]
async fn overdraw_allows_and_charges_into_debt() {
    for algorithm in ALGORITHMS {
        let rules = |mode| {
            format!(
                "descriptors:
  - {{entries: [{{key: a}}], algorithm: {algorithm}, limit: 100, window: 1h, overdraw: true, mode: {mode}}}
  - {{entries: [{{key: b}}], algorithm: {algorithm}, limit: 200, window: 1h}}"
            )
        };
        let (_, enforced) = limiter(&rules("enforce"));
        expect(&enforced, &[("d: a=1 @60", "a 40"), ("d: a=1 @60", "a 0"), ("d: a=1 @60", "!a 0")]).await;
        expect(&enforced, &[("d: a=2 @101", "a 0"), ("d: a=2 @0", "!a 0")]).await;
        // The other limits of the request are all-or-nothing; if they deny, this one is not
        // charged.
        expect(&enforced, &[("d: a=3 @60; b=1 @150", "a 40; b 50")]).await;
        expect(&enforced, &[("d: a=3 @60; b=1 @51", "a 40; !b 50"), ("d: a=3 @60; b=1 @50", "a 0; b 0")])
            .await;
        expect(&enforced, &[("d: a=3 @60; b=2 @50", "!a 0; b 200")]).await;
        let (_, watched) = limiter(&rules("shadow"));
        expect(&watched, &[("d: a=1 @60", "~a 40"), ("d: a=1 @60", "~a 0"), ("d: a=1 @60", "~a 0")]).await;
    }
}

#[tokio::test]
async fn overdrawn_and_late_charges_count_up_to_one_capacity_of_debt() {
    for algorithm in ALGORITHMS {
        for overdraw in [true, false] {
            let yaml = format!(
                "descriptors:
  - {{entries: [{{key: a}}], algorithm: {algorithm}, limit: 100, window: 1h, overdraw: {overdraw}}}"
            );
            let (_, limiter) = limiter(&yaml);
            assert_eq!(check(&limiter, "d: a=1 @150").await.allowed, overdraw, "{algorithm}");
            // All 150 are in use: of a refund of 60, the first 50 pay off the debt.
            expect(&limiter, &[("d: a=1 @0", "!a 0"), ("d: a=1 @-60", "a 10"), ("d: a=1", "a 9")]).await;
            assert_eq!(check(&limiter, "d: a=2 @250").await.allowed, overdraw, "{algorithm}");
            // 200 are in use; the excess is not charged.
            expect(&limiter, &[("d: a=2 @-100", "a 0"), ("d: a=2 @-1", "a 1")]).await;
        }
    }
}

#[test]
fn concurrent_requests_do_not_exceed_a_limit() {
    let yaml = "
descriptors:
  - {entries: [{key: a}], algorithm: fixed_window, limit: 50, window: 1m}
  - {entries: [{key: b}], algorithm: fixed_window, limit: 1000, window: 1m}
";
    let (_, limiter) = limiter(yaml);
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let admitted = |_| {
        let admitted = (0..25).map(|_| runtime().block_on(check(&limiter, "d: a=1; b=1 @3")).allowed);
        admitted.filter(|allowed| *allowed).count()
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || admitted(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, 50);
    let left = runtime().block_on(check(&limiter, "d: b=1 @0"));
    assert_eq!(describe(&left.outcomes[0]), "b 850", "denied requests charge nothing");
}

/// A remote store that always fails.
#[derive(Debug)]
struct Failing;

impl Store for Failing {
    fn apply<'a>(&'a self, _: &'a Command<'a>, _: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::unavailable("connection refused"))))
    }
}

#[tokio::test]
async fn failing_store_uses_the_failure_mode_and_other_stores_are_refunded() {
    let memory = Arc::new(MemoryStore::default());
    let stores = Stores::memory(memory).and_remote("far", Arc::new(Failing), Duration::from_millis(50));
    let limit = |quota| Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(86_400)).unwrap();
    let far = |key: &str, mode| DescriptorRule {
        store: Some("far".into()),
        on_store_error: Some(mode),
        ..DescriptorRule::path([PathEntry::any(key)], limit(5))
    };
    let builder = Limiter::builder().stores(stores).descriptor(far("open", FailureMode::Open));
    let builder = builder.descriptor(far("closed", FailureMode::Closed));
    let limiter =
        builder.descriptor(DescriptorRule::path([PathEntry::any("near")], limit(10))).build().unwrap();
    let open = check(&limiter, "d: near=1 @3; open=1").await;
    assert!(open.allowed && open.degraded());
    assert_eq!(open.outcomes[1].decision.remaining(), None, "an unknown value is not reported");
    let closed = check(&limiter, "d: near=1 @3; closed=1").await;
    assert!(!closed.allowed && closed.degraded());
    let near = check(&limiter, "d: near=1 @0").await;
    assert_eq!(describe(&near.outcomes[0]), "near 7");
}

#[tokio::test]
async fn reload_replaces_descriptor_rules_and_keeps_path_counters() {
    let limit = |quota| Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(86_400)).unwrap();
    let any =
        |quota| Limiter::builder().descriptor(DescriptorRule::path([PathEntry::any("ip")], limit(quota)));
    let limiter = any(5).build().unwrap();
    check(&limiter, "d: ip=1 @2").await;
    limiter.replace(any(10)).unwrap();
    assert_eq!(describe(&check(&limiter, "d: ip=1").await.outcomes[0]), "ip 7");
    // The same path, now with a rule for its exact value.
    let exact = DescriptorRule::path([PathEntry::exact("ip", "1")], limit(100));
    limiter.replace(any(10).descriptor(exact)).unwrap();
    assert_eq!(describe(&check(&limiter, "d: ip=1").await.outcomes[0]), "ip=1 96");
    limiter.replace(Limiter::builder()).unwrap();
    assert_eq!(describe(&check(&limiter, "d: ip=1").await.outcomes[0]), "-");
}
