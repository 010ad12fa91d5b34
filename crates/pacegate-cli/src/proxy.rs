//! `pacegate proxy`: a reverse proxy that rate-limits a program in any language.

mod body;
mod connection;
mod forward;
mod headers;
mod path;
mod trace;
mod tunnel;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use hyper::Uri;
use hyper::header::HeaderName;
use pacegate::{Limiter, path::EncodedSlashes};
use pacegate_config::Config;
use pacegate_connect::Watch;
use pacegate_http::server::{Listener, Phase, Settings, Tls, stop};
use pacegate_server::{App, Listeners};
use pacegate_tower::resolve::{Resolve, address, api_key, header};
use pacegate_tower::{MissingKey, PacegateLayer};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower_layer::Layer;

use crate::Failure;
use crate::files;
use crate::logging::Logging;
use crate::output::say;
use crate::reload;
use crate::serve::listen;
use connection::{Connection, Proxied, SIZES};
use forward::{Forward, Upstream};

/// Maximum value of a timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// Runs a reverse proxy in front of a program. Allowed requests are forwarded, others get 429.
///
/// Requests are counted by the address of the client (dimension ip), by the SHA-256 of X-API-Key if
/// there is one (apikey), and by the header --user-header if that is set (user), all in one atomic
/// step. Rules match the path and the method.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate proxy --upstream http://127.0.0.1:3000 --config pacegate.yaml\n  pacegate proxy --upstream http://127.0.0.1:50051 --upstream-http2 --http 0.0.0.0:8090 --admin 127.0.0.1:8091"
)]
pub(crate) struct Proxy {
    /// The program that requests are forwarded to: http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    http: SocketAddr,
    /// The address of /metrics, /healthz and /readyz. Without it they are not served: all paths of
    /// --http belong to the upstream.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// The configuration file, reloaded when it changes. The environment overrides its values.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The header with the user. Set this only if something in front of the proxy overwrites the
    /// header, because clients can send any header.
    #[arg(long, value_name = "NAME")]
    user_header: Option<String>,
    /// Uses HTTP/2 with prior knowledge for the upstream, as gRPC servers require, instead of
    /// HTTP/1.1.
    #[arg(long)]
    upstream_http2: bool,
    /// Time after which the upstream must have started its response. It restarts while the body of
    /// the request is being sent.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: String,
    /// Time after which a body or a WebSocket without data in either direction is closed.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    stream_timeout: String,
}

impl Proxy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let upstream = self.upstream().map_err(Failure::Misused)?;
        if let Some(name) = &self.user_header {
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                Failure::Misused(anyhow!("--user-header: `{name}` is not a valid header name"))
            })?;
        }
        // From before the file is read, so that no change is missed.
        let watch = Watch::new(self.config.clone());
        let mut config = Config::load(self.config.as_deref()).map_err(|errors| {
            let file =
                self.config.as_deref().map_or("the environment".into(), |path| path.display().to_string());
            Failure::Misused(anyhow!("{file} is invalid:\n{errors}"))
        })?;
        files::allow_all();
        config.paths.encoded_slashes.get_or_insert(EncodedSlashes::Refuse);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let logging = runtime.block_on(async { Logging::start(&config) }).map_err(Failure::Misused)?;
        let tls = config.server.tls.as_ref().map(|tls| reload::load_certificates(&tls.files)).transpose();
        let tls = tls.map_err(|error| Failure::Misused(error.into()))?;
        let served = runtime.block_on(self.serve(config, watch, upstream, tls));
        logging.finish();
        Ok(served?)
    }

    /// Returns the upstream that the arguments describe.
    fn upstream(&self) -> anyhow::Result<Upstream> {
        let reject = |reason: &str| anyhow!("--upstream: `{}` {reason}", self.upstream);
        let url: Uri = self.upstream.parse().map_err(|_| reject("is not a URL"))?;
        if url.scheme_str() != Some("http") {
            return Err(reject("must be an address such as http://127.0.0.1:3000"));
        }
        let authority = url.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| reject("must not contain a user or a password"))?.clone();
        if url.path() != "/" || url.query().is_some() {
            return Err(reject("must not have a path: requests keep their own"));
        }
        Ok(Upstream {
            authority,
            http2: self.upstream_http2,
            timeout: duration("--timeout", &self.timeout)?,
            stream_timeout: duration("--stream-timeout", &self.stream_timeout)?,
        })
    }

    async fn serve(
        self,
        config: Config,
        watch: Watch,
        upstream: Upstream,
        tls: Option<(Watch, Arc<Tls>)>,
    ) -> anyhow::Result<()> {
        let (certificates, tls) = tls.unzip();
        let limiter = pacegate_connect::from_parsed(&config).await?;
        let app = App::operations(&config, limiter.clone());
        let layer = self.layer(&config, limiter.clone(), app.clone())?;
        let listener = listen(self.http).await?;
        let address = listener.local_addr()?;
        let admin = match self.admin {
            Some(admin) => Some(listen(admin).await?),
            None => None,
        };
        let admin_address = admin.as_ref().map(TcpListener::local_addr).transpose()?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // Ignored: the proxy reloads its file when it changes.
        let _hang_up = signal(SignalKind::hangup())?;
        let service = layer.layer(Forward::new(upstream, config.server.trusted_proxies.clone()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shown = match admin_address {
            Some(admin) => format!("; health and metrics on {scheme}://{admin}"),
            None => String::new(),
        };
        say(&format!(
            "pacegate proxy listening on {scheme}://{address}, forwarding to {}{shown}",
            self.upstream.trim_end_matches('/')
        ));
        tracing::info!(%address, admin = admin_address.map(tracing::field::display), rules = config.rules.len(), "ready");
        let (server, paths, path) = (config.server.clone(), config.paths, self.config);
        let follow = async {
            match path {
                Some(path) => pacegate_connect::follow_from(watch, path, limiter).await,
                None => std::future::pending().await,
            }
        };
        let certificates = async {
            match (&tls, certificates) {
                (Some(tls), Some(watch)) => reload::follow_certificates(tls.clone(), watch).await,
                _ => std::future::pending().await,
            }
        };
        let (phase, phases) = watch::channel(Phase::Serving);
        let shutdown = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!(delay = ?server.drain_delay, "graceful shutdown started");
            stop(&phase, server.drain_delay).await;
        };
        let operations = async {
            if let Some(admin) = admin {
                let mut phases = phases.clone();
                // The sender lives as long as this function.
                let stopping = async { drop(phases.wait_for(|phase| *phase != Phase::Serving).await) };
                let listeners = match &tls {
                    Some(tls) => Listeners::from(admin).tls(tls.clone()),
                    None => admin.into(),
                };
                pacegate_server::run(listeners, app.clone(), &server, stopping).await;
            }
        };
        let bounds = Arc::new(server.bounds());
        // Each connection can have one to the upstream.
        let listener = Listener::new(listener, &bounds, 2, app.connections());
        let settings =
            Settings { bounds, http2_only: false, sizes: SIZES, tls: tls.clone(), phases: phases.clone() };
        let proxied = Proxied { service, app: app.clone(), paths, phases: phases.clone() };
        let proxy = listener.serve(settings, move |client| Connection { proxied: proxied.clone(), client });
        tokio::select! {
            ((), (), ()) = async { tokio::join!(shutdown, proxy, operations) } => {}
            () = follow => {}
            () = certificates => {}
        }
        tracing::info!("stopped");
        Ok(())
    }

    /// The identities that requests are counted by. The address is always present; the API key and
    /// the user are optional.
    fn layer(&self, config: &Config, limiter: Limiter, app: App) -> anyhow::Result<PacegateLayer> {
        let mut builder = PacegateLayer::builder(limiter)
            .observe(app)
            .by(address().trust(config.server.trusted_proxies.iter().copied()))
            .and_by(api_key())
            .on_missing_key(MissingKey::Pass)
            .headers(&config.headers);
        if let Some(name) = &self.user_header {
            builder = builder.and_by(header(name).in_dimension("user"));
        }
        Ok(builder.build()?)
    }
}

fn duration(option: &str, text: &str) -> anyhow::Result<Duration> {
    let duration = humantime::parse_duration(text);
    let duration =
        duration.map_err(|_| anyhow!("{option}: expected a duration such as 30s, got `{text}`"))?;
    if duration < Duration::from_millis(1) || duration > TIMEOUT_MAX {
        return Err(anyhow!("{option}: must be between 1ms and 1h, got {text}"));
    }
    Ok(duration)
}
