//! What Redis sees: connections, commands, keys and their time to live.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Cost, Counter, Key, Limit, Timestamp};
use pacegate_redis::{RedisOptions, RedisStore, TlsFiles};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use pacegate_testkit::server::{Fault, FaultProxy, RedisServer};
use tokio::time::{Instant, timeout};

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(RedisOptions::new(server.url().parse().unwrap())).await.unwrap()
}

fn two_an_hour(algorithm: Algorithm) -> Limit {
    Limit::try_new(algorithm, 2, Duration::from_secs(3_600)).unwrap()
}

/// One limit of each algorithm, for one identity.
fn all() -> Vec<(Counter, Limit)> {
    let named = |algorithm: Algorithm| (Counter::new(algorithm.name(), "user", ""), two_an_hour(algorithm));
    Algorithm::ALL.map(named).to_vec()
}

async fn decide(store: &dyn Store, action: Action<'_>, limits: &[(Counter, Limit)]) -> ChainDecision {
    apply(store, action, limits, 1).await
}

async fn apply(
    store: &dyn Store,
    action: Action<'_>,
    limits: &[(Counter, Limit)],
    cost: u64,
) -> ChainDecision {
    apply_to(store, action, &charges(limits, cost, None)).await
}

/// Refunds what was taken at a time, or the newest charges.
async fn refund(
    store: &dyn Store,
    limits: &[(Counter, Limit)],
    cost: u64,
    taken_at: Option<Timestamp>,
) -> ChainDecision {
    apply_to(store, Action::Refund, &charges(limits, cost, taken_at)).await
}

fn charges(limits: &[(Counter, Limit)], cost: u64, taken_at: Option<Timestamp>) -> Vec<Charge<'_>> {
    let cost = Cost::try_new(cost).unwrap();
    limits
        .iter()
        .map(|(counter, limit)| Charge { cost, taken_at, ..Charge::new(Key::new(counter, "u", ""), limit) })
        .collect()
}

async fn apply_to(store: &dyn Store, action: Action<'_>, charges: &[Charge<'_>]) -> ChainDecision {
    let command = Command { action, charges };
    match store.apply(&command, None).await.unwrap() {
        Outcome::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

fn info(server: &RedisServer, section: &str, name: &str) -> String {
    let text = server.command(&["INFO", section]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap_or_default();
    line.trim().to_owned()
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = info(server, "commandstats", &format!("cmdstat_{command}"));
    stats.trim_start_matches("calls=").split(',').next().unwrap().parse().unwrap_or(0)
}

/// A repeatable take.
const ONCE: Action<'static> = Action::Take {
    idempotency: Some(Idempotency { caller: "c", key: "k", fingerprint: [7; 16], home: None, sender: None }),
};

#[tokio::test]
async fn denial_peek_and_replay_write_nothing() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    assert!(decide(&store, ONCE, &all()).await.allowed);
    assert!(decide(&store, Action::take(), &all()).await.allowed);
    let changes = info(&server, "persistence", "rdb_changes_since_last_save");
    let digest = server.command(&["DEBUG", "DIGEST"]);
    assert!(!decide(&store, Action::take(), &all()).await.allowed);
    for limit in all() {
        assert!(!decide(&store, Action::take(), &[limit]).await.allowed);
    }
    assert!(!decide(&store, Action::peek(), &all()).await.allowed);
    assert!(decide(&store, ONCE, &all()).await.replayed);
    assert_eq!(info(&server, "persistence", "rdb_changes_since_last_save"), changes, "nothing to replicate");
    assert_eq!(server.command(&["DEBUG", "DIGEST"]), digest, "no key changed");
}

#[tokio::test]
async fn every_key_lives_until_its_state_is_fresh() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let decision = decide(&store, ONCE, &all()).await;
    let keys = server.command(&["KEYS", "*"]);
    assert_eq!(keys.lines().count(), 7, "{keys}");
    for key in keys.lines() {
        let answer =
            decision.answers.iter().find(|answer| key.ends_with(&format!("}}:{}:", answer.algorithm)));
        let fresh_at = match answer {
            Some(answer) => answer.reset_at.unwrap(),
            None => decision.at.saturating_add(Idempotency::TTL),
        };
        // Both are the server's time: the first whole millisecond in which the state is fresh.
        let expires_at: u64 = server.command(&["PEXPIRETIME", key]).parse().unwrap();
        assert_eq!(expires_at, fresh_at.as_micros() / 1_000 + 1, "{key}");
    }
}

#[tokio::test]
async fn every_key_has_a_time_to_live_after_every_action() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    // A refund leaves 0, 1 or 2 of 3 requests in each counter, so the standing changes too.
    let limits: Vec<(Counter, Limit)> = Algorithm::ALL
        .map(|algorithm| {
            let limit = Limit::try_new(algorithm, 3, Duration::from_secs(3_600)).unwrap();
            (Counter::new(algorithm.name(), "user", ""), limit)
        })
        .to_vec();
    for (first, second, given_back) in [(1, 0, 1), (2, 0, 1), (3, 0, 1), (1, 1, 1), (2, 1, 1), (1, 2, 3)] {
        for newest in [true, false] {
            server.command(&["FLUSHALL"]);
            let at = apply(&store, Action::take(), &limits, first).await.at;
            if second > 0 {
                apply(&store, Action::take(), &limits, second).await;
            }
            refund(&store, &limits, given_back, (!newest).then_some(at)).await;
            for key in server.command(&["KEYS", "*"]).lines() {
                let expires_at: i64 = server.command(&["PEXPIRETIME", key]).parse().unwrap();
                // -2 is a key that has expired since it was listed.
                assert!(expires_at > 0 || expires_at == -2, "{key} {first} {second} {newest}: {expires_at}");
            }
        }
    }
}

#[tokio::test]
async fn startup_fails_on_a_server_that_cannot_decide() {
    let connect = |url: String| async move {
        RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap_err()
    };
    for command in ["EVALSHA", "SCRIPT"] {
        let server = RedisServer::start_with(&["--rename-command", command, ""]);
        let error = connect(server.url()).await;
        assert!(error.is_permanent() && error.to_string().contains(command), "{error}");
    }
    let server = RedisServer::start();
    let without = |permission: &str| {
        let permissions = PERMISSIONS.split(' ').filter(|granted| *granted != permission);
        let user = ["ACL", "SETUSER", "gate", "reset", "on", ">secret"];
        server.command(&user.into_iter().chain(permissions).collect::<Vec<_>>());
        format!("redis://gate:secret@{}", server.address())
    };
    let needed = [
        "~rl:*",
        "+evalsha",
        "+script|load",
        "+scan",
        "+time",
        "+get",
        "+set",
        "+unlink",
        "+pexpireat",
        "+zadd",
        "+zrem",
        "+zrevrange",
        "+zrangebyscore",
        "+zremrangebyscore",
        "+zcard",
        "+zcount",
        "+zrange",
    ];
    for permission in needed {
        let error = connect(without(permission)).await;
        assert!(error.is_permanent(), "without {permission}: {error}");
    }
    for key in server.command(&["KEYS", "*"]).lines() {
        let expires_at: i64 = server.command(&["PEXPIRETIME", key]).parse().unwrap_or(-2);
        assert_ne!(expires_at, -1, "{key} has a time to live");
    }
    server.command(&["FLUSHALL"]);
    // The documented permissions are enough; without those to read its role or memory it works as
    // well.
    for permission in ["", "+role", "+info", "+ping"] {
        let url = without(permission).parse().unwrap();
        RedisStore::connect(RedisOptions::new(url)).await.unwrap();
    }
    assert_eq!(server.command(&["DBSIZE"]), "0", "no keys remain");
}

/// The permissions of the user in the documented configuration.
const PERMISSIONS: &str = "~rl:* +evalsha +script|load +scan +time +info +role +ping +get +set +unlink +pexpireat +zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyscore +zrevrange";

#[test]
fn documented_permissions_are_tested() {
    for text in [include_str!("../../../deploy/redis.conf"), include_str!("../../../docs/operating.md")] {
        assert!(text.contains(&format!("user pacegate on >PASSWORD {PERMISSIONS}\n")));
    }
}

#[tokio::test]
async fn server_that_becomes_a_replica_is_abandoned() {
    let (server, primary) = (RedisServer::start(), RedisServer::start());
    let store = connect(&server).await;
    decide(&store, Action::take(), &all()).await;
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    // It still answers read-only commands.
    let charges: [Charge<'_>; 0] = [];
    let peek = Command::peek(&charges);
    let left = async {
        loop {
            match store.apply(&peek, None).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => return error,
            }
        }
    };
    let error = timeout(Duration::from_secs(30), left).await.expect("the replica is no longer used");
    assert!(error.is_retryable() && error.to_string().contains("is a replica"), "{error}");
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let back = async {
        while store.apply(&peek, None).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), back).await.expect("the primary is used again");
}

#[tokio::test]
async fn one_command_is_one_evalsha_and_a_batch_one_round_trip() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let before = calls(&server, "evalsha");
    decide(&store, Action::take(), &all()).await;
    assert_eq!((calls(&server, "evalsha"), calls(&server, "eval")), (before + 1, 0));
    let (counter, limit) = (Counter::new("batch", "user", ""), Limit::per_hour(1_000).build().unwrap());
    let charges = [Charge::new(Key::new(&counter, "u", ""), &limit)];
    let commands = vec![Command::take(&charges); 1_000];
    let outcomes = store.apply_batch(&commands, None).await;
    let remaining = outcomes.into_iter().map(|outcome| match outcome.unwrap() {
        Outcome::Decided(decision) => decision.remaining().unwrap(),
        other => panic!("{other:?}"),
    });
    assert!(remaining.eq((0..1_000).rev()), "outcomes are in the order of the batch");
    assert_eq!(calls(&server, "evalsha"), before + 1_001);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_share_round_trips() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    let url = format!("redis://{}", proxy.address());
    let store = Arc::new(RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap());
    decide(&*store, Action::take(), &all()[..1]).await;
    proxy.set(Fault::DelayReplies(Duration::from_millis(100)));
    let started = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { decide(&*store, Action::take(), &all()).await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    // One after another they would take 6.4 seconds.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let own =
        clients.lines().filter(|line| line.contains("cmd=evalsha") || line.contains("cmd=script")).count();
    assert!((1..=2).contains(&own), "{clients}");
}

/// Ten callers, one after another, that stop waiting before a reply can arrive.
async fn leave_early(store: &RedisStore) {
    for _ in 0..10 {
        let left = timeout(Duration::from_millis(2), decide(store, Action::take(), &all()[..1])).await;
        assert!(left.is_err(), "the caller stops waiting before the reply");
    }
}

fn figure(store: &dyn Store, name: &str) -> u64 {
    store.figures().into_iter().find(|(other, _)| *other == name).unwrap().1.value()
}

#[tokio::test]
async fn callers_that_stop_waiting_do_not_break_the_connection_of_others() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    let url = format!("redis://{}", proxy.address()).parse().unwrap();
    let options = RedisOptions { connections: 1, ..RedisOptions::new(url) };
    let store = Arc::new(RedisStore::connect(options).await.unwrap());
    let connects = figure(&*store, "connects");
    proxy.set(Fault::DelayReplies(Duration::from_millis(200)));
    let patient = tokio::spawn({
        let store = store.clone();
        async move { decide(&*store, Action::take(), &all()).await }
    });
    leave_early(&store).await;
    assert!(patient.await.unwrap().allowed, "the patient caller gets its decision");
    assert_eq!(figure(&*store, "connects"), connects, "the connection is the same");
}

#[tokio::test]
async fn silent_connection_is_replaced_when_callers_stop_waiting() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    let url = format!("redis://{}", proxy.address()).parse().unwrap();
    let store = RedisStore::connect(RedisOptions { connections: 1, ..RedisOptions::new(url) }).await.unwrap();
    proxy.set(Fault::DropReplies);
    leave_early(&store).await;
    let replaced = async {
        while figure(&store, "connections") > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), replaced).await.expect("the silent connection is discarded");
    proxy.set(Fault::None);
    // The decision arrives over a new connection.
    decide(&store, Action::peek(), &all()).await;
}

#[tokio::test]
async fn time_is_that_of_the_server() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let seconds = |text: String| text.lines().next().unwrap().parse::<u64>().unwrap();
    let before = seconds(server.command(&["TIME"]));
    let at = decide(&store, Action::take(), &all()).await.at.as_micros() / 1_000_000;
    let after = seconds(server.command(&["TIME"]));
    assert!((before..=after).contains(&at), "{before} {at} {after}");
}

#[tokio::test]
async fn users_passwords_and_databases() {
    let server = RedisServer::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "gate",
        "on",
        ">p@ss:word",
        "~rl:*",
        "+evalsha",
        "+script|load",
        "+select",
        "+@read",
        "+@write",
        "+time",
    ]);
    let url = format!("redis://gate:p%40ss%3Aword@{}/3", server.address());
    let store = RedisStore::connect(RedisOptions::new(url.parse().unwrap())).await.unwrap();
    assert!(decide(&store, Action::take(), &all()).await.allowed);
    assert_eq!(server.command(&["-n", "3", "DBSIZE"]), "6");
    assert_eq!(server.command(&["-n", "0", "DBSIZE"]), "0");
    server.command(&["ACL", "SETUSER", "gate", "resetkeys", "~other:*"]);
    let counter = Counter::new("a", "user", "");
    let limit = two_an_hour(Algorithm::Gcra);
    let charges = [Charge::new(Key::new(&counter, "u", ""), &limit)];
    let command = Command::take(&charges);
    let error = store.apply(&command, None).await.unwrap_err();
    assert!(error.is_permanent() && error.to_string().contains("lacks a permission"), "{error}");
}

#[tokio::test]
async fn tls_with_a_client_certificate() {
    let (server, certificates) = RedisServer::start_tls();
    let url = server.url().parse().unwrap();
    let files = TlsFiles {
        authority: Some(certificates.authority.clone()),
        client: Some((certificates.client_certificate.clone(), certificates.client_key.clone())),
    };
    let with = |tls: TlsFiles| {
        RedisStore::connect(RedisOptions { tls, ..RedisOptions::new(server.url().parse().unwrap()) })
    };
    let store = with(files.clone()).await.unwrap();
    assert!(decide(&store, Action::take(), &all()).await.allowed);
    assert!(
        RedisStore::connect(RedisOptions::new(url)).await.is_err(),
        "an unknown authority is not trusted"
    );
    assert!(
        with(TlsFiles { client: None, ..files.clone() }).await.is_err(),
        "the server requires a client certificate"
    );
    let missing = with(TlsFiles { authority: Some("/nowhere.pem".into()), client: None }).await.unwrap_err();
    assert!(missing.is_permanent() && missing.to_string().contains("/nowhere.pem"), "{missing}");
}

#[tokio::test]
async fn large_refund_of_a_log_is_exact() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let limits = [(
        Counter::new("log", "user", ""),
        Limit::try_new(Algorithm::SlidingLog, 1_000, Duration::from_secs(3_600)).unwrap(),
    )];
    let mut taken = Vec::new();
    for _ in 0..200 {
        taken.push(decide(&store, Action::take(), &limits).await.at);
    }
    // Refunds the first entry; the running totals of the 199 after it have to follow.
    for attempt in 0..2 {
        let left = refund(&store, &limits, 1, Some(taken[0])).await.remaining();
        assert_eq!(left, Some(801), "it is refunded once: {attempt}");
    }
    let newest = server.command(&["ZREVRANGE", "rl:{user:u}:log:", "0", "0"]);
    assert!(newest.starts_with("199:1:"), "{newest}");
}
