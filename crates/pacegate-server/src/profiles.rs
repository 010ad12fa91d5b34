//! What is known about users, in a bounded cache: millions of them stay in the catalog.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Whether the catalog has ever had a user, as far as this node knows.
    has_users: AtomicBool,
    /// Grows when users were changed, or the catalog was restored. Revisions cannot be compared: a restored catalog has lower ones.
    generation: AtomicU64,
    /// The epoch and the users' revision of that generation.
    seen: parking_lot::Mutex<(u64, i64)>,
    /// When a lookup failed last, while they fail.
    failed: parking_lot::Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct Entry {
    profile: Arc<Profile>,
    /// The generation before the profile was read.
    generation: u64,
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
            has_users: AtomicBool::new(revision.users != 0),
            generation: AtomicU64::new(0),
            seen: parking_lot::Mutex::new((revision.epoch, revision.users)),
            failed: parking_lot::Mutex::new(None),
        }
    }

    /// Takes note of changes.
    pub(crate) fn advance(&self, revision: Revision) {
        let now = (revision.epoch, revision.users);
        if std::mem::replace(&mut *self.seen.lock(), now) != now {
            self.has_users.store(revision.users != 0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
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
        if !self.has_users.load(Ordering::Relaxed) {
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
        let generation = self.generation.load(Ordering::Relaxed);
        let loaded = Instant::now();
        let error = match timeout(LOOKUP_TIMEOUT, self.catalog.profile(user_id, now())).await {
            Ok(Ok((profile, until))) => {
                *self.failed.lock() = None;
                let profile = Arc::new(profile);
                self.entries
                    .insert(user_id.into(), Entry { profile: profile.clone(), generation, loaded, until });
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
        let unchanged = entry.generation == self.generation.load(Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use pacegate_catalog::{Actor, UserChange};

    use super::*;

    const USER: &str = "u1";

    async fn catalog() -> Catalog {
        let catalog = Catalog::open("sqlite::memory:").await.unwrap();
        set_tier(&catalog, "gold").await;
        catalog
    }

    async fn set_tier(catalog: &Catalog, tier: &str) {
        let change = UserChange::all(Some(tier), &[]);
        catalog.put_user(&Actor::default(), USER, change, None).await.unwrap();
    }

    /// Polls a future once and says whether it waits for something.
    async fn waits<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    /// Lets so much time pass that only the generation makes an entry believed.
    async fn later() {
        tokio::time::pause();
        tokio::time::advance(FRESH_FOR * 2).await;
        tokio::time::resume();
    }

    fn tier(profile: Option<Arc<Profile>>) -> Option<String> {
        profile.and_then(|profile| profile.tier.clone())
    }

    #[tokio::test]
    async fn restored_catalog_with_a_lower_revision_is_read_again() {
        let catalog = catalog().await;
        let revision = catalog.revision().await.unwrap();
        let profiles = Profiles::new(catalog.clone(), Revision { users: 50, ..revision });
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("gold"));
        set_tier(&catalog, "free").await;
        later().await;
        assert!(profiles.known(USER).is_some(), "nothing was changed, as far as this node knows");
        profiles.advance(Revision { users: 40, ..revision });
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("free"));
        // The same number in another history.
        set_tier(&catalog, "silver").await;
        later().await;
        profiles.advance(Revision { epoch: revision.epoch + 1, users: 40, ..revision });
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("silver"));
        // A catalog without users needs no lookups.
        profiles.advance(Revision { users: 0, ..revision });
        assert!(matches!(profiles.known(USER), Some(None)));
    }

    #[tokio::test]
    async fn forget_waits_for_a_lookup_under_way() {
        let profiles = Profiles::new(catalog().await, Revision { users: 1, ..Revision::default() });
        let lookup = profiles.lane(USER).lock().await;
        let mut forgetting = pin!(profiles.forget(USER));
        assert!(waits(forgetting.as_mut()).await);
        // The lookup ends with what was there before the change.
        let stale = Entry { profile: Arc::default(), generation: 0, loaded: Instant::now(), until: None };
        profiles.entries.insert(USER.into(), stale);
        drop(lookup);
        forgetting.await;
        assert!(profiles.entries.get(USER).is_none());
    }

    #[tokio::test]
    async fn profile_changed_during_its_lookup_is_read_again() {
        let catalog = catalog().await;
        // The database's thread can answer before the first poll ends; then another lookup is begun.
        for _ in 0..1_000 {
            let profiles = Profiles::new(catalog.clone(), Revision { users: 1, ..Revision::default() });
            let mut lookup = pin!(profiles.get(USER));
            if waits(lookup.as_mut()).await {
                profiles.advance(Revision { users: 2, ..Revision::default() });
                lookup.await.unwrap();
                later().await;
                assert!(profiles.known(USER).is_none());
                return;
            }
        }
        panic!("every lookup was answered at once");
    }
}
