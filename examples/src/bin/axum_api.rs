//! A shop API in axum: limits per user and per address in one step, a stricter limit for orders,
//! and an admin route.
//!
//! ```text
//! cargo run -p pacegate-examples --bin axum_api
//! curl -i -H 'x-api-key: key-of-alice' http://127.0.0.1:3000/items
//! curl -i -H 'x-api-key: key-of-alice' -X POST 'http://127.0.0.1:3000/orders?items=3'
//! curl -i -H 'x-api-key: key-of-admin' http://127.0.0.1:3000/admin/limits/alice
//! curl -i -H 'x-api-key: key-of-admin' -X DELETE http://127.0.0.1:3000/admin/limits/alice
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use std::net::SocketAddr;
use std::num::NonZeroU32;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use pacegate::{Check, Limit, Limiter, Rule};
use pacegate_tower::PacegateLayer;
use pacegate_tower::resolve::{RequestHead, address, principal};
use serde::Deserialize;
use serde_json::{Value, json};

/// The API keys; a real program looks them up in its database.
const KEYS: [(&str, User); 3] = [
    ("key-of-alice", User { name: "alice", is_admin: false }),
    ("key-of-bob", User { name: "bob", is_admin: false }),
    ("key-of-admin", User { name: "admin", is_admin: true }),
];

#[derive(Clone, Copy)]
struct User {
    name: &'static str,
    is_admin: bool,
}

#[derive(Deserialize)]
struct Order {
    items: NonZeroU32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::builder()
        .rule(Rule::builder("per-user", "user", Limit::per_hour(100).burst(10)))
        .rule(Rule::builder("per-address", "ip", Limit::per_hour(100).burst(15)))
        .rule(
            Rule::builder("orders", "user", Limit::per_hour(60).burst(5)).endpoint("/orders").method("POST"),
        )
        .build()?;
    // All limits that apply to a request are charged in one step, or none is: a denied order
    // charges nothing.
    let limits = PacegateLayer::builder(limiter.clone())
        .by(principal(|user: &User| user.name.into()))
        .and_by(address())
        .cost(cost)
        .build()?;
    let shop = Router::new()
        .route("/items", get(async || Json(json!(["tea", "bread"]))))
        .route("/orders", post(order))
        .layer(limits);
    // Admin routes have no limit, so that an administrator is never locked out.
    let admin = Router::new()
        .route("/admin/limits/{user}", get(show).delete(reset))
        .with_state(limiter)
        .layer(from_fn(only_admin));
    let app = shop.merge(admin).layer(from_fn(authenticate));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// An order costs 1 per item; every other request costs 1, including an invalid order, which its
/// handler rejects.
fn cost(request: &RequestHead<'_>) -> u32 {
    match Query::<Order>::try_from_uri(request.uri) {
        Ok(order) if request.path() == "/orders" => order.items.get(),
        _ => 1,
    }
}

/// Authenticates the request. It runs before the limits, which need its result, so it must be
/// cheap.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let Some((_, user)) = KEYS.iter().find(|(known, _)| key == Some(known)) else {
        return (StatusCode::UNAUTHORIZED, "missing or unknown x-api-key\n").into_response();
    };
    request.extensions_mut().insert(*user);
    next.run(request).await
}

async fn only_admin(Extension(user): Extension<User>, request: Request, next: Next) -> Response {
    if user.is_admin { next.run(request).await } else { StatusCode::FORBIDDEN.into_response() }
}

async fn order(Extension(user): Extension<User>, Query(order): Query<Order>) -> Json<Value> {
    Json(json!({"for": user.name, "items": order.items}))
}

/// The check to which most limits apply.
fn order_check(user: &str) -> Check<'_> {
    Check::new("user", user).endpoint("/orders").method("POST")
}

/// Shows the usage of a user, without charging anything.
async fn show(State(limiter): State<Limiter>, Path(user): Path<String>) -> Result<Json<Value>, AppError> {
    let decision = limiter.peek(&order_check(&user)).await?;
    let limits = decision.limits().iter().zip(decision.answers()).map(|(limit, answer)| {
        json!({"limit": &*limit.name, "capacity": answer.capacity, "remaining": answer.remaining})
    });
    Ok(Json(json!({"user": user, "limits": limits.collect::<Vec<_>>()})))
}

async fn reset(State(limiter): State<Limiter>, Path(user): Path<String>) -> Result<StatusCode, AppError> {
    limiter.reset(&order_check(&user)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A user name that is not a valid identifier, such as one with a line break.
struct AppError(pacegate::CheckError);

impl From<pacegate::CheckError> for AppError {
    fn from(error: pacegate::CheckError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, self.0.to_string()).into_response()
    }
}
