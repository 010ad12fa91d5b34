//! `stores` and `failure`: where counters are kept, and what happens while a store is unavailable.

use std::path::PathBuf;
use std::time::Duration;

use pacegate::identity::check_store;
use pacegate::{FailureMode, MemoryOptions, Stores};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::AdHocConfig;
use crate::cursor::Cursor;
use crate::value::{As, Between, SECOND, Span, Text, Word, Written, written};

const STORES_MAX: usize = 64;
const SHARDS_MAX: usize = 64;
/// Schemes of the URL of a remote store.
const SCHEMES: [&str; 6] =
    ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "mysql://", "postgres://"];
const KEYS_MAX: u64 = MemoryOptions::KEYS_MAX as u64;

/// A store that rules can refer to by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The name; `default` is the store of rules without `store`.
    pub name: String,
    /// The URL, which may contain a password; `memory:` is the memory of this process.
    pub url: String,
    /// URLs of several stores that share the identities, instead of one URL.
    pub shards: Vec<String>,
    /// The line of its URL, or the environment variable.
    pub place: String,
    /// Bounds of a store in memory.
    pub memory: MemoryOptions,
    /// Files for TLS connections.
    pub tls: StoreTls,
    /// Number of connections to each server. `None` is the default of the kind of store.
    pub connections: Option<usize>,
    /// Maximum number of new Redis keys this node creates per second. Further new keys are counted
    /// in memory.
    pub new_keys_per_second: Option<u64>,
}

/// Files for TLS connections to a server, in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreTls {
    /// Certificate authorities to trust instead of those of the operating system.
    pub ca: Option<PathBuf>,
    /// Client certificate to send to the server. Requires `key`.
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate. Requires `cert`.
    pub key: Option<PathBuf>,
}

impl StoreTls {
    pub(crate) fn check(&self, cursor: &Cursor<'_>) {
        for (field, required, is_alone) in [
            ("cert", "key", self.cert.is_some() && self.key.is_none()),
            ("key", "cert", self.key.is_some() && self.cert.is_none()),
        ] {
            let is_reported = cursor.get("tls").is_some_and(|tls| tls.is_wrong(required));
            if is_alone && !is_reported {
                cursor.reject(&format!("tls.{field}"), format!("`{field}` requires `{required}`"));
            }
        }
    }
}

impl StoreConfig {
    /// The URL of the store in this process.
    pub const MEMORY: &'static str = "memory:";

    /// Default of `new_keys_per_second` for a service whose checks need no API key.
    pub const NEW_KEYS_PER_SECOND: u64 = 10_000;

    /// Returns a store with the default bounds.
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

    /// Whether the store is in the memory of this process.
    pub fn is_memory(&self) -> bool {
        self.url == Self::MEMORY && self.shards.is_empty()
    }

    /// Returns every URL of the store.
    pub fn urls(&self) -> &[String] {
        if self.shards.is_empty() { std::slice::from_ref(&self.url) } else { &self.shards }
    }

    /// Returns the stores of the file. The default one is first.
    pub(crate) fn read_all(stores: Option<Cursor<'_>>) -> Vec<Self> {
        let mut found = vec![Self::new(Stores::DEFAULT, Self::MEMORY)];
        let Some(cursor) = stores else { return found };
        for (name, entry) in cursor.entries() {
            if let Err(invalid) = check_store(name) {
                entry.reject("", format!("store name {}", invalid.reason()));
            }
            let store = entry.read::<StoreSection>().unwrap_or_default().store(name, &entry);
            match found.iter_mut().find(|other| other.name == store.name) {
                Some(other) => *other = store,
                None => found.push(store),
            }
        }
        if found.len() > STORES_MAX {
            cursor.reject("", format!("expected at most {STORES_MAX} stores, got {}", found.len()));
        }
        found
    }
}

/// A store of counters.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// URL of the store: `memory:` (the default) or a URL that starts with `redis://`, `rediss://`,
    /// `redis+sentinel://`, `redis+cluster://`, `mysql://` or `postgres://`.
    url: Option<Text<StoreUrl>>,
    /// URLs of several remote stores that share the identities. Mutually exclusive with `url`.
    #[schemars(extend("minItems" = 1, "maxItems" = SHARDS_MAX))]
    shards: Option<Vec<Text<RemoteUrl>>>,
    /// For a store in memory: maximum number of keys. Defaults to 1000000.
    max_keys: Option<Between<1, KEYS_MAX>>,
    /// For a store in memory: maximum number of idempotency keys. Defaults to 262144.
    max_idempotency_keys: Option<Between<1, KEYS_MAX>>,
    /// For a remote store: number of connections to each server.
    connections: Option<Between<1, 64>>,
    /// For Redis: maximum number of keys with a time to live of ten seconds or more that this node
    /// creates per second. Further new keys are counted in memory. Defaults to 10000 for a service
    /// whose checks need no API key, otherwise unbounded.
    new_keys_per_second: Option<Between<1, 1_000_000_000>>,
    /// For a remote store: files for TLS connections, in PEM format.
    tls: Option<StoreTls>,
}

impl StoreSection {
    fn store(self, name: &str, cursor: &Cursor<'_>) -> StoreConfig {
        let only_for = |kind: &str, fields: &[(&str, bool)]| {
            for (field, _) in fields.iter().filter(|(_, is_set)| *is_set) {
                cursor.reject(field, format!("applies only to {kind}"));
            }
        };
        let mut store = StoreConfig::new(name, StoreConfig::MEMORY);
        let url = ["url", "shards"].iter().find_map(|field| cursor.get(field));
        store.place = url.as_ref().unwrap_or(cursor).place().to_string();
        if let Some(shards) = self.shards {
            if !(1..=SHARDS_MAX).contains(&shards.len()) {
                cursor.reject("shards", format!("expected 1 to {SHARDS_MAX} URLs, got {}", shards.len()));
            }
            if self.url.is_some() {
                cursor.reject("shards", "`url` and `shards` are mutually exclusive");
            }
            store.shards = shards.into_iter().map(|url| url.0).collect();
        }
        // The kind of store that an invalid URL is meant for is not known.
        let is_known = !cursor.is_wrong("url") && !cursor.is_wrong_inside("shards");
        store.url = self.url.map_or(store.url, |url| url.0);
        match store.is_memory() {
            _ if !is_known => {}
            true => only_for(
                "a remote store",
                &[
                    ("connections", self.connections.is_some()),
                    ("new_keys_per_second", self.new_keys_per_second.is_some()),
                    ("tls", self.tls.is_some()),
                ],
            ),
            false => only_for(
                "a store in memory",
                &[
                    ("max_keys", self.max_keys.is_some()),
                    ("max_idempotency_keys", self.max_idempotency_keys.is_some()),
                ],
            ),
        }
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        store.memory.max_keys = self.max_keys.map_or(store.memory.max_keys, |keys| number(keys.0));
        store.memory.max_idempotency_keys =
            self.max_idempotency_keys.map_or(store.memory.max_idempotency_keys, |keys| number(keys.0));
        store.connections = self.connections.map(|connections| number(connections.0));
        store.new_keys_per_second = self.new_keys_per_second.map(|keys| keys.0);
        store.tls = self.tls.unwrap_or_default();
        store.tls.check(cursor);
        store
    }
}

/// The URL of a store. Errors do not quote it, because it may contain a password.
struct StoreUrl;
/// The URL of a remote store.
struct RemoteUrl;

written! {
    StoreUrl: String, {"type": "string"}, |text| match text {
        StoreConfig::MEMORY => Ok(text.to_owned()),
        _ => RemoteUrl::parse(text).map_err(|error| error.replace("expected", "expected `memory:` or")),
    };
    RemoteUrl: String, {"type": "string"}, |text| {
        let is_known = SCHEMES.iter().any(|scheme| text.starts_with(scheme));
        let expected = || format!("expected a URL that starts with {}", SCHEMES.join(", "));
        is_known.then(|| text.to_owned()).ok_or_else(expected)
    };
}

/// What happens while a store is unavailable.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FailureSection {
    /// Whether requests are allowed (`open`), denied (`closed`) or counted in the memory of this
    /// node (`local`).
    #[serde(with = "As::<Word<FailureMode>>")]
    pub(crate) mode: FailureMode,
    /// Time after which a store that has not responded counts as unavailable.
    #[serde(with = "As::<Text<Span<1, { 10 * SECOND }>>>")]
    pub(crate) timeout: Duration,
    /// The same for requests of Envoy, which by default waits 20ms and then allows the request.
    #[serde(with = "As::<Text<Span<1, { 10 * SECOND }>>>")]
    pub(crate) envoy_timeout: Duration,
}

impl Default for FailureSection {
    fn default() -> Self {
        Self {
            mode: FailureMode::default(),
            timeout: Stores::TIMEOUT,
            envoy_timeout: Duration::from_millis(12),
        }
    }
}
