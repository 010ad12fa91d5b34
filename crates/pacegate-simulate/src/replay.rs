//! The replay: one thread reads and sorts the log, the other calls the limiters at the time of each
//! line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use pacegate::{
    Check, CheckError, Decision, Limiter, MemoryOptions, MemoryStore, Mode, Profile, Stores, Timestamp,
    store::Clock,
};
use smallvec::SmallVec;

use crate::build::build;
use crate::error::SimulateError;
use crate::log::lines::Source;
use crate::log::record::Record;
use crate::log::{Broken, LogReader};
use crate::options::{Options, RuleFile};
use crate::order::Order;
use crate::reading::{BROKEN_SHOWN, Reading};
use crate::report::Report;
use crate::tally::SETS_MAX;
use crate::tally::customers::Customers;
use crate::tally::endpoints::Endpoints;
use crate::tally::rules::RuleTally;
use crate::tally::series::Steps;

/// Maximum number of batches of requests that wait between the threads.
const BATCHES_WAITING: usize = 8;

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes that were read, before decompression.
    pub bytes: u64,
    /// Number of requests that were replayed.
    pub requests: u64,
}

/// Replays logs against one set of rules, or against two for comparison.
///
/// The real limiter makes the decisions. It counts in memory, and its clock has the time of each
/// line.
///
/// ```
/// use pacegate_config::Config;
/// use pacegate_simulate::{Options, RuleFile, Source, simulate};
///
/// let log = "192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] \"GET /a HTTP/1.1\" 200 1\n".repeat(3);
/// let source = Source { name: "access.log".into(), reader: Box::new(std::io::Cursor::new(log)) };
/// let config = Config::parse("rules: [{name: two, dimension: user, algorithm: fixed_window, limit: 2, window: 1m}]")?;
/// let rules = RuleFile { name: "rules.yaml".into(), config };
/// let report = simulate(vec![source], &[rules], &Options::default(), &mut |_| {})?;
/// assert_eq!((report.rule_sets[0].allowed, report.rule_sets[0].blocked), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SimulateError`] if the options do not fit the log, the log cannot be read, or it contains no
/// request.
pub fn simulate(
    sources: Vec<Source>,
    rules: &[RuleFile],
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, SimulateError> {
    if rules.is_empty() || rules.len() > SETS_MAX {
        return Err(SimulateError::misused(format!(
            "expected 1 to {SETS_MAX} sets of rules, got {}",
            rules.len()
        )));
    }
    let mut rules = rules.to_vec();
    if options.enforce_shadow {
        rules.iter_mut().flat_map(|file| &mut file.config.rules).for_each(|rule| rule.mode = Mode::Enforce);
    }
    let rules = &rules;
    let mut dimensions: Vec<String> = Vec::new();
    for rule in rules.iter().flat_map(|file| &file.config.rules) {
        if !dimensions.contains(&rule.dimension) {
            dimensions.push(rule.dimension.clone());
        }
    }
    let mut log = LogReader::open(sources, &options.log, &dimensions, options.hash_keys.is_some())?;
    if options.only_status.is_some() && log.mapping().status.is_none() {
        return Err(SimulateError::misused(
            "--only-status: no field of the log is known to be the status; set it with --map status=FIELD",
        ));
    }
    let mut replay = Replay::new(rules, options, &log)?;
    let bytes = log.bytes();
    let (sender, receiver) = sync_channel(BATCHES_WAITING);
    let mut reading = Reading::new(options.only_status.clone(), sender);
    let order = Order::new(options.reorder, options.spread);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| reading.run(&mut log, order));
        replay.run(receiver, &bytes, progress);
        reader.join().unwrap_or_else(|_| Err(SimulateError::failed("the thread that reads the log panicked")))
    })?;
    let Reading { mut read, .. } = reading;
    read.add_rejected(replay.rejected, std::mem::take(&mut replay.rejected_shown));
    if let (0, Some(first)) = (read.requests + read.left_out, read.broken_shown.first()) {
        return Err(log.nothing_fits(read.lines, first));
    }
    if read.requests == 0 {
        let reason = match read.left_out {
            0 => "the log contains no request".to_owned(),
            count => format!("--only-status ignores all of its {count} requests"),
        };
        return Err(SimulateError::failed(format!("{}: {reason}", log.names().join(", "))));
    }
    Ok(build(&log, &read, &replay, rules, options))
}

/// A clock with the time of the current line.
#[derive(Debug, Default)]
struct ReplayClock(AtomicU64);

impl Clock for ReplayClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The deciding thread, and what it counts.
pub(crate) struct Replay {
    clock: Arc<ReplayClock>,
    dimensions: Vec<String>,
    /// Units other than requests in which the log has costs.
    units: Vec<String>,
    /// The tiers of rules. Other tiers have no effect.
    profiles: Vec<Profile>,
    tiers: crate::options::Tiers,
    pub(crate) sets: Vec<ReplaySet>,
    /// How well each dimension identifies a customer. The lowest number is best.
    ranks: Vec<u8>,
    /// Number of requests with an identifier in each dimension.
    pub(crate) seen: Vec<u64>,
    pub(crate) customers: Customers,
    pub(crate) endpoints: Endpoints,
    pub(crate) steps: Steps,
    /// Requests that the limiter rejected, and the first of them.
    rejected: u64,
    rejected_shown: Vec<Broken>,
    /// The times of the first and the last request.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
}

/// One set of rules.
pub(crate) struct ReplaySet {
    limiter: Limiter,
    store: Arc<MemoryStore>,
    max_keys: usize,
    pub(crate) tally: RuleTally,
    /// When the limiter reached the maximum number of keys.
    pub(crate) full_at: Option<Timestamp>,
}

impl ReplaySet {
    fn new(file: &RuleFile, max_keys: usize, clock: Arc<ReplayClock>) -> Result<Self, SimulateError> {
        let mut config = file.config.clone();
        // Decisions do not depend on the store, so all counters are in one.
        config.rules.iter_mut().for_each(|rule| rule.store = None);
        config.descriptors.clear();
        let memory = MemoryOptions { max_keys, ..MemoryOptions::default() };
        let store = Arc::new(MemoryStore::with_clock(memory, clock));
        let limiter = config
            .limiter_with(Stores::memory(store.clone()))
            .map_err(|error| SimulateError::misused(format!("{}: {error}", file.name)))?;
        Ok(Self { limiter, store, max_keys, tally: RuleTally::new(max_keys), full_at: None })
    }
}

impl Replay {
    fn new(rules: &[RuleFile], options: &Options, log: &LogReader) -> Result<Self, SimulateError> {
        let clock = Arc::new(ReplayClock::default());
        let set = |file| ReplaySet::new(file, options.max_keys, clock.clone());
        let sets = rules.iter().map(set).collect::<Result<_, _>>()?;
        let mut profiles: Vec<Profile> = Vec::new();
        for tier in rules.iter().flat_map(|file| &file.config.rules).filter_map(|rule| rule.tier.as_deref()) {
            if !profiles.iter().any(|profile| profile.tier.as_deref() == Some(tier)) {
                profiles.push(Profile { tier: Some(tier.to_owned()), ..Profile::default() });
            }
        }
        let dimensions: Vec<String> =
            log.mapping().dimensions.iter().map(|(dimension, _)| dimension.clone()).collect();
        Ok(Self {
            clock,
            ranks: dimensions.iter().map(|dimension| rank(dimension)).collect(),
            seen: vec![0; dimensions.len()],
            dimensions,
            units: log.mapping().costs.iter().map(|(unit, _)| unit.clone()).collect(),
            profiles,
            tiers: options.tiers.clone(),
            sets,
            customers: Customers::new(options.max_keys),
            endpoints: Endpoints::default(),
            steps: Steps::default(),
            rejected: 0,
            rejected_shown: Vec::new(),
            span: None,
        })
    }

    fn run(
        &mut self,
        receiver: Receiver<Vec<Record>>,
        bytes: &AtomicU64,
        progress: &mut dyn FnMut(Progress),
    ) {
        let mut requests = 0;
        for batch in receiver {
            for record in &batch {
                if let Err(error) = self.decide(record) {
                    self.reject(record, &error);
                }
            }
            requests += batch.len() as u64;
            progress(Progress { bytes: bytes.load(Ordering::Relaxed), requests });
        }
    }

    /// Counts a request that cannot be decided as a broken line.
    fn reject(&mut self, record: &Record, error: &CheckError) {
        self.rejected += 1;
        if self.rejected_shown.len() < BROKEN_SHOWN {
            let reason = format!("cannot be decided: {error}");
            self.rejected_shown.push(Broken { place: record.place, reason, excerpt: None });
        }
    }

    fn decide(&mut self, record: &Record) -> Result<(), CheckError> {
        let Self {
            clock,
            dimensions,
            units,
            profiles,
            tiers,
            sets,
            ranks,
            seen,
            customers,
            endpoints,
            steps,
            span,
            ..
        } = self;
        let at = record.time.at;
        clock.0.store(at.as_micros(), Ordering::Relaxed);
        let mut identities = record
            .identities
            .iter()
            .map(|(place, identifier)| (&*dimensions[usize::from(*place)], &**identifier));
        let Some((dimension, identifier)) = identities.next() else { return Ok(()) };
        let mut check = Check::new(dimension, identifier).endpoint(&record.endpoint).cost(record.cost);
        for (dimension, identifier) in identities {
            check = check.and(dimension, identifier);
        }
        for (index, cost) in &record.costs {
            check = check.cost_in(&units[usize::from(*index)], *cost);
        }
        if !record.method.is_empty() {
            check = check.method(&record.method);
        }
        if !profiles.is_empty() {
            let listed = || check.user().and_then(|user| tiers.of(user)).unwrap_or_default();
            let tier = if record.tier.is_empty() { listed() } else { &record.tier };
            let profile = profiles.iter().find(|profile| profile.tier.as_deref() == Some(tier));
            check = check.profile(profile);
        }
        // Each set has its own IPv6 prefix.
        let decide = |set: &ReplaySet| {
            let mut counted = check.clone();
            set.limiter.canonicalise(&mut counted)?;
            let decision = set.limiter.check_now(&counted)?;
            Ok((counted, decision))
        };
        let decisions: SmallVec<[(Check<'_>, Decision); SETS_MAX]> =
            sets.iter().map(decide).collect::<Result<_, CheckError>>()?;
        span.get_or_insert((at, at)).1 = at;
        steps.at(at).requests += 1;
        let mut blocked = [None; SETS_MAX];
        for (place, (set, (counted, decision))) in sets.iter_mut().zip(&decisions).enumerate() {
            blocked[place] = set.tally.count(counted, at, decision);
            if !set.tally.over_limit.is_empty() {
                steps.count(at, place, blocked[place].is_some(), &set.tally.over_limit);
            }
            if set.full_at.is_none() && set.store.keys() >= set.max_keys {
                set.full_at = Some(at);
            }
        }
        for (place, _) in &record.identities {
            seen[usize::from(*place)] += 1;
        }
        let places = record.identities.iter().map(|(place, _)| *place);
        let identities = decisions.first().map_or(&[][..], |(counted, _)| counted.identities());
        let who = places.zip(identities).min_by_key(|(place, _)| ranks[usize::from(*place)]);
        if let Some((place, (_, identifier))) = who {
            customers.count(place, identifier, at, &blocked);
        }
        endpoints.count(&record.endpoint, blocked.map(|culprit| culprit.is_some()));
        Ok(())
    }
}

/// Ranks the identities of a request to find its customer: the user, then the API key, then other
/// dimensions, and last the address, which several customers can share.
fn rank(dimension: &str) -> u8 {
    match dimension {
        "user" => 0,
        "apikey" => 1,
        "ip" => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use pacegate_config::Config;

    use super::*;
    use crate::log::record::Place;
    use crate::reading::Read;
    use crate::time::LogTime;

    /// The parser rejects such a request before. If it did not, the others would still count.
    #[test]
    fn undecidable_request_is_a_broken_line() {
        let text = "time,user,ip\n1700000000,a,192.0.2.1\n";
        let source = Source { name: "log".into(), reader: Box::new(Cursor::new(text)) };
        let log = LogReader::open(vec![source], &Default::default(), &[], false).unwrap();
        let rules = RuleFile { name: "rules".into(), config: Config::default() };
        let mut replay = Replay::new(&[rules], &Options::default(), &log).unwrap();
        let record = |user: &str, line: u64| {
            let time = LogTime { at: Timestamp::from_micros(line), whole_second: false };
            Record::of(user, time, Place { file: 0, line })
        };
        let (sender, receiver) = sync_channel(1);
        sender.send(vec![record("a", 1), record("", 2), record("b", 3)]).unwrap();
        drop(sender);
        replay.run(receiver, &AtomicU64::default(), &mut |_| {});
        assert_eq!((replay.sets[0].tally.allowed, replay.rejected), (2, 1));
        let mut read = Read { lines: 3, requests: 3, ..Read::default() };
        read.add_rejected(replay.rejected, replay.rejected_shown);
        assert_eq!((read.requests, read.broken, read.broken_shown[0].place.line), (2, 1, 2));
        assert!(read.broken_shown[0].reason.starts_with("cannot be decided: identifier: must be"));
    }
}
