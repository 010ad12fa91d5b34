//! What the limiter is asked about one request.

use std::borrow::Cow;

use pacegate::{Check, Cost};
use smallvec::SmallVec;

use crate::gate::Gate;
use crate::resolve::Identity;

/// A [`Check`] that owns what resolvers made up, and borrows the rest from the request.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) identities: SmallVec<[Identity<'a>; 1]>,
    /// Where the request goes, and its method, for rules.
    pub(crate) place: Option<(Cow<'a, str>, Cow<'a, str>)>,
    /// The plan that was chosen for this request.
    pub(crate) plan: Option<Cow<'a, str>>,
    pub(crate) cost: Cost,
}

impl Question<'_> {
    #[inline]
    pub(crate) fn check<'c>(&'c self, gate: &'c Gate) -> Option<Check<'c>> {
        let (first, others) = self.identities.split_first()?;
        let mut check = Check::new(first.dimension(), first.identifier()).cost(self.cost);
        for identity in others {
            check = check.and(identity.dimension(), identity.identifier());
        }
        if let Some((endpoint, method)) = &self.place {
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

    /// The same, without a request that it borrows from.
    pub(crate) fn into_owned(self) -> Question<'static> {
        fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
            Cow::Owned(text.into_owned())
        }
        Question {
            identities: self.identities.into_iter().map(Identity::into_owned).collect(),
            place: self.place.map(|(endpoint, method)| (owned(endpoint), owned(method))),
            plan: self.plan.map(owned),
            cost: self.cost,
        }
    }
}
