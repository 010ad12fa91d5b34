//! API keys.

use std::time::Duration;

use pacegate_catalog::AuditFilter;

use super::{TestDatabase, actor};

pub(crate) async fn only_the_hash_of_a_secret_is_stored(database: &TestDatabase) {
    let catalog = database.open().await;
    assert!(!catalog.has_admin_key().await.unwrap());
    let (key, secret) = catalog.create_key(&actor(), "reader", "Grafana 📈", None).await.unwrap();
    let parts: Vec<&str> = secret.split('_').collect();
    assert_eq!((parts[0], parts[1], parts[2].len()), ("pgk", key.key_id.as_str(), 64));
    assert_eq!((key.key_id.len(), key.role.as_str(), key.name.as_str()), (16, "reader", "Grafana 📈"));
    assert_eq!(catalog.key_by_secret(&secret).await.unwrap(), Some(key.clone()));
    for wrong in ["", "pgk", &secret[1..], &secret.to_uppercase(), &format!("{secret} ")] {
        assert_eq!(catalog.key_by_secret(wrong).await.unwrap(), None, "{wrong}");
    }
    assert!(!catalog.has_admin_key().await.unwrap());
    let (admin, other) = catalog.create_key(&actor(), "admin", "me", None).await.unwrap();
    assert_ne!(other, secret);
    assert!(catalog.has_admin_key().await.unwrap());
    assert_eq!(catalog.keys().await.unwrap().len(), 2);

    // Neither the table nor the trail contains the secret or its tail.
    let found = format!("SELECT COUNT(*) FROM pacegate_api_keys WHERE hash LIKE '%{}%'", parts[2]);
    assert_eq!(database.number(&found).await, 0);
    for record in catalog.audit_page(AuditFilter::default(), None, 10).await.unwrap() {
        let text = format!("{record:?}");
        assert!(!text.contains(parts[2]) && !text.contains("hash\":"), "{text}");
    }
    assert_eq!(admin.created_at, database.now());
}

pub(crate) async fn revoked_and_expired_keys_are_marked(database: &TestDatabase) {
    let catalog = database.open().await;
    let (forever, secret) = catalog.create_key(&actor(), "admin", "a", None).await.unwrap();
    database.clock.advance(Duration::from_secs(1));
    let (brief, brief_secret) =
        catalog.create_key(&actor(), "admin", "b", Some(database.after(10))).await.unwrap();
    assert!(brief.is_live(database.now()) && !brief.is_live(database.after(10)));
    assert_eq!(catalog.keys().await.unwrap(), [forever.clone(), brief.clone()]);

    let revoked = catalog.revoke_key(&actor(), &forever.key_id, None).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(database.now()));
    assert!(!revoked.is_live(database.now()));
    assert_eq!(catalog.key_by_secret(&secret).await.unwrap(), Some(revoked.clone()));
    let revision = catalog.revision().await.unwrap();
    database.clock.advance(Duration::from_secs(1));
    assert_eq!(catalog.revoke_key(&actor(), &forever.key_id, None).await.unwrap(), revoked);
    assert_eq!(catalog.revision().await.unwrap(), revision, "revoking again changes nothing");
    for unknown in ["0123456789abcdef", "a\0", ""] {
        assert!(catalog.revoke_key(&actor(), unknown, None).await.unwrap_err().is_not_found());
    }

    assert!(catalog.has_admin_key().await.unwrap());
    database.clock.advance(Duration::from_secs(60));
    assert!(!catalog.has_admin_key().await.unwrap());
    assert_eq!(catalog.key_by_secret(&brief_secret).await.unwrap(), Some(brief.clone()));

    for (at, noted) in [
        (database.now(), database.now()),
        (database.after(5), database.after(5)),
        (database.now(), database.after(5)),
    ] {
        catalog.note_key_use(&brief.key_id, at).await.unwrap();
        assert_eq!(catalog.key_by_secret(&brief_secret).await.unwrap().unwrap().last_used_at, Some(noted));
    }
    catalog.note_key_use("\0", database.now()).await.unwrap();
    assert_eq!(catalog.revision().await.unwrap(), revision);
}

pub(crate) async fn chosen_secret_is_stored_once(database: &TestDatabase) {
    let catalog = database.open().await;
    let (key, created) = catalog
        .create_key_with_secret(&actor(), "my own secret", "admin", "PACEGATE_ADMIN_KEY")
        .await
        .unwrap();
    assert!(created && catalog.has_admin_key().await.unwrap());
    let revision = catalog.revision().await.unwrap();
    let again = catalog.create_key_with_secret(&actor(), "my own secret", "reader", "other").await.unwrap();
    assert_eq!(again, (key.clone(), false));
    assert_eq!(catalog.revision().await.unwrap(), revision);
    assert_eq!(catalog.key_by_secret("my own secret").await.unwrap(), Some(key));
    assert_eq!(catalog.key_by_secret("My own secret").await.unwrap(), None);
}

pub(crate) async fn invalid_keys_are_rejected(database: &TestDatabase) {
    let catalog = database.open().await;
    let long = "n".repeat(129);
    for (field, role, name, expires_at) in [
        ("role", "root", "a", None),
        ("name", "admin", "", None),
        ("name", "admin", long.as_str(), None),
        ("name", "admin", "a\nb", None),
        ("expires_at", "admin", "a", Some(database.now())),
    ] {
        let error = catalog.create_key(&actor(), role, name, expires_at).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some(field), "{error}");
    }
    let error = catalog.create_key_with_secret(&actor(), "", "admin", "a").await.unwrap_err();
    assert!(error.is_invalid() && error.field() == Some("secret"), "{error}");
    assert_eq!(catalog.revision().await.unwrap().all, 0);
}
