//! What is known about users, in a bounded cache: millions of them stay in the catalog.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pacegate::{Clock, Profile, Timestamp, WallClock};
use pacegate_catalog::{Catalog, Revision};
use quick_cache::sync::Cache;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// How many users are kept.
const USERS_MAX: usize = 100_000;
/// For so long an entry is believed even when some user was changed since, so that frequent changes do not make every check a query.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// A check does not wait longer for the catalog, which may have to connect first.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(250);
/// After a lookup that failed, checks do without one for so long, instead of each waiting in vain.
const PAUSE: Duration = Duration::from_secs(1);
/// How many lookups of different users can run at once, roughly.
const LANES: usize = 64;

/// The profiles of users, as the catalog has them or had them a second ago.
pub(crate) struct Profiles {
    catalog: Catalog,
    entries: Cache<Box<str>, Entry>,
    /// One lookup per user at a time: the others wait for its result.
    lanes: Vec<Mutex<()>>,
    hasher: std::hash::RandomState,
    /// When users were changed last, as far as this node knows; 0 while there has never been one.
    revision: AtomicI64,
    /// When a lookup failed last, while they fail.
    failed: parking_lot::Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct Entry {
    profile: Arc<Profile>,
    /// What was known of the catalog's revision before the profile was read.
    revision: i64,
    loaded: Instant,
    /// When the first override in it ends.
    until: Option<Timestamp>,
}

impl Profiles {
    pub(crate) fn new(catalog: Catalog, revision: Revision) -> Self {
        Self {
            catalog,
            entries: Cache::new(USERS_MAX),
            lanes: std::iter::repeat_with(Mutex::default).take(LANES).collect(),
            hasher: std::hash::RandomState::new(),
            revision: AtomicI64::new(revision.users),
            failed: parking_lot::Mutex::new(None),
        }
    }

    /// Takes note of changes.
    pub(crate) fn advance(&self, revision: Revision) {
        self.revision.fetch_max(revision.users, Ordering::Relaxed);
    }

    /// The next check of this user asks the catalog.
    pub(crate) async fn forget(&self, user_id: &str) {
        // A lookup that is under way may have read what was there before.
        let _alone = self.lane(user_id).lock().await;
        self.entries.remove(user_id);
    }

    fn lane(&self, user_id: &str) -> &Mutex<()> {
        &self.lanes[(self.hasher.hash_one(user_id) % LANES as u64) as usize]
    }

    /// What is known about a user, if that can be said at once.
    pub(crate) fn known(&self, user_id: &str) -> Option<Option<Arc<Profile>>> {
        // Nobody has a tier, a limit of their own or an override.
        if self.revision.load(Ordering::Relaxed) == 0 {
            return Some(None);
        }
        let fresh = self.entries.get(user_id).filter(|entry| self.is_fresh(entry));
        fresh.map(|entry| Some(entry.profile))
    }

    /// What is known about a user. While the catalog does not answer that is what was known last, or nothing.
    pub(crate) async fn get(&self, user_id: &str) -> Option<Arc<Profile>> {
        if let Some(known) = self.known(user_id) {
            return known;
        }
        let _alone = self.lane(user_id).lock().await;
        let before = self.entries.get(user_id);
        if let Some(entry) = before.as_ref().filter(|entry| self.is_fresh(entry)) {
            return Some(entry.profile.clone());
        }
        // An override that has ended must not live on through an outage.
        let known =
            before.filter(|entry| entry.until.is_none_or(|until| now() < until)).map(|entry| entry.profile);
        let failed = *self.failed.lock();
        if failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return known;
        }
        let revision = self.revision.load(Ordering::Relaxed);
        let loaded = Instant::now();
        let error = match timeout(LOOKUP_TIMEOUT, self.catalog.profile(user_id, now())).await {
            Ok(Ok((profile, until))) => {
                *self.failed.lock() = None;
                let profile = Arc::new(profile);
                self.entries
                    .insert(user_id.into(), Entry { profile: profile.clone(), revision, loaded, until });
                return Some(profile);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {LOOKUP_TIMEOUT:?}"),
        };
        // Once per outage: every check of every user would say so.
        if self.failed.lock().replace(Instant::now()).is_none() {
            tracing::error!(error, "users cannot be looked up; those not known yet have no tier meanwhile");
        }
        known
    }

    fn is_fresh(&self, entry: &Entry) -> bool {
        let unchanged = entry.revision >= self.revision.load(Ordering::Relaxed);
        (unchanged || entry.loaded.elapsed() < FRESH_FOR) && entry.until.is_none_or(|until| now() < until)
    }
}

impl fmt::Debug for Profiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Profiles").field("users", &self.entries.len()).finish()
    }
}

/// The time of this machine, for what people say in hours and days.
pub(crate) fn now() -> Timestamp {
    static CLOCK: LazyLock<WallClock> = LazyLock::new(WallClock::new);
    CLOCK.now()
}
