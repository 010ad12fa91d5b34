//! The API keys of the catalog, as far as this node has seen them: what is known costs a check no query.

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

/// How many keys are kept. Only real ones are: guesses would push them out.
const KEYS_MAX: usize = 10_000;
/// How many keys are told from guesses at an address that is locked out.
const KEYS_TOLD_MAX: u32 = 100_000;
/// How often that list is read from the catalog at most.
const TOLD_FOR: Duration = Duration::from_secs(5);
/// For so long a key is believed even when something in the catalog was changed since.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// A key in use is looked up this often at least, and its use noted.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// The keys this node has seen.
pub(crate) struct Keys {
    catalog: Catalog,
    /// How long a key is believed while the catalog does not answer.
    max_age: Duration,
    /// By the hash of the secret.
    entries: Cache<[u8; 32], Entry>,
    /// Grows when the catalog was changed or restored. Revisions cannot be compared: a restored catalog has lower ones.
    generation: AtomicU64,
    /// The epoch and the revision of that generation.
    seen: Mutex<(u64, i64)>,
    /// The hashes of all keys and when they were read; only an address that is locked out has them read.
    all: tokio::sync::Mutex<Option<(Instant, HashSet<String>)>>,
}

/// What is known about a key.
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
    /// When the catalog did not answer, if that was the last time it was asked.
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

    /// Takes note of changes.
    pub(crate) fn advance(&self, revision: Revision) {
        let now = (revision.epoch, revision.all);
        if std::mem::replace(&mut *self.seen.lock(), now) != now {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every key is looked up again.
    pub(crate) fn forget(&self) {
        self.entries.clear();
    }

    /// The key with the secret of this hash, if the node has seen it a moment ago.
    pub(crate) fn known(&self, digest: &[u8; 32]) -> Option<KnownKey> {
        let entry = self.entries.get(digest)?;
        let unchanged = entry.generation == self.generation.load(Ordering::Relaxed);
        let fresh_for = if unchanged { NOTED_EVERY } else { FRESH_FOR };
        let age = entry.loaded.elapsed();
        // A catalog that does not answer is not asked for every check.
        let waits = entry.failed.is_some_and(|failed| failed.elapsed() < FRESH_FOR);
        ((age < fresh_for || waits) && age < self.max_age).then_some(entry.key)
    }

    /// Whether there was a key with the secret of this hash.
    pub(crate) fn has_seen(&self, digest: &[u8; 32]) -> bool {
        self.entries.get(digest).is_some()
    }

    /// Whether there is a key with this secret, by a list that is read every few seconds at most: a guess
    /// costs no query.
    pub(crate) async fn is_key(&self, secret: &[u8]) -> bool {
        let Ok(secret) = std::str::from_utf8(secret) else { return false };
        let mut all = self.all.lock().await;
        if all.as_ref().is_none_or(|(read, _)| read.elapsed() >= TOLD_FOR) {
            // A catalog that does not answer is not asked for every guess either.
            let hashes = match self.catalog.key_hashes(KEYS_TOLD_MAX).await {
                Ok(hashes) => hashes,
                Err(_) => all.take().map(|(_, hashes)| hashes).unwrap_or_default(),
            };
            *all = Some((Instant::now(), hashes));
        }
        all.as_ref().is_some_and(|(_, hashes)| self.catalog.has_secret(hashes, secret))
    }

    /// Asks the catalog. While it does not answer, what was known last holds for as long as the configuration says: a node that
    /// is cut off does not learn which keys are revoked.
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
                if let Some(key) = key.as_ref().filter(|key| !key.revoked) {
                    self.note_use(key);
                }
                if let Some(key) = &key {
                    self.entries
                        .insert(*digest, Entry { key: key.clone(), generation, loaded, failed: None });
                }
                Ok(key)
            }
            Ok(None) => Ok(None),
            Err(error) => match self.believed(digest) {
                Some(key) => Ok(Some(key)),
                None => Err(error.into()),
            },
        }
    }

    /// The key as it was known last, for a catalog that has just not answered.
    fn believed(&self, digest: &[u8; 32]) -> Option<KnownKey> {
        let entry = self.entries.get(digest).filter(|entry| entry.loaded.elapsed() < self.max_age)?;
        let key = entry.key.clone();
        self.entries.insert(*digest, Entry { failed: Some(Instant::now()), ..entry });
        Some(key)
    }
}

impl Keys {
    /// Nobody waits for it, and it does not matter much if it is lost.
    fn note_use(&self, key: &KnownKey) {
        let (catalog, key_id) = (self.catalog.clone(), key.key_id.clone());
        tokio::spawn(async move {
            if let Err(error) = catalog.note_key_use(&key_id, now()).await {
                tracing::debug!(%error, "the use of a key could not be noted");
            }
        });
    }
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

    /// Lets so much time pass that only the generation makes an entry believed.
    async fn later() {
        tokio::time::pause();
        tokio::time::advance(FRESH_FOR * 2).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn key_changed_during_its_lookup_is_looked_up_again() {
        // The database's thread can answer before the first poll ends; then another lookup is begun.
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
        panic!("every lookup was answered at once");
    }

    #[tokio::test]
    async fn restored_catalog_with_a_lower_revision_is_asked_again() {
        let (keys, secret) = keys().await;
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        later().await;
        assert!(keys.known(&DIGEST).is_some());
        keys.advance(Revision { all: 40, ..Revision::default() });
        assert!(keys.known(&DIGEST).is_none());
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        later().await;
        keys.advance(Revision { epoch: 1, all: 40, ..Revision::default() });
        assert!(keys.known(&DIGEST).is_none(), "the same number in another history");
    }

    #[tokio::test]
    async fn key_is_believed_for_a_while_when_the_catalog_does_not_answer() {
        let (keys, secret) = keys().await;
        keys.look_up(secret.as_bytes(), &DIGEST).await.unwrap().unwrap();
        tokio::time::pause();
        tokio::time::advance(MAX_AGE - Duration::from_millis(500)).await;
        assert!(keys.known(&DIGEST).is_none(), "the catalog is asked");
        assert!(keys.believed(&DIGEST).is_some());
        assert!(keys.known(&DIGEST).is_some(), "and not asked again at once");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(keys.known(&DIGEST).is_none() && keys.believed(&DIGEST).is_none(), "it may be revoked");
    }
}
