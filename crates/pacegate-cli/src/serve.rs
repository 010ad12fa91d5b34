//! `pacegate serve`: the service.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use pacegate_catalog::Actor;
use pacegate_config::{Config, ConfigErrors, StoreConfig};
use pacegate_connect::Watch;
use pacegate_server::{AdminKey, App, Listeners, Live, Tls};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::log_warnings;
use crate::files;
use crate::logging::Logging;
use crate::output::say;
use crate::reload::{self, Followed};
use crate::{Failure, stores};

/// The environment variable that sets the admin key.
const ADMIN_KEY: &str = "PACEGATE_ADMIN_KEY";

/// Runs the service. By default it needs only memory for counters and a SQLite file for the
/// catalog.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate serve --http 0.0.0.0:8080 --config pacegate.yaml\n  pacegate serve --store redis://127.0.0.1:6379"
)]
pub(crate) struct Serve {
    /// The configuration file. The environment overrides its values: PACEGATE_SERVER__HTTP sets
    /// server.http.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the REST API. Overrides server.http (127.0.0.1:8080).
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// The address of the gRPC services. Overrides server.grpc (127.0.0.1:8081).
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<SocketAddr>,
    /// A second address of the REST API, for health checks and administration. Overrides
    /// server.admin (none).
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// The store of the counters: memory:, redis://, rediss://, redis+sentinel://,
    /// redis+cluster://, mysql:// or postgres://. Overrides stores.default.url (memory:).
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The catalog of rules, users and the audit trail: sqlite://PATH, sqlite::memory:, postgres://
    /// or mysql://. Overrides catalog.url (sqlite://pacegate.db).
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// Waits for unavailable stores and catalogs at the start instead of exiting.
    #[arg(long)]
    wait_for_store: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        // From before the file is read, so that no change is missed.
        let watch = Watch::new(self.config.clone());
        let mut config = Config::load(self.config.as_deref()).map_err(|errors| {
            let file =
                self.config.as_deref().map_or("the environment".into(), |path| path.display().to_string());
            Failure::Misused(anyhow!("{file} is invalid:\n{errors}"))
        })?;
        // Compared with the file after each change of it.
        let followed = self.config.map(|path| Followed { path, started: config.clone(), watch });
        if let Some(url) = self.catalog {
            config.catalog.url = url;
        }
        if let Some(url) = self.store {
            let name = config.stores[0].name.clone();
            config.stores[0] =
                StoreConfig { memory: config.stores[0].memory, ..StoreConfig::new(&name, &url) };
        }
        let errors = ConfigErrors(pacegate_connect::url_errors(&config));
        if !errors.0.is_empty() {
            return Err(Failure::Failed(anyhow!("{errors}")));
        }
        if let Some(http) = self.http {
            config.server.http = http;
        }
        config.server.grpc = self.grpc.or(config.server.grpc);
        config.server.admin = self.admin.or(config.server.admin);
        let admin_key = std::env::var(ADMIN_KEY).ok().filter(|key| !key.is_empty());
        let key_length = admin_key.as_ref().map(|key| key.chars().count());
        let reachable = [Some(config.server.http), config.server.grpc, config.server.admin];
        if let Some(length) = key_length.filter(|length| *length < AdminKey::LENGTH_MIN)
            && let Some(address) = reachable.into_iter().flatten().find(|to| !to.ip().is_loopback())
        {
            let min = AdminKey::LENGTH_MIN;
            return Err(Failure::Misused(anyhow!(
                "{ADMIN_KEY}: expected at least {min} characters on an address that is not loopback ({address}), got {length}"
            )));
        }
        files::allow_all();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let logging = runtime.block_on(async { Logging::start(&config) }).map_err(Failure::Misused)?;
        log_warnings(followed.as_ref().map(|followed| followed.path.as_path()), &config);
        if let Some(length) = key_length.filter(|length| *length < AdminKey::LENGTH_SAFE) {
            let expected = AdminKey::LENGTH_SAFE;
            tracing::warn!(length, expected, "{ADMIN_KEY} is short and can be guessed");
        }
        let tls = config.server.tls.as_ref().map(|tls| reload::load_certificates(&tls.files)).transpose();
        let tls = tls.map_err(|error| Failure::Misused(error.into()))?;
        let served = runtime.block_on(serve(config, followed, tls, admin_key, self.wait_for_store));
        logging.finish();
        Ok(served?)
    }
}

/// Bounds the rate of new keys in each store if checks need no API key, because any caller can then
/// invent identities.
fn bounded_by_default(mut config: Config) -> Config {
    if !config.server.require_key {
        for store in &mut config.stores {
            store.new_keys_per_second.get_or_insert(StoreConfig::NEW_KEYS_PER_SECOND);
        }
    }
    config
}

async fn serve(
    config: Config,
    followed: Option<Followed>,
    tls: Option<(Watch, Arc<Tls>)>,
    chosen: Option<String>,
    wait_for_store: bool,
) -> anyhow::Result<()> {
    if config.service.is_some() {
        tracing::warn!(
            ignored = "mode, service",
            "settings ignored: `mode: service` and `service` are for programs that call a service"
        );
    }
    let stores = stores::connect(&bounded_by_default(config.clone()), wait_for_store).await?;
    let catalog = stores::open_catalog(&config.catalog, wait_for_store).await?;
    let live = Live::start(config.clone(), stores, catalog.clone()).await?;
    let http = listen(config.server.http).await?;
    let address = http.local_addr()?;
    let mut listeners = Listeners::from(http);
    let mut addresses = vec![format!("http{}://{address} (REST)", if tls.is_some() { "s" } else { "" })];
    if let Some(grpc) = config.server.grpc {
        let grpc = listen(grpc).await?;
        addresses.push(format!("{} (gRPC)", grpc.local_addr()?));
        listeners = listeners.grpc(grpc);
    }
    if let Some(admin) = config.server.admin {
        let admin = listen(admin).await?;
        addresses.push(format!("{} (admin)", admin.local_addr()?));
        listeners = listeners.admin(admin);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Created last: if the start failed after this, the secret would be lost.
    let created = if chosen.is_none() && !catalog.has_admin_key().await? {
        let actor = Actor { key_id: "first start".into(), ..Actor::default() };
        Some(catalog.create_key(&actor, "admin", "first start", None).await?.1)
    } else {
        None
    };
    let app = App::managed(&config, live.clone(), chosen.as_deref().map(AdminKey::new));

    // Printed and not logged, because logs are stored.
    say(&format!("pacegate {} listening on {}", env!("CARGO_PKG_VERSION"), enumerated(&addresses)));
    if let Some(key) = created {
        say(&format!("admin key, shown only once (set {ADMIN_KEY} to choose your own): {key}"));
    }
    let mut background = JoinSet::new();
    background.spawn(live.clone().follow());
    background.spawn(live.clone().keep_logs());
    if let Some((watch, tls)) = tls {
        background.spawn(reload::follow_certificates(tls.clone(), watch));
        listeners = listeners.tls(tls);
    }
    if let Some(followed) = followed {
        background.spawn(reload::follow(followed, live.clone()));
    }
    // All rules in force: those of the file and those of the catalog.
    let sources = live.sources();
    tracing::info!(%address, rules = sources.rules().count(), plans = sources.file.plans.len() + sources.catalog.plans.len(), "ready");
    drop(sources);
    pacegate_server::run(listeners, app, &config.server, async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await;
    live.finish_logs().await;
    tracing::info!("stopped");
    Ok(())
}

/// Joins items as in "a, b and c".
fn enumerated(items: &[String]) -> String {
    match items {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => items.concat(),
    }
}

pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))
}
