//! Deprecated endpoints.
//!
//! Each response of such an endpoint, errors included, has `Deprecation` (RFC 9745), `Sunset` (RFC
//! 8594) and a `Link` to its successor, and the OpenAPI document marks it. Other endpoints have no
//! overhead.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::MethodRouter;
use hyper::header::{HeaderName, HeaderValue, LINK};
use hyper::{HeaderMap, Method};
use jiff::civil::Date;
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use thiserror::Error;

/// The time since which an endpoint is deprecated.
pub(crate) const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
/// The time after which an endpoint may be removed.
pub(crate) const SUNSET: HeaderName = HeaderName::from_static("sunset");
/// Minimum time for which an endpoint is served after its deprecation.
const NOTICE_MONTHS: i64 = 6;
/// Minimum time for which an endpoint is served after the release of its successor.
const OVERLAP_MONTHS: i64 = 12;

/// The deprecated endpoints: method, path as in the OpenAPI document, release date of the
/// successor, deprecation date, sunset date and successor. Checks bypass the router, so before they
/// can be deprecated, the bypass in `App::dispatch` must be removed.
const TABLE: [(Method, &str, Date, Date, Date, &str); 0] = [];

/// One deprecated endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Deprecation {
    pub(crate) method: Method,
    /// The path as in the OpenAPI document.
    pub(crate) path: String,
    deprecation: HeaderValue,
    sunset: HeaderValue,
    link: HeaderValue,
}

/// Why a deprecation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum InvalidDeprecation {
    /// The sunset is too early.
    #[error(
        "{path}: sunset {sunset} is before {earliest}; required are 6 months of notice, and 12 months after the release of its successor"
    )]
    TooSoon {
        /// The endpoint.
        path: String,
        /// The requested sunset.
        sunset: Date,
        /// The earliest valid sunset.
        earliest: Date,
    },
    /// The dates or the successor are not valid in a header.
    #[error("{path}: the dates or the successor are not valid in a header")]
    Unwritable {
        /// The endpoint.
        path: String,
    },
}

impl Deprecation {
    /// Deprecates the endpoint at `path` from the start of `since` (UTC). It may be removed at the
    /// start of `sunset`. Its `successor` was released on `released`.
    pub(crate) fn new(
        method: Method,
        path: &str,
        released: Date,
        since: Date,
        sunset: Date,
        successor: &str,
    ) -> Result<Self, InvalidDeprecation> {
        let unwritable = || InvalidDeprecation::Unwritable { path: path.to_owned() };
        let notice = since.checked_add(NOTICE_MONTHS.months()).map_err(|_| unwritable())?;
        let overlap = released.checked_add(OVERLAP_MONTHS.months()).map_err(|_| unwritable())?;
        let earliest = notice.max(overlap);
        if earliest > sunset {
            return Err(InvalidDeprecation::TooSoon { path: path.to_owned(), sunset, earliest });
        }
        let begin = |date: Date| date.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp());
        let since: Timestamp = begin(since).map_err(|_| unwritable())?;
        let sunset: Timestamp = begin(sunset).map_err(|_| unwritable())?;
        let sunset = DateTimePrinter::new().timestamp_to_rfc9110_string(&sunset).map_err(|_| unwritable())?;
        let value = |text: String| HeaderValue::try_from(text).map_err(|_| unwritable());
        Ok(Self {
            method,
            path: path.to_owned(),
            deprecation: value(format!("@{}", since.as_second()))?,
            sunset: value(sunset)?,
            link: value(format!("<{successor}>; rel=\"successor-version\""))?,
        })
    }

    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(DEPRECATION, self.deprecation.clone());
        headers.insert(SUNSET, self.sunset.clone());
        headers.append(LINK, self.link.clone());
    }
}

/// Returns the deprecated endpoints. An invalid entry is skipped and logged; a test ensures that
/// there is none.
pub(crate) fn deprecations() -> Vec<Deprecation> {
    let entries = TABLE.into_iter().filter_map(|(method, path, released, since, sunset, successor)| {
        Deprecation::new(method, path, released, since, sunset, successor)
            .inspect_err(|error| tracing::error!(%error, "invalid deprecation skipped"))
            .ok()
    });
    entries.collect()
}

/// Returns the methods of `path`, with deprecation headers on deprecated ones.
pub(crate) fn marked<S: Clone + Send + Sync + 'static>(
    methods: MethodRouter<S>,
    path: &str,
    deprecations: &[Deprecation],
) -> MethodRouter<S> {
    let own: Vec<Deprecation> = deprecations.iter().filter(|entry| entry.path == path).cloned().collect();
    if own.is_empty() {
        return methods;
    }
    let own: Arc<[Deprecation]> = own.into();
    methods.layer(from_fn(move |request: Request, next: Next| {
        let own = own.clone();
        async move {
            let method = request.method().clone();
            let mut response = next.run(request).await;
            // HEAD returns the same headers as GET.
            let method = if method == Method::HEAD { Method::GET } else { method };
            if let Some(entry) = own.iter().find(|entry| entry.method == method) {
                entry.write(response.headers_mut());
            }
            response
        }
    }))
}

/// Copies the deprecation headers to a response that is rendered again.
pub(crate) fn carry(from: &Response, to: &mut Response) {
    if !from.headers().contains_key(DEPRECATION) {
        return;
    }
    for name in [DEPRECATION, SUNSET, LINK] {
        for value in from.headers().get_all(&name) {
            to.headers_mut().append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::SocketAddr;

    use axum::body::Body;
    use http_body_util::BodyExt;
    use jiff::civil::date;
    use pacegate_config::Config;

    use super::*;
    use crate::app::App;
    use crate::auth::AdminKey;
    use crate::rest::{is_check, routes};

    fn deprecated(method: Method, path: &str) -> Deprecation {
        let (released, since, sunset) = (date(2026, 5, 1), date(2026, 11, 16), date(2027, 6, 1));
        Deprecation::new(method, path, released, since, sunset, "/api/v2/health").unwrap()
    }

    fn app(deprecations: Vec<Deprecation>) -> App {
        let config = Config::parse("").unwrap();
        let limiter = config.limiter().unwrap();
        App::build(&config, limiter, None, Some(AdminKey::new("secret")), deprecations)
    }

    async fn send(app: &App, method: Method, path: &str) -> Response {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        app.respond(request, SocketAddr::from(([127, 0, 0, 1], 9999))).await
    }

    #[tokio::test]
    async fn deprecated_endpoint_has_its_headers_in_every_response() {
        let app = app(vec![deprecated(Method::GET, "/healthz"), deprecated(Method::GET, "/api/v1/rules")]);
        // A response, the same without a body, and an error, which is rendered again; with and
        // without `/api`.
        for (method, path, status) in [
            (Method::GET, "/healthz", 200),
            (Method::HEAD, "/healthz", 200),
            (Method::GET, "/api/v1/rules", 401),
            (Method::GET, "/v1/rules", 401),
        ] {
            let response = send(&app, method.clone(), path).await;
            assert_eq!(response.status(), status);
            let headers = response.headers();
            assert_eq!(headers[DEPRECATION], "@1794787200", "{method} {path}");
            assert_eq!(headers[SUNSET], "Tue, 01 Jun 2027 00:00:00 GMT", "{method} {path}");
            assert_eq!(headers[LINK], "</api/v2/health>; rel=\"successor-version\"", "{method} {path}");
        }
        // Other methods of the path and other paths are not deprecated.
        for (method, path) in [(Method::POST, "/api/v1/rules"), (Method::GET, "/api/v1/plans")] {
            let response = send(&app, method.clone(), path).await;
            for name in [DEPRECATION, SUNSET, LINK] {
                assert!(!response.headers().contains_key(&name), "{method} {path} has {name}");
            }
        }
    }

    #[tokio::test]
    async fn document_marks_deprecated_operations() {
        let app = app(vec![deprecated(Method::GET, "/api/v1/rules")]);
        let document = send(&app, Method::GET, "/openapi.json").await.into_body().collect().await.unwrap();
        let document: serde_json::Value = serde_json::from_slice(&document.to_bytes()).unwrap();
        let rules = &document["paths"]["/api/v1/rules"];
        assert_eq!(rules["get"]["deprecated"], true);
        assert!(rules["get"]["responses"]["200"]["headers"]["Sunset"].is_object());
        assert!(rules["post"].get("deprecated").is_none());
    }

    #[test]
    fn sunset_is_at_least_twelve_months_after_the_successor() {
        let new =
            |released, since, sunset| Deprecation::new(Method::GET, "/x", released, since, sunset, "/y");
        // Released and deprecated on the same day: the notice period alone is not enough.
        let released = date(2026, 1, 31);
        assert!(matches!(
            new(released, released, date(2027, 1, 30)),
            Err(InvalidDeprecation::TooSoon { earliest, .. }) if earliest == date(2027, 1, 31)
        ));
        assert!(new(released, released, date(2027, 1, 31)).is_ok());
        // Deprecated late: the notice period applies as well.
        assert!(new(released, date(2026, 12, 1), date(2027, 5, 31)).is_err());
        assert!(new(released, date(2026, 12, 1), date(2027, 6, 1)).is_ok());
    }

    #[test]
    fn sunset_is_at_least_six_months_after_deprecation() {
        let new =
            |sunset| Deprecation::new(Method::GET, "/x", date(2025, 8, 31), date(2026, 8, 31), sunset, "/y");
        assert!(matches!(new(date(2027, 2, 27)), Err(InvalidDeprecation::TooSoon { .. })));
        assert!(new(date(2027, 2, 28)).is_ok(), "the last day of the sixth month");
        assert!(matches!(new(date(2026, 8, 30)), Err(InvalidDeprecation::TooSoon { .. })));
        let (released, sunset) = (date(2026, 1, 1), date(2027, 1, 1));
        let successor = Deprecation::new(Method::GET, "/x", released, released, sunset, "/y\n");
        assert!(matches!(successor, Err(InvalidDeprecation::Unwritable { .. })));
    }

    #[test]
    fn table_names_existing_endpoints() {
        let known = deprecations();
        assert_eq!(known.len(), TABLE.len(), "an entry is invalid");
        let routes = routes();
        for entry in known {
            assert!(
                routes.iter().any(|(_, paths, _)| paths.paths.contains_key(&entry.path)),
                "{}",
                entry.path
            );
            assert!(!is_check(&entry.path), "checks bypass the router");
        }
    }
}
