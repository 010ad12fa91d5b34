//! Invalid layers, and requests without a key.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use pacegate::identity;
use pacegate_tower::resolve::{Resolve, address, api_key, header, principal, resolver};
use pacegate_tower::{InvalidLayer, LayerBuilder, MissingKey, PacegateLayer};

use support::{app, gold, send};

#[test]
fn invalid_layer_is_rejected_at_build_time() {
    let builder = || PacegateLayer::builder(gold().0);
    let cases = [
        (builder().plan("gold"), InvalidLayer::NoResolver, "the layer has no resolver"),
        (
            builder().by(address()).plan("silver"),
            InvalidLayer::UnknownPlan { name: "silver".into() },
            "unknown plan `silver`",
        ),
        (
            builder().by(address()).plans(["gold", "gold"]),
            InvalidLayer::DuplicatePlan { name: "gold".into() },
            "duplicate plan `gold`",
        ),
        (
            builder().by(address()).and_by(address().trust([])),
            InvalidLayer::DuplicateDimension { dimension: "ip".into() },
            "dimension `ip`",
        ),
        (
            builder().by(address().in_dimension("a b")),
            InvalidLayer::InvalidDimension {
                dimension: "a b".into(),
                reason: identity::dimension("a b").unwrap_err(),
            },
            "dimension `a b`: must be",
        ),
        (
            builder().by(header("x y")),
            InvalidLayer::InvalidHeader { name: "x y".into() },
            "`x y` is not a valid header name",
        ),
        (
            builder().by(header("x-user").in_dimension("USER")).and_by(header("x-id").in_dimension("user")),
            InvalidLayer::DuplicateDimension { dimension: "user".into() },
            "dimension `user`",
        ),
        (
            builder().by(address().in_dimension("Client")),
            InvalidLayer::InvalidDimension {
                dimension: "Client".into(),
                reason: identity::dimension("Client").unwrap_err(),
            },
            "must be in lower case: `client`",
        ),
        (
            builder().by(address().and(address())),
            InvalidLayer::DuplicateDimension { dimension: "ip".into() },
            "dimension `ip`",
        ),
        (
            builder().by(header("x-tenant")).on_missing_key(MissingKey::Use("")),
            InvalidLayer::InvalidIdentifier {
                identifier: "".into(),
                dimension: "x-tenant".into(),
                reason: identity::check_identifier("").unwrap_err(),
            },
            "is not valid in dimension `x-tenant`",
        ),
        (
            builder().by(address()).on_missing_key(MissingKey::Use("anonymous")),
            InvalidLayer::InvalidIdentifier {
                identifier: "anonymous".into(),
                dimension: "ip".into(),
                reason: identity::identifier("ip", "anonymous", 64).unwrap_err(),
            },
            "must be an IP address",
        ),
    ];
    for (builder, error, text) in cases {
        let found = builder.build().unwrap_err();
        assert_eq!(found, error);
        assert!(found.to_string().contains(text), "{found}");
    }
}

#[derive(Clone)]
struct User(&'static str);

/// Adds a resolver.
type By = Box<dyn Fn(LayerBuilder) -> LayerBuilder>;

#[tokio::test]
async fn missing_key_is_rejected_by_name_unless_configured_otherwise() {
    let cases: [(By, u16, &str, &str); 5] = [
        (Box::new(|layer| layer.by(api_key())), 401, "UNAUTHENTICATED", "header `x-api-key` is missing"),
        (
            Box::new(|layer| layer.by(principal(|user: &User| user.0.into()))),
            401,
            "UNAUTHENTICATED",
            "an authenticated user is missing",
        ),
        (
            Box::new(|layer| layer.by(header("x-tenant"))),
            400,
            "INVALID_INPUT",
            "header `x-tenant` is missing",
        ),
        (Box::new(|layer| layer.by(resolver("team", |_| None))), 400, "INVALID_INPUT", "`team` is missing"),
        (Box::new(|layer| layer.by(address())), 500, "INTERNAL_ERROR", "the peer address is unknown"),
    ];
    for (by, status, code, message) in cases {
        let layer =
            |missing| by(PacegateLayer::builder(gold().0).plan("gold")).on_missing_key(missing).build();
        let request = || Request::builder().uri("/x").body(Body::empty()).unwrap();
        let denied = send(&app(layer(MissingKey::Deny).unwrap()), request()).await;
        assert_eq!(denied.status.as_u16(), status, "{message}");
        assert_eq!(denied.json()["error"]["code"], code);
        assert_eq!(denied.json()["error"]["message"], message);
        assert_eq!(denied.headers.contains_key("www-authenticate"), status == 401);
        let passed = send(&app(layer(MissingKey::Pass).unwrap()), request()).await;
        assert_eq!((passed.status, passed.remaining()), (StatusCode::OK, ""));
        // Identifiers of the dimension `ip` must be addresses.
        let identifier = if status == 500 { "0.0.0.0" } else { "anonymous" };
        let shared = app(layer(MissingKey::Use(identifier)).unwrap());
        assert_eq!(send(&shared, request()).await.remaining(), "9");
        assert_eq!(
            send(&shared, request()).await.remaining(),
            "8",
            "requests without a key share one counter"
        );
    }
}
