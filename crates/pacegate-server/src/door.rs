//! Where connections come in: accepted up to a bound for all and a bound for each address, and finished when the program stops.
//!
//! When all places are taken, the connections that have been without a request for longest leave, those that never sent one
//! first. So clients that say nothing cannot keep others out.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use ipnet::IpNet;
use pacegate::Gauge;
use pacegate_config::ServerConfig;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::app::App;
use crate::connection::Protocol;
use crate::peer::network_of;
use crate::per_second::PerSecond;

/// How long requests in flight may take once the program is told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it can take until connections that the operating system has let in are heard of.
const LAST_CONNECTIONS: Duration = Duration::from_millis(10);
/// How long to wait when the operating system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A connection is without a request for so long before it has to leave for another one.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// How often it is looked whether one has been without a request for so long.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// When all places are taken, one of so many is freed at once: looking at all connections is not cheap.
const FREED_SHARE: usize = 100;
/// Files that are not connections of clients: those of stores, the catalog and the program itself.
const OTHER_FILES: usize = 128;

static LINES: PerSecond = PerSecond::new(1);

/// How many log lines about connections were too many.
pub(crate) fn lines_held_back() -> u64 {
    LINES.held_back()
}

/// What happened at a door.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Connections that are served.
    pub(crate) open: Gauge,
    /// Connections that were refused because their address had too many.
    pub(crate) refused: AtomicU64,
    /// Connections without a request that had to leave for others.
    pub(crate) evicted: AtomicU64,
}

/// One listener, and the places of those who come through it.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    places: Arc<Places>,
}

impl Door {
    /// The door of a proxy, whose connections are counted as HTTP in the metrics of `app`.
    pub fn new(listener: TcpListener, config: &ServerConfig, app: &App) -> Self {
        // For each of them there may be one to the upstream.
        Self::of(listener, Protocol::Http, config, 2, app)
    }

    /// One of so many `doors` of this process.
    pub(crate) fn of(
        listener: TcpListener,
        protocol: Protocol,
        config: &ServerConfig,
        doors: usize,
        app: &App,
    ) -> Self {
        let mut max = config.max_connections;
        if let Some(files) = file_limit().map(|files| files.saturating_sub(OTHER_FILES).max(1) / doors)
            && files < max
        {
            tracing::info!(
                protocol = protocol.name(),
                max_connections = max,
                connections = files,
                "the limit of open files allows fewer connections than server.max_connections"
            );
            max = files.max(1);
        }
        let places = Places::new(max, config, app.shared.telemetry.door(protocol).clone());
        Self { listener, places: Arc::new(places) }
    }

    /// Has each connection served by `serve` until `stopping` completes; then it stops listening, what was accepted is finished,
    /// and it returns.
    pub async fn serve<F>(
        self,
        stopping: impl Future<Output = ()>,
        serve: impl Fn(TcpStream, SocketAddr, Place) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        let mut stopping = pin!(stopping);
        // Accepted, and without a place yet: further ones wait in the operating system instead of in memory.
        let mut waiting = None;
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => break,
                (stream, peer, place) = self.next(&mut waiting) => {
                    connections.spawn(serve(stream, peer, place));
                }
                // Finished connections are forgotten as they finish.
                Some(_) = connections.join_next() => {}
            }
        }
        // The operating system has let these in already, and they may have sent a request.
        if let Some((stream, peer)) = waiting {
            connections.spawn(serve(stream, peer, Place::extra()));
        }
        let last = Instant::now() + LAST_CONNECTIONS;
        while Instant::now() < last
            && let Ok(Ok((stream, peer))) = timeout_at(last, self.listener.accept()).await
        {
            connections.spawn(serve(stream, peer, Place::extra()));
        }
        drop(self.listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("some requests were still running and are cut off");
        }
    }

    /// The next connection that has a place. One that waits for its place stays in `waiting` when this is dropped.
    async fn next(&self, waiting: &mut Option<(TcpStream, SocketAddr)>) -> (TcpStream, SocketAddr, Place) {
        loop {
            let (stream, peer) = match waiting.take() {
                Some(accepted) => accepted,
                None => self.accept().await,
            };
            match self.places.take(peer.ip()) {
                Ok(place) => return (stream, peer, place),
                Err(Full::Address) => {
                    if LINES.admit() {
                        tracing::warn!(
                            "an address has as many connections as server.max_connections_per_address \
                             allows; further ones are refused"
                        );
                    }
                }
                Err(Full::All) => {
                    *waiting = Some((stream, peer));
                    // The time in which a connection becomes one that may leave is nothing to be told of.
                    let _ = timeout(LOOK_EVERY, self.places.freed.notified()).await;
                }
            }
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if LINES.admit() {
                        tracing::warn!(%error, "could not accept a connection");
                    }
                    // It may be that no more files can be opened.
                    self.places.make_room();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// How many files this process can have open, if the operating system tells.
fn file_limit() -> Option<usize> {
    usize::try_from(crate::telemetry::max_files()?).ok()
}

/// Why a connection has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// Its address has as many as one may have.
    Address,
    /// All are taken.
    All,
}

/// The places of a door.
#[derive(Debug)]
struct Places {
    max: usize,
    max_per_address: usize,
    /// Proxies, which stand for many clients.
    exempt: Vec<IpNet>,
    taken: Mutex<Taken>,
    /// Told when a place may be free.
    freed: Notify,
    figures: Arc<Figures>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    next: u64,
    /// By address, then in the order in which they came.
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Presence>>>,
}

impl Taken {
    fn remove(&mut self, address: IpAddr, number: u64) -> Option<Arc<Presence>> {
        let own = self.by_address.get_mut(&address)?;
        let removed = own.remove(&number)?;
        if own.is_empty() {
            self.by_address.remove(&address);
        }
        self.count -= 1;
        Some(removed)
    }
}

impl Places {
    fn new(max: usize, config: &ServerConfig, figures: Arc<Figures>) -> Self {
        Self {
            max,
            max_per_address: config.connections_per_address(max),
            exempt: config.trusted_proxies.clone(),
            taken: Mutex::default(),
            freed: Notify::new(),
            figures,
        }
    }

    /// A place for a connection from `peer`.
    fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Full> {
        let peer = peer.to_canonical();
        let address = network_of(peer);
        let mut taken = self.taken.lock();
        if let Some(own) = taken.by_address.get(&address)
            && own.len() >= self.max_per_address
            // Otherwise the bound for all is the one that counts.
            && self.max_per_address < self.max
            && !self.exempt.iter().any(|network| network.contains(&peer))
        {
            let now = Instant::now();
            let idle = own.iter().filter_map(|(number, presence)| Some((presence.idle(now)?, *number)));
            let Some((_, number)) = idle.min() else {
                self.figures.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Full::Address);
            };
            self.evict(&mut taken, address, number);
        }
        if taken.count >= self.max {
            self.free_some(&mut taken);
        }
        if taken.count >= self.max {
            return Err(Full::All);
        }
        let number = taken.next;
        taken.next += 1;
        taken.count += 1;
        let presence = Arc::new(Presence::default());
        taken.by_address.entry(address).or_default().insert(number, presence.clone());
        let present = self.figures.open.enter();
        Ok(Place { registered: Some((self.clone(), address, number)), presence, _present: Some(present) })
    }

    /// Lets some connections leave that have been without a request for longest.
    fn make_room(&self) {
        self.free_some(&mut self.taken.lock());
    }

    fn free_some(&self, taken: &mut Taken) {
        let now = Instant::now();
        let of_address = |(address, own): (&IpAddr, &BTreeMap<u64, Arc<Presence>>)| {
            let address = *address;
            let idle = own
                .iter()
                .filter_map(move |(number, presence)| Some((presence.idle(now)?, address, *number)));
            idle.collect::<Vec<_>>()
        };
        let mut idle: Vec<_> = taken.by_address.iter().flat_map(of_address).collect();
        let freed = (self.max / FREED_SHARE).max(1).min(idle.len());
        if freed < idle.len() {
            idle.select_nth_unstable(freed);
        }
        for (_, address, number) in idle.drain(..freed) {
            self.evict(taken, address, number);
        }
    }

    fn evict(&self, taken: &mut Taken, address: IpAddr, number: u64) {
        if let Some(presence) = taken.remove(address, number) {
            presence.cut_off();
            self.figures.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A place among the connections of a door, free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    /// Where it was taken, unless it is one beyond the bound.
    registered: Option<(Arc<Places>, IpAddr, u64)>,
    presence: Arc<Presence>,
    _present: Option<pacegate::Present>,
}

impl Place {
    /// A place beyond the bound, for a connection that is there already when the program stops.
    fn extra() -> Self {
        Self { registered: None, presence: Arc::default(), _present: None }
    }

    /// What the connection does, and whether it has to leave.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((places, address, number)) = self.registered.take() {
            places.taken.lock().remove(address, number);
            places.freed.notify_one();
        }
    }
}

/// Whether a connection has requests, and since when it has none.
#[derive(Debug)]
pub struct Presence {
    opened: Instant,
    active: AtomicUsize,
    /// Milliseconds after it was opened, from one on; zero before the first request has ended.
    idle_since: AtomicU64,
    cut: Notify,
}

impl Default for Presence {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            active: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            cut: Notify::new(),
        }
    }
}

impl Presence {
    /// A request begins, and goes on until the value is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.enter();
        Busy(self.clone())
    }

    pub(crate) fn enter(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        // Before the count: a connection that looks idle has been so since this moment.
        let after = self.opened.elapsed().as_millis() as u64;
        self.idle_since.store(after.max(1), Ordering::Relaxed);
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there is a request under way.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Has the connection cut off.
    pub(crate) fn cut_off(&self) {
        self.cut.notify_one();
    }

    /// Completes when the connection is to be cut off.
    pub async fn is_cut_off(&self) {
        self.cut.notified().await;
    }

    /// Whether it has had a request, and since when it has none; `None` if it may stay. Those that leave first are the least.
    fn idle(&self, now: Instant) -> Option<(bool, Instant)> {
        if self.is_active() {
            return None;
        }
        let after = self.idle_since.load(Ordering::Relaxed);
        let since = self.opened + Duration::from_millis(after);
        (now.saturating_duration_since(since) >= IDLE_MIN).then_some((after > 0, since))
    }
}

/// A request under way on a connection.
#[derive(Debug)]
#[must_use = "the request ends when this is dropped"]
pub struct Busy(Arc<Presence>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::{Ipv4Addr, Ipv6Addr};

    use pacegate_config::Config;

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn places(server: &str) -> Arc<Places> {
        let config = Config::parse(&format!("server: {{{server}}}")).unwrap().server;
        Arc::new(Places::new(config.max_connections, &config, Arc::default()))
    }

    fn counts(places: &Places) -> (u64, u64) {
        let Figures { refused, evicted, .. } = &*places.figures;
        (refused.load(Ordering::Relaxed), evicted.load(Ordering::Relaxed))
    }

    /// Whether the connection was told to leave.
    async fn has_left(place: &Place) -> bool {
        timeout(Duration::from_millis(1), place.presence.is_cut_off()).await.is_ok()
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_so_many_places_and_others_have_theirs() {
        let places = places("max_connections: 10, max_connections_per_address: 2");
        let (first, second) = (places.take(A).unwrap(), places.take(A).unwrap());
        let _busy = (first.presence.begin(), second.presence.begin());
        pass(IDLE_MIN * 2).await;
        assert_eq!(places.take(A).unwrap_err(), Full::Address);
        let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        assert_eq!(places.take(mapped.into()).unwrap_err(), Full::Address, "the same address");
        assert_eq!(counts(&places), (2, 0));
        let other = places.take(B).unwrap();
        drop(first);
        let _again = places.take(A).unwrap();
        drop((second, other));
    }

    #[tokio::test(start_paused = true)]
    async fn ipv6_addresses_are_counted_by_their_network() {
        let places = places("max_connections: 10, max_connections_per_address: 1");
        let address = |network, host| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host));
        let _first = places.take(address(1, 1)).unwrap();
        assert_eq!(places.take(address(1, 2)).unwrap_err(), Full::Address);
        assert!(places.take(address(2, 1)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn trusted_proxies_have_no_bound_of_their_own() {
        let places =
            places("max_connections: 3, max_connections_per_address: 1, trusted_proxies: [10.0.0.1/32]");
        let _taken = [places.take(A).unwrap(), places.take(A).unwrap(), places.take(B).unwrap()];
        assert_eq!(places.take(A).unwrap_err(), Full::All);
        assert_eq!(places.take(B).unwrap_err(), Full::Address);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_of_an_address_at_its_bound_leaves_for_a_new_one() {
        let places = places("max_connections: 10, max_connections_per_address: 2");
        let (used, silent) = (places.take(A).unwrap(), places.take(A).unwrap());
        drop(used.presence.begin());
        assert_eq!(places.take(A).unwrap_err(), Full::Address, "both have only just come");
        pass(IDLE_MIN).await;
        let new = places.take(A).unwrap();
        let _request = new.presence.begin();
        assert!(has_left(&silent).await && !has_left(&used).await, "the one without a request goes first");
        pass(IDLE_MIN).await;
        let _newer = places.take(A).unwrap();
        assert_eq!(counts(&places), (1, 2));
        // Those that have left hold no place when they end.
        drop((silent, used));
        assert_eq!(places.taken.lock().count, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_leave_first_when_all_places_are_taken() {
        let places = places("max_connections: 4, max_connections_per_address: 4");
        let busy = places.take(A).unwrap();
        let _request = busy.presence.begin();
        let used = places.take(A).unwrap();
        drop(used.presence.begin());
        let silent = [places.take(B).unwrap(), places.take(B).unwrap()];
        assert_eq!(places.take(B).unwrap_err(), Full::All);
        pass(IDLE_MIN).await;
        let mut came = Vec::new();
        for left in [&silent[0], &silent[1], &used] {
            assert!(!has_left(left).await);
            came.push(places.take(B).unwrap());
            came.last().unwrap().presence.begin().forget();
            assert!(has_left(left).await);
        }
        assert_eq!(places.take(B).unwrap_err(), Full::All, "what has a request stays");
        assert!(!has_left(&busy).await);
        assert_eq!(counts(&places), (0, 3));
        drop(came);
        assert!(places.take(B).is_ok());
    }

    impl Busy {
        /// A request that does not end.
        fn forget(self) {
            std::mem::forget(self);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_places_are_freed_at_once() {
        let places = places("max_connections: 1000, max_connections_per_address: 1000");
        let _silent: Vec<_> = (0..1_000).map(|_| places.take(A).unwrap()).collect();
        pass(IDLE_MIN).await;
        let _new = places.take(B).unwrap();
        assert_eq!((counts(&places), places.taken.lock().count), ((0, 10), 991));
    }
}
