//! What a simulation found out, as it is written to JSON; text and HTML show the same.

use serde::Serialize;

/// Everything there is to say. The field names are those of the JSON report, and stay.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Raised when a field changes its meaning.
    pub format_version: u32,
    /// What was replayed.
    pub log: LogReport,
    /// What each set of rules did: A, and B if there is one.
    pub rule_sets: Vec<RuleSetReport>,
    /// Where requests went, those with the most blocked ones first.
    pub endpoints: Vec<EndpointReport>,
    /// How much there was over time.
    pub series: SeriesReport,
    /// How B differs from A.
    pub comparison: Option<ComparisonReport>,
    /// The gist, in sentences.
    pub conclusion: Vec<String>,
}

/// What was replayed.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// The logs.
    pub files: Vec<String>,
    /// How they are written.
    pub format: String,
    /// Which field is which part of a request.
    pub fields: Vec<FieldReport>,
    /// How many lines there are, without empty ones.
    pub lines: u64,
    /// How many of them are requests that were replayed.
    pub requests: u64,
    /// How many are not requests.
    pub broken_lines: u64,
    /// The first of those.
    pub broken_examples: Vec<BrokenLine>,
    /// How many requests were left out because of their status.
    pub left_out_by_status: u64,
    /// How many requests were answered 429 already, so that the log shows less than clients wanted.
    pub answered_429: u64,
    /// How many came too late to be put in order; they count at the latest time before them.
    pub late_requests: u64,
    /// By how much they went back at most.
    pub late_seconds_most: f64,
    /// Whether so many came too late that the result says little.
    pub out_of_order: bool,
    /// How many more lines are requests that were left out, because the log never comes to their times.
    pub odd_times: u64,
    /// The first of those.
    pub odd_examples: Vec<OddLine>,
    /// Whether times were only told to the second, and requests were spread over it.
    pub spread_over_seconds: bool,
    /// When the first request was.
    pub first: String,
    /// When the last one was.
    pub last: String,
    /// The time between them.
    pub span_seconds: f64,
    /// What may make the result less than it seems.
    pub warnings: Vec<String>,
}

/// A part of a request, and the field it is in.
#[derive(Clone, Debug, Serialize)]
pub struct FieldReport {
    /// `time`, `endpoint`, `method`, `request`, `status`, `cost`, `cost.UNIT`, `tier`, or a dimension.
    pub part: String,
    /// Its name in the log.
    pub field: String,
}

/// A line that is not a request.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenLine {
    /// The log.
    pub file: String,
    /// Its number there.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// How it begins, unless identifiers are hidden.
    pub text: Option<String>,
}

/// A line whose time is far ahead of all others.
#[derive(Clone, Debug, Serialize)]
pub struct OddLine {
    /// The log.
    pub file: String,
    /// Its number there.
    pub line: u64,
    /// The time that it claims.
    pub time: String,
}

/// What a set of rules did.
#[derive(Clone, Debug, Serialize)]
pub struct RuleSetReport {
    /// `A` or `B`.
    pub name: String,
    /// The configuration.
    pub file: String,
    /// How many requests would have passed.
    pub allowed: u64,
    /// How many would not.
    pub blocked: u64,
    /// The share of those that would not, from 0 to 1.
    pub blocked_share: f64,
    /// How many of the allowed requests rules that only watch would have blocked.
    pub would_block: u64,
    /// Whether rules that only watch were enforced, as was asked for.
    pub shadow_enforced: bool,
    /// What each rule did.
    pub rules: Vec<RuleReport>,
    /// Who would have been blocked, by the dimension they are known by: each request is its user's or, if there is none, its API key's, that
    /// of a dimension of one's own, or its address's.
    pub blocked_customers: Vec<DimensionReport>,
    /// Those who would have been blocked most often.
    pub most_blocked: Vec<CustomerReport>,
    /// Regular customers who would have been blocked, those that would be often first: the ones to worry about.
    pub regular_hurt: Vec<CustomerReport>,
    /// Rules that could not do anything, and bounds that were reached.
    pub warnings: Vec<String>,
}

/// What a rule did.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Its name.
    pub name: String,
    /// What it counts by.
    pub dimension: String,
    /// Whom it is for: `anyone`, `tier`, `identifier` or `default`.
    pub applies_to: String,
    /// `enforce` or `shadow`.
    pub mode: String,
    /// How it counts.
    pub algorithm: String,
    /// How much it allows per window.
    pub limit: u32,
    /// The window.
    pub window_seconds: f64,
    /// How much it allows at once.
    pub burst: u32,
    /// How many requests it judged.
    pub requests: u64,
    /// How many it had no room for; in shadow mode they pass.
    pub blocked: u64,
    /// The share of those, from 0 to 1.
    pub blocked_share: f64,
    /// How many keys it counted.
    pub keys: u64,
    /// How many of them it had no room for at least once.
    pub keys_blocked: u64,
    /// What it would take not to block most of its keys.
    pub needed: Option<NeededReport>,
}

/// Which number would have let keys pass at all times.
#[derive(Clone, Debug, Serialize)]
pub struct NeededReport {
    /// The number: `limit`, or `burst` with the rate as it is.
    pub number: String,
    /// Whether it is exact for this rule alone, or close to it.
    pub exact: bool,
    /// Enough for 99 % of the keys.
    pub for_99_percent: u64,
    /// Enough for 99.9 % of the keys.
    pub for_99_9_percent: u64,
    /// Enough for all keys.
    pub for_all: u64,
}

/// Who would have been blocked in one dimension.
#[derive(Clone, Debug, Serialize)]
pub struct DimensionReport {
    /// The dimension.
    pub dimension: String,
    /// How many there are.
    pub customers: u64,
    /// How many of them would have been blocked at least once.
    pub blocked: u64,
    /// How many of those are regular customers.
    pub regular_hurt: u64,
    /// How many of the regular ones would have been blocked often.
    pub regular_often: u64,
}

/// Somebody who would have been blocked.
#[derive(Clone, Debug, Serialize)]
pub struct CustomerReport {
    /// What kind of identifier it is.
    pub dimension: String,
    /// Who it is, or a hash of it.
    pub identifier: String,
    /// How many requests they made.
    pub requests: u64,
    /// How many would have been blocked, by whatever rule.
    pub blocked: u64,
    /// The share of those, from 0 to 1.
    pub blocked_share: f64,
    /// Whether that is often: 5 % or more.
    pub often: bool,
    /// How many the other set of rules would have blocked.
    pub blocked_by_other: Option<u64>,
    /// When they would have been blocked first.
    pub first_blocked: String,
    /// And last.
    pub last_blocked: String,
    /// The longest time with nothing but blocked requests.
    pub longest_stretch_seconds: f64,
    /// The rule that is to blame for most of it.
    pub rule: String,
    /// The key that it counted, as it may be an address that several share.
    pub key: Option<String>,
    /// What that key would have needed of the rule's limit or burst.
    pub needed: Option<u64>,
    /// What the rule has of it.
    pub available: u32,
}

/// What happened at an endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointReport {
    /// The endpoint, with `{id}` for numbers; `(others)` for all beyond a bound.
    pub endpoint: String,
    /// How many requests went there.
    pub requests: u64,
    /// How many of them each set of rules would have blocked.
    pub blocked: Vec<u64>,
}

/// How much there was over time.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    /// The length of a step.
    pub step_seconds: u64,
    /// When the first step begins.
    pub start: String,
    /// Requests of each step.
    pub requests: Vec<u64>,
    /// Requests of each step that a set of rules would have blocked, by set.
    pub blocked: Vec<Vec<u64>>,
    /// The same for the rules with the most of them.
    pub rules: Vec<RuleSeries>,
}

/// What a rule had no room for over time.
#[derive(Clone, Debug, Serialize)]
pub struct RuleSeries {
    /// The set of rules.
    pub rule_set: String,
    /// The rule.
    pub rule: String,
    /// By step.
    pub blocked: Vec<u64>,
}

/// How B differs from A.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Rules that are not the same.
    pub rules: Vec<RuleChange>,
    /// Who would have been blocked by one, the other, or both.
    pub customers: Vec<DimensionComparison>,
    /// Those that only A would have blocked, most often first.
    pub only_a: Vec<CustomerReport>,
    /// Those that only B would have blocked.
    pub only_b: Vec<CustomerReport>,
}

/// A rule that is not the same in both sets.
#[derive(Clone, Debug, Serialize)]
pub struct RuleChange {
    /// Its name, and what tells variants apart.
    pub rule: String,
    /// Its limit in A; `None` if it is not there.
    pub a: Option<String>,
    /// Its limit in B.
    pub b: Option<String>,
}

/// Who would have been blocked by which set, in one dimension.
#[derive(Clone, Debug, Serialize)]
pub struct DimensionComparison {
    /// The dimension.
    pub dimension: String,
    /// Only by A.
    pub only_a: u64,
    /// Only by B.
    pub only_b: u64,
    /// By both.
    pub both: u64,
}

impl Report {
    /// The whole report as JSON.
    ///
    /// # Errors
    /// Whatever the serializer says; it has no reason to.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}
