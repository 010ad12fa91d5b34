//! The address of the client: the peer's, or what proxies say that are known to be trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use compact_str::{CompactString, format_compact};
use http::{Extensions, HeaderMap};
use ipnet::IpNet;

use super::forwarded::{forwarded, x_forwarded_for};
use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::{InvalidLayer, Unresolved};

const DIMENSION: &str = "ip";
/// What one customer of a provider usually gets: whoever has it has 2^64 addresses to choose from.
const IPV6_PREFIX: u8 = 64;
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
/// IPv6 addresses are counted by their first 64 bits (`2001:db8:0:1::/64`), because a client has all the others to choose from. IPv4 addresses inside
/// IPv6 (`::ffff:192.0.2.1`) are IPv4 addresses.
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
    ipv6_prefix: u8,
}

/// Counts by the address of the client; see [`Address`].
pub fn address() -> Address {
    Address { trusted: Box::default(), header: ForwardedHeader::default(), ipv6_prefix: IPV6_PREFIX }
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

    /// By how many bits IPv6 addresses are counted: 64 unless this is said, 1 to 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
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

    /// An address as it is counted.
    #[inline]
    fn identifier(&self, address: IpAddr) -> CompactString {
        let address = match address {
            IpAddr::V4(address) => return dotted(address),
            IpAddr::V6(address) => address,
        };
        let kept = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix)).unwrap_or_default();
        let network = Ipv6Addr::from_bits(address.to_bits() & kept);
        match self.ipv6_prefix {
            128 => format_compact!("{network}"),
            bits => format_compact!("{network}/{bits}"),
        }
    }
}

impl Resolve for Address {
    fn dimension(&self) -> &str {
        DIMENSION
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let peer = peer(request.extensions).ok_or(Unresolved::NotProvided {
            what: "the address of the peer",
            remedy: "serve with `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` into the request's extensions",
        })?;
        let client = self.client(peer, request.headers);
        Ok(Identity::new(DIMENSION, Identifier::of(self.identifier(client))))
    }

    fn validate(&self) -> Result<(), InvalidLayer> {
        match self.ipv6_prefix {
            1..=128 => Ok(()),
            bits => Err(InvalidLayer::InvalidPrefix { bits }),
        }
    }
}

/// An IPv4 address as everybody writes it. Most requests have one, and the standard library takes ten times as long.
#[inline]
fn dotted(address: Ipv4Addr) -> CompactString {
    let mut text = [0; 15];
    let mut length = 0;
    for octet in address.octets() {
        if length > 0 {
            text[length] = b'.';
            length += 1;
        }
        for (unit, digit) in [(100, octet / 100), (10, octet / 10 % 10), (1, octet % 10)] {
            if octet >= unit || unit == 1 {
                text[length] = b'0' + digit;
                length += 1;
            }
        }
    }
    str::from_utf8(&text[..length]).map(CompactString::new).unwrap_or_default()
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
