//! Who may use admin operations: the holder of an admin key, from an allowed address.

use std::fmt;
use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::app::Shared;
use crate::profiles::now;
use crate::respond::{ApiError, Code};

/// An admin key that the operator chose, of which only a hash is kept.
#[derive(Clone)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
    /// What it is called in the audit trail.
    pub const ID: &'static str = "configured";

    /// Remembers the hash of `secret`.
    pub fn new(secret: &str) -> Self {
        Self { digest: Sha256::digest(secret.as_bytes()).into() }
    }

    /// Compares hashes in constant time, so that neither the secret nor its length can be guessed from how long it takes.
    fn is(&self, candidate: &[u8]) -> bool {
        let candidate: [u8; 32] = Sha256::digest(candidate).into();
        self.digest.ct_eq(&candidate).into()
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminKey(…)")
    }
}

/// Refuses whoever may not use admin operations; says which key it was.
pub(crate) async fn authorise(
    shared: &Shared,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
) -> Result<String, ApiError> {
    // The address first: whoever may not even ask learns nothing about keys.
    let allow = &shared.admin_allow;
    let peer = peer.map(|address| address.to_canonical());
    if !allow.is_empty() && !peer.is_some_and(|peer| allow.iter().any(|network| network.contains(&peer))) {
        return Err(ApiError::new(Code::Forbidden, "admin operations are not allowed from this address"));
    }
    let Some(candidate) = presented(headers) else {
        let message = "this operation needs an admin key, as X-API-Key or Authorization: Bearer";
        return Err(ApiError::new(Code::Unauthenticated, message));
    };
    if shared.admin_key.as_ref().is_some_and(|key| key.is(candidate)) {
        return Ok(AdminKey::ID.to_owned());
    }
    let not_valid = || ApiError::new(Code::Unauthenticated, "the API key is not valid");
    let (Some(live), Ok(secret)) = (&shared.live, std::str::from_utf8(candidate)) else {
        return Err(not_valid());
    };
    let key = live.catalog.key_by_secret(secret).await?.ok_or_else(not_valid)?;
    // Whoever has the secret may know why it does not open anything any more.
    if key.revoked_at.is_some() {
        return Err(ApiError::new(Code::Unauthenticated, "the API key was revoked"));
    }
    if key.expires_at.is_some_and(|expires_at| expires_at <= now()) {
        return Err(ApiError::new(Code::Unauthenticated, "the API key has expired"));
    }
    if key.role != "admin" {
        return Err(ApiError::new(Code::Forbidden, "this operation needs a key of the role admin"));
    }
    Ok(key.key_id)
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key") {
        return Some(key.as_bytes());
    }
    let authorization = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = authorization.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
