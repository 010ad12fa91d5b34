//! Keeps a limiter's rules up to date: those of the configuration file and those of the catalog, compiled together and swapped in whole.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tollgate::{Config, InvalidRules, Limiter, LimiterBuilder, Rule, Stores};
use tollgate_catalog::{Catalog, CatalogError, Revision, RuleList};

use crate::journal::Journal;
use crate::keys::Keys;
use crate::profiles::Profiles;

/// How often the catalog is asked whether something changed; a node is behind by at most this and the time to load.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// A limiter whose rules follow a configuration and a catalog.
#[derive(Debug)]
pub struct Live {
    pub(crate) limiter: Limiter,
    pub(crate) catalog: Catalog,
    pub(crate) profiles: Profiles,
    pub(crate) keys: Keys,
    pub(crate) journal: Journal,
    /// Held while rules are changed, so that an older set never replaces a newer one.
    current: Mutex<Current>,
    /// What can be looked up without waiting for a change.
    shown: arc_swap::ArcSwap<Current>,
}

/// What the rules in force were made of.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    pub(crate) file: Arc<Config>,
    pub(crate) catalog: Arc<RuleList>,
}

impl Live {
    /// Loads the catalog's rules and compiles them together with those of `config`.
    ///
    /// # Errors
    /// [`LiveError`] when the catalog cannot be read or the rules contradict each other.
    pub async fn start(config: Config, stores: Stores, catalog: Catalog) -> Result<Arc<Self>, LiveError> {
        let current = Current { catalog: Arc::new(catalog.rules().await?), file: Arc::new(config) };
        let limiter = current.builder(&stores).stores(stores).build()?;
        Ok(Arc::new(Self {
            limiter,
            profiles: Profiles::new(catalog.clone(), current.catalog.revision),
            keys: Keys::new(catalog.clone(), current.catalog.revision),
            journal: Journal::new(&current.file, catalog.clone()),
            catalog,
            shown: arc_swap::ArcSwap::from_pointee(current.clone()),
            current: Mutex::new(current),
        }))
    }

    /// What the rules in force were made of.
    pub(crate) fn current(&self) -> Arc<Current> {
        self.shown.load_full()
    }

    /// Brings the rules up to date with the catalog; says whether something changed.
    ///
    /// # Errors
    /// [`LiveError`] when the catalog does not answer; the rules stay as they were.
    pub async fn refresh(&self) -> Result<bool, LiveError> {
        let mut current = self.current.lock().await;
        let revision = self.catalog.revision().await?;
        self.profiles.advance(revision);
        self.keys.advance(revision);
        if revision.rules == current.catalog.revision.rules {
            return Ok(false);
        }
        let list = self.catalog.rules().await?;
        let next = Current { file: current.file.clone(), catalog: Arc::new(list) };
        self.put(&mut current, next)?;
        Ok(true)
    }

    /// Has the rules, plans, default limit and failure mode of `config` take the place of those before.
    ///
    /// # Errors
    /// [`LiveError`] when they contradict each other; the rules stay as they were.
    pub async fn reload(&self, config: Config) -> Result<(), LiveError> {
        let mut current = self.current.lock().await;
        let next = Current { file: Arc::new(config), catalog: current.catalog.clone() };
        self.put(&mut current, next)
    }

    /// Follows the catalog until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut failing = false;
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            match self.refresh().await {
                Ok(changed) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!("the catalog answers again");
                    }
                    if changed {
                        let Revision { rules, .. } = self.current().catalog.revision;
                        tracing::info!(revision = rules, "rules changed");
                    }
                }
                // Said once, not twice a second.
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::error!(%error, "the catalog cannot be followed; rules stay as they are");
                }
                Err(_) => {}
            }
        }
    }

    /// Writes decisions and usage to the catalog, and removes what is too old, until the task is aborted.
    pub async fn keep_logs(self: Arc<Self>) {
        self.journal.write().await;
    }

    /// Writes the decisions and the usage that have gathered, before the service ends.
    pub async fn finish_logs(&self) {
        self.journal.finish().await;
    }

    fn put(&self, current: &mut Current, next: Current) -> Result<(), LiveError> {
        self.limiter.replace(next.builder(self.limiter.stores()))?;
        self.shown.store(Arc::new(next.clone()));
        *current = next;
        Ok(())
    }
}

impl Current {
    /// The file's rules, then the catalog's. What cannot be in force is left out, and said.
    fn builder(&self, stores: &Stores) -> LimiterBuilder {
        let mut builder = self.file.builder();
        for message in &self.catalog.unreadable {
            tracing::error!(message, "a rule of the catalog is not in force");
        }
        let in_file: HashSet<_> = self.file.rules.iter().map(Rule::variant).collect();
        for stored in &self.catalog.rules {
            let rule_id = stored.rule_id.as_str();
            if in_file.contains(&stored.rule.variant()) {
                tracing::warn!(rule_id, "a rule of the catalog is not in force: the file has the same one");
                continue;
            }
            let mut rule = stored.rule.clone();
            if let Some(store) = rule.store.take_if(|store| !stores.has(store)) {
                tracing::error!(
                    rule_id,
                    store,
                    "this node has no such store; the default one counts the rule"
                );
            }
            builder = builder.rule(rule);
        }
        for plan in &self.catalog.plans {
            if self.file.plans.iter().any(|(name, _)| *name == plan.name) {
                tracing::warn!(
                    plan = plan.name,
                    "a plan of the catalog is not in force: the file has it too"
                );
                continue;
            }
            builder = builder.plan(&plan.name, plan.limits.iter().copied());
        }
        builder
    }

    /// The id of a rule of the file, which stays the same as long as its variant does.
    pub(crate) fn file_rule_id(rule: &Rule) -> String {
        let mut id = rule.variant_key();
        id.truncate(32);
        id.insert_str(0, "file-");
        id
    }

    /// Whether the file has a rule of this id.
    pub(crate) fn file_rule(&self, rule_id: &str) -> Option<&Rule> {
        let is_file = rule_id.starts_with("file-");
        self.file.rules.iter().filter(|_| is_file).find(|rule| Self::file_rule_id(rule) == rule_id)
    }

    /// Every rule, whoever it is from.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.file.rules.iter().chain(self.catalog.rules.iter().map(|stored| &stored.rule))
    }
}

/// Why rules could not be brought into force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The rules contradict each other.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
}
