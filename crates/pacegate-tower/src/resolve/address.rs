//! The address of the client: the peer address, or the one that trusted proxies report.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap};
use ipnet::IpNet;
use pacegate::identity::{CountedAddress, IP};

use super::forwarded::{forwarded, x_forwarded_for};
use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::Unresolved;

/// Maximum number of proxies in a row. Entries beyond it are ignored.
const HOPS_MAX: usize = 64;

/// The header that trusted proxies write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: client, proxy`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for="[2001:db8::1]:4711"` (RFC 7239)
    Forwarded,
}

/// Counts by the address of the client, in the dimension `ip`. Created by [`address`].
///
/// By default it is the peer address, whatever the headers contain. Behind proxies, name them with
/// [`trust`](Self::trust): if the peer is one of them, the header is read from right to left, and
/// the first address that is not a trusted proxy is the client. Everything to the left of it was
/// written by the client and is ignored. An entry that is not an address also ends the search: the
/// last trusted proxy is then counted.
///
/// IPv6 addresses are counted by their first 64 bits (`2001:db8:0:1::/64`), because a client can
/// choose the others; [`LimiterBuilder::ipv6_prefix`](pacegate::LimiterBuilder::ipv6_prefix)
/// changes the number. IPv4-mapped IPv6 addresses (`::ffff:192.0.2.1`) are IPv4 addresses.
///
/// The peer address comes from the extensions of the request: axum's `ConnectInfo<SocketAddr>`
/// (cargo feature `axum`), tonic's `TcpConnectInfo` (feature `tonic`), or a plain [`SocketAddr`],
/// which a hyper service can insert.
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

/// Counts by the address of the client. See [`Address`].
pub fn address() -> Address {
    Address { trusted: Box::default(), header: ForwardedHeader::default() }
}

impl Address {
    /// Sets the proxies whose header is trusted. Default: none.
    #[must_use]
    pub fn trust(mut self, proxies: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted = self.trusted.iter().copied().chain(proxies).collect();
        self
    }

    /// Sets the header that the proxies write. Default: `X-Forwarded-For`. The other header is
    /// never used, because proxies may forward it unchecked.
    #[must_use]
    pub fn read_from(mut self, header: ForwardedHeader) -> Self {
        self.header = header;
        self
    }

    /// Returns the client address of a connection from `peer`.
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

    /// Follows the entries of trusted proxies, nearest first, to the first address that is not
    /// trusted.
    fn walk(&self, peer: IpAddr, nearest_first: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for entry in nearest_first.take(HOPS_MAX) {
            let Some(address) = entry else { break };
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

/// Returns the peer address of the connection.
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
