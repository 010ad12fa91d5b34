//! Keys from headers, users, routes, and combinations of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{HashMap, HashSet};

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::routing::get as on_get;
use axum::{Extension, Router};
use pacegate_tower::resolve::{
    Identifier, RequestHead, Resolve, api_key, header, principal, resolver, route,
};
use pacegate_tower::{MissingKey, PacegateLayer, Unresolved};
use proptest::prelude::*;

use support::{app, get, gold, send, with_header};

#[derive(Clone)]
struct User {
    name: String,
}

fn by_user() -> impl Resolve {
    principal(|user: &User| Identifier::from(&user.name))
}

/// The identity that `resolver` finds in a request.
fn found(resolver: &dyn Resolve, request: &Request<Body>) -> (String, String) {
    let head = RequestHead::of(request);
    let identity = resolver.resolve(&head).unwrap();
    (identity.dimension().to_owned(), identity.identifier().to_owned())
}

#[test]
fn headers_are_counted_by_value_and_secrets_by_hash() {
    let request = with_header(get("/"), "x-tenant", b"  acme \t");
    let request = with_header(request, "x-api-key", b"abc");
    assert_eq!(found(&header("X-Tenant"), &request), ("x-tenant".into(), "acme".into()));
    assert_eq!(
        found(&api_key(), &request),
        ("apikey".into(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into())
    );
    assert_eq!(found(&header("x-tenant").in_dimension("tenant"), &request), ("tenant".into(), "acme".into()));
    let request = with_header(get("/"), "x-tenant", "zürich".as_bytes());
    assert_eq!(found(&header("x-tenant"), &request).1, "zürich");
}

#[tokio::test]
async fn invalid_header_is_rejected_even_if_missing_ones_pass() {
    let long = vec![b'a'; 1_025];
    let cases: [(&[&[u8]], &str); 7] = [
        (&[b"\xff\xfe"], "must be UTF-8"),
        (&[b"a\xc3"], "must be UTF-8"),
        (&[b"a\tb"], "must be 1 to 1024 bytes long without control characters"),
        (&["a\u{85}b".as_bytes()], "must be 1 to 1024 bytes long without control characters"),
        (&[&long], "must be 1 to 1024 bytes long without control characters"),
        (&[b"a", b"b"], "duplicate header"),
        (&[b"a", b"a"], "duplicate header"),
    ];
    for missing in [MissingKey::Deny, MissingKey::Pass, MissingKey::Use("anonymous")] {
        for (values, reason) in &cases {
            let layer =
                PacegateLayer::builder(gold().0).by(header("x-tenant")).plan("gold").on_missing_key(missing);
            let app = app(layer.build().unwrap());
            let request =
                values.iter().fold(get("/x"), |request, value| with_header(request, "x-tenant", value));
            let answer = send(&app, request).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{reason}");
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "INVALID_INPUT");
            assert_eq!(
                (&error["details"]["field"], &error["details"]["reason"]),
                (&"x-tenant".into(), &(*reason).into())
            );
            let answer = send(&app, with_header(get("/x"), "x-tenant", b"a")).await;
            assert_eq!(answer.remaining(), "9", "nothing was charged");
        }
    }
}

#[test]
fn empty_header_counts_as_missing() {
    for value in [b"".as_slice(), b" \t "] {
        let request = with_header(get("/"), "x-tenant", value);
        let unresolved = header("x-tenant").resolve(&RequestHead::of(&request)).unwrap_err();
        assert_eq!(unresolved, Unresolved::Missing { what: "header `x-tenant`".into(), credential: false });
        assert!(unresolved.is_missing());
    }
}

#[test]
fn every_header_value_is_counted_or_rejected() {
    for length in 1..4 {
        for byte in (0..=255_u8).filter(|byte| HeaderValue::from_bytes(&[*byte]).is_ok()) {
            let request = with_header(get("/"), "x-tenant", &vec![byte; length]);
            let head = RequestHead::of(&request);
            for resolver in [header("x-tenant"), header("x-tenant").secret()] {
                if let Ok(identity) = resolver.resolve(&head) {
                    assert!(!identity.identifier().chars().any(char::is_control), "{byte}");
                }
            }
        }
    }
}

#[tokio::test]
async fn route_is_the_matched_one_or_else_the_path() {
    let layer = PacegateLayer::builder(gold().0).by(route()).plan("gold").build().unwrap();
    let app = Router::new()
        .route("/users/{id}", on_get(|| async {}))
        .nest("/api", Router::new().route("/orders/{id}", on_get(|| async {})))
        .fallback(|| async {})
        .layer(layer);
    assert_eq!(send(&app, get("/users/1")).await.remaining(), "9");
    assert_eq!(send(&app, get("/users/2")).await.remaining(), "8");
    assert_eq!(send(&app, get("/api/orders/1")).await.remaining(), "9");
    assert_eq!(send(&app, get("/api/orders/2")).await.remaining(), "8");
    assert_eq!(send(&app, get("/nowhere")).await.remaining(), "9");
    assert_eq!(send(&app, get("//nowhere/./%6e/..?page=2")).await.remaining(), "8", "another spelling");
}

#[tokio::test]
async fn user_is_the_one_that_the_program_authenticated() {
    let layer = PacegateLayer::builder(gold().0).by(by_user()).plan("gold").build().unwrap();
    let signed_in = |name: &str| app(layer.clone()).layer(Extension(User { name: name.into() }));
    assert_eq!(send(&signed_in("ann"), get("/x")).await.remaining(), "9");
    assert_eq!(send(&signed_in("bob"), get("/x")).await.remaining(), "9");
    assert_eq!(send(&signed_in("ann"), get("/x")).await.remaining(), "8");
    // An invalid user name is a client error; it must not bypass the limit.
    for name in ["", "a\nb", &"x".repeat(1_025)] {
        assert_eq!(send(&signed_in(name), get("/x")).await.status, StatusCode::BAD_REQUEST, "{name:?}");
    }
}

fn request_of(user: &str, path: &str, tenant: &str) -> Request<Body> {
    let mut request = get(path);
    request.extensions_mut().insert(User { name: user.into() });
    request.extensions_mut().insert(Tenant(tenant.into()));
    request
}

#[derive(Clone)]
struct Tenant(String);

fn by_tenant() -> impl Resolve {
    resolver("tenant", |request| request.extensions.get::<Tenant>().map(|tenant| Identifier::from(&tenant.0)))
}

#[test]
fn composition_has_a_canonical_order() {
    let request = request_of("123", "/v1/pay", "acme");
    let key = |text: &str| ("key".to_owned(), text.to_owned());
    assert_eq!(found(&by_user().and(route()), &request), key("user:123|route:/v1/pay"));
    assert_eq!(found(&route().and(by_user()), &request), key("user:123|route:/v1/pay"));
    let expected = key("tenant:acme|user:123|route:/v1/pay");
    assert_eq!(found(&by_user().and(route()).and(by_tenant()), &request), expected);
    assert_eq!(found(&by_tenant().and(by_user()).and(route()), &request), expected);
    assert_eq!(found(&route().and(by_tenant()).and(by_user()), &request), expected);
    let request = request_of("a|route:/b%7C", "/v1", "t");
    assert_eq!(found(&by_user().and(route()), &request), key("user:a%7Croute:/b%257C|route:/v1"));
}

#[test]
fn composition_without_one_of_its_parts_is_missing() {
    let composition = api_key().and(route());
    let request = get("/v1/pay");
    let unresolved = composition.resolve(&RequestHead::of(&request)).unwrap_err();
    assert_eq!(unresolved, Unresolved::Missing { what: "header `x-api-key`".into(), credential: true });
    let request = request_of("", "/v1/pay", "t");
    let unresolved = by_user().and(route()).resolve(&RequestHead::of(&request)).unwrap_err();
    assert_eq!(unresolved.to_string(), "user: must be 1 to 1024 bytes long without control characters");
}

/// Pairs of users and tenants that differ only in where one ends and the other begins, or in their
/// escaping.
fn adversaries(a: &str, b: &str, c: &str) -> [(String, String); 7] {
    [
        (c.into(), format!("{a}|user:{b}")),
        (format!("{b}|user:{c}"), a.into()),
        (format!("{a}|{b}"), c.into()),
        (format!("{a}%7C{b}"), c.into()),
        (format!("{a}%257C{b}"), c.into()),
        (format!("{a}%{b}"), c.into()),
        (format!("{a}%25{b}"), c.into()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// More than 500 users and tenants with names of separators and escapes: no two share a key.
    #[test]
    fn no_composition_can_imitate_another(
        words in prop::collection::vec(("[|:%7C25a]{1,4}", "[|:%7C25a]{1,4}", "[|:%7C25a]{1,4}"), 100)
    ) {
        let composition = by_user().and(by_tenant()).and(route());
        let names: HashSet<_> = words.iter().flat_map(|(a, b, c)| adversaries(a, b, c)).collect();
        prop_assert!(names.len() > 500);
        let mut owners = HashMap::new();
        for (user, tenant) in names {
            let request = request_of(&user, "/v1/pay", &tenant);
            let (_, key) = found(&composition, &request);
            if let Some(other) = owners.insert(key.clone(), (user.clone(), tenant.clone())) {
                prop_assert!(false, "{key} is both {:?} and {:?}", other, (user, tenant));
            }
        }
    }
}
