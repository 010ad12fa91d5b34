//! Builders for limits, rules and costs: no `?` at each number, and errors that name the location.

use std::sync::Arc;

use pacegate::{
    Check, CheckError, Cost, Decision, FailureMode, InvalidLimit, InvalidRules, Limit, Limiter, Methods,
    Mode, Pattern, PlanLimit, Reason, Rule, Scope, Timestamp,
    remote::{Remote, RemoteDecisions, RemoteFuture},
};

#[test]
fn builder_rejects_invalid_plan_limit_by_plan_and_position() {
    let limits = [Limit::per_second(1), Limit::per_minute(0)];
    let error = Limiter::builder().plan("gold", limits).build().unwrap_err();
    assert_eq!(error.to_string(), "plan `gold`: limits[1]: limit: must be between 1 and 1000000000, got 0");
    let with_unit = PlanLimit::builder(Limit::per_minute(1).sliding_log().burst(2)).unit("tokens");
    let error = Limiter::builder().plan("chat", [with_unit]).build().unwrap_err();
    assert!(matches!(error, InvalidRules::InvalidPlanLimit { plan, index: 0, .. } if plan == "chat"));
}

#[test]
fn builder_rejects_invalid_default_limit() {
    let error = Limiter::builder().default_limit(Limit::per_second(1).burst(0)).build().unwrap_err();
    assert_eq!(error.to_string(), "default limit: burst: must be between 1 and 1000000000, got 0");
}

#[test]
fn builder_rejects_invalid_rule_by_name_and_field() {
    let valid = || Rule::builder("r", "user", Limit::per_second(1));
    let invalid = [
        (Rule::builder("r", "user", Limit::per_second(0)), "limit"),
        (valid().endpoint("/a/{*rest}/b"), "endpoint"),
        (valid().method("PO ST"), "method"),
        (valid().tier(""), "tier"),
        // The first error is reported.
        (valid().endpoint("").method(""), "endpoint"),
    ];
    for (rule, field) in invalid {
        let error = Limiter::builder().rule(valid().tier("other")).rule(rule).build().unwrap_err();
        assert!(error.to_string().starts_with(&format!("rule `r`: {field}: ")), "{error}");
        let InvalidRules::InvalidRule { index, name, invalid } = error else { panic!("{error}") };
        assert_eq!((index, &*name, invalid.field()), (1, "r", field));
    }
    let error = Rule::builder("r", "user", Limit::per_second(0)).build().unwrap_err();
    assert_eq!(error.to_string(), "limit: must be between 1 and 1000000000, got 0");
}

#[test]
fn rule_builder_sets_every_field() {
    let limit = Limit::per_minute(100).build().unwrap();
    let rule = Rule::builder("per-user", "user", limit)
        .endpoint("/api/{*rest}")
        .method("post")
        .method("PUT")
        .tier("pro")
        .identifier("u1")
        .unit("tokens")
        .cost(5)
        .overdraw()
        .shadow()
        .unlimited()
        .per_endpoint()
        .store("hot")
        .on_store_error(FailureMode::Closed)
        .build()
        .unwrap();
    let expected = Rule {
        name: "per-user".into(),
        dimension: "user".into(),
        identifier: Some("u1".into()),
        tier: Some("pro".into()),
        endpoint: Pattern::parse("/api/{*rest}").unwrap(),
        methods: Methods::try_new(["POST", "PUT"]).unwrap(),
        limit,
        unlimited: true,
        unit: Some("tokens".into()),
        cost: Some(Cost::try_new(5).unwrap()),
        overdraw: true,
        mode: Mode::Shadow,
        scope: Scope::Endpoint,
        store: Some("hot".into()),
        on_store_error: Some(FailureMode::Closed),
    };
    assert_eq!(rule, expected);
}

#[test]
fn check_with_invalid_limit_is_an_error() {
    let limiter = Limiter::default();
    let check = Check::key("k").limit(Limit::per_second(0));
    let error = limiter.check_now(&check).unwrap_err();
    assert!(matches!(error, CheckError::InvalidLimit(InvalidLimit::QuotaOutOfRange { quota: 0, .. })));
    assert_eq!(error.to_string(), "ad-hoc limit: limit: must be between 1 and 1000000000, got 0");
}

/// A service that allows everything.
#[derive(Debug)]
struct AllowsAll(Limiter);

impl Remote for AllowsAll {
    fn check<'a, 'b: 'a>(&'a self, _: &'a Check<'b>) -> RemoteFuture<'a, Decision> {
        Box::pin(self.0.check("admitted"))
    }
    fn check_each<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteDecisions<'a> {
        Box::pin(async { checks.iter().map(|_| self.0.check_now("admitted")).collect() })
    }
    fn check_all<'a, 'b: 'a>(&'a self, _: &'a [Check<'b>]) -> RemoteFuture<'a, Decision> {
        Box::pin(self.0.check("admitted"))
    }
    fn peek<'a, 'b: 'a>(&'a self, _: &'a Check<'b>) -> RemoteFuture<'a, Decision> {
        Box::pin(self.0.peek("admitted"))
    }
    fn reset<'a, 'b: 'a>(&'a self, _: &'a Check<'b>) -> RemoteFuture<'a, Timestamp> {
        Box::pin(self.0.reset("admitted"))
    }
    fn refund<'a, 'b: 'a>(&'a self, _: &'a Check<'b>, decision: &'a Decision) -> RemoteFuture<'a, Decision> {
        Box::pin(self.0.refund("admitted", decision))
    }
}

#[tokio::test]
async fn check_with_invalid_limit_is_not_sent_to_a_service() {
    let service = Arc::new(AllowsAll(Limiter::default()));
    let limiter = Limiter::default().with_remote(service, FailureMode::Open);
    let (valid, invalid) = (Check::key("k"), Check::key("k").limit(Limit::per_second(0)));
    let is_invalid =
        |result: Result<Decision, CheckError>| matches!(result, Err(CheckError::InvalidLimit(_)));
    let admitted = limiter.check(&valid).await.unwrap();
    assert!(is_invalid(limiter.check(&invalid).await));
    assert!(is_invalid(limiter.peek(&invalid).await));
    assert!(is_invalid(limiter.refund(&invalid, &admitted).await));
    assert!(is_invalid(limiter.check_all(&[valid.clone(), invalid.clone()]).await));
    assert!(matches!(limiter.reset(&invalid).await, Err(CheckError::InvalidLimit(_))));
    let each = limiter.check_each(&[valid.clone(), invalid, valid]).await;
    assert_eq!(each.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn cost_above_the_largest_exceeds_every_limit() {
    let largest = Limit::per_second(Limit::QUOTA_MAX);
    let limits = [
        largest,
        largest.leaky_bucket(),
        largest.fixed_window(),
        largest.sliding_counter(),
        largest.gcra(),
        Limit::per_second(Limit::SLIDING_LOG_QUOTA_MAX).sliding_log(),
    ];
    for limit in limits {
        let check = Check::key("k").limit(limit);
        let limiter = Limiter::default();
        let denied = limiter.check_now(check.clone().cost(u32::MAX)).unwrap();
        let reason = denied.binding().and_then(|answer| answer.reason);
        assert_eq!((denied.allowed(), reason), (false, Some(Reason::CostExceedsLimit)), "{limit:?}");
        let quota = u32::try_from(Limit::QUOTA_MAX).unwrap().min(denied.binding().unwrap().capacity);
        assert!(limiter.check_now(check.cost(quota)).unwrap().allowed(), "{limit:?}");
    }
}

#[test]
fn cost_is_a_literal() {
    let limiter = Limiter::builder().plan("gold", [Limit::per_minute(10)]).build().unwrap();
    let left = |check: Check<'_>| limiter.check_now(check.plan("gold")).unwrap().remaining();
    assert_eq!(left(Check::key("k").cost(3)), Some(7));
    assert_eq!(left(Check::key("k").cost(0)), Some(7), "a cost of 0 charges nothing");
    assert_eq!(limiter.plan("gold").unwrap().check_now("k", 2).unwrap().remaining(), Some(5));
}
