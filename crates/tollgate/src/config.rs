//! The configuration file: YAML, every value overridable by the environment, all mistakes reported at once.

mod node;
mod read;
mod reader;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use thiserror::Error;
use tollgate_core::Limit;
use tollgate_memory::{MemoryOptions, MemoryStore};

use crate::error::InvalidRules;
use crate::limiter::Limiter;
use crate::rule::Rule;
use node::{Node, Place};
use reader::Mistakes;

/// The start of the names of environment variables that override a value: `TOLLGATE_SERVER__HTTP` is `server.http`.
const ENVIRONMENT_PREFIX: &str = "TOLLGATE_";
/// Read elsewhere, or not a value of the file.
const ENVIRONMENT_OTHER: [&str; 1] = ["TOLLGATE_ADMIN_KEY"];

/// Everything that can be configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// How the service listens.
    pub server: ServerConfig,
    /// The bounds of the counters in memory.
    pub memory: MemoryOptions,
    /// What applies where no rule does.
    pub default_limit: Option<Limit>,
    /// How the service logs.
    pub log_format: LogFormat,
    /// The least important lines that are logged: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: &'static str,
    /// Which families of headers go with an answer.
    pub headers: Vec<HeaderFamily>,
    /// Named lists of limits.
    pub plans: Vec<(String, Vec<Limit>)>,
    /// Who is limited where.
    pub rules: Vec<Rule>,
}

/// How the service listens, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address of the REST API.
    pub http: SocketAddr,
    /// Who may use admin operations, by address; nobody is excluded when it is empty.
    pub admin_allow: Vec<IpNet>,
    /// How many connections are served at once; more wait in the operating system's queue.
    pub max_connections: usize,
    /// How long a client may take to send a request's head, or to stay idle.
    pub idle_timeout: Duration,
    /// How long a client may take to send a body, and the service to answer.
    pub request_timeout: Duration,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines: one JSON object a line.
    Json,
}

/// A family of headers that tell a client about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFamily {
    /// `X-RateLimit-Limit` and its kin.
    XRateLimit,
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-10.
    Ietf,
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
            server: ServerConfig {
                http: SocketAddr::from(([127, 0, 0, 1], 8080)),
                admin_allow: Vec::new(),
                max_connections: 10_000,
                idle_timeout: Duration::from_secs(30),
                request_timeout: Duration::from_secs(10),
            },
            memory: MemoryOptions::default(),
            default_limit: default_limit.ok(),
            log_format: LogFormat::Pretty,
            log_level: "info",
            headers: vec![HeaderFamily::XRateLimit, HeaderFamily::Ietf],
            plans: Vec::new(),
            rules: Vec::new(),
        }
    }
}

impl Config {
    /// Reads a configuration from YAML.
    ///
    /// # Errors
    /// Every mistake in it, each with its line and path.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with_environment(text, std::iter::empty())
    }

    /// Reads a configuration from YAML and lets variables like `TOLLGATE_SERVER__HTTP` override its values.
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
            Node { place: Place::Line(1), value: node::Value::Null }
        });
        let mut overrides: Vec<(String, String)> = environment
            .filter(|(name, _)| {
                name.starts_with(ENVIRONMENT_PREFIX) && !ENVIRONMENT_OTHER.contains(&name.as_str())
            })
            .collect();
        overrides.sort();
        for (name, value) in overrides {
            set_from_environment(&mut root, name, &value, &mut mistakes);
        }
        let config = read::read_config(root, &mut mistakes);
        if mistakes.0.is_empty() { Ok(config) } else { Err(ConfigErrors(mistakes.0)) }
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

    /// A limiter with these plans, rules and bounds, and its counters in memory.
    ///
    /// # Errors
    /// [`InvalidRules`] when the rules contradict each other; a configuration that was parsed has been checked for that.
    pub fn limiter(&self) -> Result<Limiter, InvalidRules> {
        self.limiter_on(Arc::new(MemoryStore::new(self.memory)))
    }

    /// A limiter with these plans and rules, and its counters in `store`.
    ///
    /// # Errors
    /// As [`limiter`](Self::limiter).
    pub fn limiter_on(&self, store: Arc<MemoryStore>) -> Result<Limiter, InvalidRules> {
        let mut builder = Limiter::builder().memory(store);
        for (name, limits) in &self.plans {
            builder = builder.plan(name, limits.iter().copied());
        }
        for rule in &self.rules {
            builder = builder.rule(rule.clone());
        }
        if let Some(limit) = self.default_limit {
            builder = builder.default_limit(limit);
        }
        builder.build()
    }
}

/// `TOLLGATE_DEFAULT_LIMIT__BURST=5` sets `default_limit.burst`; the value is read as YAML.
fn set_from_environment(root: &mut Node, name: String, value: &str, mistakes: &mut Mistakes) {
    let path = name[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase();
    let place = Place::Environment(name);
    let parsed = match Node::parse(value) {
        Ok(node) => node.value,
        // `0.0.0.0:8080` and the like are text whatever YAML thinks of them.
        Err(_) => node::Value::Text(value.to_owned()),
    };
    if path.split("__").any(str::is_empty) {
        mistakes.add(
            &place,
            &path,
            "names no value; put two underscores between levels, like TOLLGATE_SERVER__HTTP",
        );
        return;
    }
    root.set(path.split("__"), parsed, &place);
}
