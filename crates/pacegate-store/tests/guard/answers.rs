//! What callers get, from the store or without it: deadlines, failure modes, idempotency.

use std::time::Duration;

use pacegate_core::{ChainDecision, Cost, Reason};
use pacegate_store::{Action, Charge, Clock, Command, FailureMode, Outcome, Store};
use tokio::time::{Instant, sleep};

use crate::setup::*;

#[tokio::test(start_paused = true)]
async fn healthy_store_decides() {
    let setup = Setup::new(Behaviour::Answer);
    let rule = rule(FailureMode::Closed);
    let remaining = |decision: &ChainDecision| (decision.allowed, decision.degraded(), decision.remaining());
    assert_eq!(remaining(&setup.take(&[&rule]).await), (true, false, Some(1)));
    assert_eq!(remaining(&setup.take(&[&rule]).await), (true, false, Some(0)));
    let denied = setup.take(&[&rule]).await;
    assert_eq!(remaining(&denied), (false, false, Some(0)));
    assert_eq!(reasons(&denied), [Some(Reason::LimitExceeded)]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.store.calls(), 3);
    let probes = setup.store.probes();
    assert!((60..=80).contains(&probes), "one probe a second: {probes}");
}

#[tokio::test(start_paused = true)]
async fn hanging_store_times_out_exactly_at_the_deadline() {
    for deadline in [DEADLINE, Duration::from_millis(7), Duration::from_secs(2)] {
        for action in DECIDED {
            let setup = Setup::with_deadline(Behaviour::Hang, deadline);
            let start = Instant::now();
            let decision = setup.decide(action, &[&rule(FailureMode::Open)]).await;
            assert_eq!(start.elapsed().as_millis(), deadline.as_millis(), "{action:?}");
            assert!(decision.degraded());
        }
        for action in [Action::Reset, Action::Refund] {
            let setup = Setup::with_deadline(Behaviour::Hang, deadline);
            let start = Instant::now();
            let error = setup.apply(action, &[&rule(FailureMode::Open)]).await.unwrap_err();
            assert_eq!(start.elapsed().as_millis(), deadline.as_millis(), "{action:?}");
            assert!(error.is_timeout() && error.may_have_run(), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_just_before_the_deadline_is_used() {
    let setup = Setup::new(Behaviour::AnswerAfter(DEADLINE - Duration::from_millis(1)));
    assert!(!setup.take(&[&rule(FailureMode::Closed)]).await.degraded());
}

#[tokio::test(start_paused = true)]
async fn batch_has_one_deadline_and_an_outcome_for_every_command() {
    let setup = Setup::new(Behaviour::Hang);
    let rules: Vec<Rule> = (0..10).map(|number| named(&number.to_string(), FailureMode::Local)).collect();
    let charges: Vec<[Charge<'_>; 1]> = rules.iter().map(|rule| [rule.charge()]).collect();
    let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
    let start = Instant::now();
    let results = setup.guard.apply_batch(&commands, None).await;
    assert_eq!(start.elapsed().as_millis(), DEADLINE.as_millis());
    assert_eq!(results.len(), commands.len());
    for result in results {
        assert_eq!(reasons(&decided(result)), [Some(Reason::LocalFallback)]);
    }
    assert_eq!(setup.store.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_command_of_a_batch_does_not_affect_the_others() {
    let setup = Setup::new(Behaviour::Foreign);
    let (good, bad) = (rule(FailureMode::Open), Rule { identifier: "foreign", ..rule(FailureMode::Closed) });
    let (good, bad) = ([good.charge()], [bad.charge()]);
    let commands = [Command::take(&good), Command::take(&bad), Command::take(&good)];
    let results = setup.guard.apply_batch(&commands, None).await;
    let summary: Vec<_> = results
        .into_iter()
        .map(decided)
        .map(|decision| (decision.allowed, decision.degraded(), decision.remaining()))
        .collect();
    assert_eq!(summary, [(true, false, Some(1)), (false, true, None), (true, false, Some(0))]);
    assert_eq!((setup.figure("errors"), setup.figure("degraded")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn open_allows_and_closed_denies_without_counts() {
    for behaviour in
        [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected, Behaviour::Foreign, Behaviour::Silent]
    {
        for (mode, allowed, reason) in
            [(FailureMode::Open, true, Reason::FailOpen), (FailureMode::Closed, false, Reason::FailClosed)]
        {
            for action in DECIDED {
                let setup = Setup::new(behaviour);
                let rule = Rule { identifier: "foreign", ..rule(mode) };
                for _ in 0..3 {
                    let decision = setup.decide(action, &[&rule]).await;
                    assert_eq!(decision.allowed, allowed, "{behaviour:?} {mode:?}");
                    assert_eq!(reasons(&decision), [Some(reason)], "{behaviour:?} {mode:?}");
                    assert_eq!(decision.answers[0].allowed, allowed);
                    assert_counts_unknown(&decision.answers[0]);
                    assert_eq!(decision.retry_after(), None);
                    assert_eq!(decision.at, setup.clock.now());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn local_counters_enforce_the_same_limit() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let now = setup.clock.now();
    for (action, remaining) in
        [(Action::take(), 1), (Action::peek(), 1), (Action::take(), 0), (Action::peek(), 0)]
    {
        let decision = setup.decide(action, &[&rule]).await;
        assert_eq!(decision.allowed, decision.answers[0].retry_at.is_none());
        assert_eq!(decision.remaining(), Some(remaining), "{action:?}");
        assert_eq!(reasons(&decision), [Some(Reason::LocalFallback)]);
        assert_eq!(decision.answers[0].reset_at, Some(now.saturating_add(HOUR)));
        assert!(decision.degraded());
    }
    setup.clock.advance(Duration::from_secs(600));
    let denied = setup.take(&[&rule]).await;
    assert!(!denied.allowed && denied.degraded());
    assert_eq!(reasons(&denied), [Some(Reason::LocalFallback)]);
    assert_eq!(denied.answers[0].retry_at, Some(now.saturating_add(HOUR)));
    assert_eq!(denied.retry_after(), Some(HOUR - Duration::from_secs(600)));

    setup.store.set(Behaviour::Answer);
    let decision = setup.take(&[&rule]).await;
    assert_eq!(
        (decision.degraded(), decision.remaining()),
        (false, Some(1)),
        "the store keeps its own count"
    );
}

#[tokio::test(start_paused = true)]
async fn cost_above_the_capacity_keeps_its_reason_in_the_fallback() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let charges = [Charge { cost: Cost::try_new(3).unwrap(), ..rule.charge() }];
    let decision = decided(setup.guard.apply(&Command::take(&charges), None).await);
    assert!(!decision.allowed && decision.degraded());
    assert_eq!(reasons(&decision), [Some(Reason::CostExceedsLimit)]);
    assert_eq!(decision.retry_after(), None, "no retry can succeed");
}

#[tokio::test(start_paused = true)]
async fn closed_limit_denies_a_mixed_chain_and_charges_nothing() {
    let setup = Setup::new(Behaviour::Unavailable);
    let (open, closed, local) =
        (named("a", FailureMode::Open), named("b", FailureMode::Closed), named("c", FailureMode::Local));
    for _ in 0..3 {
        let decision = setup.take(&[&open, &local, &closed]).await;
        assert!(!decision.allowed);
        assert_eq!(
            reasons(&decision),
            [Some(Reason::FailOpen), Some(Reason::LocalFallback), Some(Reason::FailClosed)]
        );
        let allowed: Vec<bool> = decision.answers.iter().map(|answer| answer.allowed).collect();
        assert_eq!(allowed, [true, true, false]);
        assert_eq!(decision.answers[1].remaining, Some(2), "nothing was charged");
        assert_eq!(decision.binding_index(), 2);
        assert!(decision.answers.iter().all(|answer| answer.degraded));
        assert_counts_unknown(&decision.answers[0]);
        assert_counts_unknown(&decision.answers[2]);
    }
    let without = setup.take(&[&open, &local]).await;
    assert_eq!((without.allowed, without.answers[1].remaining), (true, Some(1)));
    assert_eq!(without.binding_index(), 1, "a known count binds before an unknown one");
}

#[tokio::test(start_paused = true)]
async fn local_limits_are_charged_all_or_none() {
    let setup = Setup::new(Behaviour::Unavailable);
    let wide = Rule { limit: per_hour(10), ..named("wide", FailureMode::Local) };
    let (narrow, open) = (named("narrow", FailureMode::Local), named("open", FailureMode::Open));
    for _ in 0..2 {
        assert!(setup.take(&[&wide, &open, &narrow]).await.allowed);
    }
    let denied = setup.take(&[&wide, &open, &narrow]).await;
    assert!(!denied.allowed);
    assert_eq!(denied.binding_index(), 2);
    assert_eq!(setup.decide(Action::peek(), &[&wide]).await.remaining(), Some(8));
}

#[tokio::test(start_paused = true)]
async fn shadow_limit_never_denies_in_any_failure_mode() {
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        let setup = Setup::new(Behaviour::Unavailable);
        let shadow = Rule { shadow: true, ..named("shadow", mode) };
        let local = Rule { limit: per_hour(10), ..named("local", FailureMode::Local) };
        for taken in 1..=3 {
            let decision = setup.take(&[&shadow, &local]).await;
            assert!(decision.allowed, "{mode:?}");
            assert!(decision.answers[0].shadow && decision.answers[0].degraded);
            assert!(!decision.answers[1].shadow);
            assert_eq!(decision.answers[1].remaining, Some(10 - taken), "the enforced limit is charged");
            let full = mode == FailureMode::Local && taken == 3;
            assert_eq!(decision.answers[0].allowed, !full, "{mode:?}: it reports what it would have decided");
        }
        assert!(setup.take(&[&shadow]).await.allowed, "{mode:?}: also without other limits");
    }
}

#[tokio::test(start_paused = true)]
async fn repetition_during_an_outage_is_recognised_locally() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let rules = [&rule];
    let take = |idempotency| setup.apply(Action::Take { idempotency }, &rules);
    let first = decided(take(key("a", 1)).await);
    assert_eq!((first.replayed, first.remaining()), (false, Some(1)));
    let second = decided(take(key("a", 1)).await);
    assert_eq!((second.allowed, second.replayed, second.remaining()), (true, true, Some(1)));
    assert_eq!(reasons(&second), [Some(Reason::LocalFallback)]);
    assert!(second.degraded());
    assert!(matches!(take(key("a", 2)).await, Ok(Outcome::Mismatch)));
    let other = decided(take(key("b", 1)).await);
    assert_eq!((other.replayed, other.remaining()), (false, Some(0)), "the repetition was not charged");
}

#[tokio::test(start_paused = true)]
async fn denial_by_a_closed_limit_does_not_consume_the_idempotency_key() {
    let setup = Setup::new(Behaviour::Unavailable);
    let (local, closed) = (named("local", FailureMode::Local), named("closed", FailureMode::Closed));
    let action = Action::Take { idempotency: key("a", 1) };
    assert!(!setup.decide(action, &[&local, &closed]).await.allowed);
    let again = setup.decide(action, &[&local]).await;
    assert_eq!((again.allowed, again.replayed, again.remaining()), (true, false, Some(1)));
}
