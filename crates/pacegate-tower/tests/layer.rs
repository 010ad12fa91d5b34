//! What a layer does with a request: headers, denials, plans, rules, costs and errors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::get as on_get;
use axum::{Extension, Router};
use bytes::Bytes;
use http_body_util::Full;
use pacegate::observe::Observed;
use pacegate::{Algorithm, Cost, Limit, Limiter, Pattern, Rule};
use pacegate_tower::HeaderFamily;
use pacegate_tower::resolve::{Identifier, Resolve, address, header, principal};
use pacegate_tower::{Cause, Format, OnError, PacegateLayer};
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

use support::{app, get, get_from, gold, limiter, read, send, with_header};

fn log_of(quota: u64) -> Limit {
    Limit::try_new(Algorithm::SlidingLog, quota, Duration::from_secs(60)).unwrap()
}

#[tokio::test]
async fn allowed_request_gets_all_headers() {
    let (limiter, _) = gold();
    let app = app(PacegateLayer::builder(limiter).by(address()).plan("gold").build().unwrap());
    let answer = send(&app, get("/")).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "the layer runs before the route");
    let answer = send(&app, get("/orders")).await;
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, b"hello".as_slice()));
    for (name, value) in [
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "8"),
        ("x-ratelimit-reset", "1790000003"),
        ("x-ratelimit-strategy", "token_bucket"),
        ("x-ratelimit-state", ""),
        ("ratelimit-policy", r#""gold";q=10;w=10"#),
        ("ratelimit", r#""gold";r=8;t=2"#),
        ("retry-after", ""),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn denied_request_gets_429_with_all_headers_and_a_body() {
    let (limiter, clock) = gold();
    let layer = PacegateLayer::builder(limiter).by(address()).plan("gold").build().unwrap();
    let app = app(layer);
    for left in (0..10).rev() {
        assert_eq!(send(&app, get("/x")).await.remaining(), left.to_string());
    }
    clock.advance(Duration::from_millis(300));
    let answer = send(&app, with_header(get("/x"), "x-request-id", b"abc")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    for (name, value) in [
        ("content-type", "application/json"),
        ("retry-after", "1"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1790000011"),
        ("x-ratelimit-strategy", "token_bucket"),
        ("x-ratelimit-state", "throttled"),
        ("ratelimit-policy", r#""gold";q=10;w=10"#),
        ("ratelimit", r#""gold";r=0;t=10"#),
        ("x-request-id", "abc"),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    assert_eq!(
        answer.json(),
        json!({
            "error": {
                "code": "RATE_LIMITED", "message": "rate limit `gold` exceeded; retry in 1 s",
                "details": {"limit": 10, "remaining": 0, "reset_at": 1_790_000_011}, "request_id": "abc",
            },
            "allowed": false, "limit": 10, "remaining": 0, "reset_at": 1_790_000_011, "strategy": "token_bucket",
            "state": "throttled", "rule": "gold", "reason": "LIMIT_EXCEEDED", "degraded": false, "retry_after": 1,
            "retry_after_ms": 700,
        })
    );
    clock.advance(Duration::from_millis(700));
    assert_eq!(send(&app, get("/x")).await.status, StatusCode::OK, "after the announced time");
    assert_eq!(
        send(&app, get_from("192.0.2.2", "/x")).await.remaining(),
        "9",
        "other clients have separate counters"
    );
}

#[tokio::test]
async fn denial_can_be_a_problem_that_names_the_violated_policies() {
    let (limiter, _) = limiter(|builder| builder.plan("gold", [log_of(5).into(), Limit::per_second(1)]));
    let layer = PacegateLayer::builder(limiter).by(address()).plan("gold").format(Format::Problem);
    let app = app(layer.build().unwrap());
    let answer = send(&app, get("/x")).await;
    assert_eq!(answer.header("ratelimit-policy"), r#""gold";q=5;w=60, "gold#2";q=1;w=1"#);
    let answer = send(&app, get("/x")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!(
        answer.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429, "detail": "rate limit `gold` exceeded; retry in 1 s", "violated-policies": ["gold#2"],
            "limit": 1, "remaining": 0, "reset_at": 1_790_000_002, "retry_after": 1,
        })
    );
}

#[tokio::test]
async fn custom_denial_still_has_the_headers() {
    let (limiter, _) = limiter(|builder| builder.plan("one", [log_of(1)]));
    let layer = PacegateLayer::builder(limiter).by(address()).plan("one").respond_with(|denial| {
        assert!(matches!(denial.cause(), Cause::Limited(_)));
        let mut response = Response::new(Bytes::from_static(b"later"));
        *response.status_mut() = StatusCode::from_u16(420).unwrap();
        response
    });
    let app = app(layer.build().unwrap());
    send(&app, get("/x")).await;
    let answer = send(&app, get("/x")).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_slice()), (420, b"later".as_slice()));
    assert_eq!((answer.header("retry-after"), answer.remaining()), ("60", "0"));
    assert_eq!(answer.header("ratelimit"), r#""one";r=0;t=60"#);
}

#[tokio::test]
async fn header_families_can_be_disabled() {
    for (families, x_ratelimit, ietf) in [
        ([HeaderFamily::XRateLimit].as_slice(), "9", ""),
        (&[HeaderFamily::Ietf], "", r#""gold";r=9;t=1"#),
        (&[], "", ""),
    ] {
        let (limiter, _) = gold();
        let layer = PacegateLayer::builder(limiter).by(address()).plan("gold").headers(families);
        let answer = send(&app(layer.build().unwrap()), get("/x")).await;
        assert_eq!((answer.remaining(), answer.header("ratelimit")), (x_ratelimit, ietf), "{families:?}");
    }
}

#[tokio::test]
async fn headers_of_many_limits_are_never_mixed_up() {
    let names: Vec<String> = (1..=64).map(|quota| format!("plan-{quota}")).collect();
    let (limiter, _) = limiter(|builder| {
        names.iter().zip(1..).fold(builder, |builder, (name, quota)| builder.plan(name, [log_of(10 * quota)]))
    });
    let layer =
        PacegateLayer::builder(limiter).by(address()).plan_by(|request| request.uri.path().strip_prefix('/'));
    let app = app(layer.build().unwrap());
    for round in 1..=3 {
        for (name, quota) in names.iter().zip(1..) {
            let (capacity, left) = (10 * quota, 10 * quota - round);
            let answer = send(&app, get(&format!("/{name}"))).await;
            assert_eq!(answer.header("ratelimit-policy"), format!("\"{name}\";q={capacity};w=60"));
            assert_eq!(answer.header("ratelimit"), format!("\"{name}\";r={left};t=60"));
            assert_eq!(answer.header("x-ratelimit-limit"), capacity.to_string());
            assert_eq!(answer.remaining(), left.to_string());
        }
    }
}

#[tokio::test]
async fn several_keys_and_plans_are_charged_in_one_step() {
    let (limiter, _) =
        limiter(|builder| builder.plan("few", [log_of(2)]).plan("many", [log_of_an_hour(100)]));
    let layer =
        PacegateLayer::builder(limiter).by(address()).and_by(header("x-tenant")).plans(["few", "many"]);
    let app = app(layer.build().unwrap());
    let request = |tenant: &'static [u8]| with_header(get("/x"), "x-tenant", tenant);
    let first = send(&app, request(b"a")).await;
    assert_eq!(first.header("ratelimit-policy").matches("\"few").count(), 2, "one per identity");
    assert_eq!(send(&app, request(b"a")).await.status, StatusCode::OK);
    let denied = send(&app, request(b"b")).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "the address is at its limit");
    // If the denied request had charged its tenant, only one of these would pass.
    for _ in 0..2 {
        let elsewhere = with_header(get_from("192.0.2.7", "/x"), "x-tenant", b"b");
        assert_eq!(send(&app, elsewhere).await.status, StatusCode::OK);
    }
}

fn log_of_an_hour(quota: u64) -> Limit {
    Limit::try_new(Algorithm::SlidingLog, quota, Duration::from_secs(3_600)).unwrap()
}

#[tokio::test]
async fn rules_match_by_path_and_method_also_inside_nested_routers() {
    let mut rule = Rule::new("writes", "ip", log_of(1));
    rule.endpoint = Pattern::parse("/api/v1/{*rest}").unwrap();
    rule.methods = pacegate::Methods::try_new(["POST"]).unwrap();
    let (limiter, _) = limiter(|builder| builder.rule(rule));
    let layer = PacegateLayer::builder(limiter).by(address()).build().unwrap();
    let inner = Router::new().route("/orders", on_get(|| async {}).post(|| async {})).layer(layer);
    let app = Router::new().nest("/api/v1", inner);
    let post = |path: &str| {
        let mut request = get(path);
        *request.method_mut() = Method::POST;
        request
    };
    assert_eq!(send(&app, get("/api/v1/orders")).await.header("x-ratelimit-limit"), "", "no rule for GET");
    assert_eq!(send(&app, post("/api/v1/orders")).await.remaining(), "0");
    assert_eq!(send(&app, post("/api/v1/orders?page=2")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn plans_disable_rules_unless_both_are_configured() {
    let build =
        || limiter(|builder| builder.plan("gold", [log_of(5)]).rule(Rule::new("all", "ip", log_of(1)))).0;
    let plan_only = app(PacegateLayer::builder(build()).by(address()).plan("gold").build().unwrap());
    assert_eq!(send(&plan_only, get("/x")).await.header("ratelimit-policy"), r#""gold";q=5;w=60"#);
    let both = app(PacegateLayer::builder(build()).by(address()).plan("gold").rules().build().unwrap());
    assert_eq!(send(&both, get("/x")).await.header("ratelimit-policy"), r#""all";q=1;w=60, "gold";q=5;w=60"#);
}

#[tokio::test]
async fn ad_hoc_limit_has_one_counter_for_all_paths() {
    let (limiter, _) = limiter(|builder| builder);
    let app = app(PacegateLayer::builder(limiter).by(address()).limit(log_of(2)).build().unwrap());
    assert_eq!(send(&app, get("/a")).await.header("ratelimit"), r#""ad-hoc";r=1;t=60"#);
    assert_eq!(send(&app, get("/b")).await.remaining(), "0");
    assert_eq!(send(&app, get("/c")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn layers_can_be_global_and_per_route_and_the_headers_of_the_inner_one_are_kept() {
    let (limiter, _) = limiter(|builder| builder.plan("all", [log_of(4)]).plan("costly", [log_of(2)]));
    let layer = |plan| PacegateLayer::builder(limiter.clone()).by(address()).plan(plan).build().unwrap();
    let app = Router::new()
        .route("/cheap", on_get(|| async {}))
        .route("/costly", on_get(|| async {}).layer(layer("costly")))
        .layer(layer("all"));
    assert_eq!(send(&app, get("/cheap")).await.header("ratelimit-policy"), r#""all";q=4;w=60"#);
    assert_eq!(send(&app, get("/costly")).await.header("ratelimit"), r#""costly";r=1;t=60"#);
    assert_eq!(send(&app, get("/costly")).await.header("ratelimit"), r#""costly";r=0;t=60"#);
    let denied = send(&app, get("/costly")).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("ratelimit"), r#""costly";r=0;t=60"#, "not overwritten by the outer layer");
    let denied = send(&app, get("/cheap")).await;
    assert_eq!(denied.json()["rule"], "all", "the outer layer counted all five");
}

#[tokio::test]
async fn cost_comes_from_a_function() {
    let (limiter, _) = gold();
    let layer = PacegateLayer::builder(limiter)
        .by(address())
        .plan("gold")
        .cost(|request| if request.uri.path() == "/export" { Cost::try_new(6).unwrap() } else { Cost::ONE });
    let app = app(layer.build().unwrap());
    assert_eq!(send(&app, get("/export")).await.remaining(), "4");
    assert_eq!(send(&app, get("/export")).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(&app, get("/other")).await.remaining(), "3", "a denied request charges nothing");
}

#[tokio::test]
async fn cost_above_the_capacity_is_denied_without_retry_after() {
    let (limiter, _) = gold();
    let layer = PacegateLayer::builder(limiter).by(address()).plan("gold").cost(|_| Cost::MAX);
    let answer = send(&app(layer.build().unwrap()), get("/x")).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert_eq!(answer.json()["reason"], "COST_EXCEEDS_LIMIT");
    assert_eq!(answer.json()["error"]["message"], "the cost exceeds the capacity of rate limit `gold`");
}

#[tokio::test]
async fn some_requests_can_pass_unchecked() {
    let (limiter, _) = limiter(|builder| builder.plan("one", [log_of(1)]));
    let layer = PacegateLayer::builder(limiter).by(address()).plan("one");
    let app = app(layer.unless(|request| request.uri.path() == "/healthz").build().unwrap());
    for _ in 0..3 {
        let answer = send(&app, get("/healthz")).await;
        assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, ""));
    }
    assert_eq!(send(&app, get("/x")).await.remaining(), "0");
}

#[derive(Clone)]
struct Customer {
    plan: &'static str,
}

#[tokio::test]
async fn plan_can_be_chosen_per_request_and_an_unknown_one_is_an_error() {
    for (on_error, unknown) in
        [(OnError::Deny, StatusCode::INTERNAL_SERVER_ERROR), (OnError::Pass, StatusCode::OK)]
    {
        let (limiter, _) = gold();
        let layer = PacegateLayer::builder(limiter)
            .by(address())
            .plan_by(|request| request.extensions.get::<Customer>().map(|customer| customer.plan))
            .on_error(on_error);
        let app = app(layer.build().unwrap());
        let customer = |plan| app.clone().layer(Extension(Customer { plan }));
        assert_eq!(send(&customer("gold"), get("/x")).await.remaining(), "9");
        let answer = send(&app, get("/x")).await;
        assert_eq!(
            (answer.status, answer.remaining()),
            (StatusCode::OK, ""),
            "a request without a customer has no plan"
        );
        let answer = send(&customer("platinum"), get("/x")).await;
        assert_eq!((answer.status, answer.remaining()), (unknown, ""));
        if on_error == OnError::Deny {
            assert_eq!(answer.json()["error"]["code"], "INTERNAL_ERROR");
            assert!(
                !String::from_utf8(answer.body).unwrap().contains("platinum"),
                "no internal details are sent"
            );
        }
    }
}

#[tokio::test]
async fn removed_plan_is_an_error_and_does_not_let_requests_pass() {
    let (limiter, _) = gold();
    let app = app(PacegateLayer::builder(limiter.clone()).by(address()).plan("gold").build().unwrap());
    assert_eq!(send(&app, get("/x")).await.status, StatusCode::OK);
    limiter.replace(Limiter::builder().plan("gold", [log_of(3)])).unwrap();
    assert_eq!(
        send(&app, get("/x")).await.header("ratelimit-policy"),
        r#""gold";q=3;w=60"#,
        "the new limit applies"
    );
    limiter.replace(Limiter::builder()).unwrap();
    assert_eq!(send(&app, get("/x")).await.status, StatusCode::INTERNAL_SERVER_ERROR);
}

#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn fallback_resolver_is_used_if_the_first_finds_nothing() {
    let (limiter, _) = limiter(|builder| {
        builder.rule(Rule::new("users", "user", log_of(9))).rule(Rule::new("addresses", "ip", log_of(3)))
    });
    let by = principal(|user: &User| Identifier::from(user.0)).or(address());
    let layer = PacegateLayer::builder(limiter).by(by).and_by(address());
    let app = app(layer.build().unwrap());
    let answer = send(&app, get("/x")).await;
    assert_eq!(answer.header("ratelimit"), r#""addresses";r=2;t=60"#, "the address is counted once");
    let answer = send(&app.clone().layer(Extension(User("u"))), get("/x")).await;
    assert_eq!(answer.header("ratelimit"), r#""users";r=8;t=60, "addresses";r=1;t=60"#);
}

#[tokio::test]
async fn plain_hyper_service_can_be_limited() {
    let (limiter, _) = limiter(|builder| builder.plan("one", [log_of(1)]));
    let layer = PacegateLayer::builder(limiter).by(address()).plan("one").build().unwrap();
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"plain"))))
    }));
    let request = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 1)));
        request
    };
    let answer = read(service.clone().oneshot(request()).await.unwrap()).await;
    assert_eq!((answer.body.as_slice(), answer.remaining()), (b"plain".as_slice(), "0"));
    let answer = read(service.oneshot(request()).await.unwrap()).await;
    assert_eq!(answer.json()["error"]["code"], "RATE_LIMITED");
}

/// A service that becomes ready on demand.
#[derive(Clone)]
struct Gated {
    open: Arc<AtomicBool>,
}

impl Service<Request<()>> for Gated {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.open.load(Ordering::SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

#[test]
fn layer_is_ready_when_the_inner_service_is() {
    let layer = PacegateLayer::builder(gold().0).by(address()).plan("gold").build().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let mut service = layer.layer(Gated { open: open.clone() });
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_pending());
    open.store(true, Ordering::SeqCst);
    assert!(service.poll_ready(&mut context).is_ready());
}

#[tokio::test]
async fn policy_of_a_key_applies_in_the_dimension_of_the_layer() {
    let policy = Rule { identifier: Some("192.0.2.1".into()), ..Rule::new("policy", "key", log_of(3)) };
    let (limiter, _) = limiter(|builder| builder.rule(policy));
    let layer = PacegateLayer::builder(limiter.clone()).by(address()).build().unwrap();
    let app = app(layer);
    for left in ["2", "1"] {
        assert_eq!(send(&app, get("/orders")).await.remaining(), left);
    }
    assert_eq!(send(&app, get_from("192.0.2.2", "/orders")).await.remaining(), "", "another key");
    let decision = limiter.check(&pacegate::Check::key("192.0.2.1").endpoint("/")).await.unwrap();
    assert_eq!(decision.remaining(), Some(0), "the counter of the key");
    assert_eq!(send(&app, get("/other")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn observer_receives_every_decision() {
    let observed_decisions = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (limiter, _) = limiter(|builder| builder.plan("one", [log_of(1)]));
    let observer = observed_decisions.clone();
    let layer = PacegateLayer::builder(limiter).by(address()).plan("one").observe(
        move |observed: &Observed<'_, '_>| {
            let identity = observed.check.identities()[0].1.clone().into_owned();
            let allowed = observed.decided.unwrap().allowed();
            observer.lock().unwrap().push((identity, allowed, observed.request_id.to_owned()));
        },
    );
    let app = app(layer.build().unwrap());
    send(&app, with_header(get("/x"), "x-request-id", b"abc")).await;
    send(&app, get("/x")).await;
    let expected = [("192.0.2.1", true, "abc"), ("192.0.2.1", false, "")];
    let expected = expected.map(|(identity, allowed, id)| (identity.to_owned(), allowed, id.to_owned()));
    assert_eq!(*observed_decisions.lock().unwrap(), expected);
}
