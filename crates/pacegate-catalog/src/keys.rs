//! API keys in the catalog. Only the hashes of their secrets are stored.

use std::collections::HashSet;

use pacegate::{Timestamp, identity};
use pacegate_config::Role;
use pacegate_core::Named as _;
use sqlx::any::AnyRow;
use subtle::ConstantTimeEq;

use crate::audit::{Action, Entry};
use crate::bounds::is_id;
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::digest::{keyed, random_hexadecimal};
use crate::error::CatalogError;
use crate::json;
use crate::precondition::Expected;
use crate::record::{Actor, StoredKey};
use crate::seal::Sealed;
use crate::statement::{column, optional_time, time};

/// Maximum length of a secret that the operator chooses, in bytes.
const SECRET_LENGTH_MAX: usize = 1_024;

const SELECT: &str = "SELECT key_id, name, role, created_at, expires_at, revoked_at, last_used_at, hash FROM pacegate_api_keys";

/// A new key.
struct NewKey {
    key_id: String,
    role: String,
    name: String,
    expires_at: Option<Timestamp>,
    hash: String,
}

impl Catalog {
    /// Creates a key with the role `admin`, `reader` or `checker`. Its secret is returned here and
    /// never again.
    ///
    /// # Errors
    /// [`CatalogError`] when a value is invalid, or the expiry is not in the future.
    pub async fn create_key(
        &self,
        actor: &Actor,
        role: &str,
        name: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<(StoredKey, String), CatalogError> {
        let key_id = random_hexadecimal::<8>()?;
        let secret = format!("pgk_{key_id}_{}", random_hexadecimal::<32>()?);
        let (key, _) = self.insert_key(actor, key_id, &secret, role, name, expires_at).await?;
        Ok((key, secret))
    }

    /// Creates a key with a secret that the operator chose; returns whether it was created. A
    /// secret that exists already changes nothing.
    ///
    /// # Errors
    /// [`CatalogError`] when a value is invalid.
    pub async fn create_key_with_secret(
        &self,
        actor: &Actor,
        secret: &str,
        role: &str,
        name: &str,
    ) -> Result<(StoredKey, bool), CatalogError> {
        identity::check_text("secret", secret, SECRET_LENGTH_MAX)?;
        if let Some(key) = self.key_by_secret(secret).await? {
            return Ok((key, false));
        }
        self.insert_key(actor, random_hexadecimal::<8>()?, secret, role, name, None).await
    }

    async fn insert_key(
        &self,
        actor: &Actor,
        key_id: String,
        secret: &str,
        role: &str,
        name: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<(StoredKey, bool), CatalogError> {
        if Role::parse(role).is_none() {
            return Err(CatalogError::invalid("role", format!("expected {}", Role::expected())));
        }
        identity::check_text("name", name, identity::NAME_LENGTH_MAX)?;
        let new = NewKey {
            key_id,
            role: role.to_owned(),
            name: name.to_owned(),
            expires_at,
            hash: self.hash_of(secret),
        };
        self.change(actor, Part::Keys, new, |change, new| Box::pin(insert(change, new))).await
    }

    /// The stored hash of a secret. The catalog's pepper hides whether two catalogs contain the
    /// same key.
    fn hash_of(&self, secret: &str) -> String {
        keyed(&self.pepper, secret)
    }

    /// All keys by age, including revoked and expired ones.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn keys(&self) -> Result<Vec<StoredKey>, CatalogError> {
        let statement = self.statement(&format!("{SELECT} ORDER BY created_at, key_id"));
        self.rows(statement).await?.iter().map(read).collect()
    }

    /// The key with this secret, even if it is revoked or expired.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn key_by_secret(&self, secret: &str) -> Result<Option<StoredKey>, CatalogError> {
        let hash = self.hash_of(secret);
        let statement = self.statement(&format!("{SELECT} WHERE hash = ?")).bind(hash.clone());
        let Some(row) = self.row(statement).await? else { return Ok(None) };
        let kept: &str = column(&row, 7)?;
        // The database's collation may ignore case.
        let is_same = bool::from(kept.as_bytes().ct_eq(hash.as_bytes()));
        if is_same { read(&row).map(Some) } else { Ok(None) }
    }

    /// The hashes of the `max` newest keys that are not revoked, so that guesses can be rejected
    /// without a query each.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn key_hashes(&self, max: u32) -> Result<HashSet<String>, CatalogError> {
        let sql = format!(
            "SELECT hash FROM pacegate_api_keys WHERE revoked_at IS NULL ORDER BY created_at DESC LIMIT {max}"
        );
        let rows = self.rows(self.statement(&sql)).await?;
        rows.iter().map(|row| column::<&str>(row, 0).map(str::to_owned)).collect()
    }

    /// Whether `hashes`, from [`key_hashes`](Self::key_hashes), contains the hash of a secret.
    pub fn has_secret(&self, hashes: &HashSet<String>, secret: &str) -> bool {
        hashes.contains(&self.hash_of(secret))
    }

    /// Revokes a key if `expected` holds. Revoking a revoked key changes nothing.
    ///
    /// # Errors
    /// [`CatalogError`]: not found, or changed by a concurrent request.
    pub async fn revoke_key(
        &self,
        actor: &Actor,
        key_id: &str,
        expected: Option<Expected>,
    ) -> Result<StoredKey, CatalogError> {
        let input = (key_id.to_owned(), expected);
        self.change(actor, Part::Keys, input, |change, (key_id, expected)| {
            Box::pin(revoke(change, key_id, *expected))
        })
        .await
    }

    /// Records the use of a key, unless a later use is recorded. This is not a change: it has no
    /// audit record.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn note_key_use(&self, key_id: &str, at: Timestamp) -> Result<(), CatalogError> {
        let sql = "UPDATE pacegate_api_keys SET last_used_at = ? WHERE key_id = ? AND (last_used_at IS NULL OR last_used_at < ?)";
        if !is_id(key_id) {
            return Ok(());
        }
        self.run(self.statement(sql).time(at).bind(key_id.to_owned()).time(at)).await.map(drop)
    }

    /// Whether there is a key with the role `admin` that is neither revoked nor expired.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn has_admin_key(&self) -> Result<bool, CatalogError> {
        let sql = format!(
            "{SELECT} WHERE role = 'admin' AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?) LIMIT 1"
        );
        let statement = self.statement(&sql).time(self.clock.now());
        Ok(self.row(statement).await?.is_some())
    }
}

async fn insert(change: &mut Change<'_>, new: &NewKey) -> Result<(StoredKey, bool), CatalogError> {
    let statement = change.statement(&format!("{SELECT} WHERE hash = ?")).bind(new.hash.clone());
    if let Some(row) = statement.row(change.connection).await? {
        // Another node has just created it.
        return Ok((read(&row)?, false));
    }
    if new.expires_at.is_some_and(|expires_at| expires_at <= change.now) {
        return Err(CatalogError::invalid("expires_at", "must be in the future"));
    }
    let key = StoredKey {
        key_id: new.key_id.clone(),
        name: new.name.clone(),
        role: new.role.clone(),
        created_at: change.now,
        expires_at: new.expires_at,
        revoked_at: None,
        last_used_at: None,
    };
    let sql = "INSERT INTO pacegate_api_keys (key_id, name, role, hash, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)";
    let statement = change.statement(sql).bind(key.key_id.clone()).bind(key.name.clone());
    let statement = statement.bind(key.role.clone()).bind(new.hash.clone()).time(key.created_at);
    statement.bind(key.expires_at.map(crate::statement::micros)).run(change.connection).await?;
    change.seal(Sealed::Keys, std::slice::from_ref(&key.key_id)).await?;
    let (subject, after) = (key.key_id.as_str(), Some(json::key(&key)));
    change.record(Entry { action: Action::KeyCreate, subject, user_id: None, before: None, after }).await?;
    Ok((key, true))
}

async fn revoke(
    change: &mut Change<'_>,
    key_id: &str,
    expected: Option<Expected>,
) -> Result<StoredKey, CatalogError> {
    if !is_id(key_id) {
        return Err(CatalogError::not_found("unknown key"));
    }
    let statement = change.statement(&format!("{SELECT} WHERE key_id = ?")).bind(key_id.to_owned());
    let row = statement.row(change.connection).await?;
    let before = read(&row.ok_or_else(|| CatalogError::not_found("unknown key"))?)?;
    Expected::check(expected, Some(before.version()), "key")?;
    if before.revoked_at.is_some() {
        return Ok(before);
    }
    let after = StoredKey { revoked_at: Some(change.now), ..before.clone() };
    let update = change.statement("UPDATE pacegate_api_keys SET revoked_at = ? WHERE key_id = ?");
    update.time(change.now).bind(key_id.to_owned()).run(change.connection).await?;
    change.seal(Sealed::Keys, &[key_id.to_owned()]).await?;
    let (old, new) = (Some(json::key(&before)), Some(json::key(&after)));
    change
        .record(Entry { action: Action::KeyRevoke, subject: key_id, user_id: None, before: old, after: new })
        .await?;
    Ok(after)
}

fn read(row: &AnyRow) -> Result<StoredKey, CatalogError> {
    Ok(StoredKey {
        key_id: column(row, 0)?,
        name: column(row, 1)?,
        role: column(row, 2)?,
        created_at: time(row, 3)?,
        expires_at: optional_time(row, 4)?,
        revoked_at: optional_time(row, 5)?,
        last_used_at: optional_time(row, 6)?,
    })
}
