//! The list of routes, from which both the router and the OpenAPI document are built.

use std::sync::Arc;

use axum::Router;
use utoipa_axum::router::UtoipaMethodRouter;
use utoipa_axum::routes;

use super::manage::{audit, config, identities, keys, logs, overrides, plans, rules, user_import, users};
use super::{batch, check, explain, feed, health, metrics, reset, status, throttlex, whoami};
use crate::app::{Shared, method_not_allowed, not_found};
use crate::dashboard;
use crate::deprecation::{Deprecation, marked};
use crate::openapi;

/// The methods of one path, with their OpenAPI documentation.
pub(crate) type Route = UtoipaMethodRouter<Arc<Shared>>;

/// Returns all routes, in the order of the document. Each handler declares its path and method.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        routes!(check::check),
        routes!(batch::batch_check),
        routes!(status::status),
        routes!(reset::reset),
        routes!(explain::explain),
        routes!(rules::list, rules::create),
        routes!(rules::get, rules::replace, rules::delete),
        routes!(config::put),
        routes!(config::get, config::delete),
        routes!(plans::list),
        routes!(plans::get, plans::put, plans::delete),
        routes!(users::list, user_import::import),
        routes!(users::get),
        routes!(users::limits),
        routes!(users::put_tier),
        routes!(overrides::list, overrides::create),
        routes!(overrides::delete),
        routes!(identities::limits),
        routes!(overrides::list_of_identity, overrides::create_for_identity),
        routes!(overrides::delete_of_identity),
        routes!(keys::list, keys::create),
        routes!(keys::revoke),
        routes!(audit::list),
        routes!(logs::list),
        routes!(logs::usage),
        routes!(throttlex::status::status),
        routes!(throttlex::metrics::metrics),
        routes!(throttlex::metrics::metrics_of),
        routes!(throttlex::reset::reset),
        routes!(throttlex::policies::list, throttlex::policies::create),
        routes!(throttlex::policies::get, throttlex::policies::replace, throttlex::policies::delete),
        routes!(health::alive),
        routes!(health::ready),
        routes!(metrics::metrics),
        routes!(feed::live),
        routes!(feed::history),
        routes!(whoami::whoami),
        routes!(openapi::document_json),
        routes!(openapi::page::page),
    ]
}

/// Returns the router for all routes and the dashboard's files. Routes in `deprecations` are marked
/// as deprecated.
pub(crate) fn router(shared: Arc<Shared>, deprecations: &[Deprecation]) -> Router {
    let mut router = Router::new();
    for (_, paths, methods) in routes() {
        for path in paths.paths.keys() {
            let methods = marked(methods.clone(), path, deprecations);
            for address in addresses(path) {
                router = router.route(&address, methods.clone());
            }
        }
    }
    for (path, methods) in dashboard::routes() {
        router = router.route(path, methods);
    }
    router.fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(shared)
}

/// Returns the router for health and metrics alone.
pub(crate) fn operations(shared: Arc<Shared>) -> Router {
    let mut router = Router::new();
    for (_, paths, methods) in
        [routes!(health::alive), routes!(health::ready), routes!(metrics::metrics)] as [Route; 3]
    {
        for path in paths.paths.keys() {
            router = router.route(path, methods.clone());
        }
    }
    router.fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(shared)
}

/// Returns the addresses of a path of the document: with and without `/api` if it has a version,
/// and with an endpoint of any number of segments.
pub(super) fn addresses(path: &str) -> Vec<String> {
    let versioned = path.strip_prefix("/api").unwrap_or(path);
    let paths = if versioned.starts_with("/v1/") {
        vec![versioned.to_owned(), format!("/api{versioned}")]
    } else {
        vec![path.to_owned()]
    };
    let spread = |path: String| match path.strip_suffix("{endpoint}") {
        // If nothing follows the slash, the endpoint is that slash.
        Some(start) => vec![start.to_owned(), format!("{start}{{*endpoint}}")],
        None => vec![path],
    };
    paths.into_iter().flat_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versioned_paths_are_served_with_and_without_api() {
        assert_eq!(addresses("/api/v1/rules"), ["/v1/rules", "/api/v1/rules"]);
        assert_eq!(addresses("/v1/rate-limit/reset"), ["/v1/rate-limit/reset", "/api/v1/rate-limit/reset"]);
        assert_eq!(addresses("/admin/status"), ["/admin/status"]);
        assert_eq!(
            addresses("/v1/rate-limit/status/{user_id}/{endpoint}"),
            [
                "/v1/rate-limit/status/{user_id}/",
                "/v1/rate-limit/status/{user_id}/{*endpoint}",
                "/api/v1/rate-limit/status/{user_id}/",
                "/api/v1/rate-limit/status/{user_id}/{*endpoint}",
            ]
        );
    }

    /// Checks bypass the router, at exactly the addresses that the router has for them.
    #[test]
    fn checks_bypass_the_router_at_their_routes() {
        let (_, paths, _) = &routes()[0];
        let check: Vec<String> = paths.paths.keys().flat_map(|path| addresses(path)).collect();
        assert_eq!(check, super::super::CHECK_PATHS);
        assert!(check.iter().all(|path| super::super::is_check(path)));
    }
}
