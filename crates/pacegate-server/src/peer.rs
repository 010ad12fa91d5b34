//! The peer of a request: its address, and the names in its certificate if it has one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Request;
use pacegate_config::Role;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::respond::{ApiError, Code};
use pacegate_http::server::{Client, ClientCertificate};

/// Maximum number of batches of one connection that are decided concurrently; others wait.
const BATCHES_MAX: usize = 4;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The identity in the certificate, if the client presented one.
    pub(crate) identity: Option<Arc<Identity>>,
    /// The client certificate.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Limits the concurrent batches of the connection.
    pub(crate) batches: Option<Arc<Semaphore>>,
}

/// The identity in a client certificate, and the role that the configuration gives it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: Box<str>,
    pub(crate) role: Option<Role>,
}

impl Peer {
    /// Returns an error if the client certificate is no longer valid.
    pub(crate) fn certificate_error(&self) -> Option<ApiError> {
        let invalid = self.certificate.as_ref().is_some_and(|certificate| !certificate.is_valid());
        let message = "the client certificate is no longer valid";
        invalid.then(|| ApiError::new(Code::Unauthenticated, message))
    }

    /// Returns the peer of a new connection; `identify` maps its certificate to an identity.
    pub(crate) fn connected(
        client: &Client,
        identify: impl Fn(&ClientCertificate) -> Option<Identity>,
    ) -> Self {
        let certificate = client.certificate.clone();
        Self {
            address: client.address,
            identity: certificate.as_deref().and_then(identify).map(Arc::new),
            certificate,
            batches: Some(Arc::new(Semaphore::new(BATCHES_MAX))),
        }
    }

    /// Returns the address, with IPv4-mapped IPv6 converted to IPv4.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip().to_canonical()
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, identity: None, certificate: None, batches: None }
    }
}

/// Returns the peer of `request`.
pub(crate) fn peer<B>(request: &Request<B>) -> Option<&Peer> {
    request.extensions().get::<Peer>()
}

/// Waits for a batch permit of the connection, so that no connection has more than its share of
/// concurrent batches.
pub(crate) async fn batch_permit(peer: Option<&Peer>) -> Option<OwnedSemaphorePermit> {
    let batches = peer?.batches.clone()?;
    // The semaphore is never closed.
    batches.acquire_owned().await.ok()
}
