//! Who may use admin operations: the holder of the admin key, from an allowed address.

use std::fmt;
use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::respond::{ApiError, Code};

/// The admin key, of which only a hash is kept.
#[derive(Clone)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
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

/// Refuses whoever may not use admin operations.
pub(crate) fn authorise(
    headers: &HeaderMap,
    peer: IpAddr,
    key: &AdminKey,
    allow: &[IpNet],
) -> Result<(), ApiError> {
    // The address first: whoever may not even ask learns nothing about keys.
    if !allow.is_empty() && !allow.iter().any(|network| network.contains(&peer.to_canonical())) {
        return Err(ApiError::new(Code::Forbidden, "admin operations are not allowed from this address"));
    }
    match presented(headers) {
        Some(candidate) if key.is(candidate) => Ok(()),
        Some(_) => Err(ApiError::new(Code::Unauthenticated, "the API key is not valid")),
        None => {
            let message = "this operation needs the admin key, as X-API-Key or Authorization: Bearer";
            Err(ApiError::new(Code::Unauthenticated, message))
        }
    }
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key") {
        return Some(key.as_bytes());
    }
    let authorization = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = authorization.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
