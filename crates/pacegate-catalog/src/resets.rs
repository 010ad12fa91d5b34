//! Records of counter resets. Counters are not part of the catalog, but the audit record of a reset
//! is.

use serde_json::json;

use crate::audit::{Action, Entry};
use crate::catalog::Catalog;
use crate::change::Part;
use crate::error::CatalogError;
use crate::record::Actor;

impl Catalog {
    /// Records that `actor` resets the counters of these identities (dimension and identifier) at
    /// an endpoint.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn record_reset(
        &self,
        actor: &Actor,
        identities: &[(&str, &str)],
        endpoint: Option<&str>,
    ) -> Result<(), CatalogError> {
        let owned =
            |(dimension, identifier): &(&str, &str)| ((*dimension).to_owned(), (*identifier).to_owned());
        let identities: Vec<(String, String)> = identities.iter().map(owned).collect();
        let input = (identities, endpoint.map(str::to_owned));
        self.change(actor, Part::Counters, input, |change, (identities, endpoint)| {
            Box::pin(async move {
                let names =
                    identities.iter().map(|(dimension, identifier)| format!("{dimension}:{identifier}"));
                let subject = names.collect::<Vec<_>>().join(" ");
                let user = identities.iter().find(|(dimension, _)| dimension == "user");
                let user_id = user.map(|(_, identifier)| identifier.as_str());
                let parts = identities
                    .iter()
                    .map(|(dimension, identifier)| json!({"dimension": dimension, "identifier": identifier}));
                let after = Some(json!({"identities": parts.collect::<Vec<_>>(), "endpoint": endpoint}));
                let entry =
                    Entry { action: Action::CountersReset, subject: &subject, user_id, before: None, after };
                change.record(entry).await
            })
        })
        .await
    }
}
