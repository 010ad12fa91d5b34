//! Plans that are looked up once.

use std::sync::Arc;

use pacegate_core::Cost;
use pacegate_memory::MemoryStore;
use pacegate_store::Command;
use smallvec::SmallVec;

use crate::decision::{Charged, Decision};
use crate::error::CheckError;
use crate::identity::{self, check_identifier};
use crate::resolved::{charge, decided};
use crate::rule::{NamedLimit, NamedLimits};
use crate::stores::Backend;

/// A plan of a [`Limiter`](crate::Limiter), looked up once: the fastest way to check many keys.
///
/// See [`Limiter::plan`](crate::Limiter::plan).
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::builder().plan("gold", [Limit::per_second(10)]).build()?;
/// let gold = limiter.plan("gold")?;
/// assert!(gold.check_now("user-123", 1)?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) limits: NamedLimits,
    /// `None` if a service decides.
    pub(crate) store: Option<Backend>,
}

impl Plan {
    /// Charges `cost` to all limits of the plan for `key` that count requests, or to none. The
    /// decision cannot be refunded.
    ///
    /// # Errors
    /// [`CheckError`]; [`NotInProcess`](CheckError::NotInProcess) if the store is remote.
    #[inline]
    pub fn check_now(&self, key: &str, cost: impl Into<Cost>) -> Result<Decision, CheckError> {
        let cost = cost.into();
        let Some(Backend::Memory(store)) = &self.store else { return Err(CheckError::NotInProcess) };
        if let [limit] = &*self.limits
            && let Some((at, taken)) = store.take_known(&charge(limit, key, "", limit.cost.unwrap_or(cost)))
        {
            return Ok(Charged::unnamed(at, taken).into());
        }
        self.check_any(store, key, cost)
    }

    /// Returns the limits of the plan that count requests, in the order of the answers of a
    /// decision.
    pub fn limits(&self) -> &[Arc<NamedLimit>] {
        &self.limits
    }

    #[inline(never)]
    fn check_any(&self, store: &MemoryStore, key: &str, cost: Cost) -> Result<Decision, CheckError> {
        check_identifier(key)
            .map_err(|reason| CheckError::InvalidIdentifier { dimension: identity::KEY.into(), reason })?;
        let charges: SmallVec<[_; 4]> =
            self.limits.iter().map(|limit| charge(limit, key, "", limit.cost.unwrap_or(cost))).collect();
        decided(store.apply_now(&Command::take(&charges), None)?).map(Decision::unnamed)
    }
}
