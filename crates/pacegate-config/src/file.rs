//! The configuration file: the types of this crate describe it, and its JSON Schema is derived from
//! them.

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

/// Every value can be overridden by the environment: PACEGATE_SERVER__HTTP is server.http.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Pacegate's configuration")]
pub(crate) struct File {
    /// Whether this program decides, or asks a service.
    #[serde(with = "As::<Word<Decider>>")]
    pub(crate) mode: Decider,
    /// The service to ask in the mode service.
    pub(crate) service: Part<ServiceConfig>,
    /// How the service listens.
    pub(crate) server: Part<ServerConfig>,
    /// How often each key may use the management API.
    pub(crate) management: Part<ManagementConfig>,
    /// Where counters are kept, by name; default is for everything that names no other.
    pub(crate) stores: Part<BTreeMap<String, Option<StoreSection>>>,
    /// Where rules, users and the audit trail are kept.
    pub(crate) catalog: Part<CatalogConfig>,
    /// Which decisions are kept in the catalog.
    pub(crate) decision_log: Part<DecisionLogConfig>,
    /// How long the catalog keeps what is not configuration; at least 1h.
    pub(crate) retention: Part<RetentionConfig>,
    /// What happens while a store fails.
    pub(crate) failure: Part<FailureSection>,
    /// How the spellings of a path are compared.
    pub(crate) paths: Part<PathsSection>,
    /// The limit where no rule applies, or none.
    pub(crate) default_limit: Part<OrNone<LimitEntry>>,
    /// Policies: limits of one key, made at /admin/policies or as rules named policy of the
    /// dimension key.
    pub(crate) policies: Part<PoliciesSection>,
    /// How the service logs.
    pub(crate) log: Part<LogConfig>,
    /// Where traces are sent; there are none without it.
    pub(crate) traces: Part<TracesConfig>,
    /// Whether checks are measured and GET /metrics answers.
    #[serde(default = "measured")]
    pub(crate) metrics: bool,
    /// Which families of headers are sent with answers.
    #[serde(default = "all_headers", with = "As::<Vec<Word<HeaderFamily>>>")]
    pub(crate) headers: Vec<HeaderFamily>,
    /// What is different for Envoy.
    pub(crate) envoy: Part<EnvoySection>,
    /// Which ad-hoc limits requests may send.
    pub(crate) ad_hoc: Part<AdHocConfig>,
    /// Named lists of limits that are charged together.
    pub(crate) plans: Part<BTreeMap<String, Plan>>,
    /// Who is limited where.
    pub(crate) rules: Part<Vec<RuleEntry>>,
    /// Limits on what Envoy sends.
    pub(crate) descriptors: Part<Vec<DescriptorEntry>>,
}

fn measured() -> bool {
    true
}

pub(crate) fn all_headers() -> Vec<HeaderFamily> {
    vec![HeaderFamily::XRateLimit, HeaderFamily::Ietf]
}

/// What decides.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Decider {
    /// This program.
    #[default]
    Embedded,
    /// A service.
    Service,
}

named!(Decider { Embedded => "embedded", Service => "service" });

/// How the spellings of a path are compared.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PathsSection {
    /// Whether %2F and %5C in a path count as slashes or make it invalid (400); unless it is set,
    /// decode, and refuse in pacegate proxy.
    encoded_slashes: Option<Word<EncodedSlashes>>,
    /// Whether pacegate proxy sends duplicate slashes upstream as one; for matching they always are
    /// one.
    merge_slashes: bool,
    /// Whether parameters of a path segment, as in /report.csv;v=1, are ignored.
    ignore_parameters: bool,
    /// Whether ASCII letters of paths are compared without their case.
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

/// Limits of one key.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PoliciesSection {
    /// The dimensions whose identifiers are keys of policies, beside key.
    #[serde(with = "As::<Vec<Text<Dimension>>>")]
    pub(crate) dimensions: Vec<String>,
}

impl Default for PoliciesSection {
    fn default() -> Self {
        Self { dimensions: POLICY_DIMENSIONS.map(Into::into).to_vec() }
    }
}

/// What is different for Envoy.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EnvoySection {
    /// Which families of headers are sent with answers to Envoy; those of headers unless it is set.
    #[serde(with = "As::<Option<Vec<Word<HeaderFamily>>>>")]
    pub(crate) headers: Option<Vec<HeaderFamily>>,
}

/// The JSON Schema of the file.
pub(crate) fn schema() -> String {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let generator = settings.with_transform(RecursiveTransform(reject_null)).into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    // A section whose lines are all comments is an empty one; for `default_limit` that is an error.
    accept_null(schema.ensure_object());
    for (name, section) in properties(&mut schema) {
        if let (true, Some(section)) = (name != "default_limit", section.as_object_mut()) {
            accept_null(section);
        }
    }
    format!("{:#}", schema.as_value())
}

fn properties(schema: &mut Schema) -> impl Iterator<Item = (&String, &mut Value)> {
    schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
}

fn accept_null(schema: &mut Map<String, Value>) {
    if let Some(kind @ Value::String(_)) = schema.get("type").cloned() {
        schema.insert("type".into(), json!([kind, "null"]));
    }
}

/// A field without a value is left out, or an error; `Option` alone would describe it as `null`. A
/// map without a value is an empty one.
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
