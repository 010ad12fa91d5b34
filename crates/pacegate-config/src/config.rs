//! The configuration as a whole: read from a file and the environment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    FailureMode, InvalidRules, Limit, Limiter, LimiterBuilder, MemoryStore, PathOptions, PlanLimit, Rule,
    Stores, descriptor::DescriptorRule,
};
use pacegate_http::HeaderFamily;

use crate::cursor::{Cursor, Document};
use crate::descriptor::DescriptorEntry;
use crate::file::{self, Decider, File, PoliciesSection};
use crate::node::{Node, Place, Value};
use crate::rule::{LimitEntry, PlanEntry, RuleEntry};
use crate::store::FailureSection;
use crate::value::OrNone;
use crate::{
    AdHocConfig, CatalogConfig, ConfigError, ConfigErrors, DecisionLogConfig, LogConfig, ManagementConfig,
    RetentionConfig, ServerConfig, ServiceConfig, StoreConfig, TracesConfig,
};

/// The prefix of environment variables that override a value: `PACEGATE_SERVER__HTTP` is
/// `server.http`.
const ENVIRONMENT_PREFIX: &str = "PACEGATE_";
/// Variables of the program that are not values of the file.
const ENVIRONMENT_OTHER: [&str; 3] = ["PACEGATE_ADMIN_KEY", "PACEGATE_API_KEY", "PACEGATE_COMMIT"];
/// What Kubernetes sets in every pod beside a service called `pacegate`; none of it can be a value
/// of the file, whose levels have two underscores between them.
const ENVIRONMENT_KUBERNETES: [&str; 3] = ["PACEGATE_PORT", "PACEGATE_SERVICE_HOST", "PACEGATE_SERVICE_PORT"];

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// The service that decides, for a program in the mode `service`; in the mode `embedded` the
    /// program decides itself.
    pub service: Option<ServiceConfig>,
    /// How the service listens.
    pub server: ServerConfig,
    /// How often the service can be managed.
    pub management: ManagementConfig,
    /// Where counters are kept; the first is the default one.
    pub stores: Vec<StoreConfig>,
    /// Where rules, users and the audit trail are kept.
    pub catalog: CatalogConfig,
    /// Which decisions are kept in the catalog.
    pub decision_log: DecisionLogConfig,
    /// How long the catalog keeps what is not configuration.
    pub retention: RetentionConfig,
    /// What happens while a store fails, for rules that do not say.
    pub failure_mode: FailureMode,
    /// How long a store may take before it counts as failed.
    pub store_timeout: Duration,
    /// The same for Envoy's requests: Envoy waits for 20 ms by default and lets requests pass then.
    pub envoy_store_timeout: Duration,
    /// How the spellings of a path are compared.
    pub paths: PathOptions,
    /// The limit where no rule applies.
    pub default_limit: Option<Limit>,
    /// The dimensions whose identifiers are keys of policies, beside `key`.
    pub policy_dimensions: Vec<String>,
    /// How the service logs.
    pub log: LogConfig,
    /// Where traces are sent, if they are.
    pub traces: Option<TracesConfig>,
    /// Whether checks are measured, and `GET /metrics` answers.
    pub metrics: bool,
    /// Which families of headers are sent with an answer.
    pub headers: Vec<HeaderFamily>,
    /// The same for answers to Envoy, which can write `X-RateLimit` headers of its own; as
    /// `headers` unless it is set.
    pub envoy_headers: Option<Vec<HeaderFamily>>,
    /// Which ad-hoc limits requests may send.
    pub ad_hoc: AdHocConfig,
    /// Named lists of limits.
    pub plans: Vec<(String, Vec<PlanLimit>)>,
    /// Who is limited where.
    pub rules: Vec<Rule>,
    /// Limits on descriptors.
    pub descriptors: Vec<DescriptorRule>,
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
        }
    }
}

impl Config {
    /// The JSON Schema of the file, for editors that complete and check it. It is derived from the
    /// types that the file is read with.
    pub fn schema() -> String {
        file::schema()
    }

    /// Reads a configuration from YAML.
    ///
    /// # Errors
    /// Every error in it, each with its line and path.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with_environment(text, std::iter::empty())
    }

    /// Reads a configuration from YAML, whose values variables such as `PACEGATE_SERVER__HTTP`
    /// override.
    ///
    /// # Errors
    /// Every error in either of them.
    pub fn parse_with_environment(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut document = Document::parse(text);
        let mut overrides: Vec<(String, String)> = environment
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX) && !is_no_setting(name))
            .collect();
        overrides.sort();
        for (name, value) in overrides {
            set_from_environment(&mut document, name, &value);
        }
        let config = Self::read(&document.root());
        document.finish().map(|()| config)
    }

    /// Reads a file, and the environment of this process.
    ///
    /// # Errors
    /// Every error, or that the file could not be read.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        let text = match path {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                let place = path.display().to_string();
                ConfigErrors(vec![ConfigError { place, path: String::new(), message: error.to_string() }])
            })?,
        };
        // A value that is not text cannot be a setting.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::parse_with_environment(&text, environment)
    }

    fn read(root: &Cursor<'_>) -> Self {
        let file: File = root.read().unwrap_or_default();
        let defaults = Self::default();
        let service = file.service.read(root);
        if file.mode == Decider::Service && service.is_none() && !root.is_wrong("service") {
            root.refuse("mode", "needs service.url, the service to ask");
        }
        if let (Some(service), Some(cursor)) = (&service, file.service.cursor(root)) {
            service.tls.check(&cursor);
        }
        let server = file.server.read(root).unwrap_or_default();
        server.check(root);
        let ad_hoc = file.ad_hoc.read(root).unwrap_or_default();
        let mut stores = StoreConfig::read_all(file.stores.cursor(root));
        for store in &mut stores {
            store.memory = ad_hoc.bound(store.memory);
        }
        let FailureSection { mode, timeout, envoy_timeout } = file.failure.read(root).unwrap_or_default();
        if root.has_no_value("default_limit") {
            root.refuse("default_limit", "has no value; expected a limit or none");
        }
        let default_limit = match file.default_limit.cursor(root).map(Cursor::rejecting_null) {
            None => defaults.default_limit,
            Some(cursor) => cursor.read::<OrNone<LimitEntry>>().and_then(|limit| limit.0?.limit(&cursor)),
        };
        Self {
            service: service.filter(|_| file.mode == Decider::Service),
            management: file.management.read(root).unwrap_or_default(),
            catalog: file.catalog.read(root).unwrap_or_default(),
            decision_log: file.decision_log.read(root).unwrap_or_default(),
            retention: file.retention.read(root).unwrap_or_default(),
            failure_mode: mode,
            store_timeout: timeout,
            envoy_store_timeout: envoy_timeout,
            paths: file.paths.read(root).unwrap_or_default().into(),
            default_limit,
            policy_dimensions: file.policies.read(root).unwrap_or_default().dimensions,
            log: file.log.read(root).unwrap_or_default(),
            traces: file.traces.read(root),
            metrics: file.metrics,
            headers: file.headers,
            envoy_headers: file.envoy.read(root).unwrap_or_default().headers,
            ad_hoc,
            plans: PlanEntry::read_all(file.plans.cursor(root)),
            rules: RuleEntry::read_all(file.rules.cursor(root), server.ipv6_prefix, &stores),
            descriptors: DescriptorEntry::read_all(file.descriptors.cursor(root), &stores),
            server,
            stores,
        }
    }

    /// A limiter with these plans, rules and bounds, for a configuration whose stores are all in
    /// memory.
    ///
    /// # Errors
    /// [`InvalidRules`] when a store is remote, or the rules contradict each other; a configuration
    /// that was parsed has been checked for that.
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

    /// A limiter with these plans and rules on `stores`, which are connected.
    ///
    /// # Errors
    /// [`InvalidRules`] when a rule names a store that is not among them, or the rules contradict
    /// each other.
    pub fn limiter_with(&self, stores: Stores) -> Result<Limiter, InvalidRules> {
        self.builder().stores(stores).build()
    }

    /// These plans, rules, default limit and failure mode, to add others to.
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

/// Whether a variable with our prefix is not a value of the file.
fn is_no_setting(name: &str) -> bool {
    let of_kubernetes = |known: &&str| {
        let rest = name.strip_prefix(*known);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && !rest.starts_with("__")))
    };
    ENVIRONMENT_OTHER.contains(&name) || ENVIRONMENT_KUBERNETES.iter().any(of_kubernetes)
}

/// `PACEGATE_DEFAULT_LIMIT__BURST=5` sets `default_limit.burst`; the value is read as YAML.
fn set_from_environment(document: &mut Document, name: String, value: &str) {
    let path = name[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase();
    let place = Place::Environment(name);
    let parsed = match Node::parse(value) {
        // `0.0.0.0:8080` and `memory:` are text whatever YAML thinks of them; a map has braces.
        Ok(Node { value: Value::Map(_), .. }) if !value.trim_start().starts_with('{') => {
            Value::Text(value.to_owned())
        }
        Ok(node) => node.value,
        Err(_) => Value::Text(value.to_owned()),
    };
    if path.split("__").any(str::is_empty) {
        let message = "names no value; put two underscores between levels, as in PACEGATE_SERVER__HTTP";
        document.report(place, path, message);
        return;
    }
    document.root_mut().set(path.split("__"), parsed, &place);
}
