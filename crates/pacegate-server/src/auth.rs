//! Authentication and authorisation: API keys with roles, addresses, and rate limits of each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use ipnet::IpNet;
use pacegate::{Algorithm, Check, Decision, Limit, Limiter, Stores};
use pacegate_catalog::Actor;
use pacegate_config::{AdHocCallers, Config, LoggedKeys, Role};
use pacegate_core::hexadecimal;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use crate::clock::now;
use crate::live::Live;
use crate::observe::lines;
use crate::peer::{Identity, Peer};
use crate::respond::{ApiError, Code};
use pacegate_http::CertificateName;
use pacegate_http::request_id::{REQUEST_ID, as_text};
use pacegate_http::server::PerSecond;
use pacegate_http::server::{ClientCertificate, network_of};

/// Returns the actor of a change made with the key of this id, for the audit trail.
pub(crate) fn actor(key_id: String, peer: Option<&Peer>, headers: &HeaderMap) -> Actor {
    Actor {
        key_id,
        address: peer.map(|peer| peer.ip().to_string()),
        request_id: headers.get(&REQUEST_ID).map(|id| as_text(id).to_owned()),
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// Time between two checks that the caller of a long stream is still admitted.
pub(crate) const ADMIT_EVERY: Duration = pacegate_http::server::CERTIFICATE_CHECK_EVERY;
/// Maximum number of invalid keys per address and minute.
const ATTEMPTS_PER_MINUTE: u64 = 20;
/// Maximum number of log lines about rejected keys per second.
const LINES_PER_SECOND: u64 = 1;

/// An admin key chosen by the operator. Only its hash is stored.
#[derive(Clone)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
    /// Minimum length for a service that other machines can reach, in characters.
    pub const LENGTH_MIN: usize = 8;
    /// Length from which a random key cannot be guessed, in characters.
    pub const LENGTH_SAFE: usize = 16;
    /// The id of this key in the audit trail.
    pub const ID: &'static str = "configured";

    /// Stores the hash of `secret`.
    pub fn new(secret: &str) -> Self {
        Self { digest: Sha256::digest(secret.as_bytes()).into() }
    }

    /// Compares hashes in constant time, so that timing reveals neither the secret nor its length.
    fn is(&self, candidate: &[u8; 32]) -> bool {
        self.digest.ct_eq(candidate).into()
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminKey(…)")
    }
}

/// The kind of access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Charge limits.
    Check,
    /// Read the state of limits.
    Look,
    /// Read rules, users, keys and logs.
    Read,
    /// Change them.
    Write,
}

/// The caller: the id of a key, or the name in a certificate.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key_id: String,
    pub(crate) role: Role,
}

fn require(role: Role, need: Need) -> Result<(), ApiError> {
    let may = match role {
        Role::Admin => true,
        Role::Reader => matches!(need, Need::Look | Need::Read),
        Role::Checker => matches!(need, Need::Check | Need::Look),
    };
    let wanted = match need {
        _ if may => return Ok(()),
        Need::Check => "checker or admin",
        Need::Look => "checker, reader or admin",
        Need::Read => "reader or admin",
        Need::Write => "admin",
    };
    Err(ApiError::new(Code::Forbidden, format!("this operation requires an API key with role {wanted}")))
}

/// Admits or rejects callers.
#[derive(Debug)]
pub(crate) struct Gate {
    admin_key: Option<AdminKey>,
    /// Holds the keys of the catalog, if there is one.
    live: Option<Arc<Live>>,
    /// Networks from which admin operations are allowed; all if empty.
    admin_allow: Vec<IpNet>,
    /// The roles of names in client certificates.
    identities: Vec<(CertificateName, Role)>,
    /// Whether checks require a key as well.
    require_key: bool,
    /// Time during which a known key stays valid while the catalog is unavailable.
    key_max_age: Duration,
    /// The limits of the service's own operations, counted in this process.
    own_limits: Limiter,
    rejected: RejectedKeys,
}

/// Why a key is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFailure {
    Unknown,
    LockedOut,
    Revoked,
    Expired,
}

impl KeyFailure {
    const ALL: [Self; 4] = [Self::Unknown, Self::LockedOut, Self::Revoked, Self::Expired];

    fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::LockedOut => "locked_out",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
        }
    }
}

/// Counts rejected keys, and logs some of them.
#[derive(Debug)]
struct RejectedKeys {
    counts: [AtomicU64; KeyFailure::ALL.len()],
    lines: PerSecond,
    shown: LoggedKeys,
}

impl RejectedKeys {
    fn new(shown: LoggedKeys) -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            lines: PerSecond::new(LINES_PER_SECOND),
            shown,
        }
    }

    /// Counts and logs a rejected key from `address`. Neither the key nor its hash is logged.
    fn note(&self, failure: KeyFailure, address: &str) {
        let total = self.counts[failure as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if self.lines.admit() {
            let address = &*lines::shown(address, self.shown);
            tracing::warn!(reason = failure.name(), address, total, "API key rejected");
        }
    }
}

impl Gate {
    pub(crate) fn new(config: &Config, live: Option<Arc<Live>>, admin_key: Option<AdminKey>) -> Self {
        Self {
            admin_key,
            live,
            admin_allow: config.server.admin_allow.clone(),
            identities: config.server.tls.iter().flat_map(|tls| tls.identities.clone()).collect(),
            require_key: config.server.require_key,
            key_max_age: config.catalog.key_max_age,
            own_limits: own_limits(config, Stores::default()),
            rejected: RejectedKeys::new(config.log.keys),
        }
    }

    /// Returns the identity in a certificate: the first name with a role, or else the first name.
    pub(crate) fn identify(&self, certificate: &ClientCertificate) -> Option<Identity> {
        let names = certificate.names();
        let role_of = |name: &CertificateName| {
            self.identities.iter().find(|(own, _)| own == name).map(|(_, role)| *role)
        };
        let name = names.iter().find(|name| role_of(name).is_some()).or(names.first())?;
        Some(Identity { role: role_of(name), name: name.to_string().into() })
    }

    /// Returns the number of rejected keys by reason.
    pub(crate) fn rejected_keys(&self) -> [(&'static str, u64); KeyFailure::ALL.len()] {
        KeyFailure::ALL
            .map(|failure| (failure.name(), self.rejected.counts[failure as usize].load(Ordering::Relaxed)))
    }

    /// Returns the number of suppressed log lines about rejected keys.
    pub(crate) fn suppressed_lines(&self) -> u64 {
        self.rejected.lines.suppressed()
    }

    /// Admits a check.
    #[inline]
    pub(crate) async fn admit_check(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<(), ApiError> {
        if !self.require_key {
            return Ok(());
        }
        // Boxed: a query to the catalog would make the future of every check larger.
        Box::pin(self.authenticate(headers, peer, need)).await.map(drop)
    }

    /// Admits a management request; returns the id of its key.
    pub(crate) async fn admit(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<String, ApiError> {
        self.admit_caller(headers, peer, need).await.map(|caller| caller.key_id)
    }

    /// Like [`admit`](Self::admit), but also returns the role of the caller.
    pub(crate) async fn admit_caller(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<Caller, ApiError> {
        // The address is checked first, so that a rejected address learns nothing about keys.
        let allowed = |peer: &Peer| self.admin_allow.iter().any(|network| network.contains(&peer.ip()));
        if !self.admin_allow.is_empty() && !peer.is_some_and(allowed) {
            return Err(ApiError::new(Code::Forbidden, "admin operations are not allowed from this address"));
        }
        let caller = self.authenticate(headers, peer, need).await?;
        let plan = if need == Need::Write { "writes" } else { "reads" };
        self.charge(&caller.key_id, plan, "management rate limit of this key exceeded")?;
        Ok(caller)
    }

    /// Admits a caller with a key, or a certificate with a role, even where checks require none.
    pub(crate) async fn admit_known(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<(), ApiError> {
        self.authenticate(headers, peer, need).await.map(drop)
    }

    /// Completes when the caller of a stream is no longer admitted. Checked every few seconds: the
    /// key may have been revoked, or the certificate may have expired.
    pub(crate) async fn until_rejected(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> ApiError {
        let mut admitted = Instant::now();
        loop {
            tokio::time::sleep(ADMIT_EVERY).await;
            if let Some(error) = peer.and_then(Peer::certificate_error) {
                return error;
            }
            match self.admit_check(headers, peer, need).await {
                Ok(()) => admitted = Instant::now(),
                // A short outage of the catalog ends no stream.
                Err(error)
                    if !matches!(error.code, Code::Unauthenticated | Code::Forbidden)
                        && admitted.elapsed() < self.key_max_age => {}
                Err(error) => return error,
            }
        }
    }

    /// Returns whether a caller may refund checks.
    pub(crate) async fn may_refund(&self, headers: &HeaderMap, peer: Option<&Peer>) -> bool {
        // Boxed as in `admit_check`, which has authenticated the caller where checks require a key.
        self.require_key || Box::pin(self.authenticate(headers, peer, Need::Check)).await.is_ok()
    }

    /// Rejects an ad-hoc limit from a caller that may not send one.
    pub(crate) async fn permit_ad_hoc(
        &self,
        allow: AdHocCallers,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<(), ApiError> {
        match allow {
            AdHocCallers::Always => Ok(()),
            AdHocCallers::WithKey if self.require_key => Ok(()),
            AdHocCallers::WithKey => {
                let known = self.authenticate(headers, peer, Need::Look).await;
                known.map(drop).map_err(|error| match presented(headers) {
                    Some(_) => error,
                    None => {
                        let reason = "ad-hoc limits require an API key, as X-API-Key or Authorization: Bearer (ad_hoc.allow)";
                        ApiError::field(Code::Unauthenticated, "limit", reason)
                    }
                })
            }
            AdHocCallers::Never => {
                Err(ApiError::field(Code::Forbidden, "limit", "ad-hoc limits are not allowed (ad_hoc.allow)"))
            }
        }
    }

    /// Returns the sender of a request, for bounds per sender: the key where checks require one,
    /// otherwise the address, because unverified keys can be made up.
    pub(crate) fn sender(&self, headers: &HeaderMap, peer: Option<&Peer>) -> String {
        match (presented(headers), peer) {
            (Some(key), _) if self.require_key => hexadecimal(&Sha256::digest(key)[..16]),
            (_, Some(peer)) => network_of(peer.ip()).to_string(),
            (_, None) => "unknown".to_owned(),
        }
    }

    async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<Caller, ApiError> {
        let Some(candidate) = presented(headers) else {
            // Without a key, a valid certificate authenticates the caller.
            if let Some(error) = peer.and_then(Peer::certificate_error) {
                return Err(error);
            }
            if let Some(Identity { name, role: Some(role) }) = peer.and_then(|peer| peer.identity.as_deref())
            {
                let caller = Caller { key_id: format!("certificate:{name}"), role: *role };
                return require(*role, need).map(|()| caller);
            }
            let message = "this operation requires an API key, as X-API-Key or Authorization: Bearer";
            return Err(ApiError::new(Code::Unauthenticated, message));
        };
        let address = || peer.map_or_else(|| "unknown".to_owned(), |peer| network_of(peer.ip()).to_string());
        // A short key may be a guess even if it is correct.
        if candidate.len() < AdminKey::LENGTH_SAFE {
            self.may_try(&address()).await?;
        }
        let digest: [u8; 32] = Sha256::digest(candidate).into();
        if self.admin_key.as_ref().is_some_and(|key| key.is(&digest)) {
            return Ok(Caller { key_id: AdminKey::ID.to_owned(), role: Role::Admin });
        }
        let Some(Live { keys, .. }) = self.live.as_deref() else {
            self.may_try(&address()).await?;
            return Err(self.failed(&address()));
        };
        let known = match keys.known(&digest) {
            Some(known) => known,
            None => {
                // Before the catalog is queried, so that guesses do not load the database. An
                // existing key is not locked out because of guesses from its address.
                let address = address();
                if !keys.has_seen(&digest)
                    && let Err(locked_out) = self.attempts_left(&address).await
                    && !keys.is_key(candidate).await
                {
                    self.rejected.note(KeyFailure::LockedOut, &address);
                    return Err(locked_out);
                }
                keys.look_up(candidate, &digest).await?.ok_or_else(|| self.failed(&address))?
            }
        };
        // The holder of the secret may learn why the key was rejected.
        if known.revoked {
            self.rejected.note(KeyFailure::Revoked, &address());
            return Err(ApiError::new(Code::Unauthenticated, "the API key was revoked"));
        }
        if known.expires_at.is_some_and(|expires_at| expires_at <= now()) {
            self.rejected.note(KeyFailure::Expired, &address());
            return Err(ApiError::new(Code::Unauthenticated, "the API key has expired"));
        }
        require(known.role, need)?;
        Ok(Caller { key_id: known.key_id.to_string(), role: known.role })
    }

    /// Rejects a key from a locked-out address.
    async fn may_try(&self, address: &str) -> Result<(), ApiError> {
        self.attempts_left(address).await.inspect_err(|_| self.rejected.note(KeyFailure::LockedOut, address))
    }

    /// Returns an error if an address is locked out.
    async fn attempts_left(&self, address: &str) -> Result<(), ApiError> {
        match self.own_limits.peek(&Check::key(address).plan("attempts")).await {
            Ok(decision) if !decision.allowed() => {
                Err(too_many(&decision, "too many invalid API keys from this address"))
            }
            _ => Ok(()),
        }
    }

    /// Counts an invalid key and returns its error.
    fn failed(&self, address: &str) -> ApiError {
        // Concurrent attempts beyond the limit still get the same response.
        let _ = self.own_limits.check_now(Check::key(address).plan("attempts"));
        self.rejected.note(KeyFailure::Unknown, address);
        ApiError::new(Code::Unauthenticated, "the API key is not valid")
    }

    fn charge(&self, who: &str, plan: &str, message: &str) -> Result<(), ApiError> {
        match self.own_limits.check_now(Check::key(who).plan(plan)) {
            Ok(decision) if !decision.allowed() => Err(too_many(&decision, message)),
            // An error of the limiter does not lock operators out.
            _ => Ok(()),
        }
    }
}

/// Builds the limits of the service's own operations. A sliding log holds them in any minute, not
/// only in minutes that start with a full bucket.
fn own_limits(config: &Config, stores: Stores) -> Limiter {
    let plans = [
        ("reads", config.management.reads_per_minute),
        ("writes", config.management.writes_per_minute),
        ("attempts", ATTEMPTS_PER_MINUTE),
    ];
    let builder = plans.into_iter().fold(Limiter::builder().stores(stores), |builder, (name, quota)| {
        // The configuration bounds the quotas, so that each limit is valid.
        builder.plan(name, Limit::try_new(Algorithm::SlidingLog, quota, MINUTE).ok())
    });
    builder.build().unwrap_or_default()
}

fn too_many(decision: &Decision, message: &str) -> ApiError {
    let seconds = decision.retry_after().map_or(1, pacegate_http::headers::seconds_ceil);
    ApiError::new(Code::RateLimited, message).retry_after(seconds)
}

/// Returns the API key that a request presents.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key") {
        return Some(key.as_bytes());
    }
    let authorization = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = authorization.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::VecDeque;

    use pacegate::{MemoryStore, store::Clock};
    use pacegate_testkit::SimulatedClock;

    use super::*;

    #[tokio::test]
    async fn management_limits_hold_in_any_minute() {
        let config = Config::default();
        let clock = Arc::new(SimulatedClock::default());
        let store = MemoryStore::with_clock(config.stores[0].memory, clock.clone());
        let limits = own_limits(&config, Stores::memory(Arc::new(store)));
        for (plan, quota) in [("writes", 100), ("reads", 1_000), ("attempts", 20)] {
            let mut passed = VecDeque::new();
            // Ten per second, then as fast as possible, then slowly, over five minutes.
            for step in [100, 1, 250].into_iter().cycle().take(3_000) {
                clock.advance(Duration::from_millis(step));
                let now = clock.now();
                while passed.front().is_some_and(|first| now.saturating_since(*first) >= MINUTE) {
                    passed.pop_front();
                }
                let has_room = passed.len() < quota;
                let decision = limits.check_now(Check::key("k").plan(plan)).unwrap();
                assert_eq!(decision.allowed(), has_room, "{plan}: {} in the last minute", passed.len());
                if has_room {
                    passed.push_back(now);
                }
            }
        }
    }
}
