//! A listener: it accepts connections up to a total bound and a bound per address, and drains them
//! on shutdown.
//!
//! When all slots are taken, the connections that have been idle longest are evicted, those that
//! never sent a request first, so that silent clients cannot keep others out.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use ipnet::IpNet;
use pacegate::store::Gauge;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{Client, Connection, Phase, Requests, Settings};
use super::per_second::PerSecond;
use crate::Bounds;

/// Maximum time for requests in flight to complete after shutdown starts.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait for connections that the operating system has already accepted.
const LAST_CONNECTIONS: Duration = Duration::from_millis(10);
/// Time to wait after the operating system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Minimum idle time of a connection before it can be evicted.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// Time between two searches for connections to evict.
const EVICT_EVERY: Duration = Duration::from_millis(100);
/// When all slots are taken, one in this many is freed at once, because scanning all connections is
/// expensive.
const FREED_SHARE: usize = 100;
/// File descriptors reserved for stores, the catalog and the program itself.
const OTHER_FILES: usize = 128;

static LINES: PerSecond = PerSecond::new(1);

/// Returns the number of suppressed log lines about connections.
pub fn suppressed_lines() -> u64 {
    LINES.suppressed()
}

/// The connection metrics of a listener.
#[derive(Debug, Default)]
pub struct Figures {
    /// Number of open connections.
    pub open: Gauge,
    /// Number of connections rejected because their address had too many.
    pub refused: AtomicU64,
    /// Number of idle connections evicted for others.
    pub evicted: AtomicU64,
}

/// A listening socket, and the slots of its connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    slots: Arc<Slots>,
}

impl Listener {
    /// Bounds the connections of `socket`, one of `users` listeners that share the process's file
    /// descriptors.
    pub fn new(socket: TcpListener, bounds: &Bounds, users: usize, figures: Arc<Figures>) -> Self {
        let mut max = bounds.max_connections;
        if let Some(files) = max_files().map(|files| files.saturating_sub(OTHER_FILES).max(1) / users)
            && files < max
        {
            tracing::info!(
                address = socket.local_addr().ok().map(tracing::field::display),
                max_connections = max,
                connections = files,
                "connections reduced below server.max_connections by the limit of open files"
            );
            max = files.max(1);
        }
        Self { socket, slots: Arc::new(Slots::new(max, bounds, figures)) }
    }

    /// Serves each connection with the [`Requests`] that `connect` creates for its client, until
    /// the phase is [`Phase::Stopping`]. Then it stops listening, drains the accepted connections,
    /// and returns.
    pub async fn serve<R: Requests>(
        self,
        settings: Settings,
        connect: impl Fn(Client) -> R + Clone + Send + Sync + 'static,
    ) {
        let mut phases = settings.phases.clone();
        let serve = |stream, address, slot: Slot| {
            let connection = Connection { settings: settings.clone(), address, slot: Arc::new(slot) };
            connection.serve(stream, connect.clone())
        };
        let mut connections = JoinSet::new();
        // The sender outlives all listeners.
        let mut stopping = pin!(phases.wait_for(|phase| *phase == Phase::Stopping));
        // An accepted connection without a slot; further ones wait in the operating system's
        // backlog.
        let mut waiting = None;
        loop {
            tokio::select! {
                biased;
                _ = &mut stopping => break,
                (stream, peer, slot) = self.next(&mut waiting) => {
                    connections.spawn(serve(stream, peer, slot));
                }
                // Finished connections are removed as they finish.
                Some(_) = connections.join_next() => {}
            }
        }
        // The operating system has already accepted these, and they may have sent a request.
        if let Some((stream, peer)) = waiting {
            connections.spawn(serve(stream, peer, Slot::extra()));
        }
        let last = Instant::now() + LAST_CONNECTIONS;
        while Instant::now() < last
            && let Ok(Ok((stream, peer))) = timeout_at(last, self.socket.accept()).await
        {
            connections.spawn(serve(stream, peer, Slot::extra()));
        }
        drop(self.socket);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("drain timed out; remaining requests aborted");
        }
    }

    /// Returns the next connection with a slot. A connection that waits for its slot stays in
    /// `waiting` if this future is dropped.
    async fn next(&self, waiting: &mut Option<(TcpStream, SocketAddr)>) -> (TcpStream, SocketAddr, Slot) {
        loop {
            let (stream, peer) = match waiting.take() {
                Some(accepted) => accepted,
                None => self.accept().await,
            };
            match self.slots.take(peer.ip()) {
                Ok(slot) => return (stream, peer, slot),
                Err(Full::Address) => {
                    if LINES.admit() {
                        tracing::warn!(
                            "connection rejected: its address has reached server.max_connections_per_address"
                        );
                    }
                }
                Err(Full::All) => {
                    *waiting = Some((stream, peer));
                    // No notification is sent when a connection becomes idle, so poll for it.
                    let _ = timeout(EVICT_EVERY, self.slots.freed.notified()).await;
                }
            }
        }
    }

    async fn accept(&self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    if LINES.admit() {
                        tracing::warn!(%error, "connection could not be accepted");
                    }
                    // The limit of open files may be reached.
                    self.slots.evict_some();
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

/// Returns the maximum number of open files of this process; `None` if unlimited.
fn max_files() -> Option<usize> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current?.try_into().ok()
}

/// Returns the address by which connections of `address` are counted. IPv6 addresses are counted by
/// their /64 network, because a host owns a whole network.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

/// Why a connection gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// Its address has the maximum number of connections.
    Address,
    /// All slots are taken.
    All,
}

/// The slots of a listener.
#[derive(Debug)]
struct Slots {
    max: usize,
    max_per_address: usize,
    /// Proxies, which carry the requests of many clients.
    exempt: Vec<IpNet>,
    taken: Mutex<Taken>,
    /// Notified when a slot may be free.
    freed: Notify,
    figures: Arc<Figures>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    next: u64,
    /// Keyed by address, then in order of arrival.
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

impl Slots {
    fn new(max: usize, bounds: &Bounds, figures: Arc<Figures>) -> Self {
        Self {
            max,
            max_per_address: bounds.connections_per_address(max),
            exempt: bounds.trusted_proxies.clone(),
            taken: Mutex::default(),
            freed: Notify::new(),
            figures,
        }
    }

    /// Takes a slot for a connection from `peer`.
    fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Slot, Full> {
        let peer = peer.to_canonical();
        let address = network_of(peer);
        let mut taken = self.taken.lock();
        if let Some(own) = taken.by_address.get(&address)
            && own.len() >= self.max_per_address
            // Otherwise the total bound applies.
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
        Ok(Slot { registered: Some((self.clone(), address, number)), presence, _present: Some(present) })
    }

    /// Evicts some of the connections that have been idle longest.
    fn evict_some(&self) {
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

/// A connection slot of a listener; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    /// Where it is registered; `None` for a slot beyond the bound.
    registered: Option<(Arc<Slots>, IpAddr, u64)>,
    presence: Arc<Presence>,
    _present: Option<pacegate::store::Present>,
}

impl Slot {
    /// Returns a slot beyond the bound, for a connection that arrived before shutdown.
    fn extra() -> Self {
        Self { registered: None, presence: Arc::default(), _present: None }
    }

    /// Returns the state of the connection.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((slots, address, number)) = self.registered.take() {
            slots.taken.lock().remove(address, number);
            slots.freed.notify_one();
        }
    }
}

/// Whether a connection has requests, and since when it is idle.
#[derive(Debug)]
pub struct Presence {
    opened: Instant,
    active: AtomicUsize,
    /// Milliseconds after it was opened, at least 1; zero before the first request has ended.
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
    /// Starts a request, which ends when the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.enter();
        Busy(self.clone())
    }

    pub(super) fn enter(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        // Stored before the count, so that a connection that appears idle has this time.
        let after = self.opened.elapsed().as_millis() as u64;
        self.idle_since.store(after.max(1), Ordering::Relaxed);
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether a request is in flight.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Closes the connection immediately.
    pub fn cut_off(&self) {
        self.cut.notify_one();
    }

    /// Completes when the connection must be closed.
    pub(super) async fn is_cut_off(&self) {
        self.cut.notified().await;
    }

    /// Returns whether it has had a request, and since when it is idle; `None` if it cannot be
    /// evicted. The smallest values are evicted first.
    fn idle(&self, now: Instant) -> Option<(bool, Instant)> {
        if self.is_active() {
            return None;
        }
        let after = self.idle_since.load(Ordering::Relaxed);
        let since = self.opened + Duration::from_millis(after);
        (now.saturating_duration_since(since) >= IDLE_MIN).then_some((after > 0, since))
    }
}

/// A request in flight on a connection.
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

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn slots(max_connections: usize, per_address: usize, trusted_proxies: &[&str]) -> Arc<Slots> {
        let bounds = Bounds {
            max_connections,
            max_connections_per_address: Some(per_address),
            trusted_proxies: trusted_proxies.iter().map(|network| network.parse().unwrap()).collect(),
            max_streams: 128,
            idle_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(10),
        };
        Arc::new(Slots::new(max_connections, &bounds, Arc::default()))
    }

    fn counts(slots: &Slots) -> (u64, u64) {
        let Figures { refused, evicted, .. } = &*slots.figures;
        (refused.load(Ordering::Relaxed), evicted.load(Ordering::Relaxed))
    }

    /// Returns whether the connection was evicted.
    async fn is_evicted(slot: &Slot) -> bool {
        timeout(Duration::from_millis(1), slot.presence.is_cut_off()).await.is_ok()
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn slots_of_an_address_are_bounded_independently_of_others() {
        let slots = slots(10, 2, &[]);
        let (first, second) = (slots.take(A).unwrap(), slots.take(A).unwrap());
        let _busy = (first.presence.begin(), second.presence.begin());
        pass(IDLE_MIN * 2).await;
        assert_eq!(slots.take(A).unwrap_err(), Full::Address);
        let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        assert_eq!(slots.take(mapped.into()).unwrap_err(), Full::Address, "the same address");
        assert_eq!(counts(&slots), (2, 0));
        let other = slots.take(B).unwrap();
        drop(first);
        let _again = slots.take(A).unwrap();
        drop((second, other));
    }

    #[tokio::test(start_paused = true)]
    async fn ipv6_addresses_are_counted_by_their_network() {
        let slots = slots(10, 1, &[]);
        let address = |network, host| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host));
        let _first = slots.take(address(1, 1)).unwrap();
        assert_eq!(slots.take(address(1, 2)).unwrap_err(), Full::Address);
        assert!(slots.take(address(2, 1)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn trusted_proxies_have_no_bound_per_address() {
        let slots = slots(3, 1, &["10.0.0.1/32"]);
        let _taken = [slots.take(A).unwrap(), slots.take(A).unwrap(), slots.take(B).unwrap()];
        assert_eq!(slots.take(A).unwrap_err(), Full::All);
        assert_eq!(slots.take(B).unwrap_err(), Full::Address);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_of_an_address_at_its_bound_is_evicted_for_a_new_one() {
        let slots = slots(10, 2, &[]);
        let (used, silent) = (slots.take(A).unwrap(), slots.take(A).unwrap());
        drop(used.presence.begin());
        assert_eq!(slots.take(A).unwrap_err(), Full::Address, "both connections are new");
        pass(IDLE_MIN).await;
        let new = slots.take(A).unwrap();
        let _request = new.presence.begin();
        assert!(
            is_evicted(&silent).await && !is_evicted(&used).await,
            "the connection without a request is evicted first"
        );
        pass(IDLE_MIN).await;
        let _newer = slots.take(A).unwrap();
        assert_eq!(counts(&slots), (1, 2));
        // Evicted connections hold no slot when they end.
        drop((silent, used));
        assert_eq!(slots.taken.lock().count, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_are_evicted_first_when_all_slots_are_taken() {
        let slots = slots(4, 4, &[]);
        let busy = slots.take(A).unwrap();
        let _request = busy.presence.begin();
        let used = slots.take(A).unwrap();
        drop(used.presence.begin());
        let silent = [slots.take(B).unwrap(), slots.take(B).unwrap()];
        assert_eq!(slots.take(B).unwrap_err(), Full::All);
        pass(IDLE_MIN).await;
        let mut new = Vec::new();
        for left in [&silent[0], &silent[1], &used] {
            assert!(!is_evicted(left).await);
            new.push(slots.take(B).unwrap());
            new.last().unwrap().presence.begin().forget();
            assert!(is_evicted(left).await);
        }
        assert_eq!(slots.take(B).unwrap_err(), Full::All, "active connections are not evicted");
        assert!(!is_evicted(&busy).await);
        assert_eq!(counts(&slots), (0, 3));
        drop(new);
        assert!(slots.take(B).is_ok());
    }

    impl Busy {
        /// A request that does not end.
        fn forget(self) {
            std::mem::forget(self);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_slots_are_freed_at_once() {
        let slots = slots(1000, 1000, &[]);
        let _silent: Vec<_> = (0..1_000).map(|_| slots.take(A).unwrap()).collect();
        pass(IDLE_MIN).await;
        let _new = slots.take(B).unwrap();
        assert_eq!((counts(&slots), slots.taken.lock().count), ((0, 10), 991));
    }
}
