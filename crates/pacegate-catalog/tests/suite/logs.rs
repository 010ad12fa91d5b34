//! The decision log, usage and retention.

use std::time::Duration;

use pacegate::Timestamp;
use pacegate_catalog::{DecisionFilter, DecisionRecord, Period, Retention, UsageFilter, UsageRecord};

use super::{TestDatabase, actor, rule};

fn decision(database: &TestDatabase, number: u64) -> DecisionRecord {
    DecisionRecord {
        at: database.after(number),
        request_id: Some(format!("r-{number}")),
        user_id: Some(format!("u{}", number % 3)),
        dimension: "user".into(),
        identifier: format!("u{}", number % 3),
        endpoint: if number.is_multiple_of(2) { "/even" } else { "/odd ' \" 🦀" }.into(),
        method: number.is_multiple_of(4).then(|| "GET".into()),
        allowed: !number.is_multiple_of(5),
        rule: Some(if number.is_multiple_of(3) { "per-user" } else { "Per-User" }.into()),
        reason: number.is_multiple_of(5).then(|| "LIMIT_EXCEEDED".into()),
        cost: number + 1,
        capacity: Some(100),
        remaining: (!number.is_multiple_of(7)).then_some(number),
    }
}

pub(crate) async fn decisions_are_stored_and_filtered(database: &TestDatabase) {
    let catalog = database.open().await;
    let all: Vec<DecisionRecord> = (0..1_203).map(|number| decision(database, number)).collect();
    catalog.append_decisions(&all).await.unwrap();
    let filters = [
        DecisionFilter::default(),
        DecisionFilter { user_id: Some("u1".into()), ..DecisionFilter::default() },
        DecisionFilter { endpoint: Some("/odd ' \" 🦀".into()), ..DecisionFilter::default() },
        DecisionFilter { rule: Some("per-user".into()), ..DecisionFilter::default() },
        DecisionFilter { identifier: Some("u2".into()), allowed: Some(false), ..DecisionFilter::default() },
        DecisionFilter {
            since: Some(database.after(600)),
            allowed: Some(false),
            ..DecisionFilter::default()
        },
    ];
    for filter in filters {
        let wanted = |record: &&DecisionRecord| {
            filter.user_id.as_ref().is_none_or(|user_id| record.user_id.as_ref() == Some(user_id))
                && filter.endpoint.as_ref().is_none_or(|endpoint| record.endpoint == *endpoint)
                && filter.identifier.as_ref().is_none_or(|identifier| record.identifier == *identifier)
                && filter.rule.as_ref().is_none_or(|rule| record.rule.as_ref() == Some(rule))
                && filter.since.is_none_or(|since| record.at >= since)
                && filter.allowed.is_none_or(|allowed| record.allowed == allowed)
        };
        let expected: Vec<DecisionRecord> = all.iter().rev().filter(wanted).cloned().collect();
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = catalog.decision_page(filter.clone(), after, 250).await.unwrap();
            let Some((number, _)) = page.last() else { break };
            after = Some(*number);
            found.extend(page.into_iter().map(|(_, record)| record));
        }
        assert_eq!(found, expected, "{filter:?}");
    }
    assert!(catalog.decision_page(DecisionFilter::default(), None, 1_001).await.is_err());
}

/// The text of an endpoint is too long for an index; its key is indexed.
pub(crate) async fn decisions_are_found_by_endpoint_key(database: &TestDatabase) {
    let catalog = database.open().await;
    catalog.append_decisions(&[decision(database, 0), decision(database, 1)]).await.unwrap();
    database.tamper("UPDATE pacegate_decision_log SET endpoint = '/other'").await;
    let filter = DecisionFilter { endpoint: Some("/even".into()), ..DecisionFilter::default() };
    let found = catalog.decision_page(filter, None, 10).await.unwrap();
    let ids: Vec<_> = found.iter().map(|(_, record)| record.request_id.as_deref()).collect();
    assert_eq!(ids, [Some("r-0")]);
}

/// Unbounded records: only the offending row may be lost.
pub(crate) async fn rejected_decision_does_not_affect_other_rows(database: &TestDatabase) {
    let catalog = database.open().await;
    let mut all: Vec<DecisionRecord> = (0..700).map(|number| decision(database, number)).collect();
    all[123].method = Some("M".repeat(65));
    all[456].identifier = "a\0b".into();
    // Some databases accept these texts; all of them reject a duplicate time.
    database.tamper("CREATE UNIQUE INDEX one_at_a_time ON pacegate_decision_log (at)").await;
    all[300].at = all[200].at;
    let rejected = catalog.append_decisions(&all).await.unwrap();
    let mut stored = Vec::new();
    let mut after = None;
    while let Some(page) = Some(catalog.decision_page(DecisionFilter::default(), after, 1_000).await.unwrap())
        .filter(|page| !page.is_empty())
    {
        after = page.last().map(|(number, _)| *number);
        stored.extend(page.into_iter().map(|(_, record)| record));
    }
    assert!((1..=3).contains(&rejected), "{rejected} rows were rejected");
    assert_eq!(stored.len() as u64 + rejected, 700);
    // Bounded records, as the service writes them, are all stored, and so is usage of such
    // identifiers.
    let later = |(number, record)| DecisionRecord { at: database.after(number), ..record }.bounded();
    let bounded: Vec<DecisionRecord> = (1_000..).zip(all).map(later).collect();
    assert_eq!(catalog.append_decisions(&bounded).await.unwrap(), 0);
    let usage = [used(database.now(), "a\0b", 1, 0), used(database.now(), &"u".repeat(5_000), 1, 0)];
    catalog.add_usage(Period::Minute, &usage).await.unwrap();
}

fn used(start: Timestamp, identifier: &str, allowed: u64, blocked: u64) -> UsageRecord {
    UsageRecord { start, dimension: "user".into(), identifier: identifier.into(), allowed, blocked }
}

pub(crate) async fn usage_is_summed_across_nodes(database: &TestDatabase) {
    let (catalog, other) = (database.open().await, database.open().await);
    let start = Period::Minute.start_of(database.now());
    let later = start.saturating_add(Duration::from_secs(60));
    // Two nodes at once, the second halfway through the minute.
    let half = start.saturating_add(Duration::from_secs(30));
    let first = [used(start, "u1", 5, 1), used(start, "u2", 1, 0), used(later, "u1", 2, 2)];
    let second = [used(half, "u2", 10, 0), used(half, "u1", 1, 1), used(half, "U1", 1, 0)];
    let (one, two) =
        tokio::join!(catalog.add_usage(Period::Minute, &first), other.add_usage(Period::Minute, &second));
    one.unwrap();
    two.unwrap();
    let all = catalog.usage(Period::Minute, UsageFilter::default(), start, 10).await.unwrap();
    let shown: Vec<(&str, u64, u64)> =
        all.iter().map(|record| (record.identifier.as_str(), record.allowed, record.blocked)).collect();
    assert_eq!(shown, [("u1", 8, 4), ("u2", 11, 0), ("U1", 1, 0)], "the heaviest identifiers come first");
    let only = UsageFilter { dimension: Some("user".into()), identifier: Some("u1".into()) };
    let recent = catalog.usage(Period::Minute, only, later, 10).await.unwrap();
    assert_eq!(recent, [used(later, "u1", 2, 2)]);
    assert!(catalog.usage(Period::Hour, UsageFilter::default(), start, 10).await.unwrap().is_empty());
}

pub(crate) async fn usage_pages_have_every_identifier_once(database: &TestDatabase) {
    let catalog = database.open().await;
    let (start, later) = (database.after(0), database.after(7_200));
    let of = |at, from: u64| -> Vec<UsageRecord> {
        (from..from + 20).map(|number| used(at, &format!("u{number}"), 1, number)).collect()
    };
    catalog.add_usage(Period::Hour, &of(start, 0)).await.unwrap();
    catalog.add_usage(Period::Hour, &of(later, 10)).await.unwrap();
    for (since, limit, count) in [(start, 1, 30), (start, 7, 30), (start, 30, 30), (later, 7, 20)] {
        let (mut found, mut cursor) = (std::collections::BTreeMap::new(), None);
        loop {
            let page = catalog.usage_page(Period::Hour, since, cursor, limit).await.unwrap();
            assert!(page.0.len() <= limit);
            for record in page.0 {
                assert_eq!(found.insert(record.identifier, record.allowed), None, "once");
            }
            cursor = page.1;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(found.len(), count, "in pages of {limit}");
        assert_eq!(found["u15"], if since == start { 2 } else { 1 }, "all periods are summed");
    }
    let foreign = Some("' OR 1".to_owned());
    assert!(catalog.usage_page(Period::Hour, start, foreign, 5).await.unwrap_err().is_invalid());
}

/// Minutes go first, because the hours include them; recent minutes, which are listed, go last.
pub(crate) async fn usage_above_the_maximum_is_removed_oldest_first(database: &TestDatabase) {
    let catalog = database.open().await;
    let nothing = Timestamp::default();
    let start = Period::Hour.start_of(database.after(3_600));
    let after = |seconds: u64| start.saturating_add(Duration::from_secs(seconds));
    // 400 minutes with 2 rows each, and 8 hours with 5.
    let minutes: Vec<UsageRecord> =
        (0..800).map(|row| used(after(row / 2 * 60), &format!("u{}", row % 2), 1, 0)).collect();
    let hours: Vec<UsageRecord> =
        (0..40).map(|row| used(after(row / 5 * 3_600), &format!("u{}", row % 5), 1, 0)).collect();
    catalog.add_usage(Period::Minute, &minutes).await.unwrap();
    catalog.add_usage(Period::Hour, &hours).await.unwrap();
    let retention = |usage_rows| Retention {
        audit: nothing,
        decisions: nothing,
        minutes: nothing,
        hours: nothing,
        overrides: nothing,
        usage_rows,
    };
    let count = async |seconds: u64| {
        let sql = format!("SELECT COUNT(*) FROM pacegate_usage_rollups WHERE period_seconds = {seconds}");
        database.number(&sql).await
    };
    let oldest = async |seconds: u64| {
        let sql =
            format!("SELECT MIN(period_start) FROM pacegate_usage_rollups WHERE period_seconds = {seconds}");
        Timestamp::from_micros(database.number(&sql).await.unsigned_abs())
    };
    for (rows_max, removed, minutes, hours, first_minute, first_hour) in [
        (840, 0, 800, 40, 0, 0),
        (821, 20, 780, 40, 10, 0),
        (750, 70, 720, 30, 40, 2),
        (100, 650, 100, 0, 350, 0),
    ] {
        let gone = catalog.remove_old(retention(rows_max)).await.unwrap();
        assert_eq!((gone.usage_beyond, gone.usage), (removed, 0), "maximum of {rows_max} rows");
        assert_eq!((count(60).await, count(3_600).await), (minutes, hours), "maximum of {rows_max} rows");
        assert_eq!(oldest(60).await, after(first_minute * 60));
        if hours > 0 {
            assert_eq!(oldest(3_600).await, after(first_hour * 3_600));
        }
    }
}

pub(crate) async fn long_identifiers_are_found_by_their_full_text(database: &TestDatabase) {
    let catalog = database.open().await;
    let long = |last: char| format!("{}{last}", "ü".repeat(400));
    let usage = [used(database.now(), &long('a'), 1, 0), used(database.now(), &long('b'), 2, 0)];
    catalog.add_usage(Period::Minute, &usage).await.unwrap();
    let filter = UsageFilter { identifier: Some(long('b')), ..UsageFilter::default() };
    let found = catalog.usage(Period::Minute, filter, database.now(), 10).await.unwrap();
    assert_eq!(found.iter().map(|record| record.allowed).collect::<Vec<_>>(), [2]);
    let user_id = Some(long('a'));
    let endpoint = format!("/{}", "x".repeat(2_000));
    let record =
        DecisionRecord { user_id: user_id.clone(), endpoint: endpoint.clone(), ..decision(database, 1) };
    catalog.append_decisions(&[record.bounded(), decision(database, 2)]).await.unwrap();
    for filter in [
        DecisionFilter { user_id, ..DecisionFilter::default() },
        DecisionFilter { endpoint: Some(endpoint), ..DecisionFilter::default() },
    ] {
        assert_eq!(catalog.decision_page(filter, None, 10).await.unwrap().len(), 1);
    }
}

pub(crate) async fn retention_removes_old_rows_and_keeps_the_trail_verifiable(database: &TestDatabase) {
    let catalog = database.open().await;
    let decisions: Vec<DecisionRecord> = (0..1_203).map(|number| decision(database, number)).collect();
    catalog.append_decisions(&decisions).await.unwrap();
    let minutes: Vec<UsageRecord> = (0..1_200)
        .map(|number| used(database.after(number / 600 * 60), &format!("u{number}"), 1, 0))
        .collect();
    catalog.add_usage(Period::Minute, &minutes).await.unwrap();
    catalog.add_usage(Period::Hour, &minutes).await.unwrap();
    for number in 0..10 {
        catalog.create_rule(&actor(), &rule(&format!("r{number}"), 5), None).await.unwrap();
        database.clock.advance(Duration::from_secs(1));
    }
    let start = Timestamp::from_micros(database.now().as_micros() - 10_000_000);
    let at = |seconds: u64| start.saturating_add(Duration::from_secs(seconds));
    let nothing = Timestamp::default();
    let keep = Retention {
        audit: nothing,
        decisions: nothing,
        minutes: nothing,
        hours: nothing,
        overrides: nothing,
        usage_rows: 10_000,
    };
    assert_eq!(catalog.remove_old(keep).await.unwrap(), pacegate_catalog::Removed::default());

    let removed = catalog
        .remove_old(Retention { audit: at(4), decisions: at(1_100), minutes: at(120), ..keep })
        .await
        .unwrap();
    assert_eq!((removed.audit, removed.decisions), (4, 1_100));
    assert!(removed.usage >= 600, "{removed:?}");
    let left = catalog.decision_page(DecisionFilter::default(), None, 1_000).await.unwrap();
    assert_eq!(left.len(), 103);
    assert_eq!(database.number("SELECT COUNT(*) FROM pacegate_audit_log").await, 6);
    let check = catalog.audit_verify(None).await.unwrap();
    assert_eq!(
        (check.first, check.records, &*check.problems),
        (5, 6, &[][..]),
        "the remaining trail is intact"
    );
    catalog.create_rule(&actor(), &rule("later", 5), None).await.unwrap();
    assert_eq!(catalog.audit_verify(None).await.unwrap().records, 7);
    // Without the hash of the last removed record, a truncated beginning would not be noticed.
    database.tamper("DELETE FROM pacegate_audit_log WHERE sequence = 5").await;
    assert_eq!(catalog.audit_verify(None).await.unwrap().first_broken(), Some(5));
    let hours = catalog.usage(Period::Hour, UsageFilter::default(), nothing, 1_000).await.unwrap();
    assert_eq!(hours.len(), 1_000, "hours are kept longer");
}
