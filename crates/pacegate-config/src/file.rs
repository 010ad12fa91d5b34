//! The configuration file: its sections, and the JSON Schema that is derived from them.

use std::collections::BTreeMap;

use pacegate::identity::POLICY_DIMENSIONS;
use pacegate::{PathOptions, path::EncodedSlashes};
use pacegate_core::named;
use pacegate_http::HeaderFamily;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::descriptor::DescriptorEntry;
use crate::part::Part;
use crate::rule::{LimitEntry, Plan, RuleEntry};
use crate::store::{FailureSection, StoreSection};
use crate::value::{As, Dimension, OrNone, Text, Word};
use crate::{
    AdHocConfig, CatalogConfig, DecisionLogConfig, LogConfig, ManagementConfig, RetentionConfig,
    ServerConfig, ServiceConfig, TracesConfig,
};

/// The configuration of the service, of embedding programs and of tools. All fields are optional.
/// Environment variables override values: `PACEGATE_SERVER__HTTP` is `server.http`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Pacegate configuration")]
pub(crate) struct File {
    /// For programs that embed the library: whether the program decides itself (`embedded`) or
    /// calls a service (`service`).
    #[serde(with = "As::<Word<Decider>>")]
    pub(crate) mode: Decider,
    /// The service that is called with `mode: service`.
    pub(crate) service: Part<ServiceConfig>,
    /// Addresses, TLS and bounds of the service.
    pub(crate) server: Part<ServerConfig>,
    /// Rate limits of each API key on the management API.
    pub(crate) management: Part<ManagementConfig>,
    /// Stores of counters, by name. `default` is the store of rules without `store`.
    pub(crate) stores: Part<BTreeMap<String, Option<StoreSection>>>,
    /// Database of rules, users, API keys and the audit trail.
    pub(crate) catalog: Part<CatalogConfig>,
    /// Which decisions are recorded in the catalog.
    pub(crate) decision_log: Part<DecisionLogConfig>,
    /// How long the catalog keeps logs and usage.
    pub(crate) retention: Part<RetentionConfig>,
    /// What happens while a store is unavailable.
    pub(crate) failure: Part<FailureSection>,
    /// How paths are compared.
    pub(crate) paths: Part<PathsSection>,
    /// The limit of requests that match no rule, or `none`. Without it, a token bucket of capacity
    /// 100 that refills at 10 per second applies.
    pub(crate) default_limit: Part<OrNone<LimitEntry>>,
    /// Policies, which are limits of one key. They are created at `/admin/policies`, or as rules
    /// with the name `policy` and the dimension `key`.
    pub(crate) policies: Part<PoliciesSection>,
    /// Format and contents of the log.
    pub(crate) log: Part<LogConfig>,
    /// Collector of traces. Without it, no traces are recorded.
    pub(crate) traces: Part<TracesConfig>,
    /// Whether the service records metrics and serves `GET /metrics`.
    #[serde(default = "measured")]
    pub(crate) metrics: bool,
    /// Families of rate limit headers in responses.
    #[serde(default = "all_headers", with = "As::<Vec<Word<HeaderFamily>>>")]
    pub(crate) headers: Vec<HeaderFamily>,
    /// Settings for requests of Envoy.
    pub(crate) envoy: Part<EnvoySection>,
    /// Which callers can send ad-hoc limits, and their bounds.
    pub(crate) ad_hoc: Part<AdHocConfig>,
    /// Plans: named lists of limits that are charged together.
    pub(crate) plans: Part<BTreeMap<String, Plan>>,
    /// Which requests are limited, and to how much.
    pub(crate) rules: Part<Vec<RuleEntry>>,
    /// Limits on the descriptors that Envoy sends.
    pub(crate) descriptors: Part<Vec<DescriptorEntry>>,
}

fn measured() -> bool {
    true
}

pub(crate) fn all_headers() -> Vec<HeaderFamily> {
    vec![HeaderFamily::XRateLimit, HeaderFamily::Ietf]
}

/// Where decisions are made.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Decider {
    /// In this program.
    #[default]
    Embedded,
    /// In a service.
    Service,
}

named!(Decider { Embedded => "embedded", Service => "service" });

/// How paths are compared.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PathsSection {
    /// Whether `%2F` and `%5C` in a path are slashes (`decode`) or make the request invalid
    /// (`refuse`, status 400). Defaults to `decode`, and to `refuse` in `pacegate proxy`.
    encoded_slashes: Option<Word<EncodedSlashes>>,
    /// Whether `pacegate proxy` merges repeated slashes in requests to the upstream. Rules always
    /// match the merged path.
    merge_slashes: bool,
    /// Whether parameters of path segments are ignored, as in `/report.csv;v=1`.
    ignore_parameters: bool,
    /// Whether paths are compared without regard to the case of ASCII letters.
    ignore_case: bool,
}

impl Default for PathsSection {
    fn default() -> Self {
        let PathOptions { encoded_slashes, merge_slashes, ignore_parameters, ignore_case } =
            PathOptions::default();
        Self { encoded_slashes: encoded_slashes.map(Word), merge_slashes, ignore_parameters, ignore_case }
    }
}

impl From<PathsSection> for PathOptions {
    fn from(section: PathsSection) -> Self {
        let PathsSection { encoded_slashes, merge_slashes, ignore_parameters, ignore_case } = section;
        let encoded_slashes = encoded_slashes.map(|slashes| slashes.0);
        Self { encoded_slashes, merge_slashes, ignore_parameters, ignore_case }
    }
}

/// Policies, which are limits of one key.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PoliciesSection {
    /// Dimensions whose identifiers are keys of policies, in addition to `key`.
    #[serde(with = "As::<Vec<Text<Dimension>>>")]
    pub(crate) dimensions: Vec<String>,
}

impl Default for PoliciesSection {
    fn default() -> Self {
        Self { dimensions: POLICY_DIMENSIONS.map(Into::into).to_vec() }
    }
}

/// Settings for requests of Envoy.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EnvoySection {
    /// Families of rate limit headers in responses to Envoy. Defaults to `headers`.
    #[serde(with = "As::<Option<Vec<Word<HeaderFamily>>>>")]
    pub(crate) headers: Option<Vec<HeaderFamily>>,
}

/// Returns the JSON Schema of the file.
pub(crate) fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let generator = settings.with_transform(RecursiveTransform(reject_null)).into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    // A section in which all lines are comments is empty. For `default_limit` that is an error.
    accept_null(schema.ensure_object());
    for (name, section) in properties(&mut schema) {
        if let (true, Some(section)) = (name != "default_limit", section.as_object_mut()) {
            accept_null(section);
        }
    }
    schema.to_value()
}

fn properties(schema: &mut Schema) -> impl Iterator<Item = (&String, &mut Value)> {
    schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
}

fn accept_null(schema: &mut Map<String, Value>) {
    if let Some(kind @ Value::String(_)) = schema.get("type").cloned() {
        schema.insert("type".into(), json!([kind, "null"]));
    }
}

/// Removes `null` from the types of optional fields: a field without a value is left out or an
/// error. A map without a value is empty.
fn reject_null(schema: &mut Schema) {
    for (_, field) in properties(schema) {
        for key in ["type", "enum"] {
            if let Some(Value::Array(values)) = field.get_mut(key)
                && !values.contains(&json!("object"))
            {
                values.retain(|value| !value.is_null() && value != "null");
            }
        }
        if let [kind] = field["type"].as_array().map(Vec::as_slice).unwrap_or_default() {
            field["type"] = kind.clone();
        }
        if let Some(field) = field.as_object_mut().filter(|field| field.get("default") == Some(&Value::Null))
        {
            field.remove("default");
        }
    }
}
