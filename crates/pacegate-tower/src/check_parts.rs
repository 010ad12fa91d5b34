//! The parts of the check of a request.

use std::borrow::Cow;

use pacegate::{Check, Cost};
use smallvec::SmallVec;

use crate::gate::Gate;
use crate::resolve::Identity;

/// The parts of a [`Check`]: owns what resolvers created, and borrows the rest from the request.
#[derive(Clone, Debug)]
pub(crate) struct CheckParts<'a> {
    pub(crate) identities: SmallVec<[Identity<'a>; 1]>,
    /// The path and method of the request, if rules apply.
    pub(crate) target: Option<(Cow<'a, str>, Cow<'a, str>)>,
    /// The plan that was chosen for this request.
    pub(crate) plan: Option<Cow<'a, str>>,
    pub(crate) cost: Cost,
}

impl CheckParts<'_> {
    #[inline]
    pub(crate) fn check<'c>(&'c self, gate: &'c Gate) -> Option<Check<'c>> {
        let (first, others) = self.identities.split_first()?;
        let mut check = Check::new(first.dimension(), first.identifier()).cost(self.cost);
        for identity in others {
            check = check.and(identity.dimension(), identity.identifier());
        }
        if let Some((endpoint, method)) = &self.target {
            check = check.endpoint(endpoint).method(method);
        }
        for plan in gate.plans.iter().map(|plan| &**plan).chain(self.plan.as_deref()) {
            check = check.plan(plan);
        }
        if let Some(limit) = gate.limit {
            check = check.limit(limit);
        }
        Some(check)
    }

    /// Detaches it from the request.
    pub(crate) fn into_owned(self) -> CheckParts<'static> {
        fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
            Cow::Owned(text.into_owned())
        }
        CheckParts {
            identities: self.identities.into_iter().map(Identity::into_owned).collect(),
            target: self.target.map(|(endpoint, method)| (owned(endpoint), owned(method))),
            plan: self.plan.map(owned),
            cost: self.cost,
        }
    }
}
