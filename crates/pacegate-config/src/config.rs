//! The configuration as a whole, from a file and the environment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pacegate::rules::RULES_MAX;
use pacegate::{
    FailureMode, InvalidRules, Limit, Limiter, LimiterBuilder, MemoryStore, PathOptions, PlanLimit, Rule,
    Stores, descriptor::DescriptorRule,
};
use pacegate_http::HeaderFamily;

use crate::cursor::{Cursor, Document};
use crate::descriptor::DescriptorEntry;
use crate::file::{self, Decider, File, PoliciesSection};
use crate::node::{Node, Place, Value};
use crate::reference;
use crate::rule::{LimitEntry, PlanEntry, RuleContext, RuleEntry};
use crate::store::FailureSection;
use crate::value::OrNone;
use crate::{
    AdHocConfig, CatalogConfig, ConfigError, ConfigErrors, DecisionLogConfig, LogConfig, ManagementConfig,
    RetentionConfig, ServerConfig, ServiceConfig, StoreConfig, TracesConfig,
};

/// Prefix of environment variables that override a value: `PACEGATE_SERVER__HTTP` is `server.http`.
const ENVIRONMENT_PREFIX: &str = "PACEGATE_";
/// Variables of the program that are not values of the file.
const ENVIRONMENT_OTHER: [&str; 3] = ["PACEGATE_ADMIN_KEY", "PACEGATE_API_KEY", "PACEGATE_COMMIT"];
/// Variables that Kubernetes sets in the pods of a namespace with a service called `pacegate`. They
/// cannot be values of the file, whose levels are separated by two underscores.
const ENVIRONMENT_KUBERNETES: [&str; 3] = ["PACEGATE_PORT", "PACEGATE_SERVICE_HOST", "PACEGATE_SERVICE_PORT"];

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The service that decides in the mode `service`. `None` in the mode `embedded`, in which the
    /// program itself decides.
    pub service: Option<ServiceConfig>,
    /// Addresses, TLS and bounds of the service.
    pub server: ServerConfig,
    /// Rate limits of the management API.
    pub management: ManagementConfig,
    /// Stores of counters. The first is the default one.
    pub stores: Vec<StoreConfig>,
    /// Database of rules, users, API keys and the audit trail.
    pub catalog: CatalogConfig,
    /// Which decisions are recorded in the catalog.
    pub decision_log: DecisionLogConfig,
    /// How long the catalog keeps logs and usage.
    pub retention: RetentionConfig,
    /// What happens while a store is unavailable, for rules without `on_store_error`.
    pub failure_mode: FailureMode,
    /// Time after which a store that has not responded counts as unavailable.
    pub store_timeout: Duration,
    /// The same for requests of Envoy, which by default waits 20 ms and then allows the request.
    pub envoy_store_timeout: Duration,
    /// How paths are compared.
    pub paths: PathOptions,
    /// The limit of requests that match no rule.
    pub default_limit: Option<Limit>,
    /// Whether the file sets `default_limit`. Otherwise it is a token bucket of capacity 100 that
    /// refills at 10 per second.
    pub sets_default_limit: bool,
    /// Dimensions whose identifiers are keys of policies, in addition to `key`.
    pub policy_dimensions: Vec<String>,
    /// Format and contents of the log.
    pub log: LogConfig,
    /// Collector of traces. `None` if no traces are recorded.
    pub traces: Option<TracesConfig>,
    /// Whether the service records metrics and serves `GET /metrics`.
    pub metrics: bool,
    /// Families of rate limit headers in responses.
    pub headers: Vec<HeaderFamily>,
    /// The same in responses to Envoy, which can write `X-RateLimit` headers itself. `None` is the
    /// same as `headers`.
    pub envoy_headers: Option<Vec<HeaderFamily>>,
    /// Which callers can send ad-hoc limits, and their bounds.
    pub ad_hoc: AdHocConfig,
    /// Named lists of limits that are charged together.
    pub plans: Vec<(String, Vec<PlanLimit>)>,
    /// Which requests are limited, and to how much.
    pub rules: Vec<Rule>,
    /// Limits on descriptors.
    pub descriptors: Vec<DescriptorRule>,
    /// Values that are valid and can never match, such as the endpoint `/orders/:id`.
    pub warnings: Vec<ConfigError>,
}

impl Default for Config {
    fn default() -> Self {
        let default_limit = Limit::per_second(10).burst(100).build();
        let FailureSection { mode, timeout, envoy_timeout } = FailureSection::default();
        Self {
            service: None,
            server: ServerConfig::default(),
            management: ManagementConfig::default(),
            stores: StoreConfig::read_all(None),
            catalog: CatalogConfig::default(),
            decision_log: DecisionLogConfig::default(),
            retention: RetentionConfig::default(),
            failure_mode: mode,
            store_timeout: timeout,
            envoy_store_timeout: envoy_timeout,
            paths: PathOptions::default(),
            default_limit: default_limit.ok(),
            sets_default_limit: false,
            policy_dimensions: PoliciesSection::default().dimensions,
            log: LogConfig::default(),
            traces: None,
            metrics: true,
            headers: file::all_headers(),
            envoy_headers: None,
            ad_hoc: AdHocConfig::default(),
            plans: Vec::new(),
            rules: Vec::new(),
            descriptors: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the JSON Schema of the file, for editors that complete and check it. It is derived
    /// from the types that the file is deserialized into.
    pub fn schema() -> String {
        format!("{:#}", file::schema())
    }

    /// Returns the reference of the file in Markdown, which is generated from the JSON Schema.
    pub fn reference() -> String {
        reference::markdown(&file::schema())
    }

    /// Parses a configuration in YAML.
    ///
    /// # Errors
    /// Every error in it, each with its line and path.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with_environment(text, std::iter::empty())
    }

    /// Parses a configuration in YAML. Environment variables such as `PACEGATE_SERVER__HTTP`
    /// override its values.
    ///
    /// # Errors
    /// Every error in both.
    pub fn parse_with_environment(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let (config, errors) = Self::inspect_with_environment(text, environment);
        if errors.0.is_empty() { Ok(config) } else { Err(errors) }
    }

    fn inspect_with_environment(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> (Self, ConfigErrors) {
        let mut document = Document::parse(text);
        let mut overrides: Vec<(String, String)> = environment
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX) && !is_no_setting(name))
            .collect();
        overrides.sort();
        for (name, value) in overrides {
            set_from_environment(&mut document, name, &value);
        }
        let config = Self::read(&document.root());
        let (errors, warnings) = document.into_findings();
        (Self { warnings, ..config }, errors)
    }

    /// Loads a file, and the environment variables of this process.
    ///
    /// # Errors
    /// Every error in them, or the reason why the file cannot be read.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        let (config, errors) = Self::inspect(path);
        if errors.0.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// Loads a file as [`load`](Self::load) does, and returns its valid values together with every
    /// error. Tools use it to check further what is valid.
    pub fn inspect(path: Option<&Path>) -> (Self, ConfigErrors) {
        let text = match path.map(std::fs::read_to_string).transpose() {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => {
                let place = path.map(|path| path.display().to_string()).unwrap_or_default();
                let error = ConfigError { place, path: String::new(), message: error.to_string() };
                return (Self::default(), ConfigErrors(vec![error]));
            }
        };
        // A value that is not UTF-8 cannot be a setting.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::inspect_with_environment(&text, environment)
    }

    fn read(root: &Cursor<'_>) -> Self {
        let file: File = root.read().unwrap_or_default();
        let defaults = Self::default();
        let service = file.service.read(root);
        if file.mode == Decider::Service && service.is_none() && !root.is_wrong("service") {
            root.reject("mode", "`mode: service` requires `service.url`");
        }
        if let (Some(service), Some(cursor)) = (&service, file.service.cursor(root)) {
            service.tls.check(&cursor);
        }
        let server = file.server.read(root).unwrap_or_default();
        ServerConfig::check(file.server.cursor(root));
        let ad_hoc = file.ad_hoc.read(root).unwrap_or_default();
        let mut stores = StoreConfig::read_all(file.stores.cursor(root));
        for store in &mut stores {
            store.memory = ad_hoc.bound(store.memory);
        }
        let FailureSection { mode, timeout, envoy_timeout } = file.failure.read(root).unwrap_or_default();
        if root.has_no_value("default_limit") {
            root.reject("default_limit", "field has no value; expected a limit or `none`");
        }
        let default_limit = match file.default_limit.cursor(root).map(Cursor::rejecting_null) {
            None => defaults.default_limit,
            Some(cursor) => cursor.read::<OrNone<LimitEntry>>().and_then(|limit| limit.0?.limit(&cursor)),
        };
        let (rules, descriptors) = (file.rules.cursor(root), file.descriptors.cursor(root));
        let count = [&rules, &descriptors].into_iter().flatten().map(Cursor::item_count).sum::<usize>();
        if count > RULES_MAX {
            let message = format!("must be at most {RULES_MAX} rules and descriptors, got {count}");
            root.reject("rules", message);
        }
        let paths: PathOptions = file.paths.read(root).unwrap_or_default().into();
        let context = RuleContext { ipv6_prefix: server.ipv6_prefix, paths, stores: &stores };
        Self {
            service: service.filter(|_| file.mode == Decider::Service),
            management: file.management.read(root).unwrap_or_default(),
            catalog: file.catalog.read(root).unwrap_or_default(),
            decision_log: file.decision_log.read(root).unwrap_or_default(),
            retention: file.retention.read(root).unwrap_or_default(),
            failure_mode: mode,
            store_timeout: timeout,
            envoy_store_timeout: envoy_timeout,
            paths,
            default_limit,
            sets_default_limit: file.default_limit.cursor(root).is_some(),
            policy_dimensions: file.policies.read(root).unwrap_or_default().dimensions,
            log: file.log.read(root).unwrap_or_default(),
            traces: file.traces.read(root),
            metrics: file.metrics,
            headers: file.headers,
            envoy_headers: file.envoy.read(root).unwrap_or_default().headers,
            ad_hoc,
            plans: PlanEntry::read_all(file.plans.cursor(root)),
            rules: RuleEntry::read_all(rules, context),
            descriptors: DescriptorEntry::read_all(descriptors, &stores),
            server,
            stores,
            warnings: Vec::new(),
        }
    }

    /// Returns a limiter with these plans, rules and bounds. All stores must be in memory.
    ///
    /// # Errors
    /// [`InvalidRules`] if a store is remote or rules contradict each other. A parsed configuration
    /// has no contradictions.
    pub fn limiter(&self) -> Result<Limiter, InvalidRules> {
        let mut stores = Stores::default();
        for store in &self.stores {
            if !store.is_memory() {
                return Err(InvalidRules::NotConnected { store: store.name.clone() });
            }
            stores = stores.and_memory(&store.name, Arc::new(MemoryStore::new(store.memory)));
        }
        self.limiter_with(stores)
    }

    /// Returns a limiter with these plans and rules on connected `stores`.
    ///
    /// # Errors
    /// [`InvalidRules`] if the store of a rule is not among `stores`, or rules contradict each
    /// other.
    pub fn limiter_with(&self, stores: Stores) -> Result<Limiter, InvalidRules> {
        self.builder().stores(stores).build()
    }

    /// Returns a builder with these plans, rules, default limit and failure mode.
    pub fn builder(&self) -> LimiterBuilder {
        let policies = self.policy_dimensions.iter().map(String::as_str);
        let mut builder = Limiter::builder()
            .on_store_error(self.failure_mode)
            .policy_dimensions(policies)
            .ipv6_prefix(self.server.ipv6_prefix)
            .paths(self.paths);
        for (name, limits) in &self.plans {
            builder = builder.plan(name, limits.iter().cloned());
        }
        for rule in &self.rules {
            builder = builder.rule(rule.clone());
        }
        for rule in &self.descriptors {
            builder = builder.descriptor(rule.clone());
        }
        if let Some(limit) = self.default_limit {
            builder = builder.default_limit(limit);
        }
        builder
    }
}

/// Whether a variable with the prefix is not a value of the file.
fn is_no_setting(name: &str) -> bool {
    let of_kubernetes = |known: &&str| {
        let rest = name.strip_prefix(*known);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && !rest.starts_with("__")))
    };
    ENVIRONMENT_OTHER.contains(&name) || ENVIRONMENT_KUBERNETES.iter().any(of_kubernetes)
}

/// Overrides a value: `PACEGATE_DEFAULT_LIMIT__BURST=5` sets `default_limit.burst`. The value is
/// YAML.
fn set_from_environment(document: &mut Document, name: String, value: &str) {
    let path = name[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase();
    let place = Place::Environment(name);
    let parsed = match Node::parse(value) {
        // `memory:` is text here, although it is a map in YAML. A map needs braces.
        Ok(Node { value: Value::Map(_), .. }) if !value.trim_start().starts_with('{') => {
            Value::Text(value.to_owned())
        }
        Ok(node) => node.value,
        Err(_) => Value::Text(value.to_owned()),
    };
    if path.split("__").any(str::is_empty) {
        let message = "expected names separated by two underscores, as in PACEGATE_SERVER__HTTP";
        document.report(place, path, message);
        return;
    }
    document.root_mut().set(path.split("__"), parsed, &place);
}
