//! `stores` and `failure`: where counters are kept, and what happens while that store fails.

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
/// What the URL of a store outside this process can start with.
const SCHEMES: [&str; 6] =
    ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "mysql://", "postgres://"];
const KEYS_MAX: u64 = MemoryOptions::KEYS_MAX as u64;

/// A store that rules can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Its name; `default` for the store of rules that name none.
    pub name: String,
    /// Where it is: `memory:` for this process. It may hold a password.
    pub url: String,
    /// Instead of one URL, several that share the identities among them.
    pub shards: Vec<String>,
    /// The line it is at, or the environment variable.
    pub place: String,
    /// The bounds of a store in memory.
    pub memory: MemoryOptions,
    /// Files for encrypted connections.
    pub tls: StoreTls,
    /// How many connections there are to each server; the adapter's default unless it is set.
    pub connections: Option<usize>,
    /// How many new keys this node makes in Redis a second; further ones are counted in this
    /// process.
    pub new_keys_per_second: Option<u64>,
}

/// Files for encrypted connections, in PEM; cert and key go together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreTls {
    /// The authorities to trust instead of those of the operating system.
    pub ca: Option<PathBuf>,
    /// The certificate to show to the server.
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
}

impl StoreTls {
    pub(crate) fn check(&self, cursor: &Cursor<'_>) {
        if self.cert.is_some() != self.key.is_some() {
            cursor.refuse("tls", "cert and key go together");
        }
    }
}

impl StoreConfig {
    /// The URL of the store in this process.
    pub const MEMORY: &'static str = "memory:";

    /// How many new keys a second a service makes in Redis where checks need no API key and nothing
    /// else is configured.
    pub const NEW_KEYS_PER_SECOND: u64 = 10_000;

    /// A store with the default bounds.
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

    /// Every URL it is at.
    pub fn urls(&self) -> &[String] {
        if self.shards.is_empty() { std::slice::from_ref(&self.url) } else { &self.shards }
    }

    /// The stores of the file, of which the default one is first.
    pub(crate) fn read_all(stores: Option<Cursor<'_>>) -> Vec<Self> {
        let mut found = vec![Self::new(Stores::DEFAULT, Self::MEMORY)];
        let Some(cursor) = stores else { return found };
        for (name, entry) in cursor.entries() {
            if let Err(invalid) = check_store(name) {
                entry.refuse("", format!("the name of a store {}", invalid.reason()));
            }
            let store = entry.read::<StoreSection>().unwrap_or_default().store(name, &entry);
            match found.iter_mut().find(|other| other.name == store.name) {
                Some(other) => *other = store,
                None => found.push(store),
            }
        }
        if found.len() > STORES_MAX {
            cursor.refuse("", format!("expected at most {STORES_MAX} stores, got {}", found.len()));
        }
        found
    }
}

/// A store.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StoreSection {
    /// memory: (the default), redis://, rediss://, redis+sentinel://, redis+cluster://, mysql:// or
    /// postgres://.
    url: Option<Text<StoreUrl>>,
    /// Instead of url, several stores that share the identities.
    #[schemars(extend("minItems" = 1, "maxItems" = SHARDS_MAX))]
    shards: Option<Vec<Text<RemoteUrl>>>,
    /// For a store in memory: how many keys are kept; 1000000 unless it is set.
    max_keys: Option<Between<1, KEYS_MAX>>,
    /// For a store in memory: how many idempotency keys are kept; 262144 unless it is set.
    max_idempotency_keys: Option<Between<1, KEYS_MAX>>,
    /// For a remote store: connections to each server.
    connections: Option<Between<1, 64>>,
    /// For Redis: how many keys that live for ten seconds or more this node makes a second; further
    /// new keys are counted in this process. 10000 for a service whose checks need no key,
    /// otherwise unbounded.
    new_keys_per_second: Option<Between<1, 1_000_000_000>>,
    /// For a remote store: files for encrypted connections, in PEM; cert and key go together.
    tls: Option<StoreTls>,
}

impl StoreSection {
    fn store(self, name: &str, cursor: &Cursor<'_>) -> StoreConfig {
        let only_for = |kind: &str, fields: &[(&str, bool)]| {
            for (field, _) in fields.iter().filter(|(_, is_set)| *is_set) {
                cursor.refuse(field, format!("applies only to {kind}"));
            }
        };
        let mut store = StoreConfig::new(name, StoreConfig::MEMORY);
        store.place = cursor.place().to_string();
        if let Some(shards) = self.shards {
            if !(1..=SHARDS_MAX).contains(&shards.len()) {
                cursor.refuse("shards", format!("expected 1 to {SHARDS_MAX} URLs, got {}", shards.len()));
            }
            if self.url.is_some() {
                cursor.refuse("shards", "url and shards exclude each other");
            }
            store.shards = shards.into_iter().map(|url| url.0).collect();
        }
        // A URL that is wrong says nothing about which fields apply.
        let is_known = !cursor.is_wrong("url") && !cursor.is_wrong("shards");
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

/// The URL of a store; errors do not quote it, because it may hold a password.
struct StoreUrl;
/// The URL of a store outside this process.
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

/// What happens while a store fails.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FailureSection {
    /// Whether requests are allowed (open), denied (closed) or counted in this process (local).
    #[serde(with = "As::<Word<FailureMode>>")]
    pub(crate) mode: FailureMode,
    /// How long a store may take, 1ms to 10s.
    #[serde(with = "As::<Text<Span<1, { 10 * SECOND }>>>")]
    pub(crate) timeout: Duration,
    /// The same for Envoy's requests: Envoy waits for 20ms by default and lets requests pass then.
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
