//! Plans.

use std::time::Duration;

use pacegate::{Algorithm, Cost, Limit, PlanLimit};
use pacegate_catalog::Expected;

use super::{TestDatabase, actor};

pub(crate) async fn plans_are_created_replaced_and_deleted(database: &TestDatabase) {
    let catalog = database.open().await;
    let second = Limit::per_second(10).burst(20).build().unwrap();
    let log = Limit::try_new(Algorithm::SlidingLog, 5, Duration::from_micros(1_500)).unwrap();
    // The same values for another unit than requests.
    let tokens = PlanLimit { limit: log, unit: Some("tokens".into()), cost: Some(Cost::try_new(7).unwrap()) };
    let limits = [second.into(), log.into(), tokens];
    let (gold, created) = catalog.put_plan(&actor(), "gold", &limits, None).await.unwrap();
    assert!(created);
    assert_eq!((gold.limits.as_slice(), gold.version), (limits.as_slice(), 1));
    catalog.put_plan(&actor(), "Gold", &[log.into()], None).await.unwrap();
    catalog.put_plan(&actor(), "a plan", &[log.into()], None).await.unwrap();
    assert_eq!(catalog.plan("gold").await.unwrap(), Some(gold.clone()));
    assert_eq!(catalog.plan("gold ").await.unwrap(), None);

    let list = catalog.rules().await.unwrap();
    assert_eq!(list.revision.rules, 3);
    assert_eq!(list.plans, catalog.plans().await.unwrap());
    let names: Vec<&str> = list.plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(names, ["Gold", "a plan", "gold"]);

    let (again, created) =
        catalog.put_plan(&actor(), "gold", &[log.into()], Some(Expected::Version(1))).await.unwrap();
    assert!(!created && again.version == 2);
    assert!(
        catalog
            .put_plan(&actor(), "gold", &[log.into()], Some(Expected::Version(1)))
            .await
            .unwrap_err()
            .is_changed()
    );
    assert!(
        catalog
            .put_plan(&actor(), "new", &[log.into()], Some(Expected::Version(1)))
            .await
            .unwrap_err()
            .is_changed()
    );
    catalog.delete_plan(&actor(), "gold", None).await.unwrap();
    assert_eq!(catalog.plan("gold").await.unwrap(), None);
    assert!(catalog.delete_plan(&actor(), "gold", None).await.unwrap_err().is_not_found());

    database.tamper("UPDATE pacegate_plans SET limits_json = '[{' WHERE name = 'Gold'").await;
    let list = catalog.rules().await.unwrap();
    assert_eq!((list.plans.len(), list.unreadable.len()), (1, 1));
    assert!(list.unreadable[0].contains("Gold"));
    assert!(catalog.plan("Gold").await.unwrap_err().is_permanent());
    database.tamper("UPDATE pacegate_plans SET name = 'Gold' WHERE name = 'a plan'").await;
    assert_eq!(catalog.rules().await.unwrap().unreadable.len(), 2);
}

pub(crate) async fn invalid_plans_are_rejected(database: &TestDatabase) {
    let catalog = database.open().await;
    let limit = Limit::per_second(10).build().unwrap();
    let other = Limit::per_second(20).build().unwrap();
    for (field, name, limits) in [
        ("name", "", vec![limit]),
        ("name", "ü", vec![limit]),
        ("limits", "empty", vec![]),
        ("limits", "twice", vec![limit, other]),
        ("limits", "many", vec![limit; 101]),
    ] {
        let limits: Vec<PlanLimit> = limits.into_iter().map(Into::into).collect();
        let error = catalog.put_plan(&actor(), name, &limits, None).await.unwrap_err();
        assert!(error.is_invalid() && error.field() == Some(field), "{name}: {error}");
    }
}
