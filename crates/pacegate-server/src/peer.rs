//! Who a request comes from: an address, and the names in a certificate if there is one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::Request;
use pacegate::Role;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is.
    pub address: SocketAddr,
    /// Who it is, if it showed a certificate.
    pub(crate) identity: Option<Arc<Identity>>,
}

/// Who showed a certificate, and what the configuration lets them do.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: Box<str>,
    pub(crate) role: Option<Role>,
}

impl Peer {
    /// Its address, with IPv4 in IPv6 folded.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip().to_canonical()
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, identity: None }
    }
}

/// Who `request` comes from.
pub(crate) fn peer<B>(request: &Request<B>) -> Option<&Peer> {
    request.extensions().get::<Peer>()
}
