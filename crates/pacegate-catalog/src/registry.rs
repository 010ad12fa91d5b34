//! The plans and rules of a limiter behind one registry: those of the configuration and those of the catalog, compiled together and swapped in whole.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use pacegate::{Invalid, InvalidRules, Limiter, LimiterBuilder, Rule, Stores, rules::RULES_MAX};
use pacegate_config::Config;
use tokio::sync::Mutex;

use crate::catalog::Catalog;
use crate::error::CatalogError;
use crate::record::{Revision, RuleList};

/// How often the catalog is asked whether something changed; a node is behind by at most this and the time to load.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// A limiter whose plans and rules follow a configuration and a catalog.
///
/// ```
/// use std::sync::Arc;
/// use pacegate::{Check, Limit, Stores};
/// use pacegate_config::Config;
/// use pacegate_catalog::{Actor, Catalog, Registry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let catalog = Catalog::open("sqlite::memory:").await?;
/// let registry = Arc::new(Registry::start(Config::default(), Stores::default(), catalog.clone()).await?);
/// let following = tokio::spawn(registry.clone().follow());
///
/// catalog.put_plan(&Actor::default(), "gold", &[Limit::per_second(10).build()?.into()], None).await?;
/// registry.refresh().await?;
/// let decision = registry.limiter().check(&Check::key("user-123").plan("gold")).await?;
/// assert_eq!(decision.remaining(), Some(9));
/// # following.abort();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Registry {
    limiter: Limiter,
    catalog: Catalog,
    /// Held while rules are changed, so that an older set never replaces a newer one.
    current: Mutex<Sources>,
    /// What can be looked up without waiting for a change.
    shown: ArcSwap<Sources>,
}

/// What the rules in force were made of.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The configuration.
    pub file: Arc<Config>,
    /// What the catalog had.
    pub catalog: Arc<RuleList>,
}

impl Registry {
    /// Loads the catalog's rules and compiles them together with those of `config`.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog cannot be read or the rules contradict each other.
    pub async fn start(config: Config, stores: Stores, catalog: Catalog) -> Result<Self, RegistryError> {
        let current = Sources { catalog: Arc::new(catalog.rules().await?), file: Arc::new(config) };
        let limiter = current.builder(&stores).stores(stores).build()?;
        catalog.rules_elsewhere.store(current.of_file(), Ordering::Relaxed);
        let shown = ArcSwap::from_pointee(current.clone());
        Ok(Self { limiter, catalog, shown, current: Mutex::new(current) })
    }

    /// The limiter, which always has the plans and rules that were loaded last.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The catalog that it follows.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What the rules in force were made of.
    pub fn sources(&self) -> Arc<Sources> {
        self.shown.load_full()
    }

    /// Brings plans and rules up to date with the catalog; says what its revision is, and whether something changed.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog does not answer; everything stays as it was.
    pub async fn refresh(&self) -> Result<(Revision, bool), RegistryError> {
        let mut current = self.current.lock().await;
        let revision = self.catalog.revision().await?;
        let known = current.catalog.revision;
        if (revision.epoch, revision.rules) == (known.epoch, known.rules) {
            let now = self.catalog.clock.now();
            if current.catalog.overrides.iter().all(|of| of.expires_at > now) {
                return Ok((revision, false));
            }
            let mut list = RuleList::clone(&current.catalog);
            list.overrides.retain(|of| of.expires_at > now);
            let next = Sources { file: current.file.clone(), catalog: Arc::new(list) };
            self.put(&mut current, next)?;
            return Ok((revision, true));
        }
        let list = self.catalog.rules().await?;
        let next = Sources { file: current.file.clone(), catalog: Arc::new(list) };
        self.put(&mut current, next)?;
        Ok((revision, true))
    }

    /// Has the rules, plans, default limit and failure mode of `config` take the place of those before.
    ///
    /// # Errors
    /// [`RegistryError`] when they contradict each other; everything stays as it was.
    pub async fn reload(&self, config: Config) -> Result<(), RegistryError> {
        let mut current = self.current.lock().await;
        let next = Sources { file: Arc::new(config), catalog: current.catalog.clone() };
        self.put(&mut current, next)
    }

    /// Follows the catalog until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut rounds = Rounds::default();
        loop {
            rounds.pause().await;
            rounds.note(self.refresh().await.map(|(_, changed)| changed));
        }
    }

    fn put(&self, current: &mut Sources, next: Sources) -> Result<(), RegistryError> {
        self.limiter.replace(next.builder(self.limiter.stores()))?;
        self.catalog.rules_elsewhere.store(next.of_file(), Ordering::Relaxed);
        self.shown.store(Arc::new(next.clone()));
        *current = next;
        Ok(())
    }
}

/// The rounds of looking whether something changed, each of which is talked about only if it is news.
#[derive(Debug, Default)]
pub struct Rounds {
    failing: bool,
}

impl Rounds {
    /// Waits for the next one.
    pub async fn pause(&self) {
        tokio::time::sleep(POLL_EVERY).await;
    }

    /// Says in the log what came of it.
    pub fn note(&mut self, refreshed: Result<bool, RegistryError>) {
        match refreshed {
            Ok(changed) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the catalog answers again");
                }
                if changed {
                    tracing::info!("rules changed");
                }
            }
            // Said once, not twice a second.
            Err(error) if !std::mem::replace(&mut self.failing, true) => {
                tracing::error!(%error, "the catalog cannot be followed; rules stay as they are");
            }
            Err(_) => {}
        }
    }
}

impl Sources {
    /// The file's rules, then the catalog's. What cannot be in force is left out, and said.
    fn builder(&self, stores: &Stores) -> LimiterBuilder {
        let mut builder = self.file.builder();
        for message in &self.catalog.unreadable {
            tracing::error!(message, "a rule of the catalog is not in force");
        }
        let mut room = RULES_MAX.saturating_sub(self.of_file());
        let mut left_out = 0_usize;
        // Rows may have been written before a dimension or an address had one spelling.
        let compared = |rule| Rule::compared(rule, self.file.server.ipv6_prefix, self.file.paths);
        let rules: Vec<Result<Cow<'_, Rule>, Invalid>> =
            self.catalog.rules.iter().map(|stored| compared(&stored.rule)).collect();
        let of_file: Vec<Cow<'_, Rule>> =
            self.file.rules.iter().filter_map(|rule| compared(rule).ok()).collect();
        let mut variants: HashSet<_> = of_file.iter().map(|rule| rule.variant()).collect();
        for (stored, rule) in self.catalog.rules.iter().zip(&rules) {
            let rule_id = stored.rule_id.as_str();
            let rule = match rule {
                Ok(rule) => rule,
                Err(error) => {
                    tracing::error!(rule_id, %error, "a rule of the catalog is not in force");
                    continue;
                }
            };
            if !variants.insert(rule.variant()) {
                tracing::warn!(
                    rule_id,
                    "a rule of the catalog is not in force: there is one of the same variant"
                );
                continue;
            }
            let mut rule = Rule::clone(rule);
            if let Some(store) = rule.store.take_if(|store| !stores.has(store)) {
                tracing::error!(
                    rule_id,
                    store,
                    "this node has no such store; the default one counts the rule"
                );
            }
            // Another node's file may leave room for more. Too many would keep all others from coming into force.
            if room == 0 {
                left_out += 1;
                continue;
            }
            room -= 1;
            builder = builder.rule(rule);
        }
        if left_out > 0 {
            tracing::error!(
                rules = left_out,
                max = RULES_MAX,
                "the newest rules of the catalog are not in force: there are too many with those of the file"
            );
        }
        for plan in &self.catalog.plans {
            if self.file.plans.iter().any(|(name, _)| *name == plan.name) {
                tracing::warn!(
                    plan = plan.name,
                    "a plan of the catalog is not in force: the file has it too"
                );
                continue;
            }
            builder = builder.plan(&plan.name, plan.limits.iter().cloned());
        }
        for of in &self.catalog.overrides {
            builder = builder.override_limit(&of.dimension, &of.user_id, &of.rule, of.numbers);
        }
        builder
    }

    /// How many rules the file has, with those for descriptors.
    fn of_file(&self) -> usize {
        self.file.rules.len() + self.file.descriptors.len()
    }

    /// The id of a rule of the file, which stays the same as long as its variant does.
    pub fn file_rule_id(rule: &Rule) -> String {
        let mut id = rule.variant_key();
        id.truncate(32);
        id.insert_str(0, "file-");
        id
    }

    /// Whether the file has a rule of this id.
    pub fn file_rule(&self, rule_id: &str) -> Option<&Rule> {
        let is_file = rule_id.starts_with("file-");
        self.file.rules.iter().filter(|_| is_file).find(|rule| Self::file_rule_id(rule) == rule_id)
    }

    /// Every rule, whoever it is from.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.file.rules.iter().chain(self.catalog.rules.iter().map(|stored| &stored.rule))
    }
}

/// Why rules could not be brought into force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The rules contradict each other.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
}
