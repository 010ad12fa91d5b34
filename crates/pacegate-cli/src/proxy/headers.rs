//! Header changes of the proxy: removes hop-by-hop headers and adds forwarding headers.

use std::net::IpAddr;

use hyper::header::{
    CONNECTION, EXPECT, Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use pacegate_tower::IpNet;

use pacegate_http::request_id::REQUEST_ID;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REAL_ADDRESS: HeaderName = HeaderName::from_static("x-real-ip");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const UPGRADES: HeaderValue = HeaderValue::from_static("upgrade");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Whether a message requests or accepts a WebSocket. Other upgrades are not forwarded, because
/// requests over `h2c` would not be counted.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let mut upgrades = headers.get_all(UPGRADE).iter();
    upgrades.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && upgrades.next().is_none()
        && names(headers, &CONNECTION).any(|name| name.eq_ignore_ascii_case(b"upgrade"))
}

/// Sets the headers of a WebSocket upgrade.
pub(super) fn upgrade_to_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, UPGRADES);
    headers.insert(UPGRADE, WEBSOCKET);
}

/// Whether the client accepts trailers, as gRPC clients do.
pub(super) fn accepts_trailers(headers: &HeaderMap) -> bool {
    names(headers, &TE).any(|name| name.eq_ignore_ascii_case(b"trailers"))
}

/// Sets the header that trailers are accepted.
pub(super) fn accept_trailers(headers: &mut HeaderMap) {
    headers.insert(TE, TRAILERS);
}

/// Removes hop-by-hop headers.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> =
            names(headers, &CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        for name in named {
            // A client must not remove headers that the upstream or the proxy relies on.
            if name != HOST && name != REQUEST_ID && !is_about_the_client(&name) {
                headers.remove(name);
            }
        }
        headers.remove(CONNECTION);
    }
    for name in [KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, HTTP2_SETTINGS] {
        headers.remove(name);
    }
    remove_where(headers, |name| name.as_str().starts_with("proxy-"));
}

/// Sets the forwarding headers. Those of the client are kept only if it is a trusted proxy.
pub(super) fn forward(headers: &mut HeaderMap, peer: IpAddr, trusted: bool) {
    // The proxy has sent 100 Continue already.
    headers.remove(EXPECT);
    if !trusted {
        remove_where(headers, is_about_the_client);
    }
    // In one header line, because some programs read only the first.
    let mut addresses = Vec::new();
    for value in headers.get_all(FORWARDED_FOR) {
        addresses.extend_from_slice(value.as_bytes());
        addresses.extend_from_slice(b", ");
    }
    addresses.extend_from_slice(peer.to_string().as_bytes());
    // The values are valid, so their concatenation is valid.
    if let Ok(addresses) = HeaderValue::from_bytes(&addresses) {
        headers.insert(FORWARDED_FOR, addresses);
    }
    if let Entry::Vacant(entry) = headers.entry(FORWARDED_PROTO) {
        entry.insert(HeaderValue::from_static("http"));
    }
    if let Some(host) = headers.get(HOST).cloned()
        && let Entry::Vacant(entry) = headers.entry(FORWARDED_HOST)
    {
        entry.insert(host);
    }
}

/// Whether `peer` is a trusted proxy.
pub(super) fn is_trusted(trusted: &[IpNet], peer: IpAddr) -> bool {
    trusted.iter().any(|network| network.contains(&peer))
}

fn is_about_the_client(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-forwarded-") || name == FORWARDED || name == REAL_ADDRESS
}

fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    // Matches are rare.
    while let Some(name) = headers.keys().find(|name| unwanted(name)).cloned() {
        headers.remove(name);
    }
}

/// The names in a comma-separated header.
fn names<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let values = headers.get_all(name).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}
