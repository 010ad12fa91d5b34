//! The store: routes commands, parses replies, and sends again only commands that did not run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use pacegate_core::{Algorithm, Cost, Counter, Key, Limit, Timestamp};
use pacegate_store::{
    Action, ApplyFuture, BatchFuture, Charge, Command, Figure, Figures, Outcome, Part, ProbeFuture, Spread,
    Store, StoreError, apply_in_parts, apply_spread, first_success, spread_piece,
};
use redis::{Cmd, Pipeline, RedisError, Value};
use smallvec::SmallVec;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::cluster::Cluster;
use crate::connection::{Live, Node};
use crate::connector::{Connector, RedisOptions};
use crate::error::{Failure, ReplyError, answered, classify, is_replica};
use crate::keys::{Keys, slot_of, slot_of_record};
use crate::new_keys::NewKeys;
use crate::script;
use crate::sentinel::Sentinel;
use crate::url::Topology;
use crate::variants::run;

/// Maximum number of times that a command that did not run is sent again.
const RESENDS_MAX: u32 = 3;
/// The pause before a command is sent again if the server needs time, doubled each time, with
/// jitter. The pauses add up to most of the default deadline.
const RESEND_PAUSE: Duration = Duration::from_millis(6);
/// Minimum time between two refreshes of the topology.
const REFRESH_PAUSE: Duration = Duration::from_millis(25);
/// Interval between refreshes of the topology without a failure: a primary that was replaced may
/// keep responding.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// With this many identifiers, there is one for every primary of a cluster, even if it has a single
/// slot.
const VERIFY_IDENTIFIERS_MAX: u64 = 200_000;
/// Maximum number of commands sent to Redis at once, so that others can be sent in between.
const PIPELINE_MAX: usize = 128;

/// A store with counters in Redis. See the crate documentation.
#[derive(Clone, Debug)]
pub struct RedisStore {
    router: Arc<Router>,
    connector: Arc<Connector>,
    _topology_task: Arc<TopologyTask>,
}

/// The task that refreshes the topology after failures. It ends with the store.
#[derive(Debug)]
struct TopologyTask(AbortHandle);

#[derive(Debug)]
enum Router {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl RedisStore {
    /// Connects to `options.url`, loads the script and verifies on a separate counter everything
    /// that checks need.
    ///
    /// # Errors
    /// [`StoreError`] when Redis cannot be reached or rejects us; [`StoreError::is_permanent`]
    /// distinguishes the two.
    pub async fn connect(options: RedisOptions) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(&options)?);
        let router = match options.url.topology {
            Topology::Single(address) => Router::Single(Node::new(address, &connector)),
            Topology::Sentinel { sentinels, service } => {
                Router::Sentinel(Sentinel::new(sentinels, service, connector.clone()))
            }
            Topology::Cluster { seeds } => Router::Cluster(Cluster::new(seeds, connector.clone())),
        };
        router.refresh().await?;
        let live = router.node(0)?.connection(0).await?;
        warn_about_eviction(live).await;
        let router = Arc::new(router);
        let topology_task = tokio::spawn(refresh_topology(router.clone(), connector.clone())).abort_handle();
        let store = Self { router, connector, _topology_task: Arc::new(TopologyTask(topology_task)) };
        store.verify().await?;
        if let Some(per_second) = options.new_keys_per_second {
            store.connector.new_keys.get_or_init(|| NewKeys::new(per_second));
        }
        Ok(store)
    }

    /// Runs everything that checks need once on every primary, so that a missing permission, a
    /// renamed command or a read-only server fails the startup instead of the first request.
    async fn verify(&self) -> Result<(), StoreError> {
        let limit = |algorithm| {
            let limit = Limit::try_new(algorithm, 2, Duration::from_secs(60));
            limit.map_err(|error| StoreError::rejected(error.to_string()))
        };
        let (log, window) = (limit(Algorithm::SlidingLog)?, limit(Algorithm::FixedWindow)?);
        let counters = ["log", "window"].map(|rule| Counter::new(rule, "pacegate", "start"));
        let mut verified: Vec<Arc<Node>> = Vec::new();
        // Numbers are tried as identifiers until each primary has had one. The first number is
        // random, so that nodes that start together do not share counters.
        let first = fastrand::u64(..u64::from(u32::MAX));
        for identifier in (first..first + VERIFY_IDENTIFIERS_MAX).map(|number| number.to_string()) {
            let charges = [(&counters[0], &log), (&counters[1], &window)]
                .map(|(counter, limit)| Charge::new(Key::new(counter, &identifier, ""), limit));
            let Ok(node) = self.router.node(slot_of(&charges[0].key)) else { continue };
            if verified.iter().any(|other| Arc::ptr_eq(other, &node)) {
                continue;
            }
            // Two are admitted, the third is denied, one is refunded, and then everything is
            // deleted.
            let two = Cost::try_new(2).unwrap_or(Cost::ONE);
            let steps = [
                (Action::take(), Cost::ONE),
                (Action::take(), Cost::ONE),
                (Action::take(), two),
                (Action::Refund, Cost::ONE),
                (Action::Reset, Cost::ONE),
            ];
            let mut tried = Ok(());
            for (action, cost) in steps {
                let charges = charges.map(|charge| Charge { cost, ..charge });
                let command = Command { action, charges: &charges };
                if tried.is_ok() || matches!(action, Action::Reset) {
                    // A missing command may have left a key without a time to live, so the last
                    // step always runs.
                    let sent = self.send(&Request::new(&command, self.is_cluster(), None), None).await;
                    tried = tried.and(sent.map(drop));
                }
            }
            match tried {
                // It still decides for existing keys, so a node that restarts is useful.
                Err(error) if error.is_full() => {
                    tracing::error!(server = %node.address, %error, "store full; only some of the commands were verified");
                }
                tried => tried?,
            }
            let mut scan = redis::cmd("SCAN");
            scan.arg(0).arg("COUNT").arg(1);
            let command = Command { action: Action::ResetVariants, charges: &charges };
            run(&node, 0, &scan, &command).await?;
            verified.push(node);
            if verified.len() >= self.router.primaries() {
                break;
            }
        }
        Ok(())
    }

    /// Whether the keys of one command have to be in one slot.
    fn is_cluster(&self) -> bool {
        matches!(*self.router, Router::Cluster(_))
    }

    /// Applies a command whose keys are all in one slot.
    async fn apply_in_one_step(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        self.send(&Request::new(command, self.is_cluster(), now), None).await
    }

    /// Applies commands whose keys can each be touched in one step.
    async fn apply_in_steps(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
    ) -> Vec<Result<Outcome, StoreError>> {
        let requests: Vec<Request<'_>> =
            commands.iter().map(|command| Request::new(command, self.is_cluster(), now)).collect();
        let groups = self.groups(&requests);
        let answered = join_all(groups.iter().map(async |(slot, indices)| {
            let mut answered = Vec::with_capacity(indices.len());
            for indices in indices.chunks(PIPELINE_MAX) {
                answered.extend(self.send_many(*slot, &requests, indices).await);
            }
            indices.iter().zip(answered)
        }));
        let mut results: Vec<_> = requests.iter().map(|_| Err(StoreError::missing_outcome())).collect();
        for (index, result) in answered.await.into_iter().flatten() {
            results[*index] = result;
        }
        results
    }

    /// The indices of requests that use the same connection, with a slot that leads to it.
    fn groups(&self, requests: &[Request<'_>]) -> Vec<(u16, Vec<usize>)> {
        if !self.is_cluster() {
            let slot = requests.first().map_or(0, |request| request.slot);
            return vec![(slot, (0..requests.len()).collect())];
        }
        let mut groups: Vec<(Option<Arc<Node>>, u16, Vec<usize>)> = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            // A slot without an owner is tried separately and gets its own error.
            let node = self.router.node(request.slot).ok();
            let same = |group: &&mut (Option<Arc<Node>>, u16, Vec<usize>)| match (&group.0, &node) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => group.1 == request.slot,
                _ => false,
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.2.push(index),
                None => groups.push((node, request.slot, vec![index])),
            }
        }
        groups.into_iter().map(|(_, slot, indices)| (slot, indices)).collect()
    }

    /// Sends many requests in one round trip; those that did not run are sent again one by one.
    async fn send_many(
        &self,
        slot: u16,
        requests: &[Request<'_>],
        indices: &[usize],
    ) -> Vec<Result<Outcome, StoreError>> {
        let replies = match self.router.node(slot) {
            Err(error) => Err(SendError::NotSent(error)),
            Ok(node) => self.pipeline(&node, slot, requests, indices).await,
        };
        let mut results = Vec::with_capacity(indices.len());
        match replies {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                for request in indices.iter().map(|index| &requests[*index]) {
                    results.push(match answered(replies.next().unwrap_or(Value::Nil)) {
                        Ok(bytes) => self.outcome(request, &bytes),
                        Err(error) => self.send(request, Some(Attempt::Replied(error))).await,
                    });
                }
            }
            Err(error) => {
                for index in indices {
                    // One by one, so that those that may be sent again are.
                    results.push(self.send(&requests[*index], Some(error.without_source())).await);
                }
            }
        }
        results
    }

    async fn pipeline(
        &self,
        node: &Arc<Node>,
        slot: u16,
        requests: &[Request<'_>],
        indices: &[usize],
    ) -> Result<Vec<Value>, SendError> {
        let mut live = node.connection(slot).await.map_err(SendError::NotSent)?;
        let mut pipeline = Pipeline::with_capacity(indices.len());
        for index in indices {
            pipeline.add_command(requests[*index].invocation(&self.connector));
        }
        let watched = live.clone();
        let watch = watched.watch();
        let _waiting = self.connector.figures.sent(indices.len());
        let replies = live.connection.send_packed_commands(&pipeline, 0, indices.len()).await;
        watch.answered();
        replies.map_err(|error| SendError::lost(&live, &error))
    }

    /// Sends one request until it succeeds, may have run, or was rejected too often. `first` is the
    /// result of an earlier attempt.
    async fn send(&self, request: &Request<'_>, first: Option<Attempt>) -> Result<Outcome, StoreError> {
        let mut redirected: Option<Arc<Node>> = None;
        let mut attempt = first;
        let mut resends = 0;
        loop {
            let (node, asking) = match redirected.take() {
                Some(node) => (node, true),
                None => (self.router.node(request.slot)?, false),
            };
            let tried = match attempt.take() {
                Some(attempt) => attempt,
                None => self.call(&node, request, asking).await,
            };
            let mut pause = false;
            let error = match tried {
                Attempt::Answered(bytes) => return self.outcome(request, &bytes),
                Attempt::Replied(ReplyError::Unexpected) => {
                    return Err(StoreError::rejected("Redis ran another version of the script"));
                }
                Attempt::Replied(ReplyError::Server(error)) => match classify(&error, request.command) {
                    Failure::Final(error) => return Err(error),
                    Failure::NoScript => {
                        self.load_script(&node, request.slot).await?;
                        StoreError::unavailable("Redis repeatedly dropped the script")
                    }
                    Failure::Redirect { address, ask } => {
                        if let Router::Cluster(cluster) = &*self.router {
                            if ask {
                                redirected = Some(cluster.node(address));
                            } else {
                                cluster.moved(request.slot, address);
                            }
                        } else {
                            return Err(StoreError::rejected(
                                "the server is part of a Redis Cluster; use a redis+cluster:// URL",
                            ));
                        }
                        StoreError::unavailable("the cluster nodes redirect to each other")
                    }
                    Failure::Unavailable { message, primary_changed } => {
                        pause = true;
                        if primary_changed {
                            self.connector.refresh_needed.notify_one();
                        }
                        StoreError::unavailable(message)
                    }
                    Failure::Replica => {
                        pause = true;
                        let error = is_replica(&node.address);
                        // The address may lead to the new primary by now, as names of managed
                        // services do.
                        node.disconnect(&error);
                        error
                    }
                },
                Attempt::NotSent(error) => {
                    if error.is_rejection() {
                        return Err(error);
                    }
                    pause = true;
                    self.connector.refresh_needed.notify_one();
                    error
                }
                Attempt::Lost(error) => {
                    if !request.is_repeatable() {
                        return Err(error);
                    }
                    error
                }
            };
            if resends == RESENDS_MAX {
                return Err(error);
            }
            if pause {
                sleep(RESEND_PAUSE.mul_f64(f64::from(1 << resends) * (0.75 + fastrand::f64() / 4.0))).await;
            }
            resends += 1;
            self.connector.figures.resends.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn call(&self, node: &Arc<Node>, request: &Request<'_>, asking: bool) -> Attempt {
        let mut live = match node.connection(request.slot).await {
            Ok(live) => live,
            Err(error) => return Attempt::NotSent(error),
        };
        let invocation = request.invocation(&self.connector);
        let watched = live.clone();
        let watch = watched.watch();
        let _waiting = self.connector.figures.sent(1);
        let reply = if asking {
            // Together, because ASKING applies to the next command only.
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.cmd("ASKING").add_command(invocation);
            let replies = live.connection.send_packed_commands(&pipeline, 0, 2).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            live.connection.send_packed_command(&invocation).await
        };
        watch.answered();
        match reply.map(answered) {
            Ok(Ok(bytes)) => Attempt::Answered(bytes),
            Ok(Err(error)) => Attempt::Replied(error),
            Err(error) => SendError::lost(&live, &error).without_source(),
        }
    }

    /// Parses a reply and counts the keys that were created.
    fn outcome(&self, request: &Request<'_>, reply: &[u8]) -> Result<Outcome, StoreError> {
        if let Some(new_keys) = self.connector.new_keys.get()
            && let made @ 1.. = script::new_keys(reply)
        {
            new_keys.count(made);
        }
        script::outcome(request.command, reply)
    }

    async fn load_script(&self, node: &Arc<Node>, slot: u16) -> Result<(), StoreError> {
        let mut live = node.connection(slot).await?;
        let loaded = self.connector.load_script(&mut live.connection).await;
        loaded.map_err(|error| crate::error::not_connected(&node.address, &error))
    }

    /// Runs the script at the primary of `slot`, without a key.
    fn probe_slot(&self, slot: u16) -> ProbeFuture<'_> {
        Box::pin(async move {
            let look = Command::peek(&[]);
            let request = Request { slot, ..Request::new(&look, self.is_cluster(), None) };
            self.send(&request, None).await.map(drop)
        })
    }

    /// The server that holds a slot's keys.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        self.router.node(slot)
    }

    /// Resets counters without variants as usual, which also discovers the slot's owner, and then
    /// searches for the variants of the others.
    async fn reset_variants(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let known = command.charges.iter().filter(|charge| !charge.key.counter().has_variants());
        let known: Vec<Charge<'_>> = known.copied().collect();
        let outcome = self.apply(&Command { action: Action::Reset, charges: &known }, now).await?;
        self.unlink_variants(command).await?;
        Ok(outcome)
    }

    /// The slots of a command's charges, and that of the record of its idempotency key.
    fn slots(&self, command: &Command<'_>) -> (SmallVec<[u16; 4]>, Option<u16>) {
        let charges = command.charges.iter().map(|charge| slot_of(&charge.key));
        let record = command.idempotency().map(|idempotency| slot_of_record(&idempotency));
        (charges.collect(), record)
    }
}

impl Spread for RedisStore {
    /// The number of slots in a cluster; without one, a script can reach all keys.
    fn locations(&self, command: &Command<'_>) -> usize {
        if !self.is_cluster() || command.keys() < 2 {
            return 1;
        }
        let (mut slots, record) = self.slots(command);
        slots.extend(record);
        slots.sort_unstable();
        slots.dedup();
        slots.len()
    }

    /// In the order of the slots; the one with the record of the idempotency key is last.
    fn parts(&self, command: &Command<'_>) -> Vec<Part> {
        let alone = Arc::new(OneSlot(self.clone()));
        let (slots, record) = self.slots(command);
        let mut parts: Vec<(u16, Part)> = Vec::new();
        for (charge, own) in slots.into_iter().enumerate() {
            match parts.iter_mut().find(|(other, _)| *other == own) {
                Some((_, part)) => part.charges.push(charge),
                None => {
                    let part = Part { store: alone.clone(), charges: SmallVec::from_elem(charge, 1) };
                    parts.push((own, part));
                }
            }
        }
        parts.sort_by_key(|(slot, _)| *slot);
        if let Some(record) = record.filter(|record| parts.last().is_none_or(|(slot, _)| slot != record)) {
            parts.push((record, Part { store: alone, charges: SmallVec::new() }));
        }
        parts.into_iter().map(|(_, part)| part).collect()
    }

    fn apply_together<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(self.apply_in_steps(commands, now))
    }
}

impl Store for RedisStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        if matches!(command.action, Action::ResetVariants) {
            return Box::pin(self.reset_variants(command, now));
        }
        if self.locations(command) > 1 {
            return Box::pin(apply_in_parts(self.parts(command), command, now));
        }
        Box::pin(self.apply_in_one_step(command, now))
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let searches = |command: &Command<'_>| matches!(command.action, Action::ResetVariants);
            if commands.iter().any(searches) {
                let mut results = Vec::with_capacity(commands.len());
                for command in commands {
                    results.push(self.apply(command, now).await);
                }
                return results;
            }
            if self.is_cluster() && commands.iter().any(|command| command.keys() > 1) {
                return apply_spread(self, commands, now).await;
            }
            self.apply_in_steps(commands, now).await
        })
    }

    fn piece(&self, commands: &[Command<'_>]) -> usize {
        spread_piece(self, commands)
    }

    /// In a cluster, succeeds as soon as one primary responds: a failing primary affects its own
    /// slots only.
    fn probe(&self) -> ProbeFuture<'_> {
        let slots = match &*self.router {
            Router::Cluster(cluster) => cluster.slot_of_each_primary(),
            _ => vec![0],
        };
        Box::pin(first_success(slots.into_iter().map(|slot| self.probe_slot(slot)).collect()))
    }

    fn figures(&self) -> Figures {
        let figures = &self.connector.figures;
        let read = |figure: &std::sync::atomic::AtomicU64| Figure::Count(figure.load(Ordering::Relaxed));
        vec![
            ("connects", read(&figures.connects)),
            ("script_loads", read(&figures.script_loads)),
            ("primary_changes", read(&figures.primary_changes)),
            ("resends", read(&figures.resends)),
            ("batches", read(&figures.batches)),
            ("batched", read(&figures.batched)),
            ("connections", figures.connections.level()),
            ("queue_depth", figures.waiting.level()),
        ]
    }
}

/// The store for commands whose keys are in one slot, like the parts of a spread command.
#[derive(Debug)]
struct OneSlot(RedisStore);

impl Store for OneSlot {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(self.0.apply_in_one_step(command, now))
    }
}

impl Router {
    fn node(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        match self {
            Self::Single(node) => Ok(node.clone()),
            Self::Sentinel(sentinel) => sentinel.primary(),
            Self::Cluster(cluster) => cluster.owner(slot),
        }
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        match self {
            Self::Single(_) => Ok(()),
            Self::Sentinel(sentinel) => sentinel.refresh().await,
            Self::Cluster(cluster) => cluster.refresh().await,
        }
    }

    /// Disconnects from a server that has become a replica: it still answers read-only commands
    /// from stale data.
    async fn disconnect_replicas(&self) {
        let node = match self {
            Self::Single(node) => node.clone(),
            Self::Sentinel(sentinel) => match sentinel.primary() {
                Ok(node) => node,
                Err(_) => return,
            },
            Self::Cluster(_) => return,
        };
        for live in node.present() {
            if live.is_primary().await == Some(false) {
                node.disconnect(&is_replica(&node.address));
                return;
            }
        }
    }

    /// The number of primaries.
    fn primaries(&self) -> usize {
        match self {
            Self::Single(_) | Self::Sentinel(_) => 1,
            Self::Cluster(cluster) => cluster.primaries(),
        }
    }
}

impl Drop for TopologyTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Refreshes the topology whenever a server fails, and at least once a second. This is a separate
/// task, because callers time out before every server has been queried.
async fn refresh_topology(router: Arc<Router>, connector: Arc<Connector>) {
    loop {
        let pause = REFRESH_EVERY.mul_f64(0.75 + fastrand::f64() / 4.0);
        let refresh_needed = timeout(pause, connector.refresh_needed.notified()).await.is_ok();
        // A cluster node redirects or rejects as soon as it knows that another one serves its
        // slots.
        if refresh_needed || !matches!(*router, Router::Cluster(_)) {
            if let Err(error) = router.refresh().await {
                tracing::debug!(%error, "could not refresh the topology");
            }
            router.disconnect_replicas().await;
        }
        sleep(REFRESH_PAUSE).await;
    }
}

/// A command with its keys, ready to send.
struct Request<'a> {
    command: &'a Command<'a>,
    keys: Keys,
    slot: u16,
    now: Option<Timestamp>,
}

impl<'a> Request<'a> {
    fn new(command: &'a Command<'a>, cluster: bool, now: Option<Timestamp>) -> Self {
        let keys = Keys::of(command, cluster);
        let slot = keys.slot();
        Self { command, keys, slot, now }
    }

    fn invocation(&self, connector: &Connector) -> Cmd {
        let known_only = connector.new_keys.get().is_some_and(NewKeys::is_spent);
        script::invocation(connector.hash(), self.command, &self.keys, known_only, self.now)
    }

    /// Whether running it twice has the same effect as running it once.
    fn is_repeatable(&self) -> bool {
        self.keys.has_record || matches!(self.command.action, Action::Peek { .. } | Action::Reset)
    }
}

/// The result of one attempt.
enum Attempt {
    Answered(Vec<u8>),
    /// An error reply: it did not run.
    Replied(ReplyError),
    /// There was no connection: it did not run.
    NotSent(StoreError),
    /// The connection was lost: it may have run.
    Lost(StoreError),
}

enum SendError {
    NotSent(StoreError),
    Lost { timed_out: bool },
}

impl SendError {
    fn lost(live: &Live, error: &RedisError) -> Self {
        live.discard();
        Self::Lost { timed_out: error.is_timeout() }
    }

    fn without_source(&self) -> Attempt {
        match self {
            Self::NotSent(error) => Attempt::NotSent(error.without_source()),
            Self::Lost { timed_out: true } => Attempt::Lost(StoreError::timed_out("Redis did not respond")),
            Self::Lost { timed_out: false } => {
                Attempt::Lost(StoreError::uncertain("connection to Redis lost before the response"))
            }
        }
    }
}

/// Warns at startup if Redis may evict keys, because an evicted key resets a limit. Skipped if the
/// Redis user may not read the policy.
async fn warn_about_eviction(mut live: Live) {
    let memory: Result<String, RedisError> =
        redis::cmd("INFO").arg("memory").query_async(&mut live.connection).await;
    let memory = memory.unwrap_or_default();
    let policy =
        memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).unwrap_or_default().trim();
    if !matches!(policy, "" | "noeviction") {
        tracing::warn!(policy, "with this eviction policy a full Redis evicts active limits; use noeviction");
    }
}
