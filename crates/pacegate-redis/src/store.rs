//! The store: routes commands, reads replies, and sends again only what surely did not run.

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
use crate::error::{ReplyError, Trouble, answered, is_replica, trouble};
use crate::forget::run;
use crate::keys::{Keys, slot_of, slot_of_record};
use crate::new_keys::NewKeys;
use crate::script;
use crate::sentinel::Sentinel;
use crate::url::Topology;

/// How often a command that surely did not run is sent again.
const RESENDS_MAX: u32 = 3;
/// How long to wait before that when the server needs time, doubled each time, with jitter: together most of the usual deadline.
const RESEND_PAUSE: Duration = Duration::from_millis(6);
/// The servers are not asked more often than this who the primaries are.
const LOOK_OUT_PAUSE: Duration = Duration::from_millis(25);
/// How often sentinels and servers are asked although nothing is wrong: a primary that was replaced may
/// go on answering.
const LOOK_OUT_EVERY: Duration = Duration::from_secs(1);
/// Among so many identifiers there is one for every primary of a Cluster, even if it has a single slot.
const REHEARSALS_MAX: u64 = 200_000;
/// So many commands go to Redis at once; others get their turn in between.
const PIPELINE_MAX: usize = 128;

/// Counters in Redis. See the crate documentation.
#[derive(Clone, Debug)]
pub struct RedisStore {
    router: Arc<Router>,
    connector: Arc<Connector>,
    _lookout: Arc<Lookout>,
}

/// The task that looks for the primaries whenever there is trouble. It ends with the store.
#[derive(Debug)]
struct Lookout(AbortHandle);

#[derive(Debug)]
enum Router {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl RedisStore {
    /// Connects to `options.url`, loads the script and tries on a counter of its own what checks will need.
    ///
    /// # Errors
    /// [`StoreError`] when Redis cannot be reached, or refuses us; [`StoreError::is_permanent`] tells these apart.
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
        warn_of_eviction(live).await;
        let router = Arc::new(router);
        let lookout = tokio::spawn(look_out(router.clone(), connector.clone())).abort_handle();
        let store = Self { router, connector, _lookout: Arc::new(Lookout(lookout)) };
        store.rehearse().await?;
        if let Some(per_second) = options.new_keys_per_second {
            store.connector.new_keys.get_or_init(|| NewKeys::new(per_second));
        }
        Ok(store)
    }

    /// Runs everything that checks will need once on every primary, so that a missing permission, a renamed
    /// command or a server that takes no writes stops the start and not the first request.
    async fn rehearse(&self) -> Result<(), StoreError> {
        let limit = |algorithm| {
            let limit = Limit::try_new(algorithm, 2, Duration::from_secs(60));
            limit.map_err(|error| StoreError::rejected(error.to_string()))
        };
        let (log, window) = (limit(Algorithm::SlidingLog)?, limit(Algorithm::FixedWindow)?);
        let counters = ["log", "window"].map(|rule| Counter::new(rule, "pacegate", "start"));
        let mut rehearsed: Vec<Arc<Node>> = Vec::new();
        // Numbers are tried as identifiers until each primary has had one of its own. They differ from start to
        // start, so that nodes that start together do not count each other's requests.
        let first = fastrand::u64(..u64::from(u32::MAX));
        for identifier in (first..first + REHEARSALS_MAX).map(|number| number.to_string()) {
            let charges = [(&counters[0], &log), (&counters[1], &window)]
                .map(|(counter, limit)| Charge::new(Key::new(counter, &identifier, ""), limit));
            let Ok(node) = self.router.node(slot_of(&charges[0].key)) else { continue };
            if rehearsed.iter().any(|other| Arc::ptr_eq(other, &node)) {
                continue;
            }
            // Two are admitted, the third is denied, one is given back, and then everything is deleted.
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
                    // A command that is missing may have left a key without a time to live: the last step always runs.
                    let sent = self.send(&Request::new(&command, self.is_cluster(), None), None).await;
                    tried = tried.and(sent.map(drop));
                }
            }
            match tried {
                // It decides on the keys that it has, so a node that restarts is of use.
                Err(error) if error.is_full() => {
                    tracing::error!(server = %node.address, %error, "the store is full; only a part of the commands was tried");
                }
                tried => tried?,
            }
            let mut scan = redis::cmd("SCAN");
            scan.arg(0).arg("COUNT").arg(1);
            let command = Command { action: Action::ResetVariants, charges: &charges };
            run(&node, 0, &scan, &command).await?;
            rehearsed.push(node);
            if rehearsed.len() >= self.router.primaries() {
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
        let answered = join_all(groups.iter().map(async |(slot, places)| {
            let mut answered = Vec::with_capacity(places.len());
            for places in places.chunks(PIPELINE_MAX) {
                answered.extend(self.send_many(*slot, &requests, places).await);
            }
            places.iter().zip(answered)
        }));
        let mut results: Vec<_> = requests.iter().map(|_| Err(StoreError::missing_outcome())).collect();
        for (place, result) in answered.await.into_iter().flatten() {
            results[*place] = result;
        }
        results
    }

    /// The places of requests that go over the same connection, with a slot that leads there.
    fn groups(&self, requests: &[Request<'_>]) -> Vec<(u16, Vec<usize>)> {
        if !self.is_cluster() {
            let slot = requests.first().map_or(0, |request| request.slot);
            return vec![(slot, (0..requests.len()).collect())];
        }
        let mut groups: Vec<(Option<Arc<Node>>, u16, Vec<usize>)> = Vec::new();
        for (place, request) in requests.iter().enumerate() {
            // A slot without an owner gets its own try, and its own error.
            let node = self.router.node(request.slot).ok();
            let same = |group: &&mut (Option<Arc<Node>>, u16, Vec<usize>)| match (&group.0, &node) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => group.1 == request.slot,
                _ => false,
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.2.push(place),
                None => groups.push((node, request.slot, vec![place])),
            }
        }
        groups.into_iter().map(|(_, slot, places)| (slot, places)).collect()
    }

    /// One round trip for many; what did not run is sent again one by one.
    async fn send_many(
        &self,
        slot: u16,
        requests: &[Request<'_>],
        places: &[usize],
    ) -> Vec<Result<Outcome, StoreError>> {
        let replies = match self.router.node(slot) {
            Err(error) => Err(SendError::NotSent(error)),
            Ok(node) => self.pipeline(&node, slot, requests, places).await,
        };
        let mut results = Vec::with_capacity(places.len());
        match replies {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                for request in places.iter().map(|place| &requests[*place]) {
                    results.push(match answered(replies.next().unwrap_or(Value::Nil)) {
                        Ok(bytes) => self.outcome(request, &bytes),
                        Err(error) => self.send(request, Some(Attempt::Replied(error))).await,
                    });
                }
            }
            Err(error) => {
                for place in places {
                    // Each on its own, so that what may be sent again is.
                    results.push(self.send(&requests[*place], Some(error.without_source())).await);
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
        places: &[usize],
    ) -> Result<Vec<Value>, SendError> {
        let mut live = node.connection(slot).await.map_err(SendError::NotSent)?;
        let mut pipeline = Pipeline::with_capacity(places.len());
        for place in places {
            pipeline.add_command(requests[*place].invocation(&self.connector));
        }
        let watched = live.clone();
        let watch = watched.watch();
        let _waiting = self.connector.figures.sent(places.len());
        let replies = live.connection.send_packed_commands(&pipeline, 0, places.len()).await;
        watch.answered();
        replies.map_err(|error| SendError::lost(&live, &error))
    }

    /// Sends one request until it is answered, may have run, or was refused too often. `first` is how a try before went.
    async fn send(&self, request: &Request<'_>, first: Option<Attempt>) -> Result<Outcome, StoreError> {
        let mut asked: Option<Arc<Node>> = None;
        let mut attempt = first;
        let mut resends = 0;
        loop {
            let (node, asking) = match asked.take() {
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
                Attempt::Replied(ReplyError::Nonsense) => {
                    return Err(StoreError::rejected("Redis ran a script of another version"));
                }
                Attempt::Replied(ReplyError::Server(error)) => match trouble(&error, request.command) {
                    Trouble::Final(error) => return Err(error),
                    Trouble::NoScript => {
                        self.load_script(&node, request.slot).await?;
                        StoreError::unavailable("Redis keeps forgetting the script")
                    }
                    Trouble::Elsewhere { address, ask } => {
                        if let Router::Cluster(cluster) = &*self.router {
                            if ask {
                                asked = Some(cluster.node(address));
                            } else {
                                cluster.moved(request.slot, address);
                            }
                        } else {
                            return Err(StoreError::rejected(
                                "the URL is of a single server, but it is part of a Cluster; use redis+cluster://",
                            ));
                        }
                        StoreError::unavailable("the nodes of the Cluster point to each other")
                    }
                    Trouble::NotNow { message, primary_changed } => {
                        pause = true;
                        if primary_changed {
                            self.connector.trouble.notify_one();
                        }
                        StoreError::unavailable(message)
                    }
                    Trouble::Replica => {
                        pause = true;
                        let error = is_replica(&node.address);
                        // The address may lead to the primary by now, as names of managed services do.
                        node.leave(&error);
                        error
                    }
                },
                Attempt::NotSent(error) => {
                    if error.is_rejection() {
                        return Err(error);
                    }
                    pause = true;
                    self.connector.trouble.notify_one();
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
            // Together, because ASKING holds for the next command only.
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

    /// Reads a reply, and counts the keys that were made for it.
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

    /// The server that has a slot's keys.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        self.router.node(slot)
    }

    /// Resets what has no variants as any reset, which finds out who has the slot, and then searches for the variants of the others.
    async fn reset_variants(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let known = command.charges.iter().filter(|charge| !charge.key.counter().has_variants());
        let known: Vec<Charge<'_>> = known.copied().collect();
        let outcome = self.apply(&Command { action: Action::Reset, charges: &known }, now).await?;
        self.forget(command).await?;
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
    /// Slots of a Cluster; elsewhere one script reaches all keys.
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

    /// In the order of the slots, and last the one with the record of its idempotency key.
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
        if self.places(command) > 1 {
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

    /// In a Cluster, succeeds as soon as one primary does: one that fails takes its own slots with it, not those of the others.
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

/// The store for commands whose keys are in one slot, as the parts of a spread command are.
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

    /// Leaves a server that has become a replica: it still answers what needs no write, from what it had.
    async fn leave_replicas(&self) {
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
                node.leave(&is_replica(&node.address));
                return;
            }
        }
    }

    /// How many servers decide.
    fn primaries(&self) -> usize {
        match self {
            Self::Single(_) | Self::Sentinel(_) => 1,
            Self::Cluster(cluster) => cluster.primaries(),
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Finds the primaries again whenever something is wrong with a server, and once a second in any case. A task
/// of its own, because callers give up before every server has been asked.
async fn look_out(router: Arc<Router>, connector: Arc<Connector>) {
    loop {
        let pause = LOOK_OUT_EVERY.mul_f64(0.75 + fastrand::f64() / 4.0);
        let trouble = timeout(pause, connector.trouble.notified()).await.is_ok();
        // A node of a Cluster redirects, or refuses, as soon as it knows that another one has its slots.
        if trouble || !matches!(*router, Router::Cluster(_)) {
            if let Err(error) = router.refresh().await {
                tracing::debug!(%error, "could not find out who the primaries are");
            }
            router.leave_replicas().await;
        }
        sleep(LOOK_OUT_PAUSE).await;
    }
}

/// A command with its keys, ready to be sent.
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

    /// Whether running it twice is the same as running it once.
    fn is_repeatable(&self) -> bool {
        self.keys.has_record || matches!(self.command.action, Action::Peek { .. } | Action::Reset)
    }
}

/// How one try went.
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
            Self::Lost { timed_out: true } => Attempt::Lost(StoreError::timed_out("Redis does not answer")),
            Self::Lost { timed_out: false } => {
                Attempt::Lost(StoreError::uncertain("the connection to Redis was lost before the answer"))
            }
        }
    }
}

/// An evicted key is a forgotten limit, so the start warns of it, unless the Redis user may not ask for the policy.
async fn warn_of_eviction(mut live: Live) {
    let memory: Result<String, RedisError> =
        redis::cmd("INFO").arg("memory").query_async(&mut live.connection).await;
    let memory = memory.unwrap_or_default();
    let policy =
        memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).unwrap_or_default().trim();
    if !matches!(policy, "" | "noeviction") {
        tracing::warn!(policy, "a full Redis evicts keys of users who are over their limit; use noeviction");
    }
}
