//! Whether the catalog answers and can be written to, known without waiting for one that does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pacegate_catalog::Catalog;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How long what was found out is believed.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long a question waits for a look that is under way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a catalog that could be written to is tried again.
const WRITE_EVERY: Duration = Duration::from_secs(5);

const SILENT: &str = "the catalog does not answer";
const READ_ONLY: &str = "the catalog cannot be written to";

type Found = Result<(), &'static str>;

/// The last look at a catalog. At most one look is under way, in a task of its own.
#[derive(Clone, Debug)]
pub(crate) struct CatalogHealth(Arc<Looks>);

#[derive(Debug)]
struct Looks {
    catalog: Catalog,
    latest: watch::Sender<Option<(Instant, Found)>>,
    is_looking: AtomicBool,
    times: Mutex<Times>,
}

#[derive(Debug)]
struct Times {
    look_started: Instant,
    written: Option<Instant>,
}

impl CatalogHealth {
    pub(crate) fn new(catalog: Catalog) -> Self {
        Self(Arc::new(Looks {
            catalog,
            latest: watch::Sender::new(None),
            is_looking: AtomicBool::new(false),
            times: Mutex::new(Times { look_started: Instant::now(), written: None }),
        }))
    }

    /// Says what is wrong with the catalog, if anything is. Answers within half a second.
    pub(crate) async fn found(&self) -> Found {
        let mut latest = self.0.latest.subscribe();
        if let Some((at, found)) = *latest.borrow_and_update()
            && at.elapsed() < FRESH_FOR
        {
            return found;
        }
        let started = self.look();
        match timeout_at(started + PATIENCE, latest.changed()).await {
            Ok(Ok(())) => latest.borrow().as_ref().map_or(Err(SILENT), |(_, found)| *found),
            _ => Err(SILENT),
        }
    }

    /// Starts a look unless one is under way; says when it was started.
    fn look(&self) -> Instant {
        let looks = self.0.clone();
        let mut times = looks.times.lock().unwrap_or_else(PoisonError::into_inner);
        if !looks.is_looking.swap(true, Ordering::AcqRel) {
            times.look_started = Instant::now();
            let looks = looks.clone();
            tokio::spawn(async move {
                let found = looks.ask().await;
                looks.is_looking.store(false, Ordering::Release);
                looks.latest.send_replace(Some((Instant::now(), found)));
            });
        }
        times.look_started
    }
}

impl Looks {
    async fn ask(&self) -> Found {
        self.catalog.ping().await.map_err(|_| SILENT)?;
        let written = self.times.lock().unwrap_or_else(PoisonError::into_inner).written;
        if written.is_some_and(|at| at.elapsed() < WRITE_EVERY) {
            return Ok(());
        }
        let probed = self.catalog.probe_write().await;
        let is_known = matches!(*self.latest.borrow(), Some((_, Err(READ_ONLY))));
        if let Err(error) = &probed
            && !is_known
        {
            tracing::error!(%error, "catalog cannot be written to");
        }
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.written = probed.is_ok().then(Instant::now);
        probed.map_err(|_| READ_ONLY)
    }
}
