//! Reloads the configuration file and the certificates when they change. An invalid file changes
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pacegate_config::{Config, StoreConfig};
use pacegate_connect::Watch;
use pacegate_http::TlsFiles;
use pacegate_http::server::TlsError;
use pacegate_server::{Live, Tls};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::log_warnings;

/// A configuration file that is followed.
pub(crate) struct Followed {
    pub(crate) path: PathBuf,
    /// The configuration at the start.
    pub(crate) started: Config,
    /// Began before the file was read.
    pub(crate) watch: Watch,
}

/// Reloads the file when it changes and on SIGHUP, until the task is aborted.
pub(crate) async fn follow(followed: Followed, live: Arc<Live>) {
    let Followed { path, started, mut watch } = followed;
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else {
        tracing::error!("no handler for SIGHUP; the configuration file is not reloaded");
        return;
    };
    loop {
        tokio::select! {
            _ = hang_up.recv() => watch.acknowledge(),
            () = watch.changed() => {}
        }
        reload(&path, &started, &live).await;
    }
}

/// Loads the certificates, and watches their files from before they are read.
pub(crate) fn load_certificates(files: &TlsFiles) -> Result<(Watch, Arc<Tls>), TlsError> {
    let watch = Watch::new(files.paths().map(Into::into));
    Ok((watch, Tls::load(files)?))
}

/// Reloads the certificates when one of their files changes and on SIGHUP, until the task is
/// aborted. `watch` began before they were loaded.
pub(crate) async fn follow_certificates(tls: Arc<Tls>, mut watch: Watch) {
    let Ok(mut hang_up) = signal(SignalKind::hangup()) else {
        tracing::error!("no handler for SIGHUP; certificates are not reloaded");
        return;
    };
    loop {
        tokio::select! {
            _ = hang_up.recv() => watch.acknowledge(),
            () = watch.changed() => {}
        }
        match tls.reload() {
            Ok(()) => tracing::info!("certificates reloaded; new connections use them"),
            Err(error) => tracing::error!(%error, "certificates not reloaded; the previous ones stay in use"),
        }
    }
}

async fn reload(path: &Path, started: &Config, live: &Live) {
    let file = path.display();
    let config = match Config::load(Some(path)) {
        Ok(config) => config,
        Err(errors) => {
            for error in &errors.0 {
                tracing::error!(%file, "{error}");
            }
            tracing::error!(%file, errors = errors.0.len(), "configuration not reloaded; the previous rules stay in force");
            return;
        }
    };
    log_warnings(Some(path), &config);
    for part in need_a_restart(started, &config) {
        tracing::warn!(%file, part, "setting changed; it takes effect after a restart");
    }
    let (rules, plans) = (config.rules.len(), config.plans.len());
    match live.reload(config).await {
        Ok(()) => tracing::info!(%file, rules, plans, "configuration reloaded"),
        Err(error) => {
            tracing::error!(%file, %error, "configuration not reloaded; the previous rules stay in force")
        }
    }
}

/// The changed parts of the configuration that need a restart.
fn need_a_restart(started: &Config, now: &Config) -> Vec<&'static str> {
    // The position of a store in the file does not matter.
    let stores = |config: &Config| -> Vec<StoreConfig> {
        config.stores.iter().map(|store| StoreConfig { place: String::new(), ..store.clone() }).collect()
    };
    let parts = [
        ("server", started.server != now.server),
        ("stores", stores(started) != stores(now)),
        ("catalog", started.catalog != now.catalog),
        (
            "failure.timeout",
            (started.store_timeout, started.envoy_store_timeout)
                != (now.store_timeout, now.envoy_store_timeout),
        ),
        ("log", started.log != now.log),
        ("traces", started.traces != now.traces),
        ("metrics", started.metrics != now.metrics),
        ("headers", started.headers != now.headers),
        ("envoy", started.envoy_headers != now.envoy_headers),
        ("management", started.management != now.management),
        ("decision_log", started.decision_log != now.decision_log),
        ("retention", started.retention != now.retention),
    ];
    parts.into_iter().filter(|(_, changed)| *changed).map(|(part, _)| part).collect()
}
