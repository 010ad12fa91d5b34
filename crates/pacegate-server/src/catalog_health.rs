//! The health of the catalog: whether it is available and writable, without waiting for a hung one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pacegate_catalog::Catalog;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Time during which a result is reused.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Maximum time that a caller waits for a probe in progress.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Time between two write probes of a writable catalog.
const WRITE_EVERY: Duration = Duration::from_secs(5);

const UNAVAILABLE: &str = "catalog unavailable";
const NOT_WRITABLE: &str = "catalog is not writable";

type Health = Result<(), &'static str>;

/// The last probe of a catalog. At most one probe is in progress, in a separate task.
#[derive(Clone, Debug)]
pub(crate) struct CatalogHealth(Arc<Probes>);

#[derive(Debug)]
struct Probes {
    catalog: Catalog,
    latest: watch::Sender<Option<(Instant, Health)>>,
    is_probing: AtomicBool,
    times: Mutex<Times>,
}

#[derive(Debug)]
struct Times {
    probe_started: Instant,
    written: Option<Instant>,
}

impl CatalogHealth {
    pub(crate) fn new(catalog: Catalog) -> Self {
        Self(Arc::new(Probes {
            catalog,
            latest: watch::Sender::new(None),
            is_probing: AtomicBool::new(false),
            times: Mutex::new(Times { probe_started: Instant::now(), written: None }),
        }))
    }

    /// Returns an error if the catalog is unavailable or not writable. Completes within half a
    /// second.
    pub(crate) async fn check(&self) -> Health {
        let mut latest = self.0.latest.subscribe();
        if let Some((at, found)) = *latest.borrow_and_update()
            && at.elapsed() < FRESH_FOR
        {
            return found;
        }
        let started = self.probe();
        match timeout_at(started + WAIT_MAX, latest.changed()).await {
            Ok(Ok(())) => latest.borrow().as_ref().map_or(Err(UNAVAILABLE), |(_, found)| *found),
            _ => Err(UNAVAILABLE),
        }
    }

    /// Starts a probe unless one is in progress; returns when it was started.
    fn probe(&self) -> Instant {
        let probes = self.0.clone();
        let mut times = probes.times.lock().unwrap_or_else(PoisonError::into_inner);
        if !probes.is_probing.swap(true, Ordering::AcqRel) {
            times.probe_started = Instant::now();
            let probes = probes.clone();
            tokio::spawn(async move {
                let found = probes.run().await;
                probes.is_probing.store(false, Ordering::Release);
                probes.latest.send_replace(Some((Instant::now(), found)));
            });
        }
        times.probe_started
    }
}

impl Probes {
    async fn run(&self) -> Health {
        self.catalog.ping().await.map_err(|_| UNAVAILABLE)?;
        let written = self.times.lock().unwrap_or_else(PoisonError::into_inner).written;
        if written.is_some_and(|at| at.elapsed() < WRITE_EVERY) {
            return Ok(());
        }
        let probed = self.catalog.probe_write().await;
        let is_known = matches!(*self.latest.borrow(), Some((_, Err(NOT_WRITABLE))));
        if let Err(error) = &probed
            && !is_known
        {
            tracing::error!(%error, "catalog is not writable");
        }
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.written = probed.is_ok().then(Instant::now);
        probed.map_err(|_| NOT_WRITABLE)
    }
}
