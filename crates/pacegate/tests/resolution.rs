//! Compares the limits that apply with an independent resolver, which scans all rules for every
//! request.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Check, Decision, InvalidRules, Limit, LimitOverride, LimitSource, Limiter, LimiterBuilder,
    MemoryOptions, MemoryStore, Mode, Pattern, Profile, Rule, Scope,
    explain::{Explained, Verdict},
};
use pacegate_testkit::{Seed, SimulatedClock, effort};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestCaseResult;

// Small sets of values, so that rules match requests and compete with each other.
const NAMES: [&str; 3] = ["minute", "hour", "day"];
const DIMENSIONS: [&str; 3] = ["user", "ip", "apikey"];
const IDENTIFIERS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const TIERS: [&str; 2] = ["free", "premium"];
const METHODS: [&str; 3] = ["GET", "POST", "HEAD"];
/// The spellings of each segment, canonical one first.
const SEGMENTS: [&[&str]; 5] = [
    &["a", "%61"],
    &["b", "%62"],
    &["x-y~", "x%2Dy~", "x%2dy%7E"],
    &["%C3%A9", "é", "%c3%a9"],
    &["%3F", "%3f"],
];
/// Prefixes of a segment that do not change the path.
const NOISE: [&str; 7] = ["", "/", "./", "%2e/", "gone/../", "gone/.%2E//", "//"];

/// A segment of a pattern; a literal is an index into [`SEGMENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Literal(usize),
    Any,
    Rest,
}

#[derive(Clone, Debug)]
struct Variant {
    name: &'static str,
    dimension: &'static str,
    identifier: Option<&'static str>,
    tier: Option<&'static str>,
    pieces: Vec<Piece>,
    pattern: String,
    method: Option<&'static str>,
    limit: Limit,
    mode: Mode,
    scope: Scope,
}

#[derive(Clone, Debug)]
struct Request {
    identities: Vec<(&'static str, &'static str)>,
    /// The indices of its segments; `None` if the check has no endpoint.
    path: Option<Vec<usize>>,
    endpoint: String,
    method: Option<&'static str>,
    profile: Option<Known>,
}

/// The profile of a user; limits are indexed like `NAMES`.
#[derive(Clone, Debug)]
struct Known {
    tier: Option<&'static str>,
    custom: Vec<Option<LimitOverride>>,
    overrides: Vec<Option<LimitOverride>>,
}

#[derive(Clone, Debug)]
struct Scenario {
    variants: Vec<Variant>,
    default_limit: Option<Limit>,
    requests: Vec<Request>,
}

fn windows() -> impl Strategy<Value = Duration> {
    select(vec![Duration::from_secs(60), Duration::from_secs(3_600)])
}

fn limits() -> impl Strategy<Value = Limit> {
    let burst = weighted(0.3, 500u64..600);
    (select(Algorithm::ALL.to_vec()), 1_000u64..9_000, windows(), burst).prop_map(
        |(algorithm, quota, window, burst)| {
            let limit = Limit::try_new(algorithm, quota, window).unwrap();
            burst.filter(|_| algorithm.takes_burst()).map_or(limit, |burst| limit.with_burst(burst).unwrap())
        },
    )
}

/// Numbers that are valid for every algorithm, for some, and for none.
fn numbers() -> impl Strategy<Value = LimitOverride> {
    let quota = prop_oneof![8 => 1_000u64..9_000, 1 => Just(1_500_000), 1 => Just(0)];
    let odd_windows = select(vec![Duration::from_micros(999), Duration::from_nanos(1_000_000_500)]);
    let window = prop_oneof![6 => weighted(0.5, windows()), 1 => odd_windows.prop_map(Some)];
    let burst = prop_oneof![5 => Just(None), 2 => (500u64..600).prop_map(Some), 1 => Just(Some(0))];
    (quota, window, burst).prop_map(|(quota, window, burst)| LimitOverride { quota, window, burst })
}

fn segments() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..2usize, 1 => 2..SEGMENTS.len()]
}

/// A pattern as its pieces and in one of its spellings.
fn patterns() -> impl Strategy<Value = (Vec<Piece>, String)> {
    let piece = prop_oneof![1 => segments().prop_map(Piece::Literal), 1 => Just(Piece::Any)];
    (vec((piece, any::<u8>()), 0..3), any::<bool>(), any::<bool>()).prop_map(|(parts, rest, star)| {
        let mut pieces: Vec<Piece> = parts.iter().map(|(piece, _)| *piece).collect();
        let write = |(piece, choice): &(Piece, u8)| match piece {
            Piece::Literal(segment) => spelling(*segment, *choice).to_owned(),
            _ => ["{id}", "{name}"][usize::from(*choice) % 2].to_owned(),
        };
        let mut written: Vec<String> = parts.iter().map(write).collect();
        if rest {
            pieces.push(Piece::Rest);
            written.push(if star { "{*rest}" } else { "{*tail}" }.to_owned());
        }
        let text = if star && pieces == [Piece::Rest] {
            "*".to_owned()
        } else {
            "/".to_owned() + &written.join("/")
        };
        (pieces, text)
    })
}

fn spelling(segment: usize, choice: u8) -> &'static str {
    SEGMENTS[segment][usize::from(choice) % SEGMENTS[segment].len()]
}

fn variants() -> impl Strategy<Value = Variant> {
    let who = (
        select(&NAMES),
        prop_oneof![3 => Just("user"), 2 => select(&DIMENSIONS)],
        weighted(0.3, select(&IDENTIFIERS)),
        weighted(0.35, select(&TIERS)),
    );
    let how = (
        weighted(0.25, select(&METHODS)),
        limits(),
        prop_oneof![5 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)],
        prop_oneof![3 => Just(Scope::Pattern), 1 => Just(Scope::Endpoint)],
    );
    (who, patterns(), how).prop_map(|((name, dimension, identifier, tier), (pieces, pattern), how)| {
        let (method, limit, mode, scope) = how;
        Variant { name, dimension, identifier, tier, pieces, pattern, method, limit, mode, scope }
    })
}

fn requests() -> impl Strategy<Value = Request> {
    // No rule has this dimension.
    let dimensions = subsequence(vec!["user", "ip", "apikey", "tenant"], 1..=3).prop_shuffle();
    let dimensions = prop_oneof![1 => Just(vec!["user"]), 2 => dimensions];
    let identities = (dimensions, vec(select(&IDENTIFIERS), 3));
    let identities = identities
        .prop_map(|(dimensions, identifiers)| dimensions.into_iter().zip(identifiers).collect::<Vec<_>>());
    let part = (select(&NOISE), segments(), any::<u8>());
    let suffix = select(vec!["", "/", "/.", "?", "?q=/a/../b", "#/a", "/x/../?%61", "/%2e%2E/%62"]);
    let spelt = (vec(part, 0..=3), any::<bool>(), suffix).prop_map(|(parts, slash, suffix)| {
        let mut path: Vec<usize> = parts.iter().map(|(_, segment, _)| *segment).collect();
        // Without a prefix, the leading slash keeps the endpoint from being empty.
        let mut endpoint = String::from(if slash || parts.is_empty() { "/" } else { "" });
        for (index, (noise, segment, choice)) in parts.iter().enumerate() {
            endpoint += if index > 0 { "/" } else { "" };
            endpoint += noise;
            endpoint += spelling(*segment, *choice);
        }
        endpoint += suffix;
        if suffix == "/%2e%2E/%62" {
            path.pop();
            path.push(1);
        }
        (path, endpoint)
    });
    let numbers = || vec(weighted(0.25, numbers()), NAMES.len());
    let profile = (weighted(0.7, select(&TIERS)), numbers(), numbers())
        .prop_map(|(tier, custom, overrides)| Known { tier, custom, overrides });
    let method = weighted(0.8, select(vec!["GET", "POST", "PUT", "HEAD"]));
    (identities, weighted(0.95, spelt), method, weighted(0.8, profile)).prop_map(
        |(identities, spelt, method, profile)| {
            let (path, endpoint) = spelt.unzip();
            Request { identities, path, endpoint: endpoint.unwrap_or_default(), method, profile }
        },
    )
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    (vec(variants(), 0..20), proptest::option::of(limits()), vec(requests(), 6..=8))
        .prop_map(|(variants, default_limit, requests)| Scenario { variants, default_limit, requests })
}

/// Identifies a counter: name, dimension, identifier, pattern, concrete endpoint, algorithm and
/// window.
type CounterId =
    (&'static str, &'static str, &'static str, Option<Vec<Piece>>, Option<Vec<usize>>, Algorithm, Duration);

/// A limit that applies, as the decision must report it.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    name: String,
    dimension: String,
    algorithm: Algorithm,
    quota: u32,
    capacity: u32,
    window: Duration,
    mode: Mode,
    why: LimitSource,
    per_endpoint: bool,
}

impl Applied {
    fn new(
        name: &str,
        dimension: &str,
        limit: &Limit,
        mode: Mode,
        why: LimitSource,
        per_endpoint: bool,
    ) -> Self {
        Self {
            name: name.into(),
            dimension: dimension.into(),
            algorithm: limit.algorithm(),
            quota: limit.quota(),
            capacity: limit.capacity(),
            window: limit.window(),
            mode,
            why,
            per_endpoint,
        }
    }
}

/// The limits that must apply, in order, found by scanning every rule.
fn expected(
    variants: &[Variant],
    default_limit: Option<&Limit>,
    request: &Request,
) -> Vec<(Applied, CounterId)> {
    let mut applied = Vec::new();
    for &(dimension, identifier) in &request.identities {
        let mut chosen: Vec<(usize, &Variant)> = Vec::new();
        for path in readings(request) {
            let matching: Vec<(usize, &Variant)> = variants
                .iter()
                .enumerate()
                .filter(|(_, variant)| {
                    variant.dimension == dimension && matches(variant, identifier, request, &path)
                })
                .collect();
            let before: Vec<&str> = chosen.iter().map(|(_, variant)| variant.name).collect();
            for (index, variant) in &matching {
                // A request without a method matches variants for different methods; the first of
                // them applies.
                let shadowed = |(other_place, other): &(usize, &Variant)| {
                    let order = compare(other, variant);
                    other.name == variant.name && (order.is_gt() || (order.is_eq() && other_place < index))
                };
                if !before.contains(&variant.name) && !matching.iter().any(shadowed) {
                    chosen.push((*index, variant));
                }
            }
        }
        chosen.sort_by_key(|(index, _)| *index);
        for (_, variant) in chosen {
            let (limit, why) = limit_for(variant, request.profile.as_ref());
            let per_endpoint = variant.scope == Scope::Endpoint;
            let endpoint = request.path.clone().filter(|_| per_endpoint);
            let counter = (
                variant.name,
                dimension,
                identifier,
                Some(variant.pieces.clone()),
                endpoint,
                limit.algorithm(),
                limit.window(),
            );
            let named = Applied::new(variant.name, dimension, &limit, variant.mode, why, per_endpoint);
            applied.push((named, counter));
        }
    }
    if let Some(limit) = default_limit
        && applied.iter().all(|(limit, _)| limit.mode == Mode::Shadow)
    {
        for &(dimension, identifier) in &request.identities {
            let endpoint = request.path.clone();
            let counter =
                ("default", dimension, identifier, None, endpoint, limit.algorithm(), limit.window());
            let named = Applied::new("default", dimension, limit, Mode::Enforce, LimitSource::Default, true);
            applied.push((named, counter));
        }
    }
    applied
}

/// The canonical path, then the path as URL parsers and as routers read it; rules of other names
/// match these.
fn readings(request: &Request) -> Vec<Vec<usize>> {
    let Some(path) = &request.path else { return Vec::new() };
    let written = request.endpoint.split(['?', '#']).next().unwrap();
    let mut parsed = Vec::new();
    for part in written.split('/') {
        match &*part.to_ascii_lowercase().replace("%2e", ".") {
            "." => {}
            ".." => drop(parsed.pop()),
            _ => parsed.push(part),
        }
    }
    let index = |part: &str| SEGMENTS.iter().position(|spellings| spellings.contains(&part));
    let indices = |parts: Vec<&str>| {
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.map(|part| index(part).unwrap_or(usize::MAX)).collect()
    };
    vec![path.clone(), indices(parsed), indices(written.split('/').collect())]
}

fn matches(variant: &Variant, identifier: &str, request: &Request, path: &[usize]) -> bool {
    let tier = request.profile.as_ref().and_then(|profile| profile.tier);
    variant.identifier.is_none_or(|own| own == identifier)
        && (variant.tier.is_none() || variant.tier == tier)
        && applies_to_method(variant, request.method)
        && covers(&variant.pieces, path)
}

/// Rules for GET include HEAD.
fn applies_to_method(variant: &Variant, method: Option<&str>) -> bool {
    match (variant.method, method) {
        (Some("GET"), Some("HEAD")) | (None, _) | (_, None) => true,
        (own, method) => own == method,
    }
}

fn covers(pattern: &[Piece], path: &[usize]) -> bool {
    match (pattern, path) {
        ([], []) | ([Piece::Rest], _) => true,
        ([Piece::Any, pattern @ ..], [_, path @ ..]) => covers(pattern, path),
        ([Piece::Literal(own), pattern @ ..], [segment, path @ ..]) => {
            own == segment && covers(pattern, path)
        }
        _ => false,
    }
}

/// Compares the specificity of two variants that both match: by identity, then endpoint, then
/// method.
fn compare(one: &Variant, other: &Variant) -> Ordering {
    let rank_of_identity = |variant: &Variant| match (variant.identifier, variant.tier) {
        (None, None) => 0,
        (None, Some(_)) => 1,
        (Some(_), None) => 2,
        (Some(_), Some(_)) => 3,
    };
    rank_of_identity(one)
        .cmp(&rank_of_identity(other))
        .then_with(|| compare_patterns(&one.pieces, &other.pieces))
        .then_with(|| {
            let rank = |variant: &Variant| variant.method.map(|method| method == "HEAD");
            rank(one).cmp(&rank(other))
        })
}

fn compare_patterns(one: &[Piece], other: &[Piece]) -> Ordering {
    match (one, other) {
        ([], []) => Ordering::Equal,
        ([a, one @ ..], [b, other @ ..]) if a == b => compare_patterns(one, other),
        // An end is more specific than a rest, and so is everything else.
        ([Piece::Rest, ..], _) => Ordering::Less,
        (_, [Piece::Rest, ..]) => Ordering::Greater,
        ([Piece::Any, ..], [Piece::Literal(_), ..]) => Ordering::Less,
        ([Piece::Literal(_), ..], [Piece::Any, ..]) => Ordering::Greater,
        _ => panic!("{one:?} and {other:?} match no common path"),
    }
}

fn limit_for(variant: &Variant, profile: Option<&Known>) -> (Limit, LimitSource) {
    let index = NAMES.iter().position(|name| *name == variant.name).unwrap();
    let profile = profile.filter(|_| variant.dimension == "user");
    let replaced =
        |numbers: Option<LimitOverride>| numbers.and_then(|numbers| with_numbers(&variant.limit, numbers));
    if let Some(limit) = profile.and_then(|profile| replaced(profile.overrides[index])) {
        return (limit, LimitSource::Override);
    }
    if variant.identifier.is_some() {
        return (variant.limit, LimitSource::Identifier);
    }
    if let Some(limit) = profile.and_then(|profile| replaced(profile.custom[index])) {
        return (limit, LimitSource::Custom);
    }
    (variant.limit, if variant.tier.is_some() { LimitSource::Tier } else { LimitSource::Anyone })
}

/// `None` if the numbers are not valid for the algorithm.
fn with_numbers(limit: &Limit, numbers: LimitOverride) -> Option<Limit> {
    let algorithm = limit.algorithm();
    let quota_max = if algorithm == Algorithm::SlidingLog { 1_000_000 } else { 1_000_000_000 };
    let window = numbers.window.unwrap_or(limit.window());
    // Scaled like the numbers of the rule.
    let scaled = || {
        let burst = u128::from(numbers.quota) * u128::from(limit.capacity());
        u64::try_from(burst.div_ceil(limit.quota().into())).unwrap().clamp(1, 1_000_000_000)
    };
    let bursts = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra);
    let burst = numbers.burst.unwrap_or_else(|| if bursts { scaled() } else { numbers.quota });
    let possible = (1..=quota_max).contains(&numbers.quota)
        && window >= Duration::from_millis(1)
        && window.as_nanos().is_multiple_of(1_000)
        && (1..=1_000_000_000).contains(&burst)
        && (bursts || burst == numbers.quota);
    possible.then(|| {
        let replaced = Limit::try_new(algorithm, numbers.quota, window).unwrap();
        replaced.with_burst(burst).unwrap()
    })
}

fn builder(variants: &[Variant], default_limit: Option<Limit>) -> LimiterBuilder {
    let builder = Limiter::builder();
    let builder = default_limit.into_iter().fold(builder, LimiterBuilder::default_limit);
    let rule = |variant: &Variant| Rule {
        identifier: variant.identifier.map(Into::into),
        tier: variant.tier.map(Into::into),
        endpoint: Pattern::parse(&variant.pattern).unwrap(),
        methods: pacegate::Methods::try_new(variant.method).unwrap(),
        mode: variant.mode,
        scope: variant.scope,
        ..Rule::new(variant.name, variant.dimension, variant.limit)
    };
    variants.iter().map(rule).fold(builder, LimiterBuilder::rule)
}

fn profile(known: &Known) -> Profile {
    let named = |numbers: &[Option<LimitOverride>]| {
        let pairs = NAMES.iter().zip(numbers);
        pairs.filter_map(|(name, numbers)| Some(((*name).to_owned(), (*numbers)?))).collect()
    };
    Profile {
        tier: known.tier.map(Into::into),
        custom_limits: named(&known.custom),
        overrides: named(&known.overrides),
    }
}

fn check_and_explain(limiter: &Limiter, request: &Request) -> (Decision, Vec<Explained>) {
    let profile = request.profile.as_ref().map(profile);
    let (dimension, identifier) = request.identities[0];
    let mut check = Check::new(dimension, identifier);
    for (dimension, identifier) in &request.identities[1..] {
        check = check.and(dimension, identifier);
    }
    if request.path.is_some() {
        check = check.endpoint(&request.endpoint);
    }
    if let Some(method) = request.method {
        check = check.method(method);
    }
    if let Some(profile) = &profile {
        check = check.profile(profile);
    }
    (limiter.check_now(&check).unwrap(), limiter.explain(&check).unwrap())
}

/// Counts interesting events, so that a generator that avoids them is noticed.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    limits: HashMap<&'static str, usize>,
    shadowed: usize,
    shared: usize,
    shared_with_other_numbers: usize,
    rejected: usize,
}

fn run(scenario: Scenario, tally: &mut Tally) -> TestCaseResult {
    let Scenario { mut variants, default_limit, requests } = scenario;
    let mut seen = HashSet::new();
    let is_new = |variant: &Variant| {
        let who = (variant.name, variant.dimension, variant.identifier, variant.tier);
        seen.insert((who, variant.pieces.clone(), variant.method))
    };
    let distinct: Vec<bool> = variants.iter().map(is_new).collect();
    if let Some(duplicate) = distinct.iter().position(|distinct| !distinct) {
        let rejected = builder(&variants, default_limit).build();
        let named = matches!(rejected, Err(InvalidRules::DuplicateRule { index, .. }) if index == duplicate);
        prop_assert!(named, "rule {duplicate} is a duplicate");
        tally.rejected += 1;
    }
    let mut keep = distinct.iter();
    variants.retain(|_| *keep.next().unwrap());

    let store = MemoryStore::with_clock(MemoryOptions::default(), Arc::new(SimulatedClock::default()));
    let limiter = builder(&variants, default_limit).memory(Arc::new(store)).build().unwrap();
    let mut used: HashMap<CounterId, (u32, u32)> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        // Halfway, the same rules are loaded in another order, which must not move any counter.
        if index == requests.len() / 2 {
            variants.reverse();
            limiter.replace(builder(&variants, default_limit)).unwrap();
        }
        let expected = expected(&variants, default_limit.as_ref(), request);
        let (decision, explained) = check_and_explain(&limiter, request);
        let found: Vec<Applied> = decision
            .limits()
            .iter()
            .map(|limit| {
                let per_endpoint = limit.is_per_endpoint();
                Applied::new(
                    &limit.name,
                    limit.dimension(),
                    &limit.limit,
                    limit.mode,
                    limit.why,
                    per_endpoint,
                )
            })
            .collect();
        let wanted: Vec<Applied> = expected.iter().map(|(limit, _)| limit.clone()).collect();
        prop_assert_eq!(found, wanted, "request {}", index);
        prop_assert!(decision.allowed());
        prop_assert_eq!(decision.answers().len(), expected.len());
        for (answer, (limit, counter)) in decision.answers().iter().zip(expected) {
            prop_assert_eq!(answer.shadow, limit.mode == Mode::Shadow);
            prop_assert_eq!((answer.algorithm, answer.capacity), (limit.algorithm, limit.capacity));
            let (used, quota) = used.entry(counter).or_default();
            tally.shared += usize::from(*used > 0);
            tally.shared_with_other_numbers += usize::from(*used > 0 && *quota != limit.quota);
            (*used, *quota) = (*used + 1, limit.quota);
            prop_assert_eq!(
                answer.remaining,
                Some(limit.capacity - *used),
                "request {} of {:?}",
                index,
                limit
            );
            *tally.limits.entry(limit.why.name()).or_default() += 1;
        }
        let matching = request.identities.iter().map(|(dimension, identifier)| {
            let paths = readings(request);
            let matching = |variant: &&Variant| {
                variant.dimension == *dimension
                    && paths.iter().any(|path| matches(variant, identifier, request, path))
            };
            variants.iter().filter(matching).count()
        });
        let applied = decision.limits().iter().filter(|limit| limit.why != LimitSource::Default).count();
        let shadowed = matching.sum::<usize>() - applied;
        tally.shadowed += shadowed;
        let with = |verdict| explained.iter().filter(move |rule| rule.verdict == verdict);
        prop_assert_eq!(explained.len(), variants.len());
        prop_assert_eq!(with(Verdict::Shadowed).count(), shadowed, "request {}", index);
        let mut explained_rules: Vec<_> =
            with(Verdict::Applies).map(|rule| format!("{:?}", rule.limit)).collect();
        let rules = decision.limits().iter().filter(|limit| limit.why != LimitSource::Default);
        let mut applied: Vec<_> = rules.map(|limit| format!("{limit:?}")).collect();
        explained_rules.sort();
        applied.sort();
        prop_assert_eq!(explained_rules, applied, "request {}", index);
        tally.requests += 1;
    }
    Ok(())
}

#[test]
fn limits_equal_those_of_a_scan_of_all_rules() {
    let sets = effort(10_000u64, 200_000);
    let strategy = scenarios();
    let mut tally = Tally::default();
    for seed in 0..sets {
        let mut runner = Seed(seed).runner();
        let tree = strategy.new_tree(&mut runner).unwrap();
        let shared = std::cell::RefCell::new(&mut tally);
        let result = runner.run_one(tree, |scenario| run(scenario, &mut shared.borrow_mut()));
        if let Err(error) = result {
            panic!("seed {seed}: {error:#?}");
        }
    }
    let Tally { requests, limits, shadowed, shared, shared_with_other_numbers, rejected } = &tally;
    for why in ["override", "identifier", "custom", "tier", "anyone", "default"] {
        assert!(limits.get(why).is_some_and(|times| *times > 1_000), "{why} is too rare: {tally:?}");
    }
    assert!(*shadowed > 10_000 && *shared_with_other_numbers > 1_000 && *rejected > 10, "{tally:?}");
    println!(
        "PASS resolution sets={sets} requests={requests} seed=0..{sets} limits={} shadowed={shadowed} shared={shared} renumbered={shared_with_other_numbers} refused_sets={rejected}",
        limits.values().sum::<usize>(),
    );
}
