//! The parts that follow the catalog while the service runs: plans, rules, users, keys and logs.

use std::ops::Deref;
use std::sync::Arc;

use pacegate::{Limiter, Stores};
use pacegate_catalog::{Catalog, CatalogPoll, Registry, RegistryError, Revision};
use pacegate_config::Config;
use tokio::sync::Mutex;

use crate::catalog_health::CatalogHealth;
use crate::keys::Keys;
use crate::observe::journal::Journal;
use crate::profiles::Profiles;

/// A limiter whose rules follow a configuration and a catalog, with the catalog's users and keys.
#[derive(Debug)]
pub struct Live {
    registry: Registry,
    /// The revision of the cached users and keys. Locked during a refresh, so that an older
    /// revision never replaces a newer one.
    followed: Mutex<Revision>,
    pub(crate) limiter: Limiter,
    pub(crate) catalog: Catalog,
    pub(crate) profiles: Profiles,
    pub(crate) keys: Keys,
    pub(crate) journal: Journal,
    pub(crate) catalog_health: CatalogHealth,
}

impl Live {
    /// Loads the catalog's rules and compiles them together with those of `config`.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog cannot be read or the rules contradict each other.
    pub async fn start(config: Config, stores: Stores, catalog: Catalog) -> Result<Arc<Self>, RegistryError> {
        let journal = Journal::new(&config, catalog.clone());
        let key_max_age = config.catalog.key_max_age;
        let registry = Registry::start(config, stores, catalog.clone()).await?;
        let revision = registry.sources().catalog.revision;
        Ok(Arc::new(Self {
            limiter: registry.limiter().clone(),
            profiles: Profiles::new(catalog.clone(), revision),
            keys: Keys::new(catalog.clone(), key_max_age, revision),
            journal,
            catalog_health: CatalogHealth::new(catalog.clone()),
            catalog,
            registry,
            followed: Mutex::new(revision),
        }))
    }

    /// Loads changes from the catalog. Returns whether rules or plans changed.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog is unavailable; the rules stay unchanged.
    pub async fn refresh(&self) -> Result<bool, RegistryError> {
        let mut followed = self.followed.lock().await;
        let (revision, changed) = self.registry.refresh().await?;
        if revision != *followed {
            // Without a response, anything may have changed.
            let changes = self.catalog.changes(*followed, revision).await.ok().flatten();
            self.profiles.advance(revision, changes.as_ref().map(|changes| &*changes.users));
            if changes.is_none_or(|changes| changes.keys) {
                self.keys.advance(revision);
            }
            *followed = revision;
        }
        Ok(changed)
    }

    /// Follows the catalog until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut poll = CatalogPoll::default();
        loop {
            poll.wait().await;
            poll.log(self.refresh().await);
        }
    }

    /// Writes decisions and usage to the catalog and removes expired records, until the task is
    /// aborted.
    pub async fn keep_logs(self: Arc<Self>) {
        self.journal.write().await;
    }

    /// Writes the remaining decisions and usage before the service stops.
    pub async fn finish_logs(&self) {
        self.journal.finish().await;
    }
}

impl Deref for Live {
    type Target = Registry;

    fn deref(&self) -> &Self::Target {
        &self.registry
    }
}
