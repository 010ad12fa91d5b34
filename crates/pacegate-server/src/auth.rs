//! Who may: API keys with roles, addresses, and how often each may ask.

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

/// Who makes a change with the key of this id, for the audit trail.
pub(crate) fn actor(key_id: String, peer: Option<&Peer>, headers: &HeaderMap) -> Actor {
    Actor {
        key_id,
        address: peer.map(|peer| peer.ip().to_string()),
        request_id: headers.get(&REQUEST_ID).map(|id| as_text(id).to_owned()),
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// How often it is made sure that a long stream may go on.
pub(crate) const ADMIT_EVERY: Duration = pacegate_http::server::CERTIFICATE_CHECK_EVERY;
/// How many wrong keys an address may try a minute.
const ATTEMPTS_PER_MINUTE: u64 = 20;
/// How many refused keys have a line in the log each second.
const LINES_PER_SECOND: u64 = 1;

/// An admin key that the operator chose, of which only a hash is kept.
#[derive(Clone)]
pub struct AdminKey {
    digest: [u8; 32],
}

impl AdminKey {
    /// The shortest that opens a service which other machines can reach, in characters.
    pub const LENGTH_MIN: usize = 8;
    /// From this length on a key that was chosen at random cannot be guessed, in characters.
    pub const LENGTH_SAFE: usize = 16;
    /// What it is called in the audit trail.
    pub const ID: &'static str = "configured";

    /// Remembers the hash of `secret`.
    pub fn new(secret: &str) -> Self {
        Self { digest: Sha256::digest(secret.as_bytes()).into() }
    }

    /// Compares hashes in constant time, so that neither the secret nor its length can be guessed from how long it takes.
    fn is(&self, candidate: &[u8; 32]) -> bool {
        self.digest.ct_eq(candidate).into()
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminKey(…)")
    }
}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Charge limits.
    Check,
    /// See how limits stand.
    Look,
    /// See rules, users, keys and logs.
    Read,
    /// Change them.
    Write,
}

/// Who asks: the id of a key, or the name in a certificate.
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
    Err(ApiError::new(Code::Forbidden, format!("this operation needs a key of the role {wanted}")))
}

/// Decides who may do what.
#[derive(Debug)]
pub(crate) struct Gate {
    admin_key: Option<AdminKey>,
    /// Has the keys of the catalog, if there is one.
    live: Option<Arc<Live>>,
    /// Who may manage, by address; everybody when it is empty.
    admin_allow: Vec<IpNet>,
    /// What clients may do by a name in their certificate.
    identities: Vec<(CertificateName, Role)>,
    /// Whether checks need a key as well.
    require_key: bool,
    /// For how long a caller goes on while the catalog does not answer.
    key_max_age: Duration,
    /// The service is limited by its own engine, in this process.
    own_limits: Limiter,
    refused: RefusedKeys,
}

/// Why a key does not open anything.
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

/// Keys that were refused: how many, and a line in the log for some of them.
#[derive(Debug)]
struct RefusedKeys {
    counts: [AtomicU64; KeyFailure::ALL.len()],
    lines: PerSecond,
    shown: LoggedKeys,
}

impl RefusedKeys {
    fn new(shown: LoggedKeys) -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            lines: PerSecond::new(LINES_PER_SECOND),
            shown,
        }
    }

    /// Takes note of one from `address`. Neither the key nor anything made of it is written.
    fn note(&self, failure: KeyFailure, address: &str) {
        let total = self.counts[failure as usize].fetch_add(1, Ordering::Relaxed) + 1;
        if self.lines.admit() {
            let address = &*lines::shown(address, self.shown);
            tracing::warn!(reason = failure.name(), address, total, "API key refused");
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
            refused: RefusedKeys::new(config.log.keys),
        }
    }

    /// Whom a certificate names: the first name with a role, or else the first name.
    pub(crate) fn identify(&self, certificate: &ClientCertificate) -> Option<Identity> {
        let names = certificate.names();
        let role_of = |name: &CertificateName| {
            self.identities.iter().find(|(own, _)| own == name).map(|(_, role)| *role)
        };
        let name = names.iter().find(|name| role_of(name).is_some()).or(names.first())?;
        Some(Identity { role: role_of(name), name: name.to_string().into() })
    }

    /// How many keys were refused, by the reason.
    pub(crate) fn refused_keys(&self) -> [(&'static str, u64); KeyFailure::ALL.len()] {
        KeyFailure::ALL
            .map(|failure| (failure.name(), self.refused.counts[failure as usize].load(Ordering::Relaxed)))
    }

    /// How many refused keys had no line in the log.
    pub(crate) fn lines_held_back(&self) -> u64 {
        self.refused.lines.held_back()
    }

    /// Whether a check may be made at all.
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
        // In a box: the way to the catalog would make the future of every check larger.
        Box::pin(self.authenticate(headers, peer, need)).await.map(drop)
    }

    /// Whether something may be managed; says by whom.
    pub(crate) async fn admit(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<String, ApiError> {
        self.admit_caller(headers, peer, need).await.map(|caller| caller.key_id)
    }

    /// As [`admit`](Self::admit), and says which role the caller has.
    pub(crate) async fn admit_caller(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<Caller, ApiError> {
        // The address first: whoever may not even ask learns nothing about keys.
        let allowed = |peer: &Peer| self.admin_allow.iter().any(|network| network.contains(&peer.ip()));
        if !self.admin_allow.is_empty() && !peer.is_some_and(allowed) {
            return Err(ApiError::new(Code::Forbidden, "admin operations are not allowed from this address"));
        }
        let caller = self.authenticate(headers, peer, need).await?;
        let plan = if need == Need::Write { "writes" } else { "reads" };
        self.charge(&caller.key_id, plan, "this key has used up its management requests")?;
        Ok(caller)
    }

    /// Whether somebody with a key, or a certificate with a role, may do something, even where checks need none.
    pub(crate) async fn admit_known(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> Result<(), ApiError> {
        self.authenticate(headers, peer, need).await.map(drop)
    }

    /// Completes when the caller of a stream of checks may not go on with it. That is looked at every few seconds: the key may have
    /// been revoked, or the certificate may have expired.
    pub(crate) async fn until_refused(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        need: Need,
    ) -> ApiError {
        let mut admitted = Instant::now();
        loop {
            tokio::time::sleep(ADMIT_EVERY).await;
            if let Some(error) = peer.and_then(Peer::refusal) {
                return error;
            }
            match self.admit_check(headers, peer, need).await {
                Ok(()) => admitted = Instant::now(),
                // A catalog that does not answer for a moment ends no stream.
                Err(error)
                    if !matches!(error.code, Code::Unauthenticated | Code::Forbidden)
                        && admitted.elapsed() < self.key_max_age => {}
                Err(error) => return error,
            }
        }
    }

    /// Whether a caller may give back what checks took.
    pub(crate) async fn may_refund(&self, headers: &HeaderMap, peer: Option<&Peer>) -> bool {
        // In a box, as in `admit_check`, which has authenticated the caller where checks need a key.
        self.require_key || Box::pin(self.authenticate(headers, peer, Need::Check)).await.is_ok()
    }

    /// Whether a caller may send a limit of its own.
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
                        let reason = "needs an API key, as X-API-Key or Authorization: Bearer (ad_hoc.allow)";
                        ApiError::field(Code::Unauthenticated, "limit", reason)
                    }
                })
            }
            AdHocCallers::Never => {
                Err(ApiError::field(Code::Forbidden, "limit", "is not allowed in requests (ad_hoc.allow)"))
            }
        }
    }

    /// Who sent a request, for what is divided among senders: the key where checks need one, otherwise
    /// the address, because anyone can make up keys.
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
            // A certificate speaks for its owner where no key does, for as long as it is valid.
            if let Some(error) = peer.and_then(Peer::refusal) {
                return Err(error);
            }
            if let Some(Identity { name, role: Some(role) }) = peer.and_then(|peer| peer.identity.as_deref())
            {
                let caller = Caller { key_id: format!("certificate:{name}"), role: *role };
                return require(*role, need).map(|()| caller);
            }
            let message = "this operation needs an API key, as X-API-Key or Authorization: Bearer";
            return Err(ApiError::new(Code::Unauthenticated, message));
        };
        let address = || peer.map_or_else(|| "unknown".to_owned(), |peer| network_of(peer.ip()).to_string());
        // A short key may be a guess even when it is right.
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
                // Before the catalog is asked: guessing must cost the guesser, not the database. A key is no
                // guess, and is not locked out because of others at its address.
                let address = address();
                if !keys.has_seen(&digest)
                    && let Err(locked_out) = self.attempts_left(&address).await
                    && !keys.is_key(candidate).await
                {
                    self.refused.note(KeyFailure::LockedOut, &address);
                    return Err(locked_out);
                }
                keys.look_up(candidate, &digest).await?.ok_or_else(|| self.failed(&address))?
            }
        };
        // The owner of the secret may know why it does not open anything any more.
        if known.revoked {
            self.refused.note(KeyFailure::Revoked, &address());
            return Err(ApiError::new(Code::Unauthenticated, "the API key was revoked"));
        }
        if known.expires_at.is_some_and(|expires_at| expires_at <= now()) {
            self.refused.note(KeyFailure::Expired, &address());
            return Err(ApiError::new(Code::Unauthenticated, "the API key has expired"));
        }
        require(known.role, need)?;
        Ok(Caller { key_id: known.key_id.to_string(), role: known.role })
    }

    /// Refuses a key from an address from which too many wrong keys came.
    async fn may_try(&self, address: &str) -> Result<(), ApiError> {
        self.attempts_left(address).await.inspect_err(|_| self.refused.note(KeyFailure::LockedOut, address))
    }

    /// Whether an address is not locked out.
    async fn attempts_left(&self, address: &str) -> Result<(), ApiError> {
        match self.own_limits.peek(&Check::key(address).plan("attempts")).await {
            Ok(decision) if !decision.allowed() => {
                Err(too_many(&decision, "too many keys that are not valid were tried from this address"))
            }
            _ => Ok(()),
        }
    }

    /// A wrong key was tried.
    fn failed(&self, address: &str) -> ApiError {
        // Those that come at the same moment as the last one that may are still answered the same way.
        let _ = self.own_limits.check_now(Check::key(address).plan("attempts"));
        self.refused.note(KeyFailure::Unknown, address);
        ApiError::new(Code::Unauthenticated, "the API key is not valid")
    }

    fn charge(&self, who: &str, plan: &str, message: &str) -> Result<(), ApiError> {
        match self.own_limits.check_now(Check::key(who).plan(plan)) {
            Ok(decision) if !decision.allowed() => Err(too_many(&decision, message)),
            // The engine's own troubles do not lock operators out.
            _ => Ok(()),
        }
    }
}

/// The limits of the service's own operations. A log counts exactly: in any minute, not only in those that begin with a full bucket.
fn own_limits(config: &Config, stores: Stores) -> Limiter {
    let plans = [
        ("reads", config.management.reads_per_minute),
        ("writes", config.management.writes_per_minute),
        ("attempts", ATTEMPTS_PER_MINUTE),
    ];
    let builder = plans.into_iter().fold(Limiter::builder().stores(stores), |builder, (name, quota)| {
        // Bounded by the configuration, so that each is a limit.
        builder.plan(name, Limit::try_new(Algorithm::SlidingLog, quota, MINUTE).ok())
    });
    builder.build().unwrap_or_default()
}

fn too_many(decision: &Decision, message: &str) -> ApiError {
    let seconds = decision.retry_after().map_or(1, pacegate_http::headers::seconds_ceil);
    ApiError::new(Code::RateLimited, message).retry_after(seconds)
}

/// The key that a request comes with.
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
            // Ten a second, then as fast as possible, then slowly, over five minutes.
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
