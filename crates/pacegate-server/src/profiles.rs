//! User profiles in bounded caches: millions of users stay in the catalog.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use pacegate::{Profile, Timestamp};
use pacegate_catalog::{Catalog, CatalogError, ProfileUntil, Revision};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::clock::now;

/// Maximum number of cached users.
const USERS_MAX: usize = 100_000;
/// Maximum number of cached hashes of users without a profile: callers can make up any number of
/// users, of any length.
const ABSENT_MAX: usize = 100_000;
/// Time during which an entry is used although users were changed and the catalog cannot tell
/// which. Frequent imports must not turn every check into a query.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Maximum time that a check waits for the catalog, which may have to connect first.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(250);
/// Time after a failed lookup during which checks skip lookups, so that none waits for a timeout.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of concurrent queries: the catalog's other connections have other uses.
const QUERIES_MAX: usize = 2;
/// Maximum number of users per query.
const QUERY_USERS_MAX: usize = 64;
/// Maximum number of users waiting for a query; twice as many for users that were known before.
const WAITING_MAX: usize = 4_096;

/// The profiles of users, at most a second behind the catalog.
#[derive(Clone)]
pub(crate) struct Profiles(Arc<Inner>);

struct Inner {
    catalog: Catalog,
    entries: Cache<Box<str>, Entry>,
    /// Users without a profile, in a separate cache, so that a flood of made-up users evicts no
    /// real one.
    absent: Cache<[u64; 2], Stamp>,
    /// Randomly seeded, so that no caller can choose a user with the hashes of another.
    hashers: [RandomState; 2],
    lookups: Mutex<Lookups>,
    /// Whether this node has seen any user in the catalog.
    has_users: AtomicBool,
    /// Increases when any user may have changed, or the catalog was restored.
    generation: AtomicU64,
    /// The epoch and the users' revision seen last. Revisions cannot be compared: a restored
    /// catalog has lower ones.
    seen: Mutex<(u64, i64)>,
    /// When the last lookup failed, during an outage.
    failed: Mutex<Option<Instant>>,
    /// Number of checks without a lookup, because too many were waiting or it timed out.
    skipped: AtomicU64,
}

#[derive(Clone)]
struct Entry {
    profile: Arc<Profile>,
    stamp: Stamp,
    /// When its first override expires.
    until: Option<Timestamp>,
}

/// When an entry was read.
#[derive(Clone, Copy)]
struct Stamp {
    /// The generation before the read.
    generation: u64,
    at: Instant,
    /// Whether the user was changed since.
    is_stale: bool,
}

/// Lookups in progress: one per user, shared by all checks that wait for it.
#[derive(Default)]
struct Lookups {
    under_way: HashMap<Arc<str>, Lookup>,
    /// The users that are not part of a query yet.
    waiting: VecDeque<Arc<str>>,
    queries: usize,
}

struct Lookup {
    answer: watch::Sender<Option<Answer>>,
    /// Whether the user was changed since the query started.
    is_stale: bool,
}

#[derive(Clone)]
enum Answer {
    Found(Option<Arc<Profile>>),
    Failed,
}

impl Profiles {
    pub(crate) fn new(catalog: Catalog, revision: Revision) -> Self {
        Self(Arc::new(Inner {
            catalog,
            entries: Cache::new(USERS_MAX),
            absent: Cache::new(ABSENT_MAX),
            hashers: [RandomState::new(), RandomState::new()],
            lookups: Mutex::default(),
            has_users: AtomicBool::new(revision.users != 0),
            generation: AtomicU64::new(0),
            seen: Mutex::new((revision.epoch, revision.users)),
            failed: Mutex::new(None),
            skipped: AtomicU64::new(0),
        }))
    }

    /// Applies a new revision: `changed` users are stale, or all users if it is `None`.
    pub(crate) fn advance(&self, revision: Revision, changed: Option<&[String]>) {
        let inner = &self.0;
        let now = (revision.epoch, revision.users);
        if std::mem::replace(&mut *inner.seen.lock(), now) == now {
            return;
        }
        inner.has_users.store(revision.users != 0, Ordering::Relaxed);
        match changed {
            // Only these users are looked up again: a change of one user must not turn every check
            // into a query.
            Some(users) => users.iter().for_each(|user_id| self.invalidate(user_id)),
            None => {
                inner.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Invalidates a changed user. If this node has seen it, it is looked up again immediately, and
    /// the next check waits for the result.
    pub(crate) fn invalidate(&self, user_id: &str) {
        let mut lookups = self.0.lookups.lock();
        // A query in progress may have read the old state.
        if let Some(lookup) = lookups.under_way.get_mut(user_id) {
            lookup.is_stale = true;
        }
        let was_absent = self.0.absent.remove(&self.0.hashes(user_id)).is_some();
        if let Some(mut entry) = self.0.entries.get(user_id) {
            entry.stamp.is_stale = true;
            self.0.entries.insert(user_id.into(), entry);
        } else if !was_absent {
            return;
        }
        self.begin(&mut lookups, user_id, true);
    }

    /// Returns the cached profile of a user; the outer `None` means that a lookup is needed.
    pub(crate) fn known(&self, user_id: &str) -> Option<Option<Arc<Profile>>> {
        let inner = &self.0;
        // No user has a tier, custom limits or an override.
        if !inner.has_users.load(Ordering::Relaxed) {
            return Some(None);
        }
        match inner.entries.get(user_id) {
            Some(entry) => (inner.is_fresh(&entry.stamp) && entry.holds()).then_some(Some(entry.profile)),
            None => {
                let absent = inner.absent.get(&inner.hashes(user_id))?;
                inner.is_fresh(&absent).then_some(None)
            }
        }
    }

    /// Returns the profile of a user. While the catalog is unavailable, returns the last known
    /// profile, or none.
    pub(crate) async fn get(&self, user_id: &str) -> Option<Arc<Profile>> {
        self.get_within(user_id, LOOKUP_TIMEOUT).await
    }

    /// Like [`get`](Self::get), for a check that waits at most `wait_max`.
    pub(crate) async fn get_within(&self, user_id: &str, wait_max: Duration) -> Option<Arc<Profile>> {
        if let Some(known) = self.known(user_id) {
            return known;
        }
        let before = self.0.entries.get(user_id);
        let is_known = before.is_some();
        // An expired override must not stay in force during an outage.
        let before = before.filter(Entry::holds).map(|entry| entry.profile);
        let failed = *self.0.failed.lock();
        if failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return before;
        }
        let answer = self.begin(&mut self.0.lookups.lock(), user_id, is_known);
        let found = match answer {
            Some(mut answer) => {
                let answered = timeout(wait_max, answer.wait_for(Option::is_some)).await;
                answered.ok().and_then(|answer| answer.ok().and_then(|answer| answer.clone()))
            }
            None => None,
        };
        match found {
            Some(Answer::Found(profile)) => profile,
            Some(Answer::Failed) => before,
            None => {
                self.0.skipped.fetch_add(1, Ordering::Relaxed);
                before
            }
        }
    }

    /// Returns the number of checks that were decided without a needed lookup, because too many
    /// were waiting or it timed out.
    pub(crate) fn skipped(&self) -> u64 {
        self.0.skipped.load(Ordering::Relaxed)
    }

    /// Starts the lookup of a user, unless it is in progress or too many are waiting. Users that
    /// were known before go first, so that made-up users do not delay them.
    fn begin(
        &self,
        lookups: &mut Lookups,
        user_id: &str,
        is_known: bool,
    ) -> Option<watch::Receiver<Option<Answer>>> {
        if let Some(lookup) = lookups.under_way.get(user_id) {
            return Some(lookup.answer.subscribe());
        }
        if lookups.waiting.len() >= if is_known { 2 * WAITING_MAX } else { WAITING_MAX } {
            return None;
        }
        let user_id: Arc<str> = user_id.into();
        if is_known {
            lookups.waiting.push_front(user_id.clone());
        } else {
            lookups.waiting.push_back(user_id.clone());
        }
        let (answer, receiver) = watch::channel(None);
        lookups.under_way.insert(user_id, Lookup { answer, is_stale: false });
        if lookups.queries < QUERIES_MAX {
            lookups.queries += 1;
            tokio::spawn(Self::look_up(self.clone()));
        }
        Some(receiver)
    }

    /// Looks up all waiting users, many per query. It continues when no check waits any more, so
    /// that the next check finds the result.
    async fn look_up(self) {
        let inner = &*self.0;
        loop {
            let users = {
                let mut lookups = inner.lookups.lock();
                let count = lookups.waiting.len().min(QUERY_USERS_MAX);
                if count == 0 {
                    lookups.queries -= 1;
                    return;
                }
                let users: Vec<Arc<str>> = lookups.waiting.drain(..count).collect();
                for user in &users {
                    if let Some(lookup) = lookups.under_way.get_mut(user) {
                        lookup.is_stale = false;
                    }
                }
                users
            };
            let generation = inner.generation.load(Ordering::Relaxed);
            let stamp = Stamp { generation, at: Instant::now(), is_stale: false };
            let user_ids: Vec<&str> = users.iter().map(|user| &**user).collect();
            match timeout(LOOKUP_TIMEOUT, inner.catalog.profiles(&user_ids, now())).await {
                Ok(Ok(found)) => {
                    *inner.failed.lock() = None;
                    let mut lookups = inner.lookups.lock();
                    users.iter().zip(found).for_each(|(user, found)| {
                        inner.settle(&mut lookups, user, found, stamp);
                    });
                }
                Ok(Err(error)) => inner.fail(&users, &error.to_string()),
                Err(_) => inner.fail(&users, &format!("timed out after {LOOKUP_TIMEOUT:?}")),
            }
        }
    }
}

impl Inner {
    fn hashes(&self, user_id: &str) -> [u64; 2] {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(user_id))
    }

    fn is_fresh(&self, stamp: &Stamp) -> bool {
        let unchanged = stamp.generation == self.generation.load(Ordering::Relaxed);
        !stamp.is_stale && (unchanged || stamp.at.elapsed() < FRESH_FOR)
    }

    /// Caches the result for a user, and sends it to all checks that wait for it.
    fn settle(
        &self,
        lookups: &mut Lookups,
        user: &Arc<str>,
        found: Result<ProfileUntil, CatalogError>,
        stamp: Stamp,
    ) {
        if lookups.under_way.get(user).is_some_and(|lookup| lookup.is_stale) {
            // The user was changed during the query, so it is queried again for the waiting checks.
            lookups.waiting.push_front(user.clone());
            return;
        }
        let answer = match found {
            Ok((profile, _)) if profile == Profile::default() => {
                self.entries.remove(&**user);
                self.absent.insert(self.hashes(user), stamp);
                Answer::Found(None)
            }
            Ok((profile, until)) => {
                let profile = Arc::new(profile);
                let entry = Entry { profile: profile.clone(), stamp, until };
                self.entries.insert((&**user).into(), entry);
                Answer::Found(Some(profile))
            }
            Err(error) => {
                tracing::error!(%error, "user row in the catalog is invalid");
                Answer::Failed
            }
        };
        if let Some(lookup) = lookups.under_way.remove(user) {
            lookup.answer.send_replace(Some(answer));
        }
    }

    /// Ends lookups after a failed query, so that no check waits for them.
    fn fail(&self, users: &[Arc<str>], error: &str) {
        // Logged once per outage, not for every check.
        if self.failed.lock().replace(Instant::now()).is_none() {
            tracing::error!(
                error,
                "user lookup failed; users that are not cached have no tier until the catalog is available again"
            );
        }
        let mut lookups = self.lookups.lock();
        let waiting: Vec<Arc<str>> = lookups.waiting.drain(..).collect();
        for user in users.iter().chain(&waiting) {
            if let Some(lookup) = lookups.under_way.remove(user) {
                lookup.answer.send_replace(Some(Answer::Failed));
            }
        }
    }
}

impl Entry {
    fn holds(&self) -> bool {
        self.until.is_none_or(|until| now() < until)
    }
}

impl fmt::Debug for Profiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Profiles").field("users", &self.0.entries.len()).finish()
    }
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
        set_tier(&catalog, USER, "gold").await;
        catalog
    }

    async fn set_tier(catalog: &Catalog, user_id: &str, tier: &str) {
        let change = UserChange::all(Some(tier), &[]);
        catalog.put_user(&Actor::default(), user_id, change, None).await.unwrap();
    }

    async fn profiles(catalog: &Catalog) -> Profiles {
        Profiles::new(catalog.clone(), catalog.revision().await.unwrap())
    }

    /// Polls a future once and returns whether it is pending.
    async fn waits<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }

    /// Lets enough time pass that an entry is fresh by its generation only.
    async fn later() {
        tokio::time::pause();
        tokio::time::advance(FRESH_FOR * 2).await;
        tokio::time::resume();
    }

    fn tier(profile: Option<Arc<Profile>>) -> Option<String> {
        profile.and_then(|profile| profile.tier.clone())
    }

    fn is_idle(profiles: &Profiles) -> bool {
        profiles.0.lookups.lock().queries == 0
    }

    #[tokio::test]
    async fn restored_catalog_with_a_lower_revision_is_read_again() {
        let catalog = catalog().await;
        let revision = catalog.revision().await.unwrap();
        let profiles = Profiles::new(catalog.clone(), Revision { users: 50, ..revision });
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("gold"));
        set_tier(&catalog, USER, "free").await;
        later().await;
        assert!(profiles.known(USER).is_some(), "this node has not seen the change");
        profiles.advance(Revision { users: 40, ..revision }, None);
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("free"));
        // The same revision in another epoch.
        set_tier(&catalog, USER, "silver").await;
        later().await;
        profiles.advance(Revision { epoch: revision.epoch + 1, users: 40, ..revision }, None);
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("silver"));
        // A catalog without users needs no lookups.
        profiles.advance(Revision { users: 0, ..revision }, None);
        assert!(matches!(profiles.known(USER), Some(None)));
    }

    #[tokio::test]
    async fn change_of_one_user_leaves_the_others_known() {
        let catalog = catalog().await;
        let profiles = profiles(&catalog).await;
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("gold"));
        assert_eq!(tier(profiles.get("u2").await), None);
        assert_eq!(tier(profiles.get("made-up").await), None);
        assert_eq!(profiles.0.entries.len(), 1, "users without a profile are cached separately");
        set_tier(&catalog, "u2", "silver").await;
        let revision = catalog.revision().await.unwrap();
        later().await;
        profiles.advance(revision, Some(&["u2".to_owned()]));
        later().await;
        assert!(profiles.known(USER).is_some());
        assert!(profiles.known("made-up").is_some());
        assert_eq!(tier(profiles.get("u2").await).as_deref(), Some("silver"));
    }

    #[tokio::test]
    async fn user_changed_during_its_lookup_is_read_again() {
        let catalog = catalog().await;
        // The database can respond before the first poll ends; then another lookup is started.
        for _ in 0..1_000 {
            set_tier(&catalog, USER, "gold").await;
            let profiles = profiles(&catalog).await;
            let mut lookup = pin!(profiles.get(USER));
            assert!(waits(lookup.as_mut()).await);
            tokio::task::yield_now().await;
            if profiles.0.lookups.lock().waiting.is_empty() && waits(lookup.as_mut()).await {
                // The query in progress may have read the old state.
                set_tier(&catalog, USER, "free").await;
                profiles.invalidate(USER);
                lookup.await;
                assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("free"));
                return;
            }
        }
        panic!("every lookup completed immediately");
    }

    #[tokio::test]
    async fn profile_is_read_again_if_any_user_may_have_changed_during_its_lookup() {
        let catalog = catalog().await;
        for _ in 0..1_000 {
            let profiles = Profiles::new(catalog.clone(), Revision { users: 1, ..Revision::default() });
            let mut lookup = pin!(profiles.get(USER));
            assert!(waits(lookup.as_mut()).await);
            tokio::task::yield_now().await;
            if profiles.0.lookups.lock().waiting.is_empty() && waits(lookup.as_mut()).await {
                profiles.advance(Revision { users: 2, ..Revision::default() }, None);
                lookup.await.unwrap();
                later().await;
                assert!(profiles.known(USER).is_none());
                return;
            }
        }
        panic!("every lookup completed immediately");
    }

    #[tokio::test]
    async fn lookups_are_shared_and_bounded() {
        let catalog = catalog().await;
        let profiles = profiles(&catalog).await;
        let mut same: Vec<_> = (0..100).map(|_| Box::pin(profiles.get(USER))).collect();
        for lookup in &mut same {
            assert!(waits(lookup.as_mut()).await);
        }
        assert_eq!(profiles.0.lookups.lock().under_way.len(), 1, "checks of one user share a lookup");
        for lookup in same {
            assert_eq!(tier(lookup.await).as_deref(), Some("gold"));
        }
        // Far more made-up users than can wait; no query runs on this thread in the meantime.
        let names: Vec<String> = (0..3 * WAITING_MAX).map(|number| format!("made-up-{number}")).collect();
        let mut made_up: Vec<_> = names.iter().map(|name| Box::pin(profiles.get(name))).collect();
        for lookup in &mut made_up {
            waits(lookup.as_mut()).await;
        }
        {
            let lookups = profiles.0.lookups.lock();
            assert!(lookups.waiting.len() <= WAITING_MAX && lookups.queries <= QUERIES_MAX);
        }
        assert!(profiles.skipped() >= WAITING_MAX as u64, "checks beyond the bound do not wait");
        drop(made_up);
        // The lookups continue without the waiting checks, and end.
        while !is_idle(&profiles) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(profiles.0.lookups.lock().under_way.is_empty());
        assert!(matches!(profiles.known("made-up-7"), Some(None)), "absent users are cached");
    }

    #[tokio::test]
    async fn known_user_is_looked_up_before_made_up_users() {
        let catalog = catalog().await;
        let profiles = profiles(&catalog).await;
        profiles.get(USER).await;
        set_tier(&catalog, USER, "free").await;
        let names: Vec<String> = (0..WAITING_MAX).map(|number| format!("made-up-{number}")).collect();
        let mut made_up: Vec<_> = names.iter().map(|name| Box::pin(profiles.get(name))).collect();
        for lookup in &mut made_up {
            waits(lookup.as_mut()).await;
        }
        profiles.invalidate(USER);
        assert_eq!(profiles.0.lookups.lock().waiting.front().map(|user| &**user), Some(USER));
        assert_eq!(tier(profiles.get(USER).await).as_deref(), Some("free"));
    }
}
