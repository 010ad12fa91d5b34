//! The configuration of the service, of embedding programs and of tools: one YAML file.
//!
//! Every value can be overridden by the environment, and all errors are reported at once, each with
//! its line and path.
//!
//! ```
//! use pacegate::Check;
//! use pacegate_config::Config;
//!
//! let config = Config::parse(
//!     r#"
//! rules:
//!   - {name: per-user-minute, dimension: user, endpoint: "/api/{*rest}", algorithm: sliding_counter, limit: 100, window: 60s}
//! "#,
//! )?;
//! let limiter = config.limiter()?;
//! let decision = limiter.check_now(&Check::new("user", "u1").endpoint("/api/orders"))?;
//! assert_eq!(decision.remaining(), Some(99));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It connects to nothing: `pacegate-connect` opens the stores that a configuration names.

mod descriptors;
mod node;
mod read;
mod reader;
mod server;
mod stores;
mod telemetry;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use pacegate::identity::{IPV6_PREFIX, POLICY_DIMENSIONS};
use pacegate::{
    DescriptorRule, FailureMode, InvalidRules, Limit, Limiter, LimiterBuilder, MemoryOptions, MemoryStore,
    PathOptions, PlanLimit, Rule, Stores,
};
use pacegate_core::named;
use pacegate_http::{Bounds, CertificateName, HeaderFamily, TlsFiles};
use thiserror::Error;

use node::{Node, Place};
use reader::Mistakes;
pub use telemetry::{LogConfig, LogFormat, LoggedDecisions, LoggedKeys, TracesConfig};

/// Reads YAML with every mistake collected at its line: what the configuration is read with, for tools that read other files.
///
/// ```
/// use pacegate::reading::{Field, Fields, Mistakes};
///
/// let mut mistakes = Mistakes::default();
/// let document = Field::parse("limit: ten\nwindow: 1s\n", &mut mistakes);
/// if let Some(mut fields) = document.and_then(|field| Fields::new(field, &mut mistakes)) {
///     fields.require("limit", &mut mistakes).and_then(|field| field.number(&mut mistakes));
///     fields.finish(&mut mistakes);
/// }
/// let errors = mistakes.finish().unwrap_err().to_string();
/// assert_eq!(errors, "line 1: limit: must be a whole number, not text\nline 2: window: unknown field; known are limit");
/// ```
pub mod reading {
    pub use crate::reader::{Field, Fields, Mistakes};
}

/// The start of the names of environment variables that override a value: `PACEGATE_SERVER__HTTP` is `server.http`.
const ENVIRONMENT_PREFIX: &str = "PACEGATE_";
/// Read elsewhere, or not a value of the file.
const ENVIRONMENT_OTHER: [&str; 2] = ["PACEGATE_ADMIN_KEY", "PACEGATE_API_KEY"];
/// What Kubernetes sets in every pod beside a service called `pacegate`; none of it can be a value of the file, whose levels have two underscores
/// between them.
const ENVIRONMENT_KUBERNETES: [&str; 3] = ["PACEGATE_PORT", "PACEGATE_SERVICE_HOST", "PACEGATE_SERVICE_PORT"];

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// The service that decides, for a program in the mode `service`; in the mode `embedded` it decides itself.
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
    /// The same for Envoy's requests: Envoy waits for 20 ms unless it is told otherwise, and lets requests pass then.
    pub envoy_store_timeout: Duration,
    /// How the spellings of a path are compared.
    pub paths: PathOptions,
    /// What applies where no rule does.
    pub default_limit: Option<Limit>,
    /// The dimensions whose identifiers are keys of policies, beside `key`.
    pub policy_dimensions: Vec<String>,
    /// How the service logs.
    pub log: LogConfig,
    /// Where traces go, if they do.
    pub traces: Option<TracesConfig>,
    /// Whether checks are measured, and `GET /metrics` answers.
    pub metrics: bool,
    /// Which families of headers go with an answer.
    pub headers: Vec<HeaderFamily>,
    /// The same for answers to Envoy, which can write `X-RateLimit` headers of its own; as `headers`
    /// unless it is set.
    pub envoy_headers: Option<Vec<HeaderFamily>>,
    /// What limits requests may bring along.
    pub ad_hoc: AdHocConfig,
    /// Named lists of limits.
    pub plans: Vec<(String, Vec<PlanLimit>)>,
    /// Who is limited where.
    pub rules: Vec<Rule>,
    /// What descriptors are limited to.
    pub descriptors: Vec<DescriptorRule>,
}

/// How the service listens, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address of the REST API.
    pub http: SocketAddr,
    /// The address of the gRPC services; `None` for none.
    pub grpc: Option<SocketAddr>,
    /// A second address of the REST API, for health checks and operators, whose connections have places of their own; `None` for none.
    pub admin: Option<SocketAddr>,
    /// How connections are encrypted, to all addresses; not at all unless it is set.
    pub tls: Option<TlsConfig>,
    /// Who may use admin operations, by address; nobody is excluded when it is empty.
    pub admin_allow: Vec<IpNet>,
    /// The proxies whose `X-Forwarded-For` is believed; nobody's is when it is empty.
    pub trusted_proxies: Vec<IpNet>,
    /// By how many bits IPv6 addresses are counted, in the dimension `ip`.
    pub ipv6_prefix: u8,
    /// Whether checks need an API key too.
    pub require_key: bool,
    /// How many connections are served at once; more wait in the operating system's queue.
    pub max_connections: usize,
    /// How many of them one client address can have, an IPv6 network of 64 bits being one address; those of `trusted_proxies` are
    /// not counted. See [`Bounds::connections_per_address`].
    pub max_connections_per_address: Option<usize>,
    /// How many requests one connection can have under way at once, where it can have several.
    pub max_streams: usize,
    /// How many checks this node decides a second at most; `None` for any number. Further ones are refused at once. A batch counts the
    /// identities of its checks.
    pub max_checks_per_second: Option<u64>,
    /// How many bytes the bodies of requests under way may take together. Further ones are refused.
    pub max_request_memory: usize,
    /// How long a client may take to send a request's head, or to stay idle.
    pub idle_timeout: Duration,
    /// How long a client may take to send a body, and the service to answer.
    pub request_timeout: Duration,
    /// For how long a service that is told to stop says that it is not ready, and serves on: long enough for load balancers to turn away.
    pub drain_delay: Duration,
}

impl ServerConfig {
    /// Returns what bounds the connections of its listeners.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
            trusted_proxies: self.trusted_proxies.clone(),
            max_streams: self.max_streams,
            idle_timeout: self.idle_timeout,
            request_timeout: self.request_timeout,
        }
    }
}

/// How connections are encrypted, with files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate, its key, and what clients' certificates are checked with.
    pub files: TlsFiles,
    /// What clients may do without an API key, by a name in their certificate.
    pub identities: Vec<(CertificateName, Role)>,
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// See limits, rules, users, keys and logs.
    Reader,
    /// Check requests, and see how limits stand.
    Checker,
}

named!(Role { Admin => "admin", Reader => "reader", Checker => "checker" });

/// A service that decides for an embedding program.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// The address of its gRPC interface: `http://` or `https://`.
    pub url: String,
    /// The API key to show to it.
    pub key: Option<String>,
    /// Files for encrypted connections.
    pub tls: StoreTls,
}

/// The shortest audit key, in bytes.
pub const AUDIT_KEY_LENGTH_MIN: usize = 32;

/// The database of rules, users, keys and the audit trail.
#[derive(Clone, PartialEq, Eq)]
pub struct CatalogConfig {
    /// `sqlite://`, `postgres://` or `mysql://`. It may hold a password.
    pub url: String,
    /// The secret that the audit trail is keyed with; kept beside or in the database without one.
    pub audit_key: Option<String>,
    /// How long an API key that was looked up is accepted while the database does not answer.
    pub key_max_age: Duration,
}

impl fmt::Debug for CatalogConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither a password nor the key.
        formatter.debug_struct("CatalogConfig").finish_non_exhaustive()
    }
}

impl fmt::Debug for ServiceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        formatter.debug_struct("ServiceConfig").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What limits requests may bring along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdHocConfig {
    /// Whose requests may.
    pub allow: AdHocCallers,
    /// The longest window.
    pub max_window: Duration,
    /// How many counters a store in memory keeps for them; a tenth of its keys unless it is set.
    pub max_keys: Option<usize>,
}

/// Whose requests may bring limits along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdHocCallers {
    /// All.
    Always,
    /// Those with an API key, or a certificate with a role.
    WithKey,
    /// None.
    Never,
}

named!(AdHocCallers { Always => "always", WithKey => "with_key", Never => "never" });

impl Default for AdHocConfig {
    fn default() -> Self {
        Self { allow: AdHocCallers::Always, max_window: DAY, max_keys: None }
    }
}

impl AdHocConfig {
    /// The bounds of a store in memory with these limits.
    pub fn bound(&self, memory: MemoryOptions) -> MemoryOptions {
        memory.with_ad_hoc_keys(self.max_keys)
    }
}

/// How often each key may use the management API; the service limits itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementConfig {
    /// Requests that change nothing.
    pub reads_per_minute: u64,
    /// Requests that change something.
    pub writes_per_minute: u64,
}

/// Which decisions are kept in the catalog.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecisionLogConfig {
    /// Which share of the requests that passed, from 0 to 1.
    pub allowed: f64,
    /// Which share of those that did not.
    pub denied: f64,
    /// No node keeps more than this; the others are counted as dropped.
    pub rows_per_second: u64,
    /// How many wait to be written; beyond that they are dropped.
    pub queue: usize,
}

/// How long the catalog keeps what is not configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// The audit trail.
    pub audit: Duration,
    /// The decision log.
    pub decisions: Duration,
    /// Usage by the minute.
    pub usage_minutes: Duration,
    /// Usage by the hour.
    pub usage_hours: Duration,
    /// How many rows of usage there are at most, whatever their age.
    pub usage_rows: u64,
}

/// A store that rules can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Its name; `default` for the one that everything else is counted in.
    pub name: String,
    /// Where it is: `memory:` for this process. It may hold a password.
    pub url: String,
    /// Instead of one place, several that share the identities among them.
    pub shards: Vec<String>,
    /// The line it is at, or the environment variable.
    pub place: String,
    /// The bounds of a store in memory.
    pub memory: MemoryOptions,
    /// Files for encrypted connections.
    pub tls: StoreTls,
    /// How many connections there are to each server; the adapter's own choice unless it is set.
    pub connections: Option<usize>,
    /// How many new keys this node makes in Redis a second; further ones are counted in this process.
    pub new_keys_per_second: Option<u64>,
}

/// Files for encrypted connections to a store, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// Whom to trust instead of the authorities of the operating system.
    pub ca: Option<PathBuf>,
    /// The certificate to show to the server.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

impl StoreConfig {
    /// The url of the store in this process.
    pub const MEMORY: &'static str = "memory:";

    /// How many new keys a second a service makes in Redis where checks need no API key and nothing else is configured.
    pub const NEW_KEYS_PER_SECOND: u64 = 10_000;

    /// A store with the usual bounds.
    pub fn new(name: &str, url: &str) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            shards: Vec::new(),
            place: String::new(),
            memory: AdHocConfig::default().bound(MemoryOptions::default()),
            tls: StoreTls::default(),
            connections: None,
            new_keys_per_second: None,
        }
    }

    /// Whether it is in this process.
    pub fn is_memory(&self) -> bool {
        self.url == Self::MEMORY && self.shards.is_empty()
    }

    /// Every place it is at.
    pub fn urls(&self) -> &[String] {
        if self.shards.is_empty() { std::slice::from_ref(&self.url) } else { &self.shards }
    }
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line, or the environment variable.
    pub place: String,
    /// Which value, like `rules[2].window`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(formatter, "{}: {}", self.place, self.message)
        } else {
            write!(formatter, "{}: {}: {}", self.place, self.path, self.message)
        }
    }
}

/// All mistakes in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        let default_limit = Limit::per_second(10).and_then(|limit| limit.with_burst(100));
        Self {
            service: None,
            server: ServerConfig {
                http: SocketAddr::from(([127, 0, 0, 1], 8080)),
                grpc: Some(SocketAddr::from(([127, 0, 0, 1], 8081))),
                admin: None,
                tls: None,
                admin_allow: Vec::new(),
                trusted_proxies: Vec::new(),
                ipv6_prefix: IPV6_PREFIX,
                require_key: false,
                max_connections: 10_000,
                max_connections_per_address: None,
                max_streams: 128,
                max_checks_per_second: None,
                max_request_memory: 64 * 1024 * 1024,
                idle_timeout: Duration::from_secs(30),
                request_timeout: Duration::from_secs(10),
                drain_delay: Duration::from_secs(1),
            },
            management: ManagementConfig { reads_per_minute: 1_000, writes_per_minute: 100 },
            stores: vec![StoreConfig::new(Stores::DEFAULT, StoreConfig::MEMORY)],
            catalog: CatalogConfig {
                url: "sqlite://pacegate.db".into(),
                audit_key: None,
                key_max_age: Duration::from_secs(300),
            },
            decision_log: DecisionLogConfig { allowed: 1.0, denied: 1.0, rows_per_second: 10, queue: 10_000 },
            retention: RetentionConfig {
                audit: DAY * 90,
                decisions: DAY * 90,
                usage_minutes: DAY * 30,
                usage_hours: DAY * 365,
                usage_rows: 20_000_000,
            },
            failure_mode: FailureMode::default(),
            store_timeout: Stores::TIMEOUT,
            envoy_store_timeout: Duration::from_millis(12),
            paths: PathOptions::default(),
            default_limit: default_limit.ok(),
            policy_dimensions: POLICY_DIMENSIONS.map(Into::into).to_vec(),
            log: LogConfig::default(),
            traces: None,
            metrics: true,
            headers: vec![HeaderFamily::XRateLimit, HeaderFamily::Ietf],
            envoy_headers: None,
            ad_hoc: AdHocConfig::default(),
            plans: Vec::new(),
            rules: Vec::new(),
            descriptors: Vec::new(),
        }
    }
}

impl Config {
    /// The JSON Schema of the file, for editors that complete and check it as it is written.
    pub const SCHEMA: &'static str = include_str!("schema.json");

    /// Reads a configuration from YAML.
    ///
    /// # Errors
    /// Every mistake in it, each with its line and path.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with_environment(text, std::iter::empty())
    }

    /// Reads a configuration from YAML and lets variables like `PACEGATE_SERVER__HTTP` override its values.
    ///
    /// # Errors
    /// Every mistake in either of them.
    pub fn parse_with_environment(
        text: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut mistakes = Mistakes::default();
        let mut root = Node::parse(text).unwrap_or_else(|(line, message)| {
            mistakes.add(&Place::Line(line), "", message);
            Node::new(Place::Line(1), node::Value::Null)
        });
        let mut overrides: Vec<(String, String)> = environment
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX) && !is_no_setting(name))
            .collect();
        overrides.sort();
        for (name, value) in overrides {
            set_from_environment(&mut root, name, &value, &mut mistakes);
        }
        let config = read::read_config(root, &mut mistakes);
        mistakes.finish().map(|()| config)
    }

    /// Reads a file, and the environment of this process.
    ///
    /// # Errors
    /// Every mistake, or that the file could not be read.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigErrors> {
        let text = match path {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                let place = path.display().to_string();
                ConfigErrors(vec![ConfigError { place, path: String::new(), message: error.to_string() }])
            })?,
        };
        // A value that is not text cannot be meant for us.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::parse_with_environment(&text, environment)
    }

    /// A limiter with these plans, rules and bounds, for a configuration whose stores are all in memory.
    ///
    /// # Errors
    /// [`InvalidRules`] when a store is elsewhere, or the rules contradict each other; a configuration that was parsed has been checked for that.
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

    /// A limiter with these plans and rules on `stores`, which somebody connected to.
    ///
    /// # Errors
    /// [`InvalidRules`] when a rule names a store that is not among them, or the rules contradict each other.
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

/// Whether a variable with our prefix is for somebody else.
fn is_no_setting(name: &str) -> bool {
    let of_kubernetes = |known: &&str| {
        let rest = name.strip_prefix(*known);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('_') && !rest.starts_with("__")))
    };
    ENVIRONMENT_OTHER.contains(&name) || ENVIRONMENT_KUBERNETES.iter().any(of_kubernetes)
}

/// `PACEGATE_DEFAULT_LIMIT__BURST=5` sets `default_limit.burst`; the value is read as YAML.
fn set_from_environment(root: &mut Node, name: String, value: &str, mistakes: &mut Mistakes) {
    let path = name[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase();
    let place = Place::Environment(name);
    let parsed = match Node::parse(value) {
        // `0.0.0.0:8080` and `memory:` are text whatever YAML thinks of them; a map has braces.
        Ok(Node { value: node::Value::Map(_), .. }) if !value.trim_start().starts_with('{') => {
            node::Value::Text(value.to_owned())
        }
        Ok(node) => node.value,
        Err(_) => node::Value::Text(value.to_owned()),
    };
    if path.split("__").any(str::is_empty) {
        mistakes.add(
            &place,
            &path,
            "names no value; put two underscores between levels, like PACEGATE_SERVER__HTTP",
        );
        return;
    }
    root.set(path.split("__"), parsed, &place);
}
