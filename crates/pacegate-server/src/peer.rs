//! Who a request comes from: an address, and the names in a certificate if there is one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Request;
use pacegate_config::Role;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::respond::{ApiError, Code};
use pacegate_http::server::{Client, ClientCertificate};

/// How many batches of one connection are decided at once; others wait.
const BATCHES_MAX: usize = 4;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is.
    pub address: SocketAddr,
    /// Who it is, if it showed a certificate.
    pub(crate) identity: Option<Arc<Identity>>,
    /// The certificate itself.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Places for the batches of its connection.
    pub(crate) batches: Option<Arc<Semaphore>>,
}

/// Who showed a certificate, and what the configuration lets them do.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: Box<str>,
    pub(crate) role: Option<Role>,
}

impl Peer {
    /// Why its certificate does not count any more, if it does not.
    pub(crate) fn refusal(&self) -> Option<ApiError> {
        let invalid = self.certificate.as_ref().is_some_and(|certificate| !certificate.is_valid());
        let message = "the client's certificate is not valid any more";
        invalid.then(|| ApiError::new(Code::Unauthenticated, message))
    }

    /// The other end of a new connection, whose certificate makes it the one that `identify` says.
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

    /// Its address, with IPv4 in IPv6 folded.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip().to_canonical()
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, identity: None, certificate: None, batches: None }
    }
}

/// Who `request` comes from.
pub(crate) fn peer<B>(request: &Request<B>) -> Option<&Peer> {
    request.extensions().get::<Peer>()
}

/// Waits for a place among the batches of a connection, so that no connection has more than its share of them under way.
pub(crate) async fn batch_place(peer: Option<&Peer>) -> Option<OwnedSemaphorePermit> {
    let batches = peer?.batches.clone()?;
    // It is never closed.
    batches.acquire_owned().await.ok()
}
