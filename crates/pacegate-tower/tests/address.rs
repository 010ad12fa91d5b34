//! The address of the client: what is counted, what proxies report, and what a client cannot spoof.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::HashSet;
use std::net::SocketAddr;

use axum::http::{HeaderValue, Request};
use pacegate_tower::resolve::{Address, ForwardedHeader, RequestHead, Resolve, address};
use pacegate_tower::{IpNet, PacegateLayer};

use support::{app, get, gold, send, with_header};

/// Trusts private networks.
fn behind_proxies() -> Address {
    let networks = ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8", "::1/128"];
    address().trust(networks.map(|network| network.parse::<IpNet>().unwrap()))
}

/// The identifier that a request from `peer` with these lines of `header` is charged to.
fn counted(resolver: &Address, peer: &str, header: &'static str, lines: &[&str]) -> String {
    counted_by(64, resolver, peer, header, lines)
}

/// The same with a limiter with this IPv6 prefix.
fn counted_by(
    ipv6_prefix: u8,
    resolver: &Address,
    peer: &str,
    header: &'static str,
    lines: &[&str],
) -> String {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 443));
    for line in lines {
        request.headers_mut().append(header, HeaderValue::from_bytes(line.as_bytes()).unwrap());
    }
    let head = RequestHead { ipv6_prefix, ..RequestHead::of(&request) };
    resolver.resolve(&head).unwrap().identifier().to_owned()
}

#[test]
fn addresses_of_one_client_share_a_counter() {
    let cases = [
        ("192.0.2.1", "192.0.2.1"),
        ("255.255.255.255", "255.255.255.255"),
        ("0.0.0.0", "0.0.0.0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff::/64"),
        ("::1", "::/64"),
    ];
    for (peer, expected) in cases {
        assert_eq!(counted(&address(), peer, "x-none", &[]), expected, "{peer}");
    }
    let peer = "2001:db8:1:2ff:3:4:5:6";
    for (bits, expected) in
        [(128, "2001:db8:1:2ff:3:4:5:6"), (56, "2001:db8:1:200::/56"), (48, "2001:db8:1::/48"), (1, "::/1")]
    {
        assert_eq!(counted_by(bits, &address(), peer, "x-none", &[]), expected, "{bits}");
    }
}

#[test]
fn no_header_is_trusted_by_default() {
    for header in ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip"] {
        for line in ["6.6.6.6", "for=6.6.6.6"] {
            assert_eq!(counted(&address(), "10.0.0.1", header, &[line]), "10.0.0.1", "{header}");
        }
    }
    // Proxies forward the header that they do not write as the client sent it.
    assert_eq!(counted(&behind_proxies(), "10.0.0.1", "forwarded", &["for=6.6.6.6"]), "10.0.0.1");
    let forwarded = behind_proxies().read_from(ForwardedHeader::Forwarded);
    assert_eq!(counted(&forwarded, "10.0.0.1", "x-forwarded-for", &["6.6.6.6"]), "10.0.0.1");
}

#[test]
fn x_forwarded_for_is_read_from_right_to_left_as_far_as_trusted() {
    let cases: [(&str, &[&str], &str); 36] = [
        // A peer that is not a trusted proxy is the client, whatever its headers contain.
        ("203.0.113.9", &["6.6.6.6"], "203.0.113.9"),
        ("203.0.113.9", &[], "203.0.113.9"),
        ("203.0.113.9", &["10.0.0.1, 10.0.0.2"], "203.0.113.9"),
        // One proxy.
        ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6,203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6 ,\t203.0.113.9 "], "203.0.113.9"),
        ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ("fd00::1", &["203.0.113.9"], "203.0.113.9"),
        ("::1", &["203.0.113.9"], "203.0.113.9"),
        // Several proxies, several lines.
        ("10.0.0.1", &["203.0.113.9, 10.0.0.3, 192.168.1.1"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.0.0.3"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["6.6.6.6, 203.0.113.9", "10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9", "10.0.0.3", "10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9, fd00::7"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9, ::ffff:10.0.0.7"], "203.0.113.9"),
        // Only proxies: the farthest one counts.
        ("10.0.0.1", &["10.0.0.9, 10.0.0.3"], "10.0.0.9"),
        ("10.0.0.1", &[], "10.0.0.1"),
        // Ports and IPv6.
        ("10.0.0.1", &["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", &["2001:db8::1"], "2001:db8::/64"),
        ("10.0.0.1", &["[2001:db8::1]"], "2001:db8::/64"),
        ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::/64"),
        ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
        // An entry that is not an address ends the search at the proxy that wrote it.
        ("10.0.0.1", &["unknown"], "10.0.0.1"),
        ("10.0.0.1", &[""], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6, "], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6, unknown, 10.0.0.3"], "10.0.0.3"),
        ("10.0.0.1", &["6.6.6.6,, 10.0.0.3"], "10.0.0.3"),
        ("10.0.0.1", &["6.6.6.6, 10.0.0.300"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6, 010.0.0.3"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6:"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6:port"], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6:123456"], "10.0.0.1"),
        ("10.0.0.1", &["[2001:db8::1"], "10.0.0.1"),
        ("10.0.0.1", &["2001:db8::1%eth0"], "10.0.0.1"),
    ];
    for (peer, lines, expected) in cases {
        assert_eq!(counted(&behind_proxies(), peer, "x-forwarded-for", lines), expected, "{peer} {lines:?}");
    }
}

#[test]
fn forwarded_is_read_from_right_to_left_as_far_as_trusted() {
    let cases: [(&str, &[&str], &str); 38] = [
        ("203.0.113.9", &["for=6.6.6.6"], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["For=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["FOR=203.0.113.9;proto=http;by=10.0.0.1"], "203.0.113.9"),
        ("10.0.0.1", &["proto=http;for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["proto=http ; for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;"], "203.0.113.9"),
        ("10.0.0.1", &["for=6.6.6.6, for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["for=6.6.6.6,for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["for=6.6.6.6", "for=203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9, for=10.0.0.2", "for=10.0.0.3"], "203.0.113.9"),
        ("10.0.0.1", &[r#"for="203.0.113.9""#], "203.0.113.9"),
        ("10.0.0.1", &[r#"for="203.0.113.9:4711""#], "203.0.113.9"),
        ("10.0.0.1", &[r#"for="203.0.113.9:_port""#], "203.0.113.9"),
        ("10.0.0.1", &[r#"for="203.0.113\.9""#], "203.0.113.9"),
        ("10.0.0.1", &[r#"for="[2001:db8::1]""#], "2001:db8::/64"),
        ("10.0.0.1", &[r#"For="[2001:DB8::1]:4711""#], "2001:db8::/64"),
        ("10.0.0.1", &[r#"for="[::ffff:203.0.113.9]""#], "203.0.113.9"),
        ("10.0.0.1", &[r#"host="a, for=6.6.6.6";for=203.0.113.9"#], "203.0.113.9"),
        ("10.0.0.1", &[r#"for=203.0.113.9;host="a;for=6.6.6.6""#], "203.0.113.9"),
        // Nodes without an address.
        ("10.0.0.1", &["for=unknown"], "10.0.0.1"),
        ("10.0.0.1", &["for=_hidden"], "10.0.0.1"),
        ("10.0.0.1", &["for=6.6.6.6, for=_hidden"], "10.0.0.1"),
        ("10.0.0.1", &["for=6.6.6.6, for=unknown, for=10.0.0.3"], "10.0.0.3"),
        ("10.0.0.1", &["for=6.6.6.6, proto=http"], "10.0.0.1"),
        ("10.0.0.1", &["for=6.6.6.6, "], "10.0.0.1"),
        // A line that does not conform to RFC 7239 ends the search.
        ("10.0.0.1", &[""], "10.0.0.1"),
        ("10.0.0.1", &["6.6.6.6"], "10.0.0.1"),
        ("10.0.0.1", &["for"], "10.0.0.1"),
        ("10.0.0.1", &["for="], "10.0.0.1"),
        ("10.0.0.1", &["for = 6.6.6.6"], "10.0.0.1"),
        ("10.0.0.1", &["for=6.6.6.6:80"], "10.0.0.1"),
        ("10.0.0.1", &["for=[2001:db8::1]"], "10.0.0.1"),
        ("10.0.0.1", &[r#"for="2001:db8::1""#], "10.0.0.1"),
        ("10.0.0.1", &["for=6.6.6.6;for=7.7.7.7"], "10.0.0.1"),
        ("10.0.0.1", &[r#"for=6.6.6.6;x="unclosed, for=203.0.113.9"#], "10.0.0.1"),
        ("10.0.0.1", &[r#"for=6.6.6.6;x=", for="[2001:db8::1]""#], "10.0.0.1"),
        ("10.0.0.1", &[r#"for=6.6.6.6;x="unclosed"#, "for=10.0.0.3"], "10.0.0.3"),
    ];
    let resolver = behind_proxies().read_from(ForwardedHeader::Forwarded);
    for (peer, lines, expected) in cases {
        assert_eq!(counted(&resolver, peer, "forwarded", lines), expected, "{peer} {lines:?}");
    }
}

#[test]
fn sixty_four_hops_are_followed() {
    for (proxies, expected) in [(1, "6.6.6.6"), (63, "6.6.6.6"), (64, "10.0.0.7")] {
        let line = format!("6.6.6.6{}", ", 10.0.0.7".repeat(proxies));
        let found = counted(&behind_proxies(), "10.0.0.1", "x-forwarded-for", &[&line]);
        assert_eq!(found, expected, "behind {proxies} proxies");
    }
}

#[test]
fn odd_bytes_and_very_long_headers_end_the_search() {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 443)));
    for name in ["x-forwarded-for", "forwarded"] {
        request.headers_mut().insert(name, HeaderValue::from_bytes(b"\xff\xfe, for=6.6.6.6\xff").unwrap());
    }
    for header in [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded] {
        let resolver = behind_proxies().read_from(header);
        assert_eq!(resolver.resolve(&RequestHead::of(&request)).unwrap().identifier(), "10.0.0.1");
    }
    let proxies = ["10.0.0.7"; 10_000].join(",");
    let line = format!("6.6.6.6,{proxies}");
    assert_eq!(counted(&behind_proxies(), "10.0.0.1", "x-forwarded-for", &[&line]), "10.0.0.7");
    let line = format!("for=6.6.6.6{}", ", for=10.0.0.7".repeat(10_000));
    let resolver = behind_proxies().read_from(ForwardedHeader::Forwarded);
    assert_eq!(counted(&resolver, "10.0.0.1", "forwarded", &[&line]), "10.0.0.1", "too long to be parsed");
}

#[tokio::test]
async fn thousand_forged_headers_of_one_address_share_one_counter() {
    for resolver in [address(), behind_proxies(), behind_proxies().read_from(ForwardedHeader::Forwarded)] {
        let (limiter, _) = gold();
        let app = app(PacegateLayer::builder(limiter).by(resolver).plan("gold").build().unwrap());
        let mut passed = 0;
        for number in 0..1_000_u32 {
            let [_, _, high, low] = number.to_be_bytes();
            let made_up = format!("6.6.{high}.{low}, 10.0.0.{low}");
            let request = with_header(get("/x"), "x-forwarded-for", made_up.as_bytes());
            let request = with_header(request, "forwarded", format!("for=6.6.{high}.{low}").as_bytes());
            passed += usize::from(send(&app, request).await.status.is_success());
        }
        assert_eq!(passed, 10);
    }
}

#[tokio::test]
async fn thousand_forged_entries_behind_a_proxy_share_one_counter() {
    let (limiter, _) = gold();
    let app = app(PacegateLayer::builder(limiter).by(behind_proxies()).plan("gold").build().unwrap());
    let mut seen = HashSet::new();
    for number in 0..1_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        let line = format!("6.6.{high}.{low}, 203.0.113.9");
        let request = with_header(support::get_from("10.0.0.1", "/x"), "x-forwarded-for", line.as_bytes());
        seen.insert(send(&app, request).await.remaining().to_owned());
    }
    assert_eq!(seen.len(), 10, "nine to zero remaining, then only denials");
}
