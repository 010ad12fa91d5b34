//! The address of the client: the peer's, or what proxies say that are known to be trusted.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap};
use ipnet::IpNet;
use pacegate::identity::{CountedAddress, IP};

use super::forwarded::{forwarded, x_forwarded_for};
use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::Unresolved;

/// More proxies than anybody has in a row; what is left of them is not looked at.
const HOPS_MAX: usize = 64;

/// Which header the trusted proxies write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: client, proxy`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for="[2001:db8::1]:4711"` (RFC 7239)
    Forwarded,
}

/// Counts by the address of the client, in dimension `ip`. Made by [`address`].
///
/// It is the address of the peer, whatever headers say. Behind proxies, [`trust`](Self::trust) names them: if the peer is one of them, the header is
/// read from right to left, and the first address that is not a trusted proxy's is the client's. Everything left of it was written by the client,
/// and is not looked at. An entry that is not an address ends the walk as well: then the last trusted proxy is counted.
///
/// IPv6 addresses are counted by their first 64 bits (`2001:db8:0:1::/64`), because a client has all the others to choose from, or by as many as
/// [`LimiterBuilder::ipv6_prefix`](pacegate::LimiterBuilder::ipv6_prefix) says. IPv4 addresses inside IPv6 (`::ffff:192.0.2.1`) are IPv4 addresses.
///
/// The peer is found in the request's extensions: axum's `ConnectInfo<SocketAddr>` (cargo feature `axum`), tonic's `TcpConnectInfo` (feature
/// `tonic`), or a plain [`SocketAddr`], which a hyper service puts there itself.
///
/// ```
/// use pacegate_tower::resolve::{ForwardedHeader, address};
///
/// let behind_a_balancer = address().trust(["10.0.0.0/8".parse()?]).read_from(ForwardedHeader::Forwarded);
/// # Ok::<(), ipnet::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Address {
    trusted: Box<[IpNet]>,
    header: ForwardedHeader,
}

/// Counts by the address of the client; see [`Address`].
pub fn address() -> Address {
    Address { trusted: Box::default(), header: ForwardedHeader::default() }
}

impl Address {
    /// The proxies whose header is believed. Nobody's is unless this is said.
    #[must_use]
    pub fn trust(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted = self.trusted.iter().copied().chain(proxies).collect();
        self
    }

    /// Which header the proxies write; `X-Forwarded-For` unless this is said. The other one, which they pass on unread, is never looked at.
    #[must_use]
    pub fn read_from(mut self, header: ForwardedHeader) -> Self {
        self.header = header;
        self
    }

    /// The address of the client of a connection from `peer`.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if self.trusted.is_empty() || !self.trusts(peer) {
            return peer;
        }
        match self.header {
            ForwardedHeader::XForwardedFor => self.walk(peer, x_forwarded_for(headers)),
            ForwardedHeader::Forwarded => self.walk(peer, forwarded(headers)),
        }
    }

    /// Follows what trusted proxies say, the nearest first, as far as it can be trusted.
    fn walk(&self, peer: IpAddr, nearest_first: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for said in nearest_first.take(HOPS_MAX) {
            let Some(address) = said else { break };
            client = address.to_canonical();
            if !self.trusts(client) {
                break;
            }
        }
        client
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

impl Resolve for Address {
    fn dimension(&self) -> &str {
        IP
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let peer = peer(request.extensions).ok_or(Unresolved::NotProvided {
            what: "the peer address",
            remedy: "serve with `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` into the request's extensions",
        })?;
        let client = CountedAddress::new(self.client(peer, request.headers), request.ipv6_prefix);
        Ok(Identity::new(IP, Identifier::of(client.as_str().into())))
    }
}

/// Who is at the other end of the connection.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(peer.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) = extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return peer.remote_addr().map(|peer| peer.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}
