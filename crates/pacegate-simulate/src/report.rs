//! The report of a simulation, as it is written to JSON. Text and HTML show the same.

use serde::Serialize;

/// The report. Its field names are those of the JSON report, and do not change.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Incremented when the meaning of a field changes.
    pub format_version: u32,
    /// The log that was replayed.
    pub log: LogReport,
    /// The results of each set of rules: A, and B if there is one.
    pub rule_sets: Vec<RuleSetReport>,
    /// Endpoints, those with the most blocked requests first.
    pub endpoints: Vec<EndpointReport>,
    /// Requests over time.
    pub series: SeriesReport,
    /// The comparison of B with A.
    pub comparison: Option<ComparisonReport>,
    /// The conclusion, in sentences.
    pub conclusion: Vec<String>,
}

/// The log that was replayed.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// Names of the logs.
    pub files: Vec<String>,
    /// Format of the logs.
    pub format: String,
    /// The fields of the parts of a request.
    pub fields: Vec<FieldReport>,
    /// Number of lines that are not empty.
    pub lines: u64,
    /// Number of requests that were replayed.
    pub requests: u64,
    /// Number of lines that are not requests.
    pub broken_lines: u64,
    /// The first of these lines.
    pub broken_examples: Vec<BrokenLine>,
    /// Number of requests ignored because of their status.
    pub left_out_by_status: u64,
    /// Number of requests with status 429: clients may have wanted more than the log shows.
    pub answered_429: u64,
    /// Number of requests too late to be sorted. They count at the latest time before them.
    pub late_requests: u64,
    /// The maximum by which they were late.
    pub late_seconds_most: f64,
    /// Whether so many requests are late that the result is not reliable.
    pub out_of_order: bool,
    /// Number of requests ignored because their times are far ahead of the rest of the log.
    pub odd_times: u64,
    /// The first of these requests.
    pub odd_examples: Vec<OddLine>,
    /// Whether times have no fraction of a second and requests were spread over the second.
    pub spread_over_seconds: bool,
    /// Time of the first request.
    pub first: String,
    /// Time of the last request.
    pub last: String,
    /// Time between them.
    pub span_seconds: f64,
    /// Warnings about the log.
    pub warnings: Vec<String>,
}

/// A part of a request, and its field.
#[derive(Clone, Debug, Serialize)]
pub struct FieldReport {
    /// `time`, `endpoint`, `method`, `request`, `status`, `cost`, `cost.UNIT`, `tier`, or a
    /// dimension.
    pub part: String,
    /// The name of the field in the log.
    pub field: String,
}

/// A line that is not a request.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenLine {
    /// Name of the log.
    pub file: String,
    /// Number of the line.
    pub line: u64,
    /// Why the line is not a request.
    pub reason: String,
    /// Start of the line, unless identifiers are hidden.
    pub text: Option<String>,
}

/// A line with a time far ahead of the rest of the log.
#[derive(Clone, Debug, Serialize)]
pub struct OddLine {
    /// Name of the log.
    pub file: String,
    /// Number of the line.
    pub line: u64,
    /// The time of the line.
    pub time: String,
}

/// The results of a set of rules.
#[derive(Clone, Debug, Serialize)]
pub struct RuleSetReport {
    /// `A` or `B`.
    pub name: String,
    /// Name of the configuration file.
    pub file: String,
    /// Number of requests that would have been allowed.
    pub allowed: u64,
    /// Number of requests that would have been blocked.
    pub blocked: u64,
    /// Share of blocked requests, from 0 to 1.
    pub blocked_share: f64,
    /// Number of allowed requests that rules in shadow mode would have blocked.
    pub would_block: u64,
    /// Whether rules in shadow mode were enforced (`--enforce-shadow`).
    pub shadow_enforced: bool,
    /// The results of each rule.
    pub rules: Vec<RuleReport>,
    /// Blocked customers by dimension. The customer of a request is its user or, without a user,
    /// its API key, its identifier in another dimension, or its address.
    pub blocked_customers: Vec<DimensionReport>,
    /// Customers with the most blocked requests.
    pub most_blocked: Vec<CustomerReport>,
    /// Regular customers that would have been blocked, those blocked often first. Outliers are not
    /// among them.
    pub regular_hurt: Vec<CustomerReport>,
    /// Customers with a demand far above the limit and that of other keys, most blocked first.
    pub outliers: Vec<CustomerReport>,
    /// Changes that would allow all requests of regular customers.
    pub suggestions: Vec<Suggestion>,
    /// Warnings about rules that never applied, and about bounds that were reached.
    pub warnings: Vec<String>,
}

/// The results of a rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    /// Name of the rule.
    pub name: String,
    /// Dimension of the rule.
    pub dimension: String,
    /// What it applies to: `anyone`, `tier`, `identifier` or `default`.
    pub applies_to: String,
    /// `enforce` or `shadow`.
    pub mode: String,
    /// Algorithm of the rule.
    pub algorithm: String,
    /// Number of requests allowed per window.
    pub limit: u32,
    /// Length of the window.
    pub window_seconds: f64,
    /// Number of requests allowed at once.
    pub burst: u32,
    /// Number of requests that the rule applied to.
    pub requests: u64,
    /// Number of requests over the limit. In shadow mode they are allowed.
    pub blocked: u64,
    /// Share of these requests, from 0 to 1.
    pub blocked_share: f64,
    /// Number of keys.
    pub keys: u64,
    /// Number of keys with at least one request over the limit.
    pub keys_blocked: u64,
    /// Numbers that would be sufficient for most of its keys.
    pub needed: Option<NeededReport>,
}

/// The limit or burst that would have allowed all requests of keys.
#[derive(Clone, Debug, Serialize)]
pub struct NeededReport {
    /// The setting: `limit`, or `burst` at the rate of the rule.
    pub number: String,
    /// Whether the numbers are exact or estimated.
    pub exact: bool,
    /// Sufficient for 99 % of the keys.
    pub for_99_percent: u64,
    /// Sufficient for 99.9 % of the keys.
    pub for_99_9_percent: u64,
    /// Sufficient for all keys.
    pub for_all: u64,
}

/// A number that would allow all requests of the regular customers that a rule blocked.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Name of the rule.
    pub rule: String,
    /// The setting: `limit`, or `burst` at the rate of the rule.
    pub setting: String,
    /// The number in the file.
    pub current: u32,
    /// The number that is sufficient for these customers.
    pub suggested: u64,
    /// Whether the number is exact or estimated.
    pub exact: bool,
    /// Number of regular customers that this rule blocked most.
    pub customers: u64,
    /// Number of outliers that this rule blocked most.
    pub outliers: u64,
    /// Number of these outliers that the suggested number still blocks.
    pub outliers_blocked: u64,
}

/// Blocked customers of one dimension.
#[derive(Clone, Debug, Serialize)]
pub struct DimensionReport {
    /// The dimension.
    pub dimension: String,
    /// Number of customers.
    pub customers: u64,
    /// Number of customers that would have been blocked at least once.
    pub blocked: u64,
    /// Number of regular customers among them. Outliers do not count.
    pub regular_hurt: u64,
    /// Number of regular customers that would have been blocked often.
    pub regular_often: u64,
    /// Number of outliers among the blocked customers.
    pub outliers: u64,
}

/// A customer that would have been blocked.
#[derive(Clone, Debug, Serialize)]
pub struct CustomerReport {
    /// Dimension of the identifier.
    pub dimension: String,
    /// The identifier, or its hash.
    pub identifier: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that would have been blocked by any rule.
    pub blocked: u64,
    /// Share of these requests, from 0 to 1.
    pub blocked_share: f64,
    /// Whether the share is 5 % or more.
    pub often: bool,
    /// Number of requests that the other set of rules would have blocked.
    pub blocked_by_other: Option<u64>,
    /// Time of the first blocked request.
    pub first_blocked: String,
    /// Time of the last blocked request.
    pub last_blocked: String,
    /// Longest time in which all requests would have been blocked.
    pub longest_stretch_seconds: f64,
    /// The rule that blocked most of these requests.
    pub rule: String,
    /// The key of that rule, which can be an address that several customers share.
    pub key: Option<String>,
    /// The limit or burst of the rule that would have been sufficient for this key.
    pub needed: Option<u64>,
    /// The limit or burst of the rule.
    pub available: u32,
}

/// The results of an endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointReport {
    /// The endpoint, with `{id}` for numbers. `(others)` are all endpoints beyond a bound.
    pub endpoint: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that each set of rules would have blocked.
    pub blocked: Vec<u64>,
}

/// Requests over time.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    /// Length of a step.
    pub step_seconds: u64,
    /// Start of the first step.
    pub start: String,
    /// Number of requests in each step.
    pub requests: Vec<u64>,
    /// Number of blocked requests in each step, by set of rules.
    pub blocked: Vec<Vec<u64>>,
    /// The same for the rules with the most blocked requests.
    pub rules: Vec<RuleSeries>,
}

/// Requests over the limit of a rule over time.
#[derive(Clone, Debug, Serialize)]
pub struct RuleSeries {
    /// The set of rules.
    pub rule_set: String,
    /// The rule.
    pub rule: String,
    /// Number of requests in each step.
    pub blocked: Vec<u64>,
}

/// The comparison of B with A.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Rules that differ.
    pub rules: Vec<RuleChange>,
    /// Customers that one set, the other or both would have blocked.
    pub customers: Vec<DimensionComparison>,
    /// Customers that only A would have blocked, most blocked first.
    pub only_a: Vec<CustomerReport>,
    /// Customers that only B would have blocked, most blocked first.
    pub only_b: Vec<CustomerReport>,
}

/// A rule that differs between the sets.
#[derive(Clone, Debug, Serialize)]
pub struct RuleChange {
    /// Name of the rule, and what distinguishes it from its variants.
    pub rule: String,
    /// Its limit in A. `None` if A does not have the rule.
    pub a: Option<String>,
    /// Its limit in B.
    pub b: Option<String>,
}

/// Customers of one dimension that each set would have blocked.
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
    /// Returns the report as JSON.
    ///
    /// # Errors
    /// The error of the serializer, which is not expected.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}
