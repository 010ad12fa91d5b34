//! One limiter for both modes: the decisions of a service, and the fallback while it is
//! unavailable.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{Algorithm, Check, CheckError, Cost, Limit, Limiter, MemoryStore, Standing, Stores};
use pacegate_config::Config;
use pacegate_connect::ConnectError;
use pacegate_server::{AdminKey, App, Listeners, run};
use pacegate_testkit::SimulatedClock;
use pacegate_testkit::server::{Fault, FaultProxy};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const RULES: &str = r#"
plans:
  gold: [{algorithm: fixed_window, limit: 5, window: 60s}]
  daily: [{algorithm: sliding_log, limit: 8, window: 1d}]
  leaky: [{algorithm: leaky_bucket, limit: 1, window: 1s, burst: 3}]
  chat: [{algorithm: fixed_window, limit: 50, window: 60s}, {algorithm: gcra, limit: 900, window: 60s, unit: tokens}]
rules:
  - {name: per-user, dimension: user, endpoint: "/api/{*rest}", algorithm: token_bucket, limit: 10, window: 1s}
  - {name: watch, dimension: user, endpoint: "/api/{*rest}", mode: shadow, algorithm: gcra, limit: 1, window: 60s}
"#;

struct Service {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Service {
    async fn start(clock: &Arc<SimulatedClock>, address: Option<SocketAddr>) -> Self {
        Self::start_with("", clock, address).await
    }

    async fn start_with(server: &str, clock: &Arc<SimulatedClock>, address: Option<SocketAddr>) -> Self {
        let config = Config::parse(&format!("{RULES}\nserver: {{drain_delay: 0s{server}}}\n")).unwrap();
        let store = MemoryStore::with_clock(Default::default(), clock.clone());
        let limiter = config.limiter_with(Stores::memory(Arc::new(store))).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = match address {
            None => TcpListener::bind("127.0.0.1:0").await.unwrap(),
            Some(address) => TcpListener::bind(address).await.unwrap(),
        };
        let address = grpc.local_addr().unwrap();
        let app = App::new(&config, limiter, AdminKey::new("secret"));
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            run(Listeners::from(http).grpc(grpc), app, &config.server, stopped).await;
        });
        Self { address, stop, running }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap();
    }
}

/// A limiter that calls the service.
async fn remote(address: SocketAddr, more: &str) -> Limiter {
    let yaml = format!("mode: service\nservice: {{url: \"http://{address}\", key: secret}}\n{more}");
    pacegate_connect::from_parsed(&Config::parse(&yaml).unwrap()).await.unwrap()
}

/// The numbers of a decision, without what only the deciding limiter knows.
fn numbers(decision: &pacegate::Decision) -> String {
    let limits: Vec<String> = decision
        .limits()
        .iter()
        .zip(decision.answers())
        .map(|(named, answer)| {
            let mut answer = *answer;
            answer.previous_standing = Standing::Normal;
            format!("{} {} {:?} {:?} {answer:?}", named.name, named.dimension(), named.mode, named.why)
        })
        .collect();
    format!("{} {} {:?} {limits:#?}", decision.allowed(), decision.replayed(), decision.at())
}

#[tokio::test]
async fn both_modes_make_the_same_decisions() {
    let clocks = [Arc::new(SimulatedClock::default()), Arc::new(SimulatedClock::default())];
    let service = Service::start(&clocks[0], None).await;
    // A long timeout, because the machine may be busy.
    let far = remote(service.address, "failure: {timeout: 5s}").await;
    let store = MemoryStore::with_clock(Default::default(), clocks[1].clone());
    let near = Config::parse(RULES).unwrap().limiter_with(Stores::memory(Arc::new(store))).unwrap();

    let ad_hoc = Limit::try_new(Algorithm::Gcra, 3, Duration::from_secs(30)).unwrap().with_burst(2).unwrap();
    let checks = [
        Check::key("k").plan("gold").plan("daily"),
        Check::key("k").plan("leaky"),
        Check::new("user", "u").and("tenant", "t").endpoint("/api/orders").method("POST"),
        Check::new("user", "u").endpoint("/api/orders").cost(Cost::try_new(3).unwrap()),
        Check::key("k").limit(ad_hoc),
        Check::new("user", "u").endpoint("/elsewhere"),
        Check::key("k").plan("chat").cost_in("tokens", Cost::try_new(250).unwrap()),
    ];
    for round in 0..120_usize {
        for clock in &clocks {
            clock.advance(Duration::from_micros(round as u64 * 137_731));
        }
        let check = &checks[round % checks.len()];
        let (a, b) = (far.check(check).await.unwrap(), near.check(check).await.unwrap());
        assert_eq!(numbers(&a), numbers(&b), "round {round}");
        if round % 7 == 0 {
            let (a, b) = (far.refund(check, &a).await.unwrap(), near.refund(check, &b).await.unwrap());
            assert_eq!(numbers(&a), numbers(&b), "refund in round {round}");
        }
        let (a, b) = (far.peek(check).await.unwrap(), near.peek(check).await.unwrap());
        assert_eq!(numbers(&a), numbers(&b), "peek in round {round}");
        if round % 11 == 0 {
            let each = (far.check_each(&checks).await, near.check_each(&checks).await);
            for (a, b) in each.0.into_iter().zip(each.1) {
                assert_eq!(numbers(&a.unwrap()), numbers(&b.unwrap()), "each in round {round}");
            }
            let (a, b) = (far.check_all(&checks).await.unwrap(), near.check_all(&checks).await.unwrap());
            assert_eq!((a.allowed(), a.remaining()), (b.allowed(), b.remaining()), "all in round {round}");
        }
        if round % 13 == 0 {
            let (a, b) = (far.reset(check).await.unwrap(), near.reset(check).await.unwrap());
            assert_eq!(a.as_secs_ceil(), b.as_secs_ceil());
        }
    }
    let keyed = Check::key("i").plan("gold").idempotency("me", "order-7");
    assert!(!far.check(&keyed).await.unwrap().replayed());
    assert!(far.check(&keyed).await.unwrap().replayed());
    let other = Check::key("i").plan("daily").idempotency("me", "order-7");
    assert!(matches!(far.check(&other).await, Err(CheckError::IdempotencyMismatch)));
    let error = far.check(&Check::key("k").plan("nonsense")).await.unwrap_err();
    assert_eq!(error.to_string(), "the service rejected the check: plans: unknown plan `nonsense`");
    service.stop().await;
}

#[tokio::test]
async fn without_the_service_the_failure_mode_decides() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start(&clock, None).await;
    let address = service.address;
    let mode = |mode: &str| format!("failure: {{mode: {mode}, timeout: 2s}}\n{RULES}");
    let open = remote(address, &mode("open")).await;
    let closed = remote(address, &mode("closed")).await;
    let local = remote(address, &mode("local")).await;
    let check = Check::key("k").plan("gold");
    for limiter in [&open, &closed, &local] {
        let decision = limiter.check(&check).await.unwrap();
        assert!(decision.allowed() && !decision.degraded());
    }
    service.stop().await;

    let decision = open.check(&check).await.unwrap();
    assert!(decision.allowed() && decision.degraded() && !decision.failed_closed());
    assert_eq!(decision.remaining(), None, "unknown values are not reported");
    assert!(open.refund(&check, &decision).await.unwrap().allowed(), "there is nothing to refund");
    let decision = closed.check(&check).await.unwrap();
    assert!(!decision.allowed() && decision.degraded() && decision.failed_closed());
    assert!(!closed.check_all(std::slice::from_ref(&check)).await.unwrap().allowed());
    for left in (0..5).rev() {
        let decision = local.check(&check).await.unwrap();
        assert!(decision.allowed() && decision.degraded());
        assert_eq!(decision.remaining(), Some(left), "plans of the file count in this process");
    }
    assert!(!local.check(&check).await.unwrap().allowed());
    let each = open.check_each(&[check.clone(), check.clone()]).await;
    assert!(each.iter().all(|decision| decision.as_ref().unwrap().allowed()));
    assert!(open.reset(&check).await.is_err(), "a reset fails");

    // The service is available again: the connection is re-established, and its counters decide.
    let service = Service::start(&clock, Some(address)).await;
    let mut decision = local.check(&check).await.unwrap();
    for _ in 0..1_000 {
        if !decision.degraded() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        decision = local.check(&check).await.unwrap();
    }
    assert!(decision.allowed() && !decision.degraded());
    service.stop().await;
}

#[tokio::test]
async fn wrong_key_never_lets_requests_pass_silently() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start(&clock, None).await;
    let yaml = format!("mode: service\nservice: {{url: \"http://{}\", key: wrong}}\n", service.address);
    let limiter = pacegate_connect::from_parsed(&Config::parse(&yaml).unwrap()).await.unwrap();
    // Resets require an admin key.
    let Err(CheckError::Store(error)) = limiter.reset(&Check::key("k").plan("gold")).await else { panic!() };
    assert!(error.is_rejection(), "{error}");
    // Refunds require a valid key, although checks need none here.
    let check = Check::key("k").plan("gold");
    let decision = limiter.check(&check).await.unwrap();
    assert!(matches!(limiter.refund(&check, &decision).await, Err(CheckError::Store(_))));
    assert_eq!(limiter.peek(&check).await.unwrap().remaining(), Some(4));
    assert!(!format!("{limiter:?}").contains("wrong"), "the key is never logged");
    service.stop().await;

    // However often it is retried: the breaker must not turn it into an outage, which would let
    // requests pass.
    let service = Service::start_with(", require_key: true", &clock, None).await;
    let yaml = format!(
        "mode: service\nservice: {{url: \"http://{}\"}}\nfailure: {{timeout: 2s}}\n",
        service.address
    );
    let limiter = pacegate_connect::from_parsed(&Config::parse(&yaml).unwrap()).await.unwrap();
    for attempt in 0..60 {
        let rejection = limiter.check(&check).await;
        assert!(
            matches!(&rejection, Err(CheckError::Store(error)) if error.is_rejection()),
            "{attempt}: {rejection:?}"
        );
    }
    service.stop().await;
}

#[tokio::test]
async fn rejected_batch_is_an_error_for_every_check() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start_with(", require_key: true", &clock, None).await;
    for mode in ["open", "closed", "local"] {
        let yaml = format!(
            "mode: service\nservice: {{url: \"http://{}\", key: revoked}}\nfailure: {{mode: {mode}, timeout: 10s}}\n{RULES}",
            service.address
        );
        let limiter = pacegate_connect::from_parsed(&Config::parse(&yaml).unwrap()).await.unwrap();
        let checks = vec![Check::key("k").plan("gold"); 1_001];
        let answers = limiter.check_each(&checks).await;
        assert_eq!(answers.len(), checks.len());
        for (index, answer) in answers.iter().enumerate() {
            let rejected = matches!(answer, Err(CheckError::Store(error)) if error.is_rejection());
            assert!(rejected, "{mode}, check {index}: {answer:?}");
        }
        let together = limiter.check_all(&checks[..2]).await;
        assert!(matches!(&together, Err(CheckError::Store(error)) if error.is_rejection()), "{together:?}");
        let waited = limiter.wait(&checks[0], Duration::from_secs(1)).await;
        assert!(matches!(&waited, Err(CheckError::Store(error)) if error.is_rejection()), "{waited:?}");
    }
    service.stop().await;
}

#[tokio::test]
async fn batches_are_split_at_the_bounds_of_a_request() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start(&clock, None).await;
    let limiter = remote(service.address, "failure: {timeout: 10s}").await;
    assert!(limiter.check_each(&[]).await.is_empty());

    let many = vec![Check::key("k").plan("daily"); 2_500];
    let answers = limiter.check_each(&many).await;
    let allowed: Vec<bool> = answers.into_iter().map(|answer| answer.unwrap().allowed()).collect();
    let first_eight: Vec<bool> = (0..2_500).map(|index| index < 8).collect();
    assert_eq!(allowed, first_eight, "in order, across batches");

    let too_long = "x".repeat(300_000);
    // Three times the maximum size of a request.
    let names: Vec<String> = (0..780).map(|index| format!("{index:01000}")).collect();
    let long: Vec<Check<'_>> = names.iter().map(|name| Check::key(name).plan("gold")).collect();
    for answer in limiter.check_each(&long).await {
        let decision = answer.unwrap();
        assert_eq!((decision.degraded(), decision.remaining()), (false, Some(4)));
    }

    // A check that is too large for any request is rejected; the checks around it are decided.
    let around = [long[0].clone(), Check::key(&too_long).plan("gold"), long[0].clone()];
    let answers = limiter.check_each(&around).await;
    assert!(matches!(&answers[1], Err(CheckError::Rejected(_))), "{:?}", answers[1]);
    for (index, left) in [(0, 3), (2, 2)] {
        assert_eq!(answers[index].as_ref().unwrap().remaining(), Some(left));
    }
    service.stop().await;
}

#[tokio::test]
async fn check_of_a_batch_fails_like_a_single_check() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start(&clock, None).await;
    let limiter = remote(service.address, "failure: {timeout: 10s}").await;
    let first = Check::key("i").plan("gold").idempotency("me", "order-7");
    limiter.check(&first).await.unwrap();
    let other = Check::key("i").plan("daily").idempotency("me", "order-7");
    let unknown = Check::key("i").plan("nonsense");
    let answers = limiter.check_each(&[other, unknown, Check::key("i").plan("gold")]).await;
    assert!(matches!(&answers[0], Err(CheckError::IdempotencyMismatch)), "{:?}", answers[0]);
    assert!(matches!(&answers[1], Err(CheckError::Rejected(_))), "{:?}", answers[1]);
    assert_eq!(answers[2].as_ref().unwrap().remaining(), Some(3));
    service.stop().await;
}

#[tokio::test]
async fn refund_is_applied_once_if_its_response_is_lost() {
    let clock = Arc::new(SimulatedClock::default());
    let service = Service::start(&clock, None).await;
    let network = FaultProxy::start(service.address).await;
    let limiter = remote(network.address(), "failure: {timeout: 10s}").await;
    let check = Check::key("k").plan("gold");
    let taken = limiter.check(&check).await.unwrap();
    limiter.check(&check).await.unwrap();
    assert_eq!(limiter.check(&check).await.unwrap().remaining(), Some(2));

    network.set(Fault::CutReplies { one_in: 1, seed: 0 });
    let Err(CheckError::Store(lost)) = limiter.refund(&check, &taken).await else { panic!() };
    assert!(lost.may_have_run() && !lost.is_retryable(), "{lost:?}");
    network.set(Fault::None);
    for _ in 0..2 {
        assert_eq!(limiter.refund(&check, &taken).await.unwrap().remaining(), Some(3));
    }
    drop(network);
    // The first call may find its connection broken; the second has no connection to use.
    assert!(limiter.reset(&check).await.is_err());
    let Err(CheckError::Store(rejection)) = limiter.reset(&check).await else { panic!() };
    assert!(rejection.is_retryable() && !rejection.may_have_run(), "{rejection:?}");
    service.stop().await;
}

#[tokio::test]
async fn errors_in_the_configuration_are_reported() {
    let wrong = |yaml: &str| Config::parse(yaml).unwrap_err().to_string();
    assert_eq!(wrong("mode: service"), "line 1: mode: `mode: service` requires `service.url`");
    assert_eq!(wrong("mode: both"), "line 1: mode: expected embedded or service, got \"both\"");
    assert_eq!(
        wrong("mode: service\nservice: {url: \"127.0.0.1:8081\"}"),
        "line 2: service.url: expected a URL that starts with http:// or https://"
    );
    let config = Config::parse("mode: embedded\nservice: {url: \"http://127.0.0.1:1\"}").unwrap();
    assert!(config.service.is_none(), "the mode switches the service off");
    let tls = "mode: service\nservice: {url: \"https://localhost:1\", tls: {ca: /nonexistent/ca.pem}}";
    let Err(ConnectError::Service { field, reason }) =
        pacegate_connect::from_parsed(&Config::parse(tls).unwrap()).await
    else {
        panic!()
    };
    assert_eq!(field, "tls.ca");
    assert!(reason.starts_with("/nonexistent/ca.pem: "), "{reason}");
    let Err(ConnectError::Config(_)) = pacegate_connect::from_config("/nonexistent.yaml").await else {
        panic!()
    };
    let redis = Config::parse("stores: {default: {url: \"redis://127.0.0.1:1\"}}").unwrap();
    let Err(ConnectError::Store { store, .. }) = pacegate_connect::from_parsed(&redis).await else {
        panic!()
    };
    assert_eq!(store, "default");
}
