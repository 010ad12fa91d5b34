//! The registry: compiles the rules and plans of the configuration and of the catalog into one
//! limiter, and swaps them in as a whole.

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

/// Interval of polling the catalog; a node lags by at most this and the time to load.
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
/// let (config, stores) = (Config::default(), Stores::default());
/// let registry = Arc::new(Registry::start(config, stores, catalog.clone()).await?);
/// let following = tokio::spawn(registry.clone().follow());
///
/// let limit = Limit::per_second(10).build()?;
/// catalog.put_plan(&Actor::default(), "gold", &[limit.into()], None).await?;
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
    /// A copy that can be read without waiting for a change.
    published: ArcSwap<Sources>,
}

/// The sources of the rules in force.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The configuration.
    pub file: Arc<Config>,
    /// The rules and plans of the catalog.
    pub catalog: Arc<RuleList>,
}

impl Registry {
    /// Loads the catalog's rules and compiles them together with those of `config`.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog cannot be read or the rules are inconsistent.
    pub async fn start(config: Config, stores: Stores, catalog: Catalog) -> Result<Self, RegistryError> {
        let current = Sources { catalog: Arc::new(catalog.rules().await?), file: Arc::new(config) };
        let limiter = current.builder(&stores).stores(stores).build()?;
        catalog.file_rules.store(current.file_rule_count(), Ordering::Relaxed);
        let published = ArcSwap::from_pointee(current.clone());
        Ok(Self { limiter, catalog, published, current: Mutex::new(current) })
    }

    /// The limiter, which always has the plans and rules that were last loaded.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The catalog that the registry follows.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The sources of the rules in force.
    pub fn sources(&self) -> Arc<Sources> {
        self.published.load_full()
    }

    /// Updates plans and rules from the catalog. Returns the catalog's revision, and whether
    /// something changed.
    ///
    /// # Errors
    /// [`RegistryError`] when the catalog does not respond; the rules in force do not change.
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

    /// Replaces the rules, plans, default limit and failure mode of the file by those of `config`.
    ///
    /// # Errors
    /// [`RegistryError`] when they are inconsistent; the rules in force do not change.
    pub async fn reload(&self, config: Config) -> Result<(), RegistryError> {
        let mut current = self.current.lock().await;
        let next = Sources { file: Arc::new(config), catalog: current.catalog.clone() };
        self.put(&mut current, next)
    }

    /// Follows the catalog until the task is aborted.
    pub async fn follow(self: Arc<Self>) {
        let mut poll = CatalogPoll::default();
        loop {
            poll.wait().await;
            poll.log(self.refresh().await.map(|(_, changed)| changed));
        }
    }

    fn put(&self, current: &mut Sources, next: Sources) -> Result<(), RegistryError> {
        self.limiter.replace(next.builder(self.limiter.stores()))?;
        self.catalog.file_rules.store(next.file_rule_count(), Ordering::Relaxed);
        self.published.store(Arc::new(next.clone()));
        *current = next;
        Ok(())
    }
}

/// Paces polling of the catalog and logs its results, each failure once.
#[derive(Debug, Default)]
pub struct CatalogPoll {
    failing: bool,
}

impl CatalogPoll {
    /// Waits until the next poll.
    pub async fn wait(&self) {
        tokio::time::sleep(POLL_EVERY).await;
    }

    /// Logs the result of a poll.
    pub fn log(&mut self, refreshed: Result<bool, RegistryError>) {
        match refreshed {
            Ok(changed) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("catalog available again");
                }
                if changed {
                    tracing::info!("rule set reloaded");
                }
            }
            // Logged once, not with every poll.
            Err(error) if !std::mem::replace(&mut self.failing, true) => {
                tracing::error!(%error, "catalog unavailable; keeping the current rules");
            }
            Err(_) => {}
        }
    }
}

impl Sources {
    /// Adds the file's rules, then the catalog's. Rules that cannot be applied are skipped and
    /// logged.
    fn builder(&self, stores: &Stores) -> LimiterBuilder {
        let mut builder = self.file.builder();
        for message in &self.catalog.unreadable {
            tracing::error!(message, "catalog row skipped");
        }
        let mut available = RULES_MAX.saturating_sub(self.file_rule_count());
        let mut left_out = 0_usize;
        // Rows may predate the canonical form of dimensions and addresses.
        let compared = |rule| Rule::compared(rule, self.file.server.ipv6_prefix, self.file.paths);
        let rules: Vec<Result<Cow<'_, Rule>, Invalid>> =
            self.catalog.rules.iter().map(|stored| compared(&stored.rule)).collect();
        let file_rules: Vec<Cow<'_, Rule>> =
            self.file.rules.iter().filter_map(|rule| compared(rule).ok()).collect();
        let mut variants: HashSet<_> = file_rules.iter().map(|rule| rule.variant()).collect();
        for (stored, rule) in self.catalog.rules.iter().zip(&rules) {
            let rule_id = stored.rule_id.as_str();
            let rule = match rule {
                Ok(rule) => rule,
                Err(error) => {
                    tracing::error!(rule_id, %error, "catalog rule skipped");
                    continue;
                }
            };
            if !variants.insert(rule.variant()) {
                tracing::warn!(
                    rule_id,
                    "catalog rule skipped: another rule has the same name, dimension, identifier, tier, endpoint and method"
                );
                continue;
            }
            let mut rule = Rule::clone(rule);
            if let Some(store) = rule.store.take_if(|store| !stores.has(store)) {
                tracing::error!(rule_id, store, "unknown store; the rule is counted in the default store");
            }
            // Another node's file may leave space for more rules. Too many would make the whole set
            // invalid.
            if available == 0 {
                left_out += 1;
                continue;
            }
            available -= 1;
            builder = builder.rule(rule);
        }
        if left_out > 0 {
            tracing::error!(
                rules = left_out,
                max = RULES_MAX,
                "newest catalog rules skipped: the maximum number of rules is exceeded"
            );
        }
        for plan in &self.catalog.plans {
            if self.file.plans.iter().any(|(name, _)| *name == plan.name) {
                tracing::warn!(
                    plan = plan.name,
                    "catalog plan skipped: the configuration file defines a plan with the same name"
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

    /// Number of rules in the file, including those for descriptors.
    fn file_rule_count(&self) -> usize {
        self.file.rules.len() + self.file.descriptors.len()
    }

    /// The id of a rule of the file, which depends only on its variant.
    pub fn file_rule_id(rule: &Rule) -> String {
        let mut id = rule.variant_key();
        id.truncate(32);
        id.insert_str(0, "file-");
        id
    }

    /// The file's rule with this id.
    pub fn file_rule(&self, rule_id: &str) -> Option<&Rule> {
        let is_file = rule_id.starts_with("file-");
        self.file.rules.iter().filter(|_| is_file).find(|rule| Self::file_rule_id(rule) == rule_id)
    }

    /// All rules, of the file and of the catalog.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.file.rules.iter().chain(self.catalog.rules.iter().map(|stored| &stored.rule))
    }
}

/// Why the rules could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The rules are inconsistent.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
}
