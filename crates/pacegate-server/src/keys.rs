//! A cache of the catalog's API keys, so that a check with a known key needs no query.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::Timestamp;
use pacegate_catalog::{Catalog, Revision, StoredKey};
use pacegate_config::Role;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::clock::now;
use crate::respond::ApiError;

/// Maximum number of cached keys. Only existing keys are cached, so guesses evict none.
const KEYS_MAX: usize = 10_000;
/// Maximum number of keys that are distinguished from guesses at a locked-out address.
const KEY_HASHES_MAX: u32 = 100_000;
/// Minimum time between two reads of that list.
const KEY_HASHES_FRESH_FOR: Duration = Duration::from_secs(5);
/// Time during which a cached key is used even if the catalog was changed since.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Maximum time between two lookups of a key in use, which also record its last use.
const LOOKUP_EVERY: Duration = Duration::from_secs(60);

/// The keys that this node has seen.
pub(crate) struct Keys {
    catalog: Catalog,
    /// Time during which a cached key is used while the catalog is unavailable.
    max_age: Duration,
    /// Keyed by the hash of the secret.
    entries: Cache<[u8; 32], Entry>,
    /// Increases when the catalog is changed or restored. Revisions cannot be compared: a restored
    /// catalog has lower ones.
    generation: AtomicU64,
    /// The epoch and the revision of that generation.
    seen: Mutex<(u64, i64)>,
    /// The hashes of all keys and when they were read; read only for locked-out addresses.
    all: tokio::sync::Mutex<Option<(Instant, HashSet<String>)>>,
}

/// A cached key.
#[derive(Clone, Debug)]
pub(crate) struct KnownKey {
    pub(crate) key_id: Arc<str>,
    pub(crate) role: Role,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked: bool,
}

#[derive(Clone)]
struct Entry {
    key: KnownKey,
    /// The generation before the key was read.
    generation: u64,
    loaded: Instant,
    /// When the last lookup failed, if it did.
    failed: Option<Instant>,
}

impl Keys {
    pub(crate) fn new(catalog: Catalog, max_age: Duration, revision: Revision) -> Self {
        let seen = Mutex::new((revision.epoch, revision.all));
        Self {
            catalog,
            max_age,
            entries: Cache::new(KEYS_MAX),
            generation: AtomicU64::new(0),
            seen,
            all: tokio::sync::Mutex::default(),
        }
    }

    /// Applies a new revision of the catalog.
    pub(crate) fn advance(&self, revision: Revision) {
        let now = (revision.epoch, revision.all);
        if std::mem::replace(&mut *self.seen.lock(), now) != now {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes every key stale, so that it is looked up again.
    pub(crate) fn invalidate(&self) {
        self.entries.clear();
    }

    /// Returns the key whose secret has this hash, if it is cached and fresh.
    pub(crate) fn known(&self, digest: &[u8; 32]) -> Option<KnownKey> {
        let entry = self.entries.get(digest)?;
        let unchanged = entry.generation == self.generation.load(Ordering::Relaxed);
        let fresh_for = if unchanged { LOOKUP_EVERY } else { FRESH_FOR };
        let age = entry.loaded.elapsed();
        // An unavailable catalog is not queried for every check.
        let waits = entry.failed.is_some_and(|failed| failed.elapsed() < FRESH_FOR);
        ((age < fresh_for || waits) && age < self.max_age).then_some(entry.key)
    }

    /// Returns whether a key whose secret has this hash was seen.
    pub(crate) fn has_seen(&self, digest: &[u8; 32]) -> bool {
        self.entries.get(digest).is_some()
    }

    /// Returns whether a key with this secret exists, from a list that is read every few seconds at
    /// most, so that a guess costs no query.
    pub(crate) async fn is_key(&self, secret: &[u8]) -> bool {
        let Ok(secret) = std::str::from_utf8(secret) else { return false };
        let mut all = self.all.lock().await;
        if all.as_ref().is_none_or(|(read, _)| read.elapsed() >= KEY_HASHES_FRESH_FOR) {
            // An unavailable catalog is not queried for every guess either.
            let hashes = match self.catalog.key_hashes(KEY_HASHES_MAX).await {
                Ok(hashes) => hashes,
                Err(_) => all.take().map(|(_, hashes)| hashes).unwrap_or_default(),
            };
            *all = Some((Instant::now(), hashes));
        }
        all.as_ref().is_some_and(|(_, hashes)| self.catalog.has_secret(hashes, secret))
    }

    /// Looks up a key in the catalog. While the catalog is unavailable, a cached key stays valid
    /// for a configured time, because a disconnected node does not learn which keys are revoked.
    pub(crate) async fn look_up(
        &self,
        secret: &[u8],
        digest: &[u8; 32],
    ) -> Result<Option<KnownKey>, ApiError> {
        let (generation, loaded) = (self.generation.load(Ordering::Relaxed), Instant::now());
        let Ok(secret) = std::str::from_utf8(secret) else { return Ok(None) };
        match self.catalog.key_by_secret(secret).await {
            Ok(Some(stored)) => {
                let key = KnownKey::of(&stored);
                // A key can be looked up more often than its use is recorded.
                let is_due = is_use_due(stored.last_used_at, now());
                if let Some(key) = key.as_ref().filter(|key| !key.revoked && is_due) {
                    self.record_use(key);
                }
                if let Some(key) = &key {
                    self.entries
                        .insert(*digest, Entry { key: key.clone(), generation, loaded, failed: None });
                }
                Ok(key)
            }
            Ok(None) => Ok(None),
            Err(error) => match self.stale(digest) {
                Some(key) => Ok(Some(key)),
                None => Err(error.into()),
            },
        }
    }

    /// Returns the cached key after a failed lookup, unless it is too old.
    fn stale(&self, digest: &[u8; 32]) -> Option<KnownKey> {
        let entry = self.entries.get(digest).filter(|entry| entry.loaded.elapsed() < self.max_age)?;
        let key = entry.key.clone();
        self.entries.insert(*digest, Entry { failed: Some(Instant::now()), ..entry });
        Some(key)
    }
}

impl Keys {
    /// Records the use of a key in the background, on a best-effort basis.
    fn record_use(&self, key: &KnownKey) {
        let (catalog, key_id) = (self.catalog.clone(), key.key_id.clone());
        tokio::spawn(async move {
            if let Err(error) = catalog.note_key_use(&key_id, now()).await {
                tracing::debug!(%error, "last use of a key could not be recorded");
            }
        });
    }
}

/// Whether a use of a key is recorded now, given the last recorded one: at most once a minute.
fn is_use_due(last_used: Option<Timestamp>, now: Timestamp) -> bool {
    last_used.is_none_or(|last_used| last_used.saturating_add(LOOKUP_EVERY) <= now)
}

impl KnownKey {
    fn of(stored: &StoredKey) -> Option<Self> {
        Some(Self {
            key_id: stored.key_id.as_str().into(),
            role: Role::parse(&stored.role)?,
            expires_at: stored.expires_at,
            revoked: stored.revoked_at.is_some(),
        })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keys").field("known", &self.entries.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use pacegate_catalog::Actor;

    use super::*;

    const DIGEST: [u8; 32] = [1; 32];
    const MAX_AGE: Duration = Duration::from_secs(300);

    async fn keys() -> (Keys, String) {
        let catalog = Catalog::open("sqlite::memory:").await.unwrap();
        let (_, secret) = catalog.create_key(&Actor::default(), "reader", "k", None).await.unwrap();
        (Keys::new(catalog, MAX_AGE, Revision { all: 50, ..Revision::default() }), secret)
    }

    /// Lets enough time pass that an entry is fresh by its generation only.
    async fn later() {
        tokio::time::pause();
        tokio::time::advance(FRESH_FOR * 2).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn key_changed_during_its_lookup_is_looked_up_again() {
        // The database can respond before the first poll ends; then another lookup is started.
        for _ in 0..1_000 {
            let (keys, secret) = keys().await;
            let mut lookup = pin!(keys.look_up(secret.as_bytes(), &DIGEST));
            if poll_fn(|context| Poll::Ready(lookup.as_mut().poll(context).is_pending())).await {
                keys.advance(Revision { all: 51, ..Revision::default() });
                assert!(lookup.await.unwrap().is_some());
                later().await;
                assert!(keys.known(&DIGEST).is_none());
                return;
            }
        }
        panic!("every lookup completed immediately");
    }

    #[test]
    fn key_use_is_recorded_at_most_once_a_minute() {
        let now = Timestamp::from_micros(1_000_000_000);
        let ago = |seconds: u64| Some(Timestamp::from_micros(1_000_000_000 - seconds * 1_000_000));
        for (last_used, is_due) in [(None, true), (ago(0), false), (ago(59), false), (ago(60), true)] {
            assert_eq!(is_use_due(last_used, now), is_due, "{last_used:?}");
        }
    }

    #[tokio::test]
    async fn restored_catalog_with_a_lower_revision_is_queried_again() {
        let (keys, secret) = keys().await;
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        later().await;
        assert!(keys.known(&DIGEST).is_some());
        keys.advance(Revision { all: 40, ..Revision::default() });
        assert!(keys.known(&DIGEST).is_none());
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        later().await;
        keys.advance(Revision { epoch: 1, all: 40, ..Revision::default() });
        assert!(keys.known(&DIGEST).is_none(), "the same revision in another epoch is not the same state");
    }

    #[tokio::test]
    async fn cached_key_stays_valid_for_a_while_when_the_catalog_is_unavailable() {
        let (keys, secret) = keys().await;
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        tokio::time::pause();
        tokio::time::advance(MAX_AGE - Duration::from_millis(500)).await;
        assert!(keys.known(&DIGEST).is_none(), "the catalog is queried");
        assert!(keys.stale(&DIGEST).is_some());
        assert!(keys.known(&DIGEST).is_some(), "the catalog is not queried again immediately");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(
            keys.known(&DIGEST).is_none() && keys.stale(&DIGEST).is_none(),
            "the key may be revoked by now"
        );
    }
}
